//! What a locker and its locks promise on one server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod busy_loops;
mod cancel_safety;
mod connect;
mod extending;
mod fences;
mod labels;
mod multi;
mod operators;
mod plain;
mod reentrancy;
mod sections;
mod steps;
