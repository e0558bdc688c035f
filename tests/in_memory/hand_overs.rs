//! Hand-overs of a lock from its releaser to the next waiter of the same locker: what they cost,
//! and that they leave nothing behind, whatever becomes of the releaser, the waiter, the answer and
//! the server. Time is paused.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::poll;
use lockhound::stats::CallOutcome;
use lockhound::{Error, Format, Guard, Locker, Loss, Owner};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::common::{key, ms};
use super::{Server, over, servers};

/// How long a server takes to answer, in milliseconds.
const ROUND_TRIP: u64 = 10;

/// Starts a distant server, and two lockers over it.
async fn far() -> (Server, Locker, Locker) {
    let server = Server::new();
    let builder = || over(std::slice::from_ref(&server), ms(10_000)).outage_tolerance(ms(60_000));
    let (one, other) = (
        builder().connect().await.unwrap(),
        builder().connect().await.unwrap(),
    );
    server.delay(ms(ROUND_TRIP)..=ms(ROUND_TRIP));
    (server, one, other)
}

/// Returns a guard, and callers in line behind it.
async fn line<const N: usize>(locks: &Locker, name: &str) -> (Guard, [JoinHandle<Guard>; N]) {
    let guard = locks.get(name).owned_by(Owner::new()).lock().await.unwrap();
    let waiting = [(); N].map(|()| waits(locks, name));
    sleep(ms(1)).await;
    (guard, waiting)
}

fn waits(locks: &Locker, name: &str) -> JoinHandle<Guard> {
    let lock = locks.get(name).owned_by(Owner::new());
    tokio::spawn(async move { lock.lock().await.unwrap() })
}

/// Asserts that the lock is free and nothing is under way.
async fn nothing_is_left(server: &Server, locks: &Locker, name: &str) {
    sleep(ms(1_000)).await;
    let stats = locks.stats();
    assert_eq!(
        (server.holder(name), stats.holds, stats.waiters),
        (None, 0, 0)
    );
    assert_eq!((stats.pending, stats.pending_undos), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn the_next_caller_has_the_lock_a_round_trip_after_its_release() {
    let ((server, locks, _), name) = (far().await, key());
    let (guard, [next]) = line(&locks, &name).await;
    let (fence, lost, began) = (guard.fence(), guard.lost(), Instant::now());
    guard.unlock().await.unwrap();
    let next = next.await.unwrap();
    assert_eq!(began.elapsed().as_millis(), u128::from(ROUND_TRIP));
    assert!(next.fence() > fence && !lost.is_cancelled() && !next.is_lost());
    assert!(
        server
            .holder(&name)
            .unwrap()
            .contains(&next.owner().to_string()),
        "{:?}",
        server.holder(&name)
    );
    let stats = locks.stats();
    assert_eq!(
        (
            stats.holds,
            stats.attempts.of(CallOutcome::Granted),
            stats.undone_acquires
        ),
        (1, 2, 0)
    );
    next.unlock().await.unwrap();
    nothing_is_left(&server, &locks, &name).await;
}

#[tokio::test(start_paused = true)]
async fn over_several_servers_a_lock_is_released_and_not_handed_over() {
    let (servers, name) = (servers(3), key());
    let locks = over(&servers, ms(10_000)).connect().await.unwrap();
    let (guard, [next]) = line(&locks, &name).await;
    guard.unlock().await.unwrap();
    let next = timeout(ms(500), next).await.expect("it is free").unwrap();
    sleep(ms(100)).await;
    let owner = next.owner().to_string();
    assert!(servers.iter().all(|server| {
        server
            .holder(&name)
            .is_some_and(|holder| holder.contains(&owner))
    }));
    next.unlock().await.unwrap();
    for server in &servers {
        nothing_is_left(server, &locks, &name).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_line_costs_little_more_than_one_script_per_caller() {
    for format in [Format::Redisson, Format::Plain] {
        let (server, name) = (Server::new(), key());
        let locks = over(std::slice::from_ref(&server), ms(10_000))
            .format(format)
            .connect()
            .await
            .unwrap();
        server.delay(ms(1)..=ms(1));
        let began = Instant::now();
        let worker = |_| {
            let lock = locks.get(&name).owned_by(Owner::new());
            tokio::spawn(async move {
                for _ in 0..10 {
                    lock.lock().await.unwrap().unlock().await.unwrap();
                }
            })
        };
        for worker in (0..64).map(worker).collect::<Vec<_>>() {
            worker.await.unwrap();
        }
        // One after the other, a millisecond each. In the plain format a locker does not know of
        // clients that poll, so a row ends after eight hand-overs.
        let bounds = if format == Format::Plain {
            1.1..1.135
        } else {
            1.0..1.05
        };
        let each = began.elapsed().as_secs_f64() * 1_000.0 / 640.0;
        assert!(bounds.contains(&each), "{format:?}: {each} scripts");
        nothing_is_left(&server, &locks, &name).await;
    }
}

/// Returns how often a locker with four callers has the lock in one turn, in most turns.
async fn acquisitions_in_a_turn(lockers: usize, round_trip: u64) -> usize {
    let (server, name, taken) = (Server::new(), key(), Arc::<Mutex<Vec<usize>>>::default());
    let (mut connected, mut callers) = (Vec::new(), Vec::new());
    for locker in 0..lockers {
        let locks = over(std::slice::from_ref(&server), ms(10_000))
            .connect()
            .await
            .unwrap();
        for _ in 0..4 {
            let (lock, taken) = (locks.get(&name).owned_by(Owner::new()), Arc::clone(&taken));
            callers.push(tokio::spawn(async move {
                while taken.lock().unwrap().len() < 1_000 {
                    let guard = lock.lock().await.unwrap();
                    taken.lock().unwrap().push(locker);
                    guard.unlock().await.unwrap();
                }
            }));
        }
        connected.push(locks);
    }
    server.delay(ms(round_trip)..=ms(round_trip));
    for caller in callers {
        caller.await.unwrap();
    }
    nothing_is_left(&server, &connected[0], &name).await;
    let mut turns: Vec<usize> = taken
        .lock()
        .unwrap()
        .chunk_by(usize::eq)
        .map(<[usize]>::len)
        .collect();
    turns.sort_unstable();
    turns[turns.len() / 2]
}

/// The more processes share the CPUs, the longer it takes until the next one is awake.
#[tokio::test(start_paused = true)]
async fn callers_lock_twice_a_turn_if_many_wait_and_it_takes_little() {
    assert_eq!(acquisitions_in_a_turn(3, 0).await, 4, "few lockers");
    assert_eq!(acquisitions_in_a_turn(8, 0).await, 8, "many lockers");
    assert_eq!(
        acquisitions_in_a_turn(8, 1).await,
        4,
        "many lockers, far from the server"
    );
}

/// While another locker is in the list, a row ends after eight hand-overs, and the other locker is
/// woken.
#[tokio::test(start_paused = true)]
async fn waiters_of_another_locker_have_their_turn() {
    for format in [Format::Redisson, Format::Plain] {
        let (server, name) = (Server::new(), key());
        let builder = || over(std::slice::from_ref(&server), ms(10_000)).format(format);
        let (one, other) = (
            builder().connect().await.unwrap(),
            builder().connect().await.unwrap(),
        );
        server.delay(ms(1)..=ms(1));
        let (taken, over) = (Arc::<AtomicU32>::default(), Arc::<AtomicBool>::default());
        for _ in 0..16 {
            let (lock, taken, over) = (
                one.get(&name).owned_by(Owner::new()),
                Arc::clone(&taken),
                Arc::clone(&over),
            );
            tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    lock.lock().await.unwrap().unlock().await.unwrap();
                    taken.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        sleep(ms(500)).await;
        // Until it is subscribed, the others may have a long turn of their own.
        let first = other.get(&name).lock().await.unwrap();
        first.unlock().await.unwrap();
        let before = taken.load(Ordering::Relaxed);
        for _ in 0..20 {
            other
                .get(&name)
                .lock()
                .await
                .unwrap()
                .unlock()
                .await
                .unwrap();
        }
        let between = taken.load(Ordering::Relaxed) - before;
        // The acquire and eight hand-overs; twice if it comes during a row that it does not end.
        assert!(
            (10..=20 * 2 * 9).contains(&between),
            "{format:?}: {between} for 20 of the other"
        );
        over.store(true, Ordering::Relaxed);
        sleep(ms(100)).await;
        nothing_is_left(&server, &one, &name).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_whose_answer_is_lost_leaves_nothing_behind() {
    let ((server, locks, other), name) = (far().await, key());
    let (guard, [next]) = line(&locks, &name).await;
    server.lose_replies(1);
    // The hand-over was executed, and its outcome is unknown.
    assert!(matches!(
        guard.unlock().await,
        Err(Error::Unavailable { .. })
    ));
    let next = timeout(ms(1_000), next).await.expect("it goes on").unwrap();
    assert!(
        server
            .holder(&name)
            .unwrap()
            .contains(&next.owner().to_string())
    );
    assert!(other.get(&name).try_lock().await.unwrap().is_none());
    next.unlock().await.unwrap();
    nothing_is_left(&server, &locks, &name).await;
    assert_eq!(
        locks.stats().undone_acquires,
        1,
        "the grant whose answer was lost"
    );
}

/// The server is stopped with the hand-over in its socket, and executes it when it goes on.
#[tokio::test(start_paused = true)]
async fn a_hand_over_that_is_carried_out_late_leaves_nothing_behind() {
    for stands_still in [150, 1_000, 9_000, 30_000] {
        let ((server, locks, other), name) = (far().await, key());
        let (guard, [next]) = line(&locks, &name).await;
        server.stop();
        let Err(Error::Unavailable { nodes, .. }) = guard.unlock().await else {
            panic!("nobody knows")
        };
        assert!(
            nodes[0]
                .reason()
                .contains("did not confirm the release within 100ms"),
            "{nodes:?}"
        );
        sleep(ms(stands_still - 100)).await;
        server.resume();
        let next = timeout(ms(5_000), next).await.expect("it goes on").unwrap();
        next.check().unwrap();
        next.unlock().await.unwrap();
        nothing_is_left(&server, &locks, &name).await;
        other
            .get(&name)
            .try_lock()
            .await
            .unwrap()
            .expect("free")
            .unlock()
            .await
            .unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_deleted_lock_is_not_handed_over_and_its_releaser_is_told() {
    let ((server, locks, _), name) = (far().await, key());
    let (guard, [next]) = line(&locks, &name).await;
    server.delete(&name);
    assert!(matches!(
        guard.unlock().await,
        Err(Error::Lost {
            loss: Loss::NotOwner,
            ..
        })
    ));
    let next = timeout(ms(100), next).await.expect("it goes on").unwrap();
    next.check().unwrap();
    next.unlock().await.unwrap();
    nothing_is_left(&server, &locks, &name).await;
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_goes_with_the_lock_on_its_way_leaves_it_behind() {
    for others in [false, true] {
        let ((server, locks, _), name) = (far().await, key());
        let (guard, [goes]) = line(&locks, &name).await;
        let stays = others.then(|| waits(&locks, &name));
        sleep(ms(1)).await;
        let releasing = tokio::spawn(guard.unlock());
        sleep(ms(ROUND_TRIP / 2)).await;
        goes.abort();
        releasing.await.unwrap().unwrap();
        if let Some(stays) = stays {
            let next = timeout(ms(100), stays).await.expect("it goes on").unwrap();
            next.check().unwrap();
            next.unlock().await.unwrap();
        }
        nothing_is_left(&server, &locks, &name).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_whose_time_ends_with_the_lock_on_its_way_gets_none() {
    let ((server, locks, _), name) = (far().await, key());
    let (guard, []) = line(&locks, &name).await;
    let lock = locks.get(&name).owned_by(Owner::new());
    let waiting = tokio::spawn(async move { lock.try_lock_for(ms(20)).await });
    sleep(ms(15)).await;
    guard.unlock().await.unwrap();
    assert!(waiting.await.unwrap().unwrap().is_none());
    nothing_is_left(&server, &locks, &name).await;
}

/// The caller was polled once, and then no more.
#[tokio::test(start_paused = true)]
async fn a_lock_not_taken_delays_the_next_by_one_timeout_at_most() {
    let ((server, locks, _), name) = (far().await, key());
    let (guard, []) = line(&locks, &name).await;
    let lock = locks.get(&name).owned_by(Owner::new());
    let mut idle = Box::pin(lock.lock());
    assert!(poll!(&mut idle).is_pending());
    let next = waits(&locks, &name);
    sleep(ms(1)).await;
    let began = Instant::now();
    guard.unlock().await.unwrap();
    let next = next.await.unwrap();
    // The command timeout, a line of the watchdog's grid, and two round trips.
    assert!(
        (ms(100)..ms(100 + 100 + 3 * ROUND_TRIP)).contains(&began.elapsed()),
        "{:?}",
        began.elapsed()
    );
    assert!(poll!(&mut idle).is_pending());
    next.unlock().await.unwrap();
    idle.await.unwrap().unlock().await.unwrap();
    nothing_is_left(&server, &locks, &name).await;
}

#[tokio::test(start_paused = true)]
async fn closing_leaves_nothing_of_a_lock_that_is_on_its_way() {
    for after in [0, ROUND_TRIP / 2, ROUND_TRIP] {
        let ((server, locks, other), name) = (far().await, key());
        let (guard, [next]) = line(&locks, &name).await;
        let releasing = tokio::spawn(guard.unlock());
        sleep(ms(after)).await;
        locks.close().await;
        assert_eq!(
            server.holder(&name),
            None,
            "closed {after} ms after the release was sent"
        );
        releasing.await.unwrap().unwrap();
        assert!(
            next.await.is_err() || after == ROUND_TRIP,
            "it was told that the locker is closed"
        );
        other
            .get(&name)
            .try_lock()
            .await
            .unwrap()
            .expect("free")
            .unlock()
            .await
            .unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_is_forced_during_its_hand_over_is_told() {
    let ((server, locks, _), name) = (far().await, key());
    let (guard, [next]) = line(&locks, &name).await;
    let releasing = tokio::spawn(guard.unlock());
    sleep(ms(ROUND_TRIP / 2)).await;
    assert!(locks.get(&name).force_unlock().await.unwrap());
    releasing.await.unwrap().unwrap();
    let next = next.await.unwrap();
    let lost = next.lost();
    let told = timeout(ms(10_000) / 3 + ms(ROUND_TRIP + 10), lost.cancelled());
    told.await.expect("at its renewal, if not before");
    assert!(next.is_lost());
    drop(next);
    nothing_is_left(&server, &locks, &name).await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_handed_over_with_the_terms_of_the_next_holder() {
    let ((server, locks, other), name) = (far().await, key());
    let (guard, []) = line(&locks, &name).await;
    let lock = locks.get(&name).owned_by(Owner::new()).fixed_lease(ms(500));
    let short = tokio::spawn(async move { lock.lock().await.unwrap() });
    sleep(ms(1)).await;
    let began = Instant::now();
    guard.unlock().await.unwrap();
    let short = short.await.unwrap();
    short.lost().cancelled().await;
    // Counted from before the hand-over was sent.
    assert!(began.elapsed() <= ms(500), "{:?}", began.elapsed());
    sleep(ms(20)).await;
    other
        .get(&name)
        .try_lock()
        .await
        .unwrap()
        .expect("its lease is over")
        .unlock()
        .await
        .unwrap();
    assert!(matches!(
        short.unlock().await,
        Err(Error::Lost {
            loss: Loss::Expired,
            ..
        })
    ));
    nothing_is_left(&server, &locks, &name).await;
}

#[tokio::test(start_paused = true)]
async fn a_re_entered_lock_is_handed_over_by_its_last_guard_only() {
    let ((server, locks, _), name) = (far().await, key());
    let owner = Owner::new();
    let lock = locks.get(&name).owned_by(owner);
    let (first, second) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
    let next = waits(&locks, &name);
    sleep(ms(1)).await;
    first.unlock().await.unwrap();
    sleep(ms(100)).await;
    assert!(!next.is_finished() && second.check().is_ok());
    second.unlock().await.unwrap();
    next.await.unwrap().unlock().await.unwrap();
    nothing_is_left(&server, &locks, &name).await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_kept_for_its_min_hold_is_not_handed_over() {
    let ((server, locks, _), name) = (far().await, key());
    let began = Instant::now();
    let guard = locks
        .get(&name)
        .owned_by(Owner::new())
        .min_hold(ms(500))
        .lock()
        .await
        .unwrap();
    let next = waits(&locks, &name);
    sleep(ms(1)).await;
    guard.unlock().await.unwrap();
    let next = next.await.unwrap();
    assert!(began.elapsed() >= ms(500), "{:?}", began.elapsed());
    next.unlock().await.unwrap();
    nothing_is_left(&server, &locks, &name).await;
}

#[tokio::test(start_paused = true)]
async fn fences_grow_from_caller_to_caller_and_from_locker_to_locker() {
    let ((server, locks, other), name) = (far().await, key());
    server.delay(ms(1)..=ms(1));
    let (mut guard, waiting) = line::<6>(&locks, &name).await;
    let elsewhere = waits(&other, &name);
    let mut fences = vec![guard.fence()];
    for next in waiting {
        guard.unlock().await.unwrap();
        guard = next.await.unwrap();
        fences.push(guard.fence());
    }
    guard.unlock().await.unwrap();
    let last = timeout(ms(1_000), elsewhere)
        .await
        .expect("it has its turn")
        .unwrap();
    fences.push(last.fence());
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
    last.unlock().await.unwrap();
    nothing_is_left(&server, &locks, &name).await;
}

#[tokio::test(start_paused = true)]
async fn the_releaser_learns_of_no_answer_after_a_command_timeout() {
    for answers in [false, true] {
        let ((server, locks, _), name) = (far().await, key());
        let (guard, [next]) = line(&locks, &name).await;
        let began = Instant::now();
        if answers {
            // Each answer is lost, and the connection with it.
            server.lose_replies(1_000);
        } else {
            server.stop();
        }
        assert!(matches!(
            guard.unlock().await,
            Err(Error::Unavailable { .. })
        ));
        assert_eq!(began.elapsed(), ms(100));
        server.lose_replies(0);
        server.resume();
        timeout(ms(5_000), next)
            .await
            .expect("it goes on")
            .unwrap()
            .unlock()
            .await
            .unwrap();
        nothing_is_left(&server, &locks, &name).await;
    }
}

/// Its answer is another command's, so the connection is given up, and nobody knows whether it was
/// executed.
#[tokio::test(start_paused = true)]
async fn a_releaser_whose_hand_over_was_executed_is_told_of_no_loss() {
    let ((server, locks, _), name) = (far().await, key());
    let (guard, [next]) = line(&locks, &name).await;
    server.duplicate_reply();
    guard.unlock().await.unwrap();
    timeout(ms(1_000), next)
        .await
        .expect("it goes on")
        .unwrap()
        .unlock()
        .await
        .unwrap();
    nothing_is_left(&server, &locks, &name).await;
    assert_eq!(locks.stats().losses.total(), 0);
}

/// Returns a guard that was handed over twice, so that its locker has the lock in a row.
async fn in_a_row(locks: &Locker, name: &str) -> Guard {
    let (first, [second, third]) = line(locks, name).await;
    drop(first);
    drop(second.await.unwrap());
    third.await.unwrap()
}

/// A caller behind it may have given up meanwhile.
#[tokio::test(start_paused = true)]
async fn a_try_behind_a_handed_over_guard_finds_the_lock_free() {
    for waits in [false, true] {
        let ((server, locks, _), name) = (far().await, key());
        let guard = in_a_row(&locks, &name).await;
        let lock = locks.get(&name).owned_by(Owner::new());
        let mut behind = Box::pin(lock.lock());
        if waits {
            assert!(poll!(&mut behind).is_pending());
            sleep(ms(1)).await;
        }
        drop(guard);
        drop(behind);
        let again = locks.get(&name).owned_by(Owner::new());
        again
            .try_lock()
            .await
            .unwrap()
            .expect("nobody wants it")
            .unlock()
            .await
            .unwrap();
        nothing_is_left(&server, &locks, &name).await;
    }
}

/// Another locker has had the lock since it was deleted behind its holder's back.
#[tokio::test(start_paused = true)]
async fn a_caller_behind_a_holder_without_its_lock_has_a_higher_fence() {
    for forces in [false, true] {
        let ((server, locks, other), name) = (far().await, key());
        // A row of hand-overs lasts 10 ms.
        server.delay(ms(1)..=ms(1));
        let guard = in_a_row(&locks, &name).await;
        if forces {
            assert!(other.get(&name).force_unlock().await.unwrap());
        } else {
            server.delete(&name);
        }
        let between = other.get(&name).lock().await.unwrap();
        let fence = between.fence();
        between.unlock().await.unwrap();
        let next = waits(&locks, &name);
        sleep(ms(1)).await;
        assert!(fence > guard.fence());
        assert!(matches!(
            guard.unlock().await,
            Err(Error::Lost {
                loss: Loss::NotOwner,
                ..
            })
        ));
        let next = next.await.unwrap();
        assert!(next.fence() > fence, "{} after {fence}", next.fence());
        next.unlock().await.unwrap();
        nothing_is_left(&server, &locks, &name).await;
    }
}
