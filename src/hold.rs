//! One hold: an outermost acquisition with the guards of its re-entries. Plain data behind one
//! mutex.
//!
//! # Invariants
//! - The phase goes from `Held` to `Releasing` or `Lost`, and never back: `Lost` is sticky.
//! - Callers pass the time, and the first call after the end of validity makes the hold `Lost`.
//! - A loss is counted in the step that makes the hold `Lost`; then its tokens are cancelled; then
//!   the engine judges it.
//! - Tokens are cancelled after the mutex is released, since their wakers run foreign code. Methods
//!   that are called under the lock of a shard of lines only mark a loss; the lines call
//!   [`Hold::fire`] after it has released that lock.
//! - `guards` counts the guards that exist or are on their way; only the step to zero sends the
//!   release.
//! - Guards on their way were granted with the hold itself, so all of them have one deadline,
//!   counted from the grant.

mod entries;
mod grant;
mod joint;
mod lengthening;
mod listeners;
mod losses;
mod min_hold;
mod share;
mod tokens;
mod votes;
mod whose;

use std::num::NonZeroU32;
use std::time::Duration;

pub(crate) use self::entries::Entrance;
use self::entries::Entries;
pub(crate) use self::grant::{Claims, EnterError, Grant, Leave, Survey, Terms, Want};
pub(crate) use self::joint::Joint;
use self::listeners::Listeners;
pub(crate) use self::losses::{Alarmed, LossReporter, Lost};
pub(crate) use self::min_hold::rest;
use self::share::Share;
pub(crate) use self::tokens::fired;
use self::votes::Votes;
use crate::claim::Claim;
use crate::clock::Instant;
use crate::error::{Error, Loss};
use crate::fence::Fence;
use crate::identity::Origin;
#[cfg(test)]
use crate::identity::{CallContext, Known};
use crate::key::Key;
#[cfg(test)]
use crate::kind::Format;
use crate::lease::{self, NodeIndex};
use crate::owner::Owner;
use crate::sync::{Arc, Mutex};

/// How safe a hold is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HoldState {
    /// Held, and the last renewal (if one was due) succeeded.
    Safe,
    /// Held, but the last renewal failed.
    ///
    /// If the next ones fail too, the lock will be lost.
    Jeopardy,
    /// No longer provably held.
    Lost(Loss),
}

impl HoldState {
    pub(crate) fn loss(self) -> Option<Loss> {
        match self {
            Self::Lost(loss) => Some(loss),
            Self::Safe | Self::Jeopardy => None,
        }
    }

    /// # Errors
    /// [`Error::Lost`] if the hold is lost.
    pub(crate) fn check(self, key: &Key) -> Result<(), Error> {
        self.loss()
            .map_or(Ok(()), |loss| Err(Error::lost(key, loss)))
    }
}

/// An acquisition in this process.
#[derive(Debug)]
pub(crate) struct Hold {
    /// The lock as the servers have it.
    pub(crate) claim: Claim,
    pub(crate) generation: u64,
    pub(crate) fence: Fence,
    pub(crate) terms: Terms,
    /// Where the call that took it came from.
    pub(crate) origin: Origin,
    /// The time before the acquire was sent.
    pub(crate) since: Instant,
    /// When guards that no caller has taken are revoked.
    revoke_at: Instant,
    /// For a reader beside whom others may come in: what they have in common.
    share: Option<Arc<Share>>,
    reporter: Arc<LossReporter>,
    state: Mutex<State>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HoldPhase {
    Held,
    Releasing,
    Lost(Loss),
}

#[derive(Debug)]
struct State {
    phase: HoldPhase,
    owner: Owner,
    guards: u32,
    /// How many of the guards are on their way to callers that have not taken them yet. They may be
    /// revoked, once.
    unclaimed: u32,
    /// Whether they were revoked: such a guard no longer counts.
    revoked: bool,
    votes: Votes,
    failed_ticks: u32,
    /// Whether the tokens have been fired for the loss.
    fired: bool,
    /// Whether it has not left its field yet.
    stands: bool,
    /// How many callers have taken a guard so far.
    entrances: u32,
    /// How many of the guards were taken in the same place (task or thread) as the hold.
    at_home: u32,
    /// `None` until an owner enters again.
    entries: Option<Box<Entries>>,
    /// The tokens to fire.
    listeners: Option<Box<Listeners>>,
    /// When the alarm looks at it next.
    alarm_at: Option<Instant>,
    /// Until when the lock stays on the servers after a release.
    kept_until: Option<Instant>,
    /// The longest lease that the servers may have been asked for.
    longest: Duration,
    /// The milliseconds by which a renewal counts, if another client cuts the lease to them. Small,
    /// since almost no hold has any.
    cut_ms: Option<NonZeroU32>,
    /// The class of the handle whose guard was the first.
    class: Option<&'static str>,
}

impl Hold {
    /// Creates a hold that has been granted, with one guard on its way.
    pub(crate) fn new(grant: Grant<'_>, reporter: Arc<LossReporter>) -> Self {
        let until = lease::valid_until(grant.since, grant.terms.lease);
        // An answer that came late leaves less time: half of it is for the caller to take the
        // guard, half for a renewal.
        let patience = grant.patience.min(grant.granted.until(until) / 2);
        let votes = Votes::new(grant.nodes, grant.votes, until);
        let state = State::new(grant.owner, votes, grant.terms.lease);
        let share = grant
            .opens
            .then(|| Share::new(grant.generation, grant.since, grant.granted));
        Self {
            claim: grant.claim,
            generation: grant.generation,
            fence: grant.fence,
            terms: grant.terms,
            origin: grant.origin,
            since: grant.since,
            revoke_at: grant.granted + patience,
            share,
            reporter,
            state: Mutex::new(state),
        }
    }

    /// Creates a hold of the key "k" that these nodes have just granted.
    #[cfg(test)]
    pub(crate) fn for_test(owner: Owner, terms: Terms, votes: &[NodeIndex], nodes: usize) -> Self {
        let reporter = LossReporter::new(
            Arc::new(crate::stats::Counters::new()),
            crate::clock::Clock::machine(),
        )
        .0;
        Self::for_test_in(reporter, owner, terms, votes, nodes)
    }

    /// Does the same with this reporter of losses.
    #[cfg(test)]
    pub(crate) fn for_test_in(
        reporter: Arc<LossReporter>,
        owner: Owner,
        terms: Terms,
        votes: &[NodeIndex],
        nodes: usize,
    ) -> Self {
        let now = Instant::now();
        let claim = Claim {
            kind: Format::Redisson.kind(),
            key: "k".into(),
            field: "f".into(),
            permits: 0,
        };
        let fence = Fence::new(1);
        let origin = Origin {
            context: CallContext::Task(1),
            waker: 0,
            known: Known::Calling,
        };
        let patience = lease::recheck_interval(terms.lease);
        let since = now;
        let granted = now;
        let grant = Grant {
            claim,
            owner,
            origin,
            generation: 1,
            fence,
            terms,
            since,
            granted,
            patience,
            votes,
            nodes,
            opens: false,
        };
        Self::new(grant, reporter)
    }

    /// Returns how safe it is at this time, and fires the tokens if it is lost.
    pub(crate) fn at(self: &Arc<Self>, now: Instant) -> HoldState {
        let state = self.mark(now);
        // Another thread may have marked the loss and not have fired yet: this call must not wait
        // for it.
        if matches!(state, HoldState::Lost(_)) {
            self.fire();
        }
        state
    }

    /// Returns how safe it is at this time; fires nothing.
    pub(crate) fn mark(&self, now: Instant) -> HoldState {
        let mut state = self.state.lock();
        self.expire(&mut state, now);
        state.safety()
    }

    /// Does the same as [`Hold::at`], and returns what else the watchdog needs.
    pub(crate) fn survey(self: &Arc<Self>, now: Instant) -> Survey {
        let mut state = self.state.lock();
        self.expire(&mut state, now);
        let (safety, claims, (valid_until, _)) =
            (state.safety(), self.claims_of(&state), self.ends(&state));
        drop(state);
        if matches!(safety, HoldState::Lost(_)) {
            self.fire();
        }
        Survey {
            state: safety,
            claims,
            valid_until,
        }
    }

    /// Makes the hold lost, unless it is lost already or being released. Returns whether this call
    /// did it.
    pub(crate) fn lose(self: &Arc<Self>, loss: Loss) -> bool {
        let mut state = self.state.lock();
        let newly = state.phase == HoldPhase::Held;
        if newly {
            self.set_lost(&mut state, loss);
        }
        drop(state);
        if newly {
            self.fire();
        }
        newly
    }

    /// Enters again, and returns the new hold count, which is valid before it is sent. Fires
    /// nothing.
    pub(crate) fn enter(&self, now: Instant) -> Result<u32, EnterError> {
        self.come_in(now, 0)
    }

    /// Enters together with the grant, for a waiter that has not taken its guard yet. Fires
    /// nothing.
    pub(crate) fn enter_unclaimed(&self, now: Instant) -> Result<u32, EnterError> {
        self.come_in(now, 1)
    }

    fn come_in(&self, now: Instant, unclaimed: u32) -> Result<u32, EnterError> {
        let mut state = self.state.lock();
        self.expire(&mut state, now);
        match state.phase {
            HoldPhase::Lost(loss) if state.guards > state.unclaimed => Err(EnterError::Lost(loss)),
            // No caller has a guard of it: it is about to be removed.
            HoldPhase::Lost(_) | HoldPhase::Releasing => Err(EnterError::Releasing),
            HoldPhase::Held => {
                state.guards += 1;
                state.unclaimed += unclaimed;
                Ok(state.guards)
            }
        }
    }

    /// Drops a guard: decrements the count before anything is sent.
    pub(crate) fn leave(self: &Arc<Self>, now: Instant) -> Leave {
        // First: if the lease is over, this is a loss and no release.
        let _: HoldState = self.at(now);
        let mut state = self.state.lock();
        state.guards = state.guards.saturating_sub(1);
        let last = state.guards == 0;
        match state.phase {
            HoldPhase::Lost(loss) => Leave::Lost { loss, last },
            HoldPhase::Held if last => {
                state.phase = HoldPhase::Releasing;
                Leave::Last
            }
            // A hold that is being released has no guards left to drop.
            HoldPhase::Held | HoldPhase::Releasing => Leave::Nested(state.guards),
        }
    }

    /// Called when a caller takes the guard that was on its way to it. Returns false if the guard
    /// was revoked, and so does not count.
    pub(crate) fn take_guard(&self) -> bool {
        let mut state = self.state.lock();
        if state.revoked {
            return false;
        }
        state.unclaimed = state.unclaimed.saturating_sub(1);
        true
    }

    /// Revokes the guards that no caller has taken. Returns true if there were any and no guard is
    /// left: then the caller has to send the release. A lost hold stays lost.
    pub(crate) fn revoke(&self) -> bool {
        let mut state = self.state.lock();
        if state.unclaimed == 0 {
            return false;
        }
        state.guards = state.guards.saturating_sub(state.unclaimed);
        state.unclaimed = 0;
        state.revoked = true;
        if state.guards > 0 {
            return false;
        }
        if state.phase == HoldPhase::Held {
            state.phase = HoldPhase::Releasing;
        }
        true
    }

    /// Returns what callers have taken of the grant, read in one step, since they may take it
    /// meanwhile.
    pub(crate) fn claims(&self) -> Claims {
        self.claims_of(&self.state.lock())
    }

    /// Records that a node has renewed, by a renewal sent at this time. Returns true if the
    /// validity of the majority now ends later than before.
    pub(crate) fn renewed(self: &Arc<Self>, node: NodeIndex, sent: Instant, now: Instant) -> bool {
        let mut state = self.state.lock();
        self.expire(&mut state, now);
        if state.phase != HoldPhase::Held {
            drop(state);
            self.fire();
            return false;
        }
        let until = lease::valid_until(sent, self.trusted(&state));
        // An answer may be late, and older than what the hold knows: only progress ends the
        // jeopardy.
        let before = state.votes.majority_until();
        state.votes.add(node, until);
        let renewed = state.votes.majority_until() > before;
        if renewed {
            state.failed_ticks = 0;
        }
        renewed
    }

    /// Records the vote of a node, for a command sent at this time outside of the watchdog's
    /// rounds. Returns false if the hold is no longer held: then the vote has to be undone.
    pub(crate) fn vote(self: &Arc<Self>, node: NodeIndex, sent: Instant, now: Instant) -> bool {
        let until = lease::valid_until(sent, self.terms.lease);
        let _: HoldState = self.at(now);
        let mut state = self.state.lock();
        if state.phase != HoldPhase::Held {
            return false;
        }
        state.votes.add(node, until);
        true
    }

    /// Records that this node may still execute a command that creates the lock: the release then
    /// also undoes it. Returns false if the hold is no longer held: then it has to be undone now.
    pub(crate) fn make_uncertain(&self, node: NodeIndex) -> bool {
        let mut state = self.state.lock();
        let held = state.phase == HoldPhase::Held;
        if held {
            state.votes.make_uncertain(node);
        }
        held
    }

    /// Records that a node no longer has the lock for us. If a majority is impossible without it,
    /// the hold is lost. Returns whether this call made it lost. If a majority is left, the hold
    /// may end sooner than before: the caller has to tell the alarm.
    pub(crate) fn gone(self: &Arc<Self>, node: NodeIndex) -> bool {
        let mut state = self.state.lock();
        // A renewal that was in flight during the release also finds the lock gone.
        if state.phase != HoldPhase::Held {
            return false;
        }
        if state.votes.remove(node) {
            return false;
        }
        self.set_lost(&mut state, Loss::NotOwner);
        drop(state);
        self.fire();
        true
    }

    /// Returns how many renewals have failed in a row.
    pub(crate) fn failed_ticks(&self) -> u32 {
        self.state.lock().failed_ticks
    }

    /// Records a failed renewal, and returns how many have failed in a row.
    pub(crate) fn tick_failed(&self) -> u32 {
        let mut state = self.state.lock();
        state.failed_ticks += 1;
        state.failed_ticks
    }

    /// Returns until when it is valid on the local clock, by the votes and `max_hold`.
    pub(crate) fn valid_until(&self) -> Instant {
        self.ends(&self.state.lock()).0
    }

    /// Returns whether it is held: neither lost nor being released.
    pub(crate) fn is_held(&self) -> bool {
        self.state.lock().phase == HoldPhase::Held
    }

    /// Returns whether its lock may still be on the server: it is held, or released without an
    /// answer yet. Fires nothing.
    pub(crate) fn blocks(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        self.expire(&mut state, now);
        matches!(state.phase, HoldPhase::Held | HoldPhase::Releasing)
    }

    pub(crate) fn guards(&self) -> u32 {
        self.state.lock().guards
    }

    fn expire(&self, state: &mut State, now: Instant) -> bool {
        if state.phase != HoldPhase::Held {
            return false;
        }
        let (end, loss) = self.ends(state);
        if now < end {
            return false;
        }
        self.set_lost(state, loss);
        true
    }

    fn ends(&self, state: &State) -> (Instant, Loss) {
        // A hold without a majority has ended, however early it is looked at.
        let validity = state.votes.majority_until().unwrap_or(self.since);
        match self.terms.max_hold {
            Some(max_hold) if self.since + max_hold < validity => {
                (self.since + max_hold, Loss::MaxHold)
            }
            _ => (validity, Loss::Expired),
        }
    }

    fn claims_of(&self, state: &State) -> Claims {
        Claims {
            claimed: state.guards > state.unclaimed,
            revoke_at: (state.unclaimed > 0).then_some(self.revoke_at),
        }
    }
}

impl State {
    /// Makes the state of a hold that was granted, with one guard on its way.
    fn new(owner: Owner, votes: Votes, lease: Duration) -> Self {
        Self {
            phase: HoldPhase::Held,
            owner,
            guards: 1,
            unclaimed: 1,
            revoked: false,
            votes,
            failed_ticks: 0,
            fired: false,
            stands: true,
            entrances: 0,
            at_home: 0,
            entries: None,
            listeners: None,
            alarm_at: None,
            kept_until: None,
            longest: lease,
            cut_ms: None,
            class: None,
        }
    }

    fn safety(&self) -> HoldState {
        match self.phase {
            HoldPhase::Lost(loss) => HoldState::Lost(loss),
            HoldPhase::Releasing => HoldState::Lost(Loss::Released),
            HoldPhase::Held if self.failed_ticks > 0 => HoldState::Jeopardy,
            HoldPhase::Held => HoldState::Safe,
        }
    }
}

#[cfg(test)]
#[path = "../tests/unit/interleavings/mod.rs"]
mod interleavings;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::stats::Counters;

    const LEASE: Duration = Duration::from_secs(30);

    fn hold(terms: Terms) -> Arc<Hold> {
        Arc::new(Hold::for_test(Owner::task(1), terms, &[0], 1))
    }

    fn watched() -> Terms {
        Terms {
            lease: LEASE,
            renewed: true,
            max_hold: None,
        }
    }

    #[test]
    fn lost_is_sticky_and_fires_the_token_once() {
        let counters = Arc::new(Counters::new());
        let (reporter, mut losses) = LossReporter::new(Arc::clone(&counters), Clock::machine());
        let hold = Arc::new(Hold::for_test_in(
            reporter,
            Owner::task(1),
            watched(),
            &[0],
            1,
        ));
        let token = hold.token();
        let end = hold.valid_until();
        assert_eq!(
            hold.at(end.before(Duration::from_nanos(1))),
            HoldState::Safe
        );
        assert!(!token.is_cancelled());
        assert_eq!(hold.at(end), HoldState::Lost(Loss::Expired));
        assert!(token.is_cancelled());
        assert_eq!(hold.at(hold.since), HoldState::Lost(Loss::Expired));
        assert!(
            !hold.renewed(0, end, end),
            "a renewal that arrives late brings nothing back"
        );
        assert!(hold.take_guard());
        assert_eq!(hold.enter(hold.since), Err(EnterError::Lost(Loss::Expired)));
        assert!(!hold.lose(Loss::NotOwner), "the first reason stays");
        let counted = counters.losses();
        assert_eq!((counted.expired, counted.total()), (1, 1), "counted once");
        let told = losses.try_recv().expect("a loss");
        assert!(Arc::ptr_eq(&told.hold, &hold) && told.loss == Loss::Expired);
        assert!(losses.try_recv().is_err(), "told once");
    }

    #[test]
    fn a_loss_is_counted_before_its_token_fires() {
        let counters = Arc::new(Counters::new());
        let reporter = LossReporter::new(Arc::clone(&counters), Clock::machine()).0;
        let hold = Arc::new(Hold::for_test_in(
            reporter,
            Owner::task(1),
            watched(),
            &[0],
            1,
        ));
        let token = hold.token();
        assert!(matches!(hold.mark(hold.valid_until()), HoldState::Lost(_)));
        assert!(!token.is_cancelled() && hold.is_unfired());
        assert_eq!(counters.losses().expired, 1);
        hold.fire();
        assert!(token.is_cancelled() && !hold.is_unfired());
    }

    #[test]
    fn the_alarm_follows_its_last_plan_and_fires_a_marked_loss() {
        let hold = hold(watched());
        let now = hold.since;
        let end = hold.valid_until();
        hold.set_alarm(end);
        assert_eq!(
            (hold.alarmed(None, now), hold.alarmed(Some(end), now)),
            (Alarmed::Held(end), Alarmed::Held(end))
        );
        assert_eq!(
            hold.alarmed(Some(now), now),
            Alarmed::Over,
            "it has another plan by now"
        );
        assert_eq!(hold.alarmed(Some(end), end), Alarmed::Lost);
        hold.fire();
        assert_eq!(hold.alarmed(Some(end), end), Alarmed::Over);
    }

    #[test]
    fn a_suspended_machine_wakes_without_the_lock() {
        let hold = hold(watched());
        let after_an_hour = hold.since + Duration::from_secs(3600);
        assert_eq!(hold.at(after_an_hour), HoldState::Lost(Loss::Expired));
    }

    #[test]
    fn renewals_count_from_before_the_send() {
        let hold = hold(watched());
        let sent = hold.since + Duration::from_millis(5);
        assert!(hold.renewed(0, sent, sent));
        assert_eq!(hold.valid_until(), lease::valid_until(sent, LEASE));
        assert!(
            !hold.renewed(0, hold.since, sent),
            "an older renewal does not shorten"
        );
        assert_eq!(hold.valid_until(), lease::valid_until(sent, LEASE));
    }

    #[test]
    fn failures_are_counted_in_a_row() {
        let hold = hold(watched());
        assert_eq!(hold.tick_failed(), 1);
        assert_eq!(hold.at(hold.since), HoldState::Jeopardy);
        assert!(hold.renewed(0, hold.since + Duration::from_millis(1), hold.since));
        assert_eq!(hold.at(hold.since), HoldState::Safe);
        assert_eq!(hold.tick_failed(), 1);
        assert_eq!(hold.tick_failed(), 2);
        assert_eq!(hold.failed_ticks(), 2);
    }

    #[test]
    fn only_the_last_guard_releases() {
        let hold = hold(watched());
        let now = hold.since;
        assert_eq!(hold.enter(now), Ok(2));
        assert_eq!(hold.leave(now), Leave::Nested(1));
        assert_eq!(hold.leave(now), Leave::Last);
        assert_eq!(hold.enter(now), Err(EnterError::Releasing));
        assert!(
            !hold.lose(Loss::Closed),
            "a hold that is being released cannot be lost"
        );
    }

    #[test]
    fn guards_of_a_lost_hold_say_so_and_the_last_one_releases() {
        let hold = hold(watched());
        let now = hold.since;
        assert_eq!(hold.enter(now), Ok(2));
        assert!(hold.lose(Loss::NotOwner));
        assert_eq!(
            hold.leave(now),
            Leave::Lost {
                loss: Loss::NotOwner,
                last: false
            }
        );
        assert_eq!(
            hold.leave(now),
            Leave::Lost {
                loss: Loss::NotOwner,
                last: true
            }
        );
    }

    #[test]
    fn max_hold_ends_a_hold_that_is_renewed() {
        let hold = hold(Terms {
            max_hold: Some(Duration::from_secs(45)),
            ..watched()
        });
        let later = hold.since + Duration::from_secs(25);
        assert!(hold.renewed(0, later, later));
        assert_eq!(
            hold.at(hold.since + Duration::from_secs(44)),
            HoldState::Safe
        );
        assert_eq!(
            hold.at(hold.since + Duration::from_secs(45)),
            HoldState::Lost(Loss::MaxHold)
        );
    }

    #[test]
    fn a_max_hold_as_long_as_the_validity_is_not_the_loss_reason() {
        let hold = hold(Terms {
            max_hold: Some(LEASE - lease::drift(LEASE)),
            ..watched()
        });
        assert_eq!(hold.at(hold.valid_until()), HoldState::Lost(Loss::Expired));
    }

    #[test]
    fn a_grant_is_claimed_or_revoked_but_not_both() {
        let claimed = hold(watched());
        assert_eq!(
            claimed.claims(),
            Claims {
                claimed: false,
                revoke_at: Some(claimed.revoke_at)
            }
        );
        assert!(claimed.take_guard());
        assert_eq!(
            claimed.claims(),
            Claims {
                claimed: true,
                revoke_at: None
            }
        );
        assert!(!claimed.revoke(), "a guard that was taken stays");
        let revoked = hold(watched());
        assert!(revoked.revoke());
        assert!(!revoked.take_guard());
        assert_eq!(revoked.at(revoked.since), HoldState::Lost(Loss::Released));
        assert!(
            !revoked.token().is_cancelled(),
            "a released hold is not lost"
        );
    }

    #[test]
    fn a_lost_grant_that_nobody_took_is_revoked_and_stays_lost() {
        let hold = hold(watched());
        assert!(hold.lose(Loss::NotOwner));
        assert_eq!(
            hold.enter(hold.since),
            Err(EnterError::Releasing),
            "no caller has a guard that shuts others out"
        );
        assert!(hold.revoke(), "its release is to be sent");
        assert!(!hold.take_guard() && !hold.revoke());
        assert_eq!(hold.at(hold.since), HoldState::Lost(Loss::NotOwner));
    }

    #[test]
    fn only_the_guards_that_nobody_took_are_revoked() {
        let hold = hold(watched());
        let now = hold.since;
        assert_eq!(hold.enter_unclaimed(now), Ok(2));
        assert!(hold.take_guard());
        assert!(
            hold.claims().revoke_at.is_some(),
            "the other one is on its way"
        );
        assert!(!hold.revoke());
        assert_eq!((hold.guards(), hold.take_guard()), (1, false));
        assert_eq!(
            hold.enter(now),
            Ok(2),
            "a caller that enters by itself has taken its guard"
        );
        assert!(hold.claims().revoke_at.is_none());
        assert_eq!(
            (hold.leave(now), hold.leave(now)),
            (Leave::Nested(1), Leave::Last)
        );
    }

    #[test]
    fn a_vote_does_not_settle_an_earlier_command_without_an_answer() {
        let hold = Arc::new(Hold::for_test(Owner::task(1), watched(), &[0, 1], 3));
        let now = hold.since;
        assert!(hold.make_uncertain(2));
        assert!(!hold.has_vote(2));
        assert!(hold.vote(2, now, now) && hold.has_vote(2));
        assert!(
            hold.is_uncertain(2),
            "the command without an answer may still be executed"
        );
    }

    #[test]
    fn a_majority_decides_over_validity_and_loss() {
        let hold = Arc::new(Hold::for_test(Owner::task(1), watched(), &[0, 1, 2], 3));
        let since = hold.since;
        let sent = since + Duration::from_millis(3);
        assert!(!hold.renewed(0, sent, sent), "one of three is no majority");
        assert!(hold.renewed(2, sent, sent));
        assert_eq!(hold.valid_until(), lease::valid_until(sent, LEASE));
        assert!(!hold.gone(1));
        assert!(hold.gone(2));
        assert_eq!(hold.at(since), HoldState::Lost(Loss::NotOwner));
    }
}
