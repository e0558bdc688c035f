//! Votes that come late or are lost: of nodes that answer after the decision, and of nodes that forgot.

use std::sync::Arc;

use super::Session;
use super::release::Pending;
use crate::clock::Instant;
use crate::hold::{Hold, HoldState};
use crate::key::Key;
use crate::node::Outcome;
use crate::quorum::{Calls, NodeIndex};
use crate::script::Acquire;

impl Session {
    /// Sees to the nodes that a grant did not wait for. A late yes is a vote while the hold is held, and undone after.
    pub(super) fn keep_late(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        sent: Instant,
        mut late: Calls<Acquire>,
        doubtful: &[NodeIndex],
    ) {
        for &node in doubtful {
            hold.doubt(node);
        }
        if late.missing().is_empty() {
            return;
        }
        let (session, hold, pending) = (Arc::clone(self), Arc::clone(hold), Pending::new(self));
        self.engine.spawn(async move {
            while let Some((node, answer)) = late.next().await {
                session.settle_vote(&hold, node, sent, &answer.map(|answer| matches!(answer, Acquire::Granted(_))));
            }
            drop(pending);
        });
    }

    /// Sees to the nodes that a failed attempt did not wait for.
    pub(super) fn undo_late(self: &Arc<Self>, key: &Key, field: String, mut late: Calls<Acquire>) {
        if late.missing().is_empty() {
            return;
        }
        let (session, key, pending) = (Arc::clone(self), key.clone(), Pending::new(self));
        self.engine.spawn(async move {
            while let Some((node, answer)) = late.next().await {
                match answer {
                    Outcome::Done(Acquire::Granted(_)) => session.undo(&key, &field, vec![node], Vec::new()),
                    Outcome::Unknown(_) => session.undo(&key, &field, Vec::new(), vec![node]),
                    Outcome::Done(Acquire::Held(_)) | Outcome::NotExecuted(_) | Outcome::Refused(_) => {}
                }
            }
            drop(pending);
        });
    }

    /// A node has lost the lock that a majority of the others still has: takes its vote back.
    pub(super) fn retake(self: &Arc<Self>, hold: Arc<Hold>, node: NodeIndex) {
        if !hold.is_held() || self.is_closed() {
            return;
        }
        let (session, pending) = (Arc::clone(self), Pending::new(self));
        self.engine.spawn(async move {
            let sent = Instant::now();
            // Nothing comes between the look and the send: a release that follows is behind it on the same connection.
            if matches!(hold.mark(sent), HoldState::Safe | HoldState::Jeopardy) {
                let (count, lease) = (hold.guards(), hold.terms.lease);
                let answer = session.quorum.retake(node, &hold.key, lease, &hold.field, count).await;
                let taken = matches!(answer, Outcome::Done(true));
                tracing::debug!(key = %hold.key, field = %hold.field, node, taken, "a lost vote is asked for again");
                session.settle_vote(&hold, node, sent, &answer);
            }
            drop(pending);
        });
    }

    /// A node answered to what may have made it vote for this hold: yes or no, or nobody knows.
    fn settle_vote(self: &Arc<Self>, hold: &Arc<Hold>, node: NodeIndex, sent: Instant, answer: &Outcome<bool>) {
        match answer {
            Outcome::Done(true) if hold.vote(node, sent, Instant::now()) => {}
            // Its release may have come there before it.
            Outcome::Done(true) => self.undo(&hold.key, &hold.field, vec![node], Vec::new()),
            // It may be there, or come to be there: while the hold is held that does no harm.
            Outcome::Unknown(_) if hold.doubt(node) => {}
            Outcome::Unknown(_) => self.undo(&hold.key, &hold.field, Vec::new(), vec![node]),
            Outcome::Done(false) | Outcome::NotExecuted(_) | Outcome::Refused(_) => {}
        }
    }
}
