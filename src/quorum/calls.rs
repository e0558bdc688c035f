//! A call to all nodes at once, whose answers arrive one by one.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use tokio::time::timeout;

use crate::clock::Instant;
use crate::lease::NodeIndex;
use crate::node::Outcome;
use crate::tasks;

type PendingCall<T> = Pin<Box<dyn Future<Output = Outcome<T>> + Send>>;

/// The calls that have no answer yet. A decision does not wait for all of them, and none is cut
/// off: calls that are left when this is dropped continue as a task of the engine, which ignores
/// their answers.
pub(crate) struct Calls<T: Send + 'static>(Waiting<T>);

/// There are so few that all of them are polled on each wake-up: that is cheaper than tracking
/// which one woke.
struct Waiting<T>(Vec<(NodeIndex, PendingCall<T>)>);

impl<T> Waiting<T> {
    async fn next(&mut self) -> Option<(NodeIndex, Outcome<T>)> {
        poll_fn(|cx| {
            for at in 0..self.0.len() {
                let (node, call) = &mut self.0[at];
                if let Poll::Ready(outcome) = call.as_mut().poll(cx) {
                    let answer = (*node, outcome);
                    drop(self.0.remove(at));
                    return Poll::Ready(Some(answer));
                }
            }
            if self.0.is_empty() {
                Poll::Ready(None)
            } else {
                Poll::Pending
            }
        })
        .await
    }
}

impl<T: Send + 'static> Calls<T> {
    pub(crate) fn new<F>(calls: impl Iterator<Item = (NodeIndex, F)>) -> Self
    where
        F: Future<Output = Outcome<T>> + Send + 'static,
    {
        let mut all = Self::none();
        all.extend(calls);
        all
    }

    pub(crate) fn none() -> Self {
        Self(Waiting(Vec::new()))
    }

    /// Adds further calls.
    pub(crate) fn extend<F>(&mut self, calls: impl Iterator<Item = (NodeIndex, F)>)
    where
        F: Future<Output = Outcome<T>> + Send + 'static,
    {
        let boxed = |(node, call): (NodeIndex, F)| -> (NodeIndex, PendingCall<T>) {
            (node, Box::pin(call))
        };
        self.0.0.extend(calls.map(boxed));
    }

    /// Returns the next answer of any node; `None` once all have answered.
    pub(crate) async fn next(&mut self) -> Option<(NodeIndex, Outcome<T>)> {
        self.0.next().await
    }

    /// Returns the next answer, if it comes before the time that is given, if any.
    pub(crate) async fn next_by(
        &mut self,
        until: Option<Instant>,
    ) -> Option<(NodeIndex, Outcome<T>)> {
        match until {
            None => self.next().await,
            // Boxed: it is larger than all else, and one server never needs it.
            Some(until) => Box::pin(timeout(Instant::now().until(until), self.next()))
                .await
                .unwrap_or(None),
        }
    }

    /// Returns the nodes that have not answered yet.
    pub(crate) fn missing(&self) -> impl Iterator<Item = NodeIndex> {
        self.0.0.iter().map(|(node, _)| *node)
    }
}

impl<T: Send + 'static> Drop for Calls<T> {
    fn drop(&mut self) {
        let mut rest = Waiting(std::mem::take(&mut self.0.0));
        if rest.0.is_empty() {
            return;
        }
        // If there is no runtime, the engine has ended, and the connections with it.
        if tokio::runtime::Handle::try_current().is_ok() {
            tasks::spawn(async move { while rest.next().await.is_some() {} });
        }
    }
}

impl<T: Send + 'static> std::fmt::Debug for Calls<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.missing()).finish()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_call_that_nobody_waits_for_runs_to_its_end() {
        let ((answer, answered), (ended, end)) = (oneshot::channel::<()>(), oneshot::channel());
        let call = async {
            answered.await.expect("it is answered");
            ended.send(()).expect("the test waits for it");
            Outcome::Done(())
        };
        let mut calls = Calls::new([(0, call)].into_iter());
        assert!(
            calls.next_by(Some(Instant::now())).await.is_none(),
            "it has begun"
        );
        drop(calls);
        answer.send(()).expect("it is still in flight");
        end.await.expect("it has gone on");
    }
}
