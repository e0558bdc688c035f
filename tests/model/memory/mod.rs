//! Servers that forget, model-checked: who may vote, when a server that has forgotten is opened,
//! and what it is told.
//!
//! # What is modelled
//! - Three servers: the memory, one lock, the mark of its fences. A server forgets everything, or
//!   restarts with a snapshot, in which the locks of then run on. A step is one script on one
//!   server.
//! - Two lockers, with leases of their own, as `quorum/vetting.rs` and `quorum/voter.rs` have it:
//!   they vet, acquire, renew, retake, agree on a fence, ask the others about a server that is
//!   shut, and open it. What a locker knows may be as old as one likes: a command is sent on what
//!   was known then, and executed at any later time or never.
//! - Reconnects in any order, servers out of reach for ever, other locks on the same mark.
//! - Time: ticks of all clocks at once. How often a tick may come is bounded, and so are losses.
//!
//! # What is abstracted away
//! - Undos: what a locker no longer wants is gone at once, where it only keeps others out.
//!   Generations and validity: see the models of one server and of the quorum.
//! - The allowance for clocks, and servers whose clocks jump. That ids are unique. Programs with a
//!   wrong list.
//! - The order of the servers: states that differ only in it are one. So are the numbers of servers
//!   in traces.
//!
//! # What is promised
//! A server fails from the loss of its data until it votes again, and at least for one longest
//! lease. While one of three fails at a time, there are never two holders, and fences grow. If a
//! server is opened after two leases because not enough others could be asked ([`World::late`]),
//! that is promised for holders of one longest lease only.

mod state;

use stateright::{Model, Property};

use self::state::{Action, State};
use crate::{breaks, keeps_its_promises};

const SERVERS: usize = 3;
const MAJORITY: usize = 2;
/// How many others that vote have to be asked.
const WITNESSES: usize = SERVERS - MAJORITY + 1;
const LOCKERS: usize = 2;

const EXCLUSION: &str = "there are never two holders";
const FENCES: &str = "fences grow";
const RECOVERY: &str =
    "all servers that can be reached vote again after two longest leases without faults";

/// The bounds, perhaps with a mistake.
#[derive(Debug, Clone, Copy)]
pub(crate) struct World {
    leases: [u8; LOCKERS],
    /// How often each locker tries to take the lock.
    rounds: [u8; LOCKERS],
    ticks: u8,
    losses: u8,
    /// How many snapshots are made. If any is, servers lose what came after it.
    snapshots: u8,
    /// Whether a server may forget while another one that did does not vote yet.
    at_any_time: bool,
    /// Whether servers are opened though not enough others could be asked.
    late: bool,
    /// Whether fences are counted, and how often other locks are granted that are counted in the
    /// same mark.
    fences: Option<u8>,
    /// Whether all servers are new.
    new: bool,
    /// Whether one server cannot be reached.
    away: bool,
    recovers: bool,
    mutant: Option<Mutant>,
}

/// One server forgets; the lease of the first locker is longer than that of the second.
const ONE_LOSS: World = World {
    leases: [2, 1],
    rounds: [1, 1],
    ticks: 2,
    losses: 1,
    snapshots: 0,
    at_any_time: false,
    late: false,
    fences: None,
    new: false,
    away: false,
    recovers: false,
    mutant: None,
};
const SNAPSHOT: World = World {
    leases: [1, 1],
    snapshots: 1,
    ..ONE_LOSS
};
const FENCED: World = World {
    leases: [1, 1],
    fences: Some(0),
    ..ONE_LOSS
};
/// Servers are opened late.
const LATE: World = World {
    leases: [1, 1],
    at_any_time: true,
    late: true,
    ..ONE_LOSS
};
/// One is away for ever, the others forget, and nobody locks.
const AWAY: World = World {
    rounds: [0, 0],
    losses: 2,
    at_any_time: true,
    late: true,
    away: true,
    recovers: true,
    ..ONE_LOSS
};

/// One mistake each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// An acquire does not name the memory.
    AcquireBlind,
    /// The memory of another run counts.
    RunIgnored,
    /// The id is that of the server's run: a server that was flushed, or is opened, keeps it.
    IdKept,
    /// A server that begins a new memory votes.
    NoWait,
    /// Only a server without a memory is told the longest lease.
    NothingAnnounced,
    /// A server waits for the leases that were announced to it alone.
    OwnLeases,
    /// One other server is asked.
    OneWitness,
    /// A server that is vetted during a round has a vote in it.
    VettedInRound,
    /// An opening does not compare the id.
    OpenedBlind,
    /// A retake counts on a server that is shut.
    RetakeAnywhere,
    /// A retake writes on a server that is shut, and counts once it is renewed.
    RetakeKept,
    /// A server that is opened is not told the marks.
    MarksUntold,
    /// The others are asked before the wait is over.
    AskedEarly,
    /// A server is opened though another one told a longer lease than it has waited for.
    ShorterWait,
    /// Servers that begin together do not know of each other.
    NotNoted,
    /// A server that is shut for the lack of others is never opened.
    NeverLate,
}

impl World {
    const fn with(self, mutant: Mutant) -> Self {
        Self {
            mutant: Some(mutant),
            ..self
        }
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn longest(&self) -> u8 {
        self.leases[0].max(self.leases[1])
    }

    /// How long a server has to be shut to be opened late.
    fn at_most(&self, lease: u8) -> Option<u8> {
        (self.late && !self.is(Mutant::NeverLate)).then_some(lease * 2)
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        state.actions(self, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        state.act(self, action);
        let state = if self.away { state } else { state.sorted() };
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, |_, state: &State| !state.has_two_holders()),
            Property::always(FENCES, |_, state: &State| !state.fell),
            Property::always(RECOVERY, |world: &Self, state: &State| {
                !world.recovers || state.recovers(world)
            }),
            Property::sometimes("somebody holds the lock", |world: &Self, state: &State| {
                world.rounds == [0, 0] || state.has_a_holder()
            }),
        ]
    }
}

impl crate::Checked for World {}

#[test]
fn nobody_is_in_beside_a_holder_after_a_loss() {
    keeps_its_promises(ONE_LOSS);
}

#[test]
fn nobody_is_in_beside_a_holder_after_a_restart_with_a_snapshot() {
    keeps_its_promises(SNAPSHOT);
}

#[test]
fn fences_grow_after_a_loss() {
    keeps_its_promises(FENCED);
}

#[test]
fn opening_late_lets_none_in_beside_a_holder_of_the_same_lease() {
    keeps_its_promises(LATE);
}

#[test]
fn servers_vote_again_though_one_is_away() {
    keeps_its_promises(AWAY);
    let new = World {
        losses: 0,
        new: true,
        ticks: 3,
        late: false,
        ..AWAY
    };
    keeps_its_promises(new);
    breaks(AWAY.with(Mutant::NeverLate), &[RECOVERY]);
    breaks(new.with(Mutant::NotNoted), &[RECOVERY]);
}

#[test]
fn servers_vote_again_after_any_losses() {
    keeps_its_promises(World {
        away: false,
        late: false,
        ..AWAY
    });
}

#[cfg(feature = "soak")]
#[test]
fn wider_bounds_of_memories_find_no_more() {
    keeps_its_promises(World {
        ticks: 4,
        losses: 2,
        ..ONE_LOSS
    });
    keeps_its_promises(World {
        leases: [2, 3],
        ticks: 5,
        ..ONE_LOSS
    });
    keeps_its_promises(World {
        leases: [2, 1],
        ticks: 4,
        ..SNAPSHOT
    });
    keeps_its_promises(World {
        ticks: 4,
        losses: 2,
        fences: Some(1),
        ..FENCED
    });
    keeps_its_promises(World {
        leases: [2, 1],
        ticks: 4,
        fences: Some(1),
        ..FENCED
    });
    keeps_its_promises(World {
        ticks: 3,
        losses: 2,
        ..LATE
    });
    keeps_its_promises(World {
        ticks: 3,
        losses: 3,
        ..AWAY
    });
    keeps_its_promises(World {
        leases: [2, 2],
        ticks: 5,
        ..LATE
    });
    keeps_its_promises(World {
        new: true,
        recovers: true,
        ticks: 4,
        ..ONE_LOSS
    });
}

#[test]
fn an_acquire_has_to_name_the_memory() {
    breaks(ONE_LOSS.with(Mutant::AcquireBlind), &[EXCLUSION]);
}

#[test]
fn a_memory_belongs_to_one_run() {
    breaks(SNAPSHOT.with(Mutant::RunIgnored), &[EXCLUSION]);
}

#[test]
fn a_server_that_has_forgotten_has_to_wait() {
    breaks(ONE_LOSS.with(Mutant::NoWait), &[EXCLUSION]);
}

#[test]
fn a_server_has_to_be_told_the_leases_by_two_of_three() {
    breaks(ONE_LOSS.with(Mutant::OwnLeases), &[EXCLUSION]);
    breaks(ONE_LOSS.with(Mutant::OneWitness), &[EXCLUSION]);
}

#[test]
fn a_locker_has_to_announce_its_leases_where_a_memory_is() {
    breaks(ONE_LOSS.with(Mutant::NothingAnnounced), &[EXCLUSION]);
}

#[test]
fn an_opening_has_to_compare_the_id() {
    breaks(ONE_LOSS.with(Mutant::OpenedBlind), &[EXCLUSION]);
}

/// With different leases, a server that is opened late may cut a longer one short.
#[test]
fn a_longer_lease_is_not_covered_if_a_server_is_opened_late() {
    breaks(
        World {
            leases: [3, 1],
            late: true,
            ..ONE_LOSS
        },
        &[EXCLUSION],
    );
}

/// The other mistakes take more steps.
#[cfg(feature = "soak")]
#[test]
fn each_rule_of_memories_is_needed() {
    breaks(
        World {
            ticks: 5,
            losses: 2,
            ..ONE_LOSS
        }
        .with(Mutant::IdKept),
        &[EXCLUSION],
    );
    breaks(
        World {
            ticks: 4,
            ..ONE_LOSS
        }
        .with(Mutant::VettedInRound),
        &[EXCLUSION],
    );
    breaks(
        World {
            leases: [2, 3],
            ticks: 5,
            ..ONE_LOSS
        }
        .with(Mutant::RetakeAnywhere),
        &[EXCLUSION],
    );
    breaks(
        World {
            leases: [2, 3],
            ticks: 5,
            ..ONE_LOSS
        }
        .with(Mutant::RetakeKept),
        &[EXCLUSION],
    );
    breaks(
        World {
            ticks: 4,
            losses: 2,
            fences: Some(1),
            ..FENCED
        }
        .with(Mutant::MarksUntold),
        &[FENCES],
    );
    breaks(
        World {
            ticks: 4,
            fences: Some(1),
            ..FENCED
        }
        .with(Mutant::OneWitness),
        &[FENCES],
    );
    breaks(
        World {
            leases: [2, 1],
            ticks: 4,
            fences: Some(1),
            ..FENCED
        }
        .with(Mutant::AskedEarly),
        &[FENCES],
    );
    breaks(
        World {
            leases: [2, 1],
            ticks: 4,
            fences: Some(1),
            ..FENCED
        }
        .with(Mutant::ShorterWait),
        &[FENCES],
    );
}
