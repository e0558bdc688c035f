//! The results of one slot: how often each task had the lock, the longest wait, and whether two
//! holders overlapped.

use std::ops::Range;

use serde::Serialize;

use super::line::Wait;
use crate::laps::percentile;

/// One slot of one crew.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Round {
    pub(crate) acquisitions: usize,
    pub(crate) per_second: f64,
    /// Scripts per acquisition on all servers together, or the commands that other clients send
    /// instead.
    pub(crate) scripts: f64,
    /// CPU time of all servers together per acquisition.
    pub(crate) server_us: f64,
    /// Acquisitions of the task with the fewest, and of the task with the most.
    pub(crate) fewest: usize,
    pub(crate) most: usize,
    /// The same for processes.
    pub(crate) fewest_of_process: usize,
    pub(crate) most_of_process: usize,
    /// The share of all acquisitions that each kind of program in the crew had.
    pub(crate) shares: Vec<f64>,
    /// From the call of `lock()`. A wait that was not over at the end of the slot counts until
    /// then.
    pub(crate) longest_wait_ms: f64,
    /// The same of writers only, and of 99 of 100 of their waits. A lock has only writers.
    pub(crate) longest_write_ms: f64,
    pub(crate) write_p99_ms: f64,
    /// From one call of `lock()` of a task to the next.
    pub(crate) turn_p50_us: f64,
    /// How often a task got the lock while another one held it.
    pub(crate) overlaps: usize,
}

/// The notes of the processes of one kind of program.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) tasks: usize,
    /// For each process the waits of its tasks, in any order.
    pub(crate) processes: Vec<Vec<(usize, Wait)>>,
}

/// What the servers counted in the slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Served {
    pub(crate) scripts: f64,
    pub(crate) cpu_seconds: f64,
}

impl Round {
    /// Acquisitions within `slot` count. Overlaps are looked for in all notes, for each of `keys`
    /// keys.
    pub(crate) fn of(said: &[Said], keys: usize, slot: &Range<u64>, served: Served) -> Self {
        let counts: Vec<Vec<Vec<usize>>> = said.iter().map(|said| said.counts(slot)).collect();
        let tasks = || counts.iter().flatten().flatten().copied();
        let processes = || {
            counts
                .iter()
                .flatten()
                .map(|tasks| tasks.iter().sum::<usize>())
        };
        let acquisitions: usize = tasks().sum();
        let seconds = (slot.end - slot.start) as f64 / 1e9;
        let share = |kind: &Vec<Vec<usize>>| {
            kind.iter().flatten().sum::<usize>() as f64 / acquisitions as f64
        };
        Self {
            acquisitions,
            per_second: acquisitions as f64 / seconds,
            scripts: served.scripts / acquisitions as f64,
            server_us: served.cpu_seconds * 1e6 / acquisitions as f64,
            fewest: tasks().min().unwrap_or_default(),
            most: tasks().max().unwrap_or_default(),
            fewest_of_process: processes().min().unwrap_or_default(),
            most_of_process: processes().max().unwrap_or_default(),
            shares: counts.iter().map(share).collect(),
            longest_wait_ms: longest(waits_within(said, slot, true)),
            longest_write_ms: longest(waits_within(said, slot, false)),
            write_p99_ms: percentile(waits_within(said, slot, false), 0.99) / 1e3,
            turn_p50_us: percentile(turns(said, slot), 0.5),
            overlaps: overlaps(said, keys),
        }
    }

    /// Returns the fewest acquisitions of a task divided by the most.
    pub(crate) fn evenness(&self) -> f64 {
        self.fewest as f64 / self.most as f64
    }

    pub(crate) fn evenness_of_processes(&self) -> f64 {
        self.fewest_of_process as f64 / self.most_of_process as f64
    }

    /// Returns the share of the last kind of program.
    pub(crate) fn last_share(&self) -> f64 {
        self.shares.last().copied().unwrap_or_default()
    }

    /// Returns the least share of a kind of program.
    pub(crate) fn least_share(&self) -> f64 {
        self.shares.iter().copied().fold(1.0, f64::min)
    }
}

impl Said {
    /// Returns for each process how often each of its tasks got the lock within the slot.
    fn counts(&self, slot: &Range<u64>) -> Vec<Vec<usize>> {
        let count = |waits: &Vec<(usize, Wait)>| {
            let mut counts = vec![0; self.tasks];
            for (task, wait) in waits {
                if wait
                    .inside
                    .is_some_and(|(entered, _)| slot.contains(&entered))
                {
                    counts[*task] += 1;
                }
            }
            counts
        };
        self.processes.iter().map(count).collect()
    }

    fn waits(&self) -> impl Iterator<Item = &(usize, Wait)> {
        self.processes.iter().flatten()
    }
}

/// Returns the waits that ended within the slot or were not over at its end.
fn waits_within(said: &[Said], slot: &Range<u64>, readers_too: bool) -> Vec<u64> {
    let waits = said.iter().flat_map(Said::waits);
    let waits = waits.filter(|(_, wait)| readers_too || !wait.reads);
    let within = waits.filter_map(|(_, wait)| {
        let over = wait
            .inside
            .map_or(slot.end, |(entered, _)| entered.min(slot.end));
        (over >= slot.start).then(|| over.saturating_sub(wait.asked))
    });
    within.collect()
}

/// Returns the longest wait, in milliseconds.
fn longest(waits: Vec<u64>) -> f64 {
    waits
        .into_iter()
        .max()
        .map_or(f64::NAN, |wait| wait as f64 / 1e6)
}

/// Returns the times from one call of a task to its next one, within the slot.
fn turns(said: &[Said], slot: &Range<u64>) -> Vec<u64> {
    let processes = said.iter().flat_map(|said| &said.processes);
    let of_process = processes.flat_map(|waits| {
        let mut calls: Vec<_> = waits
            .iter()
            .map(|(task, wait)| (*task, wait.asked))
            .collect();
        calls.sort_unstable();
        let turns = calls.windows(2).filter_map(|calls| {
            let ((task, asked), (next_task, next)) = (calls[0], calls[1]);
            (task == next_task && slot.contains(&asked)).then(|| next - asked)
        });
        turns.collect::<Vec<_>>()
    });
    of_process.collect()
}

fn overlaps(said: &[Said], keys: usize) -> usize {
    let mut visits = vec![Vec::new(); keys];
    for (task, wait) in said.iter().flat_map(Said::waits) {
        let visit = |(entered, left)| (entered, left, wait.reads);
        visits[task % keys].extend(wait.inside.map(visit));
    }
    visits
        .iter_mut()
        .map(|visits| overlaps_of_one(visits))
        .sum()
}

/// Counts, for one key, the visits that began before all earlier ones were over. A visit to read
/// may begin before others to read are over.
fn overlaps_of_one(visits: &mut [(u64, u64, bool)]) -> usize {
    visits.sort_unstable();
    let (mut all_out, mut writers_out, mut overlaps) = (0, 0, 0);
    for &(entered, left, reads) in &*visits {
        overlaps += usize::from(entered < if reads { writers_out } else { all_out });
        all_out = all_out.max(left);
        if !reads {
            writers_out = all_out;
        }
    }
    overlaps
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVED: Served = Served {
        scripts: 8.0,
        cpu_seconds: 0.000_040,
    };

    fn wait(asked: u64, inside: Option<(u64, u64)>) -> Wait {
        Wait {
            asked,
            inside,
            reads: false,
        }
    }

    #[test]
    fn a_visit_that_begins_before_another_ends_is_an_overlap() {
        assert_eq!(
            overlaps_of_one(&mut [(5, 9, false), (1, 5, false)]),
            0,
            "at the same moment is no overlap"
        );
        let of = |reads: [bool; 4]| {
            let visits = [(1, 9), (2, 3), (4, 5), (10, 11)].into_iter().zip(reads);
            let visits = visits.map(|((entered, left), reads)| (entered, left, reads));
            overlaps_of_one(&mut visits.collect::<Vec<_>>())
        };
        assert_eq!(of([false; 4]), 2);
        assert_eq!(of([true; 4]), 0, "readers are inside together");
        assert_eq!(of([true, true, false, true]), 1, "a writer among readers");
        assert_eq!(of([false, true, true, true]), 2, "readers inside a write");
        let said = |other| {
            let processes = vec![
                vec![(0, wait(0, Some((1, 9))))],
                vec![(other, wait(0, Some((4, 5))))],
            ];
            [Said {
                tasks: 2,
                processes,
            }]
        };
        assert_eq!(
            (overlaps(&said(0), 2), overlaps(&said(1), 2)),
            (1, 0),
            "only on one key"
        );
    }

    #[test]
    fn a_round_counts_acquisitions_within_its_slot() {
        let one = vec![
            (0, wait(1, Some((5, 6)))),
            (0, wait(7, Some((10, 11)))),
            (1, wait(9, Some((12, 13)))),
        ];
        let other = vec![
            (0, wait(8, Some((14, 15)))),
            (0, wait(16, Some((30, 31)))),
            (1, wait(2, None)),
        ];
        let said = [
            Said {
                tasks: 2,
                processes: vec![one],
            },
            Said {
                tasks: 2,
                processes: vec![other],
            },
        ];
        let round = Round::of(&said, 1, &(10..20), SERVED);
        assert_eq!((round.acquisitions, round.fewest, round.most), (3, 0, 1));
        assert_eq!((round.fewest_of_process, round.most_of_process), (1, 2));
        assert_eq!(
            (round.shares[1], round.least_share()),
            (1.0 / 3.0, 1.0 / 3.0)
        );
        assert_eq!(
            round.longest_wait_ms,
            18.0 / 1e6,
            "the wait that never ended, until the end of the slot"
        );
        assert_eq!((round.scripts, round.overlaps), (8.0 / 3.0, 0));
    }
}
