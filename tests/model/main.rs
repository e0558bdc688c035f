//! The protocol on one server, model-checked: every state that it can reach within bounds,
//! whichever commands are lost, late, or executed twice; and mutants, each of which has to break a
//! promise within the same bounds.
//!
//! # What is modelled
//! - The server: one key with the field of its holder, the hold count and the lease, and what
//!   `acquire`, `count`, `release` and `renew` do to them. A release and a cancel are one script,
//!   as in `lua/`.
//! - The wire: a command that was sent is executed at any time, in any order, or never, which
//!   stands for a loss. Every command but an acquire may be executed any number of times, which
//!   stands for repetitions and late copies.
//! - The clients, of one owner each, as `hold.rs`, `session/` and `watchdog/` have it: the phases
//!   of a hold, a generation per attempt, validity that counts from before the send, re-entry that
//!   counts before it sends, renewals that are retried, releases and undos that are sent until they
//!   are answered, the second cancel of an unknown acquire, callers that are gone when their grant
//!   comes. A timeout may come at any time after the send.
//! - Answers: the answer of a grant or a renewal takes any time, or is lost. The others arrive at
//!   once or never: a late "held", "gone" or "released" is the same as the answer to a later copy.
//! - Time: ticks of the server and of the clients. A client's clock may be slow by one tick, which
//!   is the drift.
//!
//! # What is abstracted away
//! - Gate and line, messages, TTLs and pauses: a client that may try does so at any time, or never.
//!   So nothing is said about progress. Two owners of one process are two clients here, though the
//!   real ones wait for each other in line.
//! - When a renewal is due and how many may fail: one may be sent, and a holder may give up, at any
//!   time.
//! - Outcomes that are certain (*not executed*, *refused*), fences, the bound on pending undos, and
//!   that a release is given up after a lease.
//! - Readers: see `model/rw.rs`, and who of them and of writers asks when `model/rw_phases.rs`.
//! - Permits: see `model/permits.rs`, and who asks when `model/permits_waits.rs`.
//! - The queue of a fair lock: see `model/fair.rs`.
//! - The value of a leader, and who sees it: see `model/election.rs`.
//! - Latches, and who waits for them: see `model/latch.rs`.
//! - Several nodes: see `model/quorum`. Which locker is woken when, and hand-overs within a
//!   process: see `model/across` and `model/hand_over.rs`, which run the real line with the tests
//!   of `src/line`.
//!
//! # Why the bounds suffice
//! - Every promise concerns two clients at most: a holder and one that interferes. The third client
//!   shows that a third adds nothing.
//! - A late command has an earlier generation than the hold that it meets; two attempts of an owner
//!   make such a pair.
//! - Two guards are a nested hold; a third would add one more count of the same kind.
//! - With three ticks of lease and two of validity, a command can cross a tick and be in time, or
//!   cross two and be late. Ticks, delays, renewals and copies are unlimited: no run is cut off at
//!   a depth.
//! - One deletion is enough to deceive a holder, and one slow tick is all the drift that a lease
//!   allows for.
//!
//! `cargo test --test model -- --nocapture` prints the numbers of states, and short traces of how
//! the mutants fail. The feature `soak` adds a test with wider bounds: `cargo test --release
//! --features soak --test model -- --nocapture`.

mod checked;
mod client;
mod election;
mod fair;
mod latch;
mod memory;
mod permits;
mod permits_waits;
mod promises;
mod quorum;
mod rw;
mod rw_phases;
mod server;
mod state;

use stateright::{Model, Property};

use checked::{Checked, breaks, keeps_its_promises};
use client::{Acquire, Client, Hold, Renewal, Undo};
use promises::{BELIEF, COUNT, EXCLUSION, LEAK, RUNS_OUT, STALE, TOLD};
use server::{Attempt, Server, Wire};
use state::{Action, State};

/// The lease in ticks. A client trusts it for one tick less.
const LEASE: u8 = 3;
/// The most clients of a model.
const CLIENTS: usize = 3;
/// The most attempts that a client makes.
const ATTEMPTS: usize = 2;

/// The protocol within bounds, perhaps with a mistake.
#[derive(Debug, Clone, Copy)]
struct Protocol {
    owners: &'static [Limits],
    renews: bool,
    /// How often the key is deleted from outside.
    deletions: u8,
    /// Whether clocks drift.
    drifts: bool,
    mutant: Option<Mutant>,
}

/// The most that an owner does.
#[derive(Debug, Clone, Copy)]
struct Limits {
    attempts: u8,
    guards: u8,
}

const ONCE: Limits = Limits {
    attempts: 1,
    guards: 1,
};
const TWICE: Limits = Limits {
    attempts: 2,
    guards: 1,
};
const NESTED: Limits = Limits {
    attempts: 1,
    guards: 2,
};
const NESTED_TWICE: Limits = Limits {
    attempts: 2,
    guards: 2,
};

/// One owner locks twice, and another one contends.
const AGAIN: Protocol = Protocol {
    owners: &[TWICE, ONCE],
    renews: true,
    deletions: 0,
    drifts: false,
    mutant: None,
};
/// One owner alone locks twice, and nests.
const ALONE: Protocol = Protocol {
    owners: &[NESTED_TWICE],
    ..AGAIN
};
/// The key may be deleted under a hold that may be nested.
const DELETED: Protocol = Protocol {
    owners: &[NESTED, ONCE],
    deletions: 1,
    ..AGAIN
};
const DRIFTING: Protocol = Protocol {
    owners: &[ONCE, ONCE],
    drifts: true,
    ..AGAIN
};
const THREE: Protocol = Protocol {
    owners: &[ONCE, ONCE, ONCE],
    renews: false,
    ..AGAIN
};

/// One mistake each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mutant {
    /// All attempts of an owner have the same generation.
    GenerationPerTask,
    /// Validity counts from the reply, of grants and of renewals.
    ValidityFromReply,
    /// Validity is as long as the lease.
    NoDrift,
    /// An acquire without an answer is sent a second time, unchanged.
    UnknownRepeated,
    /// An acquire without an answer is not undone.
    NoCancel,
    /// An acquire without an answer is cancelled, but not a second time after the first cancel is
    /// answered.
    CancelOnce,
    /// A grant whose caller is gone is not undone.
    UnwantedKept,
    /// Re-entry increments, and a nested guard's release decrements.
    CountIncrements,
    /// A release deletes the key without comparing its field.
    ReleaseBlind,
    /// A renewal writes the key without comparing its field, or creates it.
    RenewalCreates,
    /// The answer to a renewal revives a hold that was lost.
    LostRevives,
    /// The answer "gone" does not make the hold lost.
    GoneIgnored,
}

impl Protocol {
    const fn with(self, mutant: Mutant) -> Self {
        Self {
            mutant: Some(mutant),
            ..self
        }
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Adds what a client may do.
    fn actions_of(&self, owner: u8, client: &Client, actions: &mut Vec<Action>) {
        let limits = self.owners[usize::from(owner)];
        match client.acquire {
            None if client.hold == Hold::None && client.made < limits.attempts => {
                actions.push(Action::Lock(owner));
            }
            None => {}
            Some(Acquire { granted: false, .. }) => actions.push(Action::Timeout(owner)),
            Some(_) => actions.extend([
                Action::Timeout(owner),
                Action::Granted(owner),
                Action::Unwanted(owner),
            ]),
        }
        match client.hold {
            Hold::None => {}
            Hold::Held { guards, .. } => {
                actions.extend([Action::Leave(owner), Action::GiveUp(owner)]);
                if guards < limits.guards {
                    actions.push(Action::Enter(owner));
                }
                if self.renews && client.renewal.is_none() {
                    actions.push(Action::Renew(owner));
                }
            }
            Hold::Releasing { .. } => actions.push(Action::Unconfirmed(owner)),
            Hold::Lost { .. } => actions.push(Action::Leave(owner)),
        }
        match client.renewal {
            None => {}
            Some(Renewal { done: false, .. }) => actions.push(Action::RenewalTimeout(owner)),
            Some(_) => actions.extend([Action::RenewalTimeout(owner), Action::Renewed(owner)]),
        }
        for (number, undo) in (0..).zip(client.undos) {
            if undo == Undo::Pause {
                actions.push(Action::CancelAgain(Attempt { owner, number }));
            }
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            server: Server::default(),
            wire: Wire::default(),
            clients: [Client::default(); CLIENTS],
            deletions: self.deletions,
            drifts: self.drifts,
            victim: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.push(Action::Tick);
        if state.deletions > 0 && state.server.key.is_some() {
            actions.push(Action::Delete);
        }
        for command in state.wire.commands() {
            actions.push(Action::Execute(command));
            if state.is_heard(command) {
                actions.push(Action::ExecuteUnheard(command));
            }
        }
        for (owner, client) in (0..).zip(&state.clients[..self.owners.len()]) {
            self.actions_of(owner, client, actions);
            if state.drifts && client.has_clocks() {
                actions.push(Action::Drift(owner));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        state.act(self, action);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = promises::promises();
        properties.extend(promises::sights(self));
        properties
    }
}

impl Checked for Protocol {}

// ---- The protocol ----

#[test]
fn an_owner_that_locks_twice_keeps_the_promises() {
    keeps_its_promises(AGAIN);
}

#[test]
fn an_owner_that_locks_twice_and_nests_keeps_the_promises() {
    keeps_its_promises(ALONE);
}

#[test]
fn the_promises_hold_though_the_key_is_deleted() {
    keeps_its_promises(DELETED);
}

#[test]
fn the_promises_hold_though_clocks_drift() {
    keeps_its_promises(DRIFTING);
}

#[test]
fn three_owners_keep_the_promises() {
    keeps_its_promises(THREE);
}

/// Two and a half million states.
#[cfg(feature = "soak")]
#[test]
fn wider_bounds_find_no_more() {
    keeps_its_promises(Protocol {
        owners: &[NESTED_TWICE, ONCE],
        deletions: 1,
        ..AGAIN
    });
    keeps_its_promises(Protocol {
        owners: &[TWICE, TWICE],
        ..AGAIN
    });
    keeps_its_promises(Protocol {
        renews: true,
        drifts: true,
        ..THREE
    });
}

// ---- Its mutants ----

/// A late cancel of the first attempt frees the second.
#[test]
fn each_attempt_needs_a_generation_of_its_own() {
    breaks(AGAIN.with(Mutant::GenerationPerTask), &[EXCLUSION, STALE]);
    breaks(ALONE.with(Mutant::GenerationPerTask), &[COUNT]);
}

#[test]
fn validity_from_the_reply_is_too_long() {
    breaks(AGAIN.with(Mutant::ValidityFromReply), &[EXCLUSION]);
}

#[test]
fn validity_without_drift_is_too_long() {
    breaks(DRIFTING.with(Mutant::NoDrift), &[EXCLUSION, BELIEF]);
}

/// The first copy arrives after the second has been granted and released.
#[test]
fn an_unknown_acquire_must_not_be_repeated() {
    breaks(AGAIN.with(Mutant::UnknownRepeated), &[LEAK]);
}

#[test]
fn an_unknown_acquire_has_to_be_cancelled() {
    breaks(AGAIN.with(Mutant::NoCancel), &[LEAK]);
}

/// The cancel overtakes the acquire.
#[test]
fn an_unknown_acquire_has_to_be_cancelled_twice() {
    breaks(AGAIN.with(Mutant::CancelOnce), &[LEAK]);
}

#[test]
fn a_grant_whose_caller_is_gone_has_to_be_undone() {
    breaks(AGAIN.with(Mutant::UnwantedKept), &[LEAK]);
}

#[test]
fn a_hold_count_has_to_be_absolute() {
    breaks(ALONE.with(Mutant::CountIncrements), &[COUNT]);
}

/// The late copy deletes the hold of the next owner.
#[test]
fn a_release_has_to_compare_the_field() {
    breaks(AGAIN.with(Mutant::ReleaseBlind), &[EXCLUSION, STALE]);
}

/// A renewal that arrives after the release takes a lock that nobody releases.
#[test]
fn a_renewal_must_not_create() {
    breaks(AGAIN.with(Mutant::RenewalCreates), &[LEAK, RUNS_OUT, STALE]);
}

/// The renewal was executed before the deletion; a re-entry noticed the deletion, and then the
/// renewal's answer arrives.
#[test]
fn a_lost_hold_must_not_be_revived() {
    breaks(DELETED.with(Mutant::LostRevives), &[EXCLUSION, BELIEF]);
}

#[test]
fn the_answer_gone_has_to_end_the_hold() {
    breaks(DELETED.with(Mutant::GoneIgnored), &[TOLD]);
}
