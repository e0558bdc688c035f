//! The waking of lockers that wait for a lock, model-checked: a release wakes one locker of the
//! list, and after any single fault no waiter is left waiting for a free lock until the re-check.
//!
//! # What is modelled
//! - The lockers: the real [`Line`](super::Line) of each, and what is done with its effects.
//! - The server: who holds the key, and the list, with what the scripts do to them (`state.rs`): an
//!   acquire that puts its locker into the list, a release that wakes the next one or gives clients
//!   outside of the list a turn, a `pass`, and an undo.
//! - Three lockers at the most, and a client of Redisson, which hears only the messages of the
//!   channel and does not poll. A channel may be subscribed when its line begins to listen, and
//!   linger.
//! - The wire: scripts, answers and messages take any time. Messages of one connection keep their
//!   order.
//! - Callers that come later, or leave while they wait or are asked for. And one fault: a locker
//!   dies, is suspended for a while, or loses its connection without noticing, or a lease ends
//!   under its holder.
//!
//! # Time
//! Each locker has a clock of its own, which goes on only when a timer of its line ends: then all
//! that the line remembers moves back, so that it is always the same time. A timer that runs may
//! end at any time, and the lock may be held for any time.
//!
//! # What is abstracted away
//! - Fields, generations, counts and validity: see the model of one server. A holder knows when its
//!   lease is over.
//! - Hand-overs within a process: the lock is not free meanwhile, and no message is sent
//!   (`hand_over.rs`). A release is always sent by itself.
//! - A channel that is given up while a release of its locker is on its way: it lingers for longer
//!   than that.
//! - The re-check: here it never happens. A line asks at the end of a lease only if that has ended,
//!   and if it was told of it: one whose own release put it into the list learns of a lease by its
//!   re-check, which comes before that ends.
//! - What a line forgets after a minute, and lists that expire.
//!
//! The lockers are in an order of their own in each state, so that equal situations are one state:
//! the number of a locker in a trace is its place in that order.

mod locker;
mod state;

use stateright::{Model, Property};

use self::state::{Action, Foreign, State};
use super::checked::{Checked, breaks, keeps_its_promises};

const LOCKERS: usize = 3;

/// A locker that believes to hold the lock holds it on the server.
const EXCLUSION: &str = "a locker that is inside holds the lock";
/// If the lock is free and a client waits, something is about to happen.
const PROGRESS: &str = "nobody waits for a free lock until the re-check";
/// Otherwise the others may pass the lock on among themselves until its re-check.
const LISTED: &str = "without a fault a locker that waits is in the list";

/// The scheme within bounds, perhaps with a mistake.
#[derive(Debug, Clone, Copy)]
struct Scheme {
    /// How many callers of each locker want the lock.
    callers: [u8; LOCKERS],
    /// How many more of each come after a release.
    later: [u8; LOCKERS],
    /// How often the client of Redisson wants it.
    foreign: u8,
    /// Whether lockers are subscribed from the beginning to the end; otherwise from when they wait
    /// to some time after.
    subscribed: bool,
    leaves: u8,
    /// The kinds of faults of which one may come.
    faults: &'static [Fault],
    mutant: Option<Mutant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Fault {
    /// A locker dies.
    Death,
    /// A locker is suspended for a while.
    Pause,
    /// The connection that messages come on is gone, and neither side knows.
    Cut,
    /// A lease ends under its holder.
    Expiry,
}

const ANY: &[Fault] = &[Fault::Death, Fault::Pause, Fault::Cut, Fault::Expiry];

/// Three lockers, with one caller each.
const LOCKERS_ONLY: Scheme = Scheme {
    callers: [1, 1, 1],
    later: [0; LOCKERS],
    foreign: 0,
    subscribed: true,
    leaves: 0,
    faults: &[],
    mutant: None,
};
/// One locker releases, and waits again.
const AGAIN: Scheme = Scheme {
    callers: [2, 1, 1],
    ..LOCKERS_ONLY
};
/// The same with two lockers.
const TWO_AGAIN: Scheme = Scheme {
    callers: [2, 1, 0],
    ..LOCKERS_ONLY
};
/// A caller comes after a release.
const COMES_LATER: Scheme = Scheme {
    callers: [1, 1, 0],
    later: [1, 0, 0],
    ..LOCKERS_ONLY
};
/// One locker has another caller, beside a client in no list.
const ALONE: Scheme = Scheme {
    callers: [2, 0, 0],
    foreign: 1,
    ..LOCKERS_ONLY
};
const WITH_FOREIGN: Scheme = Scheme {
    callers: [1, 1, 0],
    foreign: 2,
    ..LOCKERS_ONLY
};

/// One mistake each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mutant {
    /// A wake-up is taken for a grant.
    GoIsAGrant,
    /// No locker watches the one that is woken.
    NobodyWatches,
    /// A wake-up that arrives while an acquire is under way is forgotten.
    ForgetsWhileAsking,
    /// A wake-up that arrives before the answer of the release that enlists its locker is
    /// forgotten.
    ForgetsWhileReleasing,
    /// A locker without waiters stays in the list, and ignores a wake-up.
    SleepsOn,
    /// No locker attempts after a reconnect.
    TrustsReconnects,
    /// No locker attempts when a subscription is confirmed for which it no longer waits.
    TrustsSubscriptions,
    /// Only the first of the list heeds the messages of the channel.
    OnlyTheFirstHears,
    /// A turn of clients outside of the list has no end.
    EndlessTurns,
    /// The same, if no other locker is in the list.
    EndlessTurnsAlone,
    /// A release that finds no subscribed locker in the list sends no message.
    MuteWithoutList,
    /// The only locker in the list is woken without being watched, and clients outside of the list
    /// are not told.
    OneDecidesForAll,
    /// A locker trusts that a `pass` is executed before the acquires that it sends after it.
    PassesAreInOrder,
    /// A locker whose release made it the second of the list does not watch the first.
    SecondSleeps,
}

impl Scheme {
    const fn with(self, mutant: Mutant) -> Self {
        Self {
            mutant: Some(mutant),
            ..self
        }
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
        state.actions(self, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        state.act(self, action);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, |_, state: &State| state.is_exclusive()),
            Property::always(PROGRESS, |_, state: &State| !state.is_stuck()),
            Property::always(LISTED, |scheme: &Self, state: &State| {
                !scheme.faults.is_empty() || state.is_listed()
            }),
            Property::sometimes("all have had it", |_, state: &State| {
                state
                    .lockers
                    .iter()
                    .all(|locker| locker.is_fine() && locker.is_done())
                    && state.foreign == Foreign::Done
                    && state.left == 0
            }),
        ]
    }
}

impl Checked for Scheme {}

// ---- The lines and the scripts ----

#[test]
fn none_waits_for_a_free_lock_after_a_death_or_an_end_of_lease() {
    keeps_its_promises(Scheme {
        faults: &[Fault::Death],
        ..LOCKERS_ONLY
    });
    keeps_its_promises(Scheme {
        faults: &[Fault::Expiry],
        ..LOCKERS_ONLY
    });
}

#[test]
fn nobody_waits_for_a_free_lock_after_a_locker_stood_still() {
    keeps_its_promises(Scheme {
        faults: &[Fault::Pause],
        ..LOCKERS_ONLY
    });
}

#[test]
fn nobody_waits_for_a_free_lock_after_a_lost_connection() {
    keeps_its_promises(Scheme {
        faults: &[Fault::Cut],
        ..LOCKERS_ONLY
    });
}

#[test]
fn none_waits_for_a_free_lock_if_its_releaser_waits_again() {
    keeps_its_promises(Scheme {
        faults: ANY,
        ..TWO_AGAIN
    });
    keeps_its_promises(Scheme {
        leaves: 1,
        faults: &[Fault::Death],
        ..TWO_AGAIN
    });
}

#[test]
fn nobody_waits_for_a_free_lock_next_to_a_redisson_client() {
    keeps_its_promises(Scheme {
        foreign: 1,
        faults: ANY,
        ..WITH_FOREIGN
    });
    keeps_its_promises(Scheme {
        faults: &[Fault::Death],
        ..WITH_FOREIGN
    });
    keeps_its_promises(Scheme {
        leaves: 1,
        ..WITH_FOREIGN
    });
}

#[test]
fn none_waits_for_a_free_lock_beside_a_locker_called_later() {
    keeps_its_promises(Scheme {
        faults: ANY,
        ..COMES_LATER
    });
    keeps_its_promises(Scheme {
        leaves: 1,
        ..COMES_LATER
    });
}

/// The lock may have been released before a subscription was confirmed.
#[test]
fn nobody_waits_for_a_free_lock_after_a_late_subscription() {
    keeps_its_promises(Scheme {
        subscribed: false,
        faults: &[Fault::Cut],
        ..COMES_LATER
    });
    keeps_its_promises(Scheme {
        subscribed: false,
        leaves: 1,
        ..COMES_LATER
    });
    keeps_its_promises(Scheme {
        subscribed: false,
        faults: ANY,
        ..ALONE
    });
    keeps_its_promises(Scheme {
        subscribed: false,
        foreign: 1,
        faults: &[Fault::Death],
        ..WITH_FOREIGN
    });
}

#[cfg(feature = "soak")]
#[test]
fn wider_bounds_of_the_list_find_no_more() {
    keeps_its_promises(AGAIN);
    keeps_its_promises(Scheme {
        leaves: 1,
        faults: ANY,
        ..TWO_AGAIN
    });
    keeps_its_promises(Scheme {
        foreign: 2,
        ..TWO_AGAIN
    });
    keeps_its_promises(Scheme {
        subscribed: false,
        foreign: 1,
        ..TWO_AGAIN
    });
    keeps_its_promises(Scheme {
        leaves: 1,
        faults: ANY,
        ..WITH_FOREIGN
    });
    keeps_its_promises(Scheme {
        subscribed: false,
        foreign: 1,
        faults: ANY,
        ..WITH_FOREIGN
    });
    keeps_its_promises(Scheme {
        callers: [1, 1, 1],
        ..COMES_LATER
    });
    keeps_its_promises(Scheme {
        subscribed: false,
        faults: ANY,
        ..COMES_LATER
    });
}

// ---- Their mutants ----

#[test]
fn a_wake_up_must_not_be_taken_for_a_grant() {
    breaks(LOCKERS_ONLY.with(Mutant::GoIsAGrant), &[EXCLUSION]);
}

#[test]
fn a_locker_that_is_woken_has_to_be_watched() {
    breaks(
        Scheme {
            faults: &[Fault::Death],
            ..LOCKERS_ONLY.with(Mutant::NobodyWatches)
        },
        &[PROGRESS],
    );
}

#[test]
fn a_wake_up_during_an_acquire_has_to_be_kept() {
    breaks(LOCKERS_ONLY.with(Mutant::ForgetsWhileAsking), &[PROGRESS]);
}

#[test]
fn a_wake_up_before_the_answer_of_a_release_has_to_be_kept() {
    breaks(AGAIN.with(Mutant::ForgetsWhileReleasing), &[PROGRESS]);
}

/// The waiters of the locker that is woken have left, and those of the one that should watch it.
#[test]
fn a_wake_up_without_a_waiter_has_to_be_passed_on() {
    breaks(
        Scheme {
            leaves: 2,
            ..AGAIN.with(Mutant::SleepsOn)
        },
        &[PROGRESS],
    );
}

#[test]
fn every_waiter_has_to_attempt_after_a_reconnect() {
    breaks(
        Scheme {
            faults: &[Fault::Cut],
            ..LOCKERS_ONLY.with(Mutant::TrustsReconnects)
        },
        &[PROGRESS],
    );
}

#[test]
fn every_waiter_has_to_attempt_after_a_late_subscription() {
    let broken = LOCKERS_ONLY.with(Mutant::TrustsSubscriptions);
    breaks(
        Scheme {
            callers: [1, 1, 0],
            subscribed: false,
            ..broken
        },
        &[PROGRESS],
    );
}

#[test]
fn every_locker_has_to_heed_the_messages_of_the_channel() {
    breaks(
        Scheme {
            faults: &[Fault::Death],
            ..WITH_FOREIGN.with(Mutant::OnlyTheFirstHears)
        },
        &[PROGRESS],
    );
}

#[test]
fn a_turn_of_others_has_to_end() {
    breaks(
        Scheme {
            leaves: 1,
            ..WITH_FOREIGN.with(Mutant::EndlessTurns)
        },
        &[PROGRESS],
    );
}

#[test]
fn a_turn_that_a_lone_locker_gives_to_others_has_to_end() {
    breaks(
        Scheme {
            leaves: 1,
            ..ALONE.with(Mutant::EndlessTurnsAlone)
        },
        &[PROGRESS],
    );
    keeps_its_promises(Scheme {
        faults: ANY,
        ..ALONE
    });
    keeps_its_promises(Scheme { leaves: 1, ..ALONE });
}

#[test]
fn a_list_without_subscribers_counts_as_no_list() {
    breaks(
        Scheme {
            faults: &[Fault::Death],
            ..WITH_FOREIGN.with(Mutant::MuteWithoutList)
        },
        &[PROGRESS],
    );
}

/// The client of Redisson would wait for the whole lease that it was told.
#[test]
fn clients_outside_of_the_list_do_not_depend_on_one_locker() {
    let broken = WITH_FOREIGN.with(Mutant::OneDecidesForAll);
    breaks(
        Scheme {
            leaves: 1,
            faults: &[Fault::Death],
            ..broken
        },
        &[PROGRESS],
    );
}

#[test]
fn a_locker_watches_the_one_that_its_release_woke() {
    breaks(
        Scheme {
            faults: &[Fault::Death],
            ..TWO_AGAIN.with(Mutant::SecondSleeps)
        },
        &[PROGRESS],
    );
}

/// The other locker would pass the lock on to itself until the re-check.
#[test]
fn a_pass_may_come_after_the_next_acquire_of_its_locker() {
    breaks(
        Scheme {
            leaves: 1,
            ..COMES_LATER.with(Mutant::PassesAreInOrder)
        },
        &[LISTED],
    );
}
