//! Handles the loss of a hold, whoever found it: wakes its line, takes back unclaimed grants, and
//! informs operators.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, sleep_until};

use super::{Session, leave};
use crate::error::Loss;
use crate::foreign::log;
use crate::hold::{Hold, Lost};
use crate::kind::LockRole;
use crate::line::Event;

/// The most losses that are handled before the first of them is logged.
const MOST: usize = 1_024;

/// How many losses in a second have a line of their own in the log. Those after them share one.
const EACH: usize = 10;

/// Handles each loss once, after its tokens have fired. Started with the session; ends with the
/// engine; no task awaits it.
pub(super) async fn judge(session: Weak<Session>, mut losses: UnboundedReceiver<Lost>) {
    let mut lost = Vec::new();
    let mut told = LoggedLosses::default();
    loop {
        tokio::select! {
            biased;
            // Before more losses come in, so that a flood of them does not put the summary off.
            () = sleep_until(told.until.unwrap_or_else(Instant::now)), if told.until.is_some() => told.end_second(),
            many = losses.recv_many(&mut lost, MOST) => {
                let (1.., Some(session)) = (many, session.upgrade()) else { return };
                for Lost { hold, .. } in &lost {
                    session.lines.step(&hold.claim.key, Event::Changed);
                    // The reads of its owner inside of it keep the hash, and it with them, alive.
                    if hold.claim.kind.role == LockRole::Write {
                        session.book.undo_hold(hold);
                    }
                    // Callers that have not claimed it yet never will: they queue again.
                    if hold.revoke() {
                        leave::take_back(&session, hold);
                    }
                }
                // A recorder may block, and no line waits for that.
                lost.iter().for_each(|lost| session.counters.tell_lost(lost.hold.claim.kind.counted, lost.loss));
                lost.drain(..).for_each(|lost| told.tell(&lost));
            }
        }
    }
}

/// What was logged of losses in the current second.
#[derive(Debug, Default)]
struct LoggedLosses {
    /// When the second ends, or that there was no loss lately.
    until: Option<Instant>,
    each: usize,
    /// Those that share a line: the reason, how many, and the first of them.
    more: Vec<(Loss, usize, Arc<Hold>)>,
}

impl LoggedLosses {
    fn tell(&mut self, Lost { hold, loss, at }: &Lost) {
        self.until
            .get_or_insert_with(|| Instant::now() + Duration::from_secs(1));
        let key = &hold.claim.key;
        let owner = hold.owner();
        let generation = hold.generation;
        let age = at.since(hold.since);
        if self.each < EACH {
            self.each += 1;
            log!(warn, key = %key.shown(), %owner, generation, reason = %loss, ?age, "lock lost");
            return;
        }
        log!(debug, key = %key.shown(), %owner, generation, reason = %loss, ?age, "one of these is lost");
        match self.more.iter_mut().find(|(reason, ..)| reason == loss) {
            Some((_, locks, _)) => *locks += 1,
            None => self.more.push((*loss, 1, Arc::clone(hold))),
        }
    }

    fn end_second(&mut self) {
        (self.until, self.each) = (None, 0);
        for (reason, locks, first) in self.more.drain(..) {
            let key = &first.claim.key;
            log!(warn, locks, key = %key.shown(), %reason, "more locks lost");
        }
    }
}

impl Drop for LoggedLosses {
    fn drop(&mut self) {
        self.end_second();
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::super::connect;
    use super::*;
    use crate::alarm::Alarm;
    use crate::clock::Instant;
    use crate::engine::Engine;
    use crate::error::Error;
    use crate::foreign::SickOfEvents;
    use crate::hold::{HoldState, Terms, Want};
    use crate::identity::Caller;
    use crate::key::Key;
    use crate::options::Options;
    use crate::options::Reentry;
    use crate::owner::Owner;
    use crate::quorum::Quorum;
    use crate::watchdog::Finding;

    const TERMS: Terms = Terms {
        lease: Duration::from_secs(30),
        renewed: true,
        max_hold: None,
    };

    /// Makes a session without a server, and the channel of its losses.
    fn session() -> (Arc<Session>, UnboundedReceiver<Lost>) {
        let settings = Options::default().validate(1).expect("valid");
        let engine = Engine::start(1).expect("a thread");
        connect::over(
            engine,
            Alarm::of_process().expect("a thread"),
            Uuid::new_v4(),
            settings,
            Quorum::new(Vec::new(), Duration::ZERO, Duration::ZERO),
        )
    }

    fn hold(session: &Session, owner: Owner) -> Arc<Hold> {
        let hold = Arc::new(Hold::for_test_in(
            Arc::clone(&session.reporter),
            owner,
            TERMS,
            &[0],
            1,
        ));
        session.lines.admit(&hold, None, Instant::now());
        hold
    }

    /// Only a bug of this crate can make it panic.
    #[tokio::test]
    async fn after_a_watchdog_panic_all_tokens_fire_and_no_grant_is_given() {
        let (session, mut losses) = session();
        let owner = Owner::new();
        let hold = hold(&session, owner.clone());
        assert!(hold.take_guard());
        let (tokens, key): (Vec<_>, Key) = ((0..50).map(|_| hold.token()).collect(), "k".into());
        let as_owner = |owner: &Owner| Caller::blocking(Some(owner), Reentry::Task);
        let holder = as_owner(&owner);
        let waiter = as_owner(&Owner::new());
        let want = Want::of_lock(TERMS);
        let waiting = session.wait_in_line(&key, &waiter, &want, None);
        let mut waiting = std::pin::pin!(waiting);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        let (subscriber, events) = SickOfEvents::new();
        tracing::subscriber::with_default(subscriber, || {
            connect::judge(&session, Finding::Panicked("sick".to_owned()));
        });
        assert!(
            events.of("the watchdog panicked"),
            "a subscriber that panics does no harm"
        );
        assert!(
            tokens
                .iter()
                .all(tokio_util::sync::CancellationToken::is_cancelled)
        );
        assert_eq!(
            hold.mark(Instant::now()),
            HoldState::Lost(Loss::RenewalFailed)
        );
        assert_eq!(session.stats().losses.renewal_failed, 1);
        assert!(
            losses
                .try_recv()
                .is_ok_and(|lost| Arc::ptr_eq(&lost.hold, &hold))
        );
        let told = |error: Option<Error>| {
            let Some(error @ Error::WatchdogPanicked { .. }) = error else {
                panic!("{error:?}")
            };
            let text = error.to_string();
            assert!(
                text.contains("sick") && text.contains("close this locker and connect a new one"),
                "{text}"
            );
        };
        told(waiting.await.err());
        for caller in [&holder, &waiter] {
            told(
                session
                    .wait_in_line(&key, caller, &Want::of_lock(TERMS), None)
                    .await
                    .err(),
            );
            told(
                session
                    .try_lock(&"other".into(), caller, Want::of_lock(TERMS))
                    .await
                    .err(),
            );
            told(
                session
                    .wait_in_line(
                        &"other".into(),
                        caller,
                        &Want::of_lock(TERMS),
                        Some(session.now() + Duration::from_secs(1)),
                    )
                    .await
                    .err(),
            );
            told(session.force_unlock(&key).await.err());
        }
        session.engine.stop();
    }

    #[tokio::test]
    async fn a_lost_grant_that_nobody_claimed_leaves_its_line() {
        let (session, losses) = session();
        let taken = hold(&session, Owner::new());
        let untaken = hold(&session, Owner::new());
        assert!(taken.take_guard());
        session
            .engine
            .spawn(judge(Arc::downgrade(&session), losses));
        assert!(taken.lose(Loss::Expired) && untaken.lose(Loss::Expired));
        while session.stats().holds > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(
            (session.stats().losses.expired, session.lines.holds().len()),
            (2, 1)
        );
        assert!(taken.claims().claimed && !untaken.take_guard());
        session.engine.stop();
    }
}
