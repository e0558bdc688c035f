//! The spans around what a caller does: where a request waited, and what it held.

#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

use common::log::Log;
use common::{key, ms};
use lockhound::{Locker, Owner, testing};
use tracing::Instrument as _;

/// Returns the lines that contain all of these words.
fn lines(log: &Log, words: &[&str]) -> Vec<String> {
    log.text()
        .lines()
        .filter(|line| words.iter().all(|word| line.contains(word)))
        .map(str::to_owned)
        .collect()
}

/// Each span is logged with its fields when it ends.
#[tokio::test(start_paused = true)]
async fn a_trace_shows_where_a_request_waited_and_what_it_held() {
    let (log, _guard) = Log::of_thread_with_spans();
    let locks = Locker::builder()
        .memory(&testing::Server::new())
        .connect()
        .await
        .unwrap();
    let name = key();
    let lock = locks.get(&name).class("orders");
    let section = lock.run(async |section: lockhound::Section| {
        tracing::info!("charged");
        section.fence()
    });
    let fence = section
        .instrument(tracing::info_span!("request", id = 7))
        .await
        .unwrap();

    let charged = lines(&log, &["charged", "request{id=7}:lockhound.hold{"]);
    assert_eq!(charged.len(), 1, "{}", log.text());
    let fields = [
        format!("key={name}"),
        "class=\"orders\"".into(),
        format!("fence={fence}"),
        "owner=o".into(),
    ];
    assert!(
        fields.iter().all(|field| charged[0].contains(field)),
        "{charged:?}"
    );
    assert!(
        !charged[0].contains("lockhound.wait"),
        "it waits no longer: {charged:?}"
    );
    let ended = |words: &[&str]| lines(&log, &[words, &[&name, "close"]].concat()).len();
    let wait = [
        "request{id=7}:lockhound.wait{operation=\"lock\"",
        "class=\"orders\"",
        "owner=o",
        "outcome=granted}",
    ];
    assert_eq!(ended(&wait), 1, "{}", log.text());
    assert_eq!(
        ended(&[
            "request{id=7}:lockhound.hold{",
            "reentry=false outcome=released}"
        ]),
        1,
        "{}",
        log.text()
    );
}

#[tokio::test(start_paused = true)]
async fn the_span_of_each_wait_and_hold_says_how_it_ended() {
    let (log, _guard) = Log::of_thread_with_spans();
    let server = testing::Server::new();
    let locks = Locker::builder().memory(&server).connect().await.unwrap();
    let name = key();
    let lock = locks.get(&name);
    let ended = |span: &str, outcome: &str| {
        lines(
            &log,
            &[
                &format!("{span}{{"),
                &name,
                &format!("outcome={outcome}}}"),
                "close",
            ],
        )
        .len()
    };
    let guard = lock.lock().await.unwrap();
    drop(lock.try_lock().await.unwrap().unwrap());
    assert_eq!(
        (
            ended("lockhound.wait", "reentered"),
            ended("lockhound.hold", "dropped")
        ),
        (1, 1),
        "{}",
        log.text()
    );
    let other = lock.clone().owned_by(Owner::new());
    assert!(
        other.try_lock().await.unwrap().is_none()
            && other.try_lock_for(ms(100)).await.unwrap().is_none()
    );
    assert!(tokio::time::timeout(ms(100), other.lock()).await.is_err());
    for outcome in ["busy", "timed_out", "cancelled"] {
        assert_eq!(
            ended("lockhound.wait", outcome),
            1,
            "{outcome}: {}",
            log.text()
        );
    }
    assert_eq!(ended("lockhound.hold", "released"), 0, "the guard lives");
    server.delete(&name);
    assert!(guard.unlock().await.is_err());
    assert_eq!(ended("lockhound.hold", "lost"), 1, "{}", log.text());
    let section = lock.run(async |_| {
        lock.force_unlock().await.unwrap();
        std::future::pending::<()>().await;
    });
    assert!(section.await.is_err());
    assert_eq!(ended("lockhound.hold", "lost"), 2, "{}", log.text());
    locks
        .multi([&name, &key()])
        .run(async |_| {})
        .await
        .unwrap();
    assert_eq!(
        lines(
            &log,
            &["lockhound.hold{keys=", &name, "outcome=released}", "close"]
        )
        .len(),
        1,
        "{}",
        log.text()
    );
}
