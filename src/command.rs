//! What a server is asked for, and what it answers, as values: neither says which kind of server that is.
//!
//! A field is in a hash or it is not, counts are absolute, and nothing creates but an acquire, which is sent at most
//! once per generation, and a hand-over, which finds its holder once: a copy of any command that comes twice or late
//! changes nothing that it should not. The plain format has the same commands with the same answers, the field as the
//! value of a string: nobody above knows which.

use std::sync::Arc;
use std::time::Duration;

use sha1_smol::Sha1;

use crate::fence::{Fence, Source};
use crate::key::Key;
use crate::options::Format;

/// The key of a server's memory.
pub(crate) const MEMORY: &str = "lockhound_memory";

/// What the channels begin with on which a locker is woken, each by its id.
pub(crate) const WAKE: &str = "lockhound_wake:";

/// What a lock is on a server. Each kind excludes every other, and itself.
///
/// Where a kind comes that does not, three places have to ask: `Slot::next` in the gate (who blocks the line), and
/// `admit` and `settle` in `session/attempt.rs` (what a grant proves of the holds before it).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A hash, with the field of its holder.
    Redisson,
    /// A string, which is the field of its holder.
    Plain,
}

impl Kind {
    /// Whether everybody who releases one tells of it by a message.
    pub(crate) fn is_told_of(self) -> bool {
        self == Self::Redisson
    }
}

impl From<Format> for Kind {
    fn from(format: Format) -> Self {
        match format {
            Format::Redisson => Self::Redisson,
            Format::Plain => Self::Plain,
        }
    }
}

/// A lock that is held or asked for: its key, and the field that stands there then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) kind: Kind,
    pub(crate) key: Key,
    pub(crate) field: Arc<str>,
}

impl Claim {
    /// The key of the counter that its fence comes from.
    pub(crate) fn counter(&self, fences: Source) -> String {
        match fences {
            Source::Marks { .. } => self.key.mark(),
            Source::Tokens => self.key.token(),
        }
    }
}

/// A locker that goes into the list of those that wait for a lock, if it is not granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listing {
    pub(crate) locker: Arc<str>,
    /// The time is over for which it waits for those before it in the list.
    pub(crate) looked: bool,
    /// For how long the list is kept, at the least.
    pub(crate) lifetime: Duration,
}

/// Whom a release tells of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wakes {
    /// All that listen.
    All,
    /// The next of the list, if there is one; else all that listen. With what is known of the locker that releases.
    Next(Option<Releaser>),
}

/// The locker that releases a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Releaser {
    pub(crate) locker: Arc<str>,
    /// Others wait here: it goes into the list, behind all who are there. A list with nobody else is none.
    pub(crate) enlists: bool,
    /// It listens to the channel, and is not in the list.
    pub(crate) listens: bool,
    /// Others that listen, and are in no list, may be told instead.
    pub(crate) offers: bool,
    /// For how long the list is kept, at the least a half.
    pub(crate) lifetime: Duration,
}

/// What a server has to remember of itself for its answer to be a vote: what it remembered when it was vetted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remembered {
    pub(crate) memory: Arc<str>,
    /// What the server looks for. Names of servers are as long: no two of them are alike either.
    pub(crate) digest: Arc<str>,
}

impl From<&str> for Remembered {
    fn from(memory: &str) -> Self {
        Self { memory: memory.into(), digest: sha1(memory.as_bytes())[..16].into() }
    }
}

/// What a server is asked for. Where its answer is to be a `vote`, with what it has to remember for that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Command {
    /// Takes all of these locks, which are of one kind, or none. A server that does not remember does nothing.
    Acquire {
        claims: Arc<[Claim]>,
        lease: Duration,
        fences: Source,
        vote: Option<Remembered>,
        /// Of one lock, and where there is no vote.
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
    /// Releases it too, but leaves the lock standing for that long, under a field that no command names.
    Keep {
        claim: Claim,
        rest: Duration,
    },
    /// Takes a locker off the list of a lock, and wakes the next one if the lock is free.
    Pass {
        key: Key,
        locker: Arc<str>,
    },
    /// Releases a lock and takes it for the next one, if it is still held under the first claim. No vote.
    HandOver {
        from: Claim,
        to: Claim,
        lease: Duration,
        fences: Source,
    },
    /// Takes a server's vote for a held lock back. It does its work whatever it remembers.
    Retake {
        claim: Claim,
        lease: Duration,
        count: u32,
        vote: Option<Remembered>,
    },
    /// Raises the mark of a lock that is held there to this fence, unless it is higher already.
    Raise {
        claim: Claim,
        fence: Fence,
    },
    /// Renews many locks of one kind at once. It does its work whatever it remembers.
    Renew {
        claims: Arc<[Claim]>,
        lease: Duration,
        vote: Option<Remembered>,
    },
    /// Tells who stands in a lock's key.
    Inspect(Key),
    /// Names the holders of a lock, each by the SHA-1 of what stands there.
    Holders(Key),
    /// Releases a lock from these holders, unless somebody else is among those that stand there.
    Force {
        key: Key,
        holders: Arc<[String]>,
    },
    /// Tells who a server is. Where it has a memory, it is told this.
    Vet(Option<Announced>),
    /// Changes a server's memory, if it is still what it was.
    Amend(Amendment),
    /// Tells the highest mark of a server. One that does not remember tells nothing.
    Highest {
        vote: Option<Remembered>,
    },
}

impl Command {
    /// Whether it may leave something there that has to be undone if its answer never comes.
    pub(crate) fn takes(&self) -> bool {
        matches!(self, Self::Acquire { .. } | Self::HandOver { .. })
    }
}

/// What a server is told where it has a memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Announced {
    /// Its memory, if it has none.
    pub(crate) begun: Arc<str>,
    pub(crate) lease: Duration,
    /// What it remembered last, and for how long it had been listed then and since.
    pub(crate) last: Arc<str>,
    pub(crate) age: Duration,
}

/// A change of a server's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Amendment {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) listed: bool,
    /// Where it is to vote: the longest lease that it has waited for.
    pub(crate) waited: Option<Duration>,
    /// .. and what its marks are raised to then: the highest of these numbers that it believes in.
    pub(crate) marks: Option<String>,
}

/// What a server answers: a variant a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// `None`: the server does not remember what it was vetted for, and has done nothing.
    Acquire(Option<Acquire>),
    Count(Count),
    /// Of a lock that is kept, too: then nobody is told.
    Release(Release),
    HandOver(HandOver),
    /// True if it holds again, false if another holds it there.
    Retake(Told<bool>),
    Raise(Raise),
    /// For each in the order given. What too few replicas have is not renewed.
    Renew(Told<Vec<Renew>>),
    Inspect(Option<Standing>),
    /// Their names, none if the lock is free.
    Holders(Vec<String>),
    /// Whether it was theirs, and nobody else's.
    Force(bool),
    Vet(Identity),
    /// The memory as it is then.
    Amend(Remembrance),
    /// A number as a text. `None`: the server does not remember what it was vetted for.
    Highest(Option<String>),
}

/// What a server answered to an acquire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Acquire {
    /// All that was asked for, a fence a lock.
    Granted(Vec<Fence>),
    /// One is held by another, for at most this long if its lease is not renewed; `None`: it has no lease.
    Held(Option<Duration>),
    /// The same, to a locker that goes into the list.
    Listed(Option<Duration>, Place),
}

/// A locker's place in the list of those that wait for a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// So many are before it.
    Behind(u64),
    /// The server refused to put it there, in these words.
    Refused(String),
}

/// What a server answered to a write of the hold count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    Written,
    Gone,
}

/// What a server answered to a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Release {
    /// Released, and this many clients were told.
    Released(u64),
    /// Released, and another locker was woken; or others than the lockers of the list were, whose turn it is. So many
    /// are in the list before the locker that released, if it is there.
    PassedOn {
        place: Option<u64>,
        turn: bool,
        /// Whether others listen.
        others: bool,
    },
    /// Released, and all were told: the list cannot be used, in the server's words.
    Unlisted(String),
    Gone,
}

/// What a server answered to a hand-over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandOver {
    /// The first does not hold it any more, and the next one does.
    Granted(Fence),
    /// The first did not hold it, and nothing was taken.
    Gone,
}

/// What a server answered to the raise of a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Raise {
    Raised,
    Gone,
    /// The server does not believe that there is such a fence.
    TooHigh,
}

/// What a server answered for one lock of a renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Renew {
    Renewed,
    /// Deleted, somebody else's, or not a lock any more.
    Gone,
    /// The server could not do it, and says why.
    Failed(String),
}

/// An answer, and whether the server remembers what it was vetted for: then it is a vote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Told<T> {
    pub(crate) answer: T,
    pub(crate) remembers: bool,
}

/// Who stands in a lock's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) owner: Vec<u8>,
    pub(crate) count: u64,
    pub(crate) remaining: Option<Duration>,
}

/// Who a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Another one after each start.
    pub(crate) run_id: String,
    pub(crate) role: String,
    /// Of a replica.
    pub(crate) master: String,
    /// Of a master that was asked for it.
    pub(crate) memory: Option<Remembrance>,
}

/// A server's memory, as a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remembrance {
    pub(crate) memory: String,
    /// The longest lease that it was told of.
    pub(crate) lease: Duration,
    /// For how long it has been listed, at the least.
    pub(crate) age: Duration,
}

/// The error of whoever finds something else than a lock under the name of one.
pub(crate) fn no_lock(key: &Key, kind: &str) -> String {
    let what = if kind == "hash" { "hash that is no lock's" } else { kind };
    format!("WRONGTYPE {key:?} holds a {what}")
}

/// The SHA-1 of a text, as scripts have it from `redis.sha1hex`: the name of a holder, and of a script.
pub(crate) fn sha1(text: &[u8]) -> String {
    Sha1::from(text).digest().to_string()
}

/// PTTL says -1 for a key without a lease, and 0 for one that has less than a millisecond left.
pub(crate) fn remaining(ttl: i64) -> Option<Duration> {
    u64::try_from(ttl).ok().map(Duration::from_millis)
}

impl Command {
    /// The release of a lock that is to stand for a rest of time, if there is one: nobody is woken then.
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

    pub(crate) fn retake(self) -> Option<Told<bool>> {
        if let Self::Retake(answer) = self { Some(answer) } else { None }
    }

    pub(crate) fn raise(self) -> Option<Raise> {
        if let Self::Raise(answer) = self { Some(answer) } else { None }
    }

    pub(crate) fn renew(self) -> Option<Told<Vec<Renew>>> {
        if let Self::Renew(answer) = self { Some(answer) } else { None }
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

    pub(crate) fn amend(self) -> Option<Remembrance> {
        if let Self::Amend(answer) = self { Some(answer) } else { None }
    }

    pub(crate) fn highest(self) -> Option<Option<String>> {
        if let Self::Highest(answer) = self { Some(answer) } else { None }
    }
}
