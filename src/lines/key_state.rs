//! One key: its line, when it is woken, and what callers find.

use std::sync::Arc;

use super::{Entry, Head, LockRequest, World};
use crate::clock::Instant;
use crate::error::Loss;
use crate::hold::{EnterError, Hold, HoldState, Want};
use crate::kind::Kind;
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

    fn shares(&self) -> bool {
        self.claim.kind.shares()
    }

    fn hands_over(&self) -> bool {
        self.claim.kind.hands_over()
    }

    fn is_in_other_role(&self, owner: &Owner, shares: bool) -> bool {
        Hold::is_in_other_role(self, owner, shares)
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
            want,
            ref span,
            ..
        } = waiter.call;
        Some(Head {
            id,
            owner: waiter.owner.clone(),
            origin,
            want,
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

    pub(super) fn enter(&self, owner: &Owner, want: Want, now: Instant) -> Entry {
        let kind = want.kind;
        let holds = self.line.holds();
        let mut beside = None;
        for hold in holds.iter().filter(|hold| hold.is_owned_by(owner)) {
            if hold.claim.kind != kind {
                // It may have several: one that is being released says nothing.
                beside = beside.or_else(|| self.enter_beside(hold, owner, kind, now));
                continue;
            }
            match hold.enter(now) {
                Ok(count) => return Entry::Reentered(Arc::clone(hold), count),
                Err(EnterError::Lost(loss)) => return Entry::Lost(loss),
                // The owner may have another hold behind it, taken past the line.
                Err(EnterError::Releasing) => {}
            }
        }
        if let Some(entry) = beside {
            return entry;
        }
        // After a failed renewal the servers may have let another in: only they know.
        let is_held = |hold: &Arc<Hold>| hold.is_held() && hold.mark(now) == HoldState::Safe;
        let excludes = |hold: &Arc<Hold>| kind.excludes(hold.claim.kind) && is_held(hold);
        // A reader does not go past a writer that waits.
        let waits = || kind.shares() && self.line.has_writers();
        if holds.iter().any(excludes) || waits() {
            return Entry::HeldHere;
        }
        let is_open = |hold: &&Arc<Hold>| kind.shares() && hold.is_open(want.terms, now);
        let open = holds.iter().find(is_open);
        open.map_or(Entry::Open, |hold| Entry::Beside(Arc::clone(hold)))
    }

    /// Returns what an owner finds that has this hold in the other role, if that matters.
    fn enter_beside(
        &self,
        hold: &Arc<Hold>,
        owner: &Owner,
        kind: &'static Kind,
        now: Instant,
    ) -> Option<Entry> {
        if let Some(loss) = hold.loss_of(owner, now) {
            return Some(Entry::Lost(loss));
        }
        if !Hold::is_in_other_role(hold, owner, kind.shares()) {
            return None;
        }
        Some(match kind.shares() {
            true => Entry::Inside(Arc::clone(hold)),
            false => Entry::Upgrade,
        })
    }
}
