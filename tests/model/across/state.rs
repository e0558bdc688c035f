//! The states of the model of the list, and what each action does to them.

use std::hash::{BuildHasher, BuildHasherDefault};
use std::sync::Arc;

use super::super::WakeUp;
use super::super::queue::Neighbours;
use super::locker::{Channel, Health, Hold, Lease, Locker, Message, Pass, SOON, Said, Script};
use super::{Fault, LOCKERS, Mutant, Scheme};
use crate::claim::{ReleaseAnswer, Releaser};

/// Everything at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct State {
    /// As the server has it.
    pub(super) holder: Option<Holder>,
    list: Vec<usize>,
    pub(super) lockers: [Arc<Locker>; LOCKERS],
    pub(super) foreign: Foreign,
    /// How often it will want the lock after this.
    pub(super) left: u8,
    leaves: u8,
    /// The kinds of faults of which one may come.
    faults: &'static [Fault],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Holder {
    Locker(usize),
    /// A grant of this locker, whose caller had gone.
    Unwanted(usize),
    Foreign,
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
pub(super) enum Action {
    Execute(usize),
    ExecuteUndo(usize),
    ExecutePass(usize),
    Answer(usize),
    /// The answer to a `pass` arrives.
    Passed(usize),
    Hear(usize),
    TimerEnds(usize),
    /// The lease that it was told is over.
    LeaseEnds(usize),
    /// The lock is held for a while.
    Keep(usize),
    Unlock(usize),
    Come(usize),
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
    /// A subscription is confirmed.
    Join(usize),
    /// A channel without a listener is not subscribed any longer.
    Hush(usize),
}

impl State {
    pub(super) fn new(scheme: &Scheme) -> Self {
        let channel = if scheme.subscribed {
            Channel::On
        } else {
            Channel::Off
        };
        let mut state = Self {
            holder: None,
            list: Vec::new(),
            lockers: std::array::from_fn(|at| {
                Locker::new(scheme.callers[at], scheme.later[at], channel).into()
            }),
            foreign: if scheme.foreign > 0 {
                Foreign::Asks
            } else {
                Foreign::Done
            },
            left: scheme.foreign.saturating_sub(1),
            leaves: scheme.leaves,
            faults: scheme.faults,
        };
        state.settle(scheme);
        state
    }

    /// Returns whether each locker that believes to hold the lock holds it.
    pub(super) fn is_exclusive(&self) -> bool {
        let inside = (0..LOCKERS).filter(|&at| self.lockers[at].is(Hold::Inside));
        inside
            .map(Holder::Locker)
            .all(|holder| self.holder == Some(holder))
    }

    /// Returns whether the lock is free, a client waits for it, and nothing will happen before the
    /// re-check.
    pub(super) fn is_stuck(&self) -> bool {
        // A locker that has lost its connection waits until it notices.
        let is_waited_for =
            self.lockers.iter().any(|locker| locker.waits()) || self.foreign == Foreign::Parked;
        if self.holder.is_some() || !is_waited_for || self.foreign == Foreign::Asks {
            return false;
        }
        !self.lockers.iter().any(|locker| self.moves(locker))
    }

    /// Returns whether each locker that waits, and for which nothing is about to happen, is in the
    /// list.
    pub(super) fn is_listed(&self) -> bool {
        let quiet = |locker: &Locker| locker.waits() && !self.moves(locker);
        (0..LOCKERS).all(|at| !quiet(&self.lockers[at]) || self.list.contains(&at))
    }

    fn moves(&self, locker: &Locker) -> bool {
        if locker.sent.is_some() || locker.undo || locker.pass == Pass::Sent {
            return true;
        }
        locker.is_fine()
            && (locker.answer.is_some()
                || locker.pass == Pass::Executed
                || locker.is(Hold::Inside)
                || matches!(locker.channel, Channel::Asked | Channel::Joining)
                || !locker.inbox.is_empty()
                || locker.looks()
                || locker.sees_end_of_lease())
    }

    pub(super) fn actions(&self, scheme: &Scheme, actions: &mut Vec<Action>) {
        for (at, locker) in self.lockers.iter().enumerate() {
            let sent = [
                locker.sent.as_ref().map(|_| Action::Execute(at)),
                locker.undo.then_some(Action::ExecuteUndo(at)),
                (locker.pass == Pass::Sent).then_some(Action::ExecutePass(at)),
            ];
            actions.extend(sent.into_iter().flatten());
            match locker.health {
                Health::Fine => self.actions_of(scheme, at, actions),
                Health::Suspended => actions.push(Action::GoOn(at)),
                Health::Dead => {}
            }
        }
        match self.foreign {
            Foreign::Asks => actions.push(Action::ForeignAsks),
            Foreign::Holding if self.holder == Some(Holder::Foreign) => {
                actions.push(Action::ForeignUnlocks);
            }
            _ => {}
        }
        if self.leaves > 0 && matches!(self.foreign, Foreign::Asks | Foreign::Parked) {
            actions.push(Action::ForeignLeaves);
        }
        actions.extend(self.may_expire().then_some(Action::Expire));
    }

    /// Returns whether the holder's lease may end now. Elsewhere it is renewed.
    fn may_expire(&self) -> bool {
        self.ends_with(|fault| *fault == Fault::Expiry)
    }

    /// Returns whether the holder's lease ends, or may end after such a fault.
    fn ends_with(&self, such: impl Fn(&Fault) -> bool) -> bool {
        let Some(Holder::Locker(at) | Holder::Unwanted(at)) = self.holder else {
            return false;
        };
        !self.lockers[at].is_fine() || self.faults.iter().any(such)
    }

    fn actions_of(&self, scheme: &Scheme, at: usize, actions: &mut Vec<Action>) {
        let locker = &self.lockers[at];
        let is_empty = locker.line.waiters().is_empty();
        let is_heard = locker.channel == Channel::On;
        let may = [
            (locker.answer.is_some(), Action::Answer(at)),
            (locker.pass == Pass::Executed, Action::Passed(at)),
            (!locker.inbox.is_empty(), Action::Hear(at)),
            (locker.looks(), Action::TimerEnds(at)),
            (locker.sees_end_of_lease(), Action::LeaseEnds(at)),
            (
                locker.is(Hold::Inside) && scheme.foreign > 0,
                Action::Keep(at),
            ),
            (locker.is(Hold::Inside), Action::Unlock(at)),
            (
                locker.later > 0 && is_empty && !locker.is(Hold::Inside),
                Action::Come(at),
            ),
            (
                matches!(locker.channel, Channel::Asked | Channel::Joining),
                Action::Join(at),
            ),
            (locker.channel == Channel::Deaf, Action::Reconnect(at)),
            (
                is_heard && !scheme.subscribed && locker.lingers(),
                Action::Hush(at),
            ),
            (self.leaves > 0 && !is_empty, Action::Leave(at)),
        ];
        actions.extend(
            may.into_iter()
                .filter_map(|(may, action)| may.then_some(action)),
        );
        let faults =
            self.faults
                .iter()
                .filter(|_| !locker.is_done())
                .filter_map(|fault| match fault {
                    Fault::Death => Some(Action::Die(at)),
                    Fault::Pause => Some(Action::Suspend(at)),
                    Fault::Cut => is_heard.then_some(Action::Cut(at)),
                    Fault::Expiry => None,
                });
        actions.extend(faults);
    }

    pub(super) fn act(&mut self, scheme: &Scheme, action: Action) {
        match action {
            Action::Execute(at) => self.execute(scheme, at),
            Action::ExecuteUndo(at) => {
                self.locker(at).undo = false;
                if self.holder == Some(Holder::Unwanted(at)) {
                    self.free(scheme, None);
                }
            }
            Action::ExecutePass(at) => {
                self.locker(at).pass = if scheme.is(Mutant::PassesAreInOrder) {
                    Pass::None
                } else {
                    Pass::Executed
                };
                self.list.retain(|&other| other != at);
                if self.holder.is_none() {
                    self.free(scheme, None);
                }
            }
            Action::Answer(at) => {
                let is_held = self.holder == Some(Holder::Locker(at));
                let locker = self.locker(at);
                if locker.answer != Some(Said::Granted) || !is_held {
                    locker.hear_answer(scheme);
                } else {
                    locker.granted();
                    if !locker.is(Hold::Inside) {
                        self.holder = Some(Holder::Unwanted(at));
                    }
                }
            }
            Action::Passed(at) => self.locker(at).end_pass(),
            Action::Hear(at) => self.locker(at).hear(scheme),
            Action::TimerEnds(at) | Action::LeaseEnds(at) => self.locker(at).time_is_over(),
            Action::Keep(at) => self.locker(at).let_pass(SOON),
            Action::Unlock(at) => self.locker(at).unlock(),
            Action::Come(at) => self.locker(at).come(),
            Action::Leave(at) => {
                self.leaves -= 1;
                self.locker(at).leave();
            }
            Action::ForeignAsks => {
                self.foreign = if self.take(Holder::Foreign) {
                    Foreign::Holding
                } else {
                    Foreign::Parked
                };
            }
            Action::ForeignUnlocks => {
                self.holder = None;
                self.tell_all(scheme);
                self.foreign = if self.left > 0 {
                    Foreign::Asks
                } else {
                    Foreign::Done
                };
                self.left = self.left.saturating_sub(1);
            }
            Action::ForeignLeaves => {
                self.leaves -= 1;
                (self.foreign, self.left) = (Foreign::Done, 0);
            }
            Action::Expire => self.expire(),
            Action::Die(at) => self.fault(at).die(),
            Action::Suspend(at) => self.fault(at).health = Health::Suspended,
            Action::GoOn(at) => {
                self.locker(at).health = Health::Fine;
                self.locker(at).notice();
            }
            Action::Cut(at) => {
                let locker = self.fault(at);
                locker.channel = Channel::Deaf;
                locker.inbox.clear();
            }
            Action::Reconnect(at) => self.locker(at).channel = Channel::Joining,
            Action::Join(at) => self.locker(at).join(scheme),
            Action::Hush(at) => self.locker(at).hush(),
        }
        self.settle(scheme);
    }

    /// Has passes sent, and makes equal what differs only in the order of the lockers.
    fn settle(&mut self, scheme: &Scheme) {
        // Those that have changed are not shared with the state before.
        for locker in self.lockers.iter_mut().filter_map(Arc::get_mut) {
            locker.take_pass(scheme);
            locker.tidy(scheme);
        }
        let hasher = BuildHasherDefault::<Neighbours>::default();
        let mut order: [usize; LOCKERS] = std::array::from_fn(|at| at);
        order.sort_by_cached_key(|&at| {
            let is_holder =
                matches!(self.holder, Some(Holder::Locker(by) | Holder::Unwanted(by)) if by == at);
            (
                hasher.hash_one(&self.lockers[at]),
                self.place(at),
                is_holder,
            )
        });
        let now_at = |before: usize| order.iter().position(|&at| at == before).unwrap_or(before);
        self.list.iter_mut().for_each(|at| *at = now_at(*at));
        if let Some(Holder::Locker(by) | Holder::Unwanted(by)) = &mut self.holder {
            *by = now_at(*by);
        }
        self.lockers = order.map(|at| Arc::clone(&self.lockers[at]));
    }

    fn locker(&mut self, at: usize) -> &mut Locker {
        Arc::make_mut(&mut self.lockers[at])
    }

    fn fault(&mut self, at: usize) -> &mut Locker {
        self.faults = &[];
        self.locker(at)
    }

    fn expire(&mut self) {
        let Some(Holder::Locker(at) | Holder::Unwanted(at)) = self.holder.take() else {
            return;
        };
        // No message is sent.
        self.leases(Lease::Told, Lease::Over);
        // The client of Redisson knows the lease too, and asks when that is over.
        if self.foreign == Foreign::Parked {
            self.foreign = Foreign::Asks;
        }
        if self.lockers[at].is_fine() {
            self.faults = &[];
        }
        // The holder's clock tells it before anybody else can enter, or when it goes on if it was
        // suspended.
        self.locker(at).lose();
    }

    /// Takes the lock if it is free. Waiters do not know the lease of the new holder.
    fn take(&mut self, by: Holder) -> bool {
        if self.holder.is_some() {
            return false;
        }
        self.holder = Some(by);
        self.leases(Lease::Told, Lease::Unknown);
        true
    }

    fn leases(&mut self, from: Lease, to: Lease) {
        for locker in self
            .lockers
            .iter_mut()
            .filter(|locker| locker.lease == from)
        {
            Arc::make_mut(locker).lease = to;
        }
    }
}

/// What the server does, as `acquire.lua`, `enlist.lua`, `release.lua`, `pass.lua` and `wake.lua`
/// have it.
impl State {
    fn execute(&mut self, scheme: &Scheme, at: usize) {
        let said = match self.locker(at).sent.take() {
            None => return,
            Some(Script::Acquire { listing }) if self.take(Holder::Locker(at)) => {
                if let Some(looked) = listing {
                    self.leave_list(at, looked);
                }
                Said::Granted
            }
            Some(Script::Acquire { listing }) => {
                let ends = self.ends_with(|fault| *fault != Fault::Cut);
                self.locker(at).lease = if ends { Lease::Told } else { Lease::Unknown };
                if listing.is_some() && !self.list.contains(&at) {
                    self.list.push(at);
                }
                Said::Held(listing.and_then(|_| self.place(at)))
            }
            // The lease was over before.
            Some(Script::Release(_)) if self.holder != Some(Holder::Locker(at)) => {
                Said::Released(ReleaseAnswer::Gone)
            }
            Some(Script::Release(releaser)) => {
                Said::Released(self.free(scheme, Some((at, &releaser))))
            }
        };
        if self.lockers[at].health != Health::Dead {
            self.locker(at).answer = Some(said);
        }
    }

    /// Takes a locker off the list, to which the lock was granted. If it `looked`, those before it
    /// were woken, or heard the message of the channel, and did not come.
    fn leave_list(&mut self, at: usize, looked: bool) {
        let before = self
            .list
            .iter()
            .position(|&other| other == at)
            .filter(|_| looked)
            .unwrap_or(0);
        self.list.retain(|&other| other != at);
        for other in self.list.drain(..before.min(2)).collect::<Vec<_>>() {
            self.locker(other).tell(Message::WakeUp(WakeUp::Go));
        }
    }

    fn place(&self, at: usize) -> Option<u64> {
        self.list
            .iter()
            .position(|&other| other == at)
            .and_then(|place| place.try_into().ok())
    }

    /// Returns how many clients are subscribed to the channel.
    fn subscribed(&self) -> usize {
        self.lockers
            .iter()
            .filter(|locker| locker.listens())
            .count()
            + usize::from(self.foreign == Foreign::Parked)
    }

    /// The lock is free: wakes the next locker, or tells all.
    fn free(&mut self, scheme: &Scheme, releases: Option<(usize, &Releaser)>) -> ReleaseAnswer {
        self.holder = None;
        let had_list = !self.list.is_empty();
        if let Some(woken) = self.wake(scheme, releases) {
            return woken;
        }
        let told = self.subscribed();
        if !(had_list && scheme.is(Mutant::MuteWithoutList)) {
            self.tell_all(scheme);
        }
        ReleaseAnswer::Released(told.try_into().unwrap_or(u64::MAX))
    }

    /// Wakes the next of the list, and puts the releasing locker last. Returns `None` if there was
    /// none.
    fn wake(
        &mut self,
        scheme: &Scheme,
        releases: Option<(usize, &Releaser)>,
    ) -> Option<ReleaseAnswer> {
        if self.list.is_empty() {
            return None;
        }
        let me = releases.map(|(at, _)| at);
        self.list.retain(|&other| Some(other) != me);
        self.list.extend(
            releases
                .filter(|(_, releaser)| releaser.enlists)
                .map(|(at, _)| at),
        );
        loop {
            let first = *self.list.first()?;
            if Some(first) == me || !self.lockers[first].is_named() {
                self.list.remove(0);
                if Some(first) == me {
                    return None;
                }
                continue;
            }
            let waiting = self.list.len();
            let counted =
                waiting + usize::from(releases.is_some_and(|(_, releaser)| releaser.listens));
            let others = self.subscribed().saturating_sub(counted);
            let turn = releases
                .and_then(|(_, releaser)| releaser.offers)
                .filter(|_| others > 0);
            self.locker(first)
                .tell(Message::WakeUp(turn.map_or(WakeUp::Go, WakeUp::Turn)));
            let next = if turn.is_none() {
                self.watch(scheme, me)
            } else {
                None
            };
            // Clients outside of the list must not depend on the one that is woken.
            let is_watched = me.is_some() && next.is_some();
            if turn.is_some() || (others > 0 && !is_watched && !scheme.is(Mutant::OneDecidesForAll))
            {
                self.tell_all(scheme);
            }
            let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
            let place = me.and_then(|me| self.place(me));
            return Some(ReleaseAnswer::PassedOn {
                place,
                turn,
                others: count(others),
                waiting: count(waiting),
            });
        }
    }

    /// Has the next locker of the list watch the first one, unless it is the one that releases.
    /// Returns it.
    fn watch(&mut self, scheme: &Scheme, me: Option<usize>) -> Option<usize> {
        while let Some(&next) = self.list.get(1) {
            if Some(next) == me {
                return me;
            }
            if self.lockers[next].is_named() {
                if !scheme.is(Mutant::NobodyWatches) {
                    self.locker(next).tell(Message::WakeUp(WakeUp::Watch));
                }
                return Some(next);
            }
            self.list.remove(1);
        }
        None
    }

    /// Sends the message of the channel.
    fn tell_all(&mut self, scheme: &Scheme) {
        for at in 0..LOCKERS {
            if !scheme.is(Mutant::OnlyTheFirstHears) || self.place(at).unwrap_or(0) == 0 {
                self.locker(at).tell(Message::Zero);
            }
        }
        if self.foreign == Foreign::Parked {
            self.foreign = Foreign::Asks;
        }
    }
}
