//! Whether this locker may be in the waiting list of a lock, and the passes that take it off.
//!
//! The server may execute a pass after the next acquire of the same locker, which would then wait
//! and be in no list. So a line that asked while a pass was in flight asks once more after it.
//!
//! # Invariants
//! - It may be there only if it asked to be put in, and no answer since has shown that it is off.
//!   Messages, which any client can send, do not count.
//! - At most one pass is in flight.

use crate::clock::Instant;

/// What a line knows of its locker's place in the list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Waitlisted(Option<Box<Membership>>);

/// A list in which the locker may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Membership {
    /// The list expires then, unless other lockers keep it: then the locker that watches takes this
    /// one off.
    until: Instant,
    pass: Pass,
    /// Whether its callers wait: it has asked, and was not granted since.
    waits: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Pass {
    None,
    UnderWay,
    /// A pass is in flight, and the locker may have been put into the list again after it was sent.
    Overtaken,
    /// The same, and the locker has to be taken off once more.
    Another,
}

/// What follows a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterPass {
    Nothing,
    /// The locker has to be taken off once more.
    Another,
    /// The server may have executed the pass after it had put the locker into the list again: a
    /// line that waits asks once more.
    Ask,
}

impl Waitlisted {
    /// Records that the locker may be put into a list, which is kept until then.
    pub(super) fn enter(&mut self, until: Instant) {
        let standing = self.0.get_or_insert_with(|| {
            Box::new(Membership {
                until,
                pass: Pass::None,
                waits: true,
            })
        });
        standing.until = standing.until.max(until);
        // The server may execute that pass after what puts the locker in.
        if standing.pass != Pass::None {
            standing.pass = Pass::Overtaken;
        }
        standing.waits = true;
    }

    /// Records that a grant took the locker off.
    pub(super) fn leave(&mut self) {
        match self.0.as_deref_mut() {
            Some(Membership {
                pass: Pass::None, ..
            }) => self.0 = None,
            // The grant took it off: there is nothing left that this pass could overtake.
            Some(standing) => standing.pass = Pass::UnderWay,
            None => {}
        }
    }

    /// Records that a line begins to listen: what it waited for before does not count.
    pub(super) fn begin_wait(&mut self) {
        if let Some(standing) = &mut self.0 {
            standing.waits = false;
        }
    }

    /// Returns whether the locker asked to be put into the list and has no grant since.
    pub(super) fn waits(&self) -> bool {
        self.0.as_ref().is_some_and(|standing| standing.waits)
    }

    /// Called when no caller waits here for a lock in whose list the locker may be. Returns whether
    /// it has to be taken off now.
    pub(super) fn begin_pass(&mut self) -> bool {
        let Some(Membership { pass, .. }) = self.0.as_deref_mut() else {
            return false;
        };
        let begins = *pass == Pass::None;
        *pass = match *pass {
            Pass::None | Pass::UnderWay => Pass::UnderWay,
            Pass::Overtaken | Pass::Another => Pass::Another,
        };
        begins
    }

    /// Records the end of a pass, after which the locker `is_off` the list or may still be in it.
    /// Returns what follows.
    pub(super) fn end_pass(&mut self, is_off: bool) -> AfterPass {
        let Some(standing) = &mut self.0 else {
            return AfterPass::Nothing;
        };
        let pass = std::mem::replace(&mut standing.pass, Pass::None);
        match pass {
            Pass::Another => standing.pass = Pass::UnderWay,
            Pass::UnderWay if is_off => self.0 = None,
            _ => {}
        }
        match pass {
            Pass::Another => AfterPass::Another,
            Pass::Overtaken => AfterPass::Ask,
            _ => AfterPass::Nothing,
        }
    }

    /// Returns whether a pass is in flight.
    pub(super) fn passes(&self) -> bool {
        self.0
            .as_ref()
            .is_some_and(|standing| standing.pass != Pass::None)
    }

    /// Returns each point in time that it remembers.
    #[cfg(test)]
    pub(super) fn times(&mut self) -> impl Iterator<Item = &mut Instant> {
        self.0.iter_mut().map(|standing| &mut standing.until)
    }

    /// Forgets a list that has expired. Returns until when the locker may be there.
    pub(super) fn forget(&mut self, now: Instant) -> Option<Instant> {
        self.0.take_if(|standing| standing.until <= now);
        self.0.as_ref().map(|standing| standing.until)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    fn entered() -> Waitlisted {
        let mut listed = Waitlisted::default();
        listed.enter(Instant::now() + LEASE);
        listed
    }

    #[test]
    fn a_locker_waits_from_when_it_asked_until_it_is_granted() {
        let mut listed = Waitlisted::default();
        let until = Instant::now() + LEASE;
        assert!(!listed.waits());
        listed.enter(until);
        assert!(listed.waits());
        listed.leave();
        assert!(!listed.waits());
        listed.enter(until);
        listed.begin_wait();
        assert!(
            !listed.waits(),
            "the wait of a line that ended by an error does not count"
        );
    }

    #[test]
    fn a_locker_passes_only_locks_of_its_lists_and_one_at_a_time() {
        let mut listed = Waitlisted::default();
        assert!(
            !listed.begin_pass() && listed == Waitlisted::default(),
            "any client may say so"
        );
        listed.enter(Instant::now() + LEASE);
        assert!(listed.begin_pass());
        assert!(!listed.begin_pass(), "one is in flight");
        assert_eq!(listed.end_pass(true), AfterPass::Nothing);
        assert!(
            listed == Waitlisted::default() && !listed.begin_pass(),
            "it is off"
        );
        listed.enter(Instant::now() + LEASE);
        listed.leave();
        assert!(!listed.begin_pass(), "a grant took it off");
    }

    #[test]
    fn a_failed_pass_is_repeated_at_the_next_wake_up() {
        let mut listed = entered();
        assert!(listed.begin_pass());
        assert_eq!(listed.end_pass(false), AfterPass::Nothing);
        assert!(listed.begin_pass());
    }

    /// The pass was sent before the locker was put into the list again.
    #[test]
    fn an_overtaken_pass_is_followed_by_another_once_none_waits() {
        for nobody_waits in [false, true] {
            let mut listed = entered();
            assert!(listed.begin_pass());
            listed.enter(Instant::now() + LEASE);
            assert!(!nobody_waits || !listed.begin_pass());
            let follows = if nobody_waits {
                AfterPass::Another
            } else {
                AfterPass::Ask
            };
            assert_eq!(listed.end_pass(true), follows);
            assert_ne!(listed, Waitlisted::default());
            assert_eq!(listed.begin_pass(), !nobody_waits);
            assert_eq!(listed.end_pass(true), AfterPass::Nothing);
            assert_eq!(listed, Waitlisted::default());
        }
        let mut listed = entered();
        listed.begin_pass();
        listed.enter(Instant::now() + LEASE);
        listed.leave();
        assert_eq!(listed.end_pass(true), AfterPass::Nothing);
        assert_eq!(
            listed,
            Waitlisted::default(),
            "a grant took it off meanwhile"
        );
    }

    /// Otherwise that pass would take a waiting locker off the list.
    #[test]
    fn a_pass_is_not_followed_by_another_once_a_caller_waits_again() {
        let mut listed = entered();
        assert!(listed.begin_pass());
        listed.enter(Instant::now() + LEASE);
        assert!(!listed.begin_pass(), "one is in flight");
        listed.enter(Instant::now() + LEASE);
        assert_eq!(listed.end_pass(true), AfterPass::Ask, "a caller has come");
        assert!(listed.begin_pass(), "until it goes");
    }

    #[test]
    fn a_list_that_is_gone_is_forgotten() {
        let mut listed = Waitlisted::default();
        let now = Instant::now();
        listed.enter(now + LEASE);
        assert_eq!(listed.forget(now), Some(now + LEASE));
        assert_eq!(
            (listed.forget(now + LEASE), listed),
            (None, Waitlisted::default())
        );
    }
}
