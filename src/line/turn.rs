//! How often in a row a lock is handed over within one process while others may wait for it.
//!
//! A lock that is handed over is never free: waiters in other processes get no message, and clients
//! that poll find it held. So the lock is released now and then as if no caller waited here. That
//! costs one script more than a hand-over, and the answer shows who else waits, which decides about
//! the next turn:
//!
//! | who else waits | hand-overs in a turn |
//! |---|---|
//! | no other client: the release reached none | 64, or 50 ms |
//! | not known: no release yet, a cluster, the plain format without a list, or turns not taken so far | 8, or 10 ms |
//! | lockers in the list | one for each caller that waited here at the beginning of the turn; 8, or 10 ms |
//! | lockers in the list, four or more of them before this one | two for each such caller within 2 ms; 8 |
//! | clients outside of the list that take their turns (`outside_waiters.rs`) | none |
//!
//! A second round for many lockers pays because the next locker wakes later the more processes
//! share the CPUs, with cold caches. Clients outside of the list get no such competition: a JVM
//! takes a millisecond or more to react, and eight hand-overs before each of its chances would
//! leave it almost nothing.
//!
//! `PUBSUB NUMSUB` in each hand-over would show the same without a release, but it would cost a
//! call each time, and a right.

use std::time::Duration;

use crate::clock::Instant;

/// Who else waits for a lock, according to its last release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) enum WhoElse {
    /// Before the first release, and if the answer to a release does not show it.
    #[default]
    Unknown,
    Nobody,
    /// Lockers in the list, which are woken in turn: the number of those before this one.
    Listed {
        before: u64,
    },
    /// Clients that are in no list, and take their turns.
    Told,
}

/// The bound if it is unknown whether others wait, or if they wait in a list.
const SHORT: Bound = Bound {
    grants: 8,
    time: Duration::from_millis(10),
};

/// The bound if the last release reached no other client. Clients that begin to wait meanwhile have
/// to wait for the next release.
const LONG: Bound = Bound {
    grants: 64,
    time: Duration::from_millis(50),
};

/// If this many lockers of the list are before this one, each caller may have the lock twice in a
/// turn.
const MANY: u64 = 4;

/// The second time begins within so long after the first hand-over: other lockers wait no longer
/// for it, and if callers keep the lock for a millisecond, it would save next to nothing.
const AGAIN: Duration = Duration::from_millis(2);

/// The bounds of a turn. The first hand-over is not bounded by time, since a hold may be longer
/// than that.
#[derive(Debug)]
struct Bound {
    grants: u32,
    time: Duration,
}

/// The hand-overs since the last acquire.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Turn {
    grants: u32,
    since: Option<Instant>,
    /// The number of the last waiter here when the lock was acquired.
    last: Option<u64>,
    /// How many waited here then.
    waiting: usize,
    others: WhoElse,
}

impl Turn {
    /// Records that a free lock was acquired, while this many waiters are in line; the last one has
    /// the number `last`.
    pub(super) fn begin(&mut self, last: Option<u64>, waiting: usize) {
        (self.grants, self.since, self.last, self.waiting) = (0, None, last, waiting);
    }

    /// Returns each point in time that it remembers.
    #[cfg(test)]
    pub(super) fn times(&mut self) -> impl Iterator<Item = &mut Instant> {
        self.since.iter_mut()
    }

    /// Records a hand-over.
    pub(super) fn go_on(&mut self, now: Instant) {
        self.grants += 1;
        self.since.get_or_insert(now);
    }

    /// Records who else waits for the lock, after a release.
    pub(super) fn note_others(&mut self, others: WhoElse) {
        self.others = others;
    }

    /// Returns whether the last release woke or told others.
    pub(super) fn others_wait(&self) -> bool {
        matches!(self.others, WhoElse::Listed { .. } | WhoElse::Told)
    }

    /// Returns whether the lock may be handed over once more, to the waiter with this number.
    pub(super) fn may_go_on(&self, next: u64, now: Instant) -> bool {
        let bound = match self.others {
            WhoElse::Told => return false,
            // Callers that came after the beginning of the turn wait for the next one.
            WhoElse::Listed { before }
                if self.last < Some(next) && !self.may_begin_again(before, now) =>
            {
                return false;
            }
            WhoElse::Listed { .. } | WhoElse::Unknown => SHORT,
            WhoElse::Nobody => LONG,
        };
        self.grants < bound.grants && self.lasted(now) < bound.time
    }

    /// Returns whether a caller that was here at the beginning, and has come back, may have the
    /// lock a second time.
    fn may_begin_again(&self, before: u64, now: Instant) -> bool {
        // Those that waited and the one that acquired the lock, twice each, without that acquire
        // itself.
        let twice_each = 2 * self.waiting + 1;
        before >= MANY && (self.grants as usize) < twice_each && self.lasted(now) < AGAIN
    }

    fn lasted(&self, now: Instant) -> Duration {
        self.since.map_or(Duration::ZERO, |since| now.since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many hand-overs there are in a row, this far apart.
    fn grants(turn: &mut Turn, apart: Duration) -> u32 {
        grants_of(turn, 1_000, apart)
    }

    /// The same with this many waiters when the lock is acquired, and more behind them.
    fn grants_of(turn: &mut Turn, waiting: u64, apart: Duration) -> u32 {
        let mut now = Instant::now();
        turn.begin(waiting.checked_sub(1), waiting as usize);
        while turn.may_go_on(turn.grants.into(), now) {
            turn.go_on(now);
            now = now + apart;
        }
        turn.grants
    }

    #[test]
    fn a_lock_is_handed_over_more_often_if_a_release_met_no_other() {
        let mut turn = Turn::default();
        let none = Duration::ZERO;
        let ms = Duration::from_millis(1);
        assert_eq!(
            grants(&mut turn, none),
            8,
            "it is unknown who waits elsewhere"
        );
        assert_eq!(
            (grants(&mut turn, ms * 2), grants(&mut turn, ms * 900)),
            (5, 1)
        );
        turn.note_others(WhoElse::Nobody);
        assert_eq!(
            (
                grants(&mut turn, none),
                grants(&mut turn, ms * 2),
                grants(&mut turn, ms * 900)
            ),
            (64, 25, 1)
        );
        turn.note_others(WhoElse::Listed { before: 3 });
        assert_eq!(
            [0, 3, 20].map(|waiting| grants_of(&mut turn, waiting, none)),
            [0, 3, 8],
            "once to each"
        );
        assert_eq!(grants(&mut turn, ms * 2), 5);
        turn.note_others(WhoElse::Listed { before: 4 });
        let twice = |turn: &mut Turn, apart| {
            [0, 1, 2, 3, 20].map(|waiting| grants_of(turn, waiting, apart))
        };
        assert_eq!(
            twice(&mut turn, none),
            [1, 3, 5, 7, 8],
            "twice to each, to that which acquired the lock too"
        );
        assert_eq!(
            twice(&mut turn, ms),
            [1, 2, 2, 3, 8],
            "not after two milliseconds"
        );
        turn.note_others(WhoElse::Told);
        assert_eq!(
            grants(&mut turn, none),
            0,
            "they were told, and are on their way"
        );
    }
}
