//! Re-entry: which callers may enter again, and what the server stores meanwhile.

use crate::common::{Server, key, locker, ms};
use lockhound::{Error, Owner};

#[tokio::test]
async fn nested_locks_count_up_and_down() {
    let server = Server::start();
    let (locks, key) = (locker(&server).await, key());
    let lock = locks.get(&key);
    let outer = lock.lock().await.unwrap();
    let owner = outer.owner();
    let mut guards = Vec::new();
    for depth in 2..=20 {
        guards.push(lock.lock().await.unwrap());
        let fields = server.fields(&key);
        assert_eq!(fields.len(), 1, "one field");
        assert!(
            fields[0].0.starts_with(&format!("{}:{owner}:", locks.id())),
            "{fields:?}"
        );
        assert_eq!(fields[0].1, depth);
        assert_eq!(u64::from(outer.hold_count()), depth);
        assert_eq!(
            guards.last().unwrap().fence(),
            outer.fence(),
            "a re-entry keeps the fence"
        );
    }
    for depth in (1..20).rev() {
        guards.pop().unwrap().unlock().await.unwrap();
        assert_eq!(server.fields(&key)[0].1, depth);
    }
    outer.unlock().await.unwrap();
    assert!(!server.exists(&key));
}

/// Returns whether the call is still waiting after a moment.
async fn waits<T>(future: &mut (impl Future<Output = T> + Unpin)) -> bool {
    tokio::time::timeout(ms(150), future).await.is_err()
}

#[tokio::test]
async fn a_spawned_task_is_another_owner_and_waits() {
    let server = Server::start();
    let lock = locker(&server).await.get(key());
    let guard = lock.lock().await.unwrap();
    let child = lock.clone();
    let mut waiting = tokio::spawn(async move { child.lock().await.map(|guard| guard.fence()) });
    assert!(waits(&mut waiting).await);
    assert!(
        lock.clone()
            .owned_by(Owner::new())
            .try_lock()
            .await
            .unwrap()
            .is_none()
    );
    let fence = guard.fence();
    guard.unlock().await.unwrap();
    assert!(waiting.await.unwrap().unwrap() > fence);
}

#[tokio::test]
async fn a_child_in_its_parents_scope_enters_again() {
    let server = Server::start();
    let lock = locker(&server).await.get(key());
    let guard = lock.lock().await.unwrap();
    let child = lock.clone();
    let scoped = guard.scope(async move { child.lock().await.unwrap().hold_count() });
    assert_eq!(tokio::spawn(scoped).await.unwrap(), 2);
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn branches_of_one_task_share_a_hold_unless_each_has_an_owner() {
    let server = Server::start();
    let lock = locker(&server).await.get(key());
    let (one, two) = tokio::join!(lock.lock(), lock.lock());
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!(
        (one.hold_count(), one.fence()),
        (2, two.fence()),
        "two first acquires of one owner share a hold"
    );
    assert_eq!(server.fields(lock.key().as_str()).len(), 1);
    drop((one, two));
    let (left, right) = (
        lock.clone().owned_by(Owner::new()),
        lock.owned_by(Owner::new()),
    );
    let left_guard = left.lock().await.unwrap();
    let mut waiting = Box::pin(right.lock());
    assert!(waits(&mut waiting).await);
    left_guard.unlock().await.unwrap();
    waiting.await.unwrap().unlock().await.unwrap();
}

/// The first acquires of one owner at once, many times: through the line (`lock`) and past it
/// (`try_lock`).
#[tokio::test]
async fn first_acquires_of_one_owner_at_once_never_block_each_other() {
    let server = Server::start();
    let lock = locker(&server).await.get(key());
    for _ in 0..200 {
        let (a, b, c) = tokio::join!(lock.lock(), lock.try_lock(), lock.lock());
        let guards = [a.unwrap(), c.unwrap()];
        let tried = b.unwrap();
        let count = guards[0].hold_count();
        assert_eq!(count, if tried.is_some() { 3 } else { 2 });
        drop(tried);
        for guard in guards {
            guard.unlock().await.unwrap();
        }
        assert!(!server.exists(lock.key().as_str()));
    }
}

#[tokio::test]
async fn guards_may_be_released_in_any_order_and_from_any_task() {
    let server = Server::start();
    let lock = locker(&server).await.get(key());
    let first = lock.lock().await.unwrap();
    let second = lock.lock().await.unwrap();
    let third = lock.lock().await.unwrap();
    drop(first);
    tokio::spawn(async move { second.unlock().await })
        .await
        .unwrap()
        .unwrap();
    assert_eq!(third.hold_count(), 1);
    assert!(server.exists(lock.key().as_str()));
    std::thread::spawn(move || drop(third)).join().unwrap();
    crate::common::eventually(ms(1_000), "the last guard releases", || {
        !server.exists(lock.key().as_str())
    })
    .await;
}

#[tokio::test]
async fn a_detached_guard_cannot_be_entered_again() {
    let server = Server::start();
    let lock = locker(&server).await.get(key());
    let guard = lock.lock().await.unwrap();
    let (field, owner) = (server.fields(lock.key().as_str()), guard.owner());
    let guard = guard.detach();
    assert_ne!(guard.owner(), owner);
    assert_eq!(server.fields(lock.key().as_str()), field, "nothing is sent");
    assert!(lock.try_lock().await.unwrap().is_none());
    let mut waiting = Box::pin(lock.lock());
    assert!(waits(&mut waiting).await);
    tokio::spawn(guard.unlock()).await.unwrap().unwrap();
    waiting.await.unwrap().unlock().await.unwrap();
}

#[test]
fn a_blocking_thread_is_its_own_owner() {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let lock = runtime.block_on(locker(&server)).get(key());
    drop(runtime);
    let outer = lock.blocking_lock().unwrap();
    let inner = lock.blocking_try_lock().unwrap().expect("the same thread");
    assert_eq!(outer.hold_count(), 2);
    let (other, (tried, has_tried)) = (lock.clone(), std::sync::mpsc::channel());
    let waited = std::thread::spawn(move || {
        assert!(other.blocking_try_lock().unwrap().is_none());
        // Time enough for one answer, on a busy machine too.
        assert!(other.blocking_try_lock_for(ms(500)).unwrap().is_none());
        tried.send(()).unwrap();
        other.blocking_lock().unwrap().blocking_unlock()
    });
    has_tried.recv().expect("it is held");
    std::thread::sleep(ms(50));
    assert!(!waited.is_finished());
    inner.blocking_unlock().unwrap();
    outer.blocking_unlock().unwrap();
    waited.join().unwrap().unwrap();
}

#[test]
fn another_executor_works_with_and_without_a_named_owner() {
    let server = Server::start();
    futures_executor::block_on(async {
        let lock = locker(&server).await.get(key());
        assert!(Owner::current().is_err(), "no call is polled");
        for lock in [lock.clone().owned_by(Owner::new()), lock] {
            let guard = lock.lock().await.unwrap();
            let nested = lock.lock().await.unwrap();
            assert_eq!(guard.hold_count(), 2);
            nested.unlock().await.unwrap();
            guard.unlock().await.unwrap();
            assert!(lock.try_lock_for(ms(500)).await.unwrap().is_some());
        }
    });
}

#[tokio::test]
async fn the_root_of_a_runtime_is_an_owner() {
    let server = Server::start();
    let lock = locker(&server).await.get(key());
    let guard = lock.lock().await.unwrap();
    assert!(guard.owner().to_string().starts_with('w'));
    assert_eq!(lock.lock().await.unwrap().hold_count(), 2);
}

#[tokio::test]
async fn the_options_of_the_outermost_acquisition_count() {
    let server = Server::start();
    let locks = crate::common::locker_with(&server, ms(3_000)).await;
    let lock = locks.get(key());
    let outer = lock.lock().await.unwrap();
    let nested = lock.clone().fixed_lease(ms(200)).lock().await.unwrap();
    assert!(
        server.pttl(lock.key().as_str()) > 2_000,
        "a re-entry does not shorten the lease"
    );
    tokio::time::sleep(ms(3_500)).await;
    outer.check().unwrap();
    nested.check().unwrap();
    drop((outer, nested));
    let fixed = lock.clone().fixed_lease(ms(600)).owned_by(Owner::new());
    let outer = fixed.lock().await.unwrap();
    let longer = Owner::scope(outer.owner(), async { lock.clone().lock().await.unwrap() }).await;
    assert_eq!(longer.hold_count(), 2);
    assert!(
        longer.remaining() < ms(600),
        "a re-entry does not lengthen the lease"
    );
}

#[tokio::test]
async fn invalid_names_and_options_are_errors_of_the_call() {
    let server = Server::start();
    let locks = locker(&server).await;
    let option = |error: Error| match error {
        Error::Config(error) => error.option().to_owned(),
        other => panic!("{other}"),
    };
    assert_eq!(option(locks.get("").lock().await.unwrap_err()), "key");
    assert_eq!(option(locks.get("").is_locked().await.unwrap_err()), "key");
    assert_eq!(
        option(locks.get("").force_unlock().await.unwrap_err()),
        "key"
    );
    // `run` reports it before it waits for its turn.
    let inner = || locks.get("k").non_reentrant().max_hold(ms(99));
    let outer = locks.get("k").non_reentrant();
    let nested = outer.run(|_| async { inner().run(|_| async {}).await.unwrap_err() });
    assert_eq!(option(nested.await.unwrap()), "max_hold");
    assert_eq!(
        option(locks.get("k").fixed_lease(ms(99)).lock().await.unwrap_err()),
        "fixed_lease"
    );
    assert_eq!(
        option(
            locks
                .get("k")
                .max_hold(ms(99))
                .try_lock()
                .await
                .unwrap_err()
        ),
        "max_hold"
    );
}
