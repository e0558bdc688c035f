//! Redisson's `getLock`: a hash with the field of its holder.

use super::{CommandsOfKind, Format, Kind, Scripts};
use crate::key::LOCK;
use crate::lua::Texts;

pub(super) static REDISSON: Kind = Kind {
    name: "redisson",
    format: Format::Redisson,
    family: &LOCK,
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

const TEXTS: Texts = &[
    ("acquire", include_str!("../../lua/redisson/acquire.lua")),
    ("acquire_all", include_str!("../../lua/redisson/acquire_all.lua")),
    ("count", include_str!("../../lua/redisson/count.lua")),
    ("release", include_str!("../../lua/redisson/release.lua")),
    ("keep", include_str!("../../lua/redisson/keep.lua")),
    ("hand_over", include_str!("../../lua/redisson/hand_over.lua")),
    ("renew", include_str!("../../lua/redisson/renew.lua")),
    ("retake", include_str!("../../lua/redisson/retake.lua")),
    ("extend", include_str!("../../lua/redisson/extend.lua")),
    ("raise", include_str!("../../lua/redisson/raise.lua")),
];
