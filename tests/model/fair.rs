//! The queue of a fair lock on one server, shared with a client of Redisson: whichever commands and
//! messages are late, repeated or lost.
//!
//! # What is modelled
//! - The server: who holds the lock, and the queue of tickets with their scores. A score counts
//!   the waits of Redisson that are left to it: Redisson gives each ticket one more than the last
//!   one has, takes one off all scores at each of its grants, and off those behind it when it gives
//!   up. A ticket at the front without a wait left is removed by whoever runs a script next.
//! - Three lockers, two of them with two callers. An ask has the tickets of all callers that wait
//!   in its line, in their order; it raises their scores, puts in what is missing, and takes the
//!   lock for the first of them. A caller that comes, a message and a look are reasons to ask. The
//!   field that is taken has a number of its own for each ask.
//! - A caller that gives up leaves the queue by a command that may overtake an ask, so it is sent
//!   again behind the answer.
//! - An ask may have no answer, be executed late, and is undone; its callers go on waiting. What
//!   leaves after that is sent again a command timeout later. The ask may put in the ticket of a
//!   caller that has got the lock by a later ask, so that one leaves too.
//! - A client of Redisson, which asks whenever the lock is free, and tells nobody when it gives up.
//! - One locker may die. Messages may be lost. A locker that is passed is so with all its callers.
//!
//! # What is abstracted away
//! - Time: a look comes only when nothing else is on its way, lockers look equally often, and the
//!   last copy of a leave or an undo comes when no ask is, as after a command timeout.
//! - Leases, renewals and losses of the lock itself: they are those of any lock (`main.rs`).
//! - Fences, and which channel a message takes.

use stateright::{Model, Property};

use crate::checked::{Checked, breaks, keeps_its_promises};

/// The callers of this crate, by locker, and the client of Redisson.
const CALLERS: usize = 5;
const LOCKER_OF: [usize; CALLERS] = [0, 0, 1, 1, 2];
const LOCKERS: usize = 3;
const JVM: u8 = 5;
/// The locker that may die.
const MORTAL: usize = 1;

/// How many asks a caller may be the first of.
const ATTEMPTS: u8 = 8;

/// After so many looks at a free lock and the same head, that head is passed.
const LOOKS: u8 = 2;

const ORDER: &str = "callers get the lock in the order of their places";
const PLACE: &str = "a caller that waits keeps its place";
const AWAKE: &str = "nobody waits for a look if the one that is next was told";
const MOVES: &str = "a free lock does not stay so while somebody waits";
const ONCE: &str = "a locker that died is passed once, however many of its callers waited";
const LEAK: &str = "nothing stays on the server for a caller that is gone";
const TWO: &str = "a caller is inside as the only one";
const ALL: &str = "all get the lock, one after the other";

#[derive(Debug, Clone, Copy)]
struct Fair {
    /// The callers that come.
    callers: &'static [u8],
    jvm: bool,
    /// How many callers may give up, asks stay without an answer, messages get lost, lockers die.
    leaves: u8,
    silences: u8,
    losses: u8,
    deaths: u8,
    mutant: Option<Mutant>,
}

const PLAIN: Fair = Fair {
    callers: &[0, 1, 2],
    jvm: false,
    leaves: 1,
    silences: 0,
    losses: 0,
    deaths: 0,
    mutant: None,
};
const SILENT: Fair = Fair {
    silences: 1,
    leaves: 0,
    ..PLAIN
};
/// Two callers of one locker.
const LATE: Fair = Fair {
    callers: &[0, 1],
    silences: 1,
    ..PLAIN
};
const MIXED: Fair = Fair { jvm: true, ..PLAIN };
const DYING: Fair = Fair {
    callers: &[0, 2, 3, 4],
    leaves: 0,
    deaths: 1,
    ..PLAIN
};
const LOSSY: Fair = Fair { losses: 1, ..PLAIN };

/// One mistake each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mutant {
    /// A head that does not come is waited for.
    HeadNeverPassed,
    /// A ticket gets a score of one lease, whoever is before it.
    ScoreOfOneLease,
    /// A caller that gives up leaves once: an ask that is late puts its ticket in again.
    LateEnqueueStays,
    /// The same of an ask that the leave overtakes.
    OvertakenEnqueueStays,
    /// A caller that gives up tells nobody.
    LeavesSilently,
    /// What an ask takes has the ticket as its field.
    TicketIsTheField,
    /// A free lock is taken by whoever asks.
    HeadNotCompared,
    /// A caller that comes waits for the next look of its line.
    EnqueuedLate,
    /// A release tells nobody.
    ReleasesSilently,
    /// A message that comes while the line asks is forgotten.
    ForgetsWhileAsking,
    /// If a ticket is next, the lock is only taken for its caller, and not for the first one of its
    /// locker.
    EachByItsTicket,
    /// An undo of what an ask may have taken tells nobody.
    UndoesSilently,
    /// After an ask without an answer, a caller that has got the lock does not leave the queue: the
    /// ask may come late, and put its ticket in again.
    GrantIsNoLeave,
    /// Who passes a head that does not come tells nobody.
    PassesSilently,
    /// Of a locker that does not come, one caller is passed.
    PassesOneCaller,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Caller {
    Away,
    Waits,
    /// It has the lock, under the field of this number.
    Inside(u8),
    Gone,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Asked {
    tickets: Vec<u8>,
    number: u8,
    pass: Option<u8>,
    looks: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Ask {
    No,
    Sent(Asked),
    /// Whether it is granted and, if the lock is free, whose turn it is.
    Answered(Asked, bool, Option<u8>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    /// Who has the lock, under which number.
    holder: Option<(u8, u8)>,
    queue: Vec<(u8, u8)>,
    callers: [Caller; CALLERS],
    jvm: Caller,
    numbers: [u8; CALLERS],
    asks: [Ask; LOCKERS],
    /// Asks without an answer that may be executed yet.
    late: Vec<Asked>,
    /// Releases and undos on their way: the field, and how often it is sent.
    releases: Vec<(u8, u8, u8)>,
    /// How often each caller's leave is yet to be sent.
    leaves: [u8; CALLERS],
    /// A message is on its way to each locker.
    told: [bool; LOCKERS],
    /// There is a reason to ask.
    bells: [bool; LOCKERS],
    /// The head that was seen at a free lock, and at how many looks.
    stuck: [Option<(u8, u8)>; LOCKERS],
    /// An ask of the locker had no answer.
    doubtful: [bool; LOCKERS],
    /// Ghost: how often each locker has looked since the last change on the server.
    looked: [u8; LOCKERS],
    dead: bool,
    left: u8,
    silences: u8,
    losses: u8,
    deaths: u8,
    /// Ghost: those that have a place and wait, in the order of these.
    places: Vec<u8>,
    /// Ghost: the last change of who is next was announced, and no message was lost since.
    announced: bool,
    /// Ghost: how often the locker that died was passed.
    passes: u8,
    /// Ghost: a promise is broken.
    overtaken: bool,
    displaced: bool,
    doubled: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum Action {
    Come(u8),
    Leave(u8),
    StartAsk(usize),
    Execute(usize),
    Answer(usize),
    GiveUp(usize),
    ExecuteLate(usize),
    DropLate(usize),
    SendRelease(usize),
    SendLeave(u8),
    Release(u8),
    Deliver(usize),
    Lose(usize),
    Look(usize),
    Die,
    JvmTries,
    JvmReleases,
    JvmLeaves,
}

impl Fair {
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
    fn head(&self) -> Option<u8> {
        self.queue.first().map(|(who, _)| *who)
    }

    fn waits(&self, who: u8) -> bool {
        match who {
            JVM => self.jvm == Caller::Waits,
            who => self.callers[usize::from(who)] == Caller::Waits,
        }
    }

    fn waiting(&self, locker: usize) -> Vec<u8> {
        let is_its = |who: &u8| LOCKER_OF[usize::from(*who)] == locker && self.waits(*who);
        (0..JVM).filter(is_its).collect()
    }

    /// Publishes to the head of the queue, unless a mistake keeps it silent.
    fn call(&mut self, silent: bool) {
        self.announced = self.head().is_none_or(|head| self.waits(head));
        if silent {
            return;
        }
        if let Some(head) = self.head().filter(|head| *head != JVM) {
            let locker = LOCKER_OF[usize::from(head)];
            self.told[locker] |= !(self.dead && locker == MORTAL);
        }
    }

    fn remove(&mut self, who: u8) -> bool {
        let before = self.queue.len();
        self.queue.retain(|(other, _)| *other != who);
        before > self.queue.len()
    }

    /// Removes heads whose time is over.
    fn prune(&mut self) {
        while let Some((head, 0)) = self.queue.first().copied() {
            self.queue.remove(0);
            self.displaced |= self.waits(head);
            self.places.retain(|who| *who != head);
        }
    }

    fn grant(&mut self, who: u8, number: u8) {
        self.remove(who);
        self.holder = Some((who, number));
        // Of those that wait, it has to be the first one with a place, or its locker's first one.
        let first = self.places.iter().find(|who| self.waits(**who)).copied();
        let locker_of = |who| LOCKER_OF.get(usize::from(who));
        let is_before = |first| who < first && locker_of(who) == locker_of(first);
        let is_next = first.is_none_or(|first| first == who || is_before(first));
        self.overtaken |= self.waits(who) && !is_next;
        self.places.retain(|other| *other != who);
    }

    /// `fair/acquire.lua`. Returns the answer.
    fn acquire(&mut self, fair: &Fair, asked: &Asked) -> (bool, Option<u8>) {
        let before = self.head();
        let mut jvms = 0;
        for (who, score) in &mut self.queue {
            if asked.tickets.contains(who) {
                let floor = match fair.is(Mutant::ScoreOfOneLease) {
                    true => 1,
                    false => 1 + jvms,
                };
                *score = floor.max(*score);
            }
            jvms += u8::from(*who == JVM);
        }
        self.prune();
        if asked.pass.is_some() && asked.pass == self.head() && self.holder.is_none() {
            let head = self.queue[0].0;
            let is_passed = |who: u8| match head {
                JVM => who == JVM,
                _ if fair.is(Mutant::PassesOneCaller) => who == head,
                _ => who != JVM && LOCKER_OF[usize::from(who)] == LOCKER_OF[usize::from(head)],
            };
            self.passes +=
                u8::from(self.dead && head != JVM && LOCKER_OF[usize::from(head)] == MORTAL);
            self.queue.retain(|(who, _)| !is_passed(*who));
            self.places.retain(|who| !is_passed(*who));
        }
        for ticket in &asked.tickets {
            if self.queue.iter().any(|(who, _)| who == ticket) {
                continue;
            }
            let jvms = self.queue.iter().filter(|(who, _)| *who == JVM);
            let score = match fair.is(Mutant::ScoreOfOneLease) {
                true => 1,
                false => 1 + u8::try_from(jvms.count()).expect("few"),
            };
            self.queue.push((*ticket, score));
            if self.waits(*ticket) && !self.places.contains(ticket) {
                self.places.push(*ticket);
            }
        }
        let first = asked.tickets[0];
        let number = match fair.is(Mutant::TicketIsTheField) {
            true => 0,
            false => asked.number,
        };
        if self.holder == Some((first, number)) {
            return (true, None);
        }
        let is_own = |head| match fair.is(Mutant::EachByItsTicket) {
            true => head == first,
            false => asked.tickets.contains(&head),
        };
        let is_next = self.head().is_some_and(is_own) || fair.is(Mutant::HeadNotCompared);
        if self.holder.is_none() && is_next {
            self.grant(first, number);
            return (true, None);
        }
        if self.holder.is_none() && self.head() != before {
            self.call(fair.is(Mutant::PassesSilently));
        }
        (false, self.head().filter(|_| self.holder.is_none()))
    }

    /// `fair/release.lua`, of a hold.
    fn release(&mut self, who: u8, number: u8, silent: bool) {
        if self.holder != Some((who, number)) {
            return;
        }
        self.holder = None;
        self.prune();
        self.call(silent);
    }

    /// Whether nothing is on its way to a locker or from it.
    fn rests(&self, locker: usize) -> bool {
        self.asks[locker] == Ask::No && !self.bells[locker] && !self.told[locker]
    }

    fn is_settled(&self) -> bool {
        (0..LOCKERS).all(|locker| self.rests(locker))
            && self.late.is_empty()
            && self.releases.is_empty()
            && self.leaves == [0; CALLERS]
    }

    /// Whether an ask without an answer may yet be executed that has this ticket.
    fn is_late(&self, who: u8) -> bool {
        self.late.iter().any(|asked| asked.tickets.contains(&who))
    }

    /// Has those leave so often that do not wait any more.
    fn leave_behind(&mut self, asked: &[u8], copies: u8) {
        for who in asked.iter().copied().map(usize::from) {
            if self.callers[who] == Caller::Gone {
                self.leaves[who] = self.leaves[who].max(copies);
            }
        }
    }

    /// What is on the server.
    fn server(&self) -> (Option<(u8, u8)>, Vec<u8>) {
        (
            self.holder,
            self.queue.iter().map(|(who, _)| *who).collect(),
        )
    }

    fn start(&mut self, locker: usize, looks: bool) -> Option<()> {
        let tickets = self.waiting(locker);
        let first = usize::from(*tickets.first()?);
        if self.numbers[first] == ATTEMPTS {
            return None;
        }
        self.numbers[first] += 1;
        self.bells[locker] = false;
        let pass = self.stuck[locker].take_if(|(_, looks)| *looks >= LOOKS);
        self.asks[locker] = Ask::Sent(Asked {
            tickets,
            number: self.numbers[first],
            pass: pass.map(|(head, _)| head),
            looks,
        });
        Some(())
    }

    fn answered(&mut self, fair: &Fair, locker: usize) -> Option<()> {
        let Ask::Answered(asked, granted, next) = self.asks[locker].clone() else {
            return None;
        };
        self.asks[locker] = Ask::No;
        self.bells[locker] &= !fair.is(Mutant::ForgetsWhileAsking);
        let first = asked.tickets[0];
        if !fair.is(Mutant::OvertakenEnqueueStays) {
            self.leave_behind(&asked.tickets[usize::from(granted)..], 1);
        }
        if granted {
            self.stuck[locker] = None;
            if self.waits(first) {
                self.doubled |= self
                    .callers
                    .iter()
                    .any(|one| matches!(one, Caller::Inside(_)))
                    || matches!(self.jvm, Caller::Inside(_));
                let number = match fair.is(Mutant::TicketIsTheField) {
                    true => 0,
                    false => asked.number,
                };
                self.callers[usize::from(first)] = Caller::Inside(number);
                if self.doubtful[locker] && !fair.is(Mutant::GrantIsNoLeave) {
                    self.leaves[usize::from(first)] = 2;
                }
            } else {
                self.releases.push((first, asked.number, 1));
            }
            return Some(());
        }
        let stuck = next.filter(|head| !asked.tickets.contains(head));
        self.stuck[locker] = match (stuck, self.stuck[locker]) {
            _ if fair.is(Mutant::HeadNeverPassed) => None,
            (Some(head), Some((last, looks))) if head == last => {
                Some((head, (looks + u8::from(asked.looks)).min(LOOKS)))
            }
            (Some(head), _) => Some((head, u8::from(asked.looks))),
            (None, _) => None,
        };
        Some(())
    }

    fn jvm_tries(&mut self) {
        self.prune();
        if self.holder.is_none() && self.head().is_none_or(|head| head == JVM) {
            self.grant(JVM, 0);
            self.jvm = Caller::Inside(0);
            self.doubled |= self
                .callers
                .iter()
                .any(|one| matches!(one, Caller::Inside(_)));
            for (_, score) in &mut self.queue {
                *score = score.saturating_sub(1);
            }
        } else if !self.queue.iter().any(|(who, _)| *who == JVM) {
            let score = self.queue.last().map_or(0, |(_, score)| *score) + 1;
            self.queue.push((JVM, score));
            self.places.push(JVM);
        }
    }
}

impl Model for Fair {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            holder: None,
            queue: Vec::new(),
            callers: std::array::from_fn(|at| match self.callers.contains(&(at as u8)) {
                true => Caller::Away,
                false => Caller::Gone,
            }),
            jvm: if self.jvm { Caller::Away } else { Caller::Gone },
            numbers: [0; CALLERS],
            asks: [const { Ask::No }; LOCKERS],
            late: Vec::new(),
            releases: Vec::new(),
            leaves: [0; CALLERS],
            told: [false; LOCKERS],
            bells: [false; LOCKERS],
            stuck: [None; LOCKERS],
            doubtful: [false; LOCKERS],
            looked: [0; LOCKERS],
            dead: false,
            left: self.leaves,
            silences: self.silences,
            losses: self.losses,
            deaths: self.deaths,
            places: Vec::new(),
            announced: true,
            passes: 0,
            overtaken: false,
            displaced: false,
            doubled: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for who in 0..JVM {
            let locker = LOCKER_OF[usize::from(who)];
            let lives = !(state.dead && locker == MORTAL);
            match state.callers[usize::from(who)] {
                // They come in the order of their numbers: others are the same with other names.
                Caller::Away if lives => {
                    let before = usize::from(who) > 0 && locker == LOCKER_OF[usize::from(who) - 1];
                    if !before || state.callers[usize::from(who) - 1] != Caller::Away {
                        actions.push(Action::Come(who));
                    }
                }
                Caller::Waits if state.left > 0 => actions.push(Action::Leave(who)),
                Caller::Inside(_) => actions.push(Action::Release(who)),
                _ => {}
            }
            let copies = state.leaves[usize::from(who)];
            // The last copy of what is doubtful comes when nothing is late any more.
            let is_last = copies == 1 && state.doubtful[locker];
            let waits = is_last && !self.is(Mutant::LateEnqueueStays) && state.is_late(who);
            if copies > 0 && !waits {
                actions.push(Action::SendLeave(who));
            }
        }
        for locker in 0..LOCKERS {
            let lives = !(state.dead && locker == MORTAL);
            match &state.asks[locker] {
                Ask::No if state.bells[locker] && lives && !state.waiting(locker).is_empty() => {
                    actions.push(Action::StartAsk(locker));
                }
                Ask::No => {}
                Ask::Sent(_) => {
                    actions.push(Action::Execute(locker));
                    if state.silences > 0 {
                        actions.push(Action::GiveUp(locker));
                    }
                }
                Ask::Answered(..) => actions.push(Action::Answer(locker)),
            }
            if state.told[locker] {
                actions.push(Action::Deliver(locker));
                if state.losses > 0 {
                    actions.push(Action::Lose(locker));
                }
            }
            let rests = state.is_settled() && state.holder.is_none();
            let rests = rests && !state.waiting(locker).is_empty();
            // Each looks as often as the others.
            let in_step = (0..LOCKERS).all(|other| {
                let sleeps = other == MORTAL && state.dead || state.waiting(other).is_empty();
                sleeps || state.looked[locker] <= state.looked[other]
            });
            if rests && lives && in_step && state.looked[locker] <= LOOKS {
                actions.push(Action::Look(locker));
            }
        }
        for at in 0..state.late.len() {
            actions.extend([Action::ExecuteLate(at), Action::DropLate(at)]);
        }
        for (at, (who, number, copies)) in state.releases.iter().enumerate() {
            let is_late = |asked: &Asked| (asked.tickets[0], asked.number) == (*who, *number);
            if *copies > 1 || !state.late.iter().any(is_late) {
                actions.push(Action::SendRelease(at));
            }
        }
        if state.deaths > 0 {
            actions.push(Action::Die);
        }
        match state.jvm {
            Caller::Away => actions.push(Action::JvmTries),
            Caller::Waits => {
                if state.holder.is_none() {
                    actions.push(Action::JvmTries);
                }
                if state.left > 0 {
                    actions.push(Action::JvmLeaves);
                }
            }
            Caller::Inside(_) => actions.push(Action::JvmReleases),
            Caller::Gone => {}
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Come(who) => {
                state.callers[usize::from(who)] = Caller::Waits;
                let locker = LOCKER_OF[usize::from(who)];
                let waits = self.is(Mutant::EnqueuedLate) && state.waiting(locker).len() > 1;
                state.bells[locker] |= !waits;
            }
            Action::Leave(who) => {
                state.left -= 1;
                state.callers[usize::from(who)] = Caller::Gone;
                let locker = LOCKER_OF[usize::from(who)];
                let doubts = state.doubtful[locker] && !self.is(Mutant::LateEnqueueStays);
                state.leaves[usize::from(who)] = 1 + u8::from(doubts);
            }
            Action::StartAsk(locker) => state.start(locker, false)?,
            Action::Look(locker) => {
                state.looked[locker] += 1;
                state.start(locker, true)?;
            }
            Action::Execute(locker) => {
                let Ask::Sent(asked) = state.asks[locker].clone() else {
                    return None;
                };
                let (granted, next) = state.acquire(self, &asked);
                state.asks[locker] = Ask::Answered(asked, granted, next);
            }
            Action::Answer(locker) => state.answered(self, locker)?,
            Action::GiveUp(locker) => {
                state.silences -= 1;
                let Ask::Sent(asked) = std::mem::replace(&mut state.asks[locker], Ask::No) else {
                    return None;
                };
                state.releases.push((asked.tickets[0], asked.number, 2));
                if !self.is(Mutant::LateEnqueueStays) {
                    state.leave_behind(&asked.tickets, 2);
                }
                state.late.push(asked);
                (state.bells[locker], state.doubtful[locker]) = (true, true);
            }
            Action::ExecuteLate(at) => {
                let asked = state.late.remove(at);
                state.acquire(self, &asked);
            }
            Action::DropLate(at) => _ = state.late.remove(at),
            Action::SendRelease(at) => {
                let (who, number, copies) = state.releases[at];
                match copies {
                    1 => _ = state.releases.remove(at),
                    _ => state.releases[at].2 -= 1,
                }
                let is_undo = !matches!(state.callers[usize::from(who)], Caller::Gone);
                let silent = match is_undo {
                    true => self.is(Mutant::UndoesSilently),
                    false => self.is(Mutant::ReleasesSilently),
                };
                state.release(who, number, silent);
            }
            Action::SendLeave(who) => {
                state.leaves[usize::from(who)] -= 1;
                let was_next = state.head() == Some(who);
                state.places.retain(|other| *other != who);
                if state.remove(who) && was_next && state.holder.is_none() {
                    state.prune();
                    state.call(self.is(Mutant::LeavesSilently));
                }
            }
            Action::Release(who) => {
                let Caller::Inside(number) = state.callers[usize::from(who)] else {
                    return None;
                };
                state.callers[usize::from(who)] = Caller::Gone;
                state.releases.push((who, number, 1));
            }
            Action::Deliver(locker) => {
                (state.told[locker], state.bells[locker]) = (false, true);
            }
            Action::Lose(locker) => {
                (state.told[locker], state.announced) = (false, false);
                state.losses -= 1;
            }
            Action::Die => {
                state.deaths -= 1;
                state.dead = true;
                let is_dead = |who: &u8| *who != JVM && LOCKER_OF[usize::from(*who)] == MORTAL;
                for who in (0..JVM).filter(is_dead) {
                    state.callers[usize::from(who)] = Caller::Gone;
                }
                state.places.retain(|who| !is_dead(who));
                // What it has sent is executed or not. Its lease runs out, which tells nobody.
                state.holder.take_if(|(who, _)| is_dead(who));
                state.announced = false;
                state.asks[MORTAL] = Ask::No;
                (state.told[MORTAL], state.bells[MORTAL]) = (false, false);
                state.releases.retain(|(who, ..)| !is_dead(who));
            }
            Action::JvmTries => {
                if state.jvm == Caller::Away {
                    state.jvm = Caller::Waits;
                }
                state.jvm_tries();
            }
            Action::JvmReleases => {
                state.jvm = Caller::Gone;
                state.release(JVM, 0, false);
            }
            Action::JvmLeaves => {
                state.left -= 1;
                state.jvm = Caller::Gone;
                if state.head() == Some(JVM) && state.holder.is_none() {
                    state.announced = false;
                }
                let at = state.queue.iter().position(|(who, _)| *who == JVM);
                if let Some(at) = at {
                    state.queue.remove(at);
                    for (_, score) in &mut state.queue[at..] {
                        *score = score.saturating_sub(1);
                    }
                }
                state.places.retain(|who| *who != JVM);
            }
        }
        if state.server() != last.server() {
            state.looked = [0; LOCKERS];
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        /// Whether somebody that lives waits for a lock that is free.
        fn stands_still(state: &State) -> bool {
            let waits = (0..JVM).any(|who| state.waits(who));
            state.is_settled() && state.holder.is_none() && waits && state.jvm != Caller::Waits
        }
        vec![
            Property::always(ORDER, |_, state: &State| !state.overtaken),
            Property::always(PLACE, |_, state: &State| !state.displaced),
            Property::always(TWO, |_, state: &State| !state.doubled),
            Property::always(AWAKE, |_, state: &State| {
                !(stands_still(state) && state.announced)
            }),
            Property::always(MOVES, |_, state: &State| {
                let looks =
                    |locker| state.waiting(locker).is_empty() || state.looked[locker] > LOOKS;
                !(stands_still(state) && (0..LOCKERS).all(looks))
            }),
            Property::always(ONCE, |_, state: &State| state.passes < 2),
            Property::always(LEAK, |_, state: &State| {
                let mut own = state
                    .queue
                    .iter()
                    .map(|(who, _)| *who)
                    .filter(|who| *who != JVM);
                let of_dead = |who: u8| state.dead && LOCKER_OF[usize::from(who)] == MORTAL;
                let holder = state.holder.map(|(who, _)| who).filter(|who| *who != JVM);
                let is_inside = |who: u8| !matches!(state.callers[usize::from(who)], Caller::Gone);
                !state.is_settled()
                    || own.all(|who| state.waits(who) || of_dead(who))
                        && holder.is_none_or(is_inside)
            }),
            Property::sometimes(ALL, |fair: &Self, state: &State| {
                let is_gone = |caller: &Caller| *caller == Caller::Gone;
                let spared = state.left == fair.leaves && state.deaths == fair.deaths;
                spared && state.callers.iter().all(is_gone) && state.is_settled()
            }),
        ]
    }
}

impl Checked for Fair {}

#[test]
fn a_fair_lock_goes_from_one_to_the_next() {
    for bounds in [PLAIN, SILENT, LATE, MIXED, DYING, LOSSY] {
        keeps_its_promises(bounds);
    }
}

#[test]
fn each_mistake_breaks_a_promise_of_the_queue() {
    for (bounds, mutant, promises) in [
        (DYING, Mutant::HeadNeverPassed, &[MOVES][..]),
        (MIXED, Mutant::ScoreOfOneLease, &[PLACE]),
        (LATE, Mutant::LateEnqueueStays, &[LEAK]),
        (PLAIN, Mutant::OvertakenEnqueueStays, &[LEAK]),
        (PLAIN, Mutant::LeavesSilently, &[AWAKE]),
        (SILENT, Mutant::TicketIsTheField, &[LEAK]),
        (PLAIN, Mutant::HeadNotCompared, &[ORDER]),
        (PLAIN, Mutant::EnqueuedLate, &[AWAKE]),
        (PLAIN, Mutant::ReleasesSilently, &[AWAKE]),
        (PLAIN, Mutant::ForgetsWhileAsking, &[AWAKE]),
        (SILENT, Mutant::EachByItsTicket, &[AWAKE]),
        (SILENT, Mutant::GrantIsNoLeave, &[LEAK]),
        (SILENT, Mutant::UndoesSilently, &[AWAKE]),
        (DYING, Mutant::PassesSilently, &[AWAKE]),
        (DYING, Mutant::PassesOneCaller, &[ONCE]),
    ] {
        breaks(bounds.with(mutant), promises);
    }
}
