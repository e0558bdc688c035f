//! Acquires for the head of a line.

use std::slice;
use std::sync::Arc;

use super::attempt::{self, AcquireRequest, Attempt};
use super::state::{Asking, UnderWay};
use super::{Session, fair, jobs, permits, read_write, waits};
use crate::claim::{Among, How, Listing};
use crate::foreign::log;
use crate::kind::LockRole;
use crate::lease;
use crate::line::{AcquireOutcome, Event};
use crate::lines::Head;
use crate::op::ListPlace;
use crate::quorum::Order;

/// Acquires for the waiter, and passes it the grant or the error.
pub(super) async fn ask(asking: Asking) {
    let Asking {
        under_way,
        head,
        first_alone,
        listing,
        listens,
    } = asking;
    let UnderWay { session, key, .. } = &under_way;
    let order = if first_alone {
        Order::FirstAlone
    } else {
        Order::AllAtOnce
    };
    if head.want.kind.role == LockRole::Permit {
        let answer = permits::ask(session, key).await;
        return under_way.end(Event::Answered(answer));
    }
    if head.want.kind.role == LockRole::InTurn {
        let answer = fair::ask(session, key).await;
        return under_way.end(Event::Answered(answer));
    }
    let request = AcquireRequest {
        key,
        owner: &head.owner,
        origin: head.origin,
        permits: 0,
    };
    let how = how(session, &head, listing);
    let requests = slice::from_ref(&request);
    let attempt = attempt::attempt(session, requests, head.want, order, how).await;
    let answer = match attempt {
        Attempt::Granted(granted) => {
            for granted in granted {
                let hold = Arc::clone(&granted.hold);
                attempt::deliver(session, granted, head.id);
                attempt::let_readers_in(session, &hold);
            }
            AcquireOutcome::Granted
        }
        Attempt::Refused(error) => {
            // The caller leaves first: the line asks next for whoever is its head.
            jobs::refuse(session.lines.leave(key, head.id), &error);
            AcquireOutcome::Refused
        }
        Attempt::Held {
            ttl,
            contested,
            place,
        } => {
            // The first refusal only makes the line listen: it asks once more before it waits.
            if listens {
                log!(debug, key = %key.shown(), owner = %head.owner, ?ttl, "waiting");
            }
            let place = match place {
                Some(ListPlace::Behind(place)) => Some(place),
                Some(ListPlace::Refused(error)) => {
                    session.quorum.unlist(key, &error);
                    None
                }
                Some(ListPlace::InQueue(_)) | None => None,
            };
            AcquireOutcome::Held {
                ttl,
                place,
                contested,
                lasts: lease::outlasts_every(ttl),
            }
        }
        Attempt::Split => AcquireOutcome::Split,
        Attempt::Outrun => AcquireOutcome::Outrun,
        Attempt::Unavailable(_) => AcquireOutcome::Unavailable {
            ends_in: waits::outage_ends_in(session),
        },
    };
    under_way.end(Event::Answered(answer));
}

/// Returns how the acquire for a waiter asks.
fn how(session: &Session, head: &Head, listing: Option<Listing>) -> How {
    if head.want.kind.hands_over() {
        return listing.into();
    }
    How::Among(Among {
        hint: Some(lease::hint_interval(session.settings.lease)),
        // The answer, the subscription, and the next ask.
        comes: session.quorum.answers_within() + session.quorum.round_trip(),
        ..read_write::among(session)
    })
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use super::super::{RawGuard, Session};
    use super::*;
    use crate::clock::Instant;
    use crate::error::Error;
    use crate::foreign::{Span, poll_sickly};
    use crate::hold::{Terms, Want};
    use crate::identity::Caller;
    use crate::key::Key;
    use crate::lines::{Arrival, CallWaiter, LineAnswer, LockRequest};
    use crate::options::Reentry;
    use crate::owner::Owner;

    const TERMS: Terms = Terms {
        lease: Duration::from_secs(30),
        renewed: true,
        max_hold: None,
    };

    type Reply = oneshot::Receiver<Result<LineAnswer<RawGuard>, Error>>;

    /// Has a caller wait, and returns its number and its answer.
    fn arrives(session: &Session, key: &Key, task: u64) -> (u64, Reply) {
        let (reply, answer) = oneshot::channel();
        let Caller { owner, origin, .. } =
            Caller::blocking(Some(&Owner::task(task)), Reentry::Task);
        let id = session.lines.next_id();
        let waiter = CallWaiter {
            id,
            owner,
            since: Instant::now(),
            call: LockRequest {
                origin,
                want: Want::of_lock(TERMS),
                span: Span::default(),
                in_doubt: AtomicBool::default(),
                reply,
            },
        };
        assert!(matches!(
            session.lines.arrive(key, waiter, Instant::now()),
            Arrival::Queued
        ));
        (id, answer)
    }

    #[tokio::test]
    async fn an_ask_that_ends_before_its_outcome_leaves_nobody_waiting() {
        let session = Session::over_nobody();
        let key = Key::from("k");
        let waits = [arrives(&session, &key, 1), arrives(&session, &key, 2)];
        assert_eq!(session.stats().waiters, 2);
        let owner = Owner::task(1);
        let Caller { origin, .. } = Caller::blocking(Some(&owner), Reentry::Task);
        let head = Head {
            id: waits[0].0,
            owner,
            origin,
            want: Want::of_lock(TERMS),
            span: Span::default(),
            in_doubt: false,
        };
        let under_way = UnderWay::new(&session, &key);
        let asking = Asking {
            under_way,
            head,
            first_alone: false,
            listing: None,
            listens: false,
        };
        let mut asking = Box::pin(ask(asking));
        let before = session.stats().pending_undos;
        poll_sickly(asking.as_mut());
        drop(asking);
        for (_, answer) in waits {
            assert!(
                matches!(answer.await, Ok(Err(Error::Unavailable { .. }))),
                "it gets an error"
            );
        }
        assert_eq!(
            session.stats().pending_undos,
            before + 1,
            "what the attempt may have taken"
        );
        session.engine.stop();
    }
}
