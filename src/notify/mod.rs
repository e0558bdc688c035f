//! Unlock messages: a channel's message becomes a wake-up of the waiters that stand for this locker.
//!
//! A message is a hint. SUBSCRIBE returns before the server has processed it, a connection can fall silent, messages
//! can be dropped: so a subscription is ready only behind a barrier, everybody is woken after a reconnect or a lag
//! (behind the barrier too), and a waiter looks for itself in any case after a while.
//!
//! # Invariants
//! - One task a node sends all changes, one batch at a time, so that replies cannot be taken for each other's.
//! - What is subscribed on a node is in use, or was within [`LINGER`](table::LINGER), a [`SWEEP`] and the time of two
//!   batches, however much else is to be changed.
//! - The table's mutex is never held across an await, nor while a waiter is woken.

mod table;

use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::sleep;

use self::table::{Batch, Listener, Name, Table};
use crate::clock::Instant;
use crate::foreign::{self, contained};
use crate::key::Key;
use crate::node::{LinkEvent, Node, Outcome, hear_during};

/// The pause before a batch is tried again that the connection did not take.
const RETRY: Duration = Duration::from_millis(100);

/// How long channels that have lingered wait for others to be unsubscribed with, where nothing else is to be changed.
const SWEEP: Duration = Duration::from_millis(100);

/// Called for every message with the keys of the locks that it may be about.
type Hook = Box<dyn Fn(&Key) + Send + Sync>;

/// The channels that this locker listens to.
pub(crate) struct Channels {
    table: Mutex<Table>,
    /// One a node: woken when there is something new in the table.
    changed: Vec<Notify>,
    hook: Hook,
}

/// A share in a channel's subscription. Dropping it gives the share back.
pub(crate) struct Subscription {
    channels: Arc<Channels>,
    name: Name,
    listener: Arc<Listener>,
}

impl Channels {
    pub(crate) fn new(nodes: usize, hook: Hook) -> Arc<Self> {
        let changed = (0..nodes).map(|_| Notify::new()).collect();
        Arc::new(Self { table: Mutex::new(Table::new(nodes)), changed, hook })
    }

    /// Listens to the unlock messages of a lock.
    pub(crate) fn subscribe(self: &Arc<Self>, key: &Key) -> Subscription {
        let name = Name::from(key.channel());
        let (listener, asks) = self.table().subscribe(&name);
        if asks {
            self.tell();
        }
        Subscription { channels: Arc::clone(self), name, listener }
    }

    /// Whether messages of this lock come to this locker: then it is one of those that a release tells.
    pub(crate) fn hears(&self, key: &Key) -> bool {
        self.table().is_asked_for(&key.channel())
    }

    /// Tells every node's task that there is something new in the table.
    fn tell(&self) {
        self.changed.iter().for_each(Notify::notify_one);
    }

    fn message(&self, node: usize, name: &str) {
        let Some(woken) = self.table().message(node, name) else { return };
        woken.iter().for_each(|listener| listener.message.notify_one());
        Key::of_channel(name).for_each(|key| (self.hook)(&key));
    }

    fn wake_all(&self) {
        let listeners = self.table().listeners();
        listeners.iter().for_each(|listener| listener.message.notify_one());
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
    pub(crate) fn begin(&self) {
        self.channels.table().begin(&self.name, &self.listener);
        let _heard: Option<()> = self.listener.message.notified().now_or_never();
    }

    /// Waits for messages of a majority, or for a reason to look. A lock that one of several servers has released is
    /// not free; timers bound the wait for the others.
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
    }
}

/// Keeps one node's subscriptions as the table has them. Started with the locker; ends when the node's connection is
/// quit, or with the engine.
pub(crate) async fn listen(
    channels: Arc<Channels>,
    index: usize,
    node: Arc<Node>,
    mut events: UnboundedReceiver<LinkEvent>,
) {
    let mut ear = Ear { channels, index, node, wake: false, deaf: false };
    foreign::restarted(async move |again| {
        if again {
            // A batch may be half sent, and its replies would be taken for those of the next.
            ear.node.reset_subscriber().await;
            ear.forget();
        }
        keep_listening(&mut ear, &mut events).await;
    })
    .await;
}

async fn keep_listening(ear: &mut Ear, events: &mut UnboundedReceiver<LinkEvent>) {
    loop {
        let (batch, next) = ear.channels.batch(ear.index, Instant::now());
        if !batch.is_empty() || ear.wake {
            if !ear.send(batch, events).await {
                return;
            }
            continue;
        }
        let swept = async {
            match next {
                Some(next) => sleep(next).await,
                None => pending().await,
            }
        };
        tokio::select! {
            // Events come without an end where many locks are contended: they come last.
            biased;
            // No wake-up is lost: this task is the only one that waits, and a change meanwhile leaves its permit.
            () = ear.channels.changed[ear.index].notified() => {}
            () = swept => {}
            event = events.recv() => match event {
                Some(event) => _ = ear.hear(event),
                None => return,
            },
        }
    }
}

/// One node's subscriptions, as its task sees to them.
struct Ear {
    channels: Arc<Channels>,
    index: usize,
    node: Arc<Node>,
    /// A reason to wake everybody, once a barrier has been passed after it.
    wake: bool,
    /// Whether a subscription was refused, which is said once.
    deaf: bool,
}

impl Ear {
    /// Sends a batch and hears on meanwhile. False once nothing can be heard any more.
    async fn send(&mut self, batch: Batch, events: &mut UnboundedReceiver<LinkEvent>) -> bool {
        let woken = std::mem::take(&mut self.wake);
        let node = Arc::clone(&self.node);
        let names = |names: &[Name]| names.iter().map(ToString::to_string).collect();
        let sending = node.resubscribe(names(&batch.add), names(&batch.remove));
        let mut reconnected = false;
        let Some(outcome) = hear_during(sending, events, |event| reconnected |= self.hear(event)).await else {
            return false;
        };
        match outcome {
            // What was confirmed on a connection that is gone is not subscribed on the new one.
            _ if reconnected => return true,
            Outcome::Done(()) => {}
            Outcome::Refused(error) => {
                if !std::mem::replace(&mut self.deaf, true) {
                    contained(|| {
                        tracing::warn!(
                            %error,
                            "unlock messages cannot be received: waiters look every sixth of a lease"
                        );
                    });
                }
            }
            Outcome::NotExecuted(_) => {
                // The connection may be the same as before, and have what it had.
                self.channels.table().doubt(self.index, batch);
                self.wake = true;
                return self.pause(events).await;
            }
            Outcome::Unknown(_) => {
                self.node.reset_subscriber().await;
                self.forget();
                return self.pause(events).await;
            }
        }
        self.channels.confirm(self.index, &batch);
        if woken {
            self.channels.wake_all();
        }
        true
    }

    /// Hears on for a while before the next batch. False once nothing can be heard any more.
    async fn pause(&mut self, events: &mut UnboundedReceiver<LinkEvent>) -> bool {
        hear_during(sleep(RETRY), events, |event| _ = self.hear(event)).await.is_some()
    }

    /// Takes in what the connection tells. True if it is a new connection.
    fn hear(&mut self, event: LinkEvent) -> bool {
        match event {
            LinkEvent::Message(name) => self.channels.message(self.index, &name),
            LinkEvent::Lagged => self.wake = true,
            LinkEvent::Up => {
                self.forget();
                return true;
            }
        }
        false
    }

    /// Nothing is subscribed, and nobody knows what was missed.
    fn forget(&mut self) {
        self.channels.table().forget(self.index);
        self.wake = true;
    }
}

impl std::fmt::Debug for Channels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channels").field("channels", &self.table().len()).finish()
    }
}
