//! Whether a server is one that this crate can work with, and what kept us from connecting to it.

use std::sync::Arc;
use std::time::Duration;

use super::link::Link;
use super::reply::{self, Outcome, Reply};
use crate::error::{Error, NodeFailure, ServerError, ServerErrorKind};
use crate::foreign::contained;
use crate::shown::{Shown, cut};

/// What kept us from connecting: the server's refusal, or its silence.
pub(super) fn refusal(node: &Arc<str>, error: &fred::error::Error, bound: Duration) -> Error {
    let code = reply::code(error.details());
    let kind = ServerErrorKind::of(code);
    if kind != ServerErrorKind::Other {
        return Error::Server {
            kind,
            source: ServerError { node: Arc::clone(node), message: cut(error.details().as_bytes()) },
        };
    }
    // Only a server's reply begins with a code; it answers to the credentials or the database of the address.
    if code == "ERR" {
        return Error::config(
            "node",
            format!("the server refuses the address {node}: {}", cut(error.details().as_bytes())),
        );
    }
    let reason = format!("cannot connect: {}", reply::words(error, Some(bound)));
    let nodes = vec![NodeFailure { node: Arc::clone(node), reason }];
    Error::Unavailable { servers: 1, nodes, waited: Duration::ZERO }
}

/// What is wrong with a server in cluster mode that is named by itself: it has some of the keys only.
pub(crate) const IN_CLUSTER_MODE: &str = "is a server in cluster mode: name the cluster, redis-cluster://host:port, and \
                                          no other server beside it";

/// Whether a server has all keys, or is one of those that share them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Alone,
    Cluster,
}

impl Mode {
    /// What is wrong with a server that says of itself that it is in this mode.
    fn complaint(self, told: Option<&str>) -> Option<&'static str> {
        match (self, told) {
            (Self::Alone, Some("cluster")) => Some(IN_CLUSTER_MODE),
            (Self::Cluster, Some(mode)) if mode != "cluster" => {
                Some("is a server that is in no cluster: write redis:// for redis-cluster://")
            }
            _ => None,
        }
    }
}

/// HELLO tells version and mode to every user that may connect at all; INFO is often not allowed. Returns the version,
/// where it can be read.
pub(super) async fn greeting(node: &Arc<str>, link: &Link, mode: Mode) -> Result<Option<(u32, u32)>, Error> {
    let too_old = |version: &str| {
        Error::config("node", format!("{node} is a server of version {version}; lockhound needs 6.2 or newer"))
    };
    match link.call("HELLO", Vec::new()).await {
        Outcome::Done(reply) => {
            if let Some(complaint) = mode.complaint(field(&reply, "mode").as_deref()) {
                return Err(Error::config("node", format!("{node} {complaint}")));
            }
            let version = field(&reply, "version").unwrap_or_default();
            match parse_version(&version) {
                Some(found) if found < (6, 2) => Err(too_old(&version)),
                Some(found) => Ok(Some(found)),
                None => {
                    contained(|| {
                        tracing::warn!(
                            %node, version = %Shown(&version),
                            "the server does not tell a version that can be read"
                        );
                    });
                    Ok(None)
                }
            }
        }
        Outcome::Refused(Error::Server { source, .. }) if source.message.contains("unknown command") => {
            Err(too_old("5 or older"))
        }
        Outcome::Refused(Error::Server { kind: ServerErrorKind::NoPermission, source }) => {
            contained(|| tracing::debug!(%node, error = %source, "the server's version cannot be read"));
            Ok(None)
        }
        Outcome::Refused(error) => Err(error),
        Outcome::NotExecuted(failure) | Outcome::Unknown(failure) => {
            Err(Error::Unavailable { servers: 1, nodes: vec![failure], waited: Duration::ZERO })
        }
    }
}

/// Warns about a server that may delete locks to make room.
pub(super) async fn eviction(node: &Arc<str>, link: &Link) {
    let Outcome::Done(Reply::Bytes(info)) = link.call("INFO", vec!["memory".into()]).await else {
        contained(|| tracing::debug!(%node, "INFO is not allowed: the eviction policy cannot be checked"));
        return;
    };
    let info = String::from_utf8_lossy(&info);
    if let Some(policy) = info.lines().find_map(|line| line.strip_prefix("maxmemory_policy:"))
        && policy.trim() != "noeviction"
    {
        contained(|| {
            tracing::warn!(
                %node,
                policy = cut(policy.trim().as_bytes()),
                "this server may delete locks when its memory is full, and two may then hold one lock: set \
                 `maxmemory-policy noeviction`"
            );
        });
    }
}

/// The value behind a name in a flat list of names and values.
fn field(reply: &Reply, name: &str) -> Option<String> {
    let Reply::Array(items) = reply else { return None };
    let at = items.iter().position(|item| matches!(item, Reply::Bytes(bytes) if **bytes == *name.as_bytes()))?;
    match items.get(at + 1)? {
        Reply::Bytes(value) => Some(cut(value)),
        _ => None,
    }
}

fn parse_version(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(parse_version("6.0.16") < Some((6, 2)));
        assert!(parse_version("7.0.15") > Some((6, 2)));
        assert!(parse_version("10.0.0") > Some((6, 2)));
        assert_eq!(parse_version("unstable"), None);
    }

    #[test]
    fn a_name_is_found_in_a_flat_list() {
        let bytes = |s: &str| Reply::Bytes(s.to_owned().into());
        let hello = Reply::Array(vec![bytes("server"), bytes("redis"), bytes("version"), bytes("7.0.15")]);
        assert_eq!(field(&hello, "version").as_deref(), Some("7.0.15"));
        assert_eq!(field(&hello, "7.0.15"), None);
    }
}
