//! Tests of sessions whose engine is embedded in the test's runtime, where time is paused: what
//! happens when, to the millisecond.
//!
//! There is no server, so nothing is ever answered.

mod ends;

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::sleep;
use uuid::Uuid;

use super::{RawGuard, RawGuards, Session};
use crate::alarm::Alarm;
use crate::clock::{Clock, Instant};
use crate::engine::Engine;
use crate::error::{Error, Loss};
use crate::hold::{Hold, HoldState, Terms, Want};
use crate::identity::Caller;
use crate::key::Key;
use crate::lease;
use crate::options::{Options, Reentry};
use crate::owner::Owner;
use crate::quorum::Quorum;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);
const TERMS: Terms = Terms {
    lease: LEASE,
    renewed: true,
    max_hold: None,
};

/// Makes a session without servers.
fn session(engine: Engine, alarm: Arc<Alarm>) -> Arc<Session> {
    let settings = Options::default().validate(1).expect("valid");
    let quorum = Quorum::new(Vec::new(), Duration::ZERO, Duration::ZERO);
    super::connect::begin(
        engine,
        alarm,
        Uuid::new_v4(),
        settings,
        quorum,
        Vec::new(),
        unbounded_channel().1,
    )
}

/// Makes a session that is embedded here.
fn embedded() -> Arc<Session> {
    embedded_in(&Handle::current())
}

/// Makes a session that is embedded in this runtime.
pub(super) fn embedded_in(runtime: &Handle) -> Arc<Session> {
    let engine = Engine::embedded_in(runtime, 1);
    let alarm = Alarm::of_embedded(&engine);
    session(engine, alarm)
}

fn paused() -> Runtime {
    Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime")
}

fn caller() -> Caller {
    Caller::blocking(Some(&Owner::new()), Reentry::Task)
}

/// Makes a hold that its caller has claimed just now, by the clock of this thread.
fn hold(session: &Session, terms: Terms) -> Arc<Hold> {
    static GENERATIONS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    let mut hold = Hold::for_test_in(Arc::clone(&session.reporter), Owner::new(), terms, &[0], 1);
    hold.generation = GENERATIONS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    hold.claim.key = format!("k{}", hold.generation).into();
    assert!(hold.take_guard());
    Arc::new(hold)
}

/// Registers it as a grant is registered.
fn register(session: &Arc<Session>, hold: &Arc<Hold>) -> RawGuard {
    let now = session.now();
    session.lines.admit(hold, None, now);
    session.alarm.watch(hold, now);
    assert!(session.watchdog.watch(hold, now));
    RawGuard::entered(Arc::clone(session), Arc::clone(hold), caller().origin)
}

/// Returns how much of the machine's time a future takes.
async fn machine_time<T>(future: impl Future<Output = T>) -> (T, Duration) {
    let start = Clock::machine().now();
    let value = future.await;
    (value, Clock::machine().now().since(start))
}

#[tokio::test(start_paused = true)]
async fn a_token_fires_exactly_at_the_end_of_validity() {
    let session = embedded();
    let (_, took) = machine_time(async {
        for lease in
            [100, 200, 300, 1_000, 30_000, 61_000, 3_600_000, 86_400_000].map(Duration::from_millis)
        {
            let hold = hold(
                &session,
                Terms {
                    lease,
                    renewed: false,
                    max_hold: None,
                },
            );
            let guard = register(&session, &hold);
            let (token, end) = (hold.token(), hold.valid_until());
            sleep(session.now().until(end) - MS).await;
            assert_eq!(
                (
                    token.is_cancelled(),
                    guard.as_ref().state(),
                    guard.as_ref().remaining()
                ),
                (false, HoldState::Safe, MS)
            );
            token.cancelled().await;
            assert_eq!(
                (session.now(), guard.as_ref().state()),
                (end, HoldState::Lost(Loss::Expired)),
                "{lease:?}"
            );
        }
    })
    .await;
    assert!(took < SECOND * 5, "{took:?} for a day");
}

/// Timers of tokio have a resolution of a millisecond.
#[tokio::test(start_paused = true)]
async fn a_token_ending_between_two_milliseconds_fires_at_the_first() {
    let session = embedded();
    for micros in [100_001, 123_456, 150_000, 199_999, 1_234_567] {
        let hold = hold(
            &session,
            Terms {
                lease: Duration::from_micros(micros),
                renewed: false,
                max_hold: None,
            },
        );
        let _guard = register(&session, &hold);
        let end = hold.valid_until();
        hold.token().cancelled().await;
        let early = session.now().until(end);
        assert!(session.now() <= end && early < MS, "{micros}: {early:?}");
    }
}

/// The alarm takes in a hold a millisecond before its end.
#[tokio::test(start_paused = true)]
async fn a_hold_that_comes_late_to_the_alarm_does_not_fire_early() {
    let session = embedded();
    let hold = hold(
        &session,
        Terms {
            renewed: false,
            ..TERMS
        },
    );
    let _guard = register(&session, &hold);
    sleep(session.now().until(hold.valid_until()) - MS).await;
    session.alarm.watch(&hold, session.now());
    hold.token().cancelled().await;
    assert_eq!(session.now(), hold.valid_until());
}

#[tokio::test(start_paused = true)]
async fn tokens_that_end_together_fire_together_and_others_apart() {
    let session = embedded();
    let (ends, mut told) = unbounded_channel();
    let mut guards = Vec::new();
    for number in 0..300_u32 {
        // A hundred of each.
        let lease = Duration::from_secs(u64::from(number % 3 + 1) * 10);
        let hold = hold(
            &session,
            Terms {
                lease,
                renewed: false,
                max_hold: None,
            },
        );
        guards.push(register(&session, &hold));
        let (token, end, ends, clock) = (
            hold.token(),
            hold.valid_until(),
            ends.clone(),
            session.engine.clock().clone(),
        );
        tokio::spawn(async move {
            token.cancelled().await;
            ends.send((end, clock.now())).expect("listens");
        });
    }
    for _ in 0..300 {
        let (end, fired) = told.recv().await.expect("told");
        assert_eq!(fired, end);
    }
    assert_eq!(session.stats().losses.expired, 300);
}

#[tokio::test(start_paused = true)]
async fn renewals_move_the_end_of_a_hold_up_to_max_hold() {
    let session = embedded();
    let hold = hold(
        &session,
        Terms {
            max_hold: Some(LEASE * 3),
            renewed: false,
            ..TERMS
        },
    );
    let _guard = register(&session, &hold);
    let token = hold.token();
    for _ in 0..8 {
        sleep(SECOND * 10).await;
        let now = session.now();
        assert!(hold.renewed(0, now, now));
    }
    token.cancelled().await;
    assert_eq!(session.now(), hold.since + LEASE * 3);
    assert_eq!(hold.mark(session.now()), HoldState::Lost(Loss::MaxHold));
}

#[tokio::test(start_paused = true)]
async fn ticks_come_at_lease_thirds_and_the_second_to_fail_is_last() {
    let session = embedded();
    let hold = hold(&session, TERMS);
    let guard = register(&session, &hold);
    let (start, command_timeout) = (hold.since, session.settings.command_timeout);
    assert_eq!(command_timeout, SECOND * 3);
    let until = async |at: Instant| sleep(session.now().until(at)).await;
    let ticks = || session.stats().renewal_lateness.count;
    for third in [1, 2] {
        // Ticks are on the grid.
        let tick = (start + LEASE / 3 * third).round_down(lease::grid(LEASE));
        until(tick.before(MS)).await;
        assert_eq!(ticks(), u64::from(third) - 1, "tick {third} has not come");
        until(tick + MS).await;
        assert_eq!(ticks(), u64::from(third));
        let fails = tick + command_timeout;
        until(fails.before(MS)).await;
        let before = if third == 1 {
            HoldState::Safe
        } else {
            HoldState::Jeopardy
        };
        assert_eq!(guard.as_ref().state(), before);
        if third == 1 {
            until(fails + MS).await;
            assert_eq!(guard.as_ref().state(), HoldState::Jeopardy);
        }
    }
    hold.token().cancelled().await;
    let last = (start + LEASE / 3 * 2).round_down(lease::grid(LEASE)) + command_timeout;
    assert_eq!(session.now(), last);
    assert_eq!(guard.as_ref().state(), HoldState::Lost(Loss::RenewalFailed));
    let latest = session.stats().renewal_lateness.max;
    assert!(
        latest <= Duration::from_micros(1),
        "no timer is late, as far as can be counted: {latest:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn calls_end_when_their_time_is_over() {
    let session = embedded();
    let (key, start) = (Key::from("k"), session.now());
    for (wait, lasts) in [(SECOND * 5, SECOND * 5), (SECOND * 7, SECOND * 12)] {
        let refused = session
            .wait_in_line(
                &key,
                &caller(),
                &Want::of_lock(TERMS),
                Some(session.now() + wait),
            )
            .await;
        assert!(matches!(refused, Err(Error::Unavailable { .. })));
        assert_eq!(session.now(), start + lasts);
    }
    let refused = session
        .lock_all(
            &[key.clone(), "l".into()],
            &caller(),
            Want::of_lock(TERMS),
            Some(session.now() + SECOND * 3),
        )
        .await;
    assert!(matches!(refused, Err(Error::Unavailable { .. })));
    assert_eq!(session.now(), start + SECOND * 15);
    // Without a wait time it rides out an outage for `outage_tolerance`, which is a lease.
    let (start, (refused, took)) = (
        session.now(),
        machine_time(session.wait_in_line(&key, &caller(), &Want::of_lock(TERMS), None)).await,
    );
    let Err(Error::Unavailable { waited, .. }) = refused else {
        panic!("{refused:?}")
    };
    assert!(
        waited >= LEASE && session.now().since(start) <= LEASE,
        "it began with the first call"
    );
    assert!(took < SECOND * 5, "{took:?}");
}

#[test]
fn runtimes_have_times_of_their_own_at_once() {
    let threads = [1, 60, 3_600].map(|seconds| {
        std::thread::spawn(move || {
            paused().block_on(async {
                let (session, lease) = (embedded(), Duration::from_secs(seconds));
                let start = session.now();
                for _ in 0..100 {
                    let hold = hold(
                        &session,
                        Terms {
                            lease,
                            renewed: false,
                            max_hold: None,
                        },
                    );
                    let guard = register(&session, &hold);
                    hold.token().cancelled().await;
                    assert_eq!(session.now(), hold.valid_until());
                    drop(guard);
                }
                session.now().since(start)
            })
        })
    });
    let [short, middle, long] = threads.map(|thread| thread.join().expect("no panic"));
    assert!(
        short < SECOND * 100 && middle > SECOND * 5_900 && long > SECOND * 355_000,
        "{short:?} {middle:?} {long:?}"
    );
}

/// A locker over real servers whose callers are in a runtime with paused time.
#[tokio::test(start_paused = true)]
async fn an_engine_with_a_thread_keeps_the_machines_time() {
    let embedded = embedded();
    let real = session(
        Engine::start(1).expect("a thread"),
        Alarm::of_process().expect("a thread"),
    );
    let (short, long) = (
        Duration::from_millis(500),
        Terms {
            lease: SECOND * 3_600,
            ..TERMS
        },
    );
    let beside = Arc::clone(&real);
    let holds = move || {
        [
            Terms {
                lease: short,
                renewed: false,
                max_hold: None,
            },
            long,
        ]
        .map(|terms| hold(&beside, terms))
    };
    // Made where time is the machine's, as grants are on the engine.
    let [fleeting, lasting] = std::thread::spawn(holds).join().expect("no panic");
    let guards = [register(&real, &fleeting), register(&real, &lasting)];
    // Days pass in this runtime, and not in that of the locker.
    sleep(SECOND * 86_400 * 3).await;
    assert_eq!(embedded.now(), Instant::now());
    assert_eq!(guards[1].as_ref().state(), HoldState::Safe);
    let left = guards[1].as_ref().remaining();
    assert!(left > SECOND * 3_000 && left < SECOND * 3_600, "{left:?}");
    let virtually = embedded.now();
    let ((), took) = machine_time(fleeting.token().cancelled_owned()).await;
    assert!(took < SECOND * 5, "{took:?}");
    assert!(
        Clock::machine().now() >= fleeting.valid_until().before(MS * 10),
        "not early"
    );
    assert_eq!(fleeting.mark(real.now()), HoldState::Lost(Loss::Expired));
    assert_eq!(
        embedded.now(),
        virtually,
        "nothing here slept in the meantime"
    );
    // A caller waits for as long as it asked for, in the machine's time too.
    let wait = Duration::from_millis(200);
    let (refused, took) = machine_time(real.wait_in_line(
        &"k".into(),
        &caller(),
        &Want::of_lock(TERMS),
        Some(real.now() + wait),
    ))
    .await;
    assert!(
        matches!(refused, Err(Error::Unavailable { .. })) && took >= wait,
        "{took:?}"
    );
    assert_eq!(embedded.now(), virtually);
    drop(guards);
    real.engine.stop();
}

#[test]
fn threads_outside_see_the_time_of_the_locker() {
    let runtime = paused();
    let (session, hold, guard) = runtime.block_on(async {
        let session = embedded();
        let hold = hold(&session, TERMS);
        let guard = register(&session, &hold);
        sleep(SECOND * 5).await;
        (session, hold, guard)
    });
    let left = hold.since.until(hold.valid_until()) - SECOND * 5;
    let look = || (guard.as_ref().state(), guard.as_ref().remaining());
    assert_eq!(look(), (HoldState::Safe, left));
    // Its time stands still while its runtime does not run.
    std::thread::scope(|scope| {
        assert_eq!(
            scope.spawn(look).join().expect("no panic"),
            (HoldState::Safe, left)
        );
    });
    paused().block_on(async {
        let _host = embedded();
        sleep(SECOND * 3_600).await;
        assert_eq!(look(), (HoldState::Safe, left), "in another host, too");
    });
    let refused =
        session.block_on(session.wait_in_line(&"k".into(), &caller(), &Want::of_lock(TERMS), None));
    assert!(
        matches!(refused, Err(Error::Config(error)) if error.to_string().contains("async")),
        "nobody may block"
    );
}
