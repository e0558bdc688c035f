//! Raises a mark.

use super::reply::int;
use super::sending::Op;
use super::word::{field, lock, mark, number, written};
use crate::claim::Claim;
use crate::fence::Fence;
use crate::lua::Topology;
use crate::node::{Call, Reply, WordList};

/// Raises the mark of a lock that is held there to this fence, unless the mark is higher already.
pub(crate) struct Raise {
    pub(crate) claim: Claim,
    pub(crate) fence: Fence,
}

/// What a server answered to the raise of a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RaiseAnswer {
    Raised,
    Gone,
    /// The fence is too far ahead of the server's clock.
    TooHigh,
}

impl Op for Raise {
    type Output = RaiseAnswer;

    fn call(&self, topology: Topology) -> Call {
        let Self { claim, fence } = self;
        let keys = [lock(&claim.key), mark(&claim.key, topology)];
        written(
            claim.kind.scripts.raise.on(topology),
            WordList::new(keys, [field(claim), number(fence.get())]),
        )
    }

    fn read(&self, reply: &Reply) -> Option<RaiseAnswer> {
        match int(reply)? {
            1 => Some(RaiseAnswer::Raised),
            0 => Some(RaiseAnswer::Gone),
            -1 => Some(RaiseAnswer::TooHigh),
            _ => None,
        }
    }

    fn wrote(answer: &RaiseAnswer) -> bool {
        *answer == RaiseAnswer::Raised
    }
}
