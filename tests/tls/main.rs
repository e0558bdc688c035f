//! Encrypted connections: which certificates are accepted, what the errors say, and locks over
//! them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

use std::io::Write as _;
use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::tls::{Authority, HOSTS};
use common::{Server, eventually, key, ms};
use lockhound::{Error, Locker, LockerBuilder, Tls};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

const PASSWORD: &str = "S3CRET";

/// Returns the error of connecting to a server, and asserts that it shows no secret. An error that
/// does not pass by itself is returned at once, and not when `connect_timeout` is over.
async fn refusal(url: &str, tls: Tls) -> String {
    let start = Instant::now();
    let error = attempt(url, tls, ms(60_000)).await;
    assert!(
        common::machine::within(start.elapsed(), ms(5_000)),
        "{error}: {:?}",
        start.elapsed()
    );
    error
}

async fn attempt(url: &str, tls: Tls, connect_timeout: Duration) -> String {
    let (scheme, host) = url.split_once("://").unwrap();
    let url = format!("{scheme}://default:{PASSWORD}@{host}");
    let builder = Locker::builder()
        .node(&url)
        .connect_timeout(connect_timeout);
    let builder = if scheme == "rediss" {
        builder.tls(tls)
    } else {
        builder
    };
    let shown = format!("{builder:?}");
    let error = builder.connect().await.expect_err(&url);
    assert!(matches!(&error, Error::Unavailable { .. }), "{error:?}");
    let shown = format!("{shown} {error} {error:?}");
    assert!(
        !shown.contains(PASSWORD) && !shown.contains("BEGIN") && shown.contains("***"),
        "{shown}"
    );
    error.to_string()
}

fn assert_says(error: &str, words: &[&str]) {
    assert!(
        words.iter().all(|word| error.contains(word)),
        "{words:?}: {error}"
    );
}

/// Takes and releases a lock.
async fn assert_locks(builder: LockerBuilder, server: &Server) {
    let (locks, key) = (builder.connect().await.unwrap(), key());
    let guard = locks.get(&key).lock().await.unwrap();
    assert!(server.exists(&key));
    guard.unlock().await.unwrap();
    locks.close().await;
}

#[tokio::test]
async fn a_private_cas_certificate_is_accepted_for_each_of_its_names() {
    let ca = Authority::new();
    let server = ca.server();
    for host in ["127.0.0.1", "localhost"] {
        let url = server.tls_url(host);
        for url in [
            url.clone(),
            url.replace("rediss", "valkeys"),
            url.replace("rediss", "redis+tls"),
        ] {
            assert_locks(Locker::builder().node(url).tls(ca.trusted()), &server).await;
        }
    }
}

#[tokio::test]
async fn a_certificate_of_an_unknown_ca_is_refused() {
    let (ca, other) = (Authority::new(), Authority::new());
    let server = ca.server();
    let url = server.tls_url("127.0.0.1");
    let error = refusal(&url, other.trusted()).await;
    assert_says(
        &error,
        &[
            "is signed by no CA that is trusted here",
            "Tls::ca_file",
            &url[9..],
        ],
    );
    // With several CAs each is trusted.
    assert_locks(
        Locker::builder()
            .node(url)
            .tls(other.trusted().ca_file(ca.file())),
        &server,
    )
    .await;
}

const CHILD: &str = "LOCKHOUND_TEST_TLS_URL";

#[tokio::test]
async fn the_roots_of_the_system_are_the_default() {
    let ca = Authority::new();
    let server = ca.server();
    let child = |roots: &Authority| {
        let exe = std::env::current_exe().unwrap();
        let child = Command::new(exe)
            .args(["--exact", "child_connects_without_options"])
            .env(CHILD, server.tls_url("localhost"))
            .env("SSL_CERT_FILE", roots.file())
            .env_remove("SSL_CERT_DIR")
            .output()
            .unwrap();
        (
            child.status.success(),
            String::from_utf8_lossy(&child.stdout).into_owned(),
        )
    };
    let (succeeded, said) = child(&ca);
    assert!(succeeded, "{said}");
    let (succeeded, said) = child(&Authority::new());
    assert!(
        !succeeded && said.contains("is signed by no CA that is trusted here"),
        "{said}"
    );
}

/// The body of a child process whose system roots are those of the test. As an ordinary test it
/// does nothing.
#[tokio::test]
async fn child_connects_without_options() {
    let Ok(url) = std::env::var(CHILD) else {
        return;
    };
    let locks = Locker::connect(url)
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    locks
        .get(key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

#[tokio::test]
async fn a_certificate_for_another_host_is_refused_naming_its_hosts() {
    let ca = Authority::new();
    let server = ca.server_with(&ca.issue(&["other.example", "10.9.8.7"]), &[]);
    let error = refusal(&server.tls_url("localhost"), ca.trusted()).await;
    assert_says(
        &error,
        &["is not for the host of this address (it is for other.example, 10.9.8.7)"],
    );
    let error = refusal(&server.tls_url("127.0.0.1"), ca.trusted()).await;
    assert_says(&error, &["is not for the host of this address"]);
}

#[tokio::test]
async fn an_expired_or_not_yet_valid_certificate_is_refused() {
    let ca = Authority::new();
    let expired = ca.issue_with(&HOSTS, |params| {
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    });
    let server = ca.server_with(&expired, &[]);
    let error = refusal(&server.tls_url("localhost"), ca.trusted()).await;
    assert_says(&error, &["its certificate has expired", "renewed", "clock"]);
    let early = ca.issue_with(&HOSTS, |params| {
        params.not_before = rcgen::date_time_ymd(2999, 1, 1);
    });
    let server = ca.server_with(&early, &[]);
    let error = refusal(&server.tls_url("localhost"), ca.trusted()).await;
    assert_says(&error, &["its certificate is not valid yet", "clock"]);
}

#[tokio::test]
async fn a_client_certificate_is_shown_to_a_server_that_wants_one() {
    let (ca, other) = (Authority::new(), Authority::new());
    for protocols in ["TLSv1.3", "TLSv1.2"] {
        let args = ["--tls-auth-clients", "yes", "--tls-protocols", protocols];
        let server = ca.server_with(&ca.issue(&HOSTS), &args);
        let url = server.tls_url("localhost");
        // In TLS 1.3 a client sends its first command before it learns that it is refused, and may
        // see the connection closed first.
        let missing = attempt(&url, ca.trusted(), ms(1_000)).await;
        assert_says(&missing, &["client certificate", "Tls::client_files"]);
        let stranger = other.issue(&["me"]);
        let error = attempt(
            &url,
            ca.trusted()
                .client_files(stranger.certificate, stranger.key),
            ms(1_000),
        )
        .await;
        assert_says(&error, &["client certificate"]);
        let own = ca.issue(&["me"]);
        assert_locks(
            Locker::builder()
                .node(url)
                .tls(ca.trusted().client_files(own.certificate, own.key)),
            &server,
        )
        .await;
    }
}

#[tokio::test]
async fn the_error_for_a_plain_server_at_a_rediss_address_says_so() {
    let (ca, server) = (Authority::new(), Server::start());
    // Redis waits for the end of a line that never comes.
    let error = attempt(
        &server.url().replace("redis", "rediss"),
        ca.trusted(),
        ms(1_000),
    )
    .await;
    assert_says(
        &error,
        &["did not answer", "if it does not speak TLS, write redis://"],
    );
    let talkative = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = talkative.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in talkative.incoming().flatten() {
            let _: Result<_, _> = stream.write_all(b"-ERR unknown command\r\n");
            std::thread::spawn(move || std::io::copy(&mut stream, &mut std::io::sink()));
        }
    });
    let error = refusal(&format!("rediss://127.0.0.1:{port}"), ca.trusted()).await;
    assert_says(
        &error,
        &["does not speak TLS on this port", "write redis://"],
    );
}

#[tokio::test]
async fn the_error_of_a_tls_server_at_a_redis_address_suggests_rediss() {
    let server = Authority::new().server();
    let url = server.tls_url("127.0.0.1").replace("rediss", "redis");
    let error = attempt(&url, Tls::new(), ms(1_000)).await;
    assert_says(
        &error,
        &["if it wants encrypted connections, write rediss://"],
    );
}

#[tokio::test]
async fn encryption_options_without_an_encrypted_address_are_refused() {
    let ca = Authority::new();
    let error = Locker::builder()
        .node("redis://127.0.0.1:1")
        .tls(ca.trusted())
        .connect()
        .await
        .expect_err("plain");
    assert!(
        matches!(&error, Error::Config(config) if config.option() == "tls"),
        "{error:?}"
    );
    assert_says(&error.to_string(), &["write rediss:// instead of redis://"]);
    let missing = Tls::new().ca_file("/nowhere/ca.pem");
    let error = Locker::builder()
        .node("rediss://127.0.0.1:1")
        .tls(missing)
        .connect()
        .await
        .expect_err("no file");
    assert!(
        matches!(&error, Error::Config(config) if config.option() == "tls"),
        "{error:?}"
    );
    assert_says(&error.to_string(), &["/nowhere/ca.pem", "cannot be read"]);
}

#[tokio::test]
async fn a_ready_configuration_is_used_as_it_is() {
    let ca = Authority::new();
    let server = ca.server();
    let config = |ca: &Authority| {
        let mut roots = rustls::RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_file(ca.file()).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13]);
        versions
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth()
    };
    assert_locks(
        Locker::builder()
            .node(server.tls_url("localhost"))
            .tls(config(&ca)),
        &server,
    )
    .await;
    let error = refusal(
        &server.tls_url("localhost"),
        Arc::new(config(&Authority::new())).into(),
    )
    .await;
    assert_says(&error, &["is signed by no CA"]);
}

/// Returns how many connections a server has accepted since it was started.
fn connections(looking: &mut redis::Connection) -> u64 {
    let stats: String = redis::cmd("INFO").arg("stats").query(looking).unwrap();
    let line = stats
        .lines()
        .find_map(|line| line.strip_prefix("total_connections_received:"));
    line.unwrap().trim().parse().unwrap()
}

#[tokio::test]
async fn acquires_make_no_new_connections() {
    let ca = Authority::new();
    let server = ca.server();
    let mut looking = server.connection().unwrap();
    let before = connections(&mut looking);
    let locks = Locker::builder()
        .node(server.tls_url("localhost"))
        .tls(ca.trusted())
        .connect()
        .await
        .unwrap();
    let connected = connections(&mut looking);
    assert_eq!(connected - before, 3);
    for round in 0..300 {
        let lock = locks.get(format!("{}:{round}", key()));
        let guard = lock.lock().await.unwrap();
        lock.lock().await.unwrap().unlock().await.unwrap();
        guard.unlock().await.unwrap();
    }
    assert_eq!(connections(&mut looking), connected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_kept_while_its_connections_are_killed() {
    let ca = Authority::new();
    let server = ca.server();
    let builder = || common::builder(&server.tls_url("localhost"), ms(3_000)).tls(ca.trusted());
    let (locks, others) = (
        builder().connect().await.unwrap(),
        builder().connect().await.unwrap(),
    );
    let key = key();
    let guard = locks.get(&key).lock().await.unwrap();
    let waiting = tokio::spawn({
        let lock = others.get(&key);
        async move { lock.lock().await }
    });
    let start = Instant::now();
    while start.elapsed() < ms(6_000) {
        server.cut_connections();
        server.command::<u64>(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        tokio::time::sleep(ms(700)).await;
        guard.check().unwrap();
        assert!(!waiting.is_finished(), "two hold the lock");
    }
    guard.unlock().await.unwrap();
    common::soon(ms(10_000), waiting)
        .await
        .expect("in its turn")
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_back_with_a_certificate_of_another_ca_is_refused() {
    let (ca, other) = (Authority::new(), Authority::new());
    let files = ca.issue(&HOSTS);
    let server = ca.server_with(&files, &[]);
    let builder = common::builder(&server.tls_url("localhost"), ms(3_000)).tls(ca.trusted());
    let locks = builder
        .outage_tolerance(Duration::from_secs(60))
        .connect()
        .await
        .unwrap();
    let guard = locks.get(key()).lock().await.unwrap();
    server.kill();
    other.issue_into(&files, &HOSTS, |_| ());
    server.restart();
    guard.lost().cancelled().await;
    drop(guard);
    let lock = locks.get(key());
    let says = |error: &Error| {
        error
            .to_string()
            .contains("is signed by no CA that is trusted here")
    };
    let start = Instant::now();
    loop {
        match lock.try_lock().await {
            Err(error) if says(&error) => break,
            Err(error) => assert!(start.elapsed() < ms(60_000), "{error}"),
            Ok(_) => panic!("the server's certificate was accepted"),
        }
        tokio::time::sleep(ms(100)).await;
    }
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.lock().await }
    });
    server.kill();
    ca.issue_into(&files, &HOSTS, |_| ());
    server.restart();
    common::soon(ms(30_000), waiting)
        .await
        .expect("waited out")
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_three_servers_with_an_expired_certificate_is_away() {
    let ca = Authority::new();
    let files = ca.issue_with(&HOSTS, |params| {
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    });
    let servers = [ca.server_with(&files, &[]), ca.server(), ca.server()];
    let urls = servers.iter().map(|server| server.tls_url("localhost"));
    let builder = urls.fold(Locker::builder(), |builder, url| builder.node(url));
    let builder = builder
        .tls(ca.trusted())
        .lease(ms(3_000))
        .restart_quarantine(Duration::ZERO);
    let (locks, key) = (builder.connect().await.unwrap(), key());
    let guard = locks.get(&key).lock().await.unwrap();
    assert_eq!(
        servers.each_ref().map(|server| server.exists(&key)),
        [false, true, true]
    );
    guard.unlock().await.unwrap();
    // It is connected once it has a valid certificate.
    servers[0].kill();
    ca.issue_into(&files, &HOSTS, |_| ());
    servers[0].restart();
    let there = || {
        servers[0]
            .command::<String>(&["CLIENT", "LIST"])
            .contains("lockhound:commands")
    };
    eventually(ms(30_000), "connected", there).await;
}
