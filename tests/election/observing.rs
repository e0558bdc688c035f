//! Observers of one election.

use crate::common::proxy::{Mode, Proxy};
use crate::common::several::hold_as_redisson;
use crate::common::{Server, builder, eventually, key, locker_with, ms, soon};
use crate::{LONG, SHORT, SOON, campaigns, elected, next, seen, sees, waits_to_see};
use lockhound::Leader;

#[tokio::test]
async fn an_observer_is_told_of_each_leader_each_value_and_of_none() {
    let (server, key) = (Server::start(), key());
    let [here, there] = [
        locker_with(&server, LONG).await,
        locker_with(&server, LONG).await,
    ];
    let election = here.election(&*key);
    let mut observer = there.election(&*key).observe().await.unwrap();
    assert_eq!(observer.current(), None);
    assert_eq!(next(&mut observer).await, None, "the present state");
    let mut terms = Vec::new();
    for value in ["a", "b"] {
        let leadership = election.campaign(value).await.unwrap();
        sees(&mut observer, Some(value)).await;
        let current = observer.current().expect("it leads");
        assert_eq!(current.term(), Some(leadership.term()));
        terms.push(leadership.term());
        let waiting = waits_to_see(&server, observer, Some("again")).await;
        leadership.proclaim("again").await.unwrap();
        let waiting = waits_to_see(&server, seen(waiting).await, None).await;
        leadership.resign().await.unwrap();
        observer = seen(waiting).await;
        assert_eq!(observer.current(), None);
    }
    assert!(terms.is_sorted());
    let quiet = tokio::time::timeout(ms(500), observer.changed()).await;
    assert!(quiet.is_err(), "nothing has changed: {quiet:?}");
}

/// No message tells of a hand-over; the next leader's value does.
#[tokio::test]
async fn an_observer_is_told_of_a_leader_that_follows_at_once() {
    let (server, key) = (Server::start(), key());
    let [here, there] = [
        locker_with(&server, LONG).await,
        locker_with(&server, LONG).await,
    ];
    let election = here.election(&*key);
    let mut observer = there.election(&*key).observe().await.unwrap();
    let first = election.campaign("first").await.unwrap();
    sees(&mut observer, Some("first")).await;
    let next_one = campaigns(&election, "second");
    eventually(SOON, "it waits", || here.stats().waiters == 1).await;
    let waiting = waits_to_see(&server, observer, Some("second")).await;
    first.resign().await.unwrap();
    seen(waiting).await;
    elected(next_one).await.resign().await.unwrap();
}

#[tokio::test]
async fn a_change_between_two_calls_is_not_missed() {
    let (server, key) = (Server::start(), key());
    let locks = locker_with(&server, LONG).await;
    let election = locks.election(&*key);
    let mut observer = election.observe().await.unwrap();
    assert_eq!(next(&mut observer).await, None);
    for times in 0..8 {
        // It may have heard of the leader before it is dropped, or not.
        let polled = crate::common::polls::poll_times(Box::pin(observer.changed()), times).await;
        assert!(polled.is_none(), "nothing has changed: {polled:?}");
        let leadership = election.campaign("a").await.unwrap();
        sees(&mut observer, Some("a")).await;
        leadership.resign().await.unwrap();
        assert_eq!(next(&mut observer).await, None);
    }
}

#[tokio::test]
async fn observers_of_a_locker_and_its_waiters_hear_the_same_channel() {
    let (server, key) = (Server::start(), key());
    let [here, there] = [
        locker_with(&server, LONG).await,
        locker_with(&server, LONG).await,
    ];
    let election = here.election(&*key);
    let [mut one, mut two] = [
        there.election(&*key).observe().await.unwrap(),
        there.election(&*key).observe().await.unwrap(),
    ];
    for observer in [&mut one, &mut two] {
        assert_eq!(next(observer).await, None);
    }
    let leadership = election.campaign("a").await.unwrap();
    sees(&mut one, Some("a")).await;
    sees(&mut two, Some("a")).await;
    // A waiter that leaves, and an observer that ends, leave the channel to the other observer.
    let waits = there.get(&*key);
    assert!(waits.try_lock_for(ms(300)).await.unwrap().is_none());
    drop(one);
    tokio::time::sleep(ms(1_500)).await;
    leadership.resign().await.unwrap();
    assert_eq!(next(&mut two).await, None);
    drop(two);
    let channels = || server.command::<Vec<String>>(&["PUBSUB", "CHANNELS", &format!("*{key}*")]);
    eventually(SOON, "nobody listens", || channels().is_empty()).await;
}

/// Nothing is published at the end of a lease.
#[tokio::test]
async fn an_observer_sees_the_end_of_a_dead_leader_by_looking() {
    let (server, key) = (Server::start(), key());
    let proxy = Proxy::start(server.port());
    let far = builder(&proxy.url(), SHORT).connect().await.unwrap();
    let there = locker_with(&server, LONG).await;
    let mut observer = there.election(&*key).observe().await.unwrap();
    let _leadership = far.election(&*key).campaign("a").await.unwrap();
    sees(&mut observer, Some("a")).await;
    proxy.set(Mode::BlackHole);
    // The end of the lease that it has seen comes long before a sixth of its own.
    let gone = soon(SHORT * 3, observer.changed()).await;
    assert_eq!(gone.expect("it looks").unwrap(), None);
}

/// Who looks at nothing but the lease that it has seen misses one that follows silently.
#[tokio::test]
async fn an_observer_looks_in_each_sixth_of_its_lease() {
    let (server, key) = (Server::start(), key());
    let locks = locker_with(&server, SHORT).await;
    let mut observer = locks.election(&*key).observe().await.unwrap();
    assert_eq!(next(&mut observer).await, None);
    hold_as_redisson(&server, &key, 600_000);
    let leader = soon(SHORT, observer.changed()).await.expect("it looks");
    assert!(leader.unwrap().is_some());
    server.command::<bool>(&["DEL", &key]);
    let gone = soon(SHORT, observer.changed()).await.expect("it looks");
    assert_eq!(gone.unwrap(), None);
}

/// What changes between the first read and the subscription is announced to nobody.
#[tokio::test]
async fn an_observer_reads_again_once_it_is_subscribed() {
    let (server, key) = (Server::start(), key());
    let proxy = Proxy::start(server.port());
    let here = locker_with(&server, LONG).await;
    let there = builder(&proxy.url(), LONG).connect().await.unwrap();
    proxy.set(Mode::Hold(b"SUBSCRIBE".to_vec()));
    let mut observer = there.election(&*key).observe().await.unwrap();
    assert_eq!(next(&mut observer).await, None);
    eventually(SOON, "it is on its way", || proxy.held() > 0).await;
    let observing = waits_to_see(&server, observer, Some("a")).await;
    let _leadership = here.election(&*key).campaign("a").await.unwrap();
    proxy.set(Mode::Pass);
    seen(observing).await;
}

/// The answer to a read is late. The message about what has changed since is not.
#[tokio::test]
async fn a_message_during_a_read_is_not_forgotten() {
    let (server, key) = (Server::start(), key());
    let proxy = Proxy::start(server.port());
    let here = locker_with(&server, LONG).await;
    let there = builder(&proxy.url(), LONG).connect().await.unwrap();
    let mut observer = there.election(&*key).observe().await.unwrap();
    assert_eq!(next(&mut observer).await, None);
    let channel = format!("*leader*{key}*");
    eventually(SOON, "it is subscribed", || {
        !server
            .command::<Vec<String>>(&["PUBSUB", "CHANNELS", &channel])
            .is_empty()
    })
    .await;
    for value in ["a", "b", "c"] {
        proxy.set(Mode::Delay(ms(600)));
        let observing = waits_to_see(&server, observer, Some(value)).await;
        proxy.set(Mode::Pass);
        let leadership = here.election(&*key).campaign(value).await.unwrap();
        observer = seen(observing).await;
        leadership.resign().await.unwrap();
        sees(&mut observer, None).await;
    }
}

#[tokio::test]
async fn the_value_of_an_earlier_leader_is_not_believed() {
    let (server, key) = (Server::start(), key());
    let locks = locker_with(&server, LONG).await;
    let election = locks.election(&*key);
    let _leadership = election.campaign("old").await.unwrap();
    server.command::<bool>(&["DEL", &key]);
    hold_as_redisson(&server, &key, 30_000);
    let leader = election.leader().await.unwrap().expect("somebody leads");
    assert_eq!((leader.value(), leader.term()), (None, None));
    assert!(server.exists(&format!("lockhound_leader:{{{key}}}")));
}

/// Whatever others write there is shown as it is, or ends in an error that names the key.
#[tokio::test]
async fn a_foreign_value_does_no_harm() {
    let (server, key) = (Server::start(), key());
    let value = format!("lockhound_leader:{{{key}}}");
    let locks = locker_with(&server, LONG).await;
    let election = locks.election(&*key);
    let leadership = election.campaign("a").await.unwrap();
    let field: Vec<String> = server.command(&["HKEYS", &key]);
    for (term, number, text) in [("x", "y", "z"), ("-1", "1e9", "z"), ("1.5", "-7", "z")] {
        server.command::<()>(&[
            "HSET", &value, "term", term, "number", number, "value", text,
        ]);
        let leader = election.leader().await.unwrap().expect("it leads");
        assert_eq!(leader.value(), Some("z"));
    }
    server.command::<()>(&["DEL", &value]);
    server.command::<()>(&["HSET", &value, "field", &field[0]]);
    let leader = election.leader().await.unwrap().expect("it leads");
    assert_eq!((leader.term(), leader.value()), (None, None));
    leadership.proclaim("b").await.unwrap();
    let leader = election.leader().await.unwrap();
    assert_eq!(leader.as_ref().and_then(Leader::value), Some("b"));
    server.command::<()>(&["SET", &value, "no hash"]);
    let refused = leadership.proclaim("c").await.unwrap_err().to_string();
    assert!(
        refused.contains(&value) && refused.contains("string"),
        "{refused}"
    );
    let refused = election.leader().await.unwrap_err().to_string();
    assert!(
        refused.contains(&value) && refused.contains("string"),
        "{refused}"
    );
    leadership.resign().await.unwrap();
}
