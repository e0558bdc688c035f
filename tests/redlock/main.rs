//! Redisson's RedLock: an RLock on each of several independent servers, of which a majority
//! decides. A RedissonRedLock of n locks takes n / 2 + 1 of them, and writes on each server what
//! `getLock` writes. Redlock also asks for a limit on how long a lock is extended.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

use std::process::Command;
use std::time::Instant;

use common::machine::within;
use common::several::{hold_as_redisson, on, over, servers, settled};
use common::{Server, eventually, key, ms};
use lockhound::{HoldState, Holder, LockerBuilder, Loss};

#[tokio::test]
async fn each_server_has_what_redissons_get_lock_writes() {
    let (servers, key) = (servers(3), key());
    let locks = over(&servers, ms(30_000)).connect().await.unwrap();
    let guard = locks.get(&key).lock().await.unwrap();
    // A call returns with a majority: the third server may execute its command later, and a count
    // of a lock that is not there yet is lost.
    eventually(ms(5_000), "held everywhere", || on(&servers, &key) == 3).await;
    let nested = locks.get(&key).lock().await.unwrap();
    let is_two = |server: &Server| server.fields(&key).iter().any(|field| field.1 == 2);
    eventually(ms(5_000), "a count of two everywhere", || {
        servers.iter().all(is_two)
    })
    .await;
    let first = servers[0].fields(&key);
    assert!(
        first.len() == 1 && first[0].0.starts_with(locks.id()),
        "{first:?}"
    );
    for server in &servers {
        assert_eq!(server.command::<String>(&["TYPE", &key]), "hash");
        assert_eq!(server.fields(&key), first, "the same owner everywhere");
        assert!(server.pttl(&key) > 20_000);
    }
    nested.unlock().await.unwrap();
    guard.unlock().await.unwrap();
    eventually(ms(500), "released everywhere", || on(&servers, &key) == 0).await;
}

#[tokio::test]
async fn a_redisson_holder_of_a_majority_excludes_us_and_is_awaited() {
    let (servers, key) = (servers(5), key());
    let locks = over(&servers, ms(30_000)).connect().await.unwrap();
    servers[..3]
        .iter()
        .for_each(|server| hold_as_redisson(server, &key, 700));
    let start = Instant::now();
    assert!(locks.get(&key).try_lock().await.unwrap().is_none());
    let holder = locks
        .get(&key)
        .holder()
        .await
        .unwrap()
        .expect("a majority has it");
    assert!(holder.owner().contains("5cb1f0b5"), "{holder:?}");
    let guard = locks.get(&key).lock().await.unwrap();
    let waited = start.elapsed();
    assert!(
        waited > ms(650) && within(waited, ms(1_500)),
        "waits until the lease is over, without polls: {waited:?}"
    );
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn a_redisson_minority_does_not_exclude_us_and_keeps_its_keys() {
    let (servers, key) = (servers(5), key());
    let locks = over(&servers, ms(900)).connect().await.unwrap();
    servers[..2]
        .iter()
        .for_each(|server| hold_as_redisson(server, &key, 60_000));
    let theirs = servers[0].fields(&key);
    assert!(!locks.get(&key).is_locked().await.unwrap());
    let guard = locks
        .get(&key)
        .try_lock()
        .await
        .unwrap()
        .expect("three of five are free");
    // Renewals find the lock gone on those servers, and do not take the keys of another owner.
    tokio::time::sleep(ms(1_300)).await;
    guard.check().unwrap();
    assert_eq!(servers[0].fields(&key), theirs);
    guard.unlock().await.unwrap();
    settled(&locks).await;
    assert_eq!(
        servers
            .iter()
            .map(|server| server.exists(&key))
            .collect::<Vec<_>>(),
        [true, true, false, false, false]
    );
}

// ---- The holder, when the servers differ ----

/// Takes the lock as a RedissonRedLock does. Each of its RLocks belongs to a client of its own,
/// with a uuid of its own.
fn hold_as_redlock(servers: &[Server], key: &str) -> Vec<String> {
    let owner = |server: &Server| {
        let owner = format!("{}:53", uuid::Uuid::new_v4());
        server.command::<()>(&["HINCRBY", key, &owner, "1"]);
        server.command::<()>(&["PEXPIRE", key, "30000"]);
        owner
    };
    servers.iter().map(owner).collect()
}

/// Returns each server and owner that `holder()` names.
fn named(holder: &Holder) -> Vec<(String, String)> {
    holder
        .by_node()
        .iter()
        .map(|node| (node.node().to_owned(), node.owner().into_owned()))
        .collect()
}

#[tokio::test]
async fn a_redlock_of_three_clients_does_not_look_free() {
    let (servers, key) = (servers(3), key());
    let locks = over(&servers, ms(30_000)).connect().await.unwrap();
    let lock = locks.get(&key);
    for count in [3, 2] {
        let owners = hold_as_redlock(&servers[..count], &key);
        assert!(lock.try_lock().await.unwrap().is_none());
        settled(&locks).await;
        assert!(
            lock.is_locked().await.unwrap(),
            "is_locked() agrees with try_lock()"
        );
        let holder = lock.holder().await.unwrap().expect("locked");
        assert!(
            !holder.is_agreed() && holder.owner() == owners[0],
            "{holder:?}"
        );
        let stand: Vec<_> = servers.iter().map(Server::url).zip(owners).collect();
        assert_eq!(
            named(&holder),
            stand,
            "the owner on each server, and none for a free one"
        );
        for node in holder.by_node() {
            let remaining = node.remaining().expect("a lease");
            assert!(
                node.hold_count() == 1 && remaining <= ms(30_000) && remaining > ms(20_000),
                "{node:?}"
            );
        }
        servers
            .iter()
            .for_each(|server| server.command::<()>(&["DEL", &key]));
    }
}

#[tokio::test]
async fn the_owner_on_a_majority_comes_first() {
    let (servers, key) = (servers(3), key());
    let lock = over(&servers, ms(30_000))
        .connect()
        .await
        .unwrap()
        .get(&key);
    let stray = hold_as_redlock(&servers[..1], &key).remove(0);
    servers[1..]
        .iter()
        .for_each(|server| hold_as_redisson(server, &key, 30_000));
    let theirs = "5cb1f0b5-0000-4000-8000-000000000000:1";
    let all = [1, 2, 0].map(|at| {
        (
            servers[at].url(),
            if at == 0 {
                stray.clone()
            } else {
                theirs.to_owned()
            },
        )
    });
    let holder = lock.holder().await.unwrap().expect("locked");
    assert!(holder.is_agreed() && holder.owner() == theirs, "{holder:?}");
    // Once two servers agree, `holder` does not wait for the third.
    let said = named(&holder);
    assert!(said.len() >= 2 && all.starts_with(&said), "{said:?}");
    assert!(lock.is_locked().await.unwrap());
    // The leases on the two servers are over. A key on the third alone is no lock.
    servers[1..]
        .iter()
        .for_each(|server| server.command::<()>(&["DEL", &key]));
    assert!(!lock.is_locked().await.unwrap() && lock.holder().await.unwrap().is_none());
    lock.try_lock()
        .await
        .unwrap()
        .expect("and an attempt gets it")
        .unlock()
        .await
        .unwrap();
}

/// The holder may have its majority by the server that is down.
#[tokio::test]
async fn a_majority_with_a_server_that_is_down_does_not_look_free() {
    let (servers, key) = (servers(3), key());
    let lock = over(&servers, ms(30_000))
        .connect()
        .await
        .unwrap()
        .get(&key);
    let owners = hold_as_redlock(&servers[..1], &key);
    assert!(!lock.is_locked().await.unwrap(), "two of three are free");
    servers[2].kill();
    assert!(
        lock.try_lock().await.unwrap().is_none(),
        "one of two is taken"
    );
    eventually(ms(2_000), "the attempt is undone", || {
        !servers[1].exists(&key)
    })
    .await;
    assert!(lock.is_locked().await.unwrap());
    let holder = lock.holder().await.unwrap().expect("locked");
    assert!(
        !holder.is_agreed() && named(&holder) == [(servers[0].url(), owners[0].clone())],
        "{holder:?}"
    );
    servers[0].command::<()>(&["DEL", &key]);
    assert!(!lock.is_locked().await.unwrap());
}

/// Returns a builder whose lease is short enough to wait for.
fn short(servers: &[Server]) -> LockerBuilder {
    over(servers, ms(1_400))
}

/// Redis' page on distributed locks: "the number of lock reacquisition attempts should be limited".
#[tokio::test]
async fn max_hold_limits_how_long_a_lock_is_extended_on_every_server() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let (locks, others) = (
        short(&servers).connect().await.unwrap(),
        short(&servers).connect().await.unwrap(),
    );
    let key = key();
    let start = Instant::now();
    let guard = locks.get(&key).max_hold(ms(2_900)).lock().await.unwrap();
    let waiter = others.get(&key);
    let waiting = tokio::spawn(async move {
        waiter
            .lock()
            .await
            .map(|guard| (Instant::now(), guard))
            .unwrap()
    });
    servers[0].kill();
    while start.elapsed() < ms(2_700) {
        assert_eq!(
            guard.state(),
            HoldState::Safe,
            "two of three servers renew it for two leases"
        );
        assert!(guard.remaining() <= ms(2_900).saturating_sub(start.elapsed()) + ms(100));
        tokio::time::sleep(ms(20)).await;
    }
    guard.lost().cancelled().await;
    let told = Instant::now();
    assert!(
        told - start >= ms(2_850) && within(told - start, ms(3_500)),
        "{:?}",
        told - start
    );
    assert_eq!(guard.loss(), Some(Loss::MaxHold));
    // The holder does nothing. The lock is no longer renewed, and ends with its lease.
    let (entered, other) = waiting.await.unwrap();
    assert!(
        entered > told && within(entered - told, ms(2_400)),
        "{:?} after the token",
        entered - told
    );
    assert!(
        guard.unlock().await.is_err(),
        "and the late release does not affect the next holder"
    );
    other.check().unwrap();
    other.unlock().await.unwrap();
    eventually(ms(500), "released", || {
        !servers[1..].iter().any(|server| server.exists(&key))
    })
    .await;
}

#[test]
fn the_example_survives_the_loss_of_a_server() {
    let tests = std::env::current_exe().unwrap();
    let example = tests.ancestors().nth(2).unwrap().join("examples/redlock");
    if !example.exists() {
        eprintln!(
            "not run: `cargo test` builds the examples, `cargo test --test redlock` does not"
        );
        return;
    }
    let run = Command::new(example).output().unwrap();
    let said = String::from_utf8(run.stdout).unwrap();
    assert!(
        run.status.success(),
        "{said}\n{}",
        String::from_utf8_lossy(&run.stderr)
    );
    for line in [
        "on A and B and C; its holder: Safe",
        "on A and C; its holder: Safe",
        "on A and B; its holder: Safe",
    ] {
        assert!(said.contains(line), "{said}");
    }
    assert!(
        said.contains("another program gets the lock: false") && said.ends_with('\n'),
        "{said}"
    );
}
