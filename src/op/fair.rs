//! What only fair locks are asked, and how their queue is named.

use std::time::Duration;

use super::reply::{array, int, remaining};
use super::sending::{ClusterRoute, Op};
use super::word::{NOTHING, Word, alone, channel, lock, text};
use crate::key::{Key, WAKE};
use crate::kind::FAIR;
use crate::lua::Topology;
use crate::node::{Call, Outcome, Reply, WordList};

/// What a refused acquire of a fair lock found in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Queued {
    /// How many tickets are before the first of its callers.
    pub(crate) place: u64,
    /// If the lock is free: the ticket that is next.
    pub(crate) next: Option<Box<str>>,
    /// Clients of Redisson wait too, or have the lock.
    pub(crate) is_mixed: bool,
}

/// Notifies the one that is next in the queue of a fair lock, if the lock is free. Returns how many
/// clients got the message.
pub(crate) struct CallNext(pub(crate) Key);

impl Op for CallNext {
    type Output = u64;

    fn call(&self, topology: Topology) -> Call {
        alone(
            FAIR.scripts.release.on(topology),
            release_words(&self.0, NOTHING, topology),
        )
    }

    fn read(&self, reply: &Reply) -> Option<u64> {
        u64::try_from(int(reply)?).ok()
    }

    async fn on_cluster(&self, route: &ClusterRoute<'_>) -> Outcome<u64> {
        route.ask_at(&self.0, self).await
    }
}

/// Returns the keys and arguments of a release that removes this field or ticket.
pub(super) fn release_words(key: &Key, field: Word<'_>, topology: Topology) -> WordList {
    let keys = [lock(key)].into_iter().chain(queue_keys(key));
    WordList::new(keys, [field, channel(key), wakes(topology)])
}

pub(super) fn queue_keys<'a>(key: &Key) -> [Word<'a>; 2] {
    [text(key.queue()), text(key.queue_timeouts())]
}

/// Returns what the channels begin with on which lockers are woken. In a cluster, a message is for
/// those that listen at the lock's slot.
pub(super) fn wakes<'a>(topology: Topology) -> Word<'a> {
    match topology {
        Topology::OneServer => text(WAKE),
        Topology::Cluster => NOTHING,
    }
}

/// Returns the time until a lock is free, and what is known of its queue.
pub(super) fn queued(reply: &Reply) -> Option<(Option<Duration>, Queued)> {
    let [
        Reply::Int(0),
        Reply::Int(ttl),
        Reply::Int(place),
        Reply::Bytes(next),
        Reply::Int(mixed),
    ] = array(reply)?
    else {
        return None;
    };
    let queued = Queued {
        place: u64::try_from(*place).ok()?,
        next: (*ttl == FREE).then(|| String::from_utf8_lossy(next).into()),
        is_mixed: *mixed == 1,
    };
    let ttl = match *ttl {
        FREE => Some(Duration::ZERO),
        ttl => remaining(ttl),
    };
    Some((ttl, queued))
}

/// What PTTL answers if there is no lock.
const FREE: i64 = -2;
