//! What only semaphores have: callers that are served in the order of their line, a capacity, and
//! who has the permits.

use std::time::Duration;

use super::reply::{array, int, remaining, yes_or_no};
use super::sending::{ClusterRoute, Op};
use super::word::{
    NOTHING, Word, alone, channel, counted_fields, lock, millis, number, text, written,
};
use crate::claim::Claim;
use crate::key::Key;
use crate::lua::{Script, Topology};
use crate::node::{Call, Lane, Outcome, Reply, WordList};

/// How far a server came with callers that want permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Served {
    /// This many have theirs, in their order. The others have nothing.
    pub(crate) callers: usize,
    /// When the next permit that is taken runs out, if its holder does not renew it.
    pub(crate) due: Option<Duration>,
    /// How many permits there are, free or taken, as far as records tell: below zero if a JVM has
    /// taken off more than there were. `None` if no capacity was ever set.
    pub(crate) total: Option<i64>,
}

/// Sets how many permits there are.
pub(crate) struct SetCapacity {
    pub(crate) key: Key,
    pub(crate) capacity: u32,
    pub(crate) lease: Duration,
}

/// Asks who has permits, but for no more than this many of them.
pub(crate) struct ListPermits {
    pub(crate) key: Key,
    pub(crate) lease: Duration,
    pub(crate) most: u32,
}

/// How many permits are free, and the members of those that are taken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ListedPermits {
    /// `None` if no capacity was ever set.
    pub(crate) free: Option<i64>,
    pub(crate) taken: u64,
    /// Each with what is left of its lease, if it has one.
    pub(crate) members: Vec<(Vec<u8>, Option<Duration>)>,
}

/// Returns the keys and arguments of an acquire for these callers.
pub(super) fn acquire_words(
    claims: &[Claim],
    lease: Duration,
    of_locker: Duration,
    capacity: Option<u32>,
) -> WordList {
    let key = &claims[0].key;
    let args = [
        millis(lease),
        millis(of_locker),
        capacity.map_or(NOTHING, number),
        channel(key),
        number(claims.len() as u64),
    ];
    WordList::new(
        counters(key),
        args.into_iter().chain(counted_fields(claims)),
    )
}

/// Returns the keys of a semaphore.
pub(super) fn counters(key: &Key) -> [Word<'_>; 2] {
    [lock(key), records(key)]
}

pub(super) fn records(key: &Key) -> Word<'_> {
    text(key.permit_records())
}

pub(super) fn served(reply: &Reply) -> Option<Served> {
    let [Reply::Int(callers), Reply::Int(due), total] = array(reply)? else {
        return None;
    };
    let total = match total {
        Reply::Int(total) => Some(*total),
        Reply::Nil => None,
        _ => return None,
    };
    Some(Served {
        callers: usize::try_from(*callers).ok()?,
        due: remaining(*due),
        total,
    })
}

impl Op for SetCapacity {
    /// Whether it is set. Not if permits may be taken that have no record.
    type Output = bool;

    const LANE: Lane = Lane::Grants;

    fn call(&self, topology: Topology) -> Call {
        static CAPACITY: Script = Script::shared("capacity");
        let only_if_new = if self.key.is_semaphore() { "1" } else { "" };
        let args = [
            number(self.capacity),
            millis(self.lease),
            channel(&self.key),
            text(only_if_new),
        ];
        written(
            CAPACITY.on(topology),
            WordList::new(counters(&self.key), args),
        )
    }

    fn read(&self, reply: &Reply) -> Option<bool> {
        yes_or_no(reply)
    }

    fn wrote(is_set: &bool) -> bool {
        *is_set
    }

    async fn on_cluster(&self, route: &ClusterRoute<'_>) -> Outcome<bool> {
        route.ask_at(&self.key, self).await
    }
}

impl Op for ListPermits {
    type Output = ListedPermits;

    fn call(&self, topology: Topology) -> Call {
        static USAGE: Script = Script::shared("usage");
        let args = [millis(self.lease), number(self.most)];
        alone(USAGE.on(topology), WordList::new(counters(&self.key), args))
    }

    fn read(&self, reply: &Reply) -> Option<ListedPermits> {
        let [free, taken, members @ ..] = array(reply)? else {
            return None;
        };
        let member = |pair: &[Reply]| match pair {
            [Reply::Bytes(member), Reply::Int(left)] => Some((member.to_vec(), remaining(*left))),
            _ => None,
        };
        Some(ListedPermits {
            free: int(free),
            taken: u64::try_from(int(taken)?).ok()?,
            members: members.chunks(2).map(member).collect::<Option<_>>()?,
        })
    }

    async fn on_cluster(&self, route: &ClusterRoute<'_>) -> Outcome<ListedPermits> {
        route.ask_at(&self.key, self).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_about_permits_are_read() {
        let read = |words: &[i64], unset| {
            let words = words.iter().map(|n| Reply::Int(*n));
            served(&Reply::Array(words.chain(unset).collect()))
        };
        let due = Duration::from_millis(40);
        let expected = |callers, due, total| {
            Some(Served {
                callers,
                due,
                total,
            })
        };
        assert_eq!(read(&[2, 40, 10], None), expected(2, Some(due), Some(10)));
        assert_eq!(read(&[0, -1], Some(Reply::Nil)), expected(0, None, None));
        assert_eq!(read(&[0, -1, -1], None), expected(0, None, Some(-1)));
        assert_eq!(read(&[-1], None), None, "the memory is another");
        assert_eq!(read(&[-1, 0, 0], None), None);
    }
}
