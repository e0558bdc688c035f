//! The session of a locker: the flows between a caller, the lines, the watchdog and the servers.
//!
//! # Invariants
//! - Everything that talks to a server runs as a task of the engine, to its end. Callers wait for what such a task
//!   sends them.
//! - Whatever a task may have taken on a server belongs to a [`Grip`], which releases it on drop, or to an undo.
//! - Once `closed` or `failure` is set, nothing new is granted. What a racing task grants is given back.

mod acquire;
mod alive;
mod ask;
mod attempt;
mod carry;
mod closing;
mod crew;
mod extending;
mod grip;
#[cfg(test)]
#[cfg(feature = "testing")]
mod guests;
mod hand_over;
mod holders;
mod jobs;
mod joint;
mod labels;
mod leave;
mod levels;
mod losses;
mod multi;
mod outage;
mod reentries;
mod refusals;
mod release;
mod run;
mod servers;
mod try_lock;
mod unconfirmed;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use uuid::Uuid;

pub(crate) use self::alive::Alive;
use self::alive::Eviction;
use self::carry::Around;
pub(crate) use self::grip::Grip;
use self::grip::View;
use self::jobs::Task;
pub(crate) use self::joint::{Grips, Views};
use self::labels::Labelling;
use self::outage::Outage;
use self::reentries::Warned;
use self::refusals::Refusals;
use crate::alarm::Alarm;
use crate::clock::Instant;
use crate::command::sha1;
use crate::engine::{Crew, Engine};
use crate::error::{Error, Loss};
use crate::foreign::{self, log};
use crate::hold::{Hold, Ledger, Lost};
use crate::identity::Turns;
use crate::key::Key;
use crate::lines::Lines;
use crate::node::{LinkEvent, Target};
use crate::notify::{self, Channels, Hooks};
use crate::options::Settings;
use crate::quorum::{self, Quorum};
use crate::random;
use crate::standing::Book;
use crate::stats::{CallOutcome, Counters, Levels, Stats};
use crate::watchdog::{self, Verdict, Watchdog};

/// Everything that a locker's handles share.
pub(crate) struct Session {
    id: Uuid,
    settings: Settings,
    engine: Engine,
    crew: Crew<Task>,
    quorum: Arc<Quorum>,
    channels: Arc<Channels>,
    watchdog: Arc<Watchdog>,
    alarm: Arc<Alarm>,
    ledger: Arc<Ledger>,
    lines: Lines<Around>,
    turns: Arc<Turns>,
    warned: Warned,
    outage: Outage,
    refusals: Refusals,
    counters: Arc<Counters>,
    generations: AtomicU64,
    closed: AtomicBool,
    /// The message of the panic that ended the watchdog.
    failure: OnceLock<String>,
    book: Arc<Book>,
    labelling: Arc<Labelling>,
    levels: Levels<4>,
}

impl Session {
    async fn start(
        engine: Engine,
        alarm: Arc<Alarm>,
        settings: Settings,
        targets: &[Target],
    ) -> Result<Arc<Self>, Error> {
        let id = random::uuid();
        let (reconnected, reconnects) = unbounded_channel();
        let (quorum, subscribers) = quorum::connect(&settings, targets, &id.to_string(), &reconnected).await?;
        Ok(Self::begin(engine, alarm, id, settings, quorum, subscribers, reconnects))
    }

    /// Starts a session on these nodes, with all of its tasks.
    fn begin(
        engine: Engine,
        alarm: Arc<Alarm>,
        id: Uuid,
        settings: Settings,
        quorum: Quorum,
        subscribers: Vec<UnboundedReceiver<LinkEvent>>,
        reconnects: UnboundedReceiver<LinkEvent>,
    ) -> Arc<Self> {
        let (session, losses) = Self::over(engine, alarm, id, settings, quorum);
        for (index, (node, events)) in session.quorum.nodes().iter().zip(subscribers).enumerate() {
            session.engine.spawn(notify::listen(Arc::clone(&session.channels), index, Arc::clone(node), events));
        }
        if session.engine.is_guest() {
            session.engine.spawn(alive::stay(Eviction::of(&session)));
        }
        session.report_levels();
        session.keep_label();
        session.engine.spawn(losses::judge(Arc::downgrade(&session), losses));
        session.engine.spawn(carry::keep_time(Arc::clone(session.lines.timers()), Arc::downgrade(&session)));
        let judge = Arc::downgrade(&session);
        let judge = Box::new(move |verdict| {
            if let Some(session) = judge.upgrade() {
                session.judge(verdict);
            }
        });
        let (watchdog, quorum) = (Arc::clone(&session.watchdog), Arc::clone(&session.quorum));
        let (settings, counters) = (session.settings.clone(), Arc::clone(&session.counters));
        session.engine.spawn(watchdog::run(watchdog, quorum, settings, counters, reconnects, judge));
        session
    }

    /// Makes a session on these nodes, and the channel of its losses. Its other tasks have yet to be started.
    fn over(
        engine: Engine,
        alarm: Arc<Alarm>,
        id: Uuid,
        settings: Settings,
        quorum: Quorum,
    ) -> (Arc<Self>, UnboundedReceiver<Lost>) {
        let names: Vec<_> = quorum.nodes().iter().map(|node| Arc::clone(node.name())).collect();
        let counters = Arc::new(Counters::of_nodes(&names));
        let (ledger, losses) = Ledger::new(Arc::clone(&counters), engine.clock().clone());
        let quorum = Arc::new(quorum);
        let book = Book::start(engine.clone(), Arc::clone(&quorum), Arc::clone(&counters), settings.command_timeout);
        let session = Arc::new_cyclic(|session: &Weak<Self>| {
            let channels = Channels::new(names.len(), quorum.lister(), Self::hooks(session));
            let around = Around {
                session: Weak::clone(session),
                quorum: Arc::clone(&quorum),
                channels: Arc::clone(&channels),
                clock: engine.clock().clone(),
                settings: settings.clone(),
            };
            Self {
                id,
                crew: Crew::new(&engine),
                engine,
                channels,
                book,
                watchdog: Watchdog::new(&settings),
                alarm,
                ledger,
                quorum,
                lines: Lines::new(around),
                turns: Arc::default(),
                warned: Warned::default(),
                outage: Outage::new(&settings),
                refusals: Refusals::default(),
                counters,
                generations: AtomicU64::new(1),
                closed: AtomicBool::new(false),
                failure: OnceLock::new(),
                labelling: Arc::default(),
                levels: Levels::default(),
                settings,
            }
        });
        (session, losses)
    }

    /// Returns the calls for what is heard, while the session exists.
    fn hooks(session: &Weak<Self>) -> Hooks {
        let (lines, holds) = (Weak::clone(session), Weak::clone(session));
        let line = move |key: &Key, event| {
            if let Some(session) = lines.upgrade() {
                session.lines.step(key, event);
            }
        };
        let message = move |key: &Key| {
            if let Some(session) = holds.upgrade() {
                session.message(key);
            }
        };
        Hooks { line: Box::new(line), message: Box::new(message) }
    }

    pub(crate) fn id(&self) -> Uuid {
        self.id
    }

    /// Returns the addresses of the servers, passwords as `***`.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.quorum.nodes().iter().map(|node| &**node.name()).collect()
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the statistics; all zero in a forked process.
    pub(crate) fn stats(&self) -> Stats {
        if self.is_forked() {
            return Stats::default();
        }
        let (holds, waiters) = self.lines.census();
        let misplaced_answers = self.quorum.nodes().iter().map(|node| node.misplaced_answers()).sum();
        let tally = self.engine.tally();
        let stats = self.counters.stats(holds, waiters, tally.all(), tally.undos());
        let nodes = self.quorum.roll().nodes(self.now());
        Stats { nodes, misplaced_answers, dropped_events: self.engine.journal().dropped(), ..stats }
    }

    /// Counts a call that has ended, and records how long it waited if it may wait. In a forked process, a mutex of the
    /// counters may be locked forever.
    pub(crate) fn call_ended(&self, outcome: CallOutcome, waited: Option<Duration>, class: Option<&'static str>) {
        if !self.is_forked() {
            self.counters.call_ended(outcome, waited, class);
        }
    }

    /// Returns the time of this locker, whichever thread its callers ask from.
    pub(crate) fn now(&self) -> Instant {
        self.engine.clock().now()
    }

    /// See [`Engine::block_on`].
    ///
    /// # Errors
    /// [`Error::Config`] if the locker lives in a runtime of the program; otherwise that of the future.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        if self.engine.is_guest() {
            let reason =
                "this locker lives in the runtime that it was connected in, which must not be blocked: use async calls";
            return Err(Error::config("blocking", reason));
        }
        self.engine.block_on(future)
    }

    /// Releases a key, whoever holds it.
    pub(crate) async fn force_unlock(self: &Arc<Self>, key: &Key) -> Result<bool, Error> {
        self.enter()?;
        let (session, forced) = (Arc::clone(self), key.clone());
        self.on_engine(async move {
            let (mut deposed, before) = (false, session.lines.holds_of(&forced));
            // A holder that is told of its loss releases, and then the next one here may have the lock: it must not be
            // among those that are named. Nor is it late: others may acquire the lock once the command is sent.
            let depose = |names: Option<&BTreeSet<String>>| {
                let is_named =
                    |hold: &Hold| names.is_some_and(|names| names.contains(&sha1(hold.claim.field.as_bytes())));
                let now = session.lines.holds_of(&forced);
                for hold in before.iter().chain(now.iter().filter(|hold| is_named(hold))) {
                    deposed |= hold.lose(Loss::ForceUnlocked);
                }
            };
            let answer = session.quorum.force(&forced, depose).await;
            // The release of a guard that was deposed here may have come first.
            Ok(answer? || deposed)
        })
        .await
    }

    /// Begins a call, before anything that may wait for a mutex.
    ///
    /// # Errors
    /// [`Error::Forked`], and as [`check_open`](Self::check_open).
    fn enter(&self) -> Result<(), Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        self.engine.greet();
        self.check_open()
    }

    /// See [`Engine::is_forked`].
    fn is_forked(&self) -> bool {
        self.engine.is_forked()
    }

    /// Returns the error of an operation whose task panicked.
    fn panicked(&self, said: &str) -> Error {
        self.quorum.unavailable(self.quorum.failures(panicked(said)), Duration::ZERO)
    }

    /// # Errors
    /// [`Error::Closed`], or [`Error::WatchdogPanicked`]: nothing new may begin.
    fn check_open(&self) -> Result<(), Error> {
        if self.is_closed() {
            return Err(Error::Closed);
        }
        self.failure.get().map_or(Ok(()), |message| Err(Error::WatchdogPanicked { message: message.clone() }))
    }

    fn is_closed(&self) -> bool {
        // The runtime of a guest may end before the session is closed.
        self.closed.load(Ordering::Acquire) || self.engine.is_guest_no_more()
    }

    /// Acts on what the watchdog found out.
    fn judge(self: &Arc<Self>, verdict: Verdict) {
        match verdict {
            Verdict::Revoked(hold) => self.take_back(&hold),
            Verdict::VoteLost(hold, node) => {
                // Without this vote the hold may end sooner.
                self.alarm.watch(&hold, Instant::now());
                self.book.retake(hold, node);
            }
            Verdict::Panicked(message) => self.fail(message),
        }
    }

    /// Ends everything, since nothing renews leases any more: no lock is granted from here on, waits end, every token
    /// fires.
    fn fail(self: &Arc<Self>, message: String) {
        // First: a caller that sees a loss and asks again gets this error.
        let message = self.failure.get_or_init(|| message);
        self.turns.close();
        for waiter in self.lines.drain_all() {
            foreign::answer(waiter.call.reply, Err(Error::WatchdogPanicked { message: message.clone() }));
        }
        for hold in self.lines.holds() {
            // Code that panicked may panic again; the other holds have to be lost all the same.
            let _: Result<_, _> = catch_unwind(AssertUnwindSafe(|| hold.lose(Loss::RenewalFailed)));
        }
        log!(error, message, "the watchdog ended by a panic: every lock is lost, and none is granted any more");
    }

    /// Handles a message for a key. If the key is held here, somebody may have deleted it. The message of our own
    /// release before that is no reason to check.
    fn message(&self, key: &Key) {
        let now = Instant::now();
        for hold in self.lines.holds_of(key) {
            if hold.is_held() && now.since(hold.since) > self.settings.command_timeout {
                self.watchdog.renew_now(&hold, now);
            }
        }
    }
}

/// Returns the reason why a node has given no answer.
fn panicked(said: &str) -> String {
    format!("the task that asked it panicked: {said}")
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("id", &self.id).field("nodes", &self.names()).finish_non_exhaustive()
    }
}

#[cfg(test)]
impl Session {
    /// Makes a session over one server that is never there.
    fn over_nobody() -> Arc<Self> {
        Self::over_nobodies(1)
    }

    /// Makes a session over this many servers that are never there.
    fn over_nobodies(servers: usize) -> Arc<Self> {
        Self::on(Engine::start(Duration::ZERO, servers).expect("a thread"), servers)
    }

    /// Makes a session over one server that is never there, as a forked process sees it.
    fn forked() -> Arc<Self> {
        Self::on(Engine::start(Duration::ZERO, 1).expect("a thread").forked(), 1)
    }

    fn on(engine: Engine, servers: usize) -> Arc<Self> {
        let command_timeout = Some(Duration::from_millis(100));
        let options = crate::options::Options { command_timeout, ..crate::options::Options::default() };
        let settings = options.validate(servers).expect("valid");
        let nodes = (0..servers).map(|_| crate::node::Node::of_nobody(&settings)).collect();
        let alarm = Alarm::of_process().expect("a thread");
        let quorum = Quorum::new(nodes, Duration::ZERO, settings.connect_timeout).with_lists("locker");
        Self::over(engine, alarm, Uuid::new_v4(), settings, quorum).0
    }
}
