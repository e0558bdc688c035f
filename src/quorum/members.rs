//! Decides which servers make a majority, from what each of them remembers and lists.
//!
//! A server that lost its data has forgotten its locks, and an address may lead to a server that never had them: a vote
//! of either could make a second majority. So each server keeps a *memory*, which is lost with its data, and votes make
//! a majority only if the servers list each other. A server without a memory begins a new one: it abstains until enough
//! others list it, and then for as long as the longest lease. (These are the *delayed restarts* of the Redis
//! documentation's page on distributed locks, without asking how long a process has run.)
//!
//! [`plan`] looks at all servers at once and says whose votes count and what is to be written where. Every locker does
//! that for itself: each change names the memory that it was decided on, and does nothing if the server has another
//! one.
//!
//! # Invariants
//! - A server never lists an id again that it has dropped. So a server that lists one that votes has listed it since
//!   before it began to wait, or has joined later.
//! - The wait of a server begins when `seats - majority + 1` others that vote list it: any majority without it contains
//!   one of those, and none of those votes together with the server whose seat it took.

use std::fmt;
use std::time::Duration;

use crate::clock::Instant;
use crate::lease::{drift, majority};

/// The id of a memory: random, so that no two are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Id(pub(crate) u64);

/// How far a server has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// It lists only itself, and has no vote.
    Begun,
    /// Enough others list it: it waits until the leases that it may have forgotten are over.
    Listed,
    Votes,
}

/// What a server remembers: one value, which is replaced as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Memory {
    pub(crate) id: Id,
    /// The number of servers.
    pub(crate) seats: usize,
    pub(crate) phase: Phase,
    /// The ids that it lists, its own among them.
    pub(crate) members: Vec<Id>,
    /// The last ids that it listed and dropped.
    pub(crate) dropped: Vec<Id>,
}

/// How many dropped ids are remembered. Each stands for a server that was replaced, and a locker that does not know of
/// that yet writes its change within moments.
const MOST_DROPPED: usize = 8;

impl Memory {
    /// Returns a new memory, of a server that has none.
    pub(crate) fn begun(id: Id, seats: usize) -> Self {
        Self { id, seats, phase: Phase::Begun, members: vec![id], dropped: Vec::new() }
    }

    pub(crate) fn lists(&self, id: Id) -> bool {
        self.members.contains(&id)
    }

    /// Returns whether these two may vote together.
    pub(crate) fn is_mutual(&self, other: &Self) -> bool {
        self.lists(other.id) && other.lists(self.id)
    }

    /// Parses what [`fmt::Display`] wrote.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let id = |word: &str| u64::from_str_radix(word, 16).ok().map(Id);
        let ids = |list: &str| list.split(',').filter(|word| !word.is_empty()).map(id).collect::<Option<Vec<_>>>();
        let own = id(words.next()?)?;
        let seats = words.next()?.parse().ok()?;
        let phase = match words.next()? {
            "begun" => Phase::Begun,
            "listed" => Phase::Listed,
            "votes" => Phase::Votes,
            _ => return None,
        };
        let (members, dropped) = (ids(words.next()?)?, ids(words.next()?)?);
        let whole = words.next().is_none() && members.contains(&own) && members.len() <= seats;
        whole.then_some(Self { id: own, seats, phase, members, dropped })
    }

    /// Returns the same memory, with another id listed instead of these.
    fn listing(&self, id: Id, replaced: &[Id]) -> Self {
        let mut next = self.clone();
        next.members.retain(|member| !replaced.contains(member));
        next.members.push(id);
        next.members.sort_unstable();
        next.dropped.extend(replaced);
        let oldest = next.dropped.len().saturating_sub(MOST_DROPPED);
        next.dropped.drain(..oldest);
        next
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = match self.phase {
            Phase::Begun => "begun",
            Phase::Listed => "listed",
            Phase::Votes => "votes",
        };
        let list = |ids: &[Id]| ids.iter().map(|id| format!("{:016x}", id.0)).collect::<Vec<_>>().join(",");
        let (members, dropped) = (list(&self.members), list(&self.dropped));
        write!(f, "{:016x} {} {phase} {members} {dropped}", self.id.0, self.seats)
    }
}

/// What a locker has seen of a server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Sight {
    pub(crate) memory: Memory,
    /// The longest lease that was announced to the server.
    pub(crate) lease: Duration,
    /// For how long it had been listed, at least, when this was read.
    pub(crate) age: Duration,
    pub(crate) read: Instant,
}

impl Sight {
    fn is(&self, phase: Phase) -> bool {
        self.memory.phase == phase
    }

    fn age_at(&self, now: Instant) -> Duration {
        self.age + now.since(self.read)
    }
}

fn list_each_other(one: &Sight, other: &Sight) -> bool {
    one.memory.is_mutual(&other.memory)
}

/// A change to write to a server, if its memory is still the one that was seen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Change {
    pub(crate) place: usize,
    pub(crate) from: Memory,
    pub(crate) to: Memory,
    /// If it is to vote: the longest lease that it has waited for. If a longer one has been announced to it since, it
    /// waits on.
    pub(crate) waited: Option<Duration>,
}

impl Change {
    /// Returns whether a server that votes loses its vote by this change, and begins a new memory.
    pub(crate) fn throws_out(&self) -> bool {
        self.from.phase == Phase::Votes && self.to.phase == Phase::Begun
    }
}

/// What follows from what was seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// By place: whose votes count. All of them list each other.
    pub(crate) votes: Vec<bool>,
    /// By place: where locks that are on the server may be kept.
    pub(crate) keeps: Vec<bool>,
    pub(crate) changes: Vec<Change>,
    /// How long the longest wait still lasts.
    pub(crate) wait: Option<Duration>,
    /// More servers have forgotten than may do so at a time: those that are there begin together, and nothing is
    /// promised about locks that were held before.
    pub(crate) founding: bool,
}

/// What a locker knows besides what it sees now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known<'a> {
    /// By place: the id that was there before.
    pub(crate) former: &'a [Option<Id>],
    /// By place: whether this locker has ever seen a server there that was listed.
    pub(crate) met: &'a [bool],
    /// The longest lease of this locker.
    pub(crate) lease: Duration,
    /// By place: whether the server there is not to be listed for now. Lockers that know different servers under one
    /// address would otherwise drop each other's again and again.
    pub(crate) rests: &'a [bool],
}

/// Decides whose votes count, and what is to be written.
pub(crate) fn plan<'a>(
    seen: impl Iterator<Item = Option<&'a Sight>>,
    known: Known<'_>,
    now: Instant,
    fresh: &mut impl FnMut() -> Id,
) -> Plan {
    Planner { seen: &distinct(seen), known, now }.plan(fresh)
}

/// Ignores a server that shows the id of another: one id is one server.
fn distinct<'a>(seen: impl Iterator<Item = Option<&'a Sight>>) -> Vec<Option<&'a Sight>> {
    let mut ids = Vec::new();
    let mut first = |sight: &&Sight| {
        let new = !ids.contains(&sight.memory.id);
        ids.push(sight.memory.id);
        new
    };
    seen.map(|sight| sight.filter(&mut first)).collect()
}

struct Planner<'a> {
    seen: &'a [Option<&'a Sight>],
    known: Known<'a>,
    now: Instant,
}

impl Planner<'_> {
    fn seats(&self) -> usize {
        self.seen.len()
    }

    fn majority(&self) -> usize {
        majority(self.seats())
    }

    /// Returns how many others have to list a server, so that each majority without it contains one of them.
    fn witnesses(&self) -> usize {
        self.seats() - self.majority() + 1
    }

    fn at(&self, place: usize) -> Option<&Sight> {
        self.seen[place]
    }

    fn sights(&self) -> impl Iterator<Item = (usize, &Sight)> {
        self.seen.iter().enumerate().filter_map(|(place, sight)| sight.map(|sight| (place, sight)))
    }

    fn plan(&self, fresh: &mut impl FnMut() -> Id) -> Plan {
        let voters = self.circle(&[Phase::Votes]);
        let keepers = self.circle(&[Phase::Votes, Phase::Listed]);
        let unseen = self.seats() - self.sights().count();
        let mut plan = Plan {
            votes: self.among(if voters.len() < self.majority() { &[] } else { &voters }),
            keeps: self.among(if keepers.len() < self.majority() { &[] } else { &keepers }),
            ..Plan::default()
        };
        if voters.len() >= self.majority() {
            self.join(&voters, &mut plan, fresh);
        } else if self.may_begin_together(&voters, &keepers, unseen) {
            plan.founding = true;
            self.found(&keepers, &mut plan, fresh);
        }
        plan
    }

    /// Returns whether the servers that are seen may begin together, because those that are not seen cannot make a
    /// majority without them.
    fn may_begin_together(&self, voters: &[usize], keepers: &[usize], unseen: usize) -> bool {
        let least = self.majority();
        // They have begun together, and one got its vote before the others. All servers that could vote with it are
        // seen. All others are fewer than a majority, wherever they are.
        let have_begun = keepers.len() >= least && self.list_nobody_unseen(voters);
        let none_elsewhere = voters.len().max(self.hidden()) + unseen < least;
        (have_begun || none_elsewhere) && self.seats() - unseen >= least
    }

    fn list_nobody_unseen(&self, places: &[usize]) -> bool {
        let is_seen = |id: &Id| self.sights().any(|(_, sight)| sight.memory.id == *id);
        places.iter().filter_map(|&place| self.at(place)).all(|sight| sight.memory.members.iter().all(is_seen))
    }

    /// Returns how many servers may be elsewhere, with their memory, while another server is seen under their address:
    /// a server with a new memory may have forgotten, or may be such another one. If there are more of these than may
    /// be away at a time, all of them count as having forgotten: otherwise no server could ever begin. But a server
    /// that this locker has met and does not see now may vote elsewhere, together with those that are hidden: a locker
    /// whose addresses lead elsewhere would otherwise make a second majority of strangers. They are not added to those
    /// that vote, which begin with the others: otherwise, once two of three had forgotten one after the other, no
    /// majority could ever be made again.
    fn hidden(&self) -> usize {
        let is_listed = |id| self.sights().any(|(_, other)| other.memory.id != id && other.memory.lists(id));
        let strange = |sight: &Sight| sight.is(Phase::Begun) && !is_listed(sight.memory.id);
        let strangers = self.sights().filter(|(_, sight)| strange(sight)).count();
        let is_missed = self.seen.iter().zip(self.known.met).any(|(sight, met)| sight.is_none() && *met);
        if strangers > self.seats() - self.majority() && !is_missed { 0 } else { strangers }
    }

    /// Returns the largest set of servers in these phases that all list each other.
    fn circle(&self, phases: &[Phase]) -> Vec<usize> {
        let candidates: Vec<_> = self.sights().filter(|(_, sight)| phases.contains(&sight.memory.phase)).collect();
        let mut best = Vec::new();
        // There are few servers, and usually all of them list each other, so each one simply starts a set.
        for &(first, _) in &candidates {
            let mut circle: Vec<(usize, &Sight)> = Vec::new();
            let from_first = candidates.iter().cycle().skip_while(|(place, _)| *place != first).take(candidates.len());
            for &(place, sight) in from_first {
                if circle.iter().all(|(_, other)| list_each_other(sight, other)) {
                    circle.push((place, sight));
                }
            }
            if circle.len() > best.len() {
                best = circle.into_iter().map(|(place, _)| place).collect();
            }
            if best.len() == candidates.len() {
                break;
            }
        }
        best.sort_unstable();
        best
    }

    fn among(&self, places: &[usize]) -> Vec<bool> {
        (0..self.seats()).map(|place| places.contains(&place)).collect()
    }

    /// Plans for a majority that votes. A server outside of it is taken in, or begins a new memory.
    fn join(&self, voters: &[usize], plan: &mut Plan, fresh: &mut impl FnMut() -> Id) {
        for (place, sight) in self.sights().filter(|(place, _)| !voters.contains(place)) {
            let dropped = voters.iter().filter_map(|&voter| self.at(voter));
            let mut dropped = dropped.filter(|voter| voter.memory.dropped.contains(&sight.memory.id));
            if sight.is(Phase::Votes) || dropped.next().is_some() {
                plan.changes.push(self.anew(place, sight, fresh));
            } else if voters.len() >= self.witnesses() {
                self.take_in(place, sight, voters, plan);
            }
        }
    }

    fn anew(&self, place: usize, sight: &Sight, fresh: &mut impl FnMut() -> Id) -> Change {
        let to = Memory::begun(fresh(), self.seats());
        Change { place, from: sight.memory.clone(), to, waited: None }
    }

    fn take_in(&self, place: usize, sight: &Sight, voters: &[usize], plan: &mut Plan) {
        let id = sight.memory.id;
        // Servers that wait change their lists as the voters do.
        let listers = self.sights().filter(|&(lister, other)| {
            lister != place && (voters.contains(&lister) || other.is(Phase::Listed)) && !other.memory.lists(id)
        });
        for (lister, other) in listers {
            if let Some(replaced) = self.replaced(&other.memory, place).filter(|_| !self.known.rests[place]) {
                let to = other.memory.listing(id, &replaced);
                plan.changes.push(Change { place: lister, from: other.memory.clone(), to, waited: None });
            }
        }
        let listed_by = voters.iter().filter_map(|&voter| self.at(voter)).filter(|voter| voter.memory.lists(id));
        match sight.memory.phase {
            Phase::Begun => {
                let mut listed_by: Vec<_> = listed_by.collect();
                if listed_by.len() >= self.witnesses() {
                    // A server that is not seen keeps its seat in the others' lists.
                    listed_by.sort_by_key(|voter| std::cmp::Reverse(voter.memory.members.len()));
                    let mut to = sight.memory.clone();
                    to.phase = Phase::Listed;
                    to.members.clone_from(&listed_by[0].memory.members);
                    plan.changes.push(Change { place, from: sight.memory.clone(), to, waited: None });
                }
            }
            Phase::Listed => {
                if listed_by.filter(|voter| list_each_other(voter, sight)).count() >= self.witnesses() {
                    self.admit(place, sight, plan);
                }
            }
            Phase::Votes => {}
        }
    }

    /// Returns which ids in this list the server at that place replaces; `None` if that cannot be told.
    fn replaced(&self, list: &Memory, place: usize) -> Option<Vec<Id>> {
        let is_seen = |id: &Id| self.sights().any(|(_, sight)| sight.memory.id == *id);
        let strangers: Vec<Id> = list.members.iter().copied().filter(|id| !is_seen(id)).collect();
        if list.members.len() < list.seats {
            return Some(Vec::new());
        }
        let former = self.known.former[place].filter(|former| strangers.contains(former));
        // A server that is not seen now counts as a stranger too.
        let all_seen = self.sights().count() == self.seats();
        former.or_else(|| strangers.first().copied().filter(|_| all_seen)).map(|replaced| vec![replaced])
    }

    /// Lets a server vote once the longest lease that it may have forgotten is over.
    fn admit(&self, place: usize, sight: &Sight, plan: &mut Plan) {
        let longest = self.sights().map(|(_, sight)| sight.lease).fold(self.known.lease, Duration::max);
        let (age, needed) = (sight.age_at(self.now), longest + drift(longest));
        if age < needed {
            plan.wait = plan.wait.max(Some(needed.saturating_sub(age)));
            return;
        }
        let to = Memory { phase: Phase::Votes, ..sight.memory.clone() };
        plan.changes.push(Change { place, from: sight.memory.clone(), to, waited: Some(longest) });
    }

    /// Plans for servers of which no majority remembers: those that are seen begin together.
    fn found(&self, circle: &[usize], plan: &mut Plan, fresh: &mut impl FnMut() -> Id) {
        if circle.len() >= self.majority() {
            for &place in circle {
                if let Some(sight) = self.at(place).filter(|sight| sight.is(Phase::Listed)) {
                    self.admit(place, sight, plan);
                }
            }
            return;
        }
        let mut members: Vec<Id> = self.sights().map(|(_, sight)| sight.memory.id).collect();
        members.sort_unstable();
        for (place, sight) in self.sights() {
            match sight.memory.phase {
                Phase::Votes => plan.changes.push(self.anew(place, sight, fresh)),
                Phase::Begun | Phase::Listed => {
                    let to = Memory { phase: Phase::Listed, members: members.clone(), ..sight.memory.clone() };
                    if to != sight.memory {
                        plan.changes.push(Change { place, from: sight.memory.clone(), to, waited: None });
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    /// "a votes abc -x": the server a, which lists these and has dropped x.
    fn memory(words: &str, seats: usize) -> Memory {
        let (list, dropped) = words.split_once(" -").unwrap_or((words, ""));
        let ids = |ids: &str| ids.chars().map(|id| id.to_string()).collect::<Vec<_>>().join(",");
        let [own, phase, members] = list.split(' ').collect::<Vec<_>>()[..] else { panic!("{words}") };
        let text = format!("{own} {seats} {phase} {} {}", ids(members), ids(dropped));
        Memory::parse(&text).unwrap_or_else(|| panic!("{text}"))
    }

    fn sights(servers: &[&str], age: Duration, read: Instant) -> Vec<Option<Sight>> {
        let sight = |words| Sight { memory: memory(words, servers.len()), lease: Duration::ZERO, age, read };
        servers.iter().map(|&words| (!words.is_empty()).then(|| sight(words))).collect()
    }

    /// Returns the plan if these servers are seen now, none of which has waited yet; "" is a server that is not seen.
    fn planned(servers: &[&str], former: Option<(usize, u64)>) -> Plan {
        let now = Instant::now();
        let former = |place| former.and_then(|(at, id)| (at == place).then_some(Id(id)));
        let former: Vec<_> = (0..servers.len()).map(former).collect();
        let known = Known {
            former: &former,
            met: &vec![false; servers.len()],
            lease: LEASE,
            rests: &vec![false; servers.len()],
        };
        plan(sights(servers, Duration::ZERO, now).iter().map(Option::as_ref), known, now, &mut || Id(9))
    }

    /// Returns the changes: the place, and the new memory.
    fn changes(plan: &Plan) -> Vec<String> {
        let ids = |ids: &[Id]| ids.iter().map(|id| format!("{:x}", id.0)).collect::<String>();
        let words = |Change { place, to, .. }: &Change| {
            let phase = format!("{:?}", to.phase).to_lowercase();
            format!("{place}: {:x} {phase} {} -{}", to.id.0, ids(&to.members), ids(&to.dropped))
        };
        plan.changes.iter().map(words).collect()
    }

    #[test]
    fn a_memory_is_read_as_it_was_written_or_not_at_all() {
        for words in ["a begun a", "b listed abc -d", "c votes bc -de"] {
            let memory = memory(words, 3);
            assert_eq!(Memory::parse(&memory.to_string()), Some(memory));
        }
        for text in ["a 3 votes b,c ", "a 2 votes a,b,c ", "a 3 votes a,b  more", "a 3 rests a ", "a 3 votes a", "a 3"]
        {
            assert_eq!(Memory::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_voter_that_begins_a_new_memory_is_thrown_out() {
        let change = |from, to| Change { place: 0, from: memory(from, 3), to: memory(to, 3), waited: None };
        assert!(change("a votes abc", "d begun d").throws_out());
        assert!(!change("a votes abc", "a votes abd").throws_out());
        assert!(!change("a listed abc", "d begun d").throws_out());
    }

    #[test]
    fn each_majority_without_a_server_has_one_of_its_witnesses() {
        let now = Instant::now();
        for (seats, witnesses) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (7, 4)] {
            let known = Known { former: &[], met: &[], lease: LEASE, rests: &[] };
            assert_eq!(Planner { seen: &vec![None; seats], known, now }.witnesses(), witnesses, "{seats}");
        }
    }

    #[test]
    fn votes_count_where_a_majority_lists_each_other() {
        let counts = |servers: [&str; 3]| {
            let plan = planned(&servers, None);
            (plan.votes, plan.keeps)
        };
        let (none, two) = (vec![false; 3], vec![true, false, true]);
        assert_eq!(counts(["a votes ac", "", "c votes ac"]), (two.clone(), two.clone()));
        assert_eq!(counts(["a votes ac", "b votes b", "c votes ac"]), (two.clone(), two.clone()));
        assert_eq!(counts(["a votes ac", "", "c listed ac"]), (none.clone(), two));
        assert_eq!(counts(["a votes ac", "", "c votes c"]), (none.clone(), none.clone()));
        assert_eq!(counts(["a votes ac", "", ""]), (none.clone(), none));
        let all = vec![true; 3];
        assert_eq!(counts(["a votes abc", "b votes abc", "c votes abc"]), (all.clone(), all));
        // Lockers that name the servers in one order choose alike.
        assert_eq!(counts(["a votes ab", "b votes abc", "c votes bc"]).0, [true, true, false]);
    }

    #[test]
    fn servers_begin_together_only_if_unseen_servers_could_make_no_majority() {
        let founds = |servers: &[&str]| planned(servers, None).founding;
        assert!(founds(&["a begun a"]) && founds(&["a begun a", "b begun b"]));
        assert!(founds(&["a begun a", "", "c begun c"]), "one alone has no majority");
        assert!(!founds(&["a votes abc", "", "c begun c"]), "with it there may be one");
        assert!(
            !founds(&["a begun a", "", ""])
                && !founds(&["a begun a", ""])
                && !founds(&["a begun a", "b begun b", "", ""])
        );
        assert!(!founds(&["a votes abc", "b votes abc", "c begun c"]));
    }

    /// The servers wait for their first vote. One of them is hidden behind a wrong address, and could vote with the
    /// unseen ones.
    #[test]
    fn servers_do_not_begin_together_if_those_behind_a_wrong_address_could_make_a_majority() {
        let founds = |servers: &[&str]| planned(servers, None).founding;
        assert!(!founds(&["a listed abc", "d begun d", ""]));
        assert!(!founds(&["a listed abcde", "b listed abcde", "f begun f", "", ""]));
        assert!(founds(&["a listed abc", "b listed abc", "d begun d"]), "the third alone is no majority");
        assert!(founds(&["a votes abc", "b begun b", "d begun d"]), "two have forgotten, one after the other");
        assert!(founds(&["a votes ab", "b listed ab", ""]), "the first of two that begin together has its vote");
        assert!(!founds(&["a votes abc", "b listed abc", ""]), "the third may vote with the first");
        assert!(founds(&["a listed abc", "b listed abc", ""]));
        assert!(founds(&["a votes abcde", "b votes abcde", "f begun f", "7 begun 7", "8 begun 8"]), "most forgot");
        assert!(!founds(&["a listed abcde", "b listed abcde", "f begun f", "7 begun 7", ""]), "two may be elsewhere");
    }

    /// Two strangers may hide a majority together with a server that is missed.
    #[test]
    fn servers_do_not_begin_together_while_one_that_was_met_is_missed() {
        let founds = |servers: &[&str], met: &[bool]| {
            let (now, former) = (Instant::now(), vec![None; servers.len()]);
            let known = Known { former: &former, met, lease: LEASE, rests: &vec![false; servers.len()] };
            plan(sights(servers, Duration::ZERO, now).iter().map(Option::as_ref), known, now, &mut || Id(9)).founding
        };
        assert!(!founds(&["", "b begun b", "c begun c"], &[true, false, false]), "it may vote with a hidden one");
        assert!(founds(&["", "b begun b", "c begun c"], &[false, true, true]), "a fresh deployment");
        assert!(founds(&["a begun a", "b begun b", "c begun c"], &[true; 3]), "none is missed: all have forgotten");
        assert!(founds(&["a votes abc", "b begun b", "c begun c"], &[true; 3]), "two have forgotten");
    }

    #[test]
    fn servers_that_begin_together_list_each_other_and_wait() {
        let three = planned(&["a begun a", "b begun b", "c votes abc"], None);
        assert_eq!(changes(&three), ["0: a listed abc -", "1: b listed abc -", "2: 9 begun 9 -"]);
        let on_the_way = planned(&["a listed abc", "b begun b", "c begun c"], None);
        assert_eq!(
            changes(&on_the_way),
            ["1: b listed abc -", "2: c listed abc -"],
            "what is there is not written again"
        );
        let waiting = planned(&["a listed abc", "b listed abc", "c begun c"], None);
        assert_eq!((changes(&waiting), waiting.wait), (Vec::new(), Some(LEASE + drift(LEASE))));
    }

    #[test]
    fn a_vote_counts_when_the_longest_lease_is_over() {
        let read = Instant::now();
        let known = Known { former: &[None; 3], met: &[false; 3], lease: LEASE, rests: &[false; 3] };
        let seen = sights(&["a votes abc", "b listed abc", "c votes abc"], Duration::from_secs(10), read);
        let over = read + LEASE + drift(LEASE);
        let at = |age: Duration| {
            plan(seen.iter().map(Option::as_ref), known, over.before(Duration::from_secs(10)).before(age), &mut || {
                Id(9)
            })
        };
        let soon = at(Duration::from_nanos(1));
        assert_eq!((changes(&soon), soon.wait), (Vec::new(), Some(Duration::from_nanos(1))));
        let now = at(Duration::ZERO);
        assert_eq!((changes(&now), now.wait), (vec!["1: b votes abc -".to_owned()], None));
        assert_eq!(now.changes[0].waited, Some(LEASE));
    }

    #[test]
    fn a_newcomer_is_listed_once_by_each() {
        let free = ["a votes abc", "b votes abc", "c votes abc", "d begun d", ""];
        assert_eq!(
            changes(&planned(&free, None)),
            [0, 1, 2].map(|place| { format!("{place}: {} votes abcd -", ["a", "b", "c"][place]) })
        );
        let listed = ["a votes abcd", "b votes abcd", "c votes abcd", "d begun d", ""];
        assert_eq!(changes(&planned(&listed, None)), ["3: d listed abcd -"]);
        let waits = ["a votes abcde", "b votes abcde", "c votes abcde", "d begun d", "e listed abce"];
        assert_eq!(changes(&planned(&waits, None)), ["4: e listed abcde -", "3: d listed abcde -"]);
        let dropped = ["a votes abc -d", "b votes abc", "c votes abc", "d begun d", ""];
        assert_eq!(changes(&planned(&dropped, None)), ["3: 9 begun 9 -"]);
    }

    #[test]
    fn a_newcomer_takes_the_seat_of_its_predecessor_or_of_one_that_is_nowhere() {
        let by_all = |members: &str, dropped| {
            let words = |(place, id): (usize, &str)| format!("{place}: {id} votes {members} -{dropped}");
            ["a", "b", "c"].into_iter().enumerate().map(words).collect::<Vec<_>>()
        };
        let full = ["a votes abcef", "b votes abcef", "c votes abcef", "d begun d"];
        let away = [&full[..], &[""]].concat();
        assert_eq!(changes(&planned(&away, None)), [""; 0], "e or f: nobody can tell");
        assert_eq!(changes(&planned(&away, Some((3, 0xf)))), by_all("abcde", "f"));
        assert_eq!(changes(&planned(&away, Some((3, 0x7)))), [""; 0], "the former server is not listed");
        let back = [&full[..], &["e votes abcef"]].concat();
        let all = changes(&planned(&back, None));
        assert_eq!((&all[..3], &all[3..]), (&by_all("abcde", "f")[..], &["4: e votes abcde -f".to_owned()][..]));
        let two = [&full[..], &["7 begun 7"]].concat();
        assert_eq!(changes(&planned(&two, None))[..3], by_all("abcdf", "e"), "one after the other");
    }
}
