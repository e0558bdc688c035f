//! What comes over a connection to a server in memory.
//!
//! # Invariants
//! - Answers are given out as they come, the nth to the nth request, as fred does it. One that is another request's is
//!   told to nobody, and the connection is given up.
//! - Answers keep their order, however long each of them takes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::super::{Events, LinkEvent, Wiring};
use crate::clock::{Clock, Instant};
use crate::tasks;
use crate::testing::{News, Number, Reply};

/// The answer was another request's.
#[derive(Debug)]
pub(super) struct Misplaced;

/// Whoever waits for an answer. It is dropped where the connection ends before that.
type Waiter = oneshot::Sender<Result<Reply, Misplaced>>;

/// A node's connection: one, for whatever it sends.
pub(super) struct Wire {
    clock: Clock,
    state: Mutex<State>,
    epoch: AtomicU64,
    misplaced: AtomicU64,
    /// Answers that take their time, and when they are to come.
    delayed: UnboundedSender<(Instant, Number, Option<Reply>)>,
    subscriber: UnboundedSender<LinkEvent>,
    ups: UnboundedSender<LinkEvent>,
    reconnected: UnboundedSender<LinkEvent>,
}

#[derive(Default)]
struct State {
    requests: u64,
    /// In the order in which they were sent.
    awaited: VecDeque<(u64, Waiter)>,
    /// Those whose answer is lost.
    lost: Vec<Waiter>,
    /// How many answers are there that nobody has asked for yet.
    strays: usize,
    /// How many answers take their time, and when the last of them comes.
    delayed: usize,
    last: Option<Instant>,
}

impl Wire {
    /// A connection of the engine that runs this.
    pub(super) fn new(wiring: &Wiring<'_>) -> (Arc<Self>, Events) {
        let ((subscriber, messages), (ups, grants)) = (unbounded_channel(), unbounded_channel());
        let (delayed, road) = unbounded_channel();
        let wire = Arc::new(Self {
            clock: Clock::here(),
            state: Mutex::default(),
            epoch: AtomicU64::new(0),
            misplaced: AtomicU64::new(0),
            delayed,
            subscriber,
            ups,
            reconnected: wiring.reconnected.clone(),
        });
        tasks::spawn(carry(Arc::downgrade(&wire), road));
        (wire, Events { subscriber: messages, grants })
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    pub(super) fn misplaced(&self) -> u64 {
        self.misplaced.load(Ordering::Relaxed)
    }

    /// Something is about to be sent, under this number. What is sent first has to come here first.
    pub(super) fn expect(&self) -> (Number, oneshot::Receiver<Result<Reply, Misplaced>>) {
        let (waiter, answer) = oneshot::channel();
        let mut state = self.state();
        state.requests += 1;
        let number = Number { epoch: self.epoch(), request: state.requests };
        if state.strays > 0 {
            self.misplace(&mut state, waiter);
        } else {
            state.awaited.push_back((number.request, waiter));
        }
        (number, answer)
    }

    /// The server tells something.
    pub(super) fn hear(&self, news: News) {
        match news {
            News::Message { channel, text } => send(&self.subscriber, LinkEvent::Message { channel, text }),
            News::Anew => {
                self.renew(&mut self.state());
                send(&self.subscriber, LinkEvent::Up);
            }
            News::Answer { number, reply, after } => self.delay(number, reply, after),
        }
    }

    fn delay(&self, number: Number, reply: Option<Reply>, after: Duration) {
        let mut state = self.state();
        if state.delayed == 0 && after.is_zero() {
            return self.arrive(&mut state, number, reply);
        }
        let due = (self.clock.now() + after).max(state.last.unwrap_or(self.clock.now()));
        state.last = Some(due);
        state.delayed += 1;
        // After the engine's end nobody waits for it.
        let _: Result<_, _> = self.delayed.send((due, number, reply));
    }

    fn arrive(&self, state: &mut State, number: Number, reply: Option<Reply>) {
        if number.epoch != self.epoch() {
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

    /// An answer was another request's. So may be all that are under way: the connection is given up.
    fn misplace(&self, state: &mut State, waiter: Waiter) {
        self.misplaced.fetch_add(1, Ordering::Relaxed);
        let _: Result<_, _> = waiter.send(Err(Misplaced));
        self.renew(state);
    }

    /// It is another connection from here on, and whoever waits is told at once.
    fn renew(&self, state: &mut State) {
        self.epoch.fetch_add(1, Ordering::Relaxed);
        state.awaited.clear();
        state.lost.clear();
        state.strays = 0;
        send(&self.ups, LinkEvent::Up);
        send(&self.reconnected, LinkEvent::Up);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Nobody listens any more once the node is dropped.
fn send(events: &UnboundedSender<LinkEvent>, event: LinkEvent) {
    let _: Result<_, _> = events.send(event);
}

/// Lets answers that take their time come when they are due. Ends with the connection, or with the engine; nobody
/// awaits it.
async fn carry(wire: Weak<Wire>, mut road: UnboundedReceiver<(Instant, Number, Option<Reply>)>) {
    while let Some((due, number, reply)) = road.recv().await {
        sleep(Instant::now().until(due)).await;
        let Some(wire) = wire.upgrade() else { return };
        let mut state = wire.state();
        state.delayed -= 1;
        wire.arrive(&mut state, number, reply);
    }
}
