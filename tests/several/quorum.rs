//! Several independent servers: which of them count, what a majority decides, and what is undone.

use std::time::{Duration, Instant};

use crate::common::labels::labelled;
use crate::common::log::Log;
use crate::common::proxy::{Mode, Proxy};
use crate::common::record::{self, Record, Visit};
use crate::common::server::Monitor;
use crate::common::several::{
    connections, hold_as_redisson, on, over, over_urls, servers, settled, through,
};
use crate::common::{Server, eventually, key, ms};
use lockhound::{Error, HoldState, Locker};

#[tokio::test]
async fn a_lock_is_taken_and_released_on_every_server() {
    let (servers, key) = (servers(3), key());
    let locks = over(&servers, ms(30_000)).connect().await.unwrap();
    let other = over(&servers, ms(30_000)).connect().await.unwrap();
    let guard = locks.get(&key).lock().await.unwrap();
    assert!(on(&servers, &key) >= 2);
    eventually(ms(500), "on all of them", || on(&servers, &key) == 3).await;
    assert!(other.get(&key).try_lock().await.unwrap().is_none());
    let nested = locks.get(&key).lock().await.unwrap();
    // A majority has the count, and the third server will.
    let is_two = |server: &Server| server.command::<Vec<u32>>(&["HVALS", &key]) == [2];
    eventually(ms(500), "counted on all of them", || {
        servers.iter().all(is_two)
    })
    .await;
    assert_eq!(
        locks
            .get(&key)
            .holder()
            .await
            .unwrap()
            .unwrap()
            .hold_count(),
        2
    );
    nested.unlock().await.unwrap();
    guard.unlock().await.unwrap();
    eventually(ms(500), "on none of them", || on(&servers, &key) == 0).await;
    other
        .get(&key)
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

// ---- Which servers count ----

/// Returns the error with which these servers are refused.
async fn refusal(urls: [String; 3]) -> String {
    match over_urls(urls, ms(30_000)).connect().await {
        Err(error @ Error::Config(_)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn one_server_under_two_addresses_and_a_replica_are_refused() {
    let servers = servers(3);
    let (twice, third) = (servers[0].url(), servers[2].url());
    for other_name in [
        format!("redis://localhost:{}", servers[0].port()),
        format!("{twice}/1"),
    ] {
        let text = refusal([twice.clone(), other_name.clone(), third.clone()]).await;
        assert!(
            text.contains(&twice) && text.contains(&other_name) && text.contains("same server"),
            "{text}"
        );
    }
    servers[1].command::<()>(&["REPLICAOF", "127.0.0.1", &servers[0].port().to_string()]);
    let text = refusal([twice.clone(), servers[1].url(), third]).await;
    let master = format!("of 127.0.0.1:{};", servers[0].port());
    assert!(
        text.contains(&servers[1].url()) && text.contains("replica") && text.contains(&master),
        "{text}"
    );
}

/// A server of a cluster has some of the keys only, and answers MOVED for the others.
#[tokio::test]
async fn a_server_that_turns_up_in_cluster_mode_has_no_vote() {
    let servers = servers(2);
    let clustered = Server::start_with(&["--cluster-enabled", "yes"]);
    let proxy = Proxy::start(clustered.port());
    proxy.set(Mode::Refuse);
    let urls = [servers[0].url(), servers[1].url(), proxy.url()];
    let locks = over_urls(urls, ms(30_000))
        .connect()
        .await
        .expect("a majority is there");
    proxy.set(Mode::Pass);
    servers[1].kill();
    let (start, lock) = (Instant::now(), locks.get(key()));
    loop {
        let Err(Error::Unavailable { nodes, .. }) = lock.try_lock().await else {
            panic!("one of three has a vote")
        };
        if nodes
            .iter()
            .any(|node| node.node() == proxy.url() && node.reason().contains("cluster mode"))
        {
            return;
        }
        assert!(start.elapsed() < ms(20_000), "{nodes:?}");
        tokio::time::sleep(ms(20)).await;
    }
}

#[tokio::test]
async fn an_even_number_of_servers_causes_a_warning() {
    let (log, _collecting) = Log::of_thread();
    let servers = servers(4);
    over(&servers[..3], ms(30_000)).connect().await.unwrap();
    assert!(!log.text().contains("WARN"), "{}", log.text());
    over(&servers, ms(30_000)).connect().await.unwrap();
    let text = log.text();
    assert!(
        text.contains("even number") && text.contains("1 of them may be away, and 3 must answer"),
        "{text}"
    );
}

#[tokio::test]
async fn without_a_majority_connecting_fails_naming_each_server() {
    let servers = servers(3);
    servers[0].kill();
    servers[1].stop();
    let start = Instant::now();
    let builder = over(&servers, ms(3_000)).connect_timeout(ms(400));
    let Err(Error::Unavailable { nodes, .. }) = builder.connect().await else {
        panic!("no majority")
    };
    assert!(
        crate::common::machine::within(start.elapsed(), ms(1_000)),
        "{:?}",
        start.elapsed()
    );
    let told: Vec<String> = nodes.iter().map(ToString::to_string).collect();
    assert_eq!(nodes.len(), 2, "{told:?}");
    let about = |server: &Server| {
        told.iter()
            .find(|text| text.contains(&server.url()))
            .expect("its name")
    };
    assert!(about(&servers[0]).contains("refused"), "{told:?}");
    assert!(
        about(&servers[1]).contains("connect_timeout = 400ms"),
        "{told:?}"
    );
}

#[tokio::test]
async fn a_server_that_is_away_at_the_start_votes_when_it_is_back() {
    let (servers, key) = (servers(3), key());
    servers[0].kill();
    let locks = over(&servers, ms(30_000)).connect().await.unwrap();
    let first = locks.get(&key).lock().await.unwrap();
    first.unlock().await.unwrap();
    servers[0].restart();
    servers[1].kill();
    // Without its vote there is no majority.
    let guard = locks.get(&key).lock().await.unwrap();
    assert!(servers[0].exists(&key));
    guard.unlock().await.unwrap();
}

/// A bug: an attempt to connect that had timed out went on, so that the server later had
/// connections twice.
#[tokio::test]
async fn a_server_that_is_slow_to_connect_is_connected_once() {
    let servers = servers(3);
    let proxy = Proxy::start(servers[2].port());
    // The server is silent from the beginning, or after its first connection is made.
    for silent in [Mode::BlackHole, Mode::Hold(b"HELLO".to_vec())] {
        proxy.set(silent);
        let urls = [servers[0].url(), servers[1].url(), proxy.url()];
        let locks = over_urls(urls, ms(1_500)).connect().await.unwrap();
        proxy.set(Mode::Pass);
        eventually(ms(5_000), "connected", || connections(&servers[2]) >= 3).await;
        tokio::time::sleep(ms(300)).await;
        assert_eq!(connections(&servers[2]), 3);
        locks.close().await;
        eventually(ms(1_000), "closed", || connections(&servers[2]) == 0).await;
    }
}

// ---- Votes ----

#[tokio::test]
async fn a_late_grant_of_a_server_counts_as_a_vote_of_the_hold() {
    let (servers, key) = (servers(3), key());
    let (proxies, builder) = through(&servers, ms(1_500));
    let locks = builder.command_timeout(ms(450)).connect().await.unwrap();
    // The servers know the scripts afterwards, and have the label: no other answer is delayed on
    // the way.
    locks
        .get(crate::common::key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    labelled(&locks, &servers).await;
    settled(&locks).await;
    proxies[2].set(Mode::Delay(ms(100)));
    let guard = locks.get(&key).lock().await.unwrap();
    // Before any renewal could have restored it.
    tokio::time::sleep(ms(250)).await;
    assert_eq!(on(&servers, &key), 3);
    // The renewal learns that the lock is gone there before the slow server answers.
    servers[0].command::<()>(&["DEL", &key]);
    tokio::time::sleep(ms(450)).await;
    guard.check().unwrap();
    assert!(servers[0].exists(&key), "the lock is acquired there again");
    guard.unlock().await.unwrap();
    eventually(ms(500), "released everywhere", || on(&servers, &key) == 0).await;
}

#[tokio::test]
async fn a_late_grant_of_an_attempt_that_failed_is_undone() {
    let (servers, key) = (servers(3), key());
    let (proxies, builder) = through(&servers, ms(30_000));
    let locks = builder.connect().await.unwrap();
    locks
        .get(crate::common::key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    settled(&locks).await;
    servers[..2]
        .iter()
        .for_each(|server| hold_as_redisson(server, &key, 30_000));
    proxies[2].set(Mode::Delay(ms(150)));
    let start = Instant::now();
    assert!(locks.get(&key).try_lock().await.unwrap().is_none());
    assert!(
        crate::common::machine::within(start.elapsed(), ms(140)),
        "two of three have decided: {:?}",
        start.elapsed()
    );
    eventually(ms(1_000), "taken", || servers[2].exists(&key)).await;
    eventually(ms(1_000), "undone", || !servers[2].exists(&key)).await;
    settled(&locks).await;
}

/// A server that answered *held* has nothing of ours, because an acquire is sent once per
/// generation.
#[tokio::test]
async fn servers_that_answered_held_are_sent_no_undo() {
    let (servers, key) = (servers(5), key());
    let locks = over(&servers, ms(30_000)).connect().await.unwrap();
    locks
        .get(&key)
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    settled(&locks).await;
    eventually(ms(500), "released everywhere", || on(&servers, &key) == 0).await;
    servers
        .iter()
        .for_each(|server| hold_as_redisson(server, &key, 30_000));
    // Commands about the servers' memories do not name the lock, and are not counted.
    let monitors: Vec<Monitor> = servers.iter().map(Monitor::start).collect();
    for _ in 0..10 {
        assert!(locks.get(&key).try_lock().await.unwrap().is_none());
    }
    settled(&locks).await;
    let seen = || {
        monitors
            .iter()
            .flat_map(|monitor| monitor.called(&key))
            .collect::<Vec<_>>()
    };
    // Each acquire calls PTTL and HEXISTS. An undo would call HEXISTS.
    eventually(ms(5_000), "the monitors have seen all commands", || {
        seen().len() >= 100
    })
    .await;
    let seen = seen();
    let calls = |command: &str| seen.iter().filter(|line| line.contains(command)).count();
    assert_eq!(
        (calls("PTTL"), calls("HEXISTS"), seen.len()),
        (50, 50, 100),
        "ten acquires on each of five: {seen:#?}"
    );
}

#[tokio::test]
async fn a_grant_that_took_longer_than_its_lease_is_undone_everywhere() {
    let (servers, key) = (servers(3), key());
    let (proxies, builder) = through(&servers, ms(30_000));
    let locks = builder.connect().await.unwrap();
    locks
        .get(&key)
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    proxies[1..]
        .iter()
        .for_each(|proxy| proxy.set(Mode::Delay(ms(400))));
    let result = locks.get(&key).fixed_lease(ms(350)).try_lock().await;
    let Err(Error::Unavailable { nodes, .. }) = result else {
        panic!("{result:?}")
    };
    assert!(
        nodes[0].reason().contains("when the lease was over"),
        "{nodes:?}"
    );
    settled(&locks).await;
    assert_eq!(on(&servers, &key), 0);
}

#[tokio::test]
async fn validity_is_the_lowest_within_a_majority() {
    let (servers, key) = (servers(3), key());
    let locks = over(&servers, ms(1_500)).connect().await.unwrap();
    let guard = locks.get(&key).lock().await.unwrap();
    eventually(ms(500), "on all of them", || on(&servers, &key) == 3).await;
    servers[1].stop();
    servers[2].stop();
    tokio::time::sleep(ms(650)).await;
    // The first server has been renewed, but one server is no majority.
    assert!(servers[0].pttl(&key) > 1_000, "{}", servers[0].pttl(&key));
    assert!(guard.remaining() < ms(840), "{:?}", guard.remaining());
    servers[1].go_on();
    eventually(ms(900), "two of them are renewed", || {
        guard.remaining() > ms(1_000)
    })
    .await;
    servers[2].go_on();
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn a_hold_lives_through_the_restart_of_every_server_one_by_one() {
    for (count, quarantine) in [(3, Duration::ZERO), (5, ms(60_000))] {
        let (servers, key) = (servers(count), key());
        let locks = over(&servers, ms(1_500)).connect().await.unwrap();
        let guard = locks.get(&key).lock().await.unwrap();
        // A holder also gets its vote back from a server that abstains.
        let late = over(&servers, ms(1_500))
            .restart_quarantine(quarantine.max(ms(1_500)))
            .connect()
            .await
            .unwrap();
        for server in &servers {
            server.kill();
            server.restart();
            eventually(ms(1_500), "the lock is acquired there again", || {
                server.exists(&key)
            })
            .await;
        }
        assert_eq!(guard.state(), HoldState::Safe);
        drop(late);
        guard.unlock().await.unwrap();
        eventually(ms(500), "released everywhere", || on(&servers, &key) == 0).await;
    }
}

// ---- Contention ----

#[tokio::test]
async fn a_waiter_is_woken_by_a_majority_of_messages_and_not_by_fewer() {
    let (servers, key) = (servers(3), key());
    let locks = over(&servers, ms(30_000)).connect().await.unwrap();
    servers
        .iter()
        .for_each(|server| hold_as_redisson(server, &key, 30_000));
    let lock = locks.get(&key);
    let channel = format!("redisson_lock__channel:{{{key}}}");
    let waiting = tokio::spawn(async move { lock.lock().await.unwrap().unlock().await });
    let listens =
        |server: &Server| server.command::<Vec<String>>(&["PUBSUB", "CHANNELS"]).len() == 1;
    eventually(ms(2_000), "the waiter listens", || {
        servers.iter().all(listens)
    })
    .await;
    tokio::time::sleep(ms(100)).await;
    let asked = || servers[0].calls("evalsha") + servers[0].calls("eval");
    let before = asked();
    servers[1].command::<u64>(&["PUBLISH", &channel, "0"]);
    servers[1].command::<u64>(&["PUBLISH", &channel, "0"]);
    tokio::time::sleep(ms(150)).await;
    assert_eq!(
        asked(),
        before,
        "what is undone on one server is no reason to ask"
    );
    servers[2].command::<u64>(&["PUBLISH", &channel, "0"]);
    eventually(
        ms(500),
        "the messages of two servers wake the waiter",
        || asked() > before,
    )
    .await;
    for server in &servers[..2] {
        server.command::<()>(&["DEL", &key]);
        server.command::<u64>(&["PUBLISH", &channel, "0"]);
    }
    crate::common::soon(ms(500), waiting)
        .await
        .expect("woken")
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn a_split_vote_is_tried_again_after_a_pause() {
    let (servers, key) = (servers(3), key());
    let locks = over(&servers, ms(30_000))
        .command_timeout(ms(50))
        .connect()
        .await
        .unwrap();
    servers[0].kill();
    hold_as_redisson(&servers[1], &key, 900);
    let start = Instant::now();
    let guard = locks.get(&key).lock().await.unwrap();
    assert!(
        start.elapsed() > ms(890),
        "one was free, one held, one gone: {:?}",
        start.elapsed()
    );
    // Each attempt took the lock on the free server, and released it again.
    let attempts = servers[2].calls("hsetnx");
    assert!(
        (4..=19).contains(&attempts),
        "one every 50 to 250 ms: {attempts}"
    );
    guard.unlock().await.unwrap();
}

/// Returns how often all servers together ran a command.
fn sum(servers: &[Server], command: &str) -> u64 {
    servers.iter().map(|server| server.calls(command)).sum()
}

#[tokio::test]
async fn sixteen_contenders_on_five_servers_exclude_each_other() {
    const CONTENDERS: usize = 16;
    const VISITS: usize = 6;
    let (servers, key) = (servers(5), key());
    let mut contenders = Vec::new();
    for _ in 0..CONTENDERS {
        contenders.push(over(&servers, ms(30_000)).connect().await.unwrap());
    }
    let start = Instant::now();
    let mut tasks = Vec::new();
    for (who, locks) in contenders.iter().enumerate() {
        let (locks, key) = (locks.clone(), key.clone());
        tasks.push(tokio::spawn(async move {
            visit(&locks, &key, who, VISITS).await
        }));
    }
    let mut record = Record::default();
    for task in tasks {
        record.visits.extend(task.await.unwrap());
    }
    let took = start.elapsed();
    record.check().unwrap();
    assert_eq!(record.visits.len(), CONTENDERS * VISITS);
    for locks in &contenders {
        settled(locks).await;
    }
    let grants = u64::try_from(record.visits.len()).unwrap();
    // The release of a grant publishes on five servers. Further messages come from attempts that
    // were undone.
    let (messages, scripts) = (sum(&servers, "publish"), sum(&servers, "evalsha"));
    let undone: u64 = contenders
        .iter()
        .map(|locks| locks.stats().undone_acquires)
        .sum();
    let told = format!(
        "{took:?}: {grants} grants, {messages} messages, {undone} undone, {scripts} scripts"
    );
    assert!(took < Duration::from_secs(30), "{told}");
    assert!(undone <= messages, "every undo finds something: {told}");
    // A release wakes 16 contenders; the bounds leave room for a busy machine.
    assert!(messages <= grants * 40, "{told}");
    assert!(scripts <= grants * 16 * 40, "{told}");
    assert_eq!(on(&servers, &key), 0);
}

async fn visit(locks: &Locker, key: &str, who: usize, visits: usize) -> Vec<Visit> {
    let mut inside = Vec::new();
    for _ in 0..visits {
        let guard = locks.get(key).lock().await.unwrap();
        let entered = record::now();
        tokio::time::sleep(ms(1)).await;
        let (fence, left) = (guard.fence().get(), record::now());
        inside.push(Visit {
            key: key.to_owned(),
            who: who.to_string(),
            fence,
            entered,
            left,
        });
        guard.unlock().await.unwrap();
    }
    inside
}

/// An answer that comes after the majority's costs one more release at most.
#[tokio::test]
async fn a_lock_and_unlock_cost_one_script_each_on_every_server() {
    let (servers, key) = (servers(3), key());
    let locks = over(&servers, ms(30_000)).connect().await.unwrap();
    let lock = locks.get(&key);
    for _ in 0..100 {
        lock.lock().await.unwrap().unlock().await.unwrap();
    }
    eventually(ms(500), "on none of them", || on(&servers, &key) == 0).await;
    let calls: u64 = servers.iter().map(|server| server.calls("evalsha")).sum();
    assert!(calls <= 700, "600, and releases for late answers: {calls}");
    settled(&locks).await;
}
