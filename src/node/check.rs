//! Whether a server is one that this crate can work with, and what kept us from connecting to it.

use std::sync::Arc;
use std::time::Duration;

use super::link::Link;
use super::reply::{self, Outcome, Reply};
use crate::error::{Error, NodeFailure, ServerError, ServerErrorKind};
use crate::foreign::contained;
use crate::preflight::{Hello, OLDEST, evicts, field as info_field, parse_version};
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

/// What is wrong with a server in cluster mode: it has some of the keys only, and says MOVED to all others.
pub(crate) const IN_CLUSTER_MODE: &str = "is a server in cluster mode, which is not supported yet: name servers that \
                                          run with `cluster-enabled no`";

/// HELLO tells version and mode to every user that may connect at all; INFO is often not allowed.
pub(super) async fn greeting(node: &Arc<str>, link: &Link) -> Result<(), Error> {
    let too_old = |version: &str| {
        Error::config("node", format!("{node} is a server of version {version}; lockhound needs 6.2 or newer"))
    };
    match link.call("HELLO", Vec::new()).await {
        Outcome::Done(reply) => {
            let Hello { mode, version, .. } = hello(&reply);
            if mode.as_deref() == Some("cluster") {
                return Err(Error::config("node", format!("{node} {IN_CLUSTER_MODE}")));
            }
            let version = version.unwrap_or_default();
            match parse_version(&version) {
                Some(found) if found < OLDEST => Err(too_old(&version)),
                Some(_) => Ok(()),
                None => {
                    contained(|| {
                        tracing::warn!(
                            %node, version = %Shown(&version),
                            "the server does not tell a version that can be read"
                        );
                    });
                    Ok(())
                }
            }
        }
        Outcome::Refused(Error::Server { source, .. }) if source.message.contains("unknown command") => {
            Err(too_old("5 or older"))
        }
        Outcome::Refused(Error::Server { kind: ServerErrorKind::NoPermission, source }) => {
            contained(|| tracing::debug!(%node, error = %source, "the server's version cannot be read"));
            Ok(())
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
    if let Some(policy) = info_field(&info, "maxmemory_policy").filter(|policy| evicts(policy)) {
        contained(|| {
            tracing::warn!(
                %node,
                policy = cut(policy.as_bytes()),
                "this server may delete locks when its memory is full, and two may then hold one lock: set \
                 `maxmemory-policy noeviction`"
            );
        });
    }
}

/// What HELLO answers.
pub(super) fn hello(reply: &Reply) -> Hello {
    let [server, version, mode, role] = ["server", "version", "mode", "role"].map(|name| value(reply, name));
    Hello { server, version, mode, role }
}

/// The value behind a name in a flat list of names and values.
pub(super) fn value(reply: &Reply, name: &str) -> Option<String> {
    let Reply::Array(items) = reply else { return None };
    let at = items.iter().position(|item| matches!(item, Reply::Bytes(bytes) if **bytes == *name.as_bytes()))?;
    match items.get(at + 1)? {
        Reply::Bytes(value) => Some(cut(value)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_in_a_flat_list() {
        let bytes = |s: &str| Reply::Bytes(s.to_owned().into());
        let hello = Reply::Array(vec![bytes("server"), bytes("redis"), bytes("version"), bytes("7.0.15")]);
        assert_eq!(value(&hello, "version").as_deref(), Some("7.0.15"));
        assert_eq!(value(&hello, "7.0.15"), None);
    }
}
