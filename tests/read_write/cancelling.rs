//! Calls that are dropped at each of their awaits leave nothing.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::common::{Server, eventually, key, locker, ms};
use lockhound::{Error, Owner, RwLock};

const SOON: Duration = Duration::from_secs(5);

/// Polls a future so often, with a pause after each poll, and drops it. Returns whether it ended.
async fn polled<T>(future: impl Future<Output = T>, times: usize) -> bool {
    let mut future = pin!(future);
    for _ in 0..times {
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(_dropped) = future.as_mut().poll(&mut context) {
            return true;
        }
        tokio::time::sleep(ms(3)).await;
    }
    false
}

async fn is_free(lock: &RwLock, server: &Server, what: &str) {
    eventually(SOON, what, || !server.exists(lock.key().as_str())).await;
    let write = lock.write().owned_by(Owner::new());
    write.lock().await.unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn calls_that_are_dropped_at_each_poll_leave_nothing() {
    let (server, key) = (Server::start(), key());
    let lock = locker(&server).await.rw(&*key);
    for times in 0..6 {
        let read = lock.read().owned_by(Owner::new());
        let write = lock.write().owned_by(Owner::new());
        polled(read.lock(), times).await;
        is_free(&lock, &server, &format!("read dropped after {times} polls")).await;
        polled(write.lock(), times).await;
        is_free(
            &lock,
            &server,
            &format!("write dropped after {times} polls"),
        )
        .await;
        let owner = Owner::new();
        let outer = lock.write().owned_by(owner.clone()).lock().await.unwrap();
        polled(lock.read().owned_by(owner).lock(), times).await;
        outer.unlock().await.unwrap();
        is_free(
            &lock,
            &server,
            &format!("inner read dropped after {times} polls"),
        )
        .await;
        let outer = lock.write().owned_by(Owner::new()).lock().await.unwrap();
        polled(outer.downgrade(), times).await;
        is_free(
            &lock,
            &server,
            &format!("downgrade dropped after {times} polls"),
        )
        .await;
    }
}

/// A read that its caller has not taken yet is no reason to refuse its owner's write.
#[tokio::test]
async fn a_dropped_read_does_not_refuse_the_write_of_its_owner() {
    let (server, key) = (Server::start(), key());
    let lock = locker(&server).await.rw(&*key);
    for times in 0..6 {
        let owner = Owner::new();
        polled(lock.read().owned_by(owner.clone()).lock(), times).await;
        match lock.write().owned_by(owner).lock().await {
            Ok(write) => write.unlock().await.unwrap(),
            Err(error @ Error::Config(_)) => panic!("after {times} polls: {error}"),
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// Readers of others wait behind a writer that waits. When it gives up, they are told.
#[tokio::test]
async fn a_writer_that_gives_up_keeps_no_reader_out() {
    let (server, key) = (Server::start(), key());
    let [here, there, elsewhere] = [
        locker(&server).await,
        locker(&server).await,
        locker(&server).await,
    ];
    let inside = here.rw(&*key).read().lock().await.unwrap();
    let waits = there.rw(&*key).write();
    let gives_up = tokio::spawn(async move { waits.lock().await });
    let hint = format!("lockhound_writer:{{{key}}}");
    eventually(SOON, "the server has its hint", || server.exists(&hint)).await;
    let others = elsewhere.rw(&*key).read().owned_by(Owner::new());
    assert!(others.try_lock().await.unwrap().is_none(), "a writer waits");
    let late = tokio::spawn(async move { others.lock().await });
    eventually(SOON, "it waits", || elsewhere.stats().waiters == 1).await;
    gives_up.abort();
    let late = crate::common::soon(ms(2_000), late)
        .await
        .expect("told")
        .unwrap()
        .unwrap();
    assert!(!server.exists(&hint));
    drop((inside, late));
}
