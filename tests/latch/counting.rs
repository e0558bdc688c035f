//! What calls do, and what is refused.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::common::cluster::Cluster;
use crate::common::server::version;
use crate::common::{Server, builder, eventually, key, locker, locker_with, soon};
use crate::{LONG, SOON};
use lockhound::{Error, Format, Locker};

#[tokio::test]
async fn a_latch_is_set_once_and_again_after_its_last_count() {
    let (server, key) = (Server::start(), key());
    let (here, there) = (locker(&server).await, locker(&server).await);
    let (one, other) = (here.latch(&*key), there.latch(&*key));
    for _ in 0..2 {
        assert_eq!(one.count().await.unwrap(), 0, "it is open");
        assert_eq!(one.count_down().await.unwrap(), 0, "and stays so");
        assert!(!server.exists(&key));
        assert!(one.try_set(3).await.unwrap());
        assert!(!one.try_set(5).await.unwrap());
        assert!(!other.try_set(1).await.unwrap());
        assert_eq!(other.count().await.unwrap(), 3);
        assert_eq!(server.command::<String>(&["GET", &key]), "3");
        assert_eq!(server.pttl(&key), -1, "a JVM's callers would not wait");
        assert_eq!(one.count_down().await.unwrap(), 2);
        assert_eq!(other.count_down().await.unwrap(), 1);
        assert_eq!(one.count().await.unwrap(), 1);
        assert_eq!(other.count_down().await.unwrap(), 0);
        assert!(!server.exists(&key));
    }
    // The ids of calls stay for an hour and an outage tolerance: the lease, here 30 s.
    let left = server.pttl(&format!("lockhound_counted:{{{key}}}"));
    assert!((3_600_000..=3_630_000).contains(&left), "{left}");
}

#[tokio::test]
async fn counts_of_many_tasks_are_all_counted() {
    let (server, key) = (Server::start(), key());
    let lockers = [locker(&server).await, locker(&server).await];
    assert!(lockers[0].latch(&*key).try_set(101).await.unwrap());
    let tasks: Vec<_> = (0..100)
        .map(|n| {
            let latch = lockers[n % 2].latch(&*key);
            tokio::spawn(async move { latch.count_down().await })
        })
        .collect();
    let mut left = BTreeSet::new();
    for task in tasks {
        left.insert(task.await.unwrap().unwrap());
    }
    assert!(left.into_iter().eq(1..=100), "each is another one");
    assert_eq!(lockers[1].latch(&*key).count_down().await.unwrap(), 0);
}

#[tokio::test]
async fn counts_are_exact_as_far_as_redis_counts() {
    let (server, key) = (Server::start(), key());
    let latch = locker(&server).await.latch(&*key);
    let most = i64::MAX.cast_unsigned();
    for count in [0, most + 1, u64::MAX] {
        let refused = latch.try_set(count).await;
        assert!(matches!(refused, Err(Error::Config(_))), "{refused:?}");
        let says = refused.unwrap_err().to_string();
        assert!(says.contains(&format!("the count is {count}:")), "{says}");
    }
    assert!(!server.exists(&key));
    assert!(latch.try_set(most).await.unwrap());
    assert_eq!(latch.count().await.unwrap(), most);
    assert_eq!(latch.count_down().await.unwrap(), most - 1);
}

#[tokio::test]
async fn names_and_lockers_that_cannot_have_latches_are_refused() {
    let (servers, key) = (crate::common::several::servers(3), key());
    let locks = locker(&servers[0]).await;
    let plain = Locker::builder()
        .node(servers[0].url())
        .format(Format::Plain);
    let plain = plain.connect().await.unwrap();
    let several = crate::common::several::over(&servers, LONG);
    let several = several.connect().await.unwrap();
    for (latch, reason) in [
        (locks.latch(""), "empty"),
        (plain.latch(&*key), "Format::Plain"),
        (several.latch(&*key), "3 independent ones"),
    ] {
        let refusals = [
            latch.try_set(1).await.err(),
            latch.count_down().await.err(),
            latch.count().await.err(),
            latch.wait().await.err(),
            latch.wait_for(SOON).await.err(),
            latch.count_down_and_wait().await.err(),
        ];
        for error in refusals {
            let error = error.expect("refused");
            assert!(matches!(error, Error::Config(_)), "{error:?}");
            assert!(error.to_string().contains(reason), "{error}");
        }
    }
}

/// Nothing is written beside it, so nothing has to be cleaned up.
#[tokio::test]
async fn a_name_that_holds_something_else_is_refused() {
    let (server, name) = (Server::start(), key());
    let locks = locker(&server).await;
    for (write, text, found) in [
        ("SADD", "no latch", "holds a set"),
        ("SET", "no latch", "is not an integer"),
        ("SET", "0x10", "is not an integer"),
        ("SET", "nan", "is not an integer"),
    ] {
        server.command::<()>(&["DEL", &name]);
        server.command::<()>(&[write, &name, text]);
        let latch = locks.latch(&*name);
        let refusals = [
            latch.try_set(1).await.err(),
            latch.count_down().await.err(),
            latch.count().await.err(),
            soon(SOON, latch.wait()).await.expect("at once").err(),
        ];
        for error in refusals {
            let error = error.expect("refused");
            let Error::Server { source, .. } = &error else {
                panic!("{error:?}");
            };
            let says = format!("{error}: {source}");
            assert!(says.contains(found), "{says}");
        }
        assert!(!server.exists(&format!("lockhound_counted:{{{name}}}")));
    }
    // A zero that somebody has written is no count.
    server.command::<()>(&["SET", &name, "0"]);
    let latch = locks.latch(&*name);
    soon(SOON, latch.wait()).await.expect("it is open").unwrap();
    assert_eq!(latch.count_down().await.unwrap(), 0);
    assert!(latch.try_set(2).await.unwrap());
    assert_eq!(latch.count().await.unwrap(), 2);
}

#[tokio::test]
async fn a_prefix_is_put_before_the_name_once() {
    let (server, key) = (Server::start(), key());
    let locks = builder(&server.url(), LONG).prefix("app:");
    let latch = locks.connect().await.unwrap().latch(&*key);
    assert_eq!(latch.key().as_str(), format!("app:{key}"));
    assert!(latch.try_set(2).await.unwrap());
    let same = locker(&server).await.latch(latch.key());
    assert_eq!(same.count().await.unwrap(), 2);
}

#[tokio::test]
async fn names_with_braces_are_latches_of_their_own() {
    let (server, name) = (Server::start(), key());
    let locks = locker_with(&server, LONG).await;
    let latches = [name.clone(), format!("{{{name}}}"), format!("a{{{name}}}b")]
        .map(|name| locks.latch(name));
    for (latch, count) in latches.iter().zip(1..) {
        assert!(latch.try_set(count).await.unwrap(), "{latch:?}");
        assert_eq!(latch.count().await.unwrap(), count);
    }
    for latch in latches {
        let waiting = crate::waits(&server, &locks, &latch).await;
        while latch.count_down().await.unwrap() > 0 {}
        crate::goes_on(waiting).await;
    }
}

/// Redisson's channel is in another slot if the name has braces.
#[tokio::test]
async fn in_a_cluster_latches_with_and_without_braces_wake_waiters() {
    let cluster = Cluster::start(3);
    let connect = || builder(&cluster.url(), LONG).connect();
    let (here, there) = (connect().await.unwrap(), connect().await.unwrap());
    let name = key();
    for (name, channel) in [
        (
            name.clone(),
            format!("redisson_countdownlatch__channel__{{{name}}}"),
        ),
        (
            format!("{{{name}}}"),
            format!("lockhound_counted:{{{name}}}"),
        ),
        (
            format!("{{{name}}}:done"),
            format!("lockhound_counted:{{{name}}}:done"),
        ),
        (
            format!("a{{b}}:{name}"),
            format!("lockhound_counted:a{{b}}:{name}"),
        ),
    ] {
        let latch = here.latch(&*name);
        assert!(latch.try_set(1).await.unwrap(), "{name}");
        let reads = || {
            cluster
                .masters()
                .iter()
                .map(|master| master.calls("get"))
                .sum::<u64>()
        };
        let numsub = if version() >= (7, 0) {
            "SHARDNUMSUB"
        } else {
            "NUMSUB"
        };
        let listens = || {
            let of = |master: &Server| {
                master
                    .command::<(String, u64)>(&["PUBSUB", numsub, &channel])
                    .1
            };
            cluster.masters().iter().map(of).sum::<u64>() == 1
        };
        let before = reads();
        let waits = there.latch(&*name);
        let waiting = tokio::spawn(async move { waits.wait().await });
        // At once, and when it is subscribed. From then on only a message wakes it.
        eventually(SOON, &channel, || listens() && reads() >= before + 2).await;
        assert_eq!(latch.count_down().await.unwrap(), 0);
        crate::goes_on(waiting).await;
    }
    let torn = here.latch(format!("{name}}}x")).try_set(1).await;
    assert!(matches!(torn, Err(Error::Config(_))), "{torn:?}");
}

/// One that stays in outages for longer is remembered for longer, whoever calls after it.
#[tokio::test]
async fn the_id_of_a_patient_caller_outlasts_those_of_others() {
    let (server, key) = (Server::start(), key());
    let hour = Duration::from_secs(3_600);
    let patient = builder(&server.url(), LONG).outage_tolerance(hour * 6);
    let patient = patient.connect().await.unwrap().latch(&*key);
    let latch = locker(&server).await.latch(&*key);
    assert!(latch.try_set(5).await.unwrap());
    patient.count_down().await.unwrap();
    latch.count_down().await.unwrap();
    let calls = format!("lockhound_counted:{{{key}}}");
    let lasts = server.command::<u64>(&["PTTL", &calls]);
    assert!(lasts > 6 * 3_600_000, "{lasts}");
    let scores: Vec<(String, u64)> = server.command(&["ZRANGE", &calls, "0", "-1", "WITHSCORES"]);
    let ends: Vec<u64> = scores.into_iter().map(|(_, end)| end).collect();
    assert!(ends[ends.len() - 1] - ends[0] > 5 * 3_600_000, "{ends:?}");
}
