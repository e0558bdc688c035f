//! What a majority of servers decides and when, and what becomes of the other servers. Time is
//! paused, so that only waits are measured.

use std::time::Duration;

use lockhound::{Error, HoldState, Locker, Loss, Owner};
use tokio::time::{Instant, sleep};

use super::common::log::Log;
use super::common::{key, ms};
use super::{Server, over, servers};

/// Delays each server's answers by this much (in ms) from now on.
fn far(servers: &[Server], delays: [u64; 3]) {
    for (server, delay) in servers.iter().zip(delays) {
        server.delay(ms(delay)..=ms(delay));
    }
}

/// Starts three servers, and a locker over them with a command timeout of a second.
async fn three() -> (Vec<Server>, Locker) {
    let servers = servers(3);
    let locks = over(&servers, ms(10_000))
        .command_timeout(ms(1_000))
        .connect()
        .await
        .unwrap();
    (servers, locks)
}

/// Returns the output of a future and how long it took.
async fn took<T>(future: impl Future<Output = T>) -> (T, Duration) {
    let began = Instant::now();
    let value = future.await;
    (value, began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn an_attempt_waits_only_for_the_second_of_three_servers() {
    let (servers, locks) = three().await;
    for (delays, lasts) in [([10, 20, 90], 20), ([5, 80, 80], 80), ([90, 90, 5], 90)] {
        far(&servers, delays);
        let (guard, took) = took(locks.get(key()).try_lock()).await;
        assert!(
            (ms(lasts)..ms(lasts + 5)).contains(&took),
            "{delays:?}: {took:?}"
        );
        guard.unwrap().expect("free").unlock().await.unwrap();
        sleep(ms(200)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn connect_waits_for_two_of_three_servers_and_little_for_all() {
    let (servers, (log, _logging)) = (servers(3), Log::of_thread());
    let connect = || {
        over(&servers, ms(10_000))
            .command_timeout(ms(1_000))
            .connect()
    };
    far(&servers, [5, 300, 300]);
    let (locks, took) = took(connect()).await;
    assert!(locks.is_ok() && took >= ms(300), "{took:?}");
    far(&servers, [0, 0, 0]);
    servers[2].stop();
    let began = Instant::now();
    let locks = connect().await;
    let took = began.elapsed();
    assert!(locks.is_ok() && took < ms(300), "{took:?}");
    assert_eq!(log.text().matches("a server is away").count(), 1);
    servers[1].stop();
    let refused = connect().await;
    assert!(
        matches!(refused, Err(Error::Unavailable { .. })),
        "{refused:?}"
    );
}

/// The first server refuses and the second grants: the third has twice as long again as they took,
/// and 20 ms.
#[tokio::test(start_paused = true)]
async fn if_a_majority_does_not_decide_the_others_have_some_more_time() {
    let (servers, locks) = three().await;
    let first = over(&servers[..1], ms(10_000)).connect().await.unwrap();
    let name = key();
    let _guard = first.get(&name).lock().await.unwrap();
    far(&servers, [40, 40, 135]);
    let guard = locks
        .get(&name)
        .try_lock()
        .await
        .unwrap()
        .expect("two of three");
    guard.unlock().await.unwrap();
    sleep(ms(500)).await;
    far(&servers, [40, 40, 200]);
    let (answer, took) = took(locks.get(&name).try_lock()).await;
    assert!(
        answer.unwrap().is_none() && (ms(140)..ms(145)).contains(&took),
        "{took:?}"
    );
    sleep(ms(500)).await;
    assert_eq!(
        (servers[1].holder(&name), servers[2].holder(&name)),
        (None, None),
        "given back"
    );
}

#[tokio::test(start_paused = true)]
async fn fences_grow_while_the_server_whose_clock_is_ahead_is_away() {
    let (servers, locks) = three().await;
    let first = over(&servers[..1], ms(10_000)).connect().await.unwrap();
    let name = key();
    servers[0].set_clock_offset(15_000);
    let ahead = first.get(&name).lock().await.unwrap();
    let highest = ahead.fence();
    ahead.unlock().await.unwrap();
    let guard = locks
        .get(&name)
        .try_lock()
        .await
        .unwrap()
        .expect("the first attempt");
    let agreed = guard.fence();
    assert!(agreed > highest, "{agreed} > {highest}");
    guard.unlock().await.unwrap();
    sleep(ms(100)).await;
    servers[0].stop();
    let guard = locks.get(&name).lock().await.unwrap();
    assert!(
        guard.fence() > agreed,
        "the others were told: {} > {agreed}",
        guard.fence()
    );
    guard.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_majority_decides_who_holds_without_waiting_for_the_others() {
    let (servers, locks) = three().await;
    let (name, other) = (key(), over(&servers, ms(10_000)).connect().await.unwrap());
    let holder = async || took(other.get(&name).holder()).await;
    assert!(holder().await.0.unwrap().is_none());
    let guard = locks.get(&name).lock().await.unwrap();
    let nested = locks
        .get(&name)
        .owned_by(guard.owner())
        .lock()
        .await
        .unwrap();
    sleep(ms(10)).await;
    let told = holder().await.0.unwrap().expect("held");
    assert!(told.owner().starts_with(locks.id()), "{told:?}");
    assert_eq!(
        (told.hold_count(), told.is_agreed(), told.by_node().len()),
        (2, true, 2)
    );
    nested.unlock().await.unwrap();
    far(&servers, [5, 50, 90]);
    let (told, took) = holder().await;
    assert!(told.unwrap().is_some() && took < ms(60), "{took:?}");
    servers[2].stop();
    let (told, took) = holder().await;
    assert!(told.unwrap().is_some() && took < ms(60), "{took:?}");
    guard.unlock().await.unwrap();
    let (told, took) = holder().await;
    assert!(told.unwrap().is_none() && took < ms(60), "{took:?}");
    servers[1].stop();
    let told = holder().await.0;
    assert!(matches!(told, Err(Error::Unavailable { .. })), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_force_finds_what_a_minority_says_despite_a_silent_server() {
    let (servers, locks) = three().await;
    let last = over(&servers[2..], ms(10_000)).connect().await.unwrap();
    let name = key();
    let force = async || took(locks.get(&name).force_unlock()).await;
    assert!(!force().await.0.unwrap(), "nobody has it");
    let guard = last.get(&name).lock().await.unwrap();
    far(&servers, [1, 1, 10]);
    assert!(force().await.0.unwrap());
    assert_eq!(servers[2].holder(&name), None);
    drop(guard);
    // After the answer of a majority the others have 20 ms more, once.
    far(&servers, [0, 0, 0]);
    let other = over(&servers, ms(10_000)).connect().await.unwrap();
    let guard = other.get(&name).lock().await.unwrap();
    servers[2].stop();
    let (forced, took) = force().await;
    assert!(forced.unwrap() && took < ms(35), "{took:?}");
    assert!(!force().await.0.unwrap(), "it is free by now");
    servers[1].stop();
    let forced = force().await.0;
    assert!(
        matches!(forced, Err(Error::Unavailable { .. })),
        "{forced:?}"
    );
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_force_deposes_the_holder_here_whatever_the_servers_say() {
    let (servers, locks) = three().await;
    let name = key();
    let guard = locks.get(&name).lock().await.unwrap();
    sleep(ms(10)).await;
    servers.iter().for_each(|server| server.delete(&name));
    assert!(
        locks.get(&name).force_unlock().await.unwrap(),
        "somebody held it"
    );
    assert_eq!(guard.state(), HoldState::Lost(Loss::ForceUnlocked));
}

/// The locker listens while a caller waits here that has waited for another locker. Renewals come
/// every 3.3 s.
#[tokio::test(start_paused = true)]
async fn a_message_about_a_held_lock_makes_its_holder_renew() {
    let (servers, locks) = three().await;
    let (name, other) = (key(), over(&servers, ms(10_000)).connect().await.unwrap());
    let before = other.get(&name).lock().await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..2 {
        let lock = locks.get(&name).owned_by(Owner::new());
        waiting.push(tokio::spawn(async move { lock.lock().await.unwrap() }));
        sleep(ms(10)).await;
    }
    before.unlock().await.unwrap();
    let [first, second] = waiting.try_into().unwrap();
    let guard = first.await.unwrap();
    // The message of that release is no reason to renew.
    sleep(ms(1_500)).await;
    assert_eq!(locks.stats().renewals, 0);
    assert!(other.get(&name).force_unlock().await.unwrap());
    sleep(ms(20)).await;
    assert_eq!(guard.loss(), Some(Loss::NotOwner));
    second.await.unwrap().unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_restarted_votes_again_after_its_quarantine() {
    let servers = servers(3);
    let connect = || {
        over(&servers, ms(2_000))
            .restart_quarantine(ms(2_000))
            .connect()
    };
    let locks = connect().await.unwrap();
    sleep(ms(20_000)).await;
    locks
        .get(key())
        .try_lock()
        .await
        .unwrap()
        .expect("all vote")
        .unlock()
        .await
        .unwrap();
    for at in [1, 2, 0] {
        servers[at].restart();
        let began = Instant::now();
        let name = key();
        // With another server away its vote is needed.
        servers[(at + 1) % 3].stop();
        let answer = locks.get(&name).try_lock().await;
        assert!(
            matches!(answer, Err(Error::Unavailable { .. })),
            "it may have forgotten: {answer:?}"
        );
        servers[(at + 1) % 3].resume();
        sleep(ms(10_000)).await;
        servers[(at + 1) % 3].stop();
        let answer = locks.get(&name).try_lock().await;
        answer
            .unwrap()
            .unwrap_or_else(|| panic!("{at} votes after {:?}", began.elapsed()))
            .unlock()
            .await
            .unwrap();
        servers[(at + 1) % 3].resume();
        sleep(ms(2_000)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn renewals_due_together_share_one_script_and_count_no_error() {
    let servers = servers(1);
    let locks = over(&servers, ms(10_000)).connect().await.unwrap();
    let names: Vec<String> = (0..10).map(|_| key()).collect();
    let guards = super::try_at_once(&locks, &names).await;
    sleep(ms(9_000)).await;
    let stats = locks.stats();
    assert_eq!((stats.renewals, stats.renewal_errors), (20, 0));
    assert_eq!(
        (stats.renewal_batches.count, stats.renewal_batches.max),
        (2, 10)
    );
    assert!(guards.iter().all(|guard| {
        guard
            .as_ref()
            .is_ok_and(|guard| guard.as_ref().unwrap().check().is_ok())
    }));
}
