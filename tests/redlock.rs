//! What Redlock asks of its clients beyond a majority: a limit on how long a lock is extended, and the example.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::process::Command;
use std::time::{Duration, Instant};

use common::{Server, eventually, key, ms};
use lockhound::{HoldState, Locker, LockerBuilder, Loss};

fn over(servers: &[Server]) -> LockerBuilder {
    let nodes = servers.iter().fold(Locker::builder(), |builder, server| builder.node(server.url()));
    nodes.lease(ms(900)).restart_quarantine(Duration::ZERO)
}

/// Redis' page on distributed locks: "the number of lock reacquisition attempts should be limited".
#[tokio::test]
async fn max_hold_limits_for_how_long_a_lock_is_extended_on_every_server() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let (locks, others) = (over(&servers).connect().await.unwrap(), over(&servers).connect().await.unwrap());
    let key = key();
    let start = Instant::now();
    let guard = locks.get(&key).max_hold(ms(2_000)).lock().await.unwrap();
    let waiter = others.get(&key);
    let waiting = tokio::spawn(async move { waiter.lock().await.map(|guard| (Instant::now(), guard)).unwrap() });
    servers[0].kill();
    while start.elapsed() < ms(1_800) {
        assert_eq!(guard.state(), HoldState::Safe, "two leases long it is extended, by two of three");
        assert!(guard.remaining() <= ms(2_000) - start.elapsed() + ms(100));
        tokio::time::sleep(ms(20)).await;
    }
    guard.lost().cancelled().await;
    let told = Instant::now();
    assert!((ms(1_950)..ms(2_600)).contains(&(told - start)), "{:?}", told - start);
    assert_eq!(guard.loss(), Some(Loss::MaxHold));
    // Its holder does nothing: nobody extends it any more, and it ends with its lease.
    let (entered, other) = waiting.await.unwrap();
    assert!(entered > told && entered < told + ms(2_000), "{:?} after the token", entered - told);
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
