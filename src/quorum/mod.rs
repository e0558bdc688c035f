//! N independent nodes as one: their answers become one outcome. A single server is a quorum of
//! one.
//!
//! The algorithm is Redlock, from the Redis documentation's page on distributed locks: a lock is
//! held while more than half of the nodes say so. All nodes are asked at once, and no caller waits
//! for the slowest: a decision stands as soon as a majority makes it certain. Redlock lacks a
//! number that grows, according to Martin Kleppmann's *How to do distributed locking*. Here the
//! nodes agree on one: see [`Quorum::acquire`].
//!
//! # A lock over several servers
//! 1. A vote counts only if the locker knows the server (`eligibility.rs`). After every reconnect,
//!    and in case of doubt, `vet.lua` reads who the server is and what it remembers, on each
//!    connection for votes. A replica, or a server that is also there under another address, has no
//!    vote. A server that may have forgotten locks abstains, which counts as *not executed*.
//! 2. [`Quorum::acquire`] asks all nodes at once. After each answer, `votes.rs` says what is
//!    certain whatever the others answer. If the outcome depends on servers that are slower than a
//!    majority, they get twice its time and 20 ms more. Waiters that have met contenders ask the
//!    first node alone ([`Order::FirstAlone`]).
//! 3. The fences of the granting servers are compared. They are equal unless locks that share a
//!    mark crossed, or a clock is wrong. Otherwise the highest is written to the other servers
//!    *that granted* before the lock counts as granted.
//! 4. The book follows the servers that have not answered yet. A late yes is one more vote, or is
//!    undone if the hold is gone by then. A server that never answers is *uncertain* from then on.
//! 5. Each vote has a validity of its own, and the hold's is that of the majority. The hold is lost
//!    when too many servers say *gone* for a majority to be left.
//! 6. If the lock is not granted, a server that said yes gets one undo, one that said *held* none,
//!    and one that has not answered what its answer calls for. After a [`Split`](Acquired::Split)
//!    the line pauses for a random time.
//! 7. If a renewal finds the lock gone on a minority, the book asks for that vote again
//!    (`retake.lua`), with the same field. The fence is raised there too: a rolling restart would
//!    otherwise forget it node by node.
//! 8. A release goes to all servers until each has answered or the lease is over. The caller gets
//!    its answer when a majority makes it certain. Uncertain votes are undone once more behind the
//!    release.
//!
//! Nothing is handed over and no locker is woken by name here: a grant would need all servers that
//! voted, and the waiting lists are those of single servers.

mod calls;
mod connect;
mod doors;
mod election;
mod eligibility;
mod extend;
mod inspect;
mod labels;
mod latch;
mod node_record;
mod outcome;
mod pace;
mod permits;
mod read_write;
#[cfg(test)]
#[cfg(feature = "testing")]
#[path = "../../tests/unit/test_quorum.rs"]
mod test_quorum;
mod vetting;
mod voter;
mod votes;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::try_join_all;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::timeout;

pub(crate) use self::calls::Calls;
pub(crate) use self::connect::{connect, connect_lazily};
use self::eligibility::{Eligibility, Status};
use self::labels::Labels;
pub(crate) use self::outcome::{Acquired, Majority, Round, Settled};
use self::pace::patience_of;
use self::voter::Voter;
pub(crate) use self::votes::Confirmations;
use self::votes::RoundVotes;
use self::waiting::Lists;
use crate::claim::{Claim, How, ReleaseAnswer};
use crate::clock::Instant;
use crate::error::{Error, NodeFailure};
use crate::fence::{Fence, Source};
use crate::foreign::log;
use crate::key::Key;
use crate::lease::{NodeIndex, majority};
use crate::node::{Lane, LinkEvent, Node, Outcome};
use crate::op::{
    self, AcquireAnswer, HandOver, HandOverAnswer, Op, Raise, RaiseAnswer, RenewAnswer, WriteCount,
};
use crate::presence::Roll;

/// How much longer than a majority the other nodes may take if nothing depends on them: to connect,
/// and to close.
pub(crate) const STRAGGLERS: Duration = Duration::from_millis(200);

/// In which order the nodes are asked for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    AllAtOnce,
    /// The first node alone, and the others once it has granted the lock, or is silent for longer
    /// than usual. If several lockers do so at once, one of them gets past the first node, however
    /// far each is from which node. That decides nothing: a lock is held by a majority, as always.
    FirstAlone,
}

/// The terms that a lock is asked for with.
#[derive(Debug, Clone)]
pub(crate) struct AcquireTerms {
    pub(crate) lease: Duration,
    pub(crate) fences: Source,
    pub(crate) how: How,
}

/// A vote that a node has lost and is asked for again.
#[derive(Debug, Clone)]
pub(crate) struct Vote {
    pub(crate) claim: Claim,
    pub(crate) lease: Duration,
    pub(crate) count: u32,
    pub(crate) fence: Fence,
}

/// Why no majority has a fence.
#[derive(Debug)]
enum Disagreement {
    /// Another node does not accept the fence that these nodes gave, for this reason.
    Unbelieved(Vec<NodeIndex>, NodeFailure),
    /// These nodes did not take the fence.
    Unheard(Vec<NodeFailure>),
}

/// The nodes of a locker.
#[derive(Debug)]
pub(crate) struct Quorum {
    nodes: Vec<Arc<Node>>,
    eligibility: Arc<Eligibility>,
    lists: Option<Lists>,
    labels: Labels,
    roll: Arc<Roll>,
    /// How long a majority took to answer the last time that all nodes were asked at once, in
    /// microseconds.
    round_trip_us: AtomicU64,
}

impl Quorum {
    /// Makes a quorum of servers that abstain for at least `quarantine` after they have lost their
    /// memory. Zero: they have no memories. A server that is there is connected within
    /// `connect_timeout`.
    pub(crate) fn new(
        nodes: Vec<Arc<Node>>,
        quarantine: Duration,
        connect_timeout: Duration,
    ) -> Self {
        let eligibility = Eligibility::new(&nodes, quarantine, connect_timeout);
        let labels = Labels::new(nodes.len());
        Self {
            nodes,
            eligibility,
            lists: None,
            labels,
            roll: Arc::default(),
            round_trip_us: AtomicU64::new(0),
        }
    }

    /// Vets the servers that are present, and starts the tasks that keep vetting them.
    ///
    /// # Errors
    /// [`Error::Config`] for a server whose vote can never count.
    async fn begin(
        &self,
        present: &[bool],
        ups: Vec<UnboundedReceiver<LinkEvent>>,
    ) -> Result<(), Error> {
        if !self.eligibility.is_moot() {
            for (place, node) in self
                .nodes
                .iter()
                .enumerate()
                .filter(|&(place, _)| present[place])
            {
                vetting::vet(&self.eligibility, place, node).await;
                if let Status::Unfit(reason) = self.eligibility.status(place) {
                    return Err(Error::config("node", format!("{} {reason}", node.name())));
                }
            }
        }
        vetting::start(&self.eligibility, &self.nodes, ups);
        Ok(())
    }

    /// Starts the same tasks if no server may be there yet: each one is vetted once it is there.
    fn begin_without_servers(&self, ups: Vec<UnboundedReceiver<LinkEvent>>) {
        vetting::start(&self.eligibility, &self.nodes, ups);
    }

    /// Makes it that of the servers on this roll.
    fn with_roll(self, roll: Arc<Roll>) -> Self {
        Self { roll, ..self }
    }

    /// Returns what is known of whether each server is there.
    pub(crate) fn roll(&self) -> &Arc<Roll> {
        &self.roll
    }

    pub(crate) fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    /// Returns the places of all nodes.
    pub(crate) fn everywhere(&self) -> std::ops::Range<NodeIndex> {
        0..self.nodes.len()
    }

    /// Returns the same failure for every node.
    pub(crate) fn failures(&self, reason: impl std::fmt::Display) -> Vec<NodeFailure> {
        let failure = |node: &Arc<Node>| NodeFailure::new(node.name(), reason.to_string());
        self.nodes.iter().map(failure).collect()
    }

    /// Returns the error of an operation to which these nodes gave no usable answer, and for how
    /// long they have given none.
    pub(crate) fn unavailable(&self, nodes: Vec<NodeFailure>, waited: Duration) -> Error {
        Error::Unavailable {
            keys: Vec::new(),
            servers: self.nodes.len(),
            nodes,
            waited,
        }
    }

    /// Returns how many nodes make a majority.
    pub(crate) fn majority(&self) -> usize {
        majority(self.nodes.len())
    }

    fn voter(&self, place: NodeIndex) -> Voter {
        Voter {
            node: Arc::clone(&self.nodes[place]),
            place,
            eligibility: Arc::clone(&self.eligibility),
        }
    }

    /// Asks every node at once.
    fn ask<O: Op<Output: 'static> + Send + 'static>(&self, op: O) -> Calls<O::Output> {
        let op = Arc::new(op);
        let ask = |node: &Arc<Node>| {
            let node = Arc::clone(node);
            let op = Arc::clone(&op);
            async move { op::ask(&node, O::LANE, &*op).await }
        };
        Calls::new(self.nodes.iter().map(ask).enumerate())
    }

    /// Asks all nodes for a lock, or for several locks of which each node grants all or none.
    /// Decides as soon as the answers that are missing cannot change the outcome. If the nodes that
    /// granted it gave different fences, the highest one is written to a majority *of them* before
    /// this returns. A yes with a fence that another node does not accept does not count.
    pub(crate) async fn acquire(
        &self,
        claims: &Arc<[Claim]>,
        terms: AcquireTerms,
        order: Order,
    ) -> Round {
        // All before the first send: at that moment, a majority knows the lease of this locker.
        let tickets = self.eligibility.tickets(&self.nodes).await;
        let ask = |at: NodeIndex| {
            let voter = self.voter(at);
            let claims = Arc::clone(claims);
            let ticket = tickets[at].clone();
            let terms = terms.clone();
            let ask = async move {
                match ticket {
                    Ok(ticket) => voter.acquire(&claims, &terms, &ticket).await,
                    Err(failure) => Outcome::NotExecuted(failure),
                }
            };
            (at, ask)
        };
        let mut nodes = self.everywhere();
        let mut round = RoundVotes::new(self.nodes.len());
        let mut late = Calls::none();
        if order == Order::FirstAlone {
            late.extend(nodes.by_ref().take(1).map(ask));
            let patience = Instant::now() + self.answers_within();
            if let Some((node, answer)) = late.next_by(Some(patience)).await {
                if matches!(answer, Outcome::Done(AcquireAnswer::Held(_))) {
                    return Round {
                        acquired: Acquired::Outrun,
                        taken: Vec::new(),
                        uncertain: Vec::new(),
                        late,
                        served: None,
                        forgot: false,
                    };
                }
                // Silence, or a refusal, is no reason to leave the lock to others.
                round.add(node, answer);
            }
        }
        let started = Instant::now();
        late.extend(nodes.map(ask));
        let mut patience = None;
        let mut verdict = None;
        let acquired = loop {
            let acquired = match verdict.take() {
                Some(acquired) => acquired,
                None => match late.next_by(patience).await {
                    Some((node, answer)) => {
                        round.add(node, answer);
                        // Only nodes that are slower than a majority are missing, and these are not
                        // waited for forever.
                        if round.is_heard() && patience.is_none() {
                            patience = Some(patience_of(started));
                            self.note_round_trip(order, started);
                        }
                        verdict = round.verdict();
                        continue;
                    }
                    None => round.close(),
                },
            };
            let Acquired::Granted(majority) = acquired else {
                break acquired;
            };
            match self.agree_on_all(claims, &majority.fences, &round).await {
                Ok(()) => break Acquired::Granted(majority),
                // Without these nodes, there may still be a majority.
                Err(Disagreement::Unbelieved(nodes, reason)) => {
                    round.disregard(&nodes, &reason);
                    verdict = round.verdict();
                }
                Err(Disagreement::Unheard(nodes)) => break Acquired::Unavailable(nodes),
            }
        };
        Round {
            acquired,
            taken: round.taken(),
            served: round.served,
            forgot: round.forgot,
            uncertain: round.uncertain,
            late,
        }
    }

    /// Makes a majority have the fence of each of these locks.
    async fn agree_on_all(
        &self,
        claims: &[Claim],
        fences: &[Fence],
        votes: &RoundVotes,
    ) -> Result<(), Disagreement> {
        let majority = self.majority();
        let agree = |at: usize| {
            votes
                .granted
                .iter()
                .filter(|(_, given)| given[at] == fences[at])
                .count()
                >= majority
        };
        // Usually all gave the same fence, and nothing has to be sent.
        if (0..fences.len()).all(agree) {
            return Ok(());
        }
        let agree = |(at, claim)| {
            let given = votes
                .granted
                .iter()
                .map(|(node, given)| (*node, given[at]))
                .collect();
            self.agree(claim, fences[at], given)
        };
        try_join_all(claims.iter().enumerate().map(agree))
            .await
            .map(|_| ())
    }

    /// Makes a majority have this fence, out of the nodes that gave it or a lower one.
    async fn agree(
        &self,
        claim: &Claim,
        fence: Fence,
        given: Vec<(NodeIndex, Fence)>,
    ) -> Result<(), Disagreement> {
        let (ahead, behind): (Vec<_>, Vec<_>) =
            given.into_iter().partition(|&(_, gave)| gave == fence);
        let mut agreed = ahead.len();
        if agreed >= self.majority() {
            return Ok(());
        }
        // Only nodes that granted the lock. A later majority shares a node with this one, and that
        // node granted the later lock after ours, so the later fence is higher. A node that has not
        // granted ours may have granted the next one before our fence was written.
        let mut raising = Calls::new(behind.into_iter().map(|(index, _)| {
            let voter = self.voter(index);
            let claim = claim.clone();
            (index, async move { voter.raise(claim, fence).await })
        }));
        let mut failures = Vec::new();
        while let Some((index, answer)) = raising.next().await {
            let failure = |reason: &str| NodeFailure::new(self.nodes[index].name(), reason);
            match answer {
                Outcome::Done(RaiseAnswer::Raised) => agreed += 1,
                Outcome::Done(RaiseAnswer::Gone) => {
                    failures.push(failure("the lock is gone again"));
                }
                Outcome::Done(RaiseAnswer::TooHigh) => {
                    let ahead = ahead.into_iter().map(|(node, _)| node).collect();
                    let reason = format!(
                        "the fence {fence} of another server is more than 30 days ahead of its clock"
                    );
                    return Err(Disagreement::Unbelieved(ahead, failure(&reason)));
                }
                Outcome::Refused(Error::Server { source, .. }) => {
                    failures.push(NodeFailure::new(&source.node, source.to_string()));
                }
                Outcome::Refused(_) => {}
                Outcome::NotExecuted(failure) | Outcome::Unknown(failure) => failures.push(failure),
            }
            if agreed >= self.majority() {
                return Ok(());
            }
        }
        Err(Disagreement::Unheard(failures))
    }

    /// Re-acquires a held lock on one node that lost it; true if that succeeded. Raises the mark as
    /// well.
    pub(crate) async fn retake(&self, node: NodeIndex, vote: Vote) -> Outcome<bool> {
        let answer = self.voter(node).retake(&vote).await;
        let node = &self.nodes[node];
        // A node that forgot the lock may have forgotten its fence too, and one by one all nodes
        // may.
        if let Outcome::Done(true) = answer {
            let Vote { claim, fence, .. } = vote;
            let raise = Raise {
                claim: claim.clone(),
                fence,
            };
            let raised = op::ask(node, Lane::Grants, &raise).await;
            log!(trace, key = %claim.key.shown(), %fence, ?raised, "the fence counter is raised again");
        }
        answer
    }

    /// Writes the hold count. Does not wait for the slowest node.
    pub(crate) async fn count(&self, claim: &Claim, count: u32) -> Settled {
        let claim = claim.clone();
        self.settle(self.ask(WriteCount { claim, count })).await
    }

    /// Waits until the answers are certain: whether the nodes have done what only the holder of a
    /// lock may do.
    async fn settle(&self, mut asking: Calls<bool>) -> Settled {
        let mut confirmations = Confirmations::new(self.nodes.len());
        while let Some((_, answer)) = asking.next().await {
            confirmations.add(answer);
            if let Some(settled) = confirmations.verdict() {
                return settled;
            }
        }
        // Never reached: with the last answer there is a verdict.
        Settled::Unanswered(Vec::new())
    }

    /// Returns whether a lock can be handed over: only on a single server without a memory, whose
    /// answer alone decides.
    pub(crate) fn hands_over(&self) -> bool {
        self.eligibility.is_moot()
    }

    /// Releases a lock and takes it for the next holder in one step, if
    /// [`hands_over`](Self::hands_over) allows it. An undo of the next hold is behind it on the
    /// same connection.
    pub(crate) async fn hand_over(
        &self,
        from: &Claim,
        to: &Claim,
        lease: Duration,
        fences: Source,
    ) -> Outcome<HandOverAnswer> {
        let hand_over = HandOver {
            from: from.clone(),
            to: to.clone(),
            lease,
            fences,
        };
        op::ask(&self.nodes[0], Lane::Grants, &hand_over).await
    }

    /// Renews locks on one node.
    pub(crate) async fn renew(
        &self,
        node: NodeIndex,
        claims: Arc<[Claim]>,
        lease: Duration,
    ) -> Outcome<Vec<RenewAnswer>> {
        self.voter(node).renew(claims, lease).await
    }

    /// Asks every node, and waits for a majority, and for the others until a while has passed.
    ///
    /// # Errors
    /// [`Error::Unavailable`], or the refusal of a server.
    async fn hear_all<O>(&self, op: O) -> Result<Vec<O::Output>, Error>
    where
        O: Op<Output: 'static> + Send + 'static,
    {
        self.hear(self.ask(op), |_, missing| missing == 0).await
    }

    /// Waits for the answers of a majority, and for more until they are certain or a while has
    /// passed.
    async fn hear<T: Send + 'static>(
        &self,
        mut asking: Calls<T>,
        certain: impl Fn(&[T], usize) -> bool,
    ) -> Result<Vec<T>, Error> {
        let started = Instant::now();
        let mut done = Vec::new();
        let mut failures = Vec::new();
        let mut refusal = None;
        let mut patience = None;
        loop {
            match asking.next_by(patience).await {
                Some((_, Outcome::Done(value))) => done.push(value),
                Some((_, Outcome::Refused(error))) => refusal = Some(error),
                Some((_, Outcome::NotExecuted(failure) | Outcome::Unknown(failure))) => {
                    failures.push(failure);
                }
                None if done.len() >= self.majority() => return Ok(done),
                None => {
                    return Err(
                        refusal.unwrap_or_else(|| self.unavailable(failures, Duration::ZERO))
                    );
                }
            }
            if done.len() >= self.majority() {
                if certain(&done, asking.missing().count()) {
                    return Ok(done);
                }
                patience = patience.or(Some(patience_of(started)));
            }
        }
    }

    /// Ends all connections. The sockets of a minority that does not answer are closed with the
    /// engine.
    pub(crate) async fn quit(&self) {
        let mut quitting: FuturesUnordered<_> = self.nodes.iter().map(|node| node.quit()).collect();
        for _ in 0..self.majority() {
            quitting.next().await;
        }
        let rest = async { while quitting.next().await.is_some() {} };
        let _: Result<_, _> = timeout(STRAGGLERS, rest).await;
    }
}

/// Returns whether a lock was there when it was released.
pub(crate) fn was_there(key: &Key, release: &ReleaseAnswer) -> bool {
    let was_there = *release != ReleaseAnswer::Gone;
    if was_there {
        log!(trace, key = %key.shown(), ?release, "released");
    }
    was_there
}

#[cfg(test)]
#[cfg(feature = "testing")]
mod tests {
    use super::test_quorum::{TestQuorum, claim};
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_does_not_answer_after_its_connections_have_ended() {
        let test = TestQuorum::new();
        let quorum = Quorum::new(test.nodes.clone(), Duration::ZERO, Duration::ZERO);
        let inspect = async || {
            let inspect = op::Inspect(claim("k").key);
            op::ask(&test.nodes[2], Lane::Commands, &inspect).await
        };
        assert!(matches!(inspect().await, Outcome::Done(None)));
        quorum.quit().await;
        let answer = inspect().await;
        assert!(matches!(answer, Outcome::Unknown(_)), "{answer:?}");
    }
}
