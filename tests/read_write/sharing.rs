//! Who has the lock together with whom, and what is on the server meanwhile.

use crate::common::labels::labelled;
use crate::common::{Server, eventually, key, locker, locker_with, ms, soon};
use lockhound::{Error, Format, HoldState, LockMode, Locker, Loss, Owner};
use std::slice::from_ref;
use std::time::{Duration, Instant};

#[tokio::test]
async fn readers_are_inside_together_and_a_writer_alone() {
    let (server, key) = (Server::start(), key());
    let [here, there] = [locker(&server).await, locker(&server).await];
    let [read, also] = [&here, &there].map(|locks| locks.rw(&*key).read());
    let write = there.rw(&*key).write();
    let first = read.lock().await.unwrap();
    let second = also.clone().non_reentrant().lock().await.unwrap();
    let third = read
        .clone()
        .owned_by(Owner::new())
        .try_lock()
        .await
        .unwrap();
    assert!(third.is_some(), "beside the others");
    let other = write.clone().owned_by(Owner::new());
    assert!(other.try_lock().await.unwrap().is_none());
    assert!(other.try_lock_for(ms(50)).await.unwrap().is_none());
    drop((first, second, third));
    let guard = soon(Duration::from_secs(5), other.lock())
        .await
        .expect("told")
        .unwrap();
    assert_eq!(guard.state(), HoldState::Safe);
    assert!(guard.remaining() > ms(29_000) && guard.loss().is_none());
    assert!(
        read.clone()
            .owned_by(Owner::new())
            .try_lock()
            .await
            .unwrap()
            .is_none()
    );
    assert!(
        also.owned_by(Owner::new())
            .try_lock()
            .await
            .unwrap()
            .is_none()
    );
    guard.unlock().await.unwrap();
    eventually(Duration::from_secs(5), "nothing is left", || {
        server
            .command::<Vec<String>>(&["KEYS", &format!("*{key}*")])
            .is_empty()
    })
    .await;
}

/// Redisson's readers take one without its timeout for dead.
#[tokio::test]
async fn the_server_has_redissons_fields_and_timeouts() {
    let (server, key) = (Server::start(), key());
    let lock = locker(&server).await.rw(&*key);
    let guard = lock.read().lock().await.unwrap();
    let fields = server.command::<std::collections::BTreeMap<String, String>>(&["HGETALL", &key]);
    assert_eq!(fields["mode"], "read");
    let field = fields.keys().find(|field| *field != "mode").unwrap();
    assert_eq!(fields[field], "1");
    let timeout = format!("{{{key}}}:{field}:rwlock_timeout:1");
    for key in [&*timeout, &key] {
        assert!((29_000..=30_000).contains(&server.pttl(key)), "{key}");
    }
    guard.unlock().await.unwrap();
    assert!(!server.exists(&timeout) && !server.exists(&key));
    let guard = lock.write().lock().await.unwrap();
    let fields = server.command::<std::collections::BTreeMap<String, String>>(&["HGETALL", &key]);
    assert_eq!(fields["mode"], "write");
    assert!(
        fields.keys().any(|field| field.ends_with(":write")),
        "{fields:?}"
    );
    drop(guard);
    eventually(Duration::from_secs(5), "it is free", || {
        !server.exists(&key)
    })
    .await;
}

#[tokio::test]
async fn a_read_has_a_fence_between_those_of_the_writes_around_it() {
    let (server, key) = (Server::start(), key());
    let lock = locker(&server).await.rw(&*key);
    let mut last = None;
    for _ in 0..3 {
        let write = lock
            .write()
            .run(|section| async move { section.fence() })
            .await
            .unwrap();
        assert!(last < Some(write));
        let reads = [
            lock.read().lock().await.unwrap(),
            lock.read().owned_by(Owner::new()).lock().await.unwrap(),
        ];
        assert!(reads.iter().all(|read| read.fence() > write));
        last = reads.iter().map(|read| read.fence()).max();
    }
}

#[tokio::test]
async fn the_watchdog_renews_reads_and_writes() {
    let (server, keys) = (Server::start(), [key(), key()]);
    let locks = locker_with(&server, ms(600)).await;
    let read = locks.rw(&*keys[0]).read().lock().await.unwrap();
    let write = locks.rw(&*keys[1]).write().lock().await.unwrap();
    tokio::time::sleep(ms(2_000)).await;
    read.check().unwrap();
    write.check().unwrap();
    let others = locker(&server).await;
    assert!(
        others
            .rw(&*keys[0])
            .write()
            .try_lock()
            .await
            .unwrap()
            .is_none()
    );
    assert!(
        others
            .rw(&*keys[1])
            .read()
            .try_lock()
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(locks.stats().holds, 2);
}

#[tokio::test]
async fn holders_are_listed_with_their_labels() {
    let (server, key) = (Server::start(), key());
    let here = Locker::builder()
        .node(server.url())
        .label("here")
        .connect()
        .await
        .unwrap();
    let there = Locker::builder()
        .node(server.url())
        .label("there")
        .connect()
        .await
        .unwrap();
    let lock = here.rw(&*key);
    assert_eq!(lock.holders().await.unwrap().mode(), LockMode::Free);
    assert!(!lock.is_locked().await.unwrap());
    let guards = [
        lock.read().lock().await.unwrap(),
        there.rw(&*key).read().lock().await.unwrap(),
    ];
    labelled(&here, from_ref(&server)).await;
    labelled(&there, from_ref(&server)).await;
    let holders = lock.holders().await.unwrap();
    assert_eq!(
        (holders.mode(), holders.readers().len()),
        (LockMode::Read, 2)
    );
    assert!(holders.writer().is_none() && lock.is_locked().await.unwrap());
    let mut labels: Vec<_> = holders
        .readers()
        .iter()
        .map(|holder| holder.label().unwrap())
        .collect();
    labels.sort_unstable();
    assert_eq!(labels, ["here", "there"]);
    for holder in holders.readers() {
        assert_eq!(holder.hold_count(), 1);
        assert!(holder.remaining().unwrap() > ms(29_000));
    }
    drop(guards);
    let guard = lock.write().lock().await.unwrap();
    let nested = lock.read().lock().await.unwrap();
    let holders = there.rw(&*key).holders().await.unwrap();
    assert_eq!(
        (holders.mode(), holders.readers().len()),
        (LockMode::Write, 1)
    );
    let writer = holders.writer().unwrap();
    assert!(writer.owner().ends_with(":write") && writer.owner().starts_with(here.id()));
    drop((guard, nested));
}

#[tokio::test]
async fn force_unlock_releases_those_that_are_there() {
    let (server, key) = (Server::start(), key());
    let [here, there] = [locker(&server).await, locker(&server).await];
    let lock = here.rw(&*key);
    assert!(!lock.force_unlock().await.unwrap(), "it is free");
    let guards = [
        lock.read().lock().await.unwrap(),
        there.rw(&*key).read().lock().await.unwrap(),
    ];
    assert!(lock.force_unlock().await.unwrap());
    assert_eq!(guards[0].loss(), Some(Loss::ForceUnlocked));
    let write = lock
        .write()
        .owned_by(Owner::new())
        .try_lock()
        .await
        .unwrap()
        .expect("it is free");
    drop(guards);
    assert!(
        write.loss().is_none(),
        "releases of those that were deposed take nothing"
    );
    assert!(there.rw(&*key).force_unlock().await.unwrap());
    assert!(matches!(write.unlock().await, Err(Error::Lost { .. })));
}

#[tokio::test]
async fn where_there_are_no_such_locks_each_call_says_why() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let urls = servers.each_ref().map(Server::url);
    let several = Locker::builder();
    let several = urls
        .iter()
        .fold(several, |builder, url| builder.node(url))
        .connect()
        .await
        .unwrap();
    let plain = Locker::builder()
        .node(&urls[0])
        .format(Format::Plain)
        .connect()
        .await
        .unwrap();
    for (locks, reason) in [(&several, "independent"), (&plain, "Format::Plain")] {
        let lock = locks.rw("k");
        let errors = [
            lock.read().lock().await.err(),
            lock.read().try_lock().await.err(),
            lock.write().try_lock_for(ms(1)).await.err(),
            lock.write().run(|_| async {}).await.err(),
            lock.holders().await.err(),
            lock.force_unlock().await.err(),
            lock.is_locked().await.err(),
        ];
        for error in errors {
            let error = error.expect("refused");
            assert!(matches!(error, Error::Config(_)), "{error:?}");
            assert!(error.to_string().contains(reason), "{error}");
        }
    }
    assert!(matches!(
        plain.rw("").read().lock().await,
        Err(Error::Config(_))
    ));
}

/// Redisson enters a lock of another kind.
#[tokio::test]
async fn a_lock_of_the_same_name_keeps_readers_and_writers_out() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let guard = locks.get(&*key).lock().await.unwrap();
    assert!(locks.rw(&*key).read().try_lock().await.unwrap().is_none());
    assert!(locks.rw(&*key).write().try_lock().await.unwrap().is_none());
    guard.unlock().await.unwrap();
    let guard = locks.rw(&*key).read().lock().await.unwrap();
    assert!(locks.get(&*key).try_lock().await.unwrap().is_none());
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn threads_without_async_code_read_and_write() {
    let (server, key) = (Server::start(), key());
    let url = server.url();
    let threads = std::thread::spawn(move || {
        let locks = Locker::builder().node(url).blocking_connect().unwrap();
        let lock = locks.rw(&*key);
        let write = lock.write().blocking_lock().unwrap();
        let read = write.blocking_downgrade().unwrap();
        let owner = Owner::new();
        assert!(
            lock.write()
                .owned_by(owner.clone())
                .blocking_try_lock()
                .unwrap()
                .is_none()
        );
        let also = lock
            .read()
            .owned_by(owner)
            .blocking_try_lock_for(ms(100))
            .unwrap();
        also.unwrap().blocking_unlock().unwrap();
        read.blocking_unlock().unwrap();
        locks.blocking_close();
    });
    tokio::task::spawn_blocking(move || threads.join())
        .await
        .unwrap()
        .unwrap();
}

/// How many fields readers of one locker may have that came within this time: each is open for
/// 10 ms.
fn fields_within(time: Duration) -> usize {
    2 + usize::try_from(time.as_millis()).unwrap() / 10
}

/// Each has a guard of its own, and the last one to leave frees the lock.
#[tokio::test]
async fn readers_that_come_together_share_a_field_until_the_last_left() {
    let (server, key) = (Server::start(), key());
    let [here, there] = [locker(&server).await, locker(&server).await];
    let lock = here.rw(&*key);
    let writer = there.rw(&*key).write().owned_by(Owner::new());
    let start = Instant::now();
    let mut guards = Vec::new();
    for n in 0..64 {
        let read = lock.read().owned_by(Owner::new());
        guards.push(match n % 2 {
            0 => read.lock().await.unwrap(),
            _ => read.try_lock().await.unwrap().expect("beside the others"),
        });
    }
    let most = fields_within(start.elapsed());
    let fields = lock.holders().await.unwrap().readers().len();
    assert!(fields <= most, "{fields} fields, {most} at most");
    assert_eq!(here.stats().holds, 64);
    let first = guards[0].fence();
    assert!(guards.iter().all(|guard| guard.fence() >= first));
    fastrand::shuffle(&mut guards);
    while let Some(guard) = guards.pop() {
        assert!(server.exists(&key) && guard.state() == HoldState::Safe);
        assert!(guard.remaining() > ms(20_000));
        assert!(writer.try_lock().await.unwrap().is_none());
        guard.unlock().await.unwrap();
    }
    assert!(!server.exists(&key));
    assert!(writer.try_lock().await.unwrap().is_some());
    assert_eq!(here.stats().holds, 0);
}

/// They waited for a writer, and one of them asks for all.
#[tokio::test]
async fn readers_at_the_front_of_the_line_come_in_together() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let lock = locks.rw(&*key);
    let write = lock.write().owned_by(Owner::new()).lock().await.unwrap();
    let (inside, mut entered) = tokio::sync::mpsc::unbounded_channel();
    for _ in 0..64 {
        let (read, inside) = (lock.read().owned_by(Owner::new()), inside.clone());
        tokio::spawn(async move {
            let guard = read.lock().await.unwrap();
            inside.send(guard).unwrap();
        });
    }
    eventually(Duration::from_secs(5), "they wait", || {
        locks.stats().waiters == 64
    })
    .await;
    let start = Instant::now();
    write.unlock().await.unwrap();
    let mut guards = Vec::new();
    while guards.len() < 64 {
        let guard = soon(Duration::from_secs(5), entered.recv()).await;
        guards.push(guard.expect("it enters").unwrap());
    }
    let most = fields_within(start.elapsed());
    let fields = lock.holders().await.unwrap().readers().len();
    assert!(fields <= most, "{fields} fields, {most} at most");
    drop(guards);
    eventually(Duration::from_secs(5), "the last one has left", || {
        !server.exists(&key)
    })
    .await;
}

/// Such a hold ends by itself, while the others go on.
#[tokio::test]
async fn readers_with_terms_of_their_own_share_nothing() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let lock = locks.rw(&*key);
    let read = || lock.read().owned_by(Owner::new());
    let mut guards = Vec::new();
    for _ in 0..2 {
        guards.push(read().fixed_lease(ms(9_000)).lock().await.unwrap());
        guards.push(read().max_hold(ms(9_000)).lock().await.unwrap());
    }
    assert_eq!(lock.holders().await.unwrap().readers().len(), 4);
    drop(guards);
}

/// All of them stand on one field.
#[tokio::test]
async fn all_readers_of_a_field_learn_that_it_is_gone() {
    let (server, key) = (Server::start(), key());
    let locks = locker_with(&server, ms(1_500)).await;
    let lock = locks.rw(&*key);
    let mut guards = Vec::new();
    for _ in 0..8 {
        guards.push(lock.read().owned_by(Owner::new()).lock().await.unwrap());
    }
    server.command::<i64>(&["DEL", &key]);
    for guard in &guards {
        soon(Duration::from_secs(5), guard.lost().cancelled())
            .await
            .expect("it is lost");
        assert_eq!(guard.loss(), Some(Loss::NotOwner));
    }
    // What is undone for the last of them takes nothing from another reader.
    let other = locker(&server).await;
    let read = other.rw(&*key).read().lock().await.unwrap();
    drop(guards);
    eventually(Duration::from_secs(5), "nothing is under way", || {
        locks.stats().pending == 0
    })
    .await;
    read.check().unwrap();
    assert!(server.exists(&key));
}
