//! `Format::Plain`: `SET key value NX PX`, compare-and-delete and compare-and-pexpire, as clients
//! in other languages do it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::proxy::{Mode, Proxy};
use crate::common::record::{self, Record, Visit};
use crate::common::{Server, builder, eventually, key, locker, locker_with, ms, they_wait};
use lockhound::{Error, Format, HoldState, Locker, Loss, Owner, ServerErrorKind};

/// How clients in other languages release: redsync, redis-py, node-redlock, rslock, redlock-php.
const COMPARE_AND_DELETE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
     return redis.call('DEL', KEYS[1]) else return 0 end";
/// How redsync and redis-py extend.
const COMPARE_AND_PEXPIRE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
     return redis.call('PEXPIRE', KEYS[1], ARGV[2]) else return 0 end";

async fn plain(server: &Server, lease: Duration) -> Locker {
    builder(&server.url(), lease)
        .format(Format::Plain)
        .connect()
        .await
        .unwrap()
}

fn value(server: &Server, key: &str) -> Option<String> {
    server.command(&["GET", key])
}

/// Takes a lock as a client in another language does. Returns whether it was granted.
fn foreign_set(server: &Server, key: &str, value: &str, lease_ms: &str) -> bool {
    server
        .command::<Option<String>>(&["SET", key, value, "NX", "PX", lease_ms])
        .is_some()
}

#[tokio::test]
async fn foreign_clients_and_this_crate_exclude_each_other() {
    let (server, key) = (Server::start(), key());
    let locks = plain(&server, ms(3_000)).await;
    let lock = locks.get(&key);
    assert!(foreign_set(&server, &key, "somebody", "700"));
    assert!(lock.try_lock().await.unwrap().is_none());
    assert_eq!(value(&server, &key).as_deref(), Some("somebody"));
    let guard = lock.lock().await.unwrap();
    let ours = value(&server, &key).expect("a string");
    assert!(
        ours.starts_with(&format!("{}:{}:", locks.id(), guard.owner())),
        "{ours}"
    );
    assert!(server.pttl(&key) > 2_500, "{}", server.pttl(&key));
    assert!(!foreign_set(&server, &key, "somebody", "700"));
    guard.unlock().await.unwrap();
    assert!(
        foreign_set(&server, &key, "somebody", "700"),
        "free at once"
    );
}

#[tokio::test]
async fn a_foreign_release_or_extension_needs_our_value() {
    let (server, key) = (Server::start(), key());
    let guard = plain(&server, ms(900))
        .await
        .get(&key)
        .lock()
        .await
        .unwrap();
    let ours = value(&server, &key).unwrap();
    let eval = |script: &str, value: &str| {
        server.command::<u64>(&["EVAL", script, "1", &key, value, "60000"])
    };
    assert_eq!(eval(COMPARE_AND_DELETE, "somebody"), 0);
    assert_eq!(eval(COMPARE_AND_PEXPIRE, "somebody"), 0);
    assert!(server.pttl(&key) <= 900);
    guard.check().unwrap();
    assert_eq!(eval(COMPARE_AND_PEXPIRE, &ours), 1);
    assert_eq!(eval(COMPARE_AND_DELETE, &ours), 1);
    crate::common::soon(ms(700), guard.lost().cancelled())
        .await
        .expect("by the next renewal");
    assert_eq!(guard.state(), HoldState::Lost(Loss::NotOwner));
}

#[tokio::test]
async fn the_watchdog_renews_keys_and_never_creates_them() {
    let server = Server::start();
    let locks = plain(&server, ms(900)).await;
    let lock = || locks.get(key()).owned_by(Owner::new());
    let (kept, deleted, replaced, retyped) = (lock(), lock(), lock(), lock());
    let guards = [
        kept.lock().await,
        deleted.lock().await,
        replaced.lock().await,
        retyped.lock().await,
    ]
    .map(Result::unwrap);
    let name = |lock: &lockhound::Lock| lock.key().to_string();
    server.command::<()>(&["DEL", &name(&deleted)]);
    server.command::<()>(&["SET", &name(&replaced), "somebody", "PX", "60000"]);
    server.command::<()>(&["DEL", &name(&retyped)]);
    server.command::<()>(&["HSET", &name(&retyped), "somebody", "1"]);
    let [kept_guard, gone @ ..] = guards;
    for guard in gone {
        crate::common::soon(ms(700), guard.lost().cancelled())
            .await
            .expect("by the next renewal");
        assert_eq!(guard.state(), HoldState::Lost(Loss::NotOwner));
        assert!(matches!(
            guard.unlock().await,
            Err(Error::Lost {
                loss: Loss::NotOwner,
                ..
            })
        ));
    }
    tokio::time::sleep(ms(1_900)).await;
    assert_eq!(kept_guard.state(), HoldState::Safe, "two leases later");
    assert!(value(&server, &name(&kept)).is_some());
    assert!(!server.exists(&name(&deleted)));
    assert_eq!(
        value(&server, &name(&replaced)).as_deref(),
        Some("somebody"),
        "the stale unlock does not affect it"
    );
    assert_eq!(server.fields(&name(&retyped)).len(), 1);
    kept_guard.unlock().await.unwrap();
    assert!(!server.exists(&name(&kept)));
}

#[tokio::test]
async fn the_same_owner_enters_again_and_the_last_guard_releases() {
    let (server, key) = (Server::start(), key());
    let lock = plain(&server, ms(3_000)).await.get(&key);
    let outer = lock.lock().await.unwrap();
    let nested = lock.lock().await.unwrap();
    assert_eq!((nested.hold_count(), nested.fence()), (2, outer.fence()));
    let holder = lock.holder().await.unwrap().expect("held");
    assert_eq!(
        (holder.hold_count(), holder.owner_bytes()),
        (1, value(&server, &key).unwrap().as_bytes())
    );
    assert!(
        lock.clone()
            .owned_by(Owner::new())
            .try_lock()
            .await
            .unwrap()
            .is_none()
    );
    outer.unlock().await.unwrap();
    assert!(server.exists(&key), "one guard lives");
    assert!(!foreign_set(&server, &key, "somebody", "700"));
    nested.unlock().await.unwrap();
    assert!(!server.exists(&key));
    // A re-entry finds that another client has the lock.
    let outer = lock.lock().await.unwrap();
    server.command::<()>(&["SET", &key, "somebody"]);
    assert!(matches!(
        lock.lock().await,
        Err(Error::Lost {
            loss: Loss::NotOwner,
            ..
        })
    ));
    assert!(outer.is_lost());
}

#[tokio::test]
async fn fences_grow_in_one_sequence_with_the_other_format() {
    let (server, key) = (Server::start(), key());
    let locks = [
        plain(&server, ms(3_000)).await,
        locker(&server).await,
        plain(&server, ms(3_000)).await,
    ];
    let mut last = None;
    for i in 0..60 {
        let guard = locks[i % 3].get(&key).lock().await.unwrap();
        assert!(Some(guard.fence()) > last, "{last:?} {guard:?}");
        last = Some(guard.fence());
        guard.unlock().await.unwrap();
    }
    let fence = crate::common::marks::mark(&key);
    assert_eq!(server.pttl(&fence), -1);
    server.command::<()>(&["SET", &fence, "18"]);
    let guard = locks[0].get(&key).lock().await.unwrap();
    assert!(
        Some(guard.fence()) > last,
        "the mark was set back, but fences also follow the clock"
    );
}

#[tokio::test]
async fn a_hash_excludes_plain_lockers_and_is_not_changed() {
    let (server, key) = (Server::start(), key());
    let redisson_locks = locker_with(&server, ms(3_000)).await;
    let redisson = redisson_locks.get(&key);
    let plain_locks = plain(&server, ms(3_000)).await;
    let lock = plain_locks.get(&key);
    let guard = redisson.lock().await.unwrap();
    assert!(lock.try_lock().await.unwrap().is_none());
    let holder = lock.holder().await.unwrap().expect("held");
    assert!(
        holder
            .owner()
            .starts_with(&format!("{}:{}:", redisson_locks.id(), guard.owner())),
        "{holder:?}"
    );
    let waiting = tokio::spawn(async move { lock.lock().await });
    they_wait(&plain_locks, 1).await;
    assert!(!waiting.is_finished());
    guard.unlock().await.unwrap();
    let plain_guard = waiting.await.unwrap().unwrap();
    let error = redisson.lock().await.expect_err("another format");
    assert!(
        matches!(
            error,
            Error::Server {
                kind: ServerErrorKind::WrongType,
                ..
            }
        ),
        "{error}"
    );
    plain_guard.unlock().await.unwrap();
    // A key of another type without a lease.
    server.command::<()>(&["RPUSH", &key, "x"]);
    assert!(
        plain(&server, ms(3_000))
            .await
            .get(&key)
            .try_lock()
            .await
            .unwrap()
            .is_none()
    );
}

#[tokio::test]
async fn the_value_of_a_foreign_owner_may_be_any_bytes() {
    let (server, key) = (Server::start(), key());
    let lock = plain(&server, ms(3_000)).await.get(&key);
    // rslock's values are 20 random bytes.
    let owner: Vec<u8> = (0..20).map(|i| 0xf8_u8.wrapping_add(i)).collect();
    assert!(std::str::from_utf8(&owner).is_err());
    redis::cmd("SET")
        .arg(&key)
        .arg(&owner)
        .arg("PX")
        .arg(5_000)
        .exec(&mut server.connection().unwrap())
        .unwrap();
    let holder = lock.holder().await.unwrap().expect("held");
    assert_eq!((holder.owner_bytes(), holder.hold_count()), (&owner[..], 1));
    assert!(
        holder
            .remaining()
            .is_some_and(|left| left <= ms(5_000) && left > ms(4_000))
    );
    assert!(lock.is_locked().await.unwrap());
    assert!(lock.try_lock().await.unwrap().is_none());
    assert!(lock.force_unlock().await.unwrap());
    assert!(!lock.is_locked().await.unwrap());
    assert!(!lock.force_unlock().await.unwrap());
    let guard = lock.lock().await.unwrap();
    assert!(lock.force_unlock().await.unwrap());
    assert_eq!(guard.state(), HoldState::Lost(Loss::ForceUnlocked));
}

#[tokio::test]
async fn waiters_poll_at_random_intervals() {
    let (server, key) = (Server::start(), key());
    let connect = builder(&server.url(), Duration::from_secs(30)).poll_interval(ms(20)..ms(60));
    let locks = connect.format(Format::Plain).connect().await.unwrap();
    locks
        .get(crate::common::key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    assert!(foreign_set(&server, &key, "somebody", "60000"));
    let lock = locks.get(&key);
    let waiting = tokio::spawn(async move { lock.lock().await });
    let before = (server.calls("evalsha"), Instant::now());
    tokio::time::sleep(ms(1_000)).await;
    let (looks, time) = (
        server.calls("evalsha") - before.0,
        before.1.elapsed().as_millis(),
    );
    assert!(
        u128::from(looks) <= time / 20 + 2 && looks >= 8,
        "{looks} polls in {time} ms"
    );
    // Nothing is published.
    server.command::<u64>(&["DEL", &key]);
    let guard = crate::common::soon(ms(500), waiting)
        .await
        .expect("the next poll")
        .unwrap()
        .unwrap();
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn waiters_are_woken_at_once_by_releases_of_this_crate() {
    let (server, key) = (Server::start(), key());
    let connect = || {
        let far = Duration::from_secs(4)..Duration::from_secs(5);
        builder(&server.url(), Duration::from_secs(30))
            .poll_interval(far)
            .format(Format::Plain)
            .connect()
    };
    let (holder, waiter) = (connect().await.unwrap(), connect().await.unwrap());
    let guard = holder.get(&key).lock().await.unwrap();
    let lock = waiter.get(&key);
    let waiting = tokio::spawn(async move { lock.lock().await });
    eventually(ms(2_000), "the waiter listens", || {
        server
            .command::<Vec<String>>(&["PUBSUB", "CHANNELS", "redisson_lock__channel:*"])
            .len()
            == 1
            && waiter.stats().waiters == 1
    })
    .await;
    // After its barrier the waiter makes one more attempt before it waits.
    tokio::time::sleep(ms(100)).await;
    let released = Instant::now();
    guard.unlock().await.unwrap();
    let entered = waiting.await.unwrap().unwrap();
    assert!(
        crate::common::machine::within(released.elapsed(), ms(1_000)),
        "{:?}",
        released.elapsed()
    );
    entered.unlock().await.unwrap();
}

#[tokio::test]
async fn a_grant_whose_reply_is_lost_is_undone() {
    let (server, key) = (Server::start(), key());
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url(), ms(3_000))
        .format(Format::Plain)
        .connect()
        .await
        .unwrap();
    locks
        .get(crate::common::key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    proxy.set(Mode::SwallowReplyTo(b"lockhound_fence".to_vec()));
    let lock = locks.get(&key);
    let waiting = tokio::spawn(async move { lock.lock().await });
    eventually(ms(3_000), "replies were swallowed", || {
        proxy.swallowed() >= 2
    })
    .await;
    proxy.set(Mode::Pass);
    waiting.await.unwrap().unwrap().unlock().await.unwrap();
    eventually(ms(1_000), "what was granted unseen is undone", || {
        !server.exists(&key)
    })
    .await;
}

/// Runs each script, and then a late copy of it.
#[test]
fn late_copies_of_scripts_change_nothing() {
    let (server, key) = (Server::start(), key());
    let mut connection = server.connection().unwrap();
    let (fence, channel) = (
        crate::common::marks::mark(&key),
        format!("redisson_lock__channel:{{{key}}}"),
    );
    let acquire = crate::common::acquire_script(include_str!("../../lua/plain/acquire.lua"));
    let body = include_str!("../../lua/plain/release.lua")
        .replace("-- wake.lua\n", include_str!("../../lua/shared/wake.lua"));
    let release = redis::Script::new(&body);
    let mut acquire = |value: &str| -> (i64, u64) {
        acquire
            .key(&key)
            .key(&fence)
            .arg(5_000)
            .arg(value)
            .arg(0)
            .invoke(&mut connection)
            .unwrap()
    };
    let (granted, first) = acquire("u:1:1");
    let (again, second) = acquire("u:1:1");
    assert_eq!((granted, again), (1, 1), "the owner has it already");
    assert!(second > first);
    assert_eq!(
        acquire("u:1:2").0,
        0,
        "another generation of the same owner is refused"
    );
    let mut connection = server.connection().unwrap();
    let mut release = |value: &str| -> i64 {
        release
            .key(&key)
            .key(&channel)
            .arg(value)
            .arg("")
            .arg("")
            .invoke(&mut connection)
            .unwrap()
    };
    assert_eq!(release("u:1:0"), -1, "the undo of an earlier attempt");
    assert_eq!((release("u:1:1"), release("u:1:1")), (0, -1));
    assert!(!server.exists(&key));
}

/// Grants are undone, tried again and released: no two holders overlap, every waiter returns, and
/// no key is left.
#[tokio::test(flavor = "multi_thread")]
async fn lost_replies_under_load_break_no_promise() {
    let (server, key) = (Server::start(), key());
    let proxy = Arc::new(Proxy::start(server.port()));
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let connect = builder(&proxy.url(), ms(1_000)).outage_tolerance(Duration::from_secs(30));
        let locks = connect.format(Format::Plain).connect().await.unwrap();
        for _ in 0..3 {
            let lock = locks.get(&key).owned_by(Owner::new());
            tasks.push(tokio::spawn(async move {
                let mut visits = Vec::new();
                while visits.len() < 40 {
                    let Ok(guard) = lock.lock().await else {
                        continue;
                    };
                    let (who, fence, entered) = (
                        guard.owner().to_string(),
                        guard.fence().get(),
                        record::now(),
                    );
                    tokio::task::yield_now().await;
                    // The time is read before the check: if the check succeeds, the lock was held
                    // until then.
                    let left = record::now();
                    if guard.check().is_ok() {
                        visits.push(Visit {
                            key: lock.key().to_string(),
                            who,
                            fence,
                            entered,
                            left,
                        });
                    }
                    drop(guard.unlock().await);
                }
                visits
            }));
        }
    }
    let (over, harmed) = (Arc::new(AtomicBool::new(false)), Arc::clone(&proxy));
    let until = Arc::clone(&over);
    let harm = std::thread::spawn(move || {
        while !until.load(Ordering::Relaxed) {
            harmed.set(Mode::SwallowReplyTo(b"EVALSHA".to_vec()));
            std::thread::sleep(ms(fastrand::u64(1..20)));
            harmed.set(Mode::Pass);
            std::thread::sleep(ms(fastrand::u64(10..100)));
        }
    });
    let mut record = Record::default();
    for task in tasks {
        record.visits.extend(task.await.unwrap());
    }
    over.store(true, Ordering::Relaxed);
    harm.join().unwrap();
    assert!(proxy.swallowed() > 0);
    record.check().unwrap();
    eventually(ms(1_500), "no key is left after a lease", || {
        !server.exists(&key)
    })
    .await;
}

#[tokio::test]
async fn a_server_without_memory_refuses_and_keeps_no_lock() {
    let (server, key) = (Server::start(), key());
    let locks = plain(&server, ms(3_000)).await;
    let held = locks.get(crate::common::key()).lock().await.unwrap();
    server.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = locks.get(&key).lock().await.expect_err("no memory");
    assert!(
        matches!(
            error,
            Error::Server {
                kind: ServerErrorKind::OutOfMemory,
                ..
            }
        ),
        "{error}"
    );
    assert!(!server.exists(&key));
    held.unlock().await.unwrap();
}

#[tokio::test]
async fn the_plain_format_needs_no_hash_commands() {
    let rights = ["on", ">pw", "~*", "&*", "+@all", "-@hash", "-exists"];
    let server = Server::start_with(&[&["--user", "app"][..], &rights[..]].concat());
    let url = format!("redis://app:pw@127.0.0.1:{}", server.port());
    let lock = builder(&url, ms(600))
        .format(Format::Plain)
        .connect()
        .await
        .unwrap()
        .get(key());
    let outer = lock.lock().await.unwrap();
    let nested = lock.lock().await.unwrap();
    tokio::time::sleep(ms(900)).await;
    assert_eq!(outer.state(), HoldState::Safe, "renewed");
    assert!(lock.is_locked().await.unwrap());
    nested.unlock().await.unwrap();
    outer.unlock().await.unwrap();
    assert!(!lock.is_locked().await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn lockers_of_the_plain_format_exclude_each_other() {
    let (server, key) = (Server::start(), key());
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let locks = plain(&server, ms(10_000)).await;
        for _ in 0..4 {
            let lock = locks.get(&key);
            tasks.push(tokio::spawn(async move {
                let mut visits = Vec::new();
                for _ in 0..100 {
                    let guard = lock.lock().await.unwrap();
                    let (who, fence, entered) = (
                        guard.owner().to_string(),
                        guard.fence().get(),
                        record::now(),
                    );
                    tokio::task::yield_now().await;
                    let left = record::now();
                    visits.push(Visit {
                        key: lock.key().to_string(),
                        who,
                        fence,
                        entered,
                        left,
                    });
                    guard.unlock().await.unwrap();
                }
                visits
            }));
        }
    }
    let mut record = Record::default();
    for task in tasks {
        record.visits.extend(task.await.unwrap());
    }
    assert_eq!(record.visits.len(), 1_200);
    record.check().unwrap();
    assert!(!server.exists(&key));
}
