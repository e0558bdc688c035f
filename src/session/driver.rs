//! The driver of a key's line: the only task of this locker that asks the servers for that key.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::attempt::Attempt;
use super::hand_over::hand_over;
use super::outage::Verdict;
use super::{Grip, Session};
use crate::clock::Instant;
use crate::command::{Kind, Place};
use crate::error::Error;
use crate::foreign::{self, contained, log};
use crate::gate::{Head, LastRound, Next, Waiter};
use crate::key::Key;
use crate::lease;
use crate::notify::Subscription;
use crate::options::LONGEST_LEASE;
use crate::quorum::Order;
use crate::shown::Shown;

/// The pause before an attempt grows with each failed one in a row, up to this many round trips.
const MOST_COLLISIONS: u32 = 8;

/// How long others may be faster at the first node before all nodes are asked: the lock on the first node may be a
/// leftover.
const OUTRUN: Duration = Duration::from_millis(500);

/// Acquires for the head of a key's line until the line is empty. Started by the first caller in line; ends with the
/// line; nobody awaits it.
pub(super) async fn drive(session: Arc<Session>, key: Key, wake: Arc<Notify>) {
    let mut driving = Driving::of(&session, &key);
    let mut subscription = None;
    loop {
        match session.gate.next(&key, Instant::now()) {
            Next::Done => break,
            Next::Lost(id, loss) => driving.answer(id, Error::lost(&key, loss)),
            Next::Release(released, head) => Box::pin(hand_over(released, head)).await,
            // Sends nothing: the release's answer and a loss wake it. The time limit is a safety net.
            Next::Blocked => {
                driving.park(&wake, None, lease::recheck_interval(session.settings.lease)).await;
            }
            Next::Try(head) => driving.try_for(head, &wake, &mut subscription).await,
        }
        if let Err(error) = session.check_open() {
            driving.end(|_| true, &error);
        }
    }
    driving.done = true;
}

/// A driver at work.
struct Driving<'a> {
    session: &'a Arc<Session>,
    key: &'a Key,
    /// How many attempts in a row met others that wanted the lock at the same time and got some nodes, or the first
    /// one.
    collisions: u32,
    /// Since when others have been faster at the first node, while nothing is known about the other nodes.
    outrun: Option<Instant>,
    /// Whether a turn of others ended before it was subscribed: it may have missed a message.
    deaf: bool,
    /// Whether a holder whose lock outlasts every lease has been logged.
    named: bool,
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
                if matches!(self.session.gate.next(self.key, self.session.now()), Next::Done) {
                    return;
                }
            }
        });
    }
}

impl<'a> Driving<'a> {
    const fn of(session: &'a Arc<Session>, key: &'a Key) -> Self {
        Self { session, key, collisions: 0, outrun: None, deaf: false, named: false, done: false }
    }

    async fn try_for(&mut self, head: Head, wake: &Notify, subscription: &mut Option<Subscription>) {
        let (session, key) = (self.session, self.key);
        if subscription.is_none() && self.is_contended() {
            *subscription = Some(self.listen().await);
        }
        if let Some(listening) = subscription.as_ref().filter(|listening| listening.take_passed_on()) {
            return self.wait(wake, listening, self.look()).await;
        }
        let sent = Instant::now();
        let attempt = self.ask(&head, subscription.as_ref(), sent).await;
        match attempt {
            Attempt::Unavailable(_) => session.gate.note_round(key, LastRound::Failed),
            // One node is no majority.
            Attempt::Outrun => {}
            _ => session.gate.note_round(key, LastRound::Answered),
        }
        self.note(&attempt, sent);
        match attempt {
            Attempt::Granted(granted) => granted.into_iter().for_each(|granted| session.deliver(granted, head.id)),
            Attempt::Refused(error) => self.answer(head.id, error),
            Attempt::Held { ttl, .. } => match subscription {
                // A release between the answer and the subscription was not heard: once subscribed, it tries again, and
                // only then waits.
                None => *subscription = Some(self.listen().await),
                Some(listening) if std::mem::take(&mut self.deaf) => {
                    let _: Result<_, _> = timeout(session.settings.command_timeout, listening.ready()).await;
                }
                Some(listening) => {
                    if outlasts_every_lease(ttl) {
                        self.name_lasting().await;
                    }
                    let look = self.look();
                    // The lease has run out once its last millisecond is over. No message comes then.
                    let ttl = ttl.map_or(look, |ttl| ttl + Duration::from_millis(1) + listening.delay());
                    log!(debug, key = %key.shown(), owner = %head.owner, ?ttl, "waiting");
                    self.wait(wake, listening, ttl.min(look)).await;
                    if !listening.is_called() {
                        self.make_way().await;
                    }
                }
            },
            // A caller that tries again at a different moment than the others finds it free.
            Attempt::Split => {
                self.park(wake, None, session.settings.retry_pause(fastrand::f64())).await;
            }
            Attempt::Outrun => {
                // The other may get no further than the first node, and its release there alone wakes nobody.
                let lasts = self.outrun.map_or(Duration::ZERO, |since| Instant::now().since(since));
                let look = lasts.max(session.quorum.round_trip() * MOST_COLLISIONS).mul_f64(0.5 + fastrand::f64());
                // There is always a pause, however near the nodes are: the lock on the first node may be a leftover.
                let look = look.min(OUTRUN.saturating_sub(lasts)).max(Duration::from_millis(1));
                self.park(wake, subscription.as_ref(), look).await;
                self.make_way().await;
            }
            Attempt::Unavailable(_) => {
                let now = Instant::now();
                let pause = session.settings.retry_pause(fastrand::f64());
                let Some(verdict) = session.outage.verdict(now) else {
                    let end = session.outage.ends_in(now).unwrap_or(pause);
                    self.park(wake, None, pause.min(end)).await;
                    return;
                };
                session.outage.announce(now);
                // Callers that came while the round was under way get a round of their own.
                if let Some(next) = self.give_up(|waiter| waiter.since <= sent, now, verdict) {
                    self.park(wake, None, pause.min(next)).await;
                }
            }
        }
    }

    /// Returns whether it is the turn of others, or somebody waited here a moment ago, or others wait. Then the locker
    /// is put into the list at once: otherwise it would never be there as long as it is always the first to ask.
    fn is_contended(&self) -> bool {
        let Session { quorum, channels, gate, .. } = &**self.session;
        channels.has_given_turn(self.key, Instant::now())
            || quorum.lister().is_some() && (channels.is_contended(self.key) || gate.others_wait(self.key))
    }

    async fn listen(&mut self) -> Subscription {
        let listening = self.session.channels.subscribe(self.key);
        let (now, most) = (Instant::now(), self.session.settings.command_timeout);
        // A turn of others that its locker gave them. The lock may be free after it, with a subscription or without.
        let turn = listening.due(now).map(|due| now.until(due));
        let ready = timeout(turn.map_or(most, |turn| turn.min(most)), listening.ready()).await;
        self.deaf = turn.is_some() && ready.is_err();
        listening
    }

    /// Returns whether every release publishes a message. In the plain format, clients of other languages do not.
    fn hears_of_releases(&self) -> bool {
        Kind::from(self.session.settings.format).is_told_of()
    }

    /// Returns how long it waits for a message before it asks again.
    fn look(&self) -> Duration {
        let settings = &self.session.settings;
        let recheck = lease::recheck_interval(settings.lease);
        if self.hears_of_releases() { recheck } else { recheck.min(settings.retry_pause(fastrand::f64())) }
    }

    async fn ask(&self, head: &Head, subscription: Option<&Subscription>, now: Instant) -> Attempt {
        let session = self.session;
        let begun = subscription.map(|listening| listening.begin());
        let listing = match (subscription, session.quorum.lister_of(self.key), begun) {
            (Some(listening), Some(locker), Some(begun)) => listening.listing(locker, begun, head.terms.lease),
            _ => None,
        };
        // The list keeps them apart.
        let order = if listing.is_some() { Order::AllAtOnce } else { self.order(now) };
        let keys = std::slice::from_ref(self.key);
        let attempt = session.attempt(keys, &head.owner, head.origin, head.terms, order, listing).await;
        if let Some(listening) = subscription {
            self.learn(listening, &attempt);
        }
        attempt
    }

    /// Notes what an attempt says about the locker's place in the list.
    fn learn(&self, listening: &Subscription, attempt: &Attempt) {
        match attempt {
            Attempt::Granted(_) => listening.granted(),
            Attempt::Held { place: Some(Place::Behind(place)), ttl, .. } => listening.held(Some(*place), *ttl),
            Attempt::Held { place, ttl, .. } => {
                listening.held(None, *ttl);
                if let Some(Place::Refused(error)) = place {
                    self.session.quorum.unlist(self.key, error);
                }
            }
            _ => {}
        }
    }

    /// Returns the order in which the nodes are asked. If several lockers are woken by one message and ask all nodes at
    /// once, each may get the nodes near it, and then none has a majority. So a locker that has met others asks the
    /// first node alone.
    fn order(&self, now: Instant) -> Order {
        let outrun = self.outrun.is_some_and(|since| now.since(since) >= OUTRUN);
        if self.collisions == 0 || outrun { Order::AllAtOnce } else { Order::FirstAlone }
    }

    /// Notes what an attempt says about others that want the lock too.
    fn note(&mut self, attempt: &Attempt, sent: Instant) {
        self.collisions = match attempt {
            Attempt::Held { contested: true, .. } | Attempt::Split | Attempt::Outrun => {
                (self.collisions + 1).min(MOST_COLLISIONS)
            }
            // The others wait for the same holder.
            Attempt::Held { contested: false, .. } => self.collisions,
            Attempt::Granted(_) | Attempt::Refused(_) | Attempt::Unavailable(_) => 0,
        };
        self.outrun = match attempt {
            Attempt::Outrun => self.outrun.or(Some(sent)),
            _ => None,
        };
    }

    /// Pauses after a wake-up if this locker has met others. All are woken at once: random pauses, as long as the nodes
    /// are far away, keep them apart.
    async fn make_way(&self) {
        if self.collisions > 0 {
            let most = (self.session.quorum.round_trip() * self.collisions).min(OUTRUN);
            sleep(most.mul_f64(fastrand::f64())).await;
        }
    }

    /// Waits for other lockers: for a message, or until `time` is over. Then the lockers before it in the list have not
    /// come.
    async fn wait(&self, wake: &Notify, listening: &Subscription, time: Duration) {
        self.session.engine.waits_for_others();
        if self.park(wake, Some(listening), time).await && self.hears_of_releases() {
            listening.oversleep();
        }
    }

    /// Waits for a message, a local event, or this time. Returns whether all of the time has passed. Ends the callers'
    /// waits if an outage has lasted too long in the meantime.
    async fn park(&self, wake: &Notify, listening: Option<&Subscription>, time: Duration) -> bool {
        let end = Instant::now() + time;
        loop {
            let now = Instant::now();
            let due = listening.and_then(|listening| listening.due(now));
            if due.is_some_and(|due| due <= now) {
                return false;
            }
            let message = async {
                match listening {
                    Some(subscription) => subscription.notified().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                // It may be a reason to ask later.
                () = message => {}
                // No wake-up is lost: only this driver waits, and a wake-up in the meantime leaves a permit. So does a
                // line that ends.
                () = wake.notified() => return false,
                () = sleep(now.until(due.map_or(end, |due| due.min(end)))) => return due.is_none_or(|due| due > end),
                // Callers that are left still have time of their own, so it goes on waiting: otherwise each
                // announcement would cost a round.
                () = self.session.outage.announced() => {
                    let now = Instant::now();
                    if let Some(verdict) = self.session.outage.verdict(now) {
                        self.give_up(|_| true, now, verdict);
                    }
                }
            }
        }
    }

    /// Ends the waits of these callers because an outage has lasted too long, except those that came only just now.
    /// Returns when the time of the next one of those is over, if there are any.
    fn give_up(&self, which: impl Fn(&Waiter<Grip>) -> bool, now: Instant, verdict: Verdict) -> Option<Duration> {
        let Verdict { nodes, lasts } = verdict;
        let error = self.session.quorum.unavailable(nodes, lasts);
        let mut next = None::<Duration>;
        let due = |waiter: &Waiter<Grip>| {
            let left = self.session.outage.patience_left(waiter.since, now);
            let due = left.is_zero() && which(waiter);
            if !due {
                next = Some(next.map_or(left, |next| next.min(left)));
            }
            due
        };
        self.end(due, &error);
        next
    }

    /// Logs a holder whose lock outlasts every lease: it stands until somebody deletes it, or for months.
    async fn name_lasting(&mut self) {
        if self.named {
            return;
        }
        let (holder, left) = match self.session.quorum.inspect(self.key).await {
            Ok(Some(holder)) if outlasts_every_lease(holder.remaining()) => {
                (holder.owner().into_owned(), holder.remaining())
            }
            Err(Error::Server { source, .. }) => (format!("unknown ({source})"), None),
            // It has an ordinary lease by now, or is gone, or no server answers: the next attempt will show.
            Ok(_) | Err(_) => return,
        };
        self.named = true;
        let key = self.key;
        let Some(left) = left else {
            log!(
                warn, key = %key.shown(), holder = %Shown(&holder),
                "the holder of this lock has no lease: waiters wait until its holder, force_unlock or, if that \
                is refused, DEL releases it"
            );
            return;
        };
        log!(
            warn, key = %key.shown(), holder = %Shown(&holder), ?left,
            "this lock lasts longer than any lease: another program set its time, or the server's clock was set \
            back; if its holder is dead, call force_unlock"
        );
    }

    /// Ends one waiter's wait with an error.
    fn answer(&self, id: u64, error: Error) {
        if let Some(waiter) = self.session.gate.leave(self.key, id) {
            foreign::answer(waiter.reply, Err(error));
        }
    }

    /// Ends the waits of all these callers with an error.
    fn end(&self, which: impl FnMut(&Waiter<Grip>) -> bool, error: &Error) {
        for waiter in self.session.gate.drain(self.key, which) {
            foreign::answer(waiter.reply, Err(error.clone()));
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
    use crate::gate::Arrival;
    use crate::hold::Terms;
    use crate::identity::Caller;
    use crate::options::Reentry;
    use crate::owner::Owner;

    #[tokio::test]
    async fn a_list_that_the_server_refused_is_not_asked_for_again() {
        let (session, [key, other]) = (Session::over_nobody(), ["k", "other"].map(Key::from));
        let mut driving = Driving::of(&session, &key);
        driving.done = true;
        let place = Some(Place::Refused("WRONGTYPE Operation against a key holding the wrong kind of value".into()));
        driving.learn(&session.channels.subscribe(&key), &Attempt::Held { ttl: None, contested: false, place });
        assert!(session.quorum.lister_of(&key).is_none() && session.quorum.lister_of(&other).is_some());
        session.engine.stop();
    }

    #[tokio::test]
    async fn the_engine_sleeps_while_a_driver_waits_for_other_lockers() {
        let (session, key) = (Session::over_nobody(), Key::from("k"));
        let mut driving = Driving::of(&session, &key);
        driving.done = true;
        let wake = Notify::new();
        driving.park(&wake, None, Duration::ZERO).await;
        assert!(!session.engine.never_stays_awake(), "another caller of this locker has it");
        driving.wait(&wake, &session.channels.subscribe(&key), Duration::ZERO).await;
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
            let waiter = Waiter { id, owner, origin, terms, since: Instant::now(), reply };
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
