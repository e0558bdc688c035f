//! What is left of a lock when its holder, its caller or its server is gone, and who is told. Time
//! is paused.

use std::time::Duration;

use lockhound::{Error, Guard, HoldState, Locker, Loss, Owner};
use tokio::time::{Instant, sleep};

use super::common::{key, ms};
use super::{Server, over, servers};

/// Starts a server, and a locker over it.
async fn one() -> (Server, Locker) {
    let server = Server::new();
    let locks = over(std::slice::from_ref(&server), ms(10_000))
        .connect()
        .await
        .unwrap();
    (server, locks)
}

/// Starts three servers, and a locker over them.
async fn three() -> (Vec<Server>, Locker) {
    let servers = servers(3);
    let locks = over(&servers, ms(10_000)).connect().await.unwrap();
    (servers, locks)
}

/// Makes one attempt in a task of its own.
fn attempt(locks: &Locker, name: &str) -> tokio::task::JoinHandle<Result<Option<Guard>, Error>> {
    let lock = locks.get(name).owned_by(Owner::new());
    tokio::spawn(async move { lock.try_lock().await })
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_retaken_on_a_server_that_lost_it() {
    let (servers, locks) = three().await;
    let name = key();
    let guard = locks.get(&name).lock().await.unwrap();
    for server in servers.iter().cycle().take(6) {
        server.delete(&name);
        sleep(ms(4_000)).await;
        assert!(
            server
                .holder(&name)
                .is_some_and(|holder| holder.contains(locks.id()))
        );
        guard.check().unwrap();
    }
    servers[0].delete(&name);
    guard.unlock().await.unwrap();
    sleep(ms(4_000)).await;
    assert!(
        servers.iter().all(|server| server.holder(&name).is_none()),
        "a released lock is not retaken"
    );
}

/// The server loses the first of two grants while their answers are on their way.
#[tokio::test(start_paused = true)]
async fn a_grant_proves_that_the_one_before_it_is_gone() {
    let ((server, locks), name) = (one().await, key());
    server.delay(ms(50)..=ms(50));
    let first = attempt(&locks, &name);
    sleep(ms(1)).await;
    server.delete(&name);
    let second = attempt(&locks, &name);
    let first = first.await.unwrap().unwrap().expect("it was free");
    let second = second.await.unwrap().unwrap().expect("it was free again");
    assert_eq!(first.loss(), Some(Loss::NotOwner));
    second.check().unwrap();
}

/// The servers grant the first attempt, and the second one after the lock was deleted. The last
/// answer to the first attempt arrives last.
#[tokio::test(start_paused = true)]
async fn a_grant_that_was_overtaken_by_a_later_one_does_not_count() {
    let ((servers, locks), name) = (three().await, key());
    let middle = over(&servers[1..2], ms(10_000)).connect().await.unwrap();
    let other = middle.get(&name).lock().await.unwrap();
    for (server, delay) in servers.iter().zip([5, 5, 30]) {
        server.delay(ms(delay)..=ms(delay));
    }
    let first = attempt(&locks, &name);
    sleep(ms(1)).await;
    servers[0].delete(&name);
    servers[1].delete(&name);
    let second = attempt(&locks, &name);
    let second = second.await.unwrap().unwrap().expect("two of three");
    assert!(!first.is_finished());
    assert!(
        first.await.unwrap().unwrap().is_none(),
        "its servers are no majority any more"
    );
    second.check().unwrap();
    drop(other);
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_answer_was_lost_is_confirmed_by_the_next_one() {
    let (server, name) = (Server::new(), key());
    let address = server.route();
    let locks = over(std::slice::from_ref(&address), ms(10_000))
        .connect()
        .await
        .unwrap();
    let guard = locks.get(&name).lock().await.unwrap();
    server.delay(ms(50)..=ms(50));
    let unlocking = tokio::spawn(guard.unlock());
    sleep(ms(10)).await;
    // The address is reconnected: the answer is lost.
    address.redirect_to(&server);
    server.delay(Duration::ZERO..=Duration::ZERO);
    assert_eq!(server.holder(&name), None);
    unlocking.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_release_of_a_deleted_lock_is_an_error() {
    let ((server, locks), name) = (one().await, key());
    let guard = locks.get(&name).lock().await.unwrap();
    server.delete(&name);
    let unlocked = guard.unlock().await;
    assert!(
        matches!(
            unlocked,
            Err(Error::Lost {
                loss: Loss::NotOwner,
                ..
            })
        ),
        "{unlocked:?}"
    );
}

/// Of three locks in one guard, two are lost, one after the other.
#[tokio::test(start_paused = true)]
async fn an_error_names_the_lock_that_was_lost_first() {
    let (server, locks) = one().await;
    let names @ [_, first, next] = &[key(), key(), key()];
    let lost = |told: Result<(), Error>| match told {
        Err(Error::Lost { key, loss, .. }) => (key.to_string(), loss),
        other => panic!("{other:?}"),
    };
    let guard = locks.multi(names).lock().await.unwrap();
    server.delete(first);
    guard.lost().cancelled().await;
    assert!(locks.get(next).force_unlock().await.unwrap());
    assert_eq!(lost(guard.check()), (first.clone(), Loss::NotOwner));
    let again = locks.get(next).lock().await.map(drop);
    assert_eq!(
        lost(again),
        (next.clone(), Loss::ForceUnlocked),
        "a guard of it lives"
    );
    assert_eq!(
        lost(locks.get(next).try_lock().await.map(drop)),
        (next.clone(), Loss::ForceUnlocked)
    );
    assert_eq!(lost(guard.unlock().await), (first.clone(), Loss::NotOwner));

    let all = locks.multi(names);
    let run = all.run(async |section| {
        server.delete(next);
        section.lost().cancelled().await;
        sleep(ms(1_000)).await;
    });
    assert_eq!(lost(run.await), (next.clone(), Loss::NotOwner));
}

#[tokio::test(start_paused = true)]
async fn an_unconfirmed_release_names_the_reason_of_each_server() {
    let (server, names) = (Server::new(), [key(), key()]);
    let address = server.route();
    let locks = over(std::slice::from_ref(&address), ms(10_000))
        .connect()
        .await
        .unwrap();
    let guards = [
        locks.get(&names[0]).lock().await.unwrap(),
        locks.get(&names[1]).lock().await.unwrap(),
    ];
    server.stop();
    let (mut reasons, began) = (Vec::new(), Instant::now());
    for guard in guards {
        let unlocking = tokio::spawn(guard.unlock());
        sleep(ms(10)).await;
        if reasons.is_empty() {
            address.redirect_to(&server);
        }
        let Err(Error::Unavailable { nodes, .. }) = unlocking.await.unwrap() else {
            panic!("nobody answers")
        };
        assert_eq!(nodes.len(), 1);
        reasons.push(nodes[0].reason().to_owned());
    }
    assert!(began.elapsed() < ms(250), "{:?}", began.elapsed());
    assert_eq!(
        reasons,
        ["its connection was given up", "timed out after 100ms"]
    );
    server.resume();
    sleep(ms(1_000)).await;
    assert!(names.iter().all(|name| server.holder(name).is_none()));
    assert_eq!(locks.stats().pending, 0);
}

/// The first pause is 20 ms, however many failed; then one release asks, and its answer has all
/// others sent.
#[tokio::test(start_paused = true)]
async fn releases_that_fail_together_are_confirmed_together() {
    let server = Server::new();
    let address = server.route();
    let locks = over(std::slice::from_ref(&address), ms(10_000))
        .connect()
        .await
        .unwrap();
    let names: Vec<String> = (0..50).map(|_| key()).collect();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(locks.get(name).lock().await.unwrap());
    }
    server.stop();
    let began = Instant::now();
    let unlocking: Vec<_> = guards
        .into_iter()
        .map(|guard| tokio::spawn(guard.unlock()))
        .collect();
    // Both sendings are lost with their connections.
    for _ in 0..2 {
        sleep(ms(5)).await;
        address.redirect_to(&server);
    }
    server.resume();
    for unlocked in unlocking {
        unlocked.await.unwrap().unwrap();
    }
    assert!(
        began.elapsed() >= ms(30) && began.elapsed() < ms(40),
        "{:?}",
        began.elapsed()
    );
    assert!(names.iter().all(|name| server.holder(name).is_none()));
    assert_eq!(
        (locks.stats().pending, locks.stats().undone_acquires),
        (0, 0)
    );
}

/// A renewal that was under way may have restarted the lease.
#[tokio::test(start_paused = true)]
async fn a_lost_lock_is_undone_for_two_leases() {
    let ((server, locks), name) = (one().await, key());
    let guard = locks.get(&name).lock().await.unwrap();
    server.stop();
    guard.lost().cancelled().await;
    drop(guard);
    sleep(ms(19_500)).await;
    assert_eq!(locks.stats().pending_undos, 1);
    sleep(ms(2_000)).await;
    assert_eq!((locks.stats().pending_undos, locks.stats().pending), (0, 0));
}

/// The last of three servers grants the lock after its release, and answers nothing more.
#[tokio::test(start_paused = true)]
async fn a_vote_that_comes_after_the_release_is_undone_for_two_leases() {
    let ((servers, locks), name) = (three().await, key());
    servers[2].delay(ms(50)..=ms(50));
    let guard = locks.get(&name).lock().await.unwrap();
    servers[2].stop();
    guard.unlock().await.unwrap();
    sleep(ms(19_000)).await;
    assert_eq!(locks.stats().pending_undos, 1);
    sleep(ms(3_000)).await;
    assert_eq!(locks.stats().pending_undos, 0);
}

/// A bug: nothing was pending although the key could still be on a server.
#[tokio::test(start_paused = true)]
async fn a_release_is_pending_until_every_server_has_answered() {
    let ((servers, locks), name) = (three().await, key());
    let guard = locks.get(&name).lock().await.unwrap();
    sleep(ms(1)).await;
    assert_eq!(locks.stats().pending, 0);
    servers[2].delay(ms(50)..=ms(50));
    guard.unlock().await.unwrap();
    assert_eq!((locks.stats().pending, locks.stats().pending_undos), (1, 0));
    sleep(ms(60)).await;
    assert_eq!(locks.stats().pending, 0);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_is_gone_when_its_grant_comes_has_it_given_back() {
    let ((server, locks), name) = (one().await, key());
    let lock = locks.get(&name);
    let mut call = Box::pin(lock.lock());
    assert!(futures_util::poll!(&mut call).is_pending());
    sleep(ms(50)).await;
    assert!(server.holder(&name).is_some(), "granted, and not taken");
    drop(call);
    sleep(ms(10)).await;
    assert_eq!((server.holder(&name), locks.stats().holds), (None, 0));
    // A grant that was taken back already is not released a second time.
    let mut call = Box::pin(lock.lock());
    assert!(futures_util::poll!(&mut call).is_pending());
    sleep(ms(15_000)).await;
    assert_eq!(
        (server.holder(&name), locks.stats().holds),
        (None, 0),
        "taken back"
    );
    assert_eq!(locks.stats().undone_acquires, 0, "both were released");
    drop(call);
    lock.lock().await.unwrap().unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_is_gone_releases_no_guard_of_another() {
    let ((server, locks), name) = (one().await, key());
    let other = over(std::slice::from_ref(&server), ms(10_000))
        .connect()
        .await
        .unwrap();
    let (held, lock) = (
        other.get(&name).lock().await.unwrap(),
        locks.get(&name).owned_by(Owner::new()),
    );
    let (mut stays, mut goes) = (Box::pin(lock.lock()), Box::pin(lock.lock()));
    assert!(futures_util::poll!(&mut stays).is_pending());
    assert!(futures_util::poll!(&mut goes).is_pending());
    sleep(ms(10)).await;
    held.unlock().await.unwrap();
    sleep(ms(100)).await;
    drop(goes);
    let guard = stays.await.unwrap();
    for _ in 0..6 {
        sleep(ms(5_000)).await;
        guard.check().unwrap();
        assert_eq!(
            (guard.hold_count(), server.holder(&name).is_some()),
            (1, true)
        );
    }
    guard.unlock().await.unwrap();
    assert_eq!(server.holder(&name), None);
}

#[tokio::test(start_paused = true)]
async fn a_caller_whose_grant_was_taken_back_waits_for_all_its_time() {
    let ((server, locks), name) = (one().await, key());
    let other = over(std::slice::from_ref(&server), ms(10_000))
        .connect()
        .await
        .unwrap();
    let lock = locks.get(&name);
    let mut call = Box::pin(lock.try_lock_for(ms(60_000)));
    assert!(futures_util::poll!(&mut call).is_pending());
    sleep(ms(15_000)).await;
    let guard = other
        .get(&name)
        .try_lock()
        .await
        .unwrap()
        .expect("nobody polled the call");
    assert!(futures_util::poll!(&mut call).is_pending());
    guard.unlock().await.unwrap();
    call.await
        .unwrap()
        .expect("it stood in line again")
        .unlock()
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_gives_up_leaves_the_line() {
    let ((server, locks), name) = (one().await, key());
    let other = over(std::slice::from_ref(&server), ms(10_000))
        .connect()
        .await
        .unwrap();
    let guard = other.get(&name).lock().await.unwrap();
    let lock = locks.get(&name);
    for wait in [None, Some(ms(60_000))] {
        let waiting = async {
            match wait {
                Some(wait) => drop(lock.try_lock_for(wait).await),
                None => drop(lock.lock().await),
            }
        };
        let mut waiting = Box::pin(waiting);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        sleep(ms(10)).await;
        assert_eq!(locks.stats().waiters, 1);
        drop(waiting);
        assert_eq!(locks.stats().waiters, 0, "{wait:?}");
    }
    guard.unlock().await.unwrap();
    sleep(ms(100)).await;
    assert_eq!(server.holder(&name), None);
}

#[tokio::test(start_paused = true)]
async fn waiters_of_one_owner_enter_together() {
    let ((server, locks), name) = (one().await, key());
    let other = over(std::slice::from_ref(&server), ms(10_000))
        .connect()
        .await
        .unwrap();
    let (guard, owner) = (other.get(&name).lock().await.unwrap(), Owner::new());
    let tasks: Vec<_> = (0..3)
        .map(|_| {
            let lock = locks.get(&name).owned_by(owner.clone());
            tokio::spawn(async move { lock.lock().await.unwrap() })
        })
        .collect();
    sleep(ms(10)).await;
    guard.unlock().await.unwrap();
    let guards = futures_util::future::join_all(tasks).await;
    sleep(ms(10)).await;
    let count = other
        .get(&name)
        .holder()
        .await
        .unwrap()
        .expect("held")
        .hold_count();
    assert_eq!((guards[0].as_ref().unwrap().hold_count(), count), (3, 3));
}

#[tokio::test(start_paused = true)]
async fn a_call_late_in_an_outage_has_a_command_timeout_of_its_own() {
    let server = Server::new();
    let builder = over(std::slice::from_ref(&server), ms(10_000)).outage_tolerance(ms(1_000));
    let (locks, name) = (builder.connect().await.unwrap(), key());
    server.stop();
    let call = |after: u64| {
        let lock = locks.get(&name).owned_by(Owner::new());
        tokio::spawn(async move {
            sleep(ms(after)).await;
            let began = Instant::now();
            let answer = lock.lock().await;
            assert!(
                matches!(answer, Err(Error::Unavailable { .. })),
                "{answer:?}"
            );
            began.elapsed()
        })
    };
    let (first, late) = (call(0), call(980));
    let (first, late) = (first.await.unwrap(), late.await.unwrap());
    assert!((ms(1_000)..ms(1_300)).contains(&first), "{first:?}");
    assert!((ms(100)..ms(400)).contains(&late), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn waiting_for_several_locks_restarts_if_the_first_was_lost() {
    let ((server, locks), [one, two]) = (one().await, {
        let (a, b) = (key(), key());
        if a < b { [a, b] } else { [b, a] }
    });
    let other = over(std::slice::from_ref(&server), ms(10_000))
        .connect()
        .await
        .unwrap();
    let guard = other.get(&two).lock().await.unwrap();
    let both = locks.multi([&*one, &*two]);
    let waiting = tokio::spawn(async move { both.try_lock_for(ms(60_000)).await });
    sleep(ms(100)).await;
    assert!(server.holder(&one).is_some());
    server.delete(&one);
    sleep(ms(4_000)).await;
    guard.unlock().await.unwrap();
    let both = waiting
        .await
        .unwrap()
        .unwrap()
        .expect("there was time left");
    assert_eq!(both.state(), HoldState::Safe);
    both.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn waiting_for_several_locks_without_any_answer_is_unavailable() {
    let ((server, locks), names) = (one().await, [key(), key()]);
    server.stop();
    // Another caller is in line: no attempt is made past it.
    let lock = locks.get(&names[0]);
    let _waiting = tokio::spawn(async move { lock.lock().await });
    sleep(ms(1)).await;
    let answer = locks
        .multi([&*names[0], &*names[1]])
        .try_lock_for(ms(50))
        .await;
    assert!(
        matches!(answer, Err(Error::Unavailable { .. })),
        "{answer:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn closing_ends_holds_and_waits_and_waits_for_releases() {
    let ((server, locks), names) = (one().await, [key(), key()]);
    let guards = [
        locks.get(&names[0]).lock().await.unwrap(),
        locks.get(&names[1]).lock().await.unwrap(),
    ];
    let lock = locks.get(&names[0]).owned_by(Owner::new());
    let waiting = tokio::spawn(async move { lock.lock().await.err() });
    sleep(ms(1)).await;
    server.delay(ms(50)..=ms(50));
    let [kept, dropped] = guards;
    drop(dropped);
    let began = Instant::now();
    locks.close().await;
    assert!(began.elapsed() >= ms(50), "{:?}", began.elapsed());
    assert_eq!(
        (server.holder(&names[1]), kept.loss()),
        (None, Some(Loss::Closed))
    );
    assert!(matches!(waiting.await.unwrap(), Some(Error::Closed)));
}
