//! Servers that are far apart, and contenders for one lock that are each nearest to another server.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::distance::Distances;
use common::machine::{Stalls, starved};
use common::several::{hold_as_redisson, over_urls, servers};
use common::{Server, key, ms};
use lockhound::Locker;

/// The round trips to the three servers in ms, in another order for each contender.
const FAR: [[u64; 3]; 6] = [
    [2, 9, 16],
    [9, 16, 2],
    [16, 2, 9],
    [2, 16, 9],
    [16, 9, 2],
    [9, 2, 16],
];

/// The result of a contest.
#[derive(Debug)]
struct Contest {
    acquisitions: usize,
    /// Acquisitions per second.
    rate: f64,
    /// The scripts that all servers ran.
    scripts: u64,
    /// The longest time for which the lock was free while all wanted it.
    longest_free: Duration,
    /// The longest time for which a thread had to wait for a core meanwhile.
    stalled: Duration,
}

impl Contest {
    fn scripts_each(&self) -> f64 {
        self.scripts as f64 / self.acquisitions as f64
    }

    /// A round that a stall interrupts comes to nothing, and those that it made collide pause for
    /// longer and longer.
    fn kept_nobody_out(&self) -> bool {
        self.longest_free < ms(1_000) + self.stalled * 10
    }
}

/// Returns how many scripts these servers have run.
fn scripts(servers: &[Server]) -> u64 {
    servers
        .iter()
        .map(|server| server.calls("evalsha") + server.calls("eval"))
        .sum()
}

/// Lets lockers contend for one lock until it was acquired a number of times, after something was
/// done to the servers.
async fn contest(
    contenders: usize,
    acquisitions: usize,
    round_trips: &[[u64; 3]],
    hold: Duration,
    before: impl Fn(&[Server], &str),
) -> Contest {
    let (servers, distances, key) = (servers(3), Distances::new(), key());
    let mut lockers: Vec<Locker> = Vec::new();
    for at in 0..contenders {
        let urls =
            servers
                .iter()
                .zip(round_trips[at % round_trips.len()])
                .map(|(server, round_trip)| {
                    format!(
                        "redis://127.0.0.1:{}",
                        distances.to(server.port(), ms(round_trip))
                    )
                });
        lockers.push(over_urls(urls, ms(30_000)).connect().await.unwrap());
    }
    let scripts_before = scripts(&servers);
    before(&servers, &key);
    // When each visit began and ended.
    let visits = Arc::<Mutex<Vec<(Instant, Instant)>>>::default();
    let stalls = Stalls::watch();
    let start = Instant::now();
    let run = |locks: Locker| {
        let (lock, visits) = (locks.get(&key), Arc::clone(&visits));
        tokio::spawn(async move {
            while visits.lock().unwrap().len() < acquisitions {
                let guard = lock.lock().await.unwrap();
                let entered = Instant::now();
                tokio::time::sleep(hold).await;
                guard.check().unwrap();
                visits.lock().unwrap().push((entered, Instant::now()));
                guard.unlock().await.unwrap();
            }
        })
    };
    let tasks: Vec<_> = lockers.iter().cloned().map(run).collect();
    for task in tasks {
        task.await.unwrap();
    }
    let took = start.elapsed();
    servers.iter().for_each(Server::go_on);
    let scripts = scripts(&servers) - scripts_before;
    let mut visits = std::mem::take(&mut *visits.lock().unwrap());
    visits.sort_unstable_by_key(|visit| visit.0);
    assert!(
        visits.windows(2).all(|pair| pair[0].1 <= pair[1].0),
        "one inside at a time"
    );
    let gaps = visits.windows(2).map(|pair| pair[1].0 - pair[0].1);
    let acquisitions = visits.len();
    let rate = acquisitions as f64 / took.as_secs_f64();
    let contest = Contest {
        acquisitions,
        rate,
        scripts,
        longest_free: gaps.max().unwrap(),
        stalled: stalls.longest(),
    };
    eprintln!("{contenders} contenders: {contest:?}");
    contest
}

/// If one message woke all contenders, and each asked three servers at once, each would get the
/// nearest one, and none a majority.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_contenders_do_not_keep_each_other_out() {
    let contest = contest(20, 150, &FAR, ms(0), |_, _| ()).await;
    let each = contest.scripts_each();
    assert!(
        each <= 30.0 || (each <= 90.0 && starved()),
        "{each} scripts an acquisition: {contest:?}"
    );
    assert!(contest.kept_nobody_out(), "{contest:?}");
}

/// Such a key belongs to a holder that got no majority and died, or that lost the other servers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_on_the_first_server_only_keeps_nobody_out() {
    let contest = contest(5, 60, &FAR, ms(0), |servers, key| {
        hold_as_redisson(&servers[0], key, 600_000);
    })
    .await;
    assert!(contest.kept_nobody_out(), "{contest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_server_that_hangs_keeps_nobody_out() {
    let contest = contest(5, 60, &FAR, ms(0), |servers, _| servers[0].stop()).await;
    assert!(contest.kept_nobody_out(), "{contest:?}");
}

/// Contenders that collided retry soon, but not while the lock is held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_hold_is_not_polled() {
    let contest = contest(8, 16, &[[0; 3]], ms(400), |_, _| ()).await;
    let each = contest.scripts_each();
    assert!(
        each <= 60.0 || (each <= 240.0 && starved()),
        "{each} scripts an acquisition: {contest:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_contenders_are_about_as_fast_as_two() {
    let two = contest(2, 100, &FAR, ms(0), |_, _| ()).await;
    let ten = contest(10, 100, &FAR, ms(0), |_, _| ()).await;
    assert!(ten.rate >= two.rate * 0.6 || starved(), "{ten:?} {two:?}");
}
