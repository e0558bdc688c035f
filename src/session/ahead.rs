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
//! - Before the answer nothing else asks for the field of the next holder: its count is written and its lease is
//!   renewed after that, and the driver sends its release.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use super::Session;
use super::handing::Handing;
use super::release::AGAIN;
use crate::clock::Instant;
use crate::command::HandOver;
use crate::error::Loss;
use crate::fence::Fence;
use crate::foreign::contained;
use crate::gate::Head;
use crate::hold::Hold;
use crate::node::Outcome;

/// A hold that is granted ahead. If its task ends before the answer, by a panic or with the engine, it is lost.
pub(super) struct Ahead<'a> {
    session: &'a Arc<Session>,
    hold: Arc<Hold>,
}

impl<'a> Ahead<'a> {
    /// Gives the lock to the head of the line, if the releaser leaves it a fence.
    pub(super) fn grant(session: &'a Arc<Session>, handing: &Handing<'_>, head: &Head) -> Option<Self> {
        let Handing { released, next } = handing;
        let (fence, until) = released.hold.leaves()?;
        // What stands on the server is the releaser's lease.
        if next.terms.lease != released.hold.terms.lease {
            return None;
        }
        released.tell();
        let hold = next.hold_ahead(fence, until);
        let ahead = Self { session, hold: Arc::clone(&hold) };
        session.deliver_after(&released.hold, next.granted(hold), head.id);
        Some(ahead)
    }

    /// Sends the hand-over until it is answered, or until nobody needs the answer.
    pub(super) async fn settle(self, mut handing: Handing<'_>, wake: &Notify) {
        let Self { session, hold } = &self;
        let (mut pause, mut may_be_executed) = (AGAIN, false);
        loop {
            let (sent, outcome) = handing.ask().await;
            let failure = match outcome {
                Outcome::Done(HandOver::Granted(fence)) => {
                    let reserved = handing.next.fences.reserved(fence);
                    return self.confirmed(handing, sent, reserved);
                }
                Outcome::Done(HandOver::Already) => return self.confirmed(handing, sent, None),
                Outcome::Done(HandOver::Gone) => {
                    hold.refute();
                    return handing.gone(session);
                }
                Outcome::NotExecuted(failure) => failure.to_string(),
                Outcome::Unknown(failure) => {
                    may_be_executed = true;
                    failure.to_string()
                }
                // The script may have done a part of it.
                Outcome::Refused(error) => {
                    may_be_executed = true;
                    error.to_string()
                }
            };
            let key = &hold.claim.key;
            contained(|| tracing::debug!(key = %key.shown(), failure, "handed over, and not confirmed yet"));
            pause_while_held(hold, pause, wake).await;
            if !hold.is_held() {
                break;
            }
            pause = (pause * 2).min(session.settings.command_timeout / 2);
        }
        if may_be_executed { handing.undo_in_order(session) } else { handing.give_up(session) }
    }

    /// The server has the next holder.
    fn confirmed(self, mut handing: Handing<'_>, sent: Instant, reserved: Option<Fence>) {
        let (session, hold, now) = (self.session, &self.hold, Instant::now());
        session.outage.answered();
        handing.next.settled = true;
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
        handing.released.succeeded();
    }
}

impl Drop for Ahead<'_> {
    fn drop(&mut self) {
        if self.hold.is_ahead() {
            let loss = if self.session.is_closed() { Loss::Closed } else { Loss::RenewalFailed };
            self.hold.lose(loss);
        }
    }
}

/// Waits for a while, or until the hold has ended.
async fn pause_while_held(hold: &Hold, pause: Duration, wake: &Notify) {
    let over = Instant::now() + pause;
    while hold.is_held() && timeout(Instant::now().until(over), wake.notified()).await.is_ok() {}
}
