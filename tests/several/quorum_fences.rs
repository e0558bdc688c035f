//! Fences over several servers: each acquisition's fence is above all earlier ones, whichever
//! minority missed those.

use crate::common::marks::mark;
use crate::common::several::{on, over, servers, settled};
use crate::common::{Server, eventually, key, ms};
use lockhound::{Fence, Locker};

const SECOND_US: i64 = 1_000_000;
const HOUR_US: i64 = 3_600 * SECOND_US;
const DAY_MS: i64 = 86_400_000;

fn wall_us() -> i64 {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    i64::try_from(now.as_micros()).unwrap()
}

fn remembered(server: &Server, key: &str) -> Option<u64> {
    server.command(&["GET", &mark(key)])
}

/// Sets a mark an hour ahead, so that clocks play no part: each fence is one more than the last one
/// remembered.
fn set_ahead(server: &Server, key: &str) -> u64 {
    let ahead = wall_us() + HOUR_US;
    server.command::<()>(&["SET", &mark(key), &ahead.to_string()]);
    u64::try_from(ahead).unwrap()
}

async fn pair(locks: &Locker, key: &str) -> Fence {
    let guard = locks.get(key).lock().await.unwrap();
    let fence = guard.fence();
    guard.unlock().await.unwrap();
    fence
}

#[tokio::test]
async fn fences_grow_whichever_minority_misses_an_acquisition() {
    let (servers, key) = (servers(5), key());
    let lockers = [
        over(&servers, ms(6_000)).connect().await.unwrap(),
        over(&servers, ms(6_000)).connect().await.unwrap(),
    ];
    servers
        .iter()
        .for_each(|server| _ = set_ahead(server, &key));
    let mut last = None;
    for round in 0..40 {
        let stopped = fastrand::usize(..5);
        let other = (stopped + fastrand::usize(1..5)) % 5;
        servers[stopped].stop();
        if round % 8 == 7 {
            servers[other].kill();
            servers[other].restart();
        } else {
            servers[other].stop();
        }
        let fence = pair(&lockers[round % 2], &key).await;
        assert!(Some(fence) > last, "round {round}: {fence} after {last:?}");
        last = Some(fence);
        servers[stopped].go_on();
        if round % 8 == 7 {
            // A server that is not connected again would be the third one missing.
            for locks in &lockers {
                let list = || servers[other].command::<String>(&["CLIENT", "LIST"]);
                eventually(ms(3_000), "connected", || {
                    list().matches(locks.id()).count() == 3
                })
                .await;
                settled(locks).await;
            }
        } else {
            servers[other].go_on();
        }
    }
    assert!(
        last.unwrap().get() > u64::try_from(wall_us() + HOUR_US / 2).unwrap(),
        "the sequence was never lost"
    );
}

#[tokio::test]
async fn answers_that_agree_need_no_second_round_trip() {
    let (servers, key) = (servers(5), key());
    let locks = over(&servers, ms(30_000)).connect().await.unwrap();
    let mut last = None;
    for _ in 0..20 {
        let fence = pair(&locks, &key).await;
        assert!(Some(fence) > last);
        last = Some(fence);
    }
    settled(&locks).await;
    // Of the scripts here only raise.lua calls GET.
    let raised: u64 = servers.iter().map(|server| server.calls("get")).sum();
    assert_eq!(raised, 0);
    let acquires: u64 = servers.iter().map(|server| server.calls("hsetnx")).sum();
    assert!(acquires <= 100, "{acquires}");
}

#[tokio::test]
async fn a_majority_remembers_the_highest_fence_before_lock_returns() {
    let (servers, key) = (servers(3), key());
    let locks = over(&servers, ms(3_000)).connect().await.unwrap();
    pair(&locks, &key).await;
    settled(&locks).await;
    servers[2].stop();
    let ahead = set_ahead(&servers[0], &key);
    let guard = locks.get(&key).lock().await.unwrap();
    let behind = remembered(&servers[1], &key);
    assert_eq!(guard.fence().get(), ahead + 1);
    assert_eq!(behind, Some(ahead + 1), "when lock() returned");
    let first = guard.fence();
    guard.unlock().await.unwrap();
    servers[0].kill();
    servers[2].go_on();
    let second = pair(&locks, &key).await;
    assert!(second > first, "{second} after {first}");
}

/// Without a majority that remembers the highest fence, there is no guard.
#[tokio::test]
async fn a_fence_that_no_majority_remembers_is_no_grant() {
    let (servers, key) = (servers(3), key());
    let locks = over(&servers, ms(900)).connect().await.unwrap();
    pair(&locks, &key).await;
    settled(&locks).await;
    servers[2].stop();
    set_ahead(&servers[0], &key);
    // The server that would have to remember the fence refuses the raise, which needs GET.
    servers[1].command::<()>(&["ACL", "SETUSER", "default", "-get"]);
    let result = locks.get(&key).try_lock().await;
    assert!(
        matches!(result, Err(lockhound::Error::Unavailable { .. })),
        "{result:?}"
    );
    eventually(ms(1_000), "undone", || on(&servers[..2], &key) == 0).await;
    servers[1].command::<()>(&["ACL", "SETUSER", "default", "+get"]);
    servers[2].go_on();
    pair(&locks, &key).await;
}

#[tokio::test]
async fn the_fence_of_a_hold_survives_the_restart_of_every_server() {
    let (servers, key) = (servers(3), key());
    let locks = over(&servers, ms(900)).connect().await.unwrap();
    servers
        .iter()
        .for_each(|server| _ = set_ahead(server, &key));
    let guard = locks.get(&key).lock().await.unwrap();
    for server in &servers {
        server.kill();
        server.restart();
        eventually(ms(1_500), "it remembers", || {
            remembered(server, &key) >= Some(guard.fence().get())
        })
        .await;
    }
    let first = guard.fence();
    guard.unlock().await.unwrap();
    let second = pair(&locks, &key).await;
    assert!(second > first, "{second} after {first}");
}

/// Does what a locker does whose clock is off by `offset_us`: acquires on these servers, and raises
/// the lower fences.
fn acquire(servers: &[&Server], key: &str, offset_us: i64) -> u64 {
    let script = crate::common::acquire_script(include_str!("../../lua/redisson/acquire.lua"));
    let clock = wall_us() + offset_us;
    let fences: Vec<u64> = servers
        .iter()
        .map(|server| {
            let mut call = script.key(key);
            call.key(mark(key)).arg(30_000).arg("u:1:1").arg(clock);
            let (granted, fence): (i64, u64) =
                call.invoke(&mut server.connection().unwrap()).unwrap();
            assert_eq!(granted, 1);
            fence
        })
        .collect();
    let highest = *fences.iter().max().unwrap();
    let raise = redis::Script::new(include_str!("../../lua/redisson/raise.lua"));
    for server in servers {
        let mut call = raise.key(key);
        call.key(mark(key)).arg("u:1:1").arg(highest);
        assert_eq!(
            call.invoke::<i64>(&mut server.connection().unwrap())
                .unwrap(),
            1
        );
        server.command::<u64>(&["DEL", key]);
    }
    highest
}

#[tokio::test]
async fn fences_grow_though_lockers_clocks_are_hours_apart() {
    let (servers, key) = (servers(3), key());
    let locks = over(&servers, ms(30_000)).connect().await.unwrap();
    let mut last = 0;
    for offset in [
        0,
        HOUR_US,
        -HOUR_US,
        0,
        -HOUR_US,
        HOUR_US,
        0,
        100 * HOUR_US,
        -100 * HOUR_US,
    ] {
        let missing = fastrand::usize(..3);
        let asked: Vec<&Server> = servers
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != missing)
            .map(|(_, s)| s)
            .collect();
        let theirs = acquire(&asked, &key, offset);
        assert!(theirs > last, "{offset}: {theirs} after {last}");
        let ours = pair(&locks, &key).await.get();
        assert!(ours > theirs, "{offset}: {ours} after {theirs}");
        settled(&locks).await;
        let ahead = i64::try_from(ours).unwrap() - wall_us();
        assert!(
            ahead < 40 * SECOND_US,
            "a clock that is ahead moved the fence ahead by {ahead} us"
        );
        last = ours;
    }
}

/// A late raise must not count once another holder may have taken the lock, and an absurd one must
/// spoil no mark.
#[test]
fn a_raise_is_refused_without_the_lock_and_beyond_30_days() {
    let (server, key) = (Server::start(), key());
    let mut connection = server.connection().unwrap();
    for (name, script, held) in [
        (
            "hash",
            include_str!("../../lua/redisson/raise.lua"),
            &["HSET", &key, "u:1:1", "1"][..],
        ),
        (
            "string",
            include_str!("../../lua/plain/raise.lua"),
            &["SET", &key, "u:1:1"][..],
        ),
    ] {
        server.command::<()>(&["FLUSHALL"]);
        let script = redis::Script::new(script);
        let mut raise = |field: &str, fence: i64| -> i64 {
            script
                .key(&key)
                .key(mark(&key))
                .arg(field)
                .arg(fence)
                .invoke(&mut connection)
                .unwrap()
        };
        let now = wall_us();
        assert_eq!(raise("u:1:1", now), 0, "{name}: free");
        server.command::<redis::Value>(held);
        assert_eq!(raise("u:1:2", now), 0, "{name}: held by another owner");
        assert_eq!(remembered(&server, &key), None, "{name}");
        assert_eq!(
            raise("u:1:1", now + 31 * 24 * HOUR_US),
            -1,
            "{name}: too far ahead"
        );
        assert_eq!(raise("u:1:1", (1 << 53) - 1), -1, "{name}: too far ahead");
        assert_eq!(remembered(&server, &key), None, "{name}");
        let ahead = now + 29 * 24 * HOUR_US;
        for fence in [now, ahead, now, ahead] {
            assert_eq!(raise("u:1:1", fence), 1, "{name}");
        }
        assert_eq!(
            remembered(&server, &key),
            u64::try_from(ahead).ok(),
            "{name}: it never falls"
        );
        server.command::<u64>(&["DEL", &key]);
        server.command::<u64>(&["LPUSH", &key, "x"]);
        assert_eq!(
            raise("u:1:1", ahead + 1),
            0,
            "{name}: a key of another type"
        );
    }
}

/// A server whose fence is too far ahead loses its vote. Nothing else changes.
#[tokio::test]
async fn a_server_whose_fence_is_too_far_ahead_has_no_vote() {
    let (servers, key) = (servers(3), key());
    let locks = over(&servers, ms(3_000)).connect().await.unwrap();
    let mut last = pair(&locks, &key).await;
    let absurd = wall_us() + 60 * 24 * HOUR_US;
    servers[0].command::<()>(&["SET", &mark(&key), &absurd.to_string()]);
    for _ in 0..20 {
        let fence = pair(&locks, &key).await;
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    }
    assert!(
        last.get() < u64::try_from(wall_us() + HOUR_US).unwrap(),
        "{last}"
    );
    settled(&locks).await;
    servers[2].stop();
    let error = locks
        .get(&key)
        .try_lock()
        .await
        .expect_err("one vote is no majority")
        .to_string();
    assert!(error.contains("30 days"), "{error}");
    eventually(ms(2_000), "undone", || on(&servers[..2], &key) == 0).await;
    servers[2].go_on();
}

#[tokio::test]
async fn a_fence_that_a_double_cannot_hold_exactly_is_no_grant() {
    let (servers, key) = (servers(3), key());
    let locks = over(&servers, ms(3_000)).connect().await.unwrap();
    for server in &servers {
        server.command::<()>(&["SET", &mark(&key), &((1_u64 << 53) - 1).to_string()]);
    }
    let result = locks.get(&key).try_lock().await;
    assert!(
        matches!(result, Err(lockhound::Error::Unavailable { .. })),
        "{result:?}"
    );
    eventually(ms(2_000), "undone", || on(&servers, &key) == 0).await;
}

/// Asserts that fences grow although the servers' clocks are off by these milliseconds, one server
/// after the other is down, and the clocks jump between the holds by more time than a fence's key
/// lived in earlier versions.
async fn fences_grow_with_clocks_at(offsets: [i64; 3]) {
    let aof = ["--appendonly", "yes", "--appendfsync", "always"];
    let started: Option<Vec<Server>> = offsets
        .iter()
        .map(|offset| Server::start_with_clock(*offset, &aof))
        .collect();
    let Some(servers) = started else { return };
    let key = key();
    let lockers = [
        over(&servers, ms(6_000)).connect().await.unwrap(),
        over(&servers, ms(6_000)).connect().await.unwrap(),
    ];
    let mut last = None;
    for round in 0..12 {
        let down = round % 3;
        let locks = &lockers[round % 2];
        if round % 2 == 0 {
            servers[down].stop();
        } else {
            servers[down].kill();
            servers[down].restart();
        }
        let guard = locks.get(&key).lock().await.unwrap();
        let fence = guard.fence();
        assert!(
            Some(fence) > last,
            "round {round}, {offsets:?}: {fence} after {last:?}"
        );
        last = Some(fence);
        guard.unlock().await.unwrap();
        servers[down].go_on();
        settled(locks).await;
        // The clocks jump back and forth by three minutes and more. Nothing is held, so no lease is
        // cut short.
        for (server, offset) in servers.iter().zip(offsets) {
            let jump = if round % 2 == 0 { 200_000 } else { -200_000 };
            server.set_clock(offset + jump * i64::try_from(round % 4).unwrap());
        }
        for locks in &lockers {
            for server in &servers {
                let list = || server.command::<String>(&["CLIENT", "LIST"]);
                eventually(ms(6_000), "connected", || {
                    list().matches(locks.id()).count() == 3
                })
                .await;
            }
            settled(locks).await;
        }
    }
    for server in &servers {
        assert_eq!(server.pttl(&mark(&key)), -1, "a mark has no lifetime");
    }
}

#[tokio::test]
async fn fences_grow_though_servers_clocks_are_a_millisecond_apart() {
    fences_grow_with_clocks_at([0, 1, -1]).await;
}

#[tokio::test]
async fn fences_grow_though_servers_clocks_are_an_hour_apart() {
    fences_grow_with_clocks_at([0, 3_600_000, -3_600_000]).await;
}

#[tokio::test]
async fn fences_grow_though_servers_clocks_are_ten_days_apart() {
    fences_grow_with_clocks_at([0, 10 * DAY_MS, -10 * DAY_MS]).await;
}

/// One of three clocks is an hour ahead, more than two minutes pass during a hold, and then that
/// server is down.
#[tokio::test]
async fn fences_grow_when_the_server_ahead_is_down_after_a_long_hold() {
    let started: Option<Vec<Server>> = [3_600_000, 0, 0]
        .iter()
        .map(|offset| Server::start_with_clock(*offset, &[]))
        .collect();
    let Some(servers) = started else { return };
    let key = key();
    let locks = over(&servers, ms(600_000)).connect().await.unwrap();
    let guard = locks.get(&key).lock().await.unwrap();
    let first = guard.fence();
    // Less than the lease, and more than the life of a fence's key in earlier versions.
    for (server, offset) in servers.iter().zip([3_600_000, 0, 0]) {
        server.set_clock(offset + 130_000);
    }
    guard.check().unwrap();
    guard.unlock().await.unwrap();
    settled(&locks).await;
    servers[0].kill();
    let second = pair(&locks, &key).await;
    assert!(second > first, "{second} after {first}");
}

/// The snapshots are taken while nothing is held.
#[tokio::test]
async fn fences_grow_through_a_rolling_restart_with_snapshots() {
    let (servers, key) = (servers(3), key());
    let locks = over(&servers, ms(6_000)).connect().await.unwrap();
    servers
        .iter()
        .for_each(|server| _ = set_ahead(server, &key));
    let mut last = pair(&locks, &key).await;
    for server in &servers {
        settled(&locks).await;
        server.command::<()>(&["SAVE"]);
        server.kill();
        server.restart();
        let list = || server.command::<String>(&["CLIENT", "LIST"]);
        eventually(ms(6_000), "connected", || {
            list().matches(locks.id()).count() == 3
        })
        .await;
        let fence = pair(&locks, &key).await;
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    }
    assert!(
        last.get() > u64::try_from(wall_us() + HOUR_US / 2).unwrap(),
        "the sequence was never lost"
    );
}
