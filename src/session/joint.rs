//! Several holds as one: the state of the worst one counts.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::grip::{Held, Releasing};
use super::{Grip, View};
use crate::error::Error;
use crate::fence::Fence;
use crate::hold::{HoldState, Joint};
use crate::owner::Owner;

/// A view of several holds. It keeps neither the locks nor the engine alive.
#[derive(Debug, Clone)]
pub(crate) struct JointView {
    views: Vec<View>,
    joint: Arc<Joint>,
}

impl JointView {
    pub(crate) fn views(&self) -> &[View] {
        &self.views
    }

    /// Returns a token that fires with the first loss. Cancelling it cancels nothing else.
    pub(crate) fn token(&self) -> CancellationToken {
        // In a forked process the token of each hold has fired, and the joint one never fires.
        self.views.iter().find(|view| view.is_forked()).map_or_else(|| self.joint.token(), View::token)
    }

    /// Returns how safe the worst of them is now.
    pub(crate) fn state(&self) -> HoldState {
        // Each one is checked: the first caller that finds a loss fires the tokens.
        let worst = self.views.iter().map(View::state).fold(HoldState::Safe, |worst, state| match (worst, state) {
            (HoldState::Lost(_), _) | (HoldState::Jeopardy, HoldState::Safe) => worst,
            _ => state,
        });
        match (worst, self.joint.loss()) {
            (HoldState::Lost(_), Some(first)) => HoldState::Lost(first),
            (worst, _) => worst,
        }
    }

    /// # Errors
    /// [`Error::Lost`] with the first loss.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let state = self.state();
        let lost_first = self.views.iter().find(|view| view.state() == state).or(self.views.first());
        lost_first.map_or(Ok(()), |view| state.check(&view.hold().claim.key))
    }

    /// Returns how long all of them are certainly ours if they are not renewed again.
    pub(crate) fn remaining(&self) -> Duration {
        self.views.iter().map(View::remaining).min().unwrap_or_default()
    }
}

/// One guard of each of several holds.
#[derive(Debug)]
pub(crate) struct JointGrip {
    grips: Vec<Grip>,
    view: JointView,
}

impl JointGrip {
    pub(crate) fn new(grips: Vec<Grip>) -> Self {
        let joint = Arc::new(Joint::default());
        grips.iter().for_each(|grip| grip.hold().join(&joint));
        let view = JointView { views: grips.iter().map(|grip| grip.view().clone()).collect(), joint };
        Self { grips, view }
    }

    pub(crate) fn view(&self) -> &JointView {
        &self.view
    }
}

impl Held for JointGrip {
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
        self.grips.iter().all(Grip::is_reentry)
    }

    fn fence(&self) -> Option<Fence> {
        None
    }

    fn is_of_class(&self, class: &'static str) {
        self.grips.iter().for_each(|grip| grip.is_of_class(class));
    }

    fn owner(&self) -> Owner {
        self.grips.first().map_or_else(Owner::new, |grip| grip.hold().owner())
    }

    fn give_to(&self, owner: Owner) {
        self.grips.iter().for_each(|grip| grip.give_to(owner.clone()));
    }

    fn keep_for(&self, min_hold: Duration) {
        self.grips.iter().for_each(|grip| grip.keep_for(min_hold));
    }

    /// Extends one after the other, whatever the outcome of each. Returns the first error.
    async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let mut first = Ok(());
        for grip in &self.grips {
            first = first.and(grip.extend(lease).await);
        }
        first
    }

    /// Releases all of them at once, whatever the outcome of each. Returns the first loss, or the first other error.
    async fn unlock(self) -> Result<(), Error> {
        // Before anything is awaited: from here on, dropping this future only ends the wait.
        let releasing: Vec<Releasing> = self.grips.into_iter().map(Grip::release).collect();
        let (mut lost, mut failed) = (Vec::new(), None);
        for release in releasing {
            match release.answer().await {
                Ok(()) => {}
                Err(Error::Lost { key, loss }) => lost.push((key, loss)),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let first = self.view.joint.loss();
        let lost_first = lost.iter().find(|(_, loss)| Some(*loss) == first).or(lost.first());
        let lost = lost_first.map(|(key, loss)| Error::lost(key, first.unwrap_or(*loss)));
        lost.or(failed).map_or(Ok(()), Err)
    }
}
