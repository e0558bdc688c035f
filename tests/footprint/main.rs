//! How much memory connections, holders and waiters take. It is measured over the whole process, so
//! these tests have a target of their own, and take turns.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the figures are for whoever runs it")]

#[path = "../common/mod.rs"]
mod common;

use common::cluster::Cluster;
use common::{Server, eventually, key, locker, ms};
use futures_util::future::join_all;
use lockhound::{Locker, testing};
use peak_alloc::PeakAlloc;
use tokio::sync::{Mutex, watch};

#[global_allocator]
static ALLOCATED: PeakAlloc = PeakAlloc;

/// Held by the test that measures.
static MEASURING: Mutex<()> = Mutex::const_new(());

const MEGABYTE: usize = 1_000_000;

/// Returns the resident memory of this process in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4_096
}

/// Connects lockers, and takes and releases a lock with each. Returns by how much the memory has
/// grown.
async fn grown(url: &str, count: usize) -> usize {
    let before = resident();
    let connect = (0..count).map(|_| async {
        let locks = Locker::builder()
            .node(url)
            .connect_timeout(ms(60_000))
            .connect()
            .await
            .unwrap();
        locks
            .get(key())
            .lock()
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
        locks
    });
    let lockers = join_all(connect).await;
    let grown = resident().saturating_sub(before);
    println!("{count} x {url}: {} kB", grown / 1_000);
    join_all(lockers.iter().map(|locks| locks.close())).await;
    grown
}

#[tokio::test]
async fn neither_a_locker_nor_a_master_takes_megabytes() {
    let _turn = MEASURING.lock().await;
    let (server, cluster) = (Server::start(), Cluster::start(12));
    // What the first locker of a process takes once is not counted.
    grown(&server.url(), 1).await;
    let of_twelve_masters = grown(&cluster.url(), 1).await;
    let of_hundred = grown(&server.url(), 100).await;
    assert!(
        of_twelve_masters <= 15 * MEGABYTE,
        "a cluster of 12 masters: {of_twelve_masters} bytes"
    );
    assert!(
        of_hundred <= 150 * MEGABYTE,
        "100 lockers: {of_hundred} bytes"
    );
}

/// Each is a part of the task that awaits it, for as long as the task lives.
#[tokio::test]
async fn the_future_of_a_call_is_small() {
    let _turn = MEASURING.lock().await;
    let server = testing::Server::new();
    let locks = Locker::builder().memory(&server).connect().await.unwrap();
    let (lock, all) = (locks.get("a"), locks.multi(["a", "b"]));
    let guard = lock.lock().await.unwrap();
    let wait = ms(1_000);
    let sizes = [
        ("lock", size_of_val(&lock.lock())),
        ("try_lock", size_of_val(&lock.try_lock())),
        ("try_lock_for", size_of_val(&lock.try_lock_for(wait))),
        ("all.lock", size_of_val(&all.lock())),
        ("unlock", size_of_val(&guard.unlock())),
    ];
    assert!(sizes.iter().all(|(_, size)| *size <= 700), "{sizes:?}");
}

const TASKS: usize = 10_000;

/// A task costs what tokio needs for it, and the future of its call.
#[tokio::test]
async fn neither_a_task_that_holds_a_lock_nor_one_that_waits_is_large() {
    let _turn = MEASURING.lock().await;
    let server = Server::start();
    let locks = locker(&server).await;
    let (stop, stopped) = watch::channel(false);
    let spawn = |name: String| {
        let (lock, mut stopped) = (locks.get(name), stopped.clone());
        tokio::spawn(async move {
            let guard = lock.lock().await.unwrap();
            stopped.wait_for(|stops| *stops).await.unwrap();
            drop(guard);
        })
    };
    let before = ALLOCATED.current_usage();
    let each = || ALLOCATED.current_usage().saturating_sub(before) / TASKS;
    let holders: Vec<_> = (0..TASKS).map(|at| spawn(format!("h{at}"))).collect();
    eventually(ms(60_000), "all hold", || locks.stats().holds == TASKS).await;
    let of_holder = each();
    stop.send_replace(true);
    join_all(holders).await;
    eventually(ms(60_000), "all are released", || locks.stats().holds == 0).await;
    // It sees to its tables with its heartbeats.
    eventually(ms(60_000), "the tables shrink after the peak", || {
        each() < 300
    })
    .await;
    stop.send_replace(false);
    let before = ALLOCATED.current_usage();
    let waiters: Vec<_> = (0..=TASKS).map(|_| spawn("w".to_owned())).collect();
    eventually(ms(60_000), "all wait", || locks.stats().waiters == TASKS).await;
    let of_waiter = ALLOCATED.current_usage().saturating_sub(before) / TASKS;
    waiters.iter().for_each(tokio::task::JoinHandle::abort);
    println!("a task that holds a lock: {of_holder} bytes; one that waits: {of_waiter}");
    assert!(
        of_holder <= 2_200 && of_waiter <= 1_850,
        "{of_holder} {of_waiter}"
    );
}
