//! The locks in whose waiting lists this locker may be, and the passes that take it off.
//!
//! # Invariants
//! - A key is here only if the locker asked to be put into its list, and no answer since has shown that it is off.
//!   Messages, which anybody can send, add none.
//! - At most one pass of a key is under way.

use std::collections::HashMap;

use crate::clock::Instant;
use crate::key::Key;

/// With fewer keys than this, expired ones are not removed.
const FEW: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Listed {
    keys: HashMap<Key, Standing>,
    /// How many keys were left after expired ones were last removed.
    left: usize,
}

/// A list in which the locker may be.
#[derive(Debug)]
struct Standing {
    /// The list expires then, unless other lockers keep it: then the locker that watches takes this one off.
    until: Instant,
    pass: Pass,
    /// Whether its driver waits: it has asked, and was not granted since.
    waits: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pass {
    None,
    UnderWay,
    /// A pass is under way, and the locker may have been put into the list again after it was sent.
    Overtaken,
    /// The same, and the locker has to be taken off once more.
    Another,
}

/// What follows a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterPass {
    Nothing,
    /// The locker has to be taken off once more.
    Another,
    /// The server may have executed the pass after it had put the locker into the list again: a driver that waits asks
    /// once more.
    Ask,
}

impl Listed {
    /// Records that the locker may be put into a list, which is kept until then.
    pub(crate) fn enter(&mut self, key: &Key, until: Instant, now: Instant) {
        if self.keys.len() >= FEW.max(self.left * 2) {
            self.keys.retain(|_, standing| standing.until > now);
            self.left = self.keys.len();
        }
        let standing = self.keys.entry(key.clone()).or_insert(Standing { until, pass: Pass::None, waits: false });
        standing.until = standing.until.max(until);
        if standing.pass != Pass::None {
            standing.pass = Pass::Overtaken;
        }
        standing.waits = true;
    }

    /// Records that a grant took the locker off.
    pub(crate) fn leave(&mut self, key: &Key) {
        match self.keys.get_mut(key) {
            Some(Standing { pass: Pass::None, .. }) => _ = self.keys.remove(key),
            Some(standing) => standing.pass = Pass::UnderWay,
            None => {}
        }
    }

    /// Records that a driver starts: what one before it waited for does not count.
    pub(crate) fn begin_wait(&mut self, key: &Key) {
        if let Some(standing) = self.keys.get_mut(key) {
            standing.waits = false;
        }
    }

    /// Returns whether the locker asked to be put into a list and has no grant since.
    pub(crate) fn waits(&self, key: &Key) -> bool {
        self.keys.get(key).is_some_and(|standing| standing.waits)
    }

    /// Called when nobody waits here for a lock in whose list the locker may be. Returns whether the caller has to pass
    /// the lock now.
    pub(crate) fn begin_pass(&mut self, key: &Key) -> bool {
        let Some(Standing { pass, .. }) = self.keys.get_mut(key) else { return false };
        let begins = *pass == Pass::None;
        *pass = match *pass {
            Pass::None | Pass::UnderWay => Pass::UnderWay,
            Pass::Overtaken | Pass::Another => Pass::Another,
        };
        begins
    }

    /// Records the end of a pass, after which the locker `is_off` the list or may still be in it. Returns what follows.
    pub(crate) fn end_pass(&mut self, key: &Key, is_off: bool) -> AfterPass {
        let Some(standing) = self.keys.get_mut(key) else { return AfterPass::Nothing };
        let pass = std::mem::replace(&mut standing.pass, Pass::None);
        match pass {
            Pass::Another => standing.pass = Pass::UnderWay,
            Pass::UnderWay if is_off => _ = self.keys.remove(key),
            _ => {}
        }
        match pass {
            Pass::Another => AfterPass::Another,
            Pass::Overtaken => AfterPass::Ask,
            _ => AfterPass::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    fn entered(key: &Key, now: Instant) -> Listed {
        let mut listed = Listed::default();
        listed.enter(key, now + LEASE, now);
        listed
    }

    #[test]
    fn a_locker_waits_from_when_it_asked_until_it_is_granted() {
        let (mut listed, key, now) = (Listed::default(), Key::from("k"), Instant::now());
        assert!(!listed.waits(&key));
        listed.enter(&key, now + LEASE, now);
        assert!(listed.waits(&key));
        listed.leave(&key);
        assert!(!listed.waits(&key));
        listed.enter(&key, now + LEASE, now);
        listed.begin_wait(&key);
        assert!(!listed.waits(&key), "the wait of a driver that ended by an error does not count");
    }

    #[test]
    fn a_locker_passes_only_locks_of_its_lists_and_one_at_a_time() {
        let (key, now) = (Key::from("k"), Instant::now());
        let mut listed = Listed::default();
        assert!(!listed.begin_pass(&key) && !listed.keys.contains_key(&key), "anybody may say so");
        listed.enter(&key, now + LEASE, now);
        assert!(listed.begin_pass(&key));
        assert!(!listed.begin_pass(&key), "one is under way");
        assert_eq!(listed.end_pass(&key, true), AfterPass::Nothing);
        assert!(!listed.keys.contains_key(&key) && !listed.begin_pass(&key), "it is off");
        listed.enter(&key, now + LEASE, now);
        listed.leave(&key);
        assert!(!listed.begin_pass(&key), "a grant took it off");
    }

    #[test]
    fn a_failed_pass_is_repeated_at_the_next_wake_up() {
        let (key, now) = (Key::from("k"), Instant::now());
        let mut listed = entered(&key, now);
        assert!(listed.begin_pass(&key));
        assert_eq!(listed.end_pass(&key, false), AfterPass::Nothing);
        assert!(listed.keys.contains_key(&key) && listed.begin_pass(&key));
    }

    /// The pass was sent before the locker was put into the list again.
    #[test]
    fn a_pass_that_was_overtaken_is_followed_by_another_once_nobody_waits() {
        let (key, now) = (Key::from("k"), Instant::now());
        for nobody_waits in [false, true] {
            let mut listed = entered(&key, now);
            assert!(listed.begin_pass(&key));
            listed.enter(&key, now + LEASE, now);
            assert!(!nobody_waits || !listed.begin_pass(&key));
            let follows = if nobody_waits { AfterPass::Another } else { AfterPass::Ask };
            assert_eq!(listed.end_pass(&key, true), follows);
            assert!(listed.keys.contains_key(&key));
            assert_eq!(listed.begin_pass(&key), !nobody_waits);
            assert_eq!(listed.end_pass(&key, true), AfterPass::Nothing);
            assert!(!listed.keys.contains_key(&key));
        }
        let mut listed = entered(&key, now);
        listed.begin_pass(&key);
        listed.enter(&key, now + LEASE, now);
        listed.leave(&key);
        assert_eq!(listed.end_pass(&key, true), AfterPass::Nothing);
        assert!(!listed.keys.contains_key(&key), "a grant took it off meanwhile");
    }

    /// Otherwise that pass would take a waiting locker off the list.
    #[test]
    fn a_pass_is_not_followed_by_another_once_a_caller_waits_again() {
        let (key, now) = (Key::from("k"), Instant::now());
        let mut listed = entered(&key, now);
        assert!(listed.begin_pass(&key));
        listed.enter(&key, now + LEASE, now);
        assert!(!listed.begin_pass(&key), "one is under way");
        listed.enter(&key, now + LEASE, now);
        assert_eq!(listed.end_pass(&key, true), AfterPass::Ask, "a caller has come");
        assert!(listed.keys.contains_key(&key) && listed.begin_pass(&key), "until it goes");
    }

    #[test]
    fn keys_whose_lists_are_gone_are_forgotten() {
        let (mut listed, mut now) = (Listed::default(), Instant::now());
        for n in 0..10_000 {
            now = now + LEASE / 100;
            listed.enter(&Key::from(format!("{n}")), now + LEASE, now);
            assert!(listed.keys.len() <= 201, "{}", listed.keys.len());
        }
        assert!(listed.keys.contains_key(&Key::from("9999")));
    }
}
