//! Candidates and their leadership.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::common::polls::poll_times;
use crate::common::{Server, eventually, key, locker, locker_with, soon};
use crate::{LONG, SHORT, SOON, campaigns, elected};
use lockhound::stats::LockKind;
use lockhound::{Error, Format, Locker, Loss};

#[tokio::test]
async fn one_candidate_leads_and_the_next_one_when_it_resigns() {
    let (server, key) = (Server::start(), key());
    let [here, there] = [
        locker_with(&server, LONG).await,
        locker_with(&server, LONG).await,
    ];
    let [one, two] = [here.election(&*key), there.election(&*key)];
    let first = one.campaign("one").await.unwrap();
    assert!(two.try_campaign("two").await.unwrap().is_none());
    let leader = two.leader().await.unwrap().expect("it leads");
    assert_eq!(
        (leader.value(), leader.term()),
        (Some("one"), Some(first.term()))
    );
    assert!(
        leader
            .owner()
            .starts_with(&format!("{}:{}:", here.id(), first.owner())),
        "{leader:?}"
    );
    assert!(leader.remaining().is_some_and(|left| left <= LONG));
    let waiting = campaigns(&two, "two");
    eventually(SOON, "it waits", || there.stats().waiters == 1).await;
    let term = first.term();
    first.resign().await.unwrap();
    let second = elected(waiting).await;
    assert!(second.term() > term);
    let leader = one.leader().await.unwrap().expect("it leads");
    assert_eq!(leader.value(), Some("two"));
    second.resign().await.unwrap();
    assert_eq!(one.leader().await.unwrap(), None);
}

#[tokio::test]
async fn each_campaign_of_a_task_is_a_candidate_of_its_own() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let election = locks.election(&*key);
    let leadership = election.campaign("a").await.unwrap();
    assert!(election.try_campaign("b").await.unwrap().is_none());
    assert!(locks.get(&*key).try_lock().await.unwrap().is_none());
    drop(leadership);
    let again = soon(SOON, election.campaign("b")).await.expect("free");
    again.unwrap().resign().await.unwrap();
}

#[tokio::test]
async fn who_has_the_lock_by_get_leads_without_a_value() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let election = locks.election(&*key);
    election
        .campaign("a")
        .await
        .unwrap()
        .resign()
        .await
        .unwrap();
    let guard = locks.get(&*key).lock().await.unwrap();
    let leader = election.leader().await.unwrap().expect("it leads");
    assert_eq!((leader.value(), leader.term()), (None, None));
    let owner = format!("{}:{}:", locks.id(), guard.owner());
    assert!(leader.owner().starts_with(&owner), "{leader:?}");
    assert!(election.try_campaign("b").await.unwrap().is_none());
}

#[tokio::test]
async fn a_run_campaigns_again_after_a_loss_until_it_returns() {
    let (server, key) = (Server::start(), key());
    let locks = locker_with(&server, SHORT).await;
    let election = locks.election(&*key);
    let (begun, ended) = (AtomicU32::new(0), AtomicU32::new(0));
    struct Ends<'a>(&'a AtomicU32);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let leads = election.run("a", |term| {
        let (begun, ended, server, key) = (&begun, &ended, &server, &key);
        async move {
            let _ends = Ends(ended);
            if begun.fetch_add(1, Ordering::SeqCst) == 0 {
                assert!(server.command::<bool>(&["DEL", key]));
                std::future::pending::<()>().await;
            }
            term.fence()
        }
    });
    let fence = soon(SOON, leads).await.expect("twice").unwrap();
    assert!(fence.get() > 0);
    assert_eq!(begun.into_inner(), 2);
    assert_eq!(ended.into_inner(), 2, "the first one was dropped");
    assert_eq!(election.leader().await.unwrap(), None);
}

/// The work is done, but nothing says that it was done by the leader.
#[tokio::test]
async fn a_run_whose_leadership_ends_before_it_resigns_is_lost() {
    let (server, key) = (Server::start(), key());
    let locks = locker_with(&server, LONG).await;
    let calls = AtomicU32::new(0);
    let election = locks.election(&*key);
    let leads = election.run("a", |_| {
        let (calls, server, key) = (&calls, &server, &key);
        async move {
            calls.fetch_add(1, Ordering::SeqCst);
            server.command::<bool>(&["DEL", key])
        }
    });
    let lost = leads.await;
    assert!(matches!(lost, Err(Error::Lost { .. })), "{lost:?}");
    assert_eq!(calls.into_inner(), 1);
}

#[tokio::test]
async fn a_lost_leadership_proclaims_and_resigns_nothing() {
    let (server, key) = (Server::start(), key());
    let locks = locker_with(&server, LONG).await;
    let election = locks.election(&*key);
    let leadership = election.campaign("a").await.unwrap();
    assert!(server.command::<bool>(&["DEL", &key]));
    // The first of them learns of the loss before the next renewal.
    for _ in 0..2 {
        let lost = leadership.proclaim("b").await;
        assert!(matches!(lost, Err(Error::Lost { .. })), "{lost:?}");
    }
    assert_eq!(leadership.loss(), Some(Loss::NotOwner));
    soon(SOON, leadership.lost().cancelled())
        .await
        .expect("told");
    let lost = leadership.resign().await;
    assert!(matches!(lost, Err(Error::Lost { .. })), "{lost:?}");
}

#[tokio::test]
async fn closing_ends_campaigns_leaderships_and_observers() {
    let (server, key) = (Server::start(), key());
    let locks = locker_with(&server, LONG).await;
    let election = locks.election(&*key);
    let leadership = election.campaign("a").await.unwrap();
    let waiting = campaigns(&election, "b");
    eventually(SOON, "it waits", || locks.stats().waiters == 1).await;
    let mut observer = election.observe().await.unwrap();
    assert!(observer.changed().await.unwrap().is_some());
    let reads = server.calls("type");
    let observing = tokio::spawn(async move { observer.changed().await });
    eventually(SOON, "it waits", || server.calls("type") > reads).await;
    // So that closing takes its time: it cannot release.
    server.stop();
    let closing = tokio::spawn({
        let locks = locks.clone();
        async move { locks.close().await }
    });
    let ended = soon(SOON, waiting).await.expect("at once").unwrap();
    assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
    let ended = soon(SOON, observing).await.expect("at once").unwrap();
    assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
    assert!(!closing.is_finished(), "it waits for the release");
    soon(SOON, leadership.lost().cancelled())
        .await
        .expect("lost");
    assert_eq!(leadership.loss(), Some(Loss::Closed));
    drop(leadership);
    server.go_on();
    closing.await.unwrap();
    assert!(matches!(election.leader().await, Err(Error::Closed)));
    assert!(matches!(election.observe().await, Err(Error::Closed)));
    let ended = election.run("a", |_| async {}).await;
    assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
    assert!(!server.exists(&key));
}

#[tokio::test]
async fn names_and_formats_that_cannot_be_elections_are_refused() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let plain = Locker::builder().node(server.url()).format(Format::Plain);
    let plain = plain.connect().await.unwrap();
    for (election, reason) in [
        (locks.election(""), "empty"),
        (plain.election(&*key), "Format::Plain"),
    ] {
        let refusals = [
            election.campaign("a").await.err(),
            election.try_campaign("a").await.err(),
            election.run("a", |_| async {}).await.err(),
            election.leader().await.err(),
            election.observe().await.err(),
        ];
        for error in refusals {
            let error = error.expect("refused");
            assert!(matches!(error, Error::Config(_)), "{error:?}");
            assert!(error.to_string().contains(reason), "{error}");
        }
    }
    server.command::<()>(&["SET", &key, "no lock"]);
    for refused in [
        locks.election(&*key).leader().await.err(),
        locks.election(&*key).try_campaign("a").await.err(),
    ] {
        assert!(matches!(refused, Some(Error::Server { .. })), "{refused:?}");
    }
}

#[tokio::test]
async fn campaigns_that_are_dropped_at_each_poll_leave_nothing() {
    let (server, key) = (Server::start(), key());
    let locks = locker_with(&server, LONG).await;
    let election = locks.election(&*key);
    for times in 0..6 {
        drop(poll_times(Box::pin(election.campaign("a")), times).await);
        drop(poll_times(Box::pin(election.try_campaign("a")), times).await);
        let leads = election.run("a", |_| std::future::pending::<()>());
        drop(poll_times(Box::pin(leads), times).await);
        let what = format!("dropped after {times} polls");
        eventually(SOON, &what, || !server.exists(&key)).await;
        let leadership = election.try_campaign("b").await.unwrap().expect(&what);
        let resigned = poll_times(Box::pin(leadership.resign()), times).await;
        assert!(resigned.is_none_or(|resigned| resigned.is_ok()));
        eventually(SOON, &what, || !server.exists(&key)).await;
    }
}

/// Neither the value nor a task of its leader stays.
#[tokio::test]
async fn a_value_ends_within_two_leases_of_its_leader() {
    let (server, key) = (Server::start(), key());
    let locks = locker_with(&server, SHORT).await;
    let leadership = locks.election(&*key).campaign("a").await.unwrap();
    let value = format!("lockhound_leader:{{{key}}}");
    tokio::time::sleep(SHORT * 3).await;
    leadership.check().unwrap();
    let lives = server.pttl(&value);
    assert!(lives > 0 && lives <= 2 * 1_200, "{lives}");
    leadership.resign().await.unwrap();
    eventually(SHORT * 3, "it ends", || !server.exists(&value)).await;
}

#[tokio::test]
async fn names_with_braces_have_values_of_their_own() {
    let (server, name) = (Server::start(), key());
    let locks = locker(&server).await;
    let elections = [name.clone(), format!("{{{name}}}"), format!("a{{{name}}}b")]
        .map(|name| locks.election(name));
    let mut leaderships = Vec::new();
    for (election, value) in elections.iter().zip(["plain", "braces", "inside"]) {
        leaderships.push(election.campaign(value).await.unwrap());
    }
    for (election, value) in elections.iter().zip(["plain", "braces", "inside"]) {
        let leader = election.leader().await.unwrap().expect("it leads");
        assert_eq!(leader.value(), Some(value), "{election:?}");
    }
}

#[tokio::test]
async fn a_prefix_is_put_before_the_name_once() {
    let (server, key) = (Server::start(), key());
    let locks = Locker::builder().node(server.url()).prefix("app:");
    let locks = locks.connect().await.unwrap();
    let election = locks.election(&*key);
    assert_eq!(election.key().as_str(), format!("app:{key}"));
    let _leadership = election.campaign("a").await.unwrap();
    assert!(server.exists(&format!("app:{key}")));
    let same = locks.election(election.key());
    assert!(same.try_campaign("b").await.unwrap().is_none());
    let guard = locks.get(election.key()).try_lock().await.unwrap();
    assert!(guard.is_none(), "it is the same lock");
}

fn is_sent_between_threads<T: Send>(_: &T) {}

/// They need neither tokio nor the thread on which they began.
#[test]
fn its_futures_run_on_any_executor() {
    let (server, key) = (Server::start(), key());
    let locks = Locker::builder().node(server.url()).lease(SHORT);
    let locks = locks.blocking_connect().unwrap();
    let election = locks.election(&*key);
    let leads = election.run("a", |term| async move { term.fence() });
    is_sent_between_threads(&leads);
    futures_executor::block_on(leads).unwrap();
    let observing = async {
        let mut observer = election.observe().await.unwrap();
        assert_eq!(observer.changed().await.unwrap(), None);
        let leadership = election.campaign("a").await.unwrap();
        let value = |leader: Option<lockhound::Leader>| leader?.value().map(str::to_owned);
        assert_eq!(
            value(observer.changed().await.unwrap()).as_deref(),
            Some("a")
        );
        leadership.proclaim("b").await.unwrap();
        assert_eq!(
            value(observer.changed().await.unwrap()).as_deref(),
            Some("b")
        );
        server.command::<bool>(&["DEL", &key]);
        assert_eq!(observer.changed().await.unwrap(), None, "it has looked");
    };
    is_sent_between_threads(&observing);
    let start = std::time::Instant::now();
    futures_executor::block_on(observing);
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[tokio::test]
async fn statistics_count_leaders_and_candidates_as_such() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let election = locks.election(&*key);
    let leadership = election.campaign("one").await.unwrap();
    let waiting = campaigns(&election, "two");
    let of = |kind| {
        let stats = locks.stats();
        let of = stats.by_kind.into_iter().find(|of| of.kind == kind);
        of.map_or((0, 0), |of| (of.holds, of.waiters))
    };
    eventually(SOON, "it waits", || of(LockKind::Election) == (1, 1)).await;
    assert_eq!(of(LockKind::Lock), (0, 0));
    leadership.resign().await.unwrap();
    // It was handed over, or taken anew.
    let second = elected(waiting).await;
    assert_eq!(of(LockKind::Election), (1, 0));
    // A lock of the same name comes next, and is counted as one.
    let lock = locks.get(&*key);
    let waiting = tokio::spawn(async move { lock.lock().await });
    eventually(SOON, "it waits", || of(LockKind::Lock) == (0, 1)).await;
    second.resign().await.unwrap();
    let guard = soon(SOON, waiting).await.expect("free").unwrap().unwrap();
    assert_eq!(
        (of(LockKind::Lock), of(LockKind::Election)),
        ((1, 0), (0, 0))
    );
    guard.unlock().await.unwrap();
    assert_eq!(of(LockKind::Lock), (0, 0));
    assert_eq!(of(LockKind::Election), (0, 0));
}
