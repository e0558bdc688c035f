//! What is known about one node from its connections.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::error::NodeFailure;
use crate::key::MEMORY;
use crate::lease::{drift, majority};
use crate::node::Lane;
use crate::op::{Remembrance, ServerIdentity};

/// One node, and what its connections have shown.
#[derive(Debug, Default)]
pub(super) struct NodeRecord {
    pub(super) name: Arc<str>,
    pub(super) run_id: Option<String>,
    /// The numbers of the connections that were vetted.
    pub(super) grants: Option<u64>,
    pub(super) renewals: Option<u64>,
    pub(super) memory: Option<Memory>,
    /// How often it was looked at.
    pub(super) looks: u64,
    /// Whether this locker has begun its memory, and has not said so yet.
    pub(super) begun: bool,
    /// Whether this locker has ever seen it vote.
    pub(super) met: bool,
    /// Why nothing is known yet.
    pub(super) unknown: Option<String>,
    /// Why its vote can never count.
    pub(super) unfit: Option<String>,
    /// Of how many servers it was one when it voted, if this locker was given another number of
    /// them.
    pub(super) is_of: Option<usize>,
}

/// What a server remembered when it was vetted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) id: Arc<str>,
    /// The number of servers; while it is shut, the one that counts most of those that programs
    /// have named lately.
    pub(super) servers: usize,
    /// The longest lease that was announced to it.
    pub(super) lease: Duration,
    /// `None` if it votes.
    pub(super) shut: Option<Quarantine>,
}

/// When a server that has no vote may be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Quarantine {
    /// The longest lease is over: when enough of the others have told it what it may have
    /// forgotten.
    pub(super) until: Instant,
    /// Another longest lease is over: when a majority, this server among them, can be asked at all.
    pub(super) at_most: Instant,
}

impl Memory {
    pub(super) fn new(told: &Remembrance, now: Instant) -> Self {
        let Remembrance {
            id,
            servers,
            lease,
            waited,
        } = told;
        let wait = *lease + drift(*lease);
        let shut = waited.map(|waited| Quarantine {
            until: now + wait.saturating_sub(waited),
            at_most: now + (wait + *lease).saturating_sub(waited),
        });
        Self {
            id: id.as_str().into(),
            servers: *servers,
            lease: *lease,
            shut,
        }
    }
}

impl NodeRecord {
    pub(super) fn new(name: Arc<str>) -> Self {
        Self {
            name,
            unknown: Some("it was never connected".to_owned()),
            ..Self::default()
        }
    }

    /// Returns what it remembers, and when it may be opened, if it does not vote yet.
    pub(super) fn shut(&self) -> Option<(&Memory, Quarantine)> {
        let memory = self.memory.as_ref()?;
        memory.shut.map(|shut| (memory, shut))
    }

    /// Returns whether it was seen to vote.
    pub(super) fn votes(&self) -> bool {
        self.unfit.is_none()
            && self
                .memory
                .as_ref()
                .is_some_and(|memory| memory.shut.is_none())
    }

    pub(super) fn failure(&self, reason: impl Into<String>) -> NodeFailure {
        NodeFailure::new(&self.name, reason)
    }
}

/// Returns why the vote of this server can never count, if so.
pub(super) fn unfitness(
    places: &[NodeRecord],
    place: usize,
    lane: Lane,
    identity: &ServerIdentity,
) -> Option<String> {
    let ServerIdentity {
        run_id,
        role,
        master,
        memory,
    } = identity;
    if role == "cluster" {
        return Some(crate::node::IN_CLUSTER_MODE.to_owned());
    }
    if role != "master" {
        let master = if master.is_empty() {
            "another server"
        } else {
            master
        };
        return Some(format!(
            "is a replica (role {role}) of {master}; a replica has no vote of its own"
        ));
    }
    // A renewal there would keep a vote alive that another server has given.
    if lane == Lane::Renewals && places[place].run_id.as_ref() != Some(run_id) {
        return Some("leads to another server than its other connections do".to_owned());
    }
    let is_same =
        |&(at, other): &(usize, &NodeRecord)| at != place && other.run_id.as_ref() == Some(run_id);
    if let Some((_, other)) = places.iter().enumerate().find(is_same) {
        return Some(format!(
            "is the same server as {}; it has one vote",
            other.name
        ));
    }
    other_number(places.len(), memory.as_ref()).map(|servers| {
        format!(
            "is one of {servers} servers, and this program names {}: name all {servers} of them in it; or, if their \
             number has to change, stop all programs, delete the key {MEMORY} on each server, and start the programs",
            places.len()
        )
    })
}

/// Returns of how many servers a server that votes is one, if this locker was given another number
/// of them. One that is shut becomes one of those that it is opened with.
pub(super) fn other_number(given: usize, memory: Option<&Remembrance>) -> Option<usize> {
    memory
        .filter(|memory| memory.waited.is_none() && memory.servers != given)
        .map(|memory| memory.servers)
}

/// Returns of how many servers one was that voted, if this locker was given another number, and has
/// never seen a server vote that is one of as many: it was given a wrong list.
pub(super) fn right_number(places: &[NodeRecord]) -> Option<usize> {
    places
        .iter()
        .find_map(|at| at.is_of)
        .filter(|_| !places.iter().any(|at| at.met))
}

/// Returns how much this locker's number of servers counts beside another's: nothing if a server
/// that voted has denied it, most if one has confirmed it, more if a majority of them is there, and
/// then the larger number.
pub(super) fn rank(places: &[NodeRecord]) -> usize {
    if right_number(places).is_some() {
        return 0;
    }
    let is_met = places.iter().any(|at| at.met);
    let is_there = places.iter().filter(|at| at.memory.is_some()).count() >= majority(places.len());
    1_000 * (usize::from(is_met) * 2 + usize::from(is_there)) + places.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn places() -> Vec<NodeRecord> {
        (0..3)
            .map(|place| NodeRecord::new(format!("n{place}").as_str().into()))
            .collect()
    }

    fn remembers(servers: usize, waited: Option<Duration>) -> Remembrance {
        Remembrance {
            id: "a".into(),
            servers,
            lease: SECOND * 10,
            waited,
        }
    }

    fn identity(run_id: &str, servers: usize) -> ServerIdentity {
        let memory = Some(remembers(servers, None));
        ServerIdentity {
            run_id: run_id.into(),
            role: "master".into(),
            master: String::new(),
            memory,
        }
    }

    #[test]
    fn a_server_waits_for_the_longest_lease_and_at_most_for_two() {
        let now = Instant::now();
        let shut = |waited| {
            Memory::new(&remembers(3, Some(waited)), now)
                .shut
                .expect("it has no vote")
        };
        let drift = drift(SECOND * 10);
        let fresh = shut(Duration::ZERO);
        assert_eq!(
            (fresh.until, fresh.at_most),
            (now + SECOND * 10 + drift, now + SECOND * 20 + drift)
        );
        let later = shut(SECOND * 9);
        assert_eq!(
            (later.until, later.at_most),
            (now + SECOND + drift, now + SECOND * 11 + drift)
        );
        let late = shut(SECOND * 15);
        assert_eq!((late.until, late.at_most), (now, now + SECOND * 5 + drift));
        assert_eq!(
            shut(SECOND * 99),
            Quarantine {
                until: now,
                at_most: now
            }
        );
        assert_eq!(Memory::new(&remembers(3, None), now).shut, None);
    }

    #[test]
    fn only_a_server_that_votes_is_one_of_another_number() {
        assert_eq!(other_number(3, Some(&remembers(2, None))), Some(2));
        assert_eq!(other_number(3, Some(&remembers(3, None))), None);
        assert_eq!(
            other_number(3, Some(&remembers(2, Some(SECOND)))),
            None,
            "it refuses no caller"
        );
        assert_eq!(other_number(3, None), None);
    }

    #[test]
    fn a_server_that_could_never_vote_says_why() {
        let mut places = places();
        let mut why = |lane, identity: &ServerIdentity| {
            places[0].run_id = Some("zero".into());
            unfitness(&places, 1, lane, identity).unwrap_or_default()
        };
        let fit = identity("one", 3);
        assert_eq!(why(Lane::Grants, &fit), "");
        assert_eq!(
            why(Lane::Renewals, &fit),
            "leads to another server than its other connections do"
        );
        assert_eq!(
            why(Lane::Grants, &identity("zero", 3)),
            "is the same server as n0; it has one vote"
        );
        let others = why(Lane::Grants, &identity("one", 5));
        assert!(
            others.starts_with("is one of 5 servers, and this program names 3: name all 5"),
            "{others}"
        );
        assert!(others.contains(MEMORY), "{others}");
        let of = |role: &str, master: &str| ServerIdentity {
            role: role.into(),
            master: master.into(),
            ..fit.clone()
        };
        assert_eq!(
            why(Lane::Grants, &of("cluster", "")),
            crate::node::IN_CLUSTER_MODE
        );
        assert!(why(Lane::Grants, &of("slave", "")).contains("of another server;"));
        assert!(why(Lane::Grants, &of("slave", "h:1")).contains("of h:1;"));
    }
}
