//! Which nodes vote for a hold, and until when.

use crate::clock::Instant;
use crate::lease;
use crate::quorum::NodeIndex;

/// The votes of all nodes.
#[derive(Debug)]
pub(super) struct Votes {
    nodes: Vec<Vote>,
    majority: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Vote {
    /// Until when it is valid, if there is one.
    until: Option<Instant>,
    /// Whether something that was sent there will have no answer any more, and may yet put the lock there. The answer to
    /// something later proves nothing about it.
    doubtful: bool,
}

impl Votes {
    /// Of so many nodes these vote, until then.
    pub(super) fn new(nodes: usize, votes: &[NodeIndex], until: Instant) -> Self {
        let vote = |node| Vote { until: votes.contains(&node).then_some(until), doubtful: false };
        Self { nodes: (0..nodes).map(vote).collect(), majority: nodes / 2 + 1 }
    }

    /// Until when a majority votes for it, if one does.
    pub(super) fn majority_until(&self) -> Option<Instant> {
        lease::majority_until(self.valid(), self.majority)
    }

    /// A node votes, until then at least.
    pub(super) fn add(&mut self, node: NodeIndex, until: Instant) {
        let vote = &mut self.nodes[node];
        vote.until = vote.until.max(Some(until));
    }

    /// A node does not vote any more; whether the others are a majority.
    pub(super) fn remove(&mut self, node: NodeIndex) -> bool {
        self.nodes[node].until = None;
        self.valid().count() >= self.majority
    }

    /// Something that was sent to this node may put the lock there at any time, or never.
    pub(super) fn doubt(&mut self, node: NodeIndex) {
        self.nodes[node].doubtful = true;
    }

    /// Whether something may be executed on this node at any time that puts the lock there.
    pub(super) fn is_doubtful(&self, node: NodeIndex) -> bool {
        self.nodes[node].doubtful
    }

    fn valid(&self) -> impl Iterator<Item = Instant> {
        self.nodes.iter().filter_map(|vote| vote.until)
    }
}
