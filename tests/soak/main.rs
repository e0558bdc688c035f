//! Tests that take minutes: long chaos, many losses, many failovers. (tests/holds has many holds.)
//! `./dev soak` runs them one after the other.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    clippy::print_stdout,
    reason = "the figures are for the person who runs it"
)]

#[path = "../common/mod.rs"]
mod common;

use std::time::Duration;

use common::chaos::{Chaos, survive};
use common::children;
use common::failovers::{self, Failover};
use common::losses::{self, Kind};
use common::{ms, storm};

/// The child processes are this binary too: they end here, before any test begins.
#[ctor::ctor(unsafe)]
fn child_process() {
    children::play_if_child(children::play);
}

/// 8 processes x 8 tasks, more than 10,000 acquisitions, five times each.
#[test]
fn bad_days_never_let_two_holders_overlap() {
    for chaos in [Chaos::Kills, Chaos::Stops, Chaos::Swallows] {
        for run in 1..=5 {
            let time = survive(chaos, 8, 157);
            println!(
                "{chaos:?}, run {run} of 5: 10,048 acquisitions without an overlap in {time:.1?}"
            );
        }
    }
}

/// Causes 1,000 losses of each kind, none of which is reported late. Writes the picture to
/// target/losses.svg.
#[tokio::test(flavor = "multi_thread")]
async fn losses_of_every_kind_are_reported_in_time() {
    let mut all = Vec::new();
    for kind in Kind::ALL {
        all.push(losses::lose(kind, 1_000).await);
    }
    println!("{}", losses::table(&all));
    std::fs::write("target/losses.svg", losses::picture(&all)).unwrap();
}

/// Each minority forgets in turn, while programs with different leases reach some servers badly.
#[tokio::test(flavor = "multi_thread")]
async fn servers_that_forget_let_no_two_in() {
    for (servers, losses) in [(3, 300), (5, 150)] {
        let visits = storm::weather(servers, losses).await;
        println!(
            "{servers} servers, of which a minority forgot {losses} times: {visits} visits without an overlap"
        );
    }
}

/// Twelve failovers of each kind by Sentinels, four of each while Sentinels come and go, and three
/// of each with replicas that have to acknowledge.
#[tokio::test(flavor = "multi_thread")]
async fn failovers_by_sentinels_lose_only_what_they_explain() {
    for failover in [Failover::Ordered, Failover::Killed, Failover::Stopped] {
        let mut seen = Vec::new();
        for _ in 0..12 {
            seen.push(failovers::under_load(failover, Duration::from_secs(12)).await);
            println!("{}", seen[seen.len() - 1]);
        }
        println!("{}", failovers::table(&seen));
        for _ in 0..4 {
            println!(
                "Sentinels come and go: {}",
                failovers::under_load_with_sick_sentinels(failover, ms(12_000)).await
            );
        }
        for _ in 0..3 {
            let without = failovers::under_load_with_acknowledgements(failover).await;
            println!(
                "{failover:?} with replica_acks(1): no overlap; {without:.1?} without a replica"
            );
        }
    }
}
