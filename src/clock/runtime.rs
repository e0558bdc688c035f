//! The clocks of runtimes that are hosts of lockers.
//!
//! Such a clock is tokio's: if a test has paused it, it stands still while there is something to
//! run, and otherwise advances to the next timer. It shows the same times in each run: an
//! [`Instant`](super::Instant) counts from [`START`], the wall clock from [`WALL_START`], both from
//! the moment when the runtime became a host.
//!
//! # Invariants
//! - A runtime becomes a host once and stays one: all lockers in it, at once or one after the
//!   other, use one clock.
//! - Only code that runs in that runtime, and the lockers that live there, see its time.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{OnceLock, PoisonError, RwLock};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::time::Instant;

/// The first time of the clock, with room for points before it.
const START: Duration = Duration::from_secs(86_400);

/// The first time of the wall clock: the beginning of 2026.
const WALL_START: Duration = Duration::from_secs(1_767_225_600);

/// The hosts, and since when they are hosts. A runtime that has ended stays in the table with a few
/// bytes, since tokio does not report its end.
static CLOCKS: OnceLock<RwLock<HashMap<Id, Instant>>> = OnceLock::new();

/// A runtime in which lockers live.
#[derive(Debug, Clone)]
pub(super) struct RuntimeClock {
    runtime: Handle,
    since: Instant,
}

impl RuntimeClock {
    pub(super) fn of(runtime: &Handle) -> Self {
        let now = {
            let _entered = runtime.enter();
            Instant::now()
        };
        let mut clocks = CLOCKS
            .get_or_init(RwLock::default)
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let since = *clocks.entry(runtime.id()).or_insert(now);
        Self {
            runtime: runtime.clone(),
            since,
        }
    }

    /// Returns the time of its clock, on any thread.
    pub(super) fn time(&self) -> Duration {
        // A thread whose thread-locals are destroyed cannot enter a runtime. A drop there only
        // needs a time at which nothing has run out.
        if Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed()) {
            return START;
        }
        let _entered = self.runtime.enter();
        START + self.since.elapsed()
    }
}

/// Returns the time of the current runtime's clock, if it is a host.
pub(super) fn time_here() -> Option<Duration> {
    elapsed_here().map(|elapsed| START + elapsed)
}

/// Returns the time of its wall clock, if it is a host.
pub(super) fn wall_here() -> Option<Duration> {
    elapsed_here().map(|elapsed| WALL_START + elapsed)
}

/// Returns whether the current runtime is a host and its time is paused. tokio does not report
/// that, but a clock that has not moved while the machine's has is paused.
pub(super) fn is_paused_here() -> bool {
    let Some(before) = elapsed_here() else {
        return false;
    };
    let machine = std::time::Instant::now();
    while machine.elapsed().is_zero() {
        std::hint::spin_loop();
    }
    elapsed_here() == Some(before)
}

/// Returns how long the current runtime has been a host.
fn elapsed_here() -> Option<Duration> {
    thread_local! {
        /// The host for which this thread asked last. Entries of the table never change.
        static LAST: Cell<Option<(Id, Instant)>> = const { Cell::new(None) };
    }
    let clocks = CLOCKS.get()?;
    let runtime = Handle::try_current().ok()?.id();
    if let Some((_, since)) = LAST.get().filter(|(last, _)| *last == runtime) {
        return Some(since.elapsed());
    }
    let since = clocks
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .get(&runtime)
        .copied()?;
    LAST.set(Some((runtime, since)));
    Some(since.elapsed())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::mpsc::{Sender, channel};

    use tokio::runtime::{Builder, Runtime};
    use tokio::time::{advance, pause, resume, sleep};

    use super::*;
    use crate::clock::{self, Clock};

    const HOUR: Duration = Duration::from_secs(3_600);

    fn paused() -> Runtime {
        Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime")
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_goes_by_its_own_time_from_a_fixed_start() {
        sleep(HOUR).await;
        assert!(
            !clock::is_of_timers() && !clock::is_paused(),
            "before it is a host"
        );
        let clock = Clock::of(&Handle::current());
        for slept in 0..3 {
            let time = clock::Instant(START + HOUR * slept);
            assert_eq!((clock::Instant::now(), clock.now()), (time, time));
            let wall = WALL_START + HOUR * slept;
            assert_eq!(u128::from(clock::wall_micros()), wall.as_micros());
            sleep(HOUR).await;
        }
        let again = Clock::of(&Handle::current());
        assert_eq!(again.now(), clock.now(), "it becomes one once");
        advance(Duration::from_nanos(1)).await;
        assert_eq!(
            clock.now(),
            clock::Instant(START + HOUR * 3 + Duration::from_nanos(1))
        );
    }

    #[tokio::test]
    async fn every_change_of_paused_time_is_noticed() {
        let _clock = Clock::of(&Handle::current());
        for _ in 0..100 {
            assert!(clock::is_of_timers() && !clock::is_paused());
            pause();
            assert!(clock::is_of_timers() && clock::is_paused());
            resume();
        }
    }

    #[test]
    fn each_host_has_its_own_time_and_threads_have_the_machines() {
        let runtimes = [paused(), paused()];
        let clocks = [0, 1].map(|at: usize| Clock::of(runtimes[at].handle()));
        let machine = clock::Instant::now();
        runtimes[0].block_on(async { sleep(HOUR).await });
        let start = clock::Instant(START);
        for now in [0, 1]
            .map(|at: usize| clocks[at].now())
            .iter()
            .zip([start + HOUR, start])
        {
            assert_eq!(*now.0, now.1, "as seen from outside");
        }
        // One asks for the other's.
        runtimes[1].block_on(async {
            assert_eq!(
                (clock::Instant::now(), clocks[0].now(), clocks[1].now()),
                (start, start + HOUR, start)
            );
            let machines = Clock::machine().now();
            assert!(machine <= machines && machines.since(machine) < HOUR);
        });
        assert!(clock::Instant::now().since(machine) < HOUR && !clock::is_of_timers());
        // A runtime that ends leaves its time where it is.
        drop(runtimes);
        assert_eq!(clocks.map(|clock| clock.now()), [start + HOUR, start]);
    }

    /// Dropped at the very end of a thread, when the runtime can no longer be entered.
    struct Last(Clock, Sender<clock::Instant>);

    impl Drop for Last {
        fn drop(&mut self) {
            assert!(
                Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed()),
                "it is the last"
            );
            self.1.send(self.0.now()).expect("listens");
        }
    }

    #[test]
    fn a_thread_without_thread_locals_reads_the_clock_and_no_panic() {
        thread_local! {
            static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
        }
        let runtime = paused();
        let clock = Clock::of(runtime.handle());
        runtime.block_on(async { sleep(HOUR).await });
        let (told, heard) = channel();
        let thread = std::thread::spawn(move || {
            // The thread-locals that are used first are dropped last.
            LAST.with(|last| *last.borrow_mut() = Some(Last(clock.clone(), told)));
            clock.now()
        });
        assert_eq!(
            thread.join().expect("no panic"),
            clock::Instant(START + HOUR)
        );
        assert_eq!(heard.recv(), Ok(clock::Instant(START)));
    }
}
