//! Outages: a renewal tick fails at most once, however fast the refusals come, and a short outage
//! loses no lock.

use std::time::{Duration, Instant};

use crate::common::machine::within;
use crate::common::proxy::{Mode, Proxy};
use crate::common::{Server, builder, eventually, key, locker_with, ms};
use lockhound::{Error, Guard, HoldState, Locker, Loss, Owner};

/// Every renewal of a tick is refused at once. With a lease of 3 s, a tick each second and 300 ms
/// for each tick, the first tick has failed after 1.3 s and the second after 2.3 s.
async fn refused_renewals_fail_a_tick_at_a_time(server: &Server, refuse: impl FnOnce()) {
    let locks = locker_with(server, ms(3_000)).await;
    let start = Instant::now();
    let mut guards = Vec::new();
    for _ in 0..20 {
        guards.push(locks.get(key()).lock().await.unwrap());
    }
    let taken = start.elapsed();
    refuse();
    let state = |wanted| guards.iter().all(|guard: &Guard| guard.state() == wanted);
    eventually(ms(2_000), "one tick has failed", || {
        state(HoldState::Jeopardy)
    })
    .await;
    // A tick begins early by a hundredth of the lease at most.
    assert!(
        (ms(1_250)..ms(1_700) + taken).contains(&start.elapsed()),
        "{:?}",
        start.elapsed()
    );
    eventually(ms(2_000), "two ticks have failed", || {
        state(HoldState::Lost(Loss::RenewalFailed))
    })
    .await;
    assert!(
        (ms(2_250)..ms(2_700) + taken).contains(&start.elapsed()),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_answers_readonly_at_once_fails_each_tick_once() {
    let server = Server::start();
    let refuse = || server.command::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    refused_renewals_fail_a_tick_at_a_time(&server, refuse).await;
    assert!(server.calls("evalsha") > 0, "it did answer");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_answers_loading_at_once_fails_each_tick_once() {
    let server = std::sync::Arc::new(Server::start_with(&[
        "--loading-process-events-interval-bytes",
        "1024",
    ]));
    // A millisecond for each key: loading lasts longer than the second tick.
    server.command::<()>(&["DEBUG", "POPULATE", "5000"]);
    server.command::<()>(&["CONFIG", "SET", "key-load-delay", "1000"]);
    let loading = std::sync::Arc::clone(&server);
    let refuse = move || {
        std::thread::spawn({
            let server = std::sync::Arc::clone(&loading);
            // The server is killed before the command ends.
            move || drop(server.try_command::<()>(&["DEBUG", "RELOAD"]))
        });
        while loading.try_command::<u64>(&["DBSIZE"]).is_ok() {
            std::thread::sleep(ms(5));
        }
    };
    refused_renewals_fail_a_tick_at_a_time(&server, refuse).await;
    let error = server
        .try_command::<u64>(&["DBSIZE"])
        .expect_err("it refused to the end")
        .to_string();
    assert!(error.to_uppercase().contains("LOADING"), "{error}");
    server.kill();
}

/// With the defaults, a lease of 30 s survives an outage of 6 s. Outside of the soak the test uses
/// shorter times.
const LEASE: Duration = Duration::from_secs(if cfg!(feature = "soak") { 30 } else { 4 });

/// Takes locks at every moment of a tick, and asserts that an outage of a fifth of the lease loses
/// none of them.
async fn no_lock_is_lost(locks: &Locker, fail: impl FnOnce(), recover: impl FnOnce()) {
    let mut guards = Vec::new();
    for _ in 0..40 {
        guards.push(locks.get(key()).lock().await.unwrap());
        tokio::time::sleep(LEASE / 3 / 40).await;
    }
    fail();
    tokio::time::sleep(LEASE / 5).await;
    let shaken = guards
        .iter()
        .filter(|guard| guard.state() == HoldState::Jeopardy)
        .count();
    assert!(shaken > 0, "ticks fail during the outage");
    recover();
    // Whatever the outage caused shows within this time.
    let end = Instant::now() + LEASE * 2 / 3;
    while Instant::now() < end {
        assert!(guards.iter().all(|guard| guard.check().is_ok()));
        tokio::time::sleep(ms(20)).await;
    }
    assert!(guards.iter().all(|guard| guard.state() == HoldState::Safe));
    assert_eq!(locks.stats().losses.total(), 0);
}

#[tokio::test]
async fn a_silence_of_a_fifth_of_the_lease_loses_nothing() {
    let server = Server::start();
    let locks = locker_with(&server, LEASE).await;
    no_lock_is_lost(&locks, || server.stop(), || server.go_on()).await;
}

#[tokio::test]
async fn a_server_out_of_reach_for_a_fifth_of_the_lease_loses_nothing() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url(), LEASE).connect().await.unwrap();
    let refuse = || {
        proxy.set(Mode::Refuse);
        proxy.cut();
    };
    no_lock_is_lost(&locks, refuse, || proxy.set(Mode::Pass)).await;
}

/// Returns how long the outage has lasted according to an error.
fn lasts(error: &Error) -> Duration {
    let Error::Unavailable { waited, .. } = error else {
        panic!("{error}")
    };
    assert!(
        waited.is_zero() || error.to_string().contains(&format!(" for {waited:.1?}: ")),
        "{error}"
    );
    *waited
}

/// A program that retries after each error must not spin during an outage.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_in_a_long_outage_fails_only_after_a_command_timeout() {
    let timeout = ms(800);
    let server = Server::start();
    let locks = builder(&server.url(), ms(3_000))
        .command_timeout(timeout)
        .outage_tolerance(ms(1_000));
    let locks = locks.connect().await.unwrap();
    // The server refuses at once.
    server.command::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    let called = Instant::now();
    assert_eq!(
        lasts(&locks.get(key()).try_lock().await.unwrap_err()),
        Duration::ZERO,
        "the first failure"
    );
    // The outage began when that command was sent.
    let start = Instant::now();
    let first = locks.get(key()).lock().await.unwrap_err();
    assert!(
        called.elapsed() >= ms(1_000) && lasts(&first) >= ms(1_000),
        "{first}"
    );
    for _ in 0..2 {
        // The second call joins the line of the first; its time counts from its own call.
        let lock = locks.get(key());
        let earlier = tokio::spawn({
            let lock = lock.clone();
            async move { lock.lock().await }
        });
        tokio::time::sleep(timeout / 2).await;
        let (called, known) = (Instant::now(), start.elapsed());
        let error = lock.owned_by(Owner::new()).lock().await.unwrap_err();
        assert!(called.elapsed() >= timeout, "{:?}", called.elapsed());
        assert!(lasts(&error) >= known, "{error}: {known:?}");
        earlier.await.unwrap().unwrap_err();
        let (called, known) = (Instant::now(), start.elapsed());
        let error = locks.get(key()).try_lock().await.unwrap_err();
        assert!(within(called.elapsed(), timeout), "one attempt");
        assert!(lasts(&error) >= known, "{error}: {known:?}");
        let error = locks.multi([key(), key()]).lock().await.unwrap_err();
        assert!(
            called.elapsed() >= timeout && lasts(&error) >= known,
            "{error}"
        );
        // A call with a wait time of its own does not wait longer than that.
        let called = Instant::now();
        let error = locks.get(key()).try_lock_for(ms(50)).await.unwrap_err();
        assert!(
            within(called.elapsed(), timeout) && lasts(&error) >= known,
            "{error}"
        );
    }
    server.command::<()>(&["REPLICAOF", "NO", "ONE"]);
    locks
        .get(key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

/// The failures of one line do not trigger attempts in the others.
#[tokio::test(flavor = "multi_thread")]
async fn many_lines_in_a_long_outage_do_not_wake_each_other() {
    let server = Server::start();
    let locks = builder(&server.url(), ms(4_500))
        .command_timeout(ms(1_000))
        .outage_tolerance(ms(1_100))
        .connect()
        .await
        .unwrap();
    server.command::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    locks.get(key()).lock().await.unwrap_err();
    server.command::<()>(&["CONFIG", "RESETSTAT"]);
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            tokio::spawn({
                let lock = locks.get(key());
                async move { lock.lock().await }
            })
        })
        .collect();
    for waiting in waiting {
        waiting.await.unwrap().unwrap_err();
    }
    // About nine rounds and two more for each line. What was not executed is not undone, so undos
    // add nothing.
    let sent = server.calls("evalsha") + server.calls("eval");
    assert!(sent <= 20 * 16, "{sent} scripts");
}

#[tokio::test]
async fn without_outage_tolerance_a_call_fails_with_its_first_round() {
    let server = Server::start();
    let locks = builder(&server.url(), ms(30_000))
        .outage_tolerance(Duration::ZERO)
        .connect()
        .await
        .unwrap();
    server.command::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    for _ in 0..3 {
        let called = Instant::now();
        locks.get(key()).lock().await.unwrap_err();
        assert!(
            within(called.elapsed(), ms(2_900)),
            "less than a command timeout: {:?}",
            called.elapsed()
        );
    }
}
