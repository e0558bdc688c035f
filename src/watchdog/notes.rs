//! What happened to holds, for the log and the recorder.
//!
//! An outage makes every lock of a locker fail to be renewed. A line for each of them would flood
//! the log: the first is told at once, and those of the next second share a line. Each of these has
//! its own at debug.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::foreign::log;
use crate::hold::Hold;
use crate::stats::Counters;

/// An event of a hold.
#[derive(Debug)]
pub(super) enum Note {
    Renewed,
    /// It was renewed after a jeopardy.
    SafeAgain,
    /// A tick failed, as the last of this many in a row.
    Failed(u32),
    /// The last tick that may fail failed: the hold is lost.
    FailedLast,
}

/// How long events of one kind are gathered that share a line of the log.
const GATHERED: Duration = Duration::from_secs(1);

/// What is not logged yet.
#[derive(Debug, Default)]
pub(super) struct Report {
    failed: Gathered,
    safe: Gathered,
}

/// Events of one kind.
#[derive(Debug, Default)]
struct Gathered {
    locks: usize,
    /// The first of them, and how many of its renewals failed in a row.
    first: Option<(Arc<Hold>, u32)>,
    /// When they are logged, or that there was none lately.
    due: Option<Instant>,
}

/// Events that are logged now: how many, and the first.
type Summary = (usize, Arc<Hold>, u32);

impl Report {
    /// Reports the notes of a step, which is over: a log or a recorder may block, and no hold
    /// should wait for that.
    pub(super) fn tell(
        &mut self,
        notes: &mut Vec<(Arc<Hold>, Note)>,
        counters: &Counters,
        now: Instant,
    ) {
        let mut failed = Vec::new();
        let mut safe = Vec::new();
        for (hold, note) in notes.drain(..) {
            let key = &hold.claim.key;
            let generation = hold.generation;
            if matches!(note, Note::Failed(_) | Note::FailedLast) {
                counters.tell_renewal_failed();
            }
            match note {
                Note::Renewed => {
                    log!(trace, key = %key.shown(), owner = %hold.owner(), generation, "renewed");
                }
                Note::Failed(0) => log!(
                    debug, key = %key.shown(), owner = %hold.owner(), generation,
                    "an early renewal failed"
                ),
                Note::Failed(times) => failed.push((hold, times)),
                Note::SafeAgain => safe.push((hold, 0)),
                // The loss has a log line of its own.
                Note::FailedLast => {}
            }
        }
        if self.failed.gathers(&failed) {
            for (hold, failed) in &failed {
                let key = &hold.claim.key;
                let owner = hold.owner();
                let generation = hold.generation;
                log!(debug, key = %key.shown(), %owner, generation, failed, "one of these is in jeopardy");
            }
        }
        if self.safe.gathers(&safe) {
            for (hold, _) in &safe {
                let key = &hold.claim.key;
                let owner = hold.owner();
                let generation = hold.generation;
                log!(debug, key = %key.shown(), %owner, generation, "one of these is safe");
            }
        }
        self.failed
            .add(failed, now)
            .iter()
            .for_each(|summary| tell_failed(summary, counters));
        self.safe.add(safe, now).iter().for_each(tell_safe);
    }

    /// Returns when there is something to log.
    pub(super) fn due(&self) -> Option<Instant> {
        [self.failed.due, self.safe.due].into_iter().flatten().min()
    }

    /// Logs what was gathered until now.
    pub(super) fn tell_due(&mut self, counters: &Counters, now: Instant) {
        self.failed
            .take_due(now)
            .iter()
            .for_each(|summary| tell_failed(summary, counters));
        self.safe.take_due(now).iter().for_each(tell_safe);
    }

    /// Logs the rest.
    pub(super) fn end(&mut self, counters: &Counters) {
        self.failed
            .take()
            .iter()
            .for_each(|summary| tell_failed(summary, counters));
        self.safe.take().iter().for_each(tell_safe);
    }
}

impl Gathered {
    /// Returns whether these do not have a line of their own.
    fn gathers(&self, more: &[(Arc<Hold>, u32)]) -> bool {
        self.due.is_some() || more.len() > 1
    }

    /// Adds some. Returns what is logged at once.
    fn add(&mut self, more: Vec<(Arc<Hold>, u32)>, now: Instant) -> Option<Summary> {
        if more.is_empty() {
            return None;
        }
        self.locks += more.len();
        self.first = self.first.take().or_else(|| more.into_iter().next());
        if self.due.is_some() {
            return None;
        }
        self.due = Some(now + GATHERED);
        self.take()
    }

    fn take_due(&mut self, now: Instant) -> Option<Summary> {
        if self.due.is_none_or(|due| now < due) {
            return None;
        }
        let summary = self.take();
        // After a second in which nothing happened, the next event is told at once again.
        self.due = summary.as_ref().map(|_| now + GATHERED);
        summary
    }

    fn take(&mut self) -> Option<Summary> {
        let (first, failed) = self.first.take()?;
        Some((std::mem::take(&mut self.locks), first, failed))
    }
}

fn tell_failed((locks, first, failed): &Summary, counters: &Counters) {
    let key = &first.claim.key;
    let reason = counters.why_unrenewed();
    let generation = first.generation;
    if *locks == 1 {
        log!(
            warn, key = %key.shown(), owner = %first.owner(), generation, failed, reason,
            "a renewal failed: the lock is in jeopardy"
        );
    } else {
        log!(warn, locks, key = %key.shown(), failed, reason, "renewals failed: these locks are in jeopardy");
    }
}

fn tell_safe((locks, first, _): &Summary) {
    let key = &first.claim.key;
    if *locks == 1 {
        let owner = first.owner();
        log!(info, key = %key.shown(), %owner, "renewed again: the lock is safe");
    } else {
        log!(info, locks, key = %key.shown(), "renewed again: these locks are safe");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hold::Terms;
    use crate::owner::Owner;

    #[test]
    fn the_first_is_told_at_once_and_those_after_it_once_a_second() {
        let terms = Terms {
            lease: Duration::from_secs(30),
            renewed: true,
            max_hold: None,
        };
        let some = |many: u64| {
            (1..=many)
                .map(|n| (Arc::new(Hold::for_test(Owner::task(n), terms, &[0], 1)), 1))
                .collect()
        };
        let mut gathered = Gathered::default();
        let now = Instant::now();
        let locks = |summary: Option<Summary>| summary.map(|(locks, ..)| locks);
        assert!(gathered.add(Vec::new(), now).is_none() && gathered.due.is_none());
        assert_eq!(locks(gathered.add(some(2), now)), Some(2));
        assert_eq!(locks(gathered.add(some(3), now)), None);
        assert_eq!(locks(gathered.add(some(1), now)), None);
        assert_eq!(locks(gathered.take_due(now)), None);
        assert_eq!(locks(gathered.take_due(now + GATHERED)), Some(4));
        assert_eq!(
            locks(gathered.take_due(now + GATHERED)),
            None,
            "it keeps gathering"
        );
        assert_eq!(locks(gathered.take_due(now + GATHERED * 2)), None);
        assert_eq!(gathered.due, None, "it is calm");
        assert_eq!(locks(gathered.add(some(1), now + GATHERED * 3)), Some(1));
    }
}
