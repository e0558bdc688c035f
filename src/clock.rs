//! The one file that reads clocks.
//!
//! [`Instant`] goes on while the machine sleeps (CLOCK_BOOTTIME on Linux), because a lease on the server does too: a
//! laptop or a virtual machine that wakes up after an hour must not believe in locks that ran out meanwhile. std's
//! `Instant` stands still during a suspend there. Elsewhere std's is what there is.

use std::ops::Add;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A point in time on the local clock that never jumps and never stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Instant(Duration);

impl Instant {
    pub(crate) fn now() -> Self {
        Self(since_boot())
    }

    /// How long ago `earlier` was; zero if it is still to come.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// How long it is until `later`; zero if it has passed.
    pub(crate) fn until(self, later: Self) -> Duration {
        later.since(self)
    }

    /// The same point, moved back by `duration`.
    pub(crate) fn before(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(duration))
    }

    /// The last point not after this one whose distance from the clock's origin is a multiple of `grid`.
    pub(crate) fn round_down(self, grid: Duration) -> Self {
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0 - Duration::from_nanos(nanos(self.0) % nanos(grid).max(1)))
    }

    /// The first point not before this one whose distance from the clock's origin is a multiple of `grid`.
    pub(crate) fn round_up(self, grid: Duration) -> Self {
        let down = self.round_down(grid);
        if down == self { self } else { down + grid }
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }
}

/// Microseconds since 1970 on the wall clock, which may be wrong: only fences use it, and the server bounds it.
pub(crate) fn wall_micros() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(target_os = "linux")]
fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), nanos)
}

#[cfg(not(target_os = "linux"))]
fn since_boot() -> Duration {
    static ORIGIN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    // A day of head start, so that points before the first call can be named.
    ORIGIN.get_or_init(std::time::Instant::now).elapsed() + Duration::from_secs(86_400)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_forward_and_never_below_zero() {
        let earlier = Instant::now();
        let later = earlier + Duration::from_millis(5);
        assert_eq!(later.since(earlier), Duration::from_millis(5));
        assert_eq!(earlier.since(later), Duration::ZERO);
        assert_eq!(earlier.until(later), Duration::from_millis(5));
        assert!(Instant::now() >= earlier);
    }

    #[test]
    fn rounding_down_never_rounds_up() {
        let grid = Duration::from_millis(300);
        let point = Instant(Duration::from_millis(1_234));
        assert_eq!(point.round_down(grid), Instant(Duration::from_millis(1_200)));
        assert_eq!(point.round_down(grid).round_down(grid), Instant(Duration::from_millis(1_200)));
        assert_eq!(point.round_up(grid), Instant(Duration::from_millis(1_500)));
        assert_eq!(point.round_up(grid).round_up(grid), Instant(Duration::from_millis(1_500)));
    }
}
