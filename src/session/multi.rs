//! Acquires several locks at once, all or none.
//!
//! One script takes them if all are free, unless a caller waits for one of them here, who came
//! first. If one is held, they are taken one after the other through their lines, as single locks
//! are, so that messages wake the waiters and no caller starves. The locks taken so far are guards
//! in the caller's future, whose drop gives them back. If one is lost before the last is granted,
//! the caller starts again.
//!
//! Several locks are not one hold: each has a generation, a field, a fence and terms of its own, so
//! undo, renewal and release treat them as single locks, and a lock that was held before keeps its
//! terms. The tokens of the guard are those of a `Joint`, which each hold fires with its own. The
//! script does not say which of the locks is held: servers of a quorum may name different ones, and
//! a waiter starts with the first in any case.

use std::sync::Arc;

use super::waits;
use super::{RawGuard, Session};
use crate::clock::Instant;
use crate::error::Error;
use crate::hold::Want;
use crate::identity::Caller;
use crate::key::Key;

/// The caller for which several locks are collected, and until when.
struct Errand<'a> {
    keys: &'a [Key],
    caller: &'a Caller,
    want: Want,
    called: Instant,
    deadline: Option<Instant>,
    /// Whether a round has been answered.
    answered: bool,
}

impl Session {
    /// Acquires all of these locks, which are in order, or waits for them until a deadline. Returns
    /// `None` after that.
    pub(crate) async fn lock_all(
        self: &Arc<Self>,
        keys: &[Key],
        caller: &Caller,
        want: Want,
        deadline: Option<Instant>,
    ) -> Result<Option<Vec<RawGuard>>, Error> {
        self.enter()?;
        let called = self.now();
        let mut errand = Errand {
            keys,
            caller,
            want,
            called,
            deadline,
            answered: false,
        };
        loop {
            // Callers in a line were there first.
            if !keys.iter().any(|key| self.lines.is_awaited(key)) {
                match self
                    .in_time(deadline, self.try_all(keys, caller, want))
                    .await
                {
                    Some(Ok(Some(taken))) => return Ok(Some(taken)),
                    Some(Ok(None)) => errand.answered = true,
                    // It rides out an outage in line.
                    Some(Err(Error::Unavailable { .. })) => {}
                    Some(Err(error)) => return Err(error),
                    None => {
                        return waits::gave_up(self, called, errand.deadline.unwrap_or(called))
                            .map(|()| None);
                    }
                }
            }
            let Some(taken) = collect(self, &mut errand).await? else {
                return Ok(None);
            };
            // The first ones may have been lost while it waited for the others: then none counts.
            if taken.iter().all(|guard| guard.as_ref().check().is_ok()) {
                return Ok(Some(taken));
            }
            drop(taken);
            if deadline.is_some_and(|deadline| self.now() >= deadline) {
                return Ok(None);
            }
        }
    }
}

/// Acquires one lock after the other, each through its line. If one cannot be acquired, the others
/// are given back.
async fn collect(
    session: &Arc<Session>,
    errand: &mut Errand<'_>,
) -> Result<Option<Vec<RawGuard>>, Error> {
    let mut guards = Vec::with_capacity(errand.keys.len());
    // In the order of their names: two callers that want the same locks never wait for each other.
    for key in errand.keys {
        match session
            .wait_in_line(key, errand.caller, &errand.want, errand.deadline)
            .await
        {
            Ok(Some(guard)) => guards.push(guard),
            Ok(None) => return Ok(None),
            Err(Error::Unavailable { .. }) if is_only_late(session, errand) => return Ok(None),
            Err(error) => return Err(error),
        }
        errand.answered = true;
    }
    Ok(Some(guards))
}

/// Returns whether only the wait time is over, and answers did not fail: too little was left for
/// the last of the locks.
fn is_only_late(session: &Session, errand: &Errand<'_>) -> bool {
    let now = session.now();
    errand.answered
        && errand.deadline.is_some_and(|deadline| now >= deadline)
        && session.outage.failure_since(errand.called, now).is_none()
}
