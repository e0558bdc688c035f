//! Threads that do not run: blocked threads of the user and of its log cost no lock, and a process
//! that was stopped knows at once which locks it has lost.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    clippy::print_stdout,
    reason = "the figures are for the person who runs it"
)]

#[path = "../common/mod.rs"]
mod common;

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use common::{Server, builder, children, key, ms, several};
use rustix::process::{Pid, Signal, kill_process};

/// The child processes are this binary too: they end here, before any test begins.
#[ctor::ctor(unsafe)]
fn child_process() {
    children::play_if_child(children::play);
}

/// Every worker sleeps for three leases. (`watchdog` has the same for a runtime of one thread.)
#[test]
fn a_runtime_whose_workers_are_all_blocked_keeps_its_locks() {
    let (server, names) = (Server::start(), [key(), key()]);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let locks = runtime
        .block_on(builder(&server.url(), ms(600)).connect())
        .unwrap();
    let all_blocked = Arc::new(Barrier::new(3));
    let tasks: Vec<_> = names
        .iter()
        .map(|name| {
            let (lock, all_blocked) = (locks.get(name), Arc::clone(&all_blocked));
            runtime.spawn(async move {
                let guard = lock.lock().await.unwrap();
                // Each task blocks one worker.
                all_blocked.wait();
                std::thread::sleep(ms(1_800));
                guard.check().unwrap();
                guard.unlock().await.unwrap();
            })
        })
        .collect();
    all_blocked.wait();
    let start = Instant::now();
    while start.elapsed() < ms(1_700) {
        assert!(
            names.iter().all(|name| server.pttl(name) > 200),
            "renewed meanwhile"
        );
        std::thread::sleep(ms(10));
    }
    for task in tasks {
        runtime.block_on(task).unwrap();
    }
    assert_eq!(locks.stats().losses.total(), 0);
}

/// Four processes get no CPU for longer than their lease, and others take their locks meanwhile.
#[tokio::test]
async fn a_stopped_process_reports_its_losses_at_its_first_check() {
    for tried in 1.. {
        match stall_some().await {
            // A process lost a lock before it was stopped, which is not what this test is about.
            Err(_) if tried < 5 => {}
            ended => return ended.unwrap(),
        }
    }
}

async fn stall_some() -> Result<(), String> {
    let server = Server::start();
    let others = builder(&server.url(), ms(1_500))
        .command_timeout(ms(450))
        .connect()
        .await
        .unwrap();
    let mut children: Vec<_> = (0..4)
        .map(|_| {
            let (keys, out) = ([key(), key()], children::scratch("stall"));
            let child =
                children::spawn_child("stall", &server.url(), &[&keys[0], &keys[1]], 0, &out);
            (child, keys, out)
        })
        .collect();
    let mut taken = Vec::new();
    for (child, keys, out) in &children {
        common::eventually(ms(5_000), "it holds both", || {
            std::fs::read(out).is_ok_and(|text| text == b"held")
        })
        .await;
        let id = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        kill_process(id, Signal::STOP).unwrap();
        let stopped = Instant::now();
        for key in keys {
            taken.push(others.get(key).lock().await.unwrap());
        }
        tokio::time::sleep_until((stopped + children::STALLED_LEASE + ms(100)).into()).await;
        kill_process(id, Signal::CONT).unwrap();
    }
    let mut late = Vec::new();
    for (child, _, out) in &mut children {
        let ended = child.wait().unwrap();
        if ended.code() == Some(children::LOST_AWAKE) {
            return Err("a lock was lost while its process ran".to_owned());
        }
        assert!(
            ended.success(),
            "check() did not say at once that the lock is lost"
        );
        late.push(Duration::from_micros(
            std::fs::read_to_string(&*out).unwrap().parse().unwrap(),
        ));
        std::fs::remove_file(out).unwrap();
    }
    println!("tokens fired this long after their process went on: {late:?}");
    assert!(
        late.iter()
            .all(|late| common::machine::within(*late, ms(500))),
        "{late:?}"
    );
    for guard in taken {
        guard.check().unwrap();
        guard
            .unlock()
            .await
            .expect("the processes that went on late do not affect it");
    }
    Ok(())
}

/// The pipe of its standard error is full before the first second is over. One of three servers is
/// away meanwhile, so there is more to write.
#[tokio::test]
async fn a_log_that_nobody_reads_costs_no_lock() {
    let (servers, key, out) = (several::servers(3), key(), children::scratch("write"));
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let mut child = children::spawn_piped_child("write", &urls.join(","), &[&key], 1_000, &out);
    let said = || std::fs::read_to_string(&out).unwrap_or_default();
    common::eventually(ms(20_000), "it holds all of them", || said() == "held").await;
    servers[0].stop();
    tokio::time::sleep(ms(2_000)).await;
    servers[0].go_on();
    common::eventually(ms(20_000), "it goes on", || said().contains("lost")).await;
    let dropped = said()
        .strip_prefix("0 lost, ")
        .map(|rest| rest.trim_end_matches(" dropped").parse::<u64>().unwrap());
    assert!(dropped.is_some_and(|dropped| dropped > 0), "{}", said());
    // What was dropped is said once somebody reads.
    let told = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
    assert!(child.wait().unwrap().success());
    let line = told
        .lines()
        .find(|line| line.contains("WARN") && line.contains("log events were dropped"));
    assert!(
        line.is_some_and(|line| line.contains("events=")),
        "{line:?}"
    );
    for event in ["acquired", "renewed"] {
        assert!(
            told.lines()
                .any(|line| line.contains(event) && line.contains(&key)),
            "{event}"
        );
    }
    std::fs::remove_file(out).unwrap();
}
