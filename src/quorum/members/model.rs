//! Every interleaving, within bounds, of what happens to three servers and a stranger: the real [`plan`] decides for two
//! lockers, whose beliefs never overlap; and mistakes by each of which they come to.
//!
//! A step is one script on one server, a look at the clock, a fault of a server or of an address. What a locker knows is as
//! old as it may be: nobody has to look again. A script that is late is one that was sent on such old knowledge. Time goes
//! on in ticks for all; clocks of servers have no part in this but by the expiry of a lease, which `lease.rs` allows for.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use super::{Change, Id, Known, Memory, Phase, Plan, Sight, plan};
use crate::clock::Instant;

const SEATS: usize = 3;
const STRANGER: usize = 3;
const MAJORITY: usize = 2;
/// How often a locker has who is at one place listed, by each of the others.
const MOST_LISTINGS: u8 = 2;
const TICK: Duration = Duration::from_secs(1);

/// One mistake each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    /// A memory of another run of the server is believed.
    RunIgnored,
    /// Whoever says that it votes does, whether the others list it or not.
    ListsIgnored,
    /// A server that is listed votes at once.
    NoWait,
    /// The wait is as long as the locker's own leases.
    OwnLease,
    /// The wait counts from when the server began, and not from when it was listed.
    WaitFromTheBeginning,
    /// One witness is enough.
    OneWitness,
    /// Who was dropped is listed again.
    DroppedAgain,
    /// A server that votes and is not listed any more is listed again, as it is.
    VoterTakenIn,
    /// An acquire does not compare the memory.
    AcquireBlind,
    /// A renewal counts wherever it is done.
    RenewalBlind,
    /// What is written for a lost vote is a vote, whether the server votes or not.
    RetakeBlind,
    /// A change is written whatever the server remembers by then.
    ChangeBlind,
}

#[derive(Debug, Clone)]
struct Bounds {
    /// How long the leases of the two are, in ticks.
    leases: [u32; 2],
    ticks: u32,
    /// How often a server forgets everything, and comes back with a copy.
    forgets: u8,
    failovers: u8,
    /// How often an address leads elsewhere.
    moves: u8,
    /// Whether the servers know each other at first.
    founded: bool,
    /// The first locker does not reach this place.
    cut: Option<usize>,
    /// Whose knowledge may be old. The other one looks at everything at once.
    stale: usize,
    mistake: Option<Mistake>,
}

const BOUNDS: Bounds = Bounds {
    leases: [1, 1],
    ticks: 4,
    forgets: 0,
    failovers: 0,
    moves: 0,
    founded: true,
    cut: None,
    stale: 0,
    mistake: None,
};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Server {
    run: u8,
    /// And the run that wrote it.
    memory: Option<(u8, Memory)>,
    lease: u32,
    /// How long it had been listed when that was written last.
    age: u32,
    /// Whose lock stands there, and for how long yet.
    lock: Option<(usize, u32)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Locker {
    leads_to: [usize; SEATS],
    /// With how many ticks ago it was read.
    seen: [Option<(Sight, u32)>; SEATS],
    former: [Option<Id>; SEATS],
    /// For how long each vote is valid yet.
    votes: [u32; SEATS],
    asked: [bool; SEATS],
    /// How long ago it began to ask, once it has.
    began: Option<u32>,
    /// How often it had another listed who is there.
    listings: [u8; SEATS],
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    servers: Vec<Server>,
    lockers: [Locker; 2],
    /// Whether the first lock has been taken, as far as it could be.
    begun: bool,
    ids: u64,
    ticks: u32,
    forgets: u8,
    failovers: u8,
    moves: u8,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Tick,
    Vet(usize, usize),
    Ask(usize, usize),
    Renew(usize, usize),
    Retake(usize, usize),
    Change(usize, usize),
    Forget(usize),
    /// A copy takes over: with the lock, or without.
    Failover(usize, bool),
    Move(usize, usize, usize),
}

fn origin() -> Instant {
    // Any one will do, as long as all are the same.
    static ORIGIN: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    *ORIGIN
}

impl World {
    fn new(bounds: &Bounds) -> Self {
        let members: Vec<Id> = (0..SEATS as u64).map(Id).collect();
        let memory =
            |id| Memory { id, seats: SEATS, phase: Phase::Votes, members: members.clone(), dropped: Vec::new() };
        let longest = bounds.leases.into_iter().max().expect("two");
        let server = |at: usize| {
            let known = bounds.founded && at < SEATS;
            let memory = known.then(|| (0, memory(Id(at as u64))));
            Server { run: 0, memory, lease: if known { longest } else { 0 }, age: 0, lock: None }
        };
        let locker = |_| Locker {
            leads_to: [0, 1, 2],
            seen: Default::default(),
            former: [None; SEATS],
            votes: [0; SEATS],
            asked: [false; SEATS],
            began: None,
            listings: [0; SEATS],
        };
        let mut world = Self {
            servers: (0..=STRANGER).map(server).collect(),
            lockers: [0, 1].map(locker),
            begun: false,
            ids: 10,
            ticks: 0,
            forgets: 0,
            failovers: 0,
            moves: 0,
        };
        if bounds.founded {
            for (who, place) in [0, 1].into_iter().flat_map(|who| (0..SEATS).map(move |place| (who, place))) {
                world.vet(bounds, who, place);
            }
            // The first one has just taken it where it could.
            for place in (0..SEATS).filter(|&place| bounds.cut != Some(place)) {
                world.carry_out(bounds, &Step::Ask(0, place));
            }
            if let Some(place) = bounds.cut {
                world.lockers[0].seen[place] = None;
            }
        }
        world.begun = true;
        world
    }

    fn plan(&self, bounds: &Bounds, who: usize) -> Plan {
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
        let mut plan = plan(&seen, known, origin(), &mut fresh);
        let phases =
            |of: &[Phase]| seen.iter().map(|s| s.as_ref().is_some_and(|s| of.contains(&s.memory.phase))).collect();
        match bounds.mistake {
            Some(Mistake::ListsIgnored) => {
                plan.votes = phases(&[Phase::Votes]);
                plan.keeps = phases(&[Phase::Votes, Phase::Listed]);
            }
            Some(Mistake::OneWitness) => {
                for place in 0..SEATS {
                    let Some(begun) = seen[place].as_ref().filter(|s| s.memory.phase == Phase::Begun) else { continue };
                    let witness = seen.iter().flatten().find(|s| {
                        s.memory.phase == Phase::Votes
                            && s.memory.lists(begun.memory.id)
                            && s.memory.id != begun.memory.id
                    });
                    let own = seen.iter().flatten().find(|s| s.memory.phase == Phase::Votes);
                    if let (None, Some(own)) = (witness, own) {
                        let gone =
                            own.memory.members.iter().find(|id| !seen.iter().flatten().any(|s| s.memory.id == **id));
                        if let Some(&gone) = gone {
                            let to = own.memory.listing(begun.memory.id, &[gone]);
                            let at = seen.iter().position(|s| s.as_ref() == Some(own)).expect("seen");
                            plan.changes.push(Change { place: at, from: own.memory.clone(), to, waited: None });
                        }
                    }
                    if let Some(witness) = witness {
                        let mut to = begun.memory.clone();
                        to.phase = Phase::Votes;
                        to.members.clone_from(&witness.memory.members);
                        plan.changes.push(Change { place, from: begun.memory.clone(), to, waited: None });
                    }
                }
            }
            Some(Mistake::VoterTakenIn) => {
                let anew = |change: &Change| change.from.phase == Phase::Votes && change.to.phase == Phase::Begun;
                let places: Vec<usize> = plan.changes.iter().filter(|c| anew(c)).map(|c| c.place).collect();
                plan.changes.retain(|change| !anew(change));
                for place in places {
                    let id = seen[place].as_ref().expect("seen").memory.id;
                    for (at, other) in seen.iter().enumerate().filter_map(|(at, s)| s.as_ref().map(|s| (at, s))) {
                        let gone =
                            other.memory.members.iter().find(|m| !seen.iter().flatten().any(|s| s.memory.id == **m));
                        if let (false, Some(&gone)) = (other.memory.lists(id), gone) {
                            let to = other.memory.listing(id, &[gone]);
                            plan.changes.push(Change { place: at, from: other.memory.clone(), to, waited: None });
                        }
                    }
                }
            }
            _ => {}
        }
        plan
    }

    /// Whether a locker believes that it holds the lock.
    fn believes(&self, who: usize) -> bool {
        self.lockers[who].votes.iter().filter(|&&valid| valid > 0).count() >= MAJORITY
    }

    fn vet(&mut self, bounds: &Bounds, who: usize, place: usize) {
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
    fn look(&mut self, who: usize, place: usize) {
        let locker = &mut self.lockers[who];
        let server = &self.servers[locker.leads_to[place]];
        let (_, memory) = server.memory.clone().expect("written");
        locker.former[place] = Some(memory.id);
        let sight = Sight { memory, lease: TICK * server.lease, age: TICK * server.age, read: origin() };
        locker.seen[place] = Some((sight, 0));
    }

    /// Whether the server still remembers what this locker has seen there.
    fn remembers(&self, who: usize, place: usize) -> bool {
        let locker = &self.lockers[who];
        let memory = self.servers[locker.leads_to[place]].memory.as_ref().map(|(_, memory)| memory);
        memory.is_some() && memory == locker.seen[place].as_ref().map(|(sight, _)| &sight.memory)
    }

    fn disconnect(&mut self, server: usize) {
        for locker in &mut self.lockers {
            for place in 0..SEATS {
                if locker.leads_to[place] == server {
                    locker.seen[place] = None;
                }
            }
        }
    }

    fn steps(&self, bounds: &Bounds) -> Vec<Step> {
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
                let asking = asking && (who == 1 || !bounds.founded);
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
        }
        for at in 0..SEATS {
            // Fewer than half at a time: the others vote, and list each other.
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

    fn take(&mut self, bounds: &Bounds, step: &Step) {
        self.carry_out(bounds, step);
        let who = 1 - bounds.stale;
        for place in 0..SEATS {
            if !self.is_cut(bounds, who, place) {
                self.vet(bounds, who, place);
            }
        }
    }

    fn is_cut(&self, bounds: &Bounds, who: usize, place: usize) -> bool {
        who == 0 && bounds.cut == Some(place) && self.begun
    }

    fn carry_out(&mut self, bounds: &Bounds, step: &Step) {
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
                self.servers[at] = Server { run, memory: None, lease: 0, age: 0, lock: None };
                self.disconnect(at);
            }
            Step::Failover(at, with_lock) => {
                self.failovers += 1;
                self.servers[at].run += 1;
                if !with_lock {
                    self.servers[at].lock = None;
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
        for place in 0..SEATS {
            let id = self.lockers[who].seen[place].as_ref().map(|(sight, _)| sight.memory.id);
            let listed = id.is_some_and(|id| place != change.place && change.to.lists(id) && !change.from.lists(id));
            self.lockers[who].listings[place] += u8::from(listed);
        }
        let server = &mut self.servers[self.lockers[who].leads_to[change.place]];
        let Some((_, memory)) = &mut server.memory else {
            self.lockers[who].seen[change.place] = None;
            return;
        };
        let told = change.waited.is_some_and(|waited| TICK * server.lease > waited);
        let is_seen = *memory == change.from || bounds.mistake == Some(Mistake::ChangeBlind);
        let told = told && bounds.mistake != Some(Mistake::OwnLease) && bounds.mistake != Some(Mistake::NoWait);
        if is_seen && !told {
            self.ids = self.ids.max(change.to.id.0);
            let listed = memory.phase == Phase::Begun || change.to.members != memory.members;
            if change.to.phase == Phase::Begun
                || (listed && change.to.phase == Phase::Listed && bounds.mistake != Some(Mistake::WaitFromTheBeginning))
            {
                server.age = 0;
            }
            *memory = change.to;
        }
        self.look(who, change.place);
    }

    fn tick(&mut self, bounds: &Bounds) {
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
    fn canonical(&self) -> Self {
        let mut world = self.clone();
        let mut names = HashMap::new();
        let mut name = |id: &mut Id| {
            let next = names.len() as u64;
            *id = Id(*names.entry(*id).or_insert(next));
        };
        let mut rename = |memory: &mut Memory| {
            name(&mut memory.id);
            memory.members.iter_mut().for_each(&mut name);
            memory.dropped.iter_mut().for_each(&mut name);
        };
        world.servers.iter_mut().filter_map(|s| s.memory.as_mut()).for_each(|(_, memory)| rename(memory));
        for locker in &mut world.lockers {
            for place in 0..SEATS {
                match &mut locker.seen[place] {
                    Some((sight, ago)) => {
                        rename(&mut sight.memory);
                        if sight.memory.phase != Phase::Listed {
                            *ago = 0;
                        }
                    }
                    None => {}
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

/// All worlds within these bounds; or the steps to the first in which both believe.
fn explore(bounds: &Bounds) -> Result<usize, Vec<Step>> {
    let first = World::new(bounds);
    let mut known = HashSet::from([hash(&first)]);
    let mut paths: Vec<(usize, Step)> = vec![(0, Step::Tick)];
    let mut queue = VecDeque::from([(first, 0)]);
    while let Some((world, path)) = queue.pop_front() {
        if world.believes(0) && world.believes(1) {
            return Err(steps_to(&paths, path));
        }
        for step in world.steps(bounds) {
            let mut next = world.clone();
            next.take(bounds, &step);
            if known.insert(hash(&next)) {
                paths.push((path, step));
                queue.push_back((next, paths.len() - 1));
            }
        }
    }
    Ok(known.len())
}

fn steps_to(paths: &[(usize, Step)], mut at: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    while at > 0 {
        steps.push(paths[at].1.clone());
        at = paths[at].0;
    }
    steps.reverse();
    steps
}

fn hash(world: &World) -> u128 {
    use std::hash::{BuildHasher as _, Hash, Hasher as _};
    let canonical = world.canonical();
    let half = |seed: u64| {
        let mut hasher = std::hash::BuildHasherDefault::<std::hash::DefaultHasher>::new().build_hasher();
        (seed, &canonical).hash(&mut hasher);
        hasher.finish()
    };
    u128::from(half(1)) << 64 | u128::from(half(2))
}

/// A server forgets everything, and the holder does not reach another.
const FORGETTING: Bounds = Bounds { forgets: 1, cut: Some(2), ..BOUNDS };
/// A copy takes over that has the lock, or does not.
const FAILING_OVER: Bounds = Bounds { failovers: 1, cut: Some(2), ..BOUNDS };
/// An address of the holder leads elsewhere.
const MOVING: Bounds = Bounds { moves: 1, cut: Some(2), ..BOUNDS };
/// The same, where it reaches all.
const MOVING_ON: Bounds = Bounds { moves: 1, ..BOUNDS };
/// The longest lease is known to one locker only.
const LEASES: Bounds = Bounds { leases: [2, 1], ..FORGETTING };
/// Nobody knows anybody yet.
const FOUNDING: Bounds = Bounds { founded: false, ..BOUNDS };

fn of(stale: usize, bounds: &Bounds) -> Bounds {
    Bounds { stale, ..bounds.clone() }
}

#[test]
#[ignore = "measure"]
fn sizes() {
    for (name, bounds) in [
        ("forget", FORGETTING),
        ("failover", FAILING_OVER),
        ("move", MOVING),
        ("move on", MOVING_ON),
        ("leases", LEASES),
        ("found", FOUNDING),
    ] {
        for (stale, ticks) in [(0, 3), (1, 3), (0, 4), (1, 4)] {
            let start = std::time::Instant::now();
            println!(
                "{name} {stale} {ticks}: {:?} {:?}",
                explore(&Bounds { ticks, ..of(stale, &bounds) }),
                start.elapsed()
            );
        }
    }
}

#[test]
#[ignore = "measure"]
fn mistakes() {
    use Mistake::*;
    for mistake in [
        RunIgnored,
        ListsIgnored,
        NoWait,
        OwnLease,
        WaitFromTheBeginning,
        OneWitness,
        DroppedAgain,
        VoterTakenIn,
        AcquireBlind,
        RenewalBlind,
        RetakeBlind,
        ChangeBlind,
    ] {
        for (name, bounds) in [
            ("forget", FORGETTING),
            ("failover", FAILING_OVER),
            ("move", MOVING),
            ("move on", MOVING_ON),
            ("leases", LEASES),
        ] {
            for stale in [0, 1] {
                let start = std::time::Instant::now();
                let found = explore(&Bounds { mistake: Some(mistake), ..of(stale, &bounds) });
                if let Err(steps) = found {
                    println!("{mistake:?} {name} {stale}: {steps:?} {:?}", start.elapsed());
                }
            }
        }
        println!("{mistake:?} --");
    }
}
