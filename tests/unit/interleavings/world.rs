//! A hold with the facts of its world: the possible next steps, and the checks after each.

mod loss;

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::sync::CancellationToken;

use super::{Bounds, Flaw, Step};
use crate::clock::{Clock, Instant};
use crate::error::Loss;
use crate::hold::tokens;
use crate::hold::{
    EnterError, Hold, HoldPhase, HoldState, Leave, LossReporter, Lost, State, Terms,
};
use crate::lease::NodeIndex;
use crate::owner::Owner;
use crate::stats::Counters;
use crate::sync::{Arc, Mutex};

/// Validity lasts for two ticks and a bit of the third, a `max_hold` of 35 s for three and a half.
const TICK: Duration = Duration::from_secs(10);
const LEASE: Duration = Duration::from_secs(30);
const VALID_TICKS: u8 = 2;
const MAX_HOLD_TICKS: u8 = 3;

/// The facts, tracked independently of the hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Facts {
    now: u8,
    /// Guards that callers have, guards on their way, and how many of these were revoked.
    taken: u32,
    travelling: u32,
    void: u32,
    releases: u32,
    /// A node's last success, and its renewal that is under way: the ticks at which they were sent.
    success: Vec<Option<u8>>,
    flying: Vec<Option<u8>>,
    failed: u32,
    /// The phase that ended the hold.
    end: Option<&'static str>,
    /// How often its loss was counted, and how often it was sent to the engine.
    counted: u64,
    tellings: u32,
}

/// The state of a hold except for its phase, which is among the facts.
pub(super) type Print = ([u32; 3], [bool; 2], [bool; TOKENS], Vec<Option<Duration>>);

/// The number of tokens that callers have.
const TOKENS: usize = 2;

pub(super) struct World {
    hold: Arc<Hold>,
    tokens: [CancellationToken; TOKENS],
    /// The counters and the losses, which all worlds share.
    counters: Arc<Counters>,
    losses: Rc<RefCell<UnboundedReceiver<Lost>>>,
    facts: Facts,
    /// The steps that have been taken.
    pub(super) trail: Vec<Step>,
}

pub(super) type Broken = String;

fn ensure(so: bool, promise: impl fmt::Display) -> Result<(), Broken> {
    if so { Ok(()) } else { Err(promise.to_string()) }
}

impl World {
    pub(super) fn new(bounds: Bounds) -> Self {
        let max_hold = bounds
            .max_hold
            .then_some(TICK * u32::from(MAX_HOLD_TICKS) + TICK / 2);
        let terms = Terms {
            lease: LEASE,
            renewed: true,
            max_hold,
        };
        let votes: Vec<NodeIndex> = (0..bounds.nodes).collect();
        let counters = Arc::new(Counters::new());
        let (reporter, losses) = LossReporter::new(Arc::clone(&counters), Clock::machine());
        let hold = Hold::for_test_in(reporter, Owner::task(1), terms, &votes, bounds.nodes);
        let tokens = [hold.token(), hold.token()];
        for _ in 1..bounds.granted {
            assert!(hold.enter_unclaimed(hold.since).is_ok());
        }
        let (success, flying) = (vec![Some(0); bounds.nodes], vec![None; bounds.nodes]);
        let (now, taken, travelling, void, releases) = (0, 0, bounds.granted, 0, 0);
        let (failed, end, counted, tellings) = (0, None, 0, 0);
        let facts = Facts {
            now,
            taken,
            travelling,
            void,
            releases,
            success,
            flying,
            failed,
            end,
            counted,
            tellings,
        };
        let losses = Rc::new(RefCell::new(losses));
        Self {
            hold: Arc::new(hold),
            tokens,
            counters,
            losses,
            facts,
            trail: Vec::new(),
        }
    }

    /// Returns a copy of the world with a hold of its own.
    pub(super) fn copy(&self) -> Self {
        let (hold, from) = (&self.hold, self.hold.state.lock());
        let phase = from.phase;
        let (owner, votes) = (from.owner.clone(), from.votes.clone());
        let state = State {
            owner,
            votes,
            entries: None,
            listeners: None,
            ..*from
        };
        drop(from);
        let (claim, reporter) = (hold.claim.clone(), Arc::clone(&hold.reporter));
        // Tokens are handed out while it is held.
        let copy = Hold {
            claim,
            reporter,
            share: None,
            state: Mutex::new(State {
                phase: HoldPhase::Held,
                ..state
            }),
            ..**hold
        };
        let tokens = self.tokens.each_ref().map(|token| {
            if token.is_cancelled() {
                tokens::fired()
            } else {
                copy.token()
            }
        });
        copy.state.lock().phase = phase;
        let (counters, losses) = (Arc::clone(&self.counters), Rc::clone(&self.losses));
        Self {
            hold: Arc::new(copy),
            tokens,
            counters,
            losses,
            facts: self.facts.clone(),
            trail: self.trail.clone(),
        }
    }

    /// Returns what two worlds must have in common to behave alike from here on.
    pub(super) fn print(&self) -> (Print, Facts) {
        let state = self.hold.state.lock();
        let votes = state
            .votes
            .iter()
            .map(|vote| vote.map(|until| until.since(self.hold.since)))
            .collect();
        let counts = [state.guards, state.unclaimed, state.failed_ticks];
        let cancelled = self.tokens.each_ref().map(CancellationToken::is_cancelled);
        (
            (counts, [state.revoked, state.fired], cancelled, votes),
            self.facts.clone(),
        )
    }

    fn at(&self, tick: u8) -> Instant {
        self.hold.since + TICK * u32::from(tick)
    }

    /// Returns the last tick at which the hold is valid, and how it ends then, by the facts alone.
    fn last_tick(&self) -> (u8, Loss) {
        let mut successes: Vec<u8> = self.facts.success.iter().flatten().copied().collect();
        successes.sort_unstable();
        let quorum = self.facts.success.len() / 2 + 1;
        let weakest = successes
            .len()
            .checked_sub(quorum)
            .map_or(0, |at| successes[at]);
        match self.hold.terms.max_hold {
            Some(_) if MAX_HOLD_TICKS <= weakest + VALID_TICKS => (MAX_HOLD_TICKS, Loss::MaxHold),
            _ => (weakest + VALID_TICKS, Loss::Expired),
        }
    }

    pub(super) fn steps(&self, bounds: Bounds) -> Vec<Step> {
        let facts = &self.facts;
        let mut steps = vec![
            Step::Fire,
            Step::FireOne,
            Step::Revoke,
            Step::Lose(Loss::ForceUnlocked),
        ];
        if facts.now < bounds.ticks {
            steps.push(Step::Tick);
        }
        for clock in facts.now.saturating_sub(1)..=facts.now {
            steps.extend([Step::Look(clock), Step::Mark(clock), Step::Alarm(clock)]);
            // A caller finds the hold in the table of lines until its release is answered, and may
            // enter it until then.
            if facts.taken < bounds.guards {
                steps.push(Step::Enter(clock));
            }
            if facts.taken > 0 {
                steps.push(Step::Leave(clock));
            }
        }
        if facts.travelling > 0 {
            steps.push(Step::Claim);
        }
        match facts.failed {
            0 | 1 => steps.push(Step::TickFailed),
            _ => steps.push(Step::Lose(Loss::RenewalFailed)),
        }
        for node in 0..bounds.nodes {
            match facts.flying[node] {
                // The wheel looks before it sends.
                None if self.hold.is_held() && self.hold.claims().claimed => {
                    steps.push(Step::Send(node));
                }
                None => {}
                Some(_) => steps.extend([
                    Step::Renewed(node),
                    Step::Gone(node),
                    Step::Unanswered(node),
                ]),
            }
        }
        steps
    }

    /// Takes a step, and compares its answer with the facts.
    pub(super) fn take(&mut self, step: Step, flaw: Option<Flaw>) -> Result<(), Broken> {
        self.trail.push(step);
        let held = self.hold.is_held();
        let unfired = self.hold.is_unfired();
        let now = self.at(self.facts.now);
        let counted = self.counted();
        match step {
            Step::Tick => self.facts.now += 1,
            Step::Look(clock) if flaw == Some(Flaw::LookFiresNothing) => {
                _ = self.hold.mark(self.at(clock));
            }
            Step::Look(clock) => {
                let state = self.hold.at(self.at(clock));
                self.check_look(held, clock, state)?;
            }
            Step::Mark(clock) => {
                let state = self.hold.mark(self.at(clock));
                self.check_look(held, clock, state)?;
            }
            Step::Alarm(clock) => self.alarm(held, clock, flaw)?,
            Step::Fire => self.hold.fire(),
            Step::FireOne => self.fire_one(flaw),
            Step::Enter(clock) => self.enter(held, clock, flaw)?,
            Step::Claim => self.claim(flaw)?,
            Step::Leave(clock) => self.leave(clock, flaw)?,
            Step::Revoke => self.revoke(flaw),
            Step::Send(node) => self.facts.flying[node] = Some(self.facts.now),
            Step::Renewed(node) => {
                // As the wheel does: it looks first.
                let _: HoldState = self.hold.at(now);
                self.renewed(node, flaw)?;
            }
            Step::Gone(node) => {
                self.facts.flying[node] = None;
                if held {
                    self.facts.success[node] = None;
                }
                self.hold.gone(node);
                if flaw == Some(Flaw::GoneMeansLossDuringRelease) && self.is_releasing() {
                    self.hold.state.lock().phase = HoldPhase::Lost(Loss::NotOwner);
                }
            }
            Step::Unanswered(node) => self.facts.flying[node] = None,
            Step::TickFailed => {
                self.facts.failed += 1;
                ensure(
                    self.hold.tick_failed() == self.facts.failed,
                    "failures are counted in a row",
                )?;
            }
            Step::Lose(loss) => {
                let newly = self.hold.lose(loss);
                ensure(
                    newly == held,
                    "only the call that makes it lost returns true",
                )?;
                if flaw == Some(Flaw::LossIsReplaced) && !held && !self.is_releasing() {
                    self.hold.state.lock().phase = HoldPhase::Lost(loss);
                }
            }
        }
        self.facts.counted += self.counted() - counted;
        if flaw == Some(Flaw::LossIsNotCounted) && matches!(step, Step::Mark(_)) {
            self.facts.counted = 0;
        }
        while let Ok(lost) = self.losses.borrow_mut().try_recv() {
            ensure(
                Arc::ptr_eq(&lost.hold, &self.hold),
                "the engine is told of this hold",
            )?;
            self.facts.tellings += 1;
        }
        let silent = matches!(step, Step::Mark(_) | Step::Alarm(_) | Step::Enter(_))
            || (unfired && !fires(step));
        ensure(
            silent || !self.hold.is_unfired(),
            "the call that finds it lost fires the token",
        )?;
        self.check()
    }

    fn enter(&mut self, held: bool, clock: u8, flaw: Option<Flaw>) -> Result<(), Broken> {
        if flaw == Some(Flaw::ReleasingIsEntered) && self.is_releasing() {
            self.hold.state.lock().guards += 1;
            self.facts.taken += 1;
            return Ok(());
        }
        let valid = held && clock <= self.last_tick().0;
        let entered = self.hold.enter(self.at(clock));
        ensure(
            entered.is_ok() == valid,
            "only a hold that is held can be entered",
        )?;
        match entered {
            Ok(count) => {
                self.facts.taken += 1;
                ensure(
                    count == self.hold.guards(),
                    "the count is the number of guards",
                )?;
                if flaw == Some(Flaw::EntryIsNotCounted) {
                    self.hold.state.lock().guards -= 1;
                }
                Ok(())
            }
            Err(EnterError::Lost(_)) => ensure(
                self.facts.taken > 0,
                "only a living guard shuts its owner out",
            ),
            Err(EnterError::Releasing) => ensure(
                self.facts.taken == 0 || self.is_releasing(),
                "an owner with a guard of a lost hold gets the loss",
            ),
        }
    }

    fn claim(&mut self, flaw: Option<Flaw>) -> Result<(), Broken> {
        self.facts.travelling -= 1;
        let expected = self.facts.void == 0;
        self.facts.void = self.facts.void.saturating_sub(1);
        let claimed = self.hold.take_guard() || flaw == Some(Flaw::RevokedIsClaimed);
        self.facts.taken += u32::from(claimed);
        ensure(
            claimed == expected,
            "a guard is taken or revoked, and not both",
        )
    }

    fn leave(&mut self, clock: u8, flaw: Option<Flaw>) -> Result<(), Broken> {
        self.facts.taken -= 1;
        let others = self.facts.taken + self.facts.travelling - self.facts.void;
        let left = self.hold.leave(self.at(clock));
        let last = matches!(left, Leave::Last | Leave::Lost { last: true, .. });
        self.facts.releases += u32::from(last && flaw != Some(Flaw::LeaveForgetsTheLast));
        if left == Leave::Last && flaw == Some(Flaw::LastGuardStaysHeld) {
            self.hold.state.lock().phase = HoldPhase::Held;
        }
        ensure(
            last == (others == 0),
            "the last guard releases, and only the last",
        )
    }

    fn revoke(&mut self, flaw: Option<Flaw>) {
        let all = flaw == Some(Flaw::RevokeTakesAll) && self.facts.travelling > self.facts.void;
        self.facts.releases += u32::from(self.hold.revoke() || all);
        self.facts.void = self.facts.travelling;
    }

    fn renewed(&mut self, node: usize, flaw: Option<Flaw>) -> Result<(), Broken> {
        let now = self.at(self.facts.now);
        let Some(sent) = self.facts.flying[node].take() else {
            return Ok(());
        };
        let (held, until) = (self.hold.is_held(), self.hold.valid_until());
        let counted = if flaw == Some(Flaw::RenewalCountsFromTheAnswer) {
            now
        } else {
            self.at(sent)
        };
        let renewed = self.hold.renewed(node, counted, now);
        if flaw == Some(Flaw::RenewalRevives) && !held {
            self.hold.state.lock().phase = HoldPhase::Held;
        }
        if held {
            self.facts.success[node] = self.facts.success[node].max(Some(sent));
        }
        if renewed {
            self.facts.failed = 0;
        }
        ensure(
            held || (!renewed && self.hold.valid_until() == until),
            "nothing renews a hold that has ended",
        )
    }

    fn check_look(&self, held: bool, clock: u8, state: HoldState) -> Result<(), Broken> {
        let (last, loss) = self.last_tick();
        let expected = match (held, clock <= last, self.facts.failed) {
            (true, true, 0) => Some(HoldState::Safe),
            (true, true, _) => Some(HoldState::Jeopardy),
            (true, false, _) => Some(HoldState::Lost(loss)),
            (false, ..) => None,
        };
        let wrong =
            || format!("it is as safe as its validity says: {state:?} instead of {expected:?}");
        match expected {
            Some(expected) => ensure(state == expected, wrong()),
            None => ensure(
                matches!(state, HoldState::Lost(_)),
                "a hold that has ended is not held again",
            ),
        }
    }

    /// Checks the promises that hold after every step.
    fn check(&mut self) -> Result<(), Broken> {
        let state = self.hold.state.lock();
        let end = match state.phase {
            HoldPhase::Held => None,
            HoldPhase::Releasing => Some("released"),
            HoldPhase::Lost(Loss::NotOwner) => Some("not owner"),
            HoldPhase::Lost(Loss::RenewalFailed) => Some("renewal failed"),
            HoldPhase::Lost(Loss::Expired) => Some("expired"),
            HoldPhase::Lost(Loss::MaxHold) => Some("max hold"),
            HoldPhase::Lost(_) => Some("forced"),
        };
        ensure(
            self.facts.end.is_none() || self.facts.end == end,
            "a hold ends once",
        )?;
        self.facts.end = end;
        let facts = &self.facts;
        let cancelled = self
            .tokens
            .iter()
            .filter(|token| token.is_cancelled())
            .count();
        let lost = matches!(state.phase, HoldPhase::Lost(_));
        ensure(
            lost || cancelled == 0,
            "a token fires for a loss, and for nothing else",
        )?;
        ensure(
            facts.counted == u64::from(lost),
            "a loss is counted once, and before anything else",
        )?;
        ensure(
            !state.fired || cancelled == TOKENS,
            "every token is cancelled before the engine is told",
        )?;
        ensure(
            facts.tellings == u32::from(state.fired),
            "the engine is told of a loss once",
        )?;
        let guards = facts.taken + facts.travelling - facts.void;
        ensure(
            state.guards == guards,
            format_args!(
                "{} guards are counted, and there are {guards}",
                state.guards
            ),
        )?;
        ensure(
            state.unclaimed == facts.travelling - facts.void,
            "guards on their way are counted",
        )?;
        ensure(
            facts.releases == u32::from(guards == 0),
            "one release is sent, with the last guard",
        )?;
        ensure(
            guards > 0 || state.phase != HoldPhase::Held,
            "a hold without guards is not held",
        )
    }

    fn is_releasing(&self) -> bool {
        self.hold.state.lock().phase == HoldPhase::Releasing
    }
}

/// Returns whether a step fires the tokens of a loss that another step has marked.
fn fires(step: Step) -> bool {
    matches!(
        step,
        Step::Look(_) | Step::Fire | Step::Leave(_) | Step::Renewed(_)
    )
}
