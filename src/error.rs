//! The errors of operations, and the ways in which a lock is lost.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::key::Key;
use crate::shown::Shown;

/// Why an operation failed.
///
/// It is not an error that somebody else holds the lock: [`Lock::try_lock`](crate::Lock::try_lock)
/// returns `None`.
///
/// Its message is complete. [`source`](std::error::Error::source) is the reply of
/// [`Error::Server`], which the message explains and does not quote; the other errors have none, so
/// that a report on the chain of causes has no text twice. [`ConfigError`], [`NodeFailure`] and
/// [`ServerError`] are errors themselves.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lock was held, and is no longer provably held.
    ///
    /// Stop the work that it protects: somebody else may already hold it.
    #[error("the lock \"{}\" is lost: {loss}", key.shown())]
    #[non_exhaustive]
    Lost {
        /// Its name. Of several locks, the one that was lost first.
        key: Key,
        /// How it was lost.
        loss: Loss,
    },
    /// The server gave no usable answer, or no majority of several servers did.
    ///
    /// They cannot be reached, do not answer, or refuse the credentials, or too few of their
    /// replicas acknowledged. Nothing is held, and anything that the attempts may have left on a
    /// server is undone in the background. Try again later.
    #[error("{}{}", locks(keys), unavailable(*servers, nodes, *waited))]
    #[non_exhaustive]
    Unavailable {
        /// The names of the locks that the call was about; none for a connect.
        keys: Vec<Key>,
        /// How many servers the locker has.
        servers: usize,
        /// Why the servers that did not answer did not, one entry for each.
        nodes: Vec<NodeFailure>,
        /// How long the servers had been away when the operation gave up, as far as this locker
        /// knows. Zero if the operation's own attempt was the first that failed.
        waited: Duration,
    },
    /// An option, an address, a name or a call cannot work as it is.
    ///
    /// Correct the value that the message names, or the call: an upgrade from read to write, or a
    /// kind of lock that these servers do not have, can never succeed.
    #[error(transparent)]
    Config(ConfigError),
    /// A server answered with an error.
    ///
    /// Nothing was written. The reply is the [`source`](std::error::Error::source); `kind` says
    /// what to change.
    #[error("{}{} {}", locks(&source.keys), source.node, refused(*kind, source))]
    #[non_exhaustive]
    Server {
        /// What kind of refusal it was.
        kind: ServerErrorKind,
        /// The reply.
        source: ServerError,
    },
    /// The [`Locker`](crate::Locker) was closed.
    ///
    /// Connect a new one.
    #[error("the locker is closed")]
    Closed,
    /// This process was forked after the [`Locker`](crate::Locker) was connected.
    ///
    /// A fork copies only the thread that calls it, so the locker's own thread is missing here.
    /// Nothing was sent, and the locks still belong to the process that connected. Connect a new
    /// locker in this process.
    #[error("this process was forked after the locker was connected: connect a new one")]
    Forked,
    /// The locker's watchdog ended by a panic, so nothing would renew a lock.
    ///
    /// Every token of the [`Locker`](crate::Locker) has fired, and it grants nothing any more;
    /// guards still release. Close this locker and connect a new one. Only a bug of this crate
    /// causes this: a panic of a `tracing` subscriber, a metrics recorder or a waker does not.
    #[error(
        "the watchdog panicked ({}): close this locker and connect a new one",
        Shown(message)
    )]
    #[non_exhaustive]
    WatchdogPanicked {
        /// The message of the panic.
        message: String,
    },
}

impl Error {
    pub(crate) fn lost(key: &Key, loss: Loss) -> Self {
        Self::Lost {
            key: key.clone(),
            loss,
        }
    }

    /// # Errors
    /// [`Error::Config`] for the empty name, which Redis would accept but which is probably a
    /// mistake.
    pub(crate) fn check_name(key: &Key) -> Result<(), Self> {
        if key.as_str().is_empty() {
            return Err(Self::config(
                "key",
                "the name of a lock is empty; give it one, such as \"orders:42\"",
            ));
        }
        Ok(())
    }

    /// Says for how long the servers have given no answer, if that is the error.
    pub(crate) fn after(mut self, time: Duration) -> Self {
        if let Self::Unavailable { waited, .. } = &mut self {
            *waited = time;
        }
        self
    }

    /// Names the locks of the call that it ends, so that a line of a log needs nothing else.
    pub(crate) fn of(mut self, call: &[Key]) -> Self {
        match &mut self {
            Self::Unavailable { keys, .. } => *keys = call.to_vec(),
            Self::Server { source, .. } => source.keys = call.to_vec(),
            // A loss names its lock. The others end every call of the locker, or say which value to
            // correct: the name of one lock would send its reader to the wrong place.
            Self::Lost { .. }
            | Self::Config(_)
            | Self::Closed
            | Self::Forked
            | Self::WatchdogPanicked { .. } => {}
        }
        self
    }

    /// Makes an error of a server's reply.
    pub(crate) fn refused(kind: ServerErrorKind, node: &Arc<str>, message: String) -> Self {
        let source = ServerError {
            keys: Vec::new(),
            node: Arc::clone(node),
            message,
            found: String::new(),
        };
        Self::Server { kind, source }
    }

    pub(crate) fn config(option: &'static str, reason: impl Into<String>) -> Self {
        Self::Config(ConfigError {
            option,
            reason: reason.into(),
        })
    }
}

/// Returns how an error begins that is about these locks.
fn locks(keys: &[Key]) -> String {
    match keys {
        [] => String::new(),
        [key] => format!("the lock \"{}\": ", key.shown()),
        keys => format!("the locks {keys:?}: "),
    }
}

fn unavailable(servers: usize, nodes: &[NodeFailure], waited: Duration) -> String {
    let nobody = if servers == 1 {
        "the server gave no usable answer"
    } else {
        "no majority of the servers answered"
    };
    let mut text = nobody.to_owned();
    if !waited.is_zero() {
        text += &format!(" for {waited:.1?}");
    }
    for (i, node) in nodes.iter().enumerate() {
        text += if i == 0 { ": " } else { "; " };
        text += &node.to_string();
    }
    text
}

/// Returns a text that says what a server refused, as far as its reply names it, and what to do.
fn refused(kind: ServerErrorKind, source: &ServerError) -> String {
    let reply = Shown(&source.message).to_string();
    let found = Shown(&source.found).to_string();
    // The name that follows these words.
    let named = |words: &str| {
        reply
            .split_once(words)?
            .1
            .split_once('\'')
            .map(|(name, _)| name.to_owned())
    };
    match kind {
        ServerErrorKind::NoPermission => {
            let what = if let Some(command) = named("run the '").or_else(|| named("refused: '")) {
                format!("run '{command}'")
            } else if let Some(name) = named("access the '") {
                format!("use '{name}'")
            } else if reply.contains("access") {
                let what = if reply.contains("channel") {
                    "channels"
                } else {
                    "keys"
                };
                match &*found {
                    keys if !keys.is_empty() && what == "keys" => {
                        format!("use one of these keys: {keys}")
                    }
                    _ => format!("use one of the {what} that this needs"),
                }
            } else {
                // Redis 7.0 and older do not name a command that a script called.
                "run a command that this needs; the server's ACL LOG names it".to_owned()
            };
            format!("does not permit this user to {what}")
        }
        ServerErrorKind::WrongType => match reply.strip_prefix("WRONGTYPE \"") {
            // The reply comes from one of our scripts.
            Some(holds) => format!("{kind}: \"{holds}"),
            None if found.is_empty() => kind.to_string(),
            None => format!("has something other than it should: {found}"),
        },
        ServerErrorKind::Auth => format!("{kind}: correct the user or the password"),
        ServerErrorKind::OutOfMemory => format!("{kind}: raise its maxmemory, or remove data"),
        ServerErrorKind::Other => kind.to_string(),
    }
}

/// How a lock was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// The server no longer has the lock for this owner.
    ///
    /// It was deleted or evicted, or somebody else holds it.
    #[error("the server no longer has it for this owner")]
    NotOwner,
    /// All [`renewal_attempts`](crate::LockerBuilder::renewal_attempts) of its lease failed.
    #[error("its renewals failed")]
    RenewalFailed,
    /// Its validity ended on the local clock.
    #[error("its lease ran out")]
    Expired,
    /// It was held for as long as [`max_hold`](crate::Lock::max_hold) allows.
    #[error("it was held for as long as max_hold allows")]
    MaxHold,
    /// [`force_unlock`](crate::Lock::force_unlock) of this [`Locker`](crate::Locker) released it.
    #[error("it was released by force_unlock")]
    ForceUnlocked,
    /// The [`Locker`](crate::Locker) was closed while it was held.
    #[error("its locker was closed")]
    Closed,
    /// It was released in the ordinary way.
    ///
    /// A [`Section`](crate::Section) that outlived its run reports this. Tokens do not fire for it.
    #[error("it was released")]
    Released,
    /// This process was forked after the lock was taken.
    ///
    /// The lock belongs to the other process, which may release it at any time. Tokens that were
    /// taken before the fork do not fire for it.
    #[error("this process was forked after it was taken")]
    Forked,
}

/// A server that gave no usable answer, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFailure {
    pub(crate) node: Arc<str>,
    pub(crate) reason: String,
}

impl NodeFailure {
    pub(crate) fn new(node: &Arc<str>, reason: impl Into<String>) -> Self {
        Self {
            node: Arc::clone(node),
            reason: reason.into(),
        }
    }

    /// Returns the address of the server, its password as `***`.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Returns what happened instead of an answer.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl fmt::Display for NodeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.node, Shown(&self.reason))
    }
}

impl std::error::Error for NodeFailure {}

/// An option that cannot be used, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    option: &'static str,
    reason: String,
}

impl ConfigError {
    /// Returns the name of the option at fault.
    ///
    /// It is `key` or `keys` for the name of a lock, and `node` for an address.
    pub fn option(&self) -> &str {
        self.option
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.option, Shown(&self.reason))
    }
}

impl std::error::Error for ConfigError {}

/// Why a server refused a command, grouped by what has to be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ServerErrorKind {
    /// The credentials are wrong (`WRONGPASS`, `NOAUTH`): correct the user or the password.
    Auth,
    /// The key holds something that is not a lock (`WRONGTYPE`).
    ///
    /// Use another name, or delete what is there.
    WrongType,
    /// The user may not run the command or use the key (`NOPERM`): grant the right.
    ///
    /// [`guide::operating`](crate::guide::operating#rights) lists what is needed.
    NoPermission,
    /// The server has no memory left (`OOM`): raise its `maxmemory`, or remove data.
    OutOfMemory,
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
            Self::Other => "answered with an error",
        })
    }
}

/// An error reply, word for word, its control characters escaped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerError {
    pub(crate) keys: Vec<Key>,
    pub(crate) node: Arc<str>,
    pub(crate) message: String,
    /// What was found out about it afterwards, if anything: which keys it concerns, or what is
    /// there.
    pub(crate) found: String,
}

impl ServerError {
    /// Returns the names of the locks that the call was about; none for a connect.
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// Returns the address of the server, its password as `***`.
    pub fn node(&self) -> &str {
        &self.node
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Shown(&self.message).fmt(f)
    }
}

impl std::error::Error for ServerError {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    fn server_error(message: &str) -> Error {
        let code = if message.contains("can't") {
            "NOPERM"
        } else {
            message.split(' ').next().unwrap_or_default()
        };
        Error::refused(
            ServerErrorKind::of(code),
            &"redis://h".into(),
            message.into(),
        )
    }

    #[test]
    fn messages_name_the_values_once() {
        let away = |servers| Error::Unavailable {
            keys: Vec::new(),
            servers,
            nodes: vec![NodeFailure::new(&"redis://127.0.0.1:1".into(), "timed out")],
            waited: Duration::from_millis(1500),
        };
        let behind = " for 1.5s: redis://127.0.0.1:1: timed out";
        assert_eq!(
            away(1).to_string(),
            format!("the server gave no usable answer{behind}")
        );
        assert_eq!(
            away(2).to_string(),
            format!("no majority of the servers answered{behind}")
        );
        let refused = server_error("OOM no such luck");
        assert_eq!(
            refused.to_string(),
            "redis://h is out of memory: raise its maxmemory, or remove data"
        );
        assert_eq!(
            refused.source().expect("a cause").to_string(),
            "OOM no such luck"
        );
    }

    #[test]
    fn a_chain_of_causes_has_no_text_twice() {
        let node = NodeFailure::new(&"redis://h".into(), "timed out");
        let away = Error::Unavailable {
            keys: vec!["a".into()],
            servers: 1,
            nodes: vec![node.clone()],
            waited: Duration::ZERO,
        };
        let wrong = Error::config("lease", "1ms is too short");
        for (error, depth) in [
            (Error::lost(&"a".into(), Loss::Expired), 1),
            (away.clone(), 1),
            (wrong.clone(), 1),
            (server_error("OOM no such luck"), 2),
            (Error::Closed, 1),
        ] {
            let mut links = vec![&error as &dyn std::error::Error];
            while let Some(cause) = links[links.len() - 1].source() {
                links.push(cause);
            }
            let texts: Vec<String> = links.iter().map(ToString::to_string).collect();
            assert_eq!(texts.len(), depth, "{texts:?}");
            for (i, text) in texts.iter().enumerate() {
                assert!(
                    !texts[..i].iter().any(|before| before.contains(text)),
                    "{texts:?}"
                );
            }
        }
        // What they are made of can be passed on as errors.
        let Error::Config(config) = &wrong else {
            panic!("{wrong:?}")
        };
        let parts: [&dyn std::error::Error; 2] = [config, &node];
        assert_eq!(parts[0].to_string(), wrong.to_string());
        assert!(away.to_string().ends_with(&parts[1].to_string()));
    }

    #[test]
    fn an_error_of_a_call_names_its_locks() {
        let one = server_error("OOM no such luck")
            .of(&["orders:42".into()])
            .to_string();
        assert!(
            one.starts_with("the lock \"orders:42\": redis://h is out of memory"),
            "{one}"
        );
        let servers = 1;
        let waited = Duration::ZERO;
        let away = Error::Unavailable {
            keys: Vec::new(),
            servers,
            nodes: Vec::new(),
            waited,
        };
        let two = away.of(&["a".into(), "b".into()]).to_string();
        assert!(
            two.starts_with("the locks [\"a\", \"b\"]: the server gave no usable answer"),
            "{two}"
        );
    }

    #[test]
    fn a_lost_lock_is_named_and_its_name_forges_no_line() {
        let lost = Error::lost(&"orders:42\nthe lock \"x\" is safe".into(), Loss::Expired);
        assert_eq!(
            lost.to_string(),
            r#"the lock "orders:42\nthe lock "x" is safe" is lost: its lease ran out"#
        );
    }

    #[test]
    fn the_empty_name_is_refused() {
        let refusal = Error::check_name(&"".into()).expect_err("empty");
        assert!(refusal.to_string().contains("empty"), "{refusal}");
        assert!(Error::check_name(&" ".into()).is_ok());
    }

    #[test]
    fn a_refused_right_is_named_as_far_as_the_server_names_it() {
        for (reply, what) in [
            (
                "NOPERM this user has no permissions to run the 'eval' command",
                "run 'eval'",
            ),
            (
                "NOPERM User app has no permissions to run the 'eval' command",
                "run 'eval'",
            ),
            (
                "NOPERM ACL failure in script: User app has no permissions to run the 'del' command script: ab",
                "run 'del'",
            ),
            (
                "NOPERM The user can't run this command, refused: 'pexpire'",
                "run 'pexpire'",
            ),
            (
                "NOPERM User app has no permissions to access the 'orders' key",
                "use 'orders'",
            ),
            (
                "NOPERM this user has no permissions to access one of the keys used as arguments",
                "use one of the keys that this needs",
            ),
            (
                "NOPERM No permissions to access a channel",
                "use one of the channels that this needs",
            ),
            (
                "ERR The user executing the script can't run this command or subcommand script: ab, on @user_script:9.",
                "run a command that this needs; the server's ACL LOG names it",
            ),
        ] {
            let shown = server_error(reply).to_string();
            assert_eq!(
                shown,
                format!("redis://h does not permit this user to {what}"),
                "{reply}"
            );
        }
    }

    #[test]
    fn the_error_names_what_the_key_holds_instead_of_a_lock() {
        let shown = server_error("WRONGTYPE \"orders:42\" holds a list").to_string();
        assert_eq!(
            shown,
            "redis://h has something other than a lock under this key: \"orders:42\" holds a list"
        );
        let shown = server_error("WRONGTYPE Operation against a key").to_string();
        assert_eq!(
            shown,
            "redis://h has something other than a lock under this key"
        );
    }

    #[test]
    fn foreign_text_in_an_error_cannot_start_a_new_line() {
        let text = "x\n2026-01-01 ERROR forged\r\u{1b}[2K";
        let node = NodeFailure::new(&"redis://h".into(), text);
        let panicked = Error::WatchdogPanicked {
            message: text.into(),
        };
        let away = Error::Unavailable {
            keys: vec![text.into()],
            servers: 1,
            nodes: vec![node],
            waited: Duration::ZERO,
        };
        let noperm = server_error(&format!(
            "NOPERM no permissions to run the '{text}' command"
        ));
        let wrong = server_error(&format!("WRONGTYPE \"{text}"));
        let config = Error::config("key", text);
        for error in [away, panicked, noperm, wrong, config] {
            let source = error.source().map(ToString::to_string).unwrap_or_default();
            let shown = format!("{error} {error:?} {source}");
            assert!(
                !shown.contains(['\n', '\r', '\u{1b}']) && shown.contains("forged"),
                "{shown}"
            );
        }
    }
}
