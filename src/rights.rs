//! The rights that the user of a server needs: each command that a locker sends or lets a script
//! call, with each kind of key and channel. A kind of lock has a list of its own. The guide has the
//! same rights; a test compares the two.

use crate::key::{Key, MEMORY, WAKE};
use crate::kind::{CommandsOfKind, FAIR as FAIR_KIND, PERMITS as PERMIT_KIND, READ};
use crate::label;
use crate::options::{FenceSource, Settings};

/// A command that a locker uses, with a key or channel, and the ACL rules that permit it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Right {
    /// The ACL rule for the command: `+pexpire`, `+pubsub|numsub`.
    pub rule: String,
    /// The ACL rule for its key or channel, if it has one: `~orders:42`, `~lockhound_fence:*`.
    pub names: Option<String>,
    /// Whether that key or channel belongs to one of the locks.
    pub is_of_lock: bool,
    /// The words of the command, as an example of it.
    ///
    /// Sent as they are, they may write.
    pub words: Vec<String>,
    /// How the locker uses it.
    pub usage: CommandUsage,
    /// What does not work without it; empty if it is only a convenience.
    pub needed_for: &'static [Need],
}

/// How a locker uses a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CommandUsage {
    /// It sends the command, whose example writes nothing.
    Sent,
    /// Its scripts call the command.
    Called,
    /// It subscribes or unsubscribes with it.
    Subscribed,
}

/// What a right is needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Need {
    /// Locks are taken, renewed and released, and latches are set and counted down.
    Locking,
    /// A server that comes back takes part again.
    FaultTolerance,
    /// A lock has one holder at a time.
    Exclusion,
    /// Waiters are woken by messages.
    Wakeups,
    /// Locks, leaders and latches can be inspected.
    ///
    /// [`Lock::holder`](crate::Lock::holder), [`Lock::is_locked`](crate::Lock::is_locked) and
    /// [`Lock::force_unlock`](crate::Lock::force_unlock) work, and leaders of an
    /// [`Election`](crate::Election) have values that observers see. The count of a latch is read.
    Inspection,
}

/// Commands that a locker uses in one way and for one reason. In their words LOCK, CHANNEL and
/// others stand for a name: see [`name`].
struct Row(CommandUsage, &'static [Need], &'static [&'static str]);

const NOTHING: &[Need] = &[];
const LOCKING: &[Need] = &[Need::Locking];
const LOCKS: &[Need] = &[Need::Locking, Need::Inspection];
const TOLERANCE: &[Need] = &[Need::FaultTolerance];
const EXCLUSION: &[Need] = &[Need::Exclusion];
const WAKEUPS: &[Need] = &[Need::Wakeups];
const INSPECTION: &[Need] = &[Need::Inspection];

use CommandUsage::{Called, Sent, Subscribed};

/// What connections send by themselves.
const CONNECTION: &[Row] = &[
    Row(Sent, LOCKING, &["HELLO"]),
    Row(Sent, WAKEUPS, &["PING"]),
    Row(Sent, LOCKS, &["EVAL return 0"]),
    Row(
        Sent,
        NOTHING,
        &["CLIENT SETNAME lockhound:visitor", "CLIENT ID"],
    ),
];

const REPLICAS: &[Row] = &[Row(Sent, LOCKING, &["WAIT 0 1"])];

/// Without CLUSTER INFO, the locker may trust a master for longer that was replaced while it was
/// stopped.
const CLUSTER: &[Row] = &[
    Row(Sent, LOCKING, &["CLUSTER SLOTS", "ASKING"]),
    Row(Sent, EXCLUSION, &["CLUSTER INFO"]),
];

/// The marks, unless each lock has a counter of its own.
const MARKS: &[Row] = &[
    Row(Sent, LOCKING, &["EVALSHA NO-SCRIPT 1 MARK"]),
    Row(Called, LOCKING, &["INCR MARK", "SET MARK 0", "TIME"]),
];

const MARKS_OF_SEVERAL: &[Row] = &[Row(Called, LOCKING, &["SET MARK 0 GET", "GET MARK"])];

const REMEMBERED_MARKS: &[Row] = &[Row(Called, LOCKING, &["MGET MARK"])];

const TOKENS: &[Row] = &[
    Row(Sent, LOCKING, &["EVALSHA NO-SCRIPT 1 TOKEN"]),
    Row(Called, LOCKING, &["INCR TOKEN"]),
];

/// A lock of any kind. A semaphore is none.
const ANY: &[Row] = &[
    Row(
        Sent,
        LOCKS,
        &[
            "EVALSHA NO-SCRIPT 1 LOCK",
            "EVALSHA NO-SCRIPT 1 CHANNEL-KEY",
        ],
    ),
    Row(Called, LOCKS, &["DEL LOCK", "PTTL LOCK"]),
    Row(Called, LOCKING, &["PEXPIRE LOCK 1", "SET LOCK 0 PX 1"]),
    Row(Called, INSPECTION, &["TYPE LOCK"]),
];

/// The list of the lockers that wait for a lock.
const LIST: &[Row] = &[
    Row(
        Called,
        NOTHING,
        &[
            "ZADD LIST 1 m",
            "ZCARD LIST",
            "ZRANGE LIST 0 1",
            "ZRANK LIST m",
            "ZREM LIST m",
        ],
    ),
    Row(Called, NOTHING, &["PUBSUB NUMSUB"]),
];

const MESSAGES: &[Row] = &[
    Row(Called, WAKEUPS, &["PUBLISH CHANNEL 0"]),
    Row(
        Subscribed,
        WAKEUPS,
        &["SUBSCRIBE CHANNEL", "UNSUBSCRIBE CHANNEL"],
    ),
];

const SHARDED_MESSAGES: &[Row] = &[
    Row(Called, WAKEUPS, &["SPUBLISH CHANNEL 0"]),
    Row(
        Subscribed,
        WAKEUPS,
        &["SSUBSCRIBE CHANNEL", "SUNSUBSCRIBE CHANNEL"],
    ),
];

/// What wakes this locker alone.
const WAKE_UPS: &[Row] = &[
    Row(Called, NOTHING, &["PUBLISH WAKE 0"]),
    Row(Subscribed, NOTHING, &["SUBSCRIBE WAKE", "UNSUBSCRIBE WAKE"]),
];

const LABEL: &[Row] = &[Row(Sent, NOTHING, &["EVALSHA NO-SCRIPT 1 LABEL"])];

const MEMORIES: &[Row] = &[
    Row(Sent, LOCKING, &["EVALSHA NO-SCRIPT 1 MEMORY"]),
    Row(
        Called,
        LOCKING,
        &[
            "HEXISTS MEMORY id",
            "HMGET MEMORY id",
            "DEL MEMORY",
            "HSET MEMORY id 0",
            "TIME",
        ],
    ),
];

/// What a read-write lock has beside its key: the timeouts of its readers, and the hints of those
/// that wait.
const READ_WRITE: &[Row] = &[
    Row(Sent, LOCKING, &["EVALSHA NO-SCRIPT 1 TIMEOUT"]),
    Row(
        Called,
        LOCKING,
        &[
            "SET TIMEOUT 1 PX 1",
            "DEL TIMEOUT",
            "PTTL TIMEOUT",
            "PEXPIRE TIMEOUT 1",
        ],
    ),
    Row(
        Called,
        NOTHING,
        &[
            "GET WRITER",
            "SET WRITER l PX 1",
            "PTTL WRITER",
            "DEL WRITER",
            "GET READER",
            "SET READER 20 PX 1",
            "PTTL READER",
        ],
    ),
];

/// What a semaphore has beside its counter: the records of who has permits.
const PERMITS: &[Row] = &[
    Row(
        Sent,
        LOCKS,
        &["EVALSHA NO-SCRIPT 1 LOCK", "EVALSHA NO-SCRIPT 1 RECORDS"],
    ),
    Row(
        Called,
        LOCKS,
        &[
            "ZCARD RECORDS",
            "ZCOUNT RECORDS -inf 0",
            "ZRANGE RECORDS 0 0 WITHSCORES",
            "TIME",
        ],
    ),
    Row(
        Called,
        LOCKING,
        &[
            "ZMSCORE RECORDS m",
            "ZADD RECORDS 1 m",
            "ZREM RECORDS m",
            "ZREMRANGEBYSCORE RECORDS -inf 0",
            "PTTL LOCK",
            "PTTL RECORDS",
            "PEXPIRE RECORDS 1",
            "PERSIST RECORDS",
        ],
    ),
];

/// What a fair lock has beside its key: the queue, and the times of its tickets.
const FAIR: &[Row] = &[
    Row(
        Sent,
        LOCKING,
        &["EVALSHA NO-SCRIPT 1 QUEUE", "EVALSHA NO-SCRIPT 1 TIMEOUTS"],
    ),
    Row(
        Called,
        LOCKING,
        &[
            "LRANGE QUEUE 0 -1",
            "LINDEX QUEUE 0",
            "RPUSH QUEUE t",
            "LPOP QUEUE",
            "LREM QUEUE 1 t",
            "ZSCORE TIMEOUTS t",
            "ZADD TIMEOUTS 1 t",
            "ZREM TIMEOUTS t",
            "TIME",
        ],
    ),
];

/// What an election has beside its lock: the value of its leader, and the messages that tell
/// observers of it.
const ELECTION: &[Row] = &[
    Row(
        Sent,
        INSPECTION,
        &[
            "EVALSHA NO-SCRIPT 1 LEADER",
            "EVALSHA NO-SCRIPT 1 LEADER-CHANNEL-KEY",
        ],
    ),
    Row(
        Called,
        INSPECTION,
        &[
            "HMGET LEADER field",
            "HSET LEADER field f",
            "PEXPIRE LEADER 1",
        ],
    ),
    Row(Called, NOTHING, &["PUBLISH LEADER-CHANNEL 1"]),
    Row(
        Subscribed,
        NOTHING,
        &["SUBSCRIBE LEADER-CHANNEL", "UNSUBSCRIBE LEADER-CHANNEL"],
    ),
];

/// What a latch is. It is no lock.
const LATCH: &[Row] = &[
    Row(
        Sent,
        LOCKS,
        &["EVALSHA NO-SCRIPT 1 LOCK", "EVALSHA NO-SCRIPT 1 COUNTED"],
    ),
    Row(Called, LOCKS, &["GET LOCK"]),
    Row(
        Called,
        LOCKING,
        &[
            "SET LOCK 1",
            "DECR LOCK",
            "DEL LOCK",
            "ZADD COUNTED NX 1 m",
            "ZMSCORE COUNTED m",
            "ZREMRANGEBYSCORE COUNTED -inf 0",
            "PTTL COUNTED",
            "PEXPIRE COUNTED 1",
            "TIME",
        ],
    ),
];

const SHARDED_ELECTION: &[Row] = &[
    Row(Called, NOTHING, &["SPUBLISH LEADER-CHANNEL 1"]),
    Row(
        Subscribed,
        NOTHING,
        &["SSUBSCRIBE LEADER-CHANNEL", "SUNSUBSCRIBE LEADER-CHANNEL"],
    ),
];

/// Returns the rights that a locker with these settings needs on each of its servers, for these
/// locks.
pub(crate) fn rights(
    settings: &Settings,
    nodes: usize,
    in_cluster: bool,
    locks: &[Key],
) -> Vec<Right> {
    let remembers = !settings.restart_quarantine.is_zero();
    let tokens = settings.fence_source == FenceSource::RedissonTokens;
    let has_lists = nodes == 1 && !in_cluster;
    let info: &[Row] = match () {
        () if remembers => &[Row(Sent, LOCKING, &["INFO server"])],
        () if nodes > 1 => &[Row(Sent, EXCLUSION, &["INFO server"])],
        () => &[Row(Sent, NOTHING, &["INFO server"])],
    };
    let of_locker = [
        (true, CONNECTION),
        (settings.replica_acks.is_some(), REPLICAS),
        (true, info),
        (in_cluster, CLUSTER),
        (!tokens, MARKS),
        (!tokens && nodes > 1, MARKS_OF_SEVERAL),
        (!tokens && remembers, REMEMBERED_MARKS),
    ];
    let shared = [
        (has_lists, WAKE_UPS),
        (settings.kind.labelled, LABEL),
        (remembers, MEMORIES),
    ];
    let any = Key::from("any");
    let add = |used: &[(bool, &[Row])], key: &Key| {
        let rows = used
            .iter()
            .filter(|(is_used, _)| *is_used)
            .flat_map(|(_, rows)| *rows);
        rows.flat_map(|row| row.rights(key)).collect::<Vec<_>>()
    };
    let mut rights = add(&of_locker, &any);
    for key in locks {
        if key.is_latch() {
            let key = key.to_latch_messages(in_cluster);
            let of_latch = [
                (true, LATCH),
                (in_cluster, SHARDED_MESSAGES),
                (true, MESSAGES),
            ];
            rights.extend(add(&of_latch, &key));
            continue;
        }
        let (has_readers, has_permits) = (key.has_readers(), key.has_permits());
        // Readers call what writers call, and both kinds of semaphores the same.
        let is_fair = key.is_fair();
        let kind = match (has_readers, has_permits, is_fair) {
            (true, ..) => &READ,
            (_, true, _) => &PERMIT_KIND,
            (.., true) => &FAIR_KIND,
            _ => settings.kind,
        };
        let CommandsOfKind {
            to_lock,
            to_inspect,
            to_do_both,
            to_retake,
        } = kind.calls;
        let of_kind = [
            Row(Called, LOCKS, to_do_both),
            Row(Called, INSPECTION, to_inspect),
            Row(Called, LOCKING, to_lock),
        ];
        let of_kind_of_several = [Row(Called, TOLERANCE, to_retake)];
        let is_election = key.is_election();
        let of_lock: [(bool, &[Row]); 12] = [
            (tokens && !has_permits, TOKENS),
            (!has_permits, ANY),
            (has_permits, PERMITS),
            (true, &of_kind),
            (nodes > 1, &of_kind_of_several),
            (has_lists && kind.hands_over(), LIST),
            (has_readers, READ_WRITE),
            (is_fair, FAIR),
            (in_cluster, SHARDED_MESSAGES),
            (true, MESSAGES),
            (is_election && in_cluster, SHARDED_ELECTION),
            (is_election, ELECTION),
        ];
        rights.extend(add(&of_lock, key));
    }
    rights.extend(add(&shared, &any));
    rights
}

impl Row {
    /// Returns the rights that it stands for, for this lock.
    fn rights(&self, key: &Key) -> impl Iterator<Item = Right> {
        let Self(usage, needed_for, commands) = *self;
        commands
            .iter()
            .map(move |command| right(usage, needed_for, command, key))
    }
}

fn right(usage: CommandUsage, needed_for: &'static [Need], command: &str, key: &Key) -> Right {
    let mut names = None;
    let mut is_of_lock = false;
    let mut word = |word: &str| {
        let Some((name, rule)) = name(word, key) else {
            return word.replace("NO-SCRIPT", NO_SCRIPT);
        };
        is_of_lock = rule.is_none();
        let sign = if word.ends_with("CHANNEL") { '&' } else { '~' };
        // Each reader has one of its own.
        let end = if word == "TIMEOUT" { "*" } else { "" };
        let shown = name.strip_suffix(READER_OF_TIMEOUT).unwrap_or(&name);
        names = Some(rule.map_or_else(|| format!("{sign}{}{end}", pattern(shown)), str::to_owned));
        name
    };
    let words: Vec<String> = command.split(' ').map(&mut word).collect();
    let parts = if ["CLIENT", "CLUSTER", "PUBSUB"].contains(&&*words[0]) {
        2
    } else {
        1
    };
    let rule = format!("+{}", words[..parts].join("|").to_lowercase());
    Right {
        rule,
        names,
        is_of_lock,
        words,
        usage,
        needed_for,
    }
}

/// Returns the key or channel that a word stands for, and the rule for it unless it is a name of
/// the lock.
fn name(word: &str, key: &Key) -> Option<(String, Option<&'static str>)> {
    Some(match word {
        "LOCK" => (key.stored().into_owned(), None),
        "CHANNEL" | "CHANNEL-KEY" => (key.channel().to_string(), None),
        "TOKEN" => (key.token(), None),
        "LIST" => (key.waiting(), None),
        "TIMEOUT" => (key.reader_timeout("f"), None),
        "WRITER" => (key.writer_hint(), None),
        "READER" => (key.reader_hint(), None),
        "LEADER" => (key.leader_value(), None),
        "LEADER-CHANNEL" | "LEADER-CHANNEL-KEY" => (key.to_leader().channel().to_string(), None),
        "COUNTED" => (key.latch_calls(), None),
        "RECORDS" => (key.permit_records(), None),
        "QUEUE" => (key.queue(), None),
        "TIMEOUTS" => (key.queue_timeouts(), None),
        "MARK" => (key.mark().to_owned(), Some("~lockhound_fence:*")),
        "WAKE" => (format!("{WAKE}any"), Some("&lockhound_wake:*")),
        "LABEL" => (label::key_of("any"), Some("~lockhound_label:*")),
        "MEMORY" => (MEMORY.to_owned(), Some("~lockhound_vote")),
        _ => return None,
    })
}

/// The end of the timeout of a reader with the field "f".
const READER_OF_TIMEOUT: &str = "f:rwlock_timeout:1";

/// A digest that no script has.
const NO_SCRIPT: &str = "0000000000000000000000000000000000000000";

/// Returns the pattern that matches only this name.
fn pattern(name: &str) -> String {
    let mut pattern = String::with_capacity(name.len());
    for c in name.chars() {
        if "*?[]\\".contains(c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;
    use crate::key::{
        ELECTION as ELECTION_FAMILY, FAIR as FAIR_FAMILY, Family, LATCH as LATCH_FAMILY,
        PERMITS as PERMITS_FAMILY, READ_WRITE as READ_WRITE_FAMILY, SEMAPHORE,
    };
    use crate::kind::Format;
    use crate::options::{Options, Replicas};

    fn rights_of(
        servers: usize,
        in_cluster: bool,
        change: impl FnOnce(&mut Options),
    ) -> Vec<Right> {
        let mut options = Options::default();
        change(&mut options);
        rights(
            &options.validate(servers).expect("valid"),
            servers,
            in_cluster,
            &["app:42".into()],
        )
    }

    /// Returns the rules that are needed, or those that are only a convenience.
    fn rules(rights: &[Right], is_needed: bool) -> BTreeSet<String> {
        let rights = rights
            .iter()
            .filter(|right| right.needed_for.is_empty() != is_needed);
        rights
            .flat_map(|right| right.names.iter().cloned().chain([right.rule.clone()]))
            .collect()
    }

    fn needed(servers: usize, change: impl FnOnce(&mut Options)) -> BTreeSet<String> {
        rules(&rights_of(servers, false, change), true)
    }

    /// Returns the rules of the nth ACL SETUSER in the guide, its comments left out, for the name
    /// `app:42`.
    fn documented(nth: usize) -> BTreeSet<String> {
        let text = include_str!("../docs/guide/operating.md");
        let block = text
            .split("```")
            .filter(|block| block.contains("ACL SETUSER app"))
            .nth(nth)
            .expect("a block");
        let lines = block
            .lines()
            .map(|line| line.split('#').next().unwrap_or_default());
        let words: Vec<String> = lines
            .flat_map(str::split_whitespace)
            .map(|word| word.trim_matches('\'').to_owned())
            .collect();
        let words = words
            .into_iter()
            .filter(|word| word.starts_with(['+', '~', '&']));
        words
            .map(|word| {
                word.replace("{app:*", "{app:42}")
                    .replace("~app:*", "~app:42")
            })
            .collect()
    }

    #[test]
    fn the_rights_that_are_checked_are_the_documented_ones() {
        assert_eq!(needed(1, |_| {}), documented(0));
        let optional = [
            "+info",
            "+client|setname",
            "+client|id",
            "~lockhound_label:*",
        ]
        .map(str::to_owned);
        // The lists of waiting lockers, and labels: a publish to any channel, and a script, are
        // among the first.
        let lists: BTreeSet<String> = documented(1);
        let shared = ["+subscribe", "+unsubscribe", "+publish", "+evalsha"].map(str::to_owned);
        let all: BTreeSet<String> = lists
            .iter()
            .cloned()
            .chain(optional.clone())
            .chain(shared)
            .collect();
        assert_eq!(rules(&rights_of(1, false, |_| {}), false), all);
        // Those after the fourth depend on options.
        let mut left_out = documented(6);
        assert!(
            left_out.remove("+select"),
            "a connection to a database has it already"
        );
        for of_preflight in ["+config|get", "+acl|whoami", "+acl|dryrun"] {
            assert!(
                left_out.remove(of_preflight),
                "it reports what it may not ask for as unknown"
            );
        }
        assert_eq!(left_out, BTreeSet::from(optional));
        let both: BTreeSet<String> = documented(0).union(&documented(2)).cloned().collect();
        assert_eq!(needed(3, |_| {}), both);
        let of_cluster = rights_of(1, true, |_| {});
        let both: BTreeSet<String> = documented(0).union(&documented(3)).cloned().collect();
        assert_eq!(rules(&of_cluster, true), both);
    }

    /// Asserts that the rights of these locks are those of the nth list of the guide and of the
    /// lists for all kinds, and returns them. The pattern of the guide is that of all names, so it
    /// does not have this end of a name.
    fn assert_documented(families: &[&'static Family], nth: usize, end: &str) -> Vec<Right> {
        let settings = Options::default().validate(1).expect("valid");
        let keys: Vec<_> = families
            .iter()
            .map(|family| Key::new("app:42", family))
            .collect();
        let used = rights(&settings, 1, false, &keys);
        let all = [true, false]
            .into_iter()
            .flat_map(|is_needed| rules(&used, is_needed));
        let all: BTreeSet<String> = all
            .map(|rule| rule.replace(&format!("~{{app:42}}{end}"), "~{app:42}"))
            .collect();
        let missing: Vec<_> = documented(nth).difference(&all).cloned().collect();
        assert_eq!(
            missing,
            Vec::<String>::new(),
            "the guide lists what is not used"
        );
        let known: BTreeSet<String> = [0, 1, 6, nth].into_iter().flat_map(documented).collect();
        let unknown: Vec<_> = all.difference(&known).cloned().collect();
        assert_eq!(
            unknown,
            Vec::<String>::new(),
            "the guide leaves out what is used"
        );
        used
    }

    /// Each kind has rights of its own, and some that all need.
    #[test]
    fn the_rights_of_read_write_locks_are_the_documented_ones() {
        let used = assert_documented(&[&READ_WRITE_FAMILY], 7, ":*");
        let needed = rules(&used, true);
        assert!(
            needed.contains("~{app:42}:*") && !needed.contains("~lockhound_writer:{app:42}"),
            "{needed:?}"
        );
    }

    #[test]
    fn the_rights_of_semaphores_are_the_documented_ones() {
        assert_documented(&[&PERMITS_FAMILY, &SEMAPHORE], 8, ":timeout");
    }

    #[test]
    fn the_rights_of_elections_are_the_documented_ones() {
        assert_documented(&[&ELECTION_FAMILY], 9, "");
    }

    #[test]
    fn the_rights_of_latches_are_the_documented_ones() {
        assert_documented(&[&LATCH_FAMILY], 10, "");
    }

    #[test]
    fn the_rights_of_fair_locks_are_the_documented_ones() {
        assert_documented(&[&FAIR_FAMILY], 11, "");
    }

    #[test]
    fn options_add_and_remove_rights() {
        let replicas = Replicas {
            count: 1,
            timeout: Duration::from_millis(100),
        };
        assert!(needed(1, |o| o.replica_acks = replicas).contains("+wait"));
        let at_once = needed(3, |o| o.restart_quarantine = Some(Duration::ZERO));
        assert!(
            at_once.contains("+exists") && at_once.contains("+info"),
            "{at_once:?}"
        );
        assert!(
            !at_once.contains("~lockhound_vote") && !at_once.contains("+hmget"),
            "{at_once:?}"
        );
        let tokens = needed(1, |o| o.fence_source = FenceSource::RedissonTokens);
        assert!(
            tokens.contains("~redisson_lock_token:{app:42}") && tokens.contains("+incr"),
            "{tokens:?}"
        );
        assert!(!tokens.contains("~lockhound_fence:*"), "{tokens:?}");
        let plain = needed(1, |o| o.kind = Format::Plain.kind());
        assert!(
            !plain
                .iter()
                .any(|rule| rule.starts_with("+h") && rule != "+hello")
                && plain.contains("+get"),
            "{plain:?}"
        );
    }

    #[test]
    fn the_pattern_of_a_name_matches_no_other_name() {
        assert_eq!(pattern("orders:{42}"), "orders:{42}");
        assert_eq!(pattern("a*b?[c]\\"), "a\\*b\\?\\[c\\]\\\\");
    }
}
