//! The reasons why one server does not keep a promise. Pure.

use std::time::Duration;

use lockhound::Format;
use lockhound::servers::Settings;

use crate::found::{Finding, Forgets, Mode, Role, ServerReport, by_reason};
use crate::promise::{Promise, Reason};

/// How far the clock of this machine may be behind a server's, in microseconds. A restart takes
/// longer than this plus the tenth of a second to which clients round their clocks down.
const BEHIND_US: i64 = 100_000;

/// The reasons why one server does not keep a promise, or may not.
#[derive(Debug, Default)]
pub(crate) struct Case {
    pub(crate) broken: Vec<Reason>,
    pub(crate) doubts: Vec<Reason>,
}

impl Case {
    pub(crate) fn is_sound(&self) -> bool {
        self.broken.is_empty() && self.doubts.is_empty()
    }

    /// Adds a reason why it does not keep the promise.
    pub(crate) fn breaks(
        &mut self,
        at: &ServerReport,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.broken.push(reason(at, problem, remedy));
    }

    /// Adds a reason why it is unknown whether it keeps the promise.
    pub(crate) fn doubts(
        &mut self,
        at: &ServerReport,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.doubts.push(reason(at, problem, remedy));
    }

    /// Adds a doubt if the answer to a question that matters is not known.
    pub(crate) fn wonders<T>(&mut self, at: &ServerReport, what: &str, finding: &Finding<T>) {
        match finding {
            Finding::Known(_) => {}
            Finding::Forbidden(rule) => {
                self.doubts(
                    at,
                    format!("{what} is not known: its user may not ask"),
                    give(&[rule]),
                );
            }
            Finding::Unknown(why) => self.doubts.push(Reason {
                node: Some(at.node.clone()),
                problem: format!("{what} is not known: {why}"),
                remedy: None,
            }),
        }
    }
}

/// The requirements for a server: the settings of its locker, and the kind of deployment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) lease: Duration,
    pub(crate) command_timeout: Duration,
    pub(crate) restart_quarantine: Duration,
    pub(crate) format: Format,
    /// How many replicas have to acknowledge, and within what time.
    pub(crate) replicas: Option<(u32, Duration)>,
    pub(crate) deployment: Deployment,
}

/// How the servers of a locker are related.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deployment {
    /// This many, which do not know each other.
    Independent(usize),
    /// The masters of a cluster, each of which has some of the locks.
    Cluster,
}

impl Deployment {
    /// Returns whether each lock is on one server alone.
    pub(crate) fn is_alone(self) -> bool {
        matches!(self, Self::Independent(1) | Self::Cluster)
    }
}

impl Wanted {
    pub(crate) fn new(settings: &Settings, deployment: Deployment) -> Self {
        Self {
            lease: settings.lease(),
            command_timeout: settings.command_timeout(),
            restart_quarantine: settings.restart_quarantine(),
            format: settings.format(),
            replicas: settings.replica_acks(),
            deployment,
        }
    }

    /// Returns what a locker over these servers wants by default.
    #[cfg(test)]
    pub(crate) fn by_default(deployment: Deployment) -> Self {
        let lease = Duration::from_secs(30);
        Self {
            lease,
            command_timeout: Duration::from_secs(3),
            restart_quarantine: if deployment.is_alone() {
                Duration::ZERO
            } else {
                lease
            },
            format: Format::Redisson,
            replicas: None,
            deployment,
        }
    }

    pub(crate) fn is_alone(&self) -> bool {
        self.deployment.is_alone()
    }

    /// Returns whether servers that forgot abstain.
    pub(crate) fn abstains(&self) -> bool {
        !self.restart_quarantine.is_zero()
    }

    /// Judges whether one server votes.
    pub(crate) fn locking_of(&self, at: &ServerReport) -> Case {
        let mut case = self.identity_of(at);
        if at.failure.is_some() {
            return case;
        }
        if let Some(why) = &at.abstains {
            case.breaks(
                at,
                why.clone(),
                "wait until it votes, if it has restarted a moment ago",
            );
        }
        if let Some(why) = &at.refuses_writes {
            case.breaks(
                at,
                format!("refuses writes: {why}"),
                "look at its log and its disk, or wait until it is loaded",
            );
        }
        if let Some(eviction) = at.eviction.known().filter(|eviction| eviction.is_full()) {
            let problem = format!(
                "has no memory left (maxmemory {}, {})",
                eviction.limit, eviction.policy
            );
            case.breaks(at, problem, "more `maxmemory`, or fewer keys");
        }
        self.replicas_of(at, &mut case);
        self.quickness_of(at, &mut case);
        self.slots_of(at, &mut case);
        let rights = self.rights_of(at, Promise::Locking);
        case.broken.extend(rights.broken);
        case.doubts.extend(rights.doubts);
        case
    }

    /// Judges whether it is a server that can have locks.
    pub(crate) fn identity_of(&self, at: &ServerReport) -> Case {
        let mut case = Case::default();
        if let Some(why) = &at.failure {
            case.breaks(at, why.clone(), "start it, or correct its address");
            return case;
        }
        if let Some(version) = at.version.known().filter(|version| version.is_too_old()) {
            case.breaks(
                at,
                format!("is {version}"),
                "install Redis 6.2 or newer, or any Valkey",
            );
        }
        match &at.role {
            Finding::Known(Role::Master) => {}
            Finding::Known(Role::Replica(master)) => {
                let of = master
                    .as_ref()
                    .map(|master| format!(" of {master}"))
                    .unwrap_or_default();
                case.breaks(at, format!("is a replica{of}"), "name its master");
            }
            Finding::Known(Role::Other(role)) => {
                case.breaks(
                    at,
                    format!("is no master, but: {role}"),
                    "name a master of Redis or Valkey",
                );
            }
            unknown => case.wonders(at, "whether it is a master", unknown),
        }
        match &at.mode {
            Finding::Known(Mode::Cluster(_)) if self.deployment == Deployment::Cluster => {}
            Finding::Known(Mode::Standalone) if self.deployment == Deployment::Cluster => {
                case.breaks(at, "is in no cluster", "name the servers of one cluster");
            }
            Finding::Known(Mode::Cluster(state)) => {
                let state = state
                    .known()
                    .map(|state| format!(" (state: {state})"))
                    .unwrap_or_default();
                let problem = format!("is in cluster mode{state}, and named by itself");
                case.breaks(at, problem, "name the cluster: redis-cluster://host:port");
            }
            Finding::Known(Mode::Other(mode)) => {
                case.breaks(
                    at,
                    format!("keeps no locks, but is: {mode}"),
                    "name a server of Redis or Valkey",
                );
            }
            Finding::Known(Mode::Standalone) => {}
            unknown => case.wonders(at, "whether it is in a cluster", unknown),
        }
        case
    }

    /// Judges whether it has the replicas that it or this locker requires.
    fn replicas_of(&self, at: &ServerReport, case: &mut Case) {
        if let (Some(online), Some(&least)) = (at.online(), at.min_replicas_to_write.known())
            && online < least
        {
            let problem = format!(
                "refuses writes: {online} of {} it waits for",
                many_replicas(least)
            );
            case.breaks(
                at,
                problem,
                "more replicas, or a lower `min-replicas-to-write`",
            );
        }
        // If INFO is unknown too, assume that it waits for no replicas, as nearly every server
        // does.
        if at.replicas.known().is_some() {
            case.wonders(
                at,
                "for how many replicas it waits",
                &at.min_replicas_to_write,
            );
        }
        let Some((count, timeout)) = self.replicas else {
            return;
        };
        match &at.acknowledging {
            Finding::Known(found) if *found < u64::from(count) => {
                let problem = format!(
                    "{found} of {} acknowledge within {timeout:?}",
                    many_replicas(count)
                );
                case.breaks(at, problem, "more replicas, or fewer in `replica_acks`");
            }
            found => case.wonders(at, "how many replicas acknowledge", found),
        }
    }

    /// Judges whether it answers in time.
    fn quickness_of(&self, at: &ServerReport, case: &mut Case) {
        let bound = self.command_timeout;
        match &at.round_trip {
            Finding::Known(times) if times.p99 > bound / 2 => {
                let problem = format!(
                    "takes {:.1?} to answer (p99), with command_timeout = {bound:?}",
                    times.p99
                );
                case.breaks(
                    at,
                    problem,
                    "a longer `command_timeout`, or a nearer server",
                );
            }
            // A missing right is reported as such.
            Finding::Known(_) | Finding::Forbidden(_) => {}
            unknown @ Finding::Unknown(_) => case.wonders(at, "how quickly it answers", unknown),
        }
    }

    pub(crate) fn rights_of(&self, at: &ServerReport, promise: Promise) -> Case {
        let mut case = Case::default();
        if at.failure.is_some() {
            case.doubts.push(Reason {
                remedy: None,
                ..reason(at, "was not asked what its user may do", "")
            });
            return case;
        }
        let missing = at
            .rights
            .missing
            .iter()
            .filter(|right| right.needed_for.contains(&promise));
        let missing: Vec<&str> = missing.map(|right| &*right.rule).collect();
        if !missing.is_empty() {
            case.breaks(
                at,
                "does not permit its user what this needs",
                give(&missing),
            );
        }
        let unknown: Vec<_> = at
            .rights
            .unknown
            .iter()
            .filter(|right| right.needed_for.contains(&promise))
            .collect();
        for (why, rules) in by_reason(&unknown) {
            let problem = format!("whether its user has {rules} is not known: {why}");
            case.doubts.push(Reason {
                remedy: None,
                ..reason(at, problem, "")
            });
        }
        case
    }

    /// Judges whether a server remembers what it granted before a crash.
    pub(crate) fn memory_of(&self, at: &ServerReport) -> Case {
        let mut case = Case::default();
        if let Some(why) = &at.failure {
            case.doubts(at, why.clone(), "start it, or correct its address");
            return case;
        }
        let others = if self.is_alone() {
            "several servers"
        } else {
            "a `restart_quarantine`"
        };
        match at
            .persistence
            .clone()
            .and_then(|persistence| Some(persistence.forgets()))
        {
            Finding::Known(Finding::Known(Forgets::Nothing)) => {}
            Finding::Known(Finding::Known(forgets)) if self.abstains() => {
                let quarantine = self.restart_quarantine;
                let problem = format!(
                    "forgets {forgets}, and then abstains for {quarantine:?}: enough if no program has a longer lease"
                );
                case.doubts(
                    at,
                    problem,
                    "`appendonly yes` and `appendfsync always`, or several servers",
                );
            }
            Finding::Known(Finding::Known(forgets)) => {
                let rewrites = at.persistence.known().is_some_and(|persistence| {
                    persistence.append_only
                        && persistence
                            .fsync
                            .known()
                            .is_some_and(|fsync| fsync == "always")
                });
                let setting = if rewrites {
                    "`no-appendfsync-on-rewrite no`".to_owned()
                } else {
                    format!("`appendonly yes` and `appendfsync always`, or {others}")
                };
                case.breaks(at, format!("forgets {forgets}"), setting);
            }
            Finding::Known(unknown) => {
                case.wonders(at, "what it writes to its disk, and when,", &unknown);
            }
            unknown => case.wonders(at, "what it writes to its disk", &unknown),
        }
        case
    }

    /// Judges whether a replica that is promoted knows what its master granted.
    pub(crate) fn promotion_of(&self, at: &ServerReport) -> Case {
        let mut case = Case::default();
        let replicas = match &at.replicas {
            _ if at.failure.is_some() => {
                let why = at.failure.clone().unwrap_or_default();
                case.doubts(at, why, "start it, or correct its address");
                return case;
            }
            Finding::Known(replicas) => u64::try_from(replicas.len()).unwrap_or(u64::MAX),
            unknown => {
                case.wonders(at, "whether it has replicas", unknown);
                return case;
            }
        };
        let several = if self.is_alone() {
            "several servers"
        } else {
            "a `restart_quarantine`"
        };
        match self.replicas {
            _ if replicas == 0 => {}
            None => {
                let problem = format!(
                    "has {}, and may be replaced by one that lacks its last locks",
                    many_replicas(replicas)
                );
                case.breaks(
                    at,
                    problem,
                    format!("{several}, or `replica_acks({replicas}, ..)`"),
                );
            }
            Some((count, _)) if u64::from(count) < replicas => {
                let problem = format!(
                    "has {}, of which {count} acknowledge: another may be promoted",
                    many_replicas(replicas)
                );
                case.breaks(
                    at,
                    problem,
                    format!("{several}, or `replica_acks({replicas}, ..)`"),
                );
            }
            Some(_) => {
                let tenth = self.lease / 10;
                let problem = "its replicas acknowledge, but their clocks are not known, nor whether they \
                               remember after a restart of their own";
                let remedy = format!(
                    "`redis-cli -h REPLICA TIME` within {tenth:.1?} of its own; or {several}"
                );
                case.doubts(at, problem, remedy);
            }
        }
        case
    }

    pub(crate) fn eviction_of(&self, at: &ServerReport) -> Case {
        let mut case = Case::default();
        match &at.eviction {
            _ if at.failure.is_some() => {
                let why = at.failure.clone().unwrap_or_default();
                case.doubts(at, why, "start it, or correct its address");
            }
            Finding::Known(eviction) if eviction.evicts() => {
                let when = if eviction.limit == 0 {
                    "once it has a `maxmemory`"
                } else {
                    "when its memory is full"
                };
                let problem = format!("deletes keys {when} (maxmemory-policy {})", eviction.policy);
                case.breaks(at, problem, "`maxmemory-policy noeviction`");
            }
            eviction => case.wonders(at, "its eviction policy", eviction),
        }
        case
    }

    /// Judges whether a single server that forgot fences continues above them: from its own clock,
    /// once the client's clock is past the last one.
    pub(crate) fn fences_of(&self, at: &ServerReport) -> Case {
        let mut case = Case::default();
        if let Some(why) = &at.failure {
            case.doubts(at, why.clone(), "start it, or correct its address");
            return case;
        }
        let forgets = at
            .persistence
            .known()
            .map(|persistence| persistence.forgets());
        let all_or_nothing = [Forgets::Nothing, Forgets::Everything].map(Finding::Known);
        let comes_back_older = !forgets.is_some_and(|forgets| all_or_nothing.contains(&forgets))
            || !at.replicas.known().is_some_and(Vec::is_empty);
        match &at.clock {
            _ if !comes_back_older => {}
            Finding::Known(clock) => {
                let (least, most) = clock.ahead();
                let apart = Duration::from_micros(most.max(0).unsigned_abs());
                let problem = format!(
                    "its clock is up to {apart:.1?} ahead of this machine's: for so long after it came back with older \
                     data fences may repeat"
                );
                if least > BEHIND_US {
                    case.breaks(at, problem, "set the clocks (NTP)");
                } else if most > BEHIND_US {
                    case.doubts(
                        at,
                        problem,
                        "set the clocks (NTP), or ask from a machine that is nearer",
                    );
                }
            }
            unknown => case.wonders(at, "its clock", unknown),
        }
        case
    }
}

fn reason(at: &ServerReport, problem: impl Into<String>, remedy: impl Into<String>) -> Reason {
    Reason {
        node: Some(at.node.clone()),
        problem: problem.into(),
        remedy: Some(remedy.into()),
    }
}

/// Returns how an operator gives these rights.
fn give(rules: &[&str]) -> String {
    format!("give its user {}", rules.join(" "))
}

fn many_replicas(count: impl Into<u64>) -> String {
    let count = count.into();
    if count == 1 {
        "1 replica".to_owned()
    } else {
        format!("{count} replicas")
    }
}
