//! Asks a server what another one has to know before it votes.

use std::sync::Arc;
use std::time::Duration;

use super::reply::{array, duration, is_forgotten, text, yes_or_no};
use super::sending::Op;
use super::word::marks;
use crate::lua::{Script, Topology};
use crate::node::{Call, Reply, WordList};

/// Asks what the server with this id has to know before it votes.
#[derive(Debug)]
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
            words: WordList::new(marks(), [(&*self.about).into()]),
            vote: self.vote.clone(),
            acknowledged: false,
        }
    }

    fn read(&self, reply: &Reply) -> Option<Option<Testimony>> {
        if is_forgotten(reply) {
            return Some(None);
        }
        let [votes, lease, mark] = array(reply)? else { return None };
        Some(Some(Testimony { votes: yes_or_no(votes)?, lease: duration(lease)?, mark: text(mark)? }))
    }
}
