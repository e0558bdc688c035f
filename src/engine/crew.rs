//! Tasks of the engine that stay: each runs one job after the other.
//!
//! A lock and its release are a job each. A task for each of them would be allocated by the caller's thread and freed
//! by the engine's, which makes the two wait for each other in the allocator, and both tasks are large.
//!
//! # Invariants
//! - Jobs begin in the order in which they are given: a lock that is tried behind a release finds it released.
//! - There are at most as many queued jobs as members that are called, which have yet to look for one. So each job is
//!   run, or dropped with the engine. A member that has finished takes the next job itself, so that a busy engine does
//!   not pile up members: those that are called for nothing rest.
//! - A member is in `resting` if and only if it is [`Rests`](Is::Rests).
//! - Jobs are dropped, and members are woken and spawned, after the mutex is released.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

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
    /// It is spawned or woken, and has not looked yet.
    Called,
}

/// How a member is called.
enum Call {
    Wake(Waker),
    Spawn(usize),
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
        let call = state.call();
        drop(state);
        match call {
            Some(Call::Wake(waker)) => waker.wake(),
            Some(Call::Spawn(number)) => {
                let member = Member { queue: Arc::clone(&self.queue), number, dismissed: false };
                self.engine.spawn(work(member));
            }
            None => {}
        }
    }
}

impl<J> State<J> {
    /// Calls a member, if there are more jobs than members that are called.
    fn call(&mut self) -> Option<Call> {
        if self.jobs.len() <= self.called {
            return None;
        }
        self.called += 1;
        let resting = self.resting.pop();
        let number = resting.or_else(|| self.vacant.pop()).unwrap_or(self.members.len());
        if number == self.members.len() {
            self.members.push(Is::Busy);
        }
        match std::mem::replace(&mut self.members[number], Is::Called) {
            Is::Rests(waker) => Some(Call::Wake(waker)),
            Is::Busy | Is::Called => Some(Call::Spawn(number)),
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
        let left = (std::mem::take(&mut state.jobs), std::mem::replace(&mut state.members[self.number], Is::Busy));
        drop(state);
        contained(|| drop(left));
    }
}

/// Runs jobs. Started with a job that no member is there for; ends when enough others rest, or with the engine; nobody
/// awaits it. A job that panics ends, and nothing else does.
async fn work<J: Job>(mut member: Member<J>) {
    while let Some(job) = poll_fn(|cx| member.queue.state().next(member.number, cx)).await {
        // By then the panic hook has reported it.
        let _: Result<(), String> = survive(pin!(job.run())).await;
    }
    member.dismissed = true;
}

#[cfg(test)]
mod tests {
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
        let called = |state: &State<Nothing>| -> Vec<usize> {
            (0..state.members.len()).filter(|&number| matches!(state.members[number], Is::Called)).collect()
        };
        let before = called(state);
        state.call().map(|_| called(state).into_iter().find(|number| !before.contains(number)).expect("a member"))
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
