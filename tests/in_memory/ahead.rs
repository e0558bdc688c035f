//! Grants ahead of the server's answer to their hand-over: when there are any, and that they leave nothing behind,
//! whatever becomes of the releaser, the next holder, the answer and the server. Time is paused.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use futures_util::poll;
use lockhound::{CallOutcome, Error, Fencing, Guard, HoldState, Lock, Locker, Loss, Owner};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::common::polls::run_inline;
use super::common::{key, ms};
use super::hand_overs::{far, line, nothing_is_left, waits};
use super::{Server, over};

/// How long a server takes to answer, in milliseconds. A row of hand-overs lasts 10.
const ROUND_TRIP: u64 = 1;

/// Starts a server, and two lockers over it.
async fn near() -> (Server, Locker, Locker) {
    let (server, one, other) = far().await;
    server.delay(ms(ROUND_TRIP)..=ms(ROUND_TRIP));
    (server, one, other)
}

/// Returns a guard that was handed over, which reserved a fence, and callers in line behind it.
async fn handed_over<const N: usize>(locks: &Locker, name: &str) -> (Guard, [JoinHandle<Guard>; N]) {
    let (first, [guard]) = line(locks, name).await;
    let waiting = [(); N].map(|()| waits(locks, name));
    sleep(ms(1)).await;
    first.unlock().await.unwrap();
    (guard.await.unwrap(), waiting)
}

/// Releases the guard, and returns that of the next caller, who has it before the answer.
async fn ahead(guard: Guard, next: JoinHandle<Guard>) -> (JoinHandle<Result<(), Error>>, Guard) {
    let began = Instant::now();
    let releasing = tokio::spawn(guard.unlock());
    let next = next.await.unwrap();
    assert!(began.elapsed().is_zero(), "{:?}", began.elapsed());
    (releasing, next)
}

/// Asserts that the guard's owner is the one that the server has.
async fn stands(server: &Server, name: &str, guard: &Guard) {
    guard.check().unwrap();
    assert!(server.holder(name).unwrap().contains(&guard.owner().to_string()), "{:?}", server.holder(name));
}

#[tokio::test(start_paused = true)]
async fn callers_of_a_locker_that_has_the_lock_wait_for_no_server() {
    let ((server, locks, other), name) = (near().await, key());
    let (guard, [second, third]) = handed_over(&locks, &name).await;
    let began = Instant::now();
    let (releasing, second) = ahead(guard, second).await;
    releasing.await.unwrap().unwrap();
    assert_eq!(began.elapsed(), ms(ROUND_TRIP), "the releaser waits for the answer");
    stands(&server, &name, &second).await;
    let (releasing, third) = ahead(second, third).await;
    releasing.await.unwrap().unwrap();
    // Many leases later: it is renewed as any hold is.
    sleep(ms(60_000)).await;
    stands(&server, &name, &third).await;
    third.unlock().await.unwrap();
    let (stats, last) = (locks.stats(), other.get(&name).lock().await.unwrap());
    assert_eq!((stats.attempts.of(CallOutcome::Granted), stats.undone, stats.losses.total()), (4, 0, 0));
    last.unlock().await.unwrap();
    nothing_is_left(&server, &locks, &name).await;
}

/// The releaser's thread gives it the lock, though it sends nothing.
#[tokio::test(start_paused = true)]
async fn the_next_caller_has_the_lock_before_any_task_of_the_locker_runs() {
    let ((server, locks, _), name) = (near().await, key());
    let (guard, []) = handed_over(&locks, &name).await;
    let [lock, last] = [(); 2].map(|()| locks.get(&name).owned_by(Owner::new()));
    let (mut next, mut last) = (pin!(lock.lock()), pin!(last.lock()));
    assert!(poll!(&mut next).is_pending() && poll!(&mut last).is_pending());
    sleep(ms(1)).await;
    let mut releasing = pin!(guard.unlock());
    assert!(poll!(&mut releasing).is_pending());
    let Poll::Ready(Ok(next)) = poll!(&mut next) else { panic!("it has to wait") };
    // It releases before the driver has sent the hand-over, and the one behind it waits for that.
    let mut again = pin!(next.unlock());
    assert!(poll!(&mut again).is_pending() && poll!(&mut last).is_pending());
    releasing.await.unwrap();
    again.await.unwrap();
    last.await.unwrap().unlock().await.unwrap();
    nothing_is_left(&server, &locks, &name).await;
    assert_eq!((locks.stats().undone, locks.stats().losses.total()), (0, 0));
}

/// The waker of a caller runs in the releaser's call. This one takes the lock there, and releases it.
#[tokio::test(start_paused = true)]
async fn a_caller_that_is_polled_by_its_waker_has_the_lock_within_the_releasers_call() {
    let ((server, locks, _), name, entered) = (near().await, key(), Arc::new(AtomicUsize::new(0)));
    let (guard, []) = handed_over(&locks, &name).await;
    for _ in 0..3 {
        let (lock, entered) = (locks.get(&name).owned_by(Owner::new()), Arc::clone(&entered));
        run_inline(async move {
            let guard = lock.lock().await.unwrap();
            entered.fetch_add(1, Ordering::SeqCst);
            guard.check().unwrap();
        });
    }
    sleep(ms(1)).await;
    drop(guard);
    assert_eq!(entered.load(Ordering::SeqCst), 1, "the others wait until that is confirmed");
    sleep(ms(10)).await;
    assert_eq!(entered.load(Ordering::SeqCst), 3);
    nothing_is_left(&server, &locks, &name).await;
}

/// The fence of a grant ahead was reserved, so no other lock and no other locker has it.
#[tokio::test(start_paused = true)]
async fn fences_grow_from_caller_to_caller_and_from_locker_to_locker() {
    let ((server, locks, other), name) = (near().await, key());
    let (mut guard, waiting) = handed_over::<5>(&locks, &name).await;
    let elsewhere = waits(&other, &name);
    let mut fences = vec![guard.fence()];
    for next in waiting {
        guard.unlock().await.unwrap();
        guard = next.await.unwrap();
        fences.push(guard.fence());
    }
    guard.unlock().await.unwrap();
    let last = timeout(ms(1_000), elsewhere).await.expect("it has its turn").unwrap();
    fences.push(last.fence());
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
    last.unlock().await.unwrap();
    nothing_is_left(&server, &locks, &name).await;
}

/// A holder that releases before it is confirmed is confirmed first, so only every other caller is ahead.
#[tokio::test(start_paused = true)]
async fn callers_that_release_at_once_cost_a_script_each() {
    let ((server, locks, _), name) = (near().await, key());
    let (guard, waiting) = handed_over::<6>(&locks, &name).await;
    let began = Instant::now();
    let releasing = waiting.map(|next| tokio::spawn(async move { next.await.unwrap().unlock().await }));
    guard.unlock().await.unwrap();
    for released in releasing {
        released.await.unwrap().unwrap();
    }
    assert_eq!(began.elapsed(), ms(7 * ROUND_TRIP), "six hand-overs and a release");
    nothing_is_left(&server, &locks, &name).await;
}

#[tokio::test(start_paused = true)]
async fn a_grant_ahead_whose_answer_is_lost_is_confirmed_by_a_second_copy() {
    let ((server, locks, other), name) = (near().await, key());
    let (guard, [next, third]) = handed_over(&locks, &name).await;
    server.lose_replies(1);
    let (releasing, next) = ahead(guard, next).await;
    // It was executed, and its releaser is not told in time.
    assert!(matches!(releasing.await.unwrap(), Err(Error::Unavailable { .. })));
    sleep(ms(30_000)).await;
    stands(&server, &name, &next).await;
    assert!(other.get(&name).try_lock().await.unwrap().is_none());
    next.unlock().await.unwrap();
    third.await.unwrap().unlock().await.unwrap();
    nothing_is_left(&server, &locks, &name).await;
    assert_eq!(locks.stats().undone, 0);
}

#[tokio::test(start_paused = true)]
async fn a_grant_ahead_that_is_released_without_an_answer_leaves_nothing_behind() {
    for drops in [false, true] {
        let ((server, locks, _), name) = (near().await, key());
        let (guard, [next, third]) = handed_over(&locks, &name).await;
        server.lose_replies(1);
        let (releasing, next) = ahead(guard, next).await;
        if drops {
            drop(next);
        } else {
            assert!(matches!(next.unlock().await, Err(Error::Unavailable { .. })));
        }
        assert!(matches!(releasing.await.unwrap(), Err(Error::Unavailable { .. })));
        let third = timeout(ms(1_000), third).await.expect("it goes on").unwrap();
        sleep(ms(1_000)).await;
        stands(&server, &name, &third).await;
        third.unlock().await.unwrap();
        nothing_is_left(&server, &locks, &name).await;
    }
}

/// The server is stopped with the hand-over in its socket, and executes it when it goes on.
#[tokio::test(start_paused = true)]
async fn a_grant_ahead_goes_on_while_the_server_stands_still_and_its_lease_lasts() {
    for stands_still in [50, 150, 1_000, 6_000] {
        let ((server, locks, other), name) = (near().await, key());
        let (guard, [next]) = handed_over(&locks, &name).await;
        server.stop();
        let (releasing, next) = ahead(guard, next).await;
        sleep(ms(stands_still)).await;
        next.check().unwrap();
        server.go_on();
        assert_eq!(releasing.await.unwrap().is_ok(), stands_still < 100);
        sleep(ms(60_000)).await;
        stands(&server, &name, &next).await;
        next.unlock().await.unwrap();
        nothing_is_left(&server, &locks, &name).await;
        other.get(&name).try_lock().await.unwrap().expect("free").unlock().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_ahead_is_lost_before_the_lease_of_its_releaser_ends() {
    let ((server, locks, other), name) = (near().await, key());
    let (guard, [next]) = handed_over(&locks, &name).await;
    sleep(ms(5)).await;
    let left = guard.remaining();
    server.stop();
    let (_, next) = ahead(guard, next).await;
    let began = Instant::now();
    assert!(next.remaining() <= left);
    next.lost().cancelled().await;
    assert!(began.elapsed() <= left, "{:?} of {left:?}", began.elapsed());
    server.go_on();
    assert!(matches!(next.unlock().await, Err(Error::Lost { loss: Loss::Expired, .. })));
    nothing_is_left(&server, &locks, &name).await;
    other.get(&name).try_lock().await.unwrap().expect("free").unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn both_are_told_if_the_lock_was_deleted_before_the_hand_over() {
    for released in [false, true] {
        let ((server, locks, _), name) = (near().await, key());
        let (guard, [next, third]) = handed_over(&locks, &name).await;
        server.delete(&name);
        let (releasing, next) = ahead(guard, next).await;
        let lost = next.lost();
        let next = if released { Err(next.unlock().await) } else { Ok(next) };
        assert!(matches!(releasing.await.unwrap(), Err(Error::Lost { loss: Loss::NotOwner, .. })));
        match next {
            Ok(next) => {
                assert!(lost.is_cancelled() && next.loss() == Some(Loss::NotOwner));
                assert!(matches!(next.unlock().await, Err(Error::Lost { loss: Loss::NotOwner, .. })));
            }
            Err(told) => assert!(told.is_err(), "{told:?}"),
        }
        let third = timeout(ms(100), third).await.expect("it goes on").unwrap();
        stands(&server, &name, &third).await;
        third.unlock().await.unwrap();
        nothing_is_left(&server, &locks, &name).await;
    }
}

/// A server that forgets everything, too: the next holder learns of it with the answer, and not with its next renewal.
#[tokio::test(start_paused = true)]
async fn a_grant_ahead_of_a_server_that_was_restarted_is_lost_with_the_answer() {
    let ((server, locks, other), name) = (near().await, key());
    let (guard, [next]) = handed_over(&locks, &name).await;
    server.restart();
    let (_, next) = ahead(guard, next).await;
    let began = Instant::now();
    next.lost().cancelled().await;
    assert!(began.elapsed() < ms(500), "{:?}", began.elapsed());
    drop(next);
    timeout(ms(1_000), other.get(&name).lock()).await.expect("free").unwrap().unlock().await.unwrap();
    nothing_is_left(&server, &locks, &name).await;
}

#[tokio::test(start_paused = true)]
async fn the_count_of_a_grant_ahead_is_written_once_it_is_confirmed() {
    let ((server, locks, other), name) = (near().await, key());
    let (guard, []) = handed_over(&locks, &name).await;
    let lock = locks.get(&name).owned_by(Owner::new());
    let again = lock.clone();
    let next = tokio::spawn(async move { lock.lock().await.unwrap() });
    sleep(ms(1)).await;
    let (releasing, next) = ahead(guard, next).await;
    let began = Instant::now();
    let [second, third] = [again.lock().await.unwrap(), again.lock().await.unwrap()];
    third.unlock().await.unwrap();
    assert!(began.elapsed().is_zero(), "no count is sent before the hand-over is answered");
    releasing.await.unwrap().unwrap();
    sleep(ms(3 * ROUND_TRIP)).await;
    let count = async || other.get(&name).holder().await.unwrap().expect("it is held").hold_count();
    assert_eq!((next.hold_count(), count().await), (2, 2));
    second.unlock().await.unwrap();
    assert_eq!((next.hold_count(), count().await), (1, 1));
    next.unlock().await.unwrap();
    nothing_is_left(&server, &locks, &name).await;
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_is_gone_when_the_lock_comes_ahead_leaves_it_to_the_next_one() {
    let ((server, locks, _), name) = (near().await, key());
    let (guard, [goes, stays]) = handed_over(&locks, &name).await;
    let releasing = tokio::spawn(guard.unlock());
    tokio::task::yield_now().await;
    // It has the guard, or is about to.
    goes.abort();
    drop(goes);
    let stays = timeout(ms(5 * ROUND_TRIP), stays).await.expect("it goes on").unwrap();
    releasing.await.unwrap().unwrap();
    sleep(ms(100)).await;
    stands(&server, &name, &stays).await;
    stays.unlock().await.unwrap();
    nothing_is_left(&server, &locks, &name).await;
}

#[tokio::test(start_paused = true)]
async fn closing_leaves_nothing_of_a_grant_ahead() {
    for after in [0, ROUND_TRIP / 2, ROUND_TRIP, 2 * ROUND_TRIP] {
        let ((server, locks, other), name) = (near().await, key());
        let (guard, [next]) = handed_over(&locks, &name).await;
        let (releasing, next) = ahead(guard, next).await;
        let ends = tokio::spawn(async move {
            next.lost().cancelled().await;
            next.loss()
        });
        sleep(ms(after)).await;
        locks.close().await;
        assert_eq!(server.holder(&name), None, "closed {after} ms after the release was sent");
        releasing.await.unwrap().unwrap();
        assert_eq!(ends.await.unwrap(), Some(Loss::Closed));
        other.get(&name).try_lock().await.unwrap().expect("free").unlock().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_force_unlock_before_the_answer_deposes_the_next_holder() {
    for after in [0, ROUND_TRIP / 2] {
        let ((server, locks, _), name) = (near().await, key());
        let (guard, [next, third]) = handed_over(&locks, &name).await;
        let (releasing, next) = ahead(guard, next).await;
        sleep(ms(after)).await;
        let forced = locks.get(&name).force_unlock().await.unwrap();
        assert!(forced && next.is_lost(), "{after} ms after the release");
        let _: Result<(), Error> = releasing.await.unwrap();
        drop(next);
        let third = timeout(ms(1_000), third).await.expect("it goes on").unwrap();
        sleep(ms(100)).await;
        stands(&server, &name, &third).await;
        third.unlock().await.unwrap();
        nothing_is_left(&server, &locks, &name).await;
    }
}

/// Returns a guard that was handed over, a caller in line behind it, and the way to the server, which is cut off: the
/// hand-over is not executed until it leads there again.
async fn cut_off(terms: impl FnOnce(Lock) -> Lock) -> (Server, Server, [Locker; 2], String, Guard, JoinHandle<Guard>) {
    let (server, name, nowhere) = (Server::new(), key(), Server::new());
    let route = server.route();
    let builder = |server: &Server| over(std::slice::from_ref(server), ms(10_000)).outage_tolerance(ms(60_000));
    let lockers = [builder(&route).connect().await.unwrap(), builder(&server).connect().await.unwrap()];
    let (guard, []) = handed_over(&lockers[0], &name).await;
    let lock = terms(lockers[0].get(&name).owned_by(Owner::new()));
    let next = tokio::spawn(async move { lock.lock().await.unwrap() });
    sleep(ms(1)).await;
    nowhere.stop();
    route.lead_to(&nowhere);
    (server, route, lockers, name, guard, next)
}

/// The releaser's lock is still on the server, and stands for that of the next holder.
#[tokio::test(start_paused = true)]
async fn a_grant_ahead_that_was_released_in_an_outage_is_kept_for_its_min_hold() {
    let (server, route, [_locks, other], name, guard, next) = cut_off(|lock| lock.min_hold(ms(5_000))).await;
    let (_, next) = ahead(guard, next).await;
    let _: Result<(), Error> = next.unlock().await;
    sleep(ms(1_000)).await;
    route.lead_to(&server);
    sleep(ms(3_000)).await;
    assert!(other.get(&name).try_lock().await.unwrap().is_none(), "it is kept");
    sleep(ms(2_000)).await;
    other.get(&name).try_lock().await.unwrap().expect("free").unlock().await.unwrap();
    nothing_is_left(&server, &other, &name).await;
}

#[tokio::test(start_paused = true)]
async fn a_grant_ahead_that_was_lost_in_an_outage_keeps_others_out_while_its_guard_lives() {
    for closes in [false, true] {
        let (server, route, [locks, other], name, guard, next) = cut_off(|lock| lock.max_hold(ms(400))).await;
        let (_, next) = ahead(guard, next).await;
        if closes {
            locks.close().await;
        }
        sleep(ms(1_000)).await;
        assert!(next.is_lost());
        route.lead_to(&server);
        sleep(ms(3_000)).await;
        assert!(other.get(&name).try_lock().await.unwrap().is_none(), "closed: {closes}");
        drop(next);
        sleep(ms(if closes { 10_000 } else { 500 })).await;
        other.get(&name).try_lock().await.unwrap().expect("free").unlock().await.unwrap();
        nothing_is_left(&server, &other, &name).await;
    }
}

/// Its lease is not renewed before the hand-over is confirmed.
#[tokio::test(start_paused = true)]
async fn a_grant_ahead_without_an_answer_is_in_jeopardy_after_a_command_timeout() {
    let ((server, locks, _), name) = (near().await, key());
    let (guard, [next]) = handed_over(&locks, &name).await;
    server.stop();
    let (_, next) = ahead(guard, next).await;
    sleep(ms(50)).await;
    assert_eq!((next.state(), locks.stats().renewal_errors), (HoldState::Safe, 0));
    sleep(ms(100)).await;
    assert_eq!((next.state(), locks.stats().renewal_errors), (HoldState::Jeopardy, 1));
    sleep(ms(500)).await;
    assert_eq!((next.state(), locks.stats().renewal_errors), (HoldState::Jeopardy, 1), "counted once");
    server.go_on();
    sleep(ms(500)).await;
    assert_eq!(next.state(), HoldState::Safe);
    next.unlock().await.unwrap();
    nothing_is_left(&server, &locks, &name).await;
}

/// A second copy that comes late does not make it longer.
#[tokio::test(start_paused = true)]
async fn a_fixed_lease_that_goes_ahead_counts_from_its_grant() {
    let ((server, locks, _), name) = (near().await, key());
    let lock = locks.get(&name).fixed_lease(ms(1_000));
    let [first, second, third] = [(); 3].map(|()| {
        let lock = lock.clone().owned_by(Owner::new());
        tokio::spawn(async move { lock.lock().await.unwrap() })
    });
    first.await.unwrap().unlock().await.unwrap();
    let second = second.await.unwrap();
    server.lose_replies(1);
    let (began, (_, third)) = (Instant::now(), ahead(second, third).await);
    sleep(ms(500)).await;
    stands(&server, &name, &third).await;
    third.lost().cancelled().await;
    assert!(began.elapsed() <= ms(1_000), "{:?}", began.elapsed());
    assert_eq!(third.loss(), Some(Loss::Expired));
    drop(third);
    nothing_is_left(&server, &locks, &name).await;
}

/// What stands on the server is the releaser's lease: if the next one asked for another, it waits for the answer. So it
/// does for a token of Redisson's, since the counter shows the last one.
#[tokio::test(start_paused = true)]
async fn a_lock_goes_ahead_only_with_the_same_lease_and_no_token() {
    let ((server, locks, _), name) = (near().await, key());
    let waits_round_trip = async |guard: Guard, next: JoinHandle<Guard>| {
        let began = Instant::now();
        guard.unlock().await.unwrap();
        let next = next.await.unwrap();
        assert_eq!(began.elapsed(), ms(ROUND_TRIP));
        next
    };
    let (guard, []) = handed_over(&locks, &name).await;
    let lock = locks.get(&name).owned_by(Owner::new()).fixed_lease(ms(500));
    let fixed = || {
        let lock = lock.clone().owned_by(Owner::new());
        tokio::spawn(async move { lock.lock().await.unwrap() })
    };
    let (short, like_it) = (fixed(), fixed());
    sleep(ms(1)).await;
    let short = waits_round_trip(guard, short).await;
    let (releasing, like_it) = ahead(short, like_it).await;
    releasing.await.unwrap().unwrap();
    assert!(like_it.remaining() > ms(480), "{:?}", like_it.remaining());
    like_it.unlock().await.unwrap();
    nothing_is_left(&server, &locks, &name).await;

    let (server, name) = (Server::new(), key());
    let tokens = over(std::slice::from_ref(&server), ms(10_000)).fencing(Fencing::Redisson).connect().await.unwrap();
    server.delay(ms(ROUND_TRIP)..=ms(ROUND_TRIP));
    let (guard, [next]) = handed_over(&tokens, &name).await;
    let next = waits_round_trip(guard, next).await;
    assert_eq!(next.fence().get(), 3);
    next.unlock().await.unwrap();
    nothing_is_left(&server, &tokens, &name).await;
}

/// Whoever waits behind a grant that is not confirmed learns of an outage as soon as anybody else.
#[tokio::test(start_paused = true)]
async fn callers_behind_a_grant_ahead_are_told_of_an_outage() {
    let (server, name, elsewhere) = (Server::new(), key(), key());
    let builder = over(std::slice::from_ref(&server), ms(10_000)).outage_tolerance(ms(500));
    let locks = builder.connect().await.unwrap();
    server.delay(ms(ROUND_TRIP)..=ms(ROUND_TRIP));
    let (guard, [next]) = handed_over(&locks, &name).await;
    let lock = locks.get(&name).owned_by(Owner::new());
    let behind = tokio::spawn(async move { lock.lock().await.map(drop) });
    sleep(ms(1)).await;
    server.stop();
    let (_, next) = ahead(guard, next).await;
    assert!(matches!(locks.get(&elsewhere).lock().await, Err(Error::Unavailable { .. })));
    let told = timeout(ms(100), behind).await.expect("both at once").unwrap();
    assert!(matches!(told, Err(Error::Unavailable { .. })), "{told:?}");
    server.go_on();
    next.unlock().await.unwrap();
    nothing_is_left(&server, &locks, &name).await;
}

#[tokio::test(start_paused = true)]
async fn the_releaser_is_told_after_a_command_timeout_that_there_is_no_answer() {
    for answers in [false, true] {
        let ((server, locks, _), name) = (near().await, key());
        let (guard, [next]) = handed_over(&locks, &name).await;
        let began = Instant::now();
        if answers {
            // Each answer is lost, and the connection with it.
            server.lose_replies(1_000);
        } else {
            server.stop();
        }
        let (releasing, next) = ahead(guard, next).await;
        assert!(matches!(releasing.await.unwrap(), Err(Error::Unavailable { .. })));
        assert_eq!(began.elapsed(), ms(100));
        server.lose_replies(0);
        server.go_on();
        next.unlock().await.unwrap();
        nothing_is_left(&server, &locks, &name).await;
    }
}

/// Each hold of a row is valid from the send of its hand-over, however soon it is released.
#[tokio::test(start_paused = true)]
async fn holders_that_release_at_once_use_up_no_validity_of_those_behind_them() {
    let ((server, locks, _), name) = (near().await, key());
    let lock = locks.get(&name).fixed_lease(ms(100));
    let worker = |_| {
        let lock = lock.clone().owned_by(Owner::new());
        tokio::spawn(async move {
            let mut least = ms(100);
            for _ in 0..4 {
                let guard = lock.lock().await.unwrap();
                least = least.min(guard.remaining());
                guard.unlock().await.unwrap();
            }
            least
        })
    };
    for worker in (0..64).map(worker).collect::<Vec<_>>() {
        let least = worker.await.unwrap();
        // The drift is 3 ms, and a hand-over after one ahead is answered after two round trips.
        assert!(least >= ms(100 - 3 - 3 * ROUND_TRIP), "{least:?}");
    }
    nothing_is_left(&server, &locks, &name).await;
}

/// Such a hold would soon be lost if the answer took its time.
#[tokio::test(start_paused = true)]
async fn a_lock_does_not_go_ahead_with_less_than_half_of_its_lease() {
    let ((server, locks, _), name) = (near().await, key());
    let lock = locks.get(&name).fixed_lease(ms(100));
    let waits = |keeps: u64| {
        let lock = lock.clone().owned_by(Owner::new());
        tokio::spawn(async move {
            let guard = lock.lock().await.unwrap();
            let since = Instant::now();
            sleep(ms(keeps)).await;
            let released = Instant::now();
            guard.unlock().await.unwrap();
            (since, released)
        })
    };
    let first = waits(1);
    sleep(ms(0)).await;
    // Nine releases later it is known that nobody waits elsewhere, and a row may last 50 ms.
    let line = [0, 0, 0, 0, 0, 0, 0, 0, 0, 48, 0].map(waits);
    first.await.unwrap();
    let mut last = Vec::new();
    for waiting in line {
        last.push(waiting.await.unwrap());
    }
    let [.., (_, released), (since, _)] = last[..] else { panic!("there are eleven") };
    assert_eq!(since - released, ms(ROUND_TRIP), "it waited for the answer");
    nothing_is_left(&server, &locks, &name).await;
}

/// The first copy was executed. The second one comes after somebody deleted the lock of the next holder.
#[tokio::test(start_paused = true)]
async fn a_releaser_is_not_blamed_for_what_happened_to_the_next_holder() {
    let ((server, locks, _), name) = (near().await, key());
    let (guard, [next]) = handed_over(&locks, &name).await;
    // The answer is another command's, so the connection is given up at once.
    server.duplicate_reply();
    let (releasing, next) = ahead(guard, next).await;
    while !server.holder(&name).is_some_and(|holder| holder.contains(&next.owner().to_string())) {
        sleep(ms(1)).await;
    }
    server.delete(&name);
    releasing.await.unwrap().unwrap();
    next.lost().cancelled().await;
    assert!(matches!(next.unlock().await, Err(Error::Lost { loss: Loss::NotOwner, .. })));
    nothing_is_left(&server, &locks, &name).await;
}
