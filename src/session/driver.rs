//! The driver of a key's line: the one waiter of this locker on the wire.

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
use crate::foreign::{self, contained};
use crate::gate::{Head, LastRound, Next, Waiter};
use crate::key::Key;
use crate::lease;
use crate::notify::Subscription;
use crate::quorum::Order;
use crate::shown::Shown;

/// The pause before an attempt grows with each one in a row that came to nothing, up to so many round trips.
const MOST_COLLISIONS: u32 = 8;

/// For how long others may be faster at the first node until all are asked: what stands there may be nobody's lock.
const OUTRUN: Duration = Duration::from_millis(500);

/// Acquires for the head of a key's line until the line is empty: the one waiter of this locker on the wire. Started by
/// whoever stands in line first; ends with the line; nobody awaits it.
pub(super) async fn drive(session: Arc<Session>, key: Key, wake: Arc<Notify>) {
    let mut driving = Driving { session: &session, key: &key, collisions: 0, outrun: None, named: false, done: false };
    let mut subscription = None;
    loop {
        match session.gate.next(&key, Instant::now()) {
            Next::Done => break,
            Next::Lost(id, loss) => driving.answer(id, Error::Lost(loss)),
            Next::Release(released, head) => hand_over(released, head).await,
            // Sends nothing: the release's answer and a loss wake it. The bound is for what nobody thought of.
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
    /// How many attempts in a row met others that wanted it at the same time: some nodes were theirs, or the first one.
    collisions: u32,
    /// Since when others have been faster at the first node, while nothing is known of the others.
    outrun: Option<Instant>,
    /// Whether a holder without a lease has been named.
    named: bool,
    /// Whether its line has come to its end.
    done: bool,
}

impl Drop for Driving<'_> {
    /// A driver that ends before its line does, by a panic or with the engine, would leave it waiting for ever.
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let error =
            self.session.check_open().err().unwrap_or_else(|| self.session.panicked("the panic hook was told why"));
        contained(|| {
            loop {
                self.end(|_| true, &error);
                // Whoever comes between the two has no driver either.
                if matches!(self.session.gate.next(self.key, self.session.now()), Next::Done) {
                    return;
                }
            }
        });
    }
}

impl Driving<'_> {
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
            Attempt::Granted(granted) => {
                let deliver = |deposed, granted| session.deliver(granted, head.id) || deposed;
                let deposed = granted.iter().fold(false, deliver);
                // Until the force_unlock is answered, it would depose the next grant too. If force_unlocks of this key
                // overlap without an end, the next grant may have better luck all the same.
                if deposed && session.gate.may_pause(key) {
                    let pause = session.settings.retry_pause(fastrand::f64());
                    let _: Result<_, _> = timeout(pause, session.forces.answered(key)).await;
                }
            }
            Attempt::Refused(error) => self.answer(head.id, error),
            Attempt::Held { ttl, .. } => match subscription {
                // What was released between the answer and the subscription sends no message any more: behind the
                // barrier it is tried again, and only then waited for.
                None => *subscription = Some(self.listen().await),
                Some(listening) => {
                    if ttl.is_none() {
                        self.name_leaseless().await;
                    }
                    let look = self.look();
                    // The lease has run out once its last millisecond is over. Nobody is told then.
                    let ttl = ttl.map_or(look, |ttl| ttl + Duration::from_millis(1) + listening.delay());
                    contained(|| tracing::debug!(key = %key.shown(), owner = %head.owner, ?ttl, "waiting"));
                    self.wait(wake, listening, ttl.min(look)).await;
                    self.make_way().await;
                }
            },
            // Whoever tries again at another moment than the others finds it free.
            Attempt::Split => {
                self.park(wake, None, session.settings.retry_pause(fastrand::f64())).await;
            }
            Attempt::Outrun => {
                // Whoever is there may get no further, and tells of one node then, which wakes nobody.
                let lasts = self.outrun.map_or(Duration::ZERO, |since| Instant::now().since(since));
                let look = lasts.max(session.quorum.round_trip() * MOST_COLLISIONS).mul_f64(0.5 + fastrand::f64());
                // A pause is one, however near the nodes are: what keeps others out may be nobody's lock.
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
                // Who came while the round was under way has a round of its own to come.
                if let Some(next) = self.give_up(|waiter| waiter.since <= sent, now, verdict) {
                    self.park(wake, None, pause.min(next)).await;
                }
            }
        }
    }

    /// Whether somebody waited here a moment ago, or others wait: then it is put into the list at once. Else it would
    /// never be there while it is always the first to ask.
    fn is_contended(&self) -> bool {
        let Session { quorum, channels, gate, .. } = &**self.session;
        quorum.lister().is_some() && (channels.is_contended(self.key) || gate.others_wait(self.key))
    }

    async fn listen(&self) -> Subscription {
        let listening = self.session.channels.subscribe(self.key);
        let _: Result<_, _> = timeout(self.session.settings.command_timeout, listening.ready()).await;
        listening
    }

    /// Whether everybody who releases tells of it: clients of other languages do not.
    fn hears_of_releases(&self) -> bool {
        Kind::from(self.session.settings.format).is_told_of()
    }

    /// How long it waits for a message.
    fn look(&self) -> Duration {
        let settings = &self.session.settings;
        let recheck = lease::recheck_interval(settings.lease);
        if self.hears_of_releases() { recheck } else { recheck.min(settings.retry_pause(fastrand::f64())) }
    }

    async fn ask(&self, head: &Head, subscription: Option<&Subscription>, now: Instant) -> Attempt {
        let session = self.session;
        let begun = subscription.map(Subscription::begin);
        let listing = match (subscription, session.quorum.lister_of(self.key), begun) {
            (Some(listening), Some(locker), Some(begun)) => listening.listing(locker, begun, head.terms.lease),
            _ => None,
        };
        let (keys, order) = (std::slice::from_ref(self.key), self.order(now));
        let attempt = session.attempt(keys, &head.owner, head.origin, head.terms, order, listing).await;
        if let Some(listening) = subscription {
            self.learn(listening, &attempt);
        }
        attempt
    }

    /// What an attempt tells of the locker's place in the list.
    fn learn(&self, listening: &Subscription, attempt: &Attempt) {
        match attempt {
            Attempt::Granted(_) => listening.granted(),
            Attempt::Held { place: Some(Place::Behind(place)), .. } => listening.held(Some(*place)),
            Attempt::Held { place, .. } => {
                listening.held(None);
                if let Some(Place::Refused(error)) = place {
                    self.session.quorum.unlist(self.key, error);
                }
            }
            _ => {}
        }
    }

    /// In which order the nodes are asked. Several that are woken by one message and ask all at once get some nodes
    /// each, where the nearest node of one is not that of the other, and then nobody has it: whoever has met others
    /// asks the first node alone.
    fn order(&self, now: Instant) -> Order {
        let outrun = self.outrun.is_some_and(|since| now.since(since) >= OUTRUN);
        if self.collisions == 0 || outrun { Order::AllAtOnce } else { Order::FirstAlone }
    }

    /// What an attempt tells of others that want it too.
    fn note(&mut self, attempt: &Attempt, sent: Instant) {
        self.collisions = match attempt {
            Attempt::Held { contested: true, .. } | Attempt::Split | Attempt::Outrun => {
                (self.collisions + 1).min(MOST_COLLISIONS)
            }
            // They are behind somebody who has it.
            Attempt::Held { contested: false, .. } => self.collisions,
            Attempt::Granted(_) | Attempt::Refused(_) | Attempt::Unavailable(_) => 0,
        };
        self.outrun = match attempt {
            Attempt::Outrun => self.outrun.or(Some(sent)),
            _ => None,
        };
    }

    /// Everybody is woken at once. Those who got in each other's way the last time come one after the other, as far
    /// apart as the nodes are.
    async fn make_way(&self) {
        if self.collisions > 0 {
            let most = (self.session.quorum.round_trip() * self.collisions).min(OUTRUN);
            sleep(most.mul_f64(fastrand::f64())).await;
        }
    }

    /// Waits for a message, or this time, behind which nobody before it in the list has come.
    async fn wait(&self, wake: &Notify, listening: &Subscription, time: Duration) {
        if self.park(wake, Some(listening), time).await && self.hears_of_releases() {
            listening.oversleep();
        }
    }

    /// Waits for a message, a local event, or this time; whether all of it has passed. If meanwhile an outage has
    /// lasted too long for all, the line ends.
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
                // It may be a reason to look later.
                () = message => {}
                // No wake-up is lost: this driver is the only one that waits, and a wake-up meanwhile leaves its
                // permit. A line that ends leaves one too.
                () = wake.notified() => return false,
                () = sleep(now.until(due.map_or(end, |due| due.min(end)))) => return due.is_none_or(|due| due > end),
                // Whoever is left has time of its own: to try again at once would be one round for each announcement.
                () = self.session.outage.announced() => {
                    let now = Instant::now();
                    if let Some(verdict) = self.session.outage.verdict(now) {
                        self.give_up(|_| true, now, verdict);
                    }
                }
            }
        }
    }

    /// An outage has lasted for too long: ends the wait of these, but for those who came only just now. When the time
    /// of the next of those is over, if there are any.
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

    /// Names a holder without a lease, whom nobody waits out: its lock stands until somebody deletes it.
    async fn name_leaseless(&mut self) {
        if self.named {
            return;
        }
        let holder = match self.session.quorum.inspect(self.key).await {
            Ok(Some(holder)) if holder.remaining().is_none() => holder.owner().into_owned(),
            Err(Error::Server { source, .. }) => format!("unknown ({source})"),
            // It has a lease by now, or is gone, or nobody answers: the next look tells.
            Ok(_) | Err(_) => return,
        };
        self.named = true;
        let key = self.key;
        contained(|| {
            tracing::warn!(
                key = %key.shown(),
                holder = %Shown(&holder),
                "the holder of this lock has no lease: whoever waits for it waits until it is released, by its holder, \
                 by force_unlock, or, where that refuses, by DEL"
            );
        });
    }

    /// Ends one waiter's wait with an error.
    fn answer(&self, id: u64, error: Error) {
        if let Some(waiter) = self.session.gate.leave(self.key, id) {
            foreign::answer(waiter.reply, Err(error));
        }
    }

    /// Ends the wait of all these with an error.
    fn end(&self, which: impl FnMut(&Waiter<Grip>) -> bool, error: &Error) {
        for waiter in self.session.gate.drain(self.key, which) {
            foreign::answer(waiter.reply, Err(error.clone()));
        }
    }
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
    async fn a_driver_that_ends_before_its_line_does_leaves_nobody_waiting() {
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
            assert!(matches!(answer.await, Ok(Err(Error::Unavailable { .. }))), "told so");
        }
        assert!(session.gate.is_empty(), "the next one starts a driver");
        assert_eq!(session.stats().pending_undos, 1, "what the attempt may have taken");
        session.engine.stop();
    }
}
