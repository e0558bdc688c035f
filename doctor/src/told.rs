//! Reads a server's answers to HELLO, INFO, CONFIG GET and CLUSTER INFO.

use std::time::Duration;

use lockhound::servers::ServerReply;

use crate::found::{
    ClusterView, Eviction, Finding, Mode, Persistence, Replica, Role, ServerReport, Slots, Version,
};
use crate::shown::cut;

/// The answer to HELLO, which every user may send from Redis 7 on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) server: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) mode: Option<String>,
    pub(crate) role: Option<String>,
}

impl Hello {
    pub(crate) fn read(reply: &ServerReply) -> Self {
        let [server, version, mode, role] =
            ["server", "version", "mode", "role"].map(|name| value(reply, name));
        Self {
            server,
            version,
            mode,
            role,
        }
    }
}

/// All answers of a server.
#[derive(Debug, Clone)]
pub(crate) struct Told {
    pub(crate) hello: Finding<Hello>,
    pub(crate) info: Finding<String>,
    /// The answers about its cluster, if the server is in cluster mode.
    pub(crate) cluster: Option<ToldOfCluster>,
    /// In the order of [`Told::SETTINGS`].
    pub(crate) settings: Vec<Finding<String>>,
}

/// A server's answers about its cluster.
#[derive(Debug, Clone)]
pub(crate) struct ToldOfCluster {
    /// CLUSTER INFO.
    pub(crate) info: Finding<String>,
    /// In the order of [`ToldOfCluster::SETTINGS`].
    pub(crate) settings: Vec<Finding<String>>,
}

impl ToldOfCluster {
    /// What CONFIG GET is asked for.
    pub(crate) const SETTINGS: [&str; 2] =
        ["cluster-node-timeout", "cluster-require-full-coverage"];

    fn state(&self) -> Finding<String> {
        self.info
            .clone()
            .and_then(|info| field(&info, "cluster_state").map(cut))
    }

    fn view(&self) -> ClusterView {
        let slots = |info: String| {
            let number = |name| field(&info, name)?.parse::<u64>().ok();
            let failing =
                number("cluster_slots_pfail")?.saturating_add(number("cluster_slots_fail")?);
            Some(Slots {
                assigned: number("cluster_slots_assigned")?,
                failing,
                masters: number("cluster_size")?,
            })
        };
        let setting = |at: usize| {
            self.settings
                .get(at)
                .cloned()
                .unwrap_or_else(Finding::unasked)
        };
        let [node_timeout, full_coverage] = [setting(0), setting(1)];
        ClusterView {
            slots: self.info.clone().and_then(slots),
            node_timeout: node_timeout.and_then(|ms| Some(Duration::from_millis(ms.parse().ok()?))),
            requires_full_coverage: full_coverage.map(|value| value == "yes"),
        }
    }
}

impl Told {
    /// What CONFIG GET is asked for.
    pub(crate) const SETTINGS: [&str; 8] = [
        "maxmemory-policy",
        "maxmemory",
        "appendonly",
        "appendfsync",
        "no-appendfsync-on-rewrite",
        "save",
        "stop-writes-on-bgsave-error",
        "min-replicas-to-write",
    ];

    fn setting(&self, name: &str) -> Finding<String> {
        let place = Self::SETTINGS.iter().position(|setting| *setting == name);
        place
            .and_then(|place| self.settings.get(place))
            .cloned()
            .unwrap_or_else(Finding::unasked)
    }

    fn is_yes(&self, name: &str) -> Finding<bool> {
        self.setting(name).map(|value| value == "yes")
    }

    fn info<T>(&self, read: impl FnOnce(&str) -> Option<T>) -> Finding<T> {
        self.info.clone().and_then(|info| read(&info))
    }

    fn version(&self) -> Finding<Version> {
        let told = |hello: Hello| {
            Some(Version {
                server: hello.server?.to_ascii_lowercase(),
                number: hello.version?,
            })
        };
        // A compatible server has its own version here, and perhaps that of Redis in
        // `redis_version`.
        let valkey = |info: &str| {
            let number = cut(field(info, "valkey_version")?);
            Some(Version {
                server: "valkey".to_owned(),
                number,
            })
        };
        let redis = |info: &str| {
            let number = cut(field(info, "redis_version")?);
            Some(Version {
                server: "redis".to_owned(),
                number,
            })
        };
        match self.info(valkey) {
            valkey @ Finding::Known(_) => valkey,
            _ => self.hello.clone().and_then(told).or(self.info(redis)),
        }
    }

    fn role(&self) -> Finding<Role> {
        let told = |info: &str| match field(info, "role")? {
            "master" => Some(Role::Master),
            "slave" => Some(Role::Replica(master(info))),
            other => Some(Role::Other(cut(other))),
        };
        let hello = |hello: Hello| match &*hello.role? {
            "master" => Some(Role::Master),
            "replica" | "slave" => Some(Role::Replica(None)),
            other => Some(Role::Other(other.to_owned())),
        };
        match self.info(told) {
            Finding::Known(role) => Finding::Known(role),
            unknown => self.hello.clone().and_then(hello).or(unknown),
        }
    }

    fn mode(&self) -> Finding<Mode> {
        let state = self
            .cluster
            .as_ref()
            .map_or_else(Finding::unasked, ToldOfCluster::state);
        self.hello.clone().and_then(|hello| {
            Some(match hello.mode? {
                mode if mode == "standalone" => Mode::Standalone,
                mode if mode == "cluster" => Mode::Cluster(state),
                mode => Mode::Other(mode),
            })
        })
    }

    fn eviction(&self) -> Finding<Eviction> {
        let number = |info: &str, name: &str| field(info, name)?.parse().ok();
        let told = |info: &str| {
            let policy = cut(field(info, "maxmemory_policy")?);
            Some(Eviction {
                policy,
                limit: number(info, "maxmemory")?,
                used: number(info, "used_memory"),
            })
        };
        let limit = self
            .setting("maxmemory")
            .known()
            .and_then(|limit| limit.parse().ok())
            .unwrap_or(0);
        let set = self.setting("maxmemory-policy").map(|policy| Eviction {
            policy,
            limit,
            used: None,
        });
        self.info(told).or(set)
    }

    fn persistence(&self) -> Finding<Persistence> {
        let told = self.info(|info| Some(field(info, "aof_enabled")? == "1"));
        told.or(self.is_yes("appendonly"))
            .map(|append_only| Persistence {
                append_only,
                fsync: self.setting("appendfsync"),
                no_fsync_on_rewrite: self.is_yes("no-appendfsync-on-rewrite"),
                save: self.setting("save"),
            })
    }

    /// Returns why it refuses writes at the moment, if it does.
    fn refuses_writes(&self) -> Option<String> {
        let info = self.info.known()?;
        let is = |name: &str, value: &str| field(info, name) == Some(value);
        if is("loading", "1") {
            return Some("it is loading its data".to_owned());
        }
        if is("aof_enabled", "1") && is("aof_last_write_status", "err") {
            return Some(
                "it could not write to its append-only file (aof_last_write_status:err)".to_owned(),
            );
        }
        let goes_on = self.is_yes("stop-writes-on-bgsave-error").known() == Some(&false)
            || self.setting("save").known().is_some_and(String::is_empty);
        let failed = is("rdb_last_bgsave_status", "err") && !goes_on;
        failed.then(|| "it could not save a snapshot (rdb_last_bgsave_status:err)".to_owned())
    }
}

impl ServerReport {
    /// Fills in what the server's answers show.
    pub(crate) fn learn(&mut self, told: &Told) {
        self.version = told.version();
        self.role = told.role();
        self.mode = told.mode();
        self.cluster = told.cluster.as_ref().map(ToldOfCluster::view);
        self.eviction = told.eviction();
        self.persistence = told.persistence();
        self.refuses_writes = told.refuses_writes();
        self.replicas = told.info(|info| Some(replicas(info)));
        // INFO has this line only if the server waits for replicas.
        let none = told.info(|info| field(info, "min_slaves_good_slaves").is_none().then_some(0));
        let least = told
            .setting("min-replicas-to-write")
            .and_then(|least| least.parse().ok());
        self.min_replicas_to_write = least.or(none);
    }
}

/// Returns the value behind a name in a flat list of names and values.
pub(crate) fn value(reply: &ServerReply, name: &str) -> Option<String> {
    let ServerReply::List(items) = reply else {
        return None;
    };
    let at = items
        .iter()
        .position(|item| matches!(item, ServerReply::Text(text) if text == name))?;
    match items.get(at + 1)? {
        ServerReply::Text(value) => Some(cut(value)),
        _ => None,
    }
}

/// Returns the value of a field in the answer to INFO.
pub(crate) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}

/// Returns the address of a replica's master.
fn master(info: &str) -> Option<String> {
    let (host, port) = (field(info, "master_host")?, field(info, "master_port")?);
    Some(cut(&format!("{host}:{port}")))
}

/// `slave0:ip=10.0.0.7,port=6379,state=online,offset=14,lag=0`
fn replicas(info: &str) -> Vec<Replica> {
    let sent: u64 = field(info, "master_repl_offset")
        .and_then(|offset| offset.parse().ok())
        .unwrap_or(0);
    let told = (0..).map_while(|place| field(info, &format!("slave{place}")));
    let read = |told: &str| {
        let part = |name: &str| {
            told.split(',')
                .find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
        };
        let number = |name: &str| part(name).and_then(|number| number.parse::<u64>().ok());
        Replica {
            address: cut(&format!(
                "{}:{}",
                part("ip").unwrap_or("?"),
                part("port").unwrap_or("?")
            )),
            is_online: part("state") == Some("online"),
            lag: Duration::from_secs(number("lag").unwrap_or(0)),
            behind: sent.saturating_sub(number("offset").unwrap_or(0)),
        }
    };
    told.map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::found::Forgets;

    const INFO: &str = "# Server\r\nredis_version:7.0.15\r\n# Memory\r\nused_memory:2048\r\nmaxmemory:4096\r\n\
                        maxmemory_policy:allkeys-lru\r\n# Persistence\r\nloading:0\r\nrdb_last_bgsave_status:ok\r\n\
                        aof_enabled:1\r\naof_last_write_status:ok\r\n# Replication\r\nrole:master\r\n\
                        slave0:ip=10.0.0.7,port=6379,state=online,offset=90,lag=1\r\n\
                        slave1:ip=10.0.0.8,port=6380,state=wait_bgsave,offset=0,lag=0\r\nmaster_repl_offset:100\r\n";

    fn hello(words: [&str; 4]) -> Finding<Hello> {
        let [server, version, mode, role] = words.map(|word| Some(word.to_owned()));
        Finding::Known(Hello {
            server,
            version,
            mode,
            role,
        })
    }

    fn told(info: Finding<String>, settings: [&str; 8]) -> Told {
        let settings = settings
            .map(|value| Finding::Known(value.to_owned()))
            .to_vec();
        let hello = hello(["redis", "7.0.15", "standalone", "master"]);
        Told {
            hello,
            info,
            cluster: None,
            settings,
        }
    }

    fn report(told: &Told) -> ServerReport {
        let mut report = ServerReport::unasked("redis://h".into());
        report.learn(told);
        report
    }

    const SETTINGS: [&str; 8] = [
        "noeviction",
        "0",
        "no",
        "everysec",
        "no",
        "3600 1",
        "yes",
        "1",
    ];

    #[test]
    fn the_answers_of_a_server_are_read() {
        let report = report(&told(Finding::Known(INFO.to_owned()), SETTINGS));
        assert_eq!(
            report.version.known().map(ToString::to_string).as_deref(),
            Some("Redis 7.0.15")
        );
        assert_eq!(report.role, Finding::Known(Role::Master));
        assert_eq!(report.mode, Finding::Known(Mode::Standalone));
        let eviction = report.eviction.known().expect("told");
        assert_eq!(
            (&*eviction.policy, eviction.limit, eviction.used),
            ("allkeys-lru", 4_096, Some(2_048))
        );
        assert!(eviction.evicts());
        let persistence = report.persistence.known().expect("told");
        assert!(
            persistence.append_only,
            "what is so counts, and not what is configured"
        );
        assert_eq!(persistence.forgets(), Finding::Known(Forgets::LastSeconds));
        let replicas = report.replicas.known().expect("told");
        assert_eq!(
            replicas
                .iter()
                .map(|replica| replica.is_online)
                .collect::<Vec<_>>(),
            [true, false]
        );
        assert_eq!(
            (
                &*replicas[0].address,
                replicas[0].lag.as_secs(),
                replicas[0].behind
            ),
            ("10.0.0.7:6379", 1, 10)
        );
        assert_eq!(
            (
                report.online(),
                report.min_replicas_to_write,
                report.refuses_writes
            ),
            (Some(1), Finding::Known(1), None)
        );
    }

    #[test]
    fn without_info_other_answers_count_or_the_right_is_named() {
        let report = report(&told(Finding::Forbidden("+info"), SETTINGS));
        assert_eq!(report.role, Finding::Known(Role::Master));
        assert_eq!(
            report.eviction.known().map(|eviction| eviction.evicts()),
            Some(false)
        );
        assert_eq!(
            report.persistence.known().map(Persistence::forgets),
            Some(Finding::Known(Forgets::SinceSnapshot))
        );
        assert_eq!(report.replicas, Finding::Forbidden("+info"));
        let mut silent = told(Finding::Forbidden("+info"), SETTINGS);
        silent.settings = vec![Finding::Forbidden("+config|get"); 8];
        let report = super::tests::report(&silent);
        assert_eq!(report.eviction, Finding::Forbidden("+info"));
        assert_eq!(
            report.min_replicas_to_write,
            Finding::Forbidden("+config|get")
        );
        for (line, least) in [
            ("", Finding::Known(0)),
            (
                "min_slaves_good_slaves:1\r\n",
                Finding::Forbidden("+config|get"),
            ),
        ] {
            silent.info = Finding::Known(format!("{INFO}{line}"));
            assert_eq!(super::tests::report(&silent).min_replicas_to_write, least);
        }
    }

    #[test]
    fn the_kind_of_a_server_is_read_from_its_answers() {
        let version = |info: &str, words: [&str; 2]| {
            let mut told = told(Finding::Known(info.to_owned()), SETTINGS);
            told.hello = hello([words[0], words[1], "standalone", "master"]);
            report(&told).version.known().map(ToString::to_string)
        };
        let valkey = "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1\r\n";
        assert_eq!(
            version(valkey, ["valkey", "8.0.1"]).as_deref(),
            Some("Valkey 8.0.1")
        );
        assert_eq!(
            version(valkey, ["redis", "7.2.4"]).as_deref(),
            Some("Valkey 8.0.1")
        );
        assert_eq!(version("", ["Odd", "1.0"]).as_deref(), Some("odd 1.0"));
        let mut told = told(
            Finding::Known("role:slave\r\nmaster_host:h2\r\nmaster_port:7\r\n".to_owned()),
            SETTINGS,
        );
        assert_eq!(
            report(&told).role,
            Finding::Known(Role::Replica(Some("h2:7".to_owned())))
        );
        told.hello = hello(["redis", "7.0.15", "cluster", "master"]);
        let info = "cluster_state:fail\r\ncluster_slots_assigned:16000\r\ncluster_slots_ok:15000\r\n\
                    cluster_slots_pfail:900\r\ncluster_slots_fail:100\r\ncluster_known_nodes:6\r\ncluster_size:3\r\n";
        let settings = ["15000", "yes"]
            .map(|value| Finding::Known(value.to_owned()))
            .to_vec();
        told.cluster = Some(ToldOfCluster {
            info: Finding::Known(info.to_owned()),
            settings,
        });
        let found = report(&told);
        assert_eq!(
            found.mode,
            Finding::Known(Mode::Cluster(Finding::Known("fail".to_owned())))
        );
        let view = found.cluster.expect("it is in one");
        assert_eq!(
            view.slots,
            Finding::Known(Slots {
                assigned: 16_000,
                failing: 1_000,
                masters: 3
            })
        );
        assert_eq!(view.node_timeout, Finding::Known(Duration::from_secs(15)));
        assert_eq!(view.requires_full_coverage, Finding::Known(true));
        let forbidden = Finding::Forbidden("+cluster|info");
        told.cluster = Some(ToldOfCluster {
            info: forbidden,
            settings: Vec::new(),
        });
        let found = report(&told);
        assert_eq!(
            found.mode,
            Finding::Known(Mode::Cluster(Finding::Forbidden("+cluster|info")))
        );
        assert_eq!(
            found.cluster.map(|view| view.slots),
            Some(Finding::Forbidden("+cluster|info"))
        );
    }

    #[test]
    fn a_server_that_refuses_writes_says_why() {
        let why = |info: &str, save: &str, stops: &str| {
            let mut settings = SETTINGS;
            (settings[5], settings[6]) = (save, stops);
            report(&told(Finding::Known(info.to_owned()), settings)).refuses_writes
        };
        assert!(why("loading:1", "", "no").is_some_and(|why| why.contains("loading")));
        assert!(
            why("aof_enabled:1\naof_last_write_status:err", "", "no")
                .is_some_and(|why| why.contains("append-only"))
        );
        let failed = "aof_enabled:0\naof_last_write_status:err\nrdb_last_bgsave_status:err";
        assert!(why(failed, "60 1", "yes").is_some_and(|why| why.contains("snapshot")));
        assert_eq!(
            (why(failed, "", "yes"), why(failed, "60 1", "no")),
            (None, None)
        );
    }

    #[test]
    fn a_name_is_found_in_a_flat_list() {
        let hello =
            ["server", "redis", "version", "7.0.15"].map(|text| ServerReply::Text(text.to_owned()));
        let hello = ServerReply::List(hello.to_vec());
        assert_eq!(value(&hello, "version").as_deref(), Some("7.0.15"));
        assert_eq!(value(&hello, "7.0.15"), None);
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        assert_eq!(field("slave10:x\r\nslave1:y\r\n", "slave1"), Some("y"));
        assert_eq!(
            (field("role:master", "rol"), field("", "role")),
            (None, None)
        );
    }
}
