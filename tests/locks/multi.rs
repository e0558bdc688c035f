//! Several locks at once: all or none, in one script if all are free, with one guard and one token
//! for all.

use std::time::{Duration, Instant};

use crate::common::labels::labelled;
use crate::common::machine::within;
use crate::common::polls::poll_times;
use crate::common::proxy::{Mode, Proxy};
use crate::common::record::{self, Record, Visit};
use crate::common::{Server, builder, eventually, key, locker, locker_with, ms, soon, they_wait};
use lockhound::{Error, Format, HoldState, Locker, Loss, MultiGuard, MultiLock, Owner};

/// Returns `N` names that no other test uses, in order.
fn names<const N: usize>() -> [String; N] {
    let common = key();
    std::array::from_fn(|n| format!("{common}:{n}"))
}

/// Counts the locked names over all servers.
fn locked(servers: &[Server], keys: &[String]) -> usize {
    servers
        .iter()
        .map(|server| keys.iter().filter(|key| server.exists(key)).count())
        .sum()
}

async fn none_is_left(servers: &[Server], keys: &[String], what: &str) {
    eventually(ms(1_500), what, || locked(servers, keys) == 0).await;
}

fn refusal(result: Result<Option<MultiGuard>, Error>) -> String {
    let Err(Error::Config(error)) = result else {
        panic!("{result:?}")
    };
    error.to_string()
}

#[tokio::test]
async fn all_or_none_are_taken() {
    let server = [Server::start()];
    let (locks, others) = (locker(&server[0]).await, locker(&server[0]).await);
    let [a, b, c] = names();
    let all = locks.multi([&c, &a, &b]);
    assert_eq!(
        all.keys()
            .iter()
            .map(|key| key.as_str())
            .collect::<Vec<_>>(),
        [&a, &b, &c]
    );
    for held in [&a, &b, &c] {
        for holders in [&locks, &others] {
            let other = holders
                .get(held)
                .owned_by(Owner::new())
                .lock()
                .await
                .unwrap();
            assert!(all.try_lock().await.unwrap().is_none());
            assert_eq!(
                locked(&server, &[a.clone(), b.clone(), c.clone()]),
                1,
                "only the other's, {held}"
            );
            other.unlock().await.unwrap();
        }
    }
    let guard = all.try_lock().await.unwrap().unwrap();
    assert_eq!(
        guard.keys().map(ToString::to_string).collect::<Vec<_>>(),
        [a.clone(), b.clone(), c.clone()]
    );
    assert_eq!((guard.state(), guard.loss()), (HoldState::Safe, None));
    assert!(
        guard.remaining() > Duration::from_secs(29),
        "{:?}",
        guard.remaining()
    );
    for held in [&a, &b, &c] {
        assert!(others.get(held).try_lock().await.unwrap().is_none());
        assert!(server[0].pttl(held) > 29_000);
    }
    assert!(others.multi([&b]).try_lock().await.unwrap().is_none());
    guard.unlock().await.unwrap();
    assert_eq!(locked(&server, &[a.clone(), b.clone(), c.clone()]), 0);
    drop(all.lock().await.unwrap());
    none_is_left(&server, &[a, b, c], "released by drop").await;
}

#[tokio::test]
async fn one_script_takes_all_of_them() {
    let server = Server::start();
    let locks = locker(&server).await;
    locks
        .multi(names::<2>())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    labelled(&locks, std::slice::from_ref(&server)).await;
    let all = locks.multi(names::<50>());
    let before = server.calls("evalsha");
    let guard = all.lock().await.unwrap();
    assert_eq!(server.calls("evalsha"), before + 1);
    guard.unlock().await.unwrap();
    let releases = server.calls("evalsha") - before - 1;
    assert!(
        (1..50).contains(&releases),
        "{releases} scripts for 50 releases of one moment"
    );
    assert_eq!(locks.stats().hold_time.count, 52);
    assert_eq!(
        (
            locks.stats().wait_time.count,
            locks.stats().attempts.total()
        ),
        (2, 2)
    );
}

#[tokio::test]
async fn empty_lists_and_repeated_names_are_refused() {
    let server = Server::start();
    let locks = locker(&server).await;
    assert!(refusal(locks.multi(Vec::<String>::new()).try_lock().await).starts_with("keys: "));
    assert!(refusal(locks.multi(["a", ""]).try_lock().await).contains("empty"));
    let twice = refusal(locks.multi(["b", "a", "b"]).try_lock().await);
    assert!(twice.contains("\"b\" is given twice"), "{twice}");
    assert!(matches!(
        locks.multi(["b", "b"]).lock().await,
        Err(Error::Config(_))
    ));
    assert!(
        refusal(
            locks
                .multi(["a"])
                .fixed_lease(ms(1))
                .try_lock_for(ms(9))
                .await
        )
        .contains("fixed_lease")
    );
}

/// Enters and leaves. Returns the visits of each lock.
async fn visits(all: MultiLock, rounds: usize) -> Vec<Visit> {
    let mut visits = Vec::new();
    for _ in 0..rounds {
        let guard = all.lock().await.unwrap();
        let entered = record::now();
        tokio::task::yield_now().await;
        guard.check().unwrap();
        let left = record::now();
        let who = format!("{:?}", tokio::task::id());
        let visit = |(key, fence): (&lockhound::Key, lockhound::Fence)| {
            let (key, who, fence) = (key.to_string(), who.clone(), fence.get());
            Visit {
                key,
                who,
                fence,
                entered,
                left,
            }
        };
        visits.extend(guard.fences().map(visit));
        guard.unlock().await.unwrap();
    }
    visits
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_in_any_order_exclude_and_never_wait_for_each_other() {
    let server = Server::start();
    let keys: [String; 3] = names();
    let lists = [
        vec![0, 1],
        vec![1, 0],
        vec![2, 1, 0],
        vec![0],
        vec![2, 0],
        vec![1],
    ];
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let locks = locker(&server).await;
        for list in &lists {
            let all = locks.multi(list.iter().map(|&n| &keys[n]));
            tasks.push(tokio::spawn(visits(all, 40)));
        }
    }
    let mut record = Record::default();
    for task in tasks {
        let visits = tokio::time::timeout(Duration::from_secs(20), task)
            .await
            .expect("no deadlock");
        record.visits.extend(visits.unwrap());
    }
    assert_eq!(record.visits.len(), 2 * 40 * 11);
    record.check().unwrap();
}

#[tokio::test]
async fn the_token_fires_when_one_is_lost_and_the_others_are_released() {
    let server = [Server::start()];
    let locks = locker_with(&server[0], ms(900)).await;
    let keys: [String; 3] = names();
    let guard = locks.multi(&keys).lock().await.unwrap();
    let (lost, same) = (guard.lost(), guard.lost());
    lost.clone().cancel();
    assert!(
        !same.is_cancelled() && guard.loss().is_none(),
        "cancelling it cancels nothing else"
    );
    server[0].command::<()>(&["DEL", &keys[1]]);
    crate::common::soon(ms(700), same.cancelled())
        .await
        .expect("told by the next renewal");
    assert_eq!(guard.state(), HoldState::Lost(Loss::NotOwner));
    assert_eq!(
        (guard.loss(), guard.remaining()),
        (Some(Loss::NotOwner), Duration::ZERO)
    );
    assert!(matches!(
        guard.check(),
        Err(Error::Lost {
            loss: Loss::NotOwner,
            ..
        })
    ));
    assert_eq!(
        locked(&server, &keys),
        2,
        "the others stay until the guard goes"
    );
    locks.get(&keys[0]).force_unlock().await.unwrap();
    assert_eq!(guard.loss(), Some(Loss::NotOwner), "the first loss counts");
    assert_eq!(locks.stats().losses.total(), 2);
    assert!(matches!(
        guard.unlock().await,
        Err(Error::Lost {
            loss: Loss::NotOwner,
            ..
        })
    ));
    assert_eq!(locked(&server, &keys), 0);
    let over = locks.multi(&keys).lock().await.unwrap();
    assert!(!over.is_lost() && !over.lost().is_cancelled());
}

#[tokio::test]
async fn a_guard_reports_a_loss_from_before_it_was_made() {
    let server = Server::start();
    let locks = locker(&server).await;
    let keys: [String; 2] = names();
    let single = locks.get(&keys[0]).lock().await.unwrap();
    let all = locks.multi(&keys).lock().await.unwrap();
    assert!(locks.get(&keys[0]).force_unlock().await.unwrap());
    assert!(single.lost().is_cancelled() && all.lost().is_cancelled());
    assert_eq!(
        (single.loss(), all.loss()),
        (Some(Loss::ForceUnlocked), Some(Loss::ForceUnlocked))
    );
    assert!(
        matches!(
            locks.multi(&keys).lock().await,
            Err(Error::Lost {
                loss: Loss::ForceUnlocked,
                ..
            })
        ),
        "a lost guard lives"
    );
    assert!(matches!(
        locks.multi(&keys).try_lock().await,
        Err(Error::Lost {
            loss: Loss::ForceUnlocked,
            ..
        })
    ));
    drop(single);
    assert!(all.unlock().await.is_err());
    locks
        .multi(&keys)
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

#[tokio::test]
async fn locks_that_the_owner_holds_are_re_entered() {
    let server = Server::start();
    let locks = locker(&server).await;
    let [a, b, c] = names();
    let single = locks.get(&b).lock().await.unwrap();
    let all = locks.multi([&a, &b, &c]);
    let outer = all.lock().await.unwrap();
    assert_eq!(single.hold_count(), 2);
    assert_eq!((server.fields(&b)[0].1, server.fields(&a)[0].1), (2, 1));
    assert_eq!(
        outer.fence(&b),
        Some(single.fence()),
        "a re-entry keeps the fence"
    );
    let (inner, tried) = (
        all.lock().await.unwrap(),
        all.try_lock().await.unwrap().unwrap(),
    );
    assert_eq!(single.hold_count(), 4);
    let nested = locks.get(&c).lock().await.unwrap();
    assert_eq!(nested.hold_count(), 4);
    tried.unlock().await.unwrap();
    inner.unlock().await.unwrap();
    outer.unlock().await.unwrap();
    assert!(!server.exists(&a) && server.exists(&b) && server.exists(&c));
    assert_eq!((single.hold_count(), nested.hold_count()), (1, 1));
    nested.unlock().await.unwrap();
    single.unlock().await.unwrap();
    // A detached guard belongs to an owner of its own.
    let away = all.lock().await.unwrap().detach();
    assert!(all.try_lock().await.unwrap().is_none());
    away.unlock().await.unwrap();
    let (left, right) = tokio::join!(all.try_lock(), all.try_lock());
    let (left, right) = (left.unwrap().unwrap(), right.unwrap().unwrap());
    assert_eq!(server.fields(&a)[0].1, 2);
    left.unlock().await.unwrap();
    right.unlock().await.unwrap();
    // Another branch got one of them meanwhile.
    let one = locks.get(&b);
    let (one, rest) = tokio::join!(one.try_lock(), all.try_lock());
    assert_eq!(one.unwrap().unwrap().hold_count(), 2);
    rest.unwrap().unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn a_waiter_is_woken_and_takes_all_of_them() {
    let server = Server::start();
    let (locks, others) = (locker(&server).await, locker(&server).await);
    let keys: [String; 3] = names();
    let (first, last) = (
        others.get(&keys[0]).lock().await.unwrap(),
        others.get(&keys[2]).lock().await.unwrap(),
    );
    let all = locks.multi(&keys);
    let waiting = tokio::spawn(async move {
        all.lock()
            .await
            .map(|guard| (Instant::now(), guard))
            .unwrap()
    });
    they_wait(&locks, 1).await;
    assert!(!server.exists(&keys[1]), "nothing is taken past the first");
    last.unlock().await.unwrap();
    tokio::time::sleep(ms(50)).await;
    assert!(!waiting.is_finished());
    let released = Instant::now();
    first.unlock().await.unwrap();
    let (entered, guard) = waiting.await.unwrap();
    assert!(
        entered - released < ms(500),
        "by a message, not by polling every five seconds"
    );
    assert!(keys.iter().all(|key| server.exists(key)));
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn waiting_ends_with_its_time_and_leaves_nothing() {
    let server = [Server::start()];
    let (locks, others) = (locker(&server[0]).await, locker(&server[0]).await);
    let keys: [String; 3] = names();
    let other = others.get(&keys[2]).lock().await.unwrap();
    for wait in [ms(1), ms(5), ms(150), ms(300)] {
        let start = Instant::now();
        match locks.multi(&keys).try_lock_for(wait).await {
            Ok(answer) => assert!(answer.is_none()),
            // Less than a round trip on a busy machine.
            Err(error) => assert!(wait < ms(10), "{error}"),
        }
        let took = start.elapsed();
        assert!(
            took >= wait && within(took, wait + ms(300)),
            "{wait:?}: {took:?}"
        );
        none_is_left(&server, &keys[..2], "given back").await;
    }
    other.unlock().await.unwrap();
    let guard = locks
        .multi(&keys)
        .try_lock_for(ms(200))
        .await
        .unwrap()
        .unwrap();
    drop(guard);
    // The remaining time is too short for an answer: the last answer counts.
    let proxy = Proxy::start(server[0].port());
    let slow = builder(&proxy.url(), Duration::from_secs(30))
        .connect()
        .await
        .unwrap();
    proxy.set(Mode::Delay(ms(200)));
    let other = others.get(&keys[2]).lock().await.unwrap();
    assert!(
        slow.multi(&keys)
            .try_lock_for(ms(350))
            .await
            .unwrap()
            .is_none()
    );
    none_is_left(&server, &keys[..2], "given back").await;
    other.unlock().await.unwrap();
    // A server that does not answer is no contention.
    server[0].stop();
    let start = Instant::now();
    let silent = locks.multi(names::<2>()).try_lock_for(ms(150)).await;
    assert!(
        matches!(silent, Err(Error::Unavailable { .. })),
        "{silent:?}"
    );
    assert!(
        crate::common::machine::within(start.elapsed(), ms(500)),
        "{:?}",
        start.elapsed()
    );
    server[0].go_on();
}

#[tokio::test]
async fn a_lease_that_ends_before_all_are_taken_begins_again() {
    let server = Server::start();
    let (locks, others) = (locker(&server).await, locker(&server).await);
    let keys: [String; 2] = names();
    let other = others.get(&keys[1]).lock().await.unwrap();
    let all = locks.multi(&keys).fixed_lease(ms(300));
    let waiting = tokio::spawn(async move { all.lock().await.unwrap() });
    tokio::time::sleep(ms(500)).await;
    other.unlock().await.unwrap();
    let guard = waiting.await.unwrap();
    guard.check().unwrap();
    assert!(guard.remaining() > ms(150), "{:?}", guard.remaining());
    assert!(keys.iter().all(|key| server.exists(key)));
    guard.lost().cancelled().await;
    assert_eq!(guard.loss(), Some(Loss::Expired));
    let limited = locks
        .multi(&keys)
        .owned_by(Owner::new())
        .max_hold(ms(200))
        .lock()
        .await
        .unwrap();
    limited.lost().cancelled().await;
    assert_eq!(limited.loss(), Some(Loss::MaxHold));
}

#[tokio::test]
async fn fences_grow_for_each_lock() {
    let server = Server::start();
    let locks = locker(&server).await;
    let [a, b, c] = std::iter::repeat_with(names::<3>)
        .find(|[a, b, c]| {
            ![a, b]
                .iter()
                .any(|key| crate::common::marks::mark(key) == crate::common::marks::mark(c))
        })
        .unwrap();
    let mut last = [0; 3];
    for _ in 0..5 {
        locks.get(&b).lock().await.unwrap().unlock().await.unwrap();
        let guard = locks.multi([&a, &b, &c]).lock().await.unwrap();
        let fences = [&a, &b, &c].map(|key| guard.fence(key).unwrap().get());
        assert!(
            fences.iter().zip(last).all(|(now, before)| *now > before),
            "{fences:?} after {last:?}"
        );
        assert_eq!(guard.fence("another"), None);
        last = fences;
        guard.unlock().await.unwrap();
        let single = locks.get(&c).lock().await.unwrap();
        assert!(single.fence().get() > last[2]);
        single.unlock().await.unwrap();
    }
    server.command::<()>(&["SET", &crate::common::marks::mark(&c), "5000000000000000"]);
    let guard = locks.multi([&a, &b, &c]).lock().await.unwrap();
    assert_eq!(
        guard.fence(&c).unwrap().get(),
        5_000_000_000_000_001,
        "each has a sequence of its own"
    );
    assert!(
        [&a, &b]
            .iter()
            .all(|key| guard.fence(key).unwrap().get() < 4_000_000_000_000_000)
    );
}

#[tokio::test]
async fn an_answer_that_is_lost_leaves_nothing() {
    let server = [Server::start()];
    let proxy = Proxy::start(server[0].port());
    let locks = builder(&proxy.url(), Duration::from_secs(6))
        .connect()
        .await
        .unwrap();
    let all = locks.multi(names::<2>());
    all.lock().await.unwrap().unlock().await.unwrap();
    let keys: [String; 3] = names();
    proxy.set(Mode::SwallowReplyTo(keys[0].clone().into_bytes()));
    let result = locks.multi(&keys).try_lock().await;
    assert!(
        matches!(result, Err(Error::Unavailable { .. })),
        "{result:?}"
    );
    assert_eq!(proxy.swallowed(), 1);
    assert!(locked(&server, &keys) > 0, "they were taken");
    proxy.set(Mode::Pass);
    none_is_left(&server, &keys, "undone").await;
    // The answer is late, not lost: a caller that gave up has none of the locks.
    proxy.set(Mode::Hold(keys[1].clone().into_bytes()));
    let held = locks.multi(&keys).try_lock_for(ms(100)).await;
    assert!(matches!(held, Err(Error::Unavailable { .. })), "{held:?}");
    proxy.set(Mode::Pass);
    none_is_left(&server, &keys, "given back").await;
    let guard = locks.multi(&keys).lock().await.unwrap();
    guard.unlock().await.unwrap();
    eventually(ms(3_000), "undone", || locks.stats().pending == 0).await;
}

/// Polls futures n times and drops them, for every n; afterwards all names have to be free, and can
/// be locked.
async fn dropped_at_every_poll(server: &[Server], url: &str) {
    let locks = builder(url, ms(3_000)).connect().await.unwrap();
    let others = locker(&server[0]).await;
    for case in [
        "lock",
        "try_lock",
        "try_lock_for",
        "unlock",
        "run",
        "nested",
        "contended",
        "half held",
    ] {
        for times in 0..60 {
            let keys: [String; 3] = names();
            let all = locks.multi(&keys).owned_by(Owner::new());
            let what = format!("{case} after {times} polls");
            let other = match case {
                "contended" | "half held" => Some(others.get(&keys[1]).lock().await.unwrap()),
                _ => None,
            };
            let one = locks.get(&keys[0]).owned_by(Owner::new());
            let future = async {
                match case {
                    "try_lock" => drop(all.try_lock().await.unwrap().unwrap()),
                    "unlock" => all.lock().await.unwrap().unlock().await.unwrap(),
                    "run" => all
                        .run(|section| async move { section.check().unwrap() })
                        .await
                        .unwrap(),
                    "nested" => drop((all.lock().await.unwrap(), all.lock().await.unwrap())),
                    "contended" => drop(all.try_lock_for(ms(60)).await.unwrap()),
                    "half held" => {
                        let _held = one.lock().await.unwrap();
                        let all = all.clone().owned_by(Owner::new());
                        drop(all.try_lock_for(ms(60)).await.unwrap());
                    }
                    _ => drop(all.try_lock_for(ms(1_000)).await.unwrap().unwrap()),
                }
            };
            let done = poll_times(Box::pin(future), times).await.is_some();
            if let Some(other) = other {
                other.check().unwrap();
                other.unlock().await.unwrap();
            }
            none_is_left(server, &keys, &what).await;
            let again = soon(ms(2_000), locks.multi(&keys).owned_by(Owner::new()).lock()).await;
            again
                .unwrap_or_else(|| panic!("{what}: they cannot be locked"))
                .unwrap()
                .unlock()
                .await
                .unwrap();
            if done {
                break;
            }
            assert!(times < 59, "{case}: not complete after 60 polls");
        }
    }
    assert_eq!((locks.stats().holds, locks.stats().waiters), (0, 0));
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn futures_dropped_at_every_poll_leave_nothing() {
    let server = [Server::start()];
    dropped_at_every_poll(&server, &server[0].url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_late_answers_dropped_futures_of_multi_leave_nothing() {
    let server = [Server::start()];
    let proxy = Proxy::start(server[0].port());
    proxy.set(Mode::Delay(ms(3)));
    dropped_at_every_poll(&server, &proxy.url()).await;
}

#[tokio::test]
async fn the_plain_format_takes_all_or_none_too() {
    let server = [Server::start()];
    let plain = || async {
        Locker::builder()
            .node(server[0].url())
            .format(Format::Plain)
            .connect()
            .await
            .unwrap()
    };
    let (locks, others) = (plain().await, plain().await);
    let keys: [String; 3] = names();
    let other = others.get(&keys[2]).lock().await.unwrap();
    assert!(locks.multi(&keys).try_lock().await.unwrap().is_none());
    assert_eq!(locked(&server, &keys), 1);
    other.unlock().await.unwrap();
    // A lock of the other format is held too.
    let hashes = locker(&server[0]).await;
    let hash = hashes.get(&keys[1]).lock().await.unwrap();
    assert!(locks.multi(&keys).try_lock().await.unwrap().is_none());
    hash.unlock().await.unwrap();
    // Its label takes a script, too.
    labelled(&hashes, &server).await;
    let before = server[0].calls("evalsha");
    let guard = locks.multi(&keys).lock().await.unwrap();
    assert_eq!(server[0].calls("evalsha"), before + 1);
    assert!(
        keys.iter()
            .all(|key| server[0].command::<String>(&["TYPE", key]) == "string")
    );
    assert!(keys.iter().all(|key| server[0].pttl(key) > 29_000));
    assert!(
        guard
            .fences()
            .all(|(key, fence)| guard.fence(key) == Some(fence))
    );
    assert!(
        others
            .multi(&keys[1..])
            .try_lock_for(ms(150))
            .await
            .unwrap()
            .is_none()
    );
    guard.unlock().await.unwrap();
    assert_eq!(locked(&server, &keys), 0);
    others
        .multi(&keys)
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

#[tokio::test]
async fn a_majority_of_three_servers_decides() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let over = || {
        let nodes = servers.iter().fold(Locker::builder(), |builder, server| {
            builder.node(server.url())
        });
        nodes
            .lease(ms(3_000))
            .restart_quarantine(Duration::ZERO)
            .connect()
    };
    let (locks, others) = (over().await.unwrap(), over().await.unwrap());
    let keys: [String; 3] = names();
    let guard = locks.multi(&keys).lock().await.unwrap();
    eventually(ms(500), "on all of them", || locked(&servers, &keys) == 9).await;
    assert!(others.multi([&keys[2]]).try_lock().await.unwrap().is_none());
    let waiter = others.multi([&keys[1], &keys[0]]);
    let waiting = tokio::spawn(async move { waiter.lock().await.unwrap() });
    let first: Vec<_> = guard.fences().map(|(_, fence)| fence).collect();
    guard.unlock().await.unwrap();
    let second = waiting.await.unwrap();
    assert!(
        second
            .fences()
            .zip(&first)
            .all(|((_, now), before)| now > *before)
    );
    second.unlock().await.unwrap();
    none_is_left(&servers, &keys, "released everywhere").await;
    // One server has forgotten a fence: the highest is written back.
    servers[0].command::<()>(&["FLUSHALL"]);
    let ahead = std::time::SystemTime::now() + Duration::from_secs(10 * 86_400);
    let ahead = ahead
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_micros()
        .to_string();
    servers[2].command::<()>(&["SET", &crate::common::marks::mark(&keys[1]), &ahead]);
    servers[1].stop();
    let third = locks.multi(&keys).lock().await.unwrap();
    assert!(
        third
            .fences()
            .zip(&first)
            .all(|((_, now), before)| now > *before)
    );
    third.check().unwrap();
    servers[1].go_on();
    let remembered = |key: &String| {
        let stored =
            |server: &Server| server.command::<u64>(&["GET", &crate::common::marks::mark(key)]);
        servers
            .iter()
            .map(stored)
            .filter(|stored| *stored >= third.fence(key).unwrap().get())
            .count()
    };
    assert!(keys.iter().all(|key| remembered(key) >= 2), "by a majority");
    // A lock whose key is gone on one server is not lost.
    servers[2].command::<()>(&["DEL", &keys[0]]);
    tokio::time::sleep(ms(1_200)).await;
    third.check().unwrap();
    servers[0].command::<()>(&["DEL", &keys[0]]);
    servers[1].command::<()>(&["DEL", &keys[0]]);
    servers[2].command::<()>(&["DEL", &keys[0]]);
    crate::common::soon(ms(1_500), third.lost().cancelled())
        .await
        .expect("gone on a majority, it is lost");
    assert!(matches!(
        third.unlock().await,
        Err(Error::Lost {
            loss: Loss::NotOwner,
            ..
        })
    ));
    none_is_left(&servers, &keys, "the others are released").await;
}

#[tokio::test]
async fn sections_run_under_all_of_them() {
    let server = [Server::start()];
    let locks = locker_with(&server[0], ms(900)).await;
    let keys: [String; 2] = names();
    let all = locks.multi(&keys);
    let name = keys[0].clone();
    let fence = all
        .run(|section| async move { section.fence(&name).unwrap() })
        .await
        .unwrap();
    assert!(fence.get() > 0);
    assert_eq!(locked(&server, &keys), 0);
    fn send<T: Send + 'static>(_: &T) {}
    let sent = all.clone();
    send(&async move { sent.run(|_| async {}).await });
    let result = all
        .run(|section| {
            server[0].command::<()>(&["DEL", &keys[1]]);
            async move {
                section.lost().cancelled().await;
                std::future::pending::<()>().await;
            }
        })
        .await;
    assert!(
        matches!(
            result,
            Err(Error::Lost {
                loss: Loss::NotOwner,
                ..
            })
        ),
        "{result:?}"
    );
    none_is_left(&server, &keys, "released").await;
}

#[test]
fn threads_without_async_code_take_several_too() {
    let server = [Server::start()];
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let locks = runtime.block_on(locker(&server[0]));
    let keys: [String; 2] = names();
    let all = locks.multi(&keys);
    let guard = all.blocking_lock().unwrap();
    assert!(format!("{guard:?}").contains(&keys[1]), "{guard:?}");
    assert!(
        all.blocking_try_lock().unwrap().is_some(),
        "this thread holds them"
    );
    let stranger = all.clone().owned_by(Owner::new());
    assert!(stranger.blocking_try_lock().unwrap().is_none());
    assert!(stranger.blocking_try_lock_for(ms(150)).unwrap().is_none());
    // Any executor will do.
    assert!(
        futures_executor::block_on(stranger.try_lock_for(ms(150)))
            .unwrap()
            .is_none()
    );
    guard.blocking_unlock().unwrap();
    futures_executor::block_on(async { stranger.lock().await.unwrap().unlock().await.unwrap() });
    assert_eq!(locked(&server, &keys), 0);
}

#[tokio::test]
async fn a_refusal_takes_none_of_them() {
    for format in [Format::Redisson, Format::Plain] {
        let server = [Server::start()];
        let redis = &server[0];
        let locks = Locker::builder()
            .node(redis.url())
            .format(format)
            .connect()
            .await
            .unwrap();
        let keys: [String; 3] = names();
        locks
            .multi(&keys)
            .lock()
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
        // The key of a fence has another type, so has that of a lock, the server is out of memory,
        // and a needed right is missing.
        let fence = crate::common::marks::mark(&keys[2]);
        redis.command::<()>(&["DEL", &fence]);
        redis.command::<()>(&["LPUSH", &fence, "x"]);
        assert!(matches!(
            locks.multi(&keys).lock().await,
            Err(Error::Server { .. })
        ));
        redis.command::<()>(&["DEL", &fence]);
        if format == Format::Redisson {
            redis.command::<()>(&["SET", &keys[2], "x"]);
            assert!(matches!(
                locks.multi(&keys).lock().await,
                Err(Error::Server { .. })
            ));
            redis.command::<()>(&["DEL", &keys[2]]);
            for forbidden in [&["-pexpire"][..], &["-pexpire", "-del"], &["-hsetnx"]] {
                redis.command::<()>(&[&["ACL", "SETUSER", "default"], forbidden].concat());
                assert!(
                    matches!(
                        locks.multi(&keys).try_lock().await,
                        Err(Error::Server { .. })
                    ),
                    "{forbidden:?}"
                );
                redis.command::<()>(&["ACL", "SETUSER", "default", "+@all"]);
                tokio::time::sleep(ms(2)).await;
                assert_eq!(
                    locked(&server, &keys),
                    0,
                    "{forbidden:?}: no lock stands without a lease"
                );
            }
        }
        redis.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
        assert!(matches!(
            locks.multi(&keys).try_lock().await,
            Err(Error::Server { .. })
        ));
        redis.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
        assert_eq!(locked(&server, &keys), 0);
        assert_eq!((locks.stats().holds, locks.stats().pending_undos), (0, 0));
        locks
            .multi(&keys)
            .lock()
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn an_outage_is_ridden_out_and_closing_ends_the_wait() {
    let server = [Server::start()];
    let locks = locker_with(&server[0], ms(1_500)).await;
    let keys: [String; 2] = names();
    server[0].stop();
    let all = locks.multi(&keys);
    let waiting = tokio::spawn(async move { all.lock().await });
    tokio::time::sleep(ms(500)).await;
    server[0].go_on();
    let guard = waiting.await.unwrap().unwrap();
    guard.check().unwrap();
    let stranger = locks.multi(&keys).owned_by(Owner::new());
    let waiting = tokio::spawn(async move { stranger.lock().await });
    they_wait(&locks, 1).await;
    let closing = locks.clone();
    let closing = tokio::spawn(async move { closing.close().await });
    assert!(matches!(waiting.await.unwrap(), Err(Error::Closed)));
    guard.lost().cancelled().await;
    assert!(matches!(
        guard.unlock().await,
        Err(Error::Lost {
            loss: Loss::Closed,
            ..
        })
    ));
    closing.await.unwrap();
    assert_eq!(locked(&server, &keys), 0);
    assert!(matches!(
        locks.multi(&keys).try_lock().await,
        Err(Error::Closed)
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn over_three_servers_callers_exclude_each_other_too() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let keys: [String; 2] = names();
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let nodes = servers.iter().fold(Locker::builder(), |builder, server| {
            builder.node(server.url())
        });
        let locks = nodes.restart_quarantine(Duration::ZERO);
        let locks = locks.connect().await.unwrap();
        for list in [vec![0, 1], vec![1, 0], vec![1]] {
            let all = locks.multi(list.iter().map(|&n| &keys[n]));
            tasks.push(tokio::spawn(visits(all, 15)));
        }
    }
    let mut record = Record::default();
    for task in tasks {
        let visits = tokio::time::timeout(Duration::from_secs(20), task)
            .await
            .expect("no deadlock");
        record.visits.extend(visits.unwrap());
    }
    record.check().unwrap();
    none_is_left(&servers, &keys, "released everywhere").await;
}
