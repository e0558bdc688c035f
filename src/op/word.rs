//! The keys and arguments of scripts.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::Duration;

use crate::claim::{Claim, Releaser};
use crate::fence::Source;
use crate::key::Key;
use crate::kind::{Format, LockRole, Scripts};
use crate::lua::{Lua, Topology};
use crate::node::{Batched, Call, Spell, WordList, mark_of, slot_of};

/// A key or an argument.
pub(super) enum Word<'a> {
    Text(Cow<'a, str>),
    Number(i128),
    /// The list of this lock.
    List(&'a Key),
    Releaser(&'a Releaser),
}

pub(super) const NOTHING: Word<'static> = Word::Text(Cow::Borrowed(""));

/// Returns a script that is no step and no vote, and that no replica has to acknowledge.
pub(super) fn alone(lua: &'static Lua, words: WordList) -> Call {
    Call::Script {
        lua,
        words,
        vote: None,
        acknowledged: false,
    }
}

/// As [`alone`], for a script whose writes replicas have to acknowledge.
pub(super) fn written(lua: &'static Lua, words: WordList) -> Call {
    Call::Script {
        lua,
        words,
        vote: None,
        acknowledged: true,
    }
}

/// Returns the script that runs a step of this name together with others.
pub(super) fn batched(
    scripts: &'static Scripts,
    topology: Topology,
    name: &'static str,
) -> Batched {
    Batched {
        name,
        lua: scripts.batch.on(topology),
        voting: scripts.batch.voting_on(topology),
    }
}

/// Returns the scripts for claims of one kind. Without claims any script will do.
pub(super) fn scripts_of(claims: &[Claim]) -> &'static Scripts {
    debug_assert!(
        claims.windows(2).all(|pair| pair[0].kind == pair[1].kind),
        "locks of several kinds"
    );
    &claims
        .first()
        .map_or(Format::default().kind(), |claim| claim.kind)
        .scripts
}

pub(super) fn text<'a>(text: impl Into<Cow<'a, str>>) -> Word<'a> {
    Word::Text(text.into())
}

pub(super) fn lock(key: &Key) -> Word<'_> {
    text(key.stored())
}

/// Returns the key of its own that a reader has beside the lock.
pub(super) fn timeout(claim: &Claim) -> Option<Word<'_>> {
    (claim.kind.role == LockRole::Read).then(|| text(claim.key.reader_timeout(&claim.field)))
}

pub(super) fn channel(key: &Key) -> Word<'_> {
    text(&**key.channel())
}

/// Returns the mark of a lock. A cluster has one for each slot, since a script may have keys of one
/// slot only.
pub(super) fn mark(key: &Key, topology: Topology) -> Word<'_> {
    match topology {
        Topology::OneServer => text(key.mark()),
        Topology::Cluster => text(mark_of(slot_of(&key.stored()))),
    }
}

/// Returns the key of the counter that a lock's fence comes from.
pub(super) fn counter(claim: &Claim, fences: Source, topology: Topology) -> Word<'_> {
    match fences {
        Source::Marks { .. } => mark(&claim.key, topology),
        Source::Tokens => text(claim.key.token()),
    }
}

pub(super) fn marks<'a>() -> impl Iterator<Item = Word<'a>> {
    Key::marks().iter().map(text)
}

pub(super) fn field(claim: &Claim) -> Word<'_> {
    text(&*claim.field)
}

pub(super) fn fields(claims: &[Claim]) -> impl Iterator<Item = Word<'_>> {
    claims.iter().map(field)
}

/// Returns the number of permits of each claim, with its field behind it.
pub(super) fn counted_fields(claims: &[Claim]) -> impl Iterator<Item = Word<'_>> {
    claims
        .iter()
        .flat_map(|claim| [number(claim.permits), field(claim)])
}

pub(super) fn millis<'a>(duration: Duration) -> Word<'a> {
    Word::Number(duration.as_millis().cast_signed())
}

pub(super) fn number<'a>(number: impl Into<i128>) -> Word<'a> {
    Word::Number(number.into())
}

impl Spell for Word<'_> {
    fn spell(&self, text: &mut String) {
        // Writing into a string does not fail.
        let _: Result<_, _> = match self {
            Self::Text(word) => text.write_str(word),
            Self::Number(number) => write!(text, "{number}"),
            Self::List(key) => write!(text, "{}", key.as_waiting()),
            Self::Releaser(Releaser {
                locker,
                enlists,
                listens,
                offers,
                lifetime,
            }) => {
                let [enlists, listens] = [enlists, listens].map(|flag| u8::from(*flag));
                let offers = offers.map_or(0, |turn| turn.as_millis());
                write!(
                    text,
                    "{locker} {enlists} {listens} {offers} {}",
                    lifetime.as_millis()
                )
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spelled_out() {
        let words = WordList::new([number(0_u64), number(u64::MAX)], [number(7_u64)]);
        assert_eq!(
            words.keys().collect::<Vec<_>>(),
            ["0", "18446744073709551615"]
        );
        assert_eq!(words.args().collect::<Vec<_>>(), ["7"]);
    }
}
