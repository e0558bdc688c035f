//! Unlock messages: a channel's message becomes an event of this locker's lines.
//!
//! A message is a hint. SUBSCRIBE returns before the server has processed it, a connection can fall
//! silent, and messages can be dropped. So a subscription is confirmed only behind a barrier, all
//! lines that listen are told after a reconnect or a lag (behind the barrier too), and a line
//! checks the lock by itself after a sixth of its lease in any case. `line/wake_state.rs` has what
//! messages mean to a line.
//!
//! # From a release to the next attempt
//! On one server, a release wakes one of the waiting lockers, whose line has a place in the lock's
//! list (`quorum/waiting.rs`). Passing the lock on costs two scripts then, however many wait.
//! 1. A line that was refused subscribes to the lock's channel, and with its locker's first wait to
//!    the locker's own channel, `lockhound_wake:<uuid>`, which serves all locks. Once both are
//!    confirmed, it asks with `enlist.lua`. A refusal puts its locker into the list and returns its
//!    place; a grant takes it off.
//! 2. A release (`wake.lua`) finds the first locker of the list that is subscribed. It sends *go*
//!    to that one and *watch* to the next. If the releasing locker has other waiters, the same
//!    script puts it at the end of the list, and its line asks for nothing until it is woken.
//! 3. *Go*: the line asks, since a wake-up is no grant. *Watch*: it asks if it hears nothing for 20
//!    ms. If that is granted, the script drops the lockers before it from the list and has them
//!    ask, so a locker that stands still costs one such wait and not one for each release. If both
//!    stand still, they cost one re-check.
//! 4. A line without waiters has its locker taken off (`pass.lua`), which wakes the next one if the
//!    lock is free; while the locker closes, too.
//! 5. Over several servers, in a cluster, and without a list, a release publishes on the lock's
//!    channel. Over several servers, the messages of a majority are a reason to ask.
//!
//! Consecutive hand-overs within a locker change no list, since the lock is never free; the release
//! that ends them wakes the next. A lock that a `min_hold` keeps wakes no waiter. Only the first
//! send of a release speaks for its locker: a repeated one and an undo may be late, and wake the
//! next without a word about the locker that sends them.
//!
//! # Invariants
//! - One task for each node sends all changes, one batch at a time, so that replies cannot be mixed
//!   up.
//! - A channel that is subscribed on a node is in use, or was within [`LINGER`](table::LINGER), a
//!   [`SWEEP`] and the time of two batches, no matter how many other changes there are.
//! - The table's mutex is never held across an await, or while a hook runs.

mod subscriber;
mod table;
mod wake;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

pub(crate) use self::subscriber::listen;
use self::table::{SubscriptionChanges, Table};
use self::wake::WakeChannel;
use crate::clock::Instant;
use crate::key::{FAIR, Family, Key, READ_WRITE};
use crate::lease::NodeIndex;
use crate::line::{Event, WakeSources, WakeUp};
use crate::sync::{Arc, Mutex};

/// How long channels that have lingered wait to be unsubscribed together with others, if there is
/// no other change.
const SWEEP: Duration = Duration::from_millis(100);

/// What the release of a write publishes behind its message, for clients of Redisson alone: see
/// `lua/write/release.lua`. Nothing was released since that message.
const FOR_REDISSON: &str = "00";

/// What the wake-up of a locker begins with that is next for a fair lock; the lock follows.
const NEXT: &str = "fair ";

/// Called for everything that the line of this lock has to know, if there is one.
type LineHook = Box<dyn Fn(&Key, Event) + Send + Sync>;

/// The calls to the session.
pub(crate) struct Hooks {
    pub(crate) line: LineHook,
    /// Called for every message, with each lock that it may be about.
    pub(crate) message: Box<dyn Fn(&Key) + Send + Sync>,
}

/// The channels that this locker listens to.
pub(crate) struct Channels {
    table: Mutex<Table>,
    /// One for each node, woken by changes of the table.
    changed: Vec<Notify>,
    /// The locker's own channel, if it may be in lists.
    wake: Option<WakeChannel>,
    /// The family of all locks of this locker that are in lists.
    family: &'static Family,
    /// Whether callers have waited for fair locks, whose channels are those of locks.
    has_queues: AtomicBool,
    hooks: Hooks,
}

impl Channels {
    /// Creates the channels of a locker that has locks of this family, and may be in lists under
    /// this name.
    pub(crate) fn new(
        nodes: usize,
        family: &'static Family,
        locker: Option<&Arc<str>>,
        hooks: Hooks,
    ) -> Arc<Self> {
        let changed = (0..nodes).map(|_| Notify::new()).collect();
        let wake = locker.map(|locker| WakeChannel::of(locker, nodes));
        Arc::new(Self {
            table: Mutex::new(Table::new(nodes)),
            changed,
            wake,
            family,
            has_queues: AtomicBool::new(false),
            hooks,
        })
    }

    /// Listens to the unlock messages of a lock, if it does not yet. Returns whether a majority has
    /// confirmed that.
    pub(crate) fn listen(&self, key: &Key) -> bool {
        if key.is_fair() {
            self.has_queues.store(true, Ordering::Relaxed);
        }
        let mut table = self.table.lock();
        let asks = table.listen(key);
        let is_confirmed = table.is_confirmed(key.channel());
        drop(table);
        if self.wake.as_ref().is_some_and(WakeChannel::want) || asks {
            self.tell();
        }
        is_confirmed
    }

    /// Stops listening to a lock, if it does. The channel `lingers` if a caller got the lock: the
    /// next one often comes at once.
    pub(crate) fn stop_listening(&self, key: &Key, lingers: bool) {
        if self.table.lock().leave(key, lingers, Instant::now()) {
            // The tasks may sleep for longer than that, since there was nothing to remove before.
            self.tell();
        }
    }

    /// Listens to one more channel for a lock, if it does not yet.
    pub(crate) fn listen_at(&self, channel: &Arc<str>, key: &Key) {
        if self.table.lock().listen_at(channel, key) {
            self.tell();
        }
    }

    /// Stops listening to such a channel.
    pub(crate) fn stop_listening_at(&self, channel: &Arc<str>, key: &Key) {
        let now = Instant::now();
        if self.table.lock().leave_at(channel, key, false, now) {
            self.tell();
        }
    }

    /// Returns what may be heard of a lock.
    pub(crate) fn sources(&self, key: &Key) -> WakeSources {
        let named = self.wake.as_ref().is_some_and(WakeChannel::is_confirmed);
        let table = self.table.lock();
        let name = key.channel();
        let asked = table.is_asked_for(name);
        let confirmed = table.is_confirmed(name);
        WakeSources {
            asked,
            confirmed,
            owed: table.owes_message(name),
            named,
        }
    }

    /// Called when this locker is about to release a lock, whose message it may hear.
    pub(crate) fn begin_release(&self, key: &Key) {
        self.table.lock().release(key.channel());
    }

    /// Tells every node's task that the table has changed.
    fn tell(&self) {
        self.changed.iter().for_each(Notify::notify_one);
    }

    fn message(&self, node: NodeIndex, name: &str, text: &str) {
        if self.wake.as_ref().is_some_and(|wake| *wake.name == *name) {
            // Any client may send one, so it is only a hint.
            if let Some(key) = text.strip_prefix(NEXT)
                && let Some(key) = Key::of_stored(key, &FAIR)
            {
                (self.hooks.line)(&key, Event::WokenUp(WakeUp::Go));
            } else if let Some((wake_up, key)) = WakeUp::parse(text)
                && let Some(key) = Key::of_stored(key, self.family)
            {
                (self.hooks.line)(&key, Event::WokenUp(wake_up));
            }
            return;
        }
        if text == FOR_REDISSON {
            return;
        }
        let mut table = self.table.lock();
        let Some(told) = table.message(name) else {
            return;
        };
        let hurries = told.is_empty() && table.hurry(name, Instant::now());
        drop(table);
        if hurries {
            self.tell();
        }
        told.iter()
            .for_each(|key| (self.hooks.line)(key, Event::Heard(node)));
        let fair = self.has_queues.load(Ordering::Relaxed).then_some(&FAIR);
        [self.family, &READ_WRITE]
            .into_iter()
            .chain(fair)
            .flat_map(|family| Key::of_channel(name, family))
            .for_each(|key| (self.hooks.message)(&key));
    }

    /// Has all lines that listen ask, since they may have missed messages.
    fn miss_all(&self) {
        let keys = self.table.lock().keys();
        keys.iter()
            .for_each(|key| (self.hooks.line)(key, Event::Missed));
    }

    fn confirm(&self, node: usize, batch: &SubscriptionChanges) {
        let keys = self.table.lock().confirm(node, batch);
        // A line waits for the channel of its lock. What came before another one was not heard.
        let event = |own| {
            if own {
                Event::Subscribed
            } else {
                Event::Missed
            }
        };
        keys.iter()
            .for_each(|(name, key)| (self.hooks.line)(key, event(name == key.channel())));
    }

    /// Returns what a node has to be asked for now, and how long it is until a channel has to be
    /// removed.
    fn batch(&self, node: usize, now: Instant) -> (SubscriptionChanges, Option<Duration>) {
        let mut table = self.table.lock();
        let asks = table.sweep(now);
        let batch = table.batch(node);
        let next = table.next_sweep();
        drop(table);
        // The sweep concerns all nodes, and only the task of this one is awake.
        if asks {
            self.tell();
        }
        // Channels that are due one after the other are unsubscribed together.
        (batch, next.map(|next| now.until(next).max(SWEEP)))
    }
}

impl std::fmt::Debug for Channels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channels")
            .field("channels", &self.table.lock().len())
            .finish()
    }
}
