//! A private cluster: masters and replicas on free ports.

use std::time::{Duration, Instant};

use lockhound::{Locker, LockerBuilder};

use super::Server;
use super::labels::keys_without_labels;

/// The number of slots of a cluster.
pub const SLOTS: u16 = 16_384;

/// Servers that form a cluster: the masters first, then their replicas, if there are any.
pub struct Cluster {
    pub servers: Vec<Server>,
    masters: usize,
    /// Servers that were replaced: they run, and are in no cluster.
    left: Vec<Server>,
}

impl Cluster {
    /// Starts this many masters without replicas, with about the same number of slots each.
    pub fn start(masters: usize) -> Self {
        Self::start_with(masters, 0, &[])
    }

    /// Starts this many masters with `replicas` replicas each, and further arguments of
    /// redis-server.
    pub fn start_with(masters: usize, replicas: usize, args: &[&str]) -> Self {
        // The others take a server for dead after a second without an answer.
        let mode = [
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            "1000",
            "--cluster-replica-validity-factor",
            "0",
        ];
        let args = [&mode, args].concat();
        let servers: Vec<_> = (0..masters * (1 + replicas))
            .map(|_| Server::start_with(&args))
            .collect();
        let cluster = Self {
            servers,
            masters,
            left: Vec::new(),
        };
        cluster.form(1);
        cluster
    }

    /// Creates the cluster again, with the lowest epochs: its servers forget it, and all masters
    /// but the first are replaced by other servers, which have not been in it. There are no
    /// replicas.
    pub fn create_again(&mut self) {
        let replaced: Vec<_> = self.servers[1..].iter().map(Server::another).collect();
        for server in &self.servers {
            server.command::<()>(&["FLUSHALL"]);
            server.command::<()>(&["CLUSTER", "RESET", "HARD"]);
        }
        self.left.extend(self.servers.splice(1.., replaced));
        self.form(1);
    }

    /// Forms a cluster of servers that know nothing of each other. The epoch of the first one is
    /// this.
    fn form(&self, first_epoch: usize) {
        let (servers, masters) = (&self.servers, self.masters);
        let first = &servers[0];
        for (at, server) in servers.iter().enumerate() {
            server.command::<()>(&[
                "CLUSTER",
                "SET-CONFIG-EPOCH",
                &(first_epoch + at).to_string(),
            ]);
            if at < masters {
                let from = |at: usize| usize::from(SLOTS) * at / masters;
                let slots: Vec<_> = (from(at)..from(at + 1))
                    .map(|slot| slot.to_string())
                    .collect();
                let words = ["CLUSTER", "ADDSLOTS"]
                    .into_iter()
                    .chain(slots.iter().map(String::as_str));
                server.command::<()>(&words.collect::<Vec<_>>());
            }
            if at > 0 {
                server.command::<()>(&["CLUSTER", "MEET", "127.0.0.1", &first.port().to_string()]);
            }
        }
        let (all, replicas) = (servers.len(), servers.len() / masters - 1);
        self.wait_for("all know each other", |server| {
            let nodes: String = server.command(&["CLUSTER", "NODES"]);
            nodes.lines().count() == all && !nodes.contains("handshake")
        });
        for (at, server) in servers.iter().enumerate().skip(masters) {
            let master = servers[at % masters].id();
            server.command::<()>(&["CLUSTER", "REPLICATE", &master]);
        }
        self.wait_for("the cluster is whole", |server| {
            let info: String = server.command(&["CLUSTER", "INFO"]);
            let link: String = server.command(&["INFO", "replication"]);
            info.contains("cluster_state:ok") && !link.contains("master_link_status:down")
        });
        // A master announces new replicas in its next heartbeat.
        self.wait_for("everybody knows the replicas", |server| {
            let nodes: String = server.command(&["CLUSTER", "NODES"]);
            nodes.lines().filter(|line| line.contains("slave")).count() == masters * replicas
        });
    }

    pub fn masters(&self) -> &[Server] {
        &self.servers[..self.masters]
    }

    /// Returns the replica that a master was started with.
    pub fn replica_of(&self, master: usize) -> &Server {
        &self.servers[self.masters + master]
    }

    /// Returns the cluster's address: two of the servers, by which a client finds the others.
    pub fn url(&self) -> String {
        format!(
            "redis-cluster://127.0.0.1:{}?node=127.0.0.1:{}",
            self.servers[0].port(),
            self.servers[1].port()
        )
    }

    pub fn builder(&self, lease: Duration) -> LockerBuilder {
        Locker::builder()
            .node(self.url())
            .lease(lease)
            .command_timeout((lease / 4).min(Duration::from_secs(3)))
    }

    /// Returns which master had the slot of this key at the start.
    pub fn first_master_of(&self, key: &str) -> usize {
        (0..self.masters)
            .find(|&at| {
                slot(key) < u16::try_from(usize::from(SLOTS) * (at + 1) / self.masters).unwrap()
            })
            .unwrap()
    }

    /// Returns the server that has a key now, according to the server that is asked.
    fn owner_of(&self, key: &str, asked: &Server) -> &Server {
        let slots: Vec<(u16, u16, (String, u16))> = ranges(&asked.command(&["CLUSTER", "SLOTS"]));
        let (_, _, (_, port)) = slots
            .iter()
            .find(|(from, to, _)| (*from..=*to).contains(&slot(key)))
            .expect("a master of the slot");
        self.servers
            .iter()
            .find(|server| server.port() == *port)
            .expect("one of ours")
    }

    pub fn exists(&self, key: &str) -> bool {
        self.owner_of(key, &self.servers[0]).exists(key)
    }

    pub fn delete(&self, key: &str) {
        self.owner_of(key, &self.servers[0])
            .command::<()>(&["DEL", key]);
    }

    /// Returns all keys but the marks and the labels.
    pub fn keys(&self) -> Vec<String> {
        let all = self.masters().iter().flat_map(keys_without_labels);
        all.filter(|key| !key.starts_with("lockhound_fence:"))
            .collect()
    }

    /// Moves a slot from one master to another, as `redis-cli --cluster reshard` does. `on_its_way`
    /// runs while the slot is moving.
    pub fn move_slot(&self, slot: u16, from: &Server, to: &Server, on_its_way: impl FnOnce()) {
        let slot = &*slot.to_string();
        to.command::<()>(&["CLUSTER", "SETSLOT", slot, "IMPORTING", &from.id()]);
        from.command::<()>(&["CLUSTER", "SETSLOT", slot, "MIGRATING", &to.id()]);
        on_its_way();
        loop {
            let keys: Vec<String> = from.command(&["CLUSTER", "GETKEYSINSLOT", slot, "10"]);
            if keys.is_empty() {
                break;
            }
            let port = to.port().to_string();
            let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            migrate.extend(keys.iter().map(String::as_str));
            from.command::<()>(&migrate);
        }
        for server in [to, from] {
            server.command::<()>(&["CLUSTER", "SETSLOT", slot, "NODE", &to.id()]);
        }
    }

    fn wait_for(&self, what: &str, so: impl Fn(&Server) -> bool) {
        let start = Instant::now();
        while !self.servers.iter().all(&so) {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "{what}: not within a minute"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Server {
    /// Returns the node id of this server in its cluster.
    pub fn id(&self) -> String {
        self.command(&["CLUSTER", "MYID"])
    }

    pub fn is_master(&self) -> bool {
        self.command::<String>(&["INFO", "replication"])
            .contains("role:master")
    }
}

/// Returns the slot of a key by the Redis cluster specification: CRC-16 (XModem) of the text in its
/// first braces, or of the whole key.
pub fn slot(key: &str) -> u16 {
    let braced = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map(|(tag, _)| tag);
    let hashed = braced.filter(|tag| !tag.is_empty()).unwrap_or(key);
    let crc = hashed.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 {
                crc << 1
            } else {
                crc << 1 ^ 0x1021
            }
        })
    });
    crc % SLOTS
}

/// Reads the answer to CLUSTER SLOTS: first slot, last slot, and the master of each range.
fn ranges(answer: &redis::Value) -> Vec<(u16, u16, (String, u16))> {
    let items = |value: &redis::Value| match value {
        redis::Value::Array(items) => items.clone(),
        other => panic!("{other:?}"),
    };
    let read = |entry: &redis::Value| {
        let entry = items(entry);
        let master = items(&entry[2]);
        let number = |value: &redis::Value| redis::from_redis_value_ref::<u16>(value).unwrap();
        let host = redis::from_redis_value_ref(&master[0]).unwrap();
        (
            number(&entry[0]),
            number(&entry[1]),
            (host, number(&master[1])),
        )
    };
    items(answer).iter().map(read).collect()
}
