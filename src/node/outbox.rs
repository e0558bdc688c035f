//! Steps on their way to a server: what is asked for in the same moment travels as one script.
//!
//! A script has a price before it does anything: fred makes a command and a system call of each, the server another two.
//! Alone a step travels as its own script. While enough scripts are under way, the steps that come are collected, and the
//! next answer takes them along: the busier it is, the more of them share the price.
//!
//! # Invariants
//! - Steps are executed in the order in which they were put in: an undo never overtakes its acquire.
//! - What becomes of one step does not matter to the others: each has an answer, or an error, of its own.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Notify, oneshot};
use tokio::time::sleep;

use super::carrier::{Carrier, Lua};
use super::receipts::Receipt;
use super::reply::{self, Outcome, Reply};
use crate::clock::Instant;
use crate::error::{Error, NodeFailure, ServerErrorKind};
use crate::foreign;

/// How many steps make a script at most: some hundred microseconds of the server's time.
const MOST: usize = 64;

/// While so many scripts are under way, steps are collected ..
const FLIGHTS: usize = 2;

/// .. until there are so many, which share a script well enough ..
const ENOUGH: usize = 16;

/// .. and not for longer than this: a server that is far away is asked all the same.
const PATIENCE: Duration = Duration::from_millis(1);

/// What a script is to do, as a rule for one lock.
#[derive(Debug)]
pub(crate) struct Step {
    /// Does it alone.
    pub(crate) alone: &'static Lua,
    /// What it is called in the script that does it together with others. A step that has none travels alone, in its place
    /// among the others: its answer must not overtake that of a step before it.
    pub(crate) together: Option<(&'static str, &'static Lua)>,
    pub(crate) keys: Vec<String>,
    pub(crate) args: Vec<String>,
    /// Whether replicas have to acknowledge it, where they are asked.
    pub(crate) acknowledged: bool,
}

/// What the server said to a step, and whether its replicas have it.
pub(super) type Answer = (Outcome<Reply>, Receipt);

struct Entry {
    step: Step,
    since: Instant,
    reply: oneshot::Sender<Answer>,
}

impl Entry {
    /// Whoever is gone does not want to know.
    fn answer(self, outcome: Outcome<Reply>, receipt: Option<Receipt>) {
        let _: Result<_, _> = self.reply.send((outcome, receipt.unwrap_or_else(Receipt::moot)));
    }

    fn fail(self, failure: &NodeFailure) {
        self.answer(Outcome::NotExecuted(failure.clone()), None);
    }
}

/// The steps that wait to be sent over one connection.
pub(super) struct Outbox {
    carrier: Arc<Carrier>,
    waiting: Mutex<VecDeque<Entry>>,
    news: Notify,
}

impl Outbox {
    pub(super) fn new(carrier: Arc<Carrier>) -> Arc<Self> {
        let outbox = Arc::new(Self { carrier, waiting: Mutex::default(), news: Notify::new() });
        let emptied = Arc::clone(&outbox);
        tokio::spawn(foreign::restarted(async move |_| empty(&emptied).await));
        outbox
    }

    pub(super) fn carrier(&self) -> &Arc<Carrier> {
        &self.carrier
    }

    /// Sends a step, once. The first poll puts it behind those that were put in before.
    pub(super) async fn send(&self, step: Step) -> Answer {
        let (reply, answer) = oneshot::channel();
        self.waiting().push_back(Entry { step, since: Instant::now(), reply });
        self.news.notify_one();
        let ended = |_| {
            let (node, reason) = (Arc::clone(self.carrier.link().server()), "its connection was ended".to_owned());
            (Outcome::Unknown(NodeFailure { node, reason }), Receipt::moot())
        };
        answer.await.unwrap_or_else(ended)
    }

    /// The next steps to travel together; none if nothing waits.
    fn take(&self) -> Vec<Entry> {
        let mut waiting = self.waiting();
        let sharing = waiting.iter().take(MOST).take_while(|entry| entry.step.together.is_some()).count();
        let count = sharing.max(1).min(waiting.len());
        waiting.drain(..count).collect()
    }

    /// Waits for the connection, if it is down, for as long as the first of those that wait may.
    ///
    /// # Errors
    /// Why it is.
    async fn ready(&self) -> Result<(), NodeFailure> {
        let link = self.carrier.link();
        let waited = self.waiting().front().map_or(Duration::ZERO, |entry| Instant::now().since(entry.since));
        link.ready_for(link.patience().saturating_sub(waited)).await
    }

    /// Fails the first of those that wait, and all others that have waited for the connection for as long.
    fn give_up(&self, failure: &NodeFailure) {
        let (patience, now) = (self.carrier.link().patience(), Instant::now());
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

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends these steps, and gives each its answer.
    async fn fly(&self, mut entries: Vec<Entry>) {
        if entries.len() > 1 {
            entries = self.fly_together(entries).await;
        }
        join_all(entries.into_iter().map(|entry| self.fly_alone(entry))).await;
    }

    async fn fly_alone(&self, entry: Entry) {
        let step = &entry.step;
        let keys: Vec<&str> = step.keys.iter().map(String::as_str).collect();
        let args: Vec<&str> = step.args.iter().map(String::as_str).collect();
        let (outcome, receipts) = self.carrier.run(usize::from(step.acknowledged), step.alone, &keys, &args).await;
        entry.answer(outcome, receipts.into_iter().next());
    }

    /// Sends these steps as one script. Returns those that have to be sent alone.
    async fn fly_together(&self, entries: Vec<Entry>) -> Vec<Entry> {
        let steps = || entries.iter().map(|entry| &entry.step);
        let Some(lua) = steps().find_map(|step| step.together.map(|(_, lua)| lua)) else { return entries };
        let keys: Vec<&str> = steps().flat_map(|step| step.keys.iter().map(String::as_str)).collect();
        let words = |step: &Step| 1 + step.args.len();
        let mut args = Vec::with_capacity(steps().map(words).sum());
        for step in steps() {
            args.extend(step.together.map(|(name, _)| name));
            args.extend(step.args.iter().map(String::as_str));
        }
        let acknowledged = steps().filter(|step| step.acknowledged).count();
        let (outcome, receipts) = self.carrier.run(acknowledged, lua, &keys, &args).await;
        if refuses_the_company(&outcome) {
            return entries;
        }
        let outcomes = self.each(outcome, entries.len());
        let mut receipts = receipts.into_iter();
        for (entry, outcome) in entries.into_iter().zip(outcomes) {
            self.carrier.suspect(&outcome);
            let receipt = if entry.step.acknowledged { receipts.next() } else { None };
            entry.answer(outcome, receipt);
        }
        Vec::new()
    }

    /// What becomes of each of so many steps.
    fn each(&self, outcome: Outcome<Reply>, count: usize) -> Vec<Outcome<Reply>> {
        let node = self.carrier.link().server();
        match outcome {
            Outcome::Done(Reply::Array(items)) if items.len() == count => {
                items.into_iter().map(|item| item.into_outcome(node)).collect()
            }
            all => vec![all.and_then(node, |_| None); count],
        }
    }
}

/// A server looks at all the keys before it runs anything: one that this user may not have, or one of another slot, and none
/// of the steps is done.
fn refuses_the_company(outcome: &Outcome<Reply>) -> bool {
    match outcome {
        Outcome::Refused(Error::Server { kind, source }) => {
            *kind == ServerErrorKind::NoPermission || reply::code(&source.message) == "CROSSSLOT"
        }
        _ => false,
    }
}

/// Sends what is put in. Started with the outbox, and begun again after a panic, by which what was under way is
/// unknown; ends with the engine; nobody awaits it.
async fn empty(outbox: &Outbox) {
    // What was put in before a panic rings no more.
    outbox.news.notify_one();
    let mut flights = FuturesUnordered::new();
    let mut patience = pin!(sleep(PATIENCE));
    let mut collecting = false;
    loop {
        let mut over = false;
        tokio::select! {
            biased;
            Some(()) = flights.next() => {}
            () = outbox.news.notified() => {}
            () = &mut patience, if collecting => over = true,
        }
        let waiting = outbox.waiting().len();
        if waiting == 0 {
            continue;
        }
        if waiting < ENOUGH && flights.len() >= FLIGHTS && !over {
            if !std::mem::replace(&mut collecting, true) {
                patience.set(sleep(PATIENCE));
            }
            continue;
        }
        collecting = false;
        // Here and not by each flight for itself: they leave in order.
        let mut ready = pin!(outbox.ready());
        let ready = loop {
            tokio::select! {
                biased;
                ready = &mut ready => break ready,
                Some(()) = flights.next() => {}
            }
        };
        if let Err(failure) = ready {
            outbox.give_up(&failure);
            continue;
        }
        loop {
            let entries = outbox.take();
            if entries.is_empty() {
                break;
            }
            // Polled before anything else is.
            flights.push(outbox.fly(entries));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::poll_sickly;
    use crate::node::link::Link;
    use crate::options::Options;

    #[tokio::test]
    async fn steps_are_answered_after_a_panic() {
        static LUA: std::sync::LazyLock<Lua> = std::sync::LazyLock::new(|| Lua::new("return 1"));
        let command_timeout = Some(Duration::from_millis(100));
        let settings = Options { command_timeout, ..Options::default() }.validate(1).expect("valid");
        let outbox = Outbox::new(Carrier::new(Link::to_nobody(&settings), None));
        let step = || Step { alone: &LUA, together: None, keys: Vec::new(), args: Vec::new(), acknowledged: false };
        let mut sick = pin!(outbox.send(step()));
        poll_sickly(sick.as_mut());
        for answer in [tokio::time::timeout(Duration::from_secs(10), sick).await, {
            tokio::time::timeout(Duration::from_secs(10), outbox.send(step())).await
        }] {
            assert!(matches!(answer, Ok((Outcome::NotExecuted(_), _))), "told that nobody is there");
        }
    }
}
