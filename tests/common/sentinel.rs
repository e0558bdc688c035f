//! A private master with a replica, and Sentinels that watch over them.

use std::fs;
use std::time::{Duration, Instant};

use lockhound::{Locker, LockerBuilder};

use super::{Server, eventually};

/// The name of the master.
pub const NAME: &str = "locks";

pub struct Sentinels {
    pub master: Server,
    pub replica: Server,
    pub sentinels: Vec<Server>,
}

impl Sentinels {
    /// Starts a master, a replica, and three Sentinels, which take a master for dead after a
    /// second.
    pub fn start() -> Self {
        let master = Server::start();
        let replica = master.replica();
        while !master.has_replicas(1) {
            std::thread::sleep(Duration::from_millis(20));
        }
        master.command::<()>(&["DEL", "in:step"]);
        let sentinels: Vec<_> = (0..3)
            .map(|_| Server::start_sentinel_of(&master, &[]))
            .collect();
        let group = Self {
            master,
            replica,
            sentinels,
        };
        group.wait_for("each knows the others and the replica", |sentinel| {
            knows(sentinel, 2, 1)
        });
        group
    }

    /// Starts them with the first Sentinel and the master on one side of a partition, and the other
    /// Sentinels and the replica on the other one. Clients reach all of them. The first Sentinel
    /// hears nothing of the others, and these cannot turn the master into a replica.
    pub fn start_parted() -> Self {
        let master = Server::start();
        let replica = master.replica();
        while !master.has_replicas(1) {
            std::thread::sleep(Duration::from_millis(20));
        }
        for server in [&master, &replica] {
            server.command::<()>(&[
                "ACL",
                "SETUSER",
                "deaf",
                "on",
                ">pw",
                "+@all",
                "-subscribe",
                "-publish",
            ]);
        }
        master.command::<()>(&["ACL", "SETUSER", "default", "-replicaof", "-slaveof"]);
        let deaf =
            Server::start_sentinel_of(&master, &[("auth-user", "deaf"), ("auth-pass", "pw")]);
        let hearing = [(); 2].map(|()| Server::start_sentinel_of(&master, &[]));
        let group = Self {
            master,
            replica,
            sentinels: [deaf].into_iter().chain(hearing).collect(),
        };
        let [deaf, ..] = &*group.sentinels else {
            panic!("no Sentinel")
        };
        let others = |sentinel: &Server| usize::from(sentinel.port() != deaf.port());
        group.wait_for("each knows the replica, and two each other", |sentinel| {
            knows(sentinel, others(sentinel), 1)
        });
        group
    }

    /// Lets the replica take over from a master that was parted from it, which stays a master.
    /// Returns once two of the Sentinels name the replica. The first one goes on naming the old
    /// master.
    pub async fn part(&self) {
        self.sentinels[1].command::<()>(&["SENTINEL", "FAILOVER", NAME]);
        let named = |sentinel: &Server| self.named_by(sentinel) == Some(self.replica.port());
        let parted = || self.sentinels[1..].iter().all(named) && self.replica.is_master();
        eventually(Duration::from_secs(60), "the replica is named", parted).await;
        assert!(
            self.named_by(&self.sentinels[0]) == Some(self.master.port())
                && self.master.is_master()
        );
    }

    fn named_by(&self, sentinel: &Server) -> Option<u16> {
        let of = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME];
        sentinel
            .try_command::<(String, u16)>(&of)
            .ok()
            .map(|(_, port)| port)
    }

    /// Returns the address of the master, with all Sentinels.
    pub fn url(&self) -> String {
        url_of(self.sentinels.iter().map(Server::port))
    }

    pub fn builder(&self, lease: Duration) -> LockerBuilder {
        Locker::builder()
            .node(self.url())
            .lease(lease)
            .command_timeout((lease / 4).min(Duration::from_secs(3)))
    }

    /// Waits until all Sentinels name the replica as the master.
    pub async fn failed_over(&self) {
        let named = |sentinel: &Server| self.named_by(sentinel) == Some(self.replica.port());
        let so = || self.sentinels.iter().all(named) && self.replica.is_master();
        eventually(Duration::from_secs(120), "the replica is named", so).await;
    }

    fn wait_for(&self, what: &str, so: impl Fn(&Server) -> bool) {
        let start = Instant::now();
        while !self.sentinels.iter().all(&so) {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "{what}: not within a minute"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Returns the address of the master, with the Sentinels on these ports.
pub fn url_of(ports: impl IntoIterator<Item = u16>) -> String {
    let nodes: Vec<_> = ports
        .into_iter()
        .map(|port| format!("127.0.0.1:{port}"))
        .collect();
    format!(
        "redis-sentinel://{}?sentinelServiceName={NAME}&node={}",
        nodes[0],
        nodes[1..].join("&node=")
    )
}

/// Returns whether a Sentinel knows this many others, and this many replicas.
fn knows(sentinel: &Server, others: usize, replicas: usize) -> bool {
    let known: Vec<String> = sentinel.command(&["SENTINEL", "MASTER", NAME]);
    let of = |name| {
        known
            .iter()
            .position(|word| word == name)
            .and_then(|at| known[at + 1].parse().ok())
    };
    (of("num-other-sentinels"), of("num-slaves")) == (Some(others), Some(replicas))
}

impl Server {
    /// Starts a Sentinel that watches a master with these further options.
    pub fn start_sentinel_of(master: &Self, options: &[(&str, &str)]) -> Self {
        let (sentinel, port) = (Self::start_sentinel(), master.port().to_string());
        sentinel.command::<()>(&["SENTINEL", "MONITOR", NAME, "127.0.0.1", &port, "2"]);
        for (option, value) in options.iter().chain(&[
            ("down-after-milliseconds", "1000"),
            ("failover-timeout", "10000"),
        ]) {
            sentinel.command::<()>(&["SENTINEL", "SET", NAME, option, value]);
        }
        sentinel
    }

    /// Starts a Sentinel that does not watch any master yet.
    fn start_sentinel() -> Self {
        let file = std::env::temp_dir().join(format!("lockhound-{}.conf", uuid::Uuid::new_v4()));
        fs::write(&file, "sentinel deny-scripts-reconfig yes\n").unwrap();
        Self::start_as_sentinel(file)
    }
}
