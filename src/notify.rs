//! Unlock messages: a channel's message becomes a wake-up of the one waiter that stands for this locker.
//!
//! A message is a hint. SUBSCRIBE returns before the server has processed it, a connection can fall silent, messages can
//! be dropped: so a subscription is ready only behind a barrier, everybody is woken after a reconnect or a lag (behind
//! the barrier too), and a waiter looks for itself in any case after a while.
//!
//! # Invariants
//! - One task a node sends all changes, one batch at a time, so that replies cannot be taken for each other's.
//! - A channel is in the table while it has users, and about a second longer; then it is unsubscribed.
//! - The table's mutex is never held across an await, nor while a waiter is woken.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::sleep;

use crate::clock::Instant;
use crate::foreign::{self, contained};
use crate::key::Key;
use crate::lease::majority;
use crate::node::{LinkEvent, Node, Outcome};

/// How long a channel stays subscribed without users: the next waiter is often there at once.
const LINGER: Duration = Duration::from_secs(1);

/// The pause before a batch is tried again that the connection did not take.
const RETRY: Duration = Duration::from_millis(100);

/// Called for every message with the key of the lock that it is about.
type Hook = Box<dyn Fn(&Key) + Send + Sync>;

/// The channels that this locker listens to.
pub(crate) struct Channels {
    table: Mutex<Table>,
    /// One a node: woken when there is something new in `Table::changes`.
    changed: Vec<Notify>,
    hook: Hook,
}

#[derive(Default)]
struct Table {
    channels: HashMap<String, Channel>,
    /// One a node: the channels whose state in the table has changed.
    changes: Vec<Vec<String>>,
    /// Channels without users, in the order in which they lost them.
    lingering: VecDeque<(Instant, String)>,
}

struct Channel {
    key: Key,
    users: usize,
    /// The nodes that have confirmed the subscription.
    confirmed: HashSet<usize>,
    /// The nodes that have sent a message since the last round began.
    heard: HashSet<usize>,
    listener: Arc<Listener>,
}

#[derive(Default)]
struct Listener {
    message: Notify,
    confirmed: Notify,
}

/// A share in a channel's subscription. Dropping it gives the share back.
pub(crate) struct Subscription {
    channels: Arc<Channels>,
    name: String,
    listener: Arc<Listener>,
}

impl Channels {
    pub(crate) fn new(nodes: usize, hook: Hook) -> Arc<Self> {
        let table = Table { changes: vec![Vec::new(); nodes], ..Table::default() };
        Arc::new(Self { table: Mutex::new(table), changed: (0..nodes).map(|_| Notify::new()).collect(), hook })
    }

    /// Listens to the unlock messages of a lock.
    pub(crate) fn subscribe(self: &Arc<Self>, key: &Key) -> Subscription {
        let name = key.channel();
        let mut table = self.table();
        let channel = table.channels.entry(name.clone()).or_insert_with(|| Channel {
            key: key.clone(),
            users: 0,
            confirmed: HashSet::new(),
            heard: HashSet::new(),
            listener: Arc::default(),
        });
        channel.users += 1;
        let listener = Arc::clone(&channel.listener);
        if channel.users == 1 {
            self.change(table, &name);
        }
        Subscription { channels: Arc::clone(self), name, listener }
    }

    /// Tells every node's task that this channel's state has changed.
    fn change(&self, mut table: MutexGuard<'_, Table>, name: &str) {
        for changes in &mut table.changes {
            changes.push(name.to_owned());
        }
        drop(table);
        self.changed.iter().for_each(Notify::notify_one);
    }

    /// A node sent a message. The release of a lock sends one on each of a majority; those of the undos of a minority
    /// wake nobody.
    fn message(&self, node: usize, name: &str) {
        let mut table = self.table();
        let Some(channel) = table.channels.get_mut(name) else { return };
        channel.heard.insert(node);
        let wake = channel.heard.len() >= self.majority();
        if wake {
            channel.heard.clear();
        }
        let (key, listener) = (channel.key.clone(), Arc::clone(&channel.listener));
        drop(table);
        if wake {
            listener.message.notify_one();
        }
        (self.hook)(&key);
    }

    fn majority(&self) -> usize {
        majority(self.changed.len())
    }

    fn wake_all(&self) {
        let listeners: Vec<_> = self.table().channels.values().map(|c| Arc::clone(&c.listener)).collect();
        listeners.iter().for_each(|listener| listener.message.notify_one());
    }

    fn confirm(&self, node: usize, names: &[String]) {
        let mut listeners = Vec::new();
        let mut table = self.table();
        for name in names {
            if let Some(channel) = table.channels.get_mut(name) {
                channel.confirmed.insert(node);
                listeners.push(Arc::clone(&channel.listener));
            }
        }
        drop(table);
        listeners.iter().for_each(|listener| listener.confirmed.notify_one());
    }

    /// After a reconnect nothing is subscribed: every channel is to be subscribed anew.
    fn forget(&self, node: usize) {
        let mut table = self.table();
        let Table { channels, changes, .. } = &mut *table;
        for channel in channels.values_mut() {
            channel.confirmed.remove(&node);
        }
        changes[node] = channels.keys().cloned().collect();
    }

    /// Removes the channels that nobody has used for a while.
    fn sweep(&self, now: Instant) {
        let mut gone = Vec::new();
        let mut table = self.table();
        while let Some((since, _)) = table.lingering.front()
            && now.since(*since) >= LINGER
        {
            let Some((_, name)) = table.lingering.pop_front() else { break };
            if table.channels.get(&name).is_some_and(|channel| channel.users == 0) {
                table.channels.remove(&name);
                gone.push(name);
            }
        }
        for changes in &mut table.changes {
            changes.extend(gone.iter().cloned());
        }
    }

    /// What has to be subscribed and unsubscribed on a node that has `have`.
    fn diff(&self, node: usize, have: &HashSet<String>) -> (Vec<String>, Vec<String>) {
        let mut table = self.table();
        let mut changes = std::mem::take(&mut table.changes[node]);
        changes.sort_unstable();
        changes.dedup();
        let (wanted, unwanted): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(|name| table.channels.contains_key(name));
        let (add, known) = wanted.into_iter().partition::<Vec<_>, _>(|name| !have.contains(name));
        drop(table);
        self.confirm(node, &known);
        (add, unwanted.into_iter().filter(|name| have.contains(name)).collect())
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscription {
    /// Waits until a majority of the nodes has confirmed the subscription.
    pub(crate) async fn ready(&self) {
        loop {
            let confirmed = self.channels.table().channels.get(&self.name).map_or(0, |c| c.confirmed.len());
            if confirmed >= self.channels.majority() {
                return;
            }
            // No wake-up is lost: a confirmation between the look and this leaves its permit.
            self.listener.confirmed.notified().await;
        }
    }

    /// A round begins: what was heard before says nothing about what it finds.
    pub(crate) fn begin(&self) {
        if let Some(channel) = self.channels.table().channels.get_mut(&self.name) {
            channel.heard.clear();
        }
    }

    /// Waits for messages of a majority, or for a reason to look.
    pub(crate) async fn notified(&self) {
        // No wake-up is lost: there is one waiter a locker and key, and a message while nobody waits leaves its permit.
        self.listener.message.notified().await;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut table = self.channels.table();
        let Some(channel) = table.channels.get_mut(&self.name) else { return };
        channel.users -= 1;
        if channel.users == 0 {
            table.lingering.push_back((Instant::now(), self.name.clone()));
        }
    }
}

/// Keeps one node's subscriptions as the table has them. Started with the locker, and begun again after a panic; ends
/// when the node's connection is quit, or with the engine.
pub(crate) async fn listen(
    channels: Arc<Channels>,
    index: usize,
    node: Arc<Node>,
    mut events: UnboundedReceiver<LinkEvent>,
) {
    let mut ear = Ear { channels, index, node, have: HashSet::new(), wake: false, deaf: false };
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
    let mut swept = Instant::now();
    loop {
        let (add, remove) = ear.channels.diff(ear.index, &ear.have);
        if !add.is_empty() || !remove.is_empty() || ear.wake {
            if !ear.send(add, remove, events).await {
                return;
            }
            continue;
        }
        let linger = LINGER.saturating_sub(Instant::now().since(swept));
        tokio::select! {
            event = events.recv() => match event {
                Some(event) => _ = ear.hear(event),
                None => return,
            },
            // No wake-up is lost: this task is the only one that waits, and a change meanwhile leaves its permit.
            () = ear.channels.changed[ear.index].notified() => {}
            () = sleep(linger) => {
                swept = Instant::now();
                ear.channels.sweep(swept);
            }
        }
    }
}

/// One node's subscriptions, as its task knows them.
struct Ear {
    channels: Arc<Channels>,
    index: usize,
    node: Arc<Node>,
    have: HashSet<String>,
    /// A reason to wake everybody, once a barrier has been passed after it.
    wake: bool,
    /// Whether a subscription was refused, which is said once.
    deaf: bool,
}

impl Ear {
    /// Sends a batch and hears on meanwhile. False once nothing can be heard any more.
    async fn send(&mut self, add: Vec<String>, remove: Vec<String>, events: &mut UnboundedReceiver<LinkEvent>) -> bool {
        let woken = std::mem::take(&mut self.wake);
        let node = Arc::clone(&self.node);
        let batch = node.resubscribe(add.clone(), remove.clone());
        tokio::pin!(batch);
        let mut reconnected = false;
        let outcome = loop {
            tokio::select! {
                outcome = &mut batch => break outcome,
                event = events.recv() => match event {
                    Some(event) => reconnected |= self.hear(event),
                    None => return false,
                },
            }
        };
        match outcome {
            // What was confirmed on a connection that is gone is not subscribed on the new one.
            _ if reconnected => return true,
            Outcome::Done(()) => {}
            Outcome::Refused(error) => {
                if !std::mem::replace(&mut self.deaf, true) {
                    contained(
                        || tracing::warn!(%error, "unlock messages cannot be received: waiters look every sixth of a lease"),
                    );
                }
            }
            Outcome::NotExecuted(_) => return self.try_again().await,
            Outcome::Unknown(_) => {
                self.node.reset_subscriber().await;
                return self.try_again().await;
            }
        }
        self.channels.confirm(self.index, &add);
        self.have.extend(add);
        remove.iter().for_each(|name| _ = self.have.remove(name));
        if woken {
            self.channels.wake_all();
        }
        true
    }

    async fn try_again(&mut self) -> bool {
        self.forget();
        sleep(RETRY).await;
        true
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
        self.have.clear();
        self.channels.forget(self.index);
        self.wake = true;
    }
}

impl std::fmt::Debug for Channels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channels").field("channels", &self.table().channels.len()).finish()
    }
}
