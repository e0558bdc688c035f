//! The task that sends the steps of all locks cannot die silently. This target has one test, since
//! the logger that panics is global to the process.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

use std::sync::atomic::{AtomicUsize, Ordering};

use common::{Server, key, locker, ms};
use lockhound::Owner;
use tokio::time::timeout;

/// How many times the logger still has to panic.
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Panics when it logs that a script is sent.
struct Sick;

impl log::Log for Sick {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let message = record.args().to_string();
        if message.contains("Sending command EVALSHA") {
            let once = PANICS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(1)
            });
            assert!(once.is_err(), "sick of {message}");
        }
    }

    fn flush(&self) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_on_the_way_to_the_server_ends_no_other_lock() {
    log::set_logger(&Sick).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    let server = Server::start();
    let locks = locker(&server).await;
    let lock = || locks.get(key()).owned_by(Owner::new());
    lock().lock().await.unwrap().unlock().await.unwrap();
    PANICS.store(1, Ordering::Relaxed);
    let sick = timeout(ms(5_000), lock().try_lock()).await;
    assert!(matches!(sick, Ok(Err(_))), "told in time: {sick:?}");
    assert_eq!(PANICS.load(Ordering::Relaxed), 0);
    let next = timeout(ms(5_000), lock().try_lock()).await;
    assert!(
        matches!(next, Ok(Ok(Some(_)))),
        "the next is served: {next:?}"
    );
}
