//! The facts of a hold, and the answers of its methods.

use std::num::NonZeroU32;
use std::time::Duration;

use super::HoldState;
use crate::claim::Claim;
use crate::clock::Instant;
use crate::error::Loss;
use crate::fence::Fence;
use crate::identity::Origin;
#[cfg(test)]
use crate::kind::Format;
use crate::kind::Kind;
use crate::lease::NodeIndex;
use crate::owner::Owner;

/// How long a hold may last. Terms belong to the outermost acquisition; re-entries neither shorten
/// nor lengthen them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) lease: Duration,
    /// Whether the watchdog renews the lease.
    pub(crate) renewed: bool,
    pub(crate) max_hold: Option<Duration>,
}

/// What a caller asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Want {
    pub(crate) kind: &'static Kind,
    pub(crate) terms: Terms,
    /// How many permits, of a semaphore.
    pub(crate) permits: u32,
    /// How many permits there are, if the caller says so. Small, since each waiter has it.
    pub(crate) capacity: Option<NonZeroU32>,
}

impl Want {
    /// Wants a lock of this kind.
    pub(crate) const fn new(kind: &'static Kind, terms: Terms) -> Self {
        Self {
            kind,
            terms,
            permits: 0,
            capacity: None,
        }
    }
}

#[cfg(test)]
impl Want {
    /// Wants a lock of the default format.
    pub(crate) const fn of_lock(terms: Terms) -> Self {
        Self::new(Format::Redisson.kind(), terms)
    }
}

/// The facts of an acquisition.
#[derive(Debug)]
pub(crate) struct Grant<'a> {
    pub(crate) claim: Claim,
    pub(crate) owner: Owner,
    pub(crate) origin: Origin,
    pub(crate) generation: u64,
    pub(crate) fence: Fence,
    pub(crate) terms: Terms,
    /// The time before the acquire was sent.
    pub(crate) since: Instant,
    /// When its answer arrived.
    pub(crate) granted: Instant,
    /// How long its caller may leave it untaken.
    pub(crate) patience: Duration,
    /// The nodes that granted it, out of `nodes`.
    pub(crate) votes: &'a [NodeIndex],
    pub(crate) nodes: usize,
    /// Whether other readers may come in beside it.
    pub(crate) opens: bool,
}

/// What the watchdog needs to know of a hold, read in one step, since other threads change it
/// meanwhile.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Survey {
    pub(crate) state: HoldState,
    pub(crate) claims: Claims,
    pub(crate) valid_until: Instant,
}

/// What callers have taken of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claims {
    /// Whether any caller has a guard: without one the hold is not renewed.
    pub(crate) claimed: bool,
    /// When guards that no caller has taken are revoked, if there are any.
    pub(crate) revoke_at: Option<Instant>,
}

/// The result of dropping a guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leave {
    /// This many guards remain.
    Nested(u32),
    /// It was the last: its release has to be sent.
    Last,
    /// The hold was lost. The release of the last guard has to be sent all the same.
    Lost { loss: Loss, last: bool },
}

/// Why a hold cannot be entered again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EnterError {
    Releasing,
    Lost(Loss),
}
