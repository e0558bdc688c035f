//! As many have permits as there are, whatever happens to calls and answers.

use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::SOON;
use crate::common::labels::labelled;
use crate::common::polls::poll_times;
use crate::common::proxy::{Mode, Proxy};
use crate::common::{Server, builder, eventually, key, locker, locker_with, ms, soon};
use lockhound::{Error, Semaphore};

async fn nothing_is_taken(semaphore: &Semaphore, what: &str) {
    for _ in 0..500 {
        if semaphore.usage().await.unwrap().taken() == 0 {
            return;
        }
        tokio::time::sleep(ms(10)).await;
    }
    panic!("{what}: {:?}", semaphore.usage().await);
}

#[tokio::test]
async fn as_many_are_inside_as_there_are_permits() {
    let (server, key) = (Server::start(), key());
    let lockers = [locker(&server).await, locker(&server).await];
    let [inside, most] = [Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0))];
    let tasks: Vec<_> = (0..40)
        .map(|n| {
            let semaphore = lockers[n % 2].permits(&*key).capacity(3);
            let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
            tokio::spawn(async move {
                for round in 0..10 {
                    let wants = 1 + u32::try_from((n + round) % 3).unwrap();
                    let permit = semaphore.acquire_many(wants).await.unwrap();
                    assert_eq!(permit.count(), wants);
                    let now = inside.fetch_add(permit.count() as usize, Ordering::SeqCst);
                    most.fetch_max(now + permit.count() as usize, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(permit.count() as usize, Ordering::SeqCst);
                    permit.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        soon(SOON * 6, task).await.expect("nobody starves").unwrap();
    }
    assert_eq!(most.load(Ordering::SeqCst), 3, "all are used, and no more");
    let usage = lockers[0].permits(&*key).usage().await.unwrap();
    assert_eq!(
        (usage.capacity(), usage.free(), usage.taken()),
        (Some(3), 3, 0)
    );
}

#[tokio::test]
async fn a_permit_is_what_it_says() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let semaphore = locks.permits(&*key).capacity(3);
    let two = semaphore.acquire_many(2).await.unwrap();
    let one = semaphore.try_acquire().await.unwrap().expect("one is left");
    assert_eq!((two.count(), one.count()), (2, 1));
    assert_eq!(two.key().as_str(), &*key);
    two.check().unwrap();
    assert!(two.remaining() > ms(1) && two.loss().is_none());
    assert!(semaphore.try_acquire().await.unwrap().is_none());
    let waited = semaphore.try_acquire_for(ms(50)).await.unwrap();
    assert!(waited.is_none());
    labelled(&locks, from_ref(&server)).await;
    let usage = semaphore.usage().await.unwrap();
    let mut holders: Vec<u32> = usage.holders().iter().map(|it| it.permits()).collect();
    holders.sort_unstable();
    assert_eq!((usage.free(), usage.taken(), holders), (0, 3, vec![1, 2]));
    let label = usage.holders()[0].label();
    assert!(label.is_some(), "{usage:?}");
    assert_eq!(locks.stats().holds, 2);
    drop(one);
    two.release().await.unwrap();
    nothing_is_taken(&semaphore, "released").await;
    let answer = semaphore.run(|held| async move { held.count() }).await;
    assert_eq!(answer.unwrap(), 1);
    nothing_is_taken(&semaphore, "run").await;
    assert_eq!(server.command::<i64>(&["GET", &key]), 3);
}

#[tokio::test]
async fn calls_that_are_dropped_at_each_poll_take_nothing() {
    let (server, key) = (Server::start(), key());
    let semaphore = locker(&server).await.permits(&*key).capacity(2);
    for times in 0..8 {
        drop(poll_times(Box::pin(semaphore.acquire_many(2)), times).await);
        nothing_is_taken(&semaphore, &format!("after {times} polls")).await;
        drop(poll_times(Box::pin(semaphore.try_acquire()), times).await);
        nothing_is_taken(&semaphore, &format!("after {times} polls of one attempt")).await;
        let both = semaphore.acquire_many(2).await.unwrap();
        drop(poll_times(Box::pin(semaphore.acquire()), times).await);
        both.release().await.unwrap();
        nothing_is_taken(&semaphore, &format!("after {times} polls of a wait")).await;
    }
}

/// The server executes what is asked for, and the answer is lost: nobody knows which of the two
/// permits are taken.
#[tokio::test]
async fn an_acquire_without_an_answer_is_undone() {
    let (server, key) = (Server::start(), key());
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url(), ms(3_000))
        .command_timeout(ms(200))
        .outage_tolerance(ms(0))
        .connect()
        .await
        .unwrap();
    let semaphore = locks.permits(&*key).capacity(4);
    semaphore.acquire().await.unwrap().release().await.unwrap();
    for _ in 0..3 {
        // Its lease and its capacity.
        proxy.set(Mode::SwallowReplyTo(b"$4\r\n3000\r\n$1\r\n4\r\n".to_vec()));
        let answer = semaphore.try_acquire_many(2).await;
        assert!(
            matches!(answer, Err(Error::Unavailable { .. })),
            "{answer:?}"
        );
        proxy.set(Mode::Pass);
        let there = locker(&server).await.permits(&*key);
        nothing_is_taken(&there, "it is undone").await;
        assert_eq!(server.command::<i64>(&["GET", &key]), 4, "once");
    }
}

#[tokio::test]
async fn the_permits_of_a_dead_holder_come_back_to_those_that_wait() {
    let (server, key) = (Server::start(), key());
    let [dead, locks] = [
        locker_with(&server, ms(2_000)).await,
        locker_with(&server, ms(2_000)).await,
    ];
    let forgotten = dead.permits(&*key).capacity(2).fixed_lease(ms(1_000));
    std::mem::forget(forgotten.acquire_many(2).await.unwrap());
    let waits = locks.permits(&*key);
    let permit = soon(SOON, waits.acquire())
        .await
        .expect("after its lease, and no look later")
        .unwrap();
    let usage = waits.usage().await.unwrap();
    assert_eq!((usage.free(), usage.taken()), (1, 1), "both came back");
    permit.release().await.unwrap();
}

/// The clocks of JVMs are as wrong however long a permit is taken for.
#[tokio::test]
async fn a_record_outlasts_a_fixed_lease_by_a_tenth_of_the_lockers() {
    let (server, key) = (Server::start(), key());
    let locks = locker_with(&server, ms(20_000)).await;
    let now = || {
        let time = server.command::<[i64; 2]>(&["TIME"]);
        time[0] * 1_000 + time[1] / 1_000
    };
    let records = format!("{{{key}}}:timeout");
    for lease in [5_000_i64, 60_000] {
        let semaphore = locks.permits(&*key).capacity(1);
        let semaphore = semaphore.fixed_lease(ms(lease.cast_unsigned()));
        let before = now();
        let permit = semaphore.acquire().await.unwrap();
        let last =
            server.command::<Vec<(String, i64)>>(&["ZRANGE", &records, "-1", "-1", "WITHSCORES"]);
        let ends = last[0].1 - lease - 2_000;
        assert!(
            (before..=now()).contains(&ends),
            "a lease of {lease}: {ends}"
        );
        drop(permit);
    }
}

#[tokio::test]
async fn a_permit_is_renewed_while_it_lives() {
    let (server, key) = (Server::start(), key());
    let [here, there] = [
        builder(&server.url(), ms(600)).connect().await.unwrap(),
        locker(&server).await,
    ];
    let held = here
        .permits(&*key)
        .capacity(3)
        .acquire_many(3)
        .await
        .unwrap();
    let other = there.permits(&*key);
    for _ in 0..20 {
        assert!(other.try_acquire().await.unwrap().is_none());
        tokio::time::sleep(ms(100)).await;
    }
    held.check().unwrap();
    held.release().await.unwrap();
    assert!(other.try_acquire_many(3).await.unwrap().is_some());
}

#[tokio::test]
async fn threads_without_async_code_share_permits() {
    let (server, key) = (Server::start(), key());
    let url = server.url();
    let done = tokio::task::spawn_blocking(move || {
        let locks = lockhound::Locker::blocking_connect(url)?;
        let semaphore = locks.permits(&*key).capacity(2);
        let both = semaphore.blocking_acquire_many(2)?;
        assert!(semaphore.blocking_try_acquire_for(ms(20))?.is_none());
        both.blocking_release()?;
        let one = semaphore.blocking_try_acquire_for(ms(20))?;
        assert!(one.is_some());
        drop(one);
        locks.blocking_close();
        Ok::<_, Error>(())
    });
    done.await.unwrap().unwrap();
}

#[tokio::test]
async fn waiters_are_woken_by_a_release_elsewhere() {
    let (server, key) = (Server::start(), key());
    let [here, there] = [locker(&server).await, locker(&server).await];
    let both = here
        .permits(&*key)
        .capacity(2)
        .acquire_many(2)
        .await
        .unwrap();
    let waits = there.permits(&*key);
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let waits = waits.clone();
            tokio::spawn(async move { waits.acquire().await })
        })
        .collect();
    eventually(SOON, "both wait", || there.stats().waiters == 2).await;
    eventually(SOON, "it listens", || {
        server.command::<Vec<(String, i64)>>(&[
            "PUBSUB",
            "NUMSUB",
            &format!("redisson_sc:{{{key}}}"),
        ])[0]
            .1
            == 1
    })
    .await;
    let scripts = server.calls("evalsha");
    both.release().await.unwrap();
    let mut permits = Vec::new();
    for task in waiting {
        // A look comes after a sixth of 30 seconds.
        permits.push(
            soon(ms(3_000), task)
                .await
                .expect("woken")
                .unwrap()
                .unwrap(),
        );
    }
    let asked = server.calls("evalsha") - scripts;
    assert!(asked <= 4, "a release, and one ask for both: {asked}");
}
