//! Lengthens a lease.

use std::slice;
use std::time::Duration;

use super::refusal::{Subject, subjects};
use super::reply::yes_or_no;
use super::sending::Op;
use super::word::{field, lock, millis, written};
use crate::claim::Claim;
use crate::lua::Topology;
use crate::node::{Call, Reply, WordList};

/// Makes a held lock last for at least this long from now.
pub(crate) struct Extend {
    pub(crate) claim: Claim,
    pub(crate) lease: Duration,
}

impl Op for Extend {
    /// True if the claim holds the lock there, for at least the lease.
    type Output = bool;

    fn call(&self, topology: Topology) -> Call {
        let Self { claim, lease } = self;
        let words = WordList::new([lock(&claim.key)], [millis(*lease), field(claim)]);
        written(claim.kind.scripts.extend.on(topology), words)
    }

    fn read(&self, reply: &Reply) -> Option<bool> {
        yes_or_no(reply)
    }

    fn wrote(answer: &bool) -> bool {
        *answer
    }

    fn keys(&self, topology: Topology) -> Vec<Subject> {
        subjects(slice::from_ref(&self.claim), None, topology)
    }
}
