//! The contests as a picture: for some of them a bar for each crew, whose length is its number of
//! acquisitions.

use std::fmt::Write as _;

use super::{Contention, Contest, Entry};

/// The contests that are shown, and their crews. The first crew is lockhound.
const SHOWN: [(&str, &str, &[&str]); 5] = [
    (
        "one-process",
        "64 tasks of one process",
        &["64 tasks", "rslock, 64 tasks"],
    ),
    (
        "one-process-1ms",
        "64 tasks of one process, kept for 1 ms",
        &["64 tasks", "rslock, 64 tasks"],
    ),
    (
        "4x16-1ms",
        "4 processes of 16 tasks, kept for 1 ms",
        &["lockhound", "Redisson", "rslock"],
    ),
    (
        "languages",
        "4 processes of one task, kept for 1 ms",
        &["lockhound, plain", "redis-py", "node-redlock", "redsync"],
    ),
    (
        "16-on-16",
        "16 processes on 16 keys, kept for 1 ms",
        &["lockhound", "rslock"],
    ),
];

const WIDTH: usize = 720;
const LEFT: usize = 150;
const LONGEST: f64 = 250.0;
const ROW: usize = 22;
const TITLE: usize = 30;

impl Contention {
    /// Returns the picture as SVG.
    pub(crate) fn picture(&self) -> String {
        let (mut body, mut y) = (String::new(), 34);
        for (name, title, crews) in SHOWN {
            let Some(contest) = self.contest(name) else {
                continue;
            };
            let entries: Vec<&Entry> = crews
                .iter()
                .filter_map(|crew| contest.entry(crew))
                .collect();
            y = group(&mut body, y, title, contest, &entries);
        }
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n<text x=\"12\" y=\"20\" \
             fill=\"#555\">Acquisitions of a contended lock a second; how many each task had; the longest wait</text>\n\
             {body}</svg>\n",
            y + 6
        )
    }
}

/// Draws one contest from this line on, and returns the line below it.
fn group(body: &mut String, y: usize, title: &str, contest: &Contest, entries: &[&Entry]) -> usize {
    let most = entries
        .iter()
        .map(|entry| entry.figure("per_second").median)
        .fold(0.0, f64::max);
    // Writing to a String cannot fail.
    let _: Result<_, _> = writeln!(
        body,
        "<text x=\"12\" y=\"{}\" font-weight=\"bold\">{title}</text>",
        y + TITLE - 12
    );
    for (row, entry) in entries.iter().enumerate() {
        let (y, rate) = (y + TITLE + row * ROW, entry.figure("per_second").median);
        let length = (LONGEST * rate / most).max(1.0);
        let (fill, name) = if row == 0 {
            ("#2a6", "lockhound")
        } else {
            ("#aaa", short(entry.name))
        };
        let _: Result<_, _> = writeln!(
            body,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{name}</text>\n\
             <rect x=\"{LEFT}\" y=\"{}\" width=\"{length:.1}\" height=\"14\" fill=\"{fill}\"/>\n\
             <text x=\"{:.1}\" y=\"{}\" fill=\"#555\">{}</text>",
            LEFT - 8,
            y + 4,
            y - 7,
            LEFT as f64 + length + 6.0,
            y + 4,
            said(contest, entry, rate)
        );
    }
    y + TITLE + entries.len() * ROW
}

fn said(contest: &Contest, entry: &Entry, rate: f64) -> String {
    let median = |key: &str| entry.figure(key).median;
    format!(
        "{rate:.0}/s; {:.0}..{:.0} a task in {} s; {:.0} ms",
        median("fewest"),
        median("most"),
        contest.slot_seconds,
        entry.figure("longest_wait_ms").max
    )
}

/// Returns a crew's name without the part that the title has.
fn short(name: &str) -> &str {
    name.split(',').next().unwrap_or(name)
}
