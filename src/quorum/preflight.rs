//! Checks all servers for `preflight`.

use futures_util::future::join_all;

use super::Quorum;
use super::eligibility::Status;
use crate::key::Key;
use crate::lease::NodeIndex;
use crate::options::Settings;
use crate::preflight::{Deployment, Preflight, Questions, ServerReport};
use crate::script;

impl Quorum {
    /// Checks all servers at once. Each of them may take twice `connect_timeout`.
    pub(crate) async fn preflight(&self, settings: &Settings, names: &[Key]) -> Preflight {
        let in_cluster = self.nodes.iter().any(|node| node.is_cluster());
        let deployment = if in_cluster { Deployment::Cluster } else { Deployment::Independent(self.nodes.len()) };
        let asked = Questions::new(settings, deployment, names);
        let reports = join_all(self.nodes.iter().map(|node| script::preflight(node, &asked))).await;
        let servers = reports.into_iter().enumerate().flat_map(|(place, reports)| {
            let abstains = self.why_no_vote(place);
            reports.into_iter().map(move |report| ServerReport { abstains: abstains.clone(), ..report })
        });
        Preflight::new(settings, deployment, servers.collect())
    }

    /// Returns why the vote of this server does not count at the moment.
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
