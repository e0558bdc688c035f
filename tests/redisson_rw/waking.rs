//! A release of one side wakes the waiters of the other.

use std::time::{Duration, Instant};

use crate::common::both_sides::{both_sides, entered, patient, waits};
use crate::common::jvm::{Jvm, Mode};
use crate::common::machine::within;
use crate::common::proxy::{Mode as Fault, Proxy};
use crate::common::{Server, eventually, key, ms, say};
use crate::{LONG, SHORT, WOKEN, reader, reads, woken, writer, writes};

/// How soon a waiter is inside.
const SOON: Duration = Duration::from_millis(100);
const ROUNDS: usize = 5;

/// Says how long the wake-ups of one kind took, and asserts that most were soon and that none slept
/// on: a waiter that was not told looks after ten seconds, or on the JVM after a minute.
fn judge(what: &str, mut took: Vec<Duration>) {
    say(&format!("{what}: {took:.1?}"));
    took.sort_unstable();
    assert!(within(took[took.len() / 2], SOON), "{what}: {took:?}");
    assert!(
        took.iter().all(|took| within(*took, ms(1_000))),
        "{what}: {took:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn our_releases_wake_jvm_readers_and_writers() {
    let Some((_server, locks, redisson)) = both_sides(LONG).await else {
        return;
    };
    let key = key();
    let [read, write] = ["read", "write"].map(|kind| redisson.lock_of(kind, &key));
    for (what, waiter) in [
        ("our write wakes their reader", &read),
        ("our write wakes their writer", &write),
    ] {
        let mut took = Vec::new();
        for _ in 0..ROUNDS {
            let guard = writer(&locks, &key).lock().await.unwrap();
            let asked = waiter.falls_asleep().await;
            let released = Instant::now();
            guard.unlock().await.unwrap();
            took.push(entered(asked, WOKEN).await - released);
            waiter.unlock().await.unwrap();
        }
        judge(what, took);
    }
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        let first = reader(&locks, &key).lock().await.unwrap();
        let last = reader(&locks, &key).lock().await.unwrap();
        let asked = write.falls_asleep().await;
        first.unlock().await.unwrap();
        let released = Instant::now();
        last.unlock().await.unwrap();
        took.push(entered(asked, WOKEN).await - released);
        write.unlock().await.unwrap();
    }
    judge("our last read wakes their writer", took);
}

/// The message `1` of a write's release wakes the threads that sleep. If it comes while a thread
/// waits for the answer to its last attempt, the thread would sleep until the end of the lease of
/// which that answer tells.
#[tokio::test(flavor = "multi_thread")]
async fn a_jvm_thread_about_to_sleep_hears_of_our_write_release() {
    let Some(jvm) = Jvm::shared() else { return };
    let (server, key) = (Server::start(), key());
    let (proxy, locks) = (Proxy::start(server.port()), patient(&server, LONG).await);
    let redisson = jvm.connect(Mode::Single, &[proxy.url()], LONG).await;
    for kind in ["read", "write"] {
        let waiter = redisson.lock_of(kind, &key);
        // Now the scripts are loaded.
        waiter.lock().await;
        waiter.unlock().await.unwrap();
        let guard = writer(&locks, &key).lock().await.unwrap();
        proxy.set(Fault::Delay(ms(100)));
        let asked = waits(&server, || waiter.ask("lock", "")).await;
        // The answer to the second attempt is late. The message is not.
        tokio::time::sleep(ms(20)).await;
        proxy.set(Fault::Pass);
        guard.unlock().await.unwrap();
        entered(asked, WOKEN).await;
        waiter.unlock().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn releases_of_a_jvm_wake_our_readers_and_writers() {
    let Some((server, locks, redisson)) = both_sides(LONG).await else {
        return;
    };
    let key = key();
    let [read, write] = ["read", "write"].map(|kind| redisson.lock_of(kind, &key));
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        write.lock().await;
        let waiter = waits(&server, || reads(reader(&locks, &key))).await;
        let released = Instant::now();
        write.unlock().await.unwrap();
        let (at, guard) = woken(waiter).await;
        took.push(at - released);
        guard.unlock().await.unwrap();
    }
    judge("their write wakes our reader", took);
    for (what, holder) in [
        ("their write wakes our writer", &write),
        ("their last read wakes our writer", &read),
    ] {
        let mut took = Vec::new();
        for _ in 0..ROUNDS {
            holder.lock().await;
            let waiter = waits(&server, || writes(writer(&locks, &key))).await;
            let released = Instant::now();
            holder.unlock().await.unwrap();
            let (at, guard) = woken(waiter).await;
            took.push(at - released);
            guard.unlock().await.unwrap();
        }
        judge(what, took);
    }

    // One message is for all of them, in whichever process.
    let others = patient(&server, LONG).await;
    write.lock().await;
    let mut waiters = Vec::new();
    for locks in [&locks, &others] {
        waiters.push(waits(&server, || reads(reader(locks, &key))).await);
        waiters.push(reads(reader(locks, &key)));
        eventually(WOKEN, "both wait", || locks.stats().waiters == 2).await;
    }
    let released = Instant::now();
    write.unlock().await.unwrap();
    let mut took = Vec::new();
    for waiter in waiters {
        let (at, guard) = woken(waiter).await;
        took.push(at - released);
        guard.unlock().await.unwrap();
    }
    judge("their write wakes all our readers", took);
}

/// After a downgrade of its own, Redisson tells nobody, and readers sleep until the lease is over.
///
/// The message gives a client of Redisson as many permits as it has waiters. Its own writer may
/// take two of them, and so leave a reader asleep: the writer here has a client of its own.
#[tokio::test(flavor = "multi_thread")]
async fn our_downgrade_wakes_every_jvm_reader_that_slept() {
    let Some((server, locks, redisson)) = both_sides(LONG).await else {
        return;
    };
    let Some(jvm) = Jvm::shared() else { return };
    let (key, other) = (key(), jvm.client(&server, LONG).await);
    let writing = other.lock_of("write", &key);
    let readers = [(); 3].map(|()| redisson.lock_of("read", &key));
    let guard = writer(&locks, &key).lock().await.unwrap();
    let kept_out = writing.falls_asleep().await;
    let mut asked = Vec::new();
    for read in &readers {
        asked.push(read.falls_asleep().await);
    }
    let downgraded = Instant::now();
    let guard = guard.downgrade().await.unwrap();
    let mut took = Vec::new();
    for asked in asked {
        took.push(entered(asked, WOKEN).await - downgraded);
    }
    judge("our downgrade wakes their readers", took);
    assert!(!kept_out.is_finished(), "readers are inside");
    for read in &readers {
        read.unlock().await.unwrap();
    }
    assert!(!kept_out.is_finished(), "we still read");
    guard.check().unwrap();
    let released = Instant::now();
    guard.unlock().await.unwrap();
    judge(
        "our last read wakes their writer",
        vec![entered(kept_out, WOKEN).await - released],
    );
    writing.unlock().await.unwrap();
}

/// We look every sixth of a lease.
#[tokio::test(flavor = "multi_thread")]
async fn our_readers_notice_a_downgrade_on_the_jvm_at_their_look() {
    let Some((server, locks, redisson)) = both_sides(SHORT).await else {
        return;
    };
    let key = key();
    let write = redisson.lock_of("write", &key);
    let read = write.as_kind("read");
    write.lock().await;
    let waiter = waits(&server, || reads(reader(&locks, &key))).await;
    read.lock().await;
    let told = server.calls("publish");
    let downgraded = Instant::now();
    write.unlock().await.unwrap();
    let (at, guard) = woken(waiter).await;
    assert_eq!(server.calls("publish"), told, "no message");
    assert!(
        within(at - downgraded, SHORT / 6 + ms(500)),
        "{:?}",
        at - downgraded
    );
    assert!(read.is_held().await);
    read.unlock().await.unwrap();
    guard.check().unwrap();
    guard.unlock().await.unwrap();
}
