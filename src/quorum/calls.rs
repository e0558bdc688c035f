//! One call on every node at once, answered one by one.

use std::future::Future;
use std::pin::Pin;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::timeout;

use super::NodeIndex;
use crate::clock::Instant;
use crate::node::Outcome;

type Call<T> = Pin<Box<dyn Future<Output = (NodeIndex, Outcome<T>)> + Send>>;

/// The calls that have no answer yet. A decision does not wait for all of them, and none of them is dropped half-way:
/// what is left when this is dropped goes on as a task of the engine, and its answers are for nobody.
pub(crate) struct Calls<T: Send + 'static> {
    waiting: FuturesUnordered<Call<T>>,
    missing: Vec<NodeIndex>,
}

impl<T: Send + 'static> Calls<T> {
    pub(crate) fn new<F>(calls: impl Iterator<Item = (NodeIndex, F)>) -> Self
    where
        F: Future<Output = Outcome<T>> + Send + 'static,
    {
        let mut missing = Vec::new();
        let numbered = |(node, call): (NodeIndex, F)| -> Call<T> {
            missing.push(node);
            Box::pin(async move { (node, call.await) })
        };
        Self { waiting: calls.map(numbered).collect(), missing }
    }

    /// The next answer, whose ever it is; `None` once all have answered.
    pub(crate) async fn next(&mut self) -> Option<(NodeIndex, Outcome<T>)> {
        let answer = self.waiting.next().await;
        if let Some((node, _)) = &answer {
            self.missing.retain(|missing| missing != node);
        }
        answer
    }

    /// The next answer, if it comes by then, where a time is given.
    pub(crate) async fn next_by(&mut self, until: Option<Instant>) -> Option<(NodeIndex, Outcome<T>)> {
        match until {
            None => self.next().await,
            Some(until) => timeout(Instant::now().until(until), self.next()).await.unwrap_or(None),
        }
    }

    /// The nodes that have not answered yet.
    pub(crate) fn missing(&self) -> &[NodeIndex] {
        &self.missing
    }
}

impl<T: Send + 'static> Drop for Calls<T> {
    fn drop(&mut self) {
        let mut rest = std::mem::take(&mut self.waiting);
        if rest.is_empty() {
            return;
        }
        // Without a runtime the engine has ended, and the connections with it.
        if let Ok(engine) = tokio::runtime::Handle::try_current() {
            engine.spawn(async move { while rest.next().await.is_some() {} });
        }
    }
}

impl<T: Send + 'static> std::fmt::Debug for Calls<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Calls").field("missing", &self.missing).finish()
    }
}
