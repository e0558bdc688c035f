//! What operators see: counters and distributions of one locker.
//!
//! Counting is cheap and always on. With the feature `metrics` each count and each time also goes to the recorder that the
//! program has installed for the `metrics` facade.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::error::Loss;

/// A look at what a [`Locker`](crate::Locker) has done and is doing. Counts grow from its connect on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Holds of this process: held, being released, or lost with a guard that still lives.
    pub holds: usize,
    /// Callers that stand in line.
    pub waiters: usize,
    /// Acquisitions, re-entries not counted.
    pub acquired: u64,
    /// Leases that were started anew, a lock at a time.
    pub renewals: u64,
    /// Renewals that failed for the time of a whole tick.
    pub renewal_errors: u64,
    /// Acquires that were undone, because their answer never came or nobody took what they were granted.
    pub undone: u64,
    /// Operations, releases and undos that wait for an answer.
    pub pending: usize,
    /// Those of them that are undos. Beyond 10,000 nothing more is undone: a key then runs out with its lease.
    pub pending_undos: usize,
    /// Losses, by reason.
    pub losses: Losses,
    /// How long `lock()` took from its call to its grant, for those that did not enter again.
    pub acquire_time: Distribution,
    /// How long locks were held, from the send of their acquire to their last guard's end.
    pub hold_time: Distribution,
    /// How much later than planned renewals were begun.
    pub renewal_lateness: Distribution,
}

/// Losses, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Losses {
    /// [`Loss::NotOwner`].
    pub not_owner: u64,
    /// [`Loss::RenewalFailed`].
    pub renewal_failed: u64,
    /// [`Loss::Expired`].
    pub expired: u64,
    /// [`Loss::MaxHold`].
    pub max_hold: u64,
    /// [`Loss::ForceUnlocked`].
    pub force_unlocked: u64,
    /// [`Loss::Closed`].
    pub closed: u64,
}

impl Losses {
    /// All of them.
    pub const fn total(&self) -> u64 {
        self.not_owner + self.renewal_failed + self.expired + self.max_hold + self.force_unlocked + self.closed
    }
}

/// A distribution of times, to two significant digits; times over a day count as a day.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Distribution {
    /// How many there are.
    pub count: u64,
    /// Half of them are at most this long.
    pub p50: Duration,
    /// 99 of 100 are at most this long.
    pub p99: Duration,
    /// The longest.
    pub max: Duration,
}

/// The counters behind [`Stats`].
#[derive(Debug)]
pub(crate) struct Counters {
    acquired: AtomicU64,
    renewals: AtomicU64,
    renewal_errors: AtomicU64,
    undone: AtomicU64,
    losses: [AtomicU64; 6],
    acquire_time: Times,
    hold_time: Times,
    renewal_lateness: Times,
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self {
            acquired: AtomicU64::new(0),
            renewals: AtomicU64::new(0),
            renewal_errors: AtomicU64::new(0),
            undone: AtomicU64::new(0),
            losses: Default::default(),
            acquire_time: Times::new("lockhound_acquire_seconds"),
            hold_time: Times::new("lockhound_hold_seconds"),
            renewal_lateness: Times::new("lockhound_renewal_lateness_seconds"),
        }
    }

    pub(crate) fn acquired(&self) {
        count(&self.acquired, "lockhound_acquired_total");
    }

    pub(crate) fn granted_after(&self, time: Duration) {
        self.acquire_time.record(time);
    }

    pub(crate) fn released_after(&self, time: Duration) {
        self.hold_time.record(time);
    }

    pub(crate) fn renewed(&self) {
        count(&self.renewals, "lockhound_renewals_total");
    }

    pub(crate) fn renewal_failed(&self) {
        count(&self.renewal_errors, "lockhound_renewal_errors_total");
    }

    pub(crate) fn renewal_begun(&self, late: Duration) {
        self.renewal_lateness.record(late);
    }

    pub(crate) fn undone(&self) {
        count(&self.undone, "lockhound_undone_total");
    }

    pub(crate) fn lost(&self, loss: Loss) {
        let (at, _reason) = match loss {
            Loss::NotOwner => (0, "not_owner"),
            Loss::RenewalFailed => (1, "renewal_failed"),
            Loss::Expired => (2, "expired"),
            Loss::MaxHold => (3, "max_hold"),
            Loss::ForceUnlocked => (4, "force_unlocked"),
            Loss::Closed => (5, "closed"),
            Loss::Released => return,
        };
        self.losses[at].fetch_add(1, Ordering::Relaxed);
        #[cfg(feature = "metrics")]
        metrics::counter!("lockhound_losses_total", "reason" => _reason).increment(1);
    }

    /// What is known by now, together with what others count.
    pub(crate) fn stats(&self, holds: usize, waiters: usize, pending: usize, pending_undos: usize) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let [not_owner, renewal_failed, expired, max_hold, force_unlocked, closed] = self.losses.each_ref().map(read);
        Stats {
            holds,
            waiters,
            acquired: read(&self.acquired),
            renewals: read(&self.renewals),
            renewal_errors: read(&self.renewal_errors),
            undone: read(&self.undone),
            pending,
            pending_undos,
            losses: Losses { not_owner, renewal_failed, expired, max_hold, force_unlocked, closed },
            acquire_time: self.acquire_time.distribution(),
            hold_time: self.hold_time.distribution(),
            renewal_lateness: self.renewal_lateness.distribution(),
        }
    }
}

fn count(counter: &AtomicU64, _name: &'static str) {
    counter.fetch_add(1, Ordering::Relaxed);
    #[cfg(feature = "metrics")]
    metrics::counter!(_name).increment(1);
}

/// Times, in microseconds.
#[derive(Debug)]
struct Times {
    histogram: Option<Mutex<Histogram<u64>>>,
    _name: &'static str,
}

const DAY_US: u64 = 86_400_000_000;

impl Times {
    fn new(name: &'static str) -> Self {
        // These bounds are valid, so that there always is a histogram.
        Self { histogram: Histogram::new_with_bounds(1, DAY_US, 2).ok().map(Mutex::new), _name: name }
    }

    fn record(&self, time: Duration) {
        if let Some(histogram) = &self.histogram {
            lock(histogram).saturating_record(u64::try_from(time.as_micros()).unwrap_or(DAY_US).max(1));
        }
        #[cfg(feature = "metrics")]
        metrics::histogram!(self._name).record(time.as_secs_f64());
    }

    fn distribution(&self) -> Distribution {
        let Some(histogram) = &self.histogram else { return Distribution::default() };
        let histogram = lock(histogram);
        Distribution {
            count: histogram.len(),
            p50: Duration::from_micros(histogram.value_at_quantile(0.5)),
            p99: Duration::from_micros(histogram.value_at_quantile(0.99)),
            max: Duration::from_micros(histogram.max()),
        }
    }
}

fn lock(histogram: &Mutex<Histogram<u64>>) -> MutexGuard<'_, Histogram<u64>> {
    histogram.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_times_come_out_as_they_went_in() {
        let counters = Counters::new();
        counters.acquired();
        counters.lost(Loss::Expired);
        counters.lost(Loss::Expired);
        counters.lost(Loss::Closed);
        counters.lost(Loss::Released);
        for ms in 1..=100 {
            counters.granted_after(Duration::from_millis(ms));
        }
        counters.released_after(Duration::from_secs(100 * 86_400));
        let stats = counters.stats(3, 2, 1, 1);
        assert_eq!((stats.holds, stats.waiters, stats.pending, stats.acquired), (3, 2, 1, 1));
        assert_eq!((stats.losses.expired, stats.losses.closed, stats.losses.total()), (2, 1, 3));
        let close = |time: Duration, ms: u64| time.abs_diff(Duration::from_millis(ms)) < Duration::from_millis(2);
        assert!(close(stats.acquire_time.p50, 50) && close(stats.acquire_time.p99, 99), "{stats:?}");
        assert_eq!(stats.acquire_time.count, 100);
        assert!(stats.hold_time.max >= Duration::from_secs(86_000), "{stats:?}");
        assert_eq!(stats.renewal_lateness, Distribution::default());
    }
}
