//! One hold: an outermost acquisition with the guards of its re-entries. Plain data behind one mutex; it knows nobody.
//!
//! # Invariants
//! - The phase goes from `Held` to `Releasing` or `Lost`, and from nowhere back: Lost is sticky.
//! - Whoever asks says what time it is, and whoever first sees that validity is over makes the hold Lost.
//! - A loss is counted with the step that makes the hold Lost; then its tokens are cancelled; then the engine judges
//!   it.
//! - Tokens are cancelled after the mutex is released, since their wakers run foreign code. What is called under the
//!   lock of a gate's shard only marks a loss; the gate calls [`Hold::fire`] when it has let go.
//! - `guards` counts the guards that exist or are on their way; only the step to zero sends the release.
//! - What is on its way was granted with the hold itself: so one deadline, counted from the grant, is that of all.

mod entries;
mod found;
mod joint;
mod keeping;
mod ledger;
mod listeners;
mod tokens;
mod votes;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) use self::entries::Entrance;
use self::entries::Entries;
pub(crate) use self::found::{Claims, Grant, Leave, Shut, Survey, Terms};
pub(crate) use self::joint::Joint;
pub(crate) use self::keeping::rest;
pub(crate) use self::ledger::{Alarmed, Ledger, Lost};
use self::listeners::Listeners;
pub(crate) use self::tokens::fired;
use self::votes::Votes;
use crate::clock::Instant;
use crate::command::Claim;
#[cfg(test)]
use crate::command::Kind;
use crate::error::{Error, Loss};
use crate::fence::Fence;
use crate::identity::Origin;
#[cfg(test)]
use crate::identity::{Known, Place};
use crate::lease::{self, NodeIndex};
use crate::owner::Owner;

/// How safe a hold is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HoldState {
    /// Held, and the last renewal (if one was due) succeeded.
    Safe,
    /// Held, but the last renewal failed. If the next ones fail too, the lock is lost.
    Jeopardy,
    /// Not provably held any more.
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
    pub(crate) fn check(self) -> Result<(), Error> {
        self.loss().map_or(Ok(()), |loss| Err(Error::Lost(loss)))
    }
}

/// An acquisition in this process.
#[derive(Debug)]
pub(crate) struct Hold {
    /// How it stands on the servers.
    pub(crate) claim: Claim,
    pub(crate) generation: u64,
    pub(crate) fence: Fence,
    pub(crate) terms: Terms,
    /// Where the call came from that took it.
    pub(crate) origin: Origin,
    /// Before the acquire was sent.
    pub(crate) since: Instant,
    /// When guards that nobody has taken are taken back.
    revoke_at: Instant,
    ledger: Arc<Ledger>,
    state: Mutex<State>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Held,
    Releasing,
    Lost(Loss),
}

#[derive(Debug)]
struct State {
    phase: Phase,
    owner: Owner,
    guards: u32,
    /// How many of the guards are on their way to callers who have not taken them yet. They may be taken back, once.
    unclaimed: u32,
    /// Whether they were: such a guard stands for nothing any more.
    revoked: bool,
    votes: Votes,
    failed_ticks: u32,
    /// Whether everybody has been told of the loss.
    fired: bool,
    /// How many callers have taken a guard.
    entrances: u32,
    /// How many guards are there that were taken where the hold was taken.
    at_home: u32,
    /// `None` for as long as nobody has entered again.
    entries: Option<Box<Entries>>,
    /// Who is to be told of it.
    listeners: Option<Box<Listeners>>,
    /// When the alarm looks at it next.
    alarm_at: Option<Instant>,
    /// Until when the lock stays on the servers, whoever releases it.
    kept_until: Option<Instant>,
}

impl Hold {
    /// A hold that has been granted, with one guard on its way.
    pub(crate) fn new(grant: Grant<'_>, ledger: Arc<Ledger>) -> Self {
        let until = lease::valid_until(grant.since, grant.terms.lease);
        // An answer that came late leaves less time: half of it is for whoever is to take it, half for a renewal.
        let patience = grant.patience.min(grant.granted.until(until) / 2);
        let votes = Votes::new(grant.nodes, grant.votes, until);
        let owner = grant.owner;
        let state = State {
            phase: Phase::Held,
            owner,
            guards: 1,
            unclaimed: 1,
            revoked: false,
            votes,
            failed_ticks: 0,
            fired: false,
            entrances: 0,
            at_home: 0,
            entries: None,
            listeners: None,
            alarm_at: None,
            kept_until: None,
        };
        Self {
            claim: grant.claim,
            generation: grant.generation,
            fence: grant.fence,
            terms: grant.terms,
            origin: grant.origin,
            since: grant.since,
            revoke_at: grant.granted + patience,
            ledger,
            state: Mutex::new(state),
        }
    }

    /// A hold of the key "k" that these nodes have granted just now.
    #[cfg(test)]
    pub(crate) fn for_test(owner: Owner, terms: Terms, votes: &[NodeIndex], nodes: usize) -> Self {
        let ledger = Ledger::new(Arc::new(crate::stats::Counters::new()), crate::clock::Clock::machine()).0;
        Self::for_test_in(ledger, owner, terms, votes, nodes)
    }

    /// The same, with its losses entered there.
    #[cfg(test)]
    pub(crate) fn for_test_in(
        ledger: Arc<Ledger>,
        owner: Owner,
        terms: Terms,
        votes: &[NodeIndex],
        nodes: usize,
    ) -> Self {
        let now = Instant::now();
        let (claim, fence) = (Claim { kind: Kind::Redisson, key: "k".into(), field: "f".into() }, Fence::new(1));
        let origin = Origin { place: Place::Task(1), waker: 0, known: Known::Calling };
        let patience = lease::recheck_interval(terms.lease);
        let (since, granted) = (now, now);
        let grant = Grant { claim, owner, origin, generation: 1, fence, terms, since, granted, patience, votes, nodes };
        Self::new(grant, ledger)
    }

    /// How safe it is at this time.
    pub(crate) fn at(self: &Arc<Self>, now: Instant) -> HoldState {
        let state = self.mark(now);
        // Whoever marked it may not have come to fire yet: this must not wait for that thread.
        if matches!(state, HoldState::Lost(_)) {
            self.fire();
        }
        state
    }

    /// How safe it is at this time; fires nothing.
    pub(crate) fn mark(&self, now: Instant) -> HoldState {
        let mut state = self.state();
        self.expire(&mut state, now);
        state.safety()
    }

    /// As [`Hold::at`], with what else the watchdog asks.
    pub(crate) fn survey(self: &Arc<Self>, now: Instant) -> Survey {
        let mut state = self.state();
        self.expire(&mut state, now);
        let (safety, claims, (valid_until, _)) = (state.safety(), self.claims_of(&state), self.ends(&state));
        drop(state);
        if matches!(safety, HoldState::Lost(_)) {
            self.fire();
        }
        Survey { state: safety, claims, valid_until }
    }

    /// Makes the hold lost, unless it is already, or being released. Whether it was this call that did.
    pub(crate) fn lose(self: &Arc<Self>, loss: Loss) -> bool {
        let mut state = self.state();
        let newly = state.phase == Phase::Held;
        if newly {
            self.set_lost(&mut state, loss);
        }
        drop(state);
        if newly {
            self.fire();
        }
        newly
    }

    /// Enters again: the new hold count, which counts before it is sent. Fires nothing.
    pub(crate) fn enter(&self, now: Instant) -> Result<u32, Shut> {
        self.come_in(now, 0)
    }

    /// Enters again with the grant itself, for a waiter that has to take its guard yet. Fires nothing.
    pub(crate) fn enter_unclaimed(&self, now: Instant) -> Result<u32, Shut> {
        self.come_in(now, 1)
    }

    fn come_in(&self, now: Instant, unclaimed: u32) -> Result<u32, Shut> {
        let mut state = self.state();
        self.expire(&mut state, now);
        match state.phase {
            Phase::Lost(loss) if state.guards > state.unclaimed => Err(Shut::Lost(loss)),
            // Nobody has a guard of it: it is on its way out.
            Phase::Lost(_) | Phase::Releasing => Err(Shut::Releasing),
            Phase::Held => {
                state.guards += 1;
                state.unclaimed += unclaimed;
                Ok(state.guards)
            }
        }
    }

    /// A guard goes: counts down before anything is sent.
    pub(crate) fn leave(self: &Arc<Self>, now: Instant) -> Leave {
        let _: HoldState = self.at(now);
        let mut state = self.state();
        state.guards = state.guards.saturating_sub(1);
        let last = state.guards == 0;
        match state.phase {
            Phase::Lost(loss) => Leave::Lost { loss, last },
            Phase::Held if last => {
                state.phase = Phase::Releasing;
                Leave::Last
            }
            // A hold that is being released has no guards left that could go.
            Phase::Held | Phase::Releasing => Leave::Nested(state.guards),
        }
    }

    /// A caller takes the guard that was on its way to it. False if it was taken back meanwhile; it then stands for
    /// nothing.
    pub(crate) fn take_guard(&self) -> bool {
        let mut state = self.state();
        if state.revoked {
            return false;
        }
        state.unclaimed = state.unclaimed.saturating_sub(1);
        true
    }

    /// Takes back the guards that nobody has taken. True if there were any, none is left, and the release is to be
    /// sent; a hold that is lost stays lost.
    pub(crate) fn revoke(&self) -> bool {
        let mut state = self.state();
        if state.unclaimed == 0 {
            return false;
        }
        state.guards = state.guards.saturating_sub(state.unclaimed);
        state.unclaimed = 0;
        state.revoked = true;
        if state.guards > 0 {
            return false;
        }
        if state.phase == Phase::Held {
            state.phase = Phase::Releasing;
        }
        true
    }

    /// What callers have taken of the grant: read at once, since they take it while others look.
    pub(crate) fn claims(&self) -> Claims {
        self.claims_of(&self.state())
    }

    /// What a node says next counts beside the votes of these nodes only: see [`Votes::part`].
    pub(crate) fn part(&self, beside: &[bool]) {
        self.state().votes.part(beside);
    }

    /// A node has renewed what was sent at this time. True if a majority of the nodes is now valid to beyond what it
    /// was.
    pub(crate) fn renewed(self: &Arc<Self>, node: NodeIndex, sent: Instant, now: Instant) -> bool {
        let until = lease::valid_until(sent, self.terms.lease);
        let mut state = self.state();
        self.expire(&mut state, now);
        if state.phase != Phase::Held {
            drop(state);
            self.fire();
            return false;
        }
        let before = state.votes.majority_until();
        state.votes.add(node, until);
        let renewed = state.votes.majority_until() > before;
        if renewed {
            state.failed_ticks = 0;
        }
        renewed
    }

    /// A node says yes to what was sent at this time, apart from the watchdog's rounds. False if the hold is not held
    /// any more: the vote is to be undone.
    pub(crate) fn vote(self: &Arc<Self>, node: NodeIndex, sent: Instant, now: Instant) -> bool {
        let until = lease::valid_until(sent, self.terms.lease);
        let _: HoldState = self.at(now);
        let mut state = self.state();
        if state.phase != Phase::Held {
            return false;
        }
        state.votes.add(node, until);
        true
    }

    /// Something may still be executed on this node that puts the lock there: the release sees to it. False if the hold
    /// is not held any more: it is to be undone.
    pub(crate) fn make_uncertain(&self, node: NodeIndex) -> bool {
        let mut state = self.state();
        let held = state.phase == Phase::Held;
        if held {
            state.votes.make_uncertain(node);
        }
        held
    }

    /// Whether this node has said that the lock is there, and nothing else since.
    pub(crate) fn has_vote(&self, node: NodeIndex) -> bool {
        self.state().votes.has(node)
    }

    /// Whether something may still be executed on this node that puts the lock there.
    pub(crate) fn is_uncertain(&self, node: NodeIndex) -> bool {
        self.state().votes.is_uncertain(node)
    }

    /// A node says that the lock is not ours. Lost if with it no majority can have it any more; whether it was this
    /// call that found it. If a majority is left, the end may come sooner than before: the alarm is to be told.
    pub(crate) fn gone(self: &Arc<Self>, node: NodeIndex) -> bool {
        let mut state = self.state();
        // Gone is what a renewal finds that was under way while the hold was released.
        if state.phase != Phase::Held {
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

    /// How many renewals have failed in a row.
    pub(crate) fn failed_ticks(&self) -> u32 {
        self.state().failed_ticks
    }

    /// A renewal failed. How many have in a row.
    pub(crate) fn tick_failed(&self) -> u32 {
        let mut state = self.state();
        state.failed_ticks += 1;
        state.failed_ticks
    }

    /// Until when it is valid on the local clock, as far as the votes and `max_hold` go.
    pub(crate) fn valid_until(&self) -> Instant {
        self.ends(&self.state()).0
    }

    /// Whether it is held: neither lost nor being released.
    pub(crate) fn is_held(&self) -> bool {
        self.state().phase == Phase::Held
    }

    /// Whether this process still has something on the server under it: held, or released without an answer yet. Fires
    /// nothing.
    pub(crate) fn blocks(&self, now: Instant) -> bool {
        let mut state = self.state();
        self.expire(&mut state, now);
        matches!(state.phase, Phase::Held | Phase::Releasing)
    }

    pub(crate) fn guards(&self) -> u32 {
        self.state().guards
    }

    pub(crate) fn owner(&self) -> Owner {
        self.state().owner.clone()
    }

    pub(crate) fn is_owned_by(&self, owner: &Owner) -> bool {
        self.state().owner == *owner
    }

    fn expire(&self, state: &mut State, now: Instant) -> bool {
        if state.phase != Phase::Held {
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
        let validity = state.votes.majority_until().unwrap_or(self.since);
        match self.terms.max_hold {
            Some(max_hold) if self.since + max_hold < validity => (self.since + max_hold, Loss::MaxHold),
            _ => (validity, Loss::Expired),
        }
    }

    fn claims_of(&self, state: &State) -> Claims {
        Claims { claimed: state.guards > state.unclaimed, revoke_at: (state.unclaimed > 0).then_some(self.revoke_at) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn safety(&self) -> HoldState {
        match self.phase {
            Phase::Lost(loss) => HoldState::Lost(loss),
            Phase::Releasing => HoldState::Lost(Loss::Released),
            Phase::Held if self.failed_ticks > 0 => HoldState::Jeopardy,
            Phase::Held => HoldState::Safe,
        }
    }
}

#[cfg(test)]
mod interleavings;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::stats::Counters;
    use std::time::Duration;

    const LEASE: Duration = Duration::from_secs(30);

    fn hold(terms: Terms) -> Arc<Hold> {
        Arc::new(Hold::for_test(Owner::task(1), terms, &[0], 1))
    }

    fn watched() -> Terms {
        Terms { lease: LEASE, renewed: true, max_hold: None }
    }

    #[test]
    fn lost_is_sticky_and_fires_the_token_once() {
        let counters = Arc::new(Counters::new());
        let (ledger, mut losses) = Ledger::new(Arc::clone(&counters), Clock::machine());
        let hold = Arc::new(Hold::for_test_in(ledger, Owner::task(1), watched(), &[0], 1));
        let token = hold.token();
        let end = hold.valid_until();
        assert_eq!(hold.at(end.before(Duration::from_nanos(1))), HoldState::Safe);
        assert!(!token.is_cancelled());
        assert_eq!(hold.at(end), HoldState::Lost(Loss::Expired));
        assert!(token.is_cancelled());
        assert_eq!(hold.at(hold.since), HoldState::Lost(Loss::Expired));
        assert!(!hold.renewed(0, end, end), "a renewal that comes late brings nothing back");
        assert!(hold.take_guard());
        assert_eq!(hold.enter(hold.since), Err(Shut::Lost(Loss::Expired)));
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
        let ledger = Ledger::new(Arc::clone(&counters), Clock::machine()).0;
        let hold = Arc::new(Hold::for_test_in(ledger, Owner::task(1), watched(), &[0], 1));
        let token = hold.token();
        assert!(matches!(hold.mark(hold.valid_until()), HoldState::Lost(_)));
        assert!(!token.is_cancelled() && hold.is_unfired());
        assert_eq!(counters.losses().expired, 1);
        hold.fire();
        assert!(token.is_cancelled() && !hold.is_unfired());
    }

    #[test]
    fn the_alarm_looks_when_it_planned_last_and_fires_what_nobody_has_fired() {
        let hold = hold(watched());
        let (now, end) = (hold.since, hold.valid_until());
        hold.set_alarm(end);
        assert_eq!((hold.alarmed(None, now), hold.alarmed(Some(end), now)), (Alarmed::Held(end), Alarmed::Held(end)));
        assert_eq!(hold.alarmed(Some(now), now), Alarmed::Over, "it has another plan by now");
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
        assert!(!hold.renewed(0, hold.since, sent), "an older renewal does not shorten");
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
        assert_eq!(hold.enter(now), Err(Shut::Releasing));
        assert!(!hold.lose(Loss::Closed), "what is being released cannot be lost");
    }

    #[test]
    fn guards_of_a_lost_hold_say_so_and_the_last_one_releases() {
        let hold = hold(watched());
        let now = hold.since;
        assert_eq!(hold.enter(now), Ok(2));
        assert!(hold.lose(Loss::NotOwner));
        assert_eq!(hold.leave(now), Leave::Lost { loss: Loss::NotOwner, last: false });
        assert_eq!(hold.leave(now), Leave::Lost { loss: Loss::NotOwner, last: true });
    }

    #[test]
    fn max_hold_ends_what_is_renewed() {
        let hold = hold(Terms { max_hold: Some(Duration::from_secs(45)), ..watched() });
        let later = hold.since + Duration::from_secs(25);
        assert!(hold.renewed(0, later, later));
        assert_eq!(hold.at(hold.since + Duration::from_secs(44)), HoldState::Safe);
        assert_eq!(hold.at(hold.since + Duration::from_secs(45)), HoldState::Lost(Loss::MaxHold));
    }

    #[test]
    fn a_max_hold_that_cuts_nothing_short_is_no_reason() {
        let hold = hold(Terms { max_hold: Some(LEASE - lease::drift(LEASE)), ..watched() });
        assert_eq!(hold.at(hold.valid_until()), HoldState::Lost(Loss::Expired));
    }

    #[test]
    fn a_grant_is_claimed_or_revoked_but_not_both() {
        let claimed = hold(watched());
        assert_eq!(claimed.claims(), Claims { claimed: false, revoke_at: Some(claimed.revoke_at) });
        assert!(claimed.take_guard());
        assert_eq!(claimed.claims(), Claims { claimed: true, revoke_at: None });
        assert!(!claimed.revoke(), "a guard that was taken stays");
        let revoked = hold(watched());
        assert!(revoked.revoke());
        assert!(!revoked.take_guard());
        assert_eq!(revoked.at(revoked.since), HoldState::Lost(Loss::Released));
        assert!(!revoked.token().is_cancelled(), "what was released was not lost");
    }

    #[test]
    fn a_lost_grant_that_nobody_took_is_taken_back_and_stays_lost() {
        let hold = hold(watched());
        assert!(hold.lose(Loss::NotOwner));
        assert_eq!(hold.enter(hold.since), Err(Shut::Releasing), "nobody has a guard that shuts others out");
        assert!(hold.revoke(), "its release is to be sent");
        assert!(!hold.take_guard() && !hold.revoke());
        assert_eq!(hold.at(hold.since), HoldState::Lost(Loss::NotOwner));
    }

    #[test]
    fn only_the_guards_that_nobody_took_are_taken_back() {
        let hold = hold(watched());
        let now = hold.since;
        assert_eq!(hold.enter_unclaimed(now), Ok(2));
        assert!(hold.take_guard());
        assert!(hold.claims().revoke_at.is_some(), "the other one is on its way");
        assert!(!hold.revoke());
        assert_eq!((hold.guards(), hold.take_guard()), (1, false));
        assert_eq!(hold.enter(now), Ok(2), "who enters by itself has taken its guard");
        assert!(hold.claims().revoke_at.is_none());
        assert_eq!((hold.leave(now), hold.leave(now)), (Leave::Nested(1), Leave::Last));
    }

    #[test]
    fn an_answer_says_nothing_about_what_had_none() {
        let hold = Arc::new(Hold::for_test(Owner::task(1), watched(), &[0, 1], 3));
        let now = hold.since;
        assert!(hold.make_uncertain(2));
        assert!(!hold.has_vote(2));
        assert!(hold.vote(2, now, now) && hold.has_vote(2));
        assert!(hold.is_uncertain(2), "what had no answer may come yet");
    }

    /// The first and the last of the three do not list each other any more, and the second is not reached.
    #[test]
    fn votes_of_nodes_that_do_not_list_each_other_make_no_later_majority() {
        let hold = Arc::new(Hold::for_test(Owner::task(1), watched(), &[0, 1, 2], 3));
        let (since, sent) = (hold.since, hold.since + Duration::from_secs(10));
        let (end, later) = (hold.valid_until(), sent + Duration::from_millis(20));
        assert!(!hold.renewed(2, sent, sent), "one of three is no majority");
        hold.part(&[true, true, false]);
        assert!(!hold.renewed(0, later, later));
        assert_eq!(hold.valid_until(), end, "as long as the majority that granted it, and no longer");
        assert_eq!(hold.at(since), HoldState::Safe);
        assert!(hold.renewed(1, later, later), "those two list each other");
        assert_eq!(hold.valid_until(), lease::valid_until(later, LEASE));
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
