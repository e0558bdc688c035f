//! The states of the model of the list, and what each action does to them.

use super::locker::{Answer, Ears, Health, Locker, Message, Pass, Phase, Script};
use super::{LOCKERS, Mutant, Scheme};

/// The client of Redisson, as a holder.
const FOREIGN: usize = LOCKERS;

/// Everything at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// As the server has it.
    pub(super) holder: Option<usize>,
    pub(super) list: Vec<usize>,
    pub(super) lockers: [Locker; LOCKERS],
    pub(super) foreign: Foreign,
    /// How often it will want the lock after this.
    pub(super) left: u8,
    leaves: u8,
    faults: u8,
    /// The lock is free because a lease has ended: no message was sent.
    ended: bool,
}

/// The client of Redisson: it asks, waits for a message, and asks again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Foreign {
    Done,
    Asks,
    Parked,
    Holding,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Ask(usize),
    Execute(usize),
    /// A `pass` is executed.
    Pass(usize),
    /// An answer arrives.
    Answer(usize),
    Hear(usize),
    TimerEnds(usize),
    /// The lease that it was told is over.
    LeaseEnds(usize),
    Unlock(usize),
    /// A caller comes.
    Come(usize),
    /// A release is executed that gives clients outside of the list a turn.
    ExecuteTurn(usize),
    Leave(usize),
    ForeignAsks,
    ForeignUnlocks,
    ForeignLeaves,
    /// The holder's lease ends.
    Expire,
    Die(usize),
    Suspend(usize),
    GoOn(usize),
    /// The connection that messages come on is gone.
    Cut(usize),
    /// The loss is noticed, and there is a new connection.
    Reconnect(usize),
    Join(usize),
}

impl State {
    pub(super) fn new(scheme: &Scheme) -> Self {
        Self {
            holder: None,
            list: Vec::new(),
            lockers: std::array::from_fn(|at| Locker::new(scheme.callers[at], scheme.later[at])),
            foreign: if scheme.foreign > 0 { Foreign::Asks } else { Foreign::Done },
            left: scheme.foreign.saturating_sub(1),
            leaves: scheme.leaves,
            faults: scheme.faults,
            ended: false,
        }
    }

    /// Returns the lockers that believe to hold the lock.
    pub(super) fn inside(&self) -> impl Iterator<Item = usize> {
        self.lockers.iter().enumerate().filter(|(_, locker)| locker.phase == Phase::Holding).map(|(at, _)| at)
    }

    /// Returns whether the lock is free, a client waits for it, and nothing will happen before the re-check.
    pub(super) fn is_stuck(&self) -> bool {
        // A locker that has lost its connection waits until it notices.
        let waits =
            |locker: &Locker| locker.is_fine() && locker.ears == Ears::Confirmed && locker.phase == Phase::Parked;
        let is_waited_for = self.lockers.iter().any(waits) || self.foreign == Foreign::Parked;
        if self.holder.is_some() || !is_waited_for || self.foreign == Foreign::Asks {
            return false;
        }
        !self.lockers.iter().any(|locker| self.moves(locker))
    }

    /// Returns whether each locker that waits, and for which nothing is about to happen, is in the list.
    pub(super) fn is_listed(&self) -> bool {
        let quiet =
            |locker: &Locker| locker.phase == Phase::Parked && locker.ears == Ears::Confirmed && !self.moves(locker);
        (0..LOCKERS).all(|at| !quiet(&self.lockers[at]) || self.list.contains(&at))
    }

    fn moves(&self, locker: &Locker) -> bool {
        if locker.sent.is_some() || locker.pass != Pass::None {
            return true;
        }
        let is_parked = locker.phase == Phase::Parked;
        locker.is_fine()
            && (locker.answer.is_some()
                || matches!(locker.phase, Phase::Ready | Phase::Holding)
                || locker.ears == Ears::Joining
                || !locker.inbox.is_empty()
                || (is_parked && (locker.looks || (self.ended && locker.knows_lease))))
    }

    pub(super) fn actions(&self, actions: &mut Vec<Action>) {
        for (at, locker) in self.lockers.iter().enumerate() {
            if let Some(script) = locker.sent {
                actions.push(Action::Execute(at));
                if matches!(script, Script::Release { .. }) && self.foreign == Foreign::Parked {
                    actions.push(Action::ExecuteTurn(at));
                }
            }
            if locker.pass != Pass::None {
                actions.push(Action::Pass(at));
            }
            match locker.health {
                Health::Fine => self.actions_of(at, locker, actions),
                Health::Suspended => actions.push(Action::GoOn(at)),
                Health::Dead => {}
            }
        }
        match self.foreign {
            Foreign::Asks => actions.push(Action::ForeignAsks),
            Foreign::Holding if self.holder == Some(FOREIGN) => actions.push(Action::ForeignUnlocks),
            _ => {}
        }
        if self.leaves > 0 && matches!(self.foreign, Foreign::Asks | Foreign::Parked) {
            actions.push(Action::ForeignLeaves);
        }
        let is_away = |at: usize| self.lockers.get(at).is_some_and(|locker| !locker.is_fine());
        if self.holder.is_some_and(|at| is_away(at) || (at < LOCKERS && self.faults > 0)) {
            actions.push(Action::Expire);
        }
    }

    fn actions_of(&self, at: usize, locker: &Locker, actions: &mut Vec<Action>) {
        if locker.answer.is_some() {
            actions.push(Action::Answer(at));
        }
        if !locker.inbox.is_empty() {
            actions.push(Action::Hear(at));
        }
        match locker.phase {
            Phase::Ready => actions.push(Action::Ask(at)),
            Phase::Holding => actions.push(Action::Unlock(at)),
            Phase::Idle | Phase::Releasing if locker.later > 0 && locker.waiting == 0 => actions.push(Action::Come(at)),
            _ => {}
        }
        if locker.phase == Phase::Parked && locker.looks {
            actions.push(Action::TimerEnds(at));
        }
        if locker.phase == Phase::Parked && self.ended && locker.knows_lease {
            actions.push(Action::LeaseEnds(at));
        }
        if locker.ears == Ears::Joining {
            actions.push(Action::Join(at));
        }
        if locker.ears == Ears::Deaf {
            actions.push(Action::Reconnect(at));
        }
        if self.leaves > 0 && locker.waiting > 0 {
            actions.push(Action::Leave(at));
        }
        if self.faults > 0 {
            actions.extend([Action::Die(at), Action::Suspend(at)]);
            if locker.ears == Ears::Confirmed {
                actions.push(Action::Cut(at));
            }
        }
    }

    pub(super) fn act(&mut self, scheme: &Scheme, action: Action) {
        match action {
            Action::Ask(at) => self.lockers[at].ask(),
            Action::Execute(at) => self.execute(scheme, at, false),
            Action::ExecuteTurn(at) => self.execute(scheme, at, true),
            Action::Pass(at) => {
                self.list.retain(|&other| other != at);
                if self.holder.is_none() {
                    self.wake(scheme, None, false);
                }
                self.lockers[at].end_pass(scheme);
            }
            Action::Answer(at) => {
                let holds = self.holder == Some(at);
                self.lockers[at].hear_answer(scheme, holds);
            }
            Action::Hear(at) => self.lockers[at].hear(scheme),
            Action::TimerEnds(at) => self.lockers[at].time_is_over(),
            Action::LeaseEnds(at) => self.lockers[at].phase = Phase::Ready,
            Action::Unlock(at) => self.lockers[at].unlock(),
            Action::Come(at) => self.lockers[at].come(),
            Action::Leave(at) => {
                self.leaves -= 1;
                self.lockers[at].leave(scheme);
            }
            Action::ForeignAsks => {
                self.foreign = if self.take(FOREIGN) { Foreign::Holding } else { Foreign::Parked };
            }
            Action::ForeignUnlocks => {
                self.holder = None;
                self.tell_all();
                self.foreign = if self.left > 0 { Foreign::Asks } else { Foreign::Done };
                self.left = self.left.saturating_sub(1);
            }
            Action::ForeignLeaves => {
                self.leaves -= 1;
                (self.foreign, self.left) = (Foreign::Done, 0);
            }
            Action::Expire => self.expire(),
            Action::Die(at) => self.fault(at).health = Health::Dead,
            Action::Suspend(at) => self.fault(at).health = Health::Suspended,
            Action::GoOn(at) => self.lockers[at].health = Health::Fine,
            Action::Cut(at) => {
                let locker = self.fault(at);
                locker.ears = Ears::Deaf;
                locker.inbox.clear();
            }
            Action::Reconnect(at) => self.lockers[at].ears = Ears::Joining,
            Action::Join(at) => self.lockers[at].join(scheme),
        }
    }

    fn fault(&mut self, at: usize) -> &mut Locker {
        self.faults -= 1;
        &mut self.lockers[at]
    }

    fn expire(&mut self) {
        let Some(holder) = self.holder.take() else { return };
        self.ended = true;
        // The client of Redisson knows the lease too, and asks when that is over.
        if self.foreign == Foreign::Parked {
            self.foreign = Foreign::Asks;
        }
        let locker = &mut self.lockers[holder];
        if locker.is_fine() {
            self.faults -= 1;
        }
        // The holder's clock tells it before anybody else can enter, or when it goes on if it was suspended.
        if locker.phase == Phase::Holding {
            locker.unlock();
        }
    }

    /// Takes the lock if it is free. Waiters do not know the lease of the new holder.
    fn take(&mut self, by: usize) -> bool {
        if self.holder.is_some() {
            return false;
        }
        (self.holder, self.ended) = (Some(by), false);
        self.lockers.iter_mut().for_each(|locker| locker.knows_lease = false);
        true
    }
}

/// What the server does.
impl State {
    fn execute(&mut self, scheme: &Scheme, at: usize, turn: bool) {
        let Some(script) = self.lockers[at].sent.take() else { return };
        let answer = match script {
            Script::Acquire { looked, .. } if self.take(at) => {
                let place = self.list.iter().position(|&other| other == at);
                self.list.retain(|&other| other != at);
                // The lockers ahead in the list were woken, or heard the message of the channel, and did not come.
                for other in self.list.drain(..place.filter(|_| looked).unwrap_or(0).min(2)) {
                    self.lockers[other].tell(Message::Go);
                }
                Answer::Granted
            }
            Script::Acquire { enlists, .. } => {
                if enlists && !self.list.contains(&at) {
                    self.list.push(at);
                }
                self.lockers[at].knows_lease = true;
                Answer::Held(if enlists { self.place(at) } else { None })
            }
            // The lease was over before.
            Script::Release { .. } if self.holder != Some(at) => Answer::Released,
            Script::Release { enlists } => {
                self.holder = None;
                let woken = self.wake(scheme, enlists.then_some(at), turn);
                match self.place(at).filter(|_| woken && enlists) {
                    Some(place) if turn => Answer::HandedOver(place),
                    Some(place) => Answer::HandedOn(place),
                    None if turn && !woken => Answer::Left,
                    None => Answer::Released,
                }
            }
        };
        self.lockers[at].answer = Some(answer);
    }

    fn place(&self, at: usize) -> Option<u8> {
        self.list.iter().position(|&other| other == at).and_then(|place| place.try_into().ok())
    }

    /// Wakes the next of the list, and puts the releasing locker last. Returns whether there was one.
    fn wake(&mut self, scheme: &Scheme, releases: Option<usize>, turn: bool) -> bool {
        if let Some(at) = releases {
            self.list.retain(|&other| other != at);
        }
        let had_list = !self.list.is_empty();
        while let Some(&first) = self.list.first() {
            if !self.lockers[first].counts() {
                self.list.remove(0);
                continue;
            }
            if turn {
                self.lockers[first].tell(Message::Turn);
                self.tell_all();
            } else {
                self.lockers[first].tell(Message::Go);
                let mut is_watched = releases.is_some();
                while let Some(&next) = self.list.get(1) {
                    if self.lockers[next].counts() {
                        if !scheme.is(Mutant::NobodyWatches) {
                            self.lockers[next].tell(Message::Watch);
                        }
                        is_watched = true;
                        break;
                    }
                    self.list.remove(1);
                }
                // Clients outside of the list must not depend on the one that is woken.
                if self.foreign == Foreign::Parked && !is_watched && !scheme.is(Mutant::OneDecidesForAll) {
                    self.tell_all();
                }
            }
            self.list.extend(releases);
            return true;
        }
        if !(had_list && scheme.is(Mutant::MuteWithoutList)) {
            self.tell_all();
        }
        false
    }

    /// Sends the message of the channel.
    fn tell_all(&mut self) {
        self.lockers.iter_mut().for_each(|locker| locker.tell(Message::Zero));
        if self.foreign == Foreign::Parked {
            self.foreign = Foreign::Asks;
        }
    }
}
