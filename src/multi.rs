//! Several locks as one: the named handle, its guard, and the view of a critical section.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::error::{Error, Loss};
use crate::fence::Fence;
use crate::handle::{Handle, Taken, Wait, Wanted};
use crate::hold::{HoldState, Terms};
use crate::identity::{Caller, Scope};
use crate::key::Key;
use crate::options::Reentry;
use crate::owner::Owner;
use crate::session::{Alive, Held as _, JointGrip, JointView, Session};

/// Several locks that are taken together: all of them, or none. Cheap to clone; it holds nothing by itself.
///
/// Each of them is the lock of its name, the same that [`Locker::get`](crate::Locker::get) gives: they exclude single
/// locks of the same names, and whoever holds one of them already enters it again (see [`Lock`](crate::Lock)).
///
/// # How they are taken
/// Where all are free, by one script in one round trip. Where somebody holds one, nothing is taken by that; those who wait
/// then take one after the other in the order of their names, each in its line, so that two who want the same locks
/// never wait for each other, in whatever order they named them. **Whoever holds a lock already and then waits for others
/// is outside of that order, and can wait for somebody who waits for him: take what belongs together at once.**
///
/// A script runs alone on its server: with thousands of locks in one of them, everybody else waits for milliseconds.
///
/// # Examples
/// ```no_run
/// # async fn example(locks: lockhound::Locker) -> Result<(), lockhound::Error> {
/// # async fn transfer() {}
/// let guard = locks.all(["account:1", "account:2"]).lock().await?;
/// let lost = guard.lost();
/// tokio::select! {
///     biased;
///     () = lost.cancelled() => { /* stop: one of them may be someone else's */ }
///     () = transfer() => guard.unlock().await?,
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct MultiLock(Handle<Arc<[Key]>>);

impl Wanted for Arc<[Key]> {
    type Grip = JointGrip;

    fn keys(&self) -> &[Key] {
        self
    }

    async fn take(
        &self,
        session: &Arc<Session>,
        caller: &Caller,
        terms: Terms,
        wait: Wait,
    ) -> Result<Option<JointGrip>, Error> {
        let grips = match wait {
            Wait::Never => session.try_all(self, caller, terms).await,
            Wait::For(wait) => session.lock_all(self, caller, terms, Some(wait)).await,
            Wait::Always => session.lock_all(self, caller, terms, None).await,
        };
        Ok(grips?.map(JointGrip::new))
    }
}

impl MultiLock {
    pub(crate) fn new(alive: Arc<Alive>, mut keys: Vec<Key>) -> Self {
        keys.sort_unstable();
        Self(Handle::new(alive, keys.into()))
    }

    /// The names, in order.
    pub fn keys(&self) -> &[Key] {
        &self.0.wanted
    }

    /// The same locks, taken for a fixed time; see [`Lock::fixed_lease`](crate::Lock::fixed_lease). The time of each begins
    /// when it is taken. If that of the first is over before the last could be taken, none is, and it begins anew: give a
    /// time that is longer than what others hold one of them for.
    #[must_use]
    pub const fn fixed_lease(mut self, lease: Duration) -> Self {
        self.0.manner.fixed_lease = Some(lease);
        self
    }

    /// The same locks, with a limit on how long they are held; see [`Lock::max_hold`](crate::Lock::max_hold). The time of
    /// each begins when it is taken, as with [`fixed_lease`](Self::fixed_lease).
    #[must_use]
    pub const fn max_hold(mut self, max_hold: Duration) -> Self {
        self.0.manner.max_hold = Some(max_hold);
        self
    }

    /// Keeps the locks from everybody for at least this long after all of them are taken, even if they are released
    /// sooner; see [`Lock::min_hold`](crate::Lock::min_hold). Where not all of them can be had, those that were taken for
    /// a moment are not kept.
    #[must_use]
    pub const fn min_hold(mut self, min_hold: Duration) -> Self {
        self.0.manner.min_hold = Some(min_hold);
        self
    }

    /// The same locks, as this owner and not as the calling task; see [`Lock::owned_by`](crate::Lock::owned_by).
    #[must_use]
    pub fn owned_by(mut self, owner: Owner) -> Self {
        self.0.manner.owner = Some(owner);
        self
    }

    /// The same locks, where each call is an owner of its own; see [`Lock::non_reentrant`](crate::Lock::non_reentrant).
    #[must_use]
    pub const fn non_reentrant(mut self) -> Self {
        self.0.manner.reentry = Some(Reentry::Never);
        self
    }

    /// Takes all of them, and waits where somebody else holds one; see [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Errors
    /// As [`Lock::lock`](crate::Lock::lock), and [`Error::Config`] for an empty list and for a name that is given twice.
    ///
    /// # Cancel safety
    /// Dropping the future gives back what was taken, and leaves the line. A future that is kept but not polled while it
    /// waits keeps the locks that it has taken by then.
    pub async fn lock(&self) -> Result<MultiGuard, Error> {
        self.0.take(Wait::Always).await?.map(MultiGuard).ok_or(Error::Closed)
    }

    /// Takes all of them if that is possible at once: one attempt, which never stands in line.
    ///
    /// `None`: somebody else holds one of them, and none was taken.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), but [`Error::Unavailable`] already if this attempt has no answer.
    ///
    /// # Cancel safety
    /// Dropping the future gives back what was taken.
    pub async fn try_lock(&self) -> Result<Option<MultiGuard>, Error> {
        Ok(self.0.take(Wait::Never).await?.map(MultiGuard))
    }

    /// Takes all of them, and waits up to this time for that.
    ///
    /// `None`: the time is over, and somebody else held one of them. A time of zero is [`try_lock`](Self::try_lock).
    ///
    /// # Errors
    /// As [`lock`](Self::lock), and [`Error::Unavailable`] when the time is over and the last round had no answer.
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    pub async fn try_lock_for(&self, wait: Duration) -> Result<Option<MultiGuard>, Error> {
        Ok(self.0.take(Wait::up_to(wait)).await?.map(MultiGuard))
    }

    /// [`lock`](Self::lock) for threads without async code. The thread is the owner, where there is no tokio task.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    ///
    /// # Panics
    /// In async code, which it would block.
    pub fn blocking_lock(&self) -> Result<MultiGuard, Error> {
        self.0.take_blocking(Wait::Always)?.map(MultiGuard).ok_or(Error::Closed)
    }

    /// [`try_lock`](Self::try_lock) for threads without async code.
    ///
    /// # Errors
    /// As [`try_lock`](Self::try_lock).
    ///
    /// # Panics
    /// In async code, which it would block.
    pub fn blocking_try_lock(&self) -> Result<Option<MultiGuard>, Error> {
        Ok(self.0.take_blocking(Wait::Never)?.map(MultiGuard))
    }

    /// [`try_lock_for`](Self::try_lock_for) for threads without async code.
    ///
    /// # Errors
    /// As [`try_lock_for`](Self::try_lock_for).
    ///
    /// # Panics
    /// In async code, which it would block.
    pub fn blocking_try_lock_for(&self, wait: Duration) -> Result<Option<MultiGuard>, Error> {
        Ok(self.0.take_blocking(Wait::up_to(wait))?.map(MultiGuard))
    }

    /// Takes all of them, runs a critical section, and releases. If one is lost meanwhile, the section is dropped where it
    /// stands and [`Error::Lost`] is returned. Runs that share one of the locks exclude each other, in branches of one task as
    /// well; see [`Lock::run`](crate::Lock::run).
    ///
    /// # Errors
    /// As [`lock`](Self::lock); [`Error::Lost`] too if one turns out to have been lost before the release.
    ///
    /// # Cancel safety
    /// Dropping the future drops the section and releases all locks in the background.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(locks: lockhound::Locker) -> Result<(), lockhound::Error> {
    /// # async fn transfer(_: Option<lockhound::Fence>) {}
    /// let accounts = locks.all(["account:1", "account:2"]);
    /// accounts.run(|section| async move { transfer(section.fence("account:1")).await }).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run<T, F, Fut>(&self, section: F) -> Result<T, Error>
    where
        F: FnOnce(MultiSection) -> Fut,
        Fut: Future<Output = T>,
    {
        self.0.run(|grip, scope| MultiSection { view: grip.view().clone(), scope }, section).await
    }
}

/// The proof that several locks are held: one guard for all of them, and one token, which fires when any is lost.
///
/// What a [`Guard`](crate::Guard) promises of one lock, this promises of each. What is lost of one of them is over for all:
/// [`check`](Self::check), [`state`](Self::state) and [`remaining`](Self::remaining) tell the worst. The others stay locked,
/// and renewed, until this guard goes.
///
/// # Dropping
/// Drop releases all of them in the background; [`unlock`](Self::unlock) says whether that worked.
#[must_use = "the locks are released when their guard is dropped"]
pub struct MultiGuard(Taken<JointGrip>);

impl MultiGuard {
    /// A token that fires, once, when any of the locks is lost; cancelling it cancels nothing else.
    pub fn lost(&self) -> CancellationToken {
        self.0.grip.token()
    }

    /// Whether any of the locks is lost. Reads the clock, so that it is right even where the watchdog is late.
    pub fn is_lost(&self) -> bool {
        self.loss().is_some()
    }

    /// How the first lock that was lost was lost, if one was; as [`is_lost`](Self::is_lost).
    pub fn loss(&self) -> Option<Loss> {
        self.state().loss()
    }

    /// For `?` inside a critical section; as [`is_lost`](Self::is_lost).
    ///
    /// # Errors
    /// [`Error::Lost`].
    pub fn check(&self) -> Result<(), Error> {
        self.state().check()
    }

    /// How safe the worst of them is. Reads the clock.
    pub fn state(&self) -> HoldState {
        self.0.grip.state()
    }

    /// For how long all of them are certainly held if none is renewed again. Zero if one is lost.
    pub fn remaining(&self) -> Duration {
        self.0.grip.view().remaining()
    }

    /// The fencing token of one of the locks; `None` for a name that is not among them. Each lock has a sequence of its own.
    pub fn fence(&self, key: impl AsRef<str>) -> Option<Fence> {
        fence(self.0.grip.view(), key.as_ref())
    }

    /// The names and their fencing tokens, in the order of the names.
    pub fn fences(&self) -> impl Iterator<Item = (&Key, Fence)> {
        fences(self.0.grip.view())
    }

    /// The names, in order.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.fences().map(|(key, _)| key)
    }

    /// Gives all holds, all their guards with them, to an owner of their own: this task no longer enters them again. See
    /// [`Guard::detach`](crate::Guard::detach).
    pub fn detach(self) -> Self {
        self.0.grip.give_to(Owner::new());
        self
    }

    /// Runs a future as the owner of these holds, in whatever task: what it locks enters again. See
    /// [`Guard::scope`](crate::Guard::scope).
    ///
    /// # Cancel safety
    /// Dropping it drops the future that it runs.
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        self.0.scope(future)
    }

    /// Releases all of them, each if this was its last guard.
    ///
    /// # Errors
    /// As [`Guard::unlock`](crate::Guard::unlock), and all are released whatever becomes of one: if any was lost, the
    /// first loss; else the first of the other errors.
    ///
    /// # Cancel safety
    /// Once it was polled it is carried out, even if the future is dropped; a future that was never polled drops its
    /// guard, which releases them too.
    pub async fn unlock(self) -> Result<(), Error> {
        self.0.unlock().await
    }

    /// [`unlock`](Self::unlock) for threads without async code.
    ///
    /// # Errors
    /// As [`unlock`](Self::unlock).
    ///
    /// # Panics
    /// In async code, which it would block.
    pub fn blocking_unlock(self) -> Result<(), Error> {
        self.0.blocking_unlock()
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiGuard")
            .field("fences", &self.fences().collect::<Vec<_>>())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// A critical section's view of the locks that [`MultiLock::run`] holds for it.
#[derive(Debug, Clone)]
pub struct MultiSection {
    view: JointView,
    scope: Scope,
}

impl MultiSection {
    /// A token that fires when any of the locks is lost; cancelling it cancels nothing else.
    pub fn lost(&self) -> CancellationToken {
        self.view.token()
    }

    /// For `?` between steps: reads the clock, so that it is right even where the watchdog is late.
    ///
    /// # Errors
    /// [`Error::Lost`].
    pub fn check(&self) -> Result<(), Error> {
        self.view.check()
    }

    /// Runs a future as inside of this section, in whatever task: what it locks enters again. See
    /// [`Section::scope`](crate::Section::scope).
    ///
    /// # Cancel safety
    /// Dropping it drops the future that it runs.
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        self.scope.clone().run(future)
    }

    /// The fencing token of one of the locks; `None` for a name that is not among them.
    pub fn fence(&self, key: impl AsRef<str>) -> Option<Fence> {
        fence(&self.view, key.as_ref())
    }

    /// For how long all of them are certainly held if none is renewed again.
    pub fn remaining(&self) -> Duration {
        self.view.remaining()
    }
}

fn fences(view: &JointView) -> impl Iterator<Item = (&Key, Fence)> {
    view.views().iter().map(|view| (&view.hold().claim.key, view.hold().fence))
}

fn fence(view: &JointView, key: &str) -> Option<Fence> {
    fences(view).find(|(name, _)| name.as_str() == key).map(|(_, fence)| fence)
}
