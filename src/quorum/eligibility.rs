//! Decides whose vote counts, from what each server has shown on each connection.
//!
//! A server that lost its data has forgotten its locks. So each server keeps a *memory*, which is
//! lost with its data: a server that begins a new one is *shut*, and has no vote before the longest
//! lease is over and the others have told it what it may have forgotten (see [`super::vetting`]).
//! These are the *delayed restarts* of the Redis documentation's page on distributed locks, without
//! asking how long a process has run.
//!
//! # Invariants
//! - A vote counts if its connection was vetted before the request was sent, and is still the same.
//! - A server grants or retakes a lock only if it has the memory then that it was vetted with, and
//!   votes. A lock that is on a server that is shut was there before, so its renewal counts.
//! - All connections of a node show the same server; two nodes of a locker never do.
//! - The servers that vote for a round are known before the first of them is asked. So at that
//!   moment a majority knows this locker's leases; and a server that votes and does not know them
//!   is one of the others, at any later time.

use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use super::node_record::{
    Memory, NodeRecord, Quarantine, other_number, rank, right_number, unfitness,
};
use crate::clock::Instant;
use crate::error::NodeFailure;
use crate::lease::{NodeIndex, drift, majority};
use crate::node::{Lane, Node};
use crate::op::ServerIdentity;
use crate::sync::{Arc, Mutex};

/// Why an answer is no vote if the server's memory is not the one that was vetted.
pub(super) const FORGOT: &str =
    "no longer has the memory that it was vetted with: it is vetted again";

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

/// The permission to ask a node for its vote on one connection.
#[derive(Debug, Clone)]
pub(super) struct Ticket {
    lane: Lane,
    epoch: Option<u64>,
    /// The id that the server's memory has to have for its answer to be a vote.
    pub(super) vote: Option<Arc<str>>,
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
    /// From then on, a server that has not answered is away.
    connected_by: Instant,
    places: Mutex<Vec<NodeRecord>>,
    /// Notified when something was found out.
    news: Notify,
    /// By place: notified when the server is to be vetted again.
    doubts: Vec<Notify>,
}

impl Eligibility {
    /// Makes it for nodes of which each is connected within `connect_timeout`, if it is there.
    pub(super) fn new(
        nodes: &[Arc<Node>],
        quarantine: Duration,
        connect_timeout: Duration,
    ) -> Arc<Self> {
        let places = Mutex::new(
            nodes
                .iter()
                .map(|node| NodeRecord::new(Arc::clone(node.name())))
                .collect(),
        );
        Arc::new(Self {
            quarantine,
            connected_by: Instant::now() + connect_timeout,
            places,
            news: Notify::new(),
            doubts: nodes.iter().map(|_| Notify::new()).collect(),
        })
    }

    /// Returns whether there is nothing to find out: a single server without a memory cannot be
    /// mistaken for another.
    pub(super) fn is_moot(&self) -> bool {
        !self.remembers() && self.doubts.len() < 2
    }

    /// Returns whether servers have memories.
    pub(super) fn remembers(&self) -> bool {
        !self.quarantine.is_zero()
    }

    /// Returns the number of servers.
    pub(super) fn servers(&self) -> usize {
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
        let deadline = Instant::now() + node.patience();
        loop {
            // Created before the check, so that news that come after the check are not missed.
            let news = self.news.notified();
            match self.look(place, node, lane, ask) {
                Err(Missing::News(reason)) => {
                    // Perhaps no task is looking: the look that this asks for is the next news.
                    self.doubt(place);
                    if timeout(Instant::now().until(deadline), news).await.is_err() {
                        return Err(reason);
                    }
                }
                known => return known.map_err(Missing::reason),
            }
        }
    }

    /// Waits until a majority can be asked for its vote. Returns by node the ticket, or why there
    /// is none.
    pub(super) async fn tickets(&self, nodes: &[Arc<Node>]) -> Vec<Result<Ticket, NodeFailure>> {
        let deadline = Instant::now()
            + nodes
                .iter()
                .map(|node| node.patience())
                .max()
                .unwrap_or_default();
        // One that has waited is looked at once more, since another locker may have opened it by
        // now, and not once for each piece of news.
        let looks: Vec<u64> = self.places.lock().iter().map(|at| at.looks).collect();
        let may_come = |(place, known): (NodeIndex, &Result<_, Missing>)| match known {
            Err(Missing::News(_)) => true,
            Err(Missing::Waited(_)) => self.places.lock()[place].looks == looks[place],
            Err(Missing::Unfit(_)) | Ok(_) => false,
        };
        loop {
            // Created before the look, as in `ticket`.
            let news = self.news.notified();
            let look = |(place, node): (NodeIndex, &Arc<Node>)| {
                self.look(place, node, Lane::Grants, Ask::Vote)
            };
            let known: Vec<_> = nodes.iter().enumerate().map(look).collect();
            let awaited: Vec<NodeIndex> = known
                .iter()
                .enumerate()
                .filter(|&at| may_come(at))
                .map(|(place, _)| place)
                .collect();
            let enough =
                known.iter().filter(|known| known.is_ok()).count() >= majority(nodes.len());
            // Also with enough others: a server that is not vetted yet should have a vote the next
            // time.
            for &place in awaited
                .iter()
                .filter(|&&place| !enough || matches!(known[place], Err(Missing::News(_))))
            {
                self.doubt(place);
            }
            if enough
                || awaited.is_empty()
                || timeout(Instant::now().until(deadline), news).await.is_err()
            {
                return known
                    .into_iter()
                    .map(|known| known.map_err(Missing::reason))
                    .collect();
            }
        }
    }

    /// Returns the ticket, if it is known whether the vote on this connection counts.
    pub(super) fn look(
        &self,
        place: NodeIndex,
        node: &Node,
        lane: Lane,
        ask: Ask,
    ) -> Result<Ticket, Missing> {
        if self.is_moot() {
            return Ok(Ticket {
                lane,
                epoch: None,
                vote: None,
            });
        }
        let places = self.places.lock();
        let at = &places[place];
        let epoch = node.epoch(lane);
        if let Some(reason) = &at.unfit {
            return Err(Missing::Unfit(at.failure(reason)));
        }
        let vetted = if lane == Lane::Renewals {
            at.renewals
        } else {
            at.grants
        };
        if vetted != Some(epoch) {
            let reason = at
                .unknown
                .as_deref()
                .unwrap_or("it was reconnected a moment ago");
            return Err(Missing::News(at.failure(format!(
                "does not vote before it is known who it is: {reason}"
            ))));
        }
        if let (Some((memory, shut)), Ask::Vote) = (at.shut(), ask) {
            // Another locker may have heard a little sooner that the wait is over.
            let waits = Instant::now() + drift(memory.lease) < shut.until;
            let reason = at.failure(self.abstention(&places, memory, shut));
            return Err(if waits {
                Missing::Unfit(reason)
            } else {
                Missing::Waited(reason)
            });
        }
        Ok(Ticket {
            lane,
            epoch: Some(epoch),
            vote: at.memory.as_ref().map(|memory| Arc::clone(&memory.id)),
        })
    }

    /// Returns why a vetted server has no vote.
    fn abstention(&self, places: &[NodeRecord], memory: &Memory, shut: Quarantine) -> String {
        let now = Instant::now();
        let longest = memory.lease;
        let servers = places.len();
        let rest = now.until(shut.until);
        let at_most = now.until(shut.at_most);
        let until = if !rest.is_zero() {
            format!("for another {rest:.1?}")
        } else if !at_most.is_zero() {
            // Enough that each majority that the server was ever in has one of them.
            let asked = servers - majority(servers) + 1;
            format!(
                "until {asked} others that vote can be asked what it may have forgotten, at most for {at_most:.1?}"
            )
        } else if let Some(right) = right_number(places) {
            format!(
                "until a program lets it vote that names {right} servers, as one that voted did, and not {servers}"
            )
        } else if memory.servers != servers {
            format!(
                "until no program names {} servers, where this one names {servers}",
                memory.servers
            )
        } else {
            "until a majority can be reached".to_owned()
        };
        format!(
            "abstains {until}: it is new, or has restarted or lost its data, and may have forgotten locks \
             (longest restart_quarantine = {longest:?})"
        )
    }

    /// Returns whether an answer arrived on the connection that the ticket is for.
    pub(super) fn holds(&self, ticket: &Ticket, node: &Node) -> bool {
        ticket
            .epoch
            .is_none_or(|epoch| epoch == node.epoch(ticket.lane))
    }

    /// Takes in that a server no longer has the memory that this ticket names. It is vetted before
    /// it is asked again.
    pub(super) fn forgot(&self, place: NodeIndex, ticket: &Ticket) {
        let at = &mut self.places.lock()[place];
        // It may have been vetted again since the request was sent.
        if at.memory.as_ref().map(|memory| &memory.id) == ticket.vote.as_ref() {
            at.grants = None;
        }
        self.doubt(place);
    }

    /// Has a node vetted again.
    pub(super) fn doubt(&self, place: NodeIndex) {
        self.doubts[place].notify_one();
    }

    pub(super) async fn doubted(&self, place: NodeIndex) {
        // No wake-up is lost: only the server's task waits, and a doubt meanwhile leaves a permit.
        self.doubts[place].notified().await;
    }

    /// Takes in what a server showed on a connection.
    pub(super) fn saw(
        &self,
        place: NodeIndex,
        lane: Lane,
        epoch: u64,
        identity: &ServerIdentity,
        now: Instant,
    ) {
        let mut places = self.places.lock();
        let unfit = unfitness(&places, place, lane, identity);
        let servers = places.len();
        let was_shut = places[place].shut().is_some();
        let at = &mut places[place];
        let vetted = unfit.is_none().then_some(epoch);
        if lane == Lane::Renewals {
            at.renewals = vetted;
        } else {
            at.run_id = vetted.map(|_| identity.run_id.clone());
            at.memory = identity
                .memory
                .as_ref()
                .filter(|_| vetted.is_some())
                .map(|told| Memory::new(told, now));
            at.met |= at
                .memory
                .as_ref()
                .is_some_and(|memory| memory.shut.is_none());
            // What a server that is shut names does not count. What it named before still does.
            at.is_of = other_number(servers, identity.memory.as_ref()).or(at.is_of);
            at.looks += 1;
            (at.grants, at.unknown, at.unfit) = (vetted, None, unfit);
            if was_shut && at.votes() {
                // Those that begin together are new to no other.
                places.iter_mut().for_each(|at| at.begun = false);
            }
        }
        drop(places);
        self.news.notify_waiters();
    }

    /// Notes that this locker has begun the memory of a server.
    pub(super) fn began(&self, place: NodeIndex) {
        self.places.lock()[place].begun = true;
    }

    /// Returns whether this locker has begun the memory of a server though most of the others vote:
    /// once for each one.
    pub(super) fn is_news(&self, place: NodeIndex) -> bool {
        let mut places = self.places.lock();
        let votes = |(at, other): &(NodeIndex, &NodeRecord)| *at != place && other.votes();
        let is_news = places[place].begun
            && places.iter().enumerate().filter(votes).count() * 2 >= places.len();
        places[place].begun &= !is_news;
        is_news
    }

    /// Notes that a server could not be vetted, and why. If it is `unfit`, its vote does not count.
    pub(super) fn failed(&self, place: NodeIndex, lane: Lane, reason: &str, unfit: bool) {
        let at = &mut self.places.lock()[place];
        if lane == Lane::Renewals {
            at.renewals = None;
        } else {
            // A look that failed is one too: no caller waits for another.
            (at.grants, at.memory, at.looks) = (None, None, at.looks + 1);
            at.unfit = unfit.then(|| reason.to_owned());
            at.unknown = Some(reason.to_owned());
        }
        self.news.notify_waiters();
    }

    /// Lets a server vote without vetting: INFO is not permitted, and servers have no memories.
    pub(super) fn trust(&self, place: NodeIndex, lane: Lane, epoch: u64) {
        let at = &mut self.places.lock()[place];
        if lane == Lane::Renewals {
            at.renewals = Some(epoch);
        } else {
            (at.grants, at.unknown, at.unfit) = (Some(epoch), None, None);
        }
        self.news.notify_waiters();
    }

    /// Returns what a server remembers that does not vote yet.
    pub(super) fn shut(&self, place: NodeIndex) -> Option<(Memory, Quarantine)> {
        self.places.lock()[place]
            .shut()
            .map(|(memory, shut)| (memory.clone(), shut))
    }

    /// Returns whether a server that has not answered yet may still be on its way.
    pub(super) fn is_connecting(&self, now: Instant) -> bool {
        now < self.connected_by
    }

    /// Returns whether this locker was given a wrong list.
    pub(super) fn is_misled(&self) -> bool {
        right_number(&self.places.lock()).is_some()
    }

    /// Returns how much this locker's number of servers counts beside another's.
    pub(super) fn rank(&self) -> usize {
        rank(&self.places.lock())
    }

    /// Returns whether this locker has ever seen the server there vote.
    pub(super) fn met(&self, place: NodeIndex) -> bool {
        self.places.lock()[place].met
    }

    pub(super) fn status(&self, place: NodeIndex) -> Status {
        let places = self.places.lock();
        let at = &places[place];
        match (&at.unfit, &at.unknown) {
            (Some(reason), _) => Status::Unfit(reason.clone()),
            (None, Some(reason)) => Status::Unknown(reason.clone()),
            (None, None) => match at.shut() {
                Some((memory, shut)) => Status::Abstains(self.abstention(&places, memory, shut)),
                None => Status::Votes,
            },
        }
    }
}

/// Why there is no ticket.
pub(super) enum Missing {
    /// There will be none soon.
    Unfit(NodeFailure),
    /// The server has waited: there is one as soon as somebody has opened it.
    Waited(NodeFailure),
    /// There may be one with the next news.
    News(NodeFailure),
}

impl Missing {
    fn reason(self) -> NodeFailure {
        let (Self::Unfit(reason) | Self::Waited(reason) | Self::News(reason)) = self;
        reason
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;
    use crate::op::Remembrance;
    use crate::options::Options;

    const SECOND: Duration = Duration::from_secs(1);
    const QUARANTINE: Duration = Duration::from_secs(10);

    /// Nodes whose servers cannot be reached.
    fn nodes(count: usize) -> Vec<Arc<Node>> {
        let options = Options {
            command_timeout: Some(Duration::from_millis(50)),
            ..Options::default()
        };
        let settings = options.validate(1).expect("valid");
        (0..count).map(|_| Node::of_nobody(&settings)).collect()
    }

    /// What the server at this place shows. A connection that was never there is in its first
    /// epoch, 0.
    fn identity(place: NodeIndex, servers: usize, waited: Option<Duration>) -> ServerIdentity {
        let memory = Remembrance {
            id: format!("id{place}"),
            servers,
            lease: QUARANTINE,
            waited,
        };
        ServerIdentity {
            run_id: place.to_string(),
            role: "master".into(),
            master: String::new(),
            memory: Some(memory),
        }
    }

    /// Three servers of which these have been shut for so long.
    fn seen(waited: [Option<Duration>; 3]) -> (Vec<Arc<Node>>, Arc<Eligibility>) {
        let nodes = nodes(3);
        let eligibility = Eligibility::new(&nodes, QUARANTINE, SECOND);
        for (place, waited) in waited.into_iter().enumerate() {
            eligibility.saw(
                place,
                Lane::Grants,
                0,
                &identity(place, 3, waited),
                Instant::now(),
            );
        }
        (nodes, eligibility)
    }

    #[tokio::test]
    async fn a_single_server_without_a_memory_needs_no_vetting() {
        let of = |servers, quarantine| Eligibility::new(&nodes(servers), quarantine, SECOND);
        assert!(of(1, Duration::ZERO).is_moot());
        assert!(
            !of(1, QUARANTINE).is_moot()
                && !of(2, Duration::ZERO).is_moot()
                && !of(3, QUARANTINE).is_moot()
        );
        assert!(of(1, QUARANTINE).remembers() && !of(3, Duration::ZERO).remembers());
        assert_eq!(
            (of(3, QUARANTINE).servers(), of(3, QUARANTINE).quarantine()),
            (3, QUARANTINE)
        );
    }

    #[tokio::test]
    async fn a_vote_counts_on_the_connection_that_was_vetted() {
        let (nodes, eligibility) = seen([None; 3]);
        let look = |lane| eligibility.look(0, &nodes[0], lane, Ask::Vote);
        assert!(look(Lane::Grants).is_ok_and(|ticket| ticket.vote.as_deref() == Some("id0")));
        assert!(
            matches!(look(Lane::Renewals), Err(Missing::News(_))),
            "another connection"
        );
        eligibility.saw(0, Lane::Renewals, 0, &identity(1, 3, None), Instant::now());
        assert!(
            matches!(look(Lane::Renewals), Err(Missing::News(_))),
            "it shows another server"
        );
        eligibility.saw(0, Lane::Renewals, 0, &identity(0, 3, None), Instant::now());
        assert!(look(Lane::Renewals).is_ok());
        eligibility.saw(0, Lane::Grants, 1, &identity(0, 3, None), Instant::now());
        assert!(
            matches!(look(Lane::Grants), Err(Missing::News(_))),
            "the vetted one is a later one"
        );
        let ticket = look(Lane::Renewals).ok().expect("known");
        assert!(eligibility.holds(&ticket, &nodes[0]));
        assert!(!eligibility.holds(
            &Ticket {
                epoch: Some(1),
                ..ticket.clone()
            },
            &nodes[0]
        ));
        assert!(
            eligibility.holds(
                &Ticket {
                    epoch: None,
                    ..ticket
                },
                &nodes[0]
            ),
            "the ticket is for no connection"
        );
    }

    #[tokio::test]
    async fn a_server_that_is_shut_has_no_vote_but_keeps_its_locks() {
        let (nodes, eligibility) = seen([None, Some(SECOND), None]);
        let look = |ask| eligibility.look(1, &nodes[1], Lane::Grants, ask);
        assert!(matches!(look(Ask::Vote), Err(Missing::Unfit(_))));
        assert!(look(Ask::Keep).is_ok());
        assert!(eligibility.shut(1).is_some() && eligibility.shut(0).is_none());
        assert!(eligibility.met(0) && !eligibility.met(1));
    }

    #[tokio::test]
    async fn a_server_that_abstains_says_until_when() {
        let reason = |waited| match seen([None, Some(waited), None]).1.status(1) {
            Status::Abstains(reason) => reason,
            status => panic!("{status:?}"),
        };
        assert!(
            reason(SECOND).starts_with("abstains for another 9."),
            "{}",
            reason(SECOND)
        );
        let ready = reason(SECOND * 12);
        assert!(
            ready.contains("until 2 others that vote can be asked")
                && ready.contains("at most for 8."),
            "{ready}"
        );
        assert!(reason(SECOND * 30).starts_with("abstains until a majority can be reached:"));
    }

    #[tokio::test]
    async fn the_voters_of_a_round_are_known_before_it_begins() {
        let (nodes, eligibility) = seen([None, None, Some(SECOND)]);
        let known =
            |tickets: Vec<Result<Ticket, _>>| tickets.iter().map(Result::is_ok).collect::<Vec<_>>();
        assert_eq!(
            known(eligibility.tickets(&nodes).await),
            [true, true, false]
        );
        eligibility.failed(1, Lane::Grants, "silent", false);
        let mut waiting = pin!(eligibility.tickets(&nodes));
        assert!(
            futures_util::poll!(waiting.as_mut()).is_pending(),
            "no majority"
        );
        assert!(
            futures_util::poll!(pin!(eligibility.doubted(1))).is_ready(),
            "it is vetted again"
        );
        eligibility.saw(1, Lane::Grants, 0, &identity(1, 3, None), Instant::now());
        assert_eq!(known(waiting.await), [true, true, false]);
        eligibility.failed(1, Lane::Grants, "silent", false);
        assert_eq!(
            known(eligibility.tickets(&nodes).await),
            [true, false, false],
            "it does not wait for ever"
        );
    }

    #[tokio::test]
    async fn a_server_that_waited_is_looked_at_once_more_if_too_few_vote() {
        let waits = Some(SECOND);
        let waited = Some(QUARANTINE * 2);
        let known =
            |tickets: Vec<Result<_, _>>| tickets.iter().map(Result::is_ok).collect::<Vec<_>>();
        let (nodes, eligibility) = seen([None, waited, waits]);
        let mut waiting = pin!(eligibility.tickets(&nodes));
        assert!(
            futures_util::poll!(waiting.as_mut()).is_pending(),
            "another locker may have opened one"
        );
        assert!(futures_util::poll!(pin!(eligibility.doubted(1))).is_ready());
        assert!(
            futures_util::poll!(pin!(eligibility.doubted(2))).is_pending(),
            "none can be open yet"
        );
        eligibility.saw(1, Lane::Grants, 0, &identity(1, 3, None), Instant::now());
        assert_eq!(known(waiting.await), [true, true, false]);
        let (nodes, eligibility) = seen([None, waited, waits]);
        let mut waiting = pin!(eligibility.tickets(&nodes));
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        eligibility.saw(1, Lane::Grants, 0, &identity(1, 3, waited), Instant::now());
        assert_eq!(
            known(waiting.await),
            [true, false, false],
            "it is still shut: it is not waited for"
        );
        let (nodes, eligibility) = seen([None, None, waited]);
        assert_eq!(
            known(eligibility.tickets(&nodes).await),
            [true, true, false],
            "enough vote"
        );
    }

    #[tokio::test]
    async fn a_server_is_news_once_if_most_of_the_others_voted_before_it() {
        let (_, eligibility) = seen([None, None, Some(SECOND)]);
        assert!(!eligibility.is_news(2), "another locker has begun it");
        eligibility.began(2);
        assert!(eligibility.is_news(2) && !eligibility.is_news(2));
        let (_, eligibility) = seen([Some(SECOND); 3]);
        (0..3).for_each(|place| eligibility.began(place));
        for place in 0..2 {
            eligibility.saw(
                place,
                Lane::Grants,
                0,
                &identity(place, 3, None),
                Instant::now(),
            );
        }
        assert!(
            (0..3).all(|place| !eligibility.is_news(place)),
            "a new deployment"
        );
    }

    #[tokio::test]
    async fn a_locker_whose_number_no_server_has_confirmed_has_no_say() {
        let (_, eligibility) = seen([Some(SECOND); 3]);
        eligibility.failed(2, Lane::Grants, "it is away", false);
        assert_eq!(eligibility.rank(), 1_003, "a majority is there");
        eligibility.failed(1, Lane::Grants, "it is away", false);
        assert_eq!(eligibility.rank(), 3);
        eligibility.saw(0, Lane::Grants, 0, &identity(0, 5, None), Instant::now());
        assert!(eligibility.is_misled() && matches!(eligibility.status(0), Status::Unfit(_)));
        eligibility.saw(
            0,
            Lane::Grants,
            0,
            &identity(0, 3, Some(Duration::MAX)),
            Instant::now(),
        );
        assert!(
            matches!(eligibility.status(0), Status::Abstains(reason) if reason.contains("names 5 servers, as one"))
        );
        assert_eq!(eligibility.rank(), 0, "it has forgotten that");
        eligibility.saw(1, Lane::Grants, 0, &identity(1, 3, None), Instant::now());
        assert!(!eligibility.is_misled());
        assert_eq!(eligibility.rank(), 3_003);
    }

    #[tokio::test]
    async fn servers_without_memories_vote_once_they_are_known_or_trusted() {
        let nodes = nodes(3);
        let eligibility = Eligibility::new(&nodes, Duration::ZERO, SECOND);
        assert!(matches!(eligibility.status(0), Status::Unknown(_)));
        eligibility.trust(0, Lane::Grants, 0);
        assert_eq!(eligibility.status(0), Status::Votes);
        let look = |lane| eligibility.look(0, &nodes[0], lane, Ask::Vote);
        assert!(look(Lane::Grants).is_ok() && look(Lane::Renewals).is_err());
        eligibility.trust(0, Lane::Renewals, 0);
        assert!(look(Lane::Renewals).is_ok());
    }
}
