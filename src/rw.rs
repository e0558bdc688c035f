//! The read-write lock: its handles and its guards.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::foreign;
use crate::handle::{GuardInner, Handle, Wait};
use crate::holder::Holders;
use crate::key::Key;
use crate::kind::{READ, WRITE};
use crate::lock::Section;
use crate::options::Reentry;
use crate::owner::Owner;
use crate::session::SharedSession;

/// A re-entrant read-write lock with a name, shared with Redisson's `getReadWriteLock`.
///
/// Readers have it together; a writer has it alone. Cheap to clone; the handle by itself holds
/// nothing.
///
/// # Who enters next
/// Within a process, callers enter in the order in which they arrived, and readers that stand
/// together at the front enter together. Between processes, a writer that waits keeps out readers
/// that arrive after it, and a writer that releases leaves the lock to readers that waited for it,
/// for as long as they need to come: 20 ms and three of their round trips. So neither starves the
/// other, as long as all of them use this crate: Redisson's readers pass a writer that waits.
///
/// # Readers of one process
/// For 10 ms after the grant of a read, as long as it or one of these lasts, further readers of the
/// same [`Locker`](crate::Locker) come in beside it without asking the server, unless a writer of
/// that locker waits. They share a field there: [`holders`](Self::holders) lists them as one, and
/// they have one fence. Each is renewed and notified of a loss by itself. Reads with `fixed_lease`
/// or `max_hold`, and those inside a write, share nothing.
///
/// # Re-entry
/// Owners are those of [`Lock`](crate::Lock). An owner that reads may read again, and one that
/// writes may write and read again, whoever waits. An owner that reads and asks to write would wait
/// for itself: it gets [`Error::Config`] at once. [`WriteGuard::downgrade`] goes the other way.
///
/// A reader that awaits a child which reads as another owner waits forever once a writer waits: run
/// the child in [`Section::scope`].
///
/// # Fences
/// Readers and writers have a [`fence`](Section::fence). That of a read is above the fence of every
/// earlier write and below that of every later one. Reads are not in order among themselves, so a
/// resource remembers the highest fence of a *write*, and refuses whatever is below. A write that
/// is late then still passes after a later read.
///
/// # What it does not do
/// - It is on one server, on a master with Sentinels, or in a cluster. Over several independent
///   servers, and in [`Format::Plain`](crate::Format::Plain), every call is [`Error::Config`].
/// - [`Lock`](crate::Lock) and this lock of the same name exclude each other on the server, but
///   Redisson's read-write lock enters a `Lock` that is held: use a name for one kind only.
/// - JVMs have to use the same lease. Redisson's readers set the lease of all readers to their own:
///   if a JVM with a shorter one dies, the lock ends under the readers here. The locker logs a
///   warning when it sees that, and from then on trusts only the shorter time.
///
/// # Examples
/// ```no_run
/// # async fn example(locks: lockhound::Locker) -> Result<(), lockhound::Error> {
/// # async fn store(_: lockhound::Fence) -> Result<(), lockhound::Error> { Ok(()) }
/// let prices = locks.rw("prices");
///
/// let seen = prices.read().lock().await?; // with other readers
/// drop(seen);
///
/// let guard = prices.write().lock().await?; // alone
/// store(guard.fence()).await?;
/// let guard = guard.downgrade().await?; // a reader; no writer was in between
/// guard.unlock().await
/// # }
/// ```
#[derive(Clone)]
pub struct RwLock {
    shared: Arc<SharedSession>,
    key: Key,
}

impl RwLock {
    pub(crate) fn new(shared: Arc<SharedSession>, key: Key) -> Self {
        Self { shared, key }
    }

    /// Returns the handle of its readers.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let prices = locks.rw("prices");
    /// let guard = prices.read().lock().await?;
    /// let other = prices.clone();
    /// let reader = tokio::spawn(async move { other.read().try_lock().await });
    /// assert!(reader.await.expect("no panic")?.is_some()); // readers are inside together
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn read(&self) -> ReadLock {
        let shared = Arc::clone(&self.shared);
        ReadLock(Handle::of_kind(shared, self.key.clone(), &READ))
    }

    /// Returns the handle of its writers.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let prices = locks.rw("prices");
    /// let guard = prices.write().lock().await?;
    /// let nested = prices.read().lock().await?; // a writer may read inside its write
    /// nested.unlock().await?;
    /// guard.unlock().await
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn write(&self) -> WriteLock {
        let shared = Arc::clone(&self.shared);
        WriteLock(Handle::of_kind(shared, self.key.clone(), &WRITE))
    }

    /// Returns the name of the lock.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns who has the lock, each with the label of its locker.
    ///
    /// Readers of one locker that arrived together are one of them, with the owner of the first.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the server does not answer; [`Error::Server`], also if the key
    /// holds something other than a read-write lock; [`Error::Config`] for an empty name, and where
    /// there are no such locks; [`Error::Closed`].
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
    /// let prices = locks.rw("prices");
    /// let guard = prices.write().lock().await?;
    /// let holders = prices.holders().await?;
    /// assert!(holders.writer().is_some());
    /// assert!(holders.readers().is_empty());
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn holders(&self) -> Result<Holders, Error> {
        self.begin().await?;
        let holders = self.shared.session().holders(&self.key).await;
        holders.map_err(|error| error.of(slice::from_ref(&self.key)))
    }

    /// Returns whether any client has the lock, as a reader or a writer.
    ///
    /// # Errors
    /// As [`holders`](Self::holders).
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    pub async fn is_locked(&self) -> Result<bool, Error> {
        self.begin().await?;
        let locked = self.shared.session().is_locked(&self.key).await;
        locked.map_err(|error| error.of(slice::from_ref(&self.key)))
    }

    /// Releases the lock for all who have it now, readers and writers, and wakes the waiters.
    ///
    /// Returns whether it was held.
    ///
    /// It first asks who has the lock, and then releases exactly those: a reader that arrives after
    /// them stays. Guards of this [`Locker`](crate::Locker) are lost before they are released, with
    /// [`Loss::ForceUnlocked`](crate::Loss::ForceUnlocked). Holders elsewhere learn of it at their
    /// next renewal at the latest, and may act until then. See
    /// [`Lock::force_unlock`](crate::Lock::force_unlock).
    ///
    /// # Errors
    /// As [`holders`](Self::holders). After [`Error::Unavailable`] the lock may have been released
    /// or not.
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
    /// let prices = locks.rw("prices");
    /// let guard = prices.read().lock().await?;
    /// assert!(prices.force_unlock().await?);
    /// assert!(guard.check().is_err());
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        self.begin().await?;
        let expelled = self.shared.session().expel(&self.key).await;
        expelled.map_err(|error| error.of(slice::from_ref(&self.key)))
    }

    /// Begins a call that locks nothing.
    async fn begin(&self) -> Result<(), Error> {
        foreign::give_way().await;
        Error::check_name(&self.key)?;
        self.shared.session().check_read_write()
    }
}

/// The readers' side of an [`RwLock`].
#[derive(Clone)]
pub struct ReadLock(Handle);

impl ReadLock {
    /// Returns the name of the lock.
    pub fn key(&self) -> &Key {
        &self.0.keys[0]
    }

    /// Returns a handle that takes the lock for a fixed time.
    ///
    /// See [`Lock::fixed_lease`](crate::Lock::fixed_lease).
    #[must_use]
    pub const fn fixed_lease(mut self, lease: Duration) -> Self {
        self.0.options.fixed_lease = Some(lease);
        self
    }

    /// Returns a handle that limits how long the lock is held.
    ///
    /// See [`Lock::max_hold`](crate::Lock::max_hold).
    #[must_use]
    pub const fn max_hold(mut self, max_hold: Duration) -> Self {
        self.0.options.max_hold = Some(max_hold);
        self
    }

    /// Returns a handle whose calls and holds have this class.
    ///
    /// See [`Lock::class`](crate::Lock::class).
    #[must_use]
    pub const fn class(mut self, class: &'static str) -> Self {
        self.0.options.class = Some(class);
        self
    }

    /// Returns a handle that locks as this owner.
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

    /// Takes the lock for reading.
    ///
    /// Waits while a writer has it, or waits for it.
    ///
    /// # Errors
    /// As [`Lock::lock`](crate::Lock::lock), and [`Error::Config`] where there are no read-write
    /// locks. Inside a write of its owner, [`Error::Lost`] if that write is lost.
    ///
    /// # Cancel safety
    /// As [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let guard = locks.rw("prices").read().lock().await?;
    /// println!("as of write {}", guard.fence().get()); // above the fences of all earlier writes
    /// guard.unlock().await
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn lock(&self) -> Result<ReadGuard, Error> {
        self.0
            .take(Wait::Always)
            .await?
            .map(ReadGuard::new)
            .ok_or(Error::Closed)
    }

    /// Takes the lock for reading in one attempt.
    ///
    /// Returns `None` if a writer has it, or waits for it.
    ///
    /// # Errors
    /// As [`Lock::try_lock`](crate::Lock::try_lock) and [`lock`](Self::lock).
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
    /// use lockhound::Owner;
    ///
    /// let prices = locks.rw("prices");
    /// let writer = prices.write().owned_by(Owner::new()).lock().await?;
    /// assert!(prices.read().try_lock().await?.is_none()); // serve the old prices
    /// writer.unlock().await
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn try_lock(&self) -> Result<Option<ReadGuard>, Error> {
        Ok(self.0.take(Wait::Never).await?.map(ReadGuard::new))
    }

    /// Takes the lock for reading, and waits for at most this long.
    ///
    /// Returns `None` if a writer held the lock, or waited, all that time. A time of zero is
    /// [`try_lock`](Self::try_lock).
    ///
    /// # Errors
    /// As [`Lock::try_lock_for`](crate::Lock::try_lock_for) and [`lock`](Self::lock).
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    pub async fn try_lock_for(&self, wait: Duration) -> Result<Option<ReadGuard>, Error> {
        Ok(self.0.take(Wait::up_to(wait)).await?.map(ReadGuard::new))
    }

    /// Takes the lock as [`lock`](Self::lock) does, for threads without async code.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), and [`Error::Config`] for a locker of servers in memory that lives
    /// in a runtime. One that `connect` made over a network works on any thread.
    ///
    /// # Panics
    /// Panics in async code, which it would block.
    pub fn blocking_lock(&self) -> Result<ReadGuard, Error> {
        self.0
            .take_blocking(Wait::Always)?
            .map(ReadGuard::new)
            .ok_or(Error::Closed)
    }

    /// Takes the lock as [`try_lock`](Self::try_lock) does, for threads without async code.
    ///
    /// # Errors
    /// As [`try_lock`](Self::try_lock) and [`blocking_lock`](Self::blocking_lock).
    ///
    /// # Panics
    /// Panics in async code, which it would block.
    pub fn blocking_try_lock(&self) -> Result<Option<ReadGuard>, Error> {
        Ok(self.0.take_blocking(Wait::Never)?.map(ReadGuard::new))
    }

    /// Takes the lock as [`try_lock_for`](Self::try_lock_for) does, for threads without async code.
    ///
    /// # Errors
    /// As [`try_lock_for`](Self::try_lock_for) and [`blocking_lock`](Self::blocking_lock).
    ///
    /// # Panics
    /// Panics in async code, which it would block.
    pub fn blocking_try_lock_for(&self, wait: Duration) -> Result<Option<ReadGuard>, Error> {
        Ok(self.0.take_blocking(Wait::up_to(wait))?.map(ReadGuard::new))
    }

    /// Takes the lock for reading, runs a section, and releases the lock.
    ///
    /// If the lock is lost meanwhile, it drops the section at its current `await` and returns
    /// [`Error::Lost`].
    ///
    /// Reads of one task run together (`join!`, `buffer_unordered`). A run that is nested inside a
    /// write of its owner reads inside of it. Which owner a run has is as for
    /// [`Lock::run`](crate::Lock::run).
    ///
    /// # Errors
    /// As [`Lock::run`](crate::Lock::run) and [`lock`](Self::lock).
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
    /// let prices = locks.rw("prices").read();
    /// // Branches of one task read together; those of a `Lock` would take turns.
    /// let (left, right) = (prices.run(|_| async { 1 }), prices.run(|_| async { 2 }));
    /// let (left, right) = tokio::try_join!(left, right)?;
    /// assert_eq!(left + right, 3);
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn run<T, F, Fut>(&self, section: F) -> Result<T, Error>
    where
        F: FnOnce(Section) -> Fut,
        Fut: Future<Output = T>,
    {
        let done = Section::run(&self.0, Wait::Always, section).await?;
        done.ok_or(Error::Closed)
    }

    /// Does the same as [`run`](Self::run), but waits for at most this long.
    ///
    /// The time bounds the wait, and not the section. Returns `None` if a writer held the lock, or
    /// waited, all that time.
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
    /// let writes = locks.rw("prices").write().lock().await?.detach();
    /// let prices = locks.rw("prices").read();
    /// let read = prices.run_for(Duration::from_secs(2), |_| async { 42 }).await?;
    /// assert_eq!(read, None); // a writer held the lock all that time
    /// writes.unlock().await?;
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn run_for<T, F, Fut>(&self, wait: Duration, section: F) -> Result<Option<T>, Error>
    where
        F: FnOnce(Section) -> Fut,
        Fut: Future<Output = T>,
    {
        Section::run(&self.0, Wait::up_to(wait), section).await
    }
}

/// The writers' side of an [`RwLock`].
#[derive(Clone)]
pub struct WriteLock(Handle);

impl WriteLock {
    /// Returns the name of the lock.
    pub fn key(&self) -> &Key {
        &self.0.keys[0]
    }

    /// Returns a handle that takes the lock for a fixed time.
    ///
    /// See [`Lock::fixed_lease`](crate::Lock::fixed_lease).
    #[must_use]
    pub const fn fixed_lease(mut self, lease: Duration) -> Self {
        self.0.options.fixed_lease = Some(lease);
        self
    }

    /// Returns a handle that limits how long the lock is held.
    ///
    /// See [`Lock::max_hold`](crate::Lock::max_hold).
    #[must_use]
    pub const fn max_hold(mut self, max_hold: Duration) -> Self {
        self.0.options.max_hold = Some(max_hold);
        self
    }

    /// Returns a handle whose calls and holds have this class.
    ///
    /// See [`Lock::class`](crate::Lock::class).
    #[must_use]
    pub const fn class(mut self, class: &'static str) -> Self {
        self.0.options.class = Some(class);
        self
    }

    /// Returns a handle that locks as this owner.
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

    /// Takes the lock for writing.
    ///
    /// Waits while others have it.
    ///
    /// While it waits, readers of other processes that come later wait behind it, until the writer
    /// has had the lock.
    ///
    /// # Errors
    /// As [`Lock::lock`](crate::Lock::lock), and [`Error::Config`] if its owner has the lock for
    /// reading, which would wait for itself, and where there are no read-write locks.
    ///
    /// # Cancel safety
    /// As [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// use lockhound::Error;
    ///
    /// let prices = locks.rw("prices");
    /// let reading = prices.read().lock().await?;
    /// // An owner that reads would wait for itself: there is no upgrade.
    /// assert!(matches!(prices.write().lock().await, Err(Error::Config(_))));
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn lock(&self) -> Result<WriteGuard, Error> {
        self.0
            .take(Wait::Always)
            .await?
            .map(WriteGuard::new)
            .ok_or(Error::Closed)
    }

    /// Takes the lock for writing in one attempt.
    ///
    /// Returns `None` if others have it, or if it is the turn of readers that waited for a writer.
    /// It keeps no reader out.
    ///
    /// # Errors
    /// As [`Lock::try_lock`](crate::Lock::try_lock) and [`lock`](Self::lock).
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
    /// let Some(guard) = locks.rw("prices").write().try_lock().await? else {
    ///     return Ok(()); // somebody reads or writes
    /// };
    /// guard.unlock().await
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn try_lock(&self) -> Result<Option<WriteGuard>, Error> {
        Ok(self.0.take(Wait::Never).await?.map(WriteGuard::new))
    }

    /// Takes the lock for writing, and waits for at most this long.
    ///
    /// Returns `None` if others held the lock all that time. A time of zero is
    /// [`try_lock`](Self::try_lock).
    ///
    /// # Errors
    /// As [`Lock::try_lock_for`](crate::Lock::try_lock_for) and [`lock`](Self::lock).
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    pub async fn try_lock_for(&self, wait: Duration) -> Result<Option<WriteGuard>, Error> {
        Ok(self.0.take(Wait::up_to(wait)).await?.map(WriteGuard::new))
    }

    /// Takes the lock as [`lock`](Self::lock) does, for threads without async code.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), and [`Error::Config`] for a locker of servers in memory that lives
    /// in a runtime. One that `connect` made over a network works on any thread.
    ///
    /// # Panics
    /// Panics in async code, which it would block.
    pub fn blocking_lock(&self) -> Result<WriteGuard, Error> {
        self.0
            .take_blocking(Wait::Always)?
            .map(WriteGuard::new)
            .ok_or(Error::Closed)
    }

    /// Takes the lock as [`try_lock`](Self::try_lock) does, for threads without async code.
    ///
    /// # Errors
    /// As [`try_lock`](Self::try_lock) and [`blocking_lock`](Self::blocking_lock).
    ///
    /// # Panics
    /// Panics in async code, which it would block.
    pub fn blocking_try_lock(&self) -> Result<Option<WriteGuard>, Error> {
        Ok(self.0.take_blocking(Wait::Never)?.map(WriteGuard::new))
    }

    /// Takes the lock as [`try_lock_for`](Self::try_lock_for) does, for threads without async code.
    ///
    /// # Errors
    /// As [`try_lock_for`](Self::try_lock_for) and [`blocking_lock`](Self::blocking_lock).
    ///
    /// # Panics
    /// Panics in async code, which it would block.
    pub fn blocking_try_lock_for(&self, wait: Duration) -> Result<Option<WriteGuard>, Error> {
        Ok(self
            .0
            .take_blocking(Wait::up_to(wait))?
            .map(WriteGuard::new))
    }

    /// Takes the lock for writing, runs a section, and releases the lock.
    ///
    /// If the lock is lost meanwhile, it drops the section at its current `await` and returns
    /// [`Error::Lost`].
    ///
    /// Runs of writes exclude each other, also in branches of one task. In branches of a task that
    /// holds a write by a guard, a run of a read is inside that write, and so beside a run of a
    /// write.
    ///
    /// # Errors
    /// As [`Lock::run`](crate::Lock::run) and [`lock`](Self::lock).
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
    /// let prices = locks.rw("prices").write();
    /// let term = prices.run(|section| async move { section.fence() }).await?;
    /// assert!(prices.run(|section| async move { section.fence() }).await? > term);
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn run<T, F, Fut>(&self, section: F) -> Result<T, Error>
    where
        F: FnOnce(Section) -> Fut,
        Fut: Future<Output = T>,
    {
        let done = Section::run(&self.0, Wait::Always, section).await?;
        done.ok_or(Error::Closed)
    }

    /// Does the same as [`run`](Self::run), but waits for at most this long.
    ///
    /// The time bounds the wait, and not the section. Returns `None` if others held the lock all
    /// that time.
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
    /// let reads = locks.rw("prices").read().lock().await?.detach();
    /// let prices = locks.rw("prices").write();
    /// let written = prices.run_for(Duration::from_secs(2), |_| async { 42 }).await?;
    /// assert_eq!(written, None); // a reader held the lock all that time
    /// reads.unlock().await?;
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn run_for<T, F, Fut>(&self, wait: Duration, section: F) -> Result<Option<T>, Error>
    where
        F: FnOnce(Section) -> Fut,
        Fut: Future<Output = T>,
    {
        Section::run(&self.0, Wait::up_to(wait), section).await
    }
}

/// The guard of a read.
///
/// Dropping the last guard of its owner's read releases it in the background;
/// [`unlock`](Self::unlock) reports whether that worked.
///
/// What it promises is what [`Guard`](crate::Guard) promises, by the methods of [`Section`].
#[must_use = "the lock is released when its guard is dropped"]
pub struct ReadGuard {
    inner: GuardInner,
    section: Section,
}

impl ReadGuard {
    fn new(inner: GuardInner) -> Self {
        let section = Section::new(inner.guards.view(), inner.to_scope());
        Self { inner, section }
    }

    /// Gives the hold, with all its guards, to a new owner.
    ///
    /// See [`Guard::detach`](crate::Guard::detach).
    ///
    /// A hold of its owner in the other role stays with that owner: what is detached of the two is
    /// then beside the other, as the user asked for.
    pub fn detach(self) -> Self {
        Self::new(self.inner.detach())
    }

    /// Releases this guard, and the read if it is its owner's last guard.
    ///
    /// Of the readers that share a field, only the last one asks the server.
    ///
    /// # Errors
    /// As [`Guard::unlock`](crate::Guard::unlock). One that asks no server knows only of a loss
    /// that was noticed.
    ///
    /// # Cancel safety
    /// As [`Guard::unlock`](crate::Guard::unlock).
    pub async fn unlock(self) -> Result<(), Error> {
        self.inner.unlock().await
    }

    /// Releases as [`unlock`](Self::unlock) does, for threads without async code.
    ///
    /// # Errors
    /// As [`unlock`](Self::unlock).
    ///
    /// # Panics
    /// Panics in async code, which it would block.
    pub fn blocking_unlock(self) -> Result<(), Error> {
        self.inner.blocking_unlock()
    }
}

/// The guard of a write.
///
/// Dropping the last guard of its owner's write releases it in the background;
/// [`unlock`](Self::unlock) reports whether that worked.
///
/// What it promises is what [`Guard`](crate::Guard) promises, by the methods of [`Section`].
#[must_use = "the lock is released when its guard is dropped"]
pub struct WriteGuard {
    inner: GuardInner,
    section: Section,
}

impl WriteGuard {
    fn new(inner: GuardInner) -> Self {
        let section = Section::new(inner.guards.view(), inner.to_scope());
        Self { inner, section }
    }

    /// Gives the hold, with all its guards, to a new owner.
    ///
    /// See [`Guard::detach`](crate::Guard::detach).
    ///
    /// A hold of its owner in the other role stays with that owner: what is detached of the two is
    /// then beside the other, as the user asked for.
    pub fn detach(self) -> Self {
        Self::new(self.inner.detach())
    }

    /// Releases this guard, and the write if it is its owner's last guard.
    ///
    /// # Errors
    /// As [`Guard::unlock`](crate::Guard::unlock).
    ///
    /// # Cancel safety
    /// As [`Guard::unlock`](crate::Guard::unlock).
    pub async fn unlock(self) -> Result<(), Error> {
        self.inner.unlock().await
    }

    /// Releases as [`unlock`](Self::unlock) does, for threads without async code.
    ///
    /// # Errors
    /// As [`unlock`](Self::unlock).
    ///
    /// # Panics
    /// Panics in async code, which it would block.
    pub fn blocking_unlock(self) -> Result<(), Error> {
        self.inner.blocking_unlock()
    }

    /// Reads from here on: takes the lock for reading, and then releases the write.
    ///
    /// The read is inside the write until then. No other writer is in between, and readers that
    /// wait enter.
    ///
    /// The read has the terms of the write; a `max_hold` starts again. If this is not the last
    /// guard of the write, the write stays, and the read is inside of it.
    ///
    /// # Errors
    /// [`Error::Lost`] if the write is lost, and as [`unlock`](Self::unlock) and
    /// [`ReadLock::lock`]. After an error, both are released.
    ///
    /// # Cancel safety
    /// Dropping the future releases both.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let prices = locks.rw("prices");
    /// let writing = prices.write().lock().await?;
    /// // Publish what was written while readers are let in, and no writer is.
    /// let reading = writing.downgrade().await?;
    /// assert!(prices.holders().await?.writer().is_none());
    /// reading.unlock().await
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn downgrade(self) -> Result<ReadGuard, Error> {
        self.inner.downgrade(&READ).await.map(ReadGuard::new)
    }

    /// Downgrades as [`downgrade`](Self::downgrade) does, for threads without async code.
    ///
    /// # Errors
    /// As [`downgrade`](Self::downgrade).
    ///
    /// # Panics
    /// Panics in async code, which it would block.
    pub fn blocking_downgrade(self) -> Result<ReadGuard, Error> {
        self.inner.blocking_downgrade(&READ).map(ReadGuard::new)
    }
}

impl Deref for ReadGuard {
    type Target = Section;

    fn deref(&self) -> &Section {
        &self.section
    }
}

impl Deref for WriteGuard {
    type Target = Section;

    fn deref(&self) -> &Section {
        &self.section
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ReadLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadLock")
            .field("key", self.key())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for WriteLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteLock")
            .field("key", self.key())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ReadGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.section.show("ReadGuard", f)
    }
}

impl fmt::Debug for WriteGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.section.show("WriteGuard", f)
    }
}
