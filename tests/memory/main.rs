//! What servers remember of themselves: a server that may have forgotten locks has no vote until
//! their leases are over, and nobody has to act for it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the figures are for whoever runs it")]

#[path = "../common/mod.rs"]
mod common;

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use common::log::Log;
use common::proxy::{Mode, Proxy};
use common::several::{over_urls, servers};
use common::{Server, away, eventually, key, ms, soon};
use futures_util::future::join_all;
use lockhound::{Error, Locker};
use tracing_subscriber::filter::LevelFilter;

static LOG: LazyLock<Log> = LazyLock::new(|| Log::collect_from(LevelFilter::WARN));

/// The longest lease, unless a test says otherwise.
const LEASE: Duration = Duration::from_millis(1_000);

/// How many times each scenario runs, and how many at once: `./dev soak` runs each a hundred times.
const TOLD: (usize, usize) = if cfg!(feature = "soak") {
    (10, 10)
} else {
    (1, 1)
};

async fn again_and_again<F: Future<Output = ()>>(story: impl Fn() -> F) {
    for _ in 0..TOLD.0 {
        join_all((0..TOLD.1).map(|_| story())).await;
    }
}

/// Three servers, and two programs that reach each of them by an address of its own.
struct Deployment {
    servers: Vec<Server>,
    /// The addresses of the first program, and of the second.
    ways: [Vec<Proxy>; 2],
    lockers: [Locker; 2],
}

impl Deployment {
    async fn new(servers: Vec<Server>, quarantines: [Duration; 2]) -> Self {
        let ways = [0, 1].map(|_| {
            servers
                .iter()
                .map(|server| Proxy::start(server.port()))
                .collect::<Vec<_>>()
        });
        let connect = |who: usize| {
            let nodes =
                over_urls(ways[who].iter().map(Proxy::url), LEASE).outage_tolerance(ms(60_000));
            nodes
                .command_timeout(ms(250))
                .restart_quarantine(quarantines[who])
                .connect()
        };
        let lockers = [connect(0).await.unwrap(), connect(1).await.unwrap()];
        let deployment = Self {
            servers,
            ways,
            lockers,
        };
        // Servers that begin together wait once.
        for locks in &deployment.lockers {
            eventually(ms(20_000), "all servers vote", || deployment.all_vote()).await;
            // A busy machine may take longer than a command timeout to confirm a release.
            drop(locks.get(key()).lock().await.unwrap());
        }
        deployment
    }

    async fn plain() -> Self {
        Self::new(servers(3), [LEASE; 2]).await
    }

    fn all_vote(&self) -> bool {
        self.servers.iter().all(votes)
    }

    /// Cuts the first program off from this server.
    fn cut_off(&self, server: usize) {
        self.ways[0][server].set(Mode::Refuse);
        self.ways[0][server].cut();
    }

    /// Leads the address of the second server elsewhere, for both programs or for the first only.
    fn lead(&self, ways: &[usize], to: &Server) {
        for &way in ways {
            self.ways[way][1].lead_to(to.port());
            self.ways[way][1].cut();
        }
    }
}

/// Returns whether a server votes, according to its memory.
fn votes(server: &Server) -> bool {
    let begun: Option<String> = server
        .try_command(&["HGET", "lockhound_vote", "begun"])
        .ok()
        .flatten();
    begun.as_deref() == Some("0")
}

/// The first program holds the lock on the first two servers, since it cannot reach the third, and
/// the second server forgets. Asserts that no other gets the lock before the lease is over, that
/// another soon gets it after that, and that the server votes again.
async fn nobody_is_in_beside_the_holder(d: &Deployment, forgets: impl AsyncFnOnce(&Deployment)) {
    let key = key();
    d.cut_off(2);
    away(&d.lockers[0], 1).await;
    let guard = d.lockers[0]
        .get(&key)
        .fixed_lease(LEASE)
        .lock()
        .await
        .unwrap();
    assert!(d.servers[0].exists(&key) && d.servers[1].exists(&key) && !d.servers[2].exists(&key));
    forgets(d).await;
    let forgot = Instant::now();
    let next = d.lockers[1].get(&key).lock().await.unwrap();
    guard.check().expect_err("two were in");
    println!("in {:?} after a server forgot", forgot.elapsed());
    drop((guard, next));
}

async fn votes_again(server: &Server, longest: Duration) {
    let start = Instant::now();
    let took = eventually(longest + ms(2_000), "it votes again", || votes(server)).await;
    println!("votes {took:?} later: {:?}", start.elapsed());
}

#[tokio::test]
async fn a_server_that_was_flushed_lets_nobody_in_beside_a_holder() {
    again_and_again(|| async {
        let d = Deployment::plain().await;
        nobody_is_in_beside_the_holder(&d, async |d| d.servers[1].command::<()>(&["FLUSHALL"]))
            .await;
        votes_again(&d.servers[1], LEASE).await;
    })
    .await;
}

#[tokio::test]
async fn a_server_that_restarted_empty_lets_nobody_in_beside_a_holder() {
    again_and_again(|| async {
        let d = Deployment::plain().await;
        nobody_is_in_beside_the_holder(&d, async |d| {
            d.servers[1].kill();
            d.servers[1].restart();
        })
        .await;
        votes_again(&d.servers[1], LEASE).await;
    })
    .await;
}

#[tokio::test]
async fn a_server_with_an_old_snapshot_lets_none_in_beside_a_holder() {
    again_and_again(|| async {
        // A snapshot from before its first command, and one from a moment ago.
        for old in [true, false] {
            let servers = servers(3);
            if old {
                servers[1].command::<()>(&["SAVE"]);
            }
            let d = Deployment::new(servers, [LEASE; 2]).await;
            if !old {
                d.servers[1].command::<()>(&["SAVE"]);
            }
            nobody_is_in_beside_the_holder(&d, async |d| {
                d.servers[1].kill();
                d.servers[1].restart();
            })
            .await;
            votes_again(&d.servers[1], LEASE).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_reload_forgets_nothing() {
    let (d, key) = (Deployment::plain().await, key());
    let guard = d.lockers[0].get(&key).lock().await.unwrap();
    for server in &d.servers {
        server.command::<()>(&["DEBUG", "RELOAD"]);
        assert!(votes(server), "its memory and its locks are there");
    }
    assert!(d.lockers[1].get(&key).try_lock().await.unwrap().is_none());
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn a_replica_that_lagged_for_long_lets_none_in_beside_a_holder() {
    again_and_again(|| async {
        let servers = servers(3);
        let replica = servers[1].replica();
        eventually(ms(10_000), "the replica is in step", || {
            servers[1].has_replicas(1)
        })
        .await;
        let d = Deployment::new(servers, [LEASE; 2]).await;
        eventually(ms(10_000), "it has the memory", || votes(&replica)).await;
        replica.stop();
        nobody_is_in_beside_the_holder(&d, async |d| {
            d.servers[1].kill();
            replica.go_on();
            replica.command::<()>(&["REPLICAOF", "NO", "ONE"]);
            d.lead(&[0, 1], &replica);
        })
        .await;
        votes_again(&replica, LEASE).await;
    })
    .await;
}

#[tokio::test]
async fn a_server_briefly_a_replica_lets_none_in_beside_a_holder() {
    again_and_again(|| async {
        let servers = servers(3);
        let replica = servers[1].replica();
        eventually(ms(10_000), "the replica is in step", || {
            servers[1].has_replicas(1)
        })
        .await;
        let d = Deployment::new(servers, [LEASE; 2]).await;
        eventually(ms(10_000), "it has the memory", || votes(&replica)).await;
        // It has the memory of its master, but not the lock.
        replica.command::<()>(&["REPLICAOF", "NO", "ONE"]);
        nobody_is_in_beside_the_holder(&d, async |d| {
            let port = replica.port().to_string();
            d.servers[1].command::<()>(&["REPLICAOF", "127.0.0.1", &port]);
            let in_step = || {
                let info: String = d.servers[1].command(&["INFO", "replication"]);
                info.contains("master_link_status:up")
            };
            eventually(ms(10_000), "it has the data of the other", in_step).await;
            d.servers[1].command::<()>(&["REPLICAOF", "NO", "ONE"]);
            d.servers[1].cut_connections();
        })
        .await;
        votes_again(&d.servers[1], LEASE).await;
    })
    .await;
}

#[tokio::test]
async fn the_longest_lease_of_any_program_is_waited_for() {
    again_and_again(|| async {
        let long = if cfg!(feature = "soak") {
            ms(10_000)
        } else {
            ms(4_000)
        };
        // Only the first program has the long leases, and only it knows them.
        let d = Deployment::new(servers(3), [long, LEASE]).await;
        let key = key();
        d.cut_off(2);
        away(&d.lockers[0], 1).await;
        let guard = d.lockers[0]
            .get(&key)
            .fixed_lease(long)
            .lock()
            .await
            .unwrap();
        d.servers[1].command::<()>(&["FLUSHALL"]);
        let next = d.lockers[1].get(&key).lock().await.unwrap();
        guard.check().expect_err("two were in");
        drop(next);
        votes_again(&d.servers[1], long).await;
    })
    .await;
}

#[tokio::test]
async fn after_a_rolling_restart_none_gets_in_beside_a_holder() {
    again_and_again(|| async {
        let d = Deployment::plain().await;
        let begun = Instant::now();
        for server in &d.servers {
            server.kill();
            server.restart();
            // Locking goes on with the other servers meanwhile.
            d.lockers[0]
                .get(key())
                .lock()
                .await
                .unwrap()
                .unlock()
                .await
                .unwrap();
            votes_again(server, LEASE).await;
        }
        println!("a rolling restart took {:?}", begun.elapsed());
        let key = key();
        let guard = d.lockers[0].get(&key).lock().await.unwrap();
        let late = over_urls(d.servers.iter().map(Server::url), LEASE)
            .restart_quarantine(LEASE)
            .connect()
            .await
            .unwrap();
        assert!(late.get(&key).try_lock().await.unwrap().is_none());
        guard.unlock().await.unwrap();
        late.get(&key).lock().await.unwrap().unlock().await.unwrap();
    })
    .await;
}

/// For four leases the second program tries to take the lock while the first holds and renews it,
/// with an address that leads elsewhere and a server out of reach.
async fn an_address_leads_to(d: &Deployment, other: &Server) {
    let key = key();
    let guard = d.lockers[0].get(&key).lock().await.unwrap();
    d.lead(&[0], other);
    d.cut_off(2);
    let end = Instant::now() + 4 * LEASE;
    while Instant::now() < end {
        if let Ok(Some(second)) = d.lockers[1].get(&key).try_lock().await {
            // The second program holds the lock before and after this check.
            assert!(guard.check().is_err(), "two are in");
            second.check().unwrap();
            return;
        }
        tokio::time::sleep(ms(10)).await;
    }
    guard
        .check()
        .expect_err("nobody was in, and one of three servers is no majority");
}

#[tokio::test]
async fn an_address_that_leads_to_another_makes_no_second_majority() {
    again_and_again(|| async {
        let d = Deployment::plain().await;
        an_address_leads_to(&d, &d.servers[0]).await;
    })
    .await;
}

#[tokio::test]
async fn a_holder_that_is_led_to_an_unknown_server_has_no_vote_there() {
    again_and_again(|| async {
        let (d, stranger) = (Deployment::plain().await, Server::start());
        an_address_leads_to(&d, &stranger).await;
    })
    .await;
}

#[tokio::test]
async fn an_address_leading_to_a_replica_makes_no_second_majority() {
    again_and_again(|| async {
        let servers = servers(3);
        let replica = servers[1].replica();
        eventually(ms(10_000), "the replica is in step", || {
            servers[1].has_replicas(1)
        })
        .await;
        let d = Deployment::new(servers, [LEASE; 2]).await;
        an_address_leads_to(&d, &replica).await;
    })
    .await;
}

/// Only the connection for renewals leads elsewhere.
#[tokio::test]
async fn renewals_by_another_server_are_no_votes() {
    again_and_again(|| async {
        for elsewhere in [false, true] {
            let (d, stranger, key) = (Deployment::plain().await, Server::start(), key());
            let guard = d.lockers[0].get(&key).lock().await.unwrap();
            d.cut_off(2);
            d.ways[0][1].lead_to(if elsewhere {
                stranger.port()
            } else {
                d.servers[0].port()
            });
            let clients: String = d.servers[1].command(&["CLIENT", "LIST"]);
            let id = d.lockers[0].id().to_string();
            let is_it =
                |line: &&str| line.contains("name=lockhound:renewals:") && line.contains(&id);
            let line = clients.lines().find(is_it).unwrap();
            let id = line
                .split(' ')
                .next()
                .unwrap()
                .strip_prefix("id=")
                .unwrap()
                .to_owned();
            d.servers[1].command::<()>(&["CLIENT", "KILL", "ID", &id]);
            tokio::time::timeout(3 * LEASE, guard.lost().cancelled())
                .await
                .expect("one renewal of three is no majority");
        }
    })
    .await;
}

#[tokio::test]
async fn three_failovers_within_a_lease_lose_no_lock_that_all_have() {
    again_and_again(|| async {
        let lease = ms(3_000);
        let masters = servers(3);
        let replicas: Vec<Server> = masters.iter().map(Server::replica).collect();
        for master in &masters {
            eventually(ms(10_000), "the replica is in step", || {
                master.has_replicas(1)
            })
            .await;
        }
        let ways: Vec<Proxy> = masters
            .iter()
            .map(|server| Proxy::start(server.port()))
            .collect();
        let nodes = over_urls(ways.iter().map(Proxy::url), lease).outage_tolerance(ms(60_000));
        let locks = nodes
            .command_timeout(ms(300))
            .restart_quarantine(lease)
            .connect()
            .await
            .unwrap();
        let key = key();
        let guard = locks.get(&key).lock().await.unwrap();
        for (master, (replica, way)) in masters.iter().zip(replicas.iter().zip(&ways)) {
            eventually(ms(10_000), "the replica is in step", || {
                master.has_replicas(1) && replica.exists(&key)
            })
            .await;
            master.kill();
            replica.command::<()>(&["REPLICAOF", "NO", "ONE"]);
            way.lead_to(replica.port());
            way.cut();
        }
        let end = Instant::now() + 3 * lease;
        while Instant::now() < end {
            assert!(guard.check().is_ok(), "{:?}", guard.state());
            tokio::time::sleep(ms(20)).await;
        }
        guard.unlock().await.unwrap();
    })
    .await;
}

/// Only the second program has seen a server forget, and has let it vote again. The first cannot
/// reach another one.
#[tokio::test]
async fn a_try_lock_gets_what_a_majority_would_grant_after_an_opening() {
    again_and_again(|| async {
        let (d, key) = (Deployment::plain().await, key());
        d.servers[1].command::<()>(&["FLUSHALL"]);
        drop(d.lockers[1].get(&key).lock().await.unwrap());
        votes_again(&d.servers[1], LEASE).await;
        eventually(ms(20_000), "it is free", || {
            d.servers.iter().all(|server| !server.exists(&key))
        })
        .await;
        d.cut_off(2);
        let guard = d.lockers[0]
            .get(&key)
            .try_lock()
            .await
            .unwrap()
            .expect("two of three grant it");
        assert!(
            d.servers[0].exists(&key) && d.servers[1].exists(&key) && !d.servers[2].exists(&key)
        );
        guard.unlock().await.unwrap();
        eventually(ms(20_000), "nothing is left", || {
            d.servers.iter().all(|server| !server.exists(&key))
        })
        .await;
    })
    .await;
}

/// One of three servers is away, and another one restarts without its data.
#[tokio::test]
async fn locking_goes_on_by_itself_if_one_is_away_and_one_restarts() {
    again_and_again(|| async {
        let d = Deployment::plain().await;
        d.servers[2].kill();
        d.servers[1].kill();
        d.servers[1].restart();
        let took = Instant::now();
        for locks in &d.lockers {
            let guard = tokio::time::timeout(2 * LEASE + ms(10_000), locks.get(key()).lock()).await;
            guard
                .expect("nobody has to act")
                .unwrap()
                .unlock()
                .await
                .unwrap();
        }
        println!("locking went on after {:?}", took.elapsed());
        d.servers[2].restart();
        votes_again(&d.servers[2], LEASE).await;
    })
    .await;
}

/// The one that is slow knows a higher fence than the others, which have forgotten.
#[tokio::test]
async fn servers_do_not_begin_together_before_a_slow_one_is_connected() {
    again_and_again(|| async {
        let servers = servers(3);
        let urls = || servers.iter().map(Server::url).collect::<Vec<_>>();
        let first = over_urls(urls(), LEASE)
            .restart_quarantine(LEASE)
            .connect()
            .await
            .unwrap();
        eventually(ms(20_000), "all vote", || servers.iter().all(votes)).await;
        first.close().await;
        let mark = "lockhound_fence:{7}";
        let high = servers[2].command::<Vec<u64>>(&["TIME"])[0] * 1_000_000 + 3_600_000_000;
        servers[2].command::<()>(&["SET", mark, &high.to_string()]);
        for server in &servers[..2] {
            server.command::<()>(&["FLUSHALL"]);
        }
        servers[2].stop();
        let nodes = over_urls(urls(), LEASE)
            .restart_quarantine(LEASE)
            .connect_timeout(ms(60_000));
        let locks = nodes.connect().await.unwrap();
        // The longest lease is over, and it has not answered yet.
        tokio::time::sleep(3 * LEASE).await;
        assert!(
            !votes(&servers[0]) && !votes(&servers[1]),
            "they begin without it"
        );
        servers[2].go_on();
        eventually(LEASE + ms(20_000), "they vote again", || {
            servers.iter().all(votes)
        })
        .await;
        for server in &servers {
            assert_eq!(server.command::<u64>(&["GET", mark]), high);
        }
        drop(locks);
    })
    .await;
}

#[tokio::test]
async fn another_number_of_servers_is_refused() {
    let d = Deployment::plain().await;
    let two = || {
        over_urls(d.servers[..2].iter().map(Server::url), LEASE)
            .restart_quarantine(LEASE)
            .connect()
    };
    let error = two().await.unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(error, Error::Config(_))
            && text.contains("one of 3 servers")
            && text.contains("names 2"),
        "{text}"
    );
    // Nor does it open a server that forgets, though it could not be told from another one there.
    d.servers[1].command::<()>(&["FLUSHALL"]);
    d.lockers[0]
        .get(key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    let one = over_urls([d.servers[1].url()], LEASE)
        .restart_quarantine(LEASE)
        .connect()
        .await
        .unwrap();
    votes_again(&d.servers[1], LEASE).await;
    assert_eq!(
        d.servers[1].command::<String>(&["HGET", "lockhound_vote", "seats"]),
        "3"
    );
    assert!(matches!(
        one.get(key()).try_lock().await,
        Err(Error::Unavailable { .. })
    ));
    d.lockers[0]
        .get(key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

/// Those that name three servers can open none: two of them are down. The one that was given the
/// third alone could.
#[tokio::test]
async fn a_program_that_names_fewer_servers_opens_none() {
    let lease = ms(3_000);
    let d = Deployment::new(servers(3), [lease; 2]).await;
    d.servers[0].kill();
    d.servers[2].kill();
    d.servers[1].command::<()>(&["FLUSHALL"]);
    d.lockers[0].get(key()).try_lock().await.unwrap_err();
    let seats = || d.servers[1].command::<Option<String>>(&["HGET", "lockhound_vote", "seats"]);
    eventually(ms(10_000), "it begins again", || seats().is_some()).await;
    let one = over_urls([d.servers[1].url()], lease)
        .restart_quarantine(lease)
        .connect()
        .await
        .unwrap();
    let end = Instant::now() + lease.mul_f64(2.5);
    while Instant::now() < end {
        let answer = one.get(key()).try_lock().await;
        assert!(
            matches!(answer, Err(Error::Unavailable { .. })),
            "{answer:?}"
        );
        assert!(!votes(&d.servers[1]) && seats().as_deref() == Some("3"));
        tokio::time::sleep(ms(20)).await;
    }
    d.servers[0].restart();
    d.lockers[0]
        .get(key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

/// A program comes to three servers that vote by right addresses; another one has a stranger's in
/// place of the third.
#[tokio::test]
async fn a_stranger_s_address_is_named_in_a_warning() {
    let (d, stranger) = (Deployment::plain().await, Server::start());
    let log = &*LOG;
    let connect = |servers: [&Server; 3]| {
        over_urls(servers.map(Server::url), LEASE)
            .restart_quarantine(LEASE)
            .connect()
    };
    let [one, two, three] = [0, 1, 2].map(|at| &d.servers[at]);
    let right = connect([one, two, three]).await.unwrap();
    let _wrong = connect([one, two, &stranger]).await.unwrap();
    let warned = |server: &Server| {
        let (address, news) = (
            format!("127.0.0.1:{}", server.port()),
            "this server is new, or has lost its data",
        );
        log.text()
            .lines()
            .filter(|line| line.contains(news) && line.contains(&address))
            .count()
    };
    eventually(ms(10_000), "it is named", || warned(&stranger) > 0).await;
    eventually(LEASE + ms(20_000), "it votes", || votes(&stranger)).await;
    assert_eq!(
        (warned(&stranger), d.servers.iter().map(warned).max()),
        (1, Some(0))
    );
    // A server that is emptied cannot be told from it.
    two.command::<()>(&["FLUSHALL"]);
    right
        .get(key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    eventually(ms(10_000), "it is named too", || warned(two) == 1).await;
    votes_again(two, LEASE).await;
}

/// The first program of a new deployment was given two of the three servers.
#[tokio::test]
async fn a_wrong_list_does_not_lock_out_the_right_programs() {
    again_and_again(|| async {
        for stays in [false, true] {
            let servers = servers(3);
            let two = servers[..2].iter().map(Server::url);
            let mut wrong = Some(
                over_urls(two, LEASE)
                    .restart_quarantine(LEASE)
                    .connect()
                    .await
                    .unwrap(),
            );
            let begun = |server: &Server| server.command::<u64>(&["EXISTS", "lockhound_vote"]) == 1;
            eventually(ms(10_000), "they begin", || servers[..2].iter().all(begun)).await;
            if !stays {
                wrong.take().unwrap().close().await;
            }
            let right = over_urls(servers.iter().map(Server::url), LEASE)
                .restart_quarantine(LEASE)
                .connect()
                .await;
            let right = right.unwrap();
            let guard = tokio::time::timeout(LEASE + ms(10_000), right.get(key()).lock())
                .await
                .expect("they vote");
            guard.unwrap().unlock().await.unwrap();
            if let Some(wrong) = wrong {
                // Until it looks at the servers again, they abstain for it.
                let is_told = async {
                    let told = "is one of 3 servers, and this program names 2";
                    while !wrong
                        .get(key())
                        .try_lock()
                        .await
                        .unwrap_err()
                        .to_string()
                        .contains(told)
                    {
                        tokio::time::sleep(ms(20)).await;
                    }
                };
                soon(2 * LEASE + ms(10_000), is_told)
                    .await
                    .expect("it is told");
            }
        }
    })
    .await;
}

/// A program that has ended once gave a lease of an hour.
#[tokio::test]
async fn a_longest_lease_that_was_a_mistake_can_be_lowered() {
    let d = Deployment::plain().await;
    let urls = d.servers.iter().map(Server::url);
    over_urls(urls, LEASE)
        .restart_quarantine(ms(3_600_000))
        .connect()
        .await
        .unwrap()
        .close()
        .await;
    for server in &d.servers {
        assert_eq!(
            server.command::<u64>(&["HGET", "lockhound_vote", "lease"]),
            3_600_000
        );
        server.command::<()>(&["HSET", "lockhound_vote", "lease", "1000"]);
    }
    d.servers[1].kill();
    d.servers[1].restart();
    votes_again(&d.servers[1], LEASE).await;
    d.lockers[0]
        .get(key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

/// Returns an address where nobody listens.
fn nowhere() -> String {
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    format!("redis://{}", taken.local_addr().unwrap())
}

/// A program that names five servers stays, and is the first that sees that the three have lost
/// their data.
#[tokio::test]
async fn a_longer_list_locks_nobody_out_after_all_are_emptied() {
    again_and_again(|| async {
        for idle in [false, true] {
            let d = Deployment::plain().await;
            let urls = d
                .servers
                .iter()
                .map(Server::url)
                .chain([nowhere(), nowhere()]);
            let wrong = over_urls(urls, LEASE)
                .restart_quarantine(LEASE)
                .connect_lazy()
                .unwrap();
            let is_told = async || {
                let told = "is one of 3 servers, and this program names 5";
                while !wrong
                    .get(key())
                    .try_lock()
                    .await
                    .unwrap_err()
                    .to_string()
                    .contains(told)
                {
                    tokio::time::sleep(ms(20)).await;
                }
            };
            soon(ms(10_000), is_told()).await.expect("it is told");
            d.servers
                .iter()
                .for_each(|server| server.command::<()>(&["FLUSHALL"]));
            if idle {
                let seats = |server: &Server| {
                    server.command::<Option<String>>(&["HGET", "lockhound_vote", "seats"])
                };
                let has_begun = || {
                    d.servers
                        .iter()
                        .all(|server| seats(server).as_deref() == Some("5"))
                };
                eventually(ms(10_000), "it begins them", has_begun).await;
                tokio::time::sleep(3 * LEASE).await;
                assert!(!d.servers.iter().any(votes), "it lets them vote");
                let error = wrong.get(key()).try_lock().await.unwrap_err().to_string();
                assert!(
                    error.contains("until a program lets it vote that names 3 servers"),
                    "{error}"
                );
            }
            let guard =
                tokio::time::timeout(LEASE + ms(10_000), d.lockers[0].get(key()).lock()).await;
            guard
                .expect("they vote as three")
                .unwrap()
                .unlock()
                .await
                .unwrap();
            soon(ms(10_000), is_told()).await.expect("it is told again");
        }
    })
    .await;
}

/// A program that names seven servers, of which four do not exist, was first in a new deployment,
/// and stays.
#[tokio::test]
async fn a_list_without_a_majority_locks_nobody_out() {
    let servers = servers(3);
    let urls = || servers.iter().map(Server::url);
    let seven = urls().chain([nowhere(), nowhere(), nowhere(), nowhere()]);
    let _wrong = over_urls(seven, LEASE)
        .restart_quarantine(LEASE)
        .connect_lazy()
        .unwrap();
    let begun = |server: &Server| server.command::<u64>(&["EXISTS", "lockhound_vote"]) == 1;
    eventually(ms(10_000), "it begins them", || servers.iter().all(begun)).await;
    let right = over_urls(urls(), LEASE)
        .restart_quarantine(LEASE)
        .connect()
        .await
        .unwrap();
    let guard = tokio::time::timeout(LEASE + ms(10_000), right.get(key()).lock())
        .await
        .expect("they vote");
    guard.unwrap().unlock().await.unwrap();
}
