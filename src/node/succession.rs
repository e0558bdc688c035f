//! Remembers which master the Sentinels name, and which masters they have deposed.
//!
//! A connection to a stopped master may have been started before the Sentinels named its successor: the machine accepts
//! it, and the server answers once it goes on. A connection that is not there yet cannot be given up, and that server
//! believes that it is the master until the Sentinels turn it into a replica, which takes up to ten seconds. So deposed
//! masters are remembered.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::place::Place;
use crate::clock::Instant;

/// How long a server counts as deposed, and older answers of a Sentinel are ignored: longer than a connect takes, and
/// longer than a Sentinel needs to learn of a failover. After that, the Sentinels may have been set up again and count
/// from zero.
const REMEMBERED: Duration = Duration::from_secs(120);

/// What the Sentinels said about one master.
#[derive(Debug, Default)]
pub(super) struct Succession(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The master, the number of the failover that made it one, and when a Sentinel last said so.
    named: Option<(Place, u64, Instant)>,
    deposed: HashMap<Place, Instant>,
}

impl Succession {
    /// Takes in the master that a Sentinel names, and the number of the last failover that it knows of. Returns whether
    /// that counts: it does not if another Sentinel knows of a later failover. Without a number it counts, and deposes
    /// nobody.
    pub(super) fn told(&self, master: &Place, failover: Option<u64>, now: Instant) -> bool {
        let Some(failover) = failover else { return true };
        let mut state = self.state();
        let State { named, deposed } = &mut *state;
        if let Some((before, last, at)) = named {
            if failover < *last && now.since(*at) < REMEMBERED {
                return false;
            }
            // Within one failover the same server may have two names.
            if failover > *last && before != master {
                deposed.insert(before.clone(), now);
            }
        }
        deposed.remove(master);
        *named = Some((master.clone(), failover, now));
        true
    }

    /// Returns whether another server has taken the place of this one.
    pub(super) fn is_deposed(&self, place: &Place, now: Instant) -> bool {
        self.state().deposed.get(place).is_some_and(|since| now.since(*since) < REMEMBERED)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(port: u16) -> Place {
        Place { host: "h".into(), port }
    }

    #[test]
    fn a_master_with_a_successor_is_deposed_until_it_is_named_again() {
        let (succession, now) = (Succession::default(), Instant::now());
        let deposed = || [1, 2].map(|port| succession.is_deposed(&place(port), now));
        assert!(succession.told(&place(1), Some(7), now));
        assert_eq!(deposed(), [false, false]);
        assert!(succession.told(&place(2), Some(8), now));
        assert_eq!(deposed(), [true, false]);
        assert!(succession.told(&place(1), Some(9), now));
        assert_eq!(deposed(), [false, true]);
    }

    #[test]
    fn a_sentinel_that_lags_behind_deposes_nobody() {
        let (succession, now) = (Succession::default(), Instant::now());
        assert!(succession.told(&place(2), Some(8), now));
        assert!(!succession.told(&place(1), Some(7), now));
        assert!(!succession.is_deposed(&place(2), now) && !succession.is_deposed(&place(1), now));
        // It may be the same server, under another name.
        assert!(succession.told(&place(1), Some(8), now));
        assert!(!succession.is_deposed(&place(2), now));
    }

    #[test]
    fn a_sentinel_that_tells_no_number_is_believed_and_deposes_nobody() {
        let (succession, now) = (Succession::default(), Instant::now());
        assert!(succession.told(&place(1), Some(7), now) && succession.told(&place(2), None, now));
        assert!(!succession.is_deposed(&place(1), now));
        assert!(succession.told(&place(2), Some(8), now) && succession.told(&place(1), None, now));
        assert!(succession.is_deposed(&place(1), now));
    }

    #[test]
    fn sentinels_that_were_set_up_again_are_believed_in_the_end() {
        let (succession, now) = (Succession::default(), Instant::now());
        assert!(succession.told(&place(1), Some(8), now) && succession.told(&place(2), Some(9), now));
        let later = now + REMEMBERED;
        assert!(!succession.is_deposed(&place(1), later), "it is not remembered forever");
        assert!(succession.told(&place(1), Some(0), later));
        assert!(!succession.is_deposed(&place(2), later), "nobody knows which of them is newer");
    }
}
