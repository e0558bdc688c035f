//! How often in a row a lock is handed over within one process, while others may wait for it.
//!
//! A lock that is handed over is never free: whoever waits in another process hears nothing of it, and whoever polls
//! finds it held. So now and then it is released as if nobody waited here. That costs one script more than a hand-over
//! does, and tells who else waits. Where others wait in a list, it is handed over once to each of those who wait here
//! at the beginning of a turn: the next turn here comes when each of the list has had one. Where the message to all
//! reached some who are in no list, nothing is handed over: a JVM takes a millisecond or more to come once it is told,
//! and eight hand-overs before each of its chances would leave it next to nothing.

use std::time::Duration;

use crate::clock::Instant;

/// Who else waits for a lock, as far as its last release told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Others {
    /// Before the first release, and where messages do not tell.
    #[default]
    Unknown,
    Nobody,
    /// Lockers of a list, each of which is woken in its turn.
    Listed,
    /// Clients that are told of a release and of nothing else.
    Told,
}

/// Where nobody knows whether others wait, and where they wait in a list.
const SHORT: Bound = Bound { grants: 8, time: Duration::from_millis(10) };

/// Where the last release told nobody else. Who comes to wait meanwhile has to wait for the next one.
const LONG: Bound = Bound { grants: 64, time: Duration::from_millis(50) };

/// The first hand-over of a turn is not bounded by time: a hold may be longer than that.
#[derive(Debug)]
struct Bound {
    grants: u32,
    time: Duration,
}

/// The hand-overs since the last acquire.
#[derive(Debug, Default)]
pub(super) struct Turn {
    grants: u32,
    since: Option<Instant>,
    /// The number of the last who waited here when it was acquired.
    last: Option<u64>,
    others: Others,
}

impl Turn {
    /// The lock was acquired when it was free. Of those who wait on, this is the number of the last.
    pub(super) fn begin(&mut self, last: Option<u64>) {
        (self.grants, self.since, self.last) = (0, None, last);
    }

    /// The lock was handed over.
    pub(super) fn go_on(&mut self, now: Instant) {
        self.grants += 1;
        self.since.get_or_insert(now);
    }

    /// The lock was released: who else waits for it.
    pub(super) fn note_others(&mut self, others: Others) {
        self.others = others;
    }

    pub(super) fn others_wait(&self) -> bool {
        matches!(self.others, Others::Listed | Others::Told)
    }

    /// Whether the lock may be handed over once more, to the waiter of this number.
    pub(super) fn may_go_on(&self, next: u64, now: Instant) -> bool {
        let bound = match self.others {
            Others::Told => return false,
            // Each has it once: a locker of one task has its turn as often as one of many.
            Others::Listed if self.last < Some(next) => return false,
            Others::Listed | Others::Unknown => SHORT,
            Others::Nobody => LONG,
        };
        self.grants < bound.grants && self.since.is_none_or(|since| now.since(since) < bound.time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many hand-overs there are in a row, this far apart.
    fn grants(turn: &mut Turn, apart: Duration) -> u32 {
        grants_of(turn, 1_000, apart)
    }

    /// .. where so many wait when it is acquired, and others come behind them.
    fn grants_of(turn: &mut Turn, waiting: u64, apart: Duration) -> u32 {
        let mut now = Instant::now();
        turn.begin(waiting.checked_sub(1));
        while turn.may_go_on(turn.grants.into(), now) {
            turn.go_on(now);
            now = now + apart;
        }
        turn.grants
    }

    #[test]
    fn a_lock_is_handed_over_more_often_where_nobody_else_was_told_of_its_last_release() {
        let mut turn = Turn::default();
        let (none, ms) = (Duration::ZERO, Duration::from_millis(1));
        assert_eq!(grants(&mut turn, none), 8, "nobody knows who waits elsewhere");
        assert_eq!((grants(&mut turn, ms * 2), grants(&mut turn, ms * 900)), (5, 1));
        turn.note_others(Others::Nobody);
        assert_eq!((grants(&mut turn, none), grants(&mut turn, ms * 2), grants(&mut turn, ms * 900)), (64, 25, 1));
        turn.note_others(Others::Listed);
        assert_eq!([0, 3, 20].map(|waiting| grants_of(&mut turn, waiting, none)), [0, 3, 8], "once to each");
        assert_eq!(grants(&mut turn, ms * 2), 5);
        turn.note_others(Others::Told);
        assert_eq!(grants(&mut turn, none), 0, "they were told, and are on their way");
    }
}
