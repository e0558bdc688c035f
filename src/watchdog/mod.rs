//! The watchdog: one task that renews every lease at a third of its length (by default), and fires
//! the tokens of lost holds.
//!
//! # A renewal
//! 1. [`Watchdog::watch`] leaves a weak reference in the inbox. The wheel gets it within the width
//!    of the grid, a hundredth of the lease. Most locks are released before that, and cost the
//!    watchdog nothing more.
//! 2. Entries stand in lines of time (`schedule.rs`). A line of ticks is due as a whole. If it is
//!    long, its batches are spread over the width of the grid: 100,000 holds with a lease of 30 s
//!    are four scripts every forty milliseconds.
//! 3. The tick of an entry begins (`wheel.rs`): the entry moves to the end of the tick, or of its
//!    validity, and its hold goes into a batch.
//! 4. `batch.rs` sends up to a hundred keys to each node (`renew.lua`), and repeats that until the
//!    tick is over. A batch that a server refuses as a whole is sent key by key.
//! 5. The reply names only the keys that were not renewed, and counts the others. Validity counts
//!    from before the send, and the next tick begins a third of the lease after that.
//!
//! A reconnect of the connection for renewals renews everything, spread over a second. A message
//! for a held key renews that key immediately: another client may have deleted it.
//!
//! # A panic here
//! Other tasks start again after a panic, and this one does not. Only a bug of this crate causes
//! one, and it may come in the middle of a step of the wheel, whose table is then not complete. The
//! table of lines is: the session ends all waits with `Error::WatchdogPanicked`, and makes every
//! hold in that table lost.
//!
//! # Invariants
//! - Every hold that is held for longer than a grid's width is in the wheel until it is released or
//!   lost.
//! - Only one task touches the wheel; others leave orders.
//! - If the task ends for any reason, every token fires, so that no holder trusts a lock that
//!   nothing renews. After a panic the session learns of it first, so that a caller that notices
//!   the loss and tries again gets the reason.

mod batch;
mod notes;
mod schedule;
mod wheel;

use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::sleep;

use self::batch::{Answers, Sender};
use self::wheel::Wheel;
use crate::clock::{self, Instant};
use crate::error::Loss;
use crate::foreign::{self, log};
use crate::hold::Hold;
use crate::lease::{self, NodeIndex};
use crate::node::LinkEvent;
use crate::options::Settings;
use crate::quorum::Quorum;
use crate::stats::Counters;
use crate::sync::{Arc, Mutex, Weak};

/// A finding of the watchdog on which the session acts.
#[derive(Debug)]
pub(crate) enum Finding {
    /// No caller took this grant: it has to be released.
    Revoked(Arc<Hold>),
    /// This node does not have the lock, but a majority of the others has.
    VoteLost(Arc<Hold>, NodeIndex),
    /// Another client leaves the lock only this long to live after a renewal.
    Cut(Arc<Hold>, Duration),
    /// The watchdog panicked, with this message. Some holds may no longer be in any of its tables.
    Panicked(String),
}

/// Called with every verdict, in the watchdog's task.
pub(crate) type Judge = Box<dyn Fn(Finding) + Send + Sync>;

/// The watchdog's inbox. Others leave orders in it.
#[derive(Debug)]
pub(crate) struct Watchdog {
    inbox: Mutex<Inbox>,
    bell: Notify,
    grid: Duration,
}

#[derive(Debug, Default)]
struct Inbox {
    orders: Vec<WatchOrder>,
    /// When the inbox has to be emptied, or `None` while it is empty.
    due: Option<Instant>,
    /// Set when the task has ended.
    closed: bool,
}

#[derive(Debug)]
enum WatchOrder {
    Watch(Weak<Hold>),
    /// Renew this hold at once, since something happened to its key.
    Renew(u64),
    /// Remove the entry of this released hold, which would otherwise stay for long.
    Forget(u64),
}

impl Watchdog {
    pub(crate) fn new(settings: &Settings) -> Arc<Self> {
        let grid = lease::grid(settings.lease);
        Arc::new(Self {
            inbox: Mutex::default(),
            bell: Notify::new(),
            grid,
        })
    }

    /// Watches a hold from now on. Returns false if the task has ended and cannot. A hold that is
    /// released within the width of the grid costs the task nothing.
    #[must_use = "a hold that nothing watches has to be lost"]
    pub(crate) fn watch(&self, hold: &Arc<Hold>, now: Instant) -> bool {
        // A short lease or a short max_hold may end before the next line of the grid.
        let first = (now + self.grid).min(hold.valid_until().before(lease::ARM_EARLY));
        let first = hold.claims().revoke_at.map_or(first, |at| first.min(at));
        self.order(WatchOrder::Watch(Arc::downgrade(hold)), first.max(now))
    }

    /// Renews a hold at once, since its key may have been deleted.
    pub(crate) fn renew_now(&self, hold: &Hold, now: Instant) {
        self.order(WatchOrder::Renew(hold.generation), now);
    }

    /// Forgets a hold that was released, if its entry would otherwise stay: that of a hold that
    /// ends before its watch has begun is not made.
    // Others leave the wheel at their next tick, which is soon enough.
    pub(crate) fn forget(&self, hold: &Hold, now: Instant) {
        let long = !hold.terms.renewed || hold.terms.lease > Duration::from_secs(60);
        if long || now.since(hold.since) >= self.grid {
            self.order(WatchOrder::Forget(hold.generation), now + self.grid);
        }
    }

    /// Leaves an order for the task to carry out by `due`. Returns false if the task has ended.
    fn order(&self, order: WatchOrder, due: Instant) -> bool {
        let mut inbox = self.inbox.lock();
        if inbox.closed {
            return false;
        }
        inbox.orders.push(order);
        let earlier = inbox.due.is_none_or(|planned| due < planned);
        if earlier {
            inbox.due = Some(due);
        }
        drop(inbox);
        if earlier {
            self.bell.notify_one();
        }
        true
    }

    fn take_orders(&self) -> Vec<WatchOrder> {
        let mut inbox = self.inbox.lock();
        inbox.due = None;
        std::mem::take(&mut inbox.orders)
    }

    fn due(&self) -> Option<Instant> {
        self.inbox.lock().due
    }
}

#[cfg(test)]
impl Watchdog {
    /// Returns whether it was left the order to forget this hold.
    pub(crate) fn is_to_forget(&self, hold: &Hold) -> bool {
        let is_it = |order: &WatchOrder| match order {
            WatchOrder::Forget(generation) => *generation == hold.generation,
            _ => false,
        };
        self.inbox.lock().orders.iter().any(is_it)
    }
}

/// Dropped with the task: holds whose watch was ordered but not begun are lost too.
struct Closing(Arc<Watchdog>);

impl Drop for Closing {
    fn drop(&mut self) {
        // Under the mutex, so that every later `watch` returns false.
        let mut inbox = self.0.inbox.lock();
        inbox.closed = true;
        let orders = std::mem::take(&mut inbox.orders);
        drop(inbox);
        for order in orders {
            if let WatchOrder::Watch(hold) = order
                && let Some(hold) = hold.upgrade()
            {
                hold.lose(Loss::RenewalFailed);
            }
        }
    }
}

/// The watchdog's task. Starts with the locker; ends with the engine, or by a panic, which it
/// reports. No task awaits it.
pub(crate) async fn run(
    watchdog: Arc<Watchdog>,
    quorum: Arc<Quorum>,
    settings: Settings,
    counters: Arc<Counters>,
    reconnects: UnboundedReceiver<LinkEvent>,
    judge: Judge,
) {
    let _closing = Closing(Arc::clone(&watchdog));
    // The wheel is outside of the future that may panic, so that unwinding fires no token before
    // the reason is reported.
    let mut wheel = Wheel::new(&settings, Arc::clone(&counters));
    let (answers, answered) = unbounded_channel();
    let sender = Sender::new(quorum, counters, answers);
    let sources = Sources {
        answered,
        reconnects,
    };
    let watching = keep_watch(
        &watchdog,
        &mut wheel,
        &sender,
        settings.lease,
        sources,
        &judge,
        Clocks::read(),
    );
    if let Err(message) = foreign::survive(watching).await {
        judge(Finding::Panicked(message));
    }
}

/// The channels to the watchdog's task.
struct Sources {
    answered: UnboundedReceiver<Answers>,
    reconnects: UnboundedReceiver<LinkEvent>,
}

async fn keep_watch(
    watchdog: &Watchdog,
    wheel: &mut Wheel,
    sender: &Arc<Sender>,
    lease: Duration,
    mut sources: Sources,
    judge: &Judge,
    mut clocks: Clocks,
) {
    let beat = (lease / 10).min(Duration::from_secs(1));
    let may_jump = !clock::is_of_timers();
    loop {
        let inbox_due = watchdog.due();
        let drain = async {
            match inbox_due {
                // No wake-up is lost: the bell keeps a permit, and only this task waits for it.
                None => watchdog.bell.notified().await,
                Some(due) => {
                    tokio::select! {
                        // In this order and not in a random one, so that a simulation with the same
                        // seed takes the same course.
                        biased;
                        () = watchdog.bell.notified() => {}
                        () = sleep(Instant::now().until(due)) => {}
                    }
                }
            }
        };
        let report_due = wheel.report_due();
        let mut renewals = Vec::new();
        tokio::select! {
            // An answer that has arrived comes before the end of its tick.
            biased;
            Some(batch) = sources.answered.recv() => wheel.answered(&batch, judge),
            () = wheel.expired(&mut renewals, judge) => {}
            () = drain => {
                // The bell only says that something is due earlier than planned.
                if watchdog.due().is_some_and(|due| due <= Instant::now()) {
                    wheel.carry_out(watchdog.take_orders());
                }
            }
            Some(event) = sources.reconnects.recv() => {
                if event == LinkEvent::Up {
                    // Holds that are still in the inbox may be gone from the server too.
                    wheel.carry_out(watchdog.take_orders());
                    wheel.renew_all();
                }
            }
            () = sleep(Instant::now().until(report_due.unwrap_or(clocks.boot))), if report_due.is_some() => {
                wheel.tell_due();
            }
            // Timers stand still during a suspend, so the clocks are compared now and then.
            () = sleep(beat), if may_jump && !wheel.is_empty() => {}
        }
        if Instant::now().since(clocks.boot) >= beat && clocks.jumped() {
            log!(warn, "the machine was suspended: re-checking all locks");
            wheel.sweep(&mut renewals, judge);
        }
        if !renewals.is_empty() {
            sender.send(&renewals);
            // The tasks of the batches run before the next line is handled: after a stall there may
            // be many lines.
            tokio::task::yield_now().await;
        }
    }
}

/// The two clocks: the first continues during a suspend, that of the timers stands still.
struct Clocks {
    boot: Instant,
    timers: tokio::time::Instant,
}

impl Clocks {
    fn read() -> Self {
        Self {
            boot: Instant::now(),
            timers: tokio::time::Instant::now(),
        }
    }

    /// Returns whether they have moved apart since the last call.
    fn jumped(&mut self) -> bool {
        let last = std::mem::replace(self, Self::read());
        let slept = self
            .boot
            .since(last.boot)
            .saturating_sub(self.timers.duration_since(last.timers));
        slept > Duration::from_millis(50)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hold::Terms;
    use crate::options::Options;
    use crate::owner::Owner;

    fn hold() -> Arc<Hold> {
        let terms = Terms {
            lease: Duration::from_secs(30),
            renewed: true,
            max_hold: None,
        };
        Arc::new(Hold::for_test(Owner::task(1), terms, &[0], 1))
    }

    fn watchdog() -> Arc<Watchdog> {
        Watchdog::new(&Options::default().validate(1).expect("valid"))
    }

    #[test]
    fn when_the_task_ends_every_token_fires() {
        let (watchdog, hold, late) = (watchdog(), hold(), hold());
        assert!(watchdog.watch(&hold, Instant::now()));
        drop(Closing(Arc::clone(&watchdog)));
        assert!(hold.token().is_cancelled());
        assert!(
            !watchdog.watch(&late, Instant::now()),
            "nothing would watch it"
        );
    }

    /// A bug of ours panics. The hold that is being handled is in none of the watchdog's tables at
    /// that moment.
    #[tokio::test]
    async fn a_panic_is_reported_and_every_token_fires() {
        let watchdog = watchdog();
        let settings = Options::default().validate(1).expect("valid");
        let short = Terms {
            lease: Duration::from_millis(100),
            renewed: true,
            max_hold: None,
        };
        let held = hold();
        let mut untaken = Hold::for_test(Owner::task(2), short, &[0], 1);
        untaken.generation = 2;
        let untaken = Arc::new(untaken);
        assert!(held.take_guard());
        let now = Instant::now();
        assert!(watchdog.watch(&held, now) && watchdog.watch(&untaken, now));
        let (verdicts, mut told) = unbounded_channel();
        let tokens = [held.token(), untaken.token()];
        let after = held.token();
        let judge: Judge = Box::new(move |finding| match finding {
            Finding::Panicked(message) => {
                assert!(
                    !after.is_cancelled(),
                    "the reason is reported before any token fires"
                );
                verdicts.send(message).expect("listens");
            }
            finding => panic!("sick of {finding:?}"),
        });
        let (quorum, (_reconnected, reconnects)) = (
            Arc::new(Quorum::new(Vec::new(), Duration::ZERO, Duration::ZERO)),
            unbounded_channel(),
        );
        run(
            Arc::clone(&watchdog),
            quorum,
            settings,
            Arc::new(Counters::new()),
            reconnects,
            judge,
        )
        .await;
        assert!(told.recv().await.expect("told").contains("sick of Revoked"));
        assert!(tokens[0].is_cancelled());
        assert!(
            !tokens[1].is_cancelled(),
            "a grant that was being revoked was not lost"
        );
        assert!(
            !watchdog.watch(&hold(), Instant::now()),
            "nothing would watch it"
        );
    }

    /// The timers stood still meanwhile, so none of them reports that anything is due.
    #[tokio::test]
    async fn holds_that_ran_out_in_a_suspend_are_lost_at_the_first_sweep() {
        let settings = Options::default().validate(1).expect("valid");
        let mut wheel = Wheel::new(&settings, Arc::new(Counters::new()));
        let short = Terms {
            lease: Duration::from_millis(100),
            renewed: true,
            max_hold: None,
        };
        let hold = Arc::new(Hold::for_test(Owner::task(1), short, &[0], 1));
        assert!(hold.take_guard());
        wheel.carry_out(vec![WatchOrder::Watch(Arc::downgrade(&hold))]);
        let judge: Judge = Box::new(|finding| panic!("{finding:?}"));
        wheel.sweep(&mut Vec::new(), &judge);
        assert!(!hold.token().is_cancelled());
        std::thread::sleep(Duration::from_millis(110));
        wheel.sweep(&mut Vec::new(), &judge);
        assert!(hold.token().is_cancelled());
        assert!(wheel.is_empty());
    }

    #[tokio::test]
    async fn a_subscriber_that_panics_at_a_suspend_hides_no_loss() {
        let watchdog = watchdog();
        let settings = Options::default().validate(1).expect("valid");
        let short = Terms {
            lease: Duration::from_millis(100),
            renewed: true,
            max_hold: None,
        };
        let hold = Arc::new(Hold::for_test(Owner::task(1), short, &[0], 1));
        assert!(hold.take_guard() && watchdog.watch(&hold, Instant::now()));
        std::thread::sleep(Duration::from_millis(110));
        let mut wheel = Wheel::new(&settings, Arc::new(Counters::new()));
        let ((answers, answered), (_reconnected, reconnects)) =
            (unbounded_channel(), unbounded_channel());
        let quorum = Arc::new(Quorum::new(Vec::new(), Duration::ZERO, Duration::ZERO));
        let counters = Arc::new(Counters::new());
        let sender = Sender::new(quorum, counters, answers);
        let judge: Judge = Box::new(|finding| panic!("{finding:?}"));
        let mut clocks = Clocks::read();
        clocks.boot = clocks.boot.before(Duration::from_secs(3_600));
        let (subscriber, told) = foreign::SickOfEvents::new();
        let _subscribed = tracing::subscriber::set_default(subscriber);
        let sources = Sources {
            answered,
            reconnects,
        };
        let watching = keep_watch(
            &watchdog,
            &mut wheel,
            &sender,
            settings.lease,
            sources,
            &judge,
            clocks,
        );
        let mut watching = std::pin::pin!(watching);
        while !told.of("the machine was suspended") {
            assert!(
                futures_util::poll!(&mut watching).is_pending(),
                "it does not end"
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(hold.token().is_cancelled());
        // It continues.
        let late = Arc::new(Hold::for_test(Owner::task(2), short, &[0], 1));
        assert!(late.take_guard() && watchdog.watch(&late, Instant::now()));
        let lost = late.token();
        tokio::select! {
            () = watching => panic!("it does not end"),
            () = lost.cancelled() => {}
        }
    }

    /// Watches a hold whose renewal is far away for this long, with these clocks. Returns whether a
    /// suspend is logged.
    async fn tells_of_a_suspend(lease: Duration, clocks: Clocks, lasts: Duration) -> bool {
        let watchdog = watchdog();
        let settings = Options::default().validate(1).expect("valid");
        let quorum = Arc::new(Quorum::new(Vec::new(), Duration::ZERO, Duration::ZERO));
        let counters = Arc::new(Counters::new());
        let mut wheel = Wheel::new(&settings, Arc::clone(&counters));
        let hold = hold();
        wheel.carry_out(vec![WatchOrder::Watch(Arc::downgrade(&hold))]);
        let ((answers, answered), (_reconnected, reconnects)) =
            (unbounded_channel(), unbounded_channel());
        let sender = Sender::new(quorum, counters, answers);
        let sources = Sources {
            answered,
            reconnects,
        };
        let (judge, (subscriber, told)): (Judge, _) =
            (Box::new(|_| {}), foreign::SickOfEvents::new());
        let _subscribed = tracing::subscriber::set_default(subscriber);
        let watching = keep_watch(
            &watchdog, &mut wheel, &sender, lease, sources, &judge, clocks,
        );
        assert!(
            tokio::time::timeout(lasts, watching).await.is_err(),
            "it does not end"
        );
        told.of("the machine was suspended")
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspend_is_noticed_within_a_tenth_of_the_lease() {
        let lease = Duration::from_secs(1);
        let mut clocks = Clocks::read();
        clocks.boot = clocks.boot.before(Duration::from_secs(3_600));
        assert!(tells_of_a_suspend(lease, clocks, lease / 5).await);
    }

    #[tokio::test]
    async fn no_suspend_is_reported_while_the_machine_is_awake() {
        let tick = Duration::from_millis(10);
        assert!(!tells_of_a_suspend(tick * 10, Clocks::read(), tick * 10).await);
    }

    #[test]
    fn an_entry_that_would_stay_long_is_forgotten_at_the_release() {
        let watchdog = watchdog();
        let minute = Duration::from_secs(60);
        let more = minute + Duration::from_millis(1);
        for (lease, renewed, forgotten) in [
            (minute, true, false),
            (more, true, true),
            (minute, false, true),
        ] {
            let hold = Hold::for_test(
                Owner::task(1),
                Terms {
                    lease,
                    renewed,
                    max_hold: None,
                },
                &[0],
                1,
            );
            watchdog.forget(&hold, Instant::now());
            let orders = watchdog.take_orders();
            assert_eq!(
                matches!(orders[..], [WatchOrder::Forget(_)]),
                forgotten,
                "{lease:?} {renewed} {orders:?}"
            );
        }
    }

    #[test]
    fn a_clock_that_jumps_is_noticed() {
        let mut clocks = Clocks::read();
        assert!(!clocks.jumped());
        clocks.boot = clocks.boot.before(Duration::from_secs(3600));
        assert!(clocks.jumped());
        assert!(!clocks.jumped());
    }
}
