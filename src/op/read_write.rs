//! Asks about the readers and the writer of a lock, releases it from some of them, and withdraws
//! the hint that a writer waits.

use std::sync::Arc;
use std::time::Duration;

use super::inspect::no_lock;
use super::reply::{array, int, remaining, yes_or_no};
use super::sending::{ClusterRoute, Op};
use super::word::{alone, channel, lock, text};
use crate::error::Error;
use crate::key::Key;
use crate::lua::{Script, Topology};
use crate::node::{Call, Outcome, Reply, WordList};

/// Deletes the hint that a writer of this locker waits, and wakes those that it kept out.
pub(crate) struct LeaveHint {
    pub(crate) key: Key,
    pub(crate) locker: Arc<str>,
}

/// Asks who has a lock.
pub(crate) struct ListHolders(pub(crate) Key);

/// One of those who have a lock, as its hash shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedHolder {
    pub(crate) field: Vec<u8>,
    pub(crate) count: u64,
    pub(crate) remaining: Option<Duration>,
}

/// Releases a lock from the holders with these fields.
pub(crate) struct Expel {
    pub(crate) key: Key,
    pub(crate) fields: Arc<[String]>,
}

impl Op for LeaveHint {
    /// Whether it was there.
    type Output = bool;

    fn call(&self, topology: Topology) -> Call {
        static WITHDRAW: Script = Script::shared("withdraw");
        let args = [text(self.key.writer_hint()), text(&*self.locker)];
        alone(
            WITHDRAW.on(topology),
            WordList::new([channel(&self.key)], args),
        )
    }

    fn read(&self, reply: &Reply) -> Option<bool> {
        yes_or_no(reply)
    }
}

impl Op for ListHolders {
    /// Empty if the lock is free.
    type Output = Vec<ListedHolder>;

    fn call(&self, topology: Topology) -> Call {
        static READERS: Script = Script::shared("readers");
        alone(READERS.on(topology), WordList::new([lock(&self.0)], []))
    }

    fn read(&self, reply: &Reply) -> Option<Vec<ListedHolder>> {
        let [Reply::Bytes(_mode), Reply::Int(_), holders @ ..] = array(reply)? else {
            return array(reply)?.is_empty().then(Vec::new);
        };
        holders
            .chunks(3)
            .map(|holder| match holder {
                [Reply::Bytes(field), Reply::Int(count), Reply::Int(ttl)] => Some(ListedHolder {
                    field: field.to_vec(),
                    count: u64::try_from(*count).unwrap_or_default(),
                    remaining: remaining(*ttl),
                }),
                _ => None,
            })
            .collect()
    }

    fn error(&self, node: &Arc<str>, reply: &Reply) -> Option<Error> {
        no_lock(&self.0, node, reply)
    }
}

impl Op for Expel {
    /// How many of them had it.
    type Output = i64;

    fn call(&self, topology: Topology) -> Call {
        static EXPEL: Script = Script::shared("expel");
        let args = self.fields.iter().map(text);
        alone(
            EXPEL.on(topology),
            WordList::new([lock(&self.key), channel(&self.key)], args),
        )
    }

    fn read(&self, reply: &Reply) -> Option<i64> {
        int(reply)
    }

    async fn on_cluster(&self, route: &ClusterRoute<'_>) -> Outcome<i64> {
        route.ask_at(&self.key, self).await
    }
}
