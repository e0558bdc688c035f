//! Fences grow: across holders, processes, clocks that are wrong, and the loss of their key.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::{Server, key, locker};
use lockhound::Locker;

#[tokio::test]
async fn fences_grow_across_holders_and_lockers() {
    let (server, key) = (Server::start(), key());
    let lockers = [locker(&server).await, locker(&server).await, locker(&server).await];
    let mut last = None;
    for i in 0..300 {
        let guard = lockers[i % 3].get(&key).lock().await.unwrap();
        assert!(Some(guard.fence()) > last, "{last:?} {guard:?}");
        last = Some(guard.fence());
        guard.unlock().await.unwrap();
    }
    let ttl = server.pttl(&format!("lockhound_fence:{{{key}}}"));
    assert!(ttl > 110_000 && ttl <= 120_000, "two minutes: {ttl}");
    let fence = last.unwrap();
    assert_eq!(fence.to_string(), fence.get().to_string());
    assert_eq!(u64::from(fence), fence.get());
}

/// The acquire script, as a client with this clock sends it.
fn acquire(server: &Server, key: &str, clock_us: i64) -> u64 {
    let script = redis::Script::new(include_str!("../lua/acquire.lua"));
    let mut connection = server.connection().unwrap();
    connection_free(server, key);
    let (granted, fence): (i64, String) = script
        .key(key)
        .key(format!("lockhound_fence:{{{key}}}"))
        .arg(30_000)
        .arg("u:1:1")
        .arg(clock_us - 1_000_000)
        .invoke(&mut connection)
        .unwrap();
    assert_eq!(granted, 1);
    fence.parse().expect("whole microseconds, no exponent")
}

fn connection_free(server: &Server, key: &str) {
    server.command::<u64>(&["DEL", key]);
}

fn wall_us() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(now.as_micros()).unwrap()
}

const HOUR_US: i64 = 3_600_000_000;
const SECOND_US: u64 = 1_000_000;

#[test]
fn clocks_that_are_an_hour_apart_do_not_spoil_the_sequence() {
    let (server, key) = (Server::start(), key());
    let mut last = 0;
    for offset in [0, HOUR_US, -HOUR_US, 0, -HOUR_US, HOUR_US, 0, 100 * HOUR_US, -100 * HOUR_US] {
        let fence = acquire(&server, &key, wall_us() + offset);
        assert!(fence > last, "{offset}: {fence} after {last}");
        let ahead = i128::from(fence) - i128::from(wall_us());
        assert!(ahead < 1_000_000, "{offset}: a clock that is ahead does not carry the fence away: {ahead} us");
        last = fence;
    }
}

#[test]
fn after_the_loss_of_its_key_a_fence_is_at_most_61_seconds_below_the_last() {
    let server = Server::start();
    for (before, after) in [(0, 0), (HOUR_US, -HOUR_US), (-HOUR_US, -HOUR_US), (HOUR_US, 0), (-HOUR_US, HOUR_US)] {
        let key = key();
        let last = acquire(&server, &key, wall_us() + before);
        server.command::<u64>(&["DEL", &format!("lockhound_fence:{{{key}}}")]);
        let next = acquire(&server, &key, wall_us() + after);
        assert!(next + 61 * SECOND_US > last, "{before} {after}: {next} after {last}");
        // What a client with the same clock is given once 61 seconds are over, on this server's clock as it is now.
        let lowest_later = u64::try_from(wall_us()).unwrap() + 61 * SECOND_US - 60 * SECOND_US;
        assert!(lowest_later > last, "{before} {after}: above it again after 61 s");
    }
}

#[test]
fn a_fence_key_that_holds_nonsense_is_written_anew() {
    let (server, key) = (Server::start(), key());
    server.command::<()>(&["SET", &format!("lockhound_fence:{{{key}}}"), "nonsense"]);
    let fence = acquire(&server, &key, wall_us());
    assert!(fence > u64::try_from(wall_us()).unwrap() - 5 * SECOND_US);
}

/// The real client and a real wait: the fence after the loss is above the last once the clocks' difference is over. Both
/// clocks are the same here, so that is a second.
#[tokio::test]
async fn a_lost_fence_key_is_overtaken_by_the_clock() {
    let (server, key) = (Server::start(), key());
    let lock = locker(&server).await.get(&key);
    let first = lock.lock().await.unwrap();
    let last = first.fence();
    first.unlock().await.unwrap();
    server.command::<()>(&["FLUSHALL"]);
    tokio::time::sleep(common::ms(10)).await;
    let guard = lock.lock().await.unwrap();
    assert!(guard.fence() > last);
    guard.unlock().await.unwrap();
}

/// Whoever is next shares a server with those that granted the lock, and not with one that did not.
#[tokio::test]
async fn over_several_servers_the_highest_fence_is_written_to_those_that_granted_the_lock() {
    let (servers, key) = ([Server::start(), Server::start(), Server::start()], key());
    let nodes = servers.iter().fold(Locker::builder(), |builder, server| builder.node(server.url()));
    let locks = nodes.restart_quarantine(Duration::ZERO).connect().await.unwrap();
    let fence_key = format!("lockhound_fence:{{{key}}}");
    let [ahead, behind, taken] = &servers;
    // Of an acquisition that had no majority.
    let high = u64::try_from(wall_us()).unwrap() + 60_000_000;
    ahead.command::<()>(&["SET", &fence_key, &high.to_string()]);
    taken.command::<u64>(&["HSET", &key, "somebody", "1"]);
    let guard = locks.get(&key).lock().await.unwrap();
    assert_eq!(guard.fence().get(), high + 1);
    for server in [ahead, behind] {
        assert_eq!(server.command::<Option<u64>>(&["GET", &fence_key]), Some(high + 1));
    }
    assert_eq!(taken.command::<Option<u64>>(&["GET", &fence_key]), None);
    guard.unlock().await.unwrap();
    let next = locks.get(&key).lock().await.unwrap();
    assert!(next.fence().get() > high + 1);
}
