//! Redisson's `getReadWriteLock`: a hash with its mode, and the fields of its readers or its
//! writer. Each reader has a key of its own beside it, by which the others tell that it lives.

use super::{CommandsOfKind, Format, Kind, LockKind, LockRole, Scripts};
#[cfg(test)]
#[path = "../../tests/unit/read_write_scripts.rs"]
mod beside_redisson;

use crate::key::READ_WRITE;
use crate::lua::texts;

pub(crate) static READ: Kind = Kind {
    name: "read",
    format: Format::Redisson,
    family: &READ_WRITE,
    role: LockRole::Read,
    counted: LockKind::Read,
    key_type: "hash",
    announced: true,
    labelled: true,
    tokens: true,
    calls: CALLS,
    scripts: Scripts::of(texts!("read" "acquire" "release" "renew")),
};

pub(crate) static WRITE: Kind = Kind {
    name: "write",
    format: Format::Redisson,
    family: &READ_WRITE,
    role: LockRole::Write,
    counted: LockKind::Write,
    key_type: "hash",
    announced: true,
    labelled: true,
    tokens: true,
    calls: CALLS,
    scripts: Scripts::of(texts!("write" "acquire" "release" "renew")),
};

const CALLS: CommandsOfKind = CommandsOfKind {
    to_lock: &[
        "HEXISTS LOCK f",
        "HGET LOCK mode",
        "HMGET LOCK f",
        "HSET LOCK f 1",
        "HSETNX LOCK f 1",
        "HDEL LOCK f",
        "HLEN LOCK",
        "HGETALL LOCK",
    ],
    to_inspect: &[],
    to_do_both: &[],
    to_retake: &[],
};
