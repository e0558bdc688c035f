//! The bars under contention.

use super::Contention;
use super::hand_over::HandOver;
use crate::bar::Bar;
use crate::bar::Bound::{self, AtLeast, AtMost};
use crate::spread::Spread;

/// Contest, crew, figure, the crew by whose figure it is divided if any, and the bound.
type Goal = (
    &'static str,
    &'static str,
    &'static str,
    Option<&'static str>,
    Bound,
);

const GOALS: [Goal; 43] = [
    ("one-process", "64 tasks", "scripts", None, AtMost(1.15)),
    (
        "one-process",
        "64 tasks",
        "per_second",
        Some("rslock, 64 tasks"),
        AtLeast(1.6),
    ),
    (
        "one-process",
        "64 tasks",
        "per_second",
        Some("1 task"),
        AtLeast(1.7),
    ),
    ("one-process", "64 tasks", "evenness", None, AtLeast(0.9)),
    (
        "one-process",
        "1,024 tasks",
        "per_second",
        Some("64 tasks"),
        AtLeast(0.95),
    ),
    ("one-process-1ms", "64 tasks", "scripts", None, AtMost(1.15)),
    (
        "one-process-1ms",
        "64 tasks",
        "per_second",
        Some("rslock, 64 tasks"),
        AtLeast(0.96),
    ),
    (
        "one-process-1ms",
        "64 tasks",
        "evenness",
        None,
        AtLeast(0.9),
    ),
    (
        "one-process-1ms",
        "1,024 tasks",
        "per_second",
        Some("64 tasks"),
        AtLeast(0.95),
    ),
    ("processes", "2 processes", "scripts", None, AtMost(2.5)),
    ("processes", "32 processes", "scripts", None, AtMost(2.5)),
    (
        "processes",
        "32 processes",
        "per_second",
        Some("2 processes"),
        AtLeast(0.9),
    ),
    ("processes-1ms", "2 processes", "scripts", None, AtMost(2.5)),
    (
        "processes-1ms",
        "32 processes",
        "scripts",
        None,
        AtMost(2.5),
    ),
    (
        "processes-1ms",
        "32 processes",
        "per_second",
        Some("2 processes"),
        AtLeast(0.9),
    ),
    (
        "processes-1ms",
        "2 processes",
        "evenness_of_processes",
        None,
        AtLeast(0.8),
    ),
    (
        "processes-1ms",
        "8 processes",
        "evenness_of_processes",
        None,
        AtLeast(0.8),
    ),
    (
        "processes-1ms",
        "32 processes",
        "evenness_of_processes",
        None,
        AtLeast(0.8),
    ),
    (
        "4x16-1ms",
        "lockhound",
        "per_second",
        Some("Redisson"),
        AtLeast(1.5),
    ),
    (
        "jvm-beside",
        "lockhound + Redisson",
        "least_share",
        None,
        AtLeast(0.25),
    ),
    (
        "outsiders/one",
        "a visitor",
        "per_second",
        Some("nobody"),
        AtLeast(0.8),
    ),
    (
        "outsiders/one",
        "a visitor, again and again",
        "per_second",
        Some("nobody"),
        AtLeast(0.8),
    ),
    (
        "outsiders/one",
        "a stopped process",
        "per_second",
        Some("nobody"),
        AtLeast(0.8),
    ),
    (
        "outsiders/one",
        "a subscriber",
        "per_second",
        Some("nobody"),
        AtLeast(0.8),
    ),
    (
        "outsiders/one",
        "a monitor",
        "per_second",
        Some("nobody"),
        AtLeast(0.8),
    ),
    (
        "outsiders/one",
        "another database",
        "per_second",
        Some("nobody"),
        AtLeast(0.8),
    ),
    (
        "outsiders/two",
        "a visitor",
        "per_second",
        Some("nobody"),
        AtLeast(0.7),
    ),
    (
        "outsiders/two",
        "a visitor, again and again",
        "per_second",
        Some("nobody"),
        AtLeast(0.7),
    ),
    (
        "outsiders/two",
        "a stopped process",
        "per_second",
        Some("nobody"),
        AtLeast(0.7),
    ),
    (
        "outsiders/two",
        "a subscriber",
        "per_second",
        Some("nobody"),
        AtLeast(0.7),
    ),
    (
        "outsiders/two",
        "a monitor",
        "per_second",
        Some("nobody"),
        AtLeast(0.7),
    ),
    (
        "outsiders/two",
        "another database",
        "per_second",
        Some("nobody"),
        AtLeast(0.7),
    ),
    (
        "outsiders/two-1ms",
        "a visitor",
        "per_second",
        Some("nobody"),
        AtLeast(0.7),
    ),
    (
        "outsiders/two-1ms",
        "a visitor, again and again",
        "per_second",
        Some("nobody"),
        AtLeast(0.7),
    ),
    (
        "outsiders/two-1ms",
        "a stopped process",
        "per_second",
        Some("nobody"),
        AtLeast(0.7),
    ),
    (
        "outsiders/two-1ms",
        "a subscriber",
        "per_second",
        Some("nobody"),
        AtLeast(0.7),
    ),
    (
        "outsiders/two-1ms",
        "a monitor",
        "per_second",
        Some("nobody"),
        AtLeast(0.7),
    ),
    (
        "outsiders/two-1ms",
        "another database",
        "per_second",
        Some("nobody"),
        AtLeast(0.7),
    ),
    (
        "outsiders/shares",
        "8 tasks + a JVM",
        "least_share",
        None,
        AtLeast(0.25),
    ),
    (
        "outsiders/shares",
        "2 of 8 tasks + a JVM",
        "least_share",
        None,
        AtLeast(0.25),
    ),
    (
        "outsiders/shares",
        "2 of 1 task + 1 without lists",
        "last_share",
        None,
        AtMost(0.5),
    ),
    (
        "outsiders/shares",
        "4 of 4 tasks + 1 without lists",
        "last_share",
        None,
        AtMost(0.33),
    ),
    (
        "quorum-20",
        "20 contenders",
        "per_second",
        Some("1 alone"),
        AtLeast(QUORUM),
    ),
];

/// Twice the 0.22 of the version before hand-overs, as it was measured in turns with a later one.
const QUORUM: f64 = 0.44;

impl Contention {
    /// Returns the bars for everything that was measured.
    pub(crate) fn bars(&self) -> Vec<Bar> {
        let mut bars: Vec<Bar> = GOALS.iter().filter_map(|goal| self.bar(goal)).collect();
        bars.extend(self.hand_over.iter().flat_map(HandOver::bars));
        let crews = self
            .contests
            .iter()
            .flat_map(|contest| &contest.crews)
            .filter(|entry| entry.has_lockhound);
        let overlaps = crews
            .flat_map(|entry| &entry.rounds)
            .map(|round| round.overlaps as f64);
        bars.push(Bar::never_above(
            "contention: two holders at the same time",
            Spread::of(overlaps),
            0.0,
        ));
        bars
    }

    fn bar(&self, &(name, crew, figure, other, bound): &Goal) -> Option<Bar> {
        let contest = self.contest(name)?;
        let (what, spread) = match other {
            Some(other) => (
                format!("{name}: {crew}: {figure} / {other}"),
                contest.ratio(crew, other, figure)?,
            ),
            None => (
                format!("{name}: {crew}: {figure}"),
                contest.entry(crew)?.figure(figure),
            ),
        };
        Some(Bar::within(&what, spread, bound))
    }
}
