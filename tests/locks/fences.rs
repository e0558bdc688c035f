//! Fences grow: across holders, processes, clocks that are wrong, and the loss of their marks.

use std::time::Duration;

use crate::common::labels::keys_without_labels;
use crate::common::marks::{mark, marks};
use crate::common::rights;
use crate::common::several::{over, servers};
use crate::common::{Server, builder, key, locker, ms};
use futures_util::poll;
use lockhound::{Error, FenceSource, Format, Locker, Loss, Owner};

#[tokio::test]
async fn fences_grow_across_holders_and_lockers() {
    let (server, key) = (Server::start(), key());
    let lockers = [
        locker(&server).await,
        locker(&server).await,
        locker(&server).await,
    ];
    let mut last = None;
    for i in 0..300 {
        let guard = lockers[i % 3].get(&key).lock().await.unwrap();
        assert!(Some(guard.fence()) > last, "{last:?} {guard:?}");
        last = Some(guard.fence());
        guard.unlock().await.unwrap();
    }
    assert_eq!(server.pttl(&mark(&key)), -1, "a mark has no lifetime");
    let fence = last.unwrap();
    assert_eq!(fence.to_string(), fence.get().to_string());
    assert_eq!(u64::from(fence), fence.get());
}

/// A caller that waits for a lock that was deleted behind its holder's back, and that another
/// locker has had since.
#[tokio::test]
async fn no_fence_falls_whoever_deletes_the_lock() {
    let (server, key, elsewhere) = (Server::start(), key(), key());
    let [locks, other] = [locker(&server).await, locker(&server).await];
    let forced = other.get(&key);
    for round in 0..100 {
        let [first, second, third, last] = [(); 4].map(|()| locks.get(&key).owned_by(Owner::new()));
        // The first hand-overs of a row.
        let holder = first.lock().await.unwrap();
        let (mut second, mut third) = (Box::pin(second.lock()), Box::pin(third.lock()));
        assert!(poll!(&mut second).is_pending() && poll!(&mut third).is_pending());
        holder.unlock().await.unwrap();
        second.await.unwrap().unlock().await.unwrap();
        let holder = third.await.unwrap();
        if round % 2 == 0 {
            assert_eq!(server.command::<u64>(&["DEL", &key]), 1);
        } else {
            assert!(forced.force_unlock().await.unwrap());
        }
        let between = other.get(&key).lock().await.unwrap();
        let fence = between.fence();
        between.unlock().await.unwrap();
        assert!(fence > holder.fence());
        let mut last = Box::pin(last.lock());
        assert!(poll!(&mut last).is_pending());
        // A locker begins what it is asked for in order: by then it knows that the last caller
        // waits.
        locks.get(&elsewhere).is_locked().await.unwrap();
        let (released, last) = tokio::join!(holder.unlock(), last);
        assert!(
            matches!(
                released,
                Err(Error::Lost {
                    loss: Loss::NotOwner,
                    ..
                })
            ),
            "{round}: {released:?}"
        );
        let last = last.unwrap();
        assert!(
            last.fence() > fence,
            "{round}: {} after {fence}",
            last.fence()
        );
        last.unlock().await.unwrap();
    }
}

/// Runs the acquire script as a client with this clock sends it. Returns the fence.
fn acquire(server: &Server, key: &str, clock_us: i64) -> u64 {
    let script = crate::common::acquire_script(include_str!("../../lua/redisson/acquire.lua"));
    let mut connection = server.connection().unwrap();
    server.command::<u64>(&["DEL", key]);
    let mut call = script.key(key);
    call.key(mark(key))
        .arg(30_000)
        .arg("u:1:1")
        .arg(-(clock_us - clock_us % 100_000));
    let (granted, fence): (i64, u64) = call.invoke(&mut connection).unwrap();
    assert_eq!(granted, 1);
    fence
}

fn wall_us() -> i64 {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    i64::try_from(now.as_micros()).unwrap()
}

const HOUR_US: i64 = 3_600_000_000;
const DAY_US: i64 = 24 * HOUR_US;
/// By how much clients' clocks are off.
const OFFSETS: [i64; 11] = [
    0,
    1_000,
    -1_000,
    HOUR_US,
    -HOUR_US,
    0,
    -HOUR_US,
    HOUR_US,
    10 * DAY_US,
    -10 * DAY_US,
    300 * DAY_US,
];

#[test]
fn fences_grow_though_clients_clocks_are_days_apart() {
    let (server, key) = (Server::start(), key());
    let mut last = 0;
    for offset in OFFSETS {
        let fence = acquire(&server, &key, wall_us() + offset);
        assert!(fence > last, "{offset}: {fence} after {last}");
        assert!(
            i64::try_from(fence).unwrap() <= wall_us(),
            "{offset}: a fence is never ahead of the server's clock"
        );
        last = fence;
    }
}

#[test]
fn after_a_flushall_the_next_fence_is_greater_for_any_clock() {
    let (server, key) = (Server::start(), key());
    let mut last = 0;
    for before in OFFSETS {
        for after in OFFSETS {
            for offset in [before, before, after] {
                let fence = acquire(&server, &key, wall_us() + offset);
                assert!(fence > last, "{before} {after}: {fence} after {last}");
                last = fence;
            }
            server.command::<()>(&["FLUSHALL"]);
        }
    }
}

/// A failover that had not replicated the mark, or an older snapshot: the next fence is greater
/// from 0.1 s after the last lost acquisition on.
#[test]
fn after_an_older_mark_the_next_fence_is_greater_a_tenth_later() {
    let (server, key) = (Server::start(), key());
    acquire(&server, &key, wall_us());
    let older: String = server.command(&["GET", &mark(&key)]);
    for _ in 0..200 {
        acquire(&server, &key, wall_us());
    }
    let last = acquire(&server, &key, wall_us());
    let at = wall_us();
    server.command::<()>(&["SET", &mark(&key), &older]);
    // The server's own clock has to be past the last fence too.
    std::thread::sleep(crate::common::ms(1));
    let next = acquire(&server, &key, at + 100_000);
    assert!(next > last, "{next} after {last}");
}

/// The call fails, and no lock is left.
#[tokio::test]
async fn a_mark_that_holds_nonsense_grants_nothing() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    server.command::<()>(&["SET", &mark(&key), "nonsense"]);
    let result = locks.get(&key).try_lock().await;
    assert!(matches!(&result, Err(Error::Server { .. })), "{result:?}");
    assert!(!server.exists(&key));
    server.command::<()>(&["SET", &mark(&key), &((1_u64 << 53) - 1).to_string()]);
    let result = locks.get(&key).try_lock().await;
    assert!(
        matches!(&result, Err(Error::Unavailable { .. })),
        "{result:?}"
    );
    crate::common::eventually(crate::common::ms(7_000), "undone", || !server.exists(&key)).await;
    server.command::<u64>(&["DEL", &mark(&key)]);
    locks
        .get(&key)
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

/// With several servers each script writes the client's clock over the mark, and restores a value
/// that is no mark.
#[tokio::test]
async fn a_mark_that_holds_nonsense_grants_nothing_of_several_servers() {
    let servers: [Server; 3] = std::array::from_fn(|_| Server::start());
    let (locks, key) = (
        crate::common::several::over(&servers, crate::common::ms(10_000))
            .connect()
            .await
            .unwrap(),
        key(),
    );
    for nonsense in [
        ["SET", "nonsense"],
        ["SET", "9223372036854775807"],
        ["RPUSH", "nonsense"],
    ] {
        let [command, text] = nonsense;
        for server in &servers[..2] {
            server.command::<i64>(&["DEL", &mark(&key)]);
            server.command::<redis::Value>(&[command, &mark(&key), text]);
        }
        let result = locks.get(&key).try_lock().await;
        assert!(
            matches!(&result, Err(Error::Server { .. })),
            "{nonsense:?}: {result:?}"
        );
        for server in &servers[..2] {
            crate::common::eventually(crate::common::ms(7_000), "no lock stands", || {
                !server.exists(&key)
            })
            .await;
            let kind: String = server.command(&["TYPE", &mark(&key)]);
            let stays = if kind == "list" { "RPUSH" } else { "SET" };
            assert_eq!(stays, command);
            if kind == "string" {
                assert_eq!(server.command::<String>(&["GET", &mark(&key)]), text);
            }
        }
    }
}

/// The same with a real client.
#[tokio::test]
async fn a_lost_mark_is_overtaken_by_the_servers_clock() {
    let (server, key) = (Server::start(), key());
    let lock = locker(&server).await.get(&key);
    let mut last = None;
    for _ in 0..100 {
        let guard = lock.lock().await.unwrap();
        assert!(Some(guard.fence()) > last, "{last:?} {guard:?}");
        last = Some(guard.fence());
        guard.unlock().await.unwrap();
        server.command::<()>(&["FLUSHALL"]);
    }
}

/// The server's clock jumps forth and back by up to ten days while the server keeps its marks, also
/// over a restart.
#[tokio::test]
async fn fences_grow_though_the_servers_clock_jumps() {
    let aof = ["--appendonly", "yes", "--appendfsync", "always"];
    let Some(server) = Server::start_with_clock(0, &aof) else {
        return;
    };
    let key = key();
    let lock = locker(&server).await.get(&key);
    let mut last = None;
    for (round, offset) in OFFSETS.iter().take(10).enumerate() {
        server.set_clock(offset / 1_000);
        if round % 3 == 2 {
            server.kill();
            server.restart();
        }
        for _ in 0..3 {
            let guard = lock.lock().await.unwrap();
            assert!(Some(guard.fence()) > last, "{offset}: {last:?} {guard:?}");
            last = Some(guard.fence());
            guard.unlock().await.unwrap();
        }
    }
}

#[tokio::test]
async fn ten_thousand_locks_leave_no_more_than_the_marks() {
    let server = Server::start();
    let locks = locker(&server).await;
    for chunk in 0..100 {
        let pairs = (0..100).map(|n| {
            let lock = locks
                .get(format!("orders:{chunk}:{n}"))
                .owned_by(lockhound::Owner::new());
            async move { lock.lock().await.unwrap().unlock().await.unwrap() }
        });
        futures_util::future::join_all(pairs).await;
    }
    let marks = marks(&server);
    assert!(marks.len() <= 1_024, "{}", marks.len());
    assert_eq!(
        keys_without_labels(&server).len(),
        marks.len(),
        "and nothing else"
    );
    assert!(marks.iter().all(|mark| server.pttl(mark) == -1));
}

/// The next majority shares a server with those that granted the lock, perhaps not with one that
/// did not.
#[tokio::test]
async fn over_several_servers_all_that_granted_get_the_highest_fence() {
    let (servers, key) = ([Server::start(), Server::start(), Server::start()], key());
    let nodes = servers.iter().fold(Locker::builder(), |builder, server| {
        builder.node(server.url())
    });
    let locks = nodes
        .restart_quarantine(Duration::ZERO)
        .connect()
        .await
        .unwrap();
    let fence_key = mark(&key);
    let [ahead, behind, taken] = &servers;
    // The mark of an acquisition that had no majority.
    let high = u64::try_from(wall_us()).unwrap() + 60_000_000;
    ahead.command::<()>(&["SET", &fence_key, &high.to_string()]);
    taken.command::<u64>(&["HSET", &key, "somebody", "1"]);
    let guard = locks.get(&key).lock().await.unwrap();
    assert_eq!(guard.fence().get(), high + 1);
    for server in [ahead, behind] {
        assert_eq!(
            server.command::<Option<u64>>(&["GET", &fence_key]),
            Some(high + 1)
        );
    }
    assert_eq!(taken.command::<Option<u64>>(&["GET", &fence_key]), None);
    guard.unlock().await.unwrap();
    let next = locks.get(&key).lock().await.unwrap();
    assert!(next.fence().get() > high + 1);
}

/// Returns the command that gives the user `app` the rights that the guide lists first.
fn documented_rights() -> Vec<&'static str> {
    ["ACL", "SETUSER", "app", "reset", "on", ">secret"]
        .into_iter()
        .chain(rights::of("Always"))
        .collect()
}

/// The marks of three servers have to be raised.
#[tokio::test]
async fn a_user_with_the_rights_that_are_documented_has_fences() {
    let words: Vec<&str> = documented_rights()
        .into_iter()
        .chain(["+info", "+exists"])
        .collect();
    let servers = [Server::start(), Server::start(), Server::start()];
    for format in [Format::Redisson, Format::Plain] {
        let nodes = servers
            .iter()
            .fold(Locker::builder().format(format), |builder, server| {
                server.command::<()>(&words);
                builder.node(server.url().replace("redis://", "redis://app:secret@"))
            });
        let locks = nodes
            .restart_quarantine(Duration::ZERO)
            .connect()
            .await
            .unwrap();
        let key = "app:42";
        let mut last = None;
        for round in 0..6 {
            let high = wall_us() + HOUR_US * (round + 1);
            servers[0].command::<()>(&["SET", &mark(key), &high.to_string()]);
            let guard = locks.get(key).lock().await.unwrap();
            assert!(Some(guard.fence()) > last);
            last = Some(guard.fence());
            guard.unlock().await.unwrap();
        }
        locks.close().await;
        servers
            .iter()
            .for_each(|server| server.command::<()>(&["FLUSHALL"]));
    }
}

// ---- Redisson's tokens ----

async fn with_tokens(url: &str) -> Locker {
    builder(url, ms(30_000))
        .fence_source(FenceSource::RedissonTokens)
        .connect()
        .await
        .unwrap()
}

fn counter(key: &str) -> String {
    format!("redisson_lock_token:{{{key}}}")
}

/// Takes and releases the lock, and returns its fence.
async fn fence(locks: &Locker, key: &str) -> u64 {
    let guard = locks.get(key).lock().await.unwrap();
    let fence = guard.fence().get();
    guard.unlock().await.unwrap();
    fence
}

#[tokio::test]
async fn tokens_count_up_from_one_for_each_lock_and_leave_marks_alone() {
    let server = Server::start();
    let locks = [
        with_tokens(&server.url()).await,
        with_tokens(&server.url()).await,
    ];
    let (one, other) = (key(), key());
    for token in 1..5 {
        assert_eq!(
            fence(&locks[usize::from(token % 2 == 0)], &one).await,
            token
        );
    }
    let both = locks[0].multi([&one, &other]).lock().await.unwrap();
    assert_eq!(
        (
            both.fence(&one).unwrap().get(),
            both.fence(&other).unwrap().get()
        ),
        (5, 1)
    );
    both.unlock().await.unwrap();
    assert_eq!(server.pttl(&counter(&one)), -1, "it has no lifetime");
    assert_eq!(marks(&server), Vec::<String>::new());
    // A lost counter begins again at 1, whatever the clocks show.
    server.command::<()>(&["FLUSHALL"]);
    assert_eq!(fence(&locks[0], &one).await, 1);
}

#[tokio::test]
async fn fences_grow_over_a_change_with_the_counter_set_to_the_clock() {
    let (server, key) = (Server::start(), key());
    let (of_marks, of_tokens) = (locker(&server).await, with_tokens(&server.url()).await);
    let first = fence(&of_marks, &key).await;
    let (seconds, micros): (u64, u64) = server.command(&["TIME"]);
    server.command::<()>(&[
        "SET",
        &counter(&key),
        &(seconds * 1_000_000 + micros).to_string(),
    ]);
    let (second, third) = (fence(&of_tokens, &key).await, fence(&of_tokens, &key).await);
    // A mark is only counted up for this long before the clocks are compared.
    tokio::time::sleep(ms(101)).await;
    let fourth = fence(&of_marks, &key).await;
    assert!(
        first < second && second < third && third < fourth,
        "{:?}",
        [first, second, third, fourth]
    );
}

#[tokio::test]
async fn tokens_of_several_servers_are_refused() {
    let error = over(&servers(3), ms(3_000))
        .fence_source(FenceSource::RedissonTokens)
        .connect()
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error:?}");
    assert!(
        error
            .to_string()
            .contains("needs one server, and 3 are given"),
        "{error}"
    );
}

#[tokio::test]
async fn a_user_of_tokens_needs_their_key_instead_of_the_marks() {
    let server = Server::start();
    let rights = |tokens: &'static str| -> Vec<&str> {
        documented_rights()
            .into_iter()
            .map(|word| {
                if word == "~lockhound_fence:*" {
                    tokens
                } else {
                    word
                }
            })
            .collect()
    };
    server.command::<()>(&rights("~redisson_lock_token:{app:*"));
    let locks = with_tokens(&server.url().replace("redis://", "redis://app:secret@")).await;
    assert_eq!(
        (fence(&locks, "app:42").await, fence(&locks, "app:42").await),
        (1, 2)
    );
    server.command::<()>(&rights("~lockhound_fence:*"));
    let error = locks.get("app:42").lock().await.unwrap_err();
    assert!(matches!(error, Error::Server { .. }), "{error:?}");
}
