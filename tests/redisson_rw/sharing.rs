//! Who is inside beside whom, on either side.

use lockhound::{HoldState, LockMode, Loss};

use crate::common::both_sides::{both_sides, entered, is_illegal_monitor_state};
use crate::common::{key, soon};
use crate::{LONG, SHORT, WOKEN, enter, enter_there, reader, writer};

const ALL: (bool, bool) = (true, true);
const READERS: (bool, bool) = (true, false);
const NOBODY: (bool, bool) = (false, false);

#[tokio::test(flavor = "multi_thread")]
async fn readers_of_both_sides_share_and_a_writer_is_alone() {
    let Some((server, locks, redisson)) = both_sides(LONG).await else {
        return;
    };
    let key = key();
    let [read, write, other_read, other_write] =
        ["read", "write", "read", "write"].map(|kind| redisson.lock_of(kind, &key));

    write.lock().await;
    assert_eq!(enter(&locks, &key).await, NOBODY);
    write.unlock().await.unwrap();
    let guard = writer(&locks, &key).lock().await.unwrap();
    assert_eq!(enter_there(&read, &write).await, NOBODY);
    guard.check().unwrap();
    guard.unlock().await.unwrap();

    read.lock().await;
    assert_eq!(enter(&locks, &key).await, READERS);
    assert!(read.is_held().await);
    read.unlock().await.unwrap();
    let guard = reader(&locks, &key).lock().await.unwrap();
    assert_eq!(enter_there(&read, &write).await, READERS);
    guard.check().unwrap();
    guard.unlock().await.unwrap();
    assert!(!server.exists(&key));
    assert_eq!(enter(&locks, &key).await, ALL);
    assert_eq!(enter_there(&other_read, &other_write).await, ALL);
    assert!(!server.exists(&key));
}

/// A reader's `unlock()` on the JVM deletes the lock unless it finds a timeout key of another
/// reader.
#[tokio::test(flavor = "multi_thread")]
async fn a_readers_release_keeps_the_readers_of_the_other_side() {
    let Some((server, locks, redisson)) = both_sides(LONG).await else {
        return;
    };
    let key = key();
    let [read, other_read, write] =
        ["read", "read", "write"].map(|kind| redisson.lock_of(kind, &key));
    let kept = || {
        let left = server.pttl(&key);
        assert!(left > 30_000, "{left} ms are left");
    };

    // Theirs leaves ours, whichever came first.
    for ours_first in [true, false] {
        if !ours_first {
            read.lock().await;
        }
        let guard = reader(&locks, &key).lock().await.unwrap();
        if ours_first {
            read.lock().await;
        }
        let holders = locks.rw(&*key).holders().await.unwrap();
        assert_eq!(
            (holders.mode(), holders.readers().len()),
            (LockMode::Read, 2)
        );
        let owners: Vec<_> = holders.readers().iter().map(|one| one.owner()).collect();
        assert!(
            owners.iter().any(|owner| owner.starts_with(&redisson.id)),
            "{owners:?}"
        );
        read.unlock().await.unwrap();
        assert_eq!(enter_there(&other_read, &write).await, READERS);
        kept();
        assert_eq!(guard.state(), HoldState::Safe);
        guard.unlock().await.unwrap();
        assert!(!server.exists(&key));
    }

    // Ours leaves theirs.
    for ours_first in [true, false] {
        if !ours_first {
            read.lock().await;
        }
        let guard = reader(&locks, &key).lock().await.unwrap();
        if ours_first {
            read.lock().await;
        }
        guard.unlock().await.unwrap();
        assert_eq!(enter(&locks, &key).await, READERS);
        kept();
        assert!(read.is_held().await);
        read.unlock().await.unwrap();
        assert!(!server.exists(&key));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nested_holds_of_the_jvm_keep_us_out_until_the_last() {
    let Some((server, locks, redisson)) = both_sides(LONG).await else {
        return;
    };
    let key = key();
    let write = redisson.lock_of("write", &key);
    let read = write.as_kind("read");

    let guard = reader(&locks, &key).lock().await.unwrap();
    for count in 1..3 {
        read.lock().await;
        assert_eq!(read.hold_count().await, count);
    }
    read.unlock().await.unwrap();
    guard.unlock().await.unwrap();
    assert_eq!(enter(&locks, &key).await, READERS, "it reads once more");
    read.unlock().await.unwrap();
    assert!(!server.exists(&key));

    write.lock().await;
    write.lock().await;
    read.lock().await;
    assert_eq!(enter(&locks, &key).await, NOBODY);
    read.unlock().await.unwrap();
    write.unlock().await.unwrap();
    assert_eq!(enter(&locks, &key).await, NOBODY, "it writes once more");
    read.lock().await;
    write.unlock().await.unwrap();
    assert_eq!(enter(&locks, &key).await, READERS, "it reads from here on");
    let guard = reader(&locks, &key).lock().await.unwrap();
    read.unlock().await.unwrap();
    guard.check().unwrap();
    guard.unlock().await.unwrap();
    assert!(!server.exists(&key));
}

#[tokio::test(flavor = "multi_thread")]
async fn our_nested_holds_keep_jvms_out_until_the_last() {
    let Some((server, locks, redisson)) = both_sides(LONG).await else {
        return;
    };
    let key = key();
    let [read, write] = ["read", "write"].map(|kind| redisson.lock_of(kind, &key));
    let lock = locks.rw(&*key);

    let outer = lock.read().lock().await.unwrap();
    let inner = lock.read().lock().await.unwrap();
    read.lock().await;
    outer.unlock().await.unwrap();
    read.unlock().await.unwrap();
    assert_eq!(
        enter_there(&read, &write).await,
        READERS,
        "we read once more"
    );
    inner.unlock().await.unwrap();
    assert!(!server.exists(&key));

    let outer = lock.write().lock().await.unwrap();
    let inner = lock.write().lock().await.unwrap();
    let inside = lock.read().lock().await.unwrap();
    assert_eq!(enter_there(&read, &write).await, NOBODY);
    inside.unlock().await.unwrap();
    inner.unlock().await.unwrap();
    assert_eq!(
        enter_there(&read, &write).await,
        NOBODY,
        "we write once more"
    );
    let guard = outer.downgrade().await.unwrap();
    assert_eq!(
        enter_there(&read, &write).await,
        READERS,
        "we read from here on"
    );
    guard.check().unwrap();
    guard.unlock().await.unwrap();
    assert_eq!(enter_there(&read, &write).await, ALL);
    assert!(!server.exists(&key));
}

/// Redisson's own read-write lock enters an `RLock` that is held: see docs/redisson.md.
#[tokio::test(flavor = "multi_thread")]
async fn an_rlock_and_our_read_write_lock_keep_each_other_out() {
    let Some((server, locks, redisson)) = both_sides(LONG).await else {
        return;
    };
    let key = key();
    let plain = redisson.lock(&key);
    plain.lock().await;
    assert_eq!(enter(&locks, &key).await, NOBODY);
    plain.unlock().await.unwrap();

    let guard = reader(&locks, &key).lock().await.unwrap();
    assert!(!plain.try_lock().await, "we read");
    guard.unlock().await.unwrap();
    let guard = writer(&locks, &key).lock().await.unwrap();
    assert!(!plain.try_lock().await, "we write");
    guard.unlock().await.unwrap();
    assert!(plain.try_lock().await);
    plain.unlock().await.unwrap();
    assert!(!server.exists(&key));
}

#[tokio::test(flavor = "multi_thread")]
async fn force_unlock_of_either_side_takes_the_others_holds() {
    let Some((_server, locks, redisson)) = both_sides(SHORT).await else {
        return;
    };
    let key = key();
    for kind in ["read", "write"] {
        let [holder, waiter] = [kind, "write"].map(|kind| redisson.lock_of(kind, &key));
        holder.lock().await;
        let asked = waiter.falls_asleep().await;
        assert!(locks.rw(&*key).force_unlock().await.unwrap());
        entered(asked, WOKEN).await;
        assert!(is_illegal_monitor_state(holder.unlock().await), "{kind}");
        waiter.unlock().await.unwrap();
    }

    // Ours learn of it at their next renewal.
    let guard = reader(&locks, &key).lock().await.unwrap();
    assert!(redisson.lock_of("read", &key).force_unlock().await);
    soon(WOKEN, guard.lost().cancelled()).await.expect("lost");
    assert_eq!(guard.loss(), Some(Loss::NotOwner));
    let guard = writer(&locks, &key).lock().await.unwrap();
    assert!(redisson.lock_of("write", &key).force_unlock().await);
    soon(WOKEN, guard.lost().cancelled()).await.expect("lost");
    assert_eq!(guard.loss(), Some(Loss::NotOwner));
}
