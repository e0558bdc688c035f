//! Who calls: the tokio task, the thread, or the owner that a scope has set.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Error;
use crate::owner::Owner;

tokio::task_local! {
    static SCOPED: Owner;
}

impl Owner {
    /// The owner as whom the caller locks: that of the innermost [`scope`](Self::scope), else the tokio task, else, in
    /// the `block_on` root of a tokio runtime, the thread.
    ///
    /// # Errors
    /// [`Error::Config`] where there is neither: another executor's tasks cannot be told apart. Say who locks with
    /// [`Lock::owned_by`](crate::Lock::owned_by).
    ///
    /// # Examples
    /// ```
    /// # use lockhound::Owner;
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let parent = Owner::current()?;
    /// let child = tokio::spawn(async { Owner::current() }).await??;
    /// assert_ne!(parent, child, "a spawned task is somebody else");
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn current() -> Result<Self, Error> {
        scoped_or_task().or_else(|| tokio::runtime::Handle::try_current().ok().map(|_| thread())).ok_or_else(|| {
            Error::config(
                "owner",
                "there is no tokio task and no tokio runtime here to tell callers apart; say who locks with \
                 lock.owned_by(Owner::new())",
            )
        })
    }

    /// Runs a future in which everything locks as this owner, in whatever task it is polled.
    ///
    /// A spawned child that locks what its awaiting parent holds waits for ever, since it is somebody else. In the
    /// parent's scope it enters again. Tasks that the future spawns are outside of the scope.
    ///
    /// # Cancel safety
    /// Dropping it drops the future that it runs.
    ///
    /// # Examples
    /// ```
    /// # use lockhound::Owner;
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let parent = Owner::current()?;
    /// let child = tokio::spawn(parent.clone().scope(async { Owner::current() })).await??;
    /// assert_eq!(parent, child);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn scope<F: Future>(self, future: F) -> impl Future<Output = F::Output> {
        SCOPED.scope(self, future)
    }

    /// The owner of a caller that blocks its thread: there the thread tells callers apart.
    pub(crate) fn of_blocking_caller() -> Self {
        scoped_or_task().unwrap_or_else(thread)
    }
}

fn scoped_or_task() -> Option<Owner> {
    if let Ok(owner) = SCOPED.try_with(Clone::clone) {
        return Some(owner);
    }
    // tokio shows the number of a task only as text; it is never used twice in a process.
    let id = tokio::task::try_id()?;
    id.to_string().parse().ok().map(Owner::task)
}

/// std's ThreadId does not show its number.
fn thread() -> Owner {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static ID: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    Owner::thread(ID.with(|id| *id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_of_tokio_the_caller_has_to_say_who_it_is() {
        let refusal = Owner::current().expect_err("no runtime").to_string();
        assert!(refusal.contains("owned_by"), "{refusal}");
        assert_eq!(Owner::of_blocking_caller(), Owner::of_blocking_caller());
        let other = std::thread::spawn(Owner::of_blocking_caller).join().expect("a thread");
        assert_ne!(Owner::of_blocking_caller(), other);
    }

    #[tokio::test]
    async fn tasks_threads_and_scopes_are_told_apart() {
        let root = Owner::current().expect("a block_on root");
        assert_eq!(root, Owner::current().expect("the same root"));
        assert!(root.to_string().starts_with('h'), "{root}");
        let task = tokio::spawn(async { Owner::current() }).await.expect("joined").expect("a task");
        assert!(task.to_string().parse::<u64>().is_ok(), "{task}");
        let scoped = Owner::new();
        let inside = scoped.clone().scope(async { Owner::current() }).await.expect("scoped");
        assert_eq!(inside, scoped);
        let inner = Owner::new();
        let nested = scoped.scope(inner.clone().scope(async { Owner::current() })).await.expect("scoped");
        assert_eq!(nested, inner);
    }
}
