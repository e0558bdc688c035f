//! Unlock messages: a channel's message becomes a wake-up of the waiters that stand for this locker.
//!
//! A message is a hint. SUBSCRIBE returns before the server has processed it, a connection can fall silent, messages
//! can be dropped: so a subscription is ready only behind a barrier, everybody is woken after a reconnect or a lag
//! (behind the barrier too), and a waiter looks for itself in any case after a while.
//!
//! On a server that stands alone a locker has a channel of its own beside those of its locks: in the list of those that
//! wait for a lock it is woken on it, by name. What a driver makes of what it hears: `news.rs`.
//!
//! # Invariants
//! - One task a node sends all changes, one batch at a time, so that replies cannot be taken for each other's.
//! - What is subscribed on a node is in use, or was within [`LINGER`](table::LINGER), a [`SWEEP`] and the time of two
//!   batches, however much else is to be changed.
//! - The table's mutex is never held across an await, nor while a waiter is woken; that of the lists neither, nor while
//!   the session is told.

mod ear;
mod listed;
mod news;
mod others;
mod table;
mod wake;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::Notify;

pub(crate) use self::ear::listen;
use self::listed::Listed;
pub(crate) use self::news::Begun;
use self::news::WakeUp;
use self::others::Ended;
use self::table::{Batch, Listener, Name, Table};
use self::wake::WakeChannel;
use crate::clock::Instant;
use crate::command::{Listing, Releaser};
use crate::key::Key;

/// For how many leases a list is kept after somebody was put in.
const LISTED: u32 = 3;

/// How long channels that have lingered wait for others to be unsubscribed with, where nothing else is to be changed.
const SWEEP: Duration = Duration::from_millis(100);

/// Called with the key of a lock.
pub(crate) type Hook = Box<dyn Fn(&Key) + Send + Sync>;

/// What the session is told.
pub(crate) struct Hooks {
    /// For every message, with each lock that it may be about.
    pub(crate) message: Hook,
    /// The locker is in the list of this lock, or was until just now, and nobody waits for it here.
    pub(crate) idle: Hook,
}

/// The channels that this locker listens to.
pub(crate) struct Channels {
    table: Mutex<Table>,
    /// One a node: woken when there is something new in the table.
    changed: Vec<Notify>,
    /// Where the locker may be in lists.
    wake: Option<WakeChannel>,
    /// In which lists it may be.
    listed: Mutex<Listed>,
    /// The lease by which it looks for itself: a list is kept for longer, whatever its waiters ask for.
    lease: Duration,
    hooks: Hooks,
}

/// A share in a channel's subscription. Dropping it gives the share back.
pub(crate) struct Subscription {
    channels: Arc<Channels>,
    name: Name,
    listener: Arc<Listener>,
    /// Whether the last question put the locker into the list, or a grant took it off.
    lists: AtomicBool,
}

impl Channels {
    /// Of a locker that may be in lists under this name, and looks for itself within this lease.
    pub(crate) fn new(nodes: usize, locker: Option<&Arc<str>>, lease: Duration, hooks: Hooks) -> Arc<Self> {
        let changed = (0..nodes).map(|_| Notify::new()).collect();
        let wake = locker.map(WakeChannel::of);
        Arc::new(Self { table: Mutex::new(Table::new(nodes)), changed, wake, listed: Mutex::default(), lease, hooks })
    }

    /// Listens to the unlock messages of a lock.
    pub(crate) fn subscribe(self: &Arc<Self>, key: &Key) -> Subscription {
        let name = Name::from(key.channel());
        let mut table = self.table();
        let (listener, asks) = table.subscribe(&name, key);
        if let Some(given) = table.others.at(&name).and_then(|others| others.turn_given(Instant::now())) {
            listener.news().leave_turn(given);
        }
        drop(table);
        if self.wake.as_ref().is_some_and(WakeChannel::want) || asks {
            self.tell();
        }
        Subscription { channels: Arc::clone(self), name, listener, lists: AtomicBool::new(false) }
    }

    /// Whether somebody waited here a moment ago, or others have a turn that this locker gave them.
    pub(crate) fn is_contended(&self, key: &Key) -> bool {
        let (name, table) = (key.channel(), self.table());
        let turn = table.others.at(&name).and_then(|others| others.turn_given(Instant::now()));
        turn.is_some() || table.is_confirmed(&name)
    }

    /// A locker with this name in the list is about to release a lock: what is to be told of it. Others `wait` here, or
    /// do not.
    pub(crate) fn release(&self, locker: &Arc<str>, key: &Key, waits: bool, lease: Duration) -> Releaser {
        let (name, now) = (key.channel(), Instant::now());
        let table = self.table();
        let offers = table.others.at(&name).is_none_or(|others| others.may_have_a_turn(now));
        let listens = table.is_confirmed(&name);
        let drivers = table.listeners_of(&name, key);
        drop(table);
        drivers.iter().for_each(|listener| listener.news().release());
        let enlists = waits && listens && !drivers.is_empty() && self.is_woken();
        let (locker, lifetime) = (Arc::clone(locker), self.lifetime(lease));
        if enlists {
            self.listed().enter(key, now + lifetime, now);
        }
        Releaser { locker, enlists, listens: listens && !enlists, offers, lifetime }
    }

    /// A release of this locker woke another one, or others have a turn.
    pub(crate) fn passed_on(&self, key: &Key, place: Option<u64>, turn: bool) {
        let (name, now) = (key.channel(), Instant::now());
        let mut table = self.table();
        if turn {
            let listed = place.map_or(1, |place| place + 1);
            table.others.change(&Name::from(&*name), now).begin_turn(now, listed);
        }
        let drivers = table.listeners_of(&name, key);
        drop(table);
        let Some(place) = place else { return };
        drivers.iter().for_each(|listener| listener.news().pass_on(place, turn, now));
        if drivers.is_empty() {
            // A pass may have gone before the release that put it in.
            self.listed().enter(key, now, now);
            (self.hooks.idle)(key);
        }
    }

    /// For how long a list is kept for whoever asks for this lease: it is not gone when the locker looks again.
    fn lifetime(&self, lease: Duration) -> Duration {
        lease.max(self.lease) * LISTED
    }

    /// Nobody waits here for a lock. Whether the locker is to be taken off its list now: it may stand there, and that
    /// is not under way.
    pub(crate) fn begin_pass(&self, key: &Key) -> bool {
        self.listed().begin_pass(key)
    }

    /// The locker `is_off` the list, or may still be in it. Whether it is to be taken off once more, now.
    pub(crate) fn end_pass(&self, key: &Key, is_off: bool) -> bool {
        self.listed().end_pass(key, is_off)
    }

    /// Whether the locker can be woken by its name.
    fn is_woken(&self) -> bool {
        self.wake.as_ref().is_some_and(WakeChannel::is_confirmed)
    }

    /// Whether messages of this lock come to this locker: then it is one of those that a release tells.
    pub(crate) fn hears(&self, key: &Key) -> bool {
        self.table().is_asked_for(&key.channel())
    }

    /// Tells every node's task that there is something new in the table.
    fn tell(&self) {
        self.changed.iter().for_each(Notify::notify_one);
    }

    fn message(&self, node: usize, name: &str, text: &str) {
        if self.wake.as_ref().is_some_and(|wake| *wake.name == *name) {
            return self.wake_up(text);
        }
        let Some(woken) = self.table().message(node, name) else { return };
        let now = Instant::now();
        for listener in woken {
            listener.news().message(now);
            listener.message.notify_one();
        }
        Key::of_channel(name).for_each(|key| (self.hooks.message)(&key));
    }

    /// A message of the locker's own channel. Anybody may send one, and it is a hint.
    fn wake_up(&self, text: &str) {
        let Some((wake_up, key)) = WakeUp::parse(text) else { return };
        let (key, now) = (Key::from(key), Instant::now());
        let drivers = self.table().listeners_of(&key.channel(), &key);
        for listener in &drivers {
            listener.news().wake_up(wake_up, now);
            listener.message.notify_one();
        }
        if drivers.is_empty() {
            (self.hooks.idle)(&key);
        }
    }

    fn wake_all(&self) {
        let listeners = self.table().listeners();
        for listener in listeners {
            listener.news().missed();
            listener.message.notify_one();
        }
    }

    fn confirm(&self, node: usize, batch: &Batch) {
        let listeners = self.table().confirm(node, batch);
        listeners.iter().for_each(|listener| listener.confirmed.notify_one());
    }

    /// What a node is to be asked for now, and how long it is until something is to be removed.
    fn batch(&self, node: usize, now: Instant) -> (Batch, Option<Duration>) {
        let mut table = self.table();
        let asks = table.sweep(now);
        let batch = table.batch(node);
        let next = table.next_sweep();
        drop(table);
        if asks {
            self.tell();
        }
        (batch, next.map(|next| now.until(next).max(SWEEP)))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listed(&self) -> MutexGuard<'_, Listed> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscription {
    /// Waits until a majority of the nodes has confirmed the subscription.
    pub(crate) async fn ready(&self) {
        while !self.channels.table().is_confirmed(&self.name) {
            // No wake-up is lost: a confirmation between the look and this leaves its permit.
            self.listener.confirmed.notified().await;
        }
    }

    /// A round begins: what was heard before says nothing about what it finds, and wakes nobody after it.
    pub(crate) fn begin(&self) -> Begun {
        self.channels.table().begin(&self.name, &self.listener);
        let _heard: Option<()> = self.listener.message.notified().now_or_never();
        let begun = self.listener.news().begin(Instant::now());
        if begun.taken {
            self.turn_ended(Some(Ended::Taken));
        }
        begun
    }

    /// What the round, which asks for this lease, is to say of its locker, to be put into the list; `None` while it
    /// could not be woken there.
    pub(crate) fn listing(&self, locker: &Arc<str>, begun: Begun, lease: Duration) -> Option<Listing> {
        let is_woken = self.channels.is_woken() && self.channels.table().is_confirmed(&self.name);
        self.lists.store(is_woken, Ordering::Relaxed);
        is_woken.then(|| {
            let (lifetime, now) = (self.channels.lifetime(lease), Instant::now());
            self.channels.listed().enter(&self.listener.key, now + lifetime, now);
            Listing { locker: Arc::clone(locker), looked: begun.looked, lifetime }
        })
    }

    /// The lock is granted; the locker is not in the list any more.
    pub(crate) fn granted(&self) {
        // A round that says nothing of the list leaves it as it is.
        if self.lists.load(Ordering::Relaxed) {
            self.channels.listed().leave(&self.listener.key);
        }
        let ended = self.listener.news().granted();
        self.turn_ended(ended);
    }

    /// Another holds it, and this is the locker's place in the list, if it is there.
    pub(crate) fn held(&self, place: Option<u64>) {
        let ended = self.listener.news().held(place);
        self.turn_ended(ended);
    }

    fn turn_ended(&self, ended: Option<Ended>) {
        if let Some(ended) = ended {
            let now = Instant::now();
            self.channels.table().others.change(&self.name, now).end_turn(now, ended);
        }
    }

    /// Whether there is nothing to be asked for: a release of this locker has woken another one just now.
    pub(crate) fn take_passed_on(&self) -> bool {
        self.listener.news().take_passed_on()
    }

    /// Nothing was heard for as long as the driver waits for a message: those before it in the list do not come.
    pub(crate) fn oversleep(&self) {
        self.listener.news().oversleep(Instant::now());
    }

    /// When there is a reason to look, if there is one.
    pub(crate) fn due(&self, now: Instant) -> Option<Instant> {
        self.listener.news().due(now)
    }

    /// How much later this locker looks than the first in the list, where nobody is told.
    pub(crate) fn delay(&self) -> Duration {
        self.listener.news().delay()
    }

    /// Waits for messages of a majority, a wake-up, or a reason to look: [`due`](Self::due) tells when that is. A lock
    /// that one of several servers has released is not free; timers bound the wait for the others.
    pub(crate) async fn notified(&self) {
        // No wake-up is lost: nobody else waits for this listener, and a message while nobody waits leaves its permit.
        self.listener.message.notified().await;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let first = self.channels.table().leave(&self.name, &self.listener, Instant::now());
        if first {
            // The tasks wait for longer, where nothing was to be removed.
            self.channels.tell();
        }
        // The list still has its locker, or may: an answer did not come.
        let (key, is_listed) = (&self.listener.key, self.listener.news().is_listed());
        let mut listed = self.channels.listed();
        if is_listed || listed.contains(key) {
            let now = Instant::now();
            listed.enter(key, now, now);
            drop(listed);
            (self.channels.hooks.idle)(key);
        }
    }
}

impl std::fmt::Debug for Channels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channels").field("channels", &self.table().len()).finish()
    }
}
