//! The lock of Redlock clients in other languages: a string whose value is the field of its holder.

use super::{CommandsOfKind, Format, Kind, LockKind, LockRole, Scripts};
use crate::key::LOCK;
use crate::lua::texts;

/// Clients of this format know nothing of labels, and their users have rights to their locks only.
pub(super) static PLAIN: Kind = Kind {
    name: "plain",
    format: Format::Plain,
    family: &LOCK,
    role: LockRole::Alone,
    counted: LockKind::Lock,
    key_type: "string",
    announced: false,
    labelled: false,
    tokens: false,
    calls: CommandsOfKind {
        to_lock: &[],
        to_inspect: &[],
        to_do_both: &["GET LOCK"],
        to_retake: &[],
    },
    scripts: Scripts::of(texts!(
        "plain" "acquire" "acquire_all" "count" "release" "keep" "hand_over" "renew" "retake" "extend" "raise"
    )),
};
