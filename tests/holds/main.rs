//! Very many holds: none expires; what a renewal costs, and how it slows other locks down. `./dev
//! soak thousand` runs it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the figures are for whoever runs it")]

#[path = "../common/mod.rs"]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use common::{Server, eventually, key, locker_with};
use lockhound::{Guard, HoldState, Locker};

/// The number of tasks that take the locks, and of tasks of the load.
const TASKS: usize = 64;

/// 1,000 locks, for comparison: a renewal costs the same with few locks and with many.
#[tokio::test(flavor = "multi_thread")]
async fn one_thousand_holds_do_not_expire() {
    let held = Held::take(1_000, Duration::from_secs(3)).await;
    held.cost(Duration::from_secs(60)).await;
    held.close().await;
}

/// 10,000 locks with a lease of six seconds for two minutes.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_holds_do_not_expire() {
    let held = Held::take(10_000, Duration::from_secs(6)).await;
    held.cost(Duration::from_secs(120)).await;
    held.close().await;
}

/// 100,000 locks with the default lease for two minutes, and a load that they hardly slow down.
#[tokio::test(flavor = "multi_thread")]
async fn one_hundred_thousand_holds_do_not_expire() {
    let lease = Duration::from_secs(30);
    let mut held = Held::take(100_000, lease).await;
    held.cost(Duration::from_secs(60)).await;

    let watch = Watch::start(&held.server, &held.keys);
    let beside = held.load(12).await;
    let guards = std::mem::take(&mut held.guards);
    assert!(guards.iter().all(|guard| guard.state() == HoldState::Safe));
    let (least, rounds) = watch.stop();
    held.nothing_expired();
    assert!(least > 10_000, "{least} ms of 30 s were left");
    drop(guards);
    eventually(Duration::from_secs(60), "all released", || {
        held.locks.stats().holds == 0
    })
    .await;
    // The same reads of the server, which now find no keys.
    let watch = Watch::start(&held.server, &held.keys);
    let alone = held.load(8).await;
    watch.stop();
    let ratio = beside.as_secs_f64() / alone.as_secs_f64();
    println!(
        "two minutes beside {TASKS} tasks: at the least {least} ms of 30 s were left, in {rounds} looks at every lock; \
         p99 of a pair {beside:.2?}, without the holds {alone:.2?}: {ratio:.2} times"
    );
    assert!(ratio < 1.5, "{ratio}");
    held.close().await;
}

/// Has as many tasks as will take the locks lock and unlock for a while, so that all memory but
/// that of the holds is allocated.
async fn warm_up(server: &Server, locks: &Locker) {
    let tasks = (0..TASKS).map(|task| {
        let lock = locks.get(format!("warm-up:{task}"));
        tokio::spawn(async move {
            for _ in 0..100 {
                lock.lock().await.unwrap().unlock().await.unwrap();
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    for task in 0..TASKS {
        server.command::<u64>(&["DEL", &common::marks::mark(&format!("warm-up:{task}"))]);
    }
}

/// Many locks of one process on a server of their own.
struct Held {
    server: Server,
    locks: Locker,
    keys: Vec<String>,
    guards: Vec<Guard>,
    /// Seconds of CPU time that server and client use per second without any hold.
    idle: [f64; 2],
    bytes: u64,
}

impl Held {
    async fn take(count: usize, lease: Duration) -> Self {
        // The default `hz`: looking for expired keys more often costs CPU that no renewal causes.
        let server = Server::start_with(&["--hz", "10"]);
        let locks = locker_with(&server, lease).await;
        let keys: Vec<String> = (0..count).map(|_| key()).collect();
        warm_up(&server, &locks).await;
        let before = [server_cpu(&server), client_cpu()];
        tokio::time::sleep(Duration::from_secs(10)).await;
        let idle = [
            (server_cpu(&server) - before[0]) / 10.0,
            (client_cpu() - before[1]) / 10.0,
        ];
        let memory_before = memory();
        let takers = keys.chunks(count.div_ceil(TASKS)).map(|keys| {
            let (locks, keys) = (locks.clone(), keys.to_vec());
            tokio::spawn(async move {
                let mut guards = Vec::with_capacity(keys.len());
                for key in keys {
                    guards.push(locks.get(key).lock().await.unwrap());
                }
                guards
            })
        });
        let mut guards = Vec::with_capacity(count);
        for taker in takers.collect::<Vec<_>>() {
            guards.extend(taker.await.unwrap());
        }
        let bytes = memory().saturating_sub(memory_before) / u64::try_from(count).unwrap();
        Self {
            server,
            locks,
            keys,
            guards,
            idle,
            bytes,
        }
    }

    /// Measures what renewals cost while nothing else goes on.
    async fn cost(&self, time: Duration) {
        let count = self.keys.len();
        // Until every lock has been renewed once, the traces of its acquire are still being cleared
        // away.
        let third = self.guards[0].remaining() / 2;
        tokio::time::sleep(third).await;
        self.server.command::<()>(&["CONFIG", "RESETSTAT"]);
        let (before, renewals) = (
            [server_cpu(&self.server), client_cpu()],
            self.locks.stats().renewals,
        );
        tokio::time::sleep(time).await;
        let used = [
            server_cpu(&self.server) - before[0],
            client_cpu() - before[1],
        ];
        let (stats, scripts) = (self.locks.stats(), self.server.calls("evalsha"));
        self.nothing_expired();
        assert!(
            self.guards
                .iter()
                .all(|guard| guard.state() == HoldState::Safe)
        );
        let renewals = stats.renewals - renewals;
        let each = f64::from(u32::try_from(renewals).unwrap());
        let [server, client] =
            [0, 1].map(|at| (used[at] - self.idle[at] * time.as_secs_f64()) / each * 1e6);
        println!(
            "{count} holds for {time:?}: {renewals} renewals in {scripts} scripts; {:.0} commands a second; {} bytes \
             of memory a hold; {server:.2} us of server and {client:.2} us of client CPU a renewal (idle: {:.1} and \
             {:.1} ms a second); batches p50 {}, max {}; lateness p50 {:?}, p99 {:?}, max {:?}; round trip p50 {:?}, \
             p99 {:?}",
            f64::from(u32::try_from(scripts).unwrap()) / time.as_secs_f64(),
            self.bytes,
            self.idle[0] * 1e3,
            self.idle[1] * 1e3,
            stats.renewal_batches.p50,
            stats.renewal_batches.max,
            stats.renewal_lateness.p50,
            stats.renewal_lateness.p99,
            stats.renewal_lateness.max,
            stats.slowest_node.as_ref().unwrap().round_trip.p50,
            stats.slowest_node.as_ref().unwrap().round_trip.p99,
        );
        assert_eq!(stats.renewal_errors, 0);
        assert!(
            stats.renewal_batches.max <= 100,
            "{:?}",
            stats.renewal_batches
        );
        assert!(
            scripts <= renewals / if count > 1_000 { 70 } else { 20 },
            "{scripts} scripts, {renewals} renewals"
        );
        assert!(
            count < 10_000 || self.bytes <= 1_024,
            "{} bytes a hold",
            self.bytes
        );
        let start = Instant::now();
        (0..1_000).for_each(|_| drop(self.locks.stats()));
        assert!(
            common::machine::within(start.elapsed(), Duration::from_millis(500)),
            "1,000 stats() in {:?}",
            start.elapsed()
        );
    }

    /// Returns the p99 of a pair of lock and unlock of 64 tasks: the median of several windows of
    /// ten seconds.
    async fn load(&self, windows: usize) -> Duration {
        let mut tails = Vec::new();
        for _ in 0..windows {
            let until = Instant::now() + Duration::from_secs(10);
            let tasks: Vec<_> = (0..TASKS)
                .map(|task| {
                    let lock = self.locks.get(format!("load:{task}"));
                    tokio::spawn(async move {
                        let mut times = Vec::new();
                        while Instant::now() < until {
                            let start = Instant::now();
                            lock.lock().await.unwrap().unlock().await.unwrap();
                            times.push(start.elapsed());
                        }
                        times
                    })
                })
                .collect();
            let mut times = Vec::new();
            for task in tasks {
                times.extend(task.await.unwrap());
            }
            times.sort_unstable();
            tails.push(times[times.len() * 99 / 100]);
        }
        tails.sort_unstable();
        tails[tails.len() / 2]
    }

    fn nothing_expired(&self) {
        let stats: String = self.server.command(&["INFO", "stats"]);
        assert!(stats.contains("expired_keys:0\r"), "{stats}");
    }

    async fn close(self) {
        let Self { locks, guards, .. } = self;
        drop(guards);
        eventually(Duration::from_secs(60), "all released", || {
            locks.stats().holds == 0
        })
        .await;
        locks.close().await;
    }
}

/// An independent client that reads the remaining lease of every lock again and again.
struct Watch {
    stop: Arc<AtomicBool>,
    least: Arc<AtomicI64>,
    rounds: std::thread::JoinHandle<u32>,
}

impl Watch {
    fn start(server: &Server, keys: &[String]) -> Self {
        let (stop, least) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicI64::new(i64::MAX)),
        );
        let mut connection = server.connection().unwrap();
        let (keys, stopped, seen) = (keys.to_vec(), Arc::clone(&stop), Arc::clone(&least));
        let rounds = std::thread::spawn(move || {
            let mut rounds = 0;
            loop {
                for keys in keys.chunks(500) {
                    if stopped.load(Ordering::Relaxed) {
                        return rounds;
                    }
                    let mut pipeline = redis::pipe();
                    keys.iter()
                        .for_each(|key| _ = pipeline.cmd("PTTL").arg(key));
                    let left: Vec<i64> = pipeline.query(&mut connection).unwrap();
                    seen.fetch_min(left.into_iter().min().unwrap(), Ordering::Relaxed);
                    // It must not load the server.
                    std::thread::sleep(Duration::from_millis(10));
                }
                rounds += 1;
            }
        });
        Self {
            stop,
            least,
            rounds,
        }
    }

    /// Returns the least that was left of any lease, in milliseconds, and how often it has read all
    /// of them.
    fn stop(self) -> (i64, u32) {
        self.stop.store(true, Ordering::Relaxed);
        let rounds = self.rounds.join().unwrap();
        (self.least.load(Ordering::Relaxed), rounds)
    }
}

/// Returns the resident memory of this process in bytes.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn client_cpu() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap(),
        u32::try_from(now.tv_nsec).unwrap(),
    )
    .as_secs_f64()
}

fn server_cpu(server: &Server) -> f64 {
    let info: String = server.command(&["INFO", "cpu"]);
    let of = |name: &str| {
        info.lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap()
            .parse::<f64>()
            .unwrap()
    };
    of("used_cpu_user:") + of("used_cpu_sys:")
}
