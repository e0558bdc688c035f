//! Acquires through the line of a key, and re-enters.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::read_write;
use super::reentries;
use super::release;
use super::try_lock;
use super::waits;
use super::{RawGuard, Session};
use crate::clock::Instant;
use crate::error::Error;
use crate::foreign::{self, Span, contained};
use crate::hold::{Hold, Want};
use crate::identity::{Caller, Origin};
use crate::key::Key;
use crate::lines::{Arrival, CallWaiter, LineAnswer, LockRequest, Timed};
use crate::random;

/// A caller's place in a line. Dropping it leaves the line.
struct WaiterGuard<'a> {
    session: &'a Session,
    key: &'a Key,
    id: u64,
    deadline: Option<Instant>,
    /// True once an answer arrived: the waiter was taken out before that.
    answered: bool,
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        // Only a wait without an answer can be dropped in a forked copy, where a mutex may stay
        // locked forever.
        if !self.answered && self.session.is_forked() {
            return;
        }
        if let Some(deadline) = self.deadline {
            self.session
                .lines
                .timers()
                .remove(deadline, self.id, self.session.now());
        }
        if !self.answered {
            // The waiter and its waker are dropped here, after the shard's lock is released,
            // perhaps while the task unwinds. A grant that is in flight finds the waiter gone.
            contained(|| _ = self.session.lines.leave(self.key, self.id));
        }
    }
}

impl Session {
    /// Waits in line until the lock is granted. Returns `None` once the deadline is over, if there
    /// is one.
    pub(crate) async fn wait_in_line(
        self: &Arc<Self>,
        key: &Key,
        caller: &Caller,
        want: &Want,
        deadline: Option<Instant>,
    ) -> Result<Option<RawGuard>, Error> {
        self.enter()?;
        loop {
            self.check_open()?;
            let now = self.now();
            let id = self.lines.next_id();
            let (reply, answer) = foreign::channel();
            let owner = caller.owner.clone();
            let origin = caller.origin;
            let waiter = CallWaiter {
                id,
                owner,
                since: now,
                call: LockRequest {
                    origin,
                    want: *want,
                    span: span_of(self, key),
                    in_doubt: AtomicBool::default(),
                    reply,
                },
            };
            match self.lines.arrive(key, waiter, now) {
                Arrival::Reentered(hold, count) => {
                    return Box::pin(reentered(self, hold, origin, count))
                        .await
                        .map(Some);
                }
                Arrival::Lost(loss) => return Err(Error::lost(key, loss)),
                Arrival::Upgrade => return Err(read_write::upgrade(key)),
                Arrival::Inside(write) => {
                    // Boxed, as all that few calls come to.
                    return Box::pin(read_inside(self, key, caller, *want, write, deadline)).await;
                }
                Arrival::Beside(hold) => match try_lock::beside(self, &hold, caller)? {
                    Some(guard) => return Ok(Some(guard)),
                    None => continue,
                },
                Arrival::Queued => {}
            }
            let mut waiting = WaiterGuard {
                session: self,
                key,
                id,
                deadline,
                answered: false,
            };
            let _warning = reentries::warn_of_itself(self, key, caller);
            // After the arrival: a timer that fires before it finds no waiter to end.
            if let Some(deadline) = deadline {
                self.lines.timers().put(deadline, id, key, Timed::Wait);
            }
            // Closing sets the flag and then empties the lines: a caller that came into the line
            // after that sees the flag.
            self.check_open()?;
            // The line answers every waiter, so without an answer the engine has ended.
            let answer = answer.await.unwrap_or(Err(Error::Closed));
            waiting.answered = true;
            drop(waiting);
            let guard = match answer? {
                LineAnswer::Granted(guard) => guard,
                LineAnswer::SentBack => continue,
                // The line left the lock to others for all of this caller's time: it may be free.
                LineAnswer::TimeOver => {
                    return match self.lines.has_given_turn(key, now) {
                        true => Box::pin(try_after_turn(self, key, caller, *want)).await,
                        false => Ok(None),
                    };
                }
            };
            // A grant that was revoked or lost before this caller was polled does not count: the
            // caller queues again.
            if let Some(guard) = try_lock::take(self, guard)? {
                return Ok(Some(guard));
            }
            // The grant was in time, and only the poll was late: one more attempt decides.
            if deadline.is_some_and(|deadline| self.now() >= deadline) {
                return Box::pin(self.try_lock(key, caller, *want)).await;
            }
        }
    }
}

/// Reads inside a write hold of the caller's owner. Waits through an outage, as a caller in line
/// does, and in line if that hold ends meanwhile.
async fn read_inside(
    session: &Arc<Session>,
    key: &Key,
    caller: &Caller,
    want: Want,
    write: Arc<Hold>,
    deadline: Option<Instant>,
) -> Result<Option<RawGuard>, Error> {
    let came = session.now();
    loop {
        let write = Arc::clone(&write);
        match read_write::read_inside(session, key, caller, want, write).await {
            Ok(Some(guard)) => {
                if let Some(guard) = try_lock::take(session, guard)? {
                    return Ok(Some(guard));
                }
            }
            Ok(None) => break,
            Err(error @ Error::Unavailable { .. }) => {
                let now = session.now();
                let left = session.outage.patience_left(came, now);
                let left = deadline.map_or(left, |deadline| left.min(now.until(deadline)));
                if left.is_zero() {
                    return Err(error);
                }
                let pause = random::retry_pause().min(left);
                waits::pause_until(session, now + pause).await;
            }
            Err(error) => return Err(error),
        }
    }
    Box::pin(session.wait_in_line(key, caller, &want, deadline)).await
}

/// Makes one attempt for a caller whose time is over while others have a turn.
async fn try_after_turn(
    session: &Arc<Session>,
    key: &Key,
    caller: &Caller,
    want: Want,
) -> Result<Option<RawGuard>, Error> {
    let guard = session.try_lock(key, caller, want).await?;
    // This is the outcome of the turn: the line may be empty by now, and would give the others the
    // same turn again and again.
    if guard.is_some() {
        session.lines.end_given_turn(key, session.now());
    }
    Ok(guard)
}

/// Writes the count of a re-entered hold, which has been counted up already.
async fn reentered(
    session: &Arc<Session>,
    hold: Arc<Hold>,
    origin: Origin,
    count: u32,
) -> Result<RawGuard, Error> {
    // Invariant 1: the guard is there before the await, so dropping this future counts the hold
    // down.
    let guard = RawGuard::entered(Arc::clone(session), Arc::clone(&hold), origin);
    reentries::note_reentry(&hold);
    release::write_count(session, &hold, count).await?;
    Ok(guard)
}

/// Returns a span for what the engine does for a caller in line.
fn span_of(session: &Session, key: &Key) -> Span {
    // The ends of spans are always kept.
    if session.engine.journal().is_behind() {
        return Span::default();
    }
    foreign::span(
        || tracing::debug_span!(parent: None, "lockhound", operation = "drive", key = %key.shown()),
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::hold::Terms;
    use crate::options::Reentry;
    use crate::owner::Owner;

    /// The line is behind a mutex, which another thread may have held when the process was forked.
    #[tokio::test]
    async fn a_caller_that_gives_up_leaves_the_line_except_in_a_fork() {
        for (session, stays) in [(Session::over_nobody(), false), (Session::forked(), true)] {
            let key = Key::from("k");
            let id = session.lines.next_id();
            let now = Instant::now();
            let Caller { owner, origin, .. } =
                Caller::blocking(Some(&Owner::task(1)), Reentry::Task);
            let terms = Terms {
                lease: Duration::from_secs(30),
                renewed: true,
                max_hold: None,
            };
            let (reply, _answer) = foreign::channel();
            let waiter = CallWaiter {
                id,
                owner,
                since: now,
                call: LockRequest {
                    origin,
                    want: Want::of_lock(terms),
                    span: Span::default(),
                    in_doubt: AtomicBool::default(),
                    reply,
                },
            };
            assert!(matches!(
                session.lines.arrive(&key, waiter, now),
                Arrival::Queued
            ));
            drop(WaiterGuard {
                session: &session,
                key: &key,
                id,
                deadline: None,
                answered: false,
            });
            assert_eq!(session.lines.leave(&key, id).is_some(), stays);
            session.engine.stop();
        }
    }
}
