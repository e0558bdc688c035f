//! Run it with `cargo run --example nested`. It needs a Redis: the server at REDIS_URL, or one on
//! this machine.
//!
//! Functions that call each other can each take the same lock, since it belongs to the task. The
//! second and the third part show what that means for spawned tasks, and for guards that are moved
//! to another task.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use lockhound::{Lock, Locker};

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nested: {error}");
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
    let locks = Locker::connect(url)
        .await
        .map_err(|error| format!("{error}\n{advice}"))?;
    let lock = locks.get("lockhound:example:nested");
    order(&lock).await?;
    with_a_child(&lock).await?;
    moved_to_a_worker(&lock).await?;
    locks.close().await;
    Ok(())
}

/// Each function takes the lock itself: it is correct alone, and inside the other.
async fn order(lock: &Lock) -> Result<(), lockhound::Error> {
    let guard = lock.lock().await?;
    println!("order() has the lock, hold count {}", guard.hold_count());
    reserve(lock).await?;
    println!(
        "order() still has the lock, hold count {}",
        guard.hold_count()
    );
    guard.unlock().await
}

async fn reserve(lock: &Lock) -> Result<(), lockhound::Error> {
    let guard = lock.lock().await?;
    println!(
        "    reserve() has it too, hold count {}",
        guard.hold_count()
    );
    guard.unlock().await
}

/// A spawned task is another owner. It would wait for its parent forever, unless it runs in the
/// scope of the guard.
async fn with_a_child(lock: &Lock) -> Result<(), Box<dyn Error>> {
    let guard = lock.lock().await?;
    let (stranger, child) = (lock.clone(), lock.clone());
    let entered =
        tokio::spawn(async move { stranger.try_lock().await.map(|guard| guard.is_some()) })
            .await??;
    println!(
        "a spawned task gets the lock: {entered}; in the scope of its parent's guard it does:"
    );
    tokio::spawn(guard.scope(async move { reserve(&child).await })).await??;
    guard.unlock().await?;
    Ok(())
}

/// A guard that is moved to another task still belongs to the task that took it, which would enter
/// again. A detached guard does not.
async fn moved_to_a_worker(lock: &Lock) -> Result<(), Box<dyn Error>> {
    let guard = lock.lock().await?.detach();
    let worker = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(200)).await;
        guard.unlock().await
    });
    println!(
        "a worker has the lock; the task that took it gets it again: {}",
        lock.try_lock().await?.is_some()
    );
    let guard = lock.lock().await?;
    println!(
        "the worker is done; the task has the lock, hold count {}",
        guard.hold_count()
    );
    guard.unlock().await?;
    worker.await??;
    Ok(())
}
