//! Hand-overs within a process, model-checked: one script releases the lock of a holder and takes it for the next
//! waiter of the same process.
//!
//! # What is modelled
//! - The server: one key with the field of its holder, the lease, and the mark that fences come from.
//! - The process: its line of waiters, the one hold of its slot, and what it does with each answer to a hand-over:
//!   granted in time, too late, or to a waiter that is gone; "gone"; no answer. A hand-over without an answer is undone
//!   in order: the releaser's field first, until that is answered, and only then the next one's.
//! - Hand-overs and releases on the wire: executed at any time, in any order, several times, or never. Their answers
//!   are lost, or come late.
//! - Callers that give up while they wait, or do not take their grant; a loss, a deletion from outside, and closing, at
//!   any time; ticks of the lease; another process, which may take the lock whenever it is free.
//!
//! # What is abstracted away
//! - Acquires and their undos, renewals, re-entries and drift: see the model of one server. Here an acquire is executed
//!   and answered at once.
//! - Waiters elsewhere, and when a process has handed over often enough: they decide who is next, and no promise
//!   depends on that. Here a release may or may not be a hand-over.

use stateright::{Model, Property};

use crate::{Checked, LEASE, breaks, keeps_its_promises};

/// The most grants of the process.
const GRANTS: usize = 5;
/// The most callers that wait.
const CALLERS: usize = 3;

/// No two are inside.
const EXCLUSION: &str = "exclusion";
/// A holder with validity left has the key, unless it was deleted from outside.
const BELIEF: &str = "belief";
/// When nobody wants, holds or undoes anything, the key has no field of this process, whatever may still be in flight.
const LEAK: &str = "leak";
/// While callers wait and the slot is free, the driver is awake.
const FORGOTTEN: &str = "forgotten";
/// Each holder has a higher fence than all before it.
const FENCES: &str = "fences";
/// A releaser is told that it held the lock only if it did.
const TOLD: &str = "told";

/// The protocol within bounds, perhaps with a mistake.
#[derive(Debug, Clone, Copy)]
struct Protocol {
    callers: u8,
    grants: u8,
    /// How often the key is deleted from outside.
    deletions: u8,
    /// How often the other process takes the lock.
    others: u8,
    mutant: Option<Mutant>,
}

const FULL: Protocol = Protocol { callers: 3, grants: 5, deletions: 0, others: 2, mutant: None };
const DELETED: Protocol = Protocol { callers: 3, grants: 4, deletions: 1, others: 1, ..FULL };

/// One mistake each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mutant {
    /// The script takes the lock from any holder.
    GrantsBlindly,
    /// The script also takes the lock if it is free, as a late copy may find it.
    TakesWhatIsFree,
    /// Validity counts from the reply.
    ValidityFromReply,
    /// The releaser counts itself as a holder until the answer comes.
    LeavesWithTheAnswer,
    /// After no answer both fields are undone at once, in whatever order.
    UndoesBothAtOnce,
    /// After no answer only the releaser's field is undone.
    UndoesTheFirstOnly,
    /// After no answer only the next one's field is undone.
    UndoesTheSecondOnly,
    /// A yes that comes too late is not undone.
    LateYesKept,
    /// A grant to a caller that is gone is not given back.
    UnwantedKept,
    /// The next holder has the fence of the one before.
    SameFence,
    /// The driver goes on waiting after the answer "gone".
    ForgetsTheLine,
    /// A releaser whose lock was gone is told that it was released.
    GoneIsDone,
}

/// Whose field the key has: that of a grant of this process, or that of the other process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum By {
    Here(u8),
    Elsewhere,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    by: By,
    lease: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Caller {
    Waits,
    /// It has the lock, or the grant is on its way.
    Has,
    Gone,
}

/// The hold of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Slot {
    Free,
    Held {
        grant: u8,
        valid: u8,
        caller: u8,
    },
    /// Its tokens have fired, and its guard still lives.
    Lost {
        grant: u8,
        caller: u8,
    },
    HandsOver {
        from: u8,
        to: u8,
        caller: u8,
        /// The validity that would be left if the answer came now.
        valid: u8,
        answer: Option<Answer>,
    },
    Releasing {
        grant: u8,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Answer {
    /// With a fence.
    Granted(u8),
    Gone,
}

/// How the field of a grant is undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Undo {
    #[default]
    None,
    /// A release is sent until it is answered, and then that of the `then` grant.
    Sent { then: Option<u8> },
}

/// A hand-over on the wire; its index is the grant that it makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Sent {
    from: u8,
    executed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    key: Option<Key>,
    mark: u8,
    hand_overs: [Option<Sent>; GRANTS],
    /// The grants whose releases were sent: each may be executed at any time from then on.
    releases: [bool; GRANTS],
    callers: [Caller; CALLERS],
    slot: Slot,
    made: u8,
    undos: [Undo; GRANTS],
    /// Whether the driver looks for work.
    awake: bool,
    closed: bool,
    /// The validity that the other process has left, while it is inside.
    other: Option<u8>,
    others: u8,
    deletions: u8,
    /// Ghost: the holder whose key was deleted from outside, until it is not inside any more.
    victim: Option<By>,
    /// Ghost: the highest fence of all that were inside.
    highest: u8,
    /// Ghosts.
    unordered: bool,
    untrue: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Tick,
    Delete,
    OtherComes,
    OtherLeaves,
    /// The server executes the hand-over that makes this grant.
    HandOver(u8),
    /// The server executes the release of this grant; its answer arrives, or not.
    Release(u8, bool),
    /// The driver acquires for the head of the line.
    Attempt,
    /// A guard is released, or a grant that its caller has not taken is taken back. The lock is handed over or
    /// released.
    Leave {
        hands_over: bool,
    },
    /// A caller stops waiting.
    GoesAway(u8),
    Answered,
    /// A command timeout: the outcome of the hand-over is unknown.
    Timeout,
    /// A command timeout: the caller goes on, and the release is sent further.
    Unconfirmed,
    Lose,
    Close,
}

impl Protocol {
    const fn with(self, mutant: Mutant) -> Self {
        Self { mutant: Some(mutant), ..self }
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut callers = [Caller::Gone; CALLERS];
        callers[..usize::from(self.callers)].fill(Caller::Waits);
        vec![State {
            key: None,
            mark: 0,
            hand_overs: [None; GRANTS],
            releases: [false; GRANTS],
            callers,
            slot: Slot::Free,
            made: 0,
            undos: [Undo::None; GRANTS],
            awake: true,
            closed: false,
            other: None,
            others: self.others,
            deletions: self.deletions,
            victim: None,
            highest: 0,
            unordered: false,
            untrue: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.push(Action::Tick);
        if state.deletions > 0 && state.key.is_some() {
            actions.push(Action::Delete);
        }
        if state.others > 0 && state.key.is_none() {
            actions.push(Action::OtherComes);
        }
        if state.other.is_some() {
            actions.push(Action::OtherLeaves);
        }
        for (grant, sent) in (0..).zip(state.hand_overs) {
            actions.extend(sent.map(|_| Action::HandOver(grant)));
        }
        for (grant, _) in (0..).zip(state.releases).filter(|(_, sent)| *sent) {
            actions.extend([Action::Release(grant, true), Action::Release(grant, false)]);
        }
        for (caller, _) in (0..).zip(state.callers).filter(|(_, is)| *is == Caller::Waits) {
            actions.push(Action::GoesAway(caller));
        }
        let may_make = state.made < self.grants && !state.closed && state.head().is_some();
        match state.slot {
            Slot::Free if may_make && state.awake && state.key.is_none() => actions.push(Action::Attempt),
            Slot::Free => {}
            Slot::Held { .. } => {
                actions.extend([Action::Leave { hands_over: false }, Action::Lose]);
                if may_make {
                    actions.push(Action::Leave { hands_over: true });
                }
            }
            Slot::Lost { .. } => actions.push(Action::Leave { hands_over: false }),
            Slot::HandsOver { answer, .. } => {
                actions.push(Action::Timeout);
                actions.extend(answer.map(|_| Action::Answered));
            }
            Slot::Releasing { .. } => actions.push(Action::Unconfirmed),
        }
        if !state.closed {
            actions.push(Action::Close);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        state.act(self, action);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = promises();
        properties.extend(sights(self));
        properties
    }
}

impl Checked for Protocol {}

fn promises() -> Vec<Property<Protocol>> {
    vec![
        Property::always(EXCLUSION, |model, state: &State| state.inside(model).count() <= 1),
        Property::always(BELIEF, |model, state: &State| {
            state.inside(model).all(|by| state.key.is_some_and(|key| key.by == by))
        }),
        Property::always(LEAK, |_, state: &State| {
            !state.is_quiet() || state.key.is_none_or(|key| key.by == By::Elsewhere)
        }),
        Property::always(FORGOTTEN, |_, state: &State| {
            state.slot != Slot::Free || state.head().is_none() || state.awake
        }),
        Property::always(FENCES, |_, state: &State| !state.unordered),
        Property::always(TOLD, |_, state: &State| !state.untrue),
    ]
}

/// Returns what has to happen, since a model in which nothing happens keeps every promise.
fn sights(protocol: &Protocol) -> Vec<Property<Protocol>> {
    let mut sights = vec![
        Property::sometimes("two in a row", |_, state: &State| {
            matches!(state.slot, Slot::Held { grant: 2, .. }) && state.is_executed(1) && state.is_executed(2)
        }),
        Property::sometimes("late yes", |_, state: &State| {
            matches!(state.slot, Slot::HandsOver { valid: 0, answer: Some(Answer::Granted(_)), .. })
        }),
        Property::sometimes("yes without an answer", |_, state: &State| {
            let is_second = |undo: &Undo| matches!(undo, Undo::Sent { then: Some(to) } if state.is_executed(*to));
            state.undos.iter().any(is_second) && state.key.is_some()
        }),
        Property::sometimes("another process comes between", |_, state: &State| {
            state.other.is_some() && matches!(state.slot, Slot::HandsOver { answer: Some(Answer::Gone), .. })
        }),
        Property::sometimes("closed meanwhile", |_, state: &State| {
            state.closed && matches!(state.slot, Slot::HandsOver { answer: Some(Answer::Granted(_)), .. })
        }),
    ];
    if protocol.deletions > 0 {
        sights.push(Property::sometimes("deletion", |model, state: &State| {
            state.victim.is_some() && state.inside(model).count() == 1
        }));
    }
    sights
}

impl State {
    /// Returns the first caller in line.
    fn head(&self) -> Option<u8> {
        (0..).zip(self.callers).find(|(_, caller)| *caller == Caller::Waits).map(|(at, _)| at)
    }

    /// Returns the holders, except one that a deletion from outside has deceived.
    fn inside(&self, protocol: &Protocol) -> impl Iterator<Item = By> {
        let here = match self.slot {
            Slot::Held { grant, .. } => Some(By::Here(grant)),
            Slot::HandsOver { from, .. } if protocol.is(Mutant::LeavesWithTheAnswer) => Some(By::Here(from)),
            _ => None,
        };
        let victim = self.victim;
        here.into_iter().chain(self.other.map(|_| By::Elsewhere)).filter(move |by| victim != Some(*by))
    }

    /// Returns whether the server has executed the hand-over that makes this grant.
    fn is_executed(&self, grant: u8) -> bool {
        self.hand_overs[usize::from(grant)].is_some_and(|sent| sent.executed)
    }

    fn is_quiet(&self) -> bool {
        let is_undone = self.undos.iter().all(|undo| *undo == Undo::None);
        self.slot == Slot::Free && self.other.is_none() && self.head().is_none() && is_undone
    }

    /// Applies an action.
    fn act(&mut self, protocol: &Protocol, action: Action) {
        match action {
            Action::Tick => self.tick(),
            Action::Delete => {
                self.deletions -= 1;
                self.victim = self.key.take().map(|key| key.by);
            }
            Action::OtherComes => {
                self.others -= 1;
                self.put(By::Elsewhere);
                self.mark += 1;
                self.other = Some(LEASE - 1);
                self.enters(By::Elsewhere, self.mark);
            }
            Action::OtherLeaves => {
                self.other = None;
                self.release(By::Elsewhere);
            }
            Action::HandOver(to) => self.execute(protocol, to),
            Action::Release(grant, heard) => self.execute_release(grant, heard),
            Action::Attempt => self.attempt(),
            Action::Leave { hands_over } => self.leave(hands_over),
            Action::GoesAway(caller) => self.callers[usize::from(caller)] = Caller::Gone,
            Action::Answered => self.answered(protocol),
            Action::Timeout => self.timeout(protocol),
            Action::Unconfirmed => self.free(),
            Action::Lose => self.lose(),
            Action::Close => {
                self.closed = true;
                let waits = self.callers.iter_mut().filter(|caller| **caller == Caller::Waits);
                waits.for_each(|caller| *caller = Caller::Gone);
                self.lose();
            }
        }
        let fooled = |by: By| match (by, self.slot) {
            (By::Here(one), Slot::Held { grant, .. }) => one == grant,
            (By::Here(one), Slot::HandsOver { from, to, .. }) => one == from || one == to,
            (By::Here(_), _) => false,
            (By::Elsewhere, _) => self.other.is_some(),
        };
        self.victim = self.victim.filter(|by| fooled(*by));
    }

    fn tick(&mut self) {
        if let Some(key) = &mut self.key {
            key.lease -= 1;
            if key.lease == 0 {
                self.key = None;
            }
        }
        self.other = self.other.map(|valid| valid - 1).filter(|valid| *valid > 0);
        match &mut self.slot {
            Slot::Held { valid, .. } => {
                *valid -= 1;
                if *valid == 0 {
                    self.lose();
                }
            }
            Slot::HandsOver { valid, .. } => *valid = valid.saturating_sub(1),
            Slot::Free | Slot::Lost { .. } | Slot::Releasing { .. } => {}
        }
    }

    fn put(&mut self, by: By) {
        self.key = Some(Key { by, lease: LEASE });
    }

    fn release(&mut self, by: By) {
        if self.key.is_some_and(|key| key.by == by) {
            self.key = None;
        }
    }

    /// A holder enters with this fence. A holder whose key was deleted meanwhile is excepted.
    fn enters(&mut self, by: By, fence: u8) {
        self.unordered |= fence <= self.highest && self.victim != Some(by);
        self.highest = self.highest.max(fence);
    }
}

/// What the server does.
impl State {
    fn execute(&mut self, protocol: &Protocol, to: u8) {
        let Some(Sent { from, executed }) = self.hand_overs[usize::from(to)] else { return };
        self.hand_overs[usize::from(to)] = Some(Sent { from, executed: true });
        let is_there = match self.key {
            Some(key) => key.by == By::Here(from) || protocol.is(Mutant::GrantsBlindly),
            None => protocol.is(Mutant::TakesWhatIsFree),
        };
        let said = if is_there {
            self.put(By::Here(to));
            self.mark += u8::from(!protocol.is(Mutant::SameFence));
            Answer::Granted(self.mark)
        } else {
            Answer::Gone
        };
        // A hand-over is sent once and answered once.
        match &mut self.slot {
            Slot::HandsOver { to: awaited, answer: answer @ None, .. } if *awaited == to && !executed => {
                *answer = Some(said);
            }
            _ => {}
        }
    }

    fn execute_release(&mut self, grant: u8, heard: bool) {
        self.release(By::Here(grant));
        if !heard {
            return;
        }
        if let Undo::Sent { then } = std::mem::take(&mut self.undos[usize::from(grant)]) {
            then.into_iter().for_each(|next| self.undo(next, None));
        }
        if self.slot == (Slot::Releasing { grant }) {
            self.free();
        }
    }
}

/// What the process does.
impl State {
    fn free(&mut self) {
        self.slot = Slot::Free;
        self.awake = true;
    }

    fn undo(&mut self, grant: u8, then: Option<u8>) {
        self.undos[usize::from(grant)] = Undo::Sent { then };
        self.releases[usize::from(grant)] = true;
    }

    fn attempt(&mut self) {
        let Some(caller) = self.head() else { return };
        let grant = self.made;
        self.made += 1;
        self.put(By::Here(grant));
        self.mark += 1;
        self.admit(grant, LEASE - 1, caller, self.mark);
    }

    fn admit(&mut self, grant: u8, valid: u8, caller: u8, fence: u8) {
        self.callers[usize::from(caller)] = Caller::Has;
        self.slot = Slot::Held { grant, valid, caller };
        self.awake = false;
        self.enters(By::Here(grant), fence);
    }

    fn leave(&mut self, hands_over: bool) {
        let (grant, caller) = match self.slot {
            Slot::Held { grant, caller, .. } | Slot::Lost { grant, caller } => (grant, caller),
            Slot::Free | Slot::HandsOver { .. } | Slot::Releasing { .. } => return,
        };
        self.callers[usize::from(caller)] = Caller::Gone;
        match (self.slot, self.head()) {
            (Slot::Lost { .. }, _) => {
                self.undo(grant, None);
                self.free();
            }
            (_, Some(next)) if hands_over => {
                let to = self.made;
                self.made += 1;
                self.hand_overs[usize::from(to)] = Some(Sent { from: grant, executed: false });
                self.slot = Slot::HandsOver { from: grant, to, caller: next, valid: LEASE - 1, answer: None };
            }
            _ => {
                self.undo(grant, None);
                self.slot = Slot::Releasing { grant };
            }
        }
    }

    fn answered(&mut self, protocol: &Protocol) {
        let Slot::HandsOver { from, to, caller, valid, answer: Some(answer) } = self.slot else { return };
        let is_victim = self.victim == Some(By::Here(from));
        let valid = if protocol.is(Mutant::ValidityFromReply) { LEASE - 1 } else { valid };
        match answer {
            Answer::Gone => {
                self.untrue |= is_victim && protocol.is(Mutant::GoneIsDone);
                self.free();
                self.awake = !protocol.is(Mutant::ForgetsTheLine);
            }
            Answer::Granted(_) if valid == 0 => {
                if !protocol.is(Mutant::LateYesKept) {
                    self.undo(to, None);
                }
                self.free();
            }
            Answer::Granted(fence) if self.callers[usize::from(caller)] == Caller::Waits => {
                self.admit(to, valid, caller, fence);
            }
            Answer::Granted(_) if protocol.is(Mutant::UnwantedKept) => self.free(),
            // Its caller is gone: the grant is released like any other.
            Answer::Granted(_) => {
                self.undo(to, None);
                self.slot = Slot::Releasing { grant: to };
            }
        }
    }

    fn timeout(&mut self, protocol: &Protocol) {
        let Slot::HandsOver { from, to, .. } = self.slot else { return };
        self.slot = Slot::Releasing { grant: from };
        match protocol.mutant {
            Some(Mutant::UndoesBothAtOnce) => {
                self.undo(from, None);
                self.undo(to, None);
            }
            Some(Mutant::UndoesTheFirstOnly) => self.undo(from, None),
            Some(Mutant::UndoesTheSecondOnly) => {
                self.undo(to, None);
                self.free();
            }
            _ => self.undo(from, Some(to)),
        }
    }

    /// The hold is lost: by time, by a force_unlock, or by closing.
    fn lose(&mut self) {
        if let Slot::Held { grant, caller, .. } = self.slot {
            self.slot = Slot::Lost { grant, caller };
        }
    }
}

// ---- The protocol ----

#[test]
fn hand_overs_keep_the_promises() {
    keeps_its_promises(FULL);
}

#[test]
fn hand_overs_keep_the_promises_though_the_key_is_deleted() {
    keeps_its_promises(DELETED);
}

// ---- Its mutants ----

#[test]
fn a_hand_over_has_to_compare_the_field() {
    breaks(FULL.with(Mutant::GrantsBlindly), &[EXCLUSION, LEAK]);
}

/// A late copy takes a lock that nobody releases.
#[test]
fn a_hand_over_must_not_take_a_free_lock() {
    breaks(FULL.with(Mutant::TakesWhatIsFree), &[LEAK]);
}

#[test]
fn validity_of_a_hand_over_counts_from_before_the_send() {
    breaks(FULL.with(Mutant::ValidityFromReply), &[EXCLUSION]);
}

#[test]
fn a_releaser_stops_holding_before_the_hand_over_is_sent() {
    breaks(FULL.with(Mutant::LeavesWithTheAnswer), &[BELIEF]);
}

/// The undo of the second field overtakes the hand-over, which overtakes the undo of the first.
#[test]
fn a_hand_over_without_an_answer_is_undone_in_order() {
    breaks(FULL.with(Mutant::UndoesBothAtOnce), &[LEAK]);
}

#[test]
fn both_fields_of_a_hand_over_without_an_answer_are_undone() {
    breaks(FULL.with(Mutant::UndoesTheFirstOnly), &[LEAK]);
    breaks(FULL.with(Mutant::UndoesTheSecondOnly), &[LEAK]);
}

#[test]
fn a_hand_over_that_was_granted_too_late_has_to_be_undone() {
    breaks(FULL.with(Mutant::LateYesKept), &[LEAK]);
}

#[test]
fn a_hand_over_to_a_caller_that_is_gone_has_to_be_released() {
    breaks(FULL.with(Mutant::UnwantedKept), &[LEAK]);
}

#[test]
fn each_hand_over_has_a_fence_of_its_own() {
    breaks(FULL.with(Mutant::SameFence), &[FENCES]);
}

#[test]
fn a_hand_over_that_finds_the_lock_gone_wakes_the_line() {
    breaks(FULL.with(Mutant::ForgetsTheLine), &[FORGOTTEN]);
}

#[test]
fn a_releaser_is_told_that_its_lock_was_deleted_before_the_hand_over() {
    breaks(DELETED.with(Mutant::GoneIsDone), &[TOLD]);
}
