//! The outage clock: measures since when no round of this locker has had an answer from a majority.
//! All waiters share it, so that their waits end together.
//!
//! A call that comes during a known outage waits for a command timeout of its own: otherwise a
//! program that tries again after each error would spin for as long as the outage lasts.

use std::time::Duration;

use crate::clock::Instant;
use crate::error::NodeFailure;
use crate::options::Settings;
use crate::sync::Mutex;

/// What callers learn about an outage: why each server failed in the last round, and how long the
/// outage lasts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OutageReport {
    pub(super) nodes: Vec<NodeFailure>,
    pub(super) lasts: Duration,
}

/// The outage clock of a session.
#[derive(Debug)]
pub(super) struct Outage {
    tolerance: Duration,
    /// How long after its call a waiter does not end because of an outage.
    patience: Duration,
    /// If no round was sent for longer than this, earlier failures say nothing about the time in
    /// between.
    gap: Duration,
    failing: Mutex<Option<Failing>>,
}

#[derive(Debug)]
struct Failing {
    since: Instant,
    last: Instant,
    /// When it was last announced that it has lasted too long.
    announced: Option<Instant>,
    nodes: Vec<NodeFailure>,
}

impl Outage {
    pub(super) fn new(settings: &Settings) -> Self {
        let tolerance = settings.outage_tolerance;
        let command_timeout = settings.command_timeout;
        Self {
            tolerance,
            patience: command_timeout.min(tolerance),
            gap: tolerance.max(command_timeout * 2),
            failing: Mutex::default(),
        }
    }

    /// Notes that a round had an answer.
    pub(super) fn answered(&self) {
        *self.failing.lock() = None;
    }

    /// Notes that a round that was sent at this time had no answer.
    pub(super) fn failed(&self, sent: Instant, nodes: Vec<NodeFailure>) {
        let mut failing = self.failing.lock();
        let (since, announced) = match failing.as_ref() {
            Some(earlier) if sent.since(earlier.last) <= self.gap => {
                (earlier.since, earlier.announced)
            }
            _ => (sent, None),
        };
        *failing = Some(Failing {
            since,
            last: sent,
            announced,
            nodes,
        });
    }

    /// Returns what waiters are told, once the outage has lasted for `outage_tolerance`.
    pub(super) fn report(&self, now: Instant) -> Option<OutageReport> {
        self.failing
            .lock()
            .as_ref()
            .map(|failing| failing.report(now))
            .filter(|report| report.lasts >= self.tolerance)
    }

    /// Returns how long it is until a waiter that came then may end because of an outage.
    pub(super) fn patience_left(&self, came: Instant, now: Instant) -> Duration {
        now.until(came + self.patience)
    }

    /// Returns how long an outage has lasted that had begun before a round that was sent at this
    /// time; zero if there was none.
    pub(super) fn known_before(&self, sent: Instant, now: Instant) -> Duration {
        let failing = self.failing.lock();
        let known = failing
            .as_ref()
            .filter(|failing| failing.since < sent && sent.since(failing.last) <= self.gap);
        known.map_or(Duration::ZERO, |failing| now.since(failing.since))
    }

    /// Returns what a waiter is told when its wait time is over, if a round has failed since it
    /// came.
    pub(super) fn failure_since(&self, came: Instant, now: Instant) -> Option<OutageReport> {
        self.failing
            .lock()
            .as_ref()
            .filter(|failing| failing.last >= came)
            .map(|failing| failing.report(now))
    }

    /// Returns how long it is until the outage has lasted for `outage_tolerance`; `None` without an
    /// outage.
    pub(super) fn ends_in(&self, now: Instant) -> Option<Duration> {
        self.failing
            .lock()
            .as_ref()
            .map(|failing| now.until(failing.since + self.tolerance))
    }

    /// Returns whether lines that wait for something else have to be told that the outage has
    /// lasted too long: once for all waiters that are due then. Lines that are sending find out by
    /// themselves.
    pub(super) fn announces(&self, now: Instant) -> bool {
        let mut failing = self.failing.lock();
        let Some(failing) = failing.as_mut() else {
            return false;
        };
        // Callers that were too young for the last announcement are due by then.
        let is_due = failing
            .announced
            .is_none_or(|last| now.since(last) >= self.patience);
        if is_due {
            failing.announced = Some(now);
        }
        is_due
    }
}

impl Failing {
    fn report(&self, now: Instant) -> OutageReport {
        OutageReport {
            nodes: self.nodes.clone(),
            lasts: now.since(self.since),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;

    const SECOND: Duration = Duration::from_secs(1);

    fn outage(tolerance: Duration) -> Outage {
        let options = Options {
            outage_tolerance: Some(tolerance),
            ..Options::default()
        };
        Outage::new(&options.validate(1).expect("valid"))
    }

    #[test]
    fn the_clock_starts_at_the_first_failure_and_ends_at_an_answer() {
        let outage = outage(SECOND * 10);
        let now = Instant::now();
        assert_eq!(outage.report(now), None);
        outage.failed(now, Vec::new());
        outage.failed(now + SECOND * 6, Vec::new());
        assert_eq!(outage.report(now + SECOND * 9), None);
        assert_eq!(
            outage.failure_since(now + SECOND * 7, now + SECOND * 9),
            None
        );
        assert!(
            outage
                .failure_since(now + SECOND * 5, now + SECOND * 9)
                .is_some()
        );
        assert_eq!(outage.ends_in(now + SECOND * 9), Some(SECOND));
        assert_eq!(
            outage.report(now + SECOND * 11).expect("too long").lasts,
            SECOND * 11
        );
        let much_later = now + SECOND * 3600;
        outage.failed(much_later, Vec::new());
        assert_eq!(
            outage.report(much_later),
            None,
            "a failure of an hour ago is another outage"
        );
        outage.answered();
        assert_eq!(outage.report(much_later + SECOND * 10), None);
    }

    #[test]
    fn an_outage_is_known_once_a_round_before_has_failed() {
        let outage = outage(SECOND * 10);
        let now = Instant::now();
        assert_eq!(outage.known_before(now, now), Duration::ZERO);
        outage.failed(now, Vec::new());
        assert_eq!(
            outage.known_before(now, now + SECOND),
            Duration::ZERO,
            "this very round"
        );
        outage.failed(now + SECOND, Vec::new());
        assert_eq!(
            outage.known_before(now + SECOND, now + SECOND * 2),
            SECOND * 2
        );
        let much_later = now + SECOND * 3600;
        assert_eq!(
            outage.known_before(much_later, much_later),
            Duration::ZERO,
            "no round was sent since"
        );
    }

    #[test]
    fn a_call_has_its_own_command_timeout_within_the_tolerance() {
        let now = Instant::now();
        for (tolerance, patience) in [
            (SECOND * 60, SECOND * 3),
            (SECOND, SECOND),
            (Duration::ZERO, Duration::ZERO),
        ] {
            assert_eq!(
                outage(tolerance).patience_left(now, now),
                patience,
                "{tolerance:?}"
            );
            assert_eq!(
                outage(tolerance).patience_left(now, now + SECOND * 3),
                Duration::ZERO
            );
        }
    }

    #[test]
    fn an_outage_is_announced_once_per_command_timeout() {
        let outage = outage(SECOND * 10);
        let now = Instant::now();
        assert!(!outage.announces(now), "there is none");
        outage.failed(now, Vec::new());
        assert!(outage.announces(now));
        assert!(
            !outage.announces(now + SECOND * 2),
            "those who are due have been told"
        );
        outage.failed(now + SECOND * 2, Vec::new());
        assert!(outage.announces(now + SECOND * 3));
    }
}
