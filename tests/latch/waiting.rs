//! Callers that wait, and what ends their waits.

use std::time::{Duration, Instant};

use crate::common::polls::poll_times;
use crate::common::{Server, eventually, key, locker_with, ms, soon};
use crate::{LONG, SHORT, SOON, goes_on, waits};
use lockhound::{Error, Latch, Locker};

#[tokio::test]
async fn the_last_count_wakes_those_that_wait() {
    let (server, key) = (Server::start(), key());
    let (here, there) = (
        locker_with(&server, LONG).await,
        locker_with(&server, LONG).await,
    );
    let latch = here.latch(&*key);
    assert!(latch.try_set(2).await.unwrap());
    let mut waiting = Vec::new();
    for locks in [&here, &there, &here, &there] {
        waiting.push(waits(&server, locks, &locks.latch(&*key)).await);
    }
    let stats = here.stats();
    assert_eq!((stats.latch_waiters, stats.waiters, stats.holds), (2, 0, 0));
    assert_eq!(latch.count_down().await.unwrap(), 1);
    // A message of Redisson's that says nothing: they read, and wait on.
    let channel = format!("redisson_countdownlatch__channel__{{{key}}}");
    let reads = server.calls("get");
    server.command::<u64>(&["PUBLISH", &channel, "0"]);
    eventually(SOON, "all have read", || server.calls("get") >= reads + 4).await;
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
    assert_eq!(latch.count_down().await.unwrap(), 0);
    for waiting in waiting {
        goes_on(waiting).await;
    }
    assert_eq!(here.stats().latch_waiters, 0);
    for locks in [&here, &there] {
        assert!(locks.latch(&*key).wait_for(Duration::MAX).await.unwrap());
    }
}

#[tokio::test]
async fn a_group_goes_on_together() {
    let (server, key) = (Server::start(), key());
    let mut group = Vec::new();
    for _ in 0..3 {
        let step = locker_with(&server, LONG).await.latch(&*key);
        step.try_set(3).await.unwrap();
        group.push(step);
    }
    let last = group.pop().unwrap();
    let members: Vec<_> = group
        .into_iter()
        .map(|step| tokio::spawn(async move { step.count_down_and_wait().await }))
        .collect();
    let so = || server.command::<u64>(&["GET", &key]) == 1;
    eventually(SOON, "two have come", so).await;
    assert!(members.iter().all(|member| !member.is_finished()));
    let member = soon(SOON, last.count_down_and_wait()).await;
    member.expect("it is the last").unwrap();
    for member in members {
        goes_on(member).await;
    }
}

#[tokio::test]
async fn a_bounded_wait_says_whether_the_latch_is_open() {
    let (server, key) = (Server::start(), key());
    let locks = locker_with(&server, LONG).await;
    let latch = locks.latch(&*key);
    assert!(latch.wait_for(Duration::ZERO).await.unwrap());
    assert!(latch.try_set(1).await.unwrap());
    assert!(!latch.wait_for(Duration::ZERO).await.unwrap());
    let start = Instant::now();
    assert!(!latch.wait_for(ms(300)).await.unwrap());
    assert!(start.elapsed() >= ms(300), "{:?}", start.elapsed());
    let waits = latch.clone();
    let waiting = tokio::spawn(async move { waits.wait_for(LONG).await });
    eventually(SOON, "it waits", || locks.stats().latch_waiters == 1).await;
    latch.count_down().await.unwrap();
    let opened = soon(SOON, waiting).await.expect("it is told").unwrap();
    assert!(opened.unwrap());
}

/// Nothing announces that, and Redisson's callers would sleep for ever.
#[tokio::test]
async fn a_latch_whose_key_is_deleted_opens_at_the_next_look() {
    let (server, key) = (Server::start(), key());
    let locks = locker_with(&server, SHORT).await;
    let latch = locks.latch(&*key);
    assert!(latch.try_set(1).await.unwrap());
    let waiting = waits(&server, &locks, &latch).await;
    server.command::<u64>(&["DEL", &key]);
    goes_on(waiting).await;
    // Redisson's `delete()` announces it, as it does a new count.
    let locks = locker_with(&server, LONG).await;
    let latch = locks.latch(&*key);
    assert!(latch.try_set(1).await.unwrap());
    let waiting = waits(&server, &locks, &latch).await;
    let channel = format!("redisson_countdownlatch__channel__{{{key}}}");
    server.command::<u64>(&["DEL", &key]);
    server.command::<u64>(&["PUBLISH", &channel, "1"]);
    goes_on(waiting).await;
}

#[tokio::test]
async fn a_wait_costs_a_read_for_each_look() {
    let (server, key) = (Server::start(), key());
    let locks = locker_with(&server, SHORT).await;
    let latch = locks.latch(&*key);
    assert!(latch.try_set(1).await.unwrap());
    let waiting = waits(&server, &locks, &latch).await;
    let (start, reads) = (Instant::now(), server.calls("get"));
    eventually(SOON * 2, "it looks", || server.calls("get") >= reads + 5).await;
    assert!(start.elapsed() > SHORT / 6 * 3, "{:?}", start.elapsed());
    // A long while later, there were no more than looks.
    let looks = start.elapsed().as_millis() / (SHORT / 6).as_millis();
    let reads = u128::from(server.calls("get") - reads);
    assert!(reads <= looks + 2, "{reads} reads in {looks} looks");
    latch.count_down().await.unwrap();
    goes_on(waiting).await;
}

#[tokio::test]
async fn calls_dropped_at_each_poll_leave_no_caller_that_waits() {
    let (server, key) = (Server::start(), key());
    let locks = locker_with(&server, LONG).await;
    let latch = locks.latch(&*key);
    let channel = format!("redisson_countdownlatch__channel__{{{key}}}");
    let listening = || {
        server
            .command::<(String, u64)>(&["PUBSUB", "NUMSUB", &channel])
            .1
    };
    for times in 0..6 {
        assert!(latch.try_set(100).await.unwrap());
        drop(poll_times(Box::pin(latch.wait()), times).await);
        drop(poll_times(Box::pin(latch.wait_for(LONG)), times).await);
        drop(poll_times(Box::pin(latch.count()), times).await);
        drop(poll_times(Box::pin(latch.try_set(7)), times).await);
        drop(poll_times(Box::pin(latch.count_down_and_wait()), times).await);
        assert_eq!(locks.stats().latch_waiters, 0);
        // Once polled, it counts: a future that gives way first does not begin with its first poll.
        let what = format!("dropped after {times} polls");
        let counted = || 100 - server.command::<u64>(&["GET", &key]);
        if times > 1 {
            eventually(SOON, &what, || counted() == 1).await;
        } else {
            assert!(counted() <= 1, "{what}");
        }
        eventually(SOON, &what, || listening() == 0).await;
        server.command::<u64>(&["DEL", &key]);
    }
}

#[tokio::test]
async fn closing_ends_waits_and_refuses_calls() {
    let (server, key) = (Server::start(), key());
    let locks = locker_with(&server, LONG).await;
    let latch = locks.latch(&*key);
    assert!(latch.try_set(1).await.unwrap());
    let waiting = waits(&server, &locks, &latch).await;
    locks.close().await;
    let ended = soon(SOON, waiting).await.expect("at once").unwrap();
    assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
    let refusals = [
        latch.try_set(1).await.err(),
        latch.count_down().await.err(),
        latch.count().await.err(),
        latch.wait().await.err(),
        latch.wait_for(SOON).await.err(),
    ];
    for error in refusals {
        assert!(matches!(error, Some(Error::Closed)), "{error:?}");
    }
    assert_eq!(server.command::<u64>(&["GET", &key]), 1);
}

/// A call that the server does not answer ends with its locker.
#[tokio::test]
async fn closing_ends_counts_that_have_no_answer() {
    let (server, key) = (Server::start(), key());
    let locks = locker_with(&server, SHORT).await;
    let latch = locks.latch(&*key);
    server.stop();
    let counting = tokio::spawn(async move { latch.count_down().await });
    eventually(SOON, "it is sent", || locks.stats().pending > 0).await;
    locks.close().await;
    let ended = soon(SOON, counting).await.expect("it ends").unwrap();
    assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
    server.go_on();
}

fn is_sent_between_threads<T: Send>(_: &T) {}

/// They need neither tokio nor the thread on which they began.
#[test]
fn its_futures_run_on_any_executor() {
    let (server, key) = (Server::start(), key());
    let locks = Locker::builder().node(server.url()).lease(SHORT);
    let locks = locks.blocking_connect().unwrap();
    let latch: Latch = locks.latch(&*key);
    let calling = async {
        assert!(latch.try_set(2).await.unwrap());
        assert!(!latch.wait_for(ms(50)).await.unwrap());
        assert_eq!(latch.count_down().await.unwrap(), 1);
        server.command::<u64>(&["DEL", &key]);
        latch.count_down_and_wait().await.unwrap();
        latch.wait().await.unwrap();
    };
    is_sent_between_threads(&calling);
    futures_executor::block_on(calling);
}
