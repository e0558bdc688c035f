//! The read-write lock on one server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod attacks;
mod cancelling;
mod fairness;
mod losses;
mod nesting;
mod processes;
mod sharing;

/// The body of a child process. Run as an ordinary test it has nothing to do.
#[test]
fn child_process() {
    processes::run();
}
