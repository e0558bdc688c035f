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
/// How often a locker has who is at one place listed, by each of the others.
const MOST_LISTINGS: u8 = 4;
pub(super) const TICK: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub(super) struct Bounds {
    /// How long the leases of the two are, in ticks.
    pub(super) leases: [u32; 2],
    pub(super) ticks: u32,
    /// How often a server forgets everything, in a restart or as it is, and comes back with a copy.
    pub(super) forgets: u8,
    pub(super) flushes: u8,
    pub(super) failovers: u8,
    /// How often an address leads elsewhere.
    pub(super) moves: u8,
    /// Whether the servers know each other at first.
    pub(super) founded: bool,
    /// The first locker does not reach this place.
    pub(super) cut: Option<usize>,
    /// Whether fences are counted.
    pub(super) fences: bool,
    /// Whether only one server has granted the first lock yet.
    pub(super) halfway: bool,
    /// Whose knowledge may be old. The other one looks at everything at once.
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
    /// And the run that wrote it.
    pub(super) memory: Option<(u8, Memory)>,
    pub(super) lease: u32,
    /// How long it had been listed when that was written last.
    pub(super) age: u32,
    /// Whose lock stands there, and for how long yet.
    pub(super) lock: Option<(usize, u32)>,
    /// The last fence that it knows of.
    pub(super) mark: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Locker {
    pub(super) leads_to: [usize; SEATS],
    /// With how many ticks ago it was read.
    pub(super) seen: [Option<(Sight, u32)>; SEATS],
    pub(super) former: [Option<Id>; SEATS],
    /// For how long each vote is valid yet.
    pub(super) votes: [u32; SEATS],
    pub(super) asked: [bool; SEATS],
    /// How long ago it began to ask, once it has.
    pub(super) began: Option<u32>,
    /// How often it had another listed who is there.
    pub(super) listings: [u8; SEATS],
    /// The fence that each vote came with, or was raised to.
    pub(super) fences: [u8; SEATS],
    /// The fence of its guard, once there is one.
    pub(super) guard: Option<u8>,
    /// The highest mark of the others, for each server that is to vote.
    pub(super) heard: [Option<u8>; SEATS],
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) servers: Vec<Server>,
    pub(super) lockers: [Locker; 2],
    /// Whether the first lock has been taken, as far as it could be.
    pub(super) begun: bool,
    pub(super) ids: u64,
    pub(super) ticks: u32,
    pub(super) forgets: u8,
    pub(super) flushes: u8,
    pub(super) failovers: u8,
    pub(super) moves: u8,
    /// The highest fence that a guard was made with, and whether a later one was not higher.
    pub(super) highest: u8,
    pub(super) stale_fence: bool,
}

fn origin() -> Instant {
    // Any one will do, as long as all are the same.
    static ORIGIN: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    *ORIGIN
}

impl Locker {
    /// The highest fence that a server gave which votes for it.
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
            // Another lock of its mark has raised that on one server.
            world.servers[0].mark = u8::from(bounds.halfway);
            // The first one has just taken it where it could, or is about to.
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
                // As old as it is: now is the origin.
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
        let known = Known { former: &locker.former, lease: TICK * bounds.leases[who], rests: &rests };
        let mut plan = plan(seen.iter().map(Option::as_ref), known, origin(), &mut fresh);
        distort(bounds.mistake, &mut plan, &seen);
        plan
    }

    /// Whether a locker believes that it holds the lock.
    pub(super) fn believes(&self, who: usize) -> bool {
        self.lockers[who].votes.iter().filter(|&&valid| valid > 0).count() >= MAJORITY
    }

    /// Whether its votes make a majority that is of one mind about the fence: then there is a guard.
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

    /// What a script tells its locker of the server.
    pub(super) fn look(&mut self, who: usize, place: usize) {
        let locker = &mut self.lockers[who];
        let server = &self.servers[locker.leads_to[place]];
        let (_, memory) = server.memory.clone().expect("written");
        locker.former[place] = Some(memory.id);
        let sight = Sight { memory, lease: TICK * server.lease, age: TICK * server.age, read: origin() };
        locker.seen[place] = Some((sight, 0));
    }

    /// Whether the server still remembers what this locker has seen there.
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
            // Lockers write it back; here all of them do at once, so that the wait is as short as it can be.
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

    /// The same for all worlds that differ by the names of memories, and by what does not matter any more.
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
