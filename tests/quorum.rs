//! Several independent servers: a majority decides, a minority costs nothing.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::{Duration, Instant};

use common::{Server, eventually, key, ms};
use lockhound::{HoldState, Locker, LockerBuilder};

fn servers(count: usize) -> Vec<Server> {
    (0..count).map(|_| Server::start()).collect()
}

/// A locker's builder over all of them, whose votes count at once.
fn over(servers: &[Server], lease: Duration) -> LockerBuilder {
    let nodes = servers.iter().fold(Locker::builder(), |builder, server| builder.node(server.url()));
    nodes.lease(lease).restart_quarantine(Duration::ZERO)
}

/// On how many of the servers the key is.
fn on(servers: &[Server], key: &str) -> usize {
    servers.iter().filter(|server| server.exists(key)).count()
}

#[tokio::test]
async fn a_lock_is_on_every_server_and_leaves_every_server() {
    let (servers, key) = (servers(3), key());
    let locks = over(&servers, ms(30_000)).connect().await.unwrap();
    let other = over(&servers, ms(30_000)).connect().await.unwrap();
    let guard = locks.get(&key).lock().await.unwrap();
    assert!(on(&servers, &key) >= 2);
    eventually(ms(500), "on all of them", || on(&servers, &key) == 3).await;
    assert!(other.get(&key).try_lock().await.unwrap().is_none());
    let nested = locks.get(&key).lock().await.unwrap();
    assert_eq!(locks.get(&key).holder().await.unwrap().unwrap().hold_count(), 2);
    nested.unlock().await.unwrap();
    guard.unlock().await.unwrap();
    eventually(ms(500), "on none of them", || on(&servers, &key) == 0).await;
    other.get(&key).lock().await.unwrap().unlock().await.unwrap();
}

/// Locks and unlocks, and says how long that took.
async fn pair(locks: &Locker) -> Duration {
    let start = Instant::now();
    let guard = locks.get(key()).lock().await.unwrap();
    guard.check().unwrap();
    guard.unlock().await.unwrap();
    start.elapsed()
}

#[tokio::test]
async fn two_of_five_that_hang_or_are_gone_cost_nothing() {
    let servers = servers(5);
    let locks = over(&servers, ms(30_000)).connect().await.unwrap();
    pair(&locks).await;
    let held = locks.get(key()).lock().await.unwrap();
    servers[0].stop();
    servers[3].stop();
    for _ in 0..20 {
        let time = pair(&locks).await;
        assert!(time < ms(500), "hanging: {time:?}, and a command may take 3 s");
    }
    servers[0].go_on();
    servers[3].go_on();
    servers[1].kill();
    servers[2].kill();
    for _ in 0..20 {
        let time = pair(&locks).await;
        assert!(time < ms(500), "gone: {time:?}");
    }
    assert_eq!(held.state(), HoldState::Safe);
    held.unlock().await.unwrap();
}

/// What a server answers when a majority has answered already costs one more release at the most.
#[tokio::test]
async fn a_pair_is_an_acquire_and_a_release_on_every_server() {
    let (servers, key) = (servers(3), key());
    let locks = over(&servers, ms(30_000)).connect().await.unwrap();
    let lock = locks.get(&key);
    for _ in 0..100 {
        lock.lock().await.unwrap().unlock().await.unwrap();
    }
    eventually(ms(500), "on none of them", || on(&servers, &key) == 0).await;
    let calls: u64 = servers.iter().map(|server| server.calls("evalsha")).sum();
    assert!(calls <= 700, "600 and those of answers that came late: {calls}");
    assert_eq!(locks.stats().pending_undos, 0, "none waits to be sent again");
}
