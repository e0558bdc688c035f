//! Commands as Lua scripts, on a node that is a Redis. Nothing else includes or knows the scripts.

mod reading;
mod refusal;
mod slots;
mod words;

use self::reading::{idle, read};
use self::words::{Topology, Words};
use crate::command::{Acquire, Answer, Command, HandOver, Raise, Renew};
use crate::node::{Call, Lane, Node, Outcome, ReplicaAck, Reply, Server, Step};

/// Lets a node execute a command once, and reads the answer.
pub(crate) async fn ask<T>(
    node: &Node,
    lane: Lane,
    command: &Command,
    answer: impl FnOnce(Answer) -> Option<T>,
) -> Outcome<T> {
    run(node, lane, command).await.only(node.name(), answer)
}

/// Lets a node execute a command once.
async fn run(node: &Node, lane: Lane, command: &Command) -> Outcome<Answer> {
    match node.server() {
        Server::Redis(redis) => {
            let call = call(command, Words::of(command, Topology::OneServer));
            let answer = answer(node, command, redis.call(lane, call).await).await;
            if !refusal::is_vague(&answer) {
                return answer;
            }
            let ask = async |call| redis.call(lane, call).await.0;
            Box::pin(refusal::explain(answer, command, Topology::OneServer, ask)).await
        }
        // Boxed, like all that is larger than the way of a lock on one server: a future takes the space of its largest
        // part, and each lock and each release moves one several times.
        Server::Cluster(cluster) => Box::pin(slots::run(cluster, node, lane, command.clone())).await,
        #[cfg(feature = "testing")]
        Server::Memory(memory) => {
            let ask = async |call| memory.call(&call, command.is_of_a_label()).await;
            let reply = ask(call(command, Words::of(command, Topology::OneServer))).await;
            let answer = read(node.name(), command, reply);
            if !refusal::is_vague(&answer) {
                return answer;
            }
            Box::pin(refusal::explain(answer, command, Topology::OneServer, ask)).await
        }
    }
}

/// Returns the script of a command.
fn call(command: &Command, words: Words) -> Call {
    let Words { lua, batched, vote, words } = words;
    match command {
        Command::Acquire { .. } | Command::Release { .. } | Command::HandOver { .. } | Command::Keep { .. } => {
            let takes = command.takes();
            Call::Step(Step { alone: lua, batched, vote, words, takes, acknowledged: takes, idle, slot: None })
        }
        _ => {
            let acknowledged = matches!(
                command,
                Command::Retake { .. } | Command::Extend { .. } | Command::Raise { .. } | Command::Renew { .. }
            );
            Call::Script { lua, words, vote, acknowledged }
        }
    }
}

/// Reads the answer to a command, once enough replicas have what was written.
async fn answer(node: &Node, command: &Command, (reply, ack): (Outcome<Reply>, ReplicaAck)) -> Outcome<Answer> {
    let answer = read(node.name(), command, reply);
    if ack.is_moot() { answer } else { Box::pin(acknowledge(answer, ack)).await }
}

/// Waits until enough replicas have what was written. The answer "gone" does not wait for them.
async fn acknowledge(mut answer: Outcome<Answer>, ack: ReplicaAck) -> Outcome<Answer> {
    if let Outcome::Done(Answer::Renew(renewed)) = &mut answer {
        if renewed.contains(&Renew::Renewed)
            && let Err(failure) = ack.confirm().await
        {
            for answer in renewed.iter_mut().filter(|answer| **answer == Renew::Renewed) {
                *answer = Renew::Failed(failure.reason.clone());
            }
        }
        return answer;
    }
    ack.cover(answer, wrote).await
}

fn wrote(answer: &Answer) -> bool {
    matches!(
        answer,
        Answer::Acquire(Some(Acquire::Granted(_)))
            | Answer::HandOver(HandOver::Granted(_))
            | Answer::Retake(Some(true))
            | Answer::Extend(true)
            | Answer::Raise(Raise::Raised)
    )
}
