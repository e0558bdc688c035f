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

/// The connection to the servers, from which a program gets its locks. Cheap to clone: make one and
/// keep it.
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

    /// Returns the lock of this name. Asks no server.
    ///
    /// All programs that use the same name on the same server share the lock, and so do other
    /// clients that use the same [`Format`], such as Redisson's `getLock`. A
    /// [`prefix`](LockerBuilder::prefix) of the locker is put before the name, except before a
    /// [`Key`] that comes from a lock. [`Lock::lock`] reports an empty name.
    pub fn get(&self, key: impl Into<Key>) -> Lock {
        Lock::new(Arc::clone(&self.shared), self.whole(key))
    }

    /// Returns the read-write lock of this name. Asks no server.
    ///
    /// It is shared with Redisson's `getReadWriteLock`. It is another kind than [`get`](Self::get)
    /// returns: use a name for one of them only.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(locks: lockhound::Locker) -> Result<(), lockhound::Error> {
    /// let prices = locks.rw("prices");
    /// let guard = prices.read().lock().await?; // together with other readers
    /// guard.unlock().await
    /// # }
    /// ```
    pub fn rw(&self, name: impl Into<Key>) -> RwLock {
        let key = name.into().under(&self.prefix, &READ_WRITE);
        RwLock::new(Arc::clone(&self.shared), key)
    }

    /// Returns the fair lock of this name: its callers get it in the order in which they came, in
    /// all processes and JVMs. Asks no server.
    ///
    /// It is shared with Redisson's `getFairLock`, and excludes [`get`](Self::get) of the same
    /// name, whose callers pass the queue: use a name for one kind only. On several independent
    /// servers, and in [`Format::Plain`], calls that lock it fail with [`Error::Config`].
    /// [`guide::fair_locks`](crate::guide::fair_locks) has what is promised, and what is not.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(locks: lockhound::Locker) -> Result<(), lockhound::Error> {
    /// let guard = locks.fair("printer").lock().await?; // behind those that came before
    /// guard.unlock().await
    /// # }
    /// ```
    pub fn fair(&self, name: impl Into<Key>) -> Lock {
        let key = name.into().under(&self.prefix, &FAIR);
        Lock::in_turn(Arc::clone(&self.shared), key)
    }

    /// Returns the semaphore of this name, whose permits many have at once. Asks no server.
    ///
    /// It is shared with Redisson's `getPermitExpirableSemaphore`: each permit has a lease on both
    /// sides, so those of a crashed holder come back, and never more are taken than there are. Use
    /// a name for one kind only.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(locks: lockhound::Locker) -> Result<(), lockhound::Error> {
    /// let api = locks.permits("api:acme").capacity(10); // ten calls at a time, in the whole fleet
    /// let permit = api.acquire().await?;
    /// permit.release().await
    /// # }
    /// ```
    pub fn permits(&self, name: impl Into<Key>) -> Semaphore {
        let key = name.into().under(&self.prefix, &PERMITS_FAMILY);
        Semaphore::new(Arc::clone(&self.shared), key, &PERMITS)
    }

    /// Returns the semaphore of this name that is shared with Redisson's `getSemaphore`. That a
    /// crashed holder's permits come back is promised of this crate's permits only, when a caller
    /// of this crate asks next: what a JVM takes is a number on the server that belongs to no
    /// owner, and stays taken if the JVM dies.
    ///
    /// Without JVMs, [`permits`](Self::permits) promises more. Asks no server. Use a name for one
    /// kind only.
    pub fn semaphore(&self, name: impl Into<Key>) -> Semaphore {
        let key = name.into().under(&self.prefix, &SEMAPHORE_FAMILY);
        Semaphore::new(Arc::clone(&self.shared), key, &SEMAPHORE)
    }

    /// Returns the election of this name. Asks no server.
    ///
    /// It is the lock of that name with a value beside it, so `get(name)` and Redisson's `getLock`
    /// keep its candidates from leading.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(locks: lockhound::Locker) -> Result<(), lockhound::Error> {
    /// let election = locks.election("scheduler");
    /// let leadership = election.campaign("10.0.0.7:8080").await?; // waits until it leads
    /// leadership.resign().await
    /// # }
    /// ```
    pub fn election(&self, name: impl Into<Key>) -> Election {
        let key = name.into().under(&self.prefix, &ELECTION);
        Election::new(Arc::clone(&self.shared), key)
    }

    /// Returns the latch of this name, for which callers wait until it has been counted down. Asks
    /// no server.
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

    /// Returns the locks of these names as one: a call takes all of them, or none. Asks no server.
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
    /// ```no_run
    /// # async fn example(locks: lockhound::Locker) -> Result<(), lockhound::Error> {
    /// let accounts = locks.multi(["account:1", "account:2"]);
    /// let guard = accounts.lock().await?;
    /// // No other client has either of them.
    /// guard.unlock().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn multi<K: Into<Key>>(&self, keys: impl IntoIterator<Item = K>) -> MultiLock {
        let keys = keys.into_iter().map(|key| self.whole(key));
        MultiLock::new(Arc::clone(&self.shared), keys.collect())
    }

    /// Returns the identity of this locker: the `uuid` in the `uuid:task-id` that it writes to the
    /// servers. Every connect makes a new one.
    pub fn id(&self) -> &str {
        self.shared.session().id()
    }

    /// Returns counts of what this locker has done and is doing. Cheap: it keeps these counts
    /// anyway. In a forked process all of them are zero.
    pub fn stats(&self) -> Stats {
        self.shared.session().stats()
    }

    /// Returns the servers, for tools that ask them: see [`servers`](crate::servers). Of a cluster,
    /// the masters that have slots. Asks no server.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Forked`] or [`Error::WatchdogPanicked`].
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
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

    /// Returns the rights that a server's user needs for the locks with these names. Asks no
    /// server.
    ///
    /// A [`Key`] that comes from a lock stands for a lock of that kind: `locks.rw("prices").key()`.
    ///
    /// # Errors
    /// [`Error::Config`] for an empty name.
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
    pub async fn close(&self) {
        self.shared.session().close().await;
    }

    /// Closes as [`close`](Self::close) does, for threads without async code.
    ///
    /// # Panics
    /// Panics in async code, which it would block. Always panics if
    /// [`connect`](LockerBuilder::connect) connected the locker to servers in memory: such a locker
    /// runs in its caller's runtime.
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

/// The options of a [`Locker`]. [`connect`](Self::connect) validates them once; nothing is silently
/// corrected.
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
    /// Adds a server at this address.
    ///
    /// - `redis://[user:password@]host[:port][/db]` is one server; `valkey://` is the same. A user
    ///   without a password (`nopass`) stands alone, in `user@`; its name is shown as `***`, since
    ///   it may be a mistyped password.
    /// - `rediss://..` is the same over TLS (feature `tls`); also `valkeys://`, `redis+tls://` and
    ///   `valkey+tls://`.
    /// - `redis+unix://[user:password@host]/path[?db=n]` is a socket file of this machine (feature
    ///   `unix`).
    /// - `redis-cluster://[user:password@]host[:port][?node=host:port&..]` is a cluster. One of the
    ///   servers that the address names has to answer. A cluster stands alone: no other server can
    ///   be added. The name of a lock must have no braces, or one pair with text inside; otherwise
    ///   its channel would be in another slot, and locking it returns [`Error::Config`].
    /// - `redis-sentinel://[user:password@]host[:port][/db]?sentinelServiceName=name[&node=host:port&..]`
    ///   is the master that most of these Sentinels name; all are asked. `sentinelUsername` and
    ///   `sentinelPassword` are for the Sentinels themselves. [`replica_acks`](Self::replica_acks)
    ///   says what a failover loses.
    /// - `rediss-cluster://` and `rediss-sentinel://` encrypt all of these connections.
    ///
    /// Special characters in user and password are percent-encoded: any UTF-8 text can be written
    /// so, whatever characters it has. In a parameter, `+` is written `%2B`. An IPv6 address stands
    /// in brackets.
    ///
    /// Called again, it adds further servers, which have to be independent masters: a lock is then
    /// held while more than half of them say so (Redlock), and survives while fewer than half are
    /// away. Three or five are usual. An even number survives no more failures than the odd number
    /// below it, and the locker logs a warning. Every program that shares the locks has to name the
    /// same servers, preferably in the same order: contenders that got in each other's way ask the
    /// first server before the others. See [`restart_quarantine`](Self::restart_quarantine).
    pub fn node(mut self, url: impl AsRef<str>) -> Self {
        self.nodes
            .push(ServerLocation::Url(url.as_ref().to_owned()));
        self
    }

    /// Sets the servers to those at these addresses, in place of those that were given before, for
    /// example by [`from_env`](Self::from_env). Addresses are written as for [`node`](Self::node).
    pub fn nodes<U: AsRef<str>>(mut self, urls: impl IntoIterator<Item = U>) -> Self {
        self.nodes.clear();
        urls.into_iter().fold(self, Self::node)
    }

    /// Sets a text that is put before the name of each lock, such as `app:`, so that programs that
    /// share a server do not share locks by accident. ACL patterns of the server can name it.
    ///
    /// [`Lock::key`] is the whole name, and a [`Key`] that comes from a lock is used as it is.
    /// Programs in other languages have to use the whole name.
    ///
    /// Defaults to no prefix.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Adds a server in memory, in place of one at an address: see [`testing::Server`].
    ///
    /// Called again, it adds further servers. All servers of a locker are in memory, or all are at
    /// addresses.
    #[cfg(feature = "testing")]
    pub fn memory(mut self, server: &testing::Server) -> Self {
        self.nodes.push(ServerLocation::Memory(server.clone()));
        self
    }

    /// Sets how the locker recognises servers at encrypted addresses (`rediss://`), and which
    /// certificate it shows them. It applies to all servers of the locker.
    /// [`connect`](Self::connect) refuses it if no address is encrypted.
    ///
    /// Defaults to the CAs of the system, and no client certificate.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: impl Into<Tls>) -> Self {
        self.tls = Some(tls.into());
        self
    }

    /// Sets where the credentials come from at each connect and reconnect, for passwords that
    /// change while the program runs. [`connect`](Self::connect) refuses it together with an
    /// address that has a password.
    ///
    /// Locks stay held while the locker reconnects with a new password, as in any other short
    /// outage. If the provider returns a password that a server no longer accepts, a WARN says so,
    /// and so does [`Error::Unavailable`] after [`outage_tolerance`](Self::outage_tolerance).
    ///
    /// Defaults to the credentials in the addresses.
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
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.options.connect_timeout = timeout;
        self
    }

    /// Sets how long one command may take before its outcome counts as unknown. It has to be
    /// shorter than lease / (`renewal_attempts` + 1).
    ///
    /// A short timeout finds a dead connection sooner, but takes a slow server for a dead one; a
    /// long one delays [`Lock::try_lock`] and [`Guard::unlock`](crate::Guard::unlock) during
    /// outages.
    ///
    /// Defaults to a tenth of the lease, at most 3 seconds.
    pub const fn command_timeout(mut self, timeout: Duration) -> Self {
        self.options.command_timeout = Some(timeout);
        self
    }

    /// Sets how many attempts to renew a lease, lease / (this + 1) apart, have to fail in a row
    /// before the lock is lost; 1 or more.
    ///
    /// A higher number survives more failures in a row and costs more commands; the lock is lost at
    /// the end of validity in any case. An attempt fails after a
    /// [`command_timeout`](Self::command_timeout).
    ///
    /// Defaults to 2: a lease of 30 s is renewed 10 s after the last success and, if that fails,
    /// 20 s after it. If both attempts fail, the token fires 23 s after the last success.
    pub const fn renewal_attempts(mut self, attempts: u32) -> Self {
        self.options.renewal_attempts = attempts;
        self
    }

    /// Sets how long [`Lock::lock`] and [`Lock::try_lock_for`] ride out servers that do not answer.
    ///
    /// The time counts from the first round that had no answer. A long tolerance survives
    /// failovers; a short one lets callers do something else sooner. All waits of a locker end
    /// together, except those that began less than a [`command_timeout`](Self::command_timeout) ago
    /// (or less than this tolerance, if it is shorter): each call tries for at least that long,
    /// however long the outage has lasted already. Zero ends a wait at the first round that has no
    /// answer. It may be up to 30 days.
    ///
    /// Defaults to one lease. With a [`restart_quarantine`](Self::restart_quarantine) it defaults
    /// to 9/8 of that plus two seconds, if this is longer, so that calls can wait until a
    /// quarantine is over.
    pub const fn outage_tolerance(mut self, tolerance: Duration) -> Self {
        self.options.outage_tolerance = Some(tolerance);
        self
    }

    /// Sets the minimum time for which one of several servers abstains after it may have forgotten
    /// locks. The Redis documentation of distributed locks calls this *delayed restarts*.
    ///
    /// Each server keeps a *memory*, the key `lockhound_vote`, which is lost or out of date when
    /// the server's data is: after a restart, a failover, a `FLUSHALL`. Such a server abstains for
    /// the longest `restart_quarantine` that any program with this option has announced, plus one
    /// hundredth, and until enough of the others have told it what it may have forgotten: all but a
    /// minority of them, or, after another quarantine, those that make a majority with it. Until
    /// then its vote counts as missing. If that leaves no majority, as at the first start of a
    /// deployment, [`Lock::lock`] waits, and [`Error::Unavailable`] says which server abstains.
    ///
    /// Every program has to reach the same servers, and should set the same quarantine.
    /// [`connect`](Self::connect) refuses a different number of servers. See
    /// [`guide::quorums`](crate::guide::quorums).
    ///
    /// No lease of this locker may be longer than the quarantine. Clients in other languages
    /// announce nothing: the quarantine must not be shorter than their longest lease. A single
    /// server forgets what was announced to it together with its locks: there, every program has to
    /// set the same quarantine. Zero is for servers that forget nothing (`appendonly yes` and
    /// `appendfsync always`): no memory is kept on them.
    ///
    /// It does not cover: an address that leads some programs to another, empty server; a failover
    /// behind an address whose old master still serves somebody; a second server that loses its
    /// data before the first one votes again; the eviction or deletion of single keys; `SWAPDB`; a
    /// server that becomes a replica and a master again before any locker has asked it for
    /// anything, without its connections ending (`CLIENT KILL TYPE normal` ends them); a machine
    /// that is restored from a snapshot together with its processes; a proxy that changes servers
    /// within a connection; and servers' clocks that jump while locks are held or while a server
    /// abstains.
    ///
    /// `cargo run --example redlock` kills one of three servers under a holder and brings it back,
    /// empty.
    ///
    /// The longest is 30 days. The servers remember the longest that any program gave, also after
    /// it has ended.
    ///
    /// Defaults to the lease, and to zero for a single server: what that forgets, it forgets for
    /// every program.
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
    pub const fn format(mut self, format: Format) -> Self {
        self.options.kind = format.kind();
        self
    }

    /// Sets how often a waiter checks a lock of [`Format::Plain`], whose release may send no
    /// message: after a random pause within this range, again and again.
    ///
    /// A short pause notices sooner that a lock is free; a long one costs fewer commands.
    /// [`connect`](Self::connect) refuses this option together with [`Format::Redisson`], whose
    /// releases wake the waiters.
    ///
    /// Defaults to 50 to 200 ms.
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
    pub const fn fence_source(mut self, source: FenceSource) -> Self {
        self.options.fence_source = source;
        self
    }

    /// Sets how many replicas of each server have to acknowledge each acquire and each renewal
    /// before it counts, and how long they may take, in whole milliseconds.
    ///
    /// The locker sends Redis' `WAIT` after every acquire and every batch of renewals, on a
    /// connection of its own; one `WAIT` covers all acquires that are in flight. If too few
    /// replicas acknowledge in time, an acquire is undone and counts as unanswered
    /// ([`Error::Unavailable`] says how many did), and a renewal counts as one failure. With
    /// several servers, a server's vote counts once its own replicas have acknowledged.
    ///
    /// With it, a lock survives the loss of its server if a replica that acknowledged is promoted.
    /// But `WAIT` does not make Redis consistent. A failover may promote a replica that has *not*
    /// acknowledged, a replica that restarts may have forgotten, and a master that was cut off
    /// keeps granting locks for as long as enough replicas are on its side. Requiring all replicas
    /// that may be promoted protects against the first of these, but then one replica that is away
    /// stops all locking. Releases do not wait for replicas: a failover may bring a released lock
    /// back, for a lease at most.
    ///
    /// What a failover loses without it was measured with three Sentinels and a replica on the same
    /// machine, twelve failovers of each kind (`./dev soak failovers`). `SENTINEL FAILOVER` lost
    /// the writes of the last 1.0 s (median; 1.2 s at the most): the Sentinels promote the replica,
    /// and announce it a second later. A master that was killed (`kill -9`) or stopped lost none:
    /// the machine had already sent on every write that the master had answered. A machine that
    /// fails loses the writes that it has not sent yet. Each holder of a lost lock learns of it at
    /// its next renewal, and another holder may be inside until then. With this option and one
    /// replica no granted lock was lost. After a failover nothing is granted until the new master
    /// has its replicas.
    ///
    /// Nor does `WAIT` look at clocks. From version 7 on, a server sends its replicas the end of a
    /// lease as a time of day, and each replica compares that with its own clock. A replica whose
    /// clock is ahead by 4 s acknowledges all the same and, once promoted, gives the lock to the
    /// next caller 4 s too early. A replica whose clock is behind keeps it longer. Keep the clocks
    /// of servers and replicas within a tenth of the lease of each other. The locker does not
    /// compare them: ask both for `TIME` at once.
    ///
    /// It costs a round trip to the replicas for each acquire. The time has to be shorter than
    /// [`command_timeout`](Self::command_timeout), and everything that waits for an acquire may
    /// take that much longer. A short time gives up locks when replicas lag; a long one makes
    /// callers wait for replicas that are away.
    ///
    /// Defaults to 0: replicas are not asked.
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
    pub const fn reentry(mut self, reentry: Reentry) -> Self {
        self.options.reentry = reentry;
        self
    }

    /// Sets what the locker calls itself, such as the name of a service and its instance: text of 1
    /// to 128 bytes, not blank, without control characters.
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
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.options.label = Some(label.into());
        self
    }

    /// Validates the options and connects. A server has to be Redis 6.2 or newer, or any Valkey.
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
    pub fn blocking_connect(self) -> Result<Locker, Error> {
        let prefix = self.prefix.as_str().into();
        let (settings, targets) = self.validate()?;
        Ok(Locker {
            shared: Arc::new(SharedSession::blocking_connect(settings, targets)?),
            prefix,
        })
    }

    /// Validates the options, and connects in the background: it waits for no server, and no server
    /// has to run yet. It may be called inside and outside of async code.
    ///
    /// The first [`Lock::lock`] then waits as in any other outage, for
    /// [`outage_tolerance`](Self::outage_tolerance) at most, and [`Lock::try_lock`] for half a
    /// [`command_timeout`](Self::command_timeout).
    ///
    /// It is for programs that have to start before their servers do. Problems that make
    /// [`connect`](Self::connect) fail, such as wrong credentials, an untrusted certificate or a
    /// server that is too old, are reported only by the [`Error::Unavailable`] of those calls and,
    /// except for certificates, by a WARN. Nothing reports that there are too few replicas.
    ///
    /// # Errors
    /// [`Error::Config`] for an option or an address that cannot be used, and for a server in
    /// memory; [`Error::Unavailable`] if no thread can be started.
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
