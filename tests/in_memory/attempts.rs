//! Each call ends with one outcome, which is counted once.

use std::time::Duration;

use lockhound::stats::{Attempts, CallOutcome};
use lockhound::testing::Server;
use lockhound::{Error, Locker, MultiLock, Owner};
use tokio::time::{sleep, timeout};

use super::{key, ms, over, servers};

const ALL: [CallOutcome; 8] = [
    CallOutcome::Granted,
    CallOutcome::Reentered,
    CallOutcome::Busy,
    CallOutcome::TimedOut,
    CallOutcome::Unavailable,
    CallOutcome::Refused,
    CallOutcome::Cancelled,
    CallOutcome::Lost,
];

/// Asserts that the calls between these two counts had this outcome, and no others.
fn only(before: &Attempts, locks: &Locker, outcome: CallOutcome, calls: u64) {
    let now = locks.stats().attempts;
    for other in ALL {
        let expected = if other == outcome { calls } else { 0 };
        assert_eq!(
            now.of(other) - before.of(other),
            expected,
            "{other}, where {outcome} is expected: {now:?}"
        );
    }
}

fn several(locks: &Locker, name: &str) -> MultiLock {
    locks.multi([name.to_owned(), key()])
}

#[tokio::test(start_paused = true)]
async fn each_call_of_each_kind_ends_with_one_outcome() {
    let (server, name) = (Server::new(), key());
    let locks = over(std::slice::from_ref(&server), ms(10_000))
        .connect()
        .await
        .unwrap();
    let lock = locks.get(&name);
    let other = lock.clone().owned_by(Owner::new());
    let both = several(&locks, &name).owned_by(Owner::new());
    let mut before = locks.stats().attempts;
    let mut ended = |outcome, calls| {
        only(&before, &locks, outcome, calls);
        before = locks.stats().attempts;
    };

    lock.lock().await.unwrap().unlock().await.unwrap();
    lock.try_lock()
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
    lock.run(|_| async {}).await.unwrap();
    both.lock().await.unwrap().unlock().await.unwrap();
    both.run(|_| async {}).await.unwrap();
    assert!(
        locks
            .get(key())
            .once_per(ms(1_000), |_| async { Ok::<_, ()>(()) })
            .await
            .unwrap()
            .is_some()
    );
    ended(CallOutcome::Granted, 6);

    let guard = lock.lock().await.unwrap();
    ended(CallOutcome::Granted, 1);
    let again = [
        lock.lock().await.unwrap(),
        lock.try_lock().await.unwrap().unwrap(),
    ];
    locks
        .multi([&name])
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    lock.run(|_| async {}).await.unwrap();
    ended(CallOutcome::Reentered, 4);
    drop(again);

    assert!(other.try_lock().await.unwrap().is_none() && both.try_lock().await.unwrap().is_none());
    ended(CallOutcome::Busy, 2);
    assert!(
        other.try_lock_for(ms(300)).await.unwrap().is_none()
            && both.try_lock_for(ms(300)).await.unwrap().is_none()
    );
    assert!(
        other
            .run_for(ms(300), |_| async {})
            .await
            .unwrap()
            .is_none()
    );
    ended(CallOutcome::TimedOut, 3);
    assert!(
        timeout(ms(300), other.lock()).await.is_err()
            && timeout(ms(300), both.run(|_| async {})).await.is_err()
    );
    drop(guard);
    ended(CallOutcome::Cancelled, 2);

    // It waits for its turn, before it has asked for the lock.
    let running = tokio::spawn({
        let other = other.clone();
        async move { other.run(|_| sleep(ms(1_000))).await }
    });
    sleep(ms(100)).await;
    ended(CallOutcome::Granted, 1);
    assert!(timeout(ms(300), other.run(|_| async {})).await.is_err());
    ended(CallOutcome::Cancelled, 1);
    running.await.unwrap().unwrap();

    let guard = lock.lock().await.unwrap();
    ended(CallOutcome::Granted, 1);
    assert!(lock.force_unlock().await.unwrap());
    assert!(
        matches!(lock.lock().await, Err(Error::Lost { .. }))
            && matches!(lock.try_lock().await, Err(Error::Lost { .. }))
    );
    ended(CallOutcome::Lost, 2);
    drop(guard);

    assert!(matches!(locks.get("").lock().await, Err(Error::Config(_))));
    assert!(matches!(
        locks.multi([&name, &name]).run(|_| async {}).await,
        Err(Error::Config(_))
    ));
    assert!(
        matches!(lock.blocking_lock(), Err(Error::Config(_))),
        "it lives in this runtime"
    );
    ended(CallOutcome::Refused, 3);

    server.stop();
    assert!(matches!(
        lock.try_lock().await,
        Err(Error::Unavailable { .. })
    ));
    assert!(matches!(
        lock.try_lock_for(ms(300)).await,
        Err(Error::Unavailable { .. })
    ));
    assert!(matches!(
        both.run(|_| async {}).await,
        Err(Error::Unavailable { .. })
    ));
    ended(CallOutcome::Unavailable, 3);
    locks.close().await;
    assert!(matches!(lock.lock().await, Err(Error::Closed)));
    ended(CallOutcome::Refused, 1);
}

/// They are what a time limit is set by: without them, the slowest calls would be missing.
#[tokio::test(start_paused = true)]
async fn the_waits_of_callers_that_gave_up_are_recorded() {
    let (server, name) = (Server::new(), key());
    let locks = over(std::slice::from_ref(&server), ms(10_000))
        .connect()
        .await
        .unwrap();
    let guard = locks.get(&name).lock().await.unwrap();
    let other = locks.get(&name).owned_by(Owner::new());
    assert!(other.try_lock_for(ms(2_000)).await.unwrap().is_none());
    assert!(timeout(ms(3_000), other.lock()).await.is_err());
    assert!(other.try_lock().await.unwrap().is_none());
    let waits = locks.stats().wait_time;
    assert_eq!(
        (waits.count, waits.max.as_millis() / 100),
        (3, 30),
        "{waits:?}"
    );
    guard.unlock().await.unwrap();
}

/// The answers take longer than the callers wait, and there is no other sign of an outage.
#[tokio::test(start_paused = true)]
async fn too_short_a_wait_says_nothing_about_servers_that_answer() {
    let servers = servers(3);
    let locks = over(&servers, ms(10_000)).connect().await.unwrap();
    let (short, name) = (Duration::from_millis(2), key());
    servers
        .iter()
        .for_each(|server| server.delay(ms(5)..=ms(5)));
    for _ in 0..5 {
        assert!(
            locks
                .get(key())
                .try_lock_for(short)
                .await
                .unwrap()
                .is_none()
        );
        assert!(
            several(&locks, &name)
                .try_lock_for(short)
                .await
                .unwrap()
                .is_none()
        );
    }
    sleep(ms(1_000)).await;
    servers[..2].iter().for_each(Server::stop);
    let error = locks.get(key()).try_lock_for(ms(60)).await.unwrap_err();
    assert!(
        matches!(error, Error::Unavailable { .. }),
        "long enough for an answer: {error}"
    );
    assert!(locks.get(key()).try_lock().await.is_err());
    let error = locks.get(key()).try_lock_for(short).await.unwrap_err();
    assert!(
        matches!(error, Error::Unavailable { .. }),
        "a round has failed before: {error}"
    );
}
