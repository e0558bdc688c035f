//! The steps that servers and lockers can take.

use super::super::{Change, Memory, Phase, Plan};
use super::mistakes::Mistake;
use super::world::{Bounds, SEATS, STRANGER, Server, TICK, WITNESSES, World};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Tick,
    Vet(usize, usize),
    Ask(usize, usize),
    Renew(usize, usize),
    Retake(usize, usize),
    /// The locker that asks for the marks of the others, the place that it asks for, and, with a mistake, the only
    /// server that it asks.
    Hear(usize, usize, Option<usize>),
    /// The highest fence is written to a server that gave another.
    Raise(usize, usize),
    Change(usize, usize),
    Forget(usize),
    /// A server forgets everything, and its connections stay.
    Flush(usize),
    /// A replica takes over, with the lock or without it.
    Failover(usize, bool),
    Move(usize, usize, usize),
}

impl World {
    pub(super) fn steps(&self, bounds: &Bounds) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.ticks < bounds.ticks {
            steps.push(Step::Tick);
        }
        for who in 0..2 {
            let (locker, plan) = (&self.lockers[who], self.plan(bounds, who));
            for place in 0..SEATS {
                if self.is_cut(bounds, who, place) {
                    continue;
                }
                let server = &self.servers[locker.leads_to[place]];
                let waits = locker.seen[place]
                    .as_ref()
                    .is_some_and(|(sight, _)| sight.memory.phase == Phase::Listed && sight.age < TICK * server.age);
                if !self.remembers(who, place) || waits {
                    steps.push(Step::Vet(who, place));
                }
                if locker.seen[place].is_none() {
                    continue;
                }
                let asking = locker.began.is_none_or(|ago| ago < bounds.leases[who]) && !self.believes(who);
                let asking = asking && (who == 1 || !bounds.founded || bounds.halfway);
                if plan.votes[place] && asking && !locker.asked[place] {
                    steps.push(Step::Ask(who, place));
                }
                if self.believes(who) {
                    match server.lock {
                        Some((holder, _)) if holder == who => steps.push(Step::Renew(who, place)),
                        None => steps.push(Step::Retake(who, place)),
                        Some(_) => {}
                    }
                }
            }
            steps.extend((0..plan.changes.len()).map(|change| Step::Change(who, change)));
            if bounds.fences {
                self.steps_of_fences(bounds, who, &plan, &mut steps);
            }
        }
        for at in 0..SEATS {
            // Fewer than half of the servers have a fault at a time: the others vote, and list each other.
            let others = (0..SEATS).filter(|&other| other != at);
            let vote = others.clone().all(|other| {
                let memory = self.servers[other].memory.as_ref();
                memory.is_some_and(|(run, memory)| *run == self.servers[other].run && memory.phase == Phase::Votes)
            });
            if !vote || (self.moves > 0 && bounds.moves > 0) {
                continue;
            }
            if self.forgets < bounds.forgets {
                steps.push(Step::Forget(at));
            }
            if self.flushes < bounds.flushes {
                steps.push(Step::Flush(at));
            }
            if self.failovers < bounds.failovers {
                steps.push(Step::Failover(at, false));
                if self.servers[at].lock.is_some() {
                    steps.push(Step::Failover(at, true));
                }
            }
        }
        if self.moves < bounds.moves {
            steps.extend((0..SEATS).flat_map(|place| (0..=STRANGER).map(move |to| Step::Move(0, place, to))));
        }
        steps
    }

    fn steps_of_fences(&self, bounds: &Bounds, who: usize, plan: &Plan, steps: &mut Vec<Step>) {
        let locker = &self.lockers[who];
        for place in (0..SEATS).filter(|&place| !self.is_cut(bounds, who, place)) {
            let is_lower = locker.highest().is_some_and(|highest| locker.fences[place] < highest);
            if locker.votes[place] > 0 && is_lower && locker.guard.is_none() && self.believes(who) {
                steps.push(Step::Raise(who, place));
            }
            let waits = locker.seen[place].as_ref().is_some_and(|(sight, _)| sight.memory.phase == Phase::Listed);
            let is_over = plan.changes.iter().any(|change| change.place == place && change.to.phase == Phase::Votes);
            if !(if bounds.mistake == Some(Mistake::MarksToldAtOnce) { waits } else { waits && is_over }) {
                continue;
            }
            let tells = |&other: &usize| {
                other != place && plan.votes[other] && self.remembers(who, other) && !self.is_cut(bounds, who, other)
            };
            let others: Vec<usize> = (0..SEATS).filter(tells).collect();
            if bounds.mistake == Some(Mistake::MarksOfOne) {
                steps.extend(others.into_iter().map(|other| Step::Hear(who, place, Some(other))));
            } else if others.len() >= WITNESSES {
                steps.push(Step::Hear(who, place, None));
            }
        }
    }

    pub(super) fn take(&mut self, bounds: &Bounds, step: &Step) {
        self.carry_out(bounds, step);
        let who = 1 - bounds.stale;
        for place in 0..SEATS {
            if !self.is_cut(bounds, who, place) {
                self.vet(bounds, who, place);
            }
        }
    }

    pub(super) fn is_cut(&self, bounds: &Bounds, who: usize, place: usize) -> bool {
        who == 0 && bounds.cut == Some(place) && self.begun
    }

    pub(super) fn carry_out(&mut self, bounds: &Bounds, step: &Step) {
        match *step {
            Step::Tick => self.tick(bounds),
            Step::Vet(who, place) => self.vet(bounds, who, place),
            Step::Ask(who, place) => {
                let remembers = self.remembers(who, place) || bounds.mistake == Some(Mistake::AcquireBlind);
                let (locker, lease) = (&mut self.lockers[who], bounds.leases[who]);
                let began = *locker.began.get_or_insert(0);
                locker.asked[place] = true;
                let server = &mut self.servers[locker.leads_to[place]];
                if remembers && server.lock.is_none_or(|(holder, _)| holder == who) {
                    server.lock = Some((who, lease));
                    locker.votes[place] = lease.saturating_sub(began);
                    if bounds.fences {
                        server.mark += 1;
                        locker.fences[place] = server.mark;
                        self.agree(who);
                    }
                }
            }
            Step::Hear(who, place, only) => {
                let others = (0..SEATS).filter(|&other| other != place && only.is_none_or(|only| only == other));
                let marks = others.map(|other| self.servers[self.lockers[who].leads_to[other]].mark);
                let highest = marks.max();
                self.lockers[who].heard[place] = highest;
            }
            Step::Raise(who, place) => {
                let locker = &mut self.lockers[who];
                let server = &mut self.servers[locker.leads_to[place]];
                if let (Some(fence), Some(_)) = (locker.highest(), server.lock.filter(|(holder, _)| *holder == who)) {
                    server.mark = server.mark.max(fence);
                    locker.fences[place] = fence;
                    self.agree(who);
                }
            }
            Step::Renew(who, place) => {
                let keeps = self.remembers(who, place) && self.plan(bounds, who).keeps[place];
                self.extend(bounds, who, place, keeps || bounds.mistake == Some(Mistake::RenewalBlind));
            }
            Step::Retake(who, place) => {
                let votes = self.remembers(who, place) && self.plan(bounds, who).votes[place];
                self.extend(bounds, who, place, votes || bounds.mistake == Some(Mistake::RetakeBlind));
            }
            Step::Change(who, at) => self.change(bounds, who, at),
            Step::Forget(at) => {
                self.forgets += 1;
                let run = self.servers[at].run + 1;
                self.servers[at] = Server { run, memory: None, lease: 0, age: 0, lock: None, mark: 0 };
                self.disconnect(at);
            }
            Step::Flush(at) => {
                self.flushes += 1;
                let run = self.servers[at].run;
                self.servers[at] = Server { run, memory: None, lease: 0, age: 0, lock: None, mark: 0 };
            }
            Step::Failover(at, with_lock) => {
                self.failovers += 1;
                self.servers[at].run += 1;
                if !with_lock {
                    (self.servers[at].lock, self.servers[at].mark) = (None, 0);
                }
                self.disconnect(at);
            }
            Step::Move(who, place, to) => {
                self.moves += 1;
                self.lockers[who].leads_to[place] = to;
                self.lockers[who].seen[place] = None;
            }
        }
    }

    fn extend(&mut self, bounds: &Bounds, who: usize, place: usize, counts: bool) {
        let locker = &mut self.lockers[who];
        self.servers[locker.leads_to[place]].lock = Some((who, bounds.leases[who]));
        if counts {
            locker.votes[place] = bounds.leases[who];
        }
    }

    fn change(&mut self, bounds: &Bounds, who: usize, at: usize) {
        let change = self.plan(bounds, who).changes.swap_remove(at);
        self.write(bounds, who, change);
    }

    /// A locker writes a change.
    pub(super) fn write(&mut self, bounds: &Bounds, who: usize, change: Change) {
        let begins_to_vote = change.to.phase == Phase::Votes && change.from.phase != Phase::Votes;
        let heard = self.lockers[who].heard[change.place].take().filter(|_| begins_to_vote);
        if bounds.fences && begins_to_vote && heard.is_none() && bounds.mistake != Some(Mistake::MarksForgotten) {
            return;
        }
        let server = &mut self.servers[self.lockers[who].leads_to[change.place]];
        let Some((_, memory)) = &mut server.memory else {
            self.lockers[who].seen[change.place] = None;
            return;
        };
        let told = change.waited.is_some_and(|waited| TICK * server.lease > waited);
        let is_seen = match bounds.mistake {
            Some(Mistake::ChangeBlind) => true,
            Some(Mistake::DroppedAgain) => *memory == Memory { dropped: memory.dropped.clone(), ..change.from.clone() },
            _ => *memory == change.from,
        };
        let told = told && bounds.mistake != Some(Mistake::OwnLease) && bounds.mistake != Some(Mistake::NoWait);
        if is_seen && !told {
            for place in (0..SEATS).filter(|&place| place != change.place) {
                let id = self.lockers[who].seen[place].as_ref().map(|(sight, _)| sight.memory.id);
                let listed = id.is_some_and(|id| change.to.lists(id) && !change.from.lists(id));
                self.lockers[who].listings[place] += u8::from(listed);
            }
            self.ids = self.ids.max(change.to.id.0);
            let listed = memory.phase == Phase::Begun || change.to.members != memory.members;
            if change.to.phase == Phase::Begun
                || (listed && change.to.phase == Phase::Listed && bounds.mistake != Some(Mistake::WaitFromTheBeginning))
            {
                server.age = 0;
            }
            *memory = change.to;
            server.mark = server.mark.max(heard.unwrap_or(0));
        }
        self.look(who, change.place);
    }
}
