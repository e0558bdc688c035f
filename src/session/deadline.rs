//! Ends the callers' wait times, with one table and one task for all waiters of a session.
//!
//! # Invariants
//! - A deadline is in the table until it is due or its caller goes.
//! - The task never sleeps beyond the first deadline: a caller that puts in an earlier one wakes it.

use std::collections::BTreeMap;

use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::Session;
use crate::clock::Instant;
use crate::foreign::{self, contained};
use crate::key::Key;
use crate::sync::{Arc, Mutex, Weak};

/// How many waits are ended before the engine's other tasks get a turn.
const CHUNK: usize = 256;

/// The ends of all wait times.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    table: Mutex<Table>,
    earlier: Notify,
}

#[derive(Debug, Default)]
struct Table {
    /// The key includes the number of the waiter, since many waits may end at the same moment.
    waits: BTreeMap<(Instant, u64), Key>,
    /// When the task wakes next.
    planned: Option<Instant>,
}

impl Deadlines {
    /// Adds the deadline of a waiter.
    pub(super) fn put(&self, deadline: Instant, id: u64, key: &Key) {
        let mut table = self.table.lock();
        table.waits.insert((deadline, id), key.clone());
        let earlier = table.planned.is_none_or(|planned| deadline < planned);
        if earlier {
            table.planned = Some(deadline);
        }
        drop(table);
        if earlier {
            self.earlier.notify_one();
        }
    }

    /// Removes the deadline of a waiter that is gone. One that is due is left to the task, so that very many callers
    /// whose time ends together do not contend for the mutex.
    pub(super) fn remove(&self, deadline: Instant, id: u64, now: Instant) {
        if now < deadline {
            self.table.lock().waits.remove(&(deadline, id));
        }
    }

    /// Takes out the first ones that are due.
    fn due(&self, now: Instant) -> Vec<(Instant, u64, Key)> {
        let mut table = self.table.lock();
        let mut due = Vec::new();
        while due.len() < CHUNK
            && let Some(first) = table.waits.first_entry().filter(|first| first.key().0 <= now)
        {
            let ((deadline, id), key) = first.remove_entry();
            due.push((deadline, id, key));
        }
        due
    }

    /// Waits until one may be due.
    async fn come(&self) {
        // No wake-up is lost: only one task waits, and a wake-up while it does not leaves a permit.
        let earlier = self.earlier.notified();
        match self.plan() {
            Some(first) => _ = timeout(Instant::now().until(first), earlier).await,
            None => earlier.await,
        }
    }

    /// Returns when the first one is due. From here on the task is woken for earlier ones.
    fn plan(&self) -> Option<Instant> {
        let mut table = self.table.lock();
        table.planned = table.waits.first_key_value().map(|((deadline, _), _)| *deadline);
        table.planned
    }
}

/// Ends the waits whose time is over. Started with the session; ends with the engine; nobody awaits it.
pub(super) async fn end_waits(deadlines: Arc<Deadlines>, session: Weak<Session>) {
    loop {
        let due = deadlines.due(Instant::now());
        if due.is_empty() {
            deadlines.come().await;
            continue;
        }
        if let Some(session) = session.upgrade() {
            for (deadline, id, key) in due {
                // If ending one wait panics, the others end all the same.
                contained(|| session.end_wait(&key, id, deadline));
            }
        }
        // Lets the watchdog renew holds between the ends of very many waits.
        yield_now().await;
    }
}

impl Session {
    /// Ends the wait of a waiter whose time is over.
    fn end_wait(&self, key: &Key, id: u64, deadline: Instant) {
        let held = self.gate.is_known_held(key, self.now());
        if let Some(waiter) = self.gate.leave(key, id) {
            // Nobody asked a server while the lock was left to others: the caller does.
            let answer = if held || self.channels.has_given_turn(key, waiter.since) {
                Ok(None)
            } else {
                self.gave_up(waiter.since, deadline).map(|()| None)
            };
            foreign::answer(waiter.call.reply, answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn ids(due: Vec<(Instant, u64, Key)>) -> Vec<u64> {
        due.into_iter().map(|(_, id, _)| id).collect()
    }

    #[test]
    fn only_waits_that_are_due_end_and_in_order() {
        let (deadlines, now) = (Deadlines::default(), Instant::now());
        let key = Key::from("k");
        for (id, after) in [(1, 30), (2, 10), (3, 10), (4, 20), (5, 31)] {
            deadlines.put(now + Duration::from_millis(after), id, &key);
        }
        deadlines.remove(now + Duration::from_millis(20), 4, now);
        assert!(ids(deadlines.due(now)).is_empty());
        assert_eq!(ids(deadlines.due(now + Duration::from_millis(10))), [2, 3]);
        assert_eq!(ids(deadlines.due(now + Duration::from_millis(30))), [1]);
        let last = now + Duration::from_millis(31);
        deadlines.remove(last, 5, last);
        assert_eq!(ids(deadlines.due(last)), [5], "what is due is taken out by the task");
        assert!(deadlines.table.lock().waits.is_empty());
    }

    #[test]
    fn very_many_waits_end_in_chunks() {
        let (deadlines, now) = (Deadlines::default(), Instant::now());
        (0..600).for_each(|id| deadlines.put(now, id, &Key::from("k")));
        let chunks: Vec<usize> = (0..4).map(|_| deadlines.due(now).len()).collect();
        assert_eq!(chunks, [256, 256, 88, 0]);
    }

    #[tokio::test]
    async fn an_earlier_deadline_wakes_the_task_and_a_later_one_does_not() {
        let (deadlines, now) = (Deadlines::default(), Instant::now());
        let (key, hour) = (Key::from("k"), Duration::from_secs(3600));
        let mut waiting = Box::pin(deadlines.come());
        assert!(futures_util::poll!(&mut waiting).is_pending());
        deadlines.put(now + hour, 1, &key);
        assert!(futures_util::poll!(&mut waiting).is_ready());
        let mut waiting = Box::pin(deadlines.come());
        assert!(futures_util::poll!(&mut waiting).is_pending());
        deadlines.put(now + hour * 2, 2, &key);
        deadlines.put(now + hour, 5, &key);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        deadlines.put(now + hour / 2, 3, &key);
        assert!(futures_util::poll!(&mut waiting).is_ready());
        assert_eq!(deadlines.plan(), Some(now + hour / 2));
        // One that comes while the task does something else is not missed.
        deadlines.put(now, 4, &key);
        deadlines.come().await;
        assert_eq!(ids(deadlines.due(Instant::now())), [4]);
    }
}
