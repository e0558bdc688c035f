//! Which lists a locker is in, for how long, and how it leaves them.

use std::time::Instant;

use crate::common::machine::within;
use crate::common::{Server, builder, eventually, key, locker, ms, soon};
use crate::{list, listed, wait};

/// Waits until this many lockers are in the list of a lock.
async fn stand(server: &Server, key: &str, count: usize) {
    eventually(ms(3_000), "they are in the list", || {
        listed(server, key) == count
    })
    .await;
}

/// A client that may publish to a locker's channel cannot make it send commands for locks that it
/// does not wait for.
#[tokio::test]
async fn a_wake_up_for_a_lock_never_waited_for_sends_no_command() {
    let (server, key) = (Server::start(), key());
    crate::take(&server, &key, "30000");
    let locker = locker(&server).await;
    let waiting = wait(&locker, &key);
    stand(&server, &key, 1).await;
    let channel = format!("lockhound_wake:{}", locker.id());
    server.command::<()>(&["CONFIG", "RESETSTAT"]);
    for n in 0..300 {
        server.command::<u64>(&["PUBLISH", &channel, &format!("go {key}:{n}")]);
    }
    // This message comes behind all of them.
    crate::give_back(&server, &key);
    soon(ms(3_000), waiting).await.unwrap().unwrap();
    eventually(ms(3_000), "nothing is under way", || {
        locker.stats().pending == 0
    })
    .await;
    let sent = server.calls("evalsha") + server.calls("eval");
    assert!(sent <= 10, "{sent} scripts");
}

/// Adds a user with rights to the lists of `test:*`, except those of names with braces. Returns its
/// URL.
fn user(server: &Server) -> String {
    let rules = "~test:* ~lockhound_fence:* ~redisson_lock__channel:* ~lockhound_waiting:{test:* \
                 &redisson_lock__channel:* &lockhound_wake:* +hello +ping +eval +evalsha +client|setname +client|id \
                 +info +subscribe +unsubscribe +publish +del +pttl +pexpire +set +type +get +hgetall +hexists +hset \
                 +hsetnx +incr +time +zadd +zcard +zrange +zrank +zrem +pubsub|numsub";
    let words: Vec<&str> = ["ACL", "SETUSER", "app", "on", ">secret"]
        .into_iter()
        .chain(rules.split_whitespace())
        .collect();
    server.command::<()>(&words);
    server.url().replace("redis://", "redis://app:secret@")
}

/// A lock whose list the user has no rights to is released and waited for: the lists of other locks
/// stay.
#[tokio::test]
async fn missing_rights_to_one_list_do_not_end_other_lists() {
    let (server, key) = (Server::start(), key());
    let braced = format!("test:{{{key}}}");
    let url = user(&server);
    let locker = builder(&url, ms(30_000)).connect().await.unwrap();
    locker
        .get(&braced)
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    crate::take(&server, &braced, "30000");
    let outside = wait(&locker, &braced);
    crate::listens(&server).await;
    crate::take(&server, &key, "30000");
    let inside = wait(&locker, &key);
    stand(&server, &key, 1).await;
    assert!(!server.exists(&list(&braced)));
    for (key, waiting) in [(&braced, outside), (&key, inside)] {
        server.command::<bool>(&["DEL", key]);
        let channel = if key.contains('{') {
            key.clone()
        } else {
            format!("{{{key}}}")
        };
        server.command::<u64>(&["PUBLISH", &format!("redisson_lock__channel:{channel}"), "0"]);
        soon(ms(3_000), waiting)
            .await
            .expect("the next re-check comes after 5 s")
            .unwrap();
    }
}

/// A release must not wake a locker that is about to close.
#[tokio::test]
async fn a_locker_that_closes_leaves_its_lists_first() {
    let (server, key) = (Server::start(), key());
    crate::take(&server, &key, "30000");
    let (closing, staying) = (locker(&server).await, locker(&server).await);
    let lock = closing.get(&key);
    let ended = tokio::spawn(async move { lock.lock().await.map(drop) });
    stand(&server, &key, 1).await;
    let waiting = wait(&staying, &key);
    stand(&server, &key, 2).await;
    closing.close().await;
    assert!(ended.await.unwrap().is_err());
    assert_eq!(
        listed(&server, &key),
        1,
        "the closed locker has left the list"
    );
    crate::give_back(&server, &key);
    soon(ms(3_000), waiting).await.unwrap().unwrap();
}

/// The list lives for three of the locker's leases, however short the lease is that the waiter asks
/// for.
#[tokio::test]
async fn a_waiter_that_asks_for_a_short_lease_stays_in_the_list() {
    let (server, key) = (Server::start(), key());
    crate::take(&server, &key, "600000");
    let lock = locker(&server).await.get(&key).fixed_lease(ms(1_000));
    let waiting = tokio::spawn(async move { lock.lock().await.map(drop) });
    stand(&server, &key, 1).await;
    let left = server.pttl(&list(&key));
    assert!(
        (60_000..=90_000).contains(&left),
        "three of the longer leases, 30 s: {left}"
    );
    crate::give_back(&server, &key);
    soon(ms(3_000), waiting).await.unwrap().unwrap().unwrap();
}

/// The end of `min_hold` is not published: a waiter that knows of a long lease re-checks after a
/// sixth of its own.
#[tokio::test]
async fn a_lock_is_got_within_a_sixth_of_a_lease_after_its_min_hold() {
    let (server, key, lease) = (Server::start(), key(), ms(9_000));
    let min_hold = ms(2_000);
    let holder = builder(&server.url(), ms(60_000)).connect().await.unwrap();
    let other = builder(&server.url(), lease).connect().await.unwrap();
    let taken = Instant::now();
    let guard = holder.get(&key).min_hold(min_hold).lock().await.unwrap();
    let waiting = wait(&other, &key);
    stand(&server, &key, 1).await;
    guard.unlock().await.unwrap();
    let granted = soon(ms(10_000), waiting).await.unwrap().unwrap();
    assert!(granted - taken >= min_hold - ms(2), "{:?}", granted - taken);
    let latest = min_hold + lease / 6;
    assert!(
        within(granted - taken, latest + ms(1_000)),
        "{:?}",
        granted - taken
    );
}
