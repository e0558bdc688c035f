//! Connects to the servers: waits for a majority, and connects to the others once they are there.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::timeout;

use super::{Quorum, STRAGGLERS};
use crate::clock::{Instant, by};
use crate::error::{Error, NodeFailure};
use crate::foreign::log;
use crate::lease::majority;
use crate::node::{Events, LinkEvent, Node, Target, Wiring};
use crate::options::Settings;
use crate::presence::Roll;

/// The servers, and the events of each one's subscriber connection.
type Connected = (Quorum, LinkEventReceivers);

/// The events of one connection of each server.
type LinkEventReceivers = Vec<UnboundedReceiver<LinkEvent>>;

/// Connects to all servers at once. If a majority answers, the others are connected in the
/// background.
///
/// # Errors
/// See [`Node::connect`]. [`Error::Unavailable`] without a majority within `connect_timeout`;
/// [`Error::Config`] for a server that can have no vote, even if the others are a majority.
pub(crate) async fn connect(
    settings: &Settings,
    targets: &[Target],
    locker: &str,
    reconnected: &UnboundedSender<LinkEvent>,
) -> Result<Connected, Error> {
    let roll = Arc::default();
    let wiring = || Wiring::new(locker, settings, reconnected.clone(), &roll);
    let bound = settings.connect_timeout;
    let connect = |(place, target)| async move {
        (place, timeout(bound, Node::connect(target, wiring())).await)
    };
    let mut connecting: FuturesUnordered<_> = targets.iter().enumerate().map(connect).collect();
    let mut slots: Vec<_> = targets.iter().map(|_| None).collect();
    let mut failures = Vec::new();
    let mut patience = None;
    while let Some((place, connected)) = by(patience, connecting.next()).await.flatten() {
        match connected {
            Ok(Ok(node)) => slots[place] = Some(node),
            Ok(Err(Error::Unavailable { nodes, .. })) => failures.extend(nodes),
            Ok(Err(unusable)) => return Err(unusable),
            Err(_) => failures.push(targets[place].away(bound)),
        }
        if patience.is_none() && slots.iter().flatten().count() >= majority(targets.len()) {
            // A server that has failed once is known to be away.
            let is_heard = |(target, slot): (&Target, &Option<_>)| {
                slot.is_some() || target.last_failure().is_some()
            };
            let is_over = targets.iter().zip(&slots).all(is_heard);
            patience = Some(Instant::now() + if is_over { Duration::ZERO } else { STRAGGLERS });
        }
    }
    // Servers that are still connecting start again in the background.
    drop(connecting);
    if slots.iter().flatten().count() < majority(targets.len()) {
        return Err(Error::Unavailable {
            keys: Vec::new(),
            servers: targets.len(),
            nodes: failures,
            waited: Duration::ZERO,
        });
    }
    for (target, _) in targets
        .iter()
        .zip(&slots)
        .filter(|(_, slot)| slot.is_none())
    {
        let known = failures
            .iter()
            .find(|failure| failure.node() == &**target.name())
            .cloned();
        let failure = known.or_else(|| target.last_failure());
        let reason = failure
            .as_ref()
            .map_or("it has not answered yet", NodeFailure::reason);
        log!(warn, node = %target.name(), reason, "a server is away: it is connected once it is back");
    }
    let present: Vec<bool> = slots.iter().map(Option::is_some).collect();
    let awaited = |(target, slot): (&Target, Option<_>)| {
        slot.unwrap_or_else(|| Node::await_server(target, &wiring()))
    };
    let nodes: Vec<(Arc<Node>, Events)> = targets.iter().zip(slots).map(awaited).collect();
    // That these are away is logged already.
    let absent = nodes.iter().zip(&present).filter(|(_, present)| !**present);
    absent
        .filter_map(|((node, _), _)| node.presence())
        .for_each(|presence| presence.is_known_to_be_away());
    let (quorum, subscribers, ups) = over(nodes, settings, locker, roll);
    quorum.begin(&present, ups).await?;
    Ok((quorum, subscribers))
}

/// Connects to all servers in the background, and waits for none.
pub(crate) fn connect_lazily(
    settings: &Settings,
    targets: &[Target],
    locker: &str,
    reconnected: &UnboundedSender<LinkEvent>,
) -> Connected {
    let roll = Arc::default();
    let wiring = Wiring::new(locker, settings, reconnected.clone(), &roll);
    let nodes = targets
        .iter()
        .map(|target| Node::await_server(target, &wiring))
        .collect();
    let (quorum, subscribers, ups) = over(nodes, settings, locker, roll);
    quorum.begin_without_servers(ups);
    (quorum, subscribers)
}

/// Returns the quorum of these nodes, the events of their subscribers' connections, and those of
/// their grants'.
fn over(
    nodes: Vec<(Arc<Node>, Events)>,
    settings: &Settings,
    locker: &str,
    roll: Arc<Roll>,
) -> (Quorum, LinkEventReceivers, LinkEventReceivers) {
    let (nodes, events): (Vec<_>, Vec<_>) = nodes.into_iter().unzip();
    let (subscribers, ups) = events
        .into_iter()
        .map(|events| (events.subscriber, events.grants))
        .unzip();
    let quorum = Quorum::new(nodes, settings.restart_quarantine, settings.connect_timeout)
        .with_lists(locker);
    (quorum.with_roll(roll), subscribers, ups)
}
