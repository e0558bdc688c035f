//! What is asked for in the same moment travels as one script, and each caller gets an answer of its own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Server, builder, key, locker, ms};
use futures_util::future::join_all;
use lockhound::{Error, Format, Guard, Locker, Owner, ServerErrorKind};
use tokio::time::timeout;

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
    let names = names(200);
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

#[tokio::test]
async fn a_key_of_another_type_is_the_error_of_its_own_lock_alone() {
    let server = Server::start();
    let locks = locker(&server).await;
    let names = names(40);
    let () = server.command(&["SET", &names[20], "not a lock"]);
    for (at, answer) in try_at_once(&server, &locks, &names).await.into_iter().enumerate() {
        match answer {
            Err(Error::Server { kind: ServerErrorKind::WrongType, .. }) => assert_eq!(at, 20),
            answer => assert!(at != 20 && answer.unwrap().is_some(), "{at}"),
        }
    }
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
    let started = std::time::Instant::now();
    let tries = names.iter().map(|name| locks.get(name).owned_by(Owner::new()));
    let answers = join_all(tries.map(|lock| async move { lock.try_lock().await })).await;
    assert!(started.elapsed() < ms(900), "{:?}", started.elapsed());
    assert!(answers.iter().all(|answer| matches!(answer, Err(Error::Unavailable { .. }))), "{answers:?}");
    server.go_on();
    common::eventually(ms(5_000), "undone", || locks.stats().pending_undos == 0).await;
    assert_eq!(names.iter().filter(|name| server.exists(name)).count(), 0);
}
