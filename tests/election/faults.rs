//! Servers that are away, connections that are cut, and commands that are late.

use std::time::Instant;

use crate::common::proxy::{Mode, Proxy};
use crate::common::several::{over, servers, through};
use crate::common::{Server, builder, eventually, key, locker_with, ms, soon};
use crate::{LONG, SHORT, SOON, campaigns, elected, next, seen, sees, waits_to_see};
use lockhound::{Error, Leader};

#[tokio::test]
async fn a_campaign_waits_through_an_outage() {
    let (server, key) = (Server::start(), key());
    let locks = builder(&server.url(), SHORT)
        .command_timeout(ms(300))
        .outage_tolerance(ms(600));
    let election = locks.connect().await.unwrap().election(&*key);
    server.kill();
    let once = election.try_campaign("a").await;
    assert!(matches!(once, Err(Error::Unavailable { .. })), "{once:?}");
    let waiting = campaigns(&election, "a");
    let running = tokio::spawn({
        let election = election.clone();
        async move { election.run("b", |_| async { 7 }).await }
    });
    tokio::time::sleep(ms(2_500)).await;
    assert!(!waiting.is_finished() && !running.is_finished());
    server.restart();
    elected(waiting).await.resign().await.unwrap();
    assert_eq!(soon(SOON, running).await.unwrap().unwrap().unwrap(), 7);
}

/// The leader is told before the next one leads: both clocks are of this process.
#[tokio::test]
async fn a_leader_that_is_cut_off_is_told_before_another_leads() {
    let (server, key) = (Server::start(), key());
    let proxy = Proxy::start(server.port());
    let far = builder(&proxy.url(), SHORT).connect().await.unwrap();
    let near = locker_with(&server, SHORT).await;
    let leadership = far.election(&*key).campaign("far").await.unwrap();
    let lost = leadership.lost();
    let told = tokio::spawn(async move {
        lost.cancelled().await;
        Instant::now()
    });
    proxy.set(Mode::BlackHole);
    let next_one = campaigns(&near.election(&*key), "near");
    let next_one = elected(next_one).await;
    let leads = Instant::now();
    assert!(told.await.unwrap() < leads, "it was told too late");
    assert!(leadership.check().is_err());
    next_one.resign().await.unwrap();
}

/// A proclamation that was held on its way arrives when another one leads.
#[tokio::test]
async fn a_late_proclamation_of_an_earlier_leader_changes_nothing() {
    let (server, key) = (Server::start(), key());
    let proxy = Proxy::start(server.port());
    let far = builder(&proxy.url(), LONG).connect().await.unwrap();
    let near = locker_with(&server, LONG).await;
    let first = far.election(&*key).campaign("first").await.unwrap();
    proxy.set(Mode::Hold(b"too late".to_vec()));
    let proclaiming = first.proclaim("too late");
    let proclaimed = tokio::time::timeout(ms(300), proclaiming).await;
    assert!(proclaimed.is_err(), "it is on its way: {proclaimed:?}");
    eventually(SOON, "it is held", || proxy.held() == 1).await;
    server.command::<bool>(&["DEL", &key]);
    let election = near.election(&*key);
    let second = election.campaign("second").await.unwrap();
    let calls = server.calls("evalsha");
    proxy.set(Mode::Pass);
    eventually(SOON, "it arrives", || server.calls("evalsha") > calls).await;
    let leader = election.leader().await.unwrap().expect("it leads");
    assert_eq!(
        (leader.value(), leader.term()),
        (Some("second"), Some(second.term()))
    );
    drop(first);
    second.resign().await.unwrap();
}

/// The first value is late, and the second one overtakes it on a connection of its own.
#[tokio::test]
async fn a_late_value_does_not_replace_a_later_one() {
    let (server, key) = (Server::start(), key());
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url(), LONG).connect().await.unwrap();
    let election = locks.election(&*key);
    let leadership = election.campaign("one").await.unwrap();
    let field: Vec<String> = server.command(&["HKEYS", &key]);
    let value = format!("lockhound_leader:{{{key}}}");
    leadership.proclaim("two").await.unwrap();
    let number: u64 = server.command(&["HGET", &value, "number"]);
    assert_eq!(number, 2);
    let script = include_str!("../../lua/shared/proclaim.lua");
    let channel = format!("lockhound_leader:{{{key}}}");
    let term = leadership.term().to_string();
    for (number, text) in [("1", "one"), ("2", "two")] {
        let written: i64 = server.command(&[
            "EVAL", script, "3", &key, &value, &channel, &field[0], &term, number, text, "60000",
        ]);
        assert_eq!(written, 1);
        let leader = election.leader().await.unwrap();
        assert_eq!(leader.as_ref().and_then(Leader::value), Some("two"));
    }
}

/// The message comes while nobody is connected.
#[tokio::test]
async fn an_observer_whose_connection_was_cut_reads_again() {
    let (server, key) = (Server::start(), key());
    let proxy = Proxy::start(server.port());
    let here = locker_with(&server, LONG).await;
    let there = builder(&proxy.url(), LONG).connect().await.unwrap();
    let election = here.election(&*key);
    let mut observer = there.election(&*key).observe().await.unwrap();
    let leadership = election.campaign("a").await.unwrap();
    sees(&mut observer, Some("a")).await;
    let waiting = waits_to_see(&server, observer, None).await;
    proxy.set(Mode::Refuse);
    proxy.cut();
    leadership.resign().await.unwrap();
    proxy.set(Mode::Pass);
    seen(waiting).await;
}

#[tokio::test]
async fn an_observer_tells_of_an_outage_and_goes_on_after_it() {
    let (server, key) = (Server::start(), key());
    let locks = builder(&server.url(), SHORT)
        .command_timeout(ms(300))
        .outage_tolerance(ms(900));
    let election = locks.connect().await.unwrap().election(&*key);
    let mut observer = election.observe().await.unwrap();
    assert_eq!(next(&mut observer).await, None);
    server.stop();
    let start = Instant::now();
    let told = soon(SOON, observer.changed()).await.expect("it gives up");
    let Err(error @ Error::Unavailable { .. }) = told else {
        panic!("{told:?}");
    };
    assert!(error.to_string().contains(&key), "{error}");
    assert!(start.elapsed() >= ms(900), "{:?}", start.elapsed());
    assert_eq!(observer.current(), None, "what it saw last");
    server.go_on();
    let leadership = soon(SOON, election.campaign("a")).await.unwrap().unwrap();
    sees(&mut observer, Some("a")).await;
    leadership.resign().await.unwrap();
}

/// The server lost the value, and not the lock.
#[tokio::test]
async fn a_value_that_a_server_lost_is_written_again() {
    let (server, key) = (Server::start(), key());
    let locks = locker_with(&server, SHORT).await;
    let election = locks.election(&*key);
    let leadership = election.campaign("a").await.unwrap();
    let mut observer = election.observe().await.unwrap();
    sees(&mut observer, Some("a")).await;
    server.command::<()>(&["DEL", &format!("lockhound_leader:{{{key}}}")]);
    // It sees the leader without the value first, if it looks in between.
    let back = async {
        loop {
            let leader = election.leader().await.unwrap().expect("it leads");
            if leader.value() == Some("a") {
                return;
            }
            tokio::time::sleep(ms(5)).await;
        }
    };
    soon(SHORT, back).await.expect("with the next write");
    leadership.check().unwrap();
}

// ---- Several servers ----

#[tokio::test]
async fn a_majority_elects_and_shows_the_value() {
    let (servers, key) = (servers(3), key());
    let here = over(&servers, SHORT).connect().await.unwrap();
    let there = over(&servers, SHORT).connect().await.unwrap();
    let election = there.election(&*key);
    let mut observer = election.observe().await.unwrap();
    let leadership = here.election(&*key).campaign("a").await.unwrap();
    sees(&mut observer, Some("a")).await;
    // One of three is down, and another one has lost the value: the third has it.
    servers[0].kill();
    leadership.proclaim("b").await.unwrap();
    sees(&mut observer, Some("b")).await;
    let value = format!("lockhound_leader:{{{key}}}");
    servers[1].command::<()>(&["DEL", &value]);
    let leader = election.leader().await.unwrap().expect("it leads");
    assert_eq!(leader.value(), Some("b"));
    // A server that comes back gets the value with a renewal.
    servers[0].restart();
    eventually(SOON, "it has the vote and the value", || {
        servers[0].exists(&key) && servers[0].exists(&value)
    })
    .await;
    leadership.resign().await.unwrap();
    sees(&mut observer, None).await;
    assert_eq!(election.leader().await.unwrap(), None);
}

#[tokio::test]
async fn without_a_majority_nobody_is_said_to_lead_or_not_to() {
    let (servers, key) = (servers(3), key());
    let (proxies, locks) = through(&servers, SHORT);
    let election = locks.connect().await.unwrap().election(&*key);
    crate::common::several::hold_as_redisson(&servers[0], &key, 30_000);
    assert_eq!(
        election.leader().await.unwrap(),
        None,
        "two of three say that nobody leads"
    );
    crate::common::several::hold_as_redisson(&servers[1], &key, 30_000);
    assert!(election.leader().await.unwrap().is_some());
    servers[1].command::<()>(&["DEL", &key]);
    proxies[2].set(Mode::BlackHole);
    let unknown = election.leader().await;
    assert!(
        matches!(unknown, Err(Error::Unavailable { .. })),
        "the third one decides: {unknown:?}"
    );
}

#[tokio::test]
async fn an_observer_of_several_servers_survives_the_loss_of_one() {
    let (servers, key) = (servers(3), key());
    let here = over(&servers, SHORT).connect().await.unwrap();
    let there = over(&servers, SHORT).connect().await.unwrap();
    let mut observer = there.election(&*key).observe().await.unwrap();
    servers[2].stop();
    for value in ["a", "b"] {
        let leadership = here.election(&*key).campaign(value).await.unwrap();
        sees(&mut observer, Some(value)).await;
        drop(leadership);
        sees(&mut observer, None).await;
    }
    servers[2].go_on();
}
