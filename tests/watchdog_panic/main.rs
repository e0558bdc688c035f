//! A subscriber that panics changes nothing: locks are renewed, losses reported and waiters
//! granted. There is one test, since a process has one subscriber. (Unit tests show what a panic of
//! the watchdog itself does.)

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Mutex;
use std::time::Instant;

use common::{Server, builder, eventually, key, locker, ms};
use lockhound::{Error, HoldState, Loss, Owner};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The messages that the subscriber has panicked at.
static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Panics at every span and event of the engine.
struct Sick;

impl Sick {
    /// Panics without a message on stderr.
    fn panic(message: &str) -> ! {
        TOLD.lock().unwrap().insert(message.to_owned());
        std::panic::resume_unwind(Box::new("sick"))
    }
}

impl Subscriber for Sick {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        std::thread::current()
            .name()
            .is_some_and(|name| name.starts_with("lockhound"))
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Self::panic("a span")
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut message = Message::default();
        event.record(&mut message);
        Self::panic(&message.0)
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}

    fn register_callsite(&self, _: &'static Metadata<'static>) -> tracing::subscriber::Interest {
        // Whether it is enabled depends on the thread.
        tracing::subscriber::Interest::sometimes()
    }
}

#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_that_panics_affects_no_lock() {
    tracing::subscriber::set_global_default(Sick).unwrap();
    let server = Server::start();
    let lease = ms(1_500);
    let locks = builder(&server.url(), lease).connect().await.unwrap();
    let mut guards = Vec::new();
    for _ in 0..50 {
        guards.push(locks.get(key()).lock().await.unwrap());
    }
    let wanted = locks.get(guards[0].key()).owned_by(Owner::new());
    let waiting = tokio::spawn(async move { wanted.lock().await });
    eventually(ms(1_000), "it waits in line", || locks.stats().waiters == 1).await;

    // They are renewed for two leases.
    let held = Instant::now();
    while held.elapsed() < lease * 2 {
        assert!(
            guards.iter().all(|guard| guard.check().is_ok()),
            "{:?}",
            locks.stats()
        );
        tokio::time::sleep(ms(10)).await;
    }
    assert!(locks.stats().renewals >= 50 * 4, "{:?}", locks.stats());

    // The server falls silent: all are in jeopardy and then lost, and all tokens fire.
    server.stop();
    let silent = Instant::now();
    eventually(lease, "in jeopardy", || {
        guards.iter().all(|guard| guard.state() != HoldState::Safe)
    })
    .await;
    for guard in &guards {
        common::soon(ms(3_000), guard.lost().cancelled())
            .await
            .expect("every token fires");
        assert!(
            matches!(
                guard.state(),
                HoldState::Lost(Loss::RenewalFailed | Loss::Expired)
            ),
            "{guard:?}"
        );
    }
    let told = silent.elapsed();
    assert!(common::machine::in_time(told, lease), "{told:?}");
    assert_eq!(locks.stats().losses.total(), 50);
    server.go_on();
    let keys: Vec<String> = guards.iter().map(|guard| guard.key().to_string()).collect();
    for guard in guards {
        assert!(matches!(guard.unlock().await, Err(Error::Lost { .. })));
    }
    let next = tokio::time::timeout(ms(10_000), waiting)
        .await
        .expect("the next one gets in")
        .unwrap()
        .unwrap();
    next.check().unwrap();
    next.unlock().await.unwrap();
    eventually(ms(2_000), "all are released", || {
        !keys.iter().any(|key| server.exists(key))
    })
    .await;
    for key in &keys {
        locker(&server)
            .await
            .get(key)
            .lock()
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
    }
    common::soon(ms(1_000), locks.close())
        .await
        .expect("closing works");
    let told = TOLD.lock().unwrap().clone();
    for message in [
        "acquired",
        "renewed",
        "in jeopardy",
        "lock lost",
        "released",
    ] {
        assert!(
            told.iter().any(|told| told.contains(message)),
            "{message}: {told:?}"
        );
    }
}
