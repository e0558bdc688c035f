//! Sets a latch, counts it down, and reads its count.

#[cfg(test)]
#[path = "../../tests/unit/latch_scripts.rs"]
mod scripts;

use std::sync::Arc;
use std::time::Duration;

use super::refusal::Subject;
use super::reply::{text as text_of, yes_or_no};
use super::sending::{ClusterRoute, Op};
use super::word::{Word, alone, channel, lock, millis, number, text, written};
use crate::key::Key;
use crate::lua::{Script, Topology};
use crate::node::{Call, Lane, Outcome, Reply, WordList};

/// A call of a latch, which may be sent any number of times.
#[derive(Debug, Clone)]
pub(crate) struct LatchCall {
    pub(crate) key: Key,
    pub(crate) id: Arc<str>,
    /// How long the server remembers the id.
    pub(crate) remembered: Duration,
}

/// Counts a latch down by one.
#[derive(Debug, Clone)]
pub(crate) struct CountDown(pub(crate) LatchCall);

/// Sets the count of a latch that is open.
#[derive(Debug, Clone)]
pub(crate) struct SetLatch(pub(crate) LatchCall, pub(crate) u64);

/// Reads the count of a latch.
#[derive(Debug, Clone)]
pub(crate) struct ReadLatch(pub(crate) Key);

impl Op for CountDown {
    /// The count that is left.
    type Output = u64;

    const LANE: Lane = Lane::Grants;

    fn call(&self, topology: Topology) -> Call {
        static COUNT_DOWN: Script = Script::shared("count_down");
        written(COUNT_DOWN.on(topology), words(&self.0, topology, None))
    }

    fn read(&self, reply: &Reply) -> Option<u64> {
        count(reply)
    }

    // Also of a copy: the first one may have had too few acknowledgements.
    fn wrote(_: &u64) -> bool {
        true
    }

    fn keys(&self, _topology: Topology) -> Vec<Subject> {
        subjects(&self.0.key)
    }

    async fn on_cluster(&self, route: &ClusterRoute<'_>) -> Outcome<u64> {
        in_one_slot(&self.0.key, route, self).await
    }
}

impl Op for SetLatch {
    /// Whether this call has set it.
    type Output = bool;

    const LANE: Lane = Lane::Grants;

    fn call(&self, topology: Topology) -> Call {
        static SET_LATCH: Script = Script::shared("set_latch");
        let count = Some(number(self.1));
        written(SET_LATCH.on(topology), words(&self.0, topology, count))
    }

    fn read(&self, reply: &Reply) -> Option<bool> {
        yes_or_no(reply)
    }

    fn wrote(is_set: &bool) -> bool {
        *is_set
    }

    fn keys(&self, _topology: Topology) -> Vec<Subject> {
        subjects(&self.0.key)
    }

    async fn on_cluster(&self, route: &ClusterRoute<'_>) -> Outcome<bool> {
        in_one_slot(&self.0.key, route, self).await
    }
}

impl Op for ReadLatch {
    /// The count; zero if the latch is open.
    type Output = u64;

    fn call(&self, topology: Topology) -> Call {
        static LATCH: Script = Script::shared("latch");
        alone(LATCH.on(topology), WordList::new([lock(&self.0)], []))
    }

    fn read(&self, reply: &Reply) -> Option<u64> {
        count(reply)
    }

    fn keys(&self, _topology: Topology) -> Vec<Subject> {
        vec![count_of(&self.0)]
    }

    async fn on_cluster(&self, route: &ClusterRoute<'_>) -> Outcome<u64> {
        in_one_slot(&self.0, route, self).await
    }
}

fn words(call: &LatchCall, topology: Topology, count: Option<Word<'_>>) -> WordList {
    let LatchCall {
        key,
        id,
        remembered,
    } = call;
    let messages = key.to_latch_messages(topology == Topology::Cluster);
    let args = [text(&**id), millis(*remembered), channel(&messages)];
    WordList::new(
        [lock(key), text(key.latch_calls())],
        args.into_iter().chain(count),
    )
}

/// Reads a count. It is a text, since Lua's numbers are exact up to 2^53 only.
fn count(reply: &Reply) -> Option<u64> {
    match reply {
        Reply::Nil => Some(0),
        reply => text_of(reply)?.parse().ok(),
    }
}

async fn in_one_slot<O: Op>(key: &Key, route: &ClusterRoute<'_>, op: &O) -> Outcome<O::Output> {
    route.ask_at(&key.to_latch_messages(true), op).await
}

fn count_of(key: &Key) -> Subject {
    Subject::new(key.stored(), "string")
}

fn subjects(key: &Key) -> Vec<Subject> {
    vec![count_of(key), Subject::new(key.latch_calls(), "zset")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_exactly() {
        let read = |text: &'static str| count(&Reply::Bytes(text.as_bytes().into()));
        assert_eq!(read("9223372036854775807"), Some(i64::MAX.cast_unsigned()));
        assert_eq!(count(&Reply::Nil), Some(0));
        assert_eq!((read("-1"), count(&Reply::Int(1))), (None, None));
    }
}
