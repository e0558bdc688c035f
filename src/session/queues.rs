//! What a session knows of the queues of fair locks, while callers wait for them.

use std::collections::HashMap;
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
    /// The number of the last caller whose ticket was in an ask without an answer.
    doubtful: Option<u64>,
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

    /// Records the channels of tickets that are subscribed from now on. Returns those of before.
    pub(super) fn listen(&self, key: &Key, channels: &[Arc<str>]) -> Vec<Arc<str>> {
        let mut queues = self.0.lock();
        let queue = queues.entry(key.clone()).or_default();
        std::mem::replace(&mut queue.channels, channels.to_vec())
    }

    /// Returns whether channels of tickets are subscribed: JVMs use the lock.
    pub(super) fn is_mixed(&self, key: &Key) -> bool {
        let queues = self.0.lock();
        queues
            .get(key)
            .is_some_and(|queue| !queue.channels.is_empty())
    }

    /// Returns who has been next for a free lock for at least that long.
    pub(super) fn absent(&self, key: &Key, patience: Duration, now: Instant) -> Option<Arc<str>> {
        let queues = self.0.lock();
        let (next, since) = queues.get(key)?.awaited.as_ref()?;
        (now.since(*since) >= patience).then(|| Arc::clone(next))
    }

    /// Records that an ask had no answer that had the tickets of callers up to this number.
    pub(super) fn doubt(&self, key: &Key, last: u64) {
        let mut queues = self.0.lock();
        let queue = queues.entry(key.clone()).or_default();
        queue.doubtful = queue.doubtful.max(Some(last));
    }

    /// Returns whether the ticket of the caller with this number was in an ask without an answer.
    pub(super) fn is_doubtful(&self, key: &Key, caller: u64) -> bool {
        let queues = self.0.lock();
        queues
            .get(key)
            .is_some_and(|queue| queue.doubtful >= Some(caller))
    }

    /// Forgets a queue. Returns the channels that were subscribed for it.
    pub(super) fn forget(&self, key: &Key) -> Vec<Arc<str>> {
        let queue = self.0.lock().remove(key);
        queue.map_or_else(Vec::new, |queue| queue.channels)
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(found(Some("b"), 11), None, "somebody else");
        assert_eq!(found(None, 12), None, "somebody has the lock");
        assert_eq!(found(Some("b"), 21), None, "it is next again");
        queues.forget(&key);
        assert_eq!(found(Some("b"), 40), None);
    }

    #[test]
    fn doubt_is_about_those_that_were_asked_for() {
        let (queues, key) = (Queues::default(), Key::from("k"));
        assert!(!queues.is_doubtful(&key, 0));
        queues.doubt(&key, 7);
        queues.doubt(&key, 5);
        assert!(queues.is_doubtful(&key, 7) && !queues.is_doubtful(&key, 8));
        assert!(queues.listen(&key, &["x".into()]).is_empty() && queues.is_mixed(&key));
        assert_eq!(queues.forget(&key), [Arc::<str>::from("x")]);
        assert!(!queues.is_doubtful(&key, 7) && !queues.is_mixed(&key));
    }
}
