//! The engine: one thread with a runtime of its own, which drives all communication with servers.
//!
//! Because of it, dropping a future cuts no command in half, a guard can be dropped without a
//! runtime, a blocked user runtime loses no lock, and any executor will do. It is never joined,
//! since async code may end it.
//!
//! With the feature `testing` an engine may be *embedded* instead: tasks in a runtime of the
//! program, which use only that runtime's time, paused or not. None of the above is true of it: it
//! is for lockers over servers in memory, in tests.
//! - Its tasks end when it is stopped, when its last handle is dropped, or with the runtime,
//!   whichever is first.
//! - It never polls busily, and no thread waits at its end for the work of an embedded engine: that
//!   thread may be the one that has to run it.
//! - No call can block on it, for the same reason.
//! - In a forked process it is refused like any other engine.

mod busy_poll;
mod in_flight;
mod leaving;
mod replies;
mod runner;

use std::future::Future;
use std::io;

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;
#[cfg(feature = "testing")]
use tokio_util::sync::DropGuard;

use self::busy_poll::BusyPoll;
pub(crate) use self::in_flight::{InFlight, Tally, Work};
use self::replies::{Flusher, ReplyBatch};
pub(crate) use self::runner::{Job, JobRunner};
use crate::clock::Clock;
use crate::foreign::Journal;
use crate::sync::{Arc, Mutex};
#[cfg(feature = "testing")]
use crate::tasks::EmbeddedTasks;

/// A handle on the engine. The thread ends with [`stop`](Self::stop), and not with the last handle.
#[derive(Debug, Clone)]
pub(crate) struct Engine {
    handle: Handle,
    stop: CancellationToken,
    busy_poll: Arc<BusyPoll>,
    /// The work in flight on it for the program.
    tally: Arc<Tally>,
    replies: Arc<ReplyBatch>,
    journal: Arc<Journal>,
    clock: Clock,
    #[cfg(feature = "testing")]
    embedded: Option<Embedded>,
}

/// The tasks of an embedded engine.
#[cfg(feature = "testing")]
#[derive(Debug, Clone)]
struct Embedded {
    tasks: EmbeddedTasks,
    /// Ends them with the last handle on the engine.
    _end: Arc<DropGuard>,
}

impl Engine {
    /// Starts the thread "lockhound" for this many nodes. It polls busily if that pays.
    pub(crate) fn start(nodes: usize) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let tally = Tally::new(std::process::id(), nodes);
        let engine = Self {
            handle: runtime.handle().clone(),
            stop: CancellationToken::new(),
            busy_poll: Arc::new(BusyPoll::new()),
            journal: journal(&tally),
            tally,
            replies: Arc::default(),
            clock: Clock::machine(),
            #[cfg(feature = "testing")]
            embedded: None,
        };
        engine.spawn(replies::deliver(Flusher(Arc::clone(&engine.replies))));
        let stop = engine.stop.clone();
        let busy_poll = Arc::clone(&engine.busy_poll);
        let journal = Arc::clone(&engine.journal);
        // If the thread cannot be started, the runtime is still here: async code must not drop a
        // runtime, only shut it down in the background.
        let runtime = Arc::new(Mutex::new(Some(runtime)));
        let taken = Arc::clone(&runtime);
        let started = std::thread::Builder::new()
            .name("lockhound".into())
            .spawn(move || {
                // What the runtime drops may log too.
                let _keeping = journal.keep();
                let runtime = taken.lock().take();
                if let Some(runtime) = runtime {
                    runtime.block_on(stop.run_until_cancelled(busy_poll.keep()));
                    // Dropping the runtime drops its tasks, and with them the connections.
                }
            });
        if let Err(error) = started {
            if let Some(runtime) = runtime.lock().take() {
                runtime.shutdown_background();
            }
            return Err(error);
        }
        Ok(engine)
    }

    /// Makes an engine that is embedded in this runtime, which becomes a host of lockers: see
    /// [`Clock::of`].
    #[cfg(feature = "testing")]
    pub(crate) fn embedded_in(runtime: &Handle, nodes: usize) -> Self {
        let stop = CancellationToken::new();
        let tasks = EmbeddedTasks::new(runtime.clone(), stop.clone());
        let tally = Tally::new(std::process::id(), nodes);
        let engine = Self {
            handle: runtime.clone(),
            embedded: Some(Embedded {
                tasks,
                _end: Arc::new(stop.clone().drop_guard()),
            }),
            stop,
            busy_poll: Arc::new(BusyPoll::off()),
            journal: journal(&tally),
            tally,
            replies: Arc::default(),
            clock: Clock::of(runtime),
        };
        engine.spawn(replies::deliver(Flusher(Arc::clone(&engine.replies))));
        engine
    }

    /// Returns whether it is embedded and has no thread of its own.
    pub(crate) fn is_embedded(&self) -> bool {
        #[cfg(feature = "testing")]
        return self.embedded.is_some();
        #[cfg(not(feature = "testing"))]
        false
    }

    /// Returns whether it is embedded and its tasks have ended, or are about to.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_embedded() && self.stop.is_cancelled()
    }

    /// Returns the clock of everything that runs on it.
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Runs a task on the engine. After the engine's end the task is dropped at once.
    pub(crate) fn spawn(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> tokio::task::AbortHandle {
        #[cfg(feature = "testing")]
        if let Some(embedded) = &self.embedded {
            return embedded.tasks.spawn(task);
        }
        self.handle.spawn(task).abort_handle()
    }

    /// Gives an answer to a caller, together with other answers, as soon as the tasks that are
    /// ready have run. Once the engine has ended, at once.
    pub(crate) fn queue_reply(&self, reply: impl FnOnce() + Send + 'static) {
        self.replies.queue(reply);
    }

    /// Returns the way of its events to the program's subscriber. Those of an embedded engine take
    /// none.
    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Records that a caller waits for an answer: see [`answered`](Self::answered).
    pub(crate) fn asked(&self) {
        self.busy_poll.asked();
    }

    /// Records that a caller gets its answer, and may ask again at once.
    pub(crate) fn answered(&self) {
        self.busy_poll.answered();
    }

    /// Records that a caller waits for other lockers, and that its answer does not come soon.
    pub(crate) fn waits_for_others(&self) {
        self.busy_poll.waits_for_others();
    }

    /// Counts work. It has to be done before the thread that queued it, or `main`, ends: see
    /// [`leaving`].
    pub(crate) fn track(&self, work: Work) -> InFlight {
        if self.is_embedded() {
            InFlight::unawaited(&self.tally, work)
        } else {
            InFlight::new(&self.tally, work)
        }
    }

    /// Returns the counts of what is in flight.
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Records that the calling thread uses this engine, even if it queues nothing.
    pub(crate) fn register_thread(&self) {
        drop(self.track(Work::Part));
    }

    /// Returns whether this process is a forked copy of the one that started the engine. A fork
    /// copies only the thread that calls it, and a mutex that another thread held at that moment
    /// stays locked: call this before taking any.
    pub(crate) fn is_forked(&self) -> bool {
        self.tally.open_work.is_inherited()
    }

    /// Waits for a future on this thread, which must not run async code. Not for an embedded
    /// engine: the thread that waits may be the one that has to run it.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.handle.block_on(future)
    }

    /// Ends the thread or, of an embedded engine, all tasks.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }
}

/// Makes a journal whose events `main` waits for at its end.
fn journal(tally: &Arc<Tally>) -> Arc<Journal> {
    let tally = Arc::clone(tally);
    Journal::new(move || InFlight::unawaited(&tally, Work::Part))
}

#[cfg(test)]
impl Engine {
    /// Runs a task for a caller that waits for its answer, which the task reports by
    /// [`answered`](Self::answered).
    fn ask(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.asked();
        self.spawn(task);
    }

    /// Returns the same engine as a forked copy of its process sees it.
    pub(crate) fn forked(self) -> Self {
        Self {
            tally: Tally::new(0, 1),
            ..self
        }
    }

    /// Returns whether the engine sleeps whatever is asked.
    pub(crate) fn never_stays_awake(&self) -> bool {
        self.busy_poll.is_out_of_habit()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use super::*;

    /// Runs a closure on the engine, as a caller's question.
    fn ask<T: Send + 'static>(
        engine: &Engine,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Receiver<T> {
        let (reply, answer) = channel();
        let answering = engine.clone();
        engine.ask(async move {
            let value = question();
            answering.answered();
            let _: Result<_, _> = reply.send(value);
        });
        answer
    }

    /// Returns the CPU time of the current thread.
    fn cpu() -> Duration {
        let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(
            used.tv_sec.unsigned_abs(),
            u32::try_from(used.tv_nsec).expect("below a second"),
        )
    }

    #[test]
    fn an_engine_that_nobody_asks_sleeps() {
        let engine = Engine::start(1).expect("a thread");
        for number in 0..1_000 {
            assert_eq!(ask(&engine, move || number).recv(), Ok(number));
        }
        let before = ask(&engine, cpu).recv().expect("an answer");
        std::thread::sleep(Duration::from_millis(300));
        let after = ask(&engine, cpu).recv().expect("an answer");
        engine.stop();
        assert!(
            after - before < Duration::from_millis(30),
            "{:?}",
            after - before
        );
    }

    #[cfg(feature = "testing")]
    mod embedded {
        use std::future::pending;
        use std::pin::Pin;

        use tokio::runtime::Runtime;
        use tokio::task::yield_now;
        use tokio::time::sleep;

        use super::*;
        use crate::clock::Instant;
        use crate::tasks;

        const HOUR: Duration = Duration::from_secs(3_600);

        fn paused() -> Runtime {
            Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build()
                .expect("a runtime")
        }

        /// Counts the tasks that have not been dropped.
        #[derive(Clone)]
        struct Alive(Arc<()>);

        impl Alive {
            fn new() -> Self {
                Self(Arc::new(()))
            }

            fn count(&self) -> usize {
                Arc::strong_count(&self.0) - 1
            }

            /// A task that never ends by itself, and spawns others of that kind.
            fn task(self, generations: usize) -> Pin<Box<dyn Future<Output = ()> + Send>> {
                Box::pin(async move {
                    if generations > 0 {
                        tasks::spawn(self.clone().task(generations - 1));
                    }
                    pending::<()>().await;
                })
            }
        }

        /// An engine with tasks of three generations, and one that sleeps.
        async fn busy() -> (Engine, Alive) {
            let engine = Engine::embedded_in(&Handle::current(), 1);
            let alive = Alive::new();
            engine.spawn(alive.clone().task(2));
            let asleep = alive.clone();
            engine.ask(async move {
                sleep(HOUR).await;
                drop(asleep);
            });
            sleep(Duration::from_millis(1)).await;
            assert_eq!(alive.count(), 4);
            (engine, alive)
        }

        /// No task is left in this runtime.
        async fn assert_deserted(alive: &Alive) {
            for _ in 0..3 {
                yield_now().await;
            }
            assert_eq!(
                (alive.count(), Handle::current().metrics().num_alive_tasks()),
                (0, 0)
            );
        }

        #[tokio::test(start_paused = true)]
        async fn a_guest_goes_by_the_time_of_its_runtime() {
            let engine = Engine::embedded_in(&Handle::current(), 1);
            let machine = Clock::machine().now();
            let start = engine.clock().now();
            let (reply, answer) = tokio::sync::oneshot::channel();
            engine.ask(async move {
                sleep(HOUR).await;
                reply.send(Instant::now()).expect("listens");
            });
            assert_eq!(answer.await, Ok(start + HOUR));
            assert_eq!(
                (Instant::now(), engine.clock().now()),
                (start + HOUR, start + HOUR)
            );
            assert!(Clock::machine().now().since(machine) < HOUR / 60);
        }

        #[tokio::test(start_paused = true)]
        async fn all_tasks_of_a_guest_end_when_it_is_stopped() {
            let (engine, alive) = busy().await;
            engine.stop();
            assert!(engine.has_ended());
            assert_deserted(&alive).await;
            engine.spawn(alive.clone().task(2));
            engine.ask(alive.clone().task(2));
            assert_deserted(&alive).await;
        }

        #[tokio::test(start_paused = true)]
        async fn all_tasks_of_a_guest_end_with_the_last_handle() {
            let (engine, alive) = busy().await;
            let other = Engine::embedded_in(&Handle::current(), 1);
            let others = engine.clone();
            let its = Alive::new();
            other.spawn(its.clone().task(0));
            drop(engine);
            yield_now().await;
            assert_eq!((alive.count(), its.count()), (4, 1));
            drop(others);
            for _ in 0..3 {
                yield_now().await;
            }
            assert_eq!(
                (alive.count(), its.count()),
                (0, 1),
                "each engine ends for itself"
            );
            drop(other);
            assert_deserted(&its).await;
        }

        #[test]
        fn all_tasks_of_a_guest_end_with_its_runtime() {
            let runtime = paused();
            let (engine, alive) = runtime.block_on(busy());
            assert!(!engine.has_ended());
            drop(runtime);
            assert!(alive.count() == 0 && engine.has_ended());
            // Later tasks are dropped at once.
            engine.spawn(alive.clone().task(2));
            engine.ask(alive.clone().task(2));
            engine.answered();
            engine.register_thread();
            drop(engine.track(Work::Part));
            assert_eq!(alive.count(), 0);
            engine.stop();
            drop(engine);
        }

        #[test]
        fn a_task_dropped_with_the_runtime_finds_its_engine_stopped() {
            struct Asks(Engine, std::sync::mpsc::Sender<bool>);
            impl Drop for Asks {
                fn drop(&mut self) {
                    tasks::spawn(pending());
                    self.1.send(self.0.has_ended()).expect("listens");
                }
            }
            let runtime = paused();
            let (told, heard) = channel();
            runtime.block_on(async {
                let engine = Engine::embedded_in(&Handle::current(), 1);
                let asks = Asks(engine.clone(), told);
                engine.spawn(async move {
                    let _asks = asks;
                    pending::<()>().await;
                });
                yield_now().await;
            });
            drop(runtime);
            assert_eq!(heard.recv(), Ok(true));
        }

        #[test]
        fn no_thread_that_ends_waits_for_a_guest() {
            let runtime = paused();
            let engine = Engine::embedded_in(runtime.handle(), 1);
            assert!(!engine.track(Work::Part).is_awaited());
        }
    }
}
