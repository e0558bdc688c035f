//! The alarm: one plain thread of the process, which fires the tokens of each hold before its
//! validity ends, no matter what the engines are doing. A recorder or 100,000 answers may keep an
//! engine from that.
//!
//! A hold comes through an inbox, as a weak reference, and gets a place in a line of time a tenth
//! of a second before its end. When that line is due, most holds have been renewed and get a later
//! place. One that has not goes into a line of its own millisecond. If many end together, firing
//! begins 5 us earlier for each. The thread reads the clock every tenth of the shortest lease.
//!
//! # Invariants
//! - Only its own sleep and the wakers of tokens make this thread wait: no I/O, log, recorder, line
//!   or runtime does. If a waker blocks it, the engines continue: the watchdog fires tokens too.
//! - Every hold that is held for longer than a grid's width is in a bucket, which comes due before
//!   the hold ends. Renewals postpone the end without a notice: the alarm reads the end when the
//!   bucket is due. Code that brings the end of a hold forward tells the alarm ([`Alarm::watch`]).
//! - If a hold is in several buckets, only the last one counts ([`Hold::set_alarm`]).
//!
//! An engine that is embedded in the program's runtime has an alarm of its own: a task there. While
//! time is paused no timer is late, and it fires tokens exactly at the end of their validity, to
//! the millisecond of tokio's timers.

use std::collections::BTreeMap;
use std::io;
use std::process;
use std::thread;
use std::time::Duration;

#[cfg(feature = "testing")]
use tokio::{sync::Notify, time::timeout};

#[cfg(feature = "testing")]
use crate::clock;
use crate::clock::Instant;
#[cfg(feature = "testing")]
use crate::engine::Engine;
use crate::hold::{Alarmed, Hold};
use crate::lease;
use crate::sync::{Arc, Condvar, Mutex, PoisonError, Weak};

/// The time to fire the tokens of one hold: if many end together, firing begins earlier by this
/// time for each.
const EACH: Duration = Duration::from_micros(5);

/// The resolution of ends.
const STEP: Duration = Duration::from_millis(1);

/// A hold that ends within this time would go back into the bucket that is being handled.
const SAME_LINE: Duration = Duration::from_nanos(999_999);

/// How long before its end a hold is looked at first. Most have been renewed by then, and many are
/// looked at together.
const AHEAD: Duration = Duration::from_millis(100);

/// The longest time between two looks at a hold.
const FARTHEST: Duration = Duration::from_secs(30);

/// The longest sleep, since timers stand still while the machine is suspended.
const BEAT: Duration = Duration::from_secs(1);

/// From this many orders on, orders for released holds are dropped before the inbox grows.
const MANY: usize = 1_024;

/// The process that started the alarm, and the alarm, while a locker uses it.
static CURRENT: Mutex<(u32, Weak<Alarm>)> = Mutex::new((0, Weak::new()));

/// A handle on the thread "lockhound-alarm", or on the task, which ends with the last handle.
#[derive(Debug)]
pub(crate) struct Alarm {
    desk: Arc<Desk>,
    /// The process that it runs in. A fork does not copy the thread, and may copy a mutex that
    /// stays locked forever.
    process: u32,
}

/// The state that the alarm's handles share with its thread or task, which sleeps here.
#[derive(Debug, Default)]
struct Desk {
    inbox: Mutex<AlarmInbox>,
    bell: Condvar,
    /// The bell of a task.
    #[cfg(feature = "testing")]
    task_bell: Notify,
}

#[derive(Debug, Default)]
struct Orders {
    /// Holds that are new, or whose end may have been brought forward.
    look: Vec<Weak<Hold>>,
    /// The buckets of holds that have ended.
    over: Vec<Instant>,
}

#[derive(Debug, Default)]
struct AlarmInbox {
    orders: Orders,
    /// When the inbox is to be emptied, or `None` while it is empty.
    due: Option<Instant>,
    /// Until when the thread sleeps, or `None` if it sleeps until it is woken.
    asleep_until: Option<Instant>,
    ended: bool,
}

/// What the thread or task does next.
enum NextStep {
    /// Handle these orders, and the buckets that are due.
    Work(Orders),
    /// Sleep until then or, with `None`, until the bell rings.
    Sleep(Option<Instant>),
    /// End.
    End,
}

impl AlarmInbox {
    /// Returns what a thread or task does next that would otherwise sleep until `until`.
    fn turn(&mut self, until: Option<Instant>, now: Instant) -> NextStep {
        if self.ended {
            return NextStep::End;
        }
        if self.due.is_some_and(|due| due <= now) {
            self.due = None;
            return NextStep::Work(std::mem::take(&mut self.orders));
        }
        let until = [until, self.due].into_iter().flatten().min();
        self.asleep_until = until;
        if until.is_some_and(|until| until <= now) {
            NextStep::Work(Orders::default())
        } else {
            NextStep::Sleep(until)
        }
    }
}

impl Alarm {
    /// Returns the alarm of this process, and starts it if there is none.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn of_process() -> io::Result<Arc<Self>> {
        // This mutex is locked for moments only, unless a fork left it locked: then this locker
        // gets an alarm of its own.
        for _ in 0..1_000 {
            let Some(mut current) = CURRENT.try_lock() else {
                thread::sleep(STEP);
                continue;
            };
            let (process, alarm) = &*current;
            if let Some(alarm) = alarm.upgrade().filter(|_| *process == process::id()) {
                return Ok(alarm);
            }
            let alarm = Self::start()?;
            *current = (alarm.process, Arc::downgrade(&alarm));
            return Ok(alarm);
        }
        Self::start()
    }

    fn start() -> io::Result<Arc<Self>> {
        let desk = Arc::new(Desk::default());
        let keeping = Arc::clone(&desk);
        thread::Builder::new()
            .name("lockhound-alarm".into())
            .spawn(move || keep(&keeping))?;
        Ok(Arc::new(Self {
            desk,
            process: process::id(),
        }))
    }

    /// Starts the alarm of an embedded engine: a task of that engine.
    #[cfg(feature = "testing")]
    pub(crate) fn of_embedded(engine: &Engine) -> Arc<Self> {
        let desk = Arc::new(Desk::default());
        engine.spawn(keep_as_task(Arc::clone(&desk)));
        Arc::new(Self {
            desk,
            process: process::id(),
        })
    }

    /// Watches a hold from now on, or looks at it again because its end may have been brought
    /// forward. Only the engine calls this, which a fork does not copy.
    pub(crate) fn watch(&self, hold: &Arc<Hold>, now: Instant) {
        self.desk.order(hold, now);
    }

    /// Forgets a hold that has ended: its memory is free once nothing points to it. Not to be
    /// called in a forked copy of the process.
    pub(crate) fn forget(&self, hold: &Hold, now: Instant) {
        // Otherwise it is in no bucket, and will not be.
        if let Some(at) = hold.alarm_at() {
            // Orders wait for the width of the grid, so that many are handled together.
            self.desk
                .leave(now + lease::grid(hold.terms.lease), |orders| {
                    orders.over.push(at);
                });
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // A forked copy has no such thread, and may find the mutex locked forever.
        if self.process == process::id() {
            self.desk.inbox.lock().ended = true;
            self.desk.ring();
        }
    }
}

impl Desk {
    fn order(&self, hold: &Arc<Hold>, now: Instant) {
        let end = hold.valid_until().before(early(1));
        // A hold may end before that.
        self.leave(
            (now + lease::grid(hold.terms.lease)).min(end),
            |Orders { look, .. }| {
                // Only before the list would grow, so that it costs next to nothing.
                if look.len() >= MANY && look.len() == look.capacity() {
                    look.retain(|order| order.strong_count() > 0);
                }
                look.push(Arc::downgrade(hold));
            },
        );
    }

    /// Leaves an order, to be carried out by `due`.
    fn leave(&self, due: Instant, order: impl FnOnce(&mut Orders)) {
        let mut inbox = self.inbox.lock();
        order(&mut inbox.orders);
        if inbox.due.is_some_and(|planned| planned <= due) {
            return;
        }
        inbox.due = Some(due);
        let sleeps_longer = inbox.asleep_until.is_none_or(|until| due < until);
        if sleeps_longer {
            // Orders that come until it wakes ring the bell only for an earlier time.
            inbox.asleep_until = Some(due);
        }
        drop(inbox);
        if sleeps_longer {
            self.ring();
        }
    }

    /// Sleeps until then, or until the inbox is to be emptied, and reads the clock with every beat.
    /// Returns the orders to handle, or `None` if there will be no more.
    fn sleep(&self, until: Option<Instant>, beat: Duration) -> Option<Orders> {
        let mut inbox = self.inbox.lock();
        loop {
            let now = Instant::now();
            // A wake-up is a hint, and none is lost: the inbox is checked again under the mutex.
            inbox = match inbox.turn(until, now) {
                NextStep::Work(orders) => return Some(orders),
                NextStep::Sleep(Some(until)) => {
                    // Timers stand still during a suspend, so it reads the clock with every beat.
                    let nap = now.until(until).min(beat);
                    self.bell
                        .wait_timeout(inbox, nap)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
                NextStep::Sleep(None) => self
                    .bell
                    .wait(inbox)
                    .unwrap_or_else(PoisonError::into_inner),
                NextStep::End => return None,
            };
        }
    }

    /// Does the same for a task. It needs no beat, since its timers are the clock.
    #[cfg(feature = "testing")]
    async fn pause(&self, until: Option<Instant>) -> Option<Orders> {
        loop {
            let now = Instant::now();
            let turn = self.inbox.lock().turn(until, now);
            // No wake-up is lost: only this task waits, and a wake-up while it does not wait leaves
            // a permit.
            match turn {
                NextStep::Work(orders) => return Some(orders),
                NextStep::Sleep(Some(until)) => {
                    _ = timeout(now.until(until), self.task_bell.notified()).await;
                }
                NextStep::Sleep(None) => self.task_bell.notified().await,
                NextStep::End => return None,
            }
        }
    }

    /// Wakes the thread or the task.
    fn ring(&self) {
        self.bell.notify_one();
        #[cfg(feature = "testing")]
        self.task_bell.notify_one();
    }
}

/// The thread's loop. Ends with the last handle.
fn keep(desk: &Desk) {
    let mut schedule = AlarmSchedule::default();
    loop {
        let (until, beat) = schedule.plan();
        let Some(orders) = desk.sleep(until, beat) else {
            return;
        };
        // All losses are marked and counted before the first waker runs.
        let lost = schedule.ring(&orders, Instant::now());
        lost.iter().for_each(Hold::fire);
    }
}

/// The same loop for an embedded engine, as one of its tasks. Also ends with the engine; no task
/// awaits it.
#[cfg(feature = "testing")]
async fn keep_as_task(desk: Arc<Desk>) {
    let mut schedule = AlarmSchedule::default();
    loop {
        schedule.punctual = clock::is_paused();
        let (until, _) = schedule.plan();
        let Some(orders) = desk.pause(until).await else {
            return;
        };
        // Time may have been paused or resumed meanwhile.
        schedule.punctual = clock::is_paused();
        let lost = schedule.ring(&orders, Instant::now());
        lost.iter().for_each(Hold::fire);
    }
}

/// Returns how long before the end of a hold firing its tokens begins, if this many end together.
fn early(holds: usize) -> Duration {
    lease::ARM_EARLY + EACH * u32::try_from(holds).unwrap_or(u32::MAX)
}

/// When each hold is looked at.
#[derive(Debug, Default)]
struct AlarmSchedule {
    buckets: BTreeMap<Instant, Bucket>,
    /// Set if timers are never late, so that no look has to be early.
    punctual: bool,
}

/// Holds that are looked at together.
#[derive(Debug, Default)]
struct Bucket {
    holds: Vec<Weak<Hold>>,
    /// How many of them have ended since the bucket was packed.
    over: usize,
    /// The longest sleep that all of them allow.
    beat: Option<Duration>,
}

impl AlarmSchedule {
    /// Returns when to begin so that no bucket is late, and how often to read the clock until then.
    fn plan(&self) -> (Option<Instant>, Duration) {
        let until = self.begins().map(|(_, begin)| begin).min();
        let beat = self.buckets.values().filter_map(|bucket| bucket.beat).min();
        (until, beat.unwrap_or(BEAT))
    }

    /// Returns each bucket's time, and when to begin with all buckets up to it.
    fn begins(&self) -> impl Iterator<Item = (Instant, Instant)> {
        self.buckets.iter().scan(0, |holds, (at, bucket)| {
            *holds += bucket.holds.len();
            Some((*at, at.before(self.early(*holds))))
        })
    }

    fn early(&self, holds: usize) -> Duration {
        if self.punctual {
            Duration::ZERO
        } else {
            early(holds)
        }
    }

    /// Takes in orders, marks the holds that end now as lost, and returns them for firing.
    fn ring(&mut self, orders: &Orders, now: Instant) -> Vec<Arc<Hold>> {
        let mut lost = Vec::new();
        for at in &orders.over {
            self.forget(*at);
        }
        // Firing the tokens of those before it takes a while, in which this one may end.
        for order in &orders.look {
            self.look(order, None, now + self.early(lost.len()), &mut lost);
        }
        // All up to the last one that has to begin: those before it end sooner.
        let begun = self.begins().filter(|(_, begin)| *begin <= now).last();
        let Some((last, _)) = begun else { return lost };
        while let Some(bucket) = self
            .buckets
            .first_entry()
            .filter(|bucket| *bucket.key() <= last)
        {
            let (at, bucket) = bucket.remove_entry();
            for hold in &bucket.holds {
                self.look(
                    hold,
                    Some(at),
                    at.max(now + self.early(lost.len())),
                    &mut lost,
                );
            }
        }
        lost
    }

    /// Notes that a hold of this bucket has ended. Once it is half empty, it is packed.
    fn forget(&mut self, at: Instant) {
        let Some(bucket) = self.buckets.get_mut(&at) else {
            return;
        };
        bucket.over += 1;
        if bucket.over * 2 < bucket.holds.len() {
            return;
        }
        bucket.over = 0;
        bucket
            .holds
            .retain(|hold| hold.upgrade().is_some_and(|hold| hold.needs_alarm()));
        bucket.holds.shrink_to_fit();
        if bucket.holds.is_empty() {
            self.buckets.remove(&at);
        }
    }

    /// Looks at a hold as if it were `now`.
    fn look(
        &mut self,
        hold: &Weak<Hold>,
        planned: Option<Instant>,
        now: Instant,
        lost: &mut Vec<Arc<Hold>>,
    ) {
        let Some(hold) = hold.upgrade() else { return };
        match hold.alarmed(planned, now + SAME_LINE) {
            Alarmed::Lost => lost.push(hold),
            Alarmed::Held(end) => self.put(&hold, end, now),
            Alarmed::Over => {}
        }
    }

    fn put(&mut self, hold: &Arc<Hold>, end: Instant, now: Instant) {
        let ahead = end.before(AHEAD).min(now + FARTHEST).round_down(AHEAD);
        let at = if ahead > now {
            ahead
        } else {
            // Rounded down, so that no token is late.
            end.round_down(STEP)
        };
        hold.set_alarm(at);
        let beat = (hold.terms.lease / 10).min(BEAT);
        let bucket = self.buckets.entry(at).or_default();
        bucket.holds.push(Arc::downgrade(hold));
        bucket.beat = Some(bucket.beat.map_or(beat, |least| least.min(beat)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::hold::{HoldState, LossReporter, Terms};
    use crate::owner::Owner;
    use crate::stats::Counters;

    const LEASE: Duration = Duration::from_secs(30);

    fn hold(lease: Duration) -> Arc<Hold> {
        let terms = Terms {
            lease,
            renewed: true,
            max_hold: None,
        };
        Arc::new(Hold::for_test(Owner::task(1), terms, &[0], 1))
    }

    fn orders(holds: &[Arc<Hold>]) -> Orders {
        Orders {
            look: holds.iter().map(Arc::downgrade).collect(),
            over: Vec::new(),
        }
    }

    /// Advances to the next planned time and does the work. Returns that time and the lost holds.
    fn next(schedule: &mut AlarmSchedule) -> (Instant, Vec<Arc<Hold>>) {
        let at = schedule.plan().0.expect("something is planned");
        (at, schedule.ring(&Orders::default(), at))
    }

    fn next_loss(schedule: &mut AlarmSchedule) -> (Instant, Vec<Arc<Hold>>) {
        for _ in 0..100 {
            let (at, lost) = next(schedule);
            if !lost.is_empty() {
                return (at, lost);
            }
        }
        panic!("nothing is lost");
    }

    fn places(schedule: &AlarmSchedule) -> usize {
        schedule
            .buckets
            .values()
            .map(|bucket| bucket.holds.len())
            .sum()
    }

    #[test]
    fn a_hold_that_nobody_renews_is_marked_a_moment_before_its_end() {
        for lease in [100, 150, 250, 1_000, 30_000, 3_600_000].map(Duration::from_millis) {
            let mut schedule = AlarmSchedule::default();
            let hold = hold(lease);
            let token = hold.token();
            let end = hold.valid_until();
            assert!(
                schedule
                    .ring(&orders(&[Arc::clone(&hold)]), hold.since)
                    .is_empty()
            );
            let (at, lost) = std::iter::repeat_with(|| next(&mut schedule))
                .find(|(_, lost)| !lost.is_empty())
                .expect("lost");
            let early = at.until(end);
            assert!(
                early >= lease::ARM_EARLY && early <= lease::ARM_EARLY + STEP * 2,
                "{lease:?}: {early:?}"
            );
            assert_eq!(lost.len(), 1);
            assert_eq!(
                (hold.mark(at), token.is_cancelled()),
                (HoldState::Lost(crate::error::Loss::Expired), false)
            );
            lost.iter().for_each(Hold::fire);
            assert!(token.is_cancelled());
            assert_eq!((schedule.plan(), places(&schedule)), ((None, BEAT), 0));
        }
    }

    #[test]
    fn a_renewal_postpones_the_end_without_an_order() {
        let mut schedule = AlarmSchedule::default();
        let hold = hold(LEASE);
        schedule.ring(&orders(&[Arc::clone(&hold)]), hold.since);
        let mut renewed = hold.since;
        for _ in 0..10 {
            renewed = renewed + LEASE / 3;
            assert!(hold.renewed(0, renewed, renewed));
        }
        let end = lease::valid_until(renewed, LEASE);
        let (at, lost) = next_loss(&mut schedule);
        assert!(
            lost.len() == 1 && at < end && at.until(end) < Duration::from_millis(10),
            "{:?}",
            at.until(end)
        );
    }

    #[test]
    fn an_end_that_is_brought_forward_replaces_the_older_place() {
        let terms = Terms {
            lease: LEASE,
            renewed: true,
            max_hold: None,
        };
        let hold = Arc::new(Hold::for_test(Owner::task(1), terms, &[0, 1], 3));
        let mut schedule = AlarmSchedule::default();
        let first = hold.valid_until();
        let later = hold.since + LEASE / 3;
        assert!(!hold.renewed(2, later, later) && hold.renewed(1, later, later));
        schedule.ring(&orders(&[Arc::clone(&hold)]), later);
        assert!(!hold.gone(2) && hold.valid_until() == first);
        for _ in 0..100 {
            // A node that loses its vote again and again.
            schedule.ring(&orders(&[Arc::clone(&hold)]), later);
        }
        let (at, lost) = next_loss(&mut schedule);
        assert!(lost.len() == 1 && at < first && at.until(first) < Duration::from_millis(10));
    }

    #[test]
    fn outdated_places_do_not_accumulate() {
        let mut schedule = AlarmSchedule::default();
        let hold = hold(LEASE);
        for second in 0..1_000 {
            let now = hold.since + Duration::from_secs(second);
            assert!(hold.vote(0, now, now));
            schedule.ring(&orders(&[Arc::clone(&hold)]), now);
        }
        assert!(places(&schedule) <= 40, "{}", places(&schedule));
        assert!(schedule.buckets.len() <= 40);
    }

    #[test]
    fn a_released_hold_leaves_the_alarm_at_once() {
        let alarm = Alarm::of_process().expect("a thread");
        let hold = hold(LEASE);
        alarm.watch(&hold, Instant::now());
        // The thread plans it, and then lets go of the order.
        while hold.alarm_at().is_none() || Arc::weak_count(&hold) > 1 {
            assert!(
                Instant::now() < hold.since + LEASE / 2,
                "the alarm keeps it once"
            );
            thread::sleep(STEP);
        }
        assert_eq!(Arc::weak_count(&hold), 1);
        assert!(hold.lose(crate::error::Loss::Closed));
        alarm.forget(&hold, Instant::now());
        while Arc::weak_count(&hold) > 0 {
            assert!(
                Instant::now() < hold.since + LEASE / 2,
                "it stays until its lease would end"
            );
            thread::sleep(STEP);
        }
    }

    #[test]
    fn a_line_is_packed_once_half_of_its_holds_have_ended() {
        let holds: Vec<_> = (0..100).map(|_| hold(LEASE)).collect();
        let mut schedule = AlarmSchedule::default();
        schedule.ring(&orders(&holds), holds[0].since);
        let mut left = Vec::new();
        for hold in &holds {
            hold.lose(crate::error::Loss::Closed);
            let over = vec![hold.alarm_at().expect("it is in a bucket")];
            schedule.ring(
                &Orders {
                    over,
                    ..Orders::default()
                },
                holds[0].since,
            );
            left.push(places(&schedule));
        }
        let mut of_ended = left.iter().enumerate().map(|(at, left)| left - (99 - at));
        assert!(
            of_ended.all(|ended| ended <= 50) && left.last() == Some(&0),
            "{left:?}"
        );
    }

    /// Whoever found the loss may be in a waker that blocks.
    #[test]
    fn a_lost_hold_with_unfired_tokens_stays_as_its_line_is_packed() {
        let lost = hold(LEASE);
        let ended = hold(LEASE);
        let mut schedule = AlarmSchedule::default();
        schedule.ring(
            &orders(&[Arc::clone(&lost), Arc::clone(&ended)]),
            lost.since,
        );
        let at = lost.alarm_at().expect("it is in a bucket");
        assert_eq!(ended.alarm_at(), Some(at));
        lost.mark(lost.valid_until());
        assert!(lost.is_unfired());
        ended.lose(crate::error::Loss::Closed);
        schedule.ring(
            &Orders {
                over: vec![at],
                ..Orders::default()
            },
            lost.since,
        );
        assert_eq!(
            (places(&schedule), next_loss(&mut schedule).1.len()),
            (1, 1)
        );
    }

    #[test]
    fn a_released_hold_is_forgotten_after_30_seconds() {
        let mut schedule = AlarmSchedule::default();
        let day = hold(Duration::from_secs(86_400));
        let since = day.since;
        schedule.ring(&orders(&[Arc::clone(&day)]), since);
        assert_eq!(places(&schedule), 1);
        let place = Arc::downgrade(&day);
        drop(day);
        schedule.ring(&Orders::default(), since + FARTHEST);
        assert_eq!((places(&schedule), place.weak_count()), (0, 0));
    }

    #[test]
    fn many_that_end_together_are_begun_with_in_time() {
        let holds: Vec<_> = (0..10_000).map(|_| hold(LEASE)).collect();
        let mut schedule = AlarmSchedule::default();
        schedule.ring(&orders(&holds), holds[0].since);
        let mut left = holds.len();
        let mut latest = Duration::MAX;
        while left > 0 {
            let (at, lost) = next_loss(&mut schedule);
            let first = lost
                .iter()
                .map(|hold| at.until(hold.valid_until()))
                .min()
                .expect("a loss");
            latest =
                latest.min(first.saturating_sub(EACH * u32::try_from(lost.len()).expect("few")));
            left -= lost.len();
        }
        // Five milliseconds early, less the steps of two buckets, since the holds were not made in
        // one moment.
        assert!(latest >= Duration::from_millis(3), "{latest:?}");
    }

    #[test]
    fn holds_that_ran_out_in_a_suspend_are_lost_at_the_first_look() {
        let holds: Vec<_> = [100, 3_000, 30_000]
            .map(|lease| hold(Duration::from_millis(lease)))
            .into();
        let day = hold(Duration::from_secs(86_400));
        let mut schedule = AlarmSchedule::default();
        schedule.ring(&orders(&holds), holds[0].since);
        schedule.ring(&orders(&[Arc::clone(&day)]), holds[0].since);
        assert_eq!(
            schedule.plan().1,
            Duration::from_millis(10),
            "a tenth of the shortest lease, since timers stand still"
        );
        let lost = schedule.ring(
            &Orders::default(),
            holds[0].since + Duration::from_secs(3_600),
        );
        assert_eq!(lost.len(), 3);
        assert!(holds.iter().all(|hold| !hold.is_held()));
        assert!(day.is_held() && places(&schedule) == 1);
        assert_eq!(schedule.plan().1, BEAT);
    }

    #[test]
    fn a_hold_that_is_marked_lost_but_not_fired_is_fired() {
        let mut schedule = AlarmSchedule::default();
        let hold = hold(LEASE);
        schedule.ring(&orders(&[Arc::clone(&hold)]), hold.since);
        hold.mark(hold.valid_until());
        assert_eq!(next_loss(&mut schedule).1.len(), 1);
    }

    #[test]
    fn the_inbox_forgets_what_was_released() {
        let desk = Desk::default();
        let kept = hold(LEASE);
        for _ in 0..10 * MANY {
            desk.order(&hold(LEASE), kept.since);
        }
        desk.order(&kept, kept.since);
        assert!(
            desk.inbox.lock().orders.look.len() <= 2 * MANY
                && desk.inbox.lock().orders.look.capacity() <= 4 * MANY
        );
        assert!(
            desk.inbox
                .lock()
                .orders
                .look
                .iter()
                .any(|order| order.strong_count() > 0)
        );
    }

    #[test]
    fn a_hold_costs_the_alarm_no_more_than_64_bytes() {
        const HOLDS: usize = 20_000;
        let terms = Terms {
            lease: LEASE,
            renewed: true,
            max_hold: None,
        };
        let (reporter, _losses) = LossReporter::new(Arc::new(Counters::new()), Clock::machine());
        let hold = |_| {
            Arc::new(Hold::for_test_in(
                Arc::clone(&reporter),
                Owner::task(1),
                terms,
                &[0],
                1,
            ))
        };
        let holds: Vec<_> = (0..HOLDS).map(hold).collect();
        // They are taken one after the other within a third of a lease, and renewed each third
        // after that.
        let steps = 30;
        let start = holds[0].since;
        let desk = Desk::default();
        let mut schedule = AlarmSchedule::default();
        let mut most = 0;
        for step in 0..steps * 6 {
            let now = start + LEASE / 3 / steps * step;
            let at_once = HOLDS.div_ceil(steps as usize);
            for hold in holds
                .iter()
                .skip((step % steps) as usize * at_once)
                .take(at_once)
            {
                hold.renewed(0, now, now);
                if step < steps {
                    desk.order(hold, now);
                }
            }
            most = most.max(bytes(&desk, &schedule));
            let orders = std::mem::take(&mut desk.inbox.lock().orders);
            assert!(schedule.ring(&orders, now).is_empty());
            most = most.max(bytes(&desk, &schedule));
        }
        assert_eq!(places(&schedule), HOLDS);
        // In the hold: when it is looked at, whether its loss was reported, the pointer to the
        // reporter of losses, and that to the tokens.
        let of_hold = size_of::<Option<Instant>>() + size_of::<bool>() + 2 * size_of::<usize>();
        let each = of_hold + most.div_ceil(HOLDS);
        assert!(each <= 64, "{each} bytes, {of_hold} of them in the hold");
    }

    /// Returns the bytes that the alarm keeps outside of the holds.
    fn bytes(desk: &Desk, schedule: &AlarmSchedule) -> usize {
        let buckets = schedule
            .buckets
            .values()
            .map(|bucket| bucket.holds.capacity());
        let places = desk.inbox.lock().orders.look.capacity() + buckets.sum::<usize>();
        // A node of the tree may be half empty.
        let buckets = 2 * schedule.buckets.len() * size_of::<(Instant, Bucket)>();
        places * size_of::<Weak<Hold>>() + buckets
    }

    #[test]
    fn an_order_wakes_the_thread_only_if_it_sleeps_for_longer() {
        let desk = Desk::default();
        let long = hold(LEASE);
        let short = hold(Duration::from_millis(100));
        let now = long.since;
        desk.order(&long, now);
        assert_eq!(
            desk.inbox.lock().asleep_until,
            Some(now + lease::grid(LEASE))
        );
        desk.inbox.lock().asleep_until = Some(now + Duration::from_millis(50));
        desk.order(&long, now);
        assert_eq!(
            desk.inbox.lock().asleep_until,
            Some(now + Duration::from_millis(50)),
            "soon enough"
        );
        desk.order(&short, now);
        assert_eq!(
            desk.inbox.lock().asleep_until,
            Some(now + lease::grid(Duration::from_millis(100)))
        );
    }

    #[test]
    fn there_is_one_thread_and_it_ends_with_the_last_handle() {
        let alarm = Alarm::of_process().expect("a thread");
        let same = Alarm::of_process().expect("a thread");
        assert!(Arc::ptr_eq(&alarm, &same));
        let short = hold(Duration::from_millis(100));
        let token = short.token();
        same.watch(&short, Instant::now());
        drop(same);
        futures_executor::block_on(token.cancelled());
        let end = short.valid_until();
        assert!(Instant::now() < end + Duration::from_secs(5));
        let desk = Arc::downgrade(&alarm.desk);
        drop(alarm);
        while desk.strong_count() > 0 {
            thread::sleep(STEP);
        }
    }
}
