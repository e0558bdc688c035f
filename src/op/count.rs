//! Writes the hold count.

use std::slice;

use super::refusal::{Subject, subjects};
use super::reply::yes_or_no;
use super::sending::Op;
use super::word::{alone, field, lock, number};
use crate::claim::Claim;
use crate::lua::Topology;
use crate::node::{Call, Reply, WordList};

/// Writes the hold count of a lock.
pub(crate) struct WriteCount {
    pub(crate) claim: Claim,
    pub(crate) count: u32,
}

impl Op for WriteCount {
    /// Whether it is written; if not, the claim does not hold the lock there.
    type Output = bool;

    fn call(&self, topology: Topology) -> Call {
        let Self { claim, count } = self;
        let words = WordList::new([lock(&claim.key)], [field(claim), number(*count)]);
        alone(claim.kind.scripts.count.on(topology), words)
    }

    fn read(&self, reply: &Reply) -> Option<bool> {
        yes_or_no(reply)
    }

    fn keys(&self, topology: Topology) -> Vec<Subject> {
        subjects(slice::from_ref(&self.claim), None, topology)
    }
}
