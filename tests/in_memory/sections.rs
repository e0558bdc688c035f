//! As whom `run` locks, and what outlives its section. Time is paused.

use lockhound::{Locker, Owner};
use tokio::time::sleep;

use super::common::{key, ms};
use super::{Server, over};

async fn one() -> Locker {
    over(std::slice::from_ref(&Server::new()), ms(10_000)).connect().await.unwrap()
}

/// Whether another branch of the task that runs a section gets in beside it, after so long.
async fn gets_in_beside(locks: &Locker, name: &str, after: u64) -> bool {
    let lock = locks.get(name);
    let section = lock.run(|_| sleep(ms(1_000)));
    let beside = async {
        sleep(ms(after)).await;
        lock.try_lock().await.unwrap().is_some()
    };
    let (section, beside) = tokio::join!(section, beside);
    section.unwrap();
    beside
}

#[tokio::test(start_paused = true)]
async fn a_run_is_an_owner_of_its_own() {
    let (locks, name) = (one().await, key());
    assert!(!gets_in_beside(&locks, &name, 500).await);
    // Whoever else holds it before.
    let guard = locks.get(&name).owned_by(Owner::new()).lock().await.unwrap();
    let releases = async {
        sleep(ms(100)).await;
        guard.unlock().await.unwrap();
    };
    assert!(!tokio::join!(gets_in_beside(&locks, &name, 500), releases).0);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_comes_while_its_task_lets_go_is_an_owner_of_its_own() {
    let (server, name) = (Server::new(), key());
    let locks = over(std::slice::from_ref(&server), ms(10_000)).connect().await.unwrap();
    let guard = locks.get(&name).lock().await.unwrap();
    server.delay(ms(50)..=ms(50));
    drop(guard);
    assert!(!gets_in_beside(&locks, &name, 500).await);
}

#[tokio::test(start_paused = true)]
async fn a_run_in_a_task_that_holds_the_lock_enters_as_the_task_does() {
    let (locks, name) = (one().await, key());
    let guard = locks.get(&name).lock().await.unwrap();
    assert!(gets_in_beside(&locks, &name, 500).await);
    guard.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_outlives_its_section_is_the_caller_s() {
    let (locks, names) = (one().await, [key(), key()]);
    let inner = locks.get(&names[1]);
    let guard = locks.get(&names[0]).run(|_| async { inner.lock().await.unwrap() }).await.unwrap();
    let again = inner.try_lock().await.unwrap().expect("its task has it");
    assert_eq!((guard.owner() == again.owner(), guard.hold_count()), (true, 2));
}
