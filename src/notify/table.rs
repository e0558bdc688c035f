//! The channels of a locker as plain data: the locks that are listened to at each, the
//! subscriptions of each node, and pending changes.
//!
//! # Invariants
//! - A channel is in the table while it has listeners, and for [`LINGER`] after the last of them if
//!   that got the lock. `idle` has exactly the channels without listeners. A listener is a lock
//!   whose line listens.
//! - `changes` of a node has every channel that only the node or only the table has, and none that
//!   neither has: it does not grow while a node is away.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use crate::clock::Instant;
use crate::key::Key;
use crate::lease::majority;
use crate::sync::Arc;

/// How long a channel stays subscribed without listeners, since the next waiter often comes at
/// once.
pub(super) const LINGER: Duration = Duration::from_secs(1);

pub(super) type Name = Arc<str>;

#[derive(Debug)]
pub(super) struct Table {
    channels: HashMap<Name, Channel>,
    /// The channels without listeners, by when they lost the last one.
    idle: BTreeSet<(Instant, Name)>,
    nodes: Vec<NodeSubscriptions>,
}

#[derive(Debug, Default)]
struct Channel {
    /// Two locks may share a channel.
    listeners: Vec<Key>,
    idle_since: Option<Instant>,
    last: LastMessage,
}

/// Where the last message of a channel came from, since this locker last released its lock there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum LastMessage {
    /// It has not released the lock, or the message of that release may be missed.
    #[default]
    Unknown,
    /// None has come.
    None,
    /// It may be the message of that release.
    Own,
    Another,
}

impl LastMessage {
    fn next(self) -> Self {
        match self {
            Self::Unknown => Self::Unknown,
            Self::None => Self::Own,
            Self::Own | Self::Another => Self::Another,
        }
    }
}

/// One node's subscriptions.
#[derive(Debug, Default)]
struct NodeSubscriptions {
    /// The channels that it has, or has been asked for.
    has: HashMap<Name, SubscriptionState>,
    changes: BTreeSet<Name>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SubscriptionState {
    Unanswered,
    Confirmed,
}

/// The changes for which a node is asked at once.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct SubscriptionChanges {
    pub(super) add: Vec<Name>,
    pub(super) remove: Vec<Name>,
}

impl SubscriptionChanges {
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        self.add.len() + self.remove.len()
    }

    /// Returns each change as a batch of its own.
    pub(super) fn singles(self) -> impl Iterator<Item = Self> {
        let add = |name| Self {
            add: vec![name],
            remove: Vec::new(),
        };
        let remove = |name| Self {
            add: Vec::new(),
            remove: vec![name],
        };
        let removed = self.remove.into_iter().map(remove);
        self.add.into_iter().map(add).chain(removed)
    }
}

impl Table {
    pub(super) fn new(nodes: usize) -> Self {
        let nodes = (0..nodes).map(|_| NodeSubscriptions::default()).collect();
        Self {
            channels: HashMap::new(),
            idle: BTreeSet::new(),
            nodes,
        }
    }

    /// Adds a listener. Returns whether a node has to be asked for its channel.
    pub(super) fn listen(&mut self, key: &Key) -> bool {
        self.listen_at(key.channel(), key)
    }

    /// Adds a listener at this channel. Returns whether a node has to be asked for it.
    pub(super) fn listen_at(&mut self, name: &Name, key: &Key) -> bool {
        let channel = self.channels.entry(Arc::clone(name)).or_default();
        if !channel.listeners.contains(key) {
            channel.listeners.push(key.clone());
        }
        if let Some(since) = channel.idle_since.take() {
            self.idle.remove(&(since, Arc::clone(name)));
        }
        let mut asks = false;
        for node in self
            .nodes
            .iter_mut()
            .filter(|node| !node.has.contains_key(name))
        {
            asks |= node.changes.insert(Arc::clone(name));
        }
        asks
    }

    /// Removes a listener. Returns whether its channel is now the first to be removed, of those
    /// without listeners.
    pub(super) fn leave(&mut self, key: &Key, lingers: bool, now: Instant) -> bool {
        self.leave_at(key.channel(), key, lingers, now)
    }

    /// Removes a listener at this channel.
    pub(super) fn leave_at(&mut self, name: &Name, key: &Key, lingers: bool, now: Instant) -> bool {
        let Some(channel) = self.channels.get_mut(name) else {
            return false;
        };
        channel.listeners.retain(|listener| listener != key);
        if !channel.listeners.is_empty() || channel.idle_since.is_some() {
            return false;
        }
        // Who gives up does not come at once, and others take a subscriber for somebody who waits.
        let since = if lingers { now } else { now.before(LINGER) };
        channel.idle_since = Some(since);
        self.idle.insert((since, Arc::clone(name)));
        self.idle.first().is_some_and(|(_, first)| first == name)
    }

    /// Records a message. Returns the listeners, or `None` if the channel is not in the table.
    pub(super) fn message(&mut self, name: &str) -> Option<Vec<Key>> {
        let channel = self.channels.get_mut(name)?;
        channel.last = channel.last.next();
        Some(channel.listeners.clone())
    }

    /// Called after a message. A channel without listeners no longer lingers if that is another
    /// locker's: whoever releases a lock leaves it to its subscribers for a moment. Returns whether
    /// there is one to be removed.
    pub(super) fn hurry(&mut self, name: &str, now: Instant) -> bool {
        let Some((name, _)) = self.channels.get_key_value(name) else {
            return false;
        };
        let name = Arc::clone(name);
        let Some(channel) = self.channels.get_mut(&name) else {
            return false;
        };
        let Some(since) = channel
            .idle_since
            .filter(|_| channel.last == LastMessage::Another)
        else {
            return false;
        };
        self.idle.remove(&(since, Arc::clone(&name)));
        let since = now.before(LINGER);
        channel.idle_since = Some(since);
        self.idle.insert((since, name))
    }

    /// Records that this locker sends a release, whose message arrives if the channel is confirmed.
    pub(super) fn release(&mut self, name: &str) {
        let is_confirmed = self.is_confirmed(name);
        if let Some(channel) = self.channels.get_mut(name) {
            channel.last = if is_confirmed {
                LastMessage::None
            } else {
                LastMessage::Unknown
            };
        }
    }

    /// Returns whether the message of the last release may be yet to come.
    pub(super) fn owes_message(&self, name: &str) -> bool {
        self.channels
            .get(name)
            .is_some_and(|channel| channel.last == LastMessage::None)
    }

    /// Returns whether a node has a channel, or has been asked for it.
    pub(super) fn is_asked_for(&self, name: &str) -> bool {
        self.nodes.iter().any(|node| node.has.contains_key(name))
    }

    /// Returns whether a majority of the nodes has confirmed a channel.
    pub(super) fn is_confirmed(&self, name: &str) -> bool {
        let confirmed = self
            .nodes
            .iter()
            .filter(|node| node.has.get(name) == Some(&SubscriptionState::Confirmed));
        confirmed.count() >= majority(self.nodes.len())
    }

    /// Returns all listeners in the order of their channels' names.
    pub(super) fn keys(&self) -> Vec<Key> {
        let mut channels: Vec<_> = self.channels.iter().collect();
        // A simulation has to tell them in the same order each time.
        channels.sort_unstable_by_key(|(name, _)| *name);
        channels
            .into_iter()
            .flat_map(|(_, channel)| channel.listeners.clone())
            .collect()
    }

    /// Removes the channels that have had no listeners for a while. Returns whether a node has one
    /// of them.
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

    /// Returns when the next channel has to be removed, if it gets no listener before.
    pub(super) fn next_sweep(&self) -> Option<Instant> {
        self.idle.first().map(|(since, _)| *since + LINGER)
    }

    /// Returns what a node has to be asked for now. From here on it counts as asked.
    pub(super) fn batch(&mut self, node: usize) -> SubscriptionChanges {
        let NodeSubscriptions { has, changes } = &mut self.nodes[node];
        let mut batch = SubscriptionChanges::default();
        for name in std::mem::take(changes) {
            if !self.channels.contains_key(&name) {
                if has.remove(&name).is_some() {
                    batch.remove.push(name);
                }
            } else if has.get(&name) != Some(&SubscriptionState::Confirmed) {
                has.insert(Arc::clone(&name), SubscriptionState::Unanswered);
                batch.add.push(name);
            }
        }
        batch
    }

    /// Records that a node has confirmed a batch. Returns the listeners that wait for that, each
    /// with its channel.
    pub(super) fn confirm(&mut self, node: usize, batch: &SubscriptionChanges) -> Vec<(Name, Key)> {
        for name in &batch.add {
            self.nodes[node]
                .has
                .insert(Arc::clone(name), SubscriptionState::Confirmed);
        }
        let channels = batch.add.iter().filter_map(|name| {
            let channel = self.channels.get(name)?;
            Some((name, channel))
        });
        let listeners = |(name, channel): (&Name, &Channel)| {
            let name = Arc::clone(name);
            let pair = move |key: &Key| (Arc::clone(&name), key.clone());
            channel.listeners.iter().map(pair).collect::<Vec<_>>()
        };
        channels.flat_map(listeners).collect()
    }

    /// Records that a node may or may not have executed a batch, so that it is asked once more.
    pub(super) fn doubt(&mut self, node: usize, batch: SubscriptionChanges) {
        let NodeSubscriptions { has, changes } = &mut self.nodes[node];
        for name in batch.add.into_iter().chain(batch.remove) {
            has.insert(Arc::clone(&name), SubscriptionState::Unanswered);
            changes.insert(name);
        }
    }

    /// Records that a node was reconnected and has no subscriptions, so that it is asked for all
    /// channels.
    pub(super) fn forget(&mut self, node: usize) {
        let NodeSubscriptions { has, changes } = &mut self.nodes[node];
        has.clear();
        *changes = self.channels.keys().map(Arc::clone).collect();
    }

    pub(super) fn len(&self) -> usize {
        self.channels.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn key(text: &str) -> Key {
        text.into()
    }

    fn name(text: &str) -> Name {
        Name::clone(key(text).channel())
    }

    /// Removes a listener to which the lock was granted.
    fn served(table: &mut Table, key: &Key, now: Instant) {
        table.leave(key, true, now);
    }

    /// Takes all changes of a node, and confirms them at once.
    fn settle(table: &mut Table, node: usize) -> SubscriptionChanges {
        let mut batch = table.batch(node);
        table.confirm(node, &batch);
        batch.add.sort_unstable();
        batch.remove.sort_unstable();
        batch
    }

    fn batch(add: &[&str], remove: &[&str]) -> SubscriptionChanges {
        SubscriptionChanges {
            add: add.iter().map(|text| name(text)).collect(),
            remove: remove.iter().map(|text| name(text)).collect(),
        }
    }

    /// The locker whose release it was would wait for a client to take the lock, and none would.
    #[test]
    fn a_channel_without_listeners_goes_at_another_lockers_message() {
        let mut table = Table::new(1);
        let start = Instant::now();
        let x = key("x");
        table.listen(&x);
        settle(&mut table, 0);
        table.message(x.channel());
        assert!(!table.hurry(&name("x"), start), "it has a listener");
        served(&mut table, &x, start);
        table.release(&name("x"));
        table.message(x.channel());
        assert!(
            !table.hurry(&name("x"), start) && !table.sweep(start),
            "it was its own"
        );
        table.message(x.channel());
        assert!(table.hurry(&name("x"), start) && table.sweep(start));
        assert_eq!(settle(&mut table, 0), batch(&[], &["x"]));
    }

    #[test]
    fn a_channel_lingers_for_a_second_after_its_last_use() {
        let mut table = Table::new(1);
        let start = Instant::now();
        let x = key("x");
        for use_at in [0, 400, 800] {
            let asks = table.listen(&x);
            assert_eq!(asks, use_at == 0, "it is there already");
            settle(&mut table, 0);
            served(&mut table, &x, start + ms(use_at + 16));
        }
        assert_eq!(table.next_sweep(), Some(start + ms(1_816)));
        for early in [1_016, 1_416, 1_815] {
            assert!(!table.sweep(start + ms(early)), "{early}");
            assert!(table.is_confirmed(&name("x")));
        }
        assert!(table.sweep(start + ms(1_816)));
        assert_eq!(settle(&mut table, 0), batch(&[], &["x"]));
        assert_eq!((table.len(), table.next_sweep()), (0, None));
    }

    #[test]
    fn a_channel_whose_last_caller_gave_up_does_not_linger() {
        let mut table = Table::new(1);
        let start = Instant::now();
        let x = key("x");
        table.listen(&key("y"));
        served(&mut table, &key("y"), start);
        table.listen(&x);
        settle(&mut table, 0);
        assert!(
            table.leave(&x, false, start),
            "it comes before the other one"
        );
        assert!(table.sweep(start) && table.len() == 1);
        assert_eq!(settle(&mut table, 0), batch(&[], &["x"]));
    }

    /// `x` and `{x}` share one.
    #[test]
    fn a_channel_in_use_is_never_removed() {
        let (mut table, start, x, other) = (Table::new(1), Instant::now(), key("x"), key("{x}"));
        assert!(table.listen(&other));
        assert!(
            !table.listen(&x) && !table.listen(&x),
            "one subscription for both"
        );
        served(&mut table, &x, start);
        assert!(!table.sweep(start + ms(60_000)) && table.len() == 1);
        served(&mut table, &other, start + ms(60_000));
        // A listener that leaves twice counts once.
        served(&mut table, &other, start + ms(60_500));
        table.listen(&x);
        assert!(!table.sweep(start + ms(120_000)) && table.len() == 1);
        served(&mut table, &x, start + ms(120_000));
        table.sweep(start + ms(121_000));
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn a_channel_that_is_used_again_before_it_is_unsubscribed_stays() {
        let mut table = Table::new(1);
        let start = Instant::now();
        let x = key("x");
        table.listen(&x);
        settle(&mut table, 0);
        served(&mut table, &x, start);
        assert!(table.sweep(start + LINGER));
        table.listen(&x);
        assert!(table.is_confirmed(&name("x")));
        assert!(table.batch(0).is_empty());
        assert!(table.is_confirmed(&name("x")));
    }

    #[test]
    fn a_channel_used_while_it_is_unsubscribed_is_subscribed_after() {
        let mut table = Table::new(1);
        let start = Instant::now();
        let x = key("x");
        table.listen(&x);
        settle(&mut table, 0);
        served(&mut table, &x, start);
        table.sweep(start + LINGER);
        let under_way = table.batch(0);
        assert_eq!(under_way, batch(&[], &["x"]));
        assert!(table.listen(&x));
        assert!(!table.is_confirmed(&name("x")));
        table.confirm(0, &under_way);
        assert!(!table.is_confirmed(&name("x")));
        assert_eq!(settle(&mut table, 0), batch(&["x"], &[]));
        assert!(table.is_confirmed(&name("x")));
    }

    #[test]
    fn nothing_grows_while_a_node_is_away() {
        let mut table = Table::new(3);
        let mut now = Instant::now();
        for n in 0..10_000 {
            let x = key(&n.to_string());
            table.listen(&x);
            settle(&mut table, 0);
            settle(&mut table, 1);
            served(&mut table, &x, now);
            now = now + ms(10);
            table.sweep(now);
            let NodeSubscriptions { has, changes } = &table.nodes[2];
            assert!(
                has.is_empty()
                    && changes.len() <= 100
                    && table.idle.len() <= 100
                    && table.len() <= 100
            );
        }
        table.sweep(now + LINGER);
        assert!(table.batch(2).is_empty());
        assert_eq!(
            settle(&mut table, 0).remove.len(),
            settle(&mut table, 1).remove.len()
        );
        assert!(
            table
                .nodes
                .iter()
                .all(|node| node.has.is_empty() && node.changes.is_empty())
        );
    }

    #[test]
    fn after_a_reconnect_exactly_the_used_channels_are_subscribed() {
        let mut table = Table::new(1);
        let start = Instant::now();
        for text in ["a", "b", "c"] {
            table.listen(&key(text));
            if text == "b" {
                served(&mut table, &key(text), start);
            }
        }
        settle(&mut table, 0);
        table.sweep(start + LINGER);
        table.forget(0);
        assert!(!table.is_confirmed(&name("a")));
        assert_eq!(settle(&mut table, 0), batch(&["a", "c"], &[]));
        assert!(table.is_confirmed(&name("a")) && !table.is_confirmed(&name("b")));
    }

    #[test]
    fn an_uncertain_batch_is_sent_once_more() {
        let mut table = Table::new(1);
        let start = Instant::now();
        table.listen(&key("old"));
        settle(&mut table, 0);
        served(&mut table, &key("old"), start);
        table.sweep(start + LINGER);
        table.listen(&key("new"));
        let uncertain = table.batch(0);
        assert_eq!(uncertain, batch(&["new"], &["old"]));
        table.doubt(0, uncertain.clone());
        assert!(!table.is_confirmed(&name("new")));
        assert_eq!(settle(&mut table, 0), uncertain);
        assert!(table.is_confirmed(&name("new")));
        assert!(table.batch(0).is_empty());
    }

    #[test]
    fn a_message_is_heard_by_every_listener_of_its_channel() {
        let (mut table, x, other) = (Table::new(1), key("x"), key("{x}"));
        table.listen(&x);
        table.listen(&other);
        assert_eq!(
            table.message(x.channel()),
            Some(vec![x.clone(), other.clone()])
        );
        served(&mut table, &x, Instant::now());
        assert_eq!(table.message(x.channel()), Some(vec![other.clone()]));
        served(&mut table, &other, Instant::now());
        assert_eq!(table.message(x.channel()), Some(Vec::new()), "it lingers");
        assert_eq!(table.message("y"), None);
    }

    /// As the tickets of a fair lock have.
    #[test]
    fn a_lock_may_have_more_channels_than_its_own() {
        let (mut table, x, start) = (Table::new(1), key("x"), Instant::now());
        table.listen(&x);
        assert!(table.listen_at(&"other".into(), &x) && !table.listen_at(&"other".into(), &x));
        let batch = table.batch(0);
        assert_eq!(
            table.confirm(0, &batch),
            [("other".into(), x.clone()), (name("x"), x.clone())]
        );
        assert_eq!(table.message("other"), Some(vec![x.clone()]));
        assert!(table.leave_at(&"other".into(), &x, false, start));
        assert!(table.sweep(start) && table.message("other").is_none());
        assert_eq!(table.message(x.channel()), Some(vec![x]));
    }

    #[test]
    fn a_channel_is_confirmed_by_a_majority() {
        let mut table = Table::new(3);
        let x = key("x");
        table.listen(&x);
        let first = table.batch(0);
        assert_eq!(table.confirm(0, &first), [(name("x"), x)]);
        assert!(!table.is_confirmed(&name("x")));
        settle(&mut table, 2);
        assert!(table.is_confirmed(&name("x")));
        table.forget(0);
        assert!(!table.is_confirmed(&name("x")));
    }
}
