//! Connecting: what is refused, with which error, and how soon.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::common::log::Log;
use crate::common::{Server, builder, key, ms};
use lockhound::{CredentialProvider, Credentials, Error, Locker, ServerErrorKind};

async fn refusal(url: &str) -> Error {
    let start = Instant::now();
    let error = Locker::builder()
        .node(url)
        .connect_timeout(ms(1_500))
        .connect()
        .await
        .expect_err(url);
    assert!(
        crate::common::machine::within(start.elapsed(), ms(2_000)),
        "{url}: {:?}",
        start.elapsed()
    );
    error
}

/// Takes and releases a lock.
async fn assert_locks(locks: &Locker) {
    crate::common::soon(ms(20_000), locks.get(key()).lock())
        .await
        .expect("in time")
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

/// Starts a server that answers every command with the same bytes, or never. Returns its address.
fn fake(answer: Option<&'static str>) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!(
        "redis://127.0.0.1:{}",
        listener.local_addr().unwrap().port()
    );
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let (mut lines, mut stream) =
                    (BufReader::new(stream.try_clone().unwrap()).lines(), stream);
                while let Some(Ok(line)) = lines.next() {
                    let Some(answer) = answer else { continue };
                    // A command is an array: its first line announces it, and the last of its words
                    // ends it.
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
    for url in [
        "http://127.0.0.1",
        "127.0.0.1:6379",
        "redis://",
        "redis://127.0.0.1/x",
        "redis://127.0.0.1:1?a=b",
        "",
    ] {
        let Error::Config(error) = refusal(url).await else {
            panic!("{url}")
        };
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
        let shown = format!(
            "{error} {error:?} {:?}",
            Locker::builder().node(url).node("redis://127.0.0.1")
        );
        assert!(
            !shown.to_uppercase().contains("S3CRET") && shown.contains("***"),
            "{shown}"
        );
    }
}

#[tokio::test]
async fn addresses_that_are_nearly_right_say_what_to_write() {
    for (url, what) in [
        (
            "Redis-Sentinel://127.0.0.1:26379/main",
            "?sentinelServiceName=name",
        ),
        (
            "valkeys+cluster://127.0.0.1",
            "is written valkeys-cluster://",
        ),
    ] {
        let error = refusal(url).await.to_string();
        assert!(error.contains(what), "{error}");
    }
}

#[tokio::test]
async fn contradicting_options_are_refused_before_anything_is_sent() {
    let error = builder("redis://127.0.0.1:1", ms(50))
        .connect()
        .await
        .expect_err("too short");
    assert!(
        matches!(&error, Error::Config(e) if e.option() == "lease"),
        "{error}"
    );
    let error = builder("redis://127.0.0.1:1", ms(900))
        .command_timeout(ms(300))
        .connect()
        .await
        .expect_err("equal");
    assert!(
        error.to_string().contains("300ms") && error.to_string().contains("900ms"),
        "{error}"
    );
}

#[tokio::test]
async fn a_missing_server_is_unavailable() {
    // A port that no connection of another test can have.
    let Error::Unavailable { nodes, .. } = refusal("redis://127.0.0.1:1").await else {
        panic!()
    };
    assert_eq!(nodes[0].node(), "redis://127.0.0.1:1");
    assert!(nodes[0].reason().contains("refused"), "{}", nodes[0]);
}

/// Starts a killed server a second later.
fn start_later(server: Server) -> std::thread::JoinHandle<Server> {
    std::thread::spawn(move || {
        std::thread::sleep(ms(1_000));
        server.restart();
        server
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_starts_a_second_later_is_waited_for() {
    let server = Server::start();
    let builder = Locker::builder()
        .node(server.url())
        .connect_timeout(ms(60_000));
    server.kill();
    let (start, starting) = (Instant::now(), start_later(server));
    let locks = builder.connect().await.unwrap();
    assert!(start.elapsed() >= ms(1_000), "{:?}", start.elapsed());
    assert_locks(&locks).await;
    drop(starting.join().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lazy_locker_returns_at_once_and_its_first_lock_waits() {
    let server = Server::start();
    let url = server.url();
    server.kill();
    let start = Instant::now();
    let locks = Locker::builder().node(&url).connect_lazy().unwrap();
    assert!(
        crate::common::machine::within(start.elapsed(), ms(500)),
        "{:?}",
        start.elapsed()
    );
    let Error::Unavailable { nodes, .. } = locks.get(key()).try_lock().await.unwrap_err() else {
        panic!()
    };
    assert!(nodes[0].reason().contains("not connected"), "{}", nodes[0]);
    let starting = start_later(server);
    assert_locks(&locks).await;
    let server = starting.join().unwrap();
    // The locker receives messages, and renews.
    let (held, other) = (
        locks.get(key()).lock().await.unwrap(),
        Locker::connect(&url).await.unwrap(),
    );
    let waiting = tokio::spawn({
        let lock = other.get(held.key());
        async move { lock.lock().await }
    });
    let channel = format!("redisson_lock__channel:{{{}}}", held.key());
    let listens = || {
        server
            .command::<(String, usize)>(&["PUBSUB", "NUMSUB", &channel])
            .1
            > 0
    };
    crate::common::eventually(ms(10_000), "it listens", listens).await;
    held.unlock().await.unwrap();
    let guard = crate::common::soon(ms(4_000), waiting)
        .await
        .expect("woken")
        .unwrap()
        .unwrap();
    let waiting = tokio::spawn({
        let lock = locks.get(guard.key());
        async move { lock.lock().await }
    });
    crate::common::they_wait(&locks, 1).await;
    crate::common::eventually(ms(10_000), "it listens", listens).await;
    guard.unlock().await.unwrap();
    crate::common::soon(ms(4_000), waiting)
        .await
        .expect("woken")
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
    locks.close().await;
}

#[tokio::test]
async fn a_prefix_stands_before_each_name_once() {
    let server = Server::start();
    let locks = Locker::builder()
        .node(server.url())
        .prefix("app:")
        .connect()
        .await
        .unwrap();
    let lock = locks.get("orders:42");
    assert_eq!(lock.key().as_str(), "app:orders:42");
    let guard = lock.lock().await.unwrap();
    assert!(server.exists("app:orders:42") && !server.exists("orders:42"));
    // A key that comes from a lock is the whole name, in this locker and in others.
    let others = Locker::builder()
        .node(server.url())
        .prefix("other:")
        .connect()
        .await
        .unwrap();
    assert!(others.get(guard.key()).try_lock().await.unwrap().is_none());
    assert!(others.get("orders:42").try_lock().await.unwrap().is_some());
    assert_eq!(
        locks.get("app:orders:42").key().as_str(),
        "app:app:orders:42",
        "a text is put behind it"
    );
    let names: Vec<_> = locks
        .multi(["a", "b"])
        .keys()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(names, ["app:a", "app:b"]);
    assert!(
        matches!(locks.get("").lock().await, Err(Error::Config(_))),
        "the name is empty"
    );
    guard.unlock().await.unwrap();
}

#[test]
fn a_lazy_locker_needs_no_runtime() {
    let server = Server::start();
    let locks = Locker::builder().node(server.url()).connect_lazy().unwrap();
    locks
        .get(key())
        .blocking_lock()
        .unwrap()
        .blocking_unlock()
        .unwrap();
    locks.blocking_close();
    let error = Locker::builder()
        .node("redis://127.0.0.1/x")
        .connect_lazy()
        .expect_err("no database");
    assert!(matches!(error, Error::Config(_)), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lazy_locker_over_several_servers_waits_for_a_majority() {
    let servers = crate::common::several::servers(3);
    servers.iter().for_each(Server::kill);
    let urls = servers.iter().map(Server::url);
    let builder = urls
        .fold(Locker::builder(), |builder, url| builder.node(url))
        .lease(ms(1_500));
    let locks = builder.outage_tolerance(ms(60_000)).connect_lazy().unwrap();
    let waiting = tokio::spawn({
        let lock = locks.get(key()).owned_by(lockhound::Owner::new());
        async move { lock.lock().await }
    });
    servers[1..].iter().for_each(Server::restart);
    // The servers have just started, and abstain for a lease.
    crate::common::soon(ms(60_000), waiting)
        .await
        .expect("in time")
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lazy_locker_sends_no_script_to_an_unsupported_server() {
    let server = Server::start_with(&["--cluster-enabled", "yes"]);
    let locks = Locker::builder()
        .node(server.url())
        .lease(ms(3_000))
        .connect_lazy()
        .unwrap();
    let start = Instant::now();
    while !locks
        .get(key())
        .try_lock()
        .await
        .unwrap_err()
        .to_string()
        .contains("cluster mode")
    {
        assert!(start.elapsed() < ms(60_000), "the error gives the reason");
    }
    // Not even a script that the server would have refused.
    let stats: String = server.command(&["INFO", "commandstats"]);
    assert!(
        stats.contains("cmdstat_hello") && !stats.contains("cmdstat_evalsha"),
        "{stats}"
    );
}

#[tokio::test]
async fn a_server_of_another_protocol_is_told_apart() {
    let web = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
    let error = refusal(&fake(Some(web))).await.to_string();
    assert!(
        error.contains("does not speak the protocol of Redis") && error.contains("port"),
        "{error}"
    );
}

#[tokio::test]
async fn a_node_without_slots_says_what_is_missing() {
    let server = Server::start_with(&["--cluster-enabled", "yes"]);
    let url = format!("redis-cluster://127.0.0.1:{}", server.port());
    let error = builder(&url, ms(9_000))
        .connect_timeout(ms(500))
        .connect()
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("no slots were given out") && error.contains("--cluster create"),
        "{error}"
    );
}

#[tokio::test]
async fn a_server_that_is_stopped_is_called_silent_and_not_away() {
    let server = Server::start();
    let locks = builder(&server.url(), ms(3_000))
        .outage_tolerance(ms(600))
        .connect()
        .await
        .unwrap();
    server.stop();
    let begun = Instant::now();
    loop {
        let error = locks.get(key()).lock().await.unwrap_err().to_string();
        assert!(!error.contains("not connected"), "{error}");
        if error.contains("silent: timed out") && error.contains("is stopped, paused or too busy") {
            break;
        }
        assert!(begun.elapsed() < ms(30_000), "{error}");
    }
    server.go_on();
}

#[tokio::test]
async fn a_server_that_never_answers_is_unavailable_by_the_timeout() {
    let Error::Unavailable { nodes, .. } = refusal(&fake(None)).await else {
        panic!()
    };
    assert!(
        nodes[0].reason().contains("1.5s") || nodes[0].reason().contains("timed out"),
        "{}",
        nodes[0]
    );
}

#[tokio::test]
async fn a_server_that_is_too_old_is_named_with_its_version() {
    let hello = "*4\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n6.0.16\r\n";
    let error = refusal(&fake(Some(hello))).await.to_string();
    assert!(error.contains("6.0.16") && error.contains("6.2"), "{error}");
    let ancient = refusal(&fake(Some("-ERR unknown command 'HELLO'\r\n")))
        .await
        .to_string();
    assert!(
        ancient.contains("5 or older") || ancient.contains("unknown command"),
        "{ancient}"
    );
}

/// Such a server has only some of the keys; the others would fail with MOVED.
#[tokio::test]
async fn a_server_in_cluster_mode_is_refused_and_named() {
    let server = Server::start_with(&["--cluster-enabled", "yes"]);
    let error = refusal(&server.url()).await;
    assert!(
        matches!(&error, Error::Config(e) if e.option() == "node"),
        "{error:?}"
    );
    let said = error.to_string();
    assert!(
        said.contains(&server.url())
            && said.contains("cluster mode")
            && said.contains("redis-cluster://"),
        "{said}"
    );
    let others = [Server::start(), Server::start()];
    let nodes = others
        .iter()
        .chain([&server])
        .fold(Locker::builder(), |nodes, server| nodes.node(server.url()));
    let error = nodes.connect().await.expect_err("one of three").to_string();
    assert!(
        error.contains(&server.url()) && error.contains("cluster mode"),
        "{error}"
    );
}

#[tokio::test]
async fn an_address_names_the_user_the_password_and_the_database() {
    let server = Server::start_with(&[
        "--requirepass",
        "s3cret",
        "--user",
        "ann",
        "on",
        ">p@ss",
        "~*",
        "&*",
        "+@all",
    ]);
    let port = server.port();
    let wrong = refusal(&format!("redis://:wrong-one@127.0.0.1:{port}")).await;
    let Error::Server { kind, source, .. } = &wrong else {
        panic!("{wrong:?}")
    };
    assert_eq!(*kind, ServerErrorKind::Auth);
    assert_eq!(source.node(), format!("redis://:***@127.0.0.1:{port}"));
    assert!(!format!("{wrong} {wrong:?}").contains("wrong-one"));
    let missing = refusal(&format!("redis://127.0.0.1:{port}")).await;
    assert!(
        matches!(
            missing,
            Error::Server {
                kind: ServerErrorKind::Auth,
                ..
            }
        ),
        "{missing:?}"
    );

    let key = key();
    let locks = Locker::connect(format!("redis://ann:p%40ss@127.0.0.1:{port}/3"))
        .await
        .unwrap();
    let guard = locks.get(&key).lock().await.unwrap();
    let client = redis::Client::open(format!("redis://:s3cret@127.0.0.1:{port}/3")).unwrap();
    let there: bool = redis::cmd("EXISTS")
        .arg(&key)
        .query(&mut client.get_connection().unwrap())
        .unwrap();
    assert!(there, "the lock is in the database that the address names");
    guard.unlock().await.unwrap();
    let outside = Locker::connect(format!("redis://:s3cret@127.0.0.1:{port}/99"))
        .await
        .expect_err("16 databases");
    assert!(
        outside.to_string().contains("DB index") && outside.to_string().contains("/99"),
        "{outside}"
    );
}

/// A provider of passwords that change.
#[derive(Default)]
struct Vault {
    password: Mutex<String>,
    trouble: Mutex<Trouble>,
    asked: Mutex<Vec<String>>,
}

#[derive(Default, Clone, Copy)]
enum Trouble {
    #[default]
    None,
    Fails,
    Panics,
    Hangs,
    Blocks,
}

impl CredentialProvider for Vault {
    async fn credentials(
        &self,
        node: &str,
    ) -> Result<Credentials, Box<dyn std::error::Error + Send + Sync>> {
        self.asked.lock().unwrap().push(node.to_owned());
        let trouble = *self.trouble.lock().unwrap();
        match trouble {
            Trouble::None => Ok(Credentials::new("app", &*self.password.lock().unwrap())),
            Trouble::Fails => Err("the vault is sealed".into()),
            Trouble::Panics => panic!("the vault is on fire"),
            Trouble::Hangs => std::future::pending().await,
            Trouble::Blocks => {
                // Until the test ends the trouble.
                while matches!(*self.trouble.lock().unwrap(), Trouble::Blocks) {
                    std::thread::sleep(ms(1));
                }
                Err("it took too long".into())
            }
        }
    }
}

impl Vault {
    fn with(password: &str) -> Arc<Self> {
        let vault = Arc::new(Self::default());
        password.clone_into(&mut vault.password.lock().unwrap());
        vault
    }

    fn is(&self, trouble: Trouble) {
        *self.trouble.lock().unwrap() = trouble;
    }

    fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

/// Starts a server with a user "app".
fn guarded(password: &str) -> Server {
    Server::start_with(&[
        "--user",
        "app",
        "on",
        &format!(">{password}"),
        "~*",
        "&*",
        "+@all",
    ])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_is_asked_for_each_connection_and_told_its_server() {
    let (server, vault) = (guarded("pw"), Vault::with("pw"));
    let locks = builder(&server.url(), ms(3_000))
        .credentials(Arc::clone(&vault))
        .connect()
        .await
        .unwrap();
    assert_eq!(
        *vault.asked.lock().unwrap(),
        [server.url(), server.url(), server.url()]
    );
    for _ in 0..20 {
        assert_locks(&locks).await;
    }
    assert_eq!(vault.asked(), 3, "connections are kept");
    let clients: String = server.command(&["CLIENT", "LIST"]);
    assert_eq!(
        clients
            .lines()
            .filter(|line| line.contains("user=app"))
            .count(),
        3,
        "{clients}"
    );
    server.command::<u64>(&["CLIENT", "KILL", "USER", "app"]);
    crate::common::eventually(ms(20_000), "asked again", || vault.asked() >= 6).await;
    assert_locks(&locks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rotating_passwords_loses_no_lock_and_stops_no_locker() {
    let (server, vault) = (guarded("0"), Vault::with("0"));
    let builder = || builder(&server.url(), ms(6_000)).credentials(Arc::clone(&vault));
    let lockers = [
        builder().connect().await.unwrap(),
        builder().connect().await.unwrap(),
    ];
    let held = lockers[0].get(key()).lock().await.unwrap();
    let (keys, ended) = ([key(), key()], Arc::new(AtomicBool::new(false)));
    let inside: Arc<[AtomicUsize; 2]> = Arc::default();
    let workers = (0..8).map(|worker| {
        let (lock, ended) = (
            lockers[worker % 2].get(&keys[worker / 2 % 2]),
            Arc::clone(&ended),
        );
        let inside = Arc::clone(&inside);
        tokio::spawn(async move {
            let (mut entered, inside) = (0, &inside[worker / 2 % 2]);
            while !ended.load(Ordering::Relaxed) {
                let guard = lock.lock().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                tokio::task::yield_now().await;
                guard.check().unwrap();
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.unlock().await.unwrap();
                entered += 1;
            }
            entered
        })
    });
    let workers: Vec<_> = workers.collect();
    let start = Instant::now();
    let mut rotations = 0;
    // Longer than the lease.
    while start.elapsed() < ms(8_000) {
        let (old, new) = (rotations.to_string(), (rotations + 1).to_string());
        server.command::<()>(&["ACL", "SETUSER", "app", &format!(">{new}")]);
        new.clone_into(&mut vault.password.lock().unwrap());
        server.command::<()>(&["ACL", "SETUSER", "app", &format!("<{old}")]);
        server.command::<u64>(&["CLIENT", "KILL", "USER", "app"]);
        rotations += 1;
        tokio::time::sleep(ms(800)).await;
        held.check().unwrap();
    }
    ended.store(true, Ordering::Relaxed);
    for worker in workers {
        let entered = crate::common::soon(ms(30_000), worker)
            .await
            .expect("it ends")
            .unwrap();
        assert!(entered > rotations, "{entered} in {rotations} rotations");
    }
    held.unlock().await.unwrap();
    assert!(rotations >= 5, "{rotations}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_in_trouble_is_named_with_reason_and_asked_again() {
    let (server, vault) = (guarded("pw"), Vault::with("pw"));
    let builder = |timeout| {
        Locker::builder()
            .node(server.url())
            .credentials(Arc::clone(&vault))
            .connect_timeout(ms(timeout))
    };
    for (trouble, says) in [
        (
            Trouble::Fails,
            "the provider of credentials failed: the vault is sealed",
        ),
        (
            Trouble::Panics,
            "the provider of credentials failed: it panicked: the vault is on fire",
        ),
        (
            Trouble::Hangs,
            "the provider of credentials did not answer within 500ms, half of connect_timeout",
        ),
        (
            Trouble::Blocks,
            "the provider of credentials did not answer within 500ms, half of connect_timeout",
        ),
    ] {
        vault.is(trouble);
        let error = builder(1_000).connect().await.expect_err(says);
        assert!(error.to_string().contains(says), "{error}");
        // The provider recovers during the connect.
        let connecting = tokio::spawn(builder(60_000).connect());
        let asked = vault.asked();
        crate::common::eventually(ms(20_000), "asked", || vault.asked() > asked).await;
        vault.is(Trouble::None);
        if !matches!(trouble, Trouble::Hangs) {
            assert_locks(
                &crate::common::soon(ms(50_000), connecting)
                    .await
                    .expect("in time")
                    .unwrap()
                    .unwrap(),
            )
            .await;
        }
    }
}

/// A provider has a thread of its own to block.
#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_blocks_delays_no_renewal_on_other_servers() {
    let (servers, vault) = (
        [guarded("pw"), guarded("pw"), guarded("pw")],
        Vault::with("pw"),
    );
    let nodes = crate::common::several::over_urls(servers.iter().map(Server::url), ms(3_000));
    let locks = nodes
        .credentials(Arc::clone(&vault))
        .connect()
        .await
        .unwrap();
    let guard = locks.get(key()).lock().await.unwrap();
    let asked = vault.asked();
    vault.is(Trouble::Blocks);
    servers[0].command::<u64>(&["CLIENT", "KILL", "USER", "app"]);
    crate::common::eventually(ms(20_000), "asked", || vault.asked() > asked).await;
    let start = Instant::now();
    while start.elapsed() < ms(5_000) {
        guard.check().unwrap();
        tokio::time::sleep(ms(50)).await;
    }
    vault.is(Trouble::None);
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn a_provider_and_a_password_are_refused_together_and_not_shown() {
    let vault = Vault::with("S3CRET");
    let builder = Locker::builder()
        .node("redis://ann:S3CRET@127.0.0.1:1")
        .credentials(vault);
    let shown = format!("{builder:?}");
    let error = builder.connect().await.expect_err("two passwords");
    assert!(
        matches!(&error, Error::Config(config) if config.option() == "credentials"),
        "{error:?}"
    );
    assert!(
        !format!("{shown} {error} {error:?}").contains("S3CRET"),
        "{shown} {error}"
    );
}

#[tokio::test]
async fn a_valkey_address_leads_to_the_same_server() {
    let server = Server::start();
    let locks = Locker::connect(server.url().replace("redis://", "valkey://"))
        .await
        .unwrap();
    assert_locks(&locks).await;
}

#[tokio::test]
async fn an_ipv6_address_stands_in_brackets() {
    if TcpListener::bind(("::1", 0)).is_err() {
        eprintln!("skipped: this machine has no IPv6 loopback");
        return;
    }
    let server = Server::start_with(&["--bind", "127.0.0.1", "::1"]);
    let key = key();
    let locks = Locker::connect(format!("redis://[::1]:{}/0", server.port()))
        .await
        .unwrap();
    let guard = locks.get(&key).lock().await.unwrap();
    assert!(server.exists(&key));
    let clients: String = server.command(&["CLIENT", "LIST"]);
    assert!(
        clients
            .lines()
            .any(|line| line.contains("addr=[::1]:") && line.contains("lockhound:commands")),
        "{clients}"
    );
    guard.unlock().await.unwrap();
}

/// A subscribed connection can send other commands only in RESP3. The commands of the other
/// connections are the same in both.
#[tokio::test]
async fn commands_are_sent_in_resp2_and_messages_heard_in_resp3() {
    let server = Server::start();
    let locks = Locker::connect(server.url()).await.unwrap();
    assert_locks(&locks).await;
    let clients: String = server.command(&["CLIENT", "LIST"]);
    if !clients.contains(" resp=") {
        eprintln!("skipped: this server is older than 7.0 and does not tell");
        return;
    }
    for (role, version) in [("commands", 2), ("renewals", 2), ("subscriber", 3)] {
        let named = format!("name=lockhound:{role}:");
        let line = clients
            .lines()
            .find(|line| line.contains(&named))
            .unwrap_or_else(|| panic!("{role}: {clients}"));
        assert!(line.contains(&format!(" resp={version}")), "{line}");
    }
}

#[cfg(feature = "unix")]
#[tokio::test]
async fn an_address_can_name_a_unix_socket() {
    let path = std::env::temp_dir().join(format!("lockhound-{}.sock", uuid::Uuid::new_v4()));
    let server = Server::start_with(&["--unixsocket", path.to_str().unwrap()]);
    let key = key();
    let locks = Locker::connect(format!("redis+unix://{}?db=0", path.display()))
        .await
        .unwrap();
    let guard = locks.get(&key).lock().await.unwrap();
    assert!(server.exists(&key));
    guard.unlock().await.unwrap();
}

/// The only test of this target that looks at the log, which is global to the process.
#[tokio::test]
async fn an_eviction_policy_is_warned_about_and_no_password_is_logged() {
    let log = Log::collect();
    let server = Server::start_with(&[
        "--maxmemory-policy",
        "allkeys-lru",
        "--requirepass",
        "t0p-secret",
    ]);
    let url = format!("redis://:t0p-secret@127.0.0.1:{}", server.port());
    let locks = Locker::connect(&url).await.unwrap();
    locks.get("k").lock().await.unwrap().unlock().await.unwrap();
    let shown = format!(
        "{:?} {:?} {:?}",
        locks,
        locks.get("k"),
        Locker::builder().node(&url).node("t0p-secret@x")
    );
    locks.close().await;
    let logged = log.text();
    let warning = logged
        .lines()
        .find(|line| line.contains("allkeys-lru"))
        .expect("a warning");
    assert!(
        warning.contains("WARN") && warning.contains("noeviction"),
        "{warning}"
    );
    assert!(
        !logged.contains("t0p-secret") && !shown.contains("t0p-secret"),
        "{shown}"
    );
    assert!(shown.contains("***"), "{shown}");
}
