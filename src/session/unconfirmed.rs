//! A release that is in flight, and those that wait for it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::state::{Session, Unconfirmed};
use crate::claim::Claim;
use crate::engine::{InFlight, Work};
use crate::error::{Error, Loss, NodeFailure};
use crate::foreign::{self, contained, log};
use crate::hold::{self, Hold};
use crate::quorum::Settled;
use crate::standing::{Doubt, Unsettled};

impl Unconfirmed {
    pub(super) fn new(
        session: &Arc<Session>,
        hold: Arc<Hold>,
        reply: oneshot::Sender<Result<(), Error>>,
    ) -> Self {
        let awaited = Some((reply, session.engine.track(Work::Operation)));
        let deadline = session.now() + session.settings.command_timeout;
        Self {
            session: Arc::clone(session),
            hold,
            awaited,
            late: None,
            deadline,
            next: None,
            lost: false,
            done: false,
        }
    }

    /// Returns whether the caller still waits.
    pub(super) fn is_awaited(&self) -> bool {
        self.awaited.is_some()
    }

    /// Tells the caller, and lets the key's line continue. Closing waits for a silent minority only
    /// for a moment.
    pub(super) fn conclude(&mut self, settled: Settled) {
        let is_lost = matches!(settled, Settled::Gone) && self.note_lost();
        if let Some((reply, pending)) = self.awaited.take() {
            self.late = Some(self.session.engine.track(Work::Release));
            self.tell(settled, reply, pending);
        }
        // After the caller: a recorder may block.
        if is_lost {
            let kind = self.hold.claim.kind.counted;
            self.session.counters.tell_lost(kind, Loss::NotOwner);
        }
    }

    /// Counts the loss of a lock that the server no longer has, once: before the caller is told,
    /// who may read the counters. Returns whether it is one.
    fn note_lost(&mut self) -> bool {
        // Once the caller was told that there is no answer, the lease may end meanwhile, which is
        // no loss.
        let is_lost = self.is_awaited() || self.session.now() < self.hold.valid_until();
        if !is_lost || std::mem::replace(&mut self.lost, true) {
            return false;
        }
        self.session
            .counters
            .lost(self.hold.claim.kind.counted, Loss::NotOwner);
        let Claim { key, field, .. } = &self.hold.claim;
        log!(
            warn, key = %key.shown(), field = &**field, reason = %Loss::NotOwner,
            "the lock was no longer ours when it was released"
        );
        true
    }

    fn tell(&self, settled: Settled, reply: oneshot::Sender<Result<(), Error>>, pending: InFlight) {
        let session = &self.session;
        let hold = &self.hold;
        let answer = match settled {
            Settled::Done => Ok(()),
            Settled::Gone => Err(Error::lost(&hold.claim.key, Loss::NotOwner)),
            Settled::Refused(error) => Err(error.of(std::slice::from_ref(&hold.claim.key))),
            Settled::Unanswered(nodes) => {
                let error = session.quorum.unavailable(nodes, Duration::ZERO);
                Err(error.of(std::slice::from_ref(&hold.claim.key)))
            }
        };
        // Before the caller is told: what it asks for next must find the key without this hold.
        session.lines.remove(hold);
        forget(session, hold);
        let Claim { key, field, .. } = &hold.claim;
        match (&answer, hold::rest(hold.kept_until(), session.now())) {
            (Ok(()), None) => log_released(hold),
            (Ok(()), Some(rest)) => log!(
                debug, key = %key.shown(), field = &**field, ?rest, "released, and kept for its min_hold"
            ),
            // A loss has been logged, and silence too.
            (Err(Error::Lost { .. } | Error::Unavailable { .. }), _) => {}
            (Err(error), _) => log!(
                warn, key = %key.shown(), field = &**field, %error,
                "the release was refused: the lock stays on the server until its lease is over"
            ),
        }
        session.engine.answered();
        session.engine.queue_reply(move || {
            // This fails for dropped guards, which do not wait for it.
            foreign::answer(reply, answer);
            drop(pending);
        });
    }

    /// Ends it once every node has answered.
    pub(super) fn finish(mut self) {
        self.done = true;
    }

    /// Ends it with a final answer.
    pub(super) fn end(mut self, settled: Settled) {
        self.done = true;
        self.conclude(settled);
    }

    /// Ends it after a hand-over: the next hold is registered in its place, and only the caller has
    /// to be told.
    pub(super) fn succeeded(mut self) {
        self.done = true;
        if let Some((reply, pending)) = self.awaited.take() {
            self.session.engine.queue_reply(move || {
                foreign::answer(reply, Ok(()));
                drop(pending);
            });
        }
    }

    /// Notes that it was released, before the next holder is told.
    pub(super) fn note_released(&self) {
        forget(&self.session, &self.hold);
        log_released(&self.hold);
    }

    /// Notes that nothing is left to undo of the hand-over.
    pub(super) fn settle_next(&mut self) {
        self.next.take().into_iter().for_each(Unsettled::settle);
    }

    /// Undoes what the hand-over has taken, or may yet take.
    pub(super) fn undo_next(&mut self, doubt: Doubt) {
        self.next
            .take()
            .into_iter()
            .for_each(|next| next.undo_alone(doubt));
    }

    /// Handles the end of the command timeout without an answer, if with failures of some nodes.
    pub(super) fn overdue(&mut self, mut failures: Vec<NodeFailure>) {
        let Claim { key, field, .. } = &self.hold.claim;
        log!(warn, key = %key.shown(), field = &**field, "the release is not confirmed yet");
        if failures.is_empty() {
            let bound = self.session.settings.command_timeout;
            failures = self
                .session
                .quorum
                .failures(format!("did not confirm the release within {bound:?}"));
        }
        self.conclude(Settled::Unanswered(failures));
    }
}

/// Has the watchdog and the alarm forget a hold that has ended.
pub(super) fn forget(session: &Session, hold: &Hold) {
    let now = session.now();
    session.watchdog.forget(hold, now);
    session.alarm.forget(hold, now);
}

pub(super) fn log_released(hold: &Hold) {
    let Claim { key, field, .. } = &hold.claim;
    log!(debug, key = %key.shown(), field = &**field, "released");
}

impl std::fmt::Debug for Unconfirmed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unconfirmed")
            .field("hold", &self.hold)
            .field("done", &self.done)
            .finish_non_exhaustive()
    }
}

impl Drop for Unconfirmed {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        contained(|| {
            match self.session.check_open() {
                // The engine has ended, and nothing is sent any more: the caller learns of that by
                // its channel.
                Err(Error::Closed) => {
                    self.session.lines.remove(&self.hold);
                    self.awaited
                        .take()
                        .into_iter()
                        .for_each(|(reply, _)| foreign::hang_up(reply));
                }
                _ => {
                    // Before the fields are dropped: the undo of `next` comes behind this one.
                    self.session.book.undo_hold(&self.hold);
                    self.conclude(Settled::Refused(
                        self.session.panicked("the panic hook was told why"),
                    ));
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hold::Terms;
    use crate::owner::Owner;

    impl Unconfirmed {
        /// The same, with no caller that waits for it.
        pub(in crate::session) fn told(mut self) -> Self {
            (self.awaited, self.done) = (None, true);
            self
        }
    }

    #[tokio::test]
    async fn the_watchdog_is_told_of_a_long_hold_that_was_handed_over() {
        let session = Session::over_nobody();
        let terms = Terms {
            lease: Duration::from_secs(3_600),
            renewed: true,
            max_hold: None,
        };
        let hold = Arc::new(Hold::for_test(Owner::task(1), terms, &[0], 1));
        let under_way = Unconfirmed::new(&session, Arc::clone(&hold), foreign::channel().0);
        assert!(!session.watchdog.is_to_forget(&hold));
        under_way.note_released();
        assert!(session.watchdog.is_to_forget(&hold));
        under_way.succeeded();
        session.engine.stop();
    }
}
