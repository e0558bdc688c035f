//! Whether a server's vote counts: who it is, what it is, and how long it has run.
//!
//! A server that came back without its data has forgotten who holds what, and its vote could make a second majority. So
//! it abstains until every lease that it may have forgotten is over: the *delayed restarts* of the Redis documentation's
//! page on distributed locks. Two addresses of one server are one vote, and a replica has none.
//!
//! # Invariants
//! - A vote counts if the connection on which it came has been vetted, before it was sent, and is still the same.
//! - Two nodes of a locker that are the same server never vote both.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use super::check::IN_CLUSTER_MODE;
use crate::clock::Instant;
use crate::error::NodeFailure;
use crate::foreign::contained;

/// By its place: the name of a node, and the run id of its server.
type Present = HashMap<usize, (Arc<str>, String)>;

/// The servers of a locker, each by its place and its run id.
#[derive(Debug, Clone)]
pub(crate) struct Roll {
    quarantine: Duration,
    nodes: usize,
    present: Arc<Mutex<Present>>,
}

impl Roll {
    pub(crate) fn new(nodes: usize, quarantine: Duration) -> Self {
        Self { quarantine, nodes, present: Arc::default() }
    }

    /// Whether there is anything to find out: one server that votes at once has nobody to be mistaken for.
    fn is_moot(&self) -> bool {
        self.quarantine.is_zero() && self.nodes < 2
    }

    /// Enters a server under its run id.
    ///
    /// # Errors
    /// The node that is the same server.
    fn enter(&self, place: usize, name: &Arc<str>, run_id: &str) -> Result<(), Arc<str>> {
        let mut present = lock(&self.present);
        if let Some((_, (other, _))) = present.iter().find(|&(&at, (_, id))| at != place && id == run_id) {
            return Err(Arc::clone(other));
        }
        present.insert(place, (Arc::clone(name), run_id.to_owned()));
        Ok(())
    }
}

/// What is known of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nothing yet, and why.
    Unknown(String),
    Votes,
    /// It has run for this long only, at this time.
    Abstains {
        until: Instant,
        uptime: Duration,
    },
    /// It is no server whose vote could count.
    Unfit(String),
}

/// A node's standing, and for which of its connections that was found out.
#[derive(Debug)]
pub(super) struct Vetted {
    roll: Roll,
    place: usize,
    name: Arc<str>,
    found: Mutex<(Option<u64>, Standing)>,
    news: Notify,
}

impl Vetted {
    pub(super) fn new(roll: Roll, place: usize, name: Arc<str>) -> Self {
        let found = Mutex::new((None, Standing::Unknown("it was never connected".to_owned())));
        Self { roll, place, name, found, news: Notify::new() }
    }

    pub(super) fn is_moot(&self) -> bool {
        self.roll.is_moot()
    }

    /// Takes in what INFO said on a connection.
    pub(super) fn read(&self, epoch: u64, info: &str, now: Instant) -> Standing {
        let field =
            |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
        let standing = match (field("run_id"), field("role"), field("uptime_in_seconds").map(str::parse::<u64>)) {
            _ if field("cluster_enabled") == Some("1") => Standing::Unfit(IN_CLUSTER_MODE.to_owned()),
            (_, Some(role), _) if role != "master" => {
                let master = field("master_host").unwrap_or("another server");
                Standing::Unfit(format!("is a replica (role {role}) of {master}; a replica has no vote of its own"))
            }
            (Some(run_id), _, Some(Ok(seconds))) => match self.roll.enter(self.place, &self.name, run_id) {
                Err(other) => Standing::Unfit(format!("is the same server as {other}; it has one vote")),
                Ok(()) => {
                    // The difference of two clocks that show whole seconds: it may have run for almost a second less.
                    let uptime = Duration::from_secs(seconds.saturating_sub(1));
                    match self.roll.quarantine.checked_sub(uptime) {
                        Some(rest) if !rest.is_zero() => Standing::Abstains { until: now + rest, uptime },
                        _ => Standing::Votes,
                    }
                }
            },
            _ => Standing::Unknown("INFO tells neither its run id nor its uptime".to_owned()),
        };
        self.set(epoch, standing.clone());
        standing
    }

    /// INFO is not permitted: without it nobody can tell for how long the server has run.
    pub(super) fn unreadable(&self, epoch: u64, reason: &str) -> Standing {
        let standing = if self.roll.quarantine.is_zero() {
            contained(
                || tracing::warn!(node = %self.name, reason, "INFO is not allowed: two addresses of one server go unnoticed"),
            );
            Standing::Votes
        } else {
            Standing::Unfit(format!("INFO is not allowed ({reason}), and restart_quarantine needs it"))
        };
        self.set(epoch, standing.clone());
        standing
    }

    /// Nothing is known yet, and why.
    pub(super) fn unknown(&self, reason: &str) {
        let mut found = lock(&self.found);
        found.0 = None;
        found.1 = Standing::Unknown(reason.to_owned());
    }

    fn set(&self, epoch: u64, standing: Standing) {
        *lock(&self.found) = (Some(epoch), standing);
        self.news.notify_waiters();
    }

    /// Waits until it is known whether the vote of this connection counts.
    ///
    /// # Errors
    /// Why it does not.
    pub(super) async fn may_vote(&self, epoch: impl Fn() -> u64, patience: Duration) -> Result<u64, NodeFailure> {
        if self.is_moot() {
            return Ok(epoch());
        }
        let deadline = Instant::now() + patience;
        loop {
            // Before the look: news that come after it are not missed.
            let news = self.news.notified();
            let (of, standing) = lock(&self.found).clone();
            let now = Instant::now();
            match standing {
                Standing::Unfit(reason) => return Err(self.failure(reason)),
                Standing::Abstains { until, uptime } if of == Some(epoch()) && now < until => {
                    return Err(self.failure(format!(
                        "abstains for another {:.1?}: it started {uptime:.0?} or a little more before it was connected, and whoever holds a \
                         lock that it has forgotten has to run out first (restart_quarantine = {:?})",
                        now.until(until),
                        self.roll.quarantine
                    )));
                }
                Standing::Votes | Standing::Abstains { .. } if of == Some(epoch()) => return Ok(epoch()),
                _ => {}
            }
            if timeout(now.until(deadline), news).await.is_err() {
                let reason = match standing {
                    Standing::Unknown(reason) => reason,
                    _ => "it was connected anew a moment ago".to_owned(),
                };
                return Err(self.failure(format!("does not vote before it is known who it is: {reason}")));
            }
        }
    }

    fn failure(&self, reason: String) -> NodeFailure {
        NodeFailure { node: Arc::clone(&self.name), reason }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# Server\r\nrun_id:abc\r\nuptime_in_seconds:7\r\n# Replication\r\nrole:master\r\n";

    fn vetted(roll: &Roll, place: usize) -> Vetted {
        Vetted::new(roll.clone(), place, format!("n{place}").into())
    }

    #[test]
    fn a_server_abstains_until_its_uptime_passes_the_quarantine() {
        let now = Instant::now();
        let roll = Roll::new(3, Duration::from_secs(30));
        let standing = vetted(&roll, 0).read(0, INFO, now);
        let until = now + Duration::from_secs(24);
        assert_eq!(standing, Standing::Abstains { until, uptime: Duration::from_secs(6) });
        let old = INFO.replace(":7", ":31");
        assert_eq!(vetted(&roll, 0).read(0, &old, now), Standing::Votes);
        assert_eq!(vetted(&Roll::new(3, Duration::ZERO), 0).read(0, INFO, now), Standing::Votes);
    }

    #[test]
    fn a_server_under_two_addresses_has_one_vote_and_a_replica_none() {
        let now = Instant::now();
        let roll = Roll::new(3, Duration::ZERO);
        let (one, other) = (vetted(&roll, 0), vetted(&roll, 1));
        assert_eq!(one.read(0, INFO, now), Standing::Votes);
        assert_eq!(one.read(1, INFO, now), Standing::Votes, "the same node again");
        assert!(matches!(other.read(0, INFO, now), Standing::Unfit(reason) if reason.contains("same server as n0")));
        // The first node's server was replaced by another one.
        assert_eq!(one.read(2, &INFO.replace("abc", "def"), now), Standing::Votes);
        assert_eq!(other.read(1, INFO, now), Standing::Votes);
        let replica = INFO.replace("role:master", "role:slave\r\nmaster_host:db1");
        assert!(matches!(other.read(2, &replica, now), Standing::Unfit(reason) if reason.contains("of db1")));
        let of_a_cluster = format!("{INFO}# Cluster\r\ncluster_enabled:1\r\n");
        assert!(
            matches!(other.read(2, &of_a_cluster, now), Standing::Unfit(reason) if reason.contains("cluster mode"))
        );
        assert!(matches!(other.read(2, "", now), Standing::Unknown(_)));
    }

    #[tokio::test]
    async fn a_connection_that_is_not_vetted_has_no_vote() {
        let roll = Roll::new(3, Duration::ZERO);
        let node = vetted(&roll, 0);
        let patience = Duration::from_millis(1);
        assert!(node.may_vote(|| 0, patience).await.is_err());
        node.read(0, INFO, Instant::now());
        assert_eq!(node.may_vote(|| 0, patience).await.ok(), Some(0));
        assert!(node.may_vote(|| 1, patience).await.is_err(), "another connection");
        assert_eq!(vetted(&Roll::new(1, Duration::ZERO), 0).may_vote(|| 4, patience).await.ok(), Some(4));
    }
}
