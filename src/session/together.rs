//! Several locks at once, all or none.
//!
//! One script takes them where all are free. Where somebody holds one of them, they are taken one after the other through
//! their lines, as everybody takes them, so that messages wake whoever waits and nobody is passed over for ever. That
//! takes them in the order of their names: of two that want the same locks the one does not wait for what the other has.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::acquire::Attempt;
use super::{Grip, Session};
use crate::clock::Instant;
use crate::error::Error;
use crate::foreign;
use crate::gate::Entry;
use crate::hold::Terms;
use crate::identity::Caller;
use crate::key::Key;
use crate::quorum::Order;

/// For whom, and until when, several locks are collected.
struct Errand<'a> {
    keys: &'a [Key],
    caller: &'a Caller,
    terms: Terms,
    called: Instant,
    deadline: Option<Instant>,
    /// Whether a round of it has been answered.
    answered: bool,
}

impl Session {
    /// Takes all of these locks, which are in order, or waits for them; up to this time, where one is given: then `None`.
    pub(crate) async fn lock_all(
        self: &Arc<Self>,
        keys: &[Key],
        caller: &Caller,
        terms: Terms,
        wait: Option<Duration>,
    ) -> Result<Option<Vec<Grip>>, Error> {
        self.enter()?;
        let called = self.now();
        let deadline = wait.map(|wait| called + wait);
        let mut errand = Errand { keys, caller, terms, called, deadline, answered: false };
        loop {
            // Whoever stands in a line was there first.
            if !keys.iter().any(|key| self.gate.is_awaited(key)) {
                match self.in_time(deadline, self.try_all(keys, caller, terms)).await {
                    Some(Ok(Some(grips))) => {
                        self.counters.granted_after(self.now().since(called));
                        return Ok(Some(grips));
                    }
                    Some(Ok(None)) => errand.answered = true,
                    // An outage is ridden out in line.
                    Some(Err(Error::Unavailable { .. })) => {}
                    Some(Err(error)) => return Err(error),
                    None => return Err(self.unanswered(called)),
                }
            }
            let Some(grips) = self.collect(&mut errand).await? else { return Ok(None) };
            // The first may have been lost, or their time may be over, while the others were waited for: then none counts.
            if grips.iter().all(|grip| grip.view().check().is_ok()) {
                return Ok(Some(grips));
            }
            drop(grips);
            if deadline.is_some_and(|deadline| self.now() >= deadline) {
                return Ok(None);
            }
        }
    }

    /// Takes all of these locks if that is possible at once: those that this owner does not hold by one script, past the
    /// lines.
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
                match self.gate.enter(&key, &caller.owner, self.now()) {
                    Entry::Reentered(hold, _) => {
                        self.note_reentry(&hold);
                        grips.push(Grip::taken(Arc::clone(self), hold, caller.origin));
                    }
                    Entry::Lost(loss) => return Err(Error::Lost(loss)),
                    Entry::HeldHere => return Ok(None),
                    Entry::Open => rest.push(key),
                }
            }
            let entered = grips.len();
            // After an attempt that failed there is hope only if another branch of this very task got in meanwhile.
            if !rest.is_empty() && attempted && rest.len() == before {
                return Ok(None);
            }
            if !rest.is_empty() {
                attempted = true;
                let Some(granted) = self.acquire_all(&rest, caller, terms).await? else {
                    open = rest;
                    continue;
                };
                for grip in granted {
                    let Some(grip) = self.take(grip)? else { return Ok(None) };
                    grips.push(grip);
                }
            }
            for grip in &grips[..entered] {
                self.write_count(grip.hold(), grip.hold().guards()).await?;
            }
            grips.sort_unstable_by(|a, b| a.hold().key.cmp(&b.hold().key));
            return Ok(Some(grips));
        }
    }

    /// One attempt, as a task of the engine.
    async fn acquire_all(
        self: &Arc<Self>,
        keys: &[Key],
        caller: &Caller,
        terms: Terms,
    ) -> Result<Option<Vec<Grip>>, Error> {
        let (session, keys, owner, origin) = (Arc::clone(self), keys.to_vec(), caller.owner.clone(), caller.origin);
        self.on_engine(async move {
            let sent = Instant::now();
            match session.attempt(&keys, &owner, origin, terms, Order::AllAtOnce).await {
                Attempt::Granted(granted) => Ok(Some(granted.iter().map(|grant| session.register(grant)).collect())),
                Attempt::Held { .. } | Attempt::Split | Attempt::Outrun => Ok(None),
                Attempt::Refused(error) => Err(error),
                Attempt::Unavailable(nodes) => {
                    let lasts = session.outage.known_before(sent, Instant::now());
                    Err(session.quorum.unavailable(nodes, lasts))
                }
            }
        })
        .await
    }

    /// Takes one lock after the other, each through its line. What it has is given back if one cannot be had.
    async fn collect(self: &Arc<Self>, errand: &mut Errand<'_>) -> Result<Option<Vec<Grip>>, Error> {
        let mut grips = Vec::with_capacity(errand.keys.len());
        for key in errand.keys {
            let wait = errand.deadline.map(|deadline| self.now().until(deadline));
            match self.lock(key, errand.caller, errand.terms, wait).await {
                Ok(Some(grip)) => grips.push(grip),
                Ok(None) => return Ok(None),
                Err(Error::Unavailable { .. }) if self.is_only_late(errand) => return Ok(None),
                Err(error) => return Err(error),
            }
            errand.answered = true;
        }
        Ok(Some(grips))
    }

    /// Whether the time is over for want of it, and not of answers: too little was left for the last of the locks.
    fn is_only_late(&self, errand: &Errand<'_>) -> bool {
        let now = self.now();
        errand.answered
            && errand.deadline.is_some_and(|deadline| now >= deadline)
            && self.outage.failure_since(errand.called, now).is_none()
    }

    /// Waits for this until then. The timer is the engine's: the caller may have no runtime.
    async fn in_time<T>(&self, deadline: Option<Instant>, future: impl Future<Output = T>) -> Option<T> {
        let Some(deadline) = deadline else { return Some(future.await) };
        let (over, timer) = foreign::channel::<()>();
        let _stop = Stop(self.engine.spawn(async move {
            sleep(Instant::now().until(deadline)).await;
            foreign::hang_up(over);
        }));
        tokio::select! {
            biased;
            value = future => Some(value),
            _ = timer => None,
        }
    }
}

/// A timer that stops when it is dropped.
pub(super) struct Stop(pub(super) AbortHandle);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
