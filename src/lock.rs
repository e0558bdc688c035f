//! The named handle of a lock.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::fence::Fence;
use crate::guard::Guard;
use crate::handle::{Handle, Wait, Wanted};
use crate::hold::Terms;
use crate::holder::Holder;
use crate::identity::{Caller, Scope};
use crate::key::Key;
use crate::options::Reentry;
use crate::owner::Owner;
use crate::session::{Alive, Grip, Session, View};

/// A re-entrant lock, by its name. Cheap to clone; it holds nothing by itself.
///
/// # Who may enter again
/// [`run`](Self::run) needs no thought: runs exclude each other, whether in several tasks or in branches of one, and what
/// is nested inside of a section enters again.
///
/// A guard is held by an [`Owner`], which defaults to the tokio task that took it ([`Reentry`]). The same owner enters again
/// at once, and the lock is released when the last of its guards goes. **Three things follow that surprise people:**
///
/// - **Branches of `join!`, `select!` and `for_each_concurrent` are one task, so their guards all enter.** Use `run` there, or
///   give each branch an owner of its own: [`lock.owned_by(Owner::new())`](Self::owned_by).
/// - **`loop { let guard = lock.lock().await?; spawn(work(guard)); }` enters again in every round**, since the loop's task
///   still is the owner of what it gave away. [`Guard::detach`] gives the hold an owner of its own.
/// - **A spawned child that locks what its awaiting parent holds waits for ever**, since it is another owner. Run it in
///   [`Guard::scope`].
///
/// The first two are noticed where they can be: a guard that goes while a newer one of its hold stays for over a
/// millisecond, or that goes in another task while others stay, is counted
/// ([`Stats::suspicious_reentries`](crate::Stats::suspicious_reentries)) and, once a minute and key, warned about. A task that
/// stores guards and goes on, such as an actor that serves several clients, is not noticed. With
/// [`Reentry::Scope`] or [`non_reentrant`](Self::non_reentrant) neither can happen.
///
/// Outside of tokio tasks (the body of `#[tokio::main]`, other executors) a call that is polled is known by its waker, which
/// nested code shares and `FuturesUnordered` does not; one that blocks is known by its thread. A pool that steals work, such
/// as rayon, runs several jobs on one thread inside of each other: name their owners. Another executor that runs inside of a
/// tokio task, or in `spawn_blocking`, is branches of that task. Two threads that call `block_on` of
/// one current-thread runtime in turns have one waker: name their owners too.
///
/// # Contention is a value
/// That somebody else holds it is never an error: [`try_lock`](Self::try_lock) answers `None`, [`lock`](Self::lock) waits.
#[derive(Debug, Clone)]
pub struct Lock(Handle<Key>);

impl Wanted for Key {
    type Grip = Grip;

    fn keys(&self) -> &[Key] {
        std::slice::from_ref(self)
    }

    async fn take(
        &self,
        session: &Arc<Session>,
        caller: &Caller,
        terms: Terms,
        wait: Wait,
    ) -> Result<Option<Grip>, Error> {
        match wait {
            Wait::Never => session.try_lock(self, caller, terms).await,
            Wait::For(wait) => session.lock(self, caller, terms, Some(wait)).await,
            Wait::Always => session.lock(self, caller, terms, None).await,
        }
    }
}

impl Lock {
    pub(crate) fn new(alive: Arc<Alive>, key: Key) -> Self {
        Self(Handle::new(alive, key))
    }

    /// The name.
    pub fn key(&self) -> &Key {
        &self.0.wanted
    }

    /// The same lock, taken for a fixed time, from 100 ms to 30 days: the watchdog does not renew it, and it is lost when
    /// the time is over.
    ///
    /// For work whose length is known, and where a holder that hangs is to lose the lock. Terms belong to the outermost
    /// acquisition: a re-entry neither shortens nor lengthens them.
    #[must_use]
    pub const fn fixed_lease(mut self, lease: Duration) -> Self {
        self.0.manner.fixed_lease = Some(lease);
        self
    }

    /// The same lock, with a limit on how long it is held, from 100 ms to 30 days: after that time the token fires with
    /// [`Loss::MaxHold`](crate::Loss::MaxHold), and it is renewed no more. Until it is released, or its lease runs out,
    /// nobody else gets in.
    #[must_use]
    pub const fn max_hold(mut self, max_hold: Duration) -> Self {
        self.0.manner.max_hold = Some(max_hold);
        self
    }

    /// Keeps the lock from everybody for at least this long after it is taken, from 100 ms to 30 days, even if it is
    /// released sooner.
    ///
    /// For work that is to be done once in a period, by whichever process comes first: a job that takes a second, started
    /// by a timer on several machines whose clocks differ by two. A release that comes before the time is over does not
    /// delete the key; the server keeps it for the rest of the time, as if somebody else held it, and nobody is told.
    /// [`holder`](Self::holder) shows it as held, [`try_lock`](Self::try_lock) answers `None` to everybody, to the owner
    /// that released it too, and whoever waits gets it when the time is over. [`force_unlock`](Self::force_unlock) frees
    /// it. It makes no difference how the guard goes, whether by [`unlock`](Guard::unlock), by its drop or after a
    /// loss, and [`max_hold`](Self::max_hold) may be shorter: then the work is limited, and the lock stays.
    ///
    /// The time begins when the guard is handed out, and it goes by this machine's clock until the release, by the
    /// server's from then on. Where an owner enters again, each guard counts, and the latest end of all applies.
    ///
    /// **A crash does not keep it.** The time is known to this process until the release; before that the server knows
    /// the lease, which the watchdog renews. If the process ends without a release, or if the servers do not get it, the
    /// lock is free when its lease is over, and another process can do the work that was cut short. Where that must not
    /// be either, add a [`fixed_lease`](Self::fixed_lease) that is not shorter. Nor does a lock outlast the data of its
    /// server; with [`replicas`](crate::LockerBuilder::replicas), a release does not wait for them.
    ///
    /// Over several servers it may not be longer than
    /// [`restart_quarantine`](crate::LockerBuilder::restart_quarantine), as with leases.
    ///
    /// # Examples
    /// Each machine calls this at three in the morning, and one of them makes the report:
    /// ```no_run
    /// # async fn example(locks: lockhound::Locker) -> Result<(), lockhound::Error> {
    /// # async fn make_report() {}
    /// use std::time::Duration;
    ///
    /// let nightly = locks.get("report:nightly").min_hold(Duration::from_secs(3600));
    /// if let Some(guard) = nightly.try_lock().await? {
    ///     make_report().await;
    ///     guard.unlock().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn min_hold(mut self, min_hold: Duration) -> Self {
        self.0.manner.min_hold = Some(min_hold);
        self
    }

    /// The same lock, as this owner and not as the calling task. Whoever has the owner may enter.
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
        self.0.manner.owner = Some(owner);
        self
    }

    /// The same lock, where each call is an owner of its own, in scopes or not: [`Reentry::Never`] for this handle. Nothing
    /// enters again, so that nested code which locks it waits for itself; that is warned about, and in a
    /// [`run`](Self::run) refused.
    ///
    /// An owner that the handle names ([`owned_by`](Self::owned_by)) enters again all the same.
    #[must_use]
    pub const fn non_reentrant(mut self) -> Self {
        self.0.manner.reentry = Some(Reentry::Never);
        self
    }

    /// Takes the lock, and waits for it where somebody else holds it.
    ///
    /// It waits for the holder's unlock message, and in this process in line; between processes there is no order. A
    /// holder whose lock has no lease is waited for without an end, and named by a warning in the log.
    ///
    /// If the servers do not answer, it goes on trying for `outage_tolerance`, which counts from the beginning of the
    /// outage: all calls of the locker share it. A call that comes later tries for one `command_timeout` of its own
    /// before it fails, so that a loop that tries again after each error does not spin; its error says for how long
    /// the servers have been away.
    ///
    /// **Branches of one task (`join!`, `select!`, `for_each_concurrent`) are one owner and all get in: use
    /// [`run`](Self::run), or [`owned_by`](Self::owned_by). A loop that spawns its guards enters again in every round: use
    /// [`Guard::detach`]. A spawned child that locks what its awaiting parent holds waits for ever: use [`Guard::scope`].**
    ///
    /// A call that waits for what its own task took as another owner may wait for ever: it is warned about after a sixth of
    /// the lease.
    ///
    /// # Errors
    /// [`Error::Lost`] if this owner still has a guard of this lock that is lost; [`Error::Unavailable`] after
    /// `outage_tolerance` without an answer; [`Error::Server`] if the server refuses; [`Error::Config`] for an empty name,
    /// terms out of range, or a caller that cannot be told apart ([`Owner::current`]); [`Error::Closed`];
    /// [`Error::WatchdogPanicked`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves the line, and nothing is held: what a server may have granted meanwhile is given back in
    /// the background, at the latest two command timeouts after it answers again. A future that is kept but not polled
    /// holds nobody up: a grant that it does not take for a sixth of the lease is given back, and it stands in line again.
    pub async fn lock(&self) -> Result<Guard, Error> {
        self.0.take(Wait::Always).await?.map(Guard).ok_or(Error::Closed)
    }

    /// Takes the lock if that is possible at once: one attempt, which never stands in line.
    ///
    /// `None`: somebody else holds it. No server is asked if that is another owner of this very [`Locker`](crate::Locker).
    ///
    /// # Errors
    /// As [`lock`](Self::lock), but [`Error::Unavailable`] already if this attempt has no answer. It says for how long
    /// the servers have been away, where an attempt has failed before.
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<Guard>, Error> {
        Ok(self.0.take(Wait::Never).await?.map(Guard))
    }

    /// Takes the lock, and waits for it up to this time.
    ///
    /// `None`: somebody else held it all the time. A time of zero is [`try_lock`](Self::try_lock).
    ///
    /// # Errors
    /// As [`lock`](Self::lock), and [`Error::Unavailable`] when the time is over and the last round had no answer.
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    pub async fn try_lock_for(&self, wait: Duration) -> Result<Option<Guard>, Error> {
        Ok(self.0.take(Wait::up_to(wait)).await?.map(Guard))
    }

    /// [`lock`](Self::lock) for threads without async code. The thread is the owner, where there is no tokio task.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    ///
    /// # Panics
    /// In async code, which it would block.
    pub fn blocking_lock(&self) -> Result<Guard, Error> {
        self.0.take_blocking(Wait::Always)?.map(Guard).ok_or(Error::Closed)
    }

    /// [`try_lock`](Self::try_lock) for threads without async code.
    ///
    /// # Errors
    /// As [`try_lock`](Self::try_lock).
    ///
    /// # Panics
    /// In async code, which it would block.
    pub fn blocking_try_lock(&self) -> Result<Option<Guard>, Error> {
        Ok(self.0.take_blocking(Wait::Never)?.map(Guard))
    }

    /// [`try_lock_for`](Self::try_lock_for) for threads without async code.
    ///
    /// # Errors
    /// As [`try_lock_for`](Self::try_lock_for).
    ///
    /// # Panics
    /// In async code, which it would block.
    pub fn blocking_try_lock_for(&self, wait: Duration) -> Result<Option<Guard>, Error> {
        Ok(self.0.take_blocking(Wait::up_to(wait))?.map(Guard))
    }

    /// Takes the lock, runs a critical section, and releases. If the lock is lost meanwhile, the section is dropped where
    /// it stands and [`Error::Lost`] is returned.
    ///
    /// Runs exclude each other, in branches of one task as well (`join!`, `buffer_unordered`, `for_each_concurrent`). What is
    /// nested inside of the section, a run or a guard, enters again. In a scope it locks as the scope's owner, and where its
    /// task holds the lock by a guard it enters beside that; else it is an owner of its own, in whose scope the closure and
    /// the section run. A guard that outlives the section goes to the caller's owner; what tasks that the section left
    /// behind are in stays theirs, and is waited for. Beside a guard that was moved to another task a run enters all the
    /// same: [`Guard::detach`] such a guard.
    ///
    /// The loss is looked at first, every time. A section that does not come to an `await` cannot be stopped: let it ask
    /// [`Section::check`]. That the release was not confirmed by the server is not reported: the work was done while the
    /// lock was held.
    ///
    /// # Errors
    /// As [`lock`](Self::lock); [`Error::Lost`] too if the lock turns out to have been lost before the release;
    /// [`Error::Config`] for a run in a run of the same lock under [`Reentry::Never`], which would wait for itself.
    ///
    /// # Cancel safety
    /// Dropping the future drops the section and releases the lock in the background. A future that is kept but not polled
    /// holds up the other runs of its owner once it is its turn.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(lock: lockhound::Lock) -> Result<(), lockhound::Error> {
    /// # async fn charge(_: lockhound::Fence) -> u32 { 1 }
    /// let receipt = lock.run(|section| async move { charge(section.fence()).await }).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run<T, F, Fut>(&self, section: F) -> Result<T, Error>
    where
        F: FnOnce(Section) -> Fut,
        Fut: Future<Output = T>,
    {
        self.0.run(|grip, scope| Section { view: grip.view().clone(), scope }, section).await
    }

    /// Whether an attempt would find it locked.
    ///
    /// With one server that is whether anybody stands in it. Over several it is false where a majority of them says that it
    /// is free, and true otherwise: also while nobody holds it, but several keep each other out, or those that hold too few
    /// servers and those that do not answer are too many together. So nobody holds what is said to be free, if the servers
    /// that say so have forgotten nothing.
    ///
    /// # Errors
    /// [`Error::Unavailable`] without an answer of a majority, [`Error::Server`] (also if the key holds something else than a lock), [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Safe: it changes nothing.
    pub async fn is_locked(&self) -> Result<bool, Error> {
        Ok(self.holder().await?.is_some())
    }

    /// Who holds it, where [`is_locked`](Self::is_locked) is true.
    ///
    /// Where several servers name different owners, [`Holder::by_node`] tells which names which.
    ///
    /// # Errors
    /// As [`is_locked`](Self::is_locked).
    ///
    /// # Cancel safety
    /// Safe: it changes nothing.
    pub async fn holder(&self) -> Result<Option<Holder>, Error> {
        self.key().validate()?;
        self.0.session().holder(self.key()).await
    }

    /// Releases it, whoever holds it, and wakes the waiters; whether anybody did.
    ///
    /// It asks first who holds it, and is carried out once, on those who did at that moment: whoever comes after them
    /// keeps the lock, however late the command is. Redisson's fields tell its threads apart and not their acquisitions: a
    /// thread that has come again is taken for the one that was seen.
    ///
    /// Guards of this [`Locker`](crate::Locker) are lost at once, with
    /// [`Loss::ForceUnlocked`](crate::Loss::ForceUnlocked), even if the server then does not answer. Holders elsewhere
    /// learn of it at their next renewal at the latest, and may act until then: this is for operators, and for holders
    /// that are known to be dead.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: it may have been released or not. [`Error::Server`], also where the key holds something
    /// that cannot be a lock, which the error names and which stays: a list, a set, a sorted set, a stream, or a hash
    /// that has other fields than owners of this crate or of Redisson. Any string can be a lock of
    /// [`Format::Plain`](crate::Format::Plain), and is deleted. [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Once it was polled it is carried out, even if the future is dropped.
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        self.key().validate()?;
        self.0.session().force_unlock(self.key()).await
    }
}

/// A critical section's view of the lock that [`Lock::run`] holds for it.
#[derive(Debug, Clone)]
pub struct Section {
    view: View,
    scope: Scope,
}

impl Section {
    /// A token that fires when the lock is lost; cancelling it cancels nothing else.
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

    /// The fencing token of this hold.
    pub fn fence(&self) -> Fence {
        self.view.hold().fence
    }

    /// Runs a future as inside of this section, in whatever task: what it locks enters again. For children that the section
    /// spawns and awaits; the section itself is in this scope already. See [`Guard::scope`](crate::Guard::scope).
    ///
    /// # Cancel safety
    /// Dropping it drops the future that it runs.
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        self.scope.clone().run(future)
    }

    /// For how long the lock is certainly held if it is not renewed again.
    pub fn remaining(&self) -> Duration {
        self.view.remaining()
    }
}
