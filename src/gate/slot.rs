//! One key: its line, who carries the line out, and what callers find.

use std::sync::Arc;

use tokio::sync::Notify;

use super::{Call, Entry, Head};
use crate::clock::Instant;
use crate::error::Loss;
use crate::hold::{Hold, HoldState, Shut};
use crate::line::{Held, Line};
use crate::owner::Owner;

/// The state of one key.
#[derive(Debug)]
pub(super) struct Slot<G, R> {
    pub(super) line: Line<Arc<Hold>, Call<G>, R>,
    pub(super) driver: Option<Arc<Notify>>,
}

impl Held for Arc<Hold> {
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

impl<G, R> Default for Slot<G, R> {
    fn default() -> Self {
        Self { line: Line::default(), driver: None }
    }
}

impl<G, R> Slot<G, R> {
    /// Returns the wake-up of a driver that the caller has to start, or `None` if there is a driver.
    pub(super) fn start(&mut self) -> Option<Arc<Notify>> {
        if self.driver.is_some() {
            return None;
        }
        let wake = Arc::new(Notify::new());
        self.driver = Some(Arc::clone(&wake));
        self.line.begin();
        Some(wake)
    }

    /// Returns what is known of a waiter.
    pub(super) fn head(&self, id: u64) -> Option<Head> {
        let waiter = self.line.waiters().range(id).next().filter(|waiter| waiter.id == id)?;
        let Call { origin, terms, .. } = waiter.call;
        Some(Head { id, owner: waiter.owner.clone(), origin, terms })
    }

    /// Returns the holds whose loss was noticed under the shard's lock, for firing after it is released. Wakes the
    /// driver, which may have waited for them.
    pub(super) fn found_lost(&self) -> Vec<Arc<Hold>> {
        let lost: Vec<_> = self.line.holds().iter().filter(|hold| hold.is_unfired()).cloned().collect();
        if !lost.is_empty() {
            self.wake();
        }
        lost
    }

    pub(super) fn enter(&self, owner: &Owner, now: Instant) -> Entry {
        for hold in self.line.holds() {
            if hold.is_owned_by(owner) {
                match hold.enter(now) {
                    Ok(count) => return Entry::Reentered(Arc::clone(hold), count),
                    Err(Shut::Lost(loss)) => return Entry::Lost(loss),
                    // The owner may have another hold behind it, taken past the line.
                    Err(Shut::Releasing) => {}
                }
            }
        }
        let held_here = self.line.holds().iter().any(|hold| hold.is_held() && hold.mark(now) == HoldState::Safe);
        if held_here { Entry::HeldHere } else { Entry::Open }
    }

    pub(super) fn wake(&self) {
        // There is one driver, and a wake-up while it does not wait leaves a permit.
        if let Some(driver) = &self.driver {
            driver.notify_one();
        }
    }
}
