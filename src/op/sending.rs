//! Sends an operation to a node, and reads the answer.

use std::sync::Arc;

use super::refusal::{Subject, explain, is_vague};
use super::slots::torn;
use crate::error::Error;
use crate::key::Key;
use crate::lua::Topology;
use crate::node::{Backend, Call, Cluster, Lane, Node, Outcome, ReplicaAck, Reply};

/// An operation on a server.
pub(crate) trait Op: Sync + Sized {
    /// The server's answer.
    type Output: Send;

    /// Whether it is about no lock, but about what a locker calls itself.
    #[cfg(feature = "testing")]
    const IS_OF_LABEL: bool = false;

    /// The connection that a quorum sends it on. Replicas acknowledge nothing on that of the
    /// commands.
    const LANE: Lane = Lane::Commands;

    /// Returns its script, with keys and arguments.
    fn call(&self, topology: Topology) -> Call;

    /// Reads a reply; `None` if its script returns no such reply.
    fn read(&self, reply: &Reply) -> Option<Self::Output>;

    /// Returns the error that a reply stands for.
    fn error(&self, _node: &Arc<str>, _reply: &Reply) -> Option<Error> {
        None
    }

    /// Returns whether an answer says that something was written that replicas have to acknowledge.
    fn wrote(_answer: &Self::Output) -> bool {
        false
    }

    /// Waits until enough replicas have what was written. Other answers do not wait for them.
    fn acknowledged(
        answer: Outcome<Self::Output>,
        ack: ReplicaAck,
    ) -> impl Future<Output = Outcome<Self::Output>> + Send {
        ack.cover(answer, Self::wrote)
    }

    /// Returns the keys that a refusal may be about.
    fn keys(&self, _topology: Topology) -> Vec<Subject> {
        Vec::new()
    }

    /// Sends it to a cluster, where a script may have keys of one slot only.
    fn on_cluster(
        &self,
        route: &ClusterRoute<'_>,
    ) -> impl Future<Output = Outcome<Self::Output>> + Send {
        route.ask(self)
    }
}

/// Lets a node carry out an operation once.
pub(crate) async fn ask<O: Op>(node: &Node, lane: Lane, op: &O) -> Outcome<O::Output> {
    match node.server() {
        Backend::Redis(redis) => {
            let answer = answer(
                node,
                op,
                redis.call(lane, op.call(Topology::OneServer)).await,
            )
            .await;
            if !is_vague(&answer) {
                return answer;
            }
            let ask = async |call| redis.call(lane, call).await.0;
            Box::pin(explain(answer, op.keys(Topology::OneServer), ask)).await
        }
        // Boxed, like all that is larger than the way of a lock on one server: a future takes the
        // space of its largest part, and each lock and each release moves one several times.
        Backend::Cluster(cluster) => {
            Box::pin(op.on_cluster(&ClusterRoute {
                cluster,
                node,
                lane,
            }))
            .await
        }
        #[cfg(feature = "testing")]
        Backend::Memory(memory) => {
            let ask = async |call| memory.call(&call, O::IS_OF_LABEL).await;
            let answer = read(node, op, ask(op.call(Topology::OneServer)).await);
            if !is_vague(&answer) {
                return answer;
            }
            Box::pin(explain(answer, op.keys(Topology::OneServer), ask)).await
        }
    }
}

/// A cluster, and which of the connections to its masters.
pub(crate) struct ClusterRoute<'a> {
    cluster: &'a Cluster,
    pub(super) node: &'a Node,
    lane: Lane,
}

impl ClusterRoute<'_> {
    /// Sends an operation whose keys are in one slot.
    pub(super) async fn ask<O: Op>(&self, op: &O) -> Outcome<O::Output> {
        let send = async |call| self.cluster.call(self.lane, call).await;
        let answer = answer(self.node, op, send(op.call(Topology::Cluster)).await).await;
        if !is_vague(&answer) {
            return answer;
        }
        Box::pin(explain(answer, op.keys(Topology::Cluster), async |call| {
            send(call).await.0
        }))
        .await
    }

    /// Sends an operation of this lock, unless the lock is in another slot than its messages.
    pub(super) async fn ask_at<O: Op>(&self, key: &Key, op: &O) -> Outcome<O::Output> {
        match torn(key) {
            Some(error) => Outcome::Refused(error),
            None => self.ask(op).await,
        }
    }
}

/// Reads the answer, once enough replicas have what was written.
async fn answer<O: Op>(
    node: &Node,
    op: &O,
    (reply, ack): (Outcome<Reply>, ReplicaAck),
) -> Outcome<O::Output> {
    let answer = read(node, op, reply);
    if ack.is_moot() {
        answer
    } else {
        Box::pin(O::acknowledged(answer, ack)).await
    }
}

fn read<O: Op>(node: &Node, op: &O, reply: Outcome<Reply>) -> Outcome<O::Output> {
    if let Outcome::Done(reply) = &reply
        && let Some(error) = op.error(node.name(), reply)
    {
        return Outcome::Refused(error);
    }
    reply.and_then(node.name(), |reply| op.read(reply))
}
