//! Who gets a fair lock when.

use std::sync::{Arc, Mutex};

use crate::common::proxy::{Mode, Proxy};
use crate::common::{Server, builder, eventually, key, locker, locker_with, ms, soon};
use crate::{SOON, granted, placed, queue, timeouts, wait_for};

#[tokio::test]
async fn callers_of_several_processes_are_served_in_order_of_arrival() {
    let (server, key) = (Server::start(), key());
    let mut lockers = Vec::new();
    for _ in 0..3 {
        lockers.push(locker(&server).await.fair(&*key));
    }
    let held = lockers[0].lock().await.unwrap();
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for n in 0..12 {
        let lock = lockers[n * 7 % 5 % 3].clone();
        let served = Arc::clone(&served);
        tasks.push(tokio::spawn(async move {
            let guard = lock.lock().await.unwrap();
            served.lock().unwrap().push((n, guard.fence().get()));
            guard.unlock().await.unwrap();
        }));
        // Each has its place before the next one comes.
        placed(&server, &key, n + 1).await;
    }
    held.unlock().await.unwrap();
    for task in tasks {
        // No look is needed.
        soon(SOON, task).await.expect("each is told").unwrap();
    }
    let served = served.lock().unwrap().clone();
    let order: Vec<_> = served.iter().map(|(n, _)| *n).collect();
    assert_eq!(order, (0..12).collect::<Vec<_>>());
    assert!(served.is_sorted_by_key(|(_, fence)| *fence), "{served:?}");
    assert_eq!((queue(&server, &key), timeouts(&server, &key)), (vec![], 0));
}

#[tokio::test]
async fn all_callers_of_a_crowd_get_the_lock_by_three_scripts_each() {
    let (server, key) = (Server::start(), key());
    let lockers = [locker(&server).await, locker(&server).await];
    let begins = server.calls("evalsha");
    let tasks: Vec<_> = (0..16)
        .map(|n| {
            let lock = lockers[n % 2].fair(&*key);
            tokio::spawn(async move {
                for _ in 0..20 {
                    lock.lock().await.unwrap().unlock().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        soon(SOON * 4, task).await.expect("nobody starves").unwrap();
    }
    let scripts = server.calls("evalsha") - begins;
    assert!(scripts <= 16 * 20 * 3 + 100, "{scripts}");
    assert!(queue(&server, &key).is_empty());
}

/// The first hundred of a locker are in the queue, and the others come into it one by one.
#[tokio::test]
async fn very_many_callers_of_one_locker_are_served_in_their_order() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let lock = locks.fair(&*key);
    let held = lock.lock().await.unwrap();
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for n in 0..130 {
        let (lock, served) = (lock.clone(), Arc::clone(&served));
        tasks.push(tokio::spawn(async move {
            let guard = lock.lock().await.unwrap();
            served.lock().unwrap().push(n);
            guard.unlock().await.unwrap();
        }));
        // It calls before the next one does.
        tokio::task::yield_now().await;
    }
    placed(&server, &key, 100).await;
    assert_eq!(locks.stats().waiters, 130);
    held.unlock().await.unwrap();
    for task in tasks {
        soon(SOON, task).await.expect("each is told").unwrap();
    }
    assert_eq!(*served.lock().unwrap(), (0..130).collect::<Vec<_>>());
    assert!(queue(&server, &key).is_empty());
}

#[tokio::test]
async fn an_attempt_passes_nobody_and_takes_no_place() {
    let (server, key) = (Server::start(), key());
    let [here, there] = [locker(&server).await, locker(&server).await];
    let [here, there] = [here.fair(&*key), there.fair(&*key)];
    let held = here.lock().await.unwrap();
    assert!(there.try_lock().await.unwrap().is_none());
    assert!(queue(&server, &key).is_empty());
    // Somebody is next, and does not come.
    let name = format!("redisson_lock_queue:{{{key}}}");
    let _: i64 = server.command(&["RPUSH", &name, "somebody:else"]);
    held.unlock().await.unwrap();
    assert!(there.try_lock().await.unwrap().is_none());
    assert_eq!(queue(&server, &key), ["somebody:else"]);
    let _: i64 = server.command(&["DEL", &name]);
    assert!(there.try_lock().await.unwrap().is_some());
}

/// A process of this crate that was killed, a JVM that was, and a ticket whose time was lost.
#[tokio::test]
async fn one_that_is_next_and_does_not_come_is_passed_after_two_looks() {
    let lease = ms(3_000);
    let server = Server::start();
    let locks = locker_with(&server, lease).await;
    for (ticket, has_time) in [
        ("00000000-0000-0000-0000-000000000000:7:1:ticket", true),
        ("00000000-0000-0000-0000-000000000000:7", true),
        ("00000000-0000-0000-0000-000000000000:8", false),
    ] {
        let key = key();
        let lock = locks.fair(&*key);
        let held = lock.lock().await.unwrap();
        let _: i64 = server.command(&["RPUSH", &format!("redisson_lock_queue:{{{key}}}"), ticket]);
        if has_time {
            let name = format!("redisson_lock_timeout:{{{key}}}");
            let _: i64 = server.command(&["ZADD", &name, "99999999999999", ticket]);
        }
        let waiting = wait_for(&lock);
        eventually(SOON, "it is behind", || queue(&server, &key).len() == 2).await;
        let begins = std::time::Instant::now();
        held.unlock().await.unwrap();
        let guard = granted(waiting).await;
        let took = begins.elapsed();
        assert!(took >= lease / 6, "not at once: {took:?}");
        assert!(queue(&server, &key).is_empty() && timeouts(&server, &key) == 0);
        guard.unlock().await.unwrap();
    }
}

/// A bug: each of its callers was waited for in its turn.
#[tokio::test]
async fn a_killed_process_is_passed_once_with_all_its_callers() {
    let (server, key) = (Server::start(), key());
    let locks = locker_with(&server, ms(3_000)).await;
    let held = locks.fair(&*key).lock().await.unwrap();
    let name = format!("redisson_lock_queue:{{{key}}}");
    let dead = [1, 2, 3].map(|n| format!("00000000-0000-0000-0000-000000000000:7:{n}:ticket"));
    let _: i64 = server.command(&["RPUSH", &name, &dead[0], &dead[1]]);
    let waiting = wait_for(&locks.fair(&*key));
    eventually(SOON, "it is behind", || queue(&server, &key).len() == 3).await;
    let _: i64 = server.command(&["RPUSH", &name, &dead[2], "a:jvm"]);
    held.unlock().await.unwrap();
    let guard = granted(waiting).await;
    assert_eq!(queue(&server, &key), ["a:jvm"]);
    guard.unlock().await.unwrap();
}

/// A bug: it was passed by the first ask behind an outage, in which it could not come.
#[tokio::test]
async fn one_that_is_next_has_its_time_after_an_outage() {
    let (server, key) = (Server::start(), key());
    let lease = ms(6_000);
    let locks = builder(&server.url(), lease)
        .command_timeout(ms(300))
        .outage_tolerance(ms(60_000))
        .connect()
        .await
        .unwrap();
    let held = locks.fair(&*key).lock().await.unwrap();
    let list = format!("redisson_lock_queue:{{{key}}}");
    let ticket = "00000000-0000-0000-0000-000000000000:7:1:ticket";
    let _: i64 = server.command(&["RPUSH", &list, ticket]);
    let waits = wait_for(&locks.fair(&*key));
    eventually(SOON, "it is behind", || queue(&server, &key).len() == 2).await;
    held.unlock().await.unwrap();
    // An ask finds the lock free.
    tokio::time::sleep(lease / 12).await;
    server.stop();
    // The next one has no answer.
    tokio::time::sleep(lease / 5).await;
    let begins = std::time::Instant::now();
    server.go_on();
    let guard = granted(waits).await;
    let took = begins.elapsed();
    assert!(took >= lease / 3, "two looks: {took:?}");
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn a_caller_keeps_its_place_in_an_outage_longer_than_a_lease() {
    let (server, key) = (Server::start(), key());
    let lease = ms(1_500);
    let proxy = Proxy::start(server.port());
    let cut_off = builder(&proxy.url(), lease)
        .outage_tolerance(ms(20_000))
        .connect()
        .await
        .unwrap();
    let there = locker_with(&server, lease).await;
    let held = there.fair(&*key).lock().await.unwrap();
    let first = wait_for(&cut_off.fair(&*key));
    placed(&server, &key, 1).await;
    let second = wait_for(&there.fair(&*key));
    placed(&server, &key, 2).await;
    let before = queue(&server, &key);
    proxy.set(Mode::Refuse);
    proxy.cut();
    tokio::time::sleep(lease * 2).await;
    assert_eq!(queue(&server, &key), before);
    proxy.set(Mode::Pass);
    eventually(SOON, "it is back", || cut_off.stats().nodes[0].up).await;
    held.unlock().await.unwrap();
    let first = soon(SOON * 2, first).await.expect("served").unwrap();
    assert!(!second.is_finished());
    first.unwrap().unlock().await.unwrap();
    drop(granted(second).await);
}

#[tokio::test]
async fn a_caller_keeps_its_place_for_longer_than_a_lease() {
    let (server, key) = (Server::start(), key());
    let lease = ms(1_500);
    let [here, there] = [
        locker_with(&server, lease).await,
        locker_with(&server, lease).await,
    ];
    let held = here.fair(&*key).lock().await.unwrap();
    let first = wait_for(&there.fair(&*key));
    placed(&server, &key, 1).await;
    let second = wait_for(&here.fair(&*key));
    placed(&server, &key, 2).await;
    let before = queue(&server, &key);
    tokio::time::sleep(lease * 2).await;
    assert_eq!(queue(&server, &key), before);
    held.unlock().await.unwrap();
    let first = granted(first).await;
    assert!(!second.is_finished());
    first.unlock().await.unwrap();
    drop(granted(second).await);
}

#[tokio::test]
async fn a_crashed_holder_is_followed_by_the_next_after_its_lease() {
    let (server, key) = (Server::start(), key());
    let [here, there] = [locker(&server).await, locker(&server).await];
    let forgotten = here.fair(&*key).fixed_lease(ms(1_000));
    std::mem::forget(forgotten.lock().await.unwrap());
    let waits = wait_for(&there.fair(&*key));
    drop(granted(waits).await);
}

#[tokio::test]
async fn an_owner_enters_again_whoever_waits() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let lock = locks.fair(&*key);
    let outer = lock.lock().await.unwrap();
    let waiting = wait_for(&lock);
    placed(&server, &key, 1).await;
    let inner = soon(SOON, lock.lock()).await.expect("it has it").unwrap();
    inner.unlock().await.unwrap();
    assert!(!waiting.is_finished());
    outer.unlock().await.unwrap();
    drop(granted(waiting).await);
}

/// Both wait, and both enter with the first grant: one place is left over.
#[tokio::test]
async fn callers_of_one_owner_enter_together_and_leave_no_place() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let held = locks.fair(&*key).lock().await.unwrap();
    let owner = lockhound::Owner::new();
    let both = [0, 1].map(|_| wait_for(&locks.fair(&*key).owned_by(owner.clone())));
    placed(&server, &key, 2).await;
    held.unlock().await.unwrap();
    for guard in both {
        drop(granted(guard).await);
    }
    placed(&server, &key, 0).await;
}

#[tokio::test]
async fn a_fair_lock_excludes_the_lock_of_its_name() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let fair = locks.fair(&*key).lock().await.unwrap();
    assert!(locks.get(&*key).try_lock().await.unwrap().is_none());
    assert!(locks.fair(&*key).is_locked().await.unwrap());
    let waiting = wait_for(&locker(&server).await.get(&*key));
    let channel = format!("redisson_lock__channel:{{{key}}}");
    eventually(SOON, "it listens", || {
        let (_, number): (String, u64) = server.command(&["PUBSUB", "NUMSUB", &channel]);
        number > 0
    })
    .await;
    fair.unlock().await.unwrap();
    let plain = granted(waiting).await;
    let waiting = wait_for(&locks.fair(&*key));
    placed(&server, &key, 1).await;
    plain.unlock().await.unwrap();
    drop(granted(waiting).await);
}

#[tokio::test]
async fn force_unlock_calls_the_next_one() {
    let (server, key) = (Server::start(), key());
    let [here, there] = [locker(&server).await, locker(&server).await];
    let held = here.fair(&*key).lock().await.unwrap();
    let waiting = wait_for(&there.fair(&*key));
    placed(&server, &key, 1).await;
    assert!(there.fair(&*key).force_unlock().await.unwrap());
    drop(granted(waiting).await);
    held.lost().cancelled().await;
}

#[tokio::test]
async fn a_lock_kept_for_its_min_hold_goes_to_the_next_one_after_that() {
    let (server, key) = (Server::start(), key());
    let locks = builder(&server.url(), ms(3_000)).connect().await.unwrap();
    let kept = locks.fair(&*key).min_hold(ms(1_000));
    let begins = std::time::Instant::now();
    let held = kept.lock().await.unwrap();
    let waiting = wait_for(&locks.fair(&*key));
    placed(&server, &key, 1).await;
    held.unlock().await.unwrap();
    drop(granted(waiting).await);
    assert!(begins.elapsed() >= ms(900));
}
