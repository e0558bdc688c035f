//! The command `lockhound`, as people and scripts use it, with real servers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod acting;
mod common;
mod deployments;
mod doctor;
mod generated;
mod listing;
mod run;
mod screen;
mod signals;
mod terminal;
