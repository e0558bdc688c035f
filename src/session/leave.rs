//! Gives up guards: counts down, and has the last one's lock handed over or released.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::state::{Task, Unconfirmed};
use super::{Session, jobs, reentries, unconfirmed};
use crate::clock::Instant;
use crate::error::{Error, Loss};
use crate::foreign::{self, AnswerReceiver, log};
use crate::hold::{self, Entrance, Hold, HoldState, Leave};
use crate::line::Event;
use crate::quorum::Settled;

/// Gives up a guard of this hold. The answer to what is sent for it comes through the channel.
///
/// # Errors
/// The loss, if the hold is lost. The release of the last guard is sent all the same, except by a
/// forked process.
pub(super) fn leave(
    session: &Arc<Session>,
    hold: &Arc<Hold>,
    entrance: Option<&Entrance>,
) -> Result<AnswerReceiver<Result<(), Error>>, Loss> {
    // The lock is the parent's, whose own copy of the guard releases it.
    if session.is_forked() {
        return Err(Loss::Forked);
    }
    let now = session.now();
    let suspicious =
        entrance.is_some_and(|entrance| reentries::exits(session, hold, entrance, now));
    let answer = count_down(session, hold, now);
    // After the count: a test that fails leaves no lock behind.
    if suspicious {
        reentries::fail_test(session, &hold.claim.key);
    }
    answer
}

fn count_down(
    session: &Arc<Session>,
    hold: &Arc<Hold>,
    now: Instant,
) -> Result<AnswerReceiver<Result<(), Error>>, Loss> {
    let (reply, answer) = foreign::channel();
    let leave = hold.leave(now);
    if matches!(leave, Leave::Last | Leave::Lost { last: true, .. }) {
        session.counters.released_after(
            hold.claim.kind.counted,
            now.since(hold.since),
            hold.class(),
        );
    }
    match leave {
        // A revoked grant has no count left to write.
        Leave::Nested(0) => foreign::answer(reply, Ok(())),
        Leave::Nested(_) if !hold.claim.kind.hands_over() => foreign::answer(reply, Ok(())),
        Leave::Nested(count) => send_count(session, hold, count, reply),
        Leave::Last => send_release(session, hold, reply),
        Leave::Lost { loss, last } => {
            if last {
                bury(session, hold);
            } else {
                session.lines.step(&hold.claim.key, Event::Changed);
            }
            return Err(loss);
        }
    }
    Ok(answer)
}

/// Writes the count. A failed write is no error, unless the server turns out to have lost the lock.
fn send_count(
    session: &Arc<Session>,
    hold: &Arc<Hold>,
    count: u32,
    reply: oneshot::Sender<Result<(), Error>>,
) {
    let owned = Arc::clone(session);
    let hold = Arc::clone(hold);
    session.runner.submit(Task::Other(Box::pin(async move {
        let claim = hold.claim.clone();
        let counting = owned.quorum.count(&claim, count);
        let panicked = |said: String| Settled::Refused(owned.panicked(&said));
        let settled = foreign::survive(counting).await.unwrap_or_else(panicked);
        let key = &hold.claim.key;
        let answer = match settled {
            // A release that came in between deletes it too, and then nothing is lost.
            Settled::Gone if hold.lose(Loss::NotOwner) => Err(Error::lost(key, Loss::NotOwner)),
            Settled::Done | Settled::Gone => Ok(()),
            // The true count is local, and that on the servers only informs.
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

/// Releases the last guard. If the key's line waits for it, it may hand the lock over. Beside other
/// readers, there is nothing to release.
fn send_release(
    session: &Arc<Session>,
    hold: &Arc<Hold>,
    reply: oneshot::Sender<Result<(), Error>>,
) {
    if !hold.leave_field() {
        session.lines.remove(hold);
        unconfirmed::forget(session, hold);
        unconfirmed::log_released(hold);
        return foreign::answer(reply, Ok(()));
    }
    let released = Unconfirmed::new(session, Arc::clone(hold), reply);
    let unsent = if hands_over(session, hold) {
        session.lines.release(hold, released, session.now())
    } else {
        Some(released)
    };
    match unsent {
        Some(released) => jobs::ask(session, Task::Release(released)),
        None => session.engine.asked(),
    }
}

/// Returns whether this hold may be handed over.
fn hands_over(session: &Session, hold: &Hold) -> bool {
    // After a failed renewal, the release may have no answer either.
    let is_sound = hold.failed_ticks() == 0
        && !session
            .quorum
            .everywhere()
            .any(|node| hold.is_uncertain(node));
    // A lock that is kept for its `min_hold` is not free for the next caller.
    let is_over = hold::rest(hold.kept_until(), session.now()).is_none();
    // With `replica_acks`, acquires and releases are on different connections.
    hold.claim.kind.hands_over()
        && session.quorum.hands_over()
        && session.settings.replica_acks.is_none()
        && is_sound
        && is_over
}

/// Removes a lost hold whose last guard is gone. What may stand under its field is released all the
/// same.
fn bury(session: &Arc<Session>, hold: &Arc<Hold>) {
    // Before the slot is removed: closing sees one or the other.
    if hold.leave_field() {
        session.book.undo_hold(hold);
    }
    session.lines.remove(hold);
    unconfirmed::forget(session, hold);
}

/// Takes back a grant that no caller claimed in time, or before it was lost.
pub(super) fn take_back(session: &Arc<Session>, hold: &Arc<Hold>) {
    log!(
        debug, key = %hold.claim.key.shown(), field = &*hold.claim.field,
        "no caller claimed the grant: releasing it"
    );
    match hold.mark(session.now()) {
        // `revoke` made it so, as its last guard would have.
        HoldState::Lost(Loss::Released) => {
            let (reply, _) = foreign::channel();
            send_release(session, hold, reply);
        }
        _ => bury(session, hold),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::hold::Terms;
    use crate::owner::Owner;

    #[tokio::test]
    async fn a_hold_in_doubt_kept_or_on_several_servers_is_not_handed_on() {
        let session = Session::over_nobody();
        let several = Session::over_nobodies(3);
        let terms = Terms {
            lease: Duration::from_secs(30),
            renewed: true,
            max_hold: None,
        };
        let hold = || Hold::for_test(Owner::task(1), terms, &[0], 1);
        assert!(hands_over(&session, &hold()));
        let doubted = hold();
        assert!(doubted.make_uncertain(0) && !hands_over(&session, &doubted));
        let failed = hold();
        assert!(failed.tick_failed() == 1 && !hands_over(&session, &failed));
        let kept = hold();
        kept.keep_until(session.now() + Duration::from_secs(1));
        assert!(!hands_over(&session, &kept));
        assert!(!hands_over(
            &several,
            &Hold::for_test(Owner::task(1), terms, &[0, 1, 2], 3)
        ));
        session.engine.stop();
        several.engine.stop();
    }
}
