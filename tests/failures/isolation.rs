//! A fault of one server, one batch or one key delays no other lock.

use std::time::Instant;

use crate::common::machine::{starved, within};
use crate::common::proxy::{Mode, Proxy};
use crate::common::{Server, builder, eventually, key, locker_with, ms};
use futures_util::future::join_all;
use lockhound::{Error, Guard, HoldState, Locker, Loss};

/// Takes locks over the time of a tick, so that their renewals are spread over it too.
async fn hold(locks: &Locker, many: u32) -> Vec<Guard> {
    let mut guards = Vec::new();
    for _ in 0..many {
        guards.push(locks.get(key()).lock().await.unwrap());
        tokio::time::sleep(ms(500) / many).await;
    }
    guards
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_server_changes_nothing_for_the_locks_of_another() {
    let (stopped, other) = (Server::start(), Server::start());
    let lost = locker_with(&stopped, ms(1_500)).await;
    let safe = builder(&other.url(), ms(1_500))
        .command_timeout(ms(450))
        .connect()
        .await
        .unwrap();
    let (lost_guards, safe_guards) = (hold(&lost, 200).await, hold(&safe, 200).await);
    stopped.stop();
    let (start, before) = (Instant::now(), safe.stats());
    while start.elapsed() < ms(3_000) {
        assert!(
            safe_guards
                .iter()
                .all(|guard| guard.state() == HoldState::Safe)
        );
        let lock = safe.get(key());
        let entered = Instant::now();
        lock.lock().await.unwrap().unlock().await.unwrap();
        assert!(
            within(entered.elapsed(), ms(200)),
            "{:?}",
            entered.elapsed()
        );
        tokio::time::sleep(ms(10)).await;
    }
    assert!(
        lost_guards
            .iter()
            .all(|guard| guard.state() == HoldState::Lost(Loss::RenewalFailed))
    );
    stopped.go_on();
    let after = safe.stats();
    let renewals = after.renewals - before.renewals;
    assert!(
        (1_000..=1_400).contains(&renewals),
        "{renewals} renewals in six ticks of 200 locks"
    );
    assert_eq!((after.renewal_errors, after.losses.total()), (0, 0));
    assert!(
        within(after.renewal_lateness.p99, ms(50)),
        "{:?}",
        after.renewal_lateness
    );
}

/// No answer comes for longer than a batch may take: later batches begin when they are due, and do
/// not fail.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_times_out_delays_no_other() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    // A tick every 500 ms, of which each takes 300 at the most.
    let locks = builder(&proxy.url(), ms(1_500))
        .command_timeout(ms(300))
        .connect()
        .await
        .unwrap();
    let guards = hold(&locks, 100).await;
    let begun = || locks.stats().renewal_lateness.count;
    let all_safe = || guards.iter().all(|guard| guard.state() == HoldState::Safe);
    for _ in 0..3 {
        proxy.set(Mode::BlackHole);
        let before = begun();
        tokio::time::sleep(ms(400)).await;
        let renewals = begun() - before;
        assert!(
            renewals >= 60,
            "four fifths of the locks were due, and only {renewals} were begun"
        );
        let failed = || {
            guards
                .iter()
                .filter(|guard| guard.state() == HoldState::Jeopardy)
                .count()
        };
        eventually(ms(20), "the first batches have timed out", || failed() > 0).await;
        assert!(
            failed() < 60 || starved(),
            "{}: only the first batches have timed out",
            failed()
        );
        proxy.set(Mode::Pass);
        eventually(ms(600), "all are safe again", all_safe).await;
    }
    let stats = locks.stats();
    assert!(
        within(stats.renewal_lateness.p99, ms(50)),
        "{:?}",
        stats.renewal_lateness
    );
    assert_eq!(stats.losses.total(), 0);
}

/// One of a hundred keys that are renewed together has another type.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_another_type_in_a_batch_is_its_loss_alone() {
    let server = Server::start();
    let locks = locker_with(&server, ms(1_500)).await;
    let taking = (0..100).map(|_| {
        let lock = locks.get(key());
        tokio::spawn(async move { lock.lock().await.unwrap() })
    });
    let taking: Vec<_> = taking.collect();
    let mut guards: Vec<Guard> = join_all(taking)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let odd = guards.swap_remove(50);
    server.command::<()>(&["SET", odd.key().as_str(), "something"]);
    server.command::<()>(&["CONFIG", "RESETSTAT"]);
    odd.lost().cancelled().await;
    assert_eq!(odd.state(), HoldState::Lost(Loss::NotOwner));
    eventually(ms(400), "the others are renewed", || {
        locks.stats().renewals >= 99
    })
    .await;
    let scripts = server.calls("evalsha");
    assert!(scripts <= 20, "{scripts} scripts: they travelled together");
    tokio::time::sleep(ms(1_000)).await;
    let stats = locks.stats();
    assert!(guards.iter().all(|guard| guard.state() == HoldState::Safe));
    assert_eq!(
        (
            stats.losses.not_owner,
            stats.losses.total(),
            stats.renewal_errors
        ),
        (1, 1, 0),
        "{stats:?}"
    );
    assert!(matches!(
        odd.unlock().await,
        Err(Error::Lost {
            loss: Loss::NotOwner,
            ..
        })
    ));
}
