//! Which nodes vote for a hold, and until when.

use crate::clock::Instant;
use crate::lease::{self, NodeIndex};

/// The votes of all nodes.
#[derive(Debug, Clone)]
pub(super) struct Votes {
    /// One a node: until when its vote is valid, if it has one.
    until: Box<[Option<Instant>]>,
    /// Nodes on which something may still be executed that puts the lock there; mostly none, and there may be many
    /// holds.
    uncertain: Box<[NodeIndex]>,
}

impl Votes {
    /// Of so many nodes these vote, until then.
    pub(super) fn new(nodes: usize, votes: &[NodeIndex], until: Instant) -> Self {
        let until = (0..nodes).map(|node| votes.contains(&node).then_some(until)).collect();
        Self { until, uncertain: Box::default() }
    }

    /// Until when a majority votes for it, if one does.
    pub(super) fn majority_until(&self) -> Option<Instant> {
        lease::majority_until(&self.until, self.majority())
    }

    /// Until when each node's vote is valid.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = Option<Instant>> {
        self.until.iter().copied()
    }

    /// A node votes, until then at least.
    pub(super) fn add(&mut self, node: NodeIndex, until: Instant) {
        let vote = &mut self.until[node];
        *vote = (*vote).max(Some(until));
    }

    /// What a node says next counts beside the votes of these nodes only. The votes of the others may be later than
    /// those of the majority that there is: with the next one they must not make another, since those servers do not
    /// list each other. So they end with the majority.
    pub(super) fn part(&mut self, beside: &[bool]) {
        let Some(end) = self.majority_until() else { return };
        for (vote, _) in self.until.iter_mut().zip(beside).filter(|(_, is_beside)| !**is_beside) {
            *vote = vote.map(|until| until.min(end));
        }
    }

    /// A node does not vote any more; whether the others are a majority.
    pub(super) fn remove(&mut self, node: NodeIndex) -> bool {
        self.until[node] = None;
        self.until.iter().flatten().count() >= self.majority()
    }

    /// Whether a node votes, or voted until its time was over.
    pub(super) fn has(&self, node: NodeIndex) -> bool {
        self.until[node].is_some()
    }

    /// Something may still be executed on this node that puts the lock there. An answer to something else says nothing
    /// about it: the doubt stays.
    pub(super) fn make_uncertain(&mut self, node: NodeIndex) {
        if !self.is_uncertain(node) {
            self.uncertain = self.uncertain.iter().copied().chain([node]).collect();
        }
    }

    /// Whether something may still be executed on this node that puts the lock there.
    pub(super) fn is_uncertain(&self, node: NodeIndex) -> bool {
        self.uncertain.contains(&node)
    }

    fn majority(&self) -> usize {
        lease::majority(self.until.len())
    }
}
