//! Where tools can ask the servers, and whether their votes count.

use super::Quorum;
use super::eligibility::Status;
use crate::lease::NodeIndex;
use crate::node::Door;

impl Quorum {
    /// Returns the doors of all servers, each with the place of its node. A cluster has several.
    pub(crate) fn doors(&self) -> Vec<(NodeIndex, Door)> {
        let doors = self.nodes.iter().enumerate();
        doors
            .flat_map(|(place, node)| Door::of(node).into_iter().map(move |door| (place, door)))
            .collect()
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.nodes.iter().any(|node| node.is_cluster())
    }

    /// Returns why the vote of this server does not count at the moment.
    pub(crate) fn why_no_vote(&self, place: NodeIndex) -> Option<String> {
        if self.eligibility.is_moot() {
            return None;
        }
        match self.eligibility.status(place) {
            Status::Votes => None,
            Status::Unknown(reason) => Some(format!(
                "has no vote before it is known who it is: {reason}"
            )),
            Status::Unfit(reason) => Some(format!("has no vote: it {reason}")),
            Status::Abstains(reason) => Some(reason),
        }
    }
}
