//! As which owner `run` locks, and what outlives its section. Time is paused.

use lockhound::{Error, HoldState, Locker, Loss, Owner};
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

#[tokio::test(start_paused = true)]
async fn run_for_gives_up_on_readers_writers_and_permits() {
    let (locks, name) = (one().await, key());
    let (read, write) = (locks.rw(&*name).read(), locks.rw(&*name).write());
    let one = locks.permits(key()).capacity(1);
    let wait = ms(100);
    assert_eq!(read.run_for(wait, |_| async { 1 }).await.unwrap(), Some(1));
    assert_eq!(write.run_for(wait, |_| async { 2 }).await.unwrap(), Some(2));
    assert_eq!(one.run_for(wait, |_| async { 3 }).await.unwrap(), Some(3));

    let writes = write.clone().owned_by(Owner::new()).lock().await.unwrap();
    let taken = one.acquire().await.unwrap();
    let began = tokio::time::Instant::now();
    assert_eq!(read.run_for(wait, |_| async {}).await.unwrap(), None);
    assert_eq!(write.run_for(wait, |_| async {}).await.unwrap(), None);
    assert_eq!(one.run_for(wait, |_| async {}).await.unwrap(), None);
    assert!(one.try_acquire_for(wait).await.unwrap().is_none());
    assert!(began.elapsed() >= 4 * wait && began.elapsed() < 5 * wait);
    writes.unlock().await.unwrap();
    taken.release().await.unwrap();
    // The time bounds the wait, and not the section.
    let long = one.run_for(wait, |_| sleep(3 * wait)).await.unwrap();
    assert_eq!(long, Some(()));
}

#[tokio::test(start_paused = true)]
async fn a_section_of_several_locks_sees_their_state_and_fences() {
    let (locks, names) = (one().await, [key(), key()]);
    let (all, other) = (locks.multi(&names), locks.clone());
    let (mut seen, mut checked) = (None, false);
    let lost = all
        .run(|section| {
            seen = Some(section.clone());
            let checked = &mut checked;
            async move {
                assert_eq!((section.state(), section.loss()), (HoldState::Safe, None));
                let fences: Vec<_> = section.fences().collect();
                assert_eq!(fences.len(), 2);
                for (name, fence) in fences {
                    assert_eq!(section.fence(name), Some(fence));
                }
                *checked = true;
                other.get(&names[1]).force_unlock().await.unwrap();
            }
        })
        .await;
    assert!(
        checked && matches!(lost, Err(Error::Lost { .. })),
        "{lost:?}"
    );
    let section = seen.expect("it began");
    let loss = Loss::ForceUnlocked;
    assert_eq!(
        (section.state(), section.loss()),
        (HoldState::Lost(loss), Some(loss))
    );
}
