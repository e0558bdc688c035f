//! What all flows of a session share.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use uuid::Uuid;

use super::bells::Bells;
use super::outage::Outage;
use super::queues::Queues;
use super::refusals::Refusals;
use super::warned::Warned;
use crate::alarm::Alarm;
use crate::claim::Listing;
use crate::clock::{Clock, Instant};
use crate::engine::{Engine, InFlight, JobRunner};
use crate::error::Error;
use crate::hold::{Hold, LossReporter};
use crate::identity::RunTurns;
use crate::key::Key;
use crate::kind::{Format, LockKind};
use crate::lines::{Head, Lines};
use crate::notify::Channels;
use crate::options::Settings;
use crate::quorum::Quorum;
use crate::standing::{Book, Unsettled};
use crate::stats::{CallOutcome, Counters, Levels, Stats};
use crate::watchdog::Watchdog;

/// How many gauges there are: of the holds and waiters of each kind, and three more.
pub(super) const LEVELS: usize = 2 * LockKind::ALL.len() + 3;

/// Everything that a locker's handles share.
pub(crate) struct Session {
    pub(super) id: Uuid,
    /// The same, as the servers see it.
    pub(super) id_text: Arc<str>,
    pub(super) settings: Settings,
    pub(super) engine: Engine,
    pub(super) runner: JobRunner<Task>,
    pub(super) quorum: Arc<Quorum>,
    pub(super) channels: Arc<Channels>,
    pub(super) watchdog: Arc<Watchdog>,
    pub(super) alarm: Arc<Alarm>,
    pub(super) reporter: Arc<LossReporter>,
    pub(super) lines: Lines<Around>,
    pub(super) queues: Queues,
    pub(super) turns: Arc<RunTurns>,
    pub(super) bells: Bells,
    /// How many callers wait until a latch is open.
    pub(super) latch_waiters: AtomicUsize,
    pub(super) warned: Warned,
    pub(super) outage: Outage,
    pub(super) refusals: Refusals,
    pub(super) counters: Arc<Counters>,
    pub(super) generations: AtomicU64,
    pub(super) closed: AtomicBool,
    /// The message of the panic that ended the watchdog.
    pub(super) failure: OnceLock<String>,
    pub(super) book: Arc<Book>,
    pub(super) labelling: Arc<Labelling>,
    pub(super) levels: Levels<LEVELS>,
}

/// What is around the lines of a session.
#[derive(Debug)]
pub(super) struct Around {
    pub(super) session: Weak<Session>,
    pub(super) quorum: Arc<Quorum>,
    pub(super) channels: Arc<Channels>,
    pub(super) clock: Clock,
    pub(super) settings: Settings,
}

/// A job for the job runner.
pub(super) enum Task {
    /// Acquires for the head of a line.
    Ask(Asking),
    /// Hands a lock over, or releases it.
    HandOver(HandingOver),
    /// Releases a hold.
    Release(Unconfirmed),
    /// Does something else.
    Other(Pin<Box<dyn Future<Output = ()> + Send>>),
}

/// A hand-over that a line wants.
pub(super) struct HandingOver {
    pub(super) under_way: UnderWay,
    pub(super) released: Unconfirmed,
    pub(super) head: Option<Head>,
}

/// An acquire that a line wants.
pub(super) struct Asking {
    pub(super) under_way: UnderWay,
    pub(super) head: Head,
    pub(super) first_alone: bool,
    pub(super) listing: Option<Listing>,
    pub(super) listens: bool,
}

/// An effect whose outcome is yet to come.
pub(super) struct UnderWay {
    pub(super) session: Arc<Session>,
    pub(super) key: Key,
    pub(super) ended: bool,
}

/// A release that is not confirmed yet. If its task ends early, by a panic or with the engine,
/// those that wait for it must not wait forever: its caller, and the line of its key.
pub(super) struct Unconfirmed {
    pub(super) session: Arc<Session>,
    pub(super) hold: Arc<Hold>,
    /// What the caller waits for, until it is told.
    pub(super) awaited: Option<(oneshot::Sender<Result<(), Error>>, InFlight)>,
    /// Set once the caller is told, for the servers that have not answered by then.
    pub(super) late: Option<InFlight>,
    /// When the caller is told in any case.
    pub(super) deadline: Instant,
    /// What a hand-over without an answer may have taken, or may yet take. It takes nothing once
    /// the hold is gone, and the release makes sure of that: so this is undone after the release is
    /// answered, and not before.
    pub(super) next: Option<Unsettled>,
    /// Whether it was found that the server had lost the lock before.
    pub(super) lost: bool,
    /// Whether every node has answered.
    pub(super) done: bool,
}

/// Whether the label is needed: a locker that never holds a lock leaves no key.
#[derive(Debug, Default)]
pub(super) struct Labelling {
    pub(super) is_needed: AtomicBool,
    pub(super) bell: Notify,
}

impl Session {
    pub(crate) fn id(&self) -> &str {
        &self.id_text
    }

    /// Returns the addresses of the servers, passwords as `***`.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.quorum
            .nodes()
            .iter()
            .map(|node| &**node.name())
            .collect()
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the statistics; all zero in a forked process.
    pub(crate) fn stats(&self) -> Stats {
        if self.is_forked() {
            return Stats::default();
        }
        let mismatched_replies = self
            .quorum
            .nodes()
            .iter()
            .map(|node| node.mismatched_replies())
            .sum();
        let tally = self.engine.tally();
        let stats = self
            .counters
            .stats(&self.lines.census(), tally.pending(), tally.undos());
        let nodes = self.quorum.roll().nodes(self.now());
        Stats {
            nodes,
            mismatched_replies,
            latch_waiters: self.latch_waiters.load(Ordering::Relaxed),
            dropped_events: self.engine.journal().dropped(),
            ..stats
        }
    }

    /// Counts a call that has ended, and records how long it waited if it may wait. In a forked
    /// process, a mutex of the counters may be locked forever.
    pub(crate) fn call_ended(
        &self,
        kind: LockKind,
        outcome: CallOutcome,
        waited: Option<Duration>,
        class: Option<&'static str>,
    ) {
        if !self.is_forked() {
            self.counters.call_ended(kind, outcome, waited, class);
        }
    }

    /// Returns the time of this locker, whichever thread its callers ask from.
    pub(crate) fn now(&self) -> Instant {
        self.engine.clock().now()
    }

    /// See [`Engine::block_on`].
    ///
    /// # Errors
    /// [`Error::Config`] if the locker lives in a runtime of the program; otherwise that of the
    /// future.
    pub(crate) fn block_on<T>(
        &self,
        future: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        if self.engine.is_embedded() {
            let reason = "this locker lives in the runtime that it was connected in, which must not be \
                          blocked: use async calls";
            return Err(Error::config("blocking", reason));
        }
        self.engine.block_on(future)
    }

    /// Begins a call, before anything that may wait for a mutex.
    ///
    /// # Errors
    /// [`Error::Forked`], and as [`check_open`](Self::check_open).
    pub(super) fn enter(&self) -> Result<(), Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        self.engine.register_thread();
        self.check_open()
    }

    /// See [`Engine::is_forked`].
    pub(super) fn is_forked(&self) -> bool {
        self.engine.is_forked()
    }

    /// Returns the error of an operation whose task panicked.
    pub(super) fn panicked(&self, said: &str) -> Error {
        self.quorum
            .unavailable(self.quorum.failures(panicked(said)), Duration::ZERO)
    }

    /// # Errors
    /// [`Error::Closed`], or [`Error::WatchdogPanicked`]: nothing new may begin.
    pub(super) fn check_open(&self) -> Result<(), Error> {
        if self.is_closed() {
            return Err(Error::Closed);
        }
        self.failure.get().map_or(Ok(()), |message| {
            Err(Error::WatchdogPanicked {
                message: message.clone(),
            })
        })
    }

    /// # Errors
    /// [`Error::Config`] in [`Format::Plain`]: `what` is in Redisson's format.
    pub(super) fn check_format(&self, option: &'static str, what: &str) -> Result<(), Error> {
        if self.settings.kind.format != Format::Plain {
            return Ok(());
        }
        let reason = format!(
            "{what} in Redisson's format, and this locker has Format::Plain: connect another locker in \
             Format::Redisson for it"
        );
        Err(Error::config(option, reason))
    }

    /// # Errors
    /// [`Error::Config`] over several independent servers, with the reason `why` not.
    pub(super) fn check_one_server(
        &self,
        option: &'static str,
        what: &str,
        why: impl FnOnce(u64) -> String,
    ) -> Result<(), Error> {
        let servers = self.quorum.nodes().len() as u64;
        if servers <= 1 {
            return Ok(());
        }
        let reason = format!(
            "{what} on one server, and this locker has {servers} independent ones: {}. Connect another locker to one \
             of them, to a cluster or to a master with Sentinels for it",
            why(servers)
        );
        Err(Error::config(option, reason))
    }

    pub(super) fn is_closed(&self) -> bool {
        // The runtime of an embedded engine may end before the session is closed.
        self.closed.load(Ordering::Acquire) || self.engine.has_ended()
    }
}

/// Returns the reason why a node has given no answer.
pub(super) fn panicked(said: &str) -> String {
    format!("the task that asked it panicked: {said}")
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.id)
            .field("nodes", &self.names())
            .finish_non_exhaustive()
    }
}
