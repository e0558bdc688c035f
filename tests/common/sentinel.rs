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
    /// Starts a master, a replica, and three Sentinels, which take a master for dead after a second.
    pub fn start() -> Self {
        let master = Server::start();
        let replica = master.replica();
        while !master.has_replicas(1) {
            std::thread::sleep(Duration::from_millis(20));
        }
        master.command::<()>(&["DEL", "in:step"]);
        let sentinels: Vec<_> = (0..3).map(|_| Server::start_sentinel()).collect();
        for sentinel in &sentinels {
            let port = master.port().to_string();
            sentinel.command::<()>(&["SENTINEL", "MONITOR", NAME, "127.0.0.1", &port, "2"]);
            for (option, value) in [("down-after-milliseconds", "1000"), ("failover-timeout", "10000")] {
                sentinel.command::<()>(&["SENTINEL", "SET", NAME, option, value]);
            }
        }
        let group = Self { master, replica, sentinels };
        group.wait_for("each knows the others and the replica", |sentinel| {
            let known: Vec<String> = sentinel.command(&["SENTINEL", "MASTER", NAME]);
            let of = |name| known.iter().position(|word| word == name).map(|at| known[at + 1].as_str());
            (of("num-other-sentinels"), of("num-slaves")) == (Some("2"), Some("1"))
        });
        group
    }

    /// Returns the address of the master, with all Sentinels.
    pub fn url(&self) -> String {
        let [first, rest @ ..] = &*self.sentinels else { panic!("no Sentinel") };
        let rest: String = rest.iter().map(|sentinel| format!("&node=127.0.0.1:{}", sentinel.port())).collect();
        format!("redis-sentinel://127.0.0.1:{}?sentinelServiceName={NAME}{rest}", first.port())
    }

    pub fn builder(&self, lease: Duration) -> LockerBuilder {
        Locker::builder().node(self.url()).lease(lease).command_timeout((lease / 4).min(Duration::from_secs(3)))
    }

    /// Waits until all Sentinels name the replica as the master.
    pub async fn failed_over(&self) {
        let port = self.replica.port();
        let named = |sentinel: &Server| {
            let of = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME];
            sentinel.try_command::<(String, u16)>(&of).is_ok_and(|(_, named)| named == port)
        };
        let so = || self.sentinels.iter().all(named) && self.replica.is_master();
        eventually(Duration::from_secs(120), "the replica is named", so).await;
    }

    fn wait_for(&self, what: &str, so: impl Fn(&Server) -> bool) {
        let start = Instant::now();
        while !self.sentinels.iter().all(&so) {
            assert!(start.elapsed() < Duration::from_secs(60), "{what}: not within a minute");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Server {
    /// Starts a Sentinel that does not watch any master yet.
    fn start_sentinel() -> Self {
        let file = std::env::temp_dir().join(format!("lockhound-{}.conf", uuid::Uuid::new_v4()));
        fs::write(&file, "sentinel deny-scripts-reconfig yes\n").unwrap();
        Self::start_as_sentinel(file)
    }
}
