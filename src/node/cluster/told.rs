//! What the servers of a cluster tell about it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc::unbounded_channel;

use super::super::Wiring;
use super::super::address::Address;
use super::super::check;
use super::super::client::Role;
use super::super::link::Link;
use super::super::place::Place;
use super::super::reply::{Outcome, Reply};
use super::ears::Subscribing;
use super::seeds::Seeds;
use super::slots::SlotMap;
use crate::error::{Error, NodeFailure};
use crate::preflight::field;

/// A map of slots, and when it was made, in the cluster's own count.
pub(super) struct Told {
    pub(super) epoch: u64,
    pub(super) map: SlotMap,
}

/// Asks one of the seeds for the map of slots, the first one that answers.
///
/// # Errors
/// [`Error::Unavailable`] where none answers, [`Error::Server`] where one refuses us, [`Error::Config`] for one in no
/// cluster.
pub(super) async fn ask_seeds(seeds: &Arc<Seeds>, wiring: &Wiring<'_>) -> Result<(Told, Subscribing), Error> {
    let mut asking: FuturesUnordered<_> = seeds.addresses.iter().map(|address| ask_seed(address, wiring)).collect();
    let (mut failures, mut refusal) = (Vec::new(), None);
    while let Some(told) = asking.next().await {
        match told {
            Ok(told) => return Ok(told),
            Err(Error::Unavailable { nodes, .. }) => failures.extend(nodes),
            Err(refused) => refusal = Some(refused),
        }
    }
    Err(refusal.unwrap_or(Error::Unavailable {
        servers: seeds.addresses.len(),
        nodes: failures,
        waited: Duration::ZERO,
    }))
}

async fn ask_seed(address: &Arc<Address>, wiring: &Wiring<'_>) -> Result<(Told, Subscribing), Error> {
    let (name, bound) = (&address.name, wiring.settings.connect_timeout);
    let (events, _) = unbounded_channel();
    let link = Link::connect(Arc::clone(address), Role::Commands, &wiring.locker, wiring.settings, events).await;
    let link = Passing(link.map_err(|e| check::refusal(name, &e, bound).at_first(address).into_error(name))?);
    let version = check::greeting(name, &link.0).await.map_err(|obstacle| obstacle.into_error(name))?;
    let unavailable = |reason: &str| {
        let nodes = vec![NodeFailure { node: Arc::clone(name), reason: reason.to_owned() }];
        Error::Unavailable { servers: 1, nodes, waited: Duration::ZERO }
    };
    let place = address.place().ok_or_else(|| unavailable("has no host"))?;
    let told = ask(&link.0, &place).await.ok_or_else(|| unavailable("does not tell which server has which slots"))?;
    Ok((told, Subscribing::to(version)))
}

/// A connection that ends when it is dropped.
struct Passing(Arc<Link>);

impl Drop for Passing {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

/// Asks a server for the map of slots. `None`: it does not tell.
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
