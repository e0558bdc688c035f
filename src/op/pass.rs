//! Takes a locker off a list.

use std::sync::Arc;

use super::release::answer;
use super::sending::Op;
use super::word::{NOTHING, Word, alone, channel, lock};
use crate::claim::ReleaseAnswer;
use crate::key::Key;
use crate::lua::{Script, Topology};
use crate::node::{Call, Reply, WordList};

/// Takes a locker off the list of a lock, and wakes the next one if the lock is free.
#[derive(Debug)]
pub(crate) struct LeaveList {
    pub(crate) key: Key,
    pub(crate) locker: Arc<str>,
}

impl Op for LeaveList {
    type Output = ReleaseAnswer;

    fn call(&self, topology: Topology) -> Call {
        static PASS: Script = Script::shared("pass");
        let args = [(&*self.locker).into(), Word::List(&self.key), NOTHING];
        alone(PASS.on(topology), WordList::new([lock(&self.key), channel(&self.key)], args))
    }

    fn read(&self, reply: &Reply) -> Option<ReleaseAnswer> {
        answer(reply)
    }
}
