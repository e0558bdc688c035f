//! The watchdog: one task that renews every lease at a third of its length and fires the token of what is lost.
//!
//! # Invariants
//! - Every hold that is held for longer than a grid's width is in the wheel until it is released or lost.
//! - The wheel is touched by one task only; others leave orders.
//! - If the task ends for any reason, every token fires: nobody trusts a lock that nothing renews. After a panic the
//!   session hears of it first, so that whoever is told of the loss and asks again is told why.

mod batch;
mod schedule;
mod wheel;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::sleep;

use self::batch::{Answers, Sender};
use self::wheel::Wheel;
use crate::clock::{self, Instant};
use crate::error::Loss;
use crate::foreign::{self, contained};
use crate::hold::Hold;
use crate::lease::{self, NodeIndex};
use crate::node::LinkEvent;
use crate::options::Settings;
use crate::quorum::Quorum;
use crate::stats::Counters;

/// What the watchdog found out, for the session to act on.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Nobody took this grant: it is to be released.
    Revoked(Arc<Hold>),
    /// This node has not got the lock, and a majority of the others has.
    VoteLost(Arc<Hold>, NodeIndex),
    /// The watchdog panicked, with this message. Some holds may be in none of its tables any more.
    Panicked(String),
}

/// Called with every verdict, in the watchdog's task.
pub(crate) type Judge = Box<dyn Fn(Verdict) + Send + Sync>;

/// The watchdog's inbox. Others leave orders in it.
#[derive(Debug)]
pub(crate) struct Watchdog {
    inbox: Mutex<Inbox>,
    bell: Notify,
    grid: Duration,
}

#[derive(Debug, Default)]
struct Inbox {
    orders: Vec<Order>,
    /// When the inbox is to be emptied; `None` while it is empty.
    due: Option<Instant>,
    /// Set when the task has ended.
    closed: bool,
}

#[derive(Debug)]
enum Order {
    Watch(Weak<Hold>),
    /// Something happened to this hold's key: look after it at once.
    Renew(u64),
    /// This hold was released, and its entry would stay for long.
    Forget(u64),
}

impl Watchdog {
    pub(crate) fn new(settings: &Settings) -> Arc<Self> {
        let grid = lease::grid(settings.lease);
        Arc::new(Self { inbox: Mutex::default(), bell: Notify::new(), grid })
    }

    /// Looks after a hold from now on; false if nobody will, because the task has ended. One that is released within
    /// the width of the grid never costs it anything.
    #[must_use = "what nobody looks after is lost"]
    pub(crate) fn watch(&self, hold: &Arc<Hold>, now: Instant) -> bool {
        // A short lease or a short max_hold may end before the next line of the grid.
        let first = (now + self.grid).min(hold.valid_until().before(lease::ARM_EARLY));
        let first = hold.claims().revoke_at.map_or(first, |at| first.min(at));
        self.order(Order::Watch(Arc::downgrade(hold)), first.max(now))
    }

    /// Renews a hold at once: its key may have been deleted.
    pub(crate) fn renew_now(&self, hold: &Hold, now: Instant) {
        self.order(Order::Renew(hold.generation), now);
    }

    /// Forgets a hold that was released, if its entry would otherwise stay for long.
    pub(crate) fn forget(&self, hold: &Hold, now: Instant) {
        let long = !hold.terms.renewed || hold.terms.lease > Duration::from_secs(60);
        if long {
            self.order(Order::Forget(hold.generation), now + self.grid);
        }
    }

    /// Leaves an order that is to be carried out by then. False if nobody will.
    fn order(&self, order: Order, due: Instant) -> bool {
        let mut inbox = self.inbox();
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

    fn take_orders(&self) -> Vec<Order> {
        let mut inbox = self.inbox();
        inbox.due = None;
        std::mem::take(&mut inbox.orders)
    }

    fn due(&self) -> Option<Instant> {
        self.inbox().due
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends with the task: whatever was ordered and not begun is lost too.
struct Closing(Arc<Watchdog>);

impl Drop for Closing {
    fn drop(&mut self) {
        let mut inbox = self.0.inbox();
        inbox.closed = true;
        let orders = std::mem::take(&mut inbox.orders);
        drop(inbox);
        for order in orders {
            if let Order::Watch(hold) = order
                && let Some(hold) = hold.upgrade()
            {
                hold.lose(Loss::RenewalFailed);
            }
        }
    }
}

/// The watchdog's task. Started with the locker; ends with the engine, or by a panic, which it tells; nobody awaits it.
pub(crate) async fn run(
    watchdog: Arc<Watchdog>,
    quorum: Arc<Quorum>,
    settings: Settings,
    counters: Arc<Counters>,
    reconnects: UnboundedReceiver<LinkEvent>,
    judge: Judge,
) {
    let _closing = Closing(Arc::clone(&watchdog));
    // Out of the reach of a panic: unwinding drops nothing that fires tokens before the reason is told.
    let mut wheel = Wheel::new(&settings, Arc::clone(&counters));
    let (answers, answered) = unbounded_channel();
    let sender = Sender::new(quorum, counters, answers);
    let sources = Sources { answered, reconnects };
    let watching = keep_watch(&watchdog, &mut wheel, &sender, settings.lease, sources, &judge, Clocks::read());
    if let Err(message) = foreign::survive(watching).await {
        judge(Verdict::Panicked(message));
    }
}

/// What others tell the watchdog's task.
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
                // No wake-up is lost: the bell keeps its permit, and only this task waits for it.
                None => watchdog.bell.notified().await,
                Some(due) => {
                    tokio::select! {
                        // In this order, and not in a random one: a simulation under a seed is to go as it went.
                        biased;
                        () = watchdog.bell.notified() => {}
                        () = sleep(Instant::now().until(due)) => {}
                    }
                }
            }
        };
        let mut renewals = Vec::new();
        tokio::select! {
            // An answer that is there goes before the end of the tick that it ends.
            biased;
            Some(batch) = sources.answered.recv() => wheel.answered(&batch, judge),
            () = wheel.expired(&mut renewals, judge) => {}
            () = drain => {
                if watchdog.due().is_some_and(|due| due <= Instant::now()) {
                    wheel.carry_out(watchdog.take_orders());
                }
            }
            Some(event) = sources.reconnects.recv() => {
                if event == LinkEvent::Up {
                    // What was taken a moment ago may be gone as well as what is in the wheel.
                    wheel.carry_out(watchdog.take_orders());
                    wheel.renew_all();
                }
            }
            () = sleep(beat), if may_jump && !wheel.is_empty() => {}
        }
        if Instant::now().since(clocks.boot) >= beat && clocks.jumped() {
            contained(|| tracing::warn!("the machine was suspended: every lock is looked at"));
            wheel.sweep(&mut renewals, judge);
        }
        if !renewals.is_empty() {
            sender.send(&renewals);
            // Its task runs before the next line is looked at: after a stall there may be many.
            tokio::task::yield_now().await;
        }
    }
}

/// The two clocks: one goes on during a suspend, the timers' stands still.
struct Clocks {
    boot: Instant,
    timers: tokio::time::Instant,
}

impl Clocks {
    fn read() -> Self {
        Self { boot: Instant::now(), timers: tokio::time::Instant::now() }
    }

    /// Whether they have moved apart since the last look.
    fn jumped(&mut self) -> bool {
        let last = std::mem::replace(self, Self::read());
        let slept = self.boot.since(last.boot).saturating_sub(self.timers.duration_since(last.timers));
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
        let terms = Terms { lease: Duration::from_secs(30), renewed: true, max_hold: None };
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
        assert!(!watchdog.watch(&late, Instant::now()), "nobody would look after it");
    }

    /// By a bug of ours. The hold that is being looked at is in none of the watchdog's tables just then.
    #[tokio::test]
    async fn a_panic_is_told_and_every_token_fires() {
        let (watchdog, settings) = (watchdog(), Options::default().validate(1).expect("valid"));
        let (short, held) = (Terms { lease: Duration::from_millis(100), renewed: true, max_hold: None }, hold());
        let mut untaken = Hold::for_test(Owner::task(2), short, &[0], 1);
        untaken.generation = 2;
        let untaken = Arc::new(untaken);
        assert!(held.take_guard());
        let now = Instant::now();
        assert!(watchdog.watch(&held, now) && watchdog.watch(&untaken, now));
        let (verdicts, mut told) = unbounded_channel();
        let (tokens, after) = ([held.token(), untaken.token()], held.token());
        let judge: Judge = Box::new(move |verdict| match verdict {
            Verdict::Panicked(message) => {
                assert!(!after.is_cancelled(), "the reason is told before anybody hears of the loss");
                verdicts.send(message).expect("listens");
            }
            verdict => panic!("sick of {verdict:?}"),
        });
        let (quorum, (_reconnected, reconnects)) =
            (Arc::new(Quorum::new(Vec::new(), Duration::ZERO)), unbounded_channel());
        run(Arc::clone(&watchdog), quorum, settings, Arc::new(Counters::new()), reconnects, judge).await;
        assert!(told.recv().await.expect("told").contains("sick of Revoked"));
        assert!(tokens[0].is_cancelled());
        assert!(!tokens[1].is_cancelled(), "what was being taken back was not lost");
        assert!(!watchdog.watch(&hold(), Instant::now()), "nobody would look after it");
    }

    /// The timers stood still meanwhile, so that none of them says that anything is due.
    #[tokio::test]
    async fn what_ran_out_during_a_suspend_is_lost_at_the_first_sweep() {
        let settings = Options::default().validate(1).expect("valid");
        let mut wheel = Wheel::new(&settings, Arc::new(Counters::new()));
        let short = Terms { lease: Duration::from_millis(100), renewed: true, max_hold: None };
        let hold = Arc::new(Hold::for_test(Owner::task(1), short, &[0], 1));
        assert!(hold.take_guard());
        wheel.carry_out(vec![Order::Watch(Arc::downgrade(&hold))]);
        let judge: Judge = Box::new(|verdict| panic!("{verdict:?}"));
        wheel.sweep(&mut Vec::new(), &judge);
        assert!(!hold.token().is_cancelled());
        std::thread::sleep(Duration::from_millis(110));
        wheel.sweep(&mut Vec::new(), &judge);
        assert!(hold.token().is_cancelled());
        assert!(wheel.is_empty());
    }

    #[tokio::test]
    async fn a_subscriber_that_panics_at_a_suspend_hides_no_loss() {
        let (watchdog, settings) = (watchdog(), Options::default().validate(1).expect("valid"));
        let short = Terms { lease: Duration::from_millis(100), renewed: true, max_hold: None };
        let hold = Arc::new(Hold::for_test(Owner::task(1), short, &[0], 1));
        assert!(hold.take_guard() && watchdog.watch(&hold, Instant::now()));
        std::thread::sleep(Duration::from_millis(110));
        let mut wheel = Wheel::new(&settings, Arc::new(Counters::new()));
        let ((answers, answered), (_reconnected, reconnects)) = (unbounded_channel(), unbounded_channel());
        let (quorum, counters) = (Arc::new(Quorum::new(Vec::new(), Duration::ZERO)), Arc::new(Counters::new()));
        let sender = Sender::new(quorum, counters, answers);
        let judge: Judge = Box::new(|verdict| panic!("{verdict:?}"));
        let mut clocks = Clocks::read();
        clocks.boot = clocks.boot.before(Duration::from_secs(3_600));
        let (subscriber, told) = foreign::SickOfEvents::new();
        let _subscribed = tracing::subscriber::set_default(subscriber);
        let sources = Sources { answered, reconnects };
        let watching = keep_watch(&watchdog, &mut wheel, &sender, settings.lease, sources, &judge, clocks);
        let mut watching = std::pin::pin!(watching);
        while !told.of("the machine was suspended") {
            assert!(futures_util::poll!(&mut watching).is_pending(), "it does not end");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(hold.token().is_cancelled());
        // It goes on.
        let late = Arc::new(Hold::for_test(Owner::task(2), short, &[0], 1));
        assert!(late.take_guard() && watchdog.watch(&late, Instant::now()));
        let lost = late.token();
        tokio::select! {
            () = watching => panic!("it does not end"),
            () = lost.cancelled() => {}
        }
    }

    /// Watches a hold for so long, whose renewal is far, with these clocks; whether a suspend is told. Nothing else
    /// happens.
    async fn tells_of_a_suspend(lease: Duration, clocks: Clocks, lasts: Duration) -> bool {
        let (watchdog, settings) = (watchdog(), Options::default().validate(1).expect("valid"));
        let (quorum, counters) = (Arc::new(Quorum::new(Vec::new(), Duration::ZERO)), Arc::new(Counters::new()));
        let (mut wheel, hold) = (Wheel::new(&settings, Arc::clone(&counters)), hold());
        wheel.carry_out(vec![Order::Watch(Arc::downgrade(&hold))]);
        let ((answers, answered), (_reconnected, reconnects)) = (unbounded_channel(), unbounded_channel());
        let (sender, sources) = (Sender::new(quorum, counters, answers), Sources { answered, reconnects });
        let (judge, (subscriber, told)): (Judge, _) = (Box::new(|_| {}), foreign::SickOfEvents::new());
        let _subscribed = tracing::subscriber::set_default(subscriber);
        let watching = keep_watch(&watchdog, &mut wheel, &sender, lease, sources, &judge, clocks);
        assert!(tokio::time::timeout(lasts, watching).await.is_err(), "it does not end");
        told.of("the machine was suspended")
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspend_is_noticed_within_a_tenth_of_the_lease() {
        let (lease, mut clocks) = (Duration::from_secs(1), Clocks::read());
        clocks.boot = clocks.boot.before(Duration::from_secs(3_600));
        assert!(tells_of_a_suspend(lease, clocks, lease / 5).await);
    }

    #[tokio::test]
    async fn a_machine_that_was_awake_is_not_said_to_have_been_suspended() {
        let tick = Duration::from_millis(10);
        assert!(!tells_of_a_suspend(tick * 10, Clocks::read(), tick * 10).await);
    }

    #[test]
    fn what_would_stay_for_long_is_forgotten_when_it_is_released() {
        let (watchdog, minute) = (watchdog(), Duration::from_secs(60));
        let more = minute + Duration::from_millis(1);
        for (lease, renewed, forgotten) in [(minute, true, false), (more, true, true), (minute, false, true)] {
            let hold = Hold::for_test(Owner::task(1), Terms { lease, renewed, max_hold: None }, &[0], 1);
            watchdog.forget(&hold, Instant::now());
            let orders = watchdog.take_orders();
            assert_eq!(matches!(orders[..], [Order::Forget(_)]), forgotten, "{lease:?} {renewed} {orders:?}");
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
