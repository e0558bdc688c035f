//! The line of one key: who waits here for its lock, what the servers are asked for them, and when.
//!
//! It is a state machine without I/O, clock or task: it gets events and says what has to be done. Whoever carries that
//! out tells it the outcome by the next event. Today that is the driver of the key, one task (`session/driver.rs`).
//!
//! # What comes in
//! Callers and holds change a line by methods, since they need an answer at once: `arrive`, `leave`, `grant`,
//! `succeed`, `remove`, `release`, `note_others`. Then its driver is woken. The driver passes events to [`Line::on`]:
//! `Changed` (after those methods), `Due` (a message, or the end of a wait), the outcome of each effect (`Answered`,
//! `HandedOver`, `Subscribed`, `Named`, `GaveUp`), `Outage`, and `Stopped`.
//!
//! # What comes out
//! At most one effect at a time: `Ask` (acquire for the head), `Release` (perhaps as a hand-over), `Listen`, `Sleep`,
//! `Pause`, `Name`, `GiveUp`, `Lost`; or `Done`. While one is under way, other events have none: the line looks when
//! the outcome comes.
//!
//! # States
//! `Idle`, `Looks`, `Granted`, and then one of `Blocked` (a hold here has the lock), `Asks`, `Listens`, `HandsOver`,
//! `Names`, `Rests` (for lockers elsewhere, between two attempts, or in an outage), `MakesWay` (lockers that have met
//! keep apart), `GivesUp`. What it has heard of others is the *seat* ([`News`]), once its locker listens.
//!
//! # Invariants
//! - At most one command of a line has no answer. A release that comes meanwhile is sent by itself.
//! - Nothing is asked for while a hold here may have the lock: it is held, or its release has no answer.
//! - A release is taken for a hand-over only in `Blocked`, `Granted` and `Looks`, and comes first in the next look.
//! - While there are waiters, something is under way that ends, or a wait that has an end.
//! - Nothing is believed of a message: after each, the servers are asked.
//!
//! # Where each rule is
//! - Who is next, and what a look finds: `look`. May a lock be handed over: `may_hand_over`, then `successor`.
//! - Whose turn it is: `turn.rs` (hand-overs in a row here), `others.rs` (clients outside of the list).
//! - Who is called, and what a call or a message means: `news.rs`. Which lists it is in, and who leaves them:
//!   `listed.rs`.
//! - What an answer means for the next ask: `answered`; how long it waits: `wait`, `rest`; how a wait ends: `go_on`.
//! - When callers are told of an outage: `GiveUp` after a round, and at an `Outage` while it waits.
//!
//! # What is outside, in the order in which it can come in
//! 1. What a grant says about a turn of others and the list: `Driving::learn`, `Subscription::granted`.
//! 2. `Known` and `Listed`, which are kept for channels and keys and outlive a line; whom a release calls:
//!    `session/passing.rs`, `Channels::release`. Then a line lives as long as what it remembers.
//! 3. Whether a hold is sound enough to be handed over: `Session::hands_over`; and releases without a driver.
//! 4. Who carries effects out. With several threads, an outcome has to name its effect: today the one driver keeps
//!    their order, and `Granted` stands for a grant whose outcome is yet to come.
//! 5. The outage clock: an outage and closing as events that take the waiters out.

#[path = "../../tests/model/checked.rs"]
#[cfg(test)]
mod checked;
mod course;
#[path = "../../tests/model/hand_over.rs"]
#[cfg(test)]
mod hand_over;
mod listed;
mod news;
mod others;
mod queue;
mod turn;

use std::fmt::Debug;
use std::time::Duration;

use self::course::{Course, Phase};
pub(crate) use self::listed::{AfterPass, Listed};
pub(crate) use self::news::{Begun, News, WakeUp};
pub(crate) use self::others::{Ended, Given, Known, Offer, SHORT, Turns};
pub(crate) use self::queue::Queue;
pub(crate) use self::turn::Others;
use self::turn::Turn;
use crate::clock::Instant;
use crate::error::Loss;
use crate::owner::Owner;

/// What a line has to know of a hold.
pub(crate) trait Held {
    /// Returns whether the two are one hold.
    fn is(&self, other: &Self) -> bool;

    /// Returns whether its lock may still be on the server: it is held, or released without an answer yet.
    fn blocks(&self, now: Instant) -> bool;

    /// Returns the loss of this hold, if it is lost, this owner has it, and a guard of it still lives.
    fn loss_of(&self, owner: &Owner, now: Instant) -> Option<Loss>;
}

/// One caller in line. `C` is what is known of its call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Waiter<C> {
    pub(crate) id: u64,
    pub(crate) owner: Owner,
    pub(crate) since: Instant,
    pub(crate) call: C,
}

/// The result of the last round for a key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) enum LastRound {
    /// No round has ended yet.
    #[default]
    Pending,
    Answered,
    /// It had no majority.
    Failed,
}

/// What happens to a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// Something has changed here: a caller came or went, a hold is gone, a release was passed to the line.
    Changed,
    /// A message has come, or the time of a sleep or a pause is over.
    Due,
    /// The channel of the lock is subscribed, or was not confirmed for as long as that may take.
    Subscribed {
        /// A turn of others ended before it was confirmed.
        deaf: bool,
    },
    /// An acquire was answered; its grant is registered, or its caller has the error.
    Answered(Answer),
    /// A hand-over, or the release that it became, was answered, or is left to a task of its own.
    HandedOver,
    /// Returns from [`Effect::Name`]: whether the holder was named in the log.
    Named(bool),
    /// An outage has lasted for too long.
    Outage,
    /// Returns from [`Effect::GiveUp`]: when the next caller is due, if any is left.
    GaveUp(Option<Duration>),
    /// Nobody carries the line out any more, and all of its callers have an error.
    Stopped,
}

/// What an acquire's answer says about others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Granted,
    /// A server refused it, and its caller has the error.
    Refused,
    /// Another owner holds the lock, for so long if it is not renewed.
    Held {
        ttl: Option<Duration>,
        /// How many lockers are before this one in the list, if it is there.
        place: Option<u64>,
        /// Some servers said yes all the same: others want it too.
        contested: bool,
        /// It lasts longer than any lease.
        lasts: bool,
    },
    /// Several want it at once, and none has a majority.
    Split,
    /// The first server says that another has it, and no other server was asked.
    Outrun,
    /// No majority answered. So long after now, the outage has lasted for too long; `None` if it has.
    Unavailable {
        ends_in: Option<Duration>,
    },
}

/// What has to be done for a line. Each but `Done` is followed by an event.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Effect<R, W = u64> {
    /// Nobody waits, and nothing is under way. The locker may be in the list all the same.
    Done { is_listed: bool },
    /// Release a hold and, with a waiter, hand the lock over to it. [`Event::HandedOver`] follows.
    Release(R, Option<W>),
    /// Tell this waiter that its owner's hold is lost. [`Event::Changed`] follows.
    Lost(u64, Loss),
    /// Acquire for this waiter. [`Event::Answered`] follows.
    Ask {
        head: W,
        /// Ask the first server alone, unless a list keeps the lockers apart.
        first_alone: bool,
        /// If it listens.
        begun: Option<Begun>,
    },
    /// Subscribe the lock's channel, if it is not, and wait until it is confirmed; during a turn of others, no longer
    /// than that lasts. [`Event::Subscribed`] follows.
    Listen,
    /// Name the holder, whose lock lasts longer than any lease, in the log. [`Event::Named`] follows.
    Name,
    /// Wait for a change, a message if it `hears`, an outage, or this time. [`Event::Changed`], [`Event::Due`] or
    /// [`Event::Outage`] follows.
    Sleep {
        until: Instant,
        hears: bool,
        /// Lockers elsewhere are waited for.
        others: bool,
    },
    /// Wait until this time whatever happens. [`Event::Due`] follows.
    Pause(Instant),
    /// Give those callers an error that have waited for long enough for servers that are away and, with a time, that
    /// came by then. [`Event::GaveUp`] follows.
    GiveUp { came_by: Option<Instant> },
}

impl<R, V> Effect<R, V> {
    /// Replaces the waiter that it names by what is known of it: nothing if it is not in line.
    pub(crate) fn known<W>(self, waiter: impl FnOnce(V) -> Option<W>) -> Option<Effect<R, W>> {
        Some(match self {
            Self::Done { is_listed } => Effect::Done { is_listed },
            Self::Release(release, next) => Effect::Release(release, next.and_then(waiter)),
            Self::Lost(id, loss) => Effect::Lost(id, loss),
            Self::Ask { head, first_alone, begun } => Effect::Ask { head: waiter(head)?, first_alone, begun },
            Self::Listen => Effect::Listen,
            Self::Name => Effect::Name,
            Self::Sleep { until, hears, others } => Effect::Sleep { until, hears, others },
            Self::Pause(until) => Effect::Pause(until),
            Self::GiveUp { came_by } => Effect::GiveUp { came_by },
        })
    }
}

/// The time of a step, and what is measured or drawn at it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) now: Instant,
    /// A random number from 0 to 1.
    pub(crate) chance: f64,
    /// A random pause between two attempts.
    pub(crate) retry: Duration,
    /// After so long a lock is checked though nothing was heard.
    pub(crate) recheck: Duration,
    /// Whether every release publishes a message. In the plain format, clients of other languages do not.
    pub(crate) is_told: bool,
    /// How far the servers are.
    pub(crate) round_trip: Duration,
    /// Whether it is the turn of others, or somebody waited here a moment ago and there are lists. If it listens, that
    /// does not matter.
    pub(crate) contended: bool,
    /// Whether there are lists.
    pub(crate) lists: bool,
}

/// The line of one key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Line<H, C, R> {
    holds: Vec<H>,
    queue: Queue<C>,
    /// The release that has to be sent with the next step.
    passed: Option<R>,
    turn: Turn,
    course: Course,
    /// What its locker has heard of others, from when it began to listen.
    seat: Option<Box<News>>,
    last_round: LastRound,
}

impl<H, C, R> Default for Line<H, C, R> {
    fn default() -> Self {
        Self {
            holds: Vec::new(),
            queue: Queue::default(),
            passed: None,
            turn: Turn::default(),
            course: Course::default(),
            seat: None,
            last_round: LastRound::Pending,
        }
    }
}

impl<H, C, R> Line<H, C, R> {
    /// Returns the holds for a model, in which they are plain data.
    #[cfg(test)]
    pub(crate) fn holds_mut(&mut self) -> &mut [H] {
        &mut self.holds
    }

    pub(crate) fn holds(&self) -> &[H] {
        &self.holds
    }

    pub(crate) fn waiters(&self) -> &Queue<C> {
        &self.queue
    }

    pub(crate) fn last_round(&self) -> LastRound {
        self.last_round
    }

    /// Returns whether it has neither a hold nor a waiter, and nothing is under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.holds.is_empty() && self.queue.is_empty() && self.course.phase == Phase::Idle
    }

    /// Begins to ask for the first waiter of an empty line. The result of an earlier line's rounds says nothing about
    /// this one.
    pub(crate) fn begin(&mut self) {
        self.last_round = LastRound::Pending;
    }

    /// Puts a waiter in line.
    pub(crate) fn arrive(&mut self, waiter: Waiter<C>) {
        self.queue.push(waiter);
    }

    /// Takes out a waiter whose caller is gone, gets an answer, or has entered with a hold of its owner.
    pub(crate) fn leave(&mut self, id: u64) -> Option<Waiter<C>> {
        self.queue.remove(id)
    }

    /// Returns what its locker has heard of others, if it listens. News are a reason to wake whoever carries the
    /// line out.
    pub(crate) fn seat(&mut self) -> Option<&mut News> {
        self.seat.as_deref_mut()
    }

    /// Records who else waits for the lock, according to the answer to a release.
    pub(crate) fn note_others(&mut self, others: Others) {
        self.turn.note_others(others);
    }

    /// Returns whether the last release woke or told others.
    #[cfg(test)]
    pub(crate) fn others_wait(&self) -> bool {
        self.turn.others_wait()
    }
}

impl<H: Held, C, R> Line<H, C, R> {
    /// Registers the grant of a free lock, and takes out the waiter that it is for. If that has gone, nobody gets the
    /// grant, and it is returned.
    pub(crate) fn grant(&mut self, hold: H, waiter: Option<u64>) -> Result<Option<Waiter<C>>, H> {
        self.last_round = LastRound::Answered;
        let waiter = match waiter.map(|id| self.queue.remove(id)) {
            Some(None) => return Err(hold),
            found => found.flatten(),
        };
        self.turn.begin(self.queue.last(), self.queue.len());
        if waiter.is_some() {
            self.course.granted();
        }
        self.holds.push(hold);
        Ok(waiter)
    }

    /// Replaces the released hold by the grant of its hand-over, in one step: the key is never free here in between,
    /// whether or not the waiter is still in line. Returns both, if they are still here.
    pub(crate) fn succeed(&mut self, from: &H, hold: H, waiter: u64, now: Instant) -> (Option<H>, Option<Waiter<C>>) {
        self.last_round = LastRound::Answered;
        self.turn.go_on(now);
        self.course.granted();
        let released = self.remove(from);
        self.holds.push(hold);
        (released, self.queue.remove(waiter))
    }

    /// Takes out a hold that was released, or that was lost and whose last guard is gone.
    pub(crate) fn remove(&mut self, hold: &H) -> Option<H> {
        let at = self.holds.iter().position(|one| one.is(hold))?;
        Some(self.holds.swap_remove(at))
    }

    /// Takes the release of a hold for a hand-over at the next step. Returns it if it has to be sent by itself.
    pub(crate) fn release(&mut self, hold: &H, release: R, now: Instant) -> Option<R> {
        if !self.may_hand_over(hold, now) {
            return Some(release);
        }
        self.passed = Some(release);
        None
    }

    /// Returns whether the lock of this hold goes to the next waiter without becoming free: nothing else is under way
    /// for the line, and nobody elsewhere has to have a turn. Whether the hold is sound enough for that, its releaser
    /// knows.
    fn may_hand_over(&self, hold: &H, now: Instant) -> bool {
        let is_unasked = self.course.is_unasked() && self.passed.is_none();
        let goes_on = || self.queue.first().is_some_and(|next| self.turn.may_go_on(next.id, now));
        is_unasked && goes_on() && self.holds.iter().any(|one| one.is(hold))
    }

    /// Returns the head of the line if a lock that was released may be handed over to it, now that it is sent.
    fn successor(&self, now: Instant) -> Option<u64> {
        let head = self.queue.first()?;
        let is_only = self.holds.iter().filter(|hold| hold.blocks(now)).count() == 1;
        (is_only && self.loss_of(&head.owner, now).is_none()).then_some(head.id)
    }

    /// Returns the loss of the hold that this owner has, if it has a lost one. A lost hold is removed with its last
    /// guard: while it is here, a guard lives.
    fn loss_of(&self, owner: &Owner, now: Instant) -> Option<Loss> {
        self.holds.iter().find_map(|hold| hold.loss_of(owner, now))
    }
}
