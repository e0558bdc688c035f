//! As which owner `run` locks, and what outlives its section. Time is paused.

use lockhound::{Locker, Owner};
use tokio::time::sleep;

use super::common::{key, ms};
use super::{Server, over};

async fn one() -> Locker {
    over(std::slice::from_ref(&Server::new()), ms(10_000))
        .connect()
        .await
        .unwrap()
}

/// Returns whether another branch of the task that runs a section gets the lock too, after this
/// many milliseconds.
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
    // Another owner holds the lock before.
    let guard = locks
        .get(&name)
        .owned_by(Owner::new())
        .lock()
        .await
        .unwrap();
    let releases = async {
        sleep(ms(100)).await;
        guard.unlock().await.unwrap();
    };
    assert!(!tokio::join!(gets_in_beside(&locks, &name, 500), releases).0);
}

#[tokio::test(start_paused = true)]
async fn a_run_during_the_release_by_its_task_is_an_owner_of_its_own() {
    let (server, name) = (Server::new(), key());
    let locks = over(std::slice::from_ref(&server), ms(10_000))
        .connect()
        .await
        .unwrap();
    let guard = locks.get(&name).lock().await.unwrap();
    server.delay(ms(50)..=ms(50));
    drop(guard);
    assert!(!gets_in_beside(&locks, &name, 500).await);
}

#[tokio::test(start_paused = true)]
async fn a_run_in_a_task_that_holds_the_lock_re_enters_as_the_task() {
    let (locks, name) = (one().await, key());
    let guard = locks.get(&name).lock().await.unwrap();
    assert!(gets_in_beside(&locks, &name, 500).await);
    guard.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_outlives_its_section_belongs_to_the_caller() {
    let (locks, names) = (one().await, [key(), key()]);
    let inner = locks.get(&names[1]);
    let guard = locks
        .get(&names[0])
        .run(|_| async { inner.lock().await.unwrap() })
        .await
        .unwrap();
    let again = inner.try_lock().await.unwrap().expect("its task has it");
    assert_eq!(
        (guard.owner() == again.owner(), guard.hold_count()),
        (true, 2)
    );
}
