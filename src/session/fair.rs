//! Fair locks: the queue on the server, as the lines of this locker know it.
//!
//! # From a call to the lock
//! 1. A caller that arrives has its line ask. An ask has the tickets of the first [`CALLERS`]
//!    callers of the line. The script puts in those that are missing, keeps the others alive, and
//!    takes the lock for the first caller if it is free and that one is next
//!    (`lua/fair/acquire.lua`).
//! 2. A release calls the one that is next: a locker of this crate by its name, a JVM on the
//!    channel of its ticket (`lua/fair/call.lua`). A line that is called asks.
//! 3. A JVM calls on the channel of the ticket. So while JVMs use a lock, the channels of the first
//!    [`LISTENED`] callers are subscribed. Otherwise no caller has a channel of its own.
//! 4. A caller that goes without the lock leaves the queue, and the script calls the next one. If
//!    an ask is in flight, the two may overtake each other, so it leaves once more behind the
//!    answer.
//! 5. If an ask has no answer, it may come later, and put in tickets again. So those of its callers
//!    that do not wait any more leave as an undo does that may overtake its acquire; also those
//!    that have got the lock by a later ask.
//! 6. A line that finds the lock free and the same other one next, in two polls, passes that one.
//!
//! `tests/model/fair.rs` has all of this.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::attempt::{self, AcquireRequest, Attempt};
use super::{RawGuard, Session, jobs, waits};
use crate::claim::{Claim, How, InTurn};
use crate::error::Error;
use crate::foreign::log;
use crate::key::Key;
use crate::lease;
use crate::line::AcquireOutcome;
use crate::lines::{CallWaiter, Head};
use crate::op::{ListPlace, Queued};
use crate::quorum::Order;
use crate::shown::Shown;
use crate::standing::Doubt;

/// How many callers of a line are in the queue. Those behind them come into it when they are among
/// the first.
const CALLERS: usize = 100;

/// The channels of how many tickets are subscribed, if JVMs use the lock. The next caller's is
/// there before it is the first.
const LISTENED: usize = 2;

/// Asks for the callers at the front of the line, and passes the first one the grant.
pub(super) async fn ask(session: &Arc<Session>, key: &Key) -> AcquireOutcome {
    let answer = ask_in_turn(session, key).await;
    forget_if_idle(session, key);
    answer
}

/// Returns for how long a ticket stands in the queue without another ask: a caller keeps its place
/// in an outage as long as it keeps waiting.
fn stands(session: &Session) -> Duration {
    session.settings.lease + session.settings.outage_tolerance
}

/// Forgets a queue in which no caller waits any more.
fn forget_if_idle(session: &Session, key: &Key) {
    listen(session, key, None);
}

async fn ask_in_turn(session: &Arc<Session>, key: &Key) -> AcquireOutcome {
    let front = session.lines.front(key, CALLERS);
    let Some(head) = front.first() else {
        // All have left meanwhile.
        return AcquireOutcome::Refused;
    };
    let tickets: Arc<[String]> = front
        .iter()
        .map(|head| Claim::ticket(session.id, &head.owner, head.id))
        .collect();
    let request = AcquireRequest {
        key,
        owner: &head.owner,
        origin: head.origin,
        permits: 0,
    };
    let turn = InTurn {
        tickets: Arc::clone(&tickets),
        passed: absent(session, key),
        stands: stands(session),
    };
    let attempt = attempt::attempt(
        session,
        std::slice::from_ref(&request),
        head.want,
        Order::AllAtOnce,
        How::InTurn(turn),
    )
    .await;
    match attempt {
        Attempt::Granted(granted) => {
            if head.in_doubt {
                leave(session, key, &tickets[0], Doubt::MayCome);
            }
            // No refusal follows that would say so.
            if session.queues.is_mixed(key) {
                listen(session, key, Some(&tickets[1..]));
            }
            leave_behind(session, key, &front[1..], &tickets[1..], Doubt::Granted);
            for granted in granted {
                attempt::deliver(session, granted, head.id);
            }
            AcquireOutcome::Granted
        }
        Attempt::Refused(error) => {
            // The caller leaves first: the line asks next for whoever is its head.
            jobs::refuse(session.lines.leave(key, head.id), &error);
            // What the script put in before it was refused stays.
            leave_behind(session, key, &front[1..], &tickets[1..], Doubt::Granted);
            AcquireOutcome::Refused
        }
        Attempt::Held { ttl, place, .. } => {
            leave_behind(session, key, &front, &tickets, Doubt::Granted);
            if let Some(ListPlace::InQueue(queued)) = place {
                return found(session, key, &tickets, ttl, queued);
            }
            AcquireOutcome::Held {
                ttl,
                place: None,
                contested: false,
                lasts: lease::outlasts_every(ttl),
            }
        }
        Attempt::Split | Attempt::Outrun => {
            leave_behind(session, key, &front, &tickets, Doubt::Granted);
            AcquireOutcome::Split
        }
        Attempt::Unavailable(_) => {
            // No caller could arrive meanwhile.
            session.queues.found(key, None, session.now());
            // Before: those that go later find it.
            session.lines.doubt(key, front[front.len() - 1].id);
            leave_behind(session, key, &front, &tickets, Doubt::MayCome);
            AcquireOutcome::Unavailable {
                ends_in: waits::outage_ends_in(session),
            }
        }
    }
}

/// Takes in what an ask that was refused found in the queue.
fn found(
    session: &Session,
    key: &Key,
    tickets: &[String],
    ttl: Option<Duration>,
    queued: Queued,
) -> AcquireOutcome {
    let Queued {
        place,
        next,
        is_mixed,
    } = queued;
    log!(debug, key = %key.shown(), ?ttl, place, "waiting in the queue");
    session.queues.found(key, next.as_deref(), session.now());
    listen(session, key, Some(if is_mixed { tickets } else { &[] }));
    AcquireOutcome::Held {
        // It is somebody else's turn, who is called.
        ttl: ttl.filter(|_| next.is_none()),
        place: None,
        contested: false,
        lasts: next.is_none() && lease::outlasts_every(ttl),
    }
}

/// Listens at the channels of the first of these tickets, and at no others of this lock. At none,
/// if no caller waits any more.
fn listen(session: &Session, key: &Key, tickets: Option<&[String]>) {
    let first = |tickets: &[String]| {
        let tickets = tickets.iter().take(LISTENED);
        tickets.map(|ticket| key.ticket_channel(ticket)).collect()
    };
    let wanted: Option<Vec<_>> = tickets.map(first);
    let is_awaited = || session.lines.is_awaited(key);
    session.queues.listen(
        key,
        wanted.as_deref(),
        is_awaited,
        |channel, listens| match listens {
            true => session.channels.listen_at(channel, key),
            false => session.channels.stop_listening_at(channel, key),
        },
    );
}

/// Returns who is next and does not come, although the lock is free.
fn absent(session: &Session, key: &Key) -> Option<Arc<str>> {
    let patience = lease::recheck_interval(session.settings.lease) * 2;
    let next = session.queues.absent(key, patience, session.now())?;
    log!(
        info, key = %key.shown(), next = %Shown(&next),
        "the next caller for this lock did not claim it in time: skipping it"
    );
    Some(next)
}

/// Has those leave once more that do not wait any more: what they sent when they went may have
/// overtaken the ask, which put their tickets in.
fn leave_behind(session: &Session, key: &Key, asked: &[Head], tickets: &[String], doubt: Doubt) {
    let is_gone = |head: &Head| !session.lines.has_waiter(key, head.id);
    for (_, ticket) in asked.iter().zip(tickets).filter(|(head, _)| is_gone(head)) {
        leave(session, key, ticket, doubt);
    }
}

/// Takes a caller out of the queue that goes without the lock.
pub(super) fn go(session: &Session, key: &Key, waiter: &CallWaiter<RawGuard>) {
    let doubt = match waiter.call.in_doubt.load(Ordering::Relaxed) {
        true => Doubt::MayCome,
        false => Doubt::Granted,
    };
    let ticket = Claim::ticket(session.id, &waiter.owner, waiter.id);
    leave(session, key, &ticket, doubt);
    forget_if_idle(session, key);
}

fn leave(session: &Session, key: &Key, ticket: &str, doubt: Doubt) {
    let claim = Claim::of_ticket(key.clone(), ticket);
    session.book.undo(&claim, doubt, stands(session));
}

impl Session {
    /// # Errors
    /// [`Error::Config`] if this locker cannot have fair locks.
    pub(crate) fn check_fair(&self) -> Result<(), Error> {
        self.check_format("fair", "a fair lock is")?;
        self.check_one_server("fair", "a fair lock is", |_| {
            "each would have a queue of its own, and no place in them is that of a majority"
                .to_owned()
        })
    }
}
