//! The Lua scripts as typed calls on one node. Nothing else includes or knows them.
//!
//! A field is in a hash or it is not, counts are absolute, and nothing creates but an acquire, which is sent at most
//! once per generation: a copy of any script that comes twice or late changes nothing that it should not. The plain
//! format has the same scripts with the same replies, the field as the value of a string: nobody above knows which.

use std::sync::LazyLock;
use std::time::Duration;

use crate::fence::Fence;
use crate::key::Key;
use crate::node::{Lane, Lua, Node, Outcome, Receipt, Reply};
use crate::options::Format;

/// The scripts that differ from format to format.
struct Scripts {
    acquire: Lua,
    count: Lua,
    release: Lua,
    renew: Lua,
    retake: Lua,
}

static REDISSON: LazyLock<Scripts> = LazyLock::new(|| Scripts {
    acquire: Lua::new(include_str!("../lua/acquire.lua")),
    count: Lua::new(include_str!("../lua/count.lua")),
    release: Lua::new(include_str!("../lua/release.lua")),
    renew: Lua::new(include_str!("../lua/renew.lua")),
    retake: Lua::new(include_str!("../lua/retake.lua")),
});
static PLAIN: LazyLock<Scripts> = LazyLock::new(|| Scripts {
    acquire: Lua::new(include_str!("../lua/plain_acquire.lua")),
    count: Lua::new(include_str!("../lua/plain_count.lua")),
    release: Lua::new(include_str!("../lua/plain_release.lua")),
    renew: Lua::new(include_str!("../lua/plain_renew.lua")),
    retake: Lua::new(include_str!("../lua/plain_retake.lua")),
});
static RAISE: LazyLock<Lua> = LazyLock::new(|| Lua::new(include_str!("../lua/raise.lua")));
static INSPECT: LazyLock<Lua> = LazyLock::new(|| Lua::new(include_str!("../lua/inspect.lua")));
static FORCE: LazyLock<Lua> = LazyLock::new(|| Lua::new(include_str!("../lua/force.lua")));

/// What a node answered to an acquire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Acquire {
    Granted(Fence),
    /// Held by another, for at most this long if its lease is not renewed; `None`: it has no lease.
    Held(Option<Duration>),
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

/// One lock of a renewal: its key, its lease, its field.
#[derive(Debug, Clone)]
pub(crate) struct Renewal {
    pub(crate) key: Key,
    pub(crate) lease: Duration,
    pub(crate) field: String,
}

pub(crate) async fn acquire(node: &Node, key: &Key, lease: Duration, field: &str, floor: u64) -> Outcome<Acquire> {
    let args = vec![millis(lease), field.to_owned(), floor.to_string()];
    let keys = [key.as_str(), &key.fence_key()];
    let (reply, receipt) = node.write(Lane::Grants, &scripts(node).acquire, &keys, args).await;
    let answer = reply.and_then(node.name(), |reply| match pair(reply)? {
        (Reply::Int(1), Reply::Bytes(fence)) => {
            let fence = std::str::from_utf8(fence).ok()?.parse().ok()?;
            Some(Acquire::Granted(Fence::new(fence)))
        }
        (Reply::Int(0), Reply::Int(ttl)) => Some(Acquire::Held(remaining(*ttl))),
        _ => None,
    });
    receipt.cover(answer, |answer| matches!(answer, Acquire::Granted(_))).await
}

pub(crate) async fn count(node: &Node, key: &Key, field: &str, count: u32) -> Outcome<Count> {
    let args = vec![field.to_owned(), count.to_string()];
    let reply = node.eval(Lane::Commands, &scripts(node).count, &[key.as_str()], args).await;
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

async fn release_on(node: &Node, lane: Lane, key: &Key, field: &str) -> Outcome<Release> {
    let keys = [key.as_str(), &key.channel()];
    let reply = node.eval(lane, &scripts(node).release, &keys, vec![field.to_owned()]).await;
    reply.and_then(node.name(), |reply| match reply {
        Reply::Int(-1) => Some(Release::Gone),
        Reply::Int(told) => u64::try_from(*told).ok().map(Release::Released),
        _ => None,
    })
}

/// Takes a node's vote for a held lock back; true if it has been, false if another holds it there. It travels with the
/// acquires, so that an undo that is sent later comes behind it.
pub(crate) async fn retake(node: &Node, key: &Key, lease: Duration, field: &str, count: u32) -> Outcome<bool> {
    let args = vec![millis(lease), field.to_owned(), count.to_string()];
    let (reply, receipt) = node.write(Lane::Grants, &scripts(node).retake, &[key.as_str()], args).await;
    let answer = reply.and_then(node.name(), |reply| match reply {
        Reply::Int(n @ (0 | 1)) => Some(*n == 1),
        _ => None,
    });
    receipt.cover(answer, |taken| *taken).await
}

/// Raises the last fence of a lock to this one, unless it is higher already.
pub(crate) async fn raise(node: &Node, key: &Key, fence: Fence) -> Outcome<()> {
    let (reply, receipt) = node.write(Lane::Grants, &RAISE, &[&key.fence_key()], vec![fence.to_string()]).await;
    receipt.cover(reply.and_then(node.name(), |reply| (*reply == Reply::Int(1)).then_some(())), |()| true).await
}

/// Renews many locks at once, and answers for each in the order given. What too few replicas have is not renewed.
pub(crate) async fn renew(node: &Node, renewals: &[Renewal]) -> Outcome<Vec<Renew>> {
    let keys: Vec<&str> = renewals.iter().map(|r| r.key.as_str()).collect();
    let args = renewals.iter().flat_map(|r| [millis(r.lease), r.field.clone()]).collect();
    let (reply, receipt) = node.write(Lane::Renewals, &scripts(node).renew, &keys, args).await;
    let answers = reply.and_then(node.name(), |reply| match reply {
        Reply::Array(answers) if answers.len() == renewals.len() => answers.iter().map(renewed).collect(),
        _ => None,
    });
    acknowledge(answers, receipt).await
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

fn renewed(answer: &Reply) -> Option<Renew> {
    match answer {
        Reply::Int(1) => Some(Renew::Renewed),
        Reply::Int(0) => Some(Renew::Gone),
        Reply::Bytes(error) => {
            let error = String::from_utf8_lossy(error).into_owned();
            Some(if error.contains("WRONGTYPE") { Renew::Gone } else { Renew::Failed(error) })
        }
        _ => None,
    }
}

pub(crate) async fn inspect(node: &Node, key: &Key) -> Outcome<Option<Standing>> {
    let reply = node.eval(Lane::Commands, &INSPECT, &[key.as_str()], Vec::new()).await;
    reply.and_then(node.name(), |reply| match reply {
        Reply::Array(items) if items.is_empty() => Some(None),
        Reply::Array(items) => match items.as_slice() {
            [Reply::Int(ttl), Reply::Bytes(owner), Reply::Int(count)] => Some(Some(Standing {
                owner: owner.clone(),
                count: u64::try_from(*count).ok()?,
                remaining: remaining(*ttl),
            })),
            _ => None,
        },
        _ => None,
    })
}

/// Releases whoever holds it; whether anybody did.
pub(crate) async fn force(node: &Node, key: &Key) -> Outcome<bool> {
    let reply = node.eval(Lane::Commands, &FORCE, &[key.as_str(), &key.channel()], Vec::new()).await;
    reply.and_then(node.name(), |reply| match reply {
        Reply::Int(n @ (0 | 1)) => Some(*n == 1),
        _ => None,
    })
}

fn scripts(node: &Node) -> &'static Scripts {
    match node.format() {
        Format::Redisson => &REDISSON,
        Format::Plain => &PLAIN,
    }
}

fn pair(reply: &Reply) -> Option<(&Reply, &Reply)> {
    match reply {
        Reply::Array(items) => match items.as_slice() {
            [first, second] => Some((first, second)),
            _ => None,
        },
        _ => None,
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
            ("count", include_str!("../lua/count.lua")),
            ("release", include_str!("../lua/release.lua")),
            ("renew", include_str!("../lua/renew.lua")),
            ("retake", include_str!("../lua/retake.lua")),
            ("raise", include_str!("../lua/raise.lua")),
            ("inspect", include_str!("../lua/inspect.lua")),
            ("force", include_str!("../lua/force.lua")),
            ("plain_acquire", include_str!("../lua/plain_acquire.lua")),
            ("plain_count", include_str!("../lua/plain_count.lua")),
            ("plain_release", include_str!("../lua/plain_release.lua")),
            ("plain_renew", include_str!("../lua/plain_renew.lua")),
            ("plain_retake", include_str!("../lua/plain_retake.lua")),
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
            // Every key that a script touches is declared, so that a cluster and an ACL can know it.
            assert!(!body.contains("call('DEL', '"), "{name}: a key that is not declared");
        }
    }

    #[test]
    fn fences_are_the_same_in_every_format() {
        let made = |text: &'static str| {
            let from = text.find("-- The client's clock").expect("where the fence is made");
            let to = text.rfind("redis.call('SET', last_fence").expect("where it is kept");
            &text[from..to]
        };
        assert_eq!(made(include_str!("../lua/acquire.lua")), made(include_str!("../lua/plain_acquire.lua")));
    }

    #[test]
    fn replies_of_renewals_are_read_by_kind() {
        assert_eq!(renewed(&Reply::Int(1)), Some(Renew::Renewed));
        assert_eq!(renewed(&Reply::Int(0)), Some(Renew::Gone));
        assert_eq!(renewed(&Reply::Bytes(b"WRONGTYPE Operation".to_vec())), Some(Renew::Gone));
        assert_eq!(renewed(&Reply::Bytes(b"READONLY".to_vec())), Some(Renew::Failed("READONLY".into())));
        assert_eq!(renewed(&Reply::Nil), None);
        assert_eq!(remaining(-1), None);
        assert_eq!(remaining(0), Some(Duration::ZERO));
    }
}
