//! The promises, and the verdict on one.

use std::fmt;
use std::sync::Arc;

/// A promise that servers may or may not keep: see [`Report`](crate::Report).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Promise {
    /// Locks are taken, renewed and released: a majority of the servers is there, votes, and lets
    /// this user do all of that. In a cluster all masters are there, and every slot has one. Facts
    /// that only `INFO` and `CONFIG GET` show, such as a full memory, count if the user may send
    /// these.
    Locking,
    /// Locking continues while a minority of the servers is away, and no server is away already. It
    /// does not apply to one server, unless Sentinels name it: then they agree, are three or more,
    /// and replace a master within a third of a lease. In a cluster, each master has a replica in
    /// step that takes its place within a third of a lease, so that its locks are renewed in time.
    FaultTolerance,
    /// A lock has one holder at a time, as long as the servers run and evict nothing.
    /// [`restart_quarantine`](lockhound::LockerBuilder::restart_quarantine) lists what else is not
    /// covered.
    Exclusion,
    /// A lock has one holder at a time also after a server crashed and was started again, with its
    /// current settings and its disk.
    Restart,
    /// A lock has one holder at a time also after a replica was promoted in place of its master. It
    /// does not apply if there are no replicas.
    Failover,
    /// No server deletes locks to make room.
    Eviction,
    /// Waiters are woken by messages. It does not apply to
    /// [`Format::Plain`](lockhound::Format::Plain), since clients in other languages send none.
    Wakeups,
    /// Fences grow, also after a server forgot them.
    Fences,
    /// [`Lock::holder`](lockhound::Lock::holder), [`Lock::is_locked`](lockhound::Lock::is_locked)
    /// and [`Lock::force_unlock`](lockhound::Lock::force_unlock) work.
    Inspection,
}

impl Promise {
    pub(crate) const ALL: [Self; 9] = [
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
            Self::FaultTolerance => "locking continues while a minority of the servers is away",
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
    Kept,
    /// It is not kept.
    Broken,
    /// It may be kept: something that matters for it is not known.
    Unknown,
    /// It does not apply to these servers and options.
    NotApplicable,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Kept => "kept",
            Self::Broken => "BROKEN",
            Self::Unknown => "unknown",
            Self::NotApplicable => "-",
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
    /// Why it is not kept, or not known to be. With [`Answer::Kept`] these are problems that a
    /// majority of the servers makes up for, or conditions on which the promise depends.
    pub reasons: Vec<Reason>,
}

impl Verdict {
    /// Returns whether the promise is kept or does not apply.
    pub(crate) const fn is_fine(&self) -> bool {
        matches!(self.answer, Answer::Kept | Answer::NotApplicable)
    }
}

/// Why a promise is not kept, or not known to be.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reason {
    /// The address of the server that it is about, its password as `***`, or `None` if it is about
    /// all of them.
    pub node: Option<Arc<str>>,
    /// The problem.
    pub problem: String,
    /// What to change, if the locker can tell.
    pub remedy: Option<String>,
}
