//! The kinds of locks: how each is stored, which scripts it has, and what holds for it and not for
//! the others.
//!
//! A kind is one file here and one folder of `lua/`. [`Kind::excludes`] says which kinds keep each
//! other out; whoever asks whether a lock is held asks that.

mod fair;
mod permits;
mod plain;
mod read_write;
mod redisson;
#[cfg(test)]
#[path = "../../tests/trial/mod.rs"]
mod trial;

use std::fmt;

pub(crate) use self::fair::FAIR;
pub(crate) use self::permits::{PERMITS, SEMAPHORE};
use self::plain::PLAIN;
pub(crate) use self::read_write::{READ, WRITE};
pub(crate) use self::redisson::ELECTION;
use self::redisson::REDISSON;
use crate::key::Family;
use crate::lua::{Script, Texts};

/// How a lock is stored on the server, and so which other clients share it.
///
/// All programs that share a lock have to use the same format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Format {
    /// A hash with the owner and the hold count, as Redisson's `getLock` writes it.
    ///
    /// Its releases send a message to the waiters.
    #[default]
    Redisson,
    /// A string with the owner: `SET key owner NX PX lease`.
    ///
    /// Redlock clients write it (redsync, redis-py, node-redlock, rslock and others). Their
    /// releases send no message, so waiters poll, at intervals of
    /// [`poll_interval`](crate::LockerBuilder::poll_interval); releases of this crate wake them all
    /// the same. Only the holder's process keeps the hold count.
    Plain,
}

impl Format {
    pub(crate) const fn kind(self) -> &'static Kind {
        match self {
            Self::Redisson => &REDISSON,
            Self::Plain => &PLAIN,
        }
    }
}

/// A kind of lock, as statistics tell them apart.
///
/// Its `Display` is the value of the metrics' label `kind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockKind {
    /// `lock`: a [`Lock`](crate::Lock), or one of several.
    Lock,
    /// `read`: the readers' side of an [`RwLock`](crate::RwLock).
    Read,
    /// `write`: the writers' side of an [`RwLock`](crate::RwLock).
    Write,
    /// `permits`: a [`Semaphore`](crate::Semaphore) of [`Locker::permits`](crate::Locker::permits).
    Permits,
    /// `semaphore`: one of [`Locker::semaphore`](crate::Locker::semaphore).
    Semaphore,
    /// `election`: an [`Election`](crate::Election).
    Election,
    /// `fair`: a [`Lock`](crate::Lock) of [`Locker::fair`](crate::Locker::fair).
    Fair,
}

impl LockKind {
    /// All kinds, each at the place of its counts.
    pub(crate) const ALL: [Self; 7] = [
        Self::Lock,
        Self::Read,
        Self::Write,
        Self::Permits,
        Self::Semaphore,
        Self::Election,
        Self::Fair,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Read => "read",
            Self::Write => "write",
            Self::Permits => "permits",
            Self::Semaphore => "semaphore",
            Self::Election => "election",
            Self::Fair => "fair",
        }
    }
}

impl fmt::Display for LockKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// As what a lock is held, beside others or not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum LockRole {
    /// No other client has it.
    #[default]
    Alone,
    /// The same, and its callers have it in the order of a queue on the server.
    InTurn,
    /// Readers have it together.
    Read,
    /// As `Alone`, of a lock that also has readers.
    Write,
    /// As many have it as there are permits, and an owner has nothing but those.
    Permit,
}

/// A kind of lock.
pub(crate) struct Kind {
    /// The name of its folder in `lua/`.
    pub(crate) name: &'static str,
    pub(crate) format: Format,
    pub(crate) family: &'static Family,
    pub(crate) role: LockRole,
    /// As what statistics count it.
    pub(crate) counted: LockKind,
    /// The type of its key, as TYPE returns it.
    pub(crate) key_type: &'static str,
    /// Whether all clients send a message when they release such a lock.
    pub(crate) announced: bool,
    /// Whether lockers label themselves on the servers.
    pub(crate) labelled: bool,
    /// Whether Redisson's `RFencedLock` counts tokens for the same locks.
    pub(crate) tokens: bool,
    pub(crate) calls: CommandsOfKind,
    pub(crate) scripts: Scripts,
}

impl Kind {
    /// Returns whether its holders have a lock together.
    pub(crate) fn shares(&self) -> bool {
        matches!(self.role, LockRole::Read | LockRole::Permit)
    }

    /// Returns whether a lock of this kind keeps one of the other kind out, of another owner.
    pub(crate) fn excludes(&self, other: &Self) -> bool {
        !(self.shares() && other.shares())
    }

    /// Returns whether a lock may go from caller to caller without becoming free, waiting lockers
    /// are in a list, and the server has the hold count.
    pub(crate) fn hands_over(&self) -> bool {
        self.role == LockRole::Alone
    }

    /// Returns what the fields of its holders end with.
    pub(crate) fn suffix(&self) -> &'static str {
        match self.role {
            LockRole::Write => ":write",
            LockRole::Alone | LockRole::InTurn | LockRole::Read | LockRole::Permit => "",
        }
    }
}

/// The commands that the scripts of one kind call, and those of others do not, as in `rights.rs`.
#[derive(Clone, Copy)]
pub(crate) struct CommandsOfKind {
    pub(crate) to_lock: &'static [&'static str],
    pub(crate) to_inspect: &'static [&'static str],
    pub(crate) to_do_both: &'static [&'static str],
    /// To re-acquire a lock on one of several servers.
    pub(crate) to_retake: &'static [&'static str],
}

/// The scripts that differ between kinds. A kind that hands nothing over has only the text of
/// `acquire`, `release` and `renew`, or those of a lock for what is held, and nothing asks for the
/// others.
#[derive(Debug)]
pub(crate) struct Scripts {
    /// For one lock: the loops of `acquire_all` cost time, and a step of the batcher has two keys.
    pub(crate) acquire: Script,
    pub(crate) acquire_all: Script,
    /// An acquire that puts its locker into the list if it is not granted.
    pub(crate) enlist: Script,
    pub(crate) count: Script,
    pub(crate) release: Script,
    pub(crate) keep: Script,
    pub(crate) hand_over: Script,
    /// Many acquires, releases and hand-overs in one script.
    pub(crate) batch: Script,
    pub(crate) renew: Script,
    pub(crate) retake: Script,
    pub(crate) extend: Script,
    pub(crate) raise: Script,
}

impl Scripts {
    const fn of(texts: Texts) -> Self {
        Self {
            acquire: Script::new("acquire", texts),
            acquire_all: Script::new("acquire_all", texts),
            enlist: Script::new("enlist_alone", texts),
            count: Script::new("count", texts),
            release: Script::new("release", texts),
            keep: Script::new("keep", texts),
            hand_over: Script::new("hand_over", texts),
            batch: Script::new("batch", texts),
            renew: Script::new("renew", texts),
            retake: Script::new("retake", texts),
            extend: Script::new("extend", texts),
            raise: Script::new("raise", texts),
        }
    }

    /// Returns the scripts of a kind that is acquired and released by texts of its own, and is
    /// otherwise stored as another one.
    const fn held_as(other: Texts, own: Texts) -> Self {
        Self {
            acquire: Script::new("acquire", own),
            acquire_all: Script::new("acquire_all", other),
            enlist: Script::new("enlist_alone", other),
            count: Script::new("count", other),
            release: Script::new("release", own),
            keep: Script::new("keep", other),
            hand_over: Script::new("hand_over", other),
            batch: Script::new("batch", other),
            renew: Script::new("renew", other),
            retake: Script::new("retake", other),
            extend: Script::new("extend", other),
            raise: Script::new("raise", other),
        }
    }
}

// Two that only statistics tell apart are one kind.
impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Kind {}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// All kinds that have scripts of their own.
#[cfg(test)]
pub(crate) static KINDS: [&Kind; 7] = [
    &REDISSON,
    &PLAIN,
    &READ,
    &WRITE,
    &PERMITS,
    &FAIR,
    &trial::TRIAL,
];
