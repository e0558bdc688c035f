//! A hand-over under way: what is sent, and what follows from its answer.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::Session;
use super::attempt::Asked;
use super::release::release;
use super::unconfirmed::Unconfirmed;
use crate::clock::Instant;
use crate::command::{Claim, HandOver};
use crate::fence::Source;
use crate::foreign::contained;
use crate::gate::Head;
use crate::node::Outcome;
use crate::quorum::{Acquired, Majority, Settled};

/// A release that takes its lock for the next waiter. If its task ends early, both are undone, in the order of these
/// fields.
pub(super) struct Handing<'a> {
    pub(super) released: Unconfirmed,
    pub(super) next: Asked<'a>,
}

impl Handing<'_> {
    pub(super) async fn ask(&mut self) -> (Instant, Outcome<HandOver>) {
        let Asked { claims, terms, fences, .. } = &self.next;
        ask(&mut self.released, &claims[0], terms.lease, *fences).await
    }

    /// Gives the lock to the waiter, if it was granted. Otherwise undoes what may have been taken.
    pub(super) fn settle(mut self, session: &Arc<Session>, outcome: Outcome<HandOver>, head: &Head) {
        let hold = Arc::clone(&self.released.hold);
        let key = &hold.claim.key;
        match outcome {
            Outcome::Done(HandOver::Granted(fence)) => {
                session.outage.answered();
                session.note_released(&hold);
                match self.next.holds(&Majority { fences: vec![fence], votes: vec![0] }) {
                    Acquired::Granted(holds) => {
                        self.next.settled = true;
                        for next in holds {
                            next.reserve(self.next.fences.reserved(fence));
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
                contained(|| tracing::trace!(key = %key.shown(), %failure, "not handed over"));
                self.give_up(session);
            }
            // No copy was sent before it.
            Outcome::Done(HandOver::Already) => self.undo_in_order(session),
            Outcome::Unknown(failure) => {
                contained(|| tracing::debug!(key = %key.shown(), %failure, "nobody knows who has it"));
                self.undo_in_order(session);
            }
            // The script may have done a part of it.
            Outcome::Refused(error) => {
                contained(|| tracing::debug!(key = %key.shown(), %error, "the hand-over was refused"));
                self.undo_in_order(session);
            }
        }
    }

    /// Sends the release by itself.
    fn give_up(mut self, session: &Arc<Session>) {
        self.next.settled = true;
        session.engine.spawn(release(self.released));
    }

    /// Sends the release by itself. Once it is answered, what may have been taken is undone.
    fn undo_in_order(mut self, session: &Arc<Session>) {
        _ = self.released.may_have_taken(self.next.claims[0].clone(), self.next.terms.lease);
        self.give_up(session);
    }
}

/// Sends the hand-over to this claim. Returns when it was sent, and its outcome. The releaser is told when its time is
/// over.
pub(super) async fn ask(
    released: &mut Unconfirmed,
    next: &Claim,
    lease: Duration,
    fences: Source,
) -> (Instant, Outcome<HandOver>) {
    let (session, hold, sent) = (Arc::clone(&released.session), Arc::clone(&released.hold), Instant::now());
    let mut asking = pin!(session.quorum.hand_over(&hold.claim, next, lease, fences));
    if released.is_awaited() {
        match timeout(sent.until(released.deadline), &mut asking).await {
            Ok(outcome) => return (sent, outcome),
            Err(_) => {
                let nodes = released.silence();
                released.overdue(nodes);
            }
        }
    }
    (sent, asking.await)
}
