//! Writes the value of a leader, and asks who leads.

use std::sync::Arc;
use std::time::Duration;

use super::inspect::no_lock;
use super::refusal::Subject;
use super::reply::{array, remaining, yes_or_no};
use super::sending::{ClusterRoute, Op};
use super::word::{Word, alone, channel, lock, millis, text};
use crate::claim::Claim;
use crate::error::Error;
use crate::fence::Fence;
use crate::key::Key;
use crate::lua::{Script, Topology};
use crate::node::{Call, Outcome, Reply, WordList};

/// Writes the value of a leader, if it leads. Observers are notified of a new one.
#[derive(Debug, Clone)]
pub(crate) struct Proclaim {
    pub(crate) claim: Claim,
    pub(crate) term: Fence,
    /// The place of the value among those of this term, from 1.
    pub(crate) number: u64,
    pub(crate) value: Arc<str>,
    pub(crate) lifetime: Duration,
}

/// Asks who leads.
#[derive(Debug, Clone)]
pub(crate) struct ReadLeader(pub(crate) Key);

/// The leader of an election, as one server has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyLeader {
    pub(crate) field: Vec<u8>,
    pub(crate) remaining: Option<Duration>,
    pub(crate) said: Option<LeaderValue>,
}

/// What a leader has written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeaderValue {
    /// None if it is no fence.
    pub(crate) term: Option<Fence>,
    pub(crate) number: i64,
    pub(crate) value: Vec<u8>,
}

impl Op for Proclaim {
    /// Whether the lock is held under the leader's field.
    type Output = bool;

    fn call(&self, topology: Topology) -> Call {
        static PROCLAIM: Script = Script::shared("proclaim");
        let key = &self.claim.key;
        let messages = key.to_leader();
        let keys = [lock(key), value_of(key), channel(&messages)];
        let args = [
            text(&*self.claim.field),
            Word::Number(self.term.get().into()),
            Word::Number(self.number.into()),
            text(&*self.value),
            millis(self.lifetime),
        ];
        alone(PROCLAIM.on(topology), WordList::new(keys, args))
    }

    fn read(&self, reply: &Reply) -> Option<bool> {
        yes_or_no(reply)
    }

    fn keys(&self, _topology: Topology) -> Vec<Subject> {
        subjects(&self.claim.key)
    }
}

impl Op for ReadLeader {
    /// `None` if there is no leader.
    type Output = Option<KeyLeader>;

    fn call(&self, topology: Topology) -> Call {
        static LEADER: Script = Script::shared("leader");
        let keys = [lock(&self.0), value_of(&self.0)];
        alone(LEADER.on(topology), WordList::new(keys, []))
    }

    fn read(&self, reply: &Reply) -> Option<Option<KeyLeader>> {
        let [Reply::Int(ttl), Reply::Bytes(field), said @ ..] = array(reply)? else {
            return array(reply)?.is_empty().then_some(None);
        };
        let said = match said {
            [] => None,
            [Reply::Int(term), Reply::Int(number), Reply::Bytes(value)] => Some(LeaderValue {
                term: Fence::read(*term),
                number: *number,
                value: value.to_vec(),
            }),
            _ => return None,
        };
        Some(Some(KeyLeader {
            field: field.to_vec(),
            remaining: remaining(*ttl),
            said,
        }))
    }

    fn error(&self, node: &Arc<str>, reply: &Reply) -> Option<Error> {
        no_lock(&self.0, node, reply)
    }

    fn keys(&self, _topology: Topology) -> Vec<Subject> {
        subjects(&self.0)
    }

    async fn on_cluster(&self, route: &ClusterRoute<'_>) -> Outcome<Option<KeyLeader>> {
        route.ask_at(&self.0, self).await
    }
}

fn value_of(key: &Key) -> Word<'_> {
    text(key.leader_value())
}

fn subjects(key: &Key) -> Vec<Subject> {
    vec![
        Subject::new(key.stored(), "hash"),
        Subject::new(key.leader_value(), "hash"),
    ]
}
