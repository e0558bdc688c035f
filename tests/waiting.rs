//! Waiting: woken by the message, never by asking again and again, and never for ever.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::Instant;

use common::proxy::{Mode, Proxy};
use common::{Server, builder, eventually, key, locker, ms};
use lockhound::{Error, Loss, Owner};

/// Puts a foreign holder into a lock, as Redisson does.
fn take(server: &Server, key: &str, lease: &str) {
    server.command::<u64>(&["HSET", key, "8743c9c0-0795-4907-87fd-6c719a6b4586:1", "1"]);
    server.command::<bool>(&["PEXPIRE", key, lease]);
}

/// Releases it, as Redisson does.
fn give_back(server: &Server, key: &str) {
    server.command::<bool>(&["DEL", key]);
    server.command::<u64>(&["PUBLISH", &format!("redisson_lock__channel:{{{key}}}"), "0"]);
}

async fn listens(server: &Server) {
    eventually(ms(3_000), "the waiter listens", || {
        !server.command::<Vec<String>>(&["PUBSUB", "CHANNELS", "redisson_lock__channel:*"]).is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_message_of_a_foreign_holder_wakes_at_once() {
    let (server, key) = (Server::start(), key());
    take(&server, &key, "30000");
    let lock = locker(&server).await.get(&key);
    let waiting = tokio::spawn(async move { lock.lock().await.map(|_| Instant::now()) });
    listens(&server).await;
    tokio::time::sleep(ms(100)).await;
    let released = Instant::now();
    give_back(&server, &key);
    let entered = waiting.await.unwrap().unwrap();
    assert!(entered.duration_since(released) < ms(500), "the next look would have been after 5 s");
}

#[tokio::test]
async fn a_lease_that_runs_out_without_a_message_is_noticed() {
    let (server, key) = (Server::start(), key());
    take(&server, &key, "700");
    let start = Instant::now();
    let guard = locker(&server).await.get(&key).lock().await.unwrap();
    assert!(start.elapsed() < ms(1_500), "{:?}", start.elapsed());
    drop(guard);
}

#[tokio::test]
async fn a_release_between_subscribe_and_its_barrier_is_not_missed() {
    let (server, key) = (Server::start(), key());
    take(&server, &key, "30000");
    let proxy = Proxy::start(server.port());
    let lock = builder(&proxy.url(), ms(30_000)).connect().await.unwrap().get(&key);
    proxy.set(Mode::Hold(b"SUBSCRIBE".to_vec()));
    let waiting = tokio::spawn(async move { lock.lock().await.map(|_| Instant::now()) });
    eventually(ms(3_000), "SUBSCRIBE is on its way", || proxy.held() > 0).await;
    // Nobody is subscribed yet: this message reaches nobody.
    give_back(&server, &key);
    let released = Instant::now();
    proxy.set(Mode::Pass);
    let entered = waiting.await.unwrap().unwrap();
    assert!(entered.duration_since(released) < ms(1_000), "the next look would have been after 5 s");
}

#[tokio::test]
async fn a_release_while_the_subscriber_is_cut_off_is_not_missed() {
    let (server, key) = (Server::start(), key());
    take(&server, &key, "30000");
    let lock = locker(&server).await.get(&key);
    let waiting = tokio::spawn(async move { lock.lock().await.map(|_| Instant::now()) });
    listens(&server).await;
    // Both in one transaction: the message is published while no subscriber is there.
    let released = Instant::now();
    server.command::<u64>(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    give_back(&server, &key);
    let entered = waiting.await.unwrap().unwrap();
    assert!(entered.duration_since(released) < ms(1_500), "the next look would have been after 5 s");
}

#[tokio::test]
async fn a_thousand_local_waiters_cost_one_call_per_recheck() {
    let (server, key) = (Server::start(), key());
    take(&server, &key, "600000");
    // A look every 100 ms.
    let locks = builder(&server.url(), ms(600)).connect().await.unwrap();
    let waiters: Vec<_> = (0..1_000)
        .map(|_| {
            let lock = locks.get(&key).owned_by(Owner::new());
            tokio::spawn(async move { lock.lock().await })
        })
        .collect();
    listens(&server).await;
    tokio::time::sleep(ms(300)).await;
    server.command::<()>(&["CONFIG", "RESETSTAT"]);
    tokio::time::sleep(ms(2_000)).await;
    let calls = server.calls("evalsha");
    assert!((5..=20).contains(&calls), "{calls} calls in 20 intervals");
    assert_eq!(server.command::<Vec<String>>(&["PUBSUB", "CHANNELS"]).len(), 1);
    for waiter in waiters {
        waiter.abort();
    }
}

#[tokio::test]
async fn waiters_behind_a_local_holder_send_nothing() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let guard = locks.get(&key).lock().await.unwrap();
    let waiters: Vec<_> = (0..100)
        .map(|_| {
            let lock = locks.get(&key).owned_by(Owner::new());
            tokio::spawn(async move { lock.lock().await.unwrap().unlock().await })
        })
        .collect();
    tokio::time::sleep(ms(200)).await;
    assert!(locks.get(&key).owned_by(Owner::new()).try_lock().await.unwrap().is_none());
    server.command::<()>(&["CONFIG", "RESETSTAT"]);
    tokio::time::sleep(ms(800)).await;
    assert_eq!(server.calls("evalsha"), 0);
    guard.unlock().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap().unwrap();
    }
    assert!(!server.exists(&key));
}

#[tokio::test]
async fn try_lock_for_gives_up_in_time_and_leaves_nothing() {
    let (server, key) = (Server::start(), key());
    take(&server, &key, "30000");
    let lock = locker(&server).await.get(&key);
    let start = Instant::now();
    assert!(lock.try_lock_for(ms(300)).await.unwrap().is_none());
    assert!((ms(300)..ms(600)).contains(&start.elapsed()), "{:?}", start.elapsed());
    assert!(lock.try_lock_for(ms(0)).await.unwrap().is_none());
    assert!(lock.try_lock().await.unwrap().is_none());
    give_back(&server, &key);
    tokio::time::sleep(ms(200)).await;
    assert!(!server.exists(&key), "nobody waits any more");
    lock.try_lock_for(ms(300)).await.unwrap().expect("free").unlock().await.unwrap();
    eventually(ms(3_000), "the subscription lingers for about a second", || {
        server.command::<Vec<String>>(&["PUBSUB", "CHANNELS"]).is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_grant_that_is_not_polled_for_is_handed_on() {
    let (server, key) = (Server::start(), key());
    let locks = builder(&server.url(), ms(1_200)).connect().await.unwrap();
    let lock = locks.get(&key);
    let idle = lock.lock();
    tokio::pin!(idle);
    // No grant can come between the call and its first look.
    server.stop();
    assert!(futures_util::poll!(&mut idle).is_pending());
    server.go_on();
    // Nobody polls it. A sixth of the lease later somebody else gets in, and it stands in line again.
    let other = tokio::time::timeout(ms(1_000), lock.clone().owned_by(Owner::new()).lock()).await;
    let guard = other.expect("not held up").unwrap();
    assert!(futures_util::poll!(&mut idle).is_pending());
    guard.unlock().await.unwrap();
    idle.await.unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn all_waiters_end_together_when_an_outage_lasts() {
    let server = Server::start();
    // A look every second: those who only wait for a message are told by those who try.
    let lease = ms(6_000);
    let locks =
        builder(&server.url(), lease).command_timeout(ms(150)).outage_tolerance(ms(1_000)).connect().await.unwrap();
    let held = key();
    take(&server, &held, "600000");
    let mut waiters = Vec::new();
    for i in 0..20 {
        // One line behind a foreign holder, and many keys.
        let lock = if i < 10 { locks.get(&held).owned_by(Owner::new()) } else { locks.get(key()) };
        if i == 10 {
            listens(&server).await;
            server.stop();
        }
        waiters.push(tokio::spawn(async move { (lock.lock().await.expect_err("stopped"), Instant::now()) }));
    }
    let mut ends = Vec::new();
    for waiter in waiters {
        let (error, end) = waiter.await.unwrap();
        let Error::Unavailable { waited, nodes, .. } = &error else { panic!("{error}") };
        assert!(*waited >= ms(1_000), "{error}");
        assert!(error.to_string().contains(nodes[0].node()), "{error}");
        ends.push(end);
    }
    let spread = ends.iter().max().unwrap().duration_since(*ends.iter().min().unwrap());
    assert!(spread < ms(400), "{spread:?}");
    // A call after the clock ran out makes one round first.
    let start = Instant::now();
    let error = locks.get(key()).lock().await.expect_err("stopped");
    assert!(matches!(error, Error::Unavailable { .. }) && start.elapsed() < ms(700), "{:?}", start.elapsed());
    server.go_on();
    drop(tokio::time::timeout(ms(5_000), locks.get(key()).lock()).await.unwrap().unwrap());
}

#[tokio::test]
async fn a_short_outage_is_ridden_out() {
    let server = Server::start();
    let locks = builder(&server.url(), ms(3_000)).connect().await.unwrap();
    let key = key();
    server.kill();
    let lock = locks.get(&key);
    let waiting = tokio::spawn(async move { lock.lock().await });
    assert!(matches!(locks.get(&key).try_lock().await, Err(Error::Unavailable { .. })));
    let timed = locks.get(&key).try_lock_for(ms(700)).await;
    assert!(matches!(timed, Err(Error::Unavailable { .. })), "{timed:?}");
    server.restart();
    let guard = waiting.await.unwrap().unwrap();
    assert!(server.exists(&key));
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn closing_ends_waiters_and_holders() {
    let (server, key) = (Server::start(), key());
    let locks = builder(&server.url(), ms(2_000)).connect().await.unwrap();
    let guard = locks.get(&key).lock().await.unwrap();
    let lock = locks.get(&key);
    let waiting = tokio::spawn(async move { lock.lock().await });
    tokio::time::sleep(ms(100)).await;
    let closing = tokio::spawn({
        let locks = locks.clone();
        async move { locks.close().await }
    });
    guard.lost().cancelled().await;
    assert!(matches!(guard.check(), Err(Error::Lost(Loss::Closed))));
    assert!(matches!(waiting.await.unwrap(), Err(Error::Closed)));
    assert!(matches!(locks.get(&key).lock().await, Err(Error::Closed)));
    assert!(matches!(locks.get(&key).try_lock().await, Err(Error::Closed)));
    assert!(matches!(locks.get(&key).is_locked().await, Err(Error::Closed)));
    assert!(!closing.is_finished(), "it waits for the guard");
    let unlocked = guard.unlock().await;
    assert!(matches!(unlocked, Err(Error::Lost(Loss::Closed))), "{unlocked:?}");
    closing.await.unwrap();
    assert!(!server.exists(&key), "the key is released when its last guard goes");
    eventually(ms(1_000), "no connection is left", || {
        !server.command::<String>(&["CLIENT", "LIST"]).contains("lockhound")
    })
    .await;
}

/// Two futures of one task are granted together; one is polled and its guard goes, the other never is.
#[tokio::test]
async fn a_second_future_of_the_same_owner_that_is_not_polled_holds_nobody_up() {
    let (server, key) = (Server::start(), key());
    let lock = builder(&server.url(), ms(1_200)).connect().await.unwrap().get(&key);
    let mut polled = Box::pin(lock.lock());
    let mut idle = Box::pin(lock.lock());
    server.stop();
    assert!(futures_util::poll!(&mut polled).is_pending());
    assert!(futures_util::poll!(&mut idle).is_pending());
    server.go_on();
    polled.await.unwrap().unlock().await.unwrap();
    let other = tokio::time::timeout(ms(1_000), lock.clone().owned_by(Owner::new()).lock()).await;
    other.expect("not held up").unwrap().unlock().await.unwrap();
    idle.await.unwrap().unlock().await.unwrap();
    assert!(!server.exists(&key));
}

#[tokio::test]
async fn try_lock_for_does_not_take_silence_for_a_holder() {
    let server = Server::start();
    let locks = builder(&server.url(), ms(30_000)).connect().await.unwrap();
    server.stop();
    // The first round is under way for three seconds.
    let answer = locks.get(key()).try_lock_for(ms(300)).await;
    assert!(matches!(answer, Err(Error::Unavailable { .. })), "{answer:?}");
    server.go_on();
}

#[tokio::test]
async fn closing_gives_back_what_is_granted_meanwhile() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    for _ in 0..10 {
        let key = key();
        let locks = builder(&proxy.url(), ms(3_000)).connect().await.unwrap();
        locks.get(common::key()).lock().await.unwrap().unlock().await.unwrap();
        proxy.set(Mode::Delay(ms(30)));
        let (trying, waiting) = (locks.get(&key), locks.get(common::key()));
        let waited = waiting.key().to_string();
        let trying = tokio::spawn(async move { trying.try_lock().await });
        let waiting = tokio::spawn(async move { waiting.lock().await });
        eventually(ms(1_000), "both are granted", || server.exists(&key) && server.exists(&waited)).await;
        locks.close().await;
        assert!(trying.await.unwrap().is_err());
        assert!(waiting.await.unwrap().is_err());
        assert!(!server.exists(&key) && !server.exists(&waited));
        proxy.set(Mode::Pass);
    }
}

/// A grant that nobody took is lost: others are not kept out by it, and its owner gets in again.
#[tokio::test]
async fn a_grant_that_is_lost_before_it_is_polled_for_is_given_back() {
    let (server, key) = (Server::start(), key());
    let locks = builder(&server.url(), ms(30_000)).connect().await.unwrap();
    let lock = locks.get(&key);
    let mut idle = Box::pin(lock.lock());
    server.stop();
    assert!(futures_util::poll!(&mut idle).is_pending());
    server.go_on();
    eventually(ms(1_000), "granted", || server.exists(&key)).await;
    assert!(lock.force_unlock().await.unwrap());
    eventually(ms(1_000), "nothing of it stays", || locks.stats().holds == 0).await;
    // Another future of the same owner is not told of a loss that it has no guard of.
    lock.lock().await.unwrap().unlock().await.unwrap();
    idle.await.unwrap().unlock().await.unwrap();
    let mut idle = Box::pin(lock.lock());
    server.stop();
    assert!(futures_util::poll!(&mut idle).is_pending());
    server.go_on();
    eventually(ms(1_000), "granted", || server.exists(&key)).await;
    locks.close().await;
    assert!(!server.exists(&key), "closing gives back what nobody took");
    assert!(matches!(idle.await, Err(Error::Closed)));
}
