//! Redisson's `getReadWriteLock` on a JVM together with ours, on one server. tests/foreign/redisson
//! has the program of the JVM.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod leases;
mod sharing;
mod waking;

use std::time::{Duration, Instant};

use common::children;
use common::jvm::RLock;
use lockhound::{Error, Locker, ReadGuard, ReadLock, WriteGuard, WriteLock};
use tokio::task::JoinHandle;

/// A lease so long that no waiter re-checks by itself within ten seconds.
const LONG: Duration = Duration::from_secs(60);
/// By then a message has woken the waiter.
const WOKEN: Duration = Duration::from_secs(5);
/// A lease that tests wait for. It leaves two seconds for a late renewal.
const SHORT: Duration = Duration::from_secs(3);

/// The child processes are this binary too: they end here, before any test begins.
#[ctor::ctor(unsafe)]
fn child_process() {
    children::play_if_child(|errand| match errand {
        [task, url, keys, _, out] if task == "read_and_write" => {
            let keys: Vec<&str> = keys.split(',').collect();
            let holding = leases::read_and_write(&url, &keys, out.as_ref());
            tokio::runtime::Runtime::new().unwrap().block_on(holding);
        }
        other => children::play(other),
    });
}

/// Returns our readers of this lock, each call by an owner of its own.
fn reader(locks: &Locker, key: &str) -> ReadLock {
    locks.rw(key).read().non_reentrant()
}

/// Returns our writers of this lock, each call by an owner of its own.
fn writer(locks: &Locker, key: &str) -> WriteLock {
    locks.rw(key).write().non_reentrant()
}

/// Returns whether our readers and our writers get in now, each by itself.
async fn enter(locks: &Locker, key: &str) -> (bool, bool) {
    let read = reader(locks, key).try_lock().await.unwrap();
    let reads = read.is_some();
    if let Some(read) = read {
        read.unlock().await.unwrap();
    }
    let write = writer(locks, key).try_lock().await.unwrap();
    let writes = write.is_some();
    if let Some(write) = write {
        write.unlock().await.unwrap();
    }
    (reads, writes)
}

/// Returns whether the JVM's readers and writers get in now, each by itself.
async fn enter_there(read: &RLock<'_>, write: &RLock<'_>) -> (bool, bool) {
    let mut entered = [false; 2];
    for (lock, entered) in [read, write].into_iter().zip(&mut entered) {
        *entered = lock.try_lock().await;
        if *entered {
            lock.unlock().await.unwrap();
        }
    }
    (entered[0], entered[1])
}

/// A waiter of ours in a task: when it was granted, and its guard.
type Waiter<T> = JoinHandle<(Instant, T)>;

fn reads(lock: ReadLock) -> Waiter<ReadGuard> {
    tokio::spawn(async move { granted(lock.lock().await) })
}

fn writes(lock: WriteLock) -> Waiter<WriteGuard> {
    tokio::spawn(async move { granted(lock.lock().await) })
}

fn granted<T>(guard: Result<T, Error>) -> (Instant, T) {
    (Instant::now(), guard.unwrap())
}

/// Returns when a waiter of ours was granted, and its guard.
async fn woken<T>(waiter: Waiter<T>) -> (Instant, T) {
    let granted = tokio::time::timeout(WOKEN, waiter).await;
    granted.expect("woken").unwrap()
}
