//! Asks the servers of a cluster for the map of slots.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc::unbounded_channel;

use super::super::Wiring;
use super::super::address::Address;
use super::super::check::{self, Obstacle, field};
use super::super::client::Role;
use super::super::cluster_nodes::{ClusterNodes, NodeIds, node_ids};
use super::super::host_port::HostPort;
use super::super::link::{BriefLinks, Link};
use super::super::reply::{Outcome, Reply};
use super::seeds::Seeds;
use super::slots::SlotMap;
use super::subscriptions::Subscribing;
use crate::clock::{Instant, by};
use crate::error::NodeFailure;

/// The shortest pause between two requests for the map, how much slower than the first answer
/// another one may be, and the pause before a slot that is moving is asked again.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

/// What is said of a node that has met no others, or whose cluster has given no slots to any node
/// yet.
const SLOTLESS: &str = "does not tell which server has which slots: it is in no cluster yet, or no slots were given \
                        out (redis-cli --cluster create, or --cluster fix)";

/// A map of slots, and what the server that told it said about its cluster.
pub(super) struct ClusterView {
    pub(super) by: HostPort,
    pub(super) epoch: u64,
    pub(super) map: SlotMap,
    pub(super) nodes: NodeIds,
}

impl ClusterView {
    /// Returns whether both are maps of one cluster, as far as ids tell.
    fn is_of_cluster_of(&self, other: &Self) -> bool {
        self.nodes.is_empty() || other.nodes.is_empty() || !self.nodes.is_disjoint(&other.nodes)
    }
}

/// What a seed told, and how messages are subscribed to on servers of its version.
type SeedAnswer = (ClusterView, Subscribing);

/// Asks the seeds for the map of slots. The first one that answers counts, unless others that
/// answer soon are in another cluster: then the one with a node that is known counts, or the one of
/// most seeds.
///
/// # Errors
/// Why none told it. It may pass if none answers, or if they do not agree, and lasts if one refuses
/// the connection or is in no cluster.
pub(super) async fn ask_seeds(
    seeds: &Arc<Seeds>,
    wiring: &Wiring,
    known: &ClusterNodes,
) -> Result<SeedAnswer, Obstacle> {
    let mut asking: FuturesUnordered<_> = seeds
        .addresses
        .iter()
        .map(|address| ask_seed(address, wiring))
        .collect();
    let mut answers = Vec::new();
    let mut obstacle = None;
    let mut patience = None;
    while let Some(told) = by(patience, asking.next()).await.flatten() {
        match (told, &obstacle) {
            (Ok(answer), _) => {
                patience.get_or_insert_with(|| Instant::now() + PAUSE);
                answers.push(answer);
            }
            // An obstacle that lasts says more.
            (Err(Obstacle::Passing(_)), Some(_)) => {}
            (Err(other), _) => obstacle = Some(other),
        }
    }
    if answers.is_empty() {
        return Err(obstacle
            .unwrap_or_else(|| Obstacle::Passing(seeds.away(wiring.settings.connect_timeout))));
    }
    if answers.iter().any(|(told, _)| known.has_any(&told.nodes)) {
        answers.retain(|(told, _)| known.has_any(&told.nodes));
    }
    agreed(answers).map_err(|[one, other]| {
        let reason =
            format!("its servers are of two clusters: {one} knows no node that {other} knows");
        noted(
            Obstacle::Passing(NodeFailure::new(&seeds.name, reason)),
            &seeds.addresses[0],
        )
    })
}

/// Returns the answer that most agree with, the first one of them.
///
/// # Errors
/// The places of two servers of two clusters, if as many agree with either.
fn agreed(mut answers: Vec<SeedAnswer>) -> Result<SeedAnswer, [HostPort; 2]> {
    let voices = |one: &ClusterView| {
        answers
            .iter()
            .filter(|(other, _)| one.is_of_cluster_of(other))
            .count()
    };
    let counts: Vec<_> = answers.iter().map(|(told, _)| voices(told)).collect();
    let most = counts.iter().copied().max().unwrap_or_default();
    let first = counts
        .iter()
        .position(|&count| count == most)
        .unwrap_or_default();
    let mut others = answers
        .iter()
        .zip(&counts)
        .filter(|(_, count)| **count == most)
        .map(|((told, _), _)| told);
    if let Some(other) = others.find(|other| !other.is_of_cluster_of(&answers[first].0)) {
        return Err([answers[first].0.by.clone(), other.by.clone()]);
    }
    Ok(answers.swap_remove(first))
}

async fn ask_seed(address: &Arc<Address>, wiring: &Wiring) -> Result<SeedAnswer, Obstacle> {
    let name = &address.name;
    let bound = wiring.settings.connect_timeout;
    let (events, _) = unbounded_channel();
    let link = Link::connect(Arc::clone(address), Role::Commands, wiring, events).await;
    let noted = |obstacle: Obstacle| noted(obstacle.about(name), address);
    let refused = |e| noted(check::refusal(name, &e, bound).at_first(address));
    let link = link.map_err(refused)?;
    let _ends = BriefLinks(vec![Arc::clone(&link)]);
    let version = check::greeting(name, &link).await.map_err(noted)?;
    let passing = |reason: &str| noted(Obstacle::Passing(NodeFailure::new(name, reason)));
    let place = address.place().ok_or_else(|| passing("has no host"))?;
    let told = ask(&link, &place).await.ok_or_else(|| passing(SLOTLESS))?;
    Ok((told, Subscribing::to(version)))
}

/// Notes an obstacle that may pass, for callers that stop waiting.
fn noted(obstacle: Obstacle, address: &Address) -> Obstacle {
    if let Obstacle::Passing(failure) = &obstacle {
        address.failed(failure.clone());
    }
    obstacle
}

/// Asks a server for the map of slots. Returns `None` if it does not tell it.
pub(super) async fn ask(link: &Arc<Link>, place: &HostPort) -> Option<ClusterView> {
    // The epoch first: the map that is told after it is no older.
    let info = link.call_in_step("CLUSTER", vec!["INFO".into()]).await;
    let slots = link.call_in_step("CLUSTER", vec!["SLOTS".into()]).await;
    let Outcome::Done(slots) = slots else {
        return None;
    };
    let epoch = match info {
        Outcome::Done(Reply::Bytes(info)) => {
            let info = String::from_utf8_lossy(&info);
            field(&info, "cluster_current_epoch")
                .and_then(|epoch| epoch.parse().ok())
                .unwrap_or(0)
        }
        // The user may not ask for it.
        Outcome::Refused(_) => 0,
        _ => return None,
    };
    Some(ClusterView {
        by: place.clone(),
        epoch,
        map: SlotMap::read(&slots, place)?,
        nodes: node_ids(&slots),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(port: u16, nodes: &[&str]) -> SeedAnswer {
        let by = HostPort {
            host: "h".into(),
            port,
        };
        let nodes = nodes.iter().map(|&id| Box::from(id)).collect();
        (
            ClusterView {
                by,
                epoch: 0,
                map: SlotMap::default(),
                nodes,
            },
            Subscribing::Sharded,
        )
    }

    #[test]
    fn of_two_clusters_the_one_of_most_seeds_counts() {
        let counts = |answers| {
            agreed(answers)
                .map(|(told, _)| told.by.port)
                .map_err(|both| both.map(|by| by.port))
        };
        let ours = |port| answer(port, &["a", "b"]);
        let foreign = |port| answer(port, &["c"]);
        assert_eq!(counts(vec![ours(1)]), Ok(1));
        assert_eq!(
            counts(vec![foreign(1), ours(2), answer(3, &["b", "d"])]),
            Ok(2)
        );
        assert_eq!(counts(vec![ours(1), foreign(2)]), Err([1, 2]));
        assert_eq!(
            counts(vec![answer(1, &[]), foreign(2)]),
            Ok(1),
            "a cluster without ids"
        );
    }
}
