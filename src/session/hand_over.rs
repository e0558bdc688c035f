//! Hands a lock over: one script releases it and takes it for the next waiter of this locker.
//!
//! # Invariants
//! - It is sent once. It takes the lock only from the hold that it releases: once that hold is gone, a late copy takes
//!   nothing.
//! - The next waiter has the lock when the server has answered.
//! - If its outcome is unknown, what it may have taken is undone only after the release of that hold is answered: an
//!   undo before a late hand-over would leave the lock to nobody (`tests/model/hand_over.rs`).
//! - It is what its line has under way, and nothing else is meanwhile.

use std::pin::pin;
use std::slice;
use std::sync::Arc;

use tokio::time::timeout;

use super::attempt::{self, Asked, Granted};
use super::release::release;
use super::state::Unconfirmed;
use crate::clock::Instant;
use crate::command::HandOver;
use crate::engine::Work;
use crate::foreign::log;
use crate::lease;
use crate::lines::Head;
use crate::node::Outcome;
use crate::quorum::{Acquired, Majority, Settled};
use crate::standing::Doubt;

/// Releases a hold and hands the lock over to the head of the line, if there is one. The release is answered in any
/// case.
pub(super) async fn hand_over(mut released: Unconfirmed, head: Option<Head>) {
    let session = &Arc::clone(&released.session);
    // Closing waits for what began before it, so this is sent before the connections quit.
    let Some(head) = head.filter(|_| session.check_open().is_ok()) else {
        session.engine.spawn(release(released));
        return;
    };
    let _debt = session.engine.owe(Work::Release);
    let hold = Arc::clone(&released.hold);
    let key = &hold.claim.key;
    let patience = lease::recheck_interval(head.terms.lease).min(session.settings.command_timeout);
    let next = Asked::new(session, slice::from_ref(key), &head.owner, head.origin, head.terms, patience);
    // If this task ends early, both are undone, in this order.
    released.next = Some(next.unsettled());
    let mut asking = pin!(session.quorum.hand_over(&hold.claim, &next.claims[0], head.terms.lease, next.fences));
    let outcome = match timeout(Instant::now().until(released.deadline), &mut asking).await {
        Ok(outcome) => outcome,
        Err(_) => {
            released.overdue(Vec::new());
            asking.await
        }
    };
    match outcome {
        Outcome::Done(HandOver::Granted(fence)) => {
            session.outage.answered();
            released.note_released();
            match next.holds(&Majority { fences: vec![fence], votes: vec![0] }) {
                Acquired::Granted(holds) => {
                    released.settle_next();
                    for next in holds {
                        attempt::deliver_after(session, &hold, Granted::new(session, &head.owner, next), head.id);
                    }
                    released.succeeded();
                }
                // The lock is on the server, and its lease may be over.
                _ => {
                    released.undo_next(Doubt::Granted);
                    released.end(Settled::Done);
                }
            }
        }
        Outcome::Done(HandOver::Gone) => {
            session.outage.answered();
            released.settle_next();
            released.end(Settled::Gone);
        }
        Outcome::NotExecuted(failure) => {
            log!(trace, key = %key.shown(), %failure, "not handed over");
            released.settle_next();
            session.engine.spawn(release(released));
        }
        Outcome::Unknown(failure) => {
            log!(debug, key = %key.shown(), %failure, "nobody knows who has it");
            session.engine.spawn(release(released));
        }
        // The script may have done a part of it.
        Outcome::Refused(error) => {
            log!(debug, key = %key.shown(), %error, "the hand-over was refused");
            session.engine.spawn(release(released));
        }
    }
}
