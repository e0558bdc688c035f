//! The waiting lists of several servers, model-checked: each server has its own list, and a locker asks once a majority
//! has called it. After any single fault no waiter is left waiting for a free lock until the re-check.
//!
//! # What is modelled
//! - Three servers, each with the holder and the list that it knows. The lists are in the order in which the lockers
//!   began to wait (`lua/score.lua`). A release wakes the first that is subscribed, and has the next one watch.
//! - Lockers with a driver each. Acquires, releases and undos reach each server at any time. What a minority granted is
//!   undone, and a late yes too. An undo puts its locker back into the list of that server, if it still waits.
//! - The messages of each server, which take any time, and are counted: *go* and the message of the channel count alike
//!   towards a majority; after a message of a minority, or told to watch, a locker looks later.
//! - Waiters that leave, and callers that come when nobody waits. A `pass` is executed before or after the next acquire
//!   of its locker.
//! - One fault: a waiting locker dies or is suspended, or does not hear one of the servers.
//!
//! # What is abstracted away
//! - Fences, leases and renewals: see the model of several servers. A holder is never dead here.
//! - The list of one server under faults of its own: see `across`.
//! - A locker asks only once its last attempt is answered and undone everywhere: commands of one connection are in
//!   order.
//! - An undo that does not put its locker back costs it its place, and a locker without waiters that stays in a list
//!   costs the next one 20 ms: neither breaks a promise.
//! - Turns of clients outside of the list, and the re-check: here they never happen.

mod state;

use stateright::{Model, Property};

use self::state::{Action, Phase, State};
use crate::{breaks, keeps_its_promises, keeps_its_promises_within};

const LOCKERS: usize = 3;
const SERVERS: usize = 3;
const MAJORITY: usize = 2;

/// A locker that believes to hold the lock has it on a majority, and no other locker believes so.
const EXCLUSION: &str = "a locker that is inside holds the lock on a majority";
/// If the lock is free and a client waits, something is about to happen.
const PROGRESS: &str = "nobody waits for a free lock until the re-check";
/// Otherwise the others may pass the lock on among themselves until its re-check.
const LISTED: &str = "without a fault a locker that waits is in the lists of a majority";
/// Without faults, two lockers do not even wait for a timer.
const PROMPTNESS: &str = "without a fault nobody waits for a free lock until a timer ends";

/// The scheme within bounds, perhaps with a mistake.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scheme {
    /// How many callers of each locker want the lock.
    callers: [u8; LOCKERS],
    /// How many more of each come later, when nobody waits there.
    later: [u8; LOCKERS],
    /// Whether the last locker holds the lock at first, and the others are in the lists of a majority.
    waits: bool,
    leaves: u8,
    faults: u8,
    mutant: Option<Mutant>,
}

/// Two lockers that contend.
const TWO: Scheme =
    Scheme { callers: [1, 1, 0], later: [0; LOCKERS], waits: false, leaves: 0, faults: 0, mutant: None };
/// Two lockers that wait for a third.
const WAITING: Scheme = Scheme { waits: true, ..TWO };
/// One locker that waits for another.
const ALONE: Scheme = Scheme { callers: [1, 0, 0], ..WAITING };
/// Its caller leaves, and another comes.
const LEAVING: Scheme = Scheme { leaves: 1, later: [1, 0, 0], ..ALONE };
/// One of them comes back after it has released.
const RETURNING: Scheme = Scheme { later: [1, 0, 0], ..TWO };
/// One of them releases, and waits again.
const AGAIN: Scheme = Scheme { callers: [2, 1, 0], ..TWO };

/// One mistake each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// A wake-up by a majority is taken for a grant.
    GoIsAGrant,
    /// No locker watches the one that is woken.
    NobodyWatches,
    /// Only calls by name count towards a majority.
    OnlyCallsCount,
    /// After a message of a minority a locker does nothing.
    MinoritiesAreIgnored,
    /// What is heard while an acquire is under way is forgotten.
    ForgetsWhileAsking,
    /// What a minority granted is released without a message.
    UndoesQuietly,
    /// A locker trusts that a `pass` is executed before the acquires that it sends after it.
    PassesAreInOrder,
    /// A locker counts as passed over by its own release once one server says so.
    OneServerPassesOn,
}

impl Scheme {
    const fn with(self, mutant: Mutant) -> Self {
        Self { mutant: Some(mutant), ..self }
    }

    const fn after_a_fault(self) -> Self {
        Self { faults: 1, ..self }
    }

    /// Returns whether nobody has to wait for a timer. If only some servers were held, or if lists have lost lockers,
    /// one server may call one locker, and another one another.
    const fn is_prompt(&self) -> bool {
        self.faults == 0 && (!self.waits || self.callers[1] == 0)
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }
}

impl Model for Scheme {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        State::all(self)
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        state.actions(actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        state.act(self, action);
        state.sort();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, |_, state: &State| state.is_exclusive()),
            Property::always(PROGRESS, |_, state: &State| !state.is_stuck(true)),
            Property::always(PROMPTNESS, |scheme: &Self, state: &State| !scheme.is_prompt() || !state.is_stuck(false)),
            Property::always(LISTED, |scheme: &Self, state: &State| scheme.faults > 0 || state.is_listed()),
            Property::sometimes("all have had it", |_, state: &State| {
                state
                    .lockers
                    .iter()
                    .all(|locker| locker.phase == Phase::Idle && locker.waiting == 0 && locker.later == 0)
            }),
        ]
    }
}

impl crate::Checked for Scheme {}

#[test]
fn nobody_waits_for_a_free_lock_that_several_servers_grant() {
    keeps_its_promises(TWO);
}

/// With two that wait, in every state within so many steps.
#[test]
fn nobody_waits_for_a_free_lock_of_several_servers_after_one_fault() {
    keeps_its_promises(Scheme { leaves: 1, ..ALONE.after_a_fault() });
    keeps_its_promises_within(13, WAITING.after_a_fault());
    keeps_its_promises_within(13, Scheme { leaves: 1, ..WAITING });
}

#[test]
fn a_caller_that_comes_while_its_locker_is_taken_off_the_lists_is_in_them() {
    keeps_its_promises(LEAVING);
    keeps_its_promises_within(16, RETURNING);
}

#[cfg(feature = "soak")]
#[test]
fn wider_bounds_of_several_lists_find_no_more() {
    keeps_its_promises(TWO.after_a_fault());
    keeps_its_promises(Scheme { leaves: 1, ..TWO });
    for scheme in [WAITING, WAITING.after_a_fault(), AGAIN, AGAIN.after_a_fault()] {
        keeps_its_promises_within(18, scheme);
        keeps_its_promises_within(16, Scheme { leaves: 1, ..scheme });
    }
    keeps_its_promises_within(20, RETURNING.after_a_fault());
}

#[test]
fn calls_of_a_majority_must_not_be_taken_for_a_grant() {
    breaks(TWO.with(Mutant::GoIsAGrant), &[EXCLUSION]);
}

#[test]
fn what_is_heard_during_an_acquire_of_several_servers_has_to_be_kept() {
    breaks(AGAIN.with(Mutant::ForgetsWhileAsking), &[PROMPTNESS]);
}

#[test]
fn an_undo_on_a_minority_has_to_wake_the_next() {
    breaks(TWO.with(Mutant::UndoesQuietly), &[PROMPTNESS]);
}

#[test]
fn a_locker_that_several_servers_call_has_to_be_watched() {
    breaks(WAITING.after_a_fault().with(Mutant::NobodyWatches), &[PROGRESS]);
}

/// Of two servers that were released, only one has the locker in its list.
#[test]
fn a_call_and_a_message_make_a_majority() {
    breaks(ALONE.with(Mutant::OnlyCallsCount), &[PROMPTNESS]);
}

/// It does not hear the other one.
#[test]
fn a_locker_that_one_server_calls_has_to_look_later() {
    breaks(ALONE.after_a_fault().with(Mutant::MinoritiesAreIgnored), &[PROGRESS]);
}

#[test]
fn a_pass_may_come_after_the_next_acquire() {
    breaks(LEAVING.with(Mutant::PassesAreInOrder), &[LISTED]);
}

#[cfg(feature = "soak")]
#[test]
fn one_server_alone_does_not_put_a_locker_behind_others() {
    breaks(AGAIN.with(Mutant::OneServerPassesOn), &[PROMPTNESS]);
}
