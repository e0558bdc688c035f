//! Servers that forget, and addresses that lead elsewhere: whose votes count. Time is paused.

use lockhound::{Error, Locker, Loss};
use tokio::time::{Instant, sleep};

use super::common::log::Log;
use super::common::{key, ms};
use super::{Server, over, servers};

/// Connects a locker with this quarantine (in ms), and waits until all servers vote.
async fn remembered(servers: &[Server], quarantine: u64) -> Locker {
    let locks = over(servers, ms(quarantine))
        .restart_quarantine(ms(quarantine))
        .connect()
        .await
        .unwrap();
    sleep(ms(quarantine * 10)).await;
    locks
}

/// Returns whether these servers alone are enough for a lock.
async fn suffice(all: &[Server], up: &[usize], locks: &Locker) -> bool {
    let down: Vec<&Server> = all
        .iter()
        .enumerate()
        .filter(|(at, _)| !up.contains(at))
        .map(|(_, down)| down)
        .collect();
    down.iter().for_each(|server| server.stop());
    let answer = locks.get(key()).try_lock().await;
    down.iter().for_each(|server| server.resume());
    match answer {
        Ok(guard) => {
            guard.expect("free").unlock().await.unwrap();
            true
        }
        Err(Error::Unavailable { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test(start_paused = true)]
async fn an_examination_says_which_server_has_no_vote() {
    let servers = servers(3);
    let locks = remembered(&servers, 2_000).await;
    let abstain = async || {
        let report = lockhound_doctor::examine(&locks).await.unwrap();
        report
            .servers
            .iter()
            .map(|server| server.abstains.is_some())
            .collect::<Vec<_>>()
    };
    assert_eq!(abstain().await, [false; 3]);
    servers[1].restart();
    sleep(ms(1_000)).await;
    assert_eq!(abstain().await, [false, true, false]);
}

#[tokio::test(start_paused = true)]
async fn fences_grow_over_a_rolling_restart() {
    let servers = servers(3);
    let locks = remembered(&servers, 1_000).await;
    let (name, first) = (
        key(),
        over(&servers[..1], ms(1_000)).connect().await.unwrap(),
    );
    servers[0].set_clock_offset(19_000);
    first
        .get(&name)
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    let guard = locks.get(&name).lock().await.unwrap();
    let highest = guard.fence();
    guard.unlock().await.unwrap();
    servers[0].set_clock_offset(0);
    for server in &servers {
        server.restart();
        sleep(ms(4_000)).await;
    }
    // Before any clock reaches it.
    let guard = locks
        .get(&name)
        .try_lock()
        .await
        .unwrap()
        .expect("all vote");
    assert!(guard.fence() > highest, "{} > {highest}", guard.fence());
    guard.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_forgot_votes_once_enough_others_told_fences() {
    let servers = servers(5);
    let locks = remembered(&servers, 1_000).await;
    assert!(suffice(&servers, &[0, 1, 4], &locks).await);
    servers[3].stop();
    servers[4].restart();
    sleep(ms(10_000)).await;
    assert!(
        suffice(&servers, &[0, 1, 4], &locks).await,
        "three of the other four are enough"
    );
    sleep(ms(10_000)).await;
    servers[4].restart();
    sleep(ms(10)).await;
    servers[2].stop();
    servers[3].stop();
    sleep(ms(1_900)).await;
    assert!(!suffice(&servers, &[0, 1, 4], &locks).await, "two are not");
    servers[2].resume();
    sleep(ms(20_000)).await;
    assert!(suffice(&servers, &[0, 1, 4], &locks).await);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_forgot_votes_once_both_others_told_fences() {
    let servers = servers(3);
    let locks = remembered(&servers, 1_000).await;
    servers[2].restart();
    servers[1].stop();
    sleep(ms(1_900)).await;
    assert!(!suffice(&servers, &[0, 2], &locks).await);
    servers[1].resume();
    sleep(ms(100)).await;
    assert!(suffice(&servers, &[0, 2], &locks).await);
}

/// One of three is away, and another one has forgotten.
#[tokio::test(start_paused = true)]
async fn a_server_that_forgot_votes_after_two_leases_with_one_away() {
    let (servers, (log, _logging)) = (servers(3), Log::of_thread());
    let locks = remembered(&servers, 1_000).await;
    servers[1].stop();
    servers[2].restart();
    sleep(ms(1_900)).await;
    let error = locks.get(key()).try_lock().await.unwrap_err().to_string();
    assert!(
        error.contains("until 2 others that vote can be asked"),
        "it may know more: {error}"
    );
    assert!(!log.text().contains("fences may repeat"));
    locks
        .get(key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    assert_eq!(
        log.text().matches("fences may repeat").count(),
        1,
        "{}",
        log.text()
    );
    servers[1].resume();
    sleep(ms(1_000)).await;
    assert!(
        suffice(&servers, &[1, 2], &locks).await,
        "it votes together with the one that is back"
    );
}

/// Its connections stay as they are: only its answers show it.
#[tokio::test(start_paused = true)]
async fn a_server_with_deleted_data_votes_again_after_its_quarantine() {
    let servers = servers(3);
    let locks = remembered(&servers, 1_000).await;
    assert!(suffice(&servers, &[0, 2], &locks).await);
    for forget in [Server::flush, |server: &Server| {
        server.delete("lockhound_vote");
    }] {
        forget(&servers[2]);
        assert!(
            !suffice(&servers, &[0, 2], &locks).await,
            "it may have forgotten locks"
        );
        sleep(ms(20_000)).await;
        assert!(suffice(&servers, &[0, 2], &locks).await);
    }
}

/// Its memory is there, but another run has written it.
#[tokio::test(start_paused = true)]
async fn a_server_restarted_from_a_snapshot_votes_after_quarantine() {
    let (servers, name) = (servers(3), key());
    let locks = remembered(&servers, 1_000).await;
    let guard = locks.get(&name).lock().await.unwrap();
    let snapshot = servers[2].snapshot();
    guard.unlock().await.unwrap();
    sleep(ms(10)).await;
    assert_eq!(servers[2].holder(&name), None);
    servers[2].restore(&snapshot);
    assert!(
        servers[2].holder(&name).is_some(),
        "the lock was in the snapshot"
    );
    assert!(
        !suffice(&servers, &[0, 2], &locks).await,
        "it may have forgotten locks"
    );
    sleep(ms(20_000)).await;
    assert_eq!(servers[2].holder(&name), None, "its lease is over");
    assert!(suffice(&servers, &[0, 2], &locks).await);
}

/// Between the first two renewals, which come every 3.3 s, the second server falls silent and the
/// third one loses the lock.
async fn lose_two(
    servers: &[Server],
    name: &str,
    forget: impl AsyncFn(&Server),
    locks: &Locker,
) -> Option<Loss> {
    let (guard, began) = (locks.get(name).lock().await.unwrap(), Instant::now());
    sleep(ms(5_500)).await;
    guard.check().unwrap();
    servers[1].stop();
    forget(&servers[2]).await;
    while !guard.is_lost() {
        let valid_for = began.elapsed() + guard.remaining();
        assert!(
            valid_for < ms(13_400),
            "only the first renewal had two votes: {valid_for:?}"
        );
        sleep(ms(50)).await;
    }
    guard.loss()
}

#[tokio::test(start_paused = true)]
async fn a_server_where_another_owner_holds_the_lock_is_no_vote() {
    let (servers, name) = (servers(3), key());
    let locks = over(&servers, ms(10_000)).connect().await.unwrap();
    let last = over(&servers[2..], ms(10_000)).connect().await.unwrap();
    let taken = async |server: &Server| {
        server.delete(&name);
        std::mem::forget(last.get(&name).lock().await.unwrap());
    };
    assert!(lose_two(&servers, &name, taken, &locks).await.is_some());
}

/// It is left to chance whether the lock is asked for there again while the server is being vetted.
#[tokio::test(start_paused = true)]
async fn a_server_that_forgot_is_no_vote_for_a_holder() {
    for _ in 0..20 {
        let (servers, name) = (servers(3), key());
        let locks = remembered(&servers, 10_000).await;
        let loss = lose_two(&servers, &name, async |server| server.restart(), &locks).await;
        assert_eq!(loss, Some(Loss::RenewalFailed));
        assert_eq!(servers[2].holder(&name), None);
    }
}

/// Its answers arrive, and then it cannot be reached any more.
#[tokio::test(start_paused = true)]
async fn a_grant_of_a_server_whose_address_leads_elsewhere_is_no_vote() {
    let ([servers, others], name) = ([servers(3), servers(3)], key());
    let addresses: Vec<Server> = servers.iter().map(Server::route).collect();
    let locks = over(&addresses, ms(10_000)).connect().await.unwrap();
    addresses.iter().for_each(Server::stop);
    let lock = locks.get(&name);
    let attempt = tokio::spawn(async move { lock.try_lock().await });
    sleep(ms(10)).await;
    for (at, address) in addresses.iter().enumerate() {
        servers[at].resume();
        address.redirect_to(&others[at]);
    }
    assert!(servers.iter().all(|server| server.holder(&name).is_some()));
    let answer = attempt.await.unwrap();
    assert!(
        matches!(answer, Err(Error::Unavailable { .. })),
        "{answer:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_vote_that_no_longer_counts_is_reported_once() {
    let (servers, (log, _logging)) = (servers(3), Log::of_thread());
    let told = |what| log.text().matches(what).count();
    let locks = remembered(&servers, 2_000).await;
    let before = told("this server abstains for a while");
    servers[2].restart();
    // While it abstains, it falls silent again and again, and is asked for a lock.
    for _ in 0..3 {
        sleep(ms(100)).await;
        servers[2].stop();
        locks
            .get(key())
            .try_lock()
            .await
            .unwrap()
            .unwrap()
            .unlock()
            .await
            .unwrap();
        sleep(ms(500)).await;
        servers[2].resume();
    }
    sleep(ms(20_000)).await;
    assert_eq!(told("this server abstains for a while"), before + 1);
    let addresses: Vec<Server> = servers.iter().map(Server::route).collect();
    let _others = over(&addresses, ms(10_000)).connect().await.unwrap();
    assert_eq!(told("the vote of this server does not count"), 0);
    addresses[1].redirect_to(&servers[0]);
    sleep(ms(5_000)).await;
    assert_eq!(told("the vote of this server does not count"), 1);
}
