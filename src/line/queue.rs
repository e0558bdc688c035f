//! A line of waiters in the order of their arrival. Each is found by its number.
//!
//! # Invariants
//! - Numbers are assigned in the order of the calls, and the line is in the order of the numbers.
//! - Arriving, leaving, and finding the next waiter of an owner take O(log n) steps and move only a
//!   few pointers, since the shard of its table is locked meanwhile.
//! - A line without waiters allocates nothing, since it lives as long as a hold of its key does.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
use std::mem::replace;

use super::Waiter;
use crate::owner::Owner;

/// The waiters of one key.
#[derive(Debug, Clone)]
pub(crate) struct Queue<C, S = BuildHasherDefault<Neighbours>> {
    /// The head. A caller that waits alone costs one small allocation.
    first: Option<Box<Waiter<C>>>,
    /// Those behind it, if there are any.
    others: Option<Box<Followers<C, S>>>,
}

#[derive(Debug, Clone)]
struct Followers<C, S> {
    waiters: BTreeMap<u64, Box<Waiter<C>>>,
    /// Ordered by the hash of the owner, which other owners may share, and the number.
    owners: BTreeSet<(u64, u64)>,
    hasher: S,
}

/// Hashes owners that were made one after the other to consecutive numbers: emptying a line from
/// one end to the other then takes half the time that scattered look-ups would take.
#[derive(Debug, Default)]
pub(crate) struct Neighbours(u64);

impl Hasher for Neighbours {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = self.0.rotate_right(4).wrapping_add(number);
    }

    fn write_isize(&mut self, variant: isize) {
        self.write_u64(variant.unsigned_abs() as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl<C, S> Default for Queue<C, S> {
    fn default() -> Self {
        Self {
            first: None,
            others: None,
        }
    }
}

impl<C, S: BuildHasher + Default> Queue<C, S> {
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.first.is_some())
            + self
                .others
                .as_ref()
                .map_or(0, |others| others.waiters.len())
    }

    /// The head of the line.
    pub(crate) fn first(&self) -> Option<&Waiter<C>> {
        self.first.as_deref()
    }

    /// The number of the waiter at the end of the line.
    pub(crate) fn last(&self) -> Option<u64> {
        let last = self
            .others
            .as_ref()
            .and_then(|others| others.waiters.last_key_value());
        last.map(|(id, _)| *id)
            .or(self.first().map(|first| first.id))
    }

    pub(crate) fn push(&mut self, waiter: Waiter<C>) {
        let waiter = Box::new(waiter);
        let Some(first) = &mut self.first else {
            self.first = Some(waiter);
            return;
        };
        // Of two callers, the one with the lower number may be the second to come here.
        let other = if waiter.id < first.id {
            replace(first, waiter)
        } else {
            waiter
        };
        self.others.get_or_insert_with(Box::default).push(other);
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<Waiter<C>> {
        let others = self.others.as_mut();
        let removed = if self.first.as_ref()?.id == id {
            let next =
                others.and_then(|others| others.remove(*others.waiters.first_key_value()?.0));
            replace(&mut self.first, next)
        } else {
            others?.remove(id)
        };
        self.others.take_if(|others| others.waiters.is_empty());
        removed.map(|waiter| *waiter)
    }

    /// The waiters from this number on.
    pub(crate) fn range(&self, from: u64) -> impl Iterator<Item = &Waiter<C>> {
        let first = self.first().filter(|first| first.id >= from);
        let others = self
            .others
            .iter()
            .flat_map(move |others| others.waiters.range(from..));
        first.into_iter().chain(others.map(|(_, waiter)| &**waiter))
    }

    /// The waiters of an owner, from this number on.
    pub(crate) fn of(&self, owner: &Owner, from: u64) -> impl Iterator<Item = &Waiter<C>> {
        let first = self.first().filter(|first| first.id >= from);
        let others = self.others.iter().flat_map(move |others| {
            let hash = others.hasher.hash_one(owner);
            let ids = others.owners.range((hash, from)..=(hash, u64::MAX));
            ids.filter_map(|(_, id)| others.waiters.get(id).map(|waiter| &**waiter))
        });
        first
            .into_iter()
            .chain(others)
            .filter(move |waiter| waiter.owner == *owner)
    }
}

impl<C: PartialEq, S: BuildHasher + Default> PartialEq for Queue<C, S> {
    fn eq(&self, other: &Self) -> bool {
        self.range(0).eq(other.range(0))
    }
}

impl<C: Eq, S: BuildHasher + Default> Eq for Queue<C, S> {}

impl<C: Hash, S: BuildHasher + Default> Hash for Queue<C, S> {
    fn hash<T: Hasher>(&self, state: &mut T) {
        self.range(0).for_each(|waiter| waiter.hash(state));
    }
}

impl<C, S: Default> Default for Followers<C, S> {
    fn default() -> Self {
        Self {
            waiters: BTreeMap::new(),
            owners: BTreeSet::new(),
            hasher: S::default(),
        }
    }
}

impl<C, S: BuildHasher> Followers<C, S> {
    fn push(&mut self, waiter: Box<Waiter<C>>) {
        self.owners
            .insert((self.hasher.hash_one(&waiter.owner), waiter.id));
        self.waiters.insert(waiter.id, waiter);
    }

    fn remove(&mut self, id: u64) -> Option<Box<Waiter<C>>> {
        let waiter = self.waiters.remove(&id)?;
        self.owners
            .remove(&(self.hasher.hash_one(&waiter.owner), id));
        Some(waiter)
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;
    use crate::clock::Instant;

    /// Gives all owners the same hash.
    #[derive(Default)]
    struct Same;

    impl Hasher for Same {
        fn write(&mut self, _: &[u8]) {}

        fn finish(&self) -> u64 {
            7
        }
    }

    fn waiter(id: u64, owner: &Owner) -> Waiter<()> {
        Waiter {
            id,
            owner: owner.clone(),
            since: Instant::now(),
            call: (),
        }
    }

    /// The model of a queue: a plain list of numbers and owners, in order.
    #[derive(Default)]
    struct Model(Vec<(u64, Owner)>);

    impl Model {
        fn push(&mut self, id: u64, owner: &Owner) {
            let at = self.0.partition_point(|(other, _)| *other < id);
            self.0.insert(at, (id, owner.clone()));
        }

        fn remove(&mut self, id: u64) -> Option<u64> {
            let at = self.0.iter().position(|(other, _)| *other == id)?;
            Some(self.0.remove(at).0)
        }

        fn ids(&self, which: impl Fn(u64, &Owner) -> bool) -> Vec<u64> {
            self.0
                .iter()
                .filter(|(id, owner)| which(*id, owner))
                .map(|(id, _)| *id)
                .collect()
        }
    }

    fn ids<'a>(waiters: impl Iterator<Item = &'a Waiter<()>>) -> Vec<u64> {
        waiters.map(|waiter| waiter.id).collect()
    }

    /// Compares every answer of a queue with the model's, while callers come and go as the seed
    /// says.
    fn compare<S: BuildHasher + Default>(seed: u64) {
        let mut random = Rng::with_seed(seed);
        let owners = [
            Owner::task(1),
            Owner::task(2),
            Owner::thread(1),
            Owner::new(),
            Owner::new(),
        ];
        let mut queue = Queue::<(), S>::default();
        let mut model = Model::default();
        let mut next = 0;
        // How many come for each that goes: the line grows, shrinks and is empty now and then.
        for arrivals in [1, 3, 1, 2, 1] {
            for _ in 0..200 {
                if random.u32(..=arrivals) > 0 {
                    // Two callers at once may arrive in the other order.
                    let both = random.bool();
                    for id in if both {
                        [next + 1, next]
                    } else {
                        [next, next + 1]
                    } {
                        let owner = random.choice(&owners).expect("some");
                        queue.push(waiter(id, owner));
                        model.push(id, owner);
                    }
                    next += 2;
                }
                // From the head, from the end, from between, and one that is gone.
                for _ in 0..random.u32(..=3) {
                    let first = model.0.first().map_or(0, |w| w.0);
                    let last = model.0.last().map_or(0, |w| w.0);
                    let id = [first, last, random.u64(..=next)][random.usize(..3)];
                    assert_eq!(queue.remove(id).map(|waiter| waiter.id), model.remove(id));
                }
                let from = random.u64(..=next);
                let owner = random.choice(&owners).expect("some");
                assert_eq!(ids(queue.range(0)), model.ids(|_, _| true));
                assert_eq!(ids(queue.range(from)), model.ids(|id, _| id >= from));
                assert_eq!(
                    ids(queue.of(owner, from)),
                    model.ids(|id, of| id >= from && of == owner)
                );
                assert_eq!(
                    queue.first().map(|waiter| waiter.id),
                    model.0.first().map(|(id, _)| *id)
                );
                assert_eq!(queue.last(), model.0.last().map(|(id, _)| *id));
                assert_eq!(queue.is_empty(), model.0.is_empty());
                assert_eq!(
                    queue.others.is_some(),
                    model.0.len() > 1,
                    "nothing is kept for those who are gone"
                );
                let indexed = queue
                    .others
                    .as_ref()
                    .map_or(0, |others| others.owners.len());
                assert_eq!(indexed, model.0.len().saturating_sub(1));
            }
        }
    }

    #[test]
    fn a_queue_answers_as_a_plain_list_does() {
        for seed in 0..20 {
            compare::<BuildHasherDefault<Neighbours>>(seed);
            compare::<BuildHasherDefault<Same>>(seed);
        }
    }
}
