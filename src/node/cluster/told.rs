//! Asks the servers of a cluster for the map of slots.

use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc::unbounded_channel;

use super::super::Wiring;
use super::super::address::Address;
use super::super::check::{self, Obstacle};
use super::super::client::Role;
use super::super::link::Link;
use super::super::place::Place;
use super::super::reply::{Outcome, Reply};
use super::ears::Subscribing;
use super::seeds::Seeds;
use super::slots::SlotMap;
use crate::error::NodeFailure;
use crate::preflight::field;

/// A map of slots, and the cluster's epoch when it was told.
pub(super) struct Told {
    pub(super) epoch: u64,
    pub(super) map: SlotMap,
}

/// Asks the seeds for the map of slots. The first one that answers counts.
///
/// # Errors
/// Why none told it. It may pass if none answers, and lasts if one refuses the connection or is in no cluster.
pub(super) async fn ask_seeds(seeds: &Arc<Seeds>, wiring: &Wiring<'_>) -> Result<(Told, Subscribing), Obstacle> {
    let mut asking: FuturesUnordered<_> = seeds.addresses.iter().map(|address| ask_seed(address, wiring)).collect();
    let mut obstacle = None;
    while let Some(told) = asking.next().await {
        match (told, &obstacle) {
            (Ok(told), _) => return Ok(told),
            // An obstacle that lasts says more.
            (Err(Obstacle::Passing(_)), Some(_)) => {}
            (Err(other), _) => obstacle = Some(other),
        }
    }
    Err(obstacle.unwrap_or_else(|| Obstacle::Passing(seeds.away(wiring.settings.connect_timeout))))
}

async fn ask_seed(address: &Arc<Address>, wiring: &Wiring<'_>) -> Result<(Told, Subscribing), Obstacle> {
    let (name, bound) = (&address.name, wiring.settings.connect_timeout);
    let (events, _) = unbounded_channel();
    let link = Link::connect(Arc::clone(address), Role::Commands, &wiring.locker, wiring.settings, events).await;
    let link = link.map_err(|e| check::refusal(name, &e, bound).at_first(address).about(name));
    let link = Passing(link.map_err(|obstacle| note(obstacle, address))?);
    let version = check::greeting(name, &link.0).await.map_err(|obstacle| note(obstacle.about(name), address))?;
    let passing = |reason: &str| {
        let failure = NodeFailure { node: Arc::clone(name), reason: reason.to_owned() };
        note(Obstacle::Passing(failure), address)
    };
    let place = address.place().ok_or_else(|| passing("has no host"))?;
    let told = ask(&link.0, &place).await.ok_or_else(|| passing("does not tell which server has which slots"))?;
    Ok((told, Subscribing::to(version)))
}

/// Notes an obstacle that may pass, for callers that stop waiting.
fn note(obstacle: Obstacle, address: &Address) -> Obstacle {
    if let Obstacle::Passing(failure) = &obstacle {
        address.failed(failure.clone());
    }
    obstacle
}

/// A connection that ends when it is dropped.
struct Passing(Arc<Link>);

impl Drop for Passing {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

/// Asks a server for the map of slots. Returns `None` if it does not tell it.
pub(super) async fn ask(link: &Arc<Link>, place: &Place) -> Option<Told> {
    let info = link.call_in_step("CLUSTER", vec!["INFO".into()]).await;
    let slots = link.call_in_step("CLUSTER", vec!["SLOTS".into()]).await;
    let Outcome::Done(slots) = slots else { return None };
    let map = SlotMap::read(&slots, place)?;
    let Outcome::Done(Reply::Bytes(info)) = info else { return Some(Told { epoch: 0, map }) };
    let info = String::from_utf8_lossy(&info);
    let epoch = field(&info, "cluster_current_epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
    Some(Told { epoch, map })
}
