//! Losses: counted where they happen, reported by tokens, and judged once by the engine.
//!
//! # A loss
//! 1. The first of these makes a `Hold` lost, once: the alarm or the watchdog, 5 ms before validity
//!    or `max_hold` ends; the watchdog, after too many failed ticks in a row; the answer that the
//!    lock is gone, to a renewal or a re-entry; a grant to another caller here; a call of the
//!    holder that reads the clock; `force_unlock`; `close`. The loss is counted in that step, in
//!    atomics only.
//! 2. After all mutexes of the process are released, [`Hold::fire`] cancels the tokens. Each cancel
//!    is contained (`tokens.rs` keeps them apart), and they come one by one, so another thread
//!    resumes if a waker blocks the first.
//! 3. The thread that finds no token left sends the loss to the engine, once. `session/losses.rs`
//!    wakes the line, takes back grants that no caller has claimed, and then tells the recorder and
//!    the log. No token waits for any of these.
//! 4. The hold stays registered until its last guard is dropped, so its owner gets the loss from
//!    every further call. That guard still sends its release.

use std::sync::Arc;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{Hold, HoldPhase, State};
use crate::clock::{Clock, Instant};
use crate::error::Loss;
use crate::stats::Counters;

/// Counts the losses of a locker's holds, and reports each to the engine.
#[derive(Debug)]
pub(crate) struct LossReporter {
    counters: Arc<Counters>,
    clock: Clock,
    lost: UnboundedSender<Lost>,
}

/// A loss whose tokens have fired.
#[derive(Debug)]
pub(crate) struct Lost {
    pub(crate) hold: Arc<Hold>,
    pub(crate) loss: Loss,
    pub(crate) at: Instant,
}

impl LossReporter {
    /// Creates a reporter, and the channel on which each loss comes out once. Without a reader
    /// losses are counted all the same.
    pub(crate) fn new(
        counters: Arc<Counters>,
        clock: Clock,
    ) -> (Arc<Self>, UnboundedReceiver<Lost>) {
        let (lost, reader) = unbounded_channel();
        (
            Arc::new(Self {
                counters,
                clock,
                lost,
            }),
            reader,
        )
    }
}

impl Hold {
    /// Marks a loss, whose tokens fire later. It is counted at once, since a task that a token
    /// wakes may read the counters.
    pub(super) fn set_lost(&self, state: &mut State, loss: Loss) {
        state.phase = HoldPhase::Lost(loss);
        self.reporter.counters.lost(self.claim.kind.counted, loss);
    }

    /// Reports the loss of a lost hold: cancels the tokens, one by one, and then sends the loss to
    /// the engine. Several threads may do so at the same time; the others continue if a waker
    /// blocks one of them.
    pub(crate) fn fire(self: &Arc<Self>) {
        while self.fire_one() {}
    }

    /// Takes one step of that. Returns whether there may be another.
    pub(super) fn fire_one(self: &Arc<Self>) -> bool {
        let mut state = self.state.lock();
        let HoldPhase::Lost(loss) = state.phase else {
            return false;
        };
        if let Some(listener) = state
            .listeners
            .as_mut()
            .and_then(|listeners| listeners.take())
        {
            drop(state);
            listener.tell(loss);
            return true;
        }
        state.listeners = None;
        // Invariant 10: only the thread that finds no token left reports the loss.
        let newly = !std::mem::replace(&mut state.fired, true);
        drop(state);
        if newly {
            // If the engine has ended, no caller waits in line, and there is nothing to do.
            let at = self.reporter.clock.now();
            let _: Result<_, _> = self.reporter.lost.send(Lost {
                hold: Arc::clone(self),
                loss,
                at,
            });
        }
        false
    }

    /// Returns whether it is lost and not all tokens have been fired.
    pub(crate) fn is_unfired(&self) -> bool {
        let state = self.state.lock();
        matches!(state.phase, HoldPhase::Lost(_)) && !state.fired
    }
}

/// What the alarm has to do with a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alarmed {
    /// Fire its tokens: it is lost.
    Lost,
    /// Look again: it is held until then, if it is not renewed.
    Held(Instant),
    /// Nothing: it has ended, or the alarm has planned another look at it.
    Over,
}

impl Hold {
    /// Marks it as lost if its end has come, and fires nothing. `planned` is the time for which the
    /// alarm had planned this look; only the last plan counts.
    pub(crate) fn alarmed(&self, planned: Option<Instant>, now: Instant) -> Alarmed {
        let mut state = self.state.lock();
        self.expire(&mut state, now);
        match state.phase {
            HoldPhase::Lost(_) if !state.fired => Alarmed::Lost,
            HoldPhase::Held if planned.is_none() || planned == state.alarm_at => {
                Alarmed::Held(self.ends(&state).0)
            }
            HoldPhase::Lost(_) | HoldPhase::Held | HoldPhase::Releasing => Alarmed::Over,
        }
    }

    /// Returns whether the alarm has to look at it again: it is held, or its tokens are not fired
    /// yet.
    pub(crate) fn needs_alarm(&self) -> bool {
        let state = self.state.lock();
        match state.phase {
            HoldPhase::Held => true,
            HoldPhase::Lost(_) => !state.fired,
            HoldPhase::Releasing => false,
        }
    }

    /// Returns when the alarm looks at it next, if it has ever looked.
    pub(crate) fn alarm_at(&self) -> Option<Instant> {
        self.state.lock().alarm_at
    }

    /// Records when the alarm looks at it next.
    pub(crate) fn set_alarm(&self, at: Instant) {
        self.state.lock().alarm_at = Some(at);
    }
}
