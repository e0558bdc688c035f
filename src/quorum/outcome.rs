//! The outcomes of operations on all nodes.

use std::time::Duration;

use crate::command::Place;
use crate::error::{Error, NodeFailure};
use crate::fence::Fence;
use crate::lease::NodeIndex;

/// The outcome of an acquire on all nodes, with what was made of a grant.
#[derive(Debug)]
pub(crate) enum Acquired<G = Majority> {
    Granted(G),
    /// A majority says that another holds it.
    Held {
        /// When a majority may be free, if its leases tell.
        ttl: Option<Duration>,
        /// Whether some nodes said yes all the same: several callers want it at once.
        contested: bool,
        /// The place of a locker that waits, if there is a list.
        place: Option<Place>,
    },
    /// A majority answered, and nobody has a majority: several callers want it at once.
    Split,
    /// The first node says that another has it, and no other node was asked.
    Outrun,
    /// A server refused the command.
    Refused(Error),
    /// No majority answered.
    Unavailable(Vec<NodeFailure>),
}

impl<G> Acquired<G> {
    /// Replaces a grant by what `make` makes of it.
    pub(crate) fn and_then<H>(self, make: impl FnOnce(G) -> Acquired<H>) -> Acquired<H> {
        match self {
            Self::Granted(granted) => make(granted),
            Self::Held { ttl, contested, place } => Acquired::Held { ttl, contested, place },
            Self::Split => Acquired::Split,
            Self::Outrun => Acquired::Outrun,
            Self::Refused(error) => Acquired::Refused(error),
            Self::Unavailable(nodes) => Acquired::Unavailable(nodes),
        }
    }
}

/// The yes of a majority.
#[derive(Debug)]
pub(crate) struct Majority {
    /// One for each lock.
    pub(crate) fences: Vec<Fence>,
    /// The nodes that gave them.
    pub(crate) votes: Vec<NodeIndex>,
}

/// The outcome of a write of the count, or of a release, on all nodes.
#[derive(Debug)]
pub(crate) enum Settled {
    Done,
    /// So many nodes say that the lock is not ours that no majority can have it.
    Gone,
    Refused(Error),
    /// No majority answered.
    Unanswered(Vec<NodeFailure>),
}
