//! Mutual exclusion: many tasks in many processes on one key, and who was inside when.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use common::children::{self, scratch, spawn_child};
use common::record::{self, Record, Visit};
use common::{Server, eventually, key, locker, ms};
use lockhound::Locker;

/// The child processes are this binary too: they end here, before any test begins.
#[ctor::ctor(unsafe)]
fn child_process() {
    children::play_if_child(children::play);
}

#[test]
fn eight_processes_of_eight_tasks_are_inside_one_after_another() {
    let (server, key) = (Server::start(), key());
    let children: Vec<(Child, PathBuf)> = (0..8)
        .map(|_| {
            let out = scratch("visits");
            (spawn_child("visit", &server.url(), &[&key], 157, &out), out)
        })
        .collect();
    let mut record = Record::default();
    for (mut child, out) in children {
        assert!(child.wait().unwrap().success(), "every waiter returns");
        record.read(&out);
        std::fs::remove_file(out).unwrap();
    }
    assert_eq!(record.visits.len(), 8 * 8 * 157, "more than 10,000");
    record.check().unwrap();
    assert!(!server.exists(&key));
}

#[test]
fn the_check_finds_a_broken_lock() {
    let visit = |entered, left, fence| Visit {
        key: "k".into(),
        who: "w".into(),
        fence,
        entered,
        left,
    };
    let fine = Record::of(vec![visit(1, 2, 1), visit(2, 3, 2), visit(4, 5, 3)]);
    fine.check().unwrap();
    let both_inside = Record::of(vec![visit(4, 6, 2), visit(1, 5, 1)]);
    assert!(both_inside.check().unwrap_err().contains("inside at once"));
    let stale_fence = Record::of(vec![visit(1, 2, 7), visit(3, 4, 7)]);
    assert!(stale_fence.check().unwrap_err().contains("did not grow"));
}

/// The check gets the record of a lock that does nothing, from the same loop as above.
#[tokio::test]
async fn the_record_of_tasks_without_a_lock_fails_the_check() {
    let mut tasks = Vec::new();
    let start = std::sync::Arc::new(tokio::sync::Barrier::new(2));
    for who in ["a", "b"] {
        let start = std::sync::Arc::clone(&start);
        tasks.push(tokio::spawn(async move {
            let entered = record::now();
            // Both are inside before either goes on.
            start.wait().await;
            Visit {
                key: "k".into(),
                who: who.into(),
                fence: 1,
                entered,
                left: record::now(),
            }
        }));
    }
    let mut record = Record::default();
    for task in tasks {
        record.visits.push(task.await.unwrap());
    }
    record.check().unwrap_err();
}

#[tokio::test]
async fn a_waiter_enters_within_the_lease_of_a_holder_that_was_killed() {
    let (server, key, out) = (Server::start(), key(), scratch("held"));
    let locks = Locker::builder()
        .node(server.url())
        .lease(Duration::from_secs(2))
        .connect()
        .await
        .unwrap();
    let mut child = spawn_child("hold", &server.url(), &[&key], 0, &out);
    eventually(Duration::from_secs(20), "the child holds the lock", || {
        out.exists()
    })
    .await;
    let lock = locks.get(&key);
    let waiting = tokio::spawn(async move { lock.lock().await });
    eventually(Duration::from_secs(5), "the waiter listens", || {
        server
            .command::<Vec<String>>(&["PUBSUB", "CHANNELS", "redisson_lock__channel:*"])
            .len()
            == 1
    })
    .await;
    // The child renews: its key outlives more than one lease.
    tokio::time::sleep(ms(2_500)).await;
    assert!(!waiting.is_finished());
    child.kill().unwrap();
    let killed = std::time::Instant::now();
    let guard = waiting.await.unwrap().unwrap();
    assert!(
        common::machine::within(killed.elapsed(), ms(2_100)),
        "{:?}",
        killed.elapsed()
    );
    guard.unlock().await.unwrap();
    child.wait().unwrap();
    std::fs::remove_file(out).unwrap();
}

#[tokio::test]
async fn waiters_of_one_process_enter_in_the_order_in_which_they_came() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let guard = locks.get(&key).lock().await.unwrap();
    let order = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for i in 0..20 {
        let (lock, order) = (locks.get(&key), std::sync::Arc::clone(&order));
        let (standing, stands) = tokio::sync::oneshot::channel();
        tasks.push(tokio::spawn(async move {
            let waiting = lock.lock();
            tokio::pin!(waiting);
            assert!(futures_util::poll!(&mut waiting).is_pending());
            standing.send(()).unwrap();
            let guard = waiting.await.unwrap();
            order.lock().unwrap().push(i);
            guard.unlock().await.unwrap();
        }));
        stands.await.unwrap();
    }
    guard.unlock().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..20).collect::<Vec<_>>());
}
