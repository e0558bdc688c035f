//! Acquires one lock or several at once or not at all, past the lines.

use std::sync::Arc;

use super::attempt::{self, Attempt};
use super::{Grip, Session, jobs, reentries, release};
use crate::clock::Instant;
use crate::error::{Error, Loss};
use crate::hold::{HoldState, Terms};
use crate::identity::Caller;
use crate::key::Key;
use crate::lines::Entry;
use crate::quorum::Order;

impl Session {
    /// Makes one attempt, past the line.
    pub(crate) async fn try_lock(
        self: &Arc<Self>,
        key: &Key,
        caller: &Caller,
        terms: Terms,
    ) -> Result<Option<Grip>, Error> {
        let taken = self.try_all(std::slice::from_ref(key), caller, terms).await?;
        Ok(taken.and_then(|mut grips| grips.pop()))
    }

    /// Acquires all of these locks if that is possible at once. The ones that this owner does not hold are taken by one
    /// script, past the lines.
    pub(crate) async fn try_all(
        self: &Arc<Self>,
        keys: &[Key],
        caller: &Caller,
        terms: Terms,
    ) -> Result<Option<Vec<Grip>>, Error> {
        self.enter()?;
        let mut grips = Vec::with_capacity(keys.len());
        let mut open = keys.to_vec();
        let mut attempted = false;
        loop {
            let before = open.len();
            let mut rest = Vec::with_capacity(before);
            for key in open {
                match self.lines.enter(&key, &caller.owner, self.now()) {
                    Entry::Reentered(hold, _) => {
                        reentries::note_reentry(&hold);
                        grips.push(Grip::entered(Arc::clone(self), hold, caller.origin));
                    }
                    Entry::Lost(loss) => return Err(Error::lost(&key, loss)),
                    Entry::HeldHere => return Ok(None),
                    Entry::Open => rest.push(key),
                }
            }
            let entered = grips.len();
            // After a failed attempt, another one makes sense only if another branch of the same task got in meanwhile.
            if !rest.is_empty() && attempted && rest.len() == before {
                return Ok(None);
            }
            if !rest.is_empty() {
                attempted = true;
                let Some(granted) = acquire_all(self, &rest, caller, terms).await? else {
                    open = rest;
                    continue;
                };
                for grip in granted {
                    let Some(grip) = take(self, grip)? else { return Ok(None) };
                    grips.push(grip);
                }
            }
            for grip in &grips[..entered] {
                release::write_count(self, grip.hold(), grip.hold().guards()).await?;
            }
            grips.sort_unstable_by(|a, b| a.hold().claim.key.cmp(&b.hold().claim.key));
            return Ok(Some(grips));
        }
    }
}

/// Makes one attempt, as a task of the engine.
async fn acquire_all(
    session: &Arc<Session>,
    keys: &[Key],
    caller: &Caller,
    terms: Terms,
) -> Result<Option<Vec<Grip>>, Error> {
    let (owned, keys, owner, origin) = (Arc::clone(session), keys.to_vec(), caller.owner.clone(), caller.origin);
    jobs::on_engine(session, async move {
        let sent = Instant::now();
        match attempt::attempt(&owned, &keys, &owner, origin, terms, Order::AllAtOnce, None).await {
            Attempt::Granted(granted) => {
                Ok(Some(granted.iter().map(|grant| attempt::register(&owned, grant)).collect()))
            }
            Attempt::Held { .. } | Attempt::Split | Attempt::Outrun => Ok(None),
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
pub(super) fn take(session: &Session, mut grip: Grip) -> Result<Option<Grip>, Error> {
    if !grip.claim() {
        return session.check_open().map(|()| None);
    }
    match grip.as_ref().look() {
        HoldState::Lost(Loss::Closed) => Err(Error::Closed),
        HoldState::Lost(_) => session.check_open().map(|()| None),
        HoldState::Safe | HoldState::Jeopardy => Ok(Some(grip)),
    }
}
