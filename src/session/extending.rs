//! Extends a fixed lease, when its holder asks for it.
//!
//! A server never shortens a lease for it. So a copy that arrives late or twice does no harm, and
//! two calls at a time may arrive in any order.

use std::sync::Arc;
use std::time::Duration;

use super::{Session, jobs};
use crate::clock::Instant;
use crate::error::Error;
use crate::hold::Hold;
use crate::lease;
use crate::node::Outcome;
use crate::options::validate_duration;

/// Makes a hold with a fixed lease last for at least this long from now.
///
/// # Errors
/// [`Error::Config`], [`Error::Lost`] or, if no majority of the servers confirms it,
/// [`Error::Unavailable`] or a refusal.
pub(super) async fn extend(
    session: &Arc<Session>,
    hold: &Arc<Hold>,
    lease: Duration,
) -> Result<(), Error> {
    session.enter()?;
    if hold.terms.renewed {
        let problem =
            "the watchdog renews this lock, which needs no extension: take it with fixed_lease";
        return Err(Error::config("extend", problem));
    }
    validate_duration("extend", lease)?;
    session.settings.check_quarantine("extend", lease)?;
    // A holder that has lost the lock learns of it without a round trip.
    hold.at(session.now()).check(&hold.claim.key)?;
    let owned = Arc::clone(session);
    let hold = Arc::clone(hold);
    jobs::on_engine(
        session,
        async move { extend_on_all(&owned, &hold, lease).await },
    )
    .await
}

async fn extend_on_all(
    session: &Arc<Session>,
    hold: &Arc<Hold>,
    lease: Duration,
) -> Result<(), Error> {
    // Before the send: releases and undos are repeated for the longest lease that may stand there.
    hold.lengthen(lease);
    let key = &hold.claim.key;
    // Invariant 3.
    let sent = Instant::now();
    hold.at(sent).check(key)?;
    let until = lease::valid_until(sent, lease);
    let mut asking = session.quorum.extend(&hold.claim, lease);
    let mut failures = Vec::new();
    let mut refusal = None;
    while let Some((node, answer)) = asking.next().await {
        match answer {
            Outcome::Done(true) => hold.extended(node, until, Instant::now()),
            Outcome::Done(false) if hold.gone(node) => {}
            // Without this vote the hold may end sooner.
            Outcome::Done(false) => session.alarm.watch(hold, Instant::now()),
            Outcome::Refused(error) => refusal = Some(error),
            Outcome::NotExecuted(failure) | Outcome::Unknown(failure) => failures.push(failure),
        }
        // The lease that it had may end before a majority has answered.
        hold.at(Instant::now()).check(key)?;
        if hold.has_votes_until(until) {
            return Ok(());
        }
    }
    Err(refusal.unwrap_or_else(|| session.quorum.unavailable(failures, Duration::ZERO)))
}
