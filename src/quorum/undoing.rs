//! Sends undos to one node, and returns their answers by number.

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

/// The undos that are under way on one node. Those that are left when this is dropped may be executed, and their
/// answers are lost.
pub(crate) struct Undoing {
    node: Arc<Node>,
    calls: FuturesUnordered<Call>,
}

impl Undoing {
    pub(super) fn new(node: Arc<Node>) -> Self {
        Self { node, calls: FuturesUnordered::new() }
    }

    /// Releases a lock, behind whatever was sent to take it. The undo is sent when the next answer is asked for. With a
    /// `rest`, the lock is kept for that long.
    pub(crate) fn send(&self, number: u64, claim: Claim, rest: Option<Duration>, wakes: Wakes) {
        let node = Arc::clone(&self.node);
        self.calls.push(Box::pin(async move {
            let key = claim.key.clone();
            let release = Command::release(claim, rest, wakes);
            let answer = script::ask(&node, Lane::Grants, &release, Answer::release).await;
            (number, answer.map(|release| was_there(&key, &release)))
        }));
    }

    /// Returns the next answer: the number of its undo, and whether there was anything to undo. Waits if none is under
    /// way.
    pub(crate) async fn next(&mut self) -> (u64, Outcome<bool>) {
        match self.calls.next().await {
            Some(answer) => answer,
            None => pending().await,
        }
    }
}
