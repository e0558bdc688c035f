//! Sends steps to a server: steps that are asked for at the same moment travel as one script.
//!
//! A script costs something before it does anything: fred makes a command and a system call for
//! each, and the server makes two more system calls. A step without company is sent as its own
//! script. While enough scripts are in flight, the steps that arrive are collected, and are sent
//! when the next answer arrives: the busier the connection, the more steps share the cost.
//!
//! A server forgets its scripts when it restarts, or when it is told to. It then answers one script
//! with NOSCRIPT while the next one, which it may know, is already in flight. So once a script has
//! to be sent again, nothing new is sent until everything in flight has been answered. Then the
//! script is sent again, and behind it every step that the server ran meanwhile and that found
//! nothing to do.
//!
//! # When a script is sent
//! - With fewer than [`FLIGHTS`] scripts in flight, or for a cluster, immediately. Otherwise once
//!   there are [`ENOUGH`] steps, once fewer scripts are in flight, or after [`PATIENCE`]. So far
//!   from the server a step waits for a millisecond at most, and on a busy locker most steps share
//!   a script.
//! - While the connection is down, nothing is handed to fred. A step waits for half a command
//!   timeout and is then *not executed* rather than unknown, so an outage leaves nothing to undo.
//!   While the connection is silent (`link/heartbeat.rs`), no step is sent that may take a lock;
//!   with at most [`MOST_FLIGHTS`] scripts in flight this bounds what has to be undone on a server
//!   that hangs.
//! - What the server answers to a script as a whole (`LOADING`, silence, a lost connection) is the
//!   answer to each of its steps, with one exception: it checks all keys before it runs anything,
//!   so one key that the user may not use, or of another slot, would refuse the others. Then each
//!   step is sent alone.
//!
//! In a shared script each step is a function of `batch.lua`, made from the text of its own script
//! and called by `pcall`. Acquires of several locks, and releases that keep the lock, have their
//! place among the steps but share no script. Counts, renewals and retakes do not come here: none
//! of them depends on a step without an answer.
//!
//! # Invariants
//! - Steps are executed in the order in which they were put in: an undo never overtakes its
//!   acquire. One exception: if a step overtook one that has to be sent again, and changed
//!   something, that counts. Neither had been answered by then, so either may have come first.
//! - Steps are sent again only while nothing is in flight.
//! - The outcome of one step does not affect the others: each has an answer or an error of its own.

use std::collections::VecDeque;
use std::pin::pin;
use std::time::Duration;

use futures_util::stream::FuturesOrdered;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::{Notify, oneshot};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::replica_acks::ReplicaAck;
use super::reply::{self, Outcome, Reply};
use super::script_runner::{By, ScriptRunner, is_not_known};
use super::slot::Slot;
use super::word_list::WordList;
use crate::clock::Instant;
use crate::error::{Error, NodeFailure, ServerErrorKind};
use crate::foreign;
use crate::key::MEMORY;
use crate::lua::Lua;
use crate::sync::{Arc, Mutex};

/// The most steps in a script: some hundred microseconds of the server's time.
const MOST: usize = 64;

/// While this many scripts are in flight, steps are collected ..
const FLIGHTS: usize = 2;

/// .. until there are this many: a script by itself costs the server 14 us, a step in it 2.5 us;
/// but while many wait here, no other client may have work ..
const ENOUGH: usize = 16;

/// .. or, while this many scripts are in flight, twice as many: the server is behind, or silent ..
const MANY_FLIGHTS: usize = 4;

/// .. and for no longer than this, so steps for a distant server do not wait for its answers.
const PATIENCE: Duration = Duration::from_millis(1);

/// The most scripts in flight: what is in flight when a server falls silent has to be undone. A
/// server that is 100 ms away is still sent 40,000 steps a second; a master of a cluster 640, if
/// each has a slot of its own.
const MOST_FLIGHTS: usize = 64;

/// One operation for a script, usually on one lock.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    /// The script that runs it alone.
    pub(crate) alone: &'static Lua,
    /// The script that runs it together with others. A step that has none travels alone, in its
    /// place among the others: it must not overtake a step before it.
    pub(crate) batched: Option<Batched>,
    /// If its answer is a vote: what the server has to remember for that. The key of the memory and
    /// this digest are the last of a script's keys and arguments.
    pub(crate) vote: Option<Arc<str>>,
    pub(crate) words: WordList,
    /// Whether it may leave something there: that has to be undone if its answer never arrives, and
    /// replicas have to acknowledge it, if they are asked at all.
    pub(crate) takes: bool,
    /// Returns whether this answer says that there was nothing to do. Then nothing was changed, and
    /// the step may be sent again.
    pub(crate) idle: fn(&Reply) -> bool,
    /// In a cluster: the slot of its keys. A script may have keys of one slot only.
    pub(crate) slot: Option<Slot>,
}

/// A script of steps that travel together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Batched {
    /// The name of the step in it.
    pub(crate) name: &'static str,
    pub(crate) lua: &'static Lua,
    /// The same, if some of the steps ask for a vote.
    pub(crate) voting: &'static Lua,
}

/// The server's answer to a step, and whether its replicas have it.
pub(super) type StepReply = (Outcome<Reply>, ReplicaAck);

/// How a step is sent: in the first way that has not failed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    /// By the digest of its script, together with others.
    Digest,
    /// By the text of its script, together with others.
    Text,
    /// By the text of its script, alone.
    Alone,
}

struct Entry {
    step: Step,
    since: Instant,
    way: Way,
    reply: oneshot::Sender<StepReply>,
}

impl Entry {
    fn shares(&self) -> bool {
        self.step.batched.is_some() && self.way < Way::Alone
    }

    /// Marks it to be sent again, in this way or a later one.
    fn again(self, way: Way) -> Self {
        Self {
            way: self.way.max(way),
            ..self
        }
    }

    /// A caller that is gone needs no answer.
    fn answer(self, outcome: Outcome<Reply>, ack: Option<ReplicaAck>) {
        let _: Result<_, _> = self
            .reply
            .send((outcome, ack.unwrap_or_else(ReplicaAck::moot)));
    }

    fn fail(self, failure: &NodeFailure) {
        self.answer(Outcome::NotExecuted(failure.clone()), None);
    }
}

/// Steps that were sent as one script, and its outcome.
struct Landed {
    entries: Vec<Entry>,
    fate: Fate,
}

enum Fate {
    /// An answer for each of them.
    Answered(Vec<(Outcome<Reply>, Option<ReplicaAck>)>),
    /// None was executed. Each has to be sent again, in this way.
    Again(Way),
}

/// The steps that wait to be sent over one connection.
pub(super) struct Batcher {
    runner: Arc<ScriptRunner>,
    waiting: Mutex<VecDeque<Entry>>,
    news: Notify,
    ended: CancellationToken,
}

impl Batcher {
    pub(super) fn new(runner: Arc<ScriptRunner>) -> Arc<Self> {
        let batcher = Arc::new(Self {
            runner,
            waiting: Mutex::default(),
            news: Notify::new(),
            ended: CancellationToken::new(),
        });
        let emptied = Arc::clone(&batcher);
        tokio::spawn(foreign::restarted(async move |_| empty(&emptied).await));
        batcher
    }

    /// Ends its task. Nothing may be sent after that.
    pub(super) fn end(&self) {
        self.ended.cancel();
    }

    pub(super) fn runner(&self) -> &Arc<ScriptRunner> {
        &self.runner
    }

    /// Puts a step behind those that were put in before, to be sent once. The future is small,
    /// since each lock and each release moves several around it.
    pub(super) fn send(&self, step: Step) -> impl Future<Output = StepReply> + '_ {
        let (reply, answer) = oneshot::channel();
        self.waiting.lock().push_back(Entry {
            step,
            since: Instant::now(),
            way: Way::Digest,
            reply,
        });
        self.news.notify_one();
        let ended = |_| {
            let failure = self.runner.link().failure("its connection was ended");
            (Outcome::Unknown(failure), ReplicaAck::moot())
        };
        answer.map(move |answer| answer.unwrap_or_else(ended))
    }

    /// Takes the next steps that travel together; none if nothing waits.
    fn take(&self) -> Vec<Entry> {
        let mut waiting = self.waiting.lock();
        // A script is for locks of one kind, and compares one memory.
        let mut script = None::<&Lua>;
        let mut vote = None;
        let slot = waiting.front().and_then(|entry| entry.step.slot);
        let mut agrees = |step: &Step| {
            let lua = step.batched.map(|batched| batched.lua);
            let alike = lua.is_some_and(|lua| std::ptr::eq(*script.get_or_insert(lua), lua));
            let remembers = match (&step.vote, &vote) {
                (Some(one), Some(other)) => one == other,
                (Some(one), None) => {
                    vote = Some(one.clone());
                    true
                }
                (None, _) => true,
            };
            alike && remembers && step.slot == slot
        };
        let shared = waiting
            .iter()
            .take(MOST)
            .take_while(|entry| entry.shares() && agrees(&entry.step));
        let sharing = shared.count();
        // A step that can share with none goes alone, in its place.
        let count = sharing.max(1).min(waiting.len());
        waiting.drain(..count).collect()
    }

    /// Waits for the connection, if it is down, for as long as the first waiting step may wait.
    ///
    /// # Errors
    /// Why it is down.
    async fn ready(&self) -> Result<(), NodeFailure> {
        let link = self.runner.link();
        let waited = self
            .waiting
            .lock()
            .front()
            .map_or(Duration::ZERO, |entry| Instant::now().since(entry.since));
        link.ready_for(link.patience().saturating_sub(waited)).await
    }

    /// Fails the first waiting step, and all others that have waited for as long as a step may.
    fn give_up(&self, failure: &NodeFailure) {
        let patience = self.runner.link().patience();
        let now = Instant::now();
        let mut waiting = self.waiting.lock();
        let overdue = waiting
            .iter()
            .skip(1)
            .take_while(|entry| now.since(entry.since) >= patience)
            .count();
        let count = waiting.len().min(1 + overdue);
        let given_up: Vec<_> = waiting.drain(..count).collect();
        let rest = !waiting.is_empty();
        drop(waiting);
        given_up.into_iter().for_each(|entry| entry.fail(failure));
        // Their notifications may have been consumed already.
        if rest {
            self.news.notify_one();
        }
    }

    /// Returns whether the steps are for a cluster. There they rarely share a slot, so none waits
    /// for company.
    fn is_of_cluster(&self) -> bool {
        self.waiting
            .lock()
            .front()
            .is_some_and(|entry| entry.step.slot.is_some())
    }

    /// Sends these steps as one script.
    async fn fly(&self, entries: Vec<Entry>) -> Landed {
        let steps = || entries.iter().map(|entry| &entry.step);
        let shared = if entries.len() > 1 {
            steps().find_map(|step| step.batched)
        } else {
            None
        };
        let count: usize = steps().map(|step| 1 + step.words.len()).sum();
        let mut keys = Vec::with_capacity(count);
        let mut args = Vec::with_capacity(count);
        for step in steps() {
            keys.extend(step.words.keys());
            args.extend(shared.and(step.batched).map(|batched| batched.name));
            args.extend(step.words.args());
        }
        let vote = steps().find_map(|step| step.vote.as_ref());
        if let Some(vote) = vote {
            keys.push(MEMORY);
            args.push(vote);
        }
        let acknowledged = steps().filter(|step| step.takes).count();
        let shared_by = |shared: Batched| {
            if vote.is_some() {
                shared.voting
            } else {
                shared.lua
            }
        };
        let Some(lua) = shared
            .map(shared_by)
            .or_else(|| Some(steps().next()?.alone))
        else {
            return Landed {
                entries,
                fate: Fate::Answered(Vec::new()),
            };
        };
        let by = if entries.iter().all(|entry| entry.way == Way::Digest) {
            By::Digest
        } else {
            By::Text
        };
        let (outcome, acks) = self
            .runner
            .run_by(by, acknowledged, lua, &keys, &args)
            .await;
        let fate = if by == By::Digest && is_not_known(&outcome) {
            Fate::Again(Way::Text)
        } else if shared.is_some() && refuses_the_company(&outcome) {
            Fate::Again(Way::Alone)
        } else {
            let outcomes = if shared.is_some() {
                self.each(outcome, entries.len())
            } else {
                vec![outcome]
            };
            let mut acks = acks.into_iter();
            let acks = steps().map(|step| if step.takes { acks.next() } else { None });
            Fate::Answered(outcomes.into_iter().zip(acks).collect())
        };
        Landed { entries, fate }
    }

    /// Answers each of these steps, or collects the ones that have to be sent `again`. Flights land
    /// in the order in which they were sent. After the last one, the collected steps are put back,
    /// before those that wait.
    fn land(&self, landed: Landed, again: &mut Vec<Entry>, is_last: bool) {
        match landed.fate {
            Fate::Again(way) => {
                again.extend(landed.entries.into_iter().map(|entry| entry.again(way)));
            }
            Fate::Answered(answers) => {
                for (entry, (outcome, ack)) in landed.entries.into_iter().zip(answers) {
                    self.runner.suspect(&outcome);
                    match &outcome {
                        // A step before it has to be sent again, which may be why there was nothing
                        // to do: an acquire is told "held" if the release before it was not
                        // executed.
                        Outcome::Done(reply) if !again.is_empty() && (entry.step.idle)(reply) => {
                            again.push(entry.again(Way::Text));
                        }
                        _ => entry.answer(outcome, ack),
                    }
                }
            }
        }
        if is_last && !again.is_empty() {
            let mut waiting = self.waiting.lock();
            again
                .drain(..)
                .rev()
                .for_each(|entry| waiting.push_front(entry));
            drop(waiting);
            self.news.notify_one();
        }
    }

    /// Returns the outcome of each of `count` steps.
    fn each(&self, outcome: Outcome<Reply>, count: usize) -> Vec<Outcome<Reply>> {
        let node = self.runner.link().server();
        match outcome {
            Outcome::Done(Reply::Array(items)) if items.len() == count => items
                .into_iter()
                .map(|item| item.into_outcome(node))
                .collect(),
            // What the server says to the script as a whole is the answer to each of its steps.
            all => vec![all.and_then(node, |_| None); count],
        }
    }
}

/// Returns whether the server refused the script because of the keys of one step. It checks all
/// keys before it runs anything: one key that this user may not access, or one of another slot, and
/// no step is run.
fn refuses_the_company(outcome: &Outcome<Reply>) -> bool {
    match outcome {
        Outcome::Refused(Error::Server { kind, source }) => {
            *kind == ServerErrorKind::NoPermission || reply::code(&source.message) == "CROSSSLOT"
        }
        _ => false,
    }
}

/// Sends the steps that are put in. Started with the batcher, and restarted after a panic, which
/// makes unknown what was in flight; ends with the engine, or with [`Batcher::end`]; no task awaits
/// it.
async fn empty(batcher: &Batcher) {
    // The notification for steps put in before a panic may have been consumed.
    batcher.news.notify_one();
    // In the order in which they were sent, since a connection answers in that order.
    let mut flights = FuturesOrdered::new();
    let mut again = Vec::new();
    let mut patience = pin!(sleep(PATIENCE));
    let mut collecting = false;
    loop {
        let mut over = false;
        tokio::select! {
            biased;
            Some(landed) = flights.next() => batcher.land(landed, &mut again, flights.is_empty()),
            () = batcher.ended.cancelled() => return,
            // No wake-up is lost: only this task waits, and a step meanwhile leaves a permit.
            () = batcher.news.notified() => {}
            () = &mut patience, if collecting => over = true,
        }
        let waiting = batcher.waiting.lock().len();
        // Nothing new is sent before the steps that have to be sent again: the last flight puts
        // those back.
        if waiting == 0 || !again.is_empty() || flights.len() >= MOST_FLIGHTS {
            collecting = false;
            continue;
        }
        let enough = if flights.len() < MANY_FLIGHTS {
            ENOUGH
        } else {
            2 * ENOUGH
        };
        if waiting < enough && flights.len() >= FLIGHTS && !over && !batcher.is_of_cluster() {
            if !std::mem::replace(&mut collecting, true) {
                patience.set(sleep(PATIENCE));
            }
            continue;
        }
        collecting = false;
        // Waits here, and not in each flight, so that flights leave in order.
        let mut ready = pin!(batcher.ready());
        let ready = loop {
            tokio::select! {
                biased;
                ready = &mut ready => break ready,
                Some(landed) = flights.next() => batcher.land(landed, &mut again, flights.is_empty()),
            }
        };
        if let Err(failure) = ready {
            batcher.give_up(&failure);
            continue;
        }
        while again.is_empty() && flights.len() < MOST_FLIGHTS {
            let entries = batcher.take();
            if entries.is_empty() {
                break;
            }
            // It is polled before anything else is awaited.
            flights.push_back(batcher.fly(entries));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::foreign::poll_sickly;
    use crate::node::link::Link;
    use crate::options::Options;

    static LUA: LazyLock<Lua> = LazyLock::new(|| Lua::new("return 1"));
    static OTHER: LazyLock<Lua> = LazyLock::new(|| Lua::new("return 2"));

    fn batcher() -> Arc<Batcher> {
        let command_timeout = Some(Duration::from_millis(100));
        let settings = Options {
            command_timeout,
            ..Options::default()
        }
        .validate(1)
        .expect("valid");
        Batcher::new(ScriptRunner::new(
            Link::to_nobody(&settings),
            Link::to_nobody(&settings),
            None,
        ))
    }

    fn step(batched: Option<&'static Lua>) -> Step {
        Step {
            alone: &LUA,
            batched: batched.map(|lua| Batched {
                name: "acquire",
                lua,
                voting: lua,
            }),
            words: WordList::default(),
            takes: false,
            vote: None,
            idle: |_| false,
            slot: None,
        }
    }

    #[tokio::test]
    async fn steps_are_answered_after_a_panic() {
        let batcher = batcher();
        let mut sick = pin!(batcher.send(step(None)));
        poll_sickly(sick.as_mut());
        for answer in [tokio::time::timeout(Duration::from_secs(10), sick).await, {
            tokio::time::timeout(Duration::from_secs(10), batcher.send(step(None))).await
        }] {
            assert!(
                matches!(answer, Ok((Outcome::NotExecuted(_), _))),
                "the answer that no server is there"
            );
        }
    }

    /// Each kind has a script of its own, in which the steps have the same names.
    #[tokio::test]
    async fn steps_of_two_kinds_share_no_script() {
        let batcher = batcher();
        let scripts: [Option<&'static Lua>; 5] =
            [Some(&LUA), Some(&LUA), Some(&OTHER), Some(&LUA), None];
        let mut sending: Vec<_> = scripts
            .iter()
            .map(|script| Box::pin(batcher.send(step(*script))))
            .collect();
        for send in &mut sending {
            assert!(futures_util::poll!(send).is_pending());
        }
        let taken: Vec<usize> = (0..5).map(|_| batcher.take().len()).collect();
        assert_eq!(taken, [2, 1, 1, 1, 0]);
    }

    #[tokio::test]
    async fn steps_of_two_slots_share_no_script() {
        let batcher = batcher();
        let steps = [1, 1, 2, 1].map(|slot| Step {
            slot: Some(slot),
            ..step(Some(&LUA))
        });
        let mut sending: Vec<_> = steps
            .into_iter()
            .map(|step| Box::pin(batcher.send(step)))
            .collect();
        for send in &mut sending {
            assert!(futures_util::poll!(send).is_pending());
        }
        let taken: Vec<usize> = (0..4).map(|_| batcher.take().len()).collect();
        assert_eq!(taken, [2, 1, 1, 0]);
    }
}
