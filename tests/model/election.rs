//! The value of a leader, and an observer of it, on one server: whichever proclamations, messages
//! and answers are late, repeated or lost.
//!
//! # What is modelled
//! - The server: which term has the lock, the value beside the lock with its field and its number,
//!   and what `proclaim.lua` and `leader.lua` do to them. Each term has a field of its own.
//! - The leaders: a term begins with a grant or a hand-over, and ends with a release or with its
//!   lease. A leader proclaims twice. A proclamation that was sent is executed at any time, in any
//!   order, any number of times, or never: also after its term.
//! - The observer: it subscribes, reads, and reads again when its subscription is confirmed, at a
//!   message, after a reconnect, and when it looks. An answer takes any time.
//! - Messages take any time, and may be lost. A grant, a hand-over and the end of a lease send
//!   none.
//!
//! # What is abstracted away
//! - Who leads when: that is a lock, and `main.rs` and `model/hand_over.rs` have it.
//! - Time: a look comes only when nothing else is on its way to the observer.
//! - Several servers: a field has a majority there or not, as any lock. Values of one field differ
//!   by their numbers only.

use stateright::{Model, Property};

use crate::checked::{Checked, breaks, keeps_its_promises};

/// The most terms.
const TERMS: usize = 3;
/// How often a leader proclaims.
const VALUES: u8 = 2;

const BELIEF: &str = "an observer takes no value for that of another leader";
const LASTING: &str = "a leader's last confirmed value stays as long as it leads";
const AWAKE: &str = "an observer does not wait for a look to see what is announced";
const LOOKS: &str = "an observer is wrong until its next look at most";
const CHANGES: &str = "an observer sees a second leader's second value";

#[derive(Debug, Clone, Copy)]
struct Election {
    faults: u8,
    mutant: Option<Mutant>,
}

const PLAIN: Election = Election {
    faults: 0,
    mutant: None,
};
const FAULTY: Election = Election {
    faults: 2,
    mutant: None,
};

/// One mistake each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mutant {
    /// An observer believes the value whoever has the lock.
    ValueWithoutField,
    /// A value is written whoever has the lock.
    WrittenWithoutField,
    /// A late proclamation overwrites a later one of the same leader.
    OlderOverwrites,
    /// A proclamation sends no message.
    ProclaimsSilently,
    /// An observer keeps the last leader when nobody leads.
    MissesNone,
    /// It does not read again when its subscription is confirmed.
    TrustsFirstRead,
    /// It does not read again after a reconnect.
    TrustsReconnects,
    /// It forgets a message that came while it read.
    ForgetsWhileReading,
    /// It relies on messages.
    NeverLooks,
}

/// A value: its field and its number.
type Value = (u8, u8);

/// Who leads, with the value that belongs to it.
type Seen = Option<(u8, Option<Value>)>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Reading {
    No,
    Asked,
    Answered(Seen),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    holder: Option<u8>,
    /// How many terms have begun.
    terms: u8,
    stored: Option<Value>,
    /// How many values the leader of each term has sent.
    sent: [u8; TERMS],
    /// Ghost: the last one that it was told is written.
    confirmed: [u8; TERMS],
    listens: bool,
    /// Whether the subscription has been there before.
    again: bool,
    /// A message is on its way.
    told: bool,
    /// There is a reason to read.
    bell: bool,
    reading: Reading,
    known: Option<Seen>,
    /// Ghost: whether the last change was announced to a listener, and no message was lost since.
    announced: bool,
    /// Ghost: the observer has looked since the last change.
    looked: bool,
    faults: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Grant,
    HandOver,
    Release,
    Expire,
    Proclaim,
    Write(u8, u8),
    Subscribe,
    Deliver,
    Lose,
    Reconnect,
    Read,
    Execute,
    Answer,
    Look,
}

impl Election {
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

impl State {
    /// Returns what `leader.lua` reports.
    fn read(&self, election: &Election) -> Seen {
        let believes = |&(field, _): &Value| {
            Some(field) == self.holder || election.is(Mutant::ValueWithoutField)
        };
        self.holder
            .map(|holder| (holder, self.stored.filter(believes)))
    }

    fn begin(&mut self) {
        self.holder = Some(self.terms);
        self.terms += 1;
    }

    fn publish(&mut self) {
        self.told |= self.listens;
    }

    /// `proclaim.lua`.
    fn write(&mut self, election: &Election, value: Value) {
        let (field, number) = value;
        let leads = self.holder == Some(field);
        if !leads && !election.is(Mutant::WrittenWithoutField) {
            return;
        }
        let is_older = matches!(self.stored, Some((of, later)) if of == field && later > number);
        if is_older && !election.is(Mutant::OlderOverwrites) {
            return;
        }
        if self.stored != Some(value) && !election.is(Mutant::ProclaimsSilently) {
            self.publish();
        }
        self.stored = Some(value);
        if leads {
            let confirmed = &mut self.confirmed[usize::from(field)];
            *confirmed = number.max(*confirmed);
        }
    }

    /// Whether nothing is on its way to the observer.
    fn rests(&self) -> bool {
        self.listens && !self.told && !self.bell && self.reading == Reading::No
    }
}

impl Model for Election {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            holder: None,
            terms: 0,
            stored: None,
            sent: [0; TERMS],
            confirmed: [0; TERMS],
            listens: false,
            again: false,
            told: false,
            bell: true,
            reading: Reading::No,
            known: None,
            announced: false,
            looked: false,
            faults: self.faults,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let begins = usize::from(state.terms) < TERMS;
        match state.holder {
            None if begins => actions.push(Action::Grant),
            None => {}
            Some(leader) => {
                actions.extend([Action::Release, Action::Expire]);
                if begins {
                    actions.push(Action::HandOver);
                }
                if state.sent[usize::from(leader)] < VALUES {
                    actions.push(Action::Proclaim);
                }
            }
        }
        for (term, sent) in (0..).zip(state.sent) {
            actions.extend((1..=sent).map(|number| Action::Write(term, number)));
        }
        if !state.listens {
            actions.push(Action::Subscribe);
        }
        if state.told {
            actions.push(Action::Deliver);
        }
        if state.faults > 0 {
            if state.told {
                actions.push(Action::Lose);
            }
            if state.listens {
                actions.push(Action::Reconnect);
            }
        }
        match state.reading {
            Reading::No if state.bell => actions.push(Action::Read),
            Reading::No => {}
            Reading::Asked => actions.push(Action::Execute),
            Reading::Answered(_) => actions.push(Action::Answer),
        }
        if state.rests() && !state.looked {
            actions.push(Action::Look);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Grant | Action::HandOver => state.begin(),
            Action::Release => {
                state.holder = None;
                state.publish();
            }
            Action::Expire => state.holder = None,
            Action::Proclaim => state.sent[usize::from(state.holder?)] += 1,
            Action::Write(field, number) => state.write(self, (field, number)),
            Action::Subscribe => {
                let trusts = match state.again {
                    false => self.is(Mutant::TrustsFirstRead),
                    true => self.is(Mutant::TrustsReconnects),
                };
                (state.listens, state.again, state.announced) = (true, true, true);
                state.bell |= !trusts;
            }
            Action::Deliver => (state.told, state.bell) = (false, true),
            Action::Lose => {
                (state.told, state.announced) = (false, false);
                state.faults -= 1;
            }
            Action::Reconnect => {
                (state.told, state.listens) = (false, false);
                state.faults -= 1;
            }
            Action::Read => (state.reading, state.bell) = (Reading::Asked, false),
            Action::Execute => state.reading = Reading::Answered(state.read(self)),
            Action::Answer => {
                let Reading::Answered(seen) = state.reading else {
                    return None;
                };
                if seen.is_some() || !self.is(Mutant::MissesNone) || state.known.is_none() {
                    state.known = Some(seen);
                }
                state.reading = Reading::No;
                state.bell &= !self.is(Mutant::ForgetsWhileReading);
            }
            Action::Look => {
                state.looked = true;
                if !self.is(Mutant::NeverLooks) {
                    state.reading = Reading::Asked;
                }
            }
        }
        if state.read(self) != last.read(self) {
            state.looked = false;
            state.announced = matches!(action, Action::Release | Action::Write(..)) && last.listens;
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(BELIEF, |_, state: &State| match state.known {
                Some(Some((leader, Some((field, _))))) => field == leader,
                _ => true,
            }),
            Property::always(LASTING, |_, state: &State| {
                let confirmed = state
                    .holder
                    .map_or(0, |at| state.confirmed[usize::from(at)]);
                let stands = |(field, number)| state.holder == Some(field) && number >= confirmed;
                confirmed == 0 || state.stored.is_some_and(stands)
            }),
            Property::always(AWAKE, |election: &Self, state: &State| {
                let sleeps = state.rests() && state.announced;
                !sleeps || state.known == Some(state.read(election))
            }),
            Property::always(LOOKS, |election: &Self, state: &State| {
                let has_looked = state.rests() && state.looked;
                !has_looked || state.known == Some(state.read(election))
            }),
            Property::sometimes(CHANGES, |_, state: &State| {
                state.known == Some(Some((1, Some((1, VALUES)))))
            }),
        ]
    }
}

impl Checked for Election {}

#[test]
fn observers_see_who_leads() {
    keeps_its_promises(PLAIN);
    keeps_its_promises(FAULTY);
}

#[test]
fn each_mistake_misleads_an_observer() {
    for (mutant, promises) in [
        (Mutant::ValueWithoutField, &[BELIEF][..]),
        (Mutant::WrittenWithoutField, &[LASTING]),
        (Mutant::OlderOverwrites, &[LASTING]),
        (Mutant::ProclaimsSilently, &[AWAKE]),
        (Mutant::MissesNone, &[AWAKE, LOOKS]),
        (Mutant::TrustsFirstRead, &[AWAKE]),
        (Mutant::TrustsReconnects, &[AWAKE]),
        (Mutant::ForgetsWhileReading, &[AWAKE]),
        (Mutant::NeverLooks, &[LOOKS]),
    ] {
        let bounds = match mutant {
            Mutant::TrustsReconnects => FAULTY,
            _ => PLAIN,
        };
        breaks(bounds.with(mutant), promises);
    }
}
