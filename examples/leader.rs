//! Run it with `cargo run --example leader`. It needs a Redis: the server at REDIS_URL, or one on
//! this machine.
//!
//! Leader election: the holder of the lock leads. One leader steps down after its term. An operator
//! deposes another one, which then waits to lead again. Each time another candidate takes over.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use lockhound::{Fence, Lock, Locker};
use tokio::time::{sleep, timeout};

/// The watchdog renews every third of this, so a deposed leader learns of it within a second.
const LEASE: Duration = Duration::from_secs(3);
const TERM: Duration = Duration::from_millis(1500);
/// The example takes about six seconds.
const LONGEST: Duration = Duration::from_secs(20);

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leader: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("REDIS_URL")
        .ok()
        .filter(|url| !url.is_empty());
    let url = url.unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let advice =
        "Start a server with `redis-server`, or name a running one: REDIS_URL=redis://HOST:PORT";
    let connect = || Locker::builder().node(&url).lease(LEASE).connect();
    let locks = connect()
        .await
        .map_err(|error| format!("{error}\n{advice}"))?;
    let election = locks.get("lockhound:example:leader");
    // Each task is an owner of its own. It could as well be a process on another machine.
    let candidates =
        ["Ann", "Bob", "Cem"].map(|name| tokio::spawn(candidate(name, election.clone())));

    sleep(TERM * 3 / 2).await;
    println!("an operator deposes the leader, from another program");
    let operator = connect().await?;
    operator.get(election.key()).force_unlock().await?;
    operator.close().await;
    let terms = async {
        for candidate in candidates {
            candidate.await??;
        }
        Ok(())
    };
    let late = |_| {
        Err(
            format!("not all have led after {LONGEST:?}: does another program hold the lock?")
                .into(),
        )
    };
    let outcome = timeout(LONGEST, terms).await.unwrap_or_else(late);
    locks.close().await;
    outcome
}

/// Waits to lead, again and again, until it has led for a whole term.
async fn candidate(name: &str, election: Lock) -> Result<(), lockhound::Error> {
    loop {
        let guard = election.lock().await?;
        let (lost, fence) = (guard.lost(), guard.fence());
        tokio::select! {
            // The loss is polled first.
            biased;
            () = lost.cancelled() => {
                if let Err(error) = guard.check() {
                    println!("{name} stops at once, and waits to lead again: {error}");
                }
            }
            () = lead(name, fence) => {
                println!("{name} steps down");
                return guard.unlock().await;
            }
        }
    }
}

/// Leads. The resource that carries out a leader's orders refuses those with a lower fence than it
/// has seen, since a leader that was paused may still give orders.
async fn lead(name: &str, fence: Fence) {
    println!("{name} leads, fence {fence}");
    sleep(TERM).await;
}
