//! Holds that are lost, and holders that die.

use std::time::Duration;

use crate::common::log::Log;
use crate::common::{Server, eventually, key, locker_with, ms, soon};
use lockhound::{Error, Loss, Owner};

const SOON: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_reader_and_a_writer_are_told_of_a_deletion() {
    let (server, keys) = (Server::start(), [key(), key()]);
    let locks = locker_with(&server, ms(900)).await;
    let read = locks.rw(&*keys[0]).read().lock().await.unwrap();
    let write = locks.rw(&*keys[1]).write().lock().await.unwrap();
    for key in &keys {
        assert!(server.command::<bool>(&["DEL", key]));
    }
    for lost in [read.lost(), write.lost()] {
        soon(SOON, lost.cancelled())
            .await
            .expect("at the next renewal");
    }
    assert_eq!(
        (read.loss(), write.loss()),
        (Some(Loss::NotOwner), Some(Loss::NotOwner))
    );
    assert!(matches!(read.unlock().await, Err(Error::Lost { .. })));
    assert!(matches!(write.downgrade().await, Err(Error::Lost { .. })));
}

/// A dead reader's field stays in the hash as long as others read. It must not keep writers out.
#[tokio::test]
async fn a_dead_reader_keeps_a_writer_out_for_its_lease_only() {
    let (server, key) = (Server::start(), key());
    let dead = locker_with(&server, ms(900)).await;
    let locks = locker_with(&server, ms(30_000)).await;
    let forgotten = dead
        .rw(&*key)
        .read()
        .fixed_lease(ms(900))
        .lock()
        .await
        .unwrap();
    std::mem::forget(forgotten);
    let lock = locks.rw(&*key);
    let beside = lock.read().lock().await.unwrap();
    tokio::time::sleep(ms(1_000)).await;
    beside.unlock().await.unwrap();
    let write = lock
        .write()
        .owned_by(Owner::new())
        .try_lock()
        .await
        .unwrap();
    assert!(write.is_some(), "the last reader has cleaned up");
}

/// The hash lives as long as its longest lease.
#[tokio::test]
async fn a_dead_reader_is_not_kept_by_the_longer_lease_of_another() {
    let (server, key) = (Server::start(), key());
    let dead = locker_with(&server, ms(1_500)).await;
    let locks = locker_with(&server, ms(300_000)).await;
    let lock = locks.rw(&*key);
    let beside = lock.read().lock().await.unwrap();
    let fixed = dead.rw(&*key).read().fixed_lease(ms(1_500));
    std::mem::forget(fixed.lock().await.unwrap());
    beside.unlock().await.unwrap();
    assert!(server.pttl(&key) <= 1_500, "{}", server.pttl(&key));
    let write = lock.write().owned_by(Owner::new());
    let guard = soon(SOON, write.lock())
        .await
        .expect("after the dead reader's lease");
    guard.unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn a_silent_server_loses_readers_and_writers_in_time() {
    let (server, keys) = (Server::start(), [key(), key()]);
    let locks = locker_with(&server, ms(900)).await;
    let read = locks.rw(&*keys[0]).read().lock().await.unwrap();
    let write = locks.rw(&*keys[1]).write().lock().await.unwrap();
    server.stop();
    for lost in [read.lost(), write.lost()] {
        soon(SOON, lost.cancelled())
            .await
            .expect("before the lease ends");
    }
    server.go_on();
    drop((read, write));
    eventually(Duration::from_secs(10), "both are free", || {
        keys.iter().all(|key| !server.exists(key))
    })
    .await;
}

#[tokio::test]
async fn a_closed_locker_has_no_readers() {
    let (server, key) = (Server::start(), key());
    let locks = locker_with(&server, ms(900)).await;
    let lock = locks.rw(&*key);
    let read = lock.read().lock().await.unwrap();
    let waits = lock.write().owned_by(Owner::new());
    let waiting = tokio::spawn(async move { waits.lock().await });
    eventually(SOON, "it waits", || locks.stats().waiters == 1).await;
    let closing = tokio::spawn(async move { locks.close().await });
    assert!(matches!(
        soon(SOON, waiting).await.unwrap().unwrap(),
        Err(Error::Closed)
    ));
    soon(SOON, read.lost().cancelled())
        .await
        .expect("it is lost");
    assert_eq!(read.loss(), Some(Loss::Closed));
    drop(read);
    closing.await.unwrap();
    eventually(SOON, "it is free", || !server.exists(&key)).await;
}

/// What a reader of Redisson with a lease of two seconds does at each of its renewals: it sets the
/// lifetime of the whole hash.
#[tokio::test]
async fn a_lease_cut_by_another_client_is_warned_of_and_not_trusted() {
    let (server, key) = (Server::start(), key());
    let log = Log::collect();
    let locks = locker_with(&server, ms(6_000)).await;
    let read = locks.rw(&*key).read().lock().await.unwrap();
    server.command::<bool>(&["PEXPIRE", &key, "2000"]);
    eventually(Duration::from_secs(10), "the renewal restores it", || {
        server.pttl(&key) > 2_000
    })
    .await;
    eventually(SOON, "a warning", || {
        log.text().contains("another client with a shorter lease")
    })
    .await;
    assert!(read.remaining() <= ms(2_000), "{:?}", read.remaining());
    tokio::time::sleep(ms(2_500)).await;
    read.check().unwrap();
    assert!(
        read.remaining() <= ms(2_000),
        "it is renewed as often as that takes"
    );
}
