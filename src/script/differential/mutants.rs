//! Mistakes that the server in memory could have: each makes it differ from the scripts.

use crate::command::{
    Acquire, Answer, Claim, Command, Count, HandOver, Identity, Kind, MEMORY, Opening, Place, Raise, Release, Releaser,
    Wakes, sha1,
};
use crate::fence::{Fence, Source};
use crate::label::key_of;
use crate::testing::{Ears, Failure, Store, Value};

/// A mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mutant {
    /// A key is already gone in the millisecond in which its lease ends.
    EndsEarly,
    /// A second copy of an acquire does not restart the lease.
    KeepsTheFirstLease,
    /// A second copy of an acquire increments the hold count.
    CountsCopies,
    /// An acquire of several locks takes the free ones although one is held.
    TakesSome,
    /// A write of the count restarts the lease.
    CountRenews,
    /// A release removes its own field only, and leaves the rest of the hash.
    LeavesTheRest,
    /// A release publishes no message.
    IsMute,
    /// A lock that is kept stays under its field, where a late renewal finds it.
    KeepsTheField,
    /// A hand-over takes a lock that is free.
    HandsOverWhatIsFree,
    /// A hand-over leaves the first holder's lease.
    HandsTheLeaseOver,
    /// A hand-over publishes a message.
    TellsOfHandOvers,
    /// A renewal takes a lock that is free.
    RenewalTakes,
    /// A client's clock is always clamped to the server's, and not only when the mark enters another 20 s.
    CutsEveryClock,
    /// Redisson's tokens come from the lock's mark.
    TokensOfMarks,
    /// A fence is accepted however far ahead it is.
    BelievesEveryFence,
    /// A raise writes its fence even if that is lower than the mark.
    Lowers,
    /// An acquire of the plain format overwrites a hash.
    OverwritesHashes,
    /// A server that has forgotten grants the lock all the same.
    VotesWithoutMemory,
    /// A server votes although a longer lease was announced to it than it has waited for.
    VotesEarly,
    /// A force_unlock releases the lock although somebody else holds it too.
    ForcesBystanders,
    /// A server that begins a new memory forgets the longest lease.
    ForgetsTheLongestLease,
    /// A locker that asks again loses its place in the list.
    ComesLast,
    /// A locker that releases is not put behind the others.
    DropsWhoReleases,
    /// A grant leaves its locker in the list.
    StaysListed,
    /// A locker that did not come stays first in the list.
    WaitsForTheFirst,
    /// Clients that are not in the list get no turn.
    GivesNoTurns,
    /// A list never expires.
    KeepsLists,
    /// A label never expires.
    KeepsLabels,
}

impl Mutant {
    pub(super) const ALL: [Self; 28] = [
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
        Self::KeepsLabels,
    ];

    /// Runs a command on a store that has this mistake.
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
            ears.publish(to.key.channel(), "0");
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

    /// Changes the command, or the state of the store, before it runs.
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
                *offers = None;
            }
            (Self::VotesWithoutMemory, Command::Acquire { vote, .. }) => *vote = None,
            (Self::VotesEarly, Command::Open(Opening { waited, .. })) => *waited = std::time::Duration::MAX,
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

    /// Changes the state of the store, or its answer, after it has run.
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
            (Self::KeepsLabels, Command::Label { locker, .. }, _) => keep_label(store, &key_of(locker)),
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

/// Puts a locker back into a list that it was in before.
fn stay_listed(store: &mut Store, before: &mut Store, list: &str, locker: &str) {
    if before.keys.members(list).is_ok_and(|all| all.iter().any(|one| *one.name == *locker)) {
        store.keys.add(list, locker, 0).expect("a list");
    }
}

/// Takes the lifetime from a label.
fn keep_label(store: &mut Store, label: &str) {
    if let Some(text) = store.keys.text(label).expect("a label").map(<[u8]>::to_vec) {
        store.keys.set(label, Value::Text(text), None);
    }
}

/// Channels without subscribers.
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
    store.keys.set(claim.key.mark(), Value::Text(fence.to_string().into_bytes()), None);
}
