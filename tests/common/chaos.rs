//! Bad days: many processes on a few keys while something is done to the connections or to the
//! server.

use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::children::{scratch, spawn_child};
use super::history::Model;
use super::proxy::{Mode, Proxy};
use super::record::Record;
use super::{Server, key};

/// What is done to the connections or the server.
#[derive(Debug, Clone, Copy)]
pub enum Chaos {
    /// All connections are killed every 100 ms.
    Kills,
    /// The server is stopped for random times around the lease, which is a second.
    Stops,
    /// Replies are swallowed at random, and their connections cut.
    Swallows,
}

/// Runs processes of eight tasks with `rounds` acquisitions each. Checks that no two visits overlap
/// (a visit ends when its holder is told of a loss), that every waiter returns, and that no key is
/// left at the end.
pub fn survive(chaos: Chaos, processes: usize, rounds: usize) -> Duration {
    let start = Instant::now();
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let keys = [key(), key(), key()];
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    let url = if matches!(chaos, Chaos::Swallows) {
        proxy.url()
    } else {
        server.url()
    };
    let children: Vec<_> = (0..processes)
        .map(|_| {
            let out = scratch("visits");
            (spawn_child("survive", &url, &names, rounds, &out), out)
        })
        .collect();
    let done = Arc::new(AtomicBool::new(false));
    let mut record = Record::default();
    std::thread::scope(|scope| {
        let (over, server, proxy) = (Arc::clone(&done), &server, &proxy);
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                harm(chaos, server, proxy);
            }
            proxy.set(Mode::Pass);
        });
        let outcome: Vec<_> = children
            .into_iter()
            .map(|(child, out)| (wait(child), out))
            .collect();
        done.store(true, Ordering::Relaxed);
        for (ended_well, out) in outcome {
            assert!(ended_well, "{chaos:?}: a process failed, or did not return");
            record.read(&out);
            std::fs::remove_file(out).unwrap();
        }
    });
    assert_eq!(record.visits.len(), processes * 8 * rounds);
    record
        .check()
        .unwrap_or_else(|overlap| panic!("{chaos:?}: {overlap}"));
    record
        .history
        .check(Model::ReentrantFenced(2))
        .unwrap_or_else(|calls| panic!("{chaos:?}: {calls}"));
    // One lease (and a little more): what was not released has run out by then.
    std::thread::sleep(Duration::from_millis(1_100));
    assert!(
        keys.iter().all(|key| !server.exists(key)),
        "{chaos:?}: a key is left"
    );
    start.elapsed()
}

fn harm(chaos: Chaos, server: &Server, proxy: &Proxy) {
    let pause =
        |ms: std::ops::Range<u64>| std::thread::sleep(Duration::from_millis(fastrand::u64(ms)));
    match chaos {
        Chaos::Kills => {
            // The server may be too busy to answer.
            drop(server.try_command::<u64>(&["CLIENT", "KILL", "TYPE", "normal"]));
            drop(server.try_command::<u64>(&["CLIENT", "KILL", "TYPE", "pubsub"]));
            pause(100..101);
        }
        Chaos::Stops => {
            server.stop();
            pause(50..1_600);
            server.go_on();
            pause(200..1_000);
        }
        Chaos::Swallows => {
            proxy.set(Mode::SwallowReplyTo(b"EVALSHA".to_vec()));
            pause(1..40);
            proxy.set(Mode::Pass);
            pause(10..200);
        }
    }
}

/// Returns whether a child ends by itself and successfully within the time that a test has.
fn wait(mut child: Child) -> bool {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(400) {
        if let Some(status) = child.try_wait().unwrap() {
            return status.success();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    false
}
