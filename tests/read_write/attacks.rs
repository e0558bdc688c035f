//! What a hostile reader found: each test is a defect that is cured.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Server, eventually, key, locker, ms, soon};
use lockhound::{Error, Owner};

const SOON: Duration = Duration::from_secs(5);

fn hint_of(key: &str) -> String {
    format!("lockhound_writer:{{{key}}}")
}

/// The first writer leaves a hint and gives up; a reader, and then another writer, stand behind it.
#[tokio::test]
async fn a_reader_is_not_kept_out_by_the_hint_of_its_own_locker() {
    let (server, key) = (Server::start(), key());
    let [here, there] = [locker(&server).await, locker(&server).await];
    let inside = there.rw(&*key).read().lock().await.unwrap();
    let lock = here.rw(&*key);
    let first = lock.write().owned_by(Owner::new());
    let first = tokio::spawn(async move { first.try_lock_for(ms(500)).await });
    eventually(SOON, "its hint", || server.exists(&hint_of(&key))).await;
    let read = lock.read().owned_by(Owner::new());
    let read = tokio::spawn(async move { read.lock().await });
    eventually(SOON, "two wait", || here.stats().waiters == 2).await;
    let last = lock.write().owned_by(Owner::new());
    let last = tokio::spawn(async move { last.lock().await });
    eventually(SOON, "three wait", || here.stats().waiters == 3).await;
    assert!(first.await.unwrap().unwrap().is_none());
    drop(inside);
    let start = Instant::now();
    let read = soon(ms(2_000), read)
        .await
        .expect("the lock is free")
        .unwrap()
        .unwrap();
    assert!(start.elapsed() < ms(2_000), "{:?}", start.elapsed());
    drop(read);
    drop(soon(SOON, last).await.expect("woken").unwrap().unwrap());
}

/// The grant of a call past the line deletes no hint of a writer that waits in it.
#[tokio::test]
async fn a_hint_does_not_outlive_its_writer_after_a_try_lock() {
    let (server, key) = (Server::start(), key());
    let lock = locker(&server).await.rw(&*key);
    for _ in 0..10 {
        let read = lock.read().owned_by(Owner::new()).lock().await.unwrap();
        let waits = lock.write().owned_by(Owner::new());
        let waits = tokio::spawn(async move { waits.try_lock_for(ms(150)).await });
        eventually(SOON, "its hint", || server.exists(&hint_of(&key))).await;
        drop(read);
        let past = lock
            .write()
            .owned_by(Owner::new())
            .try_lock()
            .await
            .unwrap();
        drop(waits.await.unwrap().unwrap());
        drop(past);
        eventually(SOON, "the hint is gone", || !server.exists(&hint_of(&key))).await;
    }
}

#[tokio::test]
async fn a_read_inside_a_write_that_is_gone_is_refused() {
    let (server, key) = (Server::start(), key());
    let [here, there] = [locker(&server).await, locker(&server).await];
    let lock = here.rw(&*key);
    let outer = lock.write().lock().await.unwrap();
    let write = lock.write().lock().await.unwrap();
    assert!(there.rw(&*key).force_unlock().await.unwrap());
    let other = there.rw(&*key).write().lock().await.unwrap();
    other.unlock().await.unwrap();
    let read = write.downgrade().await;
    assert!(
        matches!(read, Err(Error::Lost { .. })),
        "another wrote in between: {read:?}"
    );
    drop(outer);
    let outer = lock.write().lock().await.unwrap();
    assert!(there.rw(&*key).force_unlock().await.unwrap());
    let read = lock.read().lock().await;
    assert!(matches!(read, Err(Error::Lost { .. })), "{read:?}");
    assert!(outer.loss().is_some(), "the answer proves it");
}

/// Sections of writes of one task, each inside a read of its own.
#[tokio::test]
async fn write_runs_in_branches_take_turns_inside_of_read_runs() {
    let (server, key) = (Server::start(), key());
    let lock = locker(&server).await.rw(&*key);
    let (write, read) = (lock.write(), lock.read());
    let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let writes = || async {
        most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        tokio::time::sleep(ms(50)).await;
        inside.fetch_sub(1, Ordering::SeqCst);
    };
    let branch = || read.run(|_| async { write.run(|_| writes()).await.unwrap() });
    let both = write.run(|_| async { tokio::join!(branch(), branch()) });
    let (one, other) = soon(SOON, both).await.expect("no deadlock").unwrap();
    one.and(other).unwrap();
    assert_eq!(most.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn force_unlock_releases_more_than_a_thousand_readers() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let fields: Vec<String> = (0..1_500)
        .map(|n| format!("00000000-0000-4000-8000-000000000000:{n}:1"))
        .collect();
    let mut words = vec!["HSET", &key, "mode", "read"];
    fields
        .iter()
        .for_each(|field| words.extend([&**field, "1"]));
    server.command::<i64>(&words);
    server.command::<bool>(&["PEXPIRE", &key, "60000"]);
    assert_eq!(
        locks.rw(&*key).holders().await.unwrap().readers().len(),
        1_000
    );
    assert!(locks.rw(&*key).force_unlock().await.unwrap());
    assert!(
        !server.exists(&key),
        "{} fields are left",
        server.command::<i64>(&["HLEN", &key])
    );
}

/// The guard passes to the task when the run ends, and the task already waits to write.
#[tokio::test]
async fn a_read_that_a_run_passes_on_refuses_its_owners_waiting_write() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let lock = locks.rw(&*key);
    let (read, write) = (lock.read(), lock.write());
    let kept = read.run(|_| async {
        let guard = read.lock().await.unwrap();
        eventually(SOON, "the writer waits", || locks.stats().waiters == 1).await;
        guard
    });
    let both = async { tokio::join!(kept, async { write.lock().await.err() }) };
    let (kept, refused) = soon(ms(3_000), both).await.expect("told");
    assert!(matches!(refused, Some(Error::Config(_))), "{refused:?}");
    drop(kept);
}
