//! The caller: its owner, where the call comes from, and the runs around it.

mod runs;

use std::fmt::{self, Write as _};
use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};

pub(crate) use self::runs::{RunTurns, Runs, TurnHeld};
use crate::error::Error;
use crate::options::Reentry;
use crate::owner::Owner;

tokio::task_local! {
    static SCOPE: Scope;
}

/// A scope: the owner of the calls in it, and the runs that are in progress around it.
#[derive(Debug, Clone)]
pub(crate) struct Scope {
    pub(crate) owner: Owner,
    pub(crate) runs: Runs,
}

/// Where a call comes from, independent of its owner. It distinguishes branches of one task only if
/// their wakers differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) context: CallContext,
    /// The data of the waker with which it was polled, or 0 for a thread that blocks.
    pub(crate) waker: usize,
    pub(crate) known: Known,
}

/// How a caller is identified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// By the task, waker or thread that calls: all of its branches are the same caller.
    Calling,
    /// Not at all: each call is an owner of its own.
    Fresh,
    /// By an owner that a scope or a handle names on purpose.
    Named,
    /// By the owner that a run made for itself.
    Run,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallContext {
    Task(u64),
    /// Outside of tasks, on this thread.
    Thread(u64),
    /// Outside of tasks, polled on this thread. The next poll may be on another.
    Polled(u64),
}

/// A caller, as it is identified at its first poll.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) owner: Owner,
    pub(crate) origin: Origin,
    pub(crate) runs: Runs,
}

impl Owner {
    /// Returns the owner as which the caller locks.
    ///
    /// That is the owner of the innermost [`scope`](Self::scope), or else the tokio task.
    ///
    /// # Errors
    /// [`Error::Config`] if there is neither, as in the `block_on` root of a runtime (the body of
    /// `#[tokio::main]`) and in other executors. There a polled call is identified by its waker,
    /// which only the call itself can see. To share a hold with a spawned task, use
    /// [`Guard::scope`](crate::Guard::scope); to name an owner,
    /// [`Lock::owned_by`](crate::Lock::owned_by).
    ///
    /// # Examples
    /// ```
    /// # use lockhound::Owner;
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// # tokio::spawn(async {
    /// let parent = Owner::current()?;
    /// let child = tokio::spawn(async { Owner::current() }).await??;
    /// assert_ne!(parent, child, "a spawned task is another owner");
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// # }).await?
    /// # })?;
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    pub fn current() -> Result<Self, Error> {
        scope().map(|scope| scope.owner).or_else(|| task().map(Self::task)).ok_or_else(|| {
            Error::config(
                "owner",
                "there is no tokio task here to tell callers apart; run children in guard.scope(..), or name the owner \
                 with lock.owned_by(Owner::new())",
            )
        })
    }

    /// Runs a future in which every call locks as this owner, in any task.
    ///
    /// A spawned child that locks what its awaiting parent holds waits forever, since it is a
    /// different owner. In the parent's scope it enters again;
    /// [`Guard::scope`](crate::Guard::scope) is the short form. Tasks that the future spawns are
    /// outside of the scope.
    ///
    /// # Cancel safety
    /// Dropping the returned future drops the one that it runs.
    ///
    /// # Examples
    /// ```
    /// # use lockhound::Owner;
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let owner = Owner::new();
    /// let child = tokio::spawn(owner.clone().scope(async { Owner::current() })).await??;
    /// assert_eq!(owner, child);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn scope<F: Future>(self, future: F) -> impl Future<Output = F::Output> {
        // The scope belongs to the runs of its maker, so that tasks spawned in it are inside of
        // those runs.
        Scope {
            owner: self,
            runs: Runs::current(),
        }
        .run(future)
    }
}

impl Scope {
    /// Runs a future in this scope.
    pub(crate) fn run<F: Future>(self, future: F) -> impl Future<Output = F::Output> {
        // The caller may be further inside: in a run in which it uses a guard from outside of that
        // run.
        let current = Runs::current();
        let runs = if current.is_inside(&self.runs) {
            current
        } else {
            self.runs
        };
        SCOPE.scope(
            Self {
                owner: self.owner,
                runs,
            },
            future,
        )
    }
}

impl Caller {
    /// Identifies the caller that polls. `named` is the owner that the handle names, if any.
    ///
    /// # Errors
    /// [`Error::Config`] if the caller cannot be distinguished from others.
    pub(crate) async fn polling(named: Option<&Owner>, reentry: Reentry) -> Result<Self, Error> {
        let polled = poll_fn(|cx| {
            Poll::Ready((
                cx.waker().data() as usize,
                Self::by(named, reentry, Some(cx.waker())),
            ))
        });
        let (waker, found) = polled.await;
        let (owner, known) = found.ok_or_else(|| {
            Error::config(
                "owner",
                "this future is polled outside of a tokio task, with a waker that does not tell callers apart; name \
                 the owner with lock.owned_by(Owner::new())",
            )
        })?;
        let context = task().map_or_else(|| CallContext::Polled(thread()), CallContext::Task);
        Ok(Self {
            owner,
            origin: Origin {
                context,
                waker,
                known,
            },
            runs: Runs::current(),
        })
    }

    /// Identifies the caller that blocks this thread, by the thread.
    pub(crate) fn blocking(named: Option<&Owner>, reentry: Reentry) -> Self {
        let thread = || (Owner::thread(thread()), Known::Calling);
        let (owner, known) = Self::by(named, reentry, None).unwrap_or_else(thread);
        Self {
            owner,
            origin: Origin {
                context: CallContext::here(),
                waker: 0,
                known,
            },
            runs: Runs::current(),
        }
    }

    /// Returns the owner of a call.
    fn by(
        named: Option<&Owner>,
        reentry: Reentry,
        waker: Option<&Waker>,
    ) -> Option<(Owner, Known)> {
        if let Some(owner) = named {
            return Some((owner.clone(), Known::Named));
        }
        let scoped = if reentry == Reentry::Never {
            None
        } else {
            scope()
        };
        match (scoped, reentry) {
            (Some(scope), _) => Some((scope.owner, Known::Named)),
            (None, Reentry::Task) => {
                let owner = task()
                    .map(Owner::task)
                    .or_else(|| waker.and_then(Owner::polled));
                owner.map(|owner| (owner, Known::Calling))
            }
            (None, Reentry::Scope | Reentry::Never) => Some((Owner::new(), Known::Fresh)),
        }
    }
}

impl CallContext {
    /// Returns where this code runs.
    pub(crate) fn here() -> Self {
        task().map_or_else(|| Self::Thread(thread()), Self::Task)
    }

    /// Returns whether the two may be one caller: they are the same task, or on one thread outside
    /// of tasks.
    pub(crate) fn may_be(self, other: Self) -> bool {
        match (self, other) {
            (Self::Task(one), Self::Task(other)) => one == other,
            (Self::Thread(one) | Self::Polled(one), Self::Thread(other) | Self::Polled(other)) => {
                one == other
            }
            _ => false,
        }
    }

    /// Returns whether a guard that was taken here and is now there has certainly moved.
    pub(crate) fn is_left(self, there: Self) -> bool {
        match (self, there) {
            // Executors other than tokio move tasks between threads.
            (Self::Polled(_), Self::Thread(_) | Self::Polled(_)) => false,
            _ => !self.may_be(there),
        }
    }
}

impl Runs {
    /// Returns the runs around the caller.
    pub(crate) fn current() -> Self {
        scope().map(|scope| scope.runs).unwrap_or_default()
    }
}

fn scope() -> Option<Scope> {
    SCOPE.try_with(Clone::clone).ok()
}

/// Returns the number of the tokio task, which tokio shows only as text. It is unique in a process.
fn task() -> Option<u64> {
    let mut digits = Digits(Some(0));
    write!(digits, "{}", tokio::task::try_id()?).ok()?;
    digits.0
}

/// Reads a number that is written into it, without an allocation. `None` if it is none.
struct Digits(Option<u64>);

impl fmt::Write for Digits {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for digit in text.bytes() {
            let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'));
            self.0 = self
                .0
                .zip(digit)
                .and_then(|(number, digit)| number.checked_mul(10)?.checked_add(digit));
        }
        Ok(())
    }
}

/// Returns a number for the thread, since std does not show its own.
fn thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static ID: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    // A thread-local's destructor may call this.
    ID.try_with(|id| *id).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn polled() -> Owner {
        Caller::polling(None, Reentry::Task)
            .await
            .expect("known")
            .owner
    }

    #[test]
    fn threads_are_told_apart_where_they_block() {
        let blocking = || Caller::blocking(None, Reentry::Task).owner;
        assert!(
            Owner::current()
                .expect_err("no task")
                .to_string()
                .contains("owned_by")
        );
        assert_eq!(blocking(), blocking());
        assert_ne!(
            blocking(),
            std::thread::spawn(blocking).join().expect("a thread")
        );
    }

    #[tokio::test]
    async fn tasks_roots_and_scopes_are_told_apart() {
        let root = polled().await;
        assert_eq!(root, polled().await, "nested code in the same root");
        assert!(root.to_string().starts_with('w'), "{root}");
        assert!(Owner::current().is_err(), "no call is polled");
        let task = tokio::spawn(async { (polled().await, Owner::current()) })
            .await
            .expect("joined");
        assert_eq!(task.0, task.1.expect("a task"));
        assert!(task.0.to_string().parse::<u64>().is_ok(), "{}", task.0);
        let scoped = Owner::new();
        assert_eq!(scoped.clone().scope(polled()).await, scoped);
        let inner = Owner::new();
        assert_eq!(scoped.scope(inner.clone().scope(polled())).await, inner);
    }

    #[tokio::test]
    async fn reentry_decides_how_a_call_is_identified() {
        let call = async |named: Option<&Owner>, reentry| {
            Caller::polling(named, reentry).await.expect("known").owner
        };
        let named = Owner::new();
        for reentry in [Reentry::Scope, Reentry::Never] {
            assert_ne!(call(None, reentry).await, call(None, reentry).await);
            assert_eq!(
                call(Some(&named), reentry).await,
                named,
                "a named owner comes first"
            );
        }
        let scope = Owner::new();
        let within = scope.clone().scope(async {
            (
                call(None, Reentry::Scope).await,
                call(None, Reentry::Never).await,
            )
        });
        let (scoped, never) = within.await;
        assert_eq!(scoped, scope);
        assert_ne!(never, scope);
    }

    #[test]
    fn a_waker_without_data_is_refused() {
        let mut call = Box::pin(Caller::polling(None, Reentry::Task));
        let poll = call
            .as_mut()
            .poll(&mut std::task::Context::from_waker(Waker::noop()));
        assert!(
            matches!(poll, Poll::Ready(Err(Error::Config(error))) if error.to_string().contains("owned_by"))
        );
    }

    #[test]
    fn places_are_compared_by_task_or_thread() {
        let task = CallContext::Task(1);
        let thread = CallContext::Thread(1);
        let polled = CallContext::Polled(1);
        assert!(
            task.may_be(task)
                && thread.may_be(polled)
                && !task.may_be(thread)
                && !task.may_be(CallContext::Task(2))
        );
        assert!(task.is_left(thread) && task.is_left(CallContext::Task(2)) && polled.is_left(task));
        assert!(
            thread.is_left(CallContext::Thread(2))
                && !polled.is_left(CallContext::Thread(2))
                && !task.is_left(task)
        );
    }
}
