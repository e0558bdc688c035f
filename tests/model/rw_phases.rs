//! Who asks for a read-write lock when: lockers in processes of their own, the two hints on the
//! server and the turn of the readers, whichever commands and messages are late.
//!
//! # What is modelled
//! - The server: who is inside, the hint of a writer, that of a reader, which the release of a
//!   write turns into a turn, and what the scripts of `lua/read` and `lua/write` do to them.
//! - The lockers, one caller each, as a line has it: an ask after each message, after each look (a
//!   re-check of all who wait), after the end of a lease or a turn that kept them out, and once
//!   more after the subscription. Callers leave, also while they are asked for. One that waits
//!   again does so while the command that withdraws its hint is still on its way.
//! - Commands and messages take any time. A message may be lost, a turn may end before those who
//!   were called have asked, and a locker may die.
//!
//! # What is abstracted away
//! - Time: a look comes only when every ask that is due has been executed, and a turn ends only
//!   when every reader that was called has asked. That is the promise of timely readers; a slow one
//!   is a fault. A hint lasts two looks.
//! - A reader that was inside in a turn does not come again in the same one: how often it could is
//!   a question of milliseconds.
//! - Writers among themselves: which of them is first is a race, here as on Redisson's side.
//! - Readers of one locker, and those behind a writer of it: the line is in `fuzz.rs`.
//! - Redisson's clients: their readers know no hint, and their writers no turn.

use stateright::{Model, Property};

use crate::checked::{Checked, breaks, keeps_its_promises};

const LOCKERS: usize = 4;

/// Looks for which a hint is kept.
const HINT: u8 = 2;

/// A writer that rests is passed by no more reads than one turn has.
const WRITER: &str = "a waiting writer is inside after one turn of readers";
const READER: &str = "a waiting reader is inside within two writes";
/// Looks are only for what is lost.
const AWAKE: &str = "nobody waits until the next look for a lock that it would get";
const GHOSTS: &str = "the hint of a locker that died ends";

#[derive(Debug, Clone, Copy)]
struct Phases {
    writers: usize,
    readers: usize,
    leaves: u8,
    faults: u8,
    mutant: Option<Mutant>,
}

const PLAIN: Phases = Phases {
    writers: 2,
    readers: 1,
    leaves: 0,
    faults: 0,
    mutant: None,
};
const READERS: Phases = Phases {
    writers: 2,
    readers: 2,
    ..PLAIN
};
const LEAVES: Phases = Phases {
    writers: 2,
    readers: 1,
    leaves: 2,
    ..PLAIN
};
const FAULTY: Phases = Phases { faults: 1, ..PLAIN };

/// One mistake each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mutant {
    /// A writer that is refused leaves no hint.
    NoHint,
    /// The release of a write gives the readers no turn.
    NoTurn,
    /// In a turn a writer may take the lock.
    TurnForAll,
    /// The release of a read begins another turn.
    TurnAfterReads,
    /// The hint of a writer that leaves stays.
    HintKept,
    /// It is withdrawn without a message.
    SilentWithdrawal,
    /// It is withdrawn before the answer to an ask that is under way.
    WithdrawsAtOnce,
    /// The hint stays after the grant.
    GrantKeepsHint,
    /// The hint has no end.
    HintWithoutEnd,
    /// A downgrade sends no message, as Redisson's.
    SilentDowngrade,
    /// A locker waits after the first refusal, although it was not yet subscribed.
    TrustsFirstAnswer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum At {
    #[default]
    Out,
    /// An acquire is on its way.
    Asked,
    Waits,
    Inside,
    Dead,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Locker {
    at: At,
    listens: bool,
    /// A message is on its way to it.
    told: bool,
    /// One has come, or its hint was withdrawn, while an acquire was on its way.
    heard: bool,
    /// Its caller has left meanwhile.
    gone: bool,
    /// The end of a turn is known to it.
    until_turn: bool,
    withdraws: bool,
    /// Ghost: it was refused, and was not deaf or slow since.
    counts: bool,
    /// Ghost: reads that were granted while this writer rested, since the last write; or writes
    /// since this reader was refused.
    passed: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Hint {
    #[default]
    None,
    Waits(u8),
    Turn,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    lockers: [Locker; LOCKERS],
    writer: Option<usize>,
    /// A bit each, like the others.
    readers: u8,
    hint: Option<(usize, u8)>,
    reader_hint: Hint,
    /// Readers that were called when the turn began, and have not asked since.
    called: u8,
    /// Readers that were inside in this turn.
    had: u8,
    /// Ghost: the looks that the hint of a dead locker has outlasted.
    ghosts: u8,
    leaves: u8,
    faults: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Come(usize),
    Execute(usize),
    Deliver(usize),
    Lose(usize),
    Release(usize),
    Downgrade(usize),
    Leave(usize),
    Withdraw(usize),
    Die(usize),
    Expire(usize),
    Look,
    TurnEnds,
    TurnEndsEarly,
}

impl Phases {
    const fn with(self, mutant: Mutant) -> Self {
        Self {
            mutant: Some(mutant),
            ..self
        }
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn is_writer(&self, who: usize) -> bool {
        who < self.writers
    }

    fn all(&self) -> std::ops::Range<usize> {
        0..self.writers + self.readers
    }
}

impl State {
    /// Returns whether the script would grant now, and otherwise why not.
    fn refusal(&self, phases: &Phases, who: usize) -> Option<Refusal> {
        let is_free = self.writer.is_none() && self.readers == 0;
        if phases.is_writer(who) {
            let in_turn = self.reader_hint == Hint::Turn && !phases.is(Mutant::TurnForAll);
            return match is_free {
                true => in_turn.then_some(Refusal::Turn),
                false => Some(Refusal::Held),
            };
        }
        match self.hint {
            _ if self.writer.is_some() => Some(Refusal::Held),
            Some((by, _)) if self.reader_hint != Hint::Turn => Some(Refusal::Hint(by)),
            _ => None,
        }
    }

    /// Returns whether nobody stands behind the refusal.
    fn is_open(&self, phases: &Phases, who: usize) -> bool {
        match self.refusal(phases, who) {
            None => true,
            Some(Refusal::Hint(by)) => {
                let Locker { at, withdraws, .. } = self.lockers[by];
                !withdraws && !matches!(at, At::Asked | At::Waits)
            }
            Some(_) => false,
        }
    }

    fn publish(&mut self) {
        for locker in &mut self.lockers {
            let waits = matches!(locker.at, At::Asked | At::Waits);
            locker.told |= waits && locker.listens;
        }
    }

    fn wake(&mut self, which: impl Fn(&Locker) -> bool) {
        for locker in &mut self.lockers {
            if locker.at == At::Waits && which(locker) {
                (locker.at, locker.until_turn) = (At::Asked, false);
            }
        }
    }

    fn execute(&mut self, phases: &Phases, who: usize) {
        let (is_writer, refusal) = (phases.is_writer(who), self.refusal(phases, who));
        self.called &= !(1 << who);
        if let Some(refusal) = refusal {
            self.refused(phases, who, refusal);
            return;
        }
        if is_writer {
            self.writer = Some(who);
            if self.hint.is_some_and(|(by, _)| by == who) && !phases.is(Mutant::GrantKeepsHint) {
                self.hint = None;
            }
        } else {
            self.readers |= 1 << who;
            self.had |= 1 << who;
        }
        for other in phases.all() {
            let is_resting = {
                let other = &self.lockers[other];
                other.at == At::Waits && !other.told && other.counts
            };
            let other_writes = phases.is_writer(other);
            let passed = &mut self.lockers[other].passed;
            match (is_writer, other_writes) {
                (true, true) => *passed = 0,
                (false, true) if is_resting => *passed = (*passed + 1).min(7),
                (true, false) if self.lockers[other].counts => *passed = (*passed + 1).min(7),
                _ => {}
            }
        }
        let gone = self.lockers[who].gone;
        let withdraws = self.lockers[who].withdraws;
        self.lockers[who] = Locker {
            at: At::Inside,
            withdraws,
            ..Locker::default()
        };
        if gone {
            // What nobody wants is undone.
            self.release(phases, who);
        }
    }

    fn refused(&mut self, phases: &Phases, who: usize, refusal: Refusal) {
        if phases.is_writer(who) {
            if !phases.is(Mutant::NoHint) {
                self.hint = Some((who, HINT));
            }
        } else {
            self.reader_hint = Hint::Waits(HINT);
        }
        let locker = &mut self.lockers[who];
        if locker.gone {
            self.away(phases, who);
            return;
        }
        if !locker.counts {
            (locker.counts, locker.passed) = (true, 0);
        }
        let trusts = phases.is(Mutant::TrustsFirstAnswer);
        let again = locker.heard || !locker.listens && !trusts;
        locker.at = if again { At::Asked } else { At::Waits };
        (locker.heard, locker.listens) = (false, !trusts);
        locker.until_turn = refusal == Refusal::Turn;
    }

    /// The caller of a locker has left its line.
    fn away(&mut self, phases: &Phases, who: usize) {
        let Locker {
            gone, withdraws, ..
        } = self.lockers[who];
        let is_done = phases.is(Mutant::HintKept) || gone && phases.is(Mutant::WithdrawsAtOnce);
        let withdraws = withdraws || phases.is_writer(who) && !is_done;
        self.lockers[who] = Locker {
            withdraws,
            ..Locker::default()
        };
        self.called &= !(1 << who);
    }

    fn release(&mut self, phases: &Phases, who: usize) {
        self.lockers[who].at = At::Out;
        let was_writer = self.writer == Some(who);
        if was_writer {
            self.writer = None;
        } else {
            self.readers &= !(1 << who);
        }
        self.free(phases, was_writer);
    }

    /// What a release does to those who wait.
    fn free(&mut self, phases: &Phases, was_writer: bool) {
        if was_writer || self.readers == 0 {
            self.publish();
        }
        let begins = match self.reader_hint {
            Hint::Waits(_) => was_writer && !phases.is(Mutant::NoTurn),
            _ => phases.is(Mutant::TurnAfterReads) && !was_writer && self.readers == 0,
        };
        if begins {
            let is_called = |who: &usize| !phases.is_writer(*who) && self.lockers[*who].told;
            self.called = phases
                .all()
                .filter(is_called)
                .fold(0, |bits, who| bits | 1 << who);
            (self.reader_hint, self.had) = (Hint::Turn, 0);
        }
    }

    fn turn_ends(&mut self) {
        (self.reader_hint, self.called, self.had) = (Hint::None, 0, 0);
        self.wake(|locker| locker.until_turn);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    Held,
    Hint(usize),
    Turn,
}

impl Model for Phases {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            lockers: Default::default(),
            writer: None,
            readers: 0,
            hint: None,
            reader_hint: Hint::None,
            called: 0,
            had: 0,
            ghosts: 0,
            leaves: self.leaves,
            faults: self.faults,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for who in self.all() {
            let locker = &state.lockers[who];
            match locker.at {
                At::Out if state.had & 1 << who == 0 => actions.push(Action::Come(who)),
                At::Asked => actions.push(Action::Execute(who)),
                At::Inside => actions.push(Action::Release(who)),
                At::Dead if state.writer == Some(who) || state.readers & 1 << who != 0 => {
                    actions.push(Action::Expire(who));
                }
                _ => {}
            }
            if state.writer == Some(who) && locker.at == At::Inside {
                actions.push(Action::Downgrade(who));
            }
            if locker.told {
                actions.push(Action::Deliver(who));
            }
            if locker.withdraws {
                actions.push(Action::Withdraw(who));
            }
            let waits = matches!(locker.at, At::Asked | At::Waits) && !locker.gone;
            if state.leaves > 0 && waits {
                actions.push(Action::Leave(who));
            }
            if state.faults > 0 && locker.told {
                actions.push(Action::Lose(who));
            }
            if state.faults > 0 && (waits || locker.at == At::Inside) {
                actions.push(Action::Die(who));
            }
        }
        if !state.lockers.iter().any(|locker| locker.at == At::Asked) {
            actions.push(Action::Look);
        }
        if state.reader_hint == Hint::Turn {
            if state.called == 0 {
                actions.push(Action::TurnEnds);
            } else if state.faults > 0 {
                actions.push(Action::TurnEndsEarly);
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Come(who) => state.lockers[who].at = At::Asked,
            Action::Execute(who) => state.execute(self, who),
            Action::Deliver(who) => {
                let locker = &mut state.lockers[who];
                locker.told = false;
                locker.heard |= locker.at == At::Asked;
                if locker.at == At::Waits {
                    locker.at = At::Asked;
                }
            }
            Action::Lose(who) => {
                state.faults -= 1;
                state.called &= !(1 << who);
                (state.lockers[who].told, state.lockers[who].counts) = (false, false);
            }
            Action::Release(who) => state.release(self, who),
            Action::Downgrade(who) => {
                (state.writer, state.readers) = (None, state.readers | 1 << who);
                state.free(self, true);
                if self.is(Mutant::SilentDowngrade) {
                    state
                        .lockers
                        .iter_mut()
                        .for_each(|locker| locker.told = false);
                }
            }
            Action::Leave(who) => {
                state.leaves -= 1;
                if state.lockers[who].at == At::Waits {
                    state.away(self, who);
                } else {
                    let locker = &mut state.lockers[who];
                    locker.gone = true;
                    locker.withdraws |= self.is(Mutant::WithdrawsAtOnce) && self.is_writer(who);
                }
            }
            Action::Withdraw(who) => {
                let locker = &mut state.lockers[who];
                locker.withdraws = false;
                // The line asks once more: the hint may have been that of its next caller.
                locker.heard |= locker.at == At::Asked;
                if locker.at == At::Waits {
                    locker.at = At::Asked;
                }
                if state.hint.is_some_and(|(by, _)| by == who) {
                    state.hint = None;
                    if !self.is(Mutant::SilentWithdrawal) {
                        state.publish();
                    }
                }
            }
            Action::Die(who) => {
                state.faults -= 1;
                state.lockers[who] = Locker {
                    at: At::Dead,
                    ..Locker::default()
                };
                state.called &= !(1 << who);
            }
            Action::Expire(who) => {
                if state.writer == Some(who) {
                    state.writer = None;
                }
                state.readers &= !(1 << who);
                // The end of the lease is known to those who wait.
                state.wake(|_| true);
            }
            Action::Look => {
                state.wake(|_| true);
                if !self.is(Mutant::HintWithoutEnd) {
                    state.hint = state
                        .hint
                        .and_then(|(by, left)| (left > 1).then_some((by, left - 1)));
                }
                let is_dead = |(by, _): (usize, u8)| state.lockers[by].at == At::Dead;
                let ghosts = state.ghosts + u8::from(state.hint.is_some_and(is_dead));
                state.ghosts = ghosts.min(HINT);
                state.reader_hint = match state.reader_hint {
                    Hint::Waits(left) if left > 1 => Hint::Waits(left - 1),
                    Hint::Turn => Hint::Turn,
                    _ => Hint::None,
                };
            }
            Action::TurnEnds => state.turn_ends(),
            Action::TurnEndsEarly => {
                state.faults -= 1;
                for locker in &mut state.lockers[self.writers..] {
                    locker.counts = false;
                }
                state.turn_ends();
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(WRITER, |phases: &Self, state: &State| {
                phases
                    .all()
                    .filter(|who| phases.is_writer(*who))
                    .all(|who| usize::from(state.lockers[who].passed) <= phases.readers)
            }),
            Property::always(READER, |phases: &Self, state: &State| {
                let mut readers = phases.all().filter(|who| !phases.is_writer(*who));
                readers.all(|who| state.lockers[who].passed <= 2)
            }),
            Property::always(AWAKE, |phases: &Self, state: &State| {
                let sleeps = |who: usize| {
                    let locker = &state.lockers[who];
                    let rests = locker.at == At::Waits && !locker.told && !locker.until_turn;
                    rests && state.is_open(phases, who)
                };
                phases.faults > 0 || !phases.all().any(sleeps)
            }),
            Property::always(GHOSTS, |_, state: &State| state.ghosts < HINT),
            Property::sometimes("a turn is used", |_, state: &State| {
                state.reader_hint == Hint::Turn && state.had != 0 && state.hint.is_some()
            }),
        ]
    }
}

impl Checked for Phases {}

#[test]
fn writers_and_readers_that_wait_get_a_lock() {
    keeps_its_promises(PLAIN);
    keeps_its_promises(READERS);
}

#[test]
fn they_get_it_though_others_leave() {
    keeps_its_promises(LEAVES);
}

#[test]
fn they_get_it_though_a_message_is_lost_or_a_locker_dies() {
    keeps_its_promises(FAULTY);
}

// ---- Its mutants ----

/// Readers pass it without an end.
#[test]
fn a_writer_has_to_leave_a_hint() {
    breaks(PLAIN.with(Mutant::NoHint), &[WRITER]);
}

/// Two writers take the lock in turns.
#[test]
fn readers_need_a_turn_that_no_writer_takes() {
    breaks(PLAIN.with(Mutant::NoTurn), &[READER]);
    breaks(PLAIN.with(Mutant::TurnForAll), &[READER]);
}

#[test]
fn only_a_write_may_begin_a_turn() {
    breaks(READERS.with(Mutant::TurnAfterReads), &[WRITER]);
}

#[test]
fn a_writer_that_leaves_has_to_withdraw_its_hint() {
    breaks(LEAVES.with(Mutant::HintKept), &[AWAKE]);
    breaks(LEAVES.with(Mutant::SilentWithdrawal), &[AWAKE]);
}

/// The server executes the withdrawal first.
#[test]
fn a_hint_has_to_be_withdrawn_after_the_answer() {
    breaks(LEAVES.with(Mutant::WithdrawsAtOnce), &[AWAKE]);
}

#[test]
fn a_grant_has_to_end_the_hint() {
    breaks(PLAIN.with(Mutant::GrantKeepsHint), &[AWAKE]);
}

#[test]
fn a_hint_has_to_end_by_itself() {
    breaks(FAULTY.with(Mutant::HintWithoutEnd), &[GHOSTS]);
}

#[test]
fn a_downgrade_has_to_wake_readers() {
    breaks(PLAIN.with(Mutant::SilentDowngrade), &[AWAKE]);
}

/// A message came before the subscription.
#[test]
fn a_refusal_from_before_the_subscription_says_nothing() {
    breaks(PLAIN.with(Mutant::TrustsFirstAnswer), &[AWAKE]);
}
