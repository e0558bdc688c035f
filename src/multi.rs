//! Several locks as one: the handle, its guard, and the view of a critical section.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::error::{Error, Loss};
use crate::fence::Fence;
use crate::handle::{GuardInner, Handle, Wait};
use crate::hold::HoldState;
use crate::identity::Scope;
use crate::key::Key;
use crate::options::Reentry;
use crate::owner::Owner;
use crate::session::{SharedSession, Views};

/// Several locks that are taken together: all of them, or none.
///
/// Cheap to clone; the handle by itself holds nothing.
///
/// Each of them is the lock of its name, the same that [`Locker::get`](crate::Locker::get) returns:
/// it excludes single locks of the same name, and an owner that holds one of them already enters it
/// again (see [`Lock`](crate::Lock)).
///
/// # How they are taken
/// If all are free, one script takes them in one round trip. If somebody holds one of them, that
/// script takes nothing, and the waiter then takes one lock after the other in the order of their
/// names, each in its line. Two callers that want the same locks therefore never deadlock, in any
/// order of the names. **A caller that already holds a lock and then waits for others is outside of
/// that order, and can deadlock: take locks that belong together in one call.**
///
/// A script runs alone on its server: thousands of locks in one call delay all other clients by
/// milliseconds.
///
/// # Examples
/// ```no_run
/// # async fn example(locks: lockhound::Locker) -> Result<(), lockhound::Error> {
/// # async fn transfer() {}
/// let guard = locks.multi(["account:1", "account:2"]).lock().await?;
/// let lost = guard.lost();
/// tokio::select! {
///     biased;
///     () = lost.cancelled() => { /* stop: one of them may be someone else's */ }
///     () = transfer() => guard.unlock().await?,
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MultiLock(Handle);

impl MultiLock {
    pub(crate) fn new(shared: Arc<SharedSession>, mut keys: Vec<Key>) -> Self {
        keys.sort_unstable();
        Self(Handle::new(shared, keys.into()))
    }

    /// Returns the names, sorted.
    pub fn keys(&self) -> &[Key] {
        &self.0.keys
    }

    /// Returns a handle that takes the locks for a fixed time.
    ///
    /// See [`Lock::fixed_lease`](crate::Lock::fixed_lease). The time of each lock begins when it is
    /// taken. If the time of the first is over before the last is taken, the call releases what it
    /// has and starts over: choose a time longer than other callers hold one of the locks.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// use std::time::Duration;
    ///
    /// let accounts = locks.multi(["account:1", "account:2"]).fixed_lease(Duration::from_secs(60));
    /// let guard = accounts.lock().await?;
    /// tokio::time::sleep(Duration::from_secs(30)).await;
    /// guard.extend(Duration::from_secs(60)).await?; // both
    /// guard.unlock().await
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    #[must_use]
    pub const fn fixed_lease(mut self, lease: Duration) -> Self {
        self.0.options.fixed_lease = Some(lease);
        self
    }

    /// Returns a handle that limits how long the locks are held.
    ///
    /// See [`Lock::max_hold`](crate::Lock::max_hold). The time of each lock begins when it is
    /// taken, as with [`fixed_lease`](Self::fixed_lease).
    #[must_use]
    pub const fn max_hold(mut self, max_hold: Duration) -> Self {
        self.0.options.max_hold = Some(max_hold);
        self
    }

    /// Returns a handle that keeps the locks locked for at least this long, even after a release.
    ///
    /// The time begins when all of them are taken; see [`Lock::min_hold`](crate::Lock::min_hold).
    /// If the call does not get all of them, those that it took meanwhile are not kept.
    #[must_use]
    pub const fn min_hold(mut self, min_hold: Duration) -> Self {
        self.0.options.min_hold = Some(min_hold);
        self
    }

    /// Returns a handle whose calls and holds have this class, for metrics and spans.
    ///
    /// See [`Lock::class`](crate::Lock::class).
    #[must_use]
    pub const fn class(mut self, class: &'static str) -> Self {
        self.0.options.class = Some(class);
        self
    }

    /// Returns a handle that locks as this owner instead of as the calling task.
    ///
    /// See [`Lock::owned_by`](crate::Lock::owned_by).
    #[must_use]
    pub fn owned_by(mut self, owner: Owner) -> Self {
        self.0.options.owner = Some(owner);
        self
    }

    /// Returns a handle that locks as a new owner at each call.
    ///
    /// See [`Lock::non_reentrant`](crate::Lock::non_reentrant).
    #[must_use]
    pub const fn non_reentrant(mut self) -> Self {
        self.0.options.reentry = Some(Reentry::Never);
        self
    }

    /// Takes all of the locks.
    ///
    /// Waits if somebody else holds one of them; see [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Errors
    /// As [`Lock::lock`](crate::Lock::lock), and [`Error::Config`] for an empty list and for a name
    /// that is given twice.
    ///
    /// # Cancel safety
    /// Dropping the future releases the locks that were taken, and leaves the line. A future that
    /// is kept but not polled while it waits keeps the locks that it has taken so far.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let transfer = locks.multi(["account:2", "account:1"]); // in any order, without deadlocks
    /// let guard = transfer.lock().await?;
    /// assert!(guard.fence("account:1").is_some()); // each lock has a fence of its own
    /// guard.unlock().await
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn lock(&self) -> Result<MultiGuard, Error> {
        self.0
            .take(Wait::Always)
            .await?
            .map(MultiGuard)
            .ok_or(Error::Closed)
    }

    /// Takes all of the locks if they are free, in one attempt.
    ///
    /// It never waits in line.
    ///
    /// Returns `None` if somebody else holds one of them; then none is taken.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), but [`Error::Unavailable`] if this one attempt has no answer.
    ///
    /// # Cancel safety
    /// Dropping the future releases the locks that were taken.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// use lockhound::Owner;
    ///
    /// let other = locks.get("account:2").owned_by(Owner::new()).lock().await?;
    /// assert!(locks.multi(["account:1", "account:2"]).try_lock().await?.is_none());
    /// assert!(!locks.get("account:1").is_locked().await?); // none of them was taken
    /// other.unlock().await
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn try_lock(&self) -> Result<Option<MultiGuard>, Error> {
        Ok(self.0.take(Wait::Never).await?.map(MultiGuard))
    }

    /// Takes all of the locks, and waits for at most this long.
    ///
    /// Returns `None` if the time is over and somebody else held one of them. A time of zero is
    /// [`try_lock`](Self::try_lock).
    ///
    /// # Errors
    /// As [`lock`](Self::lock), and [`Error::Unavailable`] if the time is over and the last round
    /// had no answer.
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// use std::time::Duration;
    ///
    /// let accounts = locks.multi(["account:1", "account:2"]);
    /// if let Some(guard) = accounts.try_lock_for(Duration::from_secs(2)).await? {
    ///     guard.unlock().await?;
    /// }
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn try_lock_for(&self, wait: Duration) -> Result<Option<MultiGuard>, Error> {
        Ok(self.0.take(Wait::up_to(wait)).await?.map(MultiGuard))
    }

    /// Takes the locks as [`lock`](Self::lock) does, for threads without async code.
    ///
    /// The owner is the thread, unless it runs a tokio task.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    ///
    /// # Panics
    /// Panics in async code, which it would block.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")]
    /// # fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).blocking_connect()?;
    /// let guard = locks.multi(["account:1", "account:2"]).blocking_lock()?;
    /// guard.blocking_unlock()
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn blocking_lock(&self) -> Result<MultiGuard, Error> {
        self.0
            .take_blocking(Wait::Always)?
            .map(MultiGuard)
            .ok_or(Error::Closed)
    }

    /// Takes the locks as [`try_lock`](Self::try_lock) does, for threads without async code.
    ///
    /// # Errors
    /// As [`try_lock`](Self::try_lock).
    ///
    /// # Panics
    /// Panics in async code, which it would block.
    pub fn blocking_try_lock(&self) -> Result<Option<MultiGuard>, Error> {
        Ok(self.0.take_blocking(Wait::Never)?.map(MultiGuard))
    }

    /// Takes the locks on a thread, as [`try_lock_for`](Self::try_lock_for) does in async code.
    ///
    /// # Errors
    /// As [`try_lock_for`](Self::try_lock_for).
    ///
    /// # Panics
    /// Panics in async code, which it would block.
    pub fn blocking_try_lock_for(&self, wait: Duration) -> Result<Option<MultiGuard>, Error> {
        Ok(self.0.take_blocking(Wait::up_to(wait))?.map(MultiGuard))
    }

    /// Takes all of the locks, runs a critical section, and releases them.
    ///
    /// If one is lost meanwhile, it drops the section at its current `await` and returns
    /// [`Error::Lost`].
    ///
    /// Runs that share one of the locks exclude each other, also in branches of one task; see
    /// [`Lock::run`](crate::Lock::run).
    ///
    /// # Errors
    /// As [`lock`](Self::lock). [`Error::Lost`] also if the release finds that one was lost
    /// earlier.
    ///
    /// # Cancel safety
    /// Dropping the future drops the section and releases all locks in the background.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(locks: lockhound::Locker) -> Result<(), lockhound::Error> {
    /// # async fn transfer(_: Option<lockhound::Fence>) {}
    /// let accounts = locks.multi(["account:1", "account:2"]);
    /// accounts.run(|section| async move { transfer(section.fence("account:1")).await }).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run<T, F, Fut>(&self, section: F) -> Result<T, Error>
    where
        F: FnOnce(MultiSection) -> Fut,
        Fut: Future<Output = T>,
    {
        self.0
            .run(
                Wait::Always,
                |view, scope| section(MultiSection { view, scope }),
                |_| None,
            )
            .await?
            .ok_or(Error::Closed)
    }

    /// Does the same as [`run`](Self::run), but waits for at most this long.
    ///
    /// Returns `None` if somebody else still held one of the locks then.
    ///
    /// # Errors
    /// As [`run`](Self::run) and [`try_lock_for`](Self::try_lock_for).
    ///
    /// # Cancel safety
    /// As [`run`](Self::run).
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// use std::time::Duration;
    ///
    /// let accounts = locks.multi(["account:1", "account:2"]);
    /// let done = accounts.run_for(Duration::from_secs(2), |_| async { "transferred" }).await?;
    /// println!("{}", done.unwrap_or("somebody else has one of the accounts"));
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn run_for<T, F, Fut>(&self, wait: Duration, section: F) -> Result<Option<T>, Error>
    where
        F: FnOnce(MultiSection) -> Fut,
        Fut: Future<Output = T>,
    {
        self.0
            .run(
                Wait::up_to(wait),
                |view, scope| section(MultiSection { view, scope }),
                |_| None,
            )
            .await
    }

    /// Takes all of the locks, calls a function, and releases them, for threads without async code.
    ///
    /// See [`Lock::blocking_run`](crate::Lock::blocking_run).
    ///
    /// # Errors
    /// As [`blocking_lock`](Self::blocking_lock), and [`Error::Lost`] if a lock was lost meanwhile.
    ///
    /// # Panics
    /// Panics in async code, which it would block.
    pub fn blocking_run<T>(&self, section: impl FnOnce(MultiSection) -> T) -> Result<T, Error> {
        self.0
            .run_blocking(|view, scope| section(MultiSection { view, scope }))
    }
}

/// A guard of several held locks, with one token for all of them, which fires when any is lost.
///
/// It promises for each lock what a [`Guard`](crate::Guard) promises for one. The loss of one
/// counts as the loss of all: [`check`](Self::check), [`state`](Self::state) and
/// [`remaining`](Self::remaining) report the worst. The others stay locked, and are renewed, until
/// this guard is dropped.
///
/// # Dropping
/// Dropping the guard releases all of the locks in the background; [`unlock`](Self::unlock) reports
/// whether that worked.
#[must_use = "the locks are released when their guard is dropped"]
pub struct MultiGuard(GuardInner);

impl MultiGuard {
    /// Returns a token that fires once, when any of the locks is lost.
    ///
    /// Cancelling it cancels nothing else.
    pub fn lost(&self) -> CancellationToken {
        self.0.guards.token()
    }

    /// Returns whether any of the locks is lost.
    ///
    /// It reads the clock, so it is right even if the watchdog is late.
    pub fn is_lost(&self) -> bool {
        self.loss().is_some()
    }

    /// Returns the first loss of a lock, or `None` while all are held.
    ///
    /// It reads the clock, as [`is_lost`](Self::is_lost) does.
    pub fn loss(&self) -> Option<Loss> {
        self.state().loss()
    }

    /// Returns an error if any of the locks is lost, for `?` inside a critical section.
    ///
    /// It reads the clock, as [`is_lost`](Self::is_lost) does.
    ///
    /// # Errors
    /// [`Error::Lost`].
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// use lockhound::Error;
    ///
    /// let guard = locks.multi(["account:1", "account:2"]).lock().await?;
    /// locks.get("account:2").force_unlock().await?;
    /// let Err(Error::Lost { key, .. }) = guard.check() else { panic!("one of them is lost") };
    /// assert_eq!(key.as_str(), "account:2");
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn check(&self) -> Result<(), Error> {
        self.0.guards.check()
    }

    /// Returns how safe the worst of the locks is.
    ///
    /// It reads the clock.
    pub fn state(&self) -> HoldState {
        self.0.guards.state()
    }

    /// Returns how long all of the locks are certainly held if none is renewed again.
    ///
    /// Zero if one is lost.
    pub fn remaining(&self) -> Duration {
        self.0.guards.remaining()
    }

    /// Returns the fencing token of one of the locks, or `None` for a name that is not among them.
    ///
    /// Each lock has a sequence of its own.
    pub fn fence(&self, key: impl AsRef<str>) -> Option<Fence> {
        self.0.guards.fence_of(key.as_ref())
    }

    /// Returns the names and their fencing tokens, sorted by name.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let guard = locks.multi(["account:1", "account:2"]).lock().await?;
    /// for (key, fence) in guard.fences() {
    ///     println!("UPDATE .. WHERE name = '{key}' AND fence <= {}", fence.get());
    /// }
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn fences(&self) -> impl Iterator<Item = (&Key, Fence)> {
        self.0.guards.fences()
    }

    /// Returns the names, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.fences().map(|(key, _)| key)
    }

    /// Gives all holds, with all their guards, to a new owner.
    ///
    /// The task no longer enters them again. See [`Guard::detach`](crate::Guard::detach).
    pub fn detach(self) -> Self {
        self.0.guards.give_to(&Owner::new());
        self
    }

    /// Runs a future as the owner of these holds, in any task: its locks enter again.
    ///
    /// See [`Guard::scope`](crate::Guard::scope).
    ///
    /// # Cancel safety
    /// Dropping it drops the future that it runs.
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        self.0.scope(future)
    }

    /// Makes all of the locks last for at least this long from now.
    ///
    /// See [`Guard::extend`](crate::Guard::extend).
    ///
    /// # Errors
    /// As [`Guard::extend`](crate::Guard::extend). The locks are extended one after the other, also
    /// if one fails; the error is that of the first that failed.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the locks as they are that it has not come to. That in flight may
    /// be extended.
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.0.guards.extend(lease).await
    }

    /// Extends as [`extend`](Self::extend) does, for threads without async code.
    ///
    /// # Errors
    /// As [`extend`](Self::extend).
    ///
    /// # Panics
    /// Panics in async code, which it would block.
    pub fn blocking_extend(&self, lease: Duration) -> Result<(), Error> {
        self.0.blocking_extend(lease)
    }

    /// Releases all of the locks, each if this was its last guard.
    ///
    /// # Errors
    /// As [`Guard::unlock`](crate::Guard::unlock). All locks are released even if one fails. If any
    /// was lost, the error is the first loss, otherwise the first of the other errors.
    ///
    /// # Cancel safety
    /// Once polled, it is carried out even if the future is dropped. A future that was never polled
    /// drops its guard, which releases the locks too.
    pub async fn unlock(self) -> Result<(), Error> {
        self.0.unlock().await
    }

    /// Releases as [`unlock`](Self::unlock) does, for threads without async code.
    ///
    /// # Errors
    /// As [`unlock`](Self::unlock).
    ///
    /// # Panics
    /// Panics in async code, which it would block.
    pub fn blocking_unlock(self) -> Result<(), Error> {
        self.0.blocking_unlock()
    }
}

impl fmt::Debug for MultiLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiLock")
            .field("keys", &self.keys())
            .finish_non_exhaustive()
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
    view: Views,
    scope: Scope,
}

impl MultiSection {
    /// Returns a token that fires when any of the locks is lost.
    ///
    /// Cancelling it cancels nothing else.
    pub fn lost(&self) -> CancellationToken {
        self.view.token()
    }

    /// Returns an error if any of the locks is lost, for `?` between steps.
    ///
    /// It reads the clock, so it is right even if the watchdog is late.
    ///
    /// # Errors
    /// [`Error::Lost`].
    pub fn check(&self) -> Result<(), Error> {
        self.view.check()
    }

    /// Returns the first loss of a lock, or `None` while all are held.
    ///
    /// It reads the clock, as [`check`](Self::check) does.
    pub fn loss(&self) -> Option<Loss> {
        self.state().loss()
    }

    /// Returns how safe the worst of the locks is.
    ///
    /// It reads the clock.
    pub fn state(&self) -> HoldState {
        self.view.state()
    }

    /// Runs a future as part of this section, in any task: its locks enter again.
    ///
    /// See [`Section::scope`](crate::Section::scope).
    ///
    /// # Cancel safety
    /// Dropping it drops the future that it runs.
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        self.scope.clone().run(future)
    }

    /// Returns the fencing token of one of the locks, or `None` for a name that is not among them.
    pub fn fence(&self, key: impl AsRef<str>) -> Option<Fence> {
        self.view.fence_of(key.as_ref())
    }

    /// Returns the names and their fencing tokens, sorted by name.
    pub fn fences(&self) -> impl Iterator<Item = (&Key, Fence)> {
        self.view.fences()
    }

    /// Returns how long all of the locks are certainly held if none is renewed again.
    pub fn remaining(&self) -> Duration {
        self.view.remaining()
    }
}
