//! `restart_quarantine`: a server that restarted has no vote until the leases that it may have
//! forgotten are over.

use std::time::{Duration, Instant};

use crate::common::proxy::{Mode, Proxy};
use crate::common::record::{self, Record, Visit};
use crate::common::several::{on, over, over_urls, servers};
use crate::common::{Server, eventually, key, ms};
use lockhound::{Error, Guard, Locker};

/// Returns a locker whose servers abstain for `quarantine` after a restart.
async fn cautious(
    servers: &[Server],
    lease: Duration,
    quarantine: Duration,
) -> Result<Locker, Error> {
    over(servers, lease)
        .restart_quarantine(quarantine)
        .connect()
        .await
}

/// Takes the lock on two of three servers, since the third cannot be reached, and restarts one of
/// the two, which forgets it. Returns the holder's guard, when it was granted, and another locker.
async fn forgotten(
    servers: &[Server],
    key: &str,
    quarantine: Duration,
) -> (Guard, Instant, Locker) {
    // Servers report their uptime in whole seconds: one second more makes sure that the quarantine
    // is over.
    if !quarantine.is_zero() {
        tokio::time::sleep(quarantine + ms(1_100)).await;
    }
    let proxy = Proxy::start(servers[2].port());
    let urls = [servers[0].url(), servers[1].url(), proxy.url()];
    let first = over_urls(urls, ms(1_000))
        .restart_quarantine(quarantine)
        .connect()
        .await
        .unwrap();
    let second = cautious(servers, ms(1_000), quarantine).await.unwrap();
    proxy.set(Mode::Refuse);
    proxy.cut();
    tokio::time::sleep(ms(100)).await;
    let granted = Instant::now();
    let guard = first.get(key).fixed_lease(ms(1_000)).lock().await.unwrap();
    assert_eq!(
        servers
            .iter()
            .map(|server| server.exists(key))
            .collect::<Vec<_>>(),
        [true, true, false]
    );
    servers[1].kill();
    servers[1].restart();
    let connected = || {
        servers[1]
            .command::<String>(&["CLIENT", "LIST"])
            .contains(second.id())
    };
    eventually(ms(10_000), "the other is connected again", connected).await;
    (guard, granted, second)
}

#[tokio::test]
async fn without_quarantine_a_restarted_server_lets_two_holders_in() {
    let (servers, key) = (servers(3), key());
    let (guard, _, second) = forgotten(&servers, &key, Duration::ZERO).await;
    // At once, except for the time that it takes to identify the server that came back.
    let both = loop {
        guard.check().expect("the first has not run out");
        match second.get(&key).try_lock().await {
            Ok(Some(both)) => break both,
            _ => tokio::time::sleep(ms(2)).await,
        }
    };
    guard
        .check()
        .expect("two of three said yes, and the first has not run out");
    both.unlock().await.unwrap();
}

#[tokio::test]
async fn with_a_quarantine_the_lock_is_free_when_its_lease_is_over() {
    let (servers, key) = (servers(3), key());
    let (guard, granted, second) = forgotten(&servers, &key, ms(1_000)).await;
    assert!(
        second
            .get(&key)
            .try_lock_for(ms(100))
            .await
            .unwrap()
            .is_none(),
        "one held, one free, one abstains"
    );
    let next = second.get(&key).lock().await.unwrap();
    assert!(granted.elapsed() >= ms(1_000), "{:?}", granted.elapsed());
    guard.check().unwrap_err();
    next.unlock().await.unwrap();
    assert!(guard.unlock().await.is_err());
}

#[tokio::test]
async fn a_fresh_deployment_reports_who_abstains_and_lock_waits() {
    let (servers, key) = (servers(3), key());
    let started = Instant::now();
    let locks = cautious(&servers, ms(1_500), ms(1_500)).await.unwrap();
    let Err(Error::Unavailable { nodes, .. }) = locks.get(&key).try_lock().await else {
        panic!("nobody votes")
    };
    assert!(nodes.len() >= 2, "{nodes:?}");
    for node in &nodes {
        assert!(
            node.reason().contains("abstains for another 1.") && node.reason().contains("= 1.5s"),
            "{nodes:?}"
        );
    }
    assert_eq!(on(&servers, &key), 0);
    locks
        .get(&key)
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    assert!(started.elapsed() > ms(1_350), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_lease_that_outlasts_the_quarantine_is_refused() {
    let servers = servers(3);
    let locks = cautious(&servers, ms(1_000), ms(2_000)).await.unwrap();
    let error = locks
        .get(key())
        .fixed_lease(ms(2_001))
        .lock()
        .await
        .unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(error, Error::Config(_)) && text.contains("2.001s") && text.contains("= 2s"),
        "{text}"
    );
    let error = cautious(&servers, ms(1_000), ms(999)).await.unwrap_err();
    assert!(error.to_string().contains("999ms"), "{error}");
    let hasty = over(&servers, ms(1_000)).connect().await.unwrap();
    hasty
        .get(key())
        .fixed_lease(ms(60_000))
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

/// Restarts one server after the other while four lockers contend.
async fn contest(quarantine: Duration) -> Record {
    let (servers, key) = (servers(3), key());
    tokio::time::sleep(quarantine + ms(1_100)).await;
    let end = Instant::now() + ms(3_500);
    let mut tasks = Vec::new();
    for who in 0..4 {
        let locks = over(&servers, ms(300))
            .restart_quarantine(quarantine)
            .outage_tolerance(ms(10_000));
        let (locks, key) = (locks.connect().await.unwrap(), key.clone());
        tasks.push(tokio::spawn(async move {
            let mut visits = Vec::new();
            while Instant::now() < end {
                let Ok(guard) = locks.get(&key).lock().await else {
                    continue;
                };
                let entered = record::now();
                let lost = guard.lost();
                tokio::select! {
                    () = lost.cancelled() => {}
                    () = tokio::time::sleep(ms(20)) => {}
                }
                let (fence, left) = (guard.fence().get(), record::now());
                // A visit of a lost guard ended when its token fired, which is before `left`.
                if !guard.is_lost() {
                    visits.push(Visit {
                        key: key.clone(),
                        who: who.to_string(),
                        fence,
                        entered,
                        left,
                    });
                }
                drop(guard.unlock().await);
            }
            visits
        }));
    }
    for server in &servers {
        tokio::time::sleep(ms(200)).await;
        server.kill();
        server.restart();
        tokio::time::sleep(quarantine).await;
    }
    let mut record = Record::default();
    for task in tasks {
        record.visits.extend(task.await.unwrap());
    }
    record
}

#[tokio::test]
async fn restarts_under_contention_never_let_two_holders_in() {
    let record = contest(ms(300)).await;
    record.check().unwrap();
    assert!(record.visits.len() > 20, "{}", record.visits.len());
}
