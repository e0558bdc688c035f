//! Hands a lock over: one script releases it and takes it for the next waiter of this locker.
//!
//! An acquisition under contention then costs one script instead of two. It takes a deployment in
//! which one answer decides (one server without a memory, or a cluster, and no `replica_acks`) and
//! a hold that is sound (`leave.rs`). `line/turn.rs` bounds how often in a row a lock is handed
//! over.
//!
//! # Order of events
//! 1. The last guard is dropped. If the line waits for this hold and has nothing in flight, it
//!    takes the release, and returns it as the next effect together with the head of the line at
//!    that moment.
//! 2. `hand_over.lua` compares the field of the hold, makes a fence, deletes the key, and writes
//!    the next field with its lease. It publishes nothing, since the lock was never free. It calls
//!    only what an acquire and a release call, so it needs no rights of its own.
//! 3. *Granted*: the next hold replaces the first one in the line in one step, whether or not its
//!    caller still waits. A caller that is gone drops its guard, which releases the lock. The
//!    watchdog takes back a grant that is not claimed for a command timeout, or for a sixth of the
//!    lease if that is less.
//! 4. Every other outcome: see `hand_over`.
//!
//! # Why the next caller waits for the answer
//! It could enter while the hand-over is in flight, with the validity that the releaser had left
//! and a fence reserved by the hand-over before. That was built and removed. Callers that kept the
//! lock for no time had it a quarter to a third more often, but a caller could enter a lock that
//! another client had deleted, with a fence below that of an acquisition before its call. A
//! `try_lock` behind the release of such a caller found the lock held, and each failure had a case
//! of its own.
//!
//! # Invariants
//! - It is sent once. It takes the lock only from the hold that it releases: once that hold is
//!   gone, a late copy takes nothing.
//! - The next waiter has the lock when the server has answered.
//! - If its outcome is unknown, what it may have taken is undone only after the release of that
//!   hold is answered: an undo before a late hand-over would leave the lock to no caller
//!   (`tests/model/hand_over.rs`).
//! - It is what its line has in flight, and nothing else is meanwhile.

use std::pin::pin;
use std::slice;
use std::sync::Arc;

use tokio::time::timeout;

use super::attempt;
use super::attempt::{AcquireRequest, Granted, PendingAcquire};
use super::release::release;
use super::state::Unconfirmed;
use crate::clock::Instant;
use crate::foreign::log;
use crate::lease;
use crate::lines::Head;
use crate::node::Outcome;
use crate::op::HandOverAnswer;
use crate::quorum::{Acquired, Majority, Settled};
use crate::standing::Doubt;

/// Releases a hold and hands the lock over to the head of the line, if there is one. The release is
/// answered in any case.
pub(super) async fn hand_over(mut released: Unconfirmed, head: Option<Head>) {
    let session = &Arc::clone(&released.session);
    // Closing waits for what began before it, so this is sent before the connections quit.
    let Some(head) = head.filter(|_| session.check_open().is_ok()) else {
        session.engine.spawn(release(released));
        return;
    };
    let hold = Arc::clone(&released.hold);
    let key = &hold.claim.key;
    let patience =
        lease::recheck_interval(head.want.terms.lease).min(session.settings.command_timeout);
    let request = AcquireRequest {
        key,
        owner: &head.owner,
        origin: head.origin,
        permits: 0,
    };
    let next = PendingAcquire::new(session, slice::from_ref(&request), head.want, patience);
    // If this task ends early, both are undone, in this order.
    released.next = Some(next.unsettled());
    let mut asking = pin!(session.quorum.hand_over(
        &hold.claim,
        &next.claims[0],
        head.want.terms.lease,
        next.fences
    ));
    let outcome = match timeout(Instant::now().until(released.deadline), &mut asking).await {
        Ok(outcome) => outcome,
        Err(_) => {
            // The caller has waited for long enough. The answer still decides what is undone, and
            // who is next.
            released.overdue(Vec::new());
            asking.await
        }
    };
    match outcome {
        Outcome::Done(HandOverAnswer::Granted(fence)) => {
            session.outage.answered();
            released.note_released();
            match next.holds(&Majority {
                fences: vec![fence],
                votes: vec![0],
            }) {
                Acquired::Granted(holds) => {
                    // Invariant 1: from here on, the guards of these holds give the lock back.
                    released.settle_next();
                    for next in holds {
                        attempt::deliver_after(
                            session,
                            &hold,
                            Granted::new(session, next),
                            head.id,
                        );
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
        // Nothing was taken. The releaser gets the loss, and the line asks.
        Outcome::Done(HandOverAnswer::Gone) => {
            session.outage.answered();
            released.settle_next();
            released.end(Settled::Gone);
        }
        // The release is sent by itself, and the line asks after its answer.
        Outcome::NotExecuted(failure) => {
            log!(trace, key = %key.shown(), %failure, "not handed over");
            released.settle_next();
            session.engine.spawn(release(released));
        }
        // The release is sent until it is answered, and only then the undo of the next field. No
        // second undo is needed: once the first field is gone, a late hand-over takes nothing.
        Outcome::Unknown(failure) => {
            log!(debug, key = %key.shown(), %failure, "the outcome of the hand-over is unknown");
            session.engine.spawn(release(released));
        }
        // The same: the script may have done a part of it.
        Outcome::Refused(error) => {
            log!(debug, key = %key.shown(), %error, "the hand-over was refused");
            session.engine.spawn(release(released));
        }
    }
}
