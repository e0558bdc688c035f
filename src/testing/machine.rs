//! The state and the behaviour of a server in memory, whichever route leads to it.
//!
//! # Invariants
//! - Each request is executed atomically when it arrives or, if the server is stopped then, when it goes on, in the
//!   order of arrival.
//! - A request that was sent before a restart and arrives after it is never executed and never answered.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;
use std::time::Duration;

use super::keyspace::Keyspace;
use super::store::{Ears, Failure, Store};
use crate::clock::wall_micros;
use crate::command::{Answer, Command};
use crate::key::Key;
use crate::random;
use crate::sync::{Arc, Mutex, MutexGuard};

/// A server.
pub(super) struct Machine(Mutex<State>);

struct State {
    store: Store,
    /// How often it was restarted.
    starts: u64,
    clock_offset_us: i64,
    is_stopped: bool,
    permits_suspicious_reentries: bool,
    /// The requests that came while it was stopped.
    waiting: VecDeque<Sent>,
    /// How many of the next answers to commands are lost.
    loses: u32,
    /// How many of the next answers to commands come twice.
    repeats: u32,
    delay: RangeInclusive<Duration>,
    ears: BTreeMap<u64, Ear>,
}

/// A request on its way to a server.
pub(super) struct Sent {
    pub(super) ear: u64,
    pub(super) request: Request,
    pub(super) number: Number,
    /// The value of [`Machine::starts`] when it was sent.
    pub(super) starts: u64,
}

/// A request to a server.
#[derive(Debug)]
pub(crate) enum Request {
    Run(Command),
    /// Changes what a connection is subscribed to.
    Resubscribe {
        add: Vec<String>,
        remove: Vec<String>,
    },
    /// Asks for an answer and nothing else.
    Ping,
}

/// Which request an answer belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Number {
    /// Which connection of the node it was sent on.
    pub(crate) epoch: u64,
    pub(crate) request: u64,
}

/// An answer; `None` for a request that is not a command.
pub(crate) type Reply = Result<Option<Answer>, Failure>;

/// An event on a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum News {
    /// An answer, which arrives `after` this time. Without a reply it is lost on its way.
    Answer { number: Number, reply: Option<Reply>, after: Duration },
    /// A message on a channel.
    Message { channel: String, text: String },
    /// It was reconnected: no channel is subscribed, and requests that were under way get no answer.
    Anew,
}

/// Receives the events of a connection. It must not call the server.
pub(super) type Tell = Arc<dyn Fn(News) + Send + Sync>;

/// A connection, as its server sees it.
pub(super) struct Ear {
    route: u64,
    tell: Tell,
    channels: BTreeSet<String>,
}

impl Ear {
    /// A connection that came by this route.
    pub(super) fn new(route: u64, tell: Tell) -> Self {
        Self { route, tell, channels: BTreeSet::new() }
    }

    fn is_connected_anew(&mut self) {
        self.channels.clear();
        (self.tell)(News::Anew);
    }
}

impl Machine {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            store: empty(),
            starts: 0,
            clock_offset_us: 0,
            is_stopped: false,
            permits_suspicious_reentries: false,
            waiting: VecDeque::new(),
            loses: 0,
            repeats: 0,
            delay: Duration::ZERO..=Duration::ZERO,
            ears: BTreeMap::new(),
        })))
    }

    pub(super) fn permit_suspicious_reentries(&self) {
        self.state().permits_suspicious_reentries = true;
    }

    pub(super) fn permits_suspicious_reentries(&self) -> bool {
        self.state().permits_suspicious_reentries
    }

    pub(super) fn stop(&self) {
        self.state().is_stopped = true;
    }

    pub(super) fn go_on(&self) {
        let mut state = self.state();
        state.is_stopped = false;
        while let Some(sent) = state.waiting.pop_front() {
            state.carry_out(sent);
        }
    }

    /// Returns a copy of the data.
    pub(super) fn snapshot(&self) -> Keyspace {
        self.state().store.keys.clone()
    }

    /// Restarts with these data: what was sent and not executed is lost, and the run id is another one.
    pub(super) fn restart(&self, keys: Keyspace) {
        let mut state = self.state();
        state.store = empty();
        state.store.keys = keys;
        state.starts += 1;
        state.is_stopped = false;
        state.waiting.clear();
        state.ears.values_mut().for_each(Ear::is_connected_anew);
    }

    /// Deletes all keys.
    pub(super) fn flush(&self) {
        self.state().store.keys = Keyspace::default();
    }

    pub(super) fn lose_replies(&self, count: u32) {
        self.state().loses = count;
    }

    pub(super) fn duplicate_reply(&self) {
        self.state().repeats += 1;
    }

    pub(super) fn delay(&self, range: RangeInclusive<Duration>) {
        self.state().delay = range;
    }

    pub(super) fn delete(&self, key: &str) {
        self.state().store.keys.delete(key);
    }

    /// Returns the owner in a lock's key.
    pub(super) fn owner(&self, key: &str) -> Option<Vec<u8>> {
        let inspect = Command::Inspect(Key::from(key));
        let standing = self.state().run(&inspect).ok().and_then(Answer::inspect).flatten();
        standing.map(|standing| standing.owner)
    }

    pub(super) fn set_clock_offset(&self, micros: i64) {
        self.state().clock_offset_us = micros;
    }

    pub(super) fn clock_offset_us(&self) -> i64 {
        self.state().clock_offset_us
    }

    pub(super) fn connect(&self, number: u64, ear: Ear) {
        self.state().ears.insert(number, ear);
    }

    /// Ends a connection.
    pub(super) fn disconnect(&self, number: u64) {
        // It is dropped after the mutex is released.
        let _gone = self.state().ears.remove(&number);
    }

    /// Removes the connections that came by this route, and returns them for the server to which the route leads now.
    pub(super) fn give_up(&self, route: u64) -> Vec<(u64, Ear)> {
        let mut state = self.state();
        state.ears.extract_if(.., |_, ear| ear.route == route).collect()
    }

    /// Takes over connections that led to another server.
    pub(super) fn take_over(&self, ears: Vec<(u64, Ear)>) {
        let mut state = self.state();
        for (number, mut ear) in ears {
            ear.is_connected_anew();
            state.ears.insert(number, ear);
        }
    }

    /// Returns how often it was restarted.
    pub(super) fn starts(&self) -> u64 {
        self.state().starts
    }

    /// Receives a request: executes it, or keeps it while the server is stopped.
    pub(super) fn receive(&self, sent: Sent) {
        let mut state = self.state();
        if state.is_stopped {
            state.waiting.push_back(sent);
        } else {
            state.carry_out(sent);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

impl State {
    fn carry_out(&mut self, Sent { ear, request, number, starts }: Sent) {
        // It was sent over a connection that ended with the server.
        if starts != self.starts {
            return;
        }
        let (reply, is_command) = match request {
            // Faults are for the commands of locks: a label, which is written at any time, has none of its own.
            Request::Run(command) => (self.run(&command).map(Some), !command.is_of_a_label()),
            Request::Resubscribe { add, remove } => {
                if let Some(Ear { channels, .. }) = self.ears.get_mut(&ear) {
                    remove.iter().for_each(|channel| _ = channels.remove(channel));
                    channels.extend(add);
                }
                (Ok(None), false)
            }
            Request::Ping => (Ok(None), false),
        };
        let reply = if is_command && take_one(&mut self.loses) { None } else { Some(reply) };
        let comes_twice = is_command && reply.is_some() && take_one(&mut self.repeats);
        let after = random::duration(&self.delay);
        // The connection is gone if its node is gone, or if its address leads to another server.
        let Some(ear) = self.ears.get(&ear) else { return };
        let news = News::Answer { number, reply, after };
        if comes_twice {
            (ear.tell)(news.clone());
        }
        (ear.tell)(news);
    }

    fn run(&mut self, command: &Command) -> Result<Answer, Failure> {
        let now_us = wall_micros().saturating_add_signed(self.clock_offset_us);
        self.store.run(now_us, command, &mut Listeners(&self.ears))
    }
}

/// The connections as subscribers.
struct Listeners<'a>(&'a BTreeMap<u64, Ear>);

impl Listeners<'_> {
    fn to(&self, channel: &str) -> impl Iterator<Item = &Ear> {
        self.0.values().filter(move |ear| ear.channels.contains(channel))
    }
}

impl Ears for Listeners<'_> {
    fn publish(&mut self, channel: &str, text: &str) -> u64 {
        let message = || News::Message { channel: channel.to_owned(), text: text.to_owned() };
        self.to(channel).map(|ear| (ear.tell)(message())).count() as u64
    }

    fn listening(&self, channel: &str) -> u64 {
        self.to(channel).count() as u64
    }
}

/// Decrements a counter, and returns whether it was above zero.
fn take_one(left: &mut u32) -> bool {
    let is_left = *left > 0;
    *left = left.saturating_sub(1);
    is_left
}

/// Returns the store of a server that has just started.
fn empty() -> Store {
    Store::new(&random::uuid().simple().to_string(), &"0".repeat(40))
}
