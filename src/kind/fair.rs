//! Redisson's `getFairLock`: the hash of a lock with a queue of tickets beside it. A ticket stands
//! for a caller that waits, and is no field: a late copy of an attempt takes nothing for a caller
//! that has given up, or has the lock by a later one.

use super::redisson::TEXTS as LOCK_TEXTS;
use super::{CommandsOfKind, Format, Kind, LockKind, LockRole, Scripts};
#[cfg(test)]
#[path = "../../tests/unit/fair_scripts.rs"]
mod beside_redisson;

use crate::key::FAIR as FAIR_FAMILY;
use crate::lua::texts;

pub(crate) static FAIR: Kind = Kind {
    name: "fair",
    format: Format::Redisson,
    family: &FAIR_FAMILY,
    role: LockRole::InTurn,
    counted: LockKind::Fair,
    key_type: "hash",
    announced: true,
    labelled: true,
    tokens: true,
    calls: CommandsOfKind {
        to_lock: &["HEXISTS LOCK f", "HSET LOCK f 1", "HSETNX LOCK f 1"],
        to_inspect: &["GET LOCK"],
        to_do_both: &["HGETALL LOCK", "EXISTS LOCK"],
        to_retake: &[],
    },
    // A fair lock that is held is a lock as any other.
    scripts: Scripts::held_as(LOCK_TEXTS, texts!("fair" "acquire" "call" "release")),
};
