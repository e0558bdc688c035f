//! What can go wrong, and how a lock is lost.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Why an operation did not do what it was asked for.
///
/// That somebody else holds the lock is not an error: [`Lock::try_lock`](crate::Lock::try_lock) answers `None`.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lock was held and is not provably held any more. Stop what it protects; whoever asks next may already be in.
    #[error("the lock is lost: {0}")]
    Lost(Loss),
    /// No majority of the servers answered, or too few of their replicas acknowledged. Nothing is held, and whatever the attempts may have left on a server is
    /// being undone in the background; try again later.
    #[error("{}", unavailable(nodes, *waited))]
    #[non_exhaustive]
    Unavailable {
        /// What became of each server that did not answer.
        nodes: Vec<NodeFailure>,
        /// How long the servers had been away when the operation gave up; zero for an operation that makes one attempt.
        waited: Duration,
    },
    /// An option, an address or a name cannot be used as it is. Correct the value that the message names.
    #[error("{0}")]
    Config(ConfigError),
    /// A server answered with an error. Nothing was written; the reply is the [`source`](std::error::Error::source).
    #[error("{} {kind}", source.node)]
    Server {
        /// What kind of refusal it was.
        kind: ServerErrorKind,
        /// The reply.
        source: ServerError,
    },
    /// The [`Locker`](crate::Locker) was closed. Connect a new one.
    #[error("the locker is closed")]
    Closed,
    /// The watchdog of the [`Locker`](crate::Locker) ended by a panic: nothing would renew a lock. Every token of it has
    /// fired, and nothing is granted any more; guards still release. Close this locker and connect a new one. Only a bug of
    /// this crate causes it: a panic of a `tracing` subscriber, a recorder of metrics or a waker does not.
    #[error("the watchdog ended by a panic ({message}): close this locker and connect a new one")]
    #[non_exhaustive]
    WatchdogPanicked {
        /// What the panic said.
        message: String,
    },
}

impl Error {
    pub(crate) fn config(option: &'static str, reason: impl Into<String>) -> Self {
        Self::Config(ConfigError { option, reason: reason.into() })
    }
}

fn unavailable(nodes: &[NodeFailure], waited: Duration) -> String {
    let mut text = String::from("no majority of the servers answered");
    if !waited.is_zero() {
        text += &format!(" for {waited:.1?}");
    }
    for (i, node) in nodes.iter().enumerate() {
        text += if i == 0 { ": " } else { "; " };
        text += &node.to_string();
    }
    text
}

/// How a lock was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// The server says that the lock is not ours: it was deleted, evicted, or somebody else has it.
    #[error("the server no longer has it for this owner")]
    NotOwner,
    /// Renewals failed as many times in a row as the [`Locker`](crate::Locker) is told to bear.
    #[error("its renewals failed")]
    RenewalFailed,
    /// The end of its validity came on the local clock.
    #[error("its lease ran out")]
    Expired,
    /// It was held for as long as [`max_hold`](crate::Lock::max_hold) allows.
    #[error("it was held for as long as max_hold allows")]
    MaxHold,
    /// It was released by [`force_unlock`](crate::Lock::force_unlock) of this [`Locker`](crate::Locker).
    #[error("it was released by force_unlock")]
    ForceUnlocked,
    /// The [`Locker`](crate::Locker) was closed while it was held.
    #[error("its locker was closed")]
    Closed,
    /// It was released in the ordinary way, and a [`Section`](crate::Section) that outlived its run asks. Tokens do not
    /// fire for this.
    #[error("it was released")]
    Released,
}

/// A server that gave no usable answer, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFailure {
    pub(crate) node: Arc<str>,
    pub(crate) reason: String,
}

impl NodeFailure {
    /// The address of the server, its password as `***`.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// What happened instead of an answer.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl fmt::Display for NodeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.node, self.reason)
    }
}

/// An option that cannot be used, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    option: &'static str,
    reason: String,
}

impl ConfigError {
    /// The option, address or name that is at fault.
    pub fn option(&self) -> &str {
        self.option
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.option, self.reason)
    }
}

/// The kinds of refusal that ask for different remedies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ServerErrorKind {
    /// The credentials are wrong (`WRONGPASS`, `NOAUTH`).
    Auth,
    /// The key holds something that is not a lock (`WRONGTYPE`).
    WrongType,
    /// The user may not run the command or touch the key (`NOPERM`).
    NoPermission,
    /// The server has no memory left (`OOM`).
    OutOfMemory,
    /// The server cannot persist and refuses writes (`MISCONF`).
    Persistence,
    /// Any other error reply.
    Other,
}

impl ServerErrorKind {
    pub(crate) fn of(code: &str) -> Self {
        match code {
            "WRONGPASS" | "NOAUTH" => Self::Auth,
            "WRONGTYPE" => Self::WrongType,
            "NOPERM" => Self::NoPermission,
            "OOM" => Self::OutOfMemory,
            "MISCONF" => Self::Persistence,
            _ => Self::Other,
        }
    }
}

impl fmt::Display for ServerErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auth => "refused the credentials",
            Self::WrongType => "has something other than a lock under this key",
            Self::NoPermission => "does not permit this user to do that",
            Self::OutOfMemory => "is out of memory",
            Self::Persistence => "cannot persist and refuses writes",
            Self::Other => "answered with an error",
        })
    }
}

/// An error reply, word for word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerError {
    pub(crate) node: Arc<str>,
    pub(crate) message: String,
}

impl ServerError {
    /// The address of the server, its password as `***`.
    pub fn node(&self) -> &str {
        &self.node
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ServerError {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn messages_name_the_values_once() {
        let node: Arc<str> = "redis://127.0.0.1:1".into();
        let away = Error::Unavailable {
            nodes: vec![NodeFailure { node: Arc::clone(&node), reason: "timed out".into() }],
            waited: Duration::from_millis(1500),
        };
        assert_eq!(away.to_string(), "no majority of the servers answered for 1.5s: redis://127.0.0.1:1: timed out");
        let refused = Error::Server {
            kind: ServerErrorKind::of("NOPERM"),
            source: ServerError { node, message: "NOPERM no such luck".into() },
        };
        assert_eq!(refused.to_string(), "redis://127.0.0.1:1 does not permit this user to do that");
        assert_eq!(refused.source().expect("a cause").to_string(), "NOPERM no such luck");
    }
}
