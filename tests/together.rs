//! Steps that share a script: each has its own answer, whatever becomes of the others.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::{Duration, Instant};

use common::{Server, builder, eventually, key, ms};
use futures_util::future::join_all;
use lockhound::{Error, Format, Owner, ServerErrorKind};

/// So many that most of them share scripts.
const MANY: usize = 200;

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
async fn one_that_is_not_permitted_spoils_no_other() {
    let server = Server::start();
    let locks = builder(&server.url(), ms(10_000)).connect().await.unwrap();
    locks.get(key()).lock().await.unwrap().unlock().await.unwrap();
    server.command::<()>(&["ACL", "SETUSER", "default", "resetkeys", "~test:*", "~lockhound_fence:*", "~redisson*"]);
    let answers = join_all((0..MANY).map(|i| {
        let name = if i % 20 == 7 { format!("forbidden:{}", key()) } else { key() };
        let lock = locks.get(name).owned_by(Owner::new());
        async move { lock.try_lock().await }
    }))
    .await;
    for (i, answer) in answers.iter().enumerate() {
        match (i % 20, answer) {
            (7, Err(Error::Server { kind: ServerErrorKind::NoPermission, .. })) | (_, Ok(Some(_))) => {}
            _ => panic!("{i}: {answer:?}"),
        }
    }
    let unlocked = join_all(answers.into_iter().flatten().flatten().map(|guard| guard.unlock())).await;
    assert!(unlocked.iter().all(Result::is_ok));
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
