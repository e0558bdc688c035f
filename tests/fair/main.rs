//! Fair locks on one server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod history;
mod leaving;
mod order;
mod rights;
mod standing;

use std::sync::LazyLock;
use std::time::Duration;

use common::log::Log;
use common::{Server, eventually};
use lockhound::{Error, Guard, Lock};
use tokio::task::JoinHandle;

/// Longer than anything takes that is not wrong, and shorter than a look of the default lease.
const SOON: Duration = Duration::from_millis(4_500);

/// What all tests log.
static LOG: LazyLock<Log> = LazyLock::new(Log::collect);

/// Returns the queue of a fair lock.
fn queue(server: &Server, key: &str) -> Vec<String> {
    server.command(&[
        "LRANGE",
        &format!("redisson_lock_queue:{{{key}}}"),
        "0",
        "-1",
    ])
}

/// Returns how many tickets have a time.
fn timeouts(server: &Server, key: &str) -> usize {
    server.command(&["ZCARD", &format!("redisson_lock_timeout:{{{key}}}")])
}

/// Waits until so many have a place.
async fn placed(server: &Server, key: &str, number: usize) {
    eventually(SOON, "they have places", || {
        queue(server, key).len() == number && timeouts(server, key) == number
    })
    .await;
}

/// Has a task wait for the lock.
fn wait_for(lock: &Lock) -> JoinHandle<Result<Guard, Error>> {
    let lock = lock.clone();
    tokio::spawn(async move { lock.lock().await })
}

/// Returns the guard of such a task, which it gets without a look.
async fn granted(waiting: JoinHandle<Result<Guard, Error>>) -> Guard {
    common::soon(SOON, waiting)
        .await
        .expect("it is told")
        .unwrap()
        .unwrap()
}
