//! The watchdog cannot die silently. One test: the subscriber that panics is the whole process's.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fmt::Debug;
use std::sync::Mutex;

use common::{Server, builder, eventually, key, locker, ms};
use lockhound::{Error, Guard, HoldState, Locker, Loss, Owner};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The messages that the subscriber panics at.
static POISON: Mutex<Vec<&str>> = Mutex::new(Vec::new());

/// Panics in the engine's thread, when it is told of one of these events.
struct Sick;

impl Subscriber for Sick {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        std::thread::current().name() == Some("lockhound")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut message = Message::default();
        event.record(&mut message);
        let poison = POISON.lock().unwrap().iter().any(|text| message.0.contains(text));
        assert!(!poison, "sick of {}", message.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}

    fn register_callsite(&self, _: &'static Metadata<'static>) -> tracing::subscriber::Interest {
        // Which thread asks is another question each time.
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
async fn a_panic_in_the_watchdogs_task_fires_every_token_and_grants_nothing_more() {
    tracing::subscriber::set_global_default(Sick).unwrap();
    let server = Server::start();
    // A loss that is told panics too.
    dies(&server, &["renewed", "lock lost"], || {}).await;
    // The hold that is being looked at is in none of the watchdog's tables just then.
    dies(&server, &["in jeopardy"], || server.stop()).await;
}

/// Everything that hangs on a locker whose watchdog panics at one of these events.
async fn dies(server: &Server, at: &[&'static str], provoke: impl FnOnce()) {
    let locks = builder(&server.url(), ms(1_500)).connect().await.unwrap();
    let foreign = locker(server).await;
    let (here, there) = (key(), key());
    let mut guards = Vec::new();
    for _ in 0..50 {
        guards.push(locks.get(key()).lock().await.unwrap());
    }
    guards.push(locks.get(&here).lock().await.unwrap());
    guards.push(locks.get(&here).lock().await.unwrap());
    let held_there = foreign.get(&there).lock().await.unwrap();
    let waiters: Vec<_> = [&here, &there]
        .into_iter()
        .flat_map(|key| {
            let lock = || locks.get(key).owned_by(Owner::new());
            let (forever, bounded) = (lock(), lock());
            let forever = tokio::spawn(async move { forever.lock().await.map(Some) });
            [forever, tokio::spawn(async move { bounded.try_lock_for(ms(60_000)).await })]
        })
        .collect();
    eventually(ms(1_000), "they stand in line", || locks.stats().waiters == 4).await;
    POISON.lock().unwrap().extend(at);
    provoke();
    for guard in &guards {
        tokio::time::timeout(ms(3_000), guard.lost().cancelled()).await.expect("every token fires");
        assert_eq!(guard.state(), HoldState::Lost(Loss::RenewalFailed));
        // Whoever hears of it and asks again is told why.
        assert_told(locks.get(guard.key().clone()).lock().await, at[0]);
    }
    POISON.lock().unwrap().clear();
    server.go_on();
    for waiter in waiters {
        assert_told(tokio::time::timeout(ms(1_000), waiter).await.expect("every waiter returns").unwrap(), at[0]);
    }
    assert_refuses(&locks, at[0]).await;
    assert_leaves_nothing(server, &locks, guards).await;
    held_there.check().unwrap();
    locker(server).await.get(&here).lock().await.unwrap().unlock().await.unwrap();
}

async fn assert_refuses(locks: &Locker, reason: &str) {
    let lock = || locks.get(key()).owned_by(Owner::new());
    assert_told(lock().lock().await, reason);
    assert_told(lock().try_lock().await, reason);
    assert_told(lock().try_lock_for(ms(100)).await, reason);
    assert_told(lock().fixed_lease(ms(500)).lock().await, reason);
    assert_told(lock().run(|_| async {}).await, reason);
}

/// Guards still send their releases.
async fn assert_leaves_nothing(server: &Server, locks: &Locker, guards: Vec<Guard>) {
    let keys: Vec<String> = guards.iter().map(|guard| guard.key().to_string()).collect();
    for guard in guards {
        assert!(matches!(guard.unlock().await, Err(Error::Lost(Loss::RenewalFailed))));
    }
    let stats = locks.stats();
    assert_eq!(stats.losses.renewal_failed, 51, "{stats:?}");
    eventually(ms(1_000), "released, long before the leases are over", || !keys.iter().any(|key| server.exists(key)))
        .await;
    tokio::time::timeout(ms(1_000), locks.close()).await.expect("closing works");
}

fn assert_told<T: Debug>(answer: Result<T, Error>, reason: &str) {
    let Err(error @ Error::WatchdogPanicked { .. }) = answer else { panic!("{answer:?}") };
    let text = error.to_string();
    assert!(text.contains("panic") && text.contains("sick of") && text.contains(reason), "{text}");
    assert!(text.contains("close this locker and connect a new one"), "{text}");
}
