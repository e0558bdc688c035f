//! A short run under each kind of fault. `./dev soak` has long ones.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

use common::chaos::{Chaos, survive};
use common::children;

/// The child processes are this binary too: they end here, before any test begins.
#[ctor::ctor(unsafe)]
fn child_process() {
    children::play_if_child(children::play);
}

#[test]
fn no_two_are_inside_while_connections_are_killed() {
    survive(Chaos::Kills, 4, 15);
}

#[test]
fn no_two_are_inside_while_the_server_stops() {
    survive(Chaos::Stops, 4, 15);
}

#[test]
fn no_two_are_inside_while_replies_are_swallowed() {
    survive(Chaos::Swallows, 4, 15);
}
