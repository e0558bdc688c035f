//! The end of threads: they wait for a moment for the work that they have queued.
//!
//! No drop waits for a server. A program that drops a guard and ends would therefore end the
//! engine's thread before the release is sent, and leave the lock for its lease. So a thread-local
//! of each thread that queued something waits at the thread's end until that is answered. The
//! process ends with `main`, and with it all other threads: `main` waits for all work that is in
//! flight in the lockers that it has used.
//!
//! # Invariants
//! - A thread waits for at most [`PATIENCE`], with any number of lockers, and our own threads never
//!   wait.
//! - Nothing waits for work that was inherited through a fork: no thread could finish it.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::clock::{Clock, Instant};
use crate::sync::{Arc, Condvar, Mutex, PoisonError};

/// How long a thread waits at its end.
const PATIENCE: Duration = Duration::from_millis(100);

/// The count of work in flight, for an engine or for a thread.
#[derive(Debug)]
pub(super) struct OpenWork {
    /// The process in which it was made.
    pid: u32,
    open: AtomicUsize,
    /// Whether a thread waits or has waited for it.
    awaited: AtomicBool,
    turn: Mutex<()>,
    settled: Condvar,
}

impl OpenWork {
    pub(super) fn of(pid: u32) -> Arc<Self> {
        Arc::new(Self {
            pid,
            open: AtomicUsize::new(0),
            awaited: AtomicBool::new(false),
            turn: Mutex::new(()),
            settled: Condvar::new(),
        })
    }

    /// Returns whether this process is a forked copy of the one in which it was made.
    pub(super) fn is_inherited(&self) -> bool {
        self.pid != std::process::id()
    }

    pub(super) fn add(&self) {
        self.open.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn is_settled(&self) -> bool {
        // With the store of `awaited` before it, and the opposite order in `settle`, one of the two
        // sees the other.
        self.open.load(Ordering::SeqCst) == 0
    }

    pub(super) fn settle(&self) {
        if self.open.fetch_sub(1, Ordering::SeqCst) == 1 && self.awaited.load(Ordering::SeqCst) {
            // The waiter checks the count under this mutex. Once this has had it, the waiter either
            // has seen the zero or sleeps, and hears what follows.
            drop(self.turn.lock());
            self.settled.notify_all();
        }
    }

    /// Blocks this thread until nothing is in flight, or until this time.
    fn wait(&self, until: Instant) {
        self.awaited.store(true, Ordering::SeqCst);
        let mut turn = self.turn.lock();
        while !self.is_settled() {
            let rest = Clock::machine().now().until(until);
            if rest.is_zero() {
                return;
            }
            turn = self
                .settled
                .wait_timeout(turn, rest)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

/// Returns the calling thread's own count, if that thread waits for what it queues now on an
/// engine.
pub(super) fn track(engine: &Arc<OpenWork>) -> Option<Arc<OpenWork>> {
    // A thread whose thread-locals are destroyed can no longer wait.
    HERE.try_with(|here| here.track(engine)).ok().flatten()
}

/// Returns whether the calling thread would wait for all work of an engine at its end.
#[cfg(test)]
pub(super) fn is_noted(engine: &Arc<OpenWork>) -> bool {
    HERE.with(|here| {
        here.awaits
            .borrow()
            .iter()
            .any(|known| Arc::ptr_eq(known, engine))
    })
}

thread_local! {
    static HERE: Here = Here::of(std::thread::current().name());
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ThreadKind {
    Main,
    Ours,
    Other,
}

/// A thread, and what it waits for at its end: `main` for engines, other threads for what they have
/// queued themselves.
struct Here {
    kind: ThreadKind,
    awaits: RefCell<Vec<Arc<OpenWork>>>,
}

impl Here {
    fn of(name: Option<&str>) -> Self {
        let kind = match name {
            // On Windows the other threads have already been ended when the thread-locals of `main`
            // are dropped.
            Some("main") if !cfg!(windows) => ThreadKind::Main,
            Some(name) if name.starts_with("lockhound") => ThreadKind::Ours,
            _ => ThreadKind::Other,
        };
        Self {
            kind,
            awaits: RefCell::default(),
        }
    }

    fn track(&self, engine: &Arc<OpenWork>) -> Option<Arc<OpenWork>> {
        match self.kind {
            ThreadKind::Ours => None,
            ThreadKind::Main => {
                self.note(engine);
                None
            }
            ThreadKind::Other => {
                let mut awaits = self.awaits.borrow_mut();
                // In a forked process, the work that was counted here will never end.
                if awaits.first().is_none_or(|own| own.pid != engine.pid) {
                    *awaits = vec![OpenWork::of(engine.pid)];
                }
                awaits.first().cloned()
            }
        }
    }

    fn note(&self, engine: &Arc<OpenWork>) {
        let mut awaits = self.awaits.borrow_mut();
        if !awaits.iter().any(|known| Arc::ptr_eq(known, engine)) {
            // Forget lockers that are gone.
            awaits.retain(|known| Arc::strong_count(known) > 1);
            awaits.push(Arc::clone(engine));
        }
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        let until = Clock::machine().now() + PATIENCE;
        for work in self.awaits.get_mut().drain(..) {
            // A mutex that was held at a fork is never released in the copy, so this check comes
            // before any lock.
            if !work.is_inherited() {
                work.wait(until);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::in_flight::{InFlight, Tally, Work};
    use super::*;

    fn open_work() -> Arc<OpenWork> {
        OpenWork::of(std::process::id())
    }

    #[test]
    fn our_own_threads_wait_for_nothing_and_others_for_their_work() {
        let engine = open_work();
        for name in ["lockhound", "lockhound-alarm"] {
            let ours = Here::of(Some(name));
            assert!(
                ours.track(&engine).is_none() && ours.awaits.borrow().is_empty(),
                "{name}"
            );
        }
        for name in [None, Some("worker")] {
            let other = Here::of(name);
            let own = other.track(&engine).expect("one of its own");
            assert!(!Arc::ptr_eq(&own, &engine));
            assert!(
                Arc::ptr_eq(&own, &other.track(&open_work()).expect("another engine's")),
                "one a thread"
            );
        }
    }

    #[test]
    fn main_waits_for_each_locker_it_uses_and_forgets_those_gone() {
        let main = Here::of(Some("main"));
        let first = open_work();
        for _ in 0..3 {
            assert!(main.track(&first).is_none());
        }
        assert_eq!(main.awaits.borrow().len(), 1);
        for _ in 0..100 {
            main.note(&open_work());
        }
        assert_eq!(
            main.awaits.borrow().len(),
            2,
            "the first, and the last until the next comes"
        );
    }

    #[test]
    fn no_thread_waits_for_unawaited_work() {
        let [awaited, unawaited] = [(); 2].map(|()| Tally::new(std::process::id(), 0));
        let in_flight = [
            InFlight::new(&awaited, Work::Part),
            InFlight::unawaited(&unawaited, Work::Part),
        ];
        assert_eq!(
            in_flight.each_ref().map(InFlight::is_awaited),
            [true, false]
        );
        assert!(!unawaited.open_work.is_settled());
        drop(in_flight);
        assert!(awaited.open_work.is_settled() && unawaited.open_work.is_settled());
    }

    #[test]
    fn work_that_was_queued_before_a_fork_is_not_waited_for() {
        let parents = OpenWork::of(0);
        let own = open_work();
        assert!(parents.is_inherited() && !own.is_inherited());
        let thread = Here::of(None);
        let before = thread.track(&parents).expect("one of its own");
        let after = thread.track(&own).expect("one of its own");
        assert_eq!(
            (before.pid, after.pid, thread.awaits.borrow().len()),
            (0, own.pid, 1)
        );
    }

    #[test]
    fn a_thread_ends_once_its_work_is_done() {
        let engine = Tally::new(std::process::id(), 0);
        let (hand, handed) = std::sync::mpsc::channel();
        let thread = std::thread::spawn({
            let engine = Arc::clone(&engine);
            move || {
                hand.send([(); 2].map(|()| InFlight::new(&engine, Work::Part)))
                    .expect("a receiver");
            }
        });
        let in_flight: [InFlight; 2] = handed.recv().expect("a sender");
        let own = Arc::clone(in_flight[0].thread().expect("a thread's"));
        assert_eq!(
            (
                own.open.load(Ordering::SeqCst),
                engine.open_work.open.load(Ordering::SeqCst)
            ),
            (2, 2)
        );
        drop(in_flight);
        thread.join().expect("no panic");
        assert!(own.is_settled() && engine.open_work.is_settled());
        // A thread waits for work that never ends, but not forever.
        let start = Instant::now();
        let in_flight = std::thread::spawn(move || InFlight::new(&engine, Work::Part))
            .join()
            .expect("no panic");
        let waited = Instant::now().since(start);
        assert!(waited >= PATIENCE, "{waited:?}");
        drop(in_flight);
    }
}
