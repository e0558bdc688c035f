//! What a tool can ask about the servers of a locker: [`Locker::servers`](crate::Locker::servers).
//!
//! This is for tools that report on a deployment, such as the crate `lockhound-doctor`. A program
//! that takes locks needs nothing of it. A tool gets a [`Visit`] to each server: a connection of
//! its own, with the address, the user and the certificates of the locker, on which it sends plain
//! commands.
//!
//! # Examples
//! ```no_run
//! # async fn example(locks: lockhound::Locker) -> Result<(), lockhound::Error> {
//! for server in locks.servers().await? {
//!     let Ok(visit) = server.visit().await else { continue };
//!     if let Ok(answered) = visit.ask(&["DBSIZE"]).await {
//!         println!("{}: {:?} after {:?}", server.name(), answered.reply, answered.took);
//!     }
//! }
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::error::{Error, ServerErrorKind};
use crate::lease::NodeIndex;
use crate::node::{self, Door, Outcome, Response};
pub use crate::options::Settings;
pub use crate::rights::{CommandUsage, Need, Right};
use crate::session::SharedSession;

/// A server of a locker: one that the builder was given, or a master of the cluster.
#[derive(Clone)]
pub struct ServerHandle {
    shared: Arc<SharedSession>,
    door: Door,
    place: NodeIndex,
}

impl ServerHandle {
    pub(crate) fn new(shared: &Arc<SharedSession>, (place, door): (NodeIndex, Door)) -> Self {
        Self {
            shared: Arc::clone(shared),
            door,
            place,
        }
    }

    /// Returns its address, its password as `***`.
    pub fn name(&self) -> &Arc<str> {
        &self.door.name
    }

    /// Returns whether it is a master of the locker's cluster.
    pub fn is_in_cluster(&self) -> bool {
        self.shared.session().quorum().is_cluster()
    }

    /// Returns the Sentinels of the locker's address that name this server.
    ///
    /// They are in the order of their addresses.
    pub fn sentinels(&self) -> Vec<Self> {
        let sentinels = self.door.sentinels.iter().cloned();
        sentinels
            .map(|door| Self::new(&self.shared, (self.place, door)))
            .collect()
    }

    /// Returns the name that Sentinels know the master by, if this is a Sentinel.
    pub fn service(&self) -> Option<&str> {
        self.door.service.as_deref()
    }

    /// Returns why its vote does not count at the moment, if there are several servers.
    pub fn why_no_vote(&self) -> Option<String> {
        self.shared.session().why_no_vote(self.place)
    }

    /// Connects to it, within [`connect_timeout`](crate::LockerBuilder::connect_timeout).
    ///
    /// The connection is `lockhound:visitor:<label>:<uuid>` in `CLIENT LIST`, and of a Sentinel
    /// `lockhound:sentinel:..`. It ends with the visit.
    ///
    /// # Errors
    /// [`Unanswered::Silent`] if there is no connection: the reason names no server.
    ///
    /// # Cancel safety
    /// Dropping the future ends the connection.
    pub async fn visit(&self) -> Result<Visit, Unanswered> {
        let session = self.shared.session();
        let door = self.door.clone();
        let settings = session.settings().clone();
        let opened = session
            .run_for_tool(async move { door.open(&settings).await.map(Arc::new) })
            .await;
        match opened.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(asker) => Ok(Visit {
                shared: Arc::clone(&self.shared),
                asker,
            }),
            Err(why) => Err(Unanswered::Silent(why)),
        }
    }
}

/// A connection to a server, on which a tool asks.
///
/// It ends when it is dropped.
pub struct Visit {
    shared: Arc<SharedSession>,
    asker: Arc<node::Asker>,
}

impl Visit {
    /// Sends a command and its arguments, once, and waits for the answer.
    ///
    /// It waits for the [`command_timeout`](crate::LockerBuilder::command_timeout). A visit that is
    /// older than the [`connect_timeout`](crate::LockerBuilder::connect_timeout) sends nothing any
    /// more.
    ///
    /// Commands after which the server sends messages (`SUBSCRIBE`, `MONITOR`) or does not answer
    /// (`CLIENT REPLY`) are not for it.
    ///
    /// # Errors
    /// [`Unanswered`].
    ///
    /// # Cancel safety
    /// Dropping the future only discards the answer.
    pub async fn ask(&self, words: &[&str]) -> Result<Answered, Unanswered> {
        let words = words.iter().map(|&word| word.to_owned()).collect();
        let asker = Arc::clone(&self.asker);
        let asked = self
            .shared
            .session()
            .run_for_tool(async move { asker.ask(words).await })
            .await;
        let Response {
            outcome,
            sent_us,
            took,
        } = asked.map_err(|error| Unanswered::Silent(error.to_string()))?;
        match outcome {
            Outcome::Done(reply) => {
                let sent = SystemTime::UNIX_EPOCH + Duration::from_micros(sent_us);
                Ok(Answered {
                    reply: reply.into(),
                    sent,
                    took,
                })
            }
            Outcome::Refused(Error::Server {
                kind: ServerErrorKind::NoPermission,
                source,
            }) => Err(Unanswered::Forbidden(source.message)),
            Outcome::Refused(Error::Server { source, .. }) => {
                Err(Unanswered::Refused(source.message))
            }
            Outcome::Refused(error) => Err(Unanswered::Refused(error.to_string())),
            Outcome::NotExecuted(failure) if node::is_of_server(&failure.reason) => {
                Err(Unanswered::Refused(failure.reason))
            }
            Outcome::NotExecuted(failure) | Outcome::Unknown(failure) => {
                Err(Unanswered::Silent(failure.reason))
            }
        }
    }
}

/// An answer, and when it came.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Answered {
    /// The answer.
    pub reply: ServerReply,
    /// When the command was sent, by the clock of this machine.
    pub sent: SystemTime,
    /// How long the answer took.
    pub took: Duration,
}

/// The answer of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerReply {
    /// Nothing, or something that this type has no form for.
    Nil,
    /// A number.
    Int(i64),
    /// A text; bytes that are not UTF-8 are replaced.
    Text(String),
    /// A list; of a map, its keys and values in turn.
    List(Vec<Self>),
    /// An error inside a list, its first 200 characters.
    Error(String),
}

impl From<node::Reply> for ServerReply {
    fn from(reply: node::Reply) -> Self {
        match reply {
            node::Reply::Nil => Self::Nil,
            node::Reply::Int(number) => Self::Int(number),
            node::Reply::Bytes(bytes) => Self::Text(String::from_utf8_lossy(&bytes).into_owned()),
            node::Reply::Array(items) => Self::List(items.into_iter().map(Self::from).collect()),
            node::Reply::Error(message) => Self::Error(message),
        }
    }
}

/// Why there is no answer to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unanswered {
    /// The user lacks a right; the server's error.
    Forbidden(String),
    /// The server's error, of another kind.
    ///
    /// It had checked the rights before.
    Refused(String),
    /// There was no answer in time, or none that is known to belong to this command; the reason.
    Silent(String),
}

impl fmt::Debug for ServerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerHandle")
            .field("name", self.name())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Visit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Visit").finish_non_exhaustive()
    }
}
