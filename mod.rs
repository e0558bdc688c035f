//! The read-write lock on one server, model-checked: what readers and writers of ours, and a client
//! that runs Redisson's scripts, can do to each other, whichever commands are lost, late or
//! executed twice; and mutants.
//!
//! # What is modelled
//! - The server: the lock's hash with its mode and fields, the timeout keys of readers, their
//!   leases, and each script of `lua/read` and `lua/write` (`server.rs`).
//! - Two owners of ours, in a process each. Each makes attempts to read, to write, and to read
//!   inside its own write, which goes on when the write is released (a downgrade). Their leases may
//!   differ. Another reader of the process may enter with the claim of the first.
//! - The wire, answers, validity, undos and renewals, as in the model of a lock.
//! - A client that runs Redisson's scripts: it reads, writes, reads inside its write, renews, and
//!   dies. Its answers are never lost. Its lease is as long as the longest of ours: a shorter one
//!   takes the lock from our readers, which no script of ours can prevent. Or it holds another
//!   lock of Redisson under the same name.
//! - One deletion from outside, or one operator that names the holders and forces them out.
//!
//! # What is abstracted away
//! - Fences, generations, a third attempt, late answers, and drift: see the model of a lock. Time
//!   passes for all at once.
//! - An acquire that arrives after its second cancel was sent: it never does.
//! - Who asks when: see `rw_phases.rs`.
//! - Holds of one reader that are counted: ours count one, and of Redisson's there is one.

mod server;
mod state;

use stateright::{Model, Property};

use self::server::Field;
use self::state::{Action, Phase, State};
use crate::checked::{Checked, breaks, keeps_its_promises};

const OWNERS: usize = 2;
/// The most attempts of an owner.
const ATTEMPTS: usize = 2;

/// Nobody is inside beside a writer.
const EXCLUSION: &str = "exclusion";
/// The lock is held under the field of everyone of ours who believes to be inside.
const BELIEF: &str = "belief";
/// A holder that is answered "gone" is not inside any more.
const TOLD: &str = "told";
/// When no owner of ours wants, holds or undoes anything, none of its keys and fields is left.
const LEAK: &str = "leak";
/// A release leaves no lock in which nobody lives.
const FREE: &str = "free";

/// The lock within bounds, perhaps with a mistake.
#[derive(Debug, Clone, Copy)]
struct Sharing {
    owners: [Limits; OWNERS],
    renews: bool,
    /// Whether another reader may enter with the claim of the first.
    joins: bool,
    /// What the client of Redisson takes, and how often.
    foreign: Option<(Foreign, u8)>,
    /// How often the key is deleted from outside.
    deletions: u8,
    /// How often somebody forces the lock free.
    forces: u8,
    mutant: Option<Mutant>,
}

/// The most that an owner does.
#[derive(Debug, Clone, Copy)]
struct Limits {
    attempts: u8,
    wants: &'static [Want],
    /// In ticks. A client trusts it for one tick less.
    lease: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Want {
    Read,
    Write,
    /// To read inside its own write.
    Nested,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Foreign {
    ReadWrite,
    /// Another lock of Redisson.
    Lock,
}

const ANY: &[Want] = &[Want::Read, Want::Write, Want::Nested];

const ONCE: Limits = Limits {
    attempts: 1,
    wants: ANY,
    lease: 3,
};
const TWICE: Limits = Limits {
    attempts: 2,
    ..ONCE
};
const READER: Limits = Limits {
    wants: &[Want::Read],
    ..ONCE
};

/// One owner twice, perhaps the second time inside the first, and another one.
const OURS: Sharing = Sharing {
    owners: [TWICE, ONCE],
    renews: true,
    joins: false,
    foreign: None,
    deletions: 0,
    forces: 0,
    mutant: None,
};
/// Beside a client of Redisson that may read inside its write.
const BESIDE: Sharing = Sharing {
    owners: [ONCE, ONCE],
    foreign: Some((Foreign::ReadWrite, 2)),
    ..OURS
};
/// A downgrade beside a client of Redisson.
const DOWNGRADED: Sharing = Sharing {
    owners: [TWICE, Limits { attempts: 0, ..ONCE }],
    ..BESIDE
};
/// Beside a holder of another lock.
const PLAIN: Sharing = Sharing {
    owners: [ONCE, ONCE],
    foreign: Some((Foreign::Lock, 1)),
    ..OURS
};
/// One owner with a longer lease than the other.
const UNEQUAL: Sharing = Sharing {
    owners: [
        Limits { lease: 4, ..READER },
        Limits { lease: 2, ..TWICE },
    ],
    ..OURS
};
/// Readers of one process share a claim.
const SHARED: Sharing = Sharing {
    joins: true,
    ..OURS
};
/// The same, and the key is deleted.
const DELETED: Sharing = Sharing {
    owners: [ONCE, ONCE],
    joins: true,
    deletions: 1,
    ..OURS
};
const FORCED: Sharing = Sharing {
    owners: [TWICE, ONCE],
    renews: false,
    forces: 1,
    ..OURS
};

/// One mistake each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mutant {
    /// Our readers have no timeout keys.
    NoTimeoutKey,
    /// A renewal sets the lease of the lock, though a longer one is left.
    RenewalLowers,
    /// A read inside a write does not compare whose write it is.
    UnderNotCompared,
    /// The release of a write frees the lock, though its own reader is inside.
    DowngradeFrees,
    /// The release of a write leaves the lock to a reader that is dead.
    DowngradeOfADeadOne,
    /// The release of a reader frees the lock, though another one lives.
    ReleaseOfOneFrees,
    /// The release of a reader inside a write frees the lock.
    NestedReleaseFrees,
    /// A reader takes the hash of another lock of Redisson for free.
    TakesAPlainHash,
    /// An acquire without an answer is not undone.
    NoUndo,
    /// The answer "gone" does not end the hold.
    GoneIgnored,
    /// The first who leaves releases the claim that it shares.
    FirstReleases,
    /// The claim of a reader inside a write is shared.
    NestedIsOpen,
    /// A claim may be joined as long as it is valid.
    OpenForEver,
    /// Forcing out those who were named frees the lock.
    ForceTakesAll,
}

impl Sharing {
    const fn with(self, mutant: Mutant) -> Self {
        Self {
            mutant: Some(mutant),
            ..self
        }
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn lease_of(&self, field: Field) -> u8 {
        self.owners[field / ATTEMPTS].lease
    }

    fn foreign_lease(&self) -> u8 {
        self.owners[0].lease.max(self.owners[1].lease)
    }
}

impl Model for Sharing {
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
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(EXCLUSION, |_, state: &State| state.is_exclusive()),
            Property::always(BELIEF, |_, state: &State| state.is_believed_rightly()),
            Property::always(TOLD, |_, state: &State| !state.untold),
            Property::always(LEAK, |_, state: &State| !state.is_quiet() || state.is_clean()),
            Property::always(FREE, |_, state: &State| !state.server.kept_dead),
            Property::sometimes("inside", |_, state: &State| {
                state.attempts.iter().any(|of| matches!(of.phase, Phase::Held(_)))
            }),
        ];
        if self.foreign.is_none_or(|(kind, _)| kind == Foreign::ReadWrite) {
            properties.push(Property::sometimes("readers together", |_, state: &State| {
                state.is_shared()
            }));
        }
        properties
    }
}

impl Checked for Sharing {}

// ---- The lock ----

#[test]
fn readers_and_writers_keep_the_promises() {
    keeps_its_promises(OURS);
}

#[test]
fn readers_and_writers_keep_the_promises_beside_redisson() {
    keeps_its_promises(BESIDE);
    keeps_its_promises(DOWNGRADED);
    keeps_its_promises(PLAIN);
}

#[test]
fn readers_with_unequal_leases_keep_the_promises() {
    keeps_its_promises(UNEQUAL);
}

#[test]
fn readers_that_share_a_claim_keep_the_promises() {
    keeps_its_promises(SHARED);
    keeps_its_promises(DELETED);
}

#[test]
fn those_who_are_not_forced_out_keep_the_promises() {
    keeps_its_promises(FORCED);
}

// ---- Its mutants ----

/// A release of Redisson's reader deletes the lock.
#[test]
fn readers_need_timeout_keys() {
    breaks(BESIDE.with(Mutant::NoTimeoutKey), &[EXCLUSION, BELIEF]);
}

/// The reader that renews dies before the other one.
#[test]
fn a_renewal_must_not_lower_a_lease() {
    breaks(UNEQUAL.with(Mutant::RenewalLowers), &[EXCLUSION, BELIEF]);
}

/// A late read arrives inside somebody else's write.
#[test]
fn a_read_inside_a_write_has_to_compare_whose_it_is() {
    breaks(OURS.with(Mutant::UnderNotCompared), &[EXCLUSION]);
}

#[test]
fn a_downgrade_has_to_look_for_live_readers() {
    breaks(OURS.with(Mutant::DowngradeFrees), &[EXCLUSION, BELIEF]);
    breaks(OURS.with(Mutant::DowngradeOfADeadOne), &[FREE]);
}

#[test]
fn a_reader_must_not_free_the_lock_of_another_holder() {
    breaks(OURS.with(Mutant::ReleaseOfOneFrees), &[BELIEF]);
    breaks(BESIDE.with(Mutant::ReleaseOfOneFrees), &[EXCLUSION]);
    breaks(OURS.with(Mutant::NestedReleaseFrees), &[EXCLUSION, BELIEF]);
}

#[test]
fn a_hash_without_a_mode_is_held() {
    breaks(PLAIN.with(Mutant::TakesAPlainHash), &[EXCLUSION]);
}

#[test]
fn an_unknown_read_has_to_be_undone() {
    breaks(OURS.with(Mutant::NoUndo), &[LEAK]);
}

#[test]
fn the_answer_gone_has_to_end_the_hold() {
    breaks(DELETED.with(Mutant::GoneIgnored), &[TOLD]);
}

#[test]
fn the_last_of_those_who_share_a_claim_has_to_release_it() {
    breaks(SHARED.with(Mutant::FirstReleases), &[EXCLUSION, BELIEF]);
}

#[test]
fn a_claim_inside_a_write_must_not_be_shared() {
    breaks(SHARED.with(Mutant::NestedIsOpen), &[EXCLUSION]);
}

/// A reader joins what was deleted.
#[test]
fn a_claim_must_not_be_shared_for_long() {
    breaks(DELETED.with(Mutant::OpenForEver), &[EXCLUSION, BELIEF]);
}

/// A reader that came later is forced out too.
#[test]
fn only_those_who_were_named_are_forced_out() {
    breaks(FORCED.with(Mutant::ForceTakesAll), &[BELIEF]);
}
