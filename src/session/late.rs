//! Votes that come late or are lost: of nodes that answer after the decision, and of nodes that forgot.
//!
//! # Invariants
//! - What is on its way to a node is seen to by the task that waits for its answer: a late yes is a vote while the hold is
//!   held, and undone afterwards. An answer that never comes leaves a doubt: the release undoes on that node once more.
//! - A node that answered that another holds the lock has nothing of ours, since an acquire is sent once a generation:
//!   nothing is undone there.

use std::sync::Arc;

use super::Session;
use super::pending::Pending;
use crate::clock::Instant;
use crate::foreign::contained;
use crate::hold::{Hold, HoldState};
use crate::key::Key;
use crate::node::Outcome;
use crate::quorum::{Calls, NodeIndex, Vote};
use crate::script::{Acquire, Claim};

impl Session {
    /// Sees to the nodes that a grant did not wait for, and to those that may have granted it.
    pub(super) fn keep_late(
        self: &Arc<Self>,
        holds: &[Arc<Hold>],
        sent: Instant,
        late: Calls<Acquire>,
        doubtful: &[NodeIndex],
    ) {
        for &node in doubtful {
            holds.iter().for_each(|hold| _ = hold.doubt(node));
        }
        let holds = holds.to_vec();
        self.follow(late, move |session, node, answer| {
            holds.iter().for_each(|hold| session.settle_vote(hold, node, sent, &answer));
        });
    }

    /// Undoes an attempt that came to nothing, on the nodes that have answered and on those that have not yet.
    pub(super) fn undo_attempt(
        self: &Arc<Self>,
        claims: &Arc<[Claim]>,
        late: Calls<Acquire>,
        taken: &[NodeIndex],
        doubtful: &[NodeIndex],
    ) {
        for claim in claims.iter() {
            self.undo(&claim.key, &claim.field, taken.to_vec(), doubtful.to_vec());
        }
        let claims = Arc::clone(claims);
        self.follow(late, move |session, node, answer| {
            claims.iter().for_each(|claim| session.undo_vote(&claim.key, &claim.field, node, &answer));
        });
    }

    /// Waits for late answers, each of which is `settled`.
    fn follow(
        self: &Arc<Self>,
        mut late: Calls<Acquire>,
        settled: impl Fn(&Arc<Self>, NodeIndex, Outcome<bool>) + Send + 'static,
    ) {
        let mut pending: Vec<_> = late.missing().map(|node| (node, Pending::at(self, node))).collect();
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

    /// A node has lost the lock that a majority of the others still has: takes its vote back.
    pub(super) fn retake(self: &Arc<Self>, hold: Arc<Hold>, node: NodeIndex) {
        if !hold.is_held() || self.is_closed() {
            return;
        }
        let (session, pending) = (Arc::clone(self), Pending::at(self, node));
        self.engine.spawn(async move {
            let sent = Instant::now();
            if matches!(hold.mark(sent), HoldState::Safe | HoldState::Jeopardy) {
                let (key, lease, field, fence) = (&hold.key, hold.terms.lease, hold.field.as_str(), hold.fence);
                let vote = Vote { key, lease, field, count: hold.guards(), fence };
                let answer = session.quorum.retake(node, vote).await;
                let taken = matches!(answer, Outcome::Done(true));
                contained(|| {
                    tracing::debug!(
                        key = %hold.key.shown(), field = %hold.field, node, taken,
                        "a lost vote is asked for again"
                    );
                });
                session.settle_vote(&hold, node, sent, &answer);
            }
            drop(pending);
        });
    }

    /// A node answered to what may have made it vote for this hold: yes or no, or nobody knows.
    fn settle_vote(self: &Arc<Self>, hold: &Arc<Hold>, node: NodeIndex, sent: Instant, answer: &Outcome<bool>) {
        let settled = match answer {
            Outcome::Done(true) => hold.vote(node, sent, Instant::now()),
            // It may be there, or come to be there: while the hold is held that does no harm.
            Outcome::Unknown(_) => hold.doubt(node),
            Outcome::Done(false) | Outcome::NotExecuted(_) | Outcome::Refused(_) => true,
        };
        if !settled {
            self.undo_vote(&hold.key, &hold.field, node, answer);
        }
    }

    /// A node answered to what nobody wants any more.
    fn undo_vote(self: &Arc<Self>, key: &Key, field: &str, node: NodeIndex, answer: &Outcome<bool>) {
        match answer {
            Outcome::Done(true) => self.undo(key, field, vec![node], Vec::new()),
            Outcome::Unknown(_) => self.undo(key, field, Vec::new(), vec![node]),
            Outcome::Done(false) | Outcome::NotExecuted(_) | Outcome::Refused(_) => {}
        }
    }
}
