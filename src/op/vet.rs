//! Asks a server who it is.

use std::sync::Arc;
use std::time::Duration;

use super::reply::{array, duration, int, text};
use super::sending::Op;
use super::word::{Word, alone, millis, number};
use crate::key::MEMORY;
use crate::lua::{Script, Topology};
use crate::node::{Call, Reply, WordList};

/// Asks for the identity of a server. With `Announced`, the server also updates its memory.
#[derive(Debug)]
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
            None => WordList::new([], ["", "0", "", "0"].map(Word::from)),
            Some(Announced { id, lease, servers, rank }) => {
                let [servers, rank] = [*servers, *rank].map(|count| number(count as u64));
                WordList::new([MEMORY.into()], [(&**id).into(), millis(*lease), servers, rank])
            }
        };
        alone(VET.on(topology), words)
    }

    fn read(&self, reply: &Reply) -> Option<ServerIdentity> {
        let [run_id, role, master, rest @ ..] = array(reply)? else { return None };
        let memory = if rest.is_empty() { None } else { Some(remembrance(rest)?) };
        Some(ServerIdentity { run_id: text(run_id)?, role: text(role)?, master: text(master)?, memory })
    }
}

fn remembrance(items: &[Reply]) -> Option<Remembrance> {
    let [id, servers, lease, waited] = items else { return None };
    let waited = if int(waited)? == -1 { None } else { Some(duration(waited)?) };
    Some(Remembrance { id: text(id)?, servers: text(servers)?.parse().ok()?, lease: duration(lease)?, waited })
}
