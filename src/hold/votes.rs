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
    /// How many commands may still be executed there that put the lock there. What has no answer stays among them: the
    /// answer to a later one proves nothing about it.
    coming: u32,
}

impl Votes {
    /// Of so many nodes these vote, until then.
    pub(super) fn new(nodes: usize, votes: &[NodeIndex], until: Instant) -> Self {
        let vote = |node| Vote { until: votes.contains(&node).then_some(until), coming: 0 };
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

    /// Something is on its way to this node that may put the lock there.
    pub(super) fn doubt(&mut self, node: NodeIndex) {
        self.nodes[node].coming += 1;
    }

    /// Of what was on its way to this node, one has had its answer.
    pub(super) fn trust(&mut self, node: NodeIndex) {
        let coming = &mut self.nodes[node].coming;
        *coming = coming.saturating_sub(1);
    }

    /// Whether something may still be executed on this node that puts the lock there.
    pub(super) fn is_doubtful(&self, node: NodeIndex) -> bool {
        self.nodes[node].coming > 0
    }

    fn valid(&self) -> impl Iterator<Item = Instant> {
        self.nodes.iter().filter_map(|vote| vote.until)
    }
}
