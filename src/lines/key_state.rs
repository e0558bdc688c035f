//! One key: its line, when it is woken, and what callers find.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{CallWaiter, Entry, Head, LockRequest, World};
use crate::clock::Instant;
use crate::error::Loss;
use crate::hold::{EnterError, Hold, HoldState, Want};
use crate::kind::{Kind, LockRole};
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

fn head_of<G>(waiter: &CallWaiter<G>) -> Head {
    let LockRequest {
        origin,
        want,
        ref span,
        ref in_doubt,
        ..
    } = waiter.call;
    Head {
        id: waiter.id,
        owner: waiter.owner.clone(),
        origin,
        want,
        span: span.clone(),
        in_doubt: in_doubt.load(Ordering::Relaxed),
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
        Some(head_of(waiter))
    }

    /// Records that an ask had no answer which was for the waiters up to this number.
    pub(super) fn doubt(&self, last: u64) {
        let asked = self.line.waiters().range(0);
        asked
            .take_while(|waiter| waiter.id <= last)
            .for_each(|waiter| waiter.call.in_doubt.store(true, Ordering::Relaxed));
    }

    /// Returns the first capacity that a waiter's handle says.
    pub(super) fn capacity(&self) -> Option<NonZeroU32> {
        let mut waiters = self.line.waiters().range(0);
        waiters.find_map(|waiter| waiter.call.want.capacity)
    }

    /// Returns what is known of the waiters at the front, but of no more than this many of them.
    pub(super) fn front(&self, most: usize) -> Vec<Head> {
        self.line
            .waiters()
            .range(0)
            .take(most)
            .map(head_of)
            .collect()
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
        if kind.role == LockRole::Permit {
            // Each call is an owner of its own, and does not go past those that wait.
            return match self.line.waiters().is_empty() {
                true => Entry::Open,
                false => Entry::HeldHere,
            };
        }
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
