//! Counts the answers that have arrived so far. Pure, and for any number of nodes.

use std::time::Duration;

use super::eligibility::FORGOT;
use super::outcome::{Acquired, Majority, Settled};
use crate::error::{Error, NodeFailure};
use crate::fence::Fence;
use crate::lease::{NodeIndex, majority};
use crate::node::Outcome;
use crate::op::{AcquireAnswer, ListPlace, Served};

/// The votes of one round of an acquire.
#[derive(Debug, Default)]
pub(super) struct RoundVotes {
    nodes: usize,
    /// The nodes that said yes, each with one fence per lock.
    pub(super) granted: Vec<(NodeIndex, Vec<Fence>)>,
    /// When the locks on the nodes that said no may be free; `None`: not before they are released.
    held: Vec<Option<Duration>>,
    /// The place of a locker that waits, if the server has a list.
    place: Option<ListPlace>,
    /// How far the server came with callers that want permits, which are on one server.
    pub(super) served: Option<Served>,
    /// Nodes that may have granted it, or may yet.
    pub(super) uncertain: Vec<NodeIndex>,
    /// Nodes that granted it with a fence that another node does not accept.
    disregarded: Vec<NodeIndex>,
    refusal: Option<Error>,
    failures: Vec<NodeFailure>,
    /// Whether a node has another memory than the one that was vetted.
    pub(super) forgot: bool,
    answers: usize,
}

impl RoundVotes {
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            nodes,
            ..Self::default()
        }
    }

    pub(super) fn add(&mut self, node: NodeIndex, answer: Outcome<AcquireAnswer>) {
        self.answers += 1;
        match answer {
            Outcome::Done(AcquireAnswer::Granted(fences)) => self.granted.push((node, fences)),
            Outcome::Done(AcquireAnswer::Held(ttl)) => self.held.push(ttl),
            Outcome::Done(AcquireAnswer::Listed(ttl, place)) => {
                self.held.push(ttl);
                self.place = Some(place);
            }
            Outcome::Done(AcquireAnswer::Served(served)) => {
                self.served = Some(served);
                match served.callers {
                    0 => self.held.push(served.due),
                    callers => self.granted.push((node, vec![Fence::NONE; callers])),
                }
            }
            Outcome::Refused(error) => self.refusal = Some(error),
            Outcome::NotExecuted(failure) => {
                self.forgot |= failure.reason == FORGOT;
                self.failures.push(failure);
            }
            Outcome::Unknown(failure) => {
                self.uncertain.push(node);
                self.failures.push(failure);
            }
        }
    }

    /// Notes that the yes of these nodes no longer counts.
    pub(super) fn disregard(&mut self, nodes: &[NodeIndex], reason: &NodeFailure) {
        self.granted.retain(|(node, _)| !nodes.contains(node));
        self.disregarded.extend(nodes);
        self.failures.push(reason.clone());
    }

    /// Returns the nodes that said yes, also those whose yes does not count.
    pub(super) fn taken(&self) -> Vec<NodeIndex> {
        self.granted
            .iter()
            .map(|(node, _)| *node)
            .chain(self.disregarded.iter().copied())
            .collect()
    }

    /// Returns whether a majority has said yes or no, so that the others are waited for only a
    /// little longer.
    pub(super) fn is_heard(&self) -> bool {
        self.granted.len() + self.held.len() >= majority(self.nodes)
    }

    /// Returns what is certain by now, whatever the others say; `None` as long as it depends on
    /// them.
    pub(super) fn verdict(&self) -> Option<Acquired> {
        let majority = majority(self.nodes);
        let missing = self.nodes - self.answers;
        if self.granted.len() >= majority {
            let mut given = self.granted.iter().map(|(_, fences)| fences);
            let mut fences = given.next()?.clone();
            for others in given {
                fences
                    .iter_mut()
                    .zip(others)
                    .for_each(|(fence, other)| *fence = (*fence).max(*other));
            }
            let votes = self.granted.iter().map(|&(node, _)| node).collect();
            return Some(Acquired::Granted(Majority { fences, votes }));
        }
        if self.granted.len() + missing >= majority {
            return None;
        }
        if self.is_heard() {
            return Some(self.contended());
        }
        if self.granted.len() + self.held.len() + missing >= majority {
            return None;
        }
        // A refusal says more than silence: somebody has to act.
        Some(match &self.refusal {
            Some(error) => Acquired::Refused(error.clone()),
            None => Acquired::Unavailable(self.failures.clone()),
        })
    }

    /// Returns the outcome if the others are not waited for.
    pub(super) fn close(&mut self) -> Acquired {
        // Nodes that have not answered count as silent.
        self.answers = self.nodes;
        self.verdict()
            .unwrap_or_else(|| Acquired::Unavailable(self.failures.clone()))
    }

    /// Returns the outcome if a majority answered and the lock was not granted.
    fn contended(&self) -> Acquired {
        let majority = majority(self.nodes);
        if self.held.len() < majority {
            return Acquired::Split;
        }
        // What this attempt took is free as soon as it is undone, and a node that has not answered
        // may be free. The others may have reported attempts that are being undone at this moment,
        // whose leases mean nothing.
        let mut free: Vec<Duration> = self.held.iter().flatten().copied().collect();
        free.extend(std::iter::repeat_n(
            Duration::ZERO,
            self.granted.len() + self.nodes - self.answers,
        ));
        free.sort_unstable();
        let contested = self.granted.len() + self.disregarded.len() > 0;
        Acquired::Held {
            ttl: free.get(majority - 1).copied(),
            contested,
            place: self.place.clone(),
        }
    }
}

/// The answers to a write of the count, or to a release.
#[derive(Debug, Default)]
pub(crate) struct Confirmations {
    nodes: usize,
    done: usize,
    gone: usize,
    answers: usize,
    refusal: Option<Error>,
    failures: Vec<NodeFailure>,
}

impl Confirmations {
    pub(crate) fn new(nodes: usize) -> Self {
        Self {
            nodes,
            ..Self::default()
        }
    }

    /// Adds an answer: the node has done it (true), or the lock is not ours there (false).
    pub(crate) fn add(&mut self, answer: Outcome<bool>) {
        self.answers += 1;
        match answer {
            Outcome::Done(true) => self.done += 1,
            Outcome::Done(false) => self.gone += 1,
            Outcome::Refused(error) => self.refusal = Some(error),
            Outcome::NotExecuted(failure) | Outcome::Unknown(failure) => {
                self.failures.push(failure);
            }
        }
    }

    /// Returns what is certain by now, whatever the others say.
    pub(crate) fn verdict(&self) -> Option<Settled> {
        let majority = majority(self.nodes);
        if self.done >= majority {
            return Some(Settled::Done);
        }
        if self.nodes - self.gone < majority {
            return Some(Settled::Gone);
        }
        if self.answers < self.nodes {
            return None;
        }
        Some(match &self.refusal {
            Some(error) => Settled::Refused(error.clone()),
            None => Settled::Unanswered(self.failures.clone()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(fence: u64) -> Outcome<AcquireAnswer> {
        Outcome::Done(AcquireAnswer::Granted(vec![Fence::new(fence)]))
    }

    fn held(ms: u64) -> Outcome<AcquireAnswer> {
        Outcome::Done(AcquireAnswer::Held(Some(Duration::from_millis(ms))))
    }

    fn failed() -> Outcome<AcquireAnswer> {
        Outcome::Unknown(NodeFailure::new(&"n".into(), "silent"))
    }

    fn votes(
        nodes: usize,
        answers: impl IntoIterator<Item = Outcome<AcquireAnswer>>,
    ) -> RoundVotes {
        let mut votes = RoundVotes::new(nodes);
        for (node, answer) in answers.into_iter().enumerate() {
            votes.add(node, answer);
        }
        votes
    }

    #[test]
    fn the_third_yes_of_five_decides() {
        assert!(votes(5, [granted(1), granted(3)]).verdict().is_none());
        let verdict = votes(5, [granted(1), failed(), granted(3), granted(2)]).verdict();
        let Some(Acquired::Granted(Majority { fences, votes })) = verdict else {
            panic!("{verdict:?}")
        };
        assert_eq!((fences, votes), (vec![Fence::new(3)], vec![0, 2, 3]));
    }

    #[test]
    fn of_several_locks_each_has_the_highest_of_its_fences() {
        let granted = |fences: [u64; 2]| {
            Outcome::Done(AcquireAnswer::Granted(fences.map(Fence::new).to_vec()))
        };
        let verdict = votes(3, [granted([5, 2]), granted([4, 9])]).verdict();
        let Some(Acquired::Granted(Majority { fences, .. })) = verdict else {
            panic!("{verdict:?}")
        };
        assert_eq!(fences, [5, 9].map(Fence::new));
    }

    #[test]
    fn three_refusals_of_five_decide_by_the_third_lease_to_run_out() {
        let verdict = votes(5, [held(30), failed(), held(10), failed(), held(20)]).verdict();
        assert!(
            matches!(verdict, Some(Acquired::Held { ttl: Some(ttl), .. }) if ttl.as_millis() == 30),
            "{verdict:?}"
        );
        let verdict = votes(5, [held(30_000), held(10), held(30_000)]).verdict();
        assert!(
            matches!(verdict, Some(Acquired::Held { ttl: Some(ttl), .. }) if ttl.as_millis() == 10),
            "two may be free: {verdict:?}"
        );
        let with_ours = votes(5, [granted(1), held(30), held(10), held(20), failed()]).verdict();
        assert!(
            matches!(with_ours, Some(Acquired::Held { ttl: Some(ttl), .. }) if ttl.as_millis() == 20),
            "{with_ours:?}"
        );
        let forever = votes(1, [Outcome::Done(AcquireAnswer::Held(None))]).verdict();
        assert!(matches!(forever, Some(Acquired::Held { ttl: None, .. })));
    }

    #[test]
    fn a_grant_that_does_not_count_has_taken_the_lock_all_the_same() {
        let mut votes = votes(3, [granted(1), granted(9), held(20)]);
        votes.disregard(&[1], &NodeFailure::new(&"n".into(), "it is not believed"));
        assert_eq!(votes.taken(), [0, 1]);
        assert!(
            matches!(votes.verdict(), Some(Acquired::Split)),
            "{votes:?}"
        );
    }

    #[test]
    fn an_attempt_that_was_granted_somewhere_is_contested() {
        let contested = |answers: [Outcome<AcquireAnswer>; 3], disregarded: &[NodeIndex]| {
            let mut votes = votes(3, answers);
            votes.disregard(
                disregarded,
                &NodeFailure::new(&"n".into(), "it is not believed"),
            );
            let verdict = votes.verdict();
            let Some(Acquired::Held { contested, .. }) = verdict else {
                panic!("{verdict:?}")
            };
            contested
        };
        assert!(!contested([held(1), held(1), held(1)], &[]));
        assert!(!contested([held(1), held(1), failed()], &[]));
        assert!(contested([held(1), granted(1), held(1)], &[]));
        assert!(contested([held(1), granted(1), held(1)], &[1]));
    }

    #[test]
    fn a_split_vote_grants_nothing() {
        assert!(matches!(
            votes(3, [granted(1), held(9), failed()]).verdict(),
            Some(Acquired::Split)
        ));
        assert!(
            votes(3, [granted(1), held(9)]).verdict().is_none(),
            "the third may make it two"
        );
        let mut undecided = votes(5, [granted(1), granted(1), held(9)]);
        assert!(undecided.verdict().is_none() && undecided.is_heard());
        assert!(matches!(undecided.close(), Acquired::Split));
    }

    #[test]
    fn without_a_majority_of_answers_nothing_is_known() {
        assert!(votes(5, [failed(), failed()]).verdict().is_none());
        let verdict = votes(5, [failed(), failed(), held(1), granted(1)]).verdict();
        assert!(
            verdict.is_none(),
            "the fifth may make it known that no client has it: {verdict:?}"
        );
        let verdict = votes(5, [failed(), failed(), failed(), granted(1), held(1)]).verdict();
        assert!(
            matches!(verdict, Some(Acquired::Unavailable(ref nodes)) if nodes.len() == 3),
            "{verdict:?}"
        );
    }

    #[test]
    fn a_release_is_done_or_gone_by_majority() {
        let count = |nodes, answers: &[bool]| {
            let mut count = Confirmations::new(nodes);
            answers
                .iter()
                .for_each(|&done| count.add(Outcome::Done(done)));
            count.verdict()
        };
        assert!(matches!(count(1, &[true]), Some(Settled::Done)));
        assert!(matches!(count(1, &[false]), Some(Settled::Gone)));
        assert!(matches!(
            count(5, &[false, false, true, true, true]),
            Some(Settled::Done)
        ));
        assert!(count(5, &[false, false, true, true]).is_none());
        assert!(matches!(
            count(5, &[false, true, false, false]),
            Some(Settled::Gone)
        ));
    }

    #[test]
    fn without_a_majority_of_answers_a_release_is_neither() {
        let silent = || Outcome::Unknown(NodeFailure::new(&"n".into(), "silent"));
        let mut count = Confirmations::new(3);
        [Outcome::Done(true), silent()]
            .into_iter()
            .for_each(|answer| count.add(answer));
        assert!(count.verdict().is_none(), "the third may make it two");
        count.add(silent());
        assert!(
            matches!(count.verdict(), Some(Settled::Unanswered(ref nodes)) if nodes.len() == 2)
        );
    }
}
