//! Whose vote counts: what each server has shown on each connection, and what follows from all of it.
//!
//! # Invariants
//! - A vote counts if the connection on which it came has been vetted, before it was sent, and is still the same; and where
//!   servers have memories, if the server had the one then that it was vetted for.
//! - All connections of a node show the same server; two nodes of a locker never do.
//! - Servers whose votes count list each other: see [`super::members`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::timeout;

use super::members::{self, Change, Id, Known, Memory, Phase, Plan, Sight};
use super::place::{Place, unfitness};
use crate::clock::Instant;
use crate::command::{Identity, Remembered, Remembrance};
use crate::error::NodeFailure;
use crate::lease::NodeIndex;
use crate::node::{Lane, Node};
use crate::random;

/// How often a locker has a server that begins anew listed by each of the others, within a quarantine.
const MOST_LISTINGS: usize = 3;

/// Why an answer is no vote of a server that is not the one that was vetted.
pub(super) const FORGOT: &str = "does not remember what it was vetted for: it is looked at again";

/// What is known of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Status {
    /// Nothing yet, and why.
    Unknown(String),
    /// It is no server whose vote could count.
    Unfit(String),
    /// It may have forgotten who holds what.
    Abstains(String),
    Votes,
}

/// All nodes, and what follows.
#[derive(Debug)]
struct Found {
    places: Vec<Place>,
    plan: Plan,
    /// Another number after each change of what the servers remember.
    lists: u64,
}

/// The right to ask a node for its vote, on one connection.
#[derive(Debug, Clone)]
pub(super) struct Ticket {
    lane: Lane,
    epoch: Option<u64>,
    /// What the server has to remember.
    pub(super) vote: Option<Remembered>,
    /// Whether its answer is a vote then, for a lock that is taken and for one that stands already; or why not.
    pub(super) votes: Result<(), NodeFailure>,
    pub(super) keeps: Result<(), NodeFailure>,
    /// At which time the servers' lists were known: another number after each change.
    pub(super) lists: u64,
}

impl Ticket {
    /// Whether the votes of the two count together: at one time they do, and else where the servers list each other.
    pub(super) fn is_of(&self, other: &Self) -> bool {
        let memory = |ticket: &Self| Memory::parse(ticket.vote.as_ref()?);
        self.lists == other.lists
            || matches!((memory(self), memory(other)), (Some(one), Some(other)) if one.is_mutual(&other))
    }
}

/// What an answer is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    /// A vote for a lock that is taken, or taken again.
    Vote,
    /// A vote for one that stands already.
    Keep,
}

/// The servers of a locker, and whose votes count.
#[derive(Debug)]
pub(crate) struct Eligibility {
    quarantine: Duration,
    found: Mutex<Found>,
    /// Something was found out.
    news: Notify,
    /// By place: it is to be vetted again.
    doubts: Vec<Notify>,
}

impl Eligibility {
    pub(super) fn new(nodes: &[Arc<Node>], quarantine: Duration) -> Arc<Self> {
        let places = nodes.iter().map(|node| Place::new(Arc::clone(node.name()))).collect();
        let plan = Plan { votes: vec![false; nodes.len()], keeps: vec![false; nodes.len()], ..Plan::default() };
        let doubts = nodes.iter().map(|_| Notify::new()).collect();
        let found = Mutex::new(Found { places, plan, lists: 0 });
        Arc::new(Self { quarantine, found, news: Notify::new(), doubts })
    }

    /// Whether there is anything to find out: one server that votes at once has nobody to be mistaken for.
    pub(super) fn is_moot(&self) -> bool {
        !self.remembers() && self.doubts.len() < 2
    }

    /// Whether servers have memories.
    pub(super) fn remembers(&self) -> bool {
        !self.quarantine.is_zero()
    }

    /// How many servers there are.
    pub(super) fn seats(&self) -> usize {
        self.doubts.len()
    }

    pub(super) fn quarantine(&self) -> Duration {
        self.quarantine
    }

    /// Waits until it is known whether the vote of this connection counts.
    ///
    /// # Errors
    /// Why it does not, or cannot be asked for.
    pub(super) async fn ticket(
        &self,
        place: NodeIndex,
        node: &Node,
        lane: Lane,
        ask: Ask,
    ) -> Result<Ticket, NodeFailure> {
        self.ticket_unlike(None, place, node, lane, ask).await
    }

    /// The same, where the server does not remember what another ticket was for.
    pub(super) async fn ticket_unlike(
        &self,
        former: Option<&Ticket>,
        place: NodeIndex,
        node: &Node,
        lane: Lane,
        ask: Ask,
    ) -> Result<Ticket, NodeFailure> {
        if self.is_moot() {
            return Ok(Ticket { lane, epoch: None, vote: None, votes: Ok(()), keeps: Ok(()), lists: 0 });
        }
        let deadline = Instant::now() + node.patience();
        loop {
            // Before the look: news that come after it are not missed.
            let news = self.news.notified();
            let reason = match self.look(place, node, lane, ask) {
                Ok(ticket) if former.is_some_and(|former| former.vote == ticket.vote) => {
                    self.found().places[place].failure(FORGOT)
                }
                Ok(ticket) => return Ok(ticket),
                Err(Missing::Unfit(failure)) => return Err(failure),
                Err(Missing::News(failure)) => failure,
            };
            self.doubt(place);
            if timeout(Instant::now().until(deadline), news).await.is_err() {
                return Err(reason);
            }
        }
    }

    fn look(&self, place: NodeIndex, node: &Node, lane: Lane, ask: Ask) -> Result<Ticket, Missing> {
        let found = self.found();
        let (at, epoch) = (&found.places[place], node.epoch(lane));
        if let Some(reason) = &at.unfit {
            return Err(Missing::Unfit(at.failure(reason)));
        }
        let vetted = if lane == Lane::Renewals { at.renewals } else { at.grants };
        if vetted != Some(epoch) {
            let reason = at.unknown.as_deref().unwrap_or("it was connected anew a moment ago");
            return Err(Missing::News(at.failure(format!("does not vote before it is known who it is: {reason}"))));
        }
        let (votes, keeps) = self.counts(&found, place);
        if let (Err(failure), Ask::Vote) = (&votes, ask) {
            return Err(Missing::Unfit(failure.clone()));
        }
        Ok(Ticket { lane, epoch: Some(epoch), vote: at.memory.clone(), votes, keeps, lists: found.lists })
    }

    /// Whether the vote of a server that is known counts, for a lock that is taken and for one that stands already.
    fn counts(&self, found: &Found, place: NodeIndex) -> (Result<(), NodeFailure>, Result<(), NodeFailure>) {
        if !self.remembers() {
            return (Ok(()), Ok(()));
        }
        let plan = &found.plan;
        if plan.votes[place] && plan.keeps[place] {
            return (Ok(()), Ok(()));
        }
        let at = &found.places[place];
        let failure = || at.failure(self.abstention(at, &self.plan_of(&found.places)));
        let or_not = |counts: bool| if counts { Ok(()) } else { Err(failure()) };
        (or_not(plan.votes[place]), or_not(plan.keeps[place]))
    }

    /// Why a server that is known has no vote.
    fn abstention(&self, place: &Place, plan: &Plan) -> String {
        let quarantine = self.quarantine;
        let over = "and whoever holds a lock that it has forgotten has to run out first";
        match place.sight.as_ref().map(|sight| sight.memory.phase) {
            Some(Phase::Votes) => "does not vote: too few of the others list it, or are there".to_owned(),
            Some(Phase::Listed) if plan.wait.is_some() => {
                let rest = plan.wait.unwrap_or_default();
                format!(
                    "abstains for another {rest:.1?}: it has begun anew, {over} (restart_quarantine = {quarantine:?})"
                )
            }
            _ => format!(
                "abstains: it has begun anew, {over} (restart_quarantine = {quarantine:?}), which begins when enough of the \
                 others list it"
            ),
        }
    }

    /// Whether an answer came on the connection that the ticket is for.
    pub(super) fn holds(&self, ticket: &Ticket, node: &Node) -> bool {
        ticket.epoch.is_none_or(|epoch| epoch == node.epoch(ticket.lane))
    }

    /// Has a node vetted again.
    pub(super) fn doubt(&self, place: NodeIndex) {
        self.doubts[place].notify_one();
    }

    pub(super) async fn doubted(&self, place: NodeIndex) {
        self.doubts[place].notified().await;
    }

    /// The next news: those that come after this call are not missed, even before it is awaited.
    pub(super) fn told(&self) -> Notified<'_> {
        self.news.notified()
    }

    /// What a server showed on a connection.
    pub(super) fn saw(&self, place: NodeIndex, lane: Lane, epoch: u64, identity: &Identity, now: Instant) {
        let unfit = unfitness(&self.found().places, place, lane, identity);
        self.change(place, |at| {
            let vetted = unfit.is_none().then_some(epoch);
            if lane == Lane::Renewals {
                at.renewals = vetted;
                return;
            }
            at.run_id = vetted.map(|_| identity.run_id.clone());
            (at.grants, at.unknown, at.unfit) = (vetted, None, unfit);
            match identity.memory.as_ref().filter(|_| vetted.is_some()) {
                Some(told) => at.remember(told, now),
                None => (at.sight, at.memory) = (None, None),
            }
        });
    }

    /// Nothing is known yet, and why; or nothing can be, and it does not vote.
    pub(super) fn failed(&self, place: NodeIndex, lane: Lane, reason: &str, unfit: bool) {
        self.change(place, |at| {
            if lane == Lane::Renewals {
                at.renewals = None;
            } else {
                (at.grants, at.sight, at.memory) = (None, None, None);
                at.unfit = unfit.then(|| reason.to_owned());
                at.unknown = Some(reason.to_owned());
            }
        });
    }

    /// INFO is not permitted, and servers have no memories.
    pub(super) fn trust(&self, place: NodeIndex, lane: Lane, epoch: u64) {
        self.change(place, |at| {
            if lane == Lane::Renewals {
                at.renewals = Some(epoch);
            } else {
                (at.grants, at.unknown, at.unfit) = (Some(epoch), None, None);
            }
        });
    }

    /// Whom another server lists by this change, of those that are seen.
    pub(super) fn listed_by(&self, change: &Change) -> Vec<NodeIndex> {
        let found = self.found();
        let is_listed = |at: &Place| {
            let id = at.sight.as_ref().map(|sight| sight.memory.id);
            id.is_some_and(|id| id != change.to.id && change.to.lists(id) && !change.from.lists(id))
        };
        found.places.iter().enumerate().filter(|(_, at)| is_listed(at)).map(|(place, _)| place).collect()
    }

    /// Such a change was written, or may have been.
    pub(super) fn listed(&self, places: &[NodeIndex], now: Instant) {
        let mut found = self.found();
        for &place in places {
            let listings = &mut found.places[place].listings;
            listings.retain(|listed| listed.until(now) < self.quarantine);
            listings.push(now);
        }
    }

    /// A change was written, or came to nothing: what the server remembers now. Whether that is something else than
    /// before.
    pub(super) fn amended(&self, place: NodeIndex, epoch: u64, told: &Remembrance, now: Instant) -> bool {
        let mut is_new = true;
        self.change(place, |at| {
            if at.grants == Some(epoch) {
                is_new = at.memory.as_deref() != Some(&told.memory);
                at.remember(told, now);
            }
        });
        is_new
    }

    pub(super) fn plan(&self) -> Plan {
        self.plan_of(&self.found().places)
    }

    fn plan_of(&self, places: &[Place]) -> Plan {
        let seen: Vec<Option<Sight>> = places.iter().map(|place| place.sight.clone()).collect();
        let former: Vec<Option<Id>> = places.iter().map(|place| place.former).collect();
        let now = Instant::now();
        let recent = |at: &&Instant| at.until(now) < self.quarantine;
        let rests = |place: &Place| place.listings.iter().filter(recent).count() >= MOST_LISTINGS * places.len();
        let rests: Vec<bool> = places.iter().map(rests).collect();
        let known = Known { former: &former, lease: self.quarantine, rests: &rests };
        members::plan(&seen, known, now, &mut fresh)
    }

    /// What the server at that place remembers, and for how long it has been listed.
    pub(super) fn last(&self, place: NodeIndex, now: Instant) -> Option<(Arc<str>, Duration)> {
        let found = self.found();
        let at = &found.places[place];
        let sight = at.sight.as_ref().filter(|sight| sight.memory.phase == Phase::Listed)?;
        Some((at.memory.clone()?, sight.age + now.since(sight.read)))
    }

    pub(super) fn status(&self, place: NodeIndex) -> Status {
        let found = self.found();
        let at = &found.places[place];
        match (&at.unfit, &at.unknown) {
            (Some(reason), _) => Status::Unfit(reason.clone()),
            (None, Some(reason)) => Status::Unknown(reason.clone()),
            (None, None) => match self.counts(&found, place).0 {
                Ok(()) => Status::Votes,
                Err(failure) => Status::Abstains(failure.reason),
            },
        }
    }

    fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is known of a node, and draws the conclusions.
    fn change(&self, place: NodeIndex, change: impl FnOnce(&mut Place)) {
        let mut found = self.found();
        let before = found.places[place].memory.clone();
        change(&mut found.places[place]);
        if self.remembers() {
            found.lists += u64::from(found.places[place].memory != before);
            found.plan = self.plan_of(&found.places);
        }
        drop(found);
        self.news.notify_waiters();
    }
}

/// Why there is no ticket.
enum Missing {
    /// There will be none soon.
    Unfit(NodeFailure),
    /// There may be one with the next news.
    News(NodeFailure),
}

pub(super) fn fresh() -> Id {
    Id(random::uuid().as_u64_pair().0)
}

/// What a change is on the wire.
pub(super) fn texts(change: &Change) -> (String, String, bool) {
    let listed = change.to.phase == Phase::Listed && change.from.phase != Phase::Listed;
    (change.from.to_string(), change.to.to_string(), listed)
}
