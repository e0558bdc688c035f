//! The command `lockhound`, as people and scripts use it, with real servers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod generated;
mod run;
mod signals;
mod terminal;
