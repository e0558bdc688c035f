//! Checks whether this crate can work with a server, and says why it could not connect.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::address::Address;
use super::link::{Fitness, Link};
use super::reply::{self, Outcome, Reply};
use super::scheme::Mode;
use crate::error::{Error, NodeFailure, ServerErrorKind};
use crate::foreign::log;
use crate::shown::{Shown, cut};

/// The oldest version that this crate works with.
const OLDEST: (u32, u32) = (6, 2);

/// How long after a useless answer a server is asked again what it is.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Why this crate cannot work with a server.
#[derive(Debug)]
pub(super) enum Obstacle {
    /// It may pass.
    Passing(NodeFailure),
    /// This crate cannot work with such a server, for this reason.
    Unfit(String),
    /// It lasts until somebody changes something.
    Lasting(Error),
}

impl Obstacle {
    /// Returns it as an error.
    pub(super) fn into_error(self, node: &Arc<str>) -> Error {
        match self {
            Self::Passing(failure) => unavailable(failure),
            Self::Unfit(reason) => Error::config("node", format!("{node} {reason}")),
            Self::Lasting(error) => error,
        }
    }

    /// Returns the same, with the name of an unfit server.
    pub(super) fn about(self, node: &Arc<str>) -> Self {
        match self {
            Self::Unfit(_) => Self::Lasting(self.into_error(node)),
            other => other,
        }
    }

    /// Returns the same, for the first connection: the server may want to be connected to in
    /// another way.
    pub(super) fn at_first(self, address: &Address) -> Self {
        match self {
            Self::Passing(NodeFailure { node, reason }) => Self::Passing(NodeFailure {
                node,
                reason: address.with_remedy(reason),
            }),
            other => other,
        }
    }
}

/// Returns the error of a connect to one server.
pub(super) fn unavailable(failure: NodeFailure) -> Error {
    Error::Unavailable {
        keys: Vec::new(),
        servers: 1,
        nodes: vec![failure],
        waited: Duration::ZERO,
    }
}

/// Classifies why connecting failed: the server refused, or did not answer.
pub(super) fn refusal(node: &Arc<str>, error: &fred::error::Error, bound: Duration) -> Obstacle {
    let reply = error.details();
    let code = reply::code(reply);
    let kind = ServerErrorKind::of(code);
    if kind != ServerErrorKind::Other {
        return Obstacle::Lasting(Error::refused(kind, node, cut(reply.as_bytes())));
    }
    // Only a server's reply begins with a code. This one concerns the credentials or the database
    // of the address.
    if code == "ERR" && !reply.contains("max number of clients") {
        let problem = format!(
            "the server refuses the address {node}: {}",
            cut(reply.as_bytes())
        );
        return Obstacle::Lasting(Error::config("node", problem));
    }
    let reason = format!("cannot connect: {}", reply::words(error, Some(bound)));
    let failure = NodeFailure::new(node, reason);
    // Protected mode and bad certificates do not go away by themselves.
    if code == "DENIED" || reply::is_about_encryption(error) {
        return Obstacle::Lasting(unavailable(failure));
    }
    Obstacle::Passing(failure)
}

/// What is wrong with a server in cluster mode that is named by itself: it has only some of the
/// keys.
pub(crate) const IN_CLUSTER_MODE: &str = "is a server in cluster mode: name the cluster, redis-cluster://host:port, \
                                          and no other server beside it";

/// What is wrong with a server that Sentinels name too early, or still.
const NAMED_REPLICA: &str = "is a replica, though the Sentinels name it as the master";

impl Mode {
    /// Returns what is wrong with a server that reports this mode.
    fn complaint(self, told: Option<&str>) -> Option<&'static str> {
        match (self, told) {
            (Self::Alone, Some("cluster")) => Some(IN_CLUSTER_MODE),
            (_, Some("sentinel")) => Some(
                "is a Sentinel: name the master, redis-sentinel://host:port?sentinelServiceName=name",
            ),
            (Self::Cluster, Some(mode)) if mode != "cluster" => {
                Some("is a server that is in no cluster: write redis:// for redis-cluster://")
            }
            _ => None,
        }
    }
}

/// Asks a server for its version and mode. Returns the version, if it can be read.
pub(super) async fn greeting(node: &Arc<str>, link: &Link) -> Result<Option<(u32, u32)>, Obstacle> {
    let too_old = |version: &str| {
        Obstacle::Unfit(format!(
            "is a server of version {version}; lockhound needs 6.2 or newer"
        ))
    };
    // By HELLO, which nearly every user may call: INFO is often not allowed.
    match link.call("HELLO", Vec::new()).await {
        Outcome::Done(reply) => {
            let [version, mode, role] = ["version", "mode", "role"].map(|name| value(&reply, name));
            if link.is_named() && role.is_some_and(|role| role != "master") {
                return Err(Obstacle::Passing(NodeFailure::new(node, NAMED_REPLICA)));
            }
            if let Some(complaint) = link.mode().complaint(mode.as_deref()) {
                return Err(Obstacle::Unfit(complaint.to_owned()));
            }
            let version = version.unwrap_or_default();
            match parse_version(&version) {
                Some(found) if found < OLDEST => Err(too_old(&version)),
                Some(found) => Ok(Some(found)),
                None => {
                    log!(warn, %node, version = %Shown(&version), "the server reports no version that can be read");
                    Ok(None)
                }
            }
        }
        Outcome::Refused(Error::Server { source, .. })
            if source.message.contains("unknown command") =>
        {
            Err(too_old("5 or older"))
        }
        Outcome::Refused(Error::Server {
            kind: ServerErrorKind::NoPermission,
            source,
        }) => {
            log!(debug, %node, error = %source, "the server's version cannot be read");
            Ok(None)
        }
        Outcome::Refused(error) => Err(Obstacle::Lasting(error)),
        Outcome::NotExecuted(failure) | Outcome::Unknown(failure) => {
            Err(Obstacle::Passing(failure))
        }
    }
}

/// Warns about a server that may evict locks.
pub(super) async fn eviction(node: &Arc<str>, link: &Link) {
    let Outcome::Done(Reply::Bytes(info)) = link.call("INFO", vec!["memory".into()]).await else {
        log!(debug, %node, "no permission for INFO: cannot check the eviction policy");
        return;
    };
    let info = String::from_utf8_lossy(&info);
    if let Some(policy) = field(&info, "maxmemory_policy").filter(|&policy| policy != "noeviction")
    {
        log!(
            warn, %node, policy = cut(policy.as_bytes()),
            "this server may evict locks when its memory is full, and two callers may then hold one lock: set \
            `maxmemory-policy noeviction`"
        );
    }
}

/// Checks the server of a connection that could not be made at first, or that leads to another
/// master now: until that is done, no script is sent. Restarted after a panic; ends when the server
/// is found to be fit, unless Sentinels may name another one, or with [`Link::quit`]; no task
/// awaits it.
pub(super) async fn get_to_know(link: &Arc<Link>) {
    let node = link.server();
    loop {
        if link.is_known_as(&Fitness::Fit) {
            if !link.is_named() {
                return;
            }
            tokio::select! {
                biased;
                () = link.ended() => return,
                () = link.doubted() => {}
            }
        }
        let epoch = link.epoch();
        let reason = match greeting(node, link).await {
            // Meanwhile it may lead to another server.
            Ok(_) if link.epoch() != epoch => continue,
            Ok(_) => {
                // At once: nothing is awaited since it was checked that it is the same server.
                link.set_fitness(Fitness::Fit);
                if link.is_first() {
                    eviction(node, link).await;
                }
                continue;
            }
            Err(Obstacle::Passing(failure)) if failure.reason == NAMED_REPLICA => {
                // Scripts fail at once and need not wait: the Sentinels may take a while to name
                // another one.
                link.set_fitness(Fitness::Unfit(failure.reason));
                None
            }
            Err(Obstacle::Passing(_)) => None,
            Err(Obstacle::Unfit(reason)) => Some(reason),
            Err(Obstacle::Lasting(error)) => Some(error.to_string()),
        };
        let pause = if reason.is_some() {
            10 * LOOK_AGAIN
        } else {
            LOOK_AGAIN
        };
        if let Some(reason) = reason {
            let fitness = Fitness::Unfit(reason.clone());
            if link.is_first() && !link.is_known_as(&fitness) {
                log!(warn, %node, reason, "this server cannot be used, and is checked again once a second");
            }
            link.set_fitness(fitness);
        }
        tokio::select! {
            biased;
            () = link.ended() => return,
            () = sleep(pause) => {}
        }
    }
}

/// Returns the first two numbers of a version.
fn parse_version(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Returns the value of a field in the answer to INFO.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}

/// Returns the value behind a name in a flat list of names and values.
pub(super) fn value(reply: &Reply, name: &str) -> Option<String> {
    let Reply::Array(items) = reply else {
        return None;
    };
    let at = items
        .iter()
        .position(|item| matches!(item, Reply::Bytes(bytes) if **bytes == *name.as_bytes()))?;
    match items.get(at + 1)? {
        Reply::Bytes(value) => Some(cut(value)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::clock::Instant;
    use crate::node::Wiring;
    use crate::node::access::Access;
    use crate::node::client::Role;
    use crate::node::host_port::HostPort;
    use crate::node::naming::Said;
    use crate::options::Options;

    #[test]
    fn a_name_is_found_in_a_flat_list() {
        let bytes = |s: &str| Reply::Bytes(s.to_owned().into());
        let hello = Reply::Array(vec![
            bytes("server"),
            bytes("redis"),
            bytes("version"),
            bytes("7.0.15"),
        ]);
        assert_eq!(value(&hello, "version").as_deref(), Some("7.0.15"));
        assert_eq!(value(&hello, "7.0.15"), None);
    }

    /// Tells that it is a replica, or answers OK; never answers INFO. Notes what it was sent.
    async fn serve(listener: TcpListener, is_replica: bool, seen: Arc<Mutex<String>>) {
        while let Ok((mut stream, _)) = listener.accept().await {
            let seen = Arc::clone(&seen);
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while let Ok(n @ 1..) = stream.read(&mut buffer).await {
                    let text = String::from_utf8_lossy(&buffer[..n]).into_owned();
                    seen.lock().expect("a lock").push_str(&text);
                    for command in text.split('*').skip(1) {
                        if command.contains("memory") {
                            continue;
                        }
                        let replica = is_replica && command.contains("HELLO");
                        let answer: &[u8] = if replica {
                            b"*2\r\n$4\r\nrole\r\n$5\r\nslave\r\n"
                        } else {
                            b"+OK\r\n"
                        };
                        if stream.write_all(answer).await.is_err() {
                            return;
                        }
                    }
                }
            });
        }
    }

    /// Another master is named between the first server's answer to HELLO and the one to INFO.
    #[tokio::test]
    async fn a_server_that_was_not_asked_is_not_fit() {
        let settings = Options::default().validate(1).expect("valid");
        let place = |port| HostPort {
            host: "127.0.0.1".into(),
            port,
        };
        let url = "redis-sentinel://s?sentinelServiceName=locks";
        let address = Arc::new(Address::parse(url, &Access::default()).expect("an address"));
        let naming = address.naming().expect("Sentinels name it");
        naming.add(place(26_379), true);
        let name = |master: HostPort, epoch| {
            naming.hear(
                &place(26_379),
                None,
                Said::Names {
                    master,
                    epoch: Some(epoch),
                },
                Instant::now(),
            );
        };
        let mut servers = Vec::new();
        for is_replica in [false, true] {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
            let at = place(listener.local_addr().expect("an address").port());
            let seen = Arc::<Mutex<String>>::default();
            tokio::spawn(serve(listener, is_replica, Arc::clone(&seen)));
            servers.push((at, seen));
        }
        name(servers[0].0.clone(), 1);
        let (events, _told) = tokio::sync::mpsc::unbounded_channel();
        let wiring = Wiring::new("test", &settings, events.clone(), &Arc::default());
        let link = Link::await_server(Arc::clone(&address), Role::Commands, &wiring, events);
        let asking = Arc::clone(&link);
        tokio::spawn(async move { get_to_know(&asking).await });
        while !servers[0].1.lock().expect("a lock").contains("memory") {
            sleep(Duration::from_millis(1)).await;
        }
        name(servers[1].0.clone(), 2);
        sleep(Duration::from_secs(4)).await;
        let seen = servers[1].1.lock().expect("a lock").clone();
        let fit = link.is_known_as(&Fitness::Fit);
        link.abandon();
        assert!(!fit, "fit, though it was sent no HELLO: {seen:?}");
    }
}
