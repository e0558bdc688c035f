//! Explores every interleaving of a hold's operations: all states that the real
//! [`Hold`](super::Hold) can reach within bounds. The promises are asserted after each step, and
//! each known flaw has to break one.
//!
//! Each operation is one step under the hold's mutex, or a look and such a step; looks are steps of
//! their own too, and a caller may have read the clock a tick ago. A loss takes several steps, by
//! any threads: it is marked and counted, then its tokens are cancelled one by one, and then it is
//! sent to the engine. So every interleaving of threads is a sequence of these steps. Equal states
//! are explored once.

mod world;

use std::collections::{HashSet, VecDeque};

use self::world::World;
use crate::error::Loss;

#[derive(Debug, Clone, Copy)]
struct Bounds {
    nodes: usize,
    max_hold: bool,
    /// The number of guards that are granted at first.
    granted: u32,
    /// The most guards at a time.
    guards: u32,
    ticks: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Tick,
    /// Looks, with a clock that was read at this tick. `Mark` fires nothing.
    Look(u8),
    Mark(u8),
    /// The alarm looks, and marks a loss.
    Alarm(u8),
    Fire,
    /// One step of firing, after which that thread may be blocked.
    FireOne,
    Enter(u8),
    /// A caller takes a guard that was on its way to it, or finds that it was revoked.
    Claim,
    Leave(u8),
    Revoke,
    /// A renewal is sent to this node. The next three are its outcomes.
    Send(usize),
    Renewed(usize),
    Gone(usize),
    Unanswered(usize),
    TickFailed,
    Lose(Loss),
}

/// A flaw of the hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    RenewalRevives,
    RenewalCountsFromTheAnswer,
    LastGuardStaysHeld,
    LossIsReplaced,
    GoneMeansLossDuringRelease,
    RevokedIsClaimed,
    ReleasingIsEntered,
    EntryIsNotCounted,
    LookFiresNothing,
    LossIsNotCounted,
    TokenIsForgotten,
    LossIsToldTwice,
    LossIsToldFirst,
    AlarmIsLate,
    RevokeTakesAll,
    LeaveForgetsTheLast,
}

const FLAWS: [Flaw; 16] = [
    Flaw::RenewalRevives,
    Flaw::RenewalCountsFromTheAnswer,
    Flaw::LastGuardStaysHeld,
    Flaw::LossIsReplaced,
    Flaw::GoneMeansLossDuringRelease,
    Flaw::RevokedIsClaimed,
    Flaw::ReleasingIsEntered,
    Flaw::EntryIsNotCounted,
    Flaw::LookFiresNothing,
    Flaw::LossIsNotCounted,
    Flaw::TokenIsForgotten,
    Flaw::LossIsToldTwice,
    Flaw::LossIsToldFirst,
    Flaw::AlarmIsLate,
    Flaw::RevokeTakesAll,
    Flaw::LeaveForgetsTheLast,
];

/// Explores all states. Returns their number, or the broken promise and the steps to it.
fn explore(bounds: Bounds, flaw: Option<Flaw>) -> Result<usize, String> {
    let first = World::new(bounds);
    let mut seen = HashSet::from([first.print()]);
    let mut open = VecDeque::from([first]);
    while let Some(world) = open.pop_front() {
        for step in world.steps(bounds) {
            let mut next = world.copy();
            next.take(step, flaw)
                .map_err(|promise| format!("{promise}: {:?}", next.trail))?;
            if seen.insert(next.print()) {
                open.push_back(next);
            }
        }
    }
    Ok(seen.len())
}

const ONE: Bounds = Bounds {
    nodes: 1,
    max_hold: false,
    granted: 2,
    guards: 2,
    ticks: 4,
};

fn keeps_the_promises(bounds: Bounds) {
    let states = explore(bounds, None).unwrap_or_else(|broken| panic!("{bounds:?}: {broken}"));
    assert!(states > 10_000, "{bounds:?}: only {states}");
}

#[test]
fn every_interleaving_keeps_the_promises() {
    keeps_the_promises(ONE);
}

#[test]
fn every_interleaving_with_a_max_hold_keeps_the_promises() {
    keeps_the_promises(Bounds {
        max_hold: true,
        ..ONE
    });
}

#[test]
fn every_interleaving_with_three_nodes_keeps_the_promises() {
    keeps_the_promises(Bounds {
        nodes: 3,
        granted: 1,
        guards: 1,
        ticks: 1,
        ..ONE
    });
}

#[test]
fn every_flaw_breaks_a_promise() {
    for flaw in FLAWS {
        assert!(explore(ONE, Some(flaw)).is_err(), "{flaw:?} is not found");
    }
}
