//! A minority of the servers costs nothing: not while it hangs, is slow or is down, not when it
//! comes back, and not at `close`.

use std::time::{Duration, Instant};

use crate::common::machine::within;
use crate::common::proxy::Mode;
use crate::common::several::{connections, on, over, servers, settled, through};
use crate::common::{Server, away, eventually, key, ms};
use lockhound::{Error, HoldState, Locker};

/// Returns how long a lock and its unlock take, with a re-entry and a query between: the median,
/// and the longest.
async fn pairs(locks: &Locker) -> (Duration, Duration) {
    let mut times = Vec::new();
    for _ in 0..21 {
        let start = Instant::now();
        let lock = locks.get(key());
        let guard = lock.lock().await.unwrap();
        lock.lock().await.unwrap().unlock().await.unwrap();
        assert!(lock.is_locked().await.unwrap());
        guard.check().unwrap();
        guard.unlock().await.unwrap();
        times.push(start.elapsed());
    }
    times.sort();
    (times[10], times[20])
}

#[tokio::test]
async fn two_of_five_servers_that_hang_are_slow_or_down_cost_nothing() {
    let servers = servers(5);
    let (proxies, builder) = through(&servers, ms(30_000));
    let locks = builder.connect().await.unwrap();
    pairs(&locks).await;
    let (usual, _) = pairs(&locks).await;
    let held = locks.get(key()).lock().await.unwrap();
    let name = held.key().to_string();
    // Any wait for the others would cost at least 20 ms per round trip.
    let fine = |what, (median, longest): (Duration, Duration)| {
        assert!(
            within(median, usual + ms(15)),
            "{what}: {median:?} instead of {usual:?}"
        );
        assert!(
            within(longest, ms(250)),
            "{what}: {longest:?}, and a command may take 3 s"
        );
    };
    servers[0].stop();
    servers[3].stop();
    fine("hanging", pairs(&locks).await);
    servers[0].go_on();
    servers[3].go_on();
    proxies[0].set(Mode::Delay(ms(500)));
    proxies[4].set(Mode::Delay(ms(500)));
    fine("slow", pairs(&locks).await);
    proxies[0].set(Mode::Pass);
    proxies[4].set(Mode::Pass);
    settled(&locks).await;
    servers[1].kill();
    servers[2].kill();
    fine("gone", pairs(&locks).await);
    assert_eq!(held.state(), HoldState::Safe);
    held.unlock().await.unwrap();
    assert!(!servers[0].exists(&name));
}

#[tokio::test]
async fn a_minority_that_hangs_or_is_down_affects_no_hold_or_waiter() {
    for tried in 1.. {
        let longest = longest_without_a_renewal().await;
        if longest < ms(750) || !crate::common::machine::again(tried) {
            return assert!(longest < ms(750), "not renewed for {longest:?}");
        }
    }
}

/// Keeps a hold and its waiter while one of five servers is down and another one hangs. Returns the
/// longest time without a renewal.
async fn longest_without_a_renewal() -> Duration {
    let (servers, key, lease) = (servers(5), key(), ms(1_500));
    let locks = over(&servers, lease).connect().await.unwrap();
    let other = over(&servers, lease).connect().await.unwrap();
    let guard = locks.get(&key).lock().await.unwrap();
    let lock = other.get(&key);
    let waiting = tokio::spawn(async move { lock.lock().await });
    servers[1].kill();
    servers[3].stop();
    let (start, mut longest) = (Instant::now(), Duration::ZERO);
    while start.elapsed() < ms(2_500) {
        longest = longest.max(lease - guard.remaining());
        if guard.check().is_err() {
            return lease;
        }
        tokio::time::sleep(ms(10)).await;
    }
    assert!(!waiting.is_finished());
    let released = Instant::now();
    guard.unlock().await.unwrap();
    waiting.await.unwrap().unwrap().unlock().await.unwrap();
    assert!(
        crate::common::machine::within(released.elapsed(), ms(300)),
        "{:?}",
        released.elapsed()
    );
    assert_eq!(
        (locks.stats().losses.total(), other.stats().losses.total()),
        (0, 0)
    );
    servers[3].go_on();
    longest
}

#[tokio::test]
async fn with_three_of_five_servers_away_the_error_gives_each_reason() {
    let (servers, key) = (servers(5), key());
    let locks = over(&servers, ms(1_500)).connect().await.unwrap();
    locks
        .get(&key)
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    servers[0].kill();
    servers[2].kill();
    servers[4].stop();
    away(&locks, 2).await;
    let result = locks.get(&key).try_lock().await;
    let Err(Error::Unavailable { nodes, .. }) = result else {
        panic!("{result:?}")
    };
    let about = |server: &Server| {
        nodes
            .iter()
            .find(|node| node.node().contains(&server.url()))
            .expect("its name")
    };
    assert_eq!(nodes.len(), 3, "{nodes:?}");
    for server in [&servers[0], &servers[2]] {
        assert!(
            about(server).reason().to_lowercase().contains("connect"),
            "{nodes:?}"
        );
    }
    assert!(
        about(&servers[4]).reason().contains("timed out"),
        "{nodes:?}"
    );
    let holder = locks.get(&key).holder().await;
    assert!(
        matches!(holder, Err(Error::Unavailable { ref nodes, .. }) if nodes.len() == 3),
        "{holder:?}"
    );
    // What the attempt took is undone.
    eventually(ms(500), "undone", || {
        !servers[1].exists(&key) && !servers[3].exists(&key)
    })
    .await;
    servers[4].go_on();
}

/// A bug: the five answers to one renewal counted as several renewals, a few microseconds apart.
#[tokio::test]
async fn a_renewal_on_five_servers_counts_once() {
    let servers = servers(5);
    let locks = over(&servers, ms(600)).connect().await.unwrap();
    let guard = locks.get(key()).lock().await.unwrap();
    tokio::time::sleep(ms(1_150)).await;
    guard.check().unwrap();
    let renewals = locks.stats().renewals;
    assert!((4..=6).contains(&renewals), "one every 200 ms: {renewals}");
}

/// A bug: undos for a server that is down were repeated for ever, with a task for each lock.
#[tokio::test]
async fn undos_do_not_pile_up_for_a_server_that_is_down() {
    let servers = servers(3);
    let locks = over(&servers, ms(30_000))
        .command_timeout(ms(100))
        .connect()
        .await
        .unwrap();
    pairs(&locks).await;
    servers[2].kill();
    // Commands that were in flight are unknown; their undo waits until the server is back.
    tokio::time::sleep(ms(100)).await;
    let before = locks.stats().pending;
    for _ in 0..100 {
        locks
            .get(key())
            .lock()
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
    }
    eventually(ms(1_000), "nothing is under way", || {
        locks.stats().pending <= before
    })
    .await;
    assert!(before <= 1, "{before}");
    tokio::time::sleep(ms(100)).await;
    servers[2].restart();
    eventually(ms(3_000), "connected", || connections(&servers[2]) == 3).await;
    tokio::time::sleep(ms(300)).await;
    let sent = servers[2].calls("evalsha") + servers[2].calls("eval");
    assert!(
        sent < 20,
        "{sent} releases of locks that the server never had"
    );
}

/// A bug: `close` waited for servers that hang.
#[tokio::test]
async fn closing_does_not_wait_for_a_minority() {
    let servers = servers(3);
    let locks = over(&servers, ms(30_000)).connect().await.unwrap();
    // The servers know the scripts.
    pairs(&locks).await;
    settled(&locks).await;
    let name = key();
    let guard = locks.get(&name).lock().await.unwrap();
    eventually(ms(500), "on all of them", || on(&servers, &name) == 3).await;
    servers[1].stop();
    locks
        .get(key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    let closing = locks.clone();
    let start = Instant::now();
    let closing = tokio::spawn(async move { closing.close().await });
    guard.lost().cancelled().await;
    drop(guard);
    closing.await.unwrap();
    assert!(
        crate::common::machine::within(start.elapsed(), ms(1_000)),
        "{:?}",
        start.elapsed()
    );
    assert!(!servers[0].exists(&name) && !servers[2].exists(&name));
    servers[1].go_on();
    eventually(
        ms(500),
        "the server executes the release that was sent",
        || !servers[1].exists(&name),
    )
    .await;
}

#[tokio::test]
async fn a_late_grant_for_a_caller_that_gave_up_is_undone() {
    let (servers, key) = (servers(3), key());
    let (proxies, builder) = through(&servers, ms(30_000));
    let locks = builder.connect().await.unwrap();
    locks
        .get(crate::common::key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    settled(&locks).await;
    // The acquire reaches two servers when the waiter has gone, and the third one later still.
    proxies
        .iter()
        .for_each(|proxy| proxy.set(Mode::Hold(key.clone().into_bytes())));
    assert!(locks.get(&key).try_lock_for(ms(100)).await.is_err());
    proxies[..2].iter().for_each(|proxy| proxy.set(Mode::Pass));
    tokio::time::sleep(ms(200)).await;
    proxies[2].set(Mode::Pass);
    settled(&locks).await;
    assert_eq!(on(&servers, &key), 0);
}
