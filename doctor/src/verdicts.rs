//! Derives a verdict for each promise from the findings. Pure.

use lockhound::Format;

use crate::cases::{Case, Deployment, Wanted};
use crate::found::{Clock, ServerReport};
use crate::promise::{Answer, Promise, Reason, Verdict};

/// With clocks this far apart, in microseconds, a server refuses the fences of another one.
const UNBELIEVABLE_US: i64 = 30 * 24 * 3600 * 1_000_000;

pub(crate) fn verdicts(wanted: &Wanted, servers: &[ServerReport]) -> Vec<Verdict> {
    let judge = Judge { wanted, servers };
    let verdict = |promise| {
        let (answer, reasons) = judge.judge(promise);
        Verdict {
            promise,
            answer,
            reasons,
        }
    };
    Promise::ALL.map(verdict).to_vec()
}

type Judged = (Answer, Vec<Reason>);

struct Judge<'a> {
    wanted: &'a Wanted,
    servers: &'a [ServerReport],
}

impl Judge<'_> {
    fn judge(&self, promise: Promise) -> Judged {
        match promise {
            Promise::Locking => self.locking(),
            Promise::FaultTolerance => self.fault_tolerance(),
            Promise::Exclusion => self.exclusion(),
            Promise::Restart => self.restart(),
            Promise::Failover => self.failover(),
            Promise::Eviction => self.every(|at| self.wanted.eviction_of(at)),
            Promise::Wakeups => self.wakeups(),
            Promise::Fences => self.fences(),
            Promise::Inspection => self.most(|at| self.wanted.rights_of(at, Promise::Inspection)),
        }
    }

    /// Judges a promise that each server has to keep.
    fn every(&self, case: impl Fn(&ServerReport) -> Case) -> Judged {
        let (mut broken, mut doubts) = (Vec::new(), Vec::new());
        for case in self.servers.iter().map(case) {
            broken.extend(case.broken);
            doubts.extend(case.doubts);
        }
        let answer = match (broken.is_empty(), doubts.is_empty()) {
            (false, _) => Answer::Broken,
            (true, false) => Answer::Unknown,
            (true, true) => Answer::Kept,
        };
        broken.append(&mut doubts);
        (answer, broken)
    }

    /// Judges a promise that a majority of the servers has to keep or, in a cluster, every master,
    /// since no other server has its locks.
    fn most(&self, case: impl Fn(&ServerReport) -> Case) -> Judged {
        if self.wanted.deployment == Deployment::Cluster {
            return self.every(case);
        }
        let cases: Vec<Case> = self.servers.iter().map(case).collect();
        let majority = majority(self.servers.len());
        let answer = if cases.iter().filter(|case| case.is_sound()).count() >= majority {
            Answer::Kept
        } else if cases.iter().filter(|case| case.broken.is_empty()).count() >= majority {
            Answer::Unknown
        } else {
            Answer::Broken
        };
        let (broken, doubts): (Vec<_>, Vec<_>) = cases
            .into_iter()
            .map(|case| (case.broken, case.doubts))
            .unzip();
        (answer, broken.into_iter().chain(doubts).flatten().collect())
    }

    fn locking(&self) -> Judged {
        match self.most(|at| self.wanted.locking_of(at)) {
            // Problems of the others are reported by the promises for which they matter.
            (Answer::Kept, _) => (Answer::Kept, Vec::new()),
            judged => judged,
        }
    }

    fn fault_tolerance(&self) -> Judged {
        let servers = match self.wanted.deployment {
            Deployment::Cluster => return self.every(|at| self.wanted.succession_of(at)),
            Deployment::Independent(1) => match self.servers {
                [at] if !at.sentinels.is_empty() => {
                    return self.every(|at| self.wanted.sentinels_of(at));
                }
                _ => return (Answer::NotApplicable, Vec::new()),
            },
            Deployment::Independent(servers) => servers,
        };
        let mut judged = self.every(|at| {
            let mut case = self.wanted.locking_of(at);
            let rights = self.wanted.rights_of(at, Promise::FaultTolerance);
            case.broken.extend(rights.broken);
            case.doubts.extend(rights.doubts);
            case
        });
        if majority(servers) == servers {
            let problem =
                format!("{servers} servers survive no failure: all of them have to answer");
            judged.0 = Answer::Broken;
            judged.1.push(of_all(problem, "name three servers, or one"));
        }
        judged
    }

    fn exclusion(&self) -> Judged {
        let mut judged = self.most(|at| {
            let mut case = self.wanted.identity_of(at);
            // A server that is no master grants nothing, so it grants no lock twice.
            case.doubts.append(&mut case.broken);
            case
        });
        if judged.0 == Answer::Kept {
            judged.1.clear();
        }
        // Two addresses of one server count as one vote, if the user may send what reveals that.
        let (answer, doubts) = self.every(|at| match at.failure {
            Some(_) => Case::default(),
            None => self.wanted.rights_of(at, Promise::Exclusion),
        });
        if answer != Answer::Kept && judged.0 == Answer::Kept {
            judged.0 = Answer::Unknown;
        }
        judged.1.extend(doubts);
        judged
    }

    fn restart(&self) -> Judged {
        if self.wanted.abstains() && !self.wanted.is_alone() {
            return (Answer::Kept, Vec::new());
        }
        self.every(|at| self.wanted.memory_of(at))
    }

    fn failover(&self) -> Judged {
        if self.wanted.abstains() && !self.wanted.is_alone() {
            return (Answer::Kept, Vec::new());
        }
        let none = |at: &ServerReport| at.replicas.known().is_some_and(Vec::is_empty);
        if self.servers.iter().all(none) {
            return (Answer::NotApplicable, Vec::new());
        }
        self.every(|at| self.wanted.promotion_of(at))
    }

    fn wakeups(&self) -> Judged {
        if self.wanted.format == Format::Plain {
            let remark = "Format::Plain: programs of this crate tell of releases; waiters poll for those of others";
            return (
                Answer::NotApplicable,
                vec![Reason {
                    node: None,
                    problem: remark.to_owned(),
                    remedy: None,
                }],
            );
        }
        self.most(|at| self.wanted.rights_of(at, Promise::Wakeups))
    }

    fn fences(&self) -> Judged {
        if self.wanted.is_alone() {
            return self.every(|at| self.wanted.fences_of(at));
        }
        let mut judged = if self.wanted.abstains() {
            (Answer::Kept, Vec::new())
        } else {
            self.every(|at| self.wanted.memory_of(at))
        };
        let ahead = || {
            self.servers
                .iter()
                .filter_map(|at| at.clock.known())
                .map(Clock::ahead)
        };
        let (least, most) = (
            ahead().map(|(least, _)| least).max(),
            ahead().map(|(_, most)| most).min(),
        );
        if let (Some(highest), Some(lowest)) = (least, most)
            && highest.saturating_sub(lowest) > UNBELIEVABLE_US
        {
            judged.0 = Answer::Broken;
            let problem = "their clocks are more than 30 days apart: no fence of the one is believed by the other";
            judged
                .1
                .push(of_all(problem.to_owned(), "set the servers' clocks (NTP)"));
        }
        judged
    }
}

/// Returns how many servers are more than half of these.
fn majority(servers: usize) -> usize {
    servers / 2 + 1
}

fn of_all(problem: String, remedy: &str) -> Reason {
    Reason {
        node: None,
        problem,
        remedy: Some(remedy.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::found::{
        ClusterView, Eviction, Finding, MissingRight, Mode, Persistence, Replica, Role, RoundTrips,
        SentinelReport, Slots, UnknownRight, Version,
    };

    /// Returns a server that keeps all promises: a master that forgets nothing, without replicas.
    fn sound(node: &str) -> ServerReport {
        let known = |value: &str| Finding::Known(value.to_owned());
        let persistence = Persistence {
            append_only: true,
            fsync: known("always"),
            no_fsync_on_rewrite: Finding::Known(false),
            save: known(""),
        };
        let version = Version {
            server: "redis".to_owned(),
            number: "7.0.15".to_owned(),
        };
        let ms = Duration::from_millis(1);
        ServerReport {
            version: Finding::Known(version),
            persistence: Finding::Known(persistence),
            clock: Finding::Known(Clock {
                offset_us: 0,
                uncertainty: ms,
            }),
            round_trip: Finding::Known(RoundTrips {
                count: 50,
                p50: ms,
                p99: ms,
                max: ms,
            }),
            ..ServerReport::of_memory(node.into())
        }
    }

    fn servers(count: usize) -> Vec<ServerReport> {
        (0..count)
            .map(|n| sound(&format!("redis://h{n}")))
            .collect()
    }

    /// Returns the answer of a verdict, and the text of its reasons.
    #[track_caller]
    fn verdict(
        options: impl FnOnce(&mut Wanted),
        servers: &[ServerReport],
        promise: Promise,
    ) -> (Answer, String) {
        let deployment = match servers {
            [
                ServerReport {
                    cluster: Some(_), ..
                },
                ..,
            ] => Deployment::Cluster,
            _ => Deployment::Independent(servers.len()),
        };
        let mut wanted = Wanted::by_default(deployment);
        options(&mut wanted);
        let verdicts = verdicts(&wanted, servers);
        let verdict = verdicts
            .into_iter()
            .find(|verdict| verdict.promise == promise)
            .expect("a verdict");
        let says = |reason: &Reason| {
            let Reason {
                node,
                problem,
                remedy,
            } = reason;
            format!(
                "{}: {problem} => {}",
                node.as_deref().unwrap_or("all"),
                remedy.as_deref().unwrap_or("-")
            )
        };
        (
            verdict.answer,
            verdict
                .reasons
                .iter()
                .map(says)
                .collect::<Vec<_>>()
                .join("\n"),
        )
    }

    /// Returns the verdict on a single server after this change.
    #[track_caller]
    fn of_one(promise: Promise, change: impl FnOnce(&mut ServerReport)) -> (Answer, String) {
        let mut servers = servers(1);
        change(&mut servers[0]);
        verdict(|_| {}, &servers, promise)
    }

    fn default_options(_: &mut Wanted) {}

    fn without_quarantine(options: &mut Wanted) {
        options.restart_quarantine = Duration::ZERO;
    }

    #[track_caller]
    fn assert_says((answer, text): (Answer, String), expected: Answer, words: &[&str]) {
        assert_eq!(answer, expected, "{text}");
        for word in words {
            assert!(text.contains(word), "{word:?} is not in: {text}");
        }
    }

    fn forgetful(server: &mut ServerReport) {
        if let Finding::Known(persistence) = &mut server.persistence {
            persistence.append_only = false;
        }
    }

    fn away(server: &mut ServerReport) {
        *server = ServerReport::not_reached(server.node.clone(), "connection refused".to_owned());
    }

    fn replica(is_online: bool) -> Replica {
        Replica {
            address: "10.0.0.7:6379".to_owned(),
            is_online,
            lag: Duration::ZERO,
            behind: 0,
        }
    }

    #[test]
    fn sound_servers_keep_every_promise() {
        for count in [1, 3, 5] {
            for verdict in verdicts(
                &Wanted::by_default(Deployment::Independent(count)),
                &servers(count),
            ) {
                assert!(
                    verdict.is_fine() && verdict.reasons.is_empty(),
                    "{count}: {verdict:?}"
                );
            }
        }
    }

    #[test]
    fn locking_needs_a_reachable_standalone_recent_master() {
        let of = |change: fn(&mut ServerReport)| of_one(Promise::Locking, change);
        assert_says(
            of(away),
            Answer::Broken,
            &["connection refused", "correct its address"],
        );
        let old = |server: &mut ServerReport| {
            server.version = Finding::Known(Version {
                server: "redis".to_owned(),
                number: "6.0.16".to_owned(),
            });
        };
        assert_says(of(old), Answer::Broken, &["is Redis 6.0.16", "6.2"]);
        let replica = |server: &mut ServerReport| {
            server.role = Finding::Known(Role::Replica(Some("h2:1".to_owned())));
        };
        assert_says(
            of(replica),
            Answer::Broken,
            &["a replica of h2:1", "name its master"],
        );
        let other = |server: &mut ServerReport| {
            server.role = Finding::Known(Role::Other("active-replica".to_owned()));
        };
        assert_says(of(other), Answer::Broken, &["active-replica"]);
        assert_says(
            of(|server| server.role = Finding::Forbidden("+info")),
            Answer::Unknown,
            &["+info"],
        );
        let cluster = |server: &mut ServerReport| {
            server.mode = Finding::Known(Mode::Cluster(Finding::Known("fail".to_owned())));
        };
        assert_says(
            of(cluster),
            Answer::Broken,
            &["state: fail", "redis-cluster://"],
        );
        let unknown = |server: &mut ServerReport| server.mode = Finding::Unknown("odd".to_owned());
        assert_says(of(unknown), Answer::Unknown, &["in a cluster", "odd"]);
        let sentinel = |server: &mut ServerReport| {
            server.mode = Finding::Known(Mode::Other("sentinel".to_owned()));
        };
        assert_says(of(sentinel), Answer::Broken, &["sentinel"]);
        assert_says(
            of(|server| server.abstains = Some("abstains for 3 s".to_owned())),
            Answer::Broken,
            &["for 3 s"],
        );
        assert_says(
            of(|server| server.refuses_writes = Some("it is loading".to_owned())),
            Answer::Broken,
            &["loading"],
        );
    }

    #[test]
    fn locking_needs_answers_in_time() {
        let second = Duration::from_secs(1);
        let trips = |p99| {
            Finding::Known(RoundTrips {
                count: 50,
                p50: second,
                p99,
                max: p99,
            })
        };
        let of = |trips: Finding<RoundTrips>| {
            of_one(Promise::Locking, |server| server.round_trip = trips)
        };
        assert_says(of(trips(second * 3 / 2)), Answer::Kept, &[]);
        assert_says(
            of(trips(second * 2)),
            Answer::Broken,
            &["takes 2.0s", "command_timeout = 3s"],
        );
        assert_says(
            of(Finding::Unknown("timed out".to_owned())),
            Answer::Unknown,
            &["how quickly", "timed out"],
        );
    }

    #[test]
    fn locking_needs_the_replicas_that_are_wanted() {
        let wanted = |options: &mut Wanted| {
            options.replicas = Some((2, Duration::from_millis(100)));
        };
        let of = |acknowledging| {
            let mut servers = servers(1);
            servers[0].acknowledging = acknowledging;
            verdict(wanted, &servers, Promise::Locking)
        };
        assert_says(of(Finding::Known(2)), Answer::Kept, &[]);
        assert_says(
            of(Finding::Known(1)),
            Answer::Broken,
            &["1 of 2 replicas acknowledge within 100ms", "`replica_acks`"],
        );
        assert_says(of(Finding::Forbidden("+wait")), Answer::Unknown, &["+wait"]);
        let with_least = |online| {
            of_one(Promise::Locking, |server| {
                server.replicas = Finding::Known(vec![replica(online)]);
                server.min_replicas_to_write = Finding::Known(1);
            })
        };
        assert_says(with_least(true), Answer::Kept, &[]);
        assert_says(
            with_least(false),
            Answer::Broken,
            &["0 of 1 replica it waits for", "min-replicas-to-write"],
        );
        let forbidden = |server: &mut ServerReport| {
            server.min_replicas_to_write = Finding::Forbidden("+config|get");
        };
        assert_says(
            of_one(Promise::Locking, forbidden),
            Answer::Unknown,
            &["how many replicas", "+config|get"],
        );
        let without_info = of_one(Promise::Locking, |server| {
            forbidden(server);
            server.replicas = Finding::Forbidden("+info");
        });
        assert_says(without_info, Answer::Kept, &[]);
    }

    #[test]
    fn rights_break_the_promise_that_they_are_needed_for() {
        for promise in [Promise::Locking, Promise::Wakeups, Promise::Inspection] {
            let missing = |needed_for| MissingRight {
                rule: "+x".to_owned(),
                needed_for,
            };
            let with = |needed_for| {
                of_one(promise, |server| {
                    server.rights.missing.push(missing(needed_for));
                })
            };
            let all = vec![Promise::Locking, Promise::Wakeups, Promise::Inspection];
            assert_says(
                with(all),
                Answer::Broken,
                &["does not permit", "give its user +x"],
            );
            assert_says(with(vec![Promise::Exclusion]), Answer::Kept, &[]);
            let unknown = UnknownRight {
                rule: "+x".to_owned(),
                needed_for: vec![promise],
                reason: "silent".to_owned(),
            };
            let doubted = of_one(promise, |server| server.rights.unknown.push(unknown));
            assert_says(doubted, Answer::Unknown, &["+x is not known: silent"]);
        }
    }

    #[test]
    fn a_majority_is_enough_to_lock_and_a_server_away_is_reported() {
        let mut three = servers(3);
        away(&mut three[1]);
        assert_says(
            verdict(default_options, &three, Promise::Locking),
            Answer::Kept,
            &[""],
        );
        let tolerance = verdict(default_options, &three, Promise::FaultTolerance);
        assert_says(
            tolerance,
            Answer::Broken,
            &["redis://h1: connection refused"],
        );
        assert_says(
            verdict(default_options, &three, Promise::Exclusion),
            Answer::Kept,
            &[],
        );
        let wakeups = verdict(default_options, &three, Promise::Wakeups);
        assert_says(wakeups, Answer::Kept, &["redis://h1: was not asked"]);
        away(&mut three[0]);
        assert_says(
            verdict(default_options, &three, Promise::Locking),
            Answer::Broken,
            &["redis://h0", "redis://h1"],
        );
        assert_says(
            verdict(default_options, &three, Promise::Exclusion),
            Answer::Unknown,
            &["redis://h0"],
        );
    }

    #[test]
    fn sentinels_have_to_agree_and_to_replace_the_master_in_time() {
        let sentinel = |node: &str| SentinelReport {
            node: node.into(),
            master: Finding::Known("h0:6379".to_owned()),
            down_after: Finding::Known(Duration::from_secs(5)),
            quorum: Finding::Known(2),
            others: Finding::Known(2),
        };
        let of = |change: fn(&mut ServerReport)| {
            of_one(Promise::FaultTolerance, |server| {
                server.sentinels = ["s0", "s1", "s2"].map(sentinel).to_vec();
                server.replicas = Finding::Known(vec![replica(true)]);
                change(server);
            })
        };
        assert_says(of(|_| {}), Answer::Kept, &[]);
        let slow =
            of(|server| server.sentinels[1].down_after = Finding::Known(Duration::from_secs(30)));
        assert_says(
            slow,
            Answer::Broken,
            &[
                "s1",
                "after about 31s",
                "lease, 30s",
                "`down-after-milliseconds`",
                "of 93s",
            ],
        );
        let stale = of(|server| server.sentinels[0].master = Finding::Known("h9:1".to_owned()));
        assert_says(
            stale,
            Answer::Broken,
            &["s0 names h9:1, and s1 names h0:6379"],
        );
        let silent = of(|server| {
            server.sentinels[2].master = Finding::Unknown("does not answer".to_owned());
        });
        assert_says(silent, Answer::Broken, &["s2 has no say: does not answer"]);
        let few = of(|server| server.sentinels[0].others = Finding::Known(1));
        assert_says(
            few,
            Answer::Broken,
            &["s0 knows of 2 in all", "three Sentinels"],
        );
        let many = of(|server| server.sentinels[0].quorum = Finding::Known(4));
        assert_says(many, Answer::Broken, &["wants 4 of 3", "quorum"]);
        let alone = of(|server| server.replicas = Finding::Known(Vec::new()));
        assert_says(alone, Answer::Broken, &["no replica in step"]);
    }

    #[test]
    fn fault_tolerance_is_not_for_one_server_and_two_have_none() {
        assert_says(
            verdict(default_options, &servers(1), Promise::FaultTolerance),
            Answer::NotApplicable,
            &[],
        );
        let two = verdict(default_options, &servers(2), Promise::FaultTolerance);
        assert_says(
            two,
            Answer::Broken,
            &["2 servers survive no failure", "three"],
        );
        let mut three = servers(3);
        let missing = MissingRight {
            rule: "+exists".to_owned(),
            needed_for: vec![Promise::FaultTolerance],
        };
        three[2].rights.missing.push(missing);
        let tolerance = verdict(default_options, &three, Promise::FaultTolerance);
        assert_says(tolerance, Answer::Broken, &["redis://h2", "+exists"]);
    }

    #[test]
    fn exclusion_is_unknown_if_a_server_may_have_two_addresses() {
        let mut three = servers(3);
        let missing = MissingRight {
            rule: "+info".to_owned(),
            needed_for: vec![Promise::Exclusion],
        };
        three[0].rights.missing.push(missing);
        let exclusion = verdict(without_quarantine, &three, Promise::Exclusion);
        assert_says(exclusion, Answer::Unknown, &["redis://h0", "+info"]);
        assert_says(
            of_one(Promise::Exclusion, away),
            Answer::Unknown,
            &["connection refused"],
        );
    }

    #[test]
    fn only_appendfsync_always_keeps_locks_over_a_restart() {
        let of = |change: fn(&mut Persistence)| {
            of_one(Promise::Restart, |server| {
                if let Finding::Known(persistence) = &mut server.persistence {
                    change(persistence);
                }
            })
        };
        assert_says(of(|_| {}), Answer::Kept, &[]);
        let everysec = |p: &mut Persistence| p.fsync = Finding::Known("everysec".to_owned());
        assert_says(
            of(everysec),
            Answer::Broken,
            &[
                "the last second or two",
                "`appendfsync always`, or several servers",
            ],
        );
        let suspended = |p: &mut Persistence| p.no_fsync_on_rewrite = Finding::Known(true);
        assert_says(
            of(suspended),
            Answer::Broken,
            &["`no-appendfsync-on-rewrite no`"],
        );
        assert_says(
            of(|p| p.append_only = false),
            Answer::Broken,
            &["forgets everything"],
        );
        let forbidden = |p: &mut Persistence| p.fsync = Finding::Forbidden("+config|get");
        assert_says(of(forbidden), Answer::Unknown, &["+config|get"]);
        let unknown = of_one(Promise::Restart, |server| {
            server.persistence = Finding::Forbidden("+info");
        });
        assert_says(unknown, Answer::Unknown, &["+info"]);
        assert_says(
            of_one(Promise::Restart, away),
            Answer::Unknown,
            &["connection refused"],
        );
    }

    #[test]
    fn a_quarantine_makes_up_for_servers_that_forget_or_perhaps_one() {
        let mut three = servers(3);
        three.iter_mut().for_each(forgetful);
        assert_says(
            verdict(default_options, &three, Promise::Restart),
            Answer::Kept,
            &[],
        );
        let without = verdict(without_quarantine, &three, Promise::Restart);
        assert_says(
            without,
            Answer::Broken,
            &["redis://h2", "or a `restart_quarantine`"],
        );
        let alone = |options: &mut Wanted| options.restart_quarantine = Duration::from_secs(30);
        let alone = verdict(alone, &three[..1], Promise::Restart);
        assert_says(
            alone,
            Answer::Unknown,
            &["abstains for 30s", "longer lease"],
        );
    }

    #[test]
    fn a_failover_keeps_locks_with_a_quorum_or_perhaps_with_acks() {
        let replicas = |count: u32| {
            move |options: &mut Wanted| options.replicas = Some((count, Duration::from_millis(100)))
        };
        let mut one = servers(1);
        assert_says(
            verdict(default_options, &one, Promise::Failover),
            Answer::NotApplicable,
            &[],
        );
        one[0].replicas = Finding::Known(vec![replica(true), replica(false)]);
        let none = verdict(default_options, &one, Promise::Failover);
        assert_says(
            none,
            Answer::Broken,
            &["2 replicas", "`replica_acks(2, ..)`", "several servers"],
        );
        assert_says(
            verdict(replicas(1), &one, Promise::Failover),
            Answer::Broken,
            &["of which 1 acknowledge"],
        );
        assert_says(
            verdict(replicas(2), &one, Promise::Failover),
            Answer::Unknown,
            &["clocks", "TIME` within 3.0s"],
        );
        one[0].replicas = Finding::Forbidden("+info");
        assert_says(
            verdict(default_options, &one, Promise::Failover),
            Answer::Unknown,
            &["+info"],
        );
        let mut three = servers(3);
        three[1].replicas = Finding::Known(vec![replica(true)]);
        assert_says(
            verdict(default_options, &three, Promise::Failover),
            Answer::Kept,
            &[],
        );
        let without = verdict(without_quarantine, &three, Promise::Failover);
        assert_says(
            without,
            Answer::Broken,
            &["redis://h1", "a `restart_quarantine`"],
        );
        away(&mut three[1]);
        assert_says(
            verdict(without_quarantine, &three, Promise::Failover),
            Answer::Unknown,
            &["connection refused"],
        );
    }

    #[test]
    fn a_server_without_memory_locks_nothing_unless_it_evicts() {
        let with = |policy: &str, used| {
            let eviction = Eviction {
                policy: policy.to_owned(),
                limit: 1_000,
                used,
            };
            of_one(Promise::Locking, |server| {
                server.eviction = Finding::Known(eviction);
            })
        };
        assert_says(
            with("noeviction", Some(1_000)),
            Answer::Broken,
            &["no memory left (maxmemory 1000, noeviction)"],
        );
        for (policy, used) in [
            ("noeviction", Some(999)),
            ("noeviction", None),
            ("allkeys-lru", Some(1_000)),
        ] {
            assert_says(with(policy, used), Answer::Kept, &[]);
        }
        let unlimited = Eviction {
            policy: "noeviction".to_owned(),
            limit: 0,
            used: Some(1),
        };
        let locking = of_one(Promise::Locking, |server| {
            server.eviction = Finding::Known(unlimited);
        });
        assert_says(locking, Answer::Kept, &[]);
    }

    #[test]
    fn a_single_server_that_evicts_breaks_the_promise() {
        let evicts = |limit| {
            let eviction = Eviction {
                policy: "volatile-ttl".to_owned(),
                limit,
                used: None,
            };
            move |server: &mut ServerReport| server.eviction = Finding::Known(eviction)
        };
        let full = of_one(Promise::Eviction, evicts(1_000));
        assert_says(
            full,
            Answer::Broken,
            &[
                "when its memory is full (maxmemory-policy volatile-ttl)",
                "noeviction",
            ],
        );
        assert_says(
            of_one(Promise::Eviction, evicts(0)),
            Answer::Broken,
            &["once it has a `maxmemory`"],
        );
        let unknown = of_one(Promise::Eviction, |server| {
            server.eviction = Finding::Forbidden("+info");
        });
        assert_says(unknown, Answer::Unknown, &["eviction policy", "+info"]);
        assert_says(
            of_one(Promise::Eviction, away),
            Answer::Unknown,
            &["connection refused"],
        );
        let mut three = servers(3);
        evicts(1)(&mut three[2]);
        assert_says(
            verdict(default_options, &three, Promise::Eviction),
            Answer::Broken,
            &["redis://h2"],
        );
    }

    #[test]
    fn waiters_of_the_plain_format_poll() {
        let plain = |options: &mut Wanted| options.format = Format::Plain;
        assert_says(
            verdict(plain, &servers(1), Promise::Wakeups),
            Answer::NotApplicable,
            &["poll"],
        );
    }

    #[test]
    fn fences_of_one_server_that_may_lose_data_depend_on_the_clocks() {
        let second = 1_000_000;
        let of = |offset_us, uncertainty, older: fn(&mut ServerReport)| {
            of_one(Promise::Fences, |server| {
                older(server);
                server.clock = Finding::Known(Clock {
                    offset_us,
                    uncertainty: Duration::from_micros(uncertainty),
                });
            })
        };
        let snapshots = |server: &mut ServerReport| {
            forgetful(server);
            if let Finding::Known(persistence) = &mut server.persistence {
                persistence.save = Finding::Known("60 1".to_owned());
            }
        };
        let replicated =
            |server: &mut ServerReport| server.replicas = Finding::Known(vec![replica(true)]);
        for older in [snapshots, replicated] {
            assert_says(of(-60 * second, 10, older), Answer::Kept, &[]);
            assert_says(of(100_000 - 10, 10, older), Answer::Kept, &[]);
            assert_says(of(100_000, 10, older), Answer::Unknown, &["NTP"]);
            assert_says(
                of(5 * second, 10, older),
                Answer::Broken,
                &["up to 5.0s ahead", "NTP"],
            );
        }
        assert_says(of(60 * second, 10, |_| {}), Answer::Kept, &[]);
        assert_says(of(60 * second, 10, forgetful), Answer::Kept, &[]);
        let unknown = of_one(Promise::Fences, |server| {
            snapshots(server);
            server.clock = Finding::Forbidden("+time");
        });
        assert_says(unknown, Answer::Unknown, &["its clock", "+time"]);
    }

    #[test]
    fn fences_of_several_servers_need_memory_and_near_clocks() {
        let mut three = servers(3);
        three.iter_mut().for_each(forgetful);
        assert_says(
            verdict(default_options, &three, Promise::Fences),
            Answer::Kept,
            &[],
        );
        assert_says(
            verdict(without_quarantine, &three, Promise::Fences),
            Answer::Broken,
            &["restart_quarantine"],
        );
        three[1].clock = Finding::Known(Clock {
            offset_us: 2 * UNBELIEVABLE_US,
            uncertainty: Duration::from_millis(1),
        });
        assert_says(
            verdict(default_options, &three, Promise::Fences),
            Answer::Broken,
            &["30 days apart"],
        );
    }
    /// Returns three masters with a replica each.
    fn cluster() -> Vec<ServerReport> {
        let view = ClusterView {
            slots: Finding::Known(Slots {
                assigned: 16_384,
                failing: 0,
                masters: 3,
            }),
            node_timeout: Finding::Known(Duration::from_secs(5)),
            requires_full_coverage: Finding::Known(true),
        };
        let master = |server: ServerReport| ServerReport {
            mode: Finding::Known(Mode::Cluster(Finding::Known("ok".to_owned()))),
            cluster: Some(view.clone()),
            replicas: Finding::Known(vec![replica(true)]),
            ..server
        };
        servers(3).into_iter().map(master).collect()
    }

    /// Returns the verdict on a cluster after this change of one master.
    #[track_caller]
    fn of_cluster(promise: Promise, change: impl FnOnce(&mut ServerReport)) -> (Answer, String) {
        let mut masters = cluster();
        change(&mut masters[1]);
        verdict(default_options, &masters, promise)
    }

    #[test]
    fn a_cluster_keeps_what_each_of_its_masters_keeps() {
        for (promise, answer) in [
            (Promise::Locking, Answer::Kept),
            (Promise::FaultTolerance, Answer::Kept),
            (Promise::Exclusion, Answer::Kept),
            (Promise::Restart, Answer::Kept),
            (Promise::Failover, Answer::Broken),
            (Promise::Eviction, Answer::Kept),
            (Promise::Wakeups, Answer::Kept),
            (Promise::Fences, Answer::Kept),
            (Promise::Inspection, Answer::Kept),
        ] {
            assert_says(of_cluster(promise, |_| {}), answer, &[]);
        }
        let replicas = |options: &mut Wanted| {
            options.replicas = Some((1, Duration::from_millis(100)));
        };
        let mut masters = cluster();
        masters
            .iter_mut()
            .for_each(|master| master.acknowledging = Finding::Known(1));
        assert_says(
            verdict(replicas, &masters, Promise::Failover),
            Answer::Unknown,
            &["redis://h0", "redis://h2"],
        );
        // A majority does not help the locks of the other masters.
        for promise in [Promise::Locking, Promise::FaultTolerance] {
            assert_says(
                of_cluster(promise, away),
                Answer::Broken,
                &["redis://h1: connection refused"],
            );
        }
        let missing = MissingRight {
            rule: "+ssubscribe".to_owned(),
            needed_for: vec![Promise::Wakeups],
        };
        let deaf = of_cluster(Promise::Wakeups, |master| {
            master.rights.missing.push(missing);
        });
        assert_says(deaf, Answer::Broken, &["redis://h1", "+ssubscribe"]);
        let standalone = |master: &mut ServerReport| master.mode = Finding::Known(Mode::Standalone);
        assert_says(
            of_cluster(Promise::Locking, standalone),
            Answer::Broken,
            &["redis://h1: is in no cluster"],
        );
    }

    #[test]
    fn a_cluster_locks_if_it_is_up_and_every_slot_has_a_master() {
        let state = |state: Finding<String>| {
            of_cluster(Promise::Locking, |master| {
                master.mode = Finding::Known(Mode::Cluster(state));
            })
        };
        assert_says(
            state(Finding::Known("fail".to_owned())),
            Answer::Broken,
            &["cluster_state:fail", "CLUSTER NODES"],
        );
        assert_says(
            state(Finding::Forbidden("+cluster|info")),
            Answer::Unknown,
            &["+cluster|info"],
        );
        let slots = |assigned, failing| {
            of_cluster(Promise::Locking, |master| {
                let slots = Finding::Known(Slots {
                    assigned,
                    failing,
                    masters: 3,
                });
                master
                    .cluster
                    .as_mut()
                    .expect("a master of a cluster")
                    .slots = slots;
            })
        };
        assert_says(
            slots(16_383, 0),
            Answer::Broken,
            &["16383 of 16384 slots", "--cluster fix"],
        );
        assert_says(
            slots(16_384, 1),
            Answer::Broken,
            &["does not reach the masters of 1 of 16384 slots"],
        );
        assert_says(slots(16_384, 0), Answer::Kept, &[]);
    }

    #[test]
    fn a_clusters_master_has_a_replica_that_takes_its_place_in_time() {
        let of = |change: &dyn Fn(&mut ServerReport, &mut ClusterView)| {
            of_cluster(Promise::FaultTolerance, |master| {
                let mut view = master.cluster.take().expect("a master of a cluster");
                change(master, &mut view);
                master.cluster = Some(view);
            })
        };
        let alone = of(&|master, _| master.replicas = Finding::Known(vec![replica(false)]));
        assert_says(
            alone,
            Answer::Broken,
            &[
                "no replica in step",
                "cluster-require-full-coverage yes",
                "for each master",
            ],
        );
        let partial = of(&|master, view| {
            master.replicas = Finding::Known(Vec::new());
            view.requires_full_coverage = Finding::Known(false);
        });
        assert!(!partial.1.contains("full-coverage"), "{partial:?}");
        assert_says(partial, Answer::Broken, &["no replica in step"]);
        assert_says(
            of(&|master, _| master.replicas = Finding::Forbidden("+info")),
            Answer::Unknown,
            &["+info"],
        );
        let two = of(&|_, view| {
            view.slots = Finding::Known(Slots {
                assigned: 16_384,
                failing: 0,
                masters: 2,
            });
        });
        assert_says(two, Answer::Broken, &["one of 2 masters", "three masters"]);
        let seconds = |secs| {
            of(&move |_, view| view.node_timeout = Finding::Known(Duration::from_secs(secs)))
        };
        assert_says(seconds(9), Answer::Kept, &[]);
        assert_says(
            seconds(15),
            Answer::Broken,
            &["about 16s", "their lease, 30s", "`lease` of 48s"],
        );
        let unknown = of(&|_, view| view.node_timeout = Finding::Forbidden("+config|get"));
        assert_says(
            unknown,
            Answer::Unknown,
            &["cluster-node-timeout", "+config|get"],
        );
    }
}
