//! Gives up guards: counts down, and has the last one's lock handed over or released.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::Session;
use super::jobs::Task;
use super::unconfirmed::Unconfirmed;
use crate::clock::Instant;
use crate::error::{Error, Loss};
use crate::foreign::{self, Answer, log};
use crate::hold::{self, Entrance, Hold, HoldState, Leave};
use crate::line::Event;
use crate::quorum::Settled;

impl Session {
    /// Gives up a guard of this hold. The answer to what is sent for it comes through the channel.
    ///
    /// # Errors
    /// The loss, if the hold is lost. The release of the last guard is sent all the same, except by a forked process.
    pub(super) fn leave(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        entrance: Option<&Entrance>,
    ) -> Result<Answer<Result<(), Error>>, Loss> {
        if self.is_forked() {
            return Err(Loss::Forked);
        }
        let now = self.now();
        let suspicious = entrance.is_some_and(|entrance| self.exits(hold, entrance, now));
        let answer = self.count_down(hold, now);
        // After the count: a test that fails leaves no lock behind.
        if suspicious {
            self.fail_test(&hold.claim.key);
        }
        answer
    }

    fn count_down(self: &Arc<Self>, hold: &Arc<Hold>, now: Instant) -> Result<Answer<Result<(), Error>>, Loss> {
        let (reply, answer) = foreign::channel();
        let leave = hold.leave(now);
        if matches!(leave, Leave::Last | Leave::Lost { last: true, .. }) {
            self.counters.released_after(now.since(hold.since), hold.class());
        }
        match leave {
            // A revoked grant has no count left to write.
            Leave::Nested(0) => foreign::answer(reply, Ok(())),
            Leave::Nested(count) => self.send_count(hold, count, reply),
            Leave::Last => self.send_release(hold, reply),
            Leave::Lost { loss, last } => {
                if last {
                    self.bury(hold);
                } else {
                    self.lines.step(&hold.claim.key, Event::Changed);
                }
                return Err(loss);
            }
        }
        Ok(answer)
    }

    /// Writes the count. Counts on the servers only inform, and the true one is local: a failed write is no error,
    /// unless the server turns out to have lost the lock.
    fn send_count(self: &Arc<Self>, hold: &Arc<Hold>, count: u32, reply: oneshot::Sender<Result<(), Error>>) {
        let (session, hold) = (Arc::clone(self), Arc::clone(hold));
        self.crew.give(Task::Other(Box::pin(async move {
            let claim = hold.claim.clone();
            let counting = session.quorum.count(&claim, count);
            let panicked = |said: String| Settled::Refused(session.panicked(&said));
            let settled = foreign::survive(counting).await.unwrap_or_else(panicked);
            let key = &hold.claim.key;
            let answer = match settled {
                // A release that came in between deletes it too, and then nothing is lost.
                Settled::Gone if hold.lose(Loss::NotOwner) => Err(Error::lost(key, Loss::NotOwner)),
                Settled::Done | Settled::Gone => Ok(()),
                Settled::Refused(_) | Settled::Unanswered(_) => {
                    if hold.is_held() {
                        log!(warn, key = %key.shown(), count, ?settled, "the hold count could not be written");
                    }
                    Ok(())
                }
            };
            foreign::answer(reply, answer);
        })));
    }

    /// Releases the last guard: by the driver of the key's line, which hands the lock over, if one waits for it;
    /// otherwise by a task.
    fn send_release(self: &Arc<Self>, hold: &Arc<Hold>, reply: oneshot::Sender<Result<(), Error>>) {
        let released = Unconfirmed::new(self, Arc::clone(hold), reply);
        let unsent =
            if self.hands_over(hold) { self.lines.release(hold, released, self.now()) } else { Some(released) };
        match unsent {
            Some(released) => self.ask(Task::Release(released)),
            None => self.engine.asked(),
        }
    }

    /// Returns whether this hold may be handed over. Not after a failed renewal: the release may have no answer either.
    /// Not with `replicas`: acquires are on another connection. Not if the lock is kept for its `min_hold`.
    fn hands_over(&self, hold: &Hold) -> bool {
        let is_sound = hold.failed_ticks() == 0 && !self.quorum.everywhere().any(|node| hold.is_uncertain(node));
        let is_over = hold::rest(hold.kept_until(), self.now()).is_none();
        self.quorum.hands_over() && self.settings.replicas.is_none() && is_sound && is_over
    }

    /// Removes a lost hold whose last guard is gone. What may stand under its field is released all the same.
    fn bury(self: &Arc<Self>, hold: &Arc<Hold>) {
        // Before the slot is removed: closing sees one or the other.
        self.book.undo_hold(hold);
        self.lines.remove(hold);
        self.forget(hold);
    }

    /// Takes back a grant that nobody claimed in time, or before it was lost.
    pub(super) fn take_back(self: &Arc<Self>, hold: &Arc<Hold>) {
        log!(
            debug, key = %hold.claim.key.shown(), field = &*hold.claim.field,
            "nobody took the lock that was granted: it is given back"
        );
        match hold.mark(self.now()) {
            HoldState::Lost(Loss::Released) => {
                let (reply, _) = foreign::channel();
                self.send_release(hold, reply);
            }
            _ => self.bury(hold),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::hold::Terms;
    use crate::owner::Owner;

    #[tokio::test]
    async fn a_hold_that_is_in_doubt_or_kept_or_on_several_servers_is_not_handed_over() {
        let (session, several) = (Session::over_nobody(), Session::over_nobodies(3));
        let terms = Terms { lease: Duration::from_secs(30), renewed: true, max_hold: None };
        let hold = || Hold::for_test(Owner::task(1), terms, &[0], 1);
        assert!(session.hands_over(&hold()));
        let doubted = hold();
        assert!(doubted.make_uncertain(0) && !session.hands_over(&doubted));
        let failed = hold();
        assert!(failed.tick_failed() == 1 && !session.hands_over(&failed));
        let kept = hold();
        kept.keep_until(session.now() + Duration::from_secs(1));
        assert!(!session.hands_over(&kept));
        assert!(!several.hands_over(&Hold::for_test(Owner::task(1), terms, &[0, 1, 2], 3)));
        session.engine.stop();
        several.engine.stop();
    }
}
