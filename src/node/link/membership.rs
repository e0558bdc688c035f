//! Whether the server of a connection belongs to the cluster that the locker knows.
//!
//! After each reconnect it may be another server: an address of a dead node may have been given to
//! a node of another cluster. No script is handed to fred before that is known. fred may have one
//! in its queue when a connection breaks, and send it on the next one: its answer does not count
//! (`Link::run`).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::{Fitness, Link};
use crate::node::address::Address;
use crate::node::client::Role;
use crate::node::cluster_nodes::{ClusterNodes, node_ids};
use crate::node::reply::Outcome;

/// Why nothing is sent to a server of another cluster.
pub(in crate::node) const STRANGER: &str = "it belongs to another cluster";

/// How long after a useless answer, or that of a stranger, a server is asked again.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Returns the nodes of which the server has to know one. Messages are hints, so a subscriber may
/// have any server.
fn known_nodes(address: &Address, role: Role) -> Option<&Arc<ClusterNodes>> {
    address.known_nodes().filter(|_| role != Role::Subscriber)
}

/// Returns what is known about a new connection.
pub(super) fn first_membership(address: &Address, role: Role) -> Fitness {
    if known_nodes(address, role).is_some() {
        Fitness::Unknown
    } else {
        Fitness::Fit
    }
}

impl Link {
    fn known_nodes(&self) -> Option<&Arc<ClusterNodes>> {
        known_nodes(&self.address, self.role)
    }

    /// Notes that the connection that was checked is gone.
    pub(super) fn forget_membership(&self) {
        let first = first_membership(&self.address, self.role);
        self.membership
            .send_if_modified(|known| std::mem::replace(known, first.clone()) != first);
    }

    /// Asks the server which nodes it knows, until it belongs to the cluster: that may become known
    /// later. Started for each connection; ends with it; no task awaits it.
    pub(super) async fn get_to_know_cluster(self: Arc<Self>) {
        let epoch = self.epoch();
        while self.epoch() == epoch && *self.membership.borrow() != Fitness::Fit {
            self.ask_for_cluster().await;
            tokio::select! {
                biased;
                () = self.ended() => return,
                () = sleep(LOOK_AGAIN) => {}
            }
        }
    }

    /// Asks the server once which nodes it knows.
    pub(super) async fn ask_for_cluster(self: &Arc<Self>) {
        let (Some(known), Some(place)) = (self.known_nodes(), self.address.place()) else {
            return;
        };
        let epoch = self.epoch();
        let Outcome::Done(slots) = self.ask_in_step("CLUSTER", vec!["SLOTS".into()]).await else {
            return;
        };
        let ids = node_ids(&slots);
        let membership = if known.has_any(&ids) {
            Fitness::Fit
        } else if ids.is_empty() {
            // It is in no cluster yet.
            return;
        } else {
            Fitness::Unfit(STRANGER.to_owned())
        };
        // Whatever it answered, it is gone.
        if self.epoch() != epoch {
            return;
        }
        if membership != Fitness::Fit {
            known.report(place);
        }
        self.membership.send_replace(membership);
    }
}
