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

/// The child processes are this binary too: they end here, before any test begins.
#[ctor::ctor(unsafe)]
fn child_process() {
    common::children::play_if_child(processes::play);
}
