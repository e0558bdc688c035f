//! Whether a task that releases a lock comes back for it at once.
//!
//! If it does, its release puts the locker into the list even if no caller waits here at that moment. Otherwise the
//! task would ask at the same time as the locker that its release has woken, and one of them in vain.

use std::time::Duration;

use crate::clock::Instant;

/// How soon a caller has to come after the answer to a release.
pub(super) const SOON: Duration = Duration::from_millis(10);

/// How often in a row a caller has to have come soon.
const OFTEN: u8 = 2;

/// How a locker comes back for the locks of one channel.
#[derive(Debug, Default)]
pub(super) struct Returning {
    /// When a release last woke another locker, if no driver has started since.
    passed_on: Option<Instant>,
    /// How often in a row a driver started soon after that.
    times: u8,
}

impl Returning {
    /// Records the answer to a release that woke another locker.
    pub(super) fn pass_on(&mut self, now: Instant) {
        self.passed_on = Some(now);
    }

    /// Records that a driver starts. Returns whether it does so soon after a release that woke another locker.
    pub(super) fn come(&mut self, now: Instant) -> bool {
        let Some(passed_on) = self.passed_on.take() else { return false };
        let soon = now.since(passed_on) < SOON;
        self.times = if soon { (self.times + 1).min(OFTEN) } else { 0 };
        soon
    }

    /// Records that it was this locker's turn, and nobody was there.
    pub(super) fn stay_away(&mut self) {
        *self = Self::default();
    }

    /// Returns whether it is too late for a caller to come soon.
    pub(super) fn is_missed(&self, now: Instant) -> bool {
        self.passed_on.is_some_and(|passed_on| now.since(passed_on) >= SOON)
    }

    /// Returns whether a caller is expected soon after a release.
    pub(super) fn is_expected(&self) -> bool {
        self.times >= OFTEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_expected_after_it_came_back_soon_twice() {
        let (mut returning, now) = (Returning::default(), Instant::now());
        let late = SOON;
        for (after, soon, expected) in [
            (Duration::ZERO, true, false),
            (SOON / 2, true, true),
            (late, false, false),
            (Duration::ZERO, true, false),
            (Duration::ZERO, true, true),
        ] {
            returning.pass_on(now);
            assert_eq!((returning.come(now + after), returning.is_expected()), (soon, expected));
        }
        assert!(!returning.come(now), "no release before");
        assert!(returning.is_expected());
        returning.stay_away();
        assert!(!returning.is_expected() && !returning.come(now));
    }
}
