//! The arithmetic of leases: pure functions over instants that the caller passes in.
//!
//! Validity counts from *before the send*: the server started the lease at some moment after that,
//! so the holder gives up before another caller can enter. The allowance for clocks that run at
//! different rates is that of the Redis documentation's page on distributed locks: one hundredth of
//! the lease plus two milliseconds.

use std::time::Duration;

use crate::clock::Instant;
use crate::options::LONGEST_LEASE;

/// How long before the end of validity tokens are fired, so that a timer that is a little late is
/// still in time.
pub(crate) const ARM_EARLY: Duration = Duration::from_millis(5);

/// Returns the allowance for a clock that runs faster or slower than the server's during a lease.
pub(crate) fn drift(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

/// Returns until when a lease that was requested at `sent` can be trusted.
pub(crate) fn valid_until(sent: Instant, lease: Duration) -> Instant {
    sent + lease.saturating_sub(drift(lease))
}

/// Returns the interval of renewals: with one attempt half of the lease, with two a third.
pub(crate) fn tick_interval(lease: Duration, renewal_attempts: u32) -> Duration {
    lease / (renewal_attempts + 1)
}

/// Returns how long a waiter relies on messages before it checks the lock itself.
pub(crate) fn recheck_interval(lease: Duration) -> Duration {
    lease / 6
}

/// Returns how long a server keeps the hint that a caller waits for a read-write lock: each refused
/// attempt renews it, one in a re-check at least.
pub(crate) fn hint_interval(lease: Duration) -> Duration {
    recheck_interval(lease) * 2
}

/// Returns the grid of renewals. They fall on its multiples, so that those due at about the same
/// time travel together. New holds wait at most this long for the watchdog, so it never hears of
/// short ones: hence the bounds.
pub(crate) fn grid(lease: Duration) -> Duration {
    (lease / 100).clamp(Duration::from_millis(5), Duration::from_secs(1))
}

/// Returns whether a lock with this much of its lease left cannot be waited out.
pub(crate) fn outlasts_every(left: Option<Duration>) -> bool {
    left.is_none_or(|left| left > LONGEST_LEASE)
}

/// The index of a node in the quorum.
pub(crate) type NodeIndex = usize;

/// Returns how many of these nodes make a majority.
pub(crate) const fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// Returns the instant until which at least `quorum` of the votes are valid, if there are that
/// many: the quorum-th largest. There are few votes, and every look at a hold calls this, so it
/// allocates and sorts nothing.
pub(crate) fn majority_until(votes: &[Option<Instant>], quorum: usize) -> Option<Instant> {
    let votes = || votes.iter().flatten();
    let valid = |until: &&Instant| votes().filter(|vote| vote >= until).count() >= quorum;
    votes().filter(valid).max().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    #[test]
    fn validity_ends_before_the_lease_can() {
        let sent = Instant::now();
        assert_eq!(
            valid_until(sent, LEASE).since(sent),
            Duration::from_millis(29_698)
        );
        assert!(valid_until(sent, Duration::from_millis(100)) < sent + Duration::from_millis(100));
    }

    #[test]
    fn two_failures_cut_the_lease_into_thirds() {
        assert_eq!(tick_interval(LEASE, 2), Duration::from_secs(10));
        assert_eq!(tick_interval(LEASE, 1), Duration::from_secs(15));
        assert_eq!(recheck_interval(LEASE), Duration::from_secs(5));
        assert_eq!(grid(LEASE), Duration::from_millis(300));
        assert_eq!(grid(Duration::from_millis(100)), Duration::from_millis(5));
    }

    #[test]
    fn a_majority_is_valid_until_its_weakest_member_is_not() {
        let now = Instant::now();
        let at = |ms| Some(now + Duration::from_millis(ms));
        assert_eq!(majority_until(&[at(1), at(3), at(2)], 2), at(2));
        assert_eq!(majority_until(&[at(7)], 1), at(7));
        assert_eq!(majority_until(&[at(2), at(2), at(1)], 2), at(2));
        assert_eq!(majority_until(&[at(7), None], 2), None);
    }
}
