//! How many permits there are, and what cannot be asked for.

use crate::common::proxy::{Mode, Proxy};
use crate::common::{Server, builder, eventually, key, locker, ms, soon};
use crate::{LOG, SOON};
use lockhound::{Error, Format, Locker};

fn config(error: Error) -> String {
    match error {
        Error::Config(error) => error.to_string(),
        error => panic!("{error:?}"),
    }
}

#[tokio::test]
async fn the_first_capacity_counts_until_another_one_is_set() {
    let (server, key) = (Server::start(), key());
    let log = &*LOG;
    let locks = locker(&server).await;
    let [two, five] = [
        locks.permits(&*key).capacity(2),
        locks.permits(&*key).capacity(5),
    ];
    let held = two.acquire_many(2).await.unwrap();
    assert!(five.try_acquire().await.unwrap().is_none(), "there are two");
    eventually(SOON, "a warning", || {
        log.text()
            .contains("has another capacity than its handle says")
    })
    .await;
    let waits = five.clone();
    let waiting = tokio::spawn(async move { waits.acquire_many(2).await });
    eventually(SOON, "it waits", || locks.stats().waiters == 1).await;
    five.set_capacity(4).await.unwrap();
    let more = soon(SOON, waiting).await.expect("told").unwrap().unwrap();
    assert_eq!(five.usage().await.unwrap().capacity(), Some(4));
    five.set_capacity(1).await.unwrap();
    let usage = five.usage().await.unwrap();
    assert_eq!(
        (usage.capacity(), usage.free(), usage.taken()),
        (Some(1), 0, 4)
    );
    held.check().unwrap();
    drop((held, more));
    let only = soon(SOON, five.acquire())
        .await
        .expect("all are released")
        .unwrap();
    assert!(two.try_acquire().await.unwrap().is_none(), "one of one");
    drop(only);
}

/// It is told of by calls that get their permits, too.
#[tokio::test]
async fn a_handle_with_another_capacity_is_warned_of_but_gets_permits() {
    let (server, log) = (Server::start(), &*LOG);
    let locks = locker(&server).await;
    for past_the_line in [false, true] {
        let key = key();
        locks.permits(&*key).set_capacity(3).await.unwrap();
        let five = locks.permits(&*key).capacity(5);
        let permit = match past_the_line {
            false => five.acquire().await.unwrap(),
            true => five.try_acquire().await.unwrap().expect("three are free"),
        };
        eventually(SOON, "a warning", || {
            let text = log.text();
            let mut lines = text.lines();
            lines.any(|line| line.contains(&key) && line.contains("has another capacity"))
        })
        .await;
        permit.release().await.unwrap();
    }
}

#[tokio::test]
async fn callers_wait_for_a_capacity_and_are_warned_of_none() {
    let (server, key) = (Server::start(), key());
    let log = &*LOG;
    let locks = locker(&server).await;
    let semaphore = locks.permits(&*key);
    assert!(semaphore.try_acquire().await.unwrap().is_none());
    assert_eq!(semaphore.usage().await.unwrap().capacity(), None);
    let waits = semaphore.clone();
    let waiting = tokio::spawn(async move { waits.acquire().await });
    eventually(SOON, "a warning", || log.text().contains("has no capacity")).await;
    semaphore.set_capacity(1).await.unwrap();
    drop(soon(SOON, waiting).await.expect("told").unwrap().unwrap());
}

#[tokio::test]
async fn what_nobody_can_get_is_refused() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let semaphore = locks.permits(&*key).capacity(3);
    let refused = async |permits| config(semaphore.acquire_many(permits).await.unwrap_err());
    assert!(refused(0).await.contains("0 permits"));
    assert!(refused(4).await.contains("the capacity is 3"));
    assert!(refused(1_001).await.contains("at most 1000"));
    drop(semaphore.acquire().await.unwrap());
    let other = locks.permits(&*key);
    for error in [
        other.acquire_many(4).await.unwrap_err(),
        other.try_acquire_many(4).await.unwrap_err(),
    ] {
        let text = config(error);
        assert!(
            text.contains("4 permits") && text.contains("there are 3"),
            "{text}"
        );
    }
    assert!(config(other.set_capacity(0).await.unwrap_err()).contains("the capacity is 0"));
    let zero = locks.permits("zero").capacity(0).acquire().await;
    assert!(config(zero.unwrap_err()).contains("capacity is 0"));
    let huge = locks.permits("huge").capacity(u32::MAX).acquire().await;
    assert!(config(huge.unwrap_err()).contains("at most 2147483647"));
    assert!(matches!(
        locks.permits("").acquire().await,
        Err(Error::Config(_))
    ));
    server.command::<i64>(&["RPUSH", "list", "x"]);
    let list = locks.permits("list").capacity(1).acquire().await;
    let error = list.unwrap_err();
    assert!(
        error.to_string().contains("\"list\" holds a list"),
        "{error}"
    );
}

/// Fewer than none is a capacity, and a text is not.
#[tokio::test]
async fn what_others_have_made_of_the_counter_is_told() {
    let (server, key) = (Server::start(), key());
    let semaphore = locker(&server).await.permits(&*key);
    server.command::<()>(&["SET", &key, "-2"]);
    let refused = soon(SOON, semaphore.acquire()).await;
    let text = config(refused.expect("it would wait for ever").unwrap_err());
    assert!(text.contains("there are -2"), "{text}");
    assert_eq!(semaphore.usage().await.unwrap().capacity(), Some(0));
    for value in [
        "many",
        "0x10",
        "1.5",
        "nan",
        " 3",
        "007",
        "9223372036854775807",
    ] {
        server.command::<()>(&["SET", &key, value]);
        for error in [
            semaphore.usage().await.unwrap_err(),
            semaphore.try_acquire().await.unwrap_err(),
            semaphore.set_capacity(3).await.unwrap_err(),
        ] {
            let Error::Server { source, .. } = &error else {
                panic!("{error:?}");
            };
            let says = format!("is not an integer: {value}");
            assert!(source.to_string().contains(&says), "{source}");
        }
    }
}

#[tokio::test]
async fn plain_lockers_and_independent_servers_are_refused() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let nodes = servers.iter().map(Server::url);
    let several = nodes
        .fold(Locker::builder(), |builder, url| builder.node(url))
        .connect()
        .await
        .unwrap();
    let text = config(
        several
            .permits("k")
            .capacity(2)
            .acquire()
            .await
            .unwrap_err(),
    );
    assert!(
        text.contains("3 independent ones") && text.contains("with 2 permits on each, 3 holders"),
        "{text}"
    );
    assert!(
        config(several.semaphore("k").usage().await.unwrap_err()).contains("3 independent ones")
    );
    let plain = Locker::builder()
        .node(servers[0].url())
        .format(Format::Plain);
    let plain = plain.connect().await.unwrap();
    assert!(config(plain.permits("k").acquire().await.unwrap_err()).contains("Format::Plain"));
}

/// The counter of free permits is all that JVMs have of this kind.
#[tokio::test]
async fn a_counter_shared_with_jvms_keeps_its_capacity() {
    let (server, key) = (Server::start(), key());
    let semaphore = locker(&server).await.semaphore(&*key);
    semaphore.set_capacity(3).await.unwrap();
    let text = config(semaphore.set_capacity(5).await.unwrap_err());
    assert!(text.contains("leave no record"), "{text}");
    let two = semaphore.acquire_many(2).await.unwrap();
    assert_eq!(
        server.command::<i64>(&["DECRBY", &key, "1"]),
        0,
        "a JVM takes one"
    );
    assert!(semaphore.try_acquire().await.unwrap().is_none());
    let usage = semaphore.usage().await.unwrap();
    assert_eq!(
        (usage.capacity(), usage.free(), usage.taken()),
        (None, 0, 2)
    );
    assert!(server.exists(&format!("lockhound_permits:{{{key}}}")));
    two.release().await.unwrap();
    assert_eq!(server.command::<i64>(&["GET", &key]), 2);
}

/// The server carries out what is asked for, and the answer is lost.
#[tokio::test]
async fn an_unanswered_capacity_is_set_again_unless_jvms_share_it() {
    let (server, key) = (Server::start(), key());
    let proxy = Proxy::start(server.port());
    for is_shared in [false, true] {
        let locks = builder(&proxy.url(), ms(3_000)).command_timeout(ms(200));
        let locks = locks.connect().await.unwrap();
        let name = format!("{key}:{is_shared}");
        let semaphore = match is_shared {
            false => locks.permits(&*name),
            true => locks.semaphore(&*name),
        };
        // The server has to know the script.
        locks.permits("other").set_capacity(1).await.unwrap();
        // The capacity and the lease.
        proxy.set(Mode::SwallowReplyTo(b"$1\r\n7\r\n$4\r\n3000\r\n".to_vec()));
        let answer = semaphore.set_capacity(7).await;
        assert!(
            matches!(answer, Err(Error::Unavailable { .. })),
            "{answer:?}"
        );
        assert_eq!(server.command::<i64>(&["GET", &name]), 7, "it is set");
        proxy.set(Mode::Pass);
        let locks = locker(&server).await;
        if is_shared {
            let again = locks.semaphore(&*name).set_capacity(7).await;
            assert!(config(again.unwrap_err()).contains("has a capacity"));
        } else {
            locks.permits(&*name).set_capacity(7).await.unwrap();
        }
    }
}

/// 148 bytes a record as it was written, and 88 of the counter.
#[tokio::test]
async fn permits_take_little_of_the_server() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let semaphore = locks.permits(&*key).capacity(1_000);
    let mut permits = Vec::new();
    for _ in 0..500 {
        permits.push(semaphore.acquire().await.unwrap());
    }
    let records = format!("{{{key}}}:timeout");
    let bytes = server.command::<i64>(&["MEMORY", "USAGE", &records, "SAMPLES", "0"]);
    let counter = server.command::<i64>(&["MEMORY", "USAGE", &key]);
    crate::common::say(&format!(
        "{} bytes a record, {counter} the counter",
        bytes / 500
    ));
    // The record of a lone permit is smaller: the server keeps short lists together.
    assert!(bytes / 500 <= 170 && counter <= 200, "{bytes} {counter}");
}

/// Its own ask, and that of a caller before it that knows no capacity, sets it.
#[tokio::test]
async fn a_capacity_that_only_a_later_caller_knows_lets_all_in() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let [unknown, known] = [locks.permits(&*key), locks.permits(&*key).capacity(3)];
    let elsewhere = locker(&server).await;
    let other = elsewhere.permits(&*key);
    let waits =
        |semaphore: lockhound::Semaphore| tokio::spawn(async move { semaphore.acquire().await });
    let first = waits(unknown);
    eventually(SOON, "it waits", || locks.stats().waiters == 1).await;
    let other = waits(other);
    eventually(SOON, "it waits", || elsewhere.stats().waiters == 1).await;
    // At the next look. Of other terms than the first one.
    let last = waits(known.max_hold(SOON * 10));
    let permit = soon(SOON * 3, first).await.expect("it is set").unwrap();
    drop(
        soon(SOON, last)
            .await
            .expect("it is next")
            .unwrap()
            .unwrap(),
    );
    // The message tells the others: their look may come later.
    drop(soon(SOON, other).await.expect("it is told").unwrap());
    drop(permit.unwrap());
}
