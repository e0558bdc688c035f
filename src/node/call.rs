//! A script to be sent to a server.

use super::batcher::Step;
use super::script_runner::Lua;
use super::slot::Slot;

/// A script to be run once.
pub(crate) enum Call<'a> {
    /// It may share a script with others.
    Step(Step),
    /// It is sent by itself. `acknowledged`: whether replicas have to acknowledge it, if they are asked at all.
    Script { lua: &'static Lua, keys: &'a [&'a str], args: &'a [&'a str], acknowledged: bool },
}

impl Call<'_> {
    pub(super) fn keys(&self) -> Vec<&str> {
        match self {
            Self::Step(step) => step.words.keys().collect(),
            Self::Script { keys, .. } => keys.to_vec(),
        }
    }

    pub(super) fn args(&self) -> Vec<&str> {
        match self {
            Self::Step(step) => step.words.args().collect(),
            Self::Script { args, .. } => args.to_vec(),
        }
    }

    pub(super) fn lua(&self) -> &'static Lua {
        match self {
            Self::Step(step) => step.alone,
            Self::Script { lua, .. } => lua,
        }
    }

    /// Returns the same call, for a slot of a cluster.
    pub(super) fn in_slot(&self, slot: Slot) -> Self {
        match self {
            Self::Step(step) => Self::Step(Step { slot: Some(slot), ..step.clone() }),
            Self::Script { lua, keys, args, acknowledged } => {
                Self::Script { lua, keys, args, acknowledged: *acknowledged }
            }
        }
    }
}
