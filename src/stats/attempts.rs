//! How calls that lock end: one outcome for each call.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Distribution, Times};
#[cfg(feature = "metrics")]
use crate::foreign::contained;
use crate::kind::LockKind;

/// How a call that locks ended.
///
/// Such calls are `lock`, `try_lock`, `try_lock_for`, `run` and the others, also of several locks.
///
/// Its `Display` is the value of the metrics' label `outcome`, and of the field `outcome` of the
/// span `lockhound.wait`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CallOutcome {
    /// `granted`: it took the lock, or at least one of several that its owner did not have.
    Granted,
    /// `reentered`: its owner already held the lock, or all of several.
    Reentered,
    /// `busy`: it does not wait, and somebody else held the lock.
    Busy,
    /// `timed_out`: the time that it may wait was over, and somebody else still held the lock.
    TimedOut,
    /// `unavailable`: [`Error::Unavailable`](crate::Error::Unavailable).
    Unavailable,
    /// `refused`: any other error.
    ///
    /// A server refused, a name or an option is not valid, or the locker is closed.
    Refused,
    /// `cancelled`: its future was dropped before it ended.
    Cancelled,
    /// `lost`: its owner still had a guard of the lock that is lost.
    ///
    /// The call returned [`Error::Lost`](crate::Error::Lost).
    Lost,
}

/// All outcomes, each at the place of its count.
const OUTCOMES: [CallOutcome; 8] = [
    CallOutcome::Granted,
    CallOutcome::Reentered,
    CallOutcome::Busy,
    CallOutcome::TimedOut,
    CallOutcome::Unavailable,
    CallOutcome::Refused,
    CallOutcome::Cancelled,
    CallOutcome::Lost,
];

impl CallOutcome {
    const fn name(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Reentered => "reentered",
            Self::Busy => "busy",
            Self::TimedOut => "timed_out",
            Self::Unavailable => "unavailable",
            Self::Refused => "refused",
            Self::Cancelled => "cancelled",
            Self::Lost => "lost",
        }
    }
}

impl fmt::Display for CallOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How many calls ended in which way.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Attempts([u64; OUTCOMES.len()]);

impl Attempts {
    /// Returns the number of calls with this outcome.
    pub const fn of(&self, outcome: CallOutcome) -> u64 {
        self.0[outcome as usize]
    }

    /// Returns the number of all calls that have ended.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl fmt::Debug for Attempts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut attempts = f.debug_struct("Attempts");
        for outcome in OUTCOMES {
            attempts.field(outcome.name(), &self.of(outcome));
        }
        attempts.finish()
    }
}

/// The counts of calls, and how long they waited.
#[derive(Debug)]
pub(super) struct CallCounts {
    /// For each kind.
    ended: [[AtomicU64; OUTCOMES.len()]; LockKind::ALL.len()],
    waits: Times,
}

impl CallCounts {
    pub(super) fn new() -> Self {
        Self {
            ended: Default::default(),
            waits: Times::new("lockhound_wait_seconds"),
        }
    }

    pub(super) fn ended(
        &self,
        kind: LockKind,
        outcome: CallOutcome,
        waited: Option<Duration>,
        class: Option<&'static str>,
    ) {
        self.ended[kind as usize][outcome as usize].fetch_add(1, Ordering::Relaxed);
        tell(kind, outcome, class, 1);
        if let Some(waited) = waited {
            self.waits.note(waited);
            tell_wait(kind, outcome, class, waited);
        }
    }

    /// Returns the calls of all kinds.
    pub(super) fn attempts(&self) -> Attempts {
        let of = LockKind::ALL.map(|kind| self.attempts_of(kind));
        Attempts(std::array::from_fn(|at| {
            of.iter().map(|attempts| attempts.0[at]).sum()
        }))
    }

    pub(super) fn attempts_of(&self, kind: LockKind) -> Attempts {
        Attempts(
            self.ended[kind as usize]
                .each_ref()
                .map(|count| count.load(Ordering::Relaxed)),
        )
    }

    pub(super) fn wait_time(&self) -> Distribution {
        self.waits.distribution()
    }
}

/// Reports to the recorder all outcomes before the first call ends.
pub(super) fn register_counters() {
    for kind in LockKind::ALL {
        OUTCOMES
            .iter()
            .for_each(|outcome| tell(kind, *outcome, None, 0));
    }
}

fn tell(_kind: LockKind, _outcome: CallOutcome, _class: Option<&'static str>, _n: u64) {
    #[cfg(feature = "metrics")]
    contained(|| {
        let labels = labels(_kind, Some(_outcome), _class);
        metrics::counter!("lockhound_attempts_total", labels).increment(_n);
    });
}

fn tell_wait(
    _kind: LockKind,
    _outcome: CallOutcome,
    _class: Option<&'static str>,
    _waited: Duration,
) {
    #[cfg(feature = "metrics")]
    contained(|| {
        let labels = labels(_kind, Some(_outcome), _class);
        metrics::histogram!("lockhound_wait_seconds", labels).record(_waited);
    });
}

/// Tells the recorder how long a lock was held.
pub(super) fn tell_hold(_kind: LockKind, _time: Duration, _class: Option<&'static str>) {
    #[cfg(feature = "metrics")]
    contained(|| {
        metrics::histogram!("lockhound_hold_seconds", labels(_kind, None, _class)).record(_time);
    });
}

#[cfg(feature = "metrics")]
fn labels(
    kind: LockKind,
    outcome: Option<CallOutcome>,
    class: Option<&'static str>,
) -> Vec<metrics::Label> {
    let label = |name, value| metrics::Label::from_static_parts(name, value);
    let outcome = outcome.map(|outcome| label("outcome", outcome.name()));
    std::iter::once(label("kind", kind.name()))
        .chain(outcome)
        .chain(class.map(|class| label("class", class)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_has_its_place_and_its_name() {
        for (place, outcome) in OUTCOMES.into_iter().enumerate() {
            assert_eq!(outcome as usize, place, "{outcome}");
        }
        let names: std::collections::BTreeSet<_> = OUTCOMES.map(CallOutcome::name).into();
        assert_eq!(names.len(), OUTCOMES.len());
        let shown = format!("{:?}", Attempts([3, 0, 0, 0, 0, 0, 0, 9]));
        assert!(
            shown.starts_with("Attempts { granted: 3, reentered: 0,"),
            "{shown}"
        );
        assert!(shown.ends_with("lost: 9 }"), "{shown}");
    }
}
