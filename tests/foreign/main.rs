//! Format::Plain against real clients in other languages: redsync, redis-py, node-redlock, rslock.
//!
//! Their programs are in tests/foreign; `./dev test` prepares them in target/foreign. Each takes a
//! lock a number of times, and appends to a list on the server when it enters and when it leaves.
//! The server decides the order of the list, so no clocks have to agree. Tasks of this crate do the
//! same while the program runs.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::record::{Record, Visit, visits};
use common::{Server, builder, eventually, key, say};
use lockhound::{Format, Lock, Owner};

/// The rounds of the foreign program, and the fewest of our own.
const ROUNDS: usize = 25;
/// The fewest visits of ours between its first and its last, and the fewest changes between the
/// two. Dozens are usual; the number depends on chance and on the machine.
const FEWEST: usize = 4;
/// How long a program may take. One to nine seconds are usual, since they poll.
const BOUND: Duration = Duration::from_secs(60);

/// A program in another language, and how it is started.
struct Client {
    name: &'static str,
    words: Vec<OsString>,
}

impl Client {
    /// # Errors
    /// Why it cannot be run.
    ///
    /// # Panics
    /// In CI, if the tool is there and `./dev test` has not prepared the program.
    fn find(name: &'static str) -> Result<Self, String> {
        let prepared = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .with_file_name("foreign")
            .join(name);
        // Without the tool nothing can be prepared. The word makes the tool print its version.
        let (tool, word, words) = match name {
            "go" => ("go", "version", vec![prepared.join("main")]),
            "node" => (
                "npm",
                "--version",
                vec![PathBuf::from("node"), prepared.join("main.js")],
            ),
            "python" => (
                "python3",
                "--version",
                vec![prepared.join("bin/python"), prepared.join("main.py")],
            ),
            "rust" => (
                "cargo",
                "--version",
                vec![prepared.join("debug/lockhound-foreign")],
            ),
            other => panic!("{other}"),
        };
        if prepared.join("prepared").exists() {
            return Ok(Self {
                name,
                words: words.into_iter().map(PathBuf::into_os_string).collect(),
            });
        }
        if !Command::new(tool)
            .arg(word)
            .output()
            .is_ok_and(|version| version.status.success())
        {
            return Err(format!("there is no {tool}"));
        }
        let reason = "it is not prepared: `./dev test` does that, and says why if it cannot";
        assert!(
            std::env::var_os("CI").is_none_or(|ci| ci != "true"),
            "{name}: {reason}"
        );
        Err(reason.to_owned())
    }

    /// Starts the program for a number of rounds.
    fn start(&self, server: &Server, key: &str, record: &str, rounds: usize) -> Running {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).args([
            &server.url(),
            key,
            record,
            self.name,
            &rounds.to_string(),
        ]);
        Running(
            command
                .spawn()
                .unwrap_or_else(|e| panic!("{}: {e}", self.name)),
        )
    }
}

/// A program that is ended with its test.
struct Running(Child);

impl Running {
    /// Waits until it has ended successfully.
    async fn done(mut self) -> Duration {
        let start = Instant::now();
        let mut status = None;
        eventually(BOUND, "the program ends", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        })
        .await;
        assert!(status.unwrap().success(), "its output is above");
        start.elapsed()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Enters and leaves until `over` is set, and at least `ROUNDS` times. Returns the fences.
async fn contend(
    lock: Lock,
    server: Arc<Server>,
    record: String,
    name: String,
    over: Arc<AtomicBool>,
) -> Vec<u64> {
    let mut connection = server.connection().unwrap();
    let note = |what: &str| {
        redis::cmd("RPUSH")
            .arg(&record)
            .arg(format!("{what} {name}"))
            .clone()
    };
    let mut fences = Vec::new();
    while fences.len() < ROUNDS || !over.load(Ordering::Relaxed) {
        let guard = lock.lock().await.unwrap();
        note("enter").exec(&mut connection).unwrap();
        fences.push(guard.fence().get());
        pause(3).await;
        guard.check().unwrap();
        note("leave").exec(&mut connection).unwrap();
        guard.unlock().await.unwrap();
        pause(30).await;
    }
    fences
}

async fn pause(most_ms: u64) {
    tokio::time::sleep(Duration::from_micros(fastrand::u64(0..most_ms * 1_000))).await;
}

/// Lets one program and three tasks of two lockers contend for one key.
async fn share_with(name: &'static str) {
    let client = match Client::find(name) {
        Ok(client) => client,
        Err(reason) => return say(&format!("skipped: {name}: {reason}")),
    };
    let (server, key, record, over) = (
        Arc::new(Server::start()),
        key(),
        common::key(),
        Arc::<AtomicBool>::default(),
    );
    let connect = || {
        builder(&server.url(), Duration::from_secs(10))
            .format(Format::Plain)
            .connect()
    };
    let lockers = [connect().await.unwrap(), connect().await.unwrap()];
    let running = client.start(&server, &key, &record, ROUNDS);
    let ours: Vec<_> = (0..3)
        .map(|i| {
            let lock = lockers[i % 2].get(&key).owned_by(Owner::new());
            let (server, record, over) = (Arc::clone(&server), record.clone(), Arc::clone(&over));
            tokio::spawn(contend(lock, server, record, format!("lockhound{i}"), over))
        })
        .collect();
    let took = running.done().await;
    over.store(true, Ordering::Relaxed);
    let mut fences = HashMap::new();
    for (i, task) in ours.into_iter().enumerate() {
        fences.insert(format!("lockhound{i}"), task.await.unwrap().into_iter());
    }
    let notes: Vec<String> = server.command(&["LRANGE", &record, "0", "-1"]);
    let visits = visits(&notes);
    Record::of(visits.clone()).check().unwrap();
    let foreign: Vec<&Visit> = visits.iter().filter(|visit| visit.who == name).collect();
    assert_eq!(foreign.len(), ROUNDS);
    let first_and_last = foreign[0].entered..foreign[ROUNDS - 1].entered;
    let beside = visits
        .iter()
        .filter(|v| v.who != name && first_and_last.contains(&v.entered))
        .count();
    assert!(
        beside >= FEWEST,
        "we are not starved either: {beside} visits of ours between its first and its last"
    );
    let changes = visits
        .windows(2)
        .filter(|pair| (pair[0].who == name) != (pair[1].who == name))
        .count();
    assert!(
        changes >= FEWEST,
        "they contend: the lock changed sides {changes} times"
    );
    // Our own fences grow all the while.
    let of_ours = visits.into_iter().filter_map(|visit| {
        let fence = fences.get_mut(&visit.who)?.next().unwrap();
        Some(Visit { fence, ..visit })
    });
    Record::of(of_ours.collect()).check().unwrap();
    assert!(!server.exists(&key), "nothing is left");
    for locks in &lockers {
        assert_eq!((locks.stats().holds, locks.stats().waiters), (0, 0));
        locks.close().await;
    }
    say(&format!(
        "{name}: {ROUNDS} rounds beside {beside} of ours in {took:.1?}"
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn redsync_of_go_and_this_crate_exclude_each_other() {
    share_with("go").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redlock_of_node_and_this_crate_exclude_each_other() {
    share_with("node").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_py_of_python_and_this_crate_exclude_each_other() {
    share_with("python").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rslock_of_rust_and_this_crate_exclude_each_other() {
    share_with("rust").await;
}

/// The same under two keys, which the check has to find.
#[tokio::test(flavor = "multi_thread")]
async fn the_check_finds_clients_that_use_different_keys() {
    let Some(client) = ["python", "node", "go", "rust"]
        .into_iter()
        .find_map(|name| Client::find(name).ok())
    else {
        return say("skipped: the check: no program is prepared");
    };
    let (server, record) = (Server::start(), key());
    let locks = builder(&server.url(), Duration::from_secs(10))
        .format(Format::Plain)
        .connect()
        .await
        .unwrap();
    let guard = locks.get(key()).lock().await.unwrap();
    server.command::<u64>(&["RPUSH", &record, "enter lockhound"]);
    client.start(&server, &key(), &record, 3).done().await;
    server.command::<u64>(&["RPUSH", &record, "leave lockhound"]);
    guard.unlock().await.unwrap();
    let notes: Vec<String> = server.command(&["LRANGE", &record, "0", "-1"]);
    let overlap = Record::of(visits(&notes)).check().unwrap_err();
    assert!(
        overlap.contains("inside at once") && overlap.contains(client.name),
        "{overlap}"
    );
}
