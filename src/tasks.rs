//! The tasks of an engine: a task that one of them spawns belongs to the engine too, and ends with
//! it.

use std::future::Future;

use tokio::task::AbortHandle;

#[cfg(feature = "testing")]
pub(crate) use self::embedded::EmbeddedTasks;

/// Spawns a task on the engine of the calling task.
///
/// # Panics
/// Outside of a runtime.
pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
    #[cfg(feature = "testing")]
    if let Some(tasks) = EmbeddedTasks::here() {
        return tasks.spawn(task);
    }
    // The runtime is the engine's own, and ends with it.
    tokio::spawn(task).abort_handle()
}

/// A task that ends when this is dropped.
pub(crate) struct Stop(pub(crate) AbortHandle);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(feature = "testing")]
mod embedded;
