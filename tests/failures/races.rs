//! Races of renewals, losses and `close` with what a holder does meanwhile. Each runs many thousand
//! times.
//!
//! `tests/unit/interleavings/mod.rs` explores exhaustively what such races do to the state of a
//! hold.

use std::time::{Duration, Instant};

use crate::common::labels::keys_without_labels;
use crate::common::machine::{grace, within};
use crate::common::proxy::{Mode, Proxy};
use crate::common::server::Monitor;
use crate::common::{Server, builder, eventually, key, locker_with, ms};
use futures_util::future::join_all;
use lockhound::{Error, Guard, HoldState, Lock, Locker, Loss, Owner};

/// `./dev soak` runs each race 20 times as often.
const TIMES: usize = if cfg!(feature = "soak") { 20 } else { 1 };

/// Ends holds around the moment at which their first renewal is under way, until `MET` of them have
/// met it. Returns their keys. A busy machine may need several rounds.
async fn end_during_renewals<F: Future<Output = ()> + Send + 'static>(
    locks: &Locker,
    end: impl Fn(Guard) -> F + Copy + Send + 'static,
) -> Vec<String> {
    let (start, mut keys) = (Instant::now(), Vec::new());
    while keys.is_empty() || (met(locks) < MET && start.elapsed() < ms(60_000)) {
        keys.extend(end_around_renewals(locks, end).await);
    }
    keys
}

/// How many renewals must meet an end.
const MET: u64 = 200;

/// Returns how many renewals were sent and had neither success nor error counted, since their hold
/// had ended.
fn met(locks: &Locker) -> u64 {
    let stats = locks.stats();
    stats.renewal_lateness.count - stats.renewals - stats.renewal_errors
}

async fn end_around_renewals<F: Future<Output = ()> + Send + 'static>(
    locks: &Locker,
    end: impl Fn(Guard) -> F + Copy + Send + 'static,
) -> Vec<String> {
    let tasks = (0..1_000).map(|_| {
        let locks = locks.clone();
        tokio::spawn(async move {
            let mut keys = Vec::new();
            for _ in 0..4 * TIMES {
                let lock = locks.get(key());
                let taken = Instant::now();
                let guard = lock.lock().await.unwrap();
                // The renewal is sent after a third of the lease minus a hundredth, and executed 8
                // ms later.
                let moment = taken + ms(965) + Duration::from_micros(fastrand::u64(0..50_000));
                tokio::time::sleep_until(moment.into()).await;
                end(guard).await;
                keys.push(lock.key().to_string());
            }
            keys
        })
    });
    let tasks: Vec<_> = tasks.collect();
    join_all(tasks)
        .await
        .into_iter()
        .flat_map(Result::unwrap)
        .collect()
}

/// Returns what each renewal request contains: the digest of the script as `node::number::numbered`
/// wraps it.
fn renewals() -> Vec<u8> {
    let body = include_str!("../../lua/redisson/renew.lua");
    let script = format!("return cmsgpack.pack(ARGV[#ARGV], pcall(function() {body}\nend))\n");
    redis::Script::new(&script).get_hash().as_bytes().to_vec()
}

/// Delays renewals so that releases overtake them: renewals have a connection of their own.
fn late_renewals() -> Mode {
    Mode::Late(renewals(), ms(8))
}

/// Asserts that these keys are gone and stay gone, and that nothing is renewed.
async fn assert_gone_for_good(server: &Server, locks: &Locker, keys: &[String]) {
    let words = |keys: &[String]| {
        ["EXISTS"]
            .into_iter()
            .map(str::to_owned)
            .chain(keys.to_vec())
            .collect::<Vec<_>>()
    };
    let left = || {
        keys.chunks(1_000)
            .map(|keys| count(server, &words(keys)))
            .sum::<u64>()
    };
    // A key that a late renewal created would stay for a lease of three seconds.
    eventually(ms(2_000), "every key is gone", || left() == 0).await;
    // Renewals that are on their way, delayed, find nothing. What is renewed for good is renewed in
    // each tick, of 1 s.
    eventually(ms(5_000), "a tick without a renewal", || {
        let before = server.calls("evalsha");
        std::thread::sleep(ms(1_200));
        assert_eq!(left(), 0, "more than a tick later");
        server.calls("evalsha") == before
    })
    .await;
    let stats = locks.stats();
    assert_eq!(
        (stats.holds, stats.pending, stats.losses.total()),
        (0, 0, 0),
        "{stats:?}"
    );
    assert!(
        met(locks) >= MET,
        "only {} of {} renewals met an end",
        met(locks),
        stats.renewal_lateness.count
    );
}

fn count(server: &Server, words: &[String]) -> u64 {
    server.command(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_unlock_a_renewal_in_flight_brings_nothing_back() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url(), ms(3_000))
        .command_timeout(ms(950))
        .connect()
        .await
        .unwrap();
    proxy.set(late_renewals());
    let keys = end_during_renewals(&locks, |guard| async move {
        match guard.unlock().await {
            // On a busy machine it may take longer than a command timeout.
            Ok(()) | Err(Error::Unavailable { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    })
    .await;
    assert_gone_for_good(&server, &locks, &keys).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_drop_a_renewal_in_flight_brings_nothing_back() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url(), ms(3_000))
        .command_timeout(ms(950))
        .connect()
        .await
        .unwrap();
    proxy.set(late_renewals());
    let keys = end_during_renewals(&locks, |guard| async move { drop(guard) }).await;
    assert_gone_for_good(&server, &locks, &keys).await;
}

/// A renewal that the server executes after the release must not restart the lease, which is
/// shorter than `min_hold`.
#[tokio::test]
async fn a_late_renewal_does_not_shorten_min_hold() {
    let (server, key) = (Server::start(), key());
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url(), ms(3_000))
        .command_timeout(ms(950))
        .connect()
        .await
        .unwrap();
    // The server has to know the script: the first renewal carries its text and not its digest.
    let guard = locks.get(crate::common::key()).lock().await.unwrap();
    eventually(ms(2_500), "a first renewal", || locks.stats().renewals > 0).await;
    guard.unlock().await.unwrap();
    proxy.set(Mode::Hold(renewals()));
    let guard = locks.get(&key).min_hold(ms(600_000)).lock().await.unwrap();
    eventually(ms(2_500), "a renewal is under way", || proxy.held() > 0).await;
    guard.unlock().await.unwrap();
    let fields = server.fields(&key);
    let before = server.calls("hexists");
    proxy.set(Mode::Pass);
    eventually(ms(5_000), "it was executed", || {
        server.calls("hexists") > before
    })
    .await;
    assert!(server.pttl(&key) > 300_000, "{}", server.pttl(&key));
    assert_eq!(server.fields(&key), fields);
}

/// The old guard reports the loss for as long as it lives, keeps its owner out, and never affects
/// another's hold.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_lost_its_lock_may_relock_once_its_guard_is_gone() {
    let server = Server::start();
    let (here, elsewhere) = (
        locker_with(&server, ms(10_000)).await,
        locker_with(&server, ms(10_000)).await,
    );
    let tasks: Vec<_> = (0..16)
        .map(|task| {
            let (lock, stolen) = (here.get(key()), elsewhere.clone());
            tokio::spawn(async move {
                for round in 0..125 * TIMES {
                    let theft = if (task + round) % 2 == 0 {
                        stolen.get(lock.key().clone())
                    } else {
                        lock.clone()
                    };
                    let loss = if (task + round) % 2 == 0 {
                        Loss::NotOwner
                    } else {
                        Loss::ForceUnlocked
                    };
                    lose_and_lock_again(&lock, &theft.owned_by(Owner::new()), loss).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    eventually(ms(1_000), "nothing is left", || {
        keys_without_labels(&server).len() <= 16
    })
    .await;
    assert_eq!((here.stats().holds, elsewhere.stats().holds), (0, 0));
}

async fn lose_and_lock_again(lock: &Lock, thief: &Lock, loss: Loss) {
    let lost = |error: Error| {
        assert!(
            matches!(error, Error::Lost { loss: found, .. } if found == loss),
            "{error}"
        );
    };
    let old = lock.lock().await.unwrap();
    assert!(thief.force_unlock().await.unwrap());
    let stolen = thief.lock().await.unwrap();
    lost(
        lock.lock()
            .await
            .expect_err("a guard of the lost hold lives"),
    );
    lost(
        lock.try_lock()
            .await
            .expect_err("a guard of the lost hold lives"),
    );
    assert_eq!(old.state(), HoldState::Lost(loss));
    assert!(old.lost().is_cancelled());
    // The release of the last guard is sent in spite of the loss. The next lock waits behind the
    // thief, or comes later.
    let waiting = fastrand::bool();
    let unlocking = async {
        if fastrand::bool() {
            lost(old.unlock().await.expect_err("lost"));
        } else {
            drop(old);
        }
        if waiting {
            Some(lock.lock().await.unwrap())
        } else {
            None
        }
    };
    let stealing = async {
        for _ in 0..fastrand::u8(0..4) {
            tokio::task::yield_now().await;
        }
        stolen.check().unwrap();
        stolen
            .unlock()
            .await
            .expect("the old guard does not affect it");
    };
    let (again, ()) = tokio::join!(unlocking, stealing);
    let again = match again {
        Some(again) => again,
        None => lock.lock().await.unwrap(),
    };
    again.check().unwrap();
    again.unlock().await.unwrap();
}

/// All guards of a nested hold report it at the same moment, whatever the holder does just then.
#[tokio::test(flavor = "multi_thread")]
async fn max_hold_ends_all_guards_of_a_nested_hold_at_once() {
    let server = Server::start();
    let locks = locker_with(&server, ms(3_000)).await;
    let tasks: Vec<_> = (0..250)
        .map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move {
                for _ in 0..12 * TIMES {
                    nest_until_it_is_over(&locks.get(key()).max_hold(ms(100))).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let stats = locks.stats();
    // On a busy machine `max_hold` may be over before the caller has its grant; the caller then
    // gets another one.
    assert!(stats.losses.max_hold >= stats.hold_time.count, "{stats:?}");
    assert!(
        stats.hold_time.count >= 250 * 12 * TIMES as u64,
        "{stats:?}"
    );
    eventually(ms(5_000), "lost holds are released", || {
        locks.stats().pending == 0
    })
    .await;
    assert_eq!(server.command::<Vec<String>>(&["KEYS", "test:*"]).len(), 0);
    assert_eq!(locks.stats().holds, 0);
}

async fn nest_until_it_is_over(lock: &Lock) {
    let mut guards = vec![lock.lock().await.unwrap()];
    let token = guards[0].lost();
    loop {
        match fastrand::u8(0..3) {
            0 if guards.len() > 1 => match guards.swap_remove(0).unlock().await {
                Ok(()) => {}
                Err(Error::Lost {
                    loss: Loss::MaxHold,
                    ..
                }) => break,
                Err(error) => panic!("{error}"),
            },
            1 if guards.len() < 4 => match lock.lock().await {
                Ok(nested) => guards.push(nested),
                Err(Error::Lost {
                    loss: Loss::MaxHold,
                    ..
                }) => break,
                Err(error) => panic!("{error}"),
            },
            _ => tokio::time::sleep(Duration::from_micros(fastrand::u64(0..20_000))).await,
        }
        if token.is_cancelled() {
            break;
        }
    }
    // Another thread may have noticed the loss, and be about to fire.
    tokio::time::timeout(ms(1_000), token.cancelled())
        .await
        .expect("it fires");
    assert!(
        matches!(
            lock.lock().await,
            Err(Error::Lost {
                loss: Loss::MaxHold,
                ..
            })
        ),
        "a guard of the lost hold lives"
    );
    for guard in guards {
        assert_eq!(guard.state(), HoldState::Lost(Loss::MaxHold));
        assert!(matches!(
            guard.unlock().await,
            Err(Error::Lost {
                loss: Loss::MaxHold,
                ..
            })
        ));
    }
}

/// In Redisson the renewals of short holds add up: here it would send about 5,000 in each period.
#[tokio::test]
async fn a_long_hold_after_5_000_short_ones_is_renewed_once_a_period() {
    let (server, key) = (Server::start(), key());
    let locks = builder(&server.url(), ms(900))
        .command_timeout(ms(290))
        .connect()
        .await
        .unwrap();
    let lock = locks.get(&key);
    // On a busy machine a release may be confirmed late; the next acquire waits for it.
    let confirmed = |answer| matches!(answer, Ok(()) | Err(Error::Unavailable { .. }));
    for _ in 0..5_000 * TIMES {
        assert!(confirmed(lock.lock().await.unwrap().unlock().await));
    }
    let guard = lock.lock().await.unwrap();
    let before = locks.stats().renewals;
    let monitor = Monitor::start(&server);
    tokio::time::sleep(ms(3_000)).await;
    let (sent, counted) = (monitor.sent(&key).len(), locks.stats().renewals - before);
    assert!(
        (9..=11).contains(&sent),
        "{sent} renewals were sent in ten periods"
    );
    assert!(
        (9..=11).contains(&counted),
        "{counted} renewals in ten periods"
    );
    guard.check().unwrap();
    assert!(confirmed(guard.unlock().await));
}

/// The server executes the acquires when it is back, for callers that have got an error or have
/// gone. What they take is undone at once, and not only after the lease of ten seconds.
#[tokio::test(flavor = "multi_thread")]
async fn late_grants_of_a_frozen_server_block_others_until_undone() {
    let server = Server::start();
    let lease = ms(10_000);
    let here = builder(&server.url(), lease)
        .command_timeout(ms(400))
        .connect()
        .await
        .unwrap();
    for stopped_for in [100, 500, 900] {
        let elsewhere = builder(&server.url(), lease)
            .command_timeout(ms(400))
            .connect()
            .await
            .unwrap();
        let keys: Vec<String> = (0..50).map(|_| key()).collect();
        server.stop();
        let in_flight: Vec<_> = keys
            .iter()
            .map(|key| {
                let lock = here.get(key);
                let patience = ms(stopped_for);
                // Those that wait the longest get an error after a command timeout, the others are
                // dropped.
                tokio::spawn(
                    async move { drop(tokio::time::timeout(patience, lock.try_lock()).await) },
                )
            })
            .collect();
        for task in in_flight {
            task.await.unwrap();
        }
        server.go_on();
        let back = Instant::now();
        let others = keys.iter().map(|key| {
            let lock = elsewhere.get(key).owned_by(Owner::new());
            async move { lock.lock().await.unwrap().unlock().await.unwrap() }
        });
        join_all(others).await;
        // Time for an undo under way, a second one after a command timeout, and a reconnect.
        assert!(
            within(back.elapsed(), ms(1_500)),
            "stopped for {stopped_for} ms: {:?}",
            back.elapsed()
        );
        tokio::time::sleep(ms(500)).await;
        assert_eq!(
            server.command::<Vec<String>>(&["KEYS", "test:*"]).len(),
            0,
            "no late grant is left"
        );
    }
}

/// Closes with holds that are safe, nested, of a fixed lease, in jeopardy, lost, being released,
/// granted to a caller that does not poll, and waited for.
async fn close_with_holds_in_every_state(back: bool) {
    let server = Server::start();
    let locks = builder(&server.url(), ms(1_500)).connect().await.unwrap();
    let lock = || locks.get(key()).owned_by(Owner::new());
    let (nested, forced, releasing) = (lock(), lock(), lock());
    let mut guards = vec![
        lock().lock().await.unwrap(),
        lock().fixed_lease(ms(2_500)).lock().await.unwrap(),
    ];
    guards.extend([nested.lock().await.unwrap(), nested.lock().await.unwrap()]);
    guards.push(lock().max_hold(ms(100)).lock().await.unwrap());
    guards.push(forced.lock().await.unwrap());
    forced.force_unlock().await.unwrap();
    let in_line = nested.clone().owned_by(Owner::new());
    let in_line = tokio::spawn(async move { in_line.lock().await });
    let released = releasing.lock().await.unwrap();
    server.stop();
    eventually(ms(1_000), "jeopardy", || {
        guards[0].state() == HoldState::Jeopardy
    })
    .await;
    assert_eq!(guards[1].state(), HoldState::Safe);
    assert_eq!(guards[4].state(), HoldState::Lost(Loss::MaxHold));
    assert_eq!(guards[5].state(), HoldState::Lost(Loss::ForceUnlocked));
    let mut unlocking = Box::pin(released.unlock());
    assert!(futures_util::poll!(&mut unlocking).is_pending());
    let (ghost, in_flight) = (lock(), lock());
    let mut idle = Box::pin(ghost.lock());
    assert!(futures_util::poll!(&mut idle).is_pending());
    let in_flight = tokio::spawn(async move { in_flight.lock().await });
    let grace = grace();
    let start = Instant::now();
    let closing = tokio::spawn({
        let locks = locks.clone();
        async move { locks.close().await }
    });
    if back {
        server.go_on();
    }
    for guard in &guards {
        tokio::time::timeout(ms(200) + grace, guard.lost().cancelled())
            .await
            .expect("every token fires");
    }
    let reasons = [
        Loss::Closed,
        Loss::Closed,
        Loss::Closed,
        Loss::Closed,
        Loss::MaxHold,
        Loss::ForceUnlocked,
    ];
    for (guard, reason) in guards.into_iter().zip(reasons) {
        assert!(matches!(guard.unlock().await, Err(Error::Lost { loss, .. }) if loss == reason));
    }
    assert!(matches!(in_line.await.unwrap(), Err(Error::Closed)));
    assert!(matches!(in_flight.await.unwrap(), Err(Error::Closed)));
    closing.await.unwrap();
    // A lease at most, and a moment for the connections.
    assert!(
        within(start.elapsed(), ms(if back { 1_000 } else { 2_000 })),
        "{:?}",
        start.elapsed()
    );
    assert!(matches!(idle.await, Err(Error::Closed)));
    assert_eq!(unlocking.await.is_ok(), back);
    server.go_on();
    if back {
        assert_eq!(
            server.command::<Vec<String>>(&["KEYS", "test:*"]).len(),
            0,
            "everything was given back"
        );
    } else {
        // The longest lease lasts two and a half seconds.
        eventually(ms(2_500), "it expires", || {
            server
                .command::<Vec<String>>(&["KEYS", "test:*"])
                .is_empty()
        })
        .await;
    }
}

#[tokio::test]
async fn close_with_holds_in_every_state_while_the_server_answers() {
    close_with_holds_in_every_state(true).await;
}

#[tokio::test]
async fn close_with_holds_in_every_state_while_the_server_is_silent() {
    close_with_holds_in_every_state(false).await;
}

/// Closes at a random moment of operations of 80 tasks, a hundred times.
#[tokio::test(flavor = "multi_thread")]
async fn close_at_any_moment_leaves_nothing() {
    let server = Server::start();
    for _ in 0..100 * TIMES {
        let locks = builder(&server.url(), ms(3_000)).connect().await.unwrap();
        let keys = [key(), key()];
        let tasks: Vec<_> = (0..80)
            .map(|task| {
                let lock = locks.get(&keys[task % 2]).owned_by(Owner::new());
                tokio::spawn(async move { while lock_and_go(&lock).await {} })
            })
            .collect();
        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..6_000))).await;
        locks.close().await;
        for task in tasks {
            tokio::time::timeout(ms(10_000), task)
                .await
                .expect("everybody returns")
                .unwrap();
        }
        assert!(
            !keys.iter().any(|key| server.exists(key)),
            "every grant is released"
        );
    }
}

/// Locks and releases in one of several ways. Returns false once the locker is closed.
async fn lock_and_go(lock: &Lock) -> bool {
    let guard = match fastrand::u8(0..3) {
        0 => lock.try_lock().await,
        1 => lock.try_lock_for(ms(2)).await,
        _ => lock.lock().await.map(Some),
    };
    match guard {
        Err(Error::Closed) => return false,
        // No answer came within so short a time.
        Err(Error::Unavailable { .. }) | Ok(None) => {}
        Err(error) => panic!("{error}"),
        Ok(Some(guard)) => {
            let nested = if fastrand::bool() {
                lock.lock().await.ok()
            } else {
                None
            };
            if fastrand::bool() {
                assert!(matches!(
                    guard.unlock().await,
                    Ok(())
                        | Err(Error::Lost {
                            loss: Loss::Closed,
                            ..
                        })
                ));
            }
            drop(nested);
        }
    }
    true
}
