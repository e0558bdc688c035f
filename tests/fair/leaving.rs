//! A caller that goes without the lock leaves no place.

use crate::common::polls::poll_times;
use crate::common::proxy::{Mode, Proxy};
use crate::common::{Server, builder, eventually, key, locker, ms, soon};
use crate::{SOON, granted, placed, queue, timeouts, wait_for};
use lockhound::Error;

#[tokio::test]
async fn calls_that_are_dropped_at_each_poll_leave_nothing() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let lock = locks.fair(&*key);
    for times in 0..8 {
        drop(poll_times(Box::pin(lock.lock()), times).await);
        drop(poll_times(Box::pin(lock.try_lock()), times).await);
        let held = soon(SOON, lock.lock()).await.expect("free").unwrap();
        drop(
            poll_times(
                Box::pin(lock.clone().owned_by(lockhound::Owner::new()).lock()),
                times,
            )
            .await,
        );
        placed(&server, &key, 0).await;
        held.unlock().await.unwrap();
    }
    assert_eq!(locks.stats().waiters, 0);
}

#[tokio::test]
async fn a_caller_that_gives_up_leaves_at_once_and_the_order_is_kept() {
    let (server, key) = (Server::start(), key());
    let [here, there] = [locker(&server).await, locker(&server).await];
    let held = here.fair(&*key).lock().await.unwrap();
    let lock = there.fair(&*key);
    let gives_up = {
        let lock = lock.clone();
        tokio::spawn(async move { lock.try_lock_for(ms(500)).await })
    };
    placed(&server, &key, 1).await;
    let drops = wait_for(&here.fair(&*key));
    placed(&server, &key, 2).await;
    let stays = wait_for(&lock);
    placed(&server, &key, 3).await;
    let last = queue(&server, &key)[2].clone();
    assert!(gives_up.await.unwrap().unwrap().is_none());
    drops.abort();
    placed(&server, &key, 1).await;
    assert_eq!(queue(&server, &key), [last]);
    held.unlock().await.unwrap();
    drop(granted(stays).await);
}

/// The one that is next has been told, or is about to be.
#[tokio::test]
async fn one_that_goes_when_it_is_next_calls_the_one_behind_it() {
    let (server, key) = (Server::start(), key());
    let [here, there] = [locker(&server).await, locker(&server).await];
    for _ in 0..20 {
        let held = here.fair(&*key).lock().await.unwrap();
        let next = wait_for(&here.fair(&*key));
        placed(&server, &key, 1).await;
        let behind = wait_for(&there.fair(&*key));
        placed(&server, &key, 2).await;
        let (released, ()) = tokio::join!(held.unlock(), async { next.abort() });
        released.unwrap();
        let behind = granted(behind).await;
        behind.unlock().await.unwrap();
    }
    placed(&server, &key, 0).await;
}

#[tokio::test]
async fn a_locker_that_closes_leaves_the_queue() {
    let (server, key) = (Server::start(), key());
    let [here, there] = [locker(&server).await, locker(&server).await];
    let held = here.fair(&*key).lock().await.unwrap();
    let waiting = [0; 5].map(|_| wait_for(&there.fair(&*key)));
    placed(&server, &key, 5).await;
    there.close().await;
    for caller in waiting {
        assert!(matches!(caller.await.unwrap(), Err(Error::Closed)));
    }
    assert_eq!((queue(&server, &key), timeouts(&server, &key)), (vec![], 0));
    held.unlock().await.unwrap();
}

/// The server executes the ask, and the answer is lost: the caller goes on waiting, or goes.
#[tokio::test]
async fn an_ask_without_an_answer_leaves_no_hold_and_no_place() {
    let (server, key) = (Server::start(), key());
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url(), ms(6_000))
        .command_timeout(ms(200))
        .outage_tolerance(ms(0))
        .connect()
        .await
        .unwrap();
    let lock = locks.fair(&*key);
    lock.lock().await.unwrap().unlock().await.unwrap();
    let there = locker(&server).await.fair(&*key);
    for held in [false, true] {
        let held = match held {
            true => Some(there.lock().await.unwrap()),
            false => None,
        };
        // The keys and the lease.
        proxy.set(Mode::SwallowReplyTo(b"$4\r\n6000\r\n".to_vec()));
        let answer = soon(SOON, lock.lock()).await.expect("an outage");
        assert!(
            matches!(answer, Err(Error::Unavailable { .. })),
            "{answer:?}"
        );
        proxy.set(Mode::Pass);
        assert!(proxy.swallowed() > 0);
        placed(&server, &key, 0).await;
        drop(held);
        let guard = soon(SOON, there.lock()).await.expect("free").unwrap();
        guard.unlock().await.unwrap();
    }
    eventually(SOON, "all is undone", || locks.stats().pending_undos == 0).await;
}

/// Nobody knows what became of the asks: the server executes them when it goes on.
#[tokio::test]
async fn a_server_that_stands_still_costs_nobody_its_place() {
    let (server, key) = (Server::start(), key());
    let locks = builder(&server.url(), ms(9_000))
        .command_timeout(ms(500))
        .connect()
        .await
        .unwrap();
    let lock = locks.fair(&*key);
    let held = lock.lock().await.unwrap();
    let first = wait_for(&lock);
    placed(&server, &key, 1).await;
    let (goes, stays) = (wait_for(&lock), wait_for(&lock));
    placed(&server, &key, 3).await;
    let before = queue(&server, &key);
    server.stop();
    let late = wait_for(&lock);
    eventually(SOON, "it waits", || locks.stats().waiters == 4).await;
    // Its ask has no answer.
    tokio::time::sleep(ms(1_200)).await;
    goes.abort();
    server.go_on();
    placed(&server, &key, 3).await;
    let after = queue(&server, &key);
    assert_eq!([&after[0], &after[1]], [&before[0], &before[2]]);
    held.unlock().await.unwrap();
    for caller in [first, stays, late] {
        let guard = soon(ms(20_000), caller).await.expect("served").unwrap();
        guard.unwrap().unlock().await.unwrap();
    }
    placed(&server, &key, 0).await;
    eventually(SOON, "nothing is under way", || locks.stats().pending == 0).await;
    assert!(queue(&server, &key).is_empty() && timeouts(&server, &key) == 0);
}

/// A bug: when the first one had left, nobody knew any more that the ask for the others may come.
#[tokio::test]
async fn callers_that_go_together_after_an_outage_leave_no_place() {
    let (server, key) = (Server::start(), key());
    let (proxy, timeout) = (Proxy::start(server.port()), ms(2_000));
    let locks = builder(&proxy.url(), ms(9_000))
        .command_timeout(timeout)
        .connect()
        .await
        .unwrap();
    let held = locker(&server).await.fair(&*key).lock().await.unwrap();
    let callers = [0; 3].map(|_| wait_for(&locks.fair(&*key)));
    placed(&server, &key, 3).await;
    let tickets = queue(&server, &key);
    proxy.freeze();
    // A look has no answer.
    tokio::time::sleep(ms(1_500) + timeout).await;
    eventually(SOON * 2, "it is back", || locks.stats().nodes[0].up).await;
    for caller in callers {
        caller.abort();
    }
    placed(&server, &key, 0).await;
    // What the look does when it comes now.
    let [list, times] = ["queue", "timeout"].map(|of| format!("redisson_lock_{of}:{{{key}}}"));
    for ticket in tickets {
        let _: i64 = server.command(&["RPUSH", &list, &ticket]);
        let _: i64 = server.command(&["ZADD", &times, "99999999999999", &ticket]);
    }
    placed(&server, &key, 0).await;
    eventually(SOON, "nothing is under way", || locks.stats().pending == 0).await;
    held.unlock().await.unwrap();
}

/// A bug: what was to take it out of the queue was given up a lease later, and it stands longer.
#[tokio::test]
async fn a_caller_that_goes_in_an_outage_leaves_when_it_is_over() {
    let (server, key) = (Server::start(), key());
    let (proxy, lease) = (Proxy::start(server.port()), ms(1_500));
    let locks = builder(&proxy.url(), lease)
        .outage_tolerance(ms(60_000))
        .connect()
        .await
        .unwrap();
    let held = locker(&server).await.fair(&*key).lock().await.unwrap();
    let goes = wait_for(&locks.fair(&*key));
    placed(&server, &key, 1).await;
    proxy.set(Mode::Refuse);
    proxy.cut();
    goes.abort();
    tokio::time::sleep(lease * 2).await;
    assert_eq!(queue(&server, &key).len(), 1);
    proxy.set(Mode::Pass);
    placed(&server, &key, 0).await;
    held.unlock().await.unwrap();
}
