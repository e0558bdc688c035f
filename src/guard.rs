//! The guard: the proof of one hold of a lock.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::error::{Error, Loss};
use crate::fence::Fence;
use crate::handle::GuardInner;
use crate::hold::{Hold, HoldState};
use crate::key::Key;
use crate::owner::Owner;

/// A guard of a held lock.
///
/// Dropping it decrements the hold count; dropping the last guard of a hold releases the lock.
///
/// The order in which guards are dropped does not matter. A guard can be moved to another task or
/// thread. While it lives, the watchdog renews the lease.
///
/// # What it promises
/// If the lock is lost because renewals fail or time runs out, [`lost`](Self::lost) fires before
/// another caller can enter. A process or machine that was itself stopped learns of the loss when
/// it continues; [`check`](Self::check) reports it from the first moment. A deletion from outside
/// (`DEL`, `FLUSHALL`, eviction, a failover to a replica that had not heard of the lock) is noticed
/// at the next renewal at the latest. A hold with a [`fixed_lease`](crate::Lock::fixed_lease) has
/// no renewals: there a re-entry or [`unlock`](Self::unlock) notices it. The token does not fire at
/// a release.
///
/// # What it does not promise
/// A paused process cannot be stopped from acting when it wakes: let the resource check the
/// [`fence`](Self::fence).
///
/// # Dropping
/// Dropping a guard releases in the background and does not report whether that worked;
/// [`unlock`](Self::unlock) does. The drop waits for no server and needs no runtime. It never
/// panics, except in tests over a `testing::Server`. It may write a warning to the log, so do not
/// drop a guard while you hold a mutex that a `tracing` subscriber takes.
///
/// A thread that dropped a guard waits at its end for the release, for up to 100 ms. So does
/// `main`, for all releases that are in flight in the lockers that it used, also if it ends by a
/// panic. A release that is not answered within that time may not happen: to be sure, end `main`
/// with [`Locker::close`](crate::Locker::close) or
/// [`blocking_close`](crate::Locker::blocking_close). This is tested with glibc only; `main` does
/// not wait on Windows.
///
/// A guard that is never dropped is not released, and its lease runs out. This concerns guards in a
/// `static`, leaked guards, and all guards if [`std::process::exit`], an abort, `panic = "abort"`
/// or a signal ends the process. A guard in a `thread_local!` may be dropped too late for its
/// thread to wait.
///
/// In a forked process a guard of the parent is lost ([`Loss::Forked`]), and dropping it does
/// nothing.
#[must_use = "the lock is released when its guard is dropped"]
pub struct Guard(pub(crate) GuardInner);

impl Guard {
    fn hold(&self) -> &Hold {
        self.0.guards.first().hold()
    }

    /// Returns a token that fires when the lock is lost.
    ///
    /// Cancelling it cancels nothing else.
    ///
    /// The thread "lockhound-alarm" or another thread that learns of the loss first fires the
    /// token, and runs the wakers of the tasks that await it. A waker that panics keeps no other
    /// token from firing, nor does one that blocks, unless a second one blocks too. Beyond the
    /// first 16 tokens of a hold, tokens share trees, in which a panic may leave tasks asleep that
    /// await other tokens; [`check`](Self::check) is right all the same.
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
        self.0.guards.token()
    }

    /// Returns whether the lock is lost.
    ///
    /// It reads the clock, so it is right even if the watchdog is late.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// use std::time::Duration;
    ///
    /// let guard = locks.get("orders:42").lock().await?;
    /// server.flush(); // the server forgets the lock
    /// assert!(!guard.is_lost()); // the holder does not know yet
    /// tokio::time::sleep(Duration::from_secs(11)).await; // a renewal
    /// assert!(guard.is_lost());
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn is_lost(&self) -> bool {
        self.loss().is_some()
    }

    /// Returns how the lock was lost, or `None` while it is held.
    ///
    /// It reads the clock, as [`is_lost`](Self::is_lost) does.
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
    /// locks.close().await;
    /// match guard.loss() {
    ///     None => println!("still held"),
    ///     Some(Loss::Closed) => println!("this program closed the locker"),
    ///     Some(loss) => println!("somebody else may be inside: {loss}"),
    /// }
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn loss(&self) -> Option<Loss> {
        self.state().loss()
    }

    /// Returns an error if the lock is lost, for `?` inside a critical section.
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
    /// # async fn upload(_: &str) {}
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let guard = locks.get("backup").lock().await?;
    /// for part in ["users", "orders"] {
    ///     guard.check()?; // Error::Lost: the next part may be somebody else's
    ///     upload(part).await;
    /// }
    /// guard.unlock().await
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn check(&self) -> Result<(), Error> {
        self.0.guards.check()
    }

    /// Returns how safe the lock is.
    ///
    /// It reads the clock.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// use lockhound::HoldState;
    ///
    /// let guard = locks.get("orders:42").lock().await?;
    /// match guard.state() {
    ///     HoldState::Safe => println!("go on"),
    ///     HoldState::Jeopardy => println!("a renewal failed: begin nothing new"),
    ///     HoldState::Lost(loss) => println!("stop: {loss}"),
    ///     _ => println!("a state of a later version"),
    /// }
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn state(&self) -> HoldState {
        self.0.guards.state()
    }

    /// Returns how long the lock is certainly held if it is not renewed again.
    ///
    /// That is until the end of its validity on the local clock, or of `max_hold`. It is zero if
    /// the lock is lost.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// use std::time::Duration;
    ///
    /// let guard = locks.get("orders:42").lock().await?;
    /// // A step that cannot be interrupted begins only if it certainly fits.
    /// if guard.remaining() > Duration::from_secs(5) {
    ///     println!("pay");
    /// }
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn remaining(&self) -> Duration {
        self.0.guards.remaining()
    }

    /// Returns the fencing token of this hold.
    ///
    /// A re-entry has the fence of the outermost acquisition.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let lock = locks.get("orders:42");
    /// let first = lock.lock().await?;
    /// let fence = first.fence();
    /// first.unlock().await?;
    /// let second = lock.lock().await?;
    /// assert!(second.fence() > fence); // a resource that has seen this one refuses the first
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn fence(&self) -> Fence {
        self.hold().fence
    }

    /// Returns how many guards this hold has.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let lock = locks.get("orders:42");
    /// let outer = lock.lock().await?;
    /// let inner = lock.lock().await?;
    /// assert_eq!(outer.hold_count(), 2);
    /// inner.unlock().await?; // asks no server
    /// assert_eq!(outer.hold_count(), 1);
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn hold_count(&self) -> u32 {
        self.hold().guards()
    }

    /// Returns the name of the lock.
    pub fn key(&self) -> &Key {
        &self.hold().claim.key
    }

    /// Returns the owner of this hold.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let lock = locks.get("orders:42");
    /// let guard = lock.lock().await?;
    /// let helper = lock.clone().owned_by(guard.owner()); // enters beside the guard, in any task
    /// tokio::spawn(async move { helper.lock().await?.unlock().await }).await.expect("no panic")?;
    /// guard.unlock().await
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn owner(&self) -> Owner {
        self.hold().owner()
    }

    /// Gives the whole hold, with all its guards, to a new owner.
    ///
    /// The task no longer enters it again. Nothing is sent: on the server the lock stays as it is.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(lock: lockhound::Lock) -> Result<(), lockhound::Error> {
    /// # async fn work(_: lockhound::Guard) {}
    /// loop {
    ///     // Without `detach` the second round would enter again while the first one's work continues.
    ///     let guard = lock.lock().await?.detach();
    ///     tokio::spawn(work(guard));
    /// }
    /// # }
    /// ```
    pub fn detach(self) -> Self {
        self.0.guards.give_to(&Owner::new());
        self
    }

    /// Runs a future as the owner of this hold, in any task: its locks enter again.
    ///
    /// It is for children that are spawned while their parent holds the lock: without it they are
    /// owners of their own, and wait forever if the parent waits for them. Runs
    /// ([`Lock::run`](crate::Lock::run)) in the future count as nested in the run in which this
    /// guard was taken, and in those in which this method is called. The future does not keep the
    /// guard alive: if the lock is released while the future still runs, the future has to take the
    /// lock again.
    ///
    /// # Cancel safety
    /// Dropping the returned future drops the one that it runs.
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

    /// Makes the lock last for at least this long from now, from 100 ms to 30 days.
    ///
    /// It is for a lock that was taken with [`fixed_lease`](crate::Lock::fixed_lease), by the
    /// holder that finds that its work takes longer. A lock that lasts longer anyway stays as it
    /// is: nothing is shortened. A [`max_hold`](crate::Lock::max_hold) ends the hold all the same.
    /// The lease counts for all guards of the hold. A call that ends with an error may have
    /// extended the lease on some servers: the lock is free again after that time at the latest,
    /// and at once after a release.
    ///
    /// # Errors
    /// - [`Error::Lost`]: the lock is lost; it is not taken again.
    /// - [`Error::Unavailable`]: no majority of the servers confirmed it in time. The holder has
    ///   the lock for as long as before.
    /// - [`Error::Server`]: a server refused.
    /// - [`Error::Config`]: the lock has no fixed lease, so the watchdog renews it; or the time is
    ///   out of range or, over several servers, longer than the
    ///   [`restart_quarantine`](crate::LockerBuilder::restart_quarantine).
    /// - [`Error::Closed`], [`Error::Forked`] and [`Error::WatchdogPanicked`].
    ///
    /// # Cancel safety
    /// Dropping the future ends the wait and nothing else: the lease may be extended.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(locks: lockhound::Locker) -> Result<(), lockhound::Error> {
    /// # async fn next_part() -> bool { false }
    /// use std::time::Duration;
    ///
    /// let minute = Duration::from_secs(60);
    /// let guard = locks.get("import").fixed_lease(minute).lock().await?;
    /// while next_part().await {
    ///     guard.extend(minute).await?; // as long as it makes progress
    /// }
    /// guard.unlock().await
    /// # }
    /// ```
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

    /// Releases this guard, and the lock if it is the hold's last guard.
    ///
    /// Returns `Ok` if the lock was released. For a guard that is not the last, the call returns
    /// `Ok` unless the lock is lost, whether the servers answer or not.
    ///
    /// # Errors
    /// - [`Error::Lost`]: the lock was lost earlier, or the server no longer had it. The release is
    ///   sent all the same; it does not affect a later holder.
    /// - [`Error::Unavailable`]: the release was not confirmed within a command timeout. It is
    ///   repeated in the background until the servers answer, and the lock ends with its lease at
    ///   the latest.
    /// - [`Error::Server`]: the server refused; the lock ends with its lease.
    /// - [`Error::Forked`]: the lock belongs to another process; nothing is sent.
    ///
    /// # Cancel safety
    /// Once polled, it is carried out even if the future is dropped. A future that was never polled
    /// drops its guard, which releases it too.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// use lockhound::Error;
    ///
    /// let guard = locks.get("orders:42").lock().await?;
    /// match guard.unlock().await {
    ///     Ok(()) => println!("nobody else was inside"),
    ///     Err(Error::Lost { loss, .. }) => println!("somebody else may have been inside: {loss}"),
    ///     Err(error) => println!("the work is done; the release is repeated: {error}"),
    /// }
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
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
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")]
    /// # fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).blocking_connect()?;
    /// let guard = locks.get("orders:42").blocking_lock()?;
    /// let worker = std::thread::spawn(move || guard.blocking_unlock()); // on any thread
    /// worker.join().expect("it does not panic")
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn blocking_unlock(self) -> Result<(), Error> {
        self.0.blocking_unlock()
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hold = self.hold();
        f.debug_struct("Guard")
            .field("key", &hold.claim.key)
            .field("owner", &format_args!("{}", hold.owner()))
            .field("fence", &hold.fence)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
