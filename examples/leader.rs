//! Run it with `cargo run --example leader`. It needs a Redis: the server at REDIS_URL, or one on
//! this machine.
//!
//! Leader election. One leader steps down after its term. An operator deposes another one, which
//! then waits to lead again. Each time another candidate takes over, and an observer says so.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use lockhound::{Election, Fence, Locker, Observer};
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
    let election = locks.election("lockhound:example:leader");
    // It could as well be on another machine.
    let observer = tokio::spawn(observe(election.observe().await?));
    // Each campaign is a candidate of its own. It could as well be a process on another machine.
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
    // Its election is closed, so it returns.
    observer.await?;
    outcome
}

/// Leads for a whole term. A loss drops `lead`, and `run` campaigns again.
async fn candidate(name: &str, election: Election) -> Result<(), lockhound::Error> {
    let term = |leading: lockhound::Section| lead(name, leading.fence());
    election.run(name, term).await
}

/// Leads. The resource that carries out a leader's orders refuses those with a lower fence than it
/// has seen, since a leader that was paused may still give orders.
async fn lead(name: &str, fence: Fence) {
    println!("{name} leads, fence {fence}");
    sleep(TERM).await;
    println!("{name} steps down");
}

/// Says who leads, until the election is closed.
async fn observe(mut observer: Observer) {
    loop {
        let leader = match observer.changed().await {
            Ok(leader) => leader,
            // It keeps observing through an outage.
            Err(lockhound::Error::Unavailable { .. }) => continue,
            Err(_) => return,
        };
        match leader {
            // It leads before its value is written.
            Some(leader) => println!("seen: {} leads", leader.value().unwrap_or("somebody")),
            None => println!("seen: nobody leads"),
        }
    }
}
