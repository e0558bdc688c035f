//! Asks one node for its vote.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::eligibility::{Ask, Eligibility, FORGOT, Ticket};
use super::{Asked, Vote};
use crate::command::{Acquire, Answer, Claim, Command, Raise, Renew};
use crate::error::NodeFailure;
use crate::fence::Fence;
use crate::lease::NodeIndex;
use crate::node::{Lane, Node, Outcome};
use crate::script;

/// A node whose answers count as votes, if they may.
pub(super) struct Voter {
    pub(super) node: Arc<Node>,
    pub(super) place: NodeIndex,
    pub(super) eligibility: Arc<Eligibility>,
}

impl Voter {
    /// Takes all of these locks, or none. If the server has another memory by now, it has done nothing, and is asked
    /// once more when that memory is known.
    pub(super) async fn acquire(&self, claims: &Arc<[Claim]>, asked: &Asked, company: &Company) -> Outcome<Acquire> {
        let mut ticket = match self.ticket(Lane::Grants, Ask::Vote).await {
            Ok(ticket) => ticket,
            Err(failure) => return Outcome::NotExecuted(failure),
        };
        let acquire = async |ticket: &Ticket| {
            let Asked { lease, fences, listing } = asked.clone();
            let (claims, vote) = (Arc::clone(claims), ticket.vote.clone());
            let acquire = Command::Acquire { claims, lease, fences, vote, listing };
            script::ask(&self.node, Lane::Grants, &acquire, Answer::acquire).await
        };
        let mut answer = acquire(&ticket).await;
        if let Outcome::Done(None) = answer {
            let newer = self.eligibility.ticket_unlike(Some(&ticket), self.place, &self.node, Lane::Grants, Ask::Vote);
            ticket = match newer.await {
                Ok(ticket) => ticket,
                Err(failure) => return Outcome::NotExecuted(failure),
            };
            answer = acquire(&ticket).await;
        }
        match answer {
            Outcome::Done(None) => Outcome::NotExecuted(self.forgot()),
            Outcome::Done(_) if !self.eligibility.holds(&ticket, &self.node) => self.connected_anew(),
            Outcome::Done(Some(Acquire::Granted(_))) if !company.admits(&ticket) => {
                Outcome::Unknown(self.failure(PARTED))
            }
            Outcome::Done(Some(answer)) => Outcome::Done(answer),
            Outcome::NotExecuted(failure) => Outcome::NotExecuted(failure),
            Outcome::Refused(error) => Outcome::Refused(error),
            Outcome::Unknown(failure) => Outcome::Unknown(failure),
        }
    }

    /// Re-acquires a lock that the server lost. If the server has no vote, the lock on it keeps others out all the
    /// same.
    pub(super) async fn retake(&self, vote: &Vote) -> Outcome<bool> {
        let ticket = match self.ticket(Lane::Grants, Ask::Keep).await {
            Ok(ticket) => ticket,
            Err(failure) => return Outcome::NotExecuted(failure),
        };
        let Vote { claim, lease, count, .. } = vote.clone();
        let retake = Command::Retake { claim, lease, count, vote: ticket.vote.clone() };
        match script::ask(&self.node, Lane::Grants, &retake, Answer::retake).await {
            Outcome::Done(told) if told.answer => match self.vouch(&ticket, told.remembers, Ask::Vote) {
                Ok(()) => Outcome::Done(true),
                Err(failure) => Outcome::Unknown(failure),
            },
            told => told.map(|told| told.answer),
        }
    }

    /// Makes a held lock last for at least this long. If the answer is no vote, it does not count.
    pub(super) async fn extend(&self, claim: Claim, lease: Duration) -> Outcome<bool> {
        let ticket = match self.ticket(Lane::Renewals, Ask::Keep).await {
            Ok(ticket) => ticket,
            Err(failure) => return Outcome::NotExecuted(failure),
        };
        let extend = Command::Extend { claim, lease, vote: ticket.vote.clone() };
        let told = match script::ask(&self.node, Lane::Renewals, &extend, Answer::extend).await {
            Outcome::Done(told) => told,
            outcome => return outcome.map(|told| told.answer),
        };
        match self.vouch(&ticket, told.remembers, Ask::Keep) {
            Err(failure) if told.answer || !told.remembers => Outcome::Unknown(failure),
            _ => Outcome::Done(told.answer),
        }
    }

    /// Raises the mark of a lock that was granted there to this fence. If the address led to another of the servers by
    /// now, which has the lock too, one server would be counted twice: so the connection has to be the same.
    pub(super) async fn raise(&self, claim: Claim, fence: Fence) -> Outcome<Raise> {
        let ticket = match self.ticket(Lane::Grants, Ask::Keep).await {
            Ok(ticket) => ticket,
            Err(failure) => return Outcome::NotExecuted(failure),
        };
        match script::ask(&self.node, Lane::Grants, &Command::Raise { claim, fence }, Answer::raise).await {
            Outcome::Done(_) if !self.eligibility.holds(&ticket, &self.node) => self.connected_anew(),
            answer => answer,
        }
    }

    /// Renews locks. If the answer is no vote, none counts as renewed.
    pub(super) async fn renew(&self, claims: Arc<[Claim]>, lease: Duration) -> Outcome<Vec<Renew>> {
        let ticket = match self.ticket(Lane::Renewals, Ask::Keep).await {
            Ok(ticket) => ticket,
            Err(failure) => return Outcome::NotExecuted(failure),
        };
        let renew = Command::Renew { claims, lease, vote: ticket.vote.clone() };
        let told = match script::ask(&self.node, Lane::Renewals, &renew, Answer::renew).await {
            Outcome::Done(told) => told,
            outcome => return outcome.map(|told| told.answer),
        };
        let mut said = told.answer;
        if let Err(failure) = self.vouch(&ticket, told.remembers, Ask::Keep) {
            if !told.remembers {
                return Outcome::Unknown(failure);
            }
            for answer in said.iter_mut().filter(|answer| **answer == Renew::Renewed) {
                *answer = Renew::Failed(failure.reason.clone());
            }
        }
        Outcome::Done(said)
    }

    async fn ticket(&self, lane: Lane, ask: Ask) -> Result<Ticket, NodeFailure> {
        self.eligibility.ticket(self.place, &self.node, lane, ask).await
    }

    /// Checks that an answer is a vote.
    ///
    /// # Errors
    /// Why it is not.
    fn vouch(&self, ticket: &Ticket, remembers: bool, ask: Ask) -> Result<(), NodeFailure> {
        if !remembers {
            return Err(self.forgot());
        }
        if !self.eligibility.holds(ticket, &self.node) {
            return Err(self.failure(CONNECTED_ANEW));
        }
        // Others may have shown in the meantime that they no longer list it: their next votes do not count together
        // with it.
        if self.eligibility.beside().is_some_and(|beside| !beside[self.place]) {
            return Err(self.failure(PARTED));
        }
        if ask == Ask::Vote { ticket.votes.clone() } else { ticket.keeps.clone() }
    }

    /// Returns the failure of a server that has another memory than when it was vetted, and has it vetted again.
    fn forgot(&self) -> NodeFailure {
        self.eligibility.doubt(self.place);
        self.failure(FORGOT)
    }

    fn connected_anew<T>(&self) -> Outcome<T> {
        Outcome::Unknown(self.failure(CONNECTED_ANEW))
    }

    fn failure(&self, reason: &str) -> NodeFailure {
        NodeFailure { node: Arc::clone(self.node.name()), reason: reason.to_owned() }
    }
}

/// The servers that granted in one round, with the memory of each: all of them list each other.
#[derive(Debug, Default)]
pub(super) struct Company(Mutex<Vec<Ticket>>);

impl Company {
    /// Adds a server, if it and all others list each other.
    pub(super) fn admits(&self, ticket: &Ticket) -> bool {
        if ticket.is_of_a_lone_server() {
            return true;
        }
        let mut others = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let admitted = others.iter().all(|other| ticket.is_of(other));
        if admitted {
            others.reserve_exact(1);
            others.push(ticket.clone());
        }
        admitted
    }
}

const PARTED: &str = "the servers changed whom they list while it was asked";
const CONNECTED_ANEW: &str = "it was reconnected, and may have restarted, while it was asked";

#[cfg(test)]
#[cfg(feature = "testing")]
mod tests {
    use std::pin::pin;

    use super::super::staged::{Staged, claim};
    use super::super::vetting::vet;
    use super::*;
    use crate::fence::Source;

    const LEASE: Duration = Duration::from_secs(30);

    const ALL: [&str; 3] = [
        "000000000000000a 3 votes 000000000000000a,000000000000000b,000000000000000c ",
        "000000000000000b 3 votes 000000000000000a,000000000000000b,000000000000000c ",
        "000000000000000c 3 votes 000000000000000a,000000000000000b,000000000000000c ",
    ];

    /// Asks the server at this place for a lock.
    async fn acquire(staged: &Staged, place: NodeIndex, key: &str, company: &Company) -> Outcome<Acquire> {
        let asked = Asked { lease: LEASE, fences: Source::Tokens, listing: None };
        staged.voter(place).acquire(&[claim(key)].into(), &asked, company).await
    }

    /// Makes the two others no longer list the first, and has the locker see that.
    async fn drop_the_first(staged: &Staged) {
        for (place, id) in [(1, "b"), (2, "c")] {
            let memory = format!("000000000000000{id} 3 votes 000000000000000b,000000000000000c 000000000000000a");
            staged.remembers(place, &memory).await;
            vet(&staged.eligibility, place, &staged.nodes[place]).await;
        }
    }

    /// The others drop the first server after it has voted: with one of them it would be a second majority.
    #[tokio::test(start_paused = true)]
    async fn servers_that_no_longer_list_each_other_grant_no_lock_together() {
        let staged = Staged::of(ALL).await;
        let company = Company::default();
        assert!(matches!(acquire(&staged, 0, "k", &company).await, Outcome::Done(Acquire::Granted(_))));
        drop_the_first(&staged).await;
        for place in [1, 2] {
            let answer = acquire(&staged, place, "k", &company).await;
            assert!(matches!(&answer, Outcome::Unknown(failure) if failure.reason == PARTED), "{place}: {answer:?}");
            assert!(staged.servers[place].holder("k").is_some(), "the lock is on the server, and has to be undone");
        }
        let company = Company::default();
        for place in [1, 2] {
            let answer = acquire(&staged, place, "next", &company).await;
            assert!(matches!(answer, Outcome::Done(Acquire::Granted(_))), "{place} in the next round: {answer:?}");
        }
    }

    /// The first server is asked, and the others drop it before it answers.
    #[tokio::test(start_paused = true)]
    async fn a_renewal_is_no_vote_if_the_others_have_dropped_its_server_meanwhile() {
        let staged = Staged::of(ALL).await;
        for place in 0..3 {
            let answer = acquire(&staged, place, "k", &Company::default()).await;
            assert!(matches!(answer, Outcome::Done(Acquire::Granted(_))), "{place}: {answer:?}");
        }
        let [first, second] = [0, 1].map(|place| staged.voter(place));
        let renew = async |voter: &Voter| voter.renew([claim("k")].into(), LEASE).await;
        let vote = Vote { claim: claim("k"), lease: LEASE, count: 1, fence: Fence::new(7) };
        let (mut renewing, mut retaking) = (pin!(renew(&first)), pin!(first.retake(&vote)));
        staged.servers[0].stop();
        assert!(futures_util::poll!(renewing.as_mut()).is_pending(), "it was sent");
        assert!(futures_util::poll!(retaking.as_mut()).is_pending(), "it was sent");
        drop_the_first(&staged).await;
        staged.servers[0].go_on();
        let answer = renewing.await;
        assert!(
            matches!(&answer, Outcome::Done(said) if *said == [Renew::Failed(PARTED.to_owned())]),
            "the lock stands there, and is no vote: {answer:?}"
        );
        let answer = retaking.await;
        assert!(matches!(&answer, Outcome::Unknown(failure) if failure.reason == PARTED), "{answer:?}");
        let answer = renew(&second).await;
        assert!(matches!(&answer, Outcome::Done(said) if *said == [Renew::Renewed]), "{answer:?}");
    }

    /// By the time of the answer, the address leads to another server: the fence that was raised is no vote.
    #[tokio::test(start_paused = true)]
    async fn a_fence_raised_on_a_server_that_the_address_no_longer_leads_to_does_not_count() {
        let staged = Staged::new();
        staged.look().await;
        assert!(matches!(acquire(&staged, 0, "k", &Company::default()).await, Outcome::Done(Acquire::Granted(_))));
        let voter = staged.voter(0);
        assert!(matches!(voter.raise(claim("k"), Fence::new(7)).await, Outcome::Done(Raise::Raised)));
        let mut raising = pin!(voter.raise(claim("k"), Fence::new(8)));
        staged.servers[0].stop();
        assert!(futures_util::poll!(raising.as_mut()).is_pending(), "it was sent");
        staged.servers[0].go_on();
        staged.servers[0].lead_to(&crate::testing::Server::new());
        let answer = raising.await;
        assert!(matches!(&answer, Outcome::Unknown(failure) if failure.reason == CONNECTED_ANEW), "{answer:?}");
    }
}
