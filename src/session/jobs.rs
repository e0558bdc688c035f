//! What the crew has to do, and how those that wait for it are told.
//!
//! # Invariants
//! - What a line has under way tells it the outcome exactly once: also if the job ends before, by a panic or with the
//!   engine. Otherwise the callers would wait forever.

use std::pin::Pin;
use std::sync::Arc;

use super::Session;
use super::unconfirmed::Unconfirmed;
use crate::command::Listing;
use crate::engine::Work;
use crate::error::Error;
use crate::foreign::{self, Span, contained};
use crate::key::Key;
use crate::line::Event;
use crate::lines::Head;

pub(super) enum Task {
    /// Acquires for the head of a line.
    Ask(Asking),
    /// Hands a lock over, or releases it.
    HandOver(HandingOver),
    /// Releases a hold.
    Release(Unconfirmed),
    /// Does something else.
    Other(Pin<Box<dyn Future<Output = ()> + Send>>),
}

/// A hand-over that a line wants.
pub(super) struct HandingOver {
    pub(super) under_way: UnderWay,
    pub(super) released: Unconfirmed,
    pub(super) head: Option<Head>,
}

/// An acquire that a line wants.
pub(super) struct Asking {
    pub(super) under_way: UnderWay,
    pub(super) head: Head,
    pub(super) first_alone: bool,
    pub(super) listing: Option<Listing>,
    pub(super) listens: bool,
}

/// An effect whose outcome is yet to come.
pub(super) struct UnderWay {
    pub(super) session: Arc<Session>,
    pub(super) key: Key,
    ended: bool,
}

impl UnderWay {
    pub(super) fn new(session: &Arc<Session>, key: &Key) -> Self {
        Self { session: Arc::clone(session), key: key.clone(), ended: false }
    }

    pub(super) fn end(mut self, outcome: Event) {
        self.ended = true;
        self.session.lines.step(&self.key, outcome);
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if !self.ended {
            let Self { session, key, .. } = self;
            contained(|| {
                for waiter in session.lines.drain(key, |_| true) {
                    foreign::answer(waiter.call.reply, Err(session.stopped()));
                }
                session.lines.step(key, Event::Stopped);
            });
        }
    }
}

impl Session {
    /// Runs a task for a caller that waits for its answer.
    pub(super) fn ask(&self, task: Task) {
        self.engine.asked();
        self.crew.give(task);
    }

    /// Runs an operation as a task of the engine, so that dropping the caller's future drops no command half-way. It
    /// begins with this call; the future, which is small, only waits.
    pub(super) fn on_engine<T: Send + 'static, F>(
        self: &Arc<Self>,
        operation: F,
    ) -> impl Future<Output = Result<T, Error>> + use<T, F>
    where
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let (reply, answer) = foreign::channel();
        match self.check_open() {
            Err(error) => foreign::answer(reply, Err(error)),
            Ok(()) => {
                // Closing waits for it: what it is granted has to be given back while there is a connection.
                let (pending, session) = (self.engine.owe(Work::Operation), Arc::clone(self));
                self.ask(Task::Other(Box::pin(async move {
                    let panicked = |said: String| Err(session.panicked(&said));
                    let result = foreign::survive(operation).await.unwrap_or_else(panicked);
                    session.engine.answered();
                    session.engine.post(move || {
                        // If the caller is gone, the answer is dropped, and a grip in it releases its lock.
                        foreign::answer(reply, result);
                        drop(pending);
                    });
                })));
            }
        }
        async move { answer.await.unwrap_or(Err(Error::Closed)) }
    }

    /// Returns a span for what the engine does for a line.
    pub(super) fn span_of(&self, operation: &'static str, key: &Key) -> Span {
        // The ends of spans are always kept.
        if self.engine.journal().is_behind() {
            return Span::default();
        }
        foreign::span(|| tracing::debug_span!(parent: None, "lockhound", operation, key = %key.shown()))
    }

    /// Ends one waiter's wait with an error.
    pub(super) fn answer(&self, key: &Key, id: u64, error: Error) {
        if let Some(waiter) = self.lines.leave(key, id) {
            foreign::answer(waiter.call.reply, Err(error));
        }
    }

    /// Returns why what was under way has no outcome.
    pub(super) fn stopped(&self) -> Error {
        self.check_open().err().unwrap_or_else(|| self.panicked("the panic hook was told why"))
    }
}
