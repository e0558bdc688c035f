//! Re-acquires a lock on a server that lost it.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use super::refusal::{Subject, subjects};
use super::reply::{is_forgotten, yes_or_no};
use super::sending::Op;
use super::word::{field, lock, millis, number};
use crate::claim::Claim;
use crate::lua::Topology;
use crate::node::{Call, Reply, WordList};

/// Re-acquires a held lock on a server that lost it. A server without the memory for the vote does
/// nothing.
pub(crate) struct Retake {
    pub(crate) claim: Claim,
    pub(crate) lease: Duration,
    pub(crate) count: u32,
    pub(crate) vote: Option<Arc<str>>,
}

impl Op for Retake {
    /// True if the claim holds the lock again, false if another holds it there; `None` as for an
    /// acquire.
    type Output = Option<bool>;

    fn call(&self, topology: Topology) -> Call {
        let Self {
            claim,
            lease,
            count,
            vote,
        } = self;
        Call::Script {
            lua: claim.kind.scripts.retake.for_vote(topology, vote),
            words: WordList::new(
                [lock(&claim.key)],
                [millis(*lease), field(claim), number(*count)],
            ),
            vote: vote.clone(),
            acknowledged: true,
        }
    }

    fn read(&self, reply: &Reply) -> Option<Option<bool>> {
        if is_forgotten(reply) {
            Some(None)
        } else {
            yes_or_no(reply).map(Some)
        }
    }

    fn wrote(answer: &Option<bool>) -> bool {
        *answer == Some(true)
    }

    fn keys(&self, topology: Topology) -> Vec<Subject> {
        subjects(slice::from_ref(&self.claim), None, topology)
    }
}
