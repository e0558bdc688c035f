//! The bars: bounds that lockhound is to keep. The bench reports whether it does, and does not fail if it does not.

use serde::Serialize;

use crate::contention::Contention;
use crate::far::Far;
use crate::fence::Price;
use crate::memory::Memory;
use crate::report::{Outcome, Report};
use crate::scenario::{LOCKHOUND, RSLOCK, SOCKET};
use crate::spread::Spread;

/// A bound on a figure.
#[derive(Debug, Serialize)]
pub(crate) struct Bar {
    pub(crate) what: String,
    pub(crate) figure: Spread,
    pub(crate) bound: f64,
    pub(crate) met: bool,
}

/// Scenario, figure, the rival by whose figure it is divided, and the bound.
const BARS: [(&str, &str, &str, Bound); 9] = [
    ("pair", "pair_p50_us", SOCKET, Bound::AtMost(1.7)),
    ("pair", "pair_p50_us", RSLOCK, Bound::AtMost(1.0)),
    // The same from a spawned task, which may share its worker with rslock's connection.
    ("tasks-1", "pair_p50_us", SOCKET, Bound::AtMost(1.7)),
    ("tasks-1", "pair_p50_us", RSLOCK, Bound::AtMost(1.0)),
    // rslock's lock costs less: a string without a fence, a message or a count.
    ("tasks-64", "pairs_per_second", RSLOCK, Bound::AtLeast(0.5)),
    // rslock waits for every server, where a majority is enough.
    ("quorum-3", "pair_p50_us", RSLOCK, Bound::AtMost(1.0)),
    ("quorum-5", "pair_p50_us", RSLOCK, Bound::AtMost(1.0)),
    ("quorum-3-64", "pairs_per_second", RSLOCK, Bound::AtLeast(1.0)),
    ("quorum-5-64", "pairs_per_second", RSLOCK, Bound::AtLeast(1.0)),
];

#[derive(Debug, Clone, Copy)]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bar {
    /// Returns the bars for everything that was measured.
    pub(crate) fn all(report: &Report) -> Vec<Self> {
        let mut bars: Vec<Self> = BARS.into_iter().filter_map(|bar| Self::on_ratio(&report.scenarios, bar)).collect();
        bars.extend(report.memory.iter().filter_map(Memory::bar));
        bars.extend(report.fence.iter().flat_map(Price::bars));
        bars.extend(report.far.iter().flat_map(Far::bars));
        bars.extend(report.contention.iter().flat_map(Contention::bars));
        bars
    }

    fn on_ratio(scenarios: &[Outcome], (name, figure, rival, bound): (&str, &str, &str, Bound)) -> Option<Self> {
        let scenario = scenarios.iter().find(|scenario| scenario.name == name)?;
        let ratio = scenario.ratio(LOCKHOUND, rival, figure)?;
        Some(Self::within(&format!("{name}: {figure} / {rival}"), ratio, bound))
    }

    /// Judges the median.
    pub(crate) fn within(what: &str, figure: Spread, bound: Bound) -> Self {
        match bound {
            Bound::AtMost(bound) => Self::at_most(what, figure, bound),
            Bound::AtLeast(bound) => Self::at_least(what, figure, bound),
        }
    }

    /// Judges the median.
    pub(crate) fn at_most(what: &str, figure: Spread, bound: f64) -> Self {
        Self { what: format!("{what} at most {bound}"), figure, bound, met: figure.median <= bound }
    }

    /// Judges the median.
    pub(crate) fn at_least(what: &str, figure: Spread, bound: f64) -> Self {
        Self { what: format!("{what} at least {bound}"), figure, bound, met: figure.median >= bound }
    }

    /// Judges the worst round.
    pub(crate) fn never_above(what: &str, figure: Spread, bound: f64) -> Self {
        Self { what: format!("{what} never above {bound}"), figure, bound, met: figure.max <= bound }
    }
}
