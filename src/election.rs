//! The election: candidates, their leadership, and observers.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::fence::Fence;
use crate::foreign;
use crate::handle::{GuardInner, Handle, Wait};
use crate::key::Key;
use crate::kind::ELECTION;
use crate::lock::Section;
use crate::op::KeyLeader;
use crate::options::Reentry;
use crate::session::{Herald, LeaderWatch, SharedSession};

/// An election with a name: of all candidates one leads, and others see who it is.
///
/// It is a [`Lock`](crate::Lock) with a value beside it, so all that is promised for locks holds
/// for leaders, except that no leadership is re-entrant. Cheap to clone; the handle by itself is no
/// candidate.
///
/// # Leaders
/// The holder of the lock `name` leads. Its *term* is the fence of that hold, so each leader has a
/// greater term than those before it. A leader that loses contact is notified of it before another
/// one leads; one that was paused, or whose lock was deleted on the server, may learn too late: let
/// the resource that carries out its orders refuse terms below the highest that it has seen.
///
/// Each campaign is an owner of its own: two campaigns of a task are two candidates.
/// `locks.get(name)` and Redisson's `getLock(name)` are candidates too, and so keep others from
/// leading. Statistics count campaigns and leaderships under the kind `election`.
///
/// # Values
/// A leader has a value, for example its address. It is at `lockhound_leader:{name}` on the server,
/// written only while its leader has the lock, and believed only while the lock has the leader's
/// field: the value of an earlier leader is never taken for that of a later one. There is none
/// between the grant and the first write, a round trip later, nor for leaders that took the lock by
/// [`get`](crate::Locker::get) or on a JVM. If it cannot be written, because the user has no right
/// to it or the server is out of memory, that is logged, and the leader leads without a value.
///
/// # Observers
/// An observer is notified of a leader that resigns or proclaims by a message. Nothing announces
/// the end of a lease, or a leader on a JVM: an observer polls after a sixth of its
/// locker's lease. Of changes that follow each other within a round trip it may see only the last.
///
/// # Several servers
/// Leaders are elected by a majority, as locks are held. An observer believes in a leader that a
/// majority of the servers names, and takes the value from any of them.
///
/// # Examples
/// ```no_run
/// # async fn example(locks: lockhound::Locker) -> Result<(), lockhound::Error> {
/// # async fn schedule(_: lockhound::Fence) {}
/// let election = locks.election("scheduler");
/// election.run("10.0.0.7:8080", |term| async move { schedule(term.fence()).await }).await?;
///
/// let mut observer = election.observe().await?;
/// loop {
///     match observer.changed().await? {
///         Some(leader) => println!("{:?} leads, term {:?}", leader.value(), leader.term()),
///         None => println!("there is no leader"),
///     }
/// }
/// # }
/// ```
#[derive(Clone)]
pub struct Election {
    handle: Handle,
    key: Key,
}

impl Election {
    pub(crate) fn new(shared: Arc<SharedSession>, key: Key) -> Self {
        let mut handle = Handle::of_kind(shared, key.to_lock(), &ELECTION);
        handle.options.reentry = Some(Reentry::Never);
        Self { handle, key }
    }

    /// Returns the name of the election.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Waits until it leads, and proclaims this value.
    ///
    /// It waits through outages of the servers.
    ///
    /// It returns once the value is written, or cannot be written: then that is logged, and the
    /// leader leads without a value (see [`Election`]).
    ///
    /// # Errors
    /// An error that waiting does not cure: [`Error::Server`], [`Error::Config`], also for a locker
    /// with [`Format::Plain`](crate::Format::Plain), [`Error::Closed`], [`Error::Forked`] and
    /// [`Error::WatchdogPanicked`]. It holds nothing then.
    ///
    /// # Cancel safety
    /// Dropping the future ends the campaign, and gives back what it may have won.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let leadership = locks.election("scheduler").campaign("10.0.0.7:8080").await?;
    /// println!("term {}", leadership.term().get()); // send it with each order: it only grows
    /// leadership.check()?; // before an order that must not come late
    /// leadership.resign().await
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn campaign(&self, value: impl Into<String>) -> Result<Leadership, Error> {
        let value = value.into();
        self.handle.session().check_election()?;
        loop {
            match self.handle.take(Wait::Always).await {
                Ok(Some(taken)) => return Ok(Leadership::begin(taken, value).await),
                Ok(None) => return Err(Error::Closed),
                // The call has waited for the outage already; this paces calls that fail at once.
                Err(Error::Unavailable { .. }) => self.handle.session().pause_campaign().await,
                Err(error) => return Err(error),
            }
        }
    }

    /// Leads if there is no leader, in one attempt, and proclaims this value.
    ///
    /// Returns `None` if somebody else leads.
    ///
    /// # Errors
    /// As [`campaign`](Self::campaign), and [`Error::Unavailable`].
    ///
    /// # Cancel safety
    /// As [`campaign`](Self::campaign).
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let election = locks.election("scheduler");
    /// let leadership = election.campaign("10.0.0.7:8080").await?;
    /// assert!(election.try_campaign("10.0.0.8:8080").await?.is_none()); // even in the same task
    /// leadership.resign().await
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn try_campaign(
        &self,
        value: impl Into<String>,
    ) -> Result<Option<Leadership>, Error> {
        let value = value.into();
        self.handle.session().check_election()?;
        match self.handle.take(Wait::Never).await? {
            Some(taken) => Ok(Some(Leadership::begin(taken, value).await)),
            None => Ok(None),
        }
    }

    /// Campaigns, runs `lead` while it leads, and resigns.
    ///
    /// If the leadership is lost meanwhile, it drops `lead` at its current `await`, and campaigns
    /// again: until one call of `lead` returns.
    ///
    /// # Errors
    /// As [`campaign`](Self::campaign), and [`Error::Lost`] if `lead` has returned but the
    /// leadership was lost before it could resign; its value is dropped then, and that is logged. A
    /// resignation that is not confirmed is only logged.
    ///
    /// # Cancel safety
    /// Dropping the future drops `lead`, and resigns.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let election = locks.election("scheduler");
    /// // The closure is called again if the leadership is lost while it runs.
    /// let jobs = election.run("10.0.0.7:8080", |_term| async { 3 }).await?;
    /// assert_eq!(jobs, 3);
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn run<T, F, Fut>(&self, value: impl Into<String>, mut lead: F) -> Result<T, Error>
    where
        F: FnMut(Section) -> Fut,
        Fut: Future<Output = T>,
    {
        let value: Arc<str> = value.into().into();
        self.handle.session().check_election()?;
        loop {
            let mut returned = false;
            let term = self.handle.run(
                Wait::Always,
                |view, scope| {
                    let (lead, returned, value) = (&mut lead, &mut returned, Arc::clone(&value));
                    async move {
                        let session = self.handle.session();
                        let _herald = session.herald(view.first().hold(), value).await;
                        let done = lead(Section::new(view, scope)).await;
                        *returned = true;
                        done
                    }
                },
                |_| None,
            );
            // Boxed: with what it leads, it is large.
            match Box::pin(term).await {
                Ok(done) => return done.ok_or(Error::Closed),
                Err(Error::Lost { .. }) if !returned => {}
                Err(Error::Unavailable { .. }) => self.handle.session().pause_campaign().await,
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns who leads now, according to the servers; `None` if there is no leader.
    ///
    /// # Errors
    /// [`Error::Unavailable`], with several servers also if those that do not answer decide;
    /// [`Error::Server`], also if the name holds something other than a lock; [`Error::Config`] for
    /// an empty name and a locker with [`Format::Plain`](crate::Format::Plain); [`Error::Closed`].
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
    /// let election = locks.election("scheduler");
    /// assert!(election.leader().await?.is_none());
    /// let leadership = election.campaign("10.0.0.7:8080").await?;
    /// let leader = election.leader().await?.expect("it leads");
    /// assert_eq!(leader.value(), Some("10.0.0.7:8080"));
    /// assert_eq!(leader.term(), Some(leadership.term()));
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        self.begin().await?;
        let session = self.handle.session();
        let leader = session.leader(&self.handle.keys[0]).await;
        leader
            .map(|leader| leader.map(Leader::new))
            .map_err(|error| error.of(slice::from_ref(&self.key)))
    }

    /// Begins to observe who leads.
    ///
    /// # Errors
    /// As [`leader`](Self::leader).
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
    /// let election = locks.election("scheduler");
    /// let mut observer = election.observe().await?;
    /// assert!(observer.changed().await?.is_none()); // first as it is now: there is no leader
    /// let leadership = election.campaign("10.0.0.7:8080").await?;
    /// let leader = observer.changed().await?.expect("it leads");
    /// println!("{:?} leads", leader.value());
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn observe(&self) -> Result<Observer, Error> {
        self.begin().await?;
        let watch = self.handle.session().watch_leader(&self.key)?;
        let mut observer = Observer {
            watch,
            current: None,
            has_told: false,
            key: self.key.clone(),
            _shared: self.handle.shared(),
        };
        observer.read().await?;
        Ok(observer)
    }

    /// Begins a call that takes nothing.
    async fn begin(&self) -> Result<(), Error> {
        foreign::give_way().await;
        Error::check_name(&self.key)?;
        self.handle.session().check_election()
    }
}

/// The proof that its holder leads.
///
/// Dropping it resigns, as dropping a [`Guard`](crate::Guard) releases. It dereferences to the
/// [`Section`] of the lock: `lost()`, `check()`, `state()`.
#[must_use = "the leadership ends when this is dropped"]
pub struct Leadership {
    section: Section,
    // The value is not written again once the lock may be released.
    herald: Herald,
    taken: GuardInner,
}

impl Leadership {
    async fn begin(taken: GuardInner, value: String) -> Self {
        let view = taken.guards.view();
        let herald = taken
            .session()
            .herald(view.first().hold(), value.into())
            .await;
        Self {
            section: Section::new(view, taken.to_scope()),
            herald,
            taken,
        }
    }

    /// Returns its term: the fence of the lock.
    pub fn term(&self) -> Fence {
        self.section.fence()
    }

    /// Replaces the value.
    ///
    /// Observers are told.
    ///
    /// The leader writes it again at each third of the lease, so a server that was away, or that
    /// lost it, has it then.
    ///
    /// # Errors
    /// - [`Error::Lost`]: it does not lead any more.
    /// - [`Error::Unavailable`]: no majority of the servers confirmed it. Observers may see it, and
    ///   it is written again.
    /// - [`Error::Server`]: a server refused, for example because the user has no right to
    ///   `lockhound_leader:*`. The leadership lasts, and the value is tried again.
    /// - [`Error::Closed`], [`Error::Forked`] and [`Error::WatchdogPanicked`].
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
    /// let election = locks.election("scheduler");
    /// let leadership = election.campaign("starting").await?;
    /// leadership.proclaim("10.0.0.7:8080").await?; // the term stays
    /// let leader = election.leader().await?.expect("it leads");
    /// assert_eq!(leader.value(), Some("10.0.0.7:8080"));
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn proclaim(&self, value: impl Into<String>) -> Result<(), Error> {
        let proclaimed = self.herald.proclaim(value.into().into()).await;
        proclaimed.map_err(|error| error.of(slice::from_ref(self.section.key())))
    }

    /// Resigns.
    ///
    /// A candidate that waits leads at once.
    ///
    /// # Errors
    /// [`Error::Lost`] if the leadership was lost before, and as
    /// [`Guard::unlock`](crate::Guard::unlock).
    ///
    /// # Cancel safety
    /// Once polled, it is carried out even if the future is dropped. A future that was never polled
    /// drops the leadership, which resigns too.
    pub async fn resign(self) -> Result<(), Error> {
        let Self { herald, taken, .. } = self;
        drop(herald);
        taken.unlock().await
    }
}

impl Deref for Leadership {
    type Target = Section;

    fn deref(&self) -> &Section {
        &self.section
    }
}

/// The leader of an election, at the moment when the servers were asked.
#[derive(Clone, PartialEq, Eq)]
pub struct Leader {
    field: Vec<u8>,
    owner: String,
    term: Option<Fence>,
    value: Option<String>,
    remaining: Option<Duration>,
}

impl Leader {
    fn new(leader: KeyLeader) -> Self {
        let KeyLeader {
            field,
            remaining,
            said,
        } = leader;
        let (term, value) = said.map_or((None, None), |said| {
            let value = String::from_utf8_lossy(&said.value).into_owned();
            (said.term, Some(value))
        });
        Self {
            owner: String::from_utf8_lossy(&field).into_owned(),
            field,
            term,
            value,
            remaining,
        }
    }

    /// Returns its term, which grows from leader to leader.
    ///
    /// `None` as long as it has no value.
    pub fn term(&self) -> Option<Fence> {
        self.term
    }

    /// Returns its value.
    ///
    /// `None` if it has not proclaimed one yet, or cannot: on a JVM, or without the right to.
    pub fn value(&self) -> Option<&str> {
        self.value.as_deref()
    }

    /// Returns the owner of the lock as text, as [`Holder::owner`](crate::Holder::owner).
    ///
    /// Bytes that are not UTF-8 are replaced. It is another one for each term.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Returns how much of its lease was left, or `None` if the lock has no lease.
    ///
    /// A renewal extends it.
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }

    /// Returns whether both are the same leader with the same value.
    fn is_same(&self, other: &Self) -> bool {
        (&self.field, self.term, &self.value) == (&other.field, other.term, &other.value)
    }
}

/// Sees each change of the leader of an election.
///
/// Dropping it ends that.
pub struct Observer {
    watch: LeaderWatch,
    current: Option<Leader>,
    has_told: bool,
    key: Key,
    // The last field: the engine runs until the watch has ended.
    _shared: Arc<SharedSession>,
}

impl Observer {
    /// Waits for a change, and returns who leads, or `None` without a leader.
    ///
    /// The first call returns the leader as it is now, and each later one a change of the leader or
    /// of its value.
    ///
    /// During an outage of the servers it keeps what it has seen, and continues when they answer.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the servers have not answered for an
    /// [`outage_tolerance`](crate::LockerBuilder::outage_tolerance): what it has seen may be out of
    /// date. A further call continues. Otherwise as [`Election::leader`].
    ///
    /// # Cancel safety
    /// Cancel safe: a change that a dropped future has not returned is returned by the next one.
    pub async fn changed(&mut self) -> Result<Option<Leader>, Error> {
        foreign::give_way().await;
        loop {
            let before = self.current.clone();
            let read = self.read().await;
            if read.is_ok() && self.has_changed(before.as_ref()) {
                self.has_told = true;
                return Ok(self.current.clone());
            }
            self.watch.rest(read).await?;
        }
    }

    /// Returns who led when this observer asked last.
    ///
    /// It asked in [`changed`](Self::changed) or at its beginning. This call asks no server.
    pub fn current(&self) -> Option<&Leader> {
        self.current.as_ref()
    }

    async fn read(&mut self) -> Result<(), Error> {
        let read = self.watch.read().await;
        let leader = read.map_err(|error| error.of(slice::from_ref(&self.key)))?;
        self.current = leader.map(Leader::new);
        Ok(())
    }

    fn has_changed(&self, before: Option<&Leader>) -> bool {
        let same = match (before, &self.current) {
            (None, None) => true,
            (Some(before), Some(now)) => before.is_same(now),
            _ => false,
        };
        !(same && self.has_told)
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership")
            .field("key", self.key())
            .field("term", &self.term())
            .field("owner", &format_args!("{}", self.owner()))
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leader")
            .field("term", &self.term)
            .field("value", &self.value)
            .field("owner", &self.owner)
            .field("remaining", &self.remaining)
            .finish()
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer")
            .field("key", &self.key)
            .field("current", &self.current)
            .finish_non_exhaustive()
    }
}
