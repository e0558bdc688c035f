//! Gives a lock to the next waiter before the server has answered the hand-over, so that a caller waits for no server
//! while its locker has the lock.
//!
//! The lock is the locker's all the time: on the server it is held under the field of the releaser, or under that of
//! the next holder, and the lease of either outlasts the validity that the releaser had left. That is all that the next
//! holder has until the answer comes. Its fence is the number that the hand-over before this one reserved.
//!
//! # Invariants
//! - Only a hold that the server has confirmed is handed over like this, so at most one hand-over is without an answer.
//! - The hand-over is sent until it is answered, while the next holder holds the lock. If the lock was gone, the next
//!   holder has lost it.
//! - Once the next holder has released or lost the lock, the hand-over is not sent again. Without an answer both are
//!   undone in order.
//! - Nothing else asks for the field of the next holder before the server has confirmed it, except its release: the
//!   driver sends that behind the first copy, and then finding nothing counts as done.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::Session;
use super::handing::{Handing, ask};
use super::pending::Late;
use super::release::{AGAIN, release};
use super::unconfirmed::Unconfirmed;
use crate::clock::Instant;
use crate::command::HandOver;
use crate::error::Loss;
use crate::fence::{Fence, Source};
use crate::foreign::contained;
use crate::gate::Head;
use crate::hold::Hold;
use crate::node::Outcome;
use crate::quorum::Settled;

/// A hold that is granted ahead. If its task ends before the answer, by a panic or with the engine, it is lost.
pub(super) struct Ahead {
    session: Arc<Session>,
    hold: Arc<Hold>,
}

impl Ahead {
    /// Gives the lock to the head of the line, if the releaser leaves it a fence and at least half of a lease.
    pub(super) fn grant(session: &Arc<Session>, handing: &Handing<'_>, head: &Head) -> Option<Self> {
        let Handing { released, next } = handing;
        let (fence, until) = released.hold.leaves()?;
        let lease = released.hold.terms.lease;
        // What stands on the server is the releaser's lease.
        if next.terms.lease != lease || Instant::now().until(until) < lease / 2 {
            return None;
        }
        released.tell();
        let hold = next.hold_ahead(fence, until);
        let ahead = Self { session: Arc::clone(session), hold: Arc::clone(&hold) };
        session.deliver_after(&released.hold, next.granted(hold), head.id);
        Some(ahead)
    }

    /// Sends the hand-over. If it has no answer, another task sends it again: the driver has to know of outages.
    pub(super) async fn settle(self, mut handing: Handing<'_>) {
        // Dropped before the other: it is lost before anything is undone.
        let ahead = self;
        let (sent, outcome) = handing.ask().await;
        let session = Arc::clone(&ahead.session);
        let Handing { released, mut next } = handing;
        next.settled = true;
        let unanswered = Unanswered { ahead, released, fences: next.fences, is_repeated: false };
        if let Some(unanswered) = unanswered.hear(sent, outcome) {
            session.engine.spawn(unanswered.repeat());
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        if self.hold.is_ahead() {
            let loss = if self.session.is_closed() { Loss::Closed } else { Loss::RenewalFailed };
            self.hold.lose(loss);
        }
    }
}

/// A hand-over whose next holder has the lock already. If its task ends early, that holder has lost the lock, and both
/// are undone, in the order of these fields.
struct Unanswered {
    ahead: Ahead,
    released: Unconfirmed,
    fences: Source,
    is_repeated: bool,
}

impl Unanswered {
    /// Handles an outcome. Returns what is still without an answer.
    fn hear(mut self, sent: Instant, outcome: Outcome<HandOver>) -> Option<Self> {
        let hold = Arc::clone(&self.ahead.hold);
        let Hold { claim, terms, .. } = &*hold;
        let key = &claim.key;
        let failure = match outcome {
            Outcome::Done(HandOver::Granted(fence)) => {
                let reserved = self.fences.reserved(fence);
                self.confirmed(sent, reserved);
                return None;
            }
            Outcome::Done(HandOver::Already) => {
                self.confirmed(sent, None);
                return None;
            }
            Outcome::Done(HandOver::Gone) => {
                self.gone();
                return None;
            }
            Outcome::NotExecuted(failure) => failure,
            Outcome::Unknown(failure) => {
                self.released.may_have_taken(claim.clone(), terms.lease);
                failure
            }
            // The script may have done a part of it.
            Outcome::Refused(error) => {
                self.released.may_have_taken(claim.clone(), terms.lease);
                contained(|| tracing::warn!(key = %key.shown(), %error, "handed over, and the server refuses it"));
                return Some(self);
            }
        };
        contained(|| tracing::debug!(key = %key.shown(), %failure, "handed over, and not confirmed yet"));
        Some(self)
    }

    /// Sends the hand-over again, as long as the next holder has the lock. Ends with it; nobody awaits it.
    async fn repeat(mut self) {
        let session = Arc::clone(&self.ahead.session);
        let (_debt, _late) = (session.engine.owe(), Late::new(&session));
        self.is_repeated = true;
        let mut pause = AGAIN;
        while self.is_held_after(pause).await {
            let Hold { claim, terms, .. } = &*self.ahead.hold;
            let (sent, outcome) = ask(&mut self.released, claim, terms.lease, self.fences).await;
            match self.hear(sent, outcome) {
                Some(unanswered) => self = unanswered,
                None => return,
            }
            pause = (pause * 2).min(session.settings.command_timeout / 2);
        }
        // What it may have taken is undone behind it.
        release(self.released).await;
    }

    /// Waits for a while, or until the next holder has released or lost the lock. The releaser is told when its time is
    /// over. Returns whether the lock is still held.
    async fn is_held_after(&mut self, pause: Duration) -> bool {
        let over = Instant::now() + pause;
        loop {
            let now = Instant::now();
            if self.released.is_awaited() && now >= self.released.deadline {
                let nodes = self.released.silence();
                self.released.overdue(nodes);
            }
            if now >= over || !self.ahead.hold.is_held() {
                return self.ahead.hold.is_held();
            }
            let told = if self.released.is_awaited() { self.released.deadline } else { over };
            sleep(now.until(over.min(told).min(now + AGAIN))).await;
        }
    }

    /// The server has the next holder.
    fn confirmed(self, sent: Instant, reserved: Option<Fence>) {
        let (session, hold, now) = (&self.ahead.session, &self.ahead.hold, Instant::now());
        session.outage.answered();
        if self.is_repeated && hold.guards() == 0 {
            // Its release may have been sent before this copy.
            session.undo_hold(hold);
        } else {
            match hold.confirm(sent, now, reserved) {
                Ok(guards) => {
                    if !session.watchdog.watch(hold, now) {
                        hold.lose(Loss::RenewalFailed);
                    }
                    if guards > 1 {
                        session.count_behind(hold, guards);
                    }
                }
                // Its release is sent behind the hand-over. So is that of a lost hold, if its guard still lives.
                Err(Loss::Released) => {}
                Err(_) if hold.guards() > 0 => {}
                Err(_) => session.undo_hold(hold),
            }
        }
        self.released.succeeded();
    }

    /// The server has neither. After an earlier copy that may have been executed, the releaser had the lock until then.
    fn gone(self) {
        let was_executed = self.released.may_have_been_executed() && Instant::now() < self.released.hold.valid_until();
        self.ahead.session.outage.answered();
        self.ahead.hold.refute();
        self.released.end(if was_executed { Settled::Done } else { Settled::Gone });
    }
}
