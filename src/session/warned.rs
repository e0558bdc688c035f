//! Which warnings were given a moment ago.

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::Instant;
use crate::key::Key;
use crate::sync::Mutex;

/// The shortest time between two warnings about a key.
const AGAIN: Duration = Duration::from_secs(60);

/// From this many keys on, those whose time is over are forgotten.
const MANY: usize = 1_000;

/// The warnings of the last minute.
#[derive(Debug, Default)]
pub(super) struct Warned(Mutex<HashMap<(Key, Warning), Instant>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Warning {
    Beside,
    Itself,
    Cut,
    Unproclaimed,
    Capacity,
}

impl Warned {
    /// Returns whether to warn of this now. If so, it counts as done.
    pub(super) fn is_due(&self, key: &Key, warning: Warning, now: Instant) -> bool {
        let mut warned = self.0.lock();
        if warned
            .get(&(key.clone(), warning))
            .is_some_and(|last| now.since(*last) < AGAIN)
        {
            return false;
        }
        if warned.len() >= MANY {
            warned.retain(|_, last| now.since(*last) < AGAIN);
        }
        // A program with more such keys gets warnings about some of them.
        let room = warned.len() < MANY;
        if room {
            warned.insert((key.clone(), warning), now);
        }
        room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_comes_at_most_once_a_minute_per_key() {
        let warned = Warned::default();
        let now = Instant::now();
        let key = Key::from("k");
        let other = Key::from("o");
        assert!(warned.is_due(&key, Warning::Beside, now));
        assert!(!warned.is_due(&key, Warning::Beside, now + AGAIN / 2));
        assert!(
            warned.is_due(&key, Warning::Itself, now)
                && warned.is_due(&other, Warning::Beside, now)
        );
        assert!(warned.is_due(&key, Warning::Beside, now + AGAIN));
        let told = (0..10_000)
            .filter(|n| warned.is_due(&n.to_string().into(), Warning::Beside, now + AGAIN))
            .count();
        assert!(told < MANY, "{told}");
        assert_eq!(warned.0.lock().len(), MANY);
        assert!(warned.is_due(&"new".into(), Warning::Beside, now + AGAIN * 2));
        assert_eq!(warned.0.lock().len(), 1, "the time of all others is over");
    }
}
