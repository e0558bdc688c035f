//! What is known about one node from its connections.

use std::sync::Arc;

use super::members::{Id, Memory, Phase, Sight};
use crate::clock::Instant;
use crate::command::{Identity, Remembered, Remembrance};
use crate::error::NodeFailure;
use crate::lease::NodeIndex;
use crate::node::Lane;
use crate::shown::Shown;

/// One node, and what its connections have shown.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) name: Arc<str>,
    pub(super) run_id: Option<String>,
    /// The numbers of the connections that were vetted.
    pub(super) grants: Option<u64>,
    pub(super) renewals: Option<u64>,
    pub(super) sight: Option<Sight>,
    /// The memory, as the server stores it.
    pub(super) memory: Option<Remembered>,
    /// The id that is there, or was there last, and whether it has been listed.
    pub(super) latest: Option<(Id, bool)>,
    /// The id that was there before that, if the others may list it.
    pub(super) former: Option<Id>,
    /// Whether a listed server was ever seen there.
    pub(super) met: bool,
    /// When this locker last had others list the server that is there.
    pub(super) listings: Vec<Instant>,
    /// Why nothing is known yet.
    pub(super) unknown: Option<String>,
    /// Why its vote can never count.
    pub(super) unfit: Option<String>,
}

impl Place {
    pub(super) fn new(name: Arc<str>) -> Self {
        let unknown = Some("it was never connected".to_owned());
        Self {
            name,
            run_id: None,
            grants: None,
            renewals: None,
            sight: None,
            memory: None,
            latest: None,
            former: None,
            met: false,
            listings: Vec::new(),
            unknown,
            unfit: None,
        }
    }

    pub(super) fn failure(&self, reason: impl Into<String>) -> NodeFailure {
        NodeFailure { node: Arc::clone(&self.name), reason: reason.into() }
    }

    pub(super) fn remember(&mut self, told: &Remembrance, now: Instant) {
        self.memory = Some(told.memory.as_str().into());
        self.sight = Memory::parse(&told.memory).map(|memory| {
            self.meet(&memory);
            Sight { memory, lease: told.lease, age: told.age, read: now }
        });
        if self.sight.is_none() {
            self.unknown = Some(format!("it remembers {}, which is not of this version", Shown(&told.memory)));
        }
    }

    /// Notes which memory is there. The one that was there before is still in the others' lists, unless it was never
    /// listed.
    pub(super) fn meet(&mut self, memory: &Memory) {
        let is_listed = memory.phase != Phase::Begun;
        self.met |= is_listed;
        self.latest = match self.latest {
            Some((latest, listed)) if latest == memory.id => Some((latest, listed || is_listed)),
            Some((latest, true)) => {
                self.former = Some(latest);
                Some((memory.id, is_listed))
            }
            _ => Some((memory.id, is_listed)),
        };
    }
}

/// Returns why the vote of this server can never count, if so.
pub(super) fn unfitness(places: &[Place], place: NodeIndex, lane: Lane, identity: &Identity) -> Option<String> {
    let Identity { run_id, role, master, memory } = identity;
    if role == "cluster" {
        return Some(crate::node::IN_CLUSTER_MODE.to_owned());
    }
    if role != "master" {
        let master = if master.is_empty() { "another server" } else { master };
        return Some(format!("is a replica (role {role}) of {master}; a replica has no vote of its own"));
    }
    if lane == Lane::Renewals && places[place].run_id.as_ref() != Some(run_id) {
        return Some("leads to another server than its other connections do".to_owned());
    }
    let is_same = |&(at, other): &(usize, &Place)| at != place && other.run_id.as_ref() == Some(run_id);
    if let Some((_, other)) = places.iter().enumerate().find(is_same) {
        return Some(format!("is the same server as {}; it has one vote", other.name));
    }
    let seats = Memory::parse(&memory.as_ref()?.memory)?.seats;
    (seats != places.len()).then(|| {
        format!("is one of {seats} servers; this locker was given {}: name all of them in every program", places.len())
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LISTS: &str = "3 votes 000000000000000a,000000000000000b,000000000000000c ";

    fn places() -> Vec<Place> {
        (0..3).map(|place| Place::new(format!("n{place}").as_str().into())).collect()
    }

    fn identity(run_id: &str, memory: &str) -> Identity {
        let memory = Remembrance { memory: memory.into(), lease: Duration::ZERO, age: Duration::ZERO };
        Identity { run_id: run_id.into(), role: "master".into(), master: String::new(), memory: Some(memory) }
    }

    #[test]
    fn the_former_memory_is_the_last_one_that_others_may_list() {
        let place = &mut places()[0];
        let mut meets = |id, phase| {
            place.meet(&Memory { phase, ..Memory::begun(Id(id), 3) });
            place.former
        };
        assert_eq!((meets(1, Phase::Begun), meets(2, Phase::Begun)), (None, None), "the former one was never listed");
        assert_eq!((meets(2, Phase::Listed), meets(2, Phase::Begun)), (None, None), "it is the same");
        assert_eq!(meets(3, Phase::Votes), Some(Id(2)));
        assert_eq!(meets(4, Phase::Begun), Some(Id(3)));
        assert_eq!(meets(5, Phase::Begun), Some(Id(3)), "4 was never listed");
    }

    #[test]
    fn a_server_that_could_never_vote_says_why() {
        let mut places = places();
        let mut why = |lane, identity: &Identity| {
            places[0].run_id = Some("zero".into());
            unfitness(&places, 1, lane, identity).unwrap_or_default()
        };
        let memory = |seats| format!("000000000000000a {}", LISTS.replace('3', seats));
        let fit = identity("one", &memory("3"));
        assert_eq!(why(Lane::Grants, &fit), "");
        assert_eq!(why(Lane::Renewals, &fit), "leads to another server than its other connections do");
        assert_eq!(why(Lane::Grants, &identity("zero", &memory("3"))), "is the same server as n0; it has one vote");
        assert!(why(Lane::Grants, &identity("one", &memory("5"))).starts_with("is one of 5 servers"));
        let of = |role: &str, master: &str| Identity { role: role.into(), master: master.into(), ..fit.clone() };
        assert_eq!(why(Lane::Grants, &of("cluster", "")), crate::node::IN_CLUSTER_MODE);
        assert!(why(Lane::Grants, &of("slave", "")).contains("of another server;"));
        assert!(why(Lane::Grants, &of("slave", "h:1")).contains("of h:1;"));
    }
}
