//! One node, and what its connections have shown.

use std::sync::Arc;

use super::members::{Id, Memory, Phase, Sight};
use crate::clock::Instant;
use crate::command::{Identity, Remembrance};
use crate::error::NodeFailure;
use crate::lease::NodeIndex;
use crate::node::Lane;
use crate::shown::Shown;

/// One node, and what its connections have shown.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) name: Arc<str>,
    pub(super) run_id: Option<String>,
    /// For which connection that was found out.
    pub(super) grants: Option<u64>,
    pub(super) renewals: Option<u64>,
    pub(super) sight: Option<Sight>,
    /// The memory as the server has it.
    pub(super) memory: Option<Arc<str>>,
    /// Who is there, or was there last, and whether the others were told of it.
    pub(super) latest: Option<(Id, bool)>,
    /// Who was there before that, of those that the others may list.
    pub(super) former: Option<Id>,
    /// When this locker had others list who is there, of late.
    pub(super) listings: Vec<Instant>,
    /// Why nothing is known, or nothing can be.
    pub(super) unknown: Option<String>,
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

    /// Notes who is there. Whoever was there before stands in the others' lists yet, unless nobody had been told of it.
    pub(super) fn meet(&mut self, memory: &Memory) {
        let is_listed = memory.phase != Phase::Begun;
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

/// Why the vote of this server could never count.
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
