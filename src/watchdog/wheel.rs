//! The wheel: when each hold is looked at, and what is done then.
//!
//! A tick begins a third of the lease (by default) after the last renewal that succeeded was sent,
//! lasts one command timeout, and fails at most once. An entry never leaves the wheel while its
//! renewal is in flight: before its batch is sent it gets a place at the end of the tick or of
//! validity, whichever is first, so that a loss is noticed even if no answer arrives.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::sleep;

use super::batch::{Answers, DueRenewal};
use super::notes::{Note, Report};
use super::schedule::{EntryRef, Schedule, Until};
use super::{Finding, Judge, WatchOrder};
use crate::clock::{self, Instant};
use crate::error::Loss;
use crate::hold::{Hold, HoldState, Survey};
use crate::lease::{self, NodeIndex};
use crate::op::RenewAnswer;
use crate::options::Settings;
use crate::stats::Counters;

/// After a reconnect everything is renewed within at most this time.
const SPREAD: Duration = Duration::from_secs(1);

/// All entries, by the generation of their holds, and their schedule.
pub(super) struct Wheel {
    schedule: Schedule,
    entries: HashMap<u64, RenewEntry, BuildHasherDefault<Sequential>>,
    rhythm: Rhythm,
    counters: Arc<Counters>,
    /// What is reported after a step.
    notes: Vec<(Arc<Hold>, Note)>,
    report: Report,
}

/// The interval of ticks, and how long they last.
#[derive(Debug, Clone, Copy)]
struct Rhythm {
    grid: Duration,
    command_timeout: Duration,
    renewal_attempts: u32,
}

/// One hold in the wheel. It does not keep the hold alive.
struct RenewEntry {
    hold: Weak<Hold>,
    /// Its current place; older ones do not count.
    placing: u32,
    /// The time before the last renewal that succeeded was sent.
    base: Instant,
    /// When the next tick begins.
    renew_at: Instant,
    /// The end of the tick that is in progress.
    tick_until: Option<Instant>,
    /// When it was last renewed outside of its ticks.
    hinted: Option<Instant>,
    /// Set for an extra tick, which a message or a reconnect asked for: its failure does not count.
    extra: bool,
}

/// Hashes sequential numbers that no outsider chooses, so that holds which were taken one after the
/// other, and so are renewed together, have neighbouring entries.
#[derive(Default)]
struct Sequential(u64);

/// The result of handling an entry.
enum Tended {
    /// It leaves the wheel.
    Leave,
    /// It is looked at again then.
    Stay(Instant, Until),
}

impl Wheel {
    pub(super) fn new(settings: &Settings, counters: Arc<Counters>) -> Self {
        let rhythm = Rhythm {
            grid: lease::grid(settings.lease),
            command_timeout: settings.command_timeout,
            renewal_attempts: settings.renewal_attempts,
        };
        let schedule = Schedule::new(rhythm.grid);
        let entries = HashMap::default();
        Self {
            schedule,
            entries,
            rhythm,
            counters,
            notes: Vec::new(),
            report: Report::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn carry_out(&mut self, orders: Vec<WatchOrder>) {
        for order in orders {
            match order {
                WatchOrder::Watch(hold) => self.insert(hold),
                WatchOrder::Renew(generation) => self.renew_soon(generation, Duration::ZERO),
                WatchOrder::Forget(generation) => _ = self.entries.remove(&generation),
            }
        }
        self.tidy();
    }

    /// Adds a hold, unless it has been released meanwhile.
    fn insert(&mut self, hold: Weak<Hold>) {
        let Some(held) = hold.upgrade().filter(|hold| hold.is_held()) else {
            return;
        };
        let now = Instant::now();
        let base = held.asked_at();
        let renew_at = self.rhythm.tick_at(&held, base, 0, now);
        let entry = RenewEntry {
            hold,
            placing: 0,
            base,
            renew_at,
            tick_until: None,
            hinted: None,
            extra: false,
        };
        let (at, until) = self.rhythm.next_look(&held, &held.survey(now), &entry);
        self.schedule.put(
            at,
            until,
            EntryRef {
                generation: held.generation,
                placing: 0,
            },
        );
        self.entries.insert(held.generation, entry);
    }

    /// Waits until a line is due, and collects those of its holds that have to be renewed.
    /// Cancel-safe: nothing is awaited once the line is taken.
    pub(super) async fn expired(&mut self, renewals: &mut Vec<DueRenewal>, judge: &Judge) {
        // Orders come through the inbox, which wakes the task.
        let Some(first) = self.schedule.first() else {
            return std::future::pending().await;
        };
        let wait = Instant::now().until(first);
        if !wait.is_zero() {
            sleep(wait).await;
        }
        let now = Instant::now();
        if let Some((planned, places)) = self.schedule.take(now) {
            for place in places {
                self.due(place, now, renewals, judge);
            }
            self.tell();
            self.counters
                .renewals_begun(renewals.len(), now.since(planned));
            self.tidy();
        }
    }

    /// Looks at every entry, after time has passed that the timers have not noticed.
    pub(super) fn sweep(&mut self, renewals: &mut Vec<DueRenewal>, judge: &Judge) {
        let now = Instant::now();
        let place = |(generation, entry): (&u64, &RenewEntry)| EntryRef {
            generation: *generation,
            placing: entry.placing,
        };
        let places: Vec<EntryRef> = self.entries.iter().map(place).collect();
        for place in places {
            self.due(place, now, renewals, judge);
        }
        self.tell();
        self.tidy();
    }

    /// Looks at the entry of this place, and gives it its next place.
    fn due(
        &mut self,
        place: EntryRef,
        now: Instant,
        renewals: &mut Vec<DueRenewal>,
        judge: &Judge,
    ) {
        let generation = place.generation;
        // It may have got a new place since, or have left.
        let Some(entry) = self
            .entries
            .get_mut(&generation)
            .filter(|entry| entry.placing == place.placing)
        else {
            return;
        };
        match self
            .rhythm
            .tend(entry, now, renewals, judge, &self.counters, &mut self.notes)
        {
            Tended::Leave => _ = self.entries.remove(&generation),
            Tended::Stay(at, until) => self.schedule.put(at, until, entry.next_place(generation)),
        }
    }

    /// Handles a node's answers to a batch.
    pub(super) fn answered(&mut self, batch: &Answers, judge: &Judge) {
        let now = Instant::now();
        let mut renewed = 0;
        for (hold, said) in batch.holds.iter().zip(&batch.said) {
            match said {
                RenewAnswer::Renewed => {
                    renewed += usize::from(self.renewed(hold, batch.node, batch.sent, None, now));
                }
                RenewAnswer::Cut(left) => {
                    renewed +=
                        usize::from(self.renewed(hold, batch.node, batch.sent, Some(*left), now));
                    judge(Finding::Cut(Arc::clone(hold), *left));
                }
                // For a hold that has left the wheel, "gone" means nothing: it was released while
                // the renewal was in flight.
                RenewAnswer::Gone if !self.entries.contains_key(&hold.generation) => {}
                RenewAnswer::Gone if hold.gone(batch.node) => {
                    _ = self.entries.remove(&hold.generation);
                }
                RenewAnswer::Gone if hold.is_held() => {
                    judge(Finding::VoteLost(Arc::clone(hold), batch.node));
                }
                // A failed renewal is tried again while the tick lasts.
                RenewAnswer::Gone | RenewAnswer::Failed(_) => {}
            }
        }
        self.tell();
        self.counters.renewed(renewed);
        self.tidy();
    }

    fn tell(&mut self) {
        self.report
            .tell(&mut self.notes, &self.counters, Instant::now());
    }

    /// Returns when the next report is due.
    pub(super) fn report_due(&self) -> Option<Instant> {
        self.report.due()
    }

    /// Tells the log what is due.
    pub(super) fn tell_due(&mut self) {
        self.report.tell_due(&self.counters, Instant::now());
    }

    /// Records a node's renewal, which another client may have `cut`. Returns whether it completed
    /// a majority for this hold.
    fn renewed(
        &mut self,
        hold: &Arc<Hold>,
        node: NodeIndex,
        sent: Instant,
        cut: Option<Duration>,
        now: Instant,
    ) -> bool {
        // It was released or lost while its renewal was in flight.
        let Some(entry) = self.entries.get_mut(&hold.generation) else {
            return false;
        };
        let mut survey = hold.survey(now);
        if matches!(survey.state, HoldState::Lost(_)) {
            self.entries.remove(&hold.generation);
            return false;
        }
        let is_renewed = match cut {
            None => hold.renewed(node, sent, now),
            Some(left) => hold.cut_to(left, node, sent),
        };
        if !is_renewed {
            return false;
        }
        self.notes.push((Arc::clone(hold), Note::Renewed));
        if survey.state == HoldState::Jeopardy {
            self.notes.push((Arc::clone(hold), Note::SafeAgain));
        }
        // Invariant 3: the next tick counts from the send, as the validity does.
        entry.base = sent;
        entry.tick_until = None;
        entry.extra = false;
        entry.renew_at = self.rhythm.tick_at(hold, sent, 0, now);
        survey.valid_until = hold.valid_until();
        let (at, until) = self.rhythm.next_look(hold, &survey, entry);
        self.schedule
            .put(at, until, entry.next_place(hold.generation));
        true
    }

    /// Renews a hold within this time, unless an extra tick began a moment ago.
    fn renew_soon(&mut self, generation: u64, within: Duration) {
        let Some(entry) = self.entries.get_mut(&generation) else {
            return;
        };
        // A fixed lease is renewed by nothing, whatever is heard about its key.
        let Some(hold) = entry.hold.upgrade().filter(|hold| hold.terms.renewed) else {
            return;
        };
        let now = Instant::now();
        // Any client can send messages. They cause at most ten renewals a lease.
        let pause = hold.terms.lease / 10;
        if entry.tick_until.is_some() || entry.hinted.is_some_and(|last| now.since(last) < pause) {
            return;
        }
        entry.hinted = Some(now);
        entry.extra |= now + within < entry.renew_at;
        entry.renew_at = entry.renew_at.min(now + within);
        let (at, until) = self.rhythm.next_look(&hold, &hold.survey(now), entry);
        self.schedule.put(at, until, entry.next_place(generation));
    }

    /// Renews everything, spread a little, since after a reconnect the outcome of commands in
    /// flight is unknown.
    pub(super) fn renew_all(&mut self) {
        let generations: Vec<u64> = self.entries.keys().copied().collect();
        for generation in generations {
            let Some(hold) = self
                .entries
                .get(&generation)
                .and_then(|entry| entry.hold.upgrade())
            else {
                continue;
            };
            // At most half of an interval: a short lease must not run out meanwhile.
            let spread = SPREAD.min(self.rhythm.interval(&hold) / 2);
            if let Some(entry) = self.entries.get_mut(&generation) {
                // A connection that is new says more than a message that came a moment ago.
                entry.hinted = None;
            }
            self.renew_soon(generation, spread.mul_f64(fastrand::f64()));
        }
    }

    fn tidy(&mut self) {
        let stands = |place: &EntryRef| {
            self.entries
                .get(&place.generation)
                .is_some_and(|entry| entry.placing == place.placing)
        };
        self.schedule.tidy(self.entries.len(), stands);
        // After a peak.
        if self.entries.capacity() > 1_024 && self.entries.len() < self.entries.capacity() / 8 {
            self.entries.shrink_to(2 * self.entries.len());
        }
    }
}

impl RenewEntry {
    /// Returns a new place, which outdates the ones before it.
    fn next_place(&mut self, generation: u64) -> EntryRef {
        self.placing = self.placing.wrapping_add(1);
        EntryRef {
            generation,
            placing: self.placing,
        }
    }
}

impl Rhythm {
    /// Handles an entry that is due: what has ended, what has to be renewed, and when to look
    /// again.
    fn tend(
        self,
        entry: &mut RenewEntry,
        now: Instant,
        renewals: &mut Vec<DueRenewal>,
        judge: &Judge,
        counters: &Counters,
        notes: &mut Vec<(Arc<Hold>, Note)>,
    ) -> Tended {
        let Some(hold) = entry.hold.upgrade() else {
            return Tended::Leave;
        };
        // A look may be late, so the tokens fire a little before the end.
        let survey = hold.survey(now + early());
        if matches!(survey.state, HoldState::Lost(_)) {
            return Tended::Leave;
        }
        if survey.claims.revoke_at.is_some_and(|at| now >= at) && hold.revoke() {
            judge(Finding::Revoked(hold));
            return Tended::Leave;
        }
        if entry.tick_until.is_some_and(|until| now >= until) {
            entry.tick_until = None;
            counters.renewal_failed();
            let failed = if std::mem::take(&mut entry.extra) {
                hold.failed_ticks()
            } else {
                hold.tick_failed()
            };
            if failed >= self.renewal_attempts {
                hold.lose(Loss::RenewalFailed);
                notes.push((hold, Note::FailedLast));
                return Tended::Leave;
            }
            notes.push((Arc::clone(&hold), Note::Failed(failed)));
            entry.renew_at = self.tick_at(&hold, entry.base, failed, now);
        }
        if entry.tick_until.is_none()
            && hold.terms.renewed
            && survey.claims.claimed
            && now >= entry.renew_at
        {
            let until = now + self.command_timeout;
            entry.tick_until = Some(until);
            renewals.push(DueRenewal {
                hold: Arc::clone(&hold),
                until,
            });
        }
        let (at, until) = self.next_look(&hold, &survey, entry);
        Tended::Stay(at, until)
    }

    /// Returns when a hold has to be looked at next: when a tick begins or ends, when its validity
    /// ends, or when a grant that no caller took is revoked.
    fn next_look(self, hold: &Hold, survey: &Survey, entry: &RenewEntry) -> (Instant, Until) {
        let end = survey.valid_until.before(early());
        let end = survey.claims.revoke_at.map_or(end, |at| end.min(at));
        // A hold without a guard at a caller is not renewed.
        if !hold.terms.renewed || !survey.claims.claimed {
            return (end, Until::End);
        }
        match entry.tick_until {
            Some(until) => (until.min(end), Until::End),
            // A tick may wait for the rest of its line, unless the hold may end before that.
            None if entry.renew_at + self.grid + self.grid < end => (entry.renew_at, Until::Tick),
            None => (entry.renew_at.min(end), Until::End),
        }
    }

    /// Returns when the tick after this many failures begins: on the grid, so that batches fill,
    /// and never in the past.
    fn tick_at(self, hold: &Hold, base: Instant, failed: u32, now: Instant) -> Instant {
        let interval = self.interval(hold);
        // A coarse grid must not bring the ticks of a short lease forward by much.
        (base + interval * (failed + 1))
            .round_down(self.grid.min(interval / 10))
            .max(now)
    }

    fn interval(self, hold: &Hold) -> Duration {
        lease::tick_interval(hold.trusted_lease(), self.renewal_attempts)
    }
}

/// Returns how long before the end of its validity a hold is lost: zero while time is paused, since
/// then no look is late.
fn early() -> Duration {
    if clock::is_paused() {
        Duration::ZERO
    } else {
        lease::ARM_EARLY
    }
}

impl Hasher for Sequential {
    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes
            .iter()
            .for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    /// The table takes the position from the low bits, and a tag that distinguishes neighbours from
    /// the seven highest.
    fn finish(&self) -> u64 {
        self.0 ^ (self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 57 << 57)
    }
}

impl Drop for Wheel {
    fn drop(&mut self) {
        for hold in self
            .entries
            .values()
            .filter_map(|entry| entry.hold.upgrade())
        {
            hold.lose(Loss::RenewalFailed);
        }
        self.report.end(&self.counters);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::pin::pin;
    use std::sync::Mutex;

    use super::*;
    use crate::hold::Terms;
    use crate::options::Options;
    use crate::owner::Owner;

    const LEASE: Duration = Duration::from_secs(30);
    const TERMS: Terms = Terms {
        lease: LEASE,
        renewed: true,
        max_hold: None,
    };

    fn wheel() -> Wheel {
        Wheel::new(
            &Options::default().validate(1).expect("valid"),
            Arc::new(Counters::new()),
        )
    }

    /// Returns a hold that its caller has taken.
    fn hold(terms: Terms, votes: &[usize], nodes: usize) -> Arc<Hold> {
        let hold = Arc::new(Hold::for_test(Owner::task(1), terms, votes, nodes));
        assert!(hold.take_guard());
        hold
    }

    fn no_finding() -> Judge {
        Box::new(|finding| panic!("{finding:?}"))
    }

    fn entry(wheel: &Wheel) -> &RenewEntry {
        wheel.entries.get(&1).expect("in the wheel")
    }

    fn look(wheel: &mut Wheel, now: Instant, renewals: &mut Vec<DueRenewal>, judge: &Judge) {
        wheel.due(
            EntryRef {
                generation: 1,
                placing: entry(wheel).placing,
            },
            now,
            renewals,
            judge,
        );
    }

    /// Returns the places of the entry that are not outdated.
    fn places(wheel: &mut Wheel) -> Vec<Instant> {
        let far = Instant::now() + Duration::from_secs(86_400);
        let mut schedule = std::mem::replace(&mut wheel.schedule, Schedule::new(wheel.rhythm.grid));
        let mut counting = Vec::new();
        let placing = entry(wheel).placing;
        while let Some((at, places)) = schedule.take(far) {
            for place in places.iter().filter(|place| place.placing == placing) {
                counting.push(at);
                wheel.schedule.put(at, Until::End, *place);
            }
        }
        counting
    }

    #[test]
    fn an_entry_has_one_place_during_its_renewal_and_after() {
        let mut wheel = wheel();
        let hold = hold(TERMS, &[0], 1);
        let judge = no_finding();
        wheel.carry_out(vec![WatchOrder::Watch(Arc::downgrade(&hold))]);
        let begin = hold.since + LEASE / 3;
        let planned = places(&mut wheel);
        assert!(
            planned.len() == 1 && planned[0] <= begin + Duration::from_millis(1),
            "a third, rounded down"
        );
        let mut renewals = Vec::new();
        look(&mut wheel, begin, &mut renewals, &judge);
        assert_eq!(renewals.len(), 1);
        let end = begin + wheel.rhythm.command_timeout;
        assert_eq!(
            places(&mut wheel),
            [end.round_up(Duration::from_millis(1))],
            "no answer has to come"
        );
        look(
            &mut wheel,
            begin + Duration::from_millis(5),
            &mut renewals,
            &judge,
        );
        assert_eq!(renewals.len(), 1, "a tick renews once");
        let holds: Arc<[Arc<Hold>]> = Arc::new([Arc::clone(&hold)]);
        let stale = EntryRef {
            generation: 1,
            placing: entry(&wheel).placing,
        };
        wheel.answered(
            &Answers {
                node: 0,
                sent: begin,
                holds,
                said: vec![RenewAnswer::Renewed],
            },
            &judge,
        );
        wheel.due(stale, end, &mut renewals, &judge);
        assert_eq!(
            hold.at(end),
            HoldState::Safe,
            "the end of a tick that succeeded is none"
        );
        let next = places(&mut wheel);
        assert!(
            next.len() == 1 && begin.until(next[0]) > LEASE / 3 - wheel.rhythm.grid,
            "{next:?}"
        );
        assert_eq!(
            (entry(&wheel).base, entry(&wheel).tick_until),
            (begin, None)
        );
    }

    #[test]
    fn an_answer_for_one_key_does_not_affect_others() {
        let mut wheel = wheel();
        let judge = no_finding();
        let (hold, stranger) = (hold(TERMS, &[0], 1), hold(TERMS, &[0], 1));
        wheel.carry_out(vec![WatchOrder::Watch(Arc::downgrade(&hold))]);
        let begin = hold.since + LEASE / 3;
        look(&mut wheel, begin, &mut Vec::new(), &judge);
        let (holds, said) = (
            Arc::new([Arc::clone(&hold)]),
            vec![RenewAnswer::Failed("OOM".to_owned())],
        );
        wheel.answered(
            &Answers {
                node: 0,
                sent: begin,
                holds,
                said,
            },
            &judge,
        );
        assert!(
            entry(&wheel).tick_until.is_some(),
            "it is being tried again"
        );
        wheel.entries.remove(&1);
        let (holds, said) = (Arc::new([Arc::clone(&stranger)]), vec![RenewAnswer::Gone]);
        wheel.answered(
            &Answers {
                node: 0,
                sent: begin,
                holds,
                said,
            },
            &judge,
        );
        assert!(
            stranger.is_held(),
            "a hold that has left the wheel was released: gone means nothing"
        );
    }

    #[test]
    fn a_tick_of_several_nodes_succeeds_with_the_majority() {
        let mut wheel = wheel();
        let hold = hold(TERMS, &[0, 1, 2], 3);
        let judge = no_finding();
        wheel.carry_out(vec![WatchOrder::Watch(Arc::downgrade(&hold))]);
        let begin = hold.since + LEASE / 3;
        look(&mut wheel, begin, &mut Vec::new(), &judge);
        let answer = |node| {
            let holds: Arc<[Arc<Hold>]> = Arc::new([Arc::clone(&hold)]);
            Answers {
                node,
                sent: begin,
                holds,
                said: vec![RenewAnswer::Renewed],
            }
        };
        wheel.answered(&answer(2), &judge);
        assert!(entry(&wheel).tick_until.is_some(), "one of three");
        wheel.answered(&answer(0), &judge);
        assert!(entry(&wheel).tick_until.is_none());
        assert_eq!(hold.valid_until(), lease::valid_until(begin, LEASE));
    }

    #[test]
    fn ticks_without_an_answer_end_in_a_loss() {
        let mut wheel = wheel();
        let hold = hold(TERMS, &[0], 1);
        let judge = no_finding();
        wheel.carry_out(vec![WatchOrder::Watch(Arc::downgrade(&hold))]);
        let timeout = wheel.rhythm.command_timeout;
        for (third, state) in [
            (1, HoldState::Jeopardy),
            (2, HoldState::Lost(Loss::RenewalFailed)),
        ] {
            let begin = hold.since + LEASE / 3 * third;
            let mut renewals = Vec::new();
            look(&mut wheel, begin, &mut renewals, &judge);
            assert_eq!(renewals.len(), 1);
            look(&mut wheel, begin + timeout, &mut renewals, &judge);
            assert_eq!((renewals.len(), hold.at(begin + timeout)), (1, state));
        }
        assert!(wheel.is_empty());
    }

    #[test]
    fn a_hold_that_is_not_renewed_is_looked_at_when_it_ends() {
        let terms = Terms {
            renewed: false,
            ..TERMS
        };
        let mut wheel = wheel();
        let hold = hold(terms, &[0], 1);
        wheel.carry_out(vec![WatchOrder::Watch(Arc::downgrade(&hold))]);
        let end = hold.valid_until().before(lease::ARM_EARLY);
        assert_eq!(places(&mut wheel), [end.round_up(Duration::from_millis(1))]);
        wheel.carry_out(vec![WatchOrder::Forget(1)]);
        assert!(wheel.is_empty());
    }

    /// Returns a judge and its record: the node where a vote was lost, or none for a grant that was
    /// revoked.
    fn listening() -> (Judge, Arc<Mutex<Vec<Option<usize>>>>) {
        let told = Arc::new(Mutex::new(Vec::new()));
        let tells = Arc::clone(&told);
        let judge: Judge = Box::new(move |finding| {
            let finding = match finding {
                Finding::VoteLost(_, node) => Some(node),
                Finding::Revoked(_) | Finding::Cut(..) => None,
                finding @ Finding::Panicked(_) => panic!("{finding:?}"),
            };
            tells.lock().expect("sound").push(finding);
        });
        (judge, told)
    }

    fn answer(wheel: &mut Wheel, hold: &Arc<Hold>, node: usize, said: RenewAnswer, judge: &Judge) {
        let answers = Answers {
            node,
            sent: hold.since,
            holds: Arc::new([Arc::clone(hold)]),
            said: vec![said],
        };
        wheel.answered(&answers, judge);
    }

    #[test]
    fn renewals_and_the_end_of_a_jeopardy_are_noted() {
        let mut wheel = wheel();
        let hold = hold(TERMS, &[0], 1);
        wheel.carry_out(vec![WatchOrder::Watch(Arc::downgrade(&hold))]);
        let mut notes = |after| {
            assert!(wheel.renewed(&hold, 0, hold.since + after, None, hold.since));
            wheel
                .notes
                .drain(..)
                .map(|(_, note)| matches!(note, Note::SafeAgain))
                .collect::<Vec<_>>()
        };
        assert_eq!(notes(Duration::from_millis(1)), [false]);
        hold.tick_failed();
        assert_eq!(notes(Duration::from_millis(2)), [false, true]);
        let holds = Arc::new([Arc::clone(&hold)]);
        let sent = hold.since + Duration::from_millis(3);
        wheel.answered(
            &Answers {
                node: 0,
                sent,
                holds,
                said: vec![RenewAnswer::Renewed],
            },
            &no_finding(),
        );
        assert_eq!(
            (
                wheel.counters.stats(&Default::default(), 0, 0).renewals,
                wheel.notes.len()
            ),
            (1, 0)
        );
    }

    #[tokio::test]
    async fn nothing_expires_before_its_time() {
        let mut wheel = wheel();
        let hold = hold(TERMS, &[0], 1);
        let mut renewals = Vec::new();
        let judge = no_finding();
        assert!(
            futures_util::poll!(pin!(wheel.expired(&mut renewals, &judge))).is_pending(),
            "it is empty"
        );
        wheel.carry_out(vec![WatchOrder::Watch(Arc::downgrade(&hold))]);
        assert!(futures_util::poll!(pin!(wheel.expired(&mut renewals, &judge))).is_pending());
    }

    #[test]
    fn a_lock_gone_on_a_minority_is_reported_and_on_a_majority_lost() {
        let (judge, told) = listening();
        let mut wheel = wheel();
        let hold = hold(TERMS, &[0, 1, 2], 3);
        wheel.carry_out(vec![WatchOrder::Watch(Arc::downgrade(&hold))]);
        answer(&mut wheel, &hold, 1, RenewAnswer::Gone, &judge);
        assert_eq!(
            (
                &*told.lock().expect("sound"),
                hold.is_held(),
                wheel.is_empty()
            ),
            (&vec![Some(1)], true, false)
        );
        answer(&mut wheel, &hold, 2, RenewAnswer::Gone, &judge);
        assert_eq!(hold.at(hold.since), HoldState::Lost(Loss::NotOwner));
        assert!(wheel.is_empty() && told.lock().expect("sound").len() == 1);
    }

    #[test]
    fn a_lock_gone_during_its_release_is_not_reported() {
        let mut wheel = wheel();
        let hold = hold(TERMS, &[0, 1, 2], 3);
        wheel.carry_out(vec![WatchOrder::Watch(Arc::downgrade(&hold))]);
        hold.leave(hold.since);
        answer(&mut wheel, &hold, 1, RenewAnswer::Gone, &no_finding());
    }

    #[test]
    fn an_extra_tick_begins_at_once_and_its_failure_does_not_count() {
        let mut wheel = wheel();
        let hold = hold(TERMS, &[0], 1);
        let judge = no_finding();
        wheel.carry_out(vec![
            WatchOrder::Watch(Arc::downgrade(&hold)),
            WatchOrder::Renew(1),
        ]);
        let placing = entry(&wheel).placing;
        assert!(entry(&wheel).extra && entry(&wheel).renew_at <= Instant::now());
        wheel.carry_out(vec![WatchOrder::Renew(1)]);
        assert_eq!(
            entry(&wheel).placing,
            placing,
            "that was asked for a moment ago"
        );
        let now = Instant::now();
        let timeout = wheel.rhythm.command_timeout;
        let mut renewals = Vec::new();
        look(&mut wheel, now, &mut renewals, &judge);
        look(&mut wheel, now + timeout, &mut renewals, &judge);
        assert_eq!(
            (renewals.len(), hold.at(now), hold.failed_ticks()),
            (1, HoldState::Safe, 0)
        );
        look(&mut wheel, hold.since + LEASE / 3, &mut renewals, &judge);
        assert_eq!(
            renewals.len(),
            2,
            "the tick that it came before begins in its turn"
        );
        let placing = entry(&wheel).placing;
        wheel.entries.get_mut(&1).expect("in the wheel").hinted = None;
        wheel.carry_out(vec![WatchOrder::Renew(1)]);
        assert_eq!(entry(&wheel).placing, placing, "a tick is in progress");
    }

    #[test]
    fn a_due_tick_is_not_extra_and_extra_ones_are_a_tenth_apart() {
        let mut wheel = wheel();
        let hold = hold(TERMS, &[0], 1);
        wheel.carry_out(vec![WatchOrder::Watch(Arc::downgrade(&hold))]);
        let now = Instant::now();
        let placing = entry(&wheel).placing;
        let entered = wheel.entries.get_mut(&1).expect("in the wheel");
        (entered.renew_at, entered.hinted) = (now, Some(now.before(LEASE / 10)));
        wheel.carry_out(vec![WatchOrder::Renew(1)]);
        assert!(entry(&wheel).placing != placing && !entry(&wheel).extra);
    }

    #[test]
    fn after_a_reconnect_everything_is_renewed_well_before_its_tick() {
        let lease = Duration::from_secs(3);
        let mut wheel = wheel();
        let hold = hold(Terms { lease, ..TERMS }, &[0], 1);
        wheel.carry_out(vec![WatchOrder::Watch(Arc::downgrade(&hold))]);
        let planned = entry(&wheel).renew_at;
        for _ in 0..64 {
            wheel.entries.get_mut(&1).expect("in the wheel").renew_at = planned;
            wheel.renew_all();
            assert!(
                entry(&wheel).renew_at <= Instant::now() + lease / 6,
                "half a tick"
            );
            assert!(
                entry(&wheel).extra,
                "even if it was renewed out of turn a moment ago"
            );
        }
    }

    #[test]
    fn outdated_places_are_forgotten_and_current_ones_are_not() {
        let mut wheel = wheel();
        let hold = hold(TERMS, &[0], 1);
        let judge = no_finding();
        wheel.carry_out(vec![WatchOrder::Watch(Arc::downgrade(&hold))]);
        for n in 1..2_000 {
            let (holds, sent) = (
                Arc::new([Arc::clone(&hold)]),
                hold.since + Duration::from_micros(n),
            );
            wheel.answered(
                &Answers {
                    node: 0,
                    sent,
                    holds,
                    said: vec![RenewAnswer::Renewed],
                },
                &judge,
            );
        }
        assert!(wheel.schedule.len() <= 1_003, "{}", wheel.schedule.len());
        assert_eq!(places(&mut wheel).len(), 1);
    }

    #[test]
    fn a_tick_waits_for_its_line_unless_its_hold_may_end_before() {
        let wheel = wheel();
        let hold = hold(TERMS, &[0], 1);
        let rhythm = wheel.rhythm;
        let survey = hold.survey(hold.since);
        let end = survey.valid_until.before(early());
        let mut entry = RenewEntry {
            hold: Arc::downgrade(&hold),
            placing: 0,
            base: hold.since,
            renew_at: end.before(rhythm.grid * 2 + Duration::from_nanos(1)),
            tick_until: None,
            hinted: None,
            extra: false,
        };
        assert_eq!(
            rhythm.next_look(&hold, &survey, &entry),
            (entry.renew_at, Until::Tick)
        );
        entry.renew_at = end.before(rhythm.grid * 2);
        assert_eq!(
            rhythm.next_look(&hold, &survey, &entry),
            (entry.renew_at, Until::End)
        );
        entry.renew_at = end + rhythm.grid;
        assert_eq!(rhythm.next_look(&hold, &survey, &entry), (end, Until::End));
    }

    #[test]
    fn ticks_of_short_leases_are_rounded_by_at_most_a_tenth() {
        let lease = Duration::from_millis(90);
        let wheel = wheel();
        let hold = hold(Terms { lease, ..TERMS }, &[0], 1);
        let tick = wheel.rhythm.tick_at(&hold, hold.since, 0, hold.since);
        assert!(
            hold.since.until(tick) >= lease / 3 - lease / 30,
            "{:?}",
            hold.since.until(tick)
        );
    }

    #[test]
    fn sequential_numbers_are_neighbours_and_differ_in_the_top_bits() {
        let hash = |number| {
            let mut hasher = Sequential::default();
            hasher.write_u64(number);
            hasher.finish()
        };
        let numbers = 1_000..1_128;
        assert!(
            numbers
                .clone()
                .all(|number| hash(number) << 7 == number << 7)
        );
        let tags: HashSet<u64> = numbers.map(|number| hash(number) >> 57).collect();
        assert!(tags.len() > 100, "{}", tags.len());
        let far = 0xFF << 56;
        assert_ne!(
            hash(far) >> 57,
            far >> 57,
            "what is there already is mixed and not covered"
        );
        let hash = |bytes: &[u8]| {
            let mut hasher = Sequential::default();
            hasher.write(bytes);
            hasher.finish()
        };
        let hashes = [
            [1, 0, 0, 0, 0, 0, 0, 0, 0],
            [1, 0, 0, 0, 0, 0, 0, 0, 1],
            [0; 9],
        ]
        .map(|bytes| hash(&bytes));
        assert!(
            hashes[0] != hashes[1] && hashes[0] != hashes[2],
            "each byte counts"
        );
    }

    #[test]
    fn dropping_the_wheel_loses_all_holds() {
        let mut wheel = wheel();
        let hold = hold(TERMS, &[0], 1);
        wheel.carry_out(vec![WatchOrder::Watch(Arc::downgrade(&hold))]);
        drop(wheel);
        assert!(hold.token().is_cancelled());
    }
}
