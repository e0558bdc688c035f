//! Random sequences of commands, of writes of other clients, and of the passing of time. Names, fields and numbers are
//! few, so that they meet, and numbers lie on both sides of each bound.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use crate::command::{Announced, Claim, Command, Kind, Listing, MEMORY, Opening, Releaser, WAKE, Wakes, sha1};
use crate::fence::{Fence, Source};
use crate::key::Key;
use crate::label::key_of;
use crate::options::Fencing;

/// The time at the beginning of each sequence, in microseconds: in the middle of a millisecond.
pub(super) const BEGINNING: u64 = 1_800_000_000_123_456;

const SECOND: i64 = 1_000_000;
/// How far a mark counts before a client's clock is compared with the server's, in microseconds.
const ROUND: i64 = 20 * SECOND;
const DAY: i64 = 86_400 * SECOND;

/// One step of a sequence.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Run(Command),
    /// Several commands as one script: acquires, releases and hand-overs of one lock each, with one vote.
    Batched(Vec<Command>),
    /// Another client writes this, with this lifetime.
    Put {
        key: String,
        value: Foreign,
        lifetime_ms: Option<u64>,
    },
    Delete(String),
    /// This many microseconds pass.
    Wait(u64),
}

/// A value that another client writes.
#[derive(Debug, Clone)]
pub(super) enum Foreign {
    Text(String),
    Hash(Vec<(String, String)>),
    List,
}

/// Three locks. Two of them share a channel, and two share a mark.
pub(super) static KEYS: LazyLock<[Key; 3]> = LazyLock::new(|| {
    let first = Key::from("a");
    let mut others = (0..).map(|n| Key::from(format!("b{n}")));
    let second = others.find(|other| other.mark() == first.mark()).expect("there are 1,024 marks");
    [first, Key::from("{a}"), second]
});

/// Fields of owners of this crate: one owner in two generations, and another owner.
const FIELDS: [&str; 3] = [
    "5cb1f0b5-0000-4000-8000-000000000000:1:1",
    "5cb1f0b5-0000-4000-8000-000000000000:1:2",
    "6ed2a1c6-0000-4000-8000-000000000000:h3:1",
];

/// Lockers that wait. The first two are subscribed, and the others are gone.
pub(super) const LOCKERS: [&str; 4] = ["l1", "l2", "l3", "l4"];

/// The channels that are subscribed: that of the first lock, which two locks share, and those of the first two lockers.
pub(super) fn heard() -> [String; 3] {
    [KEYS[0].channel().to_string(), format!("{WAKE}{}", LOCKERS[0]), format!("{WAKE}{}", LOCKERS[1])]
}

/// Fields and values of others: of Redisson, of a client of the plain format, and of nobody.
const FOREIGN: [&str; 5] =
    ["5cb1f0b5-0000-4000-8000-000000000000:1", "mode", "somebody", "", "5cb1f0b5+0000-4000-8000-000000000000:1"];

pub(super) fn sequence() -> impl Strategy<Value = Vec<Step>> {
    prop_oneof![vec(step(Kind::Redisson), 1..20), vec(step(Kind::Plain), 1..20)]
}

fn step(mostly: Kind) -> impl Strategy<Value = Step> {
    let kind = prop_oneof![7 => Just(mostly), 1 => select(vec![Kind::Redisson, Kind::Plain])];
    let batched = (any::<bool>(), vote(), vec(shareable(), 2..5));
    prop_oneof![
        24 => (kind, command()).prop_map(|(kind, command)| Step::Run(of_kind(command, kind))),
        2 => batched.prop_map(move |(votes, vote, commands)| {
            let vote = if votes { &vote } else { &None };
            Step::Batched(commands.into_iter().map(|one| with_vote(of_kind(one, mostly), vote)).collect())
        }),
        5 => (name(), foreign(), lifetime())
            .prop_map(|(key, value, lifetime_ms)| Step::Put { key, value, lifetime_ms }),
        1 => memory().prop_map(|value| Step::Put { key: MEMORY.to_owned(), value, lifetime_ms: None }),
        1 => any_name().prop_map(Step::Delete),
        7 => wait().prop_map(Step::Wait),
    ]
}

fn command() -> impl Strategy<Value = Command> {
    let claims = || vec(claim(), 1..4).prop_map(Arc::<[Claim]>::from);
    prop_oneof![
        60 => shareable(),
        20 => (claims(), lease(), fences(), vote()).prop_map(|(claims, lease, fences, vote)| {
            Command::Acquire { claims, lease, fences, vote, listing: None }
        }),
        20 => (key(), locker()).prop_map(|(key, locker)| Command::Pass { key, locker }),
        30 => (claim(), 1..4_u32).prop_map(|(claim, count)| Command::Count { claim, count }),
        30 => (claim(), lease(), 1..4_u32, vote())
            .prop_map(|(claim, lease, count, vote)| Command::Retake { claim, lease, count, vote }),
        30 => (claim(), lease()).prop_map(|(claim, lease)| Command::Extend { claim, lease }),
        20 => (claim(), lease()).prop_map(|(claim, rest)| Command::Keep { claim, rest }),
        30 => (claim(), far_off()).prop_map(|(claim, fence)| Command::Raise { claim, fence }),
        30 => (claims(), lease()).prop_map(|(claims, lease)| Command::Renew { claims, lease }),
        10 => (locker(), option::weighted(0.7, select(vec!["web-1:4711", "ü"])))
            .prop_map(|(locker, label)| Command::Label { locker, label: label.map(Arc::from) }),
        10 => locker().prop_map(Command::LabelOf),
        15 => key().prop_map(Command::Inspect),
        15 => key().prop_map(Command::Holders),
        15 => (key(), vec(holder(), 0..4)).prop_map(|(key, holders)| Command::Force { key, holders: holders.into() }),
        20 => option::weighted(0.9, announced()).prop_map(Command::Vet),
        // A thousand keys each.
        3 => opening().prop_map(Command::Open),
        2 => (id(), id()).prop_map(|(about, vote)| Command::Ask { about, vote: Some(vote) }),
    ]
}

/// Commands that may share a script with others.
fn shareable() -> impl Strategy<Value = Command> {
    prop_oneof![
        2 => (claim(), lease(), fences(), vote()).prop_map(|(claim, lease, fences, vote)| {
            Command::Acquire { claims: Arc::new([claim]), lease, fences, vote, listing: None }
        }),
        5 => (claim(), lease(), fences(), rarely_a_vote(), locker(), any::<bool>()).prop_map(
            |(claim, lease, fences, vote, locker, looked)| {
                let listing = Some(Listing { locker, looked, lifetime: lease * 3 });
                Command::Acquire { claims: Arc::new([claim]), lease, fences, vote, listing }
            },
        ),
        2 => (claim(), wakes()).prop_map(|(claim, wakes)| Command::Release { claim, wakes }),
        1 => (claim(), select(&FIELDS[..]), lease(), fences()).prop_map(|(from, field, lease, fences)| {
            let to = Claim { field: field.into(), ..from.clone() };
            Command::HandOver { from, to, lease, fences }
        }),
    ]
}

fn locker() -> impl Strategy<Value = Arc<str>> {
    prop_oneof![3 => select(&LOCKERS[..2]), 1 => select(&LOCKERS[2..])].prop_map(Arc::from)
}

/// Most servers here do not have the memory for it.
fn rarely_a_vote() -> impl Strategy<Value = Option<Arc<str>>> {
    prop_oneof![4 => Just(None), 1 => vote()]
}

fn wakes() -> impl Strategy<Value = Wakes> {
    let lifetime = select(vec![1_000, 90_000]).prop_map(Duration::from_millis);
    let flags = (any::<bool>(), any::<bool>(), option::of(Just(Duration::from_millis(10))));
    let releaser = (locker(), flags, lifetime).prop_map(|(locker, (enlists, listens, offers), lifetime)| Releaser {
        locker,
        enlists,
        listens,
        offers,
        lifetime,
    });
    prop_oneof![1 => Just(Wakes::All), 5 => option::weighted(0.8, releaser).prop_map(Wakes::Next)]
}

fn with_vote(command: Command, vote: &Option<Arc<str>>) -> Command {
    match command {
        Command::Acquire { claims, lease, fences, listing, .. } => {
            Command::Acquire { claims, lease, fences, vote: vote.clone(), listing }
        }
        command => command,
    }
}

/// Returns the same command for locks of this kind.
fn of_kind(mut command: Command, kind: Kind) -> Command {
    match &mut command {
        Command::Acquire { claims, .. } | Command::Renew { claims, .. } => {
            *claims = claims.iter().map(|claim| Claim { kind, ..claim.clone() }).collect();
        }
        Command::Count { claim, .. }
        | Command::Release { claim, .. }
        | Command::Keep { claim, .. }
        | Command::Retake { claim, .. }
        | Command::Extend { claim, .. }
        | Command::Raise { claim, .. } => claim.kind = kind,
        Command::HandOver { from, to, .. } => (from.kind, to.kind) = (kind, kind),
        _ => {}
    }
    command
}

fn key() -> impl Strategy<Value = Key> {
    prop_oneof![3 => Just(0), 1 => Just(1), 2 => Just(2)].prop_map(|at: usize| KEYS[at].clone())
}

fn claim() -> impl Strategy<Value = Claim> {
    // One owner most of the time: commands of another owner find nothing that this one holds.
    let field = prop_oneof![6 => Just(FIELDS[0]), 2 => select(&FIELDS[1..]), 1 => select(&FOREIGN[..3])];
    (key(), field).prop_map(|(key, field)| Claim { kind: Kind::Redisson, key, field: field.into() })
}

fn lease() -> impl Strategy<Value = Duration> {
    select(vec![1, 10, 1_000, 30_000, 30_000]).prop_map(Duration::from_millis)
}

/// Times before, at and after the end of a lease; the bounds of clocks; and longer than a fence may be ahead.
fn wait() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => select(vec![1, 543, 544, 1_000]),
        4 => select(vec![9_000, 10_000, 11_000, 999_000, 1_000_000]),
        1 => select(vec![30_000_000, 31 * 86_400_000_000]),
    ]
}

/// Sources of clients whose clocks are near the server's.
fn fences() -> impl Strategy<Value = Source> {
    let off = [0, 1, SECOND / 5, 20 * SECOND - 1, 20 * SECOND, 20 * SECOND + 1, 60 * SECOND, 40 * DAY];
    let clocks = (select(off.to_vec()), any::<bool>(), select(vec![1, 3])).prop_map(|(off, behind, servers)| {
        let clock = BEGINNING.saturating_add_signed(if behind { -off } else { off });
        Source::new(Fencing::Lockhound, clock, servers)
    });
    prop_oneof![4 => clocks, 1 => Just(Source::Tokens)]
}

/// Numbers on both sides of what a server accepts as a fence.
fn numbers() -> impl Strategy<Value = i64> {
    let beginning = i64::try_from(BEGINNING).expect("a time");
    let latest = beginning / SECOND * SECOND + 30 * DAY;
    let last = beginning / ROUND * ROUND + ROUND - 1;
    let numbers = [1, 1_000, beginning - DAY, beginning, last, beginning + 19 * SECOND, latest - 1, latest, latest + 1];
    select(numbers.to_vec())
}

fn far_off() -> impl Strategy<Value = Fence> {
    numbers().prop_map(|number| Fence::read(number).expect("below 2^53"))
}

fn marks() -> impl Strategy<Value = String> {
    vec(numbers(), 0..3).prop_map(|marks| marks.iter().map(i64::to_string).collect::<Vec<_>>().join(" "))
}

fn id() -> impl Strategy<Value = Arc<str>> {
    select(vec!["m1", "m2", "m3"]).prop_map(Arc::from)
}

fn vote() -> impl Strategy<Value = Option<Arc<str>>> {
    prop_oneof![3 => Just(None), 1 => id().prop_map(Some)]
}

/// The longest lease of a locker, and how long a server has waited.
fn longest() -> impl Strategy<Value = Duration> {
    select(vec![0, 5, 10, 30_000]).prop_map(Duration::from_millis)
}

fn seats() -> impl Strategy<Value = usize> {
    prop_oneof![3 => Just(3), 1 => Just(5)]
}

fn announced() -> impl Strategy<Value = Announced> {
    let announced = (id(), longest(), seats(), select(vec![0, 3, 1_003]));
    announced.prop_map(|(id, lease, servers, rank)| Announced { id, lease, servers, rank })
}

fn opening() -> impl Strategy<Value = Opening> {
    let with = select(vec!["", "m1", "m2 m3"]).prop_map(str::to_owned);
    (id(), id(), longest(), longest(), marks(), with, (seats(), seats())).prop_map(
        |(from, to, waited, lease, marks, with, (servers, named))| Opening {
            from,
            to,
            waited,
            lease,
            marks,
            with,
            servers,
            named,
        },
    )
}

/// The name of a holder, as holders.lua returns it.
fn holder() -> impl Strategy<Value = String> {
    let anybody = FIELDS.into_iter().chain(FOREIGN);
    select(anybody.map(|field| sha1(field.as_bytes())).collect::<Vec<_>>())
}

/// A lock, a counter of its fences, its list, or the label of a locker.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![4 => key().prop_map(|key| key.to_string()), 1 => key().prop_map(|key| key.mark().to_owned()),
        1 => key().prop_map(|key| key.token()), 1 => key().prop_map(|key| key.waiting()),
        1 => locker().prop_map(|locker| key_of(&locker))]
}

fn any_name() -> impl Strategy<Value = String> {
    prop_oneof![8 => name(), 1 => Just(MEMORY.to_owned())]
}

fn lifetime() -> impl Strategy<Value = Option<u64>> {
    option::of(select(vec![1, 10, 30_000]))
}

fn foreign() -> impl Strategy<Value = Foreign> {
    let field = || select(FIELDS.into_iter().chain(FOREIGN).collect::<Vec<_>>()).prop_map(str::to_owned);
    let count = select(vec!["1", "2", "-1", "1.5", "read", "write", "x", ""]).prop_map(str::to_owned);
    let strange = select(vec!["-5", "007", "x", "", "9007199254740990", "9223372036854775807"]).prop_map(str::to_owned);
    prop_oneof![
        2 => field().prop_map(Foreign::Text),
        2 => numbers().prop_map(|number| Foreign::Text(number.to_string())),
        1 => strange.prop_map(Foreign::Text),
        4 => vec((field(), count), 1..4).prop_map(Foreign::Hash),
        1 => Just(Foreign::List),
    ]
}

/// A server's memory: its own, that of another run, or that of another replication. `%` stands for its run id, and `=`
/// for its second replication id.
fn memory() -> impl Strategy<Value = Foreign> {
    let server = select(vec!["%=", "%", "%x", "x", ""]).prop_map(|server| ("server".to_owned(), server.to_owned()));
    let field = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let whole = id().prop_map(move |id| vec![field("id", &id), field(&id, "")]);
    let torn = (option::of(id()), option::of(id())).prop_map(move |(id, other)| {
        id.map(|id| field("id", &id)).into_iter().chain(other.map(|other| field(&other, ""))).collect()
    });
    let id = prop_oneof![3 => whole, 1 => torn];
    let number = |name: &'static str, numbers: &[&'static str]| {
        select(numbers.to_vec()).prop_map(move |number| (name.to_owned(), number.to_owned()))
    };
    // The last of these times is in the future.
    let begun = number("begun", &["0", "0", "1", "1700000000000", "4000000000000"]);
    let with = select(vec!["m1", "m2 m3", ""]).prop_map(|with| ("with".to_owned(), with.to_owned()));
    let named = number("named", &["0", "1700000000000", "4000000000000"]);
    let seats = number("seats", &["3", "3", "5"]);
    let rest = (number("lease", &["0", "10", "30000"]), begun, seats, option::of(named), option::of(with));
    let hash = (option::of(server), id, rest).prop_map(|(server, id, (lease, begun, seats, named, with))| {
        let rest = named.into_iter().chain(server).chain(with).chain(id);
        Foreign::Hash([lease, begun, seats].into_iter().chain(rest).collect())
    });
    prop_oneof![8 => hash, 1 => Just(Foreign::List), 1 => Just(Foreign::Text("x".to_owned()))]
}
