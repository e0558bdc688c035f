//! Latches, on one server and in a cluster.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod counting;
mod faults;
mod history;
mod rights;
mod waiting;

use std::time::Duration;

use common::{Server, eventually};
use lockhound::{Error, Latch, Locker};
use tokio::task::JoinHandle;

/// A lease so long that nobody looks by itself, however busy the machine is.
const LONG: Duration = Duration::from_secs(1_200);
/// By then a message has been heard.
const SOON: Duration = Duration::from_secs(5);
/// A lease of which tests wait for a sixth.
const SHORT: Duration = Duration::from_millis(1_200);

type Waits = JoinHandle<Result<(), Error>>;

/// Waits for a latch in a task. By the time that this returns, its locker is subscribed, and its
/// caller has read for the last time before a message or a look.
async fn waits(server: &Server, locks: &Locker, latch: &Latch) -> Waits {
    let before = locks.stats().latch_waiters;
    let channel = format!("redisson_countdownlatch__channel__{{{}}}", latch.key());
    let listens = || {
        server
            .command::<(String, i64)>(&["PUBSUB", "NUMSUB", &channel])
            .1
    };
    let (heard, reads) = (listens(), server.calls("get"));
    let latch = latch.clone();
    let waiting = tokio::spawn(async move { latch.wait().await });
    eventually(SOON, "it waits", || {
        locks.stats().latch_waiters == before + 1
    })
    .await;
    // It reads at once, and again when its locker's subscription is confirmed.
    let expected = if before == 0 { 2 } else { 1 };
    eventually(SOON, "it has read", || {
        listens() >= heard.max(1) && server.calls("get") >= reads + expected
    })
    .await;
    waiting
}

/// Asserts that a caller goes on soon.
async fn goes_on(waiting: Waits) {
    let opened = common::soon(SOON, waiting).await;
    opened.expect("it goes on").unwrap().unwrap();
}
