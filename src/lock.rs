//! The handle of a lock, and the view of a critical section.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::error::{Error, Loss};
use crate::fence::Fence;
use crate::foreign;
use crate::guard::Guard;
use crate::handle::{Handle, Wait};
use crate::hold::HoldState;
use crate::holder::Holder;
use crate::identity::Scope;
use crate::key::Key;
use crate::kind::FAIR;
use crate::options::{Reentry, validate_duration};
use crate::owner::Owner;
use crate::session::{SharedSession, Views};

/// A re-entrant lock with a name.
///
/// Cheap to clone; the handle by itself holds nothing.
///
/// # Who may enter again
/// [`run`](Self::run) is the simplest form: runs exclude each other, whether in several tasks or in
/// branches of one, and what is nested inside a section enters again.
///
/// A guard belongs to an [`Owner`], which defaults to the tokio task that took it ([`Reentry`]).
/// The same owner enters again at once, and the lock is released when the last of its guards is
/// dropped. **This has three consequences that surprise people:**
///
/// - **Branches of `join!`, `select!` and `for_each_concurrent` are one task, so their guards all
///   get in.** Use `run` there, or give each branch an owner of its own:
///   [`lock.owned_by(Owner::new())`](Self::owned_by).
/// - **`loop { let guard = lock.lock().await?; spawn(work(guard)); }` enters again in every
///   round**, since the loop's task still owns the guards that it gave away. [`Guard::detach`]
///   gives the hold an owner of its own.
/// - **A spawned child that locks what its awaiting parent holds waits forever**, since it is a
///   different owner. Run it in [`Guard::scope`].
///
/// The locker detects the first two if it can: it counts a guard that is dropped while a newer
/// guard of its hold stays for over a millisecond, and a guard that is dropped in another task
/// while others stay ([`Stats::suspicious_reentries`](crate::stats::Stats::suspicious_reentries)).
/// It also logs a warning, once per key and minute; over a `testing::Server` the call panics. It
/// does not detect a task that keeps guards in its state, such as an actor that serves several
/// clients. With [`Reentry::Scope`] and with [`non_reentrant`](Self::non_reentrant) neither can
/// happen.
///
/// Outside of tokio tasks (the body of `#[tokio::main]`, other executors), a polled call is
/// identified by its waker, which nested code shares but the futures of a `FuturesUnordered` do
/// not; a blocking call is identified by its thread. Name the owner ([`owned_by`](Self::owned_by))
/// in these cases:
///
/// - A work-stealing pool, such as rayon, runs several jobs inside each other on one thread.
/// - Futures of another executor that runs inside a tokio task or in `spawn_blocking` count as
///   branches of that task.
/// - Two threads that call `block_on` of one current-thread runtime in turns share one waker.
///
/// # Contention is a value
/// It is never an error that somebody else holds the lock: [`try_lock`](Self::try_lock) returns
/// `None`, and [`lock`](Self::lock) waits.
#[derive(Clone)]
pub struct Lock(Handle);

impl Lock {
    pub(crate) fn new(shared: Arc<SharedSession>, key: Key) -> Self {
        Self(Handle::new(shared, [key].into()))
    }

    /// Makes a fair lock.
    pub(crate) fn in_turn(shared: Arc<SharedSession>, key: Key) -> Self {
        Self(Handle::of_kind(shared, key, &FAIR))
    }

    /// Returns the name of the lock.
    pub fn key(&self) -> &Key {
        &self.0.keys[0]
    }

    /// Returns a handle that takes the lock for a fixed time, from 100 ms to 30 days.
    ///
    /// The watchdog does not renew the lock, and it is lost when the time is over.
    ///
    /// It is for work of known length, when a holder that hangs should lose the lock. The lease is
    /// that of the outermost acquisition: a re-entry neither shortens nor lengthens it.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// use std::time::Duration;
    ///
    /// let guard = locks.get("import").fixed_lease(Duration::from_secs(60)).lock().await?;
    /// tokio::time::sleep(Duration::from_secs(61)).await; // the holder hangs
    /// assert!(guard.is_lost());
    /// assert!(!locks.get("import").is_locked().await?); // free, although the guard still lives
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    #[must_use]
    pub const fn fixed_lease(mut self, lease: Duration) -> Self {
        self.0.options.fixed_lease = Some(lease);
        self
    }

    /// Returns a handle that limits how long the lock is held, from 100 ms to 30 days.
    ///
    /// After that time the token fires with [`Loss::MaxHold`](crate::Loss::MaxHold), and the
    /// watchdog no longer renews the lock. Until it is released or its lease runs out, no other
    /// caller gets in.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// use std::time::Duration;
    /// use lockhound::Loss;
    ///
    /// let lock = locks.get("orders:42").max_hold(Duration::from_secs(60));
    /// let guard = lock.lock().await?;
    /// tokio::time::sleep(Duration::from_secs(61)).await;
    /// assert_eq!(guard.loss(), Some(Loss::MaxHold));
    /// assert!(lock.is_locked().await?); // still: until the lease runs out or the guard is dropped
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    #[must_use]
    pub const fn max_hold(mut self, max_hold: Duration) -> Self {
        self.0.options.max_hold = Some(max_hold);
        self
    }

    /// Returns a handle that keeps the lock locked for at least this long, even after a release.
    ///
    /// The time is from 100 ms to 30 days, and over several servers at most a
    /// [`restart_quarantine`](crate::LockerBuilder::restart_quarantine). It begins when the guard
    /// is handed out. For the rest of it, the server keeps the key as if somebody else held the
    /// lock; [`force_unlock`](Self::force_unlock) frees it. Use it with
    /// [`try_lock`](Self::try_lock): callers that wait get the lock when the time is over.
    /// [`once_per`](Self::once_per) is built on it.
    ///
    /// **It does not survive a crash**, after which the lock is free when its lease is over, unless
    /// a [`fixed_lease`](Self::fixed_lease) is not shorter. See
    /// [`guide::critical_sections`](crate::guide::critical_sections#after-a-release).
    ///
    /// # Examples
    /// A mail about an order is sent once in ten minutes at most, however often somebody asks for
    /// it:
    /// ```no_run
    /// # async fn example(locks: lockhound::Locker) -> Result<(), lockhound::Error> {
    /// # async fn send_mail() {}
    /// use std::time::Duration;
    ///
    /// let mail = locks.get("mail:42").min_hold(Duration::from_secs(600));
    /// if let Some(guard) = mail.try_lock().await? {
    ///     send_mail().await;
    ///     guard.unlock().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn min_hold(mut self, min_hold: Duration) -> Self {
        self.0.options.min_hold = Some(min_hold);
        self
    }

    /// Returns a handle whose calls and holds have this class.
    ///
    /// It is the label `class` of the metrics `lockhound_attempts_total`, `lockhound_wait_seconds`
    /// and `lockhound_hold_seconds`, and a field of the spans. It changes nothing else. Use few
    /// classes, as `"orders"`, and never the name of a lock: each one is a series of its own. A
    /// hold has the class of the handle that took it.
    ///
    /// Defaults to none: no label.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let lock = locks.get("orders:42").class("orders"); // one series for all orders
    /// lock.lock().await?.unlock().await
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    #[must_use]
    pub const fn class(mut self, class: &'static str) -> Self {
        self.0.options.class = Some(class);
        self
    }

    /// Returns a handle that locks as this owner instead of as the calling task.
    ///
    /// Every caller that uses this owner may enter.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(lock: lockhound::Lock) -> Result<(), lockhound::Error> {
    /// use lockhound::Owner;
    ///
    /// // Two branches of one task that exclude each other.
    /// let (left, right) = (lock.clone().owned_by(Owner::new()), lock.owned_by(Owner::new()));
    /// tokio::try_join!(
    ///     async { left.lock().await?.unlock().await },
    ///     async { right.lock().await?.unlock().await },
    /// )?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn owned_by(mut self, owner: Owner) -> Self {
        self.0.options.owner = Some(owner);
        self
    }

    /// Returns a handle that locks as a new owner at each call, in scopes too.
    ///
    /// It is [`Reentry::Never`] for this handle.
    ///
    /// Nothing enters again, so nested code that takes the lock waits for itself. The locker logs a
    /// warning about that; a run inside a [`run`](Self::run) is refused. An owner that the handle
    /// names ([`owned_by`](Self::owned_by)) enters again all the same.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let lock = locks.get("orders:42").non_reentrant();
    /// let guard = lock.lock().await?;
    /// assert!(lock.try_lock().await?.is_none()); // the same task, but another owner
    /// guard.unlock().await
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    #[must_use]
    pub const fn non_reentrant(mut self) -> Self {
        self.0.options.reentry = Some(Reentry::Never);
        self
    }

    /// Takes the lock.
    ///
    /// Waits if somebody else holds it.
    ///
    /// The call waits for the holder's unlock message. Within a process, callers enter in the order
    /// in which they arrived; between processes there is no order. If the holder's lock has no
    /// lease, the wait may have no end; a warning in the log names that holder.
    ///
    /// If the servers do not answer, the call retries for `outage_tolerance`, which counts from the
    /// beginning of the outage, for all calls of the locker. A later call tries for one
    /// `command_timeout` before it fails, so a loop that retries after each error does not spin.
    /// Its error says how long the servers have been away.
    ///
    /// A refusal ([`Error::Server`]) is returned at once if it is the locker's first for a second,
    /// and otherwise after a pause of 50 to 200 ms, for the same reason.
    ///
    /// **Branches of one task (`join!`, `select!`, `for_each_concurrent`) are one owner and all get
    /// in: use [`run`](Self::run) or [`owned_by`](Self::owned_by). A loop that spawns its guards
    /// enters again in every round: use [`Guard::detach`]. A spawned child that locks what its
    /// awaiting parent holds waits forever: use [`Guard::scope`].**
    ///
    /// A call that waits for a lock that its own task took as another owner may wait forever. After
    /// a sixth of the lease the locker logs a warning about it.
    ///
    /// # Errors
    /// - [`Error::Lost`] if this owner still has a guard of this lock that is lost.
    /// - [`Error::Unavailable`] after `outage_tolerance` without an answer.
    /// - [`Error::Server`] if the server refuses.
    /// - [`Error::Config`] for an empty name, terms out of range, or a caller that cannot be told
    ///   apart ([`Owner::current`]).
    /// - [`Error::Closed`], [`Error::Forked`], [`Error::WatchdogPanicked`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves the line, and nothing is held: a lock that a server may have
    /// granted meanwhile is released in the background, at the latest two command timeouts after
    /// the server answers again. A future that is kept but not polled does not block others: a
    /// grant that it does not take within a sixth of the lease is released, and the call goes back
    /// into the line. If a caller of the same locker handed the lock over to it, it has at most a
    /// [`command_timeout`](crate::LockerBuilder::command_timeout) to take it.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let lock = locks.get("orders:42");
    /// let outer = lock.lock().await?;
    /// let inner = lock.lock().await?; // the same task enters again, and sends nothing
    /// drop(inner);
    /// outer.check()?; // still held
    /// outer.unlock().await
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn lock(&self) -> Result<Guard, Error> {
        self.0
            .take(Wait::Always)
            .await?
            .map(Guard)
            .ok_or(Error::Closed)
    }

    /// Takes the lock if it is free, in one attempt.
    ///
    /// It never waits in line.
    ///
    /// Returns `None` if somebody else holds the lock. Asks no server if that is another owner of
    /// this [`Locker`](crate::Locker).
    ///
    /// # Errors
    /// As [`lock`](Self::lock), but [`Error::Unavailable`] if this one attempt has no answer. If an
    /// earlier attempt failed too, the error says how long the servers have been away.
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
    /// let Some(guard) = locks.get("orders:42").try_lock().await? else {
    ///     return Ok(()); // somebody else is at it, which is not an error
    /// };
    /// guard.unlock().await
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn try_lock(&self) -> Result<Option<Guard>, Error> {
        Ok(self.0.take(Wait::Never).await?.map(Guard))
    }

    /// Takes the lock, and waits for at most this long.
    ///
    /// Returns `None` if somebody else held the lock all the time. A time of zero is
    /// [`try_lock`](Self::try_lock).
    ///
    /// # Errors
    /// As [`lock`](Self::lock), and [`Error::Unavailable`] if the time is over and the last round
    /// had no answer. A time that is too short for an answer (20 ms and two round trips) is only
    /// such an error if a round failed before.
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
    /// use lockhound::Owner;
    ///
    /// let lock = locks.get("orders:42");
    /// let guard = lock.lock().await?;
    /// let other = lock.clone().owned_by(Owner::new());
    /// assert!(other.try_lock_for(Duration::from_secs(2)).await?.is_none());
    /// guard.unlock().await
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn try_lock_for(&self, wait: Duration) -> Result<Option<Guard>, Error> {
        Ok(self.0.take(Wait::up_to(wait)).await?.map(Guard))
    }

    /// Takes the lock as [`lock`](Self::lock) does, for threads without async code.
    ///
    /// The owner is the thread, unless it runs a tokio task.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    ///
    /// [`Error::Config`], wherever it is called, if [`connect`](crate::LockerBuilder::connect)
    /// connected the locker to servers in memory.
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
    /// let lock = locks.get("orders:42");
    /// let guard = lock.blocking_lock()?; // the owner is this thread
    /// let other = std::thread::spawn(move || lock.blocking_try_lock());
    /// assert!(other.join().expect("it does not panic")?.is_none());
    /// guard.blocking_unlock()
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn blocking_lock(&self) -> Result<Guard, Error> {
        self.0
            .take_blocking(Wait::Always)?
            .map(Guard)
            .ok_or(Error::Closed)
    }

    /// Takes the lock as [`try_lock`](Self::try_lock) does, for threads without async code.
    ///
    /// # Errors
    /// As [`try_lock`](Self::try_lock).
    ///
    /// # Panics
    /// Panics in async code, which it would block.
    pub fn blocking_try_lock(&self) -> Result<Option<Guard>, Error> {
        Ok(self.0.take_blocking(Wait::Never)?.map(Guard))
    }

    /// Takes the lock as [`try_lock_for`](Self::try_lock_for) does, for threads without async code.
    ///
    /// # Errors
    /// As [`try_lock_for`](Self::try_lock_for).
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
    /// use std::time::Duration;
    ///
    /// let wait = Duration::from_millis(500);
    /// if let Some(guard) = locks.get("orders:42").blocking_try_lock_for(wait)? {
    ///     guard.blocking_unlock()?;
    /// }
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn blocking_try_lock_for(&self, wait: Duration) -> Result<Option<Guard>, Error> {
        Ok(self.0.take_blocking(Wait::up_to(wait))?.map(Guard))
    }

    /// Takes the lock, runs a critical section, and releases the lock.
    ///
    /// If the lock is lost meanwhile, it drops the section at its current `await` and returns
    /// [`Error::Lost`].
    ///
    /// Runs exclude each other, also in branches of one task (`join!`, `buffer_unordered`,
    /// `for_each_concurrent`). A run or a guard nested inside the section enters again.
    ///
    /// A run locks as the first of these owners that applies:
    ///
    /// 1. The owner that the handle names ([`owned_by`](Self::owned_by)).
    /// 2. In a scope, such as another run's section, the scope's owner, unless [`Reentry::Never`]
    ///    applies.
    /// 3. With [`Reentry::Task`], if its caller (the task or, outside of tasks, the waker) holds
    ///    the lock by a guard, the caller: the run enters although that guard is held.
    /// 4. Otherwise an owner of its own.
    ///
    /// The closure and the section run in that owner's scope. Runs of one owner that are not nested
    /// take turns. A guard that outlives the section passes to the caller's owner. Tasks that the
    /// section left behind keep the guards that they hold, and the caller's next run waits for
    /// them. A run also enters while a guard of its caller lives in another task, to which it was
    /// moved: [`Guard::detach`] such a guard.
    ///
    /// Every poll checks for a loss first. A section that does not reach an `await` cannot be
    /// stopped: let it call [`Section::check`]. An unconfirmed release is not reported as an error,
    /// since the work was done while the lock was held; it is logged. If the release finds that the
    /// lock was lost earlier, the section's value is dropped, and that is logged, too: a section
    /// whose value must not be lost has to pass it on itself.
    ///
    /// The future borrows this handle: bind `locks.get(..)` to a variable to keep the future.
    ///
    /// # Errors
    /// As [`lock`](Self::lock). [`Error::Lost`] also if the release finds that the lock was lost
    /// earlier, so it does not say whether the section ended: ask the resource before you repeat
    /// it. [`Error::Config`] for a run inside a run of the same lock with [`Reentry::Never`],
    /// which would wait for itself.
    ///
    /// # Cancel safety
    /// Dropping the future drops the section and releases the lock in the background. A future that
    /// is kept but not polled blocks the other runs of its owner once it is its turn.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// # let lock = locks.get("orders:42");
    /// # async fn charge(_: lockhound::Fence) -> u32 { 1 }
    /// let receipt = lock.run(|section| async move { charge(section.fence()).await }).await?;
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
    /// The time bounds the wait for the lock, and not the section.
    ///
    /// Returns `None` if somebody else held the lock all the time.
    ///
    /// # Errors
    /// As [`run`](Self::run) and [`try_lock_for`](Self::try_lock_for).
    ///
    /// # Cancel safety
    /// As [`run`](Self::run).
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(lock: lockhound::Lock) -> Result<u16, lockhound::Error> {
    /// # async fn charge(_: lockhound::Fence) -> u32 { 1 }
    /// use std::time::Duration;
    ///
    /// let wait = Duration::from_secs(2);
    /// Ok(match lock.run_for(wait, |section| async move { charge(section.fence()).await }).await? {
    ///     Some(_receipt) => 200,
    ///     None => 409, // somebody else is at it
    /// })
    /// # }
    /// ```
    pub async fn run_for<T, F, Fut>(&self, wait: Duration, section: F) -> Result<Option<T>, Error>
    where
        F: FnOnce(Section) -> Fut,
        Fut: Future<Output = T>,
    {
        Section::run(&self.0, Wait::up_to(wait), section).await
    }

    /// Does a job once in each period, on whichever machine comes first.
    ///
    /// Every machine calls this when its timer goes off.
    ///
    /// - **The job succeeds**: the lock stays locked for half of the period from then on, as with
    ///   [`min_hold`](Self::min_hold), so that no other machine does the job again. The call
    ///   returns its value.
    /// - **The job fails**: the lock is released at once, and the next machine that waits does the
    ///   job. The call returns the job's error, in `Some`. If the others have stopped waiting by
    ///   then, the job is left out until the next period.
    /// - **The machine dies or loses contact**: the lock is free after a lease, and a machine that
    ///   still waits does the job. If none waits any more, the job is left out until the next
    ///   period.
    ///
    /// A call waits for two leases, or a quarter of the period if that is shorter, also while the
    /// job is done already. It returns `None` if another machine held the lock for all of that
    /// time: it has done the job, or is still at work. [`holder`](Self::holder) tells which: after
    /// the job, what is left of half the period remains. Its label is gone once that machine has
    /// closed its locker, so let the job log where it was done.
    ///
    /// Machines that need not stand by for one that fails call [`try_lock`](Self::try_lock) with
    /// [`min_hold`](Self::min_hold) instead: they return at once.
    ///
    /// Timers may differ by up to a quarter of the period, and so may the job take. After a crash
    /// it may be done twice in part: it has to be a job that can be begun again. A job can be done
    /// again if the server loses its data. The section is dropped if the lock is lost meanwhile, as
    /// in [`run`](Self::run).
    ///
    /// # Errors
    /// As [`run_for`](Self::run_for). [`Error::Config`] for a period of which half is no
    /// `min_hold`: shorter than 200 ms, or longer than 60 days or, over several servers, twice the
    /// [`restart_quarantine`](crate::LockerBuilder::restart_quarantine).
    ///
    /// # Cancel safety
    /// As [`run`](Self::run): the job is dropped, and counts as one that failed.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(locks: lockhound::Locker) -> Result<(), lockhound::Error> {
    /// # async fn make_report() -> Result<(), String> { Ok(()) }
    /// use std::time::Duration;
    ///
    /// let day = Duration::from_secs(24 * 3600);
    /// match locks.get("report:nightly").once_per(day, |_| make_report()).await? {
    ///     Some(Ok(())) => println!("done here"),
    ///     Some(Err(error)) => eprintln!("failed here: {error}"),
    ///     None => println!("done elsewhere, or still at work there"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn once_per<T, E, F, Fut>(
        &self,
        period: Duration,
        job: F,
    ) -> Result<Option<Result<T, E>>, Error>
    where
        F: FnOnce(Section) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let settings = self.0.settings();
        let kept = period / 2;
        validate_duration("period / 2", kept)?;
        settings.check_quarantine("period / 2", kept)?;
        let patience = (period / 4).min(settings.lease * 2);
        self.0
            .run(
                Wait::up_to(patience),
                |view, scope| job(Section { view, scope }),
                |done| done.is_ok().then_some(kept),
            )
            .await
    }

    /// Takes the lock, calls a function, and releases the lock, for threads without async code.
    ///
    /// The owner is the thread, so blocking calls for this lock in the function enter again.
    ///
    /// Nothing can stop the function when the lock is lost: let it call [`Section::check`] between
    /// steps.
    ///
    /// # Errors
    /// As [`blocking_lock`](Self::blocking_lock), and [`Error::Lost`] if the lock was lost
    /// meanwhile; the value of the function is dropped then, and that is logged. An unconfirmed
    /// release is only logged.
    ///
    /// # Panics
    /// Panics in async code, which it would block.
    ///
    /// # Examples
    /// ```no_run
    /// # fn example(lock: lockhound::Lock) -> Result<(), lockhound::Error> {
    /// # fn charge(_: lockhound::Fence) -> u32 { 1 }
    /// let receipt = lock.blocking_run(|section| charge(section.fence()))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn blocking_run<T>(&self, section: impl FnOnce(Section) -> T) -> Result<T, Error> {
        self.0
            .run_blocking(|view, scope| section(Section::new(view, scope)))
    }

    /// Returns whether an attempt to take the lock would find it held.
    ///
    /// With one server, it is `true` if any client holds the lock there. With several, it is
    /// `false` if a majority of them says that the lock is free, and `true` otherwise: also while
    /// several callers keep each other out and none of them holds it, or while too few servers
    /// answer to know. If it returns `false`, no client holds the lock, unless the servers that say
    /// so have forgotten it.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if no majority answers, [`Error::Server`] (also if the key holds
    /// something other than a lock), [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    ///
    /// # Examples
    /// It is for people and metrics: by the time of the answer, the lock may have changed hands.
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let lock = locks.get("orders:42");
    /// assert!(!lock.is_locked().await?);
    /// let guard = lock.lock().await?;
    /// assert!(lock.is_locked().await?); // the caller's own hold counts, too
    /// guard.unlock().await
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn is_locked(&self) -> Result<bool, Error> {
        foreign::give_way().await;
        Error::check_name(self.key())?;
        let locked = self.0.session().is_locked(self.key()).await;
        locked.map_err(|error| error.of(std::slice::from_ref(self.key())))
    }

    /// Returns who holds the lock; `None` if [`is_locked`](Self::is_locked) would return `false`.
    ///
    /// [`Holder::label`] says which process it is. The call asks for it once it knows the owner,
    /// and waits for it for half a [`command_timeout`](crate::LockerBuilder::command_timeout) at
    /// most.
    ///
    /// A process that was killed is named until its lease is over. If several servers name
    /// different owners, [`Holder::by_node`] lists the answer of each.
    ///
    /// # Errors
    /// As [`is_locked`](Self::is_locked).
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
    /// let guard = locks.get("orders:42").lock().await?;
    /// if let Some(holder) = locks.get("orders:42").holder().await? {
    ///     // Such as "host:4711 has it, for another 30s".
    ///     println!("{:?} has it, for another {:?}", holder.label(), holder.remaining());
    /// }
    /// guard.unlock().await
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn holder(&self) -> Result<Option<Holder>, Error> {
        foreign::give_way().await;
        Error::check_name(self.key())?;
        self.0
            .session()
            .holder(self.key())
            .await
            .map_err(|error| error.of(std::slice::from_ref(self.key())))
    }

    /// Releases the lock for all of its holders, and wakes the waiters.
    ///
    /// Returns whether it was held.
    ///
    /// It first asks who holds the lock, and then releases exactly those holders, once: a caller
    /// that takes the lock after them keeps it, however late the command arrives. Redisson's fields
    /// name its threads and not their acquisitions, so a Redisson thread that has released the lock
    /// and taken it again loses it too.
    ///
    /// Guards of this [`Locker`](crate::Locker) are lost before they are released, with
    /// [`Loss::ForceUnlocked`](crate::Loss::ForceUnlocked), even if the server does not answer.
    /// Holders elsewhere, and one here whose grant is on its way just then, learn of it at their
    /// next renewal at the latest (with a [`fixed_lease`](Self::fixed_lease) at its end), and may
    /// act until then: use it as an operator, or for holders that are known to be dead.
    ///
    /// # Errors
    /// - [`Error::Unavailable`]: the lock may have been released or not.
    /// - [`Error::Server`], also if the key holds something that cannot be a lock: a list, a set, a
    ///   sorted set, a stream, or a hash that has other fields than owners of this crate or of
    ///   Redisson. The error names the type, and the key stays. Any string can be a lock of
    ///   [`Format::Plain`](crate::Format::Plain), and is deleted.
    /// - [`Error::Closed`].
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
    /// use lockhound::Loss;
    ///
    /// let guard = locks.get("orders:42").lock().await?;
    /// assert!(locks.get("orders:42").force_unlock().await?);
    /// // In this process at once; a holder elsewhere may act until its next renewal.
    /// assert_eq!(guard.loss(), Some(Loss::ForceUnlocked));
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        foreign::give_way().await;
        Error::check_name(self.key())?;
        self.0
            .session()
            .force_unlock(self.key())
            .await
            .map_err(|error| error.of(std::slice::from_ref(self.key())))
    }
}

/// A view of a hold, which does not keep the lock.
///
/// The section of a `run` receives one, and the guards of a read-write lock and leaderships
/// dereference to one.
#[derive(Clone)]
pub struct Section {
    view: Views,
    scope: Scope,
}

impl Section {
    pub(crate) fn new(view: Views, scope: Scope) -> Self {
        Self { view, scope }
    }

    /// Takes a lock, runs a section with its view of it, and releases the lock. `None` if the wait
    /// ended before.
    pub(crate) async fn run<T, F, Fut>(
        handle: &Handle,
        wait: Wait,
        section: F,
    ) -> Result<Option<T>, Error>
    where
        F: FnOnce(Self) -> Fut,
        Fut: Future<Output = T>,
    {
        let section = |view, scope| section(Self::new(view, scope));
        handle.run(wait, section, |_| None).await
    }

    /// Returns a token that fires when the lock is lost.
    ///
    /// Cancelling it cancels nothing else.
    pub fn lost(&self) -> CancellationToken {
        self.view.token()
    }

    /// Returns an error if the lock is lost, for `?` between steps.
    ///
    /// It reads the clock, so it is right even if the watchdog is late.
    ///
    /// # Errors
    /// [`Error::Lost`].
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # fn import(_: u32) {}
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let lock = locks.get("import");
    /// lock.run(|section| async move {
    ///     for part in 0..3 {
    ///         section.check()?; // `run` itself looks only when the section awaits
    ///         import(part);
    ///     }
    ///     Ok(())
    /// })
    /// .await?
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn check(&self) -> Result<(), Error> {
        self.view.check()
    }

    /// Returns how the lock was lost, or `None` while it is held.
    ///
    /// It reads the clock.
    pub fn loss(&self) -> Option<Loss> {
        self.state().loss()
    }

    /// Returns how safe the lock is.
    ///
    /// It reads the clock.
    pub fn state(&self) -> HoldState {
        self.view.state()
    }

    /// Returns the fencing token of this hold.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # async fn update(_: &str, _: u64) {}
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// locks.get("orders:42")
    ///     .run(|section| async move {
    ///         // The database refuses a fence below the highest that it has seen.
    ///         let fence = section.fence().get();
    ///         update("UPDATE .., fence = $1 WHERE id = 42 AND fence <= $1", fence).await;
    ///     })
    ///     .await
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn fence(&self) -> Fence {
        self.view.first().hold().fence
    }

    /// Returns the name of the lock.
    pub fn key(&self) -> &Key {
        &self.view.first().hold().claim.key
    }

    /// Returns the owner of this hold.
    pub fn owner(&self) -> Owner {
        self.view.first().hold().owner()
    }

    /// Runs a future as part of this section, in any task: its locks enter again.
    ///
    /// It is for children that the section spawns and awaits; the section itself is in this scope
    /// already. See [`Guard::scope`](crate::Guard::scope).
    ///
    /// # Cancel safety
    /// Dropping the returned future drops the one that it runs.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let lock = locks.get("orders:42");
    /// lock.clone()
    ///     .run(|section| async move {
    ///         let child = section.scope(async move { lock.lock().await?.unlock().await });
    ///         tokio::spawn(child).await.expect("it does not panic") // without a scope: for ever
    ///     })
    ///     .await?
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        self.scope.clone().run(future)
    }

    /// Returns how long the lock is certainly held if it is not renewed again.
    pub fn remaining(&self) -> Duration {
        self.view.remaining()
    }

    pub(crate) fn show(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("key", self.key())
            .field("owner", &format_args!("{}", self.owner()))
            .field("fence", &self.fence())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("key", self.key())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hold = self.view.first().hold();
        f.debug_struct("Section")
            .field("key", &hold.claim.key)
            .field("fence", &hold.fence)
            .finish_non_exhaustive()
    }
}
