//! The journal: the events of an engine on their way to the program's subscriber.
//!
//! A subscriber may block: it may write to a pipe that no process reads. So a subscriber of our own
//! copies the events of an engine's thread, and another thread, "lockhound-log", passes the copies
//! on. It starts with the first event, and ends a second after the last. What fred logs goes the
//! same way, if the program has a bridge from `log` to `tracing`, but only below info: it names
//! connections by numbers of its own, and this crate says the same with the server's name.
//!
//! # Invariants
//! - The engine's thread runs no code of a subscriber but its `enabled`.
//! - Events keep their order, and the span that they were in.
//! - A bounded number of events waits. Those that come when there is no room are dropped and
//!   counted, and an event says how many they were.
//! - No mutex of ours is held while a subscriber runs.

use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::{self, Debug};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tracing::dispatcher::{self, DefaultGuard, Dispatch};
use tracing::field::{Field, Value, Visit, display};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record, Span};
use tracing::subscriber::{Interest, NoSubscriber};
use tracing::{Level, Metadata, Subscriber};

use super::{contained, log};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// How many events wait at most. Those below the level info have half of that.
const MOST: usize = 4_096;

/// How long the thread waits for another event before it ends.
const IDLE: Duration = Duration::from_secs(1);

/// How many fields of an event are copied. `tracing` itself once had this limit.
const MOST_FIELDS: usize = 32;

thread_local! {
    /// The journal of the engine whose thread this is.
    static HERE: RefCell<Option<Arc<Journal>>> = const { RefCell::new(None) };
    /// The span of the task that is being polled.
    static SPAN: RefCell<Option<Arc<Span>>> = const { RefCell::new(None) };
}

/// What counts as work in flight until it is dropped.
type Pledge = Box<dyn Any + Send>;

/// The events of one engine.
pub(crate) struct Journal {
    state: Mutex<State>,
    bell: Condvar,
    /// The program's subscriber, once there is one.
    subscriber: OnceLock<Dispatch>,
    dropped: AtomicU64,
    /// Makes the pledge for events that are in flight.
    pledge: Box<dyn Fn() -> Pledge + Send + Sync>,
}

#[derive(Default)]
struct State {
    entries: VecDeque<JournalEntry>,
    /// How many events were dropped since that was last said.
    unsaid: u64,
    /// Whether the thread runs, and whether it waits for the bell.
    is_served: bool,
    is_asleep: bool,
    is_closed: bool,
    pledge: Option<Pledge>,
}

enum JournalEntry {
    Event(Copied),
    /// A span is dropped.
    End(Arc<Span>),
}

/// What the thread does next.
enum JournalStep {
    Pass(JournalEntry),
    /// Say how many events were dropped.
    Say(u64),
    End,
}

impl Journal {
    /// Makes a journal, which makes a pledge for the time in which events are in flight.
    pub(crate) fn new<P: Any + Send>(pledge: impl Fn() -> P + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            bell: Condvar::new(),
            subscriber: OnceLock::new(),
            dropped: AtomicU64::new(0),
            pledge: Box::new(move || Box::new(pledge())),
        })
    }

    /// Takes the events of this thread until the returned guard is dropped, at the engine's end.
    pub(crate) fn keep(self: &Arc<Self>) -> Keeping {
        dispatcher::get_default(|subscriber| self.meet(subscriber));
        HERE.with(|here| here.replace(Some(Arc::clone(self))));
        Keeping {
            journal: Arc::clone(self),
            _copying: dispatcher::set_default(copier()),
        }
    }

    /// Returns how many events were dropped.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Returns whether the queue is so long that the less important events are dropped.
    pub(crate) fn is_behind(&self) -> bool {
        self.state.lock().entries.len() >= MOST / 2
    }

    /// Remembers the program's subscriber, if it is one.
    fn meet(&self, subscriber: &Dispatch) {
        if !subscriber.is::<NoSubscriber>() && !subscriber.is::<Copier>() {
            self.subscriber.get_or_init(|| subscriber.clone());
        }
    }

    fn put_event(self: &Arc<Self>, event: Copied) {
        let mut state = self.state.lock();
        let room = if *event.metadata.level() <= Level::INFO {
            MOST
        } else {
            MOST / 2
        };
        if state.entries.len() >= room {
            state.unsaid += 1;
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.put(state, JournalEntry::Event(event));
    }

    /// Adds an entry, and makes sure that the thread runs. If none can be started, the next entry
    /// tries again.
    fn put(self: &Arc<Self>, mut state: MutexGuard<'_, State>, entry: JournalEntry) {
        state.entries.push_back(entry);
        if state.pledge.is_none() {
            state.pledge = Some((self.pledge)());
        }
        let is_served = std::mem::replace(&mut state.is_served, true);
        let is_asleep = state.is_asleep;
        drop(state);
        if is_served {
            if is_asleep {
                self.bell.notify_one();
            }
            return;
        }
        let journal = Arc::clone(self);
        let started = thread::Builder::new()
            .name("lockhound-log".into())
            .spawn(move || journal.serve());
        if started.is_err() {
            self.state.lock().is_served = false;
        }
    }

    /// Passes everything on. The body of the thread.
    fn serve(&self) {
        loop {
            match self.turn() {
                JournalStep::Pass(JournalEntry::Event(event)) => {
                    dispatcher::get_default(|subscriber| self.meet(subscriber));
                    contained(|| event.tell());
                }
                JournalStep::Pass(JournalEntry::End(span)) => contained(|| drop(span)),
                JournalStep::Say(events) => {
                    log!(
                        warn,
                        events,
                        "log events were dropped: the program's subscriber does not keep up"
                    );
                }
                JournalStep::End => return,
            }
        }
    }

    /// Waits for what is next.
    fn turn(&self) -> JournalStep {
        let mut state = self.state.lock();
        loop {
            if state.unsaid > 0 && state.entries.len() <= MOST / 4 {
                return JournalStep::Say(std::mem::take(&mut state.unsaid));
            }
            if let Some(entry) = state.entries.pop_front() {
                return JournalStep::Pass(entry);
            }
            state.pledge = None;
            if !state.is_closed {
                state.is_asleep = true;
                // An entry that comes is in the queue before the bell rings.
                let waited = self
                    .bell
                    .wait_timeout(state, IDLE)
                    .unwrap_or_else(PoisonError::into_inner);
                let is_over = waited.1.timed_out();
                state = waited.0;
                state.is_asleep = false;
                if !(is_over && state.entries.is_empty()) {
                    continue;
                }
            }
            state.is_served = false;
            return JournalStep::End;
        }
    }
}

impl Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal")
            .field("dropped", &self.dropped)
            .finish_non_exhaustive()
    }
}

/// While it lives, the events of its thread go to a journal.
pub(crate) struct Keeping {
    journal: Arc<Journal>,
    _copying: DefaultGuard,
}

impl Drop for Keeping {
    fn drop(&mut self) {
        HERE.with(|here| here.replace(None));
        self.journal.state.lock().is_closed = true;
        self.journal.bell.notify_one();
    }
}

/// Makes this the span of the events to come, if this is the thread of an engine. Returns the span
/// before it.
pub(super) fn enter(span: &Arc<Span>) -> Option<Option<Arc<Span>>> {
    here().map(|_| SPAN.replace(Some(Arc::clone(span))))
}

/// Ends what [`enter`] began, which returned this.
pub(super) fn leave(earlier: Option<Arc<Span>>) {
    SPAN.set(earlier);
}

/// Drops a span: on the thread of an engine by way of the journal, since its subscriber may log
/// that.
pub(super) fn end(span: Arc<Span>) {
    match here() {
        Some(journal) => journal.put(journal.state.lock(), JournalEntry::End(span)),
        None => drop(span),
    }
}

fn here() -> Option<Arc<Journal>> {
    HERE.try_with(|here| here.borrow().clone()).ok().flatten()
}

/// The one subscriber of all engines' threads.
fn copier() -> &'static Dispatch {
    static COPIER: OnceLock<Dispatch> = OnceLock::new();
    COPIER.get_or_init(|| Dispatch::new(Copier))
}

/// Copies each event into the journal of its thread.
struct Copier;

impl Subscriber for Copier {
    /// On no other thread it has a say. On its own it is asked each time if another one is
    /// interested.
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::never()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::OFF)
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let Some(journal) = here() else { return false };
        // Of a subscriber that came later only the other thread knows.
        let is_said_by_us = *metadata.level() <= Level::INFO && is_of_fred(metadata.target());
        metadata.is_event()
            && !is_said_by_us
            && journal
                .subscriber
                .get()
                .is_none_or(|subscriber| subscriber.enabled(metadata))
    }

    fn event(&self, event: &tracing::Event<'_>) {
        if let Some(journal) = here() {
            journal.put_event(Copied::of(event));
        }
    }

    /// No span is enabled.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn is_of_fred(target: &str) -> bool {
    target.split("::").next() == Some("fred")
}

/// A copy of an event.
struct Copied {
    metadata: &'static Metadata<'static>,
    fields: Vec<(Field, Box<dyn Value + Send>)>,
    span: Option<Arc<Span>>,
}

impl Copied {
    fn of(event: &tracing::Event<'_>) -> Self {
        let mut copied = Self {
            metadata: event.metadata(),
            fields: Vec::new(),
            span: SPAN.with_borrow(Clone::clone),
        };
        event.record(&mut copied);
        copied
    }

    /// Passes it on to the subscriber of this thread.
    fn tell(&self) {
        match &self.span {
            Some(span) => span.in_scope(|| self.dispatch()),
            None => self.dispatch(),
        }
    }

    fn dispatch(&self) {
        let Some((first, _)) = self.fields.first() else {
            return;
        };
        if !dispatcher::get_default(|subscriber| subscriber.enabled(self.metadata)) {
            return;
        }
        let mut values: [(&Field, Option<&dyn Value>); MOST_FIELDS] = [(first, None); MOST_FIELDS];
        for (place, (field, value)) in values.iter_mut().zip(&self.fields) {
            *place = (field, Some(&**value));
        }
        tracing::Event::dispatch(self.metadata, &self.metadata.fields().value_set(&values));
    }

    fn add(&mut self, field: &Field, value: impl Value + Send + 'static) {
        self.fields.push((field.clone(), Box::new(value)));
    }
}

impl Visit for Copied {
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.to_owned());
    }

    /// Everything else is copied as text.
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, display(format!("{value:?}")));
    }
}
