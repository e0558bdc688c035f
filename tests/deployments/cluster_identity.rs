//! Whose map of slots a locker follows: its own cluster's, whatever other clusters are at known
//! addresses.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use crate::common::cluster::Cluster;
use crate::common::log::Log;
use crate::common::machine::within;
use crate::common::{Server, eventually, key, ms};
use lockhound::{Guard, Locker};
use tracing_subscriber::filter::LevelFilter;

/// Options of clusters whose masters go on without each other.
const APART: [&str; 2] = ["--cluster-require-full-coverage", "no"];

/// Returns how many scripts a server has run.
fn scripts(server: &Server) -> u64 {
    server.calls("evalsha") + server.calls("eval")
}

/// Returns the epoch of a server's cluster.
fn epoch(server: &Server) -> u64 {
    let info: String = server.command(&["CLUSTER", "INFO"]);
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("cluster_current_epoch:"))
        .unwrap();
    line.parse().unwrap()
}

/// Raises the epoch of a cluster.
fn raise(cluster: &Cluster, to: u64) {
    while epoch(&cluster.servers[0]) < to {
        cluster.servers[0].command::<String>(&["CLUSTER", "BUMPEPOCH"]);
        // It has the highest one already, and the others may not have heard of it.
        let now = epoch(&cluster.servers[0]);
        cluster.servers[1].command::<String>(&["CLUSTER", "BUMPEPOCH"]);
        let start = Instant::now();
        while epoch(&cluster.servers[0]) == now && epoch(&cluster.servers[1]) > now {
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "the epoch does not spread"
            );
            std::thread::sleep(ms(5));
        }
    }
}

/// What all tests of this process warn about.
static WARNINGS: LazyLock<Log> = LazyLock::new(|| Log::collect_from(LevelFilter::WARN));

/// Returns how often a warning about the server at this port was logged.
fn warned(about: &str, port: u16) -> usize {
    let is_it = |line: &&str| line.contains(about) && line.contains(&format!(":{port}"));
    WARNINGS.text().lines().filter(is_it).count()
}

async fn try_lock(locks: &Locker, key: &str) -> Option<Guard> {
    locks.get(key).try_lock().await.ok().flatten()
}

/// A server of another cluster, whose map looks newer, is started at the address of a dead master.
/// Returns both clusters, a locker that was connected before, and one that connects after that by a
/// healthy server.
async fn with_a_foreigner(replicas: usize, lease: Duration) -> (Cluster, Cluster, [Locker; 2]) {
    LazyLock::force(&WARNINGS);
    let (ours, mut foreign) = (
        Cluster::start_with(3, replicas, &APART),
        Cluster::start_with(3, 0, &APART),
    );
    raise(&foreign, epoch(&ours.servers[0]) + 20);
    let early = ours.builder(lease).connect().await.unwrap();
    ours.servers[0].kill();
    if replicas > 0 {
        // The servers do not take a node for dead that another one answers for.
        eventually(ms(60_000), "the replica takes over", || {
            ours.replica_of(0).is_master()
        })
        .await;
    }
    foreign.servers[0].kill();
    foreign.servers[0].restart_at(ours.servers[0].port());
    let is_whole = || {
        foreign.servers[0]
            .command::<String>(&["CLUSTER", "INFO"])
            .contains("cluster_state:ok")
    };
    eventually(ms(30_000), "it is back in its cluster", is_whole).await;
    let url = format!("redis-cluster://127.0.0.1:{}", ours.servers[1].port());
    let late = Locker::builder()
        .node(url)
        .lease(lease)
        .command_timeout(lease / 4)
        .connect()
        .await
        .unwrap();
    (ours, foreign, [early, late])
}

/// Asserts that no two lockers hold a lock, that both get the locks of masters that are there, and
/// that no server of the other cluster was sent a script.
async fn assert_never_used(
    ours: &Cluster,
    foreign: &Cluster,
    lockers: &[Locker; 2],
    is_there: impl Fn(&str) -> bool,
) {
    let [early, late] = lockers;
    let keys: Vec<_> = (0..12).map(|_| key()).collect();
    let there = keys.iter().filter(|key| is_there(key)).count();
    assert!(there > 0);
    let (begun, mut whole) = (Instant::now(), 0);
    // Longer than the five seconds after which the map is asked for again.
    while begun.elapsed() < ms(8_000) || whole < 5 {
        assert!(begun.elapsed() < ms(90_000), "not all locks can be had");
        let mut had = 0;
        for key in &keys {
            for (one, two) in [(early, late), (late, early)] {
                let Some(guard) = try_lock(one, key).await else {
                    continue;
                };
                assert!(is_there(key), "the master of {key} is dead");
                had += 1;
                if let Some(second) = try_lock(two, key).await {
                    assert!(
                        guard.check().is_err() || second.check().is_err(),
                        "{key} has two holders"
                    );
                }
                drop(guard.unlock().await);
            }
        }
        whole += usize::from(had == 2 * there);
    }
    let used: Vec<_> = foreign.servers.iter().map(scripts).collect();
    assert_eq!(used, [0, 0, 0], "scripts were sent to the other cluster");
    assert!(scripts(&ours.servers[1]) > 0);
    assert_eq!(
        warned("belongs to another cluster", foreign.servers[0].port()),
        1
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_node_at_a_dead_nodes_address_is_never_used() {
    let (ours, foreign, lockers) = with_a_foreigner(0, ms(3_000)).await;
    assert_never_used(&ours, &foreign, &lockers, |key| {
        ours.first_master_of(key) != 0
    })
    .await;
    let report = lockhound_doctor::examine(&lockers[0]).await.unwrap();
    // The others have no address for its node any more.
    let failures: Vec<_> = report
        .servers
        .iter()
        .filter_map(|server| server.failure.as_deref())
        .collect();
    let is_said = |why: &&str| {
        why.contains("no master whose address is known") || why.contains("another cluster")
    };
    assert!(failures.iter().any(is_said), "{report}");
}

/// The client library may send a script that it has in its queue on the next connection, before it
/// is known whose server that is. Its answer does not count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_waiting_for_a_dead_node_is_answered_by_a_foreign_one() {
    let (ours, mut foreign) = (
        Cluster::start_with(3, 0, &APART),
        Cluster::start_with(3, 0, &APART),
    );
    let locks = ours.builder(ms(3_000)).connect().await.unwrap();
    let keys: Vec<_> = std::iter::repeat_with(key)
        .filter(|key| ours.first_master_of(key) == 0)
        .take(8)
        .collect();
    let is_dead = Arc::new(AtomicBool::new(false));
    let ask = |key: String| {
        let (locks, is_dead) = (locks.clone(), Arc::clone(&is_dead));
        tokio::spawn(async move {
            let (begun, mut asked) = (Instant::now(), 0);
            while !is_dead.load(Ordering::SeqCst) || begun.elapsed() < ms(8_000) {
                let was_dead = is_dead.load(Ordering::SeqCst);
                asked += 1;
                if let Some(guard) = try_lock(&locks, &key).await {
                    assert!(!was_dead, "{key} was granted, and its master is dead");
                    drop(guard.unlock().await);
                }
            }
            asked
        })
    };
    let asking: Vec<_> = keys.iter().cloned().map(ask).collect();
    eventually(ms(10_000), "they are under way", || {
        scripts(&ours.servers[0]) > 100
    })
    .await;
    foreign.servers[0].kill();
    ours.servers[0].kill();
    is_dead.store(true, Ordering::SeqCst);
    foreign.servers[0].restart_at(ours.servers[0].port());
    for asking in asking {
        assert!(asking.await.unwrap() > 10);
    }
    let told = scripts(&foreign.servers[0]);
    assert!(
        told <= 10,
        "{told} scripts were sent to the other cluster: more than were waiting in the client"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_node_at_a_deposed_masters_address_is_never_used() {
    let (ours, foreign, lockers) = with_a_foreigner(1, ms(3_000)).await;
    assert_never_used(&ours, &foreign, &lockers, |_| true).await;
}

#[tokio::test]
async fn servers_of_two_clusters_in_one_address_are_refused() {
    let (one, other) = (Cluster::start(2), Cluster::start(2));
    let url = format!(
        "{}&node=127.0.0.1:{}&node=127.0.0.1:{}",
        one.url(),
        other.servers[0].port(),
        other.servers[1].port()
    );
    let connect = || {
        Locker::builder()
            .node(&url)
            .connect_timeout(ms(2_000))
            .connect()
    };
    let begun = Instant::now();
    // A server that answers later than the others goes unnoticed.
    let error = loop {
        match connect().await {
            Ok(locks) => locks.close().await,
            Err(error) => break error.to_string(),
        }
        assert!(begun.elapsed() < ms(60_000), "it goes unnoticed each time");
    };
    assert!(error.contains("of two clusters"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_was_created_again_is_found_within_seconds() {
    LazyLock::force(&WARNINGS);
    let mut cluster = Cluster::start(3);
    raise(&cluster, 12);
    let lease = ms(3_000);
    let locks = cluster.builder(lease).connect().await.unwrap();
    let keys: Vec<_> = (0..12).map(|_| key()).collect();
    for key in &keys {
        locks.get(key).lock().await.unwrap().unlock().await.unwrap();
    }
    tokio::task::block_in_place(|| cluster.create_again());
    assert!(epoch(&cluster.servers[0]) < 12);
    let begun = Instant::now();
    for key in &keys {
        let guard = loop {
            assert!(
                within(begun.elapsed(), ms(10_000)),
                "{key} not within {:?}",
                begun.elapsed()
            );
            if let Some(guard) = try_lock(&locks, key).await {
                break guard;
            }
        };
        assert!(cluster.exists(key));
        guard.unlock().await.unwrap();
    }
    assert_eq!(
        warned("switching to the new cluster", cluster.servers[0].port()),
        1
    );
}

#[tokio::test]
async fn a_node_without_an_address_costs_a_connect_nothing() {
    let cluster = Cluster::start_with(3, 0, &APART);
    let gone = &cluster.servers[2];
    gone.command::<()>(&["CLUSTER", "RESET", "HARD"]);
    for server in cluster.masters().iter().take(2) {
        let so = || {
            server
                .command::<String>(&["CLUSTER", "NODES"])
                .contains("noaddr")
        };
        eventually(ms(30_000), "nobody knows its address", so).await;
    }
    let connect_timeout = ms(40_000);
    let begun = Instant::now();
    let locks = cluster
        .builder(ms(3_000))
        .connect_timeout(connect_timeout)
        .connect()
        .await
        .unwrap();
    // Before the locker could tell, a master that does not answer took half of it.
    assert!(
        within(begun.elapsed(), connect_timeout / 8),
        "{:?}",
        begun.elapsed()
    );
    let mine = std::iter::repeat_with(key)
        .find(|key| cluster.first_master_of(key) == 0)
        .unwrap();
    locks
        .get(&mine)
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    let gone = std::iter::repeat_with(key)
        .find(|key| cluster.first_master_of(key) == 2)
        .unwrap();
    let error = locks
        .get(&gone)
        .try_lock_for(ms(500))
        .await
        .unwrap_err()
        .to_string();
    // The name of the lock may begin with a zero.
    assert!(!error.replace(&gone, "").contains(":0"), "{error}");
}
