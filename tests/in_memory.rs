//! Servers in memory, and what can happen to them: the contract suite has what a lock promises on them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::{Duration, Instant};

use common::{eventually, key, ms, soon};
use lockhound::testing::Server;
use lockhound::{Error, Locker, LockerBuilder, Loss, Owner};

/// A builder over these servers, whose votes count at once.
fn over(servers: &[Server], lease: Duration) -> LockerBuilder {
    let builder = servers.iter().fold(Locker::builder(), LockerBuilder::memory);
    builder.lease(lease).command_timeout(ms(100)).restart_quarantine(Duration::ZERO)
}

fn servers(count: usize) -> Vec<Server> {
    (0..count).map(|_| Server::new()).collect()
}

#[tokio::test]
async fn a_server_is_shared_by_the_lockers_that_name_it_and_by_no_others() {
    let (servers, key) = (servers(2), key());
    let one = over(&servers[..1], ms(10_000)).connect().await.unwrap();
    let same = over(&servers[..1], ms(10_000)).connect().await.unwrap();
    let other = over(&servers[1..], ms(10_000)).connect().await.unwrap();
    let guard = one.get(&key).lock().await.unwrap();
    assert!(same.get(&key).try_lock().await.unwrap().is_none());
    assert!(other.get(&key).try_lock().await.unwrap().is_some());
    assert!(servers[0].holder(&key).unwrap().contains(&one.id().to_string()));
    guard.unlock().await.unwrap();
    assert_eq!(servers[0].holder(&key), None);
}

#[tokio::test]
async fn a_lock_that_is_deleted_is_lost_at_the_next_renewal() {
    let (servers, key) = (servers(1), key());
    let locks = over(&servers, ms(600)).connect().await.unwrap();
    let guard = locks.get(&key).lock().await.unwrap();
    servers[0].delete(&key);
    soon(ms(500), guard.lost().cancelled()).await.expect("told");
    assert_eq!(guard.loss(), Some(Loss::NotOwner));
}

#[tokio::test]
async fn a_server_that_was_started_anew_has_forgotten_its_locks_and_serves_on() {
    let (servers, key) = (servers(1), key());
    let locks = over(&servers, ms(600)).connect().await.unwrap();
    let waits = over(&servers, ms(600)).connect().await.unwrap();
    let guard = locks.get(&key).lock().await.unwrap();
    let lock = waits.get(&key);
    let waiting = tokio::spawn(async move { lock.lock().await });
    tokio::time::sleep(ms(50)).await;
    servers[0].restart();
    soon(ms(600), guard.lost().cancelled()).await.expect("told");
    // The reconnect wakes whoever waits for a message: none comes.
    let next = soon(ms(1_000), waiting).await.expect("woken").unwrap().unwrap();
    let lock = locks.get(&key);
    let waiting = tokio::spawn(async move { lock.lock().await });
    tokio::time::sleep(ms(50)).await;
    next.unlock().await.unwrap();
    soon(ms(1_000), waiting).await.expect("subscribed anew").unwrap().unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn what_a_stopped_server_was_sent_is_undone_when_it_goes_on() {
    let servers = servers(1);
    let locks = over(&servers, ms(10_000)).connect().await.unwrap();
    servers[0].stop();
    let names: Vec<String> = (0..20).map(|_| key()).collect();
    let tries = names.iter().map(|name| locks.get(name).owned_by(Owner::new()));
    let began = Instant::now();
    for answer in futures_util::future::join_all(tries.map(|lock| async move { lock.try_lock().await })).await {
        assert!(matches!(answer, Err(Error::Unavailable { .. })), "{answer:?}");
    }
    assert!(began.elapsed() < ms(2_000), "{:?}", began.elapsed());
    // While it is known to be silent nothing is taken.
    assert!(matches!(locks.get(key()).try_lock().await, Err(Error::Unavailable { .. })));
    servers[0].go_on();
    eventually(ms(5_000), "undone", || locks.stats().pending_undos == 0).await;
    assert!(names.iter().all(|name| servers[0].holder(name).is_none()));
    locks.get(&names[0]).lock().await.unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn what_was_taken_by_an_answer_that_is_lost_is_given_back() {
    let (servers, key) = (servers(1), key());
    let locks = over(&servers, ms(10_000)).connect().await.unwrap();
    servers[0].lose_replies(1);
    let began = Instant::now();
    let answer = locks.get(&key).try_lock().await;
    assert!(matches!(answer, Err(Error::Unavailable { .. })) && began.elapsed() >= ms(100), "{answer:?}");
    eventually(ms(2_000), "given back", || servers[0].holder(&key).is_none()).await;
    servers[0].lose_replies(3);
    let guard = soon(ms(5_000), locks.get(&key).lock()).await.expect("tried again").unwrap();
    assert!(servers[0].holder(&key).unwrap().contains(&locks.id().to_string()));
    guard.unlock().await.unwrap();
    assert_eq!(servers[0].holder(&key), None);
}

#[tokio::test]
async fn a_lease_ends_by_the_server_s_clock() {
    let (servers, key) = (servers(1), key());
    let locks = over(&servers, ms(10_000)).connect().await.unwrap();
    let guard = locks.get(&key).fixed_lease(ms(10_000)).lock().await.unwrap();
    servers[0].set_clock_offset(9_000);
    assert!(servers[0].holder(&key).is_some());
    servers[0].set_clock_offset(11_000);
    assert_eq!(servers[0].holder(&key), None);
    drop(guard);
}

/// Waits until this locker has the votes of all servers: who begins anew waits for the quarantine.
async fn all_vote(servers: &[Server], locks: &Locker) {
    let vote = async {
        loop {
            let guard = locks.get(key()).lock().await.unwrap();
            if servers.iter().all(|server| server.holder(guard.key().as_str()).is_some()) {
                return;
            }
            tokio::time::sleep(ms(20)).await;
        }
    };
    soon(ms(20_000), vote).await.expect("they vote once they have waited");
}

#[tokio::test]
async fn a_minority_of_servers_may_stop_and_forget() {
    let (servers, key) = (servers(3), key());
    let connect = || over(&servers, ms(2_000)).restart_quarantine(ms(2_000)).connect();
    let (one, two) = (connect().await.unwrap(), connect().await.unwrap());
    all_vote(&servers, &one).await;
    all_vote(&servers, &two).await;
    let guard = soon(ms(5_000), one.get(&key).lock()).await.expect("free").unwrap();
    // The third vote comes when the lock is held already.
    eventually(ms(2_000), "all have it", || servers.iter().all(|server| server.holder(&key).is_some())).await;
    servers[1].restart();
    for _ in 0..20 {
        let answer = two.get(&key).try_lock().await;
        assert!(!matches!(answer, Ok(Some(_))), "{answer:?}");
        tokio::time::sleep(ms(25)).await;
        guard.check().unwrap();
    }
    servers[2].stop();
    let answer = soon(ms(5_000), two.get(&key).try_lock()).await.expect("an answer");
    assert!(!matches!(answer, Ok(Some(_))), "{answer:?}");
    servers[2].go_on();
    drop(guard);
    soon(ms(20_000), two.get(&key).lock()).await.expect("free").unwrap().unlock().await.unwrap();
}

#[test]
fn a_thread_without_async_code_locks_by_the_machine_s_clock() {
    let (server, key) = (Server::new(), key());
    let locks = Locker::builder().memory(&server).lease(ms(600)).blocking_connect().unwrap();
    let guard = locks.get(&key).blocking_lock().unwrap();
    std::thread::sleep(ms(1_200));
    guard.check().expect("renewed meanwhile");
    guard.blocking_unlock().unwrap();
    assert_eq!(server.holder(&key), None);
    locks.blocking_close();
}

#[tokio::test]
async fn a_locker_that_lives_in_its_caller_s_runtime_is_not_closed_by_a_thread_that_waits() {
    let locks = over(&servers(1), ms(10_000)).connect().await.unwrap();
    let closing = locks.clone();
    let panicked = std::thread::spawn(move || closing.blocking_close()).join().unwrap_err();
    assert!(panicked.downcast_ref::<String>().unwrap().contains("use async calls"));
    locks.close().await;
}

#[tokio::test]
async fn what_a_server_in_memory_cannot_do_is_refused() {
    let server = Server::new();
    let builder = || Locker::builder().memory(&server).lease(ms(1_000));
    let refused = builder().replicas(1, ms(100)).connect().await.unwrap_err();
    assert!(matches!(refused, Error::Config(_)) && refused.to_string().contains("replicas"), "{refused}");
    let mixed = builder().node("redis://127.0.0.1:1").connect().await.unwrap_err();
    assert!(matches!(mixed, Error::Config(_)) && mixed.to_string().contains("one kind"), "{mixed}");
    server.stop();
    let silent = builder().connect_timeout(ms(100)).connect().await.unwrap_err();
    assert!(matches!(silent, Error::Unavailable { .. }), "{silent:?}");
    server.go_on();
    let twice = builder().memory(&server).memory(&Server::new()).connect().await.unwrap_err();
    assert!(twice.to_string().contains("is the same server"), "{twice}");
    assert!(format!("{:?}", builder()).contains("memory:"));
}
