//! Histories of calls on locks, and the check that some order of the calls explains them all:
//! linearizability. The check is Wing and Gong's, with the cache of states that Lowe added
//! (*Testing for linearizability*, 2016). The models are those of Hazelcast's Jepsen tests: an
//! owner-aware, a re-entrant, a fenced, and a re-entrant fenced mutex; and, beside them, a
//! read-write lock, an election and a latch. Times are of [`super::record::now`], which all
//! processes of a machine share.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

/// What was called, and its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// The lock was taken or re-entered, with this fence.
    Lock { fence: u64 },
    /// A guard was released.
    Unlock,
    /// The lock was lost at some time during this call, which lasts from the last check that found
    /// it held to the first that did not. The loss ends all its guards.
    Lose,
    /// The lock was taken or re-entered for reading. All guards of one read have its fence, and so
    /// may reads of others that came in beside it.
    Read { fence: u64 },
    /// A guard of this read was released.
    Unread { fence: u64 },
    /// This read was lost: as [`Lose`](Self::Lose).
    LoseRead { fence: u64 },
    /// An observer saw the leader of this term, or nobody if it is 0.
    See { term: u64 },
    /// A latch was to be set to this count. Without an answer, the result says nothing.
    SetCount { count: u32, has_set: bool },
    /// A latch was counted down.
    CountDown,
    /// The count of a latch was read.
    ReadCount { count: u32 },
    /// A caller waited until a latch was open.
    WaitOpen,
}

/// One call of an owner on a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub key: String,
    pub who: String,
    pub op: Op,
    pub called: u64,
    /// `None`: the caller got no answer. The call took effect at some time after it was made, or
    /// never.
    pub returned: Option<u64>,
}

/// The kind of lock that a history is checked against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Model {
    /// One owner at a time holds the lock, once; only the owner releases it.
    OwnerAware,
    /// The owner may hold the lock up to this many times.
    Reentrant(u32),
    /// Owner-aware, and each fence is greater than all before it.
    Fenced,
    /// Re-entrant, and a re-entry has the fence of its hold.
    ReentrantFenced(u32),
    /// The same for its writer, beside which nobody but itself reads. Readers have it together. A
    /// read's fence is above that of each earlier write, and below that of each later one.
    ReadWrite(u32),
    /// A fenced lock, and observers of it. A leader that is lost may be seen until it is gone from
    /// the server, and not again.
    Election,
    /// A latch, which nobody owns.
    Latch,
}

/// The holder of the lock, its hold count (of a latch, its count), and the last fence: of a
/// read-write lock, its writer and the last write.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct State {
    holder: Option<usize>,
    count: u32,
    fence: u64,
    /// The highest fence of a read.
    read: u64,
    /// By fence and reader: by how many guards it reads.
    readers: BTreeMap<(u64, usize), u32>,
    /// Whether the last leader was lost, and not yet seen to be gone.
    lingers: bool,
}

impl Model {
    fn most(self) -> u32 {
        match self {
            Self::OwnerAware | Self::Fenced | Self::Election | Self::Latch => 1,
            Self::Reentrant(most) | Self::ReentrantFenced(most) | Self::ReadWrite(most) => most,
        }
    }

    fn is_fenced(self) -> bool {
        matches!(
            self,
            Self::Fenced | Self::ReentrantFenced(_) | Self::ReadWrite(_) | Self::Election
        )
    }

    /// Returns the state after this call; `None` if the lock could not have given this result.
    fn step(self, state: State, who: usize, op: Op) -> Option<State> {
        let is_holder = state.holder == Some(who);
        match op {
            Op::Lock { fence } if is_holder => {
                let same = !self.is_fenced() || fence == state.fence;
                (state.count < self.most() && same).then_some(State {
                    count: state.count + 1,
                    ..state
                })
            }
            Op::Lock { fence } => {
                let grows = !self.is_fenced() || fence > state.fence.max(state.read);
                let is_free = state.holder.is_none() && state.readers.is_empty();
                (is_free && grows).then_some(State {
                    holder: Some(who),
                    count: 1,
                    fence,
                    lingers: false,
                    ..state
                })
            }
            Op::Unlock if is_holder && state.count > 1 => Some(State {
                count: state.count - 1,
                ..state
            }),
            Op::Unlock | Op::Lose => is_holder.then_some(State {
                holder: None,
                count: 0,
                lingers: self == Self::Election && op == Op::Lose,
                ..state
            }),
            Op::See { term: 0 } => state.holder.is_none().then_some(State {
                lingers: false,
                ..state
            }),
            Op::See { term } => {
                let is_there = state.holder.is_some() || state.lingers;
                (term == state.fence && is_there).then_some(state)
            }
            Op::Read { fence } => self.read(state, who, fence),
            Op::Unread { fence } => {
                let mut after = state;
                let count = after.readers.get_mut(&(fence, who))?;
                *count -= 1;
                if *count == 0 {
                    after.readers.remove(&(fence, who));
                }
                Some(after)
            }
            Op::LoseRead { fence } => {
                let mut after = state;
                after.readers.remove(&(fence, who)).map(|_| after)
            }
            _ if self != Self::Latch => None,
            // A count of an open latch, and a call that found it set, change nothing.
            Op::SetCount { has_set: false, .. } => (state.count > 0).then_some(state),
            Op::SetCount { count, .. } => (state.count == 0).then_some(State { count, ..state }),
            Op::CountDown => Some(State {
                count: state.count.saturating_sub(1),
                ..state
            }),
            Op::ReadCount { count } => (state.count == count).then_some(state),
            Op::WaitOpen => (state.count == 0).then_some(state),
        }
    }

    fn read(self, mut state: State, who: usize, fence: u64) -> Option<State> {
        let is_free = state.holder.is_none_or(|writer| writer == who);
        if !matches!(self, Self::ReadWrite(_)) || !is_free || fence <= state.fence {
            return None;
        }
        let count = state.readers.entry((fence, who)).or_default();
        *count += 1;
        let fits = *count <= self.most();
        state.read = state.read.max(fence);
        fits.then_some(state)
    }
}

#[derive(Debug, Default, Clone)]
pub struct History {
    pub calls: Vec<Call>,
}

impl History {
    /// Checks each lock by itself, since locks are independent of each other.
    ///
    /// # Errors
    /// The lock, and the calls up to the first one that no order explains.
    pub fn check(&self, model: Model) -> Result<(), String> {
        let mut locks: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
        for call in &self.calls {
            locks.entry(&call.key).or_default().push(call);
        }
        for (key, mut calls) in locks {
            calls.sort_by_key(|call| (call.called, call.returned));
            Search::new(model, &calls).run().map_err(|at| {
                let end = calls[at].returned.unwrap_or(u64::MAX);
                let near = calls.iter().filter(|call| call.called <= end).rev().take(12).collect::<Vec<_>>();
                format!(
                    "no order of the calls on {key} explains {:?}; those before it, the last one first: {near:#?}",
                    calls[at]
                )
            })?;
        }
        Ok(())
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            key,
            who,
            op,
            called,
            returned,
        } = self;
        let op = match op {
            Op::Lock { fence } => format!("lock:{fence}"),
            Op::Unlock => "unlock".to_owned(),
            Op::Lose => "lose".to_owned(),
            Op::Read { fence } => format!("read:{fence}"),
            Op::Unread { fence } => format!("unread:{fence}"),
            Op::LoseRead { fence } => format!("lose_read:{fence}"),
            Op::See { term } => format!("see:{term}"),
            Op::SetCount { count, has_set } => format!("set_count:{count}:{has_set}"),
            Op::CountDown => "count_down".to_owned(),
            Op::ReadCount { count } => format!("read_count:{count}"),
            Op::WaitOpen => "wait_open".to_owned(),
        };
        let returned = returned.map_or("never".to_owned(), |at| at.to_string());
        write!(f, "{key} {who} {op} {called} {returned}")
    }
}

impl Call {
    /// Parses a line that Display wrote; `None` if the line is something else.
    pub fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let [key, who, op, called, returned] = words[..] else {
            return None;
        };
        let op = match op.split_once(':') {
            Some((op, fence)) => {
                let fence = fence.parse().ok()?;
                match op {
                    "lock" => Op::Lock { fence },
                    "read" => Op::Read { fence },
                    "unread" => Op::Unread { fence },
                    "lose_read" => Op::LoseRead { fence },
                    "see" => Op::See { term: fence },
                    _ => return None,
                }
            }
            None if op == "unlock" => Op::Unlock,
            None if op == "lose" => Op::Lose,
            None => return None,
        };
        let returned = if returned == "never" {
            None
        } else {
            Some(returned.parse().ok()?)
        };
        Some(Self {
            key: key.to_owned(),
            who: who.to_owned(),
            op,
            called: called.parse().ok()?,
            returned,
        })
    }
}

/// How many states the search for one lock may visit: far more than the longest histories of the
/// tests need.
const MOST_STATES: usize = 1_000_000;

/// The search for an order of the calls on one lock. Without the rules of `Search::may_be_next` and
/// the dead calls of `Search::visit`, each release without an answer doubles the number of states.
struct Search {
    model: Model,
    calls: Vec<Step>,
    /// The calls without an answer, those that are dead first first.
    unanswered: Vec<usize>,
    /// The answered locks and reads, by their fences.
    locks: Vec<usize>,
    /// Calls and returns in the order of their times. `next` and `before` link those that have no
    /// place in the order yet.
    events: Vec<Event>,
    next: Vec<usize>,
    before: Vec<usize>,
    /// The number of calls with a return that have no place yet.
    open: usize,
}

/// What the search has to know of a call.
#[derive(Clone, Copy)]
struct Step {
    who: usize,
    op: Op,
    returned: Option<u64>,
    /// The highest fence that its owner had asked for by then. A release or a loss cannot be that
    /// of a later hold. Of a read: its fence, since it is over when a later write begins.
    latest: u64,
}

impl Step {
    /// Calls of one kind may take each other's places.
    fn is_like(&self, other: &Self) -> bool {
        (self.who, self.op, self.latest) == (other.who, other.op, other.latest)
    }

    fn deadline(&self) -> u64 {
        self.returned.unwrap_or(u64::MAX)
    }

    /// The fence of a lock or a read.
    fn fence(&self) -> u64 {
        match self.op {
            Op::Lock { fence } | Op::Read { fence } => fence,
            _ => 0,
        }
    }
}

/// Returns by call the highest fence that its owner had asked for by then.
fn latest_fences(model: Model, calls: &[&Call]) -> Vec<u64> {
    if !model.is_fenced() {
        return vec![u64::MAX; calls.len()];
    }
    let mut order: Vec<usize> = (0..calls.len()).collect();
    order.sort_by_key(|&at| (calls[at].called, !matches!(calls[at].op, Op::Lock { .. })));
    let (mut highest, mut latest) = (BTreeMap::<&str, u64>::new(), vec![0; calls.len()]);
    for at in order {
        let highest = highest.entry(&calls[at].who).or_default();
        latest[at] = match calls[at].op {
            Op::Lock { fence } => {
                *highest = fence.max(*highest);
                *highest
            }
            Op::Unlock | Op::Lose => *highest,
            Op::Read { fence } | Op::Unread { fence } | Op::LoseRead { fence } => fence,
            Op::See { .. }
            | Op::SetCount { .. }
            | Op::CountDown
            | Op::ReadCount { .. }
            | Op::WaitOpen => u64::MAX,
        };
    }
    latest
}

#[derive(Clone, Copy)]
struct Event {
    call: usize,
    returns: bool,
}

/// The states that were visited: which calls have a place, and the lock.
type Seen = HashSet<(Vec<u64>, State)>;

impl Search {
    fn new(model: Model, calls: &[&Call]) -> Self {
        let mut owners = BTreeMap::new();
        for call in calls {
            let next = owners.len();
            owners.entry(&call.who).or_insert(next);
        }
        let mut times = Vec::new();
        for (at, call) in calls.iter().enumerate() {
            times.push((call.called, false, at));
            times.extend(call.returned.map(|returned| (returned, true, at)));
        }
        // At equal times calls come before returns: they may overlap.
        times.sort_unstable();
        let events: Vec<Event> = times
            .iter()
            .map(|&(_, returns, call)| Event { call, returns })
            .collect();
        // The head of the list has the index after the last event.
        let head = events.len();
        let next = (0..=head)
            .map(|at| if at == head { 0 } else { at + 1 })
            .collect();
        let before = (0..=head)
            .map(|at| if at == 0 { head } else { at - 1 })
            .collect();
        let latest = latest_fences(model, calls);
        let step = |(call, latest): (&&Call, u64)| Step {
            who: owners[&call.who],
            op: call.op,
            returned: call.returned,
            latest,
        };
        let calls: Vec<Step> = calls.iter().zip(latest).map(step).collect();
        let (mut unanswered, answered): (Vec<_>, Vec<_>) =
            (0..calls.len()).partition(|&call| calls[call].returned.is_none());
        unanswered.sort_by_key(|&call| calls[call].latest);
        let is_lock = |&call: &usize| matches!(calls[call].op, Op::Lock { .. } | Op::Read { .. });
        let mut locks: Vec<usize> = answered.iter().copied().filter(is_lock).collect();
        locks.sort_by_key(|&call| calls[call].fence());
        let open = answered.len();
        Self {
            model,
            calls,
            unanswered,
            locks,
            events,
            next,
            before,
            open,
        }
    }

    /// Returns the state after this call, if it may have the next place.
    fn after(&self, state: &State, call: usize, placed: &[u64]) -> Option<State> {
        let Step {
            who, op, latest, ..
        } = self.calls[call];
        let is_of_it = matches!(op, Op::Lock { .. }) || state.fence <= latest;
        if !is_of_it {
            return None;
        }
        let after = self.model.step(state.clone(), who, op)?;
        self.may_be_next(call, state, &after, placed)
            .then_some(after)
    }

    /// Returns whether an order with this call in the next place is worth a look: it is not if a
    /// lower fence is left out, or if another call of its kind, which returned sooner, could take
    /// the place.
    fn may_be_next(&self, call: usize, state: &State, after: &State, placed: &[u64]) -> bool {
        let is_placed = |call: usize| placed[call / 64] & (1 << (call % 64)) != 0;
        if self.model.is_fenced() && after.fence > state.fence {
            let from = self
                .locks
                .partition_point(|&lock| self.calls[lock].fence() < state.fence);
            let mut lower = self.locks[from..]
                .iter()
                .take_while(|&&lock| self.calls[lock].fence() < after.fence);
            if lower.any(|&lock| !is_placed(lock)) {
                return false;
            }
        }
        let head = self.events.len();
        let mut at = self.next[head];
        while !self.events[at].returns {
            let other = self.events[at].call;
            let (this, that) = (&self.calls[call], &self.calls[other]);
            if that.is_like(this) && (that.deadline(), other) < (this.deadline(), call) {
                return false;
            }
            at = self.next[at];
        }
        true
    }

    /// Notes a state; false if it was visited before. Calls that can have no place any more make no
    /// difference.
    fn visit(&self, seen: &mut Seen, placed: &[u64], after: &State) -> bool {
        let mut placed = placed.to_vec();
        for &call in self
            .unanswered
            .iter()
            .take_while(|&&call| self.calls[call].latest < after.fence)
        {
            placed[call / 64] |= 1 << (call % 64);
        }
        assert!(
            seen.len() < MOST_STATES,
            "the search for an order of {} calls is too wide",
            self.calls.len()
        );
        seen.insert((placed, after.clone()))
    }

    fn remove(&mut self, event: usize) {
        let (before, next) = (self.before[event], self.next[event]);
        self.next[before] = next;
        self.before[next] = before;
    }

    fn restore(&mut self, event: usize) {
        let (before, next) = (self.before[event], self.next[event]);
        self.next[before] = event;
        self.before[next] = event;
    }

    /// # Errors
    /// The farthest call whose return the search could not pass.
    fn run(mut self) -> Result<(), usize> {
        let head = self.events.len();
        let return_of: BTreeMap<usize, usize> = self
            .events
            .iter()
            .enumerate()
            .filter(|(_, event)| event.returns)
            .map(|(at, event)| (event.call, at))
            .collect();
        let (mut state, mut placed, mut chosen) = (
            State::default(),
            vec![0_u64; self.calls.len().div_ceil(64)],
            Vec::new(),
        );
        let (mut seen, mut farthest) = (Seen::new(), 0);
        let mut at = self.next[head];
        while self.open > 0 {
            let Event { call, returns } = self.events[at];
            if !returns {
                if let Some(after) = self.after(&state, call, &placed) {
                    placed[call / 64] |= 1 << (call % 64);
                    if self.visit(&mut seen, &placed, &after) {
                        chosen.push((at, std::mem::replace(&mut state, after)));
                        self.remove(at);
                        if let Some(&end) = return_of.get(&call) {
                            self.remove(end);
                            self.open -= 1;
                        }
                        at = self.next[head];
                        continue;
                    }
                    placed[call / 64] &= !(1 << (call % 64));
                }
                // The list does not end here: `open` is not zero, so that a return is still ahead.
                at = self.next[at];
                continue;
            }
            // This call returned without a place in the order: the search takes its last choice
            // back.
            farthest = farthest.max(at);
            let Some((last, former)) = chosen.pop() else {
                return Err(self.events[farthest].call);
            };
            let call = self.events[last].call;
            placed[call / 64] &= !(1 << (call % 64));
            if let Some(&end) = return_of.get(&call) {
                self.restore(end);
                self.open += 1;
            }
            self.restore(last);
            state = former;
            at = self.next[last];
        }
        Ok(())
    }
}
