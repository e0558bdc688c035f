//! This crate and Redisson on one server: what tests of both need.

use std::time::{Duration, Instant};

use lockhound::Locker;

use super::jvm::{Asked, Client, Jvm, Mode};
use super::machine::within;
use super::{Server, builder, eventually, ms};

/// How much faster than ours the server's clock may run during a lease, because it is being
/// adjusted.
pub const SLEW: Duration = Duration::from_millis(5);

/// Returns a locker with this lease and the longest command timeout it allows: now and then JVMs
/// take every core.
pub async fn patient(server: &Server, lease: Duration) -> Locker {
    let command_timeout = (lease * 3 / 10).min(ms(3_000));
    builder(&server.url(), lease)
        .command_timeout(command_timeout)
        .connect()
        .await
        .unwrap()
}

/// Returns a server, a locker and a client of the shared JVM, all with this lease.
pub async fn both_sides(lease: Duration) -> Option<(Server, Locker, Client<'static>)> {
    let jvm = Jvm::shared()?;
    let server = Server::start();
    let (locks, redisson) = (
        patient(&server, lease).await,
        jvm.client(&server, lease).await,
    );
    Some((server, locks, redisson))
}

/// Returns the same of a cluster, which is one server.
pub async fn both_sides_in_a_cluster(lease: Duration) -> Option<(Server, Locker, Client<'static>)> {
    let jvm = Jvm::shared()?;
    let args = [
        "--cluster-enabled",
        "yes",
        "--cluster-announce-ip",
        "127.0.0.1",
    ];
    let server = Server::start_with(&args);
    server.command::<()>(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    let state = || server.command::<String>(&["CLUSTER", "INFO"]);
    eventually(ms(20_000), "the cluster is up", || {
        state().contains("cluster_state:ok")
    })
    .await;
    let redisson = jvm.connect(Mode::Cluster, &[server.url()], lease).await;
    let url = format!("redis-cluster://127.0.0.1:{}", server.port());
    let locks = Locker::builder().node(url).lease(lease).connect().await;
    Some((server, locks.unwrap(), redisson))
}

/// Starts a waiter of either side, and returns when only a message or its next re-check can wake
/// it: its second attempt comes after the subscription. Each attempt asks for the remaining lease
/// (PTTL).
pub async fn waits<T>(server: &Server, comes: impl FnOnce() -> T) -> T {
    let before = server.calls("pttl");
    let waiting = comes();
    eventually(ms(20_000), "it has subscribed and tried again", || {
        server.calls("pttl") >= before + 2
    })
    .await;
    waiting
}

/// Returns when a thread of the JVM got what it asked for.
pub async fn entered(asked: Asked, bound: Duration) -> Instant {
    let answer = tokio::time::timeout(bound, asked)
        .await
        .unwrap_or_else(|_| panic!("not in {bound:?}"))
        .unwrap();
    answer.said.unwrap();
    answer.at
}

pub fn is_illegal_monitor_state(unlocked: Result<(), String>) -> bool {
    unlocked.is_err_and(|exception| exception.contains("IllegalMonitorStateException"))
}

/// Asserts when a waiter got a lock that is no longer renewed: not before its lease was over, and
/// soon after it, by a re-check each sixth of a lease or when the lease that the waiter was told of
/// was over.
pub fn assert_taken_over(asked: Instant, left: i64, lease: Duration, entered: Instant) {
    let (waited, left) = (entered - asked, ms(u64::try_from(left).unwrap()));
    assert!(waited + SLEW >= left, "{waited:?} of {left:?}");
    assert!(
        within(waited, lease + lease / 6 + ms(2_000)),
        "{waited:?} of {left:?}"
    );
}
