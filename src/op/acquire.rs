//! Takes locks.

use std::iter::once;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::fair::{Queued, queue_keys, queued, wakes};
use super::permits::{Served, acquire_words, served};
use super::refusal::{Subject, subjects};
use super::release::Release;
use super::reply::{array, fence, forbidden, is_forgotten, remaining};
use super::sending::{ClusterRoute, Op};
use super::slots::{by_slot, chosen, torn};
use super::word::{
    NOTHING, Word, batched, channel, counter, fields, lock, millis, number, scripts_of, text,
    timeout,
};
use crate::claim::{Among, Claim, How, InTurn, Listing, Wakes};
use crate::error::NodeFailure;
use crate::fence::{Fence, Source};
use crate::kind::LockRole;
use crate::lua::Topology;
use crate::node::{Call, Outcome, Reply, Step, WordList};

/// Takes all of these locks, which are of one kind, or none. If the answer is to be a vote, `vote`
/// is the id of the memory that the server has to have, the one that it had when it was vetted;
/// without that memory it does nothing.
#[derive(Debug, Clone)]
pub(crate) struct Acquire {
    pub(crate) claims: Arc<[Claim]>,
    pub(crate) lease: Duration,
    pub(crate) fences: Source,
    pub(crate) vote: Option<Arc<str>>,
    pub(crate) how: How,
}

/// What a server answered to an acquire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AcquireAnswer {
    /// All requested locks are granted, with one fence for each.
    Granted(Vec<Fence>),
    /// One is held by another, for at most this long if its lease is not renewed, or without a
    /// lease if `None`.
    Held(Option<Duration>),
    /// The same, for a locker that goes into the list.
    Listed(Option<Duration>, ListPlace),
    /// Of several callers that want permits, the first ones have theirs.
    Served(Served),
}

impl AcquireAnswer {
    /// Returns whether the server has granted any of what it was asked for.
    pub(crate) fn is_granted(&self) -> bool {
        match self {
            Self::Granted(_) => true,
            Self::Served(served) => served.callers > 0,
            Self::Held(_) | Self::Listed(..) => false,
        }
    }
}

/// A locker's place in a lock's waiting list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ListPlace {
    /// This many are before it.
    Behind(u64),
    /// The server refused to put it there, with this error.
    Refused(String),
    /// Its callers are in the queue of a fair lock.
    InQueue(Queued),
}

impl Op for Acquire {
    /// `None` if the server does not have the memory for the vote, and has done nothing.
    type Output = Option<AcquireAnswer>;

    fn call(&self, topology: Topology) -> Call {
        let Self {
            claims,
            lease,
            fences,
            vote,
            how,
        } = self;
        let scripts = scripts_of(claims);
        let (script, name) = match (&**claims, how) {
            ([_], How::Listed(_)) => (&scripts.enlist, Some("enlist")),
            ([_], How::Plainly) => (&scripts.acquire, Some("acquire")),
            ([_], How::Among(_) | How::InTurn(_)) | (_, How::Permits { .. }) => {
                (&scripts.acquire, None)
            }
            _ => (&scripts.acquire_all, None),
        };
        let keys = claims
            .iter()
            .flat_map(|claim| [lock(&claim.key), counter(claim, *fences, topology)]);
        let args = once(millis(*lease))
            .chain(fields(claims))
            .chain(once(number(fences.clock())));
        let words = match (&**claims, how) {
            ([claim], How::Listed(listing)) => {
                WordList::new(keys, args.chain(listed(claim, listing)))
            }
            ([claim], How::Among(among)) => {
                WordList::new(keys.chain(timeout(claim)), args.chain(asked(claim, among)))
            }
            ([claim], How::InTurn(turn)) => WordList::new(
                keys.chain(queue_keys(&claim.key)),
                args.chain(in_turn(claim, turn, topology)),
            ),
            (
                _,
                How::Permits {
                    capacity,
                    of_locker,
                },
            ) => acquire_words(claims, *lease, *of_locker, *capacity),
            _ => WordList::new(keys, args),
        };
        Call::Step(Step {
            alone: script.for_vote(topology, vote),
            batched: name.map(|name| batched(scripts, topology, name)),
            words,
            vote: vote.clone(),
            takes: true,
            idle: match how {
                How::Permits { .. } => serves_nobody,
                // What it puts into the queue, it puts there once.
                How::InTurn(_) => |reply| queued(reply).is_some() || is_forgotten(reply),
                _ => |reply| held_for(reply).is_some() || is_forgotten(reply),
            },
            slot: None,
        })
    }

    fn read(&self, reply: &Reply) -> Option<Option<AcquireAnswer>> {
        if is_forgotten(reply) {
            return Some(None);
        }
        let callers = self.claims.len();
        match self.how {
            How::Permits { .. } => served(reply)
                .filter(|served| served.callers <= callers)
                .map(|served| Some(AcquireAnswer::Served(served))),
            How::InTurn(_) => {
                let listed = |(ttl, queued)| AcquireAnswer::Listed(ttl, ListPlace::InQueue(queued));
                let answer = queued(reply).map(listed);
                answer.or_else(|| self::answer(reply, callers)).map(Some)
            }
            _ => answer(reply, callers).map(Some),
        }
    }

    fn wrote(answer: &Option<AcquireAnswer>) -> bool {
        answer.as_ref().is_some_and(AcquireAnswer::is_granted)
    }

    fn keys(&self, topology: Topology) -> Vec<Subject> {
        let counts = !matches!(self.how, How::Permits { .. });
        subjects(&self.claims, counts.then_some(self.fences), topology)
    }

    async fn on_cluster(&self, route: &ClusterRoute<'_>) -> Outcome<Option<AcquireAnswer>> {
        if let Some(error) = self.claims.iter().find_map(|claim| torn(&claim.key)) {
            return Outcome::Refused(error);
        }
        debug_assert_eq!(
            self.vote, None,
            "a cluster stands alone, and remembers nothing"
        );
        let slots = by_slot(&self.claims);
        if slots.len() > 1 {
            self.acquire_slots(&slots, route).await
        } else {
            route.ask(self).await
        }
    }
}

impl Acquire {
    /// Takes the locks of one slot after the other. If a slot is refused, the locks taken before
    /// are released before the refusal is returned.
    async fn acquire_slots(
        &self,
        slots: &[Vec<usize>],
        route: &ClusterRoute<'_>,
    ) -> Outcome<Option<AcquireAnswer>> {
        let mut fences = vec![None; self.claims.len()];
        let mut taken: Vec<usize> = Vec::new();
        // In the order of the slots: of two callers that want the same locks, the one that gets the
        // first slot gets the others.
        for members in slots {
            let acquire = Self {
                claims: chosen(&self.claims, members),
                vote: None,
                how: How::Plainly,
                ..*self
            };
            match route.ask(&acquire).await {
                Outcome::Done(Some(AcquireAnswer::Granted(given)))
                    if given.len() == members.len() =>
                {
                    members
                        .iter()
                        .zip(given)
                        .for_each(|(&at, fence)| fences[at] = Some(fence));
                    taken.extend(members);
                }
                // The caller undoes all of it, what the slots before have granted too.
                unknown @ Outcome::Unknown(_) => return unknown,
                refused => {
                    return match self.give_back(&taken, route).await {
                        Ok(()) => refused,
                        // They may still be held, and the caller undoes all of them.
                        Err(failure) => Outcome::Unknown(failure),
                    };
                }
            }
        }
        match fences.into_iter().collect::<Option<Vec<_>>>() {
            Some(fences) => Outcome::Done(Some(AcquireAnswer::Granted(fences))),
            None => {
                let node = route.node.name();
                Outcome::Unknown(NodeFailure::new(node, "a slot was not asked"))
            }
        }
    }

    /// Releases what was taken, all at once.
    ///
    /// # Errors
    /// Why a lock may still be held.
    async fn give_back(
        &self,
        taken: &[usize],
        route: &ClusterRoute<'_>,
    ) -> Result<(), NodeFailure> {
        let released = join_all(taken.iter().map(|&at| {
            let release = Release {
                claim: self.claims[at].clone(),
                rest: None,
                wakes: Wakes::All,
            };
            async move { route.ask(&release).await }
        }));
        released
            .await
            .into_iter()
            .try_for_each(|outcome| match outcome {
                Outcome::Done(_) => Ok(()),
                Outcome::NotExecuted(failure) | Outcome::Unknown(failure) => Err(failure),
                Outcome::Refused(error) => {
                    Err(NodeFailure::new(route.node.name(), error.to_string()))
                }
            })
    }
}

/// Returns what an acquire says about the locker that goes into the list.
fn listed<'a>(claim: &'a Claim, listing: &'a Listing) -> [Word<'a>; 4] {
    let Listing {
        locker,
        looked,
        lifetime,
    } = listing;
    let looked = if *looked { "1" } else { "" };
    [
        Word::List(&claim.key),
        text(&**locker),
        text(looked),
        millis(*lifetime),
    ]
}

/// Returns what an acquire says of the queue.
fn in_turn<'a>(claim: &'a Claim, turn: &'a InTurn, topology: Topology) -> Vec<Word<'a>> {
    let InTurn {
        tickets,
        passed,
        stands,
    } = turn;
    let passed = passed.as_deref().map_or(NOTHING, text);
    let number_of = number(tickets.len() as u64);
    let queue = [
        channel(&claim.key),
        wakes(topology),
        passed,
        millis(*stands),
        number_of,
    ];
    queue.into_iter().chain(tickets.iter().map(text)).collect()
}

/// Returns what an acquire says among readers and writers.
fn asked<'a>(claim: &'a Claim, among: &'a Among) -> Vec<Word<'a>> {
    let writer = text(claim.key.writer_hint());
    let reader = text(claim.key.reader_hint());
    let lasts = among.hint.map_or(NOTHING, millis);
    let locker = || text(&*among.locker);
    let comes = || millis(among.comes);
    match (claim.kind.role, &among.under) {
        (LockRole::Write | LockRole::Alone | LockRole::InTurn | LockRole::Permit, _) => {
            let waits = among.hint.map_or(NOTHING, |_| locker());
            vec![writer, waits, reader, lasts]
        }
        (LockRole::Read, None) => vec![NOTHING, writer, reader, lasts, locker(), comes()],
        // Whoever waits, its owner must not wait for itself.
        (LockRole::Read, Some(under)) => {
            vec![text(&**under), NOTHING, reader, lasts, locker(), comes()]
        }
    }
}

fn answer(reply: &Reply, locks: usize) -> Option<AcquireAnswer> {
    match array(reply)? {
        [Reply::Int(1), given @ ..] if given.len() == locks => given
            .iter()
            .map(fence)
            .collect::<Option<_>>()
            .map(AcquireAnswer::Granted),
        [Reply::Int(0), Reply::Int(ttl), Reply::Int(place)] => {
            let place = ListPlace::Behind(u64::try_from(*place).ok()?);
            Some(AcquireAnswer::Listed(remaining(*ttl), place))
        }
        [Reply::Int(0), Reply::Int(ttl), Reply::Bytes(error)] => Some(match forbidden(error) {
            Some(error) => AcquireAnswer::Listed(remaining(*ttl), ListPlace::Refused(error)),
            None => AcquireAnswer::Held(remaining(*ttl)),
        }),
        _ => held_for(reply).map(|ttl| AcquireAnswer::Held(remaining(ttl))),
    }
}

fn serves_nobody(reply: &Reply) -> bool {
    served(reply).is_some_and(|served| served.callers == 0) || is_forgotten(reply)
}

/// Returns the TTL of a lock that another holds.
fn held_for(reply: &Reply) -> Option<i64> {
    match array(reply)? {
        [Reply::Int(0), Reply::Int(ttl)] | [Reply::Int(0), Reply::Int(ttl), _] => Some(*ttl),
        _ => None,
    }
}
