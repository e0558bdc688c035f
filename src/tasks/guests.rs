//! The tasks of an engine that lives in a runtime of the program's.
//!
//! # Invariants
//! - Each of them ends when the engine does, and with the runtime.
//! - What a task holds is dropped after the engine has ended, where the runtime is what ends: it finds nothing to be
//!   gone on with. tokio drops tasks in no order, so that each of them tells.

use std::future::{Future, pending};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

tokio::task_local! {
    /// Those that the task belongs to.
    static HERE: Guests;
}

/// All tasks of an engine.
#[derive(Debug, Clone)]
pub(crate) struct Guests {
    runtime: Handle,
    end: CancellationToken,
}

impl Guests {
    /// Tasks of this runtime that all end with this token, which fires with the runtime too.
    pub(crate) fn new(runtime: Handle, end: CancellationToken) -> Self {
        Self { runtime, end }
    }

    /// Those that the calling task is one of.
    pub(super) fn here() -> Option<Self> {
        HERE.try_with(Self::clone).ok()
    }

    /// Spawns one more. After their end, and after that of the runtime, it is dropped at once.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let end = self.end.clone();
        let work = Box::pin(async move { _ = end.run_until_cancelled(task).await });
        let guest = Guest { leaving: Leaving { guests: self.clone(), done: false }, work };
        self.runtime.spawn(HERE.scope(self.clone(), guest)).abort_handle()
    }

    /// Whether the runtime has begun to drop its tasks. tokio does not say so: but then it takes no more.
    fn is_homeless(&self) -> bool {
        let probe = self.runtime.spawn(pending::<()>());
        // Before it is aborted: it never ends by itself.
        let refused = probe.is_finished();
        probe.abort();
        refused
    }
}

/// One task.
struct Guest {
    /// Dropped first.
    leaving: Leaving,
    work: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Future for Guest {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        ready!(self.work.as_mut().poll(cx));
        self.leaving.done = true;
        Poll::Ready(())
    }
}

/// The end of a task, however it comes.
struct Leaving {
    guests: Guests,
    done: bool,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        // One that was aborted is no reason for the others to leave.
        if !self.done && !self.guests.end.is_cancelled() && self.guests.is_homeless() {
            self.guests.end.cancel();
        }
    }
}
