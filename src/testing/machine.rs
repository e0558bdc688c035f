//! The state and the behaviour of a server in memory, whichever route leads to it.
//!
//! # Invariants
//! - Each request is executed atomically when it arrives or, if the server is stopped then, when it
//!   continues, in the order of arrival.
//! - A request that was sent before a restart and arrives after it is never executed and never
//!   answered.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;
use std::time::Duration;

use super::interpreter::{Interpreter, Keys, PubSub, Resp};
use crate::clock::wall_micros;
use crate::random;
use crate::sync::{Arc, Mutex, MutexGuard};

/// A server.
pub(super) struct Machine(Mutex<State>);

struct State {
    interpreter: Interpreter,
    connections: Arc<Connections>,
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
}

/// The connections to a server. Scripts publish to them: their mutex is taken while that of the
/// state is held.
struct Connections(Mutex<BTreeMap<u64, ClientConnection>>);

/// A request on its way to a server.
pub(super) struct Sent {
    pub(super) connection: u64,
    pub(super) request: Request,
    pub(super) number: RequestId,
    /// The value of [`Machine::starts`] when it was sent.
    pub(super) starts: u64,
}

/// A request to a server.
#[derive(Debug)]
pub(crate) enum Request {
    /// Runs a script. Its last argument is the number of the send.
    Run {
        text: &'static str,
        keys: Vec<String>,
        args: Vec<String>,
        /// Faults that a test counts are for the scripts of locks: a label, which is written at any
        /// time, has none.
        is_of_a_label: bool,
    },
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
pub(crate) struct RequestId {
    /// Which connection of the node it was sent on.
    pub(crate) epoch: u64,
    pub(crate) request: u64,
}

/// An event on a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ConnectionEvent {
    /// An answer, which arrives `after` this time. Without a reply it is lost on its way.
    Answer {
        number: RequestId,
        reply: Option<Resp>,
        after: Duration,
    },
    /// A message on a channel.
    Message { channel: String, text: String },
    /// It was reconnected: no channel is subscribed, and requests that were in flight get no
    /// answer.
    Reconnected,
}

/// Receives the events of a connection. It must not call the server.
pub(super) type Tell = Arc<dyn Fn(ConnectionEvent) + Send + Sync>;

/// A connection, as its server sees it.
pub(super) struct ClientConnection {
    route: u64,
    tell: Tell,
    channels: BTreeSet<String>,
}

impl ClientConnection {
    /// A connection that came by this route.
    pub(super) fn new(route: u64, tell: Tell) -> Self {
        Self {
            route,
            tell,
            channels: BTreeSet::new(),
        }
    }

    fn hears(&self, channel: &[u8]) -> bool {
        self.channels
            .iter()
            .any(|heard| heard.as_bytes() == channel)
    }

    fn reconnect(&mut self) {
        self.channels.clear();
        (self.tell)(ConnectionEvent::Reconnected);
    }
}

impl Machine {
    pub(super) fn new() -> Arc<Self> {
        let connections = Arc::new(Connections(Mutex::default()));
        Arc::new(Self(Mutex::new(State {
            interpreter: Interpreter::new(&run_id(), NEVER_A_REPLICA, Arc::clone(&connections)),
            connections,
            starts: 0,
            clock_offset_us: 0,
            is_stopped: false,
            permits_suspicious_reentries: false,
            waiting: VecDeque::new(),
            loses: 0,
            repeats: 0,
            delay: Duration::ZERO..=Duration::ZERO,
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

    pub(super) fn resume(&self) {
        let mut state = self.state();
        state.is_stopped = false;
        while let Some(sent) = state.waiting.pop_front() {
            state.carry_out(sent);
        }
    }

    /// Returns a copy of the data.
    pub(super) fn snapshot(&self) -> Keys {
        let state = self.state();
        state.interpreter.keys(state.now_us())
    }

    /// Restarts with these data: what was sent and not executed is lost, and the run id is another
    /// one.
    pub(super) fn restart(&self, keys: &Keys) {
        let mut state = self.state();
        state.interpreter.name(&run_id(), NEVER_A_REPLICA);
        state.interpreter.restore(keys);
        state.starts += 1;
        state.is_stopped = false;
        state.waiting.clear();
        state
            .connections
            .all()
            .values_mut()
            .for_each(ClientConnection::reconnect);
    }

    /// Deletes all keys.
    pub(super) fn flush(&self) {
        self.state().interpreter.restore(&Keys::none());
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
        self.state().interpreter.delete(key);
    }

    /// Returns the owner in a lock's key.
    pub(super) fn owner(&self, key: &str) -> Option<Vec<u8>> {
        let state = self.state();
        state.interpreter.owner(state.now_us(), key)
    }

    pub(super) fn set_clock_offset(&self, micros: i64) {
        self.state().clock_offset_us = micros;
    }

    pub(super) fn clock_offset_us(&self) -> i64 {
        self.state().clock_offset_us
    }

    pub(super) fn connect(&self, number: u64, connection: ClientConnection) {
        self.state().connections.all().insert(number, connection);
    }

    /// Ends a connection.
    pub(super) fn disconnect(&self, number: u64) {
        // It is dropped after the mutex is released.
        let _gone = self.state().connections.all().remove(&number);
    }

    /// Removes the connections that came by this route, and returns them for the server to which
    /// the route leads now.
    pub(super) fn give_up(&self, route: u64) -> Vec<(u64, ClientConnection)> {
        let state = self.state();
        let mut all = state.connections.all();
        let (leaving, staying): (Vec<_>, Vec<_>) = std::mem::take(&mut *all)
            .into_iter()
            .partition(|(_, connection)| connection.route == route);
        all.extend(staying);
        leaving
    }

    /// Takes over connections that led to another server.
    pub(super) fn take_over(&self, pub_sub: Vec<(u64, ClientConnection)>) {
        let state = self.state();
        for (number, mut connection) in pub_sub {
            connection.reconnect();
            state.connections.all().insert(number, connection);
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
    fn carry_out(
        &mut self,
        Sent {
            connection,
            request,
            number,
            starts,
        }: Sent,
    ) {
        // It was sent over a connection that ended with the server.
        if starts != self.starts {
            return;
        }
        let (reply, is_command) = match request {
            Request::Run {
                text,
                keys,
                mut args,
                is_of_a_label,
            } => {
                args.push(number.request.to_string());
                (
                    self.interpreter.run(self.now_us(), text, &keys, &args),
                    !is_of_a_label,
                )
            }
            Request::Resubscribe { add, remove } => {
                if let Some(ClientConnection { channels, .. }) =
                    self.connections.all().get_mut(&connection)
                {
                    remove
                        .iter()
                        .for_each(|channel| _ = channels.remove(channel));
                    channels.extend(add);
                }
                (Resp::Nil, false)
            }
            Request::Ping => (Resp::Nil, false),
        };
        let reply = if is_command && take_one(&mut self.loses) {
            None
        } else {
            Some(reply)
        };
        let comes_twice = is_command && reply.is_some() && take_one(&mut self.repeats);
        let after = random::duration(&self.delay);
        // The connection is gone if its node is gone, or if its address leads to another server.
        let connections = self.connections.all();
        let Some(connection) = connections.get(&connection) else {
            return;
        };
        let event = ConnectionEvent::Answer {
            number,
            reply,
            after,
        };
        if comes_twice {
            (connection.tell)(event.clone());
        }
        (connection.tell)(event);
    }

    fn now_us(&self) -> i64 {
        wall_micros()
            .cast_signed()
            .saturating_add(self.clock_offset_us)
    }
}

impl Connections {
    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, ClientConnection>> {
        self.0.lock()
    }
}

impl PubSub for Connections {
    fn publish(&self, channel: &[u8], text: &[u8]) -> usize {
        let word = |word| String::from_utf8_lossy(word).into_owned();
        let message = || ConnectionEvent::Message {
            channel: word(channel),
            text: word(text),
        };
        self.all()
            .values()
            .filter(|connection| connection.hears(channel))
            .map(|connection| (connection.tell)(message()))
            .count()
    }

    fn listening(&self, channel: &[u8]) -> usize {
        self.all()
            .values()
            .filter(|connection| connection.hears(channel))
            .count()
    }
}

/// The id of the replication to which a server belonged before, if there was none.
const NEVER_A_REPLICA: &str = "0000000000000000000000000000000000000000";

/// Decrements a counter, and returns whether it was above zero.
fn take_one(left: &mut u32) -> bool {
    let is_left = *left > 0;
    *left = left.saturating_sub(1);
    is_left
}

/// Returns a run id that no other server has.
fn run_id() -> String {
    random::uuid().simple().to_string()
}
