//! Counts and logs re-entries, and warns if they look like branches that are inside together.

use tokio::time::sleep;

use super::Session;
use super::warned::Warning;
use crate::clock::Instant;
use crate::foreign::log;
use crate::hold::{Entrance, Hold};
use crate::identity::{CallContext, Caller, Known, Origin};
use crate::key::Key;
use crate::lease;
use crate::sync::Arc;
use crate::tasks::Stop;

/// Logs a re-entry.
pub(super) fn note_reentry(hold: &Hold) {
    let owner = hold.owner();
    let generation = hold.generation;
    let guards = hold.guards();
    log!(debug, key = %hold.claim.key.shown(), %owner, generation, guards, "entered again");
}

/// Notes that a caller takes its guard.
pub(super) fn enters(session: &Session, hold: &Hold, origin: Origin) -> Entrance {
    let (entrance, suspicious) = hold.entered(origin);
    if suspicious {
        // Correct code does this too, so it is only counted.
        session.counters.suspicious_reentry();
    }
    entrance
}

/// Notes that a caller's guard is dropped, on this thread, before the hold is counted down. If that
/// looks wrong, warns and returns true.
pub(super) fn exits(session: &Session, hold: &Hold, entrance: &Entrance, now: Instant) -> bool {
    if !hold.exits(entrance, CallContext::here(), now) {
        return false;
    }
    session.counters.suspicious_reentry();
    if session.warned.is_due(&hold.claim.key, Warning::Beside, now) {
        let key = &hold.claim.key;
        let owner = hold.owner();
        log!(
            warn, key = %key.shown(), %owner,
            "a guard was released before a newer one of the same owner: branches of one task, or a task that \
            was given the guard, may have been inside together. Use lock.run(..) in branches, \
            lock.owned_by(Owner::new()) for guards of branches, guard.detach() for one that is given away, or \
            Reentry::Scope"
        );
    }
    true
}

/// Panics after a suspicious re-entry over a server in memory, on the caller's thread: a test whose
/// two callers are one owner asserts something else than it seems to.
pub(super) fn fail_test(session: &Session, key: &Key) {
    // A second panic would end the process.
    if std::thread::panicking()
        || session
            .quorum
            .nodes()
            .iter()
            .any(|node| node.permits_suspicious_reentries())
    {
        return;
    }
    panic!(
        "the lock {key:?} was entered by branches of one task, such as those of join!: they are one owner, and \
         were inside together. Give each caller a task of its own (tokio::spawn), use lock.run(..), or name owners \
         (lock.owned_by(Owner::new())). If it is intended, call Server::permit_suspicious_reentries()"
    );
}

/// Warns, after a while, if a caller that begins to wait may wait for itself. Dropping the returned
/// value cancels the warning.
pub(super) fn warn_of_itself(session: &Arc<Session>, key: &Key, caller: &Caller) -> Option<Stop> {
    // Whoever has some permits may well want more.
    if key.has_permits() {
        return None;
    }
    let place = caller.origin.context;
    // The sections of runs know what they are inside of. For other holds, and for guards that
    // outlived their section, only the task is known.
    let of_section = |hold: &Hold| hold.origin.known == Known::Run && hold.owner().is_of_run();
    let own =
        |hold: &Hold| !of_section(hold) && hold.is_held() && hold.origin.context.may_be(place);
    if caller.runs.innermost(session.id, key).is_none() && !session.lines.has_hold(key, own) {
        return None;
    }
    let owned = Arc::clone(session);
    let key = key.clone();
    let owner = caller.owner.clone();
    Some(Stop(session.engine.spawn(async move {
        // Branches that name owners wait for each other for a moment, which is fine.
        sleep(lease::recheck_interval(owned.settings.lease)).await;
        if owned.warned.is_due(&key, Warning::Itself, Instant::now()) {
            log!(
                warn, key = %key.shown(), %owner,
                "a call waits for a lock that was taken in its own task, as another owner: if the holder \
                waits for this call, both wait forever. Lock in the holder's scope (guard.scope(..), or \
                inside of lock.run(..)), or release first"
            );
        }
    })))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::hold::Terms;
    use crate::options::Reentry;
    use crate::owner::Owner;

    /// A hold of the key "k" that was taken here, by this owner.
    fn hold(owner: Owner, known: Known) -> Hold {
        let terms = Terms {
            lease: Duration::from_secs(60),
            renewed: true,
            max_hold: None,
        };
        let mut hold = Hold::for_test(owner, terms, &[0], 1);
        hold.origin = Origin {
            context: CallContext::here(),
            waker: 0,
            known,
        };
        hold
    }

    #[tokio::test]
    async fn what_is_suspicious_of_re_entries_is_counted() {
        let session = Session::over_nobody();
        let hold = hold(Owner::new(), Known::Calling);
        let elsewhere = Origin {
            context: CallContext::Task(0),
            ..hold.origin
        };
        let entrances =
            [elsewhere, elsewhere, elsewhere].map(|origin| enters(&session, &hold, origin));
        let suspicious = || session.stats().suspicious_reentries;
        assert_eq!(suspicious(), 0);
        exits(&session, &hold, &entrances[2], hold.since);
        assert_eq!(
            suspicious(),
            1,
            "it was released elsewhere, while others stay"
        );
        exits(&session, &hold, &entrances[1], hold.since);
        exits(&session, &hold, &entrances[0], hold.since);
        assert_eq!(suspicious(), 2, "the last one may be released anywhere");
        session.engine.stop();
    }

    #[tokio::test]
    async fn a_caller_that_may_wait_for_itself_is_warned() {
        let warns = |hold: Hold, place| {
            let session = Session::over_nobody();
            let hold = Arc::new(hold);
            let mut caller = Caller::blocking(Some(&Owner::new()), Reentry::Task);
            caller.origin.context = place;
            let alone = warn_of_itself(&session, &hold.claim.key, &caller).is_none();
            session.lines.admit(&hold, None, hold.since);
            let warns = warn_of_itself(&session, &hold.claim.key, &caller).is_some();
            session.engine.stop();
            assert!(alone, "no caller holds it");
            warns
        };
        let here = CallContext::here();
        assert!(warns(hold(Owner::new(), Known::Calling), here));
        assert!(
            !warns(hold(Owner::new(), Known::Calling), CallContext::Task(0)),
            "it was taken elsewhere"
        );
        assert!(
            warns(hold(Owner::of_run(), Known::Named), here)
                && warns(hold(Owner::new(), Known::Run), here)
        );
        assert!(
            !warns(hold(Owner::of_run(), Known::Run), here),
            "its run knows what it is in"
        );
        let released = hold(Owner::new(), Known::Calling);
        assert!(released.revoke());
        assert!(!warns(released, here), "it is being released");
    }
}
