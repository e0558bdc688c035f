//! Takes many waiters out of a line, in chunks: a long line must not block the other keys of its
//! shard.

use std::sync::Arc;

use dashmap::mapref::one::RefMut;

use super::key_state::KeyState;
use super::{CallWaiter, Lines, World};
use crate::clock::Instant;
use crate::hold::Hold;
use crate::key::Key;

/// How many waiters are taken out of a line under one lock of its shard.
const CHUNK: usize = 256;

impl<W: World> Lines<W> {
    /// Lets the waiters of a hold's owner enter.
    pub(super) fn let_in(
        &self,
        mut slot: RefMut<'_, Key, KeyState<W>>,
        hold: &Arc<Hold>,
        now: Instant,
    ) -> Vec<CallWaiter<W::RawGuard>> {
        let owner = hold.owner();
        let kind = hold.claim.kind;
        let mut same = Vec::new();
        let mut let_in = |slot: &mut KeyState<W>, from| {
            let ids: Vec<u64> = slot
                .line
                .waiters()
                .of(&owner, from)
                .filter(|waiter| waiter.call.want.kind == kind)
                .take(CHUNK)
                .map(|waiter| waiter.id)
                .collect();
            let entered = ids.iter().filter(|_| hold.enter_unclaimed(now).is_ok());
            same.extend(entered.filter_map(|&id| self.counted(slot.line.leave(id))));
            ids.last()
                .filter(|_| ids.len() == CHUNK)
                .map(|last| last + 1)
        };
        let mut more = let_in(&mut slot, 0);
        drop(slot);
        // More than one chunk of waiters takes several steps. A caller that arrives in between
        // enters by itself, and waiters stay in line if the hold has ended in between.
        while let Some(from) = more
            && let Some(mut slot) = self.slots.get_mut(&hold.claim.key)
        {
            more = let_in(&mut slot, from);
        }
        same.iter()
            .for_each(|waiter| self.world.left(&hold.claim.key, waiter));
        same
    }

    /// Takes out the waiters of a hold's owner that want the lock in the other role.
    pub(crate) fn recall(&self, hold: &Hold) -> Vec<CallWaiter<W::RawGuard>> {
        let owner = hold.owner();
        let key = &hold.claim.key;
        let Some(mut slot) = self.slots.get_mut(key) else {
            return Vec::new();
        };
        let others = slot
            .line
            .waiters()
            .of(&owner, 0)
            .filter(|waiter| waiter.call.want.kind != hold.claim.kind);
        let ids: Vec<u64> = others.map(|waiter| waiter.id).collect();
        let leave = |&id: &u64| self.counted(slot.line.leave(id));
        let waiters: Vec<_> = ids.iter().filter_map(leave).collect();
        if !waiters.is_empty() {
            self.left(key, slot);
        }
        waiters
    }

    /// Takes out those waiters that satisfy the condition and are in line now.
    pub(crate) fn drain(
        &self,
        key: &Key,
        mut which: impl FnMut(&CallWaiter<W::RawGuard>) -> bool,
    ) -> Vec<CallWaiter<W::RawGuard>> {
        let mut out = Vec::new();
        let mut from = 0;
        let mut end = None;
        while let Some(mut slot) = self.slots.get_mut(key)
            // Only those that are in line now: a stream of new callers would keep this going.
            && let Some(last) = end.or(slot.line.waiters().last())
        {
            let chunk: Vec<(u64, bool)> = slot
                .line
                .waiters()
                .range(from)
                .take_while(|waiter| waiter.id <= last)
                .take(CHUNK)
                .map(|waiter| (waiter.id, which(waiter)))
                .collect();
            let chosen = chunk.iter().filter(|(_, chosen)| *chosen);
            let known = out.len();
            out.extend(chosen.filter_map(|&(id, _)| self.counted(slot.line.leave(id))));
            self.left(key, slot);
            out[known..]
                .iter()
                .for_each(|waiter| self.world.left(key, waiter));
            let Some((id, _)) = chunk.last().filter(|_| chunk.len() == CHUNK) else {
                break;
            };
            (from, end) = (id + 1, Some(last));
        }
        out
    }

    /// Takes out all waiters.
    pub(crate) fn drain_all(&self) -> Vec<CallWaiter<W::RawGuard>> {
        self.awaited()
            .iter()
            .flat_map(|key| self.drain(key, |_| true))
            .collect()
    }

    /// Returns the keys that have waiters.
    pub(crate) fn awaited(&self) -> Vec<Key> {
        let awaited = self
            .slots
            .iter()
            .filter(|slot| !slot.line.waiters().is_empty());
        awaited.map(|slot| slot.key().clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{hold, lines, waiter};
    use super::super::{Admitted, Event};
    use super::*;
    use crate::line::AcquireOutcome;
    use crate::owner::Owner;

    /// More waiters than one chunk, with those of other owners between them.
    #[test]
    fn a_grant_admits_all_of_very_many_waiters_of_its_owner() {
        let lines = lines();
        let key = Key::from("k");
        let owner = Owner::new();
        let now = Instant::now();
        let mut ids = [Vec::new(), Vec::new()];
        for number in 0..4 * CHUNK {
            let other = number % 2;
            let (waiter, _) = waiter(
                &lines,
                &if other == 0 {
                    owner.clone()
                } else {
                    Owner::new()
                },
            );
            ids[other].push(waiter.id);
            lines.arrive(&key, waiter, now);
        }
        let hold = hold(&owner);
        let Admitted { waiter, same_owner } = lines.admit(&hold, Some(ids[0][0]), now);
        assert_eq!(waiter.map(|waiter| waiter.id), Some(ids[0][0]));
        assert_eq!(
            same_owner
                .iter()
                .map(|waiter| waiter.id)
                .collect::<Vec<_>>(),
            ids[0][1..]
        );
        assert_eq!(
            (lines.census()[0], hold.guards() as usize),
            ((1, ids[1].len()), ids[0].len())
        );
        let left = lines.drain(&key, |_| true);
        assert_eq!(
            left.iter().map(|waiter| waiter.id).collect::<Vec<_>>(),
            ids[1]
        );
    }

    #[test]
    fn a_drain_takes_the_chosen_waiters_and_leaves_others_in_order() {
        let lines = lines();
        let key = Key::from("k");
        let now = Instant::now();
        for _ in 0..4 * CHUNK {
            lines.arrive(&key, waiter(&lines, &Owner::new()).0, now);
        }
        let out = lines.drain(&key, |waiter| waiter.id % 3 == 0);
        assert_eq!(lines.census()[0], (0, 4 * CHUNK - out.len()));
        assert!(lines.is_awaited(&key));
        let rest = lines.drain(&key, |_| true);
        let ids = |waiters: Vec<CallWaiter<()>>| {
            waiters
                .into_iter()
                .map(|waiter| waiter.id)
                .collect::<Vec<_>>()
        };
        let all = 0..4 * CHUNK as u64;
        assert_eq!(
            ids(out),
            all.clone().filter(|id| id % 3 == 0).collect::<Vec<_>>()
        );
        assert_eq!(ids(rest), all.filter(|id| id % 3 != 0).collect::<Vec<_>>());
        assert_eq!(lines.census()[0], (0, 0));
        lines.step(&key, Event::Answered(AcquireOutcome::Refused));
        assert!(lines.slots.is_empty());
    }
}
