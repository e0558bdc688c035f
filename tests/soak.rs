//! What takes minutes: long bad days, many losses, many holds. `./dev soak` runs it, one test after the other.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the figures are for whoever runs it")]

mod common;

use std::time::Duration;

use common::chaos::{Chaos, survive};
use common::losses::{self, Kind};
use common::{Server, children, key, locker_with};
use lockhound::HoldState;

/// The body of a child process. Run as a test by itself it proves that nobody asked for anything else.
#[test]
fn child_process() {
    children::run();
}

/// 8 processes x 8 tasks, more than 10,000 acquisitions, five times each.
#[test]
fn bad_days() {
    for chaos in [Chaos::Kills, Chaos::Stops, Chaos::Swallows] {
        for run in 1..=5 {
            let time = survive(chaos, 8, 157);
            println!("{chaos:?}, run {run} of 5: 10,048 acquisitions, nobody inside beside another, in {time:.1?}");
        }
    }
}

/// 1,000 losses of each kind: none is told late. The picture is written to target/losses.svg.
#[tokio::test(flavor = "multi_thread")]
async fn losses_of_every_kind() {
    let mut all = Vec::new();
    for kind in Kind::ALL {
        all.push(losses::lose(kind, 1_000).await);
    }
    println!("{}", losses::table(&all));
    std::fs::write("target/losses.svg", losses::picture(&all)).unwrap();
}

/// 10,000 locks with a lease of six seconds for two minutes: nothing expires; what that costs.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_holds() {
    let server = Server::start();
    let locks = locker_with(&server, Duration::from_secs(6)).await;
    let before = memory();
    let mut guards = Vec::new();
    for _ in 0..10_000 {
        guards.push(locks.get(key()).lock().await.unwrap());
    }
    let bytes = (memory() - before) / 10_000;
    let (server_before, client_before, renewals_before) = (server_cpu(&server), client_cpu(), locks.stats().renewals);
    server.command::<()>(&["CONFIG", "RESETSTAT"]);
    tokio::time::sleep(Duration::from_secs(120)).await;
    let stats = locks.stats();
    let renewals = f64::from(u32::try_from(stats.renewals - renewals_before).unwrap());
    assert!(guards.iter().all(|guard| guard.state() == HoldState::Safe));
    assert!(server.command::<String>(&["INFO", "stats"]).contains("expired_keys:0\r"));
    println!(
        "10,000 holds for two minutes: {renewals} renewals in {} scripts; {bytes} bytes of memory a hold; {:.2} us of \
         server and {:.2} us of client CPU a renewal; lateness p50 {:?}, p99 {:?}, max {:?}",
        server.calls("evalsha"),
        (server_cpu(&server) - server_before) / renewals * 1e6,
        (client_cpu() - client_before) / renewals * 1e6,
        stats.renewal_lateness.p50,
        stats.renewal_lateness.p99,
        stats.renewal_lateness.max,
    );
    locks.close().await;
}

/// Bytes of this process that are in memory.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn client_cpu() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(now.tv_sec).unwrap(), u32::try_from(now.tv_nsec).unwrap()).as_secs_f64()
}

fn server_cpu(server: &Server) -> f64 {
    let info: String = server.command(&["INFO", "cpu"]);
    let of = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse::<f64>().unwrap();
    of("used_cpu_user:") + of("used_cpu_sys:")
}
