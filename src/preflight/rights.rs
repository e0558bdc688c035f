//! The rights that the user of a server needs: each command that a locker sends or lets a script call, with each kind
//! of key and channel. The guide has the same list; a test compares the two.

use super::{Deployment, MissingRight, Promise, Rights, UnknownRight};
use crate::command::{MEMORY, WAKE};
use crate::key::Key;
use crate::label;
use crate::options::{Fencing, Format, Replicas, Settings};
use crate::random;

/// How to find out whether a command is permitted, if ACL DRYRUN is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// The command is sent as it is: it writes nothing.
    Directly,
    /// A read-only script calls it: the server checks the rights before it refuses the write.
    InScript,
    /// The command is sent, and a refusal comes as the answer to another command.
    Subscribing,
}

/// A command whose right is checked, with a key or channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Probe {
    pub(crate) name: &'static str,
    pub(crate) args: Vec<String>,
    pub(crate) way: Way,
    /// The rule for the command.
    rule: &'static str,
    /// The rule for its key or channel, or `None` if it has none, or has a made-up name whose refusal shows nothing.
    names: Option<String>,
    needed_for: &'static [Promise],
}

/// The outcome of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Tried {
    Permitted,
    /// Refused, with the server's error.
    Refused(String),
    /// Unknown, for this reason.
    Unknown(String),
}

/// The questions to a server.
#[derive(Debug, Clone)]
pub(crate) struct Questions {
    pub(crate) probes: Vec<Probe>,
    /// How many replicas have to acknowledge, and within what time.
    pub(crate) replicas: Option<Replicas>,
}

/// The placeholders for the names of locks and of their messages, if none is given.
const NAMES: &str = "~NAMES-OF-LOCKS";
const MESSAGES: &str = "&MESSAGES-OF-LOCKS";

const LOCKING: &[Promise] = &[Promise::Locking];
const LOCKS: &[Promise] = &[Promise::Locking, Promise::Inspection];
const WAKEUPS: &[Promise] = &[Promise::Wakeups];
const EXCLUSION: &[Promise] = &[Promise::Exclusion];
const INSPECTION: &[Promise] = &[Promise::Inspection];

impl Questions {
    /// Creates the questions to the servers of a locker with these settings. Without names of locks it makes one up.
    pub(crate) fn new(settings: &Settings, deployment: Deployment, names: &[Key]) -> Self {
        let mut asked = Asked { settings, deployment, probes: Vec::new() };
        asked.connections();
        asked.slots();
        asked.marks();
        if names.is_empty() {
            asked.lock(&format!("lockhound:preflight:{}", random::uuid()).into(), false);
        }
        names.iter().for_each(|name| asked.lock(name, true));
        asked.wake_ups();
        asked.label();
        asked.memory();
        Self { probes: asked.probes, replicas: settings.replicas }
    }

    /// Returns the rights on a server that has not answered.
    pub(crate) fn not_answered(&self) -> Rights {
        self.rights(&vec![Tried::Unknown("the server had no time to answer".to_owned()); self.probes.len()])
    }

    /// Returns the rights that the server's answers show.
    pub(crate) fn rights(&self, tried: &[Tried]) -> Rights {
        let mut rights = Rights::default();
        for (probe, tried) in self.probes.iter().zip(tried) {
            let is_command = |text: &str| text.contains("run the '") || text.contains("run this command");
            match (tried, &probe.names) {
                (Tried::Permitted, _) => {}
                (Tried::Refused(text), _) if is_command(text) => {
                    miss(&mut rights.missing, probe.rule, probe.needed_for);
                }
                (Tried::Refused(_), Some(names)) => miss(&mut rights.missing, names, probe.needed_for),
                (Tried::Refused(_), None) => {
                    let reason = "it has rights on some names only: give the name of a lock, preflight_of([\"NAME\"])";
                    let names = if probe.needed_for == WAKEUPS { MESSAGES } else { NAMES };
                    wonder(&mut rights.unknown, names, probe.needed_for, reason);
                }
                (Tried::Unknown(reason), _) => wonder(&mut rights.unknown, probe.rule, probe.needed_for, reason),
            }
        }
        // A right that is missing for one name is not unknown for another.
        rights.unknown.retain(|right| rights.missing.iter().all(|missing| missing.rule != right.rule));
        rights
    }
}

/// Adds a missing right, once for all promises that need it.
fn miss(missing: &mut Vec<MissingRight>, rule: &str, needed_for: &[Promise]) {
    match missing.iter_mut().find(|right| right.rule == rule) {
        Some(right) => add(&mut right.needed_for, needed_for),
        None => missing.push(MissingRight { rule: rule.to_owned(), needed_for: needed_for.to_vec() }),
    }
}

fn wonder(unknown: &mut Vec<UnknownRight>, rule: &str, needed_for: &[Promise], reason: &str) {
    match unknown.iter_mut().find(|right| right.rule == rule) {
        Some(right) => add(&mut right.needed_for, needed_for),
        None => {
            let (rule, needed_for, reason) = (rule.to_owned(), needed_for.to_vec(), reason.to_owned());
            unknown.push(UnknownRight { rule, needed_for, reason });
        }
    }
}

fn add(promises: &mut Vec<Promise>, more: &[Promise]) {
    promises.extend(more);
    promises.sort_unstable();
    promises.dedup();
}

/// Collects the probes.
struct Asked<'a> {
    settings: &'a Settings,
    deployment: Deployment,
    probes: Vec<Probe>,
}

impl Asked<'_> {
    fn is_plain(&self) -> bool {
        self.settings.format == Format::Plain
    }

    /// Returns whether waiting lockers are in lists.
    fn has_lists(&self) -> bool {
        matches!(self.deployment, Deployment::Independent(_))
    }

    fn remembers(&self) -> bool {
        !self.settings.restart_quarantine.is_zero()
    }

    fn add(
        &mut self,
        needed_for: &'static [Promise],
        way: Way,
        rule: &'static str,
        names: Option<&str>,
        words: &[&str],
        name: &'static str,
    ) {
        let args = words.iter().map(|&word| word.to_owned()).collect();
        let names = names.map(str::to_owned);
        self.probes.push(Probe { name, args, way, rule, names, needed_for });
    }

    /// Adds a command without a key.
    fn bare(&mut self, needed_for: &'static [Promise], rule: &'static str, name: &'static str, words: &[&str]) {
        self.add(needed_for, Way::Directly, rule, None, words, name);
    }

    /// Adds the right to give this key to scripts.
    fn key(&mut self, needed_for: &'static [Promise], key: &str, names: Option<&str>) {
        self.add(needed_for, Way::Directly, "+evalsha", names, &[NO_SCRIPT, "1", key], "EVALSHA");
    }

    /// Adds a command that a script calls with this key or channel.
    fn called(&mut self, needed_for: &'static [Promise], names: Option<&str>, words: &[&str], (rule, name): Command) {
        self.add(needed_for, Way::InScript, rule, names, words, name);
    }

    /// Adds what connections send by themselves.
    fn connections(&mut self) {
        self.bare(LOCKING, "+hello", "HELLO", &[]);
        self.bare(WAKEUPS, "+ping", "PING", &[]);
        self.bare(LOCKS, "+eval", "EVAL", &["return 1", "0"]);
        self.bare(&[], "+client|setname", "CLIENT", &["SETNAME", "lockhound:preflight"]);
        self.bare(&[], "+client|id", "CLIENT", &["ID"]);
        if self.settings.replicas.is_some() {
            self.bare(LOCKING, "+wait", "WAIT", &["0", "1"]);
        }
        let needed_for = match self.deployment {
            _ if self.remembers() => LOCKING,
            alone if alone.is_alone() => &[],
            _ => EXCLUSION,
        };
        self.bare(needed_for, "+info", "INFO", &["server"]);
    }

    /// Adds the questions to a cluster: which master has which slot, and since when. Without the second, the locker may
    /// trust a master for longer that was replaced while it was stopped.
    fn slots(&mut self) {
        if self.deployment == Deployment::Cluster {
            self.bare(LOCKING, "+cluster|slots", "CLUSTER", &["SLOTS"]);
            self.bare(EXCLUSION, "+cluster|info", "CLUSTER", &["INFO"]);
            self.bare(LOCKING, "+asking", "ASKING", &[]);
        }
    }

    /// Adds the marks, unless each lock has a counter of its own.
    fn marks(&mut self) {
        if self.settings.fencing == Fencing::Redisson {
            return;
        }
        let (mark, names) = (Key::from("preflight").mark(), Some("~lockhound_fence:*"));
        self.key(LOCKING, mark, names);
        self.called(LOCKING, names, &[mark], INCR);
        self.called(LOCKING, names, &[mark, "0"], SET);
        self.called(LOCKING, None, &[], TIME);
        if !self.deployment.is_alone() {
            self.called(LOCKING, names, &[mark, "0", "GET"], SET);
            self.called(LOCKING, names, &[mark], GET);
        }
        if self.remembers() {
            self.called(LOCKING, names, &[mark], MGET);
        }
    }

    /// Adds a lock, its channel and its messages. It is not known whether the user should be able to use a made-up
    /// name.
    fn lock(&mut self, key: &Key, is_known: bool) {
        let (lock, channel) = (key.as_str(), key.channel());
        let rule = |sign: char, name: &str| is_known.then(|| format!("{sign}{}", pattern(name)));
        let (lock_rule, channel_rule, message_rule) = (rule('~', lock), rule('~', channel), rule('&', channel));
        let (lock_rule, message_rule) = (lock_rule.as_deref(), message_rule.as_deref());
        if self.settings.fencing == Fencing::Redisson {
            let token = key.token();
            let token_rule = rule('~', &token);
            self.key(LOCKING, &token, token_rule.as_deref());
            self.called(LOCKING, token_rule.as_deref(), &[&token], INCR);
        }
        self.key(LOCKS, lock, lock_rule);
        self.key(LOCKS, channel, channel_rule.as_deref());
        self.called(LOCKS, lock_rule, &[lock], DEL);
        self.called(LOCKS, lock_rule, &[lock], PTTL);
        self.called(LOCKING, lock_rule, &[lock, "1"], PEXPIRE);
        self.called(LOCKING, lock_rule, &[lock, "0", "PX", "1"], SET);
        self.called(INSPECTION, lock_rule, &[lock], TYPE);
        if self.is_plain() {
            self.called(LOCKS, lock_rule, &[lock], GET);
        } else {
            self.called(INSPECTION, lock_rule, &[lock], GET);
            self.called(INSPECTION, lock_rule, &[lock], HGETALL);
            self.called(LOCKING, lock_rule, &[lock, "f"], HEXISTS);
            self.called(LOCKING, lock_rule, &[lock, "f", "1"], HSET);
            self.called(LOCKING, lock_rule, &[lock, "f", "1"], HSETNX);
            if !self.deployment.is_alone() {
                self.called(&[Promise::FaultTolerance], lock_rule, &[lock], EXISTS);
            }
        }
        if self.has_lists() {
            let list = key.waiting();
            let list_rule = rule('~', &list);
            let list_rule = list_rule.as_deref();
            self.called(&[], list_rule, &[&list, "1", "m"], ZADD);
            self.called(&[], list_rule, &[&list], ZCARD);
            self.called(&[], list_rule, &[&list, "0", "1"], ZRANGE);
            self.called(&[], list_rule, &[&list, "m"], ZRANK);
            self.called(&[], list_rule, &[&list, "m"], ZREM);
            self.called(&[], None, &["NUMSUB", channel], PUBSUB);
        }
        self.called(WAKEUPS, message_rule, &[channel, "0"], PUBLISH);
        let mut commands = vec![("+subscribe", "SUBSCRIBE"), ("+unsubscribe", "UNSUBSCRIBE")];
        if self.deployment == Deployment::Cluster {
            self.called(WAKEUPS, message_rule, &[channel, "0"], SPUBLISH);
            commands = [vec![("+ssubscribe", "SSUBSCRIBE"), ("+sunsubscribe", "SUNSUBSCRIBE")], commands].concat();
        }
        for (rule, name) in commands {
            self.add(WAKEUPS, Way::Subscribing, rule, message_rule, &[channel], name);
        }
    }

    /// Adds the wake-ups of this locker by its name.
    fn wake_ups(&mut self) {
        if !self.has_lists() {
            return;
        }
        let (channel, names) = (format!("{WAKE}preflight"), Some("&lockhound_wake:*"));
        self.called(&[], names, &[&channel, ""], PUBLISH);
        for (rule, name) in [("+subscribe", "SUBSCRIBE"), ("+unsubscribe", "UNSUBSCRIBE")] {
            self.add(&[], Way::Subscribing, rule, names, &[&channel], name);
        }
    }

    fn label(&mut self) {
        if !self.is_plain() {
            self.key(&[], &label::key_of("preflight"), Some("~lockhound_label:*"));
        }
    }

    fn memory(&mut self) {
        if !self.remembers() {
            return;
        }
        let names = Some("~lockhound_memory");
        self.key(LOCKING, MEMORY, names);
        self.called(LOCKING, names, &[MEMORY, "digest"], HEXISTS);
        self.called(LOCKING, names, &[MEMORY, "vote"], HMGET);
        self.called(LOCKING, names, &[MEMORY], DEL);
        self.called(LOCKING, names, &[MEMORY, "vote", ""], HSET);
    }
}

/// A digest that no script has.
const NO_SCRIPT: &str = "0000000000000000000000000000000000000000";

/// A command that scripts call: its rule, and its name.
type Command = (&'static str, &'static str);

const DEL: Command = ("+del", "DEL");
const EXISTS: Command = ("+exists", "EXISTS");
const GET: Command = ("+get", "GET");
const HEXISTS: Command = ("+hexists", "HEXISTS");
const HGETALL: Command = ("+hgetall", "HGETALL");
const HMGET: Command = ("+hmget", "HMGET");
const HSET: Command = ("+hset", "HSET");
const HSETNX: Command = ("+hsetnx", "HSETNX");
const INCR: Command = ("+incr", "INCR");
const MGET: Command = ("+mget", "MGET");
const PEXPIRE: Command = ("+pexpire", "PEXPIRE");
const PTTL: Command = ("+pttl", "PTTL");
const PUBLISH: Command = ("+publish", "PUBLISH");
const SPUBLISH: Command = ("+spublish", "SPUBLISH");
const SET: Command = ("+set", "SET");
const TIME: Command = ("+time", "TIME");
const TYPE: Command = ("+type", "TYPE");
const PUBSUB: Command = ("+pubsub|numsub", "PUBSUB");
const ZADD: Command = ("+zadd", "ZADD");
const ZCARD: Command = ("+zcard", "ZCARD");
const ZRANGE: Command = ("+zrange", "ZRANGE");
const ZRANK: Command = ("+zrank", "ZRANK");
const ZREM: Command = ("+zrem", "ZREM");

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
    use crate::options::Options;

    fn settings(servers: usize, change: impl FnOnce(&mut Options)) -> Settings {
        let mut options = Options::default();
        change(&mut options);
        options.validate(servers).expect("valid")
    }

    fn questions(servers: usize, change: impl FnOnce(&mut Options)) -> Questions {
        Questions::new(&settings(servers, change), Deployment::Independent(servers), &["app:42".into()])
    }

    /// Returns the rules that are needed, or those that are only asked about.
    fn rules(asked: &Questions, is_needed: bool) -> BTreeSet<String> {
        let probes = asked.probes.iter().filter(|probe| probe.needed_for.is_empty() != is_needed);
        probes.flat_map(|probe| probe.names.iter().cloned().chain([probe.rule.to_owned()])).collect()
    }

    /// Returns the rules of the nth ACL SETUSER in the guide, its comments left out, for the name `app:42`.
    fn documented(nth: usize) -> BTreeSet<String> {
        let text = include_str!("../../docs/guide/operating.md");
        let block = text.split("```").filter(|block| block.contains("ACL SETUSER app")).nth(nth).expect("a block");
        let lines = block.lines().map(|line| line.split('#').next().unwrap_or_default());
        let words: Vec<String> =
            lines.flat_map(str::split_whitespace).map(|word| word.trim_matches('\'').to_owned()).collect();
        let words = words.into_iter().filter(|word| word.starts_with(['+', '~', '&']));
        words.map(|word| word.replace("{app:*", "{app:42}").replace("~app:*", "~app:42")).collect()
    }

    #[test]
    fn the_rights_that_are_checked_are_the_documented_ones() {
        assert_eq!(rules(&questions(1, |_| {}), true), documented(0));
        let optional = ["+info", "+client|setname", "+client|id", "~lockhound_label:*"].map(str::to_owned);
        // The lists of waiting lockers, and labels: a publish to any channel, and a script, are among the first.
        let lists: BTreeSet<String> = documented(1);
        let shared = ["+subscribe", "+unsubscribe", "+publish", "+evalsha"].map(str::to_owned);
        let all: BTreeSet<String> = lists.iter().cloned().chain(optional.clone()).chain(shared).collect();
        assert_eq!(rules(&questions(1, |_| {}), false), all);
        // Those after the fourth depend on options.
        let mut left_out = documented(6);
        assert!(left_out.remove("+select"), "a connection to a database has it already");
        for of_preflight in ["+config|get", "+acl|whoami", "+acl|dryrun"] {
            assert!(left_out.remove(of_preflight), "it reports what it may not ask for as unknown");
        }
        assert_eq!(left_out, BTreeSet::from(optional));
        let both: BTreeSet<String> = documented(0).union(&documented(2)).cloned().collect();
        assert_eq!(rules(&questions(3, |_| {}), true), both);
        let of_cluster = Questions::new(&settings(1, |_| {}), Deployment::Cluster, &["app:42".into()]);
        let both: BTreeSet<String> = documented(0).union(&documented(3)).cloned().collect();
        assert_eq!(rules(&of_cluster, true), both);
    }

    #[test]
    fn options_add_and_remove_rights() {
        let replicas = Replicas { count: 1, timeout: Duration::from_millis(100) };
        assert!(rules(&questions(1, |o| o.replicas = replicas), true).contains("+wait"));
        let at_once = questions(3, |o| o.restart_quarantine = Some(Duration::ZERO));
        let needed = rules(&at_once, true);
        assert!(needed.contains("+exists") && needed.contains("+info"), "{needed:?}");
        assert!(!needed.contains("~lockhound_memory") && !needed.contains("+hmget"), "{needed:?}");
        let tokens = rules(&questions(1, |o| o.fencing = Fencing::Redisson), true);
        assert!(tokens.contains("~redisson_lock_token:{app:42}") && tokens.contains("+incr"), "{tokens:?}");
        assert!(!tokens.contains("~lockhound_fence:*"), "{tokens:?}");
        let plain = rules(&questions(1, |o| o.format = Format::Plain), true);
        assert!(
            !plain.iter().any(|rule| rule.starts_with("+h") && rule != "+hello") && plain.contains("+get"),
            "{plain:?}"
        );
    }

    /// Returns the missing rules if the server refuses commands and names with these errors.
    fn found(refused: &[&str], command: &str, name: &str) -> Vec<String> {
        let asked = questions(1, |_| {});
        let tried = |probe: &Probe| match &probe.names {
            _ if refused.contains(&probe.rule) => Tried::Refused(command.to_owned()),
            Some(names) if refused.contains(&&**names) => Tried::Refused(name.to_owned()),
            _ => Tried::Permitted,
        };
        let rights = asked.rights(&asked.probes.iter().map(tried).collect::<Vec<_>>());
        assert_eq!(rights.unknown, []);
        rights.missing.into_iter().map(|right| right.rule).collect()
    }

    #[test]
    fn refusals_of_every_kind_of_server_name_the_rule() {
        for (command, name) in [
            (
                "NOPERM this user has no permissions to run the 'del' command",
                "NOPERM this user has no permissions to access one of the keys used as arguments",
            ),
            (
                "NOPERM this user has no permissions to run the 'del' command or its subcommand",
                "NOPERM this user has no permissions to access one of the channels used as arguments",
            ),
            ("NOPERM User app has no permissions to run the 'del' command", "NOPERM No permissions to access a key"),
            (
                "This user has no permissions to run the 'del' command",
                "This user has no permissions to access the 'x' key",
            ),
            (
                "ERR The user executing the script can't run this command or subcommand",
                "ERR The user executing the script can't access at least one of the keys mentioned in the command \
                 arguments",
            ),
            (
                "ERR The user executing the script can't run this command or subcommand",
                "ERR The user executing the script can't publish to the channel mentioned in the command",
            ),
            (
                "NOPERM ACL failure in script: User app has no permissions to run the 'del' command",
                "NOPERM ACL failure in script: No permissions to access a channel",
            ),
        ] {
            assert_eq!(found(&["+del"], command, name), ["+del"]);
            assert_eq!(found(&["~app:42"], command, name), ["~app:42"]);
            assert_eq!(found(&["+del", "~app:42"], command, name), ["~app:42", "+del"]);
        }
    }

    #[test]
    fn a_made_up_name_shows_nothing_about_other_names() {
        let asked = Questions::new(&settings(3, |_| {}), Deployment::Independent(3), &[]);
        let name = "NOPERM this user has no permissions to access one of the keys used as arguments";
        let tried = |probe: &Probe| match &probe.names {
            None if probe.args.iter().any(|arg| arg.contains("preflight:")) => Tried::Refused(name.to_owned()),
            _ => Tried::Permitted,
        };
        let rights = asked.rights(&asked.probes.iter().map(tried).collect::<Vec<_>>());
        assert_eq!(rights.missing, []);
        let [names, messages] = &rights.unknown[..] else { panic!("{rights:?}") };
        assert_eq!(
            (names.rule.as_str(), &names.needed_for),
            (NAMES, &vec![Promise::Locking, Promise::FaultTolerance, Promise::Inspection])
        );
        assert_eq!((messages.rule.as_str(), &messages.needed_for), (MESSAGES, &vec![Promise::Wakeups]));
        assert!(names.reason.contains("preflight_of"), "{names:?}");
    }

    #[test]
    fn a_right_without_an_answer_is_unknown_for_all_promises_that_need_it() {
        let asked = questions(3, |_| {});
        let rights = asked.not_answered();
        assert_eq!(rights.missing, []);
        let of = |rule: &str| &rights.unknown.iter().find(|right| right.rule == rule).expect(rule).needed_for[..];
        assert_eq!(of("+get"), [Promise::Locking, Promise::Inspection]);
        assert_eq!((of("+exists"), of("+publish")), (&[Promise::FaultTolerance][..], &[Promise::Wakeups][..]));
    }

    #[test]
    fn the_pattern_of_a_name_matches_no_other_name() {
        assert_eq!(pattern("orders:{42}"), "orders:{42}");
        assert_eq!(pattern("a*b?[c]\\"), "a\\*b\\?\\[c\\]\\\\");
    }
}
