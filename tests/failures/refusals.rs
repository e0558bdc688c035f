//! A server that refuses commands: what happens to a lock, a nested lock, an unlock and a renewal,
//! with real servers in each state.

use std::time::{Duration, Instant};

use crate::common::proxy::{Mode, Proxy};
use crate::common::{Server, builder, eventually, key, ms};
use lockhound::{Error, HoldState, Loss, Owner, ServerErrorKind};

/// What the operations do while the server is in a state.
struct Expected {
    /// The error of `lock`. `None`: `lock` rides the state out, and succeeds when it is over.
    lock: Option<ServerErrorKind>,
    unlock: Unlock,
    /// Whether renewals fail meanwhile.
    jeopardy: bool,
}

enum Unlock {
    Done,
    /// Not confirmed; released once the state is over.
    Later,
    /// Refused; the lock ends with its lease.
    Refused(ServerErrorKind),
}

/// Takes locks, brings the server into a state, checks each operation, and ends the state.
async fn in_state(
    server: &Server,
    name: &str,
    enter: impl FnOnce(),
    leave: impl FnOnce(),
    expected: Expected,
) {
    // A tick comes every 1.5 s and has 450 ms: the first has failed after two seconds, and the
    // second after 3.4 s.
    let locks = builder(&server.url(), ms(4_500))
        .outage_tolerance(Duration::from_secs(10))
        .connect()
        .await
        .unwrap();
    let lock = || locks.get(key()).owned_by(Owner::new());
    let (nested, unlocked, renewed, waited) = (lock(), lock(), lock(), lock());
    let outer = nested.lock().await.unwrap();
    let to_unlock = unlocked.lock().await.unwrap();
    let to_renew = renewed.lock().await.unwrap();
    // Every script is known to the server, so that each answer is that of the state.
    nested.lock().await.unwrap().unlock().await.unwrap();
    lock().lock().await.unwrap().unlock().await.unwrap();

    let since = Instant::now();
    enter();

    let inner = nested
        .lock()
        .await
        .unwrap_or_else(|e| panic!("{name}: a safe lock is entered again: {e}"));
    assert_eq!(
        (inner.hold_count(), outer.state()),
        (2, HoldState::Safe),
        "{name}"
    );
    let answer = to_unlock.unlock().await;
    match (&expected.unlock, &answer) {
        (Unlock::Done, Ok(())) | (Unlock::Later, Err(Error::Unavailable { .. })) => {}
        (Unlock::Refused(kind), Err(Error::Server { kind: found, .. })) if kind == found => {}
        _ => panic!("{name}: unlock: {answer:?}"),
    }
    let mut answer = lock().try_lock().await;
    let is_silence = |answer: &Result<_, Error>| match answer {
        Err(Error::Unavailable { nodes, .. }) => nodes[0].reason().contains("timed out"),
        _ => false,
    };
    // The first attempt may come while a killed connection is being made again. On a busy machine
    // the server's answer may be late.
    for tried in 0.. {
        if !is_silence(&answer) || (tried > 0 && !crate::common::machine::again(tried)) {
            break;
        }
        answer = lock().try_lock().await;
    }
    match (&expected.lock, &answer) {
        (None, Err(Error::Unavailable { nodes, .. })) => {
            assert!(nodes[0].reason().contains(name), "{name}: {}", nodes[0]);
            // What it means, and what to do.
            let is_explained = nodes[0].reason().ends_with(')')
                || matches!(name, "LOADING" | "NOAUTH" | "WRONGPASS");
            assert!(is_explained, "{name}: {}", nodes[0]);
        }
        (
            Some(kind),
            Err(Error::Server {
                kind: found,
                source,
                ..
            }),
        ) if kind == found => {
            assert!(source.to_string().contains(name), "{name}: {source}");
        }
        _ => panic!("{name}: try_lock: {answer:?}"),
    }
    let waiting = tokio::spawn({
        let waited = waited.clone();
        async move { waited.lock().await }
    });
    if expected.jeopardy {
        eventually(ms(3_000), "jeopardy", || {
            to_renew.state() == HoldState::Jeopardy
        })
        .await;
    } else {
        tokio::time::sleep(ms(2_000)).await;
        assert_eq!(to_renew.state(), HoldState::Safe, "{name}");
    }
    assert!(
        crate::common::machine::within(since.elapsed(), ms(3_300)),
        "{name}: two ticks have not failed yet: {:?}",
        since.elapsed()
    );

    leave();

    match (expected.lock, waiting.await.unwrap()) {
        (None, Ok(guard)) => guard.unlock().await.unwrap(),
        (Some(kind), Err(Error::Server { kind: found, .. })) if kind == found => {}
        (_, answer) => panic!("{name}: lock: {answer:?}"),
    }
    eventually(ms(3_000), "safe again", || {
        to_renew.state() == HoldState::Safe
    })
    .await;
    eventually(ms(5_000), "released, or expired", || {
        !server.exists(unlocked.key().as_str())
    })
    .await;
    inner.unlock().await.unwrap();
    outer.unlock().await.unwrap();
    to_renew.unlock().await.unwrap();
    assert!(
        since.elapsed() > ms(1_500),
        "{name}: the state lasted over a tick"
    );
    eventually(ms(1_000), "no key is left", || {
        [&nested, &unlocked, &renewed, &waited]
            .iter()
            .all(|lock| !server.exists(lock.key().as_str()))
    })
    .await;
}

const RIDDEN_OUT: Expected = Expected {
    lock: None,
    unlock: Unlock::Later,
    jeopardy: true,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_becomes_a_replica_is_ridden_out() {
    let server = Server::start();
    let replica = || server.command::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    let master = || server.command::<()>(&["REPLICAOF", "NO", "ONE"]);
    in_state(&server, "READONLY", replica, master, RIDDEN_OUT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_loads_its_data_is_ridden_out() {
    let server = std::sync::Arc::new(Server::start_with(&[
        "--loading-process-events-interval-bytes",
        "1024",
    ]));
    // A millisecond for each key: loading lasts longer than the second tick, until the delay is set
    // to 0.
    server.command::<()>(&["DEBUG", "POPULATE", "5000"]);
    server.command::<()>(&["CONFIG", "SET", "key-load-delay", "1000"]);
    let reloading = std::sync::Mutex::new(None);
    let reload = || {
        let loading = std::sync::Arc::clone(&server);
        *reloading.lock().unwrap() = Some(std::thread::spawn(move || {
            loading.command::<()>(&["DEBUG", "RELOAD"]);
        }));
        while server.try_command::<u64>(&["DBSIZE"]).is_ok() {
            std::thread::sleep(ms(5));
        }
    };
    let loaded = || {
        server.command::<()>(&["CONFIG", "SET", "key-load-delay", "0"]);
        reloading.lock().unwrap().take().unwrap().join().unwrap();
    };
    in_state(&server, "LOADING", reload, loaded, RIDDEN_OUT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_busy_with_a_script_is_ridden_out() {
    let server = Server::start_with(&["--busy-reply-threshold", "20"]);
    let spin = || {
        let mut connection = server.connection().unwrap();
        std::thread::spawn(move || {
            redis::cmd("EVAL")
                .arg("while true do end")
                .arg(0)
                .exec(&mut connection)
        });
        while server.try_command::<u64>(&["DBSIZE"]).is_ok() {
            std::thread::sleep(ms(5));
        }
    };
    let kill = || server.command::<()>(&["SCRIPT", "KILL"]);
    in_state(&server, "BUSY", spin, kill, RIDDEN_OUT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_password_is_ridden_out() {
    let server = Server::start_with(&["--user", "admin", "on", ">pw", "~*", "&*", "+@all"]);
    let admin =
        redis::Client::open(format!("redis://admin:pw@127.0.0.1:{}", server.port())).unwrap();
    let admin = |words: &[&str]| {
        let mut command = redis::cmd(words[0]);
        words[1..].iter().for_each(|&word| _ = command.arg(word));
        command.exec(&mut admin.get_connection().unwrap()).unwrap();
    };
    let change = || {
        admin(&["CONFIG", "SET", "requirepass", "other"]);
        admin(&["CLIENT", "KILL", "USER", "default"]);
    };
    let restore = || admin(&["CONFIG", "SET", "requirepass", ""]);
    in_state(&server, "NOAUTH", change, restore, RIDDEN_OUT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_memory_lock_fails_while_unlock_and_renewals_succeed() {
    let server = Server::start();
    let full = || server.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let free = || server.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    // A release and a renewal need no memory.
    let expected = Expected {
        lock: Some(ServerErrorKind::OutOfMemory),
        unlock: Unlock::Done,
        jeopardy: false,
    };
    in_state(&server, "OOM", full, free, expected).await;
}

/// Has a lock released that this state of the server keeps from being handed over. Returns what the
/// releaser is told, and the next caller, who comes again once the state is over. Then nothing is
/// left, and nobody is told of a loss.
async fn released_before(enter: &[&str], leave: &[&str]) -> [Result<(), Error>; 2] {
    let (server, name) = (Server::start(), key());
    let locks = builder(&server.url(), ms(600_000)).connect().await.unwrap();
    let lock = || locks.get(&name).owned_by(Owner::new());
    let (first, next) = (lock().lock().await.unwrap(), lock());
    let waiting = tokio::spawn(async move { next.lock().await.map(drop) });
    eventually(ms(10_000), "it waits", || locks.stats().waiters == 1).await;
    server.command::<()>(enter);
    let told = [first.unlock().await, waiting.await.unwrap()];
    server.command::<()>(leave);
    if matches!(told[0], Err(Error::Server { .. })) {
        // A release that is refused is not repeated.
        assert!(server.command::<bool>(&["DEL", &name]));
    }
    lock().lock().await.unwrap().unlock().await.unwrap();
    eventually(ms(10_000), "it is gone", || {
        !server.command::<bool>(&["EXISTS", &name])
    })
    .await;
    assert_eq!((locks.stats().losses.total(), locks.stats().holds), (0, 0));
    told
}

/// The lock of the releaser was there. Its release needs no memory.
#[tokio::test]
async fn a_lock_that_a_full_server_does_not_hand_over_is_released() {
    let limit = |bytes| ["CONFIG", "SET", "maxmemory", bytes];
    let told = released_before(&limit("1"), &limit("0")).await;
    assert!(
        matches!(
            &told,
            [
                Ok(()),
                Err(Error::Server {
                    kind: ServerErrorKind::OutOfMemory,
                    ..
                })
            ]
        ),
        "{told:?}"
    );
}

#[tokio::test]
async fn a_releaser_without_rights_is_told_and_so_is_the_next_caller() {
    let change = |rights: &'static [&str]| [&["ACL", "SETUSER", "default"], rights].concat();
    let told = released_before(&change(&["resetkeys", "~other:*"]), &change(&["allkeys"])).await;
    let is_refused = |told: &Result<(), Error>| {
        matches!(
            told,
            Err(Error::Server {
                kind: ServerErrorKind::NoPermission,
                ..
            })
        )
    };
    assert!(told.iter().all(is_refused), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_rights_lock_and_unlock_are_errors_and_renewals_fail() {
    let server = Server::start();
    let forbid = || server.command::<()>(&["ACL", "SETUSER", "default", "resetkeys", "~other:*"]);
    let allow = || server.command::<()>(&["ACL", "SETUSER", "default", "allkeys"]);
    let kind = ServerErrorKind::NoPermission;
    let expected = Expected {
        lock: Some(kind),
        unlock: Unlock::Refused(kind),
        jeopardy: true,
    };
    in_state(&server, "NOPERM", forbid, allow, expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_persist_is_ridden_out() {
    let server = Server::start();
    server.remove_directory();
    let fail = || {
        server.command::<()>(&["CONFIG", "SET", "save", "3600 1"]);
        server.command::<String>(&["BGSAVE"]);
        while !server
            .command::<String>(&["INFO", "persistence"])
            .contains("rdb_last_bgsave_status:err")
        {
            std::thread::sleep(ms(5));
        }
    };
    let mend = || server.command::<()>(&["CONFIG", "SET", "save", ""]);
    in_state(&server, "MISCONF", fail, mend, RIDDEN_OUT).await;
}

/// Makes a server require this many replicas. With fewer it refuses writes.
fn want_replicas(server: &Server, count: u32) {
    server.command::<()>(&["CONFIG", "SET", "min-replicas-to-write", &count.to_string()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_its_replicas_is_ridden_out() {
    let server = Server::start();
    in_state(
        &server,
        "NOREPLICAS",
        || want_replicas(&server, 1),
        || want_replicas(&server, 0),
        RIDDEN_OUT,
    )
    .await;
}

/// A bug: a lock that was released while the server refused writes stayed for the rest of its
/// lease.
#[tokio::test(flavor = "multi_thread")]
async fn locks_released_while_writes_are_refused_are_gone_soon_after() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url(), ms(30_000)).connect().await.unwrap();
    let lock = || locks.get(key()).owned_by(Owner::new());
    let (dropped, unlocked, undone, waited) = (lock(), lock(), lock(), lock());
    lock().lock().await.unwrap().unlock().await.unwrap();
    let (to_drop, to_unlock) = (
        dropped.lock().await.unwrap(),
        unlocked.lock().await.unwrap(),
    );
    // The caller gives up while the answer is on its way: the lock is granted, and its undo is
    // refused at first.
    proxy.set(Mode::Delay(ms(400)));
    assert!(undone.try_lock_for(ms(50)).await.is_err());
    eventually(ms(300), "granted", || server.exists(undone.key().as_str())).await;

    want_replicas(&server, 1);
    drop(to_drop);
    let unlocking = tokio::spawn(to_unlock.unlock());
    let waiting = tokio::spawn(async move { waited.lock().await });
    tokio::time::sleep(ms(300)).await;
    proxy.set(Mode::Pass);
    eventually(ms(2_000), "the undo has been refused", || {
        locks.stats().pending_undos > 0
    })
    .await;
    let kept = [&dropped, &unlocked, &undone];
    assert!(
        kept.iter().all(|lock| server.exists(lock.key().as_str())),
        "the server refuses writes"
    );
    want_replicas(&server, 0);

    waiting
        .await
        .unwrap()
        .expect("an outage is ridden out")
        .unlock()
        .await
        .unwrap();
    unlocking.await.unwrap().unwrap();
    eventually(ms(4_000), "released", || {
        kept.iter().all(|lock| !server.exists(lock.key().as_str()))
    })
    .await;
    eventually(ms(4_000), "nothing is under way", || {
        locks.stats().pending == 0
    })
    .await;
}

/// One script renews all of them, and the server refuses the whole script because of one key.
#[tokio::test]
async fn a_refused_key_costs_other_keys_no_renewal() {
    let server = Server::start_with(&["--user", "weak", "on", ">pw", "~*", "&*", "+@all"]);
    let lease = ms(3_000);
    let locks = builder(
        &format!("redis://weak:pw@127.0.0.1:{}", server.port()),
        lease,
    )
    .connect()
    .await
    .unwrap();
    let names = std::iter::once(format!("refused:{}", key())).chain((0..10).map(|_| key()));
    let taking = names.map(|name| locks.get(name).owned_by(Owner::new()));
    let taken =
        futures_util::future::try_join_all(taking.map(|lock| async move { lock.lock().await }));
    let mut kept = taken.await.unwrap();
    let refused = kept.remove(0);
    server.command::<()>(&[
        "ACL",
        "SETUSER",
        "weak",
        "resetkeys",
        "~test:*",
        "~lockhound*",
        "~redisson*",
    ]);
    refused.lost().cancelled().await;
    assert_eq!(refused.loss(), Some(Loss::RenewalFailed));
    tokio::time::sleep(lease).await;
    kept.iter().for_each(|guard| guard.check().unwrap());
    // Renewals are repeated after 20 ms, and no sooner.
    let sent = locks.stats().renewal_batches.count;
    assert!(sent < 1_000, "{sent} renewals in two leases");
}
