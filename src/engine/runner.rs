//! The task that runs what callers ask for: many jobs at the same time.
//!
//! A lock and its release are a job each. A task for each of them would be allocated by the
//! caller's thread and freed by the engine's, which makes the two wait for each other in the
//! allocator. So a caller gives plain data, and all that it takes to run it is the engine's.
//!
//! # Invariants
//! - Jobs begin in the order in which they are submitted: a lock that is tried behind a release
//!   finds it released.
//! - What is in flight comes before what is new, since its callers may sleep; and other tasks have
//!   their turn between a few jobs and the next.
//! - Each job is run, or dropped with the engine. One that panics, or whose drop does, ends, and
//!   nothing else does.
//! - Jobs are dropped after the mutex is released.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;
use tokio::task::{unconstrained, yield_now};

use super::Engine;
use crate::foreign::{contained, survive};
use crate::sync::{Arc, Mutex};

/// The room for jobs that stays after a peak.
const MANY: usize = 1_024;

/// How many jobs begin before other tasks have their turn.
const AT_ONCE: usize = 16;

/// How many jobs end before other tasks have their turn.
const ENDS: usize = 64;

/// How many rooms stay after a peak.
const ROOMS: usize = 16;

/// What a runner runs.
pub(crate) trait Job: Send + 'static {
    fn run(self) -> impl Future<Output = ()> + Send;
}

/// The runner of jobs of one kind.
pub(crate) struct JobRunner<J>(Arc<JobQueue<J>>);

struct JobQueue<J> {
    /// `None` once the engine has ended.
    jobs: Mutex<Option<VecDeque<J>>>,
    news: Notify,
}

impl<J: Job> JobRunner<J> {
    pub(crate) fn new(engine: &Engine) -> Self {
        let queue = Arc::new(JobQueue {
            jobs: Mutex::new(Some(VecDeque::new())),
            news: Notify::new(),
        });
        // Jobs share the task's budget, and one that begins without any may wait before it has sent
        // something.
        engine.spawn(unconstrained(work(Worker(Arc::clone(&queue)))));
        Self(queue)
    }

    /// Runs a job on the engine. After the engine's end the job is dropped at once.
    pub(crate) fn submit(&self, job: J) {
        self.put(job, VecDeque::push_back);
    }

    /// The same, before all jobs that have not begun: it was asked for before them.
    pub(crate) fn submit_first(&self, job: J) {
        self.put(job, VecDeque::push_front);
    }

    fn put(&self, job: J, push: fn(&mut VecDeque<J>, J)) {
        let mut jobs = self.0.jobs.lock();
        let Some(queue) = &mut *jobs else {
            drop(jobs);
            // Its drop may run foreign code, which must not find the mutex locked.
            return drop(job);
        };
        push(queue, job);
        drop(jobs);
        self.0.news.notify_one();
    }
}

/// Its drop ends the runner, whether or not its task has begun. Only the end of the engine drops
/// it.
struct Worker<J>(Arc<JobQueue<J>>);

impl<J> Worker<J> {
    /// Takes the next jobs.
    fn take(&self) -> Vec<J> {
        let mut jobs = self.0.jobs.lock();
        let Some(queue) = &mut *jobs else {
            return Vec::new();
        };
        let taken = queue.drain(..queue.len().min(AT_ONCE)).collect();
        if !queue.is_empty() {
            // The rest has its turn after what these have woken.
            self.0.news.notify_one();
        } else if queue.capacity() > MANY {
            *queue = VecDeque::new();
        }
        taken
    }
}

impl<J> Drop for Worker<J> {
    fn drop(&mut self) {
        // The jobs that come later are dropped by those that submit them.
        let jobs = self.0.jobs.lock().take();
        jobs.into_iter()
            .flatten()
            .for_each(|job| contained(|| drop(job)));
    }
}

/// The room of a job in flight. Rooms are used again: the futures are too large for the allocator's
/// caches.
type Room<F> = Pin<Box<Option<F>>>;

/// A job in flight. Dropping it with the engine may wake its caller, whose waker may panic: the
/// other jobs are dropped all the same.
struct Running<F>(Option<Room<F>>);

impl<F: Future> Future for Running<F> {
    type Output = Option<Room<F>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(room) = &mut self.0 {
            if let Some(job) = room.as_mut().as_pin_mut() {
                ready!(job.poll(cx));
            }
            room.set(None);
        }
        Poll::Ready(self.0.take())
    }
}

impl<F> Drop for Running<F> {
    fn drop(&mut self) {
        contained(|| drop(self.0.take()));
    }
}

/// Runs jobs. Started with the runner; ends with the engine; no task awaits it.
async fn work<J: Job>(worker: Worker<J>) {
    let mut under_way = FuturesUnordered::new();
    let mut rooms = Vec::new();
    let mut begun = 0;
    let mut ended = 0;
    loop {
        let left = tokio::select! {
            biased;
            // By then the panic hook has reported a panic.
            Some(left) = under_way.next() => left,
            // No wake-up is lost: only this task waits, and a job meanwhile leaves a permit.
            () = worker.0.news.notified() => {
                let jobs = worker.take();
                begun += jobs.len();
                under_way.extend(jobs.into_iter().map(|job| {
                    let mut room: Room<_> = rooms.pop().unwrap_or_else(|| Box::pin(None));
                    room.set(Some(survive(job.run())));
                    Running(Some(room))
                }));
                // They begin now.
                match futures_util::poll!(under_way.next()) {
                    Poll::Ready(Some(left)) => left,
                    Poll::Ready(None) | Poll::Pending => None,
                }
            }
        };
        if let Some(room) = left {
            ended += 1;
            if rooms.len() < ROOMS {
                rooms.push(room);
            }
        }
        if begun >= AT_ONCE || ended >= ENDS {
            (begun, ended) = (0, 0);
            yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;
    use crate::tasks;

    const LONG: Duration = Duration::from_secs(10);

    /// Says its number when it begins, waits until it may continue, and says its number again. One
    /// without a wait panics.
    struct Errand {
        number: usize,
        says: Sender<usize>,
        waits: Option<oneshot::Receiver<()>>,
        _dropped: Arc<()>,
    }

    impl Job for Errand {
        async fn run(self) {
            let Self {
                number,
                says,
                waits,
                _dropped,
            } = self;
            says.send(number).expect("the test listens");
            waits
                .expect("this one panics")
                .await
                .expect("it may continue");
            says.send(number).expect("the test listens");
        }
    }

    struct Scene {
        engine: Engine,
        runner: JobRunner<Errand>,
        says: Sender<usize>,
        said: std::sync::mpsc::Receiver<usize>,
        alive: Arc<()>,
    }

    impl Scene {
        fn new() -> Self {
            let engine = Engine::start(1).expect("a thread");
            let (says, said) = channel();
            Self {
                runner: JobRunner::new(&engine),
                engine,
                says,
                said,
                alive: Arc::default(),
            }
        }

        /// Submits a job, and returns what lets it continue.
        fn submit(&self, number: usize) -> oneshot::Sender<()> {
            let (go_on, waits) = oneshot::channel();
            self.submit_this(number, Some(waits));
            go_on
        }

        fn submit_this(&self, number: usize, waits: Option<oneshot::Receiver<()>>) {
            self.runner.submit(Errand {
                number,
                says: self.says.clone(),
                waits,
                _dropped: Arc::clone(&self.alive),
            });
        }

        fn hear(&self) -> usize {
            self.said.recv_timeout(LONG).expect("a job says something")
        }
    }

    #[test]
    fn jobs_run_at_the_same_time_and_begin_in_order() {
        let scene = Scene::new();
        for _ in 0..3 {
            let going_on: Vec<_> = (0..5).map(|number| scene.submit(number)).collect();
            let begun: Vec<_> = (0..5).map(|_| scene.hear()).collect();
            assert_eq!(begun, [0, 1, 2, 3, 4], "they begin in order");
            for (number, go_on) in going_on.into_iter().enumerate().rev() {
                go_on.send(()).expect("it waits");
                assert_eq!(scene.hear(), number);
            }
        }
        scene.engine.stop();
    }

    #[test]
    fn a_job_that_panics_ends_no_other() {
        let scene = Scene::new();
        let go_on = scene.submit(0);
        scene.submit_this(1, None);
        assert_eq!([scene.hear(), scene.hear()], [0, 1]);
        go_on.send(()).expect("it waits");
        assert_eq!(scene.hear(), 0);
        scene.engine.stop();
    }

    /// A bug: as long as callers submitted jobs that end at once, the engine polled nothing else.
    #[test]
    fn jobs_that_end_at_once_leave_other_tasks_their_turn() {
        struct Endless {
            runner: Arc<JobRunner<Self>>,
            over: Arc<AtomicBool>,
        }
        impl Job for Endless {
            async fn run(self) {
                let Self { runner, over } = self;
                if !over.load(Ordering::Relaxed) {
                    Arc::clone(&runner).submit(Self { runner, over });
                }
            }
        }
        let engine = Engine::start(1).expect("a thread");
        let runner = Arc::new(JobRunner::new(&engine));
        let over = Arc::<AtomicBool>::default();
        runner.submit(Endless {
            runner: Arc::clone(&runner),
            over: Arc::clone(&over),
        });
        let (says, said) = channel();
        engine.spawn(async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            says.send(()).expect("the test listens");
        });
        let turn = said.recv_timeout(LONG);
        over.store(true, Ordering::Relaxed);
        engine.stop();
        assert_eq!(turn, Ok(()));
    }

    /// A bug: the 128th job in a row began without any of tokio's budget, so its first
    /// `select!` let the next one go first.
    #[test]
    fn each_job_begins_with_a_budget() {
        struct Quick {
            number: usize,
            says: Sender<usize>,
        }
        impl Job for Quick {
            async fn run(self) {
                tokio::select! {
                    biased;
                    () = async { self.says.send(self.number).expect("the test listens") } => {}
                }
            }
        }
        let engine = Engine::start(1).expect("a thread");
        let (runner, (says, said)) = (JobRunner::new(&engine), channel());
        engine.spawn(async move {
            (0..1_000).for_each(|number| {
                runner.submit(Quick {
                    number,
                    says: says.clone(),
                });
            });
        });
        let order: Vec<_> = said.iter().take(1_000).collect();
        engine.stop();
        assert_eq!(order, (0..1_000).collect::<Vec<_>>());
    }

    /// Otherwise a lock that is tried behind a release that its line was passed would be tried
    /// before it.
    #[test]
    fn what_was_asked_for_before_begins_first() {
        struct Quick(usize, Sender<usize>);
        impl Job for Quick {
            async fn run(self) {
                self.1.send(self.0).expect("the test listens");
            }
        }
        let engine = Engine::start(1).expect("a thread");
        let (runner, (says, said)) = (JobRunner::new(&engine), channel());
        // From a task of the engine, so all are there before the runner looks.
        engine.spawn(async move {
            [1, 2]
                .into_iter()
                .for_each(|number| runner.submit(Quick(number, says.clone())));
            runner.submit_first(Quick(0, says));
        });
        assert_eq!(said.iter().take(3).collect::<Vec<_>>(), [0, 1, 2]);
        engine.stop();
    }

    /// With very many jobs at a time, those that had an answer waited for all that had none yet.
    #[test]
    fn what_is_under_way_comes_before_what_is_new() {
        const UNDER_WAY: usize = usize::MAX;
        struct Endless {
            number: usize,
            says: Sender<usize>,
        }
        impl Job for Endless {
            async fn run(self) {
                let Self { number, says } = self;
                says.send(number).expect("the test listens");
                if number == 0 {
                    tasks::spawn(async move { says.send(UNDER_WAY).expect("the test listens") });
                }
                std::future::pending::<()>().await;
            }
        }
        let engine = Engine::start(1).expect("a thread");
        let (runner, (says, said)) = (JobRunner::new(&engine), channel());
        // From a task of the engine, so all are there before the runner looks.
        engine.spawn(async move {
            (0..3 * AT_ONCE).for_each(|number| {
                runner.submit(Endless {
                    number,
                    says: says.clone(),
                });
            });
        });
        let order: Vec<_> = said.iter().take(1 + 3 * AT_ONCE).collect();
        engine.stop();
        let expected: Vec<_> = (0..AT_ONCE)
            .chain([UNDER_WAY])
            .chain(AT_ONCE..3 * AT_ONCE)
            .collect();
        assert_eq!(order, expected);
    }

    #[test]
    fn no_job_outlives_the_engine() {
        let scene = Scene::new();
        let _goes_on = scene.submit(0);
        assert_eq!(scene.hear(), 0);
        scene.engine.stop();
        let until = std::time::Instant::now() + LONG;
        while Arc::strong_count(&scene.alive) > 1 && std::time::Instant::now() < until {
            std::thread::yield_now();
        }
        for number in 1..4 {
            let _goes_on = scene.submit(number);
            assert_eq!(Arc::strong_count(&scene.alive), 1, "it is dropped at once");
        }
        let nobody = Scene::new();
        nobody.engine.stop();
        while std::time::Instant::now() < until {
            let _goes_on = nobody.submit(0);
            if nobody.runner.0.jobs.lock().is_none() {
                break;
            }
        }
        assert!(nobody.runner.0.jobs.lock().is_none());
    }

    /// A waker of a caller may panic, and a job that is dropped with the engine wakes its caller.
    #[test]
    fn a_job_that_panics_when_dropped_keeps_no_other_alive() {
        struct Waits {
            begun: Sender<()>,
            alive: Option<Arc<()>>,
        }
        impl Drop for Waits {
            fn drop(&mut self) {
                assert!(self.alive.take().is_some(), "sick");
            }
        }
        impl Job for Waits {
            async fn run(self) {
                self.begun.send(()).expect("the test listens");
                std::future::pending::<()>().await;
                drop(self);
            }
        }
        let engine = Engine::start(1).expect("a thread");
        let (runner, (begun, begins), alive) = (JobRunner::new(&engine), channel(), Arc::new(()));
        for number in 0..9 {
            let alive = Some(Arc::clone(&alive)).filter(|_| number != 4);
            runner.submit(Waits {
                begun: begun.clone(),
                alive,
            });
            begins.recv_timeout(LONG).expect("it begins");
        }
        engine.stop();
        let until = std::time::Instant::now() + LONG;
        while Arc::strong_count(&alive) > 1 && std::time::Instant::now() < until {
            std::thread::yield_now();
        }
        assert_eq!(
            Arc::strong_count(&alive),
            1,
            "whoever waits for them waits forever"
        );
    }
}
