//! One hold or several as one: the state of the worst one counts.

use std::iter::once;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::raw_guard::Releasing;
use super::{RawGuard, View};
use crate::error::Error;
use crate::fence::Fence;
use crate::hold::{HoldState, Joint};
use crate::identity::Origin;
use crate::key::Key;
use crate::owner::Owner;

/// What a guard has of each of its holds, or a section.
#[derive(Debug, Clone)]
pub(crate) struct Joined<T> {
    first: T,
    // Boxed: a task has room for it while it waits for one lock.
    more: Option<Box<More<T>>>,
}

/// The other ones of several.
#[derive(Debug, Clone)]
struct More<T> {
    rest: Vec<T>,
    /// The common token of all.
    joint: Arc<Joint>,
}

/// One guard of each hold.
pub(crate) type RawGuards = Joined<RawGuard>;

/// A view of each hold. It keeps neither the locks nor the engine alive.
pub(crate) type Views = Joined<View>;

impl<T: AsRef<View>> Joined<T> {
    fn each(&self) -> impl Iterator<Item = &T> {
        once(&self.first).chain(self.more.iter().flat_map(|more| &more.rest))
    }

    fn views(&self) -> impl Iterator<Item = &View> {
        self.each().map(AsRef::as_ref)
    }

    /// Returns the view of the first of them.
    pub(crate) fn first(&self) -> &View {
        self.first.as_ref()
    }

    /// Returns a token that fires with the first loss. Cancelling it cancels nothing else.
    pub(crate) fn token(&self) -> CancellationToken {
        // In a forked process the token of each hold has fired, and the joint one never fires.
        let more = self.more.as_ref().filter(|_| !self.first().is_forked());
        more.map_or_else(|| self.first().token(), |more| more.joint.token())
    }

    /// Returns how safe the worst of them is now.
    pub(crate) fn state(&self) -> HoldState {
        // Each one is checked: the first caller that finds a loss fires the tokens.
        let worst = self
            .views()
            .map(View::state)
            .fold(HoldState::Safe, |worst, state| match (worst, state) {
                (HoldState::Lost(_), _) | (HoldState::Jeopardy, HoldState::Safe) => worst,
                _ => state,
            });
        match (worst, self.more.as_ref().and_then(|more| more.joint.loss())) {
            (HoldState::Lost(_), Some(first)) => HoldState::Lost(first),
            (worst, _) => worst,
        }
    }

    /// # Errors
    /// [`Error::Lost`] with the first loss.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let state = self.state();
        // Not the first one that is lost, if another one was lost before.
        let lost_first = self
            .views()
            .find(|view| self.more.is_none() || view.state() == state);
        state.check(&lost_first.unwrap_or(self.first()).hold().claim.key)
    }

    /// Returns how long all of them are certainly ours if they are not renewed again.
    pub(crate) fn remaining(&self) -> Duration {
        self.views().map(View::remaining).min().unwrap_or_default()
    }

    /// Returns the names and their fences, sorted by name.
    pub(crate) fn fences(&self) -> impl Iterator<Item = (&Key, Fence)> {
        self.views()
            .map(|view| (&view.hold().claim.key, view.hold().fence))
    }

    pub(crate) fn fence_of(&self, key: &str) -> Option<Fence> {
        self.fences()
            .find(|(name, _)| name.as_str() == key)
            .map(|(_, fence)| fence)
    }
}

impl From<RawGuard> for Joined<RawGuard> {
    fn from(first: RawGuard) -> Self {
        Self { first, more: None }
    }
}

/// Dropping them gives the locks back.
impl Joined<RawGuard> {
    /// Joins them, if there is any.
    pub(crate) fn join(guards: Vec<RawGuard>) -> Option<Self> {
        let joint = Arc::new(Joint::default());
        guards.iter().for_each(|guard| guard.hold().join(&joint));
        let mut guards = guards.into_iter();
        let first = guards.next()?;
        Some(Self {
            first,
            more: Some(Box::new(More {
                rest: guards.collect(),
                joint,
            })),
        })
    }

    /// Returns from where the caller of the first of them came.
    pub(crate) fn origin(&self) -> Origin {
        self.first.origin()
    }

    pub(crate) fn view(&self) -> Views {
        let more = self.more.as_ref().map(|more| {
            let rest = more
                .rest
                .iter()
                .map(|guard| guard.as_ref().clone())
                .collect();
            Box::new(More {
                rest,
                joint: Arc::clone(&more.joint),
            })
        });
        Joined {
            first: self.first().clone(),
            more,
        }
    }

    /// Returns whether their owner held all of them already when their caller got them.
    pub(crate) fn is_reentry(&self) -> bool {
        self.each().all(RawGuard::is_reentry)
    }

    /// Notes that a handle of this class has them.
    pub(crate) fn is_of_class(&self, class: &'static str) {
        self.each()
            .for_each(|guard| guard.hold().is_of_class(class));
    }

    /// Returns the owner that holds them.
    pub(crate) fn owner(&self) -> Owner {
        self.first.hold().owner()
    }

    /// Gives them to another owner.
    pub(crate) fn give_to(&self, owner: &Owner) {
        self.each()
            .for_each(|guard| guard.hold().give_to(owner.clone()));
    }

    /// Keeps the locks on the servers for this long from now on, whenever they are released. Of
    /// several times the latest counts.
    pub(crate) fn keep_for(&self, min_hold: Duration) {
        self.each().for_each(|guard| guard.keep_for(min_hold));
    }

    /// Makes their fixed leases last for at least this long from now, one after the other, whatever
    /// the outcome of each. Returns the first error.
    ///
    /// # Errors
    /// As [`Guard::extend`](crate::Guard::extend).
    pub(crate) async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let mut first = Ok(());
        for guard in self.each() {
            first = first.and(guard.extend(lease).await);
        }
        first
    }

    /// Releases all of them at once, whatever the outcome of each, and waits for the answers. Once
    /// this future has been polled, dropping it only ends the wait.
    ///
    /// # Errors
    /// The first loss, or the first other error.
    pub(crate) async fn unlock(self) -> Result<(), Error> {
        // Before anything is awaited: from here on, dropping this future only ends the wait.
        let first = self.first.release();
        match self.more {
            None => first.answer().await,
            Some(more) => Box::pin(more.unlock(first)).await,
        }
    }
}

impl More<RawGuard> {
    async fn unlock(self, first: Releasing) -> Result<(), Error> {
        // Collected, so that all are sent before the first answer is awaited.
        let rest: Vec<Releasing> = self.rest.into_iter().map(RawGuard::release).collect();
        let mut lost = Vec::new();
        let mut failed = None;
        for release in once(first).chain(rest) {
            match release.answer().await {
                Ok(()) => {}
                Err(Error::Lost { key, loss }) => lost.push((key, loss)),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let first = self.joint.loss();
        let lost_first = lost
            .iter()
            .find(|(_, loss)| Some(*loss) == first)
            .or(lost.first());
        let lost = lost_first.map(|(key, loss)| Error::lost(key, first.unwrap_or(*loss)));
        lost.or(failed).map_or(Ok(()), Err)
    }
}
