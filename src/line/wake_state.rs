//! The messages that a line has got since it asked for a lock, and when it has to check the lock by
//! itself.
//!
//! A locker in the list of a lock is woken by name: *go* when it is its turn, *watch* when it is
//! that of the one before it, and *turn* when clients outside of the list have one; their message
//! follows. Messages that come while a command is in flight are kept.
//!
//! Messages of the channel come from clients that use no list. The first in the list asks
//! immediately. The others give that, and a turn of others, time: they ask 60 ms later, and 2 ms
//! more for each locker before them, unless another message arrives. When a lease ends for which
//! all of them wait, they ask 2 ms apart.

use std::collections::BTreeSet;
use std::time::Duration;

use super::outside_waiters::{Ended, Given, LONG};
use crate::clock::Instant;
use crate::lease::NodeIndex;

/// How long a woken locker has until the next one checks the lock: enough for a message and a
/// script on a busy machine.
const WATCH: Duration = Duration::from_millis(20);

/// By how much later each locker checks than the one before it.
const APART: Duration = Duration::from_millis(2);

/// The latest check.
const LATEST: Duration = Duration::from_millis(200);

/// The longest time for which messages of the channel are no reason to ask.
const QUIET: u32 = 64;

/// A wake-up of one locker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum WakeUp {
    Go,
    Watch,
    /// For so long.
    Turn(Duration),
}

impl WakeUp {
    /// Parses a message: the wake-up, and the name of the lock.
    pub(crate) fn parse(text: &str) -> Option<(Self, &str)> {
        let (word, name) = text.split_once(' ')?;
        let wake_up = match word {
            "go" => Self::Go,
            "watch" => Self::Watch,
            "turn" => {
                let (millis, name) = name.split_once(' ')?;
                // Any client may send a message, and no turn is longer.
                return Some((
                    Self::Turn(Duration::from_millis(millis.parse().ok()?).min(LONG)),
                    name,
                ));
            }
            _ => return None,
        };
        Some((wake_up, name))
    }
}

/// The messages that a line has got since it asked, or since its locker released the lock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct WakeState {
    /// The servers of which a message of the channel has come, until they are a majority.
    heard: BTreeSet<NodeIndex>,
    /// Set if there is a reason to ask now.
    go: bool,
    /// When there is a reason to ask, if no message arrives before.
    look: Option<Instant>,
    /// How many lockers are before it in the list, if that is known.
    place: Option<u64>,
    /// Set if the release of its own locker woke another one: there is nothing to ask for yet.
    passed_on: bool,
    /// While its locker releases the lock: how many messages of the channel have come. One of them
    /// may be from that release.
    released: Option<u32>,
    /// Set if the next message of the channel is the one that gave others their turn.
    skips: bool,
    turn: OutsideTurn,
    strangers: Strangers,
}

/// A turn of others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
enum OutsideTurn {
    #[default]
    None,
    /// It began then. The next message of the channel after the one that began the turn is theirs.
    Lasts(Instant),
    /// So long after it began, if its time was not over.
    Taken(Option<Duration>),
    /// Its time is over: the server's next answer shows whether somebody has the lock.
    Over,
    /// Somebody has it. If they have, its release sends a message of the channel, and otherwise a
    /// wake-up.
    Held,
    /// This locker gave it to them, and the first of the list times it.
    Given(Given),
}

/// Messages of the channel that are about another lock: databases of one server, and cluster nodes,
/// share channels.
///
/// After such a message the same hold is still there. The more of these come in a row, the longer
/// the next ones are no reason to ask.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
struct Strangers {
    /// The line asks because of a message of the channel.
    told: bool,
    /// When the lease of the last holder ends.
    lease: Option<Instant>,
    in_a_row: u32,
    /// Messages are no reason to ask until then.
    quiet: Option<Instant>,
}

/// The circumstances of the next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct AttemptCause {
    /// Its time to check has come: the locker whose turn it was has not acted.
    pub(super) looked: bool,
    /// Others took the turn that was given to them.
    pub(super) taken: Option<Ended>,
}

impl WakeState {
    /// Returns each point in time that it remembers.
    #[cfg(test)]
    pub(super) fn times(&mut self) -> impl Iterator<Item = &mut Instant> {
        let (since, given) = match &mut self.turn {
            OutsideTurn::Lasts(since) => (Some(since), None),
            OutsideTurn::Given(given) => (None, Some(given)),
            _ => (None, None),
        };
        let given = given
            .into_iter()
            .flat_map(|given| [&mut given.since, &mut given.end]);
        let strangers = [&mut self.strangers.lease, &mut self.strangers.quiet];
        self.look
            .iter_mut()
            .chain(since)
            .chain(given)
            .chain(strangers.into_iter().flatten())
    }

    /// Begins an attempt. Messages from before it say nothing about its result.
    pub(super) fn begin(&mut self, now: Instant) -> AttemptCause {
        let is_due = !self.go && self.look.is_some_and(|look| look <= now);
        let taken = match self.turn {
            OutsideTurn::Taken(after) => Some(Ended::Taken(after)),
            _ => None,
        };
        let turn = match self.turn {
            OutsideTurn::Lasts(_) if is_due => OutsideTurn::Over,
            // It asks for another reason than a call, so the outcome of the turn is yet to come.
            OutsideTurn::Held | OutsideTurn::Given(_) if !self.go => self.turn,
            _ => OutsideTurn::None,
        };
        let begun = AttemptCause {
            looked: is_due && self.place.is_some(),
            taken,
        };
        *self = Self {
            turn,
            strangers: self.strangers,
            ..Self::default()
        };
        begun
    }

    /// Records that another owner holds the lock, for so long if it is not renewed.
    pub(super) fn held(&mut self, place: Option<u64>, ttl: Option<Duration>, now: Instant) {
        // A wake-up that came meanwhile is more recent.
        self.place = self.place.or(place);
        if self.turn == OutsideTurn::Over {
            self.turn = OutsideTurn::Held;
        }
        self.strangers.held(ttl.map(|ttl| now + ttl), now);
    }

    /// Records that it is granted. Returns the outcome of a turn of others that has ended.
    pub(super) fn granted(&mut self) -> Option<Ended> {
        (self.place, self.strangers) = (None, Strangers::default());
        matches!(
            std::mem::take(&mut self.turn),
            OutsideTurn::Over | OutsideTurn::Given(_)
        )
        .then_some(Ended::NotTaken)
    }

    /// Records that its locker releases the lock. Messages from while it held the lock say nothing.
    pub(super) fn release(&mut self) {
        *self = Self {
            released: Some(0),
            ..Self::default()
        };
    }

    /// Records that this release woke another locker, or gave others their `turn`, with this many
    /// before this one in the list.
    pub(super) fn pass_on(&mut self, place: u64, turn: Option<Given>, now: Instant) {
        // The line has asked since, and that answer is more recent.
        let Some(heard) = self.released.take() else {
            return;
        };
        // The first one behind the locker that was woken watches it, without being told.
        (self.place, self.passed_on) = (self.place.or(Some(place)), true);
        if place == 1 {
            self.look.get_or_insert(now + WATCH);
        }
        self.skips |= turn.is_some() && heard == 0;
        self.turn = turn.map_or(self.turn, OutsideTurn::Given);
        // A release that gives others a turn has sent one of the messages itself.
        if heard > u32::from(turn.is_some()) {
            self.message(now);
        }
    }

    /// Records that the release of its locker has called the one that is next in a queue.
    pub(super) fn leave_to_next(&mut self) {
        self.passed_on = true;
    }

    /// Records that others have a turn, and that no locker is in the list. If the locker `listens`,
    /// a message of its own release comes.
    pub(super) fn give_turn(&mut self, given: Given, listens: bool, now: Instant) {
        let Some(heard) = self.released.take() else {
            return;
        };
        self.leave_turn(given, listens && heard == 0);
        if heard > u32::from(listens) {
            self.message(now);
        }
    }

    /// Records that the line begins to listen while others have a turn that its locker gave them.
    /// The message of that turn is yet to come, or has come.
    pub(super) fn leave_turn(&mut self, given: Given, comes: bool) {
        (self.passed_on, self.skips) = (true, comes);
        if given.alone {
            (self.turn, self.look) = (OutsideTurn::Lasts(given.since), Some(given.end));
        } else {
            // The first of the list checks at the end of the turn.
            (self.turn, self.look) = (OutsideTurn::Given(given), Some(given.end + APART));
        }
    }

    /// Records that no message arrived for as long as it waits for one.
    pub(super) fn oversleep(&mut self, now: Instant) {
        if self.place.is_some() {
            self.look.get_or_insert(now);
        }
    }

    /// Returns whether the line has nothing to ask for, since another locker has just been woken.
    pub(super) fn take_passed_on(&mut self) -> bool {
        // A wake-up that came since is a reason all the same.
        std::mem::take(&mut self.passed_on) && !self.go
    }

    /// Records a wake-up. Returns the outcome of a turn of others that this locker gave.
    pub(super) fn wake_up(&mut self, wake_up: WakeUp, now: Instant) -> Option<Ended> {
        // A locker of the list has released the lock. If it took the lock before the end of the
        // turn, it is unknown whether the others would have taken that.
        let ended = match self.turn {
            OutsideTurn::Given(given) if given.end <= now => Some(Ended::NotTaken),
            _ => None,
        };
        if matches!(self.turn, OutsideTurn::Held | OutsideTurn::Given(_)) {
            self.turn = OutsideTurn::None;
        }
        match wake_up {
            WakeUp::Go => self.go = true,
            WakeUp::Watch => (self.place, self.look) = (Some(0), Some(now + WATCH)),
            WakeUp::Turn(length) => {
                (self.place, self.look) = (Some(0), Some(now + length));
                (self.skips, self.turn) = (true, OutsideTurn::Lasts(now));
            }
        }
        ended
    }

    /// Records a server's message of the channel. Returns whether a majority has sent one.
    pub(super) fn hear(&mut self, node: NodeIndex, majority: usize, now: Instant) -> bool {
        self.heard.insert(node);
        // A release sends one on each server of a majority. What is undone on a minority is no
        // reason to ask.
        let is_heard = self.heard.len() >= majority;
        if is_heard {
            self.heard.clear();
            self.message(now);
        }
        is_heard
    }

    /// Records messages of a majority.
    pub(super) fn message(&mut self, now: Instant) {
        if std::mem::take(&mut self.skips) {
            return;
        }
        if let Some(heard) = &mut self.released {
            *heard += 1;
            return;
        }
        match self.turn {
            OutsideTurn::Lasts(since) => {
                (self.turn, self.go) = (OutsideTurn::Taken(Some(now.since(since))), true);
                return;
            }
            OutsideTurn::Held => self.turn = OutsideTurn::Taken(None),
            OutsideTurn::Given(given) if now < given.end => {
                self.turn = OutsideTurn::Taken(Some(now.since(given.since)));
            }
            // It may have begun the next turn.
            OutsideTurn::Given(_) => self.turn = OutsideTurn::None,
            _ => {}
        }
        match self.place {
            // A locker that is in no list, or the first of one, has no client to leave the lock to.
            None | Some(0) => {
                self.strangers.told = true;
                // After messages about other locks, the next ones wait.
                match self.strangers.quiet.filter(|quiet| *quiet > now) {
                    Some(quiet) => {
                        self.look = Some(self.look.map_or(quiet, |look| look.min(quiet)));
                    }
                    None => self.go = true,
                }
            }
            // It may be the turn of others, which the first of the list times.
            Some(place) => self.look = Some(now + (LONG + WATCH + later(place)).min(LATEST)),
        }
    }

    /// Records that messages may have been missed.
    pub(super) fn missed(&mut self) {
        self.go = true;
    }

    /// Returns when there is a reason to ask: now or earlier, if there is one already.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        if self.go { Some(now) } else { self.look }
    }

    /// Returns whether its locker is in the list, as far as it knows.
    pub(super) fn is_listed(&self) -> bool {
        self.place.is_some()
    }

    /// Returns how much later it checks after the end of a lease for which several lockers wait.
    pub(super) fn delay(&self) -> Duration {
        self.place
            .map_or(Duration::ZERO, |place| later(place).min(LATEST))
    }

    /// Returns whether it is its locker's turn.
    pub(super) fn is_called(&self) -> bool {
        self.go && self.place.is_some()
    }
}

impl Strangers {
    /// Records that another owner holds the lock until then, if it is not renewed.
    fn held(&mut self, lease: Option<Instant>, now: Instant) {
        // The lease of another hold would have begun later. Answers take times of their own.
        let is_same =
            |(last, lease): (Instant, Instant)| last.since(lease).max(lease.since(last)) < APART;
        let is_same = self.lease.zip(lease).is_some_and(is_same);
        (self.told, self.lease, self.in_a_row) = (
            false,
            lease,
            if !is_same {
                0
            } else {
                self.in_a_row + u32::from(self.told)
            },
        );
        let quiet = Duration::from_millis(2_u64.saturating_pow(self.in_a_row).min(QUIET.into()));
        self.quiet = (self.in_a_row > 0).then(|| now + quiet);
    }
}

/// Returns how much later than the first in the list a locker with this place checks.
fn later(place: u64) -> Duration {
    APART * u32::try_from(place).unwrap_or(u32::MAX).min(1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn listed(place: u64, now: Instant) -> WakeState {
        let mut state = WakeState::default();
        state.begin(now);
        state.held(Some(place), None, now);
        state
    }

    #[test]
    fn a_line_outside_of_the_list_goes_at_every_message() {
        let now = Instant::now();
        let mut state = WakeState::default();
        state.held(None, None, now);
        assert_eq!(
            (state.due(now), state.delay(), state.is_listed()),
            (None, Duration::ZERO, false)
        );
        state.message(now);
        assert_eq!(state.due(now), Some(now));
    }

    #[test]
    fn the_first_of_the_list_goes_at_once_and_others_check_in_turn() {
        let now = Instant::now();
        for (place, due) in [(0, 0), (1, 62), (2, 64), (50, 160), (10_000, 200)] {
            let mut state = listed(place, now);
            state.message(now);
            assert_eq!(state.due(now), Some(now + MS * due), "{place}");
        }
    }

    /// While there are messages, some client makes progress.
    #[test]
    fn each_message_restarts_the_wait() {
        let now = Instant::now();
        let mut state = listed(1, now);
        state.message(now);
        state.message(now + 15 * MS);
        assert_eq!(state.due(now), Some(now + 77 * MS));
    }

    #[test]
    fn a_wake_up_before_the_answer_is_kept() {
        let now = Instant::now();
        let mut state = WakeState::default();
        state.begin(now);
        state.wake_up(WakeUp::Go, now);
        state.held(Some(3), None, now);
        assert_eq!(state.due(now), Some(now));
        state.release();
        assert_eq!(state.due(now), None);
        state.wake_up(WakeUp::Go, now);
        state.pass_on(2, None, now);
        assert!(!state.take_passed_on(), "there is something to ask for");
        assert_eq!(state.due(now), Some(now));
    }

    #[test]
    fn a_line_that_watches_checks_the_lock_and_reports_it() {
        let now = Instant::now();
        let mut state = listed(4, now);
        state.wake_up(WakeUp::Watch, now);
        assert_eq!(state.due(now), Some(now + WATCH));
        assert!(!state.begin(now + 19 * MS).looked, "it had another reason");
        state.held(Some(1), None, now);
        state.wake_up(WakeUp::Watch, now);
        assert!(state.begin(now + WATCH).looked);
        assert_eq!(state.due(now), None);
        let mut second = WakeState::default();
        second.release();
        second.pass_on(1, None, now);
        assert!(second.take_passed_on() && !second.take_passed_on());
        assert_eq!(
            second.due(now),
            Some(now + WATCH),
            "the one that its own release woke"
        );
    }

    /// A wake-up during the attempt is more recent than the place in its answer.
    #[test]
    fn a_wake_up_in_an_attempt_outweighs_the_place_in_its_answer() {
        let now = Instant::now();
        let mut state = WakeState::default();
        state.begin(now);
        state.wake_up(WakeUp::Watch, now);
        state.held(Some(5), None, now);
        state.message(now);
        assert_eq!(state.due(now), Some(now));
    }

    #[test]
    fn a_turn_of_others_ends_with_their_message_or_its_time() {
        let now = Instant::now();
        let turn = 10 * MS;
        let mut state = listed(1, now);
        state.wake_up(WakeUp::Turn(turn), now);
        state.message(now);
        assert_eq!(
            state.due(now),
            Some(now + turn),
            "the message that they were told by"
        );
        state.message(now + 3 * MS);
        assert_eq!(state.due(now), Some(now));
        let taken = Some(Ended::Taken(Some(3 * MS)));
        assert_eq!(
            state.begin(now + 3 * MS),
            AttemptCause {
                looked: false,
                taken
            }
        );
        assert_eq!(state.begin(now + 3 * MS).taken, None, "once");
        let mut state = listed(0, now);
        state.wake_up(WakeUp::Turn(turn), now);
        state.message(now);
        assert_eq!(
            state.begin(now + turn),
            AttemptCause {
                looked: true,
                taken: None
            }
        );
        assert_eq!(
            (state.granted(), state.granted()),
            (Some(Ended::NotTaken), None)
        );
    }

    /// A client may keep the lock for longer than its turn.
    #[test]
    fn the_release_behind_a_turn_shows_who_took_it() {
        let now = Instant::now();
        let turn = 10 * MS;
        let after_turn = || {
            let mut state = listed(0, now);
            state.wake_up(WakeUp::Turn(turn), now);
            state.message(now);
            state.begin(now + turn);
            state.held(Some(0), None, now + turn);
            assert_eq!(state.due(now + turn), None);
            state
        };
        let mut state = after_turn();
        assert_eq!(state.begin(now + 15 * MS).taken, None, "a re-check");
        state.held(Some(0), None, now + 15 * MS);
        state.message(now + 20 * MS);
        assert_eq!(state.begin(now + 20 * MS).taken, Some(Ended::Taken(None)));
        let mut state = after_turn();
        state.wake_up(WakeUp::Go, now + 20 * MS);
        assert_eq!(
            state.begin(now + 20 * MS).taken,
            None,
            "a locker of the list came past it"
        );
        assert_eq!(state.granted(), None);
    }

    fn given(now: Instant, alone: bool) -> Given {
        Given {
            since: now,
            end: now + 10 * MS,
            alone,
        }
    }

    /// The message of its own release comes before or after the answer.
    #[test]
    fn a_locker_does_not_use_a_turn_that_it_gave_to_others() {
        let now = Instant::now();
        for heard in [0, 1, 2] {
            let mut state = WakeState::default();
            state.release();
            (0..heard).for_each(|_| state.message(now));
            state.pass_on(2, Some(given(now, false)), now);
            assert_eq!(
                state.due(now),
                (heard == 2).then_some(now + 64 * MS),
                "{heard}"
            );
            if heard == 0 {
                state.message(now);
                assert_eq!(state.due(now), None);
            }
            state.message(now);
            assert_eq!(state.due(now), Some(now + 64 * MS));
        }
        let mut state = WakeState::default();
        state.release();
        state.message(now);
        state.pass_on(2, None, now);
        assert_eq!(
            state.due(now),
            Some(now + 64 * MS),
            "it was that of another"
        );
        let mut state = WakeState::default();
        state.leave_turn(given(now, false), false);
        assert_eq!(
            state.due(now),
            Some(now + 12 * MS),
            "a line that begins during it"
        );
    }

    /// Otherwise it would offer turns for ever if it never is the first of the list.
    #[test]
    fn a_locker_learns_the_outcome_of_a_turn_that_it_gave_to_others() {
        let now = Instant::now();
        let gave = || {
            let mut state = WakeState::default();
            state.release();
            state.pass_on(2, Some(given(now, false)), now);
            state.message(now);
            state
        };
        for (at, ended) in [(9, None), (10, Some(Ended::NotTaken))] {
            assert_eq!(gave().wake_up(WakeUp::Watch, now + at * MS), ended, "{at}");
        }
        for (at, taken) in [(9, Some(Ended::Taken(Some(9 * MS)))), (10, None)] {
            let mut state = gave();
            state.message(now + at * MS);
            assert_eq!(state.begin(now + at * MS).taken, taken, "{at}");
        }
        let mut state = gave();
        state.begin(now + 12 * MS);
        assert_eq!(state.granted(), Some(Ended::NotTaken));
        let mut state = gave();
        state.begin(now + 12 * MS);
        state.held(Some(1), None, now + 12 * MS);
        assert_eq!(
            state.wake_up(WakeUp::Go, now + 13 * MS),
            Some(Ended::NotTaken)
        );
    }

    #[test]
    fn a_locker_that_is_alone_times_the_turn_that_it_gave_to_others() {
        let now = Instant::now();
        for (listens, heard) in [(false, 0), (true, 0), (true, 1)] {
            let released = || {
                let mut state = WakeState::default();
                state.release();
                (0..heard).for_each(|_| state.message(now));
                state.give_turn(given(now, true), listens, now);
                if listens && heard == 0 {
                    state.message(now);
                }
                assert!(state.take_passed_on() && state.due(now) == Some(now + 10 * MS));
                state
            };
            let mut state = released();
            state.message(now + 2 * MS);
            assert_eq!(state.due(now), Some(now));
            let taken = Some(Ended::Taken(Some(2 * MS)));
            assert_eq!(
                state.begin(now + 2 * MS),
                AttemptCause {
                    looked: false,
                    taken
                }
            );
            let mut state = released();
            assert_eq!(
                state.begin(now + 10 * MS),
                AttemptCause {
                    looked: false,
                    taken: None
                },
                "it is in no list"
            );
            assert_eq!(state.granted(), Some(Ended::NotTaken));
        }
        let mut state = WakeState::default();
        state.release();
        (0..2).for_each(|_| state.message(now));
        state.give_turn(given(now, true), true, now);
        assert!(
            !state.take_passed_on(),
            "they took it before the answer arrived"
        );
    }

    /// Each database of a server has locks of its own, and they all share its channels.
    #[test]
    fn messages_that_leave_the_same_hold_are_heeded_ever_less_often() {
        let mut now = Instant::now();
        let lease = 30_000 * MS;
        let end = now + lease;
        let mut state = listed(0, now);
        state.held(Some(0), Some(lease), now);
        for quiet in [0, 2, 4, 8, 16, 32, 64, 64] {
            assert_eq!(state.due(now), None);
            state.message(now);
            state.message(now);
            let due = state.due(now).expect("there was a message");
            assert_eq!(now.until(due), quiet * MS);
            now = due;
            state.begin(now);
            state.held(Some(0), Some(now.until(end)), now);
        }
        state.message(now);
        state.wake_up(WakeUp::Go, now);
        assert_eq!(state.due(now), Some(now), "it is called by its name");
        state.begin(now);
        state.held(Some(0), Some(lease), now);
        state.message(now);
        assert_eq!(state.due(now), Some(now), "there is another hold");
    }

    #[test]
    fn wake_ups_are_read_and_other_messages_are_not() {
        assert_eq!(WakeUp::parse("go a b"), Some((WakeUp::Go, "a b")));
        assert_eq!(WakeUp::parse("watch x"), Some((WakeUp::Watch, "x")));
        assert_eq!(
            WakeUp::parse("turn 10 {x} y"),
            Some((WakeUp::Turn(10 * MS), "{x} y"))
        );
        assert_eq!(
            WakeUp::parse("turn 86400000 x"),
            Some((WakeUp::Turn(LONG), "x")),
            "no caller waits for a day"
        );
        for other in [
            "",
            "go",
            "0",
            "gone x",
            "GO x",
            "turn x",
            "turn -1 x",
            "turn 1",
        ] {
            assert_eq!(WakeUp::parse(other), None, "{other}");
        }
    }
}
