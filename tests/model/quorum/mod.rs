//! The protocol on three servers, model-checked: only what a majority adds to the model of one
//! server.
//!
//! # What is modelled
//! - The nodes: each has the key, its lease, and the mark, which is the last fence that it knows of
//!   and has no lifetime. A node may come back without its data, and with a mark of zero. Then it
//!   abstains for a lease, which is the quarantine, and after that until all others have told it
//!   their marks (the crate asks all but a minority of them: `tests/model/memory` has that).
//! - The clocks of clients and nodes: for each script on each node they are right, or ahead by any
//!   amount, so that no promise about fences depends on a clock.
//! - Other locks of the same mark, which raise it on one node and not on the others.
//! - The wire: commands are executed in any order, and take any time. A connection may be given up:
//!   its commands are then executed at any time or never, without an answer. A server that restarts
//!   has received none of them.
//! - The clients: an acquire on all nodes at once, decided by a majority; fences that differ,
//!   written back before there is a guard; late votes, votes that are lost and requested again;
//!   releases and undos that are sent until they are answered, twice if something may still arrive.
//! - Time: ticks of all clocks.
//!
//! # What is abstracted away
//! - What the model of one server covers: re-entry, drift, renewals that come late, copies of
//!   releases, callers that are gone.
//! - Late answers: an answer arrives when its script is executed, or never. With a late answer a
//!   client would believe less, and for a shorter time.
//! - By how much clocks may be trusted: the bounds are arithmetic, and the tests of `acquire.lua`
//!   cover them. The raise after a retake, which is for nodes that were not told the marks. A fence
//!   that is too far ahead to be believed.
//!
//! # Why the bounds suffice
//! - Two majorities share one node: one restart or one lost answer there, and two clients, show
//!   each fault.
//! - Fences of two guards are compared; a clock that is ahead of all counting is ahead for one of
//!   them or for both.
//! - Two ticks of lease distinguish late from in time; with three, votes end at different times.
//! - Nodes and clients are interchangeable, so states that differ only in their order are one
//!   state.

mod node;
mod promises;
mod state;

use stateright::{Model, Property};

use self::node::{Node, Script};
use self::promises::{EXCLUSION, FENCES, LEAK, MARKS};
use self::state::{Action, Client, Phase, State};
use crate::server::Attempt;
use crate::{Checked, breaks, keeps_its_promises};

const NODES: usize = 3;
const MAJORITY: usize = NODES / 2 + 1;
const CLIENTS: usize = 2;
/// The most attempts that a client makes.
const ATTEMPTS: usize = 2;

/// Ahead of all that the clients count up to. The marks of other locks are further ahead.
const AHEAD: u8 = 4;

/// The protocol within bounds, perhaps with a mistake.
#[derive(Debug, Clone, Copy)]
struct Protocol {
    /// How many attempts each client makes at most.
    attempts: [u8; CLIENTS],
    /// The lease in ticks. A client trusts it for one tick less.
    lease: u8,
    /// Whether fences are modelled.
    fences: bool,
    renews: bool,
    /// How often other locks of the same mark raise it.
    crossings: u8,
    /// How many nodes lose their data.
    restarts: u8,
    /// How many answers are lost.
    silences: u8,
    mutant: Option<Mutant>,
}

/// Two clients contend, and fences are made.
const CONTENDING: Protocol = Protocol {
    attempts: [1, 1],
    lease: 2,
    fences: true,
    renews: false,
    crossings: 0,
    restarts: 0,
    silences: 0,
    mutant: None,
};
/// Two locks have one mark.
const CROSSING: Protocol = Protocol {
    crossings: 1,
    ..CONTENDING
};
/// A node loses its data, and its mark with them.
const UNMARKED: Protocol = Protocol {
    restarts: 1,
    ..CONTENDING
};
/// One client locks twice, and another one contends.
const AGAIN: Protocol = Protocol {
    attempts: [2, 1],
    fences: false,
    ..CONTENDING
};
/// Votes are valid until different times.
const RENEWING: Protocol = Protocol {
    lease: 3,
    fences: false,
    renews: true,
    ..CONTENDING
};
/// A node loses its data.
const FORGETTING: Protocol = Protocol {
    lease: 2,
    restarts: 1,
    ..RENEWING
};
/// An answer is lost, and a command may be late.
const LATE: Protocol = Protocol {
    fences: false,
    silences: 1,
    ..CONTENDING
};
/// One client alone loses votes, and retakes them.
const RETAKING: Protocol = Protocol {
    attempts: [1, 0],
    lease: 2,
    restarts: 1,
    silences: 1,
    ..RENEWING
};

/// One mistake each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mutant {
    /// A node that has lost its data votes at once.
    NoQuarantine,
    /// The highest fence is not written back to nodes that gave a lower one.
    FenceKept,
    /// The fence is written to any majority of the nodes, whether they have the lock or not.
    FenceAnywhere,
    /// The clock alone makes the fence.
    ClockAlone,
    /// The clock makes the fence even if the mark is higher.
    ClockTrusted,
    /// A mark has a lifetime, which a hold may outlast.
    MarksExpire,
    /// A raise writes its fence even if the mark is higher.
    RaiseLowers,
    /// A node that has lost its mark votes as soon as its quarantine is over.
    MarksForgotten,
    /// A node is told the marks of the others when its quarantine begins, not when it ends.
    MarksToldAtOnce,
    /// All attempts of an owner have the same generation.
    GenerationPerTask,
    /// The answer to a retake that is executed after the release is ignored.
    RetakeForgotten,
    /// A retake without an answer is forgotten: the release is sent once.
    RetakeTrusted,
    /// An answer to a second retake is taken for one to the first.
    DoubtForgotten,
    /// A hold is valid as long as one of its votes is.
    ValidityOfOne,
}

impl Protocol {
    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn is_symmetric(&self) -> bool {
        self.attempts[0] == self.attempts[1]
    }

    /// For how long a lease can be trusted that is asked for now.
    fn validity(&self) -> u8 {
        self.lease - 1
    }

    /// What the field of an attempt says on the wire.
    fn field(&self, by: Attempt) -> Attempt {
        if self.is(Mutant::GenerationPerTask) {
            Attempt { number: 0, ..by }
        } else {
            by
        }
    }

    /// Returns what the clocks may show to a script.
    fn clocks(&self, script: Script) -> impl Iterator<Item = u8> + use<> {
        let ahead = self.fences && script == Script::Acquire;
        std::iter::once(0).chain(ahead.then_some(AHEAD))
    }

    /// Adds what a client may do.
    fn actions_of(&self, owner: u8, state: &State, actions: &mut Vec<Action>) {
        match state.client(owner).phase {
            Phase::Idle if state.client(owner).made < self.attempts[usize::from(owner)] => {
                actions.push(Action::Lock(owner));
            }
            Phase::Idle => {}
            Phase::Asking if state.is_heard(owner) => actions.push(Action::Impatience(owner)),
            Phase::Asking => {}
            Phase::Raising { .. } => actions.push(Action::NotRaised(owner)),
            Phase::Held => actions.push(Action::Leave(owner)),
        }
    }

    /// Adds what a node may do.
    fn actions_at(&self, index: u8, node: &Node, state: &State, actions: &mut Vec<Action>) {
        for by in attempts() {
            for (script, adrift) in node.line(by).executable() {
                let unheard = state.silences > 0 && script != Script::Release && !adrift;
                for clock in self.clocks(script) {
                    actions.push(Action::Execute {
                        node: index,
                        by,
                        script,
                        adrift,
                        clock,
                    });
                    if unheard {
                        actions.push(Action::ExecuteUnheard {
                            node: index,
                            by,
                            script,
                            clock,
                        });
                    }
                }
                if unheard {
                    actions.push(Action::Silence {
                        node: index,
                        by,
                        script,
                    });
                }
            }
        }
        for owner in 0..CLIENTS as u8 {
            match state.client(owner).phase {
                Phase::Raising { fence } => {
                    let gave = node.views[usize::from(owner)].fence;
                    if gave != fence && (gave != 0 || self.is(Mutant::FenceAnywhere)) {
                        actions.push(Action::Raise { node: index, owner });
                    }
                }
                Phase::Held if self.renews => actions.push(Action::Renew { node: index, owner }),
                _ => {}
            }
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            nodes: [Node::default(); NODES],
            clients: [Client::default(); CLIENTS],
            restarts: self.restarts,
            silences: self.silences,
            crossings: self.crossings,
            fallen: false,
            highest: 0,
            stale_fence: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.push(Action::Tick);
        for (index, node) in (0..).zip(&state.nodes) {
            if state.restarts > 0 {
                actions.push(Action::Restart(index));
            }
            if state.crossings > 0 && !node.forgot {
                actions.push(Action::Cross(index));
            }
            if self.is(Mutant::MarksExpire) {
                actions.push(Action::Expire(index));
            }
            let others = || (0..).zip(&state.nodes).filter(|(other, _)| *other != index);
            if node.forgot && node.abstains == 0 && others().all(|(_, other)| !other.forgot) {
                actions.push(Action::Tell(index));
            }
            self.actions_at(index, node, state, actions);
        }
        for owner in 0..CLIENTS as u8 {
            self.actions_of(owner, state, actions);
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

fn attempts() -> impl Iterator<Item = Attempt> {
    (0..CLIENTS as u8)
        .flat_map(|owner| (0..ATTEMPTS as u8).map(move |number| Attempt { owner, number }))
}

// ---- The protocol ----

#[test]
fn a_majority_keeps_the_promises() {
    keeps_its_promises(CONTENDING);
}

#[test]
fn a_majority_keeps_the_promises_though_locks_share_a_mark() {
    keeps_its_promises(CROSSING);
}

#[test]
fn fences_grow_though_a_node_loses_its_mark() {
    keeps_its_promises(UNMARKED);
}

#[test]
fn a_client_that_locks_twice_keeps_the_promises_of_a_majority() {
    keeps_its_promises(AGAIN);
}

#[test]
fn a_majority_that_is_renewed_keeps_the_promises() {
    keeps_its_promises(RENEWING);
}

#[test]
fn a_majority_keeps_the_promises_though_a_node_loses_its_data() {
    keeps_its_promises(FORGETTING);
}

#[test]
fn a_majority_keeps_the_promises_though_commands_are_late() {
    keeps_its_promises(LATE);
}

#[test]
fn votes_that_are_retaken_leave_nothing_after_the_release() {
    keeps_its_promises(RETAKING);
}

/// A few million states, two minutes.
#[cfg(feature = "soak")]
#[test]
fn wider_bounds_find_no_more_in_a_quorum() {
    keeps_its_promises(Protocol {
        lease: 3,
        restarts: 1,
        silences: 1,
        ..CONTENDING
    });
    keeps_its_promises(Protocol {
        lease: 3,
        silences: 1,
        ..FORGETTING
    });
    keeps_its_promises(Protocol {
        attempts: [2, 1],
        lease: 3,
        ..CONTENDING
    });
    keeps_its_promises(Protocol {
        lease: 3,
        ..RETAKING
    });
    keeps_its_promises(Protocol {
        attempts: [2, 1],
        ..FORGETTING
    });
}

// ---- Its mutants ----

#[test]
fn a_node_that_lost_its_data_has_to_abstain() {
    breaks(
        Protocol {
            mutant: Some(Mutant::NoQuarantine),
            ..FORGETTING
        },
        &[EXCLUSION],
    );
}

#[test]
fn the_highest_fence_has_to_be_written_back() {
    breaks(
        Protocol {
            mutant: Some(Mutant::FenceKept),
            ..CONTENDING
        },
        &[FENCES],
    );
}

/// Another client that is granted the third node before the fence arrives there, and then a node
/// that was released, would not see the fence.
#[test]
fn the_highest_fence_must_be_written_to_those_that_granted() {
    breaks(
        Protocol {
            mutant: Some(Mutant::FenceAnywhere),
            ..CONTENDING
        },
        &[FENCES],
    );
}

#[test]
fn a_clock_without_a_counter_gives_a_fence_twice() {
    breaks(
        Protocol {
            mutant: Some(Mutant::ClockAlone),
            ..CONTENDING
        },
        &[FENCES],
    );
}

#[test]
fn a_mark_that_is_higher_than_the_clock_has_to_stay() {
    breaks(
        Protocol {
            mutant: Some(Mutant::ClockTrusted),
            ..CONTENDING
        },
        &[FENCES, MARKS],
    );
}

/// A hold outlasts the mark, and the next clock is not ahead like the one before.
#[test]
fn a_mark_must_not_expire() {
    breaks(
        Protocol {
            mutant: Some(Mutant::MarksExpire),
            ..CONTENDING
        },
        &[FENCES],
    );
}

/// Another lock uses the same mark.
#[test]
fn a_raise_must_not_lower_a_mark() {
    breaks(
        Protocol {
            mutant: Some(Mutant::RaiseLowers),
            ..CROSSING
        },
        &[MARKS],
    );
}

#[test]
fn a_node_that_lost_its_mark_has_to_be_told_those_of_the_others() {
    breaks(
        Protocol {
            mutant: Some(Mutant::MarksForgotten),
            ..UNMARKED
        },
        &[FENCES],
    );
}

/// The others do not know yet of an acquisition that counts the node's vote from before its
/// restart.
#[test]
fn a_node_that_lost_its_mark_must_be_told_after_its_quarantine() {
    breaks(
        Protocol {
            mutant: Some(Mutant::MarksToldAtOnce),
            ..UNMARKED
        },
        &[FENCES],
    );
}

#[test]
fn each_attempt_at_a_quorum_needs_a_generation_of_its_own() {
    breaks(
        Protocol {
            mutant: Some(Mutant::GenerationPerTask),
            ..AGAIN
        },
        &[EXCLUSION],
    );
}

#[test]
fn a_retake_that_races_the_release_has_to_be_undone() {
    breaks(
        Protocol {
            mutant: Some(Mutant::RetakeForgotten),
            ..RETAKING
        },
        &[LEAK],
    );
}

#[test]
fn a_retake_that_may_come_late_has_to_be_undone_twice() {
    breaks(
        Protocol {
            mutant: Some(Mutant::RetakeTrusted),
            ..RETAKING
        },
        &[LEAK],
    );
}

#[test]
fn an_answer_to_another_retake_proves_nothing() {
    breaks(
        Protocol {
            mutant: Some(Mutant::DoubtForgotten),
            ..RETAKING
        },
        &[LEAK],
    );
}

#[test]
fn validity_is_that_of_a_majority() {
    breaks(
        Protocol {
            mutant: Some(Mutant::ValidityOfOne),
            ..RENEWING
        },
        &[EXCLUSION],
    );
}
