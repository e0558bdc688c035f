//! How long a majority takes to answer, and how much longer the others may take.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Order, Quorum};
use crate::clock::Instant;

/// How much longer than a majority the other nodes may take if the decision depends on them: this,
/// and twice the time of the majority. What they have not answered by then is undone.
const PATIENCE: Duration = Duration::from_millis(20);

/// A longer round trip is not due to distance but to a fault: no pause grows with it.
const LONGEST_ROUND_TRIP: Duration = Duration::from_millis(200);

impl Quorum {
    /// Notes that a majority has answered.
    pub(super) fn note_round_trip(&self, order: Order, started: Instant) {
        if order == Order::AllAtOnce {
            let took = Instant::now().since(started).min(LONGEST_ROUND_TRIP);
            self.round_trip_us.store(
                took.as_micros().try_into().unwrap_or(u64::MAX),
                Ordering::Relaxed,
            );
        }
    }

    /// Returns how long a majority took to answer the last time that all nodes were asked at once,
    /// at most [`LONGEST_ROUND_TRIP`].
    pub(crate) fn round_trip(&self) -> Duration {
        Duration::from_micros(self.round_trip_us.load(Ordering::Relaxed))
    }

    /// Returns within which time a server that is there is expected to answer.
    pub(crate) fn answers_within(&self) -> Duration {
        self.round_trip() * 2 + PATIENCE
    }
}

/// Returns until when to wait for the others, if a majority of the nodes that were asked at
/// `started` has answered now.
pub(super) fn patience_of(started: Instant) -> Instant {
    let now = Instant::now();
    now + now.since(started) * 2 + PATIENCE
}
