//! The nodes of a cluster, by the ids that they keep at any address.

use std::collections::HashSet;
use std::mem;

use tokio::sync::Notify;

use super::host_port::HostPort;
use super::reply::Reply;
use crate::sync::Mutex;

/// The ids of nodes. A cluster's map of slots names those of masters, and of their replicas.
pub(super) type NodeIds = HashSet<Box<str>>;

/// Reads the ids in an answer to CLUSTER SLOTS.
pub(super) fn node_ids(slots: &Reply) -> NodeIds {
    fn items(reply: &Reply) -> &[Reply] {
        if let Reply::Array(items) = reply {
            items
        } else {
            &[]
        }
    }
    let nodes = items(slots)
        .iter()
        .flat_map(|range| items(range).iter().skip(2));
    let ids = nodes.filter_map(|node| match items(node).get(2) {
        Some(Reply::Bytes(id)) => std::str::from_utf8(id).ok(),
        _ => None,
    });
    ids.map(Box::from).collect()
}

/// The nodes that the map in use names.
///
/// Nodes come and go, but never all at once: who knows none of these is in another cluster.
#[derive(Debug, Default)]
pub(super) struct ClusterNodes {
    state: Mutex<State>,
    /// Reports strangers.
    pub(super) found: Notify,
}

#[derive(Debug, Default)]
struct State {
    ids: NodeIds,
    strangers: Vec<HostPort>,
}

impl ClusterNodes {
    /// Replaces them. Whether a server is a stranger has to be found out again.
    pub(super) fn replace(&self, ids: NodeIds) {
        *self.state.lock() = State {
            ids,
            strangers: Vec::new(),
        };
    }

    /// Returns whether a server that names these nodes belongs to the cluster. A cluster without
    /// ids has no strangers.
    pub(super) fn has_any(&self, ids: &NodeIds) -> bool {
        let known = &self.state.lock().ids;
        known.is_empty() || !known.is_disjoint(ids)
    }

    /// Reports a server of another cluster.
    pub(super) fn report(&self, stranger: HostPort) {
        self.state.lock().strangers.push(stranger);
        self.found.notify_one();
    }

    /// Takes the strangers that were reported.
    pub(super) fn take_strangers(&self) -> Vec<HostPort> {
        mem::take(&mut self.state.lock().strangers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Reply {
        Reply::Bytes(text.to_owned().into())
    }

    fn node(id: &str) -> Reply {
        Reply::Array(vec![
            bytes("h"),
            Reply::Int(1),
            bytes(id),
            Reply::Array(Vec::new()),
        ])
    }

    fn slots(ids: &[&str]) -> Reply {
        let range = [Reply::Int(0), Reply::Int(1)]
            .into_iter()
            .chain(ids.iter().map(|id| node(id)));
        Reply::Array(vec![Reply::Array(range.collect())])
    }

    #[test]
    fn who_knows_none_of_the_nodes_is_a_stranger() {
        let known = ClusterNodes::default();
        assert!(
            known.has_any(&node_ids(&slots(&["a"]))),
            "nothing is known yet"
        );
        known.replace(node_ids(&slots(&["a", "b"])));
        assert!(
            known.has_any(&node_ids(&slots(&["c", "b"]))),
            "a replica that is known"
        );
        assert!(!known.has_any(&node_ids(&slots(&["c"]))) && !known.has_any(&NodeIds::new()));
        known.report(HostPort {
            host: "h".into(),
            port: 1,
        });
        known.replace(node_ids(&slots(&["c"])));
        assert_eq!(known.take_strangers(), [], "it may be none any more");
    }

    #[test]
    fn an_answer_without_ids_has_none() {
        let old = Reply::Array(vec![Reply::Array(vec![
            Reply::Int(0),
            Reply::Int(1),
            Reply::Array(vec![bytes("h"), Reply::Int(1)]),
        ])]);
        for reply in [Reply::Nil, Reply::Array(Vec::new()), old] {
            assert!(node_ids(&reply).is_empty());
        }
    }
}
