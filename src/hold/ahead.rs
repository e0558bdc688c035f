//! Holds that are granted *ahead*: before the server has answered the hand-over that makes them.
//!
//! Such a hold is as valid as the one before it, whose lease it goes on with, and its fence was reserved by an earlier
//! script. Until the server has confirmed it, nothing may ask for its field: the field may not be there yet.

use std::sync::Arc;

use super::{Hold, HoldState};
use crate::clock::Instant;
use crate::error::Loss;
use crate::fence::Fence;
use crate::lease::{self, NodeIndex};

impl Hold {
    /// Makes it one that is granted ahead, before it is registered.
    pub(crate) fn go_ahead(&self) {
        self.state().ahead = true;
    }

    /// Returns whether the server has yet to confirm it.
    pub(crate) fn is_ahead(&self) -> bool {
        self.state().ahead
    }

    /// Records that the server has executed the hand-over that was sent at this time, and what it reserved. Returns the
    /// number of guards: the count on the server is one.
    ///
    /// # Errors
    /// Its loss, or [`Loss::Released`], if it is no longer held.
    pub(crate) fn confirm(self: &Arc<Self>, sent: Instant, now: Instant, reserved: Option<Fence>) -> Result<u32, Loss> {
        const ONLY: NodeIndex = 0;
        let _: HoldState = self.at(now);
        let mut state = self.state();
        (state.ahead, state.reserved, state.failed_ticks) = (false, reserved, 0);
        let loss = state.safety().loss();
        if matches!(loss, None | Some(Loss::Released)) {
            // A late answer makes no lease longer that nobody renews. The validity that a hold leaves when it is being
            // released counts from here, too.
            let from = if self.terms.renewed { sent } else { self.since };
            state.votes.add(ONLY, lease::valid_until(from, self.terms.lease));
        }
        loss.map_or(Ok(state.guards), Err)
    }

    /// Records that the server did not have the hold before it, and so has not this one. It is lost if it is held.
    pub(crate) fn refute(self: &Arc<Self>) {
        self.state().ahead = false;
        self.lose(Loss::NotOwner);
    }

    /// Records the fence that the server has reserved for the next holder.
    pub(crate) fn reserve(&self, fence: Option<Fence>) {
        self.state().reserved = fence;
    }

    /// Returns until when it would be valid without a `max_hold`.
    pub(crate) fn leased_until(&self) -> Instant {
        self.state().votes.majority_until().unwrap_or(self.since)
    }

    /// Returns what a hold that is granted ahead after this one, while this one is released, gets from it: a fence, and
    /// until when it is valid. `None` if the server has reserved no fence, as for a hold that it has yet to confirm.
    pub(crate) fn leaves(&self) -> Option<(Fence, Instant)> {
        let state = self.state();
        Some((state.reserved?, state.votes.majority_until()?))
    }
}
