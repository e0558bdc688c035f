//! What operators read in the log: names cannot forge lines, holders without a lease are named, and
//! so is the reason why a server cannot be used. The log is global to the process. Each test looks
//! for its own keys and servers in it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use common::cluster::Cluster;
use common::log::Log;
use common::sentinel::Sentinels;
use common::{Server, builder, eventually, key, locker, locker_with, ms, several};
use lockhound::{CredentialProvider, Credentials, Error, Format, HoldState, Locker, Loss, Owner};

fn log() -> &'static Log {
    static LOG: OnceLock<Log> = OnceLock::new();
    LOG.get_or_init(|| {
        log::set_logger(&Bridge).unwrap();
        log::set_max_level(log::LevelFilter::Warn);
        Log::collect_with_spans()
    })
}

/// Passes on to `tracing` what the client library logs, as the bridges of programs do.
struct Bridge;

impl log::Log for Bridge {
    fn enabled(&self, record: &log::Metadata<'_>) -> bool {
        record.target().starts_with("fred")
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            tracing::warn!(target: "fred::router", "by fred: {}", record.args());
        }
    }

    fn flush(&self) {}
}

/// Returns the lines that contain all of these words.
fn lines(words: &[&str]) -> Vec<String> {
    let text = log().text();
    text.lines()
        .filter(|line| words.iter().all(|word| line.contains(word)))
        .map(str::to_owned)
        .collect()
}

/// A label is a help for people: whoever may not write it locks as before.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_to_labels_costs_one_line_at_debug() {
    log();
    let server = Server::start();
    let user = [
        "ACL",
        "SETUSER",
        "default",
        "resetkeys",
        "~test:*",
        "~lockhound_fence:*",
        "~redisson*",
    ];
    server.command::<()>(&user);
    let locks = locker(&server).await;
    let node = format!("127.0.0.1:{}", server.port());
    let said = || lines(&["labels are off", &node]);
    for _ in 0..3 {
        let guard = locks.get(key()).lock().await.unwrap();
        assert_eq!(
            locks
                .get(guard.key())
                .holder()
                .await
                .unwrap()
                .expect("held")
                .label(),
            None
        );
        eventually(ms(10_000), "it says so", || !said().is_empty()).await;
        guard.unlock().await.unwrap();
    }
    locks.close().await;
    let said = said();
    assert!(
        said.len() == 1 && said[0].contains("DEBUG") && said[0].contains("NOPERM"),
        "{said:?}"
    );
}

/// Each costs a warning that names it, once.
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_sentinel_is_named_in_a_warning_with_the_reason() {
    log();
    let group = Sentinels::start();
    let locks = || group.builder(ms(6_000)).connect();
    let warnings = |sentinel: &Server, words: &str| {
        let node = format!("127.0.0.1:{}", sentinel.port());
        lines(&["WARN", &node, words]).len()
    };
    let [hangs, forgets, refuses] = &*group.sentinels else {
        panic!("three Sentinels")
    };
    let unnamed = "cannot name the master";
    hangs.stop();
    let first = locks().await.unwrap();
    eventually(ms(20_000), "it hangs", || warnings(hangs, unnamed) == 1).await;
    // Longer than two seconds: it has not acted for so long that it does not trust itself.
    tokio::time::sleep(ms(2_500)).await;
    hangs.go_on();
    let again = || {
        !lines(&[
            "INFO",
            &hangs.port().to_string(),
            "this Sentinel names a master again",
            "away=",
        ])
        .is_empty()
    };
    eventually(ms(20_000), "it answers", again).await;
    let tilts = || warnings(hangs, "TILT mode") > 0;
    eventually(ms(20_000), "it is in TILT mode", tilts).await;
    forgets.command::<()>(&["SENTINEL", "REMOVE", common::sentinel::NAME]);
    eventually(ms(20_000), "it forgot", || {
        warnings(forgets, "knows no master named locks") == 1
    })
    .await;
    refuses.command::<()>(&["ACL", "SETUSER", "default", "resetpass", ">other"]);
    let second = locks().await.unwrap();
    let credentials = "correct sentinelUsername or sentinelPassword (NOAUTH";
    eventually(ms(20_000), "it refuses", || {
        warnings(refuses, credentials) == 1
    })
    .await;
    for locks in [first, second] {
        locks
            .get(key())
            .lock()
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
    }
    assert!(
        lines(&["grants and renews no lock", &refuses.port().to_string()]).is_empty(),
        "a Sentinel grants none"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_does_not_forge_a_line_of_the_log() {
    log();
    let server = Server::start();
    let forged = format!("2026-01-01T00:00:00Z ERROR forged {}", key());
    let name = |first: &str| {
        format!(
            "{first}{}\r\n{forged}\u{1b}[2K\u{2028}{forged}\u{85}{forged}",
            key()
        )
    };
    let locks = locker_with(&server, ms(900)).await;
    // Granted, re-entered, waited for, released.
    let lock = locks.get(name("a"));
    let guard = lock.lock().await.unwrap();
    let nested = lock.lock().await.unwrap();
    assert!(
        locker(&server)
            .await
            .get(lock.key())
            .try_lock_for(ms(300))
            .await
            .unwrap()
            .is_none()
    );
    nested.unlock().await.unwrap();
    guard.unlock().await.unwrap();
    // Several at once, one of them held by another.
    let several = locks.multi([name("b"), name("c")]);
    let other = locks.get(several.keys()[0].clone()).owned_by(Owner::new());
    let held = other.lock().await.unwrap();
    assert!(several.try_lock_for(ms(100)).await.unwrap().is_none());
    held.unlock().await.unwrap();
    several.run(|_| async {}).await.unwrap();
    // Lost, in several ways.
    let guard = locks.get(name("d")).lock().await.unwrap();
    locks.get(guard.key()).force_unlock().await.unwrap();
    drop(guard);
    let guard = locks.get(name("e")).lock().await.unwrap();
    server.command::<()>(&["SET", guard.key().as_str(), "x"]);
    guard.lost().cancelled().await;
    assert!(guard.unlock().await.is_err());
    // A foreign holder without a lease, whose name also tries to forge a line.
    let standing = name("f");
    server.command::<()>(&["HSET", &standing, &name("g"), "1"]);
    assert!(
        locks
            .get(&standing)
            .try_lock_for(ms(400))
            .await
            .unwrap()
            .is_none()
    );
    // Renewals and releases without an answer.
    let (shaken, dropped) = (
        locks.get(name("h")).lock().await.unwrap(),
        locks.get(name("i")).lock().await.unwrap(),
    );
    server.stop();
    drop(dropped);
    shaken.lost().cancelled().await;
    server.go_on();
    drop(shaken);
    locks.close().await;

    let text = log().text();
    let shown: Vec<&str> = text.lines().filter(|line| line.contains(&forged)).collect();
    let starts = |line: &&&str| line.trim_start().starts_with(&forged);
    assert_eq!(shown.iter().find(starts), None);
    // These too end a line in some viewers and terminals.
    assert!(
        !shown
            .iter()
            .any(|line| line.contains(['\r', '\u{1b}', '\u{85}', '\u{2028}']))
    );
    for word in [
        "acquired",
        "waiting",
        "released",
        "lock lost",
        "jeopardy",
        "no lease",
        "try_lock_for",
        "keys=",
    ] {
        assert!(
            shown.iter().any(|line| line.contains(word)),
            "{word} is shown with the name"
        );
    }
}

#[tokio::test]
async fn a_waiter_names_a_holder_without_a_lease_once() {
    log();
    let server = Server::start();
    for format in [Format::Redisson, Format::Plain] {
        let locks = builder(&server.url(), ms(600))
            .format(format)
            .connect()
            .await
            .unwrap();
        let (standing, leased) = (locks.get(key()), locks.get(key()));
        let holder = "5cb1f0b5-0000-4000-8000-000000000000:7";
        for lock in [&standing, &leased] {
            match format {
                Format::Redisson => {
                    server.command::<()>(&["HSET", lock.key().as_str(), holder, "1"]);
                }
                Format::Plain => server.command::<()>(&["SET", lock.key().as_str(), holder]),
                other => panic!("{other:?}"),
            }
        }
        server.command::<()>(&["PEXPIRE", leased.key().as_str(), "60000"]);
        let waiting = [&standing, &leased].map(|lock| {
            let lock = lock.clone();
            tokio::spawn(async move { lock.lock().await.unwrap().unlock().await.unwrap() })
        });
        // A dozen re-checks.
        tokio::time::sleep(ms(1_200)).await;
        let told = lines(&[standing.key().as_str(), "WARN"]);
        assert_eq!(told.len(), 1, "{told:?}");
        for word in [holder, "force_unlock", "DEL"] {
            assert!(told[0].contains(word), "{word}: {}", told[0]);
        }
        assert!(
            lines(&[leased.key().as_str(), "WARN"]).is_empty(),
            "a lease runs out"
        );
        // The remedy that the line names works.
        for lock in [&standing, &leased] {
            assert!(lock.force_unlock().await.unwrap());
        }
        for waiting in waiting {
            waiting.await.unwrap();
        }
    }
}

/// It is not a lease of a lock: another program set it, or the server's clock was set back.
#[tokio::test]
async fn a_waiter_names_a_holder_whose_lock_lasts_for_months() {
    log();
    let server = Server::start();
    let day = 24 * 3600 * 1000_u64;
    for format in [Format::Redisson, Format::Plain] {
        let locks = builder(&server.url(), ms(600))
            .format(format)
            .connect()
            .await
            .unwrap();
        let (lasting, longest) = (locks.get(key()), locks.get(key()));
        let holder = "5cb1f0b5-0000-4000-8000-000000000000:7";
        for (lock, left) in [(&lasting, 31 * day), (&longest, 30 * day)] {
            match format {
                Format::Redisson => {
                    server.command::<()>(&["HSET", lock.key().as_str(), holder, "1"]);
                }
                Format::Plain => server.command::<()>(&["SET", lock.key().as_str(), holder]),
                other => panic!("{other:?}"),
            }
            server.command::<()>(&["PEXPIRE", lock.key().as_str(), &left.to_string()]);
        }
        for lock in [&longest, &lasting] {
            // Several re-checks.
            assert!(lock.try_lock_for(ms(500)).await.unwrap().is_none());
        }
        let told = lines(&[lasting.key().as_str(), "WARN", "exceeds every lease"]);
        assert!(
            told.len() == 1 && told[0].contains(holder) && told[0].contains("left="),
            "{told:?}"
        );
        assert!(
            lines(&[longest.key().as_str(), "WARN"]).is_empty(),
            "it may be a lease of this crate"
        );
    }
}

/// A server with a user whose password the test changes.
struct Rotating(Server);

impl Rotating {
    fn start() -> Self {
        Self(Server::start_with(&[
            "--user", "app", "on", ">old", "~*", "&*", "+@all",
        ]))
    }

    fn rotate(&self, password: &str) {
        self.0.command::<()>(&[
            "ACL",
            "SETUSER",
            "app",
            "resetpass",
            &format!(">{password}"),
        ]);
        self.0.command::<u64>(&["CLIENT", "KILL", "USER", "app"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_password_is_logged_once_and_is_the_errors_reason() {
    log();
    let server = Rotating::start();
    let port = server.0.port();
    let url = format!("redis://app:old@127.0.0.1:{port}");
    let locks = builder(&url, ms(3_000)).connect().await.unwrap();
    let guard = locks.get(key()).lock().await.unwrap();
    server.rotate("new");
    eventually(ms(2_500), "jeopardy", || {
        guard.state() == HoldState::Jeopardy
    })
    .await;
    let Error::Unavailable { nodes, .. } = locks.get(key()).try_lock().await.unwrap_err() else {
        panic!()
    };
    assert!(nodes[0].reason().contains("WRONGPASS"), "{}", nodes[0]);
    let jeopardy = lines(&[guard.key().as_str(), "WARN", "jeopardy"]);
    assert!(
        jeopardy.len() == 1 && jeopardy[0].contains("WRONGPASS"),
        "{jeopardy:?}"
    );
    guard.lost().cancelled().await;
    assert_eq!(guard.state(), HoldState::Lost(Loss::RenewalFailed));
    let name = format!("redis://app:***@127.0.0.1:{port}");
    let told = lines(&[&name, "WARN", "refuses the credentials", "WRONGPASS"]);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(lines(&[&name, "accepts the credentials again"]).is_empty());

    server.rotate("old");
    let guard = locks.get(key()).lock().await.unwrap();
    let over = || lines(&[&name, "INFO", "accepts the credentials again"]).len() == 1;
    eventually(ms(5_000), "every connection is let in", over).await;
    guard.unlock().await.unwrap();
    server.rotate("newer");
    let again = || lines(&[&name, "WARN", "refuses the credentials"]).len() == 2;
    eventually(ms(5_000), "another outage", again).await;
    assert!(!log().text().contains("app:old@"));
}

/// A provider that returns an outdated password, or fails.
#[derive(Clone)]
struct Uninformed(Arc<AtomicBool>);

impl CredentialProvider for Uninformed {
    async fn credentials(
        &self,
        _: &str,
    ) -> Result<Credentials, Box<dyn std::error::Error + Send + Sync>> {
        if self.0.load(Ordering::Relaxed) {
            Err("sealed".into())
        } else {
            Ok(Credentials::new("app", "old"))
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outdated_provider_password_is_logged_once_and_the_reason() {
    log();
    let (server, provider) = (Rotating::start(), Uninformed(Arc::default()));
    let url = server.0.url();
    let locks = builder(&url, ms(3_000))
        .credentials(provider.clone())
        .connect()
        .await
        .unwrap();
    let guard = locks.get(key()).lock().await.unwrap();
    server.rotate("new");
    guard.lost().cancelled().await;
    let Error::Unavailable { nodes, .. } = locks.get(key()).try_lock().await.unwrap_err() else {
        panic!()
    };
    assert!(nodes[0].reason().contains("WRONGPASS"), "{}", nodes[0]);
    let told = lines(&[
        &url,
        "WARN",
        "refuses the credentials that their provider gives",
        "WRONGPASS",
    ]);
    assert_eq!(told.len(), 1, "{told:?}");
    server.rotate("old");
    let guard = locks.get(key()).lock().await.unwrap();
    let over = || lines(&[&url, "INFO", "accepts the credentials again"]).len() == 1;
    eventually(ms(5_000), "every connection is let in", over).await;
    guard.unlock().await.unwrap();

    provider.0.store(true, Ordering::Relaxed);
    server.rotate("old");
    let told = || {
        lines(&[
            &url,
            "WARN",
            "there are no credentials for this server",
            "sealed",
        ])
        .len()
            == 1
    };
    eventually(ms(5_000), "it is told", told).await;
    let start = Instant::now();
    loop {
        let error = locks.get(key()).try_lock().await.unwrap_err().to_string();
        if error.contains("the provider of credentials failed: sealed") {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{error}");
    }
    provider.0.store(false, Ordering::Relaxed);
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
async fn a_missing_right_is_logged_once_per_connection() {
    log();
    let server = Server::start_with(&[
        "--user",
        "weak",
        "on",
        ">pw",
        "~app:*",
        "~lockhound*",
        "~redisson*",
        "&*",
        "+@all",
    ]);
    let name = format!("redis://weak:***@127.0.0.1:{}", server.port());
    let locks = Locker::connect(format!("redis://weak:pw@127.0.0.1:{}", server.port()))
        .await
        .unwrap();
    for n in 0..3 {
        let error = locks
            .get(format!("other:{n}"))
            .try_lock()
            .await
            .unwrap_err();
        assert!(
            error.to_string().contains(&format!(
                "use one of these keys: \"other:{n}\", \"lockhound_fence:{{"
            )),
            "{error}"
        );
        assert!(
            error
                .to_string()
                .contains(&format!("the lock \"other:{n}\"")),
            "{error}"
        );
        locks
            .get(format!("app:{n}"))
            .lock()
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
    }
    let told = lines(&[&name, "WARN", "NOPERM", "guide::operating"]);
    assert_eq!(told.len(), 1, "{told:?}");
}

#[tokio::test]
async fn a_refused_release_is_not_logged_as_a_loss() {
    log();
    let server = Server::start_with(&["--user", "app", "on", ">pw", "~*", "&*", "+@all"]);
    let locks = Locker::connect(format!("redis://app:pw@127.0.0.1:{}", server.port()))
        .await
        .unwrap();
    let guard = locks.get(key()).lock().await.unwrap();
    server.command::<()>(&["ACL", "SETUSER", "app", "-del"]);
    let shown = guard.key().to_string();
    assert!(matches!(guard.unlock().await, Err(Error::Server { .. })));
    eventually(ms(5_000), "it is told", || {
        lines(&[&shown, "WARN", "the release was refused"]).len() == 1
    })
    .await;
    assert!(lines(&[&shown, "no longer ours"]).is_empty());
    assert_eq!(locks.stats().losses.total(), 0);
    assert!(server.exists(&shown), "as the line says");

    server.command::<()>(&["ACL", "SETUSER", "app", "+del"]);
    let guard = locks.get(key()).lock().await.unwrap();
    let shown = guard.key().to_string();
    server.command::<bool>(&["DEL", &shown]);
    drop(guard);
    let told = || {
        lines(&[
            &shown,
            "WARN",
            "the lock was no longer ours when it was released",
            "no longer has it",
        ])
        .len()
            == 1
    };
    eventually(ms(5_000), "a loss is told as one", told).await;
    assert!(lines(&[&shown, "refused"]).is_empty());
}

/// Their renewals fail together, succeed again together, and then all are lost.
#[tokio::test(flavor = "multi_thread")]
async fn many_locks_do_not_flood_the_log() {
    const LOCKS: usize = 300;
    log();
    let server = Server::start();
    let locks = builder(&server.url(), ms(3_000))
        .command_timeout(ms(300))
        .connect()
        .await
        .unwrap();
    let prefix = key();
    let taking: Vec<_> = (0..LOCKS)
        .map(|number| {
            let lock = locks.get(format!("{prefix}:{number}"));
            tokio::spawn(async move { lock.lock().await.unwrap() })
        })
        .collect();
    let mut guards = Vec::new();
    for taking in taking {
        guards.push(taking.await.unwrap());
    }
    let are = |state| guards.iter().all(|guard| guard.state() == state);
    server.stop();
    eventually(ms(2_500), "all are in jeopardy", || {
        are(HoldState::Jeopardy)
    })
    .await;
    server.go_on();
    eventually(ms(2_500), "all are safe", || are(HoldState::Safe)).await;
    server.command::<()>(&["FLUSHALL"]);
    eventually(ms(5_000), "all are lost", || {
        are(HoldState::Lost(Loss::NotOwner))
    })
    .await;
    // Each is in one line at debug, so that nothing is missing, and nothing of it at warn.
    for (summary, event) in [
        (
            "renewals failed: these locks are in jeopardy",
            "one of these is in jeopardy",
        ),
        (
            "renewed again: these locks are safe",
            "one of these is safe",
        ),
        ("more locks lost", "one of these is lost"),
    ] {
        let each = || {
            lines(&[&prefix, "DEBUG", event]).len() + lines(&[&prefix, "key", "lock lost"]).len()
        };
        eventually(ms(5_000), event, || each() >= LOCKS - 20).await;
        let summaries = || lines(&[&prefix, summary, "locks="]);
        eventually(ms(5_000), summary, || !summaries().is_empty()).await;
        let summaries = summaries();
        assert!(
            summaries.iter().all(|line| !line.contains("DEBUG")),
            "{summaries:?}"
        );
    }
    // The spans of the calls are in the log of these tests only.
    let begun = lines(&[&prefix, "INFO", ": new"]).len();
    let urgent = lines(&[&prefix, "WARN"]).len() + lines(&[&prefix, "INFO"]).len() - begun;
    assert!(urgent <= LOCKS / 3, "{urgent} lines for {LOCKS} locks");
}

#[tokio::test]
async fn too_few_replicas_are_logged_by_connect_and_enough_are_not() {
    log();
    let server = Server::start();
    let _replica = server.replica();
    eventually(ms(5_000), "the replica is in step", || {
        server.has_replicas(1)
    })
    .await;
    let connect = async |count, timeout| {
        builder(&server.url(), ms(10_000))
            .replica_acks(count, timeout)
            .connect()
            .await
    };
    let told = || lines(&[&server.url(), "WARN", "too few replicas"]).len();
    connect(1, ms(900)).await.unwrap();
    assert_eq!(told(), 0);
    connect(2, ms(50)).await.unwrap();
    // Events come a moment after the call.
    eventually(ms(5_000), "it is told", || told() == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reasons_are_words_and_no_debug_output() {
    log();
    let server = Server::start();
    let locks = builder(&server.url(), ms(4_500))
        .outage_tolerance(ms(200))
        .connect()
        .await
        .unwrap();
    let lock = locks.get(key());
    let guard = lock.lock().await.unwrap();
    server.stop();
    let silent = locks.get(key()).try_lock().await.unwrap_err().to_string();
    assert!(
        silent.starts_with("the lock \"test:")
            && silent.contains("the server gave no usable answer"),
        "{silent}"
    );
    assert!(silent.contains("timed out after 450ms"), "{silent}");
    server.kill();
    let refused = |text: &str| text.contains("not connected: connection refused");
    let start = Instant::now();
    let away = loop {
        let text = locks.get(key()).lock().await.unwrap_err().to_string();
        if refused(&text) || start.elapsed() > Duration::from_secs(5) {
            break text;
        }
    };
    assert!(refused(&away) && away.contains(&server.url()), "{away}");
    eventually(ms(4_000), "a renewal fails", || {
        guard.state() != HoldState::Safe
    })
    .await;
    drop(guard);
    locks.close().await;
    let text = log().text();
    for debugged in [
        "Os {",
        "IO Error",
        "Timeout Error",
        "Authentication Error",
        "Kind(",
    ] {
        let found = text
            .lines()
            .find(|line| line.contains(debugged) && line.contains("lockhound"));
        assert_eq!(found, None, "{debugged}");
    }
}

/// Asserts that the log says once that this server is away, in these words, and once that it is
/// back.
async fn is_told_of(server: &Server, words: &str, end: impl AsyncFnOnce()) {
    let node = server.port().to_string();
    eventually(ms(20_000), "it is away", || {
        !lines(&["WARN", &node, words]).is_empty()
    })
    .await;
    assert!(lines(&["INFO", &node, "a server is back"]).is_empty());
    end().await;
    eventually(ms(20_000), "it is back", || {
        !lines(&["INFO", &node, "a server is back", "away="]).is_empty()
    })
    .await;
    assert_eq!(lines(&["WARN", &node, " away"]).len(), 1);
    assert_eq!(lines(&["INFO", &node, "a server is back"]).len(), 1);
}

/// Nobody locks meanwhile: without a word, the redundancy would be gone until the next failure.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_locker_says_once_that_one_of_three_servers_is_away() {
    log();
    let servers = several::servers(3);
    let locks = several::over(&servers, ms(2_000)).connect().await.unwrap();
    let state = |at: usize| {
        locks
            .stats()
            .nodes
            .into_iter()
            .find(|node| *node.node == *servers[at].url())
            .unwrap()
    };
    eventually(ms(20_000), "all vote", || (0..3).all(|at| state(at).votes)).await;
    let words = "a server is away: one more failure stops locking";
    // One is dead; another one, later, accepts connections and answers nothing.
    servers[1].kill();
    is_told_of(&servers[1], words, async || {
        assert!(
            !state(1).up && !state(1).votes && state(1).lasts >= ms(1_000),
            "{:?}",
            state(1)
        );
        assert_eq!(
            lines(&[words, &servers[1].port().to_string(), "voting=2 servers=3"]).len(),
            1
        );
        servers[1].restart();
    })
    .await;
    eventually(ms(20_000), "it votes again", || {
        state(1).up && state(1).votes
    })
    .await;
    servers[2].stop();
    is_told_of(&servers[2], words, async || {
        assert!(!state(2).up, "{:?}", state(2));
        servers[0].kill();
        eventually(ms(20_000), "too few", || {
            !lines(&[
                "WARN",
                &servers[0].port().to_string(),
                "too few are left to lock",
            ])
            .is_empty()
        })
        .await;
        servers[2].go_on();
    })
    .await;
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_one_server_and_each_master_that_is_away_are_named_once() {
    log();
    let server = Server::start();
    let one = builder(&server.url(), ms(2_000))
        .command_timeout(ms(400))
        .connect()
        .await
        .unwrap();
    let cluster = Cluster::start(3);
    let locks = cluster
        .builder(ms(2_000))
        .command_timeout(ms(400))
        .connect()
        .await
        .unwrap();
    assert_eq!((one.stats().nodes.len(), locks.stats().nodes.len()), (1, 3));
    server.stop();
    let master = &cluster.masters()[1];
    master.stop();
    is_told_of(
        &server,
        "the server is away: callers wait, and no lease is renewed",
        async || server.go_on(),
    )
    .await;
    let words = "a master of the cluster is away: callers wait for the locks of its slots";
    is_told_of(master, words, async || master.go_on()).await;
    eventually(ms(20_000), "all are up", || {
        locks.stats().nodes.iter().all(|node| node.up && node.votes)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_was_away_and_lost_its_slots_is_logged() {
    log();
    let cluster = Cluster::start_with(3, 1, &[]);
    let locks = cluster
        .builder(ms(2_000))
        .command_timeout(ms(300))
        .connect()
        .await
        .unwrap();
    let node = cluster.masters()[0].port().to_string();
    cluster.masters()[0].kill();
    let is_logged = |level: &str, words: &str| !lines(&[level, &node, words]).is_empty();
    eventually(ms(20_000), "it is away", || {
        is_logged("WARN", "a master of the cluster is away")
    })
    .await;
    let words = "a master that was away has no slots any more: it is not used";
    eventually(ms(60_000), "its replica has the slots", || {
        is_logged("INFO", words)
    })
    .await;
    eventually(ms(20_000), "it does not count", || {
        locks.stats().nodes.len() == 3
    })
    .await;
}

/// It has reconnected long before it would be logged: the next absence is logged, and it alone.
#[tokio::test(flavor = "multi_thread")]
async fn an_absence_that_a_reconnect_ends_is_not_logged() {
    log();
    let server = Server::start();
    let locks = builder(&server.url(), ms(30_000))
        .command_timeout(ms(3_000))
        .connect()
        .await
        .unwrap();
    for _ in 0..5 {
        server.cut_connections();
        locks
            .get(key())
            .lock()
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
    }
    server.kill();
    is_told_of(&server, "the server is away", async || server.restart()).await;
    // The client library names connections by numbers that nobody else knows.
    assert_eq!(lines(&["by fred"]), Vec::<String>::new());
}
