//! Acquires one lock or several at once or not at all, past the lines.

use std::sync::Arc;

use super::attempt;
use super::attempt::{AcquireRequest, Attempt};
use super::jobs;
use super::permits;
use super::read_write;
use super::reentries;
use super::release;
use super::{RawGuard, Session};
use crate::claim::{How, InTurn};
use crate::clock::Instant;
use crate::error::{Error, Loss};
use crate::hold::{Hold, HoldState, Want};
use crate::identity::Caller;
use crate::key::Key;
use crate::kind::LockRole;
use crate::lines::Entry;
use crate::quorum::Order;

impl Session {
    /// Makes one attempt, past the line.
    pub(crate) async fn try_lock(
        self: &Arc<Self>,
        key: &Key,
        caller: &Caller,
        want: Want,
    ) -> Result<Option<RawGuard>, Error> {
        let taken = self
            .try_all(std::slice::from_ref(key), caller, want)
            .await?;
        Ok(taken.and_then(|mut guards| guards.pop()))
    }

    /// Acquires all of these locks if that is possible at once. The ones that this owner does not
    /// hold are taken by one script, past the lines.
    pub(crate) async fn try_all(
        self: &Arc<Self>,
        keys: &[Key],
        caller: &Caller,
        want: Want,
    ) -> Result<Option<Vec<RawGuard>>, Error> {
        self.enter()?;
        let mut guards = Vec::with_capacity(keys.len());
        let mut open = keys.to_vec();
        let mut attempted = false;
        loop {
            let before = open.len();
            let mut rest = Vec::with_capacity(before);
            for key in open {
                match self.lines.enter(&key, &caller.owner, want, self.now()) {
                    Entry::Reentered(hold, _) => {
                        reentries::note_reentry(&hold);
                        guards.push(RawGuard::entered(Arc::clone(self), hold, caller.origin));
                    }
                    Entry::Lost(loss) => return Err(Error::lost(&key, loss)),
                    Entry::Upgrade => return Err(read_write::upgrade(&key)),
                    Entry::Inside(write) => {
                        match Box::pin(read_write::read_inside(self, &key, caller, want, write))
                            .await?
                        {
                            Some(guard) => guards.extend(take(self, guard)?),
                            None => rest.push(key),
                        }
                    }
                    Entry::Beside(hold) => match beside(self, &hold, caller)? {
                        Some(guard) => guards.push(guard),
                        None => rest.push(key),
                    },
                    // The guards so far are dropped, and their counts go back.
                    Entry::HeldHere => return Ok(None),
                    Entry::Open => rest.push(key),
                }
            }
            let entered = guards.len();
            // After a failed attempt, another one makes sense only if another branch of the same
            // task got in meanwhile.
            if !rest.is_empty() && attempted && rest.len() == before {
                return Ok(None);
            }
            if !rest.is_empty() {
                attempted = true;
                let Some(granted) = acquire_all(self, &rest, caller, want).await? else {
                    open = rest;
                    continue;
                };
                for guard in granted {
                    // A grant that was lost before it was claimed makes the others useless: they
                    // are given back.
                    let Some(guard) = take(self, guard)? else {
                        return Ok(None);
                    };
                    guards.push(guard);
                }
            }
            // These are the re-entries, which the script did not touch: their counts are yet to be
            // written.
            for guard in &guards[..entered] {
                release::write_count(self, guard.hold(), guard.hold().guards()).await?;
            }
            guards.sort_unstable_by(|a, b| a.hold().claim.key.cmp(&b.hold().claim.key));
            return Ok(Some(guards));
        }
    }
}

/// Reads beside this hold of another reader. Returns `None` if it is not open any more.
pub(super) fn beside(
    session: &Arc<Session>,
    hold: &Hold,
    caller: &Caller,
) -> Result<Option<RawGuard>, Error> {
    match attempt::join(session, hold, &caller.owner, caller.origin) {
        Some(guard) => take(session, guard),
        None => Ok(None),
    }
}

/// Makes one attempt, as a task of the engine.
async fn acquire_all(
    session: &Arc<Session>,
    keys: &[Key],
    caller: &Caller,
    want: Want,
) -> Result<Option<Vec<RawGuard>>, Error> {
    let owned = Arc::clone(session);
    let keys = keys.to_vec();
    let owner = caller.owner.clone();
    let origin = caller.origin;
    jobs::on_engine(session, async move {
        let sent = Instant::now();
        let how = match want.kind.role {
            LockRole::Alone => How::Plainly,
            LockRole::InTurn => How::InTurn(InTurn::default()),
            LockRole::Read | LockRole::Write => How::Among(read_write::among(&owned)),
            LockRole::Permit => permits::how(&owned, want),
        };
        let request = |key| AcquireRequest {
            key,
            owner: &owner,
            origin,
            permits: want.permits,
        };
        let requests: Vec<_> = keys.iter().map(request).collect();
        let (attempt, served) =
            attempt::attempt_in_order(&owned, &requests, want, Order::AllAtOnce, how).await;
        let served = served.as_ref().zip(keys.first());
        if let Some((served, key)) = served {
            permits::compare_capacity(&owned, key, want, served);
        }
        match attempt {
            Attempt::Granted(granted) => Ok(Some(
                granted
                    .iter()
                    .map(|grant| attempt::register(&owned, grant))
                    .collect(),
            )),
            Attempt::Held { .. } | Attempt::Split | Attempt::Outrun => served
                .map_or(Ok(()), |(served, key)| {
                    permits::check_refused(key, want, served)
                })
                .map(|()| None),
            Attempt::Refused(error) => Err(error),
            Attempt::Unavailable(nodes) => {
                let lasts = owned.outage.known_before(sent, Instant::now());
                Err(owned.quorum.unavailable(nodes, lasts))
            }
        }
    })
    .await
}

/// Claims a grant for its caller. Returns `None` if it was revoked or lost before.
pub(super) fn take(session: &Session, mut guard: RawGuard) -> Result<Option<RawGuard>, Error> {
    if !guard.claim() {
        return session.check_open().map(|()| None);
    }
    match guard.as_ref().look() {
        HoldState::Lost(Loss::Closed) => Err(Error::Closed),
        // A caller that has not had the lock yet has nothing to lose: it asks again.
        HoldState::Lost(_) => session.check_open().map(|()| None),
        HoldState::Safe | HoldState::Jeopardy => Ok(Some(guard)),
    }
}
