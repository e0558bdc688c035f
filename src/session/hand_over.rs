//! Hands a lock over: one script releases it and takes it for the next waiter of this locker.
//!
//! # Invariants
//! - It takes the lock only from the hold that it releases: once that hold is gone, a late copy takes nothing.
//! - It is sent once, unless the next waiter has the lock already: see [`ahead`](super::ahead).
//! - If its outcome is unknown, what it may have taken is undone only after the release of that hold is answered: an
//!   undo before a late hand-over would leave the lock to nobody (`tests/model/hand_over.rs`).
//! - The driver sends it, and sends nothing else meanwhile.

use std::sync::Arc;

use super::ahead::{Next, Passed};
use super::attempt::Asked;
use super::handing::Handing;
use super::pending::Late;
use super::release::release;
use crate::gate::Head;

/// Sends what was passed to the driver: a release, which hands the lock over to the head of the line, if there is one.
/// The release is answered in any case.
pub(super) async fn hand_over(passed: Passed, head: Option<Head>) {
    let released = match passed {
        Passed::HandedOver(unanswered) => return unanswered.settle().await,
        Passed::Release(released) => released,
    };
    let session = &Arc::clone(&released.session);
    // Closing waits for what began before it, so this is sent before the connections quit.
    let Some(head) = head.filter(|_| session.check_open().is_ok() && session.hands_over(&released.hold)) else {
        session.engine.spawn(release(released));
        return;
    };
    if let Some(next) = Next::after(session, &released.hold, &head) {
        return next.grant(released).settle().await;
    }
    let (_debt, _late) = (session.engine.owe(), Late::new(session));
    let next = Asked::after(session, &released.hold.claim.key, &head);
    let mut handing = Handing { released, next };
    let (_, outcome) = handing.ask().await;
    handing.settle(session, outcome, &head);
}
