//! Which nodes vote for a hold, and until when.

use super::Hold;
use crate::clock::Instant;
use crate::lease::{self, NodeIndex};

/// The votes of all nodes.
#[derive(Debug, Clone)]
pub(super) struct Votes {
    /// Until when the vote of each node is valid, if it has one.
    until: Box<[Option<Instant>]>,
    /// Nodes that may still execute a command that creates the lock. Usually empty, so it is kept
    /// small.
    uncertain: Box<[NodeIndex]>,
}

impl Votes {
    /// Creates the votes of these nodes, out of this many, valid until this time.
    pub(super) fn new(nodes: usize, votes: &[NodeIndex], until: Instant) -> Self {
        let until = (0..nodes)
            .map(|node| votes.contains(&node).then_some(until))
            .collect();
        Self {
            until,
            uncertain: Box::default(),
        }
    }

    /// Returns until when a majority votes for it, if one does.
    pub(super) fn majority_until(&self) -> Option<Instant> {
        lease::majority_until(&self.until, self.majority())
    }

    /// Returns until when each node's vote is valid.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = Option<Instant>> {
        self.until.iter().copied()
    }

    /// Records a node's vote, which is valid until at least this time.
    pub(super) fn add(&mut self, node: NodeIndex, until: Instant) {
        let vote = &mut self.until[node];
        // Answers may come in another order than their commands.
        *vote = (*vote).max(Some(until));
    }

    /// Records a node's vote, which is valid until this time and no longer.
    pub(super) fn replace(&mut self, node: NodeIndex, until: Instant) {
        self.until[node] = Some(until);
    }

    /// Removes a node's vote. Returns whether the others are a majority.
    pub(super) fn remove(&mut self, node: NodeIndex) -> bool {
        self.until[node] = None;
        self.until.iter().flatten().count() >= self.majority()
    }

    /// Returns whether a node has a vote, valid or expired.
    pub(super) fn has(&self, node: NodeIndex) -> bool {
        self.until[node].is_some()
    }

    /// Records that this node may still execute a command that creates the lock. An answer to
    /// another command does not change that.
    pub(super) fn make_uncertain(&mut self, node: NodeIndex) {
        if !self.is_uncertain(node) {
            self.uncertain = self.uncertain.iter().copied().chain([node]).collect();
        }
    }

    /// Returns whether this node may still execute a command that creates the lock.
    pub(super) fn is_uncertain(&self, node: NodeIndex) -> bool {
        self.uncertain.contains(&node)
    }

    fn majority(&self) -> usize {
        lease::majority(self.until.len())
    }
}

impl Hold {
    /// Returns whether this node's last answer was that it has the lock.
    pub(crate) fn has_vote(&self, node: NodeIndex) -> bool {
        self.state.lock().votes.has(node)
    }

    /// Returns whether this node may still execute a command that creates the lock.
    pub(crate) fn is_uncertain(&self, node: NodeIndex) -> bool {
        self.state.lock().votes.is_uncertain(node)
    }
}
