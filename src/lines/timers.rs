//! When lines are woken and callers' wait times end: one table and one task for all of a session.
//!
//! # Invariants
//! - A time is in the table until it is due or not wanted any more.
//! - The task never sleeps beyond the first one: whoever puts in an earlier one wakes it.

use std::collections::BTreeMap;

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::clock::Instant;
use crate::key::Key;
use crate::sync::Mutex;

/// How many are due at once before the engine's other tasks get a turn.
const CHUNK: usize = 256;

/// The times of a session.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    table: Mutex<TimerTable>,
    earlier: Notify,
}

#[derive(Debug, Default)]
struct TimerTable {
    /// The key includes a number, since many may come at the same moment.
    times: BTreeMap<(Instant, u64), (Key, Timed)>,
    /// When the task wakes next.
    planned: Option<Instant>,
}

/// What happens at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timed {
    /// The wait of the caller of this number ends.
    Wait,
    /// The line is woken.
    Line,
}

/// A time that has come, with its number.
pub(crate) type DueTimer = (Instant, u64, Key, Timed);

impl Timers {
    pub(crate) fn put(&self, at: Instant, number: u64, key: &Key, timed: Timed) {
        let mut table = self.table.lock();
        table.times.insert((at, number), (key.clone(), timed));
        let earlier = table.planned.is_none_or(|planned| at < planned);
        if earlier {
            table.planned = Some(at);
        }
        drop(table);
        if earlier {
            self.earlier.notify_one();
        }
    }

    /// Removes a time that is not wanted any more.
    pub(crate) fn remove(&self, at: Instant, number: u64, now: Instant) {
        // One that is due is left to the task: very many callers whose time ends together would
        // contend for the mutex.
        if now < at {
            self.table.lock().times.remove(&(at, number));
        }
    }

    /// Takes out the first ones that are due, or waits until one may be.
    pub(crate) async fn next(&self) -> Vec<DueTimer> {
        let due = self.due(Instant::now());
        if due.is_empty() {
            self.come().await;
        }
        due
    }

    pub(super) fn due(&self, now: Instant) -> Vec<DueTimer> {
        let mut table = self.table.lock();
        let mut due = Vec::new();
        while due.len() < CHUNK
            && let Some(first) = table
                .times
                .first_entry()
                .filter(|first| first.key().0 <= now)
        {
            let ((at, number), (key, timed)) = first.remove_entry();
            due.push((at, number, key, timed));
        }
        due
    }

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
        table.planned = table.times.first_key_value().map(|((at, _), _)| *at);
        table.planned
    }
}

#[cfg(test)]
impl Timers {
    pub(super) fn has(&self, at: Instant, number: u64) -> bool {
        self.table.lock().times.contains_key(&(at, number))
    }

    pub(super) fn len(&self) -> usize {
        self.table.lock().times.len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn ids(due: Vec<DueTimer>) -> Vec<u64> {
        due.into_iter().map(|(_, id, ..)| id).collect()
    }

    #[test]
    fn only_waits_that_are_due_end_and_in_order() {
        let timers = Timers::default();
        let now = Instant::now();
        let key = Key::from("k");
        for (id, after) in [(1, 30), (2, 10), (3, 10), (4, 20), (5, 31)] {
            timers.put(now + Duration::from_millis(after), id, &key, Timed::Wait);
        }
        timers.remove(now + Duration::from_millis(20), 4, now);
        assert!(ids(timers.due(now)).is_empty());
        assert_eq!(ids(timers.due(now + Duration::from_millis(10))), [2, 3]);
        assert_eq!(ids(timers.due(now + Duration::from_millis(30))), [1]);
        let last = now + Duration::from_millis(31);
        timers.remove(last, 5, last);
        assert_eq!(
            ids(timers.due(last)),
            [5],
            "what is due is taken out by the task"
        );
        assert!(timers.table.lock().times.is_empty());
    }

    #[test]
    fn very_many_waits_end_in_chunks() {
        let timers = Timers::default();
        let now = Instant::now();
        (0..600).for_each(|id| timers.put(now, id, &Key::from("k"), Timed::Wait));
        let chunks: Vec<usize> = (0..4).map(|_| timers.due(now).len()).collect();
        assert_eq!(chunks, [256, 256, 88, 0]);
    }

    #[tokio::test]
    async fn an_earlier_deadline_wakes_the_task_and_a_later_one_does_not() {
        let timers = Timers::default();
        let now = Instant::now();
        let key = Key::from("k");
        let hour = Duration::from_secs(3600);
        let mut waiting = Box::pin(timers.come());
        assert!(futures_util::poll!(&mut waiting).is_pending());
        timers.put(now + hour, 1, &key, Timed::Wait);
        assert!(futures_util::poll!(&mut waiting).is_ready());
        let mut waiting = Box::pin(timers.come());
        assert!(futures_util::poll!(&mut waiting).is_pending());
        timers.put(now + hour * 2, 2, &key, Timed::Wait);
        timers.put(now + hour, 5, &key, Timed::Wait);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        timers.put(now + hour / 2, 3, &key, Timed::Wait);
        assert!(futures_util::poll!(&mut waiting).is_ready());
        assert_eq!(timers.plan(), Some(now + hour / 2));
        // One that comes while the task does something else is not missed.
        timers.put(now, 4, &key, Timed::Wait);
        timers.come().await;
        assert_eq!(ids(timers.due(Instant::now())), [4]);
    }
}
