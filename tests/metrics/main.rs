//! The `metrics` facade: what a program's recorder receives.

#![cfg(feature = "metrics")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

use std::collections::BTreeMap;

use common::{Server, builder, eventually, key, ms};
use metrics::{SharedString, Unit};
use metrics_util::CompositeKey;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

/// A series, with its unit and its description. Reading the values of a histogram takes them.
type Series = (CompositeKey, Option<Unit>, Option<SharedString>, DebugValue);

/// Returns the counters, and the number of recorded values, by name and labels.
fn told(series: &[Series]) -> BTreeMap<String, u64> {
    let values = series.iter().map(|(key, _, _, value)| {
        let labels: String = key
            .key()
            .labels()
            .map(|l| format!(" {}={}", l.key(), l.value()))
            .collect();
        let count = match value {
            DebugValue::Counter(count) => *count,
            DebugValue::Histogram(times) => u64::try_from(times.len()).unwrap(),
            DebugValue::Gauge(_) => 0,
        };
        (format!("{}{labels}", key.key().name()), count)
    });
    values.collect()
}

/// Returns the rows of the guide's table: a name, a type, and what it counts.
fn documented() -> Vec<[String; 3]> {
    let guide = include_str!("../../docs/guide/operating.md");
    let rows = guide
        .lines()
        .filter_map(|line| line.strip_prefix("| `lockhound_"));
    let rows = rows.map(|row| row.split(" | ").collect::<Vec<_>>());
    // The table of alerts has fewer columns.
    let rows = rows.filter(|row| ["counter", "gauge", "histogram"].contains(&row[1]));
    rows.map(|row| {
        let name = format!("lockhound_{}", row[0].trim_end_matches('`'));
        let what = row[2].replace('`', "");
        let what = what.split(": [").next().unwrap().to_owned();
        [name, row[1].to_owned(), what]
    })
    .collect()
}

/// The recorder describes what the program reads, in the words of the guide.
fn assert_described(series: &[Series]) {
    let described: BTreeMap<_, _> = series
        .iter()
        .map(|(key, unit, what, _)| {
            let name = key.key().name().to_owned();
            let what = what
                .as_ref()
                .unwrap_or_else(|| panic!("{name} has no description"));
            assert!(unit.is_some(), "{name} has no unit");
            (name, what.to_string())
        })
        .collect();
    let documented = documented();
    assert_eq!(documented.len(), 20, "{documented:?}");
    for [name, kind, what] in &documented {
        // Each has been reported by now.
        assert_eq!(described.get(name), Some(what), "{kind}");
    }
    assert_eq!(described.len(), documented.len(), "{described:?}");
}

#[tokio::test]
async fn the_programs_recorder_receives_counts_and_times() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install().unwrap();
    let server = Server::start();
    let locks = builder(&server.url(), ms(1_500))
        .command_timeout(ms(450))
        .connect()
        .await
        .unwrap();
    let counters = told(&snapshotter.snapshot().into_vec())
        .into_iter()
        .filter(|(name, _)| name.contains("_total"));
    let counters: Vec<_> = counters.map(|(_, count)| count).collect();
    assert_eq!(
        counters, [0; 103],
        "each begins before its first event: 5, and for each of 7 kinds 8 outcomes, and losses for 6 reasons"
    );
    let lost = locks.get(key());
    let guard = lost.lock().await.unwrap();
    locks
        .get(key())
        .class("orders")
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    eventually(ms(1_000), "a renewal", || locks.stats().renewals > 0).await;
    server.command::<bool>(&["DEL", lost.key().as_str()]);
    guard.lost().cancelled().await;
    drop(guard);
    let prices = locks.rw(key());
    drop(prices.read().lock().await.unwrap());
    let guard = lost.lock().await.unwrap();
    server.command::<bool>(&["DEL", lost.key().as_str()]);
    assert!(guard.unlock().await.is_err());
    locks.close().await;
    let series = snapshotter.snapshot().into_vec();
    assert_described(&series);
    let told = told(&series);
    let of = |name: &str| {
        *told
            .get(name)
            .unwrap_or_else(|| panic!("{name} is not in {told:?}"))
    };
    // The one with a class has series of its own.
    assert_eq!(of("lockhound_attempts_total kind=lock outcome=granted"), 2);
    assert_eq!(
        of("lockhound_attempts_total kind=lock outcome=granted class=orders"),
        1
    );
    assert_eq!(
        of("lockhound_losses_total kind=lock reason=not_owner"),
        2,
        "one is found at the release"
    );
    assert_eq!(of("lockhound_attempts_total kind=read outcome=granted"), 1);
    assert_eq!(of("lockhound_hold_seconds kind=read"), 1);
    assert!(of("lockhound_renewals_total") >= 1);
    assert_eq!(of("lockhound_wait_seconds kind=lock outcome=granted"), 2);
    assert_eq!(
        of("lockhound_wait_seconds kind=lock outcome=granted class=orders"),
        1
    );
    assert_eq!(of("lockhound_hold_seconds kind=lock"), 2);
    assert_eq!(of("lockhound_hold_seconds kind=lock class=orders"), 1);
    assert!(of("lockhound_renewal_lateness_seconds") >= 1);
    assert!(of("lockhound_renewal_batch_locks") >= 1);
    assert!(
        of(&format!(
            "lockhound_renewal_round_trip_seconds node={}",
            server.url()
        )) >= 1
    );
}
