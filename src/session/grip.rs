//! The proof of one guard: who drops it, counts the hold down, and the last one releases.

use std::sync::Arc;
use std::time::Duration;

use super::Session;
use crate::clock::Instant;
use crate::error::{Error, Loss};
use crate::foreign::Answer;
use crate::hold::{Hold, HoldState};
use crate::owner::Owner;
use crate::watchdog::Verdict;

/// A look at a hold. It keeps neither the lock nor the engine.
#[derive(Debug, Clone)]
pub(crate) struct View {
    session: Arc<Session>,
    hold: Arc<Hold>,
}

impl View {
    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    /// How safe the hold is now. Whoever first sees it lost says so to everybody.
    pub(crate) fn state(&self) -> HoldState {
        let look = self.hold.at(Instant::now());
        if look.newly_lost {
            self.session.judge(Verdict::Lost(Arc::clone(&self.hold)));
        }
        look.state
    }

    /// # Errors
    /// [`Error::Lost`] if the hold is lost.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.state() {
            HoldState::Lost(loss) => Err(Error::Lost(loss)),
            HoldState::Safe | HoldState::Jeopardy => Ok(()),
        }
    }

    /// For how long the hold is certainly ours if nothing more is done.
    pub(crate) fn remaining(&self) -> Duration {
        match self.state() {
            HoldState::Lost(_) => Duration::ZERO,
            HoldState::Safe | HoldState::Jeopardy => Instant::now().until(self.hold.valid_until()),
        }
    }
}

/// One of the guards of a hold, as data. It travels to its caller through a channel; dropped on the way, it gives back
/// what it stands for.
#[derive(Debug)]
pub(crate) struct Grip {
    view: View,
    /// Whether its caller has yet to take it.
    unclaimed: bool,
    /// Whether the hold has been counted down for this grip.
    left: bool,
}

impl Grip {
    /// A grip of a caller that has entered by itself.
    pub(super) fn taken(session: Arc<Session>, hold: Arc<Hold>) -> Self {
        Self { view: View { session, hold }, unclaimed: false, left: false }
    }

    /// A grip on its way to its caller, who has to take it.
    pub(super) fn granted(session: Arc<Session>, hold: Arc<Hold>) -> Self {
        Self { view: View { session, hold }, unclaimed: true, left: false }
    }

    /// Its caller takes it. False if it was taken back, because that took too long: it then stands for nothing.
    pub(super) fn claim(&mut self) -> bool {
        let claimed = !std::mem::take(&mut self.unclaimed) || self.view.hold.claim();
        self.left |= !claimed;
        claimed
    }

    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.view.hold
    }

    /// Gives the hold to another owner.
    pub(crate) fn give_to(&self, owner: Owner) {
        self.hold().give_to(owner);
    }

    /// Releases, and waits for the answer.
    pub(crate) async fn unlock(self) -> Result<(), Error> {
        // Dropping this future from here on drops no more than the wait.
        self.release().answer().await
    }

    /// Releases; the answer comes later.
    pub(super) fn release(mut self) -> Releasing {
        self.left = true;
        Releasing(self.view.session.leave(self.hold()))
    }
}

/// A release that is under way, whoever waits for it.
pub(super) struct Releasing(Result<Answer<Result<(), Error>>, Loss>);

impl Releasing {
    pub(super) async fn answer(self) -> Result<(), Error> {
        match self.0 {
            Ok(answer) => answer.await.unwrap_or(Err(Error::Lost(Loss::Closed))),
            Err(loss) => Err(Error::Lost(loss)),
        }
    }
}

impl Drop for Grip {
    fn drop(&mut self) {
        if self.claim() && !self.left {
            // Best effort: the answer goes to nobody.
            let _: Result<_, _> = self.view.session.leave(self.hold());
        }
    }
}
