//! Finds out which key of a command a server refused. Its error names none, so this asks once more, but only after an
//! error.

use super::reading::types;
use super::words::{Subject, Topology, Words};
use crate::command::Command;
use crate::error::{Error, ServerErrorKind};
use crate::node::{Call, Outcome, Reply};

/// Adds to a refusal which keys it may be about, or which one it is. `ask` sends a script to the server that refused.
pub(super) async fn explain<T>(
    refused: Outcome<T>,
    command: &Command,
    topology: Topology,
    ask: impl AsyncFnOnce(Call) -> Outcome<Reply>,
) -> Outcome<T> {
    let Outcome::Refused(Error::Server { kind, mut source }) = refused else { return refused };
    let keys = Words::keys_of(command, topology);
    if !keys.is_empty() {
        match kind {
            ServerErrorKind::NoPermission => {
                source.found = keys.iter().map(Subject::quoted).collect::<Vec<_>>().join(", ");
            }
            ServerErrorKind::WrongType => {
                let words = Words::types(&keys);
                let call = Call::Script { lua: words.lua, words: words.words, vote: None, acknowledged: false };
                // If there is no answer, the error says what it said.
                if let Outcome::Done(reply) = ask(call).await {
                    source.found = types(&reply).and_then(|types| odd_one(&keys, &types)).unwrap_or_default();
                }
            }
            _ => {}
        }
    }
    Outcome::Refused(Error::Server { kind, source })
}

/// Returns whether a refusal may be about one of several keys.
pub(super) fn is_vague<T>(answer: &Outcome<T>) -> bool {
    let Outcome::Refused(Error::Server { kind, source }) = answer else { return false };
    source.found.is_empty() && matches!(kind, ServerErrorKind::WrongType | ServerErrorKind::NoPermission)
}

/// Names the first key that is there with another type than it should have.
fn odd_one(keys: &[Subject], types: &[String]) -> Option<String> {
    let (key, found) = keys.iter().zip(types).find(|(key, found)| *found != "none" && *found != key.kind)?;
    let role = if key.counts { ", which counts the fences of this lock," } else { "" };
    Some(format!("{}{role} holds a {found}", key.quoted()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_that_has_another_type_is_named() {
        let key = |name: &str, kind, counts| Subject { name: name.to_owned(), kind, counts };
        let keys = [key("orders:42", "hash", false), key("lockhound_fence:{7}", "string", true)];
        let odd = |types: [&str; 2]| odd_one(&keys, &types.map(str::to_owned));
        assert_eq!(odd(["list", "string"]).as_deref(), Some("\"orders:42\" holds a list"));
        let mark = "\"lockhound_fence:{7}\", which counts the fences of this lock, holds a set";
        assert_eq!(odd(["none", "set"]).as_deref(), Some(mark));
        assert_eq!(odd(["hash", "none"]), None, "it has gone meanwhile");
    }
}
