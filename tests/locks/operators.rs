//! What operators can ask and do: the holder of a lock, and `force_unlock`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::common::proxy::{Mode, Proxy};
use crate::common::several::{on, over, servers};
use crate::common::{Server, builder, eventually, key, locker, locker_with, ms, they_wait};
use lockhound::{Error, Format, HoldState, Lock, Locker, Loss, Owner, ServerErrorKind};

#[tokio::test]
async fn holder_reports_the_owner_the_hold_count_and_the_lease_left() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let lock = locks.get(&key);
    assert!(lock.holder().await.unwrap().is_none());
    assert!(!lock.is_locked().await.unwrap());
    let guard = lock.lock().await.unwrap();
    let nested = lock.lock().await.unwrap();
    let holder = locker(&server)
        .await
        .get(&key)
        .holder()
        .await
        .unwrap()
        .expect("held");
    assert!(
        holder
            .owner()
            .starts_with(&format!("{}:{}:", locks.id(), guard.owner())),
        "{holder:?}"
    );
    assert_eq!(holder.hold_count(), 2);
    let remaining = holder.remaining().expect("a lease");
    assert!(
        remaining <= ms(30_000) && remaining > ms(29_000),
        "{remaining:?}"
    );
    assert!(lock.is_locked().await.unwrap());
    drop((guard, nested));
}

#[tokio::test]
async fn holder_reports_foreign_owners_whatever_their_bytes() {
    let server = Server::start();
    let locks = locker(&server).await;
    let mut connection = server.connection().unwrap();
    let owner = [0xff, 0x00, b'\r', b'\n', 0xfe];
    let (hash, string, forever, readers) = (key(), key(), key(), key());
    let set = |command: &mut redis::Cmd, connection: &mut redis::Connection| {
        command.exec(connection).unwrap();
    };
    set(
        redis::cmd("HSET").arg(&hash).arg(&owner[..]).arg(3),
        &mut connection,
    );
    set(redis::cmd("PEXPIRE").arg(&hash).arg(5_000), &mut connection);
    set(
        redis::cmd("SET")
            .arg(&string)
            .arg(&owner[..])
            .arg("PX")
            .arg(5_000),
        &mut connection,
    );
    set(
        redis::cmd("HSET").arg(&forever).arg("somebody:1").arg(1),
        &mut connection,
    );
    set(
        redis::cmd("HSET")
            .arg(&readers)
            .arg("mode")
            .arg("read")
            .arg("u:1")
            .arg(2),
        &mut connection,
    );
    for (key, count) in [(&hash, 3), (&string, 1)] {
        let holder = locks.get(key).holder().await.unwrap().expect("held");
        assert_eq!(
            (holder.owner_bytes(), holder.hold_count()),
            (&owner[..], count)
        );
        assert!(holder.remaining().is_some());
        assert!(
            locks
                .get(key)
                .try_lock()
                .await
                .map_or(true, |guard| guard.is_none()),
            "it is not ours to take"
        );
    }
    assert_eq!(
        locks
            .get(&forever)
            .holder()
            .await
            .unwrap()
            .expect("held")
            .remaining(),
        None
    );
    let reader = locks.get(&readers).holder().await.unwrap().expect("held");
    assert_eq!((reader.owner().as_ref(), reader.hold_count()), ("u:1", 2));
    let list = key();
    server.command::<u64>(&["RPUSH", &list, "x"]);
    let error = locks
        .get(&list)
        .holder()
        .await
        .expect_err("a list is no lock");
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
}

/// The reply of the server names no key.
#[tokio::test]
async fn a_refusal_for_a_wrong_type_names_the_key_and_its_type() {
    let server = Server::start();
    for format in [Format::Redisson, Format::Plain] {
        let locks = builder(&server.url(), ms(3_000))
            .format(format)
            .connect()
            .await
            .unwrap();
        let (free, other) = (key(), key());
        // In the plain format a key of another type is held by somebody else.
        if format == Format::Redisson {
            for (kind, words) in [("list", &["RPUSH", "x"][..]), ("string", &["SET", "x"])] {
                let key = key();
                server.command::<redis::Value>(&[words[0], &key, words[1]]);
                let said = locks.get(&key).lock().await.expect_err(kind).to_string();
                assert!(said.contains(&format!("{key:?} holds a {kind}")), "{said}");
                let said = locks
                    .multi([&free, &key])
                    .try_lock()
                    .await
                    .expect_err(kind)
                    .to_string();
                assert!(said.contains(&format!("{key:?} holds a {kind}")), "{said}");
            }
        }
        server.command::<()>(&["FLUSHALL"]);
        locks
            .get(&other)
            .lock()
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
        let [mark] = &server.command::<Vec<String>>(&["KEYS", "lockhound_fence:*"])[..] else {
            panic!("one mark")
        };
        server.command::<redis::Value>(&["DEL", mark]);
        server.command::<redis::Value>(&["SADD", mark, "x"]);
        let said = locks
            .get(&other)
            .lock()
            .await
            .expect_err("no counter")
            .to_string();
        assert!(
            said.contains(&format!(
                "{mark:?}, which counts the fences of this lock, holds a set"
            )),
            "{said}"
        );
        assert!(said.contains(&format!("the lock {other:?}")), "{said}");
        server.command::<redis::Value>(&["DEL", mark]);
        locks
            .get(&other)
            .lock()
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn force_unlock_tells_local_holders_at_once_and_wakes_waiters() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let lock = locks.get(&key);
    let guard = lock.lock().await.unwrap();
    let waiter = lock.clone();
    let waiting = tokio::spawn(async move { waiter.lock().await });
    they_wait(&locks, 1).await;
    assert!(lock.force_unlock().await.unwrap());
    assert_eq!(guard.state(), HoldState::Lost(Loss::ForceUnlocked));
    assert!(guard.lost().is_cancelled());
    let entered = crate::common::soon(ms(500), waiting)
        .await
        .expect("woken")
        .unwrap()
        .unwrap();
    assert!(matches!(
        guard.unlock().await,
        Err(Error::Lost {
            loss: Loss::ForceUnlocked,
            ..
        })
    ));
    entered.check().unwrap();
    assert!(
        server.exists(&key),
        "the stale unlock does not affect the next holder"
    );
    entered.unlock().await.unwrap();
    assert!(!lock.force_unlock().await.unwrap(), "it was free");
}

#[tokio::test]
async fn the_next_renewal_notices_a_force_unlock_by_another_process() {
    let (server, key) = (Server::start(), key());
    let (one, other) = (locker_with(&server, ms(900)).await, locker(&server).await);
    let guard = one.get(&key).lock().await.unwrap();
    assert!(other.get(&key).force_unlock().await.unwrap());
    crate::common::soon(ms(700), guard.lost().cancelled())
        .await
        .expect("a third of the lease");
    assert_eq!(guard.state(), HoldState::Lost(Loss::NotOwner));
}

#[tokio::test]
async fn force_unlock_deletes_nothing_that_cannot_be_a_lock() {
    let server = Server::start();
    let uuid = "5cb1f0b5-0000-4000-8000-000000000000";
    let owned = format!("{uuid}:7");
    for format in [Format::Redisson, Format::Plain] {
        let locks = builder(&server.url(), ms(3_000))
            .format(format)
            .connect()
            .await
            .unwrap();
        for (kind, words) in [
            ("a list", &["RPUSH", "x"][..]),
            ("a set", &["SADD", "x"]),
            ("a zset", &["ZADD", "1", "x"]),
            ("a stream", &["XADD", "*", "f", "v"]),
            ("a hash", &["HSET", "name", "ann"]),
            ("a hash", &["HSET", "somebody:1", "1"]),
            ("a hash", &["HSET", "mode", "read"]),
            ("a hash", &["HSET", &owned, "ann"]),
            ("a hash", &["HSET", &owned, "1", "name", "ann"]),
            ("a hash", &["HSET", uuid, "1"]),
        ] {
            let key = key();
            let command: Vec<&str> = [words[0], &key]
                .into_iter()
                .chain(words[1..].iter().copied())
                .collect();
            server.command::<redis::Value>(&command);
            let error = locks.get(&key).force_unlock().await.expect_err(kind);
            assert!(
                matches!(
                    error,
                    Error::Server {
                        kind: ServerErrorKind::WrongType,
                        ..
                    }
                ),
                "{error:?}"
            );
            let text = error.to_string();
            assert!(text.contains(&format!("{key:?} holds {kind}")), "{text}");
            assert!(server.exists(&key), "{command:?}");
        }
    }
}

#[tokio::test]
async fn force_unlock_releases_every_kind_of_holder() {
    let server = Server::start();
    let uuid = "5CB1f0b5-0000-4000-8000-000000000000";
    let owner = |id: &str| format!("{uuid}:{id}");
    for format in [Format::Redisson, Format::Plain] {
        let locks = builder(&server.url(), ms(3_000))
            .format(format)
            .connect()
            .await
            .unwrap();
        for fields in [
            vec![owner("7:1"), "1".into()],
            vec![owner("o7:12"), "2".into()],
            vec![owner("-5"), "3".into()],
            vec![
                "mode".into(),
                "read".into(),
                owner("7"),
                "2".into(),
                owner("8"),
                "1".into(),
            ],
            vec!["mode".into(), "write".into(), owner("7:write"), "1".into()],
        ] {
            let key = key();
            let command: Vec<&str> = ["HSET", &key]
                .into_iter()
                .chain(fields.iter().map(String::as_str))
                .collect();
            server.command::<u64>(&command);
            assert!(locks.get(&key).force_unlock().await.unwrap(), "{command:?}");
            assert!(!server.exists(&key));
        }
        let key = key();
        server.command::<()>(&["SET", &key, "any value"]);
        assert!(locks.get(&key).force_unlock().await.unwrap());
        assert!(!server.exists(&key));
        assert!(
            !locks.get(&key).force_unlock().await.unwrap(),
            "it was free"
        );
    }
}

#[tokio::test]
async fn a_lock_of_the_plain_format_is_an_error_until_its_lease_ends() {
    let (server, key) = (Server::start(), key());
    server.command::<()>(&["SET", &key, "somebody", "PX", "600"]);
    let lock = locker(&server).await.get(&key).owned_by(Owner::new());
    let error = lock.lock().await.expect_err("another format");
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
    eventually(ms(2_000), "it ran out", || !server.exists(&key)).await;
    lock.lock().await.unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn a_missing_permission_is_an_error_and_leaves_no_endless_lock() {
    let server = Server::start_with(&[
        "--user",
        "weak",
        "on",
        ">pw",
        "~*",
        "&*",
        "+@all",
        "-pexpire",
        "--user",
        "weaker",
        "on",
        ">pw",
        "~*",
        "&*",
        "+@all",
        "-pexpire",
        "-del",
        "--user",
        "deaf",
        "on",
        ">pw",
        "~*",
        "resetchannels",
        "+@all",
    ]);
    let connect = |user: &str| {
        lockhound::Locker::connect(format!("redis://{user}:pw@127.0.0.1:{}", server.port()))
    };
    for user in ["weak", "weaker"] {
        let key = key();
        let error = connect(user)
            .await
            .unwrap()
            .get(&key)
            .lock()
            .await
            .expect_err("no PEXPIRE");
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
        assert!(
            error
                .to_string()
                .ends_with("does not permit this user to run 'pexpire'"),
            "{error}"
        );
        eventually(
            ms(50),
            "a lock without a lease would stand for ever",
            || !server.exists(&key),
        )
        .await;
    }
    // Without rights to the channels the lock works, and waiters poll.
    let deaf = connect("deaf").await.unwrap();
    let lock = deaf.get(key());
    let guard = lock.lock().await.unwrap();
    let nested = lock.lock().await.unwrap();
    nested.unlock().await.unwrap();
    guard.unlock().await.unwrap();
    assert!(!server.exists(lock.key().as_str()));
}

/// A force_unlock releases the current holder only: it does not delete the lock that the next
/// waiter was granted.
#[tokio::test(flavor = "multi_thread")]
async fn force_unlock_does_not_delete_the_next_local_waiters_grant() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let mut tasks = Vec::new();
    // Counts the begin and the end of each force_unlock, so it is even while none is under way.
    let forces = Arc::new(AtomicU32::new(0));
    for _ in 0..4 {
        let (lock, forces) = (locks.get(&key).owned_by(Owner::new()), Arc::clone(&forces));
        tasks.push(tokio::spawn(async move {
            let mut forced = 0;
            for _ in 0..150 {
                let before = forces.load(Ordering::SeqCst);
                let guard = lock.lock().await.unwrap();
                // A force_unlock that was under way while the grant was may have deleted it: a
                // renewal notices that.
                let is_known = before.is_multiple_of(2) && forces.load(Ordering::SeqCst) == before;
                let field = format!(":{}:", guard.owner());
                let holder = lock.holder().await.unwrap();
                // A guard is lost before its key is deleted, so a guard that is not lost still has
                // its key.
                if is_known && !guard.is_lost() {
                    assert!(
                        holder.as_ref().is_some_and(|h| h.owner().contains(&field)),
                        "{holder:?} {guard:?}"
                    );
                }
                match guard.unlock().await {
                    Ok(()) => {}
                    // The force may come while the release is on its way.
                    Err(Error::Lost {
                        loss: Loss::ForceUnlocked | Loss::NotOwner,
                        ..
                    }) => forced += 1,
                    Err(other) => panic!("{other}"),
                }
            }
            forced
        }));
    }
    let forcing = locks.get(&key);
    let mut deposed = 0;
    while tasks.iter().any(|task| !task.is_finished()) {
        forces.fetch_add(1, Ordering::SeqCst);
        deposed += u32::from(forcing.force_unlock().await.unwrap());
        forces.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(ms(1)).await;
    }
    let mut told = 0;
    for task in tasks {
        told += task.await.unwrap();
    }
    assert!(deposed > 0 && told > 0, "deposed {deposed}, told {told}");
    assert!(!server.exists(&key));
    assert_eq!(locks.stats().holds, 0);
}

/// One force_unlock: when it was called, when it was answered, and whether it deposed a holder.
type Force = (Instant, Instant, bool);

/// Calls `force_unlock` in a loop until `ended`.
fn force(lock: Lock, ended: Instant) -> tokio::task::JoinHandle<Vec<Force>> {
    tokio::spawn(async move {
        let mut forces = Vec::new();
        while Instant::now() < ended {
            let began = Instant::now();
            let deposed = lock.force_unlock().await.unwrap();
            forces.push((began, Instant::now(), deposed));
        }
        forces
    })
}

/// Four callers force the lock through a slow connection, so that a force_unlock is always under
/// way. For each guard that was deposed, one of them returned true.
#[tokio::test(flavor = "multi_thread")]
async fn one_of_several_overlapping_force_unlocks_reports_each_holder() {
    let (server, key) = (Server::start(), key());
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url(), ms(60_000)).connect().await.unwrap();
    proxy.set(Mode::Delay(ms(1)));
    let ended = Instant::now() + ms(3_000);
    let forcing: Vec<_> = (0..4).map(|_| force(locks.get(&key), ended)).collect();
    let others = Locker::connect(server.url()).await.unwrap();
    let locking = (0..4).map(|at| {
        // The first belongs to another locker: force_unlock finds its hold on the server only.
        let locks = if at == 0 { &others } else { &locks };
        let lock = locks.get(&key).owned_by(Owner::new());
        tokio::spawn(async move {
            let mut deposed = Vec::new();
            while Instant::now() < ended {
                let asked = Instant::now();
                // On a busy machine the answer may not come within so short a time.
                let tried = lock.try_lock_for(ms(50)).await;
                assert!(
                    matches!(&tried, Ok(_) | Err(Error::Unavailable { .. })),
                    "{tried:?}"
                );
                let Ok(Some(guard)) = tried else { continue };
                tokio::time::sleep(Duration::from_micros(fastrand::u64(0..3_000))).await;
                match guard.unlock().await {
                    Ok(()) => {}
                    Err(Error::Lost {
                        loss: Loss::ForceUnlocked | Loss::NotOwner,
                        ..
                    }) => {
                        deposed.push((asked, Instant::now()));
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            deposed
        })
    });
    let locking: Vec<_> = locking.collect();
    let mut deposed = Vec::new();
    for task in locking {
        deposed.extend(task.await.unwrap());
    }
    let mut forces = Vec::new();
    for task in forcing {
        forces.extend(task.await.unwrap());
    }
    assert!(
        deposed.len() > 20 && forces.iter().any(|(.., deposed)| !deposed),
        "{} deposed",
        deposed.len()
    );
    for (from, to) in &deposed {
        let said = forces
            .iter()
            .any(|(began, answered, deposed)| *deposed && began < to && answered > from);
        assert!(said, "no force_unlock reported it");
    }
    // Attempts that were given up may still be executed; `close` waits until they are undone.
    locks.close().await;
    others.close().await;
    let locks = Locker::connect(server.url()).await.unwrap();
    assert!(!locks.get(&key).force_unlock().await.unwrap(), "it is free");
}

/// Returns the digest by which a force_unlock names the holder of a lock.
fn name_of_holder(server: &Server, format: Format, key: &str) -> String {
    let held = match format {
        Format::Redisson => server.fields(key)[0].0.clone(),
        Format::Plain => server.command(&["GET", key]),
        other => panic!("{other:?}"),
    };
    server.command(&["EVAL", "return redis.sha1hex(ARGV[1])", "0", &held])
}

/// A bug: a force_unlock that arrived late deleted the lock of the next holder.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_force_unlock_does_not_depose_the_next_holder() {
    let server = Server::start();
    for format in [Format::Redisson, Format::Plain] {
        let (key, known) = (key(), key());
        let proxy = Proxy::start(server.port());
        let with = |url: &str| {
            builder(url, ms(9_000))
                .format(format)
                .command_timeout(ms(2_500))
        };
        let (operator, locks) = (
            with(&proxy.url()).connect().await.unwrap(),
            with(&server.url()).connect().await.unwrap(),
        );
        let first = locks.get(&key).owned_by(Owner::new()).lock().await.unwrap();
        // The server knows both scripts, so that the script that is held back is not sent again as
        // text.
        let forced = locks.get(&known).lock().await.unwrap();
        assert!(operator.get(&known).force_unlock().await.unwrap());
        drop(forced);
        proxy.set(Mode::Hold(
            name_of_holder(&server, format, &key).into_bytes(),
        ));
        let forcing = tokio::spawn({
            let lock = operator.get(&key);
            async move { lock.force_unlock().await }
        });
        eventually(ms(2_000), "on its way", || proxy.held() > 0).await;
        first.unlock().await.unwrap();
        let second = locks.get(&key).owned_by(Owner::new()).lock().await.unwrap();
        proxy.set(Mode::Pass);
        let answer = forcing.await.unwrap();
        assert!(
            matches!(answer, Ok(false) | Err(Error::Unavailable { .. })),
            "{answer:?}"
        );
        // This command runs after the one that was held back, on the same connection.
        assert!(operator.get(&key).is_locked().await.unwrap());
        second.check().unwrap();
        second
            .unlock()
            .await
            .expect("the second holder still owns the lock");
    }
}

/// A reader that force_unlock has not seen keeps the whole lock.
#[tokio::test]
async fn a_force_unlock_keeps_a_lock_with_a_reader_it_has_not_seen() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let operator = builder(&proxy.url(), ms(3_000)).connect().await.unwrap();
    let reader = |n: u32| format!("5cb1f0b5-0000-4000-8000-{n:012}:1");
    for (comes, stays) in [(Some(reader(3)), true), (None, false)] {
        let key = key();
        server.command::<()>(&[
            "HSET",
            &key,
            "mode",
            "read",
            &reader(1),
            "1",
            &reader(2),
            "2",
        ]);
        let named: String =
            server.command(&["EVAL", "return redis.sha1hex(ARGV[1])", "0", &reader(1)]);
        let held = proxy.held();
        proxy.set(Mode::Hold(named.into_bytes()));
        let lock = operator.get(&key);
        let forcing = tokio::spawn(async move { lock.force_unlock().await });
        eventually(ms(2_000), "on its way", || proxy.held() > held).await;
        server.command::<()>(&["HDEL", &key, &reader(1)]);
        if let Some(reader) = comes {
            server.command::<()>(&["HSET", &key, &reader, "1"]);
        }
        proxy.set(Mode::Pass);
        assert_eq!(forcing.await.unwrap().unwrap(), !stays);
        assert_eq!(server.exists(&key), stays);
    }
}

/// Each server releases the holder that it reported itself.
#[tokio::test]
async fn a_force_unlock_of_servers_naming_different_holders_frees_all() {
    let (servers, key) = (servers(3), key());
    let locks = over(&servers, ms(3_000)).connect().await.unwrap();
    let held = |format: Format, n: usize| {
        let owner = format!("5cb1f0b5-0000-4000-8000-{n:012}:1");
        match format {
            Format::Redisson => servers[n].command::<()>(&["HSET", &key, &owner, "1"]),
            Format::Plain => servers[n].command::<()>(&["SET", &key, &owner]),
            other => panic!("{other:?}"),
        }
    };
    held(Format::Redisson, 0);
    held(Format::Plain, 1);
    assert!(locks.get(&key).force_unlock().await.unwrap());
    eventually(ms(1_000), "free", || on(&servers, &key) == 0).await;
    (0..3).for_each(|n| held(Format::Redisson, n));
    assert!(locks.get(&key).force_unlock().await.unwrap());
    assert!(on(&servers, &key) < 2, "no majority has a holder any more");
    eventually(ms(1_000), "free", || on(&servers, &key) == 0).await;
}

/// A grant is not affected by force_unlocks of another lock at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn force_unlocks_of_one_lock_do_not_affect_another_lock() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url(), ms(60_000)).connect().await.unwrap();
    proxy.set(Mode::Delay(ms(1)));
    let ended = Instant::now() + ms(1_000);
    let forced = key();
    let forcing: Vec<_> = (0..4).map(|_| force(locks.get(&forced), ended)).collect();
    let lock = locks.get(key());
    let mut granted = 0;
    while Instant::now() < ended {
        let guard = lock.try_lock().await.unwrap().expect("it is free");
        guard.unlock().await.unwrap();
        granted += 1;
    }
    for task in forcing {
        assert!(task.await.unwrap().iter().all(|(.., deposed)| !deposed));
    }
    assert!(granted > 20, "{granted}");
    assert_eq!(locks.stats().losses.total(), 0);
}

/// Returns how many connections a server has accepted.
fn connections(server: &Server) -> u64 {
    let info: String = server.command(&["INFO", "stats"]);
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("total_connections_received:"));
    line.unwrap().trim().parse().unwrap()
}

/// A reply with a fraction still belongs to its script, and is not taken for a mismatched reply.
#[tokio::test]
async fn asking_for_a_foreign_hashs_holder_gives_up_no_connection() {
    let server = Server::start();
    let locks = locker(&server).await;
    let before = connections(&server);
    for value in [
        "1.5",
        "-2.5",
        "1e300",
        "nan",
        "inf",
        "-inf",
        "-3",
        "9007199254740993",
        "",
        "x",
    ] {
        let key = key();
        server.command::<()>(&["HSET", &key, "price", value]);
        let holder = locks.get(&key).holder().await;
        assert_eq!(
            holder
                .unwrap_or_else(|e| panic!("{value}: {e}"))
                .expect("held")
                .owner(),
            "price",
            "{value}"
        );
    }
    assert_eq!(locks.stats().mismatched_replies, 0);
    // Each command of the test itself opened a connection of its own.
    assert!(
        connections(&server) <= before + 11,
        "{before} {}",
        connections(&server)
    );
}

#[tokio::test]
async fn values_are_shown_in_a_short_line_without_internals() {
    let server = Server::start();
    let locks = locker(&server).await;
    let lock = locks.get("orders:42");
    let several = locks.multi(["a", "b"]);
    let guard = lock.lock().await.unwrap();
    let section = locks
        .get("run")
        .run(async |section| format!("{section:?}"))
        .await
        .unwrap();
    for (shown, words) in [
        (format!("{locks:?}"), vec!["Locker", "id", "redis://"]),
        (format!("{lock:?}"), vec!["Lock", "orders:42"]),
        (format!("{several:?}"), vec!["MultiLock", "\"a\"", "\"b\""]),
        (
            format!("{guard:?}"),
            vec!["Guard", "orders:42", "fence", "Safe"],
        ),
        (
            format!("{:?}", several.lock().await.unwrap()),
            vec!["MultiGuard", "\"a\""],
        ),
        (section, vec!["Section", "run"]),
        (
            format!("{:?}", lock.holder().await.unwrap()),
            vec!["Holder", "owner", "hold_count", "remaining"],
        ),
        (
            format!("{:?}", builder(&server.url(), ms(3_000)).prefix("app:")),
            vec!["LockerBuilder", "redis://", "app:"],
        ),
        (format!("{:?}", Error::Closed), vec!["Closed"]),
        (
            format!("{:?}", locks.get("").try_lock().await.unwrap_err()),
            vec!["Config", "key"],
        ),
    ] {
        assert!(words.iter().all(|word| shown.contains(word)), "{shown}");
        assert!(shown.len() < 200 && !shown.contains('\n'), "{shown}");
        assert!(
            !["Arc", "Mutex", "Session", "Settings", "Options"]
                .iter()
                .any(|word| shown.contains(word)),
            "{shown}"
        );
    }
}

/// The holder is told of its loss and drops its guard; the next one has the lock before the command
/// is executed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn force_unlock_takes_the_lock_from_nobody_that_came_after_it() {
    let server = Server::start();
    let (locks, other) = (locker(&server).await, locker(&server).await);
    for _ in 0..100 {
        let lock = locks.get(key()).owned_by(Owner::new());
        let held = lock.lock().await.unwrap();
        let lost = held.lost();
        let leaving = tokio::spawn(async move {
            lost.cancelled().await;
            drop(held);
        });
        let next = lock.clone().owned_by(Owner::new());
        let next = tokio::spawn(async move { next.lock().await.unwrap() });
        eventually(ms(10_000), "it waits", || locks.stats().waiters == 1).await;
        assert!(lock.force_unlock().await.unwrap());
        leaving.await.unwrap();
        let next = next.await.unwrap();
        assert!(
            other.get(lock.key()).try_lock().await.unwrap().is_none() || next.is_lost(),
            "two are inside"
        );
        next.unlock().await.unwrap();
    }
}
