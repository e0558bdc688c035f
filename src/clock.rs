//! The one module that reads clocks.
//!
//! [`Instant`] continues while the machine sleeps (CLOCK_BOOTTIME on Linux), because a lease on the
//! server does too: a laptop or a virtual machine that wakes up after an hour must not believe in
//! locks that ran out meanwhile. std's `Instant` stands still during a suspend there. On other
//! systems this uses std's.
//!
//! With the feature `testing` a locker may run in a runtime of the program, and then uses that
//! runtime's clock.

#[cfg(feature = "testing")]
mod runtime;

use std::ops::Add;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::timeout;

use crate::sync::Mutex;

/// The clock of a locker. Code on its engine may call [`Instant::now`], which reads the same clock
/// there. Code on callers' threads asks this one: callers may be in a runtime with another clock,
/// or in none.
#[derive(Debug, Clone)]
pub(crate) struct Clock {
    /// `None` for the machine's clock.
    #[cfg(feature = "testing")]
    runtime: Option<runtime::RuntimeClock>,
}

impl Clock {
    /// Returns the clock of the machine.
    pub(crate) const fn machine() -> Self {
        Self {
            #[cfg(feature = "testing")]
            runtime: None,
        }
    }

    /// Returns the clock of a runtime, and makes that runtime a host of lockers.
    #[cfg(feature = "testing")]
    pub(crate) fn of(runtime: &tokio::runtime::Handle) -> Self {
        Self {
            runtime: Some(runtime::RuntimeClock::of(runtime)),
        }
    }

    /// Returns the clock that [`Instant::now`] reads here.
    #[cfg(feature = "testing")]
    pub(crate) fn here() -> Self {
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) if runtime::time_here().is_some() => Self::of(&runtime),
            _ => Self::machine(),
        }
    }

    /// Returns the time of this clock, on any thread.
    pub(crate) fn now(&self) -> Instant {
        #[cfg(feature = "testing")]
        if let Some(runtime) = &self.runtime {
            return Instant(runtime.time());
        }
        Instant(since_boot())
    }
}

/// A point in time on the local clock, which never jumps and never stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Instant(Duration);

impl Instant {
    /// Returns the time here: that of the current runtime if it is a host of lockers, otherwise the
    /// machine's.
    pub(crate) fn now() -> Self {
        #[cfg(feature = "testing")]
        if let Some(time) = runtime::time_here() {
            return Self(time);
        }
        Self(since_boot())
    }

    /// Returns how long ago `earlier` was, or zero if it is still to come.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns how long it is until `later`, or zero if it has passed.
    pub(crate) fn until(self, later: Self) -> Duration {
        later.since(self)
    }

    /// Returns this point moved back by `duration`.
    pub(crate) fn before(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(duration))
    }

    /// Returns the last point not after this one whose distance from the clock's origin is a
    /// multiple of `grid`.
    pub(crate) fn round_down(self, grid: Duration) -> Self {
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0 - Duration::from_nanos(nanos(self.0) % nanos(grid).max(1)))
    }

    /// Returns the first point not before this one whose distance from the clock's origin is a
    /// multiple of `grid`.
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

/// When something was last done that is done seldom.
#[derive(Debug, Default)]
pub(crate) struct Seldom(Mutex<Option<Instant>>);

impl Seldom {
    /// Returns whether it may be done now: it was not, for as long as `pause`.
    pub(crate) fn may(&self, pause: Duration) -> bool {
        let now = Instant::now();
        let mut last = self.0.lock();
        let may = last.is_none_or(|last| now.since(last) >= pause);
        if may {
            *last = Some(now);
        }
        may
    }
}

/// Awaits a future, but not beyond this time, if there is one.
pub(crate) async fn by<T>(until: Option<Instant>, future: impl Future<Output = T>) -> Option<T> {
    match until {
        None => Some(future.await),
        Some(until) => timeout(Instant::now().until(until), future).await.ok(),
    }
}

/// Returns the microseconds since 1970 on the wall clock, which may be wrong: only fences use it,
/// and the server bounds it. In a runtime that is a host of lockers it advances with that runtime's
/// time.
pub(crate) fn wall_micros() -> u64 {
    #[cfg(feature = "testing")]
    if let Some(since_epoch) = runtime::wall_here() {
        return micros(since_epoch);
    }
    micros(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default(),
    )
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Returns whether clock and timers are one here, so that the timers notice all time that passes.
pub(crate) fn is_of_timers() -> bool {
    #[cfg(feature = "testing")]
    return runtime::time_here().is_some();
    #[cfg(not(feature = "testing"))]
    false
}

/// Returns whether time is paused here: it advances only to the next timer, so no timer is ever
/// late.
pub(crate) fn is_paused() -> bool {
    #[cfg(feature = "testing")]
    return runtime::is_paused_here();
    #[cfg(not(feature = "testing"))]
    false
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
    // A day of head start, so that points before the first call can be expressed.
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
        assert_eq!(
            point.round_down(grid),
            Instant(Duration::from_millis(1_200))
        );
        assert_eq!(
            point.round_down(grid).round_down(grid),
            Instant(Duration::from_millis(1_200))
        );
        assert_eq!(point.round_up(grid), Instant(Duration::from_millis(1_500)));
        assert_eq!(
            point.round_up(grid).round_up(grid),
            Instant(Duration::from_millis(1_500))
        );
    }
}
