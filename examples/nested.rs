//! Run it with `cargo run --example nested`. It needs a Redis: the server at REDIS_URL, or one on this machine.
//!
//! Functions that call each other can each take the same lock, since it belongs to the task. The second and the third
//! part show what follows for spawned tasks, and for guards that are given away.

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
    let url = std::env::var("REDIS_URL").ok().filter(|url| !url.is_empty());
    let url = url.unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let advice = "Start a server with `redis-server`, or name one that is there: REDIS_URL=redis://HOST:PORT";
    let locks = Locker::connect(url).await.map_err(|error| format!("{error}\n{advice}"))?;
    let lock = locks.get("lockhound:example:nested");
    order(&lock).await?;
    with_a_child(&lock).await?;
    given_away(&lock).await?;
    locks.close().await;
    Ok(())
}

/// Each function takes the lock by itself: it is correct alone, and correct inside the other.
async fn order(lock: &Lock) -> Result<(), lockhound::Error> {
    let guard = lock.lock().await?;
    println!("order() is in, hold count {}", guard.hold_count());
    reserve(lock).await?;
    println!("order() is in still, hold count {}", guard.hold_count());
    guard.unlock().await
}

async fn reserve(lock: &Lock) -> Result<(), lockhound::Error> {
    let guard = lock.lock().await?;
    println!("    reserve() is in too, hold count {}", guard.hold_count());
    guard.unlock().await
}

/// A spawned task is another owner: it would wait for its parent forever, unless it runs in the parent's scope.
async fn with_a_child(lock: &Lock) -> Result<(), Box<dyn Error>> {
    let guard = lock.lock().await?;
    let (stranger, child) = (lock.clone(), lock.clone());
    let entered = tokio::spawn(async move { stranger.try_lock().await.map(|guard| guard.is_some()) }).await??;
    println!("a spawned task gets in: {entered}; in the scope of its parent it does:");
    tokio::spawn(guard.scope(async move { reserve(&child).await })).await??;
    guard.unlock().await?;
    Ok(())
}

/// A guard that is given away still belongs to the task that took it, which would enter again; a detached one does not.
async fn given_away(lock: &Lock) -> Result<(), Box<dyn Error>> {
    let guard = lock.lock().await?.detach();
    let worker = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(200)).await;
        guard.unlock().await
    });
    println!("a worker has the lock; the task that took it gets in: {}", lock.try_lock().await?.is_some());
    let guard = lock.lock().await?;
    println!("the worker is done; the task is in, hold count {}", guard.hold_count());
    guard.unlock().await?;
    worker.await??;
    Ok(())
}
