//! The name of a lock, and the names that Redisson derives from it.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};
use std::ptr;
use std::sync::{Arc, LazyLock};

use crate::shown::Shown;

/// What the names of a lock on the server begin with. Locks of two families have nothing in common,
/// even if they have one name.
#[derive(Debug)]
pub(crate) struct Family {
    /// The prefix of the key.
    pub(crate) key: &'static str,
    /// The prefix of the channel of its unlock messages.
    pub(crate) channel: &'static str,
    /// Whether the name is in braces there, even if it has braces of its own.
    pub(crate) braces: bool,
}

/// The locks whose key is their name, and whose messages are those of Redisson's `getLock`.
pub(crate) static LOCK: Family = Family {
    key: "",
    channel: "redisson_lock__channel:",
    braces: false,
};

/// Redisson's read-write locks. Both roles of a name share its key and its channel.
pub(crate) static READ_WRITE: Family = Family {
    key: "",
    channel: "redisson_rwlock:",
    braces: false,
};

/// Redisson's semaphores whose permits have leases, and those without. They share channels.
pub(crate) static PERMITS: Family = Family {
    key: "",
    channel: PERMIT_MESSAGES,
    braces: false,
};
pub(crate) static SEMAPHORE: Family = Family {
    key: "",
    channel: PERMIT_MESSAGES,
    braces: false,
};

const PERMIT_MESSAGES: &str = "redisson_sc:";

/// Redisson's fair locks. They are stored as those of `LOCK`, and have a queue beside it. Its
/// messages are on the channel of the lock, and on one for each ticket of a JVM.
pub(crate) static FAIR: Family = Family {
    key: "",
    channel: LOCK.channel,
    braces: false,
};

/// The locks of elections, as their observers know them: on the server the same as those of `LOCK`.
/// No line has such a key, so the messages that arrive for one are for observers.
pub(crate) static ELECTION: Family = Family {
    key: "",
    channel: LOCK.channel,
    braces: false,
};

/// The values of leaders, whose messages notify observers of a new one.
static LEADER: Family = Family {
    key: "",
    channel: "lockhound_leader:",
    braces: false,
};

/// Redisson's latches. No line has such a key.
pub(crate) static LATCH: Family = Family {
    key: "",
    channel: "redisson_countdownlatch__channel__",
    braces: true,
};

/// The ids of the calls of latches. In a cluster, a latch whose name has braces has its messages
/// here: Redisson's channel would be in another slot.
static LATCH_CALLS: Family = Family {
    key: "",
    channel: "lockhound_counted:",
    braces: false,
};

/// The key of a server's memory.
pub(crate) const MEMORY: &str = "lockhound_vote";

/// The prefix of the channel on which a locker is woken; the locker's id follows.
pub(crate) const WAKE: &str = "lockhound_wake:";

/// The prefix of Redisson's counters of fencing tokens.
const TOKEN: &str = "redisson_lock_token:";

/// The prefix of the waiting lists.
const WAITING: &str = "lockhound_waiting:";

/// The prefixes of the hints that a writer or a reader waits.
const WRITER: &str = "lockhound_writer:";
const READER: &str = "lockhound_reader:";

/// The prefix of the records of who has permits of a semaphore without leases.
const RECORDS: &str = "lockhound_permits:";

/// The prefixes of a fair lock's queue, and of the set that has the times of its tickets.
const QUEUE: &str = "redisson_lock_queue:";
const TIMEOUTS: &str = "redisson_lock_timeout:";

/// The number of marks, which all locks share.
const MARKS: usize = 1_024;

/// The name of a lock, and the key under which the lock is on the server.
///
/// UTF-8 and not empty.
///
/// Programs that use the same name on the same server share the lock. No prefix is added, unless
/// the locker has one ([`LockerBuilder::prefix`](crate::LockerBuilder::prefix)); a key that comes
/// from a lock has it already.
#[derive(Clone)]
pub struct Key {
    /// Contains the name. Each lock and each release needs both, so neither is made from the other
    /// again.
    channel: Arc<str>,
    /// A name that comes from a user is of no family yet: its locker chooses one.
    family: &'static Family,
    /// Whether the channel has braces that the name does not have.
    braced: bool,
    /// Whether a locker has made it the whole name, with its prefix.
    whole: bool,
    /// The hash of the name, since tables look for a key several times for each lock. Names may
    /// come from strangers, so it depends on a random number of this process.
    hash: u64,
}

impl Key {
    pub(crate) fn new(name: &str, family: &'static Family) -> Self {
        static RANDOM: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let channel = if family.braces {
            [family.channel, "{", name, "}"].concat()
        } else {
            prefixed(family.channel, name)
        };
        Self {
            channel: channel.into(),
            family,
            braced: is_braced(name),
            whole: false,
            hash: RANDOM.hash_one(name),
        }
    }

    /// Returns the whole name, of a lock of this family: with this prefix, unless it has one
    /// already. An empty name stays empty.
    pub(crate) fn under(self, prefix: &str, family: &'static Family) -> Self {
        let prefix = if self.whole || self.as_str().is_empty() {
            ""
        } else {
            prefix
        };
        if prefix.is_empty() && ptr::eq(self.family, family) {
            return Self {
                whole: true,
                ..self
            };
        }
        Self {
            whole: true,
            ..Self::new(&[prefix, self.as_str()].concat(), family)
        }
    }

    /// Does the same, but a key that comes from a lock stays of that lock's family.
    pub(crate) fn kept_or_under(self, prefix: &str, family: &'static Family) -> Self {
        if self.whole {
            self
        } else {
            self.under(prefix, family)
        }
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        let braces = usize::from(self.braced || self.family.braces);
        &self.channel[self.family.channel.len() + braces..self.channel.len() - braces]
    }

    /// Returns the key under which the lock is on the server.
    pub(crate) fn stored(&self) -> Cow<'_, str> {
        match self.family.key {
            "" => self.as_str().into(),
            prefix => [prefix, self.as_str()].concat().into(),
        }
    }

    /// Returns the lock of this family that is stored under a key.
    pub(crate) fn of_stored(key: &str, family: &'static Family) -> Option<Self> {
        key.strip_prefix(family.key)
            .map(|name| Self::new(name, family))
    }

    /// Returns whether it is the lock of an election.
    pub(crate) fn is_election(&self) -> bool {
        ptr::eq(self.family, &ELECTION)
    }

    /// Returns whether it is for observers, and is no lock of a line.
    pub(crate) fn is_observed(&self) -> bool {
        let families = [&ELECTION, &LEADER, &LATCH, &LATCH_CALLS];
        families.iter().any(|family| ptr::eq(self.family, *family))
    }

    /// Returns the lock of an election as its candidates know it.
    pub(crate) fn to_lock(&self) -> Self {
        self.clone().under("", &LOCK)
    }

    /// Returns the key whose channel announces the values of its leaders.
    pub(crate) fn to_leader(&self) -> Self {
        self.clone().under("", &LEADER)
    }

    /// Returns the key of its leader's value.
    pub(crate) fn leader_value(&self) -> String {
        self.beside(LEADER.channel).to_string()
    }

    /// Returns whether it is a latch.
    pub(crate) fn is_latch(&self) -> bool {
        ptr::eq(self.family, &LATCH)
    }

    /// Returns the key of the ids of the calls of this latch.
    pub(crate) fn latch_calls(&self) -> String {
        self.beside(LATCH_CALLS.channel).to_string()
    }

    /// Returns the key whose channel announces that this latch opens.
    pub(crate) fn to_latch_messages(&self, in_cluster: bool) -> Self {
        let is_elsewhere = in_cluster && !self.braced;
        let family = if is_elsewhere { &LATCH_CALLS } else { &LATCH };
        self.clone().under("", family)
    }

    /// Returns whether it is a lock with readers and writers.
    pub(crate) fn has_readers(&self) -> bool {
        ptr::eq(self.family, &READ_WRITE)
    }

    /// Returns whether it is a fair lock.
    pub(crate) fn is_fair(&self) -> bool {
        ptr::eq(self.family, &FAIR)
    }

    /// Returns the key of the queue of a fair lock.
    pub(crate) fn queue(&self) -> String {
        prefixed(QUEUE, self.as_str())
    }

    /// Returns the key of the set that has, for each ticket, until when it is in the queue.
    pub(crate) fn queue_timeouts(&self) -> String {
        prefixed(TIMEOUTS, self.as_str())
    }

    /// Returns the channel on which a client of Redisson tells the one that has this ticket.
    pub(crate) fn ticket_channel(&self, ticket: &str) -> Arc<str> {
        format!("{}:{ticket}", self.channel).into()
    }

    /// Returns whether it is a semaphore, of either kind.
    pub(crate) fn has_permits(&self) -> bool {
        ptr::eq(self.family, &PERMITS) || self.is_semaphore()
    }

    /// Returns whether it is a semaphore whose permits have no leases on the JVM.
    pub(crate) fn is_semaphore(&self) -> bool {
        ptr::eq(self.family, &SEMAPHORE)
    }

    /// Returns the name as logs show it, so that a name cannot forge a line.
    pub(crate) fn shown(&self) -> Shown<'_> {
        Shown(self.as_str())
    }

    /// Returns the channel on which its release is announced. `x` and `{x}` share a channel.
    pub(crate) fn channel(&self) -> &Arc<str> {
        &self.channel
    }

    /// Returns the one or two locks of a family whose releases are announced on a channel.
    pub(crate) fn of_channel(channel: &str, family: &'static Family) -> impl Iterator<Item = Self> {
        let name = channel.strip_prefix(family.channel);
        let bare = name.and_then(|name| name.strip_prefix('{')?.strip_suffix('}'));
        let bare = bare.filter(|bare| !bare.is_empty() && !bare.contains('{'));
        bare.into_iter()
            .chain(name)
            .map(move |name| Self::new(name, family))
    }

    /// Returns the key of Redisson's counter of its fencing tokens.
    pub(crate) fn token(&self) -> String {
        prefixed(TOKEN, self.as_str())
    }

    /// Returns the key of its mark, which holds the last fence of all locks that share it. The
    /// lowest ten bits of the name's 64-bit FNV-1a choose the mark; this can never change, since
    /// the marks are on the servers. The number is in braces, so that in a cluster a slot can be
    /// chosen.
    pub(crate) fn mark(&self) -> &'static str {
        let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = self
            .as_str()
            .as_bytes()
            .iter()
            .fold(0xcbf2_9ce4_8422_2325, fnv);
        &Self::marks()[hash as usize % MARKS]
    }

    /// Returns the keys of all marks, which never change.
    pub(crate) fn marks() -> &'static [String; MARKS] {
        static ALL: LazyLock<[String; MARKS]> =
            LazyLock::new(|| std::array::from_fn(|n| format!("lockhound_fence:{{{n}}}")));
        &ALL
    }

    /// Returns the key of its waiting list, which is in the lock's slot. Unlike the channel, which
    /// `x` and `{x}` share, each lock has a list of its own.
    pub(crate) fn waiting(&self) -> String {
        self.as_waiting().to_string()
    }

    /// As [`waiting`](Self::waiting), to be written somewhere.
    pub(crate) fn as_waiting(&self) -> impl fmt::Display {
        self.beside(WAITING)
    }

    /// Returns the key of the hint that a writer waits for this lock.
    pub(crate) fn writer_hint(&self) -> String {
        self.beside(WRITER).to_string()
    }

    /// Returns the key of the hint that a reader waits for this lock, or that it is the readers'
    /// turn.
    pub(crate) fn reader_hint(&self) -> String {
        self.beside(READER).to_string()
    }

    /// Returns the key that is there for as long as a reader with this field has the lock:
    /// Redisson's readers tell by it who is alive.
    pub(crate) fn reader_timeout(&self, field: &str) -> String {
        self.suffixed(format_args!("{field}:rwlock_timeout:1"))
    }

    /// Returns the key of the records of who has permits, and until when. Redisson has none for a
    /// semaphore without leases.
    pub(crate) fn permit_records(&self) -> String {
        if self.is_semaphore() {
            self.beside(RECORDS).to_string()
        } else {
            self.suffixed(format_args!("timeout"))
        }
    }

    /// Redisson's `suffixName`.
    fn suffixed(&self, suffix: fmt::Arguments<'_>) -> String {
        let [before, after] = if self.braced { ["{", "}"] } else { ["", ""] };
        format!("{before}{self}{after}:{suffix}")
    }

    /// Returns a key of this crate that belongs to this lock, in the lock's slot.
    fn beside(&self, prefix: &'static str) -> Beside<'_> {
        Beside { prefix, key: self }
    }
}

/// A key that belongs to a lock, as it is written.
struct Beside<'a> {
    prefix: &'static str,
    key: &'a Key,
}

impl fmt::Display for Beside<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prefix, key } = self;
        let [before, after] = if key.braced { ["{", "}"] } else { ["=", ""] };
        write!(f, "{prefix}{before}{}{key}{after}", key.family.key)
    }
}

/// The hasher of tables of keys: it returns the hash that a key has.
#[derive(Debug, Default)]
pub(crate) struct KeyHasher(u64);

pub(crate) type OfKeys = BuildHasherDefault<KeyHasher>;

impl Hasher for KeyHasher {
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a key is a number to its hasher");
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Redisson's `prefixName`: braces are added unless the name has an opening one anywhere, so that
/// in a cluster both names fall into the same slot.
fn prefixed(prefix: &str, name: &str) -> String {
    if is_braced(name) {
        [prefix, "{", name, "}"].concat()
    } else {
        [prefix, name].concat()
    }
}

fn is_braced(name: &str) -> bool {
    !name.contains('{')
}

// Two names with the same channel differ in `braced`, so comparing these is comparing the names.
impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
            && self.braced == other.braced
            && ptr::eq(self.family, other.family)
            && self.channel == other.channel
    }
}

impl Eq for Key {}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        // Families may share both: their keys are not equal all the same.
        let stored = |key: &Self| {
            let family = ptr::from_ref(key.family).addr();
            (key.family.channel, key.family.key, family)
        };
        self.as_str()
            .cmp(other.as_str())
            .then_with(|| stored(self).cmp(&stored(other)))
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl From<&str> for Key {
    fn from(name: &str) -> Self {
        Self::new(name, &LOCK)
    }
}

impl From<String> for Key {
    fn from(name: String) -> Self {
        Self::new(&name, &LOCK)
    }
}

impl From<&String> for Key {
    fn from(name: &String) -> Self {
        Self::new(name, &LOCK)
    }
}

impl From<Arc<str>> for Key {
    fn from(name: Arc<str>) -> Self {
        Self::new(&name, &LOCK)
    }
}

impl From<&Self> for Key {
    fn from(key: &Self) -> Self {
        key.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::hash_map::DefaultHasher as Sip;

    use super::*;

    #[test]
    fn derived_names_follow_redisson() {
        assert_eq!(
            Key::from("orders:42").channel().as_ref(),
            "redisson_lock__channel:{orders:42}"
        );
        assert_eq!(
            Key::from("a{b}c").channel().as_ref(),
            "redisson_lock__channel:a{b}c"
        );
        assert_eq!(
            Key::from("a{b").channel().as_ref(),
            "redisson_lock__channel:a{b"
        );
        assert_eq!(
            Key::from("orders:42").token(),
            "redisson_lock_token:{orders:42}"
        );
        assert_eq!(Key::from("a{b}c").token(), "redisson_lock_token:a{b}c");
    }

    #[test]
    fn every_lock_has_a_list_of_its_own() {
        let names = [
            "x",
            "{x}",
            "={x}",
            "a{b}c",
            "a}b",
            "{a}b}",
            "lockhound_waiting:{x}",
            "lockhound_waiting:={x}",
            "=x",
        ];
        let lists: std::collections::HashSet<_> =
            names.map(|name| Key::from(name).waiting()).into();
        assert_eq!(lists.len(), names.len(), "{lists:?}");
        assert_eq!(
            Key::from("orders:42").waiting(),
            "lockhound_waiting:{orders:42}"
        );
    }

    #[test]
    fn latches_have_braces_whatever_their_names_have() {
        for (name, channel, calls) in [
            ("x", "{x}", "lockhound_counted:{x}"),
            ("{x}", "{{x}}", "lockhound_counted:={x}"),
            ("a{b}c", "{a{b}c}", "lockhound_counted:=a{b}c"),
        ] {
            let key = Key::new(name, &LATCH);
            assert_eq!(key.as_str(), name);
            let whole = format!("redisson_countdownlatch__channel__{channel}");
            assert_eq!(**key.channel(), *whole);
            assert_eq!(key.to_latch_messages(false), key);
            assert_eq!(key.to_latch_messages(true) == key, name == "x");
            assert_eq!(key.latch_calls(), calls);
        }
    }

    /// A version that chose other marks would begin other sequences.
    #[test]
    fn the_mark_of_a_name_never_changes() {
        for (name, mark) in [("orders:42", 592), ("x", 775), ("{x}", 801), ("ü", 1002)] {
            assert_eq!(
                Key::from(name).mark(),
                format!("lockhound_fence:{{{mark}}}"),
                "{name}"
            );
        }
        let marks: std::collections::HashSet<_> = (0..10_000)
            .map(|n| Key::from(format!("orders:{n}")).mark())
            .collect();
        assert!(
            marks.len() > 1_000 && marks.len() <= 1_024,
            "{}",
            marks.len()
        );
    }

    #[test]
    fn keys_compare_as_their_names() {
        let names = [
            "x", "{x}", "{{x}}", "x}", "{x", "", "{}", "}", "{", "y", "{y}", "ü", "{ü}", "a{b}c",
        ];
        let hash = |key: &Key| {
            std::hash::BuildHasher::hash_one(&std::hash::BuildHasherDefault::<Sip>::default(), key)
        };
        for (one, other) in names
            .iter()
            .flat_map(|one| names.map(|other| (*one, other)))
        {
            let keys = [Key::from(one), Key::from(other)];
            assert_eq!(keys.each_ref().map(Key::as_str), [one, other]);
            assert_eq!(keys[0] == keys[1], one == other, "{one} and {other}");
            assert_eq!(keys[0].cmp(&keys[1]), one.cmp(other), "{one} and {other}");
            assert_eq!(
                hash(&keys[0]) == hash(&keys[1]),
                one == other,
                "{one} and {other}"
            );
        }
    }

    #[test]
    fn keys_of_families_that_share_their_names_are_not_equal() {
        for [one, other] in [[&PERMITS, &SEMAPHORE], [&LOCK, &ELECTION], [&LOCK, &FAIR]] {
            let [one, other] = [Key::new("x", one), Key::new("x", other)];
            assert_ne!(one, other);
            assert_ne!(one.cmp(&other), Ordering::Equal);
        }
    }

    #[test]
    fn every_lock_of_a_channel_is_found() {
        let of = |channel: &str| {
            Key::of_channel(channel, &LOCK)
                .map(|key| key.to_string())
                .collect::<Vec<_>>()
        };
        for name in [
            "x",
            "{x}",
            "a}b",
            "{a}b}",
            "a{b}c",
            "{a}b",
            "{{a}}",
            "a{b",
            "{}",
            "}",
            "{",
            "orders:42",
        ] {
            let key = Key::from(name);
            assert!(of(key.channel()).contains(&name.to_owned()), "{name}");
            assert!(
                Key::of_channel(key.channel(), &LOCK).all(|other| other.channel() == key.channel()),
                "{name}"
            );
        }
        assert_eq!(of(Key::from("x").channel()), ["x", "{x}"]);
        assert_eq!(of(Key::from("{{x}}").channel()), ["{{x}}"]);
        assert_eq!(of("news:{x}"), Vec::<String>::new());
    }
}
