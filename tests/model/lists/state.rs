//! The states of the model of several lists, and what each action does to them.

use super::{LOCKERS, MAJORITY, Mutant, SERVERS, Scheme};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// No caller of this locker waits, holds or releases.
    Idle,
    /// The driver is about to ask.
    Ready,
    Asking,
    Parked,
    Holding,
    Releasing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Health {
    Fine,
    Suspended,
    Dead,
}

/// A script on its way to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Script {
    Acquire { looked: bool },
    Release { enlists: bool },
    Undo,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Message {
    Go,
    Watch,
    /// The message of the channel, which all subscribers hear.
    Zero,
}

/// A server's answer to an acquire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Vote {
    Yes,
    /// With the place in the list.
    No(usize),
}

/// A script that takes a locker off all lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Pass {
    None,
    UnderWay,
    /// The locker asked to be put into the lists again meanwhile. Which of the two is executed first is open.
    Overtaken,
    /// The same, and it has to be taken off once more.
    Another,
}

/// Whether the locker that frees a server is in its list afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Enlists {
    No,
    Behind,
    Again,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Server {
    holder: Option<usize>,
    /// The lockers, each behind since when it waits.
    list: Vec<(u8, usize)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Locker {
    pub(super) waiting: u8,
    /// How many callers come later, when nobody waits.
    pub(super) later: u8,
    pub(super) phase: Phase,
    health: Health,
    /// The server whose messages do not come, which neither side knows.
    deaf: Option<usize>,
    sent: [Option<Script>; SERVERS],
    votes: [Option<Vote>; SERVERS],
    /// The answers to its release: whether the server has woken another locker.
    passed_on: [Option<bool>; SERVERS],
    /// It reaches all servers at once.
    pass: Pass,
    /// It had a driver when it released the lock.
    is_driven: bool,
    inbox: [Vec<Message>; SERVERS],
    /// What came from the servers since the round began.
    heard: [Option<Message>; SERVERS],
    since: Option<u8>,
    go: bool,
    /// A timer runs; the locker attempts when it ends.
    looks: bool,
    /// The timer has ended.
    looked: bool,
    first: bool,
}

/// Everything at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    servers: [Server; SERVERS],
    pub(super) lockers: [Locker; LOCKERS],
    /// How many lockers have begun to wait so far.
    tickets: u8,
    leaves: u8,
    faults: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Ask(usize),
    Execute(usize, usize),
    /// A `pass` is executed.
    Pass(usize),
    Hear(usize, usize),
    TimerEnds(usize),
    Unlock(usize),
    /// A caller comes.
    Come(usize),
    Leave(usize),
    Die(usize),
    Suspend(usize),
    GoOn(usize),
    /// It does not hear this server any more.
    Deafen(usize, usize),
}

impl Locker {
    fn new(waiting: u8, later: u8) -> Self {
        Self {
            waiting,
            later,
            phase: if waiting > 0 { Phase::Ready } else { Phase::Idle },
            health: Health::Fine,
            deaf: None,
            sent: [None; SERVERS],
            votes: [None; SERVERS],
            passed_on: [None; SERVERS],
            pass: Pass::None,
            is_driven: false,
            inbox: Default::default(),
            heard: [None; SERVERS],
            since: None,
            go: false,
            looks: false,
            looked: false,
            first: false,
        }
    }

    fn is_fine(&self) -> bool {
        self.health == Health::Fine
    }

    /// Forgets the messages before an acquire or a release, which say nothing about its outcome.
    fn forget(&mut self) {
        (self.go, self.looks, self.looked, self.first) = (false, false, false, false);
        self.heard = [None; SERVERS];
    }

    fn tell(&mut self, server: usize, message: Message) {
        // Nobody is there to hear the message of the channel, and the second of two equal messages adds nothing.
        let (is_heard, inbox) = (self.waiting > 0 || message != Message::Zero, &mut self.inbox[server]);
        if is_heard && self.health != Health::Dead && self.deaf != Some(server) && inbox.last() != Some(&message) {
            inbox.push(message);
        }
    }

    fn hear(&mut self, scheme: &Scheme, server: usize) {
        let message = self.inbox[server].remove(0);
        if !self.listens() {
            // A wake-up is passed on, except by the holder.
            if message != Message::Zero && !matches!(self.phase, Phase::Holding | Phase::Releasing) {
                self.begin_pass();
            }
            return;
        }
        let forgets = self.phase == Phase::Asking && scheme.is(Mutant::ForgetsWhileAsking);
        // Its next acquire or release forgets what it has heard.
        if forgets || matches!(self.phase, Phase::Ready | Phase::Holding) {
            return;
        }
        match message {
            Message::Watch => (self.first, self.looks) = (true, true),
            Message::Go | Message::Zero => self.count(scheme, server, message),
        }
        if self.phase == Phase::Parked && self.go {
            if scheme.is(Mutant::GoIsAGrant) {
                self.enter();
            } else {
                self.phase = Phase::Ready;
            }
        }
    }

    /// Counts a message of a server.
    fn count(&mut self, scheme: &Scheme, server: usize, message: Message) {
        let heard = &mut self.heard[server];
        *heard = Some(if *heard == Some(Message::Go) { Message::Go } else { message });
        let number = |which| self.heard.iter().filter(|heard| **heard == Some(which)).count();
        let (called, told) = (number(Message::Go), number(Message::Zero));
        let alike = !scheme.is(Mutant::OnlyCallsCount);
        if called >= MAJORITY || (alike && called > 0 && called + told >= MAJORITY) {
            (self.go, self.heard) = (true, [None; SERVERS]);
        } else if called == 0 && told >= MAJORITY {
            self.heard = [None; SERVERS];
            if self.first || self.since.is_none() {
                self.go = true;
            } else {
                self.looks = true;
            }
        } else if (message == Message::Go || self.phase == Phase::Parked) && !scheme.is(Mutant::MinoritiesAreIgnored) {
            self.looks = true;
        }
    }

    fn enter(&mut self) {
        self.waiting -= 1;
        self.phase = Phase::Holding;
        self.since = None;
        self.forget();
    }

    /// Returns whether somebody waits here for messages.
    fn listens(&self) -> bool {
        self.waiting > 0 && (self.phase != Phase::Releasing || self.is_driven)
    }

    /// Its release is answered, and has put it into the lists of a majority or not.
    fn released(&mut self, is_listed: bool) {
        if self.is_driven {
            return self.go_on(if is_listed { Phase::Parked } else { Phase::Ready });
        }
        self.phase = Phase::Idle;
        if self.waiting > 0 {
            self.drive();
        }
    }

    fn come(&mut self) {
        (self.later, self.waiting) = (self.later - 1, self.waiting + 1);
        if self.phase == Phase::Idle {
            self.drive();
        }
    }

    /// A driver begins.
    fn drive(&mut self) {
        self.since = None;
        self.forget();
        self.phase = Phase::Ready;
    }

    /// It has to be taken off the lists.
    fn begin_pass(&mut self) {
        self.pass = match self.pass {
            Pass::None | Pass::UnderWay => Pass::UnderWay,
            Pass::Overtaken | Pass::Another => Pass::Another,
        };
    }

    fn end_pass(&mut self, scheme: &Scheme) {
        let pass = std::mem::replace(&mut self.pass, Pass::None);
        match pass {
            Pass::Another => self.pass = Pass::UnderWay,
            Pass::Overtaken if !scheme.is(Mutant::PassesAreInOrder) => {
                self.go = true;
                if self.phase == Phase::Parked {
                    self.phase = Phase::Ready;
                }
            }
            _ => {}
        }
    }

    /// It asks to be put into the lists, perhaps while a pass is under way.
    fn enlist(&mut self) {
        if self.pass != Pass::None {
            self.pass = Pass::Overtaken;
        }
    }

    /// Its driver goes on, or ends since nobody waits any more.
    fn go_on(&mut self, phase: Phase) {
        self.phase = phase;
        if self.waiting == 0 {
            self.phase = Phase::Idle;
            if self.since.take().is_some() {
                self.begin_pass();
            }
            self.forget();
        } else if phase == Phase::Parked && self.go {
            self.phase = Phase::Ready;
        }
    }
}

impl State {
    /// Returns all states in which the model begins.
    pub(super) fn all(scheme: &Scheme) -> Vec<Self> {
        let lockers = std::array::from_fn(|at| Locker::new(scheme.callers[at], scheme.later[at]));
        let (leaves, faults) = (scheme.leaves, scheme.faults);
        let state = Self { servers: Default::default(), lockers, tickets: 0, leaves, faults };
        if !scheme.waits {
            return vec![state];
        }
        // Each locker is in all lists but one, or in all.
        let missing = || [None, Some(0), Some(1), Some(2)];
        let pairs = missing().into_iter().flat_map(|first| missing().map(|second| [first, second]));
        // The holder has all servers, or all but one.
        let free = pairs.flat_map(|missing| [None, Some(0)].map(|free| (missing, free)));
        free.map(|(missing, free)| state.clone().waiting(missing, free)).collect()
    }

    fn waiting(mut self, missing: [Option<usize>; LOCKERS - 1], free: Option<usize>) -> Self {
        self.lockers[LOCKERS - 1].phase = Phase::Holding;
        for (number, server) in self.servers.iter_mut().enumerate() {
            server.holder = (free != Some(number)).then_some(LOCKERS - 1);
            let waits = |at: usize| self.lockers[at].waiting > 0;
            let listed = missing.iter().enumerate().filter(|&(at, missing)| waits(at) && *missing != Some(number));
            server.list = listed.map(|(at, _)| (u8::try_from(at).unwrap_or(u8::MAX), at)).collect();
        }
        for (at, locker) in self.lockers.iter_mut().enumerate().filter(|(_, locker)| locker.waiting > 0) {
            (locker.phase, locker.since) = (Phase::Parked, u8::try_from(at).ok());
            let places = self.servers.iter().map(|server| server.list.iter().position(|&(_, other)| other == at));
            locker.first = places.filter(|place| *place == Some(0)).count() >= MAJORITY;
        }
        self.tickets = u8::try_from(LOCKERS).unwrap_or(u8::MAX);
        self.sort();
        self
    }

    pub(super) fn is_exclusive(&self) -> bool {
        let inside = |at: usize| self.lockers[at].phase == Phase::Holding;
        let held = |at: usize| self.servers.iter().filter(|server| server.holder == Some(at)).count();
        (0..LOCKERS).all(|at| !inside(at) || held(at) >= MAJORITY)
    }

    /// Returns whether a majority is free, a client waits for it, and nothing will happen before the re-check; or, if
    /// timers do not count, before one of them ends.
    pub(super) fn is_stuck(&self, timers: bool) -> bool {
        let free = self.servers.iter().filter(|server| server.holder.is_none()).count();
        let waits = |locker: &Locker| locker.is_fine() && locker.phase == Phase::Parked;
        free >= MAJORITY
            && self.lockers.iter().any(waits)
            && !self.lockers.iter().any(|locker| {
                let sends = locker.sent.iter().any(Option::is_some) || locker.pass != Pass::None;
                let acts = !matches!(locker.phase, Phase::Idle | Phase::Parked)
                    || locker.inbox.iter().any(|inbox| !inbox.is_empty())
                    || (timers && locker.looks && locker.phase == Phase::Parked);
                sends || (locker.is_fine() && acts)
            })
    }

    /// Returns whether each locker that waits, and for which nothing is on its way, is in the lists of a majority.
    pub(super) fn is_listed(&self) -> bool {
        let listed = |at: usize| {
            let servers = self.servers.iter();
            servers.filter(|server| server.list.iter().any(|&(_, other)| other == at)).count()
        };
        let quiet = |locker: &Locker| {
            let sends = locker.sent.iter().any(Option::is_some) || locker.pass != Pass::None;
            let hears = locker.looks || locker.inbox.iter().any(|inbox| !inbox.is_empty());
            locker.phase == Phase::Parked && !sends && !hears
        };
        (0..LOCKERS).all(|at| !quiet(&self.lockers[at]) || listed(at) >= MAJORITY)
    }

    pub(super) fn actions(&self, actions: &mut Vec<Action>) {
        for (at, locker) in self.lockers.iter().enumerate() {
            for server in 0..SERVERS {
                if locker.sent[server].is_some() {
                    actions.push(Action::Execute(at, server));
                }
                if locker.is_fine() && !locker.inbox[server].is_empty() {
                    actions.push(Action::Hear(at, server));
                }
                if self.faults > 0 && locker.is_fine() && locker.waiting > 0 {
                    actions.push(Action::Deafen(at, server));
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
    }

    fn actions_of(&self, at: usize, locker: &Locker, actions: &mut Vec<Action>) {
        match locker.phase {
            Phase::Ready if locker.sent == [None; SERVERS] => {
                actions.push(Action::Ask(at));
            }
            Phase::Holding => actions.push(Action::Unlock(at)),
            Phase::Idle | Phase::Releasing if locker.later > 0 && locker.waiting == 0 => actions.push(Action::Come(at)),
            Phase::Parked if locker.looks => actions.push(Action::TimerEnds(at)),
            _ => {}
        }
        if self.leaves > 0 && locker.waiting > 0 {
            actions.push(Action::Leave(at));
        }
        if self.faults > 0 && locker.phase == Phase::Parked {
            actions.extend([Action::Die(at), Action::Suspend(at)]);
        }
    }

    pub(super) fn act(&mut self, scheme: &Scheme, action: Action) {
        match action {
            Action::Ask(at) => {
                let since = self.wait(at);
                let locker = &mut self.lockers[at];
                locker.since = Some(since);
                locker.enlist();
                locker.sent = [Some(Script::Acquire { looked: locker.looked }); SERVERS];
                locker.votes = [None; SERVERS];
                locker.phase = Phase::Asking;
                locker.forget();
            }
            Action::Execute(at, server) => self.execute(scheme, at, server),
            Action::Pass(at) => {
                self.lockers[at].end_pass(scheme);
                for server in 0..SERVERS {
                    self.servers[server].list.retain(|&(_, other)| other != at);
                    if self.servers[server].holder.is_none() {
                        self.wake(scheme, server, at, None);
                    }
                }
            }
            Action::Hear(at, server) => self.lockers[at].hear(scheme, server),
            Action::TimerEnds(at) => {
                let locker = &mut self.lockers[at];
                (locker.phase, locker.looked) = (Phase::Ready, true);
            }
            Action::Unlock(at) => {
                let enlists = self.lockers[at].waiting > 0;
                let since = enlists.then(|| self.wait(at));
                let locker = &mut self.lockers[at];
                (locker.since, locker.is_driven) = (since, enlists);
                if enlists {
                    locker.enlist();
                }
                for sent in locker.sent.iter_mut().filter(|sent| sent.is_none()) {
                    *sent = Some(Script::Release { enlists });
                }
                locker.passed_on = [None; SERVERS];
                locker.phase = Phase::Releasing;
                locker.forget();
            }
            Action::Come(at) => self.lockers[at].come(),
            Action::Leave(at) => {
                self.leaves -= 1;
                let locker = &mut self.lockers[at];
                locker.waiting -= 1;
                if locker.waiting == 0 && matches!(locker.phase, Phase::Parked | Phase::Ready) {
                    locker.go_on(Phase::Idle);
                }
            }
            Action::Die(at) => self.fault(at).health = Health::Dead,
            Action::Suspend(at) => self.fault(at).health = Health::Suspended,
            Action::GoOn(at) => self.lockers[at].health = Health::Fine,
            Action::Deafen(at, server) => {
                let locker = self.fault(at);
                locker.deaf = Some(server);
                locker.inbox[server].clear();
            }
        }
    }

    /// Puts the servers into an order, since they are interchangeable.
    pub(super) fn sort(&mut self) {
        let mut order: [usize; SERVERS] = std::array::from_fn(|server| server);
        let seen = |server: usize| {
            let of_lockers = self.lockers.each_ref().map(|locker| {
                let commands = (locker.sent[server], locker.votes[server]);
                let messages = (&locker.inbox[server], locker.heard[server], locker.deaf == Some(server));
                (commands, locker.passed_on[server], messages)
            });
            (&self.servers[server], of_lockers)
        };
        order.sort_by(|&one, &other| seen(one).cmp(&seen(other)));
        self.servers = order.map(|server| std::mem::take(&mut self.servers[server]));
        for locker in &mut self.lockers {
            locker.sent = order.map(|server| locker.sent[server]);
            locker.votes = order.map(|server| locker.votes[server]);
            locker.passed_on = order.map(|server| locker.passed_on[server]);
            locker.heard = order.map(|server| locker.heard[server]);
            locker.inbox = order.map(|server| std::mem::take(&mut locker.inbox[server]));
            locker.deaf = locker.deaf.and_then(|deaf| order.iter().position(|&server| server == deaf));
        }
    }

    fn fault(&mut self, at: usize) -> &mut Locker {
        self.faults -= 1;
        &mut self.lockers[at]
    }

    /// Returns since when a locker waits.
    fn wait(&mut self, at: usize) -> u8 {
        self.lockers[at].since.unwrap_or_else(|| {
            self.tickets += 1;
            self.tickets
        })
    }

    fn execute(&mut self, scheme: &Scheme, at: usize, server: usize) {
        match self.lockers[at].sent[server].take() {
            Some(Script::Acquire { looked }) => self.acquire(at, server, looked),
            Some(Script::Release { enlists }) => {
                let passed_on = self
                    .free(at, server)
                    .then(|| self.wake(scheme, server, at, Some(if enlists { Enlists::Behind } else { Enlists::No })));
                self.hear_release(scheme, at, server, passed_on);
            }
            Some(Script::Undo) if self.free(at, server) && !scheme.is(Mutant::UndoesQuietly) => {
                let waits = self.lockers[at].since.is_some();
                self.wake(scheme, server, at, Some(if waits { Enlists::Again } else { Enlists::No }));
            }
            Some(Script::Undo) | None => {}
        }
    }

    /// Frees a server. Returns whether this locker had it.
    fn free(&mut self, at: usize, server: usize) -> bool {
        self.servers[server].holder.take_if(|holder| *holder == at).is_some()
    }

    fn acquire(&mut self, at: usize, server: usize, looked: bool) {
        let Server { holder, list } = &mut self.servers[server];
        let place = list.iter().position(|&(_, other)| other == at);
        let vote = if holder.is_none() {
            *holder = Some(at);
            list.retain(|&(_, other)| other != at);
            // The lockers ahead in the list were woken, and did not come.
            for (_, other) in list.drain(..place.filter(|_| looked).unwrap_or(0).min(2)).collect::<Vec<_>>() {
                self.lockers[other].tell(server, Message::Go);
            }
            Vote::Yes
        } else {
            if place.is_none() {
                let since = self.lockers[at].since.unwrap_or(u8::MAX);
                list.push((since, at));
                list.sort_unstable();
            }
            Vote::No(list.iter().position(|&(_, other)| other == at).unwrap_or_default())
        };
        self.hear_vote(at, server, vote);
    }

    fn hear_vote(&mut self, at: usize, server: usize, vote: Vote) {
        let locker = &mut self.lockers[at];
        if locker.phase != Phase::Asking {
            // A late yes is a vote of the hold, or is undone.
            if vote == Vote::Yes && locker.phase != Phase::Holding {
                locker.sent[server] = Some(Script::Undo);
            }
            return;
        }
        locker.votes[server] = Some(vote);
        let yes = locker.votes.iter().filter(|vote| **vote == Some(Vote::Yes)).count();
        let mut places: Vec<usize> = Vec::new();
        places.extend(locker.votes.iter().filter_map(|vote| match vote {
            Some(Vote::No(place)) => Some(*place),
            _ => None,
        }));
        places.sort_unstable();
        if yes < MAJORITY && places.len() < MAJORITY {
            return;
        }
        let votes = std::mem::take(&mut locker.votes);
        if yes >= MAJORITY && locker.waiting > 0 {
            return locker.enter();
        }
        locker.first |= places.get(MAJORITY - 1) == Some(&0);
        for (sent, vote) in locker.sent.iter_mut().zip(votes) {
            if vote == Some(Vote::Yes) {
                *sent = Some(Script::Undo);
            }
        }
        locker.go_on(Phase::Parked);
    }

    fn hear_release(&mut self, scheme: &Scheme, at: usize, server: usize, passed_on: Option<bool>) {
        let locker = &mut self.lockers[at];
        if locker.phase != Phase::Releasing {
            return;
        }
        locker.passed_on[server] = passed_on;
        let released = locker.passed_on.iter().filter(|passed_on| passed_on.is_some()).count();
        if released < MAJORITY {
            return;
        }
        let passed_on = locker.passed_on.iter().filter(|passed_on| **passed_on == Some(true)).count();
        locker.passed_on = [None; SERVERS];
        let enough = if scheme.is(Mutant::OneServerPassesOn) { 1 } else { MAJORITY };
        let is_listed = passed_on >= enough && locker.since.is_some();
        if is_listed {
            // The next in the list watches the one that its own release woke.
            let list = &self.servers[server].list;
            locker.looks |= list.get(1).is_some_and(|&(_, other)| other == at);
        }
        locker.released(is_listed);
    }

    /// Wakes the next of a server's list, and puts the locker that frees it where it says; a `pass` says nothing.
    /// Returns whether another locker was woken.
    fn wake(&mut self, scheme: &Scheme, server: usize, by: usize, enlists: Option<Enlists>) -> bool {
        let list = &mut self.servers[server].list;
        if !list.is_empty() {
            match enlists {
                Some(Enlists::No) => list.retain(|&(_, other)| other != by),
                Some(Enlists::Behind | Enlists::Again) => {
                    list.retain(|&(_, other)| other != by);
                    list.push((self.lockers[by].since.unwrap_or(u8::MAX), by));
                    list.sort_unstable();
                }
                None => {}
            }
        }
        // A locker that goes on waiting may be the next one.
        let me = (enlists == Some(Enlists::Behind)).then_some(by);
        let counts = |locker: &Locker| locker.health != Health::Dead;
        while let Some(&(_, first)) = self.servers[server].list.first() {
            let list = &mut self.servers[server].list;
            if Some(first) == me || !counts(&self.lockers[first]) {
                list.remove(0);
                if Some(first) == me {
                    break;
                }
                continue;
            }
            self.lockers[first].tell(server, Message::Go);
            while let Some(&(_, next)) = list.get(1) {
                if Some(next) != me && !counts(&self.lockers[next]) {
                    list.remove(1);
                    continue;
                }
                if Some(next) != me && !scheme.is(Mutant::NobodyWatches) {
                    self.lockers[next].tell(server, Message::Watch);
                }
                break;
            }
            return true;
        }
        self.lockers.iter_mut().for_each(|locker| locker.tell(server, Message::Zero));
        false
    }
}
