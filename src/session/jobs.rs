//! What the engine's crew does for callers.

use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::Notify;

use super::Session;
use super::unconfirmed::Unconfirmed;
use crate::engine::Work;
use crate::error::Error;
use crate::foreign::{self, Span};
use crate::key::Key;

pub(super) enum Task {
    /// Drives the line of a key.
    Drive { session: Arc<Session>, key: Key, wake: Arc<Notify>, span: Span },
    /// Releases a hold.
    Release(Unconfirmed),
    /// Does something else.
    Other(Pin<Box<dyn Future<Output = ()> + Send>>),
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
}
