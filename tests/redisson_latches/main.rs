//! Redisson's latches on a JVM together with ours, on one server. tests/foreign/redisson has the
//! program of the JVM.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

use std::time::Duration;

use common::both_sides::both_sides;
use common::{Server, eventually, key, soon};

/// A lease so long that no caller looks by itself within ten seconds.
const LONG: Duration = Duration::from_secs(120);
/// By then a message has woken whoever waits.
const WOKEN: Duration = Duration::from_secs(5);

fn listening(server: &Server, key: &str) -> u64 {
    let channel = format!("redisson_countdownlatch__channel__{{{key}}}");
    let numsub: (String, u64) = server.command(&["PUBSUB", "NUMSUB", &channel]);
    numsub.1
}

#[tokio::test(flavor = "multi_thread")]
async fn both_sides_set_and_count_one_latch() {
    let Some((server, locks, redisson)) = both_sides(LONG).await else {
        return;
    };
    for name in [key(), format!("{{{}}}:done", key())] {
        let (here, there) = (locks.latch(&*name), redisson.object("latch", &name));
        for ours_first in [true, false] {
            if ours_first {
                assert!(here.try_set(4).await.unwrap());
                assert_eq!(there.said("set 9").await, "false");
            } else {
                assert_eq!(there.said("set 4").await, "true");
                assert!(!here.try_set(9).await.unwrap());
            }
            assert_eq!(there.said("left").await, "4");
            assert_eq!(here.count_down().await.unwrap(), 3);
            there.said("count").await;
            assert_eq!(here.count().await.unwrap(), 2);
            assert_eq!(there.said("left").await, "2");
            there.said("count").await;
            if ours_first {
                assert_eq!(here.count_down().await.unwrap(), 0);
            } else {
                there.said("count").await;
            }
            assert_eq!(
                (here.count().await.unwrap(), server.exists(&name)),
                (0, false)
            );
            assert_eq!(there.said("left").await, "0");
            // Neither counts below zero.
            there.said("count").await;
            assert_eq!(here.count_down().await.unwrap(), 0);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_count_of_each_side_wakes_both() {
    let Some((server, locks, redisson)) = both_sides(LONG).await else {
        return;
    };
    let key = key();
    let (here, there) = (locks.latch(&*key), redisson.object("latch", &key));
    let counts = redisson.object("latch", &key);
    for ours_is_last in [true, false, true] {
        assert!(here.try_set(1).await.unwrap());
        let theirs = there.ask("await");
        eventually(WOKEN, "it listens", || listening(&server, &key) == 1).await;
        let reads = server.calls("get");
        let waits = here.clone();
        let ours = tokio::spawn(async move { waits.wait().await });
        // When it begins, and when it is subscribed; and perhaps the JVM.
        let so = || listening(&server, &key) == 2 && server.calls("get") >= reads + 2;
        eventually(WOKEN, "both wait", so).await;
        if ours_is_last {
            assert_eq!(here.count_down().await.unwrap(), 0);
        } else {
            counts.said("count").await;
        }
        soon(WOKEN, ours).await.expect("woken").unwrap().unwrap();
        let theirs = soon(WOKEN, theirs).await.expect("woken").unwrap();
        theirs.said.unwrap();
        eventually(WOKEN, "nobody listens", || listening(&server, &key) == 0).await;
    }
}

/// Redisson announces it by the message of a new count, on which its own callers sleep on.
#[tokio::test(flavor = "multi_thread")]
async fn a_latch_that_a_jvm_deletes_is_open_here() {
    let Some((server, locks, redisson)) = both_sides(LONG).await else {
        return;
    };
    let key = key();
    let (here, there) = (locks.latch(&*key), redisson.object("latch", &key));
    assert_eq!(there.said("set 3").await, "true");
    let reads = server.calls("get");
    let waits = here.clone();
    let ours = tokio::spawn(async move { waits.wait().await });
    let so = || listening(&server, &key) == 1 && server.calls("get") >= reads + 2;
    eventually(WOKEN, "it waits", so).await;
    assert_eq!(there.said("delete").await, "true");
    soon(WOKEN, ours).await.expect("woken").unwrap().unwrap();
}
