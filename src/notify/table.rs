//! The channels of a locker as plain data: who listens to which, what each node has, and what is to be changed there.
//!
//! # Invariants
//! - A channel is in the table while it has listeners, and for [`LINGER`] after the last of them. `idle` has exactly
//!   the channels without listeners.
//! - `changes` of a node has every channel that only the node has, or only the table, and none that neither has: it
//!   does not grow while a node is away.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::news::News;
use super::others::Known;
use crate::clock::Instant;
use crate::key::Key;
use crate::lease::majority;

/// How long a channel stays subscribed without listeners: the next waiter is often there at once.
pub(super) const LINGER: Duration = Duration::from_secs(1);

pub(super) type Name = Arc<str>;

#[derive(Debug)]
pub(super) struct Table {
    channels: HashMap<Name, Channel>,
    /// The channels without listeners, by when they lost the last one.
    idle: BTreeSet<(Instant, Name)>,
    nodes: Vec<Ears>,
    pub(super) others: Known,
}

#[derive(Debug, Default)]
struct Channel {
    ears: Vec<Ear>,
    idle_since: Option<Instant>,
}

/// A listener, and the nodes that have sent a message since its round began.
#[derive(Debug)]
struct Ear {
    listener: Arc<Listener>,
    heard: HashSet<usize>,
}

/// The one waiter of a lock's line. Two locks may have one channel, and then each has a listener of its own.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) key: Key,
    pub(super) message: Notify,
    pub(super) confirmed: Notify,
    news: Mutex<News>,
}

impl Listener {
    fn of(key: &Key) -> Arc<Self> {
        let (message, confirmed, news) = (Notify::new(), Notify::new(), Mutex::default());
        Arc::new(Self { key: key.clone(), message, confirmed, news })
    }

    pub(super) fn news(&self) -> MutexGuard<'_, News> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One node's subscriptions.
#[derive(Debug, Default)]
struct Ears {
    /// Those that it has, or has been asked for.
    has: HashMap<Name, Asked>,
    changes: BTreeSet<Name>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Unanswered,
    Confirmed,
}

/// What a node is to be asked for at once.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Batch {
    pub(super) add: Vec<Name>,
    pub(super) remove: Vec<Name>,
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.add.is_empty() && self.remove.is_empty()
    }
}

impl Table {
    pub(super) fn new(nodes: usize) -> Self {
        let nodes = (0..nodes).map(|_| Ears::default()).collect();
        Self { channels: HashMap::new(), idle: BTreeSet::new(), nodes, others: Known::default() }
    }

    /// Adds a listener. Returns whether a node has to be asked for the channel.
    pub(super) fn subscribe(&mut self, name: &Name, key: &Key) -> (Arc<Listener>, bool) {
        let listener = Listener::of(key);
        let channel = self.channels.entry(Arc::clone(name)).or_default();
        channel.ears.push(Ear { listener: Arc::clone(&listener), heard: HashSet::new() });
        if let Some(since) = channel.idle_since.take() {
            self.idle.remove(&(since, Arc::clone(name)));
        }
        let mut asks = false;
        for node in self.nodes.iter_mut().filter(|node| !node.has.contains_key(name)) {
            asks |= node.changes.insert(Arc::clone(name));
        }
        (listener, asks)
    }

    /// Takes a listener away. Returns whether its channel is now the only one without.
    pub(super) fn leave(&mut self, name: &Name, listener: &Arc<Listener>, now: Instant) -> bool {
        let Some(channel) = self.channels.get_mut(name) else { return false };
        channel.ears.retain(|ear| !Arc::ptr_eq(&ear.listener, listener));
        if !channel.ears.is_empty() || channel.idle_since.is_some() {
            return false;
        }
        channel.idle_since = Some(now);
        self.idle.insert((now, Arc::clone(name)));
        self.idle.len() == 1
    }

    /// A listener's round begins: what was heard before says nothing about what it finds.
    pub(super) fn begin(&mut self, name: &Name, listener: &Arc<Listener>) {
        let ears = self.channels.get_mut(name).into_iter().flat_map(|channel| &mut channel.ears);
        ears.filter(|ear| Arc::ptr_eq(&ear.listener, listener)).for_each(|ear| ear.heard.clear());
    }

    /// A node sent a message. Returns the listeners to be woken, or `None` if the channel is not in the table. The
    /// release of a lock sends one on each of a majority; those of the undos of a minority wake nobody.
    pub(super) fn message(&mut self, node: usize, name: &str) -> Option<Vec<Arc<Listener>>> {
        let majority = majority(self.nodes.len());
        let channel = self.channels.get_mut(name)?;
        let mut woken = Vec::new();
        for ear in &mut channel.ears {
            ear.heard.insert(node);
            if ear.heard.len() >= majority {
                ear.heard.clear();
                woken.push(Arc::clone(&ear.listener));
            }
        }
        Some(woken)
    }

    /// The drivers of a lock.
    pub(super) fn listeners_of(&self, name: &str, key: &Key) -> Vec<Arc<Listener>> {
        let listeners = self.channels.get(name).into_iter().flat_map(Channel::listeners);
        listeners.filter(|listener| listener.key == *key).collect()
    }

    /// Whether a node has a channel, or has been asked for it.
    pub(super) fn is_asked_for(&self, name: &str) -> bool {
        self.nodes.iter().any(|node| node.has.contains_key(name))
    }

    /// Whether a majority of the nodes has confirmed a channel.
    pub(super) fn is_confirmed(&self, name: &str) -> bool {
        let confirmed = self.nodes.iter().filter(|node| node.has.get(name) == Some(&Asked::Confirmed));
        confirmed.count() >= majority(self.nodes.len())
    }

    /// All of them, in the order of their channels' names: a simulation under a seed has to wake them as it did before.
    pub(super) fn listeners(&self) -> Vec<Arc<Listener>> {
        let mut channels: Vec<_> = self.channels.iter().collect();
        channels.sort_unstable_by_key(|(name, _)| *name);
        channels.into_iter().flat_map(|(_, channel)| channel.listeners()).collect()
    }

    /// Removes the channels that nobody has listened to for a while. Returns whether a node has one of them.
    pub(super) fn sweep(&mut self, now: Instant) -> bool {
        let mut asks = false;
        while let Some((since, _)) = self.idle.first()
            && now.since(*since) >= LINGER
            && let Some((_, name)) = self.idle.pop_first()
        {
            self.channels.remove(&name);
            for node in &mut self.nodes {
                if node.has.contains_key(&name) {
                    node.changes.insert(Arc::clone(&name));
                    asks = true;
                } else {
                    node.changes.remove(&name);
                }
            }
        }
        asks
    }

    /// When the next channel is to be removed, if nobody listens to it before.
    pub(super) fn next_sweep(&self) -> Option<Instant> {
        self.idle.first().map(|(since, _)| *since + LINGER)
    }

    /// What a node is to be asked for now. It counts as asked from here on.
    pub(super) fn batch(&mut self, node: usize) -> Batch {
        let Ears { has, changes } = &mut self.nodes[node];
        let mut batch = Batch::default();
        for name in std::mem::take(changes) {
            if !self.channels.contains_key(&name) {
                if has.remove(&name).is_some() {
                    batch.remove.push(name);
                }
            } else if has.get(&name) != Some(&Asked::Confirmed) {
                has.insert(Arc::clone(&name), Asked::Unanswered);
                batch.add.push(name);
            }
        }
        batch
    }

    /// A node has done what it was asked for: the listeners that wait for that.
    pub(super) fn confirm(&mut self, node: usize, batch: &Batch) -> Vec<Arc<Listener>> {
        for name in &batch.add {
            self.nodes[node].has.insert(Arc::clone(name), Asked::Confirmed);
        }
        batch.add.iter().filter_map(|name| self.channels.get(name)).flat_map(Channel::listeners).collect()
    }

    /// A node may have done what it was asked for, or not: it is asked once more.
    pub(super) fn doubt(&mut self, node: usize, batch: Batch) {
        let Ears { has, changes } = &mut self.nodes[node];
        for name in batch.add.into_iter().chain(batch.remove) {
            has.insert(Arc::clone(&name), Asked::Unanswered);
            changes.insert(name);
        }
    }

    /// A node is connected anew and has nothing: it is to be asked for all.
    pub(super) fn forget(&mut self, node: usize) {
        let Ears { has, changes } = &mut self.nodes[node];
        has.clear();
        *changes = self.channels.keys().map(Arc::clone).collect();
    }

    pub(super) fn len(&self) -> usize {
        self.channels.len()
    }
}

impl Channel {
    fn listeners(&self) -> impl Iterator<Item = Arc<Listener>> {
        self.ears.iter().map(|ear| Arc::clone(&ear.listener))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn name(text: &str) -> Name {
        text.into()
    }

    /// Everything that is to be changed on a node, confirmed by it at once.
    fn settle(table: &mut Table, node: usize) -> Batch {
        let mut batch = table.batch(node);
        table.confirm(node, &batch);
        batch.add.sort_unstable();
        batch.remove.sort_unstable();
        batch
    }

    fn batch(add: &[&str], remove: &[&str]) -> Batch {
        Batch {
            add: add.iter().map(|text| name(text)).collect(),
            remove: remove.iter().map(|text| name(text)).collect(),
        }
    }

    #[test]
    fn a_channel_lingers_for_a_second_after_its_last_use_and_not_after_an_earlier_one() {
        let (mut table, start, x) = (Table::new(1), Instant::now(), name("x"));
        for use_at in [0, 400, 800] {
            let (listener, asks) = table.subscribe(&x, &"k".into());
            assert_eq!(asks, use_at == 0, "it is there already");
            settle(&mut table, 0);
            table.leave(&x, &listener, start + ms(use_at + 16));
        }
        assert_eq!(table.next_sweep(), Some(start + ms(1_816)));
        for early in [1_016, 1_416, 1_815] {
            assert!(!table.sweep(start + ms(early)), "{early}");
            assert!(table.is_confirmed("x"));
        }
        assert!(table.sweep(start + ms(1_816)));
        assert_eq!(settle(&mut table, 0), batch(&[], &["x"]));
        assert_eq!((table.len(), table.next_sweep()), (0, None));
    }

    #[test]
    fn a_channel_in_use_is_never_removed() {
        let (mut table, start, x) = (Table::new(1), Instant::now(), name("x"));
        let (first, _) = table.subscribe(&x, &"k".into());
        let (second, asks) = table.subscribe(&x, &"k".into());
        assert!(!asks, "one subscription for both");
        table.leave(&x, &first, start);
        assert!(!table.sweep(start + ms(60_000)) && table.len() == 1);
        table.leave(&x, &second, start + ms(60_000));
        // Its listener goes once.
        table.leave(&x, &second, start + ms(60_500));
        let (third, _) = table.subscribe(&x, &"k".into());
        assert!(!table.sweep(start + ms(120_000)) && table.len() == 1);
        table.leave(&x, &third, start + ms(120_000));
        table.sweep(start + ms(121_000));
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn what_is_wanted_again_before_it_is_unsubscribed_stays() {
        let (mut table, start, x) = (Table::new(1), Instant::now(), name("x"));
        let (listener, _) = table.subscribe(&x, &"k".into());
        settle(&mut table, 0);
        table.leave(&x, &listener, start);
        assert!(table.sweep(start + LINGER));
        table.subscribe(&x, &"k".into());
        assert!(table.is_confirmed("x"));
        assert!(table.batch(0).is_empty());
        assert!(table.is_confirmed("x"));
    }

    #[test]
    fn what_is_wanted_again_while_it_is_unsubscribed_is_subscribed_behind_that() {
        let (mut table, start, x) = (Table::new(1), Instant::now(), name("x"));
        let (listener, _) = table.subscribe(&x, &"k".into());
        settle(&mut table, 0);
        table.leave(&x, &listener, start);
        table.sweep(start + LINGER);
        let under_way = table.batch(0);
        assert_eq!(under_way, batch(&[], &["x"]));
        assert!(table.subscribe(&x, &"k".into()).1);
        assert!(!table.is_confirmed("x"));
        table.confirm(0, &under_way);
        assert!(!table.is_confirmed("x"));
        assert_eq!(settle(&mut table, 0), batch(&["x"], &[]));
        assert!(table.is_confirmed("x"));
    }

    #[test]
    fn nothing_grows_while_a_node_is_away() {
        let (mut table, mut now) = (Table::new(3), Instant::now());
        for n in 0..10_000 {
            let x = name(&n.to_string());
            let (listener, _) = table.subscribe(&x, &"k".into());
            settle(&mut table, 0);
            settle(&mut table, 1);
            table.leave(&x, &listener, now);
            now = now + ms(10);
            table.sweep(now);
            let Ears { has, changes } = &table.nodes[2];
            assert!(has.is_empty() && changes.len() <= 100 && table.idle.len() <= 100 && table.len() <= 100);
        }
        table.sweep(now + LINGER);
        assert!(table.batch(2).is_empty());
        assert_eq!(settle(&mut table, 0).remove.len(), settle(&mut table, 1).remove.len());
        assert!(table.nodes.iter().all(|node| node.has.is_empty() && node.changes.is_empty()));
    }

    #[test]
    fn after_a_reconnect_all_that_is_wanted_is_subscribed_and_nothing_else() {
        let (mut table, start) = (Table::new(1), Instant::now());
        for text in ["a", "b", "c"] {
            let (listener, _) = table.subscribe(&name(text), &"k".into());
            if text == "b" {
                table.leave(&name(text), &listener, start);
            }
        }
        settle(&mut table, 0);
        table.sweep(start + LINGER);
        table.forget(0);
        assert!(!table.is_confirmed("a"));
        assert_eq!(settle(&mut table, 0), batch(&["a", "c"], &[]));
        assert!(table.is_confirmed("a") && !table.is_confirmed("b"));
    }

    #[test]
    fn what_a_node_may_have_done_is_asked_for_once_more() {
        let (mut table, start) = (Table::new(1), Instant::now());
        let (old, _) = table.subscribe(&name("old"), &"k".into());
        settle(&mut table, 0);
        table.leave(&name("old"), &old, start);
        table.sweep(start + LINGER);
        table.subscribe(&name("new"), &"k".into());
        let uncertain = table.batch(0);
        assert_eq!(uncertain, batch(&["new"], &["old"]));
        table.doubt(0, uncertain.clone());
        assert!(!table.is_confirmed("new"));
        assert_eq!(settle(&mut table, 0), uncertain);
        assert!(table.is_confirmed("new"));
        assert!(table.batch(0).is_empty());
    }

    #[test]
    fn a_message_is_heard_by_every_listener_of_its_channel() {
        let (mut table, x) = (Table::new(1), name("x"));
        let listeners = [table.subscribe(&x, &"k".into()).0, table.subscribe(&x, &"k".into()).0];
        let woken = table.message(0, "x").expect("known");
        assert!(woken.iter().zip(&listeners).all(|(woken, listener)| Arc::ptr_eq(woken, listener)));
        assert_eq!(woken.len(), 2);
        table.leave(&x, &listeners[0], Instant::now());
        assert_eq!(table.message(0, "x").expect("known").len(), 1);
        table.leave(&x, &listeners[1], Instant::now());
        assert_eq!(table.message(0, "x").expect("it lingers").len(), 0);
        assert!(table.message(0, "y").is_none());
    }

    #[test]
    fn messages_of_a_majority_wake_and_the_round_of_another_listener_forgets_none() {
        let (mut table, x) = (Table::new(3), name("x"));
        let (one, other) = (table.subscribe(&x, &"k".into()).0, table.subscribe(&x, &"k".into()).0);
        let woken_by = |table: &mut Table, node| table.message(node, "x").expect("known").len();
        assert_eq!(woken_by(&mut table, 0), 0);
        assert_eq!(woken_by(&mut table, 0), 0, "the same node again");
        table.begin(&x, &one);
        let woken = table.message(2, "x").expect("known");
        assert!(woken.len() == 1 && Arc::ptr_eq(&woken[0], &other));
        assert_eq!(woken_by(&mut table, 1), 1, "the round of the one began before both");
    }

    #[test]
    fn a_channel_is_confirmed_by_a_majority() {
        let (mut table, x) = (Table::new(3), name("x"));
        let (listener, _) = table.subscribe(&x, &"k".into());
        let first = table.batch(0);
        assert!(Arc::ptr_eq(&table.confirm(0, &first)[0], &listener));
        assert!(!table.is_confirmed("x"));
        settle(&mut table, 2);
        assert!(table.is_confirmed("x"));
        table.forget(0);
        assert!(!table.is_confirmed("x"));
    }
}
