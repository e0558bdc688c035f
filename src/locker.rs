//! The locker: what a program keeps, and the builder that makes it.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::credentials::{AnyProvider, CredentialProvider};
use crate::error::Error;
use crate::foreign::contained;
use crate::key::Key;
use crate::lock::Lock;
use crate::multi::MultiLock;
#[cfg(feature = "tls")]
use crate::node::Tls;
use crate::node::{Access, Provider, Target};
use crate::options::{Fencing, Format, Options, Reentry, Replicas, Settings};
use crate::preflight::Preflight;
use crate::session::Alive;
use crate::stats::Stats;
#[cfg(feature = "testing")]
use crate::testing;

/// The connection to the servers, from which a program gets its locks. Cheap to clone; make one and keep it.
///
/// It runs a thread of its own, "lockhound", which talks to the servers and renews what is held, whatever the program's
/// own runtime does. The thread ends when the last clone, [`Lock`] and [`Guard`](crate::Guard) is dropped, or with
/// [`close`](Self::close). All lockers of a process share a second one, "lockhound-alarm", which fires the tokens of what
/// ends and which ends with the last locker.
///
/// A fork does not copy that thread: in a process that was forked after the connect, every operation returns
/// [`Error::Forked`], and what is dropped there releases nothing. Connect after the fork.
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
#[derive(Debug, Clone)]
pub struct Locker {
    alive: Arc<Alive>,
}

impl Locker {
    /// Connects to one server with the default options; see [`LockerBuilder::connect`].
    ///
    /// # Errors
    /// As [`LockerBuilder::connect`].
    ///
    /// # Cancel safety
    /// Dropping the future gives the attempt up and ends its thread.
    pub async fn connect(url: impl AsRef<str>) -> Result<Self, Error> {
        Self::builder().node(url).connect().await
    }

    /// [`connect`](Self::connect) for threads without async code.
    ///
    /// # Errors
    /// As [`LockerBuilder::connect`].
    ///
    /// # Panics
    /// In async code, which it would block.
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

    /// Starts with the default options.
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

    /// The lock of this name. Asks no server; an empty name is reported by [`Lock::lock`].
    ///
    /// Everybody who gives the same name to the same server shares the lock: other processes, and those with whom the
    /// [`Format`] is shared, such as Redisson's `getLock`.
    pub fn get(&self, key: impl Into<Key>) -> Lock {
        Lock::new(Arc::clone(&self.alive), key.into())
    }

    /// The locks of these names as one: all of them are taken, or none. Asks no server; an empty list, an empty name and
    /// one that is given twice are reported by [`MultiLock::lock`].
    ///
    /// In a cluster those of one slot are taken in one step, and those of several slots one slot after the other, for a
    /// moment: where one of them is not to be had, those before it are given back at once. Names with the same text in
    /// braces, such as `{order:7}:stock` and `{order:7}:payment`, are in one slot.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(locks: lockhound::Locker) -> Result<(), lockhound::Error> {
    /// let accounts = locks.all(["account:1", "account:2"]);
    /// let guard = accounts.lock().await?;
    /// // Nobody else has either of them.
    /// guard.unlock().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn all<K: Into<Key>>(&self, keys: impl IntoIterator<Item = K>) -> MultiLock {
        MultiLock::new(Arc::clone(&self.alive), keys.into_iter().map(Into::into).collect())
    }

    /// The identity of this locker: the `uuid` of the `uuid:task-id` that it writes. New at every connect.
    pub fn id(&self) -> Uuid {
        self.alive.session().id()
    }

    /// What this locker has done and is doing. Cheap: it counts nothing that is not counted already. All zero in a
    /// forked process.
    pub fn stats(&self) -> Stats {
        self.alive.session().stats()
    }

    /// Asks the servers what they keep of a lock, and returns a report with a verdict for each promise: whether locks
    /// survive a restart, a failover and a full memory, whether waiters are woken by messages, whether fences grow, and
    /// which rights are missing. It is for operators, and for pipelines that deploy; see
    /// [`preflight`](crate::preflight).
    ///
    /// The user of a server may have rights on some names only, as `~app:*`. [`preflight_of`](Self::preflight_of) is
    /// told the name of a lock, and finds out whether the user has them; this one makes a name up, and if the user has
    /// no rights on it, nothing is known of the others.
    ///
    /// It takes no lock and writes no key. On each server it opens a connection of its own,
    /// `lockhound:preflight:<uuid>`, asks `HELLO`, `INFO`, `CONFIG GET` and `TIME`, and whether the user has the rights
    /// that it needs: by `ACL DRYRUN`, or, where the user may not ask that, by trying. It tries commands that read;
    /// what writes is called by a script that may not write, and which is refused for one reason or the other. The
    /// server keeps the text of that script, as of any, and a refusal in its `ACL LOG`; and this subscribes for a
    /// moment to the channel of the name. Servers before version 7 have no such scripts: there the rights that scripts
    /// need are unknown, unless the user may ask `ACL DRYRUN`.
    ///
    /// Connecting may take [`connect_timeout`](LockerBuilder::connect_timeout), and the answers as long again: what is
    /// not answered by then is unknown, and so is what the user may not ask. A server that is not reached is a line of
    /// the report and no error.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Forked`], or [`Error::WatchdogPanicked`].
    ///
    /// # Cancel safety
    /// Dropping the future drops no more than the report: the servers are asked to the end, and nothing is left on
    /// them.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(locks: lockhound::Locker) -> Result<(), lockhound::Error> {
    /// let report = locks.preflight().await?;
    /// println!("{report}");
    /// for verdict in report.problems() {
    ///     eprintln!("{}: {}", verdict.promise, verdict.answer);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn preflight(&self) -> Result<Preflight, Error> {
        self.alive.session().preflight(Vec::new()).await
    }

    /// [`preflight`](Self::preflight), of locks with these names: one for each pattern of names that the user has
    /// rights on.
    ///
    /// # Errors
    /// As [`preflight`](Self::preflight); [`Error::Config`] for an empty name.
    ///
    /// # Cancel safety
    /// As [`preflight`](Self::preflight).
    pub async fn preflight_of<K: Into<Key>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Preflight, Error> {
        let keys = keys.into_iter().map(Into::into).collect();
        self.alive.session().preflight(keys).await
    }

    /// [`preflight`](Self::preflight) for threads without async code.
    ///
    /// # Errors
    /// As [`preflight`](Self::preflight); [`Error::Config`] over servers in memory, where the locker lives in its
    /// caller's runtime.
    ///
    /// # Panics
    /// In async code, which it would block.
    pub fn blocking_preflight(&self) -> Result<Preflight, Error> {
        let session = self.alive.session();
        session.block_on(session.preflight(Vec::new()))
    }

    /// [`preflight_of`](Self::preflight_of) for threads without async code.
    ///
    /// # Errors
    /// As [`blocking_preflight`](Self::blocking_preflight); [`Error::Config`] for an empty name.
    ///
    /// # Panics
    /// In async code, which it would block.
    pub fn blocking_preflight_of<K: Into<Key>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Preflight, Error> {
        let keys = keys.into_iter().map(Into::into).collect();
        let session = self.alive.session();
        session.block_on(session.preflight(keys))
    }

    /// Closes the locker, of which there may be clones, for all of them.
    ///
    /// New work is refused and waiters end, both with [`Error::Closed`]. Every token fires with
    /// [`Loss::Closed`](crate::Loss::Closed) and nothing is renewed any more. It then waits for the guards that are still
    /// held, up to the lease or five seconds, whichever is shorter: a key is released when its last guard goes, and the
    /// others run out with their lease. At last it quits the connections.
    ///
    /// Call it, or [`blocking_close`](Self::blocking_close), at the end of `main`, after the guards are gone. A program
    /// that ends without it ends with a best effort: each thread that dropped a guard waits when it ends, up to 100 ms,
    /// until the release is answered; so does `main`, for all that is under way. [`Guard`](crate::Guard#dropping) says
    /// what that does not cover. In a forked process there is nothing to be closed.
    ///
    /// # Cancel safety
    /// Dropping the future drops no more than the wait: closing goes on.
    pub async fn close(&self) {
        self.alive.session().close().await;
    }

    /// [`close`](Self::close) for threads without async code.
    ///
    /// # Panics
    /// In async code, which it would block; over servers in memory, where the locker lives in its caller's runtime.
    pub fn blocking_close(&self) {
        let session = self.alive.session();
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

/// The options of a [`Locker`]. They are validated once, by [`connect`](Self::connect), and nothing is silently corrected.
#[derive(Clone, Default)]
#[must_use = "a builder does nothing until `connect` or `blocking_connect`"]
pub struct LockerBuilder {
    nodes: Vec<Place>,
    options: Options,
    provider: Option<Arc<dyn AnyProvider>>,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

impl LockerBuilder {
    /// The address of a server: `redis://[user:password@]host[:port][/db]`; with the feature `tls` the same with
    /// `rediss://`, whose connections are encrypted; with the feature `unix`
    /// `redis+unix://[user:password@host]/path[?db=n]`. Special characters in the credentials are percent-encoded. An
    /// IPv6 address stands in brackets. `valkey://` is another word for `redis://`, `valkeys://` and `redis+tls://` are
    /// others for `rediss://`.
    ///
    /// `redis-cluster://[user:password@]host[:port][?node=host:port&..]` is a cluster, of which one server that is
    /// named has to answer; it stands alone. Names of its locks have no braces, or one pair with something inside:
    /// another's channel would be in another slot, and [`Error::Config`] says so when it is locked.
    ///
    /// `redis-sentinel://[user:password@]host[:port][/db]?sentinelServiceName=name[&node=host:port&..]` is the master
    /// that these Sentinels name, asked at each connect; `sentinelUsername` and `sentinelPassword` are for the
    /// Sentinels themselves. With `rediss-` in the place of `redis-`, connections of both are encrypted.
    ///
    /// Called again, it adds further servers, which have to be independent masters: a lock is then held while more than
    /// half of them say so (Redlock), and nothing is lost while fewer than half are away. Three or five are usual; an even
    /// count bears no more failures than the odd one below it, and is warned about. Each has to be reached by every
    /// program that shares the locks, and is best named in the same order by all of them: contenders that get in each
    /// other's way ask the first one before the others. See [`restart_quarantine`](Self::restart_quarantine).
    pub fn node(mut self, url: impl AsRef<str>) -> Self {
        self.nodes.push(Place::Url(url.as_ref().to_owned()));
        self
    }

    /// A server in memory, in the place of one at an address: see [`testing::Server`].
    ///
    /// Called again, it adds further servers. A locker has servers in memory or at addresses, not of both kinds.
    #[cfg(feature = "testing")]
    pub fn memory(mut self, server: &testing::Server) -> Self {
        self.nodes.push(Place::Memory(server.clone()));
        self
    }

    /// How servers at encrypted addresses (`rediss://`) are recognised, and how this program shows who it is. For all
    /// servers of the locker. Refused where no address is an encrypted one.
    ///
    /// Defaults to the CAs of the system, and no client certificate.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: impl Into<Tls>) -> Self {
        self.tls = Some(tls.into());
        self
    }

    /// Where the credentials come from, at each connect and reconnect, in the place of those in addresses: for
    /// passwords that change while the program runs. Refused beside an address with a password.
    ///
    /// A lock is held while connections are made anew with a new password, like in any other short outage. If the
    /// provider gives a password that a server no longer takes, a WARN tells so, and so does [`Error::Unavailable`]
    /// after [`outage_tolerance`](Self::outage_tolerance).
    ///
    /// Defaults to the credentials in the addresses.
    pub fn credentials(mut self, provider: impl CredentialProvider) -> Self {
        self.provider = Some(Arc::new(provider));
        self
    }

    /// For how long the server keeps a lock that nobody renews, from 100 ms to 30 days.
    ///
    /// It is renewed at every third of it. A short one frees the lock of a dead holder sooner; a long one bears longer
    /// outages and costs fewer renewals. Clients that share a lock should share the lease.
    ///
    /// Defaults to 30 seconds, as Redisson's `lockWatchdogTimeout`.
    pub const fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease;
        self
    }

    /// How long [`connect`](Self::connect) may take. It tries again for as long, so that it waits for servers that
    /// start a moment later, but not where a server says no: to the credentials, say, or with a certificate that is not
    /// trusted.
    ///
    /// A short one reports a dead server sooner; a long one bears a slow network, and servers that are slow to start.
    ///
    /// Defaults to 5 seconds.
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.options.connect_timeout = timeout;
        self
    }

    /// How long one command may take before its outcome counts as unknown. It has to be shorter than
    /// lease / (`renewal_failures` + 1).
    ///
    /// A short one finds a dead connection sooner, and takes a slow server for a dead one; a long one delays
    /// [`Lock::try_lock`] and [`Guard::unlock`](crate::Guard::unlock) during outages.
    ///
    /// Defaults to a tenth of the lease, at most 3 seconds.
    pub const fn command_timeout(mut self, timeout: Duration) -> Self {
        self.options.command_timeout = Some(timeout);
        self
    }

    /// How many renewals in a row have to fail until the token of a lock fires; 1 or more.
    ///
    /// Renewals are lease / (this + 1) apart. More of them bear more single failures and cost more commands; the token
    /// fires at the end of validity in any case.
    ///
    /// Defaults to 2: with a lease of 30 s the token fires 23 s after the last success.
    pub const fn renewal_failures(mut self, failures: u32) -> Self {
        self.options.renewal_failures = failures;
        self
    }

    /// For how long [`Lock::lock`] and [`Lock::try_lock_for`] ride out servers that do not answer.
    ///
    /// It counts from the first round that had no answer. A long one survives failovers; a short one lets callers do
    /// something else sooner. All waiters of a locker end together, but for those that came less than a
    /// [`command_timeout`](Self::command_timeout) ago, or less than this, if it is shorter: each call tries for at
    /// least so long, however long the outage already lasts. Zero ends a wait with the first round that has no answer.
    ///
    /// Defaults to one lease; with a [`restart_quarantine`](Self::restart_quarantine) to an eighth and two seconds more than
    /// that, so that servers which begin anew are waited for.
    pub const fn outage_tolerance(mut self, tolerance: Duration) -> Self {
        self.options.outage_tolerance = Some(tolerance);
        self
    }

    /// The range of the random pause after a round that had no answer from a majority, and of the one with which waiters
    /// poll in [`Format::Plain`].
    ///
    /// A short one finds a server that is back, or a lock that is free, sooner; a long one spares a server in trouble.
    ///
    /// Defaults to 50 to 200 ms.
    pub const fn retry_delay(mut self, range: Range<Duration>) -> Self {
        self.options.retry_delay = range;
        self
    }

    /// With several servers: for how long a server at the least abstains that may have forgotten who holds what. Redis calls
    /// this *delayed restarts*.
    ///
    /// Each server keeps a *memory*, the key `lockhound_memory`, which is gone or out of date with its data: after a restart,
    /// a failover, a `FLUSHALL`. Then it begins anew. It abstains until enough of the others list it, and then for the longest
    /// `restart_quarantine` that any program with this option has announced to any of them, and a hundredth more. Until then
    /// its vote counts as missing: if that leaves no majority, as once in a fresh deployment, [`Lock::lock`] waits and
    /// [`Error::Unavailable`] says which server abstains. No clock of a server, and no uptime, has a part in it.
    ///
    /// Servers whose votes make a majority list each other. So an address that leads to another server than it does in other
    /// programs gives no second majority, and every program has to name the same servers: [`connect`](Self::connect) refuses
    /// another number of them.
    ///
    /// No lease of this locker may be longer. Clients of other languages announce nothing: it must not be shorter than their
    /// longest lease. Zero is for servers that forget nothing (`appendonly yes` and `appendfsync always`): they keep no
    /// memory, and addresses are compared within this process only.
    ///
    /// Not covered: the eviction or deletion of single keys, `SWAPDB`, a server that is made a replica of another and a master
    /// again before any locker has asked it for anything and without a connection ending (`CLIENT KILL TYPE normal` ends
    /// them), a machine that is set back to a snapshot with its
    /// processes, a proxy that changes servers within a connection, and clocks of servers that jump while locks stand.
    ///
    /// Defaults to the lease; to zero for a single server, which forgets its locks for everybody.
    pub const fn restart_quarantine(mut self, quarantine: Duration) -> Self {
        self.options.restart_quarantine = Some(quarantine);
        self
    }

    /// How locks stand on the server: who else can share them.
    ///
    /// [`Format::Redisson`] shares with Redisson and is waited for by message; [`Format::Plain`] shares with Redlock clients of
    /// other languages and is polled. Under one key the two exclude each other; who waits in the one for a holder in the
    /// other may be refused with [`Error::Server`].
    ///
    /// Defaults to [`Format::Redisson`].
    pub const fn format(mut self, format: Format) -> Self {
        self.options.format = format;
        self
    }

    /// How fences are counted, and with whom they are one sequence.
    ///
    /// With [`Fencing::Lockhound`] fences outlast the loss of a server's data, and several servers agree on them.
    /// With [`Fencing::Redisson`] they are one sequence with the tokens of `RFencedLock`, for a resource that checks
    /// those of JVMs too; that is for one server, and forgets what the server forgets. Everybody who shares a lock
    /// has to use the same.
    ///
    /// Defaults to [`Fencing::Lockhound`].
    pub const fn fencing(mut self, fencing: Fencing) -> Self {
        self.options.fencing = fencing;
        self
    }

    /// How many replicas of each server have to acknowledge a lock before it counts as taken, and each renewal before it
    /// counts as one, and how long they may take, in whole milliseconds. This is Redis' WAIT, after every acquire and
    /// every batch of renewals, on a connection of its own; one WAIT covers all acquires that are under way.
    ///
    /// Where too few acknowledge in time, an acquire is undone and counts as unanswered
    /// ([`Error::Unavailable`] says how many did), and a renewal has failed once. With several servers, each one's yes
    /// counts once its own replicas have acknowledged.
    ///
    /// What it buys: a lock survives the loss of its server if a replica that acknowledged is promoted. What it does not:
    /// WAIT does not make Redis consistent. A failover may promote a replica that has *not* acknowledged, a replica that
    /// restarts may have forgotten, and a master that was cut off goes on granting locks for as long as enough replicas are
    /// on its side. A count of all replicas that may be promoted is safe against the first, and one of them that is away
    /// then stops all locking. Releases are not waited for: a failover may bring a released lock back, for a lease at most.
    ///
    /// Nor does WAIT look at clocks. From version 7 on a server sends its replicas the end of a lease as a time of day, and
    /// each counts it by its own clock: one that is ahead by 4 s counts the last 4 s of each lease as over, acknowledges all
    /// the same, and, promoted, gives the lock to the next one by so much too early. One that is behind keeps it longer.
    /// Keep the clocks of servers and replicas within a tenth of the lease of each other. Nothing here compares them: ask
    /// both for `TIME` at once.
    ///
    /// Its price is a round trip to the replicas for each acquire. It must be shorter than
    /// [`command_timeout`](Self::command_timeout), and everything that waits for an acquire may take so much longer. A
    /// short timeout gives locks up when replicas lag; a long one makes callers wait for replicas that are away.
    ///
    /// Defaults to 0: replicas are not asked.
    pub const fn replicas(mut self, count: u32, timeout: Duration) -> Self {
        self.options.replicas = Replicas { count, timeout };
        self
    }

    /// For how long this locker's thread stays awake while the answer to a lone caller, or its next question, is awaited, in
    /// the manner of Linux's busy polling of sockets: to wake a thread that sleeps takes about as long as a server nearby
    /// takes for a lock.
    ///
    /// It pays if the server answers within this time; the locker learns whether it does, and whether callers are many, and
    /// else sleeps at once but for one time in a hundred. It takes CPU time that would be idle; where other programs want
    /// every CPU, a caller that locks and unlocks without a pause takes a part of one from them. Zero is for those. With one CPU
    /// there is none.
    ///
    /// Defaults to 150 microseconds; 10 ms at most.
    pub const fn busy_poll(mut self, time: Duration) -> Self {
        self.options.busy_poll = time;
        self
    }

    /// As whom calls lock that name no owner, and so what they may enter again.
    ///
    /// [`Reentry::Task`] lets nested code enter again without a word, and branches of one task too, where they take guards.
    /// [`Reentry::Scope`] and [`Reentry::Never`] make such branches wait for each other, and nested code that is in no scope
    /// wait for itself, which is warned about. [`Lock::run`] excludes branches under each of them.
    ///
    /// Defaults to [`Reentry::Task`].
    pub const fn reentry(mut self, reentry: Reentry) -> Self {
        self.options.reentry = reentry;
        self
    }

    /// Validates the options and connects. A server has to be version 6.2 or newer.
    ///
    /// # Errors
    /// [`Error::Config`] for an option or an address that cannot be used, or a server that is too old or in cluster mode;
    /// [`Error::Unavailable`] if no majority of the servers answers within [`connect_timeout`](Self::connect_timeout);
    /// the others may come later; the same, at once, if there can be no majority because of certificates that are not
    /// trusted; [`Error::Server`] if it refuses the credentials. A password is never shown: it reads
    /// `***`, and of an address that cannot be used nothing is shown but its scheme.
    ///
    /// # Cancel safety
    /// Dropping the future gives the attempt up and ends its thread.
    pub async fn connect(self) -> Result<Locker, Error> {
        let (settings, targets) = self.validate()?;
        Ok(Locker { alive: Arc::new(Alive::connect(settings, targets).await?) })
    }

    /// [`connect`](Self::connect) for threads without async code.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Panics
    /// In async code, which it would block.
    pub fn blocking_connect(self) -> Result<Locker, Error> {
        let (settings, targets) = self.validate()?;
        Ok(Locker { alive: Arc::new(Alive::blocking_connect(settings, targets)?) })
    }

    /// Validates the options, and connects in the background: no server has to be there yet, and none is waited for.
    /// The first [`Lock::lock`] then waits as in any other outage, for [`outage_tolerance`](Self::outage_tolerance) at
    /// the most, and [`Lock::try_lock`] for half a [`command_timeout`](Self::command_timeout). Callable from async code
    /// and outside of it.
    ///
    /// For programs that have to start before their servers do. What [`connect`](Self::connect) would refuse, as wrong
    /// credentials, a certificate that is not trusted or a server that is too old, is only in the
    /// [`Error::Unavailable`] of those calls, and, but for certificates, in a WARN; that too few replicas are there is
    /// not told at all.
    ///
    /// # Errors
    /// [`Error::Config`] for an option or an address that cannot be used, and for a server in memory;
    /// [`Error::Unavailable`] if no thread can be started.
    pub fn connect_lazy(self) -> Result<Locker, Error> {
        let (settings, targets) = self.validate()?;
        Ok(Locker { alive: Arc::new(Alive::connect_lazily(settings, targets)?) })
    }

    fn validate(self) -> Result<(Settings, Vec<Target>), Error> {
        let settings = self.options.validate(self.nodes.len())?;
        let provider = self.provider.map(|provider| Provider::new(provider, settings.connect_timeout / 2));
        #[cfg(feature = "testing")]
        let has_provider = provider.is_some();
        let access = Access::default().with_provider(provider);
        #[cfg(feature = "tls")]
        let access = access.with_tls(self.tls);
        let targets = self.nodes.iter().map(|place| place.target(&access)).collect::<Result<Vec<_>, _>>()?;
        #[cfg(feature = "testing")]
        check_memory(&settings, &targets, has_provider)?;
        if !targets.is_empty() {
            access.check_use()?;
        }
        if targets.len() > 1 && targets.iter().any(Target::is_cluster) {
            let problem =
                "a cluster is one place for a lock, which other servers cannot vote with: name the cluster alone";
            return Err(Error::config("node", problem));
        }
        if targets.iter().any(Target::is_cluster) && !settings.restart_quarantine.is_zero() {
            let problem = "a cluster keeps no memory of its restarts, and no quarantine: leave it out, or name independent \
                           servers";
            return Err(Error::config("restart_quarantine", problem));
        }
        match targets.len() {
            0 => return Err(Error::config("node", "no server is given; name one with .node(\"redis://host:6379\")")),
            nodes if nodes % 2 == 0 => contained(|| {
                tracing::warn!(
                    nodes,
                    "an even number of servers bears no more failures than one server less, and costs one more: {} of them \
                 may be away, and {} have to answer",
                    (nodes - 1) / 2,
                    nodes / 2 + 1
                );
            }),
            _ => {}
        }
        Ok((settings, targets))
    }
}

/// What a server in memory is not there for.
#[cfg(feature = "testing")]
fn check_memory(settings: &Settings, targets: &[Target], has_provider: bool) -> Result<(), Error> {
    let in_memory = targets.iter().filter(|target| target.is_in_memory()).count();
    if in_memory > 0 && has_provider {
        return Err(Error::config("credentials", "a server in memory asks for none: leave the provider out"));
    }
    if in_memory > 0 && settings.replicas.is_some() {
        return Err(Error::config("replicas", "a server in memory has no replicas that could acknowledge a lock"));
    }
    if in_memory > 0 && in_memory < targets.len() {
        let problem =
            "servers in memory and servers at addresses go by different clocks: give a locker servers of one kind";
        return Err(Error::config("memory", problem));
    }
    Ok(())
}

/// Where a server is.
#[derive(Clone)]
enum Place {
    Url(String),
    #[cfg(feature = "testing")]
    Memory(testing::Server),
}

impl Place {
    fn target(&self, access: &Access) -> Result<Target, Error> {
        match self {
            Self::Url(url) => Target::parse(url, access),
            #[cfg(feature = "testing")]
            Self::Memory(server) => Ok(Target::Memory(server.clone())),
        }
    }

    /// What may be shown of it.
    fn name(&self) -> String {
        match self {
            Self::Url(url) => Target::name_of(url).map_or_else(|error| error.to_string(), |name| name.to_string()),
            #[cfg(feature = "testing")]
            Self::Memory(server) => server.name().to_string(),
        }
    }
}

impl fmt::Debug for LockerBuilder {
    /// Shows nothing of an address that cannot be used, since it may hold a password anywhere.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<String> = self.nodes.iter().map(Place::name).collect();
        let mut shown = f.debug_struct("LockerBuilder");
        shown.field("nodes", &nodes).field("options", &self.options).field("provider", &self.provider.is_some());
        #[cfg(feature = "tls")]
        shown.field("tls", &self.tls);
        shown.finish()
    }
}
