//! Redisson's `getLock`: a hash with the field of its holder. An election is such a lock, which
//! only statistics tell apart.

use super::{CommandsOfKind, Format, Kind, LockKind, LockRole, Scripts};
use crate::key::LOCK;
use crate::lua::{Texts, texts};

pub(super) static REDISSON: Kind = kind(LockKind::Lock);
pub(crate) static ELECTION: Kind = kind(LockKind::Election);

const fn kind(counted: LockKind) -> Kind {
    Kind {
        name: "redisson",
        format: Format::Redisson,
        family: &LOCK,
        role: LockRole::Alone,
        counted,
        key_type: "hash",
        announced: true,
        labelled: true,
        tokens: true,
        calls: CommandsOfKind {
            to_lock: &["HEXISTS LOCK f", "HSET LOCK f 1", "HSETNX LOCK f 1"],
            to_inspect: &["GET LOCK", "HGETALL LOCK"],
            to_do_both: &[],
            to_retake: &["EXISTS LOCK"],
        },
        scripts: Scripts::of(TEXTS),
    }
}

pub(super) const TEXTS: Texts = texts!(
    "redisson" "acquire" "acquire_all" "count" "release" "keep" "hand_over" "renew" "retake" "extend" "raise"
);
