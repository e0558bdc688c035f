//! The Lua scripts as typed calls on one node. Nothing else includes or knows them.
//!
//! A field is in a hash or it is not, counts are absolute, and nothing creates but an acquire, which is sent at most
//! once per generation: a copy of any script that comes twice or late changes nothing that it should not. The plain
//! format has the same scripts with the same replies, the field as the value of a string: nobody above knows which.

mod memory;
mod texts;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

pub(crate) use self::memory::{Amendment, Announced, Identity, Told as Remembrance, amend, highest, remembered, vet};

use self::texts::{PLAIN, REDISSON, Scripts};
use crate::error::{Error, ServerError, ServerErrorKind};
use crate::fence::Fence;
use crate::key::Key;
use crate::node::{Lane, Lua, Node, Outcome, Receipt, Remembered, Reply, Step};
use crate::options::Format;
use crate::shown::cut;

static INSPECT: LazyLock<Lua> = LazyLock::new(|| Lua::new(include_str!("../lua/inspect.lua")));
static HOLDERS: LazyLock<Lua> = LazyLock::new(|| Lua::new(include_str!("../lua/holders.lua")));
static FORCE: LazyLock<Lua> = LazyLock::new(|| Lua::new(include_str!("../lua/force.lua")));

/// One lock of an acquire: its key, and the field that is to stand there.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) key: Key,
    pub(crate) field: String,
}

/// What a node answered to an acquire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Acquire {
    /// All that was asked for, a fence a lock.
    Granted(Vec<Fence>),
    /// One is held by another, for at most this long if its lease is not renewed; `None`: it has no lease.
    Held(Option<Duration>),
}

/// What a node answered to the raise of a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Raise {
    Raised,
    Gone,
    /// The node does not believe that there is such a fence.
    TooHigh,
}

/// What a node answered to a write of the hold count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Count {
    Written,
    Gone,
}

/// What a node answered to a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Release {
    /// Released, and this many clients were told.
    Released(u64),
    Gone,
}

/// What a node answered for one lock of a renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Renew {
    Renewed,
    /// Deleted, somebody else's, or not a lock any more.
    Gone,
    /// The node could not do it, and says why.
    Failed(String),
}

/// Who stands in a lock's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) owner: Vec<u8>,
    pub(crate) count: u64,
    pub(crate) remaining: Option<Duration>,
}

/// An answer, and whether the server remembers what it was vetted for: then it is a vote.
#[derive(Debug)]
pub(crate) struct Told<T> {
    pub(crate) answer: T,
    pub(crate) remembers: bool,
}

/// Takes all of these locks, or none. `None`: the server does not remember what it was vetted for, and has done nothing. Of
/// the clock `fence::clock` tells.
pub(crate) async fn acquire(
    node: &Node,
    claims: &[Claim],
    lease: Duration,
    clock: i64,
    vote: Option<Remembered>,
) -> Outcome<Option<Acquire>> {
    let scripts = scripts(node);
    let (lease_ms, clock) = (millis(lease), clock.to_string());
    let keys = claims.iter().flat_map(|claim| [claim.key.to_string(), claim.key.mark()]).collect();
    let fields = claims.iter().map(|claim| claim.field.clone());
    let args = std::iter::once(lease_ms).chain(fields).chain([clock]).collect();
    let (alone, together) = match claims {
        [_] => (&scripts.acquire, Some(scripts.shared("acquire"))),
        _ => (&scripts.acquire_all, None),
    };
    let alone = alone.for_vote(vote.as_ref());
    let idle = |reply: &Reply| taken_by_another(reply).is_some() || is_forgotten(reply);
    let step = Step { alone, together, keys, args, vote, takes: true, acknowledged: true, idle };
    let (reply, receipt) = node.step(Lane::Grants, step).await;
    let answer = reply.and_then(node.name(), |reply| match reply {
        Reply::Array(items) => match items.as_slice() {
            [Reply::Int(1), given @ ..] if given.len() == claims.len() => {
                given.iter().map(fence).collect::<Option<_>>().map(|fences| Some(Acquire::Granted(fences)))
            }
            _ if is_forgotten(reply) => Some(None),
            _ => taken_by_another(reply).map(|ttl| Some(Acquire::Held(remaining(ttl)))),
        },
        _ => None,
    });
    receipt.cover(answer, |answer| matches!(answer, Some(Acquire::Granted(_)))).await
}

fn is_forgotten(reply: &Reply) -> bool {
    matches!(reply, Reply::Array(items) if items.as_slice() == [Reply::Int(-1)])
}

/// The TTL of what another holds.
fn taken_by_another(reply: &Reply) -> Option<i64> {
    match reply {
        Reply::Array(items) => match items.as_slice() {
            [Reply::Int(0), Reply::Int(ttl)] => Some(*ttl),
            _ => None,
        },
        _ => None,
    }
}

fn fence(reply: &Reply) -> Option<Fence> {
    match reply {
        Reply::Int(number) => Fence::read(*number),
        _ => None,
    }
}

pub(crate) async fn count(node: &Node, key: &Key, field: &str, count: u32) -> Outcome<Count> {
    let reply = node.eval(Lane::Commands, &scripts(node).count, &[key.as_str()], &[field, &count.to_string()]).await;
    reply.and_then(node.name(), |reply| match reply {
        Reply::Int(1) => Some(Count::Written),
        Reply::Int(0) => Some(Count::Gone),
        _ => None,
    })
}

pub(crate) async fn release(node: &Node, key: &Key, field: &str) -> Outcome<Release> {
    release_on(node, Lane::Commands, key, field).await
}

/// A release that comes behind an acquire or a retake, even one that has no answer yet.
pub(crate) async fn undo(node: &Node, key: &Key, field: &str) -> Outcome<Release> {
    release_on(node, Lane::Grants, key, field).await
}

/// What a release says where there was nothing to release.
const GONE: Reply = Reply::Int(-1);

async fn release_on(node: &Node, lane: Lane, key: &Key, field: &str) -> Outcome<Release> {
    let scripts = scripts(node);
    let (keys, args) = (vec![key.to_string(), key.channel()], vec![field.to_owned()]);
    let step = Step {
        alone: &scripts.release,
        together: Some(scripts.shared("release")),
        keys,
        args,
        takes: false,
        vote: None,
        acknowledged: false,
        idle: |reply| *reply == GONE,
    };
    let (reply, _) = node.step(lane, step).await;
    reply.and_then(node.name(), |reply| match reply {
        &GONE => Some(Release::Gone),
        Reply::Int(told) => u64::try_from(*told).ok().map(Release::Released),
        _ => None,
    })
}

/// Takes a node's vote for a held lock back; true if it has been, false if another holds it there. It travels with the
/// acquires, so that an undo that is sent later comes behind it.
pub(crate) async fn retake(
    node: &Node,
    key: &Key,
    lease: Duration,
    field: &str,
    count: u32,
    vote: Option<Remembered>,
) -> Outcome<Told<bool>> {
    let (lease_ms, count) = (millis(lease), count.to_string());
    let (mut keys, mut args) = (vec![key.as_str()], vec![lease_ms.as_str(), field, &count]);
    ask(&vote, &mut keys, &mut args);
    let script = scripts(node).retake.for_vote(vote.as_ref());
    let (reply, receipt) = node.write(Lane::Grants, script, &keys, &args).await;
    let (reply, remembers) = tell(node, reply, vote.is_some());
    let answer = reply.and_then(node.name(), |reply| match reply {
        Reply::Int(n @ (0 | 1)) => Some(*n == 1),
        _ => None,
    });
    receipt.cover(answer, |taken| *taken).await.map(|answer| Told { answer, remembers })
}

/// Where the answer is a vote, the server's memory comes last.
fn ask<'a>(vote: &'a Option<Remembered>, keys: &mut Vec<&'a str>, args: &mut Vec<&'a str>) {
    if let Some(Remembered { key, memory }) = vote {
        keys.push(key);
        args.push(memory);
    }
}

/// The answer of a script that tells whether the server remembers, and whether it does.
fn tell(node: &Node, reply: Outcome<Reply>, asked: bool) -> (Outcome<Reply>, bool) {
    match reply {
        Outcome::Done(Reply::Array(mut told)) if asked && matches!(told.as_slice(), [Reply::Int(0 | 1), _]) => {
            let remembers = told[0] == Reply::Int(1);
            (told.swap_remove(1).into_outcome(node.name()), remembers)
        }
        reply => (reply, !asked),
    }
}

/// Raises the mark of a lock that is held there to this fence, unless it is higher already.
pub(crate) async fn raise(node: &Node, key: &Key, field: &str, fence: Fence) -> Outcome<Raise> {
    let (keys, args) = ([key.as_str(), &key.mark()], [field, &fence.to_string()]);
    let (reply, receipt) = node.write(Lane::Grants, &scripts(node).raise, &keys, &args).await;
    let answer = reply.and_then(node.name(), |reply| match reply {
        Reply::Int(1) => Some(Raise::Raised),
        Reply::Int(0) => Some(Raise::Gone),
        Reply::Int(-1) => Some(Raise::TooHigh),
        _ => None,
    });
    receipt.cover(answer, |answer| *answer == Raise::Raised).await
}

/// Renews many locks at once, each a key and its field, and answers for each in the order given. What too few replicas have
/// is not renewed.
pub(crate) async fn renew(
    node: &Node,
    lease: Duration,
    locks: &[(&Key, &str)],
    vote: Option<Remembered>,
) -> Outcome<Told<Vec<Renew>>> {
    let lease_ms = millis(lease);
    let mut keys: Vec<&str> = locks.iter().map(|(key, _)| key.as_str()).collect();
    let fields = locks.iter().map(|(_, field)| *field);
    let mut args: Vec<&str> = std::iter::once(lease_ms.as_str()).chain(fields).collect();
    ask(&vote, &mut keys, &mut args);
    let script = scripts(node).renew.for_vote(vote.as_ref());
    let (reply, receipt) = node.write(Lane::Renewals, script, &keys, &args).await;
    let (reply, remembers) = tell(node, reply, vote.is_some());
    let answers = reply.and_then(node.name(), |reply| answers(reply, locks.len()));
    acknowledge(answers, receipt).await.map(|answer| Told { answer, remembers })
}

/// That a lock is gone is told at once, whatever the replicas say.
async fn acknowledge(mut answers: Outcome<Vec<Renew>>, receipt: Receipt) -> Outcome<Vec<Renew>> {
    if let Outcome::Done(answers) = &mut answers
        && answers.contains(&Renew::Renewed)
        && let Err(failure) = receipt.confirm().await
    {
        for answer in answers.iter_mut().filter(|answer| **answer == Renew::Renewed) {
            *answer = Renew::Failed(failure.reason.clone());
        }
    }
    answers
}

/// Each lock's answer, of so many. The reply names only those that were not renewed, and counts the others.
fn answers(reply: &Reply, locks: usize) -> Option<Vec<Renew>> {
    let Reply::Array(items) = reply else { return None };
    let [Reply::Int(renewed), odd @ ..] = items.as_slice() else { return None };
    let mut answers = vec![Renew::Renewed; locks];
    for pair in odd.chunks(2) {
        let [Reply::Int(position), said] = pair else { return None };
        let answer = answers.get_mut(usize::try_from(*position).ok()?.checked_sub(1)?)?;
        *answer = match said {
            Reply::Int(0) => Renew::Gone,
            Reply::Bytes(error) => {
                let error = cut(error);
                if error.contains("WRONGTYPE") { Renew::Gone } else { Renew::Failed(error) }
            }
            _ => return None,
        };
    }
    let counted = answers.iter().filter(|answer| **answer == Renew::Renewed).count();
    (usize::try_from(*renewed) == Ok(counted)).then_some(answers)
}

pub(crate) async fn inspect(node: &Node, key: &Key) -> Outcome<Option<Standing>> {
    let reply = node.eval(Lane::Commands, &INSPECT, &[key.as_str()], &[]).await;
    of_a_lock(node, key, reply).and_then(node.name(), |reply| match reply {
        Reply::Array(items) if items.is_empty() => Some(None),
        Reply::Array(items) => match items.as_slice() {
            [Reply::Int(ttl), Reply::Bytes(owner), Reply::Int(count)] => Some(Some(Standing {
                owner: owner.to_vec(),
                // Whoever wrote less than nothing holds it all the same.
                count: u64::try_from(*count).unwrap_or_default(),
                remaining: remaining(*ttl),
            })),
            _ => None,
        },
        _ => None,
    })
}

/// The holders of a lock, each by the SHA-1 of what stands there. What cannot be a lock is refused.
pub(crate) async fn holders(node: &Node, key: &Key) -> Outcome<Vec<String>> {
    let reply = node.eval(Lane::Commands, &HOLDERS, &[key.as_str()], &[]).await;
    let name = |reply: &Reply| match reply {
        Reply::Bytes(name) => String::from_utf8(name.to_vec()).ok(),
        _ => None,
    };
    of_a_lock(node, key, reply).and_then(node.name(), |reply| match reply {
        Reply::Array(names) => names.iter().map(name).collect(),
        _ => None,
    })
}

/// Releases it from these holders, named as [`holders`] does; whether it was theirs, and nobody else's.
pub(crate) async fn force(node: &Node, key: &Key, holders: &[String]) -> Outcome<bool> {
    let holders: Vec<&str> = holders.iter().map(String::as_str).collect();
    let reply = node.eval(Lane::Commands, &FORCE, &[key.as_str(), &key.channel()], &holders).await;
    reply.and_then(node.name(), |reply| match reply {
        Reply::Int(n @ (0 | 1)) => Some(*n == 1),
        _ => None,
    })
}

/// A script that found something else than a lock names the type of it.
fn of_a_lock(node: &Node, key: &Key, reply: Outcome<Reply>) -> Outcome<Reply> {
    match reply {
        Outcome::Done(Reply::Bytes(kind)) => {
            let what = match &*kind {
                b"hash" => "a hash that is no lock's".to_owned(),
                kind => format!("a {}", cut(kind)),
            };
            let message = format!("WRONGTYPE {key:?} holds {what}");
            let source = ServerError { node: Arc::clone(node.name()), message };
            Outcome::Refused(Error::Server { kind: ServerErrorKind::WrongType, source })
        }
        reply => reply,
    }
}

fn scripts(node: &Node) -> &'static Scripts {
    match node.format() {
        Format::Redisson => &REDISSON,
        Format::Plain => &PLAIN,
    }
}

fn millis(duration: Duration) -> String {
    duration.as_millis().to_string()
}

/// PTTL says -1 for a key without a lease, and 0 for one that has less than a millisecond left.
fn remaining(ttl: i64) -> Option<Duration> {
    u64::try_from(ttl).ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_describe_the_bodies() {
        let scripts = [
            ("acquire", include_str!("../lua/acquire.lua")),
            ("acquire_all", include_str!("../lua/acquire_all.lua")),
            ("count", include_str!("../lua/count.lua")),
            ("release", include_str!("../lua/release.lua")),
            ("renew", include_str!("../lua/renew.lua")),
            ("retake", include_str!("../lua/retake.lua")),
            ("raise", include_str!("../lua/raise.lua")),
            ("plain_raise", include_str!("../lua/plain_raise.lua")),
            ("inspect", include_str!("../lua/inspect.lua")),
            ("holders", include_str!("../lua/holders.lua")),
            ("force", include_str!("../lua/force.lua")),
            ("plain_acquire", include_str!("../lua/plain_acquire.lua")),
            ("plain_acquire_all", include_str!("../lua/plain_acquire_all.lua")),
            ("plain_count", include_str!("../lua/plain_count.lua")),
            ("plain_release", include_str!("../lua/plain_release.lua")),
            ("plain_renew", include_str!("../lua/plain_renew.lua")),
            ("plain_retake", include_str!("../lua/plain_retake.lua")),
            ("together", include_str!("../lua/together.lua")),
        ];
        for (name, text) in scripts {
            let header: String = text.lines().take_while(|l| l.starts_with("--")).collect();
            let body: String = text.lines().skip_while(|l| l.starts_with("--")).collect();
            assert!(header.contains("Returns"), "{name}: the header does not say what it returns");
            for list in ["KEYS", "ARGV"] {
                for n in 1..6 {
                    let word = format!("{list}[{n}]");
                    assert_eq!(header.contains(&word), body.contains(&word), "{name}: {word} is in one place only");
                }
                assert_eq!(header.contains(list), body.contains(list), "{name}: {list} is in one place only");
            }
            // The number of the send is the last argument.
            assert!(!body.contains("#ARGV"), "{name}: reads what is not its own");
            // Every key that a script touches is declared, so that a cluster and an ACL can know it.
            assert!(!body.contains("call('DEL', '"), "{name}: a key that is not declared");
        }
    }

    #[test]
    fn fences_are_the_same_in_every_format_and_for_several_locks() {
        let made = |text: &'static str| {
            let from = text.find("-- The first write").expect("where the fence is made");
            let to = text.rfind("redis.call('SET', mark").expect("where it is kept");
            &text[from..to]
        };
        let one = made(include_str!("../lua/acquire.lua"));
        assert_eq!(one, made(include_str!("../lua/plain_acquire.lua")));
        let several = made(include_str!("../lua/acquire_all.lua"));
        assert_eq!(several, made(include_str!("../lua/plain_acquire_all.lua")));
        let mut lines = several.lines().map(str::trim);
        for line in one.lines().map(|line| line.trim().replace("tonumber(ARGV[3])", "asked_us")) {
            assert!(lines.any(|other| other == line), "{line}");
        }
    }

    #[test]
    fn replies_of_renewals_are_read_by_kind() {
        let bytes = |error: &str| Reply::Bytes(error.to_owned().into());
        let read = |items: Vec<Reply>| answers(&Reply::Array(items), 3);
        let all = [Reply::Int(3)];
        assert_eq!(read(all.to_vec()), Some(vec![Renew::Renewed; 3]));
        let odd = vec![Reply::Int(1), Reply::Int(1), Reply::Int(0), Reply::Int(3), bytes("WRONGTYPE Operation")];
        assert_eq!(read(odd), Some(vec![Renew::Gone, Renew::Renewed, Renew::Gone]));
        let failed = vec![Reply::Int(2), Reply::Int(2), bytes("OOM")];
        assert_eq!(read(failed), Some(vec![Renew::Renewed, Renew::Failed("OOM".into()), Renew::Renewed]));
        assert_eq!(remaining(-1), None);
        assert_eq!(remaining(0), Some(Duration::ZERO));
    }

    #[test]
    fn a_reply_that_does_not_account_for_every_lock_renews_none() {
        let read = |items: &[i64]| answers(&Reply::Array(items.iter().map(|n| Reply::Int(*n)).collect()), 3);
        for items in
            [&[][..], &[2], &[4], &[-1], &[3, 1, 0], &[2, 4, 0], &[2, 0, 0], &[2, 1], &[2, 1, 1], &[1, 1, 0, 1, 0]]
        {
            assert_eq!(read(items), None, "{items:?}");
        }
        assert_eq!(answers(&Reply::Nil, 3), None);
    }
}
