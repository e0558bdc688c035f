//! Locks on a Redis cluster: every slot, failovers, slots that move, and a master that does not
//! answer.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::cluster::{Cluster, slot};
use crate::common::labels::{keys_without_labels, label_of};
use crate::common::machine::within;
use crate::common::{Server, eventually, key, ms, soon};
use lockhound::{Error, FenceSource, Format, Guard, HoldState, Locker, Owner};
use tokio::time::sleep;

/// Returns names whose slots belong to this master.
fn keys_of(cluster: &Cluster, master: usize) -> impl Iterator<Item = String> {
    std::iter::repeat_with(key).filter(move |key| cluster.first_master_of(key) == master)
}

#[tokio::test]
async fn locks_of_all_masters_exclude_are_renewed_and_wake_waiters() {
    let cluster = Cluster::start(3);
    let lease = ms(1_500);
    let (one, two) = (
        cluster.builder(lease).connect().await.unwrap(),
        cluster.builder(lease).connect().await.unwrap(),
    );
    let keys: Vec<_> = (0..60).map(|_| key()).collect();
    let mut guards = Vec::new();
    for key in &keys {
        guards.push(one.get(key).lock().await.unwrap());
    }
    for key in &keys {
        assert!(two.get(key).try_lock().await.unwrap().is_none(), "{key}");
    }
    let waiting: Vec<_> = keys
        .iter()
        .map(|key| (two.get(key), key))
        .map(|(lock, _)| tokio::spawn(async move { lock.lock().await }))
        .collect();
    sleep(lease * 2).await;
    assert!(
        waiting.iter().all(|waiting| !waiting.is_finished())
            && guards.iter().all(|guard| !guard.is_lost())
    );
    let owners: HashSet<_> = keys
        .iter()
        .map(|key| cluster.first_master_of(key))
        .collect();
    assert_eq!(owners.len(), 3);
    let fences: Vec<_> = guards.iter().map(Guard::fence).collect();
    for guard in guards {
        guard.unlock().await.unwrap();
    }
    for (waiting, fence) in waiting.into_iter().zip(fences) {
        let guard = waiting.await.unwrap().unwrap();
        assert!(guard.fence() > fence);
        guard.unlock().await.unwrap();
    }
    eventually(ms(10_000), "nothing is left", || cluster.keys().is_empty()).await;
    one.close().await;
    two.close().await;
}

#[tokio::test]
async fn fair_locks_of_all_masters_are_served_in_order() {
    let cluster = Cluster::start(3);
    let lockers = [
        cluster.builder(ms(60_000)).connect().await.unwrap(),
        cluster.builder(ms(60_000)).connect().await.unwrap(),
    ];
    for master in 0..3 {
        let key = keys_of(&cluster, master).next().unwrap();
        let held = lockers[0].fair(&*key).lock().await.unwrap();
        let mut waiting = Vec::new();
        for n in 0..4 {
            let lock = lockers[n % 2].fair(&*key);
            waiting.push(tokio::spawn(async move { lock.lock().await }));
            let waits = |locks: &Locker| locks.stats().waiters;
            eventually(ms(10_000), "it waits", || {
                lockers.iter().map(waits).sum::<usize>() == n + 1
            })
            .await;
            sleep(ms(300)).await;
        }
        waiting.remove(1).abort();
        held.unlock().await.unwrap();
        for caller in waiting {
            // A look comes after ten seconds.
            let guard = soon(ms(8_000), caller).await.expect("told");
            guard.unwrap().unwrap().unlock().await.unwrap();
        }
    }
    eventually(ms(10_000), "nothing is left", || cluster.keys().is_empty()).await;
}

/// The slots of a lock and of its holder's label belong to different masters.
#[tokio::test]
async fn holder_gives_a_label_that_another_master_has() {
    let cluster = Cluster::start(3);
    let one = cluster
        .builder(ms(30_000))
        .label("shop")
        .connect()
        .await
        .unwrap();
    let other = cluster.builder(ms(30_000)).connect().await.unwrap();
    let master = cluster.first_master_of(&label_of(&one));
    for name in [
        keys_of(&cluster, master).next().unwrap(),
        keys_of(&cluster, (master + 1) % 3).next().unwrap(),
    ] {
        let guard = one.get(&name).lock().await.unwrap();
        eventually(ms(10_000), "it has a label", || {
            cluster.exists(&label_of(&one))
        })
        .await;
        let holder = other.get(&name).holder().await.unwrap().expect("held");
        assert_eq!(holder.label(), Some("shop"));
        guard.unlock().await.unwrap();
    }
    let brief = cluster.builder(ms(30_000)).connect().await.unwrap();
    brief
        .get(key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    eventually(ms(10_000), "it has a label", || {
        cluster.exists(&label_of(&brief))
    })
    .await;
    brief.close().await;
    eventually(ms(10_000), "close deletes it", || {
        !cluster.exists(&label_of(&brief))
    })
    .await;
    // The label moves with its slot.
    let (from, to) = (
        &cluster.masters()[master],
        &cluster.masters()[(master + 1) % 3],
    );
    cluster.move_slot(slot(&label_of(&one)), from, to, || {});
    assert!(to.exists(&label_of(&one)));
    let guard = one.get(key()).lock().await.unwrap();
    let holder = other
        .get(guard.key())
        .holder()
        .await
        .unwrap()
        .expect("held");
    assert_eq!(holder.label(), Some("shop"));
    guard.unlock().await.unwrap();
}

/// Without a message waiters poll after a sixth of the lease, five seconds here.
#[tokio::test]
async fn a_release_wakes_waiters_by_a_sharded_message() {
    let cluster = Cluster::start(3);
    let lease = ms(30_000);
    let (one, two) = (
        cluster.builder(lease).connect().await.unwrap(),
        cluster.builder(lease).connect().await.unwrap(),
    );
    for master in 0..3 {
        let key = keys_of(&cluster, master).next().unwrap();
        let guard = one.get(&key).lock().await.unwrap();
        let lock = two.get(&key);
        let waiting = tokio::spawn(async move { lock.lock().await });
        let channel = format!("redisson_lock__channel:{{{key}}}");
        let server = &cluster.masters()[master];
        eventually(ms(10_000), "it listens at the master of the slot", || {
            server
                .command::<(String, u64)>(&["PUBSUB", "SHARDNUMSUB", &channel])
                .1
                == 1
        })
        .await;
        let released = Instant::now();
        guard.unlock().await.unwrap();
        waiting.await.unwrap().unwrap().unlock().await.unwrap();
        assert!(
            within(released.elapsed(), ms(1_000)),
            "{:?}",
            released.elapsed()
        );
    }
}

#[tokio::test]
async fn a_stopped_master_delays_no_other() {
    let cluster = Cluster::start_with(3, 0, &["--cluster-require-full-coverage", "no"]);
    let lease = ms(3_000);
    let (one, two) = (
        cluster.builder(lease).connect().await.unwrap(),
        cluster.builder(lease).connect().await.unwrap(),
    );
    let (dead, alive) = (
        keys_of(&cluster, 0).next().unwrap(),
        keys_of(&cluster, 1).next().unwrap(),
    );
    let lost = one.get(&dead).lock().await.unwrap();
    let kept = one.get(&alive).lock().await.unwrap();
    cluster.masters()[0].stop();
    let lock = two.get(&dead);
    let stuck = tokio::spawn(async move { lock.try_lock_for(ms(1_000)).await });
    let begun = Instant::now();
    let mut slowest = Duration::ZERO;
    while begun.elapsed() < lease * 2 {
        let started = Instant::now();
        two.get(
            keys_of(&cluster, 1 + slowest.as_millis() as usize % 2)
                .next()
                .unwrap(),
        )
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
        slowest = slowest.max(started.elapsed());
    }
    // A command that waits for the stopped master takes a command timeout, a quarter of the lease.
    assert!(within(slowest, lease / 8), "{slowest:?}");
    assert!(lost.is_lost(), "it was not renewed");
    assert_eq!(kept.state(), HoldState::Safe);
    // Its renewals are answered at once: otherwise its age would be a third of the lease and a
    // command timeout.
    let oldest = lease - kept.remaining();
    assert!(oldest <= lease / 3 + lease / 6, "{oldest:?}");
    assert!(matches!(
        stuck.await.unwrap(),
        Err(Error::Unavailable { .. }) | Ok(None)
    ));
    kept.unlock().await.unwrap();
    cluster.masters()[0].go_on();
}

/// A load that takes and releases locks until it is stopped, and counts the holders of each.
struct Load {
    stop: Arc<AtomicBool>,
    workers: Vec<tokio::task::JoinHandle<(usize, Duration)>>,
}

impl Load {
    fn start(lockers: &[Locker], keys: &[String]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let inside: Arc<Vec<AtomicUsize>> =
            Arc::new(keys.iter().map(|_| AtomicUsize::new(0)).collect());
        let worker = |(at, locks): (usize, &Locker)| {
            let (stop, inside, locks, keys) = (
                Arc::clone(&stop),
                Arc::clone(&inside),
                locks.clone(),
                keys.to_vec(),
            );
            tokio::spawn(async move {
                let (mut entries, mut longest, mut next) = (0, Duration::ZERO, at);
                while !stop.load(Ordering::Relaxed) {
                    next = (next + 1) % keys.len();
                    let begun = Instant::now();
                    let Ok(guard) = locks.get(&keys[next]).owned_by(Owner::new()).lock().await
                    else {
                        continue;
                    };
                    longest = longest.max(begun.elapsed());
                    assert_eq!(
                        inside[next].fetch_add(1, Ordering::SeqCst),
                        0,
                        "{} has two holders",
                        keys[next]
                    );
                    let lost = guard.lost();
                    tokio::select! {
                        () = sleep(ms(2)) => {}
                        () = lost.cancelled() => {}
                    }
                    inside[next].fetch_sub(1, Ordering::SeqCst);
                    entries += 1;
                    drop(guard.unlock().await);
                }
                (entries, longest)
            })
        };
        let workers = lockers
            .iter()
            .cycle()
            .take(6)
            .enumerate()
            .map(worker)
            .collect();
        Self { stop, workers }
    }

    /// Stops the load. Returns how many times a lock was entered, and the longest wait.
    async fn end(self) -> (usize, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        let (mut entries, mut longest) = (0, Duration::ZERO);
        for worker in self.workers {
            let (entered, waited) = worker.await.unwrap();
            (entries, longest) = (entries + entered, longest.max(waited));
        }
        (entries, longest)
    }
}

/// Each slot counts the tokens of its own locks, so they need no other server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redissons_tokens_are_counted_in_the_slot_of_the_lock() {
    let cluster = Cluster::start(3);
    let builder = cluster.builder(ms(6_000));
    let builder = builder.fence_source(FenceSource::RedissonTokens);
    let locks = builder.connect().await.unwrap();
    for master in 0..3 {
        let key = keys_of(&cluster, master).next().unwrap();
        for token in 1..4 {
            let guard = locks.get(&key).lock().await.unwrap();
            assert_eq!(guard.fence().get(), token);
            guard.unlock().await.unwrap();
        }
        let counter = format!("redisson_lock_token:{{{key}}}");
        assert_eq!(cluster.first_master_of(&counter), master);
        assert!(cluster.exists(&counter), "{counter}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ordered_failover_loses_no_lock_and_wakes_the_waiters() {
    let cluster = Cluster::start_with(3, 1, &[]);
    let lease = ms(6_000);
    let (one, two) = (
        cluster.builder(lease).connect().await.unwrap(),
        cluster.builder(lease).connect().await.unwrap(),
    );
    let key = keys_of(&cluster, 0).next().unwrap();
    let held = one.get(&key).lock().await.unwrap();
    let lock = two.get(&key);
    let waiting = tokio::spawn(async move { lock.lock().await });
    let names: Vec<_> = (0..6).map(|_| crate::common::key()).collect();
    let load = Load::start(&[one.clone(), two.clone()], &names);
    let replica = cluster.replica_of(0);
    replica.command::<()>(&["CLUSTER", "FAILOVER"]);
    eventually(ms(30_000), "the replica takes over", || replica.is_master()).await;
    sleep(lease * 3 / 2).await;
    assert_eq!(held.state(), HoldState::Safe, "renewed by the new master");
    assert!(replica.exists(&key));
    let released = Instant::now();
    held.unlock().await.unwrap();
    waiting.await.unwrap().unwrap().unlock().await.unwrap();
    assert!(
        within(released.elapsed(), lease / 6),
        "{:?}",
        released.elapsed()
    );
    let (entries, _) = load.end().await;
    assert!(entries > 100, "{entries}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_master_is_replaced_by_its_replica() {
    let cluster = Cluster::start_with(3, 1, &[]);
    let lease = ms(6_000);
    let locks = cluster.builder(lease).connect().await.unwrap();
    let (key, other) = (
        keys_of(&cluster, 0).next().unwrap(),
        keys_of(&cluster, 1).next().unwrap(),
    );
    let (held, kept) = (
        locks.get(&key).lock().await.unwrap(),
        locks.get(&other).lock().await.unwrap(),
    );
    let fence = held.fence();
    // A write that the replica has acknowledged cannot be lost with its master.
    cluster.masters()[0].command::<()>(&["WAIT", "1", "5000"]);
    let replica = cluster.replica_of(0);
    eventually(ms(10_000), "replicated", || {
        replica
            .command::<String>(&["INFO", "keyspace"])
            .contains("keys=")
    })
    .await;
    let other_locker = cluster.builder(lease).connect().await.unwrap();
    let names: Vec<_> = (0..3)
        .flat_map(|master| keys_of(&cluster, master).skip(1).take(2))
        .collect();
    let load = Load::start(&[locks.clone(), other_locker], &names);
    sleep(ms(500)).await;
    cluster.masters()[0].kill();
    eventually(ms(60_000), "the replica takes over", || replica.is_master()).await;
    sleep(lease * 3 / 2).await;
    assert_eq!(kept.state(), HoldState::Safe);
    let (entries, longest) = load.end().await;
    println!("{entries} entries, the longest wait was {longest:?}");
    assert!(entries > 100, "{entries}");
    if held.is_lost() {
        // The master was away for longer than two renewals. The next fence is higher nevertheless.
        drop(held);
    } else {
        assert!(replica.exists(&key), "renewed by the new master");
        held.unlock().await.unwrap();
    }
    let next = locks.get(&key).lock().await.unwrap();
    assert!(next.fence() > fence);
    next.unlock().await.unwrap();
    kept.unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_under_load_lose_no_lock_and_stop_no_locker() {
    let cluster = Cluster::start(3);
    let lease = ms(6_000);
    let lockers = [
        cluster.builder(lease).connect().await.unwrap(),
        cluster.builder(lease).connect().await.unwrap(),
    ];
    let held: Vec<_> = keys_of(&cluster, 0).take(8).collect();
    let mut guards = Vec::new();
    for key in &held {
        guards.push(lockers[0].get(key).lock().await.unwrap());
    }
    // The load uses some of those slots too, by names in the same braces.
    let contended: Vec<_> = held
        .iter()
        .take(3)
        .map(|key| format!("{{{key}}}:contended"))
        .collect();
    assert_eq!(slot(&contended[0]), slot(&held[0]));
    let load = Load::start(&lockers, &contended);
    let [from, to, _] = cluster.masters() else {
        panic!("three masters")
    };
    tokio::task::block_in_place(|| {
        // Two keys may be in one slot.
        let slots: HashSet<_> = held.iter().map(|key| slot(key)).collect();
        for slot in slots {
            cluster.move_slot(slot, from, to, || std::thread::sleep(ms(300)));
        }
    });
    sleep(lease).await;
    for (guard, key) in guards.iter().zip(&held) {
        assert_eq!(guard.state(), HoldState::Safe, "{key}");
        assert!(to.exists(key), "{key}");
    }
    let (entries, longest) = load.end().await;
    println!("{entries} entries, the longest wait was {longest:?}");
    assert!(
        entries > 50 && within(longest, ms(5_000)),
        "{entries} entries, {longest:?}"
    );
    for guard in guards {
        guard.unlock().await.unwrap();
    }
    eventually(ms(20_000), "nothing is left", || cluster.keys().is_empty()).await;
}

/// A server ends the subscriptions of a slot that leaves it, with a message that the client library
/// ignores.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_away_and_back_still_wakes_its_waiters() {
    let cluster = Cluster::start(3);
    // Without a message waiters poll after a sixth of it, ten seconds.
    let lease = ms(60_000);
    let (one, two) = (
        cluster.builder(lease).connect().await.unwrap(),
        cluster.builder(lease).connect().await.unwrap(),
    );
    let key = keys_of(&cluster, 0).next().unwrap();
    let guard = one.get(&key).lock().await.unwrap();
    let lock = two.get(&key);
    let waiting = tokio::spawn(async move { lock.lock().await });
    let channel = format!("redisson_lock__channel:{{{key}}}");
    let [there, elsewhere, _] = cluster.masters() else {
        panic!("three masters")
    };
    let listens = |server: &Server| {
        server
            .command::<(String, u64)>(&["PUBSUB", "SHARDNUMSUB", &channel])
            .1
            == 1
    };
    eventually(ms(10_000), "it listens", || listens(there)).await;
    tokio::task::block_in_place(|| {
        cluster.move_slot(slot(&key), there, elsewhere, || {});
        cluster.move_slot(slot(&key), elsewhere, there, || {});
    });
    // The map is requested every five seconds if nothing is in doubt.
    eventually(ms(20_000), "it listens again", || listens(there)).await;
    let released = Instant::now();
    guard.unlock().await.unwrap();
    waiting.await.unwrap().unwrap().unlock().await.unwrap();
    assert!(
        within(released.elapsed(), ms(2_000)),
        "{:?}",
        released.elapsed()
    );
}

/// By default one master that is gone without a replica makes all others refuse every command.
#[tokio::test]
async fn a_down_cluster_is_asked_rarely_and_back_it_renews_its_holds() {
    let cluster = Cluster::start(3);
    let lease = ms(20_000);
    let locks = cluster.builder(lease).connect().await.unwrap();
    let held = locks
        .get(keys_of(&cluster, 1).next().unwrap())
        .lock()
        .await
        .unwrap();
    let received = || -> u64 {
        let info: String = cluster.masters()[1].command(&["INFO", "stats"]);
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix("total_connections_received:"))
            .unwrap();
        line.parse().unwrap()
    };
    cluster.masters()[0].kill();
    let info = |server: &Server| server.command::<String>(&["CLUSTER", "INFO"]);
    eventually(ms(30_000), "it is down", || {
        info(&cluster.masters()[1]).contains("cluster_state:fail")
    })
    .await;
    let before = received();
    let begun = Instant::now();
    let other = keys_of(&cluster, 1).next().unwrap();
    assert!(matches!(
        locks.get(&other).try_lock_for(ms(4_000)).await,
        Err(Error::Unavailable { .. }) | Ok(None)
    ));
    // The client library gives each of two connections up when it hears CLUSTERDOWN, every two
    // thirds of a second. The looks of this test open one connection each.
    let made = received() - before;
    let most = 10 + 2 * u64::try_from(begun.elapsed().as_millis() / 600).unwrap();
    assert!(made <= most, "{made} connections, {most} at the most");
    cluster.masters()[0].restart();
    eventually(ms(30_000), "it is up", || {
        info(&cluster.masters()[1]).contains("cluster_state:ok")
    })
    .await;
    let guard = locks.get(&other).lock().await.unwrap();
    guard.unlock().await.unwrap();
    eventually(ms(15_000), "renewed", || held.remaining() > lease * 2 / 3).await;
    assert_eq!(held.state(), HoldState::Safe);
    held.unlock().await.unwrap();
}

#[tokio::test]
async fn several_locks_of_several_slots_are_taken_all_or_none() {
    let cluster = Cluster::start(3);
    let lease = ms(30_000);
    let (one, two) = (
        cluster.builder(lease).connect().await.unwrap(),
        cluster.builder(lease).connect().await.unwrap(),
    );
    let keys: Vec<_> = (0..3)
        .map(|master| keys_of(&cluster, master).next().unwrap())
        .collect();
    let all = one.multi(&keys).lock().await.unwrap();
    for key in &keys {
        assert!(two.get(key).try_lock().await.unwrap().is_none());
    }
    all.unlock().await.unwrap();
    for taken in &keys {
        let other = two.get(taken).lock().await.unwrap();
        assert!(
            one.multi(&keys).try_lock().await.unwrap().is_none(),
            "one of them is held"
        );
        other.unlock().await.unwrap();
        assert_eq!(
            cluster.keys(),
            Vec::<String>::new(),
            "the others have been given back"
        );
    }
    // Contenders for the same locks, given in any order: each gets them in the end.
    let mut orders = Vec::new();
    for (locks, turn) in [(&one, 0), (&two, 1), (&one, 2), (&two, 0)] {
        let mut keys = keys.clone();
        keys.rotate_left(turn);
        let lock = locks.multi(&keys).owned_by(Owner::new());
        orders.push(tokio::spawn(async move {
            for _ in 0..10 {
                lock.lock().await.unwrap().unlock().await.unwrap();
            }
        }));
    }
    for order in orders {
        order.await.unwrap();
    }
    eventually(ms(10_000), "nothing is left", || cluster.keys().is_empty()).await;
}

#[tokio::test]
async fn a_name_with_braces_is_a_lock_if_its_channel_is_in_its_slot() {
    let cluster = Cluster::start(3);
    for format in [Format::Redisson, Format::Plain] {
        let locks = cluster
            .builder(ms(30_000))
            .format(format)
            .connect()
            .await
            .unwrap();
        for name in ["{orders}:1", "a{b}c", "plain", "{{x}}", "ü"] {
            locks
                .get(name)
                .lock()
                .await
                .unwrap()
                .unlock()
                .await
                .unwrap();
        }
        for name in ["a}b", "a{b", "{}x", "}{"] {
            match locks.get(name).lock().await {
                Err(error @ Error::Config { .. }) => {
                    assert!(error.to_string().contains("braces"), "{name}: {error}");
                }
                other => panic!("{name}: {other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn an_address_says_whether_it_is_that_of_a_cluster() {
    let (cluster, alone) = (Cluster::start(3), Server::start());
    let refusal = |url: String| async move { Locker::connect(url).await.unwrap_err().to_string() };
    let message = refusal(cluster.servers[0].url()).await;
    assert!(message.contains("redis-cluster://"), "{message}");
    let message = refusal(format!("redis-cluster://127.0.0.1:{}", alone.port())).await;
    assert!(message.contains("in no cluster"), "{message}");
    let both = Locker::builder()
        .node(cluster.url())
        .node(alone.url())
        .connect()
        .await
        .unwrap_err()
        .to_string();
    assert!(both.contains("name the cluster alone"), "{both}");
    let remembered = cluster
        .builder(ms(30_000))
        .restart_quarantine(ms(30_000))
        .connect()
        .await
        .unwrap_err()
        .to_string();
    assert!(remembered.contains("restart_quarantine"), "{remembered}");
    // One of the seeds is enough.
    let port = cluster.servers[0].port();
    alone.kill();
    let url = format!(
        "redis-cluster://127.0.0.1:{}?node=127.0.0.1:{port}",
        alone.port()
    );
    Locker::connect(url)
        .await
        .unwrap()
        .get(key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

/// Kills the servers of a cluster, and starts them a second later.
fn start_later(cluster: Cluster) -> std::thread::JoinHandle<Cluster> {
    cluster.servers.iter().for_each(Server::kill);
    std::thread::spawn(move || {
        std::thread::sleep(ms(1_000));
        cluster.servers.iter().for_each(Server::restart);
        cluster
    })
}

/// Its masters refuse writes for two more seconds after that.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_starts_a_second_later_is_waited_for() {
    let cluster = Cluster::start(3);
    let builder = || cluster.builder(ms(60_000)).connect_timeout(ms(60_000));
    let (patient, hasty, lazy) = (builder(), builder().connect_timeout(ms(300)), builder());
    let starting = start_later(cluster);
    let start = Instant::now();
    let Error::Unavailable { nodes, .. } = hasty.connect().await.unwrap_err() else {
        panic!("it is not there")
    };
    assert!(nodes[0].reason().contains("refused"), "{}", nodes[0]);
    let lazy = lazy.connect_lazy().unwrap();
    assert!(within(start.elapsed(), ms(900)), "{:?}", start.elapsed());
    let lock = lazy.get(key());
    let waiting = tokio::spawn(async move { lock.lock().await });
    let patient = patient.connect().await.unwrap();
    assert!(start.elapsed() >= ms(1_000), "{:?}", start.elapsed());
    for _ in 0..5 {
        patient
            .get(key())
            .lock()
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
    }
    let guard = crate::common::soon(ms(60_000), waiting)
        .await
        .expect("it gets in")
        .unwrap()
        .unwrap();
    assert!(
        patient.get(guard.key()).try_lock().await.unwrap().is_none(),
        "both are in one cluster"
    );
    guard.unlock().await.unwrap();
    drop(starting.join().unwrap());
}

#[tokio::test]
async fn a_cluster_has_one_mark_for_each_slot_and_fences_grow() {
    let cluster = Cluster::start(3);
    let locks = cluster.builder(ms(30_000)).connect().await.unwrap();
    let name = key();
    let mut last = None;
    for _ in 0..5 {
        let guard = locks.get(&name).lock().await.unwrap();
        assert!(Some(guard.fence()) > last);
        last = Some(guard.fence());
        guard.unlock().await.unwrap();
    }
    for n in 0..20 {
        locks
            .get(format!("{{{name}}}:{n}"))
            .lock()
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
    }
    let marks: Vec<String> = cluster
        .masters()
        .iter()
        .flat_map(keys_without_labels)
        .collect();
    assert_eq!(marks.len(), 1, "{marks:?}");
    assert_eq!(slot(&marks[0]), slot(&name));
}
