//! One key: its line, when it is woken, and what callers find.

use std::sync::Arc;

use super::{Entry, Head, LockRequest, World};
use crate::clock::Instant;
use crate::error::Loss;
use crate::hold::{EnterError, Hold, HoldState};
use crate::line::{Line, RawHold};
use crate::owner::Owner;

/// The state of one key.
pub(super) struct KeyState<W: World> {
    pub(super) line: Line<Arc<Hold>, LockRequest<W::RawGuard>, W::Unconfirmed>,
    /// When its line is woken, and the number of that timer.
    pub(super) alarm: Option<(Instant, u64)>,
}

impl RawHold for Arc<Hold> {
    fn is(&self, other: &Self) -> bool {
        Self::ptr_eq(self, other)
    }

    fn blocks(&self, now: Instant) -> bool {
        Hold::blocks(self, now)
    }

    fn loss_of(&self, owner: &Owner, now: Instant) -> Option<Loss> {
        // A hold that is being released is not lost.
        let is_claimed = self.is_owned_by(owner) && self.claims().claimed;
        is_claimed.then(|| self.mark(now).loss()).flatten()
    }
}

impl<W: World> Default for KeyState<W> {
    fn default() -> Self {
        Self {
            line: Line::default(),
            alarm: None,
        }
    }
}

impl<W: World> KeyState<W> {
    /// Returns what is known of a waiter.
    pub(super) fn head(&self, id: u64) -> Option<Head> {
        let waiter = self
            .line
            .waiters()
            .range(id)
            .next()
            .filter(|waiter| waiter.id == id)?;
        let LockRequest {
            origin,
            terms,
            ref span,
            ..
        } = waiter.call;
        Some(Head {
            id,
            owner: waiter.owner.clone(),
            origin,
            terms,
            span: span.clone(),
        })
    }

    /// Returns the holds whose loss was noticed under the shard's lock, for firing after it is
    /// released.
    pub(super) fn found_lost(&self) -> Vec<Arc<Hold>> {
        self.line
            .holds()
            .iter()
            .filter(|hold| hold.is_unfired())
            .cloned()
            .collect()
    }

    pub(super) fn enter(&self, owner: &Owner, now: Instant) -> Entry {
        for hold in self.line.holds() {
            if hold.is_owned_by(owner) {
                match hold.enter(now) {
                    Ok(count) => return Entry::Reentered(Arc::clone(hold), count),
                    Err(EnterError::Lost(loss)) => return Entry::Lost(loss),
                    // The owner may have another hold behind it, taken past the line.
                    Err(EnterError::Releasing) => {}
                }
            }
        }
        // After a failed renewal the servers may have let another in: only they know.
        let held_here = self
            .line
            .holds()
            .iter()
            .any(|hold| hold.is_held() && hold.mark(now) == HoldState::Safe);
        if held_here {
            Entry::HeldHere
        } else {
            Entry::Open
        }
    }
}
