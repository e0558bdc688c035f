//! The report on one server: what was found out about it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::promise::Promise;

/// The answer of a server to a question, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding<T> {
    /// The answer.
    Known(T),
    /// The server's user may not ask. This ACL rule, such as `+info`, permits it.
    Forbidden(&'static str),
    /// There is no usable answer, for this reason.
    Unknown(String),
}

impl<T> Finding<T> {
    /// Returns the answer, if there is one.
    pub const fn known(&self) -> Option<&T> {
        match self {
            Self::Known(answer) => Some(answer),
            Self::Forbidden(_) | Self::Unknown(_) => None,
        }
    }

    pub(crate) fn unasked() -> Self {
        Self::Unknown("the server had no time to answer".to_owned())
    }

    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U) -> Finding<U> {
        self.and_then(|answer| Some(change(answer)))
    }

    /// Returns what `read` finds in the answer.
    pub(crate) fn and_then<U>(self, read: impl FnOnce(T) -> Option<U>) -> Finding<U> {
        match self {
            Self::Known(answer) => read(answer).map_or_else(
                || Finding::Unknown("the server's answer does not have it".to_owned()),
                Finding::Known,
            ),
            Self::Forbidden(rule) => Finding::Forbidden(rule),
            Self::Unknown(reason) => Finding::Unknown(reason),
        }
    }

    /// Returns this, or the other if this is not known.
    pub(crate) fn or(self, other: Self) -> Self {
        if self.known().is_none() && other.known().is_some() {
            other
        } else {
            self
        }
    }
}

/// What is known about one server.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerReport {
    /// The address, its password as `***`.
    pub node: Arc<str>,
    /// Why the server could not be asked at all; then nothing else is known about it.
    pub failure: Option<String>,
    /// Why its vote does not count at the moment; only with several servers.
    pub abstains: Option<String>,
    /// Why it refuses writes at the moment, as far as `INFO` shows: it loads its data, or cannot
    /// write to its disk.
    pub refuses_writes: Option<String>,
    /// Its name and version, from `HELLO` and `INFO`.
    pub version: Finding<Version>,
    /// Whether it is a master or a replica, from `HELLO` and `INFO`.
    pub role: Finding<Role>,
    /// Whether it is alone or in a cluster, from `HELLO` and `CLUSTER INFO`.
    pub mode: Finding<Mode>,
    /// Its cluster, if it is in one.
    pub cluster: Option<ClusterView>,
    /// The Sentinels that the locker's address lists, if they name this server.
    pub sentinels: Vec<SentinelReport>,
    /// What it does when its memory is full, from `INFO` or `CONFIG GET`.
    pub eviction: Finding<Eviction>,
    /// What it writes to its disk, from `INFO` and `CONFIG GET`.
    pub persistence: Finding<Persistence>,
    /// Its replicas, from `INFO`.
    pub replicas: Finding<Vec<Replica>>,
    /// How many replicas acknowledge, if [`replica_acks`](lockhound::LockerBuilder::replica_acks)
    /// is set, from `WAIT`.
    pub acknowledging: Finding<u64>,
    /// The number of replicas below which it refuses writes, from `CONFIG GET`.
    pub min_replicas_to_write: Finding<u64>,
    /// How far its clock is from this machine's, from `TIME`.
    pub clock: Finding<Clock>,
    /// How long it takes to answer, over at most 50 round trips one after the other.
    pub round_trip: Finding<RoundTrips>,
    /// The rights that its user lacks.
    pub rights: Rights,
}

impl ServerReport {
    /// Creates the report on a server that has not been asked anything.
    pub(crate) fn unasked(node: Arc<str>) -> Self {
        Self {
            node,
            failure: None,
            abstains: None,
            refuses_writes: None,
            version: Finding::unasked(),
            role: Finding::unasked(),
            mode: Finding::unasked(),
            cluster: None,
            sentinels: Vec::new(),
            eviction: Finding::unasked(),
            persistence: Finding::unasked(),
            replicas: Finding::unasked(),
            acknowledging: Finding::Unknown("no replicas are asked for".to_owned()),
            min_replicas_to_write: Finding::unasked(),
            clock: Finding::unasked(),
            round_trip: Finding::unasked(),
            rights: Rights::default(),
        }
    }

    /// Creates the report on a server that cannot be reached.
    pub(crate) fn not_reached(node: Arc<str>, why: String) -> Self {
        Self {
            failure: Some(why),
            ..Self::unasked(node)
        }
    }

    /// Creates the report on a server in memory.
    #[cfg(test)]
    pub(crate) fn of_memory(node: Arc<str>) -> Self {
        let none = || Finding::Known(String::new());
        let persistence = Persistence {
            append_only: false,
            fsync: Finding::Known("no".to_owned()),
            no_fsync_on_rewrite: Finding::Known(false),
            save: none(),
        };
        let eviction = Eviction {
            policy: "noeviction".to_owned(),
            limit: 0,
            used: None,
        };
        Self {
            version: Finding::Known(Version {
                server: "memory".to_owned(),
                number: String::new(),
            }),
            role: Finding::Known(Role::Master),
            mode: Finding::Known(Mode::Standalone),
            eviction: Finding::Known(eviction),
            persistence: Finding::Known(persistence),
            replicas: Finding::Known(Vec::new()),
            min_replicas_to_write: Finding::Known(0),
            ..Self::unasked(node)
        }
    }

    /// Records what these round trips show. Each has its duration, this machine's clock before it
    /// and the server's clock during it, in microseconds. The quickest one shows the clock best.
    pub(crate) fn learn_trips(&mut self, trips: &[(Duration, u64, u64)]) {
        let mut times: Vec<Duration> = trips.iter().map(|(took, ..)| *took).collect();
        times.sort_unstable();
        let (Some(&max), Some((took, here, there))) =
            (times.last(), trips.iter().min_by_key(|(took, ..)| *took))
        else {
            return;
        };
        let at = |percent: usize| times[(times.len() * percent).div_ceil(100).max(1) - 1];
        let count = u64::try_from(times.len()).unwrap_or(u64::MAX);
        self.round_trip = Finding::Known(RoundTrips {
            count,
            p50: at(50),
            p99: at(99),
            max,
        });
        let uncertainty = *took / 2;
        let middle =
            i128::from(*here) + i128::try_from(uncertainty.as_micros()).unwrap_or(i128::MAX);
        let offset_us = i64::try_from(i128::from(*there) - middle).unwrap_or(i64::MAX);
        self.clock = Finding::Known(Clock {
            offset_us,
            uncertainty,
        });
    }

    /// Returns how many replicas are online, as far as that is known.
    pub(crate) fn online(&self) -> Option<u64> {
        let replicas = self.replicas.known()?;
        u64::try_from(replicas.iter().filter(|replica| replica.is_online).count()).ok()
    }
}

/// The oldest version that lockhound works with.
const OLDEST: (u32, u32) = (6, 2);

/// Returns the first two numbers of a version.
fn parse_version(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The name and version of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Version {
    /// Its name in small letters: `redis` or `valkey`; `memory` for a server of `testing`.
    pub server: String,
    /// Its own version, not the version of Redis with which it is compatible; empty for a server in
    /// memory.
    pub number: String,
}

impl Version {
    pub(crate) fn is_too_old(&self) -> bool {
        parse_version(&self.number).is_some_and(|version| version < OLDEST)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match &*self.server {
            "redis" => "Redis",
            "valkey" => "Valkey",
            "memory" => "a server in memory",
            name => name,
        };
        let gap = if self.number.is_empty() { "" } else { " " };
        write!(f, "{name}{gap}{}", self.number)
    }
}

/// Whether a server takes writes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// It does.
    Master,
    /// It copies a master. This is the master's address, if the server shows it.
    Replica(Option<String>),
    /// Another role, by the name that the server gives it.
    Other(String),
}

/// How a server shares its keys with others.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// It has all keys.
    Standalone,
    /// It has some of the keys. The state is what `CLUSTER INFO` says: `ok` or `fail`.
    Cluster(Finding<String>),
    /// Another mode, by the name that the server gives it, such as `sentinel`.
    Other(String),
}

/// A cluster, as one of its masters sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterView {
    /// How many of the 16,384 slots have a master, and how many masters have slots: CLUSTER INFO.
    pub slots: Finding<Slots>,
    /// How long a server has to be silent before the others replace it: `cluster-node-timeout`,
    /// CONFIG GET.
    pub node_timeout: Finding<Duration>,
    /// Whether all masters refuse everything while one slot has none:
    /// `cluster-require-full-coverage`, CONFIG GET.
    pub requires_full_coverage: Finding<bool>,
}

/// What one Sentinel says about the master.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SentinelReport {
    /// The address of the Sentinel.
    pub node: Arc<str>,
    /// The address of the server that it names as the master, `host:port`, or why it names none.
    pub master: Finding<String>,
    /// How long the master has to be silent before this Sentinel takes it for dead:
    /// `down-after-milliseconds`.
    pub down_after: Finding<Duration>,
    /// How many Sentinels have to agree on that: `quorum`.
    pub quorum: Finding<u64>,
    /// How many other Sentinels of this master it knows.
    pub others: Finding<u64>,
}

/// The slots of a cluster and their masters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Slots {
    /// How many have a master.
    pub assigned: u64,
    /// How many of those have a master that does not answer the one that was asked.
    pub failing: u64,
    /// How many masters have slots.
    pub masters: u64,
}

/// What a server does when its memory is full.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Eviction {
    /// `maxmemory-policy`.
    pub policy: String,
    /// `maxmemory`, in bytes; 0 means no limit.
    pub limit: u64,
    /// How much memory it uses, in bytes, if it shows that.
    pub used: Option<u64>,
}

impl Eviction {
    /// Returns whether it may delete locks when its memory is full.
    pub fn evicts(&self) -> bool {
        self.policy != "noeviction"
    }

    /// Returns whether it refuses commands that take memory (`OOM`).
    pub(crate) fn is_full(&self) -> bool {
        !self.evicts() && self.limit > 0 && self.used.is_some_and(|used| used >= self.limit)
    }
}

/// What a server writes to its disk.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Persistence {
    /// `appendonly`.
    pub append_only: bool,
    /// `appendfsync`: `always`, `everysec` or `no`.
    pub fsync: Finding<String>,
    /// `no-appendfsync-on-rewrite`: whether `appendfsync` is suspended while the server rewrites
    /// its file.
    pub no_fsync_on_rewrite: Finding<bool>,
    /// `save`: when it takes snapshots; empty means never.
    pub save: Finding<String>,
}

impl Persistence {
    /// Returns what the server has forgotten after a crash and a restart with its current settings.
    /// (Settings that were changed at run time need a `CONFIG REWRITE`.)
    pub fn forgets(&self) -> Finding<Forgets> {
        if !self.append_only {
            let never = self.save.known().is_some_and(String::is_empty);
            return Finding::Known(if never {
                Forgets::Everything
            } else {
                Forgets::SinceSnapshot
            });
        }
        match (self.fsync.clone(), &self.no_fsync_on_rewrite) {
            (Finding::Known(fsync), suspended) => match (&*fsync, suspended) {
                ("always", Finding::Known(false)) => Finding::Known(Forgets::Nothing),
                ("always", Finding::Known(true)) => Finding::Known(Forgets::Unwritten),
                ("always", unknown) => unknown.clone().map(|_| Forgets::Nothing),
                ("everysec", _) => Finding::Known(Forgets::LastSeconds),
                _ => Finding::Known(Forgets::Unwritten),
            },
            (unknown, _) => unknown.map(|_| Forgets::Nothing),
        }
    }
}

/// What a server has forgotten after a crash and a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Forgets {
    /// Nothing that it has answered, unless its disk loses what it reported as written.
    Nothing,
    /// What it did in the last second or two: `appendfsync everysec`.
    LastSeconds,
    /// What the operating system had not written to the disk, if the machine crashes: `appendfsync
    /// no`, or a rewrite with `no-appendfsync-on-rewrite yes`.
    Unwritten,
    /// What it did since its last snapshot, if there is one.
    SinceSnapshot,
    /// Everything.
    Everything,
}

impl fmt::Display for Forgets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "nothing",
            Self::LastSeconds => "the last second or two",
            Self::Unwritten => "what the system had not written to the disk",
            Self::SinceSnapshot => "whatever was written since its last snapshot",
            Self::Everything => "everything",
        })
    }
}

/// A replica, as its master sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replica {
    /// Its address, as the master knows it.
    pub address: String,
    /// Whether it has the master's data and follows the master.
    pub is_online: bool,
    /// How long ago it last acknowledged, in whole seconds.
    pub lag: Duration,
    /// How many bytes it has not acknowledged.
    pub behind: u64,
}

/// How long round trips to a server take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RoundTrips {
    /// How many were measured.
    pub count: u64,
    /// The median: half of them took at most this long.
    pub p50: Duration,
    /// The 99th percentile: 99 of 100 took at most this long.
    pub p99: Duration,
    /// The longest.
    pub max: Duration,
}

/// How far a server's clock is from this machine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Clock {
    /// How far it is ahead, in microseconds; negative if it is behind.
    pub offset_us: i64,
    /// How wrong that may be, either way: half of a round trip.
    pub uncertainty: Duration,
}

impl Clock {
    /// Returns how far it is ahead, at least and at most, in microseconds.
    pub(crate) fn ahead(&self) -> (i64, i64) {
        let uncertainty = i64::try_from(self.uncertainty.as_micros()).unwrap_or(i64::MAX);
        (
            self.offset_us.saturating_sub(uncertainty),
            self.offset_us.saturating_add(uncertainty),
        )
    }
}

/// The rights that this locker uses and that a server's user lacks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rights {
    /// The rights that are missing.
    pub missing: Vec<MissingRight>,
    /// The rights that could not be determined.
    pub unknown: Vec<UnknownRight>,
}

/// A right that is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingRight {
    /// The ACL rule that grants it: `+pexpire`, `~orders:42`,
    /// `&redisson_lock__channel:{orders:42}`. A pattern that contains the name does as well.
    pub rule: String,
    /// The promises that need it; empty if it is only a convenience.
    pub needed_for: Vec<Promise>,
}

/// A right that a server's user may or may not have.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnknownRight {
    /// The ACL rule that grants it.
    pub rule: String,
    /// The promises that need it; empty if it is only a convenience.
    pub needed_for: Vec<Promise>,
    /// Why it is unknown.
    pub reason: String,
}

/// Groups rights by the reason why they are unknown: each reason, and its rules.
pub(crate) fn by_reason<'a>(rights: &[&'a UnknownRight]) -> Vec<(&'a str, String)> {
    let mut reasons: Vec<&str> = Vec::new();
    rights.iter().for_each(|right| {
        if !reasons.contains(&&*right.reason) {
            reasons.push(&right.reason);
        }
    });
    let rules = |reason: &str| {
        let rights = rights.iter().filter(|right| right.reason == reason);
        rights
            .map(|right| &*right.rule)
            .collect::<Vec<_>>()
            .join(" ")
    };
    reasons
        .into_iter()
        .map(|reason| (reason, rules(reason)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(parse_version("6.0.16") < Some(OLDEST));
        assert!(parse_version("7.0.15") > Some(OLDEST));
        assert!(parse_version("10.0.0") > Some(OLDEST));
        assert_eq!(parse_version("unstable"), None);
    }

    #[test]
    fn the_clock_is_from_the_middle_of_the_quickest_round_trip() {
        let mut report = ServerReport::unasked("redis://h".into());
        let us = Duration::from_micros;
        report.learn_trips(&[
            (us(900), 1_000, 90_000),
            (us(100), 5_000, 3_050),
            (us(200), 9_000, 9_900),
        ]);
        assert_eq!(
            report.clock,
            Finding::Known(Clock {
                offset_us: -2_000,
                uncertainty: us(50)
            })
        );
        let times = report.round_trip.known().expect("three of them");
        assert_eq!(
            (times.count, times.p50, times.p99, times.max),
            (3, us(200), us(900), us(900))
        );
        let mut report = ServerReport::unasked("redis://h".into());
        report.learn_trips(&[]);
        assert_eq!(report.clock.known(), None);
        let hundred: Vec<_> = (1..=100).map(|n| (us(n), 0, 0)).collect();
        report.learn_trips(&hundred);
        let times = report.round_trip.known().expect("a hundred");
        assert_eq!((times.p50, times.p99, times.max), (us(50), us(99), us(100)));
    }

    #[test]
    fn persistence_decides_what_a_crash_forgets() {
        let known = |value: &str| Finding::Known(value.to_owned());
        let forgets = |append_only, fsync: &str, suspended, save: &str| {
            let no_fsync_on_rewrite = Finding::Known(suspended);
            Persistence {
                append_only,
                fsync: known(fsync),
                no_fsync_on_rewrite,
                save: known(save),
            }
            .forgets()
        };
        for (persistence, forgotten) in [
            (forgets(true, "always", false, ""), Forgets::Nothing),
            (forgets(true, "always", true, ""), Forgets::Unwritten),
            (
                forgets(true, "everysec", false, "60 1"),
                Forgets::LastSeconds,
            ),
            (forgets(true, "no", false, "60 1"), Forgets::Unwritten),
            (
                forgets(false, "always", false, "60 1"),
                Forgets::SinceSnapshot,
            ),
            (forgets(false, "always", false, ""), Forgets::Everything),
        ] {
            assert_eq!(persistence, Finding::Known(forgotten));
        }
        let forbidden = || Finding::Forbidden("+config|get");
        let unknown = |append_only| {
            let no_fsync_on_rewrite = Finding::Forbidden("+config|get");
            Persistence {
                append_only,
                fsync: forbidden(),
                no_fsync_on_rewrite,
                save: forbidden(),
            }
            .forgets()
        };
        assert_eq!(unknown(true), Finding::Forbidden("+config|get"));
        assert_eq!(
            unknown(false),
            Finding::Known(Forgets::SinceSnapshot),
            "at the best"
        );
        let always = Persistence {
            append_only: true,
            fsync: known("always"),
            no_fsync_on_rewrite: Finding::Unknown("odd".to_owned()),
            save: forbidden(),
        };
        assert_eq!(always.forgets(), Finding::Unknown("odd".to_owned()));
    }
}
