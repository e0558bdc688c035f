//! Critical sections that stop when the lock is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{Server, eventually, key, locker, locker_with, ms};
use lockhound::{
    Error, Guard, HoldState, Lock, Locker, Loss, MultiGuard, MultiLock, MultiSection, Section,
};

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
    let nested = lock
        .run(|_| async { lock.run(|section| async move { section.fence() }).await })
        .await
        .unwrap();
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
    assert!(
        matches!(
            result,
            Err(Error::Lost {
                loss: Loss::NotOwner,
                ..
            })
        ),
        "{result:?}"
    );
    assert!(dropped.load(Ordering::SeqCst));
    lock.run(|_| async {})
        .await
        .expect("the owner may lock again, since the guard is gone");
}

#[tokio::test]
async fn run_reports_a_loss_that_only_the_release_finds() {
    let (server, key) = (Server::start(), key());
    let lock = locker(&server).await.get(&key);
    let result = lock
        .run(|_| async { server.command::<bool>(&["DEL", &key]) })
        .await;
    assert!(
        matches!(
            result,
            Err(Error::Lost {
                loss: Loss::NotOwner,
                ..
            })
        ),
        "{result:?}"
    );
}

#[tokio::test]
async fn run_for_waits_at_most_that_long_without_bounding_the_section() {
    let (server, key) = (Server::start(), key());
    let (lock, others) = (
        locker(&server).await.get(&key),
        locker(&server).await.get(&key),
    );
    let long = lock
        .run_for(ms(200), |_| async { tokio::time::sleep(ms(400)).await })
        .await
        .unwrap();
    assert_eq!(long, Some(()), "the time is that of the wait");
    let guard = others.lock().await.unwrap();
    let begun = std::time::Instant::now();
    let entered = AtomicBool::new(false);
    let none = lock
        .run_for(ms(300), |_| async { entered.store(true, Ordering::SeqCst) })
        .await
        .unwrap();
    assert!(none.is_none() && begun.elapsed() >= ms(300) && !entered.load(Ordering::SeqCst));
    assert!(
        lock.run_for(Duration::ZERO, |_| async {})
            .await
            .unwrap()
            .is_none()
    );
    guard.unlock().await.unwrap();
    let several = locker(&server)
        .await
        .multi([format!("{key}:a"), format!("{key}:b")]);
    assert_eq!(
        several.run_for(ms(200), |_| async { 7 }).await.unwrap(),
        Some(7)
    );
    let held = others.lock().await.unwrap();
    let both = locker(&server)
        .await
        .multi([key.clone(), format!("{key}:b")]);
    assert_eq!(both.run_for(ms(100), |_| async { 7 }).await.unwrap(), None);
    held.unlock().await.unwrap();
}

/// Runs of one owner take turns, which no server knows of.
#[tokio::test]
async fn run_for_waits_at_most_that_long_for_its_turn_and_the_lock() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let lock = locks.get(&key).owned_by(lockhound::Owner::new());
    let (inside, go_on) = (tokio::sync::Notify::new(), tokio::sync::Notify::new());
    let section = lock.run(|_| async {
        inside.notify_one();
        go_on.notified().await;
    });
    let others = async {
        inside.notified().await;
        let begun = std::time::Instant::now();
        assert_eq!(lock.run_for(ms(300), |_| async {}).await.unwrap(), None);
        assert!(begun.elapsed() >= ms(300));
        assert_eq!(
            lock.run_for(Duration::ZERO, |_| async {}).await.unwrap(),
            None
        );
        go_on.notify_one();
    };
    assert!(
        tokio::join!(section, tokio::time::timeout(ms(20_000), others))
            .1
            .is_ok(),
        "it waits for the section"
    );
    assert_eq!(
        lock.run_for(Duration::ZERO, |_| async {}).await.unwrap(),
        Some(()),
        "the turn is free"
    );
}

#[tokio::test]
async fn run_for_stops_its_section_when_the_lock_is_lost() {
    let (server, key) = (Server::start(), key());
    let lock = locker_with(&server, ms(900)).await.get(&key);
    let section = lock.run_for(ms(200), |_| async {
        server.command::<bool>(&["DEL", &key]);
        std::future::pending::<()>().await;
    });
    assert!(matches!(
        section.await,
        Err(Error::Lost {
            loss: Loss::NotOwner,
            ..
        })
    ));
}

#[test]
fn blocking_runs_exclude_each_other_and_enter_again_inside() {
    let (server, key) = (Server::start(), key());
    let locks = Locker::blocking_connect(server.url()).unwrap();
    let inside = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (lock, inside) = (locks.get(&key), Arc::clone(&inside));
            std::thread::spawn(move || {
                for _ in 0..20 {
                    let fences = lock.blocking_run(|section| {
                        assert!(!inside.swap(true, Ordering::SeqCst), "two are inside");
                        section.check().unwrap();
                        let nested = lock.blocking_run(|nested| nested.fence()).unwrap();
                        lock.blocking_lock().unwrap().blocking_unlock().unwrap();
                        inside.store(false, Ordering::SeqCst);
                        (section.fence(), nested)
                    });
                    let (outer, nested) = fences.unwrap();
                    assert_eq!(outer, nested, "it enters again");
                }
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    assert!(!server.exists(&key));
    let lost = locks
        .get(&key)
        .blocking_run(|_| server.command::<bool>(&["DEL", &key]));
    assert!(matches!(lost, Err(Error::Lost { .. })), "{lost:?}");
    let pair = locks.multi([format!("{key}:a"), format!("{key}:b")]);
    assert!(
        pair.blocking_run(|section| section.check().is_ok())
            .unwrap()
    );
    locks.blocking_close();
}

/// The job of each machine takes a moment; timers go off at almost the same time.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_once_per_period_is_done_by_one_machine_and_passed_on() {
    let (server, key, period) = (Server::start(), key(), ms(8_000));
    let mut machines = Vec::new();
    for machine in 0..3 {
        let lock = locker_with(&server, ms(3_000)).await.get(&key);
        machines.push(tokio::spawn(async move {
            lock.once_per(period, |_| async move {
                tokio::time::sleep(ms(50)).await;
                // The first one to come fails.
                if comes_first() {
                    Err(machine)
                } else {
                    Ok(machine)
                }
            })
            .await
            .unwrap()
        }));
    }
    let mut outcomes = Vec::new();
    for machine in machines {
        outcomes.push(machine.await.unwrap());
    }
    let count = |wanted: fn(&Option<Result<i32, i32>>) -> bool| {
        outcomes.iter().filter(|outcome| wanted(outcome)).count()
    };
    let (failed, done, elsewhere) = (
        count(|o| matches!(o, Some(Err(_)))),
        count(|o| matches!(o, Some(Ok(_)))),
        count(Option::is_none),
    );
    assert_eq!((failed, done, elsewhere), (1, 1, 1), "{outcomes:?}");
    let left = Duration::from_millis(server.pttl(&key).try_into().unwrap());
    assert!(
        left <= period / 2 && left > ms(500),
        "kept for half of the period: {left:?}"
    );
    let lock = locker(&server).await.get(&key);
    for wrong in [ms(100), Duration::from_secs(61 * 24 * 3600)] {
        let error = lock
            .once_per(wrong, |_| async { Ok::<_, ()>(()) })
            .await
            .unwrap_err();
        assert!(
            matches!(&error, Error::Config(_)) && error.to_string().contains("period / 2"),
            "{error}"
        );
    }
}

/// Returns true to the first caller.
fn comes_first() -> bool {
    static FIRST: AtomicBool = AtomicBool::new(true);
    FIRST.swap(false, Ordering::SeqCst)
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
    assert!(matches!(
        steps(),
        Err(Error::Lost {
            loss: Loss::NotOwner,
            ..
        })
    ));
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
    assert!(matches!(
        nested.unlock().await,
        Err(Error::Lost {
            loss: Loss::NotOwner,
            ..
        })
    ));
    assert!(matches!(
        outer.unlock().await,
        Err(Error::Lost {
            loss: Loss::NotOwner,
            ..
        })
    ));
    lock.lock().await.unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn a_reentry_notices_a_loss() {
    let (server, key) = (Server::start(), key());
    let lock = locker(&server).await.get(&key);
    let guard = lock.lock().await.unwrap();
    server.command::<bool>(&["DEL", &key]);
    assert!(matches!(
        lock.lock().await,
        Err(Error::Lost {
            loss: Loss::NotOwner,
            ..
        })
    ));
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
async fn a_section_that_outlives_its_run_reports_the_released_lock() {
    let server = Server::start();
    let lock = locker(&server).await.get(key());
    let escaped = lock.run(|section| async move { section }).await.unwrap();
    assert!(matches!(
        escaped.check(),
        Err(Error::Lost {
            loss: Loss::Released,
            ..
        })
    ));
    assert!(escaped.remaining().is_zero());
    assert!(
        !escaped.lost().is_cancelled(),
        "tokens do not fire for a release"
    );
}
