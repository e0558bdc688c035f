//! The masters of a cluster: the connections to each, and the map that says which has which slot.
//!
//! The servers tell the map. It is asked for again when something is in doubt (a server redirects,
//! or does not answer), and every few seconds. Of several maps the one with the highest epoch
//! counts.
//!
//! # Invariants
//! - A map is used if its servers know a node of the map in use. A server that knows none is a
//!   stranger: nothing is sent to it, and its connections are closed. Only if no server that is
//!   known answers, the seeds are believed.
//! - A map with a lower epoch than that of the map in use counts if most masters tell one: a master
//!   that was deposed while it stood still does not know that yet, but most masters know of each
//!   change.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::super::address::Address;
use super::super::cluster_nodes::ClusterNodes;
use super::super::host_port::HostPort;
use super::super::link::LinkEvent;
use super::super::redis::Redis;
use super::super::slot::{Slot, slot_of};
use super::super::{Events, Wiring};
use super::seeds::Seeds;
use super::slots::SlotMap;
use super::subscriptions::{MasterSubscriptions, Subscribing};
use super::view::{ClusterView, PAUSE, ask, ask_seeds};
use crate::clock::{Instant, by};
use crate::error::NodeFailure;
use crate::foreign::{self, log};
use crate::presence::Part;
use crate::sync::{Arc, Mutex, MutexGuard};

/// How often the map is asked for if nothing is in doubt.
const REFRESH: Duration = Duration::from_secs(5);

/// How long after a server was found to be a stranger it is connected to again.
const ESTRANGED: Duration = Duration::from_secs(1);

/// The longest pause between two requests, while something stays in doubt.
const LONGEST_PAUSE: Duration = Duration::from_millis(300);

/// The masters that this locker knows.
pub(super) struct Masters {
    pub(super) seeds: Arc<Seeds>,
    /// As each of them needs it.
    pub(super) wiring: Wiring,
    /// Receives the messages.
    heard: UnboundedSender<LinkEvent>,
    state: Mutex<State>,
    /// The nodes of the map in use.
    pub(super) known: Arc<ClusterNodes>,
    in_doubt: Notify,
    /// The number of times that the map has been asked for.
    pub(super) refreshed: watch::Sender<u64>,
    /// The mismatched replies of servers that are no longer masters.
    pub(super) mismatched: AtomicU64,
    pub(super) stopped: CancellationToken,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) map: SlotMap,
    /// The epoch of the map: the cluster counts its changes.
    epoch: u64,
    pub(super) masters: HashMap<HostPort, Arc<Master>>,
    /// Since when the map has not named these.
    absent: HashMap<HostPort, Instant>,
    /// The places of this map where servers of another cluster are, and until when they are not
    /// connected to.
    strangers: HashMap<HostPort, Instant>,
    /// Until when nothing is sent, since the cluster is down, and its answer.
    down: Option<(Instant, NodeFailure)>,
    /// The channels that are subscribed.
    pub(super) wanted: HashSet<String>,
    pub(super) subscribing: Subscribing,
}

/// One of the masters.
pub(super) struct Master {
    pub(super) place: HostPort,
    pub(super) redis: Arc<Redis>,
    pub(super) subscriptions: Arc<MasterSubscriptions>,
}

impl State {
    pub(super) fn master(&self, slot: Slot) -> Option<&Arc<Master>> {
        self.masters.get(self.map.master(slot)?)
    }

    /// Returns the place of the slot's master, if another cluster's server is there.
    pub(super) fn stranger_with(&self, slot: Slot) -> Option<&HostPort> {
        self.map
            .master(slot)
            .filter(|place| self.strangers.contains_key(place))
    }

    /// Returns the places of masters that have slots, if another cluster's servers are there.
    pub(super) fn strangers_with_slots(&self) -> Vec<HostPort> {
        let is_strange = |place: &HostPort| {
            self.strangers.contains_key(place) && !self.masters.contains_key(place)
        };
        self.map.masters().into_iter().filter(is_strange).collect()
    }

    /// Returns the masters that have slots, in the order of their addresses.
    pub(super) fn named(&self) -> Vec<Arc<Master>> {
        self.map
            .masters()
            .iter()
            .filter_map(|place| self.masters.get(place))
            .cloned()
            .collect()
    }

    /// Tells the task of each master which channels to subscribe. `resubscribe`: as
    /// [`MasterSubscriptions::want_all`].
    pub(super) fn listen(&self, resubscribe: bool) {
        let mut wanted: HashMap<&HostPort, HashSet<String>> = HashMap::new();
        for name in &self.wanted {
            if let Some(master) = self.master(slot_of(name)) {
                wanted
                    .entry(&master.place)
                    .or_default()
                    .insert(name.clone());
            }
        }
        for master in self.masters.values() {
            master.subscriptions.want_all(
                wanted.remove(&master.place).unwrap_or_default(),
                resubscribe,
            );
        }
    }

    /// Removes the masters that the map has not named for a while.
    fn take_absent(&mut self, now: Instant) -> Vec<Arc<Master>> {
        let named = self.map.masters();
        self.absent
            .retain(|place, _| named.binary_search(place).is_err());
        let absent: Vec<_> = self
            .masters
            .keys()
            .filter(|place| named.binary_search(place).is_err())
            .cloned()
            .collect();
        let mut over = Vec::new();
        for place in absent {
            let since = *self.absent.entry(place.clone()).or_insert(now);
            // The servers' maps differ for a moment after each change.
            if now.since(since) >= 2 * REFRESH {
                self.absent.remove(&place);
                over.extend(self.masters.remove(&place));
            }
        }
        over
    }
}

impl Masters {
    /// Makes the masters of a cluster of which nothing is known yet. Messages go to `heard`.
    pub(super) fn new(
        seeds: &Arc<Seeds>,
        wiring: &Wiring,
        heard: UnboundedSender<LinkEvent>,
    ) -> Arc<Self> {
        Arc::new(Self {
            seeds: Arc::clone(seeds),
            wiring: Wiring {
                part: Part::Master,
                ..wiring.clone()
            },
            heard,
            state: Mutex::default(),
            known: Arc::default(),
            in_doubt: Notify::new(),
            refreshed: watch::Sender::new(0),
            mismatched: AtomicU64::new(0),
            stopped: CancellationToken::new(),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the connections to all of them.
    pub(super) fn all(&self) -> Vec<Arc<Redis>> {
        self.state()
            .masters
            .values()
            .map(|master| Arc::clone(&master.redis))
            .collect()
    }

    pub(super) fn doubt(&self) {
        self.in_doubt.notify_one();
    }

    /// Starts the task that keeps the map.
    pub(super) fn begin(self: &Arc<Self>) {
        let masters = Arc::clone(self);
        tokio::spawn(foreign::restarted(async move |_| keep(&masters).await));
    }

    /// Adds a master, and starts the task of its subscriptions.
    pub(super) fn enlist(self: &Arc<Self>, place: HostPort, redis: Redis, events: Events) {
        let redis = Arc::new(redis);
        let subscriptions = Arc::<MasterSubscriptions>::default();
        let subscribing = self.state().subscribing;
        let doubted = Arc::clone(self);
        let doubt = move || doubted.doubt();
        subscriptions.begin(
            Arc::clone(&redis),
            subscribing,
            events.subscriber,
            self.heard.clone(),
            doubt,
        );
        let master = Arc::new(Master {
            place: place.clone(),
            redis,
            subscriptions,
        });
        self.state().masters.insert(place, master);
    }

    /// Returns the address of the master at this place.
    pub(super) fn address(&self, place: &HostPort) -> Arc<Address> {
        Arc::new(self.seeds.addresses[0].at_node(place, &self.known))
    }

    /// Puts a map into use.
    pub(super) fn apply(self: &Arc<Self>, told: ClusterView) {
        self.known.replace(told.nodes);
        let unknown: Vec<_> = {
            let mut state = self.state();
            let named = told.map.masters();
            let now = Instant::now();
            state
                .strangers
                .retain(|place, _| named.binary_search(place).is_ok());
            let is_wanted = |place: &HostPort| {
                !state.masters.contains_key(place)
                    && state.strangers.get(place).is_none_or(|until| *until <= now)
            };
            named.into_iter().filter(is_wanted).collect()
        };
        for place in unknown {
            let (redis, events) = Redis::await_server(&self.address(&place), &self.wiring);
            self.enlist(place, redis, events);
        }
        let gone: Vec<_> = {
            let mut state = self.state();
            // Slots may have been elsewhere in the meantime.
            let resubscribe = told.epoch != state.epoch;
            (state.map, state.epoch) = (told.map, told.epoch);
            state.listen(resubscribe);
            state.take_absent(Instant::now())
        };
        for master in gone {
            master.redis.presence().is_out_of_use();
            self.retire(master, self.wiring.settings.command_timeout);
        }
    }

    /// Notes that it was logged that these masters are away.
    pub(super) fn are_known_to_be_away(&self, failures: &[NodeFailure]) {
        let all = self.all();
        let away = all.iter().filter(|redis| {
            failures
                .iter()
                .any(|failure| failure.node == *redis.commands().server())
        });
        away.for_each(|redis| redis.presence().is_known_to_be_away());
    }

    /// Notes that the cluster said that it is down: nothing is sent for a while.
    pub(super) fn went_down(&self, failure: &NodeFailure) {
        // fred closes the connection on that answer: asking again at once would cost another one.
        let pause = (self.wiring.settings.lease / 30)
            .clamp(Duration::from_millis(50), Duration::from_secs(1));
        self.state().down = Some((Instant::now() + pause, failure.clone()));
    }

    /// Returns why nothing is sent, if the cluster is down.
    pub(super) fn is_down(&self) -> Option<NodeFailure> {
        let mut state = self.state();
        state.down.take_if(|(until, _)| *until <= Instant::now());
        state.down.as_ref().map(|(_, failure)| failure.clone())
    }

    /// Ends the connections to a server that is no longer a master, after giving it time to answer
    /// what it was sent.
    fn retire(&self, master: Arc<Master>, pause: Duration) {
        self.mismatched
            .fetch_add(master.redis.mismatched_replies(), Ordering::Relaxed);
        tokio::spawn(async move {
            sleep(pause).await;
            master.redis.retire().await;
        });
    }

    /// Ends the connections to a server of another cluster.
    fn shut_out(&self, place: HostPort) {
        let mut state = self.state();
        let master = state.masters.remove(&place);
        let is_news = state
            .strangers
            .insert(place, Instant::now() + ESTRANGED)
            .is_none();
        drop(state);
        let Some(master) = master else { return };
        if is_news {
            log!(
                warn, node = %master.redis.commands().server(),
                "this server belongs to another cluster: nothing is sent to it, and its connections are closed"
            );
        }
        self.retire(master, Duration::ZERO);
    }

    /// Asks all masters for the map, or the seeds if none answers that is known.
    async fn refresh(self: &Arc<Self>) {
        self.known
            .take_strangers()
            .into_iter()
            .for_each(|place| self.shut_out(place));
        let (told, any) = self.ask_masters().await;
        let told = match told {
            // Only then: the servers of the address may be those of another cluster by now.
            None if !any => self.ask_seeds().await,
            told => told,
        };
        if let Some(told) = told {
            self.apply(told);
        }
        self.refreshed.send_modify(|count| *count += 1);
    }

    /// Asks all masters for the map. Returns the one that counts, and whether a server that is
    /// known told any.
    async fn ask_masters(&self) -> (Option<ClusterView>, bool) {
        let (masters, epoch, named) = {
            let state = self.state();
            let masters: Vec<_> = state.masters.values().map(Arc::clone).collect();
            (masters, state.epoch, state.map.masters())
        };
        // Each is a task that runs to its end: only then does fred take a command out of its queue.
        let ask = |master: Arc<Master>| {
            tokio::spawn(async move { ask(master.redis.commands(), &master.place).await })
        };
        let mut asking: FuturesUnordered<_> = masters.into_iter().map(ask).collect();
        let mut answers = Vec::new();
        let mut patience = None;
        // Masters that are slower than the first one do not delay the map.
        while let Some(told) = by(patience, asking.next()).await.flatten() {
            // A task that panicked counts as no answer.
            let Ok(Some(told)) = told else { continue };
            if !self.known.has_any(&told.nodes) {
                self.shut_out(told.by);
                continue;
            }
            self.state().strangers.remove(&told.by);
            // An older map does not end the wait for a newer one.
            if told.epoch >= epoch {
                patience.get_or_insert_with(|| Instant::now() + PAUSE);
            }
            answers.push(told);
        }
        let any = !answers.is_empty();
        (newest(answers, epoch, &named), any)
    }

    /// Asks the seeds for the map.
    async fn ask_seeds(&self) -> Option<ClusterView> {
        match ask_seeds(&self.seeds, &self.wiring, &self.known).await {
            Ok((told, subscribing)) => {
                if !self.known.has_any(&told.nodes) {
                    log!(
                        warn, node = %self.seeds.name, from = %told.by,
                        "no known node of the cluster answers: switching to the new cluster at its address"
                    );
                }
                let mut state = self.state();
                state.subscribing = subscribing;
                // Whoever was a stranger may belong to this cluster.
                state.strangers.clear();
                Some(told)
            }
            Err(obstacle) => {
                let error = obstacle.into_error(&self.seeds.name);
                log!(debug, cluster = %self.seeds.name, %error, "no server reported the slots");
                None
            }
        }
    }
}

/// Returns the map that counts: the one with the highest epoch. It may be lower than that of the
/// map in use, whose masters are `named`, if more than half of them say so: then the cluster was
/// set back.
fn newest(answers: Vec<ClusterView>, epoch: u64, named: &[HostPort]) -> Option<ClusterView> {
    let set_back = answers
        .iter()
        .filter(|told| told.epoch < epoch && named.binary_search(&told.by).is_ok())
        .count();
    let newest = answers
        .into_iter()
        .reduce(|one, other| if one.epoch >= other.epoch { one } else { other })?;
    (newest.epoch >= epoch || set_back * 2 > named.len()).then_some(newest)
}

/// Keeps the map of slots up to date. Restarted after a panic; ends with
/// [`Cluster::quit`](super::Cluster::quit); no task awaits it.
async fn keep(masters: &Arc<Masters>) {
    let mut pause = PAUSE;
    loop {
        tokio::select! {
            biased;
            () = masters.stopped.cancelled() => return,
            // No wake-up is lost: only this task waits, and each of the bells keeps a permit.
            () = masters.in_doubt.notified() => {}
            () = masters.known.found.notified() => {}
            () = sleep(REFRESH) => pause = PAUSE,
        }
        let before = masters.state().map.clone();
        tokio::select! {
            biased;
            () = masters.stopped.cancelled() => return,
            () = masters.refresh() => {}
        }
        // If the map does not change, it is asked for less and less often.
        pause = if masters.state().map == before {
            (pause * 2).min(LONGEST_PAUSE)
        } else {
            PAUSE
        };
        sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::cluster_nodes::NodeIds;
    use super::*;

    fn place(port: u16) -> HostPort {
        HostPort {
            host: "h".into(),
            port,
        }
    }

    fn told(port: u16, epoch: u64) -> ClusterView {
        ClusterView {
            by: place(port),
            epoch,
            map: SlotMap::default(),
            nodes: NodeIds::default(),
        }
    }

    #[test]
    fn an_older_map_counts_only_if_most_masters_tell_one() {
        let named = [1, 2, 3].map(place);
        let counts = |answers: Vec<ClusterView>| newest(answers, 7, &named).map(|told| told.epoch);
        assert_eq!(counts(vec![]), None);
        assert_eq!(
            counts(vec![told(1, 6)]),
            None,
            "it may have been deposed while it stood still"
        );
        assert_eq!(
            counts(vec![told(1, 6), told(9, 6)]),
            None,
            "the map in use does not name the other one"
        );
        assert_eq!(
            counts(vec![told(1, 6), told(2, 7), told(3, 6)]),
            Some(7),
            "one knows of a later change"
        );
        assert_eq!(counts(vec![told(1, 8), told(2, 7)]), Some(8));
        assert_eq!(
            counts(vec![told(1, 2), told(3, 3)]),
            Some(3),
            "it was set back"
        );
    }
}
