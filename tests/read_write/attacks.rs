//! What a hostile reader found: each test is a defect that is cured.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::{Server, eventually, key, locker, locker_with, ms, soon};
use lockhound::{Error, Owner, ReadGuard, RwLock};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

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

/// Stops the thread that logs that it has acquired a lock, until it is told to go on.
struct StopAtGrant {
    stopped: mpsc::Sender<bool>,
    go_on: Mutex<mpsc::Receiver<()>>,
}

/// Whether an event says that a lock was acquired.
struct SaysAcquired(bool);

impl Visit for SaysAcquired {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0 |= field.name() == "message" && format!("{value:?}") == "acquired";
    }
}

impl Subscriber for StopAtGrant {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut says = SaysAcquired(false);
        event.record(&mut says);
        if says.0 && self.stopped.send(true).is_ok() {
            // Without a word the test is over.
            let _: Result<_, _> = self.go_on.lock().unwrap().recv();
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// A reader on its way in beside another, which has logged its grant and is not registered yet.
struct OnItsWayIn {
    go_on: mpsc::Sender<()>,
    reader: JoinHandle<Result<Option<ReadGuard>, Error>>,
}

impl OnItsWayIn {
    /// Makes one beside a guard of its locker, which is returned too.
    async fn beside_another(lock: &RwLock) -> (ReadGuard, Self) {
        loop {
            let first = lock.read().owned_by(Owner::new()).lock().await.unwrap();
            let (stopped, stops) = mpsc::channel();
            let (go_on, goes_on) = mpsc::channel();
            let read = lock.read().owned_by(Owner::new());
            let reader = std::thread::spawn(move || {
                let over = stopped.clone();
                let go_on = Mutex::new(goes_on);
                let subscriber = StopAtGrant { stopped, go_on };
                let read =
                    tracing::subscriber::with_default(subscriber, || read.blocking_try_lock());
                let _: Result<_, _> = over.send(false);
                read
            });
            // The grant of a reader that has come too late to join is logged by another thread.
            if stops.recv().unwrap() {
                return (first, Self { go_on, reader });
            }
            drop((first, reader.join().unwrap().unwrap()));
        }
    }

    /// Lets it go on, and returns what it gets.
    fn enters(self) -> Result<Option<ReadGuard>, Error> {
        drop(self.go_on);
        self.reader.join().unwrap()
    }
}

/// The command names the field on which that reader stands too.
#[tokio::test]
async fn force_unlock_leaves_no_reader_on_its_way_beside_another() {
    let (server, key) = (Server::start(), key());
    let [here, there] = [locker(&server).await, locker(&server).await];
    let lock = here.rw(&*key);
    let (first, second) = OnItsWayIn::beside_another(&lock).await;
    assert!(lock.force_unlock().await.unwrap());
    let write = there.rw(&*key).write().try_lock().await.unwrap();
    let write = write.expect("nobody is inside");
    let second = second.enters();
    assert!(
        !matches!(&second, Ok(Some(guard)) if guard.loss().is_none()),
        "it reads while another writes: {second:?}"
    );
    assert!(write.loss().is_none() && first.loss().is_some());
    drop((first, second, write));
    eventually(SOON, "nothing is left", || {
        here.stats().holds == 0 && !server.exists(&key)
    })
    .await;
}

/// The write of its own locker, which proves that the field is gone, has come and gone meanwhile.
#[tokio::test]
async fn a_write_leaves_no_reader_on_its_way_beside_another() {
    let (server, key) = (Server::start(), key());
    let here = locker_with(&server, ms(3_000)).await;
    let there = locker(&server).await;
    let lock = here.rw(&*key);
    let (first, second) = OnItsWayIn::beside_another(&lock).await;
    assert!(there.rw(&*key).force_unlock().await.unwrap());
    // By its renewal.
    soon(SOON, first.lost().cancelled())
        .await
        .expect("it finds that");
    let write = lock.write().owned_by(Owner::new()).lock().await.unwrap();
    write.unlock().await.unwrap();
    let write = there.rw(&*key).write().try_lock().await.unwrap();
    let write = write.expect("nobody is inside");
    let second = second.enters();
    assert!(
        !matches!(&second, Ok(Some(guard)) if guard.loss().is_none()),
        "it reads while another writes: {second:?}"
    );
    drop((first, second, write));
    eventually(SOON, "nothing is left", || {
        here.stats().holds == 0 && !server.exists(&key)
    })
    .await;
}
