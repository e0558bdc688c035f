//! Lockers that wait stand in a list: a release wakes the next of them, and not all.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lockhound::{Locker, Owner};

use crate::common::distance::Distances;
use crate::common::machine::{again, within};
use crate::common::proxy::{Mode, Proxy};
use crate::common::{Server, builder, eventually, key, locker, ms};

/// The list of a lock.
fn list(key: &str) -> String {
    format!("lockhound_waiting:{{{key}}}")
}

fn listed(server: &Server, key: &str) -> usize {
    server.command::<Vec<String>>(&["ZRANGE", &list(key), "0", "-1"]).len()
}

/// How many scripts a server has run.
fn scripts(server: &Server) -> u64 {
    server.calls("evalsha") + server.calls("eval")
}

/// So many lockers, with so many tasks each, take one lock in turns until it is over: how often each locker had it.
async fn contend(server: &Server, key: &str, lockers: usize, tasks: usize, time: Duration) -> Vec<u64> {
    contend_for(server, key, lockers, tasks, Duration::ZERO, time).await
}

/// .. and keep it for a while.
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
            let (lock, count, over, inside) =
                (locker.get(key), Arc::clone(&count), Arc::clone(&over), Arc::clone(&inside));
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
    counts.iter().map(|(_, count)| count.load(Ordering::Relaxed)).collect()
}

/// Whoever is not woken sends nothing: what an acquisition costs does not grow with those who wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquisition_costs_two_scripts_however_many_wait() {
    for lockers in [2, 16] {
        let (server, key) = (Server::start(), key());
        let counts = contend(&server, &key, lockers, 4, ms(1_500)).await;
        let (all, sent) = (counts.iter().sum::<u64>(), scripts(&server));
        println!("{lockers} lockers: {all} acquisitions, {sent} scripts, {counts:?}");
        // Beginning and ending cost some for each task.
        let most = all * 3 + 8 * (lockers as u64 * 4);
        assert!(sent <= most, "{lockers} lockers: {sent} scripts for {all} acquisitions");
        let (fewest, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        assert!(*fewest * 2 + 10 >= *most, "each comes in turn: {counts:?}");
    }
}

/// How many hand-overs there are while connections are cut.
const HAND_OVERS: u64 = if cfg!(feature = "soak") { 100_000 } else { 1_000 };

/// A wake-up that is lost with its connection costs no more than it takes to notice that, which is no re-check.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_wake_up_is_lost_with_a_connection() {
    let (server, key) = (Server::start(), key());
    let lease = Duration::from_secs(60);
    let (count, inside, mut running) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)), Vec::new());
    for _ in 0..4 {
        let locker = builder(&server.url(), lease).connect().await.unwrap();
        for _ in 0..4 {
            let (lock, count, inside) = (locker.get(&key), Arc::clone(&count), Arc::clone(&inside));
            running.push(tokio::spawn(async move {
                while count.fetch_add(1, Ordering::Relaxed) < HAND_OVERS {
                    let guard = lock.lock().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                    assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                    // The answer to a release may be lost, and the caller is told so.
                    let _: Result<_, _> = guard.unlock().await;
                }
            }));
        }
    }
    let (mut last, mut since, mut longest) = (0, Instant::now(), Duration::ZERO);
    while running.iter().any(|task| !task.is_finished()) {
        tokio::time::sleep(ms(20 + u64::from(lockhound::Uuid::new_v4().as_bytes()[0]))).await;
        // Of commands and renewals, or of messages.
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
        // They look every sixth of a lease, that is 10 s.
        assert!(within(longest, ms(5_000)), "nobody had it for {longest:?}");
    }
    println!("the longest pause: {longest:?}");
    for task in running {
        task.await.unwrap();
    }
}

/// A holder that is none of this crate's lockers.
fn take(server: &Server, key: &str) {
    crate::take(server, key, "30000");
}

/// Waits for the lock in a task of its own; when it was granted.
fn wait(locker: &Locker, key: &str) -> tokio::task::JoinHandle<Instant> {
    let lock = locker.get(key);
    tokio::spawn(async move {
        let guard = lock.lock().await.unwrap();
        let granted = Instant::now();
        guard.unlock().await.unwrap();
        granted
    })
}

#[tokio::test]
async fn a_list_is_there_while_somebody_waits_and_has_a_lifetime() {
    let (server, key) = (Server::start(), key());
    take(&server, &key);
    let (one, other) = (locker(&server).await, locker(&server).await);
    let waiting = [wait(&one, &key), wait(&other, &key)];
    eventually(ms(3_000), "both are in the list", || listed(&server, &key) == 2).await;
    let left = server.pttl(&list(&key));
    assert!((1..=90_000).contains(&left), "three leases: {left}");
    crate::give_back(&server, &key);
    for waiting in waiting {
        waiting.await.unwrap();
    }
    eventually(ms(3_000), "nobody is in the list", || !server.exists(&list(&key))).await;
}

#[tokio::test]
async fn a_waiter_that_leaves_takes_its_locker_off_the_list() {
    let (server, key) = (Server::start(), key());
    take(&server, &key);
    let locker = locker(&server).await;
    let lock = locker.get(&key);
    let waiting = tokio::spawn(async move { lock.try_lock_for(ms(30_000)).await.unwrap().is_some() });
    eventually(ms(3_000), "it is in the list", || listed(&server, &key) == 1).await;
    waiting.abort();
    eventually(ms(3_000), "it is not in the list any more", || !server.exists(&list(&key))).await;
}

/// The first in the list does not answer, and the server does not know that: the next one gets in after a moment, and
/// not when it looks for itself.
#[tokio::test]
async fn a_locker_that_stands_still_is_passed_over() {
    let (server, key) = (Server::start(), key());
    let holder = locker(&server).await;
    let guard = holder.get(&key).lock().await.unwrap();
    let proxy = Proxy::start(server.port());
    let first = builder(&proxy.url(), ms(30_000)).connect().await.unwrap();
    let stuck = wait(&first, &key);
    eventually(ms(3_000), "the first is in the list", || listed(&server, &key) == 1).await;
    let second = locker(&server).await;
    let waiting = wait(&second, &key);
    eventually(ms(3_000), "the second is in the list", || listed(&server, &key) == 2).await;
    proxy.set(Mode::BlackHole);
    guard.unlock().await.unwrap();
    let released = Instant::now();
    let granted = waiting.await.unwrap();
    assert!(within(granted - released, ms(1_000)), "{:?}", granted - released);
    proxy.set(Mode::Pass);
    stuck.await.unwrap();
}

#[tokio::test]
async fn a_locker_that_is_gone_is_passed_over_at_once() {
    let (server, key) = (Server::start(), key());
    let holder = locker(&server).await;
    let guard = holder.get(&key).lock().await.unwrap();
    // Ten that are not there any more, before the one that is.
    for dead in 0..10 {
        server.command::<u64>(&["ZADD", &list(&key), &dead.to_string(), &format!("dead{dead}")]);
    }
    let next = locker(&server).await;
    let waiting = wait(&next, &key);
    eventually(ms(3_000), "it is in the list", || listed(&server, &key) == 11).await;
    server.command::<()>(&["CONFIG", "RESETSTAT"]);
    guard.unlock().await.unwrap();
    waiting.await.unwrap();
    eventually(ms(3_000), "nobody is in the list", || !server.exists(&list(&key))).await;
    assert!(server.calls("evalsha") <= 4, "{}", server.calls("evalsha"));
}

/// What stands in the place of the list, whoever put it there, keeps nobody from being told.
#[tokio::test]
async fn something_else_in_the_place_of_the_list_costs_no_wake_up() {
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
        assert!(within(granted.saturating_duration_since(released), ms(1_000)));
    }
    assert_eq!(server.command::<String>(&["GET", &list(&key)]), "x");
}

/// A user whose rights are those of an earlier version: there are no lists, all are told, and nothing else changes.
#[tokio::test]
async fn without_the_rights_all_are_told() {
    let (server, key) = (Server::start(), key());
    let rules = "~test:* ~lockhound_fence:* ~redisson_lock__channel:* &redisson_lock__channel:* +hello +ping \
                 +eval +evalsha +client|setname +client|id +info +subscribe +unsubscribe +publish +del +pttl \
                 +pexpire +set +type +get +hgetall +hexists +hset +hsetnx +incr +time";
    let words: Vec<&str> =
        ["ACL", "SETUSER", "app", "on", ">secret"].into_iter().chain(rules.split_whitespace()).collect();
    server.command::<()>(&words);
    let url = server.url().replace("redis://", "redis://app:secret@");
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
        assert!(within(granted.saturating_duration_since(released), ms(1_000)), "round {round}");
    }
    assert!(server.command::<Vec<String>>(&["KEYS", "lockhound_waiting:*"]).is_empty());
}

/// What a locker has in its list is forgotten with the lock itself.
#[tokio::test]
async fn a_server_that_is_emptied_leaves_nobody_waiting() {
    let (server, key) = (Server::start(), key());
    let lease = ms(3_000);
    take(&server, &key);
    let lockers = [
        builder(&server.url(), lease).connect().await.unwrap(),
        builder(&server.url(), lease).connect().await.unwrap(),
    ];
    let waiting = lockers.each_ref().map(|locker| wait(locker, &key));
    eventually(ms(3_000), "both are in the list", || listed(&server, &key) == 2).await;
    server.command::<()>(&["FLUSHALL"]);
    let emptied = Instant::now();
    for waiting in waiting {
        let granted = waiting.await.unwrap();
        // They look every sixth of a lease, and wake each other from there on.
        assert!(within(granted - emptied, ms(1_500)), "{:?}", granted - emptied);
    }
}

/// A client of the JVM, as far as a server sees it: it asks, waits for a message, which it hears 2 ms late, and asks
/// again.
fn foreign(server: &Server, key: &str, over: &Arc<AtomicBool>) -> thread::JoinHandle<u64> {
    let (client, key, over) = (redis::Client::open(server.url()).unwrap(), key.to_owned(), Arc::clone(over));
    thread::spawn(move || {
        let (mut commands, mut subscriber) = (client.get_connection().unwrap(), client.get_connection().unwrap());
        let channel = format!("redisson_lock__channel:{{{key}}}");
        let mut messages = subscriber.as_pubsub();
        messages.subscribe(&channel).unwrap();
        messages.set_read_timeout(Some(ms(500))).unwrap();
        let acquire = redis::Script::new(
            "if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end \
             redis.call('HINCRBY', KEYS[1], ARGV[1], 1) redis.call('PEXPIRE', KEYS[1], 30000) return 1",
        );
        let release = redis::Script::new("redis.call('DEL', KEYS[1]) redis.call('PUBLISH', KEYS[2], '0') return 1");
        let (field, mut times) = ("8743c9c0-0795-4907-87fd-6c719a6b4586:1", 0);
        while !over.load(Ordering::Relaxed) {
            if acquire.key(&key).arg(field).invoke::<u64>(&mut commands).unwrap() == 1 {
                times += 1;
                thread::sleep(ms(1));
                release.key(&key).key(&channel).invoke::<u64>(&mut commands).unwrap();
                thread::sleep(ms(2));
            } else if messages.get_message().is_ok() {
                thread::sleep(ms(2));
            }
        }
        times
    })
}

/// It is slower than the lockers of the list, each of which is woken by its name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_know_no_list_have_their_turns() {
    let (server, key, over) = (Server::start(), key(), Arc::new(AtomicBool::new(false)));
    let theirs = foreign(&server, &key, &over);
    let ours: u64 = contend(&server, &key, 3, 1, ms(3_000)).await.iter().sum();
    over.store(true, Ordering::Relaxed);
    let theirs = theirs.join().unwrap();
    println!("ours {ours}, theirs {theirs}");
    assert!(theirs * 6 >= ours, "ours {ours}, theirs {theirs}");
    assert!(ours * 4 >= theirs, "ours {ours}, theirs {theirs}");
}

/// One that subscribes and never asks costs the hand-overs within lockers, and little more: turns that nobody takes are
/// offered ever less often. A turn for each release would cost fifty times as much.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn somebody_who_only_listens_costs_little() {
    let mut rates = BTreeMap::new();
    let mut tried = 0;
    while rates.is_empty() || (rates[&true] * 4 < rates[&false] && again(tried)) {
        tried += 1;
        measure(&mut rates).await;
    }
    assert!(rates[&true] * 4 >= rates[&false], "{rates:?}");
}

/// How often three lockers have a lock in a while: without and with one that only listens.
async fn measure(rates: &mut BTreeMap<bool, u64>) {
    for listens in [false, true] {
        let (server, key) = (Server::start(), key());
        let mut listener = server.connection().unwrap();
        let mut messages = listener.as_pubsub();
        if listens {
            messages.subscribe(format!("redisson_lock__channel:{{{key}}}")).unwrap();
        }
        let all: u64 = contend(&server, &key, 3, 4, ms(3_000)).await.iter().sum();
        rates.insert(listens, all);
    }
    println!("{rates:?}");
}

/// They are subscribed as before, and come no more: a host that is lost, or a machine that is suspended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lockers_that_stand_still_at_the_head_of_a_list_cost_one_re_check() {
    // The one that holds it may be the only one that lives: then its own releases wake them.
    tokio::join!(behind_two_that_stand_still(0), behind_two_that_stand_still(3));
}

async fn behind_two_that_stand_still(others: usize) {
    let (server, key, lease) = (Server::start(), key(), ms(12_000));
    let mut lockers = vec![builder(&server.url(), lease).connect().await.unwrap()];
    let guard = lockers[0].get(&key).owned_by(Owner::new()).lock().await.unwrap();
    let proxy = Proxy::start(server.port());
    let mut still = Vec::new();
    for n in 1..=2 {
        let locker = builder(&proxy.url(), lease).connect().await.unwrap();
        still.push(wait(&locker, &key));
        eventually(ms(3_000), "it is in the list", || listed(&server, &key) == n).await;
    }
    let entered = Arc::new(AtomicU64::new(0));
    for n in 3..3 + others {
        let locker = builder(&server.url(), lease).connect().await.unwrap();
        wait(&locker, &key);
        eventually(ms(3_000), "it is in the list", || listed(&server, &key) == n).await;
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
    // A sixth of the lease later somebody looks. There are eight hand-overs before that.
    eventually(ms(10_000), "somebody looks", || entered.load(Ordering::Relaxed) > 50).await;
    let before = entered.load(Ordering::Relaxed);
    eventually(ms(1_500), "it goes on at once", || entered.load(Ordering::Relaxed) > before + 100).await;
    still.iter().for_each(tokio::task::JoinHandle::abort);
}

/// A monitor that is subscribed to each channel there is.
#[tokio::test]
async fn whoever_hears_everything_does_not_stand_for_a_locker_that_is_gone() {
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
    eventually(ms(3_000), "they are in the list", || listed(&server, &key) == 4).await;
    let released = Instant::now();
    guard.unlock().await.unwrap();
    for waiting in waiting {
        let took = waiting.await.unwrap().duration_since(released);
        assert!(took < ms(2_500), "no re-check, which comes after 5 s: {took:?}");
    }
}

/// A turn that nobody takes is not for the one that has just had the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locker_that_gives_others_a_turn_does_not_take_it_itself() {
    let (server, key) = (Server::start(), key());
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let mut listens = connection.as_pubsub();
    listens.subscribe(format!("redisson_lock__channel:{{{key}}}")).unwrap();
    let counts = contend_for(&server, &key, 4, 1, ms(100), ms(4_000)).await;
    println!("{counts:?}");
    assert!(counts.iter().min().unwrap() * 4 >= *counts.iter().max().unwrap(), "each comes in turn: {counts:?}");
}

/// Its holder never waited for it, so that it knows nothing of others who do.
#[tokio::test]
async fn those_in_no_list_hear_of_the_first_release_too() {
    let (server, key) = (Server::start(), key());
    let (client, channel) = (redis::Client::open(server.url()).unwrap(), format!("redisson_lock__channel:{{{key}}}"));
    let listens = thread::spawn(move || {
        let mut connection = client.get_connection().unwrap();
        let mut messages = connection.as_pubsub();
        messages.subscribe(&channel).unwrap();
        messages.set_read_timeout(Some(ms(8_000))).unwrap();
        messages.get_message().is_ok()
    });
    let guard = locker(&server).await.get(&key).lock().await.unwrap();
    let others = [locker(&server).await, locker(&server).await];
    // They keep it: no release but the first.
    let waiting = others.each_ref().map(|other| {
        let lock = other.get(&key);
        tokio::spawn(async move { lock.lock().await.unwrap() })
    });
    eventually(ms(3_000), "they are in the list", || listed(&server, &key) == 2).await;
    guard.unlock().await.unwrap();
    let heard = tokio::task::spawn_blocking(|| listens.join().unwrap()).await.unwrap();
    assert!(heard, "a client of Redisson would sleep for the whole lease");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

/// One that never found the lock held would ask first each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_near_locker_of_many_tasks_lets_one_in_that_is_further_away() {
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
        assert!(within(begun.elapsed(), ms(4_000)), "it waited for {:?}", begun.elapsed());
    }
    over.store(true, Ordering::Relaxed);
}
