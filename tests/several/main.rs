//! Several servers: what a majority decides, and servers that forget.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the figures are for whoever runs it")]

#[path = "../common/mod.rs"]
mod common;

mod memory_faults;
mod quarantine;
mod quorum;
mod quorum_faults;
mod quorum_fences;
