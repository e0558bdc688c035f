//! Loops around calls that nobody has to be waited for: they starve no other task of their thread,
//! and flood no server.

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use lockhound::{Error, Locker, Owner, ServerErrorKind};
use tokio::task::JoinHandle;

use crate::common::{Server, key, locker, ms};

/// Runs a test on a thread with a runtime of its own, which has no other thread. A thread that is
/// starved never ends.
fn on_one_thread<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let (done, ended) = channel();
    let testing = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(test());
        // A loop in a task ends with the runtime.
        drop(runtime);
        done.send(()).unwrap();
    });
    let ended = ended.recv_timeout(Duration::from_secs(20));
    assert!(
        ended.is_ok() || testing.is_finished(),
        "the tasks of the thread are starved"
    );
    testing.join().unwrap();
}

/// Spawns a loop without an end, and returns once it runs.
async fn spin<F: Future + 'static>(call: impl Fn() -> F + 'static) -> JoinHandle<()> {
    let (begun, runs) = tokio::sync::oneshot::channel();
    let mut begun = Some(begun);
    let spinning = tokio::task::spawn_local(async move {
        loop {
            call().await;
            if let Some(begun) = begun.take() {
                begun.send(()).unwrap();
            }
        }
    });
    runs.await.unwrap();
    spinning
}

#[test]
fn try_lock_in_a_loop_does_not_starve_the_holder() {
    let server = Server::start();
    let url = server.url();
    on_one_thread(async move || {
        let locks = Locker::connect(url).await.unwrap();
        let (held, wanted) = (locks.get(key()), locks.clone());
        let guard = held.lock().await.unwrap();
        let wanted = wanted.get(held.key()).owned_by(Owner::new());
        let asking =
            tokio::spawn(async move { while wanted.try_lock().await.unwrap().is_none() {} });
        tokio::time::sleep(ms(100)).await;
        guard.unlock().await.unwrap();
        asking.await.unwrap();
    });
}

#[test]
fn no_answer_without_a_server_starves_a_runtime() {
    let server = Server::start();
    let url = server.url();
    on_one_thread(async move || {
        tokio::task::LocalSet::new()
            .run_until(async move {
                let (closed, open) = (
                    Locker::connect(&url).await.unwrap(),
                    Locker::connect(&url).await.unwrap(),
                );
                closed.close().await;
                let (lock, several) = (closed.get(key()), closed.multi([key(), key()]));
                let nameless = open.get("");
                let (lost, owner) = (open.get(key()), Owner::new());
                let lost = lost.owned_by(owner);
                let guard = lost.lock().await.unwrap();
                assert!(lost.force_unlock().await.unwrap());
                assert!(matches!(lost.try_lock().await, Err(Error::Lost { .. })));
                let mut loops = Vec::new();
                macro_rules! spin {
                    ($lock:ident, $($call:tt)*) => {{
                        let lock = $lock.clone();
                        let call = move || {
                            let lock = lock.clone();
                            async move { _ = lock.$($call)*.await }
                        };
                        loops.push(spin(call).await);
                    }};
                }
                spin!(lock, lock());
                spin!(lock, try_lock());
                spin!(lock, try_lock_for(ms(10)));
                spin!(lock, run(|_| async {}));
                spin!(lock, holder());
                spin!(lock, force_unlock());
                spin!(several, lock());
                spin!(several, run(|_| async {}));
                spin!(closed, servers());
                spin!(closed, close());
                spin!(nameless, lock());
                spin!(nameless, run(|_| async {}));
                spin!(nameless, holder());
                spin!(nameless, force_unlock());
                spin!(lost, lock());
                spin!(lost, try_lock());
                loops.push(spin(|| async { _ = Locker::connect("http://a").await }).await);
                let slept = Instant::now();
                tokio::time::sleep(ms(50)).await;
                assert!(slept.elapsed() >= ms(50));
                drop(guard);
                loops.iter().for_each(JoinHandle::abort);
            })
            .await;
    });
}

/// Executors that give their tasks no budget.
#[test]
fn no_answer_without_a_server_starves_another_executor() {
    let server = Server::start();
    let closed = tokio::runtime::Runtime::new().unwrap().block_on(async {
        let locks = locker(&server).await;
        locks.close().await;
        locks
    });
    let (done, ended) = channel();
    thread::spawn(move || {
        let executor = async_executor::LocalExecutor::new();
        let lock = closed.get(key());
        let spinning =
            executor.spawn(async move { while matches!(lock.lock().await, Err(Error::Closed)) {} });
        futures_executor::block_on(executor.run(async {
            for _ in 0..20 {
                smol::Timer::after(ms(1)).await;
            }
        }));
        drop(spinning);
        done.send(()).unwrap();
    });
    assert_eq!(
        ended.recv_timeout(Duration::from_secs(60)),
        Ok(()),
        "the executor's other task is starved"
    );
}

#[tokio::test]
async fn a_loop_that_retries_refusals_does_not_flood_the_server() {
    let server = Server::start();
    let locks = Locker::connect(server.url()).await.unwrap();
    let lock = locks.get(key());
    server.command::<()>(&["LPUSH", lock.key().as_str(), "no lock"]);
    let refused = |error| {
        matches!(
            error,
            Error::Server {
                kind: ServerErrorKind::WrongType,
                ..
            }
        )
    };
    // The first is told at once: the script is loaded by it.
    assert!(refused(lock.lock().await.unwrap_err()));
    let (before, began) = (server.calls("evalsha"), Instant::now());
    while began.elapsed() < ms(1_000) {
        assert!(refused(lock.lock().await.unwrap_err()));
        assert!(refused(lock.try_lock().await.unwrap_err()));
        assert!(refused(lock.run(|_| async {}).await.unwrap_err()));
        assert!(refused(
            lock.try_lock_for(Duration::from_secs(1)).await.unwrap_err()
        ));
    }
    let (asked, lasted) = (server.calls("evalsha") - before, began.elapsed());
    // Each refusal costs one more script, which asks what is there.
    let most = 2 * (lasted.as_millis() / 50 + 1);
    assert!(u128::from(asked) <= most, "{asked} scripts in {lasted:?}");
    // A wait time is not exceeded.
    let began = Instant::now();
    // Within so short a time the server may not have answered.
    let answer = lock.try_lock_for(ms(1)).await;
    assert!(matches!(&answer, Ok(None)) || answer.is_err_and(refused));
    assert!(
        crate::common::machine::within(began.elapsed(), ms(49)),
        "{:?}",
        began.elapsed()
    );
}
