//! N independent nodes as one: what each of them says becomes one outcome. A single server is a quorum of one.
//!
//! The algorithm is the one of the Redis documentation's page on distributed locks (Redlock): a lock is held while more
//! than half of the nodes say so.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use crate::error::{Error, NodeFailure};
use crate::fence::Fence;
use crate::key::Key;
use crate::node::{Node, Outcome};
use crate::script::{self, Acquire, Count, Release, Renew, Standing};

/// The place of a node in the quorum.
pub(crate) type NodeIndex = usize;

/// What the nodes, together, say to an acquire.
#[derive(Debug)]
pub(crate) enum Acquired {
    /// These nodes granted it.
    Granted { fence: Fence, votes: Vec<NodeIndex> },
    /// A majority answered and did not grant it; it may be free after this time.
    Held(Option<Duration>),
    /// A server refused the command.
    Refused(Error),
    /// No majority answered.
    Unavailable(Vec<NodeFailure>),
}

/// An acquire's outcome, and what it may have left behind unless it was granted.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) acquired: Acquired,
    /// Nodes that granted: one release settles them.
    pub(crate) taken: Vec<NodeIndex>,
    /// Nodes that may have granted, or may yet.
    pub(crate) doubtful: Vec<NodeIndex>,
}

/// What the nodes say to a write of the count, or to a release.
#[derive(Debug)]
pub(crate) enum Settled {
    Done,
    /// So many say that the lock is not ours that no majority can have it.
    Gone,
    Refused(Error),
    /// No majority answered. `executed` tells whether the command may have been executed somewhere.
    Unanswered {
        nodes: Vec<NodeFailure>,
        executed: bool,
    },
}

/// The nodes of a locker.
#[derive(Debug)]
pub(crate) struct Quorum {
    nodes: Vec<Arc<Node>>,
}

impl Quorum {
    pub(crate) fn new(nodes: Vec<Arc<Node>>) -> Self {
        Self { nodes }
    }

    pub(crate) fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    /// How many nodes make a majority.
    pub(crate) fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    /// Whether so many nodes have no vote left that the rest is no majority.
    pub(crate) fn is_minority_without(&self, gone: usize) -> bool {
        self.nodes.len() - gone < self.majority()
    }

    pub(crate) async fn acquire(&self, key: &Key, lease: Duration, field: &str, floor: u64) -> Round {
        let answers = join_all(self.nodes.iter().map(|node| script::acquire(node, key, lease, field, floor))).await;
        let (mut taken, mut doubtful, mut fence) = (Vec::new(), Vec::new(), Fence::new(0));
        let (mut ttls, mut failures, mut refusal) = (Vec::new(), Vec::new(), None);
        for (index, answer) in answers.into_iter().enumerate() {
            match answer {
                Outcome::Done(Acquire::Granted(granted)) => {
                    taken.push(index);
                    fence = fence.max(granted);
                }
                Outcome::Done(Acquire::Held(ttl)) => ttls.push(ttl),
                Outcome::Refused(error) => refusal = Some(error),
                Outcome::NotExecuted(failure) => failures.push(failure),
                Outcome::Unknown(failure) => {
                    doubtful.push(index);
                    failures.push(failure);
                }
            }
        }
        let acquired = if taken.len() >= self.majority() {
            Acquired::Granted { fence, votes: taken.clone() }
        } else if taken.len() + ttls.len() >= self.majority() {
            Acquired::Held(ttls.into_iter().flatten().min())
        } else if let Some(error) = refusal {
            Acquired::Refused(error)
        } else {
            Acquired::Unavailable(failures)
        };
        Round { acquired, taken, doubtful }
    }

    pub(crate) async fn count(&self, key: &Key, field: &str, count: u32) -> Settled {
        let answers = join_all(self.nodes.iter().map(|node| script::count(node, key, field, count))).await;
        self.settle(answers.into_iter().map(|answer| match answer {
            Outcome::Done(Count::Written) => Outcome::Done(true),
            Outcome::Done(Count::Gone) => Outcome::Done(false),
            Outcome::NotExecuted(failure) => Outcome::NotExecuted(failure),
            Outcome::Refused(error) => Outcome::Refused(error),
            Outcome::Unknown(failure) => Outcome::Unknown(failure),
        }))
    }

    /// Releases a granted lock on every node.
    pub(crate) async fn release(&self, key: &Key, field: &str) -> Settled {
        let answers = join_all(self.nodes.iter().map(|node| script::release(node, key, field))).await;
        self.settle(answers.into_iter().map(|answer| match answer {
            Outcome::Done(Release::Released(told)) => {
                tracing::trace!(%key, told, "released");
                Outcome::Done(true)
            }
            Outcome::Done(Release::Gone) => Outcome::Done(false),
            Outcome::NotExecuted(failure) => Outcome::NotExecuted(failure),
            Outcome::Refused(error) => Outcome::Refused(error),
            Outcome::Unknown(failure) => Outcome::Unknown(failure),
        }))
    }

    fn settle(&self, answers: impl Iterator<Item = Outcome<bool>>) -> Settled {
        let (mut done, mut gone, mut executed) = (0, 0, false);
        let (mut failures, mut refusal) = (Vec::new(), None);
        for answer in answers {
            match answer {
                Outcome::Done(true) => done += 1,
                Outcome::Done(false) => gone += 1,
                Outcome::Refused(error) => refusal = Some(error),
                Outcome::NotExecuted(failure) => failures.push(failure),
                Outcome::Unknown(failure) => {
                    executed = true;
                    failures.push(failure);
                }
            }
        }
        if done >= self.majority() {
            Settled::Done
        } else if self.is_minority_without(gone) {
            Settled::Gone
        } else if let Some(error) = refusal {
            Settled::Refused(error)
        } else {
            Settled::Unanswered { nodes: failures, executed: executed || done > 0 }
        }
    }

    /// Undoes on one node what an acquire may have left there. `Ok` once it answered, whatever it said.
    pub(crate) async fn cancel(&self, node: NodeIndex, key: &Key, field: &str) -> Result<(), NodeFailure> {
        match script::release(&self.nodes[node], key, field).await {
            Outcome::Done(_) => Ok(()),
            // It did not take either: a server that refuses a release by this user has refused the acquire too.
            Outcome::Refused(error) => {
                tracing::debug!(%key, field, %error, "an undo was refused");
                Ok(())
            }
            Outcome::NotExecuted(failure) | Outcome::Unknown(failure) => Err(failure),
        }
    }

    /// Renews locks on one node, each a key and its field.
    pub(crate) async fn renew(&self, node: NodeIndex, lease: Duration, locks: &[(&Key, &str)]) -> Outcome<Vec<Renew>> {
        script::renew(&self.nodes[node], lease, locks).await
    }

    /// Who holds the key on a majority of the nodes.
    ///
    /// # Errors
    /// [`Error::Unavailable`], or the refusal of a server.
    pub(crate) async fn inspect(&self, key: &Key) -> Result<Option<Standing>, Error> {
        let answers = join_all(self.nodes.iter().map(|node| script::inspect(node, key))).await;
        let standings = self.majority_of(answers)?;
        let holders: Vec<Standing> = standings.into_iter().flatten().collect();
        let same = |owner: &[u8]| holders.iter().filter(|s| s.owner == owner).count();
        Ok(holders.iter().find(|s| same(&s.owner) >= self.majority()).cloned())
    }

    /// Releases whoever holds the key; whether anybody did on any node.
    ///
    /// # Errors
    /// [`Error::Unavailable`], or the refusal of a server.
    pub(crate) async fn force(&self, key: &Key) -> Result<bool, Error> {
        let answers = join_all(self.nodes.iter().map(|node| script::force(node, key))).await;
        Ok(self.majority_of(answers)?.contains(&true))
    }

    fn majority_of<T>(&self, answers: Vec<Outcome<T>>) -> Result<Vec<T>, Error> {
        let (mut done, mut failures, mut refusal) = (Vec::new(), Vec::new(), None);
        for answer in answers {
            match answer {
                Outcome::Done(value) => done.push(value),
                Outcome::Refused(error) => refusal = Some(error),
                Outcome::NotExecuted(failure) | Outcome::Unknown(failure) => failures.push(failure),
            }
        }
        if done.len() >= self.majority() {
            return Ok(done);
        }
        Err(refusal.unwrap_or(Error::Unavailable { nodes: failures, waited: Duration::ZERO }))
    }

    pub(crate) async fn quit(&self) {
        join_all(self.nodes.iter().map(|node| node.quit())).await;
    }
}
