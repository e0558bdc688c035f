//! `watch` and `break`, and what all subcommands have in common.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Stdio};
use std::time::Duration;

use lockhound::{Error, Format, Loss};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::common::{SOON, Server, at, locker, lockhound, said};

/// A `watch` that runs. It is killed when it is dropped.
struct Watch {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Watch {
    fn start(server: &Server, args: &[&str]) -> Self {
        let mut command = lockhound(server, ["watch", "--interval", "20ms"]);
        let command = command
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Returns the line without its time.
    fn told(&mut self) -> String {
        let line = self.line();
        let (time, told) = line.split_once("  ").unwrap_or_else(|| panic!("{line:?}"));
        assert!(time.starts_with("20") && time.ends_with('Z'), "{line}");
        told.to_owned()
    }

    /// Presses Ctrl-C, and returns the exit code and what it said on standard error.
    fn interrupt(mut self) -> (Option<i32>, String) {
        let id = Pid::from_raw(self.child.id().cast_signed()).unwrap();
        kill_process(id, Signal::INT).unwrap();
        let code = self.child.wait().unwrap().code();
        let mut err = String::new();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut err)
            .unwrap();
        (code, err)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_is_a_line() {
    let server = Server::start();
    let locks = locker(&server, "tester").await;
    let mut watch = Watch::start(&server, &["k"]);
    assert_eq!(watch.told(), "free");
    let guard = locks.get("k").lock().await.unwrap();
    let fence = guard.fence();
    // The label may come later than the lock.
    let mut told = watch.told();
    if !told.contains("tester") {
        assert!(
            told.starts_with(&format!("lock, held by {}:", locks.id())),
            "{told}"
        );
        told = watch.told();
    }
    assert!(
        told.starts_with(&format!("lock, held by tester ({}:", locks.id())),
        "{told}"
    );
    assert!(told.ends_with(&format!(", fence {fence}")), "{told}");
    let other = locker(&server, "other").await;
    let waiting = tokio::spawn({
        let lock = other.get("k");
        async move { lock.lock().await }
    });
    assert!(watch.told().ends_with("; 1 waiting"));
    guard.unlock().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    let told = std::iter::from_fn(|| Some(watch.told()))
        .take(3)
        .find(|told| told.contains(&format!("{}:", other.id())));
    assert!(told.is_some());
    guard.unlock().await.unwrap();
    assert!(
        std::iter::from_fn(|| Some(watch.told()))
            .take(3)
            .any(|told| told == "free")
    );
    assert_eq!(watch.interrupt(), (Some(0), String::new()));
    locks.close().await;
    other.close().await;
}

#[test]
fn a_watch_outlives_its_server_and_ends_with_its_reader() {
    let server = Server::start();
    let mut watch = Watch::start(&server, &["--json", "k"]);
    let free: Value = serde_json::from_str(&watch.line()).unwrap();
    assert_eq!(free["kind"], json!(null));
    server.kill();
    let mut err = BufReader::new(watch.child.stderr.take().unwrap());
    let mut line = String::new();
    err.read_line(&mut line).unwrap();
    assert!(
        line.starts_with("lockhound: ") && line.contains(&server.url()),
        "{line}"
    );
    server.restart();
    line.clear();
    err.read_line(&mut line).unwrap();
    assert_eq!(line, "lockhound: there are answers again\n");
    let owner = format!("{}:1", uuid::Uuid::new_v4());
    server.command::<()>(&["HSET", "k", &owner, "1"]);
    let held: Value = serde_json::from_str(&watch.line()).unwrap();
    assert_eq!(held["holders"][0]["owner"], json!(owner));
    // As `head -1` does.
    watch.out = BufReader::new(spare_output());
    server.command::<()>(&["DEL", "k"]);
    assert_eq!(watch.child.wait().unwrap().code(), Some(0));
}

/// A lock that does not change, as with `lockhound watch k | head -1` in a script.
#[test]
fn a_watch_ends_when_nobody_reads_though_nothing_changes() {
    let server = Server::start();
    for subcommand in [&["watch", "k"][..], &["top", "--json"]] {
        let mut command = lockhound(&server, subcommand);
        command.args(["--interval", "20ms"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_ne!(line, "");
        assert_eq!(child.wait().unwrap().code(), Some(0), "{subcommand:?}");
    }
}

fn spare_output() -> std::process::ChildStdout {
    let mut command = std::process::Command::new("true");
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let out = child.stdout.take().unwrap();
    child.wait().unwrap();
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_broken_and_its_holder_learns_of_it() {
    let server = Server::start();
    let locks = crate::common::builder(&server, "tester")
        .lease(Duration::from_secs(3))
        .connect()
        .await
        .unwrap();
    let guards = [
        locks.get("k").lock().await.unwrap(),
        locks.fair("queue").lock().await.unwrap(),
    ];
    let refused = said(&mut lockhound(&server, ["break", "k"]));
    assert_eq!((refused.code, &*refused.out), (Some(64), ""), "{refused:?}");
    assert!(refused.err.contains("--yes"), "{refused:?}");
    assert!(server.exists("k") && guards[0].check().is_ok());
    for guard in guards {
        let name = guard.key().as_str();
        let broken = said(&mut lockhound(&server, ["break", "--yes", "--json", name]));
        assert_eq!((broken.code, &*broken.err), (Some(0), ""), "{broken:?}");
        let owner = broken.json()["holders"][0]["owner"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(owner.starts_with(locks.id()), "{broken:?}");
        assert!(!server.exists(name));
        let lost = guard.lost();
        tokio::time::timeout(SOON, lost.cancelled()).await.unwrap();
        assert!(matches!(guard.check(), Err(Error::Lost { .. })));
        assert_ne!(guard.loss(), None::<Loss>);
        let free = said(&mut lockhound(&server, ["break", "--yes", name]));
        assert_eq!((free.code, &*free.out), (Some(1), ""), "{free:?}");
    }
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_locks_and_leaders_are_broken_and_other_texts_are_not() {
    let server = Server::start();
    let locks = locker(&server, "tester").await;
    let leader = locks.election("boss").campaign("me").await.unwrap();
    let plainly = crate::common::builder(&server, "plain").format(Format::Plain);
    let plainly = plainly.connect().await.unwrap();
    let guard = plainly.get("ours").lock().await.unwrap();
    // As redis-py writes it, and as a web service writes a session.
    server.command::<()>(&["SET", "theirs", "5cb1f0b5c0de", "PX", "60000"]);
    for name in ["boss", "ours"] {
        let broken = said(&mut lockhound(&server, ["break", "-y", name]));
        assert_eq!((broken.code, &*broken.err), (Some(0), ""), "{broken:?}");
    }
    assert!(!server.exists("boss") && !server.exists("ours"));
    let unsure = said(&mut lockhound(&server, ["break", "-y", "theirs"]));
    assert_eq!((unsure.code, &*unsure.out), (Some(64), ""), "{unsure:?}");
    assert!(unsure.err.contains("LOCKHOUND_FORMAT=plain"), "{unsure:?}");
    assert!(server.exists("theirs"));
    let mut sure = lockhound(&server, ["break", "-y", "theirs"]);
    let sure = said(sure.env("LOCKHOUND_FORMAT", "plain"));
    assert_eq!((sure.code, &*sure.err), (Some(0), ""), "{sure:?}");
    assert!(!server.exists("theirs"));
    drop((leader, guard));
    locks.close().await;
    plainly.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_permits_and_jvms_are_broken_and_latches_are_not() {
    let server = Server::start();
    let locks = locker(&server, "tester").await;
    let reader = locks.rw("book").read().lock().await.unwrap();
    let desks = locks.permits("desks").capacity(5);
    let taken = (
        desks.acquire_many(2).await.unwrap(),
        desks.acquire().await.unwrap(),
    );
    let seat = locks
        .semaphore("seats")
        .capacity(1)
        .acquire()
        .await
        .unwrap();
    locks.latch("gate").try_set(1).await.unwrap();
    server.command::<()>(&["HSET", "jvm", &format!("{}:1", uuid::Uuid::new_v4()), "2"]);
    for (name, beginning) in [
        ("book", "broken: \"book\", read-write (read), held by "),
        ("desks", "broken: \"desks\", permits, 2 free, held by "),
        ("seats", "broken: \"seats\", semaphore, 0 free, held by "),
        ("jvm", "broken: \"jvm\", lock, held by "),
    ] {
        let broken = said(&mut lockhound(&server, ["break", "-y", name]));
        assert_eq!((broken.code, &*broken.err), (Some(0), ""), "{broken:?}");
        assert!(broken.out.starts_with(beginning), "{broken:?}");
    }
    assert!(!server.exists("book") && !server.exists("jvm"));
    assert_eq!(
        server.command::<(u32, u32)>(&["MGET", "desks", "seats"]),
        (5, 1)
    );
    let latch = said(&mut lockhound(&server, ["break", "-y", "gate"]));
    assert_eq!(latch.code, Some(64), "{latch:?}");
    assert!(server.exists("gate"));
    drop((reader, taken, seat));
    locks.close().await;
}

#[test]
fn without_a_server_nothing_is_done() {
    for args in [&["watch", "k"][..], &["break", "-y", "k"], &["doctor"]] {
        let mut command = at("redis://:secret@127.0.0.1:1", args);
        command.env("LOCKHOUND_CONNECT_TIMEOUT", "300ms");
        let ended = said(&mut command);
        assert_eq!(
            (ended.code, &*ended.out),
            (Some(69), ""),
            "{args:?} {ended:?}"
        );
        assert!(!ended.err.contains("secret"), "{ended:?}");
    }
    for help in ["ls", "show", "top", "watch", "break", "doctor"] {
        let said = said(&mut at("", [help, "--help"]));
        assert_eq!(said.code, Some(0), "{said:?}");
        assert!(said.out.contains("\nExit codes:\n  0  "), "{said:?}");
    }
}
