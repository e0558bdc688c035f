//! Losses on their way: counted where they happen, told to whoever waits, and judged once by the engine.

use std::sync::Arc;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{Hold, Phase, State};
use crate::clock::{Clock, Instant};
use crate::error::Loss;
use crate::stats::Counters;

/// Where the holds of a locker enter their losses.
#[derive(Debug)]
pub(crate) struct Ledger {
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

impl Ledger {
    /// A ledger, and where each loss comes out once. Without a reader losses are counted all the same.
    pub(crate) fn new(counters: Arc<Counters>, clock: Clock) -> (Arc<Self>, UnboundedReceiver<Lost>) {
        let (lost, reader) = unbounded_channel();
        (Arc::new(Self { counters, clock, lost }), reader)
    }
}

impl Hold {
    /// Enters a loss, whose token fires later. Counted at once: whoever is told of it may look at the counters.
    pub(super) fn set_lost(&self, state: &mut State, loss: Loss) {
        state.phase = Phase::Lost(loss);
        self.ledger.counters.lost(loss);
    }

    /// Tells everybody of the loss of a hold that is lost: cancels the tokens, one by one, and then leaves the rest to
    /// the engine. Others may do so at the same time, and go on where a waker blocks one of them.
    pub(crate) fn fire(self: &Arc<Self>) {
        while self.fire_one() {}
    }

    /// One step of that; whether there may be another.
    pub(super) fn fire_one(self: &Arc<Self>) -> bool {
        let mut state = self.state();
        let Phase::Lost(loss) = state.phase else { return false };
        if let Some(listener) = state.listeners.as_mut().and_then(|listeners| listeners.take()) {
            drop(state);
            listener.tell(loss);
            return true;
        }
        state.listeners = None;
        let newly = !std::mem::replace(&mut state.fired, true);
        drop(state);
        if newly {
            // Without the engine nobody waits in line, and nothing is written to a log.
            let at = self.ledger.clock.now();
            let _: Result<_, _> = self.ledger.lost.send(Lost { hold: Arc::clone(self), loss, at });
        }
        false
    }

    /// Whether it is lost and not everybody has been told.
    pub(crate) fn is_unfired(&self) -> bool {
        let state = self.state();
        matches!(state.phase, Phase::Lost(_)) && !state.fired
    }
}

/// What the alarm is to do with a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alarmed {
    /// It is lost, and to be fired.
    Lost,
    /// It is held until then, if it is not renewed.
    Held(Instant),
    /// Nothing: it is over, or the alarm looks at it another time.
    Over,
}

impl Hold {
    /// Marks it as lost if its end has come, and fires nothing. `planned`: for when the alarm had planned this look;
    /// only the last plan counts.
    pub(crate) fn alarmed(&self, planned: Option<Instant>, now: Instant) -> Alarmed {
        let mut state = self.state();
        self.expire(&mut state, now);
        match state.phase {
            Phase::Lost(_) if !state.fired => Alarmed::Lost,
            Phase::Held if planned.is_none() || planned == state.alarm_at => Alarmed::Held(self.ends(&state).0),
            Phase::Lost(_) | Phase::Held | Phase::Releasing => Alarmed::Over,
        }
    }

    /// The alarm looks at it then.
    pub(crate) fn set_alarm(&self, at: Instant) {
        self.state().alarm_at = Some(at);
    }
}
