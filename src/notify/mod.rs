//! Unlock messages: a channel's message becomes a wake-up of this locker's drivers.
//!
//! A message is a hint. SUBSCRIBE returns before the server has processed it, a connection can fall silent, and
//! messages can be dropped. So a subscription is ready only behind a barrier, all drivers are woken after a reconnect
//! or a lag (behind the barrier too), and a driver checks the lock by itself after a while in any case.
//!
//! On one server, a locker also has a channel of its own, on which it is woken by name if it is in a lock's waiting
//! list. Over several servers, the messages of a majority count. `line/news.rs` has what they mean to a line.
//!
//! # Invariants
//! - One task for each node sends all changes, one batch at a time, so that replies cannot be mixed up.
//! - A channel that is subscribed on a node is in use, or was within [`LINGER`](table::LINGER), a [`SWEEP`] and the
//!   time of two batches, no matter how many other changes there are.
//! - The mutexes of the table and of the lists are never held across an await, while a driver is woken, or while a hook
//!   runs.

mod ear;
mod table;
mod wake;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::Notify;

pub(crate) use self::ear::listen;
use self::table::{Batch, Listener, Name, Table};
use self::wake::WakeChannel;
use crate::clock::Instant;
use crate::command::{Listing, Releaser};
use crate::key::Key;
use crate::lease::NodeIndex;
use crate::line::{AfterPass, Ended, Given, Listed, News, SHORT, WakeUp};
pub(crate) use crate::line::{Begun, Offer, Turns};
use crate::sync::{Arc, Mutex};

/// For how many leases a list is kept after a locker was put in.
const LISTED: u32 = 3;

/// How long channels that have lingered wait to be unsubscribed together with others, if there is no other change.
const SWEEP: Duration = Duration::from_millis(100);

/// Called with the key of a lock.
pub(crate) type Hook = Box<dyn Fn(&Key) + Send + Sync>;

/// Calls back with what is heard of a lock, if its line listens.
pub(crate) type Seat = Box<dyn Fn(&Key, &mut dyn FnMut(&mut News)) + Send + Sync>;

/// The calls to the session.
pub(crate) struct Hooks {
    pub(crate) seat: Seat,
    /// Called for every message, with each lock that it may be about.
    pub(crate) message: Hook,
    /// Called if nobody waits here for a lock in whose list the locker is, or was until just now, or for which it was
    /// called.
    pub(crate) idle: Hook,
}

/// The channels that this locker listens to.
pub(crate) struct Channels {
    table: Mutex<Table>,
    /// One for each node, woken by changes of the table.
    changed: Vec<Notify>,
    /// The locker's own channel, if it may be in lists.
    wake: Option<WakeChannel>,
    /// The lists in which it may be.
    listed: Mutex<Listed>,
    /// The lease that sets how often it checks locks by itself: a list is kept for longer, whatever lease its waiters
    /// want.
    lease: Duration,
    hooks: Hooks,
}

/// A share in a channel's subscription. Dropping it gives the share back.
pub(crate) struct Subscription {
    channels: Arc<Channels>,
    name: Name,
    listener: Arc<Listener>,
    /// Whether the last attempt asked for a place in the list.
    lists: AtomicBool,
    /// Whether the locker was in the list when its line ended, as far as it knows.
    is_listed: bool,
}

impl Channels {
    /// Creates the channels of a locker that may be in lists under this name, and checks locks by itself within this
    /// lease.
    pub(crate) fn new(nodes: usize, locker: Option<&Arc<str>>, lease: Duration, hooks: Hooks) -> Arc<Self> {
        let changed = (0..nodes).map(|_| Notify::new()).collect();
        let wake = locker.map(|locker| WakeChannel::of(locker, nodes));
        Arc::new(Self { table: Mutex::new(Table::new(nodes)), changed, wake, listed: Mutex::default(), lease, hooks })
    }

    /// Listens to the unlock messages of a lock.
    pub(crate) fn subscribe(self: &Arc<Self>, key: &Key) -> Subscription {
        let (name, now) = (Name::clone(key.channel()), Instant::now());
        let mut table = self.table.lock();
        let (listener, asks) = table.subscribe(&name, key);
        let given = table.others.at(&name).and_then(|others| others.given(now));
        let owes_message = table.owes_message(&name);
        drop(table);
        if let Some(given) = given {
            (self.hooks.seat)(key, &mut |news| news.leave_turn(given, owes_message));
        }
        self.listed.lock().begin_wait(key);
        if self.wake.as_ref().is_some_and(WakeChannel::want) || asks {
            self.tell();
        }
        Subscription { channels: Arc::clone(self), name, listener, lists: AtomicBool::new(false), is_listed: false }
    }

    /// Returns whether others have a turn that this locker gave them, and whose outcome is not known, or had it at that
    /// time or later.
    pub(crate) fn has_given_turn(&self, key: &Key, since: Instant) -> bool {
        self.table.lock().others.at(key.channel()).is_some_and(|others| others.given(since).is_some())
    }

    /// Records that the lock was free although others have a turn.
    pub(crate) fn end_left_turn(&self, key: &Key) {
        self.turn_ended(key.channel(), Some(Ended::NotTaken), Instant::now());
    }

    /// Returns whether a caller waited here a moment ago.
    pub(crate) fn is_contended(&self, key: &Key) -> bool {
        self.table.lock().is_confirmed(key.channel())
    }

    /// Called when this locker is about to release a lock, whose message it may hear. Returns whether a driver waits.
    pub(crate) fn begin_release(&self, key: &Key) -> bool {
        let mut table = self.table.lock();
        table.release(key.channel());
        let drivers = table.listeners_of(key.channel(), key);
        drop(table);
        (self.hooks.seat)(key, &mut News::release);
        !drivers.is_empty()
    }

    /// Called when the locker with this name is about to release a lock. Returns what the server has to know of it.
    /// `waits` says whether other callers wait here.
    pub(crate) fn release(&self, locker: &Arc<str>, key: &Key, waits: bool, lease: Duration) -> Releaser {
        let (name, now) = (key.channel(), Instant::now());
        let table = self.table.lock();
        let offers = table.others.at(name).map_or(Some(SHORT), |others| others.offer(now));
        let listens = table.is_confirmed(name);
        drop(table);
        let enlists = self.begin_release(key) && waits && listens && self.is_woken();
        let (locker, lifetime) = (Arc::clone(locker), self.lifetime(lease));
        if enlists {
            self.listed.lock().enter(key, now + lifetime, now);
        }
        Releaser { locker, enlists, listens: listens && !enlists, offers, lifetime }
    }

    /// Records that a release of this locker woke another one, or gave others a turn. Returns what those do with turns.
    pub(crate) fn passed_on(&self, key: &Key, place: Option<u64>, offer: Offer) -> Turns {
        let (name, now) = (key.channel(), Instant::now());
        let mut table = self.table.lock();
        let mut turns = Turns::Left;
        let given = offer.turn.map(|length| Given { since: now, end: now + length, alone: false });
        if offer.others > 0 {
            let of_channel = table.others.change(name, now);
            of_channel.release(now, offer.lockers, offer.others, given);
            turns = of_channel.turns(now);
        }
        let drivers = table.listeners_of(name, key);
        drop(table);
        if let Some(place) = place {
            (self.hooks.seat)(key, &mut |news| news.pass_on(place, given, now));
            if drivers.is_empty() {
                // A pass may have been sent before the release that put the locker in.
                self.listed.lock().enter(key, now, now);
                (self.hooks.idle)(key);
            }
        }
        turns
    }

    /// Records that the message of a release, which found no list, reached so many other clients. If they may have
    /// a turn, this locker leaves it to them.
    pub(crate) fn told(&self, key: &Key, others: u64) -> Turns {
        let (name, now) = (key.channel(), Instant::now());
        let mut table = self.table.lock();
        let listens = table.is_confirmed(name);
        let of_channel = table.others.change(name, now);
        let turn = of_channel.offer(now).map(|length| Given { since: now, end: now + length, alone: true });
        of_channel.release(now, 1, others, turn);
        let turns = of_channel.turns(now);
        drop(table);
        if let Some(given) = turn {
            (self.hooks.seat)(key, &mut |news| news.give_turn(given, listens, now));
        }
        turns
    }

    /// Returns how long a list is kept for a waiter with this lease, so that the list still exists when the locker
    /// checks again.
    fn lifetime(&self, lease: Duration) -> Duration {
        lease.max(self.lease) * LISTED
    }

    /// Called when nobody waits here for a lock. Returns whether the locker has to be taken off its list now: it may be
    /// there, and no pass is under way.
    pub(crate) fn begin_pass(&self, key: &Key) -> bool {
        self.listed.lock().begin_pass(key)
    }

    /// Records that the locker `is_off` the list or may still be in it. Returns whether it has to be taken off once
    /// more, now.
    pub(crate) fn end_pass(&self, key: &Key, is_off: bool) -> bool {
        let after = self.listed.lock().end_pass(key, is_off);
        if after == AfterPass::Ask {
            let drivers = self.table.lock().listeners_of(key.channel(), key);
            drivers.iter().for_each(|listener| self.miss(listener));
        }
        after == AfterPass::Another
    }

    /// Returns whether the locker can be woken by its name.
    fn is_woken(&self) -> bool {
        self.wake.as_ref().is_some_and(WakeChannel::is_confirmed)
    }

    /// Returns whether messages of this lock come to this locker: then it is one of the clients that a release reaches.
    pub(crate) fn hears(&self, key: &Key) -> bool {
        self.table.lock().is_asked_for(key.channel())
    }

    /// Tells every node's task that the table has changed.
    fn tell(&self) {
        self.changed.iter().for_each(Notify::notify_one);
    }

    fn message(&self, node: NodeIndex, name: &str, text: &str) {
        if self.wake.as_ref().is_some_and(|wake| *wake.name == *name) {
            return self.wake_up(text);
        }
        let mut table = self.table.lock();
        let Some(told) = table.message(node, name) else { return };
        let hurries = told.is_empty() && table.hurry(name, Instant::now());
        drop(table);
        if hurries {
            self.tell();
        }
        for listener in told {
            (self.hooks.seat)(&listener.key, &mut |news| news.message(Instant::now()));
            listener.message.notify_one();
        }
        Key::of_channel(name).for_each(|key| (self.hooks.message)(&key));
    }

    /// Handles a message of the locker's own channel. Anybody may send one, so it is only a hint.
    fn wake_up(&self, text: &str) {
        let Some((wake_up, key)) = WakeUp::parse(text) else { return };
        let key = Key::from(key);
        let drivers = self.table.lock().listeners_of(key.channel(), &key);
        for listener in &drivers {
            let now = Instant::now();
            let mut ended = None;
            (self.hooks.seat)(&key, &mut |news| ended = news.wake_up(wake_up, now));
            listener.message.notify_one();
            self.turn_ended(key.channel(), ended, now);
        }
        if drivers.is_empty() {
            (self.hooks.idle)(&key);
        }
    }

    fn turn_ended(&self, name: &Name, ended: Option<Ended>, now: Instant) {
        if let Some(ended) = ended {
            self.table.lock().others.change(name, now).end_turn(now, ended);
        }
    }

    /// Has the driver ask, since it may have missed messages.
    fn miss(&self, listener: &Listener) {
        (self.hooks.seat)(&listener.key, &mut News::missed);
        listener.message.notify_one();
    }

    fn wake_all(&self) {
        let listeners = self.table.lock().listeners();
        listeners.iter().for_each(|listener| self.miss(listener));
    }

    fn confirm(&self, node: usize, batch: &Batch) {
        let listeners = self.table.lock().confirm(node, batch);
        listeners.iter().for_each(|listener| listener.confirmed.notify_one());
    }

    /// Returns what a node has to be asked for now, and how long it is until a channel has to be removed.
    fn batch(&self, node: usize, now: Instant) -> (Batch, Option<Duration>) {
        let mut table = self.table.lock();
        let asks = table.sweep(now);
        let batch = table.batch(node);
        let next = table.next_sweep();
        drop(table);
        if asks {
            self.tell();
        }
        (batch, next.map(|next| now.until(next).max(SWEEP)))
    }
}

impl Subscription {
    /// Waits until a majority of the nodes has confirmed the subscription.
    pub(crate) async fn ready(&self) {
        while !self.channels.table.lock().is_confirmed(&self.name) {
            // No wake-up is lost: a confirmation between the check and this wait leaves a permit.
            self.listener.confirmed.notified().await;
        }
    }

    /// Begins a round. Messages from before it say nothing about its result, and do not end the wait after it.
    pub(crate) fn begin(&self, begun: Begun) {
        self.channels.table.lock().begin(&self.name, &self.listener);
        let _heard: Option<()> = self.listener.message.notified().now_or_never();
        self.channels.turn_ended(&self.name, begun.taken, Instant::now());
    }

    /// Returns what the round, which asks for this lease, tells the server to put the locker into the list, or `None`
    /// while the locker cannot be woken by its name.
    pub(crate) fn listing(&self, locker: &Arc<str>, begun: Begun, lease: Duration) -> Option<Listing> {
        let is_woken = self.channels.is_woken() && self.channels.table.lock().is_confirmed(&self.name);
        self.lists.store(is_woken, Ordering::Relaxed);
        is_woken.then(|| {
            let (lifetime, now) = (self.channels.lifetime(lease), Instant::now());
            self.channels.listed.lock().enter(&self.listener.key, now + lifetime, now);
            Listing { locker: Arc::clone(locker), looked: begun.looked, lifetime }
        })
    }

    /// Records that the lock is granted, and so the locker is no longer in the list.
    pub(crate) fn granted(&self) {
        self.listener.serve();
        // A round that does not mention the list leaves it as it is.
        if self.lists.load(Ordering::Relaxed) {
            self.channels.listed.lock().leave(&self.listener.key);
        }
        let mut ended = None;
        (self.channels.hooks.seat)(&self.listener.key, &mut |news| ended = news.granted());
        self.channels.turn_ended(&self.name, ended, Instant::now());
    }

    /// Records that the driver's line has ended, and whether its locker is in the list as far as it knows.
    pub(crate) fn finish(&mut self, is_listed: bool) {
        self.is_listed = is_listed;
    }

    /// Waits for messages of a majority, a wake-up, or other news. A lock that only one of
    /// several servers has released is not free; timers bound the wait for the others.
    pub(crate) async fn notified(&self) {
        // No wake-up is lost: only this task waits for this listener, and a message while it does not wait leaves a
        // permit.
        self.listener.message.notified().await;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let (key, now) = (&self.listener.key, Instant::now());
        // The list has the locker, or may have it if an answer did not come.
        let is_listed = self.is_listed || self.channels.listed.lock().waits(key);
        let mut table = self.channels.table.lock();
        let first = table.leave(&self.name, &self.listener, now);
        drop(table);
        if first {
            // The tasks may sleep for longer than that, since there was nothing to remove before.
            self.channels.tell();
        }
        if is_listed {
            self.channels.listed.lock().enter(key, now, now);
            (self.channels.hooks.idle)(key);
        }
    }
}

impl std::fmt::Debug for Channels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channels").field("channels", &self.table.lock().len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    /// The channels of a locker that have confirmed its own channel and that of a lock.
    fn channels(key: &Key, locker: &Arc<str>, news: &Arc<Mutex<News>>) -> Arc<Channels> {
        let news = Arc::clone(news);
        let seat: Seat = Box::new(move |_, hear| hear(&mut news.lock()));
        let hooks = Hooks { seat, message: Box::new(|_| ()), idle: Box::new(|_| ()) };
        let channels = Channels::new(1, Some(locker), LEASE, hooks);
        drop(channels.subscribe(key));
        let wake = channels.wake.as_ref().expect("it has a name");
        assert!(wake.ask(0).is_some());
        wake.confirm(0);
        let (batch, _) = channels.batch(0, Instant::now());
        channels.confirm(0, &batch);
        channels
    }

    /// A server may execute the two in either order. The others would pass the lock on among themselves until the
    /// re-check.
    #[test]
    fn a_driver_asks_again_after_a_pass_that_was_under_way_when_it_asked() {
        let (key, locker, now) = (Key::from("k"), "locker".into(), Instant::now());
        for overtaken in [false, true] {
            let news = Arc::default();
            let channels = channels(&key, &locker, &news);
            channels.listed.lock().enter(&key, now + LEASE, now);
            assert!(channels.begin_pass(&key), "its last caller has left");
            let _driver = channels.subscribe(&key);
            if overtaken {
                channels.listed.lock().enter(&key, now + LEASE, now);
            }
            assert_eq!(news.lock().due(now), None);
            assert!(!channels.end_pass(&key, true));
            assert_eq!(news.lock().due(now), overtaken.then_some(now));
        }
    }
}
