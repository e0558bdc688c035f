//! Every public future is polled n times and dropped, for every n until it completes: nothing is
//! left on the server, and the locker goes on working.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::common::polls::poll_times;
use crate::common::proxy::{Mode, Proxy};
use crate::common::{Server, builder, eventually, key, ms, soon};
use lockhound::{Lock, Locker, Owner};
use tokio::join;

/// The name of an operation that is polled and dropped, and the server on which it must leave
/// nothing.
struct Case<'a> {
    server: &'a Server,
    name: &'static str,
}

impl Case<'_> {
    /// `make` gets a new lock for every n; afterwards its key has to be free, and can be locked.
    async fn run<'f, T: 'f>(
        &self,
        locks: &Locker,
        make: impl Fn(Lock) -> Pin<Box<dyn Future<Output = T> + 'f>>,
    ) {
        let mut completed = false;
        for times in 0..40 {
            let lock = locks.get(key()).owned_by(Owner::new());
            let value = poll_times(make(lock.clone()), times).await;
            completed = value.is_some();
            drop(value);
            let name = lock.key().to_string();
            let what = format!("{} after {times} polls", self.name);
            eventually(ms(1_500), &what, || !self.server.exists(&name)).await;
            let again = soon(ms(2_000), lock.owned_by(Owner::new()).lock()).await;
            again
                .unwrap_or_else(|| panic!("{what}: it cannot be locked"))
                .unwrap()
                .unlock()
                .await
                .unwrap();
            if completed {
                break;
            }
        }
        assert!(completed, "{}: not complete after 40 polls", self.name);
    }
}

async fn every_future(server: &Server, url: &str) {
    let locks = builder(url, ms(3_000))
        .command_timeout(ms(900))
        .connect()
        .await
        .unwrap();
    let case = |name| Case { server, name };
    case("lock")
        .run(&locks, |lock| {
            Box::pin(async move { lock.lock().await.unwrap() })
        })
        .await;
    case("try_lock")
        .run(&locks, |lock| {
            Box::pin(async move { lock.try_lock().await.unwrap() })
        })
        .await;
    case("try_lock_for")
        .run(&locks, |lock| {
            Box::pin(async move { lock.try_lock_for(ms(1_000)).await.unwrap() })
        })
        .await;
    case("nested lock")
        .run(&locks, |lock| {
            Box::pin(async move {
                (
                    lock.lock().await.unwrap(),
                    lock.lock().await.unwrap(),
                    lock.lock().await.unwrap(),
                )
            })
        })
        .await;
    case("unlock")
        .run(&locks, |lock| {
            Box::pin(async move { lock.lock().await.unwrap().unlock().await })
        })
        .await;
    case("nested unlock")
        .run(&locks, |lock| {
            Box::pin(async move {
                let outer = lock.lock().await.unwrap();
                lock.lock().await.unwrap().unlock().await.unwrap();
                outer.unlock().await.unwrap();
            })
        })
        .await;
    case("run")
        .run(&locks, |lock| {
            Box::pin(async move { lock.run(|_| tokio::task::yield_now()).await.unwrap() })
        })
        .await;
    case("scope")
        .run(&locks, |lock| {
            Box::pin(
                Owner::new()
                    .scope(async move { lock.lock().await.unwrap().unlock().await.unwrap() }),
            )
        })
        .await;
    case("holder")
        .run(&locks, |lock| {
            Box::pin(async move { lock.holder().await.unwrap() })
        })
        .await;
    case("is_locked")
        .run(&locks, |lock| {
            Box::pin(async move { lock.is_locked().await.unwrap() })
        })
        .await;
    // The lock is held by another: a caller that gave up does not get it later.
    for times in 0..6 {
        let lock = locks.get(key());
        let other = lock.clone().owned_by(Owner::new()).lock().await.unwrap();
        let waiter = lock.clone().owned_by(Owner::new());
        assert!(
            poll_times(Box::pin(async move { waiter.lock().await }), times)
                .await
                .is_none()
        );
        let waiter = lock.clone().owned_by(Owner::new());
        drop(
            poll_times(
                Box::pin(async move { waiter.try_lock_for(ms(150)).await.unwrap() }),
                times,
            )
            .await,
        );
        other.check().unwrap();
        other.unlock().await.unwrap();
        tokio::time::sleep(ms(100)).await;
        assert!(
            !server.exists(lock.key().as_str()),
            "a waiter that was dropped after {times} polls has it"
        );
    }
    // An operation that was polled once is carried out.
    for times in 1..6 {
        let lock = locks.get(key());
        let guard = lock.lock().await.unwrap();
        let forcing = lock.clone();
        let done = poll_times(
            Box::pin(async move { forcing.force_unlock().await.unwrap() }),
            times,
        )
        .await;
        eventually(ms(1_000), "forced", || !server.exists(lock.key().as_str())).await;
        assert!(guard.is_lost());
        if done.is_some() {
            break;
        }
    }
    assert_eq!((locks.stats().holds, locks.stats().waiters), (0, 0));
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn futures_dropped_at_every_poll_leave_nothing() {
    let server = Server::start();
    every_future(&server, &server.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_late_answers_futures_dropped_at_any_poll_leave_nothing() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    proxy.set(Mode::Delay(ms(3)));
    every_future(&server, &proxy.url()).await;
}

fn connections(server: &Server) -> usize {
    server
        .command::<String>(&["CLIENT", "LIST"])
        .matches("lockhound:")
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn connect_and_close_dropped_at_every_poll_leave_no_connection() {
    let server = Server::start();
    for times in 0..40 {
        let connected = poll_times(Box::pin(Locker::connect(server.url())), times).await;
        let done = connected.is_some();
        drop(connected);
        eventually(ms(2_000), "no connection is left", || {
            connections(&server) == 0
        })
        .await;
        if done {
            break;
        }
        assert!(times < 39);
    }
    // Closing waits for the guard.
    for times in 1..5 {
        close_and_drop(&server, times, false).await;
    }
    for times in 1.. {
        assert!(times < 40, "not complete after 40 polls");
        if close_and_drop(&server, times, true).await {
            break;
        }
    }
}

/// Polls `close` this many times, before or while the last guard is dropped. Returns whether it
/// completes.
async fn close_and_drop(server: &Server, times: usize, meanwhile: bool) -> bool {
    let locks = builder(&server.url(), ms(3_000))
        .command_timeout(ms(900))
        .connect()
        .await
        .unwrap();
    assert_eq!(connections(server), 3);
    let mut guard = Some(locks.get(key()).lock().await.unwrap());
    let dropped = guard.take_if(|_| meanwhile);
    let ended = poll_times(
        Box::pin(async { join!(locks.close(), async { drop(dropped) }) }),
        times,
    )
    .await;
    drop(guard);
    eventually(ms(2_000), "closing goes on", || connections(server) == 0).await;
    ended.is_some()
}

#[test]
fn guards_outlive_the_runtime_that_took_them() {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let locks = runtime.block_on(Locker::connect(server.url())).unwrap();
    let (kept, dropped) = (locks.get(key()), locks.get(key()));
    let guard = runtime.block_on(kept.lock()).unwrap();
    let (taken, holds) = std::sync::mpsc::channel();
    let inner = dropped.clone();
    runtime.spawn(async move {
        let _guard = inner.lock().await.unwrap();
        taken.send(()).unwrap();
        std::future::pending::<()>().await;
    });
    holds.recv().unwrap();
    // The shutdown drops the task, and with it the guard.
    runtime.shutdown_timeout(Duration::from_secs(1));
    let start = std::time::Instant::now();
    while server.exists(dropped.key().as_str()) {
        assert!(crate::common::machine::within(start.elapsed(), ms(1_000)));
    }
    guard.check().unwrap();
    guard.blocking_unlock().unwrap();
    assert!(!server.exists(kept.key().as_str()));
}

#[tokio::test]
async fn guards_outlive_their_closed_locker() {
    let server = Server::start();
    let locks = builder(&server.url(), ms(600)).connect().await.unwrap();
    let lock = locks.get(key());
    let (outer, nested) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
    locks.close().await;
    assert!(outer.is_lost() && outer.lost().is_cancelled());
    drop(nested);
    assert!(outer.unlock().await.is_err());
    eventually(
        ms(1_000),
        "a lock that could not be released runs out",
        || !server.exists(lock.key().as_str()),
    )
    .await;
    locks.close().await;
}
