//! Replicas that acknowledge: a lock that too few of them have is not granted, and a granted one
//! survives its server.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::machine::in_time;
use crate::common::proxy::{Mode, Proxy};
use crate::common::several::settled;
use crate::common::{Server, builder, eventually, key, ms};
use lockhound::{Error, HoldState, Locker, LockerBuilder, Loss, ServerErrorKind};

/// Starts a server with this many replicas, all in step.
async fn with_replicas(count: usize) -> (Server, Vec<Server>) {
    let server = Server::start();
    let replicas: Vec<_> = (0..count).map(|_| server.replica()).collect();
    eventually(ms(5_000), "the replicas are in step", || {
        server.has_replicas(count)
    })
    .await;
    (server, replicas)
}

async fn locker(server: &Server, count: u32, timeout: Duration) -> Locker {
    builder(&server.url(), ms(10_000))
        .replica_acks(count, timeout)
        .connect()
        .await
        .unwrap()
}

/// Returns the reason that `Unavailable` gives for each server.
fn reasons(error: &Error) -> Vec<String> {
    let Error::Unavailable { nodes, .. } = error else {
        panic!("{error}")
    };
    nodes.iter().map(|node| node.reason().to_owned()).collect()
}

#[tokio::test]
async fn a_lock_that_too_few_replicas_have_is_undone() {
    let ((server, replicas), key) = (with_replicas(2).await, key());
    let (one, two) = (
        locker(&server, 1, ms(200)).await,
        locker(&server, 2, ms(200)).await,
    );
    replicas[1].stop();
    let guard = one
        .get(&key)
        .try_lock()
        .await
        .unwrap()
        .expect("one replica acknowledges");
    assert!(replicas[0].exists(&key));
    assert!(
        two.get(&key).try_lock().await.unwrap().is_none(),
        "the answer *held* needs no acknowledgement"
    );
    guard.unlock().await.unwrap();
    let error = two
        .get(&key)
        .try_lock()
        .await
        .expect_err("the other one does not");
    assert_eq!(
        reasons(&error),
        ["acknowledged by 1 of 2 replicas within 200ms"]
    );
    eventually(ms(200), "undone", || !server.exists(&key)).await;
    replicas[1].go_on();
    two.get(&key)
        .try_lock()
        .await
        .unwrap()
        .expect("both acknowledge")
        .unlock()
        .await
        .unwrap();
}

#[tokio::test]
async fn permits_that_too_few_replicas_have_are_given_back() {
    let ((server, replicas), key) = (with_replicas(1).await, key());
    let locks = locker(&server, 1, ms(200)).await;
    let semaphore = locks.permits(&*key).capacity(3);
    let one = semaphore.acquire().await.unwrap();
    let records = format!("{{{key}}}:timeout");
    assert!(replicas[0].exists(&records));
    replicas[0].stop();
    let error = semaphore
        .try_acquire_many(2)
        .await
        .expect_err("nobody acknowledges");
    assert_eq!(
        reasons(&error),
        ["acknowledged by 0 of 1 replicas within 200ms"]
    );
    let free = || server.command::<i64>(&["GET", &key]);
    eventually(ms(5_000), "given back", || free() == 2).await;
    let set = semaphore.set_capacity(3).await;
    assert!(matches!(set, Err(Error::Unavailable { .. })), "{set:?}");
    one.check().unwrap();
    replicas[0].go_on();
    let two = semaphore.acquire_many(2).await.unwrap();
    assert_eq!(replicas[0].command::<i64>(&["ZCARD", &records]), 3);
    two.release().await.unwrap();
    one.release().await.unwrap();
    assert_eq!(free(), 3);
}

/// It takes its place, since nobody knows whether it has the lock.
#[tokio::test]
async fn a_caller_of_a_fair_lock_waits_for_replicas_that_are_away() {
    let ((server, replicas), key) = (with_replicas(1).await, key());
    let locks = locker(&server, 1, ms(200)).await;
    let lock = locks.fair(&*key);
    let held = lock.lock().await.unwrap();
    let queue = format!("redisson_lock_queue:{{{key}}}");
    let waiting = {
        let lock = lock.clone();
        tokio::spawn(async move { lock.lock().await })
    };
    eventually(ms(5_000), "its place is on the replica", || {
        replicas[0].exists(&queue)
    })
    .await;
    replicas[0].stop();
    held.unlock().await.unwrap();
    let error = lock.try_lock().await;
    assert!(!matches!(error, Ok(Some(_))), "nobody acknowledges");
    assert!(!waiting.is_finished());
    replicas[0].go_on();
    let guard = crate::common::soon(ms(10_000), waiting).await;
    let guard = guard.expect("it gets in").unwrap().unwrap();
    assert!(replicas[0].exists(&key));
    guard.unlock().await.unwrap();
    eventually(ms(5_000), "nothing is left", || {
        !server.exists(&key) && !server.exists(&queue)
    })
    .await;
}

/// A count that the replica does not have is sent again, and counts once.
#[tokio::test]
async fn a_latch_counts_once_whatever_replicas_acknowledge() {
    let ((server, replicas), key) = (with_replicas(1).await, key());
    let latch = locker(&server, 1, ms(200)).await.latch(&*key);
    assert!(latch.try_set(2).await.unwrap());
    assert!(replicas[0].exists(&key));
    replicas[0].stop();
    let counts = {
        let latch = latch.clone();
        tokio::spawn(async move { latch.count_down().await })
    };
    let scripts = server.calls("evalsha");
    eventually(ms(5_000), "it is sent again", || {
        server.calls("evalsha") >= scripts + 2
    })
    .await;
    assert!(!counts.is_finished(), "nobody acknowledges");
    replicas[0].go_on();
    let left = crate::common::soon(ms(10_000), counts).await;
    assert_eq!(left.expect("it counts").unwrap().unwrap(), 1);
    assert_eq!(replicas[0].command::<String>(&["GET", &key]), "1");
}

#[tokio::test]
async fn lock_rides_out_replicas_that_are_away() {
    let ((server, replicas), key) = (with_replicas(2).await, key());
    let locks = locker(&server, 1, ms(100)).await;
    replicas.iter().for_each(Server::stop);
    let error = locks
        .get(&key)
        .try_lock()
        .await
        .expect_err("nobody acknowledges");
    assert_eq!(
        reasons(&error),
        ["acknowledged by 0 of 1 replicas within 100ms"]
    );
    let lock = locks.get(&key);
    let waiting = tokio::spawn(async move { lock.lock().await });
    tokio::time::sleep(ms(700)).await;
    assert!(!waiting.is_finished());
    replicas.iter().for_each(Server::go_on);
    let guard = crate::common::soon(ms(1_000), waiting)
        .await
        .expect("it gets in")
        .unwrap()
        .unwrap();
    assert!(replicas.iter().any(|replica| replica.exists(&key)));
    guard.unlock().await.unwrap();
    eventually(ms(500), "released", || !server.exists(&key)).await;
}

#[tokio::test]
async fn a_renewal_that_too_few_replicas_acknowledge_fails() {
    let (server, replicas) = with_replicas(1).await;
    let lease = ms(1_500);
    let locks = builder(&server.url(), lease)
        .replica_acks(1, ms(70))
        .connect()
        .await
        .unwrap();
    let (rescued, lost) = (key(), key());
    let guards = [
        locks.get(&rescued).lock().await.unwrap(),
        locks.get(&lost).lock().await.unwrap(),
    ];
    let states = || guards.each_ref().map(|guard| guard.state());
    tokio::time::sleep(lease).await;
    assert_eq!(states(), [HoldState::Safe; 2], "renewed, and acknowledged");
    replicas[0].stop();
    eventually(lease, "in jeopardy", || {
        states() == [HoldState::Jeopardy; 2]
    })
    .await;
    replicas[0].go_on();
    eventually(lease / 2, "safe again", || states() == [HoldState::Safe; 2]).await;
    let [rescued_guard, lost_guard] = guards;
    rescued_guard.unlock().await.unwrap();
    let stopped = Instant::now();
    replicas[0].stop();
    lost_guard.lost().cancelled().await;
    let told = stopped.elapsed();
    assert!(
        in_time(told, lease),
        "{told:?}: the last renewal was before that"
    );
    assert_eq!(lost_guard.state(), HoldState::Lost(Loss::RenewalFailed));
    assert!(server.exists(&lost), "the server itself kept renewing it");
    drop(lost_guard);
    eventually(ms(1_000), "the lost lock is released", || {
        !server.exists(&lost)
    })
    .await;
}

#[tokio::test]
async fn a_lock_that_is_gone_is_lost_whatever_replicas_acknowledge() {
    let ((server, replicas), key) = (with_replicas(1).await, key());
    let locks = builder(&server.url(), ms(1_500))
        .replica_acks(1, ms(70))
        .connect()
        .await
        .unwrap();
    let guard = locks.get(&key).lock().await.unwrap();
    replicas[0].stop();
    server.command::<()>(&["DEL", &key]);
    crate::common::soon(ms(700), guard.lost().cancelled())
        .await
        .expect("lost by the next renewal");
    assert_eq!(guard.state(), HoldState::Lost(Loss::NotOwner));
}

/// In each round six tasks lock one key after the other until the server is killed. Every lock that
/// was granted is on the replica, which takes the server's place.
#[tokio::test(flavor = "multi_thread")]
async fn every_granted_lock_survives_fifty_failovers_to_the_replica() {
    let (mut server, mut replicas) = with_replicas(1).await;
    let (mut lost, mut granted) = (0, 0);
    for round in 0..50 {
        let replica = replicas.pop().unwrap();
        let locks = locker(&server, 1, ms(500)).await;
        let held = Arc::<Mutex<Vec<String>>>::default();
        let (over, mut tasks) = (Arc::new(AtomicBool::new(false)), Vec::new());
        for _ in 0..6 {
            let (locks, held, over) = (locks.clone(), Arc::clone(&held), Arc::clone(&over));
            tasks.push(tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    let key = key();
                    let Ok(Some(guard)) = locks.get(&key).try_lock().await else {
                        return;
                    };
                    held.lock().unwrap().push(key);
                    // Forgotten, so that it is not released.
                    std::mem::forget(guard);
                }
            }));
        }
        eventually(ms(2_000), "some are granted", || {
            held.lock().unwrap().len() > 2 + round % 9
        })
        .await;
        server.kill();
        over.store(true, Ordering::Relaxed);
        replica.command::<()>(&["REPLICAOF", "NO", "ONE"]);
        for task in tasks {
            task.abort();
        }
        let held = held.lock().unwrap().clone();
        granted += held.len();
        lost += held.iter().filter(|key| !replica.exists(key)).count();
        server.restart();
        server.command::<()>(&["REPLICAOF", "127.0.0.1", &replica.port().to_string()]);
        eventually(ms(5_000), "they have changed places", || {
            replica.has_replicas(1)
        })
        .await;
        replicas.push(std::mem::replace(&mut server, replica));
    }
    assert_eq!(lost, 0, "of {granted}");
}

/// The same without acknowledgement: the lock is lost, and its holder learns of it.
#[tokio::test]
async fn an_unacknowledged_lock_may_be_lost_and_its_holder_is_told() {
    let (server, key) = (Server::start(), key());
    let between = Proxy::start(server.port());
    let replica = Server::start_with(&["--replicaof", "127.0.0.1", &between.port().to_string()]);
    eventually(ms(5_000), "in step", || server.has_replicas(1)).await;
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url(), ms(3_000)).connect().await.unwrap();
    // A stopped replica would read the lock from its socket when it goes on.
    between.set(Mode::BlackHole);
    let guard = locks.get(&key).lock().await.unwrap();
    server.kill();
    replica.command::<()>(&["REPLICAOF", "NO", "ONE"]);
    assert!(!replica.exists(&key), "lost");
    proxy.lead_to(replica.port());
    proxy.cut();
    let told = Instant::now();
    guard.lost().cancelled().await;
    assert_eq!(guard.state(), HoldState::Lost(Loss::NotOwner));
    assert!(
        crate::common::machine::within(told.elapsed(), ms(2_000)),
        "{:?}: a reconnect renews everything",
        told.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_wait_covers_many_locks() {
    let (server, _replicas) = with_replicas(1).await;
    let locks = locker(&server, 1, ms(500)).await;
    server.command::<()>(&["CONFIG", "RESETSTAT"]);
    let tasks = (0..64).map(|_| {
        let lock = locks.get(key());
        tokio::spawn(async move {
            for _ in 0..10 {
                lock.lock().await.unwrap().unlock().await.unwrap();
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let waits = server.calls("wait");
    assert!((1..160).contains(&waits), "{waits} for 640 locks");
}

#[tokio::test]
async fn without_the_option_there_is_no_wait_and_no_fourth_connection() {
    let (server, _replicas) = with_replicas(1).await;
    let names = |locks: &Locker| {
        let list: String = server.command(&["CLIENT", "LIST"]);
        let id = locks.id().to_string();
        let mut names: Vec<_> = list
            .lines()
            .filter(|line| line.contains(&id))
            .map(|line| {
                line.split("lockhound:")
                    .nth(1)
                    .unwrap()
                    .split(':')
                    .next()
                    .unwrap()
                    .to_owned()
            })
            .collect();
        names.sort();
        names
    };
    server.command::<()>(&["CONFIG", "RESETSTAT"]);
    let plain = builder(&server.url(), ms(1_000)).connect().await.unwrap();
    let guard = plain.get(key()).lock().await.unwrap();
    tokio::time::sleep(ms(700)).await;
    guard.unlock().await.unwrap();
    assert_eq!(names(&plain), ["commands", "renewals", "subscriber"]);
    assert_eq!(server.calls("wait"), 0);
    let asking = locker(&server, 1, ms(500)).await;
    assert_eq!(
        names(&asking),
        ["acknowledged", "commands", "renewals", "subscriber"]
    );
    asking
        .get(key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    assert_eq!(
        server.calls("wait"),
        2,
        "one by connect, and one for the lock"
    );
}

/// An address leads to one server and then to another, as in failovers. The replica of the first
/// one has stopped, so every granted lock has to be on the second. A WAIT there succeeds, but says
/// nothing of an acquire on the first.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_after_a_reconnect_acknowledges_no_earlier_acquire() {
    let ((silent, stopped), (server, _replicas)) = (with_replicas(1).await, with_replicas(1).await);
    let proxy = Proxy::start(silent.port());
    let mut lockers = Vec::new();
    for _ in 0..8 {
        lockers.push(
            builder(&proxy.url(), ms(10_000))
                .replica_acks(1, ms(3))
                .connect()
                .await
                .unwrap(),
        );
    }
    stopped[0].stop();
    let (until, latest) = (Instant::now() + ms(2_000), Instant::now() + ms(30_000));
    let grants = Arc::new(AtomicUsize::new(0));
    let tasks = (0..32).map(|task| {
        let (locks, grants) = (lockers[task % lockers.len()].clone(), Arc::clone(&grants));
        tokio::spawn(async move {
            let mut granted = Vec::new();
            while Instant::now() < until
                || (grants.load(Ordering::Relaxed) <= 100 && Instant::now() < latest)
            {
                let key = key();
                if let Ok(guard) = locks.get(&key).try_lock().await {
                    granted.push(key);
                    grants.fetch_add(1, Ordering::Relaxed);
                    std::mem::forget(guard);
                }
            }
            granted
        })
    });
    let tasks: Vec<_> = tasks.collect();
    for to in [&server, &silent].into_iter().cycle() {
        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..40_000))).await;
        proxy.lead_to(to.port());
        proxy.cut();
        if tasks.iter().all(tokio::task::JoinHandle::is_finished) {
            break;
        }
    }
    let mut granted = Vec::new();
    for task in tasks {
        granted.extend(task.await.unwrap());
    }
    let there: HashSet<String> = server.command(&["KEYS", "test:*"]);
    let elsewhere = granted.iter().filter(|key| !there.contains(*key)).count();
    assert_eq!(elsewhere, 0, "of {}", granted.len());
    assert!(granted.len() > 100, "{}", granted.len());
}

/// The acquire is held back on its way. Its undo follows it on the same connection, and cannot
/// overtake it.
#[tokio::test]
async fn an_undo_is_executed_after_its_acquire() {
    let ((server, _replicas), key) = (with_replicas(1).await, key());
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url(), ms(10_000))
        .replica_acks(1, ms(100))
        .connect()
        .await
        .unwrap();
    // The server learns the scripts.
    locks
        .get(&key)
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    let fence = crate::common::marks::mark(&key);
    server.command::<()>(&["DEL", &fence]);
    proxy.set(Mode::Hold(fence.clone().into_bytes()));
    let error = locks
        .get(&key)
        .try_lock()
        .await
        .expect_err("nothing answers");
    assert_eq!(reasons(&error).len(), 1);
    // On another connection the undo would have been executed by then.
    tokio::time::sleep(ms(100)).await;
    assert!(!server.exists(&fence), "the acquire is held back");
    proxy.set(Mode::Pass);
    eventually(ms(500), "executed", || server.exists(&fence)).await;
    eventually(ms(500), "and undone, before the undo is repeated", || {
        !server.exists(&key)
    })
    .await;
    locks
        .get(&key)
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

/// One WAIT after the other blocks the connection for acquires.
#[tokio::test]
async fn a_wait_delays_an_undo_at_most_once_and_a_release_never() {
    let ((server, replicas), held, refused) = (with_replicas(1).await, key(), key());
    let locks = builder(&server.url(), ms(10_000))
        .replica_acks(1, ms(400))
        .connect()
        .await
        .unwrap();
    let guard = locks.get(&held).lock().await.unwrap();
    replicas[0].stop();
    let busy: Vec<_> = (0..4)
        .map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move { while locks.get(key()).try_lock().await.is_err() {} })
        })
        .collect();
    let error = locks
        .get(&refused)
        .try_lock()
        .await
        .expect_err("nobody acknowledges");
    assert_eq!(
        reasons(&error),
        ["acknowledged by 0 of 1 replicas within 400ms"]
    );
    let start = Instant::now();
    guard.unlock().await.unwrap();
    assert!(
        crate::common::machine::within(start.elapsed(), ms(200)),
        "released after {:?}",
        start.elapsed()
    );
    eventually(ms(600), "undone", || !server.exists(&refused)).await;
    busy.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Starts this many servers with a replica each, and returns them with a builder over them.
async fn quorum(count: usize, lease: Duration) -> (Vec<(Server, Server)>, LockerBuilder) {
    let mut pairs = Vec::new();
    let mut builder = Locker::builder()
        .lease(lease)
        .restart_quarantine(Duration::ZERO);
    for _ in 0..count {
        let (server, mut replicas) = with_replicas(1).await;
        builder = builder.node(server.url());
        pairs.push((server, replicas.remove(0)));
    }
    (pairs, builder)
}

#[tokio::test]
async fn over_several_servers_a_vote_counts_once_replicas_acknowledge() {
    let (pairs, builder) = quorum(3, ms(10_000)).await;
    let (locks, key) = (
        builder.replica_acks(1, ms(600)).connect().await.unwrap(),
        key(),
    );
    // The servers learn the scripts: an EVAL after a NOSCRIPT would come behind the WAIT, and after
    // the release.
    locks
        .get(crate::common::key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    settled(&locks).await;
    pairs[0].1.stop();
    let start = Instant::now();
    let guard = locks.get(&key).lock().await.unwrap();
    assert!(
        crate::common::machine::within(start.elapsed(), ms(500)),
        "{:?}: it does not wait for the first",
        start.elapsed()
    );
    assert!(pairs[1].1.exists(&key) && pairs[2].1.exists(&key));
    guard.unlock().await.unwrap();
    pairs[2].1.stop();
    let error = locks.get(&key).try_lock().await.expect_err("one of three");
    assert_eq!(
        reasons(&error),
        ["acknowledged by 0 of 1 replicas within 600ms"; 2]
    );
    eventually(ms(500), "undone", || {
        pairs.iter().all(|(server, _)| !server.exists(&key))
    })
    .await;
    pairs[2].1.go_on();
    locks
        .get(&key)
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

/// A server that forgot its votes is asked for them again. These commands wait behind WAITs for a
/// replica that has stopped, while the releases travel on another connection.
#[tokio::test]
async fn a_vote_acquired_again_behind_a_wait_is_released_too() {
    let (pairs, builder) = quorum(3, ms(3_000)).await;
    let locks = builder
        .command_timeout(ms(300))
        .replica_acks(1, ms(250))
        .connect()
        .await
        .unwrap();
    let mut guards = Vec::new();
    for _ in 0..20 {
        guards.push(locks.get(key()).lock().await.unwrap());
    }
    let keys: Vec<String> = guards.iter().map(|guard| guard.key().to_string()).collect();
    let (forgetful, replica) = &pairs[0];
    eventually(ms(500), "on all", || {
        keys.iter().all(|key| forgetful.exists(key))
    })
    .await;
    replica.stop();
    forgetful.command::<()>(&["FLUSHALL"]);
    // A third of the lease after the grants they are renewed, and then acquired there again. A WAIT
    // is under way all the time.
    let busy = {
        let locks = locks.clone();
        tokio::spawn(async move { while locks.get(key()).try_lock().await.is_ok() {} })
    };
    eventually(ms(2_800), "acquired again", || {
        keys.iter().any(|key| forgetful.exists(key))
    })
    .await;
    for guard in guards {
        guard.unlock().await.unwrap();
        tokio::time::sleep(ms(fastrand::u64(0..30))).await;
    }
    busy.abort();
    // Two command timeouts and a WAIT.
    let left = || {
        keys.iter()
            .filter(|key| pairs.iter().any(|(server, _)| server.exists(key)))
            .count()
    };
    eventually(ms(900), "released", || left() == 0).await;
    tokio::time::sleep(ms(300)).await;
    assert_eq!(left(), 0, "no late acquire is left");
}

#[tokio::test]
async fn options_that_contradict_each_other_name_both_values() {
    let server = Server::start();
    let refusal = async |timeout| {
        let builder = builder(&server.url(), ms(10_000))
            .command_timeout(ms(500))
            .replica_acks(2, timeout);
        builder.connect().await.expect_err("refused").to_string()
    };
    let error = refusal(ms(500)).await;
    assert!(
        error.contains("replica_acks: 500ms") && error.contains("command_timeout = 500ms"),
        "{error}"
    );
    let error = refusal(Duration::ZERO).await;
    assert!(
        error.contains("0ns") && error.contains("2 replica(s)"),
        "{error}"
    );
}

#[tokio::test]
async fn connect_reports_a_user_without_the_right_to_wait() {
    let server = Server::start_with(&["--user", "half", "on", ">pw", "~*", "&*", "+@all", "-wait"]);
    let url = format!("redis://half:pw@127.0.0.1:{}", server.port());
    let error = builder(&url, ms(10_000))
        .replica_acks(1, ms(50))
        .connect()
        .await
        .expect_err("refused");
    assert!(
        matches!(
            error,
            Error::Server {
                kind: ServerErrorKind::NoPermission,
                ..
            }
        ),
        "{error}"
    );
    builder(&url, ms(10_000)).connect().await.unwrap();
}

/// The limit of WAIT when clocks differ: the replica compares its own clock with the end of a lease
/// by its master's.
#[tokio::test]
async fn a_replica_whose_clock_is_ahead_frees_an_acked_lock_early() {
    let master = Server::start();
    let of = ["--replicaof", "127.0.0.1", &master.port().to_string()];
    let Some(replica) = Server::start_with_clock(5_000, &of) else {
        return;
    };
    eventually(ms(10_000), "the replica is in step", || {
        master.has_replicas(1)
    })
    .await;
    let (locks, key) = (
        builder(&master.url(), ms(4_000))
            .replica_acks(1, ms(200))
            .connect()
            .await
            .unwrap(),
        key(),
    );
    let guard = locks.get(&key).lock().await.unwrap();
    assert!(master.exists(&key) && guard.check().is_ok());
    assert!(!replica.exists(&key), "on the replica the lease is over");
    replica.set_clock(0);
    guard.unlock().await.unwrap();
}

/// The guide does not list the right to PING for it.
#[tokio::test]
async fn acknowledgement_by_replicas_needs_no_right_to_ping() {
    let (server, _replicas) = with_replicas(1).await;
    server.command::<()>(&[
        "ACL", "SETUSER", "half", "on", ">pw", "~*", "&*", "+@all", "-ping",
    ]);
    let url = format!("redis://half:pw@127.0.0.1:{}", server.port());
    let locks = builder(&url, ms(10_000))
        .replica_acks(1, ms(500))
        .connect()
        .await
        .unwrap();
    let guard = locks.get(key()).try_lock().await.unwrap().expect("free");
    guard.unlock().await.unwrap();
}
