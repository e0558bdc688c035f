//! What a fair lock is beside its order: a lock as any other.

use crate::common::{Server, builder, key, locker, ms, soon};
use crate::{SOON, granted, placed, wait_for};
use lockhound::stats::LockKind;
use lockhound::{Error, Format, Locker};

#[tokio::test]
async fn a_fair_lock_is_counted_by_its_kind() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let lock = locks.fair(&*key);
    let held = lock.lock().await.unwrap();
    let waiting = wait_for(&lock);
    placed(&server, &key, 1).await;
    let stats = locks.stats();
    let of_kind = stats
        .by_kind
        .iter()
        .find(|of| of.kind == LockKind::Fair)
        .unwrap();
    assert_eq!((of_kind.holds, of_kind.waiters), (1, 1));
    assert_eq!(LockKind::Fair.to_string(), "fair");
    held.unlock().await.unwrap();
    drop(granted(waiting).await);
}

#[tokio::test]
async fn a_deleted_lock_is_lost_and_a_renewed_one_stays() {
    let (server, key) = (Server::start(), key());
    let lease = ms(1_500);
    let locks = builder(&server.url(), lease).connect().await.unwrap();
    let held = locks.fair(&*key).lock().await.unwrap();
    tokio::time::sleep(lease * 2).await;
    held.check().unwrap();
    let _: i64 = server.command(&["DEL", &key]);
    soon(SOON, held.lost().cancelled()).await.expect("noticed");
    let error = held.unlock().await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
}

#[tokio::test]
async fn a_fixed_lease_is_extended() {
    let (server, key) = (Server::start(), key());
    let lock = locker(&server).await.fair(&*key).fixed_lease(ms(2_000));
    let held = lock.lock().await.unwrap();
    held.extend(ms(20_000)).await.unwrap();
    let left: i64 = server.command(&["PTTL", &key]);
    assert!(left > 10_000, "{left}");
    held.unlock().await.unwrap();
}

#[tokio::test]
async fn a_fair_lock_is_on_one_server_in_redissons_format() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let several = servers.iter().map(Server::url);
    let several = several.fold(Locker::builder(), |builder, url| builder.node(url));
    let several = several.connect().await.unwrap();
    let plain = Locker::builder()
        .node(servers[0].url())
        .format(Format::Plain)
        .connect()
        .await
        .unwrap();
    for (locks, said) in [(several, "queue of its own"), (plain, "Format::Plain")] {
        let lock = locks.fair("x");
        for error in [
            lock.lock().await.map(drop).unwrap_err(),
            lock.try_lock().await.map(drop).unwrap_err(),
        ] {
            assert!(matches!(error, Error::Config(_)), "{error:?}");
            assert!(error.to_string().contains(said), "{error}");
        }
    }
}

#[tokio::test]
async fn a_queue_of_another_type_is_named() {
    let (server, key) = (Server::start(), key());
    let lock = locker(&server).await.fair(&*key);
    let queue = format!("redisson_lock_queue:{{{key}}}");
    let _: String = server.command(&["SET", &queue, "x"]);
    let error = lock.try_lock().await.unwrap_err();
    assert!(error.to_string().contains("redisson_lock_queue"), "{error}");
    // What is held is released all the same, and said to be.
    let _: i64 = server.command(&["DEL", &queue]);
    let held = lock.lock().await.unwrap();
    let _: String = server.command(&["SET", &queue, "x"]);
    held.unlock().await.unwrap();
    assert_eq!(server.command::<i64>(&["EXISTS", &key]), 0);
}
