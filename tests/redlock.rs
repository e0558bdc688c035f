//! Redisson's RedLock: an RLock on each of several independent servers, of which a majority decides. RedissonRedLock of n
//! locks takes n / 2 + 1 of them, and on each server it is what `getLock` writes there. And what Redlock asks for beyond a majority: a limit on how long a lock is extended.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::process::Command;
use std::time::Instant;

use common::machine::within;
use common::several::{hold_as_redisson, on, over, servers, settled};
use common::{Server, eventually, key, ms};
use lockhound::{HoldState, LockerBuilder, Loss};

#[tokio::test]
async fn each_server_has_what_get_lock_writes() {
    let (servers, key) = (servers(3), key());
    let locks = over(&servers, ms(30_000)).connect().await.unwrap();
    let guard = locks.get(&key).lock().await.unwrap();
    let nested = locks.get(&key).lock().await.unwrap();
    settled(&locks).await;
    let first = servers[0].fields(&key);
    for server in &servers {
        assert_eq!(server.command::<String>(&["TYPE", &key]), "hash");
        let fields = server.fields(&key);
        assert_eq!(fields, first, "the same owner everywhere");
        assert!(
            fields.len() == 1 && fields[0].0.starts_with(&locks.id().to_string()) && fields[0].1 == 2,
            "{fields:?}"
        );
        assert!(server.pttl(&key) > 29_000);
    }
    nested.unlock().await.unwrap();
    guard.unlock().await.unwrap();
    eventually(ms(500), "released everywhere", || on(&servers, &key) == 0).await;
}

#[tokio::test]
async fn a_redisson_holder_of_a_majority_excludes_us_and_is_waited_for() {
    let (servers, key) = (servers(5), key());
    let locks = over(&servers, ms(30_000)).connect().await.unwrap();
    servers[..3].iter().for_each(|server| hold_as_redisson(server, &key, 700));
    let start = Instant::now();
    assert!(locks.get(&key).try_lock().await.unwrap().is_none());
    let holder = locks.get(&key).holder().await.unwrap().expect("a majority has it");
    assert!(holder.owner().contains("5cb1f0b5"), "{holder:?}");
    let guard = locks.get(&key).lock().await.unwrap();
    let waited = start.elapsed();
    assert!(waited > ms(650) && within(waited, ms(1_500)), "until its lease is over, and not for a look: {waited:?}");
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn a_redisson_holder_of_a_minority_does_not_exclude_us_and_keeps_what_it_has() {
    let (servers, key) = (servers(5), key());
    let locks = over(&servers, ms(900)).connect().await.unwrap();
    servers[..2].iter().for_each(|server| hold_as_redisson(server, &key, 60_000));
    let theirs = servers[0].fields(&key);
    assert!(!locks.get(&key).is_locked().await.unwrap());
    let guard = locks.get(&key).try_lock().await.unwrap().expect("three of five are free");
    // Renewals find it gone there, and do not take what is another's.
    tokio::time::sleep(ms(1_300)).await;
    guard.check().unwrap();
    assert_eq!(servers[0].fields(&key), theirs);
    guard.unlock().await.unwrap();
    settled(&locks).await;
    assert_eq!(servers.iter().map(|server| server.exists(&key)).collect::<Vec<_>>(), [true, true, false, false, false]);
}

/// A locker's builder with a lease that is short enough to be waited for.
fn short(servers: &[Server]) -> LockerBuilder {
    over(servers, ms(1_400))
}

/// Redis' page on distributed locks: "the number of lock reacquisition attempts should be limited".
#[tokio::test]
async fn max_hold_limits_for_how_long_a_lock_is_extended_on_every_server() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let (locks, others) = (short(&servers).connect().await.unwrap(), short(&servers).connect().await.unwrap());
    let key = key();
    let start = Instant::now();
    let guard = locks.get(&key).max_hold(ms(2_900)).lock().await.unwrap();
    let waiter = others.get(&key);
    let waiting = tokio::spawn(async move { waiter.lock().await.map(|guard| (Instant::now(), guard)).unwrap() });
    servers[0].kill();
    while start.elapsed() < ms(2_700) {
        assert_eq!(guard.state(), HoldState::Safe, "two leases long it is extended, by two of three");
        assert!(guard.remaining() <= ms(2_900).saturating_sub(start.elapsed()) + ms(100));
        tokio::time::sleep(ms(20)).await;
    }
    guard.lost().cancelled().await;
    let told = Instant::now();
    assert!(told - start >= ms(2_850) && within(told - start, ms(3_500)), "{:?}", told - start);
    assert_eq!(guard.loss(), Some(Loss::MaxHold));
    // Its holder does nothing: nobody extends it any more, and it ends with its lease.
    let (entered, other) = waiting.await.unwrap();
    assert!(entered > told && within(entered - told, ms(2_400)), "{:?} after the token", entered - told);
    assert!(guard.unlock().await.is_err(), "and the late release hurts nobody");
    other.check().unwrap();
    other.unlock().await.unwrap();
    eventually(ms(500), "released", || !servers[1..].iter().any(|server| server.exists(&key))).await;
}

#[test]
fn the_example_survives_the_loss_of_a_server() {
    let tests = std::env::current_exe().unwrap();
    let example = tests.ancestors().nth(2).unwrap().join("examples/redlock");
    if !example.exists() {
        eprintln!("not run: `cargo test` builds the examples, `cargo test --test redlock` does not");
        return;
    }
    let run = Command::new(example).output().unwrap();
    let said = String::from_utf8(run.stdout).unwrap();
    assert!(run.status.success(), "{said}\n{}", String::from_utf8_lossy(&run.stderr));
    for line in ["on A and B and C; its holder: Safe", "on A and C; its holder: Safe", "on A and B; its holder: Safe"] {
        assert!(said.contains(line), "{said}");
    }
    assert!(said.contains("somebody else gets in: false") && said.ends_with('\n'), "{said}");
}
