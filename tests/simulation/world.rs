//! Who is inside by their own belief, what happened, and what must be so after each step.
//!
//! What a force_unlock of another locker may have deleted, or somebody deletes from outside, is not
//! promised to be exclusive until its holder renews: such a hold is *deposed*, and whoever comes in
//! beside it is no fault.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lockhound::CancellationToken;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::common::history::{Call, History, Model, Op};
use crate::common::permits::{self, Taken};
use crate::permits::CAPACITY;

/// How often somebody may be in a lock at once.
const MOST_GUARDS: u32 = 64;

pub struct World {
    start: Instant,
    /// Whether everything is shown when it happens.
    aloud: bool,
    /// In nanoseconds: by then the holder of what was forced is told, where nothing keeps it from
    /// renewing.
    told_after: Option<u64>,
    /// Whether there is one server, and all that it says is heard: nobody is told then that it
    /// released what was gone.
    hears_all: bool,
    state: Mutex<State>,
    /// Somebody has come in.
    entered: Notify,
}

#[derive(Default)]
struct State {
    /// All holds that there were.
    holds: Vec<Hold>,
    /// What is held now.
    inside: BTreeMap<Name, usize>,
    guards: u64,
    /// By lock.
    fences: BTreeMap<String, Fences>,
    forces: Vec<Force>,
    /// Whose locker came in last.
    last: Option<usize>,
    history: History,
    /// All permits that were taken, each with the token of its holder.
    permits: Vec<(Taken, CancellationToken)>,
    trace: Vec<String>,
}

/// As what somebody is inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// By a lock, or as a writer.
    Alone,
    /// As a reader.
    Reads,
}

/// The highest fences of a lock.
#[derive(Default, Clone, Copy)]
struct Fences {
    alone: u64,
    any: u64,
}

/// A lock, its owner and its role. A read has its fence beside them: an owner that asks twice at
/// once to read inside its write has two.
type Name = (String, String, Role, Option<u64>);

struct Hold {
    key: String,
    who: String,
    role: Role,
    locker: usize,
    fence: u64,
    is_renewed: bool,
    called: u64,
    entered: u64,
    /// When it was certainly held.
    held: u64,
    /// Whether somebody has found it lost.
    is_lost: bool,
    /// When its last guard was given up.
    left: u64,
    /// The tokens of its guards.
    tokens: BTreeMap<u64, CancellationToken>,
}

struct Force {
    key: String,
    locker: usize,
    called: u64,
    returned: Option<u64>,
    /// Whether somebody was released.
    released: bool,
}

/// Somebody who has come in.
pub struct Entry<'a> {
    pub key: &'a str,
    pub who: &'a str,
    pub role: Role,
    pub locker: usize,
    pub fence: u64,
    pub is_renewed: bool,
    pub token: CancellationToken,
    pub called: u64,
}

/// A guard. Dropping it is leaving without a word.
pub struct Inside {
    world: Arc<World>,
    hold: usize,
    guard: u64,
    left: bool,
}

/// A guard on its way out.
pub struct Leaving {
    world: Arc<World>,
    hold: usize,
    called: u64,
    was_lost: bool,
    is_last: bool,
    left: bool,
}

/// What a guard that leaves is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    Released,
    /// Nobody knows when it was released.
    Unknown,
    Lost,
    /// It may have been lost before that, and nobody said so.
    Unclear,
}

impl World {
    /// Whoever is forced by another locker is told after this time.
    pub fn new(aloud: bool, told_after: Option<Duration>, hears_all: bool) -> Arc<Self> {
        let told_after = told_after.map(|after| u64::try_from(after.as_nanos()).unwrap());
        let (start, state, entered) = (Instant::now(), Mutex::default(), Notify::new());
        Arc::new(Self {
            start,
            aloud,
            told_after,
            hears_all,
            state,
            entered,
        })
    }

    /// In nanoseconds.
    pub fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap()
    }

    /// Notes what happened, and looks at who believes to be inside.
    pub fn note(&self, what: impl Display) {
        self.note_in(&mut self.state(), what);
    }

    fn note_in(&self, state: &mut State, what: impl Display) {
        let line = format!("{:>12} us  {what}", self.start.elapsed().as_micros());
        if self.aloud {
            println!("{line}");
        }
        state.trace.push(line);
        let mut believers: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
        for &at in state.inside.values() {
            let hold = &state.holds[at];
            let believes = hold.tokens.values().any(|token| !token.is_cancelled());
            if !believes {
                continue;
            }
            if state.deposed(hold).is_some() {
                let is_told = self
                    .told_after
                    .is_none_or(|after| !state.is_untold(hold, self.now().saturating_sub(after)));
                assert!(
                    is_told,
                    "nobody tells {} that {} was released",
                    hold.who, hold.key
                );
            } else {
                let others = believers.entry(&hold.key).or_default();
                let other = others.iter().find(|other| hold.excludes(other));
                assert!(
                    other.is_none(),
                    "{} and {:?} believe in {} at once",
                    hold.who,
                    other.map(|other| &other.who),
                    hold.key
                );
                others.push(hold);
            }
        }
    }

    /// Somebody has come in, or in again; says in what way.
    pub fn enter(self: &Arc<Self>, entry: Entry<'_>, how: &str) -> Inside {
        let Entry {
            key,
            who,
            role,
            locker,
            fence,
            is_renewed,
            token,
            called,
        } = entry;
        let (mut guarded, now) = (self.state(), self.now());
        let state = &mut *guarded;
        let who = state.holder(key, fence, locker, who);
        let name = name(key, &who, role, fence);
        // A guard may be on its way while those before it go: it keeps their hold.
        let same = |hold: &Hold| {
            hold.key == key && hold.who == who && hold.role == role && hold.fence == fence
        };
        let known = state
            .inside
            .get(&name)
            .copied()
            .or_else(|| state.holds.iter().rposition(same));
        let (again, hold) = (known.is_some(), known.unwrap_or(state.holds.len()));
        if !again {
            let ((key, who, role, _), held, tokens) = (name.clone(), called, BTreeMap::new());
            let (entered, is_lost, left) = (now, false, 0);
            state.holds.push(Hold {
                key,
                who,
                role,
                locker,
                fence,
                is_renewed,
                called,
                entered,
                held,
                is_lost,
                left,
                tokens,
            });
        }
        state.inside.insert(name, hold);
        state.guards += 1;
        state.holds[hold].tokens.insert(state.guards, token);
        let is_deposed = state.deposed(&state.holds[hold]).is_some();
        let highest = state.fences.get(key).copied();
        if again {
            assert_eq!(
                fence, state.holds[hold].fence,
                "a re-entry of {who} has the fence of its hold of {key}"
            );
            // A deposed hold counts as lost once its last guard has gone. Its locker may not know,
            // and enter again.
            let is_lost = state.holds[hold].is_lost && !is_deposed;
            assert!(!is_lost, "{who} came into {key} again, which it has lost");
        } else {
            let other = state.other_read(&state.holds[hold]);
            assert!(
                other.is_none_or(|other| called <= other.entered),
                "a re-entry of {who} has the fence of its read of {key}"
            );
            // Reads are not in order among themselves.
            let before = highest.map(|highest| match role {
                Role::Alone => highest.any,
                Role::Reads => highest.alone,
            });
            let grows = before.is_none_or(|before| fence > before);
            assert!(
                grows || is_deposed,
                "the fence of {key} fell to {fence} of {who}: {before:?}"
            );
            let highest = state.fences.entry(key.to_owned()).or_default();
            highest.any = highest.any.max(fence);
            if role == Role::Alone {
                highest.alone = highest.alone.max(fence);
            }
        }
        if !(again && is_deposed) {
            let op = match role {
                Role::Alone => Op::Lock { fence },
                Role::Reads => Op::Read { fence },
            };
            state.call(hold, op, called, Some(now));
        }
        let grown = i128::from(fence) - i128::from(highest.map_or(fence, |highest| highest.any));
        (state.last, _) = (Some(locker), self.entered.notify_waiters());
        let guard = state.guards;
        self.note_in(
            state,
            format_args!(
                "{who} {how} {key}: {}in{}, fence {grown:+}",
                if role == Role::Reads { "reads, " } else { "" },
                if again { " again" } else { "" }
            ),
        );
        Inside {
            world: Arc::clone(self),
            hold,
            guard,
            left: false,
        }
    }

    /// Somebody has permits from here on. Returns their number.
    pub fn take(&self, key: &str, who: &str, permits: u32, token: CancellationToken) -> usize {
        let (mut state, now) = (self.state(), self.now());
        let taken = Taken {
            key: key.to_owned(),
            who: who.to_owned(),
            permits,
            from: now,
            until: u64::MAX,
        };
        state.permits.push((taken, token));
        let believes = |(taken, token): &&(Taken, CancellationToken)| {
            taken.key == key && taken.until == u64::MAX && !token.is_cancelled()
        };
        let believers: Vec<_> = state.permits.iter().filter(believes).collect();
        let sum: u32 = believers.iter().map(|(taken, _)| taken.permits).sum();
        assert!(
            sum <= CAPACITY,
            "of {CAPACITY} permits of {key} these are taken: {believers:?}"
        );
        state.permits.len() - 1
    }

    /// It gives them back, and certainly had them until then.
    pub fn give(&self, taken: usize, until: u64) {
        self.state().permits[taken].0.until = until;
    }

    /// Waits until somebody comes in by this locker.
    pub async fn next_entry(&self, locker: usize) {
        loop {
            self.entered.notified().await;
            if self.state().last == Some(locker) {
                return;
            }
        }
    }

    /// Whether somebody has a guard.
    pub fn has(&self, key: &str, who: &str) -> bool {
        let state = self.state();
        let mut inside = state.inside.keys();
        inside.any(|(lock, owner, ..)| lock == key && owner == who)
    }

    /// Whether somebody reads, or has done so since then.
    pub fn has_read(&self, key: &str, who: &str, since: u64) -> bool {
        self.state().holds.iter().any(|hold| {
            let reads = hold.role == Role::Reads && hold.key == key && hold.who == who;
            reads && (!hold.tokens.is_empty() || hold.left >= since)
        })
    }

    /// How often somebody has come in, and whether somebody is in this lock.
    pub fn entries(&self, key: &str) -> (u64, bool) {
        let state = self.state();
        (
            state.guards,
            state.inside.keys().any(|(inside, ..)| inside == key),
        )
    }

    /// Somebody is about to release what others hold.
    pub fn force(&self, key: &str, locker: usize) -> usize {
        let (mut state, called) = (self.state(), self.now());
        state.forces.push(Force {
            key: key.to_owned(),
            locker,
            called,
            returned: None,
            released: false,
        });
        state.forces.len() - 1
    }

    /// It has returned.
    pub fn forced(&self, force: usize, released: bool) {
        let force = &mut self.state().forces[force];
        (force.returned, force.released) = (Some(self.now()), released);
    }

    /// Somebody has deleted a key, on one server of several or everywhere.
    pub fn deleted(&self, key: &str, everywhere: bool) {
        let force = self.force(key, usize::MAX);
        self.forced(force, everywhere);
    }

    /// Whether some order of the calls explains all of them; they are forgotten then.
    pub fn check_history(&self) {
        let history = std::mem::take(&mut self.state().history);
        let taken = std::mem::take(&mut self.state().permits);
        let taken: Vec<_> = taken.into_iter().map(|(taken, _)| taken).collect();
        history
            .check(Model::ReadWrite(MOST_GUARDS))
            .and_then(|()| permits::check(CAPACITY, &taken))
            .unwrap_or_else(|error| panic!("{error}"));
    }

    pub fn trace(&self) -> Vec<String> {
        self.state().trace.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

fn name(key: &str, who: &str, role: Role, fence: u64) -> Name {
    let fence = (role == Role::Reads).then_some(fence);
    (key.to_owned(), who.to_owned(), role, fence)
}

/// The task of a run, or of whoever locks without one.
fn task_of(who: &str) -> &str {
    who.split_once('/').map_or(who, |(task, _)| task)
}

impl State {
    fn call(&mut self, hold: usize, op: Op, called: u64, returned: Option<u64>) {
        let Hold { key, who, .. } = &self.holds[hold];
        let call = Call {
            key: key.clone(),
            who: who.clone(),
            op,
            called,
            returned,
        };
        self.history.calls.push(call);
    }

    /// Returns as whom somebody has come in. A run of a task enters the hold of that task, even if
    /// neither of them has noted yet that it was granted.
    fn holder(&self, key: &str, fence: u64, locker: usize, who: &str) -> String {
        let is_same =
            |hold: &&Hold| hold.key == key && hold.fence == fence && hold.locker == locker;
        let is_of_task = |hold: &&Hold| task_of(&hold.who) == task_of(who);
        let hold = self
            .holds
            .iter()
            .rev()
            .find(|hold| is_same(hold) && is_of_task(hold));
        hold.map_or_else(|| who.to_owned(), |hold| hold.who.clone())
    }

    /// Returns the first other read of the owner of this one.
    fn other_read(&self, hold: &Hold) -> Option<&Hold> {
        let is_other = |other: &&Hold| {
            other.role == Role::Reads
                && (&other.key, &other.who) == (&hold.key, &hold.who)
                && other.fence != hold.fence
        };
        let inside = self.inside.values().map(|&at| &self.holds[at]);
        inside
            .filter(is_other)
            .filter(|_| hold.role == Role::Reads)
            .min_by_key(|other| other.entered)
    }

    /// Since when this hold may be somebody else's, because another locker forced it, or its own
    /// before it came in.
    fn deposed(&self, hold: &Hold) -> Option<u64> {
        let forces = self.forces.iter().filter(|force| {
            force.key == hold.key
                && (force.locker != hold.locker || hold.entered >= force.called)
                && force
                    .returned
                    .is_none_or(|returned| hold.called <= returned)
        });
        forces.map(|force| force.called.max(hold.called)).min()
    }

    /// Whether this hold was released before that by another locker, and is renewed since.
    fn is_untold(&self, hold: &Hold, before: u64) -> bool {
        hold.is_renewed && self.is_gone(hold, before)
    }

    /// Whether this hold was released before that by another locker, or deleted.
    fn is_gone(&self, hold: &Hold, before: u64) -> bool {
        self.forces.iter().any(|force| {
            let is_others = force.key == hold.key && force.locker != hold.locker && force.released;
            is_others
                && hold.entered < force.called
                && force.returned.is_some_and(|returned| returned < before)
        })
    }
}

impl Inside {
    /// It was held at this time.
    pub fn held(&self, at: u64) {
        let hold = &mut self.world.state().holds[self.hold];
        hold.held = hold.held.max(at);
    }

    /// Gives the guard up: its owner is not inside from here on, unless by another one.
    pub fn leave(mut self) -> Leaving {
        self.left = true;
        self.leaving()
    }

    fn leaving(&self) -> Leaving {
        let mut state = self.world.state();
        let hold = &mut state.holds[self.hold];
        hold.tokens.remove(&self.guard);
        let (is_last, was_lost) = (hold.tokens.is_empty(), hold.is_lost);
        let name = name(&hold.key, &hold.who, hold.role, hold.fence);
        if is_last {
            hold.left = self.world.now();
            state.inside.remove(&name);
        }
        let (world, called) = (Arc::clone(&self.world), self.world.now());
        Leaving {
            world,
            hold: self.hold,
            called,
            was_lost,
            is_last,
            left: false,
        }
    }

    /// Whether its token has fired.
    pub fn is_told(&self) -> bool {
        self.world.state().holds[self.hold].tokens[&self.guard].is_cancelled()
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if !self.left && !std::thread::panicking() {
            let left = if self.is_told() {
                Left::Lost
            } else {
                Left::Unknown
            };
            self.leaving().end_of_several(left);
        }
    }
}

impl Leaving {
    /// Of several locks at once one may have been lost, and this one is still held by another
    /// guard.
    pub fn end_of_several(self, left: Left) {
        let holds = |hold: &Hold| hold.tokens.values().any(|token| !token.is_cancelled());
        let is_nested = left == Left::Lost && holds(&self.world.state().holds[self.hold]);
        self.end(if is_nested { Left::Unknown } else { left });
    }

    pub fn end(mut self, left: Left) {
        self.left = true;
        self.record(left);
    }

    fn record(&self, left: Left) {
        let (mut state, now) = (self.world.state(), self.world.now());
        let hold = &state.holds[self.hold];
        let (held, is_lost, deposed) = (hold.held, hold.is_lost, state.deposed(hold));
        if self.was_lost {
            let is_told = left != Left::Released || deposed.is_some();
            assert!(
                is_told,
                "{} released {} which it had lost",
                hold.who, hold.key
            );
            return;
        }
        let is_over = self.is_last || left == Left::Lost;
        if self.world.hears_all && is_over && left == Left::Released {
            let is_gone = state.is_gone(hold, self.called);
            assert!(
                !is_gone,
                "{} is told that it released {}, which was gone",
                hold.who, hold.key
            );
        }
        match (left, deposed) {
            (_, Some(_)) if !is_over || is_lost => {}
            // It may have run out before it was forced.
            (_, Some(since)) => state.lose(self.hold, since.min(held), Some(now)),
            (Left::Lost, None) if is_lost => {}
            (Left::Lost, None) => state.lose(self.hold, held, Some(now)),
            (Left::Unclear, None) => state.lose_perhaps(self.hold, held),
            (Left::Released, None) => state.unlock(self.hold, self.called, Some(now)),
            (Left::Unknown, None) => state.unlock(self.hold, self.called, None),
        }
    }
}

impl State {
    fn lose(&mut self, hold: usize, since: u64, found: Option<u64>) {
        self.holds[hold].is_lost = true;
        self.call(hold, self.holds[hold].loss(), since, found);
    }

    fn lose_perhaps(&mut self, hold: usize, since: u64) {
        self.call(hold, self.holds[hold].loss(), since, None);
    }

    fn unlock(&mut self, hold: usize, called: u64, returned: Option<u64>) {
        let Hold { role, fence, .. } = self.holds[hold];
        let op = match role {
            Role::Alone => Op::Unlock,
            Role::Reads => Op::Unread { fence },
        };
        self.call(hold, op, called, returned);
    }
}

impl Hold {
    /// Whether nobody may have the two at once.
    fn excludes(&self, other: &Self) -> bool {
        match (self.role, other.role) {
            (Role::Reads, Role::Reads) => false,
            (Role::Alone, Role::Alone) => true,
            // An owner reads inside its write, and does not write inside its read.
            _ => self.who != other.who,
        }
    }

    fn loss(&self) -> Op {
        match self.role {
            Role::Alone => Op::Lose,
            Role::Reads => Op::LoseRead { fence: self.fence },
        }
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if !self.left && !std::thread::panicking() {
            self.record(Left::Unclear);
        }
    }
}

/// Lets one owner write and, inside of it, read twice: it asks again when the first read has been
/// granted, or at once. Seed 6881 found it.
async fn two_reads_of_one_owner(asks_at_once: bool) {
    let world = World::new(false, None, false);
    let enter = |role, fence, called| {
        let entry = Entry {
            key: "prices",
            who: "a",
            role,
            locker: 0,
            fence,
            is_renewed: true,
            token: CancellationToken::new(),
            called,
        };
        world.enter(entry, "waits for")
    };
    let _write = enter(Role::Alone, 1, world.now());
    let asked = world.now();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let first = enter(Role::Reads, 2, asked);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let again = if asks_at_once { asked } else { world.now() };
    let second = enter(Role::Reads, 3, again);
    for read in [first, second] {
        read.leave().end(Left::Released);
    }
    world.check_history();
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_asks_twice_at_once_may_have_two_reads() {
    two_reads_of_one_owner(true).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "a re-entry of a has the fence of its read")]
async fn an_owner_that_reads_enters_its_read_again() {
    two_reads_of_one_owner(false).await;
}
