//! Users that may lock, but have no right to the values of leaders.

use crate::common::log::Log;
use crate::common::rights::user;
use crate::common::{Server, eventually, key, soon};
use crate::{LONG, SOON, elected};
use lockhound::{Error, Locker};

#[tokio::test]
async fn a_user_with_the_guides_list_of_rights_can_lead_and_observe() {
    let server = Server::start();
    let url = user(&server, &["Always", "One server", "Elections"]);
    let locks = Locker::builder().node(&url).lease(LONG);
    let locks = locks.connect().await.unwrap();
    let election = locks.election(format!("app:{}", key()));
    let mut observer = election.observe().await.unwrap();
    assert_eq!(observer.changed().await.unwrap(), None);
    let leadership = election.campaign("a").await.unwrap();
    crate::sees(&mut observer, Some("a")).await;
    leadership.resign().await.unwrap();
    crate::sees(&mut observer, None).await;
}

#[tokio::test]
async fn without_the_right_to_values_a_leader_leads_and_says_so() {
    let (server, log) = (Server::start(), Log::collect());
    let url = user(&server, &["Always", "One server"]);
    let locks = Locker::builder().node(&url).lease(LONG);
    let locks = locks.connect().await.unwrap();
    let name = format!("app:{}", key());
    let election = locks.election(&*name);
    let leadership = soon(SOON, election.campaign("a")).await.unwrap().unwrap();
    leadership.check().unwrap();
    assert!(server.exists(&name));
    eventually(SOON, "a warning", || {
        log.text().contains("leads without one") && log.text().contains(&name)
    })
    .await;
    for refused in [
        leadership.proclaim("b").await.err(),
        election.leader().await.err(),
        election.observe().await.err(),
    ] {
        let error = refused.expect("refused");
        assert!(matches!(error, Error::Server { .. }), "{error:?}");
        let says = error.to_string();
        assert!(says.contains("lockhound_leader:"), "{says}");
    }
    // The next one leads as soon as without it.
    let waiting = crate::campaigns(&election, "b");
    eventually(SOON, "it waits", || locks.stats().waiters == 1).await;
    leadership.resign().await.unwrap();
    elected(waiting).await.resign().await.unwrap();
}

/// A server refuses all channels of a SUBSCRIBE if one of them is not permitted.
#[tokio::test]
async fn without_the_right_to_their_messages_other_locks_hear_theirs() {
    let server = Server::start();
    let url = user(&server, &["Always", "Elections"]);
    server.command::<()>(&[
        "ACL",
        "SETUSER",
        "app",
        "resetchannels",
        "&redisson_lock__channel:{app:*",
    ]);
    let connect = || Locker::builder().node(&url).lease(LONG).connect();
    let (locks, holder) = (connect().await.unwrap(), connect().await.unwrap());
    let [name, other] = [format!("app:{}", key()), format!("app:{}", key())];
    let election = locks.election(&*name);
    let mut observer = election.observe().await.unwrap();
    assert_eq!(observer.changed().await.unwrap(), None);
    for round in 0..2 {
        let guard = holder.get(&*other).lock().await.unwrap();
        let lock = locks.get(&*other);
        let waiting = tokio::spawn(async move { lock.lock().await });
        eventually(SOON, "it waits", || locks.stats().waiters == 1).await;
        // After a reconnect, all channels are subscribed to at once.
        server.command::<u64>(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        for name in [&name, &other] {
            let channel = format!("redisson_lock__channel:{{{name}}}");
            let channels = || server.command::<Vec<String>>(&["PUBSUB", "CHANNELS", &channel]);
            eventually(SOON, "it is subscribed", || channels() == [&*channel]).await;
        }
        guard.unlock().await.unwrap();
        let guard = soon(SOON, waiting).await.expect("it hears").unwrap();
        guard.unwrap().unlock().await.unwrap();
        // The lock's own messages tell of a leader that resigns.
        let leadership = election.campaign("a").await.unwrap();
        assert!(crate::next(&mut observer).await.is_some(), "round {round}");
        leadership.resign().await.unwrap();
        assert_eq!(crate::next(&mut observer).await, None);
    }
}
