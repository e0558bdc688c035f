//! What is asked for in the same moment travels as one script, and each caller gets an answer of its own.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::{Duration, Instant};

use common::{Server, builder, eventually, key, locker, ms};
use futures_util::future::join_all;
use lockhound::{Error, Format, Guard, Locker, Owner, ServerErrorKind};
use tokio::time::timeout;

/// So many that most of them share scripts.
const MANY: usize = 200;

type Answers = Vec<Result<Option<Guard>, Error>>;

fn names(count: usize) -> Vec<String> {
    (0..count).map(|_| key()).collect()
}

/// Tries all of these at once, so that they share scripts.
async fn try_at_once(server: &Server, locks: &Locker, names: &[String]) -> Answers {
    let before = scripts(server);
    let tries = names.iter().map(|name| locks.get(name).owned_by(Owner::new()));
    let answers = meanwhile_stopped(server, join_all(tries.map(|lock| async move { lock.try_lock().await }))).await;
    let scripts = scripts(server) - before;
    assert!(scripts < names.len() as u64 / 2, "{scripts} scripts for {} locks", names.len());
    answers
}

/// Begins while the server stands still: what is asked for has to wait for each other.
async fn meanwhile_stopped<T>(server: &Server, asking: impl Future<Output = T>) -> T {
    let mut asking = std::pin::pin!(asking);
    server.stop();
    assert!(timeout(ms(50), &mut asking).await.is_err(), "nobody answers");
    server.go_on();
    asking.await
}

/// How many scripts the server has run, or has been asked to.
fn scripts(server: &Server) -> u64 {
    server.calls("evalsha") + server.calls("eval")
}

#[tokio::test]
async fn many_locks_of_one_moment_are_few_scripts_and_each_has_its_own() {
    let server = Server::start();
    for format in [Format::Redisson, Format::Plain] {
        let locks = || Locker::builder().node(server.url()).format(format).connect();
        many_locks_of_one_moment(&server, &locks().await.unwrap(), &locks().await.unwrap()).await;
    }
}

async fn many_locks_of_one_moment(server: &Server, locks: &Locker, others: &Locker) {
    let names = names(MANY);
    let guards: Vec<_> =
        try_at_once(server, locks, &names).await.into_iter().map(|answer| answer.unwrap().unwrap()).collect();
    for (name, guard) in names.iter().zip(&guards) {
        assert_eq!(guard.key().as_str(), name);
        let owner = locks.get(name).holder().await.unwrap().unwrap().owner().into_owned();
        assert!(owner.contains(&format!(":{}", guard.owner())), "{owner}");
        let last: u64 = server.command(&["GET", &format!("lockhound_fence:{{{name}}}")]);
        assert_eq!(guard.fence().get(), last, "its own fence");
    }
    // Held by another, each of them, and told so.
    assert!(try_at_once(server, others, &names).await.into_iter().all(|answer| answer.unwrap().is_none()));
    for answer in join_all(guards.into_iter().map(Guard::unlock)).await {
        answer.unwrap();
    }
    assert!(names.iter().all(|name| !server.exists(name)));
}

#[tokio::test]
async fn acquires_and_releases_share_scripts_too() {
    let server = Server::start();
    let locks = locker(&server).await;
    let (first, second) = (names(50), names(50));
    let lock = |name: &String| {
        let lock = locks.get(name).owned_by(Owner::new());
        async move { lock.lock().await }
    };
    let held: Vec<Guard> = join_all(first.iter().map(lock)).await.into_iter().map(Result::unwrap).collect();
    let before = scripts(&server);
    let releases = join_all(held.into_iter().map(Guard::unlock));
    let both = async { tokio::join!(releases, join_all(second.iter().map(lock))) };
    let (released, acquired) = meanwhile_stopped(&server, both).await;
    assert!(released.iter().all(Result::is_ok), "{released:?}");
    assert!(first.iter().all(|name| !server.exists(name)));
    assert!(acquired.iter().all(Result::is_ok) && second.iter().all(|name| server.exists(name)));
    assert!(scripts(&server) - before < 50);
}

/// A server looks at the keys of a script before it runs it, and refuses it as a whole.
#[tokio::test]
async fn a_key_that_the_user_may_not_have_is_the_error_of_its_own_lock_alone() {
    let server = Server::start();
    let () =
        server.command(&["ACL", "SETUSER", "app", "on", ">secret", "+@all", "~test:*", "~lockhound_fence:*", "&*"]);
    let url = server.url().replace("redis://", "redis://app:secret@");
    let locks = Locker::connect(url).await.unwrap();
    let mut names = names(40);
    names[20] = "forbidden".to_owned();
    let tries = names.iter().map(|name| locks.get(name).owned_by(Owner::new()));
    let answers = meanwhile_stopped(&server, join_all(tries.map(|lock| async move { lock.try_lock().await }))).await;
    for (at, answer) in answers.into_iter().enumerate() {
        match answer {
            Err(Error::Server { kind: ServerErrorKind::NoPermission, .. }) => assert_eq!(at, 20),
            answer => assert!(at != 20 && answer.unwrap().is_some(), "{at}"),
        }
    }
}

#[tokio::test]
async fn without_memory_each_is_refused_and_nothing_is_taken() {
    let server = Server::start();
    let locks = locker(&server).await;
    let names = names(40);
    let () = server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    for answer in try_at_once(&server, &locks, &names).await {
        assert!(matches!(answer, Err(Error::Server { kind: ServerErrorKind::OutOfMemory, .. })), "{answer:?}");
    }
    assert!(names.iter().all(|name| !server.exists(name)));
    let () = server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(try_at_once(&server, &locks, &names).await.into_iter().all(|answer| answer.unwrap().is_some()));
}

#[tokio::test]
async fn by_a_replica_none_is_executed() {
    let server = Server::start();
    let master = Server::start();
    let locks = locker(&server).await;
    let names = names(40);
    let () = server.command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    for answer in try_at_once(&server, &locks, &names).await {
        let Err(Error::Unavailable { nodes, .. }) = answer else { panic!("{answer:?}") };
        assert!(nodes.iter().all(|failure| failure.to_string().contains("READONLY")), "{nodes:?}");
    }
}

#[tokio::test]
async fn what_waits_behind_a_silent_server_is_told_in_time_and_undone() {
    let server = Server::start();
    let locks = builder(&server.url(), ms(10_000)).command_timeout(ms(300)).connect().await.unwrap();
    let names = names(100);
    server.stop();
    let started = Instant::now();
    let tries = names.iter().map(|name| locks.get(name).owned_by(Owner::new()));
    let answers = join_all(tries.map(|lock| async move { lock.try_lock().await })).await;
    assert!(started.elapsed() < ms(900), "{:?}", started.elapsed());
    assert!(answers.iter().all(|answer| matches!(answer, Err(Error::Unavailable { .. }))), "{answers:?}");
    server.go_on();
    eventually(ms(5_000), "undone", || locks.stats().pending_undos == 0).await;
    assert_eq!(names.iter().filter(|name| server.exists(name)).count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_of_many_has_its_own_answer() {
    for format in [Format::Redisson, Format::Plain] {
        let server = Server::start();
        let locks = builder(&server.url(), ms(10_000)).format(format).connect().await.unwrap();
        let other = builder(&server.url(), ms(10_000)).format(format).connect().await.unwrap();
        let names: Vec<_> = (0..MANY).map(|_| key()).collect();
        let mut held = Vec::new();
        for (i, name) in names.iter().enumerate() {
            match i % 4 {
                1 => server.command(&["RPUSH", name, "x"]),
                2 => held.push(other.get(name).owned_by(Owner::new()).lock().await.unwrap()),
                _ => {}
            }
        }
        let before = server.calls("evalsha");
        let answers = join_all(names.iter().map(|name| {
            let lock = locks.get(name).owned_by(Owner::new());
            async move { lock.try_lock().await }
        }))
        .await;
        let scripts = server.calls("evalsha") - before;
        assert!(scripts < MANY as u64 / 3, "{scripts}");
        let mut guards = Vec::new();
        for (i, answer) in answers.into_iter().enumerate() {
            match (i % 4, answer) {
                (0 | 3, Ok(Some(guard))) => guards.push((i, guard)),
                (1, Err(Error::Server { kind: ServerErrorKind::WrongType, .. })) | (2, Ok(None)) => {}
                (1, Ok(None)) if format == Format::Plain => {}
                (_, answer) => panic!("{i}: {answer:?}"),
            }
        }
        for (i, _) in guards.iter() {
            assert!(server.exists(&names[*i]));
        }
        // A third of what is released is not there any more, and another is not a lock.
        for (i, _) in guards.iter() {
            match i % 12 {
                0 => server.command(&["DEL", &names[*i]]),
                3 => {
                    server.command::<()>(&["DEL", &names[*i]]);
                    server.command::<()>(&["RPUSH", &names[*i], "x"]);
                }
                _ => {}
            }
        }
        let before = server.calls("evalsha");
        let answers = join_all(guards.into_iter().map(|(i, guard)| async move { (i, guard.unlock().await) })).await;
        let scripts = server.calls("evalsha") - before;
        assert!(scripts < MANY as u64 / 6, "{scripts}");
        for (i, answer) in answers {
            match (i % 12, &answer) {
                (0, Err(Error::Lost(_))) | (4.., Ok(())) => {}
                (3, Err(Error::Lost(_) | Error::Server { kind: ServerErrorKind::WrongType, .. })) => {}
                _ => panic!("{i}: {answer:?}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_of_several_slots_share_no_script() {
    let server = Server::start_with(&["--cluster-enabled", "yes", "--cluster-port", "0"]);
    server.command::<()>(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    eventually(ms(5_000), "all slots", || server.command::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok"))
        .await;
    let locks = builder(&server.url(), ms(10_000)).connect().await.unwrap();
    let answers = join_all((0..MANY).map(|_| {
        let lock = locks.get(key()).owned_by(Owner::new());
        async move { lock.lock().await?.unlock().await }
    }))
    .await;
    let failed: Vec<_> = answers.iter().filter(|answer| answer.is_err()).collect();
    assert!(failed.is_empty(), "{} of {MANY}: {:?}", failed.len(), failed[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_later_waits_for_the_connection_as_long_as_who_came_first() {
    let server = Server::start();
    let locks = builder(&server.url(), ms(10_000)).command_timeout(ms(1_000)).connect().await.unwrap();
    locks.get(key()).lock().await.unwrap().unlock().await.unwrap();
    server.kill();
    // The loss of the connection is noticed.
    assert!(locks.get(key()).owned_by(Owner::new()).try_lock().await.is_err());
    let asked = (0..20).map(|i| {
        let lock = locks.get(key()).owned_by(Owner::new());
        async move {
            tokio::time::sleep(ms(40) * i).await;
            let since = Instant::now();
            assert!(matches!(lock.try_lock().await, Err(Error::Unavailable { .. })));
            since.elapsed()
        }
    });
    let waited: Vec<Duration> = join_all(asked).await;
    // One that was handed over before the loss was noticed may take a command timeout.
    assert!(waited.iter().all(|waited| (ms(490)..ms(1_300)).contains(waited)), "{waited:?}");
}
