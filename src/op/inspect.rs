//! Asks who holds a lock.

use std::sync::Arc;
use std::time::Duration;

use super::reply::{array, remaining};
use super::sending::Op;
use super::word::{alone, lock};
use crate::error::{Error, ServerErrorKind};
use crate::key::Key;
use crate::lua::{Script, Topology};
use crate::node::{Call, Reply, WordList};
use crate::shown::cut;

/// Asks who holds a lock.
#[derive(Debug)]
pub(crate) struct Inspect(pub(crate) Key);

/// The holder of a lock, as its key shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyHolder {
    pub(crate) owner: Vec<u8>,
    pub(crate) count: u64,
    pub(crate) remaining: Option<Duration>,
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

/// Makes an error of a reply that names a type: the key is not a lock.
pub(super) fn no_lock(key: &Key, node: &Arc<str>, reply: &Reply) -> Option<Error> {
    let Reply::Bytes(key_type) = reply else { return None };
    let key_type = cut(key_type);
    let what = if key_type == "hash" { "hash that is no lock's" } else { &*key_type };
    let message = format!("WRONGTYPE {:?} holds a {what}", key.stored());
    Some(Error::refused(ServerErrorKind::WrongType, node, message))
}
