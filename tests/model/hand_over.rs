//! Hand-overs within a process, model-checked: one script releases the lock of a holder and takes
//! it for the next waiter of the same process. The process is the real [`Line`]; around it are a
//! server, a wire and callers.
//!
//! # What is modelled
//! - The server: one key with the field of its holder, the lease, and the mark that fences come
//!   from.
//! - The process: the line, whose holds are plain data here, and what is done with its effects:
//!   each answer to a hand-over is granted in time, too late, or for a waiter that is gone; "gone";
//!   none. A hand-over without an answer is undone in order: the releaser's field first, until that
//!   is answered, and only then the next one's.
//! - Hand-overs and releases on the wire: executed at any time, in any order, several times, or
//!   never. Their answers are lost, or come late.
//! - Callers that give up while they wait, or while it is asked for them; a loss, a deletion from
//!   outside, and closing, at any time; ticks of the lease; another process, which may take the
//!   lock whenever it is free.
//!
//! # What is abstracted away
//! - The answer "held": an acquire is executed and answered at once, and only while the key is
//!   free. Its undo, renewals, re-entries and drift: see the model of one server.
//! - Waiters elsewhere, and how long a row of hand-overs lasts: time stands still for the line,
//!   whose turn does not end within the bounds. A releaser may send its release by itself at any
//!   time.

use std::sync::OnceLock;
use std::time::Duration;

use stateright::{Model, Property};

use super::checked::{Checked, breaks, keeps_its_promises};
use super::{AcquireOutcome, Effect, Event, Line, Moment, RawHold, Waiter, WakeSources, Wants};
use crate::clock::Instant;
use crate::error::Loss;
use crate::owner::Owner;

/// The lease in ticks. A client trusts it for one tick less.
const LEASE: u8 = 3;
/// The most grants of the process.
const GRANTS: usize = 5;

/// No two are inside.
const EXCLUSION: &str = "exclusion";
/// A holder with validity left has the key, unless it was deleted from outside.
const BELIEF: &str = "belief";
/// When nobody wants, holds or undoes anything, the key has no field of this process, whatever may
/// still be in flight.
const LEAK: &str = "leak";
/// While callers wait and no hold here may have the lock, the line asks for it.
const FORGOTTEN: &str = "forgotten";
/// Each holder has a higher fence than all before it.
const FENCES: &str = "fences";
/// A releaser is told that it held the lock only if it did.
const TOLD: &str = "told";

/// The protocol within bounds, perhaps with a mistake.
#[derive(Debug, Clone, Copy)]
struct Protocol {
    callers: u8,
    grants: u8,
    /// How often the key is deleted from outside.
    deletions: u8,
    /// How often the other process takes the lock.
    others: u8,
    mutant: Option<Mutant>,
}

const FULL: Protocol = Protocol {
    callers: 3,
    grants: 5,
    deletions: 0,
    others: 2,
    mutant: None,
};
const DELETED: Protocol = Protocol {
    callers: 3,
    grants: 4,
    deletions: 1,
    others: 1,
    ..FULL
};

/// One mistake each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mutant {
    /// The script takes the lock from any holder.
    GrantsBlindly,
    /// The script also takes the lock if it is free, as a late copy may find it.
    TakesWhatIsFree,
    /// Validity counts from the reply.
    ValidityFromReply,
    /// The releaser counts itself as a holder until the answer comes.
    LeavesWithTheAnswer,
    /// After no answer both fields are undone at once, in whatever order.
    UndoesBothAtOnce,
    /// After no answer only the releaser's field is undone.
    UndoesTheFirstOnly,
    /// After no answer only the next one's field is undone.
    UndoesTheSecondOnly,
    /// A yes that comes too late is not undone.
    LateYesKept,
    /// A hand-over to a caller that is gone is not given back.
    UnwantedKept,
    /// The next holder has the fence of the one before.
    SameFence,
    /// The line is not told of the answer "gone".
    ForgetsTheLine,
    /// A releaser whose lock was gone is told that it was released.
    GoneIsDone,
}

/// Whose field the key has: that of a grant of this process, or that of the other process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum By {
    Here(u8),
    Elsewhere,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    by: By,
    lease: u8,
}

/// A hold of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Hold {
    grant: u8,
    /// The validity that it has left.
    valid: u8,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Stage {
    Inside,
    /// Its tokens have fired, and its guard still lives.
    Lost,
    /// Its guard is gone, and its release has no answer.
    Releasing,
}

impl RawHold for Hold {
    fn is(&self, other: &Self) -> bool {
        self.grant == other.grant
    }

    fn blocks(&self, _: Instant) -> bool {
        matches!(self.stage, Stage::Inside | Stage::Releasing)
    }

    /// Each caller has an owner of its own, and calls once.
    fn loss_of(&self, _: &Owner, _: Instant) -> Option<Loss> {
        None
    }
}

impl Wants for () {
    fn lease(&self) -> Duration {
        moment().lease
    }
}

/// A hand-over that is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Handing {
    from: u8,
    to: u8,
    caller: u64,
    /// The validity that would be left if the answer came now.
    valid: u8,
    answer: Option<Said>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Said {
    /// With a fence.
    Granted(u8),
    Gone,
}

/// The outcome of an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Outcome {
    Answered,
    HandedOver,
}

/// How the field of a grant is undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Undo {
    #[default]
    None,
    /// A release is sent until it is answered, and then that of the `then` grant.
    Sent { then: Option<u8> },
}

/// A hand-over on the wire; its index is the grant that it makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Sent {
    from: u8,
    executed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    key: Option<Key>,
    mark: u8,
    hand_overs: [Option<Sent>; GRANTS],
    /// The grants whose releases were sent: each may be executed at any time from then on.
    releases: [bool; GRANTS],
    line: Line<Hold, (), u8>,
    /// The waiter for which the line asks.
    asks: Option<u64>,
    handing: Option<Handing>,
    /// The outcome that the line has yet to be told: what it is the outcome of is done.
    outcome: Option<Outcome>,
    made: u8,
    undos: [Undo; GRANTS],
    closed: bool,
    /// The validity that the other process has left, while it is inside.
    other: Option<u8>,
    others: u8,
    deletions: u8,
    /// Ghost: the holder whose key was deleted from outside, until it is not inside any more.
    victim: Option<By>,
    /// Ghost: the highest fence of all that were inside.
    highest: u8,
    /// Ghosts.
    unordered: bool,
    untrue: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Tick,
    Delete,
    OtherComes,
    OtherLeaves,
    /// The server executes the hand-over that makes this grant.
    HandOver(u8),
    /// The server executes the release of this grant; its answer arrives, or not.
    Release(u8, bool),
    /// The server executes the acquire that the line asks for, and its answer arrives.
    Acquire,
    /// The guard of this grant is released, or its caller has not taken it and it is taken back.
    /// The line may hand the lock over, or the release is sent by itself.
    Leave {
        grant: u8,
        hands_over: bool,
    },
    /// A caller stops waiting.
    GoesAway(u64),
    Answered,
    /// The line is told the outcome.
    Outcome,
    /// A thread passes an event to the line, whatever is under way.
    Interrupts(Event),
    /// A command timeout: the outcome of the hand-over is unknown.
    Timeout,
    /// A command timeout: the line goes on, and the release of this grant is sent further.
    Unconfirmed(u8),
    Lose(u8),
    Close,
}

impl Protocol {
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

/// Time stands still for the line.
fn moment() -> Moment<'static> {
    static NOW: OnceLock<Instant> = OnceLock::new();
    let time = Duration::from_secs(1);
    Moment {
        now: *NOW.get_or_init(Instant::now),
        chance: 0.5,
        retry: time,
        poll: None,
        recheck: time,
        lease: time,
        patience: time,
        majority: 1,
        round_trip: time,
        counts: true,
        lister: None,
        hint: None,
        ends_apart: false,
        queues: false,
        sources: WakeSources::default(),
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut state = State {
            key: None,
            mark: 0,
            hand_overs: [None; GRANTS],
            releases: [false; GRANTS],
            line: Line::default(),
            asks: None,
            handing: None,
            outcome: None,
            made: 0,
            undos: [Undo::None; GRANTS],
            closed: false,
            other: None,
            others: self.others,
            deletions: self.deletions,
            victim: None,
            highest: 0,
            unordered: false,
            untrue: false,
        };
        for id in 0..u64::from(self.callers) {
            state.line.arrive(Waiter {
                id,
                owner: Owner::task(id),
                since: moment().now,
                call: (),
            });
        }
        state.step(self, Event::Changed);
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.push(Action::Tick);
        if state.deletions > 0 && state.key.is_some() {
            actions.push(Action::Delete);
        }
        if state.others > 0 && state.key.is_none() {
            actions.push(Action::OtherComes);
        }
        if state.other.is_some() {
            actions.push(Action::OtherLeaves);
        }
        for (grant, sent) in (0..).zip(state.hand_overs) {
            actions.extend(sent.map(|_| Action::HandOver(grant)));
        }
        for (grant, _) in (0..).zip(state.releases).filter(|(_, sent)| *sent) {
            actions.extend([Action::Release(grant, true), Action::Release(grant, false)]);
        }
        actions.extend(
            state
                .line
                .waiters()
                .range(0)
                .map(|waiter| Action::GoesAway(waiter.id)),
        );
        if state.asks.is_some() && state.may_make(self) && state.key.is_none() {
            actions.push(Action::Acquire);
        }
        for &Hold { grant, stage, .. } in state.line.holds() {
            match stage {
                Stage::Inside => {
                    actions.extend(
                        [true, false].map(|hands_over| Action::Leave { grant, hands_over }),
                    );
                    actions.push(Action::Lose(grant));
                }
                Stage::Lost => actions.push(Action::Leave {
                    grant,
                    hands_over: false,
                }),
                Stage::Releasing if state.handing.is_none_or(|handing| handing.from != grant) => {
                    actions.push(Action::Unconfirmed(grant));
                }
                Stage::Releasing => {}
            }
        }
        if let Some(handing) = state.handing {
            actions.push(Action::Timeout);
            actions.extend(handing.answer.map(|_| Action::Answered));
        }
        actions.extend(state.outcome.map(|_| Action::Outcome));
        actions.extend([Event::Changed, Event::Due].map(Action::Interrupts));
        if !state.closed {
            actions.push(Action::Close);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        state.act(self, action);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = promises();
        properties.extend(sights(self));
        properties
    }
}

impl Checked for Protocol {}

fn promises() -> Vec<Property<Protocol>> {
    vec![
        Property::always(EXCLUSION, |model, state: &State| {
            state.inside(model).count() <= 1
        }),
        Property::always(BELIEF, |model, state: &State| {
            state
                .inside(model)
                .all(|by| state.key.is_some_and(|key| key.by == by))
        }),
        Property::always(LEAK, |_, state: &State| {
            !state.is_quiet() || state.key.is_none_or(|key| key.by == By::Elsewhere)
        }),
        Property::always(FORGOTTEN, |_, state: &State| {
            let blocks = |hold: &Hold| hold.blocks(moment().now);
            let is_under_way =
                state.asks.is_some() || state.handing.is_some() || state.outcome.is_some();
            state.line.waiters().is_empty() || state.line.holds().iter().any(blocks) || is_under_way
        }),
        Property::always(FENCES, |_, state: &State| !state.unordered),
        Property::always(TOLD, |_, state: &State| !state.untrue),
    ]
}

/// Returns what has to happen, since a model in which nothing happens keeps every promise.
fn sights(protocol: &Protocol) -> Vec<Property<Protocol>> {
    let mut sights = vec![
        Property::sometimes("two in a row", |_, state: &State| {
            let is_second = |hold: &Hold| hold.grant == 2 && hold.stage == Stage::Inside;
            state.line.holds().iter().any(is_second) && state.is_executed(1) && state.is_executed(2)
        }),
        Property::sometimes("late yes", |_, state: &State| {
            matches!(
                state.handing,
                Some(Handing {
                    valid: 0,
                    answer: Some(Said::Granted(_)),
                    ..
                })
            )
        }),
        Property::sometimes("yes without an answer", |_, state: &State| {
            let is_second = |undo: &Undo| matches!(undo, Undo::Sent { then: Some(to) } if state.is_executed(*to));
            state.undos.iter().any(is_second) && state.key.is_some()
        }),
        Property::sometimes("another process comes between", |_, state: &State| {
            state.other.is_some()
                && matches!(
                    state.handing,
                    Some(Handing {
                        answer: Some(Said::Gone),
                        ..
                    })
                )
        }),
        Property::sometimes("closed meanwhile", |_, state: &State| {
            state.closed
                && matches!(
                    state.handing,
                    Some(Handing {
                        answer: Some(Said::Granted(_)),
                        ..
                    })
                )
        }),
        Property::sometimes("a caller goes while it is asked for", |_, state: &State| {
            state.asks.is_some_and(|id| {
                state
                    .line
                    .waiters()
                    .range(id)
                    .next()
                    .is_none_or(|next| next.id != id)
            })
        }),
        Property::sometimes("a hold beside a lost one", |_, state: &State| {
            let is = |stage: Stage| state.line.holds().iter().any(|hold| hold.stage == stage);
            is(Stage::Lost) && is(Stage::Inside)
        }),
    ];
    if protocol.deletions > 0 {
        sights.push(Property::sometimes("deletion", |model, state: &State| {
            state.victim.is_some() && state.inside(model).count() == 1
        }));
    }
    sights
}

impl State {
    fn may_make(&self, protocol: &Protocol) -> bool {
        self.made < protocol.grants && !self.closed
    }

    /// Returns the holders, except one that a deletion from outside has deceived.
    fn inside(&self, protocol: &Protocol) -> impl Iterator<Item = By> {
        let releases_late = |grant: u8| {
            protocol.is(Mutant::LeavesWithTheAnswer)
                && self.handing.is_some_and(|handing| handing.from == grant)
        };
        let is_inside = |hold: &&Hold| hold.stage == Stage::Inside || releases_late(hold.grant);
        let here: Vec<_> = self
            .line
            .holds()
            .iter()
            .filter(is_inside)
            .map(|hold| By::Here(hold.grant))
            .collect();
        let victim = self.victim;
        here.into_iter()
            .chain(self.other.map(|_| By::Elsewhere))
            .filter(move |by| victim != Some(*by))
    }

    /// Returns whether the server has executed the hand-over that makes this grant.
    fn is_executed(&self, grant: u8) -> bool {
        self.hand_overs[usize::from(grant)].is_some_and(|sent| sent.executed)
    }

    fn is_quiet(&self) -> bool {
        let is_undone = self.undos.iter().all(|undo| *undo == Undo::None);
        let is_unused = self.line.holds().is_empty() && self.line.waiters().is_empty();
        is_unused && is_undone && self.outcome.is_none() && self.other.is_none()
    }

    fn hold(&mut self, grant: u8) -> Option<&mut Hold> {
        self.line
            .holds_mut()
            .iter_mut()
            .find(|hold| hold.grant == grant)
    }

    /// Applies an action.
    fn act(&mut self, protocol: &Protocol, action: Action) {
        match action {
            Action::Tick => self.tick(protocol),
            Action::Delete => {
                self.deletions -= 1;
                self.victim = self.key.take().map(|key| key.by);
            }
            Action::OtherComes => {
                self.others -= 1;
                self.put(By::Elsewhere);
                self.mark += 1;
                self.other = Some(LEASE - 1);
                self.enters(By::Elsewhere, self.mark);
            }
            Action::OtherLeaves => {
                self.other = None;
                self.release(By::Elsewhere);
            }
            Action::HandOver(to) => self.execute(protocol, to),
            Action::Release(grant, heard) => self.execute_release(protocol, grant, heard),
            Action::Acquire => self.acquire(),
            Action::Leave { grant, hands_over } => self.leave(protocol, grant, hands_over),
            Action::GoesAway(caller) => {
                self.line.leave(caller);
                self.step(protocol, Event::Changed);
            }
            Action::Answered => self.answered(protocol),
            Action::Outcome => match self.outcome.take() {
                Some(Outcome::Answered) => {
                    self.step(protocol, Event::Answered(AcquireOutcome::Granted));
                }
                Some(Outcome::HandedOver) => self.step(protocol, Event::HandedOver),
                None => {}
            },
            Action::Interrupts(event) => self.step(protocol, event),
            Action::Timeout => self.timeout(protocol),
            Action::Unconfirmed(grant) => self.free(protocol, grant),
            Action::Lose(grant) => self.lose(protocol, grant),
            Action::Close => {
                self.closed = true;
                let waiters: Vec<u64> = self
                    .line
                    .waiters()
                    .range(0)
                    .map(|waiter| waiter.id)
                    .collect();
                waiters.into_iter().for_each(|id| _ = self.line.leave(id));
                let holds: Vec<u8> = self.line.holds().iter().map(|hold| hold.grant).collect();
                holds
                    .into_iter()
                    .for_each(|grant| self.lose(protocol, grant));
                self.step(protocol, Event::Changed);
            }
        }
        let is_here = |grant: u8| {
            let is_inside = |hold: &Hold| hold.grant == grant && hold.stage == Stage::Inside;
            let is_handed = |handing: Handing| handing.from == grant || handing.to == grant;
            self.line.holds().iter().any(is_inside) || self.handing.is_some_and(is_handed)
        };
        self.victim = self.victim.filter(|by| match *by {
            By::Here(grant) => is_here(grant),
            By::Elsewhere => self.other.is_some(),
        });
    }

    fn tick(&mut self, protocol: &Protocol) {
        if let Some(key) = &mut self.key {
            key.lease -= 1;
            if key.lease == 0 {
                self.key = None;
            }
        }
        self.other = self.other.map(|valid| valid - 1).filter(|valid| *valid > 0);
        if let Some(handing) = &mut self.handing {
            handing.valid = handing.valid.saturating_sub(1);
        }
        for hold in self.line.holds_mut() {
            hold.valid = hold.valid.saturating_sub(1);
        }
        let over = self
            .line
            .holds()
            .iter()
            .filter(|hold| hold.valid == 0)
            .map(|hold| hold.grant);
        let over: Vec<u8> = over.collect();
        over.into_iter()
            .for_each(|grant| self.lose(protocol, grant));
    }

    fn put(&mut self, by: By) {
        self.key = Some(Key { by, lease: LEASE });
    }

    fn release(&mut self, by: By) {
        if self.key.is_some_and(|key| key.by == by) {
            self.key = None;
        }
    }

    /// A holder enters with this fence. A holder whose key was deleted meanwhile is excepted.
    fn enters(&mut self, by: By, fence: u8) {
        self.unordered |= fence <= self.highest && self.victim != Some(by);
        self.highest = self.highest.max(fence);
    }
}

/// What the server does.
impl State {
    fn execute(&mut self, protocol: &Protocol, to: u8) {
        let Some(Sent { from, executed }) = self.hand_overs[usize::from(to)] else {
            return;
        };
        self.hand_overs[usize::from(to)] = Some(Sent {
            from,
            executed: true,
        });
        let is_there = match self.key {
            Some(key) => key.by == By::Here(from) || protocol.is(Mutant::GrantsBlindly),
            None => protocol.is(Mutant::TakesWhatIsFree),
        };
        let said = if is_there {
            self.put(By::Here(to));
            self.mark += u8::from(!protocol.is(Mutant::SameFence));
            Said::Granted(self.mark)
        } else {
            Said::Gone
        };
        // A hand-over is sent once and answered once.
        if let Some(handing) = self
            .handing
            .as_mut()
            .filter(|handing| handing.to == to && !executed)
        {
            handing.answer.get_or_insert(said);
        }
    }

    fn execute_release(&mut self, protocol: &Protocol, grant: u8, heard: bool) {
        self.release(By::Here(grant));
        if !heard {
            return;
        }
        if let Undo::Sent { then } = std::mem::take(&mut self.undos[usize::from(grant)]) {
            then.into_iter().for_each(|next| self.undo(next, None));
        }
        if self
            .hold(grant)
            .is_some_and(|hold| hold.stage == Stage::Releasing)
        {
            self.free(protocol, grant);
        }
    }
}

/// What is done for the line.
impl State {
    /// Passes an event to the line, and does what it says.
    fn step(&mut self, protocol: &Protocol, event: Event) {
        match self.line.on(event, &moment()) {
            None | Some(Effect::WakeAt { .. }) => {}
            Some(Effect::Ask { head, .. }) => self.asks = Some(head),
            Some(Effect::Release(from, Some(caller))) if self.may_make(protocol) => {
                let to = self.made;
                self.made += 1;
                self.hand_overs[usize::from(to)] = Some(Sent {
                    from,
                    executed: false,
                });
                self.handing = Some(Handing {
                    from,
                    to,
                    caller,
                    valid: LEASE - 1,
                    answer: None,
                });
            }
            Some(Effect::Release(from, _)) => {
                self.undo(from, None);
                self.step(protocol, Event::HandedOver);
            }
            effect => unreachable!("nobody else is met, and no server is away: {effect:?}"),
        }
    }

    fn free(&mut self, protocol: &Protocol, grant: u8) {
        let hold = self.hold(grant).copied();
        hold.into_iter()
            .for_each(|hold| _ = self.line.remove(&hold));
        self.step(protocol, Event::Changed);
    }

    fn undo(&mut self, grant: u8, then: Option<u8>) {
        self.undos[usize::from(grant)] = Undo::Sent { then };
        self.releases[usize::from(grant)] = true;
    }

    fn acquire(&mut self) {
        let Some(caller) = self.asks.take() else {
            return;
        };
        let grant = self.made;
        self.made += 1;
        self.put(By::Here(grant));
        self.mark += 1;
        let hold = Hold {
            grant,
            valid: LEASE - 1,
            stage: Stage::Inside,
        };
        match self.line.grant(hold, Some(caller), moment().now) {
            Ok(_) => self.enters(By::Here(grant), self.mark),
            // Its caller is gone.
            Err(_) => self.undo(grant, None),
        }
        self.outcome = Some(Outcome::Answered);
    }

    fn leave(&mut self, protocol: &Protocol, grant: u8, hands_over: bool) {
        let Some(hold) = self.hold(grant) else { return };
        if hold.stage == Stage::Lost {
            self.undo(grant, None);
            return self.free(protocol, grant);
        }
        hold.stage = Stage::Releasing;
        let hold = *hold;
        let unsent = if hands_over {
            self.line.release(&hold, grant, moment().now)
        } else {
            Some(grant)
        };
        match unsent {
            Some(grant) => self.undo(grant, None),
            None => self.step(protocol, Event::Changed),
        }
    }

    fn answered(&mut self, protocol: &Protocol) {
        let Some(Handing {
            from,
            to,
            caller,
            valid,
            answer: Some(said),
        }) = self.handing.take()
        else {
            return;
        };
        let released = Hold {
            grant: from,
            valid: 0,
            stage: Stage::Releasing,
        };
        let valid = if protocol.is(Mutant::ValidityFromReply) {
            LEASE - 1
        } else {
            valid
        };
        match said {
            Said::Gone => {
                self.untrue |=
                    self.victim == Some(By::Here(from)) && protocol.is(Mutant::GoneIsDone);
                self.line.remove(&released);
                if protocol.is(Mutant::ForgetsTheLine) {
                    return;
                }
            }
            Said::Granted(_) if valid == 0 => {
                if !protocol.is(Mutant::LateYesKept) {
                    self.undo(to, None);
                }
                self.line.remove(&released);
            }
            Said::Granted(fence) => {
                let next = Hold {
                    grant: to,
                    valid,
                    stage: Stage::Inside,
                };
                match self.line.transfer(&released, next, caller, moment().now) {
                    (_, Some(_)) => self.enters(By::Here(to), fence),
                    (_, None) if protocol.is(Mutant::UnwantedKept) => _ = self.line.remove(&next),
                    // Its caller is gone: the grant is released like any other.
                    (_, None) => self.leave(protocol, to, true),
                }
                self.lose_if_closed(protocol);
            }
        }
        self.outcome = Some(Outcome::HandedOver);
    }

    fn timeout(&mut self, protocol: &Protocol) {
        let Some(Handing { from, to, .. }) = self.handing.take() else {
            return;
        };
        match protocol.mutant {
            Some(Mutant::UndoesBothAtOnce) => {
                self.undo(from, None);
                self.undo(to, None);
            }
            Some(Mutant::UndoesTheFirstOnly) => self.undo(from, None),
            Some(Mutant::UndoesTheSecondOnly) => {
                self.undo(to, None);
                self.line.remove(&Hold {
                    grant: from,
                    valid: 0,
                    stage: Stage::Releasing,
                });
            }
            _ => self.undo(from, Some(to)),
        }
        self.outcome = Some(Outcome::HandedOver);
    }

    /// The hold is lost: by time, by a force_unlock, or by closing.
    fn lose(&mut self, protocol: &Protocol, grant: u8) {
        if let Some(hold) = self.hold(grant).filter(|hold| hold.stage == Stage::Inside) {
            hold.stage = Stage::Lost;
            self.step(protocol, Event::Changed);
        }
    }

    /// A grant that comes after closing is lost at once.
    fn lose_if_closed(&mut self, protocol: &Protocol) {
        if self.closed {
            let holds: Vec<u8> = self.line.holds().iter().map(|hold| hold.grant).collect();
            holds
                .into_iter()
                .for_each(|grant| self.lose(protocol, grant));
        }
    }
}

// ---- The protocol ----

#[test]
fn hand_overs_keep_the_promises() {
    keeps_its_promises(FULL);
}

#[test]
fn hand_overs_keep_the_promises_though_the_key_is_deleted() {
    keeps_its_promises(DELETED);
}

// ---- Its mutants ----

#[test]
fn a_hand_over_has_to_compare_the_field() {
    breaks(FULL.with(Mutant::GrantsBlindly), &[EXCLUSION, LEAK]);
}

/// A late copy takes a lock that nobody releases.
#[test]
fn a_hand_over_must_not_take_a_free_lock() {
    breaks(FULL.with(Mutant::TakesWhatIsFree), &[LEAK]);
}

#[test]
fn validity_of_a_hand_over_counts_from_before_the_send() {
    breaks(FULL.with(Mutant::ValidityFromReply), &[EXCLUSION]);
}

#[test]
fn a_releaser_stops_holding_before_the_hand_over_is_sent() {
    breaks(FULL.with(Mutant::LeavesWithTheAnswer), &[BELIEF]);
}

/// The undo of the second field overtakes the hand-over, which overtakes the undo of the first.
#[test]
fn a_hand_over_without_an_answer_is_undone_in_order() {
    breaks(FULL.with(Mutant::UndoesBothAtOnce), &[LEAK]);
}

#[test]
fn both_fields_of_a_hand_over_without_an_answer_are_undone() {
    breaks(FULL.with(Mutant::UndoesTheFirstOnly), &[LEAK]);
    breaks(FULL.with(Mutant::UndoesTheSecondOnly), &[LEAK]);
}

#[test]
fn a_hand_over_that_was_granted_too_late_has_to_be_undone() {
    breaks(FULL.with(Mutant::LateYesKept), &[LEAK]);
}

#[test]
fn a_hand_over_to_a_caller_that_is_gone_has_to_be_released() {
    breaks(FULL.with(Mutant::UnwantedKept), &[LEAK]);
}

#[test]
fn each_hand_over_has_a_fence_of_its_own() {
    breaks(FULL.with(Mutant::SameFence), &[FENCES]);
}

#[test]
fn a_hand_over_that_finds_the_lock_gone_wakes_the_line() {
    breaks(FULL.with(Mutant::ForgetsTheLine), &[FORGOTTEN]);
}

#[test]
fn a_releaser_is_told_of_a_lock_deleted_before_the_hand_over() {
    breaks(DELETED.with(Mutant::GoneIsDone), &[TOLD]);
}
