//! `ls` and `show`: every kind of lock, in text and as JSON.

use std::time::Duration;

use lockhound::{Fence, Format, Locker};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::common::cluster::Cluster;
use crate::common::labels::labelled;
use crate::common::{SOON, Server, at, builder, eventually, locker, lockhound, ms, said};

/// Returns the lock with this name in the output of `ls --json`, or of `show --json`.
fn listed(server: &Server, name: &str) -> Value {
    let ls = said(&mut lockhound(server, ["ls", "--json"]));
    assert_eq!((ls.code, &*ls.err), (Some(0), ""), "{ls:?}");
    let all = ls.json();
    let mut locks = all.as_array().unwrap().iter();
    let listed = locks
        .find(|lock| lock["key"] == name)
        .unwrap_or_else(|| panic!("no {name}: {all:#}"));
    let show = said(&mut lockhound(server, ["show", "--json", name]));
    assert_eq!((show.code, &*show.err), (Some(0), ""), "{show:?}");
    assert_eq!(without_leases(show.json()), without_leases(listed.clone()));
    listed.clone()
}

/// Takes out what differs from one moment to the next, once it was seen to be there.
fn without_leases(mut lock: Value) -> Value {
    for holder in lock["holders"].as_array_mut().unwrap() {
        let left = holder["remaining_ms"].take();
        assert!(
            left.is_null() || (1..=60_000).contains(&left.as_u64().unwrap()),
            "{left}"
        );
    }
    lock
}

/// A lock as JSON, held by one with this label and no lease to compare.
fn held(key: &str, kind: &str, owner: &Value, label: Option<&str>, fence: Option<Fence>) -> Value {
    let fence = fence.map(|fence| fence.to_string().parse::<u64>().unwrap());
    json!({
        "key": key, "kind": kind, "mode": null, "left": null,
        "holders": [{"owner": owner, "label": label, "count": 1, "remaining_ms": null}],
        "fence": fence, "waiters": [],
    })
}

/// Returns who holds the lock, and checks that it is this locker.
fn owner_of(lock: &Value, locks: &Locker) -> Value {
    let owner = lock["holders"][0]["owner"].clone();
    assert!(
        owner
            .as_str()
            .unwrap()
            .starts_with(&format!("{}:", locks.id())),
        "{lock}"
    );
    owner
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_is_told_by_its_key() {
    let server = Server::start();
    let locks = locker(&server, "tester").await;
    let lock = locks.get("k").lock().await.unwrap();
    let reader = locks.rw("book").read().lock().await.unwrap();
    let writer = locks.rw("ledger").write().lock().await.unwrap();
    let desks = locks.permits("desks").capacity(5);
    let desk = desks.acquire_many(2).await.unwrap();
    let seats = locks.semaphore("seats").capacity(3);
    let seat = seats.acquire().await.unwrap();
    assert!(locks.latch("gate").try_set(3).await.unwrap());
    locks.latch("gate").count_down().await.unwrap();
    let leader = locks.election("boss").campaign("me").await.unwrap();
    let plainly = builder(&server, "plain")
        .format(Format::Plain)
        .connect()
        .await
        .unwrap();
    let plain = plainly.get("plain").lock().await.unwrap();
    labelled(&locks, std::slice::from_ref(&server)).await;

    let shown = listed(&server, "k");
    let owner = owner_of(&shown, &locks);
    let fence =
        |lock: &Value, fence: Fence| assert_eq!(lock["fence"].to_string(), fence.to_string());
    assert_eq!(
        without_leases(shown),
        held("k", "lock", &owner, Some("tester"), Some(lock.fence()))
    );
    assert!(lock.owner().to_string().len() > 1);

    let shown = listed(&server, "book");
    assert_eq!(
        (&shown["kind"], &shown["mode"]),
        (&json!("read-write"), &json!("read"))
    );
    owner_of(&shown, &locks);
    fence(&shown, reader.fence());
    let shown = listed(&server, "ledger");
    assert_eq!(
        (&shown["kind"], &shown["mode"]),
        (&json!("read-write"), &json!("write"))
    );
    assert!(
        owner_of(&shown, &locks)
            .as_str()
            .unwrap()
            .ends_with(":write")
    );
    fence(&shown, writer.fence());

    let shown = listed(&server, "desks");
    assert_eq!(
        (&shown["kind"], &shown["left"]),
        (&json!("permits"), &json!(3))
    );
    owner_of(&shown, &locks);
    assert_eq!(
        (&shown["holders"][0]["count"], &shown["holders"][0]["label"]),
        (&json!(2), &json!("tester"))
    );
    let shown = listed(&server, "seats");
    assert_eq!(
        (&shown["kind"], &shown["left"], &shown["fence"]),
        (&json!("semaphore"), &json!(2), &json!(null))
    );
    owner_of(&shown, &locks);
    let shown = listed(&server, "gate");
    assert_eq!(
        shown,
        json!({"key": "gate", "kind": "latch", "mode": null, "left": 2, "holders": [], "fence": null, "waiters": []})
    );

    let shown = listed(&server, "boss");
    let owner = owner_of(&shown, &locks);
    assert_eq!(
        without_leases(shown),
        held(
            "boss",
            "election",
            &owner,
            Some("tester"),
            Some(leader.term())
        )
    );
    let shown = listed(&server, "plain");
    let owner = owner_of(&shown, &plainly);
    assert_eq!(
        without_leases(shown),
        held("plain", "plain", &owner, None, Some(plain.fence()))
    );

    let table = said(&mut lockhound(&server, ["ls"]));
    assert_eq!(table.row("KEY"), "KEY KIND LEASE WAITERS HELD BY");
    let shown = |key: &str| {
        let row = table.row(key);
        let lease = row
            .split(' ')
            .find(|word| word.ends_with('s') && word.starts_with(|c: char| c.is_ascii_digit()));
        lease.map_or(row.clone(), |lease| row.replace(lease, "LEFT"))
    };
    assert_eq!(shown("k "), "k lock LEFT tester");
    assert_eq!(shown("book"), "book read-write (read) LEFT tester");
    assert_eq!(shown("desks"), "desks permits LEFT tester x2, 3 free");
    assert_eq!(shown("gate"), "gate latch waits for 2");
    assert_eq!(
        table.keys(),
        [
            "book", "boss", "desks", "gate", "k", "ledger", "plain", "seats"
        ]
    );

    drop((lock, reader, writer, desk, seat, leader, plain));
    locks.close().await;
    plainly.close().await;
}

/// The guide has the rights of a user that may look.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_that_may_only_look_sees_all() {
    let server = Server::start();
    let guide = include_str!("../../../docs/guide/from_the_shell.md");
    let (_, line) = guide.split_once("redis-cli ACL SETUSER looker ").unwrap();
    let line = line.split("```").next().unwrap().replace(['\\', '\''], "");
    let rules: Vec<_> = line.split_whitespace().collect();
    server.command::<()>(&[&["ACL", "SETUSER", "looker"][..], &rules].concat());
    let locks = locker(&server, "tester").await;
    let held = (
        locks.get("a").lock().await.unwrap(),
        locks.rw("b").read().lock().await.unwrap(),
        locks.permits("c").capacity(5).acquire().await.unwrap(),
        locks.semaphore("d").capacity(3).acquire().await.unwrap(),
        locks.election("e").campaign("me").await.unwrap(),
        locks.fair("f").lock().await.unwrap(),
    );
    assert!(locks.latch("g").try_set(3).await.unwrap());
    labelled(&locks, std::slice::from_ref(&server)).await;
    let url = server.url().replace("//", "//looker:PASSWORD@");
    let [all, own] = [server.url(), url.clone()].map(|url| said(&mut at(&url, ["ls", "--json"])));
    assert_eq!((own.code, &*own.err), (Some(0), ""), "{own:?}");
    let locks_of = |json: Value| -> Vec<Value> {
        json.as_array()
            .unwrap()
            .iter()
            .cloned()
            .map(without_leases)
            .collect()
    };
    assert_eq!(locks_of(own.json()), locks_of(all.json()));
    assert_eq!(locks_of(own.json()).len(), 7);
    let broken = said(&mut at(&url, ["break", "--yes", "a"]));
    assert_eq!(broken.code, Some(69), "{broken:?}");
    assert!(held.0.check().is_ok() && server.exists("a"));
    drop(held);
    locks.close().await;

    // One that may not read a key says so.
    server.command::<()>(&["ACL", "SETUSER", "looker", "resetkeys", "~x*"]);
    server.command::<()>(&["SET", "y", "1"]);
    let some = said(&mut at(&url, ["ls"]));
    assert_eq!(some.code, Some(0), "{some:?}");
    assert!(some.err.contains("may not read"), "{some:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_wait_are_in_their_order() {
    let server = Server::start();
    let (first, second, third) = (
        locker(&server, "first").await,
        locker(&server, "second").await,
        locker(&server, "third").await,
    );
    // A locker has a label once it has had a lock.
    for locks in [&first, &second, &third] {
        drop(locks.get("once").lock().await.unwrap());
        labelled(locks, std::slice::from_ref(&server)).await;
    }
    let held = (
        first.get("line").lock().await.unwrap(),
        first.fair("queue").lock().await.unwrap(),
    );
    let mut waiting = Vec::new();
    for (at, locks) in [(1, &second), (2, &third)] {
        for lock in [locks.get("line"), locks.fair("queue")] {
            waiting.push(tokio::spawn(async move { lock.lock().await }));
        }
        let size = |words: &[&str]| server.command::<usize>(words);
        eventually(SOON, "they wait", || {
            size(&["ZCARD", "lockhound_waiting:{line}"]) == at
                && size(&["LLEN", "redisson_lock_queue:{queue}"]) == at
        })
        .await;
    }
    for (name, kind) in [("line", "lock"), ("queue", "fair")] {
        let shown = listed(&server, name);
        assert_eq!(shown["kind"], kind);
        owner_of(&shown, &first);
        for (at, (locks, label)) in [(&second, "second"), (&third, "third")]
            .into_iter()
            .enumerate()
        {
            let waiter = &shown["waiters"][at];
            assert_eq!(waiter["label"], label, "{shown:#}");
            assert!(
                waiter["owner"].as_str().unwrap().starts_with(locks.id()),
                "{shown:#}"
            );
        }
        let text = said(&mut lockhound(&server, ["show", name]));
        assert_eq!(text.row("key"), format!("key {name}"));
        assert_eq!(text.row("kind"), format!("kind {kind}"));
        assert!(
            text.row("holder").starts_with("holder first ("),
            "{}",
            text.out
        );
        assert!(
            text.row("waiter   1.").starts_with("waiter 1. second ("),
            "{}",
            text.out
        );
        assert!(
            text.row("waiter   2.").starts_with("waiter 2. third ("),
            "{}",
            text.out
        );
    }
    for task in waiting {
        task.abort();
    }
    drop(held);
    for locks in [first, second, third] {
        locks.close().await;
    }
}

#[test]
fn a_lock_of_redisson_is_told_from_other_keys() {
    let server = Server::start();
    let id = Uuid::new_v4();
    let owner = format!("{id}:57");
    server.command::<()>(&["HSET", "jvm", &owner, "2"]);
    server.command::<()>(&["PEXPIRE", "jvm", "60000"]);
    for words in [
        &["HSET", "user:1", "name", "Ada"][..],
        &["HSET", "mixed", &owner, "1", "name", "Ada"],
        &["HSET", "named", "somebody:1", "1"],
        &["SET", "number", "7"],
        &["SET", "session", "abc", "EX", "60"],
        &["RPUSH", "list", "1"],
        &["ZADD", "scores", "1", "m"],
    ] {
        server.command::<()>(words);
    }
    let ls = said(&mut lockhound(&server, ["ls", "--json"])).json();
    assert_eq!(
        Value::from(
            ls.as_array()
                .unwrap()
                .iter()
                .cloned()
                .map(without_leases)
                .collect::<Vec<_>>()
        ),
        json!([{
            "key": "jvm", "kind": "lock", "mode": null, "left": null,
            "holders": [{"owner": owner, "label": null, "count": 2, "remaining_ms": null}],
            "fence": null, "waiters": [],
        }])
    );
    // A name says more than a pattern: these may be locks of other clients.
    for (name, code, told) in [
        ("session", 0, "kind     plain"),
        ("number", 0, "kind     counter"),
        ("nothing", 1, "kind     free"),
    ] {
        let show = said(&mut lockhound(&server, ["show", name]));
        assert_eq!(show.code, Some(code), "{show:?}");
        assert!(show.out.contains(told), "{show:?}");
    }
    for name in ["user:1", "mixed", "named", "list", "scores"] {
        let show = said(&mut lockhound(&server, ["show", name]));
        assert_eq!((show.code, &*show.out), (Some(64), ""), "{show:?}");
        assert!(show.err.contains(&format!("{name} is no lock")), "{show:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_cannot_forge_a_line() {
    let server = Server::start();
    let locks = locker(&server, "tester").await;
    let name = "two words\nand a line\x1b[31m";
    let guard = locks.get(name).lock().await.unwrap();
    let shown = listed(&server, name);
    owner_of(&shown, &locks);
    let table = said(&mut lockhound(&server, ["ls", "two *"]));
    assert_eq!(table.out.lines().count(), 2, "{table:?}");
    assert!(
        table
            .out
            .contains("two words\\nand a line\\u{1b}[31m  lock"),
        "{table:?}"
    );
    let show = said(&mut lockhound(&server, ["show", name]));
    assert!(
        show.out
            .starts_with("key      two words\\nand a line\\u{1b}[31m\nkind"),
        "{show:?}"
    );
    drop(guard);
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pattern_and_the_prefix_choose_names() {
    let server = Server::start();
    let locks = builder(&server, "tester")
        .prefix("app[1]:")
        .connect()
        .await
        .unwrap();
    let guards = [
        locks.get("a1").lock().await.unwrap(),
        locks.get("a2").lock().await.unwrap(),
        locks.get("b1").lock().await.unwrap(),
    ];
    let other = locker(&server, "other").await;
    let elsewhere = other.get("a3").lock().await.unwrap();
    let keys = |command: &mut std::process::Command| -> Vec<String> {
        let ls = said(command).json();
        ls.as_array()
            .unwrap()
            .iter()
            .map(|lock| lock["key"].as_str().unwrap().to_owned())
            .collect()
    };
    let with_prefix = |args: &[&str]| {
        let mut command = lockhound(&server, args);
        command.env("LOCKHOUND_PREFIX", "app[1]:");
        command
    };
    assert_eq!(
        keys(&mut with_prefix(&["ls", "--json", "a?"])),
        ["a1", "a2"]
    );
    assert_eq!(
        keys(&mut lockhound(&server, ["ls", "--json", "a?"])),
        ["a3"]
    );
    assert_eq!(
        keys(&mut lockhound(&server, ["ls", "--json", "none*"])),
        [""; 0]
    );
    let show = said(&mut with_prefix(&["show", "b1"]));
    assert_eq!(show.code, Some(0), "{show:?}");
    assert!(show.out.starts_with("key      b1\n"), "{show:?}");
    drop((guards, elsewhere));
    locks.close().await;
    other.close().await;
}

/// More than one SCAN and more than one batch of questions.
#[test]
fn a_scan_finds_a_lock_among_many_keys() {
    let server = Server::start();
    let mut fill = redis::pipe();
    for n in 0..3_000 {
        fill.cmd("SET")
            .arg(format!("filler:{n}"))
            .arg("text")
            .ignore();
    }
    for n in 0..300 {
        let owner = format!("{}:1", Uuid::new_v4());
        fill.cmd("HSET")
            .arg(format!("jvm:{n:03}"))
            .arg(owner)
            .arg(1)
            .ignore();
    }
    fill.query::<()>(&mut server.connection().unwrap()).unwrap();
    let ls = said(&mut lockhound(&server, ["ls"]));
    assert_eq!((ls.code, &*ls.err), (Some(0), ""), "{ls:?}");
    assert_eq!(
        ls.keys(),
        (0..300).map(|n| format!("jvm:{n:03}")).collect::<Vec<_>>()
    );
    assert!(ls.row("jvm:000").contains("lock none"), "{}", ls.out);
    assert_eq!(server.calls("keys"), 0);
    assert!(server.calls("scan") >= 10, "{}", server.calls("scan"));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_master_of_a_cluster_is_asked() {
    let cluster = Cluster::start(3);
    let locks = cluster
        .builder(Duration::from_secs(30))
        .label("tester")
        .connect()
        .await
        .unwrap();
    let mut guards = Vec::new();
    for master in 0..3 {
        let mut names = (0..).map(|n: u32| format!("{master}:{n}"));
        let name = names
            .find(|name| cluster.first_master_of(name) == master)
            .unwrap();
        guards.push(locks.get(name).lock().await.unwrap());
    }
    let label = format!("lockhound_label:{}", locks.id());
    let there = &cluster.masters()[cluster.first_master_of(&label)];
    eventually(ms(10_000), "it has a label", || there.exists(&label)).await;
    let ls = said(&mut at(&cluster.url(), ["ls", "--json"]));
    assert_eq!((ls.code, &*ls.err), (Some(0), ""), "{ls:?}");
    let all = ls.json();
    assert_eq!(all.as_array().unwrap().len(), 3, "{all:#}");
    for (guard, lock) in guards.iter().zip(all.as_array().unwrap()) {
        assert_eq!(lock["key"], guard.key().as_str());
        assert_eq!(lock["fence"].to_string(), guard.fence().to_string());
        assert_eq!(lock["holders"][0]["label"], "tester");
        let show = said(&mut at(
            &cluster.url(),
            ["show", "--json", guard.key().as_str()],
        ));
        assert_eq!(show.code, Some(0), "{show:?}");
        assert_eq!(without_leases(show.json()), without_leases(lock.clone()));
    }
    let free = said(&mut at(&cluster.url(), ["show", "free"]));
    assert_eq!(
        (free.code, &*free.out),
        (Some(1), "key      free\nkind     free\n"),
        "{free:?}"
    );
    drop(guards);
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_servers_tell_of_one_lock() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let urls: Vec<_> = servers.iter().map(Server::url).collect();
    let locks = Locker::builder()
        .nodes(&urls)
        .label("tester")
        // Otherwise new servers have no vote for a lease.
        .restart_quarantine(Duration::ZERO)
        .connect()
        .await
        .unwrap();
    let guard = locks.get("k").lock().await.unwrap();
    labelled(&locks, &servers).await;
    let all = urls.join(" ");
    servers[2].kill();
    let ls = said(&mut at(&all, ["ls", "--json"]));
    assert_eq!(ls.code, Some(0), "{ls:?}");
    assert!(ls.err.contains(&urls[2]), "{ls:?}");
    let lock = &ls.json()[0];
    assert_eq!(
        (&lock["kind"], &lock["holders"][0]["label"]),
        (&json!("lock"), &json!("tester"))
    );
    let show = said(&mut at(&all, ["show", "k"]));
    assert_eq!(show.code, Some(0), "{show:?}");
    assert!(
        show.row("holder").starts_with("holder tester ("),
        "{show:?}"
    );
    drop(guard);
    locks.close().await;
}

#[test]
fn without_a_server_nothing_is_told() {
    for (args, url, code) in [
        (&["ls"][..], "redis://127.0.0.1:1", 69),
        (&["show", "k"], "redis://127.0.0.1:1", 69),
        (&["ls"], "", 64),
        (&["show", "k"], "http://:secret@host", 64),
        (&["show", ""], "redis://127.0.0.1:1", 64),
        (&["show"], "redis://127.0.0.1:1", 64),
    ] {
        let mut command = at(url, args);
        command.env("LOCKHOUND_CONNECT_TIMEOUT", "300ms");
        let ended = said(&mut command);
        assert_eq!(
            (ended.code, &*ended.out),
            (Some(code), ""),
            "{args:?} {ended:?}"
        );
        assert!(
            !ended.err.is_empty() && !ended.err.contains("secret"),
            "{ended:?}"
        );
    }
}

/// A bug: no table may have a cell that is as wide as this.
#[test]
fn a_long_name_does_not_hide_the_others() {
    let server = Server::start();
    let long = "x".repeat(70_000);
    for key in [&*long, "k"] {
        server.command::<()>(&["HSET", key, &format!("{}:1", Uuid::new_v4()), "1"]);
    }
    let ls = said(&mut lockhound(&server, ["ls"]));
    assert_eq!((ls.code, &*ls.err), (Some(0), ""));
    assert_eq!(ls.keys(), ["k", &long]);
    assert!(
        ls.out
            .lines()
            .any(|line| line.starts_with("k ") && line.len() < 300)
    );
}
