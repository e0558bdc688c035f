//! Waiting lockers are in a list on the server: a release wakes the next one, and not all of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lockhound::Owner;

use crate::common::distance::Distances;
use crate::common::machine::{again, within};
use crate::common::proxy::{Mode, Proxy};
use crate::common::{Server, builder, eventually, key, locker, ms};
use crate::{list, listed, wait};

/// Returns how many scripts a server has run.
fn scripts(server: &Server) -> u64 {
    server.calls("evalsha") + server.calls("eval")
}

/// Has lockers with several tasks each contend for one lock. Returns how often each locker had it.
async fn contend(
    server: &Server,
    key: &str,
    lockers: usize,
    tasks: usize,
    time: Duration,
) -> Vec<u64> {
    contend_for(server, key, lockers, tasks, Duration::ZERO, time).await
}

/// Does the same, with holders that keep the lock for `hold`.
async fn contend_for(
    server: &Server,
    key: &str,
    lockers: usize,
    tasks: usize,
    hold: Duration,
    time: Duration,
) -> Vec<u64> {
    let over = Arc::new(AtomicBool::new(false));
    let (mut counts, mut running) = (Vec::new(), Vec::new());
    let inside = Arc::new(AtomicU64::new(0));
    let mut connected = Vec::new();
    for _ in 0..lockers {
        connected.push((locker(server).await, Arc::new(AtomicU64::new(0))));
    }
    for (locker, count) in connected {
        for _ in 0..tasks {
            let (lock, count, over, inside) = (
                locker.get(key),
                Arc::clone(&count),
                Arc::clone(&over),
                Arc::clone(&inside),
            );
            running.push(tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    let guard = lock.lock().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                    count.fetch_add(1, Ordering::Relaxed);
                    if !hold.is_zero() {
                        tokio::time::sleep(hold).await;
                    }
                    assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                    guard.unlock().await.unwrap();
                }
            }));
        }
        counts.push((locker, count));
    }
    tokio::time::sleep(time).await;
    over.store(true, Ordering::Relaxed);
    for task in running {
        task.await.unwrap();
    }
    counts
        .iter()
        .map(|(_, count)| count.load(Ordering::Relaxed))
        .collect()
}

/// Lockers that are not woken send nothing, so the cost of an acquisition does not grow with the
/// number of waiters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquisition_costs_two_scripts_however_many_wait() {
    for lockers in [2, 16] {
        let (server, key) = (Server::start(), key());
        let counts = contend(&server, &key, lockers, 4, ms(1_500)).await;
        let (all, sent) = (counts.iter().sum::<u64>(), scripts(&server));
        println!("{lockers} lockers: {all} acquisitions, {sent} scripts, {counts:?}");
        // Each task costs a few more at the beginning and at the end.
        let most = all * 3 + 8 * (lockers as u64 * 4);
        assert!(
            sent <= most,
            "{lockers} lockers: {sent} scripts for {all} acquisitions"
        );
        let (fewest, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        assert!(
            *fewest * 2 + 10 >= *most,
            "each locker has its turns: {counts:?}"
        );
    }
}

/// How many hand-overs there are while connections are cut.
const HAND_OVERS: u64 = if cfg!(feature = "soak") {
    100_000
} else {
    1_000
};

/// A wake-up that is lost with its connection costs as much time as it takes to notice that, and
/// not a re-check.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connections_wake_up_is_made_up_for_without_a_re_check() {
    let (server, key) = (Server::start(), key());
    let lease = Duration::from_secs(60);
    let (count, inside, mut running) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicU64::new(0)),
        Vec::new(),
    );
    for _ in 0..4 {
        let locker = builder(&server.url(), lease).connect().await.unwrap();
        for _ in 0..4 {
            let (lock, count, inside) = (locker.get(&key), Arc::clone(&count), Arc::clone(&inside));
            running.push(tokio::spawn(async move {
                while count.fetch_add(1, Ordering::Relaxed) < HAND_OVERS {
                    let guard = lock.lock().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                    assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                    // The answer to a release may be lost, which is an error.
                    let _: Result<_, _> = guard.unlock().await;
                }
            }));
        }
    }
    let (mut last, mut since, mut longest) = (0, Instant::now(), Duration::ZERO);
    while running.iter().any(|task| !task.is_finished()) {
        tokio::time::sleep(ms(20 + u64::from(uuid::Uuid::new_v4().as_bytes()[0]))).await;
        // Cuts the connections of commands and renewals, or those of messages.
        if since.elapsed() < ms(200) && last % 2 == 0 {
            server.cut_connections();
        } else {
            server.command::<u64>(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        }
        let now = count.load(Ordering::Relaxed);
        if now != last {
            (last, since) = (now, Instant::now());
        }
        longest = longest.max(since.elapsed());
        // Re-checks come every sixth of a lease, that is 10 s.
        assert!(within(longest, ms(5_000)), "no holder for {longest:?}");
    }
    println!("the longest pause: {longest:?}");
    for task in running {
        task.await.unwrap();
    }
}

/// Puts a holder into a lock that is no locker of this crate.
fn take(server: &Server, key: &str) {
    crate::take(server, key, "30000");
}

#[tokio::test]
async fn a_list_exists_while_lockers_wait_and_has_a_lifetime() {
    let (server, key) = (Server::start(), key());
    take(&server, &key);
    let (one, other) = (locker(&server).await, locker(&server).await);
    let waiting = [wait(&one, &key), wait(&other, &key)];
    eventually(ms(3_000), "both are in the list", || {
        listed(&server, &key) == 2
    })
    .await;
    let left = server.pttl(&list(&key));
    assert!((1..=90_000).contains(&left), "three leases: {left}");
    crate::give_back(&server, &key);
    for waiting in waiting {
        waiting.await.unwrap();
    }
    eventually(ms(3_000), "the list is empty", || {
        !server.exists(&list(&key))
    })
    .await;
}

#[tokio::test]
async fn a_waiter_that_leaves_takes_its_locker_off_the_list() {
    let (server, key) = (Server::start(), key());
    take(&server, &key);
    let locker = locker(&server).await;
    let lock = locker.get(&key);
    let waiting =
        tokio::spawn(async move { lock.try_lock_for(ms(30_000)).await.unwrap().is_some() });
    eventually(ms(3_000), "it is in the list", || {
        listed(&server, &key) == 1
    })
    .await;
    waiting.abort();
    eventually(ms(3_000), "it has left the list", || {
        !server.exists(&list(&key))
    })
    .await;
}

/// The first locker in the list does not respond, which the server cannot know. The next one gets
/// the lock after a moment, before its own re-check.
#[tokio::test]
async fn an_unresponsive_locker_is_passed_over_after_a_moment() {
    let (server, key) = (Server::start(), key());
    let holder = locker(&server).await;
    let guard = holder.get(&key).lock().await.unwrap();
    let proxy = Proxy::start(server.port());
    let first = builder(&proxy.url(), ms(30_000)).connect().await.unwrap();
    let stuck = wait(&first, &key);
    eventually(ms(3_000), "the first is in the list", || {
        listed(&server, &key) == 1
    })
    .await;
    let second = locker(&server).await;
    let waiting = wait(&second, &key);
    eventually(ms(3_000), "the second is in the list", || {
        listed(&server, &key) == 2
    })
    .await;
    proxy.set(Mode::BlackHole);
    guard.unlock().await.unwrap();
    let released = Instant::now();
    let granted = waiting.await.unwrap();
    assert!(
        within(granted - released, ms(1_000)),
        "{:?}",
        granted - released
    );
    proxy.set(Mode::Pass);
    stuck.await.unwrap();
}

#[tokio::test]
async fn a_locker_that_is_gone_is_passed_over_at_once() {
    let (server, key) = (Server::start(), key());
    let holder = locker(&server).await;
    let guard = holder.get(&key).lock().await.unwrap();
    // Ten lockers that no longer exist, in front of one that does.
    for dead in 0..10 {
        server.command::<u64>(&[
            "ZADD",
            &list(&key),
            &dead.to_string(),
            &format!("dead{dead}"),
        ]);
    }
    let next = locker(&server).await;
    let waiting = wait(&next, &key);
    eventually(ms(3_000), "it is in the list", || {
        listed(&server, &key) == 11
    })
    .await;
    server.command::<()>(&["CONFIG", "RESETSTAT"]);
    guard.unlock().await.unwrap();
    waiting.await.unwrap();
    eventually(ms(3_000), "the list is empty", || {
        !server.exists(&list(&key))
    })
    .await;
    assert!(server.calls("evalsha") <= 4, "{}", server.calls("evalsha"));
}

/// A foreign key under the name of the list keeps no waiter from being notified.
#[tokio::test]
async fn a_foreign_key_in_the_place_of_the_list_costs_no_wake_up() {
    let (server, key) = (Server::start(), key());
    server.command::<()>(&["SET", &list(&key), "x"]);
    let (one, other) = (locker(&server).await, locker(&server).await);
    for _ in 0..20 {
        let guard = one.get(&key).lock().await.unwrap();
        let waiting = wait(&other, &key);
        crate::listens(&server).await;
        guard.unlock().await.unwrap();
        let released = Instant::now();
        let granted = waiting.await.unwrap();
        assert!(within(
            granted.saturating_duration_since(released),
            ms(1_000)
        ));
    }
    assert_eq!(server.command::<String>(&["GET", &list(&key)]), "x");
}

/// Returns the address for a user with the rights of an earlier version, which knew no lists.
fn unlisted(server: &Server) -> String {
    let rules = "~test:* ~lockhound_fence:* ~redisson_lock__channel:* &redisson_lock__channel:* +hello +ping \
                 +eval +evalsha +client|setname +client|id +info +subscribe +unsubscribe +publish +del +pttl \
                 +pexpire +set +type +get +hgetall +hexists +hset +hsetnx +incr +time";
    let words: Vec<&str> = ["ACL", "SETUSER", "app", "on", ">secret"]
        .into_iter()
        .chain(rules.split_whitespace())
        .collect();
    server.command::<()>(&words);
    server.url().replace("redis://", "redis://app:secret@")
}

/// A user has the rights of an earlier version: there are no lists, all waiters are notified, and
/// nothing else changes.
#[tokio::test]
async fn without_rights_to_lists_all_waiters_are_notified() {
    let (server, key) = (Server::start(), key());
    let url = unlisted(&server);
    let mut lockers = Vec::new();
    for _ in 0..3 {
        lockers.push(builder(&url, ms(30_000)).connect().await.unwrap());
    }
    for round in 0..30 {
        let guard = lockers[round % 3].get(&key).lock().await.unwrap();
        let waiting = wait(&lockers[(round + 1) % 3], &key);
        crate::listens(&server).await;
        tokio::time::sleep(ms(2)).await;
        guard.unlock().await.unwrap();
        let released = Instant::now();
        let granted = waiting.await.unwrap();
        assert!(
            within(granted.saturating_duration_since(released), ms(1_000)),
            "round {round}"
        );
    }
    assert!(
        server
            .command::<Vec<String>>(&["KEYS", "lockhound_waiting:*"])
            .is_empty()
    );
}

/// The server forgets the list together with the lock.
#[tokio::test]
async fn waiters_go_on_after_the_server_is_emptied() {
    let (server, key) = (Server::start(), key());
    let lease = ms(3_000);
    take(&server, &key);
    let lockers = [
        builder(&server.url(), lease).connect().await.unwrap(),
        builder(&server.url(), lease).connect().await.unwrap(),
    ];
    let waiting = lockers.each_ref().map(|locker| wait(locker, &key));
    eventually(ms(3_000), "both are in the list", || {
        listed(&server, &key) == 2
    })
    .await;
    server.command::<()>(&["FLUSHALL"]);
    let emptied = Instant::now();
    for waiting in waiting {
        let granted = waiting.await.unwrap();
        // Re-checks come every sixth of a lease, and from then on the lockers wake each other.
        assert!(
            within(granted - emptied, ms(1_500)),
            "{:?}",
            granted - emptied
        );
    }
}

/// Contends like Redisson on a JVM: it makes an attempt, waits for a message, which reaches it
/// late, and tries again.
fn foreign(
    server: &Server,
    key: &str,
    late: Duration,
    over: &Arc<AtomicBool>,
) -> thread::JoinHandle<u64> {
    let (client, key, over) = (
        redis::Client::open(server.url()).unwrap(),
        key.to_owned(),
        Arc::clone(over),
    );
    thread::spawn(move || {
        let (mut commands, mut subscriber) = (
            client.get_connection().unwrap(),
            client.get_connection().unwrap(),
        );
        let channel = format!("redisson_lock__channel:{{{key}}}");
        let mut messages = subscriber.as_pubsub();
        messages.subscribe(&channel).unwrap();
        messages.set_read_timeout(Some(ms(500))).unwrap();
        let acquire = redis::Script::new(
            "if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end \
             redis.call('HINCRBY', KEYS[1], ARGV[1], 1) redis.call('PEXPIRE', KEYS[1], 30000) return 1",
        );
        let release = redis::Script::new(
            "redis.call('DEL', KEYS[1]) redis.call('PUBLISH', KEYS[2], '0') return 1",
        );
        let (field, mut times) = ("8743c9c0-0795-4907-87fd-6c719a6b4586:1", 0);
        while !over.load(Ordering::Relaxed) {
            if acquire
                .key(&key)
                .arg(field)
                .invoke::<u64>(&mut commands)
                .unwrap()
                == 1
            {
                times += 1;
                thread::sleep(ms(1));
                release
                    .key(&key)
                    .key(&channel)
                    .invoke::<u64>(&mut commands)
                    .unwrap();
                thread::sleep(ms(2));
            } else if messages.get_message().is_ok() {
                thread::sleep(late);
            }
        }
        times
    })
}

/// The foreign client is slower than the lockers in the list, each of which is woken by its name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_use_no_list_have_their_turns() {
    let (server, key, over) = (Server::start(), key(), Arc::new(AtomicBool::new(false)));
    let theirs = foreign(&server, &key, ms(2), &over);
    let ours: u64 = contend(&server, &key, 3, 1, ms(3_000)).await.iter().sum();
    over.store(true, Ordering::Relaxed);
    let theirs = theirs.join().unwrap();
    println!("ours {ours}, theirs {theirs}");
    assert!(theirs * 6 >= ours, "ours {ours}, theirs {theirs}");
    assert!(ours * 4 >= theirs, "ours {ours}, theirs {theirs}");
}

/// Its lockers hand the lock over among many tasks, and the client is slow: it is far away, or
/// collects its garbage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_uses_no_list_is_not_starved() {
    for (lockers, late) in [(1, 2), (1, 15), (2, 15)] {
        let (server, key, over) = (Server::start(), key(), Arc::new(AtomicBool::new(false)));
        let theirs = foreign(&server, &key, ms(late), &over);
        let ours: u64 = contend_for(&server, &key, lockers, 8, ms(1), ms(3_000))
            .await
            .iter()
            .sum();
        over.store(true, Ordering::Relaxed);
        let theirs = theirs.join().unwrap();
        println!("{lockers} lockers, {late} ms late: ours {ours}, theirs {theirs}");
        // On a busy machine it is later than that. Without turns that grow it has one in a
        // thousand.
        assert!(
            theirs * 16 >= ours,
            "{lockers} lockers, {late} ms late: ours {ours}, theirs {theirs}"
        );
    }
}

/// It asks at once behind its own release, and would always be first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locker_without_lists_does_not_starve_those_with_lists() {
    let (server, key, over) = (Server::start(), key(), Arc::new(AtomicBool::new(false)));
    let unlisted = builder(&unlisted(&server), ms(30_000))
        .connect()
        .await
        .unwrap();
    let (lock, ends) = (unlisted.get(&key), Arc::clone(&over));
    let theirs = tokio::spawn(async move {
        let mut times = 0;
        while !ends.load(Ordering::Relaxed) {
            let guard = lock.lock().await.unwrap();
            tokio::time::sleep(ms(1)).await;
            guard.unlock().await.unwrap();
            times += 1;
        }
        times
    });
    let ours = contend_for(&server, &key, 4, 1, ms(1), ms(3_000)).await;
    over.store(true, Ordering::Relaxed);
    let theirs: u64 = theirs.await.unwrap();
    println!("with lists {ours:?}, without {theirs}");
    // Without turns in proportion it has as many as all the others together, and more without a
    // pause.
    assert!(
        theirs <= 2 * ours.iter().sum::<u64>() / 4 + 20,
        "with lists {ours:?}, without {theirs}"
    );
    assert!(
        theirs * 8 >= ours.iter().sum(),
        "with lists {ours:?}, without {theirs}"
    );
}

/// A monitor, a stopped process, or a waiter for another lock: the databases of a server share its
/// channels.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_never_take_the_lock_cost_no_hand_overs() {
    for (lockers, outsider) in [
        (1, "SUBSCRIBE"),
        (1, "PSUBSCRIBE"),
        (1, "another database"),
        (2, "another database"),
    ] {
        let (server, key) = (Server::start(), key());
        let mut listener = server.connection().unwrap();
        let mut messages = listener.as_pubsub();
        let channel = format!("redisson_lock__channel:{{{key}}}");
        match outsider {
            "SUBSCRIBE" => messages.subscribe(&channel).unwrap(),
            "PSUBSCRIBE" => messages.psubscribe("*").unwrap(),
            _ => {}
        }
        let mut held = None;
        if outsider == "another database" {
            let url = format!("{}/1", server.url());
            let [holder, waits] = [&url, &url].map(|url| builder(url, ms(30_000)).connect());
            held = Some(holder.await.unwrap().get(&key).lock().await.unwrap());
            wait(&waits.await.unwrap(), &key);
            crate::listens(&server).await;
        }
        let before = scripts(&server);
        let all: u64 = contend(&server, &key, lockers, 8, ms(3_000))
            .await
            .iter()
            .sum();
        let sent = scripts(&server) - before;
        println!("{lockers} lockers beside {outsider}: {all} acquisitions, {sent} scripts");
        assert!(
            sent * 2 <= all * 3,
            "{lockers} lockers beside {outsider}: {sent} scripts for {all} acquisitions"
        );
        drop(held);
    }
}

/// Its locker left the lock to the client for all of the time, and did not ask.
#[tokio::test]
async fn a_turn_of_others_does_not_outlast_a_short_wait() {
    let server = Server::start();
    let mut listener = server.connection().unwrap();
    let mut messages = listener.as_pubsub();
    messages.psubscribe("*").unwrap();
    let locker = locker(&server).await;
    for _ in 0..200 {
        let lock = locker.get(key());
        let guard = lock.lock().await.unwrap();
        let released = Instant::now();
        guard.unlock().await.unwrap();
        // The first turn lasts 10 ms. On a busy machine, the wait may end after it.
        let ends_before = released.elapsed() < ms(4);
        let taken = lock.try_lock_for(ms(5)).await.unwrap();
        if ends_before && taken.is_some() {
            return;
        }
    }
    panic!("nobody had the lock, and it was never taken");
}

/// Its locker left the lock to the client until it was subscribed to the channel, which took as
/// long as a command may.
#[tokio::test]
async fn a_turn_of_others_waits_for_no_subscription() {
    let (server, key) = (Server::start(), key());
    let mut listener = server.connection().unwrap();
    let mut messages = listener.as_pubsub();
    messages.psubscribe("*").unwrap();
    let proxy = Proxy::start(server.port());
    let locker = builder(&proxy.url(), ms(30_000)).connect().await.unwrap();
    proxy.set(Mode::Hold(b"SUBSCRIBE".to_vec()));
    let begun = Instant::now();
    for _ in 0..3 {
        locker
            .get(&key)
            .lock()
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
    }
    assert!(
        within(begun.elapsed(), ms(1_000)),
        "it waited for {:?}",
        begun.elapsed()
    );
}

/// A client that subscribes and never makes an attempt costs the hand-overs within lockers, and
/// little more: turns that no client takes are offered ever less often. A turn for each release
/// would cost fifty times as much.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_only_listens_costs_little() {
    let mut rates = BTreeMap::new();
    let mut tried = 0;
    while rates.is_empty() || (rates[&true] * 4 < rates[&false] && again(tried)) {
        tried += 1;
        measure(&mut rates).await;
    }
    assert!(rates[&true] * 4 >= rates[&false], "{rates:?}");
}

/// Measures how often three lockers have a lock within some time, without and with a client that
/// only listens.
async fn measure(rates: &mut BTreeMap<bool, u64>) {
    for listens in [false, true] {
        let (server, key) = (Server::start(), key());
        let mut listener = server.connection().unwrap();
        let mut messages = listener.as_pubsub();
        if listens {
            messages
                .subscribe(format!("redisson_lock__channel:{{{key}}}"))
                .unwrap();
        }
        let all: u64 = contend(&server, &key, 3, 4, ms(3_000)).await.iter().sum();
        rates.insert(listens, all);
    }
    println!("{rates:?}");
}

/// The unresponsive lockers are still subscribed: their host is lost, or their machine is
/// suspended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unresponsive_lockers_at_the_head_of_a_list_cost_one_re_check() {
    // Without others the holder's locker is the only one that lives, and its own releases have to
    // wake it.
    tokio::join!(
        behind_two_unresponsive_lockers(0),
        behind_two_unresponsive_lockers(3)
    );
}

async fn behind_two_unresponsive_lockers(others: usize) {
    let (server, key, lease) = (Server::start(), key(), ms(12_000));
    let mut lockers = vec![builder(&server.url(), lease).connect().await.unwrap()];
    let guard = lockers[0]
        .get(&key)
        .owned_by(Owner::new())
        .lock()
        .await
        .unwrap();
    let proxy = Proxy::start(server.port());
    let mut still = Vec::new();
    for n in 1..=2 {
        let locker = builder(&proxy.url(), lease).connect().await.unwrap();
        still.push(wait(&locker, &key));
        eventually(ms(3_000), "it is in the list", || {
            listed(&server, &key) == n
        })
        .await;
    }
    let entered = Arc::new(AtomicU64::new(0));
    for n in 3..3 + others {
        let locker = builder(&server.url(), lease).connect().await.unwrap();
        wait(&locker, &key);
        eventually(ms(3_000), "it is in the list", || {
            listed(&server, &key) == n
        })
        .await;
        lockers.push(locker);
    }
    for locker in &lockers {
        for _ in 0..4 {
            let (lock, entered) = (locker.get(&key), Arc::clone(&entered));
            tokio::spawn(async move {
                loop {
                    let guard = lock.lock().await.unwrap();
                    entered.fetch_add(1, Ordering::Relaxed);
                    guard.unlock().await.unwrap();
                }
            });
        }
    }
    proxy.set(Mode::BlackHole);
    guard.unlock().await.unwrap();
    // A locker re-checks after a sixth of the lease. Before that there are eight hand-overs.
    eventually(ms(10_000), "a locker re-checks", || {
        entered.load(Ordering::Relaxed) > 50
    })
    .await;
    let before = entered.load(Ordering::Relaxed);
    eventually(ms(1_500), "it goes on at once", || {
        entered.load(Ordering::Relaxed) > before + 100
    })
    .await;
    still.iter().for_each(tokio::task::JoinHandle::abort);
}

/// A monitor is subscribed to all channels, those of lockers that are gone among them.
#[tokio::test]
async fn a_monitor_of_all_channels_is_not_taken_for_a_gone_locker() {
    let (server, key) = (Server::start(), key());
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let mut monitor = connection.as_pubsub();
    monitor.psubscribe("*").unwrap();
    let guard = locker(&server).await.get(&key).lock().await.unwrap();
    for gone in ["gone", "gone too"] {
        server.command::<u64>(&["ZADD", &list(&key), "0", gone]);
    }
    let (first, second) = (locker(&server).await, locker(&server).await);
    let waiting = [wait(&first, &key), wait(&second, &key)];
    eventually(ms(3_000), "they are in the list", || {
        listed(&server, &key) == 4
    })
    .await;
    let released = Instant::now();
    guard.unlock().await.unwrap();
    for waiting in waiting {
        let took = waiting.await.unwrap().duration_since(released);
        assert!(
            took < ms(2_500),
            "no re-check, which comes after 5 s: {took:?}"
        );
    }
}

/// A locker that leaves a lock to others listens for its release meanwhile.
#[tokio::test]
async fn a_lock_is_not_left_to_a_monitor_of_all_channels() {
    let (server, key) = (Server::start(), key());
    let mut connection = server.connection().unwrap();
    let mut monitor = connection.as_pubsub();
    monitor.psubscribe("*").unwrap();
    let lock = locker(&server).await.get(&key);
    for _ in 0..20 {
        lock.lock().await.unwrap().unlock().await.unwrap();
        let channels: Vec<String> =
            server.command(&["PUBSUB", "CHANNELS", "redisson_lock__channel:*"]);
        assert!(channels.is_empty(), "{channels:?}");
    }
}

/// A turn that no foreign client takes does not go to the locker that has just had the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locker_does_not_take_the_turn_that_it_offers_to_others() {
    let (server, key) = (Server::start(), key());
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let mut listens = connection.as_pubsub();
    listens
        .subscribe(format!("redisson_lock__channel:{{{key}}}"))
        .unwrap();
    let counts = contend_for(&server, &key, 4, 1, ms(100), ms(4_000)).await;
    println!("{counts:?}");
    assert!(
        counts.iter().min().unwrap() * 4 >= *counts.iter().max().unwrap(),
        "each has its turns: {counts:?}"
    );
}

/// The holder never waited for the lock, so it does not know of other clients that do.
#[tokio::test]
async fn clients_outside_the_list_are_notified_of_the_first_release() {
    let (server, key) = (Server::start(), key());
    let (client, channel) = (
        redis::Client::open(server.url()).unwrap(),
        format!("redisson_lock__channel:{{{key}}}"),
    );
    let listens = thread::spawn(move || {
        let mut connection = client.get_connection().unwrap();
        let mut messages = connection.as_pubsub();
        messages.subscribe(&channel).unwrap();
        messages.set_read_timeout(Some(ms(8_000))).unwrap();
        messages.get_message().is_ok()
    });
    let guard = locker(&server).await.get(&key).lock().await.unwrap();
    let others = [locker(&server).await, locker(&server).await];
    // They keep the lock, so that there is only the first release.
    let waiting = others.each_ref().map(|other| {
        let lock = other.get(&key);
        tokio::spawn(async move { lock.lock().await.unwrap() })
    });
    eventually(ms(3_000), "they are in the list", || {
        listed(&server, &key) == 2
    })
    .await;
    guard.unlock().await.unwrap();
    let heard = tokio::task::spawn_blocking(|| listens.join().unwrap())
        .await
        .unwrap();
    assert!(
        heard,
        "a client of Redisson would sleep for the whole lease"
    );
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

/// A locker that never finds the lock held would make the first attempt each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_near_locker_with_many_tasks_lets_a_distant_one_in() {
    let (server, key, distances) = (Server::start(), key(), Distances::new());
    let near = locker(&server).await;
    let over = Arc::new(AtomicBool::new(false));
    for _ in 0..8 {
        let (lock, over) = (near.get(&key), Arc::clone(&over));
        tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let guard = lock.lock().await.unwrap();
                tokio::time::sleep(ms(50)).await;
                guard.unlock().await.unwrap();
            }
        });
    }
    let url = format!("redis://127.0.0.1:{}", distances.to(server.port(), ms(5)));
    let far = builder(&url, ms(30_000)).connect().await.unwrap();
    for _ in 0..3 {
        let begun = Instant::now();
        far.get(&key).lock().await.unwrap().unlock().await.unwrap();
        assert!(
            within(begun.elapsed(), ms(4_000)),
            "it waited for {:?}",
            begun.elapsed()
        );
    }
    over.store(true, Ordering::Relaxed);
}
