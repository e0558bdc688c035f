//! The states, and what changes them.

use super::{LOCKERS, MAJORITY, Mutant, SERVERS, WITNESSES, World};

/// What a locker knows of the memory of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
enum Id {
    #[default]
    Unknown,
    /// That of a memory that the server no longer has.
    Former,
    Current,
}

impl Id {
    fn is_over(&mut self) {
        if *self == Self::Current {
            *self = Self::Former;
        }
    }
}

/// What one locker asked the others for, so that a server that is shut may be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Asked {
    /// The lease that the server has waited for.
    waited: u8,
    /// The longest lease, and the highest mark, of those that answered.
    lease: u8,
    mark: u8,
    /// Sets of servers: those that answered and vote, and those that are shut too.
    open: u8,
    shut: u8,
}

impl Asked {
    fn answers(&self) -> usize {
        (self.open | self.shut).count_ones() as usize
    }
}

/// What one locker knows of one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
struct Known {
    id: Id,
    /// What it was when the round began.
    voter: Id,
    /// Whether it was asked in this round.
    asked: bool,
    /// For how long the vote is valid, and the fence that it was given with.
    vote: u8,
    fence: u8,
    /// Whether it was ever seen voting.
    met: bool,
    opening: Option<Asked>,
}

impl Known {
    /// The memory has the same id as the one before.
    fn is_not_over(&mut self) {
        for id in [&mut self.id, &mut self.voter] {
            if *id == Id::Former {
                *id = Id::Current;
            }
        }
    }
}

/// What is on a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
struct Data {
    remembers: bool,
    /// Whether this run of the server wrote the memory.
    is_own: bool,
    open: bool,
    /// The longest lease that was announced.
    lease: u8,
    /// For how long it has been shut.
    waited: u8,
    /// The holder of the lock, and for how long.
    holder: Option<u8>,
    ttl: u8,
    mark: u8,
}

impl Data {
    fn votes(&self) -> bool {
        self.remembers && self.is_own && self.open
    }

    fn is_shut(&self) -> bool {
        self.remembers && self.is_own && !self.open
    }

    fn take(&mut self, locker: usize, lease: u8) {
        (self.holder, self.ttl) = (Some(number(locker)), lease);
    }

    fn is_held_by(&self, locker: usize) -> bool {
        self.holder == Some(number(locker))
    }

    fn free(&mut self) {
        (self.holder, self.ttl) = (None, 0);
    }

    fn tick(&mut self) {
        self.ttl = self.ttl.saturating_sub(1);
        if self.ttl == 0 {
            self.holder = None;
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
struct Server {
    data: Data,
    /// How long ago it lost its data, at most the longest lease.
    since: u8,
    snapshot: Option<Data>,
    /// The servers that begin together with it.
    with: u8,
    known: [Known; LOCKERS],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Locker {
    /// How many rounds it has begun, and for how long the last one has run: zero if none is under
    /// way.
    rounds: u8,
    round: u8,
    holds: bool,
    fence: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct State {
    servers: [Server; SERVERS],
    lockers: [Locker; LOCKERS],
    ticks: u8,
    losses: u8,
    snapshots: u8,
    crossings: u8,
    /// The highest fence of all holders, and whether a later one was not higher.
    highest: u8,
    pub(super) fell: bool,
}

/// A step. Lockers come before servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Tick,
    Vet(usize, usize),
    Begin(usize),
    Acquire(usize, usize),
    Renew(usize, usize),
    Retake(usize, usize),
    /// Raises the mark of a server to the fence of the round.
    Raise(usize, usize),
    Release(usize),
    /// Asks the last server about the first.
    Ask(usize, usize, usize),
    Open(usize, usize),
    Forget(usize),
    Save(usize),
    Restore(usize),
    /// Another lock is granted that is counted in the same mark.
    Cross(usize),
}

/// The server that cannot be reached, if there is one.
const AWAY: usize = 2;

fn number(at: usize) -> u8 {
    u8::try_from(at).expect("few")
}

impl State {
    pub(super) fn new(world: &World) -> Self {
        let data = if world.new {
            Data::default()
        } else {
            Data {
                remembers: true,
                is_own: true,
                open: true,
                ..Data::default()
            }
        };
        let server = Server {
            data,
            since: world.longest(),
            ..Server::default()
        };
        Self {
            servers: [server; SERVERS],
            lockers: [Locker::default(); LOCKERS],
            ticks: 0,
            losses: 0,
            snapshots: 0,
            crossings: 0,
            highest: 0,
            fell: false,
        }
    }

    pub(super) fn has_two_holders(&self) -> bool {
        self.lockers.iter().all(|locker| locker.holds)
    }

    pub(super) fn has_a_holder(&self) -> bool {
        self.lockers.iter().any(|locker| locker.holds)
    }

    pub(super) fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if self.ticks < world.ticks {
            actions.push(Action::Tick);
        }
        for at in 0..SERVERS {
            self.actions_at(world, at, actions);
            for locker in 0..LOCKERS {
                if !(world.away && at == AWAY) {
                    self.actions_of(world, locker, at, actions);
                }
            }
        }
        for (at, locker) in self.lockers.iter().enumerate() {
            let is_known =
                |server: &&Server| server.known[at].id == Id::Current && server.data.open;
            let known = self.servers.iter().filter(is_known).count();
            let is_ready = known >= MAJORITY
                || world.is(Mutant::VettedInRound)
                || world.is(Mutant::AcquireBlind);
            if locker.round == 0 && locker.rounds < world.rounds[at] && is_ready {
                actions.push(Action::Begin(at));
            }
            if world.fences.is_some() && locker.holds {
                actions.push(Action::Release(at));
            }
        }
    }

    fn actions_at(&self, world: &World, at: usize, actions: &mut Vec<Action>) {
        let server = &self.servers[at];
        if self.may_forget(world, at) {
            actions.extend((world.snapshots == 0).then_some(Action::Forget(at)));
            actions.extend(server.snapshot.map(|_| Action::Restore(at)));
        }
        if self.snapshots < world.snapshots && server.data.is_own {
            actions.push(Action::Save(at));
        }
        if self.crossings < world.fences.unwrap_or(0) && server.data.open {
            actions.push(Action::Cross(at));
        }
    }

    fn actions_of(&self, world: &World, at: usize, there: usize, actions: &mut Vec<Action>) {
        let (locker, server) = (&self.lockers[at], &self.servers[there]);
        let (known, data) = (&server.known[at], &server.data);
        let is_known = known.id == Id::Current;
        let is_over = data.waited >= data.lease || world.is(Mutant::AskedEarly);
        if !is_known || !data.is_own || (data.is_shut() && is_over && known.opening.is_none()) {
            actions.push(Action::Vet(at, there));
        }
        let voter = if world.is(Mutant::VettedInRound) {
            known.id
        } else {
            known.voter
        };
        let fits = voter == Id::Current && data.open;
        if (1..=world.leases[at]).contains(&locker.round)
            && !known.asked
            && known.vote == 0
            && (fits || (voter != Id::Unknown && world.is(Mutant::AcquireBlind)))
        {
            actions.push(Action::Acquire(at, there));
        }
        if locker.holds {
            let lease = world.leases[at];
            if data.is_held_by(at) && (known.vote < lease || data.ttl < lease) {
                actions.push(Action::Renew(at, there));
            }
            let anywhere = world.is(Mutant::RetakeAnywhere) || world.is(Mutant::RetakeKept);
            let may_retake = if anywhere {
                known.id != Id::Unknown
            } else {
                is_known && data.open
            };
            if data.holder.is_none() && may_retake {
                actions.push(Action::Retake(at, there));
            }
        } else if world.fences.is_some()
            && self.votes(at) >= MAJORITY
            && known.vote > 0
            && data.is_held_by(at)
        {
            actions.extend((known.fence < self.fence(at)).then_some(Action::Raise(at, there)));
        }
        if let Some(asked) = &known.opening {
            for other in
                (0..SERVERS).filter(|&other| other != there && !(world.away && other == AWAY))
            {
                let told = &self.servers[other];
                let is_asked = (asked.open | asked.shut) & (1 << other) != 0;
                if !is_asked && told.known[at].id == Id::Current && told.data.is_own {
                    actions.push(Action::Ask(at, there, other));
                }
            }
            if data.remembers && data.is_own && self.may_open(world, at, there, asked) {
                actions.push(Action::Open(at, there));
            }
        }
    }

    /// Returns whether there are grounds to open a server.
    fn may_open(&self, world: &World, at: usize, there: usize, asked: &Asked) -> bool {
        let others =
            |other: &usize| *other != there && (asked.open | asked.shut) & (1 << *other) == 0;
        let misses = (0..SERVERS)
            .filter(others)
            .any(|other| self.servers[other].known[at].met);
        let witnesses = if world.is(Mutant::OneWitness) {
            1
        } else {
            WITNESSES
        };
        let data = &self.servers[there].data;
        asked.open.count_ones() as usize >= witnesses
            || (asked.shut.count_ones() as usize >= SERVERS - MAJORITY && !misses)
            || world
                .at_most(data.lease)
                .is_some_and(|most| data.waited >= most && asked.answers() + 1 >= MAJORITY)
    }

    fn may_forget(&self, world: &World, at: usize) -> bool {
        let fails = |server: &Server| server.since < world.longest() || !server.data.votes();
        let others = self
            .servers
            .iter()
            .enumerate()
            .filter(|&(other, _)| other != at);
        let failing = others.filter(|(_, server)| fails(server)).count();
        self.losses < world.losses && (world.at_any_time || failing < SERVERS - MAJORITY)
    }

    fn votes(&self, locker: usize) -> usize {
        self.servers
            .iter()
            .filter(|server| server.known[locker].vote > 0)
            .count()
    }

    /// Returns the highest fence that a locker was given in its round.
    fn fence(&self, locker: usize) -> u8 {
        let granted = self
            .servers
            .iter()
            .map(|server| &server.known[locker])
            .filter(|known| known.vote > 0);
        granted.map(|known| known.fence).max().unwrap_or_default()
    }

    pub(super) fn act(&mut self, world: &World, action: Action) {
        match action {
            Action::Tick => self.tick(world),
            Action::Vet(at, there) => self.vet(world, at, there),
            Action::Begin(at) => {
                (self.lockers[at].rounds, self.lockers[at].round) =
                    (self.lockers[at].rounds + 1, 1);
                for server in &mut self.servers {
                    let known = &mut server.known[at];
                    let shut = known.id == Id::Current && !server.data.open;
                    known.voter = if shut { Id::Unknown } else { known.id };
                }
            }
            Action::Acquire(at, there) => self.acquire(world, at, there),
            Action::Renew(at, there) => {
                let fence = self.lockers[at].fence;
                let Server { data, known, .. } = &mut self.servers[there];
                (data.ttl, known[at].vote, known[at].fence) =
                    (world.leases[at], world.leases[at], fence);
            }
            Action::Retake(at, there) => {
                let fence = self.lockers[at].fence;
                let Server { data, known, .. } = &mut self.servers[there];
                data.take(at, world.leases[at]);
                if (known[at].id == Id::Current && data.open) || world.is(Mutant::RetakeAnywhere) {
                    (known[at].vote, known[at].fence) = (world.leases[at], fence);
                }
            }
            Action::Raise(at, there) => {
                let fence = self.fence(at);
                let Server { data, known, .. } = &mut self.servers[there];
                (data.mark, known[at].fence) = (data.mark.max(fence), fence);
            }
            Action::Release(at) => self.end(at),
            Action::Ask(at, there, other) => self.ask(at, there, other),
            Action::Open(at, there) => self.open(world, at, there),
            Action::Forget(at) => self.forget(world, at, Data::default()),
            Action::Save(at) => {
                self.snapshots += 1;
                let data = self.servers[at].data;
                self.servers[at].snapshot = Some(Data {
                    is_own: false,
                    waited: 0,
                    ..data
                });
            }
            Action::Restore(at) => {
                let data = self.servers[at].snapshot.expect("it was made");
                self.forget(world, at, data);
                self.servers[at]
                    .known
                    .iter_mut()
                    .for_each(|known| (known.id, known.voter) = Default::default());
            }
            Action::Cross(at) => {
                self.crossings += 1;
                self.servers[at].data.mark += 1;
            }
        }
        self.settle(world);
    }

    fn tick(&mut self, world: &World) {
        self.ticks += 1;
        let most = world.longest() * if world.late { 2 } else { 1 };
        for server in &mut self.servers {
            server.data.tick();
            server.snapshot.iter_mut().for_each(Data::tick);
            server.since = (server.since + 1).min(world.longest());
            if server.data.remembers && !server.data.open {
                server.data.waited = (server.data.waited + 1).min(most);
            }
            for known in &mut server.known {
                known.vote = known.vote.saturating_sub(1);
                if known.vote == 0 {
                    known.fence = 0;
                }
            }
        }
        for (locker, lease) in self.lockers.iter_mut().zip(world.leases) {
            if locker.round > 0 {
                locker.round = (locker.round + 1).min(lease + 1);
            }
        }
    }

    fn vet(&mut self, world: &World, at: usize, there: usize) {
        let (data, lease) = (self.servers[there].data, world.leases[at]);
        if !data.remembers || (!data.is_own && !world.is(Mutant::RunIgnored)) {
            if world.is(Mutant::IdKept) && !data.remembers {
                self.servers[there]
                    .known
                    .iter_mut()
                    .for_each(Known::is_not_over);
            } else {
                self.rename(world, there);
            }
            let lease = lease.max(data.lease);
            let open = world.is(Mutant::NoWait);
            self.servers[there].data = Data {
                remembers: true,
                is_own: true,
                open,
                lease,
                waited: 0,
                ..data
            };
        } else {
            let data = &mut self.servers[there].data;
            data.is_own = true;
            if !world.is(Mutant::NothingAnnounced) {
                data.lease = data.lease.max(lease);
            }
        }
        let Server { data, known, .. } = &mut self.servers[there];
        (known[at].id, known[at].met) = (Id::Current, known[at].met || data.open);
        if !data.open && (data.waited >= data.lease || world.is(Mutant::AskedEarly)) {
            known[at].opening = Some(Asked {
                waited: data.lease,
                lease: 0,
                mark: 0,
                open: 0,
                shut: 0,
            });
        }
    }

    fn acquire(&mut self, world: &World, at: usize, there: usize) {
        let (elapsed, lease) = (self.lockers[at].round - 1, world.leases[at]);
        let Server { data, known, .. } = &mut self.servers[there];
        let known = &mut known[at];
        known.asked = true;
        if data.holder.is_none_or(|holder| holder == number(at)) {
            data.take(at, lease);
            known.vote = lease - elapsed;
            if world.fences.is_some() {
                data.mark += 1;
                known.fence = data.mark;
            }
        }
    }

    fn ask(&mut self, at: usize, there: usize, other: usize) {
        let Server { data, with, .. } = self.servers[other];
        let asked = self.servers[there].known[at]
            .opening
            .as_mut()
            .expect("it is to be opened");
        if data.open && with & (1 << there) == 0 {
            asked.open |= 1 << other;
        } else {
            asked.shut |= 1 << other;
        }
        (asked.lease, asked.mark) = (asked.lease.max(data.lease), asked.mark.max(data.mark));
    }

    fn open(&mut self, world: &World, at: usize, there: usize) {
        let Server { data, known, .. } = self.servers[there];
        let asked = known[at].opening.expect("it is to be opened");
        let told = if world.is(Mutant::OwnLeases) {
            0
        } else {
            asked.lease
        };
        let lease = data.lease.max(told);
        let is_long_enough = if world.is(Mutant::AskedEarly) || world.is(Mutant::ShorterWait) {
            lease <= data.waited
        } else {
            lease <= asked.waited
        };
        if !is_long_enough && !world.is(Mutant::OpenedBlind) {
            self.servers[there].data.lease = lease;
            if !world.is(Mutant::AskedEarly) {
                self.servers[there].known[at].opening = None;
            }
            return;
        }
        if world.is(Mutant::IdKept) {
            self.servers[there]
                .known
                .iter_mut()
                .for_each(|known| known.opening = None);
        } else {
            self.rename(world, there);
        }
        let together =
            (asked.open.count_ones() as usize) < WITNESSES && !world.is(Mutant::NotNoted);
        let server = &mut self.servers[there];
        server
            .known
            .iter_mut()
            .for_each(|known| known.opening = None);
        server.with = if together { asked.shut } else { 0 };
        let mark = if world.is(Mutant::MarksUntold) {
            0
        } else {
            asked.mark
        };
        server.data = Data {
            open: true,
            waited: 0,
            lease,
            mark: data.mark.max(mark),
            ..data
        };
        (server.known[at].id, server.known[at].met) = (Id::Current, true);
    }

    /// The memory of a server gets another id: what was known of it, or decided on it, does not fit
    /// any more.
    fn rename(&mut self, world: &World, there: usize) {
        for known in &mut self.servers[there].known {
            known.id.is_over();
            known.voter.is_over();
            if !world.is(Mutant::OpenedBlind) {
                known.opening = None;
            }
        }
        for server in &mut self.servers {
            server.with &= !(1 << there);
        }
    }

    fn forget(&mut self, world: &World, there: usize, data: Data) {
        self.losses += 1;
        self.rename(world, there);
        let server = &mut self.servers[there];
        (server.data, server.since, server.with) = (data, 0, 0);
    }

    /// Begins or ends what a locker holds, by its votes.
    fn settle(&mut self, world: &World) {
        for at in 0..LOCKERS {
            let (locker, votes) = (self.lockers[at], self.votes(at));
            if (locker.holds && votes < MAJORITY)
                || (!locker.holds && locker.round > world.leases[at])
            {
                self.end(at);
            } else if !locker.holds && locker.round > 0 && votes >= MAJORITY {
                let fence = self.fence(at);
                let has_it =
                    |server: &&Server| server.known[at].vote > 0 && server.known[at].fence == fence;
                if world.fences.is_none() {
                    self.lockers[at].holds = true;
                } else if self.servers.iter().filter(has_it).count() >= MAJORITY {
                    (self.lockers[at].holds, self.lockers[at].fence) = (true, fence);
                    self.fell |= fence <= self.highest;
                    self.highest = self.highest.max(fence);
                }
            }
        }
    }

    fn end(&mut self, at: usize) {
        let rounds = self.lockers[at].rounds;
        self.lockers[at] = Locker {
            rounds,
            ..Locker::default()
        };
        for server in &mut self.servers {
            let Known {
                id, met, opening, ..
            } = server.known[at];
            server.known[at] = Known {
                id,
                met,
                opening,
                ..Known::default()
            };
            if server.data.is_held_by(at) {
                server.data.free();
            }
            if let Some(snapshot) = server
                .snapshot
                .as_mut()
                .filter(|snapshot| snapshot.is_held_by(at))
            {
                snapshot.free();
            }
        }
    }

    /// Returns whether all servers that can be reached vote after two longest leases, if the last
    /// locker looks at them once in a tick.
    pub(super) fn recovers(&self, world: &World) -> bool {
        let (mut state, at) = (*self, LOCKERS - 1);
        let reached: Vec<usize> = (0..SERVERS)
            .filter(|&there| !(world.away && there == AWAY))
            .collect();
        for _ in 0..=world.longest() * if world.late { 2 } else { 1 } + 1 {
            for &there in reached.iter().chain(&reached) {
                let Server { data, known, .. } = &state.servers[there];
                if known[at].id != Id::Current || !data.votes() {
                    state.act(world, Action::Vet(at, there));
                }
            }
            let waiting =
                |state: &Self, there: usize| state.servers[there].known[at].opening.is_some();
            for &there in reached
                .iter()
                .filter(|&&there| waiting(&state, there))
                .collect::<Vec<_>>()
            {
                for &other in reached.iter().filter(|&&other| other != there) {
                    state.act(world, Action::Ask(at, there, other));
                }
                let asked = state.servers[there].known[at]
                    .opening
                    .expect("it was asked for");
                if state.may_open(world, at, there, &asked) {
                    state.act(world, Action::Open(at, there));
                }
            }
            if reached
                .iter()
                .all(|&there| state.servers[there].data.votes())
            {
                return true;
            }
            state.tick(world);
        }
        false
    }

    /// Returns the same state with its servers in an order of their own.
    pub(super) fn sorted(&self) -> Self {
        let without_numbers = |mut server: Server| {
            let count = |set: &mut u8| *set = number(set.count_ones() as usize);
            count(&mut server.with);
            for asked in server
                .known
                .iter_mut()
                .filter_map(|known| known.opening.as_mut())
            {
                count(&mut asked.open);
                count(&mut asked.shut);
            }
            server
        };
        let keys = self.servers.map(without_numbers);
        let mut order: [usize; SERVERS] = std::array::from_fn(|at| at);
        order.sort_by_key(|&at| keys[at]);
        let place = |from: usize| {
            order
                .iter()
                .position(|&at| at == from)
                .expect("each is there")
        };
        let moved = |set: &mut u8| {
            let members = (0..SERVERS).filter(|&member| *set & (1 << member) != 0);
            *set = members.fold(0, |moved, member| moved | 1 << place(member));
        };
        let mut sorted = *self;
        for (to, &from) in order.iter().enumerate() {
            let mut server = self.servers[from];
            moved(&mut server.with);
            for asked in server
                .known
                .iter_mut()
                .filter_map(|known| known.opening.as_mut())
            {
                moved(&mut asked.open);
                moved(&mut asked.shut);
            }
            sorted.servers[to] = server;
        }
        sorted
    }
}
