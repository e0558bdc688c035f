//! The pairs of one slot, with the times of their locks and unlocks.

use std::time::{Duration, Instant};

/// What the tasks of a contender did in one slot.
#[derive(Debug, Clone)]
pub(crate) struct Laps {
    start: Instant,
    end: Instant,
    /// In nanoseconds.
    locks: Vec<u64>,
    unlocks: Vec<u64>,
}

impl Laps {
    /// Starts the clock.
    pub(crate) fn start() -> Self {
        let now = Instant::now();
        Self {
            start: now,
            end: now,
            locks: Vec::new(),
            unlocks: Vec::new(),
        }
    }

    /// Returns the time at which the next pair begins, unless the slot is over.
    pub(crate) fn next(&self, slot: Duration) -> Option<Instant> {
        let now = Instant::now();
        (now - self.start < slot).then_some(now)
    }

    /// Notes a pair that has just been released: when its lock was asked for, and when it was
    /// granted.
    pub(crate) fn note(&mut self, asked: Instant, locked: Instant) {
        self.end = Instant::now();
        self.locks.push(nanos(locked - asked));
        self.unlocks.push(nanos(self.end - locked));
    }

    /// Merges the pairs of all tasks of a slot.
    pub(crate) fn merge(all: Vec<Self>) -> Self {
        let merged = all.into_iter().reduce(|mut merged, other| {
            merged.start = merged.start.min(other.start);
            merged.end = merged.end.max(other.end);
            merged.locks.extend(other.locks);
            merged.unlocks.extend(other.unlocks);
            merged
        });
        merged.unwrap_or_else(Self::start)
    }

    pub(crate) fn pairs(&self) -> usize {
        self.locks.len()
    }

    /// Returns the time from the first lock of any task to the last release.
    pub(crate) fn elapsed(&self) -> Duration {
        self.end - self.start
    }

    /// Returns a percentile of `lock()`, in microseconds.
    pub(crate) fn lock(&self, share: f64) -> f64 {
        percentile(self.locks.clone(), share)
    }

    /// Returns a percentile of `unlock()`, in microseconds.
    pub(crate) fn unlock(&self, share: f64) -> f64 {
        percentile(self.unlocks.clone(), share)
    }

    /// Returns a percentile of both together, in microseconds.
    pub(crate) fn pair(&self, share: f64) -> f64 {
        percentile(
            self.locks
                .iter()
                .zip(&self.unlocks)
                .map(|(lock, unlock)| lock + unlock)
                .collect(),
            share,
        )
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns a percentile in microseconds. Takes the nearest rank, without interpolation.
pub(crate) fn percentile(mut nanos: Vec<u64>, share: f64) -> f64 {
    if nanos.is_empty() {
        return f64::NAN;
    }
    let rank = (nanos.len() as f64 * share).ceil() as usize;
    let (_, value, _) = nanos.select_nth_unstable(rank.saturating_sub(1));
    *value as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let hundred: Vec<u64> = (1..=100).rev().map(|n| n * 1_000).collect();
        assert_eq!(percentile(hundred.clone(), 0.5), 50.0);
        assert_eq!(percentile(hundred, 0.99), 99.0);
        assert_eq!(percentile(vec![7_000], 0.99), 7.0);
        assert!(percentile(Vec::new(), 0.5).is_nan());
    }
}
