//! The waking of lockers that wait for a lock, model-checked: a release wakes one of those in the list, and nobody is
//! left waiting for a free lock until the re-check, whatever goes wrong once.
//!
//! # What is modelled
//! - The server: who holds the key, and the list. A refused acquire enlists its locker; a grant takes it off. A release
//!   wakes the first that is subscribed and tells the next one to watch, or gives others a turn, or, without a list,
//!   tells all.
//! - Three lockers with a driver each, as `session/driver.rs` and `notify/news.rs` have it: what is heard while an
//!   acquire is under way, the place that a release tells, timers, a driver that ends though its locker is in the list
//!   (`pass`).
//! - A client of Redisson, which hears the messages of the channel and no others, and looks at nothing by itself.
//! - The wire: scripts, answers and messages take any time. Messages of one connection keep their order.
//! - Waiters that leave, at any time. And one fault: a locker dies, stands still for a while, or has a connection that
//!   is gone and does not know it yet, or a lease ends under its holder.
//!
//! # What is abstracted away
//! - Fields, generations, counts and validity: the model of one server has them. A lease that is over is known to its
//!   holder.
//! - How long timers take, and the order of two of them: any that runs may end at any time.
//! - Hand-overs within a process: the lock is not free meanwhile, and nobody is told (`hand_over.rs`).
//! - The re-check: here it never comes.

mod locker;
mod state;

use stateright::{Model, Property};

use self::locker::Phase;
use self::state::{Action, Foreign, State};
use crate::{breaks, keeps_its_promises};

const LOCKERS: usize = 3;

/// Whoever enters holds it.
const EXCLUSION: &str = "whoever is inside holds the lock";
/// If the lock is free and somebody waits, something is about to happen.
const PROGRESS: &str = "nobody waits for a free lock until the re-check";

/// The scheme within bounds, or what a mistake makes of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scheme {
    /// How many callers of each locker want the lock.
    callers: [u8; LOCKERS],
    /// How often the client of Redisson wants it.
    foreign: u8,
    leaves: u8,
    faults: u8,
    mutant: Option<Mutant>,
}

/// One after the other.
const LOCKERS_ONLY: Scheme = Scheme { callers: [1, 1, 1], foreign: 0, leaves: 0, faults: 1, mutant: None };
/// A locker that releases, and waits again.
const AGAIN: Scheme = Scheme { callers: [2, 1, 1], ..LOCKERS_ONLY };
const WITH_FOREIGN: Scheme = Scheme { callers: [1, 1, 0], foreign: 2, ..LOCKERS_ONLY };

/// One mistake each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// A wake-up is taken for a grant.
    GoIsAGrant,
    /// Nobody watches the one that is woken.
    NobodyWatches,
    /// A wake-up that comes while an acquire is under way is forgotten.
    ForgetsWhileAsking,
    /// .. or before the answer of the release that puts its locker into the list.
    ForgetsWhileReleasing,
    /// A locker that nobody waits in any more stays in the list, and takes no notice of a wake-up.
    SleepsOn,
    /// Behind a reconnect nobody looks.
    TrustsReconnects,
    /// Only the first of the list takes notice of messages of others.
    OnlyTheFirstHears,
    /// A turn of others has no end.
    EndlessTurns,
    /// A release whose list has nobody left tells nobody.
    MuteWithoutList,
    /// The only one in the list is woken, and those who are in no list are not, though nobody watches it.
    OneDecidesForAll,
    /// A locker that was told to wait by its release, as the second of the list, does not watch.
    SecondSleeps,
}

impl Scheme {
    const fn with(self, mutant: Mutant) -> Self {
        Self { mutant: Some(mutant), ..self }
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }
}

impl Model for Scheme {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        state.actions(actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        state.act(self, action);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, |_, state: &State| state.inside().all(|at| state.holder == Some(at))),
            Property::always(PROGRESS, |_, state: &State| !state.is_stuck()),
            Property::sometimes("all have had it", |_, state: &State| {
                state.lockers.iter().all(|locker| locker.phase == Phase::Idle && locker.waiting == 0)
                    && state.foreign == Foreign::Done
                    && state.left == 0
            }),
        ]
    }
}

impl crate::Checked for Scheme {}

#[test]
fn nobody_waits_for_a_free_lock_after_one_fault() {
    keeps_its_promises(LOCKERS_ONLY);
}

#[test]
fn nobody_waits_for_a_free_lock_where_a_locker_releases_and_waits_again() {
    keeps_its_promises(Scheme { callers: [2, 1, 0], leaves: 1, ..AGAIN });
}

#[test]
fn nobody_waits_for_a_free_lock_beside_others() {
    keeps_its_promises(WITH_FOREIGN);
}

#[cfg(feature = "soak")]
#[test]
fn wider_bounds_of_the_list_find_no_more() {
    keeps_its_promises(AGAIN);
    keeps_its_promises(Scheme { leaves: 1, ..LOCKERS_ONLY });
    keeps_its_promises(Scheme { leaves: 1, ..WITH_FOREIGN });
    keeps_its_promises(Scheme { callers: [1, 1, 1], foreign: 2, ..LOCKERS_ONLY });
}

#[test]
fn a_wake_up_is_no_grant() {
    breaks(LOCKERS_ONLY.with(Mutant::GoIsAGrant), &[EXCLUSION]);
}

#[test]
fn whoever_is_woken_has_to_be_watched() {
    breaks(LOCKERS_ONLY.with(Mutant::NobodyWatches), &[PROGRESS]);
}

#[test]
fn a_wake_up_during_an_acquire_has_to_be_kept() {
    breaks(Scheme { faults: 0, ..LOCKERS_ONLY.with(Mutant::ForgetsWhileAsking) }, &[PROGRESS]);
}

#[test]
fn a_wake_up_before_the_answer_of_a_release_has_to_be_kept() {
    breaks(Scheme { faults: 0, ..AGAIN.with(Mutant::ForgetsWhileReleasing) }, &[PROGRESS]);
}

/// One has left, and the one that it should watch stands still.
#[test]
fn a_wake_up_that_nobody_waits_for_has_to_be_passed_on() {
    breaks(Scheme { leaves: 1, ..AGAIN.with(Mutant::SleepsOn) }, &[PROGRESS]);
}

#[test]
fn behind_a_reconnect_everybody_has_to_look() {
    breaks(LOCKERS_ONLY.with(Mutant::TrustsReconnects), &[PROGRESS]);
}

#[test]
fn all_have_to_hear_the_messages_of_others() {
    breaks(WITH_FOREIGN.with(Mutant::OnlyTheFirstHears), &[PROGRESS]);
}

#[test]
fn a_turn_of_others_has_to_end() {
    breaks(Scheme { faults: 0, leaves: 1, ..WITH_FOREIGN.with(Mutant::EndlessTurns) }, &[PROGRESS]);
}

#[test]
fn a_list_without_anybody_is_none() {
    breaks(WITH_FOREIGN.with(Mutant::MuteWithoutList), &[PROGRESS]);
}

/// The client of Redisson would wait for as long as the lease that it was told of.
#[test]
fn the_others_do_not_depend_on_one_locker() {
    breaks(WITH_FOREIGN.with(Mutant::OneDecidesForAll), &[PROGRESS]);
}

#[test]
fn a_locker_watches_the_one_that_its_release_woke() {
    breaks(AGAIN.with(Mutant::SecondSleeps), &[PROGRESS]);
}
