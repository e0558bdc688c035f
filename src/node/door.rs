//! Where a tool can ask a server, and the connection that it gets: see [`servers`](crate::servers).

use std::sync::Arc;
use std::time::Duration;

use fred::bytes_utils::Str;
use fred::types::Value;
use tokio::time::timeout;

use super::check;
use super::client::Role;
use super::link::Link;
use super::reply::{Outcome, Reply};
use super::{Backend, Node};
use crate::clock::{Instant, wall_micros};
use crate::error::{Error, NodeFailure};
use crate::options::Settings;

/// A server that a tool can ask, or that the locker knows and does not reach.
#[derive(Clone)]
pub(crate) struct Door {
    pub(crate) name: Arc<str>,
    /// The Sentinels of the locker's address that name this server, and their name for it.
    pub(crate) sentinels: Vec<Self>,
    pub(crate) service: Option<Arc<str>>,
    to: Behind,
}

#[derive(Clone)]
enum Behind {
    /// The server of this connection, which gets another one, of this role.
    Redis(Arc<Link>, Role),
    #[cfg(feature = "testing")]
    Memory(Arc<Node>),
    /// Nothing that could be asked, for this reason.
    Nobody(String),
}

/// A connection of its own to a server, which ends when this is dropped. Nothing is asked after
/// `until`.
pub(crate) struct Asker {
    to: Behind,
    node: Arc<str>,
    until: Instant,
}

/// The outcome of a command of a tool.
pub(crate) struct Response {
    pub(crate) outcome: Outcome<Reply>,
    /// The time of this machine when it was sent, in microseconds since 1970.
    pub(crate) sent_us: u64,
    /// How long the answer took.
    pub(crate) took: Duration,
}

impl Door {
    pub(super) fn to_server(link: &Arc<Link>, sentinels: Vec<Self>) -> Self {
        let door = Self::new(
            Arc::clone(link.server()),
            Behind::Redis(Arc::clone(link), Role::Visitor),
        );
        Self { sentinels, ..door }
    }

    pub(super) fn to_sentinel(link: &Arc<Link>, service: &Arc<str>) -> Self {
        let door = Self::new(
            Arc::clone(link.server()),
            Behind::Redis(Arc::clone(link), Role::Sentinel),
        );
        Self {
            service: Some(Arc::clone(service)),
            ..door
        }
    }

    pub(super) fn to_nobody(name: Arc<str>, why: String) -> Self {
        Self::new(name, Behind::Nobody(why))
    }

    fn new(name: Arc<str>, to: Behind) -> Self {
        Self {
            name,
            sentinels: Vec::new(),
            service: None,
            to,
        }
    }

    /// Returns the doors of a node: of a cluster, those of its masters.
    pub(crate) fn of(node: &Arc<Node>) -> Vec<Self> {
        match node.server() {
            Backend::Redis(redis) => vec![redis.door()],
            Backend::Cluster(cluster) => cluster.doors(),
            #[cfg(feature = "testing")]
            Backend::Memory(_) => vec![Self::new(
                Arc::clone(node.name()),
                Behind::Memory(Arc::clone(node)),
            )],
        }
    }

    /// Connects to the server, within `connect_timeout`.
    ///
    /// # Errors
    /// Why that failed.
    pub(crate) async fn open(&self, settings: &Settings) -> Result<Asker, String> {
        let bound = settings.connect_timeout;
        let asker = |to| Asker {
            to,
            node: Arc::clone(&self.name),
            until: Instant::now() + bound,
        };
        match &self.to {
            Behind::Redis(beside, role) => match timeout(bound, beside.another(*role)).await {
                Ok(Ok(link)) => Ok(asker(Behind::Redis(link, *role))),
                Ok(Err(error)) => Err(said(
                    check::refusal(&self.name, &error, bound).into_error(&self.name),
                )),
                Err(_) => Err(format!("cannot connect: timed out after {bound:?}")),
            },
            #[cfg(feature = "testing")]
            Behind::Memory(node) => {
                let asker = asker(Behind::Memory(Arc::clone(node)));
                match asker.send(vec!["PING".to_owned()]).await {
                    Outcome::Unknown(failure) | Outcome::NotExecuted(failure) => {
                        Err(failure.reason)
                    }
                    Outcome::Done(_) | Outcome::Refused(_) => Ok(asker),
                }
            }
            Behind::Nobody(why) => Err(why.clone()),
        }
    }
}

impl Asker {
    /// Sends one command, once.
    pub(crate) async fn ask(&self, words: Vec<String>) -> Response {
        let sent = Instant::now();
        let sent_us = wall_micros();
        let late = |_| Outcome::Unknown(self.failure("the server had no time to answer"));
        let outcome = timeout(sent.until(self.until), self.send(words))
            .await
            .unwrap_or_else(late);
        Response {
            outcome,
            sent_us,
            took: Instant::now().since(sent),
        }
    }

    async fn send(&self, words: Vec<String>) -> Outcome<Reply> {
        match &self.to {
            Behind::Redis(link, _) => {
                let mut words = words.into_iter();
                let command = Str::from(words.next().unwrap_or_default());
                link.ask_in_step(command, words.map(Value::from).collect())
                    .await
            }
            #[cfg(feature = "testing")]
            Behind::Memory(node) => match node.server() {
                Backend::Memory(memory) => memory.tell(&words).await,
                Backend::Redis(_) | Backend::Cluster(_) => {
                    Outcome::NotExecuted(self.failure("it is not in memory"))
                }
            },
            Behind::Nobody(why) => Outcome::NotExecuted(self.failure(why)),
        }
    }

    fn failure(&self, reason: &str) -> NodeFailure {
        NodeFailure::new(&self.node, reason)
    }
}

/// Returns why a server was not reached, without its name.
fn said(error: Error) -> String {
    match error {
        Error::Unavailable { nodes, .. } => nodes
            .into_iter()
            .map(|node| node.reason)
            .collect::<Vec<_>>()
            .join("; "),
        Error::Server { source, .. } => format!("refuses the connection: {}", source.message),
        error => error.to_string(),
    }
}
