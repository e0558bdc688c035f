//! Locks on a master that Sentinels name: failovers, and a master that comes back and is not believed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::Instant;

use common::machine::within;
use common::sentinel::Sentinels;
use common::{Server, eventually, key, ms};
use lockhound::{HoldState, Locker, Loss};
use tokio::time::sleep;

/// Waits until the Sentinels have put the replica in the place of its master.
async fn failed_over(group: &Sentinels) {
    let port = group.replica.port();
    eventually(ms(60_000), "the replica is named", || group.named() == port && group.replica.is_master()).await;
}

#[tokio::test]
async fn an_ordered_failover_loses_no_lock_and_wakes_the_waiters() {
    let group = Sentinels::start();
    let lease = ms(6_000);
    let (one, two) = (group.builder(lease).connect().await.unwrap(), group.builder(lease).connect().await.unwrap());
    let key = key();
    let held = one.get(&key).lock().await.unwrap();
    let lock = two.get(&key);
    let waiting = tokio::spawn(async move { lock.lock().await });
    eventually(ms(10_000), "replicated", || group.replica.exists(&key)).await;
    group.sentinels[0].command::<()>(&["SENTINEL", "FAILOVER", common::sentinel::NAME]);
    failed_over(&group).await;
    sleep(lease * 3 / 2).await;
    assert_eq!(held.state(), HoldState::Safe, "renewed by the new master");
    assert!(group.replica.exists(&key));
    let released = Instant::now();
    held.unlock().await.unwrap();
    waiting.await.unwrap().unwrap().unlock().await.unwrap();
    assert!(within(released.elapsed(), lease / 6), "{:?}", released.elapsed());
}

#[tokio::test]
async fn a_killed_master_is_followed_and_what_it_had_not_replicated_is_told() {
    let group = Sentinels::start();
    // It outlasts what the Sentinels take to notice.
    let lease = ms(15_000);
    let locks = group.builder(lease).connect().await.unwrap();
    let (kept, lost) = (key(), key());
    let held = locks.get(&kept).lock().await.unwrap();
    eventually(ms(10_000), "replicated", || group.replica.exists(&kept)).await;
    // From here on the replica hears nothing of it, and cannot ask again.
    group.replica.stop();
    group.master.command::<()>(&["CLIENT", "KILL", "TYPE", "replica"]);
    let unreplicated = locks.get(&lost).lock().await.unwrap();
    let fence = unreplicated.fence();
    group.master.kill();
    group.replica.go_on();
    failed_over(&group).await;
    let failed_over = Instant::now();
    common::soon(lease, unreplicated.lost().cancelled()).await.expect("told");
    assert_eq!(unreplicated.loss(), Some(Loss::NotOwner));
    assert!(within(failed_over.elapsed(), lease / 3 + ms(2_000)), "{:?}", failed_over.elapsed());
    assert_eq!(held.state(), HoldState::Safe);
    held.unlock().await.unwrap();
    drop(unreplicated);
    let next = locks.get(&lost).lock().await.unwrap();
    assert!(next.fence() > fence);
    next.unlock().await.unwrap();
}

/// It grants whatever it is asked for until the Sentinels turn it into a replica, which takes seconds.
#[tokio::test]
async fn a_master_that_comes_back_is_not_believed() {
    let group = Sentinels::start();
    let lease = ms(30_000);
    let (idle, busy) = (group.builder(lease).connect().await.unwrap(), group.builder(lease).connect().await.unwrap());
    let key = key();
    group.master.stop();
    failed_over(&group).await;
    // The idle one has not noticed anything: its next heartbeat comes later.
    let guard = busy.get(&key).lock().await.unwrap();
    assert!(group.replica.exists(&key));
    group.master.go_on();
    assert!(idle.get(&key).try_lock().await.unwrap().is_none(), "it asks the master that there is");
    guard.unlock().await.unwrap();
    let other = idle.get(&key).lock().await.unwrap();
    assert!(group.replica.exists(&key));
    other.unlock().await.unwrap();
}

#[tokio::test]
async fn an_address_of_sentinels_says_what_is_wrong_with_it() {
    let group = Sentinels::start();
    let refusal = |url: String| async move {
        let builder = Locker::builder().node(url).connect_timeout(ms(2_000));
        builder.connect().await.unwrap_err().to_string()
    };
    let port = group.sentinels[0].port();
    let message = refusal(format!("redis-sentinel://127.0.0.1:{port}")).await;
    assert!(message.contains("sentinelServiceName"), "{message}");
    let message = refusal(format!("redis-sentinel://127.0.0.1:{port}?sentinelServiceName=other")).await;
    assert!(message.contains("Sentinel") || message.contains("sentinel"), "{message}");
    let message = refusal(format!("redis://127.0.0.1:{port}")).await;
    assert!(message.contains("redis-sentinel://"), "{message}");
    let alone = Server::start();
    let message = refusal(format!("redis-sentinel://127.0.0.1:{}?sentinelServiceName=locks", alone.port())).await;
    assert!(message.contains("unknown command 'SENTINEL'"), "{message}");
}
