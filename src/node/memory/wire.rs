//! Delivers what comes over a connection to a server in memory.
//!
//! # Invariants
//! - The nth answer that arrives goes to the nth request, as with fred. An answer to another
//!   request is passed to no caller, and the connection is given up. Requests about labels are not
//!   counted.
//! - Answers keep their order, however long each one takes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::super::{Events, LinkEvent, Wiring};
use crate::clock::{Clock, Instant};
use crate::stats;
use crate::sync::{Arc, Mutex, Weak};
use crate::tasks;
use crate::testing::{ConnectionEvent, RequestId, Resp};

/// The answer belonged to another request.
#[derive(Debug)]
pub(super) struct Misplaced;

/// The caller that waits for an answer. It is dropped if the connection ends first.
type ReplySender = oneshot::Sender<Result<Resp, Misplaced>>;

/// The one connection of a node.
pub(super) struct Wire {
    clock: Clock,
    state: Mutex<State>,
    epoch: AtomicU64,
    mismatched: stats::MismatchedReplies,
    /// Answers that are delayed, and when they are due.
    delayed: UnboundedSender<(Instant, RequestId, Option<Resp>)>,
    subscriber: UnboundedSender<LinkEvent>,
    ups: UnboundedSender<LinkEvent>,
    reconnected: UnboundedSender<LinkEvent>,
}

#[derive(Default)]
struct State {
    requests: u64,
    /// In the order in which they were sent.
    awaited: VecDeque<(u64, ReplySender)>,
    /// Requests whose answers are found by their numbers only.
    beside: Vec<(u64, ReplySender)>,
    /// Requests whose answer is lost.
    lost: Vec<ReplySender>,
    /// The number of answers that came without a request.
    strays: usize,
    /// The number of delayed answers, and when the last one is due.
    delayed: usize,
    last: Option<Instant>,
}

impl Wire {
    /// Makes a connection for the engine that runs this.
    pub(super) fn new(wiring: &Wiring) -> (Arc<Self>, Events) {
        let (events, subscriber, ups) = Events::channels();
        let (delayed, road) = unbounded_channel();
        let wire = Arc::new(Self {
            clock: Clock::here(),
            state: Mutex::default(),
            epoch: AtomicU64::new(0),
            mismatched: stats::MismatchedReplies::default(),
            delayed,
            subscriber,
            ups,
            reconnected: wiring.reconnected.clone(),
        });
        tasks::spawn(carry(Arc::downgrade(&wire), road));
        (wire, events)
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    pub(super) fn mismatched(&self) -> u64 {
        self.mismatched.get()
    }

    /// Registers a request and returns its number. Requests have to be registered in the order in
    /// which they are sent.
    pub(super) fn expect(&self) -> (RequestId, oneshot::Receiver<Result<Resp, Misplaced>>) {
        let (waiter, answer) = oneshot::channel();
        let mut state = self.state.lock();
        let number = self.next_number(&mut state);
        if state.strays > 0 {
            self.misplace(&mut state, waiter);
        } else {
            state.awaited.push_back((number.request, waiter));
        }
        (number, answer)
    }

    /// Does the same for a request whose answer arrives beside those of the others: a copy of one
    /// of theirs is not taken for it.
    pub(super) fn expect_beside(&self) -> (RequestId, oneshot::Receiver<Result<Resp, Misplaced>>) {
        let (waiter, answer) = oneshot::channel();
        let mut state = self.state.lock();
        let number = self.next_number(&mut state);
        state.beside.push((number.request, waiter));
        (number, answer)
    }

    fn next_number(&self, state: &mut State) -> RequestId {
        state.requests += 1;
        RequestId {
            epoch: self.epoch(),
            request: state.requests,
        }
    }

    /// Handles what the server sends.
    pub(super) fn hear(&self, event: ConnectionEvent) {
        match event {
            ConnectionEvent::Message { channel, text } => {
                send(&self.subscriber, LinkEvent::Message { channel, text });
            }
            ConnectionEvent::Reconnected => {
                self.renew(&mut self.state.lock());
                send(&self.subscriber, LinkEvent::Up);
            }
            ConnectionEvent::Answer {
                number,
                reply,
                after,
            } => self.delay(number, reply, after),
        }
    }

    fn delay(&self, number: RequestId, reply: Option<Resp>, after: Duration) {
        let mut state = self.state.lock();
        if state.delayed == 0 && after.is_zero() {
            return self.arrive(&mut state, number, reply);
        }
        let due = (self.clock.now() + after).max(state.last.unwrap_or(self.clock.now()));
        state.last = Some(due);
        state.delayed += 1;
        // Fails only after the engine has ended, when no caller waits.
        let _: Result<_, _> = self.delayed.send((due, number, reply));
    }

    fn arrive(&self, state: &mut State, number: RequestId, reply: Option<Resp>) {
        if number.epoch != self.epoch() {
            return;
        }
        if let Some(at) = state
            .beside
            .iter()
            .position(|(request, _)| *request == number.request)
        {
            let (_, waiter) = state.beside.swap_remove(at);
            if let Some(reply) = reply {
                let _: Result<_, _> = waiter.send(Ok(reply));
            }
            return;
        }
        match (state.awaited.pop_front(), reply) {
            (Some((request, waiter)), Some(reply)) if request == number.request => {
                // Whoever has given up does not want to know.
                let _: Result<_, _> = waiter.send(Ok(reply));
            }
            (Some((request, waiter)), None) if request == number.request => state.lost.push(waiter),
            (Some((_, waiter)), _) => self.misplace(state, waiter),
            (None, _) => state.strays += 1,
        }
    }

    /// Counts an answer that belongs to another request. All answers in flight may be mismatched:
    /// the connection is given up.
    fn misplace(&self, state: &mut State, waiter: ReplySender) {
        self.mismatched.count();
        let _: Result<_, _> = waiter.send(Err(Misplaced));
        self.renew(state);
    }

    /// Makes it another connection from here on, and fails all requests that wait.
    fn renew(&self, state: &mut State) {
        self.epoch.fetch_add(1, Ordering::Relaxed);
        state.awaited.clear();
        state.beside.clear();
        state.lost.clear();
        state.strays = 0;
        send(&self.ups, LinkEvent::Up);
        send(&self.reconnected, LinkEvent::Up);
    }
}

/// Sends an event. This fails only once the node has been dropped.
fn send(events: &UnboundedSender<LinkEvent>, event: LinkEvent) {
    let _: Result<_, _> = events.send(event);
}

/// Delivers delayed answers when they are due. Ends with the connection, or with the engine; no
/// task awaits it.
async fn carry(wire: Weak<Wire>, mut road: UnboundedReceiver<(Instant, RequestId, Option<Resp>)>) {
    while let Some((due, number, reply)) = road.recv().await {
        sleep(Instant::now().until(due)).await;
        let Some(wire) = wire.upgrade() else { return };
        let mut state = wire.state.lock();
        state.delayed -= 1;
        wire.arrive(&mut state, number, reply);
    }
}
