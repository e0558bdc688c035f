//! Locks on a master that Sentinels name: failovers under load, what they lose, and deposed masters
//! that come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::common::failovers::{Failover, judge, under_load};
use crate::common::machine::within;
use crate::common::record::Visit;
use crate::common::rights;
use crate::common::sentinel::Sentinels;
use crate::common::{Server, eventually, key, ms};
use lockhound::{Error, HoldState, Locker, Loss};

/// The Sentinels first promote the replica and then announce it. What the old master grants in
/// between is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ordered_failover_keeps_what_was_replicated_and_wakes() {
    println!("{}", under_load(Failover::Ordered, ms(2_000)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_master_was_killed_lockers_follow_the_new_one() {
    println!("{}", under_load(Failover::Killed, ms(2_000)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lockers_follow_the_new_master_and_ignore_the_thawed_old_one() {
    println!("{}", under_load(Failover::Stopped, ms(4_000)).await);
}

/// In these records the failover lasts from 100 to 200.
#[test]
fn the_record_check_accepts_only_overlaps_a_failover_explains() {
    let judged = |visits: [(u64, u64, u64); 2]| {
        let visit = |(fence, entered, left): (u64, u64, u64)| {
            let (key, who) = ("k".to_owned(), fence.to_string());
            Visit {
                key,
                who,
                fence,
                entered,
                left,
            }
        };
        judge(&mut visits.map(visit), 100, 200)
    };
    assert_eq!(judged([(1, 10, 20), (2, 21, 300)]), Ok(0));
    assert_eq!(judged([(1, 90, 150), (2, 140, 300)]), Ok(1));
    assert_eq!(judged([(2, 110, 120), (1, 130, 140)]), Ok(0));
    for [first, second] in [
        [(1, 10, 21), (2, 20, 30)],
        [(1, 90, 150), (2, 99, 300)],
        [(1, 90, 201), (2, 140, 300)],
        [(1, 201, 220), (2, 210, 230)],
        [(2, 10, 20), (1, 30, 40)],
        [(2, 110, 120), (1, 201, 220)],
    ] {
        assert!(judged([first, second]).is_err(), "{first:?} {second:?}");
    }
}

/// The replica has one lock and misses two, one of which has to be acknowledged. The Sentinels are
/// frozen while the replica is promoted, so that the holders learn nothing.
#[tokio::test]
async fn only_unreplicated_locks_may_have_two_holders_until_renewed() {
    let group = Sentinels::start();
    // The lease is longer than the Sentinels take to notice.
    let lease = ms(15_000);
    let locks = group.builder(lease).connect().await.unwrap();
    let careful = group
        .builder(lease)
        .replica_acks(1, ms(200))
        .connect()
        .await
        .unwrap();
    let others = Locker::builder()
        .node(group.replica.url())
        .lease(lease)
        .connect()
        .await
        .unwrap();
    let (kept, lost, never) = (key(), key(), key());
    let held = locks.get(&kept).lock().await.unwrap();
    eventually(ms(10_000), "replicated", || group.replica.exists(&kept)).await;
    // From here on the replica receives nothing, and cannot ask for it again.
    group.replica.stop();
    group
        .master
        .command::<()>(&["CLIENT", "KILL", "TYPE", "replica"]);
    let unreplicated = locks.get(&lost).lock().await.unwrap();
    let fence = unreplicated.fence();
    let Error::Unavailable { nodes, .. } = careful
        .get(&never)
        .try_lock()
        .await
        .expect_err("nobody acknowledges")
    else {
        panic!("the replica does not answer")
    };
    assert!(
        nodes[0]
            .reason()
            .contains("acknowledged by 0 of 1 replicas"),
        "{}",
        nodes[0]
    );
    group.sentinels.iter().for_each(Server::stop);
    let killed = Instant::now();
    group.master.kill();
    group.replica.go_on();
    group.replica.command::<()>(&["REPLICAOF", "NO", "ONE"]);

    assert!(
        group.replica.exists(&kept)
            && !group.replica.exists(&lost)
            && !group.replica.exists(&never)
    );
    let second = crate::common::soon(lease, others.get(&lost).lock())
        .await
        .expect("it is free there")
        .unwrap();
    assert!(
        unreplicated.check().is_ok() && second.check().is_ok(),
        "two hold it"
    );
    assert!(second.fence() > fence, "the resource refuses the first one");
    let acknowledged = others.get(&never).lock().await.unwrap();
    assert!(others.get(&kept).try_lock().await.unwrap().is_none());

    group.sentinels.iter().for_each(Server::go_on);
    group.failed_over().await;
    let (failed_over, took) = (Instant::now(), killed.elapsed());
    crate::common::soon(lease, unreplicated.lost().cancelled())
        .await
        .expect("lost");
    // Sentinels that were frozen for two seconds, as may be on a busy machine, do nothing for half
    // a minute.
    if took < lease / 2 {
        assert_eq!(unreplicated.loss(), Some(Loss::NotOwner));
        assert!(
            within(failed_over.elapsed(), lease / 3 + ms(2_000)),
            "{:?}",
            failed_over.elapsed()
        );
        assert_eq!(held.state(), HoldState::Safe);
    }
    assert!(second.check().is_ok() && acknowledged.check().is_ok());
    let released = held.unlock().await;
    assert!(released.is_ok() || took >= lease / 2, "{released:?}");
    // Another holder has the lost lock; the first guard's release does not affect it.
    drop(unreplicated);
    second.unlock().await.unwrap();
    acknowledged.unlock().await.unwrap();
}

/// Lockers put their callers into the queue of the new master when they look.
#[tokio::test]
async fn callers_of_a_fair_lock_follow_the_new_master() {
    let group = Sentinels::start();
    let lockers = [
        group.builder(ms(6_000)).connect().await.unwrap(),
        group.builder(ms(6_000)).connect().await.unwrap(),
    ];
    let (key, inside) = (key(), Arc::new(AtomicUsize::new(0)));
    let queue = format!("redisson_lock_queue:{{{key}}}");
    let held = lockers[0].fair(&*key).lock().await.unwrap();
    let callers: Vec<_> = (0..6)
        .map(|n| {
            let (lock, inside) = (lockers[n % 2].fair(&*key), Arc::clone(&inside));
            tokio::spawn(async move {
                let guard = lock.lock().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.unlock().await
            })
        })
        .collect();
    let places = || group.replica.command::<usize>(&["LLEN", &queue]);
    eventually(ms(10_000), "the replica has the queue", || places() == 6).await;
    group.master.stop();
    group.failed_over().await;
    held.check().unwrap();
    held.unlock().await.unwrap();
    for caller in callers {
        let left = crate::common::soon(ms(30_000), caller).await;
        left.expect("it is served").unwrap().unwrap();
    }
    assert_eq!(places(), 0);
    group.master.go_on();
}

/// A deposed master grants every lock until the Sentinels turn it into a replica, which takes
/// seconds.
#[tokio::test]
async fn a_deposed_master_that_comes_back_is_not_asked() {
    let group = Sentinels::start();
    let lease = ms(30_000);
    let (idle, busy) = (
        group.builder(lease).connect().await.unwrap(),
        group.builder(lease).connect().await.unwrap(),
    );
    let key = key();
    group.master.stop();
    group.failed_over().await;
    // The idle locker has not noticed anything: its next heartbeat comes later.
    let guard = busy.get(&key).lock().await.unwrap();
    assert!(group.replica.exists(&key));
    group.master.go_on();
    assert!(
        idle.get(&key).try_lock().await.unwrap().is_none(),
        "it asks the new master"
    );
    guard.unlock().await.unwrap();
    let other = idle.get(&key).lock().await.unwrap();
    assert!(group.replica.exists(&key));
    other.unlock().await.unwrap();
}

/// The operating system accepts connections for a frozen server. A locker that was connecting to it
/// when it was deposed is connected when it goes on.
#[tokio::test]
async fn nothing_is_sent_to_a_master_deposed_while_connecting() {
    let group = Sentinels::start();
    // The Sentinels notice later than the locker, which goes on connecting for longer than they
    // take.
    for sentinel in &group.sentinels {
        sentinel.command::<()>(&[
            "SENTINEL",
            "SET",
            crate::common::sentinel::NAME,
            "down-after-milliseconds",
            "4000",
        ]);
    }
    let builder = || {
        Locker::builder()
            .node(group.url())
            .lease(ms(30_000))
            .connect_timeout(ms(60_000))
    };
    let hasty = builder().command_timeout(ms(200)).connect().await.unwrap();
    let key = key();
    group.master.stop();
    // It gives up the silent connections, and makes new ones to the server that the Sentinels name.
    let begun = Instant::now();
    while begun.elapsed() < ms(2_500) {
        drop(hasty.get(crate::common::key()).try_lock().await);
    }
    group.failed_over().await;
    let guard = builder()
        .connect()
        .await
        .unwrap()
        .get(&key)
        .lock()
        .await
        .unwrap();
    group.master.go_on();
    let begun = Instant::now();
    // The Sentinels turn it into a replica after ten seconds.
    while begun.elapsed() < ms(3_000) {
        if let Ok(second) = hasty.get(&key).try_lock().await {
            assert!(second.is_none(), "the old master granted it");
        }
        // As a replica it has what the new master has.
        assert!(
            !group.master.exists(&key) || !group.master.is_master(),
            "the old master was asked for the lock"
        );
    }
    guard.unlock().await.unwrap();
    hasty
        .get(&key)
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

/// Gives a user these rights and no others.
fn permit(server: &Server, user: &str, rules: &[&str]) {
    server.command::<()>(&[&["ACL", "SETUSER", user, "reset", "on", ">pw"], rules].concat());
}

#[tokio::test]
async fn the_documented_rights_suffice_for_sentinels_and_master() {
    let group = Sentinels::start();
    let (of_lock, watching) = (rights::of("Always"), rights::of("Sentinels"));
    assert!(
        of_lock.len() > 20 && watching.len() == 9,
        "{of_lock:?} {watching:?}"
    );
    let url =
        group.url().replace("://", "://app:pw@") + "&sentinelUsername=watcher&sentinelPassword=pw";
    let connect = || {
        Locker::builder()
            .node(&url)
            .lease(ms(15_000))
            .connect_timeout(ms(3_000))
            .connect()
    };
    for server in [&group.master, &group.replica] {
        permit(server, "app", &of_lock);
    }
    group
        .sentinels
        .iter()
        .for_each(|sentinel| permit(sentinel, "watcher", &watching));
    let locks = connect().await.unwrap();
    let told = |sentinel: &Server| {
        let clients: String = sentinel.command(&["CLIENT", "LIST"]);
        clients
            .lines()
            .any(|line| line.contains("user=watcher") && line.contains(" sub=1 "))
    };
    eventually(ms(20_000), "it listens to the Sentinels", || {
        group.sentinels.iter().all(told)
    })
    .await;
    let guard = locks.get("app:1").lock().await.unwrap();
    eventually(ms(10_000), "replicated", || group.replica.exists("app:1")).await;
    group.sentinels[0].command::<()>(&["SENTINEL", "FAILOVER", crate::common::sentinel::NAME]);
    group.failed_over().await;
    guard.unlock().await.unwrap();
    // The locker is told in this moment. The old master stays a master for ten more seconds.
    let mut followed = false;
    while !followed {
        let guard = locks.get("app:2").lock().await.unwrap();
        assert!(
            group.master.is_master(),
            "the locker followed only when the old master was a replica"
        );
        followed = group.replica.exists("app:2");
        guard.unlock().await.unwrap();
    }
    // The client library also calls `client|id` and `client|setname`.
    for sentinel in &group.sentinels {
        assert!(sentinel.command::<Vec<redis::Value>>(&["ACL", "LOG"]).len() <= 2);
    }
}

#[tokio::test]
async fn errors_about_sentinel_addresses_say_what_is_wrong() {
    let group = Sentinels::start();
    let refusal = |url: String| async move {
        let builder = Locker::builder().node(url).connect_timeout(ms(2_000));
        builder.connect().await.unwrap_err().to_string()
    };
    let port = group.sentinels[0].port();
    let message = refusal(format!("redis-sentinel://127.0.0.1:{port}")).await;
    assert!(message.contains("sentinelServiceName"), "{message}");
    let message = refusal(format!(
        "redis-sentinel://127.0.0.1:{port}?sentinelServiceName=other"
    ))
    .await;
    assert!(
        message.contains("Sentinel") || message.contains("sentinel"),
        "{message}"
    );
    let message = refusal(format!("redis://127.0.0.1:{port}")).await;
    assert!(message.contains("redis-sentinel://"), "{message}");
    let alone = Server::start();
    let message = refusal(format!(
        "redis-sentinel://127.0.0.1:{}?sentinelServiceName=locks",
        alone.port()
    ))
    .await;
    assert!(message.contains("unknown command 'SENTINEL'"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn connect_and_lock_wait_for_sentinels_and_master_to_start() {
    let group = Sentinels::start();
    let builder = || group.builder(ms(60_000)).connect_timeout(ms(60_000));
    let (patient, hasty, lazy) = (builder(), builder().connect_timeout(ms(300)), builder());
    let servers = || {
        group
            .sentinels
            .iter()
            .chain([&group.master, &group.replica])
    };
    servers().for_each(Server::kill);
    let Error::Unavailable { nodes, .. } = hasty.connect().await.unwrap_err() else {
        panic!("they are not there")
    };
    assert!(nodes[0].reason().contains("entinel"), "{}", nodes[0]);
    let lazy = lazy.connect_lazy().unwrap();
    let lock = lazy.get(key());
    let waiting = tokio::spawn(async move { lock.lock().await });
    let connecting = tokio::spawn(patient.connect());
    tokio::time::sleep(ms(1_000)).await;
    assert!(!connecting.is_finished() && !waiting.is_finished());
    servers().for_each(Server::restart);
    let patient = crate::common::soon(ms(60_000), connecting)
        .await
        .expect("it connects")
        .unwrap()
        .unwrap();
    patient
        .get(key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    let guard = crate::common::soon(ms(60_000), waiting)
        .await
        .expect("it gets in")
        .unwrap()
        .unwrap();
    assert!(
        patient.get(guard.key()).try_lock().await.unwrap().is_none(),
        "both have one master"
    );
    guard.unlock().await.unwrap();
}
