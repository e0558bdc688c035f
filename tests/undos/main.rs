//! Undos: what a frozen server was asked for is undone when it goes on, and the other servers are
//! not affected.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::marks::mark;
use common::proxy::{Mode, Proxy};
use common::server::Monitor;
use common::several::over;
use common::{Server, builder, eventually, ms, several};
use lockhound::{Error, Locker, Owner};
use tokio::sync::RwLock;

/// A test that measures this process's memory runs alone.
static TESTS: RwLock<()> = RwLock::const_new(());

/// The prefix of the locks' names.
const NAMES: &str = "undos:";

/// Returns how many locks there are on a server. Marks of fences have other names, and do not
/// count.
fn locks_on(server: &Server) -> usize {
    server
        .command::<Vec<String>>(&["KEYS", &format!("{NAMES}*")])
        .len()
}

/// Returns the resident memory of this process in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Tasks that take new locks and give up at random moments.
struct Load {
    begun: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    fn start(locks: &Locker, tasks: usize) -> Self {
        let (begun, over) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let task = |_| {
            let (locks, begun, over) = (locks.clone(), Arc::clone(&begun), Arc::clone(&over));
            tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    let number = begun.fetch_add(1, Ordering::Relaxed);
                    if number % 4 == 0 {
                        // Behind all calls that the engine has not come to. On a busy machine it
                        // would still work on those long after their tasks have given up.
                        locks.servers().await.unwrap();
                    }
                    let lock = locks.get(format!("{NAMES}{number}")).owned_by(Owner::new());
                    let patience = Duration::from_micros(fastrand::u64(0..20_000));
                    // The call is dropped halfway, or the lock is unlocked or its guard dropped.
                    let Ok(Ok(guard)) = tokio::time::timeout(patience, lock.lock()).await else {
                        continue;
                    };
                    if fastrand::bool() {
                        drop(guard.unlock().await);
                    }
                }
            })
        };
        let tasks = (0..tasks).map(task).collect();
        Self { begun, over, tasks }
    }

    /// Waits until each task has begun some calls.
    async fn runs(&self) {
        let many = 16 * self.tasks.len();
        eventually(ms(20_000), "it runs", || self.begun() > many).await;
    }

    fn begun(&self) -> usize {
        self.begun.load(Ordering::Relaxed)
    }

    async fn end(self) {
        self.over.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
    }
}

/// Returns how many undos there may be after these acquires in 20 command timeouts or more. A
/// command timeout after it fell silent, a server is sent nothing more that would have to be
/// undone; an engine that gets little CPU time notices that later. Without a bound there would be
/// one for each acquire.
fn most_undos(acquires: usize) -> usize {
    acquires / 2
}

/// A bug: the undos for a server that hung became so many that nothing was undone on the other
/// servers either.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_leaves_no_locks_behind_on_any_server() {
    let _turn = TESTS.write().await;
    const TASKS: usize = 64;
    let (lease, command_timeout) = (ms(2_000), ms(500));
    let servers = several::servers(3);
    let locks = over(&servers, lease)
        .command_timeout(command_timeout)
        .connect()
        .await
        .unwrap();
    let load = Load::start(&locks, TASKS);
    load.runs().await;

    let (stopped, before) = (Instant::now(), load.begun());
    servers[2].stop();
    // By then the undos of what was in flight are there.
    tokio::time::sleep(command_timeout * 2).await;
    let (memory, mut most) = (resident(), 0);
    while stopped.elapsed() < command_timeout * 20 {
        most = most.max(locks.stats().pending_undos);
        tokio::time::sleep(ms(20)).await;
    }
    let grown = resident().saturating_sub(memory);
    let asked = load.begun() - before;
    println!("{most} undos at most, of {asked} acquires; {grown} bytes more");
    assert!(
        most <= most_undos(asked),
        "{most} undos, of {asked} acquires"
    );
    assert!(grown < 32 << 20, "{grown} bytes more");
    load.end().await;
    eventually(command_timeout * 2, "the others have no lock", || {
        servers[..2].iter().all(|s| locks_on(s) == 0)
    })
    .await;

    servers[2].go_on();
    eventually(lease + command_timeout * 2, "it has no lock", || {
        locks_on(&servers[2]) == 0
    })
    .await;
    eventually(
        lease + command_timeout * 2,
        "no operation is pending",
        || locks.stats().pending == 0,
    )
    .await;
    assert_eq!(locks_on(&servers[2]), 0);
}

/// The server is frozen for shorter and for longer than a lease, so that connections survive or are
/// replaced.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_frozen_server_was_asked_for_is_undone_when_it_goes_on() {
    let _turn = TESTS.read().await;
    for (lease, stops) in [
        (ms(30_000), ms(300)),
        (ms(30_000), ms(4_000)),
        (ms(2_000), ms(5_000)),
    ] {
        let command_timeout = ms(500);
        let server = Server::start();
        let locks = over(std::slice::from_ref(&server), lease)
            .command_timeout(command_timeout)
            .connect()
            .await
            .unwrap();
        let load = Load::start(&locks, 32);
        load.runs().await;
        server.stop();
        tokio::time::sleep(stops).await;
        load.end().await;
        server.go_on();
        eventually(command_timeout * 3, "no lock is left", || {
            locks_on(&server) == 0
        })
        .await;
        eventually(command_timeout * 4, "no operation is pending", || {
            locks.stats().pending == 0
        })
        .await;
        assert_eq!(locks_on(&server), 0);
    }
}

/// Acquires that replicas acknowledge have a connection of their own. Their undos travel behind
/// them on it.
#[tokio::test(flavor = "multi_thread")]
async fn an_undo_does_not_overtake_its_acquire() {
    let _turn = TESTS.read().await;
    let server = Server::start();
    let replica = server.replica();
    eventually(ms(10_000), "in step", || server.has_replicas(1)).await;
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url(), ms(30_000))
        .replica_acks(1, ms(500))
        .connect()
        .await
        .unwrap();
    locks
        .get(format!("{NAMES}warm"))
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    let key = format!("{NAMES}late");
    let fence = mark(&key);
    let monitor = Monitor::start(&server);
    proxy.set(Mode::Hold(fence.clone().into_bytes()));
    assert!(
        locks.get(&key).try_lock().await.is_err(),
        "its answer never comes"
    );
    eventually(ms(1_000), "it is undone", || {
        locks.stats().pending_undos > 0
    })
    .await;
    // If the undo had travelled on another connection, it would have been executed before these.
    for _ in 0..3 {
        assert_eq!(locks.get(&key).holder().await.unwrap(), None);
    }
    assert!(!server.exists(&fence), "the acquire is still held back");
    proxy.set(Mode::Pass);
    eventually(ms(1_000), "it is executed late", || server.exists(&fence)).await;
    eventually(ms(2_000), "undone", || !server.exists(&key)).await;
    let scripts: Vec<_> = monitor
        .sent(&key)
        .into_iter()
        .filter(|line| line.contains("EVAL"))
        .collect();
    let first = |name: &str| {
        scripts
            .iter()
            .position(|line| line.contains(name))
            .expect("it was sent")
    };
    assert!(
        first(&fence) < first("redisson_lock__channel"),
        "the undo came first: {scripts:#?}"
    );
    drop(replica);
}

#[tokio::test]
async fn no_acquire_is_sent_over_a_silent_connection() {
    let _turn = TESTS.read().await;
    let server = Server::start();
    let locks = builder(&server.url(), ms(30_000))
        .command_timeout(ms(300))
        .connect()
        .await
        .unwrap();
    let lock = |n: usize| locks.get(format!("{NAMES}{n}"));
    lock(0).lock().await.unwrap().unlock().await.unwrap();
    server.stop();
    assert!(lock(1).try_lock().await.is_err());
    eventually(ms(1_000), "it is undone", || {
        locks.stats().pending_undos == 1
    })
    .await;
    // Before the connection is given up, and afterwards.
    for n in 2..10 {
        let Err(Error::Unavailable { nodes, .. }) = lock(n).try_lock().await else {
            panic!("the server is frozen")
        };
        let reason = nodes[0].reason();
        assert!(
            reason.contains("silent") || reason.contains("not connected"),
            "{reason}"
        );
        assert_eq!(
            locks.stats().pending_undos,
            1,
            "nothing more may have been taken"
        );
    }
    server.go_on();
    eventually(ms(2_000), "undone", || locks.stats().pending == 0).await;
    assert_eq!(locks_on(&server), 0);
    lock(1).lock().await.unwrap().unlock().await.unwrap();
}

/// A server that is paused for a failover accepts connections and answers PING, but runs no script:
/// each new connection falls silent again.
#[tokio::test(flavor = "multi_thread")]
async fn undos_do_not_pile_up_for_a_server_that_runs_no_script() {
    let _turn = TESTS.read().await;
    const TASKS: usize = 64;
    for count in [1, 3] {
        let (servers, command_timeout) = (several::servers(count), ms(200));
        let locks = over(&servers, ms(2_000))
            .command_timeout(command_timeout)
            .connect()
            .await
            .unwrap();
        let load = Load::start(&locks, TASKS);
        load.runs().await;
        let before = load.begun();
        let paused = servers.last().unwrap();
        paused.command::<()>(&["CLIENT", "PAUSE", "3600000", "WRITE"]);
        let mut most = 0;
        for _ in 0..50 {
            tokio::time::sleep(command_timeout / 2).await;
            most = most.max(locks.stats().pending_undos);
        }
        let asked = load.begun() - before;
        println!("{most} undos at most, of {asked} acquires");
        load.end().await;
        paused.command::<()>(&["CLIENT", "UNPAUSE"]);
        eventually(ms(10_000), "no operation is pending", || {
            locks.stats().pending == 0
        })
        .await;
        assert_eq!(servers.iter().map(locks_on).sum::<usize>(), 0);
        assert!(
            most <= most_undos(asked),
            "{most} undos, of {asked} acquires"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn guards_dropped_in_an_outage_leave_no_locks_behind() {
    let _turn = TESTS.read().await;
    let (server, command_timeout) = (Server::start(), ms(300));
    let locks = builder(&server.url(), ms(30_000))
        .command_timeout(command_timeout)
        .connect()
        .await
        .unwrap();
    for outage in [ms(100), ms(2_000)] {
        let mut guards = Vec::new();
        for n in 0..2_000 {
            guards.push(
                locks
                    .get(format!("{NAMES}{n}"))
                    .owned_by(Owner::new())
                    .lock()
                    .await
                    .unwrap(),
            );
        }
        server.stop();
        drop(guards);
        tokio::time::sleep(outage).await;
        server.go_on();
        eventually(command_timeout * 4, "no lock is left", || {
            locks_on(&server) == 0
        })
        .await;
        eventually(command_timeout * 8, "no operation is pending", || {
            locks.stats().pending == 0
        })
        .await;
    }
}
