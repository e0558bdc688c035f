//! Makes one attempt to acquire, and registers the grant.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::labels;
use super::reentries;
use super::release;
use super::{RawGuard, Session};
use crate::claim::{Among, Claim, How};
use crate::clock::{self, Instant};
use crate::engine::{InFlight, Work};
use crate::error::{Error, Loss};
use crate::fence::{Fence, Source};
use crate::foreign::{self, log};
use crate::hold::{Grant, Hold, Want};
use crate::identity::Origin;
use crate::key::Key;
use crate::kind::LockRole;
use crate::lease;
use crate::lines::{Admitted, CallWaiter, LineAnswer};
use crate::op::Served;
use crate::owner::Owner;
use crate::quorum::{self, Acquired, Majority, Order};
use crate::standing::Unsettled;

/// A claim, the request that it is for, its generation and its fence.
type Asked<'a> = (((&'a Claim, &'a AcquireRequest<'a>), u64), &'a Fence);

/// The outcome of one acquire, with a grant for each lock. If it is not granted, what it may have
/// left behind is being undone.
pub(super) type Attempt = Acquired<Vec<Granted>>;

/// A grant that is not registered yet.
#[derive(Debug)]
pub(super) struct Granted {
    pub(super) hold: Arc<Hold>,
    /// It is given back if its caller is gone, and `main` waits for that.
    in_flight: InFlight,
}

/// Who wants what: a lock, or permits.
#[derive(Debug, Clone)]
pub(super) struct AcquireRequest<'a> {
    pub(super) key: &'a Key,
    pub(super) owner: &'a Owner,
    pub(super) origin: Origin,
    pub(super) permits: u32,
}

/// An acquire whose answers have not been dealt with yet.
pub(super) struct PendingAcquire<'a> {
    session: &'a Arc<Session>,
    requests: &'a [AcquireRequest<'a>],
    pub(super) want: Want,
    /// Each has a generation of its own, from `first` on.
    pub(super) claims: Arc<[Claim]>,
    first: u64,
    pub(super) fences: Source,
    sent: Instant,
    /// How long a caller may take to claim its grant.
    patience: Duration,
    /// Whether other readers may come in beside it.
    opens: bool,
}

impl<'a> PendingAcquire<'a> {
    /// Makes an acquire for these requests, each with a generation of its own. Its time of sending
    /// is now.
    pub(super) fn new(
        session: &'a Arc<Session>,
        requests: &'a [AcquireRequest<'a>],
        want: Want,
        patience: Duration,
    ) -> Self {
        // Invariant 2: a retry is another acquire, with generations of its own.
        let first = session
            .generations
            .fetch_add(requests.len() as u64, Ordering::Relaxed);
        let kind = want.kind;
        let claim = |(request, generation): (&AcquireRequest<'_>, u64)| Claim {
            kind,
            key: request.key.clone(),
            field: request
                .owner
                .field(session.id, generation, kind.suffix())
                .into(),
            permits: request.permits,
        };
        let claims: Arc<[Claim]> = requests.iter().zip(first..).map(claim).collect();
        // Invariant 3: nothing has been sent yet.
        let sent = session.now();
        let fences = Source::new(
            session.settings.fence_source,
            clock::wall_micros(),
            session.quorum.nodes().len(),
        );
        Self {
            session,
            requests,
            want,
            claims,
            first,
            fences,
            sent,
            patience,
            opens: false,
        }
    }

    /// The same, and other readers may come in beside it if it asks for such a read: not for one
    /// inside a write hold, nor for one that ends by itself.
    fn open(self, how: &How) -> Self {
        let terms = self.want.terms;
        let is_apart = matches!(how, How::Among(Among { under: None, .. }));
        let opens =
            is_apart && self.want.kind.shares() && terms.renewed && terms.max_hold.is_none();
        Self { opens, ..self }
    }

    /// Returns what it may take.
    pub(super) fn unsettled(&self) -> Unsettled {
        Unsettled::new(&self.session.book, &self.claims, self.want.terms.lease)
    }

    /// Makes the holds of a majority's yes, unless the lease was over when it came.
    pub(super) fn holds(&self, majority: &Majority) -> Acquired<Vec<Arc<Hold>>> {
        let session = self.session;
        let granted = Instant::now();
        let hold = |(((claim, request), generation), fence): Asked<'_>| {
            let grant = Grant {
                claim: claim.clone(),
                owner: request.owner.clone(),
                origin: request.origin,
                generation,
                fence: *fence,
                terms: self.want.terms,
                since: self.sent,
                granted,
                patience: self.patience,
                votes: &majority.votes,
                nodes: session.quorum.nodes().len(),
                opens: self.opens,
            };
            Arc::new(Hold::new(grant, Arc::clone(&session.reporter)))
        };
        let holds: Vec<_> = self
            .claims
            .iter()
            .zip(self.requests)
            .zip(self.first..)
            .zip(&majority.fences)
            .map(hold)
            .collect();
        // The alarm would end such a hold at once.
        if holds
            .iter()
            .all(|hold| granted + lease::ARM_EARLY < hold.valid_until())
        {
            return Acquired::Granted(holds);
        }
        let took = granted.since(self.sent);
        let reason = format!("granted after {took:?}, when the lease was over");
        Acquired::Unavailable(session.quorum.failures(reason))
    }
}

impl Granted {
    /// Logs a hold that was granted.
    pub(super) fn new(session: &Session, hold: Arc<Hold>) -> Self {
        let owner = hold.owner();
        let generation = hold.generation;
        let fence = hold.fence.get();
        log!(debug, key = %hold.claim.key.shown(), %owner, generation, fence, "acquired");
        Self {
            hold,
            in_flight: session.engine.track(Work::Part),
        }
    }
}

/// Sends one acquire for all of these requests or none, as [`attempt_in_order`] does.
pub(super) async fn attempt(
    session: &Arc<Session>,
    requests: &[AcquireRequest<'_>],
    want: Want,
    order: Order,
    how: How,
) -> Attempt {
    attempt_in_order(session, requests, want, order, how)
        .await
        .0
}

/// Sends one acquire for these requests, each with a generation of its own: for all or none, or of
/// permits for the first of them. This runs in a task of the engine, to its end: only this task
/// knows what the acquire may have taken.
pub(super) async fn attempt_in_order(
    session: &Arc<Session>,
    requests: &[AcquireRequest<'_>],
    want: Want,
    order: Order,
    how: How,
) -> (Attempt, Option<Served>) {
    // Closing waits for what began before it, so this is sent before the connections quit.
    if let Err(error) = session.check_open() {
        return (Attempt::Refused(error), None);
    }
    // Its caller may be gone, and `main` about to end, before it is known what has to be undone.
    let _in_flight = session.engine.track(Work::Part);
    let new = || {
        PendingAcquire::new(
            session,
            requests,
            want,
            lease::recheck_interval(want.terms.lease),
        )
        .open(&how)
    };
    let mut pending = new();
    // Invariant 1: this undoes everything, should the task end early.
    let mut unsettled = pending.unsettled();
    let with = |fences| quorum::AcquireTerms {
        lease: want.terms.lease,
        fences,
        how: how.clone(),
    };
    let mut round = session
        .quorum
        .acquire(&pending.claims, with(pending.fences), order)
        .await;
    // A server has a new memory. It is vetted again, but has no vote in the round that found that.
    if round.is_outdated() {
        // The second acquire would find the first one's field there, so it waits for the undo.
        unsettled.give_back(&round.taken).await;
        unsettled.undo(&[], &round.uncertain, round.late);
        pending = new();
        unsettled = pending.unsettled();
        round = session
            .quorum
            .acquire(&pending.claims, with(pending.fences), Order::AllAtOnce)
            .await;
    }
    let sent = pending.sent;
    let acquired = round.acquired.and_then(|majority| pending.holds(&majority));
    match &acquired {
        Acquired::Granted(holds) => {
            // The label is sent before the caller has its guard, and so before the first release.
            labels::need_label(session);
            unsettled.keep(holds, sent, &round.uncertain, round.late);
        }
        _ => unsettled.undo(&round.taken, &round.uncertain, round.late),
    }
    match &acquired {
        Acquired::Unavailable(nodes) => session.outage.failed(sent, nodes.clone()),
        // One node is no majority.
        Acquired::Outrun => {}
        _ => session.outage.answered(),
    }
    let granted = |hold| Granted::new(session, hold);
    let granted =
        acquired.and_then(|holds| Acquired::Granted(holds.into_iter().map(granted).collect()));
    (granted, round.served)
}

/// Grants a read under the field of this hold of another reader, without asking the server, and
/// registers it. Returns `None` if that one is not open any more, or if the caller has to come
/// again.
pub(super) fn join(
    session: &Arc<Session>,
    beside: &Hold,
    owner: &Owner,
    origin: Origin,
) -> Option<RawGuard> {
    let generation = session.generations.fetch_add(1, Ordering::Relaxed);
    let lines = &session.lines;
    let (hold, admitted) = lines.join(beside, owner, origin, generation, session.now())?;
    let granted = joined(session, hold);
    Some(enter(session, &granted, admitted.same_owner))
}

/// Takes in that a reader has come in beside another.
fn joined(session: &Session, hold: Arc<Hold>) -> Granted {
    watch_end(session, &hold);
    note(session, &hold);
    Granted::new(session, hold)
}

/// Registers a grant for a caller that is not in the line.
pub(super) fn register(session: &Arc<Session>, granted: &Granted) -> RawGuard {
    let Admitted { same_owner, .. } = admit(session, granted, None);
    watch_end(session, &granted.hold);
    enter(session, granted, same_owner)
}

/// Makes the guard of a registered grant.
fn enter(
    session: &Arc<Session>,
    granted: &Granted,
    same_owner: Vec<CallWaiter<RawGuard>>,
) -> RawGuard {
    // Invariant 1: if anything below panics, the drop of the guard gives the lock back.
    let guard = RawGuard::granted(
        Arc::clone(session),
        Arc::clone(&granted.hold),
        granted.hold.origin,
    );
    serve(session, &granted.hold, same_owner, true);
    settle(session, granted);
    guard
}

/// Registers a grant and passes it to its waiter. If the waiter is gone, the grant is given back.
pub(super) fn deliver(session: &Arc<Session>, granted: Granted, waiter: u64) {
    let hold = &granted.hold;
    let admitted = admit(session, &granted, Some(waiter));
    watch_end(session, hold);
    if admitted.waiter.is_none() {
        // It is not held from here on, so a late yes is undone too.
        hold.revoke();
        if hold.leave_field() {
            session.book.undo_hold(hold);
        }
        return;
    }
    give(session, granted, admitted);
}

/// Lets the readers at the front of the line come in beside the one that has just got this grant.
pub(super) fn let_readers_in(session: &Arc<Session>, beside: &Hold) {
    let next = || session.generations.fetch_add(1, Ordering::Relaxed);
    while let Some((hold, admitted)) = session.lines.join_first(beside, next(), session.now()) {
        give(session, joined(session, hold), admitted);
    }
}

/// Registers a grant in place of the hold that was released for it, and passes it to the waiter.
pub(super) fn deliver_after(
    session: &Arc<Session>,
    from: &Arc<Hold>,
    granted: Granted,
    waiter: u64,
) {
    depose_others(session, &granted.hold);
    let admitted = session
        .lines
        .transfer(from, &granted.hold, waiter, session.now());
    watch_end(session, &granted.hold);
    give(session, granted, admitted);
}

/// Passes a registered grant to its callers.
fn give(session: &Arc<Session>, granted: Granted, admitted: Admitted<RawGuard>) {
    let (hold, Admitted { waiter, same_owner }) = (&granted.hold, admitted);
    let guard = RawGuard::granted(Arc::clone(session), Arc::clone(hold), hold.origin);
    serve(session, hold, same_owner, waiter.is_some());
    settle(session, &granted);
    session.engine.answered();
    let Granted { in_flight, .. } = granted;
    session.engine.queue_reply(move || {
        // A caller that is gone drops the guard, and that releases.
        match waiter {
            Some(waiter) => foreign::answer(waiter.call.reply, Ok(LineAnswer::Granted(guard))),
            None => drop(guard),
        }
        drop(in_flight);
    });
}

fn admit(session: &Arc<Session>, granted: &Granted, waiter: Option<u64>) -> Admitted<RawGuard> {
    depose_others(session, &granted.hold);
    let admitted = session.lines.admit(&granted.hold, waiter, Instant::now());
    // A reader may have come in meanwhile beside one that this write has just made lost.
    let kind = granted.hold.claim.kind;
    if !kind.hands_over() && !kind.shares() {
        depose_others(session, &granted.hold);
    }
    admitted
}

/// Makes older holds of the key lost, before a grant is registered.
fn depose_others(session: &Session, hold: &Hold) {
    // It excludes none, and there may be many.
    if hold.claim.kind.role == LockRole::Permit {
        return;
    }
    // The grant proves that earlier holders of this key that it excludes no longer hold it.
    let key = &hold.claim.key;
    for other in session
        .lines
        .holds_of(key)
        .iter()
        .filter(|other| other.acquired_by() < hold.acquired_by() && hold.excludes(other))
    {
        other.lose(Loss::NotOwner);
    }
    note(session, hold);
}

/// Notes the key of a grant for the run that is its owner, if one is.
fn note(session: &Session, hold: &Hold) {
    let key = &hold.claim.key;
    let owner = hold.owner();
    owner.note(key, |key| {
        session
            .lines
            .has_hold(key, |other| other.is_owned_by(&owner))
    });
}

/// Has the alarm look after a grant that is registered just now. Nothing foreign may run before
/// this: callers of its owner may have entered already.
fn watch_end(session: &Session, hold: &Arc<Hold>) {
    session.alarm.watch(hold, session.now());
}

/// Has the watchdog look after a grant that is registered and whose guards are made, and makes it
/// lost if something happened in the meantime.
fn settle(session: &Arc<Session>, granted: &Granted) {
    let hold = &granted.hold;
    if !session.watchdog.watch(hold, session.now()) {
        hold.lose(Loss::RenewalFailed);
    }
    // Closing, and a watchdog that fails, end the holds that they find in the table. This one may
    // have come into it after that.
    match session.check_open() {
        Ok(()) => {}
        Err(Error::Closed) => _ = hold.lose(Loss::Closed),
        Err(_) => _ = hold.lose(Loss::RenewalFailed),
    }
    if hold.claim.kind.role == LockRole::Permit {
        return;
    }
    // The answer to a later attempt may have come first: the later grant proves that this one is
    // gone.
    if session.lines.has_hold(&hold.claim.key, |other| {
        other.acquired_by() > hold.acquired_by() && other.is_held() && hold.excludes(other)
    }) {
        hold.lose(Loss::NotOwner);
    }
}

/// Passes the guards to waiters of the same owner, which have entered with the grant: `beside` the
/// call that it is for or, if that is gone, the first of them in its place.
fn serve(
    session: &Arc<Session>,
    hold: &Arc<Hold>,
    waiters: Vec<CallWaiter<RawGuard>>,
    mut beside: bool,
) {
    if waiters.is_empty() {
        return;
    }
    // One write for all of them: they are counted already.
    release::count_behind(session, hold, hold.guards());
    for waiter in waiters {
        let (session, hold, origin) = (Arc::clone(session), Arc::clone(hold), waiter.call.origin);
        let guard = if beside {
            reentries::note_reentry(&hold);
            RawGuard::granted_beside(session, hold, origin)
        } else {
            RawGuard::granted(session, hold, origin)
        };
        beside = true;
        foreign::answer(waiter.call.reply, Ok(LineAnswer::Granted(guard)));
    }
}
