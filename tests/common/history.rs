//! Histories of calls on locks, and the check that some order of the calls explains them all: linearizability.
//!
//! The check is Wing and Gong's, with the memory of states that Lowe added (*Testing for linearizability*, 2016). The
//! models are those of Hazelcast's Jepsen tests: an owner-aware, a re-entrant, a fenced, and a re-entrant fenced mutex.
//! Times are of [`super::record::now`], which all processes of a machine share.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

/// What was called, and what it said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// The lock was taken, or entered again, and this is its fence.
    Lock { fence: u64 },
    /// A guard was given back.
    Unlock,
    /// The lock was lost at some time during this call: between the last look at which it was held, and the first at
    /// which it was not. All its guards are gone.
    Lose,
}

/// One call of an owner on a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub key: String,
    pub who: String,
    pub op: Op,
    pub called: u64,
    /// `None`: its caller never heard. It took effect at any time after the call, or never will.
    pub returned: Option<u64>,
}

/// What a lock is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Model {
    /// One owner at a time has it, once; only the owner gives it back.
    OwnerAware,
    /// Its owner may take it again, so many times in all.
    Reentrant(u32),
    /// Owner-aware, and each fence is greater than those before.
    Fenced,
    /// Re-entrant, and a re-entry has the fence of its hold.
    ReentrantFenced(u32),
}

/// Who has the lock, how often, and the last fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct State {
    holder: Option<usize>,
    count: u32,
    fence: u64,
}

impl Model {
    fn most(self) -> u32 {
        match self {
            Self::OwnerAware | Self::Fenced => 1,
            Self::Reentrant(most) | Self::ReentrantFenced(most) => most,
        }
    }

    fn is_fenced(self) -> bool {
        matches!(self, Self::Fenced | Self::ReentrantFenced(_))
    }

    /// The state after this call; `None` where it could not have been answered so.
    fn step(self, state: State, who: usize, op: Op) -> Option<State> {
        let is_holder = state.holder == Some(who);
        match op {
            Op::Lock { fence } if is_holder => {
                let same = !self.is_fenced() || fence == state.fence;
                (state.count < self.most() && same).then_some(State { count: state.count + 1, ..state })
            }
            Op::Lock { fence } => {
                let grows = !self.is_fenced() || fence > state.fence;
                (state.holder.is_none() && grows).then_some(State { holder: Some(who), count: 1, fence })
            }
            Op::Unlock if is_holder && state.count > 1 => Some(State { count: state.count - 1, ..state }),
            Op::Unlock | Op::Lose => is_holder.then_some(State { holder: None, count: 0, ..state }),
        }
    }
}

#[derive(Debug, Default, Clone)]
pub struct History {
    pub calls: Vec<Call>,
}

impl History {
    /// Checks each lock by itself: they have nothing to do with each other.
    ///
    /// # Errors
    /// The lock, and the calls that no order explains, up to the first that none can.
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
        let Self { key, who, op, called, returned } = self;
        let op = match op {
            Op::Lock { fence } => format!("lock:{fence}"),
            Op::Unlock => "unlock".to_owned(),
            Op::Lose => "lose".to_owned(),
        };
        let returned = returned.map_or("never".to_owned(), |at| at.to_string());
        write!(f, "{key} {who} {op} {called} {returned}")
    }
}

impl Call {
    /// Reads what its Display wrote; `None` if this is something else.
    pub fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let [key, who, op, called, returned] = words[..] else { return None };
        let op = match (op, op.split_once(':')) {
            (_, Some(("lock", fence))) => Op::Lock { fence: fence.parse().ok()? },
            ("unlock", _) => Op::Unlock,
            ("lose", _) => Op::Lose,
            _ => return None,
        };
        let returned = if returned == "never" { None } else { Some(returned.parse().ok()?) };
        Some(Self { key: key.to_owned(), who: who.to_owned(), op, called: called.parse().ok()?, returned })
    }
}

/// The search for an order of the calls on one lock.
struct Search {
    model: Model,
    /// By call: who it was, and what.
    calls: Vec<(usize, Op)>,
    /// Calls and returns in the order of their times: a list in which those that have a place in the order are left
    /// out.
    events: Vec<Event>,
    next: Vec<usize>,
    before: Vec<usize>,
    /// How many calls with a return have no place yet.
    open: usize,
}

#[derive(Clone, Copy)]
struct Event {
    call: usize,
    returns: bool,
}

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
        // At one time calls come first: they may overlap.
        times.sort_unstable();
        let events: Vec<Event> = times.iter().map(|&(_, returns, call)| Event { call, returns }).collect();
        // The head of the list is behind the last event.
        let head = events.len();
        let next = (0..=head).map(|at| if at == head { 0 } else { at + 1 }).collect();
        let before = (0..=head).map(|at| if at == 0 { head } else { at - 1 }).collect();
        let open = calls.iter().filter(|call| call.returned.is_some()).count();
        let calls = calls.iter().map(|call| (owners[&call.who], call.op)).collect();
        Self { model, calls, events, next, before, open }
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
    /// The call whose return was never got past.
    fn run(mut self) -> Result<(), usize> {
        let head = self.events.len();
        let return_of: BTreeMap<usize, usize> = self
            .events
            .iter()
            .enumerate()
            .filter(|(_, event)| event.returns)
            .map(|(at, event)| (event.call, at))
            .collect();
        let (mut state, mut placed, mut chosen) =
            (State::default(), vec![0_u64; self.calls.len().div_ceil(64)], Vec::new());
        let (mut seen, mut farthest) = (HashSet::new(), 0);
        let mut at = self.next[head];
        while self.open > 0 {
            let Event { call, returns } = self.events[at];
            if !returns {
                let (who, op) = self.calls[call];
                if let Some(after) = self.model.step(state, who, op) {
                    placed[call / 64] |= 1 << (call % 64);
                    if seen.insert((placed.clone(), after)) {
                        chosen.push((at, state));
                        state = after;
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
                // The return of a call that has no place yet comes before the end of the list.
                at = self.next[at];
                continue;
            }
            // A call that returned has no place before whatever comes next: one of the choices before was another.
            farthest = farthest.max(at);
            let Some((last, former)) = chosen.pop() else { return Err(self.events[farthest].call) };
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
