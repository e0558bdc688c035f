//! Semaphores: their handle and their permits.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::error::{Error, Loss};
use crate::foreign;
use crate::handle::{GuardInner, Handle, Wait, is_capacity, not_a_capacity};
use crate::hold::HoldState;
use crate::holder::{PermitHolder, Usage};
use crate::key::Key;
use crate::kind::Kind;
use crate::options::Reentry;
use crate::session::{SharedSession, Views};

/// A semaphore with a name: at most its capacity of permits is taken at once, in all processes.
///
/// Cheap to clone; the handle by itself holds nothing.
///
/// [`Locker::permits`](crate::Locker::permits) returns one, and
/// [`Locker::semaphore`](crate::Locker::semaphore) another kind, which promises less beside JVMs.
///
/// # Capacity
/// It is on the server. The first call of a handle with a [`capacity`](Self::capacity) sets it if
/// no client has; from then on only [`set_capacity`](Self::set_capacity) changes it, and the locker
/// logs a warning if a handle says something else. Without a capacity, callers wait until one is
/// set, and the locker logs a warning.
///
/// # What is promised
/// - Never more permits are taken than there are, whatever is sent twice, lost or late. A lower
///   capacity takes nothing away from holders: it is reached as they release.
/// - The watchdog renews permits. Those of a holder that crashed come back after its lease, and a
///   tenth of the [`lease`](crate::LockerBuilder::lease) of its locker and of the locker that takes
///   them next. A holder whose permits are lost before it releases them is told, as the holder of a
///   lock is: see [`HeldPermits::lost`].
/// - Callers of one [`Locker`](crate::Locker) are served in the order in which they arrived: one
///   that wants five holds back those behind it. Between lockers there is no order: whoever wants
///   many may be passed by others that want few.
///
/// Each call takes permits of its own: there is no owner and no re-entry. A task that waits for a
/// second permit while it has one may wait for ever, as with any semaphore: take both at once with
/// [`acquire_many`](Self::acquire_many).
///
/// # What it does not do
/// - Permits have no fence, since there is no order among their holders.
/// - It is on one server, on a master with Sentinels, or in a cluster. Over several independent
///   servers, and in [`Format::Plain`](crate::Format::Plain), every call is [`Error::Config`]: with
///   two permits on each of three servers, three holders would have one from two servers.
/// - A failover that forgets the last acquires makes their permits free while their holders still
///   work. They learn of it at their next renewal:
///   [`replica_acks`](crate::LockerBuilder::replica_acks) closes that gap.
/// - Redisson removes permits by the clock of its machine. One that is ahead by more than a tenth
///   of the lease takes permits of holders that live.
/// - A counter with a lifetime, as a JVM's `trySetPermits` with a time makes it, ends what is taken
///   of it: holders learn of that at their next renewal. If a JVM changes the lifetime of the
///   counter alone, records get the new one with the next acquire or
///   [`set_capacity`](Self::set_capacity): until then they may end before it or outlive it.
/// - Whoever deletes the counter on the server while JVMs use the semaphore has them make a new
///   one, from which permits are missing, or of which there are too many after their
///   `trySetPermits`: call [`set_capacity`](Self::set_capacity).
///
/// # Examples
/// ```no_run
/// # async fn example(locks: lockhound::Locker) -> Result<(), lockhound::Error> {
/// # async fn call() {}
/// let api = locks.permits("api:acme").capacity(10); // ten calls at a time, in the whole fleet
///
/// let permit = api.acquire().await?; // renewed while it lives
/// tokio::select! {
///     () = permit.lost().cancelled_owned() => {}
///     () = call() => permit.release().await?,
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Semaphore(Handle);

impl Semaphore {
    pub(crate) fn new(shared: Arc<SharedSession>, key: Key, kind: &'static Kind) -> Self {
        let mut handle = Handle::of_kind(shared, key, kind);
        handle.options.reentry = Some(Reentry::Never);
        handle.options.permits = 1;
        Self(handle)
    }

    /// Returns the name of the semaphore.
    pub fn key(&self) -> &Key {
        &self.0.keys[0]
    }

    /// Returns a handle that sets how many permits there are, unless that is set.
    ///
    /// It does so when it takes its first permit, and never changes what is set.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// use lockhound::Owner;
    ///
    /// let api = locks.permits("api:acme");
    /// api.clone().capacity(10).acquire().await?.release().await?; // sets it, as the first call
    /// api.clone().capacity(20).acquire().await?.release().await?; // only logs a warning
    /// assert_eq!(api.usage().await?.capacity(), Some(10));
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    #[must_use]
    pub const fn capacity(mut self, permits: u32) -> Self {
        self.0.options.capacity = Some(permits);
        self
    }

    /// Returns a handle that takes permits for a fixed time.
    ///
    /// See [`Lock::fixed_lease`](crate::Lock::fixed_lease).
    #[must_use]
    pub const fn fixed_lease(mut self, lease: Duration) -> Self {
        self.0.options.fixed_lease = Some(lease);
        self
    }

    /// Returns a handle that limits how long permits are held.
    ///
    /// See [`Lock::max_hold`](crate::Lock::max_hold).
    #[must_use]
    pub const fn max_hold(mut self, max_hold: Duration) -> Self {
        self.0.options.max_hold = Some(max_hold);
        self
    }

    /// Returns a handle whose calls and permits have this class.
    ///
    /// See [`Lock::class`](crate::Lock::class).
    #[must_use]
    pub const fn class(mut self, class: &'static str) -> Self {
        self.0.options.class = Some(class);
        self
    }

    /// Takes a permit.
    ///
    /// Waits while none is free.
    ///
    /// # Errors
    /// As [`Lock::lock`](crate::Lock::lock), and [`Error::Config`] where there are no semaphores.
    ///
    /// # Cancel safety
    /// As [`Lock::lock`](crate::Lock::lock): a permit that was granted meanwhile is given back.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let api = locks.permits("api:acme").capacity(2);
    /// let one = api.acquire().await?;
    /// let two = api.acquire().await?; // a permit of its own: there is no re-entry
    /// assert!(api.try_acquire().await?.is_none());
    /// one.release().await?;
    /// two.release().await
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn acquire(&self) -> Result<Permit, Error> {
        self.acquire_many(1).await
    }

    /// Takes this many permits at once, or none.
    ///
    /// Waits until this many are free.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and [`Error::Config`] for none, for more than 1,000, and for
    /// more than there are or than this handle says. Of a kind that is shared with `getSemaphore`,
    /// only the capacity of this handle is known.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let memory = locks.permits("gigabytes").capacity(64);
    /// let permit = memory.acquire_many(16).await?; // all at once: two halves could deadlock
    /// assert_eq!(permit.count(), 16);
    /// permit.release().await
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn acquire_many(&self, permits: u32) -> Result<Permit, Error> {
        self.take(permits, Wait::Always).await?.ok_or(Error::Closed)
    }

    /// Takes a permit in one attempt.
    ///
    /// Returns `None` if none is free, or if other callers of this locker wait.
    ///
    /// # Errors
    /// As [`Lock::try_lock`](crate::Lock::try_lock) and [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let Some(permit) = locks.permits("api:acme").capacity(10).try_acquire().await? else {
    ///     return Ok(()); // "429 Too Many Requests"
    /// };
    /// permit.release().await
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn try_acquire(&self) -> Result<Option<Permit>, Error> {
        self.try_acquire_many(1).await
    }

    /// Takes this many permits in one attempt, or none.
    ///
    /// Returns `None` if too few are free, or if other callers of this locker wait.
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire) and [`acquire_many`](Self::acquire_many).
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire_many(&self, permits: u32) -> Result<Option<Permit>, Error> {
        self.take(permits, Wait::Never).await
    }

    /// Takes a permit, and waits for at most this long.
    ///
    /// Returns `None` if none was free for it all that time. A time of zero is
    /// [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    /// As [`Lock::try_lock_for`](crate::Lock::try_lock_for) and [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// use std::time::Duration;
    ///
    /// let api = locks.permits("api:acme").capacity(10);
    /// if let Some(permit) = api.try_acquire_for(Duration::from_secs(2)).await? {
    ///     permit.release().await?;
    /// }
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn try_acquire_for(&self, wait: Duration) -> Result<Option<Permit>, Error> {
        self.try_acquire_many_for(1, wait).await
    }

    /// Takes this many permits, and waits for at most this long.
    ///
    /// Returns `None` if too few were free for it all that time. A time of zero is
    /// [`try_acquire_many`](Self::try_acquire_many).
    ///
    /// # Errors
    /// As [`Lock::try_lock_for`](crate::Lock::try_lock_for) and
    /// [`acquire_many`](Self::acquire_many).
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire_many_for(
        &self,
        permits: u32,
        wait: Duration,
    ) -> Result<Option<Permit>, Error> {
        self.take(permits, Wait::up_to(wait)).await
    }

    /// Takes a permit as [`acquire`](Self::acquire) does, for threads without async code.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and [`Error::Config`] for a locker of servers in memory that
    /// lives in a runtime. One that `connect` made over a network works on any thread.
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
    /// let permit = locks.permits("api:acme").capacity(10).blocking_acquire()?;
    /// permit.blocking_release()
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn blocking_acquire(&self) -> Result<Permit, Error> {
        self.blocking_acquire_many(1)
    }

    /// Takes permits as [`acquire_many`](Self::acquire_many) does, for threads without async code.
    ///
    /// # Errors
    /// As [`acquire_many`](Self::acquire_many) and [`blocking_acquire`](Self::blocking_acquire).
    ///
    /// # Panics
    /// Panics in async code, which it would block.
    pub fn blocking_acquire_many(&self, permits: u32) -> Result<Permit, Error> {
        self.take_blocking(permits, Wait::Always)?
            .ok_or(Error::Closed)
    }

    /// Takes a permit on a thread, as [`try_acquire_for`](Self::try_acquire_for) does.
    ///
    /// # Errors
    /// As [`try_acquire_for`](Self::try_acquire_for) and
    /// [`blocking_acquire`](Self::blocking_acquire).
    ///
    /// # Panics
    /// Panics in async code, which it would block.
    pub fn blocking_try_acquire_for(&self, wait: Duration) -> Result<Option<Permit>, Error> {
        self.blocking_try_acquire_many_for(1, wait)
    }

    /// Takes permits on a thread, as [`try_acquire_many_for`](Self::try_acquire_many_for) does.
    ///
    /// # Errors
    /// As [`try_acquire_many_for`](Self::try_acquire_many_for) and
    /// [`blocking_acquire`](Self::blocking_acquire).
    ///
    /// # Panics
    /// Panics in async code, which it would block.
    pub fn blocking_try_acquire_many_for(
        &self,
        permits: u32,
        wait: Duration,
    ) -> Result<Option<Permit>, Error> {
        self.take_blocking(permits, Wait::up_to(wait))
    }

    /// Takes a permit, runs a section, and releases the permit.
    ///
    /// If the permit is lost meanwhile, it drops the section at its current `await` and returns
    /// [`Error::Lost`].
    ///
    /// # Errors
    /// As [`Lock::run`](crate::Lock::run) and [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// As [`Lock::run`](crate::Lock::run).
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let api = locks.permits("api:acme").capacity(10);
    /// let status = api.run(|_permits| async { 200 }).await?;
    /// assert_eq!(status, 200);
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn run<T, F, Fut>(&self, section: F) -> Result<T, Error>
    where
        F: FnOnce(HeldPermits) -> Fut,
        Fut: Future<Output = T>,
    {
        let section = |view, _| section(HeldPermits(view));
        let done = self.0.run(Wait::Always, section, |_| None).await?;
        done.ok_or(Error::Closed)
    }

    /// Does the same as [`run`](Self::run), but waits for at most this long.
    ///
    /// The time bounds the wait, and not the section. Returns `None` if none was free for it all
    /// that time.
    ///
    /// # Errors
    /// As [`run`](Self::run) and [`try_acquire_for`](Self::try_acquire_for).
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
    /// let api = locks.permits("api:acme").capacity(1);
    /// let permit = api.acquire().await?;
    /// let status = api.run_for(Duration::from_secs(2), |_| async { 200 }).await?;
    /// assert_eq!(status, None); // "429 Too Many Requests"
    /// permit.release().await?;
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn run_for<T, F, Fut>(&self, wait: Duration, section: F) -> Result<Option<T>, Error>
    where
        F: FnOnce(HeldPermits) -> Fut,
        Fut: Future<Output = T>,
    {
        let section = |view, _| section(HeldPermits(view));
        self.0.run(Wait::up_to(wait), section, |_| None).await
    }

    /// Sets how many permits there are.
    ///
    /// Holders keep what they have: if they have more, none is free until enough of them have
    /// released.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: it may be set or not, or later, and may be set again.
    /// [`Error::Config`] for 0, for more than 2,147,483,647, and for a
    /// [`Locker::semaphore`](crate::Locker::semaphore) that has a capacity, since what JVMs have of
    /// it is not known. Such a one can only be set once: if that call had no answer,
    /// `Error::Config` of the next one says that it is set, by that call or by others.
    /// [`Error::Server`]; [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Once polled, it is carried out even if the future is dropped.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let api = locks.permits("api:acme").capacity(10);
    /// let permits = api.acquire_many(8).await?;
    /// api.set_capacity(5).await?; // takes nothing away
    /// permits.check()?;
    /// assert_eq!(api.usage().await?.free(), 0);
    /// permits.release().await
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn set_capacity(&self, permits: u32) -> Result<(), Error> {
        self.begin().await?;
        if !is_capacity(permits) {
            return Err(Error::config("set_capacity", not_a_capacity(permits)));
        }
        let set = self.0.session().set_capacity(self.key(), permits).await;
        set.map_err(|error| error.of(slice::from_ref(self.key())))
    }

    /// Returns how many permits are free, and who has the others.
    ///
    /// Each holder is listed with the label of its locker. A semaphore that was never used has no
    /// capacity, and none of its permits is free: this call sets nothing.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the server does not answer; [`Error::Server`], also if the key
    /// holds something other than a semaphore; [`Error::Config`] for an empty name, and where there
    /// are no semaphores; [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let api = locks.permits("api:acme").capacity(10);
    /// let permits = api.acquire_many(3).await?;
    /// let usage = api.usage().await?;
    /// assert_eq!((usage.free(), usage.taken()), (7, 3));
    /// for holder in usage.holders() {
    ///     println!("{:?} has {}", holder.label(), holder.permits());
    /// }
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn usage(&self) -> Result<Usage, Error> {
        self.begin().await?;
        let usage = self.0.session().usage(self.key()).await;
        usage.map_err(|error| error.of(slice::from_ref(self.key())))
    }

    /// Gives back all permits of this holder, and wakes those that wait.
    ///
    /// [`usage`](Self::usage) has named the holder. The call returns whether it had any.
    ///
    /// A [`Permit`] of this [`Locker`](crate::Locker) is lost before, with
    /// [`Loss::ForceUnlocked`](crate::Loss::ForceUnlocked). A holder elsewhere learns of it at its
    /// next renewal, and may act until then: use it for holders that are known to be dead. It is
    /// the only way to get a permit back that a JVM has taken without a lease. Of more than 1,000
    /// such permits, the next `usage` names others.
    ///
    /// # Errors
    /// As [`usage`](Self::usage). After [`Error::Unavailable`] they may have been given back or
    /// not.
    ///
    /// # Cancel safety
    /// Once polled, it is carried out even if the future is dropped.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let api = locks.permits("api:acme").capacity(10);
    /// let permit = api.acquire().await?;
    /// for dead in api.usage().await?.holders() {
    ///     assert!(api.force_release(dead).await?);
    /// }
    /// assert!(permit.check().is_err());
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn force_release(&self, holder: &PermitHolder) -> Result<bool, Error> {
        self.begin().await?;
        let released = self.0.session().force_release(self.key(), holder).await;
        released.map_err(|error| error.of(slice::from_ref(self.key())))
    }

    async fn take(&self, permits: u32, wait: Wait) -> Result<Option<Permit>, Error> {
        Ok(self.wanting(permits).take(wait).await?.map(Permit::new))
    }

    fn take_blocking(&self, permits: u32, wait: Wait) -> Result<Option<Permit>, Error> {
        Ok(self.wanting(permits).take_blocking(wait)?.map(Permit::new))
    }

    fn wanting(&self, permits: u32) -> Handle {
        let mut handle = self.0.clone();
        handle.options.permits = permits;
        handle
    }

    /// Begins a call that takes no permits.
    async fn begin(&self) -> Result<(), Error> {
        foreign::give_way().await;
        Error::check_name(self.key())?;
        let capacity = self.0.options.capacity;
        self.0.session().check_permits(capacity)
    }
}

/// One permit or several, taken by one call.
///
/// Dropping it releases them in the background; [`release`](Self::release) reports whether that
/// worked.
#[must_use = "permits are released when this is dropped"]
pub struct Permit {
    inner: GuardInner,
    held: HeldPermits,
}

impl Permit {
    fn new(inner: GuardInner) -> Self {
        let held = HeldPermits(inner.guards.view());
        Self { inner, held }
    }

    /// Releases all permits of this call.
    ///
    /// # Errors
    /// As [`Guard::unlock`](crate::Guard::unlock): [`Error::Lost`] if they were lost before.
    ///
    /// # Cancel safety
    /// As [`Guard::unlock`](crate::Guard::unlock).
    pub async fn release(self) -> Result<(), Error> {
        self.inner.unlock().await
    }

    /// Releases as [`release`](Self::release) does, for threads without async code.
    ///
    /// # Errors
    /// As [`release`](Self::release).
    ///
    /// # Panics
    /// Panics in async code, which it would block.
    pub fn blocking_release(self) -> Result<(), Error> {
        self.inner.blocking_unlock()
    }
}

/// A view of permits: what the section of a `run` gets, and what a [`Permit`] dereferences to.
///
/// It does not keep them.
#[derive(Clone)]
pub struct HeldPermits(Views);

impl HeldPermits {
    /// Returns how many permits they are.
    pub fn count(&self) -> u32 {
        self.0.first().hold().claim.permits
    }

    /// Returns a token that fires when they are lost.
    ///
    /// Cancelling it cancels nothing else.
    pub fn lost(&self) -> CancellationToken {
        self.0.token()
    }

    /// Returns an error if they are lost, for `?` between steps.
    ///
    /// It reads the clock, so it is right even if the watchdog is late.
    ///
    /// # Errors
    /// [`Error::Lost`].
    pub fn check(&self) -> Result<(), Error> {
        self.0.check()
    }

    /// Returns how they were lost, or `None` while they are held.
    ///
    /// It reads the clock.
    pub fn loss(&self) -> Option<Loss> {
        self.state().loss()
    }

    /// Returns how safe they are.
    ///
    /// It reads the clock.
    pub fn state(&self) -> HoldState {
        self.0.state()
    }

    /// Returns how long they are certainly held if they are not renewed again.
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// Returns the name of the semaphore.
    pub fn key(&self) -> &Key {
        &self.0.first().hold().claim.key
    }

    fn show(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("key", self.key())
            .field("count", &self.count())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

impl Deref for Permit {
    type Target = HeldPermits;

    fn deref(&self) -> &HeldPermits {
        &self.held
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("key", self.key())
            .field("capacity", &self.0.options.capacity)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.held.show("Permit", f)
    }
}

impl fmt::Debug for HeldPermits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.show("HeldPermits", f)
    }
}
