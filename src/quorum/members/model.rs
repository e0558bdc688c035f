//! Explores every interleaving, within bounds, of what can happen to three servers and a stranger. The real [`plan`]
//! decides for two lockers: they never believe at once that they hold the lock, and their fences grow. Each of the
//! mistakes breaks that.
//!
//! A step is one script on one server, a tick of the clock, or a fault of a server or of an address. What a locker
//! knows may be arbitrarily old: it never has to look again. A late script is one that was sent on such old knowledge.
//! Time passes in ticks for all; the servers' clocks matter only for the expiry of leases, which `lease.rs` allows for.

mod mistakes;
mod steps;
mod world;

use std::collections::{HashSet, VecDeque};
use std::hash::{Hash as _, Hasher};

use self::mistakes::Mistake;
use self::steps::Step;
use self::world::{BOUNDS, Bounds, SEATS, STRANGER, World};
use super::Phase;
use crate::command::sha1;

/// Returns the number of worlds within these bounds, or the steps to the first one in which both lockers believe that
/// they hold the lock, or a fence is not higher than one before.
fn explore(bounds: &Bounds) -> Result<usize, Vec<Step>> {
    let first = World::new(bounds);
    let mut known = HashSet::from([hash(&first)]);
    let mut paths: Vec<(usize, Step)> = vec![(0, Step::Tick)];
    let mut queue = VecDeque::from([(first, 0)]);
    while let Some((world, path)) = queue.pop_front() {
        if world.believes(0) && world.believes(1) || world.stale_fence {
            return Err(steps_to(&paths, path));
        }
        for step in world.steps(bounds) {
            let mut next = world.clone();
            next.take(bounds, &step);
            if known.insert(hash(&next)) {
                paths.push((path, step));
                queue.push_back((next, paths.len() - 1));
            }
        }
    }
    Ok(known.len())
}

fn steps_to(paths: &[(usize, Step)], mut at: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    while at > 0 {
        steps.push(paths[at].1.clone());
        at = paths[at].0;
    }
    steps.reverse();
    steps
}

/// Everything that is hashed, as it is.
struct Bytes(Vec<u8>);

impl Hasher for Bytes {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn finish(&self) -> u64 {
        unreachable!("the bytes are wanted")
    }
}

/// SHA-1 is built with optimizations, and std's hasher is not: it would take half of the time.
fn hash(world: &World) -> String {
    let mut bytes = Bytes(Vec::with_capacity(2_048));
    world.canonical().hash(&mut bytes);
    sha1(&bytes.0)
}

/// A server forgets everything, and the holder cannot reach another one.
const FORGETTING: Bounds = Bounds { forgets: 1, cut: Some(2), ticks: 3, ..BOUNDS };
/// The same, but no connection ends.
const FLUSHED: Bounds = Bounds { flushes: 1, cut: Some(2), ticks: 3, ..BOUNDS };
/// A replica takes over, with the lock or without it.
const FAILING_OVER: Bounds = Bounds { failovers: 1, cut: Some(2), ticks: 3, ..BOUNDS };
/// An address of the holder leads to another server.
const MOVING: Bounds = Bounds { moves: 1, cut: Some(2), ..BOUNDS };
/// The holder's lease is longer than those that the other locker knows of.
const LEASES: Bounds = Bounds { leases: [3, 1], ..FORGETTING };

/// The servers forget fences too.
const MARKED: Bounds = Bounds { fences: true, ..FORGETTING };
/// The same, while the first lock is being acquired: the server that granted the highest fence has forgotten it when it
/// is written to the others.
const MEANWHILE: Bounds = Bounds { fences: true, halfway: true, ..FLUSHED };

fn of(stale: usize, bounds: &Bounds) -> Bounds {
    Bounds { stale, ..bounds.clone() }
}

#[test]
fn two_lockers_never_believe_at_once() {
    for (bounds, name) in
        [(FORGETTING, "forgetting"), (FLUSHED, "flushed"), (FAILING_OVER, "failing over"), (MOVING, "moving")]
    {
        for stale in [0, 1] {
            let known = explore(&of(stale, &bounds)).unwrap_or_else(|steps| panic!("{name}: {steps:?}"));
            assert!(known > 500, "{name}: {known} worlds");
        }
    }
}

#[test]
fn each_mistake_lets_two_lockers_believe() {
    let mistakes = [
        (Mistake::RunIgnored, FAILING_OVER),
        (Mistake::NoWait, FORGETTING),
        (Mistake::OwnLease, LEASES),
        (Mistake::OneWitness, FORGETTING),
        (Mistake::AcquireBlind, FLUSHED),
    ];
    for (mistake, bounds) in mistakes {
        let found = [0, 1].map(|stale| explore(&Bounds { mistake: Some(mistake), ..of(stale, &bounds) }));
        assert!(found.iter().any(Result::is_err), "{mistake:?} is not found: {found:?}");
    }
}

#[test]
fn fences_grow_though_servers_forget_and_come_back() {
    let failing_over = Bounds { fences: true, ..FAILING_OVER };
    for (bounds, name) in [(MARKED, "forgetting"), (MEANWHILE, "meanwhile"), (failing_over, "failing over")] {
        for stale in [0, 1] {
            let known = explore(&of(stale, &bounds)).unwrap_or_else(|steps| panic!("{name}: {steps:?}"));
            assert!(known > 500, "{name}: {known} worlds");
        }
    }
}

#[test]
fn each_mistake_about_marks_makes_a_fence_that_is_not_higher() {
    let mistakes =
        [(Mistake::MarksForgotten, MARKED), (Mistake::MarksToldAtOnce, MEANWHILE), (Mistake::MarksOfOne, MARKED)];
    for (mistake, bounds) in mistakes {
        let found = [0, 1].map(|stale| explore(&Bounds { mistake: Some(mistake), ..of(stale, &bounds) }));
        assert!(found.iter().any(Result::is_err), "{mistake:?} is not found: {found:?}");
    }
}

/// A scripted run, for mistakes whose effect takes more steps than can be explored.
struct Story {
    bounds: Bounds,
    world: World,
}

impl Story {
    /// The first locker's address of the second server leads to the stranger. Nobody holds the lock yet.
    fn of_a_stranger(mistake: Option<Mistake>) -> Self {
        let bounds = Bounds { moves: 1, ticks: 99, stale: 1, mistake, ..BOUNDS };
        let mut world = World::new(&bounds);
        for server in &mut world.servers {
            server.lock = None;
        }
        let first = &mut world.lockers[0];
        (first.votes, first.asked, first.began) = ([0; SEATS], [false; SEATS], None);
        Self { bounds, world }.then(&[Step::Move(0, 1, STRANGER)])
    }

    fn then(mut self, steps: &[Step]) -> Self {
        for step in steps {
            self.world.carry_out(&self.bounds, step);
        }
        self
    }

    /// The first locker cannot reach this place any more.
    fn loses_touch_with(mut self, place: usize) -> Self {
        (self.bounds.cut, self.world.lockers[0].seen[place]) = (Some(place), None);
        self
    }

    /// A locker vets all servers that it can reach.
    fn looks(self, who: usize) -> Self {
        let reached = (0..SEATS).filter(|&place| !self.world.is_cut(&self.bounds, who, place));
        let vets: Vec<Step> = reached.map(|place| Step::Vet(who, place)).collect();
        self.then(&vets)
    }

    /// A locker writes all planned changes, except those that let a server vote.
    fn lists(self, who: usize) -> Self {
        self.writes(who, |to| to != Phase::Votes)
    }

    /// A locker writes the changes that let servers vote.
    fn admits(self, who: usize) -> Self {
        self.writes(who, |to| to == Phase::Votes)
    }

    fn writes(mut self, who: usize, wanted: impl Fn(Phase) -> bool) -> Self {
        for _ in 0..9 {
            let changes = self.world.plan(&self.bounds, who).changes;
            for change in changes {
                let votes = change.to.phase == Phase::Votes && change.from.phase != Phase::Votes;
                if wanted(if votes { Phase::Votes } else { Phase::Begun }) {
                    self.world.write(&self.bounds, who, change);
                }
            }
        }
        self
    }

    /// A locker asks these servers for the lock, if its plan counts their votes.
    fn asks(mut self, who: usize, places: [usize; 2]) -> Self {
        for place in places {
            if self.world.plan(&self.bounds, who).votes[place] {
                self.world.carry_out(&self.bounds, &Step::Ask(who, place));
            }
        }
        self
    }

    fn both_believe(&self) -> bool {
        self.world.believes(0) && self.world.believes(1)
    }
}

const TICKS: [Step; 2] = [Step::Tick, Step::Tick];

#[test]
fn votes_of_servers_that_do_not_list_each_other_are_no_majority() {
    let story = |mistake| {
        let replaced = Story::of_a_stranger(mistake).looks(0).lists(0).then(&TICKS).looks(0).admits(0);
        let held = replaced.asks(0, [0, 1]);
        assert!(held.world.believes(0), "the stranger was listed, and votes");
        // The other locker knows the second server, and vets the third again.
        held.then(&[Step::Vet(1, 2)]).asks(1, [1, 2])
    };
    assert!(!story(None).both_believe());
    assert!(story(Some(Mistake::ListsIgnored)).both_believe());
}

#[test]
fn a_server_that_was_dropped_while_it_votes_begins_anew() {
    let story = |mistake| {
        let held = Story::of_a_stranger(mistake).looks(0).lists(0).then(&TICKS).looks(0).admits(0).asks(0, [0, 1]);
        held.looks(1).lists(1).looks(1).asks(1, [1, 2])
    };
    assert!(!story(None).both_believe());
    assert!(story(Some(Mistake::VoterTakenIn)).both_believe());
}

#[test]
fn a_wait_begins_when_a_server_is_listed() {
    let story = |mistake| {
        // The stranger has a new memory and is not listed yet. Meanwhile the other locker takes the lock without the
        // first server.
        let begun = Story::of_a_stranger(mistake).looks(0).then(&TICKS).looks(1).asks(1, [1, 2]);
        assert!(begun.world.believes(1));
        begun.looks(0).lists(0).looks(0).admits(0).asks(0, [0, 1])
    };
    assert!(!story(None).both_believe());
    assert!(story(Some(Mistake::WaitFromTheBeginning)).both_believe());
}

#[test]
fn a_dropped_server_does_not_come_back_with_its_wait() {
    let story = |mistake| {
        // It is listed, but does not vote yet. The other locker drops it for the second server, which votes after a
        // while.
        let waits = Story::of_a_stranger(mistake).looks(0).lists(0);
        let dropped = waits.looks(1).lists(1).then(&TICKS).looks(1).admits(1).asks(1, [1, 2]);
        assert!(dropped.world.believes(1));
        dropped.looks(0).lists(0).looks(0).admits(0).asks(0, [0, 1])
    };
    assert!(!story(None).both_believe());
    assert!(story(Some(Mistake::DroppedAgain)).both_believe());
}

#[test]
fn two_strangers_do_not_begin_together_while_a_server_is_missed() {
    let story = |mistake| {
        // The first locker has the third server list the stranger, and is cut off before the first server does.
        let halfway = Story::of_a_stranger(mistake).looks(0).then(&[Step::Change(0, 1)]).loses_touch_with(0);
        // So the third server does not list the second one, which the first one does: it begins a new memory.
        let thrown_out = halfway.looks(1).then(&[Step::Change(1, 0)]).looks(0);
        let begun = thrown_out.lists(0).then(&TICKS).looks(0).admits(0).asks(0, [1, 2]);
        begun.looks(1).asks(1, [0, 1])
    };
    let held = story(None);
    assert!(held.world.believes(1) && !held.world.believes(0));
    assert!(story(Some(Mistake::MissedIgnored)).both_believe());
}

/// The stranger is a copy of the second server that votes on its own.
#[test]
fn a_lock_that_is_kept_on_another_server_is_no_vote() {
    for (mistake, step) in [(Mistake::RenewalBlind, Step::Renew(0, 1)), (Mistake::RetakeBlind, Step::Retake(0, 1))] {
        let story = |mistake| {
            let bounds = Bounds { cut: Some(2), ticks: 99, stale: 1, mistake, ..BOUNDS };
            let mut world = World::new(&bounds);
            if step == Step::Renew(0, 1) {
                world.servers[STRANGER].lock = world.servers[1].lock;
            }
            let moved = Story { bounds, world }.then(&[Step::Move(0, 1, STRANGER), Step::Vet(0, 1)]);
            // If it counts, the old vote is not needed any more after the tick.
            let mut kept = moved.then(&[Step::Tick]);
            kept.world.lockers[0].votes[0] = 1;
            kept.world.servers[0].lock = Some((0, 1));
            kept.then(std::slice::from_ref(&step)).looks(1).asks(1, [1, 2])
        };
        assert!(!story(None).both_believe());
        assert!(story(Some(mistake)).both_believe(), "{mistake:?}");
    }
}

#[test]
fn a_change_that_comes_late_changes_nothing() {
    let story = |mistake| {
        let bounds = Bounds { flushes: 2, ticks: 99, stale: 1, mistake, ..BOUNDS };
        let mut world = World::new(&bounds);
        for server in &mut world.servers {
            server.lock = None;
        }
        let first = &mut world.lockers[0];
        (first.votes, first.asked, first.began) = ([0; SEATS], [false; SEATS], None);
        // Both lockers know that the first server has waited long enough. One lets it vote, and takes the lock with it.
        let waited = Story { bounds, world }.then(&[Step::Flush(0)]).looks(0).lists(0).then(&TICKS).looks(0);
        let held = waited.looks(1).admits(1).looks(1).asks(1, [0, 2]);
        assert!(held.world.believes(1));
        held.then(&[Step::Flush(0), Step::Vet(1, 0)]).admits(0).asks(0, [0, 1])
    };
    assert!(!story(None).both_believe());
    assert!(story(Some(Mistake::ChangeBlind)).both_believe());
}
