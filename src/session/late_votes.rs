//! Handles votes that come late or are lost: those of nodes that answer after the decision, and of nodes that forgot.
//!
//! # Invariants
//! - The task that waits for a node's answer deals with it: a late yes is a vote while the hold is held, and is undone
//!   afterwards. An answer that never comes leaves the node uncertain: the release sends it an undo as well.
//! - A node that answered that another holds the lock has nothing of ours, since an acquire is sent once per
//!   generation: nothing is undone there.

use std::sync::Arc;
use std::time::Duration;

use super::Session;
use crate::clock::Instant;
use crate::command::{Acquire, Claim};
use crate::engine::Work;
use crate::foreign::log;
use crate::hold::{Hold, HoldState};
use crate::lease::NodeIndex;
use crate::node::Outcome;
use crate::quorum::{Calls, Vote};

impl Session {
    /// Follows the nodes that a grant did not wait for, and notes those that may have granted it.
    pub(super) fn keep_late(
        self: &Arc<Self>,
        holds: &[Arc<Hold>],
        sent: Instant,
        late: Calls<Acquire>,
        uncertain: &[NodeIndex],
    ) {
        for &node in uncertain {
            holds.iter().for_each(|hold| _ = hold.make_uncertain(node));
        }
        let holds = holds.to_vec();
        self.follow(late, move |session, node, answer| {
            holds.iter().for_each(|hold| session.settle_vote(hold, node, sent, &answer));
        });
    }

    /// Undoes a failed attempt, on the nodes that have answered and on those that have not yet.
    pub(super) fn undo_attempt(
        self: &Arc<Self>,
        claims: &Arc<[Claim]>,
        lease: Duration,
        late: Calls<Acquire>,
        taken: &[NodeIndex],
        uncertain: &[NodeIndex],
    ) {
        for claim in claims.iter() {
            self.undo(claim, lease, None, taken.to_vec(), uncertain.to_vec());
        }
        let claims = Arc::clone(claims);
        self.follow(late, move |session, node, answer| {
            claims.iter().for_each(|claim| session.undo_vote(claim, lease, None, node, &answer));
        });
    }

    /// Waits for late answers, and passes each one to `settled`.
    fn follow(
        self: &Arc<Self>,
        mut late: Calls<Acquire>,
        settled: impl Fn(&Arc<Self>, NodeIndex, Outcome<bool>) + Send + 'static,
    ) {
        let mut pending: Vec<_> = late.missing().map(|node| (node, self.engine.owe(Work::Vote(node)))).collect();
        if pending.is_empty() {
            return;
        }
        let session = Arc::clone(self);
        self.engine.spawn(async move {
            while let Some((node, answer)) = late.next().await {
                settled(&session, node, answer.map(|answer| matches!(answer, Acquire::Granted(_))));
                pending.retain(|(waiting, _)| *waiting != node);
            }
        });
    }

    /// Re-acquires a held lock on a node that lost it.
    pub(super) fn retake(self: &Arc<Self>, hold: Arc<Hold>, node: NodeIndex) {
        if !hold.is_held() || self.is_closed() {
            return;
        }
        let (session, pending) = (Arc::clone(self), self.engine.owe(Work::Vote(node)));
        self.engine.spawn(async move {
            let sent = Instant::now();
            if matches!(hold.mark(sent), HoldState::Safe | HoldState::Jeopardy) {
                let (claim, lease, fence) = (hold.claim.clone(), hold.terms.lease, hold.fence);
                let vote = Vote { claim, lease, count: hold.guards(), fence };
                let answer = session.quorum.retake(node, vote).await;
                let taken = matches!(answer, Outcome::Done(true));
                log!(
                    debug, key = %hold.claim.key.shown(), field = %hold.claim.field, node, taken,
                    "a lost vote is asked for again"
                );
                session.settle_vote(&hold, node, sent, &answer);
            }
            drop(pending);
        });
    }

    /// Deals with a node's answer to a request that may have made it vote for this hold: yes, no, or unknown.
    fn settle_vote(self: &Arc<Self>, hold: &Arc<Hold>, node: NodeIndex, sent: Instant, answer: &Outcome<bool>) {
        let settled = match answer {
            Outcome::Done(true) => hold.vote(node, sent, Instant::now()),
            // It may be there, or come to be there: while the hold is held that does no harm.
            Outcome::Unknown(_) => hold.make_uncertain(node),
            Outcome::Done(false) | Outcome::NotExecuted(_) | Outcome::Refused(_) => true,
        };
        if !settled {
            self.undo_vote(&hold.claim, hold.lease() * 2, hold.kept_until(), node, answer);
        }
    }

    /// Undoes on a node what is no longer wanted there, as its answer requires.
    fn undo_vote(
        self: &Arc<Self>,
        claim: &Claim,
        stands: Duration,
        kept_until: Option<Instant>,
        node: NodeIndex,
        answer: &Outcome<bool>,
    ) {
        match answer {
            Outcome::Done(true) => self.undo(claim, stands, kept_until, Some(node), None),
            Outcome::Unknown(_) => self.undo(claim, stands, kept_until, None, Some(node)),
            Outcome::Done(false) | Outcome::NotExecuted(_) | Outcome::Refused(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::NodeFailure;
    use crate::hold::{Leave, Terms};
    use crate::lease;
    use crate::owner::Owner;

    const LEASE: Duration = Duration::from_secs(30);

    /// A hold on three nodes, of which the first two have granted it.
    fn hold() -> Arc<Hold> {
        let terms = Terms { lease: LEASE, renewed: true, max_hold: None };
        Arc::new(Hold::for_test(Owner::task(1), terms, &[0, 1], 3))
    }

    fn failure() -> NodeFailure {
        NodeFailure { node: "n".into(), reason: "silent".into() }
    }

    #[tokio::test]
    async fn a_late_vote_is_undone_once_the_hold_is_released() {
        let session = Session::over_nobody();
        let mut undos = 0;
        for (answer, undone) in [
            (Outcome::Done(true), 1),
            (Outcome::Unknown(failure()), 1),
            (Outcome::Done(false), 0),
            (Outcome::NotExecuted(failure()), 0),
        ] {
            let (hold, sent) = (hold(), Instant::now());
            session.settle_vote(&hold, 0, sent, &answer);
            assert_eq!(session.stats().pending_undos, undos, "it is held: {answer:?}");
            assert_eq!(hold.leave(Instant::now()), Leave::Last);
            session.settle_vote(&hold, 0, sent, &answer);
            undos += undone;
            assert_eq!(session.stats().pending_undos, undos, "it is released: {answer:?}");
        }
        session.engine.stop();
    }

    #[tokio::test]
    async fn a_late_vote_is_valid_from_its_sending() {
        let session = Session::over_nobody();
        let (hold, now) = (hold(), Instant::now());
        // Sent long before it was answered: with the first node it makes the majority.
        let sent = now.before(LEASE / 2);
        session.settle_vote(&hold, 2, sent, &Outcome::Done(true));
        assert!(!hold.gone(1), "a majority is left");
        assert_eq!(hold.valid_until(), lease::valid_until(sent, LEASE));
        session.engine.stop();
    }

    /// Of three servers, the second answers late, and the third never does. An undo waits for the third too.
    #[tokio::test]
    async fn closing_waits_for_late_answers_except_those_of_a_minority() {
        let session = Session::over_nobodies(3);
        let answers = |node| async move {
            if node == 2 {
                std::future::pending::<()>().await;
            }
            Outcome::Done(Acquire::Held(None))
        };
        session
            .follow(Calls::new([1, 2].map(|node| (node, answers(node))).into_iter()), |_, node, _| assert_eq!(node, 1));
        let _undo = session.engine.owe(Work::Undo(2));
        let closed = tokio::time::timeout(Duration::from_secs(10), session.engine.tally().end(1, || true)).await;
        assert!(closed.is_ok(), "only the third is waited for, and for a moment");
        session.engine.stop();
    }
}
