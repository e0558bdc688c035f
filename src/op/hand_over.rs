//! Hands a lock over.

use std::slice;
use std::time::Duration;

use super::refusal::{Subject, subjects};
use super::reply::{fence, is_gone};
use super::sending::Op;
use super::word::{batched, counter, field, lock, millis, number};
use crate::claim::Claim;
use crate::fence::{Fence, Source};
use crate::lua::Topology;
use crate::node::{Call, Reply, Step, WordList};

/// Releases a lock and takes it for the next claim, if it is still held under the first. It is
/// never a vote.
pub(crate) struct HandOver {
    pub(crate) from: Claim,
    pub(crate) to: Claim,
    pub(crate) lease: Duration,
    pub(crate) fences: Source,
}

/// What a server answered to a hand-over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandOverAnswer {
    /// The first claim no longer holds the lock, and the next one does.
    Granted(Fence),
    /// The first claim did not hold the lock, and nothing was taken.
    Gone,
}

impl Op for HandOver {
    type Output = HandOverAnswer;

    fn call(&self, topology: Topology) -> Call {
        let Self {
            from,
            to,
            lease,
            fences,
        } = self;
        let scripts = &to.kind.scripts;
        let args = [
            millis(*lease),
            field(to),
            number(fences.clock()),
            field(from),
        ];
        Call::Step(Step {
            alone: scripts.hand_over.on(topology),
            batched: Some(batched(scripts, topology, "hand_over")),
            words: WordList::new([lock(&to.key), counter(to, *fences, topology)], args),
            vote: None,
            takes: true,
            idle: is_gone,
            slot: None,
        })
    }

    fn read(&self, reply: &Reply) -> Option<HandOverAnswer> {
        match reply {
            Reply::Array(items) => match items.as_slice() {
                [Reply::Int(1), given] => fence(given).map(HandOverAnswer::Granted),
                _ => None,
            },
            reply => is_gone(reply).then_some(HandOverAnswer::Gone),
        }
    }

    fn wrote(answer: &HandOverAnswer) -> bool {
        matches!(answer, HandOverAnswer::Granted(_))
    }

    fn keys(&self, topology: Topology) -> Vec<Subject> {
        subjects(slice::from_ref(&self.to), Some(self.fences), topology)
    }
}
