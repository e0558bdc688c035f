//! How often clients outside of a waiting list are given a turn, and for how long.
//!
//! If a channel has more subscribers than the list has members, there may be other clients:
//! Redisson's, or lockers without rights to lists. Or there is just one that never takes the lock:
//! a locker that stays subscribed for a moment, a stopped process, a monitor, a waiter for the same
//! name in another database. So the outcome of turns decides.
//!
//! In a turn, the release publishes on the lock's channel, and tells the first of the list to leave
//! the lock to the others until the turn ends, after 10 ms or more. The locker that gave the turn
//! asks 2 ms after that. If no other locker is in the list, it times the turn itself. A message
//! during the turn says that it was taken; the lock still free at its end, or a wake-up by name
//! after it, that it was not. Each line remembers that for a minute, and decides for itself how
//! often it offers a turn: the list does not store the end of a turn.
//!
//! - While turns are taken, nothing is handed over within a locker, and each client outside of the
//!   list has as many turns as each locker.
//! - Each turn that is not taken doubles the pause before the next, up to 512 ms for each locker of
//!   the list, since each delays those lockers. It lengthens turns up to 40 ms.
//! - If no locker of the list watches, and at undos, the others get the message each time: they
//!   must not depend on one locker.
//! - A caller whose time is over during a turn makes one attempt past the line: the lock may be
//!   free, and no other client asks.

use std::time::Duration;

use crate::clock::Instant;

/// The shortest turn. A client on the JVM takes 1.4 to 3 ms.
pub(super) const SHORT: Duration = Duration::from_millis(10);
/// The longest turn.
pub(super) const LONG: Duration = Duration::from_millis(40);

/// The pause after one turn that no client took.
const SHORTEST: Duration = Duration::from_millis(8);
/// The longest pause for each locker of the list, since they offer turns one after the other.
const LONGEST: Duration = Duration::from_millis(512);

/// What clients outside of the list do with their turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TurnUse {
    /// They have one now, or took the last one.
    Taken,
    /// They have had few, and did not take them.
    Unknown,
    /// They never take them.
    Left,
}

/// The outcome of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Ended {
    /// A message of a release came: so long after the turn began, if it came before its end.
    Taken(Option<Duration>),
    NotTaken,
}

/// How long the outcome of a turn is remembered.
const KEPT: Duration = Duration::from_secs(60);

/// What a line knows of clients outside of its lock's list.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct OutsideWaiters {
    /// The pause before the next turn. Zero: they take their turns.
    gap: Duration,
    /// How long a turn lasts.
    length: Duration,
    /// When the next turn may be offered.
    next: Option<Instant>,
    /// While they take their turns: how many releases of this locker come before the next one.
    passes: u64,
    /// How many lockers used the list at this one's last release.
    listed: u64,
    /// The turn that this locker gave them last.
    given: Option<Given>,
    /// When a turn began or ended last.
    changed: Instant,
}

/// A turn that this locker gave to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Given {
    pub(super) since: Instant,
    pub(super) end: Instant,
    /// No other locker waits, so this one finds out whether it is taken.
    pub(super) alone: bool,
}

impl OutsideWaiters {
    pub(super) fn new(now: Instant) -> Self {
        let gap = SHORTEST;
        let length = SHORT;
        let listed = 1;
        Self {
            gap,
            length,
            next: None,
            passes: 0,
            listed,
            given: None,
            changed: now,
        }
    }

    /// Returns each point in time that it remembers.
    #[cfg(test)]
    pub(super) fn times(&mut self) -> impl Iterator<Item = &mut Instant> {
        let given = self
            .given
            .iter_mut()
            .flat_map(|given| [&mut given.since, &mut given.end]);
        given.chain(&mut self.next).chain([&mut self.changed])
    }

    /// Returns until when its last change is remembered.
    pub(super) fn kept_until(&self) -> Instant {
        self.changed + KEPT
    }

    /// Returns how long a turn would last that is offered now, if one may be.
    pub(super) fn offer(&self, now: Instant) -> Option<Duration> {
        let may = if self.take_turns() {
            self.passes == 0
        } else {
            self.next.is_none_or(|next| next <= now)
        };
        may.then_some(self.length)
    }

    /// Returns whether they took the last turn whose outcome this locker knows.
    fn take_turns(&self) -> bool {
        self.gap.is_zero()
    }

    /// Returns what they do with their turns, while they have one or not.
    pub(super) fn turns(&self, now: Instant) -> TurnUse {
        if self.take_turns() || self.given(now).is_some() {
            TurnUse::Taken
        } else if self.gap < LONGEST / 4 {
            TurnUse::Unknown
        } else {
            TurnUse::Left
        }
    }

    /// Records a release of this locker, with the numbers of lockers that are then in the list and
    /// of those clients outside of it.
    pub(super) fn release(&mut self, now: Instant, listed: u64, others: u64, turn: Option<Given>) {
        (self.listed, self.changed) = (listed.max(1), now);
        match turn {
            Some(_) => {
                // Each of the others gets as many turns as each locker of the list.
                (self.given, self.passes) = (turn, (self.listed / others.max(1)).saturating_sub(1));
                self.wait(now);
            }
            None => self.passes = self.passes.saturating_sub(1),
        }
    }

    /// Returns the turn that this locker gave them, while it lasts.
    pub(super) fn given(&self, now: Instant) -> Option<Given> {
        self.given.filter(|given| now < given.end)
    }

    /// Records the outcome of the last turn.
    pub(super) fn end_turn(&mut self, now: Instant, ended: Ended) {
        (self.given, self.changed) = (None, now);
        match ended {
            Ended::Taken(after) => {
                // Twice what they took this time, since the next one of them may be slower.
                self.length = after.map_or(self.length, |after| (after * 2).clamp(SHORT, LONG));
                (self.gap, self.next) = (Duration::ZERO, None);
            }
            Ended::NotTaken => {
                self.gap = (self.gap * 2).clamp(SHORTEST, LONGEST);
                // They may be far away, and a longer turn shows that.
                self.length = (self.gap / 4).clamp(self.length, LONG);
                self.wait(now);
            }
        }
    }

    fn wait(&mut self, now: Instant) {
        let listed = u32::try_from(self.listed).unwrap_or(u32::MAX).min(1_000);
        self.next = (!self.gap.is_zero()).then(|| now + self.gap * listed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn turn(now: Instant) -> Option<Given> {
        Some(Given {
            since: now,
            end: now + SHORT,
            alone: false,
        })
    }

    #[test]
    fn turns_that_none_takes_are_offered_less_often_and_last_longer() {
        let mut now = Instant::now();
        let mut others = OutsideWaiters::new(now);
        assert_eq!(others.offer(now), Some(SHORT), "unknown yet");
        others.release(now, 3, 1, turn(now));
        assert_eq!(
            (others.offer(now + 23 * MS), others.offer(now + 24 * MS)),
            (None, Some(SHORT))
        );
        for (gap, length) in [
            (16, 10),
            (32, 10),
            (64, 16),
            (128, 32),
            (256, 40),
            (512, 40),
            (512, 40),
        ] {
            others.end_turn(now, Ended::NotTaken);
            assert_eq!(
                others.turns(now),
                if gap < 128 {
                    TurnUse::Unknown
                } else {
                    TurnUse::Left
                }
            );
            now = now + gap * 3 * MS;
            assert_eq!(
                (others.offer(now.before(MS)), others.offer(now)),
                (None, Some(length * MS)),
                "{gap}"
            );
        }
        // Whoever is that far away may take the next one too.
        for (after, length) in [
            (None, LONG),
            (Some(15 * MS), 30 * MS),
            (Some(2 * MS), SHORT),
        ] {
            others.end_turn(now, Ended::Taken(after));
            assert_eq!(
                (others.length, others.next, others.turns(now)),
                (length, None, TurnUse::Taken)
            );
        }
    }

    /// Each locker of the list counts for as much as each client outside of it.
    #[test]
    fn clients_outside_of_the_list_get_as_many_turns_as_its_lockers() {
        for (listed, clients, every) in [
            (1, 1, 1),
            (2, 1, 2),
            (4, 1, 4),
            (4, 2, 2),
            (3, 3, 1),
            (2, 5, 1),
        ] {
            let now = Instant::now();
            let mut others = OutsideWaiters::new(now);
            others.end_turn(now, Ended::Taken(None));
            let offered = (0..20).filter(|_| {
                let offered = others.offer(now).is_some();
                others.release(now, listed, clients, turn(now).filter(|_| offered));
                offered
            });
            assert_eq!(offered.count(), 20 / every, "{listed} {clients}");
        }
    }
}
