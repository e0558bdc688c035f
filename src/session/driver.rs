//! The driver of a key's line: the only task of this locker that asks the servers for that key.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::attempt::Attempt;
use super::hand_over::hand_over;
use super::outage::Verdict;
use super::unconfirmed::Unconfirmed;
use super::{Grip, Session};
use crate::clock::Instant;
use crate::command::{Kind, Place};
use crate::error::Error;
use crate::foreign::{self, contained, log};
use crate::gate::{Head, Waiter};
use crate::key::Key;
use crate::lease;
use crate::line::{Answer, Begun, Effect, Event, Moment};
use crate::notify::Subscription;
use crate::options::LONGEST_LEASE;
use crate::quorum::Order;
use crate::shown::Shown;

/// Acquires for the head of a key's line until the line is empty. Started by the first caller in line; ends with the
/// line; nobody awaits it.
pub(super) async fn drive(session: Arc<Session>, key: Key, wake: Arc<Notify>) {
    let mut driving = Driving { session: &session, key: &key, subscription: None, done: false };
    let mut event = Event::Changed;
    while let Some(effect) = driving.step(event) {
        event = match effect {
            Effect::Done { is_listed } => {
                driving.finish(is_listed);
                break;
            }
            Effect::Release(released, head) => {
                Box::pin(hand_over(released, head)).await;
                Event::HandedOver
            }
            Effect::Lost(id, loss) => {
                driving.answer(id, Error::lost(&key, loss));
                Event::Changed
            }
            Effect::Ask { head, first_alone, begun } => Event::Answered(driving.ask(&head, first_alone, begun).await),
            Effect::Listen => Event::Subscribed { deaf: driving.listen().await },
            Effect::Name => Event::Named(driving.name_lasting().await),
            Effect::Sleep { until, hears, others } => driving.sleep(&wake, until, hears, others).await,
            Effect::Pause(until) => {
                sleep(Instant::now().until(until)).await;
                Event::Due
            }
            Effect::GiveUp { came_by } => Event::GaveUp(driving.give_up(came_by)),
        };
        if let Err(error) = session.check_open() {
            driving.end(|_| true, &error);
        }
    }
}

/// A driver at work.
struct Driving<'a> {
    session: &'a Arc<Session>,
    key: &'a Key,
    subscription: Option<Subscription>,
    /// Whether its line has ended.
    done: bool,
}

impl Drop for Driving<'_> {
    /// Ends the line if the driver ends before it, by a panic or with the engine: the callers would wait forever.
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let error =
            self.session.check_open().err().unwrap_or_else(|| self.session.panicked("the panic hook was told why"));
        contained(|| {
            loop {
                self.end(|_| true, &error);
                // A caller that came between the two has no driver either.
                if let Some(Effect::Done { is_listed }) = self.step(Event::Stopped) {
                    return self.finish(is_listed);
                }
            }
        });
    }
}

impl Driving<'_> {
    /// Passes an event to the line, and returns what is to be done now.
    fn step(&self, event: Event) -> Option<Effect<Unconfirmed, Head>> {
        let Session { settings, quorum, gate, .. } = &**self.session;
        let moment = Moment {
            now: self.session.now(),
            chance: fastrand::f64(),
            retry: settings.retry_pause(fastrand::f64()),
            recheck: lease::recheck_interval(settings.lease),
            is_told: Kind::from(settings.format).is_told_of(),
            round_trip: quorum.round_trip(),
            contended: self.subscription.is_none() && self.is_contended(),
            lists: quorum.lister().is_some(),
        };
        gate.step(self.key, event, &moment)
    }

    /// Records that the line has ended.
    fn finish(&mut self, is_listed: bool) {
        self.done = true;
        if let Some(subscription) = &mut self.subscription {
            subscription.finish(is_listed);
        }
    }

    /// Returns whether it is the turn of others, or somebody waited here a moment ago.
    fn is_contended(&self) -> bool {
        let Session { quorum, channels, .. } = &**self.session;
        channels.has_given_turn(self.key, Instant::now())
            || quorum.lister().is_some() && channels.is_contended(self.key)
    }

    /// Subscribes, and waits until that is confirmed. Returns whether a turn of others ended before.
    async fn listen(&mut self) -> bool {
        let most = self.session.settings.command_timeout;
        if let Some(listening) = &self.subscription {
            let _: Result<_, _> = timeout(most, listening.ready()).await;
            return false;
        }
        let listening = self.subscription.insert(self.session.channels.subscribe(self.key));
        let (now, mut due) = (Instant::now(), None);
        self.session.gate.seat(self.key, &mut |news| due = news.due(now));
        // A turn of others that its locker gave them. The lock may be free after it, with a subscription or without.
        let turn = due.map(|due| now.until(due));
        let ready = timeout(turn.map_or(most, |turn| turn.min(most)), listening.ready()).await;
        turn.is_some() && ready.is_err()
    }

    /// Acquires for a waiter, and passes it the grant or the error.
    async fn ask(&self, head: &Head, first_alone: bool, begun: Option<Begun>) -> Answer {
        let session = self.session;
        if let (Some(listening), Some(begun)) = (&self.subscription, begun) {
            listening.begin(begun);
        }
        let listing = match (&self.subscription, session.quorum.lister_of(self.key), begun) {
            (Some(listening), Some(locker), Some(begun)) => listening.listing(locker, begun, head.terms.lease),
            _ => None,
        };
        // The list keeps them apart.
        let order = if first_alone && listing.is_none() { Order::FirstAlone } else { Order::AllAtOnce };
        let keys = std::slice::from_ref(self.key);
        let attempt = session.attempt(keys, &head.owner, head.origin, head.terms, order, listing).await;
        if let Some(listening) = &self.subscription {
            self.learn(listening, &attempt);
        }
        match attempt {
            Attempt::Granted(granted) => {
                granted.into_iter().for_each(|granted| session.deliver(granted, head.id));
                Answer::Granted
            }
            Attempt::Refused(error) => {
                self.answer(head.id, error);
                Answer::Refused
            }
            Attempt::Held { ttl, contested, place } => {
                if self.subscription.is_some() {
                    log!(debug, key = %self.key.shown(), owner = %head.owner, ?ttl, "waiting");
                }
                let place = match place {
                    Some(Place::Behind(place)) => Some(place),
                    _ => None,
                };
                Answer::Held { ttl, place, contested, lasts: outlasts_every_lease(ttl) }
            }
            Attempt::Split => Answer::Split,
            Attempt::Outrun => Answer::Outrun,
            Attempt::Unavailable(_) => {
                let now = Instant::now();
                let is_over = session.outage.verdict(now).is_some();
                if is_over {
                    session.outage.announce(now);
                }
                let end = session.outage.ends_in(now).unwrap_or(Duration::MAX);
                Answer::Unavailable { ends_in: (!is_over).then_some(end) }
            }
        }
    }

    /// Notes what an attempt says about the list as a whole.
    fn learn(&self, listening: &Subscription, attempt: &Attempt) {
        match attempt {
            Attempt::Granted(_) => listening.granted(),
            Attempt::Held { place: Some(Place::Refused(error)), .. } => self.session.quorum.unlist(self.key, error),
            _ => {}
        }
    }

    /// Waits for a message, a local event, an outage that has lasted too long, or this time.
    async fn sleep(&self, wake: &Notify, until: Instant, hears: bool, others: bool) -> Event {
        if others {
            self.session.engine.waits_for_others();
        }
        let message = async {
            match self.subscription.as_ref().filter(|_| hears) {
                Some(subscription) => subscription.notified().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            // It may be a reason to ask later.
            () = message => Event::Due,
            // No wake-up is lost: only this driver waits, and a wake-up in the meantime leaves a permit. So does a line
            // that ends.
            () = wake.notified() => Event::Changed,
            () = sleep(Instant::now().until(until)) => Event::Due,
            () = self.session.outage.announced() => Event::Outage,
        }
    }

    /// Ends the waits of callers because an outage has lasted too long, except of those that came only just now and,
    /// with a time, of those that came after it. Returns when the time of the next one of those is over, if there are
    /// any.
    fn give_up(&self, came_by: Option<Instant>) -> Option<Duration> {
        let (session, now) = (self.session, Instant::now());
        // If a round has had an answer meanwhile, there is none.
        let Verdict { nodes, lasts } = session.outage.verdict(now)?;
        let error = session.quorum.unavailable(nodes, lasts);
        let mut next = None::<Duration>;
        let due = |waiter: &Waiter<Grip>| {
            let left = session.outage.patience_left(waiter.since, now);
            let due = left.is_zero() && came_by.is_none_or(|by| waiter.since <= by);
            if !due {
                next = Some(next.map_or(left, |next| next.min(left)));
            }
            due
        };
        self.end(due, &error);
        next
    }

    /// Logs a holder whose lock outlasts every lease: it stands until somebody deletes it, or for months. Returns
    /// whether it has.
    async fn name_lasting(&self) -> bool {
        let (holder, left) = match self.session.quorum.inspect(self.key).await {
            Ok(Some(holder)) if outlasts_every_lease(holder.remaining()) => {
                (holder.owner().into_owned(), holder.remaining())
            }
            Err(Error::Server { source, .. }) => (format!("unknown ({source})"), None),
            // It has an ordinary lease by now, or is gone, or no server answers: the next attempt will show.
            Ok(_) | Err(_) => return false,
        };
        let key = self.key;
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
            "this lock lasts longer than any lease: another program set its time, or the server's clock was set \
            back; if its holder is dead, call force_unlock"
        );
        true
    }

    /// Ends one waiter's wait with an error.
    fn answer(&self, id: u64, error: Error) {
        if let Some(waiter) = self.session.gate.leave(self.key, id) {
            foreign::answer(waiter.call.reply, Err(error));
        }
    }

    /// Ends the waits of all these callers with an error.
    fn end(&self, which: impl FnMut(&Waiter<Grip>) -> bool, error: &Error) {
        for waiter in self.session.gate.drain(self.key, which) {
            foreign::answer(waiter.call.reply, Err(error.clone()));
        }
    }
}

/// Returns whether a lock with this much of its lease left cannot be waited out.
fn outlasts_every_lease(left: Option<Duration>) -> bool {
    left.is_none_or(|left| left > LONGEST_LEASE)
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::foreign::poll_sickly;
    use crate::gate::{Arrival, Call};
    use crate::hold::Terms;
    use crate::identity::Caller;
    use crate::options::Reentry;
    use crate::owner::Owner;

    #[tokio::test]
    async fn a_list_that_the_server_refused_is_not_asked_for_again() {
        let (session, [key, other]) = (Session::over_nobody(), ["k", "other"].map(Key::from));
        let driving = Driving { session: &session, key: &key, subscription: None, done: true };
        let place = Some(Place::Refused("WRONGTYPE Operation against a key holding the wrong kind of value".into()));
        driving.learn(&session.channels.subscribe(&key), &Attempt::Held { ttl: None, contested: false, place });
        assert!(session.quorum.lister_of(&key).is_none() && session.quorum.lister_of(&other).is_some());
        session.engine.stop();
    }

    #[tokio::test]
    async fn the_engine_sleeps_while_a_driver_waits_for_other_lockers() {
        let (session, key) = (Session::over_nobody(), Key::from("k"));
        let subscription = Some(session.channels.subscribe(&key));
        let driving = Driving { session: &session, key: &key, subscription, done: true };
        let wake = Notify::new();
        driving.sleep(&wake, session.now(), false, false).await;
        assert!(!session.engine.never_stays_awake(), "another caller of this locker has it");
        driving.sleep(&wake, session.now(), true, true).await;
        assert!(session.engine.never_stays_awake());
        session.engine.stop();
    }

    #[tokio::test]
    async fn a_driver_that_ends_before_its_line_leaves_nobody_waiting() {
        let session = Session::over_nobody();
        let key = Key::from("k");
        let terms = Terms { lease: Duration::from_secs(30), renewed: true, max_hold: None };
        let line = |id| {
            let (reply, answer) = oneshot::channel();
            let Caller { owner, origin, .. } = Caller::blocking(Some(&Owner::task(id)), Reentry::Task);
            let waiter = Waiter { id, owner, since: Instant::now(), call: Call { origin, terms, reply } };
            (session.gate.arrive(&key, waiter, Instant::now()), answer)
        };
        let (Arrival::Queued(Some(wake)), first) = line(1) else { panic!("it starts the driver") };
        let (_, second) = line(2);
        let mut driving = Box::pin(drive(Arc::clone(&session), key.clone(), wake));
        poll_sickly(driving.as_mut());
        assert_eq!((session.stats().waiters, session.stats().pending), (2, 0));
        drop(driving);
        for answer in [first, second] {
            assert!(matches!(answer.await, Ok(Err(Error::Unavailable { .. }))), "it gets an error");
        }
        assert!(session.gate.is_empty(), "the next one starts a driver");
        assert_eq!(session.stats().pending_undos, 1, "what the attempt may have taken");
        session.engine.stop();
    }
}
