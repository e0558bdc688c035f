//! The proof of a hold.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::error::{Error, Loss};
use crate::fence::Fence;
use crate::handle::Taken;
use crate::hold::HoldState;
use crate::key::Key;
use crate::owner::Owner;
use crate::session::{Grip, Held as _};

/// One of the guards of a hold: the lock is released when the last of them is unlocked or dropped, in whatever order.
///
/// It can be moved to another task or thread. While it lives the watchdog renews the lease.
///
/// # What it promises
/// [`lost`](Self::lost) fires before anybody else can enter, if the loss is one of time or silence, such as servers that
/// do not answer. A process or machine that was itself stopped hears of it when it goes on: [`check`](Self::check) says
/// so to the first that asks. A deletion from outside (`DEL`, `FLUSHALL`, eviction, a failover to a replica that had not
/// heard of the lock) is noticed at the next renewal at the latest; a [`fixed_lease`](crate::Lock::fixed_lease) has none,
/// and there it is noticed by a re-entry or by [`unlock`](Self::unlock). It does not fire for a release.
///
/// # What it does not
/// A paused process cannot be stopped from acting when it wakes: have the resource check the [`fence`](Self::fence).
///
/// # Dropping
/// Drop releases in the background and does not say whether that worked; it never blocks, never panics and needs no
/// runtime. [`unlock`](Self::unlock) says it.
///
/// The thread that dropped a guard waits for the release when it ends, for up to 100 ms; so does `main`, for all
/// releases that are under way in the lockers that it used, also when it ends by a panic. What is answered later than
/// that, or not at all, is only likely to be released: end `main` with [`Locker::close`](crate::Locker::close) or
/// [`blocking_close`](crate::Locker::blocking_close) to be sure. This was tried with glibc; `main` does not wait on
/// Windows.
///
/// A guard that is never dropped is not released, and its lease runs out: one in a `static` or one that is leaked, and
/// all of them where [`std::process::exit`], an abort, `panic = "abort"` or a signal ends the process. A guard in a
/// `thread_local!` may be dropped too late to be waited for.
///
/// In a forked process a guard of its parent is lost ([`Loss::Forked`]), and dropping it does nothing.
#[must_use = "the lock is released when its guard is dropped"]
pub struct Guard(pub(crate) Taken<Grip>);

impl Guard {
    /// A token that fires when the lock is lost; cancelling it cancels nothing else.
    ///
    /// A thread of the process ("lockhound-alarm") fires it, or whoever hears of the loss first, and runs the waker of whoever
    /// waits. A waker that panics keeps no other token from firing, and one that blocks does not while no second one does. Of
    /// the tokens of one hold, those beyond the first 16 share trees, in which a panic may keep others' waiters asleep:
    /// [`check`](Self::check) is right all the same.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(lock: lockhound::Lock) -> Result<(), lockhound::Error> {
    /// # async fn charge(_: lockhound::Fence) {}
    /// let guard = lock.lock().await?;
    /// let (lost, fence) = (guard.lost(), guard.fence());
    /// tokio::select! {
    ///     biased;
    ///     () = lost.cancelled() => { /* stop: the lock may be someone else's */ }
    ///     () = charge(fence) => guard.unlock().await?,
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn lost(&self) -> CancellationToken {
        self.0.grip.token()
    }

    /// Whether the lock is lost. Reads the clock, so that it is right even where the watchdog is late.
    pub fn is_lost(&self) -> bool {
        self.loss().is_some()
    }

    /// How the lock was lost, if it was; as [`is_lost`](Self::is_lost).
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

    /// How safe the lock is. Reads the clock.
    pub fn state(&self) -> HoldState {
        self.0.grip.state()
    }

    /// For how long the lock is certainly held if it is not renewed again: until the end of its validity on the local
    /// clock, or of `max_hold`. Zero if it is lost.
    pub fn remaining(&self) -> Duration {
        self.0.grip.view().remaining()
    }

    /// The fencing token of this hold.
    pub fn fence(&self) -> Fence {
        self.0.grip.hold().fence
    }

    /// How many guards this hold has.
    pub fn hold_count(&self) -> u32 {
        self.0.grip.hold().guards()
    }

    /// The name of the lock.
    pub fn key(&self) -> &Key {
        &self.0.grip.hold().claim.key
    }

    /// As whom it is held.
    pub fn owner(&self) -> Owner {
        self.0.grip.hold().owner()
    }

    /// Gives the whole hold, all its guards with it, to an owner of its own: this task no longer enters it again. Nothing
    /// is sent; on the server it stays as it is.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(lock: lockhound::Lock) -> Result<(), lockhound::Error> {
    /// # async fn work(_: lockhound::Guard) {}
    /// loop {
    ///     // Without `detach` the second round would enter again, beside the first one's work.
    ///     let guard = lock.lock().await?.detach();
    ///     tokio::spawn(work(guard));
    /// }
    /// # }
    /// ```
    pub fn detach(self) -> Self {
        self.0.grip.give_to(Owner::new());
        self
    }

    /// Runs a future as the owner of this hold, in whatever task: what it locks enters again.
    ///
    /// For children that are spawned while their parent holds the lock: without it they are owners of their own, and wait for
    /// ever where the parent waits for them. Runs ([`Lock::run`](crate::Lock::run)) in it are inside of the run that this
    /// guard was taken in, and of those that this is called in. It does not keep the guard: whoever still runs in it when
    /// the lock is released locks anew.
    ///
    /// # Cancel safety
    /// Dropping it drops the future that it runs.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn reserve(_: lockhound::Lock) -> Result<(), lockhound::Error> { Ok(()) }
    /// # async fn example(lock: lockhound::Lock) -> Result<(), Box<dyn std::error::Error>> {
    /// let guard = lock.lock().await?;
    /// // `reserve` locks the same lock.
    /// tokio::spawn(guard.scope(reserve(lock.clone()))).await??;
    /// guard.unlock().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        self.0.scope(future)
    }

    /// Releases this guard; the lock, if it is the hold's last.
    ///
    /// `Ok`: released. For a guard that is not the last there is nothing on which the lock depends, and it is always `Ok`
    /// while the lock is held.
    ///
    /// # Errors
    /// - [`Error::Lost`]: the lock was lost before. Its release is sent all the same; it hurts nobody who holds it now.
    /// - [`Error::Unavailable`]: not confirmed within a command timeout. The release is repeated in the background until
    ///   the servers answer, and the lock ends with its lease at the latest.
    /// - [`Error::Server`]: the server refused; the lock ends with its lease.
    /// - [`Error::Forked`]: the lock belongs to another process; nothing is sent.
    ///
    /// # Cancel safety
    /// Once it was polled it is carried out, even if the future is dropped; a future that was never polled drops its
    /// guard, which releases it too.
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

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hold = self.0.grip.hold();
        f.debug_struct("Guard")
            .field("key", &hold.claim.key)
            .field("owner", &format_args!("{}", hold.owner()))
            .field("fence", &hold.fence)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
