//! Releases a lock from whoever holds it.

use std::sync::Arc;

use super::inspect::no_lock;
use super::reply::{texts, yes_or_no};
use super::sending::{Op, ask_slot};
use super::slots::torn;
use super::word::{alone, channel, lock};
use crate::error::Error;
use crate::key::Key;
use crate::lua::{Script, Topology};
use crate::node::{Call, Cluster, Lane, Node, Outcome, Reply, WordList};

/// Asks for the holders of a lock, each as the SHA-1 of its field or string.
#[derive(Debug)]
pub(crate) struct NameHolders(pub(crate) Key);

/// Releases a lock from these holders, unless it has a holder besides them.
#[derive(Debug)]
pub(crate) struct Force {
    pub(crate) key: Key,
    pub(crate) holders: Arc<[String]>,
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
    /// Whether the lock was theirs, and nobody else's.
    type Output = bool;

    fn call(&self, topology: Topology) -> Call {
        static FORCE: Script = Script::shared("force");
        let args = self.holders.iter().map(|holder| holder.as_str().into());
        alone(FORCE.on(topology), WordList::new([lock(&self.key), channel(&self.key)], args))
    }

    fn read(&self, reply: &Reply) -> Option<bool> {
        yes_or_no(reply)
    }

    async fn on_cluster(&self, cluster: &Cluster, node: &Node, lane: Lane) -> Outcome<bool> {
        match torn(&self.key) {
            Some(error) => Outcome::Refused(error),
            None => ask_slot(cluster, node, lane, self).await,
        }
    }
}
