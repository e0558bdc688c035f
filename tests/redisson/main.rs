//! Redisson on a JVM together with this crate, on one server and on three. tests/foreign/redisson
//! has the program of the JVM.
//!
//! Each claim of docs/redisson.md has a test here.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::both_sides::{
    SLEW, assert_taken_over, both_sides, both_sides_in_a_cluster, entered,
    is_illegal_monitor_state, patient, waits,
};
use common::children::{self, scratch, spawn_child};
use common::jvm::{Asked, Client, Jvm, Mode, RLock};
use common::machine::within;
use common::proxy::{Mode as Fault, Proxy};
use common::record::{Record, visits};
use common::several::{on, over, servers, settled};
use common::{Server, builder, eventually, key, ms, say, soon};
use futures_util::future::join_all;
use lockhound::{Error, FenceSource, Format, Guard, HoldState, Lock, Locker, Loss, Owner};
use tokio::task::JoinHandle;

/// A lease so long that no waiter re-checks by itself within ten seconds.
const LONG: Duration = Duration::from_secs(60);
/// By then a message has woken the waiter.
const WOKEN: Duration = Duration::from_secs(5);
/// A lease that tests wait for. It leaves two seconds for a late renewal.
const SHORT: Duration = Duration::from_secs(3);

/// The child processes are this binary too: they end here, before any test begins.
#[ctor::ctor(unsafe)]
fn child_process() {
    children::play_if_child(|errand| match errand {
        [task, url, keys, limit, out] if task == "beside_jvms" => {
            let keys: Vec<&str> = keys.split(',').collect();
            let visits = visit(&url, keys[0], keys[1], keys[2], limit.parse().unwrap());
            let visits = tokio::runtime::Runtime::new().unwrap().block_on(visits);
            std::fs::write(out, visits.to_string()).unwrap();
        }
        other => children::play(other),
    });
}

/// Waits for one of our locks in a task. Returns when it was granted, and its guard.
fn waiting(lock: Lock) -> JoinHandle<(Instant, Guard)> {
    tokio::spawn(async move {
        let guard = lock.lock().await.unwrap();
        (Instant::now(), guard)
    })
}

// ---- One server ----

#[tokio::test(flavor = "multi_thread")]
async fn each_side_excludes_the_other_until_the_last_nested_release() {
    let Some((server, locks, redisson)) = both_sides(LONG).await else {
        return;
    };
    let (key, lock) = (key(), |key: &str| locks.get(key));
    let (holder, other) = (redisson.lock(&key), redisson.lock(&key));
    for nested in 1..3 {
        holder.lock().await;
        assert_eq!(holder.hold_count().await, nested);
        assert!(!other.try_lock().await, "another thread");
        assert!(lock(&key).try_lock().await.unwrap().is_none());
    }
    let named = lock(&key).holder().await.unwrap().expect("held");
    assert!(
        named.owner().starts_with(&format!("{}:", redisson.id)) && named.hold_count() == 2,
        "{named:?}"
    );
    assert!(
        named
            .remaining()
            .is_some_and(|left| left <= LONG && left > LONG / 2),
        "{named:?}"
    );
    holder.unlock().await.unwrap();
    assert!(lock(&key).try_lock().await.unwrap().is_none(), "once more");
    holder.unlock().await.unwrap();
    assert!(!server.exists(&key));

    let guard = lock(&key).try_lock().await.unwrap().expect("free");
    let nested = lock(&key).lock().await.unwrap();
    assert_eq!(
        server
            .fields(&key)
            .iter()
            .map(|(_, count)| *count)
            .collect::<Vec<_>>(),
        [2]
    );
    assert!(!holder.try_lock().await && holder.is_locked().await && !holder.is_held().await);
    assert!(is_illegal_monitor_state(holder.unlock().await));
    nested.unlock().await.unwrap();
    assert!(!holder.try_lock().await, "once more");
    guard.check().unwrap();
    guard.unlock().await.unwrap();
    assert!(holder.try_lock().await);
    holder.unlock().await.unwrap();
    assert!(!server.exists(&key));
}

#[tokio::test(flavor = "multi_thread")]
async fn releases_of_either_side_wake_waiters_of_the_other() {
    let Some((server, locks, redisson)) = both_sides(LONG).await else {
        return;
    };
    let (key, mut here, mut there) = (key(), Vec::new(), Vec::new());
    let holder = redisson.lock(&key);
    for _ in 0..5 {
        holder.lock().await;
        let waiter = waits(&server, || waiting(locks.get(&key))).await;
        let released = Instant::now();
        holder.unlock().await.unwrap();
        let (at, guard) = tokio::time::timeout(WOKEN, waiter)
            .await
            .expect("woken")
            .unwrap();
        here.push(at - released);

        let asked = waits(&server, || holder.ask("lock", "")).await;
        let released = Instant::now();
        guard.unlock().await.unwrap();
        there.push(entered(asked, WOKEN).await - released);
        holder.unlock().await.unwrap();
    }
    say(&format!(
        "woken by Redisson: {here:.1?}; by us: {there:.1?}"
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_watchdog_excludes_the_other_side_for_several_leases() {
    let Some((server, locks, redisson)) = both_sides(SHORT).await else {
        return;
    };
    let (ours, theirs) = (key(), key());
    let (guard, holder) = (
        locks.get(&ours).lock().await.unwrap(),
        redisson.lock(&theirs),
    );
    holder.lock().await;
    let asked = waits(&server, || redisson.lock(&ours).ask("lock", "")).await;
    let waiter = waits(&server, || waiting(locks.get(&theirs))).await;
    tokio::time::sleep(SHORT * 3 + SHORT / 6).await;
    assert!(
        !asked.is_finished() && !waiter.is_finished(),
        "kept out for three leases"
    );
    guard.check().unwrap();
    assert!(holder.is_held().await);
    guard.unlock().await.unwrap();
    holder.unlock().await.unwrap();
    entered(asked, WOKEN).await;
    tokio::time::timeout(WOKEN, waiter)
        .await
        .expect("woken")
        .unwrap()
        .1
        .unlock()
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn we_take_over_the_lock_of_a_killed_jvm_when_its_lease_is_over() {
    let Some(jvm) = Jvm::start() else { return };
    let (server, key) = (Server::start(), key());
    let locks = patient(&server, SHORT).await;
    let redisson = jvm.client(&server, SHORT).await;
    redisson.lock(&key).lock().await;
    let waiter = waits(&server, || waiting(locks.get(&key))).await;
    jvm.kill();
    let asked = Instant::now();
    let left = server.pttl(&key);
    let (at, guard) = waiter.await.unwrap();
    assert_taken_over(asked, left, SHORT, at);
    guard.unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn redisson_takes_over_a_killed_process_lock_after_its_lease() {
    let Some((server, _, redisson)) = both_sides(LONG).await else {
        return;
    };
    let (key, out, lease) = (key(), scratch("held"), ms(2_000));
    let mut child = spawn_child("hold", &server.url(), &[&key], 0, &out);
    eventually(ms(20_000), "the child holds the lock", || out.exists()).await;
    let waiter = redisson.lock(&key);
    let lock = waits(&server, || waiter.ask("lock", "")).await;
    child.kill().unwrap();
    child.wait().unwrap();
    let asked = Instant::now();
    let left = server.pttl(&key);
    assert_taken_over(asked, left, lease, entered(lock, ms(20_000)).await);
    waiter.unlock().await.unwrap();
    std::fs::remove_file(out).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn fixed_leases_end_for_the_other_side() {
    let Some((server, locks, redisson)) = both_sides(LONG).await else {
        return;
    };
    let (ours, theirs, lease) = (key(), key(), ms(1_500));
    let (holder, waiter) = (redisson.lock(&theirs), redisson.lock(&ours));
    let start = Instant::now();
    holder.lock_leased(lease).await;
    let here = waits(&server, || waiting(locks.get(&theirs))).await;
    let begun = Instant::now();
    let guard = locks.get(&ours).fixed_lease(lease).lock().await.unwrap();
    let there = waits(&server, || waiter.ask("lock", "")).await;

    let (at, entered_by_us) = tokio::time::timeout(LONG / 12, here)
        .await
        .expect("its lease is over")
        .unwrap();
    assert!(at - start + SLEW >= lease, "{:?}", at - start);
    assert!(is_illegal_monitor_state(holder.unlock().await));
    entered_by_us.check().unwrap();
    entered_by_us.unlock().await.unwrap();

    let at = entered(there, LONG / 12).await;
    assert!(at - begun + SLEW >= lease, "{:?}", at - begun);
    assert_eq!(
        guard.state(),
        HoldState::Lost(Loss::Expired),
        "lost before the other side has the lock"
    );
    assert!(matches!(
        guard.unlock().await,
        Err(Error::Lost {
            loss: Loss::Expired,
            ..
        })
    ));
    assert!(waiter.is_held().await, "a late unlock does not affect it");
    waiter.unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn force_unlock_frees_the_other_sides_lock_and_tells_both() {
    let Some((server, locks, redisson)) = both_sides(SHORT).await else {
        return;
    };
    let (ours, theirs) = (key(), key());
    // We force their lock: its holder learns of it from its own unlock.
    let holder = redisson.lock(&theirs);
    holder.lock().await;
    let waiter = waits(&server, || waiting(locks.get(&theirs))).await;
    let operator = patient(&server, SHORT).await;
    assert!(operator.get(&theirs).force_unlock().await.unwrap());
    let (_, guard) = tokio::time::timeout(WOKEN, waiter)
        .await
        .expect("woken")
        .unwrap();
    assert!(!holder.is_held().await);
    assert!(is_illegal_monitor_state(holder.unlock().await));
    guard.check().unwrap();
    guard.unlock().await.unwrap();

    // They force our lock: its holder learns of it at the next renewal.
    let guard = locks.get(&ours).lock().await.unwrap();
    let waiter = redisson.lock(&ours);
    let asked = waits(&server, || waiter.ask("lock", "")).await;
    let forced = Instant::now();
    assert!(redisson.lock(&ours).force_unlock().await);
    entered(asked, WOKEN).await;
    soon(SHORT, guard.lost().cancelled())
        .await
        .expect("lost by the next renewal");
    assert!(
        within(forced.elapsed(), SHORT / 3 + ms(500)),
        "a third of the lease: {:?}",
        forced.elapsed()
    );
    assert_eq!(guard.state(), HoldState::Lost(Loss::NotOwner));
    assert!(matches!(
        guard.unlock().await,
        Err(Error::Lost {
            loss: Loss::NotOwner,
            ..
        })
    ));
    assert!(waiter.is_held().await, "a late unlock does not affect it");
    waiter.unlock().await.unwrap();
    assert!(
        !redisson.lock(&ours).force_unlock().await
            && !operator.get(&ours).force_unlock().await.unwrap()
    );
}

/// Redisson leaves such a lock behind, where this crate undoes it.
#[tokio::test(flavor = "multi_thread")]
async fn a_redisson_acquire_with_a_lost_reply_blocks_for_a_lease() {
    let Some(jvm) = Jvm::shared() else { return };
    // The lease is longer than the three seconds for which Redisson waits for an answer.
    let (server, key, lease) = (Server::start(), key(), SHORT * 3);
    let (proxy, locks) = (Proxy::start(server.port()), patient(&server, lease).await);
    let redisson = jvm.connect(Mode::Single, &[proxy.url()], lease).await;
    let (holder, other) = (redisson.lock(&key), redisson.lock(&common::key()));
    // Now the scripts are loaded and the connection stands.
    other.lock().await;
    proxy.set(Fault::SwallowReplyTo(key.clone().into_bytes()));
    let told = holder.done("lock").await.expect_err("no answer");
    let asked = Instant::now();
    assert!(told.contains("RedisResponseTimeoutException"), "{told}");
    let (fields, left) = (server.fields(&key), server.pttl(&key));
    assert!(
        fields.len() == 1 && fields[0].0.starts_with(&redisson.id),
        "the server has it, the caller got an error"
    );
    assert!(locks.get(&key).try_lock().await.unwrap().is_none());
    let (at, guard) = waiting(locks.get(&key)).await.unwrap();
    assert_taken_over(asked, left, lease, at);
    guard.unlock().await.unwrap();
}

// ---- Many processes ----

/// How often the lock is taken in total.
const ACQUISITIONS: usize = if cfg!(feature = "soak") {
    50_000
} else {
    2_000
};
/// The longest pause between two visits, in milliseconds, on both sides.
const PAUSE: u64 = 8;
/// The fewest visits of each process, and the fewest changes from one side to the other. Hundreds
/// are usual; the number depends on chance and on the machine.
const FEWEST: usize = 10;

/// Locks and unlocks until the counter is at this limit, as the JVMs do. Returns how often.
async fn visit(url: &str, key: &str, record: &str, counter: &str, limit: u64) -> usize {
    let locks = Locker::connect(url).await.unwrap();
    let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
    let name = format!("lockhound{}", std::process::id());
    let lock = locks.get(key);
    let mut visits = 0;
    loop {
        let guard = lock.lock().await.unwrap();
        // A GET and a SET: if two holders are inside at once, a count is lost.
        let count: Option<u64> = redis::cmd("GET")
            .arg(counter)
            .query(&mut connection)
            .unwrap();
        if count.is_some_and(|count| count >= limit) {
            guard.unlock().await.unwrap();
            break;
        }
        redis::cmd("RPUSH")
            .arg(record)
            .arg(format!("enter {name}"))
            .exec(&mut connection)
            .unwrap();
        redis::cmd("SET")
            .arg(counter)
            .arg(count.unwrap_or(0) + 1)
            .exec(&mut connection)
            .unwrap();
        guard.check().unwrap();
        redis::cmd("RPUSH")
            .arg(record)
            .arg(format!("leave {name}"))
            .exec(&mut connection)
            .unwrap();
        guard.unlock().await.unwrap();
        visits += 1;
        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..PAUSE * 1_000))).await;
    }
    locks.close().await;
    visits
}

/// A process of ours that contends with JVMs. It is killed on drop.
struct Visitor {
    child: Child,
    out: PathBuf,
}

impl Visitor {
    fn spawn(server: &Server, keys: &[&str]) -> Self {
        let out = scratch("visits");
        Self {
            child: spawn_child("beside_jvms", &server.url(), keys, ACQUISITIONS, &out),
            out,
        }
    }

    fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits until the process has succeeded. Returns how many visits it made.
    async fn done(mut self) -> usize {
        eventually(Duration::from_secs(60), "every waiter returns", || {
            !self.is_running()
        })
        .await;
        assert!(self.child.wait().unwrap().success(), "its output is above");
        std::fs::read_to_string(&self.out).unwrap().parse().unwrap()
    }
}

impl Drop for Visitor {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        drop(std::fs::remove_file(&self.out));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn four_jvms_and_four_of_our_processes_exclude_each_other() {
    let mut jvms = Vec::new();
    while jvms.len() < 4 {
        let Some(jvm) = Jvm::start() else { return };
        jvms.push(jvm);
    }
    let (server, key, record, counter) = (Server::start(), key(), common::key(), common::key());
    let locks = patient(&server, LONG).await;
    let gate = locks.get(&key).lock().await.unwrap();
    let mut ours: Vec<_> = (0..4)
        .map(|_| Visitor::spawn(&server, &[&key, &record, &counter]))
        .collect();
    let clients = join_all(
        jvms.iter()
            .map(|jvm| jvm.client(&server, Duration::from_secs(30))),
    )
    .await;
    let theirs: Vec<RLock<'_>> = clients.iter().map(|client| client.lock(&key)).collect();
    let visiting = (1..).zip(&theirs).map(|(at, lock): (usize, &RLock<'_>)| {
        lock.ask(
            "visit",
            &format!("{record} {counter} redisson{at} {ACQUISITIONS} {PAUSE}"),
        )
    });
    let visiting: Vec<Asked> = visiting.collect();
    let channel = format!("redisson_lock__channel:{{{key}}}");
    eventually(Duration::from_secs(60), "all eight wait", || {
        assert!(
            ours.iter_mut().all(Visitor::is_running),
            "its output is above"
        );
        server
            .command::<(String, u64)>(&["PUBSUB", "NUMSUB", &channel])
            .1
            == 8
    })
    .await;
    let start = Instant::now();
    gate.unlock().await.unwrap();

    let (mut there, bound) = (
        Vec::new(),
        Duration::from_secs(60) * u32::try_from(ACQUISITIONS / 2_000).unwrap(),
    );
    for (jvm, asked) in jvms.iter().zip(visiting) {
        there.push(
            jvm.within(bound, asked)
                .await
                .said
                .unwrap()
                .parse()
                .unwrap(),
        );
    }
    let mut here = Vec::new();
    for visitor in ours {
        here.push(visitor.done().await);
    }
    let took = start.elapsed();
    let notes: Vec<String> = server.command(&["LRANGE", &record, "0", "-1"]);
    let visits = visits(&notes);
    Record::of(visits.clone()).check().unwrap();
    let is_theirs = |who: &str| who.starts_with("redisson");
    let changes = visits
        .windows(2)
        .filter(|pair| is_theirs(&pair[0].who) != is_theirs(&pair[1].who))
        .count();
    let sum = |counts: &[usize]| counts.iter().sum::<usize>();
    say(&format!(
        "{ACQUISITIONS} acquisitions in {took:.1?}, {changes} changes of side: JVMs {} {there:?}, ours {} {here:?}",
        sum(&there),
        sum(&here)
    ));
    assert_eq!(
        (visits.len(), sum(&there) + sum(&here)),
        (ACQUISITIONS, ACQUISITIONS)
    );
    assert_eq!(
        server.command::<usize>(&["GET", &counter]),
        ACQUISITIONS,
        "no count was lost"
    );
    assert!(
        there.iter().chain(&here).all(|visits| *visits >= FEWEST) && changes >= FEWEST,
        "no side starves"
    );
    assert!(!server.exists(&key), "no lock is left");
}

// ---- Three servers ----

/// Returns a client of the shared JVM for each of these servers, as RedLock needs.
async fn clients_of(servers: &[Server], jvm: &'static Jvm) -> Vec<Client<'static>> {
    join_all(servers.iter().map(|server| jvm.client(server, LONG))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn red_lock_multi_lock_and_our_quorum_exclude_each_other() {
    let Some(jvm) = Jvm::shared() else { return };
    let (servers, key) = (servers(3), key());
    let clients = clients_of(&servers, jvm).await;
    let locks = over(&servers, LONG).connect().await.unwrap();
    for kind in ["red", "multi"] {
        let theirs = jvm.lock_over(kind, &clients, &key);
        theirs.lock().await;
        assert!(
            locks.get(&key).try_lock().await.unwrap().is_none(),
            "{kind}"
        );
        settled(&locks).await;
        assert!(locks.get(&key).is_locked().await.unwrap(), "{kind}");
        theirs.unlock().await.unwrap();
        let guard = locks.get(&key).try_lock().await.unwrap().expect("free");
        assert!(!theirs.try_lock().await, "{kind}");
        guard.check().unwrap();
        guard.unlock().await.unwrap();
        // A MultiLock needs all servers, and `unlock` waits for a majority.
        eventually(ms(5_000), "released everywhere", || on(&servers, &key) == 0).await;
        assert!(theirs.try_lock().await, "{kind}");
        theirs.unlock().await.unwrap();
    }
}

/// A RedLock needs two of three servers. A MultiLock needs all of them, and one that is held keeps
/// it out.
#[tokio::test(flavor = "multi_thread")]
async fn a_minority_keeps_out_a_multi_lock_but_no_red_lock() {
    let Some(jvm) = Jvm::shared() else { return };
    let (servers, key) = (servers(3), key());
    let clients = clients_of(&servers, jvm).await;
    let lock = over(&servers, LONG).connect().await.unwrap().get(&key);
    let stray = clients[0].lock(&key);
    stray.lock().await;
    let (red, multi) = (
        jvm.lock_over("red", &clients, &key),
        jvm.lock_over("multi", &clients, &key),
    );
    assert!(!multi.try_lock().await);
    assert!(red.try_lock().await && lock.try_lock().await.unwrap().is_none());
    red.unlock().await.unwrap();
    let guard = lock.try_lock().await.unwrap().expect("two of three");
    assert!(!red.try_lock().await && !multi.try_lock().await);
    guard.unlock().await.unwrap();
    stray.unlock().await.unwrap();
}

/// How often the lock is taken over three servers.
const OVER_THREE: u64 = if cfg!(feature = "soak") { 2_000 } else { 120 };

#[tokio::test(flavor = "multi_thread")]
async fn contending_red_multi_and_quorum_locks_exclude_each_other() {
    let Some(jvm) = Jvm::shared() else { return };
    let (servers, key, record, counter) =
        (Arc::new(servers(3)), key(), common::key(), common::key());
    let clients = clients_of(&servers, jvm).await;
    let rest = |name: &str| format!("{record} {counter} {name} {OVER_THREE} {PAUSE}");
    let there = ["red", "multi"].map(|kind| {
        jvm.lock_over(kind, &clients, &key)
            .ask("visit", &rest(kind))
    });
    let ours = (0..2).map(|at| {
        let (servers, key, record, counter) = (
            Arc::clone(&servers),
            key.clone(),
            record.clone(),
            counter.clone(),
        );
        tokio::spawn(async move {
            let locks = over(&servers, LONG).connect().await.unwrap();
            let (lock, name, server) = (
                locks.get(&key).owned_by(Owner::new()),
                format!("lockhound{at}"),
                &servers[0],
            );
            let mut visits = 0;
            loop {
                let guard = lock.lock().await.unwrap();
                let count = server
                    .command::<Option<u64>>(&["GET", &counter])
                    .unwrap_or(0);
                if count >= OVER_THREE {
                    guard.unlock().await.unwrap();
                    return visits;
                }
                server.command::<u64>(&["RPUSH", &record, &format!("enter {name}")]);
                server.command::<()>(&["SET", &counter, &(count + 1).to_string()]);
                guard.check().unwrap();
                server.command::<u64>(&["RPUSH", &record, &format!("leave {name}")]);
                guard.unlock().await.unwrap();
                visits += 1;
                tokio::time::sleep(Duration::from_micros(fastrand::u64(0..PAUSE * 1_000))).await;
            }
        })
    });
    let (start, bound) = (
        Instant::now(),
        Duration::from_secs(60) * u32::try_from(OVER_THREE / 100).unwrap(),
    );
    let ours = soon(bound, join_all(ours))
        .await
        .expect("every waiter returns");
    let here: Vec<u64> = ours.into_iter().map(Result::unwrap).collect();
    let mut counts = Vec::new();
    for asked in there {
        counts.push(
            jvm.within(bound, asked)
                .await
                .said
                .unwrap()
                .parse::<u64>()
                .unwrap(),
        );
    }
    say(&format!(
        "{OVER_THREE} acquisitions over three servers in {:.1?}: RedLock and MultiLock {counts:?}, ours {here:?}",
        start.elapsed()
    ));
    let notes: Vec<String> = servers[0].command(&["LRANGE", &record, "0", "-1"]);
    Record::of(visits(&notes)).check().unwrap();
    assert_eq!(
        (servers[0].command(&["GET", &counter]), notes.len() as u64),
        (OVER_THREE, 2 * OVER_THREE)
    );
    assert_eq!(counts.iter().chain(&here).sum::<u64>(), OVER_THREE);
}

// ---- Fences ----

/// The fences of holders, noted while they hold the lock and so in the order of the acquisitions.
type Notes = Arc<Mutex<Vec<u64>>>;

async fn with_tokens(server: &Server) -> Locker {
    Locker::builder()
        .node(server.url())
        .lease(LONG)
        .fence_source(FenceSource::RedissonTokens)
        .connect()
        .await
        .unwrap()
}

fn assert_growing(fences: &[u64]) {
    assert!(
        fences.windows(2).all(|pair| pair[0] < pair[1]),
        "{fences:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn fences_and_tokens_of_fenced_locks_are_one_sequence() {
    let Some(jvm) = Jvm::shared() else { return };
    let server = Server::start();
    let (locks, redisson, key) = (
        with_tokens(&server).await,
        jvm.client(&server, LONG).await,
        key(),
    );
    let theirs = redisson.lock_of("fenced", &key);
    for round in 0..3 {
        assert_eq!(theirs.lock_and_get_token().await, 4 * round + 1);
        assert_eq!(
            theirs.lock_and_get_token().await,
            4 * round + 2,
            "a re-entry on the JVM counts"
        );
        theirs.unlock().await.unwrap();
        theirs.unlock().await.unwrap();
        let guard = locks.get(&key).lock().await.unwrap();
        let nested = locks.get(&key).lock().await.unwrap();
        assert_eq!(
            (guard.fence().get(), nested.fence().get()),
            (4 * round + 3, 4 * round + 3),
            "one of ours does not"
        );
        nested.unlock().await.unwrap();
        guard.unlock().await.unwrap();
        let several = locks
            .multi([key.clone(), common::key()])
            .lock()
            .await
            .unwrap();
        assert_eq!(several.fence(&key).unwrap().get(), 4 * round + 4);
        several.unlock().await.unwrap();
    }
    let counter = format!("redisson_lock_token:{{{key}}}");
    assert_eq!(
        (server.command(&["GET", &counter]), server.pttl(&counter)),
        ("12".to_owned(), -1)
    );
    // An attempt that finds the lock taken does not count.
    let guard = locks.get(&key).lock().await.unwrap();
    assert!(
        !theirs.try_lock().await
            && with_tokens(&server)
                .await
                .get(&key)
                .try_lock()
                .await
                .unwrap()
                .is_none()
    );
    assert_eq!(
        (guard.fence().get(), server.command(&["GET", &counter])),
        (13, "13".to_owned())
    );
    guard.unlock().await.unwrap();

    // Redisson gives the counter a lifetime, which concerns both sides.
    let leased = jvm.lock_over("multifenced", std::slice::from_ref(&redisson), &key);
    leased.lock_leased(LONG).await;
    assert!(
        (1..=60_000).contains(&server.pttl(&counter)),
        "its lease is the lifetime of the counter"
    );
    leased.unlock().await.unwrap();
    server.command::<()>(&["PERSIST", &counter]);

    // Both sides at once.
    let notes = Notes::default();
    let ours = (0..2).map(|_| {
        let (lock, notes) = (locks.get(&key).owned_by(Owner::new()), Arc::clone(&notes));
        tokio::spawn(async move {
            for _ in 0..40 {
                let guard = lock.lock().await.unwrap();
                notes.lock().unwrap().push(guard.fence().get());
                guard.unlock().await.unwrap();
                tokio::time::sleep(Duration::from_micros(fastrand::u64(0..PAUSE * 1_000))).await;
            }
        })
    });
    let there = (0..2).map(|_| {
        let (lock, notes) = (redisson.lock_of("fenced", &key), Arc::clone(&notes));
        tokio::spawn(async move {
            for _ in 0..40 {
                let token = lock.lock_and_get_token().await;
                notes.lock().unwrap().push(token);
                lock.unlock().await.unwrap();
            }
        })
    });
    let tasks: Vec<_> = ours.chain(there).collect();
    for task in tasks {
        task.await.unwrap();
    }
    let notes = notes.lock().unwrap();
    assert_eq!(notes.len(), 160);
    assert_growing(&notes);
}

// ---- Elections ----

#[tokio::test(flavor = "multi_thread")]
async fn candidates_and_a_lock_of_a_jvm_keep_each_other_out() {
    let Some((server, locks, redisson)) = both_sides(LONG).await else {
        return;
    };
    let (key, mut here, mut there) = (key(), Vec::new(), Vec::new());
    let (holder, election) = (redisson.lock(&key), locks.election(&*key));
    for _ in 0..5 {
        holder.lock().await;
        assert!(election.try_campaign("a").await.unwrap().is_none());
        let campaigns = election.clone();
        let campaign = waits(&server, || {
            tokio::spawn(async move { (campaigns.campaign("a").await, Instant::now()) })
        })
        .await;
        let released = Instant::now();
        holder.unlock().await.unwrap();
        let elected = tokio::time::timeout(WOKEN, campaign).await.expect("woken");
        let (leadership, at) = elected.unwrap();
        here.push(at - released);
        assert!(!holder.try_lock().await);
        let asked = waits(&server, || holder.ask("lock", "")).await;
        let resigned = Instant::now();
        leadership.unwrap().resign().await.unwrap();
        there.push(entered(asked, WOKEN).await - resigned);
        holder.unlock().await.unwrap();
    }
    say(&format!(
        "elected after an unlock of Redisson: {here:.1?}; Redisson locks after a resignation: {there:.1?}"
    ));
}

/// A JVM announces that it unlocks, and not that it locks.
#[tokio::test(flavor = "multi_thread")]
async fn an_observer_sees_a_leader_on_a_jvm() {
    let Some((server, locks, redisson)) = both_sides(LONG).await else {
        return;
    };
    let key = key();
    let holder = redisson.lock(&key);
    let looks = patient(&server, SHORT).await;
    let mut looks = looks.election(&*key).observe().await.unwrap();
    assert_eq!(looks.changed().await.unwrap(), None);
    // What an earlier leader has said is not believed of the JVM.
    let before = locks.election(&*key).campaign("before").await.unwrap();
    before.resign().await.unwrap();
    holder.lock().await;
    let leader = async {
        loop {
            let changed = looks.changed().await.unwrap();
            if let Some(leader) = changed.filter(|leader| leader.value().is_none()) {
                return leader;
            }
        }
    };
    let leader = soon(SHORT, leader).await.expect("it looks");
    assert!(
        leader.owner().starts_with(&format!("{}:", redisson.id)),
        "{leader:?}"
    );
    assert_eq!((leader.term(), leader.value()), (None, None));
    let mut hears = locks.election(&*key).observe().await.unwrap();
    assert_eq!(
        hears.changed().await.unwrap().as_ref().map(|l| l.value()),
        Some(None)
    );
    holder.unlock().await.unwrap();
    let free = soon(WOKEN, hears.changed()).await.expect("it hears");
    assert_eq!(free.unwrap(), None);
}

// ---- What does not mix ----

#[tokio::test(flavor = "multi_thread")]
async fn a_read_write_lock_ignores_our_holder_and_keeps_us_out() {
    let Some((_server, locks, redisson)) = both_sides(LONG).await else {
        return;
    };
    for kind in ["read", "write"] {
        let (ours, theirs) = (key(), key());
        let guard = locks.get(&ours).lock().await.unwrap();
        assert!(
            redisson.lock_of(kind, &ours).try_lock().await,
            "{kind}: two are inside"
        );
        guard.check().unwrap();
        let holder = redisson.lock_of(kind, &theirs);
        assert!(holder.try_lock().await);
        assert!(
            locks.get(&theirs).try_lock().await.unwrap().is_none(),
            "{kind}"
        );
        holder.unlock().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn spin_locks_and_fair_locks_exclude_us_and_publish_no_release() {
    let Some((server, locks, redisson)) = both_sides(SHORT).await else {
        return;
    };
    for kind in ["spin", "fair"] {
        let key = key();
        let (holder, lock) = (redisson.lock_of(kind, &key), locks.get(&key));
        holder.lock().await;
        assert!(lock.try_lock().await.unwrap().is_none(), "{kind}");
        let waiter = waits(&server, || waiting(lock)).await;
        let (told, released) = (server.calls("publish"), Instant::now());
        holder.unlock().await.unwrap();
        let (at, guard) = waiter.await.unwrap();
        assert_eq!(server.calls("publish"), told, "{kind}: no message");
        assert!(
            within(at - released, SHORT / 6 + ms(500)),
            "{kind}: a sixth of the lease: {:?}",
            at - released
        );
        assert!(!holder.try_lock().await, "{kind}");
        guard.unlock().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_lock_and_an_rlock_of_one_name_get_errors_not_locks() {
    let Some((server, locks, redisson)) = both_sides(LONG).await else {
        return;
    };
    let plain = builder(&server.url(), LONG)
        .format(Format::Plain)
        .connect()
        .await
        .unwrap();
    let (key, lock) = (key(), |key: &str| plain.get(key));
    let guard = lock(&key).lock().await.unwrap();
    let theirs = redisson.lock(&key);
    let refused = theirs.done("try").await.expect_err("a string is no hash");
    assert!(refused.contains("WRONGTYPE"), "{refused}");
    guard.check().unwrap();
    guard.unlock().await.unwrap();
    theirs.lock().await;
    assert!(
        lock(&key).try_lock().await.unwrap().is_none()
            && locks.get(&key).try_lock().await.unwrap().is_none()
    );
    theirs.unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_does_not_exclude_a_lock_of_the_same_name() {
    let Some((server, locks, redisson)) = both_sides(LONG).await else {
        return;
    };
    let key = key();
    let transaction = redisson.begin_to_change(&key).await;
    assert!(
        server.exists(&format!("{key}:transaction_lock")),
        "its own lock"
    );
    locks
        .get(&key)
        .try_lock()
        .await
        .unwrap()
        .expect("not held up")
        .unlock()
        .await
        .unwrap();
    transaction.roll_back().await;
    let guard = locks.get(&key).lock().await.unwrap();
    redisson.begin_to_change(&key).await.roll_back().await;
    guard.check().unwrap();
    guard.unlock().await.unwrap();
}

/// A spin lock polls at least every 128 ms. A fair lock listens to a channel on which only fair
/// locks publish.
#[tokio::test(flavor = "multi_thread")]
async fn a_spin_lock_sees_our_release_and_a_fair_lock_waits_a_lease() {
    let Some((server, locks, redisson)) = both_sides(LONG).await else {
        return;
    };
    let key = key();
    let guard = locks.get(&key).lock().await.unwrap();
    let spinning = redisson.lock_of("spin", &key);
    let asked = waits(&server, || spinning.ask("lock", "")).await;
    guard.unlock().await.unwrap();
    entered(asked, WOKEN).await;
    spinning.unlock().await.unwrap();

    let (lease, start) = (ms(2_000), Instant::now());
    let guard = locks.get(&key).fixed_lease(lease).lock().await.unwrap();
    let fair = redisson.lock_of("fair", &key);
    let asked = waits(&server, || fair.ask("lock", "")).await;
    guard.unlock().await.unwrap();
    let past_the_line = locks.get(&key).try_lock().await.unwrap().expect("free");
    past_the_line.unlock().await.unwrap();
    let slept = entered(asked, LONG).await - start;
    assert!(
        slept + SLEW >= lease,
        "until the lease that it was told of is over: {slept:?}"
    );
    // The release of another fair lock wakes it.
    let other = redisson.lock_of("fair", &key);
    let asked = waits(&server, || other.ask("lock", "")).await;
    fair.unlock().await.unwrap();
    entered(asked, WOKEN).await;
    other.unlock().await.unwrap();
}

/// The lock is a hash without a lease, and is deleted without a message.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_lease_we_re_check_and_redisson_awaits_a_message() {
    let Some((server, locks, redisson)) = both_sides(SHORT).await else {
        return;
    };
    let key = key();
    server.command::<()>(&["HSET", &key, "5cb1f0b5-0000-4000-8000-000000000000:1", "1"]);
    let there = redisson.lock(&key);
    let asked = waits(&server, || there.ask("lock", "")).await;
    let waiter = waits(&server, || waiting(locks.get(&key))).await;
    server.command::<()>(&["DEL", &key]);
    let (_, guard) = waiter.await.unwrap();
    assert!(!asked.is_finished());
    guard.unlock().await.unwrap();
    entered(asked, WOKEN).await;
    there.unlock().await.unwrap();
}

// ---- The page, and a cluster ----

/// The programs of docs/redisson.md are files that are compiled, and they do what the page says.
#[tokio::test(flavor = "multi_thread")]
async fn the_programs_in_docs_redisson_share_a_lock() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path));
    let Ok(page) = read("docs/redisson.md") else {
        return say("skipped: docs/redisson.md is not in the package");
    };
    let (rust, java) = (
        read("examples/redisson.rs").unwrap(),
        read("tests/foreign/redisson/src/main/java/Orders.java").unwrap(),
    );
    for (language, program) in [("rust,no_run", &rust), ("java", &java)] {
        assert!(
            page.contains(&format!("```{language}\n{program}```\n")),
            "docs/redisson.md has another {language}"
        );
    }
    let tests = std::env::current_exe().unwrap();
    let example = tests.ancestors().nth(2).unwrap().join("examples/redisson");
    if !example.exists() {
        return say(
            "not run: `cargo test` builds the examples, `cargo test --test redisson` does not",
        );
    }
    let Some(java) = Jvm::program("Orders") else {
        return;
    };
    let server = Server::start();
    let children = [java, std::process::Command::new(example)].map(|mut program| {
        program
            .env("REDIS_URL", server.url())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        program.spawn().unwrap()
    });
    let mut all = Vec::new();
    for child in children {
        let output = tokio::task::spawn_blocking(|| child.wait_with_output().unwrap())
            .await
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.success(),
            "{said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let fences: Vec<u64> = said
            .lines()
            .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
            .collect();
        assert_eq!(fences.len(), 5, "{said}");
        assert_growing(&fences);
        all.extend(fences);
    }
    all.sort_unstable();
    assert_eq!(all, (1..=10).collect::<Vec<_>>(), "each number once");
}

/// Both sides publish and receive sharded messages: without one a waiter would sleep until the
/// lease is over.
#[tokio::test(flavor = "multi_thread")]
async fn in_a_cluster_both_sides_exclude_and_wake_by_sharded_messages() {
    let Some((server, locks, redisson)) = both_sides_in_a_cluster(LONG).await else {
        return;
    };
    let key = key();
    let (holder, waiter) = (redisson.lock(&key), redisson.lock(&key));
    holder.lock().await;
    let asked = waits(&server, || waiter.ask("lock", "")).await;
    let channel = format!("redisson_lock__channel:{{{key}}}");
    assert_eq!(
        server
            .command::<(String, u64)>(&["PUBSUB", "SHARDNUMSUB", &channel])
            .1,
        1
    );
    holder.unlock().await.unwrap();
    entered(asked, WOKEN).await;
    assert!(
        locks.get(&key).try_lock().await.unwrap().is_none(),
        "the JVM holds it"
    );
    let lock = locks.get(&key);
    let waiting = tokio::spawn(async move { lock.lock().await });
    let listens =
        |client: &str| client.contains("name=lockhound:subscriber:") && client.contains(" ssub=1 ");
    eventually(ms(20_000), "it listens", || {
        server
            .command::<String>(&["CLIENT", "LIST"])
            .lines()
            .any(listens)
    })
    .await;
    let released = Instant::now();
    waiter.unlock().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    assert!(
        within(released.elapsed(), WOKEN),
        "{:?}",
        released.elapsed()
    );
    let asked = waits(&server, || waiter.ask("lock", "")).await;
    guard.unlock().await.unwrap();
    entered(asked, WOKEN).await;
    waiter.unlock().await.unwrap();
}
