//! The named handle of a lock.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::error::{Error, Loss};
use crate::fence::Fence;
use crate::foreign::{self, contained};
use crate::guard::Guard;
use crate::hold::Terms;
use crate::holder::Holder;
use crate::key::Key;
use crate::options::{Settings, validate_duration};
use crate::owner::Owner;
use crate::session::{Alive, Session, View};

/// A re-entrant lock, by its name. Cheap to clone; it holds nothing by itself.
///
/// # Who may enter again
/// A lock is held by an [`Owner`]: the tokio task that took it, unless something else is said. The same owner enters
/// again at once, and the lock is released when the last of its guards goes. **Three things follow that surprise people:**
///
/// - **Branches of `join!`, `select!` and `for_each_concurrent` are one task, so they all enter.** Give each branch an owner
///   of its own: [`lock.owned_by(Owner::new())`](Self::owned_by).
/// - **`loop { let guard = lock.lock().await?; spawn(work(guard)); }` enters again in every round**, since the loop's task
///   still is the owner of what it gave away. [`Guard::detach`] gives the hold an owner of its own.
/// - **A spawned child that locks what its awaiting parent holds waits for ever**, since it is somebody else. Run it in
///   the parent's [`Owner::scope`].
///
/// # Contention is a value
/// That somebody else holds it is never an error: [`try_lock`](Self::try_lock) answers `None`, [`lock`](Self::lock) waits.
#[derive(Debug, Clone)]
pub struct Lock {
    alive: Arc<Alive>,
    key: Key,
    manner: Manner,
}

impl Lock {
    pub(crate) fn new(alive: Arc<Alive>, key: Key) -> Self {
        Self { alive, key, manner: Manner::default() }
    }

    /// The name.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The same lock, taken for a fixed time, from 100 ms to 30 days: the watchdog does not renew it, and it is lost when
    /// the time is over.
    ///
    /// For work whose length is known, and where a holder that hangs is to lose the lock. Terms belong to the outermost
    /// acquisition: a re-entry neither shortens nor lengthens them.
    #[must_use]
    pub const fn fixed_lease(mut self, lease: Duration) -> Self {
        self.manner.fixed_lease = Some(lease);
        self
    }

    /// The same lock, with a limit on how long it is held, from 100 ms to 30 days: after that time the token fires with
    /// [`Loss::MaxHold`], and it is renewed no more. Until it is released, or its lease runs out, nobody else gets in.
    #[must_use]
    pub const fn max_hold(mut self, max_hold: Duration) -> Self {
        self.manner.max_hold = Some(max_hold);
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
        self.manner.owner = Some(owner);
        self
    }

    /// Takes the lock, and waits for it where somebody else holds it.
    ///
    /// It waits for the holder's unlock message, and in this process in line; between processes there is no order. If the
    /// servers do not answer, it goes on trying for `outage_tolerance`.
    ///
    /// **Branches of one task (`join!`, `select!`, `for_each_concurrent`) are one owner and all get in: use
    /// [`owned_by`](Self::owned_by). A loop that spawns its guards enters again in every round: use [`Guard::detach`]. A
    /// spawned child that locks what its awaiting parent holds waits for ever: use [`Owner::scope`].**
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
        self.lock_as(self.manner.caller()?).await
    }

    /// Takes the lock if that is possible at once: one attempt, which never stands in line.
    ///
    /// `None`: somebody else holds it. No server is asked if that is another owner of this very [`Locker`](crate::Locker).
    ///
    /// # Errors
    /// As [`lock`](Self::lock), but [`Error::Unavailable`] already if this attempt has no answer.
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<Guard>, Error> {
        self.try_lock_as(self.manner.caller()?).await
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
        self.try_lock_for_as(self.manner.caller()?, wait).await
    }

    /// [`lock`](Self::lock) for threads without async code. The thread is the owner, where there is no tokio task.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    ///
    /// # Panics
    /// In async code, which it would block.
    pub fn blocking_lock(&self) -> Result<Guard, Error> {
        self.session().block_on(self.lock_as(self.manner.blocking_caller()))
    }

    /// [`try_lock`](Self::try_lock) for threads without async code.
    ///
    /// # Errors
    /// As [`try_lock`](Self::try_lock).
    ///
    /// # Panics
    /// In async code, which it would block.
    pub fn blocking_try_lock(&self) -> Result<Option<Guard>, Error> {
        self.session().block_on(self.try_lock_as(self.manner.blocking_caller()))
    }

    /// [`try_lock_for`](Self::try_lock_for) for threads without async code.
    ///
    /// # Errors
    /// As [`try_lock_for`](Self::try_lock_for).
    ///
    /// # Panics
    /// In async code, which it would block.
    pub fn blocking_try_lock_for(&self, wait: Duration) -> Result<Option<Guard>, Error> {
        self.session().block_on(self.try_lock_for_as(self.manner.blocking_caller(), wait))
    }

    /// Takes the lock, runs a critical section, and releases. If the lock is lost meanwhile, the section is dropped where
    /// it stands and [`Error::Lost`] is returned.
    ///
    /// The loss is looked at first, every time. A section that does not come to an `await` cannot be stopped: let it ask
    /// [`Section::check`]. That the release was not confirmed by the server is not reported: the work was done while the
    /// lock was held.
    ///
    /// # Errors
    /// As [`lock`](Self::lock); [`Error::Lost`] too if the lock turns out to have been lost before the release.
    ///
    /// # Cancel safety
    /// Dropping the future drops the section and releases the lock in the background.
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
        let guard = self.lock().await?;
        let work = section(Section { view: guard.view() });
        let Some(value) = until_lost(guard.lost(), work).await else {
            // The token has fired, so there is a loss to be named.
            return Err(Error::Lost(guard.loss().unwrap_or(Loss::Expired)));
        };
        let release = guard.unlock().await;
        done(&self.key, value, release)
    }

    /// Whether anybody holds it.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Server`] (also if the key holds something else than a lock), [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Safe: it changes nothing.
    pub async fn is_locked(&self) -> Result<bool, Error> {
        Ok(self.holder().await?.is_some())
    }

    /// Who holds it, if anybody does.
    ///
    /// # Errors
    /// As [`is_locked`](Self::is_locked).
    ///
    /// # Cancel safety
    /// Safe: it changes nothing.
    pub async fn holder(&self) -> Result<Option<Holder>, Error> {
        self.key.validate()?;
        self.session().holder(&self.key).await
    }

    /// Releases it, whoever holds it, and wakes the waiters; whether anybody did.
    ///
    /// Guards of this [`Locker`](crate::Locker) are lost at once, with [`Loss::ForceUnlocked`], even if the server then
    /// does not answer. Holders elsewhere learn of it at their next renewal at the latest, and may act until then: this is
    /// for operators, and for holders that are known to be dead.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: it may have been released or not. [`Error::Server`], [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Once it was polled it is carried out, even if the future is dropped.
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        self.key.validate()?;
        self.session().force_unlock(&self.key).await
    }

    async fn lock_as(&self, owner: Owner) -> Result<Guard, Error> {
        let span = self.span("lock", &owner);
        let grip = foreign::in_span(span, self.session().lock(&self.key, &owner, self.terms()?, None)).await?;
        // Without a time there is no end of it but a grant or an error.
        grip.map(|grip| Guard::new(Arc::clone(&self.alive), grip)).ok_or(Error::Closed)
    }

    async fn try_lock_as(&self, owner: Owner) -> Result<Option<Guard>, Error> {
        let span = self.span("try_lock", &owner);
        let grip = foreign::in_span(span, self.session().try_lock(&self.key, &owner, self.terms()?)).await?;
        Ok(grip.map(|grip| Guard::new(Arc::clone(&self.alive), grip)))
    }

    async fn try_lock_for_as(&self, owner: Owner, wait: Duration) -> Result<Option<Guard>, Error> {
        if wait.is_zero() {
            return self.try_lock_as(owner).await;
        }
        let span = self.span("try_lock_for", &owner);
        let grip = foreign::in_span(span, self.session().lock(&self.key, &owner, self.terms()?, Some(wait))).await?;
        Ok(grip.map(|grip| Guard::new(Arc::clone(&self.alive), grip)))
    }

    /// What the caller waits in; what the engine does for it is logged by itself.
    fn span(&self, operation: &'static str, owner: &Owner) -> foreign::Span {
        foreign::span(|| tracing::debug_span!("lockhound", operation, key = %self.key, %owner))
    }

    fn terms(&self) -> Result<Terms, Error> {
        self.key.validate()?;
        self.manner.terms(self.session().settings())
    }

    fn session(&self) -> &Arc<Session> {
        self.alive.session()
    }
}

/// As whom, and for how long, locks are taken.
#[derive(Debug, Clone, Default)]
pub(crate) struct Manner {
    pub(crate) owner: Option<Owner>,
    pub(crate) fixed_lease: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
}

impl Manner {
    /// # Errors
    /// [`Error::Config`] for terms that are out of range.
    pub(crate) fn terms(&self, settings: &Settings) -> Result<Terms, Error> {
        if let Some(lease) = self.fixed_lease {
            validate_duration("fixed_lease", lease)?;
            settings.check_quarantine("fixed_lease", lease)?;
        }
        if let Some(max_hold) = self.max_hold {
            validate_duration("max_hold", max_hold)?;
        }
        Ok(Terms {
            lease: self.fixed_lease.unwrap_or(settings.lease),
            renewed: self.fixed_lease.is_none(),
            max_hold: self.max_hold,
        })
    }

    pub(crate) fn caller(&self) -> Result<Owner, Error> {
        self.owner.clone().map_or_else(Owner::current, Ok)
    }

    pub(crate) fn blocking_caller(&self) -> Owner {
        self.owner.clone().unwrap_or_else(Owner::of_blocking_caller)
    }
}

/// Runs a critical section to its end, or to the loss, which is looked at first, every time: then `None`.
pub(crate) async fn until_lost<T>(lost: CancellationToken, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = lost.cancelled() => None,
        value = work => Some(value),
    }
}

/// A critical section came to its end; what its lock's release came to counts only if the lock was lost before.
pub(crate) fn done<T>(key: &dyn fmt::Display, value: T, release: Result<(), Error>) -> Result<T, Error> {
    match release {
        Err(Error::Lost(loss)) => Err(Error::Lost(loss)),
        Err(error) => {
            contained(|| tracing::warn!(%key, %error, "the section is done, but the release is not confirmed"));
            Ok(value)
        }
        Ok(()) => Ok(value),
    }
}

/// A critical section's view of the lock that [`Lock::run`] holds for it.
#[derive(Debug, Clone)]
pub struct Section {
    view: View,
}

impl Section {
    /// A token that fires when the lock is lost; cancelling it cancels nothing else.
    pub fn lost(&self) -> CancellationToken {
        self.view.hold().token()
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

    /// For how long the lock is certainly held if it is not renewed again.
    pub fn remaining(&self) -> Duration {
        self.view.remaining()
    }
}
