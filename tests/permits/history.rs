//! Who had permits and when, while servers cannot be reached: never more than there are.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::SOON;
use crate::common::permits::{Taken, check};
use crate::common::proxy::{Mode, Proxy};
use crate::common::record::now;
use crate::common::{Server, builder, eventually, key, locker_with, ms, say};
use lockhound::{Error, Semaphore};
use tokio::time::{Instant, sleep};

const CAPACITY: u32 = 5;

/// How long a lease is here.
const SHORT: Duration = Duration::from_millis(900);

/// What all of them had, and how many of these were lost.
#[derive(Default)]
struct Record {
    taken: Vec<Taken>,
    lost: usize,
}

impl Record {
    fn add(&mut self, taken: Taken, lost: bool) {
        self.taken.push(taken);
        self.lost += usize::from(lost);
    }
}

/// The callers of one locker.
#[derive(Default)]
struct Callers {
    /// Whether they keep what they have.
    stay: AtomicBool,
    /// How many have permits.
    inside: AtomicUsize,
}

/// Takes permits and gives them back, again and again.
async fn takes(
    semaphore: Semaphore,
    who: String,
    callers: Arc<Callers>,
    record: Arc<Mutex<Record>>,
) {
    loop {
        let Ok(permit) = semaphore.acquire_many(fastrand::u32(1..=3)).await else {
            continue;
        };
        let from = now();
        let mut held = from;
        callers.inside.fetch_add(1, SeqCst);
        let mut steps = fastrand::u32(1..4);
        while steps > 0 || callers.stay.load(SeqCst) {
            steps = steps.saturating_sub(1);
            sleep(ms(fastrand::u64(1..20))).await;
            let checked = now();
            if permit.check().is_err() {
                break;
            }
            held = checked;
        }
        callers.inside.fetch_sub(1, SeqCst);
        let (key, permits) = (permit.key().to_string(), permit.count());
        let called = now();
        let lost = permit.check().is_err();
        let until = if lost { held } else { called };
        record.lock().unwrap().add(
            Taken {
                key,
                who: who.clone(),
                permits,
                from,
                until,
            },
            lost,
        );
        if fastrand::bool() {
            drop(permit);
        } else {
            let answer = permit.release().await;
            assert!(
                !lost || matches!(answer, Err(Error::Lost { .. })),
                "{answer:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_holders_had_fits_into_what_there_is() {
    let (server, key) = (Server::start(), key());
    let proxy = Proxy::start(server.port());
    let far = builder(&proxy.url(), SHORT).connect().await.unwrap();
    let near = builder(&server.url(), SHORT).connect().await.unwrap();
    let record = Arc::new(Mutex::new(Record::default()));
    let (callers, others) = (Arc::new(Callers::default()), Arc::new(Callers::default()));
    let mut tasks = Vec::new();
    for (locks, place, callers) in [(&far, "far", &callers), (&near, "near", &others)] {
        for n in 0..6 {
            let semaphore = locks.permits(&*key).capacity(CAPACITY);
            let (callers, record) = (Arc::clone(callers), Arc::clone(&record));
            let who = format!("{place}{n}");
            tasks.push(tokio::spawn(takes(semaphore, who, callers, record)));
        }
    }
    for silence in [0, 300, 2_000, 0, 1_500, 200] {
        sleep(ms(400)).await;
        callers.stay.store(true, SeqCst);
        eventually(SOON, "one far away has some", || {
            callers.inside.load(SeqCst) > 0
        })
        .await;
        proxy.set(Mode::BlackHole);
        sleep(ms(silence)).await;
        proxy.cut();
        proxy.set(Mode::Pass);
        callers.stay.store(false, SeqCst);
    }
    sleep(SHORT).await;
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    let Record { taken, lost } = std::mem::take(&mut *record.lock().unwrap());
    say(&format!("{} times taken, {lost} lost", taken.len()));
    assert!(taken.len() > 50 && lost > 0, "{} {lost}", taken.len());
    check(CAPACITY, &taken).unwrap();
    let semaphore = near.permits(&*key);
    let since = Instant::now();
    while semaphore.usage().await.unwrap().free() < CAPACITY {
        let usage = semaphore.usage().await;
        assert!(since.elapsed() < SHORT * 2 + SOON, "one is gone: {usage:?}");
        sleep(ms(20)).await;
    }
    assert_eq!(semaphore.usage().await.unwrap().capacity(), Some(CAPACITY));
}

#[tokio::test]
async fn the_check_finds_a_semaphore_that_was_deleted() {
    let (server, key) = (Server::start(), key());
    let locks = locker_with(&server, ms(30_000)).await;
    let semaphore = locks.permits(&*key).capacity(CAPACITY);
    let mut taken = Vec::new();
    let mut permits = Vec::new();
    for who in ["first", "second"] {
        let permit = semaphore.acquire_many(3).await.unwrap();
        let (permits_taken, from) = (permit.count(), now());
        permits.push(permit);
        server.command::<i64>(&["DEL", &key, &format!("{{{key}}}:timeout")]);
        taken.push(Taken {
            key: (*key).to_owned(),
            who: who.to_owned(),
            permits: permits_taken,
            from,
            until: u64::MAX,
        });
    }
    assert!(permits.iter().all(|permit| permit.check().is_ok()));
    let said = check(CAPACITY, &taken).unwrap_err();
    assert!(said.starts_with("6 permits of 5"), "{said}");
    taken[0].until = taken[1].from;
    check(CAPACITY, &taken).unwrap();
}
