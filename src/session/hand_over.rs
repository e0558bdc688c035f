//! Hands a lock over: one script releases it and takes it for the next waiter of this locker.
//!
//! # Invariants
//! - It is sent once. It takes the lock only from the hold that it releases: once that hold is gone, a late copy takes
//!   nothing.
//! - The next waiter has the lock when the server has answered.
//! - If its outcome is unknown, what it may have taken is undone only after the release of that hold is answered: an
//!   undo before a late hand-over would leave the lock to nobody (`tests/model/hand_over.rs`).
//! - The driver sends it, and sends nothing else meanwhile.

use std::pin::pin;
use std::slice;
use std::sync::Arc;

use tokio::time::timeout;

use super::Session;
use super::attempt::Asked;
use super::release::release;
use super::unconfirmed::Unconfirmed;
use crate::clock::Instant;
use crate::command::HandOver;
use crate::engine::Work;
use crate::foreign::log;
use crate::lease;
use crate::lines::Head;
use crate::node::Outcome;
use crate::quorum::{Acquired, Majority, Settled};

/// A release that takes its lock for the next waiter. If its task ends early, both are undone, in the order of these
/// fields.
struct Handing<'a> {
    released: Unconfirmed,
    next: Asked<'a>,
}

/// Releases a hold and hands the lock over to the head of the line, if there is one. The release is answered in any
/// case.
pub(super) async fn hand_over(released: Unconfirmed, head: Option<Head>) {
    let session = &Arc::clone(&released.session);
    // Closing waits for what began before it, so this is sent before the connections quit.
    let Some(head) = head.filter(|_| session.check_open().is_ok()) else {
        session.engine.spawn(release(released));
        return;
    };
    let _debt = session.engine.owe(Work::Release);
    let key = released.hold.claim.key.clone();
    let patience = lease::recheck_interval(head.terms.lease).min(session.settings.command_timeout);
    let next = Asked::new(session, slice::from_ref(&key), &head.owner, head.origin, head.terms, patience);
    let mut handing = Handing { released, next };
    let outcome = handing.ask(session).await;
    handing.settle(session, outcome, &head);
}

impl Handing<'_> {
    /// Sends the hand-over. The releaser is told when its time is over.
    async fn ask(&mut self, session: &Session) -> Outcome<HandOver> {
        let Self { released, next } = self;
        let from = released.hold.claim.clone();
        let mut asking = pin!(session.quorum.hand_over(&from, &next.claims[0], next.terms.lease, next.fences));
        match timeout(Instant::now().until(released.deadline), &mut asking).await {
            Ok(outcome) => outcome,
            Err(_) => {
                let nodes = released.silence();
                released.overdue(nodes);
                asking.await
            }
        }
    }

    /// Gives the lock to the waiter, if it was granted. Otherwise undoes what may have been taken.
    fn settle(mut self, session: &Arc<Session>, outcome: Outcome<HandOver>, head: &Head) {
        let hold = Arc::clone(&self.released.hold);
        let key = &hold.claim.key;
        match outcome {
            Outcome::Done(HandOver::Granted(fence)) => {
                session.outage.answered();
                self.released.note_released();
                match self.next.holds(&Majority { fences: vec![fence], votes: vec![0] }) {
                    Acquired::Granted(holds) => {
                        self.next.settled = true;
                        for next in holds {
                            session.deliver_after(&hold, self.next.granted(next), head.id);
                        }
                        self.released.succeeded();
                    }
                    // The lock is on the server, and its lease may be over.
                    _ => {
                        self.next.settled = true;
                        session.undo(&self.next.claims[0], self.next.terms.lease, None, [0], None);
                        self.released.end(Settled::Done);
                    }
                }
            }
            Outcome::Done(HandOver::Gone) => {
                session.outage.answered();
                self.next.settled = true;
                self.released.end(Settled::Gone);
            }
            Outcome::NotExecuted(failure) => {
                log!(trace, key = %key.shown(), %failure, "not handed over");
                self.next.settled = true;
                session.engine.spawn(release(self.released));
            }
            Outcome::Unknown(failure) => {
                log!(debug, key = %key.shown(), %failure, "nobody knows who has it");
                self.undo_in_order(session);
            }
            // The script may have done a part of it.
            Outcome::Refused(error) => {
                log!(debug, key = %key.shown(), %error, "the hand-over was refused");
                self.undo_in_order(session);
            }
        }
    }

    /// Sends the release by itself. Once it is answered, what may have been taken is undone.
    fn undo_in_order(mut self, session: &Arc<Session>) {
        self.released.may_have_taken(self.next.claims[0].clone(), self.next.terms.lease);
        self.next.settled = true;
        session.engine.spawn(release(self.released));
    }
}
