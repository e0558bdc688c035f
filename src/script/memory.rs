//! What a server tells of itself, and remembers.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::texts::Voting;
use super::{ask, is_forgotten, millis};
use crate::key::Key;
use crate::node::{Lane, Lua, Node, Outcome, Remembered, Reply};

static VET: LazyLock<Lua> = LazyLock::new(|| Lua::new(include_str!("../../lua/vet.lua")));
static HIGHEST: LazyLock<Voting> = LazyLock::new(|| Voting::or_nothing(include_str!("../../lua/highest.lua")));
static AMEND: LazyLock<Lua> = LazyLock::new(|| Lua::new(include_str!("../../lua/amend.lua")));

/// The key of a server's memory.
const MEMORY: &str = "lockhound_memory";

/// What a server has to remember for its answer to be a vote.
pub(crate) fn remembered(memory: Arc<str>) -> Remembered {
    Remembered { key: MEMORY, memory }
}

/// Who a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Another one after each start.
    pub(crate) run_id: String,
    pub(crate) role: String,
    /// Of a replica.
    pub(crate) master: String,
    /// Of a master that was asked for it.
    pub(crate) memory: Option<Told>,
}

/// A server's memory, as a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) memory: String,
    /// The longest lease that it was told of.
    pub(crate) lease: Duration,
    /// For how long it has been listed, at the least.
    pub(crate) age: Duration,
}

/// What a server is told where it has a memory.
#[derive(Debug)]
pub(crate) struct Announced<'a> {
    /// Its memory, if it has none.
    pub(crate) begun: &'a str,
    pub(crate) lease: Duration,
    /// What it remembered last, and for how long it had been listed then and since.
    pub(crate) last: &'a str,
    pub(crate) age: Duration,
}

/// Asks a server who it is, on one of its connections.
pub(crate) async fn vet(node: &Node, lane: Lane, announced: Option<Announced<'_>>) -> Outcome<Identity> {
    let reply = match announced {
        None => node.eval(lane, &VET, &[], &["", "0", "", "0"]).await,
        Some(Announced { begun, lease, last, age }) => {
            node.eval(lane, &VET, &[MEMORY], &[begun, &millis(lease), last, &millis(age)]).await
        }
    };
    reply.and_then(node.name(), |reply| {
        let Reply::Array(items) = reply else { return None };
        let [run_id, role, master, rest @ ..] = items.as_slice() else { return None };
        let memory = if rest.is_empty() { None } else { Some(told(rest)?) };
        Some(Identity { run_id: text(run_id)?, role: text(role)?, master: text(master)?, memory })
    })
}

/// A change of a server's memory.
#[derive(Debug)]
pub(crate) struct Amendment<'a> {
    pub(crate) from: &'a str,
    pub(crate) to: &'a str,
    pub(crate) listed: bool,
    /// Where it is to vote: the longest lease that it has waited for.
    pub(crate) waited: Option<Duration>,
    /// .. and what its marks are raised to then: the highest of these numbers that it believes in.
    pub(crate) marks: Option<&'a str>,
}

/// Changes a server's memory, if it is still what it was; what it is then.
pub(crate) async fn amend(node: &Node, amendment: Amendment<'_>) -> Outcome<Told> {
    let Amendment { from, to, listed, waited, marks } = amendment;
    let waited = waited.map_or_else(|| "-1".to_owned(), millis);
    let args = [from, to, if listed { "1" } else { "0" }, &waited, marks.unwrap_or("0")];
    let raised = if marks.is_some() { Key::marks() } else { Vec::new() };
    let keys: Vec<&str> = std::iter::once(MEMORY).chain(raised.iter().map(String::as_str)).collect();
    let reply = node.eval(Lane::Grants, &AMEND, &keys, &args).await;
    reply.and_then(node.name(), |reply| match reply {
        Reply::Array(items) => told(items),
        _ => None,
    })
}

/// The highest mark of a server. `None`: it does not remember what it was vetted for.
pub(crate) async fn highest(node: &Node, vote: Option<Remembered>) -> Outcome<Option<String>> {
    let marks = Key::marks();
    let (mut keys, mut args) = (marks.iter().map(String::as_str).collect(), Vec::new());
    ask(&vote, &mut keys, &mut args);
    let reply = node.eval(Lane::Grants, HIGHEST.for_vote(vote.as_ref()), &keys, &args).await;
    reply.and_then(node.name(), |reply| if is_forgotten(reply) { Some(None) } else { text(reply).map(Some) })
}

fn told(items: &[Reply]) -> Option<Told> {
    let [memory, Reply::Int(lease), Reply::Int(age)] = items else { return None };
    let duration = |ms: i64| u64::try_from(ms).ok().map(Duration::from_millis);
    Some(Told { memory: text(memory)?, lease: duration(*lease)?, age: duration(*age)? })
}

fn text(reply: &Reply) -> Option<String> {
    match reply {
        Reply::Bytes(bytes) => String::from_utf8(bytes.to_vec()).ok(),
        _ => None,
    }
}
