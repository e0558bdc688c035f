//! Wakers that panic, or that run their task at once: the executor of a program is foreign code
//! too.

use std::cell::Cell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use lockhound::{Lock, Locker, Owner};
use tokio::time::timeout;

use crate::common::polls::run_inline;
use crate::common::{Server, builder, eventually, key, ms};
use crate::sick::{SICK, expect_panics};

/// A waiter without a message polls after a second; a grant that its caller does not take is taken
/// back after a second.
const LEASE: Duration = Duration::from_secs(6);

/// Panics when it is woken.
struct WokenSick(AtomicUsize);

impl Wake for WokenSick {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        panic!("{SICK} being woken");
    }
}

/// Panics when it is dropped.
struct DroppedSick(Arc<AtomicBool>);

impl Wake for DroppedSick {
    fn wake(self: Arc<Self>) {}
}

impl Drop for DroppedSick {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        panic!("{SICK} being dropped");
    }
}

/// A waker that may panic when it is cloned. `std::task::Wake` makes none: its wakers are counted
/// references.
#[allow(
    unsafe_code,
    reason = "the functions of a waker cannot be named without"
)]
mod cloned {
    use std::mem::ManuallyDrop;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{RawWaker, RawWakerVTable, Waker};

    use crate::sick::SICK;

    /// How many clones have panicked.
    pub(super) static PANICKED: AtomicUsize = AtomicUsize::new(0);

    /// Counts what is done to its wakers.
    pub(super) struct Sick {
        woken: AtomicUsize,
        cloned: AtomicUsize,
        /// The number of the clone that panics.
        poison: usize,
    }

    impl Sick {
        pub(super) fn of_clone(number: usize) -> Arc<Self> {
            Arc::new(Self {
                woken: AtomicUsize::new(0),
                cloned: AtomicUsize::new(0),
                poison: number,
            })
        }

        pub(super) fn woken(&self) -> usize {
            self.woken.load(Ordering::Relaxed)
        }

        /// Returns a waker that is equal to no other.
        pub(super) fn waker(self: &Arc<Self>) -> Waker {
            let data = Arc::into_raw(Arc::new(Data(Arc::clone(self))));
            // SAFETY: each function of the table has data that is an `Arc<Data>`; `clone` adds a
            // reference, `wake` and `drop` take one back, and all of it may be sent to other
            // threads.
            unsafe { Waker::from_raw(RawWaker::new(data.cast(), &TABLE)) }
        }
    }

    /// The data that a waker shares with its clones only.
    struct Data(Arc<Sick>);

    static TABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake_by_ref, release);

    fn borrow(data: *const ()) -> ManuallyDrop<Arc<Data>> {
        // SAFETY: see `Sick::waker`. The reference is the waker's, which keeps it.
        ManuallyDrop::new(unsafe { Arc::from_raw(data.cast()) })
    }

    fn clone(data: *const ()) -> RawWaker {
        let data = borrow(data);
        let Data(sick) = &**data;
        if sick.cloned.fetch_add(1, Ordering::Relaxed) == sick.poison {
            PANICKED.fetch_add(1, Ordering::Relaxed);
            panic!("{SICK} being cloned");
        }
        RawWaker::new(Arc::into_raw(Arc::clone(&data)).cast(), &TABLE)
    }

    fn wake(data: *const ()) {
        wake_by_ref(data);
        release(data);
    }

    fn wake_by_ref(data: *const ()) {
        borrow(data).0.woken.fetch_add(1, Ordering::Relaxed);
    }

    fn release(data: *const ()) {
        drop(ManuallyDrop::into_inner(borrow(data)));
    }
}

fn poll<T>(future: Pin<&mut impl Future<Output = T>>, waker: &Waker) -> Poll<T> {
    future.poll(&mut Context::from_waker(waker))
}

/// Polls a future with a waker that panics when it is woken, and then normally. Returns its value.
async fn sickly<T>(what: &str, future: impl Future<Output = T>) -> T {
    let (mut future, sick) = (pin!(future), Arc::new(WokenSick(AtomicUsize::new(0))));
    let waker = Waker::from(Arc::clone(&sick));
    for woken in 1.. {
        if let Poll::Ready(value) = poll(future.as_mut(), &waker) {
            return value;
        }
        eventually(ms(10_000), what, || sick.0.load(Ordering::Relaxed) >= woken).await;
    }
    unreachable!("it is woken for ever")
}

async fn locker(server: &Server) -> Locker {
    expect_panics();
    builder(&server.url(), LEASE).connect().await.unwrap()
}

async fn is_left_sound(server: &Server, locks: &Locker, names: &[String]) {
    let idle = || {
        let stats = locks.stats();
        (stats.holds, stats.waiters, stats.pending) == (0, 0, 0)
    };
    eventually(ms(4_000), "nothing is held, awaited or under way", idle).await;
    assert!(!names.iter().any(|name| server.exists(name)));
    let next = locks.get(key()).owned_by(Owner::new());
    timeout(ms(5_000), next.lock())
        .await
        .expect("the next is served")
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_of_a_task_whose_waker_panics_has_its_answer() {
    let server = Server::start();
    let locks = sickly("connect", locker(&server)).await;
    let (one, other) = (key(), key());
    let lock = locks.get(&one).owned_by(Owner::new());
    let all = locks.multi([&one[..], &other[..]]).owned_by(Owner::new());
    for _ in 0..3 {
        sickly(
            "unlock",
            sickly("lock", lock.lock()).await.unwrap().unlock(),
        )
        .await
        .unwrap();
        let guard = sickly("try_lock", lock.try_lock())
            .await
            .unwrap()
            .expect("it is free");
        sickly(
            "unlock of a nested guard",
            sickly("re-entry", lock.lock()).await.unwrap().unlock(),
        )
        .await
        .unwrap();
        assert!(sickly("holder", lock.holder()).await.unwrap().is_some());
        assert!(
            sickly("the end of its time", all.try_lock_for(ms(50)))
                .await
                .unwrap()
                .is_none()
        );
        let foreign = locks.get(&one).owned_by(Owner::new());
        assert!(
            sickly("the end of its time", foreign.try_lock_for(ms(50)))
                .await
                .unwrap()
                .is_none()
        );
        assert!(sickly("force_unlock", lock.force_unlock()).await.unwrap());
        sickly("the loss", guard.lost().cancelled_owned()).await;
        drop(guard);
        sickly(
            "unlock of several",
            sickly("several", all.lock()).await.unwrap().unlock(),
        )
        .await
        .unwrap();
        assert_eq!(sickly("run", lock.run(|_| async { 7 })).await.unwrap(), 7);
    }
    is_left_sound(&server, &locks, &[one, other]).await;
    sickly("close", locks.close()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_waker_panics_keeps_nobody_behind_it_waiting() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let held = locks.get(&key).owned_by(Owner::new()).lock().await.unwrap();
    let (sick, woken) = (
        Arc::new(WokenSick(AtomicUsize::new(0))),
        |sick: &WokenSick| sick.0.load(Ordering::Relaxed) > 0,
    );
    let waker = Waker::from(Arc::clone(&sick));
    let (first, second) = (
        locks.get(&key).owned_by(Owner::new()),
        locks.get(&key).owned_by(Owner::new()),
    );
    let mut first = Box::pin(async move { first.lock().await });
    assert!(poll(first.as_mut(), &waker).is_pending());
    let second = tokio::spawn(async move { second.lock().await.unwrap().unlock().await });
    eventually(ms(1_000), "both stand in line", || {
        locks.stats().waiters == 2
    })
    .await;
    held.unlock().await.unwrap();
    eventually(ms(5_000), "the first is woken", || woken(&sick)).await;
    // Its executor has lost the task: the grant is taken back.
    timeout(ms(5_000), second)
        .await
        .expect("the second is served")
        .unwrap()
        .unwrap();
    drop(first);
    is_left_sound(&server, &locks, &[key]).await;
    locks.close().await;
}

/// A panic of one waiter's waker must not keep the waiters of other lost locks from being woken.
#[tokio::test(flavor = "multi_thread")]
async fn a_waker_that_panics_at_a_loss_hides_no_other_loss() {
    let server = Server::start();
    let locks = locker(&server).await;
    let mut tokens = Vec::new();
    for _ in 0..8 {
        let guard = locks
            .get(key())
            .owned_by(Owner::new())
            .lock()
            .await
            .unwrap();
        tokens.push((
            guard.lost(),
            Box::pin(guard.lost().cancelled_owned()),
            guard,
        ));
    }
    let sick = Arc::new(WokenSick(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&sick));
    for (_, waiting, _) in tokens.iter_mut().step_by(2) {
        assert!(poll(waiting.as_mut(), &waker).is_pending());
    }
    timeout(ms(8_000), async {
        let closing = tokio::spawn({
            let locks = locks.clone();
            async move { locks.close().await }
        });
        for (lost, _, guard) in tokens {
            lost.cancelled().await;
            assert!(guard.is_lost());
        }
        closing.await.unwrap();
    })
    .await
    .expect("every token fires, and closing ends");
    assert_eq!(sick.0.load(Ordering::Relaxed), 4);
}

/// A waker that a future has passed on is dropped by the thread that answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_waker_that_panics_when_it_is_dropped_takes_nothing_with_it() {
    let (server, waited_for) = (Server::start(), key());
    let locks = locker(&server).await;
    let mut names = vec![waited_for.clone()];
    let held = locks
        .get(&waited_for)
        .owned_by(Owner::new())
        .lock()
        .await
        .unwrap();
    for unwinds in [false, true] {
        // The call is given up while the server is asked, and while another owner holds the lock.
        for name in [key(), waited_for.clone()] {
            names.push(name.clone());
            let dropped = Arc::new(AtomicBool::new(false));
            let (lock, sick) = (
                locks.get(name).owned_by(Owner::new()),
                DroppedSick(Arc::clone(&dropped)),
            );
            // No answer comes before the call is given up, on a busy machine either.
            server.stop();
            let given_up = tokio::spawn(async move {
                let waker = Waker::from(Arc::new(sick));
                let mut locking = Box::pin(lock.lock());
                assert!(poll(locking.as_mut(), &waker).is_pending());
                // From here on the future has the last reference.
                drop(waker);
                assert!(!unwinds, "{SICK} life");
                drop(locking);
            });
            // The task of an executor that panics may end by a panic; the process goes on.
            drop(timeout(ms(5_000), given_up).await.expect("it ends"));
            server.go_on();
            eventually(ms(5_000), "its waker is dropped", || {
                dropped.load(Ordering::Relaxed)
            })
            .await;
        }
    }
    // The call is given up after the answer, when the answering task has ended.
    let (name, dropped) = (key(), Arc::new(AtomicBool::new(false)));
    let trying = locks.get(&name).owned_by(Owner::new());
    let waker = Waker::from(Arc::new(DroppedSick(Arc::clone(&dropped))));
    let mut trying = Box::pin(async move { trying.try_lock().await });
    server.stop();
    assert!(poll(trying.as_mut(), &waker).is_pending());
    drop(waker);
    drop(trying);
    server.go_on();
    eventually(ms(5_000), "its waker is dropped", || {
        dropped.load(Ordering::Relaxed)
    })
    .await;
    names.push(name);
    held.unlock().await.unwrap();
    is_left_sound(&server, &locks, &names).await;
    locks.close().await;
}

/// Polls a future, each time with another waker, without being woken at first. Returns its value,
/// unless a clone of a waker panics: then the future is dropped, as executors do.
async fn cloned_sickly<T>(
    what: &str,
    sick: &Arc<cloned::Sick>,
    future: impl Future<Output = T>,
) -> Option<T> {
    let mut future = Box::pin(future);
    for polls in 0.. {
        let (waker, woken) = (sick.waker(), sick.woken());
        let polled = catch_unwind(AssertUnwindSafe(|| poll(future.as_mut(), &waker)));
        match polled {
            Err(_) => return None,
            Ok(Poll::Ready(value)) => return Some(value),
            Ok(Poll::Pending) if polls < 3 => {}
            Ok(Poll::Pending) => _ = eventually(ms(10_000), what, || sick.woken() > woken).await,
        }
    }
    unreachable!("it is woken for ever")
}

/// Makes a call again and again: the first clone of a waker panics, then the second, and so on,
/// until none does.
async fn at_each_clone<T, F: Future<Output = T>>(
    what: &str,
    mut call: impl AsyncFnMut() -> F,
) -> T {
    for number in 0..100 {
        let sick = cloned::Sick::of_clone(number);
        if let Some(value) = cloned_sickly(what, &sick, call().await).await {
            return value;
        }
    }
    panic!("{what}: it clones its waker for ever");
}

#[tokio::test(flavor = "multi_thread")]
#[allow(
    clippy::async_yields_async,
    reason = "what is prepared has a waker that is well, and what follows has not"
)]
async fn a_waker_that_panics_when_it_is_cloned_leaves_nothing_behind() {
    let server = Server::start();
    let locks = locker(&server).await;
    let (one, other, held) = (key(), key(), key());
    let owner = Owner::new();
    let (lock, all) = (
        locks.get(&one).owned_by(owner.clone()),
        locks.multi([&one[..], &other[..]]).owned_by(Owner::new()),
    );
    let names = [one.clone(), other.clone(), held.clone()];
    let foreign = locks
        .get(&held)
        .owned_by(Owner::new())
        .lock()
        .await
        .unwrap();
    let sound = async || {
        let stats = || locks.stats();
        let idle = || (stats().holds, stats().waiters, stats().pending) == (1, 0, 0);
        eventually(
            ms(4_000),
            "nothing else is held, awaited or under way",
            idle,
        )
        .await;
        assert!(!server.exists(&one) && !server.exists(&other));
    };
    for _ in 0..2 {
        drop(at_each_clone("lock", async || lock.lock()).await.unwrap());
        sound().await;
        // A call without an owner is identified by its waker.
        let unnamed = locks.get(&one);
        drop(
            at_each_clone("lock without an owner", async || unnamed.lock())
                .await
                .unwrap(),
        );
        sound().await;
        // The grant of the call before is released in the background.
        let trying = async || {
            sound().await;
            lock.try_lock()
        };
        drop(at_each_clone("try_lock", trying).await.unwrap().unwrap());
        sound().await;
        drop(at_each_clone("several", async || all.lock()).await.unwrap());
        sound().await;
        let trying = async || {
            sound().await;
            all.try_lock()
        };
        drop(
            at_each_clone("try_lock of several", trying)
                .await
                .unwrap()
                .unwrap(),
        );
        sound().await;
        let waiting = locks.get(&held).owned_by(Owner::new());
        let late = at_each_clone("the end of its time", async || {
            waiting.try_lock_for(ms(100))
        })
        .await;
        assert!(late.unwrap().is_none());
        let waiting = locks.multi([&held[..], &one[..]]).owned_by(Owner::new());
        let late = at_each_clone("the end of its time, of several", async || {
            waiting.try_lock_for(ms(100))
        })
        .await;
        assert!(late.unwrap().is_none());
        sound().await;
        let unlock = async || lock.lock().await.unwrap().unlock();
        at_each_clone("unlock", unlock).await.unwrap();
        sound().await;
        let unlock = async || all.lock().await.unwrap().unlock();
        at_each_clone("unlock of several", unlock).await.unwrap();
        sound().await;
        assert_eq!(
            at_each_clone("run", async || lock.run(|_| async { 7 }))
                .await
                .unwrap(),
            7
        );
        assert_eq!(
            at_each_clone("run of several", async || all.run(|_| async { 7 }))
                .await
                .unwrap(),
            7
        );
        sound().await;
        let outer = lock.lock().await.unwrap();
        drop(
            at_each_clone("re-entry", async || lock.lock())
                .await
                .unwrap(),
        );
        at_each_clone("unlock of a nested guard", async || {
            lock.lock().await.unwrap().unlock()
        })
        .await
        .unwrap();
        assert!(
            at_each_clone("holder", async || lock.holder())
                .await
                .unwrap()
                .is_some()
        );
        // Others wait for the token of the loss too.
        let lost = outer.lost();
        for number in 0..3 {
            let sick = cloned::Sick::of_clone(number);
            let mut waiting = Box::pin(outer.lost().cancelled_owned());
            let polled = (0..=number)
                .map(|_| catch_unwind(AssertUnwindSafe(|| poll(waiting.as_mut(), &sick.waker()))));
            assert!(
                polled.last().is_some_and(|last| last.is_err()),
                "the last clone panics"
            );
        }
        assert!(
            at_each_clone("force_unlock", async || lock.force_unlock())
                .await
                .is_ok()
        );
        timeout(ms(5_000), lost.cancelled())
            .await
            .expect("its token fires");
        drop(outer);
        sound().await;
    }
    foreign.unlock().await.unwrap();
    is_left_sound(&server, &locks, &names).await;
    at_each_clone("connect", async || builder(&server.url(), LEASE).connect())
        .await
        .unwrap()
        .close()
        .await;
    at_each_clone("close", async || locks.close()).await;
    // No waker is cloned if the answer is there at the first poll.
    let panicked = cloned::PANICKED.load(Ordering::Relaxed);
    assert!(panicked > 20, "{panicked}");
}

/// Runs of one task wait for each other in a line of their own.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_waker_panics_when_it_is_cloned_keeps_no_turn() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let lock = locks.get(&key).owned_by(Owner::new());
    for number in 0..4 {
        let (begun, (end, ended)) = (
            Arc::new(AtomicBool::new(false)),
            tokio::sync::oneshot::channel::<()>(),
        );
        let (first, beginning) = (lock.clone(), Arc::clone(&begun));
        let first = tokio::spawn(async move {
            first
                .run(|_| async move {
                    beginning.store(true, Ordering::Relaxed);
                    ended.await.unwrap();
                })
                .await
        });
        eventually(ms(5_000), "it has the turn", || {
            begun.load(Ordering::Relaxed)
        })
        .await;
        let sick = cloned::Sick::of_clone(number);
        let mut second = Box::pin(lock.run(|_| async {}));
        let run = |lock: Lock| tokio::spawn(async move { lock.run(|_| async {}).await });
        let before = run(lock.clone());
        let polled: Vec<_> = (0..=number)
            .map(|_| catch_unwind(AssertUnwindSafe(|| poll(second.as_mut(), &sick.waker()))))
            .collect();
        assert!(
            polled.last().is_some_and(Result::is_err),
            "the last clone panics"
        );
        let behind = run(lock.clone());
        drop(second);
        end.send(()).unwrap();
        for run in [first, before, behind] {
            timeout(ms(5_000), run)
                .await
                .expect("every run has its turn")
                .unwrap()
                .unwrap();
        }
    }
    is_left_sound(&server, &locks, &[key]).await;
    locks.close().await;
}

thread_local! {
    /// How many of the tasks have the lock on this thread's stack.
    static INSIDE: Cell<usize> = const { Cell::new(0) };
}

/// Each release hands the lock over to the next caller, whose waker runs it at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_line_of_callers_run_by_their_wakers_is_not_on_one_stack() {
    const CALLERS: usize = 200;
    let (server, name) = (Server::start(), key());
    let locks = locker(&server).await;
    let (deepest, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    // After a release that reached nobody else, a row is long.
    locks
        .get(&name)
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    let first = locks.get(&name).lock().await.unwrap();
    for _ in 0..CALLERS {
        let (lock, deepest, done) = (
            locks.get(&name).owned_by(Owner::new()),
            Arc::clone(&deepest),
            Arc::clone(&done),
        );
        run_inline(async move {
            let guard = lock.lock().await.unwrap();
            INSIDE.set(INSIDE.get() + 1);
            deepest.fetch_max(INSIDE.get(), Ordering::Relaxed);
            drop(guard);
            INSIDE.set(INSIDE.get() - 1);
            done.fetch_add(1, Ordering::Relaxed);
        });
    }
    first.unlock().await.unwrap();
    eventually(ms(30_000), "all have had it", || {
        done.load(Ordering::Relaxed) == CALLERS
    })
    .await;
    assert_eq!(
        deepest.load(Ordering::Relaxed),
        1,
        "callers inside a release of each other"
    );
    is_left_sound(&server, &locks, &[name]).await;
}
