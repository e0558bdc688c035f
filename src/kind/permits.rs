//! Semaphores: a counter of free permits, and a record for each permit that is taken. Redisson's
//! `getPermitExpirableSemaphore` has the same two keys. Its `getSemaphore` has the counter alone:
//! there the records are this crate's, and what JVMs take leaves no trace.

use super::{CommandsOfKind, Format, Kind, LockKind, LockRole, Scripts};
#[cfg(test)]
#[path = "../../tests/unit/permit_scripts.rs"]
mod beside_redisson;

use crate::key::{Family, PERMITS as PERMITS_FAMILY, SEMAPHORE as SEMAPHORE_FAMILY};
use crate::lua::texts;

pub(crate) static PERMITS: Kind = kind(&PERMITS_FAMILY, LockKind::Permits);
pub(crate) static SEMAPHORE: Kind = kind(&SEMAPHORE_FAMILY, LockKind::Semaphore);

const fn kind(family: &'static Family, counted: LockKind) -> Kind {
    Kind {
        name: "permits",
        format: Format::Redisson,
        family,
        role: LockRole::Permit,
        counted,
        key_type: "string",
        announced: true,
        labelled: true,
        tokens: false,
        calls: CommandsOfKind {
            to_lock: &["INCRBY LOCK 1", "SET LOCK 0", "EXISTS LOCK"],
            to_inspect: &[],
            to_do_both: &["GET LOCK"],
            to_retake: &[],
        },
        scripts: Scripts::of(texts!("permits" "acquire" "release" "renew")),
    }
}
