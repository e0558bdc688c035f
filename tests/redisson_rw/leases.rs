//! Leases: watchdogs, the dead of either side, and a JVM with a shorter lease.

use std::path::Path;
use std::time::{Duration, Instant};

use lockhound::{HoldState, Locker};

use crate::common::both_sides::{SLEW, assert_taken_over, both_sides, entered, patient, waits};
use crate::common::children::{scratch, spawn_child};
use crate::common::jvm::Jvm;
use crate::common::log::Log;
use crate::common::{Server, eventually, key, ms};
use crate::{LONG, SHORT, WOKEN, enter, enter_there, reader, reads, woken, writer, writes};

/// The lease of the process that is killed.
const KILLED_LEASE: Duration = Duration::from_secs(2);

/// Reads the first and the last of three locks, writes the second, reports that, and stays until
/// this process is killed.
pub(crate) async fn read_and_write(url: &str, keys: &[&str], out: &Path) {
    let locks = Locker::builder().node(url).lease(KILLED_LEASE);
    let locks = locks.connect().await.unwrap();
    let read = reader(&locks, keys[0]).lock().await.unwrap();
    let write = writer(&locks, keys[1]).lock().await.unwrap();
    let beside = reader(&locks, keys[2]).lock().await.unwrap();
    std::fs::write(out, "held").unwrap();
    read.lost().cancelled().await;
    drop((write, beside));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_watchdog_keeps_reads_and_writes_for_three_leases() {
    let Some((server, locks, redisson)) = both_sides(SHORT).await else {
        return;
    };
    let [our_read, our_write, their_read, their_write] = [(); 4].map(|()| key());
    let [read, write] = [("read", &their_read), ("write", &their_write)]
        .map(|(kind, key)| redisson.lock_of(kind, key));
    let [there_write, there_read] =
        [("write", &our_read), ("read", &our_write)].map(|(kind, key)| redisson.lock_of(kind, key));
    read.lock().await;
    write.lock().await;
    let reading = reader(&locks, &our_read).lock().await.unwrap();
    let writing = writer(&locks, &our_write).lock().await.unwrap();

    let asked = [
        waits(&server, || there_write.ask("lock", "")).await,
        waits(&server, || there_read.ask("lock", "")).await,
    ];
    let write_here = waits(&server, || writes(writer(&locks, &their_read))).await;
    let read_here = waits(&server, || reads(reader(&locks, &their_write))).await;
    tokio::time::sleep(SHORT * 3 + SHORT / 6).await;
    assert!(
        !asked.iter().any(tokio::task::JoinHandle::is_finished),
        "ours keep theirs out for three leases"
    );
    assert!(
        !write_here.is_finished() && !read_here.is_finished(),
        "theirs keep ours out for three leases"
    );
    reading.check().unwrap();
    writing.check().unwrap();
    assert!(read.is_held().await && write.is_held().await);

    reading.unlock().await.unwrap();
    writing.unlock().await.unwrap();
    read.unlock().await.unwrap();
    write.unlock().await.unwrap();
    for asked in asked {
        entered(asked, WOKEN).await;
    }
    woken(write_here).await.1.unlock().await.unwrap();
    woken(read_here).await.1.unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_jvm_is_out_when_its_lease_is_over() {
    let Some(jvm) = Jvm::start() else { return };
    let (server, [read, write, beside]) = (Server::start(), [(); 3].map(|()| key()));
    let locks = patient(&server, SHORT).await;
    let redisson = jvm.client(&server, SHORT).await;
    let kept = reader(&locks, &beside).lock().await.unwrap();
    for (kind, key) in [("read", &read), ("write", &write), ("read", &beside)] {
        redisson.lock_of(kind, key).lock().await;
    }
    let writing = waits(&server, || writes(writer(&locks, &read))).await;
    let reading = waits(&server, || reads(reader(&locks, &write))).await;
    jvm.kill();
    let asked = Instant::now();
    let left = [&read, &write].map(|key| server.pttl(key));
    let (write_at, write_guard) = writing.await.unwrap();
    let (read_at, read_guard) = reading.await.unwrap();
    assert_taken_over(asked, left[0], SHORT, write_at);
    assert_taken_over(asked, left[1], SHORT, read_at);
    write_guard.unlock().await.unwrap();
    read_guard.unlock().await.unwrap();

    // Its field may be there still. Ours is alive, and is the last.
    tokio::time::sleep_until((asked + SHORT + SLEW).into()).await;
    assert_eq!(enter(&locks, &beside).await, (true, false));
    assert_eq!(kept.state(), HoldState::Safe);
    kept.unlock().await.unwrap();
    assert!(!server.exists(&beside));
}

#[tokio::test(flavor = "multi_thread")]
async fn our_killed_process_is_out_when_its_lease_is_over() {
    let Some((server, _locks, redisson)) = both_sides(LONG).await else {
        return;
    };
    let (keys, out) = ([(); 3].map(|()| key()), scratch("held"));
    let [read, write, beside] = &keys;
    let reader = redisson.lock_of("read", beside);
    reader.lock().await;
    let names = [&**read, &**write, &**beside];
    let mut child = spawn_child("read_and_write", &server.url(), &names, 0, &out);
    eventually(ms(20_000), "the child has all three", || out.exists()).await;
    let (there_write, there_read) = (
        redisson.lock_of("write", read),
        redisson.lock_of("read", write),
    );
    let (writing, reading) = (
        there_write.falls_asleep().await,
        there_read.falls_asleep().await,
    );
    child.kill().unwrap();
    child.wait().unwrap();
    let asked = Instant::now();
    let left = [read, write].map(|key| server.pttl(key));
    let write_at = entered(writing, ms(20_000)).await;
    let read_at = entered(reading, ms(20_000)).await;
    assert_taken_over(asked, left[0], KILLED_LEASE, write_at);
    assert_taken_over(asked, left[1], KILLED_LEASE, read_at);
    there_write.unlock().await.unwrap();
    there_read.unlock().await.unwrap();

    // The child's read beside the JVM's is over too, though its field is there.
    tokio::time::sleep_until((asked + KILLED_LEASE + SLEW).into()).await;
    assert!(reader.is_held().await);
    reader.unlock().await.unwrap();
    assert!(!server.exists(beside), "the dead reader keeps nobody out");
    let (there_read, there_write) = (
        redisson.lock_of("read", beside),
        redisson.lock_of("write", beside),
    );
    assert_eq!(enter_there(&there_read, &there_write).await, (true, true));
    std::fs::remove_file(out).unwrap();
}

/// A reader on the JVM sets the lifetime of the whole hash to its own lease with each renewal.
#[tokio::test(flavor = "multi_thread")]
async fn a_jvm_with_a_shorter_lease_cuts_ours_and_we_warn_once() {
    let Some(jvm) = Jvm::shared() else { return };
    let (server, key, shorter) = (Server::start(), key(), ms(2_000));
    let log = Log::collect_from(tracing_subscriber::filter::LevelFilter::WARN);
    let locks = patient(&server, SHORT * 2).await;
    let redisson = jvm.client(&server, shorter).await;
    let guard = reader(&locks, &key).lock().await.unwrap();
    let [read, write] = ["read", "write"].map(|kind| redisson.lock_of(kind, &key));
    read.lock().await;
    let warnings = || {
        let text = log.text();
        let about = |line: &&str| {
            line.contains(&key) && line.contains("another client with a shorter lease")
        };
        text.lines().filter(about).count()
    };
    eventually(ms(10_000), "a warning", || warnings() == 1).await;
    let warned = Instant::now();
    while warned.elapsed() < shorter * 3 / 2 {
        guard.check().unwrap();
        assert!(guard.remaining() <= shorter, "{:?}", guard.remaining());
        tokio::time::sleep(ms(20)).await;
    }
    assert_eq!(warnings(), 1, "{}", log.text());

    read.unlock().await.unwrap();
    assert!(!write.try_lock().await, "we still read");
    guard.check().unwrap();
    assert!(guard.remaining() <= shorter, "{:?}", guard.remaining());
    guard.unlock().await.unwrap();
    assert!(!server.exists(&key));
}
