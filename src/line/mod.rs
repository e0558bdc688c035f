//! The line of one key: who waits here for its lock, what the servers are asked for them, and when.
//!
//! It is a state machine without I/O, clock or task: it gets events and says what has to be done.
//! Whoever passes an event to it carries out what follows (`lines.rs`), and passes the outcome to
//! it as the next event.
//!
//! # What comes in
//! Callers, holds and releases change a line by methods, since they need an answer at once:
//! `arrive`, `leave`, `grant`, `transfer`, `remove`, `release`, `begin_release`, `released`. The
//! event [`Changed`](Event::Changed) follows, except after a grant. All else is an event: what is
//! heard (`Heard`, `WokenUp`, `Missed`, `Subscribed`), `Due` (the end of a wait), the outcome of an
//! effect (`Answered`, `HandedOver`, `Named`, `GaveUp`, `Passed`), `Outage`, and `Stopped`.
//!
//! # What comes out
//! At most one effect at a time: `Ask` (acquire for the head), `Release` (perhaps as a hand-over),
//! `Listen`, `WakeAt`, `Name`, `GiveUp`, `Lost`, `Hush`; or nothing. While one with an outcome is
//! in flight, other events have none: the line looks when the outcome arrives. `Pass`, which takes
//! the locker off the list, is apart from these: no caller waits for it.
//!
//! # States
//! `Idle`, `Looks`, `Granted`, and then one of `Blocked` (a hold here has the lock), `Asks`,
//! `Listens`, `HandsOver`, `Names`, `Rests` (for lockers elsewhere, between two attempts, or in an
//! outage), `MakesWay` (lockers that have met keep apart), `GivesUp`. What it has heard of others
//! is its [`WakeState`], once its locker listens.
//!
//! # Invariants
//! - At most one command of a line has no answer. A release that comes meanwhile is sent by itself.
//! - Nothing is asked for while a hold here may have the lock: it is held, or its release has no
//!   answer.
//! - A release is taken for a hand-over only in `Blocked`, `Granted` and `Looks`, and comes first
//!   in the next look.
//! - While there are waiters, something is in flight that ends, or a wait that has an end.
//! - Nothing is believed of a message: after each, the servers are asked.
//! - Each effect with an outcome has exactly one. A change between a grant and that outcome must
//!   not be looked at: whatever followed would be taken for what has ended. `Granted` stands for
//!   that time.
//! - A line outlives its waiters while it remembers something: for a minute what others did with
//!   their turns, and a list for as long as its locker may be there.
//!
//! # Where each rule is
//! - Who is next, and what a look finds: `look`. May a lock be handed over: `may_hand_over`, then
//!   `successor`.
//! - Who is called by a release: `begin_release` says it to the server, `released` takes in what
//!   the server did.
//! - Whose turn it is: `turn.rs` (hand-overs in a row here), `outside_waiters.rs` (clients outside
//!   of the list).
//! - What a call or a message means: `wake_state.rs`. Whether the locker is in the list, and who
//!   takes it off: `waitlist.rs`.
//! - What an answer means for the next ask: `answered`; how long it waits: `wait`, `rest`; how a
//!   wait ends: `go_on`.
//! - When callers are notified of an outage: `GiveUp` after a round, and at an `Outage` while it
//!   waits.
//!
//! # What is outside
//! - Whether a hold is sound enough to be handed over: its releaser knows.
//! - The outage clock, and the errors that callers get.

#[path = "../../tests/model/across/mod.rs"]
#[cfg(test)]
mod across;
#[path = "../../tests/model/checked.rs"]
#[cfg(test)]
mod checked;
mod course;
mod events;
#[path = "../../tests/model/hand_over.rs"]
#[cfg(test)]
mod hand_over;
mod outside_waiters;
mod queue;
mod turn;
mod waitlist;
mod wake_state;

use std::sync::Arc;
use std::time::Duration;

use self::course::{Course, Phase};
pub(crate) use self::events::{AcquireOutcome, Effect, Event, Moment, WakeSources};
use self::outside_waiters::{Ended, Given, OutsideWaiters, SHORT, TurnUse};
pub(crate) use self::queue::Queue;
use self::turn::{Turn, WhoElse};
use self::waitlist::Waitlisted;
use self::wake_state::WakeState;
pub(crate) use self::wake_state::WakeUp;
use crate::claim::{ReleaseAnswer, Releaser};
use crate::clock::Instant;
use crate::error::Loss;
use crate::owner::Owner;

/// What a line has to know of a hold.
pub(crate) trait RawHold {
    /// Returns whether the two are one hold.
    fn is(&self, other: &Self) -> bool;

    /// Returns whether its lock may still be on the server: it is held, or released without an
    /// answer yet.
    fn blocks(&self, now: Instant) -> bool;

    /// Returns the loss of this hold, if it is lost, this owner has it, and a guard of it still
    /// lives.
    fn loss_of(&self, owner: &Owner, now: Instant) -> Option<Loss>;

    /// Returns whether others may have the lock together with it: it is a reader's.
    fn shares(&self) -> bool {
        false
    }

    /// Returns whether its lock may go to the next waiter without becoming free.
    fn hands_over(&self) -> bool {
        true
    }

    /// Returns whether this owner, which asks as a reader or a writer, has the lock by it as the
    /// other.
    fn is_in_other_role(&self, _owner: &Owner, _shares: bool) -> bool {
        false
    }
}

/// What a line has to know of a call.
pub(crate) trait Wants {
    /// Returns the lease that it asks for.
    fn lease(&self) -> Duration;

    /// Returns whether it may have the lock together with others: it is a reader's.
    fn shares(&self) -> bool {
        false
    }
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

/// The line of one key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Line<H, C, R> {
    holds: Vec<H>,
    queue: Queue<C>,
    /// How many of those in the queue read.
    readers: u32,
    /// The release that has to be sent with the next step.
    passed: Option<R>,
    turn: Turn,
    course: Course,
    /// What its locker has heard of others, from when it began to listen.
    wake_state: Option<Box<WakeState>>,
    /// What clients outside of the list do, if there are any.
    others: Option<Box<OutsideWaiters>>,
    listed: Waitlisted,
    /// Whether the locker has to be taken off the list now.
    passes: bool,
    last_round: LastRound,
}

/// What becomes of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stays {
    /// It is in use.
    InUse,
    /// It remembers something until then.
    Until(Instant),
    No,
}

impl<H, C, R> Default for Line<H, C, R> {
    fn default() -> Self {
        Self {
            holds: Vec::new(),
            queue: Queue::default(),
            readers: 0,
            passed: None,
            turn: Turn::default(),
            course: Course::default(),
            wake_state: None,
            others: None,
            listed: Waitlisted::default(),
            passes: false,
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

    /// Returns each point in time that it remembers, except when its waiters came: a model moves
    /// them.
    #[cfg(test)]
    fn times(&mut self) -> Vec<&mut Instant> {
        let mut times: Vec<_> = self
            .course
            .times()
            .chain(self.listed.times())
            .chain(self.turn.times())
            .collect();
        times.extend(
            self.wake_state
                .iter_mut()
                .flat_map(|wake_state| wake_state.times()),
        );
        times.extend(self.others.iter_mut().flat_map(|others| others.times()));
        times
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

    /// Forgets what is too old, and returns for how long the line has to be kept.
    pub(crate) fn stays(&mut self, now: Instant) -> Stays {
        // A pass has an outcome, which the line has to take in.
        if !self.is_idle() || self.listed.passes() {
            return Stays::InUse;
        }
        // Who waits elsewhere, the next release shows.
        self.turn = Turn::default();
        self.others.take_if(|others| others.kept_until() <= now);
        let others = self.others.as_ref().map(|others| others.kept_until());
        let remembers = [others, self.listed.forget(now)]
            .into_iter()
            .flatten()
            .min();
        remembers.map_or(Stays::No, Stays::Until)
    }

    /// Returns whether it has neither a hold nor a waiter, and nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.holds.is_empty() && self.queue.is_empty() && self.course.phase == Phase::Idle
    }

    /// Returns whether it is idle and remembers nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.is_idle() && self.others.is_none() && self.listed == Waitlisted::default()
    }

    /// Returns whether this event may matter: a line without waiters and anything in flight has
    /// nothing to look at.
    pub(crate) fn heeds(&self, event: Event) -> bool {
        let is_at_rest = self.queue.is_empty() && self.course.phase == Phase::Idle;
        !(is_at_rest && matches!(event, Event::Changed | Event::Due))
    }

    /// Returns whether the locker has to be taken off the list now, once.
    pub(crate) fn take_pass(&mut self) -> bool {
        std::mem::take(&mut self.passes)
    }

    /// Returns whether others have a turn that this locker gave them, and whose outcome is not
    /// known, or had it at that time or later.
    pub(crate) fn has_given_turn(&self, since: Instant) -> bool {
        self.given(since).is_some()
    }

    /// Records that the lock was free although others have a turn.
    pub(crate) fn end_given_turn(&mut self, now: Instant) {
        self.end_turn(Some(Ended::NotTaken), now);
    }

    /// Called when a release of this locker is about to be sent: messages from before it say
    /// nothing. Returns what the server has to know of those who wait, if there is a list.
    pub(crate) fn begin_release(
        &mut self,
        lease: Duration,
        moment: &Moment<'_>,
    ) -> Option<Releaser> {
        if !moment.heeds_releases() {
            return None;
        }
        let waits = self.wake_state.is_some() && !self.queue.is_empty();
        // What was heard while the lock was held was about this hold, or older.
        self.wake_state
            .iter_mut()
            .for_each(|wake_state| wake_state.release());
        let locker = Arc::clone(moment.lister?);
        let WakeSources {
            confirmed, named, ..
        } = moment.sources;
        let enlists = waits && confirmed && named;
        let lifetime = moment.lifetime(lease);
        if enlists {
            self.listed.enter(moment.now + lifetime);
        }
        Some(Releaser {
            locker,
            enlists,
            listens: confirmed && !enlists,
            offers: self.offer(moment.now),
            lifetime,
        })
    }

    /// Takes in a server's answer to a release that has notified others.
    pub(crate) fn released(&mut self, release: &ReleaseAnswer, moment: &Moment<'_>) {
        if moment.queues {
            // It has called the one that is next, which may wait here.
            let called = matches!(release, ReleaseAnswer::Released(told) if *told > 0);
            if let Some(wake_state) = self.wake_state.as_mut().filter(|_| called) {
                wake_state.leave_to_next();
            }
            return;
        }
        let who_else = match release {
            ReleaseAnswer::PassedOn {
                place,
                turn,
                others,
                waiting,
            } => {
                // This locker counts, whether or not the server has it in the list.
                let lockers = waiting + u64::from(place.is_none());
                self.passed_on(*place, *turn, *others, lockers, moment.now)
            }
            ReleaseAnswer::Released(told) => self.told(*told, moment),
            ReleaseAnswer::Unlisted(_) => WhoElse::Unknown,
            ReleaseAnswer::Gone => return,
        };
        self.turn.note_others(who_else);
    }

    /// Records that a release woke another locker, or gave others a `turn`. `others` is the number
    /// of those in no list, and `lockers` the number of lockers in it, this one included.
    fn passed_on(
        &mut self,
        place: Option<u64>,
        turn: Option<Duration>,
        others: u64,
        lockers: u64,
        now: Instant,
    ) -> WhoElse {
        let given = turn.map(|length| Given {
            since: now,
            end: now + length,
            alone: false,
        });
        let turns = if others > 0 {
            self.give_turn(lockers, others, given, now)
        } else {
            TurnUse::Left
        };
        match (place, &mut self.wake_state) {
            (Some(place), Some(wake_state)) => wake_state.pass_on(place, given, now),
            // The last caller has gone meanwhile. A pass may have been sent before the release that
            // put the locker in.
            (Some(_), None) => self.pass(now),
            (None, _) => {}
        }
        if turns == TurnUse::Taken {
            WhoElse::Told
        } else {
            WhoElse::Listed {
                before: place.unwrap_or(0),
            }
        }
    }

    /// Records that the message of a release, which found no list, reached this number of clients.
    /// If others may have a turn, this locker leaves it to them.
    fn told(&mut self, told: u64, moment: &Moment<'_>) -> WhoElse {
        if !moment.counts {
            return WhoElse::Unknown;
        }
        let WakeSources {
            asked, confirmed, ..
        } = moment.sources;
        // The message also reached this locker, if it is subscribed.
        let others = told.saturating_sub(asked.into());
        let now = moment.now;
        if others == 0 {
            return WhoElse::Nobody;
        }
        let given = self.offer(now).map(|length| Given {
            since: now,
            end: now + length,
            alone: true,
        });
        let turns = self.give_turn(1, others, given, now);
        if let (Some(given), Some(wake_state)) = (given, &mut self.wake_state) {
            wake_state.give_turn(given, confirmed, now);
        }
        match turns {
            TurnUse::Taken => WhoElse::Told,
            TurnUse::Unknown => WhoElse::Unknown,
            TurnUse::Left => WhoElse::Nobody,
        }
    }

    fn give_turn(
        &mut self,
        lockers: u64,
        others: u64,
        given: Option<Given>,
        now: Instant,
    ) -> TurnUse {
        let known = self.known(now);
        known.release(now, lockers, others, given);
        known.turns(now)
    }

    fn given(&self, since: Instant) -> Option<Given> {
        self.others.as_ref().and_then(|others| others.given(since))
    }

    fn end_turn(&mut self, ended: Option<Ended>, now: Instant) {
        if let Some(ended) = ended {
            self.known(now).end_turn(now, ended);
        }
    }

    /// Returns how long a turn would last that is offered to others now, if one may be.
    fn offer(&self, now: Instant) -> Option<Duration> {
        self.others
            .as_ref()
            .map_or(Some(SHORT), |others| others.offer(now))
    }

    /// Returns what is known of others, for a turn that begins or ends.
    fn known(&mut self, now: Instant) -> &mut OutsideWaiters {
        self.others
            .get_or_insert_with(|| Box::new(OutsideWaiters::new(now)))
    }

    /// Has the locker taken off the list, in which it may be although no caller waits.
    fn pass(&mut self, now: Instant) {
        self.listed.enter(now);
        self.passes |= self.listed.begin_pass();
    }

    /// Returns whether the last release woke or told others.
    #[cfg(test)]
    pub(crate) fn others_wait(&self) -> bool {
        self.turn.others_wait()
    }
}

impl<H, C: Wants, R> Line<H, C, R> {
    /// Puts a waiter in line. Returns whether the line begins with it: then [`Event::Changed`]
    /// follows, and the rounds before it say nothing.
    pub(crate) fn arrive(&mut self, waiter: Waiter<C>) -> bool {
        self.course.unplaced = true;
        let begins = self.course.phase == Phase::Idle;
        if begins {
            self.last_round = LastRound::Pending;
        }
        self.readers += u32::from(waiter.call.shares());
        self.queue.push(waiter);
        begins
    }

    /// Takes out a waiter whose caller is gone, gets an answer, or has entered with a hold of its
    /// owner.
    pub(crate) fn leave(&mut self, id: u64) -> Option<Waiter<C>> {
        let waiter = self.queue.remove(id);
        self.count_out(waiter.as_ref());
        waiter
    }

    /// Counts a waiter that was taken out.
    fn count_out(&mut self, waiter: Option<&Waiter<C>>) {
        let reads = waiter.is_some_and(|waiter| waiter.call.shares());
        self.readers -= u32::from(reads);
    }

    /// Returns whether a writer waits, or any caller of a lock without readers.
    pub(crate) fn has_writers(&self) -> bool {
        (self.readers as usize) < self.queue.len()
    }

    /// Returns whether a server may keep the hint that a writer waits, and none does. Then
    /// [`Event::Changed`] follows.
    pub(crate) fn has_spare_hint(&self) -> bool {
        self.course.hinted.is_some() && !self.has_writers()
    }

    /// Has a hint withdrawn for which no writer waits any more. While an ask is in flight, that
    /// would be useless: the ask may leave the hint after that.
    fn withdraw_hint(&mut self) {
        if self.has_spare_hint() && !matches!(self.course.phase, Phase::Asks { .. }) {
            self.course.hinted = None;
            self.passes |= self.listed.begin_pass();
            self.listed.begin_wait();
        }
    }
}

impl<H: RawHold, C: Wants, R> Line<H, C, R> {
    /// Registers the grant of a free lock, and takes out the waiter that it is for. If that has
    /// gone, no caller gets the grant, and it is returned.
    pub(crate) fn grant(
        &mut self,
        hold: H,
        waiter: Option<u64>,
        now: Instant,
    ) -> Result<Option<Waiter<C>>, H> {
        self.last_round = LastRound::Answered;
        // A grant past the line asked for no list.
        if waiter.is_some() {
            self.was_granted(now);
        }
        // The script has deleted the hint with the grant of a writer that waited.
        if waiter.is_some() && !hold.shares() && self.course.hinted.take().is_some() {
            self.listed.leave();
        }
        let waiter = match waiter.map(|id| self.leave(id)) {
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

    /// Takes in what the server's yes means: the locker is off the list, and a turn of others has
    /// ended.
    fn was_granted(&mut self, now: Instant) {
        let Some(wake_state) = &mut self.wake_state else {
            return;
        };
        let ended = wake_state.granted();
        self.end_turn(ended, now);
        self.course.was_granted = true;
        // A round that does not mention the list leaves it as it is.
        if self.course.listing {
            self.listed.leave();
        }
    }

    /// Replaces the released hold by the grant of its hand-over, in one step: the key is never free
    /// here in between, whether or not the waiter is still in line. Returns both, if they are still
    /// here.
    pub(crate) fn transfer(
        &mut self,
        from: &H,
        hold: H,
        waiter: u64,
        now: Instant,
    ) -> (Option<H>, Option<Waiter<C>>) {
        self.last_round = LastRound::Answered;
        self.turn.go_on(now);
        self.course.granted();
        let released = self.remove(from);
        self.holds.push(hold);
        (released, self.leave(waiter))
    }

    /// Takes out a hold that was released, or that was lost and whose last guard is gone.
    pub(crate) fn remove(&mut self, hold: &H) -> Option<H> {
        let at = self.holds.iter().position(|one| one.is(hold))?;
        Some(self.holds.swap_remove(at))
    }

    /// Takes the release of a hold for a hand-over at the next step. Returns it if it has to be
    /// sent by itself.
    pub(crate) fn release(&mut self, hold: &H, release: R, now: Instant) -> Option<R> {
        if !self.may_hand_over(hold, now) {
            return Some(release);
        }
        self.passed = Some(release);
        None
    }

    /// Returns whether the lock of this hold goes to the next waiter without becoming free: nothing
    /// else is in flight for the line, and no client elsewhere has to have a turn. Whether the hold
    /// is sound enough for that, its releaser knows.
    fn may_hand_over(&self, hold: &H, now: Instant) -> bool {
        let is_unasked = self.course.is_unasked() && self.passed.is_none();
        let goes_on = || {
            self.queue
                .first()
                .is_some_and(|next| self.turn.may_go_on(next.id, now))
        };
        hold.hands_over() && is_unasked && goes_on() && self.holds.iter().any(|one| one.is(hold))
    }

    /// Returns the head of the line if a lock that was released may be handed over to it, now that
    /// it is sent.
    fn successor(&self, now: Instant) -> Option<u64> {
        let head = self.queue.first()?;
        let is_only = self.holds.iter().filter(|hold| hold.blocks(now)).count() == 1;
        (is_only && self.loss_of(&head.owner, now).is_none()).then_some(head.id)
    }

    /// Returns the loss of the hold that this owner has, if it has a lost one. A lost hold is
    /// removed with its last guard: while it is here, a guard lives.
    fn loss_of(&self, owner: &Owner, now: Instant) -> Option<Loss> {
        self.holds.iter().find_map(|hold| hold.loss_of(owner, now))
    }
}
