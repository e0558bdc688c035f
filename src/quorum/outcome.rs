//! The outcomes of operations on all nodes.

use std::time::Duration;

use super::calls::Calls;
use crate::error::{Error, NodeFailure};
use crate::fence::Fence;
use crate::lease::NodeIndex;
use crate::op::{AcquireAnswer, ListPlace, Served};

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
        place: Option<ListPlace>,
    },
    /// A majority answered, and no caller has a majority: several callers want it at once.
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
            Self::Held {
                ttl,
                contested,
                place,
            } => Acquired::Held {
                ttl,
                contested,
                place,
            },
            Self::Split => Acquired::Split,
            Self::Outrun => Acquired::Outrun,
            Self::Refused(error) => Acquired::Refused(error),
            Self::Unavailable(nodes) => Acquired::Unavailable(nodes),
        }
    }
}

/// An acquire's outcome, and what has to be undone if it was not granted.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) acquired: Acquired,
    /// Nodes that granted it: one release is enough there.
    pub(crate) taken: Vec<NodeIndex>,
    /// Nodes that may have granted it, or may yet.
    pub(crate) uncertain: Vec<NodeIndex>,
    /// Nodes that have not answered yet.
    pub(crate) late: Calls<AcquireAnswer>,
    /// How far the server came with callers that want permits.
    pub(crate) served: Option<Served>,
    /// Whether a node has another memory than the one that was vetted.
    pub(super) forgot: bool,
}

impl Round {
    /// Returns whether another round may have another outcome, because a node voted under a new
    /// memory by then.
    pub(crate) fn is_outdated(&self) -> bool {
        self.forgot && matches!(self.acquired, Acquired::Unavailable(_) | Acquired::Split)
    }
}

/// The yes of a majority.
#[derive(Debug)]
pub(crate) struct Majority {
    /// One for each lock, or for each caller that has its permits.
    pub(crate) fences: Vec<Fence>,
    /// The nodes that gave them.
    pub(crate) votes: Vec<NodeIndex>,
}

/// The outcome of a write of the count, or of a release, on all nodes.
#[derive(Debug)]
pub(crate) enum Settled {
    Done,
    /// Too many nodes say that the lock is not ours for a majority to have it.
    Gone,
    Refused(Error),
    /// No majority answered.
    Unanswered(Vec<NodeFailure>),
}
