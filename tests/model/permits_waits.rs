//! Who asks for permits when: lockers in processes of their own with a line of callers each,
//! whichever commands and messages are late.
//!
//! # What is modelled
//! - The server: what is free, what is held, and what has run out and was not pruned.
//! - The lockers: an ask for the callers at the front of the line, in their order, of which the
//!   server grants as many as fit, up to the first that does not. Another ask follows a message,
//!   the due time of the next permit, the subscription, a look, a caller that leaves the front or
//!   leaves during an ask, and an ask that was granted as a whole while others wait.
//! - Callers leave, also while they are asked for; then the grant is undone. A locker may die.
//! - Commands, messages and due times take any time. A message may be lost.
//!
//! # What it shows
//! - A caller that was refused may have left before the answer. Those behind it need another ask,
//!   also if those before it were granted (`OnlyTheFirstLeaves`).
//! - A message tells how many permits are free. One that tells of less than the first caller wants
//!   needs no ask (`thrifty`). During an ask it does: another caller may be the first after it
//!   (`ThriftyWhileAsking`).
//! - The answer says when the next permit runs out. A prune is published even so, since lockers
//!   with longer leases add more slack and come later (`PrunesSilently`).
//!
//! # What is abstracted away
//! - What a command does to the records: see `permits.rs`. A locker that lives renews.
//! - Time: a look comes only when every ask that is due has been executed.
//! - The order between lockers: whoever asks first is first. So a caller of many permits may be
//!   passed for ever by those of other processes, and is not by those behind it in its own line.
//! - Redisson's clients: they wake as many of their callers as the message says.

use stateright::{Model, Property};

use crate::checked::{Checked, breaks, keeps_its_promises};

const CALLERS: usize = 4;
const LOCKERS: usize = 3;

/// How many callers an ask is for.
const FRONT: usize = 2;

/// Looks are only for what is lost.
const AWAKE: &str = "nobody waits until the next look for permits that are free";
const DUE: &str = "somebody asks when permits run out";
const ORDER: &str = "a caller is served before those behind it in its line";
const SUM: &str = "what is free, held and run out are the capacity";

#[derive(Debug, Clone, Copy)]
struct Waits {
    /// Their locker, and how many permits they want. They come in this order.
    callers: &'static [(usize, u8)],
    leaves: u8,
    raises: u8,
    losses: u8,
    deaths: u8,
    /// Whether a locker ignores a message that tells of less than its first caller wants.
    thrifty: bool,
    mutant: Option<Mutant>,
}

const CAPACITY: u8 = 2;

const PLAIN: Waits = Waits {
    callers: &[(0, 2), (1, 1), (1, 2), (1, 1)],
    leaves: 0,
    raises: 0,
    losses: 0,
    deaths: 0,
    thrifty: false,
    mutant: None,
};
const THRIFTY: Waits = Waits {
    thrifty: true,
    leaves: 1,
    ..PLAIN
};
/// The first of a line wants more than the message tells of, and has it by then.
const THRIFTY_AND_RAISED: Waits = Waits {
    callers: &[(0, 1), (1, 2), (1, 1)],
    raises: 1,
    ..THRIFTY
};
/// The first of a line wants more than those behind it.
const LEAVING: Waits = Waits {
    callers: &[(0, 1), (1, 2), (1, 1), (1, 1)],
    leaves: 2,
    ..PLAIN
};
/// One that wants more than what runs out, beside one that does not.
const DYING: Waits = Waits {
    callers: &[(0, 1), (1, 2), (2, 1), (2, 1)],
    deaths: 1,
    ..PLAIN
};
const RAISED: Waits = Waits {
    callers: &[(0, 2), (1, 1), (1, 2)],
    raises: 1,
    ..PLAIN
};
const FAULTY: Waits = Waits {
    losses: 1,
    leaves: 1,
    thrifty: true,
    ..DYING
};

/// One mistake each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mutant {
    /// The server grants those that fit, and passes those that do not.
    PassesWhatDoesNotFit,
    /// A locker that asks ignores a message that tells of less than its first caller wants.
    ThriftyWhileAsking,
    /// A caller that leaves the front wakes nobody.
    LeavesSilently,
    /// Another one leaves while its locker asks: no other ask follows.
    OnlyTheFirstLeaves,
    /// The undo of a grant publishes nothing.
    UndoesSilently,
    /// A prune publishes nothing.
    PrunesSilently,
    /// A refused caller does not know when the next permit runs out.
    NoDueTime,
    /// A higher capacity is not published.
    RaisesSilently,
    /// A locker waits after the first refusal, although it was not yet subscribed.
    TrustsFirstAnswer,
    /// A message that comes during an ask is forgotten.
    ForgetsWhileAsking,
    /// After an ask that was granted as a whole, nobody asks for those behind.
    AsksOnce,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum At {
    #[default]
    Out,
    Waits,
    /// It left while it was asked for.
    Gone,
    /// The answer is on its way.
    Granted,
    /// It left before its grant, which is undone.
    Undoes,
    Inside,
    Dead,
    /// Its permits have run out, and are not pruned.
    RanOut,
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Locker {
    /// For which callers an ask is on its way.
    asks: u8,
    /// It was executed, and whether somebody was refused.
    answer: Option<bool>,
    subscribes: bool,
    listens: bool,
    /// With which number a message is on its way to it.
    told: Option<u8>,
    /// A reason to ask again came while it asked.
    heard: bool,
    due: bool,
    dead: bool,
    /// Ghost: a message to it was lost since it asked.
    deaf: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    callers: [At; CALLERS],
    lockers: [Locker; LOCKERS],
    free: u8,
    capacity: u8,
    leaves: u8,
    raises: u8,
    losses: u8,
    deaths: u8,
    /// Ghost.
    passed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Come(usize),
    Leave(usize),
    Release(usize),
    RunOut(usize),
    Execute(usize),
    Answer(usize),
    Subscribe(usize),
    Deliver(usize),
    Lose(usize),
    Due(usize),
    Die(usize),
    Raise,
    Look,
}

impl Waits {
    const fn with(self, mutant: Mutant) -> Self {
        Self {
            mutant: Some(mutant),
            ..self
        }
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn wants(&self, who: usize) -> u8 {
        self.callers[who].1
    }

    /// Returns the callers of a locker.
    fn of(&self, locker: usize) -> impl Iterator<Item = usize> {
        (0..self.callers.len()).filter(move |who| self.callers[*who].0 == locker)
    }
}

impl State {
    fn asks(&self, at: usize) -> bool {
        self.lockers[at].asks > 0 || self.lockers[at].answer.is_some()
    }

    /// Returns the first caller, as far as its locker knows.
    fn front(&self, waits: &Waits, locker: usize) -> Option<usize> {
        let waits_for = |who: &usize| matches!(self.callers[*who], At::Waits | At::Granted);
        waits.of(locker).find(waits_for)
    }

    /// Sends an ask for the front of the line, or remembers to do so.
    fn ask(&mut self, waits: &Waits, at: usize) {
        if self.asks(at) {
            self.lockers[at].heard = true;
            return;
        }
        let front = waits.of(at).filter(|who| self.callers[*who] == At::Waits);
        let asks = front.take(FRONT).fold(0, |asks, who| asks | 1 << who);
        let locker = &mut self.lockers[at];
        (locker.asks, locker.deaf, locker.heard) = (asks, false, false);
    }

    fn publish(&mut self) {
        for locker in &mut self.lockers {
            if locker.listens && !locker.dead && self.free > 0 {
                // The last one tells the most recent number.
                locker.told = Some(self.free);
            }
        }
    }

    fn run_out(&self, waits: &Waits) -> u8 {
        self.sum(waits, |at| at == At::RanOut)
    }

    fn sum(&self, waits: &Waits, is: impl Fn(At) -> bool) -> u8 {
        let all = 0..waits.callers.len();
        all.filter(|who| is(self.callers[*who]))
            .map(|who| waits.wants(who))
            .sum()
    }

    fn execute(&mut self, waits: &Waits, at: usize) {
        let asks = std::mem::take(&mut self.lockers[at].asks);
        let pruned = self.run_out(waits);
        self.free += pruned;
        for caller in &mut self.callers {
            if *caller == At::RanOut {
                *caller = At::Over;
            }
        }
        let mut refused = false;
        for who in waits.of(at).filter(|who| asks & 1 << who != 0) {
            let passes = !refused || waits.is(Mutant::PassesWhatDoesNotFit);
            let is_granted = passes && self.free >= waits.wants(who);
            if is_granted {
                self.free -= waits.wants(who);
                self.passed |= refused;
            }
            refused |= !is_granted;
            self.callers[who] = match (self.callers[who], is_granted) {
                (At::Gone, true) => At::Undoes,
                (At::Gone, false) => At::Over,
                (_, true) => At::Granted,
                (caller, false) => caller,
            };
        }
        self.lockers[at].answer = Some(refused);
        if pruned > 0 && !waits.is(Mutant::PrunesSilently) {
            self.publish();
        }
    }

    fn answer(&mut self, waits: &Waits, at: usize) {
        let refused = self.lockers[at].answer.take() == Some(true);
        let heard = std::mem::take(&mut self.lockers[at].heard);
        for who in waits.of(at) {
            if self.callers[who] == At::Granted {
                self.callers[who] = At::Inside;
            }
        }
        let locker = &mut self.lockers[at];
        locker.due |= refused && !waits.is(Mutant::NoDueTime);
        locker.subscribes |= refused && !locker.listens;
        let others = !refused && !waits.is(Mutant::AsksOnce);
        if heard && !waits.is(Mutant::ForgetsWhileAsking) || others {
            self.ask(waits, at);
        }
    }

    fn rests(&self, waits: &Waits, at: usize) -> Option<u8> {
        let locker = &self.lockers[at];
        let front = self.front(waits, at)?;
        let is_told = locker.subscribes || locker.told.is_some();
        let sleeps = !self.asks(at) && !is_told && !locker.deaf && !locker.dead;
        sleeps.then(|| waits.wants(front))
    }
}

impl Model for Waits {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            callers: [At::Out; CALLERS],
            lockers: [Locker::default(); LOCKERS],
            free: CAPACITY,
            capacity: CAPACITY,
            leaves: self.leaves,
            raises: self.raises,
            losses: self.losses,
            deaths: self.deaths,
            passed: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for who in 0..self.callers.len() {
            let locker = self.callers[who].0;
            match state.callers[who] {
                At::Out if !state.lockers[locker].dead => {
                    let mut before = self.of(locker).take_while(|other| *other < who);
                    if before.all(|other| state.callers[other] != At::Out) {
                        actions.push(Action::Come(who));
                    }
                }
                At::Waits | At::Granted if state.leaves > 0 => actions.push(Action::Leave(who)),
                At::Inside | At::Undoes => actions.push(Action::Release(who)),
                At::Dead => actions.push(Action::RunOut(who)),
                _ => {}
            }
        }
        for at in 0..LOCKERS {
            let locker = &state.lockers[at];
            if locker.dead {
                continue;
            }
            if locker.asks > 0 {
                actions.push(Action::Execute(at));
            }
            if locker.answer.is_some() {
                actions.push(Action::Answer(at));
            }
            if locker.subscribes {
                actions.push(Action::Subscribe(at));
            }
            if locker.told.is_some() {
                actions.push(Action::Deliver(at));
                if state.losses > 0 {
                    actions.push(Action::Lose(at));
                }
            }
            if locker.due && state.run_out(self) > 0 {
                actions.push(Action::Due(at));
            }
            if state.deaths > 0 {
                actions.push(Action::Die(at));
            }
        }
        if state.raises > 0 {
            actions.push(Action::Raise);
        }
        if (0..LOCKERS).all(|at| !state.asks(at)) {
            actions.push(Action::Look);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Come(who) => {
                let locker = self.callers[who].0;
                let is_first = state.front(self, locker).is_none();
                state.callers[who] = At::Waits;
                if is_first {
                    state.ask(self, locker);
                }
            }
            Action::Leave(who) => {
                let locker = self.callers[who].0;
                state.leaves -= 1;
                let was_first = state.front(self, locker) == Some(who);
                let is_asked = state.lockers[locker].asks & 1 << who != 0;
                state.callers[who] = match state.callers[who] {
                    At::Granted => At::Undoes,
                    _ if is_asked => At::Gone,
                    _ => At::Over,
                };
                let wakes = was_first && !self.is(Mutant::LeavesSilently)
                    || state.asks(locker) && !self.is(Mutant::OnlyTheFirstLeaves);
                if wakes && state.front(self, locker).is_some() {
                    state.ask(self, locker);
                }
            }
            Action::Release(who) => {
                let undoes = std::mem::replace(&mut state.callers[who], At::Over) == At::Undoes;
                state.free += self.wants(who);
                if !undoes || !self.is(Mutant::UndoesSilently) {
                    state.publish();
                }
            }
            Action::RunOut(who) => state.callers[who] = At::RanOut,
            Action::Execute(at) => state.execute(self, at),
            Action::Answer(at) => state.answer(self, at),
            Action::Subscribe(at) => {
                let locker = &mut state.lockers[at];
                (locker.subscribes, locker.listens) = (false, true);
                if state.front(self, at).is_some() && !self.is(Mutant::TrustsFirstAnswer) {
                    state.ask(self, at);
                }
            }
            Action::Deliver(at) => {
                let told = state.lockers[at].told.take()?;
                let asks = state.asks(at) && !self.is(Mutant::ThriftyWhileAsking);
                if let Some(front) = state.front(self, at)
                    && (!self.thrifty || asks || told >= self.wants(front))
                {
                    state.ask(self, at);
                }
            }
            Action::Lose(at) => {
                state.losses -= 1;
                state.lockers[at].told = None;
                state.lockers[at].deaf = true;
            }
            Action::Due(at) => {
                state.lockers[at].due = false;
                state.ask(self, at);
            }
            Action::Die(at) => {
                state.deaths -= 1;
                state.lockers[at] = Locker {
                    dead: true,
                    ..Locker::default()
                };
                for who in self.of(at) {
                    state.callers[who] = match state.callers[who] {
                        At::Inside | At::Granted | At::Undoes | At::Dead => At::Dead,
                        At::RanOut => At::RanOut,
                        _ => At::Over,
                    };
                }
            }
            Action::Raise => {
                state.raises -= 1;
                state.capacity += 1;
                state.free += 1;
                if !self.is(Mutant::RaisesSilently) {
                    state.publish();
                }
            }
            Action::Look => {
                for at in 0..LOCKERS {
                    if state.front(self, at).is_some() {
                        state.ask(self, at);
                    }
                }
            }
        }
        for at in 0..LOCKERS {
            if state.front(self, at).is_none() {
                state.lockers[at].due = false;
                state.lockers[at].heard = false;
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(AWAKE, |waits: &Self, state: &State| {
                (0..LOCKERS)
                    .filter_map(|at| state.rests(waits, at))
                    .all(|wants| state.free < wants)
            }),
            Property::always(DUE, |waits: &Self, state: &State| {
                let run_out = state.run_out(waits);
                (0..LOCKERS).filter(|at| !state.lockers[*at].due).all(|at| {
                    let enough = |wants| run_out > 0 && state.free + run_out >= wants;
                    !state.rests(waits, at).is_some_and(enough)
                })
            }),
            Property::always(ORDER, |_, state: &State| !state.passed),
            Property::always(SUM, |waits: &Self, state: &State| {
                let is_inside = |at| matches!(at, At::Granted | At::Inside | At::Undoes);
                let is_taken = |at| is_inside(at) || matches!(at, At::Dead | At::RanOut);
                state.free + state.sum(waits, is_taken) == state.capacity
            }),
            Property::sometimes("all have been inside", |waits: &Self, state: &State| {
                let all = state.callers.iter().take(waits.callers.len());
                let over = all.filter(|at| **at == At::Over).count();
                over == waits.callers.len()
            }),
        ]
    }
}

impl Checked for Waits {}

#[test]
fn callers_are_served_in_their_order() {
    keeps_its_promises(PLAIN);
    keeps_its_promises(RAISED);
    keeps_its_promises(THRIFTY);
    keeps_its_promises(THRIFTY_AND_RAISED);
}

#[test]
fn they_are_served_though_others_leave_or_die() {
    keeps_its_promises(LEAVING);
    keeps_its_promises(DYING);
    keeps_its_promises(FAULTY);
}

// ---- Its mutants ----

#[test]
fn those_behind_must_not_pass() {
    breaks(LEAVING.with(Mutant::PassesWhatDoesNotFit), &[ORDER]);
}

/// Its first caller may be another one after the answer.
#[test]
fn a_locker_that_asks_must_not_ignore_a_message() {
    breaks(
        THRIFTY_AND_RAISED.with(Mutant::ThriftyWhileAsking),
        &[AWAKE],
    );
}

#[test]
fn a_front_that_leaves_has_to_wake_the_next() {
    breaks(LEAVING.with(Mutant::LeavesSilently), &[AWAKE]);
    breaks(LEAVING.with(Mutant::UndoesSilently), &[AWAKE]);
    breaks(THRIFTY.with(Mutant::OnlyTheFirstLeaves), &[AWAKE]);
}

/// It does not suffice for the caller that pruned.
#[test]
fn a_prune_has_to_wake_others() {
    breaks(DYING.with(Mutant::PrunesSilently), &[AWAKE]);
}

#[test]
fn a_refused_caller_has_to_come_when_permits_run_out() {
    breaks(DYING.with(Mutant::NoDueTime), &[DUE]);
}

#[test]
fn a_higher_capacity_has_to_wake_callers() {
    breaks(RAISED.with(Mutant::RaisesSilently), &[AWAKE]);
}

/// A message came before the subscription.
#[test]
fn a_refusal_from_before_the_subscription_says_nothing() {
    breaks(PLAIN.with(Mutant::TrustsFirstAnswer), &[AWAKE]);
}

#[test]
fn a_message_during_an_ask_has_to_be_followed_by_another_ask() {
    breaks(PLAIN.with(Mutant::ForgetsWhileAsking), &[AWAKE]);
}

#[test]
fn those_behind_an_ask_have_to_be_asked_for() {
    breaks(LEAVING.with(Mutant::AsksOnce), &[AWAKE]);
}
