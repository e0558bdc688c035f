//! Commands to servers and their answers, as plain values that do not depend on the kind of server.
//!
//! A command that arrives twice or late does no harm. Commands check whether a field exists, counts are absolute, and
//! only two commands create a lock: an acquire, which is sent at most once per generation, and a hand-over, which finds
//! its holder only once. The plain format has the same commands with the same answers, and the field is the value of a
//! string: higher layers do not know the format.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use crate::fence::{Fence, Source};
use crate::key::Key;
use crate::kind::Kind;

/// A lock that is held or requested: its key, and the field that is there while it is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) kind: &'static Kind,
    pub(crate) key: Key,
    pub(crate) field: Arc<str>,
}

impl Claim {
    /// Returns the key of the counter for its fence.
    pub(crate) fn counter(&self, fences: Source) -> Cow<'static, str> {
        match fences {
            Source::Marks { .. } => self.key.mark().into(),
            Source::Tokens => self.key.token().into(),
        }
    }
}

/// A locker that goes into a lock's waiting list if the lock is not granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listing {
    pub(crate) locker: Arc<str>,
    /// Set if its time to wait for those before it in the list is over.
    pub(crate) looked: bool,
    /// The minimum lifetime of the list.
    pub(crate) lifetime: Duration,
}

/// Whom a release wakes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wakes {
    /// All subscribers of the lock's channel.
    All,
    /// The next locker of the list or, without a list, all subscribers. The `Releaser` describes the locker that
    /// releases.
    Next(Option<Releaser>),
}

/// The locker that releases a lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Releaser {
    pub(crate) locker: Arc<str>,
    /// Other callers of it wait, so it goes behind the other lockers of the list. A list with no other counts as none.
    pub(crate) enlists: bool,
    /// It is subscribed to the channel, and is not in the list.
    pub(crate) listens: bool,
    /// Subscribers that are in no list may be told instead, and have this turn.
    pub(crate) offers: Option<Duration>,
    /// The lifetime of the list. It is renewed when less than half is left.
    pub(crate) lifetime: Duration,
}

/// A command to a server. If its answer is to be a vote, `vote` is the id of the memory that the server has to have:
/// the one that it had when it was vetted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Command {
    /// Takes all of these locks, which are of one kind, or none. A server without the memory for the vote does nothing.
    Acquire {
        claims: Arc<[Claim]>,
        lease: Duration,
        fences: Source,
        vote: Option<Arc<str>>,
        /// Only for a single lock.
        listing: Option<Listing>,
    },
    /// Writes the hold count.
    Count {
        claim: Claim,
        count: u32,
    },
    Release {
        claim: Claim,
        wakes: Wakes,
    },
    /// Releases the claim, but keeps the lock locked for this long, under a field that no command names.
    Keep {
        claim: Claim,
        rest: Duration,
    },
    /// Takes a locker off the list of a lock, and wakes the next one if the lock is free.
    Pass {
        key: Key,
        locker: Arc<str>,
    },
    /// Releases a lock and takes it for the next claim, if it is still held under the first. It is never a vote.
    HandOver {
        from: Claim,
        to: Claim,
        lease: Duration,
        fences: Source,
    },
    /// Re-acquires a held lock on a server that lost it. A server without the memory for the vote does nothing.
    Retake {
        claim: Claim,
        lease: Duration,
        count: u32,
        vote: Option<Arc<str>>,
    },
    /// Makes a held lock last for at least this long from now.
    Extend {
        claim: Claim,
        lease: Duration,
    },
    /// Raises the mark of a lock that is held there to this fence, unless the mark is higher already.
    Raise {
        claim: Claim,
        fence: Fence,
    },
    /// Renews many locks of one kind at once.
    Renew {
        claims: Arc<[Claim]>,
        lease: Duration,
    },
    /// Writes what a locker calls itself, to stay for an hour, or deletes it.
    Label {
        locker: Arc<str>,
        label: Option<Arc<str>>,
    },
    /// Asks what a locker calls itself.
    LabelOf(Arc<str>),
    /// Asks who holds a lock.
    Inspect(Key),
    /// Asks for the holders of a lock, each as the SHA-1 of its field or string.
    Holders(Key),
    /// Releases a lock from these holders, unless it has a holder besides them.
    Force {
        key: Key,
        holders: Arc<[String]>,
    },
    /// Asks for the identity of a server. With `Announced`, the server also updates its memory.
    Vet(Option<Announced>),
    /// Asks what the server with this id has to know before it votes. A server without the memory for the vote answers
    /// nothing.
    Ask {
        about: Arc<str>,
        vote: Option<Arc<str>>,
    },
    /// Lets a server vote, if it still has the memory that this was decided on.
    Open(Opening),
}

impl Command {
    /// Returns whether it may create a lock, which has to be undone if the answer never comes.
    pub(crate) fn takes(&self) -> bool {
        matches!(self, Self::Acquire { .. } | Self::HandOver { .. })
    }

    /// Returns whether it is about no lock, but about what a locker calls itself.
    #[cfg(feature = "testing")]
    pub(crate) fn is_of_a_label(&self) -> bool {
        matches!(self, Self::Label { .. } | Self::LabelOf(_))
    }
}

/// What a locker announces to a server that keeps a memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Announced {
    /// The id of the memory that it begins if it has none.
    pub(crate) id: Arc<str>,
    pub(crate) lease: Duration,
    pub(crate) servers: usize,
    /// How much that number counts beside another locker's.
    pub(crate) rank: usize,
}

/// What lets a server vote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Opening {
    pub(crate) from: Arc<str>,
    pub(crate) to: Arc<str>,
    /// The longest lease for which it has waited.
    pub(crate) waited: Duration,
    /// The longest lease that the others told.
    pub(crate) lease: Duration,
    /// Its marks are raised to the highest of these numbers that is not too far ahead of its clock.
    pub(crate) marks: String,
    /// The ids of the servers that begin together with it.
    pub(crate) with: String,
    /// The number of servers.
    pub(crate) servers: usize,
    /// The number of servers that the memory named when this was decided.
    pub(crate) named: usize,
}

/// A server's answer, with one variant for each command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// `None` if the server does not have the memory for the vote, and has done nothing.
    Acquire(Option<Acquire>),
    Count(Count),
    /// Also the answer to `Keep`, which notifies nobody.
    Release(Release),
    HandOver(HandOver),
    /// True if the claim holds the lock again, false if another holds it there; `None` as for an acquire.
    Retake(Option<bool>),
    /// True if the claim holds the lock there, for at least the lease.
    Extend(bool),
    Raise(Raise),
    /// One for each claim, in the order given. A lock that too few replicas have acknowledged does not count as
    /// renewed.
    Renew(Vec<Renew>),
    Label,
    /// The text, any bytes, or `None` if there is none.
    LabelOf(Option<Vec<u8>>),
    Inspect(Option<Standing>),
    /// The holders' names, empty if the lock is free.
    Holders(Vec<String>),
    /// Whether the lock was theirs, and nobody else's.
    Force(bool),
    Vet(Identity),
    /// `None` if the server does not have the memory for the vote.
    Ask(Option<Told>),
    /// Whether it votes now.
    Open(bool),
}

/// What a server answered to an acquire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Acquire {
    /// All requested locks are granted, with one fence for each.
    Granted(Vec<Fence>),
    /// One is held by another, for at most this long if its lease is not renewed, or without a lease if `None`.
    Held(Option<Duration>),
    /// The same, for a locker that goes into the list.
    Listed(Option<Duration>, Place),
}

/// A locker's place in a lock's waiting list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// This many are before it.
    Behind(u64),
    /// The server refused to put it there, with this error.
    Refused(String),
}

/// What a server answered to a write of the hold count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    Written,
    Gone,
}

/// What a server answered to a release.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Release {
    /// Released, and this many clients got the message.
    Released(u64),
    /// Released, and another locker was woken or, with `turn`, clients that are not in the list were. `place` is the
    /// number of lockers in the list before the one that released, if it is there.
    PassedOn {
        place: Option<u64>,
        turn: Option<Duration>,
        /// How many clients are subscribed that are not in the list.
        others: u64,
        /// How many lockers are in the list.
        waiting: u64,
    },
    /// Released, and all subscribers were told: the list cannot be used, because of this error of the server.
    Unlisted(String),
    Gone,
}

/// What a server answered to a hand-over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandOver {
    /// The first claim no longer holds the lock, and the next one does.
    Granted(Fence),
    /// The first claim did not hold the lock, and nothing was taken.
    Gone,
}

/// What a server answered to the raise of a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Raise {
    Raised,
    Gone,
    /// The fence is too far ahead of the server's clock.
    TooHigh,
}

/// What a server answered for one lock of a renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Renew {
    Renewed,
    /// The lock is deleted, is somebody else's, or is not a lock any more.
    Gone,
    /// The server could not renew it, for this reason.
    Failed(String),
}

/// What one server knows that another has to know before it votes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Told {
    /// Whether it votes, and did so when the other one forgot.
    pub(crate) votes: bool,
    /// The longest lease that was announced to it.
    pub(crate) lease: Duration,
    /// Its highest mark.
    pub(crate) mark: String,
}

/// The holder of a lock, as its key shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) owner: Vec<u8>,
    pub(crate) count: u64,
    pub(crate) remaining: Option<Duration>,
}

/// A server's identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// It changes with each start.
    pub(crate) run_id: String,
    pub(crate) role: String,
    /// The address of the master, if it is a replica.
    pub(crate) master: String,
    /// The memory, if it is a master that was asked for it.
    pub(crate) memory: Option<Remembrance>,
}

/// A server's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remembrance {
    pub(crate) id: String,
    /// The number of servers.
    pub(crate) servers: usize,
    /// The longest lease that was announced to it.
    pub(crate) lease: Duration,
    /// How long it has been shut; `None` if it votes.
    pub(crate) waited: Option<Duration>,
}

/// Returns the error for a key that holds something other than a lock.
pub(crate) fn no_lock(key: &Key, kind: &str) -> String {
    let what = if kind == "hash" { "hash that is no lock's" } else { kind };
    format!("WRONGTYPE {key:?} holds a {what}")
}

/// Converts the answer of PTTL, which is -1 for a key without a lease, and 0 for one with less than a millisecond left.
pub(crate) fn remaining(ttl: i64) -> Option<Duration> {
    u64::try_from(ttl).ok().map(Duration::from_millis)
}

impl Command {
    /// Returns the release of a lock. With a `rest` the lock stays locked for that long, and nobody is woken.
    pub(crate) fn release(claim: Claim, rest: Option<Duration>, wakes: Wakes) -> Self {
        match rest {
            Some(rest) => Self::Keep { claim, rest },
            None => Self::Release { claim, wakes },
        }
    }
}

impl Answer {
    pub(crate) fn acquire(self) -> Option<Option<Acquire>> {
        if let Self::Acquire(answer) = self { Some(answer) } else { None }
    }

    pub(crate) fn count(self) -> Option<Count> {
        if let Self::Count(answer) = self { Some(answer) } else { None }
    }

    pub(crate) fn release(self) -> Option<Release> {
        if let Self::Release(answer) = self { Some(answer) } else { None }
    }

    pub(crate) fn hand_over(self) -> Option<HandOver> {
        if let Self::HandOver(answer) = self { Some(answer) } else { None }
    }

    pub(crate) fn retake(self) -> Option<Option<bool>> {
        if let Self::Retake(answer) = self { Some(answer) } else { None }
    }

    pub(crate) fn extend(self) -> Option<bool> {
        if let Self::Extend(answer) = self { Some(answer) } else { None }
    }

    pub(crate) fn raise(self) -> Option<Raise> {
        if let Self::Raise(answer) = self { Some(answer) } else { None }
    }

    pub(crate) fn renew(self) -> Option<Vec<Renew>> {
        if let Self::Renew(answer) = self { Some(answer) } else { None }
    }

    pub(crate) fn label(self) -> Option<()> {
        matches!(self, Self::Label).then_some(())
    }

    pub(crate) fn label_of(self) -> Option<Option<Vec<u8>>> {
        if let Self::LabelOf(answer) = self { Some(answer) } else { None }
    }

    pub(crate) fn inspect(self) -> Option<Option<Standing>> {
        if let Self::Inspect(answer) = self { Some(answer) } else { None }
    }

    pub(crate) fn holders(self) -> Option<Vec<String>> {
        if let Self::Holders(answer) = self { Some(answer) } else { None }
    }

    pub(crate) fn force(self) -> Option<bool> {
        if let Self::Force(answer) = self { Some(answer) } else { None }
    }

    pub(crate) fn vet(self) -> Option<Identity> {
        if let Self::Vet(answer) = self { Some(answer) } else { None }
    }

    pub(crate) fn told(self) -> Option<Option<Told>> {
        if let Self::Ask(answer) = self { Some(answer) } else { None }
    }

    pub(crate) fn opened(self) -> Option<bool> {
        if let Self::Open(answer) = self { Some(answer) } else { None }
    }
}
