//! Finds out which key of an operation a server refused. Its error names none, so this asks once
//! more, but only after an error.

use std::iter::once;

use super::reply::texts;
use super::word::{self, alone, counter};
use crate::claim::Claim;
use crate::error::{Error, ServerErrorKind};
use crate::fence::Source;
use crate::kind::LockRole;
use crate::lua::{Script, Topology};
use crate::node::{Call, Outcome, Reply, Spell as _, WordList};

/// A key that an operation uses.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    name: String,
    /// The type that it has, if it is there.
    key_type: &'static str,
    /// Whether fences are counted in it.
    counts: bool,
}

/// Returns the keys of these locks, and the counters of their fences if it counts them.
pub(super) fn subjects(
    claims: &[Claim],
    fences: Option<Source>,
    topology: Topology,
) -> Vec<Subject> {
    let lock = |claim: &Claim| Subject::new(claim.key.stored(), claim.kind.key_type);
    let counter = |claim, fences| {
        let mut name = String::new();
        counter(claim, fences, topology).spell(&mut name);
        Subject {
            counts: true,
            ..Subject::new(name, "string")
        }
    };
    let timeout = |claim: &Claim| {
        let reads = claim.kind.role == LockRole::Read;
        reads.then(|| Subject::new(claim.key.reader_timeout(&claim.field), "string"))
    };
    let records = |claim: &Claim| {
        let records = || Subject::new(claim.key.permit_records(), "zset");
        claim.key.has_permits().then(records)
    };
    let queue = |claim: &Claim| {
        let queue = || Subject::new(claim.key.queue(), "list");
        claim.key.is_fair().then(queue)
    };
    let timeouts = |claim: &Claim| {
        let timeouts = || Subject::new(claim.key.queue_timeouts(), "zset");
        claim.key.is_fair().then(timeouts)
    };
    let subjects = |claim| {
        once(lock(claim))
            .chain(queue(claim))
            .chain(timeouts(claim))
            .chain(timeout(claim))
            .chain(records(claim))
            .chain(fences.map(|fences| counter(claim, fences)))
    };
    claims.iter().flat_map(subjects).collect()
}

/// Adds to a refusal which keys it may be about, or which one it is. `ask` sends a script to the
/// server that refused.
pub(super) async fn explain<T>(
    refused: Outcome<T>,
    keys: Vec<Subject>,
    ask: impl AsyncFnOnce(Call) -> Outcome<Reply>,
) -> Outcome<T> {
    let Outcome::Refused(Error::Server { kind, mut source }) = refused else {
        return refused;
    };
    if !keys.is_empty() {
        match kind {
            ServerErrorKind::NoPermission => {
                source.found = keys
                    .iter()
                    .map(Subject::quoted)
                    .collect::<Vec<_>>()
                    .join(", ");
            }
            ServerErrorKind::WrongType => {
                // If there is no answer, the error says what it said.
                if let Outcome::Done(reply) = ask(types(&keys)).await {
                    source.found = texts(&reply)
                        .and_then(|types| odd_one(&keys, &types))
                        .unwrap_or_default();
                }
            }
            _ => {}
        }
    }
    Outcome::Refused(Error::Server { kind, source })
}

/// Asks for the types of these keys.
fn types(keys: &[Subject]) -> Call {
    static TYPES: Script = Script::shared("types");
    alone(
        TYPES.on(Topology::OneServer),
        WordList::new(keys.iter().map(|key| word::text(&*key.name)), []),
    )
}

/// Returns whether a refusal may be about one of several keys.
pub(super) fn is_vague<T>(answer: &Outcome<T>) -> bool {
    let Outcome::Refused(Error::Server { kind, source }) = answer else {
        return false;
    };
    source.found.is_empty()
        && matches!(
            kind,
            ServerErrorKind::WrongType | ServerErrorKind::NoPermission
        )
}

/// Names the first key that is there with another type than it should have.
fn odd_one(keys: &[Subject], types: &[String]) -> Option<String> {
    let (key, found) = keys
        .iter()
        .zip(types)
        .find(|(key, found)| *found != "none" && *found != key.key_type)?;
    let role = if key.counts {
        ", which counts the fences of this lock,"
    } else {
        ""
    };
    Some(format!("{}{role} holds a {found}", key.quoted()))
}

impl Subject {
    /// Returns a key in which no fences are counted.
    pub(super) fn new(name: impl Into<String>, key_type: &'static str) -> Self {
        Self {
            name: name.into(),
            key_type,
            counts: false,
        }
    }

    fn quoted(&self) -> String {
        format!("{:?}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_that_has_another_type_is_named() {
        let key = |name: &str, key_type, counts| Subject {
            name: name.to_owned(),
            key_type,
            counts,
        };
        let keys = [
            key("orders:42", "hash", false),
            key("lockhound_fence:{7}", "string", true),
        ];
        let odd = |types: [&str; 2]| odd_one(&keys, &types.map(str::to_owned));
        assert_eq!(
            odd(["list", "string"]).as_deref(),
            Some("\"orders:42\" holds a list")
        );
        let mark = "\"lockhound_fence:{7}\", which counts the fences of this lock, holds a set";
        assert_eq!(odd(["none", "set"]).as_deref(), Some(mark));
        assert_eq!(odd(["hash", "none"]), None, "it has gone meanwhile");
    }
}
