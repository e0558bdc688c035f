//! Holders are told of losses of every kind in time. `./dev soak` causes ten times as many, and
//! draws them.

use crate::common::losses::{self, Kind};
use crate::common::proxy::{Mode, Proxy};
use crate::common::{Server, builder, eventually, key, locker, ms};
use lockhound::{Error, HoldState, Loss, Owner};

#[tokio::test(flavor = "multi_thread")]
async fn losses_of_every_kind_are_told_in_time() {
    let mut all = Vec::new();
    for kind in Kind::ALL {
        all.push(losses::lose(kind, 100).await);
    }
    let table = losses::table(&all);
    assert_eq!(table.lines().count(), 9, "{table}");
    let picture = losses::picture(&all);
    assert_eq!(picture.matches("v20").count(), 700);
}

/// A section that is shorter than a third of the lease finds every loss in this way.
#[tokio::test(flavor = "multi_thread")]
async fn a_loss_that_is_found_at_the_release_is_counted() {
    let server = Server::start();
    let locks = locker(&server).await;
    let not_owner = || locks.stats().losses.not_owner;
    let is_lost = |answer| {
        matches!(
            answer,
            Err(Error::Lost {
                loss: Loss::NotOwner,
                ..
            })
        )
    };
    let delete = |key: &lockhound::Key| assert!(server.command::<bool>(&["DEL", key.as_str()]));
    let lock = locks.get(key());
    for number in 1..=5 {
        let guard = lock.lock().await.unwrap();
        delete(lock.key());
        assert!(is_lost(guard.unlock().await));
        assert_eq!(not_owner(), number);
    }
    let guard = lock.lock().await.unwrap();
    delete(lock.key());
    drop(guard);
    eventually(ms(2_000), "a dropped guard finds it too", || {
        not_owner() == 6
    })
    .await;

    // By the release of a nested guard, which only writes the count: the outer guard learns of it.
    let (outer, inner) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
    delete(lock.key());
    assert!(is_lost(inner.unlock().await));
    assert_eq!(
        (outer.state(), not_owner()),
        (HoldState::Lost(Loss::NotOwner), 7)
    );
    assert!(is_lost(outer.unlock().await));

    // By a hand-over.
    let guard = lock.lock().await.unwrap();
    let next = lock.clone().owned_by(Owner::new());
    let waiting = tokio::spawn(async move { next.lock().await.unwrap().unlock().await.unwrap() });
    eventually(ms(2_000), "it waits", || locks.stats().waiters == 1).await;
    locks
        .get(key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    delete(lock.key());
    assert!(is_lost(guard.unlock().await));
    waiting.await.unwrap();
    assert_eq!(
        (not_owner(), locks.stats().losses.total()),
        (8, 8),
        "each once"
    );
}

/// Its caller has been told that the release is not confirmed.
#[tokio::test(flavor = "multi_thread")]
async fn a_loss_that_is_found_after_an_outage_is_counted() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url(), ms(30_000))
        .command_timeout(ms(300))
        .connect()
        .await
        .unwrap();
    let guard = locks.get(key()).lock().await.unwrap();
    proxy.set(Mode::Refuse);
    proxy.cut();
    // Nothing that is sent may have been executed.
    while !locks
        .get(key())
        .try_lock()
        .await
        .is_err_and(|error| error.to_string().contains("not connected"))
    {}
    assert!(server.command::<bool>(&["DEL", guard.key().as_str()]));
    assert!(matches!(
        guard.unlock().await,
        Err(Error::Unavailable { .. })
    ));
    assert_eq!(locks.stats().losses.total(), 0, "nobody knows yet");
    proxy.set(Mode::Pass);
    eventually(ms(10_000), "the release is answered", || {
        locks.stats().losses.not_owner == 1
    })
    .await;
}
