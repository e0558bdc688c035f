//! A hold whose lease its holder extends.

use std::sync::Arc;
use std::time::Duration;

use super::{Hold, HoldPhase, HoldState};
use crate::clock::Instant;
use crate::lease::NodeIndex;

impl Hold {
    /// Notes that the servers are about to be asked for this lease, which may be longer than that
    /// of the terms.
    pub(crate) fn lengthen(&self, lease: Duration) {
        let mut state = self.state.lock();
        state.longest = state.longest.max(lease);
    }

    /// Returns the longest lease that may stand on a server.
    pub(crate) fn lease(&self) -> Duration {
        self.state.lock().longest
    }

    /// Records that a node keeps the lock until at least this time.
    pub(crate) fn extended(self: &Arc<Self>, node: NodeIndex, until: Instant, now: Instant) {
        // A hold whose lease is over cannot be extended.
        let _: HoldState = self.at(now);
        let mut state = self.state.lock();
        if state.phase == HoldPhase::Held {
            state.votes.add(node, until);
        }
    }

    /// Returns whether a majority votes for it until this time.
    pub(crate) fn has_votes_until(&self, until: Instant) -> bool {
        self.state
            .lock()
            .votes
            .majority_until()
            .is_some_and(|end| end >= until)
    }
}
