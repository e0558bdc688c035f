//! Callers of one locker are served in the order in which they came.

use crate::SOON;
use crate::common::{Server, eventually, key, locker, ms, soon};

#[tokio::test]
async fn one_that_wants_many_is_not_passed_by_those_behind_it() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let semaphore = locks.permits(&*key).capacity(5);
    let first = semaphore.acquire_many(3).await.unwrap();
    let many = semaphore.clone();
    let many = tokio::spawn(async move { many.acquire_many(5).await });
    eventually(SOON, "it waits", || locks.stats().waiters == 1).await;
    assert!(
        semaphore.try_acquire().await.unwrap().is_none(),
        "two are free, and it goes past nobody"
    );
    let few = semaphore.clone();
    let few = tokio::spawn(async move { few.acquire().await });
    eventually(SOON, "two wait", || locks.stats().waiters == 2).await;
    tokio::time::sleep(ms(200)).await;
    assert_eq!(locks.stats().waiters, 2, "though two are free");
    first.release().await.unwrap();
    let many = soon(SOON, many).await.expect("served").unwrap().unwrap();
    assert_eq!(locks.stats().waiters, 1);
    many.release().await.unwrap();
    let few = soon(SOON, few).await.expect("served").unwrap();
    few.unwrap().release().await.unwrap();
}

/// Nothing wakes those behind it but its own leaving.
#[tokio::test]
async fn those_behind_one_that_gives_up_are_served_at_once() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let semaphore = locks.permits(&*key).capacity(3);
    let held = semaphore.acquire().await.unwrap();
    let many = semaphore.clone();
    let many = tokio::spawn(async move { many.try_acquire_many_for(3, ms(400)).await });
    eventually(SOON, "it waits", || locks.stats().waiters == 1).await;
    let few = semaphore.clone();
    let few = tokio::spawn(async move { few.acquire_many(2).await });
    eventually(SOON, "two wait", || locks.stats().waiters == 2).await;
    assert!(many.await.unwrap().unwrap().is_none());
    // A look comes after five seconds.
    let few = soon(ms(2_500), few).await.expect("served").unwrap();
    drop((few.unwrap(), held));
}

#[tokio::test]
async fn an_ask_is_for_many_callers() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let semaphore = locks.permits(&*key).capacity(20);
    let all = semaphore.acquire_many(20).await.unwrap();
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            let semaphore = semaphore.clone();
            tokio::spawn(async move { semaphore.acquire().await })
        })
        .collect();
    eventually(SOON, "all wait", || locks.stats().waiters == 20).await;
    tokio::time::sleep(ms(100)).await;
    let scripts = server.calls("evalsha");
    all.release().await.unwrap();
    let mut permits = Vec::new();
    for task in waiting {
        permits.push(soon(SOON, task).await.expect("served").unwrap().unwrap());
    }
    let asked = server.calls("evalsha") - scripts;
    assert!(asked <= 6, "a release, and asks for 16 and for 4: {asked}");
}
