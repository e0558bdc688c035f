//! Servers that are stopped and go on: what was asked of them meanwhile is given back, and the others do not notice.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

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

/// Whoever looks at this process's memory runs alone.
static TESTS: RwLock<()> = RwLock::const_new(());

/// Under which names locks are taken.
const NAMES: &str = "undos:";

/// How many locks there are on a server, whose fences have other names.
fn locks_on(server: &Server) -> usize {
    server.command::<Vec<String>>(&["KEYS", &format!("{NAMES}*")]).len()
}

/// What this process has in memory.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Tasks that take locks, each a new one, and give up at random.
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
                    let lock = locks.get(format!("{NAMES}{number}")).owned_by(Owner::new());
                    let patience = Duration::from_micros(fastrand::u64(0..20_000));
                    // Dropped in the midst of it, or held for a moment, and unlocked or dropped.
                    let Ok(Ok(guard)) = tokio::time::timeout(patience, lock.lock()).await else { continue };
                    if fastrand::bool() {
                        drop(guard.unlock().await);
                    }
                }
            })
        };
        let tasks = (0..tasks).map(task).collect();
        Self { begun, over, tasks }
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

/// A bug: the undos of a server that hung were so many after a while that nothing was undone on the others either.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_leaves_nothing_behind_on_the_others_nor_on_itself() {
    let _turn = TESTS.write().await;
    const TASKS: usize = 64;
    let (lease, command_timeout) = (ms(2_000), ms(500));
    let servers = several::servers(3);
    let locks = over(&servers, lease).command_timeout(command_timeout).connect().await.unwrap();
    let load = Load::start(&locks, TASKS);
    tokio::time::sleep(ms(1_000)).await;

    let (stopped, before) = (Instant::now(), load.begun());
    servers[2].stop();
    // By then a command has timed out, and nothing more is sent that would have to be undone.
    tokio::time::sleep(command_timeout * 2).await;
    let in_flight = load.begun() - before;
    let (memory, mut most) = (resident(), 0);
    while stopped.elapsed() < lease * 5 {
        most = most.max(locks.stats().pending_undos);
        tokio::time::sleep(ms(20)).await;
    }
    let grown = resident().saturating_sub(memory);
    let asked = load.begun() - before;
    println!("{most} undos at most; {in_flight} acquires of {asked} could be in flight; {grown} bytes more");
    // Of each caller besides, what is being undone on each of the three just now.
    assert!(most <= in_flight + 3 * TASKS, "{most} undos, and {in_flight} of {asked} acquires in flight");
    assert!(grown < 32 << 20, "{grown} bytes more");
    load.end().await;
    eventually(command_timeout * 2, "the others have nothing", || servers[..2].iter().all(|s| locks_on(s) == 0)).await;

    servers[2].go_on();
    eventually(lease + command_timeout * 2, "it has nothing", || locks_on(&servers[2]) == 0).await;
    eventually(lease + command_timeout * 2, "nothing is left to be done", || locks.stats().pending == 0).await;
    assert_eq!(locks_on(&servers[2]), 0);
}

/// For shorter and for longer than a lease, and on the connection that there was and on another.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_stopped_server_was_asked_for_is_undone_when_it_goes_on() {
    let _turn = TESTS.read().await;
    for (lease, stops) in [(ms(30_000), ms(300)), (ms(30_000), ms(4_000)), (ms(2_000), ms(5_000))] {
        let command_timeout = ms(500);
        let server = Server::start();
        let locks =
            over(std::slice::from_ref(&server), lease).command_timeout(command_timeout).connect().await.unwrap();
        let load = Load::start(&locks, 32);
        tokio::time::sleep(ms(200)).await;
        server.stop();
        tokio::time::sleep(stops).await;
        load.end().await;
        server.go_on();
        eventually(command_timeout * 3, "nothing is left", || locks_on(&server) == 0).await;
        eventually(command_timeout * 4, "nothing is left to be done", || locks.stats().pending == 0).await;
        assert_eq!(locks_on(&server), 0);
    }
}

/// Acquires that replicas acknowledge have a connection of their own: their undos travel behind them there.
#[tokio::test(flavor = "multi_thread")]
async fn an_undo_does_not_overtake_its_acquire() {
    let _turn = TESTS.read().await;
    let server = Server::start();
    let replica = server.replica();
    eventually(ms(10_000), "in step", || server.has_replicas(1)).await;
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url(), ms(30_000)).replicas(1, ms(500)).connect().await.unwrap();
    locks.get(format!("{NAMES}warm")).lock().await.unwrap().unlock().await.unwrap();
    let key = format!("{NAMES}late");
    let fence = mark(&key);
    let monitor = Monitor::start(&server);
    proxy.set(Mode::Hold(fence.clone().into_bytes()));
    assert!(locks.get(&key).try_lock().await.is_err(), "its answer never comes");
    eventually(ms(1_000), "it is undone", || locks.stats().pending_undos > 0).await;
    // Behind an undo that went another way.
    for _ in 0..3 {
        assert_eq!(locks.get(&key).holder().await.unwrap(), None);
    }
    assert!(!server.exists(&fence), "it is held back yet");
    proxy.set(Mode::Pass);
    eventually(ms(1_000), "it is executed late", || server.exists(&fence)).await;
    eventually(ms(2_000), "undone", || !server.exists(&key)).await;
    let scripts: Vec<_> = monitor.sent(&key).into_iter().filter(|line| line.contains("EVAL")).collect();
    let first = |name: &str| scripts.iter().position(|line| line.contains(name)).expect("it was sent");
    assert!(first(&fence) < first("redisson_lock__channel"), "the undo came first: {scripts:#?}");
    drop(replica);
}

#[tokio::test]
async fn nothing_that_takes_is_sent_over_a_silent_connection() {
    let _turn = TESTS.read().await;
    let server = Server::start();
    let locks = builder(&server.url(), ms(30_000)).command_timeout(ms(300)).connect().await.unwrap();
    let lock = |n: usize| locks.get(format!("{NAMES}{n}"));
    lock(0).lock().await.unwrap().unlock().await.unwrap();
    server.stop();
    assert!(lock(1).try_lock().await.is_err());
    eventually(ms(1_000), "it is undone", || locks.stats().pending_undos == 1).await;
    // Until the connection is given up, and afterwards.
    for n in 2..10 {
        let Err(Error::Unavailable { nodes, .. }) = lock(n).try_lock().await else { panic!("it is stopped") };
        let reason = nodes[0].reason();
        assert!(reason.contains("silent") || reason.contains("not connected"), "{reason}");
        assert_eq!(locks.stats().pending_undos, 1, "nothing more may have been taken");
    }
    server.go_on();
    eventually(ms(2_000), "undone", || locks.stats().pending == 0).await;
    assert_eq!(locks_on(&server), 0);
    lock(1).lock().await.unwrap().unlock().await.unwrap();
}

/// A server that is paused for a failover takes connections, answers PING, and runs no script: it fell silent anew on
/// each connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_connections_and_runs_no_script_piles_up_no_undos() {
    let _turn = TESTS.read().await;
    const TASKS: usize = 64;
    for count in [1, 3] {
        let (servers, command_timeout) = (several::servers(count), ms(200));
        let locks = over(&servers, ms(2_000)).command_timeout(command_timeout).connect().await.unwrap();
        let load = Load::start(&locks, TASKS);
        tokio::time::sleep(ms(300)).await;
        let before = load.begun();
        let paused = servers.last().unwrap();
        paused.command::<()>(&["CLIENT", "PAUSE", "3600000", "WRITE"]);
        tokio::time::sleep(command_timeout * 2).await;
        let in_flight = load.begun() - before;
        let mut most = 0;
        for _ in 0..50 {
            tokio::time::sleep(command_timeout / 2).await;
            most = most.max(locks.stats().pending_undos);
        }
        let asked = load.begun() - before;
        println!("{most} undos at most; {in_flight} acquires of {asked} could be in flight");
        load.end().await;
        paused.command::<()>(&["CLIENT", "UNPAUSE"]);
        eventually(ms(10_000), "nothing is left to be done", || locks.stats().pending == 0).await;
        assert_eq!(servers.iter().map(locks_on).sum::<usize>(), 0);
        assert!(most <= in_flight + 3 * TASKS, "{most} undos, and {in_flight} of {asked} acquires in flight");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn guards_that_are_dropped_in_an_outage_leave_nothing_behind() {
    let _turn = TESTS.read().await;
    let (server, command_timeout) = (Server::start(), ms(300));
    let locks = builder(&server.url(), ms(30_000)).command_timeout(command_timeout).connect().await.unwrap();
    for outage in [ms(100), ms(2_000)] {
        let mut guards = Vec::new();
        for n in 0..2_000 {
            guards.push(locks.get(format!("{NAMES}{n}")).owned_by(Owner::new()).lock().await.unwrap());
        }
        server.stop();
        drop(guards);
        tokio::time::sleep(outage).await;
        server.go_on();
        eventually(command_timeout * 4, "nothing is left", || locks_on(&server) == 0).await;
        eventually(command_timeout * 8, "nothing is left to be done", || locks.stats().pending == 0).await;
    }
}
