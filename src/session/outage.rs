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
    since: Mutex<Option<(Instant, Vec<NodeFailure>)>>,
    over: Notify,
}

impl Outage {
    /// A round had an answer.
    pub(super) fn answered(&self) {
        *self.since() = None;
    }

    /// A round that was sent at this time had none.
    pub(super) fn failed(&self, sent: Instant, nodes: Vec<NodeFailure>) {
        let mut since = self.since();
        let start = since.as_ref().map_or(sent, |(start, _)| *start);
        *since = Some((start, nodes));
    }

    /// The error with which waiters end, once the outage has lasted for as long as they bear it.
    pub(super) fn verdict(&self, now: Instant, tolerance: Duration) -> Option<Error> {
        let since = self.since();
        let (start, nodes) = since.as_ref()?;
        let waited = now.since(*start);
        (waited >= tolerance).then(|| Error::Unavailable { nodes: nodes.clone(), waited })
    }

    /// How long it is until the outage has lasted for as long as waiters bear it; `None` without an outage.
    pub(super) fn ends_in(&self, now: Instant, tolerance: Duration) -> Option<Duration> {
        self.since().as_ref().map(|(start, _)| now.until(*start + tolerance))
    }

    /// Tells everybody who waits for something else that it is over.
    pub(super) fn announce(&self) {
        self.over.notify_waiters();
    }

    /// Waits for an announcement. One that comes while nobody waits is not kept: the next round finds out by itself.
    pub(super) async fn announced(&self) {
        self.over.notified().await;
    }

    fn since(&self) -> MutexGuard<'_, Option<(Instant, Vec<NodeFailure>)>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_starts_with_the_first_failure_and_ends_with_an_answer() {
        let (outage, now, tolerance) = (Outage::default(), Instant::now(), Duration::from_secs(10));
        assert!(outage.verdict(now, tolerance).is_none());
        outage.failed(now, Vec::new());
        outage.failed(now + Duration::from_secs(6), Vec::new());
        assert!(outage.verdict(now + Duration::from_secs(9), tolerance).is_none());
        assert_eq!(outage.ends_in(now + Duration::from_secs(9), tolerance), Some(Duration::from_secs(1)));
        let verdict = outage.verdict(now + Duration::from_secs(11), tolerance).expect("over");
        assert!(verdict.to_string().contains("11.0s"), "{verdict}");
        outage.answered();
        assert!(outage.verdict(now + Duration::from_secs(60), tolerance).is_none());
    }
}
