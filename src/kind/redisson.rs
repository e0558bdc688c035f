//! Redisson's `getLock`: a hash with the field of its holder.

use super::{CommandsOfKind, Format, Kind, LockKind, LockRole, Scripts};
use crate::key::LOCK;
use crate::lua::{Texts, texts};

pub(super) static REDISSON: Kind = Kind {
    name: "redisson",
    format: Format::Redisson,
    family: &LOCK,
    role: LockRole::Alone,
    counted: LockKind::Lock,
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
};

pub(super) const TEXTS: Texts = texts!(
    "redisson" "acquire" "acquire_all" "count" "release" "keep" "hand_over" "renew" "retake" "extend" "raise"
);
