//! Independent servers that forget, one minority after the other, while programs reach some of them
//! badly.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::proxy::{Mode, Proxy};
use super::record::{self, Record, Visit};
use super::several::{over_urls, servers};
use super::{Server, eventually, key, ms};
use lockhound::{Lock, Owner};

/// The lease and the quarantine of each program, in milliseconds.
const LEASES: [u64; 3] = [400, 1_200, 800];

/// Runs three programs of two tasks each on one lock of so many servers, of which a minority at a
/// time forgets: so many times. Checks that no two visits overlap, that fences grow, and that each
/// server votes again. Returns the number of visits.
pub async fn weather(count: usize, losses: usize) -> usize {
    let servers = servers(count);
    let ways: Vec<Vec<Proxy>> = LEASES
        .iter()
        .map(|_| {
            servers
                .iter()
                .map(|server| Proxy::start(server.port()))
                .collect()
        })
        .collect();
    let mut lockers = Vec::new();
    for (ways, lease) in ways.iter().zip(LEASES) {
        let builder =
            over_urls(ways.iter().map(Proxy::url), ms(lease)).restart_quarantine(ms(lease));
        lockers.push(
            builder
                .command_timeout(ms(100))
                .outage_tolerance(ms(60_000))
                .connect()
                .await
                .unwrap(),
        );
    }
    let all_vote = || servers.iter().all(votes);
    eventually(ms(20_000), "all vote", all_vote).await;
    let (key, over) = (key(), Arc::new(AtomicBool::new(false)));
    let tasks = lockers
        .iter()
        .flat_map(|locker| [locker, locker])
        .map(|locker| {
            let (lock, over) = (locker.get(&key).owned_by(Owner::new()), Arc::clone(&over));
            tokio::spawn(async move {
                let mut visits = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    visits.extend(visit(&lock).await);
                }
                visits
            })
        });
    let tasks: Vec<_> = tasks.collect();
    for _ in 0..losses {
        let way = &ways[fastrand::usize(..ways.len())][fastrand::usize(..count)];
        match fastrand::u8(..4) {
            0 => way.set(Mode::Refuse),
            1 => way.set(Mode::Delay(ms(fastrand::u64(30..180)))),
            2 => way.set(Mode::BlackHole),
            _ => {}
        }
        way.cut();
        pause(300).await;
        let begun = Instant::now();
        let first = fastrand::usize(..count);
        for server in (first..first + (count - 1) / 2).map(|at| &servers[at % count]) {
            forget(server).await;
        }
        pause(600).await;
        way.set(Mode::Pass);
        // A server fails until it votes again, and at least for the longest lease: then the next
        // ones may.
        eventually(ms(15_000), "all vote again", all_vote).await;
        tokio::time::sleep(ms(1_250).saturating_sub(begun.elapsed())).await;
    }
    over.store(true, Ordering::Relaxed);
    let mut record = Record::default();
    for task in tasks {
        record.visits.extend(task.await.unwrap());
    }
    record.check().unwrap_or_else(|overlap| panic!("{overlap}"));
    record.visits.len()
}

fn votes(server: &Server) -> bool {
    let begun: Option<String> = server
        .try_command(&["HGET", "lockhound_vote", "begun"])
        .ok()
        .flatten();
    begun.as_deref() == Some("0")
}

/// Has a server lose what it knows, in one of several ways.
async fn forget(server: &Server) {
    match fastrand::u8(..4) {
        0 => server.command::<()>(&["FLUSHALL"]),
        1 => restart(server),
        2 => {
            server.command::<()>(&["SAVE"]);
            pause(200).await;
            restart(server);
        }
        _ => {
            server.stop();
            pause(900).await;
            server.go_on();
            server.command::<()>(&["FLUSHALL"]);
        }
    }
}

fn restart(server: &Server) {
    server.kill();
    server.restart();
}

/// Waits for a moment: for so many milliseconds at most.
async fn pause(most: u64) {
    tokio::time::sleep(ms(fastrand::u64(..most))).await;
}

/// Takes the lock if it can, and stays for a while or until it is lost.
async fn visit(lock: &Lock) -> Option<Visit> {
    let Ok(Some(guard)) = lock.try_lock_for(ms(700)).await else {
        pause(5).await;
        return None;
    };
    let (fence, entered) = (guard.fence().get(), record::now());
    let mut left = None;
    let stays = Instant::now()
        + ms(if fastrand::u8(..7) == 0 {
            1_500
        } else {
            fastrand::u64(..60)
        });
    loop {
        let now = record::now();
        if guard.check().is_err() {
            break;
        }
        left = Some(now);
        if Instant::now() >= stays {
            break;
        }
        tokio::time::sleep(ms(5)).await;
    }
    // The lock may be lost.
    let _: Result<_, _> = guard.unlock().await;
    left.map(|left| Visit {
        key: lock.key().to_string(),
        who: String::from("a task"),
        fence,
        entered,
        left,
    })
}
