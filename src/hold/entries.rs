//! Detects guards of a hold that look as if several branches of one task were inside at the same
//! time.
//!
//! Nested code drops its guards in the reverse order: a guard that is dropped while a newer one
//! stays is suspicious, and so is one that is dropped in another task while others stay. Guards of
//! owners that the program named are not checked.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Hold;
use crate::clock::Instant;
use crate::identity::{CallContext, Known, Origin};
use crate::owner::Owner;

/// Guards that are dropped within this time count as dropped together, like the fields of a struct:
/// their order means nothing.
const TOGETHER: Duration = Duration::from_millis(1);

/// The entrance of one caller, which its guard keeps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entrance {
    number: u32,
    origin: Origin,
}

impl Entrance {
    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }
}

/// The guards of a hold that was entered again.
#[derive(Debug, Default)]
pub(super) struct Entries {
    /// The numbers of the guards that live, except those of named owners.
    there: BTreeSet<u32>,
    /// A guard that was dropped while a newer one stayed, and when.
    early: Option<(u32, Instant)>,
}

impl Entries {
    fn leaves(&mut self, number: u32, elsewhere: bool, now: Instant) -> bool {
        self.there.remove(&number);
        let newest = self.there.last().copied();
        // The newer guard stayed for longer than a moment, so the two were not dropped together.
        let outlived = self
            .early
            .take_if(|(early, went)| number > *early && now.since(*went) > TOGETHER);
        // If the newer one was dropped in time, both were dropped together.
        self.early = self.early.filter(|(early, _)| newest > Some(*early));
        if newest > Some(number) {
            self.early.get_or_insert((number, now));
        }
        outlived.is_some() || (elsewhere && newest.is_some())
    }
}

impl Hold {
    /// Records that a caller takes its guard. Returns whether that is suspicious: the call was
    /// polled with a different waker than the one that took the hold, which happens in correct code
    /// too.
    pub(crate) fn entered(&self, origin: Origin) -> (Entrance, bool) {
        let mut state = self.state.lock();
        let number = state.entrances;
        state.entrances = number.wrapping_add(1);
        if !self.origin.context.is_left(origin.context) {
            state.at_home += 1;
        }
        // Most holds have one guard, and need no list of them.
        if number > 0 {
            let outermost = self.origin.known == Known::Calling;
            let entries = state.entries.get_or_insert_with(|| {
                // Until now there was only the outermost guard.
                Box::new(Entries {
                    there: outermost.then_some(0).into_iter().collect(),
                    early: None,
                })
            });
            if origin.known == Known::Calling {
                entries.there.insert(number);
            }
        }
        drop(state);
        let wakers = [origin.waker, self.origin.waker];
        let suspicious = number > 0
            && origin.known == Known::Calling
            && self.origin.known == Known::Calling
            && !wakers.contains(&0)
            && wakers[0] != wakers[1];
        (Entrance { number, origin }, suspicious)
    }

    /// Gives the whole hold to another owner.
    pub(crate) fn give_to(&self, owner: Owner) {
        let before = std::mem::replace(&mut self.state.lock().owner, owner);
        // This may drop a waker, which is foreign code.
        drop(before);
    }

    /// Gives the hold from one owner to another if all of its guards were taken at this place.
    pub(crate) fn pass_on(&self, from: &Owner, heir: &Owner, context: CallContext) {
        let mut state = self.state.lock();
        let settled = state.at_home == state.guards && !self.origin.context.is_left(context);
        if settled && state.owner == *from {
            // `from` is a clone of the owner that is replaced, so no waker is dropped under the
            // mutex.
            state.owner = heir.clone();
        }
    }

    /// Records that a caller's guard is dropped here and now, before the count is decremented.
    /// Returns whether that is suspicious.
    pub(crate) fn exits(&self, entrance: &Entrance, here: CallContext, now: Instant) -> bool {
        let Entrance { number, origin } = entrance;
        let mut state = self.state.lock();
        if !self.origin.context.is_left(origin.context) {
            state.at_home = state.at_home.saturating_sub(1);
        }
        let Some(entries) = &mut state.entries else {
            return false;
        };
        origin.known == Known::Calling && entries.leaves(*number, origin.context.is_left(here), now)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::hold::{Leave, Terms};

    const HERE: CallContext = CallContext::Task(1);
    const CALL: Origin = Origin {
        context: HERE,
        waker: 7,
        known: Known::Calling,
    };

    fn hold() -> (Hold, Entrance) {
        let terms = Terms {
            lease: Duration::from_secs(30),
            renewed: true,
            max_hold: None,
        };
        let mut hold = Hold::for_test(Owner::task(1), terms, &[0], 1);
        hold.origin = CALL;
        let (outermost, suspicious) = hold.entered(CALL);
        assert!(!suspicious);
        (hold, outermost)
    }

    fn later(now: Instant) -> Instant {
        now + TOGETHER + TOGETHER
    }

    #[test]
    fn nested_guards_go_in_the_reverse_order() {
        let (hold, outermost) = hold();
        assert!(
            hold.state.lock().entries.is_none(),
            "most holds are never entered again, and pay nothing"
        );
        let now = hold.since;
        let nested: Vec<_> = (0..1_000).map(|_| hold.entered(CALL)).collect();
        for (guard, suspicious) in nested.iter().rev() {
            assert!(!suspicious && !hold.exits(guard, HERE, now));
        }
        for _ in 0..10 {
            let (guard, _) = hold.entered(CALL);
            assert!(!hold.exits(&guard, HERE, later(now)));
        }
        assert!(
            !hold.exits(&outermost, CallContext::Task(2), later(now)),
            "moved, and alone"
        );
    }

    #[test]
    fn a_newer_guard_that_outlives_an_older_one_is_suspicious() {
        let (hold, outermost) = hold();
        let now = hold.since;
        let (second, _) = hold.entered(CALL);
        let (third, _) = hold.entered(CALL);
        assert!(
            !hold.exits(&outermost, HERE, now),
            "it is not known yet who stays"
        );
        assert!(hold.exits(&second, HERE, later(now)));
        assert!(!hold.exits(&third, HERE, later(now)), "told once");
    }

    #[test]
    fn guards_that_are_dropped_together_are_not_suspicious() {
        let (hold, outermost) = hold();
        let now = hold.since;
        let (second, _) = hold.entered(CALL);
        assert!(!hold.exits(&outermost, HERE, now) && !hold.exits(&second, HERE, now + TOGETHER));
        let (third, _) = hold.entered(CALL);
        assert!(
            !hold.exits(&third, HERE, later(now)),
            "what was before does not count"
        );
    }

    #[test]
    fn guards_that_are_dropped_at_different_times_are_not_together() {
        let (hold, outermost) = hold();
        let now = hold.since;
        let (second, _) = hold.entered(CALL);
        let (third, _) = hold.entered(CALL);
        assert!(!hold.exits(&outermost, HERE, now) && !hold.exits(&second, HERE, now + TOGETHER));
        assert!(
            hold.exits(&third, HERE, later(now)),
            "the first is long gone"
        );
    }

    #[test]
    fn a_guard_that_goes_elsewhere_while_others_stay_is_suspicious() {
        let (hold, outermost) = hold();
        let (second, _) = hold.entered(CALL);
        let (third, _) = hold.entered(CALL);
        assert!(hold.exits(&third, CallContext::Task(2), hold.since));
        assert!(
            hold.exits(&second, CallContext::Task(2), hold.since),
            "the outermost stays"
        );
        assert!(!hold.exits(&outermost, HERE, hold.since));
    }

    #[test]
    fn a_hold_is_passed_on_if_all_of_its_guards_were_taken_there() {
        let owner = Owner::task(1);
        let heir = Owner::task(9);
        let (hold, _) = hold();
        let elsewhere = CallContext::Task(2);
        hold.pass_on(&owner, &heir, elsewhere);
        hold.pass_on(&heir, &heir, HERE);
        assert!(
            hold.is_owned_by(&owner),
            "neither from elsewhere nor from another owner"
        );
        let there = Origin {
            context: elsewhere,
            ..CALL
        };
        let guards: Vec<_> = [CALL, CALL, there]
            .map(|origin| (hold.enter(hold.since), hold.entered(origin).0))
            .into();
        hold.pass_on(&owner, &heir, HERE);
        assert!(hold.is_owned_by(&owner), "a guard was taken elsewhere");
        for (_, guard) in guards.iter().rev() {
            hold.exits(guard, HERE, hold.since);
        }
        let hold = Arc::new(hold);
        assert_eq!(
            [(); 3].map(|()| hold.leave(hold.since)),
            [3, 2, 1].map(Leave::Nested)
        );
        hold.pass_on(&owner, &heir, HERE);
        assert!(hold.is_owned_by(&heir));
    }

    #[test]
    fn guards_of_a_named_owner_are_never_suspicious() {
        let (hold, outermost) = hold();
        let now = hold.since;
        let child = Origin {
            context: CallContext::Task(2),
            waker: 9,
            known: Known::Named,
        };
        let (named, suspicious) = hold.entered(child);
        assert!(!suspicious);
        assert!(!hold.exits(&outermost, HERE, now) && !hold.exits(&named, HERE, later(now)));
    }

    #[test]
    fn another_waker_is_counted() {
        let (hold, _) = hold();
        assert!(hold.entered(Origin { waker: 8, ..CALL }).1);
        assert!(
            !hold.entered(Origin { waker: 0, ..CALL }).1,
            "a thread that blocks has none"
        );
        let terms = Terms {
            lease: Duration::from_secs(30),
            renewed: true,
            max_hold: None,
        };
        let fresh = Hold {
            origin: CALL,
            ..Hold::for_test(Owner::task(1), terms, &[0], 1)
        };
        assert!(
            !fresh.entered(Origin { waker: 8, ..CALL }).1,
            "whoever takes it does not enter again"
        );
    }
}
