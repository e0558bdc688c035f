//! Asks one node for its vote.

use std::sync::Arc;
use std::time::Duration;

use super::eligibility::{Ask, Eligibility, FORGOT, Ticket};
use super::{AcquireTerms, Vote};
use crate::claim::Claim;
use crate::error::NodeFailure;
use crate::fence::Fence;
use crate::lease::NodeIndex;
use crate::node::{Lane, Node, Outcome};
use crate::op::{
    self, Acquire, AcquireAnswer, Extend, Op, Raise, RaiseAnswer, Renew, RenewAnswer, Retake,
};

/// A node whose answers count as votes, if they may.
pub(super) struct Voter {
    pub(super) node: Arc<Node>,
    pub(super) place: NodeIndex,
    pub(super) eligibility: Arc<Eligibility>,
}

impl Voter {
    /// Takes all of these locks, or none.
    pub(super) async fn acquire(
        &self,
        claims: &Arc<[Claim]>,
        terms: &AcquireTerms,
        ticket: &Ticket,
    ) -> Outcome<AcquireAnswer> {
        let AcquireTerms { lease, fences, how } = terms.clone();
        let claims = Arc::clone(claims);
        let vote = ticket.vote.clone();
        let acquire = Acquire {
            claims,
            lease,
            fences,
            vote,
            how,
        };
        self.vouch(ticket, op::ask(&self.node, Lane::Grants, &acquire).await)
    }

    /// Re-acquires a lock that the server lost.
    pub(super) async fn retake(&self, vote: &Vote) -> Outcome<bool> {
        let ticket = match self.ticket(Lane::Grants, Ask::Vote).await {
            Ok(ticket) => ticket,
            Err(failure) => return Outcome::NotExecuted(failure),
        };
        let retake = Retake {
            claim: vote.claim.clone(),
            lease: vote.lease,
            count: vote.count,
            vote: ticket.vote.clone(),
        };
        self.vouch(&ticket, op::ask(&self.node, Lane::Grants, &retake).await)
    }

    /// Makes a held lock last for at least this long. If the answer is no vote, it does not count.
    pub(super) async fn extend(&self, claim: Claim, lease: Duration) -> Outcome<bool> {
        // The lock is there already, so a server that is shut may keep it.
        self.ask_to_keep(Lane::Renewals, &Extend { claim, lease })
            .await
    }

    /// Raises the mark of a lock that was granted there to this fence.
    pub(super) async fn raise(&self, claim: Claim, fence: Fence) -> Outcome<RaiseAnswer> {
        // The connection has to be the same. If the address led to another of the servers by now,
        // which has the lock too, that one would be counted twice.
        self.ask_to_keep(Lane::Grants, &Raise { claim, fence })
            .await
    }

    /// Renews locks. If the answer is no vote, none counts as renewed.
    pub(super) async fn renew(
        &self,
        claims: Arc<[Claim]>,
        lease: Duration,
    ) -> Outcome<Vec<RenewAnswer>> {
        self.ask_to_keep(Lane::Renewals, &Renew { claims, lease })
            .await
    }

    /// Asks about locks that are on the server already.
    async fn ask_to_keep<O: Op>(&self, lane: Lane, op: &O) -> Outcome<O::Output> {
        match self.ticket(lane, Ask::Keep).await {
            Ok(ticket) => self.vouch(&ticket, op::ask(&self.node, lane, op).await.map(Some)),
            Err(failure) => Outcome::NotExecuted(failure),
        }
    }

    async fn ticket(&self, lane: Lane, ask: Ask) -> Result<Ticket, NodeFailure> {
        self.eligibility
            .ticket(self.place, &self.node, lane, ask)
            .await
    }

    /// Checks that an answer is a vote.
    fn vouch<T>(&self, ticket: &Ticket, answer: Outcome<Option<T>>) -> Outcome<T> {
        answer.then(|answer| match answer {
            None => {
                self.eligibility.forgot(self.place, ticket);
                Outcome::NotExecuted(self.failure(FORGOT))
            }
            Some(_) if !self.eligibility.holds(ticket, &self.node) => Outcome::Unknown(
                self.failure("it was reconnected, and may have restarted, while it was asked"),
            ),
            Some(answer) => Outcome::Done(answer),
        })
    }

    fn failure(&self, reason: &str) -> NodeFailure {
        NodeFailure::new(self.node.name(), reason)
    }
}

#[cfg(test)]
#[cfg(feature = "testing")]
mod tests {
    use std::pin::pin;

    use super::super::test_quorum::{TestQuorum, claim};
    use super::*;
    use crate::claim::How;
    use crate::fence::Source;

    const LEASE: Duration = Duration::from_secs(30);

    /// Asks the server at this place for a lock.
    async fn acquire(test: &TestQuorum, place: NodeIndex) -> Outcome<AcquireAnswer> {
        let terms = AcquireTerms {
            lease: LEASE,
            fences: Source::Tokens,
            how: How::Plainly,
        };
        let ticket = test
            .voter(place)
            .ticket(Lane::Grants, Ask::Vote)
            .await
            .expect("it votes");
        test.voter(place)
            .acquire(&[claim("k")].into(), &terms, &ticket)
            .await
    }

    fn retaken() -> Vote {
        Vote {
            claim: claim("k"),
            lease: LEASE,
            count: 1,
            fence: Fence::new(7),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_has_forgotten_grants_and_retakes_nothing() {
        let test = TestQuorum::voting().await;
        assert!(matches!(
            acquire(&test, 1).await,
            Outcome::Done(AcquireAnswer::Granted(_))
        ));
        for place in 0..2 {
            test.servers[place].flush();
        }
        let answer = acquire(&test, 0).await;
        assert!(
            matches!(&answer, Outcome::NotExecuted(failure) if failure.reason == FORGOT),
            "{answer:?}"
        );
        assert!(
            futures_util::poll!(pin!(test.eligibility.doubted(0))).is_ready(),
            "it is vetted again"
        );
        let answer = test.voter(1).retake(&retaken()).await;
        assert!(
            matches!(&answer, Outcome::NotExecuted(failure) if failure.reason == FORGOT),
            "{answer:?}"
        );
        for place in 0..2 {
            assert_eq!(test.servers[place].holder("k"), None);
        }
        test.look().await;
        let answer = test.voter(1).retake(&retaken()).await;
        assert!(
            matches!(&answer, Outcome::NotExecuted(failure) if failure.reason.starts_with("abstains")),
            "{answer:?}"
        );
    }

    /// The server has the locks of before, and another memory.
    #[tokio::test(start_paused = true)]
    async fn a_renewal_counts_on_a_server_that_is_shut() {
        let test = TestQuorum::voting().await;
        assert!(matches!(
            acquire(&test, 0).await,
            Outcome::Done(AcquireAnswer::Granted(_))
        ));
        test.servers[0].delete(crate::key::MEMORY);
        test.look().await;
        assert!(test.eligibility.shut(0).is_some());
        let answer = test.voter(0).renew([claim("k")].into(), LEASE).await;
        assert!(
            matches!(&answer, Outcome::Done(said) if *said == [RenewAnswer::Renewed]),
            "{answer:?}"
        );
        let answer = test.voter(0).extend(claim("k"), LEASE * 2).await;
        assert!(matches!(answer, Outcome::Done(true)), "{answer:?}");
    }

    /// By the time of the answer, the address leads to another server.
    #[tokio::test(start_paused = true)]
    async fn an_answer_from_a_server_the_address_has_left_does_not_count() {
        let test = TestQuorum::new();
        test.look().await;
        assert!(matches!(
            acquire(&test, 0).await,
            Outcome::Done(AcquireAnswer::Granted(_))
        ));
        let voter = test.voter(0);
        assert!(matches!(
            voter.raise(claim("k"), Fence::new(7)).await,
            Outcome::Done(RaiseAnswer::Raised)
        ));
        let (mut raising, mut renewing) = (
            pin!(voter.raise(claim("k"), Fence::new(8))),
            pin!(voter.renew([claim("k")].into(), LEASE)),
        );
        test.servers[0].stop();
        assert!(
            futures_util::poll!(raising.as_mut()).is_pending(),
            "it was sent"
        );
        assert!(
            futures_util::poll!(renewing.as_mut()).is_pending(),
            "it was sent"
        );
        test.servers[0].resume();
        test.servers[0].redirect_to(&crate::testing::Server::new());
        let answer = raising.await;
        assert!(
            matches!(&answer, Outcome::Unknown(failure) if failure.reason.contains("reconnected")),
            "{answer:?}"
        );
        let answer = renewing.await;
        assert!(matches!(answer, Outcome::Unknown(_)), "{answer:?}");
    }
}
