//! Runs a command on a cluster. Its locks may be in several slots, and a script may have keys of one slot only.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;

use super::refusal::{explain, is_vague};
use super::words::{Topology, Words};
use super::{answer, call};
use crate::command::{Acquire, Answer, Claim, Command, Renew, Wakes};
use crate::error::{Error, NodeFailure};
use crate::key::Key;
use crate::node::{Cluster, Lane, Node, Outcome, slot_of};

/// Sends a command to a cluster.
pub(super) async fn run(cluster: &Cluster, node: &Node, lane: Lane, command: Command) -> Outcome<Answer> {
    if let Command::Acquire { claims, .. } = &command
        && let Some(claim) = claims.iter().find(|claim| is_torn(&claim.key))
    {
        return Outcome::Refused(torn(&claim.key));
    }
    debug_assert!(
        !matches!(&command, Command::Acquire { vote: Some(_), .. } | Command::Retake { vote: Some(_), .. }),
        "a cluster stands alone, and remembers nothing"
    );
    match command {
        Command::Force { key, .. } if is_torn(&key) => Outcome::Refused(torn(&key)),
        Command::Renew { claims, lease, .. } if claims.len() > 1 => {
            let renew = |claims| Command::Renew { claims, lease };
            renew_all(cluster, node, lane, &claims, renew).await
        }
        Command::Acquire { claims, lease, fences, .. } if by_slot(&claims).len() > 1 => {
            let acquire = |claims| Command::Acquire { claims, lease, fences, vote: None, listing: None };
            acquire_all(cluster, node, lane, &claims, acquire).await
        }
        command => run_one(cluster, node, lane, &command).await,
    }
}

/// Returns whether a lock and the channel of its messages are in two slots: odd braces do that to Redisson's names.
fn is_torn(key: &Key) -> bool {
    slot_of(&key.stored()) != slot_of(key.channel())
}

fn torn(key: &Key) -> Error {
    let problem = format!(
        "{key:?} cannot be a lock of a cluster: the channel of its messages would be in another slot; give it no \
         braces, or one pair with something inside"
    );
    Error::config("key", problem)
}

/// Sends a command whose keys are in one slot.
async fn run_one(cluster: &Cluster, node: &Node, lane: Lane, command: &Command) -> Outcome<Answer> {
    let call = call(command, Words::of(command, Topology::Cluster));
    let answer = answer(node, command, cluster.call(lane, call).await).await;
    if !is_vague(&answer) {
        return answer;
    }
    let ask = async |call| cluster.call(lane, call).await.0;
    Box::pin(explain(answer, command, Topology::Cluster, ask)).await
}

/// Groups these claims by slot, in the order of the slots: callers that want the same locks take them in the same
/// order.
fn by_slot(claims: &[Claim]) -> Vec<Vec<usize>> {
    let mut slots: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (at, claim) in claims.iter().enumerate() {
        slots.entry(slot_of(&claim.key.stored())).or_default().push(at);
    }
    slots.into_values().collect()
}

fn chosen(claims: &[Claim], members: &[usize]) -> Arc<[Claim]> {
    members.iter().map(|&at| claims[at].clone()).collect()
}

/// Renews all slots at once, each in a script of its own: a slot without an answer delays no other. While a slot is
/// moving, a script with several of its keys is refused, and each key is renewed by itself.
async fn renew_all(
    cluster: &Cluster,
    node: &Node,
    lane: Lane,
    claims: &[Claim],
    renew: impl Fn(Arc<[Claim]>) -> Command,
) -> Outcome<Answer> {
    let slots = by_slot(claims);
    let asked = join_all(slots.iter().map(|members| {
        let command = renew(chosen(claims, members));
        async move { run_one(cluster, node, lane, &command).await }
    }));
    let mut answers = vec![None; claims.len()];
    let mut alone: Vec<usize> = Vec::new();
    for (members, outcome) in slots.iter().zip(asked.await) {
        let is_cut = members.len() > 1 && (is_moving(&outcome) || matches!(outcome, Outcome::Refused(_)));
        match said(outcome, members.len()) {
            Ok(said) => members.iter().zip(said).for_each(|(&at, said)| answers[at] = Some(said)),
            Err(_) if is_cut => alone.extend(members),
            Err(reason) => members.iter().for_each(|&at| answers[at] = Some(Renew::Failed(reason.clone()))),
        }
    }
    let asked = join_all(alone.iter().map(|&at| {
        let command = renew(Arc::new([claims[at].clone()]));
        async move { run_one(cluster, node, lane, &command).await }
    }));
    for (&at, outcome) in alone.iter().zip(asked.await) {
        answers[at] = Some(match said(outcome, 1) {
            Ok(said) => said.into_iter().next().unwrap_or_else(|| Renew::Failed("was not answered".into())),
            Err(reason) => Renew::Failed(reason),
        });
    }
    let answer =
        answers.into_iter().map(|said| said.unwrap_or_else(|| Renew::Failed("was not asked".into()))).collect();
    Outcome::Done(Answer::Renew(answer))
}

/// Returns whether some of the keys are on one server and some on another.
fn is_moving(outcome: &Outcome<Answer>) -> bool {
    matches!(outcome, Outcome::NotExecuted(failure) if failure.reason.starts_with("TRYAGAIN"))
}

/// Returns the answer for each of `count` locks, or why there is none.
fn said(outcome: Outcome<Answer>, count: usize) -> Result<Vec<Renew>, String> {
    match outcome {
        Outcome::Done(Answer::Renew(answer)) if answer.len() == count => Ok(answer),
        Outcome::Done(_) => Err("answered something other than what was asked".to_owned()),
        Outcome::NotExecuted(failure) | Outcome::Unknown(failure) => Err(failure.reason),
        Outcome::Refused(error) => Err(error.to_string()),
    }
}

/// Takes the locks of one slot after the other: of two callers that want the same locks, the one that gets the first
/// slot gets the others. If a slot is refused, the locks taken before are released before the refusal is returned. If
/// they cannot be released, the outcome is unknown, and the caller undoes all of it.
async fn acquire_all(
    cluster: &Cluster,
    node: &Node,
    lane: Lane,
    claims: &[Claim],
    acquire: impl Fn(Arc<[Claim]>) -> Command,
) -> Outcome<Answer> {
    let mut fences = vec![None; claims.len()];
    let mut taken: Vec<usize> = Vec::new();
    for members in by_slot(claims) {
        let outcome = run_one(cluster, node, lane, &acquire(chosen(claims, &members))).await;
        match outcome {
            Outcome::Done(Answer::Acquire(Some(Acquire::Granted(given)))) if given.len() == members.len() => {
                members.iter().zip(given).for_each(|(&at, fence)| fences[at] = Some(fence));
                taken.extend(members);
            }
            unknown @ Outcome::Unknown(_) => return unknown,
            refused => {
                let given_back = join_all(taken.iter().map(|&at| {
                    let command = Command::Release { claim: claims[at].clone(), wakes: Wakes::All };
                    async move { run_one(cluster, node, lane, &command).await }
                }));
                for outcome in given_back.await {
                    match outcome {
                        Outcome::Done(_) => {}
                        Outcome::NotExecuted(failure) | Outcome::Unknown(failure) => return Outcome::Unknown(failure),
                        Outcome::Refused(error) => return Outcome::Unknown(unknown_of(node, &error)),
                    }
                }
                return refused;
            }
        }
    }
    match fences.into_iter().collect::<Option<Vec<_>>>() {
        Some(fences) => Outcome::Done(Answer::Acquire(Some(Acquire::Granted(fences)))),
        None => Outcome::Unknown(unknown_of(node, &"a slot was not asked")),
    }
}

fn unknown_of(node: &Node, reason: &dyn std::fmt::Display) -> NodeFailure {
    NodeFailure { node: Arc::clone(node.name()), reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::Format;

    fn claims(names: &[&str]) -> Vec<Claim> {
        let claim = |name: &&str| Claim { kind: Format::Redisson.kind(), key: Key::from(*name), field: "f".into() };
        names.iter().map(claim).collect()
    }

    #[test]
    fn locks_are_grouped_by_slot_in_the_order_of_slots() {
        // Slots 3,300, 7,365 and 15,495.
        assert_eq!(by_slot(&claims(&["{a}1", "{b}1", "{a}2", "{c}", "{b}2"])), [vec![1, 4], vec![3], vec![0, 2]]);
        assert_eq!(by_slot(&claims(&["{c}", "{a}", "{b}"])), [vec![2], vec![0], vec![1]]);
        assert_eq!(by_slot(&[]), Vec::<Vec<usize>>::new());
    }

    #[test]
    fn odd_braces_tear_a_lock_and_its_channel_apart() {
        for name in ["x", "{x}", "a{b}c", "{{x}}", "{a}{b}"] {
            assert!(!is_torn(&name.into()), "{name}");
        }
        for name in ["a}b", "a{b", "{}x", "}{"] {
            assert!(is_torn(&name.into()), "{name}");
        }
    }
}
