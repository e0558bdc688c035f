//! Finds out who holds a key, and releases it from them.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Calls, Quorum};
use crate::error::Error;
use crate::holder::{Holder, NodeHolder};
use crate::key::Key;
use crate::lease::NodeIndex;
use crate::node::Lane;
use crate::op::{self, CallNext, Force, Inspect, KeyHolder, NameHolders};

impl Quorum {
    /// Returns who is in the key, unless a majority of the nodes says that it is free.
    ///
    /// # Errors
    /// [`Error::Unavailable`], or the refusal of a server.
    pub(crate) async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Error> {
        let asking = Calls::new(self.nodes.iter().cloned().enumerate().map(|(at, node)| {
            let inspect = Inspect(key.clone());
            let found = async move { op::ask(&node, Lane::Commands, &inspect).await };
            (at, async move { found.await.map(|found| (at, found)) })
        }));
        let majority = self.majority();
        // A holder is on a majority, and so are, together, several owners that keep each other out.
        let free = |found: &[(NodeIndex, Option<KeyHolder>)]| {
            found.iter().filter(|(_, holder)| holder.is_none()).count() >= majority
        };
        let certain = |found: &[_], _| {
            free(found) || self.holder(found).is_some_and(|holder| holder.is_agreed())
        };
        let mut found = self.hear(asking, certain).await?;
        found.sort_by_key(|&(at, _)| at);
        Ok(if free(&found) {
            None
        } else {
            self.holder(&found)
        })
    }

    fn holder(&self, found: &[(NodeIndex, Option<KeyHolder>)]) -> Option<Holder> {
        let by_node = found.iter().filter_map(|(at, holder)| {
            let holder = holder.clone()?;
            Some(NodeHolder {
                node: Arc::clone(self.nodes[*at].name()),
                owner: holder.owner,
                hold_count: holder.count,
                remaining: holder.remaining,
            })
        });
        Holder::of(by_node.collect(), self.majority())
    }

    /// Notifies the one that is next in the queue of a fair lock, if the lock is free.
    ///
    /// # Errors
    /// Why it may not be notified.
    pub(crate) async fn call_next(&self, key: &Key) -> Result<(), Error> {
        self.hear_all(CallNext(key.clone())).await.map(drop)
    }

    /// Releases the key from the owners that the nodes name as its holders now. Returns whether any
    /// node did. `depose` is called before the command is sent, with these names, or with `None` if
    /// the nodes did not answer.
    ///
    /// # Errors
    /// [`Error::Unavailable`], or the refusal of a server.
    pub(crate) async fn force(
        &self,
        key: &Key,
        depose: impl FnOnce(Option<&BTreeSet<String>>),
    ) -> Result<bool, Error> {
        // A holder has a majority, and any majority of answers shares a node with it. Fields on a
        // minority only are left over from attempts, and are released too if the minority answers
        // in time.
        let answers = self.hear_all(NameHolders(key.clone())).await;
        let seen =
            answers.map(|answers| answers.into_iter().flatten().collect::<BTreeSet<String>>());
        depose(seen.as_ref().ok());
        let seen = seen?;
        if seen.is_empty() {
            return Ok(false);
        }
        let holders: Arc<[String]> = seen.into_iter().collect();
        let key = key.clone();
        // It names the holders, so a copy that arrives late deletes no later one.
        let forcing = self.ask(Force { key, holders });
        Ok(self
            .hear(forcing, |forced, missing| {
                missing == 0 || forced.contains(&true)
            })
            .await?
            .contains(&true))
    }
}
