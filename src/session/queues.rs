//! What a session knows of the queues of fair locks, while callers wait for them.

use std::collections::HashMap;
use std::mem::replace;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::key::{Key, OfKeys};
use crate::sync::Mutex;

/// The queues in which callers of this locker wait.
#[derive(Debug, Default)]
pub(super) struct Queues(Mutex<HashMap<Key, KnownQueue, OfKeys>>);

#[derive(Debug, Default)]
struct KnownQueue {
    /// Who was next when the lock was found free, and since when.
    awaited: Option<(Arc<str>, Instant)>,
    /// The channels of tickets that are subscribed.
    channels: Vec<Arc<str>>,
}

impl Queues {
    /// Records what an ask has found: who is `next`, if the lock is free.
    pub(super) fn found(&self, key: &Key, next: Option<&str>, now: Instant) {
        let mut queues = self.0.lock();
        let queue = queues.entry(key.clone()).or_default();
        queue.awaited = next.map(|next| match queue.awaited.take() {
            Some((last, since)) if *last == *next => (last, since),
            _ => (next.into(), now),
        });
    }

    /// Has `subscribe` listen to these channels of tickets, and to no others of this lock; without
    /// any given, to those of before. If no caller waits for the lock any more, forgets it and
    /// listens to none.
    pub(super) fn listen(
        &self,
        key: &Key,
        wanted: Option<&[Arc<str>]>,
        is_awaited: impl FnOnce() -> bool,
        mut subscribe: impl FnMut(&Arc<str>, bool),
    ) {
        // Until the channels are told: the last one that gets here decides.
        let mut queues = self.0.lock();
        let (before, wanted) = if is_awaited() {
            let Some(wanted) = wanted else { return };
            let queue = queues.entry(key.clone()).or_default();
            (replace(&mut queue.channels, wanted.to_vec()), wanted)
        } else {
            let queue = queues.remove(key);
            (queue.map_or_else(Vec::new, |queue| queue.channels), &[][..])
        };
        for channel in before.iter().filter(|channel| !wanted.contains(channel)) {
            subscribe(channel, false);
        }
        for channel in wanted.iter().filter(|channel| !before.contains(channel)) {
            subscribe(channel, true);
        }
    }

    /// Returns whether channels of tickets are subscribed: JVMs use the lock.
    pub(super) fn is_mixed(&self, key: &Key) -> bool {
        let queues = self.0.lock();
        queues
            .get(key)
            .is_some_and(|queue| !queue.channels.is_empty())
    }

    /// Returns who has been next for a free lock for at least that long, once: if it is passed, and
    /// comes again, it has its time again.
    pub(super) fn absent(&self, key: &Key, patience: Duration, now: Instant) -> Option<Arc<str>> {
        let mut queues = self.0.lock();
        let awaited = &mut queues.get_mut(key)?.awaited;
        let absent = awaited.take_if(|(_, since)| now.since(*since) >= patience);
        absent.map(|(next, _)| next)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn who_is_next_is_absent_after_its_time_and_not_after_a_change() {
        let (queues, key, start) = (Queues::default(), Key::from("k"), Instant::now());
        let patience = Duration::from_secs(10);
        let found = |next, secs| {
            let now = start + Duration::from_secs(secs);
            queues.found(&key, next, now);
            queues.absent(&key, patience, now)
        };
        assert_eq!(found(Some("a"), 0), None);
        assert_eq!(found(Some("a"), 9), None);
        assert_eq!(found(Some("a"), 10).as_deref(), Some("a"));
        assert_eq!(found(Some("a"), 10), None, "it has come again, and is next");
        assert_eq!(found(Some("b"), 11), None, "somebody else");
        assert_eq!(found(None, 12), None, "somebody has the lock");
        assert_eq!(found(Some("b"), 21), None, "it is next again");
        queues.listen(&key, None, || false, |_, _| ());
        assert_eq!(found(Some("b"), 40), None);
    }

    #[test]
    fn channels_are_subscribed_while_somebody_waits() {
        let (queues, key) = (Queues::default(), Key::from("k"));
        let [x, y, z] = ["x", "y", "z"].map(Arc::<str>::from);
        let mut heard = BTreeSet::new();
        let mut listen = |wanted: Option<&[Arc<str>]>, awaited| {
            let subscribe = |channel: &Arc<str>, on| match on {
                true => assert!(heard.insert(Arc::clone(channel))),
                false => assert!(heard.remove(channel)),
            };
            queues.listen(&key, wanted, || awaited, subscribe);
            (
                heard.iter().cloned().collect::<Vec<_>>(),
                queues.is_mixed(&key),
            )
        };
        let [xy, yz] = [[&x, &y], [&y, &z]].map(|pair| pair.map(Arc::clone).to_vec());
        assert_eq!(listen(Some(&xy), true), (xy.clone(), true));
        assert_eq!(listen(Some(&yz), true), (yz.clone(), true));
        // One that goes does not see that another one has come.
        assert_eq!(listen(None, true), (yz, true));
        // A bug: an answer that came when the last caller had gone subscribed for ever.
        assert_eq!(listen(Some(&xy), false), (Vec::new(), false));
        assert_eq!(listen(None, true), (Vec::new(), false));
        assert_eq!(listen(Some(&[]), true), (Vec::new(), false));
    }
}
