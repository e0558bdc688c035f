//! Critical sections that stop when the lock is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{Server, eventually, key, locker, locker_with, ms};
use lockhound::{Error, Guard, HoldState, Lock, Locker, Loss, MultiGuard, MultiLock, MultiSection, Section};

#[tokio::test]
async fn run_returns_the_sections_result_and_releases_the_lock() {
    let (server, key) = (Server::start(), key());
    let lock = locker(&server).await.get(&key);
    let fence = lock
        .run(|section| async move {
            section.check().unwrap();
            assert!(section.remaining() > ms(29_000) && !section.lost().is_cancelled());
            section.fence()
        })
        .await
        .unwrap();
    assert!(!server.exists(&key));
    let nested = lock.run(|_| async { lock.run(|section| async move { section.fence() }).await }).await.unwrap();
    assert!(nested.unwrap() > fence);
}

#[tokio::test]
async fn run_drops_a_section_whose_lock_is_lost() {
    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let (server, key) = (Server::start(), key());
    let lock = locker_with(&server, ms(900)).await.get(&key);
    let dropped = Arc::new(AtomicBool::new(false));
    let mark = Dropped(Arc::clone(&dropped));
    let result = lock
        .run(|_| async {
            let _mark = mark;
            server.command::<bool>(&["DEL", &key]);
            tokio::time::sleep(Duration::from_secs(60)).await;
        })
        .await;
    assert!(matches!(result, Err(Error::Lost { loss: Loss::NotOwner, .. })), "{result:?}");
    assert!(dropped.load(Ordering::SeqCst));
    lock.run(|_| async {}).await.expect("the owner may lock again, since the guard is gone");
}

#[tokio::test]
async fn run_reports_a_loss_that_only_the_release_finds() {
    let (server, key) = (Server::start(), key());
    let lock = locker(&server).await.get(&key);
    let result = lock.run(|_| async { server.command::<bool>(&["DEL", &key]) }).await;
    assert!(matches!(result, Err(Error::Lost { loss: Loss::NotOwner, .. })), "{result:?}");
}

#[tokio::test]
async fn cancelling_a_token_of_a_guard_cancels_no_other_token() {
    let server = Server::start();
    let lock = locker(&server).await.get(key());
    let guard = lock.lock().await.unwrap();
    guard.lost().cancel();
    assert!(!guard.lost().is_cancelled() && !guard.is_lost());
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn select_and_check_stop_at_a_loss() {
    let (server, key) = (Server::start(), key());
    let lock = locker_with(&server, ms(900)).await.get(&key);
    let guard = lock.lock().await.unwrap();
    server.command::<()>(&["FLUSHALL"]);
    let lost = guard.lost();
    tokio::select! {
        biased;
        () = lost.cancelled() => {}
        () = tokio::time::sleep(Duration::from_secs(60)) => panic!("the section went on"),
    }
    let steps = || -> Result<(), Error> {
        guard.check()?;
        panic!("the next step was done");
    };
    assert!(matches!(steps(), Err(Error::Lost { loss: Loss::NotOwner, .. })));
    assert_eq!(guard.state(), HoldState::Lost(Loss::NotOwner));
}

#[tokio::test]
async fn unlock_after_a_loss_is_an_error_for_every_guard() {
    let (server, key) = (Server::start(), key());
    let lock = locker_with(&server, ms(900)).await.get(&key);
    let (outer, nested) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
    server.command::<bool>(&["DEL", &key]);
    outer.lost().cancelled().await;
    assert!(nested.is_lost(), "a hold is lost with all its guards");
    assert!(matches!(nested.unlock().await, Err(Error::Lost { loss: Loss::NotOwner, .. })));
    assert!(matches!(outer.unlock().await, Err(Error::Lost { loss: Loss::NotOwner, .. })));
    lock.lock().await.unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn a_reentry_notices_a_loss() {
    let (server, key) = (Server::start(), key());
    let lock = locker(&server).await.get(&key);
    let guard = lock.lock().await.unwrap();
    server.command::<bool>(&["DEL", &key]);
    assert!(matches!(lock.lock().await, Err(Error::Lost { loss: Loss::NotOwner, .. })));
    assert!(guard.is_lost(), "long before the next renewal");
}

#[test]
fn handles_and_futures_can_be_sent_and_shared() {
    fn both<T: Send + Sync + 'static>() {}
    fn send<T: Send>(_: &T) {}
    both::<Locker>();
    both::<Lock>();
    both::<Guard>();
    both::<Section>();
    both::<MultiLock>();
    both::<MultiGuard>();
    both::<MultiSection>();
    both::<Error>();
    // Never called: the futures only have to have these types.
    let _ = |locks: Locker, lock: Lock, guard: Guard, all: MultiLock, both: MultiGuard| {
        send(&Locker::connect(""));
        send(&locks.close());
        send(&lock.lock());
        send(&lock.try_lock());
        send(&lock.try_lock_for(ms(1)));
        send(&lock.holder());
        send(&lock.force_unlock());
        send(&lock.run(|_| async {}));
        send(&guard.scope(async {}));
        send(&guard.unlock());
        send(&all.lock());
        send(&all.try_lock());
        send(&all.try_lock_for(ms(1)));
        send(&all.run(|_| async {}));
        send(&both.scope(async {}));
        send(&both.unlock());
    };
}

#[tokio::test]
async fn a_panicking_section_releases_the_lock() {
    let (server, key) = (Server::start(), key());
    let lock = locker(&server).await.get(&key);
    let panicking = tokio::spawn(async move {
        let _: Result<(), Error> = lock.run(|_| async { panic!("on purpose") }).await;
    });
    assert!(panicking.await.unwrap_err().is_panic());
    eventually(ms(500), "released", || !server.exists(&key)).await;
}

#[tokio::test]
async fn a_section_that_outlives_its_run_reports_that_the_lock_was_released() {
    let server = Server::start();
    let lock = locker(&server).await.get(key());
    let escaped = lock.run(|section| async move { section }).await.unwrap();
    assert!(matches!(escaped.check(), Err(Error::Lost { loss: Loss::Released, .. })));
    assert!(escaped.remaining().is_zero());
    assert!(!escaped.lost().is_cancelled(), "tokens do not fire for a release");
}
