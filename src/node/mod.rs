//! One independent server: a Redis or Valkey, a cluster of them, or one in memory. The only place that knows fred.
//!
//! A Redis, and each master of a cluster, has three connections: commands, subscriber, renewals; where replicas have to
//! acknowledge, acquires have a fourth. A node is made and used inside the engine's runtime.

mod access;
mod address;
mod admission;
mod batcher;
mod call;
mod check;
mod client;
mod cluster;
mod link;
mod login;
#[cfg(feature = "testing")]
mod memory;
mod number;
mod packed;
mod place;
mod preflight;
mod redis;
mod replica_acks;
mod reply;
mod scheme;
mod script_runner;
mod sentinel;
mod slot;
mod succession;
mod switches;
#[cfg(feature = "tls")]
mod tls;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

pub(crate) use self::access::Access;
use self::address::Address;
pub(crate) use self::batcher::{Batched, Step};
pub(crate) use self::call::Call;
pub(crate) use self::check::IN_CLUSTER_MODE;
pub(crate) use self::cluster::Cluster;
use self::cluster::Seeds;
pub(crate) use self::link::{LinkEvent, hear_during};
pub(crate) use self::login::Provider;
#[cfg(feature = "testing")]
use self::memory::Memory;
#[cfg(test)]
pub(crate) use self::number::returned;
pub(crate) use self::redis::Redis;
pub(crate) use self::replica_acks::ReplicaAck;
pub(crate) use self::reply::{Outcome, Reply, is_forbidden};
pub(crate) use self::script_runner::Lua;
pub(crate) use self::slot::{mark_of, slot_of};
#[cfg(feature = "tls")]
pub use self::tls::Tls;
use crate::error::{Error, NodeFailure};
use crate::options::Settings;
#[cfg(feature = "testing")]
use crate::testing;

/// Which connection a script travels on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    Commands,
    /// For what puts a lock there, and for what has to come behind that. Where replicas have to acknowledge, it may be
    /// held up by the WAIT that is under way, and is a connection of its own; else it is that of the commands.
    Grants,
    Renewals,
}

/// A server that can be connected to, as far as that is known before it is tried.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    Redis(Arc<Address>),
    Cluster(Arc<Seeds>),
    #[cfg(feature = "testing")]
    Memory(testing::Server),
}

impl Target {
    /// # Errors
    /// [`Error::Config`] that says what is wrong with the address, its password as `***`, or with what all servers are
    /// given.
    pub(crate) fn parse(url: &str, access: &Access) -> Result<Self, Error> {
        match Seeds::parse(url, access) {
            Some(seeds) => seeds.map(|seeds| Self::Cluster(Arc::new(seeds))),
            None => Address::parse(url, access).map(|address| Self::Redis(Arc::new(address))),
        }
    }

    /// The name of an address, which is not going to be connected to.
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

    /// Why it could not be connected to, if that was tried and failed.
    pub(crate) fn last_failure(&self) -> Option<NodeFailure> {
        match self {
            Self::Redis(address) => address.last_failure(),
            Self::Cluster(seeds) => seeds.last_failure(),
            #[cfg(feature = "testing")]
            Self::Memory(_) => None,
        }
    }

    /// Why it could not be connected to in all of this time.
    pub(crate) fn away(&self, bound: Duration) -> NodeFailure {
        match self {
            Self::Redis(address) => address.away(bound),
            Self::Cluster(seeds) => seeds.away(bound),
            #[cfg(feature = "testing")]
            Self::Memory(server) => {
                let reason = format!("did not answer within connect_timeout = {bound:?}");
                NodeFailure { node: Arc::clone(server.name()), reason }
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
    server: Server,
}

/// What kind of server a node is.
pub(crate) enum Server {
    Redis(Redis),
    Cluster(Cluster),
    #[cfg(feature = "testing")]
    Memory(Memory),
}

/// What the connections of a node tell by themselves.
#[derive(Debug)]
pub(crate) struct Events {
    pub(crate) subscriber: UnboundedReceiver<LinkEvent>,
    /// Those of the connections that grants travel on, among others.
    pub(crate) grants: UnboundedReceiver<LinkEvent>,
}

impl Node {
    /// Connects, and makes sure that the server is one that this crate can work with. Returns what the subscriber's
    /// connection tells by itself; what that of the renewals tells goes to `reconnected`. Waits for a server that does
    /// not answer: its [`Target::last_failure`] tells why.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where the server cannot be trusted or understood, [`Error::Server`] where the credentials
    /// are refused, [`Error::Config`] for a server that is too old, is in cluster mode, is a replica, or is already
    /// there under another address.
    pub(crate) async fn connect(target: &Target, wiring: Wiring<'_>) -> Result<(Arc<Self>, Events), Error> {
        let (server, events) = match target {
            Target::Redis(address) => {
                let (redis, events) = Redis::connect(address, &wiring).await?;
                (Server::Redis(redis), events)
            }
            Target::Cluster(seeds) => {
                let (cluster, events) = Cluster::connect(seeds, &wiring).await?;
                (Server::Cluster(cluster), events)
            }
            #[cfg(feature = "testing")]
            Target::Memory(server) => {
                let (memory, events) = Memory::connect(server, &wiring).await?;
                (Server::Memory(memory), events)
            }
        };
        Ok((Self::new(target, server), events))
    }

    /// A node whose server nobody reaches.
    #[cfg(test)]
    pub(crate) fn of_nobody(settings: &Settings) -> Arc<Self> {
        let target = Target::parse("redis://127.0.0.1:1", &Access::default()).expect("an address");
        let (reconnected, _) = tokio::sync::mpsc::unbounded_channel();
        Self::await_server(&target, &Wiring { locker: String::new(), settings, reconnected }).0
    }

    /// A node whose server is away: goes on connecting in the background.
    pub(crate) fn await_server(target: &Target, wiring: &Wiring<'_>) -> (Arc<Self>, Events) {
        let (server, events) = match target {
            Target::Redis(address) => {
                let (redis, events) = Redis::await_server(address, wiring);
                (Server::Redis(redis), events)
            }
            Target::Cluster(seeds) => {
                let (cluster, events) = Cluster::await_server(seeds, wiring);
                (Server::Cluster(cluster), events)
            }
            #[cfg(feature = "testing")]
            Target::Memory(server) => {
                let (memory, events) = Memory::new(server, wiring);
                (Server::Memory(memory), events)
            }
        };
        (Self::new(target, server), events)
    }

    fn new(target: &Target, server: Server) -> Arc<Self> {
        Arc::new(Self { name: Arc::clone(target.name()), server })
    }

    /// Which connection that of a lane is: another number after each reconnect.
    pub(crate) fn epoch(&self, lane: Lane) -> u64 {
        match &self.server {
            Server::Redis(redis) => redis.epoch(lane),
            // It stands alone, and its answers are no votes among others.
            Server::Cluster(_) => 0,
            #[cfg(feature = "testing")]
            Server::Memory(memory) => memory.epoch(),
        }
    }

    /// Whether it is a cluster, of which each slot answers for itself.
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.server, Server::Cluster(_))
    }

    /// How long a command waits for its connection.
    pub(crate) fn patience(&self) -> Duration {
        match &self.server {
            Server::Redis(redis) => redis.patience(),
            Server::Cluster(cluster) => cluster.patience(),
            #[cfg(feature = "testing")]
            Server::Memory(memory) => memory.patience(),
        }
    }

    /// The address, its password as `***`.
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Answers that came to the wrong command.
    pub(crate) fn misplaced_answers(&self) -> u64 {
        match &self.server {
            Server::Redis(redis) => redis.misplaced_answers(),
            Server::Cluster(cluster) => cluster.misplaced_answers(),
            #[cfg(feature = "testing")]
            Server::Memory(memory) => memory.misplaced_answers(),
        }
    }

    /// What carries its commands out.
    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// Subscribes and unsubscribes, and waits until the server has done so.
    pub(crate) async fn resubscribe(&self, add: Vec<String>, remove: Vec<String>) -> Outcome<()> {
        match &self.server {
            Server::Redis(redis) => redis.resubscribe(add, remove).await,
            Server::Cluster(cluster) => cluster.resubscribe(add, remove).await,
            #[cfg(feature = "testing")]
            Server::Memory(memory) => memory.resubscribe(add, remove).await,
        }
    }

    /// Gives the subscriber's connection up, because its replies are out of step. In memory it has given itself up
    /// then.
    pub(crate) async fn reset_subscriber(&self) {
        match &self.server {
            Server::Redis(redis) => redis.reset_subscriber().await,
            Server::Cluster(cluster) => cluster.reset_subscriber().await,
            #[cfg(feature = "testing")]
            Server::Memory(_) => {}
        }
    }

    /// Ends all connections.
    pub(crate) async fn quit(&self) {
        match &self.server {
            Server::Redis(redis) => redis.quit().await,
            Server::Cluster(cluster) => cluster.quit().await,
            #[cfg(feature = "testing")]
            Server::Memory(memory) => memory.quit(),
        }
    }
}

/// What a node is told about the locker that it belongs to.
#[derive(Debug, Clone)]
pub(crate) struct Wiring<'a> {
    pub(crate) locker: String,
    pub(crate) settings: &'a Settings,
    /// Where what the renewals' connection tells goes to.
    pub(crate) reconnected: UnboundedSender<LinkEvent>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.name)
    }
}
