//! Nobody is inside beside another: many tasks in many processes on one key, and who was inside when.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::record::{self, Record, Visit};
use common::{Server, eventually, key, locker, ms};
use lockhound::Locker;

/// What a child process is told through its environment.
const CHILD: &str = "LOCKHOUND_TEST_CHILD";

/// Starts this test binary again as a child that runs `child_process` and nothing else.
fn spawn_child(task: &str, url: &str, key: &str, rounds: usize, out: &std::path::Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_process", "--nocapture"])
        .env(CHILD, format!("{task} {url} {key} {rounds} {}", out.display()))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// The body of a child process. Run as a test by itself it proves that nobody asked for anything else.
#[test]
fn child_process() {
    let Ok(told) = std::env::var(CHILD) else { return };
    let words: Vec<&str> = told.split(' ').collect();
    let [task, url, key, rounds, out] = words[..] else { panic!("{told}") };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    match task {
        "visit" => runtime.block_on(visit(url, key, rounds.parse().unwrap(), out.into())),
        "hold" => runtime.block_on(hold(url, key, out.into())),
        other => panic!("{other}"),
    }
}

/// Eight tasks enter and leave; what they saw is written at the end.
async fn visit(url: &str, key: &str, rounds: usize, out: PathBuf) {
    let locks = Locker::builder().node(url).lease(Duration::from_secs(10)).connect().await.unwrap();
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let lock = locks.get(key);
        tasks.push(tokio::spawn(async move {
            let mut visits = Vec::new();
            for _ in 0..rounds {
                let guard = lock.lock().await.unwrap();
                let (who, fence, entered) = (guard.owner().to_string(), guard.fence().get(), record::now());
                tokio::task::yield_now().await;
                guard.check().unwrap();
                let left = record::now();
                visits.push(Visit { key: lock.key().to_string(), who, fence, entered, left });
                guard.unlock().await.unwrap();
            }
            visits
        }));
    }
    let mut record = Record::default();
    for task in tasks {
        record.visits.extend(task.await.unwrap());
    }
    locks.close().await;
    record.write(&out);
}

/// Takes the lock and says so, and holds it until it is killed.
async fn hold(url: &str, key: &str, out: PathBuf) {
    let locks = Locker::builder().node(url).lease(Duration::from_secs(2)).connect().await.unwrap();
    let guard = locks.get(key).lock().await.unwrap();
    std::fs::write(out, "held").unwrap();
    guard.lost().cancelled().await;
}

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("lockhound-{name}-{}", lockhound::Uuid::new_v4()))
}

#[test]
fn eight_processes_of_eight_tasks_are_inside_one_after_the_other() {
    let (server, key) = (Server::start(), key());
    let children: Vec<(Child, PathBuf)> = (0..8)
        .map(|_| {
            let out = scratch("visits");
            (spawn_child("visit", &server.url(), &key, 157, &out), out)
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
    let visit = |entered, left, fence| Visit { key: "k".into(), who: "w".into(), fence, entered, left };
    let fine = Record { visits: vec![visit(1, 2, 1), visit(2, 3, 2), visit(4, 5, 3)] };
    fine.check().unwrap();
    let both_inside = Record { visits: vec![visit(4, 6, 2), visit(1, 5, 1)] };
    assert!(both_inside.check().unwrap_err().contains("inside at once"));
    let stale_fence = Record { visits: vec![visit(1, 2, 7), visit(3, 4, 7)] };
    assert!(stale_fence.check().unwrap_err().contains("did not grow"));
}

/// The check is fed by a lock that does nothing, with the same loop as above.
#[tokio::test]
async fn the_record_of_tasks_without_a_lock_fails_the_check() {
    let mut tasks = Vec::new();
    let start = std::sync::Arc::new(tokio::sync::Barrier::new(2));
    for who in ["a", "b"] {
        let start = std::sync::Arc::clone(&start);
        tasks.push(tokio::spawn(async move {
            let entered = record::now();
            // Both are here before either goes on.
            start.wait().await;
            Visit { key: "k".into(), who: who.into(), fence: 1, entered, left: record::now() }
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
    let locks = Locker::builder().node(server.url()).lease(Duration::from_secs(2)).connect().await.unwrap();
    let mut child = spawn_child("hold", &server.url(), &key, 0, &out);
    eventually(Duration::from_secs(20), "the child holds the lock", || out.exists()).await;
    let lock = locks.get(&key);
    let waiting = tokio::spawn(async move { lock.lock().await });
    eventually(Duration::from_secs(5), "the waiter listens", || {
        server.command::<Vec<String>>(&["PUBSUB", "CHANNELS"]).len() == 1
    })
    .await;
    // The child renews: its key outlives more than one lease.
    tokio::time::sleep(ms(2_500)).await;
    assert!(!waiting.is_finished());
    child.kill().unwrap();
    let killed = std::time::Instant::now();
    let guard = waiting.await.unwrap().unwrap();
    assert!(killed.elapsed() < ms(2_100), "{:?}", killed.elapsed());
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
