//! Servers behind names, and networks that swallow everything for a while.

use std::time::Instant;

use lockhound::{HoldState, Locker};

use crate::common::machine::within;
use crate::common::proxy::{Mode, Proxy};
use crate::common::{Server, builder, eventually, key, ms};

/// The name is looked up at each connect: at the first one, after an outage, and by a locker that
/// starts without it.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_behind_a_name_is_found_again_after_an_outage() {
    let server = Server::start();
    let url = format!("redis://localhost:{}", server.port());
    let locks = builder(&url, ms(6_000)).connect().await.unwrap();
    locks
        .get(key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    server.kill();
    let lazy = builder(&url, ms(6_000)).connect_lazy().unwrap();
    assert!(
        locks.get(key()).try_lock().await.is_err() && lazy.get(key()).try_lock().await.is_err()
    );
    server.restart();
    for locks in [&locks, &lazy] {
        locks
            .get(key())
            .lock()
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
    }
    let cut = locks.get(key()).lock().await.unwrap();
    server.cut_connections();
    locks
        .get(key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    assert_eq!(cut.state(), HoldState::Safe);
    cut.unlock().await.unwrap();
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_named_in_the_error() {
    let connecting = Locker::builder()
        .node("redis://nobody.invalid")
        .connect_timeout(ms(300))
        .connect();
    let message = connecting.await.unwrap_err().to_string();
    assert!(
        message.contains("failed to lookup address information"),
        "{message}"
    );
}

/// Open connections are dead from the beginning on, and those that are made meanwhile too, as
/// behind a firewall that has lost its state.
#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_swallows_all_for_a_second_costs_no_lock() {
    let server = Server::start();
    let way = Proxy::start(server.port());
    let lease = ms(3_000);
    let locks = builder(&way.url(), lease).connect().await.unwrap();
    let mut guards = Vec::new();
    for _ in 0..10 {
        guards.push(locks.get(key()).lock().await.unwrap());
    }
    way.freeze();
    way.set(Mode::BlackHole);
    let begun = Instant::now();
    tokio::time::sleep(ms(1_000)).await;
    way.freeze();
    way.set(Mode::Pass);
    let lock = locks.get(key());
    while lock.try_lock().await.is_err() {}
    let took = begun.elapsed();
    assert!(within(took, ms(2_200)), "no locking for {took:?}");
    // Until their renewals had time to fail once more.
    tokio::time::sleep(lease).await;
    assert!(
        guards.iter().all(|guard| guard.state() == HoldState::Safe)
            || crate::common::machine::starved()
    );
}

/// The old server is demoted and follows nobody, so it forwards no messages; the name leads to its
/// successor.
#[tokio::test(flavor = "multi_thread")]
async fn the_subscriber_leaves_a_demoted_server_with_the_rest() {
    let (old, new) = (Server::start(), Server::start());
    let name = Proxy::start(old.port());
    let locks = builder(&name.url(), ms(9_000)).connect().await.unwrap();
    locks
        .get(key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    name.lead_to(new.port());
    old.command::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    let lock = locks.get(key());
    while lock.try_lock().await.is_err() {}
    let here = |server: &Server| {
        let clients: String = server.command(&["CLIENT", "LIST"]);
        clients.matches("name=lockhound:subscriber:").count()
    };
    eventually(ms(5_000), "it listens to the new server", || {
        (here(&old), here(&new)) == (0, 1)
    })
    .await;
}
