//! Replies that are lost, repeated, swapped or garbled on the way: the answer to one command is
//! never taken for that to another.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::meddler::{Harm, Meddler};
use crate::common::record::{self, Record, Visit};
use crate::common::{Server, builder, eventually, key, ms};
use lockhound::{Guard, Locker};

const ACQUISITIONS: usize = 10_000;

fn assert_all_harms(meddler: &Meddler) {
    let harmed = meddler.harmed();
    assert!(harmed.iter().all(|(_, count)| *count > 0), "{harmed:?}");
}

/// Acquires and releases until all tasks together have done so often enough. Returns when it was
/// inside. Spoiled replies make some attempts fail.
async fn visit(
    who: String,
    locks: Locker,
    keys: Arc<Vec<String>>,
    granted: Arc<AtomicUsize>,
) -> Vec<Visit> {
    let mut visits = Vec::new();
    while granted.load(Ordering::Relaxed) < ACQUISITIONS {
        let key = fastrand::choice(keys.iter()).unwrap();
        let lock = locks.get(key);
        let got = if fastrand::bool() {
            lock.try_lock().await
        } else {
            lock.try_lock_for(ms(100)).await
        };
        let Ok(Some(guard)) = got else {
            tokio::task::yield_now().await;
            continue;
        };
        let entered = record::now();
        tokio::task::yield_now().await;
        let left = record::now();
        // A hold that was reported as lost is not recorded.
        if guard.check().is_ok() {
            granted.fetch_add(1, Ordering::Relaxed);
            visits.push(Visit {
                key: key.clone(),
                who: who.clone(),
                fence: guard.fence().get(),
                entered,
                left,
            });
        }
        drop(guard.unlock().await);
    }
    visits
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lock_is_granted_by_the_answer_to_another_command() {
    let server = Server::start();
    let meddler = Meddler::start(server.port(), 11);
    let harmed = builder(&meddler.url(), ms(3_000))
        .command_timeout(ms(300))
        .connect()
        .await
        .unwrap();
    let direct = builder(&server.url(), ms(3_000)).connect().await.unwrap();
    let keys: Arc<Vec<String>> = Arc::new((0..8).map(|_| key()).collect());
    let granted = Arc::new(AtomicUsize::new(0));
    meddler.spoil_one_in(100);
    let visits: Vec<_> = (0..16)
        .map(|n| {
            let locks = if n % 4 == 0 { &direct } else { &harmed };
            tokio::spawn(visit(
                format!("task {n}"),
                locks.clone(),
                Arc::clone(&keys),
                Arc::clone(&granted),
            ))
        })
        .collect();
    let mut record = Record::default();
    for visits in visits {
        record.visits.extend(visits.await.unwrap());
    }
    assert!(record.visits.len() >= ACQUISITIONS);
    record.check().unwrap();
    assert_all_harms(&meddler);
    let found = harmed.stats().mismatched_replies;
    assert!(found > 0, "{:?}", meddler.harmed());
    assert_eq!(
        direct.stats().mismatched_replies,
        0,
        "its replies are not spoiled"
    );
    meddler.spoil_one_in(0);
    for key in &*keys {
        eventually(ms(10_000), "what was granted to nobody has run out", || {
            !server.exists(key)
        })
        .await;
    }
}

/// Takes many locks, a moment apart, so that each is renewed by a script of its own.
async fn lock_many(locks: &Locker) -> Vec<Guard> {
    let mut guards = Vec::new();
    for _ in 0..60 {
        guards.extend(locks.get(key()).try_lock().await.ok().flatten());
        tokio::time::sleep(ms(8)).await;
    }
    guards
}

#[tokio::test]
async fn no_lease_is_renewed_by_the_answer_to_another_command() {
    const LEASE: Duration = Duration::from_millis(1_500);
    let server = Server::start();
    let meddler = Meddler::start(server.port(), 12);
    let locks = builder(&meddler.url(), LEASE)
        .command_timeout(ms(400))
        .connect()
        .await
        .unwrap();
    meddler.spoil_one_in(10);
    let mut looked_at = 0;
    for _ in 0..6 {
        let (gone, kept): (Vec<_>, Vec<_>) = (0..)
            .zip(lock_many(&locks).await)
            .partition(|(n, _)| n % 2 == 0);
        let del = ["DEL"]
            .into_iter()
            .chain(gone.iter().map(|(_, guard)| guard.key().as_str()));
        server.command::<u64>(&del.collect::<Vec<_>>());
        // All renewals that can have found these keys were sent before.
        tokio::time::sleep_until((Instant::now() + LEASE).into()).await;
        for (_, guard) in &gone {
            guard
                .check()
                .expect_err("a key that is gone is renewed by no server");
        }
        looked_at += gone.len();
        drop(kept);
    }
    assert!(looked_at > 60, "{looked_at} of 180 were locked");
    assert_all_harms(&meddler);
    assert!(locks.stats().mismatched_replies > 0);
}

#[tokio::test]
async fn locking_goes_on_after_a_reply_that_cannot_be_read() {
    let server = Server::start();
    let meddler = Meddler::start(server.port(), 13);
    let locks = builder(&meddler.url(), ms(3_000))
        .command_timeout(ms(300))
        .connect()
        .await
        .unwrap();
    let lock = locks.get(key());
    meddler.spoil_one_in(4);
    while meddler
        .harmed()
        .iter()
        .any(|&(harm, count)| harm == Harm::Unreadable && count < 3)
    {
        drop(lock.try_lock().await);
    }
    meddler.spoil_one_in(0);
    let guard = lock
        .try_lock_for(ms(20_000))
        .await
        .unwrap()
        .expect("a lease is over by then");
    guard.unlock().await.unwrap();
    assert!(locks.stats().mismatched_replies > 0);
}
