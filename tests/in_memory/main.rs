//! Servers in memory, and what can happen to them. tests/contract/main.rs checks what a lock
//! promises on them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod attempts;
#[path = "../common/mod.rs"]
mod common;
mod endings;
mod extending;
mod hand_overs;
mod keeping;
mod labels;
mod lists;
mod majorities;
mod memories;
mod reentries;
mod sections;

use std::time::{Duration, Instant};

use common::{eventually, key, ms, soon};
use lockhound::testing::Server;
use lockhound::{Error, FenceSource, Guard, Locker, LockerBuilder, Loss, Owner};
use tokio::time::{Instant as Virtual, sleep};

/// Returns a builder over these servers, whose votes count at once.
fn over(servers: &[Server], lease: Duration) -> LockerBuilder {
    let builder = servers
        .iter()
        .fold(Locker::builder(), LockerBuilder::memory);
    builder
        .lease(lease)
        .command_timeout(ms(100))
        .restart_quarantine(Duration::ZERO)
}

fn servers(count: usize) -> Vec<Server> {
    (0..count).map(|_| Server::new()).collect()
}

#[tokio::test]
async fn a_server_is_shared_by_the_lockers_that_name_it_and_no_others() {
    let (servers, key) = (servers(2), key());
    let one = over(&servers[..1], ms(10_000)).connect().await.unwrap();
    let same = over(&servers[..1], ms(10_000)).connect().await.unwrap();
    let other = over(&servers[1..], ms(10_000)).connect().await.unwrap();
    let guard = one.get(&key).lock().await.unwrap();
    assert!(same.get(&key).try_lock().await.unwrap().is_none());
    assert!(other.get(&key).try_lock().await.unwrap().is_some());
    assert!(servers[0].holder(&key).unwrap().contains(one.id()));
    guard.unlock().await.unwrap();
    assert_eq!(servers[0].holder(&key), None);
}

#[tokio::test]
async fn a_server_counts_redissons_tokens() {
    let (servers, key) = (servers(1), key());
    let locks = over(&servers, ms(10_000))
        .fence_source(FenceSource::RedissonTokens)
        .connect()
        .await
        .unwrap();
    for token in 1..4 {
        let guard = locks.get(&key).lock().await.unwrap();
        assert_eq!(guard.fence().get(), token);
        guard.unlock().await.unwrap();
    }
}

#[tokio::test]
async fn a_lock_that_is_deleted_is_lost_at_the_next_renewal() {
    let (servers, key) = (servers(1), key());
    let locks = over(&servers, ms(600)).connect().await.unwrap();
    let guard = locks.get(&key).lock().await.unwrap();
    servers[0].delete(&key);
    soon(ms(500), guard.lost().cancelled()).await.expect("told");
    assert_eq!(guard.loss(), Some(Loss::NotOwner));
}

#[tokio::test]
async fn a_restarted_server_has_forgotten_its_locks_and_serves_again() {
    let (servers, key) = (servers(1), key());
    let locks = over(&servers, ms(600)).connect().await.unwrap();
    let waits = over(&servers, ms(600)).connect().await.unwrap();
    let guard = locks.get(&key).lock().await.unwrap();
    let lock = waits.get(&key);
    let waiting = tokio::spawn(async move { lock.lock().await });
    tokio::time::sleep(ms(50)).await;
    servers[0].restart();
    soon(ms(600), guard.lost().cancelled()).await.expect("told");
    // The reconnect wakes the waiters, since no message comes.
    let next = soon(ms(1_000), waiting)
        .await
        .expect("woken")
        .unwrap()
        .unwrap();
    let lock = locks.get(&key);
    let waiting = tokio::spawn(async move { lock.lock().await });
    tokio::time::sleep(ms(50)).await;
    next.unlock().await.unwrap();
    soon(ms(1_000), waiting)
        .await
        .expect("subscribed again")
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

#[tokio::test]
async fn a_command_that_a_stopped_server_got_is_undone_on_its_return() {
    let servers = servers(1);
    let locks = over(&servers, ms(10_000)).connect().await.unwrap();
    servers[0].stop();
    let names: Vec<String> = (0..20).map(|_| key()).collect();
    let tries = names
        .iter()
        .map(|name| locks.get(name).owned_by(Owner::new()));
    let began = Instant::now();
    for answer in
        futures_util::future::join_all(tries.map(|lock| async move { lock.try_lock().await })).await
    {
        assert!(
            matches!(answer, Err(Error::Unavailable { .. })),
            "{answer:?}"
        );
    }
    assert!(began.elapsed() < ms(2_000), "{:?}", began.elapsed());
    // No attempt is made while the server is known to be silent.
    assert!(matches!(
        locks.get(key()).try_lock().await,
        Err(Error::Unavailable { .. })
    ));
    servers[0].resume();
    eventually(ms(5_000), "undone", || locks.stats().pending_undos == 0).await;
    assert!(names.iter().all(|name| servers[0].holder(name).is_none()));
    locks
        .get(&names[0])
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

#[tokio::test]
async fn a_grant_whose_answer_is_lost_is_given_back() {
    let (servers, key) = (servers(1), key());
    let locks = over(&servers, ms(10_000)).connect().await.unwrap();
    servers[0].lose_replies(1);
    let began = Instant::now();
    let answer = locks.get(&key).try_lock().await;
    assert!(
        matches!(answer, Err(Error::Unavailable { .. })) && began.elapsed() >= ms(100),
        "{answer:?}"
    );
    eventually(ms(2_000), "given back", || {
        servers[0].holder(&key).is_none()
    })
    .await;
    servers[0].lose_replies(3);
    let guard = soon(ms(5_000), locks.get(&key).lock())
        .await
        .expect("tried again")
        .unwrap();
    assert!(servers[0].holder(&key).unwrap().contains(locks.id()));
    guard.unlock().await.unwrap();
    assert_eq!(servers[0].holder(&key), None);
}

#[tokio::test]
async fn a_lease_ends_by_the_server_s_clock() {
    let (servers, key) = (servers(1), key());
    let locks = over(&servers, ms(10_000)).connect().await.unwrap();
    let guard = locks
        .get(&key)
        .fixed_lease(ms(10_000))
        .lock()
        .await
        .unwrap();
    servers[0].set_clock_offset(9_000);
    assert!(servers[0].holder(&key).is_some());
    servers[0].set_clock_offset(11_000);
    assert_eq!(servers[0].holder(&key), None);
    drop(guard);
}

/// Tries all of these locks at once, each as another owner.
async fn try_at_once(locks: &Locker, names: &[String]) -> Vec<Result<Option<Guard>, Error>> {
    let tries = names
        .iter()
        .map(|name| locks.get(name).owned_by(Owner::new()));
    futures_util::future::join_all(tries.map(|lock| async move { lock.try_lock().await })).await
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_twice_is_not_taken_for_the_next_one() {
    let (server, one, other) = (Server::new(), key(), key());
    let locks = over(std::slice::from_ref(&server), ms(10_000))
        .connect()
        .await
        .unwrap();
    server.duplicate_reply();
    let guard = locks.get(&one).lock().await.unwrap();
    assert_eq!(locks.stats().mismatched_replies, 0);
    // The copy of the answer would grant this lock.
    let answer = locks.get(&other).try_lock().await;
    let Err(Error::Unavailable { nodes, .. }) = answer else {
        panic!("{answer:?}")
    };
    assert!(
        nodes[0].reason().contains("the answer to another command"),
        "{nodes:?}"
    );
    assert_eq!(locks.stats().mismatched_replies, 1);
    sleep(ms(300)).await;
    assert_eq!(
        (server.holder(&other), locks.stats().pending_undos),
        (None, 0),
        "its grant is given back"
    );
    guard.check().unwrap();
    sleep(ms(20_000)).await;
    guard.check().expect("renewed over the next connection");
    guard.unlock().await.unwrap();
    assert_eq!(
        (server.holder(&one), locks.stats().mismatched_replies),
        (None, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_twice_makes_pending_outcomes_unknown() {
    let server = Server::new();
    let locks = over(std::slice::from_ref(&server), ms(10_000))
        .connect()
        .await
        .unwrap();
    server.delay(ms(20)..=ms(20));
    server.duplicate_reply();
    let (names, began): (Vec<String>, _) = ((0..5).map(|_| key()).collect(), Virtual::now());
    let mut answers = try_at_once(&locks, &names).await.into_iter();
    assert!(
        began.elapsed() < ms(50),
        "told at once: {:?}",
        began.elapsed()
    );
    let guard = answers
        .next()
        .unwrap()
        .unwrap()
        .expect("its answer came first");
    for answer in answers {
        assert!(
            matches!(answer, Err(Error::Unavailable { .. })),
            "{answer:?}"
        );
    }
    assert_eq!(
        locks.stats().mismatched_replies,
        1,
        "no answer comes over a connection that is given up"
    );
    sleep(ms(500)).await;
    assert!(names[1..].iter().all(|name| server.holder(name).is_none()));
    guard.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn answers_are_delayed_within_the_range_and_keep_their_order() {
    let server = Server::new();
    let locks = over(std::slice::from_ref(&server), ms(10_000))
        .connect()
        .await
        .unwrap();
    server.delay(ms(10)..=ms(30));
    let mut delays = Vec::new();
    for _ in 0..50 {
        let began = Virtual::now();
        let guard = locks.get(key()).lock().await.unwrap();
        delays.push(began.elapsed());
        drop(guard);
        sleep(ms(40)).await;
    }
    assert!(
        delays.iter().all(|delay| (ms(10)..=ms(32)).contains(delay)),
        "{delays:?}"
    );
    assert!(
        delays
            .iter()
            .max()
            .unwrap()
            .saturating_sub(*delays.iter().min().unwrap())
            > ms(5),
        "{delays:?}"
    );
    let came = std::sync::Mutex::new(Vec::new());
    let tries = (0..50).map(|at| {
        let (lock, came) = (locks.get(key()).owned_by(Owner::new()), &came);
        async move {
            let guard = lock.try_lock().await.unwrap();
            came.lock().unwrap().push(at);
            guard
        }
    });
    futures_util::future::join_all(tries).await;
    assert_eq!(came.into_inner().unwrap(), (0..50).collect::<Vec<_>>());
    server.delay(Duration::ZERO..=Duration::ZERO);
    let began = Virtual::now();
    sleep(ms(40)).await;
    locks
        .get(key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    assert_eq!(began.elapsed(), ms(40), "no more");
}

#[tokio::test(start_paused = true)]
async fn an_answer_after_the_command_timeout_does_not_count() {
    let (server, name) = (Server::new(), key());
    let locks = over(std::slice::from_ref(&server), ms(10_000))
        .connect()
        .await
        .unwrap();
    server.delay(ms(150)..=ms(150));
    let answer = locks.get(&name).try_lock().await;
    assert!(
        matches!(answer, Err(Error::Unavailable { .. })),
        "{answer:?}"
    );
    server.delay(Duration::ZERO..=Duration::ZERO);
    sleep(ms(1_000)).await;
    assert_eq!(
        (server.holder(&name), locks.stats().pending_undos),
        (None, 0)
    );
    locks
        .get(&name)
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

#[test]
#[should_panic(expected = "it ends before it begins")]
fn a_delay_that_ends_before_it_begins_is_refused() {
    #[allow(clippy::reversed_empty_ranges, reason = "it is what is tried")]
    Server::new().delay(ms(2)..=ms(1));
}

#[tokio::test(start_paused = true)]
async fn a_partition_affects_one_locker_and_delays_its_commands() {
    let (server, name) = (Server::new(), key());
    let far = server.route();
    let one = over(std::slice::from_ref(&far), ms(10_000))
        .connect()
        .await
        .unwrap();
    let other = over(std::slice::from_ref(&server), ms(10_000))
        .connect()
        .await
        .unwrap();
    let guard = one.get(&name).lock().await.unwrap();
    far.disconnect();
    drop(guard);
    sleep(ms(500)).await;
    let answer = one.get(key()).try_lock().await;
    assert!(
        matches!(answer, Err(Error::Unavailable { .. })),
        "{answer:?}"
    );
    other
        .get(key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    assert!(
        other.get(&name).try_lock().await.unwrap().is_none(),
        "its release is on its way"
    );
    far.reconnect();
    assert_eq!(server.holder(&name), None, "and has come");
    // A message that was held up on its way wakes its waiters.
    let guard = other.get(&name).lock().await.unwrap();
    let (lock, began) = (one.get(&name), Virtual::now());
    let waiting = tokio::spawn(async move { lock.lock().await });
    sleep(ms(100)).await;
    far.disconnect();
    guard.unlock().await.unwrap();
    sleep(ms(100)).await;
    assert!(!waiting.is_finished());
    far.reconnect();
    waiting.await.unwrap().unwrap().unlock().await.unwrap();
    assert!(began.elapsed() < ms(400), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_address_that_leads_to_another_server_is_reconnected() {
    let (servers, name) = (servers(2), key());
    let address = servers[0].route();
    let locks = over(std::slice::from_ref(&address), ms(3_000))
        .connect()
        .await
        .unwrap();
    let direct = over(&servers[..1], ms(3_000)).connect().await.unwrap();
    let guard = locks.get(&name).lock().await.unwrap();
    address.redirect_to(&servers[1]);
    let began = Virtual::now();
    guard.lost().cancelled().await;
    assert!(began.elapsed() < ms(3_000), "{:?}", began.elapsed());
    assert_eq!(guard.loss(), Some(Loss::NotOwner));
    drop(guard);
    let guard = locks.get(&name).lock().await.unwrap();
    assert_eq!(address.holder(&name), servers[1].holder(&name));
    assert!(servers[1].holder(&name).is_some());
    // Other lockers still reach the first server, where the first lock runs out.
    direct
        .get(&name)
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    guard.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn two_addresses_that_lead_to_one_server_are_one_vote() {
    let servers = servers(3);
    let addresses: Vec<Server> = servers.iter().map(Server::route).collect();
    let locks = over(&addresses, ms(3_000)).connect().await.unwrap();
    let (name, other) = (key(), key());
    let guard = locks.get(&name).lock().await.unwrap();
    addresses[1].redirect_to(&servers[0]);
    locks
        .get(&other)
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    assert_eq!(servers[1].holder(&other), None);
    addresses[2].disconnect();
    let began = Virtual::now();
    guard.lost().cancelled().await;
    assert!(
        began.elapsed() < ms(3_000),
        "one server renews it twice: {:?}",
        began.elapsed()
    );
    let answer = locks.get(&other).try_lock().await;
    assert!(
        matches!(answer, Err(Error::Unavailable { .. })),
        "{answer:?}"
    );
}

/// Waits until this locker has the votes of all servers: a server that starts waits for the
/// quarantine.
async fn all_vote(servers: &[Server], locks: &Locker) {
    let vote = async {
        loop {
            let guard = locks.get(key()).lock().await.unwrap();
            if servers
                .iter()
                .all(|server| server.holder(guard.key().as_str()).is_some())
            {
                return;
            }
            tokio::time::sleep(ms(20)).await;
        }
    };
    soon(ms(20_000), vote)
        .await
        .expect("they vote once they have waited");
}

#[tokio::test]
async fn a_minority_of_servers_may_stop_or_forget() {
    let (servers, key) = (servers(3), key());
    let connect = || {
        over(&servers, ms(2_000))
            .restart_quarantine(ms(2_000))
            .connect()
    };
    let (one, two) = (connect().await.unwrap(), connect().await.unwrap());
    all_vote(&servers, &one).await;
    all_vote(&servers, &two).await;
    let guard = soon(ms(5_000), one.get(&key).lock())
        .await
        .expect("free")
        .unwrap();
    // The third vote arrives when the lock is held already.
    eventually(ms(2_000), "all have it", || {
        servers.iter().all(|server| server.holder(&key).is_some())
    })
    .await;
    servers[1].restart();
    for _ in 0..20 {
        let answer = two.get(&key).try_lock().await;
        assert!(!matches!(answer, Ok(Some(_))), "{answer:?}");
        tokio::time::sleep(ms(25)).await;
        guard.check().unwrap();
    }
    servers[2].stop();
    let answer = soon(ms(5_000), two.get(&key).try_lock())
        .await
        .expect("an answer");
    assert!(!matches!(answer, Ok(Some(_))), "{answer:?}");
    servers[2].resume();
    drop(guard);
    soon(ms(20_000), two.get(&key).lock())
        .await
        .expect("free")
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

#[test]
fn a_thread_without_async_code_locks_by_the_machine_s_clock() {
    let (server, key) = (Server::new(), key());
    let locks = Locker::builder()
        .memory(&server)
        .lease(ms(600))
        .blocking_connect()
        .unwrap();
    let guard = locks.get(&key).blocking_lock().unwrap();
    std::thread::sleep(ms(1_200));
    guard.check().expect("renewed meanwhile");
    guard.blocking_unlock().unwrap();
    assert_eq!(server.holder(&key), None);
    locks.blocking_close();
}

/// How long callers had to wait, whatever they waited for: alerts are set on it.
#[tokio::test(start_paused = true)]
async fn each_call_that_may_wait_has_one_time() {
    let (server, name, other) = (Server::new(), key(), key());
    let locks = over(std::slice::from_ref(&server), ms(10_000))
        .connect()
        .await
        .unwrap();
    let timed = || {
        (
            locks.stats().wait_time.count,
            locks.stats().wait_time.max.as_millis(),
        )
    };
    locks
        .get(&name)
        .try_lock()
        .await
        .unwrap()
        .expect("free")
        .unlock()
        .await
        .unwrap();
    assert_eq!(timed().0, 0, "it does not wait");
    let guard = locks.get(&name).lock().await.unwrap();
    let again = [
        locks.get(&name).lock().await.unwrap(),
        locks
            .get(&name)
            .try_lock_for(ms(10))
            .await
            .unwrap()
            .unwrap(),
    ];
    locks
        .multi([&name])
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    assert_eq!(timed(), (1, 0), "the others are re-entries");
    drop(again);
    let both = locks.multi([&name, &other]).owned_by(Owner::new());
    let both = tokio::spawn(async move { both.lock().await.unwrap() });
    sleep(ms(300)).await;
    guard.unlock().await.unwrap();
    both.await.unwrap().unlock().await.unwrap();
    let (calls, longest) = timed();
    assert!(
        calls == 2 && (300..310).contains(&longest),
        "one call, and not one for each of its locks: {:?}",
        timed()
    );
}

#[tokio::test]
async fn a_blocking_call_closes_no_locker_in_its_callers_runtime() {
    let locks = over(&servers(1), ms(10_000)).connect().await.unwrap();
    let closing = locks.clone();
    let panicked = std::thread::spawn(move || closing.blocking_close())
        .join()
        .unwrap_err();
    assert!(
        panicked
            .downcast_ref::<String>()
            .unwrap()
            .contains("use async calls")
    );
    locks.close().await;
}

#[tokio::test]
async fn options_that_a_server_in_memory_does_not_support_are_refused() {
    let server = Server::new();
    let builder = || Locker::builder().memory(&server).lease(ms(1_000));
    let refused = builder()
        .replica_acks(1, ms(50))
        .connect()
        .await
        .unwrap_err();
    assert!(
        matches!(refused, Error::Config(_)) && refused.to_string().contains("has no replicas"),
        "{refused}"
    );
    let mixed = builder()
        .node("redis://127.0.0.1:1")
        .connect()
        .await
        .unwrap_err();
    assert!(
        matches!(mixed, Error::Config(_)) && mixed.to_string().contains("one kind"),
        "{mixed}"
    );
    server.stop();
    let silent = builder()
        .connect_timeout(ms(100))
        .connect()
        .await
        .unwrap_err();
    assert!(matches!(silent, Error::Unavailable { .. }), "{silent:?}");
    server.resume();
    let twice = builder()
        .memory(&server)
        .memory(&Server::new())
        .connect()
        .await
        .unwrap_err();
    assert!(twice.to_string().contains("is the same server"), "{twice}");
    assert!(format!("{:?}", builder()).contains("memory:"));
}
