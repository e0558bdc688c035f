//! Servers that are away, connections that are cut, and answers that are lost.

use std::time::Instant;

use crate::common::proxy::{Mode, Proxy};
use crate::common::{Server, builder, eventually, key, locker_with, ms, soon};
use crate::{LONG, SHORT, SOON, goes_on, waits};
use lockhound::{Error, Latch, Locker};

/// A latch as two lockers have it, one of them behind a proxy.
struct Apart {
    server: Server,
    proxy: Proxy,
    latch: Latch,
    there: Locker,
    /// As `there` has it.
    far: Latch,
}

impl Apart {
    async fn start() -> Self {
        let (server, key) = (Server::start(), key());
        let proxy = Proxy::start(server.port());
        let here = locker_with(&server, LONG).await;
        let there = builder(&proxy.url(), LONG).connect().await.unwrap();
        Self {
            server,
            proxy,
            latch: here.latch(&*key),
            far: there.latch(&*key),
            there,
        }
    }
}

/// Both calls were carried out, and the copies that are sent behind do nothing.
#[tokio::test]
async fn a_call_whose_answer_is_lost_is_carried_out_once_and_answered() {
    let (server, key) = (Server::start(), key());
    let proxy = Proxy::start(server.port());
    let latch = builder(&proxy.url(), LONG)
        .connect()
        .await
        .unwrap()
        .latch(&*key);
    let swallow = || proxy.set(Mode::SwallowReplyTo(key.clone().into_bytes()));
    for round in 1..=2 {
        for (call, swallowed) in [("set", 3 * round - 2), ("count", 3 * round - 1)] {
            swallow();
            let calling = tokio::spawn({
                let latch = latch.clone();
                async move {
                    match call {
                        "set" => assert!(latch.try_set(2).await.unwrap(), "it has set it"),
                        _ => assert_eq!(latch.count_down().await.unwrap(), 1),
                    }
                }
            });
            eventually(SOON, "it is lost", || proxy.swallowed() >= swallowed).await;
            proxy.set(Mode::Pass);
            soon(SOON * 4, calling).await.expect("answered").unwrap();
            let count: u64 = server.command(&["GET", &key]);
            assert_eq!(count, if call == "set" { 2 } else { 1 });
        }
        // The last one, whose copies find the latch open.
        swallow();
        let counting = tokio::spawn({
            let latch = latch.clone();
            async move { latch.count_down().await }
        });
        eventually(SOON, "it is lost", || proxy.swallowed() >= 3 * round).await;
        proxy.set(Mode::Pass);
        let left = soon(SOON * 4, counting).await.expect("answered").unwrap();
        assert_eq!(left.unwrap(), 0);
        assert!(!server.exists(&key));
    }
}

/// A server that stands still has several copies in its buffers when it goes on.
#[tokio::test]
async fn copies_that_wait_in_a_server_that_stood_still_count_once() {
    let (server, key) = (Server::start(), key());
    let locks = builder(&server.url(), LONG).command_timeout(ms(200));
    let latch = locks.connect().await.unwrap().latch(&*key);
    assert!(latch.try_set(10).await.unwrap());
    let scripts = server.calls("evalsha");
    server.stop();
    let counting: Vec<_> = (0..4)
        .map(|_| {
            let latch = latch.clone();
            tokio::spawn(async move { latch.count_down().await })
        })
        .collect();
    // Long enough for several copies of each.
    tokio::time::sleep(ms(1_500)).await;
    server.go_on();
    for counting in counting {
        let left = soon(SOON * 4, counting).await.expect("answered").unwrap();
        assert!(left.unwrap() < 10);
    }
    assert_eq!(latch.count().await.unwrap(), 6);
    let copies = server.calls("evalsha") - scripts;
    assert!(copies > 5, "{copies} scripts: there were copies");
}

#[tokio::test]
async fn calls_wait_through_an_outage_and_say_when_it_lasts() {
    let (server, key) = (Server::start(), key());
    let locks = builder(&server.url(), LONG)
        .command_timeout(ms(200))
        .outage_tolerance(ms(1_500));
    let latch = locks.connect().await.unwrap().latch(&*key);
    server.kill();
    let counting = tokio::spawn({
        let latch = latch.clone();
        async move { latch.try_set(3).await }
    });
    tokio::time::sleep(ms(400)).await;
    assert!(!counting.is_finished());
    server.restart();
    let set = soon(SOON, counting).await.expect("answered").unwrap();
    assert!(set.unwrap());
    server.stop();
    let start = Instant::now();
    let told = [
        soon(SOON * 2, latch.count_down())
            .await
            .expect("it gives up")
            .err(),
        soon(SOON * 2, latch.wait())
            .await
            .expect("it gives up")
            .err(),
    ];
    assert!(start.elapsed() >= ms(3_000), "{:?}", start.elapsed());
    for error in told {
        let Some(error @ Error::Unavailable { waited, .. }) = &error else {
            panic!("{error:?}");
        };
        assert!(*waited >= ms(1_500), "{error:?}");
        assert!(error.to_string().contains(&key), "{error}");
    }
    // A bounded wait does not say that the latch is closed.
    let told = latch.wait_for(ms(700)).await;
    assert!(matches!(told, Err(Error::Unavailable { .. })), "{told:?}");
    assert!(matches!(
        latch.count().await,
        Err(Error::Unavailable { .. })
    ));
    server.go_on();
    // The count that gave up may count: once.
    eventually(SOON, "it counts or not", || {
        [2, 3].contains(&server.command::<u64>(&["GET", &key]))
    })
    .await;
}

#[tokio::test]
async fn a_caller_whose_server_comes_back_empty_goes_on() {
    let (server, key) = (Server::start(), key());
    let locks = locker_with(&server, LONG).await;
    let latch = locks.latch(&*key);
    assert!(latch.try_set(1).await.unwrap());
    let waiting = waits(&server, &locks, &latch).await;
    server.kill();
    server.restart();
    goes_on(waiting).await;
}

/// The message comes while nobody is subscribed, and nobody looks by itself.
#[tokio::test]
async fn a_caller_whose_connection_was_cut_reads_again() {
    let Apart {
        server,
        proxy,
        latch,
        there,
        far,
    } = Apart::start().await;
    assert!(latch.try_set(1).await.unwrap());
    let waiting = waits(&server, &there, &far).await;
    proxy.set(Mode::Refuse);
    proxy.cut();
    assert_eq!(latch.count_down().await.unwrap(), 0);
    proxy.set(Mode::Pass);
    goes_on(waiting).await;
    // The connection of subscriptions alone.
    assert!(latch.try_set(1).await.unwrap());
    let waiting = waits(&server, &there, &far).await;
    let killed: u64 = server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    assert!(killed > 0);
    assert_eq!(latch.count_down().await.unwrap(), 0);
    goes_on(waiting).await;
}

/// The message comes between the first read and the subscription.
#[tokio::test]
async fn a_caller_reads_again_once_it_is_subscribed() {
    let Apart {
        server,
        proxy,
        latch,
        far,
        ..
    } = Apart::start().await;
    assert!(latch.try_set(1).await.unwrap());
    proxy.set(Mode::Hold(b"redisson_countdownlatch".to_vec()));
    let reads = server.calls("get");
    let waiting = tokio::spawn(async move { far.wait().await });
    let so = || proxy.held() == 1 && server.calls("get") > reads;
    eventually(SOON, "it has read", so).await;
    assert_eq!(latch.count_down().await.unwrap(), 0);
    proxy.set(Mode::Pass);
    goes_on(waiting).await;
}

/// The message comes between a read and its answer.
#[tokio::test]
async fn a_message_that_comes_while_a_caller_reads_is_not_lost() {
    let Apart {
        server,
        proxy,
        latch,
        there,
        far,
    } = Apart::start().await;
    assert!(latch.try_set(2).await.unwrap());
    // Another caller has subscribed before, so nothing but messages rings.
    let first = waits(&server, &there, &far).await;
    proxy.set(Mode::Delay(ms(200)));
    let reads = server.calls("get");
    assert_eq!(latch.count_down().await.unwrap(), 1);
    let second = tokio::spawn(async move { far.wait().await });
    eventually(SOON, "it reads", || server.calls("get") > reads + 1).await;
    assert_eq!(latch.count_down().await.unwrap(), 0);
    goes_on(first).await;
    goes_on(second).await;
}

#[tokio::test]
async fn an_outage_shorter_than_the_tolerance_ends_no_wait() {
    let (server, key) = (Server::start(), key());
    let locks = builder(&server.url(), SHORT)
        .command_timeout(ms(200))
        .outage_tolerance(SOON * 4);
    let locks = locks.connect().await.unwrap();
    let latch = locks.latch(&*key);
    assert!(latch.try_set(1).await.unwrap());
    let waiting = waits(&server, &locks, &latch).await;
    server.stop();
    tokio::time::sleep(ms(1_000)).await;
    server.go_on();
    assert!(!waiting.is_finished());
    assert_eq!(latch.count_down().await.unwrap(), 0);
    goes_on(waiting).await;
}
