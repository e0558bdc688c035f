//! Turns a command into its script, keys and arguments.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::iter::once;
use std::sync::Arc;
use std::time::Duration;

use crate::command::{Announced, Claim, Command, Listing, Opening, Releaser, Wakes};
use crate::fence::Source;
use crate::key::{Key, MEMORY};
use crate::kind::{Format, Scripts};
use crate::label;
pub(super) use crate::lua::Topology;
use crate::lua::{Lua, Script};
use crate::node::{Batched, Spell, WordList, mark_of, slot_of};

static LABEL: Script = Script::shared("label");
static LABEL_OF: Script = Script::shared("label_of");
static INSPECT: Script = Script::shared("inspect");
static HOLDERS: Script = Script::shared("holders");
static TYPES: Script = Script::shared("types");
static FORCE: Script = Script::shared("force");
static VET: Script = Script::shared("vet");
static ASK: Script = Script::shared("ask");
static OPEN: Script = Script::shared("open");
static PASS: Script = Script::shared("pass");

/// A key or an argument.
enum Word<'a> {
    Text(Cow<'a, str>),
    Number(i128),
    /// The list of this lock.
    List(&'a Key),
    Releaser(&'a Releaser),
}

/// A script and the words it is called with.
pub(super) struct Words {
    pub(super) lua: &'static Lua,
    /// The script that runs it together with others, if it is a step.
    pub(super) batched: Option<Batched>,
    /// What the server has to remember: the last of the keys and of the arguments.
    pub(super) vote: Option<Arc<str>>,
    pub(super) words: WordList,
}

impl Words {
    pub(super) fn of(command: &Command, topology: Topology) -> Self {
        let scripts = |claim: &Claim| &claim.kind.scripts;
        let mark = |key| mark(key, topology);
        match command {
            Command::Acquire { claims, lease, fences, vote, listing } => {
                let keys = claims.iter().flat_map(|claim| [name(&claim.key), counter(claim, *fences, topology)]);
                let args = once(millis(*lease)).chain(fields(claims)).chain(once(number(fences.clock())));
                let scripts = scripts_of(claims);
                match (&**claims, listing) {
                    ([claim], Some(listing)) => {
                        let args = args.chain(listed(claim, listing));
                        Self::voting(&scripts.enlist, topology, vote, keys, args)
                            .shared(batched(scripts, topology, "enlist"))
                    }
                    ([_], None) => Self::voting(&scripts.acquire, topology, vote, keys, args)
                        .shared(batched(scripts, topology, "acquire")),
                    _ => Self::voting(&scripts.acquire_all, topology, vote, keys, args),
                }
            }
            Command::Count { claim, count } => {
                Self::new(scripts(claim).count.on(topology), [name(&claim.key)], [field(claim), number(*count)])
            }
            Command::Release { claim, wakes } => {
                let keys = [name(&claim.key), channel(&claim.key)];
                let (list, releaser) = match wakes {
                    Wakes::All => (NOTHING, &None),
                    Wakes::Next(releaser) => (Word::List(&claim.key), releaser),
                };
                let args = [field(claim), list, releaser.as_ref().map_or(NOTHING, Word::Releaser)];
                Self::new(scripts(claim).release.on(topology), keys, args).shared(batched(
                    scripts(claim),
                    topology,
                    "release",
                ))
            }
            Command::Pass { key, locker } => {
                let args = [(&**locker).into(), Word::List(key), NOTHING];
                Self::new(PASS.on(Topology::OneServer), [name(key), channel(key)], args)
            }
            Command::Keep { claim, rest } => {
                Self::new(scripts(claim).keep.on(topology), [name(&claim.key)], [millis(*rest), field(claim)])
            }
            Command::HandOver { from, to, lease, fences } => {
                let keys = [name(&to.key), counter(to, *fences, topology)];
                let args = [millis(*lease), field(to), number(fences.clock()), field(from)];
                Self::new(scripts(to).hand_over.on(topology), keys, args).shared(batched(
                    scripts(to),
                    topology,
                    "hand_over",
                ))
            }
            Command::Retake { claim, lease, count, vote } => {
                let args = [millis(*lease), field(claim), number(*count)];
                Self::voting(&scripts(claim).retake, topology, vote, [name(&claim.key)], args)
            }
            Command::Extend { claim, lease } => {
                Self::new(scripts(claim).extend.on(topology), [name(&claim.key)], [millis(*lease), field(claim)])
            }
            Command::Raise { claim, fence } => {
                let keys = [name(&claim.key), mark(&claim.key)];
                Self::new(scripts(claim).raise.on(topology), keys, [field(claim), number(fence.get())])
            }
            Command::Renew { claims, lease } => {
                let (keys, args) =
                    (claims.iter().map(|claim| name(&claim.key)), once(millis(*lease)).chain(fields(claims)));
                Self::new(scripts_of(claims).renew.on(topology), keys, args)
            }
            Command::Label { locker, label } => {
                let text = label.as_deref().unwrap_or_default();
                Self::new(LABEL.on(Topology::OneServer), [label_of(locker)], [text.into(), millis(label::LIFETIME)])
            }
            Command::LabelOf(locker) => Self::new(LABEL_OF.on(Topology::OneServer), [label_of(locker)], []),
            Command::Inspect(key) => Self::new(INSPECT.on(Topology::OneServer), [name(key)], []),
            Command::Holders(key) => Self::new(HOLDERS.on(Topology::OneServer), [name(key)], []),
            Command::Force { key, holders } => {
                let args = holders.iter().map(|holder| holder.as_str().into());
                Self::new(FORCE.on(topology), [name(key), channel(key)], args)
            }
            Command::Vet(None) => Self::new(VET.on(Topology::OneServer), [], ["", "0", "", "0"].map(Word::from)),
            Command::Vet(Some(Announced { id, lease, servers, rank })) => {
                let [servers, rank] = [*servers, *rank].map(|count| number(count as u64));
                Self::new(VET.on(Topology::OneServer), [MEMORY.into()], [(&**id).into(), millis(*lease), servers, rank])
            }
            Command::Ask { about, vote } => Self::voting(&ASK, topology, vote, marks(), [(&**about).into()]),
            Command::Open(opening) => Self::opening(opening),
        }
    }

    fn opening(Opening { from, to, waited, lease, marks: told, with, servers, named }: &Opening) -> Self {
        // A server that stands alone is told nothing, and its user may have no right to marks (tokens).
        let raised = marks().filter(|_| !told.is_empty());
        let args = [(&**from).into(), (&**to).into(), millis(*waited), millis(*lease), told.as_str().into()];
        let args = args.into_iter().chain([with.as_str().into(), number(*servers as u64), number(*named as u64)]);
        Self::new(OPEN.on(Topology::OneServer), once(MEMORY.into()).chain(raised), args)
    }

    /// Asks for the types of these keys.
    pub(super) fn types(keys: &[Subject]) -> Self {
        Self::new(TYPES.on(Topology::OneServer), keys.iter().map(|key| key.name.as_str().into()), [])
    }

    /// Returns the locks of a command, and the counters of their fences if it counts one.
    pub(super) fn keys_of(command: &Command, topology: Topology) -> Vec<Subject> {
        let (claims, fences) = match command {
            Command::Acquire { claims, fences, .. } => (&claims[..], Some(*fences)),
            Command::HandOver { to, fences, .. } => (std::slice::from_ref(to), Some(*fences)),
            Command::Count { claim, .. }
            | Command::Release { claim, .. }
            | Command::Keep { claim, .. }
            | Command::Retake { claim, .. }
            | Command::Extend { claim, .. } => (std::slice::from_ref(claim), None),
            _ => (&[][..], None),
        };
        let lock =
            |claim: &Claim| Subject { name: claim.key.stored().into_owned(), kind: claim.kind.key_type, counts: false };
        let counter = |claim: &Claim, fences| {
            let mut name = String::new();
            counter(claim, fences, topology).spell(&mut name);
            Subject { name, kind: "string", counts: true }
        };
        claims.iter().flat_map(|claim| once(lock(claim)).chain(fences.map(|fences| counter(claim, fences)))).collect()
    }

    fn new<'a>(
        lua: &'static Lua,
        keys: impl IntoIterator<Item = Word<'a>>,
        args: impl IntoIterator<Item = Word<'a>>,
    ) -> Self {
        Self { lua, batched: None, vote: None, words: WordList::new(keys, args) }
    }

    fn voting<'a>(
        script: &'static Script,
        topology: Topology,
        vote: &Option<Arc<str>>,
        keys: impl IntoIterator<Item = Word<'a>>,
        args: impl IntoIterator<Item = Word<'a>>,
    ) -> Self {
        Self { vote: vote.clone(), ..Self::new(script.for_vote(topology, vote), keys, args) }
    }

    fn shared(self, batched: Batched) -> Self {
        Self { batched: Some(batched), ..self }
    }
}

fn marks<'a>() -> impl Iterator<Item = Word<'a>> {
    Key::marks().iter().map(|mark| mark.as_str().into())
}

/// A key that a command uses.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) name: String,
    /// The type that it has, if it is there.
    pub(super) kind: &'static str,
    /// Whether fences are counted in it.
    pub(super) counts: bool,
}

impl Subject {
    pub(super) fn quoted(&self) -> String {
        format!("{:?}", self.name)
    }
}

fn batched(scripts: &'static Scripts, topology: Topology, name: &'static str) -> Batched {
    Batched { name, lua: scripts.batch.on(topology), voting: scripts.batch.voting_on(topology) }
}

/// Returns the key of the counter that a lock's fence comes from.
fn counter(claim: &Claim, fences: Source, topology: Topology) -> Word<'_> {
    match fences {
        Source::Marks { .. } => mark(&claim.key, topology),
        Source::Tokens => claim.counter(fences).into(),
    }
}

/// Returns the mark of a lock. A cluster has one for each slot, since a script may have keys of one slot only.
fn mark(key: &Key, topology: Topology) -> Word<'_> {
    match topology {
        Topology::OneServer => key.mark().into(),
        Topology::Cluster => mark_of(slot_of(&key.stored())).into(),
    }
}

/// Returns the scripts for claims of one kind. Without claims any script will do.
fn scripts_of(claims: &[Claim]) -> &'static Scripts {
    debug_assert!(claims.windows(2).all(|pair| pair[0].kind == pair[1].kind), "locks of several kinds");
    let kind = claims.first().map_or(Format::Redisson.kind(), |claim| claim.kind);
    &kind.scripts
}

/// Returns what an acquire says about the locker that goes into the list.
fn listed<'a>(claim: &'a Claim, listing: &'a Listing) -> [Word<'a>; 4] {
    let Listing { locker, looked, lifetime } = listing;
    let looked = if *looked { "1" } else { "" };
    [Word::List(&claim.key), (&**locker).into(), looked.into(), millis(*lifetime)]
}

fn label_of(locker: &str) -> Word<'_> {
    Word::Text(label::key_of(locker).into())
}

fn name(key: &Key) -> Word<'_> {
    key.stored().into()
}

fn channel(key: &Key) -> Word<'_> {
    (&**key.channel()).into()
}

fn field(claim: &Claim) -> Word<'_> {
    (&*claim.field).into()
}

fn fields(claims: &[Claim]) -> impl Iterator<Item = Word<'_>> {
    claims.iter().map(field)
}

fn millis<'a>(duration: Duration) -> Word<'a> {
    Word::Number(duration.as_millis().cast_signed())
}

fn number<'a>(number: impl Into<i128>) -> Word<'a> {
    Word::Number(number.into())
}

const NOTHING: Word<'static> = Word::Text(Cow::Borrowed(""));

impl<'a> From<&'a str> for Word<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Word<'_> {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl<'a> From<Cow<'a, str>> for Word<'a> {
    fn from(text: Cow<'a, str>) -> Self {
        Self::Text(text)
    }
}

impl Spell for Word<'_> {
    fn spell(&self, text: &mut String) {
        // Writing into a string does not fail.
        let _: Result<_, _> = match self {
            Self::Text(word) => text.write_str(word),
            Self::Number(number) => write!(text, "{number}"),
            Self::List(key) => write!(text, "{}", key.as_waiting()),
            Self::Releaser(Releaser { locker, enlists, listens, offers, lifetime }) => {
                let [enlists, listens] = [enlists, listens].map(|flag| u8::from(*flag));
                let offers = offers.map_or(0, |turn| turn.as_millis());
                write!(text, "{locker} {enlists} {listens} {offers} {}", lifetime.as_millis())
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
        assert_eq!(words.keys().collect::<Vec<_>>(), ["0", "18446744073709551615"]);
        assert_eq!(words.args().collect::<Vec<_>>(), ["7"]);
    }
}
