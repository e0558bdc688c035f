//! Paces callers that try again after each refusal of a server.
//!
//! A refusal comes within a round trip. Without a pause, a program that tries again after each
//! error would ask a server that is out of memory as fast as it can answer.

use std::time::Duration;

use crate::clock::Instant;
use crate::sync::Mutex;

/// After this time without a refusal, the next one is told at once again.
const FORGOTTEN: Duration = Duration::from_secs(1);

/// When a call of this locker was last notified of a refusal.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<Option<Instant>>);

impl Refusals {
    /// Notes that a call is notified of a refusal after this pause if it is not the first. Returns
    /// its pause.
    pub(super) fn next(&self, pause: Duration, now: Instant) -> Duration {
        let mut last = self.0.lock();
        let pause = if last.is_some_and(|last| now.since(last) < FORGOTTEN) {
            pause
        } else {
            Duration::ZERO
        };
        *last = Some(now + pause);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_refusal_is_told_at_once() {
        let refusals = Refusals::default();
        let pause = Duration::from_millis(100);
        let now = Instant::now();
        assert_eq!(refusals.next(pause, now), Duration::ZERO);
        assert_eq!(refusals.next(pause, now), pause);
        assert_eq!(refusals.next(pause, now + pause + FORGOTTEN / 2), pause);
        assert_eq!(
            refusals.next(pause, now + 2 * pause + 2 * FORGOTTEN),
            Duration::ZERO,
            "long after the last one"
        );
    }
}
