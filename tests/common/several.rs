//! Several independent servers, and lockers over all of them.

use std::time::Duration;

use lockhound::{Locker, LockerBuilder};

use super::proxy::Proxy;
use super::{Server, eventually, ms};

pub fn servers(count: usize) -> Vec<Server> {
    (0..count).map(|_| Server::start()).collect()
}

/// Returns a builder over these addresses, whose votes count at once. Many servers on few cores may
/// be slow.
pub fn over_urls(urls: impl IntoIterator<Item = String>, lease: Duration) -> LockerBuilder {
    let nodes = urls
        .into_iter()
        .fold(Locker::builder(), |builder, url| builder.node(url));
    nodes
        .lease(lease)
        .command_timeout((lease / 4).min(ms(3_000)))
        .restart_quarantine(Duration::ZERO)
}

/// Returns a builder over these servers, whose votes count at once.
pub fn over(servers: &[Server], lease: Duration) -> LockerBuilder {
    over_urls(servers.iter().map(Server::url), lease)
}

/// Returns the same, with a proxy in front of each server.
pub fn through(servers: &[Server], lease: Duration) -> (Vec<Proxy>, LockerBuilder) {
    let proxies: Vec<Proxy> = servers
        .iter()
        .map(|server| Proxy::start(server.port()))
        .collect();
    let builder = over_urls(proxies.iter().map(Proxy::url), lease);
    (proxies, builder)
}

/// Returns how many of the servers have the key.
pub fn on(servers: &[Server], key: &str) -> usize {
    servers.iter().filter(|server| server.exists(key)).count()
}

/// Writes what Redisson's RLock writes: a hash with its owner, and a lease.
pub fn hold_as_redisson(server: &Server, key: &str, lease_ms: u64) {
    server.command::<()>(&["HSET", key, "5cb1f0b5-0000-4000-8000-000000000000:1", "1"]);
    server.command::<()>(&["PEXPIRE", key, &lease_ms.to_string()]);
}

/// Returns how many connections of lockers a server has.
pub fn connections(server: &Server) -> usize {
    let list: String = server.command(&["CLIENT", "LIST"]);
    // The connection that asks is not counted.
    list.lines().count() - 1
}

/// Waits until nothing that a locker began is still under way.
pub async fn settled(locks: &Locker) {
    eventually(ms(10_000), "nothing is under way", || {
        locks.stats().pending == 0
    })
    .await;
}
