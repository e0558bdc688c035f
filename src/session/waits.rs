//! How callers wait for a time, and what they get when it is over.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::sleep;

use super::Session;
use super::outage::OutageReport;
use crate::clock::Instant;
use crate::error::Error;
use crate::foreign;
use crate::line::Event;
use crate::random;
use crate::tasks::Stop;

impl Session {
    /// Awaits this until the deadline.
    pub(crate) async fn in_time<T>(
        &self,
        deadline: Option<Instant>,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        let Some(deadline) = deadline else {
            return Some(future.await);
        };
        tokio::select! {
            // A result that is there counts, though the deadline is over as well.
            biased;
            value = future => Some(value),
            () = pause_until(self, deadline) => None,
        }
    }

    /// Waits for a random time, but not beyond `end`, before a caller is notified of a refusal, if
    /// there was another one a moment ago.
    pub(crate) async fn pace_refusal(&self, end: Option<Instant>) {
        let now = self.now();
        let pause = self.refusals.next(random::retry_pause(), now);
        let pause = end.map_or(pause, |end| pause.min(now.until(end)));
        if !pause.is_zero() {
            pause_until(self, now + pause).await;
        }
    }
}

/// Ends the wait of a caller that came then, might wait until this deadline, and has had no answer.
///
/// # Errors
/// The servers are away, or have had the time for an answer.
pub(super) fn gave_up(session: &Session, since: Instant, deadline: Instant) -> Result<(), Error> {
    let now = session.now();
    if let Some(OutageReport { nodes, lasts }) = session.outage.failure_since(since, now) {
        return Err(session.quorum.unavailable(nodes, lasts));
    }
    let known = session.outage.known_before(since, now);
    // An answer takes longer than this caller waited: silence says nothing about the servers.
    if known.is_zero() && since.until(deadline) < session.quorum.answers_within() {
        return Ok(());
    }
    let waited = now.since(since);
    let nodes = session
        .quorum
        .failures(format!("has not answered within {waited:.1?}"));
    Err(session.quorum.unavailable(nodes, waited.max(known)))
}

/// Waits until then. The timer runs on the engine, since the caller may have no runtime, and begins
/// with the first poll; it ends with this future, or with the engine.
pub(super) async fn pause_until(session: &Session, end: Instant) {
    let (over, timer) = foreign::channel::<()>();
    let _stop = Stop(session.engine.spawn(async move {
        sleep(Instant::now().until(end)).await;
        foreign::hang_up(over);
    }));
    let _: Result<(), _> = timer.await;
}
/// Returns how long it is until an outage has lasted for too long. If it has, all lines that wait
/// are told.
pub(super) fn outage_ends_in(session: &Arc<Session>) -> Option<Duration> {
    let now = Instant::now();
    if session.outage.report(now).is_none() {
        // A round of another key may have been answered since: then there is no outage.
        return Some(session.outage.ends_in(now).unwrap_or(Duration::MAX));
    }
    // Lines that are sending find out by themselves. The others wait for something else.
    if session.outage.announces(now) {
        let owned = Arc::clone(session);
        session.engine.spawn(async move {
            for key in owned.lines.awaited() {
                owned.lines.step(&key, Event::Outage);
                // There may be very many lines.
                yield_now().await;
            }
        });
    }
    None
}
