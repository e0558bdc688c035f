//! The locker, from which a program gets its locks, and the builder that connects it.

mod environment;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::credentials::{AnyProvider, CredentialProvider};
use crate::election::Election;
use crate::error::Error;
use crate::foreign::{self, log};
use crate::key::{
    ELECTION, FAIR, Key, LATCH, PERMITS as PERMITS_FAMILY, READ_WRITE,
    SEMAPHORE as SEMAPHORE_FAMILY,
};
use crate::kind::Format;
#[cfg(test)]
use crate::kind::Kind;
use crate::kind::{PERMITS, SEMAPHORE};
use crate::latch::Latch;
use crate::lock::Lock;
use crate::multi::MultiLock;
#[cfg(feature = "tls")]
use crate::node::Tls;
use crate::node::{Access, Provider, Target};
use crate::options::{FenceSource, Options, Reentry, Replicas, Settings};
use crate::rights::{self, Right};
use crate::rw::RwLock;
use crate::semaphore::Semaphore;
use crate::servers::ServerHandle;
use crate::session::SharedSession;
use crate::stats::Stats;
#[cfg(feature = "testing")]
use crate::testing;

/// The connection to the servers, from which a program gets its locks.
///
/// Cheap to clone: make one and keep it.
///
/// A locker runs a thread of its own, "lockhound", which talks to the servers and renews what is
/// held, whatever the program's own runtime does. The thread ends when the last clone, [`Lock`] and
/// [`Guard`](crate::Guard) are dropped, or with [`close`](Self::close). All lockers of a process
/// share a second thread, "lockhound-alarm", which fires the tokens of locks that end. It ends with
/// the last locker.
///
/// A fork does not copy these threads: in a process that was forked after the connect, every
/// operation returns [`Error::Forked`], and dropping a guard releases nothing. Connect after the
/// fork.
///
/// # Examples
/// ```no_run
/// # async fn example() -> Result<(), lockhound::Error> {
/// use lockhound::Locker;
///
/// let locks = Locker::connect("redis://127.0.0.1:6379").await?;
/// let guard = locks.get("orders:42").lock().await?;
/// // Only one at a time is here, among all programs that share this server.
/// guard.unlock().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Locker {
    shared: Arc<SharedSession>,
    prefix: Arc<str>,
}

impl Locker {
    /// Connects to one server with the default options.
    ///
    /// # Errors
    /// As [`LockerBuilder::connect`].
    ///
    /// # Cancel safety
    /// Dropping the future gives up the attempt and ends its thread.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> Result<(), lockhound::Error> {
    /// use lockhound::Locker;
    ///
    /// let locks = Locker::connect("redis://127.0.0.1:6379").await?;
    /// // A clone shares the connection, the holds and the waiters: one locker is enough.
    /// let for_workers = locks.clone();
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(url: impl AsRef<str>) -> Result<Self, Error> {
        Self::builder().node(url).connect().await
    }

    /// Connects as [`connect`](Self::connect) does, for threads without async code.
    ///
    /// # Errors
    /// As [`LockerBuilder::connect`].
    ///
    /// # Panics
    /// Panics in async code, which it would block.
    ///
    /// # Examples
    /// ```no_run
    /// # fn main() -> Result<(), lockhound::Error> {
    /// use lockhound::Locker;
    ///
    /// let locks = Locker::blocking_connect("redis://127.0.0.1:6379")?;
    /// let guard = locks.get("orders:42").blocking_lock()?;
    /// guard.blocking_unlock()?;
    /// locks.blocking_close();
    /// # Ok(())
    /// # }
    /// ```
    pub fn blocking_connect(url: impl AsRef<str>) -> Result<Self, Error> {
        Self::builder().node(url).blocking_connect()
    }

    /// Returns a builder with the default options.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> Result<(), lockhound::Error> {
    /// use std::time::Duration;
    /// use lockhound::Locker;
    ///
    /// let locks = Locker::builder()
    ///     .node("redis://127.0.0.1:6379")
    ///     .lease(Duration::from_secs(10))
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder() -> LockerBuilder {
        LockerBuilder::default()
    }

    /// Returns the lock of this name.
    ///
    /// Asks no server.
    ///
    /// All programs that use the same name on the same server share the lock, and so do other
    /// clients that use the same [`Format`], such as Redisson's `getLock`. A
    /// [`prefix`](LockerBuilder::prefix) of the locker is put before the name, except before a
    /// [`Key`] that comes from a lock. [`Lock::lock`] reports an empty name.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let lock = locks.get("orders:42");
    /// let guard = lock.lock().await?;
    /// // Another handle of the same name is the same lock, and this task owns it.
    /// assert!(locks.get("orders:42").try_lock().await?.is_some());
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn get(&self, key: impl Into<Key>) -> Lock {
        Lock::new(Arc::clone(&self.shared), self.whole(key))
    }

    /// Returns the read-write lock of this name.
    ///
    /// Asks no server.
    ///
    /// It is shared with Redisson's `getReadWriteLock`. It is another kind than [`get`](Self::get)
    /// returns: use a name for one of them only.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let prices = locks.rw("prices");
    /// let guard = prices.read().lock().await?; // together with other readers
    /// guard.unlock().await
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn rw(&self, name: impl Into<Key>) -> RwLock {
        let key = name.into().under(&self.prefix, &READ_WRITE);
        RwLock::new(Arc::clone(&self.shared), key)
    }

    /// Returns the fair lock of this name, which callers get in the order in which they arrived.
    ///
    /// The order holds over all processes and JVMs. The call asks no server.
    ///
    /// It is shared with Redisson's `getFairLock`, and excludes [`get`](Self::get) of the same
    /// name, whose callers pass the queue: use a name for one kind only. On several independent
    /// servers, and in [`Format::Plain`], calls that lock it fail with [`Error::Config`].
    /// [`guide::fair_locks`](crate::guide::fair_locks) has what is promised, and what is not.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let guard = locks.fair("printer").lock().await?; // behind those that came before
    /// guard.unlock().await
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn fair(&self, name: impl Into<Key>) -> Lock {
        let key = name.into().under(&self.prefix, &FAIR);
        Lock::in_turn(Arc::clone(&self.shared), key)
    }

    /// Returns the semaphore of this name, whose permits many have at once.
    ///
    /// Asks no server.
    ///
    /// It is shared with Redisson's `getPermitExpirableSemaphore`: each permit has a lease on both
    /// sides, so those of a crashed holder come back, and never more are taken than there are. Use
    /// a name for one kind only.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let api = locks.permits("api:acme").capacity(10); // ten calls at a time, in the whole fleet
    /// let permit = api.acquire().await?;
    /// permit.release().await
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn permits(&self, name: impl Into<Key>) -> Semaphore {
        let key = name.into().under(&self.prefix, &PERMITS_FAMILY);
        Semaphore::new(Arc::clone(&self.shared), key, &PERMITS)
    }

    /// Returns the semaphore of this name that is shared with Redisson's `getSemaphore`.
    ///
    /// That a crashed holder's permits come back is promised of this crate's permits only, when a
    /// caller of this crate asks next: what a JVM takes is a number on the server that has no
    /// owner, and stays taken if the JVM dies.
    ///
    /// Without JVMs, [`permits`](Self::permits) promises more. Asks no server. Use a name for one
    /// kind only.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// // JVMs take permits of `getSemaphore("licences")`.
    /// let licences = locks.semaphore("licences").capacity(10);
    /// let permit = licences.acquire().await?;
    /// permit.release().await
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn semaphore(&self, name: impl Into<Key>) -> Semaphore {
        let key = name.into().under(&self.prefix, &SEMAPHORE_FAMILY);
        Semaphore::new(Arc::clone(&self.shared), key, &SEMAPHORE)
    }

    /// Returns the election of this name.
    ///
    /// Asks no server.
    ///
    /// It is the lock of that name with a value beside it, so `get(name)` and Redisson's `getLock`
    /// keep its candidates from leading.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let election = locks.election("scheduler");
    /// let leadership = election.campaign("10.0.0.7:8080").await?; // waits until it leads
    /// leadership.resign().await
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn election(&self, name: impl Into<Key>) -> Election {
        let key = name.into().under(&self.prefix, &ELECTION);
        Election::new(Arc::clone(&self.shared), key)
    }

    /// Returns the latch of this name, for which callers wait until it has been counted down.
    ///
    /// Asks no server.
    ///
    /// It is shared with Redisson's `getCountDownLatch`. Use a name for one kind only, and for one
    /// round of a latch.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(locks: lockhound::Locker) -> Result<(), lockhound::Error> {
    /// let ready = locks.latch("deploy:77");
    /// ready.try_set(3).await?;
    /// ready.count_down().await?; // three times, anywhere
    /// ready.wait().await
    /// # }
    /// ```
    pub fn latch(&self, name: impl Into<Key>) -> Latch {
        let key = name.into().under(&self.prefix, &LATCH);
        Latch::new(Arc::clone(&self.shared), key)
    }

    /// Returns the locks of these names as one: a call takes all of them, or none.
    ///
    /// Asks no server.
    ///
    /// Redisson's `getMultiLock` shares them, and takes them one after the other.
    ///
    /// [`MultiLock::lock`] reports an empty list, an empty name and a name that is given twice.
    ///
    /// In a cluster, locks of one slot are taken in one step. Locks of several slots are taken one
    /// slot after the other: if one of them cannot be had, those before it are given back at once.
    /// Names with the same text in braces, such as `{order:7}:stock` and `{order:7}:payment`, are
    /// in one slot.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let accounts = locks.multi(["account:1", "account:2"]);
    /// let guard = accounts.lock().await?;
    /// // No other client has either of them.
    /// guard.unlock().await?;
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn multi<K: Into<Key>>(&self, keys: impl IntoIterator<Item = K>) -> MultiLock {
        let keys = keys.into_iter().map(|key| self.whole(key));
        MultiLock::new(Arc::clone(&self.shared), keys.collect())
    }

    /// Returns the identity of this locker.
    ///
    /// It is the `uuid` in the `uuid:task-id` that the locker writes to the servers. Every connect
    /// makes a new one.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let guard = locks.get("orders:42").lock().await?;
    /// assert!(server.holder("orders:42").is_some_and(|owner| owner.starts_with(locks.id())));
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn id(&self) -> &str {
        self.shared.session().id()
    }

    /// Returns counts of what this locker has done and is doing.
    ///
    /// Cheap: it keeps these counts anyway. In a forked process all of them are zero.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// use lockhound::stats::CallOutcome;
    ///
    /// let guard = locks.get("orders:42").lock().await?;
    /// let stats = locks.stats();
    /// assert_eq!(stats.holds, 1);
    /// assert_eq!(stats.attempts.of(CallOutcome::Granted), 1);
    /// assert_eq!(stats.losses.total(), 0); // an alert for this one
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn stats(&self) -> Stats {
        self.shared.session().stats()
    }

    /// Returns the servers, for tools that ask them: see [`servers`](crate::servers).
    ///
    /// Of a cluster, the masters that have slots. Asks no server.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Forked`] or [`Error::WatchdogPanicked`].
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// for server in locks.servers().await? {
    ///     let why = server.why_no_vote(); // of several servers, those that restarted abstain
    ///     println!("{}: {}", server.name(), why.as_deref().unwrap_or("votes"));
    /// }
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn servers(&self) -> Result<Vec<ServerHandle>, Error> {
        let session = self.shared.session();
        let of = Arc::clone(session);
        let doors = session
            .run_for_tool(async move { of.quorum().doors() })
            .await?;
        Ok(doors
            .into_iter()
            .map(|door| ServerHandle::new(&self.shared, door))
            .collect())
    }

    /// Returns the rights that a server's user needs for the locks with these names.
    ///
    /// Asks no server.
    ///
    /// A [`Key`] that comes from a lock stands for a lock of that kind: `locks.rw("prices").key()`.
    /// A right with an empty [`needed_for`](crate::rights::Right::needed_for) is optional.
    ///
    /// # Errors
    /// [`Error::Config`] for an empty name.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let keys = [locks.get("orders:42").key().clone(), locks.rw("prices").key().clone()];
    /// for right in locks.rights(&keys)? {
    ///     println!("{}", right.rule); // for ACL SETUSER, such as `+evalsha`
    /// }
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn rights<K: Into<Key>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Right>, Error> {
        let family = self.settings().kind.family;
        let whole = |key: K| key.into().kept_or_under(&self.prefix, family);
        let keys: Vec<_> = keys.into_iter().map(whole).collect();
        keys.iter().try_for_each(Error::check_name)?;
        let session = self.shared.session();
        let quorum = session.quorum();
        Ok(rights::rights(
            session.settings(),
            quorum.nodes().len(),
            quorum.is_cluster(),
            &keys,
        ))
    }

    fn whole(&self, key: impl Into<Key>) -> Key {
        key.into().under(&self.prefix, self.settings().kind.family)
    }

    /// Returns the settings that its options make.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// use std::time::Duration;
    ///
    /// assert_eq!(locks.settings().lease(), Duration::from_secs(30));
    /// assert_eq!(locks.settings().command_timeout(), Duration::from_secs(3)); // follows the lease
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn settings(&self) -> &Settings {
        self.shared.session().settings()
    }

    /// Closes the locker and all its clones, and ends the work that still holds locks.
    ///
    /// Let that work end first: `close` fires its tokens at once, drops sections of
    /// [`run`](crate::Lock::run), and a warning *lock lost* names each of these locks (after ten,
    /// *more locks lost* has their number). New work is refused and waiters end, both with
    /// [`Error::Closed`]. Every token fires with [`Loss::Closed`](crate::Loss::Closed), and nothing
    /// is renewed any more. The call then waits for the guards that are still held, for the lease
    /// or five seconds, whichever is shorter. A lock whose last guard is dropped in that time is
    /// released; the leases of the others run out. Finally the call closes the connections.
    ///
    /// Call it, or [`blocking_close`](Self::blocking_close), at the end of `main`, after the guards
    /// are gone. A program that ends without it releases on a best-effort basis: at its end, each
    /// thread that dropped a guard waits up to 100 ms until the release is answered, and so does
    /// `main`, for everything that is in flight. [`Guard`](crate::Guard#dropping) says what that
    /// does not cover. In a forked process there is nothing to close.
    ///
    /// # Cancel safety
    /// Dropping the future ends the wait and nothing else: closing continues.
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
    /// guard.unlock().await?; // end the work first
    /// locks.close().await;
    /// assert!(matches!(locks.get("orders:42").lock().await, Err(Error::Closed)));
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn close(&self) {
        self.shared.session().close().await;
    }

    /// Closes as [`close`](Self::close) does, for threads without async code.
    ///
    /// # Panics
    /// Panics in async code, which it would block. Always panics if
    /// [`connect`](LockerBuilder::connect) connected the locker to servers in memory: such a locker
    /// runs in its caller's runtime.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")]
    /// # fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).blocking_connect()?;
    /// let guard = locks.get("orders:42").blocking_lock()?;
    /// drop(guard); // does not wait for the release
    /// locks.blocking_close(); // does
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn blocking_close(&self) {
        let session = self.shared.session();
        let closed = async {
            session.close().await;
            Ok(())
        };
        match session.block_on(closed) {
            // In a forked process nothing is to be closed.
            Ok(()) | Err(Error::Forked) => {}
            Err(refused) => panic!("{refused}"),
        }
    }
}

/// The options of a [`Locker`].
///
/// [`connect`](Self::connect) validates them once; nothing is silently corrected.
///
/// | option | default | |
/// |---|---|---|
/// | [`node`](Self::node) | | the address of a server; again for several independent ones |
/// | [`prefix`](Self::prefix) | none | what is put before the name of each lock |
/// | [`lease`](Self::lease) | 30 s | how long the server keeps a lock that is not renewed |
/// | [`command_timeout`](Self::command_timeout) | lease / 10, at most 3 s | how long one command may take |
/// | [`connect_timeout`](Self::connect_timeout) | 5 s | how long `connect` tries |
/// | [`renewal_attempts`](Self::renewal_attempts) | 2 | how many renewals of a lease may be tried before it is lost |
/// | [`outage_tolerance`](Self::outage_tolerance) | one lease | how long `lock` rides out servers that do not answer |
/// | [`restart_quarantine`](Self::restart_quarantine) | the lease; 0 for one | how long a server that forgot abstains |
/// | [`reentry`](Self::reentry) | [`Reentry::Task`] | which guards may enter again |
/// | [`format`](Self::format) | [`Format::Redisson`] | with whom locks are shared |
/// | [`poll_interval`](Self::poll_interval) | 50 to 200 ms | how often waiters of [`Format::Plain`] check the lock |
/// | [`fence_source`](Self::fence_source) | [`FenceSource::Counters`] | where fences come from |
/// | [`replica_acks`](Self::replica_acks) | 0 | how many replicas acknowledge a lock and its renewals |
/// | [`credentials`](Self::credentials) | those in the addresses | where changing passwords come from |
/// | `tls` (feature `tls`) | the CAs of the system | whom to trust, and which client certificate to show |
/// | [`label`](Self::label) | host name and process id | what `holder()` and `CLIENT LIST` call the locker |
///
/// [`from_env`](Self::from_env) reads options from the environment.
///
/// Options of one lock: [`Lock::fixed_lease`], [`Lock::max_hold`], [`Lock::min_hold`],
/// [`Lock::owned_by`] and [`Lock::non_reentrant`].
///
/// # Addresses
/// - `redis://[user:password@]host[:port][/db]` is one server; `valkey://` is the same. A user
///   without a password (`nopass`) stands alone, in `user@`; its name is shown as `***`, since it
///   may be a mistyped password.
/// - `rediss://..` is the same over TLS (feature `tls`); also `valkeys://`, `redis+tls://` and
///   `valkey+tls://`.
/// - `redis+unix://[user:password@host]/path[?db=n]` is a socket file of this machine (feature
///   `unix`).
/// - `redis-cluster://[user:password@]host[:port][?node=host:port&..]` is a cluster. One of the
///   servers that the address names has to answer. A cluster stands alone: no other server can be
///   added. The braces of a lock's name have to be in pairs, the first with text inside; otherwise
///   its channel would be in another slot, and locking it returns [`Error::Config`].
/// - `redis-sentinel://[user:password@]host[:port][/db]?sentinelServiceName=name[&node=host:port&..]`
///   is the master that most of these Sentinels name; all are asked. `sentinelUsername` and
///   `sentinelPassword` are for the Sentinels themselves. A failover may lose locks: see
///   [`guide::quorums`](crate::guide::quorums).
/// - `rediss-cluster://` and `rediss-sentinel://` encrypt all of these connections.
///
/// Special characters in user and password are percent-encoded: any UTF-8 text can be written so,
/// whatever characters it has. In a parameter, `+` is written `%2B`. An IPv6 address stands in
/// brackets.
#[derive(Clone, Default)]
#[must_use = "a builder does nothing until `connect` or `blocking_connect`"]
pub struct LockerBuilder {
    nodes: Vec<ServerLocation>,
    prefix: String,
    options: Options,
    provider: Option<Arc<dyn AnyProvider>>,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

impl LockerBuilder {
    /// Adds a server at this address, such as `redis://lock-1:6379`.
    ///
    /// [Addresses](Self#addresses) lists the forms: over TLS, a socket file, a cluster, Sentinels.
    ///
    /// Called again, it adds further servers, which have to be independent masters: a lock is then
    /// held while more than half of them say so (Redlock), and survives while fewer than half are
    /// away. Three or five are usual. An even number survives no more failures than the odd number
    /// below it, and the locker logs a warning.
    ///
    /// New or emptied servers grant nothing for one
    /// [`restart_quarantine`](Self::restart_quarantine), though `connect` succeeds: shorter waits
    /// end with [`Error::Unavailable`].
    ///
    /// Every program that shares the locks has to name the same servers, preferably in the same
    /// order: contenders that got in each other's way ask the first server before the others.
    /// [`guide::quorums`](crate::guide::quorums) says when several servers are worth it.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> Result<(), lockhound::Error> {
    /// use lockhound::Locker;
    ///
    /// // `p@ss` is percent-encoded. Two of the three servers have to say that a lock is held.
    /// let locks = Locker::builder()
    ///     .node("redis://app:p%40ss@lock-1:6379")
    ///     .node("redis://app:p%40ss@lock-2:6379")
    ///     .node("redis://app:p%40ss@lock-3:6379")
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn node(mut self, url: impl AsRef<str>) -> Self {
        self.nodes
            .push(ServerLocation::Url(url.as_ref().to_owned()));
        self
    }

    /// Sets the servers to those at these addresses.
    ///
    /// They replace those that were given before, for example by [`from_env`](Self::from_env).
    /// Addresses are written as for [`node`](Self::node).
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> Result<(), lockhound::Error> {
    /// use lockhound::LockerBuilder;
    ///
    /// // The other options come from the environment, the servers do not.
    /// let servers = ["redis://lock-1", "redis://lock-2", "redis://lock-3"];
    /// let locks = LockerBuilder::from_env()?.nodes(servers).connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn nodes<U: AsRef<str>>(mut self, urls: impl IntoIterator<Item = U>) -> Self {
        self.nodes.clear();
        urls.into_iter().fold(self, Self::node)
    }

    /// Sets a text that is put before the name of each lock, such as `app:`.
    ///
    /// It keeps programs that share a server from sharing locks by accident, and the server's ACL
    /// patterns can name it.
    ///
    /// [`Lock::key`] is the whole name, and a [`Key`] that comes from a lock is used as it is.
    /// Programs in other languages have to use the whole name.
    ///
    /// Defaults to no prefix.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let builder = lockhound::Locker::builder().memory(&server);
    /// let locks = builder.prefix("shop:").connect().await?;
    /// let lock = locks.get("orders:42");
    /// assert_eq!(lock.key().as_str(), "shop:orders:42");
    /// assert_eq!(locks.get(lock.key()).key(), lock.key()); // a lock's key gets no second prefix
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Adds a server in memory, in place of one at an address: see [`testing::Server`].
    ///
    /// Called again, it adds further servers. All servers of a locker are in memory, or all are at
    /// addresses.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// use lockhound::{Locker, testing::Server};
    ///
    /// let server = Server::new();
    /// let one = Locker::builder().memory(&server).connect().await?;
    /// let two = Locker::builder().memory(&server).connect().await?; // as if on another machine
    /// let guard = one.get("orders:42").lock().await?;
    /// assert!(two.get("orders:42").try_lock().await?.is_none());
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    #[cfg(feature = "testing")]
    pub fn memory(mut self, server: &testing::Server) -> Self {
        self.nodes.push(ServerLocation::Memory(server.clone()));
        self
    }

    /// Sets how the locker recognises servers at encrypted addresses (`rediss://`).
    ///
    /// It also sets which certificate the locker shows them. It applies to all servers of the
    /// locker. [`connect`](Self::connect) refuses it if no address is encrypted.
    ///
    /// Defaults to the CAs of the system, and no client certificate.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> Result<(), lockhound::Error> {
    /// use lockhound::{Locker, Tls};
    ///
    /// let tls = Tls::new().ca_file("/etc/ssl/redis-ca.pem"); // in place of the system's CAs
    /// let locks = Locker::builder().node("rediss://lock-1:6380").tls(tls).connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: impl Into<Tls>) -> Self {
        self.tls = Some(tls.into());
        self
    }

    /// Sets where the credentials come from at each connect and reconnect.
    ///
    /// It is for passwords that change while the program runs. [`connect`](Self::connect) refuses
    /// it together with an address that has a password.
    ///
    /// Locks stay held while the locker reconnects with a new password, as in any other short
    /// outage. If the provider returns a password that a server no longer accepts, a WARN says so,
    /// and so does [`Error::Unavailable`] after [`outage_tolerance`](Self::outage_tolerance).
    ///
    /// Defaults to the credentials in the addresses.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> Result<(), lockhound::Error> {
    /// use std::{error::Error, fs, future::{Future, ready}};
    /// use lockhound::{CredentialProvider, Credentials, Locker};
    ///
    /// struct Mounted; // a secret that is replaced while the program runs
    /// impl CredentialProvider for Mounted {
    ///     fn credentials(
    ///         &self,
    ///         _node: &str,
    ///     ) -> impl Future<Output = Result<Credentials, Box<dyn Error + Send + Sync>>> + Send {
    ///         let read = fs::read_to_string("/run/secrets/redis");
    ///         ready(read.map(|it| Credentials::password(it.trim_end())).map_err(Into::into))
    ///     }
    /// }
    /// let locks = Locker::builder().node("redis://lock-1").credentials(Mounted).connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn credentials(mut self, provider: impl CredentialProvider) -> Self {
        self.provider = Some(Arc::new(provider));
        self
    }

    /// Sets how long the server keeps a lock that is not renewed, from 100 ms to 30 days.
    ///
    /// By default the watchdog renews it every third of that time. A short lease frees the lock of
    /// a dead holder sooner; a long one survives longer outages and costs fewer renewals. Clients
    /// that share a lock should use the same lease.
    ///
    /// Defaults to 30 seconds, as Redisson's `lockWatchdogTimeout`.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let builder = lockhound::Locker::builder().memory(&server);
    /// use std::time::Duration;
    ///
    /// let locks = builder.lease(Duration::from_secs(10)).connect().await?;
    /// let lock = locks.get("orders:42");
    /// let guard = lock.lock().await?;
    /// tokio::time::sleep(Duration::from_secs(3600)).await; // longer: the watchdog renews it
    /// guard.unlock().await
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub const fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease;
        self
    }

    /// Sets how long [`connect`](Self::connect) may take.
    ///
    /// `connect` retries until then, so it waits for servers that start a moment later. It does not
    /// retry if a server refuses the credentials, for example, or shows a certificate that is not
    /// trusted. A short timeout reports a dead server sooner; a long one tolerates a slow network,
    /// and servers that are slow to start.
    ///
    /// Defaults to 5 seconds.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let builder = lockhound::Locker::builder().memory(&server);
    /// use std::time::Duration;
    /// use lockhound::Error;
    ///
    /// server.stop(); // it answers nothing
    /// let connected = builder.connect_timeout(Duration::from_secs(1)).connect().await;
    /// assert!(matches!(connected, Err(Error::Unavailable { .. })));
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.options.connect_timeout = timeout;
        self
    }

    /// Sets how long one command may take before its outcome counts as unknown.
    ///
    /// It has to be shorter than lease / (`renewal_attempts` + 1).
    ///
    /// A short timeout finds a dead connection sooner, but takes a slow server for a dead one; a
    /// long one delays [`Lock::try_lock`] and [`Guard::unlock`](crate::Guard::unlock) during
    /// outages.
    ///
    /// Defaults to a tenth of the lease, at most 3 seconds.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let builder = lockhound::Locker::builder().memory(&server);
    /// use std::time::Duration;
    /// use lockhound::Error;
    ///
    /// // A request gives up a server that is away after 200 ms, although the lease is 30 s.
    /// let locks = builder.command_timeout(Duration::from_millis(200)).connect().await?;
    /// server.stop();
    /// let taken = locks.get("orders:42").try_lock().await;
    /// assert!(matches!(taken, Err(Error::Unavailable { .. })));
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub const fn command_timeout(mut self, timeout: Duration) -> Self {
        self.options.command_timeout = Some(timeout);
        self
    }

    /// Sets how many attempts to renew a lease have to fail in a row before the lock is lost.
    ///
    /// The attempts are lease / (this + 1) apart; there is at least 1.
    ///
    /// A higher number survives more failures in a row and costs more commands; the lock is lost at
    /// the end of validity in any case. An attempt fails after a
    /// [`command_timeout`](Self::command_timeout). A renewal also finds that the server dropped the
    /// lock (`DEL`, eviction, a failover): with 39, and a `command_timeout` of 500 ms, a holder of
    /// a lease of 30 s learns of it within about a second.
    ///
    /// Defaults to 2: a lease of 30 s is renewed 10 s after the last success and, if that fails,
    /// 20 s after it. If both attempts fail, the token fires 23 s after the last success.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let builder = lockhound::Locker::builder().memory(&server);
    /// // A lease of 30 s is renewed every 6 s, and lost if four renewals in a row fail.
    /// let locks = builder.renewal_attempts(4).connect().await?;
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub const fn renewal_attempts(mut self, attempts: u32) -> Self {
        self.options.renewal_attempts = attempts;
        self
    }

    /// Sets how long [`Lock::lock`] and [`Lock::try_lock_for`] ride out servers that do not answer.
    ///
    /// The time counts from the first round that had no answer. A long tolerance survives
    /// failovers; a short one lets callers do something else sooner. All waits for locks of a
    /// locker end together, except those that began less than a
    /// [`command_timeout`](Self::command_timeout) ago (or less than this tolerance, if it is
    /// shorter): each call tries for at least that long, however long the outage has lasted
    /// already. Zero ends a wait at the first round that has no answer. It may be up to 30 days.
    ///
    /// Defaults to one lease. With a [`restart_quarantine`](Self::restart_quarantine) it defaults
    /// to 9/8 of that plus two seconds, if this is longer, so that calls can wait until a
    /// quarantine is over.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let builder = lockhound::Locker::builder().memory(&server);
    /// use std::time::Duration;
    /// use lockhound::Error;
    ///
    /// let locks = builder.outage_tolerance(Duration::from_secs(5)).connect().await?;
    /// server.stop();
    /// let taken = locks.get("orders:42").lock().await; // 5 s later, instead of 30 s
    /// assert!(matches!(taken, Err(Error::Unavailable { .. })));
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub const fn outage_tolerance(mut self, tolerance: Duration) -> Self {
        self.options.outage_tolerance = Some(tolerance);
        self
    }

    /// Sets the minimum time for which a server that may have forgotten locks abstains.
    ///
    /// It concerns one of several servers, after a restart, a failover or a `FLUSHALL`. The Redis
    /// documentation of distributed locks calls this *delayed restarts*. Without a majority,
    /// [`Lock::lock`] waits, and [`Error::Unavailable`] says which server abstains.
    ///
    /// All programs should set the same time, up to 30 days. A lease of this locker may not be
    /// longer, and clients in other languages announce none: the time must not be shorter than
    /// their longest. Zero is for servers that forget nothing (`appendonly yes`, `appendfsync
    /// always`). [`guide::quorums`](crate::guide::quorums#restart_quarantine) has what this does
    /// not cover.
    ///
    /// Defaults to the lease, and to zero for a single server: what that forgets, it forgets for
    /// every program.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> Result<(), lockhound::Error> {
    /// use std::time::Duration;
    /// use lockhound::Locker;
    ///
    /// let minute = Duration::from_secs(60);
    /// let locks = Locker::builder()
    ///     .nodes(["redis://lock-1", "redis://lock-2", "redis://lock-3"])
    ///     .restart_quarantine(minute) // in all programs
    ///     .connect()
    ///     .await?;
    /// locks.get("import").fixed_lease(minute).lock().await?; // the longest that is allowed
    /// # Ok(())
    /// # }
    /// ```
    pub const fn restart_quarantine(mut self, quarantine: Duration) -> Self {
        self.options.restart_quarantine = Some(quarantine);
        self
    }

    /// Sets how locks are stored on the server, and so which other clients share them.
    ///
    /// [`Format::Redisson`] shares them with Redisson, and waiters are woken by messages.
    /// [`Format::Plain`] shares them with Redlock clients in other languages, and waiters poll.
    /// Under one key the two formats exclude each other, but a caller that waits in one format for
    /// a holder in the other may get [`Error::Server`].
    ///
    /// Defaults to [`Format::Redisson`].
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let builder = lockhound::Locker::builder().memory(&server);
    /// use lockhound::Format;
    ///
    /// // Shared with redsync, redis-py and others, which use `SET orders:42 .. NX PX 30000`.
    /// let locks = builder.format(Format::Plain).connect().await?;
    /// let guard = locks.get("orders:42").lock().await?;
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub const fn format(mut self, format: Format) -> Self {
        self.options.kind = format.kind();
        self
    }

    /// Sets how often a waiter checks a lock of [`Format::Plain`].
    ///
    /// Its release may send no message, so the waiter checks it after a random pause within this
    /// range, again and again.
    ///
    /// A short pause notices sooner that a lock is free; a long one costs fewer commands.
    /// [`connect`](Self::connect) refuses this option together with [`Format::Redisson`], whose
    /// releases wake the waiters.
    ///
    /// Defaults to 50 to 200 ms.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let builder = lockhound::Locker::builder().memory(&server);
    /// use std::time::Duration;
    /// use lockhound::Format;
    ///
    /// let often = Duration::from_millis(10)..Duration::from_millis(20);
    /// let locks = builder.format(Format::Plain).poll_interval(often).connect().await?;
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub const fn poll_interval(mut self, range: Range<Duration>) -> Self {
        self.options.poll_interval = Some(range);
        self
    }

    /// Sets the kind of its locks.
    #[cfg(test)]
    pub(crate) const fn kind(mut self, kind: &'static Kind) -> Self {
        self.options.kind = kind;
        self
    }

    /// Sets where fences come from, and with which other tokens they form one sequence.
    ///
    /// With [`FenceSource::Counters`] fences survive the loss of a server's data, and several
    /// servers agree on them. With [`FenceSource::RedissonTokens`] they form one sequence with the
    /// tokens of `RFencedLock`, for a resource that checks the tokens of JVMs too; this needs a
    /// single server, and the sequence is lost with the server's data. All programs that share a
    /// lock have to use the same setting.
    ///
    /// Defaults to [`FenceSource::Counters`].
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let builder = lockhound::Locker::builder().memory(&server);
    /// use lockhound::FenceSource;
    ///
    /// let locks = builder.fence_source(FenceSource::RedissonTokens).connect().await?;
    /// let guard = locks.get("orders:42").lock().await?;
    /// assert_eq!(guard.fence().get(), 1); // JVMs have the next: `RFencedLock` counts on
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub const fn fence_source(mut self, source: FenceSource) -> Self {
        self.options.fence_source = source;
        self
    }

    /// Sets how many replicas of each server have to acknowledge each acquire and each renewal.
    ///
    /// Until they have, it does not count. They may take this long, in whole milliseconds and
    /// shorter than [`command_timeout`](Self::command_timeout). If too few acknowledge in time, an
    /// acquire is undone and counts as unanswered, and a renewal counts as one failure. Releases do
    /// not wait.
    ///
    /// A lock then survives the loss of its server if a replica that acknowledged is promoted,
    /// which Redis' `WAIT` does not ensure. A short time gives up locks when replicas lag; a long
    /// one makes callers wait for replicas that are away. See
    /// [`guide::quorums`](crate::guide::quorums#replica_acks) for what was measured, and for
    /// clocks.
    ///
    /// Defaults to 0: replicas are not asked.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> Result<(), lockhound::Error> {
    /// use std::time::Duration;
    /// use lockhound::Locker;
    ///
    /// // One of the two replicas may be away without stopping all locking.
    /// let locks = Locker::builder()
    ///     .node("redis://127.0.0.1:6379")
    ///     .replica_acks(1, Duration::from_millis(500))
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub const fn replica_acks(mut self, count: u32, timeout: Duration) -> Self {
        self.options.replica_acks = Replicas { count, timeout };
        self
    }

    /// Sets the owner of calls that name none, and so which calls may enter again.
    ///
    /// With [`Reentry::Task`] nested code enters again without further code, and so do branches of
    /// one task that take guards. With [`Reentry::Scope`] and [`Reentry::Never`] such branches wait
    /// for each other, and nested code outside a scope waits for itself; the locker logs a warning
    /// about that. With each of the three, [`Lock::run`] makes branches exclude each other.
    ///
    /// Defaults to [`Reentry::Task`].
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let builder = lockhound::Locker::builder().memory(&server);
    /// use lockhound::Reentry;
    ///
    /// let locks = builder.reentry(Reentry::Scope).connect().await?;
    /// let lock = locks.get("orders:42");
    /// let guard = lock.lock().await?;
    /// assert!(lock.try_lock().await?.is_none()); // the same task, but outside of a scope
    /// assert!(guard.scope(lock.try_lock()).await?.is_some());
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub const fn reentry(mut self, reentry: Reentry) -> Self {
        self.options.reentry = reentry;
        self
    }

    /// Sets what the locker calls itself, such as the name of a service and its instance.
    ///
    /// It is text of 1 to 128 bytes, not blank, without control characters.
    ///
    /// [`Holder::label`](crate::Holder::label) returns it, so that people find the process that
    /// holds a lock. The names of the locker's connections in `CLIENT LIST` contain it too, with
    /// `_` for each character that is not printable ASCII. Labels need not be unique. They are not
    /// secret: clients of the servers can read them.
    ///
    /// The locker writes its label to the servers after the first lock that it takes, and again
    /// every 20 minutes. The key `lockhound_label:<uuid>` stays for an hour after that, and
    /// [`Locker::close`] deletes it. No call waits for this, and none fails because of it: a user
    /// who has no right to the key has no label. In [`Format::Plain`] no label is written or read.
    ///
    /// Defaults to the host name and the process id, `host:4711`.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let builder = lockhound::Locker::builder().memory(&server);
    /// let locks = builder.label("shop, instance 7").connect().await?;
    /// let guard = locks.get("orders:42").lock().await?;
    /// tokio::time::sleep(std::time::Duration::from_secs(1)).await; // written after the grant
    /// let holder = locks.get("orders:42").holder().await?;
    /// assert_eq!(holder.as_ref().and_then(|holder| holder.label()), Some("shop, instance 7"));
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.options.label = Some(label.into());
        self
    }

    /// Validates the options and connects.
    ///
    /// A server has to be Redis 6.2 or newer, or any Valkey.
    ///
    /// # Errors
    /// - [`Error::Config`] for an option or an address that cannot be used, for a server that is
    ///   too old or of another kind than its address says (a cluster, a Sentinel) and, with several
    ///   servers, for a replica and a server that is named twice.
    /// - [`Error::Unavailable`] if no majority of the servers answers within
    ///   [`connect_timeout`](Self::connect_timeout); the others may come later. The same error
    ///   comes at once if untrusted certificates make a majority impossible.
    /// - [`Error::Server`] if a server refuses the credentials.
    ///
    /// No error shows a password: it is replaced by `***`, and an address that cannot be used is
    /// shown by its scheme only.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the attempt and ends its thread.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> Result<(), lockhound::Error> {
    /// use lockhound::{Error, Locker};
    ///
    /// match Locker::builder().node("redis://127.0.0.1:6379").connect().await {
    ///     Ok(locks) => locks.get("orders:42").lock().await?.unlock().await?,
    ///     Err(Error::Config(wrong)) => panic!("correct {}: {wrong}", wrong.option()),
    ///     Err(error) => println!("try again later: {error}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(self) -> Result<Locker, Error> {
        let prefix = self.prefix.as_str().into();
        foreign::give_way().await;
        let (settings, targets) = self.validate()?;
        Ok(Locker {
            shared: Arc::new(SharedSession::connect(settings, targets).await?),
            prefix,
        })
    }

    /// Connects as [`connect`](Self::connect) does, for threads without async code.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Panics
    /// Panics in async code, which it would block.
    ///
    /// # Examples
    /// ```no_run
    /// # fn example() -> Result<(), lockhound::Error> {
    /// use lockhound::Locker;
    ///
    /// let locks = Locker::builder().node("redis://lock-1").label("cron").blocking_connect()?;
    /// locks.get("report").blocking_run(|_| println!("the report"))
    /// # }
    /// ```
    pub fn blocking_connect(self) -> Result<Locker, Error> {
        let prefix = self.prefix.as_str().into();
        let (settings, targets) = self.validate()?;
        Ok(Locker {
            shared: Arc::new(SharedSession::blocking_connect(settings, targets)?),
            prefix,
        })
    }

    /// Validates the options, and connects in the background.
    ///
    /// It waits for no server, and no server has to run yet. It may be called inside and outside of
    /// async code.
    ///
    /// The first [`Lock::lock`] then waits as in any other outage, for
    /// [`outage_tolerance`](Self::outage_tolerance) at most, and [`Lock::try_lock`] for one
    /// attempt: a [`command_timeout`](Self::command_timeout) at most.
    ///
    /// It is for programs that have to start before their servers do. Problems that make
    /// [`connect`](Self::connect) fail, such as wrong credentials, an untrusted certificate or a
    /// server that is too old, are reported only by the [`Error::Unavailable`] of those calls and,
    /// except for certificates, by a WARN. Nothing reports that there are too few replicas.
    ///
    /// # Errors
    /// [`Error::Config`] for an option or an address that cannot be used, and for a server in
    /// memory; [`Error::Unavailable`] if no thread can be started.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> Result<(), lockhound::Error> {
    /// use lockhound::Locker;
    ///
    /// let locks = Locker::builder().node("redis://127.0.0.1:6379").connect_lazy()?; // no await
    /// let guard = locks.get("orders:42").lock().await?; // waits for the server
    /// # Ok(())
    /// # }
    /// ```
    pub fn connect_lazy(self) -> Result<Locker, Error> {
        let prefix = self.prefix.as_str().into();
        let (settings, targets) = self.validate()?;
        Ok(Locker {
            shared: Arc::new(SharedSession::connect_lazily(settings, targets)?),
            prefix,
        })
    }

    fn validate(self) -> Result<(Settings, Vec<Target>), Error> {
        let settings = self.options.validate(self.nodes.len())?;
        let provider = self
            .provider
            .map(|provider| Provider::new(provider, settings.connect_timeout / 2));
        #[cfg(feature = "testing")]
        let has_provider = provider.is_some();
        let access = Access::default().with_provider(provider);
        #[cfg(feature = "tls")]
        let access = access.with_tls(self.tls);
        let targets = self
            .nodes
            .iter()
            .map(|location| location.target(&access))
            .collect::<Result<Vec<_>, _>>()?;
        #[cfg(feature = "testing")]
        check_memory(&settings, &targets, has_provider)?;
        if !targets.is_empty() {
            access.check_use()?;
        }
        if targets.len() > 1 && targets.iter().any(Target::is_cluster) {
            let problem =
                "a cluster cannot vote together with other servers: name the cluster alone";
            return Err(Error::config("node", problem));
        }
        if targets.iter().any(Target::is_cluster) && !settings.restart_quarantine.is_zero() {
            let problem = format!(
                "{:?} is set, but the servers of a cluster keep no memory of their restarts: leave it out, or name \
                 independent servers",
                settings.restart_quarantine
            );
            return Err(Error::config("restart_quarantine", problem));
        }
        match targets.len() {
            0 => {
                return Err(Error::config(
                    "node",
                    "no server is given; name one with .node(\"redis://host:6379\")",
                ));
            }
            nodes if nodes % 2 == 0 => log!(
                warn,
                nodes,
                "an even number of servers tolerates no more failures than one server fewer: {} of \
                them may be away, and {} must answer",
                (nodes - 1) / 2,
                nodes / 2 + 1
            ),
            _ => {}
        }
        Ok((settings, targets))
    }
}

/// Refuses options that a server in memory cannot serve.
///
/// # Errors
/// [`Error::Config`] that names the option.
#[cfg(feature = "testing")]
fn check_memory(settings: &Settings, targets: &[Target], has_provider: bool) -> Result<(), Error> {
    let in_memory = targets
        .iter()
        .filter(|target| target.is_in_memory())
        .count();
    if in_memory > 0 && has_provider {
        return Err(Error::config(
            "credentials",
            "a server in memory asks for no credentials: leave the provider out",
        ));
    }
    if in_memory > 0 && settings.replica_acks.is_some() {
        return Err(Error::config(
            "replica_acks",
            "a server in memory has no replicas that could acknowledge a lock",
        ));
    }
    if in_memory > 0 && in_memory < targets.len() {
        let problem = "servers in memory and servers at addresses go by different clocks: give a \
                           locker servers of one kind";
        return Err(Error::config("memory", problem));
    }
    Ok(())
}

/// The place of a server: an address, or this process's memory.
#[derive(Clone)]
enum ServerLocation {
    Url(String),
    #[cfg(feature = "testing")]
    Memory(testing::Server),
}

impl ServerLocation {
    fn target(&self, access: &Access) -> Result<Target, Error> {
        match self {
            Self::Url(url) => Target::parse(url, access),
            #[cfg(feature = "testing")]
            Self::Memory(server) => Ok(Target::Memory(server.clone())),
        }
    }

    /// Returns the place as it may be shown, without secrets.
    fn name(&self) -> String {
        match self {
            Self::Url(url) => {
                Target::name_of(url).map_or_else(|error| error.to_string(), |name| name.to_string())
            }
            #[cfg(feature = "testing")]
            Self::Memory(server) => server.name().to_string(),
        }
    }
}

impl fmt::Debug for Locker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let session = self.shared.session();
        f.debug_struct("Locker")
            .field("id", &session.id())
            .field("nodes", &session.names())
            .finish()
    }
}

impl fmt::Debug for LockerBuilder {
    /// Shows nothing of an address that cannot be used, since it may hold a password anywhere.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<String> = self.nodes.iter().map(ServerLocation::name).collect();
        let mut shown = f.debug_struct("LockerBuilder");
        shown.field("nodes", &nodes);
        if !self.prefix.is_empty() {
            shown.field("prefix", &self.prefix);
        }
        if let Some(label) = &self.options.label {
            shown.field("label", label);
        }
        shown
            .field("lease", &self.options.lease)
            .field("format", &self.options.kind.format)
            .finish_non_exhaustive()
    }
}
