//! What the engine's crew does for callers.

use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::Notify;

use super::Session;
use super::unconfirmed::Unconfirmed;
use crate::foreign::Span;
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
}
