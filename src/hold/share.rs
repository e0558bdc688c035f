//! One field on the server under which several readers of this locker have the lock, each with a
//! hold of its own.
//!
//! The first of them has acquired it. For a moment after that, others come in without asking the
//! server, as long as one of them is inside; the last one to leave releases the field.
//!
//! # Invariants
//! - A field that no caller is inside by any more is about to be released: no caller joins it.
//! - Each hold leaves once, and exactly one of them is the last.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::{Hold, HoldPhase, State};
use crate::clock::Instant;
use crate::hold::Terms;
use crate::identity::Origin;
use crate::lease;
use crate::owner::Owner;
use crate::sync::{Arc, Mutex};

/// For how long after its grant a field is open to other readers. A writer elsewhere waits for that
/// long in addition to their sections, and a process asks the server that often at most.
const OPEN: Duration = Duration::from_millis(10);

/// A field, and the holds on it.
#[derive(Debug)]
pub(super) struct Share {
    /// That of the acquire which took the field.
    generation: u64,
    /// The time before that was sent.
    sent: Instant,
    open_until: Instant,
    holds: AtomicUsize,
}

impl Share {
    /// Makes the share of a field that was asked for and granted at these times.
    pub(super) fn new(generation: u64, sent: Instant, granted: Instant) -> Arc<Self> {
        Arc::new(Self {
            generation,
            sent,
            open_until: granted + OPEN,
            holds: AtomicUsize::new(1),
        })
    }

    /// Adds a hold, unless no caller is inside any more.
    fn join(&self) -> bool {
        let add = |holds| (holds > 0).then_some(holds + 1);
        self.holds
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, add)
            .is_ok()
    }

    /// Removes a hold. Returns whether it was the last one.
    fn leave(&self) -> bool {
        self.holds.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

impl Hold {
    /// Returns the generation of the acquire that took its field.
    pub(crate) fn acquired_by(&self) -> u64 {
        let share = self.share.as_ref();
        share.map_or(self.generation, |share| share.generation)
    }

    /// Returns the time before that acquire was sent: its lease, and so the first renewal, counts
    /// from there.
    pub(crate) fn asked_at(&self) -> Instant {
        self.share.as_ref().map_or(self.since, |share| share.sent)
    }

    /// Returns whether a reader with these terms may have the lock under the same field. After a
    /// failed renewal, and while another client cuts the lease, it has to ask the server.
    pub(crate) fn is_open(&self, terms: Terms, now: Instant) -> bool {
        let Some(share) = &self.share else {
            return false;
        };
        now < share.open_until
            && terms == self.terms
            && share.holds.load(Ordering::Acquire) > 0
            && self.is_sound(&self.state.lock(), now)
    }

    fn is_sound(&self, state: &State, now: Instant) -> bool {
        state.phase == HoldPhase::Held
            && state.failed_ticks == 0
            && state.cut_ms.is_none()
            && now < self.ends(state).0
    }

    /// Makes the hold of another reader under the same field, which is valid for as long as this
    /// one is known to be. Returns `None` if it is not open any more.
    pub(crate) fn beside(
        &self,
        owner: Owner,
        origin: Origin,
        generation: u64,
        now: Instant,
    ) -> Option<Self> {
        let share = self.share.as_ref()?;
        let state = self.state.lock();
        let joins = now < share.open_until && self.is_sound(&state, now) && share.join();
        if !joins {
            return None;
        }
        let until = self.ends(&state).0;
        let patience = lease::recheck_interval(self.terms.lease);
        Some(Self {
            claim: self.claim.clone(),
            generation,
            fence: self.fence,
            terms: self.terms,
            origin,
            since: now,
            revoke_at: now + patience.min(now.until(until) / 2),
            share: Some(Arc::clone(share)),
            reporter: Arc::clone(&self.reporter),
            state: Mutex::new(State::new(owner, state.votes.clone(), self.terms.lease)),
        })
    }

    /// Called once no caller is inside by this hold any more. Returns whether no caller is by
    /// another one either: then its field has to be released.
    pub(crate) fn leave_field(&self) -> bool {
        let Some(share) = &self.share else {
            return true;
        };
        std::mem::replace(&mut self.state.lock().stands, false) && share.leave()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hold::{Grant, LossReporter};
    use crate::kind::READ;

    const TERMS: Terms = Terms {
        lease: Duration::from_secs(30),
        renewed: true,
        max_hold: None,
    };

    /// Makes a read hold that was granted now, beside which others may come in.
    fn open(now: Instant) -> Arc<Hold> {
        let counters = Arc::new(crate::stats::Counters::new());
        let reporter = LossReporter::new(counters, crate::clock::Clock::machine()).0;
        let plain = Hold::for_test(Owner::task(1), TERMS, &[0], 1);
        let mut claim = plain.claim.clone();
        claim.kind = &READ;
        let grant = Grant {
            claim,
            owner: Owner::task(1),
            origin: plain.origin,
            generation: 7,
            fence: plain.fence,
            terms: TERMS,
            since: now,
            granted: now,
            patience: Duration::from_secs(5),
            votes: &[0],
            nodes: 1,
            opens: true,
        };
        Arc::new(Hold::new(grant, reporter))
    }

    fn joins(hold: &Hold, now: Instant) -> Option<Arc<Hold>> {
        let joined = hold.beside(Owner::new(), hold.origin, 8, now);
        assert_eq!(joined.is_some(), hold.is_open(TERMS, now));
        joined.map(Arc::new)
    }

    #[test]
    fn the_last_of_several_leaves_the_field_once_and_none_joins_it() {
        let now = Instant::now();
        let first = open(now);
        let second = joins(&first, now).expect("open");
        assert!(!first.leave_field());
        assert!(!first.leave_field(), "it has left already");
        let third = joins(&second, now).expect("the second is inside");
        assert!(!second.leave_field() && third.leave_field() && !third.leave_field());
        for hold in [first, second, third] {
            assert!(joins(&hold, now).is_none());
        }
    }

    #[test]
    fn none_joins_late_or_with_other_terms_or_what_is_in_doubt() {
        let now = Instant::now();
        let hold = open(now);
        let other = Terms {
            renewed: false,
            ..TERMS
        };
        assert!(!hold.is_open(other, now));
        assert!(joins(&hold, now + OPEN).is_none());
        assert_eq!(hold.tick_failed(), 1);
        assert!(joins(&hold, now).is_none(), "a renewal has failed");
        let hold = open(now);
        assert!(hold.lose(crate::error::Loss::NotOwner));
        assert!(joins(&hold, now).is_none(), "it is lost");
        let hold = open(now.before(TERMS.lease));
        assert!(joins(&hold, now).is_none(), "its lease is over");
    }

    #[test]
    fn who_joins_has_the_validity_and_the_generation_of_the_acquire() {
        let now = Instant::now();
        let first = open(now);
        let later = now + Duration::from_millis(9);
        let second = joins(&first, later).expect("open");
        assert_eq!(second.valid_until(), first.valid_until());
        assert_eq!((second.since, second.asked_at()), (later, now));
        assert_eq!((second.generation, second.acquired_by()), (8, 7));
        assert!(first.renewed(0, later, later));
        let third = joins(&first, later).expect("open");
        assert_eq!(third.valid_until(), first.valid_until());
        let until = second.valid_until();
        assert!(until < first.valid_until(), "each is renewed by itself");
    }

    /// Whatever the threads do, exactly one of the holds is the last one.
    #[test]
    fn threads_that_join_and_leave_leave_a_field_once() {
        for _ in 0..200 {
            let now = Instant::now();
            let first = open(now);
            let lasts: usize = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4)
                    .map(|_| {
                        scope.spawn(|| {
                            let joined = (0..50)
                                .filter_map(|_| first.beside(Owner::new(), first.origin, 8, now));
                            joined.filter(|hold| hold.leave_field()).count()
                        })
                    })
                    .collect();
                let first_is_last = usize::from(first.leave_field());
                let others = threads.into_iter().map(|thread| thread.join());
                others.map(|lasts| lasts.expect("no panic")).sum::<usize>() + first_is_last
            });
            assert_eq!(lasts, 1);
        }
    }
}
