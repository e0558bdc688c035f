//! Undos on one node that have no answer yet, each known by a number.

use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

use super::was_there;
use crate::command::{Answer, Claim, Command, Wakes};
use crate::node::{Lane, Node, Outcome};
use crate::script;

type Call = Pin<Box<dyn Future<Output = (u64, Outcome<bool>)> + Send>>;

/// Undos that are under way on one node. What is left when this is dropped may be executed, and nobody hears of it.
pub(crate) struct Undoing {
    node: Arc<Node>,
    wakes: Wakes,
    calls: FuturesUnordered<Call>,
}

impl Undoing {
    pub(super) fn new(node: Arc<Node>, wakes: Wakes) -> Self {
        Self { node, wakes, calls: FuturesUnordered::new() }
    }

    /// Releases a lock, behind whatever was sent to take it. It is sent when the next answer is asked for. The lock
    /// stands for the rest of its time, if there is one.
    pub(crate) fn send(&self, number: u64, claim: Claim, rest: Option<Duration>) {
        let (node, wakes) = (Arc::clone(&self.node), self.wakes.clone());
        self.calls.push(Box::pin(async move {
            let key = claim.key.clone();
            let release = Command::release(claim, rest, wakes);
            let answer = script::ask(&node, Lane::Grants, release, Answer::release).await;
            (number, answer.map(|release| was_there(&key, &release)))
        }));
    }

    /// The next answer: the number of its undo, and whether there was anything to undo. Waits while none is under way.
    pub(crate) async fn next(&mut self) -> (u64, Outcome<bool>) {
        match self.calls.next().await {
            Some(answer) => answer,
            None => pending().await,
        }
    }
}
