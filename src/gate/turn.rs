//! How often in a row a lock is handed over within one process, while others may wait for it.
//!
//! A lock that is handed over is never free: whoever waits in another process hears nothing of it, and whoever polls
//! finds it held. So now and then it is released as if nobody waited here. That costs one script more than a hand-over
//! does, and its message tells how many clients there are who want to know.

use std::time::Duration;

use crate::clock::Instant;

/// Where others wait, or may.
const AMONG_OTHERS: Bound = Bound { grants: 8, time: Duration::from_millis(10) };

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
    /// Whether the last release told nobody else.
    is_alone: bool,
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

    /// The lock was released: whether anybody else was told.
    pub(super) fn note_others(&mut self, others: bool) {
        self.is_alone = !others;
    }

    /// Whether the lock may be handed over once more.
    pub(super) fn may_go_on(&self, now: Instant) -> bool {
        let bound = if self.is_alone { ALONE } else { AMONG_OTHERS };
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
        turn.note_others(false);
        assert_eq!((grants(&mut turn, none), grants(&mut turn, ms * 2), grants(&mut turn, ms * 900)), (64, 25, 1));
        turn.note_others(true);
        assert_eq!((grants(&mut turn, none), grants(&mut turn, ms * 2), grants(&mut turn, ms * 900)), (8, 5, 1));
    }
}
