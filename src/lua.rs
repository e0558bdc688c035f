//! The scripts: texts of `lua/`, put together.
//!
//! A line `-- NAME.lua` stands for the text of that name. It comes from the folder of the kind, or
//! else from `lua/shared/`. So a kind has only the scripts that are different for it.

use std::sync::OnceLock;

use sha1_smol::Sha1;

/// A Lua script and the digest by which a server knows it.
#[derive(Debug)]
pub(crate) struct Lua {
    body: String,
    digest: String,
}

impl Lua {
    pub(crate) fn new(body: &str) -> Self {
        let body = numbered(body);
        let digest = sha1(body.as_bytes());
        Self { body, digest }
    }

    pub(crate) fn text(&self) -> &str {
        &self.body
    }

    pub(crate) fn digest(&self) -> &str {
        &self.digest
    }
}

/// Wraps a body into a script that returns its last argument, the number of the send, together with
/// what the body returns or the error that it raises. The body's lines keep their line numbers,
/// since errors name them.
pub(crate) fn numbered(body: &str) -> String {
    format!("return cmsgpack.pack(ARGV[#ARGV], pcall(function() {body}\nend))\n")
}

/// Returns the body of a script that was wrapped so.
#[cfg(test)]
pub(crate) fn bare(text: &str) -> &str {
    let body = text.strip_prefix("return cmsgpack.pack(ARGV[#ARGV], pcall(function() ");
    body.and_then(|body| body.strip_suffix("\nend))\n"))
        .expect("the form of this crate's scripts")
}

/// Returns the SHA-1 of a text, as `redis.sha1hex` does in scripts: it names holders and scripts.
pub(crate) fn sha1(text: &[u8]) -> String {
    Sha1::from(text).digest().to_string()
}

/// The kind of deployment that scripts run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Topology {
    OneServer,
    /// Messages come from the master of their slot only, or through every server: a waiter listens
    /// to one of the two.
    Cluster,
}

/// Texts of `lua/`, each with its name.
pub(crate) type Texts = &'static [(&'static str, &'static str)];

/// Returns the texts of these names in a folder of `lua/`.
macro_rules! texts {
    ($folder:literal $($name:literal)*) => {
        &[$((
            $name,
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/", $folder, "/", $name, ".lua")),
        )),*]
    };
}
pub(crate) use texts;

/// The texts that all kinds share.
const SHARED: Texts = texts!(
    "shared" "ask" "batch" "capacity" "count_down" "enlist" "enlist_alone" "expel" "fence" "first_copy"
    "force" "forgotten" "free" "holders" "inspect" "label" "label_of" "latch" "leader" "leased" "lifetime" "members"
    "open" "pass" "pending" "proclaim" "pruned" "readers" "refused" "remembers" "set_latch" "timeouts" "types"
    "usage" "vet" "wake" "withdraw"
);

/// Stands before a script whose answer may be a vote.
const REMEMBERS: &str = "remembers";

/// Ends such a script, or a step of it. Other scripts leave it out.
const FORGOTTEN: &str = "forgotten";

/// A script in all its versions: for each topology, for an answer that is a vote and for one that
/// is not. Each version is put together when it is needed first.
#[derive(Debug)]
pub(crate) struct Script {
    name: &'static str,
    texts: Texts,
    versions: [OnceLock<Lua>; 4],
}

impl Script {
    /// Returns the script of this name from the texts of a kind.
    pub(crate) const fn new(name: &'static str, texts: Texts) -> Self {
        Self {
            name,
            texts,
            versions: [const { OnceLock::new() }; 4],
        }
    }

    /// Returns a script that is the same for all kinds.
    pub(crate) const fn shared(name: &'static str) -> Self {
        Self::new(name, &[])
    }

    /// Returns the version whose answer is no vote.
    pub(crate) fn on(&'static self, topology: Topology) -> &'static Lua {
        self.version(topology, false)
    }

    /// Returns the version that does nothing if the server does not have the memory that it was
    /// vetted with.
    pub(crate) fn voting_on(&'static self, topology: Topology) -> &'static Lua {
        self.version(topology, true)
    }

    /// Returns the version for an answer that is a vote, if it is one.
    pub(crate) fn for_vote<T>(&'static self, topology: Topology, vote: &Option<T>) -> &'static Lua {
        self.version(topology, vote.is_some())
    }

    fn version(&'static self, topology: Topology, is_vote: bool) -> &'static Lua {
        let version =
            &self.versions[2 * usize::from(topology == Topology::Cluster) + usize::from(is_vote)];
        version.get_or_init(|| Lua::new(&self.text(topology, is_vote)))
    }

    fn text(&self, topology: Topology, is_vote: bool) -> String {
        let mut text = String::new();
        if is_vote {
            put(REMEMBERS, self.texts, is_vote, &mut text);
        }
        put(self.name, self.texts, is_vote, &mut text);
        if topology == Topology::Cluster {
            with_sharded_message(&text)
        } else {
            text
        }
    }
}

/// Writes the text of this name, with every line that names another text replaced by that text.
fn put(name: &str, texts: Texts, is_vote: bool, whole: &mut String) {
    let named = texts.iter().chain(SHARED).find(|(other, _)| *other == name);
    let (_, text) = named.expect("a text of this name, since a test puts all scripts together");
    for line in text.split_inclusive('\n') {
        match named_by(line) {
            Some(FORGOTTEN) if !is_vote => {}
            Some(other) => put(other, texts, is_vote, whole),
            None => whole.push_str(line),
        }
    }
}

/// Returns the name of the text that a line stands for.
fn named_by(line: &str) -> Option<&str> {
    let name = line.trim().strip_prefix("-- ")?.strip_suffix(".lua")?;
    name.bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        .then_some(name)
}

/// Has a script publish the sharded message too, for clients subscribed at the slot's master. Redis
/// 6 refuses it.
fn with_sharded_message(script: &str) -> String {
    let mut text = script.to_owned();
    for message in ["'0'", "'1'", "'00'", "free"] {
        let publish = format!("redis.pcall('PUBLISH', channel, {message})\n");
        let sharded = format!("{publish}redis.pcall('SPUBLISH', channel, {message})\n");
        text = text.replace(&publish, &sharded);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::{KINDS, Kind, LockRole};

    /// Returns every text in `lua/`, under its folder and name.
    fn all() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
        let folders = KINDS
            .iter()
            .map(|kind| (kind.name, texts_in(kind)))
            .chain([("shared", SHARED)]);
        folders.flat_map(|(folder, texts)| {
            texts.iter().map(move |(name, text)| (folder, *name, *text))
        })
    }

    /// Returns every script that stands for itself, and is no piece of another one.
    fn whole() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
        let pieces = [
            "call",
            "enlist_alone",
            "fence",
            "first_copy",
            FORGOTTEN,
            "free",
            "leased",
            "lifetime",
            "members",
            "pending",
            "pruned",
            "refused",
            REMEMBERS,
            "timeouts",
            "wake",
        ];
        all().filter(move |(_, name, _)| !pieces.contains(name))
    }

    #[test]
    fn every_file_is_in_a_table() {
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
        let mut files = Vec::new();
        for folder in directory.read_dir().expect("a directory") {
            let folder = folder.expect("a folder").path();
            let of = folder
                .file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            let names = folder
                .read_dir()
                .expect("a folder")
                .map(|file| file.expect("a file").path());
            files.extend(names.map(|file| {
                format!(
                    "{of}/{}",
                    file.file_stem().expect("a name").to_string_lossy()
                )
            }));
        }
        files.sort();
        let named = all().map(|(of, name, _)| format!("{of}/{name}"));
        let mut named: Vec<String> = named.filter(|name| !name.starts_with("trial/")).collect();
        named.sort();
        assert_eq!(files, named);
    }

    #[test]
    fn headers_describe_the_bodies() {
        for (folder, name, text) in whole() {
            let header: String = text.lines().take_while(|l| l.starts_with("--")).collect();
            let mut own = String::new();
            // The steps of a batch have headers of their own.
            if name == "batch" {
                own.push_str(text);
            } else {
                put(name, texts_of(folder), false, &mut own);
            }
            let body: String = own.lines().skip_while(|l| l.starts_with("--")).collect();
            assert!(
                header.contains("Returns"),
                "{folder}/{name}: the header does not say what it returns"
            );
            for list in ["KEYS", "ARGV"] {
                for n in 1..6 {
                    let word = format!("{list}[{n}]");
                    assert_eq!(
                        header.contains(&word),
                        body.contains(&word),
                        "{folder}/{name}: {word} is in one of both"
                    );
                }
                assert_eq!(
                    header.contains(list),
                    body.contains(list),
                    "{folder}/{name}: {list} is in one of both"
                );
            }
            // The number of the send is the last argument.
            assert!(
                !body.contains("#ARGV"),
                "{folder}/{name}: reads arguments that are not its own"
            );
            // A script declares every key that it deletes, since clusters and ACLs look at declared
            // keys.
            assert!(
                !body.contains("call('DEL', '"),
                "{folder}/{name}: a key that is not declared"
            );
        }
    }

    fn texts_in(kind: &Kind) -> Texts {
        kind.scripts.acquire.texts
    }

    fn texts_of(folder: &str) -> Texts {
        KINDS
            .into_iter()
            .find(|kind| kind.name == folder)
            .map_or(&[], texts_in)
    }

    /// A script whose line is missing or misspelt would fail on servers only.
    #[test]
    fn lines_that_name_another_script_are_replaced_by_it() {
        for (folder, name, _) in all() {
            // What all kinds share includes steps that only some have.
            let kinds = KINDS
                .into_iter()
                .filter(|kind| kind.name == folder || folder == "shared" && kind.hands_over());
            for texts in kinds.map(texts_in) {
                for (topology, is_vote) in [(Topology::OneServer, false), (Topology::Cluster, true)]
                {
                    let text = Script::new(name, texts).text(topology, is_vote);
                    assert_eq!(text.lines().find_map(named_by), None, "{folder}/{name}");
                }
            }
        }
        let misspelt = std::panic::catch_unwind(|| {
            Script::new("a", &[("a", "-- wakes.lua\n")]).text(Topology::OneServer, false)
        });
        assert!(misspelt.is_err(), "it is noticed");
    }

    #[test]
    fn every_release_in_a_cluster_publishes_both_messages() {
        let releases = KINDS.map(|kind| Script::new("release", texts_in(kind)));
        for script in releases.into_iter().chain([Script::shared("force")]) {
            let text = script.text(Topology::Cluster, false);
            // What wakes one locker is on the channel of that locker.
            let own = [
                "redis.call('PUBLISH'",
                "redis.call, 'PUBLISH'",
                "redis.pcall('PUBLISH', wakes",
            ]
            .iter()
            .fold(text.clone(), |text, wake| text.replace(wake, ""));
            let published = own.matches("'PUBLISH'").count();
            let messages = 1 + own.matches("'00'").count() / 2;
            assert_eq!(
                (published, own.matches("'SPUBLISH'").count()),
                (messages, messages),
                "{text}"
            );
        }
    }

    #[test]
    fn every_acquire_and_every_hand_over_makes_a_fence_once() {
        // Permits have none.
        let kinds = KINDS
            .into_iter()
            .filter(|kind| kind.role != LockRole::Permit);
        for kind in kinds {
            let names: &[_] = match kind.hands_over() {
                true => &["acquire", "acquire_all", "hand_over"],
                false => &["acquire"],
            };
            for name in names {
                let text = Script::new(name, texts_in(kind)).text(Topology::OneServer, false);
                assert_eq!(
                    (
                        text.matches("local fence, ").count(),
                        text.matches("fence.lua").count()
                    ),
                    (1, 0),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn the_lines_of_a_script_keep_their_places() {
        let text = numbered("-- one\nreturn 2\n");
        assert_eq!(text.lines().nth(1), Some("return 2"));
    }
}
