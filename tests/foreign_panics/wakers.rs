//! Wakers that panic: the executor of a program is foreign code too.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use lockhound::{Locker, Owner};
use tokio::time::timeout;

use crate::common::{Server, builder, eventually, key, ms};
use crate::sick::{SICK, expect_panics};

/// Who waits without a message looks for itself after a second; what nobody takes is taken back after as long.
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

fn poll<T>(future: Pin<&mut impl Future<Output = T>>, waker: &Waker) -> Poll<T> {
    future.poll(&mut Context::from_waker(waker))
}

/// Polls a future with a waker that panics until that has been woken; then its value.
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
    timeout(ms(5_000), next.lock()).await.expect("the next is served").unwrap().unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_of_a_task_whose_waker_panics_has_its_answer() {
    let server = Server::start();
    let locks = sickly("connect", locker(&server)).await;
    let (one, other) = (key(), key());
    let lock = locks.get(&one).owned_by(Owner::new());
    let all = locks.all([&one[..], &other[..]]).owned_by(Owner::new());
    for _ in 0..3 {
        sickly("unlock", sickly("lock", lock.lock()).await.unwrap().unlock()).await.unwrap();
        let guard = sickly("try_lock", lock.try_lock()).await.unwrap().expect("it is free");
        sickly("unlock of a nested guard", sickly("re-entry", lock.lock()).await.unwrap().unlock()).await.unwrap();
        assert!(sickly("holder", lock.holder()).await.unwrap().is_some());
        assert!(sickly("the end of its time", all.try_lock_for(ms(50))).await.unwrap().is_none());
        let foreign = locks.get(&one).owned_by(Owner::new());
        assert!(sickly("the end of its time", foreign.try_lock_for(ms(50))).await.unwrap().is_none());
        assert!(sickly("force_unlock", lock.force_unlock()).await.unwrap());
        sickly("the loss", guard.lost().cancelled_owned()).await;
        drop(guard);
        sickly("unlock of several", sickly("several", all.lock()).await.unwrap().unlock()).await.unwrap();
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
    let (sick, woken) =
        (Arc::new(WokenSick(AtomicUsize::new(0))), |sick: &WokenSick| sick.0.load(Ordering::Relaxed) > 0);
    let waker = Waker::from(Arc::clone(&sick));
    let (first, second) = (locks.get(&key).owned_by(Owner::new()), locks.get(&key).owned_by(Owner::new()));
    let mut first = Box::pin(async move { first.lock().await });
    assert!(poll(first.as_mut(), &waker).is_pending());
    let second = tokio::spawn(async move { second.lock().await.unwrap().unlock().await });
    eventually(ms(1_000), "both stand in line", || locks.stats().waiters == 2).await;
    held.unlock().await.unwrap();
    eventually(ms(5_000), "the first is woken", || woken(&sick)).await;
    // Its executor has lost the task: the grant is taken back.
    timeout(ms(5_000), second).await.expect("the second is served").unwrap().unwrap();
    drop(first);
    is_left_sound(&server, &locks, &[key]).await;
    locks.close().await;
}

/// The wakers of those who wait for the loss of one lock are not those of another.
#[tokio::test(flavor = "multi_thread")]
async fn a_waker_that_panics_at_a_loss_hides_no_other_loss() {
    let server = Server::start();
    let locks = locker(&server).await;
    let mut tokens = Vec::new();
    for _ in 0..8 {
        let guard = locks.get(key()).owned_by(Owner::new()).lock().await.unwrap();
        tokens.push((guard.lost(), Box::pin(guard.lost().cancelled_owned()), guard));
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

/// A waker that its task has given away is dropped by whoever answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_waker_that_panics_when_it_is_dropped_takes_nothing_with_it() {
    let (server, waited_for) = (Server::start(), key());
    let locks = locker(&server).await;
    let mut names = vec![waited_for.clone()];
    let held = locks.get(&waited_for).owned_by(Owner::new()).lock().await.unwrap();
    for unwinds in [false, true] {
        // Given up while the server is asked, and while another holds it.
        for name in [key(), waited_for.clone()] {
            names.push(name.clone());
            let dropped = Arc::new(AtomicBool::new(false));
            let (lock, sick) = (locks.get(name).owned_by(Owner::new()), DroppedSick(Arc::clone(&dropped)));
            let given_up = tokio::spawn(async move {
                let waker = Waker::from(Arc::new(sick));
                let mut locking = Box::pin(lock.lock());
                assert!(poll(locking.as_mut(), &waker).is_pending());
                // From here on the future has the last of it.
                drop(waker);
                assert!(!unwinds, "{SICK} life");
                drop(locking);
            });
            // With an executor that panics a task may well end by a panic; the process goes on.
            drop(timeout(ms(5_000), given_up).await.expect("it ends"));
            eventually(ms(5_000), "its waker is dropped", || dropped.load(Ordering::Relaxed)).await;
        }
    }
    // Given up after the answer: by then the one who answers has gone.
    let (name, dropped) = (key(), Arc::new(AtomicBool::new(false)));
    let trying = locks.get(&name).owned_by(Owner::new());
    let waker = Waker::from(Arc::new(DroppedSick(Arc::clone(&dropped))));
    let mut trying = Box::pin(async move { trying.try_lock().await });
    assert!(poll(trying.as_mut(), &waker).is_pending());
    drop(waker);
    drop(trying);
    eventually(ms(5_000), "its waker is dropped", || dropped.load(Ordering::Relaxed)).await;
    names.push(name);
    held.unlock().await.unwrap();
    is_left_sound(&server, &locks, &names).await;
    locks.close().await;
}
