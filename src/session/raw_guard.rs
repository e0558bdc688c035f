//! The proof of one guard. Dropping it decrements the hold count; dropping the last one releases
//! the lock.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{Session, extending, jobs, leave, reentries};
use crate::error::{Error, Loss};
use crate::foreign::AnswerReceiver;
use crate::hold::{self, Entrance, Hold, HoldState};
use crate::identity::{Known, Origin};
use crate::key::Key;

/// A view of a hold. It keeps neither the lock nor the engine alive.
#[derive(Debug, Clone)]
pub(crate) struct View {
    session: Arc<Session>,
    hold: Arc<Hold>,
}

impl View {
    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    /// Returns whether the hold belongs to the process that this one was forked from.
    pub(super) fn is_forked(&self) -> bool {
        self.session.is_forked()
    }

    /// Returns a token that fires when the hold is lost. Cancelling it cancels nothing else.
    pub(crate) fn token(&self) -> CancellationToken {
        if self.session.is_forked() {
            return hold::fired();
        }
        self.hold.token()
    }

    /// Returns how safe the hold is now. The first caller that finds it lost fires its tokens.
    pub(crate) fn state(&self) -> HoldState {
        if self.session.is_forked() {
            HoldState::Lost(Loss::Forked)
        } else {
            self.look()
        }
    }

    /// As [`state`](Self::state), in the process that acquired it.
    pub(super) fn look(&self) -> HoldState {
        self.hold.at(self.session.now())
    }

    /// # Errors
    /// [`Error::Lost`] if the hold is lost.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.state().check(&self.hold.claim.key)
    }

    /// Returns how long the hold is certainly ours if it is not renewed again.
    pub(crate) fn remaining(&self) -> Duration {
        match self.state() {
            HoldState::Lost(_) => Duration::ZERO,
            HoldState::Safe | HoldState::Jeopardy => {
                self.session.now().until(self.hold.valid_until())
            }
        }
    }
}

impl AsRef<Self> for View {
    fn as_ref(&self) -> &Self {
        self
    }
}

/// One of the guards of a hold, as data. It is sent to its caller through a channel; if it is
/// dropped on the way, it gives its guard back.
#[derive(Debug)]
pub(crate) struct RawGuard {
    view: View,
    stage: Stage,
    /// Whether its owner held the lock already.
    is_reentry: bool,
}

#[derive(Debug)]
enum Stage {
    /// Its caller, which called from this origin, has not claimed it yet.
    OnItsWay {
        origin: Origin,
        /// Another call of this owner waited at the same time: two branches of a task.
        beside: bool,
    },
    Taken(Entrance),
    /// The hold has been counted down for this guard, or the grant was revoked.
    Over,
}

impl RawGuard {
    /// Makes the guard of a caller that has entered a hold of its owner by itself.
    pub(super) fn entered(session: Arc<Session>, hold: Arc<Hold>, origin: Origin) -> Self {
        let stage = Stage::Taken(reentries::enters(&session, &hold, origin));
        Self {
            view: View { session, hold },
            stage,
            is_reentry: true,
        }
    }

    /// Makes a guard that is sent to its caller, which has to claim it.
    pub(super) fn granted(session: Arc<Session>, hold: Arc<Hold>, origin: Origin) -> Self {
        let stage = Stage::OnItsWay {
            origin,
            beside: false,
        };
        Self {
            view: View { session, hold },
            stage,
            is_reentry: false,
        }
    }

    /// Makes the guard of a caller that waited while another call of its owner did, and enters with
    /// that one.
    pub(super) fn granted_beside(session: Arc<Session>, hold: Arc<Hold>, origin: Origin) -> Self {
        let beside = [origin, hold.origin]
            .iter()
            .all(|origin| origin.known == Known::Calling);
        let stage = Stage::OnItsWay { origin, beside };
        Self {
            view: View { session, hold },
            stage,
            is_reentry: true,
        }
    }

    /// Claims it for its caller. Returns false if it was revoked because that took too long.
    pub(super) fn claim(&mut self) -> bool {
        if let Stage::OnItsWay { origin, beside } = self.stage {
            let View { session, hold } = &self.view;
            self.stage = if hold.take_guard() {
                jobs::recall(session, hold);
                Stage::Taken(reentries::enters(session, hold, origin))
            } else {
                Stage::Over
            };
            // After the claim: a test that fails leaves no lock behind.
            if beside {
                reentries::fail_test(session, &hold.claim.key);
            }
        }
        matches!(self.stage, Stage::Taken(_))
    }

    pub(super) fn hold(&self) -> &Arc<Hold> {
        &self.view.hold
    }

    pub(super) fn is_reentry(&self) -> bool {
        self.is_reentry
    }

    /// Returns from where its caller came. The hold may have been taken elsewhere.
    pub(super) fn origin(&self) -> Origin {
        match &self.stage {
            Stage::OnItsWay { origin, .. } => *origin,
            Stage::Taken(entrance) => entrance.origin(),
            Stage::Over => self.hold().origin,
        }
    }

    pub(super) fn keep_for(&self, min_hold: Duration) {
        let View { session, hold } = &self.view;
        hold.keep_until(session.now() + min_hold);
    }

    pub(super) async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let View { session, hold } = &self.view;
        let extending = extending::extend(session, hold, lease);
        extending
            .await
            .map_err(|error| error.of(std::slice::from_ref(&hold.claim.key)))
    }

    /// Releases. The answer arrives later.
    pub(super) fn release(mut self) -> Releasing {
        Releasing {
            key: self.hold().claim.key.clone(),
            answer: self.leave(),
        }
    }

    fn leave(&mut self) -> Result<AnswerReceiver<Result<(), Error>>, Loss> {
        let View { session, hold } = &self.view;
        // Replaced first, so that the drop of this guard does not count the hold down again.
        let entrance = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Taken(entrance) => Some(entrance),
            // Its caller never entered.
            Stage::OnItsWay { .. } | Stage::Over => None,
        };
        leave::leave(session, hold, entrance.as_ref())
    }
}

impl AsRef<View> for RawGuard {
    fn as_ref(&self) -> &View {
        &self.view
    }
}

/// A release that is in flight.
pub(super) struct Releasing {
    key: Key,
    answer: Result<AnswerReceiver<Result<(), Error>>, Loss>,
}

impl Releasing {
    pub(super) async fn answer(self) -> Result<(), Error> {
        match self.answer {
            // Without an answer the engine has ended, and the lease runs out.
            Ok(answer) => answer
                .await
                .unwrap_or_else(|_| Err(Error::lost(&self.key, Loss::Closed))),
            Err(Loss::Forked) => Err(Error::Forked),
            Err(loss) => Err(Error::lost(&self.key, loss)),
        }
    }
}

impl Drop for RawGuard {
    fn drop(&mut self) {
        let stands = match self.stage {
            // It was counted with the grant, unless that was revoked. A forked copy may not take
            // the mutex.
            Stage::OnItsWay { .. } => !self.view.session.is_forked() && self.view.hold.take_guard(),
            Stage::Taken(_) => true,
            Stage::Over => false,
        };
        if stands {
            // Best effort: the answer is ignored.
            let _: Result<_, _> = self.leave();
        }
    }
}
