//! Gives a lock to the next waiter before the server has answered the hand-over, so that a caller waits for no server
//! while its locker has the lock.
//!
//! The lock is the locker's all the time: on the server it is held under the field of the releaser, or under that of
//! the next holder, and the lease of either outlasts the validity that the releaser had left. That is all that the next
//! holder has until the answer comes. Its fence is the number that the hand-over before this one reserved.
//!
//! The releaser's thread grants it if the driver waits for that release; otherwise the driver does. The driver sends
//! the hand-over in any case, and may have the answer before that thread has gone on.
//!
//! # Invariants
//! - Only a hold that the server has confirmed is handed over like this, so at most one hand-over is without an answer.
//! - The hand-over is sent until it is answered, while the next holder holds the lock, or keeps it for its `min_hold`.
//!   If the lock was gone, the next holder has lost it.
//! - After that, it is not sent again. Without an answer both are undone in order: at once if the next holder has
//!   released the lock; if it has lost it, when its last guard is gone or its validity is over, since any holder keeps
//!   others out until then; but a `force_unlock` lets others in.
//! - Nothing else asks for the field of the next holder before the server has confirmed it, except its release: the
//!   driver sends that behind the first copy, and then finding nothing counts as done.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::attempt::Asked;
use super::handing::ask;
use super::pending::Late;
use super::release::{AGAIN, release};
use super::unconfirmed::Unconfirmed;
use super::{Grip, Session};
use crate::clock::Instant;
use crate::command::HandOver;
use crate::error::Loss;
use crate::fence::{Fence, Source};
use crate::foreign::contained;
use crate::gate::{Admitted, Head};
use crate::hold::{self, Hold};
use crate::node::Outcome;
use crate::quorum::Settled;

/// A release that is passed to the driver.
pub(super) enum Passed {
    Release(Unconfirmed),
    /// The next waiter has the lock already.
    HandedOver(Unanswered),
}

/// A hold for the head of a line, which goes ahead of its hand-over.
pub(super) struct Next<'a> {
    asked: Asked<'a>,
    head: &'a Head,
    hold: Arc<Hold>,
}

impl<'a> Next<'a> {
    /// Makes the hold, if the one that is released leaves it a fence and at least half of a lease.
    pub(super) fn after(session: &'a Arc<Session>, from: &Hold, head: &'a Head) -> Option<Self> {
        let (fence, until) = from.leaves()?;
        let lease = from.lease();
        // What stands on the server is the releaser's lease.
        if head.terms.lease != lease || session.now().until(until) < lease / 2 {
            return None;
        }
        let mut asked = Asked::after(session, &from.claim.key, head);
        let hold = asked.hold_ahead(fence, until);
        Some(Self { asked, head, hold })
    }

    /// Gives the lock to the head of the line, as the driver.
    pub(super) fn grant(self, released: Unconfirmed) -> Unanswered {
        let (session, from) = (self.asked.session, Arc::clone(&released.hold));
        let admitted = session.gate.succeed(&from, &self.hold, self.head.id, session.now());
        let unanswered = self.after_release(released);
        self.deliver(&from, admitted);
        session.engine.answered();
        unanswered
    }

    fn after_release(&self, released: Unconfirmed) -> Unanswered {
        let ahead = Ahead { session: Arc::clone(&released.session), hold: Arc::clone(&self.hold) };
        let doubted = Some(self.asked.session.now() + self.asked.session.settings.command_timeout);
        Unanswered { ahead, released, fences: self.asked.fences, is_repeated: false, doubted }
    }

    /// Passes the hold, which is registered, to its callers.
    fn deliver(self, from: &Hold, admitted: Admitted<Grip>) {
        let session = self.asked.session;
        session.watch_end(&self.hold);
        session.note_owner(&self.hold);
        session.note_released(from);
        session.letter(self.asked.granted_ahead(self.hold), admitted).0();
    }
}

thread_local! {
    /// Whether this thread passes a lock to its next holder, whose waker may be at work.
    static IS_PASSING: Cell<bool> = const { Cell::new(false) };
}

/// Gives the lock to the head of the line on the releaser's thread, if the driver waits for that release, which it then
/// sends. So the next holder waits for no other thread. Returns the release otherwise, and to a waker that releases: a
/// whole line might run on this stack.
pub(super) fn grant_at_once(released: Unconfirmed) -> Option<Unconfirmed> {
    if IS_PASSING.get() {
        return Some(released);
    }
    let (session, from) = (Arc::clone(&released.session), Arc::clone(&released.hold));
    let Some(head) = session.gate.heir(&from, session.now()) else { return Some(released) };
    if session.check_open().is_err() || !session.hands_over(&from) {
        return Some(released);
    }
    // The driver may have the answer before this thread has gone on.
    let _debt = session.engine.owe();
    let Some(next) = Next::after(&session, &from, &head) else { return Some(released) };
    let passed = |released| Passed::HandedOver(next.after_release(released));
    match session.gate.succeed_at_once(&from, &next.hold, head.id, (released, passed), session.now()) {
        Ok(admitted) => {
            IS_PASSING.set(true);
            next.deliver(&from, admitted);
            IS_PASSING.set(false);
            None
        }
        Err(released) => Some(released),
    }
}

/// A hold that is granted ahead. If its task ends before the answer, by a panic or with the engine, it is lost.
struct Ahead {
    session: Arc<Session>,
    hold: Arc<Hold>,
}

impl Drop for Ahead {
    fn drop(&mut self) {
        if self.hold.is_ahead() {
            let loss = if self.session.is_closed() { Loss::Closed } else { Loss::RenewalFailed };
            self.hold.lose(loss);
        }
    }
}

/// A hand-over whose next holder has the lock already. If its task ends early, that holder has lost the lock, and both
/// are undone, in the order of these fields.
pub(super) struct Unanswered {
    ahead: Ahead,
    released: Unconfirmed,
    fences: Source,
    is_repeated: bool,
    /// Until when the hand-over may be without an answer before that counts as a failed renewal.
    doubted: Option<Instant>,
}

impl Unanswered {
    /// Sends the hand-over. If it has no answer, another task sends it again: the driver has to know of outages.
    pub(super) async fn settle(mut self) {
        let session = Arc::clone(&self.ahead.session);
        let (_debt, _late) = (session.engine.owe(), Late::new(&session));
        let (sent, outcome) = self.ask().await;
        if let Some(unanswered) = self.hear(sent, outcome) {
            session.engine.spawn(unanswered.repeat());
        }
    }

    async fn ask(&mut self) -> (Instant, Outcome<HandOver>) {
        let Hold { claim, terms, .. } = &*self.ahead.hold;
        // For the case that the task ends meanwhile.
        let earlier = self.released.may_have_taken(claim.clone(), terms.lease);
        let answer = ask(&mut self.released, claim, terms.lease, self.fences).await;
        self.released.took_nothing_but(earlier);
        answer
    }

    /// Handles an outcome. Returns what is still without an answer.
    fn hear(mut self, sent: Instant, outcome: Outcome<HandOver>) -> Option<Self> {
        let hold = Arc::clone(&self.ahead.hold);
        let Hold { claim, terms, .. } = &*hold;
        let key = &claim.key;
        let failure = match outcome {
            Outcome::Done(HandOver::Granted(fence)) => {
                let reserved = self.fences.reserved(fence);
                self.confirmed(sent, reserved);
                return None;
            }
            Outcome::Done(HandOver::Already) => {
                self.confirmed(sent, None);
                return None;
            }
            Outcome::Done(HandOver::Gone) => {
                self.gone();
                return None;
            }
            Outcome::NotExecuted(failure) => failure,
            Outcome::Unknown(failure) => {
                _ = self.released.may_have_taken(claim.clone(), terms.lease);
                failure
            }
            // The script may have done a part of it.
            Outcome::Refused(error) => {
                _ = self.released.may_have_taken(claim.clone(), terms.lease);
                contained(|| tracing::warn!(key = %key.shown(), %error, "handed over, and the server refuses it"));
                self.doubt();
                self.released.refused(error);
                return Some(self);
            }
        };
        contained(|| tracing::debug!(key = %key.shown(), %failure, "handed over, and not confirmed yet"));
        Some(self)
    }

    /// Notes that the lease could not be renewed, once.
    fn doubt(&mut self) {
        if self.doubted.take().is_some() {
            let (session, hold) = (&self.ahead.session, &self.ahead.hold);
            hold.tick_failed();
            session.counters.renewal_failed();
            contained(|| session.counters.tell_renewal_failed());
        }
    }

    /// Sends the hand-over again, as long as the next holder has the lock. Ends with it; nobody awaits it.
    async fn repeat(mut self) {
        let session = Arc::clone(&self.ahead.session);
        let (_debt, _late) = (session.engine.owe(), Late::new(&session));
        self.is_repeated = true;
        let mut pause = AGAIN;
        while self.goes_on(pause, Self::is_wanted).await {
            let (sent, outcome) = self.ask().await;
            match self.hear(sent, outcome) {
                Some(unanswered) => self = unanswered,
                None => return,
            }
            pause = (pause * 2).min(session.settings.command_timeout / 2);
        }
        let left = Instant::now().until(self.ahead.hold.leased_until());
        self.goes_on(left, Self::keeps_others_out).await;
        // What it may have taken is undone behind it.
        release(self.released).await;
    }

    /// Returns whether the server has to have the next holder: it has the lock, or keeps it for its `min_hold`.
    fn is_wanted(&self) -> bool {
        let hold = &self.ahead.hold;
        hold.is_held() || hold.guards() == 0 && hold::rest(hold.kept_until(), Instant::now()).is_some()
    }

    /// Returns whether a holder that has lost the lock may not have stopped yet.
    fn keeps_others_out(&self) -> bool {
        let hold = &self.ahead.hold;
        let loss = hold.mark(Instant::now()).loss();
        hold.guards() > 0 && !matches!(loss, None | Some(Loss::Released | Loss::ForceUnlocked | Loss::NotOwner))
    }

    /// Waits for a while, or until this no longer is the case. The releaser is told when its time is over. Returns
    /// whether it is still the case.
    async fn goes_on(&mut self, time: Duration, is_so: fn(&Self) -> bool) -> bool {
        let over = Instant::now() + time;
        loop {
            let now = Instant::now();
            if self.doubted.is_some_and(|doubted| now >= doubted) && self.ahead.hold.is_held() {
                self.doubt();
            }
            if self.released.is_awaited() && now >= self.released.deadline {
                let nodes = self.released.silence();
                self.released.overdue(nodes);
            }
            if now >= over || !is_so(self) {
                return is_so(self);
            }
            let told = if self.released.is_awaited() { self.released.deadline } else { over };
            sleep(now.until(over.min(told).min(now + AGAIN))).await;
        }
    }

    /// The server has the next holder.
    fn confirmed(self, sent: Instant, reserved: Option<Fence>) {
        let (session, hold, now) = (&self.ahead.session, &self.ahead.hold, Instant::now());
        session.outage.answered();
        if self.is_repeated && hold.guards() == 0 {
            // Its release may have been sent before this copy.
            session.undo_hold(hold);
        } else {
            match hold.confirm(sent, now, reserved) {
                Ok(guards) => {
                    if !session.watchdog.watch(hold, now) {
                        hold.lose(Loss::RenewalFailed);
                    }
                    if guards > 1 {
                        session.count_behind(hold, guards);
                    }
                }
                // Its release is sent behind the hand-over. So is that of a lost hold, if its guard still lives; but a
                // force_unlock may have come before the hand-over, and found nothing.
                Err(Loss::Released) => {}
                Err(loss) if loss != Loss::ForceUnlocked && hold.guards() > 0 => {}
                Err(_) => session.undo_hold(hold),
            }
        }
        self.released.succeeded();
    }

    /// The server has neither. After an earlier copy that may have been executed, the releaser had the lock until then.
    fn gone(self) {
        let was_executed = self.released.may_have_been_executed() && Instant::now() < self.released.hold.valid_until();
        self.ahead.session.outage.answered();
        self.ahead.hold.refute();
        self.released.end(if was_executed { Settled::Done } else { Settled::Gone });
    }
}

#[cfg(test)]
#[cfg(feature = "testing")]
mod tests {
    use futures_util::poll;
    use tokio::sync::oneshot;

    use super::super::hand_over::hand_over;
    use super::*;
    use crate::gate::{Next as Step, Waiter};
    use crate::hold::Terms;
    use crate::identity::Caller;
    use crate::key::Key;
    use crate::locker::Locker;
    use crate::options::Reentry;
    use crate::owner::Owner;
    use crate::testing::Server;

    const MS: Duration = Duration::from_millis(1);

    /// Returns the grip of a caller who has the lock "k" ahead. The test takes the place of the line's driver.
    async fn granted_ahead() -> (Server, Locker, Key, Grip) {
        let (server, key, caller) =
            (Server::new(), Key::from("k"), || Caller::blocking(Some(&Owner::new()), Reentry::Task));
        let locks = Locker::builder().memory(&server).connect().await.expect("connects");
        let session = locks.session();
        server.delay(MS..=MS);
        let terms = Terms { lease: session.settings.lease, renewed: true, max_hold: None };
        let first = session.wait_in_line(&key, &caller(), &terms, None).await.expect("granted").expect("granted");
        tokio::time::sleep(5 * MS).await;
        first.hold().reserve(Some(Fence::new(u64::MAX / 2)));
        let ((reply, mut answer), Caller { owner, origin, .. }) = (oneshot::channel(), caller());
        let (now, id) = (session.now(), session.gate.next_id());
        session.gate.arrive(&key, Waiter { id, owner, origin, terms, since: now, reply }, now);
        assert!(matches!(session.gate.next(&key, now), Step::Blocked));
        drop(first);
        let next = answer.try_recv().expect("at once").expect("granted").expect("granted");
        (server, locks, key, next)
    }

    /// The next holder's own release finds nothing, since the hand-over is sent after it.
    #[tokio::test(start_paused = true)]
    async fn a_driver_that_ends_while_it_hands_over_leaves_nothing_behind() {
        let (server, locks, key, next) = granted_ahead().await;
        let session = locks.session();
        assert!(next.hold().lose(Loss::MaxHold));
        drop(next);
        tokio::time::sleep(10 * MS).await;
        assert_eq!((session.stats().pending_undos, session.stats().undone), (0, 1), "before it is there");
        let Step::Release(passed, _) = session.gate.next(&key, session.now()) else { panic!("passed") };
        let mut handing = Box::pin(hand_over(passed, None));
        assert!(poll!(&mut handing).is_pending());
        tokio::time::sleep(10 * MS).await;
        assert!(server.holder("k").is_some(), "it is executed");
        drop(handing);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(server.holder("k"), None);
    }

    /// The force_unlock asks who has the lock before the hand-over, and deletes that one's lock after it.
    #[tokio::test(start_paused = true)]
    async fn a_force_unlock_frees_a_lock_that_is_handed_over_meanwhile() {
        let (server, locks, key, next) = granted_ahead().await;
        let session = locks.session();
        assert!(next.hold().take_guard());
        server.delay(10 * MS..=10 * MS);
        let (forced, name) = (locks.clone(), key.clone());
        let forcing = tokio::spawn(async move { forced.get(name.as_str()).force_unlock().await });
        tokio::time::sleep(2 * MS).await;
        let Step::Release(passed, _) = session.gate.next(&key, session.now()) else { panic!("passed") };
        hand_over(passed, None).await;
        assert!(forcing.await.expect("no panic").expect("answered"));
        tokio::time::sleep(Duration::from_secs(1)).await;
        let loss = next.hold().mark(session.now()).loss();
        assert_eq!((loss, server.holder("k")), (Some(Loss::ForceUnlocked), None), "its guard lives");
    }
}
