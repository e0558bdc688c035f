//! How long a lock stays on the servers after its release: `min_hold`.
//!
//! The time is set when a caller is handed its guard; a lock without a guard is given back
//! immediately. Each release that is sent before it is over, also by an undo, becomes a `keep.lua`:
//! it sets the rest as the lease, and replaces the field by one that no command names. A renewal
//! that is still in flight, with a lease that may be shorter, finds nothing, and neither does a
//! second copy.
//!
//! No message is sent, since the lock is not free. Callers that ask from then on, here too, get the
//! rest as the holder's lease. Waiters that asked before ask again at the end of the lease that
//! they know of, or after a sixth of their own.

use std::time::Duration;

use super::Hold;
use crate::clock::Instant;

impl Hold {
    /// Keeps the lock on the servers until this time, even if it is released sooner. Of several
    /// times the latest counts.
    pub(crate) fn keep_until(&self, until: Instant) {
        let mut state = self.state.lock();
        state.kept_until = state.kept_until.max(Some(until));
    }

    /// Returns until when the lock stays there, if a `min_hold` was set.
    pub(crate) fn kept_until(&self) -> Option<Instant> {
        self.state.lock().kept_until
    }
}

/// Returns what is left of that time, in whole milliseconds, as the servers count, or `None` if the
/// lock can be deleted.
pub(crate) fn rest(kept_until: Option<Instant>, now: Instant) -> Option<Duration> {
    let rest = now.until(kept_until?);
    // Rounded up: the lock must not be free before its time.
    let millis = u64::try_from(rest.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
    (millis > 0).then(|| Duration::from_millis(millis))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hold::Terms;
    use crate::owner::Owner;

    #[test]
    fn the_latest_of_several_times_counts() {
        let terms = Terms {
            lease: Duration::from_secs(30),
            renewed: true,
            max_hold: None,
        };
        let hold = Hold::for_test(Owner::task(1), terms, &[0], 1);
        let now = hold.since;
        let second = Duration::from_secs(1);
        assert_eq!(hold.kept_until(), None);
        for (asked, counts) in [(2, 2), (1, 2), (3, 3)] {
            hold.keep_until(now + second * asked);
            assert_eq!(hold.kept_until(), Some(now + second * counts));
        }
    }

    #[test]
    fn a_rest_is_rounded_up_since_a_lease_of_zero_deletes_the_lock() {
        let now = Instant::now();
        let ms = Duration::from_millis(1);
        let after = |duration| rest(Some(now + duration), now);
        assert_eq!(after(Duration::from_nanos(1)), Some(ms));
        assert_eq!(
            (after(ms), after(ms + Duration::from_micros(1))),
            (Some(ms), Some(ms * 2))
        );
        assert_eq!(
            (
                after(Duration::ZERO),
                rest(Some(now), now + ms),
                rest(None, now)
            ),
            (None, None, None)
        );
    }
}
