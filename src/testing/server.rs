//! A server in this process, to which lockers connect as to a Redis.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::interpreter::Keys;
use super::machine::{ConnectionEvent, Machine, Request, RequestId};
use super::route::Route;

/// A server in memory, for tests of code that takes locks.
///
/// It needs no Redis.
///
/// Lockers of this process connect to it with
/// [`LockerBuilder::memory`](crate::LockerBuilder::memory): several lockers to one server, or one
/// locker to several. It runs the scripts that a Redis runs, in the interpreter that a Redis has; a
/// test compares the commands that they call with those of a Redis. Clones refer to the same
/// server.
///
/// That interpreter is Lua 5.1, which is built from its C sources: a program with the feature
/// `testing` needs a C compiler.
///
/// # Time
/// A locker over servers in memory lives in the runtime in which
/// [`connect`](crate::LockerBuilder::connect) is called, and uses tokio's time there for
/// everything: validity, renewals, timeouts, and the leases on the server. In a test with paused
/// time (`#[tokio::test(start_paused = true)]`) an hour passes in a moment, no renewal is late, and
/// a token fires in the millisecond in which the lease can be over. Lockers that share a server
/// have to connect in one runtime. A locker of
/// [`blocking_connect`](crate::LockerBuilder::blocking_connect) has a thread of its own, and uses
/// the machine's clock.
///
/// # Faults
/// A server can [stop](Self::stop); it can lose its data in a [restart](Self::restart) or [without
/// one](Self::flush), or restart with [older data](Self::restore); it can
/// [lose](Self::lose_replies), [repeat](Self::duplicate_reply) and [delay](Self::delay) its
/// answers; and its [clock](Self::set_clock_offset) can be wrong. All of that affects all lockers.
/// The network to it can be [disconnected](Self::disconnect), or [redirected](Self::redirect_to) to
/// another server, for only those lockers that connected through one [route](Self::route).
///
/// # Suspicious re-entries
/// If two branches of a task wait for a lock together, or release guards as if they had been inside
/// together, the call panics, so that the test fails: see
/// [`permit_suspicious_reentries`](Self::permit_suspicious_reentries).
///
/// # What it does not have
/// It has no replicas, no users with rights, and no memory limit. Numbers in it are exact up to
/// 2^53, below which all fences stay; it refuses larger ones with an error. It answers at once,
/// unless answers are delayed.
///
/// # Examples
/// A job stops when its lock is lost. Somebody deletes the lock before the third renewal, which
/// finds it gone:
/// ```
/// use std::time::Duration;
///
/// use lockhound::{Locker, Loss, testing::Server};
/// use tokio::time::{Instant, sleep};
///
/// #[tokio::main(flavor = "current_thread", start_paused = true)] // in your tests: #[tokio::test(start_paused = true)]
/// async fn main() -> Result<(), lockhound::Error> {
///     let server = Server::new();
///     let locks = Locker::builder().memory(&server).lease(Duration::from_secs(30)).connect().await?;
///     let started = Instant::now();
///     let job = tokio::spawn(async move {
///         let guard = locks.get("report").lock().await?;
///         guard.lost().cancelled().await;
///         Ok::<_, lockhound::Error>(guard.loss())
///     });
///     sleep(Duration::from_secs(25)).await;
///     server.delete("report");
///     assert_eq!(job.await.unwrap()?, Some(Loss::NotOwner));
///     // A renewal comes a little before each third of the lease is over: the third one after 29 s, not 30 s.
///     assert_eq!(started.elapsed().as_secs(), 29);
///     Ok(())
/// }
/// ```
///
/// A caller that waits for a lock rides out a server that is away for 20 s:
/// ```
/// use std::time::Duration;
///
/// use lockhound::{Locker, testing::Server};
/// use tokio::time::{Instant, sleep};
///
/// #[tokio::main(flavor = "current_thread", start_paused = true)]
/// async fn main() -> Result<(), lockhound::Error> {
///     let server = Server::new();
///     let locks = Locker::builder().memory(&server).outage_tolerance(Duration::from_secs(60)).connect().await?;
///     let started = Instant::now();
///     server.stop();
///     let back = server.clone();
///     tokio::spawn(async move {
///         sleep(Duration::from_secs(20)).await;
///         back.resume();
///     });
///     locks.get("report").lock().await?.unlock().await?;
///     assert!((20..22).contains(&started.elapsed().as_secs()));
///     Ok(())
/// }
/// ```
///
/// Two workers never both charge, even if the first is slow and loses its lock:
/// ```
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use std::time::Duration;
///
/// use lockhound::{Lock, Locker, testing::Server};
/// use tokio::time::sleep;
///
/// static CHARGED: AtomicU32 = AtomicU32::new(0);
///
/// async fn charge_once(lock: Lock) -> Result<(), lockhound::Error> {
///     let guard = lock.lock().await?;
///     if CHARGED.load(Ordering::SeqCst) == 0 {
///         sleep(Duration::from_secs(90)).await;
///         guard.check()?;
///         CHARGED.fetch_add(1, Ordering::SeqCst);
///     }
///     guard.unlock().await
/// }
///
/// #[tokio::main(flavor = "current_thread", start_paused = true)]
/// async fn main() -> Result<(), lockhound::Error> {
///     let server = Server::new();
///     // Two processes, as far as the server can tell.
///     let one = Locker::builder().memory(&server).connect().await?.get("charge:42");
///     let two = Locker::builder().memory(&server).connect().await?.get("charge:42");
///     let workers = [tokio::spawn(charge_once(one)), tokio::spawn(charge_once(two))];
///     sleep(Duration::from_secs(5)).await;
///     server.delete("charge:42");
///     let [first, second] = workers.map(|worker| async { worker.await.unwrap() });
///     assert!(first.await.is_err(), "it noticed the loss, and has not charged");
///     second.await?;
///     assert_eq!(CHARGED.load(Ordering::SeqCst), 1);
///     Ok(())
/// }
/// ```
#[derive(Clone)]
pub struct Server {
    /// The address. It stays the same when it leads to another server.
    name: Arc<str>,
    route: Arc<Route>,
}

impl Server {
    /// Starts an empty server.
    #[allow(
        clippy::new_without_default,
        reason = "each is another server, which a default would hide"
    )]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let name = format!("memory:{}", NEXT.fetch_add(1, Ordering::Relaxed)).into();
        Self {
            name,
            route: Route::to(Machine::new()),
        }
    }

    /// Permits what looks like branches of one task that are inside together.
    ///
    /// Without this call, the second of two calls that waited together panics. So does the release
    /// of a guard, in `unlock` or in its drop, if an older guard was released over a millisecond
    /// before, or if it is released in another task while others stay. The guard has been counted
    /// down by then, and one that is dropped while its thread panics does not panic again. Over
    /// other servers, such releases are only logged and counted
    /// ([`Stats::suspicious_reentries`](crate::stats::Stats::suspicious_reentries)). The call
    /// concerns all lockers of the server.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// use lockhound::{Locker, testing::Server};
    ///
    /// #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// async fn main() -> Result<(), lockhound::Error> {
    ///     let server = Server::new();
    ///     server.permit_suspicious_reentries();
    ///     let lock = Locker::builder().memory(&server).connect().await?.get("report");
    ///     let (outer, inner) = (lock.lock().await?, lock.lock().await?);
    ///     outer.unlock().await?;
    ///     tokio::time::sleep(Duration::from_secs(1)).await;
    ///     inner.unlock().await // the newer one goes last
    /// }
    /// ```
    pub fn permit_suspicious_reentries(&self) {
        self.route.machine().permit_suspicious_reentries();
    }

    pub(crate) fn permits_suspicious_reentries(&self) -> bool {
        self.route.machine().permits_suspicious_reentries()
    }

    /// Stops the server.
    ///
    /// It answers nothing, while leases run out all the same. Commands that arrive meanwhile are
    /// executed when it [resumes](Self::resume).
    pub fn stop(&self) {
        self.route.machine().stop();
    }

    /// Resumes a stopped server.
    pub fn resume(&self) {
        self.route.machine().resume();
    }

    /// Restarts the server: it loses all data, and all lockers reconnect.
    pub fn restart(&self) {
        self.route.machine().restart(&Keys::none());
    }

    /// Takes a snapshot of the data, as `BGSAVE` does.
    ///
    /// The server can [restart](Self::restore) with it later.
    #[must_use = "the server itself stays as it is"]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.route.machine().snapshot())
    }

    /// Restarts the server with the data of a snapshot.
    ///
    /// It loses what was written since, and all lockers reconnect. A lock that was deleted since is
    /// there again until its lease is over.
    ///
    /// # Examples
    /// The server forgets a lock that is newer than its snapshot. It abstains until the lease would
    /// be over:
    /// ```
    /// use std::time::Duration;
    ///
    /// use lockhound::{Locker, testing::Server};
    /// use tokio::time::Instant;
    ///
    /// #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// async fn main() -> Result<(), lockhound::Error> {
    ///     let (server, lease) = (Server::new(), Duration::from_secs(10));
    ///     let builder = || Locker::builder().memory(&server).lease(lease).restart_quarantine(lease);
    ///     let one = builder().connect().await?;
    ///     let other = builder().outage_tolerance(lease * 2).connect().await?;
    ///     let snapshot = server.snapshot();
    ///     let guard = one.get("report").lock().await?;
    ///     server.restore(&snapshot);
    ///     let restarted = Instant::now();
    ///     other.get("report").lock().await?.unlock().await?;
    ///     assert!(restarted.elapsed() >= lease && guard.is_lost());
    ///     Ok(())
    /// }
    /// ```
    pub fn restore(&self, snapshot: &Snapshot) {
        self.route.machine().restart(&snapshot.0);
    }

    /// Deletes all data, as `FLUSHALL` does.
    ///
    /// Lockers stay connected, and notice it from the next answers.
    pub fn flush(&self) {
        self.route.machine().flush();
    }

    /// Loses the next `count` answers.
    ///
    /// The server executes the commands, and their senders get no answer.
    pub fn lose_replies(&self, count: u32) {
        self.route.machine().lose_replies(count);
    }

    /// Sends the next answer to a lock's command twice.
    ///
    /// The copy arrives in place of the answer to the next command on that connection. The outcome
    /// of that command, and of others in flight, is then unknown, and the locker gives up the
    /// connection. See [`Stats::mismatched_replies`](crate::stats::Stats::mismatched_replies).
    pub fn duplicate_reply(&self) {
        self.route.machine().duplicate_reply();
    }

    /// Delays each answer from now on by a random time within this range, in whole milliseconds.
    ///
    /// A range of zero to zero ends the delays.
    ///
    /// The server executes commands at once. The answers of one connection keep their order, and
    /// one that takes longer than [`command_timeout`](crate::LockerBuilder::command_timeout) comes
    /// too late. Messages to waiters are not delayed.
    ///
    /// # Panics
    /// Panics if the range ends before it begins.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use lockhound::{Locker, testing::Server};
    /// use tokio::time::Instant;
    ///
    /// #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// async fn main() -> Result<(), lockhound::Error> {
    ///     let server = Server::new();
    ///     let locks = Locker::builder().memory(&server).connect().await?;
    ///     server.delay(Duration::from_millis(20)..=Duration::from_millis(30));
    ///     let started = Instant::now();
    ///     let guard = locks.get("report").lock().await?;
    ///     assert!((20..=31).contains(&started.elapsed().as_millis()));
    ///     guard.unlock().await
    /// }
    /// ```
    pub fn delay(&self, range: RangeInclusive<Duration>) {
        assert!(
            range.start() <= range.end(),
            "a delay of {range:?}: it ends before it begins"
        );
        self.route.machine().delay(range);
    }

    /// Deletes a key, as an operator would: its lock is lost.
    pub fn delete(&self, key: &str) {
        self.route.machine().delete(key);
    }

    /// Returns the owner in a lock's key, or `None` if the lock is free.
    ///
    /// It is the text of [`Holder::owner`](crate::Holder::owner).
    pub fn holder(&self, key: &str) -> Option<String> {
        self.route
            .machine()
            .owner(key)
            .map(|owner| String::from_utf8_lossy(&owner).into_owned())
    }

    /// Returns the names of all keys, sorted.
    ///
    /// They are those of locks, and those that this crate keeps beside them.
    ///
    /// # Examples
    /// A lock that was released has left nothing:
    /// ```
    /// use lockhound::{Locker, testing::Server};
    ///
    /// #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// async fn main() -> Result<(), lockhound::Error> {
    ///     let server = Server::new();
    ///     let locks = Locker::builder().memory(&server).connect().await?;
    ///     let of_prices = || server.keys().iter().filter(|key| key.contains("prices")).count();
    ///     let guard = locks.rw("prices").read().lock().await?;
    ///     // The lock, and a key that says that its reader lives.
    ///     assert_eq!(of_prices(), 2);
    ///     guard.unlock().await?;
    ///     assert_eq!(of_prices(), 0);
    ///     Ok(())
    /// }
    /// ```
    pub fn keys(&self) -> Vec<String> {
        let mut names = self.route.machine().snapshot().names();
        names.sort_unstable();
        names
    }

    /// Sets the server's wall clock ahead of the machine's by this many milliseconds.
    ///
    /// A negative number sets it behind.
    pub fn set_clock_offset(&self, millis: i64) {
        self.route
            .machine()
            .set_clock_offset(millis.saturating_mul(1_000));
    }

    pub(crate) fn clock_offset_us(&self) -> i64 {
        self.route.machine().clock_offset_us()
    }

    /// Returns the same server, reached over a network of its own.
    ///
    /// Faults of that network affect only the lockers that connect through the returned value;
    /// clones share the network.
    ///
    /// # Examples
    /// One of two workers is cut off from the server, and loses its lock before the other one gets
    /// it:
    /// ```
    /// use std::time::Duration;
    ///
    /// use lockhound::{Locker, testing::Server};
    ///
    /// #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// async fn main() -> Result<(), lockhound::Error> {
    ///     let server = Server::new();
    ///     let far = server.route();
    ///     let one = Locker::builder().memory(&far).connect().await?;
    ///     let other = Locker::builder().memory(&server).connect().await?;
    ///     let guard = one.get("report").lock().await?;
    ///     far.disconnect();
    ///     let next = other.get("report").lock().await?;
    ///     assert!(guard.is_lost());
    ///     next.unlock().await
    /// }
    /// ```
    #[must_use = "the server itself stays as it is"]
    pub fn route(&self) -> Self {
        Self {
            name: Arc::clone(&self.name),
            route: Route::to(self.route.machine()),
        }
    }

    /// Disconnects the network to the server.
    ///
    /// Commands, answers and messages are held until it is [reconnected](Self::reconnect), as on a
    /// connection that neither end gives up.
    pub fn disconnect(&self) {
        self.route.cut();
    }

    /// Reconnects the network: everything that was held arrives, in its order.
    pub fn reconnect(&self) {
        self.route.mend();
    }

    /// Redirects the address to another server, as when a DNS name or a proxy is changed.
    ///
    /// Lockers that are connected through it reconnect, to that server. From now on every method of
    /// this `Server` affects that one.
    pub fn redirect_to(&self, other: &Self) {
        self.route.lead_to(&other.route.machine());
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Connects, and returns the number of the connection. `tell` must not call the server.
    pub(crate) fn connect(&self, tell: impl Fn(ConnectionEvent) + Send + Sync + 'static) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let connection = NEXT.fetch_add(1, Ordering::Relaxed);
        self.route.connect(connection, Arc::new(tell));
        connection
    }

    pub(crate) fn hang_up(&self, connection: u64) {
        self.route.disconnect(connection);
    }

    /// Sends a request over a connection. The answer will have this number.
    pub(crate) fn send(&self, connection: u64, number: RequestId, request: Request) {
        self.route.go(connection, number, request);
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Server").field(&self.name).finish()
    }
}

/// The data of a server at one time: see [`Server::snapshot`].
#[derive(Clone)]
pub struct Snapshot(Keys);

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").finish_non_exhaustive()
    }
}
