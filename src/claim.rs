//! What all layers say about a lock that is held or requested, and about its release.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::key::Key;
use crate::kind::{FAIR, Kind};
use crate::owner::Owner;

/// A lock, or permits of a semaphore, held or requested: the key, and the field that is there while
/// it is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) kind: &'static Kind,
    pub(crate) key: Key,
    pub(crate) field: Arc<str>,
    /// How many permits it is of, if it is of a semaphore.
    pub(crate) permits: u32,
}

/// What the name of a ticket ends with: so it is no field.
const TICKET: &str = ":ticket";

impl Claim {
    /// Returns what a caller has in the queue of a fair lock: its claim to be next.
    pub(crate) fn of_ticket(key: Key, ticket: &str) -> Self {
        Self {
            kind: &FAIR,
            key,
            field: ticket.into(),
            permits: 0,
        }
    }

    /// Returns the ticket of a caller with this number.
    pub(crate) fn ticket(locker: Uuid, owner: &Owner, number: u64) -> String {
        owner.field(locker, number, TICKET)
    }

    /// Returns whether it is a caller's place in a queue, and no lock.
    pub(crate) fn is_ticket(&self) -> bool {
        self.kind == &FAIR && self.field.ends_with(TICKET)
    }
}

/// What an acquire says beside its claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum How {
    Plainly,
    /// The locker goes into the lock's waiting list if the lock is not granted. For a single lock.
    Listed(Listing),
    /// As a reader or a writer.
    Among(Among),
    /// Permits for as many of the claims as there are enough for, in their order.
    Permits {
        /// How many there are, if no client has said so yet.
        capacity: Option<u32>,
        /// The lease of the locker, whatever that of the caller is.
        of_locker: Duration,
    },
    /// In the order of the queue.
    InTurn(InTurn),
}

impl From<Option<Listing>> for How {
    fn from(listing: Option<Listing>) -> Self {
        listing.map_or(Self::Plainly, Self::Listed)
    }
}

/// How a reader or a writer asks among others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Among {
    pub(crate) locker: Arc<str>,
    /// For a read inside a write hold of its owner: the field of that hold.
    pub(crate) under: Option<Arc<str>>,
    /// If it waits when it is refused: how long the server keeps the hint of that, so that the
    /// other role lets it in.
    pub(crate) hint: Option<Duration>,
    /// How long a reader that waits may take to come once it is told.
    pub(crate) comes: Duration,
}

/// How a locker asks for a fair lock.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct InTurn {
    /// The tickets of its callers in their order, the first one that of the claim. None for a
    /// caller that does not wait.
    pub(crate) tickets: Arc<[String]>,
    /// The ticket of somebody who is next and does not come, and is passed.
    pub(crate) passed: Option<Arc<str>>,
    /// How long the tickets stand in the queue without another ask.
    pub(crate) stands: Duration,
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
    /// The next locker of the list or, without a list, all subscribers. The `Releaser` describes
    /// the locker that releases.
    Next(Option<Releaser>),
}

/// The locker that releases a lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Releaser {
    pub(crate) locker: Arc<str>,
    /// Other callers of it wait, so it goes behind the other lockers of the list. A list with no
    /// other counts as none.
    pub(crate) enlists: bool,
    /// It is subscribed to the channel, and is not in the list.
    pub(crate) listens: bool,
    /// Subscribers that are in no list may be told instead, and have this turn.
    pub(crate) offers: Option<Duration>,
    /// The lifetime of the list. It is renewed when less than half is left.
    pub(crate) lifetime: Duration,
}

/// What a server answered to a release.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ReleaseAnswer {
    /// Released, and this many clients got the message.
    Released(u64),
    /// Released, and another locker was woken or, with `turn`, clients that are not in the list
    /// were. `place` is the number of lockers in the list before the one that released, if it is
    /// there.
    PassedOn {
        place: Option<u64>,
        turn: Option<Duration>,
        /// How many clients are subscribed that are not in the list.
        others: u64,
        /// How many lockers are in the list.
        waiting: u64,
    },
    /// Released, and all subscribers were told: the list cannot be used, because of this error of
    /// the server.
    Unlisted(String),
    Gone,
}
