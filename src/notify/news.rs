//! The messages that a driver has got since it asked for a lock, and when it has to check the lock by itself.
//!
//! A locker in the list of a lock is woken by name: *go* when it is its turn, *watch* when it is that of the one before
//! it, and *turn* when clients outside of the list have one; their message follows. Messages of the channel come from
//! clients that know no list: the first in the list goes, and the others check the lock if nothing follows, each a
//! little later than the one before it.

use std::time::Duration;

use super::others::{Ended, TURN};
use crate::clock::Instant;

/// How long a woken locker has until the next one checks the lock: enough for a message and a script on a busy machine.
const WATCH: Duration = Duration::from_millis(20);

/// By how much later each locker checks than the one before it.
const APART: Duration = Duration::from_millis(2);

/// The latest check.
const LATEST: Duration = Duration::from_millis(200);

/// A wake-up of one locker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WakeUp {
    Go,
    Watch,
    Turn,
}

impl WakeUp {
    /// Parses a message: the wake-up, and the name of the lock.
    pub(super) fn parse(text: &str) -> Option<(Self, &str)> {
        let (word, name) = text.split_once(' ')?;
        let wake_up = match word {
            "go" => Self::Go,
            "watch" => Self::Watch,
            "turn" => Self::Turn,
            _ => return None,
        };
        Some((wake_up, name))
    }
}

/// The messages that a driver has got since it asked, or since its locker released the lock.
#[derive(Debug, Default)]
pub(super) struct News {
    /// Set if there is a reason to ask now.
    go: bool,
    /// When there is a reason to ask, if no message comes before.
    look: Option<Instant>,
    /// How many lockers are before it in the list, if that is known.
    place: Option<u64>,
    /// Set if the release of its own locker woke another one: there is nothing to ask for yet.
    passed_on: bool,
    /// While its locker releases the lock: how many messages of the channel have come. One of them may be from that
    /// release.
    released: Option<u32>,
    /// Set if the next message of the channel is the one that gave others their turn.
    skips: bool,
    turn: Turn,
}

/// A turn of others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Turn {
    #[default]
    None,
    /// The next message of the channel after the one that began the turn is theirs.
    Lasts,
    Taken,
    /// Its time is over: the server's next answer shows whether somebody took it.
    Over,
}

/// The circumstances of the driver's next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Begun {
    /// Its time to check has come: the locker whose turn it was has not acted.
    pub(crate) looked: bool,
    /// Others took the turn that was given to them.
    pub(super) taken: bool,
}

impl News {
    /// Begins an attempt. Messages from before it say nothing about its result.
    pub(super) fn begin(&mut self, now: Instant) -> Begun {
        let looked = !self.go && self.look.is_some_and(|look| look <= now);
        let begun = Begun { looked, taken: self.turn == Turn::Taken };
        let is_over = looked && self.turn == Turn::Lasts;
        *self = Self { turn: if is_over { Turn::Over } else { Turn::None }, ..Self::default() };
        begun
    }

    /// Records that another owner holds the lock. Returns the outcome of a turn of others that has ended.
    pub(super) fn held(&mut self, place: Option<u64>) -> Option<Ended> {
        // A wake-up that came meanwhile is more recent.
        self.place = self.place.or(place);
        self.end_turn(Ended::Unknown)
    }

    /// Records that it is granted. Returns the same as [`held`](Self::held).
    pub(super) fn granted(&mut self) -> Option<Ended> {
        self.place = None;
        self.end_turn(Ended::NotTaken)
    }

    fn end_turn(&mut self, ended: Ended) -> Option<Ended> {
        if self.turn != Turn::Over {
            return None;
        }
        self.turn = Turn::None;
        Some(ended)
    }

    /// Records that its locker releases the lock. Messages from while it held the lock say nothing.
    pub(super) fn release(&mut self) {
        *self = Self { released: Some(0), ..Self::default() };
    }

    /// Records that this release woke another locker, or gave others their `turn`, with this many before this one in
    /// the list.
    pub(super) fn pass_on(&mut self, place: u64, turn: bool, now: Instant) {
        // The driver has asked since, and that answer is more recent.
        let Some(heard) = self.released.take() else { return };
        (self.place, self.passed_on) = (self.place.or(Some(place)), true);
        if place == 1 {
            self.look.get_or_insert(now + WATCH);
        }
        self.skips |= turn && heard == 0;
        if heard > u32::from(turn) {
            self.message(now);
        }
    }

    /// Records that the driver starts while others have a turn that its locker gave them. The message of that turn may
    /// be yet to come.
    pub(super) fn leave_turn(&mut self, given: Instant) {
        (self.passed_on, self.skips) = (true, true);
        // The first of the list checks at the end of the turn, and finds out whether somebody took it.
        self.look = Some(given + TURN + APART);
    }

    /// Records that no message came for as long as it waits for one.
    pub(super) fn oversleep(&mut self, now: Instant) {
        if self.place.is_some() {
            self.look.get_or_insert(now);
        }
    }

    /// Returns whether the driver has nothing to ask for, since another locker has just been woken.
    pub(super) fn take_passed_on(&mut self) -> bool {
        std::mem::take(&mut self.passed_on) && !self.go
    }

    /// Records a wake-up.
    pub(super) fn wake_up(&mut self, wake_up: WakeUp, now: Instant) {
        match wake_up {
            WakeUp::Go => self.go = true,
            WakeUp::Watch => (self.place, self.look) = (Some(0), Some(now + WATCH)),
            WakeUp::Turn => {
                (self.place, self.look) = (Some(0), Some(now + TURN));
                (self.skips, self.turn) = (true, Turn::Lasts);
            }
        }
    }

    /// Records a message of the channel or, with several servers, messages of a majority.
    pub(super) fn message(&mut self, now: Instant) {
        if std::mem::take(&mut self.skips) {
            return;
        }
        if let Some(heard) = &mut self.released {
            *heard += 1;
            return;
        }
        match (self.turn, self.place) {
            (Turn::Lasts, _) => (self.turn, self.go) = (Turn::Taken, true),
            (_, None | Some(0)) => self.go = true,
            (_, Some(place)) => {
                let later = WATCH + later(place);
                self.look = Some(now + later.min(LATEST));
            }
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
        self.place.map_or(Duration::ZERO, |place| later(place).min(LATEST))
    }

    /// Returns whether it is its locker's turn.
    pub(super) fn is_called(&self) -> bool {
        self.go && self.place.is_some()
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

    fn listed(place: u64, now: Instant) -> News {
        let mut news = News::default();
        news.begin(now);
        news.held(Some(place));
        news
    }

    #[test]
    fn a_driver_outside_of_the_list_goes_at_every_message() {
        let now = Instant::now();
        let mut news = News::default();
        news.held(None);
        assert_eq!((news.due(now), news.delay(), news.is_listed()), (None, Duration::ZERO, false));
        news.message(now);
        assert_eq!(news.due(now), Some(now));
    }

    #[test]
    fn the_first_of_the_list_goes_at_once_and_the_others_check_one_after_the_other() {
        let now = Instant::now();
        for (place, due) in [(0, 0), (1, 22), (2, 24), (50, 120), (10_000, 200)] {
            let mut news = listed(place, now);
            news.message(now);
            assert_eq!(news.due(now), Some(now + MS * due), "{place}");
        }
    }

    /// While there are messages, some client makes progress.
    #[test]
    fn each_message_restarts_the_wait() {
        let now = Instant::now();
        let mut news = listed(1, now);
        news.message(now);
        news.message(now + 15 * MS);
        assert_eq!(news.due(now), Some(now + 37 * MS));
    }

    #[test]
    fn a_wake_up_before_the_answer_is_kept() {
        let now = Instant::now();
        let mut news = News::default();
        news.begin(now);
        news.wake_up(WakeUp::Go, now);
        news.held(Some(3));
        assert_eq!(news.due(now), Some(now));
        news.release();
        assert_eq!(news.due(now), None);
        news.wake_up(WakeUp::Go, now);
        news.pass_on(2, false, now);
        assert!(!news.take_passed_on(), "there is something to ask for");
        assert_eq!(news.due(now), Some(now));
    }

    #[test]
    fn a_driver_that_watches_checks_the_lock_and_reports_it() {
        let now = Instant::now();
        let mut news = listed(4, now);
        news.wake_up(WakeUp::Watch, now);
        assert_eq!(news.due(now), Some(now + WATCH));
        assert!(!news.begin(now + 19 * MS).looked, "it had another reason");
        news.held(Some(1));
        news.wake_up(WakeUp::Watch, now);
        assert!(news.begin(now + WATCH).looked);
        assert_eq!(news.due(now), None);
        let mut second = News::default();
        second.release();
        second.pass_on(1, false, now);
        assert!(second.take_passed_on() && !second.take_passed_on());
        assert_eq!(second.due(now), Some(now + WATCH), "the one that its own release woke");
    }

    /// A wake-up during the attempt is more recent than the place in its answer.
    #[test]
    fn a_wake_up_during_an_attempt_outweighs_the_place_in_its_answer() {
        let now = Instant::now();
        let mut news = News::default();
        news.begin(now);
        news.wake_up(WakeUp::Watch, now);
        news.held(Some(5));
        news.message(now);
        assert_eq!(news.due(now), Some(now));
    }

    #[test]
    fn a_turn_of_others_ends_with_their_message_or_its_time() {
        let now = Instant::now();
        let mut news = listed(1, now);
        news.wake_up(WakeUp::Turn, now);
        news.message(now);
        assert_eq!(news.due(now), Some(now + TURN), "the message that they were told by");
        news.message(now + 3 * MS);
        assert_eq!(news.due(now), Some(now));
        assert_eq!(news.begin(now + 3 * MS), Begun { looked: false, taken: true });
        for (granted, ended) in [(true, Ended::NotTaken), (false, Ended::Unknown)] {
            let mut news = listed(0, now);
            news.wake_up(WakeUp::Turn, now);
            news.message(now);
            assert_eq!(news.begin(now + TURN), Begun { looked: true, taken: false });
            let told = if granted { news.granted() } else { news.held(Some(0)) };
            assert_eq!(told, Some(ended));
            assert_eq!(news.granted(), None, "once");
        }
    }

    /// The message of its own release comes before or after the answer.
    #[test]
    fn a_locker_does_not_use_a_turn_that_it_gave_to_others() {
        let now = Instant::now();
        for heard in [0, 1, 2] {
            let mut news = News::default();
            news.release();
            (0..heard).for_each(|_| news.message(now));
            news.pass_on(2, true, now);
            assert_eq!(news.due(now), (heard == 2).then_some(now + 24 * MS), "{heard}");
            if heard == 0 {
                news.message(now);
                assert_eq!(news.due(now), None);
            }
            news.message(now);
            assert_eq!(news.due(now), Some(now + 24 * MS));
        }
        let mut news = News::default();
        news.release();
        news.message(now);
        news.pass_on(2, false, now);
        assert_eq!(news.due(now), Some(now + 24 * MS), "it was that of another");
    }

    #[test]
    fn wake_ups_are_read_and_other_messages_are_not() {
        assert_eq!(WakeUp::parse("go a b"), Some((WakeUp::Go, "a b")));
        assert_eq!(WakeUp::parse("watch x"), Some((WakeUp::Watch, "x")));
        assert_eq!(WakeUp::parse("turn {x}"), Some((WakeUp::Turn, "{x}")));
        for other in ["", "go", "0", "gone x", "GO x"] {
            assert_eq!(WakeUp::parse(other), None, "{other}");
        }
    }
}
