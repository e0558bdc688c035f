//! What these tests share: servers, lockers, and the command with its output.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "the tests use a part of it, and the repository's keepers of servers more"
)]

#[path = "../../../tests/common/clock.rs"]
pub mod clock;
#[path = "../../../tests/common/cluster.rs"]
pub mod cluster;
#[path = "../../../tests/common/labels.rs"]
pub mod labels;
#[path = "../../../tests/common/server.rs"]
pub mod server;

use std::ffi::OsStr;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use lockhound::{Locker, LockerBuilder};
use serde_json::Value;
pub use server::Server;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_lockhound");

/// Returns `lockhound` with these arguments and this address, and nothing else from the environment
/// of the test.
pub fn lockhound<S: AsRef<OsStr>>(url: &str, args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(PROGRAM);
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"LOCKHOUND_") {
            command.env_remove(name);
        }
    }
    command
        .env("LOCKHOUND_URL", url)
        .args(args)
        .stdin(Stdio::null());
    command
}

/// What a command said, and how it ended.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Said {
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
}

/// Runs a command to its end.
pub fn said(command: &mut Command) -> Said {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let said = Said {
        code: status.code(),
        out: String::from_utf8(stdout).unwrap(),
        err: String::from_utf8(stderr).unwrap(),
    };
    assert!(said.code.is_some(), "{status}: {said:?}");
    said
}

/// Returns a locker that calls itself so.
pub async fn locker(server: &Server, label: &str) -> Locker {
    builder(server, label).connect().await.unwrap()
}

pub fn builder(server: &Server, label: &str) -> LockerBuilder {
    Locker::builder().node(server.url()).label(label)
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
