//! A latch, its callers and a caller that waits, on one server: whichever commands, messages and
//! answers are late, repeated or lost.
//!
//! # What is modelled
//! - The server: the count, the ids of calls that it remembers, and what `set_latch.lua`,
//!   `count_down.lua` and `latch.lua` do to them. A latch without a count is open.
//! - Two calls that set the latch and two or three that count it down, each with an id of its own.
//!   A call sends its command until it has an answer, or gives up. A command that was sent is
//!   executed at any time, any number of times, or never: also after its call has ended, and in the
//!   second round.
//! - A JVM, which sets, counts down and deletes as Redisson does, without ids.
//! - The caller that waits. It may find a subscription that another one has made before. It reads
//!   when it begins, when its subscription is confirmed, at a message, after a reconnect, and when
//!   it looks. An answer takes any time.
//! - Messages take any time, and may be lost.
//!
//! # What is abstracted away
//! - Time: a look comes only when nothing else is on its way to the caller that waits, and the
//!   server remembers every id. It forgets one after an hour and an `outage_tolerance`.
//!
//! # What is not promised, and so is no promise here
//! - A call that gave up may still be carried out, once, in whichever round that is.
//! - A latch that is set again at once may be closed again before a waiting caller has read.

use stateright::{Model, Property};

use crate::checked::{Checked, breaks, keeps_its_promises};

/// The calls: the first two set the latch to their number of counts, the others count down.
const CALLS: usize = 5;
const COUNTS: [i8; 2] = [2, 1];

const ONCE: &str = "a call sets or counts once at most, however often it is sent";
const OVER: &str = "a call that was answered changes nothing any more";
const TRUTH: &str = "an answer says what the call has done";
const ABOVE: &str = "a count is above zero, or is not there";
const OPEN: &str = "a wait ends only if the latch was open since it began";
const AWAKE: &str = "a caller does not wait for a look when the latch was opened by a message";
const LOOKS: &str = "a caller waits at an open latch until its next look at most";
const OPENS: &str = "a latch opens, and as often as there are counts for it";

#[derive(Debug, Clone, Copy)]
struct Latch {
    /// How many calls there are, of those that set it and those that count.
    calls: usize,
    /// Whether a caller waits.
    waits: bool,
    jvm: Jvm,
    faults: u8,
    mutant: Option<Mutant>,
}

/// How often a JVM does what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Jvm {
    sets: u8,
    counts: u8,
    deletes: u8,
}

/// Two rounds, for which nobody waits.
const ROUNDS: Latch = Latch {
    calls: 5,
    waits: false,
    jvm: Jvm {
        sets: 0,
        counts: 0,
        deletes: 0,
    },
    faults: 0,
    mutant: None,
};
/// A caller waits for one round.
const WAITED: Latch = Latch {
    calls: 4,
    waits: true,
    ..ROUNDS
};
const BESIDE_A_JVM: Latch = Latch {
    calls: 3,
    jvm: Jvm {
        sets: 1,
        counts: 1,
        deletes: 1,
    },
    ..WAITED
};
const FAULTY: Latch = Latch {
    calls: 3,
    faults: 2,
    ..WAITED
};

/// One mistake each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mutant {
    /// A copy of a count counts.
    CountsTwice,
    /// A copy of a call that has set the latch sets it again.
    SetsTwice,
    /// The ids are deleted with the last count.
    ForgetsAtZero,
    /// The ids are deleted when the latch is set.
    ForgetsAtSet,
    /// A count of an unset latch leaves no id.
    UnsetLeavesNoId,
    /// A call that finds a set latch leaves no id.
    RefusedLeavesNoId,
    /// A copy of a call that has set the latch reports that another call has.
    CopyIsRefused,
    /// An unset latch is counted down.
    CountsBelowZero,
    /// The last count leaves a zero behind.
    LeavesZero,
    /// The last count sends no message.
    OpensSilently,
    /// A waiting caller believes any message.
    BelievesMessages,
    /// It reads only if a message says that the latch is open, as Redisson's do.
    HearsZerosOnly,
    /// It does not read again when its subscription is confirmed.
    TrustsFirstRead,
    /// It does not read again after a reconnect.
    TrustsReconnects,
    /// It forgets a message that came while it read.
    ForgetsWhileReading,
    /// It relies on messages.
    NeverLooks,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Call {
    NotYet,
    Sent,
    /// What it was told: whether it has set the latch, or is counted.
    Answered(bool),
    GaveUp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Waiting {
    NotYet,
    Sleeps,
    /// It reads, and the answer says whether the latch is open.
    Reads(Option<bool>),
    Opened,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    count: Option<i8>,
    /// What the server remembers of each call: what it has done.
    ids: [Option<bool>; CALLS],
    calls: [Call; CALLS],
    jvm: Jvm,
    /// Ghost: how often each call has changed the count, up to twice.
    changes: [u8; CALLS],
    /// Ghost: a call that was answered has changed the count.
    late: bool,
    listens: bool,
    /// Whether the subscription has been there before.
    again: bool,
    /// Messages on their way: that the latch is open, or has another count.
    told: [bool; 2],
    /// There is a reason to read.
    bell: bool,
    waiting: Waiting,
    /// Ghost: the latch was open since the wait began.
    was_open: bool,
    /// Ghost: whether the last opening was announced to a listener, and no message was lost since.
    announced: bool,
    /// Ghost: it has looked since the latch opened.
    looked: bool,
    faults: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Send(usize),
    /// The server carries out a copy, and its answer is heard or not.
    Execute(usize, bool),
    GiveUp(usize),
    JvmSets,
    JvmCounts,
    JvmDeletes,
    Subscribe,
    Deliver(usize),
    Lose(usize),
    Reconnect,
    Wait,
    Read,
    ExecuteRead,
    Answer,
    Look,
}

impl Latch {
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

/// The places of the two messages.
const ZERO: usize = 0;
const NEW: usize = 1;

impl State {
    fn is_open(&self) -> bool {
        self.count.is_none_or(|count| count <= 0)
    }

    fn publish(&mut self, message: usize) {
        self.told[message] |= self.listens;
    }

    /// `set_latch.lua`, which returns whether this call has set it.
    fn set(&mut self, latch: &Latch, call: usize) -> bool {
        if let Some(has_set) = self.ids[call]
            && !(has_set && latch.is(Mutant::SetsTwice))
        {
            return has_set && !latch.is(Mutant::CopyIsRefused);
        }
        if self.count.is_some() {
            if !latch.is(Mutant::RefusedLeavesNoId) {
                self.ids[call] = Some(false);
            }
            return false;
        }
        if latch.is(Mutant::ForgetsAtSet) {
            self.ids = [None; CALLS];
        }
        self.ids[call] = Some(true);
        self.count = Some(COUNTS[call]);
        self.publish(NEW);
        true
    }

    /// `count_down.lua`, which returns whether there was something to count.
    fn count_down(&mut self, latch: &Latch, call: usize) -> bool {
        if let Some(counted) = self.ids[call]
            && !latch.is(Mutant::CountsTwice)
        {
            return counted;
        }
        if self.count.is_none() && !latch.is(Mutant::CountsBelowZero) {
            if !latch.is(Mutant::UnsetLeavesNoId) {
                self.ids[call] = Some(false);
            }
            return false;
        }
        self.ids[call] = Some(true);
        self.decrement(latch);
        true
    }

    fn decrement(&mut self, latch: &Latch) {
        let left = self.count.unwrap_or(0) - 1;
        self.count = Some(left);
        if left == 0 {
            if !latch.is(Mutant::LeavesZero) {
                self.count = None;
            }
            if latch.is(Mutant::ForgetsAtZero) {
                self.ids = [None; CALLS];
            }
            if !latch.is(Mutant::OpensSilently) {
                self.publish(ZERO);
            }
        }
    }

    /// Whether nothing is on its way to the caller that waits.
    fn rests(&self) -> bool {
        self.listens && self.told == [false; 2] && !self.bell && self.waiting == Waiting::Sleeps
    }
}

impl Model for Latch {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            count: None,
            ids: [None; CALLS],
            calls: [Call::NotYet; CALLS],
            jvm: self.jvm,
            changes: [0; CALLS],
            late: false,
            listens: false,
            again: false,
            told: [false; 2],
            bell: false,
            waiting: Waiting::NotYet,
            was_open: false,
            announced: false,
            looked: false,
            faults: self.faults,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (at, call) in state.calls[..self.calls].iter().enumerate() {
            match call {
                // Those that count are alike, so they come in order.
                Call::NotYet if at > 2 && state.calls[at - 1] == Call::NotYet => {}
                Call::NotYet => actions.push(Action::Send(at)),
                Call::Sent => actions.extend([
                    Action::Execute(at, true),
                    Action::Execute(at, false),
                    Action::GiveUp(at),
                ]),
                Call::Answered(_) | Call::GaveUp => actions.push(Action::Execute(at, false)),
            }
        }
        let Jvm {
            sets,
            counts,
            deletes,
        } = state.jvm;
        for (left, action) in [
            (sets, Action::JvmSets),
            (counts, Action::JvmCounts),
            (deletes, Action::JvmDeletes),
        ] {
            if left > 0 {
                actions.push(action);
            }
        }
        if !state.listens && self.waits {
            actions.push(Action::Subscribe);
        }
        for message in [ZERO, NEW] {
            if state.told[message] {
                actions.push(Action::Deliver(message));
                if state.faults > 0 {
                    actions.push(Action::Lose(message));
                }
            }
        }
        if state.faults > 0 && state.listens {
            actions.push(Action::Reconnect);
        }
        match state.waiting {
            Waiting::NotYet if self.waits => actions.push(Action::Wait),
            Waiting::Sleeps if state.bell => actions.push(Action::Read),
            Waiting::Reads(None) => actions.push(Action::ExecuteRead),
            Waiting::Reads(Some(_)) => actions.push(Action::Answer),
            Waiting::NotYet | Waiting::Sleeps | Waiting::Opened => {}
        }
        if state.rests() && !state.looked {
            actions.push(Action::Look);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Send(call) => state.calls[call] = Call::Sent,
            Action::Execute(call, is_heard) => {
                let did = match call {
                    0 | 1 => state.set(self, call),
                    _ => state.count_down(self, call),
                };
                if state.count != last.count {
                    state.changes[call] = (state.changes[call] + 1).min(2);
                    state.late |= matches!(last.calls[call], Call::Answered(_));
                }
                if is_heard {
                    state.calls[call] = Call::Answered(did);
                }
            }
            Action::GiveUp(call) => state.calls[call] = Call::GaveUp,
            Action::JvmSets => {
                state.jvm.sets -= 1;
                if state.count.is_none() {
                    state.count = Some(1);
                    state.publish(NEW);
                }
            }
            Action::JvmCounts => {
                state.jvm.counts -= 1;
                match state.count {
                    // Redisson's DECR makes it -1, which it deletes without a message.
                    None => {}
                    Some(1) => {
                        state.count = None;
                        state.publish(ZERO);
                    }
                    Some(count) => state.count = Some(count - 1),
                }
            }
            Action::JvmDeletes => {
                state.jvm.deletes -= 1;
                if state.count.take().is_some() {
                    state.publish(NEW);
                }
            }
            Action::Subscribe => {
                let trusts = match state.again {
                    false => self.is(Mutant::TrustsFirstRead),
                    true => self.is(Mutant::TrustsReconnects),
                };
                (state.listens, state.again, state.announced) = (true, true, true);
                state.bell |= !trusts && state.waiting != Waiting::NotYet;
            }
            Action::Deliver(message) => {
                state.told[message] = false;
                let waits = !matches!(state.waiting, Waiting::NotYet | Waiting::Opened);
                if waits && self.is(Mutant::BelievesMessages) && message == ZERO {
                    state.waiting = Waiting::Opened;
                }
                state.bell |= waits && !(message == NEW && self.is(Mutant::HearsZerosOnly));
            }
            Action::Lose(message) => {
                (state.told[message], state.announced) = (false, false);
                state.faults -= 1;
            }
            Action::Reconnect => {
                (state.told, state.listens) = ([false; 2], false);
                state.faults -= 1;
            }
            Action::Wait => {
                (state.waiting, state.bell) = (Waiting::Sleeps, true);
                state.was_open = state.is_open();
            }
            Action::Read => (state.waiting, state.bell) = (Waiting::Reads(None), false),
            Action::ExecuteRead => state.waiting = Waiting::Reads(Some(state.is_open())),
            Action::Answer => {
                state.waiting = match state.waiting {
                    Waiting::Reads(Some(true)) => Waiting::Opened,
                    _ => Waiting::Sleeps,
                };
                state.bell &= !self.is(Mutant::ForgetsWhileReading);
            }
            Action::Look => {
                state.looked = true;
                if !self.is(Mutant::NeverLooks) {
                    state.waiting = Waiting::Reads(None);
                }
            }
        }
        state.was_open |= state.is_open() && state.waiting != Waiting::NotYet;
        // Nothing more happens to a caller that has left.
        state.bell &= state.waiting != Waiting::Opened;
        if state.is_open() && !last.is_open() {
            (state.looked, state.announced) = (false, last.listens);
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONCE, |_, state: &State| {
                state.changes.iter().all(|changes| *changes <= 1)
            }),
            Property::always(OVER, |_, state: &State| !state.late),
            Property::always(TRUTH, |_, state: &State| {
                let calls = state.calls.iter().zip(state.changes);
                let mut calls = calls.map(|(call, changes)| (*call, changes));
                calls.all(|(call, changes)| match call {
                    Call::Answered(did) => did == (changes > 0),
                    _ => true,
                })
            }),
            Property::always(ABOVE, |_, state: &State| {
                state.count.is_none_or(|count| count > 0)
            }),
            Property::always(OPEN, |_, state: &State| {
                state.waiting != Waiting::Opened || state.was_open
            }),
            Property::always(AWAKE, |_, state: &State| {
                !(state.rests() && state.announced && state.is_open())
            }),
            Property::always(LOOKS, |_, state: &State| {
                !(state.rests() && state.looked && state.is_open())
            }),
            Property::sometimes(OPENS, |latch: &Self, state: &State| {
                let is_done = |changes: &u8| *changes == 1;
                state.is_open()
                    && match latch.calls {
                        CALLS => state.changes.iter().all(is_done),
                        _ => state.changes[1] == 1 && state.changes[2] == 1,
                    }
            }),
        ]
    }
}

impl Checked for Latch {}

#[test]
fn a_latch_counts_each_call_once_and_opens_for_those_that_wait() {
    keeps_its_promises(ROUNDS);
    keeps_its_promises(WAITED);
    keeps_its_promises(BESIDE_A_JVM);
    keeps_its_promises(FAULTY);
}

#[test]
fn each_mistake_breaks_a_promise_of_latches() {
    for (bounds, mutant, promises) in [
        (ROUNDS, Mutant::CountsTwice, &[ONCE, OVER][..]),
        (ROUNDS, Mutant::SetsTwice, &[ONCE, OVER]),
        (ROUNDS, Mutant::ForgetsAtZero, &[ONCE, OVER]),
        (ROUNDS, Mutant::ForgetsAtSet, &[ONCE, OVER]),
        (ROUNDS, Mutant::UnsetLeavesNoId, &[OVER]),
        (ROUNDS, Mutant::RefusedLeavesNoId, &[OVER]),
        (ROUNDS, Mutant::CopyIsRefused, &[TRUTH]),
        (ROUNDS, Mutant::CountsBelowZero, &[ABOVE]),
        (ROUNDS, Mutant::LeavesZero, &[ABOVE]),
        (WAITED, Mutant::OpensSilently, &[AWAKE]),
        (WAITED, Mutant::BelievesMessages, &[OPEN]),
        (BESIDE_A_JVM, Mutant::HearsZerosOnly, &[AWAKE]),
        (WAITED, Mutant::TrustsFirstRead, &[AWAKE]),
        (FAULTY, Mutant::TrustsReconnects, &[AWAKE]),
        (WAITED, Mutant::ForgetsWhileReading, &[AWAKE]),
        (FAULTY, Mutant::NeverLooks, &[LOOKS]),
    ] {
        breaks(bounds.with(mutant), promises);
    }
}
