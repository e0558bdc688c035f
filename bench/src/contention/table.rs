//! The contests as tables, with a row for each crew.

use std::fmt;

use super::{Contention, Contest, Entry, READ_WRITE, ROUNDS};
use crate::spread::Spread;
use crate::table::{aligned, cell, number};

const HEADER: [&str; 8] = [
    "",
    "acquisitions a second",
    "scripts each",
    "server CPU each, us",
    "fewest..most a task",
    "a process",
    "longest wait, ms",
    "overlaps",
];

const READ_WRITE_HEADER: [&str; 11] = [
    "",
    "pairs a second",
    "/ first",
    "scripts a pair",
    "server CPU a pair, us",
    "/ first",
    "turn p50, us",
    "write wait p99, ms",
    "longest write wait, ms",
    "longest wait, ms",
    "most overlaps",
];

impl fmt::Display for Contention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for contest in &self.contests {
            writeln!(f, "{contest}")?;
        }
        self.hand_over
            .iter()
            .try_for_each(|hand_over| write!(f, "{hand_over}"))
    }
}

impl fmt::Display for Contest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {}; {ROUNDS} rounds of {} s",
            self.name, self.title, self.slot_seconds
        )?;
        let mut rows = vec![HEADER.map(str::to_owned).to_vec()];
        if self.name.starts_with(READ_WRITE) {
            rows = self.read_write_rows();
        } else {
            rows.extend(self.crews.iter().map(row));
        }
        write!(f, "{}", aligned(&rows))?;
        for (crew, reason) in &self.skipped {
            writeln!(f, "  {crew} was skipped: {reason}")?;
        }
        Ok(())
    }
}

impl Contest {
    /// Returns the table of a contest between readers and writers, in which the first crew is
    /// lockhound's.
    fn read_write_rows(&self) -> Vec<Vec<String>> {
        let mut rows = vec![READ_WRITE_HEADER.map(str::to_owned).to_vec()];
        for entry in &self.crews {
            let ratio = |key| cell(self.ratio(entry.name, self.crews[0].name, key).as_ref());
            let figure = |key| cell(Some(&entry.figure(key)));
            rows.push(vec![
                entry.name.to_owned(),
                figure("per_second"),
                ratio("per_second"),
                figure("scripts"),
                figure("server_us"),
                ratio("server_us"),
                figure("turn_p50_us"),
                figure("write_p99_ms"),
                figure("longest_write_ms"),
                figure("longest_wait_ms"),
                number(entry.figure("overlaps").max),
            ]);
        }
        rows
    }
}

fn row(entry: &Entry) -> Vec<String> {
    let figure = |key: &str| cell(Some(&entry.figure(key)));
    let range = |of: fn(&super::Round) -> [usize; 2]| {
        let [fewest, most] =
            [0, 1].map(|at| Spread::of(entry.rounds.iter().map(|round| of(round)[at] as f64)));
        format!("{:.0}..{:.0}", fewest.median, most.median)
    };
    let longest = entry.figure("longest_wait_ms");
    vec![
        shares(entry),
        figure("per_second"),
        figure("scripts"),
        figure("server_us"),
        range(|round| [round.fewest, round.most]),
        range(|round| [round.fewest_of_process, round.most_of_process]),
        format!("{} ({})", number(longest.median), number(longest.max)),
        format!(
            "{:.0}",
            entry
                .rounds
                .iter()
                .map(|round| round.overlaps)
                .sum::<usize>()
        ),
    ]
}

/// Returns the name of a crew, with the share of each kind of program in it.
fn shares(entry: &Entry) -> String {
    let Some(kinds) = entry
        .rounds
        .first()
        .map(|round| round.shares.len())
        .filter(|&kinds| kinds > 1)
    else {
        return entry.name.to_owned();
    };
    let share = |kind| {
        Spread::of(
            entry
                .rounds
                .iter()
                .map(|round: &super::Round| round.shares[kind]),
        )
        .median
            * 100.0
    };
    let shares: Vec<String> = (0..kinds)
        .map(|kind| format!("{:.0} %", share(kind)))
        .collect();
    format!("{} ({})", entry.name, shares.join(" + "))
}
