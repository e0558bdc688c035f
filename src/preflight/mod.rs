//! Which promises the servers keep: the report of [`Locker::preflight`](crate::Locker::preflight), for operators and
//! for deployment pipelines.
//!
//! A [`Preflight`] has a [`ServerReport`] for each server and a [`Verdict`] for each [`Promise`]. It prints as a list
//! of at most 100 columns.

mod cases;
mod cluster;
mod found;
mod info;
mod rights;
mod sentinels;
mod table;
mod verdicts;

use std::fmt;
use std::sync::Arc;

pub use self::found::{
    Clock, ClusterView, Eviction, Finding, Forgets, MissingRight, Mode, Persistence, Replica, Rights, Role,
    SentinelReport, ServerReport, Slots, UnknownRight, Version,
};
pub(crate) use self::found::{OLDEST, evicts, parse_version};
pub(crate) use self::info::{Hello, Told, ToldOfCluster, field};
pub(crate) use self::rights::{Probe, Questions, Tried, Way};
use crate::options::Settings;

/// A promise that servers may or may not keep: see [`Preflight`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Promise {
    /// Locks are taken, renewed and released: a majority of the servers is there, votes, and lets this user do all of
    /// that. In a cluster all masters are there, and every slot has one. Facts that only `INFO` and `CONFIG GET` show,
    /// such as a full memory, count if the user may send these.
    Locking,
    /// Locking goes on while a minority of the servers is away, and no server is away already. It does not apply to one
    /// server, unless Sentinels name it: then they agree, are three or more, and replace a master within a third of a
    /// lease. In a cluster, each master has a replica in step that takes its place within a third of a lease, so that
    /// its locks are renewed in time.
    FaultTolerance,
    /// A lock has one holder at a time, as long as the servers run and evict nothing.
    /// [`restart_quarantine`](crate::LockerBuilder::restart_quarantine) lists what else is not covered.
    Exclusion,
    /// A lock has one holder at a time also after a server crashed and was started again, with its current settings and
    /// its disk.
    Restart,
    /// A lock has one holder at a time also after a replica was promoted in place of its master. It does not apply if
    /// there are no replicas.
    Failover,
    /// No server deletes locks to make room.
    Eviction,
    /// Waiters are woken by messages. It does not apply to [`Format::Plain`](crate::Format::Plain), since clients in
    /// other languages send none.
    Wakeups,
    /// Fences grow, also after a server forgot them.
    Fences,
    /// [`Lock::holder`](crate::Lock::holder), [`Lock::is_locked`](crate::Lock::is_locked) and
    /// [`Lock::force_unlock`](crate::Lock::force_unlock) work.
    Inspection,
}

impl Promise {
    const ALL: [Self; 9] = [
        Self::Locking,
        Self::FaultTolerance,
        Self::Exclusion,
        Self::Restart,
        Self::Failover,
        Self::Eviction,
        Self::Wakeups,
        Self::Fences,
        Self::Inspection,
    ];
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Locking => "locks are taken, renewed and released",
            Self::FaultTolerance => "locking goes on while a minority of the servers is away",
            Self::Exclusion => "one holder at a time while the servers run",
            Self::Restart => "one holder at a time after a server crashed and was started again",
            Self::Failover => "one holder at a time after a replica was promoted",
            Self::Eviction => "no lock is evicted",
            Self::Wakeups => "waiters are woken by messages",
            Self::Fences => "fences grow, also after a server forgot them",
            Self::Inspection => "holder(), is_locked() and force_unlock() work",
        })
    }
}

/// Whether a promise is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Answer {
    /// It is kept.
    Yes,
    /// It is not kept.
    No,
    /// It may be kept: something that matters for it is not known.
    Unknown,
    /// It does not apply to these servers and options.
    Moot,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Yes => "yes",
            Self::No => "NO",
            Self::Unknown => "unknown",
            Self::Moot => "-",
        })
    }
}

/// Whether the servers keep a promise, and why not.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdict {
    /// The promise.
    pub promise: Promise,
    /// Whether it is kept.
    pub answer: Answer,
    /// Why it is not kept, or not known to be. With [`Answer::Yes`] these are problems that a majority of the servers
    /// makes up for, or conditions on which the promise depends.
    pub reasons: Vec<Reason>,
}

impl Verdict {
    /// Returns whether the promise is kept or does not apply.
    pub const fn is_kept(&self) -> bool {
        matches!(self.answer, Answer::Yes | Answer::Moot)
    }
}

/// Why a promise is not kept, or not known to be.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reason {
    /// The address of the server that it is about, its password as `***`, or `None` if it is about all of them.
    pub node: Option<Arc<str>>,
    /// The problem.
    pub problem: String,
    /// What to change, if the locker can tell.
    pub remedy: Option<String>,
}

/// Which promises the servers of a locker keep: the report of [`Locker::preflight`](crate::Locker::preflight).
///
/// It describes the moment at which it was made. A server may be reconfigured, lose its replicas or restart at any time
/// after that.
///
/// # Examples
/// A pipeline ends with exit code 1 unless the promises that it wants are kept:
/// ```no_run
/// use std::process::ExitCode;
///
/// use lockhound::{Error, Locker, preflight::Promise};
///
/// #[tokio::main]
/// async fn main() -> Result<ExitCode, Error> {
///     let locks = Locker::connect("redis://127.0.0.1:6379").await?;
///     let report = locks.preflight_of(["orders:42"]).await?;
///     println!("{report}");
///     locks.close().await;
///     let wanted = [Promise::Locking, Promise::Exclusion, Promise::Eviction];
///     let kept = wanted.iter().all(|promise| report.keeps(*promise));
///     Ok(if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Preflight {
    /// The servers, in the order in which they were given to the builder; for a cluster, its masters.
    pub servers: Vec<ServerReport>,
    /// A verdict for each promise, in the order of [`Promise`].
    pub verdicts: Vec<Verdict>,
}

impl Preflight {
    pub(crate) fn new(settings: &Settings, deployment: Deployment, servers: Vec<ServerReport>) -> Self {
        let verdicts = verdicts::verdicts(settings, deployment, &servers);
        Self { servers, verdicts }
    }

    /// Returns whether every promise is kept or does not apply. A promise about which nothing is known is not kept.
    ///
    /// A single server with Redis' default configuration is not `ok`: it forgets locks when it crashes. If you can live
    /// with that, ask for the promises that matter, one by one: [`keeps`](Self::keeps).
    pub fn is_ok(&self) -> bool {
        self.problems().next().is_none()
    }

    /// Returns whether this promise is kept or does not apply.
    pub fn keeps(&self, promise: Promise) -> bool {
        self.verdicts.iter().any(|verdict| verdict.promise == promise && verdict.is_kept())
    }

    /// Returns the verdict on this promise.
    pub fn verdict(&self, promise: Promise) -> Option<&Verdict> {
        self.verdicts.iter().find(|verdict| verdict.promise == promise)
    }

    /// Returns the verdicts on promises that are not kept, or not known to be.
    pub fn problems(&self) -> impl Iterator<Item = &Verdict> {
        self.verdicts.iter().filter(|verdict| !verdict.is_kept())
    }
}

/// How the servers of a locker are related.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deployment {
    /// This many, which do not know each other.
    Independent(usize),
    /// The masters of a cluster, each of which has some of the locks.
    Cluster,
}

impl Deployment {
    /// Returns whether each lock is on one server alone.
    pub(crate) fn is_alone(self) -> bool {
        matches!(self, Self::Independent(1) | Self::Cluster)
    }
}
