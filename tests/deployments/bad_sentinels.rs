//! Sentinels that hang, lag behind, forget, refuse or move: they neither stop a locker nor lead it
//! to a second master.

use std::time::{Duration, Instant};

use lockhound::{Error, HoldState, Lock, Locker, LockerBuilder};

use crate::common::proxy::{Mode, Proxy};
use crate::common::sentinel::{NAME, Sentinels, url_of};
use crate::common::{Server, eventually, key, ms};

const LEASE: Duration = Duration::from_secs(15);

fn builder(url: String) -> LockerBuilder {
    Locker::builder()
        .node(url)
        .lease(LEASE)
        .command_timeout(ms(1_000))
        .connect_timeout(ms(20_000))
}

/// Returns how many scripts a server has run.
fn scripts(server: &Server) -> u64 {
    server.calls("evalsha") + server.calls("eval")
}

/// A locker that was connected before the partition, and one that starts later, each with the
/// Sentinels in two orders.
#[tokio::test(flavor = "multi_thread")]
async fn two_lockers_never_use_two_masters() {
    let group = Sentinels::start_parted();
    let ports: Vec<_> = group.sentinels.iter().map(Server::port).collect();
    let [stale, one, two] = ports[..] else {
        panic!("three Sentinels")
    };
    let orders = [[stale, one, two], [one, two, stale], [two, stale, one]];
    let mut lockers = Vec::new();
    for order in orders {
        lockers.push(builder(url_of(order)).connect().await.unwrap());
    }
    // All of them have used the old master.
    for locks in &lockers {
        locks
            .get(key())
            .lock()
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
    }
    group.part().await;
    for order in orders {
        lockers.push(builder(url_of(order)).connect().await.unwrap());
    }
    let before = scripts(&group.master);
    for holder in &lockers {
        let guard = holder.get(key()).lock().await.unwrap();
        assert!(
            group.replica.exists(guard.key().as_str())
                && !group.master.exists(guard.key().as_str())
        );
        for other in &lockers {
            if other.id() != holder.id() {
                assert!(
                    other.get(guard.key()).try_lock().await.unwrap().is_none(),
                    "two hold it"
                );
            }
        }
        assert_eq!(guard.state(), HoldState::Safe);
        guard.unlock().await.unwrap();
    }
    // A heartbeat that was under way may be counted late.
    assert!(
        scripts(&group.master) <= before + 3,
        "the deposed master was asked"
    );
}

/// One of the Sentinels is bad, at each place of the list.
#[tokio::test(flavor = "multi_thread")]
async fn one_bad_sentinel_of_three_costs_nothing() {
    let group = Sentinels::start();
    let (hole, alone) = (crate::common::hole::Hole::new(), Server::start());
    let ports: Vec<_> = group.sentinels.iter().map(Server::port).collect();
    let port = group.master.port().to_string();
    type Act = Box<dyn Fn(&Server)>;
    let act = |act: fn(&Server)| -> Act { Box::new(act) };
    let command = |words: &'static [&'static str]| -> Act {
        Box::new(move |sentinel| sentinel.command(words))
    };
    let monitor = move |sentinel: &Server| {
        sentinel.command::<()>(&["SENTINEL", "MONITOR", NAME, "127.0.0.1", &port, "2"]);
    };
    let nothing = || act(|_| {});
    let kinds: [(&str, Act, Act, Option<u16>); 6] = [
        ("hangs", act(Server::stop), act(Server::go_on), None),
        (
            "forgot the master",
            command(&["SENTINEL", "REMOVE", NAME]),
            Box::new(monitor),
            None,
        ),
        (
            "wants a password",
            command(&["ACL", "SETUSER", "default", "resetpass", ">other"]),
            // The connections of its own that it has are not asked again.
            act(|sentinel| {
                let mut admin =
                    redis::Client::open(sentinel.url().replace("://", "://:other@")).unwrap();
                redis::cmd("ACL")
                    .arg(&["SETUSER", "default", "nopass"])
                    .exec(&mut admin)
                    .unwrap();
            }),
            None,
        ),
        (
            "swallows connections",
            nothing(),
            nothing(),
            Some(hole.port()),
        ),
        ("refuses connections", nothing(), nothing(), Some(1)),
        ("is no Sentinel", nothing(), nothing(), Some(alone.port())),
    ];
    for (kind, begin, end, instead) in kinds {
        for place in 0..3 {
            let mut listed = ports.clone();
            listed[place] = instead.unwrap_or(listed[place]);
            begin(&group.sentinels[place]);
            let begun = Instant::now();
            let locks = builder(url_of(listed))
                .connect()
                .await
                .unwrap_or_else(|e| panic!("{kind}, {place}: {e}"));
            let took = begun.elapsed();
            assert!(
                crate::common::machine::within(took, ms(900)),
                "{kind}, {place}: {took:?} to connect"
            );
            let guard = locks.get(key()).lock().await.unwrap();
            group.master.cut_connections();
            let begun = Instant::now();
            locks
                .get(key())
                .lock()
                .await
                .unwrap()
                .unlock()
                .await
                .unwrap();
            let took = begun.elapsed();
            assert!(
                crate::common::machine::within(took, ms(900)),
                "{kind}, {place}: {took:?} to reconnect"
            );
            assert_eq!(guard.state(), HoldState::Safe, "{kind}, {place}");
            guard.unlock().await.unwrap();
            locks.close().await;
            end(&group.sentinels[place]);
        }
    }
}

/// The names of the Sentinels lead to new ones, as those of pods do. Later the master's connections
/// break once.
#[tokio::test(flavor = "multi_thread")]
async fn sentinels_that_moved_behind_their_names_are_found() {
    let mut group = Sentinels::start();
    let names: Vec<_> = group
        .sentinels
        .iter()
        .map(|sentinel| Proxy::start(sentinel.port()))
        .collect();
    let locks = builder(url_of(names.iter().map(Proxy::port)))
        .connect()
        .await
        .unwrap();
    let guard = locks.get(key()).lock().await.unwrap();
    let new: Vec<_> = (0..3)
        .map(|_| Server::start_sentinel_of(&group.master, &[]))
        .collect();
    for (name, sentinel) in names.iter().zip(&new) {
        name.lead_to(sentinel.port());
    }
    group.sentinels.clear();
    names.iter().for_each(Proxy::cut);
    let asked = |sentinel: &Server| {
        sentinel
            .command::<String>(&["CLIENT", "LIST"])
            .contains("name=lockhound:")
    };
    eventually(ms(20_000), "the new Sentinels are asked", || {
        new.iter().all(asked)
    })
    .await;
    group.master.cut_connections();
    locks
        .get(key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    assert_eq!(guard.state(), HoldState::Safe);
    guard.unlock().await.unwrap();
}

/// After a failover, the Sentinels lose their files and begin again: with another master, and an
/// earlier epoch.
#[tokio::test(flavor = "multi_thread")]
async fn sentinels_that_were_set_up_again_are_followed_in_seconds() {
    let mut group = Sentinels::start();
    let names: Vec<_> = group
        .sentinels
        .iter()
        .map(|sentinel| Proxy::start(sentinel.port()))
        .collect();
    let locks = builder(url_of(names.iter().map(Proxy::port)))
        .connect()
        .await
        .unwrap();
    group.sentinels[0].command::<()>(&["SENTINEL", "FAILOVER", NAME]);
    group.failed_over().await;
    locks
        .get(key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    group.sentinels.clear();
    group.replica.kill();
    group.master.command::<()>(&["REPLICAOF", "NO", "ONE"]);
    let new: Vec<_> = (0..3)
        .map(|_| Server::start_sentinel_of(&group.master, &[]))
        .collect();
    for (name, sentinel) in names.iter().zip(&new) {
        name.lead_to(sentinel.port());
    }
    names.iter().for_each(Proxy::cut);
    let begun = Instant::now();
    let lock = locks.get(key());
    let guard = loop {
        if let Ok(guard) = lock.lock().await {
            break guard;
        }
    };
    assert!(group.master.exists(guard.key().as_str()));
    assert!(
        crate::common::machine::within(begun.elapsed(), ms(12_000)),
        "{:?}",
        begun.elapsed()
    );
    guard.unlock().await.unwrap();
}

async fn lock_once(lock: Lock) {
    lock.lock().await.unwrap().unlock().await.unwrap();
}

/// The stale Sentinel is the first of the list, and at times the only one that answers.
#[tokio::test(flavor = "multi_thread")]
async fn no_script_reaches_a_deposed_master_in_40_reconnects() {
    let group = Sentinels::start_parted();
    let locks = builder(group.url()).connect().await.unwrap();
    group.part().await;
    let lock = locks.get(key());
    // It follows as soon as both have said so.
    let followed = || {
        let clients: String = group.replica.command(&["CLIENT", "LIST"]);
        clients
            .lines()
            .filter(|line| line.contains("name=lockhound:"))
            .count()
            == 3
    };
    eventually(ms(20_000), "it is connected to the new master", followed).await;
    group.master.command::<()>(&["CONFIG", "RESETSTAT"]);
    for round in 0..40 {
        if round == 20 {
            group.sentinels[1..].iter().for_each(Server::stop);
        }
        let asking: Vec<_> = (0..8)
            .map(|_| locks.get(key()))
            .map(|lock| tokio::spawn(lock_once(lock)))
            .collect();
        group.replica.cut_connections();
        for asked in asking {
            asked.await.unwrap();
        }
    }
    assert_eq!(scripts(&group.master), 0, "the deposed master was asked");
    group.sentinels[1..].iter().for_each(Server::go_on);
    lock.lock().await.unwrap().unlock().await.unwrap();
}

/// The stale Sentinel is near, and the others are further away than a short command timeout.
#[tokio::test(flavor = "multi_thread")]
async fn a_near_stale_sentinel_is_not_believed_by_a_new_locker() {
    let group = Sentinels::start_parted();
    group.part().await;
    for (lease, delay) in [(1_000, 10), (1_000, 100), (10_000, 300)] {
        let far: Vec<_> = group.sentinels[1..]
            .iter()
            .map(|sentinel| Proxy::start(sentinel.port()))
            .collect();
        far.iter().for_each(|way| way.set(Mode::Delay(ms(delay))));
        let url = url_of([group.sentinels[0].port(), far[0].port(), far[1].port()]);
        let locks = builder(url)
            .lease(ms(lease))
            .command_timeout(ms(lease / 10))
            .connect()
            .await
            .unwrap();
        let held = locks.get(key()).lock().await.unwrap();
        assert!(
            !group.master.exists(held.key().as_str()),
            "granted by the deposed master: {lease} ms, {delay} ms"
        );
        held.unlock().await.unwrap();
        locks.close().await;
    }
}

/// The user names one of them. The two others keep their ids, and are told at other addresses.
#[tokio::test(flavor = "multi_thread")]
async fn sentinels_that_others_tell_of_are_found_where_they_move() {
    let group = Sentinels::start();
    let [first, rest @ ..] = &*group.sentinels else {
        panic!("three Sentinels")
    };
    let announce = |ways: &[Proxy]| {
        for (sentinel, way) in rest.iter().zip(ways) {
            sentinel.command::<()>(&[
                "SENTINEL",
                "CONFIG",
                "SET",
                "announce-port",
                &way.port().to_string(),
            ]);
        }
    };
    let tells = |ways: &[Proxy]| {
        let others: Vec<Vec<String>> = first.command(&["SENTINEL", "SENTINELS", NAME]);
        ways.iter().all(|way| {
            others
                .iter()
                .any(|other| other.contains(&way.port().to_string()))
        })
    };
    let ways = || {
        rest.iter()
            .map(|sentinel| Proxy::start(sentinel.port()))
            .collect::<Vec<_>>()
    };
    let asked = || {
        rest.iter().all(|sentinel| {
            sentinel
                .command::<String>(&["CLIENT", "LIST"])
                .contains("name=lockhound:")
        })
    };
    let before = ways();
    announce(&before);
    eventually(ms(60_000), "the first one tells of them", || tells(&before)).await;
    let locks = builder(url_of([first.port(), first.port()]))
        .connect()
        .await
        .unwrap();
    eventually(ms(20_000), "all are asked", asked).await;
    let after = ways();
    announce(&after);
    before.iter().for_each(|way| {
        way.set(Mode::Refuse);
        way.cut();
    });
    eventually(ms(60_000), "the first one tells where they are", || {
        tells(&after)
    })
    .await;
    eventually(ms(40_000), "they are asked there", asked).await;
    locks
        .get(key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

#[tokio::test]
async fn errors_name_the_sentinel_that_is_wrong_and_the_remedy() {
    let group = Sentinels::start();
    let refusal = |url: String| async move {
        let builder = Locker::builder()
            .node(url)
            .connect_timeout(ms(4_000))
            .lease(ms(3_000));
        builder.connect().await.unwrap_err().to_string()
    };
    let all = group.url();
    let message = refusal(all.replace("=locks", "=other")).await;
    assert!(
        message.contains("knows no master named other: correct sentinelServiceName"),
        "{message}"
    );
    for sentinel in &group.sentinels {
        permit_only(sentinel);
    }
    let message = refusal(format!("{all}&sentinelPassword=wrong")).await;
    assert!(
        message.contains("correct sentinelUsername or sentinelPassword (WRONGPASS"),
        "{message}"
    );
    let message = refusal(all.clone()).await;
    assert!(
        message.contains("correct sentinelUsername or sentinelPassword (NOAUTH"),
        "{message}"
    );
    // A replica that is named as the master.
    let Error::Unavailable { nodes, .. } = ({
        let replica = Server::start_sentinel_of(&group.replica, &[]);
        builder(url_of([replica.port(), replica.port()]))
            .connect_timeout(ms(1_000))
            .connect()
            .await
            .unwrap_err()
    }) else {
        panic!("it is a replica")
    };
    assert!(
        nodes[0]
            .reason()
            .contains("is a replica, though the Sentinels name it"),
        "{}",
        nodes[0]
    );
}

/// Lets only users with this password in.
fn permit_only(sentinel: &Server) {
    sentinel.command::<()>(&["ACL", "SETUSER", "default", "resetpass", ">right"]);
}
