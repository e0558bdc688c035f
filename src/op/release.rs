//! Releases a lock, at once or after a rest, and takes a locker off its list.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use super::fair::release_words;
use super::permits::counters;
use super::refusal::{Subject, subjects};
use super::reply::{array, forbidden, is_gone};
use super::sending::Op;
use super::word::{
    NOTHING, Word, alone, batched, channel, field, lock, millis, number, text, timeout,
};
use crate::claim::{Claim, ReleaseAnswer, Wakes};
use crate::key::Key;
use crate::kind::LockRole;
use crate::lua::{Script, Topology};
use crate::node::{Call, Reply, Step, WordList};

/// Releases a lock. With a `rest` the lock stays locked for that long, under a field that no
/// operation names, and no waiter is woken.
pub(crate) struct Release {
    pub(crate) claim: Claim,
    pub(crate) rest: Option<Duration>,
    pub(crate) wakes: Wakes,
}

impl Op for Release {
    type Output = ReleaseAnswer;

    fn call(&self, topology: Topology) -> Call {
        let Self { claim, rest, wakes } = self;
        let scripts = &claim.kind.scripts;
        let channel = channel(&claim.key);
        let (script, shared, words) = match (rest, claim.kind.role) {
            (_, LockRole::Read) => {
                let keys = [lock(&claim.key), channel]
                    .into_iter()
                    .chain(timeout(claim));
                (&scripts.release, None, WordList::new(keys, [field(claim)]))
            }
            (_, LockRole::Write) => {
                let args = [field(claim), text(claim.key.reader_hint())];
                let words = WordList::new([lock(&claim.key), channel], args);
                (&scripts.release, None, words)
            }
            (_, LockRole::Permit) => {
                let args = [number(claim.permits), field(claim), channel];
                let words = WordList::new(counters(&claim.key), args);
                (&scripts.release, None, words)
            }
            (None, LockRole::InTurn) => (
                &scripts.release,
                None,
                release_words(&claim.key, field(claim), topology),
            ),
            (Some(rest), LockRole::Alone | LockRole::InTurn) => (
                &scripts.keep,
                None,
                WordList::new([lock(&claim.key)], [millis(*rest), field(claim)]),
            ),
            (None, LockRole::Alone) => {
                let (list, releaser) = match wakes {
                    Wakes::All => (NOTHING, &None),
                    Wakes::Next(releaser) => (Word::List(&claim.key), releaser),
                };
                let args = [
                    field(claim),
                    list,
                    releaser.as_ref().map_or(NOTHING, Word::Releaser),
                ];
                let words = WordList::new([lock(&claim.key), channel], args);
                (
                    &scripts.release,
                    Some(batched(scripts, topology, "release")),
                    words,
                )
            }
        };
        Call::Step(Step {
            alone: script.on(topology),
            batched: shared,
            words,
            vote: None,
            takes: false,
            idle: is_gone,
            slot: None,
        })
    }

    fn read(&self, reply: &Reply) -> Option<ReleaseAnswer> {
        answer(reply)
    }

    fn keys(&self, topology: Topology) -> Vec<Subject> {
        subjects(slice::from_ref(&self.claim), None, topology)
    }
}

/// Takes a locker off the list of a lock, and wakes the next one if the lock is free.
pub(crate) struct LeaveList {
    pub(crate) key: Key,
    pub(crate) locker: Arc<str>,
}

impl Op for LeaveList {
    type Output = ReleaseAnswer;

    fn call(&self, topology: Topology) -> Call {
        static PASS: Script = Script::shared("pass");
        let args = [text(&*self.locker), Word::List(&self.key), NOTHING];
        alone(
            PASS.on(topology),
            WordList::new([lock(&self.key), channel(&self.key)], args),
        )
    }

    fn read(&self, reply: &Reply) -> Option<ReleaseAnswer> {
        answer(reply)
    }
}

fn answer(reply: &Reply) -> Option<ReleaseAnswer> {
    match reply {
        Reply::Int(-1) => Some(ReleaseAnswer::Gone),
        Reply::Int(told) => u64::try_from(*told).ok().map(ReleaseAnswer::Released),
        _ => match array(reply)? {
            [
                Reply::Int(place),
                Reply::Int(turn),
                Reply::Int(others),
                Reply::Int(waiting),
            ] => {
                let turn = u64::try_from(*turn).ok()?;
                Some(ReleaseAnswer::PassedOn {
                    place: u64::try_from(*place).ok(),
                    turn: Some(turn)
                        .filter(|turn| *turn > 0)
                        .map(Duration::from_millis),
                    others: u64::try_from(*others).ok()?,
                    waiting: u64::try_from(*waiting).ok()?,
                })
            }
            [Reply::Int(told), Reply::Bytes(error)] => match forbidden(error) {
                Some(error) => Some(ReleaseAnswer::Unlisted(error)),
                None => u64::try_from(*told).ok().map(ReleaseAnswer::Released),
            },
            _ => None,
        },
    }
}
