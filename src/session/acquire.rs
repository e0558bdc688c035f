//! Getting in: standing in line, re-entry, one attempt, and what is done with a grant.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::driver::drive;
use super::forces::Moment;
use super::outage::Verdict;
use super::{Grip, Session};
use crate::clock::{self, Instant};
use crate::command::Claim;
use crate::engine::Debt;
use crate::error::{Error, Loss, NodeFailure};
use crate::fence::{self, Fence};
use crate::foreign::{self, contained};
use crate::gate::{Arrival, Waiter};
use crate::hold::{Grant, Hold, HoldState, Terms};
use crate::identity::{Caller, Origin};
use crate::key::Key;
use crate::lease;
use crate::owner::Owner;
use crate::quorum::{Acquired, Order};

/// What became of one acquire. What it may have left behind is being undone, unless it is granted.
#[derive(Debug)]
pub(super) enum Attempt {
    /// A grant a lock.
    Granted(Vec<Granted>),
    Held {
        /// When a majority may be free, if its leases tell.
        ttl: Option<Duration>,
        /// Whether some nodes said yes all the same: several want it at once.
        contested: bool,
    },
    /// Several want it at once, and nobody has got it.
    Split,
    /// Another was faster at the node that was asked first.
    Outrun,
    Refused(Error),
    Unavailable(Vec<NodeFailure>),
}

/// A grant that is not registered yet.
#[derive(Debug)]
pub(super) struct Granted {
    hold: Arc<Hold>,
    /// Before it was asked for.
    began: Moment,
    /// It is given back if its caller is gone: `main` waits for that.
    _debt: Debt,
}

/// A caller's place in a line. Dropping it leaves the line.
struct Place<'a> {
    session: &'a Session,
    key: &'a Key,
    id: u64,
    deadline: Option<Instant>,
    /// Whoever answers has taken the waiter out before.
    answered: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.answered && self.session.is_forked() {
            return;
        }
        if let Some(deadline) = self.deadline {
            self.session.deadlines.remove(deadline, self.id, self.session.now());
        }
        if !self.answered {
            // The waiter is dropped here, after the shard is released, and its waker with it: perhaps while its task
            // unwinds. A grant that is under way finds it gone.
            contained(|| _ = self.session.gate.leave(self.key, self.id));
        }
    }
}

/// An acquire whose answers nobody has dealt with yet. If its task ends before that, what it may have taken is undone.
struct Asked<'a> {
    session: &'a Arc<Session>,
    claims: &'a [Claim],
    lease: Duration,
    settled: bool,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.settled && !self.session.is_closed() {
            let everywhere = || self.session.quorum.everywhere();
            let undo = |claim: &Claim| self.session.undo(claim, self.lease, None, everywhere());
            contained(|| self.claims.iter().for_each(undo));
        }
    }
}

impl Session {
    /// Stands in line until the lock is granted, or until the time is over, where one is given: then `None`.
    pub(crate) async fn lock(
        self: &Arc<Self>,
        key: &Key,
        caller: &Caller,
        terms: Terms,
        wait: Option<Duration>,
    ) -> Result<Option<Grip>, Error> {
        self.enter()?;
        let called = self.now();
        let deadline = wait.map(|wait| called + wait);
        loop {
            self.check_open()?;
            let now = self.now();
            let id = self.gate.next_id();
            let (reply, answer) = foreign::channel();
            let (owner, origin) = (caller.owner.clone(), caller.origin);
            let waiter = Waiter { id, owner, origin, terms, since: now, reply };
            let start = match self.gate.arrive(key, waiter, now) {
                Arrival::Reentered(hold, count) => return self.reentered(hold, origin, count).await.map(Some),
                Arrival::Lost(loss) => return Err(Error::Lost(loss)),
                Arrival::Queued(start) => start,
            };
            let mut place = Place { session: self, key, id, deadline, answered: false };
            let _warning = self.warn_of_itself(key, caller);
            if let Some(wake) = start {
                let span = foreign::span(
                    || tracing::debug_span!(parent: None, "lockhound", operation = "drive", key = %key.shown()),
                );
                self.engine.ask(foreign::in_span(span, drive(Arc::clone(self), key.clone(), wake)));
            }
            if let Some(deadline) = deadline {
                self.deadlines.put(deadline, id, key);
            }
            // Closing sets the flag and then empties the lines: who stood in line after that sees the flag.
            self.check_open()?;
            let answer = answer.await.unwrap_or(Err(Error::Closed));
            place.answered = true;
            drop(place);
            let Some(grip) = answer? else { return Ok(None) };
            // What was taken back because this caller was not polled, or lost before it was, it never had: it stands in
            // line again.
            if let Some(grip) = self.take(grip)? {
                self.counters.granted_after(self.now().since(called));
                return Ok(Some(grip));
            }
            if deadline.is_some_and(|deadline| self.now() >= deadline) {
                return self.try_lock(key, caller, terms).await;
            }
        }
    }

    /// Makes one attempt, past the line.
    pub(crate) async fn try_lock(
        self: &Arc<Self>,
        key: &Key,
        caller: &Caller,
        terms: Terms,
    ) -> Result<Option<Grip>, Error> {
        let grips = self.try_all(std::slice::from_ref(key), caller, terms).await?;
        Ok(grips.and_then(|mut grips| grips.pop()))
    }

    /// A caller takes what was granted. `None` if it was taken back or lost before.
    pub(super) fn take(&self, mut grip: Grip) -> Result<Option<Grip>, Error> {
        if !grip.claim() {
            return self.check_open().map(|()| None);
        }
        match grip.view().look() {
            HoldState::Lost(Loss::Closed) => Err(Error::Closed),
            HoldState::Lost(_) => self.check_open().map(|()| None),
            HoldState::Safe | HoldState::Jeopardy => Ok(Some(grip)),
        }
    }

    /// A hold that was entered again: it counts already, now the count is written.
    async fn reentered(self: &Arc<Self>, hold: Arc<Hold>, origin: Origin, count: u32) -> Result<Grip, Error> {
        let grip = Grip::taken(Arc::clone(self), Arc::clone(&hold), origin);
        self.note_reentry(&hold);
        self.write_count(&hold, count).await?;
        Ok(grip)
    }

    /// Ends a waiter's wait, whose time is over.
    pub(super) fn end_wait(&self, key: &Key, id: u64) {
        let held = self.gate.is_known_held(key, self.now());
        if let Some(waiter) = self.gate.leave(key, id) {
            let answer = if held { Ok(None) } else { Err(self.unanswered(waiter.since)) };
            foreign::answer(waiter.reply, answer);
        }
    }

    /// The error of a waiter that since then has had no answer.
    pub(super) fn unanswered(&self, since: Instant) -> Error {
        let now = self.now();
        if let Some(Verdict { nodes, lasts }) = self.outage.failure_since(since, now) {
            return self.quorum.unavailable(nodes, lasts);
        }
        let waited = now.since(since);
        let nodes = self.quorum.failures(format!("has not answered within {waited:.1?}"));
        self.quorum.unavailable(nodes, waited.max(self.outage.known_before(since, now)))
    }

    /// Sends one acquire for all of these locks or none, each with a generation of its own. This runs in a task of the
    /// engine, to its end: whatever the acquire may have taken is known here and nowhere else.
    pub(super) async fn attempt(
        self: &Arc<Self>,
        keys: &[Key],
        owner: &Owner,
        origin: Origin,
        terms: Terms,
        order: Order,
    ) -> Attempt {
        // What begins before the session is closed is waited for by it: what is sent is sent before the connections quit.
        if let Err(error) = self.check_open() {
            return Attempt::Refused(error);
        }
        // Its caller may be gone, and `main` about to end, before it is known what there is to be undone.
        let _debt = self.engine.owe();
        let began = self.forces.now();
        let first = self.generations.fetch_add(keys.len() as u64, Ordering::Relaxed);
        let claim =
            |(key, generation): (&Key, u64)| Claim { key: key.clone(), field: owner.field(self.id, generation).into() };
        let claims: Arc<[Claim]> = keys.iter().zip(first..).map(claim).collect();
        let sent = Instant::now();
        let wall = fence::clock(clock::wall_micros(), self.quorum.nodes().len());
        let mut asked = Asked { session: self, claims: &claims, lease: terms.lease, settled: false };
        let round = self.quorum.acquire(&claims, terms.lease, wall, order).await;
        let attempt = match round.acquired {
            Acquired::Granted { fences, votes } => {
                let (since, granted, nodes) = (sent, Instant::now(), self.quorum.nodes().len());
                let hold = |((claim, generation), fence): ((&Claim, u64), Fence)| {
                    let (key, owner, field) = (claim.key.clone(), owner.clone(), Arc::clone(&claim.field));
                    let votes = &votes;
                    let grant =
                        Grant { key, owner, origin, field, generation, fence, terms, since, granted, votes, nodes };
                    Arc::new(Hold::new(grant, Arc::clone(&self.ledger)))
                };
                let holds: Vec<_> = claims.iter().zip(first..).zip(fences).map(hold).collect();
                if holds.iter().all(|hold| granted + lease::ARM_EARLY < hold.valid_until()) {
                    self.outage.answered();
                    for hold in &holds {
                        self.counters.acquired();
                        let (generation, fence) = (hold.generation, hold.fence.get());
                        contained(|| tracing::debug!(key = %hold.key.shown(), %owner, generation, fence, "acquired"));
                    }
                    self.keep_late(&holds, sent, round.late, &round.doubtful);
                    asked.settled = true;
                    return Attempt::Granted(
                        holds.into_iter().map(|hold| Granted { hold, began, _debt: self.engine.owe() }).collect(),
                    );
                }
                let took = Instant::now().since(sent);
                Attempt::Unavailable(self.quorum.failures(format!("granted after {took:?}, when the lease was over")))
            }
            Acquired::Held(ttl) => Attempt::Held { ttl, contested: !round.taken.is_empty() },
            Acquired::Split => Attempt::Split,
            Acquired::Outrun => Attempt::Outrun,
            Acquired::Refused(error) => Attempt::Refused(error),
            Acquired::Unavailable(nodes) => Attempt::Unavailable(nodes),
        };
        self.undo_attempt(&claims, terms.lease, round.late, &round.taken, &round.doubtful);
        asked.settled = true;
        match &attempt {
            Attempt::Unavailable(nodes) => self.outage.failed(sent, nodes.clone()),
            // One node is no majority.
            Attempt::Outrun => {}
            _ => self.outage.answered(),
        }
        attempt
    }

    /// Registers a grant for a caller that does not stand in line.
    pub(super) fn register(self: &Arc<Self>, granted: &Granted) -> Grip {
        let (_, same_owner) = self.admit(granted, None);
        let grip = Grip::granted(Arc::clone(self), Arc::clone(&granted.hold), granted.hold.origin);
        self.serve(&granted.hold, same_owner);
        self.settle(granted);
        grip
    }

    /// Registers a grant for a waiter, and gives it to it; if it is gone, the grant is given back.
    pub(super) fn deliver(self: &Arc<Self>, granted: &Granted, waiter: u64) {
        let hold = &granted.hold;
        let (found, same_owner) = self.admit(granted, Some(waiter));
        let Some(waiter) = found else {
            // It is not held from here on: a late yes is undone too.
            hold.revoke();
            self.undo_hold(hold);
            return;
        };
        let grip = Grip::granted(Arc::clone(self), Arc::clone(hold), hold.origin);
        self.serve(hold, same_owner);
        self.settle(granted);
        self.engine.answered();
        // A caller that is gone drops the grip, and that releases.
        foreign::answer(waiter.reply, Ok(Some(grip)));
    }

    fn admit(self: &Arc<Self>, granted: &Granted, waiter: Option<u64>) -> (Option<Waiter<Grip>>, Vec<Waiter<Grip>>) {
        let hold = &granted.hold;
        // The grant proves that whoever was granted this key before does not hold it any more.
        for other in self.gate.holds_of(&hold.key).iter().filter(|other| other.generation < hold.generation) {
            other.lose(Loss::NotOwner);
        }
        let owner = hold.owner();
        owner.note(&hold.key, |key| self.gate.has_hold(key, |other| other.is_owned_by(&owner)));
        self.gate.admit(hold, waiter, Instant::now())
    }

    /// A grant is registered and its grips are made: watchdog and alarm look after it, and what happened meanwhile is told.
    fn settle(self: &Arc<Self>, granted: &Granted) {
        let (hold, now) = (&granted.hold, Instant::now());
        self.alarm.watch(hold, now);
        if !self.watchdog.watch(hold, now) {
            hold.lose(Loss::RenewalFailed);
        }
        if self.is_closed() {
            hold.lose(Loss::Closed);
        }
        // An answer that was overtaken by that to a later attempt: the later grant proves that this one is gone.
        if self.gate.holds_of(&hold.key).iter().any(|other| other.generation > hold.generation && other.is_held()) {
            hold.lose(Loss::NotOwner);
        }
        // A force_unlock that began after the registration has found the hold; one that began before it is found here.
        if self.forces.deposes(&hold.key, granted.began) {
            hold.lose(Loss::ForceUnlocked);
        }
    }

    /// Gives the waiters of the same owner their guards: they have entered with the grant.
    fn serve(self: &Arc<Self>, hold: &Arc<Hold>, waiters: Vec<Waiter<Grip>>) {
        if waiters.is_empty() {
            return;
        }
        let (session, counted, count) = (Arc::clone(self), Arc::clone(hold), hold.guards());
        self.engine.spawn(async move {
            if let Err(error) = session.write_count(&counted, count).await {
                contained(
                    || tracing::debug!(key = %counted.key.shown(), %error, "the hold count could not be written"),
                );
            }
        });
        for waiter in waiters {
            self.note_reentry(hold);
            let grip = Grip::granted(Arc::clone(self), Arc::clone(hold), waiter.origin);
            foreign::answer(waiter.reply, Ok(Some(grip)));
        }
    }
}
