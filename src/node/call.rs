//! A script to be sent to a server.

use std::sync::Arc;

use super::batcher::Step;
use super::slot::Slot;
use super::word_list::WordList;
use crate::key::MEMORY;
use crate::lua::Lua;

/// A script to be run once.
#[derive(Clone)]
pub(crate) enum Call {
    /// It may share a script with others.
    Step(Step),
    /// It is sent by itself. `acknowledged`: whether replicas have to acknowledge it, if they are
    /// asked at all.
    Script {
        lua: &'static Lua,
        words: WordList,
        vote: Option<Arc<str>>,
        acknowledged: bool,
    },
}

impl Call {
    pub(crate) fn keys(&self) -> Vec<&str> {
        let (words, vote) = self.words();
        words.keys().chain(vote.map(|_| MEMORY)).collect()
    }

    pub(crate) fn args(&self) -> Vec<&str> {
        let (words, vote) = self.words();
        words.args().chain(vote.map(|vote| &**vote)).collect()
    }

    pub(crate) fn lua(&self) -> &'static Lua {
        match self {
            Self::Step(step) => step.alone,
            Self::Script { lua, .. } => lua,
        }
    }

    /// Returns the same call, for a slot of a cluster.
    pub(super) fn in_slot(&self, slot: Slot) -> Self {
        match self.clone() {
            Self::Step(step) => Self::Step(Step {
                slot: Some(slot),
                ..step
            }),
            script @ Self::Script { .. } => script,
        }
    }

    fn words(&self) -> (&WordList, Option<&Arc<str>>) {
        match self {
            Self::Step(Step { words, vote, .. }) | Self::Script { words, vote, .. } => {
                (words, vote.as_ref())
            }
        }
    }
}
