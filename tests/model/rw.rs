//! A read-write lock on one server: what the scripts of `lua/read` and `lua/write` do to its hash
//! and to the timeouts of its readers, beside a client that does Redisson's own steps.
//!
//! Late copies, undos, answers and validity are as in `main.rs`. Releases and renewals that were
//! sent may be executed any number of times, for ever. The owner of a write reads inside of it; one
//! that reads does not ask to write. The hints are in `rw_phases.rs`.

use stateright::{Model, Property};

use crate::checked::{Checked, breaks, keeps_its_promises};

/// The most claims of a model, each with a field of its own.
const CLAIMS: usize = 4;

const EXCLUSION: &str = "a writer is inside alone, or with reads of its owner";
const BELIEF: &str = "the server has whoever believes to be inside";
const LEAK: &str = "nothing is left once everybody has left";

#[derive(Debug, Clone, Copy)]
struct Sharing {
    claims: &'static [Terms],
    jvm: Jvm,
    deletions: u8,
    mutant: Option<Mutant>,
}

#[derive(Debug, Clone, Copy)]
struct Terms {
    owner: u8,
    writes: bool,
    /// Ticks on the server. The client trusts it for one less.
    lease: u8,
}

/// What the client of Redisson uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Jvm {
    Nothing,
    ReadWrite,
    /// Its `getLock`, which keeps another hash under the same name.
    Lock,
}

const fn terms(owner: u8, writes: bool, lease: u8) -> Terms {
    Terms {
        owner,
        writes,
        lease,
    }
}

/// One owner writes and reads inside of it, beside a reader.
const NESTED: Sharing = Sharing {
    claims: &[terms(0, true, 3), terms(0, false, 3), terms(1, false, 3)],
    jvm: Jvm::Nothing,
    deletions: 0,
    mutant: None,
};
/// Readers with leases of different lengths, and a writer.
const MIXED: Sharing = Sharing {
    claims: &[terms(0, false, 4), terms(1, false, 2), terms(2, true, 2)],
    ..NESTED
};
/// One owner writes and reads inside of it, beside a writer.
const WRITERS: Sharing = Sharing {
    claims: &[terms(0, true, 2), terms(0, false, 2), terms(1, true, 2)],
    ..NESTED
};
const BESIDE_JVM: Sharing = Sharing {
    claims: &[terms(0, true, 3), terms(0, false, 3)],
    jvm: Jvm::ReadWrite,
    ..NESTED
};
const BESIDE_LOCK: Sharing = Sharing {
    claims: &[terms(0, true, 3), terms(1, false, 3)],
    jvm: Jvm::Lock,
    ..NESTED
};
const DELETED: Sharing = Sharing {
    claims: &[terms(0, true, 2), terms(1, false, 2)],
    jvm: Jvm::ReadWrite,
    deletions: 1,
    ..NESTED
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mutant {
    /// A reader of ours has no timeout.
    NoTimeoutKey,
    /// A renewal sets the lifetime of the hash, instead of raising it.
    RenewalLowers,
    /// A renewal creates the field.
    RenewalCreates,
    /// A read is granted inside a write that is not there.
    InsideNotCompared,
    /// The release of a write deletes the hash, though its owner reads inside.
    DowngradeFrees,
    /// The release of a write leaves the hash to its dead readers.
    DowngradeOfADeadOne,
    /// The release of a read deletes the hash, though another reader lives.
    LiveReaderIgnored,
    /// It deletes the hash, though its owner writes.
    WriteIgnored,
    /// A hash without a mode is taken for a lock with readers.
    TakesAPlainHash,
    /// An acquire without an answer is undone once.
    UndoneOnce,
}

/// What a claim is for its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Phase {
    #[default]
    New,
    /// With the validity that it has when it is granted now.
    Asked(u8),
    Held(u8),
    /// It was granted, and is released until that is answered.
    Releases,
    /// It may have been granted: a release is sent until it is answered, and then once more.
    Undoes,
    UndoesAgain,
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Claim {
    phase: Phase,
    /// Whether it asked for a read inside the first claim.
    inside: bool,
    /// What validity a renewal gives that is under way.
    renews: Option<u8>,
    deceived: bool,
    // On the wire.
    acquires: bool,
    releases: bool,
    renewals: bool,
    // On the server.
    there: bool,
    timeout: u8,
    /// Ghost: nothing undoes it.
    stray: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Mode {
    Read,
    Write,
    /// Of another kind of lock.
    None,
}

/// The field of Redisson's client for each role, and until when it believes in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Foreign {
    there: bool,
    timeout: u8,
    valid: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    claims: [Claim; CLAIMS],
    reader: Foreign,
    writer: Foreign,
    hash: Option<(Mode, u8)>,
    deletions: u8,
    /// Ghost: something of a client is left that ends with its lease.
    leaves: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Tick,
    Delete,
    Ask(usize),
    /// Whether the answer arrives.
    Acquire(usize, bool),
    Release(usize, bool),
    Renew(usize, bool),
    SendRenewal(usize),
    Leave(usize),
    JvmReads,
    JvmEndsRead,
    JvmWrites,
    JvmEndsWrite,
    JvmRenews,
}

/// The lease of Redisson's client.
const JVM_LEASE: u8 = 3;

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

    fn all(&self) -> impl Iterator<Item = (usize, Terms)> {
        self.claims.iter().copied().enumerate()
    }

    /// Returns whether this claim may ask, and whether it would read inside the first one.
    fn asks(&self, state: &State, at: usize) -> Option<bool> {
        let mine = self.claims[at];
        let is_open = |phase: Phase| !matches!(phase, Phase::Asked(_) | Phase::Held(_));
        let mut others = self
            .all()
            .filter(|(other, terms)| *other != at && terms.owner == mine.owner);
        let is_inside = !mine.writes && self.claims[0].owner == mine.owner;
        let inside = is_inside && matches!(state.claims[0].phase, Phase::Held(_));
        let waits =
            others.any(|(other, _)| !(is_open(state.claims[other].phase) || inside && other == 0));
        (state.claims[at].phase == Phase::New && !waits).then_some(inside)
    }
}

impl State {
    /// Returns whether a reader other than this claim lives.
    fn lives(&self, sharing: &Sharing) -> bool {
        let ours = sharing.all().any(|(at, terms)| {
            let claim = &self.claims[at];
            !terms.writes && claim.there && claim.timeout > 0
        });
        ours || self.reader.there && self.reader.timeout > 0
    }

    fn raise(&mut self, mode: Mode, lease: u8) {
        let (mode, left) = self.hash.unwrap_or((mode, 0));
        self.hash = Some((mode, left.max(lease)));
    }

    fn delete(&mut self) {
        self.hash = None;
        self.claims.iter_mut().for_each(|claim| claim.there = false);
        (self.reader.there, self.writer.there) = (false, false);
    }

    fn tick(&mut self) {
        for claim in &mut self.claims {
            claim.timeout = claim.timeout.saturating_sub(1);
            claim.renews = claim.renews.map(|valid| valid.saturating_sub(1));
            claim.phase = match claim.phase {
                Phase::Asked(valid) => Phase::Asked(valid.saturating_sub(1)),
                Phase::Held(valid) if valid > 1 => Phase::Held(valid - 1),
                // It is lost, and what may stand on the server is released all the same.
                Phase::Held(_) => {
                    claim.releases = true;
                    Phase::Releases
                }
                phase => phase,
            };
        }
        for foreign in [&mut self.reader, &mut self.writer] {
            self.leaves |= foreign.valid == 1;
            foreign.timeout = foreign.timeout.saturating_sub(1);
            foreign.valid = foreign.valid.saturating_sub(1);
        }
        match &mut self.hash {
            Some((_, left)) if *left > 1 => *left -= 1,
            Some(_) => {
                self.delete();
                self.leaves = self.reader.valid + self.writer.valid > 0 && self.leaves;
            }
            None => {}
        }
    }

    fn acquire(&mut self, sharing: &Sharing, at: usize) -> bool {
        let terms = sharing.claims[at];
        if let Some((mode, _)) = self.hash
            && !self.claims[at].there
        {
            let is_inside = self.claims[at].inside
                && (self.claims[0].there || sharing.is(Mutant::InsideNotCompared));
            let reads = match mode {
                Mode::Read => true,
                Mode::Write => is_inside,
                Mode::None => is_inside || sharing.is(Mutant::TakesAPlainHash),
            };
            if terms.writes || !reads {
                return false;
            }
        }
        let mode = if terms.writes {
            Mode::Write
        } else {
            Mode::Read
        };
        self.raise(mode, terms.lease);
        let claim = &mut self.claims[at];
        claim.there = true;
        if !terms.writes && !sharing.is(Mutant::NoTimeoutKey) {
            claim.timeout = terms.lease;
        }
        true
    }

    fn release(&mut self, sharing: &Sharing, at: usize) -> bool {
        let writes = sharing.claims[at].writes;
        self.claims[at].timeout = 0;
        if !self.claims[at].there {
            return false;
        }
        (self.claims[at].there, self.claims[at].stray) = (false, false);
        let lives = self.lives(sharing);
        let in_write = matches!(self.hash, Some((Mode::Write, _)));
        let stays = in_write && !sharing.is(Mutant::WriteIgnored)
            || lives && !sharing.is(Mutant::LiveReaderIgnored);
        if writes {
            let stays = lives && !sharing.is(Mutant::DowngradeFrees);
            match &mut self.hash {
                Some((mode, _)) if stays || sharing.is(Mutant::DowngradeOfADeadOne) => {
                    *mode = Mode::Read;
                }
                _ => self.delete(),
            }
        } else if !stays {
            self.delete();
        }
        true
    }

    fn renew(&mut self, sharing: &Sharing, at: usize) -> bool {
        let terms = sharing.claims[at];
        if !self.claims[at].there && !sharing.is(Mutant::RenewalCreates) {
            return false;
        }
        self.claims[at].there = true;
        if !terms.writes {
            self.claims[at].timeout = terms.lease;
        }
        self.raise(Mode::Read, terms.lease);
        if sharing.is(Mutant::RenewalLowers) {
            self.hash = self.hash.map(|(mode, _)| (mode, terms.lease));
        }
        true
    }

    fn ends(&mut self, at: usize, phase: Phase) {
        self.claims[at].phase = phase;
        self.claims[at].releases |= phase != Phase::Over;
    }

    fn execute(&mut self, sharing: &Sharing, action: Action) {
        match action {
            Action::Acquire(at, heard) => {
                self.claims[at].acquires = false;
                let granted = self.acquire(sharing, at);
                match self.claims[at].phase {
                    Phase::Asked(valid) if heard => match (granted, valid) {
                        (true, 1..) => self.claims[at].phase = Phase::Held(valid),
                        (true, 0) => self.ends(at, Phase::Releases),
                        (false, _) => self.claims[at].phase = Phase::Over,
                    },
                    Phase::UndoesAgain | Phase::Over if !sharing.is(Mutant::UndoneOnce) => {
                        self.claims[at].stray |= granted;
                    }
                    _ => {}
                }
            }
            Action::Release(at, heard) => {
                self.release(sharing, at);
                let phase = match self.claims[at].phase {
                    phase if !heard => phase,
                    Phase::Undoes if !sharing.is(Mutant::UndoneOnce) => Phase::UndoesAgain,
                    Phase::Releases | Phase::Undoes | Phase::UndoesAgain => Phase::Over,
                    phase => phase,
                };
                self.claims[at].phase = phase;
            }
            Action::Renew(at, heard) => {
                let renewed = self.renew(sharing, at);
                let Some(left) = self.claims[at].renews.filter(|_| heard) else {
                    return;
                };
                self.claims[at].renews = None;
                match self.claims[at].phase {
                    Phase::Held(valid) if renewed => {
                        self.claims[at].phase = Phase::Held(valid.max(left));
                    }
                    Phase::Held(_) => self.ends(at, Phase::Releases),
                    _ => {}
                }
            }
            _ => {}
        }
    }

    /// A step of Redisson's client.
    fn jvm(&mut self, sharing: &Sharing, action: Action) {
        let mode = self.hash.map(|(mode, _)| mode);
        match action {
            Action::JvmReads => {
                let is_open = matches!(mode, None | Some(Mode::Read)) || self.writer.there;
                if is_open {
                    self.raise(Mode::Read, JVM_LEASE);
                    self.reader = Foreign {
                        there: true,
                        timeout: JVM_LEASE,
                        valid: JVM_LEASE,
                    };
                }
            }
            Action::JvmEndsRead => {
                self.reader.valid = 0;
                if !std::mem::take(&mut self.reader.there) {
                    return;
                }
                self.reader.timeout = 0;
                if self.lives(sharing) {
                    let lives = sharing.all().filter(|(at, _)| self.claims[*at].there);
                    let longest = lives.map(|(at, _)| self.claims[at].timeout).max();
                    self.hash = self.hash.zip(longest).map(|((mode, _), left)| (mode, left));
                } else if mode != Some(Mode::Write) {
                    self.delete();
                }
            }
            Action::JvmWrites if mode.is_none() => {
                let kept = if sharing.jvm == Jvm::Lock {
                    Mode::None
                } else {
                    Mode::Write
                };
                self.raise(kept, JVM_LEASE);
                (self.writer.there, self.writer.valid) = (true, JVM_LEASE);
            }
            Action::JvmEndsWrite => {
                self.writer.valid = 0;
                if !std::mem::take(&mut self.writer.there) {
                    return;
                }
                // It compares the number of fields, and not who lives.
                match &mut self.hash {
                    Some((mode, _)) if self.reader.there => *mode = Mode::Read,
                    _ => self.delete(),
                }
            }
            Action::JvmRenews => {
                let is_alive = self.reader.there && self.reader.timeout > 0;
                for foreign in [&mut self.reader, &mut self.writer] {
                    if foreign.valid > 0 && foreign.there {
                        foreign.valid = JVM_LEASE;
                    }
                }
                if is_alive {
                    self.reader.timeout = JVM_LEASE;
                }
                if is_alive || self.writer.there {
                    self.hash = self.hash.map(|(mode, _)| (mode, JVM_LEASE));
                }
            }
            _ => {}
        }
    }

    fn is_exclusive(&self, sharing: &Sharing) -> bool {
        let inside: Vec<_> = sharing
            .all()
            .filter(|(at, _)| self.believes(*at))
            .map(|(_, terms)| (Some(terms.owner), terms.writes))
            .chain((self.reader.valid > 0).then_some((None, false)))
            .chain((self.writer.valid > 0).then_some((None, true)))
            .collect();
        let excludes = |one: &(Option<u8>, bool), other: &(Option<u8>, bool)| {
            one.0 != other.0 && (one.1 || other.1)
        };
        !inside
            .iter()
            .any(|one| inside.iter().any(|other| excludes(one, other)))
    }

    fn believes(&self, at: usize) -> bool {
        matches!(self.claims[at].phase, Phase::Held(_)) && !self.claims[at].deceived
    }

    fn is_left(&self) -> bool {
        let is_quiet =
            |claim: &Claim| matches!(claim.phase, Phase::New | Phase::Over) && !claim.stray;
        let jvm = self.reader.valid + self.writer.valid > 0 || self.leaves;
        self.claims.iter().all(is_quiet) && !jvm && self.hash.is_some()
    }
}

impl Model for Sharing {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            claims: Default::default(),
            reader: Foreign::default(),
            writer: Foreign::default(),
            hash: None,
            deletions: self.deletions,
            leaves: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.push(Action::Tick);
        if state.deletions > 0 && state.hash.is_some() {
            actions.push(Action::Delete);
        }
        for (at, _) in self.all() {
            let claim = &state.claims[at];
            if self.asks(state, at).is_some() {
                actions.push(Action::Ask(at));
            }
            if matches!(claim.phase, Phase::Asked(_) | Phase::Held(_)) {
                actions.push(Action::Leave(at));
            }
            if matches!(claim.phase, Phase::Held(_)) && claim.renews.is_none() {
                actions.push(Action::SendRenewal(at));
            }
            for heard in [true, false] {
                if claim.acquires {
                    actions.push(Action::Acquire(at, heard));
                }
                if claim.releases {
                    actions.push(Action::Release(at, heard));
                }
                if claim.renewals {
                    actions.push(Action::Renew(at, heard));
                }
            }
        }
        if self.jvm == Jvm::Nothing {
            return;
        }
        if self.jvm == Jvm::ReadWrite && state.reader.valid == 0 {
            actions.push(Action::JvmReads);
        }
        if state.reader.valid > 0 {
            actions.push(Action::JvmEndsRead);
        }
        if state.writer.valid > 0 {
            actions.push(Action::JvmEndsWrite);
        } else if state.reader.valid == 0 {
            actions.push(Action::JvmWrites);
        }
        if state.reader.valid + state.writer.valid > 0 && self.jvm == Jvm::ReadWrite {
            actions.push(Action::JvmRenews);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Tick => state.tick(),
            Action::Delete => {
                state.deletions -= 1;
                for claim in &mut state.claims {
                    claim.deceived |= claim.there;
                }
                (state.reader.valid, state.writer.valid) = (0, 0);
                state.delete();
            }
            Action::Ask(at) => {
                let inside = self.asks(last, at)?;
                let claim = &mut state.claims[at];
                claim.phase = Phase::Asked(self.claims[at].lease - 1);
                (claim.inside, claim.acquires) = (inside, true);
            }
            Action::SendRenewal(at) => {
                state.claims[at].renews = Some(self.claims[at].lease - 1);
                state.claims[at].renewals = true;
            }
            Action::Leave(at) => {
                let phase = match state.claims[at].phase {
                    Phase::Held(_) => Phase::Releases,
                    _ => Phase::Undoes,
                };
                state.ends(at, phase);
            }
            Action::Acquire(..) | Action::Release(..) | Action::Renew(..) => {
                state.execute(self, action);
            }
            _ => state.jvm(self, action),
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, |sharing: &Self, state: &State| {
                state.is_exclusive(sharing)
            }),
            Property::always(BELIEF, |sharing: &Self, state: &State| {
                sharing
                    .all()
                    .all(|(at, _)| !state.believes(at) || state.claims[at].there)
            }),
            Property::always(LEAK, |_, state: &State| !state.is_left()),
            Property::sometimes("two are inside", |sharing: &Self, state: &State| {
                let ours = sharing.all().filter(|(at, _)| state.believes(*at)).count();
                let jvm = [state.reader, state.writer]
                    .iter()
                    .filter(|foreign| foreign.valid > 0)
                    .count();
                ours + jvm > 1 || sharing.jvm == Jvm::Lock && jvm > 0
            }),
        ]
    }
}

impl Checked for Sharing {}

#[test]
fn readers_and_a_writer_keep_the_promises() {
    keeps_its_promises(NESTED);
    keeps_its_promises(MIXED);
    keeps_its_promises(WRITERS);
}

#[test]
fn they_keep_them_beside_a_client_of_redisson() {
    keeps_its_promises(BESIDE_JVM);
    keeps_its_promises(BESIDE_LOCK);
}

#[test]
fn they_keep_them_though_the_lock_is_deleted() {
    keeps_its_promises(DELETED);
}

// ---- Its mutants ----

/// Redisson's reader deletes the hash with its release.
#[test]
fn a_reader_needs_a_timeout() {
    breaks(BESIDE_JVM.with(Mutant::NoTimeoutKey), &[BELIEF]);
}

#[test]
fn a_renewal_must_not_lower_a_lease() {
    breaks(MIXED.with(Mutant::RenewalLowers), &[EXCLUSION, BELIEF]);
}

#[test]
fn a_renewal_must_not_create() {
    breaks(MIXED.with(Mutant::RenewalCreates), &[LEAK]);
}

/// The write has been released, and somebody else writes.
#[test]
fn a_read_inside_a_write_has_to_compare_that() {
    breaks(WRITERS.with(Mutant::InsideNotCompared), &[EXCLUSION]);
}

#[test]
fn a_write_that_is_released_has_to_leave_the_lock_to_its_reads() {
    breaks(NESTED.with(Mutant::DowngradeFrees), &[BELIEF]);
    breaks(NESTED.with(Mutant::DowngradeOfADeadOne), &[LEAK]);
}

#[test]
fn a_read_that_is_released_has_to_leave_the_lock_to_others() {
    breaks(NESTED.with(Mutant::LiveReaderIgnored), &[BELIEF]);
    breaks(NESTED.with(Mutant::WriteIgnored), &[BELIEF]);
}

#[test]
fn another_kind_of_lock_has_no_readers() {
    breaks(BESIDE_LOCK.with(Mutant::TakesAPlainHash), &[EXCLUSION]);
}

#[test]
fn an_acquire_without_an_answer_has_to_be_undone_twice() {
    breaks(MIXED.with(Mutant::UndoneOnce), &[LEAK]);
}
