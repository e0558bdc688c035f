//! What happens when servers, connections, answers or threads fail.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod faults;
mod isolation;
mod losses;
mod mismatched;
mod outages;
mod races;
mod refusals;
mod watchdog;
