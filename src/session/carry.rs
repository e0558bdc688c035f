//! Carries out what the lines want: asks the servers, hands locks over, tells callers.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::task::yield_now;

use super::fair;
use super::jobs;
use super::outage::OutageReport;
use super::state::{Around, Asking, HandingOver, Task, Unconfirmed, UnderWay};
use super::waits;
use super::{RawGuard, Session};
use crate::clock::Instant;
use crate::engine::Work;
use crate::error::Error;
use crate::foreign::{self, contained, log};
use crate::key::Key;
use crate::lease;
use crate::line::{Effect, Event, Moment};
use crate::lines::{CallWaiter, Head, LineAnswer, Timed, Timers, World};
use crate::random;
use crate::shown::Shown;

impl World for Around {
    type RawGuard = RawGuard;
    type Unconfirmed = Unconfirmed;

    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn moment(&self, key: &Key) -> Moment<'_> {
        let settings = &self.settings;
        let quorum = &self.quorum;
        let has_readers = key.has_readers();
        let has_permits = key.has_permits();
        let is_fair = key.is_fair();
        // Only locks that one owner has have lists, and others that are counted.
        let is_alone = !has_readers && !has_permits && !is_fair;
        let is_told = settings.kind.announced;
        // All waiters listen, and this server, the only one, counts all of them.
        let counts = is_told
            && is_alone
            && matches!(quorum.nodes(), [] | [_])
            && !quorum.nodes().iter().any(|n| n.is_cluster());
        Moment {
            now: self.clock.now(),
            // Drawn here, so that a line stays pure: models replay it.
            chance: fastrand::f64(),
            retry: random::retry_pause(),
            poll: (!is_told).then(|| random::within(&settings.poll_interval)),
            recheck: lease::recheck_interval(settings.lease),
            lease: settings.lease,
            patience: settings.command_timeout,
            majority: quorum.majority(),
            round_trip: quorum.round_trip(),
            counts,
            lister: quorum.lister_of(key).filter(|_| is_alone),
            hint: has_readers.then(|| lease::hint_interval(settings.lease)),
            ends_apart: has_permits || is_fair,
            queues: is_fair,
            sources: self.channels.sources(key),
        }
    }

    fn listen(&self, key: &Key) -> bool {
        self.channels.listen(key)
    }

    fn stop_listening(&self, key: &Key, lingers: bool) {
        self.channels.stop_listening(key, lingers);
    }

    fn begin_release(&self, key: &Key) {
        self.channels.begin_release(key);
    }

    fn left(&self, key: &Key, waiter: &CallWaiter<RawGuard>) {
        if let Some(session) = self.session.upgrade().filter(|_| key.is_fair()) {
            fair::go(&session, key, waiter);
        }
    }

    fn waits_for_others(&self) {
        if let Some(session) = self.session.upgrade() {
            session.engine.waits_for_others();
        }
    }

    fn carry(&self, key: &Key, effect: Effect<Unconfirmed, Head>) -> Option<Event> {
        let session = self.session.upgrade()?;
        let under_way = || UnderWay::new(&session, key);
        match effect {
            Effect::Ask {
                head,
                first_alone,
                listing,
                listens,
            } => {
                let asks = Task::Ask(Asking {
                    under_way: under_way(),
                    head,
                    first_alone,
                    listing,
                    listens,
                });
                // Staying awake for the answer would take the CPU from the lockers that the line
                // waits for.
                if listens {
                    session.runner.submit(asks);
                } else {
                    jobs::ask(&session, asks);
                }
                None
            }
            Effect::Release(released, head) => {
                // It may have been passed to the line before other calls, which have to find the
                // lock released.
                session.runner.submit_first(Task::HandOver(HandingOver {
                    under_way: under_way(),
                    released,
                    head,
                }));
                None
            }
            Effect::Name => {
                let under_way = under_way();
                session.engine.spawn(async move {
                    let named = name_lasting(&under_way.session, &under_way.key).await;
                    under_way.end(Event::Named(named));
                });
                None
            }
            Effect::Lost(id, loss) => {
                jobs::refuse(session.lines.leave(key, id), &Error::lost(key, loss));
                Some(Event::Changed)
            }
            Effect::SendBack(id) => {
                jobs::send_back(session.lines.leave(key, id));
                Some(Event::Changed)
            }
            Effect::GiveUp { came_by } => Some(Event::GaveUp(give_up(&session, key, came_by))),
            Effect::Pass => pass(&session, key),
            // These change the subscription and the timer, under the shard's lock
            // (`Lines::advance`).
            Effect::Listen { .. } | Effect::Hush { .. } | Effect::WakeAt { .. } => None,
        }
    }
}

/// Takes this locker off the list of a lock that no caller waits for here. If that fails, the next
/// locker in the list asks after a moment. Also done while closing, since a locker that is about to
/// end must not be woken.
fn pass(session: &Arc<Session>, key: &Key) -> Option<Event> {
    // A task would be dropped at once, and no event would end the pass.
    if session.engine.has_ended() {
        return Some(Event::Passed(false));
    }
    let owned = Arc::clone(session);
    let key = key.clone();
    let pending = session.engine.track(Work::Operation);
    session.engine.spawn(async move {
        let passing = async {
            if key.has_readers() {
                owned
                    .quorum
                    .withdraw(key.clone(), Arc::clone(&owned.id_text))
                    .await
            } else {
                owned.quorum.pass(key.clone()).await
            }
        };
        let passed = foreign::survive(passing)
            .await
            .unwrap_or_else(|said| Err(owned.panicked(&said)));
        if let Err(error) = &passed {
            let what = if key.has_readers() {
                "the hint that a writer waits could not be deleted"
            } else {
                "the locker could not be taken off the list"
            };
            log!(debug, key = %key.shown(), %error, "{what}");
        }
        owned.lines.step(&key, Event::Passed(passed.is_ok()));
        drop(pending);
    });
    None
}

/// Ends the waits of callers because an outage has lasted too long, except of those that came only
/// just now and, with a time, of those that came after it. Returns when the time of the next one of
/// those is over, if there are any.
fn give_up(session: &Session, key: &Key, came_by: Option<Instant>) -> Option<Duration> {
    let now = Instant::now();
    // If a round has had an answer meanwhile, there is none.
    let OutageReport { nodes, lasts } = session.outage.report(now)?;
    let error = session.quorum.unavailable(nodes, lasts);
    let mut next = None::<Duration>;
    let due = |waiter: &CallWaiter<RawGuard>| {
        let left = session.outage.patience_left(waiter.since, now);
        let due = left.is_zero() && came_by.is_none_or(|by| waiter.since <= by);
        if !due {
            next = Some(next.map_or(left, |next| next.min(left)));
        }
        due
    };
    jobs::refuse(session.lines.drain(key, due), &error);
    next
}

/// Logs a holder whose lock outlasts every lease: it stands until somebody deletes it, or for
/// months. Returns whether it has.
async fn name_lasting(session: &Session, key: &Key) -> bool {
    if key.has_permits() {
        log!(
            warn, key = %key.shown(),
            "this semaphore has no capacity: callers wait until one is set with semaphore.capacity(..), \
            set_capacity or Redisson's trySetPermits"
        );
        return true;
    }
    let (holder, left) = match session.quorum.inspect(key).await {
        Ok(Some(holder)) if lease::outlasts_every(holder.remaining()) => {
            (holder.owner().into_owned(), holder.remaining())
        }
        Err(Error::Server { source, .. }) => (format!("unknown ({source})"), None),
        // It has an ordinary lease by now, or is gone, or no server answers: the next attempt will
        // show.
        Ok(_) | Err(_) => return false,
    };
    let Some(left) = left else {
        log!(
            warn, key = %key.shown(), holder = %Shown(&holder),
            "the holder of this lock has no lease: waiters wait until its holder, force_unlock or, if that \
            is refused, DEL releases it"
        );
        return true;
    };
    log!(
        warn, key = %key.shown(), holder = %Shown(&holder), ?left,
        "the TTL of this lock exceeds every lease: another program set it, or the server's clock was set \
        back; if its holder is dead, call force_unlock"
    );
    true
}

/// Ends the wait of a waiter whose time is over.
fn end_wait(session: &Session, key: &Key, id: u64, deadline: Instant) {
    // Before the waiter leaves: with the last one, the line may forget the round.
    let held = session.lines.is_known_held(key, session.now());
    if let Some(waiter) = session.lines.leave(key, id) {
        // No task asked a server while the lock was left to others: the caller does.
        let answer = if held || session.lines.has_given_turn(key, waiter.since) {
            Ok(LineAnswer::TimeOver)
        } else {
            waits::gave_up(session, waiter.since, deadline).map(|()| LineAnswer::TimeOver)
        };
        foreign::answer(waiter.call.reply, answer);
    }
}

/// Wakes lines, and ends the waits whose time is over. Started with the session; ends with the
/// engine; no task awaits it.
pub(super) async fn keep_time(timers: Arc<Timers>, session: Weak<Session>) {
    loop {
        let due = timers.next().await;
        if let Some(session) = session.upgrade() {
            for (at, number, key, timed) in due {
                // If one panics, the others have their turn all the same.
                contained(|| match timed {
                    Timed::Wait => end_wait(&session, &key, number, at),
                    Timed::Line => session.lines.wake(&key, number),
                });
            }
        }
        // Lets the watchdog renew holds between the ends of very many waits.
        yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_list_that_the_server_refused_is_not_asked_for_again() {
        let (session, [key, other]) = (Session::over_nobody(), ["k", "other"].map(Key::from));
        session.quorum.unlist(
            &key,
            "WRONGTYPE Operation against a key holding the wrong kind of value",
        );
        let around = |key| session.quorum.lister_of(key).is_some();
        assert!(!around(&key) && around(&other));
        session.engine.stop();
    }

    #[tokio::test]
    async fn the_engine_sleeps_while_a_line_waits_for_other_lockers() {
        let session = Session::over_nobody();
        assert!(!session.engine.never_stays_awake());
        session.lines.world().waits_for_others();
        assert!(session.engine.never_stays_awake());
        session.engine.stop();
    }

    #[tokio::test]
    async fn a_message_that_anybody_can_send_has_nothing_passed() {
        let session = Session::over_nobody();
        session
            .lines
            .step(&Key::from("k"), Event::WokenUp(crate::line::WakeUp::Go));
        assert_eq!(
            session.stats().pending,
            0,
            "it never asked to be put into that list"
        );
        session.engine.stop();
    }
}
