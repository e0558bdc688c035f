//! Fences over several servers: every acquisition's is above all before it, whichever minority missed those.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::several::{on, over, servers, settled};
use common::{Server, eventually, key, ms};
use lockhound::{Fence, Locker};

const HOUR_US: i64 = 3_600_000_000;

fn wall_us() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(now.as_micros()).unwrap()
}

fn fence_key(key: &str) -> String {
    format!("lockhound_fence:{{{key}}}")
}

fn remembered(server: &Server, key: &str) -> Option<u64> {
    server.command(&["GET", &fence_key(key)])
}

/// From here on no clock helps: each fence is one more than the last that a server remembers.
fn set_ahead(server: &Server, key: &str) -> u64 {
    let ahead = wall_us() + HOUR_US;
    server.command::<()>(&["SET", &fence_key(key), &ahead.to_string(), "PX", "120000"]);
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
    let lockers =
        [over(&servers, ms(6_000)).connect().await.unwrap(), over(&servers, ms(6_000)).connect().await.unwrap()];
    servers.iter().for_each(|server| _ = set_ahead(server, &key));
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
            // A node that is not connected again would be a third.
            for locks in &lockers {
                let list = || servers[other].command::<String>(&["CLIENT", "LIST"]);
                eventually(ms(3_000), "connected", || list().matches(&locks.id().to_string()).count() == 3).await;
                settled(locks).await;
            }
        } else {
            servers[other].go_on();
        }
    }
    assert!(last.unwrap().get() > u64::try_from(wall_us() + HOUR_US / 2).unwrap(), "the sequence was never lost");
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
    // raise.lua begins with a GET, and nothing else of this has one.
    let raised: u64 = servers.iter().map(|server| server.calls("get")).sum();
    assert_eq!(raised, 0);
    let acquires: u64 = servers.iter().map(|server| server.calls("hsetnx")).sum();
    assert!(acquires <= 100, "{acquires}");
}

#[tokio::test]
async fn the_highest_fence_is_on_a_majority_before_there_is_a_guard() {
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

/// Without a majority that knows the highest fence there is no guard.
#[tokio::test]
async fn a_fence_that_no_majority_takes_is_no_grant() {
    let (servers, key) = (servers(3), key());
    let locks = over(&servers, ms(900)).connect().await.unwrap();
    pair(&locks, &key).await;
    settled(&locks).await;
    servers[2].stop();
    set_ahead(&servers[0], &key);
    // The one that would have to remember it refuses: there it is no string.
    servers[1].command::<()>(&["ACL", "SETUSER", "default", "-get"]);
    let result = locks.get(&key).try_lock().await;
    assert!(matches!(result, Err(lockhound::Error::Unavailable { .. })), "{result:?}");
    eventually(ms(1_000), "undone", || on(&servers[..2], &key) == 0).await;
    servers[1].command::<()>(&["ACL", "SETUSER", "default", "+get"]);
    servers[2].go_on();
    pair(&locks, &key).await;
}

#[tokio::test]
async fn the_fence_outlives_the_restart_of_every_server_under_a_hold() {
    let (servers, key) = (servers(3), key());
    let locks = over(&servers, ms(900)).connect().await.unwrap();
    servers.iter().for_each(|server| _ = set_ahead(server, &key));
    let guard = locks.get(&key).lock().await.unwrap();
    for server in &servers {
        server.kill();
        server.restart();
        eventually(ms(1_500), "it remembers", || remembered(server, &key) >= Some(guard.fence().get())).await;
    }
    let first = guard.fence();
    guard.unlock().await.unwrap();
    let second = pair(&locks, &key).await;
    assert!(second > first, "{second} after {first}");
}

/// What a locker does whose clock is off by so much: acquires on these servers, and raises where they differ.
fn acquire(servers: &[&Server], key: &str, offset_us: i64) -> u64 {
    let script = redis::Script::new(include_str!("../lua/acquire.lua"));
    let floor = wall_us() + offset_us - 1_000_000;
    let fences: Vec<u64> = servers
        .iter()
        .map(|server| {
            let mut call = script.key(key);
            call.key(fence_key(key)).arg(30_000).arg("u:1:1").arg(floor);
            let (granted, fence): (i64, String) = call.invoke(&mut server.connection().unwrap()).unwrap();
            assert_eq!(granted, 1);
            fence.parse().expect("whole microseconds, no exponent")
        })
        .collect();
    let highest = *fences.iter().max().unwrap();
    let raise = redis::Script::new(include_str!("../lua/raise.lua"));
    for server in servers {
        raise.key(fence_key(key)).arg(highest).invoke::<u64>(&mut server.connection().unwrap()).unwrap();
        server.command::<u64>(&["DEL", key]);
    }
    highest
}

#[tokio::test]
async fn clocks_that_are_an_hour_apart_do_not_spoil_the_sequence() {
    let (servers, key) = (servers(3), key());
    let locks = over(&servers, ms(30_000)).connect().await.unwrap();
    let mut last = 0;
    for offset in [0, HOUR_US, -HOUR_US, 0, -HOUR_US, HOUR_US, 0, 100 * HOUR_US, -100 * HOUR_US] {
        let missing = fastrand::usize(..3);
        let asked: Vec<&Server> = servers.iter().enumerate().filter(|(at, _)| *at != missing).map(|(_, s)| s).collect();
        let theirs = acquire(&asked, &key, offset);
        assert!(theirs > last, "{offset}: {theirs} after {last}");
        let ours = pair(&locks, &key).await.get();
        assert!(ours > theirs, "{offset}: {ours} after {theirs}");
        settled(&locks).await;
        assert!(i128::from(ours) < i128::from(wall_us()), "a clock that is ahead does not carry the fence away");
        last = ours;
    }
}
