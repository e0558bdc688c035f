//! What looks like two branches of one task inside together fails the test that does it.

use lockhound::testing::Server;
use lockhound::{Error, Lock, Owner};
use tokio::time::{sleep, timeout};

use crate::common::{eventually, key, ms};
use crate::over;

async fn lock_of(server: &Server) -> Lock {
    over(std::slice::from_ref(server), ms(10_000))
        .connect()
        .await
        .unwrap()
        .get(key())
}

/// A request handler that takes its lock with a guard.
async fn handler(lock: Lock, takes: u64) -> Result<(), Error> {
    let guard = lock.lock().await?;
    sleep(ms(takes)).await;
    guard.unlock().await
}

/// The task has two callers, as a test may have, that keep the lock for these times. Returns the
/// message of its panic, if it panicked.
async fn two_callers(lock: &Lock, [first, second]: [u64; 2]) -> Option<String> {
    let (first, second) = (handler(lock.clone(), first), handler(lock.clone(), second));
    let joined = tokio::spawn(async move { tokio::join!(first, second) }).await;
    let panic = joined.err()?.into_panic();
    Some(panic.downcast_ref::<String>().unwrap().clone())
}

#[tokio::test(start_paused = true)]
async fn two_callers_in_one_task_fail_their_test() {
    let server = Server::new();
    let lock = lock_of(&server).await;
    for takes in [[10, 20], [20, 10], [10, 10]] {
        let said = two_callers(&lock, takes).await.expect("a panic");
        let name = format!("{:?}", lock.key().as_str());
        for word in [
            &*name,
            "tokio::spawn",
            "owned_by",
            "permit_suspicious_reentries",
        ] {
            assert!(said.contains(word), "{word}: {said}");
        }
        eventually(ms(10_000), "it is released all the same", || {
            server.holder(lock.key().as_str()).is_none()
        })
        .await;
    }
    // Two callers that are two owners are fine.
    let tasks = [handler(lock.clone(), 10), handler(lock.clone(), 20)].map(tokio::spawn);
    for task in tasks {
        task.await.unwrap().unwrap();
    }
}

/// The second one comes while the first one holds the lock.
#[tokio::test(start_paused = true)]
async fn a_branch_that_comes_later_and_stays_longer_fails_too() {
    let server = Server::new();
    let lock = lock_of(&server).await;
    let (first, second) = (handler(lock.clone(), 20), handler(lock.clone(), 20));
    let later = async {
        sleep(ms(10)).await;
        second.await
    };
    assert!(
        tokio::spawn(async move { tokio::join!(first, later) })
            .await
            .unwrap_err()
            .is_panic()
    );
}

#[tokio::test(start_paused = true)]
async fn suspicious_reentries_can_be_permitted() {
    let server = Server::new();
    let lock = lock_of(&server.route()).await;
    server.permit_suspicious_reentries();
    assert_eq!(two_callers(&lock, [10, 20]).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_a_panic_drops_does_not_panic_again() {
    let server = Server::new();
    let lock = lock_of(&server).await;
    let entered = lock.clone();
    let panicked = tokio::spawn(async move {
        let outer = entered.lock().await.unwrap();
        let _inner = entered.lock().await.unwrap();
        outer.unlock().await.unwrap();
        sleep(ms(10)).await;
        panic!("of the program");
    });
    let panic = panicked.await.unwrap_err().into_panic();
    assert_eq!(
        panic.downcast_ref::<&str>(),
        Some(&"of the program"),
        "the process would have ended"
    );
    eventually(ms(10_000), "it is released", || {
        server.holder(lock.key().as_str()).is_none()
    })
    .await;
}

/// The lock is handed over to a call that is given up, and the next one is in line by then.
#[tokio::test(start_paused = true)]
async fn a_call_after_one_that_was_given_up_is_no_branch_beside_it() {
    let server = Server::new();
    let builder = over(std::slice::from_ref(&server), ms(10_000));
    let locks = builder.command_timeout(ms(1_000)).connect().await.unwrap();
    let lock = locks.get(key());
    let held = lock.clone().owned_by(Owner::new()).lock().await.unwrap();
    server.delay(ms(200)..=ms(200));
    let task = tokio::spawn(async move {
        let given_up = timeout(ms(100), lock.lock()).await;
        given_up.expect_err("the answer is late");
        lock.lock().await.unwrap().unlock().await.unwrap();
    });
    sleep(ms(50)).await;
    held.unlock().await.unwrap();
    task.await.expect("no panic");
    assert_eq!(locks.stats().suspicious_reentries, 0);
}

/// The read is that of the child, though its parent took the write.
#[tokio::test(start_paused = true)]
async fn a_child_downgrading_in_its_parents_scope_is_no_branch_of_it() {
    let server = Server::new();
    let locks = over(std::slice::from_ref(&server), ms(10_000))
        .connect()
        .await
        .unwrap();
    let lock = locks.rw(key());
    let parent = tokio::spawn(async move {
        let write = lock.write().lock().await.unwrap();
        let read = lock.read().lock().await.unwrap();
        let inner = lock.write();
        let child = tokio::spawn(write.scope(async move {
            let write = inner.lock().await.unwrap();
            let read = write.downgrade().await.unwrap();
            sleep(ms(10)).await;
            read.unlock().await.unwrap();
        }));
        child.await.expect("no panic");
        read.unlock().await.unwrap();
        write.unlock().await.unwrap();
    });
    parent.await.unwrap();
    assert_eq!(locks.stats().suspicious_reentries, 0);
}

#[test]
fn threads_that_release_in_the_wrong_order_fail_too() {
    let server = Server::new();
    let locks = over(std::slice::from_ref(&server), ms(10_000))
        .blocking_connect()
        .unwrap();
    let lock = locks.get(key());
    let (outer, inner) = (lock.blocking_lock().unwrap(), lock.blocking_lock().unwrap());
    outer.blocking_unlock().unwrap();
    std::thread::sleep(ms(5));
    let dropping = std::panic::AssertUnwindSafe(move || drop(inner));
    assert!(std::panic::catch_unwind(dropping).is_err());
    locks.blocking_close();
    assert_eq!(server.holder(lock.key().as_str()), None);
}
