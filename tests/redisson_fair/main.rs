//! Redisson's fair locks on a JVM together with ours, on one server. tests/foreign/redisson has the
//! program of the JVM.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

use std::time::{Duration, Instant};

use common::both_sides::{both_sides, both_sides_in_a_cluster};
use common::jvm::{Asked, Client, Jvm};
use common::{Server, eventually, key, locker_with, ms, soon};
use lockhound::{Error, Guard, Lock, Locker, Owner};
use tokio::task::JoinHandle;

/// A lease so long that no waiter looks by itself within ten seconds.
const LONG: Duration = Duration::from_secs(60);
/// By then a message has woken the waiter.
const WOKEN: Duration = Duration::from_secs(5);

fn queue(server: &Server, key: &str) -> Vec<String> {
    server.command(&[
        "LRANGE",
        &format!("redisson_lock_queue:{{{key}}}"),
        "0",
        "-1",
    ])
}

async fn placed(server: &Server, key: &str, number: usize) {
    eventually(WOKEN * 2, "it has a place", || {
        queue(server, key).len() == number
    })
    .await;
}

/// Waits until somebody hears that this place is next: a JVM, and ours beside JVMs.
async fn listens(server: &Server, key: &str, at: usize) {
    let ticket = queue(server, key)[at].clone();
    let channel = format!("redisson_lock__channel:{{{key}}}:{ticket}");
    let listens = |how| {
        let (_, number): (String, i64) = server.command(&["PUBSUB", how, &channel]);
        number == 1
    };
    eventually(WOKEN, "it listens", || {
        listens("NUMSUB") || listens("SHARDNUMSUB")
    })
    .await;
    // It asks once more behind its subscription.
    tokio::time::sleep(ms(200)).await;
}

fn wait_for(lock: &Lock) -> JoinHandle<Result<Guard, Error>> {
    let lock = lock.clone();
    tokio::spawn(async move { lock.lock().await })
}

async fn granted(waiting: JoinHandle<Result<Guard, Error>>) -> Guard {
    soon(WOKEN, waiting).await.expect("told").unwrap().unwrap()
}

async fn done(asked: Asked) -> String {
    soon(WOKEN, asked)
        .await
        .expect("told")
        .unwrap()
        .said
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn both_sides_are_served_in_one_order() {
    if let Some((server, locks, redisson)) = both_sides(LONG).await {
        one_order(&server, &locks, &redisson).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_sides_are_served_in_one_order_in_a_cluster() {
    if let Some((server, locks, redisson)) = both_sides_in_a_cluster(LONG).await {
        one_order(&server, &locks, &redisson).await;
    }
}

async fn one_order(server: &Server, locks: &Locker, redisson: &Client<'_>) {
    let key = key();
    let here = locks.fair(&*key);
    let threads = [0; 3].map(|_| redisson.lock_of("fair", &key));
    let ask = |at: usize, verb: &str, rest: &str| threads[at].ask(verb, rest);
    let held = here.lock().await.unwrap();
    let first = ask(0, "lock", "");
    placed(server, &key, 1).await;
    let second = wait_for(&here);
    placed(server, &key, 2).await;
    let third = wait_for(&here);
    placed(server, &key, 3).await;
    let fourth = ask(1, "lock", "");
    placed(server, &key, 4).await;
    let fifth = wait_for(&here);
    placed(server, &key, 5).await;
    for at in [0, 1, 2, 3] {
        listens(server, &key, at).await;
    }
    // Nobody passes them.
    let other = here.clone().owned_by(Owner::new());
    assert!(other.try_lock().await.unwrap().is_none());
    assert_eq!(done(ask(2, "try", "")).await, "false");

    held.unlock().await.unwrap();
    done(first).await;
    assert!(!second.is_finished() && here.is_locked().await.unwrap());
    done(ask(0, "unlock", "")).await;
    let second = granted(second).await;
    second.unlock().await.unwrap();
    let third = granted(third).await;
    assert!(!fifth.is_finished());
    third.unlock().await.unwrap();
    done(fourth).await;
    done(ask(1, "unlock", "")).await;
    granted(fifth).await.unlock().await.unwrap();
    assert!(queue(server, &key).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn those_that_give_up_are_passed_on_both_sides() {
    let Some((server, locks, redisson)) = both_sides(LONG).await else {
        return;
    };
    let key = key();
    let here = locks.fair(&*key);
    let threads = [0; 2].map(|_| redisson.lock_of("fair", &key));
    let ask = |at: usize, verb: &str, rest: &str| threads[at].ask(verb, rest);
    let held = here.lock().await.unwrap();
    let goes = wait_for(&here);
    placed(&server, &key, 1).await;
    let times_out = ask(0, "try", "1500");
    placed(&server, &key, 2).await;
    let stays = ask(1, "lock", "");
    placed(&server, &key, 3).await;
    listens(&server, &key, 2).await;
    goes.abort();
    placed(&server, &key, 2).await;
    assert_eq!(done(times_out).await, "false");
    placed(&server, &key, 1).await;
    held.unlock().await.unwrap();
    done(stays).await;
    let waiting = wait_for(&here);
    placed(&server, &key, 1).await;
    listens(&server, &key, 0).await;
    done(ask(1, "unlock", "")).await;
    granted(waiting).await.unlock().await.unwrap();
}

/// A killed JVM that was next is passed after two looks: Redisson's clients would wait for five
/// minutes.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_jvm_is_passed() {
    let (Some(jvm), server, key) = (Jvm::start(), Server::start(), key()) else {
        return;
    };
    let lease = ms(6_000);
    let locks = locker_with(&server, lease).await;
    let redisson = jvm.client(&server, lease).await;
    let here = locks.fair(&*key);
    let held = here.lock().await.unwrap();
    let dies = redisson.lock_of("fair", &key);
    let _dies = dies.ask("lock", "");
    placed(&server, &key, 1).await;
    let waiting = wait_for(&here);
    placed(&server, &key, 2).await;
    jvm.kill();
    let begins = Instant::now();
    held.unlock().await.unwrap();
    let guard = granted(waiting).await;
    assert!(begins.elapsed() >= lease / 6, "{:?}", begins.elapsed());
    guard.unlock().await.unwrap();
    assert!(queue(&server, &key).is_empty());
}

/// A process of ours that is next and does not come, with JVMs behind it, and one of ours.
#[tokio::test(flavor = "multi_thread")]
async fn jvms_go_on_behind_one_of_ours_that_does_not_come() {
    let Some((server, locks, redisson)) = both_sides(ms(6_000)).await else {
        return;
    };
    let key = key();
    let held = locks.fair(&*key).lock().await.unwrap();
    let dead = "00000000-0000-0000-0000-000000000000:7:1:ticket";
    let _: i64 = server.command(&["RPUSH", &format!("redisson_lock_queue:{{{key}}}"), dead]);
    let _: i64 = server.command(&[
        "ZADD",
        &format!("redisson_lock_timeout:{{{key}}}"),
        "99999999999999",
        dead,
    ]);
    let there = redisson.lock_of("fair", &key);
    let asked = there.ask("lock", "");
    placed(&server, &key, 2).await;
    let waiting = wait_for(&locks.fair(&*key));
    placed(&server, &key, 3).await;
    held.unlock().await.unwrap();
    done(asked).await;
    there.unlock().await.unwrap();
    granted(waiting).await.unlock().await.unwrap();
}

/// Whoever visits adds up under the lock, and both sides come to an end.
#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_of_both_sides_excludes_each_other() {
    let Some((server, locks, redisson)) = both_sides(LONG).await else {
        return;
    };
    let (key, counter) = (key(), format!("{}:counter", key()));
    let threads = [0; 4].map(|_| redisson.lock_of("fair", &key));
    let visit = format!("{counter}:record {counter} jvm 120 1");
    let jvm = threads.each_ref().map(|thread| thread.ask("visit", &visit));
    let mut ours = Vec::new();
    for _ in 0..4 {
        let (lock, counter, url) = (locks.fair(&*key), counter.clone(), server.url());
        ours.push(tokio::spawn(async move {
            let client = redis::Client::open(url).unwrap();
            let mut redis = client.get_connection().unwrap();
            loop {
                let guard = lock.lock().await.unwrap();
                let get = redis::cmd("GET")
                    .arg(&counter)
                    .query::<Option<i64>>(&mut redis);
                let before = get.unwrap().unwrap_or(0);
                if before < 120 {
                    redis::cmd("SET")
                        .arg(&counter)
                        .arg(before + 1)
                        .exec(&mut redis)
                        .unwrap();
                }
                guard.unlock().await.unwrap();
                if before >= 120 {
                    return;
                }
            }
        }));
    }
    for task in ours {
        soon(WOKEN * 6, task)
            .await
            .expect("nobody starves")
            .unwrap();
    }
    for asked in jvm {
        soon(WOKEN * 6, asked)
            .await
            .expect("nobody starves")
            .unwrap()
            .said
            .unwrap();
    }
    assert_eq!(server.command::<i64>(&["GET", &counter]), 120);
    assert!(queue(&server, &key).is_empty());
}
