//! Re-entry, reads inside writes, and the way from a write to a read.

use std::time::Duration;

use crate::common::{Server, eventually, key, locker, locker_with, ms, soon};
use lockhound::{Error, LockMode, Owner};

const SOON: Duration = Duration::from_secs(5);

#[tokio::test]
async fn an_owner_inside_enters_again_whoever_waits() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let lock = locks.rw(&*key);
    let outer = lock.read().lock().await.unwrap();
    let waiting = lock.write().owned_by(Owner::new());
    let mut writer = tokio::spawn(async move { waiting.lock().await });
    eventually(SOON, "the writer waits", || locks.stats().waiters == 1).await;
    let again = soon(SOON, lock.read().lock())
        .await
        .expect("at once")
        .unwrap();
    assert_eq!(again.fence(), outer.fence(), "one hold");
    let late = lock.read().owned_by(Owner::new());
    assert!(
        late.try_lock().await.unwrap().is_none(),
        "a reader behind the writer waits"
    );
    drop(outer);
    assert!(
        soon(ms(50), &mut writer).await.is_none(),
        "the other guard keeps it"
    );
    drop(again);
    let write = soon(SOON, writer).await.expect("told").unwrap().unwrap();
    drop(write);
}

#[tokio::test]
async fn an_owner_that_writes_reads_inside_of_it() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let lock = locks.rw(&*key);
    let write = lock.write().lock().await.unwrap();
    let waits = lock.write().owned_by(Owner::new());
    let other = tokio::spawn(async move { waits.lock().await.unwrap().unlock().await });
    eventually(SOON, "another writer waits", || locks.stats().waiters == 1).await;
    let read = soon(SOON, lock.read().lock())
        .await
        .expect("past the line")
        .unwrap();
    assert!(read.fence() > write.fence());
    let tried = lock.read().try_lock().await.unwrap().expect("inside");
    let again = lock
        .write()
        .try_lock()
        .await
        .unwrap()
        .expect("it writes already");
    assert_eq!(again.fence(), write.fence());
    drop((tried, again, read));
    assert!(
        lock.read()
            .owned_by(Owner::new())
            .try_lock()
            .await
            .unwrap()
            .is_none()
    );
    write.unlock().await.unwrap();
    soon(SOON, other).await.expect("told").unwrap().unwrap();
}

#[tokio::test]
async fn an_upgrade_is_refused_at_once_and_by_name() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let lock = locks.rw(&*key);
    let read = lock.read().lock().await.unwrap();
    let label = format!("lockhound_label:{}", locks.id());
    eventually(SOON, "it has its label", || server.exists(&label)).await;
    let before = server.calls("evalsha");
    let write = lock.write();
    let errors = [
        write.lock().await.err(),
        write.try_lock().await.err(),
        write.try_lock_for(ms(100)).await.err(),
        write.run(|_| async {}).await.err(),
    ];
    for error in errors {
        let error = error.expect("refused");
        assert!(matches!(error, Error::Config(_)), "{error:?}");
        let text = error.to_string();
        assert!(
            text.contains(&key) && text.contains("release the read guard first"),
            "{text}"
        );
    }
    assert_eq!(server.calls("evalsha"), before, "no server was asked");
    read.unlock().await.unwrap();
    write.lock().await.unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn a_downgrade_lets_readers_in_and_no_writer() {
    let (server, key) = (Server::start(), key());
    let [here, there] = [locker(&server).await, locker(&server).await];
    let lock = here.rw(&*key);
    let write = lock.write().lock().await.unwrap();
    let [read, rewrite] = [(); 2].map(|()| there.rw(&*key));
    let reader = tokio::spawn(async move { read.read().lock().await });
    eventually(SOON, "a reader waits", || there.stats().waiters == 1).await;
    let writer = tokio::spawn(async move { rewrite.write().lock().await });
    eventually(SOON, "a writer waits", || there.stats().waiters == 2).await;
    let fence = write.fence();
    let kept = write.downgrade().await.unwrap();
    assert!(kept.fence() > fence);
    let read = soon(SOON, reader)
        .await
        .expect("told of the downgrade")
        .unwrap()
        .unwrap();
    assert_eq!(lock.holders().await.unwrap().mode(), LockMode::Read);
    drop(read);
    assert!(!writer.is_finished(), "the reader is still inside");
    kept.unlock().await.unwrap();
    drop(soon(SOON, writer).await.expect("told").unwrap().unwrap());
}

#[tokio::test]
async fn a_downgrade_of_one_of_two_guards_leaves_the_write() {
    let (server, key) = (Server::start(), key());
    let lock = locker(&server).await.rw(&*key);
    let outer = lock.write().lock().await.unwrap();
    let inner = lock
        .write()
        .lock()
        .await
        .unwrap()
        .downgrade()
        .await
        .unwrap();
    assert_eq!(lock.holders().await.unwrap().mode(), LockMode::Write);
    let last = outer.downgrade().await.unwrap();
    assert_eq!(last.fence(), inner.fence(), "one read");
    assert_eq!(lock.holders().await.unwrap().mode(), LockMode::Read);
    drop((inner, last));
    eventually(SOON, "it is free", || !server.exists(&key)).await;
}

#[tokio::test]
async fn runs_nest_and_reads_of_one_task_run_together() {
    let (server, key) = (Server::start(), key());
    let lock = locker(&server).await.rw(&*key);
    let meet = tokio::sync::Barrier::new(2);
    let reads = lock.read();
    let meets = || reads.run(|_| async { meet.wait().await.is_leader() });
    let both = async { tokio::join!(meets(), meets()) };
    let (one, other) = soon(SOON, both).await.expect("both inside");
    assert_ne!(one.unwrap(), other.unwrap());
    let writes = lock.write();
    let read = writes.run(|section| {
        let lock = lock.clone();
        async move {
            let inside = lock
                .read()
                .run(|read| async move { read.fence() })
                .await
                .unwrap();
            assert!(inside > section.fence());
            lock.read()
                .run(|_| async { lock.write().lock().await.err() })
                .await
                .unwrap()
        }
    });
    assert!(
        read.await.unwrap().is_none(),
        "it writes already, further out"
    );
    let refused = lock
        .read()
        .run(|_| async { lock.write().lock().await.err() })
        .await
        .unwrap();
    assert!(matches!(refused, Some(Error::Config(_))), "{refused:?}");
}

/// Branches of one task are one owner: neither waits for the other for ever.
#[tokio::test]
async fn an_owner_does_not_wait_for_itself_in_the_other_role() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let lock = locks.rw(&*key);
    let holder = lock.write().owned_by(Owner::new()).lock().await.unwrap();
    let owner = Owner::new();
    let [reads, writes] = [(); 2].map(|()| owner.clone());
    let reader = lock.read().owned_by(reads);
    let writer = lock.write().owned_by(writes);
    // The reader comes first, and keeps its guard until the writer has had an answer.
    let first = tokio::spawn(async move { reader.lock().await });
    eventually(SOON, "it waits", || locks.stats().waiters == 1).await;
    let second = tokio::spawn(async move { writer.lock().await });
    eventually(SOON, "both wait", || locks.stats().waiters == 2).await;
    drop(holder);
    let read = soon(SOON, first).await.expect("granted").unwrap().unwrap();
    let refused = soon(SOON, second).await.expect("it is told").unwrap();
    assert!(matches!(refused, Err(Error::Config(_))), "{refused:?}");
    drop(read);
    // The other way round, the reader reads inside the write.
    let holder = lock.write().owned_by(Owner::new()).lock().await.unwrap();
    let [reader, writer] = [
        lock.read().owned_by(owner.clone()),
        lock.read().owned_by(Owner::new()),
    ];
    let writes = lock.write().owned_by(owner);
    let write = tokio::spawn(async move { writes.lock().await });
    eventually(SOON, "it waits", || locks.stats().waiters == 1).await;
    let stranger = tokio::spawn(async move { writer.lock().await });
    eventually(SOON, "two wait", || locks.stats().waiters == 2).await;
    let read = tokio::spawn(async move { reader.lock().await });
    eventually(SOON, "all wait", || locks.stats().waiters == 3).await;
    drop(holder);
    let write = soon(SOON, write).await.expect("granted").unwrap().unwrap();
    let read = soon(SOON, read).await.expect("inside").unwrap().unwrap();
    assert!(!stranger.is_finished());
    drop((write, read));
    drop(soon(SOON, stranger).await.expect("told").unwrap().unwrap());
}

/// The hash lives as long as its longest lease, and the field of a write has none of its own.
#[tokio::test]
async fn a_lost_write_does_not_stay_while_its_owner_reads() {
    let (server, key) = (Server::start(), key());
    let locks = locker_with(&server, ms(900)).await;
    let lock = locks.rw(&*key);
    let write = lock.write().max_hold(ms(300)).lock().await.unwrap();
    let read = lock.read().lock().await.unwrap();
    soon(SOON, write.lost().cancelled())
        .await
        .expect("its time is over");
    let other = lock.read().owned_by(Owner::new());
    let beside = soon(SOON, other.lock())
        .await
        .expect("the write is gone")
        .unwrap();
    read.check().unwrap();
    drop((write, read, beside));
}
