//! The lock of Redlock clients in other languages: a string whose value is the field of its holder.

use super::{CommandsOfKind, Format, Kind, Scripts};
use crate::key::LOCK;
use crate::lua::Texts;

/// Clients of this format know nothing of labels, and their users have rights to their locks only.
pub(super) static PLAIN: Kind = Kind {
    name: "plain",
    format: Format::Plain,
    family: &LOCK,
    key_type: "string",
    announced: false,
    labelled: false,
    tokens: false,
    calls: CommandsOfKind { to_lock: &[], to_inspect: &[], to_do_both: &["GET LOCK"], to_retake: &[] },
    scripts: Scripts::of(TEXTS),
};

const TEXTS: Texts = &[
    ("acquire", include_str!("../../lua/plain/acquire.lua")),
    ("acquire_all", include_str!("../../lua/plain/acquire_all.lua")),
    ("count", include_str!("../../lua/plain/count.lua")),
    ("release", include_str!("../../lua/plain/release.lua")),
    ("keep", include_str!("../../lua/plain/keep.lua")),
    ("hand_over", include_str!("../../lua/plain/hand_over.lua")),
    ("renew", include_str!("../../lua/plain/renew.lua")),
    ("retake", include_str!("../../lua/plain/retake.lua")),
    ("extend", include_str!("../../lua/plain/extend.lua")),
    ("raise", include_str!("../../lua/plain/raise.lua")),
];
