//! Servers that are far apart: contenders for one lock, to each of whom another server is the nearest.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::distance::Distances;
use common::several::{over_urls, servers};
use common::{Server, key, ms};
use lockhound::Locker;

/// The round trips to the three servers, for each contender in another order.
const ROUND_TRIPS: [[u64; 3]; 6] = [[2, 9, 16], [9, 16, 2], [16, 2, 9], [2, 16, 9], [16, 9, 2], [9, 2, 16]];

/// What became of a contest.
#[derive(Debug)]
struct Contest {
    acquisitions: usize,
    took: Duration,
    /// The scripts that the servers ran, and those for an acquisition.
    scripts: u64,
    scripts_each: f64,
    /// The longest time in which nobody was inside, and all wanted to be.
    longest_free: Duration,
    /// The longest that one waited, while others were inside too.
    longest_wait: Duration,
}

impl Contest {
    fn rate(&self) -> f64 {
        self.acquisitions as f64 / self.took.as_secs_f64()
    }
}

fn scripts(servers: &[Server]) -> u64 {
    servers.iter().map(|server| server.calls("evalsha") + server.calls("eval")).sum()
}

/// So many lockers want one lock all the time, until it was acquired so often.
async fn contest(contenders: usize, acquisitions: usize) -> Contest {
    let (servers, distances, key) = (servers(3), Distances::new(), key());
    let mut lockers: Vec<Locker> = Vec::new();
    for at in 0..contenders {
        let urls = servers
            .iter()
            .zip(ROUND_TRIPS[at % ROUND_TRIPS.len()])
            .map(|(server, round_trip)| format!("redis://127.0.0.1:{}", distances.to(server.port(), ms(round_trip))));
        lockers.push(over_urls(urls, ms(30_000)).connect().await.unwrap());
    }
    servers.iter().for_each(|server| server.command::<()>(&["CONFIG", "RESETSTAT"]));
    // By whom it was entered and left, and when.
    let visits = Arc::<Mutex<Vec<(Instant, Instant, Duration)>>>::default();
    let start = Instant::now();
    let run = |locks: Locker| {
        let (lock, visits) = (locks.get(&key), Arc::clone(&visits));
        tokio::spawn(async move {
            while visits.lock().unwrap().len() < acquisitions {
                let asked = Instant::now();
                let guard = lock.lock().await.unwrap();
                let entered = Instant::now();
                guard.check().unwrap();
                visits.lock().unwrap().push((entered, Instant::now(), entered - asked));
                guard.unlock().await.unwrap();
            }
        })
    };
    let tasks: Vec<_> = lockers.iter().cloned().map(run).collect();
    for task in tasks {
        task.await.unwrap();
    }
    let took = start.elapsed();
    let scripts = scripts(&servers);
    let mut visits = std::mem::take(&mut *visits.lock().unwrap());
    visits.sort_unstable_by_key(|visit| visit.0);
    assert!(visits.windows(2).all(|pair| pair[0].1 <= pair[1].0), "one inside at a time");
    let gaps = visits.windows(2).map(|pair| pair[1].0 - pair[0].1);
    Contest {
        acquisitions: visits.len(),
        took,
        scripts,
        scripts_each: scripts as f64 / visits.len() as f64,
        longest_free: gaps.max().unwrap(),
        longest_wait: visits.iter().map(|visit| visit.2).max().unwrap(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zz_measure() {
    for contenders in [1, 2, 10, 20] {
        let contest = contest(contenders, 150).await;
        eprintln!("{contenders}: {:.1}/s {contest:?}", contest.rate());
    }
}
