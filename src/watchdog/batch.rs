//! Batches of renewals on their way to a node: many keys in one script, and several scripts in
//! flight that do not wait for each other.
//!
//! Renewals do not use the batcher of [`node`](crate::node). A batch is one command with many
//! claims, made by the schedule, which knows what is due together. The batcher joins commands of
//! different callers in the same moment into one script, each with its own answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::time::sleep;

use super::schedule::BATCH;
use crate::claim::Claim;
use crate::clock::Instant;
use crate::foreign::log;
use crate::hold::Hold;
use crate::lease::NodeIndex;
use crate::node::{Outcome, slot_of};
use crate::op::RenewAnswer;
use crate::quorum::Quorum;
use crate::stats::Counters;
use crate::tasks;

/// A hold that has to be renewed by the end of its tick.
#[derive(Debug)]
pub(super) struct DueRenewal {
    pub(super) hold: Arc<Hold>,
    pub(super) until: Instant,
}

/// The answers of a node for the holds of a batch that was sent at this time. Holds that it could
/// not renew are tried again.
#[derive(Debug)]
pub(super) struct Answers {
    pub(super) node: NodeIndex,
    pub(super) sent: Instant,
    pub(super) holds: Batch,
    pub(super) said: Vec<RenewAnswer>,
}

/// Holds that are renewed together on every node: they have the same lease and kind.
type Batch = Arc<[Arc<Hold>]>;

/// Sends all batches.
#[derive(Debug)]
pub(super) struct Sender {
    quorum: Arc<Quorum>,
    counters: Arc<Counters>,
    answers: UnboundedSender<Answers>,
}

impl Sender {
    pub(super) fn new(
        quorum: Arc<Quorum>,
        counters: Arc<Counters>,
        answers: UnboundedSender<Answers>,
    ) -> Arc<Self> {
        Arc::new(Self {
            quorum,
            counters,
            answers,
        })
    }

    /// Sends the renewals of one moment to every node.
    pub(super) fn send(self: &Arc<Self>, orders: &[DueRenewal]) {
        // All nodes get the same time of sending, so any majority of answers gives the same
        // validity.
        let now = Instant::now();
        let alike = |order: &DueRenewal| (order.hold.terms.lease, order.hold.claim.kind);
        for batch in orders
            .chunk_by(|a, b| alike(a) == alike(b))
            .flat_map(equal_chunks)
        {
            // No try of the batch lasts beyond the tick of any of its holds.
            let Some(until) = batch.iter().map(|order| order.until).min() else {
                continue;
            };
            let batch: Batch = batch.iter().map(|order| Arc::clone(&order.hold)).collect();
            for node in 0..self.quorum.nodes().len() {
                for part in self.parts(node, &batch) {
                    self.spawn(node, part, now, until);
                }
            }
        }
    }

    /// Splits a batch by the slots of a cluster, so that no slot waits for another's answer. For
    /// other servers it returns the whole batch.
    fn parts(&self, node: NodeIndex, batch: &Batch) -> Vec<Batch> {
        let node = &self.quorum.nodes()[node];
        if !node.is_cluster() {
            return vec![Arc::clone(batch)];
        }
        let mut parts: HashMap<_, Vec<Arc<Hold>>> = HashMap::new();
        for hold in batch.iter() {
            parts
                .entry(slot_of(&hold.claim.key.stored()))
                .or_default()
                .push(Arc::clone(hold));
        }
        parts.into_values().map(Into::into).collect()
    }

    fn spawn(self: &Arc<Self>, node: NodeIndex, batch: Batch, sent: Instant, until: Instant) {
        tasks::spawn(renew(Arc::clone(self), node, batch, sent, until));
    }
}

/// Renews a batch on one node. Renewals are idempotent, so without an answer it tries again until
/// the tick is over. It ends then at the latest; the wheel does not wait for it.
async fn renew(
    sender: Arc<Sender>,
    node: NodeIndex,
    mut batch: Batch,
    mut sent: Instant,
    until: Instant,
) {
    loop {
        let Some(lease) = batch.first().map(|hold| hold.terms.lease) else {
            return;
        };
        let claims: Arc<[Claim]> = batch.iter().map(|hold| hold.claim.clone()).collect();
        sender.counters.batch_sent(batch.len());
        let outcome = sender.quorum.renew(node, claims, lease).await;
        let reason = match outcome {
            Outcome::Done(said) => {
                sender
                    .counters
                    .batch_answered(node, Instant::now().since(sent));
                let failed = failed(&batch, &said);
                // If the wheel is gone, the engine has ended, and the answer does not matter.
                let _: Result<_, _> = sender.answers.send(Answers {
                    node,
                    sent,
                    holds: batch,
                    said,
                });
                let Some((holds, reason)) = failed else {
                    return;
                };
                batch = holds;
                reason
            }
            // The server may have refused the whole batch because of one key, so each hold is
            // renewed by itself.
            Outcome::Refused(_) if batch.len() > 1 => {
                for hold in batch.iter() {
                    sender.spawn(node, Arc::new([Arc::clone(hold)]), Instant::now(), until);
                }
                return;
            }
            Outcome::Refused(error) => match std::error::Error::source(&error) {
                Some(source) => source.to_string(),
                None => error.to_string(),
            },
            Outcome::NotExecuted(failure) | Outcome::Unknown(failure) => failure.reason,
        };
        let name = sender.quorum.nodes()[node].name();
        sender.counters.batch_failed(node, name, &reason);
        log!(debug, node = %name, keys = batch.len(), reason, "a renewal has no answer");
        // Several tries fit into what is left of the tick, however short that is.
        let pause = Duration::from_millis(20).min(Instant::now().until(until) / 4);
        sleep(pause.max(Duration::from_millis(1))).await;
        // Invariant 3: each try counts from its own send.
        sent = Instant::now();
        if sent >= until {
            return;
        }
        // What was released or lost meanwhile needs no renewal.
        if !batch.iter().all(|hold| hold.is_held()) {
            batch = batch
                .iter()
                .filter(|hold| hold.is_held())
                .map(Arc::clone)
                .collect();
        }
    }
}

/// Returns the holds that a node could not renew, and the reason for the first of them. Usually
/// there are none.
fn failed(batch: &Batch, said: &[RenewAnswer]) -> Option<(Batch, String)> {
    let reason = said.iter().find_map(|answer| match answer {
        RenewAnswer::Failed(reason) => Some(reason.clone()),
        RenewAnswer::Renewed | RenewAnswer::Cut(_) | RenewAnswer::Gone => None,
    })?;
    let failed = batch
        .iter()
        .zip(said)
        .filter(|(_, answer)| matches!(answer, RenewAnswer::Failed(_)));
    Some((failed.map(|(hold, _)| Arc::clone(hold)).collect(), reason))
}

/// Cuts into as few batches as possible, all of about the same length.
fn equal_chunks(orders: &[DueRenewal]) -> impl Iterator<Item = &[DueRenewal]> {
    orders.chunks(
        orders
            .len()
            .div_ceil(orders.len().div_ceil(BATCH).max(1))
            .max(1),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hold::Terms;
    use crate::node::Node;
    use crate::options::Options;
    use crate::owner::Owner;
    use crate::stats::Stats;

    fn hold(task: u64) -> Arc<Hold> {
        let terms = Terms {
            lease: Duration::from_secs(30),
            renewed: true,
            max_hold: None,
        };
        Arc::new(Hold::for_test(Owner::task(task), terms, &[0], 1))
    }

    #[test]
    fn only_failed_renewals_are_tried_again() {
        let batch: Batch = (1..=3).map(hold).collect();
        assert!(
            failed(
                &batch,
                &[
                    RenewAnswer::Renewed,
                    RenewAnswer::Gone,
                    RenewAnswer::Renewed
                ]
            )
            .is_none()
        );
        let said = [
            RenewAnswer::Renewed,
            RenewAnswer::Failed("sick".to_owned()),
            RenewAnswer::Gone,
        ];
        let (again, reason) = failed(&batch, &said).expect("one");
        assert!(again.len() == 1 && Arc::ptr_eq(&again[0], &batch[1]));
        assert_eq!(reason, "sick");
    }

    /// Renews these holds on a node that cannot be reached, for 300 ms. Returns for how long, and
    /// what was counted.
    async fn in_vain(batch: Batch) -> (Duration, Stats) {
        let command_timeout = Some(Duration::from_millis(50));
        let settings = Options {
            command_timeout,
            ..Options::default()
        }
        .validate(1)
        .expect("valid");
        let quorum = Arc::new(Quorum::new(
            vec![Node::of_nobody(&settings)],
            Duration::ZERO,
            Duration::ZERO,
        ));
        let (counters, (answers, _answered)) = (
            Arc::new(Counters::of_nodes(&["n".into()])),
            tokio::sync::mpsc::unbounded_channel(),
        );
        let sender = Sender::new(quorum, Arc::clone(&counters), answers);
        let now = Instant::now();
        renew(sender, 0, batch, now, now + Duration::from_millis(300)).await;
        (
            Instant::now().since(now),
            counters.stats(&Default::default(), 0, 0),
        )
    }

    #[tokio::test]
    async fn an_unanswered_renewal_is_tried_again_until_the_tick_is_over() {
        let (took, stats) = in_vain(Arc::new([hold(1)])).await;
        assert!(
            took >= Duration::from_millis(300) && stats.renewal_batches.count > 1,
            "{took:?}, {stats:?}"
        );
    }

    #[tokio::test]
    async fn holds_that_are_released_are_not_renewed_again() {
        let stays = hold(1);
        let goes = hold(2);
        assert!(goes.revoke());
        let (_, alone) = in_vain(Arc::new([Arc::clone(&goes)])).await;
        assert_eq!(alone.renewal_batches.count, 1);
        let (_, both) = in_vain(Arc::new([stays, goes])).await;
        let batches = both.renewal_batches;
        assert!(
            batches.count > 1 && (batches.p50, batches.max) == (1, 2),
            "{batches:?}"
        );
    }
}
