//! Puts the texts of scripts together: of those that differ between formats, and of those whose answer may be a vote.

use std::sync::{Arc, LazyLock};

use crate::node::{Batched, Lua};

/// The scripts that differ between formats.
pub(super) struct Scripts {
    /// For one lock: the loops of `acquire_all` cost time, and a step of the batcher has two keys.
    pub(super) acquire: Voting,
    pub(super) acquire_all: Voting,
    /// An acquire that puts its locker into the list if it is not granted.
    pub(super) enlist: Voting,
    pub(super) count: Lua,
    pub(super) release: Lua,
    pub(super) keep: Lua,
    pub(super) hand_over: Lua,
    /// Many acquires, releases and hand-overs in one script.
    pub(super) batched: Voting,
    pub(super) renew: Lua,
    pub(super) retake: Voting,
    pub(super) extend: Lua,
    pub(super) raise: Lua,
}

/// A script whose answer may be a vote.
pub(super) struct Voting {
    plain: Lua,
    /// The same, if the server's memory counts.
    voting: Lua,
}

/// The lines that check whether the server still has the memory that it was vetted with.
const REMEMBERS: &str = include_str!("../../lua/remembers.lua");

/// The lines that make a fence, for acquires and hand-overs.
const FENCE: &str = include_str!("../../lua/fence.lua");

/// The lines that return a server's refusal to say whether a lock is held.
const REFUSED: &str = include_str!("../../lua/refused.lua");

/// The lines that wake the next locker of the list, for scripts that free a lock.
const WAKE: &str = include_str!("../../lua/wake.lua");

const ENLIST: &str = include_str!("../../lua/enlist.lua");

/// Ends a script, or a step, if the server does not remember.
const OR_NOTHING: &str = "if not remembers then\n  return {-1}\nend\n";

impl Voting {
    /// A script that does nothing if the server does not remember.
    pub(super) fn or_nothing(body: &str) -> Self {
        Self { plain: Lua::new(body), voting: Lua::new(&[REMEMBERS, OR_NOTHING, body].concat()) }
    }

    fn acquire(body: &str) -> Self {
        Self::or_nothing(&with_fence(body))
    }

    /// The four scripts as steps of one. Hand-overs are never votes.
    fn batched(acquire: &str, release: &str, hand_over: &str) -> Self {
        let frame = put_in(include_str!("../../lua/batch.lua"), "release", release);
        let frame = put_in(&put_in(&frame, "enlist", ENLIST), "hand_over", &with_fence(hand_over));
        let acquire = &*with_fence(acquire);
        let voting = [REMEMBERS, &put_in(&frame, "acquire", &[OR_NOTHING, acquire].concat())];
        Self { plain: Lua::new(&put_in(&frame, "acquire", acquire)), voting: Lua::new(&voting.concat()) }
    }

    /// An acquire that puts its locker into the list if it is not granted.
    fn enlist(acquire: &str) -> Self {
        let (head, acquire) = ("local function acquire(KEYS, ARGV)\n", &*with_fence(acquire));
        let plain = [head, acquire, "end\n", ENLIST];
        let voting = [REMEMBERS, head, OR_NOTHING, acquire, "end\n", ENLIST];
        Self { plain: Lua::new(&plain.concat()), voting: Lua::new(&voting.concat()) }
    }

    pub(super) fn for_vote(&self, vote: &Option<Arc<str>>) -> &Lua {
        if vote.is_some() { &self.voting } else { &self.plain }
    }
}

fn with_fence(script: &str) -> String {
    put_in(script, "fence", FENCE)
}

fn with_refused(script: &str) -> String {
    put_in(script, "refused", REFUSED)
}

fn with_wake(script: &str) -> String {
    put_in(script, "wake", WAKE)
}

/// Replaces the line of a script that names another one by that one's lines.
fn put_in(script: &str, name: &str, lines: &str) -> String {
    let line = format!("-- {name}.lua\n");
    debug_assert_eq!(script.matches(&line).count(), 1, "{line:?} in {script}");
    script.replace(&line, lines)
}

/// The script that takes a locker off the list.
pub(super) static PASS: LazyLock<Lua> = LazyLock::new(|| Lua::new(&with_wake(include_str!("../../lua/pass.lua"))));

/// The kind of deployment that scripts run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Topology {
    OneServer,
    /// Messages come from the master of their slot only, or through every server: a waiter listens to one of the two.
    Cluster,
}

/// A value for each topology.
pub(super) struct OfTopology<T> {
    one_server: T,
    cluster: T,
}

impl<T> OfTopology<T> {
    /// Makes both values. `make` is given a function that adds the messages of the topology to a script.
    pub(super) fn new(make: impl Fn(fn(&str) -> String) -> T) -> Self {
        Self { one_server: make(str::to_owned), cluster: make(with_sharded_message) }
    }

    pub(super) fn get(&self, topology: Topology) -> &T {
        match topology {
            Topology::OneServer => &self.one_server,
            Topology::Cluster => &self.cluster,
        }
    }
}

/// Has a script publish the sharded message too, for clients subscribed at the slot's master. Redis 6 refuses it.
fn with_sharded_message(script: &str) -> String {
    script.replace(PUBLISH, &[PUBLISH, "redis.pcall('SPUBLISH', channel, '0')\n"].concat())
}

const PUBLISH: &str = "redis.pcall('PUBLISH', channel, '0')\n";

pub(super) static REDISSON: LazyLock<OfTopology<Scripts>> = LazyLock::new(|| OfTopology::new(redisson));
pub(super) static PLAIN: LazyLock<OfTopology<Scripts>> = LazyLock::new(|| OfTopology::new(plain));

fn redisson(told: fn(&str) -> String) -> Scripts {
    let release = &*with_wake(&told(include_str!("../../lua/release.lua")));
    let hand_over = include_str!("../../lua/hand_over.lua");
    Scripts {
        acquire: Voting::acquire(include_str!("../../lua/acquire.lua")),
        acquire_all: Voting::acquire(include_str!("../../lua/acquire_all.lua")),
        enlist: Voting::enlist(include_str!("../../lua/acquire.lua")),
        count: Lua::new(&with_refused(include_str!("../../lua/count.lua"))),
        release: Lua::new(release),
        keep: Lua::new(include_str!("../../lua/keep.lua")),
        hand_over: Lua::new(&with_fence(hand_over)),
        batched: Voting::batched(include_str!("../../lua/acquire.lua"), release, hand_over),
        renew: Lua::new(include_str!("../../lua/renew.lua")),
        retake: Voting::or_nothing(include_str!("../../lua/retake.lua")),
        extend: Lua::new(&with_refused(include_str!("../../lua/extend.lua"))),
        raise: Lua::new(&with_refused(include_str!("../../lua/raise.lua"))),
    }
}

fn plain(told: fn(&str) -> String) -> Scripts {
    let acquire = &*with_refused(include_str!("../../lua/plain_acquire.lua"));
    let release = &*with_wake(&with_refused(&told(include_str!("../../lua/plain_release.lua"))));
    let hand_over = &*with_refused(include_str!("../../lua/plain_hand_over.lua"));
    Scripts {
        acquire: Voting::acquire(acquire),
        acquire_all: Voting::acquire(&with_refused(include_str!("../../lua/plain_acquire_all.lua"))),
        enlist: Voting::enlist(acquire),
        count: Lua::new(&with_refused(include_str!("../../lua/plain_count.lua"))),
        release: Lua::new(release),
        keep: Lua::new(&with_refused(include_str!("../../lua/plain_keep.lua"))),
        hand_over: Lua::new(&with_fence(hand_over)),
        batched: Voting::batched(acquire, release, hand_over),
        renew: Lua::new(include_str!("../../lua/plain_renew.lua")),
        retake: Voting::or_nothing(&with_refused(include_str!("../../lua/plain_retake.lua"))),
        extend: Lua::new(&with_refused(include_str!("../../lua/plain_extend.lua"))),
        raise: Lua::new(&with_refused(include_str!("../../lua/plain_raise.lua"))),
    }
}

impl Scripts {
    /// Returns the script that runs a step of this name together with others.
    pub(super) fn shared(&'static self, name: &'static str) -> Batched {
        Batched { name, lua: &self.batched.plain, voting: &self.batched.voting }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn headers_describe_the_bodies() {
        let scripts = [
            ("acquire", include_str!("../../lua/acquire.lua")),
            ("acquire_all", include_str!("../../lua/acquire_all.lua")),
            ("count", include_str!("../../lua/count.lua")),
            ("enlist", include_str!("../../lua/enlist.lua")),
            ("pass", include_str!("../../lua/pass.lua")),
            ("release", include_str!("../../lua/release.lua")),
            ("keep", include_str!("../../lua/keep.lua")),
            ("hand_over", include_str!("../../lua/hand_over.lua")),
            ("renew", include_str!("../../lua/renew.lua")),
            ("retake", include_str!("../../lua/retake.lua")),
            ("extend", include_str!("../../lua/extend.lua")),
            ("raise", include_str!("../../lua/raise.lua")),
            ("plain_raise", include_str!("../../lua/plain_raise.lua")),
            ("label", include_str!("../../lua/label.lua")),
            ("label_of", include_str!("../../lua/label_of.lua")),
            ("inspect", include_str!("../../lua/inspect.lua")),
            ("holders", include_str!("../../lua/holders.lua")),
            ("force", include_str!("../../lua/force.lua")),
            ("plain_acquire", include_str!("../../lua/plain_acquire.lua")),
            ("plain_acquire_all", include_str!("../../lua/plain_acquire_all.lua")),
            ("plain_count", include_str!("../../lua/plain_count.lua")),
            ("plain_release", include_str!("../../lua/plain_release.lua")),
            ("plain_keep", include_str!("../../lua/plain_keep.lua")),
            ("plain_hand_over", include_str!("../../lua/plain_hand_over.lua")),
            ("plain_renew", include_str!("../../lua/plain_renew.lua")),
            ("plain_retake", include_str!("../../lua/plain_retake.lua")),
            ("plain_extend", include_str!("../../lua/plain_extend.lua")),
            ("batched", include_str!("../../lua/batch.lua")),
            ("types", include_str!("../../lua/types.lua")),
        ];
        for (name, text) in scripts {
            let header: String = text.lines().take_while(|l| l.starts_with("--")).collect();
            let text = text.replace("-- wake.lua\n", super::WAKE).replace("-- refused.lua\n", super::REFUSED);
            let body: String = text.lines().skip_while(|l| l.starts_with("--")).collect();
            assert!(header.contains("Returns"), "{name}: the header does not say what it returns");
            for list in ["KEYS", "ARGV"] {
                for n in 1..6 {
                    let word = format!("{list}[{n}]");
                    assert_eq!(
                        header.contains(&word),
                        body.contains(&word),
                        "{name}: {word} is only in the header or only in the body"
                    );
                }
                assert_eq!(
                    header.contains(list),
                    body.contains(list),
                    "{name}: {list} is only in the header or only in the body"
                );
            }
            // The number of the send is the last argument.
            assert!(!body.contains("#ARGV"), "{name}: reads arguments that are not its own");
            // A script declares every key that it deletes, since clusters and ACLs look at declared keys.
            assert!(!body.contains("call('DEL', '"), "{name}: a key that is not declared");
        }
    }

    /// A script whose line is missing or misspelt would fail on servers only.
    #[test]
    fn lines_that_name_another_script_are_replaced_by_it() {
        for scripts in [&super::REDISSON, &super::PLAIN] {
            std::sync::LazyLock::force(scripts);
        }
        std::sync::LazyLock::force(&super::PASS);
        let misspelt = std::panic::catch_unwind(|| super::with_wake("-- wakes.lua\nreturn 0\n"));
        assert!(misspelt.is_err(), "it is noticed");
    }

    #[test]
    fn every_release_in_a_cluster_publishes_both_messages() {
        for body in [
            include_str!("../../lua/release.lua"),
            include_str!("../../lua/plain_release.lua"),
            include_str!("../../lua/force.lua"),
        ] {
            let script = super::with_sharded_message(body);
            assert_eq!((script.matches("'PUBLISH'").count(), script.matches("'SPUBLISH'").count()), (1, 1), "{script}");
        }
    }

    #[test]
    fn every_acquire_and_every_hand_over_makes_a_fence_once() {
        for body in [
            include_str!("../../lua/acquire.lua"),
            include_str!("../../lua/acquire_all.lua"),
            include_str!("../../lua/hand_over.lua"),
            include_str!("../../lua/plain_hand_over.lua"),
            include_str!("../../lua/plain_acquire.lua"),
            include_str!("../../lua/plain_acquire_all.lua"),
        ] {
            let script = super::with_fence(body);
            assert_eq!(
                (script.matches("local fence, ").count(), script.matches("fence.lua").count()),
                (1, 0),
                "{script}"
            );
        }
    }
}
