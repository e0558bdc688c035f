//! Labels on servers in memory, and when they are written again. Time is paused.

use std::time::Duration;

use lockhound::{Error, Format, Locker, LockerBuilder};
use tokio::time::sleep;

use super::common::{key, ms};
use super::{Server, over, servers};

const MINUTE: Duration = Duration::from_secs(60);

async fn seen(locks: &Locker, key: &str) -> Option<String> {
    locks
        .get(key)
        .holder()
        .await
        .unwrap()
        .expect("held")
        .label()
        .map(str::to_owned)
}

/// One locker with a label, and one that looks.
async fn pair(servers: &[Server], label: &str) -> (Locker, Locker) {
    let connect = |builder: LockerBuilder| async { builder.connect().await.unwrap() };
    (
        connect(over(servers, ms(30_000)).label(label)).await,
        connect(over(servers, ms(30_000))).await,
    )
}

#[tokio::test(start_paused = true)]
async fn holder_gives_the_label() {
    for count in [1, 3] {
        let (servers, key) = (servers(count), key());
        let (one, other) = pair(&servers, "shop").await;
        let guard = one.get(&key).lock().await.unwrap();
        sleep(ms(1)).await;
        assert_eq!(seen(&other, &key).await.as_deref(), Some("shop"));
        guard.unlock().await.unwrap();
        assert!(other.get(&key).holder().await.unwrap().is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn a_label_lasts_for_as_long_as_its_locker() {
    let (servers, key) = (servers(1), key());
    let (one, other) = pair(&servers, "shop").await;
    let guard = one.get(&key).lock().await.unwrap();
    for _ in 0..10 {
        sleep(MINUTE * 59).await;
        assert_eq!(seen(&other, &key).await.as_deref(), Some("shop"));
    }
    guard.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_label_that_the_server_forgot_is_back_after_20_minutes() {
    let (servers, key) = (servers(1), key());
    let (one, other) = pair(&servers, "shop").await;
    one.get(&key).lock().await.unwrap().unlock().await.unwrap();
    sleep(ms(1)).await;
    servers[0].flush();
    let guard = one.get(&key).lock().await.unwrap();
    sleep(MINUTE * 20 - ms(10)).await;
    assert_eq!(seen(&other, &key).await, None);
    sleep(ms(20)).await;
    assert_eq!(seen(&other, &key).await.as_deref(), Some("shop"));
    guard.unlock().await.unwrap();
}

/// The second attempt is the next one that is due.
#[tokio::test(start_paused = true)]
async fn a_label_that_could_not_be_written_is_written_later() {
    let (servers, key) = (servers(3), key());
    let (one, other) = pair(&servers, "shop").await;
    servers[2].stop();
    let guard = one.get(&key).lock().await.unwrap();
    sleep(MINUTE).await;
    servers[2].restart();
    // The others forget it: only the third has what comes next.
    sleep(MINUTE * 18).await;
    servers[..2]
        .iter()
        .for_each(|server| server.delete(&format!("lockhound_label:{}", one.id())));
    assert_eq!(seen(&other, &key).await, None);
    sleep(MINUTE * 2).await;
    servers[..2]
        .iter()
        .for_each(|server| server.delete(&format!("lockhound_label:{}", one.id())));
    assert_eq!(seen(&other, &key).await.as_deref(), Some("shop"));
    guard.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn close_deletes_the_label() {
    let (servers, key) = (servers(1), key());
    let (one, other) = pair(&servers, "shop").await;
    let guard = one.get(&key).lock().await.unwrap();
    sleep(ms(1)).await;
    // Its lease is not over yet.
    std::mem::forget(guard);
    one.close().await;
    assert_eq!(seen(&other, &key).await, None);
}

#[tokio::test(start_paused = true)]
async fn the_plain_format_has_no_label() {
    let (servers, key) = (servers(1), key());
    let locks = over(&servers, ms(30_000))
        .format(Format::Plain)
        .label("shop")
        .connect()
        .await
        .unwrap();
    let guard = locks.get(&key).lock().await.unwrap();
    sleep(ms(1)).await;
    let other = over(&servers, ms(30_000)).connect().await.unwrap();
    assert_eq!(
        (seen(&locks, &key).await, seen(&other, &key).await),
        (None, None)
    );
    guard.unlock().await.unwrap();
}

/// A test that repeats the answer to an acquire makes a mess of the next command of a lock, also if
/// a label is written in between.
#[tokio::test(start_paused = true)]
async fn a_repeated_answer_is_not_taken_for_that_of_a_label() {
    let (servers, key) = (servers(1), key());
    let (one, other) = pair(&servers, "shop").await;
    servers[0].duplicate_reply();
    let guard = one.get(&key).lock().await.unwrap();
    sleep(ms(1)).await;
    assert_eq!(
        (
            seen(&other, &key).await.as_deref(),
            one.stats().mismatched_replies
        ),
        (Some("shop"), 0)
    );
    assert!(matches!(
        one.get("other").try_lock().await,
        Err(Error::Unavailable { .. })
    ));
    assert_eq!(one.stats().mismatched_replies, 1);
    drop(guard);
}

/// A test that loses the answer to an acquire loses that one, also if a label is written before.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_lost_is_that_to_a_lock() {
    let (servers, key) = (servers(1), key());
    let (one, _) = pair(&servers, "shop").await;
    one.get(&key).lock().await.unwrap().unlock().await.unwrap();
    servers[0].lose_replies(1);
    sleep(MINUTE * 30).await;
    let answer = one.get(&key).try_lock().await;
    assert!(
        matches!(answer, Err(Error::Unavailable { .. })),
        "{answer:?}"
    );
}
