//! The counters and distributions of one locker, for operators.
//!
//! Counting is cheap and always on. With the feature `metrics`, each count and each time also goes
//! to the recorder that the program has installed for the `metrics` facade.

mod attempts;
#[cfg(feature = "metrics")]
mod descriptions;
mod levels;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;

use self::attempts::CallCounts;
pub use self::attempts::{Attempts, CallOutcome};
pub(crate) use self::levels::{Levels, tell_server};
use crate::error::{Loss, NodeFailure};
#[cfg(feature = "metrics")]
use crate::foreign::contained;
pub use crate::kind::LockKind;
use crate::sync::{Arc, Mutex};

/// What a [`Locker`](crate::Locker) has done and is doing.
///
/// Counts start at zero when it connects.
///
/// `cargo run --example stats` shows it as a live table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Holds of this locker: held, being released, or lost while a guard of them still lives.
    pub holds: usize,
    /// Callers that wait for a lock.
    pub waiters: usize,
    /// Callers that wait until a [`Latch`](crate::Latch) is open.
    ///
    /// They hold nothing and want no lock, so they are not among the [`waiters`](Self::waiters).
    pub latch_waiters: usize,
    /// Calls that lock, by how they ended.
    ///
    /// They are `lock`, `try_lock`, `run` and the others, one for each call, however many locks it
    /// takes. How many locks were taken is `holds` and the count of `hold_time` together.
    pub attempts: Attempts,
    /// Re-entries that look like a mistake.
    ///
    /// Branches of one task, or tasks to which guards were moved, are inside at the same time; see
    /// [`Lock`](crate::Lock).
    ///
    /// It also counts re-entries that were polled with a different waker than the first guard, as
    /// in `FuturesUnordered`; some of those are correct code. Alert on the warning instead, which
    /// those do not log.
    pub suspicious_reentries: u64,
    /// Leases that were renewed, counted for each lock.
    pub renewals: u64,
    /// Renewals that failed for a whole tick.
    ///
    /// A tick is one [`command_timeout`](crate::LockerBuilder::command_timeout).
    pub renewal_errors: u64,
    /// Acquires that were undone: their answer never arrived, or no caller took the grant.
    pub undone_acquires: u64,
    /// Replies that belonged to a different command.
    ///
    /// The locker believed none of them, and gave up each connection that delivered one.
    ///
    /// Alert on it: the server, or something between it and the locker, loses, repeats or swaps
    /// replies.
    pub mismatched_replies: u64,
    /// Log events of the locker that were dropped.
    ///
    /// The program's `tracing` subscriber did not keep up.
    pub dropped_events: u64,
    /// Operations, releases and undos that wait for an answer.
    ///
    /// A release waits for each server that voted for the lock, also after its caller has returned.
    pub pending: usize,
    /// The undos among [`pending`](Self::pending).
    ///
    /// For a server that does not answer, these are at most the undos of commands that were in
    /// flight when it stopped answering, and undos that end with their lease.
    pub pending_undos: usize,
    /// Losses, by reason.
    pub losses: Losses,
    /// How long calls that may wait took, whatever their outcome.
    ///
    /// Each call counts once, however many locks it takes. These are all calls except `try_lock`,
    /// and calls that found their own owner inside.
    pub wait_time: Distribution,
    /// How long locks were held, from the send of the acquire to the end of the last guard.
    pub hold_time: Distribution,
    /// How much later than planned renewals began.
    ///
    /// The wait of a batch for other batches that are due at the same moment does not count, since
    /// those are spread on purpose.
    pub renewal_lateness: Distribution,
    /// How many locks each renewal script to one node carried.
    pub renewal_batches: Sizes,
    /// The holds, waiters, calls and losses of each kind.
    pub by_kind: Vec<KindStats>,
    /// Each server: of a cluster, each master.
    pub nodes: Vec<NodeState>,
    /// The node whose answers to renewals take the longest, by the p99.
    ///
    /// It is `None` before the first answer.
    pub slowest_node: Option<NodeTimes>,
}

/// The part of [`Stats`] that concerns one kind of lock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KindStats {
    /// The kind.
    pub kind: LockKind,
    /// As [`Stats::holds`].
    pub holds: usize,
    /// As [`Stats::waiters`].
    pub waiters: usize,
    /// As [`Stats::attempts`].
    pub attempts: Attempts,
    /// As [`Stats::losses`].
    pub losses: Losses,
}

/// How many holds and waiters there are of each kind.
pub(crate) type Census = [(usize, usize); LockKind::ALL.len()];

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
    /// Makes them of these counts, which are in the order of [`LOSSES`].
    const fn of(counts: [u64; LOSSES.len()]) -> Self {
        let [
            not_owner,
            renewal_failed,
            expired,
            max_hold,
            force_unlocked,
            closed,
        ] = counts;
        Self {
            not_owner,
            renewal_failed,
            expired,
            max_hold,
            force_unlocked,
            closed,
        }
    }

    /// Returns the number of all losses.
    pub const fn total(&self) -> u64 {
        self.not_owner
            + self.renewal_failed
            + self.expired
            + self.max_hold
            + self.force_unlocked
            + self.closed
    }
}

/// A distribution of times, to two significant digits; times over a day count as a day.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Distribution {
    /// How many times were recorded.
    pub count: u64,
    /// The median: half of them are at most this long.
    pub p50: Duration,
    /// The 99th percentile: 99 of 100 are at most this long.
    pub p99: Duration,
    /// The longest time.
    pub max: Duration,
}

/// A distribution of numbers, to two significant digits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sizes {
    /// How many numbers were recorded.
    pub count: u64,
    /// The median: half of them are at most this large.
    pub p50: u64,
    /// The 99th percentile: 99 of 100 are at most this large.
    pub p99: u64,
    /// The largest number.
    pub max: u64,
}

/// Whether a server is there.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeState {
    /// The address of the server, its password as `***`.
    pub node: Arc<str>,
    /// Whether it is connected and answers.
    ///
    /// A server that stops answering without closing its connections is noticed within two
    /// [`command_timeout`](crate::LockerBuilder::command_timeout)s, also while the locker is idle;
    /// one in memory when the locker next asks it.
    pub up: bool,
    /// For how long it has been up, or away.
    pub lasts: Duration,
    /// Whether its vote counts now.
    ///
    /// A server that is away has none, and one of several may [abstain](crate::guide::quorums).
    pub votes: bool,
}

/// How long a node takes to answer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeTimes {
    /// The address of the node, its password as `***`.
    pub node: Arc<str>,
    /// The time from the send of a script of renewals to its answer.
    pub round_trip: Distribution,
}

/// The counters behind [`Stats`].
#[derive(Debug)]
pub(crate) struct Counters {
    calls: CallCounts,
    suspicious_reentries: AtomicU64,
    renewals: AtomicU64,
    renewal_errors: AtomicU64,
    undone: AtomicU64,
    /// For each kind.
    losses: [[AtomicU64; LOSSES.len()]; LockKind::ALL.len()],
    hold_time: Times,
    renewal_lateness: Times,
    renewal_batches: Numbers,
    /// One for each node, in the order of the quorum.
    round_trips: Vec<(Arc<str>, Times)>,
    /// Why the last batch failed, for each node on which it failed.
    unrenewed: Mutex<BTreeMap<usize, NodeFailure>>,
}

impl Counters {
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Self::of_nodes(&[])
    }

    pub(crate) fn of_nodes(names: &[Arc<str>]) -> Self {
        register_counters();
        Self {
            calls: CallCounts::new(),
            suspicious_reentries: AtomicU64::new(0),
            renewals: AtomicU64::new(0),
            renewal_errors: AtomicU64::new(0),
            undone: AtomicU64::new(0),
            losses: Default::default(),
            hold_time: Times::new("lockhound_hold_seconds"),
            renewal_lateness: Times::new("lockhound_renewal_lateness_seconds"),
            renewal_batches: Numbers::new("lockhound_renewal_batch_locks", MOST_LOCKS),
            round_trips: names
                .iter()
                .map(|name| (Arc::clone(name), Times::of_node(name)))
                .collect(),
            unrenewed: Mutex::default(),
        }
    }

    /// Counts a call that has ended, and records how long it waited if it may wait.
    pub(crate) fn call_ended(
        &self,
        kind: LockKind,
        outcome: CallOutcome,
        waited: Option<Duration>,
        class: Option<&'static str>,
    ) {
        self.calls.ended(kind, outcome, waited, class);
    }

    pub(crate) fn suspicious_reentry(&self) {
        count(
            &self.suspicious_reentries,
            "lockhound_suspicious_reentries_total",
        );
    }

    /// Records how long a lock was held that was taken by a handle of this class.
    pub(crate) fn released_after(
        &self,
        kind: LockKind,
        time: Duration,
        class: Option<&'static str>,
    ) {
        self.hold_time.note(time);
        attempts::tell_hold(kind, time, class);
    }

    /// Counts the leases that a script renewed.
    pub(crate) fn renewed(&self, locks: usize) {
        count_many(&self.renewals, "lockhound_renewals_total", as_u64(locks));
    }

    /// Counts here only; [`tell_renewal_failed`](Self::tell_renewal_failed) tells the recorder
    /// afterwards.
    pub(crate) fn renewal_failed(&self) {
        self.renewal_errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Reports to the recorder a renewal that failed. It may block in the recorder.
    pub(crate) fn tell_renewal_failed(&self) {
        tell("lockhound_renewal_errors_total", 1);
    }

    /// Records how late this many renewals began.
    pub(crate) fn renewals_begun(&self, locks: usize, late: Duration) {
        self.renewal_lateness.record_many(late, locks);
    }

    pub(crate) fn batch_sent(&self, locks: usize) {
        // A double holds every number that a script can carry.
        self.renewal_batches.record(
            as_u64(locks),
            f64::from(u32::try_from(locks).unwrap_or(u32::MAX)),
            1,
        );
    }

    pub(crate) fn batch_answered(&self, node: usize, round_trip: Duration) {
        if let Some((_, times)) = self.round_trips.get(node) {
            times.record(round_trip);
        }
        self.unrenewed.lock().remove(&node);
    }

    /// Notes that this node did not renew a batch, or a part of it.
    pub(crate) fn batch_failed(&self, node: usize, name: &Arc<str>, reason: &str) {
        let failure = NodeFailure::new(name, reason);
        self.unrenewed.lock().insert(node, failure);
    }

    /// Returns why renewals fail: the last reason of each node that has one.
    pub(crate) fn why_unrenewed(&self) -> String {
        let reasons: Vec<String> = self
            .unrenewed
            .lock()
            .values()
            .map(ToString::to_string)
            .collect();
        if reasons.is_empty() {
            "no answer yet".to_owned()
        } else {
            reasons.join("; ")
        }
    }

    pub(crate) fn undone(&self) {
        count(&self.undone, "lockhound_undone_acquires_total");
    }

    /// Counts here only, since tokens wait for it; [`tell_lost`](Self::tell_lost) tells the
    /// recorder afterwards.
    pub(crate) fn lost(&self, kind: LockKind, loss: Loss) {
        if let Some(place) = place_of(loss) {
            self.losses[kind as usize][place].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reports to the recorder a loss. It may block in the recorder.
    pub(crate) fn tell_lost(&self, kind: LockKind, loss: Loss) {
        if let Some(place) = place_of(loss) {
            tell_losses(kind, LOSSES[place].1, 1);
        }
    }

    /// Returns the statistics, with these counts of other modules. The caller adds what the nodes
    /// know.
    pub(crate) fn stats(&self, census: &Census, pending: usize, pending_undos: usize) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let by_kind = LockKind::ALL.map(|kind| KindStats {
            kind,
            holds: census[kind as usize].0,
            waiters: census[kind as usize].1,
            attempts: self.calls.attempts_of(kind),
            losses: self.losses_of(kind),
        });
        Stats {
            holds: by_kind.iter().map(|of| of.holds).sum(),
            waiters: by_kind.iter().map(|of| of.waiters).sum(),
            attempts: self.calls.attempts(),
            suspicious_reentries: read(&self.suspicious_reentries),
            renewals: read(&self.renewals),
            renewal_errors: read(&self.renewal_errors),
            undone_acquires: read(&self.undone),
            latch_waiters: 0,
            mismatched_replies: 0,
            dropped_events: 0,
            pending,
            pending_undos,
            losses: self.losses(),
            wait_time: self.calls.wait_time(),
            hold_time: self.hold_time.distribution(),
            renewal_lateness: self.renewal_lateness.distribution(),
            renewal_batches: self.renewal_batches.sizes(),
            by_kind: by_kind.into(),
            nodes: Vec::new(),
            slowest_node: self.slowest_node(),
        }
    }

    /// Returns the losses of all kinds.
    pub(crate) fn losses(&self) -> Losses {
        let of = |at: usize| {
            self.losses
                .iter()
                .map(|of| of[at].load(Ordering::Relaxed))
                .sum()
        };
        Losses::of(std::array::from_fn(of))
    }

    fn losses_of(&self, kind: LockKind) -> Losses {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Losses::of(self.losses[kind as usize].each_ref().map(read))
    }

    fn slowest_node(&self) -> Option<NodeTimes> {
        let nodes = self
            .round_trips
            .iter()
            .map(|(node, times)| (node, times.distribution()));
        let slowest = nodes
            .filter(|(_, times)| times.count > 0)
            .max_by_key(|(_, times)| (times.p99, times.max));
        slowest.map(|(node, round_trip)| NodeTimes {
            node: Arc::clone(node),
            round_trip,
        })
    }
}

/// Counts the answers of a node that came to the wrong command.
#[derive(Debug, Default)]
pub(crate) struct MismatchedReplies(AtomicU64);

impl MismatchedReplies {
    pub(crate) fn count(&self) {
        count(&self.0, "lockhound_mismatched_replies_total");
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

fn count(counter: &AtomicU64, name: &'static str) {
    count_many(counter, name, 1);
}

fn count_many(counter: &AtomicU64, name: &'static str, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
    tell(name, n);
}

fn tell(_name: &'static str, _n: u64) {
    #[cfg(feature = "metrics")]
    contained(|| metrics::counter!(_name).increment(_n));
}

fn tell_losses(_kind: LockKind, _reason: &'static str, _n: u64) {
    #[cfg(feature = "metrics")]
    contained(|| {
        metrics::counter!("lockhound_losses_total", "kind" => _kind.name(), "reason" => _reason)
            .increment(_n);
    });
}

/// Reports to the recorder all counters before anything is counted: a rate over a series that
/// begins with its first event misses that event.
fn register_counters() {
    #[cfg(feature = "metrics")]
    descriptions::describe();
    COUNTERS.iter().for_each(|name| tell(name, 0));
    for kind in LockKind::ALL {
        LOSSES
            .iter()
            .for_each(|(_, reason)| tell_losses(kind, reason, 0));
    }
    attempts::register_counters();
}

/// All counters without labels.
const COUNTERS: [&str; 5] = [
    "lockhound_suspicious_reentries_total",
    "lockhound_renewals_total",
    "lockhound_renewal_errors_total",
    "lockhound_undone_acquires_total",
    "lockhound_mismatched_replies_total",
];

/// The losses that are counted, each with the recorder's name of it.
const LOSSES: [(Loss, &str); 6] = [
    (Loss::NotOwner, "not_owner"),
    (Loss::RenewalFailed, "renewal_failed"),
    (Loss::Expired, "expired"),
    (Loss::MaxHold, "max_hold"),
    (Loss::ForceUnlocked, "force_unlocked"),
    (Loss::Closed, "closed"),
];

/// Returns the place of a loss in [`LOSSES`]. A guard that says that it was released, or that its
/// process was forked, reports no loss.
fn place_of(loss: Loss) -> Option<usize> {
    LOSSES.iter().position(|(counted, _)| *counted == loss)
}

/// Times, in microseconds.
#[derive(Debug)]
struct Times(Numbers);

const DAY_US: u64 = 86_400_000_000;

/// Far more locks than a script carries.
const MOST_LOCKS: u64 = 10_000;

impl Times {
    fn new(name: &'static str) -> Self {
        Self(Numbers::new(name, DAY_US))
    }

    /// The times of renewals' round trips to this node.
    fn of_node(node: &Arc<str>) -> Self {
        let mut numbers = Numbers::new("lockhound_renewal_round_trip_seconds", DAY_US);
        numbers._node = Some(Arc::clone(node));
        Self(numbers)
    }

    fn record(&self, time: Duration) {
        self.record_many(time, 1);
    }

    fn record_many(&self, time: Duration, times: usize) {
        self.0.record(micros(time), time.as_secs_f64(), times);
    }

    /// Records a time here only.
    fn note(&self, time: Duration) {
        self.0.note(micros(time), 1);
    }

    fn distribution(&self) -> Distribution {
        let sizes = self.0.sizes();
        let time = Duration::from_micros;
        Distribution {
            count: sizes.count,
            p50: time(sizes.p50),
            p99: time(sizes.p99),
            max: time(sizes.max),
        }
    }
}

/// A histogram of whole numbers from one up.
struct Numbers {
    histogram: Option<Mutex<Histogram<u64>>>,
    _name: &'static str,
    /// The `node` label that the program's recorder gets.
    _node: Option<Arc<str>>,
}

impl fmt::Debug for Numbers {
    /// Leaves out the thousands of buckets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Numbers").field(&self._name).finish()
    }
}

impl Numbers {
    fn new(name: &'static str, most: u64) -> Self {
        // These bounds are valid, so there is always a histogram.
        Self {
            histogram: Histogram::new_with_bounds(1, most, 2).ok().map(Mutex::new),
            _name: name,
            _node: None,
        }
    }

    /// Counts a number this many times; the program's recorder gets `_told`, the number in the
    /// recorder's unit.
    fn record(&self, number: u64, _told: f64, times: usize) {
        if times == 0 {
            return;
        }
        self.note(number, times);
        #[cfg(feature = "metrics")]
        contained(|| match &self._node {
            Some(node) => metrics::histogram!(self._name, "node" => Arc::clone(node))
                .record_many(_told, times),
            None => metrics::histogram!(self._name).record_many(_told, times),
        });
    }

    /// Counts a number this many times here only.
    fn note(&self, number: u64, times: usize) {
        if let Some(histogram) = &self.histogram {
            histogram
                .lock()
                .saturating_record_n(number.max(1), as_u64(times));
        }
    }

    fn sizes(&self) -> Sizes {
        let Some(histogram) = &self.histogram else {
            return Sizes::default();
        };
        let histogram = histogram.lock();
        Sizes {
            count: histogram.len(),
            p50: histogram.value_at_quantile(0.5),
            p99: histogram.value_at_quantile(0.99),
            max: histogram.max(),
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(DAY_US)
}

fn as_u64(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_times_come_out_as_they_went_in() {
        let counters = Counters::new();
        counters.lost(LockKind::Lock, Loss::Expired);
        counters.lost(LockKind::Lock, Loss::Expired);
        counters.lost(LockKind::Lock, Loss::Closed);
        counters.lost(LockKind::Lock, Loss::Released);
        for ms in 1..=100 {
            counters.call_ended(
                LockKind::Lock,
                CallOutcome::TimedOut,
                Some(Duration::from_millis(ms)),
                None,
            );
        }
        counters.call_ended(LockKind::Lock, CallOutcome::Busy, None, Some("orders"));
        counters.released_after(LockKind::Lock, Duration::from_secs(100 * 86_400), None);
        counters.renewals_begun(0, Duration::from_secs(1));
        let mut census = Census::default();
        census[LockKind::Lock as usize] = (3, 2);
        let stats = counters.stats(&census, 1, 1);
        assert_eq!((stats.holds, stats.waiters, stats.pending), (3, 2, 1));
        assert_eq!(
            (
                stats.losses.expired,
                stats.losses.closed,
                stats.losses.total()
            ),
            (2, 1, 3)
        );
        let close = |time: Duration, ms: u64| {
            time.abs_diff(Duration::from_millis(ms)) < Duration::from_millis(2)
        };
        assert!(
            close(stats.wait_time.p50, 50) && close(stats.wait_time.p99, 99),
            "{stats:?}"
        );
        assert_eq!(stats.wait_time.count, 100);
        let of = |outcome| stats.attempts.of(outcome);
        assert_eq!(
            (
                of(CallOutcome::TimedOut),
                of(CallOutcome::Busy),
                stats.attempts.total()
            ),
            (100, 1, 101)
        );
        assert!(
            stats.hold_time.max >= Duration::from_secs(86_000),
            "{stats:?}"
        );
        assert_eq!(stats.renewal_lateness, Distribution::default());
    }

    #[test]
    fn the_slowest_node_is_named_and_batches_are_numbers() {
        let counters =
            Counters::of_nodes(&["redis://a".into(), "redis://b".into(), "redis://c".into()]);
        assert_eq!(counters.stats(&Default::default(), 0, 0).slowest_node, None);
        for (node, ms) in [(0, 3), (1, 90), (0, 5), (9, 1_000)] {
            counters.batch_answered(node, Duration::from_millis(ms));
        }
        [100, 100, 7]
            .iter()
            .for_each(|locks| counters.batch_sent(*locks));
        counters.renewals_begun(100, Duration::from_millis(2));
        counters.renewed(99);
        let stats = counters.stats(&Default::default(), 0, 0);
        let slowest = stats.slowest_node.expect("answers");
        assert_eq!((&*slowest.node, slowest.round_trip.count), ("redis://b", 1));
        let batches = stats.renewal_batches;
        assert_eq!(
            (batches.count, batches.p50, batches.p99, batches.max),
            (3, 100, 100, 100)
        );
        assert_eq!((stats.renewal_lateness.count, stats.renewals), (100, 99));
    }
}
