//! Users that have only the rights of the guide.

use crate::SOON;
use crate::common::rights::user;
use crate::common::{Server, eventually, key, soon};
use lockhound::{Error, Locker};

#[tokio::test]
async fn a_user_with_the_guides_list_of_rights_can_have_permits() {
    let server = Server::start();
    let url = user(&server, &["Always", "One server", "Semaphores"]);
    let connect = || Locker::builder().node(&url).connect();
    let (here, there) = (connect().await.unwrap(), connect().await.unwrap());
    let name = format!("app:{}", key());
    for [here, there] in [
        [&here, &there].map(|locks| locks.permits(&*name).capacity(2)),
        [&here, &there].map(|locks| locks.semaphore(format!("{name}:counter")).capacity(2)),
    ] {
        let both = here.acquire_many(2).await.unwrap();
        let usage = there.usage().await.unwrap();
        assert_eq!(usage.taken(), 2);
        let waits = there.clone();
        let waiting = tokio::spawn(async move { waits.acquire().await });
        let channel = format!("redisson_sc:{{{}}}", there.key());
        eventually(SOON, "it listens", || {
            server
                .command::<(String, u64)>(&["PUBSUB", "NUMSUB", &channel])
                .1
                == 1
        })
        .await;
        both.release().await.unwrap();
        let woken = soon(SOON, waiting).await.expect("woken").unwrap();
        woken.unwrap().release().await.unwrap();
        let one = here.acquire().await.unwrap();
        let usage = there.usage().await.unwrap();
        for holder in usage.holders() {
            assert!(there.force_release(holder).await.unwrap());
        }
        drop(one);
    }
    let limited = here.permits(&*name);
    limited.set_capacity(3).await.unwrap();
    server.command::<i64>(&["PEXPIRE", &name, "60000"]);
    let one = limited.acquire().await.unwrap();
    server.command::<i64>(&["PERSIST", &name]);
    drop(limited.acquire().await.unwrap());
    assert_eq!(server.pttl(&format!("{{{name}}}:timeout")), -1);
    drop(one);
}

/// What one step has written is taken back if the next one is refused.
#[tokio::test]
async fn a_missing_right_is_named_and_leaves_the_number_of_permits() {
    let server = Server::start();
    let url = user(&server, &["Always", "One server", "Semaphores"]);
    let locks = Locker::builder().node(&url).connect().await.unwrap();
    let name = format!("app:{}", key());
    let semaphore = locks.permits(&*name).capacity(2);
    semaphore.acquire().await.unwrap().release().await.unwrap();
    // A bug: what is read behind the grant was refused, and nobody undid the grant.
    for right in ["zadd", "incrby", "zrange", "zcard", "zmscore", "pttl"] {
        server.command::<()>(&["ACL", "SETUSER", "app", &format!("-{right}")]);
        let error = semaphore.acquire().await.unwrap_err();
        assert!(matches!(error, Error::Server { .. }), "{error:?}");
        assert_eq!(server.command::<i64>(&["GET", &name]), 2, "{right}");
        let taken: i64 = server.command(&["EXISTS", &format!("{{{name}}}:timeout")]);
        assert_eq!(taken, 0, "{right}");
        server.command::<()>(&["ACL", "SETUSER", "app", &format!("+{right}")]);
    }
    server.command::<i64>(&["PEXPIRE", &name, "60000"]);
    server.command::<()>(&["ACL", "SETUSER", "app", "-pexpire"]);
    let error = semaphore.acquire().await.unwrap_err();
    assert!(matches!(error, Error::Server { .. }), "{error:?}");
    assert_eq!(server.command::<i64>(&["GET", &name]), 2);
    server.command::<i64>(&["PERSIST", &name]);
    let permit = semaphore.acquire().await.unwrap();
    server.command::<()>(&["ACL", "SETUSER", "app", "-incrby"]);
    let error = permit.release().await.unwrap_err();
    assert!(matches!(error, Error::Server { .. }), "{error:?}");
    let records = format!("{{{name}}}:timeout");
    assert_eq!(
        server.command::<u64>(&["ZCARD", &records]),
        1,
        "it runs out"
    );
    assert_eq!(server.command::<i64>(&["GET", &name]), 1);
}
