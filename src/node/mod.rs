//! One independent server: a Redis or Valkey, a cluster of them, or a server in memory. The only
//! place that knows fred.
//!
//! A Redis, and each master of a cluster, has three connections: commands, subscriber, renewals.
//! With `replica_acks` there is a fourth for what replicas have to acknowledge: acquires, retakes,
//! the raise of a fence, counts of latches (`Lane::Grants`, otherwise the connection for commands).
//! One connection would be enough for a server, but not for fred: it gives an error reply to
//! SUBSCRIBE to the next command, which on a shared connection is a lock's. Renewals must not wait
//! behind a burst of acquires, nor end with a connection that is given up because of one. The
//! subscriber speaks RESP3, since a subscribed connection refuses other commands in RESP2; the
//! others speak RESP2.
//!
//! A node is made and used inside the engine's runtime.

mod access;
mod address;
mod admission;
mod batcher;
mod call;
mod check;
mod client;
mod cluster;
mod cluster_nodes;
mod dial;
mod door;
mod host_port;
mod inline;
mod link;
mod login;
#[cfg(feature = "testing")]
mod memory;
mod naming;
mod number;
mod packed;
mod redis;
mod replica_acks;
mod reply;
mod scheme;
mod script_runner;
mod sentinel;
mod sentinels;
mod slot;
#[cfg(feature = "tls")]
mod tls;
mod word_list;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

pub(crate) use self::access::Access;
use self::address::Address;
pub(crate) use self::batcher::{Batched, Step};
pub(crate) use self::call::Call;
pub(crate) use self::check::IN_CLUSTER_MODE;
pub(crate) use self::cluster::Cluster;
use self::cluster::Seeds;
pub(crate) use self::door::{Asker, Door, Response};
pub(crate) use self::link::{LinkEvent, hear_during};
pub(crate) use self::login::Provider;
#[cfg(feature = "testing")]
use self::memory::MemoryConnection;
pub(crate) use self::redis::Redis;
pub(crate) use self::replica_acks::ReplicaAck;
pub(crate) use self::reply::{Outcome, Reply, is_forbidden, is_of_server};
pub(crate) use self::slot::{mark_of, slot_of};
#[cfg(feature = "tls")]
pub use self::tls::Tls;
pub(crate) use self::word_list::{Spell, WordList};
use crate::error::{Error, NodeFailure};
use crate::options::Settings;
use crate::presence::{Part, Presence, Roll};
#[cfg(feature = "testing")]
use crate::testing;

/// Which connection a script travels on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    Commands,
    /// For scripts whose writes replicas have to acknowledge, and for those that have to come
    /// behind them. With `replica_acks` it is a connection of its own, which the WAIT in flight may
    /// hold up; otherwise it is that of the commands.
    Grants,
    Renewals,
}

/// A server to connect to, as its address describes it.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    Redis(Arc<Address>),
    Cluster(Arc<Seeds>),
    #[cfg(feature = "testing")]
    Memory(testing::Server),
}

impl Target {
    /// # Errors
    /// [`Error::Config`] that says what is wrong with the address, its password as `***`, or with
    /// the TLS options or the credentials.
    pub(crate) fn parse(url: &str, access: &Access) -> Result<Self, Error> {
        match Seeds::parse(url, access) {
            Some(seeds) => seeds.map(|seeds| Self::Cluster(Arc::new(seeds))),
            None => Address::parse(url, access).map(|address| Self::Redis(Arc::new(address))),
        }
    }

    /// Returns the name of an address, without making it usable for connecting.
    ///
    /// # Errors
    /// [`Error::Config`] that says what is wrong with the address, its password as `***`.
    pub(crate) fn name_of(url: &str) -> Result<Arc<str>, Error> {
        Seeds::name_of(url).unwrap_or_else(|| Address::name_of(url))
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        match self {
            Self::Redis(address) => &address.name,
            Self::Cluster(seeds) => &seeds.name,
            #[cfg(feature = "testing")]
            Self::Memory(server) => server.name(),
        }
    }

    /// Returns why connecting to it failed, if it did.
    pub(crate) fn last_failure(&self) -> Option<NodeFailure> {
        match self {
            Self::Redis(address) => address.last_failure(),
            Self::Cluster(seeds) => seeds.last_failure(),
            #[cfg(feature = "testing")]
            Self::Memory(_) => None,
        }
    }

    /// Returns why it could not be connected to for the whole of `bound`.
    pub(crate) fn away(&self, bound: Duration) -> NodeFailure {
        match self {
            Self::Redis(address) => address.away(bound),
            Self::Cluster(seeds) => seeds.away(bound),
            #[cfg(feature = "testing")]
            Self::Memory(server) => {
                let reason = format!("did not answer within connect_timeout = {bound:?}");
                NodeFailure::new(server.name(), reason)
            }
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    #[cfg(feature = "testing")]
    pub(crate) fn is_in_memory(&self) -> bool {
        matches!(self, Self::Memory(_))
    }
}

/// One server and the connections to it.
pub(crate) struct Node {
    name: Arc<str>,
    server: Backend,
}

/// What kind of server a node is.
pub(crate) enum Backend {
    Redis(Redis),
    Cluster(Cluster),
    #[cfg(feature = "testing")]
    Memory(MemoryConnection),
}

/// The events of a node's connections.
#[derive(Debug)]
pub(crate) struct Events {
    pub(crate) subscriber: UnboundedReceiver<LinkEvent>,
    /// Reconnects of the connections for grants, among others.
    pub(crate) grants: UnboundedReceiver<LinkEvent>,
}

impl Events {
    /// Returns the events of a node, and where its connections send them: the subscriber's, and
    /// those for grants.
    fn channels() -> (Self, UnboundedSender<LinkEvent>, UnboundedSender<LinkEvent>) {
        let (heard, subscriber) = unbounded_channel();
        let (ups, grants) = unbounded_channel();
        (Self { subscriber, grants }, heard, ups)
    }
}

impl Node {
    /// Connects, and checks that this crate can work with the server. Returns the events of the
    /// subscriber's connection; those of the renewals' connection go to `reconnected`. Waits for a
    /// server that does not answer: its [`Target::last_failure`] says why.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the server cannot be trusted or understood, [`Error::Server`] if
    /// it refuses the credentials, [`Error::Config`] if it is too old or in the wrong mode.
    pub(crate) async fn connect(
        target: &Target,
        wiring: Wiring,
    ) -> Result<(Arc<Self>, Events), Error> {
        let (server, events) = match target {
            Target::Redis(address) => {
                let (redis, events) = Redis::connect(address, &wiring).await?;
                (Backend::Redis(redis), events)
            }
            Target::Cluster(seeds) => {
                let (cluster, events) = Cluster::connect(seeds, &wiring).await?;
                (Backend::Cluster(cluster), events)
            }
            #[cfg(feature = "testing")]
            Target::Memory(server) => {
                let (memory, events) = MemoryConnection::connect(server, &wiring).await?;
                (Backend::Memory(memory), events)
            }
        };
        Ok((Self::new(target, server), events))
    }

    /// Returns a node whose server cannot be reached.
    #[cfg(test)]
    pub(crate) fn of_nobody(settings: &Settings) -> Arc<Self> {
        let target = Target::parse("redis://127.0.0.1:1", &Access::default()).expect("an address");
        let (reconnected, _) = unbounded_channel();
        Self::await_server(
            &target,
            &Wiring::new("", settings, reconnected, &Arc::default()),
        )
        .0
    }

    /// Returns a node whose server is away, and connects to it in the background.
    pub(crate) fn await_server(target: &Target, wiring: &Wiring) -> (Arc<Self>, Events) {
        let (server, events) = match target {
            Target::Redis(address) => {
                let (redis, events) = Redis::await_server(address, wiring);
                (Backend::Redis(redis), events)
            }
            Target::Cluster(seeds) => {
                let (cluster, events) = Cluster::await_server(seeds, wiring);
                (Backend::Cluster(cluster), events)
            }
            #[cfg(feature = "testing")]
            Target::Memory(server) => {
                let (memory, events) = MemoryConnection::new(server, wiring);
                (Backend::Memory(memory), events)
            }
        };
        (Self::new(target, server), events)
    }

    fn new(target: &Target, server: Backend) -> Arc<Self> {
        Arc::new(Self {
            name: Arc::clone(target.name()),
            server,
        })
    }

    /// Returns the number of a lane's connection, which changes with each reconnect.
    pub(crate) fn epoch(&self, lane: Lane) -> u64 {
        match &self.server {
            Backend::Redis(redis) => redis.epoch(lane),
            // A cluster is the only node, so its answers are never votes.
            Backend::Cluster(_) => 0,
            #[cfg(feature = "testing")]
            Backend::Memory(memory) => memory.epoch(),
        }
    }

    /// Returns whether it is a cluster, in which each slot answers for itself.
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.server, Backend::Cluster(_))
    }

    /// Returns how long a command waits for its connection.
    pub(crate) fn patience(&self) -> Duration {
        match &self.server {
            Backend::Redis(redis) => redis.patience(),
            Backend::Cluster(cluster) => cluster.patience(),
            #[cfg(feature = "testing")]
            Backend::Memory(memory) => memory.patience(),
        }
    }

    /// Returns the address, with its password as `***`.
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns the number of answers that came to the wrong command.
    pub(crate) fn mismatched_replies(&self) -> u64 {
        match &self.server {
            Backend::Redis(redis) => redis.mismatched_replies(),
            Backend::Cluster(cluster) => cluster.mismatched_replies(),
            #[cfg(feature = "testing")]
            Backend::Memory(memory) => memory.mismatched_replies(),
        }
    }

    /// Returns whether a suspicious re-entry is no reason for a panic: it is one over a server in
    /// memory.
    pub(crate) fn permits_suspicious_reentries(&self) -> bool {
        match &self.server {
            Backend::Redis(_) | Backend::Cluster(_) => true,
            #[cfg(feature = "testing")]
            Backend::Memory(memory) => memory.permits_suspicious_reentries(),
        }
    }

    /// Returns what is known of whether the server is there. A cluster has no such state: each of
    /// its masters has one.
    pub(crate) fn presence(&self) -> Option<&Arc<Presence>> {
        match &self.server {
            Backend::Redis(redis) => Some(redis.presence()),
            Backend::Cluster(_) => None,
            #[cfg(feature = "testing")]
            Backend::Memory(memory) => Some(memory.presence()),
        }
    }

    /// Returns the server that runs its commands.
    pub(crate) fn server(&self) -> &Backend {
        &self.server
    }

    /// Subscribes and unsubscribes, and waits until the server has done so.
    pub(crate) async fn resubscribe(&self, add: Vec<String>, remove: Vec<String>) -> Outcome<()> {
        match &self.server {
            Backend::Redis(redis) => redis.resubscribe(add, remove).await,
            Backend::Cluster(cluster) => cluster.resubscribe(add, remove).await,
            #[cfg(feature = "testing")]
            Backend::Memory(memory) => memory.resubscribe(add, remove).await,
        }
    }

    /// Reconnects the subscriber, because its replies are out of step. A server in memory has done
    /// so by itself then.
    pub(crate) async fn reset_subscriber(&self) {
        match &self.server {
            Backend::Redis(redis) => redis.reset_subscriber().await,
            Backend::Cluster(cluster) => cluster.reset_subscriber().await,
            #[cfg(feature = "testing")]
            Backend::Memory(_) => {}
        }
    }

    /// Ends all connections.
    pub(crate) async fn quit(&self) {
        match &self.server {
            Backend::Redis(redis) => redis.quit().await,
            Backend::Cluster(cluster) => cluster.quit().await,
            #[cfg(feature = "testing")]
            Backend::Memory(memory) => memory.quit(),
        }
    }
}

/// What a node needs to know about its locker.
#[derive(Debug, Clone)]
pub(crate) struct Wiring {
    pub(crate) locker: String,
    pub(crate) settings: Settings,
    /// Receives the events of the renewals' connection.
    pub(crate) reconnected: UnboundedSender<LinkEvent>,
    /// The servers that the locker uses, and what part the node's server has.
    pub(crate) roll: Arc<Roll>,
    pub(crate) part: Part,
}

impl Wiring {
    pub(crate) fn new(
        locker: &str,
        settings: &Settings,
        reconnected: UnboundedSender<LinkEvent>,
        roll: &Arc<Roll>,
    ) -> Self {
        Self {
            locker: locker.to_owned(),
            settings: settings.clone(),
            reconnected,
            roll: Arc::clone(roll),
            part: Part::Voter,
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.name)
    }
}
