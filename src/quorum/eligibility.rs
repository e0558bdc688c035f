//! Decides whose vote counts, from what each server has shown on each connection.
//!
//! # Invariants
//! - A vote counts if its connection was vetted before the request was sent, and is still the same; and, if servers
//!   have memories, if the server had the memory then that it was vetted with.
//! - All connections of a node show the same server; two nodes of a locker never do.
//! - Servers whose votes count list each other: see [`super::members`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::timeout;

use super::members::{self, Change, Id, Known, Memory, Phase, Plan};
use super::place::{Place, unfitness};
use crate::clock::Instant;
use crate::command::{Identity, Remembered, Remembrance};
use crate::error::NodeFailure;
use crate::lease::NodeIndex;
use crate::node::{Lane, Node};
use crate::random;

/// How often a locker has a server with a new memory listed by each of the others, within a quarantine.
const MOST_LISTINGS: usize = 3;

/// Why an answer is no vote if the server's memory is not the one that was vetted.
pub(super) const FORGOT: &str = "no longer has the memory that it was vetted with: it is vetted again";

/// What is known about a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Status {
    /// Nothing is known yet, for this reason.
    Unknown(String),
    /// Its vote can never count, for this reason.
    Unfit(String),
    /// It may have forgotten locks.
    Abstains(String),
    Votes,
}

/// What is known about all nodes, and the plan that follows from it.
#[derive(Debug)]
struct Found {
    places: Vec<Place>,
    /// The plan after the last change, and the time of that change.
    plan: Plan,
    planned: Instant,
    /// Increases with each change of what the servers remember.
    lists: u64,
}

/// The permission to ask a node for its vote on one connection.
#[derive(Debug, Clone)]
pub(super) struct Ticket {
    lane: Lane,
    epoch: Option<u64>,
    /// What the server has to remember for its answer to be a vote.
    pub(super) vote: Option<Remembered>,
    /// Whether its answer is a vote for a lock that is acquired; if not, why.
    pub(super) votes: Result<(), NodeFailure>,
    /// The same for a lock that already is on the server.
    pub(super) keeps: Result<(), NodeFailure>,
    /// Which state of the servers' lists it was made from: increases with each change.
    pub(super) lists: u64,
}

impl Ticket {
    /// Returns whether there is no other server, and this one has no memory.
    pub(super) fn is_of_a_lone_server(&self) -> bool {
        self.epoch.is_none()
    }

    /// Returns whether the votes of both count together: they do if they were made from the same state of the lists, or
    /// if the two servers list each other.
    pub(super) fn is_of(&self, other: &Self) -> bool {
        let memory = |ticket: &Self| Memory::parse(&ticket.vote.as_ref()?.memory);
        self.lists == other.lists
            || matches!((memory(self), memory(other)), (Some(one), Some(other)) if one.is_mutual(&other))
    }
}

/// What an answer is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    /// A vote for a lock that is acquired, or re-acquired.
    Vote,
    /// A vote for a lock that already is on the server.
    Keep,
}

/// The servers of a locker, and whose votes count.
#[derive(Debug)]
pub(crate) struct Eligibility {
    quarantine: Duration,
    found: Mutex<Found>,
    /// Notified when something was found out.
    news: Notify,
    /// By place: notified when the server is to be vetted again.
    doubts: Vec<Notify>,
}

impl Eligibility {
    pub(super) fn new(nodes: &[Arc<Node>], quarantine: Duration) -> Arc<Self> {
        let places = nodes.iter().map(|node| Place::new(Arc::clone(node.name()))).collect();
        let plan = Plan { votes: vec![false; nodes.len()], keeps: vec![false; nodes.len()], ..Plan::default() };
        let doubts = nodes.iter().map(|_| Notify::new()).collect();
        let found = Mutex::new(Found { places, plan, planned: Instant::now(), lists: 0 });
        Arc::new(Self { quarantine, found, news: Notify::new(), doubts })
    }

    /// Returns whether there is nothing to find out: a single server without a memory cannot be mistaken for another.
    pub(super) fn is_moot(&self) -> bool {
        !self.remembers() && self.doubts.len() < 2
    }

    /// Returns whether servers have memories.
    pub(super) fn remembers(&self) -> bool {
        !self.quarantine.is_zero()
    }

    /// Returns the number of servers.
    pub(super) fn seats(&self) -> usize {
        self.doubts.len()
    }

    pub(super) fn quarantine(&self) -> Duration {
        self.quarantine
    }

    /// Waits until it is known whether the vote on this connection counts.
    ///
    /// # Errors
    /// Why it does not count, or cannot be asked for.
    pub(super) async fn ticket(
        &self,
        place: NodeIndex,
        node: &Node,
        lane: Lane,
        ask: Ask,
    ) -> Result<Ticket, NodeFailure> {
        self.ticket_unlike(None, place, node, lane, ask).await
    }

    /// As [`ticket`](Self::ticket), but waits for another memory than the one of the former ticket, which the server no
    /// longer has.
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
            // Created before the check, so that news that come after the check are not missed.
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

    /// Returns whether the vote of a vetted server counts: for a lock that is acquired, and for one that is on the
    /// server.
    fn counts(&self, found: &Found, place: NodeIndex) -> (Result<(), NodeFailure>, Result<(), NodeFailure>) {
        if !self.remembers() {
            return (Ok(()), Ok(()));
        }
        let plan = &found.plan;
        if plan.votes[place] && plan.keeps[place] {
            return (Ok(()), Ok(()));
        }
        let at = &found.places[place];
        let failure = || at.failure(self.abstention(at, found));
        let or_not = |counts: bool| if counts { Ok(()) } else { Err(failure()) };
        (or_not(plan.votes[place]), or_not(plan.keeps[place]))
    }

    /// Returns why a vetted server has no vote.
    fn abstention(&self, place: &Place, found: &Found) -> String {
        let quarantine = self.quarantine;
        let begun = "it is new, or has restarted or lost its data, and may have forgotten locks";
        match place.sight.as_ref().map(|sight| sight.memory.phase) {
            Some(Phase::Votes) => "does not vote: too few of the others are there and list it".to_owned(),
            Some(Phase::Listed) if found.plan.wait.is_some() => {
                let rest = Instant::now().until(found.planned + found.plan.wait.unwrap_or_default());
                format!("abstains for another {rest:.1?}: {begun} (restart_quarantine = {quarantine:?})")
            }
            _ => format!(
                "abstains: {begun} (restart_quarantine = {quarantine:?}, which begins when enough of the others list \
                 it)"
            ),
        }
    }

    /// Returns by place whose votes count together now, for locks that are on the servers. `None` if all do.
    pub(super) fn beside(&self) -> Option<Box<[bool]>> {
        if !self.remembers() {
            return None;
        }
        let keeps = &self.found().plan.keeps;
        keeps.contains(&false).then(|| keeps.as_slice().into())
    }

    /// Returns whether an answer came on the connection that the ticket is for.
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

    /// Returns a future that waits for news. News that come after this call are not missed, even before it is awaited.
    pub(super) fn told(&self) -> Notified<'_> {
        self.news.notified()
    }

    /// Takes in what a server showed on a connection.
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

    /// Notes that a server could not be vetted, and why. If it is `unfit`, its vote does not count.
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

    /// Lets a server vote without vetting: INFO is not permitted, and servers have no memories.
    pub(super) fn trust(&self, place: NodeIndex, lane: Lane, epoch: u64) {
        self.change(place, |at| {
            if lane == Lane::Renewals {
                at.renewals = Some(epoch);
            } else {
                (at.grants, at.unknown, at.unfit) = (Some(epoch), None, None);
            }
        });
    }

    /// Returns which of the servers that are seen another one starts to list by this change.
    pub(super) fn listed_by(&self, change: &Change) -> Vec<NodeIndex> {
        let found = self.found();
        let is_listed = |at: &Place| {
            let id = at.sight.as_ref().map(|sight| sight.memory.id);
            id.is_some_and(|id| id != change.to.id && change.to.lists(id) && !change.from.lists(id))
        };
        found.places.iter().enumerate().filter(|(_, at)| is_listed(at)).map(|(place, _)| place).collect()
    }

    /// Notes that such a change was written, or may have been.
    pub(super) fn listed(&self, places: &[NodeIndex], now: Instant) {
        let mut found = self.found();
        for &place in places {
            let listings = &mut found.places[place].listings;
            listings.retain(|listed| listed.until(now) < self.quarantine);
            listings.push(now);
        }
    }

    /// Takes in what a server remembers after a change was written or was not. Returns whether that is new. It is never
    /// new if the connection has yet to be vetted, so that the same change is not written again at once.
    pub(super) fn amended(&self, place: NodeIndex, epoch: u64, told: &Remembrance, now: Instant) -> bool {
        let mut is_new = false;
        self.change(place, |at| {
            if at.grants == Some(epoch) {
                is_new = at.memory.as_ref().is_none_or(|memory| *memory.memory != told.memory);
                at.remember(told, now);
            }
        });
        is_new
    }

    pub(super) fn plan(&self) -> Plan {
        self.plan_of(&self.found().places)
    }

    fn plan_of(&self, places: &[Place]) -> Plan {
        let seen = places.iter().map(|place| place.sight.as_ref());
        let former: Vec<Option<Id>> = places.iter().map(|place| place.former).collect();
        let met: Vec<bool> = places.iter().map(|place| place.met).collect();
        let now = Instant::now();
        let recent = |at: &&Instant| at.until(now) < self.quarantine;
        let rests = |place: &Place| place.listings.iter().filter(recent).count() >= MOST_LISTINGS * places.len();
        let rests: Vec<bool> = places.iter().map(rests).collect();
        let known = Known { former: &former, met: &met, lease: self.quarantine, rests: &rests };
        members::plan(seen, known, now, &mut fresh)
    }

    /// Returns what a listed server remembers, and for how long it has been listed.
    pub(super) fn last(&self, place: NodeIndex, now: Instant) -> Option<(Arc<str>, Duration)> {
        let found = self.found();
        let at = &found.places[place];
        let sight = at.sight.as_ref().filter(|sight| sight.memory.phase == Phase::Listed)?;
        Some((Arc::clone(&at.memory.as_ref()?.memory), sight.age + now.since(sight.read)))
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

    /// Changes what is known about a node, and plans again.
    fn change(&self, place: NodeIndex, change: impl FnOnce(&mut Place)) {
        let mut found = self.found();
        let before = found.places[place].memory.clone();
        change(&mut found.places[place]);
        if self.remembers() {
            found.lists += u64::from(found.places[place].memory != before);
            (found.plan, found.planned) = (self.plan_of(&found.places), Instant::now());
        }
        drop(found);
        self.news.notify_waiters();
    }
}

#[cfg(test)]
impl Eligibility {
    /// The server at this place shows what it remembers. A connection that was never there is in its first epoch, 0.
    pub(super) fn shows(&self, place: NodeIndex, memory: &str) {
        let told = Remembrance { memory: memory.into(), lease: Duration::ZERO, age: Duration::ZERO };
        let (run_id, role, master) = (place.to_string(), "master".into(), String::new());
        let identity = Identity { run_id, role, master, memory: Some(told) };
        self.saw(place, Lane::Grants, 0, &identity, Instant::now());
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

/// Returns a change as it is sent: the old memory, the new one, and whether the server is listed by it.
pub(super) fn texts(change: &Change) -> (String, String, bool) {
    let listed = change.to.phase == Phase::Listed && change.from.phase != Phase::Listed;
    (change.from.to_string(), change.to.to_string(), listed)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;
    use crate::options::Options;

    const SECOND: Duration = Duration::from_secs(1);
    const QUARANTINE: Duration = Duration::from_secs(10);

    /// Nodes whose servers cannot be reached.
    fn nodes(count: usize) -> Vec<Arc<Node>> {
        let options = Options { command_timeout: Some(Duration::from_millis(50)), ..Options::default() };
        let settings = options.validate(1).expect("valid");
        (0..count).map(|_| Node::of_nobody(&settings)).collect()
    }

    /// Three servers, each seen with this memory.
    fn seen(memories: [&str; 3]) -> (Vec<Arc<Node>>, Arc<Eligibility>) {
        let nodes = nodes(3);
        let eligibility = Eligibility::new(&nodes, QUARANTINE);
        (0..3).for_each(|place| eligibility.shows(place, memories[place]));
        (nodes, eligibility)
    }

    /// What the server at this place shows. A connection that was never there is in its first epoch, 0.
    fn identity(place: NodeIndex, memory: &str) -> Identity {
        let (run_id, role, master) = (place.to_string(), "master".into(), String::new());
        Identity { run_id, role, master, memory: Some(told(memory)) }
    }

    fn told(memory: &str) -> Remembrance {
        Remembrance { memory: memory.into(), lease: Duration::ZERO, age: Duration::ZERO }
    }

    fn now() -> Instant {
        Instant::now()
    }

    /// Returns why the server at this place abstains.
    fn abstains(eligibility: &Eligibility, place: NodeIndex) -> String {
        match eligibility.status(place) {
            Status::Abstains(reason) => reason,
            status => panic!("{status:?}"),
        }
    }

    const ALL: &str = "000000000000000a,000000000000000b,000000000000000c";

    /// Returns a memory as a server stores it.
    fn memory(id: &str, phase: &str, members: &str) -> String {
        format!("000000000000000{id} 3 {phase} {members} ")
    }

    fn begun(id: &str) -> String {
        memory(id, "begun", &format!("000000000000000{id}"))
    }

    /// All of them vote, except the one at place 1, which is in this phase.
    fn with(phase: &str) -> (Vec<Arc<Node>>, Arc<Eligibility>) {
        let second = if phase == "begun" { begun("b") } else { memory("b", phase, ALL) };
        seen([&memory("a", "votes", ALL), &second, &memory("c", "votes", ALL)])
    }

    #[tokio::test]
    async fn a_single_server_without_a_memory_needs_no_vetting() {
        let of = |servers, quarantine| Eligibility::new(&nodes(servers), quarantine);
        assert!(of(1, Duration::ZERO).is_moot());
        assert!(!of(1, QUARANTINE).is_moot() && !of(2, Duration::ZERO).is_moot() && !of(3, QUARANTINE).is_moot());
        assert!(of(1, QUARANTINE).remembers() && !of(3, Duration::ZERO).remembers());
        assert_eq!((of(3, QUARANTINE).seats(), of(3, QUARANTINE).quarantine()), (3, QUARANTINE));
    }

    #[test]
    fn votes_count_together_if_the_lists_are_the_same_or_the_servers_list_each_other() {
        let ticket = |memory: Option<String>, lists| {
            let vote = memory.map(|memory| memory.as_str().into());
            Ticket { lane: Lane::Grants, epoch: Some(0), vote, votes: Ok(()), keeps: Ok(()), lists }
        };
        let one = ticket(Some(memory("a", "votes", ALL)), 1);
        assert!(one.is_of(&ticket(Some(memory("b", "votes", ALL)), 2)), "they list each other");
        assert!(!one.is_of(&ticket(Some(begun("b")), 2)) && !one.is_of(&ticket(None, 2)));
        assert!(one.is_of(&ticket(Some(begun("b")), 1)), "known at one time");
    }

    #[tokio::test]
    async fn a_vote_counts_on_the_connection_that_was_vetted() {
        let (nodes, eligibility) = with("votes");
        let look = |lane| eligibility.look(0, &nodes[0], lane, Ask::Vote);
        assert!(look(Lane::Grants).is_ok());
        assert!(matches!(look(Lane::Renewals), Err(Missing::News(_))), "another connection");
        eligibility.saw(0, Lane::Renewals, 0, &identity(1, &begun("b")), now());
        assert!(matches!(look(Lane::Renewals), Err(Missing::News(_))), "it shows another server");
        eligibility.saw(0, Lane::Renewals, 0, &identity(0, &memory("a", "votes", ALL)), now());
        assert!(look(Lane::Renewals).is_ok());
        eligibility.saw(0, Lane::Grants, 1, &identity(0, &memory("a", "votes", ALL)), now());
        assert!(matches!(look(Lane::Grants), Err(Missing::News(_))), "the vetted one is a later one");
        let ticket = look(Lane::Renewals).ok().expect("known");
        assert!(eligibility.holds(&ticket, &nodes[0]));
        assert!(!eligibility.holds(&Ticket { epoch: Some(1), ..ticket.clone() }, &nodes[0]));
        assert!(eligibility.holds(&Ticket { epoch: None, ..ticket }, &nodes[0]), "the ticket is for no connection");
    }

    #[tokio::test]
    async fn a_server_that_forgot_what_a_ticket_was_for_is_vetted_again() {
        let (nodes, eligibility) = with("votes");
        let node = &nodes[0];
        let former = eligibility.ticket(0, node, Lane::Grants, Ask::Vote).await.expect("it votes");
        assert!(futures_util::poll!(pin!(eligibility.doubted(0))).is_pending());
        let refused = eligibility.ticket_unlike(Some(&former), 0, node, Lane::Grants, Ask::Vote).await;
        assert!(refused.is_err_and(|failure| failure.reason == FORGOT), "nothing else was heard of it");
        assert!(futures_util::poll!(pin!(eligibility.doubted(0))).is_ready());
        let former = Ticket { vote: Some(begun("a").as_str().into()), ..former };
        assert!(eligibility.ticket_unlike(Some(&former), 0, node, Lane::Grants, Ask::Vote).await.is_ok());
    }

    #[tokio::test]
    async fn a_server_that_abstains_has_no_vote_for_an_acquire_and_gives_a_reason() {
        let (nodes, eligibility) = with("begun");
        let look = |eligibility: &Eligibility, ask| eligibility.look(1, &nodes[1], Lane::Grants, ask);
        assert!(matches!(look(&eligibility, Ask::Vote), Err(Missing::Unfit(_))));
        let kept = look(&eligibility, Ask::Keep).ok().expect("it is known");
        assert!(kept.votes.is_err() && kept.keeps.is_err());
        assert!(abstains(&eligibility, 1).contains("which begins when enough of the others list it)"));
        let (_, eligibility) = with("listed");
        let kept = look(&eligibility, Ask::Keep).ok().expect("it is known");
        assert!(kept.votes.is_err() && kept.keeps.is_ok(), "a lock that is on the server stays");
        assert!(abstains(&eligibility, 1).starts_with("abstains for another "));
        let alone = |id| memory(id, "votes", "000000000000000a,000000000000000c");
        let (_, eligibility) = seen([&alone("a"), &memory("b", "listed", ALL), &alone("c")]);
        assert!(abstains(&eligibility, 1).contains("which begins when"), "nobody lists it yet");
        let (_, eligibility) = seen([&memory("a", "votes", ALL), &begun("b"), &begun("c")]);
        assert!(abstains(&eligibility, 0).starts_with("does not vote: too few"));
        let (_, eligibility) = with("votes");
        assert!((0..3).all(|place| eligibility.status(place) == Status::Votes));
    }

    #[tokio::test]
    async fn servers_without_memories_vote_once_they_are_known_or_trusted() {
        let nodes = nodes(3);
        let eligibility = Eligibility::new(&nodes, Duration::ZERO);
        assert!(matches!(eligibility.status(0), Status::Unknown(_)));
        eligibility.trust(0, Lane::Grants, 0);
        assert_eq!(eligibility.status(0), Status::Votes);
        let look = |lane| eligibility.look(0, &nodes[0], lane, Ask::Vote);
        assert!(look(Lane::Grants).is_ok() && look(Lane::Renewals).is_err());
        eligibility.trust(0, Lane::Renewals, 0);
        assert!(look(Lane::Renewals).is_ok());
    }

    #[tokio::test]
    async fn a_change_lists_those_that_were_not_listed_before() {
        let (_, eligibility) = with("begun");
        let read = |text: String| Memory::parse(&text).expect("a memory");
        let from = read(memory("a", "votes", "000000000000000a,000000000000000c"));
        let change = Change { place: 0, from, to: read(memory("a", "votes", ALL)), waited: None };
        assert_eq!(eligibility.listed_by(&change), [1]);
        let own = Change { from: read(begun("b")), to: read(memory("b", "listed", ALL)), ..change.clone() };
        assert_eq!(eligibility.listed_by(&own), [0, 2], "nobody lists itself");
        let texts = |phases: [&str; 2]| {
            let [from, to] = phases.map(|phase| read(memory("b", phase, ALL)));
            texts(&Change { from, to, ..change.clone() })
        };
        assert_eq!(texts(["begun", "listed"]), (memory("b", "begun", ALL), memory("b", "listed", ALL), true));
        assert!(!texts(["listed", "listed"]).2 && !texts(["listed", "votes"]).2);
    }

    #[tokio::test]
    async fn listings_are_kept_for_a_quarantine() {
        let (_, eligibility) = with("begun");
        let begin = now();
        for after in [Duration::ZERO, QUARANTINE - SECOND, QUARANTINE] {
            eligibility.listed(&[1], begin + after);
        }
        assert_eq!(
            eligibility.found().places[1].listings,
            [QUARANTINE - SECOND, QUARANTINE].map(|after| begin + after)
        );
    }

    #[tokio::test]
    async fn another_memory_of_a_server_is_news() {
        let (nodes, eligibility) = with("begun");
        let lists = || eligibility.look(0, &nodes[0], Lane::Grants, Ask::Vote).ok().expect("it votes").lists;
        let (before, listed) = (lists(), memory("b", "listed", ALL));
        assert!(!eligibility.amended(1, 1, &told(&listed), now()), "the connection has yet to be vetted");
        assert_eq!((lists(), eligibility.last(1, now())), (before, None));
        assert!(eligibility.amended(1, 0, &told(&listed), now()));
        let after = lists();
        assert_ne!(after, before);
        assert!(!eligibility.amended(1, 0, &told(&listed), now()));
        assert_eq!(lists(), after);
    }

    #[tokio::test]
    async fn the_time_that_a_server_has_been_listed_goes_on_after_it_was_read() {
        let (_, eligibility) = with("votes");
        let read = now();
        assert_eq!(eligibility.last(1, read), None, "it does not wait");
        let listed = memory("b", "listed", ALL);
        eligibility.amended(1, 0, &Remembrance { age: SECOND * 5, ..told(&listed) }, read);
        assert_eq!(eligibility.last(1, read + SECOND * 2), Some((listed.as_str().into(), SECOND * 7)));
    }
}
