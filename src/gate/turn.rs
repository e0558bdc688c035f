//! How often in a row a lock is handed over within one process, while others may wait for it.
//!
//! A lock that is handed over is never free: whoever waits in another process hears nothing of it, and whoever polls
//! finds it held. So now and then it is released as if nobody waited here. That costs one script more than a hand-over
//! does, and its message tells how many clients there are who want to know. Where it reached some, nothing is handed
//! over: a JVM takes a millisecond or more to come once it is told, and eight hand-overs before each of its chances
//! would leave it next to nothing.

use std::time::Duration;

use crate::clock::Instant;

/// Where nobody knows whether others wait.
const UNKNOWN: Bound = Bound { grants: 8, time: Duration::from_millis(10) };

/// Where the last release told nobody else. Who comes to wait meanwhile has to wait for the next one.
const ALONE: Bound = Bound { grants: 64, time: Duration::from_millis(50) };

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
    /// Whether the last release told anybody else; unknown before the first one, and where messages do not tell.
    others: Option<bool>,
}

impl Turn {
    /// The lock was acquired when it was free.
    pub(super) fn begin(&mut self) {
        (self.grants, self.since) = (0, None);
    }

    /// The lock was handed over.
    pub(super) fn go_on(&mut self, now: Instant) {
        self.grants += 1;
        self.since.get_or_insert(now);
    }

    /// The lock was released: whether anybody else was told, if that is known.
    pub(super) fn note_others(&mut self, others: Option<bool>) {
        self.others = others;
    }

    /// Whether the lock may be handed over once more.
    pub(super) fn may_go_on(&self, now: Instant) -> bool {
        let bound = match self.others {
            Some(true) => return false,
            Some(false) => ALONE,
            None => UNKNOWN,
        };
        self.grants < bound.grants && self.since.is_none_or(|since| now.since(since) < bound.time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many hand-overs there are in a row, this far apart.
    fn grants(turn: &mut Turn, apart: Duration) -> u32 {
        let mut now = Instant::now();
        turn.begin();
        while turn.may_go_on(now) {
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
        turn.note_others(Some(false));
        assert_eq!((grants(&mut turn, none), grants(&mut turn, ms * 2), grants(&mut turn, ms * 900)), (64, 25, 1));
        turn.note_others(Some(true));
        assert_eq!(grants(&mut turn, none), 0, "they were told, and are on their way");
    }
}
