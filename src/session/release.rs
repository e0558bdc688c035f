//! Sends releases, and writes the counts of re-entries.

use std::iter;
use std::time::Duration;

use tokio::time::sleep;

use super::state::Unconfirmed;
use super::{Session, jobs};
use crate::claim::{ReleaseAnswer, Wakes};
use crate::clock::Instant;
use crate::error::{Error, Loss};
use crate::foreign::log;
use crate::hold::{self, Hold, HoldState};
use crate::node::Outcome;
use crate::quorum::{Calls, Confirmations, Settled, was_there};
use crate::standing::Doubt;
use crate::sync::Arc;

/// Returns whom the release of this hold wakes, which is sent to all servers now.
fn wakes(session: &Session, hold: &Hold) -> Wakes {
    let releaser = session.lines.begin_release(&hold.claim.key, hold.lease());
    releaser.map_or(Wakes::All, |releaser| Wakes::Next(Some(releaser)))
}

/// Takes in a server's answer to the release of this hold. With a `rest`, the lock was kept for
/// that long, and no waiter was notified. Returns whether the lock was there.
fn released(
    session: &Session,
    hold: &Hold,
    release: &ReleaseAnswer,
    rest: Option<Duration>,
) -> bool {
    let key = &hold.claim.key;
    match release {
        ReleaseAnswer::Gone => {}
        ReleaseAnswer::Released(_) if rest.is_some() => {}
        _ => session.lines.released(key, release),
    }
    if let ReleaseAnswer::Unlisted(error) = release {
        session.quorum.unlist(key, error);
    }
    was_there(key, release)
}

/// Releases a hold on every node, and has that repeated until each has answered or the lease is
/// over. The caller is told as soon as a majority makes the outcome certain, and after a command
/// timeout at the latest; the key's line continues then too.
pub(super) async fn release(mut unconfirmed: Unconfirmed) {
    let session = Arc::clone(&unconfirmed.session);
    let hold = Arc::clone(&unconfirmed.hold);
    let rest = hold::rest(hold.kept_until(), Instant::now());
    // A lock that is kept wakes no waiter.
    let wakes = if rest.is_none() {
        wakes(&session, &hold)
    } else {
        session.quorum.wakes(None)
    };
    let mut answers = session.quorum.release(&hold.claim, rest, &wakes);
    // What may yet be executed on a node is undone there as well, behind the release; with
    // `replica_acks`, on another connection than the release.
    session.book.undo_uncertain(&hold);
    let mut repeated = Calls::none();
    let mut confirmations = Confirmations::new(session.quorum.nodes().len());
    let mut failures = Vec::new();
    let handed_over = unconfirmed.next.is_some();
    loop {
        let answer = tokio::select! {
            biased;
            Some((node, answer)) = answers.next() => {
                // Then the lock may be gone because a copy of this release, or the hand-over, was
                // executed.
                let executed = handed_over || matches!(answer, Outcome::Unknown(_));
                match answer.map(|release| released(&session, &hold, &release, rest)) {
                    // A node that never had the lock has nothing to release. Undos deal with what
                    // may yet reach it.
                    Outcome::NotExecuted(failure) | Outcome::Unknown(failure) if hold.has_vote(node) => {
                        failures.push(failure.clone());
                        let mut told = session.book.release_again(node, &hold, executed);
                        // The book drops the channel without an answer when the lease is over.
                        let again = async move { told.recv().await.unwrap_or(Outcome::Unknown(failure)) };
                        repeated.extend(iter::once((node, again)));
                        continue;
                    }
                    // The lease cannot have ended by itself yet, so it was the hand-over that took
                    // the lock away.
                    Outcome::Done(false) => Outcome::Done(executed && Instant::now() < hold.valid_until()),
                    answer => answer,
                }
            }
            Some((_, answer)) = repeated.next() => answer,
            () = sleep(Instant::now().until(unconfirmed.deadline)), if unconfirmed.is_awaited() => {
                unconfirmed.overdue(std::mem::take(&mut failures));
                continue;
            }
            else => break,
        };
        // A server that has executed the release has no first field any more, and one that refuses
        // it has refused the hand-over. Neither executes a late hand-over: one undo is enough.
        let is_answered = matches!(answer, Outcome::Done(_) | Outcome::Refused(_));
        unconfirmed.undo_next(if is_answered {
            Doubt::Granted
        } else {
            Doubt::MayCome
        });
        // Failed releases count only after their repetition: the verdict is about what was
        // executed.
        confirmations.add(answer);
        if let Some(settled) = confirmations.verdict() {
            unconfirmed.conclude(settled);
        }
    }
    unconfirmed.finish();
}

/// Writes the hold count of re-entries that wait for nothing.
pub(super) fn count_behind(session: &Arc<Session>, hold: &Arc<Hold>, count: u32) {
    let owned = Arc::clone(session);
    let hold = Arc::clone(hold);
    session.engine.spawn(async move {
        if let Err(error) = write_count(&owned, &hold, count).await {
            log!(debug, key = %hold.claim.key.shown(), %error, "the hold count could not be written");
        }
    });
}

/// Writes the hold count of a re-entry.
///
/// # Errors
/// [`Error::Lost`] if the lock turns out not to be ours; the failure of the write, if the hold is
/// not safe.
pub(super) async fn write_count(
    session: &Arc<Session>,
    hold: &Arc<Hold>,
    count: u32,
) -> Result<(), Error> {
    if !hold.claim.kind.hands_over() {
        return hold.at(session.now()).check(&hold.claim.key);
    }
    let owned = Arc::clone(session);
    let counted = Arc::clone(hold);
    let settled = jobs::on_engine(session, async move {
        Ok(owned.quorum.count(&counted.claim, count).await)
    })
    .await?;
    let error = match settled {
        Settled::Done => return Ok(()),
        Settled::Gone => {
            hold.lose(Loss::NotOwner);
            Error::lost(&hold.claim.key, Loss::NotOwner)
        }
        Settled::Refused(error) => error,
        Settled::Unanswered(nodes) => session.quorum.unavailable(nodes, Duration::ZERO),
    };
    match hold.at(session.now()) {
        // The count was kept here before it was sent, so a missing answer fails nothing.
        HoldState::Safe => {
            log!(
                warn, key = %hold.claim.key.shown(), count, %error,
                "entered again, but the count could not be written"
            );
            Ok(())
        }
        HoldState::Jeopardy => Err(error),
        HoldState::Lost(loss) => Err(Error::lost(&hold.claim.key, loss)),
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::foreign::{self, poll_sickly};
    use crate::hold::Leave;
    use crate::hold::Terms;
    use crate::owner::Owner;

    /// Drops a release half-way, and returns what its caller gets.
    async fn left(session: &Arc<Session>) -> Result<Result<(), Error>, oneshot::error::RecvError> {
        let terms = Terms {
            lease: Duration::from_secs(30),
            renewed: true,
            max_hold: None,
        };
        let hold = Arc::new(Hold::for_test(Owner::task(1), terms, &[0], 1));
        session.lines.admit(&hold, None, Instant::now());
        assert_eq!(hold.leave(Instant::now()), Leave::Last);
        let (reply, answer) = foreign::channel();
        let mut releasing = Box::pin(release(Unconfirmed::new(session, hold, reply)));
        poll_sickly(releasing.as_mut());
        assert_eq!(session.stats().holds, 1);
        drop(releasing);
        assert_eq!(session.stats().holds, 0, "its line continues");
        answer.await
    }

    #[tokio::test]
    async fn a_release_whose_task_ends_early_leaves_nobody_waiting() {
        let session = Session::over_nobody();
        let Ok(Err(Error::Unavailable { nodes, .. })) = left(&session).await else {
            panic!("it gets an error")
        };
        assert!(
            nodes[0]
                .reason()
                .contains("panicked: the panic hook was told why"),
            "{nodes:?}"
        );
        assert_eq!(
            session.stats().pending_undos,
            1,
            "the key is released all the same"
        );
        session
            .closed
            .store(true, std::sync::atomic::Ordering::Release);
        assert!(
            left(&session).await.is_err(),
            "nothing is answered once the engine has ended"
        );
        assert_eq!(session.stats().pending, 1);
        session.engine.stop();
    }

    #[tokio::test]
    async fn a_release_undoes_what_may_yet_be_executed() {
        let session = Session::over_nobody();
        for (uncertain, undos) in [(false, 0), (true, 1)] {
            let terms = Terms {
                lease: Duration::from_secs(30),
                renewed: true,
                max_hold: None,
            };
            let hold = Arc::new(Hold::for_test(Owner::task(1), terms, &[0], 1));
            assert!(!uncertain || hold.make_uncertain(0));
            assert_eq!(hold.leave(Instant::now()), Leave::Last);
            let under_way = Unconfirmed::new(&session, hold, foreign::channel().0).told();
            let mut releasing = Box::pin(release(under_way));
            poll_sickly(releasing.as_mut());
            assert_eq!(session.stats().pending_undos, undos);
        }
        session.engine.stop();
    }

    #[tokio::test]
    async fn others_are_known_to_wait_where_a_release_told_or_woke_them() {
        let session = Session::over_nobody();
        let now = Instant::now();
        let terms = Terms {
            lease: Duration::from_secs(30),
            renewed: true,
            max_hold: None,
        };
        let hold = &Arc::new(Hold::for_test(Owner::task(1), terms, &[0], 1));
        session.lines.admit(hold, None, now);
        let wait = |release: &ReleaseAnswer, rest: Option<Duration>| {
            assert!(released(&session, hold, release, rest));
            session.lines.others_wait(&hold.claim.key)
        };
        assert!(wait(&ReleaseAnswer::Released(1), None));
        assert!(!wait(&ReleaseAnswer::Released(0), None));
        assert!(
            !wait(&ReleaseAnswer::Released(1), Some(terms.lease)),
            "it says nothing: the lock stands"
        );
        assert!(wait(
            &ReleaseAnswer::PassedOn {
                place: None,
                turn: None,
                others: 0,
                waiting: 1
            },
            None
        ));
        assert!(
            wait(&ReleaseAnswer::Released(0), Some(terms.lease)),
            "as before"
        );
        session.engine.stop();
    }

    #[tokio::test]
    async fn a_server_that_never_had_a_lock_is_asked_to_release_it_once() {
        let session = Session::over_nobody();
        let terms = Terms {
            lease: Duration::from_secs(30),
            renewed: true,
            max_hold: None,
        };
        let hold = Arc::new(Hold::for_test(Owner::task(1), terms, &[], 1));
        let releasing = release(Unconfirmed::new(&session, hold, foreign::channel().0));
        let ended = tokio::time::timeout(Duration::from_secs(10), releasing).await;
        assert_eq!(ended, Ok(()), "it does not continue for a lease");
        session.engine.stop();
    }
}
