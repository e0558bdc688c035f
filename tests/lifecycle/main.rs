//! What operators see of a locker, and that nothing of it is left afterwards. This target has one
//! test, since threads and the log are global to the process.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

use common::log::Log;
use common::{Server, builder, eventually, key, locker_with, ms};
use lockhound::stats::CallOutcome;
use lockhound::{HoldState, Owner};

fn names(server: &Server) -> Vec<String> {
    let list: String = server.command(&["CLIENT", "LIST"]);
    let mut names: Vec<String> = list
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("name=lockhound:"))
        .map(|name| name.to_owned())
        .collect();
    names.sort();
    names
}

/// Counts the threads of this process with this name.
fn threads(called: &str) -> usize {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter(|task| {
            let name = std::fs::read_to_string(task.as_ref().unwrap().path().join("comm"));
            name.is_ok_and(|name| name.trim() == called)
        })
        .count()
}

fn engines() -> usize {
    threads("lockhound")
}

#[tokio::test]
async fn a_locker_is_visible_while_it_lives_and_gone_afterwards() {
    let log = Log::collect();
    let server = Server::start();
    let locks = builder(&server.url(), ms(900))
        .label("shop")
        .connect()
        .await
        .unwrap();
    // A thread has the name of the thread that started it until it sets its own.
    eventually(ms(2_000), "one of each", || {
        (engines(), threads("lockhound-alarm")) == (1, 1)
    })
    .await;
    let id = locks.id();
    let named = ["commands", "renewals", "subscriber"].map(|role| format!("{role}:shop:{id}"));
    assert_eq!(names(&server), named);

    // Without faults nothing is logged that an operator has to read.
    let name = key();
    let lock = locks.get(&name);
    let guard = lock.lock().await.unwrap();
    let waiter = lock.clone().owned_by(Owner::new());
    let waiting = tokio::spawn(async move { waiter.lock().await.unwrap().unlock().await });
    tokio::time::sleep(ms(700)).await;
    let stats = locks.stats();
    assert_eq!(
        (
            stats.holds,
            stats.waiters,
            stats.attempts.of(CallOutcome::Granted)
        ),
        (1, 1, 1)
    );
    assert!(
        stats.renewals >= 1 && stats.renewal_lateness.count >= 1,
        "{stats:?}"
    );
    let batches = stats.renewal_batches;
    assert!(
        batches.count >= 1 && (batches.p50, batches.max) == (1, 1),
        "{batches:?}"
    );
    let slowest = stats.slowest_node.expect("it has answered");
    assert_eq!(&*slowest.node, server.url());
    assert!(
        slowest.round_trip.count >= 1 && slowest.round_trip.max < ms(90),
        "{slowest:?}"
    );
    guard.unlock().await.unwrap();
    waiting.await.unwrap().unwrap();
    let stats = locks.stats();
    assert_eq!(
        (
            stats.holds,
            stats.waiters,
            stats.attempts.total(),
            stats.losses.total()
        ),
        (0, 0, 2, 0)
    );
    assert_eq!((stats.wait_time.count, stats.hold_time.count), (2, 2));
    assert!(
        stats.hold_time.max >= ms(690) && stats.wait_time.max >= ms(600),
        "{stats:?}"
    );
    let text = log.text();
    assert!(
        !text.contains("WARN") && !text.contains("ERROR") && !text.contains(" INFO"),
        "{text}"
    );
    for event in ["acquired", "renewed", "released"] {
        let line = text
            .lines()
            .find(|line| line.contains(event))
            .unwrap_or_else(|| panic!("no event {event}"));
        assert!(line.contains(&name), "{line}");
    }
    for field in ["owner=", "generation="] {
        assert!(
            text.lines()
                .any(|line| line.contains("acquired") && line.contains(field)),
            "{field}"
        );
    }

    // Events on behalf of a waiting caller have its span.
    assert!(text.lines().any(|line| line.contains("lockhound{operation=\"drive\"") && line.contains("acquired")));

    // Connections have the same names after a reconnect.
    server.cut_connections();
    server.command::<u64>(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    eventually(ms(3_000), "the names are back", || names(&server) == named).await;

    // A loss is a warning with its reason and age; the silence before it is another.
    let guard = lock.lock().await.unwrap();
    server.stop();
    eventually(ms(1_500), "jeopardy", || {
        guard.state() == HoldState::Jeopardy
    })
    .await;
    guard.lost().cancelled().await;
    server.go_on();
    let stats = locks.stats();
    assert_eq!((stats.losses.renewal_failed, stats.losses.total()), (1, 1));
    assert!(stats.renewal_errors >= 2, "{stats:?}");
    drop(guard);
    // The token does not wait for the log.
    eventually(ms(1_000), "the loss is logged", || {
        log.text().contains("lock lost")
    })
    .await;
    let text = log.text();
    let lost = text
        .lines()
        .find(|line| line.contains("lock lost"))
        .expect("a warning");
    for part in [
        "WARN",
        &name,
        "owner=",
        "generation=",
        "reason=its renewals failed",
        "age=",
    ] {
        assert!(lost.contains(part), "{part}: {lost}");
    }
    assert!(
        text.lines().any(|line| line.contains("WARN")
            && line.contains("in jeopardy")
            && line.contains(&name))
    );
    eventually(
        ms(3_000),
        "the release of the lost lock is confirmed",
        || locks.stats().pending == 0,
    )
    .await;
    let undone = text.lines().filter(|line| line.contains("undone")).count();
    assert!(
        locks.stats().undone_acquires >= 1,
        "{undone} {:?}",
        locks.stats()
    );

    // After `close` no thread and no connection is left; nor after the last handle of another
    // locker is dropped.
    locks.close().await;
    eventually(ms(1_000), "no thread", || engines() == 0).await;
    eventually(ms(1_000), "no connection", || names(&server).is_empty()).await;
    drop((locks, lock));
    let locks = locker_with(&server, ms(900)).await;
    let guard = locks.get(&name).lock().await.unwrap();
    drop(locks);
    tokio::time::sleep(ms(50)).await;
    assert_eq!(engines(), 1, "a guard keeps it");
    drop(guard);
    eventually(ms(1_000), "no thread", || {
        engines() == 0 && threads("lockhound-alarm") == 0
    })
    .await;
    eventually(ms(1_000), "no connection", || names(&server).is_empty()).await;
    assert!(!server.exists(&name));
}
