//! The report for people: a block for each scenario, with a column for each contender and a row for
//! each figure. A cell has the median and the range of the rounds.

use std::fmt::Write as _;

use crate::bar::Bar;
use crate::report::{FIGURES, Outcome, Report, Setting};
use crate::spread::Spread;

/// The figures whose ratios are shown. JSON has all of them.
const SHOWN_RATIOS: [(&str, &str); 3] = [
    ("pair_p50_us", "pair p50"),
    ("pairs_per_second", "pairs a second"),
    ("server_us", "server CPU a pair"),
];

/// Returns a report as text.
pub(crate) fn text(report: &Report) -> String {
    let mut blocks = vec![header(&report.setting)];
    blocks.extend(report.scenarios.iter().map(scenario));
    blocks.extend(report.fence.as_ref().map(ToString::to_string));
    blocks.extend(report.renewal.iter().map(ToString::to_string));
    blocks.extend(report.waiters.iter().map(ToString::to_string));
    blocks.extend(report.memory.iter().map(ToString::to_string));
    blocks.extend(report.far.as_ref().map(ToString::to_string));
    blocks.extend(report.read_write.as_ref().map(ToString::to_string));
    blocks.extend(report.contention.as_ref().map(ToString::to_string));
    if !report.bars.is_empty() {
        blocks.push(bars(&report.bars));
    }
    blocks.join("\n")
}

fn header(setting: &Setting) -> String {
    let crates: Vec<String> = setting
        .crates
        .iter()
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    format!(
        "{} CPUs ({}), {} on the same machine\n{}\n\
         Unless noted otherwise: {} rounds, {:.1} s a slot; the median of the rounds (their range)\n",
        setting.cpus,
        setting.system,
        setting.server,
        crates.join(", "),
        setting.rounds,
        setting.slot_seconds
    )
}

fn scenario(outcome: &Outcome) -> String {
    let mut rows = vec![vec![String::new()]];
    rows[0].extend(outcome.contenders.iter().map(|entry| entry.name.to_owned()));
    for figure in &FIGURES {
        let cells = outcome
            .contenders
            .iter()
            .map(|entry| cell(entry.figures.get(figure.key)));
        rows.push(
            std::iter::once(figure.label.to_owned())
                .chain(cells)
                .collect(),
        );
    }
    for (key, label) in SHOWN_RATIOS {
        for rival in &outcome.rivals {
            let cells = outcome
                .contenders
                .iter()
                .map(|entry| cell(outcome.ratio(entry.name, rival, key).as_ref()));
            rows.push(
                std::iter::once(format!("{label} / {rival}"))
                    .chain(cells)
                    .collect(),
            );
        }
    }
    format!("{}: {}\n{}", outcome.name, outcome.title, aligned(&rows))
}

pub(crate) fn cell(spread: Option<&Spread>) -> String {
    spread.filter(|s| !s.median.is_nan()).map_or_else(
        || "-".to_owned(),
        |s| {
            format!(
                "{} ({}..{})",
                number(s.median),
                number(s.min),
                number(s.max)
            )
        },
    )
}

/// Formats a number with three significant digits, as many as the spread justifies.
pub(crate) fn number(value: f64) -> String {
    let decimals = match value.abs() {
        v if v < 10.0 => 2,
        v if v < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

fn bars(bars: &[Bar]) -> String {
    let rows: Vec<Vec<String>> = bars
        .iter()
        .map(|bar| {
            vec![
                bar.what.clone(),
                cell(Some(&bar.figure)),
                if bar.met { "met" } else { "missed" }.to_owned(),
            ]
        })
        .collect();
    format!(
        "The bars, judged by the median (\"never\": by the worst round):\n{}",
        aligned(&rows)
    )
}

/// Aligns the first column to the left and the others to the right.
pub(crate) fn aligned(rows: &[Vec<String>]) -> String {
    let width = |column| {
        rows.iter()
            .filter_map(|row: &Vec<String>| row.get(column))
            .map(String::len)
            .max()
            .unwrap_or(0)
    };
    let mut text = String::new();
    for row in rows {
        let mut line = format!("  {:<width$}", row[0], width = width(0));
        for (column, cell) in row.iter().enumerate().skip(1) {
            // Writing to a String cannot fail.
            let _: Result<_, _> = write!(line, "   {cell:>width$}", width = width(column));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
