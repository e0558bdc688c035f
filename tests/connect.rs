//! Connecting: what is refused, how clearly, and how soon.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::time::Instant;

use common::log::Log;
use common::{Server, builder, key, ms};
use lockhound::{Error, Locker, ServerErrorKind};

async fn refusal(url: &str) -> Error {
    let start = Instant::now();
    let error = Locker::builder().node(url).connect_timeout(ms(1_500)).connect().await.expect_err(url);
    assert!(common::machine::within(start.elapsed(), ms(2_000)), "{url}: {:?}", start.elapsed());
    error
}

/// A server that answers every command with the same bytes, or never.
fn fake(answer: Option<&'static str>) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("redis://127.0.0.1:{}", listener.local_addr().unwrap().port());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let (mut lines, mut stream) = (BufReader::new(stream.try_clone().unwrap()).lines(), stream);
                while let Some(Ok(line)) = lines.next() {
                    let Some(answer) = answer else { continue };
                    // A command is an array: its first line tells that one came, and the last of its words ends it.
                    if let Some(words) = line.strip_prefix('*') {
                        for _ in 0..words.parse::<usize>().unwrap() * 2 {
                            lines.next();
                        }
                        if stream.write_all(answer.as_bytes()).is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    url
}

#[tokio::test]
async fn addresses_that_cannot_be_used_are_named() {
    for url in ["http://127.0.0.1", "127.0.0.1:6379", "redis://", "redis://127.0.0.1/x", "redis://127.0.0.1:1?a=b", ""]
    {
        let Error::Config(error) = refusal(url).await else { panic!("{url}") };
        assert_eq!(error.option(), "node", "{url}: {error}");
    }
    let none = Locker::builder().connect().await.expect_err("no server");
    assert!(none.to_string().contains("no server is given"), "{none}");
}

#[tokio::test]
async fn a_password_in_the_wrong_place_of_an_address_is_not_shown() {
    for url in [
        "redis://S3CRET@127.0.0.1",
        "redis://user:S3CRET",
        "redis://127.0.0.1:S3CRET",
        "redis:///user:S3CRET",
        "redis://u@S3CRET@127.0.0.1",
        "redis://127.0.0.1?password=S3CRET",
        "REDIS://127.0.0.1/?pass=S3CRET",
        "S3CRET://127.0.0.1",
        "user:S3CRET@127.0.0.1",
        "redis+unix:///tmp/x?db=S3CRET",
    ] {
        let error = refusal(url).await;
        let shown = format!("{error} {error:?} {:?}", Locker::builder().node(url).node("redis://127.0.0.1"));
        assert!(!shown.to_uppercase().contains("S3CRET") && shown.contains("***"), "{shown}");
    }
}

#[tokio::test]
async fn addresses_of_what_is_not_supported_yet_say_so() {
    for (url, what) in [
        ("rediss://127.0.0.1", "encrypted connection"),
        ("Redis-Sentinel://127.0.0.1:26379/main", "Sentinel"),
        ("valkeys-cluster://127.0.0.1", "cluster"),
    ] {
        let error = refusal(url).await.to_string();
        assert!(error.contains(what) && error.contains("not supported yet"), "{error}");
    }
}

#[tokio::test]
async fn contradicting_options_are_refused_before_anything_is_sent() {
    let error = builder("redis://127.0.0.1:1", ms(50)).connect().await.expect_err("too short");
    assert!(matches!(&error, Error::Config(e) if e.option() == "lease"), "{error}");
    let error = builder("redis://127.0.0.1:1", ms(900)).command_timeout(ms(300)).connect().await.expect_err("equal");
    assert!(error.to_string().contains("300ms") && error.to_string().contains("900ms"), "{error}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable() {
    // No port that a connection of another test may have just now.
    let Error::Unavailable { nodes, .. } = refusal("redis://127.0.0.1:1").await else { panic!() };
    assert_eq!(nodes[0].node(), "redis://127.0.0.1:1");
    assert!(nodes[0].reason().contains("refused"), "{}", nodes[0]);
}

#[tokio::test]
async fn a_server_that_never_answers_is_unavailable_within_the_timeout() {
    let Error::Unavailable { nodes, .. } = refusal(&fake(None)).await else { panic!() };
    assert!(nodes[0].reason().contains("1.5s") || nodes[0].reason().contains("timed out"), "{}", nodes[0]);
}

#[tokio::test]
async fn a_server_that_is_too_old_is_named_with_its_version() {
    let hello = "*4\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n6.0.16\r\n";
    let error = refusal(&fake(Some(hello))).await.to_string();
    assert!(error.contains("6.0.16") && error.contains("6.2"), "{error}");
    let ancient = refusal(&fake(Some("-ERR unknown command 'HELLO'\r\n"))).await.to_string();
    assert!(ancient.contains("5 or older") || ancient.contains("unknown command"), "{ancient}");
}

/// It has some of the keys only, and each of the others would fail with MOVED.
#[tokio::test]
async fn a_server_in_cluster_mode_is_refused_and_named() {
    let server = Server::start_with(&["--cluster-enabled", "yes"]);
    let error = refusal(&server.url()).await;
    assert!(matches!(&error, Error::Config(e) if e.option() == "node"), "{error:?}");
    let said = error.to_string();
    assert!(
        said.contains(&server.url()) && said.contains("cluster mode") && said.contains("cluster-enabled no"),
        "{said}"
    );
    let others = [Server::start(), Server::start()];
    let nodes = others.iter().chain([&server]).fold(Locker::builder(), |nodes, server| nodes.node(server.url()));
    let error = nodes.connect().await.expect_err("one of three").to_string();
    assert!(error.contains(&server.url()) && error.contains("cluster mode"), "{error}");
}

#[tokio::test]
async fn users_passwords_and_databases() {
    let server = Server::start_with(&["--requirepass", "s3cret", "--user", "ann", "on", ">p@ss", "~*", "&*", "+@all"]);
    let port = server.port();
    let wrong = refusal(&format!("redis://:wrong-one@127.0.0.1:{port}")).await;
    let Error::Server { kind, source } = &wrong else { panic!("{wrong:?}") };
    assert_eq!(*kind, ServerErrorKind::Auth);
    assert_eq!(source.node(), format!("redis://:***@127.0.0.1:{port}"));
    assert!(!format!("{wrong} {wrong:?}").contains("wrong-one"));
    let missing = refusal(&format!("redis://127.0.0.1:{port}")).await;
    assert!(matches!(missing, Error::Server { kind: ServerErrorKind::Auth, .. }), "{missing:?}");

    let key = key();
    let locks = Locker::connect(format!("redis://ann:p%40ss@127.0.0.1:{port}/3")).await.unwrap();
    let guard = locks.get(&key).lock().await.unwrap();
    let client = redis::Client::open(format!("redis://:s3cret@127.0.0.1:{port}/3")).unwrap();
    let there: bool = redis::cmd("EXISTS").arg(&key).query(&mut client.get_connection().unwrap()).unwrap();
    assert!(there, "the lock is in the database that the address names");
    guard.unlock().await.unwrap();
    let outside = Locker::connect(format!("redis://:s3cret@127.0.0.1:{port}/99")).await.expect_err("16 databases");
    assert!(outside.to_string().contains("DB index") && outside.to_string().contains("/99"), "{outside}");
}

#[cfg(feature = "unix")]
#[tokio::test]
async fn a_socket_of_this_machine() {
    let path = std::env::temp_dir().join(format!("lockhound-{}.sock", lockhound::Uuid::new_v4()));
    let server = Server::start_with(&["--unixsocket", path.to_str().unwrap()]);
    let key = key();
    let locks = Locker::connect(format!("redis+unix://{}?db=0", path.display())).await.unwrap();
    let guard = locks.get(&key).lock().await.unwrap();
    assert!(server.exists(&key));
    guard.unlock().await.unwrap();
}

/// The only test of this target that looks at the log, which is the whole process's.
#[tokio::test]
async fn an_eviction_policy_is_warned_about_and_no_password_is_logged() {
    let log = Log::collect();
    let server = Server::start_with(&["--maxmemory-policy", "allkeys-lru", "--requirepass", "t0p-secret"]);
    let url = format!("redis://:t0p-secret@127.0.0.1:{}", server.port());
    let locks = Locker::connect(&url).await.unwrap();
    locks.get("k").lock().await.unwrap().unlock().await.unwrap();
    let shown = format!("{:?} {:?} {:?}", locks, locks.get("k"), Locker::builder().node(&url).node("t0p-secret@x"));
    locks.close().await;
    let logged = log.text();
    let warning = logged.lines().find(|line| line.contains("allkeys-lru")).expect("a warning");
    assert!(warning.contains("WARN") && warning.contains("noeviction"), "{warning}");
    assert!(!logged.contains("t0p-secret") && !shown.contains("t0p-secret"), "{shown}");
    assert!(shown.contains("***"), "{shown}");
}
