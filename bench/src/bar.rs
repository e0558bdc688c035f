//! The bars: bounds that lockhound is to keep. The bench reports whether it does, and does not fail
//! if it does not.

use serde::Serialize;

use crate::contention::Contention;
use crate::far::Far;
use crate::fence::Price;
use crate::memory::Memory;
use crate::report::{Outcome, Report};
use crate::scenario::{LOCKHOUND, PLAIN, RSLOCK, SOCKET};
use crate::spread::Spread;

/// A bound on a figure.
#[derive(Debug, Serialize)]
pub(crate) struct Bar {
    pub(crate) what: String,
    pub(crate) figure: Spread,
    pub(crate) bound: f64,
    pub(crate) met: bool,
}

/// Scenario, contender, figure, the rival by whose figure it is divided if any, and the bound.
type Goal = (
    &'static str,
    &'static str,
    &'static str,
    Option<&'static str>,
    Bound,
);

const GOALS: [Goal; 14] = [
    (
        "pair",
        LOCKHOUND,
        "pair_p50_us",
        Some(SOCKET),
        Bound::AtMost(1.7),
    ),
    (
        "pair",
        LOCKHOUND,
        "pair_p50_us",
        Some(RSLOCK),
        Bound::AtMost(1.0),
    ),
    // The same from a spawned task, which may share its worker with rslock's connection.
    (
        "tasks-1",
        LOCKHOUND,
        "pair_p50_us",
        Some(SOCKET),
        Bound::AtMost(1.7),
    ),
    (
        "tasks-1",
        LOCKHOUND,
        "pair_p50_us",
        Some(RSLOCK),
        Bound::AtMost(1.0),
    ),
    (
        "tasks-1",
        LOCKHOUND,
        "client_us",
        Some(RSLOCK),
        Bound::AtMost(2.0),
    ),
    // rslock's lock costs less: a string without a fence, a message or a count.
    (
        "tasks-64",
        LOCKHOUND,
        "pairs_per_second",
        Some(RSLOCK),
        Bound::AtLeast(0.8),
    ),
    (
        "tasks-64",
        PLAIN,
        "pairs_per_second",
        Some(RSLOCK),
        Bound::AtLeast(1.0),
    ),
    ("tasks-64", LOCKHOUND, "server_us", None, Bound::AtMost(6.0)),
    (
        "tasks-64",
        LOCKHOUND,
        "client_us",
        None,
        Bound::AtMost(14.0),
    ),
    (
        "tasks-1024",
        LOCKHOUND,
        "pairs_per_second",
        Some(RSLOCK),
        Bound::AtLeast(1.0),
    ),
    // rslock waits for every server, where a majority is enough.
    (
        "quorum-3",
        LOCKHOUND,
        "pair_p50_us",
        Some(RSLOCK),
        Bound::AtMost(1.0),
    ),
    (
        "quorum-5",
        LOCKHOUND,
        "pair_p50_us",
        Some(RSLOCK),
        Bound::AtMost(1.0),
    ),
    (
        "quorum-3-64",
        LOCKHOUND,
        "pairs_per_second",
        Some(RSLOCK),
        Bound::AtLeast(1.0),
    ),
    (
        "quorum-5-64",
        LOCKHOUND,
        "pairs_per_second",
        Some(RSLOCK),
        Bound::AtLeast(1.0),
    ),
];

#[derive(Debug, Clone, Copy)]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bar {
    /// Returns the bars for everything that was measured.
    pub(crate) fn all(report: &Report) -> Vec<Self> {
        let mut bars: Vec<Self> = GOALS
            .into_iter()
            .filter_map(|goal| Self::on(&report.scenarios, goal))
            .collect();
        bars.extend(report.memory.iter().filter_map(Memory::bar));
        bars.extend(report.fence.iter().flat_map(Price::bars));
        bars.extend(report.far.iter().flat_map(Far::bars));
        bars.extend(report.contention.iter().flat_map(Contention::bars));
        bars
    }

    fn on(scenarios: &[Outcome], (name, contender, figure, rival, bound): Goal) -> Option<Self> {
        let scenario = scenarios.iter().find(|scenario| scenario.name == name)?;
        let (what, spread) = match rival {
            Some(rival) => (
                format!("{figure} / {rival}"),
                scenario.ratio(contender, rival, figure)?,
            ),
            None => (
                figure.to_owned(),
                *scenario.entry(contender)?.figures.get(figure)?,
            ),
        };
        Some(Self::within(
            &format!("{name}: {contender}: {what}"),
            spread,
            bound,
        ))
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
        Self {
            what: format!("{what} at most {bound}"),
            figure,
            bound,
            met: figure.median <= bound,
        }
    }

    /// Judges the median.
    pub(crate) fn at_least(what: &str, figure: Spread, bound: f64) -> Self {
        Self {
            what: format!("{what} at least {bound}"),
            figure,
            bound,
            met: figure.median >= bound,
        }
    }

    /// Judges the worst round.
    pub(crate) fn never_above(what: &str, figure: Spread, bound: f64) -> Self {
        Self {
            what: format!("{what} never above {bound}"),
            figure,
            bound,
            met: figure.max <= bound,
        }
    }
}
