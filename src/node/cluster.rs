//! A Redis cluster: its masters, each with its own connections, and which master has which slot.
//!
//! A cluster is one node, and has to be the only one: memory, votes and epochs do not apply.
//!
//! # A script in a cluster
//! 1. A command is cut by slots before it comes here. A locker's renewals are sent all at once, and
//!    a slot that fails delays no other. An acquire of several locks takes one slot after the
//!    other.
//! 2. [`Cluster::call`] sends the script to the master in the map. After `MOVED`, the map is
//!    changed, and asked for again. After `ASK`, `ASKING` and the script are sent one behind the
//!    other on one connection; with `replica_acks` the locker waits instead, since it could not say
//!    what was acknowledged. `TRYAGAIN` is waited out for half a command timeout, and is then *not
//!    executed*.
//! 3. The masters tell the map (`masters.rs`). Each connection asks which cluster its server is in
//!    before its first script (`link/membership.rs`): another cluster's node may have the address
//!    of a dead one. The answer to a script counts only if its connection is still the one that was
//!    asked.
//! 4. A release publishes its message by `PUBLISH` and by `SPUBLISH`, since Redisson listens to one
//!    or the other, depending on its settings. This crate listens to the sharded message at the
//!    master of the slot, and on Redis 6 to the other (`subscriptions.rs`). Servers end the
//!    subscriptions of a slot that leaves them, so all channels are subscribed again whenever the
//!    cluster counts a change.
//! 5. All locks of a slot share one mark, which is in the slot. A lock whose channel would be in
//!    another slot, because of odd braces in its name, is refused.
//! 6. fred gives up a connection that gets `CLUSTERDOWN`. Nothing is sent then for a thirtieth of a
//!    lease, a second at most.
//!
//! The outage clock and the book of undos belong to the whole locker, not to a master: an answer of
//! any master ends an outage, and an undo for one master may wait for another one that is silent.
//!
//! One window remains in Redis itself. A master that stood still for longer than
//! `cluster-node-timeout` believes that it is the master until the others tell it. In these
//! milliseconds it may grant or renew a lock that its replica has granted to another caller.
//!
//! # Invariants
//! - A script is sent to one server at a time. It is sent to another only if the one before
//!   answered that it has not executed it (`MOVED`, `ASK`).
//! - A server that does not answer delays nothing that is sent to another.

mod masters;
mod seeds;
mod slots;
mod subscriptions;
mod view;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

use self::masters::{Master, Masters};
pub(crate) use self::seeds::Seeds;
use self::subscriptions::MasterSubscriptions;
use self::view::{PAUSE, ask_seeds};
use super::call::Call;
use super::check::Obstacle;
use super::door::Door;
use super::host_port::HostPort;
use super::link::STRANGER;
use super::redis::{CONNECT_PAUSE, Redis};
use super::replica_acks::ReplicaAck;
use super::reply::{self, Outcome, Reply};
use super::slot::{Slot, slot_of};
use super::{Events, Lane, Wiring};
use crate::clock::Instant;
use crate::error::{Error, NodeFailure};
use crate::foreign::log;

/// How long a new subscription waits for a master that does not answer.
const SUBSCRIBING: Duration = Duration::from_millis(200);

/// A cluster and the connections to its masters.
pub(crate) struct Cluster(Arc<Masters>);

impl Cluster {
    /// Connects to the masters of the cluster that these servers belong to. Masters that do not
    /// answer are connected in the background. If none answers, tries again for as long as the
    /// future is awaited; the seeds note why.
    ///
    /// # Errors
    /// As [`Redis::connect`], if a server refuses the connection; [`Error::Config`] for a server
    /// that is in no cluster.
    pub(super) async fn connect(
        seeds: &Arc<Seeds>,
        wiring: &Wiring,
    ) -> Result<(Self, Events), Error> {
        loop {
            match Self::connect_once(seeds, wiring).await {
                Ok(connected) => return Ok(connected),
                Err(Obstacle::Passing(_)) => {}
                Err(lasting) => return Err(lasting.into_error(&seeds.name)),
            }
            sleep(CONNECT_PAUSE).await;
        }
    }

    async fn connect_once(seeds: &Arc<Seeds>, wiring: &Wiring) -> Result<(Self, Events), Obstacle> {
        let (cluster, events) = Self::new(seeds, wiring);
        let masters = &cluster.0;
        let (told, subscribing) = ask_seeds(seeds, wiring, &masters.known).await?;
        masters.state().subscribing = subscribing;
        // Before the connections: each asks whether its server knows one of these nodes.
        masters.known.replace(told.nodes.clone());
        let wiring = &masters.wiring;
        let bound = wiring.settings.connect_timeout / 2;
        let connecting = told.map.masters().into_iter().map(|place| async {
            let address = masters.address(&place);
            // The caller waits for `connect_timeout` in all, and the map has taken some of it.
            let connected = timeout(bound, Redis::connect(&address, wiring));
            (place, connected.await)
        });
        let mut connected = Vec::new();
        let mut failures = Vec::new();
        for (place, outcome) in join_all(connecting).await {
            match outcome {
                Ok(Ok(redis)) => connected.push((place, redis)),
                Ok(Err(Error::Unavailable { nodes, .. })) => failures.extend(nodes),
                Ok(Err(refused)) => return Err(Obstacle::Lasting(refused)),
                Err(_) => {
                    let node = seeds.addresses[0].at(&place).name;
                    let reason = format!("did not answer within {bound:?}");
                    failures.push(NodeFailure { node, reason });
                }
            }
        }
        if connected.is_empty() {
            let failure = failures
                .pop()
                .unwrap_or_else(|| seeds.away(wiring.settings.connect_timeout));
            seeds.addresses[0].failed(failure.clone());
            return Err(Obstacle::Passing(failure));
        }
        for failure in &failures {
            log!(
                warn,
                node = failure.node(),
                reason = failure.reason(),
                "a master of the cluster is away: it is connected once it is back"
            );
        }
        for (place, (redis, events)) in connected {
            masters.enlist(place, redis, events);
        }
        // Last: those that it does not find among the masters are connected in the background.
        masters.apply(told);
        masters.are_known_to_be_away(&failures);
        masters.begin();
        Ok((cluster, events))
    }

    /// Connects in the background to a cluster none of whose servers answers.
    pub(super) fn await_server(seeds: &Arc<Seeds>, wiring: &Wiring) -> (Self, Events) {
        let (cluster, events) = Self::new(seeds, wiring);
        // The task asks for the map at once.
        cluster.0.doubt();
        cluster.0.begin();
        (cluster, events)
    }

    fn new(seeds: &Arc<Seeds>, wiring: &Wiring) -> (Self, Events) {
        // Reconnects matter for votes only, and a cluster has none.
        let (events, heard, _) = Events::channels();
        (Self(Masters::new(seeds, wiring, heard)), events)
    }

    /// Returns how long a command waits for its connection.
    pub(super) fn patience(&self) -> Duration {
        self.0.wiring.settings.command_timeout / 2
    }

    pub(super) fn mismatched_replies(&self) -> u64 {
        let now: u64 = self
            .0
            .state()
            .masters
            .values()
            .map(|master| master.redis.mismatched_replies())
            .sum();
        self.0.mismatched.load(Ordering::Relaxed) + now
    }

    /// Runs a script once, on the master that has these keys; as [`Redis::call`]. Waits a while if
    /// their slot is moving.
    pub(crate) async fn call(&self, lane: Lane, call: Call) -> (Outcome<Reply>, ReplicaAck) {
        let slot = match one_slot(&call) {
            Ok(slot) => slot,
            Err(error) => return (Outcome::Refused(error), ReplicaAck::moot()),
        };
        let until = Instant::now() + self.patience();
        let mut moved = false;
        loop {
            if let Some(failure) = self.0.is_down() {
                return (Outcome::NotExecuted(failure), ReplicaAck::moot());
            }
            let (told_by, answer) = match self.master(slot, until).await {
                Ok(master) => (
                    master.place.clone(),
                    master.redis.call(lane, call.in_slot(slot)).await,
                ),
                Err(failure) => return (Outcome::NotExecuted(failure), ReplicaAck::moot()),
            };
            let (outcome, ack) = match redirection(&answer.0) {
                None => answer,
                Some(Redirection::Moved(to)) => {
                    self.follow(slot, &to, &told_by, until).await;
                    answer
                }
                // With `replica_acks`, it would be unknown what was acknowledged: it waits until
                // the slot has moved.
                Some(Redirection::Ask(to)) if self.0.wiring.settings.replica_acks.is_none() => {
                    match self.at(&to, &told_by) {
                        Some(master) => (master.redis.call_asking(&call).await, ReplicaAck::moot()),
                        None => answer,
                    }
                }
                Some(Redirection::Ask(_) | Redirection::Again) => answer,
            };
            let moves = redirection(&outcome);
            if let Outcome::NotExecuted(failure) | Outcome::Unknown(failure) = &outcome {
                self.0.doubt();
                if reply::code(&failure.reason) == "CLUSTERDOWN" {
                    self.0.went_down(failure);
                }
            }
            if moves.is_none() || Instant::now() + PAUSE >= until {
                return (outcome, ack);
            }
            // The first redirection is followed at once. Two masters that name each other are asked
            // with a pause in between.
            if !matches!(moves, Some(Redirection::Moved(_))) || std::mem::replace(&mut moved, true)
            {
                sleep(PAUSE).await;
            }
        }
    }

    /// Returns the master that has a slot, waiting for one if need be.
    ///
    /// # Errors
    /// No master is known to have the slot by `until`.
    async fn master(&self, slot: Slot, until: Instant) -> Result<Arc<Master>, NodeFailure> {
        loop {
            // Before the look: a map that comes after it is not missed.
            let mut refreshed = self.0.refreshed.subscribe();
            if let Some(master) = self.0.state().master(slot) {
                return Ok(Arc::clone(master));
            }
            self.0.doubt();
            if timeout(Instant::now().until(until), refreshed.changed())
                .await
                .is_err()
            {
                let reason = match self.0.state().stranger_with(slot) {
                    Some(place) => format!("{place} has slot {slot}, and {STRANGER}"),
                    None => format!("no server of the cluster is known to have slot {slot}"),
                };
                return Err(NodeFailure::new(&self.0.seeds.name, reason));
            }
        }
    }

    /// Returns the master at this place, as another master names it.
    fn at(&self, place: &str, told_by: &HostPort) -> Option<Arc<Master>> {
        self.0
            .state()
            .masters
            .get(&HostPort::parse(place, told_by)?)
            .map(Arc::clone)
    }

    /// Notes that another master has this slot now. If that master is not known yet, waits for a
    /// new map until then.
    async fn follow(&self, slot: Slot, to: &str, told_by: &HostPort, until: Instant) {
        // As in `master`.
        let mut refreshed = self.0.refreshed.subscribe();
        if let Some(master) = self.at(to, told_by) {
            let mut state = self.0.state();
            // Of many scripts that are redirected at once, only the first changes the map.
            if state.map.master(slot) != Some(&master.place) {
                state.map = state.map.moved(slot, &master.place);
                state.listen(false);
            }
            return;
        }
        self.0.doubt();
        let _: Result<_, _> = timeout(Instant::now().until(until), refreshed.changed()).await;
    }

    /// Changes the subscribed channels, and waits until the masters that answer have subscribed to
    /// the new ones.
    pub(super) async fn resubscribe(&self, add: Vec<String>, remove: Vec<String>) -> Outcome<()> {
        let mut told = Vec::new();
        {
            let mut state = self.0.state();
            for (name, wanted) in remove
                .into_iter()
                .map(|name| (name, false))
                .chain(add.into_iter().map(|name| (name, true)))
            {
                if wanted {
                    state.wanted.insert(name.clone());
                } else {
                    state.wanted.remove(&name);
                }
                if let Some(master) = state.master(slot_of(&name)) {
                    told.push((
                        Arc::clone(&master.subscriptions),
                        master.subscriptions.want(name, wanted),
                    ));
                }
            }
        }
        // A message is a hint: waiters whose channel is subscribed later poll then.
        MasterSubscriptions::all_have(
            told,
            SUBSCRIBING.min(self.0.wiring.settings.command_timeout),
        )
        .await;
        Outcome::Done(())
    }

    /// Returns the doors of its masters, and of what has slots and cannot be asked.
    pub(super) fn doors(&self) -> Vec<Door> {
        let name = || Arc::clone(&self.0.seeds.name);
        let (masters, strangers, lost) = {
            let state = self.0.state();
            (
                state.named(),
                state.strangers_with_slots(),
                state.map.without_master(),
            )
        };
        if masters.is_empty() {
            let why = self
                .0
                .seeds
                .last_failure()
                .map_or("no server of it has answered yet".to_owned(), |f| f.reason);
            return vec![Door::to_nobody(name(), why)];
        }
        let mut doors: Vec<_> = masters.iter().map(|master| master.redis.door()).collect();
        let stranger =
            |place: &HostPort| Door::to_nobody(self.0.address(place).name.clone(), STRANGER.into());
        doors.extend(strangers.iter().map(stranger));
        if lost > 0 {
            doors.push(Door::to_nobody(
                name(),
                format!("{lost} slots have no master whose address is known"),
            ));
        }
        doors
    }

    /// Reconnects the subscribers of all masters.
    pub(super) async fn reset_subscriber(&self) {
        join_all(self.0.all().iter().map(|redis| redis.reset_subscriber())).await;
    }

    /// Ends all connections.
    pub(super) async fn quit(&self) {
        self.0.stopped.cancel();
        join_all(self.0.all().iter().map(|redis| redis.quit())).await;
    }
}

/// Returns the slot of a script's keys.
///
/// # Errors
/// [`Error::Config`] if they are in several slots.
fn one_slot(call: &Call) -> Result<Slot, Error> {
    let keys = call.keys();
    let Some((first, rest)) = keys.split_first() else {
        return Ok(0);
    };
    let slot = slot_of(first);
    match rest.iter().find(|key| slot_of(key) != slot) {
        None => Ok(slot),
        Some(other) => Err(Error::config(
            "key",
            format!("{first:?} and {other:?} are in two slots of the cluster"),
        )),
    }
}

/// Where a server that does not have a slot redirects a script.
enum Redirection {
    Moved(String),
    Ask(String),
    /// Some of the keys are here and some are not: the slot is moving.
    Again,
}

fn redirection(outcome: &Outcome<Reply>) -> Option<Redirection> {
    let Outcome::NotExecuted(failure) = outcome else {
        return None;
    };
    let place = || {
        failure
            .reason
            .split_whitespace()
            .nth(2)
            .unwrap_or_default()
            .to_owned()
    };
    match reply::code(&failure.reason) {
        "MOVED" => Some(Redirection::Moved(place())),
        "ASK" => Some(Redirection::Ask(place())),
        "TRYAGAIN" => Some(Redirection::Again),
        _ => None,
    }
}
