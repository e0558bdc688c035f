//! Redisson's semaphores on a JVM together with ours, on one server. tests/foreign/redisson has the
//! program of the JVM.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use common::both_sides::both_sides;
use common::jvm::Jvm;
use common::{Server, eventually, key, locker_with, ms, soon};

/// A lease so long that no waiter looks by itself within ten seconds.
const LONG: Duration = Duration::from_secs(60);
/// By then a message has woken the waiter.
const WOKEN: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn permits_of_both_sides_are_counted_together() {
    let Some((server, locks, redisson)) = both_sides(LONG).await else {
        return;
    };
    let key = key();
    let there = redisson.object("permits", &key);
    let here = locks.permits(&*key).capacity(3);
    let two = here.acquire_many(2).await.unwrap();
    assert_eq!(
        there.said("set 9").await,
        "false",
        "the first capacity counts"
    );
    assert_eq!(there.said("free").await, "1");
    let id = there.said("acquire 60000").await;
    assert_eq!(there.said("try 60000").await, "null");
    assert!(here.try_acquire().await.unwrap().is_none());
    let usage = here.usage().await.unwrap();
    assert_eq!((usage.capacity(), usage.taken()), (Some(3), 3));
    let owners: Vec<_> = usage.holders().iter().map(|it| it.owner()).collect();
    assert!(owners.contains(&id.as_str().into()), "{owners:?}");
    assert_eq!(there.said(&format!("release {id}")).await, "true");
    // An operator gives back what nobody will.
    let lost = there.said("acquire 60000").await;
    let usage = here.usage().await.unwrap();
    let holder = usage.holders().iter().find(|it| it.owner() == lost);
    assert!(here.force_release(holder.unwrap()).await.unwrap());
    assert_eq!(there.said(&format!("release {lost}")).await, "false");
    let one = here.try_acquire().await.unwrap().expect("one is free");
    two.release().await.unwrap();
    assert_eq!(there.said("free").await, "2");
    one.release().await.unwrap();
    assert_eq!(there.said("free").await, "3");
    assert!(!server.exists(&format!("{{{key}}}:timeout")));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_side_wakes_the_other() {
    let Some((server, locks, redisson)) = both_sides(LONG).await else {
        return;
    };
    for kind in ["permits", "semaphore"] {
        let key = key();
        let there = redisson.object(kind, &key);
        let here = match kind {
            "permits" => locks.permits(&*key),
            _ => locks.semaphore(&*key),
        };
        assert_eq!(there.said("set 2").await, "true");
        // Ours wakes theirs.
        let both = here.acquire_many(2).await.unwrap();
        let waiting = there.ask(match kind {
            "permits" => "acquire 60000",
            _ => "acquire 1",
        });
        let channel = format!("redisson_sc:{{{key}}}");
        let listens = || {
            server
                .command::<(String, i64)>(&["PUBSUB", "NUMSUB", &channel])
                .1
                == 1
        };
        eventually(WOKEN, "it listens", listens).await;
        both.release().await.unwrap();
        let answer = soon(WOKEN, waiting).await.expect("woken").unwrap();
        let id = answer.said.unwrap();
        // Theirs wakes ours.
        let one = here.acquire().await.unwrap();
        let waits = here.clone();
        let waiting = tokio::spawn(async move { waits.acquire().await });
        eventually(WOKEN, "it waits", || locks.stats().waiters == 1).await;
        eventually(WOKEN, "it listens", listens).await;
        let release = match kind {
            "permits" => format!("release {id}"),
            _ => "release 1".to_owned(),
        };
        there.said(&release).await;
        let other = soon(WOKEN, waiting).await.expect("woken").unwrap().unwrap();
        drop((one, other));
        eventually(WOKEN, "all are free", || {
            server.command::<i64>(&["GET", &key]) == 2
        })
        .await;
    }
}

/// Of both sides: what was taken of a counter that has run out is not taken of the next one.
#[tokio::test(flavor = "multi_thread")]
async fn permits_end_with_a_counter_that_a_jvm_gave_a_lifetime() {
    let Some((server, locks, redisson)) = both_sides(LONG).await else {
        return;
    };
    for kind in ["permits", "semaphore"] {
        let key = key();
        let there = redisson.object(kind, &key);
        let (here, records) = match kind {
            "permits" => (locks.permits(&*key), format!("{{{key}}}:timeout")),
            _ => (
                locks.semaphore(&*key),
                format!("lockhound_permits:{{{key}}}"),
            ),
        };
        assert_eq!(there.said("set 3").await, "true");
        assert_eq!(there.said("expire 60000").await, "true");
        let before = here.acquire_many(2).await.unwrap();
        let lifetimes = [&records, &key].map(|key| server.pttl(key));
        assert!(lifetimes[0] > 0 && lifetimes[0].abs_diff(lifetimes[1]) < 10_000);
        for ends in [&key, &records] {
            server.command::<i64>(&["PEXPIRE", ends, "1"]);
        }
        eventually(WOKEN, "both have run out", || {
            !server.exists(&key) && !server.exists(&records)
        })
        .await;
        assert_eq!(there.said("set 3").await, "true");
        let all = here.acquire_many(3).await.unwrap();
        assert!(before.release().await.is_err(), "they are gone");
        assert_eq!(there.said("free").await, "0");
        all.release().await.unwrap();
        assert_eq!(there.said("free").await, "3");
        // A lifetime that only the records have left.
        assert_eq!(there.said("expire 60000").await, "true");
        let one = here.acquire().await.unwrap();
        server.command::<i64>(&["PERSIST", &key]);
        here.acquire().await.unwrap().release().await.unwrap();
        assert_eq!(server.pttl(&records), -1);
        one.release().await.unwrap();
    }
}

/// A JVM that is killed gives nothing back: its permits run out.
#[tokio::test(flavor = "multi_thread")]
async fn the_permits_of_a_killed_jvm_come_back() {
    let (Some(jvm), server, key) = (Jvm::start(), Server::start(), key()) else {
        return;
    };
    let locks = locker_with(&server, ms(3_000)).await;
    let redisson = jvm.client(&server, ms(3_000)).await;
    let here = locks.permits(&*key).capacity(2);
    drop(here.acquire().await.unwrap());
    redisson
        .object("permits", &key)
        .said("acquiremany 2 3000")
        .await;
    jvm.kill();
    let both = soon(WOKEN * 2, here.acquire_many(2)).await;
    drop(both.expect("after a lease").unwrap());
}

/// Callers of one permit and of several on both sides, each for a moment.
#[tokio::test(flavor = "multi_thread")]
async fn both_sides_are_never_inside_with_more_than_there_are() {
    let Some((server, locks, redisson)) = both_sides(LONG).await else {
        return;
    };
    let key = key();
    let here = locks.permits(&*key).capacity(4);
    here.set_capacity(4).await.unwrap();
    let inside = Arc::new(AtomicI64::new(0));
    let most = Arc::new(AtomicI64::new(0));
    let ours: Vec<_> = (1..=3)
        .map(|n| {
            let (here, inside, most) = (here.clone(), Arc::clone(&inside), Arc::clone(&most));
            tokio::spawn(async move {
                for _ in 0..100 {
                    let permit = here.acquire_many(n).await.unwrap();
                    let n = i64::from(n);
                    most.fetch_max(inside.fetch_add(n, Ordering::SeqCst) + n, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(n, Ordering::SeqCst);
                    permit.release().await.unwrap();
                }
            })
        })
        .collect();
    let theirs: Vec<_> = (0..2).map(|_| redisson.object("permits", &key)).collect();
    for _ in 0..100 {
        for there in &theirs {
            let id = there.said("acquire 60000").await;
            most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            inside.fetch_sub(1, Ordering::SeqCst);
            assert_eq!(there.said(&format!("release {id}")).await, "true");
        }
    }
    for task in ours {
        soon(Duration::from_secs(60), task)
            .await
            .expect("served")
            .unwrap();
    }
    assert!(most.load(Ordering::SeqCst) <= 4, "{most:?}");
    assert_eq!(server.command::<i64>(&["GET", &key]), 4);
    assert_eq!(theirs[0].said("free").await, "4");
}
