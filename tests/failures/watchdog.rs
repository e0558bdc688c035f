//! The watchdog: renewals, and losses that are reported in time.

use std::time::{Duration, Instant};

use crate::common::machine::{in_time, within};
use crate::common::proxy::{Mode, Proxy};
use crate::common::{Server, builder, eventually, key, locker_with, ms, they_wait};
use lockhound::{Error, Guard, HoldState, Lock, Locker, Loss, Owner};

#[tokio::test]
async fn a_lock_is_held_for_many_leases_and_renewed_at_thirds() {
    let (server, key) = (Server::start(), key());
    let guard = locker_with(&server, ms(900))
        .await
        .get(&key)
        .lock()
        .await
        .unwrap();
    server.command::<()>(&["CONFIG", "RESETSTAT"]);
    let start = Instant::now();
    let mut least = i64::MAX;
    while start.elapsed() < ms(4_500) {
        least = least.min(server.pttl(&key));
        tokio::time::sleep(ms(20)).await;
    }
    guard.check().unwrap();
    assert_eq!(guard.state(), HoldState::Safe);
    // A third is 300 ms. On a busy machine a renewal is late, but by less than the time until the
    // next one.
    assert!(least > 300, "renewed at a third: {least} ms were left");
    let renewals = server.calls("evalsha");
    assert!(
        (8..=18).contains(&renewals),
        "{renewals} renewals in 15 thirds"
    );
    assert_eq!(server.calls("expire") + server.calls("hset"), 0);
}

#[tokio::test]
async fn a_blocked_runtime_of_the_user_loses_no_lock() {
    let (server, key) = (Server::start(), key());
    let guard = locker_with(&server, ms(600))
        .await
        .get(&key)
        .lock()
        .await
        .unwrap();
    // This runtime has one thread, which is blocked for three leases.
    std::thread::sleep(ms(1_800));
    guard.check().unwrap();
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn remaining_and_state_follow_the_renewals() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url(), ms(3_000)).connect().await.unwrap();
    let guard = locks.get(key()).lock().await.unwrap();
    assert!(
        guard.remaining() <= ms(2_968) && guard.remaining() > ms(2_700),
        "{:?}",
        guard.remaining()
    );
    let seen = Instant::now();
    proxy.set(Mode::BlackHole);
    eventually(ms(2_000), "jeopardy after one failed tick", || {
        guard.state() == HoldState::Jeopardy
    })
    .await;
    assert!(seen.elapsed() > ms(1_000), "{:?}", seen.elapsed());
    guard.check().unwrap();
    proxy.set(Mode::Pass);
    eventually(ms(2_000), "safe again", || guard.state() == HoldState::Safe).await;
    assert!(guard.remaining() > ms(2_000));
    guard.unlock().await.unwrap();
}

/// 100 losses by silence: each token fires before another owner could have the lock.
#[tokio::test]
async fn losses_by_silence_are_reported_before_the_lease_is_over() {
    let server = Server::start();
    for round in 0..4 {
        let locks = locker_with(&server, ms(1_500)).await;
        let mut holds = Vec::new();
        for _ in 0..25 {
            let key = key();
            let sent = Instant::now();
            holds.push((sent, locks.get(&key).lock().await.unwrap(), key));
        }
        server.stop();
        let stopped = Instant::now();
        let mut watchers = Vec::new();
        for (sent, guard, key) in holds {
            watchers.push(tokio::spawn(async move {
                guard.lost().cancelled().await;
                (sent, Instant::now(), guard, key)
            }));
        }
        let mut lost = Vec::new();
        for watcher in watchers {
            lost.push(watcher.await.unwrap());
        }
        server.go_on();
        for (sent, fired, guard, key) in lost {
            let after = fired.duration_since(sent);
            assert!(
                in_time(after, ms(1_500)),
                "round {round}: the token fired {after:?} after the send"
            );
            // Two ticks of 150 ms failed, the second of which began at two thirds.
            assert!(
                after > ms(1_100),
                "round {round}: only {after:?} after the send"
            );
            assert_eq!(guard.state(), HoldState::Lost(Loss::RenewalFailed));
            assert!(guard.is_lost() && guard.remaining().is_zero());
            assert!(matches!(
                guard.unlock().await,
                Err(Error::Lost {
                    loss: Loss::RenewalFailed,
                    ..
                })
            ));
            eventually(ms(1_000), "the lost lock is released", || {
                !server.exists(&key)
            })
            .await;
        }
        assert!(within(stopped.elapsed(), ms(4_000)));
        locks.close().await;
    }
}

/// 100 losses by deletion, half of them with a new owner: the next renewal notices each, and the
/// stale unlock does not affect the new owner.
#[tokio::test]
async fn the_next_renewal_notices_that_a_lock_was_deleted_or_taken() {
    let server = Server::start();
    let locks = locker_with(&server, ms(1_500)).await;
    let mut holds = Vec::new();
    for _ in 0..100 {
        let key = key();
        holds.push((locks.get(&key).lock().await.unwrap(), key));
    }
    let stolen = Instant::now();
    for (i, (_, key)) in holds.iter().enumerate() {
        server.command::<bool>(&["DEL", key]);
        if i % 2 == 0 {
            server.command::<u64>(&["HSET", key, "thief:1", "1"]);
        }
    }
    for (i, (guard, key)) in holds.into_iter().enumerate() {
        guard.lost().cancelled().await;
        // A third of the lease, and the time of a round trip on a busy machine.
        assert!(
            within(stolen.elapsed(), ms(500) + ms(400)),
            "{:?}",
            stolen.elapsed()
        );
        assert!(matches!(
            guard.check(),
            Err(Error::Lost {
                loss: Loss::NotOwner,
                ..
            })
        ));
        assert!(matches!(
            guard.unlock().await,
            Err(Error::Lost {
                loss: Loss::NotOwner,
                ..
            })
        ));
        if i % 2 == 0 {
            assert_eq!(server.fields(&key), [("thief:1".to_owned(), 1)]);
        }
    }
}

#[tokio::test]
async fn a_key_of_another_type_is_a_loss_of_this_key_alone() {
    let server = Server::start();
    let locks = locker_with(&server, ms(900)).await;
    let (odd, fine) = (key(), key());
    let odd_guard = locks.get(&odd).lock().await.unwrap();
    let fine_guard = locks.get(&fine).lock().await.unwrap();
    server.command::<()>(&["SET", &odd, "something"]);
    odd_guard.lost().cancelled().await;
    assert_eq!(odd_guard.state(), HoldState::Lost(Loss::NotOwner));
    assert!(matches!(odd_guard.unlock().await, Err(Error::Lost { .. })));
    tokio::time::sleep(ms(1_000)).await;
    fine_guard.check().unwrap();
    assert_eq!(server.command::<String>(&["GET", &odd]), "something");
    let error = locks.get(&odd).lock().await.expect_err("another type");
    assert!(
        matches!(
            error,
            Error::Server {
                kind: lockhound::ServerErrorKind::WrongType,
                ..
            }
        ),
        "{error}"
    );
}

#[tokio::test]
async fn a_message_for_a_lock_held_here_makes_it_check_at_once() {
    let (server, key) = (Server::start(), key());
    let here = builder(&server.url(), ms(30_000))
        .command_timeout(ms(100))
        .connect()
        .await
        .unwrap();
    let elsewhere = builder(&server.url(), ms(30_000)).connect().await.unwrap();
    let foreign = elsewhere.get(&key).lock().await.unwrap();
    // Two wait here for a foreign holder. When the first has the lock, the second still waits, and
    // so listens.
    let first = tokio::spawn(enter(here.get(&key).owned_by(Owner::new())));
    they_wait(&here, 1).await;
    let second = tokio::spawn(enter(here.get(&key).owned_by(Owner::new())));
    they_wait(&here, 2).await;
    foreign.unlock().await.unwrap();
    let guard = first.await.unwrap();
    tokio::time::sleep(ms(300)).await;
    let forced = Instant::now();
    assert!(elsewhere.get(&key).force_unlock().await.unwrap());
    guard.lost().cancelled().await;
    assert!(
        within(forced.elapsed(), ms(2_000)),
        "the next renewal would be after 10 s: {:?}",
        forced.elapsed()
    );
    assert_eq!(guard.state(), HoldState::Lost(Loss::NotOwner));
    second.await.unwrap().unlock().await.unwrap();
}

async fn enter(lock: Lock) -> Guard {
    lock.lock().await.unwrap()
}

#[tokio::test]
async fn a_fixed_lease_is_not_renewed_and_max_hold_ends_a_hold() {
    let server = Server::start();
    let locks = locker_with(&server, ms(900)).await;
    let (fixed_key, max_key) = (key(), key());
    let start = Instant::now();
    let fixed = locks
        .get(&fixed_key)
        .fixed_lease(ms(700))
        .lock()
        .await
        .unwrap();
    let max = locks
        .get(&max_key)
        .max_hold(ms(1_600))
        .lock()
        .await
        .unwrap();
    fixed.lost().cancelled().await;
    let after = start.elapsed();
    assert!(in_time(after, ms(700)) && after > ms(600), "{after:?}");
    assert_eq!(fixed.state(), HoldState::Lost(Loss::Expired));
    assert!(max.remaining() < ms(900));
    max.lost().cancelled().await;
    let after = start.elapsed();
    assert!(in_time(after, ms(1_700)) && after > ms(1_500), "{after:?}");
    assert_eq!(max.state(), HoldState::Lost(Loss::MaxHold));
    assert!(
        server.exists(&max_key),
        "it is not released before its guard is gone"
    );
    assert!(matches!(
        max.unlock().await,
        Err(Error::Lost {
            loss: Loss::MaxHold,
            ..
        })
    ));
    eventually(ms(500), "the lost lock is released", || {
        !server.exists(&max_key)
    })
    .await;
}

#[tokio::test]
async fn a_lost_lock_keeps_its_owner_out_until_the_guard_is_gone() {
    let (server, key) = (Server::start(), key());
    let lock = locker_with(&server, ms(900)).await.get(&key);
    let guard = lock.lock().await.unwrap();
    server.command::<bool>(&["DEL", &key]);
    guard.lost().cancelled().await;
    assert!(matches!(
        lock.lock().await,
        Err(Error::Lost {
            loss: Loss::NotOwner,
            ..
        })
    ));
    assert!(matches!(
        lock.try_lock().await,
        Err(Error::Lost {
            loss: Loss::NotOwner,
            ..
        })
    ));
    let other = lock.clone().owned_by(Owner::new()).lock().await.unwrap();
    drop(guard);
    assert!(
        lock.try_lock().await.unwrap().is_none(),
        "another owner has it"
    );
    other.check().unwrap();
    other.unlock().await.unwrap();
    lock.lock().await.unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn a_killed_connection_or_a_flushed_script_costs_no_tick() {
    let server = Server::start();
    let locks = locker_with(&server, ms(1_500)).await;
    let guards = hold(&locks, 10).await;
    let start = Instant::now();
    while start.elapsed() < ms(3_000) {
        server.command::<()>(&["SCRIPT", "FLUSH"]);
        server.cut_connections();
        for _ in 0..10 {
            tokio::time::sleep(ms(30)).await;
            assert!(guards.iter().all(|guard| guard.state() == HoldState::Safe));
        }
    }
}

#[tokio::test]
async fn after_a_reconnect_locks_that_are_gone_are_lost_at_once() {
    let server = Server::start();
    let locks = locker_with(&server, ms(30_000)).await;
    let guards = hold(&locks, 10).await;
    server.kill();
    server.restart();
    let start = Instant::now();
    for guard in &guards {
        guard.lost().cancelled().await;
        assert_eq!(guard.state(), HoldState::Lost(Loss::NotOwner));
    }
    assert!(
        within(start.elapsed(), ms(5_000)),
        "the next renewal would have been after 10 s: {:?}",
        start.elapsed()
    );
}

async fn hold(locks: &Locker, many: usize) -> Vec<Guard> {
    let mut guards = Vec::new();
    for _ in 0..many {
        guards.push(locks.get(key()).lock().await.unwrap());
    }
    guards
}

/// Holds a thousand locks with a lease of two seconds for twelve seconds: none of them expires.
#[tokio::test]
async fn a_thousand_locks_do_not_expire() {
    let server = Server::start();
    let locks = locker_with(&server, ms(2_000)).await;
    let guards = hold(&locks, 1_000).await;
    server.command::<()>(&["CONFIG", "RESETSTAT"]);
    tokio::time::sleep(Duration::from_secs(12)).await;
    let lost = guards
        .iter()
        .filter(|guard| guard.state() != HoldState::Safe)
        .count();
    assert_eq!(lost, 0);
    let stats: String = server.command(&["INFO", "stats"]);
    assert!(stats.contains("expired_keys:0\r"), "{stats}");
    let calls = server.calls("evalsha");
    assert!(
        calls < 18 * 1_000 / 5,
        "{calls} calls for about 18 renewals of 1,000: they travel together"
    );
    locks.close().await;
}

/// The watchdog checks a lease of 30 s every 300 ms; a shorter `max_hold` ends in time all the
/// same.
#[tokio::test]
async fn a_short_max_hold_of_a_long_lease_ends_in_time() {
    let server = Server::start();
    let locks = locker_with(&server, ms(30_000)).await;
    for _ in 0..5 {
        let start = Instant::now();
        let guard = locks.get(key()).max_hold(ms(120)).lock().await.unwrap();
        guard.lost().cancelled().await;
        assert!(within(start.elapsed(), ms(180)), "{:?}", start.elapsed());
        assert_eq!(guard.state(), HoldState::Lost(Loss::MaxHold));
    }
}

/// A reconnect renews all holds out of turn. Such a failed renewal is no failed tick: flaps do not
/// add up to a loss.
#[tokio::test]
async fn failed_renewals_out_of_turn_do_not_count_as_failed_ticks() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url(), ms(9_000))
        .command_timeout(ms(200))
        .connect()
        .await
        .unwrap();
    let guard = locks.get(key()).lock().await.unwrap();
    tokio::time::sleep(ms(150)).await;
    // Each time all connections are cut and made again, and no renewal is answered until the flap
    // is over.
    for _ in 0..3 {
        proxy.set(Mode::SwallowReplyTo(b"EVALSHA".to_vec()));
        proxy.cut();
        tokio::time::sleep(ms(800)).await;
        guard.check().unwrap();
        assert_eq!(guard.state(), HoldState::Safe);
    }
    proxy.set(Mode::Pass);
    guard.unlock().await.unwrap();
}
