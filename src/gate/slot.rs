//! One key: its holds, its line, and what its driver has to do.

use std::sync::Arc;

use tokio::sync::Notify;

use super::queue::Queue;
use super::turn::Turn;
use super::{Entry, Head, LastRound, Next};
use crate::clock::Instant;
use crate::error::Loss;
use crate::hold::{Hold, HoldState, Shut};
use crate::owner::Owner;

/// The state of one key.
#[derive(Debug)]
pub(super) struct Slot<G, R> {
    pub(super) holds: Vec<Arc<Hold>>,
    pub(super) line: Queue<G>,
    pub(super) driver: Option<Arc<Notify>>,
    /// Set while the driver waits for a hold of this slot, or is about to look: it sends nothing before it has looked.
    pub(super) blocked: bool,
    /// The release that the driver has to send when it looks.
    pub(super) passed: Option<R>,
    pub(super) turn: Turn,
    pub(super) last_round: LastRound,
}

impl<G, R> Default for Slot<G, R> {
    fn default() -> Self {
        let (holds, line, driver) = (Vec::new(), Queue::default(), None);
        let (blocked, passed, turn, last_round) = (false, None, Turn::default(), LastRound::Pending);
        Self { holds, line, driver, blocked, passed, turn, last_round }
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
        // The result of an earlier line's rounds says nothing about this line.
        self.last_round = LastRound::Pending;
        Some(wake)
    }

    pub(super) fn next(&mut self, now: Instant) -> Next<R> {
        self.blocked = false;
        if let Some(release) = self.passed.take() {
            return Next::Release(release, self.successor(now));
        }
        let Some(head) = self.head() else {
            self.driver = None;
            return Next::Done;
        };
        if self.holds.iter().any(|hold| hold.blocks(now)) {
            self.blocked = true;
            return Next::Blocked;
        }
        match self.loss_of(&head, now) {
            Some(loss) => Next::Lost(head.id, loss),
            None => Next::Try(head),
        }
    }

    fn head(&self) -> Option<Head> {
        let waiter = self.line.first()?;
        Some(Head { id: waiter.id, owner: waiter.owner.clone(), origin: waiter.origin, terms: waiter.terms })
    }

    /// Returns the head of the line if the lock may be handed over to it.
    fn successor(&self, now: Instant) -> Option<Head> {
        let head = self.head()?;
        let only = self.holds.iter().filter(|hold| hold.blocks(now)).count() == 1;
        (only && self.loss_of(&head, now).is_none()).then_some(head)
    }

    /// Returns whether the driver waits for this hold, and may hand its lock over.
    pub(super) fn takes_release_of(&self, hold: &Arc<Hold>, now: Instant) -> bool {
        let waits = self.blocked && self.driver.is_some() && self.passed.is_none();
        let goes_on = || self.line.first().is_some_and(|next| self.turn.may_go_on(next.id, now));
        waits && goes_on() && self.holds.iter().any(|one| Arc::ptr_eq(one, hold))
    }

    /// Returns the loss of the hold that the head's owner has, if it has a lost one.
    fn loss_of(&self, head: &Head, now: Instant) -> Option<Loss> {
        // A lost hold is removed with its last guard: while it is here, a guard lives. A hold that is being released is
        // not lost.
        let of_head = |hold: &&Arc<Hold>| hold.is_owned_by(&head.owner) && hold.claims().claimed;
        self.holds.iter().find(of_head).and_then(|hold| hold.mark(now).loss())
    }

    /// Returns the holds whose loss was noticed under the shard's lock, for firing after it is released. Wakes the
    /// driver, which may have waited for them.
    pub(super) fn found_lost(&self) -> Vec<Arc<Hold>> {
        let lost: Vec<_> = self.holds.iter().filter(|hold| hold.is_unfired()).cloned().collect();
        if !lost.is_empty() {
            self.wake();
        }
        lost
    }

    pub(super) fn enter(&self, owner: &Owner, now: Instant) -> Entry {
        for hold in &self.holds {
            if hold.is_owned_by(owner) {
                match hold.enter(now) {
                    Ok(count) => return Entry::Reentered(Arc::clone(hold), count),
                    Err(Shut::Lost(loss)) => return Entry::Lost(loss),
                    // The owner may have another hold behind it, taken past the line.
                    Err(Shut::Releasing) => {}
                }
            }
        }
        let held_here = self.holds.iter().any(|hold| hold.is_held() && hold.mark(now) == HoldState::Safe);
        if held_here { Entry::HeldHere } else { Entry::Open }
    }

    pub(super) fn wake(&self) {
        // There is one driver, and a wake-up while it does not wait leaves a permit.
        if let Some(driver) = &self.driver {
            driver.notify_one();
        }
    }
}
