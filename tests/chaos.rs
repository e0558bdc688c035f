//! A short bad day of each kind. `./dev soak` has long ones.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::chaos::{Chaos, survive};
use common::children;

/// The body of a child process. Run as a test by itself it proves that nobody asked for anything else.
#[test]
fn child_process() {
    children::run();
}

#[test]
fn nobody_is_inside_beside_another_while_connections_are_killed() {
    survive(Chaos::Kills, 4, 15);
}

#[test]
fn nobody_is_inside_beside_another_while_the_server_stops() {
    survive(Chaos::Stops, 4, 15);
}

#[test]
fn nobody_is_inside_beside_another_while_replies_are_swallowed() {
    survive(Chaos::Swallows, 4, 15);
}
