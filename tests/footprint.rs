//! How much memory connections take. It is measured over the whole process, so this test is alone in its target.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the figures are for whoever runs it")]

mod common;

use common::cluster::Cluster;
use common::{Server, key, ms};
use futures_util::future::join_all;
use lockhound::{Locker, testing};

const MEGABYTE: usize = 1_000_000;

/// Returns the resident memory of this process in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4_096
}

/// Connects lockers, and takes and releases a lock with each. Returns by how much the memory has grown.
async fn grown(url: &str, count: usize) -> usize {
    let before = resident();
    let connect = (0..count).map(|_| async {
        let locks = Locker::builder().node(url).connect_timeout(ms(60_000)).connect().await.unwrap();
        locks.get(key()).lock().await.unwrap().unlock().await.unwrap();
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
    let (server, cluster) = (Server::start(), Cluster::start(12));
    // What the first locker of a process takes once is not counted.
    grown(&server.url(), 1).await;
    let of_twelve_masters = grown(&cluster.url(), 1).await;
    let of_hundred = grown(&server.url(), 100).await;
    assert!(of_twelve_masters <= 15 * MEGABYTE, "a cluster of 12 masters: {of_twelve_masters} bytes");
    assert!(of_hundred <= 150 * MEGABYTE, "100 lockers: {of_hundred} bytes");
}

/// Each is a part of the task that awaits it, for as long as the task lives.
#[tokio::test]
async fn the_future_of_a_call_is_small() {
    let server = testing::Server::new();
    let locks = Locker::builder().memory(&server).connect().await.unwrap();
    let (lock, all) = (locks.get("a"), locks.all(["a", "b"]));
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
