//! Asks who holds a lock, and releases it from them.

use std::sync::Arc;
use std::time::Duration;

use super::reply::{array, remaining, texts, yes_or_no};
use super::sending::{ClusterRoute, Op};
use super::word::{alone, channel, lock, text};
use crate::error::{Error, ServerErrorKind};
use crate::key::Key;
use crate::lua::{Script, Topology};
use crate::node::{Call, Outcome, Reply, WordList};
use crate::shown::cut;

/// Asks who holds a lock.
pub(crate) struct Inspect(pub(crate) Key);

/// The holder of a lock, as its key shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyHolder {
    pub(crate) owner: Vec<u8>,
    pub(crate) count: u64,
    pub(crate) remaining: Option<Duration>,
}

/// Asks for the holders of a lock, each as the SHA-1 of its field or string.
pub(crate) struct NameHolders(pub(crate) Key);

/// Releases a lock from these holders, unless it has a holder besides them.
pub(crate) struct Force {
    pub(crate) key: Key,
    pub(crate) holders: Arc<[String]>,
}

impl Op for Inspect {
    /// `None` if the lock is free.
    type Output = Option<KeyHolder>;

    fn call(&self, topology: Topology) -> Call {
        static INSPECT: Script = Script::shared("inspect");
        alone(INSPECT.on(topology), WordList::new([lock(&self.0)], []))
    }

    fn read(&self, reply: &Reply) -> Option<Option<KeyHolder>> {
        match array(reply)? {
            [] => Some(None),
            [Reply::Int(ttl), Reply::Bytes(owner), Reply::Int(count)] => Some(Some(KeyHolder {
                owner: owner.to_vec(),
                // A negative count holds the lock all the same.
                count: u64::try_from(*count).unwrap_or_default(),
                remaining: remaining(*ttl),
            })),
            _ => None,
        }
    }

    fn error(&self, node: &Arc<str>, reply: &Reply) -> Option<Error> {
        no_lock(&self.0, node, reply)
    }
}

impl Op for NameHolders {
    /// Empty if the lock is free.
    type Output = Vec<String>;

    fn call(&self, topology: Topology) -> Call {
        static HOLDERS: Script = Script::shared("holders");
        alone(HOLDERS.on(topology), WordList::new([lock(&self.0)], []))
    }

    fn read(&self, reply: &Reply) -> Option<Vec<String>> {
        texts(reply)
    }

    fn error(&self, node: &Arc<str>, reply: &Reply) -> Option<Error> {
        no_lock(&self.0, node, reply)
    }
}

impl Op for Force {
    /// Whether the lock was theirs, and no other client's.
    type Output = bool;

    fn call(&self, topology: Topology) -> Call {
        static FORCE: Script = Script::shared("force");
        let args = self.holders.iter().map(text);
        alone(
            FORCE.on(topology),
            WordList::new([lock(&self.key), channel(&self.key)], args),
        )
    }

    fn read(&self, reply: &Reply) -> Option<bool> {
        yes_or_no(reply)
    }

    async fn on_cluster(&self, route: &ClusterRoute<'_>) -> Outcome<bool> {
        route.ask_at(&self.key, self).await
    }
}

/// Makes an error of a reply that names a type: the key is not a lock.
pub(super) fn no_lock(key: &Key, node: &Arc<str>, reply: &Reply) -> Option<Error> {
    let Reply::Bytes(key_type) = reply else {
        return None;
    };
    let key_type = cut(key_type);
    let what = if key_type == "hash" {
        "hash that is no lock's"
    } else {
        &*key_type
    };
    let message = format!("WRONGTYPE {:?} holds a {what}", key.stored());
    Some(Error::refused(ServerErrorKind::WrongType, node, message))
}
