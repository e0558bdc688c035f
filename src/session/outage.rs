//! The outage clock: since when no round of this locker has had an answer from a majority. All waiters share it, so that
//! they end together.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::Instant;
use crate::error::{Error, NodeFailure};

/// Since when, and what the last failed round said.
#[derive(Debug, Default)]
pub(super) struct Outage {
    failing: Mutex<Option<Failing>>,
    over: Notify,
}

#[derive(Debug)]
struct Failing {
    since: Instant,
    last: Instant,
    nodes: Vec<NodeFailure>,
}

impl Outage {
    /// A round had an answer.
    pub(super) fn answered(&self) {
        *self.failing() = None;
    }

    /// A round that was sent at this time had none. If nobody has tried for longer than an outage is borne, what failed
    /// before says nothing about the time between, and the clock starts anew.
    pub(super) fn failed(&self, sent: Instant, tolerance: Duration, nodes: Vec<NodeFailure>) {
        let mut failing = self.failing();
        let since = match failing.as_ref() {
            Some(earlier) if sent.since(earlier.last) <= tolerance => earlier.since,
            _ => sent,
        };
        *failing = Some(Failing { since, last: sent, nodes });
    }

    /// The error with which waiters end, once the outage has lasted for as long as they bear it.
    pub(super) fn verdict(&self, now: Instant, tolerance: Duration) -> Option<Error> {
        let failing = self.failing();
        let failing = failing.as_ref()?;
        let waited = now.since(failing.since);
        (waited >= tolerance).then(|| Error::Unavailable { nodes: failing.nodes.clone(), waited })
    }

    /// The error of a waiter whose time is over, if a round failed since it came.
    pub(super) fn failure_since(&self, came: Instant, now: Instant) -> Option<Error> {
        let failed = self.failing().as_ref().is_some_and(|failing| failing.last >= came);
        if failed { self.verdict(now, Duration::ZERO) } else { None }
    }

    /// How long it is until the outage has lasted for as long as waiters bear it; `None` without an outage.
    pub(super) fn ends_in(&self, now: Instant, tolerance: Duration) -> Option<Duration> {
        self.failing().as_ref().map(|failing| now.until(failing.since + tolerance))
    }

    /// Tells everybody who waits for something else that it is over.
    pub(super) fn announce(&self) {
        self.over.notify_waiters();
    }

    /// Waits for an announcement. One that comes while nobody waits is not kept: the next round finds out by itself.
    pub(super) async fn announced(&self) {
        self.over.notified().await;
    }

    fn failing(&self) -> MutexGuard<'_, Option<Failing>> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_starts_with_the_first_failure_and_ends_with_an_answer() {
        let (outage, now, tolerance) = (Outage::default(), Instant::now(), Duration::from_secs(10));
        assert!(outage.verdict(now, tolerance).is_none());
        outage.failed(now, tolerance, Vec::new());
        outage.failed(now + Duration::from_secs(6), tolerance, Vec::new());
        assert!(outage.verdict(now + Duration::from_secs(9), tolerance).is_none());
        assert!(outage.failure_since(now + Duration::from_secs(7), now + Duration::from_secs(9)).is_none());
        assert!(outage.failure_since(now + Duration::from_secs(5), now + Duration::from_secs(9)).is_some());
        assert_eq!(outage.ends_in(now + Duration::from_secs(9), tolerance), Some(Duration::from_secs(1)));
        let verdict = outage.verdict(now + Duration::from_secs(11), tolerance).expect("over");
        assert!(verdict.to_string().contains("11.0s"), "{verdict}");
        let much_later = now + Duration::from_secs(3600);
        outage.failed(much_later, tolerance, Vec::new());
        assert!(outage.verdict(much_later, tolerance).is_none(), "a failure of an hour ago is another outage");
        outage.answered();
        assert!(outage.verdict(much_later + tolerance, tolerance).is_none());
    }
}
