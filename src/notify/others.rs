//! How often clients outside of a waiting list are given a turn.
//!
//! Clients of Redisson and earlier versions of this crate subscribe to a channel and are in no list. If a channel has
//! more subscribers than the list has members, there may be such clients, or just a locker that stays subscribed for a
//! moment. So a turn is offered: again at once while it is taken, and less and less often while it is not, since each
//! turn delays the lockers of the list.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;

/// The length of a turn. A client on the JVM takes 1.4 to 3 ms.
pub(super) const TURN: Duration = Duration::from_millis(10);

/// The pause after one turn that nobody took.
const SHORTEST: Duration = Duration::from_millis(8);
/// The longest pause for each locker of the list, since they offer turns one after the other.
const LONGEST: Duration = Duration::from_millis(512);

/// The outcome of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// A message of a release came during it.
    Taken,
    NotTaken,
    /// Somebody holds the lock: one of them that keeps it for longer, or a client that came past the list.
    Unknown,
}

/// How long the outcome of a turn is remembered.
const KEPT: Duration = Duration::from_secs(60);
/// With fewer channels than this, old ones are not removed.
const FEW: usize = 64;

/// What a locker knows of others, by channel. Lockers that release without having waited have it too.
#[derive(Debug, Default)]
pub(super) struct Known {
    channels: HashMap<Arc<str>, Others>,
    /// At this many channels the old ones are removed.
    most: usize,
}

impl Known {
    pub(super) fn at(&self, name: &str) -> Option<&Others> {
        self.channels.get(name)
    }

    /// Returns the others at a channel, for a turn that begins or ends.
    pub(super) fn change(&mut self, name: &Arc<str>, now: Instant) -> &mut Others {
        if self.channels.len() >= self.most.max(FEW) {
            self.channels.retain(|_, others| others.changed.is_some_and(|changed| now.since(changed) < KEPT));
            self.most = self.channels.len() * 2;
        }
        let others = self.channels.entry(Arc::clone(name)).or_default();
        others.changed = Some(now);
        others
    }
}

/// What a locker knows of others at one channel.
#[derive(Debug)]
pub(super) struct Others {
    gap: Duration,
    /// When the next turn may be offered.
    next: Option<Instant>,
    /// When this locker last gave them one.
    given: Option<Instant>,
    changed: Option<Instant>,
}

impl Default for Others {
    fn default() -> Self {
        Self { gap: SHORTEST, next: None, given: None, changed: None }
    }
}

impl Others {
    pub(super) fn may_have_a_turn(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| next <= now)
    }

    /// Records that they are given a turn, with this many lockers in the list.
    pub(super) fn begin_turn(&mut self, now: Instant, listed: u64) {
        self.given = Some(now);
        self.wait(now, listed);
    }

    /// Returns when the turn that this locker gave them began, while it lasts.
    pub(super) fn turn_given(&self, now: Instant) -> Option<Instant> {
        self.given.filter(|given| now.since(*given) < TURN)
    }

    /// Records the outcome of the last turn.
    pub(super) fn end_turn(&mut self, now: Instant, ended: Ended) {
        match ended {
            Ended::Taken => (self.gap, self.next, self.given) = (Duration::ZERO, None, None),
            Ended::Unknown => {
                self.gap = (self.gap / 2).max(SHORTEST);
                self.wait(now, 1);
            }
            Ended::NotTaken => {
                self.gap = (self.gap * 2).clamp(SHORTEST, LONGEST);
                self.wait(now, 1);
            }
        }
    }

    fn wait(&mut self, now: Instant, listed: u64) {
        let listed = u32::try_from(listed.max(1)).unwrap_or(u32::MAX).min(1_000);
        self.next = (!self.gap.is_zero()).then(|| now + self.gap * listed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_outcome_of_turns_is_forgotten_after_a_minute() {
        let (mut known, now) = (Known::default(), Instant::now());
        let name = |n: usize| Arc::from(n.to_string());
        (0..1_000).for_each(|n| known.change(&name(n), now).begin_turn(now, 1));
        assert!(known.at("999").is_some_and(|others| others.turn_given(now) == Some(now)));
        let later = now + KEPT;
        (0..2_000).for_each(|n| known.change(&name(10_000 + n), later).begin_turn(later, 1));
        assert_eq!((known.at("999").is_some(), known.channels.len()), (false, 2_000));
    }

    #[test]
    fn turns_are_offered_while_they_are_taken_and_less_often_while_they_are_not() {
        let (mut others, mut now) = (Others::default(), Instant::now());
        assert!(others.may_have_a_turn(now), "nobody knows yet");
        others.begin_turn(now, 3);
        assert!(!others.may_have_a_turn(now + 23 * MS) && others.may_have_a_turn(now + 24 * MS));
        for gap in [16, 32, 64, 128, 256, 512, 512] {
            others.end_turn(now, Ended::NotTaken);
            assert!(!others.may_have_a_turn(now + (gap - 1) * MS) && others.may_have_a_turn(now + gap * MS), "{gap}");
            now = now + gap * MS;
        }
        others.end_turn(now, Ended::Taken);
        others.begin_turn(now, 3);
        assert!(others.may_have_a_turn(now), "again and again");
        others.end_turn(now, Ended::Unknown);
        assert!(!others.may_have_a_turn(now + 7 * MS) && others.may_have_a_turn(now + 8 * MS));
        others.end_turn(now, Ended::NotTaken);
        assert!(!others.may_have_a_turn(now + 15 * MS) && others.may_have_a_turn(now + 16 * MS));
    }
}
