//! Run it with `cargo run --release --example pairs`. It needs a Redis: the server at REDIS_URL, or
//! one on this machine.
//!
//! Measures how long locks take. It leaves only the marks of fences on the server.

use std::time::{Duration, Instant};

use lockhound::{Error, Lock, Locker};

#[tokio::main]
async fn main() {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".into());
    if let Err(error) = measure(&url).await {
        eprintln!("{error}\nStart a server with `redis-server`, or name one in REDIS_URL.");
        std::process::exit(1);
    }
}

async fn measure(url: &str) -> Result<(), Error> {
    let locks = Locker::connect(url).await?;
    let key = |name: String| format!("lockhound:example:pairs:{name}");
    pairs(locks.get(key("warm".into())), 1_000).await?;
    let alone = pairs(locks.get(key("alone".into())), 10_000).await?;
    println!(
        "one task, one key      {:>8.0} us a pair",
        alone.as_secs_f64() * 1e6 / 10_000.0
    );
    let apart = tasks(
        (0..64)
            .map(|i| locks.get(key(format!("apart:{i}"))))
            .collect(),
        500,
    )
    .await?;
    println!(
        "64 tasks, a key each   {:>8.0} pairs a second",
        64.0 * 500.0 / apart.as_secs_f64()
    );
    let together = tasks(vec![locks.get(key("together".into())); 64], 100).await?;
    println!(
        "64 tasks, one key      {:>8.0} pairs a second",
        64.0 * 100.0 / together.as_secs_f64()
    );
    locks.close().await;
    Ok(())
}

async fn pairs(lock: Lock, rounds: u32) -> Result<Duration, Error> {
    let start = Instant::now();
    for _ in 0..rounds {
        lock.lock().await?.unlock().await?;
    }
    Ok(start.elapsed())
}

async fn tasks(locks: Vec<Lock>, rounds: u32) -> Result<Duration, Error> {
    let start = Instant::now();
    let running: Vec<_> = locks
        .into_iter()
        .map(|lock| tokio::spawn(pairs(lock, rounds)))
        .collect();
    for task in running {
        // A panic has been printed already.
        task.await.unwrap_or(Err(Error::Closed))?;
    }
    Ok(start.elapsed())
}
