//! How often others than the lockers of a list are given a turn.
//!
//! Clients of Redisson and earlier versions of this crate listen to a channel and are in no list. That more clients
//! listen than are in the list shows that there may be some: it may as well be a locker that listens on for a moment.
//! So a turn is offered, again at once while somebody takes it, and ever less often while nobody does: each costs the
//! others its time.

use std::time::Duration;

use crate::clock::Instant;

/// After one turn that nobody took.
const SHORTEST: Duration = Duration::from_millis(8);
/// For each locker of the list: they offer turns one after the other.
const LONGEST: Duration = Duration::from_millis(512);

/// What became of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// They told all of a release in it.
    Taken,
    NotTaken,
    /// Somebody has the lock: one of them who keeps it for longer, or one that came past the list.
    Unknown,
}

/// What a locker knows of others at one channel.
#[derive(Debug)]
pub(super) struct Others {
    gap: Duration,
    /// When the next turn is offered.
    next: Option<Instant>,
}

impl Default for Others {
    fn default() -> Self {
        Self { gap: SHORTEST, next: None }
    }
}

impl Others {
    pub(super) fn may_have_a_turn(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| next <= now)
    }

    /// They are given one, with so many lockers in the list.
    pub(super) fn begin_turn(&mut self, now: Instant, listed: u64) {
        self.wait(now, listed);
    }

    /// What became of the last one that this locker knows of.
    pub(super) fn end_turn(&mut self, now: Instant, ended: Ended) {
        match ended {
            Ended::Taken => *self = Self { gap: Duration::ZERO, next: None },
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
