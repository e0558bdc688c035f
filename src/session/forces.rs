//! The force_unlocks of a session: which grants they may have deleted, and which they deposed.
//!
//! A force_unlock may delete a lock whose grant is still on its way to this locker. So an attempt notes when it began,
//! and asks here once it is granted.
//!
//! # Invariants
//! - A force_unlock is registered from before it looks for holds to depose until after its answer.
//! - Ended force_unlocks are kept by key, for at most twice [`MOST_ENDED`] keys. An attempt that is older than the
//!   dropped ones counts as forced.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::key::Key;

/// The number of keys in a generation of ended force_unlocks.
const MOST_ENDED: usize = 512;

/// The force_unlocks of a session.
#[derive(Debug, Default)]
pub(super) struct Forces {
    /// How many have begun or ended. Written under the mutex.
    events: AtomicU64,
    known: Mutex<Known>,
    /// Notified when a force_unlock ends.
    ended: Notify,
}

/// A point between two events, at which an attempt begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moment {
    events: u64,
}

#[derive(Debug, Default)]
struct Known {
    under_way: HashMap<Key, Vec<Begun>>,
    /// For each key the last event that ended one: in this generation, and in the one before.
    ended: [HashMap<Key, u64>; 2],
    /// The event at which each of the generations began.
    began: [u64; 2],
}

#[derive(Debug)]
struct Begun {
    event: u64,
    /// Whether a grant was deposed because of it.
    deposed: bool,
}

/// A force_unlock under way, from before anything is deposed to its answer.
#[derive(Debug)]
pub(super) struct Forcing {
    forces: Arc<Forces>,
    key: Key,
    event: u64,
}

impl Forces {
    /// Begins a force_unlock. From here on a grant of its key may be deleted.
    pub(super) fn begin(self: &Arc<Self>, key: &Key) -> Forcing {
        let mut known = self.known();
        let event = self.next_event();
        known.under_way.entry(key.clone()).or_default().push(Begun { event, deposed: false });
        Forcing { forces: Arc::clone(self), key: key.clone(), event }
    }

    /// Returns the moment at which an attempt begins.
    pub(super) fn now(&self) -> Moment {
        Moment { events: self.events.load(Ordering::SeqCst) }
    }

    /// Returns whether a grant to an attempt that began then has to be deposed, because its key is being forced or was
    /// since. A force_unlock under way may find the lock already deleted, so it is told that a grant was deposed.
    ///
    /// The grant has to be registered by now: a force_unlock that begins later finds it.
    pub(super) fn deposes(&self, key: &Key, since: Moment) -> bool {
        // Without an event none is under way.
        if self.events.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let mut known = self.known();
        if let Some(begun) = known.under_way.get_mut(key) {
            begun.iter_mut().for_each(|force| force.deposed = true);
            return true;
        }
        let ended = known.ended.iter().find_map(|ended| ended.get(key));
        ended.is_some_and(|&event| event > since.events) || since.events < known.began[1]
    }

    /// Waits until no force_unlock of this key is under way.
    pub(super) async fn answered(&self, key: &Key) {
        loop {
            // Created before the check, so that an end that comes after the check is not missed.
            let ended = self.ended.notified();
            if !self.known().under_way.contains_key(key) {
                return;
            }
            ended.await;
        }
    }

    /// Ends a force_unlock. Returns whether a grant was deposed because of it.
    fn end(&self, key: &Key, event: u64) -> bool {
        let mut known = self.known();
        let Some(begun) = known.under_way.get_mut(key) else { return false };
        let Some(at) = begun.iter().position(|force| force.event == event) else { return false };
        let Begun { deposed, .. } = begun.swap_remove(at);
        if begun.is_empty() {
            known.under_way.remove(key);
        }
        let now = self.next_event();
        let [ended, _] = &mut known.ended;
        ended.insert(key.clone(), now);
        if ended.len() >= MOST_ENDED {
            known.ended = [HashMap::new(), std::mem::take(ended)];
            known.began = [now, known.began[0]];
        }
        drop(known);
        self.ended.notify_waiters();
        deposed
    }

    fn next_event(&self) -> u64 {
        self.events.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Forcing {
    /// Ends it after its answer. Returns whether a grant was deposed because of it.
    pub(super) fn end(self) -> bool {
        self.forces.end(&self.key, self.event)
    }
}

impl Drop for Forcing {
    fn drop(&mut self) {
        // Does nothing if it has ended before.
        self.forces.end(&self.key, self.event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: usize) -> Key {
        Key::from(format!("k{n}"))
    }

    fn len(forces: &Forces) -> usize {
        let known = forces.known();
        let under_way: usize = known.under_way.values().map(Vec::len).sum();
        under_way + known.ended.iter().map(HashMap::len).sum::<usize>()
    }

    #[test]
    fn a_grant_is_deposed_by_a_force_of_its_key_that_is_under_way_or_ended_since() {
        let forces = Arc::<Forces>::default();
        let before = forces.now();
        assert!(!forces.deposes(&key(0), before));
        let forcing = forces.begin(&key(0));
        let meanwhile = forces.now();
        for moment in [before, meanwhile] {
            assert!(forces.deposes(&key(0), moment));
            assert!(!forces.deposes(&key(1), moment), "another key");
        }
        assert!(forcing.end());
        let after = forces.now();
        assert!(forces.deposes(&key(0), before) && forces.deposes(&key(0), meanwhile));
        assert!(!forces.deposes(&key(0), after));
        assert!(!forces.deposes(&key(1), before));
    }

    #[test]
    fn only_forces_under_way_when_a_grant_is_deposed_learn_of_it() {
        let forces = Arc::<Forces>::default();
        let attempt = forces.now();
        let (early, other) = (forces.begin(&key(0)), forces.begin(&key(1)));
        assert!(!early.end());
        let (one, two) = (forces.begin(&key(0)), forces.begin(&key(0)));
        assert!(forces.deposes(&key(0), attempt));
        let late = forces.begin(&key(0));
        assert!(one.end() && two.end() && !late.end() && !other.end());
        // Deposed by one that has ended: none is under way that could learn of it.
        assert!(forces.deposes(&key(0), attempt));
        assert!(!forces.begin(&key(0)).end());
    }

    #[test]
    fn a_force_that_is_dropped_has_ended() {
        let forces = Arc::<Forces>::default();
        let attempt = forces.now();
        drop(forces.begin(&key(0)));
        assert!(forces.deposes(&key(0), attempt));
        assert!(!forces.deposes(&key(0), forces.now()));
        assert_eq!(forces.now().events, 2, "an end counts once");
    }

    #[tokio::test]
    async fn the_wait_for_the_forces_of_a_key_ends_with_the_last_of_them() {
        let forces = Arc::<Forces>::default();
        forces.answered(&key(0)).await;
        let (one, two, other) = (forces.begin(&key(0)), forces.begin(&key(0)), forces.begin(&key(1)));
        let forced = key(0);
        let mut answered = std::pin::pin!(forces.answered(&forced));
        assert!(futures_util::poll!(&mut answered).is_pending());
        drop(two);
        assert!(futures_util::poll!(&mut answered).is_pending(), "one is under way");
        one.end();
        assert!(futures_util::poll!(answered).is_ready(), "only a force of another key is under way");
        other.end();
    }

    #[test]
    fn nothing_grows_while_forces_overlap_without_a_pause() {
        let forces = Arc::<Forces>::default();
        let mut under_way = forces.begin(&key(0));
        for n in 1..20_000 {
            // Each begins before the previous one ends.
            let next = forces.begin(&key(n % 5_000));
            let attempt = forces.now();
            assert!(forces.deposes(&key(n % 5_000), attempt));
            under_way.end();
            under_way = next;
            assert!(len(&forces) <= 2 * MOST_ENDED + 2, "{}", len(&forces));
        }
        assert!(under_way.end());
        assert!(forces.known().under_way.is_empty());
    }

    #[test]
    fn an_attempt_that_began_before_what_was_dropped_counts_as_forced() {
        let forces = Arc::<Forces>::default();
        let attempt = forces.now();
        forces.begin(&key(0)).end();
        let mut ends = 1;
        while forces.known().ended.iter().any(|ended| ended.contains_key(&key(0))) {
            assert!(forces.deposes(&key(0), attempt));
            assert!(!forces.deposes(&Key::from("free"), attempt));
            forces.begin(&key(ends)).end();
            ends += 1;
        }
        assert!(ends <= 2 * MOST_ENDED + 1);
        assert!(forces.deposes(&key(0), attempt) && forces.deposes(&Key::from("free"), attempt));
        // An attempt that began later, with everything that has ended since still kept, does not.
        let later = forces.now();
        (0..MOST_ENDED).for_each(|n| _ = forces.begin(&key(n)).end());
        assert!(!forces.deposes(&Key::from("free"), later) && forces.deposes(&key(7), later));
    }
}
