//! Lets a server vote.

use std::iter::once;
use std::sync::Arc;
use std::time::Duration;

use super::reply::yes_or_no;
use super::sending::Op;
use super::word::{alone, marks, millis, number};
use crate::key::MEMORY;
use crate::lua::{Script, Topology};
use crate::node::{Call, Reply, WordList};

/// Lets a server vote, if it still has the memory that this was decided on.
#[derive(Debug)]
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
        // A server that stands alone is told nothing, and its user may have no right to marks (tokens).
        let raised = marks().filter(|_| !self.marks.is_empty());
        let args = [
            (&*self.from).into(),
            (&*self.to).into(),
            millis(self.waited),
            millis(self.lease),
            self.marks.as_str().into(),
            self.with.as_str().into(),
            number(self.servers as u64),
            number(self.named as u64),
        ];
        alone(OPEN.on(topology), WordList::new(once(MEMORY.into()).chain(raised), args))
    }

    fn read(&self, reply: &Reply) -> Option<bool> {
        yes_or_no(reply)
    }
}
