//! Several locks at once, all or none.
//!
//! One script takes them where all are free. Where somebody holds one of them, they are taken one after the other
//! through their lines, as everybody takes them, so that messages wake whoever waits and nobody is passed over for
//! ever. That takes them in the order of their names: of two that want the same locks the one does not wait for what
//! the other has.
//!
//! Several locks are not one hold: each has a generation, a field, a fence and terms of its own, so that undo, renewal
//! and release know nothing of this, and a lock that was held before keeps its terms. The script does not say which of
//! them is held: servers of a quorum may name different ones, and whoever waits begins with the first in any case.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::{Grip, Session};
use crate::clock::Instant;
use crate::error::Error;
use crate::foreign;
use crate::hold::Terms;
use crate::identity::Caller;
use crate::key::Key;
use crate::tasks::Stop;

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
    /// Takes all of these locks, which are in order, or waits for them; up to this time, where one is given: then
    /// `None`.
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
            // The first may have been lost, or their time may be over, while the others were waited for: then none
            // counts.
            if grips.iter().all(|grip| grip.view().check().is_ok()) {
                return Ok(Some(grips));
            }
            drop(grips);
            if deadline.is_some_and(|deadline| self.now() >= deadline) {
                return Ok(None);
            }
        }
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
