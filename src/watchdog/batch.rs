//! Batches of renewals on their way to a node: many keys a script, several in flight, none waiting for another.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::time::sleep;

use crate::clock::Instant;
use crate::node::Outcome;
use crate::quorum::{NodeIndex, Quorum};
use crate::script::{Renew, Renewal};

/// Beyond about a hundred keys a script gains nothing, and other clients wait for it.
const KEYS: usize = 100;

/// One hold that is to be renewed by the end of its tick.
#[derive(Debug)]
pub(super) struct Due {
    pub(super) generation: u64,
    pub(super) renewal: Renewal,
    pub(super) until: Instant,
}

/// What a node said to holds of a batch that was sent at this time.
#[derive(Debug)]
pub(super) struct Answers {
    pub(super) node: NodeIndex,
    pub(super) sent: Instant,
    pub(super) answers: Vec<(u64, Answer)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Renewed,
    Gone,
}

/// Sends the orders of one moment to every node.
pub(super) fn send(quorum: &Arc<Quorum>, orders: Vec<Due>, answers: &UnboundedSender<Answers>) {
    let Some(until) = orders.iter().map(|order| order.until).min() else { return };
    // One moment for all nodes: a majority is as valid with the first answers as with the last.
    let now = Instant::now();
    let mut orders: Vec<(u64, Renewal)> = orders.into_iter().map(|order| (order.generation, order.renewal)).collect();
    while !orders.is_empty() {
        let rest = orders.split_off(orders.len().min(KEYS));
        let batch = std::mem::replace(&mut orders, rest);
        for node in 0..quorum.nodes().len() {
            spawn(Arc::clone(quorum), node, batch.clone(), now, until, answers.clone());
        }
    }
}

fn spawn(
    quorum: Arc<Quorum>,
    node: NodeIndex,
    batch: Vec<(u64, Renewal)>,
    sent: Instant,
    until: Instant,
    answers: UnboundedSender<Answers>,
) {
    tokio::spawn(renew(quorum, node, batch, sent, until, answers));
}

/// Renews a batch on one node. Renewals are idempotent: anything but an answer is tried again until the tick is over.
/// Ends then at the latest; the wheel does not wait for it.
async fn renew(
    quorum: Arc<Quorum>,
    node: NodeIndex,
    mut batch: Vec<(u64, Renewal)>,
    mut sent: Instant,
    until: Instant,
    answers: UnboundedSender<Answers>,
) {
    loop {
        let renewals: Vec<Renewal> = batch.iter().map(|(_, renewal)| renewal.clone()).collect();
        let reason = match quorum.renew(node, &renewals).await {
            Outcome::Done(said) => {
                let (known, failed) = sort(batch, said);
                // The wheel is gone when the engine ends, and then nobody wants to know.
                let _: Result<_, _> = answers.send(Answers { node, sent, answers: known });
                let Some((_, (_, reason))) = failed.first() else { return };
                let reason = reason.clone();
                batch = failed.into_iter().map(|(generation, (renewal, _))| (generation, renewal)).collect();
                reason
            }
            // The server refused the whole batch for the sake of one key, perhaps: each is asked for by itself.
            Outcome::Refused(_) if batch.len() > 1 => {
                for item in batch {
                    spawn(Arc::clone(&quorum), node, vec![item], Instant::now(), until, answers.clone());
                }
                return;
            }
            Outcome::Refused(error) => match std::error::Error::source(&error) {
                Some(source) => source.to_string(),
                None => error.to_string(),
            },
            Outcome::NotExecuted(failure) | Outcome::Unknown(failure) => failure.reason,
        };
        tracing::debug!(node = %quorum.nodes()[node].name(), keys = batch.len(), reason, "a renewal has no answer");
        let pause = Duration::from_millis(20).min(Instant::now().until(until) / 4);
        sleep(pause.max(Duration::from_millis(1))).await;
        sent = Instant::now();
        if sent >= until {
            return;
        }
    }
}

/// A hold that a node could not renew, and why.
type Failed = (u64, (Renewal, String));

fn sort(batch: Vec<(u64, Renewal)>, said: Vec<Renew>) -> (Vec<(u64, Answer)>, Vec<Failed>) {
    let (mut known, mut failed) = (Vec::with_capacity(batch.len()), Vec::new());
    for ((generation, renewal), answer) in batch.into_iter().zip(said) {
        match answer {
            Renew::Renewed => known.push((generation, Answer::Renewed)),
            Renew::Gone => known.push((generation, Answer::Gone)),
            Renew::Failed(reason) => failed.push((generation, (renewal, reason))),
        }
    }
    (known, failed)
}
