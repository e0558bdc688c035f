//! Run it with `cargo run --example stats`. It needs a Redis: the server at REDIS_URL, or one on
//! this machine.
//!
//! Prints a live table of a locker's stats, every second for eight seconds. Meanwhile some tasks
//! contend for a few locks, and one lock is forced from its holder.

use std::process::ExitCode;
use std::time::Duration;

use lockhound::stats::{CallOutcome, Stats};
use lockhound::{Error, Locker};
use tokio::time::sleep;

#[tokio::main]
async fn main() -> ExitCode {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".into());
    match Locker::builder()
        .node(&url)
        .lease(Duration::from_secs(3))
        .connect()
        .await
    {
        Ok(locks) => {
            show(&locks).await;
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!(
                "stats: {error}\nStart a server with `redis-server`, or name one in REDIS_URL."
            );
            ExitCode::FAILURE
        }
    }
}

async fn show(locks: &Locker) {
    let workers: Vec<_> = (0..32)
        .map(|i| tokio::spawn(work(locks.clone(), i % 4)))
        .collect();
    let victim = locks.get("lockhound:example:stats:victim");
    let held = victim.lock().await;
    println!(
        "holds waiters  granted renewals losses pending      wait p50     p99    held p50     p99"
    );
    for second in 1..=8 {
        sleep(Duration::from_secs(1)).await;
        line(&locks.stats());
        if second == 8 {
            renewals(&locks.stats());
        }
        if second == 4 {
            // Usually an operator's program does this.
            match victim.force_unlock().await {
                Ok(_) => println!("(one lock was forced)"),
                Err(error) => println!("(one lock could not be forced: {error})"),
            }
        }
    }
    drop(held);
    workers.iter().for_each(tokio::task::JoinHandle::abort);
    locks.close().await;
}

async fn work(locks: Locker, n: usize) -> Result<(), Error> {
    let lock = locks.get(format!("lockhound:example:stats:{n}"));
    loop {
        let guard = lock.lock().await?;
        sleep(Duration::from_millis(5)).await;
        guard.unlock().await?;
    }
}

/// Prints what the watchdog does: how late renewals are, how many locks a script renews, and the
/// slowest server.
fn renewals(s: &Stats) {
    let (late, batches) = (s.renewal_lateness, s.renewal_batches);
    println!(
        "renewals: late p50 {:.1?}, p99 {:.1?}; locks a script p50 {}, max {}",
        late.p50, late.p99, batches.p50, batches.max
    );
    if let Some(slowest) = &s.slowest_node {
        let times = slowest.round_trip;
        println!(
            "slowest node: {} answers in p50 {:.1?}, p99 {:.1?}, max {:.1?}",
            slowest.node, times.p50, times.p99, times.max
        );
    }
}

fn line(s: &Stats) {
    println!(
        "{:>5} {:>7} {:>8} {:>8} {:>6} {:>7}   {:>11.1?} {:>7.1?} {:>11.1?} {:>7.1?}",
        s.holds,
        s.waiters,
        s.attempts.of(CallOutcome::Granted),
        s.renewals,
        s.losses.total(),
        s.pending,
        s.wait_time.p50,
        s.wait_time.p99,
        s.hold_time.p50,
        s.hold_time.p99,
    );
}
