//! Tasks of the engine that stay: each runs one job after the other.
//!
//! A lock and its release are a job each. A task for each of them would be allocated by the caller's thread and freed
//! by the engine's, which makes the two wait for each other in the allocator, and both tasks are large.
//!
//! One more task, the foreman, calls members for the jobs that callers give. A caller wakes nobody else: to wake a task
//! of the engine takes a system call, and a foreman that is awake already needs none. It calls a few members and then
//! lets other tasks have their turn, since what is under way comes before what is new: its callers may sleep.
//!
//! # Invariants
//! - Jobs begin in the order in which they are given: a lock that is tried behind a release finds it released.
//! - For each queued job the foreman has called a member, which has yet to look for one, or is about to. So each job is
//!   run, or dropped with the engine. A member that has finished takes the next job itself, so that a busy engine does
//!   not pile up members: those that are called for nothing rest.
//! - A member is in `resting` if and only if it is [`Rests`](Is::Rests).
//! - Jobs are dropped, and members are woken and spawned, after the mutex is released.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tokio::sync::Notify;
use tokio::task::coop::{consume_budget, has_budget_remaining};
use tokio::task::yield_now;

use super::Engine;
use crate::foreign::{contained, survive};
use crate::sync::{Arc, Mutex};
use crate::tasks;

/// More members than this do not rest: they end. One that rests takes as much memory as its largest job.
const MOST_RESTING: usize = 64;

/// The room for jobs that stays after a peak.
const MANY: usize = 1_024;

/// How many members the foreman calls before other tasks have their turn.
const AT_ONCE: usize = 8;

/// What a crew does.
pub(crate) trait Job: Send + 'static {
    fn run(self) -> impl Future<Output = ()> + Send;
}

/// A crew for jobs of one kind.
pub(crate) struct Crew<J>(Arc<Queue<J>>);

struct Queue<J> {
    state: Mutex<State<J>>,
    /// Tells the foreman of jobs.
    news: Notify,
}

struct State<J> {
    jobs: VecDeque<J>,
    /// By number.
    members: Vec<Is>,
    /// The numbers of those that rest; the last one is called first.
    resting: Vec<usize>,
    /// The numbers of members that have ended.
    vacant: Vec<usize>,
    /// How many members are called.
    called: usize,
    /// Whether the engine has ended.
    ended: bool,
}

/// What a member does.
enum Is {
    /// It runs a job, or has ended.
    Busy,
    Rests(Waker),
    /// The foreman wakes or spawns it, and it has not looked yet.
    Called,
}

impl<J: Job> Crew<J> {
    pub(crate) fn new(engine: &Engine) -> Self {
        let (jobs, members, resting, vacant) = (VecDeque::new(), Vec::new(), Vec::new(), Vec::new());
        let state = Mutex::new(State { jobs, members, resting, vacant, called: 0, ended: false });
        let queue = Arc::new(Queue { state, news: Notify::new() });
        engine.spawn(lead(Foreman(Arc::clone(&queue))));
        Self(queue)
    }

    /// Runs a job on the engine. After the engine's end the job is dropped at once.
    pub(crate) fn give(&self, job: J) {
        let mut state = self.0.state.lock();
        if state.ended {
            drop(state);
            return drop(job);
        }
        state.jobs.push_back(job);
        drop(state);
        self.0.news.notify_one();
    }
}

impl<J> State<J> {
    /// Calls a member, if there are more jobs than members that are called. It has to be woken, or spawned if it has no
    /// waker.
    fn call(&mut self) -> Option<(usize, Option<Waker>)> {
        if self.jobs.len() <= self.called {
            return None;
        }
        let resting = self.resting.pop();
        let number = resting.or_else(|| self.vacant.pop()).unwrap_or(self.members.len());
        if number == self.members.len() {
            self.members.push(Is::Busy);
        }
        self.called += 1;
        match std::mem::replace(&mut self.members[number], Is::Called) {
            Is::Rests(waker) => Some((number, Some(waker))),
            Is::Busy | Is::Called => Some((number, None)),
        }
    }

    /// Returns the next job for this member, or `None` if it is dismissed. It rests as long as there is no job.
    fn next(&mut self, number: usize, cx: &Context<'_>) -> Poll<Option<J>> {
        match std::mem::replace(&mut self.members[number], Is::Busy) {
            Is::Busy => {}
            // It is polled for another reason: the late waker of an earlier job.
            Is::Rests(_) => self.resting.retain(|&other| other != number),
            Is::Called => self.called -= 1,
        }
        if let Some(job) = self.jobs.pop_front() {
            if self.jobs.is_empty() && self.jobs.capacity() > MANY {
                self.jobs = VecDeque::new();
            }
            return Poll::Ready(Some(job));
        }
        if self.ended || self.resting.len() >= MOST_RESTING {
            self.vacant.push(number);
            return Poll::Ready(None);
        }
        self.members[number] = Is::Rests(cx.waker().clone());
        self.resting.push(number);
        Poll::Pending
    }
}

/// Its drop ends the crew, whether or not its task has begun. Only the end of the engine drops it.
struct Foreman<J>(Arc<Queue<J>>);

impl<J> Drop for Foreman<J> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.ended = true;
        state.resting.clear();
        // A waker keeps its task's memory, and that keeps the queue.
        let were: Vec<_> = state.members.iter_mut().map(|member| std::mem::replace(member, Is::Busy)).collect();
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        drop(were);
        jobs.into_iter().for_each(|job| contained(|| drop(job)));
    }
}

/// Calls members for jobs. Started with the crew; ends with the engine; nobody awaits it.
async fn lead<J: Job>(foreman: Foreman<J>) {
    let queue = &foreman.0;
    let call = || queue.state.lock().call();
    let mut calls = 0;
    loop {
        queue.news.notified().await;
        while let Some((number, waker)) = call() {
            match waker {
                Some(waker) => waker.wake(),
                None => _ = tasks::spawn(work(Arc::clone(queue), number)),
            }
            calls += 1;
            if calls % AT_ONCE == 0 {
                yield_now().await;
            }
        }
    }
}

/// Runs jobs. Started for a job that no member is there for; ends when enough others rest, or with the engine; nobody
/// awaits it. A job that panics ends, and nothing else does.
async fn work<J: Job>(queue: Arc<Queue<J>>, number: usize) {
    loop {
        // Connections, timers and other tasks have their turn, even if each job ends at once and there always is
        // another one.
        consume_budget().await;
        // A job that begins without any budget may wait before it has sent something, and the next one overtakes it.
        if !has_budget_remaining() {
            yield_now().await;
        }
        let Some(job) = poll_fn(|cx| queue.state.lock().next(number, cx)).await else { break };
        // By then the panic hook has reported it.
        let _: Result<(), String> = survive(pin!(job.run())).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    /// Says its number when it begins, waits until it may go on, and says its number again. One without a wait panics.
    struct Errand {
        number: usize,
        says: Sender<usize>,
        waits: Option<oneshot::Receiver<()>>,
        _dropped: Arc<()>,
    }

    impl Job for Errand {
        async fn run(self) {
            let Self { number, says, waits, _dropped } = self;
            says.send(number).expect("the test listens");
            waits.expect("this one panics").await.expect("it may go on");
            says.send(number).expect("the test listens");
        }
    }

    struct Scene {
        engine: Engine,
        crew: Crew<Errand>,
        says: Sender<usize>,
        said: std::sync::mpsc::Receiver<usize>,
        alive: Arc<()>,
    }

    impl Scene {
        fn new() -> Self {
            let engine = Engine::start(Duration::ZERO, 1).expect("a thread");
            let (says, said) = channel();
            Self { crew: Crew::new(&engine), engine, says, said, alive: Arc::default() }
        }

        /// Gives a job, and returns what lets it go on.
        fn give(&self, number: usize) -> oneshot::Sender<()> {
            let (go_on, waits) = oneshot::channel();
            self.give_this(number, Some(waits));
            go_on
        }

        fn give_this(&self, number: usize, waits: Option<oneshot::Receiver<()>>) {
            self.crew.give(Errand { number, says: self.says.clone(), waits, _dropped: Arc::clone(&self.alive) });
        }

        fn hear(&self) -> usize {
            self.said.recv_timeout(LONG).expect("a job says something")
        }

        /// Returns the numbers of all members and of those that rest, once so many rest and no other is about to end.
        fn census(&self, resting: usize) -> (usize, usize) {
            let until = std::time::Instant::now() + LONG;
            loop {
                let state = self.crew.0.state.lock();
                let census = (state.members.len() - state.vacant.len(), state.resting.len());
                let is_calm = census.1 == resting && (resting < MOST_RESTING || census.0 == resting);
                if is_calm || std::time::Instant::now() > until {
                    return census;
                }
                drop(state);
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn jobs_run_at_the_same_time_and_the_next_ones_need_no_new_task() {
        let scene = Scene::new();
        for _ in 0..3 {
            let going_on: Vec<_> = (0..5).map(|number| scene.give(number)).collect();
            let begun: Vec<_> = (0..5).map(|_| scene.hear()).collect();
            assert_eq!(begun, [0, 1, 2, 3, 4], "they begin in order");
            for (number, go_on) in going_on.into_iter().enumerate().rev() {
                go_on.send(()).expect("it waits");
                assert_eq!(scene.hear(), number);
            }
            assert_eq!(scene.census(5), (5, 5));
        }
        scene.engine.stop();
    }

    #[test]
    fn more_members_than_may_rest_end() {
        let scene = Scene::new();
        let going_on: Vec<_> = (0..3 * MOST_RESTING).map(|number| scene.give(number)).collect();
        (0..3 * MOST_RESTING).for_each(|_| _ = scene.hear());
        going_on.into_iter().for_each(|go_on| go_on.send(()).expect("it waits"));
        (0..3 * MOST_RESTING).for_each(|_| _ = scene.hear());
        assert_eq!(scene.census(MOST_RESTING), (MOST_RESTING, MOST_RESTING));
        scene.engine.stop();
    }

    #[test]
    fn a_job_that_panics_ends_no_other() {
        let scene = Scene::new();
        let go_on = scene.give(0);
        scene.give_this(1, None);
        assert_eq!([scene.hear(), scene.hear()], [0, 1]);
        assert_eq!(scene.census(1), (2, 1), "the member of the one that panicked rests");
        go_on.send(()).expect("it waits");
        assert_eq!(scene.hear(), 0);
        assert_eq!(scene.census(2), (2, 2));
        scene.engine.stop();
    }

    struct Nothing;

    impl Job for Nothing {
        async fn run(self) {}
    }

    /// A crew without a foreman.
    fn unattended() -> State<Nothing> {
        let (jobs, members, resting, vacant) = Default::default();
        State { jobs, members, resting, vacant, called: 0, ended: false }
    }

    /// Queues a job, and returns the number of the member that is called for it.
    fn queue(state: &mut State<Nothing>) -> Option<usize> {
        state.jobs.push_back(Nothing);
        state.call().map(|(number, _)| number)
    }

    /// A late waker of a job that has ended polls the member while it rests.
    #[test]
    fn a_member_that_is_polled_for_another_reason_takes_the_job_and_rests_only_once() {
        let (mut state, cx) = (unattended(), Context::from_waker(Waker::noop()));
        let [first, second] = [(); 2].map(|()| queue(&mut state).expect("one is hired"));
        state.jobs.clear();
        for number in [first, first, second] {
            assert!(state.next(number, &cx).is_pending());
        }
        assert_eq!((state.resting.as_slice(), state.called), ([first, second].as_slice(), 0));
        assert_eq!(queue(&mut state), Some(second));
        assert!(matches!(state.next(first, &cx), Poll::Ready(Some(Nothing))), "the first is polled before it");
        assert!(state.next(second, &cx).is_pending());
        assert_eq!((state.resting.as_slice(), state.called), ([second].as_slice(), 0));
    }

    /// A bug: while the engine was too busy to poll the members that were spawned, each job spawned another one, though
    /// the busy members took the jobs.
    #[test]
    fn no_more_members_are_called_than_there_are_jobs() {
        let (mut state, cx) = (unattended(), Context::from_waker(Waker::noop()));
        let busy = queue(&mut state).expect("one is hired");
        for _ in 0..1_000 {
            assert!(matches!(state.next(busy, &cx), Poll::Ready(Some(Nothing))), "it takes the jobs of the others");
            queue(&mut state);
        }
        assert_eq!((state.members.len(), state.called), (2, 1));
        let third = queue(&mut state).expect("two jobs need two members");
        assert!(matches!(state.next(third, &cx), Poll::Ready(Some(Nothing))));
    }

    /// A bug: as long as callers gave jobs that end at once, the engine polled nothing else.
    #[test]
    fn jobs_that_end_at_once_leave_other_tasks_their_turn() {
        struct Endless {
            crew: Arc<Crew<Self>>,
            over: Arc<AtomicBool>,
        }
        impl Job for Endless {
            async fn run(self) {
                let Self { crew, over } = self;
                if !over.load(Ordering::Relaxed) {
                    Arc::clone(&crew).give(Self { crew, over });
                }
            }
        }
        let engine = Engine::start(Duration::ZERO, 1).expect("a thread");
        let (crew, over) = (Arc::new(Crew::new(&engine)), Arc::<AtomicBool>::default());
        crew.give(Endless { crew: Arc::clone(&crew), over: Arc::clone(&over) });
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

    /// A bug: the 128th job of a member that never had to wait began without any of tokio's budget, so its first
    /// `select!` let the next member go first.
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
        let engine = Engine::start(Duration::ZERO, 1).expect("a thread");
        let (crew, (says, said)) = (Crew::new(&engine), channel());
        engine.spawn(async move {
            (0..1_000).for_each(|number| crew.give(Quick { number, says: says.clone() }));
        });
        let order: Vec<_> = said.iter().take(1_000).collect();
        engine.stop();
        assert_eq!(order, (0..1_000).collect::<Vec<_>>());
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
        let engine = Engine::start(Duration::ZERO, 1).expect("a thread");
        let (crew, (says, said)) = (Crew::new(&engine), channel());
        // From a task of the engine, so all are there before the foreman looks.
        engine.spawn(async move {
            (0..3 * AT_ONCE).for_each(|number| crew.give(Endless { number, says: says.clone() }));
        });
        let order: Vec<_> = said.iter().take(1 + 3 * AT_ONCE).collect();
        engine.stop();
        let expected: Vec<_> = (0..AT_ONCE).chain([UNDER_WAY]).chain(AT_ONCE..3 * AT_ONCE).collect();
        assert_eq!(order, expected);
    }

    #[test]
    fn no_job_outlives_the_engine() {
        let scene = Scene::new();
        let _goes_on = scene.give(0);
        assert_eq!(scene.hear(), 0);
        scene.engine.stop();
        let until = std::time::Instant::now() + LONG;
        while Arc::strong_count(&scene.alive) > 1 && std::time::Instant::now() < until {
            std::thread::yield_now();
        }
        for number in 1..4 {
            let _goes_on = scene.give(number);
            assert_eq!(Arc::strong_count(&scene.alive), 1, "it is dropped at once");
        }
        let nobody = Scene::new();
        nobody.engine.stop();
        while std::time::Instant::now() < until {
            let _goes_on = nobody.give(0);
            if nobody.crew.0.state.lock().ended {
                break;
            }
        }
        assert!(nobody.crew.0.state.lock().jobs.is_empty());
    }
}
