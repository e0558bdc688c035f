//! What a driver has heard since it asked for a lock, and when it is to look for itself.
//!
//! A locker in the list of a lock is woken by name: *go* when it is its turn, *watch* when that of the one before it
//! is, and *turn* when others have one, whose message comes behind it. The messages of the channel are of those who
//! know no list: the first in the list goes, and the others look if nothing follows, each a little later than the one
//! before it.

use std::time::Duration;

use super::others::{Ended, TURN};
use crate::clock::Instant;

/// How long whoever is woken has, until the next one looks: a message and a script on a busy machine.
const WATCH: Duration = Duration::from_millis(20);

/// By how much later each looks than the one before it.
const APART: Duration = Duration::from_millis(2);

/// Nobody is later than this.
const LATEST: Duration = Duration::from_millis(200);

/// A wake-up of one locker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WakeUp {
    Go,
    Watch,
    Turn,
}

impl WakeUp {
    /// Of a message: the wake-up, and the name of the lock.
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

/// What a driver has heard since it asked, or since its locker released the lock.
#[derive(Debug, Default)]
pub(super) struct News {
    /// There is a reason to ask.
    go: bool,
    /// When there is one, if nothing is heard until then.
    look: Option<Instant>,
    /// How many are before it in the list, as far as that is known.
    place: Option<u64>,
    /// The release of its own locker woke another one: there is nothing to be asked for yet.
    passed_on: bool,
    /// While its locker releases the lock: how many messages of the channel have come. One of them may be its own.
    released: Option<u32>,
    /// The next message of the channel is the one that others were given their turn by.
    skips: bool,
    turn: Turn,
}

/// A turn of others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Turn {
    #[default]
    None,
    /// The next message of the channel, behind the one that it began with, is theirs.
    Lasts,
    Taken,
    /// Its time is over: what the server says now shows whether somebody took it.
    Over,
}

/// How the driver's next question begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Begun {
    /// Its time to look has come: whoever was to come before it has not.
    pub(crate) looked: bool,
    /// Others took the turn that they were given.
    pub(super) taken: bool,
}

impl News {
    /// The driver asks: what was heard before says nothing about what it finds.
    pub(super) fn begin(&mut self, now: Instant) -> Begun {
        let looked = !self.go && self.look.is_some_and(|look| look <= now);
        let begun = Begun { looked, taken: self.turn == Turn::Taken };
        let is_over = looked && self.turn == Turn::Lasts;
        *self = Self { turn: if is_over { Turn::Over } else { Turn::None }, ..Self::default() };
        begun
    }

    /// Another holds it. What became of a turn of others, where that was the question.
    pub(super) fn held(&mut self, place: Option<u64>) -> Option<Ended> {
        // A wake-up that came meanwhile is newer.
        self.place = self.place.or(place);
        self.end_turn(Ended::Unknown)
    }

    /// It is granted. As [`held`](Self::held).
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

    /// Its locker releases the lock, and what was heard while it had it says nothing.
    pub(super) fn release(&mut self) {
        *self = Self { released: Some(0), ..Self::default() };
    }

    /// .. and another was woken by that, or others were, in their `turn`; with so many before this one in the list.
    pub(super) fn pass_on(&mut self, place: u64, turn: bool, now: Instant) {
        // The driver has asked since, and knows better.
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

    /// The driver begins while others have a turn that its locker gave them, with a message that may be yet to come.
    pub(super) fn leave_turn(&mut self, given: Instant) {
        (self.passed_on, self.skips) = (true, true);
        // The first of the list looks at the end of it, and finds out whether somebody took it.
        self.look = Some(given + TURN + APART);
    }

    /// Nothing was heard for as long as it waits for a message.
    pub(super) fn oversleep(&mut self, now: Instant) {
        if self.place.is_some() {
            self.look.get_or_insert(now);
        }
    }

    /// Whether the driver has nothing to ask for, since another was woken just now.
    pub(super) fn take_passed_on(&mut self) -> bool {
        std::mem::take(&mut self.passed_on) && !self.go
    }

    /// A wake-up has come.
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

    /// A message of the channel has come, or of a majority of them.
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
                let later = APART * u32::try_from(place).unwrap_or(u32::MAX).min(1_000);
                self.look = Some(now + (WATCH + later).min(LATEST));
            }
        }
    }

    /// Nobody knows what was missed.
    pub(super) fn missed(&mut self) {
        self.go = true;
    }

    /// When there is a reason to ask: now or before, if there is one already.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        if self.go { Some(now) } else { self.look }
    }

    /// Whether its locker is in the list, as far as it knows.
    pub(super) fn is_listed(&self) -> bool {
        self.place.is_some()
    }

    /// How much later it looks where a lease ends that several wait for.
    pub(super) fn delay(&self) -> Duration {
        self.place
            .map_or(Duration::ZERO, |place| (APART * u32::try_from(place).unwrap_or(u32::MAX).min(1_000)).min(LATEST))
    }
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
    fn whoever_is_in_no_list_goes_at_every_message() {
        let now = Instant::now();
        let mut news = News::default();
        news.held(None);
        assert_eq!((news.due(now), news.delay(), news.is_listed()), (None, Duration::ZERO, false));
        news.message(now);
        assert_eq!(news.due(now), Some(now));
    }

    #[test]
    fn the_first_of_the_list_goes_at_once_and_the_others_look_one_after_the_other() {
        let now = Instant::now();
        for (place, due) in [(0, 0), (1, 22), (2, 24), (50, 120), (10_000, 200)] {
            let mut news = listed(place, now);
            news.message(now);
            assert_eq!(news.due(now), Some(now + MS * due), "{place}");
        }
    }

    /// While there are messages somebody gets on.
    #[test]
    fn each_message_begins_the_wait_anew() {
        let now = Instant::now();
        let mut news = listed(1, now);
        news.message(now);
        news.message(now + 15 * MS);
        assert_eq!(news.due(now), Some(now + 37 * MS));
    }

    #[test]
    fn a_wake_up_is_kept_though_it_comes_before_the_answer() {
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
    fn whoever_watches_looks_and_says_so() {
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

    /// What it was told while it asked is newer than the place that it is told then.
    #[test]
    fn who_is_next_stays_next() {
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

    /// Its own release tells all, and it hears that before the answer or behind it.
    #[test]
    fn a_locker_leaves_the_turn_to_others_that_it_has_given_them() {
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
