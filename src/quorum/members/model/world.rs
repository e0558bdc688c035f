//! Servers and lockers.

use std::time::Duration;

use super::super::{Id, Known, Memory, Phase, Plan, Sight, plan};
use super::mistakes::{Mistake, distort};
use super::steps::Step;
use crate::clock::Instant;

pub(super) const SEATS: usize = 3;
pub(super) const STRANGER: usize = 3;
const MAJORITY: usize = 2;
/// How many others have to tell their marks.
pub(super) const WITNESSES: usize = SEATS - MAJORITY + 1;
/// How often a locker has the server at one place listed by each of the others.
const MOST_LISTINGS: u8 = 4;
pub(super) const TICK: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub(super) struct Bounds {
    /// How long the leases of the two are, in ticks.
    pub(super) leases: [u32; 2],
    pub(super) ticks: u32,
    /// How often a server forgets everything in a restart, forgets everything while it runs, or is replaced by a
    /// replica.
    pub(super) forgets: u8,
    pub(super) flushes: u8,
    pub(super) failovers: u8,
    /// How often an address changes to lead to another server.
    pub(super) moves: u8,
    /// Whether the servers list each other at the start.
    pub(super) founded: bool,
    /// The first locker cannot reach this place.
    pub(super) cut: Option<usize>,
    /// Whether fences are counted.
    pub(super) fences: bool,
    /// Whether only one server has granted the first lock at the start.
    pub(super) halfway: bool,
    /// The locker whose knowledge may be old. The other one always vets all servers at once.
    pub(super) stale: usize,
    pub(super) mistake: Option<Mistake>,
}

pub(super) const BOUNDS: Bounds = Bounds {
    leases: [1, 1],
    ticks: 4,
    forgets: 0,
    flushes: 0,
    failovers: 0,
    moves: 0,
    founded: true,
    cut: None,
    fences: false,
    halfway: false,
    stale: 0,
    mistake: None,
};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Server {
    pub(super) run: u8,
    /// The memory, and the run that wrote it.
    pub(super) memory: Option<(u8, Memory)>,
    pub(super) lease: u32,
    /// How long it had been listed when that was last written.
    pub(super) age: u32,
    /// The holder of the lock on it, and the ticks that are left of the lease.
    pub(super) lock: Option<(usize, u32)>,
    /// The last fence that it knows of.
    pub(super) mark: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Locker {
    pub(super) leads_to: [usize; SEATS],
    /// What was read, and how many ticks ago.
    pub(super) seen: [Option<(Sight, u32)>; SEATS],
    pub(super) former: [Option<Id>; SEATS],
    pub(super) met: [bool; SEATS],
    /// For how many ticks each vote is still valid.
    pub(super) votes: [u32; SEATS],
    pub(super) asked: [bool; SEATS],
    /// How many ticks ago it began to ask, if it has.
    pub(super) began: Option<u32>,
    /// How often it had another server list the one at this place.
    pub(super) listings: [u8; SEATS],
    /// The fence that each vote came with, or was raised to.
    pub(super) fences: [u8; SEATS],
    /// The fence of its guard, once there is one.
    pub(super) guard: Option<u8>,
    /// The highest mark of the others that it has read, for each server that is to vote.
    pub(super) heard: [Option<u8>; SEATS],
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) servers: Vec<Server>,
    pub(super) lockers: [Locker; 2],
    /// Whether the setup of the first lock is done.
    pub(super) begun: bool,
    pub(super) ids: u64,
    pub(super) ticks: u32,
    pub(super) forgets: u8,
    pub(super) flushes: u8,
    pub(super) failovers: u8,
    pub(super) moves: u8,
    /// The highest fence of a guard so far, and whether a later guard had one that was not higher.
    pub(super) highest: u8,
    pub(super) stale_fence: bool,
}

fn origin() -> Instant {
    // Any instant will do, as long as it is always the same.
    static ORIGIN: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    *ORIGIN
}

impl Locker {
    /// Returns the highest fence of the servers whose vote is valid.
    pub(super) fn highest(&self) -> Option<u8> {
        (0..SEATS).filter(|&place| self.votes[place] > 0).map(|place| self.fences[place]).max()
    }
}

impl World {
    pub(super) fn new(bounds: &Bounds) -> Self {
        let members: Vec<Id> = (0..SEATS as u64).map(Id).collect();
        let memory =
            |id| Memory { id, seats: SEATS, phase: Phase::Votes, members: members.clone(), dropped: Vec::new() };
        let longest = bounds.leases.into_iter().max().expect("two");
        let server = |at: usize| {
            let known = bounds.founded && at < SEATS;
            let memory = known.then(|| (0, memory(Id(at as u64))));
            Server { run: 0, memory, lease: if known { longest } else { 0 }, age: 0, lock: None, mark: 0 }
        };
        let locker = |_| Locker {
            leads_to: [0, 1, 2],
            seen: Default::default(),
            former: [None; SEATS],
            met: [false; SEATS],
            votes: [0; SEATS],
            asked: [false; SEATS],
            began: None,
            listings: [0; SEATS],
            fences: [0; SEATS],
            guard: None,
            heard: [None; SEATS],
        };
        let mut world = Self {
            servers: (0..=STRANGER).map(server).collect(),
            lockers: [0, 1].map(locker),
            begun: false,
            ids: 10,
            ticks: 0,
            forgets: 0,
            flushes: 0,
            failovers: 0,
            moves: 0,
            highest: 0,
            stale_fence: false,
        };
        if bounds.founded {
            for (who, place) in [0, 1].into_iter().flat_map(|who| (0..SEATS).map(move |place| (who, place))) {
                world.vet(bounds, who, place);
            }
            // Another lock has raised the mark on one server.
            world.servers[0].mark = u8::from(bounds.halfway);
            // The first locker has just taken the lock on all servers that it reaches, or only on the first one yet.
            let most = if bounds.halfway { 1 } else { SEATS };
            for place in (0..SEATS).filter(|&place| bounds.cut != Some(place)).take(most) {
                world.carry_out(bounds, &Step::Ask(0, place));
            }
            if let Some(place) = bounds.cut {
                world.lockers[0].seen[place] = None;
            }
        }
        world.begun = true;
        world
    }

    pub(super) fn plan(&self, bounds: &Bounds, who: usize) -> Plan {
        let locker = &self.lockers[who];
        let seen: Vec<Option<Sight>> = locker
            .seen
            .iter()
            .map(|seen| {
                let (sight, ago) = seen.as_ref()?;
                // Now is the origin, so a sight is as old as its ticks say.
                let mut sight = Sight { read: origin().before(TICK * *ago), ..sight.clone() };
                match bounds.mistake {
                    Some(Mistake::NoWait) => sight.age = TICK * 100,
                    Some(Mistake::OwnLease) => sight.lease = Duration::ZERO,
                    Some(Mistake::DroppedAgain) => sight.memory.dropped.clear(),
                    _ => {}
                }
                Some(sight)
            })
            .collect();
        let mut ids = self.ids;
        let mut fresh = || {
            ids += 1;
            Id(ids)
        };
        let rests = locker.listings.map(|listings| listings >= MOST_LISTINGS);
        let met = if bounds.mistake == Some(Mistake::MissedIgnored) { [false; SEATS] } else { locker.met };
        let known = Known { former: &locker.former, met: &met, lease: TICK * bounds.leases[who], rests: &rests };
        let mut plan = plan(seen.iter().map(Option::as_ref), known, origin(), &mut fresh);
        distort(bounds.mistake, &mut plan, &seen);
        plan
    }

    /// Returns whether a locker believes that it holds the lock.
    pub(super) fn believes(&self, who: usize) -> bool {
        self.lockers[who].votes.iter().filter(|&&valid| valid > 0).count() >= MAJORITY
    }

    /// Makes a guard if a majority of valid votes has the same fence.
    pub(super) fn agree(&mut self, who: usize) {
        let locker = &mut self.lockers[who];
        let Some(fence) = locker.highest() else { return };
        let agreed = (0..SEATS).filter(|&place| locker.votes[place] > 0 && locker.fences[place] == fence).count();
        if locker.guard.is_none() && agreed >= MAJORITY {
            locker.guard = Some(fence);
            self.stale_fence |= fence <= self.highest;
            self.highest = self.highest.max(fence);
        }
    }

    pub(super) fn vet(&mut self, bounds: &Bounds, who: usize, place: usize) {
        let server = &mut self.servers[self.lockers[who].leads_to[place]];
        let is_own = |run: u8| run == server.run || bounds.mistake == Some(Mistake::RunIgnored);
        if !server.memory.as_ref().is_some_and(|(run, _)| is_own(*run)) {
            self.ids += 1;
            server.memory = Some((server.run, Memory::begun(Id(self.ids), SEATS)));
            server.age = 0;
        }
        server.lease = server.lease.max(bounds.leases[who]);
        self.look(who, place);
    }

    /// Takes in what a script tells its locker about the server.
    pub(super) fn look(&mut self, who: usize, place: usize) {
        let locker = &mut self.lockers[who];
        let server = &self.servers[locker.leads_to[place]];
        let (_, memory) = server.memory.clone().expect("written");
        locker.former[place] = Some(memory.id);
        locker.met[place] |= memory.phase != Phase::Begun;
        let sight = Sight { memory, lease: TICK * server.lease, age: TICK * server.age, read: origin() };
        locker.seen[place] = Some((sight, 0));
    }

    /// Returns whether the server still has the memory that this locker has seen there.
    pub(super) fn remembers(&self, who: usize, place: usize) -> bool {
        let locker = &self.lockers[who];
        let memory = self.servers[locker.leads_to[place]].memory.as_ref().map(|(_, memory)| memory);
        memory.is_some() && memory == locker.seen[place].as_ref().map(|(sight, _)| &sight.memory)
    }

    pub(super) fn disconnect(&mut self, server: usize) {
        for locker in &mut self.lockers {
            for place in 0..SEATS {
                if locker.leads_to[place] == server {
                    locker.seen[place] = None;
                }
            }
        }
    }

    pub(super) fn tick(&mut self, bounds: &Bounds) {
        self.ticks += 1;
        for server in &mut self.servers {
            server.lock = server.lock.and_then(|(who, rest)| (rest > 1).then(|| (who, rest - 1)));
            let waits = server.memory.as_ref().is_some_and(|(_, memory)| {
                memory.phase == Phase::Listed
                    || (bounds.mistake == Some(Mistake::WaitFromTheBeginning) && memory.phase == Phase::Begun)
            });
            // Lockers write it back; here they all do so at once, so that the wait is as short as possible.
            server.age += u32::from(waits && server.age < 9);
        }
        for locker in &mut self.lockers {
            locker.votes = locker.votes.map(|rest| rest.saturating_sub(1));
            locker.began = locker.began.map(|ago| ago + 1);
            for (_, ago) in locker.seen.iter_mut().flatten() {
                *ago = (*ago + 1).min(9);
            }
        }
    }

    /// Returns one form for all worlds that differ only in the ids of memories, and in what no longer matters.
    pub(super) fn canonical(&self) -> Self {
        let mut world = self.clone();
        let mut names = Vec::new();
        let mut name = |id: &mut Id| {
            let known = names.iter().position(|name| name == id);
            let at = known.unwrap_or_else(|| {
                names.push(*id);
                names.len() - 1
            });
            *id = Id(at as u64);
        };
        let mut rename = |memory: &mut Memory| {
            name(&mut memory.id);
            memory.members.iter_mut().for_each(&mut name);
            memory.dropped.iter_mut().for_each(&mut name);
        };
        world.servers.iter_mut().filter_map(|s| s.memory.as_mut()).for_each(|(_, memory)| rename(memory));
        for locker in &mut world.lockers {
            for place in 0..SEATS {
                if let Some((sight, ago)) = &mut locker.seen[place] {
                    rename(&mut sight.memory);
                    if sight.memory.phase != Phase::Listed {
                        *ago = 0;
                    }
                }
                if let Some(former) = &mut locker.former[place] {
                    let mut memory = Memory::begun(*former, SEATS);
                    rename(&mut memory);
                    *former = memory.id;
                }
            }
        }
        world.ids = 0;
        world
    }
}
