//! The proof of one guard. Dropping it decrements the hold count; dropping the last one releases the lock.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Session;
use crate::error::{Error, Loss};
use crate::fence::Fence;
use crate::foreign::Answer;
use crate::hold::{self, Entrance, Hold, HoldState};
use crate::identity::{Known, Origin};
use crate::key::Key;
use crate::owner::Owner;

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
        if self.session.is_forked() { HoldState::Lost(Loss::Forked) } else { self.look() }
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
            HoldState::Safe | HoldState::Jeopardy => self.session.now().until(self.hold.valid_until()),
        }
    }
}

/// The proof that one lock is held, or several. Dropping it gives them back.
pub(crate) trait Held {
    /// Returns a token that fires with the first loss. Cancelling it cancels nothing else.
    fn token(&self) -> CancellationToken;

    /// Returns how safe it is now.
    fn state(&self) -> HoldState;

    /// # Errors
    /// [`Error::Lost`] with the first loss.
    fn check(&self) -> Result<(), Error>;

    /// Returns whether its owner held it already when its caller got it.
    fn is_reentry(&self) -> bool;

    /// Returns the fence of a single lock.
    fn fence(&self) -> Option<Fence>;

    /// Notes that a handle of this class has it.
    fn is_of_class(&self, class: &'static str);

    /// Returns the owner that holds it.
    fn owner(&self) -> Owner;

    /// Gives it to another owner.
    fn give_to(&self, owner: Owner);

    /// Keeps the lock on the servers for this long from now on, whenever it is released. Of several times the latest
    /// counts.
    fn keep_for(&self, min_hold: Duration);

    /// Makes a fixed lease last for at least this long from now.
    ///
    /// # Errors
    /// As [`Guard::extend`](crate::Guard::extend).
    async fn extend(&self, lease: Duration) -> Result<(), Error>;

    /// Releases, and waits for the answer. Once this future has been polled, dropping it only ends the wait.
    ///
    /// # Errors
    /// The loss, or the error of the release.
    async fn unlock(self) -> Result<(), Error>;
}

/// One of the guards of a hold, as data. It is sent to its caller through a channel; if it is dropped on the way, it
/// gives its guard back.
#[derive(Debug)]
pub(crate) struct Grip {
    view: View,
    stage: Stage,
    /// Whether its owner held the lock already.
    is_reentry: bool,
}

#[derive(Debug)]
enum Stage {
    /// Its caller, which called from this origin, has yet to claim it.
    OnItsWay {
        origin: Origin,
        /// Another call of this owner waited at the same time: two branches of a task.
        beside: bool,
    },
    Taken(Entrance),
    /// The hold has been counted down for this grip, or the grant was revoked.
    Over,
}

impl Grip {
    /// Makes the grip of a caller that has entered a hold of its owner by itself.
    pub(super) fn entered(session: Arc<Session>, hold: Arc<Hold>, origin: Origin) -> Self {
        let stage = Stage::Taken(session.enters(&hold, origin));
        Self { view: View { session, hold }, stage, is_reentry: true }
    }

    /// Makes a grip that is sent to its caller, which has to claim it.
    pub(super) fn granted(session: Arc<Session>, hold: Arc<Hold>, origin: Origin) -> Self {
        let stage = Stage::OnItsWay { origin, beside: false };
        Self { view: View { session, hold }, stage, is_reentry: false }
    }

    /// Makes the grip of a caller that waited while another call of its owner did, and enters with that one.
    pub(super) fn granted_beside(session: Arc<Session>, hold: Arc<Hold>, origin: Origin) -> Self {
        let beside = [origin, hold.origin].iter().all(|origin| origin.known == Known::Calling);
        let stage = Stage::OnItsWay { origin, beside };
        Self { view: View { session, hold }, stage, is_reentry: true }
    }

    /// Claims it for its caller. Returns false if it was revoked because that took too long.
    pub(super) fn claim(&mut self) -> bool {
        if let Stage::OnItsWay { origin, beside } = self.stage {
            let View { session, hold } = &self.view;
            self.stage = if hold.take_guard() { Stage::Taken(session.enters(hold, origin)) } else { Stage::Over };
            if beside {
                session.fail_test(&hold.claim.key);
            }
        }
        matches!(self.stage, Stage::Taken(_))
    }

    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.view.hold
    }

    /// Releases. The answer comes later.
    pub(super) fn release(mut self) -> Releasing {
        Releasing { key: self.hold().claim.key.clone(), answer: self.leave() }
    }

    fn leave(&mut self) -> Result<Answer<Result<(), Error>>, Loss> {
        let View { session, hold } = &self.view;
        let entrance = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Taken(entrance) => Some(entrance),
            // Its caller never entered.
            Stage::OnItsWay { .. } | Stage::Over => None,
        };
        session.leave(hold, entrance.as_ref())
    }
}

impl Held for Grip {
    fn token(&self) -> CancellationToken {
        self.view.token()
    }

    fn state(&self) -> HoldState {
        self.view.state()
    }

    fn check(&self) -> Result<(), Error> {
        self.view.check()
    }

    fn is_reentry(&self) -> bool {
        self.is_reentry
    }

    fn fence(&self) -> Option<Fence> {
        Some(self.hold().fence)
    }

    fn is_of_class(&self, class: &'static str) {
        self.hold().is_of_class(class);
    }

    fn owner(&self) -> Owner {
        self.hold().owner()
    }

    fn give_to(&self, owner: Owner) {
        self.hold().give_to(owner);
    }

    fn keep_for(&self, min_hold: Duration) {
        let View { session, hold } = &self.view;
        hold.keep_until(session.now() + min_hold);
    }

    async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let View { session, hold } = &self.view;
        let extending = session.extend(hold, lease);
        extending.await.map_err(|error| error.of(std::slice::from_ref(&hold.claim.key)))
    }

    async fn unlock(self) -> Result<(), Error> {
        self.release().answer().await
    }
}

/// A release that is under way.
pub(super) struct Releasing {
    key: Key,
    answer: Result<Answer<Result<(), Error>>, Loss>,
}

impl Releasing {
    pub(super) async fn answer(self) -> Result<(), Error> {
        match self.answer {
            Ok(answer) => answer.await.unwrap_or_else(|_| Err(Error::lost(&self.key, Loss::Closed))),
            Err(Loss::Forked) => Err(Error::Forked),
            Err(loss) => Err(Error::lost(&self.key, loss)),
        }
    }
}

impl Drop for Grip {
    fn drop(&mut self) {
        let stands = match self.stage {
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
