//! The replies of servers, and what they say about a command's outcome.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fred::bytes::Bytes;
use fred::error::ErrorKind;
use fred::types::Resp3Frame;

use crate::error::{Error, NodeFailure, ServerErrorKind};
use crate::shown::{cut, cut_debug};

/// A reply, in the part of the protocol that scripts use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    Nil,
    Int(i64),
    /// A slice of the receive buffer: copy it to keep it.
    Bytes(Bytes),
    Array(Vec<Self>),
    /// Inside an array: the error of one of several steps.
    Error(String),
}

impl Reply {
    /// Returns the outcome of this one of several steps.
    pub(crate) fn into_outcome(self, node: &Arc<str>) -> Outcome<Self> {
        match self {
            Self::Error(message) => sort_error(node, &message),
            reply => Outcome::Done(reply),
        }
    }
}

/// The outcome of a command.
#[derive(Debug, Clone)]
pub(crate) enum Outcome<T> {
    /// It was executed, and this is its answer.
    Done(T),
    /// It was certainly not executed; it may be sent again.
    NotExecuted(NodeFailure),
    /// The server answered with an error; nothing was written.
    Refused(Error),
    /// It may have been executed, or may yet be. What it may have taken has to be undone.
    Unknown(NodeFailure),
}

impl<T> Outcome<T> {
    /// Maps the answer.
    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U) -> Outcome<U> {
        self.then(|answer| Outcome::Done(change(answer)))
    }

    /// Replaces an answer by what `judge` makes of it.
    pub(crate) fn then<U>(self, judge: impl FnOnce(T) -> Outcome<U>) -> Outcome<U> {
        match self {
            Self::Done(answer) => judge(answer),
            Self::NotExecuted(failure) => Outcome::NotExecuted(failure),
            Self::Refused(error) => Outcome::Refused(error),
            Self::Unknown(failure) => Outcome::Unknown(failure),
        }
    }

    /// Reads the answer. One that does not have the expected form proves nothing, and counts as
    /// unknown.
    pub(crate) fn and_then<U>(
        self,
        node: &Arc<str>,
        read: impl FnOnce(&T) -> Option<U>,
    ) -> Outcome<U>
    where
        T: fmt::Debug,
    {
        self.then(|reply| match read(&reply) {
            Some(value) => Outcome::Done(value),
            None => {
                let shown = cut_debug(&reply);
                let reason = format!("answered {shown}, which no script of this crate returns");
                Outcome::Unknown(NodeFailure::new(node, reason))
            }
        })
    }
}

/// Turns fred's result into an outcome. `bound` is the time that the command had.
///
/// Only a frame is the server's answer to *this* command. fred's own errors are not: it gives one
/// error to every command that a broken connection had in flight, so none of them proves that this
/// one was not executed.
pub(super) fn sort(
    node: &Arc<str>,
    result: Result<Resp3Frame, fred::error::Error>,
    bound: Duration,
) -> Outcome<Reply> {
    let frame = match result {
        Ok(frame) => frame,
        Err(e) => {
            return Outcome::Unknown(NodeFailure::new(node, words(&e, Some(bound))));
        }
    };
    match frame {
        Resp3Frame::SimpleError { data, .. } => sort_error(node, &cut(data.as_bytes())),
        Resp3Frame::BlobError { data, .. } => sort_error(node, &cut(&data)),
        frame => Outcome::Done(reply(frame)),
    }
}

/// Returns an error of fred in words that people know. `bound` is the time that the command had.
pub(super) fn words(error: &fred::error::Error, bound: Option<Duration>) -> String {
    let details = error.details();
    match (error.kind(), bound) {
        (ErrorKind::Timeout, Some(bound)) => format!("{TIMED_OUT} after {bound:?}"),
        (ErrorKind::Timeout, None) => TIMED_OUT.to_owned(),
        (ErrorKind::Canceled, _) => {
            "the connection was given up before the answer arrived".to_owned()
        }
        (ErrorKind::IO | ErrorKind::Unknown, _)
            if details.contains("UnexpectedEof") || details.contains("losed") =>
        {
            CLOSED.to_owned()
        }
        _ if details.contains("frame_type") => {
            "it does not speak the protocol of Redis: correct the host or the port of the address"
                .to_owned()
        }
        // fred shows an IO error by its `Debug` output: `Os { code: 111, kind: ConnectionRefused,
        // message: "Connection refused" }`, `Custom { kind: Uncategorized, error: "failed to lookup
        // address information: Name or service not known" }`.
        _ => {
            #[cfg(feature = "tls")]
            if let Some(cause) = super::tls::cause(details) {
                return cause;
            }
            let is_shown = details.starts_with("Os {") || details.starts_with("Custom {");
            let quoted = ["message: \"", "error: \""]
                .iter()
                .find_map(|before| details.split_once(before));
            let quoted = quoted.filter(|_| is_shown);
            let text = quoted.map_or(details, |(_, rest)| {
                rest.rsplit_once('"').map_or(rest, |(text, _)| text)
            });
            let text = &*cut(text.strip_suffix('.').unwrap_or(text).as_bytes());
            // A sentence begins with one capital letter; a code of the server has several.
            match text.as_bytes() {
                [b'A'..=b'Z', b'a'..=b'z', ..] => text[..1].to_ascii_lowercase() + &text[1..],
                _ => text.to_owned(),
            }
        }
    }
}

const CLOSED: &str = "the connection was closed by the server";

/// Returns whether these words of an error say that the server closed the connection without an
/// answer.
pub(super) fn is_hang_up(words: &str) -> bool {
    [CLOSED, "connection reset by peer", "broken pipe"]
        .iter()
        .any(|end| words.to_ascii_lowercase().contains(end))
}

const TIMED_OUT: &str = "timed out";

/// Returns whether these words of an error say that the server did not answer.
pub(super) fn is_silence(words: &str) -> bool {
    words.contains(TIMED_OUT) || words.contains("did not answer")
}

/// Returns why a connection is down, whose last error had these words. A server that is stopped is
/// connected to all the same, and says nothing.
pub(super) fn down(last: &str) -> String {
    if is_silence(last) {
        return format!(
            "silent: {last}; it is stopped, paused or too busy, or the network swallows what is sent"
        );
    }
    format!("{NOT_CONNECTED}{last}")
}

/// Returns whether the connection could not be encrypted.
#[cfg(feature = "tls")]
pub(super) fn is_about_encryption(error: &fred::error::Error) -> bool {
    super::tls::cause(error.details()).is_some()
}

/// Without the feature no connection is encrypted.
#[cfg(not(feature = "tls"))]
pub(super) fn is_about_encryption(_: &fred::error::Error) -> bool {
    false
}

/// Returns whether the server refuses the credentials, or misses them.
pub(super) fn is_about_credentials(message: &str) -> bool {
    ServerErrorKind::of(code(message)) == ServerErrorKind::Auth
}

/// How the reason begins if there is no connection; the last failure to connect follows.
pub(super) const NOT_CONNECTED: &str = "not connected: ";

/// Returns the server's refusal of a right, if that is its answer to a script or to one of its
/// steps.
pub(super) fn forbidden(outcome: &Outcome<Reply>) -> Option<&str> {
    match outcome {
        Outcome::Refused(Error::Server {
            kind: ServerErrorKind::NoPermission,
            source,
        }) => Some(&source.message),
        Outcome::Done(Reply::Array(items)) => items.iter().find_map(|item| match item {
            Reply::Error(message) if code(message) == "NOPERM" => Some(message.as_str()),
            _ => None,
        }),
        _ => None,
    }
}

/// Returns whether the error that came instead of a PING's echo is the PING's own answer. Then
/// `answer` belongs to the command before it.
pub(super) fn explains<T>(echo: &Outcome<()>, answer: &Outcome<T>) -> bool {
    let Some(echo) = said(echo) else { return false };
    match code(echo) {
        // Answers to a user that may not call PING, and of a server that cannot save. No script is
        // answered so.
        "NOPERM" => echo.contains("'ping'"),
        "MISCONF" => true,
        // These servers refuse every command.
        all @ ("LOADING" | "BUSY" | "MASTERDOWN" | "NOAUTH") => {
            said(answer).is_some_and(|error| all == code(error))
        }
        _ => false,
    }
}

/// Returns the error reply behind this outcome.
fn said<T>(outcome: &Outcome<T>) -> Option<&str> {
    match outcome {
        Outcome::NotExecuted(failure) => Some(&failure.reason),
        Outcome::Refused(Error::Server { source, .. }) => Some(&source.message),
        _ => None,
    }
}

/// The error replies that say that the server did not run the command at all, and may do so later.
/// Those that refuse writes for now (`READONLY`, `MISCONF`, `NOREPLICAS`) come at the first write
/// of a script, so it has written nothing. `OOM` is not among them: an operator has to act, and
/// callers get the error at once.
const NOT_EXECUTED: [&str; 12] = [
    "NOSCRIPT",
    "READONLY",
    "LOADING",
    "MASTERDOWN",
    "BUSY",
    "MOVED",
    "ASK",
    "TRYAGAIN",
    "CLUSTERDOWN",
    "NOAUTH",
    "MISCONF",
    "NOREPLICAS",
];

pub(super) fn sort_error<T>(node: &Arc<str>, message: &str) -> Outcome<T> {
    let code = code(message);
    if NOT_EXECUTED.contains(&code) {
        let reason = match advice(code) {
            Some(advice) => format!("{} ({advice})", message.trim_end_matches('.')),
            None => message.to_owned(),
        };
        return Outcome::NotExecuted(NodeFailure::new(node, reason));
    }
    Outcome::Refused(Error::refused(
        ServerErrorKind::of(code),
        node,
        message.to_owned(),
    ))
}

/// Returns what such an answer means, and what to do.
fn advice(code: &str) -> Option<&'static str> {
    Some(match code {
        "READONLY" => "it is a replica now: name the master, or wait for the failover",
        "MASTERDOWN" => {
            "it is a replica, and its master is away: name the master, or bring it back"
        }
        "NOREPLICAS" => {
            "fewer replicas than its min-replicas-to-write are in step: bring them back, or lower it"
        }
        "MISCONF" => "it cannot save its data: make room on its disk, or look into its log",
        "CLUSTERDOWN" => {
            "slots have no master that answers: bring the master back, or let redis-cli --cluster fix them"
        }
        "BUSY" => {
            "a script runs there for too long: find out whose it is, or end it with SCRIPT KILL"
        }
        _ => return None,
    })
}

/// Returns the first word of an error. Redis 6 puts the place in the script before the error of a
/// command that a script called, once or twice: `ERR Error running script (call to f_<sha>):
/// @user_script:7: @user_script: 7: -READONLY You can't ..`.
pub(super) fn code(message: &str) -> &str {
    let wrapped =
        message.starts_with("ERR Error running script") || message.starts_with("@user_script:");
    let inner = if wrapped {
        message.rsplit_once("@user_script:")
    } else {
        None
    };
    let inner = inner.map_or(message, |(_, rest)| {
        rest.trim_start_matches(|c: char| c.is_ascii_digit() || ": ".contains(c))
    });
    let inner = inner.trim_start_matches('-');
    // A missing right of a command that a script called has no code of its own.
    if FORBIDDEN_TO_SCRIPTS
        .iter()
        .any(|beginning| inner.starts_with(beginning))
    {
        return "NOPERM";
    }
    inner.split_whitespace().next().unwrap_or_default()
}

/// Returns whether the reason why a command was not executed is a server's error for a user that is
/// logged in.
pub(crate) fn is_of_server(reason: &str) -> bool {
    let code = code(reason);
    !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_uppercase()) && code != "NOAUTH"
}

/// Returns whether an error says that the user lacks a right.
pub(crate) fn is_forbidden(message: &str) -> bool {
    code(message) == "NOPERM"
}

/// How the refusal of a command in a script begins: in Redis 6 and 7, and in newer ones and Valkey.
const FORBIDDEN_TO_SCRIPTS: [&str; 2] = [
    "ERR The user executing the script can't",
    "ERR ACL failure in script",
];

fn reply(frame: Resp3Frame) -> Reply {
    match frame {
        Resp3Frame::Number { data, .. } => Reply::Int(data),
        Resp3Frame::BlobString { data, .. }
        | Resp3Frame::SimpleString { data, .. }
        | Resp3Frame::VerbatimString { data, .. } => Reply::Bytes(data),
        Resp3Frame::Array { data, .. } => Reply::Array(data.into_iter().map(reply).collect()),
        Resp3Frame::Map { data, .. } => Reply::Array(
            data.into_iter()
                .flat_map(|(k, v)| [reply(k), reply(v)])
                .collect(),
        ),
        Resp3Frame::SimpleError { data, .. } => Reply::Error(cut(data.as_bytes())),
        Resp3Frame::BlobError { data, .. } => Reply::Error(cut(&data)),
        _ => Reply::Nil,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(message: &str) -> Outcome<Reply> {
        sort_error(&"redis://h".into(), message)
    }

    #[test]
    fn only_a_known_word_proves_that_nothing_ran() {
        assert!(matches!(
            error("NOSCRIPT No matching script."),
            Outcome::NotExecuted(_)
        ));
        assert!(matches!(
            error("LOADING Redis is loading"),
            Outcome::NotExecuted(_)
        ));
        for message in [
            "NOREPLICAS Not enough good replicas to write.",
            "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
            "@user_script: 19: -MISCONF Redis is configured to save RDB snapshots",
            "TRYAGAIN Multiple keys request during rehashing of slot",
        ] {
            assert!(
                matches!(error(message), Outcome::NotExecuted(_)),
                "{message}"
            );
        }
        for (message, what) in [
            (
                "READONLY You can't write against a read only replica.",
                "name the master",
            ),
            (
                "@user_script: 19: -NOREPLICAS Not enough good replicas to write.",
                "min-replicas-to-write",
            ),
            (
                "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
                "its master is away",
            ),
            (
                "MISCONF Redis is configured to save RDB snapshots",
                "its disk",
            ),
            ("CLUSTERDOWN The cluster is down", "no master that answers"),
            ("BUSY Redis is busy running a script.", "SCRIPT KILL"),
        ] {
            let Outcome::NotExecuted(failure) = error(message) else {
                panic!("{message}")
            };
            assert!(
                failure.reason.starts_with(message.trim_end_matches('.')),
                "the reply, word for word: {failure}"
            );
            assert!(
                failure.reason.contains(what) && code(&failure.reason) == code(message),
                "{failure}"
            );
        }
        assert!(matches!(
            error("OOM command not allowed"),
            Outcome::Refused(Error::Server { .. })
        ));
        assert!(matches!(error("ERR NOSCRIPT"), Outcome::Refused(_)));
        let forbidden =
            error("ERR The user executing the script can't run this command or subcommand");
        let no_permission = ServerErrorKind::NoPermission;
        assert!(
            matches!(forbidden, Outcome::Refused(Error::Server { kind, .. }) if kind == no_permission)
        );
        assert!(matches!(
            error(
                "ERR Error running script (call to f_ab): @user_script:7: -READONLY You can't write"
            ),
            Outcome::NotExecuted(_)
        ));
        for message in [
            "ERR Error running script (call to f_ab): @user_script:4: @user_script: 4: -READONLY You can't write",
            "@user_script: 19: -READONLY You can't write against a read only replica.",
        ] {
            assert!(
                matches!(error(message), Outcome::NotExecuted(_)),
                "{message}"
            );
        }
        assert_eq!(
            code(
                "ERR Error running script (call to f_a): @user_script:4: @user_script: 4: -OOM command"
            ),
            "OOM"
        );
        assert_eq!(
            code("READONLY You can't write script: ab, on @user_script:7."),
            "READONLY"
        );
        let Outcome::Refused(Error::Server { kind, .. }) =
            error("ERR Error running script (call to f_ab): @user_script:7: WRONGTYPE Operation")
        else {
            panic!("a refusal");
        };
        assert_eq!(kind, ServerErrorKind::WrongType);
    }

    #[test]
    fn an_error_of_the_client_proves_nothing() {
        let node = "redis://h".into();
        for kind in [
            fred::error::ErrorKind::Cluster,
            fred::error::ErrorKind::Canceled,
            fred::error::ErrorKind::Timeout,
        ] {
            let result = Err(fred::error::Error::new(kind, "CLUSTERDOWN"));
            assert!(matches!(
                sort(&node, result, Duration::from_secs(3)),
                Outcome::Unknown(_)
            ));
        }
    }

    #[test]
    fn errors_of_the_client_are_shown_in_plain_words() {
        let said = |kind, details: &'static str| {
            let error = fred::error::Error::new(kind, details);
            words(&error, Some(Duration::from_secs(3)))
        };
        for (details, text) in [
            (
                r#"Os { code: 111, kind: ConnectionRefused, message: "Connection refused" }"#,
                "connection refused",
            ),
            (
                r#"Os { code: 104, kind: ConnectionReset, message: "Connection reset by peer" }"#,
                "connection reset by peer",
            ),
            (
                r#"Custom { kind: Uncategorized, error: "failed to lookup address information: Name not known" }"#,
                "failed to lookup address information: Name not known",
            ),
            ("Kind(UnexpectedEof)", CLOSED),
            ("Connection closed.", CLOSED),
            ("Connection Closed", CLOSED),
            ("Unresponsive connection.", "unresponsive connection"),
            (
                "decode Error: frame_type: Invalid frame type.",
                "it does not speak the protocol of Redis: correct the host or the port of the address",
            ),
            ("", ""),
        ] {
            assert_eq!(said(ErrorKind::IO, details), text);
        }
        assert_eq!(
            said(ErrorKind::Timeout, "Request timed out."),
            "timed out after 3s"
        );
        assert_eq!(
            said(ErrorKind::Canceled, "channel closed"),
            "the connection was given up before the answer arrived"
        );
        let refused = "WRONGPASS invalid username-password pair or user is disabled.";
        assert_eq!(
            said(ErrorKind::Auth, refused),
            refused.trim_end_matches('.')
        );
    }

    #[test]
    fn a_missing_right_is_found_among_answers_of_a_shared_script() {
        let answers = |items: Vec<Reply>| Outcome::Done(Reply::Array(items));
        let noperm = "NOPERM this user has no permissions to run the 'eval' command";
        assert_eq!(forbidden(&error(noperm)), Some(noperm));
        assert_eq!(
            forbidden(&answers(vec![Reply::Int(1), Reply::Error(noperm.into())])),
            Some(noperm)
        );
        assert_eq!(forbidden(&answers(vec![Reply::Error("OOM".into())])), None);
        assert!(
            is_about_credentials("NOAUTH Authentication required.")
                && !is_about_credentials(noperm)
        );
    }

    #[test]
    fn an_error_does_not_repeat_all_of_a_huge_reply() {
        let string = Reply::Bytes(vec![7; 1_000_000].into());
        let array = Reply::Array(vec![Reply::Int(1); 1_000_000]);
        for (reply, shown) in [
            (string, "Bytes("),
            (array, "Array([Int(1), Int(1)"),
            (Reply::Int(7), "Int(7),"),
        ] {
            let odd = Outcome::Done(reply).and_then(&"redis://h".into(), |_| None::<()>);
            let Outcome::Unknown(failure) = odd else {
                panic!("{odd:?}")
            };
            assert!(
                failure.reason.contains(shown) && failure.reason.len() < 400,
                "{}",
                failure.reason.len()
            );
        }
    }

    #[test]
    fn only_an_error_that_just_a_ping_gets_replaces_its_echo() {
        let explains = |echo: &str, said: &str| explains(&error(echo).map(|_| ()), &error(said));
        let noscript = "NOSCRIPT No matching script.";
        assert!(explains(
            "NOPERM this user has no permissions to run the 'ping' command",
            noscript
        ));
        assert!(explains(
            "MISCONF Redis is configured to save RDB snapshots",
            noscript
        ));
        assert!(explains(
            "LOADING Redis is loading the dataset",
            "LOADING Redis is loading the dataset"
        ));
        assert!(!explains("LOADING Redis is loading the dataset", noscript));
        assert!(!explains(noscript, noscript), "no PING is answered this");
        assert!(!explains(
            "NOPERM this user has no permissions to run the 'evalsha' command",
            noscript
        ));
        let count = Outcome::Done(Reply::Int(1));
        let echo = |message: &str| error(message).map(|_| ());
        assert!(super::explains(
            &echo("NOPERM this user has no permissions to run the 'ping' command"),
            &count
        ));
        assert!(!super::explains(
            &echo("LOADING Redis is loading the dataset"),
            &count
        ));
    }

    #[test]
    fn an_answer_of_another_form_is_unknown() {
        let odd = Outcome::Done(Reply::Nil).and_then(&"redis://h".into(), |_| None::<()>);
        assert!(matches!(odd, Outcome::Unknown(_)));
    }
}
