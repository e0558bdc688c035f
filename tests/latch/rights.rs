//! Users with the rights of the guide, and with fewer.

use crate::common::rights::user;
use crate::common::{Server, eventually, key, soon};
use crate::{LONG, SHORT, SOON, goes_on};
use lockhound::{Error, Locker};

#[tokio::test]
async fn a_user_with_the_guides_list_of_rights_can_use_latches() {
    let server = Server::start();
    let url = user(&server, &["Always", "Latches"]);
    let locks = Locker::builder().node(&url).lease(LONG);
    let locks = locks.connect().await.unwrap();
    let latch = locks.latch(format!("app:{}", key()));
    for _ in 0..2 {
        assert!(latch.try_set(2).await.unwrap());
        assert!(!latch.try_set(2).await.unwrap());
        let waiting = crate::waits(&server, &locks, &latch).await;
        assert_eq!(latch.count_down().await.unwrap(), 1);
        assert_eq!(latch.count().await.unwrap(), 1);
        latch.count_down_and_wait().await.unwrap();
        goes_on(waiting).await;
    }
    // What is optional for all kinds is refused at the top.
    let denied: redis::Value = server.command(&["ACL", "LOG"]);
    let denied = format!("{denied:?}");
    assert!(
        !denied.contains("\"lua\"") && !denied.contains("latch"),
        "{denied}"
    );
}

#[tokio::test]
async fn without_them_calls_are_refused_and_name_the_keys() {
    let server = Server::start();
    let url = user(&server, &["Always"]);
    let locks = Locker::builder().node(&url).lease(LONG);
    let locks = locks.connect().await.unwrap();
    let name = format!("app:{}", key());
    let latch = locks.latch(&*name);
    for refused in [latch.try_set(1).await.err(), latch.count_down().await.err()] {
        let error = refused.expect("refused");
        assert!(matches!(error, Error::Server { .. }), "{error:?}");
        let says = error.to_string();
        assert!(says.contains("lockhound_counted:"), "{says}");
    }
    assert!(!server.exists(&name));
}

/// Without the right to the channel, whoever waits looks.
#[tokio::test]
async fn without_the_right_to_messages_a_caller_looks() {
    let server = Server::start();
    let url = user(&server, &["Always", "Latches"]);
    server.command::<()>(&["ACL", "SETUSER", "app", "resetchannels", "&none"]);
    let locks = Locker::builder().node(&url).lease(SHORT);
    let locks = locks.connect().await.unwrap();
    let latch = locks.latch(format!("app:{}", key()));
    assert!(latch.try_set(1).await.unwrap());
    let waits = latch.clone();
    let waiting = tokio::spawn(async move { waits.wait().await });
    eventually(SOON, "it waits", || locks.stats().latch_waiters == 1).await;
    assert_eq!(soon(SOON, latch.count_down()).await.unwrap().unwrap(), 0);
    goes_on(waiting).await;
}
