//! Histories of a fair lock: it excludes, its fences grow, and whoever had a place before another
//! one called has the lock before that one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::SOON;
use crate::common::history::{Call, History, Model, Op};
use crate::common::record::now;
use crate::common::{Server, key, locker, ms, soon};
use crate::queue;
use lockhound::{Lock, Owner};
use tokio::time::sleep;

/// A call that got the lock.
#[derive(Debug, Clone, PartialEq)]
struct Visit {
    called: u64,
    /// When it was seen to have a place, if it was.
    placed: Option<u64>,
    fence: u64,
}

/// Returns the first two of which one had a place before the other called, and was served later.
fn overtaken(visits: &[Visit]) -> Option<[&Visit; 2]> {
    let before =
        |one: &Visit, other: &Visit| one.placed.is_some_and(|placed| placed < other.called);
    let pairs = visits
        .iter()
        .flat_map(|one| visits.iter().map(move |other| [one, other]));
    let mut overtaken = pairs.filter(|[one, other]| before(one, other) && one.fence > other.fence);
    overtaken.next()
}

#[test]
fn one_that_is_overtaken_is_found() {
    let visit = |called, placed, fence| Visit {
        called,
        placed,
        fence,
    };
    let first = visit(1, Some(3), 20);
    assert_eq!(overtaken(&[first.clone(), visit(4, Some(5), 30)]), None);
    assert_eq!(overtaken(&[first.clone(), visit(2, Some(5), 10)]), None);
    assert_eq!(overtaken(&[visit(1, None, 20), visit(4, None, 10)]), None);
    let late = visit(4, None, 10);
    assert_eq!(
        overtaken(&[late.clone(), first.clone()]),
        Some([&first, &late])
    );
}

/// Who was there when: by owner, and the calls of all.
#[derive(Clone, Default)]
struct Record {
    visits: Arc<Mutex<BTreeMap<String, Visit>>>,
    calls: Arc<Mutex<Vec<Call>>>,
}

/// Takes the lock as an owner of its own, waits for it for a while or for ever, and leaves.
async fn visit(lock: Lock, record: Record) {
    let owner = Owner::new();
    let who = owner.to_string();
    let lock = lock.owned_by(owner);
    let called = now();
    let taken = match fastrand::u8(..6) {
        0 => lock.try_lock().await.unwrap(),
        1 => lock.try_lock_for(ms(fastrand::u64(1..30))).await.unwrap(),
        // It is dropped, wherever it is.
        2 => match tokio::time::timeout(ms(fastrand::u64(1..30)), lock.lock()).await {
            Ok(guard) => Some(guard.unwrap()),
            Err(_) => None,
        },
        _ => Some(lock.lock().await.unwrap()),
    };
    let Some(guard) = taken else { return };
    let (key, fence) = (lock.key().to_string(), guard.fence().get());
    let call = |op, called, returned| Call {
        key: key.clone(),
        who: who.clone(),
        op,
        called,
        returned: Some(returned),
    };
    let locked = call(Op::Lock { fence }, called, now());
    let granted = Visit {
        called,
        placed: None,
        fence,
    };
    record.visits.lock().unwrap().insert(who.clone(), granted);
    sleep(ms(fastrand::u64(..3))).await;
    let releases = now();
    guard.unlock().await.unwrap();
    let unlocked = call(Op::Unlock, releases, now());
    record.calls.lock().unwrap().extend([locked, unlocked]);
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_of_all_kinds_are_served_in_the_order_of_their_places() {
    let (server, key, record) = (Arc::new(Server::start()), key(), Record::default());
    let mut lockers = Vec::new();
    for _ in 0..3 {
        lockers.push(locker(&server).await);
    }
    // Looks at the queue all the time: a ticket has the owner of its caller.
    let (ends, places) = (
        Arc::new(AtomicBool::new(false)),
        Arc::<Mutex<BTreeMap<String, u64>>>::default(),
    );
    let watch = std::thread::spawn({
        let (server, key, ends) = (Arc::clone(&server), key.clone(), Arc::clone(&ends));
        let places = Arc::clone(&places);
        move || {
            while !ends.load(Ordering::SeqCst) {
                let seen = queue(&server, &key);
                let at = now();
                let mut places = places.lock().unwrap();
                for ticket in seen {
                    let owner = ticket.split(':').nth(1).unwrap().to_owned();
                    places.entry(owner).or_insert(at);
                }
            }
        }
    });
    let tasks: Vec<_> = (0..12)
        .map(|n| {
            let (lock, record) = (lockers[n % 3].fair(&*key), record.clone());
            tokio::spawn(async move {
                for _ in 0..30 {
                    visit(lock.clone(), record.clone()).await;
                }
            })
        })
        .collect();
    for task in tasks {
        soon(SOON * 6, task).await.expect("nobody starves").unwrap();
    }
    ends.store(true, Ordering::SeqCst);
    watch.join().unwrap();
    let places = places.lock().unwrap().clone();
    let mut visits = Vec::new();
    for (owner, mut visit) in record.visits.lock().unwrap().clone() {
        visit.placed = places.get(&owner).copied();
        visits.push(visit);
    }
    let placed = visits.iter().filter(|visit| visit.placed.is_some()).count();
    assert!(
        placed > 50,
        "{placed} of {} were seen to wait",
        visits.len()
    );
    assert_eq!(overtaken(&visits), None);
    let calls = record.calls.lock().unwrap().clone();
    History { calls }.check(Model::Fenced).unwrap();
    assert!(queue(&server, &key).is_empty());
}
