//! Extends a fixed lease, when its holder asks for it.
//!
//! # Invariants
//! - A server never shortens a lease for it. So a copy that arrives late or twice does no harm, and two calls at a time
//!   may arrive in any order.
//! - The longest lease that was asked for is noted before anything is sent: releases and undos are repeated for that
//!   long.

use std::sync::Arc;
use std::time::Duration;

use super::Session;
use crate::clock::Instant;
use crate::error::Error;
use crate::hold::Hold;
use crate::lease;
use crate::node::Outcome;
use crate::options::validate_duration;

impl Session {
    /// Makes a hold with a fixed lease last for at least this long from now.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Lost`] or, if no majority of the servers confirms it, [`Error::Unavailable`] or a
    /// refusal.
    pub(super) async fn extend(self: &Arc<Self>, hold: &Arc<Hold>, lease: Duration) -> Result<(), Error> {
        self.enter()?;
        if hold.terms.renewed {
            let problem = "the watchdog renews this lock, which needs no extension: take it with fixed_lease";
            return Err(Error::config("extend", problem));
        }
        validate_duration("extend", lease)?;
        self.settings.check_quarantine("extend", lease)?;
        hold.at(self.now()).check(&hold.claim.key)?;
        let (session, hold) = (Arc::clone(self), Arc::clone(hold));
        self.on_engine(async move { session.extend_on_all(&hold, lease).await }).await
    }

    async fn extend_on_all(self: &Arc<Self>, hold: &Arc<Hold>, lease: Duration) -> Result<(), Error> {
        hold.lengthen(lease);
        let key = &hold.claim.key;
        let sent = Instant::now();
        hold.at(sent).check(key)?;
        let until = lease::valid_until(sent, lease);
        let mut asking = self.quorum.extend(&hold.claim, lease);
        let (mut failures, mut refusal) = (Vec::new(), None);
        while let Some((node, answer)) = asking.next().await {
            match answer {
                Outcome::Done(true) => hold.extended(node, until, Instant::now()),
                Outcome::Done(false) if hold.gone(node) => {}
                // Without this vote the hold may end sooner.
                Outcome::Done(false) => self.alarm.watch(hold, Instant::now()),
                Outcome::Refused(error) => refusal = Some(error),
                Outcome::NotExecuted(failure) | Outcome::Unknown(failure) => failures.push(failure),
            }
            hold.at(Instant::now()).check(key)?;
            if hold.has_votes_until(until) {
                return Ok(());
            }
        }
        Err(refusal.unwrap_or_else(|| self.quorum.unavailable(failures, Duration::ZERO)))
    }
}
