//! The tasks of an engine that is embedded in a runtime of the program.
//!
//! # Invariants
//! - Each task ends with the engine, and with the runtime.
//! - If the runtime ends, the state of a task is dropped after the engine has ended, so that no
//!   drop finds an engine at work. tokio drops tasks in no fixed order, so each task ends the
//!   engine.

use std::future::{Future, pending};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

tokio::task_local! {
    /// The tasks to which this task belongs.
    static HERE: EmbeddedTasks;
}

/// All tasks of an engine.
#[derive(Debug, Clone)]
pub(crate) struct EmbeddedTasks {
    runtime: Handle,
    end: CancellationToken,
}

impl EmbeddedTasks {
    /// Creates the tasks of this runtime that end with this token. The token also fires when the
    /// runtime ends.
    pub(crate) fn new(runtime: Handle, end: CancellationToken) -> Self {
        Self { runtime, end }
    }

    /// Returns the tasks to which the calling task belongs.
    pub(super) fn here() -> Option<Self> {
        HERE.try_with(Self::clone).ok()
    }

    /// Spawns a task. After the end of the engine or of the runtime it is dropped at once.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let end = self.end.clone();
        let work = Box::pin(async move { _ = end.run_until_cancelled(task).await });
        let embedded = EmbeddedTask {
            leaving: Leaving {
                tasks: self.clone(),
                done: false,
            },
            work,
        };
        self.runtime
            .spawn(HERE.scope(self.clone(), embedded))
            .abort_handle()
    }

    /// Returns whether the runtime has begun to drop its tasks. tokio does not report that, but
    /// from then on it takes no more tasks.
    fn is_runtime_ending(&self) -> bool {
        let probe = self.runtime.spawn(pending::<()>());
        // The probe never ends by itself, so it is finished only if it was refused.
        let refused = probe.is_finished();
        probe.abort();
        refused
    }
}

/// One task.
struct EmbeddedTask {
    /// Dropped first.
    leaving: Leaving,
    work: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Future for EmbeddedTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        ready!(self.work.as_mut().poll(cx));
        self.leaving.done = true;
        Poll::Ready(())
    }
}

/// Notices the end of a task, for any reason.
struct Leaving {
    tasks: EmbeddedTasks,
    done: bool,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        // The abort of a single task does not end the others.
        if !self.done && !self.tasks.end.is_cancelled() && self.tasks.is_runtime_ending() {
            self.tasks.end.cancel();
        }
    }
}
