//! Fires each alert of the guide once: the metric or the event of each row is there when what the
//! row warns of happens. The recorder and the log are those of the process, so there is one test.

#![cfg(all(feature = "metrics", feature = "testing"))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::log::Log;
use common::sentinel::Sentinels;
use common::{Server, builder, eventually, key, ms, several};
use lockhound::{Error, Locker, Owner, testing};
use metrics::{Key, KeyName, Metadata, Recorder, SharedString, Unit};
use metrics_util::registry::{AtomicStorage, Registry};
use tokio::time::sleep;

/// A recorder that keeps all values. The one of `metrics-util` for tests sets gauges to zero when
/// it is looked at.
#[derive(Clone)]
struct Kept(Arc<Registry<Key, AtomicStorage>>);

impl Recorder for Kept {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> metrics::Counter {
        self.0
            .get_or_create_counter(key, |counter| Arc::clone(counter).into())
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> metrics::Gauge {
        self.0
            .get_or_create_gauge(key, |gauge| Arc::clone(gauge).into())
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> metrics::Histogram {
        self.0
            .get_or_create_histogram(key, |histogram| Arc::clone(histogram).into())
    }
}

/// The rows of the guide's table that have fired.
struct Alerts {
    recorder: Kept,
    fired: BTreeSet<&'static str>,
}

impl Alerts {
    /// Returns a counter, a gauge or the longest time in seconds. `label` is the value of a label,
    /// or empty.
    fn look(&self, name: &str, label: &str) -> f64 {
        let is_it = |key: &Key| {
            let mut labels = key.labels().map(metrics::Label::value);
            key.name() == name && (label.is_empty() || labels.any(|value| value == label))
        };
        let (mut found, kept) = (0.0, &self.recorder.0);
        kept.visit_counters(|key, counter| {
            if is_it(key) {
                found += f64::from(u32::try_from(counter.load(Ordering::Relaxed)).unwrap());
            }
        });
        kept.visit_gauges(|key, gauge| {
            if is_it(key) {
                found += f64::from_bits(gauge.load(Ordering::Relaxed));
            }
        });
        kept.visit_histograms(|key, times| {
            if is_it(key) {
                found = times.data().into_iter().fold(found, f64::max);
            }
        });
        found
    }

    /// Forgets the times that were recorded so far.
    fn forget_times(&self) {
        self.recorder.0.visit_histograms(|_, times| times.clear());
    }

    /// Waits until this metric is above a threshold. `row` is the text of the row's first column.
    async fn fires(&mut self, row: &'static str, name: &str, label: &str, above: f64) {
        eventually(ms(20_000), row, || self.look(name, label) > above).await;
        self.fired.insert(row);
    }

    /// Waits until this gauge has a value.
    async fn is(&self, name: &str, label: &str, value: u8) {
        eventually(ms(20_000), name, || {
            self.look(name, label) == f64::from(value)
        })
        .await;
    }
}

/// Returns the first column of each row of the table of alerts.
fn rows() -> Vec<String> {
    let guide = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/docs/guide/operating.md"
    ))
    .unwrap();
    let table = guide
        .split("\n## Alerts\n")
        .nth(1)
        .unwrap()
        .split("\n## ")
        .next()
        .unwrap()
        .to_owned();
    let row = |line: &str| {
        line.strip_prefix("| ")
            .map(|line| line.split(" | ").next().unwrap().to_owned())
    };
    table.lines().filter_map(row).skip(1).collect()
}

#[tokio::test]
async fn each_alert_of_the_guide_fires() {
    let recorder = Kept(Arc::new(Registry::atomic()));
    metrics::set_global_recorder(recorder.clone()).unwrap();
    let mut alerts = Alerts {
        recorder,
        fired: BTreeSet::new(),
    };
    let log = Log::collect_from(tracing_subscriber::filter::LevelFilter::WARN);
    lost_and_given_up(&mut alerts).await;
    mismatched(&mut alerts).await;
    two_branches(&mut alerts, &log).await;
    an_outage(&mut alerts).await;
    a_dead_server(&mut alerts).await;
    a_dead_sentinel(&mut alerts).await;
    late_renewals(&mut alerts).await;
    slow_answers(&mut alerts).await;
    let fired: Vec<String> = rows()
        .into_iter()
        .filter(|row| !alerts.fired.contains(row.as_str()))
        .collect();
    assert_eq!(fired, Vec::<String>::new(), "these rows did not fire");
    assert_eq!(
        alerts.fired.len(),
        rows().len(),
        "these fired: {:?}",
        alerts.fired
    );
}

async fn lost_and_given_up(alerts: &mut Alerts) {
    let server = Server::start();
    let locks = builder(&server.url(), ms(1_500)).connect().await.unwrap();
    let lock = locks.get(key());
    let guard = lock.lock().await.unwrap();
    let other = lock.clone().owned_by(Owner::new());
    assert!(other.try_lock_for(ms(300)).await.unwrap().is_none());
    alerts
        .fires(
            "`lockhound_attempts_total`: `timed_out`",
            "lockhound_attempts_total",
            "timed_out",
            0.0,
        )
        .await;
    assert!(other.try_lock_for(ms(300)).await.unwrap().is_none());
    alerts
        .fires(
            "`lockhound_wait_seconds`, p99",
            "lockhound_wait_seconds",
            "timed_out",
            0.25,
        )
        .await;
    server.command::<bool>(&["DEL", lock.key().as_str()]);
    guard.lost().cancelled().await;
    let row = "`lockhound_losses_total`: `not_owner`, `renewal_failed`, `expired`";
    alerts
        .fires(row, "lockhound_losses_total", "not_owner", 0.0)
        .await;
    drop(guard);
    alerts
        .fires(
            "`lockhound_hold_seconds`, max",
            "lockhound_hold_seconds",
            "",
            0.25,
        )
        .await;
    server.command::<()>(&["SET", lock.key().as_str(), "x"]);
    assert!(matches!(lock.lock().await, Err(Error::Server { .. })));
    alerts
        .fires(
            "`lockhound_attempts_total`: `refused`",
            "lockhound_attempts_total",
            "refused",
            0.0,
        )
        .await;
    locks.close().await;
}

async fn mismatched(alerts: &mut Alerts) {
    let server = testing::Server::new();
    let locks = Locker::builder().memory(&server).connect().await.unwrap();
    locks
        .get(key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    server.duplicate_reply();
    // Which of the two replies belongs to which command is only known by their numbers.
    for _ in 0..2 {
        if let Ok(Some(guard)) = locks.get(key()).try_lock().await {
            drop(guard.unlock().await);
        }
    }
    alerts
        .fires(
            "`lockhound_mismatched_replies_total`",
            "lockhound_mismatched_replies_total",
            "",
            0.0,
        )
        .await;
    locks.close().await;
}

async fn two_branches(alerts: &mut Alerts, log: &Log) {
    let server = Server::start();
    let locks = builder(&server.url(), ms(10_000)).connect().await.unwrap();
    let lock = locks.get(key());
    let (older, newer) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
    older.unlock().await.unwrap();
    // Guards that are dropped within a millisecond count as dropped together.
    sleep(ms(5)).await;
    newer.unlock().await.unwrap();
    eventually(ms(20_000), "the warning", || {
        log.text()
            .contains("a guard was released before a newer one")
    })
    .await;
    alerts
        .fired
        .insert("warning `a guard was released before a newer one ..`");
    locks.close().await;
}

async fn an_outage(alerts: &mut Alerts) {
    let server = Server::start();
    let locks = builder(&server.url(), ms(3_000))
        .command_timeout(ms(300))
        .connect()
        .await
        .unwrap();
    let guard = locks.get(key()).lock().await.unwrap();
    server.stop();
    assert!(matches!(
        locks.get(key()).try_lock().await,
        Err(Error::Unavailable { .. })
    ));
    alerts
        .fires(
            "`lockhound_attempts_total`: `unavailable`",
            "lockhound_attempts_total",
            "unavailable",
            0.0,
        )
        .await;
    alerts
        .fires(
            "`lockhound_pending_undos`",
            "lockhound_pending_undos",
            "",
            0.0,
        )
        .await;
    alerts
        .fires("`lockhound_holds`", "lockhound_holds", "", 0.0)
        .await;
    guard.lost().cancelled().await;
    alerts
        .fires(
            "`lockhound_renewal_errors_total`",
            "lockhound_renewal_errors_total",
            "",
            0.0,
        )
        .await;
    server.go_on();
    drop(guard);
    locks.close().await;
}

async fn a_dead_server(alerts: &mut Alerts) {
    let servers = several::servers(3);
    let locks = several::over(&servers, ms(3_000))
        .restart_quarantine(Duration::ZERO)
        .connect()
        .await
        .unwrap();
    let node = servers[1].url();
    alerts.is("lockhound_servers_voting", "", 3).await;
    // Other lockers have taken theirs back.
    alerts.is("lockhound_servers", "", 3).await;
    alerts.is("lockhound_server_up", &node, 1).await;
    servers[1].kill();
    alerts.is("lockhound_servers_voting", "", 2).await;
    alerts.fired.insert("`lockhound_servers_voting`");
    alerts.is("lockhound_server_up", &node, 0).await;
    alerts.fired.insert("`lockhound_server_up`");
    assert!(
        alerts.look("lockhound_servers", "") > 2.0,
        "it is still one of them"
    );
    servers[1].restart();
    alerts.is("lockhound_servers_voting", "", 3).await;
    alerts.is("lockhound_server_up", &node, 1).await;
    locks.close().await;
    drop(locks);
    alerts.is("lockhound_servers", "", 0).await;
}

async fn a_dead_sentinel(alerts: &mut Alerts) {
    let group = Sentinels::start();
    let locks = group.builder(ms(6_000)).connect().await.unwrap();
    let sentinel = &group.sentinels[0];
    let node = format!("redis-sentinel://127.0.0.1:{}", sentinel.port());
    alerts.is("lockhound_server_up", &node, 1).await;
    sentinel.kill();
    alerts.is("lockhound_server_up", &node, 0).await;
    sentinel.restart();
    alerts.is("lockhound_server_up", &node, 1).await;
    locks.close().await;
}

/// The locker lives in this runtime, which has no time for it when its renewal is due.
async fn late_renewals(alerts: &mut Alerts) {
    alerts.forget_times();
    let server = testing::Server::new();
    let locks = Locker::builder()
        .memory(&server)
        .lease(ms(3_000))
        .connect()
        .await
        .unwrap();
    let guard = locks.get(key()).lock().await.unwrap();
    // By now the watchdog has planned the renewal for the end of the first second.
    sleep(ms(500)).await;
    std::thread::sleep(Duration::from_millis(1_000));
    let row = "`lockhound_renewal_lateness_seconds`, p99";
    alerts
        .fires(row, "lockhound_renewal_lateness_seconds", "", 0.1)
        .await;
    guard.unlock().await.unwrap();
    locks.close().await;
}

async fn slow_answers(alerts: &mut Alerts) {
    alerts.forget_times();
    let server = testing::Server::new();
    let builder = Locker::builder()
        .memory(&server)
        .lease(ms(1_500))
        .command_timeout(ms(400));
    let locks = builder.connect().await.unwrap();
    let guard = locks.get(key()).lock().await.unwrap();
    server.delay(ms(250)..=ms(250));
    let row = "`lockhound_renewal_round_trip_seconds`, p99";
    alerts
        .fires(row, "lockhound_renewal_round_trip_seconds", "", 0.2)
        .await;
    sleep(ms(1)).await;
    guard.unlock().await.unwrap();
    locks.close().await;
}
