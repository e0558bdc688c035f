//! The memory of servers when several faults come together, and what it costs lockers that are not
//! concerned.

use std::time::{Duration, Instant};

use crate::common::several::{over_urls, servers};
use crate::common::{Server, away, eventually, key, marks, ms};
use lockhound::{Error, Locker};

/// The longest lease.
const LEASE: Duration = Duration::from_millis(1_000);

async fn connect(urls: impl IntoIterator<Item = String>) -> Locker {
    let nodes = over_urls(urls, LEASE)
        .outage_tolerance(ms(60_000))
        .command_timeout(ms(250));
    nodes.restart_quarantine(LEASE).connect().await.unwrap()
}

async fn connected(servers: &[Server]) -> Locker {
    let locks = connect(servers.iter().map(Server::url)).await;
    eventually(ms(20_000), "all servers vote", || {
        servers.iter().all(|server| phase(server) == "votes")
    })
    .await;
    locks
        .get(key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    locks
}

fn phase(server: &Server) -> String {
    let begun: Option<String> = server
        .try_command(&["HGET", "lockhound_vote", "begun"])
        .ok()
        .flatten();
    begun
        .map(|begun| if begun == "0" { "votes" } else { "shut" }.to_owned())
        .unwrap_or_default()
}

#[tokio::test]
async fn a_server_that_forgot_is_not_left_out_with_one_of_five_away() {
    let servers = servers(5);
    let locks = connected(&servers).await;
    servers[4].stop();
    away(&locks, 1).await;
    servers[0].command::<()>(&["FLUSHALL"]);
    locks
        .get(key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    let took = eventually(LEASE + ms(5_000), "it votes again", || {
        phase(&servers[0]) == "votes"
    })
    .await;
    println!("votes {took:?} later");
    servers[4].go_on();
    drop(locks);
}

#[tokio::test]
async fn a_server_that_begins_anew_refuses_no_attempt_at_the_others() {
    let servers = servers(3);
    let lockers = [connected(&servers).await, connected(&servers).await];
    let mut refused = Vec::new();
    for _ in 0..3 {
        servers[1].command::<()>(&["FLUSHALL"]);
        let start = Instant::now();
        while start.elapsed() < 2 * LEASE {
            for locks in &lockers {
                match locks.get(key()).try_lock().await {
                    Ok(guard) => guard.unwrap().unlock().await.unwrap(),
                    // On a busy machine an attempt may fail for other reasons.
                    Err(error) if !error.to_string().contains("no longer has the memory") => {}
                    Err(error) => refused.push((start.elapsed(), error.to_string())),
                }
            }
        }
        // Until it votes it has nothing more to forget.
        eventually(ms(20_000), "it votes again", || {
            phase(&servers[1]) == "votes"
        })
        .await;
    }
    assert!(refused.is_empty(), "{}: {refused:#?}", refused.len());
}

#[tokio::test]
async fn a_server_that_forgot_unseen_is_looked_at_again() {
    let servers = servers(3);
    let locks = connected(&servers).await;
    let key = key();
    for _ in 0..3 {
        // From its next look on, the task that vets a voting server waits for a doubt.
        let looked = Instant::now();
        while looked.elapsed() < LEASE / 8 || servers.iter().any(|server| phase(server) != "votes")
        {
            tokio::time::sleep(ms(10)).await;
        }
        for forgets in [2, 0] {
            servers[forgets].command::<()>(&["FLUSHALL"]);
        }
        servers[0].command::<u64>(&["CLIENT", "KILL", "TYPE", "normal"]);
        // The server can be reached again, and has been listed where possible.
        eventually(ms(5_000), "it begins anew", || {
            !phase(&servers[0]).is_empty()
        })
        .await;
        let guard = tokio::time::timeout(ms(20_000), locks.get(&key).lock())
            .await
            .expect("a majority is there again");
        guard.unwrap().unlock().await.unwrap();
    }
}

#[tokio::test]
async fn a_server_whose_memory_has_lost_its_id_begins_anew() {
    let servers = servers(3);
    let locks = connected(&servers).await;
    let memory = || servers[1].command::<String>(&["HGET", "lockhound_vote", "id"]);
    let before = memory();
    assert_eq!(
        servers[1].command::<u64>(&["HDEL", "lockhound_vote", &before]),
        1,
        "a vote asks for this field"
    );
    let key = key();
    let guard = locks.get(&key).lock().await.unwrap();
    assert_eq!(
        servers[1].command::<u64>(&["EXISTS", &key]),
        0,
        "it gave no vote"
    );
    guard.unlock().await.unwrap();
    eventually(ms(20_000), "it votes again", || {
        memory() != before && phase(&servers[1]) == "votes"
    })
    .await;
}

#[tokio::test]
async fn a_server_whose_memory_is_unreadable_is_not_asked_without_end() {
    let servers = servers(3);
    let locks = connected(&servers).await;
    servers[2].command::<()>(&["SET", "lockhound_vote", "of another kind"]);
    let before = servers[2].calls("evalsha");
    let (start, mut pairs) = (Instant::now(), 0);
    while start.elapsed() < ms(2_000) {
        if let Ok(Some(guard)) = locks.get(key()).try_lock().await {
            guard.unlock().await.unwrap();
            pairs += 1;
        }
    }
    let asked = servers[2].calls("evalsha") - before;
    println!("{asked} scripts, {pairs} pairs");
    // An acquire, the question what is there instead, and a release.
    assert!(
        pairs > 0 && asked < 3 * pairs + 200,
        "{asked} scripts, {pairs} pairs"
    );
}

#[tokio::test]
async fn marks_that_cannot_be_fences_are_not_taken_by_a_new_server() {
    let servers = servers(3);
    let locks = connected(&servers).await;
    // The mark of a broken clock or a hostile server: the last number below those that cannot be
    // fences.
    let (impossible, mark) = ((1_u64 << 53) - 2, "lockhound_fence:{7}");
    servers[0].command::<()>(&["SET", mark, &impossible.to_string()]);
    let honest = servers[2].command::<Vec<u64>>(&["TIME"])[0] * 1_000_000 + 60_000_000;
    servers[2].command::<()>(&["SET", mark, &honest.to_string()]);
    servers[1].command::<()>(&["FLUSHALL"]);
    // A lock of this mark would raise it.
    let other = std::iter::repeat_with(key)
        .find(|key| marks::mark(key) != mark)
        .unwrap();
    locks
        .get(other)
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    eventually(LEASE + ms(20_000), "it votes again", || {
        phase(&servers[1]) == "votes"
    })
    .await;
    let taken: u64 = servers[1].command(&["GET", mark]);
    assert_eq!(taken, honest, "the highest of those that can be fences");
}

#[tokio::test]
async fn a_promoted_server_with_replicas_long_gone_forgot_nothing() {
    let masters = servers(3);
    let promoted: Vec<Server> = masters.iter().map(Server::replica).collect();
    for (master, replica) in masters.iter().zip(&promoted) {
        eventually(ms(10_000), "the replica is in step", || {
            master.has_replicas(1)
        })
        .await;
        replica.command::<()>(&["REPLICAOF", "NO", "ONE"]);
    }
    let locks = connected(&promoted).await;
    for replica in &promoted {
        replica.command::<()>(&["CONFIG", "SET", "repl-backlog-ttl", "1"]);
    }
    let before: Vec<String> = promoted
        .iter()
        .map(|s| s.command(&["HGET", "lockhound_vote", "id"]))
        .collect();
    let second = |server: &Server| {
        let info: String = server.command(&["INFO", "replication"]);
        info.lines()
            .find_map(|line| line.strip_prefix("master_replid2:"))
            .unwrap()
            .to_owned()
    };
    let cleared = || {
        promoted
            .iter()
            .all(|server| second(server).bytes().all(|byte| byte == b'0'))
    };
    eventually(
        ms(20_000),
        "they have forgotten that they were replicas",
        cleared,
    )
    .await;
    let _late = connect(promoted.iter().map(Server::url)).await;
    let after: Vec<String> = promoted
        .iter()
        .map(|s| s.command(&["HGET", "lockhound_vote", "id"]))
        .collect();
    assert_eq!(before, after);
    drop(locks);
}

#[tokio::test]
async fn a_server_that_forgets_loses_no_lock_held_on_the_others() {
    let servers = servers(3);
    let lockers = [
        connected(&servers).await,
        connected(&servers).await,
        connected(&servers).await,
    ];
    let guard = lockers[0].get(key()).lock().await.unwrap();
    for turn in 0..6 {
        let server = &servers[turn % 3];
        server.command::<()>(&["FLUSHALL"]);
        eventually(LEASE + ms(5_000), "it votes again", || {
            phase(server) == "votes"
        })
        .await;
        assert!(guard.check().is_ok(), "turn {turn}: {:?}", guard.state());
        tokio::time::sleep(ms(400)).await;
    }
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn programs_that_find_a_fresh_deployment_together_agree_soon() {
    for count in [2, 3, 4, 5] {
        let servers = servers(count);
        let start = Instant::now();
        let lockers: Vec<Locker> = futures_util::future::join_all(
            (0..6).map(|_| connect(servers.iter().map(Server::url))),
        )
        .await;
        eventually(LEASE + ms(2_000), "all vote", || {
            servers.iter().all(|server| phase(server) == "votes")
        })
        .await;
        let key = key();
        for locks in &lockers {
            let guard = locks.get(&key).lock().await.unwrap();
            guard.unlock().await.unwrap();
        }
        println!("{count}: {:?}", start.elapsed());
    }
}

#[tokio::test]
async fn one_server_with_a_quarantine_waits_once() {
    let servers = servers(1);
    let start = Instant::now();
    let locks = connect(servers.iter().map(Server::url)).await;
    locks
        .get(key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    println!("{:?}", start.elapsed());
    let guard = locks.get(key()).lock().await.unwrap();
    servers[0].command::<()>(&["FLUSHALL"]);
    let error = locks.get(key()).try_lock().await;
    assert!(matches!(error, Err(Error::Unavailable { .. })), "{error:?}");
    drop(guard);
    locks
        .get(key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
}
