//! Users that have only the rights of the guide.

use crate::common::rights::user;
use crate::common::{Server, key};
use crate::{LOG, SOON, granted, placed, wait_for};
use lockhound::Locker;

#[tokio::test]
async fn a_user_with_the_guides_list_of_rights_can_have_fair_locks() {
    let _log = &*LOG;
    let server = Server::start();
    let url = user(&server, &["Always", "One server", "Fair locks"]);
    let connect = || Locker::builder().node(&url).connect();
    let (here, there) = (connect().await.unwrap(), connect().await.unwrap());
    let name = format!("app:{}", key());
    let held = here.fair(&*name).lock().await.unwrap();
    let waiting = wait_for(&there.fair(&*name));
    placed(&server, &name, 1).await;
    let goes = wait_for(&here.fair(&*name));
    placed(&server, &name, 2).await;
    goes.abort();
    placed(&server, &name, 1).await;
    assert!(there.fair(&*name).holder().await.unwrap().is_some());
    held.unlock().await.unwrap();
    let guard = granted(waiting).await;
    assert!(here.fair(&*name).force_unlock().await.unwrap());
    drop(guard);
}

/// Without the right to a locker's own channel, all are told on that of the lock.
#[tokio::test]
async fn a_user_that_cannot_be_woken_by_name_is_told_all_the_same() {
    let server = Server::start();
    let url = user(&server, &["Always", "Fair locks"]);
    let connect = || Locker::builder().node(&url).connect();
    let (here, there) = (connect().await.unwrap(), connect().await.unwrap());
    let name = format!("app:{}", key());
    let held = here.fair(&*name).lock().await.unwrap();
    let waiting = wait_for(&there.fair(&*name));
    placed(&server, &name, 1).await;
    // The lock's channel is subscribed.
    let channel = format!("redisson_lock__channel:{{{name}}}");
    crate::eventually(SOON, "it listens", || {
        let (_, number): (String, u64) = server.command(&["PUBSUB", "NUMSUB", &channel]);
        number > 0
    })
    .await;
    held.unlock().await.unwrap();
    drop(granted(waiting).await);
}
