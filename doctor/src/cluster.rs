//! The reasons why the masters of a cluster do not keep a promise. Pure.

use std::time::Duration;

use crate::cases::{Case, Wanted};
use crate::found::{Finding, Mode, ServerReport};

/// The number of slots of every cluster.
const SLOTS: u64 = 16_384;

/// With fewer masters than this, the rest is no majority that can vote for a replica.
const FEWEST: u64 = 3;

/// About how long the election of a replica takes once its master counts as gone.
const ELECTION: Duration = Duration::from_secs(1);

impl Wanted {
    /// Judges whether the cluster of this master, if it is in one, takes locks of all slots.
    pub(crate) fn slots_of(&self, at: &ServerReport, case: &mut Case) {
        let (Some(cluster), Finding::Known(Mode::Cluster(state))) = (&at.cluster, &at.mode) else {
            return;
        };
        match state {
            Finding::Known(state) if state != "ok" => {
                let problem =
                    format!("refuses everything: its cluster is down (cluster_state:{state})");
                case.breaks(
                    at,
                    problem,
                    "look at `CLUSTER NODES`, and bring back what is missing",
                );
            }
            state => case.wonders(at, "whether its cluster is up", state),
        }
        let Finding::Known(slots) = &cluster.slots else {
            return;
        };
        if slots.assigned < SLOTS {
            let problem = format!("knows of a master for {} of {SLOTS} slots", slots.assigned);
            case.breaks(at, problem, "`redis-cli --cluster fix`");
        }
        if slots.failing > 0 {
            let problem = format!(
                "does not reach the masters of {} of {SLOTS} slots",
                slots.failing
            );
            case.breaks(
                at,
                problem,
                "look at `CLUSTER NODES`, and bring back what is missing",
            );
        }
    }

    /// Judges whether another server would replace this master soon enough for its locks to be
    /// renewed in time.
    pub(crate) fn succession_of(&self, at: &ServerReport) -> Case {
        let mut case = self.locking_of(at);
        if at.failure.is_some() {
            return case;
        }
        let Some(cluster) = &at.cluster else {
            return case;
        };
        match at.online() {
            Some(0) => {
                let others = match cluster.requires_full_coverage {
                    Finding::Known(true) => {
                        ", and no client locks anything (cluster-require-full-coverage yes)"
                    }
                    _ => "",
                };
                let problem = format!(
                    "has no replica in step: while it is away no node has its slots{others}"
                );
                case.breaks(at, problem, "a replica for each master");
            }
            Some(_) => {}
            None => case.wonders(at, "whether it has a replica", &at.replicas),
        }
        if let Finding::Known(slots) = &cluster.slots
            && slots.masters < FEWEST
        {
            let problem = format!(
                "is one of {} masters, which cannot vote for a replica without it",
                slots.masters
            );
            case.breaks(at, problem, "three masters or more");
        }
        match cluster.node_timeout {
            // A hold survives if its renewals fail for less than a third of its lease.
            Finding::Known(silence) if silence + ELECTION > self.lease / 3 => {
                let problem = format!(
                    "is replaced after about {:?} (cluster-node-timeout and an election), and its locks are lost if \
                     that is more than a third of their lease, {:?}",
                    silence + ELECTION,
                    self.lease
                );
                let least = (silence + ELECTION) * 3;
                case.breaks(
                    at,
                    problem,
                    format!("a shorter `cluster-node-timeout`, or a `lease` of {least:?}"),
                );
            }
            ref timeout => case.wonders(at, "its cluster-node-timeout", timeout),
        }
        case
    }
}
