//! Mistakes that a memory server could have, by each of which it does something else than the scripts.

use crate::command::{
    Acquire, Amendment, Answer, Claim, Command, Count, HandOver, Identity, Kind, MEMORY, Place, Raise, Release,
    Releaser, Wakes, sha1,
};
use crate::fence::{Fence, Source};
use crate::testing::{Ears, Failure, Store, Value};

/// A mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mutant {
    /// A key is gone in the millisecond in which its lease ends.
    EndsEarly,
    /// A second copy of an acquire does not start the lease anew.
    KeepsTheFirstLease,
    /// .. or counts the hold up.
    CountsCopies,
    /// What is free of several locks is taken, though another is held.
    TakesSome,
    /// A write of the count starts the lease anew.
    CountRenews,
    /// A release takes its own field away, and leaves what else is in the hash.
    LeavesTheRest,
    /// A release tells nobody.
    IsMute,
    /// A lock that is kept stays under its field, where a renewal that comes late finds it.
    KeepsTheField,
    /// A hand-over takes a lock that is free.
    HandsOverWhatIsFree,
    /// .. or leaves the first holder's lease.
    HandsTheLeaseOver,
    /// .. or tells the waiters.
    TellsOfHandOvers,
    /// A renewal takes a lock that is free.
    RenewalTakes,
    /// A client's clock is always cut to the server's, and not only where the mark enters another 20 s.
    CutsEveryClock,
    /// Redisson's tokens come from the lock's mark.
    TokensOfMarks,
    /// A fence is believed however far ahead it is.
    BelievesEveryFence,
    /// A raise writes what it is told, be it lower than the mark.
    Lowers,
    /// In the plain format a hash is no lock, and is overwritten.
    OverwritesHashes,
    /// Whoever has forgotten takes the lock all the same.
    VotesWithoutMemory,
    /// A server votes though it was told of a longer lease than it has waited for.
    VotesEarly,
    /// A force_unlock releases the lock though somebody else is in it too.
    ForcesBystanders,
    /// A server that begins anew forgets the longest lease.
    ForgetsTheLongestLease,
    /// A locker that comes again to the list loses its place.
    ComesLast,
    /// One that releases is not put behind the others.
    DropsWhoReleases,
    /// A grant leaves its locker in the list.
    StaysListed,
    /// Whoever did not come stays the first of the list.
    WaitsForTheFirst,
    /// Others have no turn.
    GivesNoTurns,
    /// A list is kept for ever.
    KeepsLists,
}

impl Mutant {
    pub(super) const ALL: [Self; 27] = [
        Self::EndsEarly,
        Self::KeepsTheFirstLease,
        Self::CountsCopies,
        Self::TakesSome,
        Self::CountRenews,
        Self::LeavesTheRest,
        Self::IsMute,
        Self::KeepsTheField,
        Self::HandsOverWhatIsFree,
        Self::HandsTheLeaseOver,
        Self::TellsOfHandOvers,
        Self::RenewalTakes,
        Self::CutsEveryClock,
        Self::TokensOfMarks,
        Self::BelievesEveryFence,
        Self::Lowers,
        Self::OverwritesHashes,
        Self::VotesWithoutMemory,
        Self::VotesEarly,
        Self::ForcesBystanders,
        Self::ForgetsTheLongestLease,
        Self::ComesLast,
        Self::DropsWhoReleases,
        Self::StaysListed,
        Self::WaitsForTheFirst,
        Self::GivesNoTurns,
        Self::KeepsLists,
    ];

    /// What a store with this mistake does.
    pub(super) fn run(
        self,
        store: &mut Store,
        now_us: u64,
        command: &Command,
        ears: &mut dyn Ears,
    ) -> Result<Answer, Failure> {
        store.keys.set_clock(now_us / 1_000);
        let (mut before, mut command) = (store.clone(), command.clone());
        self.change(store, now_us, &mut command);
        let ears = if self == Self::IsMute { &mut Nobody } else { ears };
        let mut answer = store.run(now_us, &command, ears);
        if let (Self::TellsOfHandOvers, Command::HandOver { to, .. }, Ok(Answer::HandOver(HandOver::Granted(_)))) =
            (self, &command, &answer)
        {
            ears.publish(&to.key.channel(), "0");
        }
        if let Ok(answer) = &mut answer {
            self.spoil(store, now_us, &mut before, &command, answer);
        }
        if let (Self::RenewalTakes, Command::Renew { claims, lease, .. }) = (self, command) {
            for claim in claims.iter().filter(|claim| before.keys.kind(claim.key.as_str()) == "none") {
                let take = Command::Retake { claim: claim.clone(), lease, count: 1, vote: None };
                store.run(now_us, &take, ears)?;
            }
        }
        answer
    }

    /// What is asked of it, or what it has, is something else than it should be.
    fn change(self, store: &mut Store, now_us: u64, command: &mut Command) {
        match (self, command) {
            (Self::EndsEarly, _) => {
                let over = |(key, _, ttl): (&str, &Value, Option<u64>)| (ttl == Some(0)).then(|| key.to_owned());
                let over: Vec<String> = store.keys.all().filter_map(over).collect();
                over.iter().for_each(|key| store.keys.delete(key));
            }
            (Self::TakesSome, Command::Acquire { claims, .. }) => {
                let is_free = |claim: &&Claim| store.keys.kind(claim.key.as_str()) == "none";
                let free: Vec<Claim> = claims.iter().filter(is_free).cloned().collect();
                if !free.is_empty() {
                    *claims = free.into();
                }
            }
            (Self::HandsOverWhatIsFree, Command::HandOver { from, lease, .. })
                if store.keys.kind(from.key.as_str()) == "none" =>
            {
                let take = Command::Retake { claim: from.clone(), lease: *lease, count: 1, vote: None };
                store.run(now_us, &take, &mut Nobody).expect("it is free");
            }
            (Self::CutsEveryClock, Command::Acquire { fences: Source::Marks { clock }, .. }) if *clock > 0 => {
                let now = i64::try_from(now_us).unwrap_or(i64::MAX);
                *clock = (*clock).clamp(now - 20_000_000, now + 20_000_000);
            }
            (Self::TokensOfMarks, Command::Acquire { fences, .. }) => *fences = Source::Marks { clock: fences.clock() },
            (Self::OverwritesHashes, Command::Acquire { claims, .. }) => {
                for claim in claims.iter().filter(|claim| claim.kind == Kind::Plain) {
                    if store.keys.kind(claim.key.as_str()) == "hash" {
                        store.keys.delete(claim.key.as_str());
                    }
                }
            }
            (Self::ComesLast, Command::Acquire { claims, listing: Some(listing), .. }) => {
                let _: Result<_, _> = store.keys.remove_member(&claims[0].key.waiting(), &listing.locker);
            }
            (Self::DropsWhoReleases, Command::Release { wakes: Wakes::Next(Some(Releaser { enlists, .. })), .. }) => {
                *enlists = false;
            }
            (Self::WaitsForTheFirst, Command::Acquire { listing: Some(listing), .. }) => listing.looked = false,
            (Self::GivesNoTurns, Command::Release { wakes: Wakes::Next(Some(Releaser { offers, .. })), .. }) => {
                *offers = false;
            }
            (Self::VotesWithoutMemory, Command::Acquire { vote, .. }) => *vote = None,
            (Self::VotesEarly, Command::Amend(Amendment { waited, .. })) => *waited = None,
            (Self::ForcesBystanders, Command::Force { key, holders }) => {
                let fields = store.keys.fields(key.as_str()).unwrap_or_default();
                let standing: Vec<String> = fields.iter().map(|(field, _)| sha1(field)).collect();
                if standing.iter().any(|holder| holders.contains(holder)) {
                    *holders = standing.into();
                }
            }
            _ => {}
        }
    }

    /// What it has done, or says, is something else than it should have.
    fn spoil(self, store: &mut Store, now_us: u64, before: &mut Store, command: &Command, answer: &mut Answer) {
        match (self, command, answer) {
            (Self::KeepsTheFirstLease, Command::Acquire { claims, .. }, Answer::Acquire(Some(Acquire::Granted(_)))) => {
                for claim in claims.iter() {
                    if let Ok(left) = u64::try_from(before.keys.ttl(claim.key.as_str())) {
                        store.keys.expire(claim.key.as_str(), left);
                    }
                }
            }
            (Self::HandsTheLeaseOver, Command::HandOver { to, .. }, Answer::HandOver(HandOver::Granted(_))) => {
                if let Ok(left) = u64::try_from(before.keys.ttl(to.key.as_str())) {
                    store.keys.expire(to.key.as_str(), left);
                }
            }
            (Self::CountsCopies, Command::Acquire { claims, .. }, Answer::Acquire(Some(Acquire::Granted(_)))) => {
                for Claim { key, field, .. } in claims.iter() {
                    if before.keys.field(key.as_str(), field).is_ok_and(|count| count.is_some()) {
                        store.keys.set_field(key.as_str(), field, "7").expect("a hash");
                    }
                }
            }
            (Self::CountRenews, Command::Count { claim, .. }, Answer::Count(Count::Written)) => {
                store.keys.expire(claim.key.as_str(), 30_000);
            }
            (
                Self::LeavesTheRest,
                Command::Release { claim: Claim { key, field, .. }, .. },
                Answer::Release(Release::Released(_)),
            ) => {
                let rest = before.keys.fields(key.as_str()).unwrap_or_default().to_vec();
                let rest: Vec<_> = rest.into_iter().filter(|(name, _)| name != field.as_bytes()).collect();
                if !rest.is_empty() {
                    store.keys.set(key.as_str(), Value::Hash(rest), None);
                }
            }
            (
                Self::StaysListed,
                Command::Acquire { claims, listing: Some(listing), .. },
                Answer::Acquire(Some(Acquire::Granted(_))),
            ) => {
                stay_listed(store, before, &claims[0].key.waiting(), &listing.locker);
            }
            (
                Self::KeepsLists,
                Command::Acquire { claims, .. },
                Answer::Acquire(Some(Acquire::Listed(_, Place::Behind(_)))),
            ) => {
                let list = claims[0].key.waiting();
                let members = store.keys.members(&list).unwrap_or_default().to_vec();
                store.keys.set(&list, Value::Sorted(members), None);
            }
            (Self::KeepsTheField, Command::Keep { claim, rest }, Answer::Release(Release::Released(_))) => {
                store.keys.delete(claim.key.as_str());
                let (claim, lease) = (claim.clone(), *rest);
                let stays = Command::Retake { claim, lease, count: 1, vote: None };
                store.run(now_us, &stays, &mut Nobody).expect("it is free");
            }
            (Self::BelievesEveryFence, Command::Raise { claim, fence }, answer @ Answer::Raise(Raise::TooHigh)) => {
                set_mark(store, claim, *fence);
                *answer = Answer::Raise(Raise::Raised);
            }
            (Self::Lowers, Command::Raise { claim, fence }, Answer::Raise(Raise::Raised)) => {
                set_mark(store, claim, *fence);
            }
            (
                Self::ForgetsTheLongestLease,
                Command::Vet(Some(told)),
                Answer::Vet(Identity { memory: Some(now), .. }),
            ) => {
                let server = |store: &mut Store| store.keys.field(MEMORY, "server").map(|id| id.map(<[u8]>::to_vec));
                if server(store) != server(before) {
                    now.lease = told.lease;
                    store.keys.set_field(MEMORY, "lease", &told.lease.as_millis().to_string()).expect("a hash");
                }
            }
            _ => {}
        }
    }
}

/// Puts a locker into a list again that it was in before.
fn stay_listed(store: &mut Store, before: &mut Store, list: &str, locker: &str) {
    if before.keys.members(list).is_ok_and(|all| all.iter().any(|one| **one == *locker)) {
        store.keys.add_last(list, locker).expect("a list");
    }
}

/// Nobody is told anything.
struct Nobody;

impl Ears for Nobody {
    fn publish(&mut self, _: &str, _: &str) -> u64 {
        0
    }

    fn listening(&self, _: &str) -> u64 {
        0
    }
}

fn set_mark(store: &mut Store, claim: &Claim, fence: Fence) {
    store.keys.set(&claim.key.mark(), Value::Text(fence.to_string().into_bytes()), None);
}
