//! The session of a locker: the flows between a caller, the gate, the watchdog and the servers.
//!
//! # Invariants
//! - Whatever talks to a server runs as a task of the engine, to its end; callers wait for what such a task sends them.
//! - Whatever a task may have taken on a server is somebody's: a [`Grip`] that releases it on drop, or an undo's.
//! - Once `closed` or `failure` is set, nothing new is granted; what a racing task grants is given back.

mod acquire;
mod deadline;
mod driver;
mod grip;
mod joint;
mod late;
mod outage;
mod pending;
mod release;
mod together;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use self::deadline::Deadlines;
pub(crate) use self::grip::{Grip, View};
pub(crate) use self::joint::{JointGrip, JointView};
use self::outage::Outage;
use self::pending::{Pending, Pendings};
use crate::clock::Instant;
use crate::engine::Engine;
use crate::error::{Error, Loss, NodeFailure};
use crate::foreign::{self, contained};
use crate::gate::Gate;
use crate::hold::Hold;
use crate::holder::Holder;
use crate::key::Key;
use crate::node::Target;
use crate::notify::{self, Channels};
use crate::options::Settings;
use crate::quorum::{self, Quorum};
use crate::stats::{Counters, Stats};
use crate::watchdog::{self, Verdict, Watchdog};

/// How long closing waits for what is under way, at most.
const CLOSING: Duration = Duration::from_secs(5);

/// Everything that a locker's handles share.
pub(crate) struct Session {
    id: Uuid,
    settings: Settings,
    engine: Engine,
    quorum: Arc<Quorum>,
    channels: Arc<Channels>,
    watchdog: Arc<Watchdog>,
    gate: Gate<Grip>,
    deadlines: Arc<Deadlines>,
    outage: Outage,
    counters: Arc<Counters>,
    generations: AtomicU64,
    closed: AtomicBool,
    /// What the panic said by which the watchdog ended.
    failure: OnceLock<String>,
    pendings: Pendings,
    /// How many force_unlocks are under way, and how many have begun or ended.
    forcing: AtomicUsize,
    forces: AtomicU64,
    /// The keys whose grants were deposed because of one of those under way.
    deposed: Mutex<Vec<Key>>,
}

/// The session as the user's handles hold it: when the last of them is dropped, the engine ends.
#[derive(Debug)]
pub(crate) struct Alive {
    session: Arc<Session>,
}

impl Alive {
    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        let session = Arc::clone(&self.session);
        let engine = session.engine.clone();
        engine.spawn(async move {
            session.wind_down().await;
            session.engine.stop();
        });
    }
}

impl Session {
    /// Starts an engine and connects to the servers.
    ///
    /// # Errors
    /// See [`Node::connect`]. A majority of the servers must be reachable within `connect_timeout`.
    pub(crate) async fn connect(settings: Settings, targets: Vec<Target>) -> Result<Alive, Error> {
        let engine = Engine::start(settings.busy_poll).map_err(|e| Error::Unavailable {
            nodes: targets
                .iter()
                .map(|t| NodeFailure { node: Arc::clone(t.name()), reason: format!("the thread cannot start: {e}") })
                .collect(),
            waited: Duration::ZERO,
        })?;
        let (reply, answer) = oneshot::channel();
        let starting = engine.clone();
        engine.spawn(async move {
            let result = Self::start(starting.clone(), settings, targets).await;
            if result.is_err() {
                starting.stop();
            }
            // If the caller is gone, this drops the session, which ends the engine.
            foreign::answer(reply, result);
        });
        answer.await.unwrap_or(Err(Error::Closed))
    }

    async fn start(engine: Engine, settings: Settings, targets: Vec<Target>) -> Result<Alive, Error> {
        let id = Uuid::new_v4();
        let (reconnected, reconnects) = unbounded_channel();
        let (nodes, subscribers) = quorum::connect(&settings, &targets, &id.to_string(), &reconnected).await?;
        let names: Vec<_> = nodes.iter().map(|node| Arc::clone(node.name())).collect();
        let counters = Arc::new(Counters::of_nodes(&names));
        let session = Arc::new_cyclic(|weak: &Weak<Self>| {
            let hook = weak.clone();
            let told = move |key: &Key| {
                if let Some(session) = hook.upgrade() {
                    session.message(key);
                }
            };
            Self {
                id,
                engine,
                channels: Channels::new(nodes.len(), Box::new(told)),
                pendings: Pendings::new(nodes.len()),
                watchdog: Watchdog::new(&settings),
                quorum: Arc::new(Quorum::new(nodes)),
                gate: Gate::new(),
                deadlines: Arc::default(),
                outage: Outage::default(),
                counters: Arc::clone(&counters),
                generations: AtomicU64::new(1),
                closed: AtomicBool::new(false),
                failure: OnceLock::new(),
                forcing: AtomicUsize::new(0),
                forces: AtomicU64::new(0),
                deposed: Mutex::default(),
                settings,
            }
        });
        for (index, (node, events)) in session.quorum.nodes().iter().zip(subscribers).enumerate() {
            tokio::spawn(notify::listen(Arc::clone(&session.channels), index, Arc::clone(node), events));
        }
        tokio::spawn(deadline::end_waits(Arc::clone(&session.deadlines), Arc::downgrade(&session)));
        let judge = Arc::downgrade(&session);
        let judge = Box::new(move |verdict| {
            if let Some(session) = judge.upgrade() {
                session.judge(verdict);
            }
        });
        let (watchdog, quorum) = (Arc::clone(&session.watchdog), Arc::clone(&session.quorum));
        let settings = session.settings.clone();
        tokio::spawn(watchdog::run(watchdog, quorum, settings, counters, reconnects, judge));
        Ok(Alive { session })
    }

    pub(crate) fn id(&self) -> Uuid {
        self.id
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn stats(&self) -> Stats {
        let (holds, waiters) = self.gate.census();
        self.counters.stats(holds, waiters, self.pendings.all(), self.pendings.undos())
    }

    /// See [`Engine::block_on`].
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.engine.block_on(future)
    }

    /// Who holds a key, as the servers say.
    pub(crate) async fn holder(self: &Arc<Self>, key: &Key) -> Result<Option<Holder>, Error> {
        let (session, asked) = (Arc::clone(self), key.clone());
        let standing = self.on_engine(async move { session.quorum.inspect(&asked).await }).await?;
        Ok(standing.map(|s| Holder { owner: s.owner, hold_count: s.count, remaining: s.remaining }))
    }

    /// Releases a key, whoever holds it.
    pub(crate) async fn force_unlock(self: &Arc<Self>, key: &Key) -> Result<bool, Error> {
        self.check_open()?;
        // From here on a grant may be deleted by what is about to be sent: whoever registers one asks `forced_since`.
        let forcing = Forcing::new(self);
        // Before it is sent: once it is, others may be in before the answer comes.
        let mut deposed = false;
        for hold in self.gate.holds_of(key) {
            deposed |= self.lose(&hold, Loss::ForceUnlocked);
        }
        let (session, forced) = (Arc::clone(self), key.clone());
        let operation = async move {
            let answer = session.quorum.force(&forced).await;
            // A grant that came meanwhile, and whose release came before the force, was held all the same.
            let deposed = session.deposed().contains(&forced);
            drop(forcing);
            Ok(answer? || deposed)
        };
        // The release of a guard that was deposed here may have come first.
        Ok(self.on_engine(operation).await? || deposed)
    }

    /// A grant of this key was deposed: whoever forces it now may find it deleted already.
    fn note_deposed(&self, key: &Key) {
        let mut deposed = self.deposed();
        if self.forcing.load(Ordering::SeqCst) > 0 {
            deposed.push(key.clone());
        }
    }

    fn deposed(&self) -> MutexGuard<'_, Vec<Key>> {
        self.deposed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many force_unlocks have begun or ended: for [`forced_since`](Self::forced_since).
    fn forces(&self) -> u64 {
        self.forces.load(Ordering::SeqCst)
    }

    /// Whether what was granted to an attempt that began then may have been deleted by a force_unlock of this session: one
    /// is under way, or was since.
    fn forced_since(&self, forces: u64) -> bool {
        self.forcing.load(Ordering::SeqCst) > 0 || self.forces() != forces
    }

    /// Runs an operation as a task of the engine, so that dropping the caller's future drops no command half-way.
    async fn on_engine<T: Send + 'static>(
        self: &Arc<Self>,
        operation: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        self.check_open()?;
        let (reply, answer) = oneshot::channel();
        // Closing waits for it: what it is granted has to be given back while there is a connection.
        let pending = Pending::new(self);
        let engine = self.engine.clone();
        self.engine.ask(async move {
            let result = operation.await;
            engine.answered();
            // A caller that is gone does not want the answer, and a grip in it releases what it stands for.
            foreign::answer(reply, result);
            drop(pending);
        });
        answer.await.unwrap_or(Err(Error::Closed))
    }

    /// # Errors
    /// [`Error::Closed`], or [`Error::WatchdogPanicked`]: nothing new is begun.
    fn check_open(&self) -> Result<(), Error> {
        if self.is_closed() {
            return Err(Error::Closed);
        }
        self.failure.get().map_or(Ok(()), |message| Err(Error::WatchdogPanicked { message: message.clone() }))
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Makes a hold lost and tells everybody who waits for its key. Whether it was this call that did.
    pub(crate) fn lose(self: &Arc<Self>, hold: &Arc<Hold>, loss: Loss) -> bool {
        let newly = hold.lose(loss);
        if newly {
            self.judge(Verdict::Lost(Arc::clone(hold)));
        }
        newly
    }

    /// Acts on what the watchdog, or whoever looked first, found out.
    pub(crate) fn judge(self: &Arc<Self>, verdict: Verdict) {
        match verdict {
            Verdict::Lost(hold) => {
                self.gate.wake(&hold.key);
                // Callers who have not taken it yet never will: they stand in line again.
                if hold.revoke() {
                    self.take_back(hold);
                }
            }
            Verdict::Revoked(hold) => self.take_back(hold),
            Verdict::VoteLost(hold, node) => self.retake(hold, node),
            Verdict::Panicked(message) => self.fail(message),
        }
    }

    /// Nothing renews any more: nothing is granted from here on, waiters end, every token fires.
    fn fail(self: &Arc<Self>, message: String) {
        // First: whoever hears of a loss and asks again is told why.
        let message = self.failure.get_or_init(|| message);
        for waiter in self.gate.drain_all() {
            foreign::answer(waiter.reply, Err(Error::WatchdogPanicked { message: message.clone() }));
        }
        for hold in self.gate.holds() {
            // What panicked may be told of this loss too, and panic again; it must not save the next hold from it.
            let _: Result<_, _> = catch_unwind(AssertUnwindSafe(|| self.lose(&hold, Loss::RenewalFailed)));
        }
        contained(|| {
            tracing::error!(message, "the watchdog ended by a panic: every lock is lost, and none is granted any more");
        });
    }

    /// A message came for a key. If it is held here, somebody may have deleted it; the echo of a release of our own
    /// that came before is not a reason to look.
    fn message(&self, key: &Key) {
        let now = Instant::now();
        for hold in self.gate.holds_of(key) {
            if hold.is_held() && now.since(hold.since) > self.settings.command_timeout {
                self.watchdog.renew_now(&hold, now);
            }
        }
    }

    /// Closes: see [`Locker::close`](crate::Locker::close).
    pub(crate) async fn close(self: &Arc<Self>) {
        let (reply, answer) = oneshot::channel();
        let session = Arc::clone(self);
        self.engine.spawn(async move {
            session.wind_down().await;
            foreign::answer(reply, ());
            session.engine.stop();
        });
        // An error means that the engine has ended, which is what is waited for.
        let _: Result<_, _> = answer.await;
    }

    /// Refuses new work, ends waiters, fires every token, waits for releases, quits. Runs on the engine.
    async fn wind_down(self: &Arc<Self>) {
        self.closed.store(true, Ordering::Release);
        for waiter in self.gate.drain_all() {
            foreign::answer(waiter.reply, Err(Error::Closed));
        }
        for hold in self.gate.holds() {
            self.lose(&hold, Loss::Closed);
        }
        let minority = self.quorum.nodes().len() - self.quorum.majority();
        let settled = self.pendings.end(minority, || self.gate.is_empty());
        let bound = Instant::now() + CLOSING.min(self.settings.lease);
        let _: Result<_, _> = timeout(Instant::now().until(bound), settled).await;
        // Servers that do not answer are left without a word: the sockets are closed with the engine.
        let politeness = Instant::now().until(bound).max(Duration::from_millis(100));
        let _: Result<_, _> = timeout(politeness, self.quorum.quit()).await;
        // What fred has queued for its sockets is written by its own tasks.
        sleep(Duration::from_millis(1)).await;
    }
}

/// A force_unlock under way, from before anything is deposed to its answer.
struct Forcing(Arc<Session>);

impl Forcing {
    fn new(session: &Arc<Session>) -> Self {
        session.forcing.fetch_add(1, Ordering::SeqCst);
        session.forces.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(session))
    }
}

impl Drop for Forcing {
    fn drop(&mut self) {
        self.0.forces.fetch_add(1, Ordering::SeqCst);
        // Under the lock: a force that begins now and what it deposes come before or after.
        let mut deposed = self.0.deposed();
        if self.0.forcing.fetch_sub(1, Ordering::SeqCst) == 1 {
            deposed.clear();
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("id", &self.id).field("nodes", &self.quorum.nodes()).finish_non_exhaustive()
    }
}
