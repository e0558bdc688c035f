//! What the tests share: private servers, proxies that do harm, and the record of who was inside
//! when.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test target uses a part of it"
)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

pub mod both_sides;
pub mod chaos;
pub mod children;
pub mod clock;
pub mod cluster;
pub mod distance;
pub mod failovers;
pub mod history;
pub mod hole;
pub mod jvm;
pub mod labels;
pub mod log;
pub mod losses;
pub mod machine;
pub mod marks;
pub mod meddler;
pub mod permits;
pub mod polls;
pub mod proxy;
pub mod record;
pub mod rights;
pub mod sentinel;
pub mod server;
pub mod several;
pub mod storm;
#[cfg(feature = "tls")]
pub mod tls;

use std::time::{Duration, Instant};

use lockhound::{Locker, LockerBuilder};
pub use server::Server;

/// Returns a name that no other test uses.
pub fn key() -> String {
    format!("test:{}", uuid::Uuid::new_v4())
}

/// Prints a line past libtest, which hides what a passing test prints.
pub fn say(text: &str) {
    use std::io::Write as _;
    std::io::stderr()
        .write_all(format!("{text}\n").as_bytes())
        .unwrap();
}

pub fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Returns an acquire script of `lua/` as the library sends it.
pub fn acquire_script(body: &str) -> redis::Script {
    redis::Script::new(&body.replace("-- fence.lua\n", include_str!("../../lua/shared/fence.lua")))
}

/// Connects a locker with the default options.
pub async fn locker(server: &Server) -> Locker {
    Locker::connect(server.url()).await.unwrap()
}

/// Returns a builder with this lease, which tests choose short enough to wait for.
pub fn builder(url: &str, lease: Duration) -> LockerBuilder {
    Locker::builder().node(url).lease(lease)
}

pub async fn locker_with(server: &Server, lease: Duration) -> Locker {
    builder(&server.url(), lease).connect().await.unwrap()
}

/// Waits until a condition holds, and panics if that takes too long: see [`machine::within`].
pub async fn eventually(within: Duration, what: &str, mut so: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    let mut limit = within;
    while !so() {
        if start.elapsed() >= limit {
            assert!(
                machine::within(start.elapsed(), within),
                "{what}: not within {within:?}"
            );
            limit = start.elapsed() + within;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    start.elapsed()
}

/// Waits until this many callers of a locker wait for a lock.
pub async fn they_wait(locks: &Locker, callers: usize) {
    let wait = || locks.stats().waiters == callers;
    eventually(Duration::from_secs(10), "they wait", wait).await;
}

/// Waits until a locker knows that this many of its servers are away.
pub async fn away(locks: &Locker, servers: usize) {
    let away = || locks.stats().nodes.iter().filter(|node| !node.up).count() == servers;
    eventually(Duration::from_secs(10), "it knows", away).await;
}

/// Waits for a future for this long, or longer on a busy machine: see [`machine::within`].
pub async fn soon<F: IntoFuture>(within: Duration, future: F) -> Option<F::Output> {
    let start = Instant::now();
    let mut future = std::pin::pin!(future.into_future());
    loop {
        if let Ok(output) = tokio::time::timeout(within, &mut future).await {
            return Some(output);
        }
        if !machine::within(start.elapsed(), within) {
            return None;
        }
    }
}
