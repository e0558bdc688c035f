//! Which kind of lock a key is, by its type, its fields, and the keys beside it.

use std::fmt;

use lockhound::servers::{ServerReply, Unanswered, Visit};

use super::names::{beside, is_owner, mark, mark_in_cluster, permit_records, prefixed};
use super::post::{ask, number, text, texts};

/// The kinds of locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Also a fair lock for which no caller waits: the two look the same then.
    Lock,
    Fair,
    ReadWrite,
    /// A semaphore whose permits have leases, of which some are taken.
    Permits,
    /// A semaphore whose permits have no leases on the JVM, of which some are taken.
    Semaphore,
    Latch,
    Election,
    Plain,
    /// A number, which may be a semaphore with all permits free, a latch or semaphore of Redisson,
    /// or something else.
    Counter,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Lock => "lock",
            Self::Fair => "fair",
            Self::ReadWrite => "read-write",
            Self::Permits => "permits",
            Self::Semaphore => "semaphore",
            Self::Latch => "latch",
            Self::Election => "election",
            Self::Plain => "plain",
            Self::Counter => "counter",
        })
    }
}

/// What a key looks like on a server.
#[derive(Debug, Clone, Default)]
pub(super) struct Shape {
    /// `None` if the key is free, or no lock.
    pub(super) kind: Option<Kind>,
    /// Whether anything but a lock looks like this.
    pub(super) is_unsure: bool,
    /// The type of a key that is no lock.
    pub(super) other: Option<String>,
    /// The number that a counter has.
    pub(super) count: Option<i64>,
    pub(super) fence: Option<u64>,
    /// Lockers and tickets, in their order.
    pub(super) waiters: Vec<String>,
}

impl Shape {
    /// Returns what two servers tell of a key: the kind that one of them knows, and the higher
    /// fence.
    pub(super) fn or(self, other: Self) -> Self {
        let fence = self.fence.max(other.fence);
        let first = if self.kind.is_some() { self } else { other };
        Self { fence, ..first }
    }

    fn of(kind: Kind) -> Self {
        Self {
            kind: Some(kind),
            ..Self::default()
        }
    }
}

/// How many who wait are listed at most.
const MOST: &str = "999";

/// Asks what a key looks like, and who waits for it.
pub(super) async fn shape(visit: &Visit, at: At<'_>) -> Result<Shape, Unanswered> {
    let shape = bare(visit, at.key).await?;
    match shape.other {
        Some(_) => Ok(shape),
        None => with_waiters(visit, at, shape).await,
    }
}

/// Does the same, of a key that is not known to be a lock: `None` if other things look like it.
pub(super) async fn sure_shape(visit: &Visit, at: At<'_>) -> Result<Option<Shape>, Unanswered> {
    let shape = bare(visit, at.key).await?;
    if shape.kind.is_none() || shape.is_unsure {
        return Ok(None);
    }
    with_waiters(visit, at, shape).await.map(Some)
}

/// A key, and whether its server is in a cluster.
#[derive(Debug, Clone, Copy)]
pub(super) struct At<'a> {
    pub(super) key: &'a str,
    pub(super) in_cluster: bool,
}

async fn bare(visit: &Visit, key: &str) -> Result<Shape, Unanswered> {
    let kind = text(&ask(visit, &["TYPE", key]).await?).unwrap_or_default();
    let shape = match kind.as_str() {
        "hash" => hash(visit, key).await?,
        "string" => string(visit, key).await?,
        _ => Shape::default(),
    };
    let is_other = shape.kind.is_none() && kind != "none";
    Ok(Shape {
        other: is_other.then_some(kind),
        ..shape
    })
}

async fn with_waiters(visit: &Visit, at: At<'_>, mut shape: Shape) -> Result<Shape, Unanswered> {
    let key = at.key;
    let queue = prefixed("redisson_lock_queue:", key);
    shape.waiters = texts(&allowed(ask(visit, &["LRANGE", &queue, "0", MOST]).await)?);
    if shape.kind == Some(Kind::Lock) && !shape.waiters.is_empty() {
        shape.kind = Some(Kind::Fair);
    }
    let list = beside("lockhound_waiting:", key);
    let listed = allowed(ask(visit, &["ZRANGE", &list, "0", MOST]).await)?;
    shape.waiters.extend(texts(&listed));
    if shape.kind == Some(Kind::ReadWrite) {
        let hint = beside("lockhound_writer:", key);
        let writer = text(&allowed(ask(visit, &["GET", &hint]).await)?);
        let writer = writer.filter(|writer| !shape.waiters.contains(writer));
        shape.waiters.extend(writer);
    }
    if shape.fence.is_none() && has_fence(shape.kind) {
        shape.fence = fence(visit, at).await?;
    }
    Ok(shape)
}

/// A hash of owners and their hold counts, or of readers and writers beside a mode. A part of a
/// large one is enough.
async fn hash(visit: &Visit, key: &str) -> Result<Shape, Unanswered> {
    let reply = ask(visit, &["HSCAN", key, "0", "COUNT", "16"]).await?;
    let fields = match &reply {
        ServerReply::List(parts) => parts.last().map(texts).unwrap_or_default(),
        _ => Vec::new(),
    };
    let mut has_mode = false;
    for field in fields.chunks(2) {
        match field {
            [mode, how] if mode == "mode" && ["read", "write"].contains(&how.as_str()) => {
                has_mode = true;
            }
            [owner, count] if is_owner(owner) && count.parse::<u64>().is_ok() => {}
            _ => return Ok(Shape::default()),
        }
    }
    if has_mode {
        return Ok(Shape::of(Kind::ReadWrite));
    }
    let Some(owner) = fields.first() else {
        return Ok(Shape::default());
    };
    let leader = beside("lockhound_leader:", key);
    let said = allowed(ask(visit, &["HMGET", &leader, "field", "term"]).await)?;
    match &texts(&said)[..] {
        [field, term] if field == owner => Ok(Shape {
            fence: term.parse().ok(),
            ..Shape::of(Kind::Election)
        }),
        _ => Ok(Shape::of(Kind::Lock)),
    }
}

/// The owner of a plain lock, or a counter, whose kind is that of the keys beside it.
async fn string(visit: &Visit, key: &str) -> Result<Shape, Unanswered> {
    let value = text(&ask(visit, &["GETRANGE", key, "0", "127"]).await?).unwrap_or_default();
    if is_owner(&value) {
        return Ok(Shape::of(Kind::Plain));
    }
    let Ok(count) = value.parse::<i64>() else {
        let lease = number(&ask(visit, &["PTTL", key]).await?);
        // A client in another language may have taken it.
        return Ok(match lease {
            Some(0..) => Shape {
                is_unsure: true,
                ..Shape::of(Kind::Plain)
            },
            _ => Shape::default(),
        });
    };
    for (kind, beside) in [
        (Kind::Permits, permit_records(key)),
        (Kind::Semaphore, beside("lockhound_permits:", key)),
        (Kind::Latch, beside("lockhound_counted:", key)),
    ] {
        let is = allowed(ask(visit, &["TYPE", &beside]).await)?;
        if text(&is).as_deref() == Some("zset") {
            return Ok(Shape::of(kind));
        }
    }
    Ok(Shape {
        count: Some(count),
        is_unsure: true,
        ..Shape::of(Kind::Counter)
    })
}

fn has_fence(kind: Option<Kind>) -> bool {
    use Kind::{Election, Fair, Lock, Plain, ReadWrite};
    matches!(kind, Some(Lock | Fair | ReadWrite | Election | Plain))
}

/// Returns Redisson's token, or the mark: the last fence of this lock, or of one that shares it.
async fn fence(visit: &Visit, at: At<'_>) -> Result<Option<u64>, Unanswered> {
    let token = prefixed("redisson_lock_token:", at.key);
    if let Some(token) = count(visit, &token).await? {
        return Ok(Some(token));
    }
    if !at.in_cluster {
        return count(visit, &mark(at.key)).await;
    }
    match mark_in_cluster(at.key) {
        Some(mark) => count(visit, &mark).await,
        None => Ok(None),
    }
}

async fn count(visit: &Visit, key: &str) -> Result<Option<u64>, Unanswered> {
    let count = number(&allowed(ask(visit, &["GET", key]).await)?);
    Ok(count.and_then(|count| u64::try_from(count).ok()))
}

/// Takes what this user may not read, or what is something else, for nothing: the lock itself can
/// be told all the same.
fn allowed(answer: Result<ServerReply, Unanswered>) -> Result<ServerReply, Unanswered> {
    match answer {
        Err(Unanswered::Forbidden(_)) => Ok(ServerReply::Nil),
        Err(Unanswered::Refused(why)) if why.contains("WRONGTYPE") => Ok(ServerReply::Nil),
        answer => answer,
    }
}
