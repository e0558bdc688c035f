//! The numbers of everything that was measured: `--json` writes them, and the table is made from
//! them.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use serde::Serialize;

use crate::bar::Bar;
use crate::connection::Connection;
use crate::contention::Contention;
use crate::far::Far;
use crate::fence::Price;
use crate::laps::Laps;
use crate::memory::Memory;
use crate::renewal::Renewals;
use crate::spread::Spread;
use crate::waiters::Lines;

/// The lock file that this program was built with. It names the releases that were measured.
const LOCK_FILE: &str = include_str!("../../Cargo.lock");

/// The results of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) setting: Setting,
    pub(crate) scenarios: Vec<Outcome>,
    pub(crate) fence: Option<Price>,
    /// Empty unless it was asked for.
    pub(crate) renewal: Vec<Renewals>,
    /// Likewise.
    pub(crate) waiters: Vec<Lines>,
    /// Likewise, with `quorum`.
    pub(crate) memory: Vec<Memory>,
    pub(crate) far: Option<Far>,
    /// The contests of `readwrite`; its lone pairs are a scenario.
    pub(crate) read_write: Option<Contention>,
    pub(crate) contention: Option<Contention>,
    pub(crate) bars: Vec<Bar>,
}

impl Report {
    pub(crate) fn new(setting: Setting) -> Self {
        Self {
            setting,
            scenarios: Vec::new(),
            fence: None,
            renewal: Vec::new(),
            waiters: Vec::new(),
            memory: Vec::new(),
            far: None,
            read_write: None,
            contention: None,
            bars: Vec::new(),
        }
    }
}

/// What the figures depend on.
#[derive(Debug, Serialize)]
pub(crate) struct Setting {
    pub(crate) cpus: usize,
    pub(crate) system: String,
    pub(crate) server: String,
    pub(crate) crates: BTreeMap<&'static str, &'static str>,
    pub(crate) rounds: usize,
    pub(crate) slot_seconds: f64,
}

impl Setting {
    pub(crate) fn of(control: &mut Connection, rounds: usize, slot: Duration) -> io::Result<Self> {
        let crates = [
            "lockhound",
            "fred",
            "rslock",
            "rlock",
            "distkit",
            "redis",
            "tokio",
        ];
        Ok(Self {
            cpus: std::thread::available_parallelism()?.get(),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            server: format!("redis-server {}", control.info("server", "redis_version")?),
            crates: crates
                .into_iter()
                .filter_map(|name| Some((name, locked(LOCK_FILE, name)?)))
                .collect(),
            rounds,
            slot_seconds: slot.as_secs_f64(),
        })
    }
}

/// Returns the version of a crate in a lock file.
fn locked<'a>(lock_file: &'a str, name: &str) -> Option<&'a str> {
    let entry = lock_file
        .split("[[package]]")
        .find(|entry| entry.contains(&format!("\nname = \"{name}\"\n")))?;
    entry
        .lines()
        .find_map(|line| line.strip_prefix("version = "))?
        .trim_matches('"')
        .into()
}

/// One slot of one contender. Times are in microseconds.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Sample {
    pub(crate) pairs: usize,
    pub(crate) seconds: f64,
    pub(crate) lock_p50_us: f64,
    pub(crate) unlock_p50_us: f64,
    pub(crate) pair_p50_us: f64,
    pub(crate) pair_p99_us: f64,
    pub(crate) pairs_per_second: f64,
    /// CPU time per pair.
    pub(crate) server_us: f64,
    pub(crate) client_us: f64,
}

impl Sample {
    /// The CPU times are given in seconds, for the whole slot.
    pub(crate) fn of(laps: &Laps, server: f64, client: f64) -> Self {
        let (pairs, seconds) = (laps.pairs(), laps.elapsed().as_secs_f64());
        Self {
            pairs,
            seconds,
            lock_p50_us: laps.lock(0.5),
            unlock_p50_us: laps.unlock(0.5),
            pair_p50_us: laps.pair(0.5),
            pair_p99_us: laps.pair(0.99),
            pairs_per_second: pairs as f64 / seconds,
            server_us: server * 1e6 / pairs as f64,
            client_us: client * 1e6 / pairs as f64,
        }
    }
}

/// A figure of a slot: its name in JSON, its name in the table, and how it is read.
pub(crate) struct Figure {
    pub(crate) key: &'static str,
    pub(crate) label: &'static str,
    of: fn(&Sample) -> f64,
}

pub(crate) const FIGURES: [Figure; 7] = [
    Figure {
        key: "lock_p50_us",
        label: "lock p50, us",
        of: |sample| sample.lock_p50_us,
    },
    Figure {
        key: "unlock_p50_us",
        label: "unlock p50, us",
        of: |sample| sample.unlock_p50_us,
    },
    Figure {
        key: "pair_p50_us",
        label: "pair p50, us",
        of: |sample| sample.pair_p50_us,
    },
    Figure {
        key: "pair_p99_us",
        label: "pair p99, us",
        of: |sample| sample.pair_p99_us,
    },
    Figure {
        key: "pairs_per_second",
        label: "pairs a second",
        of: |sample| sample.pairs_per_second,
    },
    Figure {
        key: "server_us",
        label: "server CPU a pair, us",
        of: |sample| sample.server_us,
    },
    Figure {
        key: "client_us",
        label: "client CPU a pair, us",
        of: |sample| sample.client_us,
    },
];

/// The results of a scenario.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) name: &'static str,
    pub(crate) title: String,
    pub(crate) tasks: usize,
    /// The contenders that the others are compared with.
    pub(crate) rivals: Vec<&'static str>,
    pub(crate) contenders: Vec<Entry>,
}

/// The results of one contender.
#[derive(Debug, Serialize)]
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    /// Keyed by the keys of [`FIGURES`].
    pub(crate) figures: BTreeMap<&'static str, Spread>,
    /// Keyed by a rival's name, then by the keys of [`FIGURES`]: this contender's figure divided by
    /// the rival's of the same round.
    pub(crate) ratios: BTreeMap<&'static str, BTreeMap<&'static str, Spread>>,
    pub(crate) rounds: Vec<Sample>,
}

impl Outcome {
    pub(crate) fn new(
        name: &'static str,
        title: &str,
        tasks: usize,
        rivals: &[&'static str],
        measured: &[(&'static str, Vec<Sample>)],
    ) -> Self {
        let ratios = |name: &str, rounds: &[Sample]| {
            let others = measured
                .iter()
                .filter(|(other, _)| *other != name && rivals.contains(other));
            others
                .map(|(other, others)| (*other, compare(rounds, others)))
                .collect()
        };
        let entry = |(name, rounds): &(&'static str, Vec<Sample>)| Entry {
            name,
            figures: FIGURES
                .iter()
                .map(|figure| (figure.key, Spread::of(rounds.iter().map(figure.of))))
                .collect(),
            ratios: ratios(name, rounds),
            rounds: rounds.clone(),
        };
        let contenders = measured.iter().map(entry).collect();
        Self {
            name,
            title: title.to_owned(),
            tasks,
            rivals: rivals.to_vec(),
            contenders,
        }
    }

    pub(crate) fn entry(&self, contender: &str) -> Option<&Entry> {
        self.contenders.iter().find(|entry| entry.name == contender)
    }

    /// Returns the ratio of one contender's figure to another's.
    pub(crate) fn ratio(&self, one: &str, other: &str, figure: &str) -> Option<Spread> {
        self.entry(one)?.ratios.get(other)?.get(figure).copied()
    }
}

/// Divides each figure of one contender by the other's of the same round.
fn compare(rounds: &[Sample], others: &[Sample]) -> BTreeMap<&'static str, Spread> {
    let ratio = |figure: &Figure| {
        Spread::of(
            rounds
                .iter()
                .zip(others)
                .map(|(one, other)| (figure.of)(one) / (figure.of)(other)),
        )
    };
    FIGURES
        .iter()
        .map(|figure| (figure.key, ratio(figure)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_file_names_the_release_that_is_measured() {
        assert_eq!(locked(LOCK_FILE, "rslock"), Some("0.10.0"));
        assert_eq!(locked(LOCK_FILE, "roclck"), None);
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let sample = |us| Sample {
            pairs: 1,
            seconds: 1.0,
            lock_p50_us: us,
            unlock_p50_us: us,
            pair_p50_us: us,
            pair_p99_us: us,
            pairs_per_second: us,
            server_us: us,
            client_us: us,
        };
        // The machine was three times slower in the second round.
        let measured = vec![
            ("a", vec![sample(2.0), sample(6.0)]),
            ("b", vec![sample(1.0), sample(3.0)]),
        ];
        let outcome = Outcome::new("test", "", 1, &["b", "c"], &measured);
        assert_eq!(
            outcome.ratio("a", "b", "pair_p50_us"),
            Some(Spread {
                median: 2.0,
                min: 2.0,
                max: 2.0
            })
        );
        assert_eq!(outcome.ratio("a", "c", "pair_p50_us"), None);
        assert_eq!(
            outcome.ratio("b", "a", "pair_p50_us"),
            None,
            "a is no rival"
        );
    }
}
