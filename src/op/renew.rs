//! Renews locks.

use std::iter::once;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::permits::records;
use super::reply::array;
use super::sending::{ClusterRoute, Op};
use super::slots::{by_slot, chosen};
use super::word::{counted_fields, fields, lock, millis, scripts_of, timeout, written};
use crate::claim::Claim;
use crate::kind::LockRole;
use crate::lua::Topology;
use crate::node::{Call, Outcome, ReplicaAck, Reply, WordList};
use crate::shown::cut;

/// Renews many locks of one kind at once.
pub(crate) struct Renew {
    pub(crate) claims: Arc<[Claim]>,
    pub(crate) lease: Duration,
}

/// What a server answered for one lock of a renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RenewAnswer {
    Renewed,
    /// Renewed, and before that another client had left the lock only this long to live: it has a
    /// shorter lease, and sets the lifetime of all readers.
    Cut(Duration),
    /// The lock is deleted, is somebody else's, or is not a lock any more.
    Gone,
    /// The server could not renew it, for this reason.
    Failed(String),
}

impl RenewAnswer {
    fn is_renewed(&self) -> bool {
        matches!(self, Self::Renewed | Self::Cut(_))
    }
}

impl Op for Renew {
    /// One for each claim, in the order given. A lock that too few replicas have acknowledged does
    /// not count as renewed.
    type Output = Vec<RenewAnswer>;

    fn call(&self, topology: Topology) -> Call {
        let lease = once(millis(self.lease));
        let permits = |claim: &Claim| claim.kind.role == LockRole::Permit;
        let words = if self.claims.first().is_some_and(permits) {
            let keys = self.claims.iter().map(|claim| records(&claim.key));
            WordList::new(keys, lease.chain(counted_fields(&self.claims)))
        } else {
            let keys = self
                .claims
                .iter()
                .flat_map(|claim| once(lock(&claim.key)).chain(timeout(claim)));
            WordList::new(keys, lease.chain(fields(&self.claims)))
        };
        written(scripts_of(&self.claims).renew.on(topology), words)
    }

    fn read(&self, reply: &Reply) -> Option<Vec<RenewAnswer>> {
        answers(reply, self.claims.len())
    }

    async fn acknowledged(
        mut answer: Outcome<Vec<RenewAnswer>>,
        ack: ReplicaAck,
    ) -> Outcome<Vec<RenewAnswer>> {
        if let Outcome::Done(answers) = &mut answer
            && answers.iter().any(RenewAnswer::is_renewed)
            && let Err(failure) = ack.confirm().await
        {
            for answer in answers.iter_mut().filter(|answer| answer.is_renewed()) {
                *answer = RenewAnswer::Failed(failure.reason.clone());
            }
        }
        answer
    }

    async fn on_cluster(&self, route: &ClusterRoute<'_>) -> Outcome<Vec<RenewAnswer>> {
        if self.claims.len() > 1 {
            self.renew_slots(route).await
        } else {
            route.ask(self).await
        }
    }
}

impl Renew {
    /// Renews all slots, each in a script of its own.
    async fn renew_slots(&self, route: &ClusterRoute<'_>) -> Outcome<Vec<RenewAnswer>> {
        let renew = |members: &[usize]| {
            let part = Self {
                claims: chosen(&self.claims, members),
                lease: self.lease,
            };
            async move { route.ask(&part).await }
        };
        let slots = by_slot(&self.claims);
        // At once: a slot without an answer delays no other.
        let asked = join_all(slots.iter().map(|members| renew(members))).await;
        let mut answers = vec![None; self.claims.len()];
        let mut alone: Vec<usize> = Vec::new();
        for (members, outcome) in slots.iter().zip(asked) {
            // While a slot is moving, a script with several of its keys is refused, and each is
            // renewed alone.
            let is_cut = members.len() > 1
                && (is_moving(&outcome) || matches!(outcome, Outcome::Refused(_)));
            match said(outcome, members.len()) {
                Ok(said) => members
                    .iter()
                    .zip(said)
                    .for_each(|(&at, said)| answers[at] = Some(said)),
                Err(_) if is_cut => alone.extend(members),
                Err(reason) => members
                    .iter()
                    .for_each(|&at| answers[at] = Some(RenewAnswer::Failed(reason.clone()))),
            }
        }
        let asked = join_all(alone.iter().map(|at| renew(&[*at]))).await;
        for (&at, outcome) in alone.iter().zip(asked) {
            let said = said(outcome, 1).map(|mut said| said.remove(0));
            answers[at] = Some(said.unwrap_or_else(RenewAnswer::Failed));
        }
        let asked =
            |said: Option<_>| said.unwrap_or_else(|| RenewAnswer::Failed("was not asked".into()));
        Outcome::Done(answers.into_iter().map(asked).collect())
    }
}

/// Returns whether some of the keys are on one server and some on another.
fn is_moving(outcome: &Outcome<Vec<RenewAnswer>>) -> bool {
    matches!(outcome, Outcome::NotExecuted(failure) if failure.reason.starts_with("TRYAGAIN"))
}

/// Returns the answer for each of `count` locks, or why there is none.
fn said(outcome: Outcome<Vec<RenewAnswer>>, count: usize) -> Result<Vec<RenewAnswer>, String> {
    match outcome {
        Outcome::Done(answers) if answers.len() == count => Ok(answers),
        Outcome::Done(_) => Err("answered something other than what was asked".to_owned()),
        Outcome::NotExecuted(failure) | Outcome::Unknown(failure) => Err(failure.reason),
        Outcome::Refused(error) => Err(error.to_string()),
    }
}

/// Returns the answer for each lock. The reply names only the locks that were not renewed, and
/// counts the others.
fn answers(reply: &Reply, locks: usize) -> Option<Vec<RenewAnswer>> {
    let [Reply::Int(renewed), odd @ ..] = array(reply)? else {
        return None;
    };
    let mut answers = vec![RenewAnswer::Renewed; locks];
    for pair in odd.chunks(2) {
        let [Reply::Int(position), said] = pair else {
            return None;
        };
        let answer = answers.get_mut(usize::try_from(*position).ok()?.checked_sub(1)?)?;
        *answer = match said {
            Reply::Int(0) => RenewAnswer::Gone,
            Reply::Bytes(error) => {
                let error = cut(error);
                if let Some(left) = error.strip_prefix("cut ") {
                    RenewAnswer::Cut(Duration::from_millis(left.parse().ok()?))
                } else if error.contains("WRONGTYPE") {
                    RenewAnswer::Gone
                } else {
                    RenewAnswer::Failed(error)
                }
            }
            _ => return None,
        };
    }
    // A reply that does not account for every lock may be about others, and counts as none.
    let counted = answers.iter().filter(|answer| answer.is_renewed()).count();
    (usize::try_from(*renewed) == Ok(counted)).then_some(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_of_renewals_are_read_by_kind() {
        let bytes = |error: &str| Reply::Bytes(error.to_owned().into());
        let read = |items: Vec<Reply>| answers(&Reply::Array(items), 3);
        let all = [Reply::Int(3)];
        assert_eq!(read(all.to_vec()), Some(vec![RenewAnswer::Renewed; 3]));
        let odd = vec![
            Reply::Int(1),
            Reply::Int(1),
            Reply::Int(0),
            Reply::Int(3),
            bytes("WRONGTYPE Operation"),
        ];
        assert_eq!(
            read(odd),
            Some(vec![
                RenewAnswer::Gone,
                RenewAnswer::Renewed,
                RenewAnswer::Gone
            ])
        );
        let failed = vec![Reply::Int(2), Reply::Int(2), bytes("OOM")];
        assert_eq!(
            read(failed),
            Some(vec![
                RenewAnswer::Renewed,
                RenewAnswer::Failed("OOM".into()),
                RenewAnswer::Renewed
            ])
        );
    }

    #[test]
    fn a_reply_that_does_not_account_for_every_lock_renews_none() {
        let read = |items: &[i64]| {
            answers(
                &Reply::Array(items.iter().map(|n| Reply::Int(*n)).collect()),
                3,
            )
        };
        for items in [
            &[][..],
            &[2],
            &[4],
            &[-1],
            &[3, 1, 0],
            &[2, 4, 0],
            &[2, 0, 0],
            &[2, 1],
            &[2, 1, 1],
            &[1, 1, 0, 1, 0],
        ] {
            assert_eq!(read(items), None, "{items:?}");
        }
        assert_eq!(answers(&Reply::Nil, 3), None);
    }
}
