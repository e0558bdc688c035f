//! Mistakes, and how they change a locker's plan.

use super::super::{Change, Phase, Plan, Sight};
use super::world::SEATS;

/// A mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mistake {
    /// A memory that was written in another run of the server counts.
    RunIgnored,
    /// A server votes if its own memory says so, whether the others list it or not.
    ListsIgnored,
    /// A server that is listed votes at once.
    NoWait,
    /// The wait is as long as the locker's own leases.
    OwnLease,
    /// The wait counts from when the memory was begun, and not from when the server was listed.
    WaitFromTheBeginning,
    /// One witness is enough.
    OneWitness,
    /// A dropped server is listed again.
    DroppedAgain,
    /// A server that votes and is no longer listed is listed again, as it is.
    VoterTakenIn,
    /// Two strangers begin together, even if a server is missed that this locker has met.
    MissedIgnored,
    /// An acquire does not compare the memory.
    AcquireBlind,
    /// A renewal counts on whatever server it is done.
    RenewalBlind,
    /// A re-acquired lock is a vote, whether the server votes or not.
    RetakeBlind,
    /// A change is written whatever the server remembers by then.
    ChangeBlind,
    /// A server votes without having the marks of the others.
    MarksForgotten,
    /// A server is given the marks while it waits, and not when the wait is over.
    MarksToldAtOnce,
    /// The marks of one other are enough.
    MarksOfOne,
}

pub(super) fn distort(mistake: Option<Mistake>, plan: &mut Plan, seen: &[Option<Sight>]) {
    let phases = |of: &[Phase]| seen.iter().map(|s| s.as_ref().is_some_and(|s| of.contains(&s.memory.phase))).collect();
    match mistake {
        Some(Mistake::ListsIgnored) => {
            plan.votes = phases(&[Phase::Votes]);
            plan.keeps = phases(&[Phase::Votes, Phase::Listed]);
        }
        Some(Mistake::OneWitness) => {
            for place in 0..SEATS {
                let Some(begun) = seen[place].as_ref().filter(|s| s.memory.phase == Phase::Begun) else { continue };
                let witness = seen.iter().flatten().find(|s| {
                    s.memory.phase == Phase::Votes && s.memory.lists(begun.memory.id) && s.memory.id != begun.memory.id
                });
                let own = seen.iter().flatten().find(|s| s.memory.phase == Phase::Votes);
                if let (None, Some(own)) = (witness, own) {
                    let gone = own.memory.members.iter().find(|id| !seen.iter().flatten().any(|s| s.memory.id == **id));
                    if let Some(&gone) = gone {
                        let to = own.memory.listing(begun.memory.id, &[gone]);
                        let at = seen.iter().position(|s| s.as_ref() == Some(own)).expect("seen");
                        plan.changes.push(Change { place: at, from: own.memory.clone(), to, waited: None });
                    }
                }
                if let Some(witness) = witness {
                    let mut to = begun.memory.clone();
                    to.phase = Phase::Votes;
                    to.members.clone_from(&witness.memory.members);
                    plan.changes.push(Change { place, from: begun.memory.clone(), to, waited: None });
                }
            }
        }
        Some(Mistake::VoterTakenIn) => {
            let anew = |change: &Change| change.from.phase == Phase::Votes && change.to.phase == Phase::Begun;
            let places: Vec<usize> = plan.changes.iter().filter(|c| anew(c)).map(|c| c.place).collect();
            plan.changes.retain(|change| !anew(change));
            for place in places {
                let id = seen[place].as_ref().expect("seen").memory.id;
                for (at, other) in seen.iter().enumerate().filter_map(|(at, s)| s.as_ref().map(|s| (at, s))) {
                    let gone = other.memory.members.iter().find(|m| !seen.iter().flatten().any(|s| s.memory.id == **m));
                    if let (false, Some(&gone)) = (other.memory.lists(id), gone) {
                        let to = other.memory.listing(id, &[gone]);
                        plan.changes.push(Change { place: at, from: other.memory.clone(), to, waited: None });
                    }
                }
            }
        }
        _ => {}
    }
}
