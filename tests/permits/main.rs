//! Semaphores on one server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod capacity;
mod history;
mod losses;
mod order;
mod rights;
mod sharing;

use std::sync::LazyLock;
use std::time::Duration;

use common::log::Log;

/// Longer than anything takes that is not wrong.
const SOON: Duration = Duration::from_secs(5);

/// What all tests log.
static LOG: LazyLock<Log> = LazyLock::new(Log::collect);
