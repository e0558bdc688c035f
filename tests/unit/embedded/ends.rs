//! How embedded sessions end: by closing, or with their runtime.

use std::task::{Context, Poll, Waker};

use tokio::task::yield_now;

use super::*;

#[tokio::test(start_paused = true)]
async fn closing_ends_all_tasks() {
    let session = embedded();
    let (hold, waiting) = (hold(&session, TERMS), Arc::clone(&session));
    let guard = register(&session, &hold);
    let waiter = tokio::spawn(async move {
        waiting
            .wait_in_line(&"w".into(), &caller(), &Want::of_lock(TERMS), None)
            .await
            .err()
    });
    sleep(MS).await;
    session.close().await;
    assert!(matches!(waiter.await, Ok(Some(Error::Closed))));
    assert!(hold.token().is_cancelled());
    assert_eq!(guard.as_ref().state(), HoldState::Lost(Loss::Closed));
    for _ in 0..5 {
        yield_now().await;
    }
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 0);
    drop((guard, hold));
    session.close().await;
    assert_eq!(Arc::strong_count(&session), 1, "nothing is left");
    assert!(matches!(
        session
            .wait_in_line(&"w".into(), &caller(), &Want::of_lock(TERMS), None)
            .await,
        Err(Error::Closed)
    ));
}

#[test]
fn lockers_end_with_their_runtime() {
    let runtime = paused();
    let (session, guards, waiter) = runtime.block_on(async {
        let session = embedded();
        let guards = [TERMS, TERMS].map(|terms| register(&session, &hold(&session, terms)));
        let waiting = Arc::clone(&session);
        // Its caller is on another thread, and gets the error.
        let waiter = std::thread::spawn(move || {
            futures_executor::block_on(waiting.wait_in_line(
                &"w".into(),
                &caller(),
                &Want::of_lock(TERMS),
                None,
            ))
            .err()
        });
        while session.stats().waiters == 0 {
            yield_now().await;
        }
        (session, guards, waiter)
    });
    let tokens = guards.each_ref().map(|guard| guard.as_ref().token());
    drop(runtime);
    assert!(
        matches!(waiter.join(), Ok(Some(Error::Closed))),
        "even if its ask was never polled"
    );
    assert!(
        tokens
            .iter()
            .all(tokio_util::sync::CancellationToken::is_cancelled),
        "nothing renews any more"
    );
    assert!(
        guards
            .iter()
            .all(|guard| matches!(guard.as_ref().state(), HoldState::Lost(_)))
    );
    let [first, second] = guards;
    assert!(matches!(
        futures_executor::block_on(RawGuards::from(first).unlock()),
        Err(Error::Lost { .. })
    ));
    drop(second);
    let call = futures_executor::block_on(session.wait_in_line(
        &"k".into(),
        &caller(),
        &Want::of_lock(TERMS),
        Some(session.now() + SECOND),
    ));
    assert!(matches!(call, Err(Error::Closed)));
    futures_executor::block_on(session.close());
    session.engine.stop();
    assert_eq!(
        (
            session.stats().holds,
            session.stats().waiters,
            session.stats().pending
        ),
        (0, 0, 0)
    );
    assert_eq!(Arc::strong_count(&session), 1, "nothing is left");
}

/// The call has submitted an ask, and the runner has not been polled yet.
#[test]
fn a_call_just_begun_when_the_runtime_ends_gets_an_error() {
    let runtime = paused();
    let entered = runtime.enter();
    let session = embedded();
    let (key, caller) = (Key::from("k"), caller());
    let want = Want::of_lock(TERMS);
    let mut call = Box::pin(session.wait_in_line(&key, &caller, &want, None));
    let mut woken_by_nobody = Context::from_waker(Waker::noop());
    assert!(call.as_mut().poll(&mut woken_by_nobody).is_pending());
    drop(entered);
    drop(runtime);
    assert!(matches!(
        call.as_mut().poll(&mut woken_by_nobody),
        Poll::Ready(Err(Error::Closed))
    ));
}
