//! A hold whose lease its holder extends, or another client cuts.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::{Hold, HoldPhase, HoldState, State};
use crate::clock::Instant;
use crate::lease::{self, NodeIndex};

/// The shortest lease of another client that a hold takes into account.
const SHORTEST_CUT: Duration = Duration::from_millis(500);

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

    /// Records that a node has renewed it, by a renewal sent at this time, and that another client
    /// had left the lock only this long to live before: it does so again, and it is unknown when
    /// that client ends. Returns whether it is held.
    pub(crate) fn cut_to(&self, left: Duration, node: NodeIndex, sent: Instant) -> bool {
        let mut state = self.state.lock();
        if state.phase != HoldPhase::Held {
            return false;
        }
        // A client that is just about to end leaves next to nothing, and does not come again.
        let cut = self.trusted(&state).min(left.max(SHORTEST_CUT));
        state.cut_ms = u32::try_from(cut.as_millis())
            .ok()
            .and_then(NonZeroU32::new);
        let until = lease::valid_until(sent, self.trusted(&state));
        state.votes.replace(node, until);
        state.failed_ticks = 0;
        true
    }

    /// Returns the lease by which a renewal counts.
    pub(crate) fn trusted_lease(&self) -> Duration {
        self.trusted(&self.state.lock())
    }

    pub(super) fn trusted(&self, state: &State) -> Duration {
        let cut = |ms: NonZeroU32| Duration::from_millis(ms.get().into());
        state.cut_ms.map_or(self.terms.lease, cut)
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
