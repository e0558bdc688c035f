//! Waiting: a message wakes the waiter without polling, and no waiter waits for ever.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod lists;
mod standing;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::machine::within;
use common::proxy::{Mode, Proxy};
use common::several::{self, hold_as_redisson, over, settled};
use common::{Server, builder, eventually, key, locker, ms, soon, they_wait};
use futures_util::poll;
use lockhound::{Error, Locker, Loss, Owner};

/// Puts a foreign holder into a lock, as Redisson does.
fn take(server: &Server, key: &str, lease: &str) {
    server.command::<u64>(&["HSET", key, "8743c9c0-0795-4907-87fd-6c719a6b4586:1", "1"]);
    server.command::<bool>(&["PEXPIRE", key, lease]);
}

/// Releases a foreign holder's lock, as Redisson does.
fn give_back(server: &Server, key: &str) {
    server.command::<bool>(&["DEL", key]);
    server.command::<u64>(&["PUBLISH", &format!("redisson_lock__channel:{{{key}}}"), "0"]);
}

/// Waits for the lock in a task, which returns when it was granted.
fn wait(locker: &Locker, key: &str) -> tokio::task::JoinHandle<Instant> {
    let lock = locker.get(key);
    tokio::spawn(async move {
        let guard = lock.lock().await.unwrap();
        let granted = Instant::now();
        guard.unlock().await.unwrap();
        granted
    })
}

/// Returns the key of a lock's list.
fn list(key: &str) -> String {
    if key.contains('{') {
        format!("lockhound_waiting:={key}")
    } else {
        format!("lockhound_waiting:{{{key}}}")
    }
}

fn listed(server: &Server, key: &str) -> usize {
    server
        .command::<Vec<String>>(&["ZRANGE", &list(key), "0", "-1"])
        .len()
}

async fn listens(server: &Server) {
    eventually(ms(3_000), "the waiter listens", || {
        !server
            .command::<Vec<String>>(&["PUBSUB", "CHANNELS", "redisson_lock__channel:*"])
            .is_empty()
    })
    .await;
}

#[tokio::test]
async fn the_message_of_a_foreign_holder_wakes_a_waiter_at_once() {
    let (server, key) = (Server::start(), key());
    take(&server, &key, "30000");
    let lock = locker(&server).await.get(&key);
    let waiting = tokio::spawn(async move { lock.lock().await.map(|_| Instant::now()) });
    listens(&server).await;
    tokio::time::sleep(ms(100)).await;
    let released = Instant::now();
    give_back(&server, &key);
    let entered = waiting.await.unwrap().unwrap();
    assert!(
        common::machine::within(entered.duration_since(released), ms(500)),
        "the next re-check would have come after 5 s"
    );
}

/// The client library drops messages that come faster than they are read, the oldest first. The
/// next look would be ten seconds later.
#[tokio::test]
async fn a_release_whose_message_is_dropped_in_a_burst_is_not_missed() {
    let (server, key, other) = (Server::start(), key(), key());
    take(&server, &key, "60000");
    take(&server, &other, "60000");
    let locks = builder(&server.url(), ms(60_000)).connect().await.unwrap();
    let (waiting, elsewhere) = (wait(&locks, &key), wait(&locks, &other));
    let [channel, noise] = [&key, &other].map(|key| format!("redisson_lock__channel:{{{key}}}"));
    let listens = |channel: &str| {
        server
            .command::<(String, u64)>(&["PUBSUB", "NUMSUB", channel])
            .1
            == 1
    };
    eventually(ms(3_000), "both are waited for", || {
        listens(&channel) && listens(&noise)
    })
    .await;
    tokio::time::sleep(ms(100)).await;
    // The server sends nothing before all of it is done.
    let mut burst = redis::pipe();
    burst
        .atomic()
        .cmd("DEL")
        .arg(&key)
        .ignore()
        .cmd("PUBLISH")
        .arg(&channel)
        .arg("0")
        .ignore();
    for _ in 0..10_000 {
        burst.cmd("PUBLISH").arg(&noise).arg("1").ignore();
    }
    let released = Instant::now();
    burst.exec(&mut server.connection().unwrap()).unwrap();
    let entered = waiting.await.unwrap();
    assert!(
        within(entered.duration_since(released), ms(2_000)),
        "{:?}",
        entered.duration_since(released)
    );
    give_back(&server, &other);
    elsewhere.await.unwrap();
}

#[tokio::test]
async fn a_lease_that_ends_without_a_message_is_noticed() {
    let (server, key) = (Server::start(), key());
    take(&server, &key, "700");
    let start = Instant::now();
    let guard = locker(&server).await.get(&key).lock().await.unwrap();
    assert!(
        common::machine::within(start.elapsed(), ms(1_500)),
        "{:?}",
        start.elapsed()
    );
    drop(guard);
}

#[tokio::test]
async fn a_release_between_subscribe_and_its_barrier_is_not_missed() {
    let (server, key) = (Server::start(), key());
    take(&server, &key, "30000");
    let proxy = Proxy::start(server.port());
    let lock = builder(&proxy.url(), ms(30_000))
        .connect()
        .await
        .unwrap()
        .get(&key);
    proxy.set(Mode::Hold(b"SUBSCRIBE".to_vec()));
    let waiting = tokio::spawn(async move { lock.lock().await.map(|_| Instant::now()) });
    eventually(ms(3_000), "SUBSCRIBE is on its way", || proxy.held() > 0).await;
    // The waiter is not subscribed yet: it does not get this message.
    give_back(&server, &key);
    let released = Instant::now();
    proxy.set(Mode::Pass);
    let entered = waiting.await.unwrap().unwrap();
    assert!(
        entered.duration_since(released) < ms(1_000),
        "the next re-check would have come after 5 s"
    );
}

#[tokio::test]
async fn a_release_while_the_subscriber_is_cut_off_is_not_missed() {
    let (server, key) = (Server::start(), key());
    take(&server, &key, "30000");
    let lock = locker(&server).await.get(&key);
    let waiting = tokio::spawn(async move { lock.lock().await.map(|_| Instant::now()) });
    listens(&server).await;
    // The message is published right after the subscriber was cut off.
    let released = Instant::now();
    server.command::<u64>(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    give_back(&server, &key);
    let entered = waiting.await.unwrap().unwrap();
    assert!(
        entered.duration_since(released) < ms(1_500),
        "the next re-check would have come after 5 s"
    );
}

#[tokio::test]
async fn a_thousand_local_waiters_cost_one_script_per_re_check() {
    let (server, key) = (Server::start(), key());
    take(&server, &key, "600000");
    // A re-check every 100 ms.
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
    assert_eq!(
        server
            .command::<Vec<String>>(&["PUBSUB", "CHANNELS", "redisson_lock__channel:*"])
            .len(),
        1
    );
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
    they_wait(&locks, 100).await;
    assert!(
        locks
            .get(&key)
            .owned_by(Owner::new())
            .try_lock()
            .await
            .unwrap()
            .is_none()
    );
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
async fn try_lock_for_gives_up_in_time_and_leaves_no_waiter() {
    let (server, key) = (Server::start(), key());
    take(&server, &key, "30000");
    let lock = locker(&server).await.get(&key);
    let start = Instant::now();
    assert!(lock.try_lock_for(ms(300)).await.unwrap().is_none());
    assert!(
        (ms(300)..ms(600)).contains(&start.elapsed()),
        "{:?}",
        start.elapsed()
    );
    assert!(lock.try_lock_for(ms(0)).await.unwrap().is_none());
    assert!(lock.try_lock().await.unwrap().is_none());
    give_back(&server, &key);
    tokio::time::sleep(ms(200)).await;
    assert!(!server.exists(&key), "no waiter is left");
    lock.try_lock_for(ms(300))
        .await
        .unwrap()
        .expect("free")
        .unlock()
        .await
        .unwrap();
    eventually(
        ms(3_000),
        "the subscription lingers for about a second",
        || {
            server
                .command::<Vec<String>>(&["PUBSUB", "CHANNELS", "redisson_lock__channel:*"])
                .is_empty()
        },
    )
    .await;
}

#[tokio::test]
async fn a_grant_whose_caller_does_not_poll_goes_to_the_next_waiter() {
    let (server, key) = (Server::start(), key());
    let locks = builder(&server.url(), ms(1_200)).connect().await.unwrap();
    let lock = locks.get(&key);
    let idle = lock.lock();
    tokio::pin!(idle);
    // The server is frozen, so that no grant can come before the first poll.
    server.stop();
    assert!(futures_util::poll!(&mut idle).is_pending());
    server.go_on();
    // The future is not polled. After a sixth of the lease another caller gets the lock; the first
    // one queues again.
    let other = soon(ms(1_000), lock.clone().owned_by(Owner::new()).lock()).await;
    let guard = other.expect("not blocked").unwrap();
    assert!(futures_util::poll!(&mut idle).is_pending());
    guard.unlock().await.unwrap();
    idle.await.unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn a_long_outage_ends_all_waiters_at_the_same_time() {
    let server = Server::start();
    // Re-checks come every second: waiters that only wait for a message end with those that make
    // attempts.
    let lease = ms(6_000);
    let locks = builder(&server.url(), lease)
        .command_timeout(ms(150))
        .outage_tolerance(ms(1_000))
        .connect()
        .await
        .unwrap();
    let held = key();
    take(&server, &held, "600000");
    let mut waiters = Vec::new();
    for i in 0..20 {
        // Ten wait in one line behind a foreign holder, and ten each for another key.
        let lock = if i < 10 {
            locks.get(&held).owned_by(Owner::new())
        } else {
            locks.get(key())
        };
        if i == 10 {
            listens(&server).await;
            server.stop();
        }
        waiters.push(tokio::spawn(async move {
            (lock.lock().await.expect_err("stopped"), Instant::now())
        }));
    }
    let mut ends = Vec::new();
    for waiter in waiters {
        let (error, end) = waiter.await.unwrap();
        let Error::Unavailable { waited, nodes, .. } = &error else {
            panic!("{error}")
        };
        assert!(*waited >= ms(1_000), "{error}");
        assert!(error.to_string().contains(nodes[0].node()), "{error}");
        ends.push(end);
    }
    let spread = ends
        .iter()
        .max()
        .unwrap()
        .duration_since(*ends.iter().min().unwrap());
    assert!(within(spread, ms(400)), "{spread:?}");
    // A call that comes after the tolerated time makes one round before it fails.
    let start = Instant::now();
    let error = locks.get(key()).lock().await.expect_err("stopped");
    let took = start.elapsed();
    assert!(
        matches!(error, Error::Unavailable { .. }) && within(took, ms(700)),
        "{took:?}"
    );
    server.go_on();
    drop(
        tokio::time::timeout(ms(5_000), locks.get(key()).lock())
            .await
            .unwrap()
            .unwrap(),
    );
}

#[tokio::test]
async fn a_short_outage_is_ridden_out() {
    let server = Server::start();
    let locks = builder(&server.url(), ms(3_000)).connect().await.unwrap();
    let key = key();
    server.kill();
    let lock = locks.get(&key);
    let waiting = tokio::spawn(async move { lock.lock().await });
    assert!(matches!(
        locks.get(&key).try_lock().await,
        Err(Error::Unavailable { .. })
    ));
    let timed = locks.get(&key).try_lock_for(ms(700)).await;
    assert!(matches!(timed, Err(Error::Unavailable { .. })), "{timed:?}");
    server.restart();
    let guard = waiting.await.unwrap().unwrap();
    assert!(server.exists(&key));
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn close_ends_waiters_and_waits_for_holders() {
    let (server, key) = (Server::start(), key());
    let locks = builder(&server.url(), ms(2_000)).connect().await.unwrap();
    let guard = locks.get(&key).lock().await.unwrap();
    let lock = locks.get(&key);
    let waiting = tokio::spawn(async move { lock.lock().await });
    they_wait(&locks, 1).await;
    let closing = tokio::spawn({
        let locks = locks.clone();
        async move { locks.close().await }
    });
    guard.lost().cancelled().await;
    assert!(matches!(
        guard.check(),
        Err(Error::Lost {
            loss: Loss::Closed,
            ..
        })
    ));
    assert!(matches!(waiting.await.unwrap(), Err(Error::Closed)));
    assert!(matches!(locks.get(&key).lock().await, Err(Error::Closed)));
    assert!(matches!(
        locks.get(&key).try_lock().await,
        Err(Error::Closed)
    ));
    assert!(matches!(
        locks.get(&key).is_locked().await,
        Err(Error::Closed)
    ));
    assert!(!closing.is_finished(), "close waits for the guard");
    let unlocked = guard.unlock().await;
    assert!(
        matches!(
            unlocked,
            Err(Error::Lost {
                loss: Loss::Closed,
                ..
            })
        ),
        "{unlocked:?}"
    );
    closing.await.unwrap();
    assert!(
        !server.exists(&key),
        "the key is released when its last guard goes"
    );
    eventually(ms(1_000), "no connection is left", || {
        !server
            .command::<String>(&["CLIENT", "LIST"])
            .contains("lockhound")
    })
    .await;
}

/// Two futures of one task are granted together. One is polled and its guard released; the other is
/// not polled.
#[tokio::test]
async fn an_owners_second_future_left_unpolled_blocks_no_other_owner() {
    let (server, key) = (Server::start(), key());
    let lock = builder(&server.url(), ms(1_200))
        .connect()
        .await
        .unwrap()
        .get(&key);
    let mut polled = Box::pin(lock.lock());
    let mut idle = Box::pin(lock.lock());
    server.stop();
    assert!(futures_util::poll!(&mut polled).is_pending());
    assert!(futures_util::poll!(&mut idle).is_pending());
    server.go_on();
    polled.await.unwrap().unlock().await.unwrap();
    let other = soon(ms(1_000), lock.clone().owned_by(Owner::new()).lock()).await;
    other.expect("not blocked").unwrap().unlock().await.unwrap();
    idle.await.unwrap().unlock().await.unwrap();
    assert!(!server.exists(&key));
}

#[tokio::test]
async fn try_lock_for_reports_a_silent_server_as_unavailable() {
    let server = Server::start();
    let locks = builder(&server.url(), ms(30_000)).connect().await.unwrap();
    server.stop();
    // The first round may take three seconds.
    let answer = locks.get(key()).try_lock_for(ms(300)).await;
    assert!(
        matches!(answer, Err(Error::Unavailable { .. })),
        "{answer:?}"
    );
    server.go_on();
}

#[tokio::test]
async fn close_releases_what_is_granted_meanwhile() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    // How long an answer is on its way, and how often `close` came while one was.
    let (mut delay, mut met) = (ms(30), 0);
    for _ in 0..100 {
        let key = key();
        let locks = builder(&proxy.url(), ms(30_000)).connect().await.unwrap();
        locks
            .get(common::key())
            .lock()
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
        proxy.set(Mode::Delay(delay));
        let (trying, waiting) = (locks.get(&key), locks.get(common::key()));
        let waited = waiting.key().to_string();
        let trying = tokio::spawn(async move { trying.try_lock().await });
        let waiting = tokio::spawn(async move { waiting.lock().await });
        eventually(ms(10_000), "both are granted", || {
            server.exists(&key) && server.exists(&waited)
        })
        .await;
        let early = trying.is_finished() || waiting.is_finished();
        locks.close().await;
        let left = server.exists(&key) || server.exists(&waited);
        proxy.set(Mode::Pass);
        let (tried, waited) = (trying.await.unwrap(), waiting.await.unwrap());
        if !early && tried.is_err() && waited.is_err() {
            assert!(!left, "a grant that no caller got is released");
            met += 1;
        } else {
            // The answers came before `close`. On a busy machine they need a longer delay.
            let lost = |guard: lockhound::Guard| guard.loss() == Some(Loss::Closed);
            assert!(
                tried.map_or(true, |guard| guard.is_some_and(lost)) && waited.map_or(true, lost)
            );
            delay = (delay * 2).min(ms(1_000));
        }
        if met == 10 {
            return;
        }
    }
    panic!("close came only {met} times while an answer was on its way");
}

/// A grant is lost before its caller polled for it. It blocks no one, and its owner may lock again.
#[tokio::test]
async fn a_grant_that_is_lost_before_it_is_polled_for_is_released() {
    let (server, key) = (Server::start(), key());
    let locks = builder(&server.url(), ms(30_000)).connect().await.unwrap();
    let lock = locks.get(&key);
    let mut idle = Box::pin(lock.lock());
    server.stop();
    assert!(futures_util::poll!(&mut idle).is_pending());
    server.go_on();
    eventually(ms(1_000), "granted", || server.exists(&key)).await;
    assert!(lock.force_unlock().await.unwrap());
    eventually(ms(1_000), "the hold is gone", || locks.stats().holds == 0).await;
    // Another future of the same owner gets no error for this loss, since there is no guard.
    lock.lock().await.unwrap().unlock().await.unwrap();
    idle.await.unwrap().unlock().await.unwrap();
    let mut idle = Box::pin(lock.lock());
    server.stop();
    assert!(futures_util::poll!(&mut idle).is_pending());
    server.go_on();
    eventually(ms(1_000), "granted", || server.exists(&key)).await;
    locks.close().await;
    assert!(
        !server.exists(&key),
        "close releases a grant that was not polled for"
    );
    assert!(matches!(idle.await, Err(Error::Closed)));
}

/// Returns pairs of names that share a channel: Redisson puts braces around a name that has none.
fn one_channel() -> [[String; 2]; 2] {
    let (plain, odd) = (key(), format!("a}}b:{}", key()));
    [plain, odd].map(|name| [format!("{{{name}}}"), name])
}

/// Waits for both locks with one locker, and releases the one at `first` before the other.
async fn wake_each_by_its_own_release(servers: &[Server], names: &[String; 2], first: usize) {
    for name in names {
        servers
            .iter()
            .for_each(|server| hold_as_redisson(server, name, 600_000));
    }
    // A re-check every five seconds.
    let locks = over(servers, ms(30_000)).connect().await.unwrap();
    // Each attempt calls PTTL first.
    let tries = || {
        servers
            .iter()
            .map(|server| server.calls("pttl"))
            .sum::<u64>()
    };
    let before = tries();
    let mut waiting = names.clone().map(|name| {
        let lock = locks.get(name);
        Some(tokio::spawn(async move {
            lock.lock().await.map(|guard| (guard, Instant::now()))
        }))
    });
    // Two attempts of each, the second one behind the barrier. After that the waiters are woken by
    // messages.
    let twice = 4 * servers.len() as u64;
    eventually(ms(5_000), "both wait", || tries() >= before + twice).await;
    for at in [first, 1 - first] {
        let released = Instant::now();
        for server in servers {
            server.command::<()>(&["DEL", &names[at]]);
            let channel = format!("redisson_lock__channel:{}", names[0]);
            assert_eq!(
                server.command::<u64>(&["PUBLISH", &channel, "0"]),
                1,
                "one subscription for both"
            );
        }
        let (guard, entered) = waiting[at].take().unwrap().await.unwrap().unwrap();
        let waited = entered.duration_since(released);
        assert!(
            waited < ms(2_000),
            "{} after its release: {waited:?}",
            names[at]
        );
        guard.unlock().await.unwrap();
    }
    // Scripts that are still under way belong to this round.
    settled(&locks).await;
    locks.close().await;
}

#[tokio::test]
async fn a_release_wakes_its_own_locks_waiter_on_a_shared_channel() {
    let servers = [Server::start()];
    for names in &one_channel() {
        for first in [0, 1] {
            wake_each_by_its_own_release(&servers, names, first).await;
        }
    }
}

#[tokio::test]
async fn a_release_over_three_servers_wakes_its_own_locks_waiter() {
    let servers = several::servers(3);
    let [names, _] = &one_channel();
    for first in [0, 1] {
        wake_each_by_its_own_release(&servers, names, first).await;
    }
}

/// A message concerns every lock of its channel: one that is held here is checked at once.
#[tokio::test]
async fn a_deleted_lock_is_noticed_when_only_its_channel_is_heard() {
    let server = Server::start();
    let [[held, awaited], _] = one_channel();
    // A renewal every ten seconds.
    let locks = builder(&server.url(), ms(30_000))
        .command_timeout(ms(300))
        .connect()
        .await
        .unwrap();
    let guard = locks.get(&held).lock().await.unwrap();
    take(&server, &awaited, "600000");
    let lock = locks.get(&awaited);
    let waiting = tokio::spawn(async move { lock.lock().await });
    listens(&server).await;
    // For a command timeout, messages may be echoes of the locker's own releases.
    tokio::time::sleep(ms(400)).await;
    assert!(
        locker(&server)
            .await
            .get(&held)
            .force_unlock()
            .await
            .unwrap()
    );
    let told = soon(ms(3_000), guard.lost().cancelled()).await;
    assert!(told.is_some(), "the next renewal is ten seconds away");
    waiting.abort();
}

/// Returns how many channels lockers have subscribed to.
fn subscribed(connection: &mut redis::Connection) -> usize {
    let clients: String = redis::cmd("CLIENT")
        .arg("LIST")
        .arg("TYPE")
        .arg("PUBSUB")
        .query(connection)
        .unwrap();
    let counts = clients
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("sub="));
    counts.map(|count| count.parse::<usize>().unwrap()).sum()
}

/// How many waits began, and when each ended.
#[derive(Default)]
struct Waits {
    begun: AtomicUsize,
    ended: Mutex<Vec<Instant>>,
}

impl Waits {
    /// Returns how many waits had begun by now and not ended by `then`.
    fn since(&self, then: Instant) -> usize {
        let ended = self.ended.lock().unwrap();
        self.begun.load(Ordering::SeqCst) - ended.iter().filter(|ended| **ended < then).count()
    }
}

/// A channel stays subscribed while callers wait, then for a second, then for up to a tenth of a
/// second until it is swept with others, and then for two round trips: that of the batch under way
/// and its own. A busy machine gets a second more.
#[tokio::test(flavor = "multi_thread")]
async fn subscriptions_do_not_grow_while_new_locks_are_waited_for() {
    const LOCKS: usize = 10_000;
    const AT_ONCE: usize = 256;
    let server = Server::start();
    let names: Vec<String> = (0..LOCKS).map(|_| key()).collect();
    let mut holders = redis::pipe();
    for name in &names {
        holders
            .cmd("HSET")
            .arg(name)
            .arg("8743c9c0-0795-4907-87fd-6c719a6b4586:1")
            .arg(1)
            .ignore();
    }
    let mut connection = server.connection().unwrap();
    let () = holders.query(&mut connection).unwrap();
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url(), ms(60_000)).connect().await.unwrap();
    proxy.set(Mode::Delay(ms(20)));
    let (waits, next) = (Arc::<Waits>::default(), Arc::<AtomicUsize>::default());
    let names = Arc::new(names);
    let tasks = (0..AT_ONCE).map(|_| {
        let (locks, waits, next, names) = (
            locks.clone(),
            Arc::clone(&waits),
            Arc::clone(&next),
            Arc::clone(&names),
        );
        tokio::spawn(async move {
            while let Some(name) = names.get(next.fetch_add(1, Ordering::SeqCst)) {
                waits.begun.fetch_add(1, Ordering::SeqCst);
                let answer = locks
                    .get(name)
                    .try_lock_for(ms(fastrand::u64(100..200)))
                    .await;
                assert!(
                    matches!(answer, Ok(None) | Err(Error::Unavailable { .. })),
                    "{answer:?}"
                );
                waits.ended.lock().unwrap().push(Instant::now());
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    let through = proxy.url();
    let (sampled, looked_at) = (Arc::clone(&waits), server.url());
    let sampling = tokio::task::spawn_blocking(move || {
        let connect = |url: String| redis::Client::open(url).unwrap().get_connection().unwrap();
        let (mut direct, mut delayed) = (connect(looked_at), connect(through));
        let (mut slowest, mut peak) = (Duration::ZERO, 0);
        while sampled.ended.lock().unwrap().len() < LOCKS {
            let asked = Instant::now();
            let () = redis::cmd("PING").query(&mut delayed).unwrap();
            slowest = slowest.max(asked.elapsed());
            let looked = Instant::now();
            let count = subscribed(&mut direct);
            let most = sampled.since(looked - (ms(1_100) + 2 * slowest + ms(1_000)));
            assert!(
                count <= most,
                "{count} channels for {most} locks that were waited for; a round trip: {slowest:?}"
            );
            peak = peak.max(count);
        }
        peak
    });
    for task in tasks {
        task.await.unwrap();
    }
    let peak = sampling.await.unwrap();
    assert!(peak > AT_ONCE / 2, "{peak}");
    eventually(ms(5_000), "only the locker's own channel is left", || {
        subscribed(&mut connection) == 1
    })
    .await;
}

/// Each caller has the lock from the one before it. Nobody else wants it when the last one releases
/// it: in every second round a caller behind it has just given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_behind_a_dropped_guard_finds_the_lock_free() {
    let (server, key) = (Server::start(), key());
    let locks = builder(&server.url(), ms(10_000)).connect().await.unwrap();
    let mut refused = Vec::new();
    for round in 0..400 {
        let [first, second, third, last] = [(); 4].map(|()| locks.get(&key).owned_by(Owner::new()));
        let holder = first.lock().await.unwrap();
        let (mut second, mut third) = (Box::pin(second.lock()), Box::pin(third.lock()));
        assert!(poll!(&mut second).is_pending() && poll!(&mut third).is_pending());
        drop(holder);
        drop(second.await.unwrap());
        let guard = third.await.unwrap();
        let mut behind = Box::pin(last.lock());
        if round % 2 == 1 {
            assert!(poll!(&mut behind).is_pending());
        }
        drop(behind);
        drop(guard);
        match first.try_lock().await.unwrap() {
            Some(guard) => guard.unlock().await.unwrap(),
            None => refused.push(round),
        }
    }
    assert!(refused.is_empty(), "{} of 400: {refused:?}", refused.len());
}

/// Whatever happens to the answer of a hand-over, holders never overlap, fences grow, and no lock
/// is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_overs_whose_connections_are_killed_leave_nothing_behind() {
    const TURNS: usize = 25;
    let (server, key) = (Server::start(), key());
    let lease = ms(10_000);
    let locks = builder(&server.url(), lease).connect().await.unwrap();
    let (inside, highest) = (Arc::<AtomicUsize>::default(), Arc::<AtomicU64>::default());
    let worker = |_| {
        let lock = locks.get(&key).owned_by(Owner::new());
        let (inside, highest) = (Arc::clone(&inside), Arc::clone(&highest));
        tokio::spawn(async move {
            let mut turns = 0;
            while turns < TURNS {
                // An outage is an error of the call, and the next one tries again.
                let Ok(guard) = lock.lock().await else {
                    continue;
                };
                assert_eq!(
                    inside.fetch_add(1, Ordering::SeqCst),
                    0,
                    "two hold the lock"
                );
                let fence = guard.fence().get();
                assert!(highest.swap(fence, Ordering::SeqCst) < fence);
                inside.fetch_sub(1, Ordering::SeqCst);
                turns += 1;
                // An unconfirmed release is completed in the background.
                drop(guard.unlock().await);
            }
        })
    };
    let working = futures_util::future::join_all((0..16).map(worker));
    let killing = async {
        let mut seen = 0;
        loop {
            tokio::time::sleep(ms(10)).await;
            // Kills connections whenever the lock was granted since the last time, however slow the
            // machine is.
            let fence = highest.load(Ordering::SeqCst);
            if std::mem::replace(&mut seen, fence) < fence {
                server.command::<u64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            }
        }
    };
    let worked = tokio::select! {
        worked = working => worked,
        () = killing => unreachable!("it never ends"),
        () = tokio::time::sleep(ms(120_000)) => panic!("a waiter waits for ever: {:?}", locks.stats()),
    };
    worked.into_iter().for_each(|worker| worker.unwrap());
    eventually(lease * 2, "nothing is left", || {
        let stats = locks.stats();
        !server.exists(&key) && (stats.holds, stats.waiters, stats.pending) == (0, 0, 0)
    })
    .await;
    assert_eq!(
        locks.stats().losses,
        lockhound::stats::Losses::default(),
        "no lock was lost"
    );
}
