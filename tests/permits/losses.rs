//! Permits that are lost, and lockers that end.

use crate::SOON;
use crate::common::{Server, eventually, key, locker, locker_with, ms, soon};
use lockhound::{Error, Loss};

#[tokio::test]
async fn a_holder_whose_record_is_gone_is_told_and_gives_nothing_back() {
    let (server, key) = (Server::start(), key());
    let locks = locker_with(&server, ms(900)).await;
    let semaphore = locks.permits(&*key).capacity(3);
    let two = semaphore.acquire_many(2).await.unwrap();
    let records = format!("{{{key}}}:timeout");
    let members = server.command::<Vec<String>>(&["ZRANGE", &records, "0", "-1"]);
    // As Redisson's clients do by a clock that is far ahead: one of the two is removed.
    server.command::<i64>(&["ZREM", &records, &members[1]]);
    server.command::<i64>(&["INCRBY", &key, "1"]);
    soon(SOON, two.lost().cancelled())
        .await
        .expect("at the next renewal");
    assert_eq!(two.loss(), Some(Loss::NotOwner));
    assert!(matches!(two.release().await, Err(Error::Lost { .. })));
    eventually(SOON, "the other one is given back", || {
        !server.exists(&records)
    })
    .await;
    assert_eq!(server.command::<i64>(&["GET", &key]), 3);
}

/// A JVM's `trySetPermits` with a time makes such a counter.
#[tokio::test]
async fn what_is_taken_ends_with_a_counter_that_runs_out_not_before() {
    let server = Server::start();
    let locks = locker_with(&server, ms(900)).await;
    for counts in [false, true] {
        let key = key();
        let (semaphore, records) = match counts {
            false => (locks.permits(&*key), format!("{{{key}}}:timeout")),
            true => (
                locks.semaphore(&*key),
                format!("lockhound_permits:{{{key}}}"),
            ),
        };
        let lasts_for_a_minute = || (1..=60_000).contains(&server.pttl(&records));
        server.command::<()>(&["SET", &key, "3", "PX", "60000"]);
        let two = semaphore.acquire_many(2).await.unwrap();
        assert!(lasts_for_a_minute());
        // Its lifetime is taken from it: the records of both are its own again.
        server.command::<i64>(&["PERSIST", &key]);
        drop(semaphore.acquire().await.unwrap());
        assert_eq!(server.pttl(&records), -1);
        server.command::<i64>(&["PEXPIRE", &key, "60000"]);
        let third = semaphore.acquire().await.unwrap();
        assert!(lasts_for_a_minute());
        for ends in [&key, &records] {
            server.command::<i64>(&["PEXPIRE", ends, "1"]);
        }
        for lost in [two.lost(), third.lost()] {
            soon(SOON, lost.cancelled())
                .await
                .expect("at the next renewal");
        }
        server.command::<()>(&["SET", &key, "3"]);
        assert!(matches!(two.release().await, Err(Error::Lost { .. })));
        drop(third);
        let all = semaphore.acquire_many(3).await.unwrap();
        assert!(semaphore.try_acquire().await.unwrap().is_none());
        all.release().await.unwrap();
        assert_eq!(server.command::<i64>(&["GET", &key]), 3);
    }
}

/// It ends before the next renewal finds that.
#[tokio::test]
async fn a_partial_release_tells_of_the_loss_and_gives_back_the_rest() {
    let (server, key) = (Server::start(), key());
    let two = locker(&server).await.permits(&*key).capacity(3);
    let two = two.acquire_many(2).await.unwrap();
    let records = format!("{{{key}}}:timeout");
    let members = server.command::<Vec<String>>(&["ZRANGE", &records, "0", "-1"]);
    server.command::<i64>(&["ZREM", &records, &members[0]]);
    server.command::<i64>(&["INCRBY", &key, "1"]);
    assert!(matches!(two.release().await, Err(Error::Lost { .. })));
    assert_eq!(server.command::<i64>(&["GET", &key]), 3);
}

#[tokio::test]
async fn a_silent_server_loses_permits_in_time() {
    let (server, key) = (Server::start(), key());
    let locks = locker_with(&server, ms(900)).await;
    let permit = locks.permits(&*key).capacity(1).acquire().await.unwrap();
    server.stop();
    soon(SOON, permit.lost().cancelled())
        .await
        .expect("before the lease ends");
    server.go_on();
    drop(permit);
    let records = format!("{{{key}}}:timeout");
    eventually(SOON * 2, "it is given back", || !server.exists(&records)).await;
    assert_eq!(server.command::<i64>(&["GET", &key]), 1);
}

#[tokio::test]
async fn closing_gives_permits_back_and_ends_waits() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let semaphore = locks.permits(&*key).capacity(2);
    let both = semaphore.acquire_many(2).await.unwrap();
    let waiting = tokio::spawn(async move { semaphore.acquire().await });
    eventually(SOON, "it waits", || locks.stats().waiters == 1).await;
    let closing = tokio::spawn(async move { locks.close().await });
    let answer = soon(SOON, waiting).await.expect("told").unwrap();
    assert!(matches!(answer, Err(Error::Closed)), "{answer:?}");
    soon(SOON, both.lost().cancelled())
        .await
        .expect("they are lost");
    assert_eq!(both.loss(), Some(Loss::Closed));
    drop(both);
    closing.await.unwrap();
    assert_eq!(server.command::<i64>(&["GET", &key]), 2);
}

/// Of more permits than are listed, and of more than are listed of a holder.
#[tokio::test]
async fn an_operator_gives_many_permits_back() {
    let (server, key) = (Server::start(), key());
    let [here, there] = [locker(&server).await, locker(&server).await];
    let others = there.permits(&*key).capacity(2_001);
    let held = [
        others.acquire_many(1_000).await.unwrap(),
        others.acquire_many(1_000).await.unwrap(),
    ];
    // A JVM's without a lease.
    let records = format!("{{{key}}}:timeout");
    server.command::<i64>(&["DECRBY", &key, "1"]);
    server.command::<i64>(&["ZADD", &records, "922337203685477", "jvm"]);
    let semaphore = here.permits(&*key);
    let usage = semaphore.usage().await.unwrap();
    let is_listed: u32 = usage.holders().iter().map(|it| it.permits()).sum();
    assert_eq!((usage.taken(), is_listed), (2_001, 1_000));
    let jvm = usage.holders().iter().find(|it| it.owner() == "6a766d");
    let jvm = jvm.expect("it never comes back by itself");
    assert_eq!(jvm.remaining(), None);
    let claim = usage.holders().iter().find(|it| it.permits() > 1);
    let claim = claim.expect("the claim that lasts longest");
    assert!(claim.permits() < 1_000, "{claim:?}");
    for (holder, left) in [(claim, 1_001), (jvm, 1_000)] {
        assert!(semaphore.force_release(holder).await.unwrap());
        assert!(!semaphore.force_release(holder).await.unwrap(), "once");
        assert_eq!(semaphore.usage().await.unwrap().taken(), left);
    }
    let usage = semaphore.usage().await.unwrap();
    let [last] = usage.holders() else {
        panic!("{usage:?}");
    };
    assert!(semaphore.force_release(last).await.unwrap());
    assert_eq!(semaphore.usage().await.unwrap().free(), 2_001);
    drop(held);
}

/// A clock of a JVM that is far ahead has taken one of them.
#[tokio::test]
async fn an_operator_is_told_of_a_part_that_was_given_back() {
    let (server, key) = (Server::start(), key());
    let [here, there] = [locker(&server).await, locker(&server).await];
    let held = there
        .permits(&*key)
        .capacity(2)
        .acquire_many(2)
        .await
        .unwrap();
    let semaphore = here.permits(&*key);
    let usage = semaphore.usage().await.unwrap();
    let records = format!("{{{key}}}:timeout");
    let owner = usage.holders()[0].owner();
    server.command::<i64>(&["ZREM", &records, &owner]);
    server.command::<i64>(&["INCRBY", &key, "1"]);
    assert!(semaphore.force_release(&usage.holders()[0]).await.unwrap());
    assert_eq!(server.command::<i64>(&["GET", &key]), 2);
    drop(held);
}

#[tokio::test]
async fn an_operator_gives_the_permits_of_a_holder_back() {
    let (server, key) = (Server::start(), key());
    let [here, there] = [locker(&server).await, locker(&server).await];
    let semaphore = here.permits(&*key).capacity(3);
    let [own, others] = [semaphore.acquire().await.unwrap(), {
        let there = there.permits(&*key);
        there.acquire_many(2).await.unwrap()
    }];
    let waits = semaphore.clone();
    let waiting = tokio::spawn(async move { waits.acquire_many(3).await });
    let usage = semaphore.usage().await.unwrap();
    assert_eq!(usage.holders().len(), 2);
    for holder in usage.holders() {
        assert!(semaphore.force_release(holder).await.unwrap());
        assert!(!semaphore.force_release(holder).await.unwrap(), "once");
    }
    assert_eq!(own.loss(), Some(Loss::ForceUnlocked));
    let all = soon(SOON, waiting).await.expect("woken").unwrap().unwrap();
    assert!(matches!(others.release().await, Err(Error::Lost { .. })));
    all.check().unwrap();
    drop(own);
    all.release().await.unwrap();
    assert_eq!(server.command::<i64>(&["GET", &key]), 3, "each once");
}
