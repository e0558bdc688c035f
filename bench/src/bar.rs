//! What lockhound sets itself to reach. The bench says whether it does; it never fails because it does not.

use serde::Serialize;

use crate::report::Outcome;
use crate::scenario::{LOCKHOUND, RSLOCK, SOCKET};
use crate::spread::Spread;

/// A bound on a ratio of lockhound's to another contender.
#[derive(Debug, Serialize)]
pub(crate) struct Bar {
    pub(crate) what: String,
    pub(crate) ratio: Spread,
    pub(crate) bound: f64,
    /// By the median.
    pub(crate) met: bool,
}

/// Scenario, figure, rival, and the bound: on the one side of it or on the other.
const BARS: [(&str, &str, &str, Bound); 9] = [
    ("pair", "pair_p50_us", SOCKET, Bound::AtMost(1.7)),
    ("pair", "pair_p50_us", RSLOCK, Bound::AtMost(1.0)),
    // The same from a spawned task, which may share its worker with rslock's connection.
    ("tasks-1", "pair_p50_us", SOCKET, Bound::AtMost(1.7)),
    ("tasks-1", "pair_p50_us", RSLOCK, Bound::AtMost(1.0)),
    // rslock has it easier: its lock is a string without a fence, a message or a count.
    ("tasks-64", "pairs_per_second", RSLOCK, Bound::AtLeast(0.5)),
    // It waits for every server; a majority is enough.
    ("quorum-3", "pair_p50_us", RSLOCK, Bound::AtMost(1.0)),
    ("quorum-5", "pair_p50_us", RSLOCK, Bound::AtMost(1.0)),
    ("quorum-3-64", "pairs_per_second", RSLOCK, Bound::AtLeast(1.0)),
    ("quorum-5-64", "pairs_per_second", RSLOCK, Bound::AtLeast(1.0)),
];

#[derive(Debug, Clone, Copy)]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bar {
    /// Those that what was measured can tell about.
    pub(crate) fn all(scenarios: &[Outcome]) -> Vec<Self> {
        let bar = |(name, figure, rival, bound): (&str, &str, &str, Bound)| {
            let scenario = scenarios.iter().find(|scenario| scenario.name == name)?;
            let ratio = scenario.ratio(LOCKHOUND, rival, figure)?;
            let (side, bound, met) = match bound {
                Bound::AtMost(bound) => ("at most", bound, ratio.median <= bound),
                Bound::AtLeast(bound) => ("at least", bound, ratio.median >= bound),
            };
            Some(Self { what: format!("{name}: {figure} / {rival} {side} {bound}"), ratio, bound, met })
        };
        BARS.into_iter().filter_map(bar).collect()
    }
}
