//! The commands, executed in memory as the Lua scripts execute them on a server.
//!
//! Each function here does the same as its script in `lua/`, in the same order: a script that ends with an error keeps
//! what it has written so far. `script/differential.rs` compares the two. Rights of users, servers that run out of
//! memory, and replicas are not modelled.

use std::sync::Arc;
use std::time::Duration;

use super::double::{exact, number, whole};
use super::keyspace::{Field, Keyspace, Value, WrongType, millis};
use crate::command::{
    Acquire, Answer, Claim, Command, Count, HandOver, Kind, MEMORY, Raise, Release, Renew, Standing, Wakes, no_lock,
    remaining, sha1,
};
use crate::fence::{Fence, Source};
use crate::key::Key;

/// Why a command has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The server answered with this error.
    Refused(String),
    /// The answer cannot be read: it is unknown what was done.
    Unreadable,
}

impl From<WrongType> for Failure {
    fn from(_: WrongType) -> Self {
        refused("WRONGTYPE Operation against a key holding the wrong kind of value")
    }
}

/// The subscribers of a server's channels.
pub(crate) trait Ears {
    /// Sends a message to the subscribers of a channel, and returns their number.
    fn publish(&mut self, channel: &str, text: &str) -> u64;
    /// Returns the number of subscribers of a channel.
    fn listening(&self, channel: &str) -> u64;
}

/// Who holds a lock, from the point of view of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    Nobody,
    Claimant,
    Another,
}

/// The number of microseconds after which the client's clock is compared with the server's again, and the largest
/// difference between the two that is accepted.
const ROUND: i64 = 20_000_000;

/// 30 days, in microseconds: a number that is further ahead of the server's clock is not taken for a fence.
const FAR: u64 = 2_592_000_000_000;

/// The data and the identity of one server.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    pub(crate) keys: Keyspace,
    run_id: String,
    /// The id of the replication to which it belonged before, as `INFO` shows it: zeros if it never was a replica.
    second_id: String,
}

impl Store {
    pub(crate) fn new(run_id: &str, second_id: &str) -> Self {
        Self { keys: Keyspace::default(), run_id: run_id.to_owned(), second_id: second_id.to_owned() }
    }

    /// Executes a command while the server's wall clock shows this many microseconds.
    pub(crate) fn run(&mut self, now_us: u64, command: &Command, ears: &mut dyn Ears) -> Result<Answer, Failure> {
        self.keys.set_clock(now_us / 1_000);
        let mut run = Run { keys: &mut self.keys, now_us, ears };
        match command {
            Command::Acquire { claims, lease, fences, vote, listing } => run
                .if_it_remembers(vote, |run| {
                    let answer = run.acquire(claims, *lease, *fences);
                    match (&**claims, listing) {
                        ([claim], Some(listing)) => run.enlist(&claim.key, listing, answer),
                        _ => answer,
                    }
                })
                .map(Answer::Acquire),
            Command::Count { claim, count } => run.count(claim, *count).map(Answer::Count),
            Command::Release { claim, wakes } => Ok(Answer::Release(run.release(claim, wakes))),
            Command::Pass { key, locker } => Ok(Answer::Release(run.pass(key, locker))),
            Command::Keep { claim, rest } => run.keep(claim, *rest).map(Answer::Release),
            Command::HandOver { from, to, lease, fences } => {
                run.hand_over(from, to, *lease, *fences).map(Answer::HandOver)
            }
            Command::Retake { claim, lease, count, vote } => {
                run.if_it_remembers(vote, |run| run.retake(claim, *lease, *count)).map(Answer::Retake)
            }
            Command::Extend { claim, lease } => Ok(Answer::Extend(run.extend(claim, *lease))),
            Command::Raise { claim, fence } => run.raise(claim, *fence).map(Answer::Raise),
            Command::Renew { claims, lease } => {
                Ok(Answer::Renew(claims.iter().map(|claim| run.renew(claim, *lease)).collect()))
            }
            Command::Label { locker, label } => Ok(run.label(locker, label.as_deref())),
            Command::LabelOf(locker) => run.label_of(locker).map(Answer::LabelOf),
            Command::Inspect(key) => run.inspect(key).map(Answer::Inspect),
            Command::Holders(key) => run.holders(key).map(Answer::Holders),
            Command::Force { key, holders } => run.force(key, holders).map(Answer::Force),
            Command::Vet(announced) => run.vet(announced.as_ref(), &self.run_id, &self.second_id).map(Answer::Vet),
            Command::Ask { about, vote } => run.if_it_remembers(vote, |run| run.ask(about)).map(Answer::Ask),
            Command::Open(opening) => run.open(opening).map(Answer::Open),
        }
    }
}

/// One command under way.
pub(super) struct Run<'a> {
    pub(super) keys: &'a mut Keyspace,
    now_us: u64,
    pub(super) ears: &'a mut dyn Ears,
}

/// The check of a server's memory.
impl Run<'_> {
    fn remembers(&mut self, vote: &Option<Arc<str>>) -> Result<bool, Failure> {
        let Some(vote) = vote else { return Ok(true) };
        Ok(self.keys.field(MEMORY, vote)?.is_some())
    }

    fn if_it_remembers<T>(
        &mut self,
        vote: &Option<Arc<str>>,
        work: impl FnOnce(&mut Self) -> Result<T, Failure>,
    ) -> Result<Option<T>, Failure> {
        if self.remembers(vote)? { work(self).map(Some) } else { Ok(None) }
    }
}

/// Locks.
impl Run<'_> {
    /// In the plain format a key of another type counts as held by another.
    fn holder(&mut self, Claim { kind, key, field }: &Claim) -> Result<Holder, Failure> {
        let is_claimants = match kind {
            Kind::Redisson => self.keys.field(key.as_str(), field)?.is_some(),
            Kind::Plain => self.keys.text(key.as_str()).is_ok_and(|text| text == Some(field.as_bytes())),
        };
        Ok(match self.keys.kind(key.as_str()) {
            "none" => Holder::Nobody,
            _ if is_claimants => Holder::Claimant,
            _ => Holder::Another,
        })
    }

    /// A key of another type does not hold this claim's lock.
    pub(super) fn is_held(&mut self, claim: &Claim) -> bool {
        self.holder(claim) == Ok(Holder::Claimant)
    }

    fn acquire(&mut self, claims: &[Claim], lease: Duration, from: Source) -> Result<Acquire, Failure> {
        for claim in claims {
            if self.holder(claim)? == Holder::Another {
                return Ok(Acquire::Held(remaining(self.keys.ttl(claim.key.as_str()))));
            }
        }
        let mut fences = Vec::with_capacity(claims.len());
        for claim in claims {
            fences.push(self.next_fence(&claim.counter(from), from.clock())?);
        }
        for claim in claims {
            let is_new = claim.kind == Kind::Plain || !self.is_held(claim);
            self.put(claim, lease, is_new.then_some(1))?;
        }
        fences.into_iter().map(Fence::read).collect::<Option<_>>().map(Acquire::Granted).ok_or(Failure::Unreadable)
    }

    /// Increments the mark, or Redisson's counter. If a clock is ahead of it, it continues from that clock: the
    /// client's, within bounds, or this server's if the client's is negative.
    fn next_fence(&mut self, mark: &str, clock: i64) -> Result<i64, Failure> {
        // With several servers the script writes the client's clock with SET, which removes a lifetime of the mark.
        if clock > 0
            && let Some(text) = self.keys.text(mark)?.map(<[u8]>::to_vec)
        {
            self.keys.set(mark, Value::Text(text), None);
        }
        let (fence, now) = (self.count_up(mark)?, i64::try_from(self.now_us).unwrap_or(i64::MAX));
        let clock = if fence < -clock {
            now
        } else if (fence.rem_euclid(ROUND) + clock).saturating_sub(fence) >= ROUND {
            clock.clamp(now - ROUND, now + ROUND)
        } else {
            clock
        };
        if fence < clock {
            self.set(mark, clock.to_string());
        }
        Ok(fence.max(clock))
    }

    /// Restarts the lease, and writes the count if one is given.
    fn put(&mut self, Claim { kind, key, field }: &Claim, lease: Duration, count: Option<u32>) -> Result<(), Failure> {
        match (kind, count) {
            (Kind::Plain, _) => {
                self.keys.set(key.as_str(), Value::Text(field.as_bytes().to_vec()), Some(millis(lease)));
                return Ok(());
            }
            (Kind::Redisson, Some(count)) => self.keys.set_field(key.as_str(), field, &count.to_string())?,
            (Kind::Redisson, None) => {}
        }
        self.keys.expire(key.as_str(), millis(lease));
        Ok(())
    }

    fn count(&mut self, claim: &Claim, count: u32) -> Result<Count, Failure> {
        if !self.is_held(claim) {
            return Ok(Count::Gone);
        }
        if claim.kind == Kind::Redisson {
            self.keys.set_field(claim.key.as_str(), &claim.field, &count.to_string())?;
        }
        Ok(Count::Written)
    }

    fn release(&mut self, claim: &Claim, wakes: &Wakes) -> Release {
        if !self.is_held(claim) {
            return Release::Gone;
        }
        self.keys.delete(claim.key.as_str());
        self.wake(&claim.key, wakes)
    }

    fn renew(&mut self, claim: &Claim, lease: Duration) -> Renew {
        if !self.is_held(claim) {
            return Renew::Gone;
        }
        self.keys.expire(claim.key.as_str(), millis(lease));
        Renew::Renewed
    }

    fn hand_over(&mut self, from: &Claim, to: &Claim, lease: Duration, fences: Source) -> Result<HandOver, Failure> {
        if !self.is_held(from) {
            return Ok(HandOver::Gone);
        }
        let fence = self.next_fence(&to.counter(fences), fences.clock())?;
        self.keys.delete(to.key.as_str());
        self.put(to, lease, Some(1))?;
        Fence::read(fence).map(HandOver::Granted).ok_or(Failure::Unreadable)
    }

    /// Deletes a lock, notifies the waiters, and returns how many clients got the message.
    fn free(&mut self, key: &Key) -> u64 {
        self.keys.delete(key.as_str());
        self.tell_all(key)
    }

    /// Writes the lock under a field that no command names. No waiter is notified.
    fn keep(&mut self, claim: &Claim, rest: Duration) -> Result<Release, Failure> {
        if !self.is_held(claim) {
            return Ok(Release::Gone);
        }
        self.keys.delete(claim.key.as_str());
        let kept = Claim { field: format!("{}:kept", claim.field).into(), ..claim.clone() };
        self.put(&kept, rest, Some(1)).map(|()| Release::Released(0))
    }

    fn retake(&mut self, claim: &Claim, lease: Duration, count: u32) -> Result<bool, Failure> {
        if self.holder(claim)? == Holder::Another {
            return Ok(false);
        }
        self.put(claim, lease, Some(count)).map(|()| true)
    }

    fn raise(&mut self, claim: &Claim, fence: Fence) -> Result<Raise, Failure> {
        if !self.is_held(claim) {
            return Ok(Raise::Gone);
        }
        let mark = claim.key.mark();
        if self.number_in(mark)? >= exact(fence.get()) {
            return Ok(Raise::Raised);
        }
        if fence.get() > self.latest() {
            return Ok(Raise::TooHigh);
        }
        self.set(mark, fence.to_string());
        Ok(Raise::Raised)
    }
}

/// The holders of a lock, of this crate or of other clients.
impl Run<'_> {
    fn inspect(&mut self, key: &Key) -> Result<Option<Standing>, Failure> {
        let remaining = remaining(self.keys.ttl(key.as_str()));
        let (owner, count) = match self.keys.kind(key.as_str()) {
            "none" => return Ok(None),
            "string" => (self.keys.text(key.as_str())?.unwrap_or_default().to_vec(), 1),
            "hash" => {
                let fields = self.keys.fields(key.as_str())?;
                // The hash of Redisson's read-write lock has a field for its mode besides those of its holders.
                let past_mode = fields.first().is_some_and(|(name, _)| name == b"mode") && fields.len() > 1;
                let Some((owner, count)) = fields.get(usize::from(past_mode)) else { return Ok(None) };
                (owner.clone(), number(count).map_or(1, whole))
            }
            other => return Err(Failure::Refused(no_lock(key, other))),
        };
        Ok(Some(Standing { owner, count, remaining }))
    }

    fn holders(&mut self, key: &Key) -> Result<Vec<String>, Failure> {
        match self.keys.kind(key.as_str()) {
            "none" => Ok(Vec::new()),
            "string" => Ok(self.standing(key)?.iter().map(|holder| sha1(holder)).collect()),
            "hash" => {
                let (names, others): (Vec<_>, Vec<_>) =
                    self.keys.fields(key.as_str())?.iter().partition(|(field, value)| is_holder(field, value));
                let is_mode =
                    |(field, value): &&Field| field == b"mode" && [&b"read"[..], b"write"].contains(&value.as_slice());
                if names.is_empty() || !others.iter().all(is_mode) {
                    return Err(Failure::Refused(no_lock(key, "hash")));
                }
                Ok(names.iter().map(|(field, _)| sha1(field)).collect())
            }
            other => Err(Failure::Refused(no_lock(key, other))),
        }
    }

    fn force(&mut self, key: &Key, holders: &[String]) -> Result<bool, Failure> {
        let is_hash = self.keys.kind(key.as_str()) == "hash";
        let standing = self.standing(key)?;
        let (named, others): (Vec<_>, Vec<_>) =
            standing.into_iter().partition(|holder| holders.contains(&sha1(holder)));
        let is_nobody = |other: &Vec<u8>| is_hash && other == b"mode";
        if named.is_empty() || !others.iter().all(is_nobody) {
            return Ok(false);
        }
        self.free(key);
        Ok(true)
    }

    /// Returns the value of a key that may be a lock: its text, or the names of all its fields.
    fn standing(&mut self, key: &Key) -> Result<Vec<Vec<u8>>, Failure> {
        Ok(match self.keys.kind(key.as_str()) {
            "string" => self.keys.text(key.as_str())?.map(<[u8]>::to_vec).into_iter().collect(),
            "hash" => self.keys.fields(key.as_str())?.iter().map(|(field, _)| field.clone()).collect(),
            _ => Vec::new(),
        })
    }
}

/// Numbers.
impl Run<'_> {
    /// INCR.
    fn count_up(&mut self, key: &str) -> Result<i64, Failure> {
        let found = self.keys.text(key)?.map(|text| String::from_utf8_lossy(text).into_owned());
        let number = found.as_deref().map_or(Some(0), |text| text.parse().ok().filter(|n: &i64| n.to_string() == text));
        let number = number.ok_or_else(|| refused("ERR value is not an integer or out of range"))?;
        let next = number.checked_add(1).ok_or_else(|| refused("ERR increment or decrement would overflow"))?;
        self.keys.replace(key, Value::Text(next.to_string().into_bytes()));
        Ok(next)
    }

    pub(super) fn number_in(&mut self, key: &str) -> Result<f64, Failure> {
        self.keys.text(key)?.map_or(Ok(0.0), |text| number(text).ok_or_else(no_number))
    }

    pub(super) fn set(&mut self, key: &str, text: String) {
        self.keys.set(key, Value::Text(text.into_bytes()), None);
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.now_us / 1_000
    }

    /// Returns the highest number that may be a fence.
    pub(super) fn latest(&self) -> u64 {
        self.now_us / 1_000_000 * 1_000_000 + FAR
    }
}

/// Returns whether a field is a holder's: owners of this crate and of Redisson begin with a uuid, and have a hold
/// count.
fn is_holder(field: &[u8], value: &[u8]) -> bool {
    let uuid = field.get(..36).is_some_and(|uuid| uuid.iter().all(|c| c.is_ascii_hexdigit() || *c == b'-'));
    uuid && field.get(36) == Some(&b':') && !value.is_empty() && value.iter().all(u8::is_ascii_digit)
}

pub(super) fn no_number() -> Failure {
    refused("ERR attempt to compare a number with nil")
}

fn refused(error: &str) -> Failure {
    Failure::Refused(error.to_owned())
}
