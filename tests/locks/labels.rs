//! What a locker calls itself: its label in `CLIENT LIST`, on the servers, and in `holder()`.

use std::slice::from_ref;

use crate::common::labels::{PREFIX, keys_without_labels, label_of, labelled};
use crate::common::proxy::{Mode, Proxy};
use crate::common::several::{hold_as_redisson, over, servers};
use crate::common::{Server, builder, eventually, key, locker, ms, rights};
use lockhound::{Error, Format, Locker};

fn named(server: &Server, label: &str) -> lockhound::LockerBuilder {
    builder(&server.url(), ms(30_000)).label(label)
}

/// Returns the labels on a server.
fn labels(server: &Server) -> Vec<String> {
    server.command(&["KEYS", &format!("{PREFIX}*")])
}

/// Returns the label of whoever holds a lock, as this locker sees it.
async fn seen(locks: &Locker, key: &str) -> Option<String> {
    locks
        .get(key)
        .holder()
        .await
        .unwrap()
        .expect("held")
        .label()
        .map(str::to_owned)
}

#[tokio::test]
async fn holder_gives_the_label_of_another_locker() {
    let (server, key) = (Server::start(), key());
    let (one, other) = (
        named(&server, "shop at web-1").connect().await.unwrap(),
        locker(&server).await,
    );
    let guard = one.get(&key).lock().await.unwrap();
    labelled(&one, from_ref(&server)).await;
    assert_eq!(seen(&other, &key).await.as_deref(), Some("shop at web-1"));
    let holder = other.get(&key).holder().await.unwrap().expect("held");
    assert!(
        format!("{holder:?}").contains("label: \"shop at web-1\""),
        "{holder:?}"
    );
    guard.unlock().await.unwrap();
    assert!(other.get(&key).holder().await.unwrap().is_none());
}

#[tokio::test]
async fn the_default_label_ends_with_the_process_id() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let _guard = locks.get(&key).lock().await.unwrap();
    labelled(&locks, from_ref(&server)).await;
    let label = seen(&locks, &key).await.expect("a label");
    let id = std::process::id().to_string();
    assert_eq!(label.rsplit(':').next(), Some(&*id), "{label}");
    #[cfg(unix)]
    assert_eq!(
        label,
        format!(
            "{}:{id}",
            rustix::system::uname().nodename().to_str().unwrap()
        )
    );
}

#[tokio::test]
async fn connections_are_named_by_the_label_and_the_uuid() {
    let server = Server::start();
    let locks = named(&server, "shop 1 für Ü").connect().await.unwrap();
    let clients: String = server.command(&["CLIENT", "LIST"]);
    for role in ["commands", "subscriber", "renewals"] {
        let name = format!("name=lockhound:{role}:shop_1_f_r__:{} ", locks.id());
        assert!(clients.contains(&name), "{name} is not in\n{clients}");
    }
}

#[tokio::test]
async fn three_servers_have_the_label_and_any_of_them_gives_it() {
    let (servers, key) = (servers(3), key());
    let one = over(&servers, ms(30_000))
        .label("shop")
        .connect()
        .await
        .unwrap();
    let other = over(&servers, ms(30_000)).connect().await.unwrap();
    let guard = one.get(&key).lock().await.unwrap();
    labelled(&one, &servers).await;
    for server in &servers {
        assert_eq!(server.command::<String>(&["GET", &label_of(&one)]), "shop");
    }
    assert_eq!(seen(&other, &key).await.as_deref(), Some("shop"));
    // Two of them forget it, and the holder is found all the same.
    for server in &servers[..2] {
        server.command::<()>(&["DEL", &label_of(&one)]);
    }
    assert_eq!(seen(&other, &key).await.as_deref(), Some("shop"));
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn a_label_stays_for_an_hour_and_close_deletes_it() {
    let server = Server::start();
    let locks = locker(&server).await;
    locks
        .get(key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    labelled(&locks, from_ref(&server)).await;
    let left = server.pttl(&label_of(&locks));
    assert!((3_500_000..=3_600_000).contains(&left), "{left}");
    locks.close().await;
    assert_eq!(labels(&server), Vec::<String>::new());
}

#[tokio::test]
async fn a_locker_that_is_dropped_deletes_its_label() {
    let servers = servers(3);
    let locks = over(&servers, ms(30_000)).connect().await.unwrap();
    locks
        .get(key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    labelled(&locks, &servers).await;
    drop(locks);
    eventually(ms(10_000), "no label is left", || {
        servers.iter().all(|server| labels(server).is_empty())
    })
    .await;
}

#[tokio::test]
async fn a_locker_that_never_has_a_lock_writes_nothing() {
    let (server, key) = (Server::start(), key());
    let (one, other) = (locker(&server).await, locker(&server).await);
    let guard = one.get(&key).lock().await.unwrap();
    assert!(other.get(&key).try_lock().await.unwrap().is_none());
    assert!(other.get(&key).holder().await.unwrap().is_some());
    labelled(&one, from_ref(&server)).await;
    other.close().await;
    assert_eq!(labels(&server), [label_of(&one)]);
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn the_plain_format_writes_and_reads_no_label() {
    let (server, [plain, hash]) = (Server::start(), [key(), key()]);
    let locks = named(&server, "shop")
        .format(Format::Plain)
        .connect()
        .await
        .unwrap();
    let guard = locks.get(&plain).lock().await.unwrap();
    assert_eq!(seen(&locks, &plain).await, None);
    let other = locker(&server).await;
    let other_guard = other.get(&hash).lock().await.unwrap();
    labelled(&other, from_ref(&server)).await;
    assert_eq!(seen(&locks, &hash).await, None);
    assert_eq!(seen(&other, &plain).await, None);
    assert_eq!(labels(&server), [label_of(&other)]);
    guard.unlock().await.unwrap();
    other_guard.unlock().await.unwrap();
}

#[tokio::test]
async fn a_user_without_the_right_locks_and_has_no_label() {
    let server = Server::start();
    let rules = rights::of("Always")
        .into_iter()
        .chain(rights::of("One server"));
    let words: Vec<&str> = ["ACL", "SETUSER", "app", "reset", "on", ">secret"]
        .into_iter()
        .chain(rules)
        .collect();
    server.command::<()>(&words);
    let locks = Locker::connect(server.url().replace("redis://", "redis://app:secret@"))
        .await
        .unwrap();
    let other = locker(&server).await;
    let others = other.get("app:other").lock().await.unwrap();
    labelled(&other, from_ref(&server)).await;
    let refusals = || {
        let log: Vec<Vec<(String, redis::Value)>> = server.command(&["ACL", "LOG"]);
        let is_it = |entry: &&Vec<(String, redis::Value)>| {
            let is_label = |value: &redis::Value| format!("{value:?}").contains(PREFIX);
            entry
                .iter()
                .any(|(name, value)| name == "object" && is_label(value))
        };
        let count = |(name, value): &(String, redis::Value)| match value {
            redis::Value::Int(count) if name == "count" => *count,
            _ => 0,
        };
        log.iter().filter(is_it).flatten().map(count).sum::<i64>()
    };
    let guard = locks.get("app:42").lock().await.unwrap();
    eventually(ms(10_000), "it has tried", || refusals() > 0).await;
    for _ in 0..3 {
        assert_eq!(seen(&locks, "app:42").await, None);
        assert_eq!(seen(&locks, "app:other").await, None);
        assert_eq!(seen(&other, "app:42").await, None);
    }
    guard.unlock().await.unwrap();
    others.unlock().await.unwrap();
    locks.close().await;
    assert_eq!(refusals(), 1, "it tries once");
    assert_eq!(labels(&server), [label_of(&other)]);
}

/// JVMs have no label. Others may write anything under its name, of any size.
#[tokio::test]
async fn what_a_server_tells_of_a_label_can_be_shown() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    hold_as_redisson(&server, &key, 30_000);
    assert_eq!(seen(&locks, &key).await, None);
    let label = format!("{PREFIX}5cb1f0b5-0000-4000-8000-000000000000");
    let mut connection = server.connection().unwrap();
    redis::cmd("SET")
        .arg(&label)
        .arg(&b"a\n\xff\x1b[31m"[..])
        .exec(&mut connection)
        .unwrap();
    assert_eq!(
        seen(&locks, &key).await.as_deref(),
        Some("a\\n\u{fffd}\\u{1b}[31m")
    );
    server.command::<()>(&["SET", &label, &"x".repeat(10_000_000)]);
    assert_eq!(seen(&locks, &key).await.map(|label| label.len()), Some(200));
    server.command::<()>(&["DEL", &label]);
    server.command::<()>(&["LPUSH", &label, "x"]);
    assert_eq!(seen(&locks, &key).await, None);
}

#[tokio::test]
async fn a_text_that_is_no_label_is_refused_by_connect() {
    let server = Server::start();
    for (text, told) in [
        ("", "\"\""),
        ("a\nb", "\"a\\nb\""),
        (&"x".repeat(129), "129 bytes"),
    ] {
        let refused = named(&server, text).connect().await.expect_err("no label");
        let Error::Config(error) = &refused else {
            panic!("{refused}")
        };
        assert!(
            error.to_string().starts_with("label: ") && error.to_string().contains(told),
            "{error}"
        );
    }
    assert_eq!(keys_without_labels(&server), Vec::<String>::new());
}

/// The server answers nothing from the first lock on.
#[tokio::test]
async fn a_label_without_an_answer_delays_no_close() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let [bare, labelling] = [Format::Plain, Format::Redisson].map(|format| {
        let builder = builder(&proxy.url(), ms(30_000)).format(format);
        async {
            let locks = builder.connect().await.unwrap();
            locks
                .get(key())
                .lock()
                .await
                .unwrap()
                .unlock()
                .await
                .unwrap();
            locks
        }
    });
    let (bare, labelling) = (bare.await, labelling.await);
    labelled(&labelling, from_ref(&server)).await;
    proxy.set(Mode::BlackHole);
    let mut took = Vec::new();
    for locks in [bare, labelling] {
        let start = std::time::Instant::now();
        locks.close().await;
        took.push(start.elapsed());
    }
    assert!(took[1] < took[0] + ms(1_000), "{took:?}");
}
