//! What the tests of the command share: servers, and the command with its output.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "the repository's keepers of servers have more than these tests use"
)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

pub mod tmux;

#[path = "../../../../tests/common/clock.rs"]
pub mod clock;
#[path = "../../../../tests/common/cluster.rs"]
pub mod cluster;
#[path = "../../../../tests/common/distance.rs"]
pub mod distance;
#[path = "../../../../tests/common/labels.rs"]
pub mod labels;
#[path = "../../../../tests/common/sentinel.rs"]
pub mod sentinel;
#[path = "../../../../tests/common/server.rs"]
pub mod server;
#[path = "../../../../tests/common/tls.rs"]
pub mod tls;

use std::ffi::OsStr;
use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use lockhound::{Locker, LockerBuilder};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
pub use server::Server;
use tokio::signal::unix::{SignalKind, signal};

/// How long something may take that happens at once on an idle machine.
pub const SOON: Duration = Duration::from_secs(20);

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_lockhound");

/// Has children heed the signals that this process was started to ignore, as in the background of a
/// script or under nohup: what a process handles is not ignored by those that it starts.
fn heed_signals() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let ignored = ignored.map_or(0, |mask| u64::from_str_radix(mask.trim(), 16).unwrap());
        let kinds = [
            SignalKind::hangup(),
            SignalKind::interrupt(),
            SignalKind::quit(),
        ];
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            for kind in kinds {
                if ignored & (1 << (kind.as_raw_value() - 1)) != 0 {
                    drop(signal(kind).unwrap());
                }
            }
        });
    });
}

/// Returns `lockhound` with these arguments and this server, and nothing else from the environment
/// of the test.
pub fn lockhound<S: AsRef<OsStr>>(server: &Server, args: impl IntoIterator<Item = S>) -> Command {
    at(&server.url(), args)
}

/// The same with this address, or several.
pub fn at<S: AsRef<OsStr>>(url: &str, args: impl IntoIterator<Item = S>) -> Command {
    let mut command = without_server(args);
    command.env("LOCKHOUND_URL", url);
    command
}

pub fn without_server<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    heed_signals();
    let mut command = Command::new(PROGRAM);
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"LOCKHOUND_") {
            command.env_remove(name);
        }
    }
    command.args(args).stdin(Stdio::null());
    command
}

/// What a command said, and how it ended.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// Runs a command to its end.
pub fn said(command: &mut Command) -> Said {
    Said::of(&command.output().unwrap())
}

impl Said {
    fn of(output: &Output) -> Self {
        assert_eq!(output.status.signal(), None, "{output:?}");
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout.clone()).unwrap(),
            err: String::from_utf8(output.stderr.clone()).unwrap(),
        }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Returns the row of a table that begins with this, its columns separated by one space.
    pub fn row(&self, beginning: &str) -> String {
        let mut lines = self.out.lines();
        let line = lines.find(|line| line.starts_with(beginning));
        let line = line.unwrap_or_else(|| panic!("no {beginning}: {}", self.out));
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Returns the first column of a table, without its head.
    pub fn keys(&self) -> Vec<&str> {
        let rows = self.out.lines().skip(1);
        rows.filter_map(|line| line.split(' ').next()).collect()
    }
}

/// A command that runs. It is killed when it is dropped.
pub struct Running(Option<Child>);

impl Running {
    pub fn start(command: &mut Command) -> Self {
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(Some(command.spawn().unwrap()))
    }

    pub fn id(&self) -> u32 {
        self.0.as_ref().unwrap().id()
    }

    pub fn send(&self, signal: Signal) {
        send(self.id(), signal);
    }

    /// Waits for a line on its standard error.
    pub fn line(&mut self) -> String {
        let mut line = Vec::new();
        let err = self.0.as_mut().unwrap().stderr.as_mut().unwrap();
        // Byte by byte: what follows is for `end`.
        let mut byte = [0];
        loop {
            err.read_exact(&mut byte).unwrap();
            match byte {
                [b'\n'] => break,
                [byte] => line.push(byte),
            }
        }
        String::from_utf8(line).unwrap()
    }

    /// Waits for its end.
    pub fn end(mut self) -> Said {
        Said::of(&self.0.take().unwrap().wait_with_output().unwrap())
    }

    /// Kills it, as `kill -9` does.
    pub fn kill(self) {
        drop(self);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

pub fn send(process: u32, signal: Signal) {
    kill_process(Pid::from_raw(process.cast_signed()).unwrap(), signal).unwrap();
}

/// Returns a locker that calls itself so.
pub async fn locker(server: &Server, label: &str) -> Locker {
    builder(server, label).connect().await.unwrap()
}

pub fn builder(server: &Server, label: &str) -> LockerBuilder {
    Locker::builder().node(server.url()).label(label)
}

/// Starts three servers of a quorum, and waits until all of them vote. New ones do so after a
/// lease, and one later than the others.
pub async fn three_servers() -> Vec<Server> {
    let servers: Vec<Server> = (0..3).map(|_| Server::start()).collect();
    let builder = Locker::builder().nodes(servers.iter().map(Server::url));
    let locks = builder.lease(ms(1_000)).connect().await.unwrap();
    eventually(SOON, "all of them vote", || {
        locks.stats().nodes.iter().all(|node| node.votes)
    })
    .await;
    locks.close().await;
    servers
}

/// Returns an address of several servers.
pub fn urls(servers: &[Server]) -> String {
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    urls.join(" ")
}

pub const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Waits until a condition holds, for this long and as long again on a busy machine.
pub async fn eventually(within: Duration, what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(
            start.elapsed() < 2 * within,
            "{what}: not within {within:?}"
        );
        tokio::time::sleep(ms(2)).await;
    }
}

/// Waits until a condition holds, where no future runs.
pub fn soon(what: &str, so: impl Fn() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < SOON, "{what}: not within {SOON:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns whether a process runs: it is there, and no zombie.
pub fn runs(process: u32) -> bool {
    state(process).is_some_and(|state| state != 'Z')
}

/// Returns the state of a process, as ps(1) shows it.
pub fn state(process: u32) -> Option<char> {
    let output = Command::new("ps")
        .args(["-o", "state=", "-p", &process.to_string()])
        .output();
    String::from_utf8(output.unwrap().stdout)
        .unwrap()
        .trim()
        .chars()
        .next()
}

/// A directory of its own, which is deleted when it is dropped.
pub struct Directory(PathBuf);

impl Directory {
    pub fn new() -> Self {
        heed_signals();
        let path = std::env::temp_dir().join(format!("lockhound-cli-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Returns what a file has; nothing if there is none.
    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.file(name)).unwrap_or_default()
    }

    /// Waits until a file has a whole line with a number, and returns it.
    pub fn number(&self, name: &str) -> u32 {
        soon(name, || self.read(name).ends_with('\n'));
        self.read(name).trim().parse().unwrap()
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}
