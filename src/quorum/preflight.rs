//! What all servers keep of a lock.

use futures_util::future::join_all;

use super::Quorum;
use super::eligibility::Status;
use crate::key::Key;
use crate::lease::NodeIndex;
use crate::options::Settings;
use crate::preflight::{Preflight, Questions};
use crate::script;

impl Quorum {
    /// Asks all servers at once. Each of them may take twice `connect_timeout`.
    pub(crate) async fn preflight(&self, settings: &Settings, names: &[Key]) -> Preflight {
        let asked = Questions::new(settings, self.nodes.len(), names);
        let mut servers = join_all(self.nodes.iter().map(|node| script::preflight(node, &asked))).await;
        for (place, server) in servers.iter_mut().enumerate() {
            server.abstains = self.why_no_vote(place);
        }
        Preflight::new(settings, servers)
    }

    /// Why the vote of this server does not count at the moment.
    fn why_no_vote(&self, place: NodeIndex) -> Option<String> {
        if self.eligibility.is_moot() {
            return None;
        }
        match self.eligibility.status(place) {
            Status::Votes => None,
            Status::Unknown(reason) => Some(format!("has no vote before it is known who it is: {reason}")),
            Status::Unfit(reason) => Some(format!("has no vote: it {reason}")),
            Status::Abstains(reason) => Some(reason),
        }
    }
}
