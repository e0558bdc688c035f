//! What a server that votes has to remember: asks for it, asks another server about it, and lets it
//! vote.

use std::iter::once;
use std::sync::Arc;
use std::time::Duration;

use super::reply::{array, duration, int, is_forgotten, text, yes_or_no};
use super::sending::Op;
use super::word::{self, alone, marks, millis, number};
use crate::key::MEMORY;
use crate::lua::{Script, Topology};
use crate::node::{Call, Reply, WordList};

/// Asks for the identity of a server. With `Announced`, the server also updates its memory.
pub(crate) struct Vet(pub(crate) Option<Announced>);

/// What a locker announces to a server that keeps a memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Announced {
    /// The id of the memory that it begins if it has none.
    pub(crate) id: Arc<str>,
    pub(crate) lease: Duration,
    pub(crate) servers: usize,
    /// How much that number counts beside another locker's.
    pub(crate) rank: usize,
}

/// A server's identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerIdentity {
    /// It changes with each start.
    pub(crate) run_id: String,
    pub(crate) role: String,
    /// The address of the master, if it is a replica.
    pub(crate) master: String,
    /// The memory, if it is a master that was asked for it.
    pub(crate) memory: Option<Remembrance>,
}

/// A server's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remembrance {
    pub(crate) id: String,
    /// The number of servers.
    pub(crate) servers: usize,
    /// The longest lease that was announced to it.
    pub(crate) lease: Duration,
    /// How long it has been shut; `None` if it votes.
    pub(crate) waited: Option<Duration>,
}

impl Op for Vet {
    type Output = ServerIdentity;

    fn call(&self, topology: Topology) -> Call {
        static VET: Script = Script::shared("vet");
        let words = match &self.0 {
            None => WordList::new([], ["", "0", "", "0"].map(word::text)),
            Some(Announced {
                id,
                lease,
                servers,
                rank,
            }) => {
                let [servers, rank] = [*servers, *rank].map(|count| number(count as u64));
                WordList::new(
                    [word::text(MEMORY)],
                    [word::text(&**id), millis(*lease), servers, rank],
                )
            }
        };
        alone(VET.on(topology), words)
    }

    fn read(&self, reply: &Reply) -> Option<ServerIdentity> {
        let [run_id, role, master, rest @ ..] = array(reply)? else {
            return None;
        };
        let memory = if rest.is_empty() {
            None
        } else {
            Some(remembrance(rest)?)
        };
        Some(ServerIdentity {
            run_id: text(run_id)?,
            role: text(role)?,
            master: text(master)?,
            memory,
        })
    }
}

fn remembrance(items: &[Reply]) -> Option<Remembrance> {
    let [id, servers, lease, waited] = items else {
        return None;
    };
    let waited = if int(waited)? == -1 {
        None
    } else {
        Some(duration(waited)?)
    };
    Some(Remembrance {
        id: text(id)?,
        servers: text(servers)?.parse().ok()?,
        lease: duration(lease)?,
        waited,
    })
}

/// Asks what the server with this id has to know before it votes.
pub(crate) struct AskAbout {
    pub(crate) about: Arc<str>,
    pub(crate) vote: Option<Arc<str>>,
}

/// What one server knows that another has to know before it votes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Testimony {
    /// Whether it votes, and did so when the other one forgot.
    pub(crate) votes: bool,
    /// The longest lease that was announced to it.
    pub(crate) lease: Duration,
    /// Its highest mark.
    pub(crate) mark: String,
}

impl Op for AskAbout {
    /// `None` if the server does not have the memory for the vote.
    type Output = Option<Testimony>;

    fn call(&self, topology: Topology) -> Call {
        static ASK: Script = Script::shared("ask");
        Call::Script {
            lua: ASK.for_vote(topology, &self.vote),
            words: WordList::new(marks(), [word::text(&*self.about)]),
            vote: self.vote.clone(),
            acknowledged: false,
        }
    }

    fn read(&self, reply: &Reply) -> Option<Option<Testimony>> {
        if is_forgotten(reply) {
            return Some(None);
        }
        let [votes, lease, mark] = array(reply)? else {
            return None;
        };
        Some(Some(Testimony {
            votes: yes_or_no(votes)?,
            lease: duration(lease)?,
            mark: text(mark)?,
        }))
    }
}

/// Lets a server vote, if it still has the memory that this was decided on.
pub(crate) struct Opening {
    pub(crate) from: Arc<str>,
    pub(crate) to: Arc<str>,
    /// The longest lease for which it has waited.
    pub(crate) waited: Duration,
    /// The longest lease that the others told.
    pub(crate) lease: Duration,
    /// Its marks are raised to the highest of these numbers that is not too far ahead of its clock.
    pub(crate) marks: String,
    /// The ids of the servers that begin together with it.
    pub(crate) with: String,
    /// The number of servers.
    pub(crate) servers: usize,
    /// The number of servers that the memory named when this was decided.
    pub(crate) named: usize,
}

impl Op for Opening {
    /// Whether it votes now.
    type Output = bool;

    fn call(&self, topology: Topology) -> Call {
        static OPEN: Script = Script::shared("open");
        // A server that stands alone is told nothing, and its user may have no right to marks
        // (tokens).
        let raised = marks().filter(|_| !self.marks.is_empty());
        let args = [
            word::text(&*self.from),
            word::text(&*self.to),
            millis(self.waited),
            millis(self.lease),
            word::text(&*self.marks),
            word::text(&*self.with),
            number(self.servers as u64),
            number(self.named as u64),
        ];
        alone(
            OPEN.on(topology),
            WordList::new(once(word::text(MEMORY)).chain(raised), args),
        )
    }

    fn read(&self, reply: &Reply) -> Option<bool> {
        yes_or_no(reply)
    }
}
