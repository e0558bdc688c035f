//! Tasks of the engine that stay: each runs one job after the other.
//!
//! A lock and its release are a job each. A task for each of them would be allocated by the caller's thread and freed
//! by the engine's, which makes the two wait for each other in the allocator, and both tasks are large.
//!
//! # Invariants
//! - Jobs begin in the order in which they are given: a lock that is tried behind a release finds it released.
//! - For each queued job a member is called, which has yet to look for one, or is being called by the thread that gave
//!   the job. So each job is run, or dropped with the engine, and its start depends on no other thread. A member that
//!   has finished takes the next job itself, so that a busy engine does not pile up members: those that are called for
//!   nothing rest.
//! - A member is in `resting` if and only if it is [`Rests`](Is::Rests).
//! - Jobs are dropped, and members are woken and spawned, after the mutex is released.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::task::coop::consume_budget;

use super::Engine;
use crate::foreign::{contained, survive};

/// More members than this do not rest: they end. One that rests takes as much memory as its largest job.
const MOST_RESTING: usize = 64;

/// What a crew does.
pub(crate) trait Job: Send + 'static {
    fn run(self) -> impl Future<Output = ()> + Send;
}

/// A crew for jobs of one kind.
pub(crate) struct Crew<J> {
    engine: Engine,
    queue: Arc<Queue<J>>,
}

struct Queue<J>(Mutex<State<J>>);

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
    /// It is about to be spawned or woken.
    Coming,
    /// It was spawned or woken, and has not looked yet.
    Called,
}

impl<J: Job> Crew<J> {
    pub(crate) fn new(engine: Engine) -> Self {
        let (jobs, members, resting, vacant) = (VecDeque::new(), Vec::new(), Vec::new(), Vec::new());
        let state = State { jobs, members, resting, vacant, called: 0, ended: false };
        Self { engine, queue: Arc::new(Queue(Mutex::new(state))) }
    }

    /// Runs a job on the engine. After the engine's end the job is dropped at once.
    pub(crate) fn give(&self, job: J) {
        let mut state = self.queue.state();
        if state.ended {
            drop(state);
            return drop(job);
        }
        state.jobs.push_back(job);
        let Some((number, waker)) = state.call() else { return };
        drop(state);
        match waker {
            Some(waker) => waker.wake(),
            None => {
                let member = Member { queue: Arc::clone(&self.queue), number, dismissed: false };
                self.engine.spawn(work(member));
            }
        }
        self.queue.state().has_called(number);
    }
}

impl<J> State<J> {
    /// Returns the member to be called, if there are more jobs than members that are called: it is woken, or spawned if
    /// it has no waker.
    fn call(&mut self) -> Option<(usize, Option<Waker>)> {
        if self.jobs.len() <= self.called {
            return None;
        }
        let resting = self.resting.pop();
        let number = resting.or_else(|| self.vacant.pop()).unwrap_or(self.members.len());
        if number == self.members.len() {
            self.members.push(Is::Busy);
        }
        match std::mem::replace(&mut self.members[number], Is::Coming) {
            Is::Rests(waker) => Some((number, Some(waker))),
            Is::Busy | Is::Coming | Is::Called => Some((number, None)),
        }
    }

    /// Counts a member that was called, unless it has looked already. Not before: while the thread that calls it stands
    /// still, others must not rely on it.
    fn has_called(&mut self, number: usize) {
        if matches!(self.members[number], Is::Coming) {
            self.members[number] = Is::Called;
            self.called += 1;
        }
    }

    /// Returns the next job for this member, or `None` if it is dismissed. It rests as long as there is no job.
    fn next(&mut self, number: usize, cx: &Context<'_>) -> Poll<Option<J>> {
        match std::mem::replace(&mut self.members[number], Is::Busy) {
            Is::Busy | Is::Coming => {}
            // It is polled for another reason: the late waker of an earlier job.
            Is::Rests(_) => self.resting.retain(|&other| other != number),
            Is::Called => self.called -= 1,
        }
        if let Some(job) = self.jobs.pop_front() {
            return Poll::Ready(Some(job));
        }
        if self.resting.len() >= MOST_RESTING {
            self.vacant.push(number);
            return Poll::Ready(None);
        }
        self.members[number] = Is::Rests(cx.waker().clone());
        self.resting.push(number);
        Poll::Pending
    }
}

impl<J> Queue<J> {
    fn state(&self) -> MutexGuard<'_, State<J>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A member of a crew. Unless it is dismissed, only the end of the engine drops it.
struct Member<J> {
    queue: Arc<Queue<J>>,
    number: usize,
    dismissed: bool,
}

impl<J> Drop for Member<J> {
    fn drop(&mut self) {
        if self.dismissed {
            return;
        }
        let mut state = self.queue.state();
        state.ended = true;
        // Its waker keeps the task's memory, and the task's memory the queue.
        let waker = std::mem::replace(&mut state.members[self.number], Is::Busy);
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        drop(waker);
        jobs.into_iter().for_each(|job| contained(|| drop(job)));
    }
}

/// Runs jobs. Started with a job that no member is there for; ends when enough others rest, or with the engine; nobody
/// awaits it. A job that panics ends, and nothing else does.
async fn work<J: Job>(mut member: Member<J>) {
    loop {
        // Connections, timers and other tasks have their turn, even if each job ends at once and there always is
        // another one.
        consume_budget().await;
        let Some(job) = poll_fn(|cx| member.queue.state().next(member.number, cx)).await else { break };
        // By then the panic hook has reported it.
        let _: Result<(), String> = survive(pin!(job.run())).await;
    }
    member.dismissed = true;
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
            let engine = Engine::start(Duration::ZERO).expect("a thread");
            let (says, said) = channel();
            Self { crew: Crew::new(engine.clone()), engine, says, said, alive: Arc::default() }
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

        /// Returns the numbers of all members and of those that rest, once so many rest.
        fn census(&self, resting: usize) -> (usize, usize) {
            let until = std::time::Instant::now() + LONG;
            loop {
                let state = self.crew.queue.state();
                let census = (state.members.len() - state.vacant.len(), state.resting.len());
                if census.1 == resting || std::time::Instant::now() > until {
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

    fn unattended() -> Crew<Nothing> {
        Crew::new(Engine::start(Duration::ZERO).expect("a thread"))
    }

    /// Queues a job, and returns the number of the member that is called for it.
    fn queue(state: &mut State<Nothing>) -> Option<usize> {
        state.jobs.push_back(Nothing);
        let (number, _) = state.call()?;
        state.has_called(number);
        Some(number)
    }

    /// A late waker of a job that has ended polls the member while it rests.
    #[test]
    fn a_member_that_is_polled_for_another_reason_takes_the_job_and_rests_only_once() {
        let crew = unattended();
        let (mut state, cx) = (crew.queue.state(), Context::from_waker(Waker::noop()));
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
        drop(state);
        crew.engine.stop();
    }

    /// A bug: while the engine was too busy to poll the members that were spawned, each job spawned another one, though
    /// the busy members took the jobs.
    #[test]
    fn no_more_members_are_called_than_there_are_jobs() {
        let crew = unattended();
        let (mut state, cx) = (crew.queue.state(), Context::from_waker(Waker::noop()));
        let busy = queue(&mut state).expect("one is hired");
        for _ in 0..1_000 {
            assert!(matches!(state.next(busy, &cx), Poll::Ready(Some(Nothing))), "it takes the jobs of the others");
            queue(&mut state);
        }
        assert_eq!((state.members.len(), state.called), (2, 1));
        let third = queue(&mut state).expect("two jobs need two members");
        assert!(matches!(state.next(third, &cx), Poll::Ready(Some(Nothing))));
        drop(state);
        crew.engine.stop();
    }

    /// A bug: a job waited for a member that another thread was about to wake, but that thread stood still.
    #[test]
    fn no_job_relies_on_a_member_that_another_thread_is_about_to_call() {
        let crew = unattended();
        let (mut state, cx) = (crew.queue.state(), Context::from_waker(Waker::noop()));
        state.jobs.push_back(Nothing);
        let (late, _) = state.call().expect("one is hired");
        let second = queue(&mut state).expect("another one is called for the second job");
        assert!(matches!(state.next(second, &cx), Poll::Ready(Some(Nothing))), "it takes the first job");
        let third = queue(&mut state).expect("and for the third");
        assert!(matches!(state.next(third, &cx), Poll::Ready(Some(Nothing))));
        state.has_called(late);
        assert_eq!((state.jobs.len(), state.called), (1, 1));
        assert!(matches!(state.next(late, &cx), Poll::Ready(Some(Nothing))));
        state.has_called(late);
        assert_eq!((state.jobs.len(), state.called), (0, 0), "it has looked before it is counted");
        drop(state);
        crew.engine.stop();
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
        let engine = Engine::start(Duration::ZERO).expect("a thread");
        let (crew, over) = (Arc::new(Crew::new(engine.clone())), Arc::<AtomicBool>::default());
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
            if nobody.crew.queue.state().ended {
                break;
            }
        }
        assert!(nobody.crew.queue.state().jobs.is_empty());
    }
}
