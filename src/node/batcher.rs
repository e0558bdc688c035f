//! Steps on their way to a server: what is asked for in the same moment travels as one script.
//!
//! A script has a price before it does anything: fred makes a command and a system call of each, the server another
//! two. Alone a step travels as its own script. While enough scripts are under way, the steps that come are collected,
//! and the next answer takes them along: the busier it is, the more of them share the price.
//!
//! A server forgets its scripts when it restarts, or is told to. It answers one script with NOSCRIPT while the next
//! one, which it may know, is on its way already. So once a script has to be sent again, nothing new is sent until
//! everything under way has been answered. Then the script is sent again, and behind it every step that the server ran
//! meanwhile and that found nothing to do: an acquire was told "held" because the release before it was not known.
//!
//! # Invariants
//! - Steps are executed in the order in which they were put in: an undo never overtakes its acquire. One exception: a
//!   step that overtook one that has to be sent again, and changed something, counts. Neither had an answer by then, so
//!   that either may have come first.
//! - What is sent again is sent while nothing is under way.
//! - What becomes of one step does not matter to the others: each has an answer, or an error, of its own.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;
use tokio::sync::{Notify, oneshot};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::replica_acks::ReplicaAck;
use super::reply::{self, Outcome, Reply};
use super::script_runner::{By, Lua, ScriptRunner, is_not_known};
use super::slot::Slot;
use crate::clock::Instant;
use crate::command::{MEMORY, Remembered};
use crate::error::{Error, NodeFailure, ServerErrorKind};
use crate::foreign;

/// How many steps make a script at most: some hundred microseconds of the server's time.
const MOST: usize = 64;

/// While so many scripts are under way, steps are collected ..
const FLIGHTS: usize = 2;

/// .. until there are so many: a script by itself costs the server 14 us, a step in it 2.5 us ..
const ENOUGH: usize = 32;

/// .. and not for longer than this: a server that is far away is asked all the same.
const PATIENCE: Duration = Duration::from_millis(1);

/// So many scripts are under way at most: what is in flight when a server falls silent has to be undone. A server that
/// is 100 ms away is sent 40,000 steps a second all the same; a master of a cluster 640, where each has a slot of its
/// own.
const MOST_FLIGHTS: usize = 64;

/// What a script is to do, as a rule for one lock.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    /// Does it alone.
    pub(crate) alone: &'static Lua,
    /// The script that does it together with others. A step that has none travels alone, in its place among the others:
    /// its answer must not overtake that of a step before it.
    pub(crate) batched: Option<Batched>,
    /// Where its answer is a vote: what the server has to remember for that. The key of its memory, and this, are the
    /// last of a script's keys and arguments.
    pub(crate) vote: Option<Remembered>,
    pub(crate) keys: Vec<String>,
    pub(crate) args: Vec<String>,
    /// Whether it may leave something there that has to be undone if its answer never comes.
    pub(crate) takes: bool,
    /// Whether replicas have to acknowledge it, where they are asked.
    pub(crate) acknowledged: bool,
    /// Whether this answer says that there was nothing to do. Nothing was changed then, and the step may be sent again.
    pub(crate) idle: fn(&Reply) -> bool,
    /// In a cluster: the slot of its keys. A script has keys of one slot.
    pub(crate) slot: Option<Slot>,
}

/// A script of steps that travel together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Batched {
    /// What the step is called there.
    pub(crate) name: &'static str,
    pub(crate) lua: &'static Lua,
    /// The same, where some of the steps ask for a vote.
    pub(crate) voting: &'static Lua,
}

/// What the server said to a step, and whether its replicas have it.
pub(super) type Answer = (Outcome<Reply>, ReplicaAck);

/// How a step is sent: the first way that has not failed yet.
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
    reply: oneshot::Sender<Answer>,
}

impl Entry {
    fn shares(&self) -> bool {
        self.step.batched.is_some() && self.way < Way::Alone
    }

    /// To be sent again, in this way at the least.
    fn again(self, way: Way) -> Self {
        Self { way: self.way.max(way), ..self }
    }

    /// Whoever is gone does not want to know.
    fn answer(self, outcome: Outcome<Reply>, ack: Option<ReplicaAck>) {
        let _: Result<_, _> = self.reply.send((outcome, ack.unwrap_or_else(ReplicaAck::moot)));
    }

    fn fail(self, failure: &NodeFailure) {
        self.answer(Outcome::NotExecuted(failure.clone()), None);
    }
}

/// Steps that travelled as one script, and what became of it.
struct Landed {
    entries: Vec<Entry>,
    fate: Fate,
}

enum Fate {
    /// An answer for each of them.
    Answered(Vec<(Outcome<Reply>, Option<ReplicaAck>)>),
    /// None was executed, and each has to be sent again, in this way.
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
        let batcher =
            Arc::new(Self { runner, waiting: Mutex::default(), news: Notify::new(), ended: CancellationToken::new() });
        let emptied = Arc::clone(&batcher);
        tokio::spawn(foreign::restarted(async move |_| empty(&emptied).await));
        batcher
    }

    /// Ends its task. Nothing is to be sent any more.
    pub(super) fn end(&self) {
        self.ended.cancel();
    }

    pub(super) fn runner(&self) -> &Arc<ScriptRunner> {
        &self.runner
    }

    /// Sends a step, once. The first poll puts it behind those that were put in before.
    pub(super) async fn send(&self, step: Step) -> Answer {
        let (reply, answer) = oneshot::channel();
        self.waiting().push_back(Entry { step, since: Instant::now(), way: Way::Digest, reply });
        self.news.notify_one();
        let ended = |_| {
            let (node, reason) = (Arc::clone(self.runner.link().server()), "its connection was ended".to_owned());
            (Outcome::Unknown(NodeFailure { node, reason }), ReplicaAck::moot())
        };
        answer.await.unwrap_or_else(ended)
    }

    /// The next steps to travel together; none if nothing waits.
    fn take(&self) -> Vec<Entry> {
        let mut waiting = self.waiting();
        // One script takes locks of one kind, and has one memory to compare.
        let (mut script, mut vote) = (None::<&Lua>, None);
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
        let shared = waiting.iter().take(MOST).take_while(|entry| entry.shares() && agrees(&entry.step));
        let sharing = shared.count();
        let count = sharing.max(1).min(waiting.len());
        waiting.drain(..count).collect()
    }

    /// Waits for the connection, if it is down, for as long as the first of those that wait may.
    ///
    /// # Errors
    /// Why it is.
    async fn ready(&self) -> Result<(), NodeFailure> {
        let link = self.runner.link();
        let waited = self.waiting().front().map_or(Duration::ZERO, |entry| Instant::now().since(entry.since));
        link.ready_for(link.patience().saturating_sub(waited)).await
    }

    /// Fails the first of those that wait, and all others that have waited for the connection for as long.
    fn give_up(&self, failure: &NodeFailure) {
        let (patience, now) = (self.runner.link().patience(), Instant::now());
        let mut waiting = self.waiting();
        let overdue = waiting.iter().skip(1).take_while(|entry| now.since(entry.since) >= patience).count();
        let count = waiting.len().min(1 + overdue);
        let given_up: Vec<_> = waiting.drain(..count).collect();
        let rest = !waiting.is_empty();
        drop(waiting);
        given_up.into_iter().for_each(|entry| entry.fail(failure));
        if rest {
            self.news.notify_one();
        }
    }

    /// Whether what waits is for a cluster, where steps seldom have a slot in common: none waits for company.
    fn is_of_cluster(&self) -> bool {
        self.waiting().front().is_some_and(|entry| entry.step.slot.is_some())
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends these steps as one script.
    async fn fly(&self, entries: Vec<Entry>) -> Landed {
        let steps = || entries.iter().map(|entry| &entry.step);
        let shared = if entries.len() > 1 { steps().find_map(|step| step.batched) } else { None };
        let mut keys: Vec<&str> = steps().flat_map(|step| step.keys.iter().map(String::as_str)).collect();
        let mut args = Vec::with_capacity(steps().map(|step| 1 + step.args.len()).sum());
        for step in steps() {
            args.extend(shared.and(step.batched).map(|batched| batched.name));
            args.extend(step.args.iter().map(String::as_str));
        }
        let vote = steps().find_map(|step| step.vote.as_ref());
        if let Some(vote) = vote {
            keys.push(MEMORY);
            args.push(&vote.digest);
        }
        let acknowledged = steps().filter(|step| step.acknowledged).count();
        let shared_by = |shared: Batched| if vote.is_some() { shared.voting } else { shared.lua };
        let Some(lua) = shared.map(shared_by).or_else(|| Some(steps().next()?.alone)) else {
            return Landed { entries, fate: Fate::Answered(Vec::new()) };
        };
        let by = if entries.iter().all(|entry| entry.way == Way::Digest) { By::Digest } else { By::Text };
        let (outcome, acks) = self.runner.run_by(by, acknowledged, lua, &keys, &args).await;
        let fate = if by == By::Digest && is_not_known(&outcome) {
            Fate::Again(Way::Text)
        } else if shared.is_some() && refuses_the_company(&outcome) {
            Fate::Again(Way::Alone)
        } else {
            let outcomes = if shared.is_some() { self.each(outcome, entries.len()) } else { vec![outcome] };
            let mut acks = acks.into_iter();
            let acks = steps().map(|step| if step.acknowledged { acks.next() } else { None });
            Fate::Answered(outcomes.into_iter().zip(acks).collect())
        };
        Landed { entries, fate }
    }

    /// Gives each of these steps its answer, or collects those that have to be sent `again`. Flights land in the order
    /// in which they were sent. With the last of them, what was collected is put back, before what waits.
    fn land(&self, landed: Landed, again: &mut Vec<Entry>, is_last: bool) {
        match landed.fate {
            Fate::Again(way) => again.extend(landed.entries.into_iter().map(|entry| entry.again(way))),
            Fate::Answered(answers) => {
                for (entry, (outcome, ack)) in landed.entries.into_iter().zip(answers) {
                    self.runner.suspect(&outcome);
                    match &outcome {
                        Outcome::Done(reply) if !again.is_empty() && (entry.step.idle)(reply) => {
                            again.push(entry.again(Way::Text));
                        }
                        _ => entry.answer(outcome, ack),
                    }
                }
            }
        }
        if is_last && !again.is_empty() {
            let mut waiting = self.waiting();
            again.drain(..).rev().for_each(|entry| waiting.push_front(entry));
            drop(waiting);
            self.news.notify_one();
        }
    }

    /// What becomes of each of so many steps.
    fn each(&self, outcome: Outcome<Reply>, count: usize) -> Vec<Outcome<Reply>> {
        let node = self.runner.link().server();
        match outcome {
            Outcome::Done(Reply::Array(items)) if items.len() == count => {
                items.into_iter().map(|item| item.into_outcome(node)).collect()
            }
            all => vec![all.and_then(node, |_| None); count],
        }
    }
}

/// A server looks at all the keys before it runs anything: one that this user may not have, or one of another slot, and
/// none of the steps is done.
fn refuses_the_company(outcome: &Outcome<Reply>) -> bool {
    match outcome {
        Outcome::Refused(Error::Server { kind, source }) => {
            *kind == ServerErrorKind::NoPermission || reply::code(&source.message) == "CROSSSLOT"
        }
        _ => false,
    }
}

/// Sends what is put in. Started with the batcher, and begun again after a panic, by which what was under way is
/// unknown; ends with the engine, or with [`Batcher::end`]; nobody awaits it.
async fn empty(batcher: &Batcher) {
    // What was put in before a panic rings no more.
    batcher.news.notify_one();
    // In the order in which they were sent, in which a connection answers them.
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
            () = batcher.news.notified() => {}
            () = &mut patience, if collecting => over = true,
        }
        let waiting = batcher.waiting().len();
        // Nothing is sent before what has to be sent again: the last flight under way puts that back.
        if waiting == 0 || !again.is_empty() || flights.len() >= MOST_FLIGHTS {
            collecting = false;
            continue;
        }
        if waiting < ENOUGH && flights.len() >= FLIGHTS && !over && !batcher.is_of_cluster() {
            if !std::mem::replace(&mut collecting, true) {
                patience.set(sleep(PATIENCE));
            }
            continue;
        }
        collecting = false;
        // Here and not by each flight for itself: they leave in order.
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
            // Polled before anything else is.
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
        let settings = Options { command_timeout, ..Options::default() }.validate(1).expect("valid");
        Batcher::new(ScriptRunner::new(Link::to_nobody(&settings), None))
    }

    fn step(batched: Option<&'static Lua>) -> Step {
        Step {
            alone: &LUA,
            batched: batched.map(|lua| Batched { name: "acquire", lua, voting: lua }),
            keys: Vec::new(),
            args: Vec::new(),
            takes: false,
            vote: None,
            acknowledged: false,
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
            assert!(matches!(answer, Ok((Outcome::NotExecuted(_), _))), "told that nobody is there");
        }
    }

    /// Of two kinds, each with a script of its own in which the steps have the same names.
    #[tokio::test]
    async fn steps_of_two_kinds_share_no_script() {
        let batcher = batcher();
        let scripts: [Option<&'static Lua>; 5] = [Some(&LUA), Some(&LUA), Some(&OTHER), Some(&LUA), None];
        let mut sending: Vec<_> = scripts.iter().map(|script| Box::pin(batcher.send(step(*script)))).collect();
        for send in &mut sending {
            assert!(futures_util::poll!(send).is_pending());
        }
        let taken: Vec<usize> = (0..5).map(|_| batcher.take().len()).collect();
        assert_eq!(taken, [2, 1, 1, 1, 0]);
    }

    #[tokio::test]
    async fn steps_of_two_slots_share_no_script() {
        let batcher = batcher();
        let steps = [1, 1, 2, 1].map(|slot| Step { slot: Some(slot), ..step(Some(&LUA)) });
        let mut sending: Vec<_> = steps.into_iter().map(|step| Box::pin(batcher.send(step))).collect();
        for send in &mut sending {
            assert!(futures_util::poll!(send).is_pending());
        }
        let taken: Vec<usize> = (0..4).map(|_| batcher.take().len()).collect();
        assert_eq!(taken, [2, 1, 1, 0]);
    }
}
