//! `lockhound-doctor`: which promises the servers' settings, rights and clocks keep, and what it
//! reports otherwise.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_executor::block_on;

use crate::common::cluster::Cluster;
use crate::common::labels::labelled;
use crate::common::proxy::{Mode, Proxy};
use crate::common::rights;
use crate::common::sentinel::Sentinels;
use crate::common::several::{over, servers, settled};
use crate::common::{Server, builder, eventually, key, locker, machine, ms, soon};
use lockhound::{Error, FenceSource, Locker};
use lockhound_doctor::{
    self as doctor, Answer, Finding, Forgets, Promise, Report, Role, ServerReport,
};
use lockhound_doctor::{examine, examine_keys};

/// The only server's part of a report.
fn only(report: &Report) -> &ServerReport {
    let [server] = &report.servers[..] else {
        panic!("one server: {report}")
    };
    server
}

#[track_caller]
fn assert_answers<const N: usize>(report: &Report, expected: [(Promise, Answer); N]) {
    for (promise, answer) in expected {
        assert_eq!(
            report.verdict(promise).unwrap().answer,
            answer,
            "{promise}\n{report}"
        );
    }
}

/// Returns the problems and remedies that a report has for a promise.
fn said(report: &Report, promise: Promise) -> String {
    let reasons = &report.verdict(promise).unwrap().reasons;
    reasons
        .iter()
        .map(|reason| format!("{} => {:?}\n", reason.problem, reason.remedy))
        .collect()
}

fn missing(server: &ServerReport) -> Vec<&str> {
    server
        .rights
        .missing
        .iter()
        .map(|right| right.rule.as_str())
        .collect()
}

#[tokio::test]
async fn a_server_without_persistence_keeps_all_promises_but_restart() {
    let server = Server::start();
    let locks = locker(&server).await;
    let report = examine(&locks).await.unwrap();
    assert_answers(
        &report,
        [
            (Promise::Locking, Answer::Kept),
            (Promise::FaultTolerance, Answer::NotApplicable),
            (Promise::Exclusion, Answer::Kept),
            (Promise::Restart, Answer::Broken),
            (Promise::Failover, Answer::NotApplicable),
            (Promise::Eviction, Answer::Kept),
            (Promise::Wakeups, Answer::Kept),
            (Promise::Fences, Answer::Kept),
            (Promise::Inspection, Answer::Kept),
        ],
    );
    assert!(!report.is_ok() && report.keeps(Promise::Locking) && !report.keeps(Promise::Restart));
    assert_eq!(
        report
            .problems()
            .map(|verdict| verdict.promise)
            .collect::<Vec<_>>(),
        [Promise::Restart]
    );
    assert!(said(&report, Promise::Restart).contains("appendfsync always"));
    let found = only(&report);
    let told: String = server.command(&["INFO", "server"]);
    let version = found.version.known().unwrap();
    assert!(
        told.contains(&format!("_version:{}\r\n", version.number)),
        "{version:?}"
    );
    assert_eq!(
        (found.role.known(), found.failure.as_deref()),
        (Some(&Role::Master), None)
    );
    assert_eq!((missing(found), found.rights.unknown.len()), (vec![], 0));
    let clock = found.clock.known().unwrap();
    let uncertainty = i64::try_from(clock.uncertainty.as_micros()).unwrap();
    assert!(
        clock.offset_us.abs() <= uncertainty + 1_000,
        "it is this machine's clock: {clock:?}"
    );
    let times = found.round_trip.known().unwrap();
    assert!(
        (1..=50).contains(&times.count) && times.p50 <= times.p99 && times.p99 <= times.max,
        "{times:?}"
    );
    let text = report.to_string();
    assert!(
        text.contains(&server.url()) && text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
}

#[tokio::test]
async fn each_persistence_setting_is_reported_with_what_a_crash_loses() {
    let server = Server::start();
    let locks = locker(&server).await;
    let set = |setting: &str, value: &str| server.command::<()>(&["CONFIG", "SET", setting, value]);
    for (settings, forgets, answer) in [
        (
            &[("save", "3600 1")][..],
            Forgets::SinceSnapshot,
            Answer::Broken,
        ),
        (
            &[("appendonly", "yes"), ("appendfsync", "no")],
            Forgets::Unwritten,
            Answer::Broken,
        ),
        (
            &[("appendfsync", "everysec")],
            Forgets::LastSeconds,
            Answer::Broken,
        ),
        (&[("appendfsync", "always")], Forgets::Nothing, Answer::Kept),
        (
            &[("no-appendfsync-on-rewrite", "yes")],
            Forgets::Unwritten,
            Answer::Broken,
        ),
    ] {
        settings
            .iter()
            .for_each(|(setting, value)| set(setting, value));
        let report = examine(&locks).await.unwrap();
        let found = only(&report).persistence.known().unwrap().forgets();
        assert_eq!(found, Finding::Known(forgets), "{settings:?}");
        assert_answers(&report, [(Promise::Restart, answer)]);
    }
}

#[tokio::test]
async fn a_server_that_may_evict_locks_is_reported_with_its_policy() {
    let server = Server::start();
    let locks = locker(&server).await;
    for (policy, limit) in [("allkeys-lru", "0"), ("volatile-ttl", "100mb")] {
        server.command::<()>(&["CONFIG", "SET", "maxmemory-policy", policy]);
        server.command::<()>(&["CONFIG", "SET", "maxmemory", limit]);
        let report = examine(&locks).await.unwrap();
        assert_answers(
            &report,
            [
                (Promise::Eviction, Answer::Broken),
                (Promise::Locking, Answer::Kept),
            ],
        );
        let said = said(&report, Promise::Eviction);
        assert!(
            said.contains(policy) && said.contains("maxmemory-policy noeviction"),
            "{said}"
        );
        let eviction = only(&report).eviction.known().unwrap();
        assert_eq!(eviction.limit, if limit == "0" { 0 } else { 100 << 20 });
        assert!(eviction.used.is_some_and(|used| used > 0));
    }
}

#[tokio::test]
async fn the_number_of_replicas_is_compared_with_the_option() {
    let server = Server::start();
    let replica = server.replica();
    eventually(ms(20_000), "the replica is in step", || {
        server.has_replicas(1)
    })
    .await;
    let wanting = async |count| {
        builder(&server.url(), ms(30_000))
            .replica_acks(count, ms(2_000))
            .connect()
            .await
            .unwrap()
    };
    let without = examine(&locker(&server).await).await.unwrap();
    assert_answers(
        &without,
        [
            (Promise::Failover, Answer::Broken),
            (Promise::Locking, Answer::Kept),
        ],
    );
    let found = only(&without).replicas.known().unwrap();
    assert!(found.len() == 1 && found[0].is_online, "{found:?}");
    assert!(
        found[0].address.ends_with(&format!(":{}", replica.port())),
        "{found:?}"
    );
    let with_one = examine(&wanting(1).await).await.unwrap();
    assert_answers(
        &with_one,
        [
            (Promise::Failover, Answer::Unknown),
            (Promise::Locking, Answer::Kept),
        ],
    );
    assert_eq!(only(&with_one).acknowledging, Finding::Known(1));
    let with_two = examine(&wanting(2).await).await.unwrap();
    assert_answers(&with_two, [(Promise::Locking, Answer::Broken)]);
    assert!(
        said(&with_two, Promise::Locking).contains("1 of 2 replicas acknowledge"),
        "{with_two}"
    );
    server.command::<()>(&["CONFIG", "SET", "min-replicas-to-write", "2"]);
    let refused = examine(&locker(&server).await).await.unwrap();
    assert_answers(&refused, [(Promise::Locking, Answer::Broken)]);
    assert!(
        said(&refused, Promise::Locking).contains("min-replicas-to-write"),
        "{refused}"
    );
    let on_replica = examine(&locker(&replica).await).await.unwrap();
    assert_answers(
        &on_replica,
        [
            (Promise::Locking, Answer::Broken),
            (Promise::Exclusion, Answer::Unknown),
        ],
    );
    let master = format!("127.0.0.1:{}", server.port());
    assert_eq!(
        only(&on_replica).role,
        Finding::Known(Role::Replica(Some(master)))
    );
}

fn in_step(master: &Server) -> bool {
    master
        .command::<String>(&["INFO", "replication"])
        .contains("state=online")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_report_says_what_each_sentinel_would_do() {
    let group = Sentinels::start();
    let locks = group.builder(ms(30_000)).connect().await.unwrap();
    let report = examine(&locks).await.unwrap();
    assert!(report.keeps(Promise::FaultTolerance), "{report}");
    let [server] = &*report.servers else {
        panic!("one server")
    };
    let named: Vec<_> = server
        .sentinels
        .iter()
        .map(|sentinel| sentinel.master.known().cloned())
        .collect();
    assert_eq!(
        named,
        vec![Some(format!("127.0.0.1:{}", group.master.port())); 3]
    );
    assert!(report.to_string().contains("down-after 1s"), "{report}");
    // Redis' default.
    for sentinel in &group.sentinels {
        sentinel.command::<()>(&[
            "SENTINEL",
            "SET",
            "locks",
            "down-after-milliseconds",
            "30000",
        ]);
    }
    group.sentinels[2].stop();
    let report = examine(&locks).await.unwrap();
    let reasons = format!("{:?}", report.verdict(Promise::FaultTolerance));
    assert!(
        reasons.contains("after about 31s") && reasons.contains("has no say"),
        "{reasons}"
    );
}

#[tokio::test]
async fn the_report_has_an_entry_for_each_master_of_a_cluster() {
    let cluster = Cluster::start_with(3, 1, &[]);
    let masters = cluster.masters();
    eventually(ms(20_000), "the replicas are in step", || {
        masters.iter().all(in_step)
    })
    .await;
    let locks = cluster.builder(ms(30_000)).connect().await.unwrap();
    let report = examine(&locks).await.unwrap();
    assert_answers(
        &report,
        [
            (Promise::Locking, Answer::Kept),
            (Promise::FaultTolerance, Answer::Kept),
            (Promise::Exclusion, Answer::Kept),
            (Promise::Restart, Answer::Broken),
            (Promise::Failover, Answer::Broken),
            (Promise::Eviction, Answer::Kept),
            (Promise::Wakeups, Answer::Kept),
            (Promise::Fences, Answer::Kept),
            (Promise::Inspection, Answer::Kept),
        ],
    );
    let named: BTreeMap<_, _> = report
        .servers
        .iter()
        .map(|server| (&*server.node, server))
        .collect();
    assert_eq!(named.len(), 3, "{report}");
    for master in masters {
        let found = named[&*master.url()];
        assert_eq!(found.role, Finding::Known(Role::Master));
        assert_eq!(
            found.mode,
            Finding::Known(doctor::Mode::Cluster(Finding::Known("ok".to_owned())))
        );
        let view = found.cluster.as_ref().unwrap();
        let slots = view.slots.known().unwrap();
        assert_eq!(
            (slots.assigned, slots.failing, slots.masters),
            (16_384, 0, 3)
        );
        assert_eq!(view.node_timeout, Finding::Known(ms(1_000)));
        assert_eq!(view.requires_full_coverage, Finding::Known(true));
        assert_eq!(
            (found.replicas.known().unwrap().len(), missing(found)),
            (1, vec![])
        );
        assert!(
            found.round_trip.known().is_some() && found.clock.known().is_some(),
            "{report}"
        );
    }
    let text = report.to_string();
    assert!(
        text.contains("3 masters for 16384 slots; cluster-node-timeout 1s;"),
        "{text}"
    );
    let replicated = cluster
        .builder(ms(30_000))
        .replica_acks(1, ms(2_000))
        .connect()
        .await
        .unwrap();
    assert_answers(
        &examine(&replicated).await.unwrap(),
        [(Promise::Failover, Answer::Unknown)],
    );

    masters[1].command::<()>(&["CONFIG", "SET", "cluster-node-timeout", "15000"]);
    let report = examine(&locks).await.unwrap();
    assert_answers(
        &report,
        [
            (Promise::FaultTolerance, Answer::Broken),
            (Promise::Locking, Answer::Kept),
        ],
    );
    assert!(
        said(&report, Promise::FaultTolerance).contains("is replaced after about 16s"),
        "{report}"
    );
    masters[1].command::<()>(&["CONFIG", "SET", "cluster-node-timeout", "1000"]);
    masters[2].command::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let reasons = examine(&locks)
        .await
        .unwrap()
        .verdict(Promise::Eviction)
        .unwrap()
        .reasons
        .clone();
    assert_eq!(
        reasons
            .iter()
            .map(|reason| reason.node.as_deref())
            .collect::<Vec<_>>(),
        [Some(&*masters[2].url())]
    );

    // If a master and its replica are gone, no server has their slots, and by default the whole
    // cluster refuses.
    cluster.replica_of(0).kill();
    eventually(ms(20_000), "noticed", || !in_step(&masters[0])).await;
    let report = examine(&locks).await.unwrap();
    assert_answers(
        &report,
        [
            (Promise::FaultTolerance, Answer::Broken),
            (Promise::Locking, Answer::Kept),
        ],
    );
    assert!(
        said(&report, Promise::FaultTolerance).contains("no replica in step"),
        "{report}"
    );
    masters[0].kill();
    let is_down = || {
        masters[1]
            .command::<String>(&["CLUSTER", "INFO"])
            .contains("cluster_state:fail")
    };
    eventually(ms(60_000), "it is down", is_down).await;
    let report = examine(&locks).await.unwrap();
    assert_answers(
        &report,
        [
            (Promise::Locking, Answer::Broken),
            (Promise::FaultTolerance, Answer::Broken),
        ],
    );
    let said = said(&report, Promise::Locking);
    assert!(
        said.contains("refused") && said.contains("cluster_state:fail"),
        "{said}"
    );
    assert_eq!(locks.stats().mismatched_replies, 0);
}

#[tokio::test]
async fn a_right_missing_on_one_master_of_a_cluster_is_reported_alone() {
    let cluster = Cluster::start(3);
    let rules = documented_in(&["Always", "One server", "A cluster", "Optional"]);
    let of_cluster = documented_in(&["A cluster"]);
    assert_eq!(of_cluster.len(), 6, "{of_cluster:?}");
    let all = || rules.iter().map(|(rule, _)| *rule);
    let masters = cluster.masters();
    masters.iter().for_each(|server| permit(server, all()));
    let url = cluster
        .url()
        .replace("redis-cluster://", "redis-cluster://app:t0p-secret@");
    let locks = Locker::builder()
        .node(url)
        .lease(ms(9_000))
        .connect()
        .await
        .unwrap();
    let before: Vec<_> = masters.iter().map(writes).collect();
    let place = format!("127.0.0.1:{}", masters[1].port());
    // A name in a slot of that master, and one in a slot of another.
    let name_of = |at| {
        (42..)
            .map(|n| format!("app:{n}"))
            .find(|name| cluster.first_master_of(name) == at)
            .unwrap()
    };
    let names = [name_of(0), name_of(1)];
    for told in [&["+acl|whoami", "+acl|dryrun"][..], &[]] {
        for (removed, _) in &of_cluster {
            permit(
                &masters[1],
                all()
                    .filter(|rule| rule != removed)
                    .chain(told.iter().copied()),
            );
            let report = examine_keys(&locks, names.clone()).await.unwrap();
            for server in &report.servers {
                let expected = if server.node.ends_with(&place) {
                    vec![*removed]
                } else {
                    vec![]
                };
                assert_eq!(missing(server), expected, "{removed}, {told:?}\n{report}");
                assert_eq!(
                    server.rights.unknown.len(),
                    0,
                    "{removed}, {told:?}\n{report}"
                );
            }
            let promise = match *removed {
                "+cluster|info" => Promise::Exclusion,
                "+cluster|slots" | "+asking" => Promise::Locking,
                _ => Promise::Wakeups,
            };
            let answer = if promise == Promise::Exclusion {
                Answer::Unknown
            } else {
                Answer::Broken
            };
            assert_answers(&report, [(promise, answer)]);
        }
    }
    permit(&masters[1], all());
    assert_eq!(
        masters.iter().map(writes).collect::<Vec<_>>(),
        before,
        "nothing is written"
    );
    assert!(!format!("{:?}", examine(&locks).await).contains("t0p-secret"));
    assert_eq!(locks.stats().mismatched_replies, 0);
}

#[tokio::test]
async fn a_cluster_that_cannot_be_reached_is_an_entry_of_the_report() {
    let locks = Locker::builder()
        .node("redis-cluster://127.0.0.1:1")
        .connect_timeout(ms(500))
        .connect_lazy()
        .unwrap();
    let report = examine(&locks).await.unwrap();
    assert!(only(&report).failure.is_some(), "{report}");
    assert_answers(
        &report,
        [
            (Promise::Locking, Answer::Broken),
            (Promise::Exclusion, Answer::Unknown),
        ],
    );
}

/// Returns the ACL rules that the guide lists for one server and for several, each with its form
/// for the lock `app:42`.
fn documented() -> Vec<(&'static str, String)> {
    documented_in(&["Always", "One server", "Several servers", "Optional"])
}

/// Does the same for these lists.
fn documented_in(lists: &[&str]) -> Vec<(&'static str, String)> {
    let mut rules: Vec<&str> = lists.iter().flat_map(|list| rights::of(list)).collect();
    rules.sort_unstable();
    rules.dedup();
    // Connecting to a database needs the first. The doctor reports settings that it may not read as
    // unknown, and without the others it tries what it may do.
    rules.retain(|rule| !["+select", "+config|get", "+acl|whoami", "+acl|dryrun"].contains(rule));
    let of_lock = |rule: &str| {
        rule.replace("{app:*", "{app:42}")
            .replace("~app:*", "~app:42")
    };
    rules
        .into_iter()
        .map(|rule| (rule, of_lock(rule)))
        .collect()
}

/// The rules for the lists of waiting lockers.
const OF_LISTS: [&str; 8] = [
    "&lockhound_wake:*",
    "+pubsub|numsub",
    "+zadd",
    "+zcard",
    "+zrange",
    "+zrank",
    "+zrem",
    "~lockhound_waiting:{app:*",
];

/// Gives the user `app` these rights and no others.
fn permit<'a>(server: &Server, rules: impl IntoIterator<Item = &'a str>) {
    let words: Vec<&str> = ["ACL", "SETUSER", "app", "reset", "on", ">t0p-secret"]
        .into_iter()
        .chain(rules)
        .collect();
    server.command::<()>(&words);
}

fn as_app(server: &Server) -> String {
    server.url().replace("redis://", "redis://app:t0p-secret@")
}

/// There are two ways to find out: the server tells (ACL DRYRUN), or the doctor tries the command.
#[tokio::test]
async fn a_missing_right_is_the_only_one_reported() {
    let (servers, rules) = (
        servers(3),
        documented_in(&["Always", "Several servers", "Optional"]),
    );
    assert!(rules.len() >= 27, "{rules:?}");
    let all = || rules.iter().map(|(rule, _)| *rule);
    servers.iter().for_each(|server| permit(server, all()));
    let nodes = servers.iter().fold(Locker::builder(), |builder, server| {
        builder.node(as_app(server))
    });
    let locks = nodes
        .lease(ms(1_000))
        .command_timeout(ms(300))
        .connect()
        .await
        .unwrap();
    for told in [&["+acl|whoami", "+acl|dryrun"][..], &[]] {
        for (removed, of_lock) in &rules {
            permit(
                &servers[1],
                all()
                    .filter(|rule| rule != removed)
                    .chain(told.iter().copied()),
            );
            let report = examine_keys(&locks, ["app:42"]).await.unwrap();
            // Since Redis 7 every user may call HELLO.
            let expected = if *removed == "+hello" {
                vec![]
            } else {
                vec![of_lock.as_str()]
            };
            assert_eq!(
                missing(&report.servers[1]),
                expected,
                "{removed}, {told:?}\n{report}"
            );
            let unknown = report.servers[1].rights.unknown.len();
            // Without EVAL the doctor cannot try what scripts may call.
            assert_eq!(
                unknown > 0,
                *removed == "+eval" && told.is_empty(),
                "{removed}\n{report}"
            );
            for other in [&report.servers[0], &report.servers[2]] {
                assert_eq!(
                    (missing(other), other.rights.unknown.len()),
                    (vec![], 0),
                    "{removed}\n{report}"
                );
            }
            for promise in report.servers[1]
                .rights
                .missing
                .iter()
                .flat_map(|right| &right.needed_for)
            {
                // A majority makes up for one of three servers, so it is reported as missing fault
                // tolerance.
                let told = if *promise == Promise::Locking {
                    Promise::FaultTolerance
                } else {
                    *promise
                };
                let said = said(&report, told);
                assert!(
                    said.contains(&format!("give its user {of_lock}")),
                    "{removed}: {said}"
                );
            }
            permit(&servers[1], all());
        }
    }
    let text = format!("{:?}", examine(&locks).await);
    assert!(
        !text.contains("t0p-secret") && text.contains("app:***@"),
        "{text}"
    );
}

/// The server has to vote first, for which its memory is written.
#[tokio::test]
async fn a_server_that_remembers_votes_with_the_rights_it_needs() {
    for (count, source) in [
        (1, FenceSource::Counters),
        (1, FenceSource::RedissonTokens),
        (3, FenceSource::Counters),
    ] {
        let servers = servers(count);
        let over = |address: &dyn Fn(&Server) -> String| {
            let nodes = servers.iter().fold(Locker::builder(), |builder, server| {
                builder.node(address(server))
            });
            nodes
                .lease(ms(1_000))
                .restart_quarantine(ms(1_000))
                .fence_source(source)
        };
        let told = over(&Server::url)
            .connect_lazy()
            .unwrap()
            .rights(["app:42"])
            .unwrap();
        let needed = told.iter().filter(|right| !right.needed_for.is_empty());
        let rules: Vec<&str> = needed
            .flat_map(|right| right.names.iter().chain([&right.rule]))
            .map(|s| &**s)
            .collect();
        servers
            .iter()
            .for_each(|server| permit(server, rules.iter().copied()));
        let locks = over(&as_app).connect().await.unwrap();
        let guard = soon(ms(10_000), locks.get("app:42").lock()).await;
        guard
            .unwrap_or_else(|| panic!("{count} with {source:?} do not vote"))
            .unwrap()
            .unlock()
            .await
            .unwrap();
    }
}

/// A right that is missing for a list breaks no promise: without lists all waiters are notified.
#[tokio::test]
async fn a_right_missing_for_lists_is_reported_and_breaks_no_promise() {
    let (server, rules) = (Server::start(), documented());
    let all = || rules.iter().map(|(rule, _)| *rule);
    permit(&server, all());
    let locks = Locker::builder()
        .node(as_app(&server))
        .connect()
        .await
        .unwrap();
    assert_eq!(
        missing(only(&examine_keys(&locks, ["app:42"]).await.unwrap())),
        Vec::<&str>::new()
    );
    for removed in OF_LISTS {
        permit(&server, all().filter(|rule| *rule != removed));
        let report = examine_keys(&locks, ["app:42"]).await.unwrap();
        assert_eq!(
            missing(only(&report)),
            [removed.replace("{app:*", "{app:42}")],
            "{report}"
        );
        assert_answers(
            &report,
            [
                (Promise::Locking, Answer::Kept),
                (Promise::Wakeups, Answer::Kept),
            ],
        );
    }
}

#[tokio::test]
async fn the_right_to_wait_is_needed_with_replicas() {
    let (server, rules) = (Server::start(), documented());
    let all = || rules.iter().map(|(rule, _)| *rule);
    permit(&server, all().chain(["+wait"]));
    let locks = Locker::builder()
        .node(as_app(&server))
        .replica_acks(1, ms(20))
        .connect()
        .await
        .unwrap();
    assert_eq!(
        missing(only(&examine_keys(&locks, ["app:42"]).await.unwrap())),
        Vec::<&str>::new()
    );
    permit(&server, all());
    let report = examine_keys(&locks, ["app:42"]).await.unwrap();
    assert_eq!(missing(only(&report)), ["+wait"]);
    assert_eq!(only(&report).acknowledging, Finding::Forbidden("+wait"));
}

/// The user has the rights of the guide's first list only.
#[tokio::test]
async fn what_a_user_may_not_ask_is_unknown_naming_the_missing_right() {
    let server = Server::start();
    permit(&server, rights::of("Always"));
    let locks = Locker::connect(as_app(&server)).await.unwrap();
    let of_lock = examine_keys(&locks, ["app:42"]).await.unwrap();
    let found = only(&of_lock);
    let optional = [
        "+zadd",
        "+zcard",
        "+zrange",
        "+zrank",
        "+zrem",
        "+pubsub|numsub",
        "&lockhound_wake:*",
        "~lockhound_label:*",
    ];
    assert_eq!(
        missing(found),
        [&["+client|setname", "+client|id", "+info"][..], &optional].concat()
    );
    assert!(
        found
            .rights
            .missing
            .iter()
            .all(|right| right.needed_for.is_empty())
            && found.rights.unknown.is_empty()
    );
    assert_eq!(
        (&found.eviction, &found.persistence),
        (&Finding::Forbidden("+info"), &Finding::Forbidden("+info"))
    );
    assert_answers(
        &of_lock,
        [
            (Promise::Locking, Answer::Kept),
            (Promise::Exclusion, Answer::Kept),
            (Promise::Wakeups, Answer::Kept),
            (Promise::Inspection, Answer::Kept),
            (Promise::Restart, Answer::Unknown),
            (Promise::Failover, Answer::Unknown),
            (Promise::Eviction, Answer::Unknown),
        ],
    );
    assert!(
        said(&of_lock, Promise::Eviction).contains("+info"),
        "{of_lock}"
    );
    server.command::<()>(&["ACL", "SETUSER", "app", "+info"]);
    server.command::<()>(&["CONFIG", "SET", "appendonly", "yes"]);
    let with_info = examine_keys(&locks, ["app:42"]).await.unwrap();
    assert_answers(
        &with_info,
        [
            (Promise::Eviction, Answer::Kept),
            (Promise::Restart, Answer::Unknown),
        ],
    );
    assert!(
        said(&with_info, Promise::Restart).contains("+config|get"),
        "{with_info}"
    );
    // Without names the doctor makes one up, which this user may not use.
    let of_none = examine(&locks).await.unwrap();
    assert_eq!(
        missing(only(&of_none)),
        [&["+client|setname", "+client|id"][..], &optional].concat()
    );
    assert_answers(
        &of_none,
        [
            (Promise::Locking, Answer::Unknown),
            (Promise::Wakeups, Answer::Unknown),
        ],
    );
    assert!(
        said(&of_none, Promise::Locking).contains("examine_keys"),
        "{of_none}"
    );
}

#[tokio::test]
async fn names_are_examined_with_the_prefix_of_the_locker() {
    let server = Server::start();
    permit(&server, rights::of("Always"));
    let locks = Locker::builder()
        .node(as_app(&server))
        .prefix("app:")
        .connect()
        .await
        .unwrap();
    // Also the name that the doctor makes up.
    for report in [
        examine(&locks).await.unwrap(),
        examine_keys(&locks, ["42"]).await.unwrap(),
    ] {
        assert_answers(
            &report,
            [
                (Promise::Locking, Answer::Kept),
                (Promise::Wakeups, Answer::Kept),
            ],
        );
    }
    server.command::<()>(&["ACL", "SETUSER", "app", "resetkeys", "~lockhound_fence:*"]);
    let report = examine_keys(&locks, ["42"]).await.unwrap();
    assert!(missing(only(&report)).contains(&"~app:42"), "{report}");
}

#[tokio::test]
async fn servers_that_are_down_or_frozen_are_entries_of_the_report() {
    let servers = servers(3);
    let timeout = ms(1_000);
    let locks = over(&servers, ms(10_000))
        .connect_timeout(timeout)
        .connect()
        .await
        .unwrap();
    settled(&locks).await;
    servers[1].kill();
    let report = examine(&locks).await.unwrap();
    assert!(
        report.servers[1]
            .failure
            .as_ref()
            .is_some_and(|why| why.contains("refused")),
        "{report}"
    );
    assert_answers(
        &report,
        [
            (Promise::Locking, Answer::Kept),
            (Promise::FaultTolerance, Answer::Broken),
        ],
    );
    servers[2].stop();
    let started = Instant::now();
    let report = examine(&locks).await.unwrap();
    let took = started.elapsed();
    servers[2].go_on();
    assert!(machine::within(took, timeout * 2), "{took:?}");
    assert!(
        report.servers[2]
            .failure
            .as_ref()
            .is_some_and(|why| why.contains("timed out")),
        "{report}"
    );
    assert!(report.servers[0].failure.is_none(), "{report}");
    assert_answers(
        &report,
        [
            (Promise::Locking, Answer::Broken),
            (Promise::Exclusion, Answer::Unknown),
        ],
    );
    assert!(report.to_string().contains("not reached"), "{report}");
}

#[tokio::test]
async fn a_server_gone_silent_is_reported_with_what_was_known_by_then() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url(), ms(10_000))
        .connect_timeout(ms(1_000))
        .connect()
        .await
        .unwrap();
    // The doctor asks for the time after the server's settings, and before the rights.
    proxy.set(Mode::Hold(b"TIME".to_vec()));
    let report = soon(ms(2_500), examine(&locks))
        .await
        .expect("bounded")
        .unwrap();
    proxy.set(Mode::Pass);
    let found = only(&report);
    assert!(
        found.failure.is_none() || found.version.known().is_none(),
        "{report}"
    );
    assert!(
        !found.rights.unknown.is_empty() || found.failure.is_some(),
        "what was not asked is not permitted: {report}"
    );
    assert!(!report.keeps(Promise::Locking), "{report}");
}

#[tokio::test]
async fn round_trips_are_measured_and_bounded() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url(), ms(30_000)).connect().await.unwrap();
    proxy.set(Mode::Delay(ms(60)));
    let report = examine(&locks).await.unwrap();
    proxy.set(Mode::Pass);
    let times = only(&report)
        .round_trip
        .known()
        .unwrap_or_else(|| panic!("{report}"));
    assert!(times.p50 >= ms(60) && times.count <= 17, "{times:?}");
    let clock = only(&report).clock.known().unwrap();
    assert!(
        clock.uncertainty >= ms(30)
            && clock.offset_us.unsigned_abs()
                <= 1_000 + u64::try_from(clock.uncertainty.as_micros()).unwrap()
    );
}

#[tokio::test]
async fn a_wrong_clock_is_reported_and_judged_for_fences() {
    let Some(server) = Server::start_with_clock(5_000, &["--save", "3600 1"]) else {
        return;
    };
    let locks = locker(&server).await;
    for (offset_ms, answer) in [
        (5_000, Answer::Broken),
        (-5_000, Answer::Kept),
        (0, Answer::Kept),
    ] {
        server.set_clock(offset_ms);
        let report = examine(&locks).await.unwrap();
        let clock = only(&report).clock.known().unwrap();
        let uncertainty = i64::try_from(clock.uncertainty.as_micros()).unwrap();
        assert!(
            (clock.offset_us - offset_ms * 1_000).abs() <= uncertainty + 1_000,
            "{offset_ms}: {clock:?}"
        );
        // The machine may be so busy that a round trip takes seconds.
        if uncertainty < 50_000 {
            assert_answers(&report, [(Promise::Fences, answer)]);
        }
    }
}

/// Returns how often clients and scripts called each write command, and the server's counts of
/// changes.
fn writes(server: &Server) -> BTreeMap<String, u64> {
    let commands: Vec<String> = server.command(&["COMMAND", "LIST", "FILTERBY", "ACLCAT", "write"]);
    assert!(commands.len() > 50, "{commands:?}");
    let mut writes: BTreeMap<String, u64> = commands
        .into_iter()
        .map(|command| (command.clone(), server.calls(&command)))
        .collect();
    let info: String = server.command(&["INFO", "everything"]);
    for name in ["rdb_changes_since_last_save", "master_repl_offset"] {
        let value = info
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .unwrap();
        writes.insert(name.to_owned(), value.parse().unwrap());
    }
    writes.insert("DBSIZE".to_owned(), server.command(&["DBSIZE"]));
    writes
}

#[tokio::test]
async fn an_examination_writes_nothing_and_leaves_no_connection() {
    let server = Server::start();
    let rules = documented();
    permit(&server, rules.iter().map(|(rule, _)| *rule));
    let holder = locker(&server).await;
    let guard = holder.get("app:42").lock().await.unwrap();
    labelled(&holder, std::slice::from_ref(&server)).await;
    for url in [server.url(), as_app(&server)] {
        let locks = Locker::connect(&url).await.unwrap();
        let before = writes(&server);
        examine_keys(&locks, ["app:42"]).await.unwrap();
        examine(&locks).await.unwrap();
        assert_eq!(writes(&server), before, "{url}");
        let connections = || server.command::<String>(&["CLIENT", "LIST"]);
        eventually(ms(5_000), "its connections end", || {
            !connections().contains("lockhound:visitor")
        })
        .await;
        assert_eq!(
            server.command::<Vec<String>>(&["PUBSUB", "CHANNELS"]),
            Vec::<String>::new()
        );
        assert_eq!(locks.stats().mismatched_replies, 0);
        locks.close().await;
    }
    assert!(guard.check().is_ok());
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn a_dropped_examination_leaves_no_connection() {
    let server = Server::start();
    let locks = locker(&server).await;
    let before = writes(&server);
    for wait in [0, 1, 3, 10, 30] {
        drop(tokio::time::timeout(ms(wait), examine(&locks)).await);
    }
    settled(&locks).await;
    let connections = || server.command::<String>(&["CLIENT", "LIST"]);
    eventually(ms(5_000), "its connections end", || {
        !connections().contains("lockhound:visitor")
    })
    .await;
    assert_eq!(writes(&server), before);
    fn is_send<T: Send>(_: &T) {}
    is_send(&examine_keys(&locks, [key()]));
}

#[tokio::test]
async fn invalid_names_and_closed_lockers_are_refused() {
    let server = Server::start();
    let locks = locker(&server).await;
    assert!(matches!(
        examine_keys(&locks, ["a", ""]).await,
        Err(Error::Config(_))
    ));
    locks.close().await;
    assert!(matches!(examine(&locks).await, Err(Error::Closed)));
}

#[test]
fn any_executor_runs_an_examination() {
    let server = Server::start();
    let locks = Locker::blocking_connect(server.url()).unwrap();
    assert!(block_on(examine(&locks)).unwrap().keeps(Promise::Locking));
    assert!(
        block_on(examine_keys(&locks, ["app:42"]))
            .unwrap()
            .keeps(Promise::Locking)
    );
    locks.blocking_close();
}

#[cfg(feature = "testing")]
mod in_memory {
    use lockhound::testing;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_in_memory_reports_its_clock_and_its_delays() {
        let server = testing::Server::new();
        let locks = Locker::builder().memory(&server).connect().await.unwrap();
        let report = examine(&locks).await.unwrap();
        let problems: Vec<_> = report.problems().map(|verdict| verdict.promise).collect();
        assert_eq!(problems, [Promise::Restart], "{report}");
        assert_eq!(only(&report).clock.known().unwrap().offset_us, 0);
        server.set_clock_offset(-5_000);
        server.delay(ms(20)..=ms(40));
        let report = examine_keys(&locks, ["app:42"]).await.unwrap();
        let (clock, times) = (
            only(&report).clock.known().unwrap(),
            only(&report).round_trip.known().unwrap(),
        );
        assert_eq!(clock.offset_us, -5_000_000);
        assert!(
            times.p50 >= ms(20) && times.max <= ms(41) && times.count > 20,
            "{times:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn frozen_servers_in_memory_are_reported_as_not_reached() {
        let servers: Vec<_> = (0..3).map(|_| testing::Server::new()).collect();
        let nodes = servers
            .iter()
            .fold(Locker::builder(), |builder, server| builder.memory(server));
        let locks = nodes.connect().await.unwrap();
        // New servers abstain for a lease.
        let report = examine(&locks).await.unwrap();
        assert_answers(
            &report,
            [
                (Promise::Locking, Answer::Broken),
                (Promise::Restart, Answer::Kept),
            ],
        );
        assert!(report.servers.iter().all(|server| {
            server
                .abstains
                .as_ref()
                .is_some_and(|why| why.contains("abstains"))
        }));
        tokio::time::sleep(Duration::from_secs(40)).await;
        let report = examine(&locks).await.unwrap();
        assert!(report.is_ok(), "{report}");
        servers[1].stop();
        let report = examine(&locks).await.unwrap();
        assert!(
            report.servers[1]
                .failure
                .as_ref()
                .is_some_and(|why| why.contains("timed out after 3s")),
            "{report}"
        );
        assert_answers(
            &report,
            [
                (Promise::Locking, Answer::Kept),
                (Promise::FaultTolerance, Answer::Broken),
            ],
        );
    }
}

/// Takes each right of this list of the guide from a user that has all of them, and asserts that it
/// is the only one reported for these keys. `shown` is the pattern of the keys beside a lock.
async fn each_right_is_missed(
    heading: &str,
    rights: usize,
    shown: &str,
    keys: impl Fn(&Locker) -> Vec<lockhound::Key>,
) {
    let server = Server::start();
    let own = documented_in(&[heading]);
    assert_eq!(own.len(), rights, "{own:?}");
    let rules = documented_in(&["Always", "One server", heading, "Optional"]);
    permit(&server, rules.iter().map(|(rule, _)| *rule));
    let locks = Locker::connect(as_app(&server)).await.unwrap();
    for told in [&["+acl|whoami", "+acl|dryrun"][..], &[]] {
        for (removed, of_lock) in &own {
            // The list of all kinds has it, too.
            if rules.iter().filter(|(rule, _)| rule == removed).count() > 1 {
                continue;
            }
            let kept = rules.iter().map(|(rule, _)| *rule);
            let kept = kept.filter(|rule| rule != removed);
            permit(&server, kept.chain(told.iter().copied()));
            let report = examine_keys(&locks, keys(&locks)).await.unwrap();
            let found = only(&report);
            let expected = match *removed {
                "~{app:*" => shown,
                _ => of_lock,
            };
            let missing: Vec<_> = missing(found);
            assert_eq!(missing, [expected], "{removed}, {told:?}\n{report}");
            assert_eq!(found.rights.unknown.len(), 0, "{removed}\n{report}");
            let answer = report.verdict(Promise::Locking).unwrap().answer;
            // Waiters look again without messages, hints keep nobody out, and a leader needs no
            // value.
            let locks_without = removed.starts_with('&')
                || heading == "Elections"
                || heading == "Read-write locks" && removed.contains("lockhound_");
            assert_eq!(answer == Answer::Kept, locks_without, "{removed}\n{report}");
        }
    }
}

/// A key that comes from a read-write lock stands for one.
#[tokio::test]
async fn a_missing_right_on_read_write_locks_is_the_only_one_reported() {
    let keys = |locks: &Locker| vec![locks.rw("app:42").key().clone()];
    each_right_is_missed("Read-write locks", 9, "~{app:42}:*", keys).await;
}

#[tokio::test]
async fn a_missing_right_on_semaphores_is_the_only_one_reported() {
    let keys = |locks: &Locker| {
        let (permits, semaphore) = (locks.permits("app:42"), locks.semaphore("app:42"));
        vec![permits.key().clone(), semaphore.key().clone()]
    };
    each_right_is_missed("Semaphores", 15, "~{app:42}:timeout", keys).await;
}

#[tokio::test]
async fn a_missing_right_on_elections_is_the_only_one_reported() {
    let keys = |locks: &Locker| vec![locks.election("app:42").key().clone()];
    each_right_is_missed("Elections", 3, "", keys).await;
}

#[tokio::test]
async fn a_missing_right_on_latches_is_the_only_one_reported() {
    let keys = |locks: &Locker| vec![locks.latch("app:42").key().clone()];
    each_right_is_missed("Latches", 11, "", keys).await;
}

#[tokio::test]
async fn a_missing_right_on_fair_locks_is_the_only_one_reported() {
    let keys = |locks: &Locker| vec![locks.fair("app:42").key().clone()];
    each_right_is_missed("Fair locks", 12, "", keys).await;
}
