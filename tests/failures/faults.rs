//! Lost replies, late commands, cut connections: nothing is executed twice, and nothing is left on
//! the server.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::common::proxy::{Mode, Proxy};
use crate::common::server::Monitor;
use crate::common::{Server, builder, eventually, key, locker, locker_with, ms};
use lockhound::{Error, Owner};

/// Returns the fields that acquires were sent with, and how often each of them was sent.
fn acquires(monitor: &Monitor, key: &str) -> HashMap<String, usize> {
    let mut fields = HashMap::new();
    for line in monitor.sent("lockhound_fence") {
        let words: Vec<&str> = line
            .split('"')
            .filter(|word| !word.trim().is_empty())
            .collect();
        if words.contains(&key) {
            // `lease field clock`, also in a script of several steps. The clock is negative if
            // there is one server.
            let clocked = words.windows(2).filter(|pair| pair[1].starts_with('-'));
            clocked.for_each(|pair| *fields.entry(pair[0].to_owned()).or_default() += 1);
        }
    }
    fields
}

#[tokio::test]
async fn a_swallowed_reply_and_a_cut_do_not_execute_twice() {
    let (server, key) = (Server::start(), key());
    let proxy = Proxy::start(server.port());
    // A grant that is not undone outlives this test.
    let locks = builder(&proxy.url(), ms(30_000))
        .command_timeout(ms(1_000))
        .connect()
        .await
        .unwrap();
    // Makes the scripts known to the server: an EVAL after a NOSCRIPT would blur the counts.
    locks
        .get(crate::common::key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    let monitor = Monitor::start(&server);
    proxy.set(Mode::SwallowReplyTo(b"lockhound_fence".to_vec()));
    let lock = locks.get(&key);
    let waiting = tokio::spawn(async move { lock.lock().await });
    eventually(ms(10_000), "three replies were swallowed", || {
        proxy.swallowed() >= 3
    })
    .await;
    proxy.set(Mode::Pass);
    let guard = waiting.await.unwrap().unwrap();
    let fields = acquires(&monitor, &key);
    assert!(fields.len() >= 4, "{fields:?}");
    assert!(
        fields.values().all(|&times| times == 1),
        "each attempt was sent once: {fields:?}"
    );
    assert_eq!(server.fields(&key).len(), 1);
    let nested = locks
        .get(&key)
        .owned_by(guard.owner())
        .lock()
        .await
        .unwrap();
    assert_eq!(
        server.fields(&key)[0].1,
        2,
        "the count is the guards', not the attempts'"
    );
    nested.unlock().await.unwrap();
    let ours = server.fields(&key)[0].0.clone();
    guard.unlock().await.unwrap();
    assert!(
        server.fields(&key).iter().all(|(field, _)| *field != ours),
        "released"
    );
    // An earlier attempt on the connection that was given up may have been executed only now: it is
    // undone once more.
    eventually(ms(4_000), "undone", || !server.exists(&key)).await;
}

#[tokio::test]
async fn a_swallowed_count_is_written_once_and_enters() {
    let (server, key) = (Server::start(), key());
    let proxy = Proxy::start(server.port());
    let lock = builder(&proxy.url(), ms(3_000))
        .connect()
        .await
        .unwrap()
        .get(&key);
    let guard = lock.lock().await.unwrap();
    // The script is known to the server from here on.
    lock.lock().await.unwrap().unlock().await.unwrap();
    let field = server.fields(&key)[0].0.clone();
    proxy.set(Mode::SwallowReplyTo(
        format!("{field}\r\n$1\r\n2").into_bytes(),
    ));
    let nested = lock.lock().await.unwrap();
    assert_eq!(proxy.swallowed(), 1);
    assert_eq!((nested.hold_count(), server.fields(&key)[0].1), (2, 2));
    proxy.set(Mode::Pass);
    nested.unlock().await.unwrap();
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn a_swallowed_release_is_released_and_ok() {
    let (server, key) = (Server::start(), key());
    let proxy = Proxy::start(server.port());
    let lock = builder(&proxy.url(), ms(3_000))
        .connect()
        .await
        .unwrap()
        .get(&key);
    // The script is known to the server from here on.
    lock.lock().await.unwrap().unlock().await.unwrap();
    let guard = lock.lock().await.unwrap();
    proxy.set(Mode::SwallowReplyTo(b"redisson_lock__channel".to_vec()));
    let unlocking = tokio::spawn(guard.unlock());
    eventually(ms(2_000), "the reply was swallowed", || {
        proxy.swallowed() == 1
    })
    .await;
    proxy.set(Mode::Pass);
    unlocking
        .await
        .unwrap()
        .expect("gone on a repeat is what a release wants");
    assert!(!server.exists(&key));
}

#[tokio::test]
async fn an_unlock_without_an_answer_is_unavailable_and_goes_on() {
    let (server, key) = (Server::start(), key());
    let lock = locker_with(&server, ms(10_000)).await.get(&key);
    let guard = lock.lock().await.unwrap();
    server.stop();
    let start = Instant::now();
    let error = guard.unlock().await.expect_err("stopped");
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    // A command timeout, which is a tenth of the lease.
    assert!(
        crate::common::machine::within(start.elapsed(), ms(1_500)),
        "{:?}",
        start.elapsed()
    );
    server.go_on();
    eventually(ms(2_000), "released in the background", || {
        !server.exists(&key)
    })
    .await;
}

#[tokio::test]
async fn dropping_unlock_drops_no_release() {
    let (server, key) = (Server::start(), key());
    let lock = locker(&server).await.get(&key);
    let guard = lock.lock().await.unwrap();
    // No answer can come between the poll and the drop.
    server.stop();
    let mut unlocking = Box::pin(guard.unlock());
    assert!(futures_util::poll!(&mut unlocking).is_pending());
    drop(unlocking);
    server.go_on();
    eventually(ms(500), "released", || !server.exists(&key)).await;
    let guard = lock.lock().await.unwrap();
    drop(guard.unlock());
    eventually(ms(500), "released by the guard's drop", || {
        !server.exists(&key)
    })
    .await;
}

#[tokio::test]
async fn a_lock_dropped_while_the_server_is_stopped_leaves_nothing() {
    let server = Server::start();
    let locks = builder(&server.url(), ms(5_000)).connect().await.unwrap();
    for stopped_for in [50, 700, 1_600] {
        let keys: Vec<String> = (0..20).map(|_| key()).collect();
        server.stop();
        let mut futures: Vec<_> = Vec::new();
        for key in &keys {
            let lock = locks.get(key);
            futures.push(Box::pin(async move { lock.lock().await }));
        }
        for future in &mut futures {
            assert!(futures_util::poll!(future).is_pending());
        }
        tokio::time::sleep(ms(stopped_for)).await;
        drop(futures);
        server.go_on();
        // Two command timeouts of 500 ms each, from when the server answers again.
        tokio::time::sleep(ms(1_000)).await;
        let left: Vec<_> = keys.iter().filter(|key| server.exists(key)).collect();
        assert!(left.is_empty(), "stopped for {stopped_for} ms: {left:?}");
        tokio::time::sleep(ms(600)).await;
        assert!(
            keys.iter().all(|key| !server.exists(key)),
            "nothing comes late"
        );
    }
}

#[tokio::test]
async fn scripts_are_sent_as_text_again_after_a_flush() {
    let (server, key) = (Server::start(), key());
    let lock = locker(&server).await.get(&key);
    for _ in 0..3 {
        server.command::<()>(&["SCRIPT", "FLUSH"]);
        let guard = lock.lock().await.unwrap();
        server.command::<()>(&["SCRIPT", "FLUSH"]);
        let nested = lock.lock().await.unwrap();
        assert_eq!(server.fields(&key)[0].1, 2);
        server.command::<()>(&["SCRIPT", "FLUSH"]);
        nested.unlock().await.unwrap();
        server.command::<()>(&["SCRIPT", "FLUSH"]);
        guard.unlock().await.unwrap();
        assert!(!server.exists(&key));
    }
}

/// Futures of `lock()` are dropped at random instants: no key is left, and no lock without a holder
/// is renewed. (Redisson goes on renewing 13 to 18 % of its grants then.)
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_locks_dropped_at_random_leave_nothing() {
    let server = Server::start();
    let locks = builder(&server.url(), ms(3_000)).connect().await.unwrap();
    let keys: Vec<String> = (0..10).map(|_| key()).collect();
    let mut tasks = Vec::new();
    // Some have to enter on a busy machine too.
    let longest = if crate::common::machine::starved() {
        80_000
    } else {
        8_000
    };
    for task in 0..50 {
        let (locks, keys) = (locks.clone(), keys.clone());
        tasks.push(tokio::spawn(async move {
            let mut entered = 0;
            for i in 0..200 {
                let lock = locks.get(&keys[(task + i) % keys.len()]);
                let patience = Duration::from_micros(fastrand::u64(0..longest));
                if let Ok(guard) = tokio::time::timeout(patience, lock.lock()).await {
                    entered += 1;
                    drop(guard.unwrap());
                }
            }
            entered
        }));
    }
    let mut entered = 0;
    for task in tasks {
        entered += task.await.unwrap();
    }
    assert!(
        (100..9_900).contains(&entered),
        "some enter and some do not: {entered} of 10,000"
    );
    // Two command timeouts of 300 ms.
    let left = || keys.iter().filter(|key| server.exists(key)).count();
    eventually(ms(600), "none is left", || left() == 0).await;
    tokio::time::sleep(ms(300)).await;
    assert_eq!(left(), 0, "nothing comes late");
    server.command::<()>(&["CONFIG", "RESETSTAT"]);
    tokio::time::sleep(ms(1_500)).await;
    assert_eq!(
        server.calls("evalsha"),
        0,
        "nothing is renewed, and no attempt is made"
    );
}

#[tokio::test]
async fn guards_dropped_without_a_runtime_or_in_a_panic_release() {
    let (server, key) = (Server::start(), key());
    let lock = locker(&server).await.get(&key);
    let guard = lock.lock().await.unwrap();
    std::thread::spawn(move || drop(guard)).join().unwrap();
    eventually(ms(500), "dropped in a thread", || !server.exists(&key)).await;
    let panicking = lock.clone();
    let task = tokio::spawn(async move {
        let _guard = panicking.lock().await.unwrap();
        panic!("on purpose");
    });
    assert!(task.await.unwrap_err().is_panic());
    eventually(ms(500), "dropped in a panic", || !server.exists(&key)).await;
    let inner = lock.clone().owned_by(Owner::new());
    let guard = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(inner.lock()).unwrap()
    })
    .join()
    .unwrap();
    guard.check().unwrap();
    drop(guard);
    eventually(ms(500), "the runtime that took it is gone", || {
        !server.exists(&key)
    })
    .await;
}

#[tokio::test]
async fn the_last_handle_ends_the_engine_and_releases_first() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let guard = locks.get(&key).lock().await.unwrap();
    drop(locks);
    tokio::time::sleep(ms(100)).await;
    guard.check().unwrap();
    assert!(server.exists(&key), "a guard keeps the engine");
    drop(guard);
    eventually(
        ms(1_000),
        "released, and then every connection is quit",
        || {
            !server.exists(&key)
                && !server
                    .command::<String>(&["CLIENT", "LIST"])
                    .contains("lockhound")
        },
    )
    .await;
}

/// The connections are opened in the order commands, subscriber, renewals.
#[tokio::test]
async fn a_silent_connection_of_commands_is_given_up() {
    let (server, key) = (Server::start(), key());
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url(), ms(2_000))
        .outage_tolerance(ms(10_000))
        .connect()
        .await
        .unwrap();
    locks
        .get(&key)
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    proxy.freeze_one(0);
    let start = Instant::now();
    let guard = locks.get(&key).lock().await.unwrap();
    assert!(
        crate::common::machine::within(start.elapsed(), ms(4_000)),
        "{:?}",
        start.elapsed()
    );
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn a_silent_subscriber_is_given_up() {
    let (server, key) = (Server::start(), key());
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url(), ms(30_000))
        .command_timeout(ms(200))
        .connect()
        .await
        .unwrap();
    let holder = locker(&server).await.get(&key).lock().await.unwrap();
    let lock = locks.get(&key);
    let waiting = tokio::spawn(async move { lock.lock().await.map(|_| Instant::now()) });
    eventually(ms(2_000), "the waiter listens", || channels(&server) == 1).await;
    proxy.freeze_one(1);
    // Two silent heartbeats, a reconnect, and the barrier. The next re-check would be after 5 s.
    tokio::time::sleep(ms(2_000)).await;
    let released = Instant::now();
    holder.unlock().await.unwrap();
    let entered = waiting.await.unwrap().unwrap();
    assert!(
        entered.duration_since(released) < ms(500),
        "{:?}",
        entered.duration_since(released)
    );
}

#[tokio::test]
async fn a_silent_renewal_connection_is_left_before_a_lock_is_lost() {
    let (server, key) = (Server::start(), key());
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url(), ms(3_000)).connect().await.unwrap();
    let guard = locks.get(&key).lock().await.unwrap();
    proxy.freeze_one(2);
    tokio::time::sleep(ms(6_000)).await;
    guard.check().unwrap();
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn all_silent_connections_are_given_up() {
    let (server, key) = (Server::start(), key());
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url(), ms(3_000)).connect().await.unwrap();
    let guard = locks.get(&key).lock().await.unwrap();
    proxy.freeze();
    tokio::time::sleep(ms(5_000)).await;
    guard.check().unwrap();
    guard.unlock().await.unwrap();
    assert!(!server.exists(&key));
}

fn channels(server: &Server) -> usize {
    server
        .command::<Vec<String>>(&["PUBSUB", "CHANNELS", "redisson_lock__channel:*"])
        .len()
}

/// fred's router waits inside a write that never ends: it neither times out nor reconnects by
/// itself.
#[tokio::test]
async fn a_router_that_is_stuck_in_a_write_is_replaced() {
    let (server, key) = (Server::start(), key());
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url(), ms(8_000))
        .outage_tolerance(ms(30_000))
        .connect()
        .await
        .unwrap();
    locks
        .get(&key)
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    proxy.freeze_one(0);
    // More than the buffers of all sockets on the way hold; nothing empties them.
    let large = "x".repeat(1 << 20);
    let filling: Vec<_> = (0..14)
        .map(|i| {
            let lock = locks.get(format!("{large}{i}"));
            tokio::spawn(async move { lock.try_lock().await.is_err() })
        })
        .collect();
    tokio::time::sleep(ms(100)).await;
    let start = Instant::now();
    let guard = locks.get(&key).lock().await.unwrap();
    assert!(
        crate::common::machine::within(start.elapsed(), ms(12_000)),
        "{:?}",
        start.elapsed()
    );
    // The release comes after the undos of all these, each as large: on a busy machine they take
    // longer than a command timeout.
    drop(guard);
    eventually(ms(8_000), "it is released", || !server.exists(&key)).await;
    for task in filling {
        assert!(
            task.await.unwrap(),
            "no attempt on the stuck connection had an answer"
        );
    }
}

/// fred hands the error reply of a SUBSCRIBE to the command after it. A barrier must not take that
/// command's answer, or a heartbeat's, for its own; and the connection stays usable for channels
/// that are allowed.
#[tokio::test]
async fn a_refused_subscription_does_not_put_replies_out_of_step() {
    let server = Server::start_with(&[
        "--user",
        "half",
        "on",
        ">pw",
        "~*",
        "resetchannels",
        "&redisson_lock__channel:{heard*",
        "+@all",
    ]);
    let url = format!("redis://half:pw@127.0.0.1:{}", server.port());
    let locks = builder(&url, ms(6_000))
        .command_timeout(ms(100))
        .connect()
        .await
        .unwrap();
    let (unheard, heard) = (key(), format!("heard:{}", key()));
    let elsewhere = locker(&server).await;
    let (first, second) = (
        elsewhere.get(&unheard).lock().await.unwrap(),
        elsewhere.get(&heard).lock().await.unwrap(),
    );
    let connection = subscriber(&server);
    let deaf = tokio::spawn(enter(locks.get(&unheard)));
    tokio::time::sleep(ms(700)).await;
    let hearing = tokio::spawn(enter(locks.get(&heard)));
    eventually(ms(2_000), "the allowed channel is subscribed", || {
        channels(&server) == 1
    })
    .await;
    tokio::time::sleep(ms(500)).await;
    let released = Instant::now();
    second.unlock().await.unwrap();
    assert!(
        hearing.await.unwrap().duration_since(released) < ms(400),
        "woken by its message"
    );
    assert_eq!(
        subscriber(&server),
        connection,
        "ten heartbeats were in step"
    );
    let released = Instant::now();
    first.unlock().await.unwrap();
    // A sixth of the lease.
    assert!(
        deaf.await.unwrap().duration_since(released) < ms(1_500),
        "it polls"
    );
}

async fn enter(lock: lockhound::Lock) -> Instant {
    let guard = lock.lock().await.unwrap();
    let entered = Instant::now();
    guard.unlock().await.unwrap();
    entered
}

/// Returns the id of the first locker's subscriber connection.
fn subscriber(server: &Server) -> String {
    let list: String = server.command(&["CLIENT", "LIST"]);
    let line = list
        .lines()
        .find(|line| line.contains("lockhound:subscriber") && line.contains("user=half"));
    line.unwrap().split_whitespace().next().unwrap().to_owned()
}
