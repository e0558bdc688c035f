//! Very many holds: all in jeopardy, safe again and lost at once, and all renewed after a
//! reconnect. Very many callers in one line. The tests run one at a time, since each measures
//! milliseconds.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    clippy::print_stdout,
    reason = "the figures are for the person who runs it"
)]

#[path = "../common/mod.rs"]
mod common;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use common::machine::{starved, within};
use common::{Server, builder, eventually, key, locker_with, ms};
use futures_util::future::join_all;
use lockhound::{Guard, HoldState, Locker, Loss, Owner};
use tokio::sync::Mutex;

static ALONE: Mutex<()> = Mutex::const_new(());

const HOLDS: usize = 10_000;
/// The time within which the tokens of one step have to fire. In an unoptimized build on a busy
/// machine it is as long as a command may take: a third of a tick. `./dev soak` asks for less.
const TOGETHER: Duration = Duration::from_millis(if cfg!(debug_assertions) { 600 } else { 50 });
const LEASE: Duration = Duration::from_secs(if cfg!(feature = "soak") { 30 } else { 6 });

/// Returns a lease so long that all locks are taken well within a tick, however slow the machine
/// is.
async fn lease(server: &Server) -> Duration {
    let locks = locker_with(server, ms(60_000)).await;
    let start = Instant::now();
    drop(hold(&locks, HOLDS / 10).await);
    let all = start.elapsed() * 10;
    locks.close().await;
    LEASE.max(all * 5)
}

async fn hold(locks: &Locker, many: usize) -> Vec<Guard> {
    let start = Instant::now();
    let tasks = (0..many).map(|_| {
        let lock = locks.get(key());
        tokio::spawn(async move { lock.lock().await.unwrap() })
    });
    let tasks: Vec<_> = tasks.collect();
    let guards = join_all(tasks)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    println!("{many} locks were taken in {:?}", start.elapsed());
    guards
}

/// Returns the time of the watchdog's clock since its origin. Ticks are due at multiples of the
/// grid's width.
fn clock() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap(),
        u32::try_from(now.tv_nsec).unwrap(),
    )
}

/// A tick fails for all, the next succeeds for all, and then two failures in a row fire every
/// token. When a lock's tick is due depends on its last renewal, in steps of a hundredth of the
/// lease. The ticks of one step fail together, and their tokens fire together.
#[tokio::test(flavor = "multi_thread")]
async fn ticks_of_very_many_holds_fail_and_succeed_together() {
    let _alone = ALONE.lock().await;
    let server = Server::start();
    let lease = lease(&server).await;
    let (tick, command_timeout, grid) = (lease / 3, lease / 10, lease / 100);
    let locks = locker_with(&server, lease).await;
    let guards = hold(&locks, HOLDS).await;
    let all = |wanted| guards.iter().all(|guard| guard.state() == wanted);

    server.stop();
    eventually(tick * 2, "one tick has failed for all", || {
        all(HoldState::Jeopardy)
    })
    .await;
    assert!(guards.iter().all(|guard| guard.check().is_ok()));
    server.go_on();
    eventually(tick * 2, "the next succeeds for all", || {
        all(HoldState::Safe)
    })
    .await;

    server.stop();
    // A reply that was on its way may still count.
    tokio::time::sleep(ms(100)).await;
    let validity = lease - lease / 100 - ms(2);
    let second_tick = |guard: &Guard| {
        let due = clock() + guard.remaining() - validity + tick * 2;
        due.as_nanos() / grid.as_nanos()
    };
    let lines: Vec<u128> = guards.iter().map(second_tick).collect();
    let tokens: Vec<_> = guards.iter().map(|guard| guard.lost()).collect();
    let fired = join_all(tokens.iter().map(|token| async {
        token.cancelled().await;
        clock()
    }));
    let fired = fired.await;
    server.go_on();
    assert!(all(HoldState::Lost(Loss::RenewalFailed)));
    let mut groups = HashMap::<u128, Vec<Duration>>::new();
    for (&line, at) in lines.iter().zip(fired) {
        let failed =
            Duration::from_nanos(u64::try_from(line * grid.as_nanos()).unwrap()) + command_timeout;
        groups
            .entry(line)
            .or_default()
            .push(at.saturating_sub(failed));
    }
    let spread = |late: &Vec<Duration>| *late.iter().max().unwrap() - *late.iter().min().unwrap();
    let (widest, latest) = (
        groups.values().map(spread).max().unwrap(),
        groups.values().flatten().max().unwrap(),
    );
    let largest = groups.values().map(Vec::len).max().unwrap();
    println!(
        "{HOLDS} tokens in {} steps of at most {largest}: within {widest:?} in a step, at most {latest:?} late",
        groups.len()
    );
    assert!(
        within(widest, TOGETHER),
        "the tokens of one step fire within {widest:?}"
    );
    assert!(
        within(*latest, TOGETHER),
        "a token fires {latest:?} after the end of its tick"
    );
}

/// The next regular renewal would come twenty seconds later.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_reconnect_all_holds_are_renewed_spread_over_a_second() {
    let _alone = ALONE.lock().await;
    let server = Server::start();
    let locks = locker_with(&server, ms(60_000)).await;
    let mut guards = hold(&locks, HOLDS).await;
    let gone = guards.split_off(HOLDS - 50);
    let mut pipeline = redis::pipe();
    gone.iter()
        .for_each(|guard| _ = pipeline.del(guard.key().as_str()));
    pipeline.exec(&mut server.connection().unwrap()).unwrap();
    assert_eq!(locks.stats().renewals, 0);
    server.cut_connections();
    let start = Instant::now();
    // How many were renewed after which time, sampled every few milliseconds.
    let mut seen = vec![(Duration::ZERO, 0)];
    eventually(ms(5_000), "all are renewed", || {
        let renewals = locks.stats().renewals;
        seen.push((start.elapsed(), renewals));
        renewals >= guards.len() as u64
    })
    .await;
    for guard in &gone {
        tokio::time::timeout(ms(5_000), guard.lost().cancelled())
            .await
            .expect("a deleted lock is lost");
        assert_eq!(guard.state(), HoldState::Lost(Loss::NotOwner));
    }
    let first = seen.iter().find(|(_, renewals)| *renewals > 0).unwrap().0;
    let took = start.elapsed() - first;
    assert!(
        took >= ms(700) && within(took, ms(1_500)),
        "from the first to the last in {took:?}"
    );
    // 200 ms should hold a fifth of them. On a busy machine the engine or this thread may pause and
    // catch up.
    let starved = starved();
    for (at, renewals) in &seen {
        let before = seen
            .iter()
            .rev()
            .find(|(earlier, _)| *earlier + ms(200) <= *at)
            .map_or(0, |(_, renewals)| *renewals);
        let together = renewals - before;
        assert!(
            together < HOLDS as u64 / 2 || starved,
            "{together} at a time, after {at:?}"
        );
    }
    tokio::time::sleep(ms(300)).await;
    assert!(
        common::machine::within(start.elapsed(), ms(10_000)),
        "the next tick has not come yet"
    );
    assert_eq!(locks.stats().renewals, guards.len() as u64, "once each");
    assert!(guards.iter().all(|guard| guard.state() == HoldState::Safe));
}

/// 20,000 callers wait in one line and give up within 20 ms, the last one first.
#[tokio::test(flavor = "multi_thread")]
async fn callers_that_give_up_together_cost_no_other_key_its_lock() {
    const CALLERS: u32 = 20_000;
    let _alone = ALONE.lock().await;
    let server = Server::start();
    // The lease bounds the delay. The command timeout leaves time for a server that waits for a
    // CPU.
    let locks = builder(&server.url(), ms(2_000))
        .command_timeout(ms(600))
        .connect()
        .await
        .unwrap();
    let (held, beside) = (
        locks.get(key()).lock().await.unwrap(),
        locks.get(key()).lock().await.unwrap(),
    );
    let lock = locks.get(held.key());
    // All callers have to be in line before the deadline.
    let patience = ms(3_000) + common::machine::grace() * 10;
    let deadline = Instant::now() + patience;
    let callers = tokio::spawn(async move {
        let callers = (0..CALLERS).map(|caller| {
            let (lock, deadline) = (
                lock.clone().owned_by(Owner::new()),
                deadline - Duration::from_micros(caller.into()),
            );
            async move {
                lock.try_lock_for(deadline.saturating_duration_since(Instant::now()))
                    .await
            }
        });
        join_all(callers).await
    });
    eventually(patience - ms(100), "all wait in line", || {
        locks.stats().waiters == CALLERS as usize
    })
    .await;
    for answer in callers.await.unwrap() {
        assert!(answer.unwrap().is_none());
    }
    println!("{CALLERS} callers gave up within {:?}", deadline.elapsed());
    let stats = locks.stats();
    assert_eq!(
        (stats.waiters, stats.losses.total()),
        (0, 0),
        "{:?}",
        stats.renewal_lateness
    );
    for guard in [held, beside] {
        assert!(guard.check().is_ok(), "{:?}", guard.state());
        guard.unlock().await.unwrap();
    }
}
