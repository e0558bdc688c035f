//! Redisson's RedLock: an RLock on each of several independent servers, of which a majority decides. RedissonRedLock of n
//! locks takes n / 2 + 1 of them, and on each server it is what `getLock` writes there.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::Instant;

use common::several::{hold_as_redisson, on, over, servers, settled};
use common::{eventually, key, ms};

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
    assert!(waited > ms(650) && waited < ms(1_500), "until its lease is over, and not for a look: {waited:?}");
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
