//! Users and passwords of any characters, on each kind of connection.

use std::fmt::Write as _;
use std::time::Duration;

use crate::common::sentinel::{NAME, Sentinels};
use crate::common::{Server, eventually, key, ms};
use futures_util::future::join_all;
use lockhound::{CredentialProvider, Credentials, Error, Locker, LockerBuilder};

/// How many lockers connect at the same time.
const AT_ONCE: usize = 16;

/// The bytes that no UTF-8 text has. NUL is the one other byte that is not tried: no user may have
/// it.
const IN_NO_TEXT: [u8; 13] = [
    0xc0, 0xc1, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa, 0xfb, 0xfc, 0xfd, 0xfe, 0xff,
];

#[derive(Clone)]
struct Login {
    user: String,
    password: String,
}

impl Login {
    /// Makes a login with this text at the beginning, in the middle and at the end of the password,
    /// and in the user.
    fn with(text: &str, number: usize) -> Self {
        // A server permits no user with one of these.
        let is_space = text.contains([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
        let user = if is_space {
            format!("u{number}")
        } else {
            format!("{text}u{text}{number}")
        };
        Self {
            user,
            password: format!("{text}p{text}w{text}"),
        }
    }

    /// Returns the user and the password as parts of an address.
    fn encoded(&self) -> [String; 2] {
        [&self.user, &self.password].map(|text| encoded(text.as_bytes()))
    }

    /// Gives it all rights on a server.
    fn permit(&self, server: &Server) {
        let password = format!(">{}", self.password);
        server.command::<()>(&[
            "ACL", "SETUSER", &self.user, "on", &password, "~*", "&*", "+@all",
        ]);
    }
}

impl CredentialProvider for Login {
    async fn credentials(
        &self,
        _: &str,
    ) -> Result<Credentials, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Credentials::new(&self.user, &self.password))
    }
}

/// Percent-encodes each byte.
fn encoded(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "%{byte:02X}").unwrap();
        text
    })
}

/// Returns characters that have, in UTF-8, each byte that a text may have, and words of several of
/// them.
fn logins() -> Vec<Login> {
    let ascii = (1..=0x7f).map(char::from);
    // The second bytes, and the first ones of two, three and four bytes.
    let further = (0x80..0xc0).chain((0xc0..0x800).step_by(0x40));
    let further = further
        .chain((0x800..0xd800).step_by(0x1000))
        .chain([0xd000, 0xe000, 0xf000]);
    let further = further
        .chain((0x1_0000..0x11_0000).step_by(0x4_0000))
        .chain([0x10_0000]);
    let texts = ascii
        .chain(further.map(|code: u32| char::from_u32(code).unwrap()))
        .map(String::from);
    let words = [
        "\r\nSET injected 1\r\n",
        "\\x41",
        "\\\"",
        "\" \"",
        "' '",
        "AUTH a b",
        "a:b@c/d?e#f%g+h&i=j",
    ];
    let all: String = (1..=0x7f).map(char::from).collect();
    let texts = texts.chain(words.map(str::to_owned)).chain([all.repeat(8)]);
    let logins: Vec<_> = texts
        .enumerate()
        .map(|(number, text)| Login::with(&text, number))
        .collect();
    let tried = |byte: u8| {
        logins
            .iter()
            .any(|login| login.password.as_bytes().contains(&byte))
    };
    let missing: Vec<_> = (1..=0xff).filter(|&byte| !tried(byte)).collect();
    assert_eq!(missing, IN_NO_TEXT);
    logins
}

/// Connects, and takes a lock.
async fn assert_locks(builder: LockerBuilder, login: &Login) -> Locker {
    let locks = builder
        .connect()
        .await
        .unwrap_or_else(|error| panic!("{:?}: {error}", login.password));
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

/// Asserts that nothing of a password was taken for a command.
fn assert_nothing_injected(server: &Server) {
    assert!(!server.exists("injected"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_takes_every_user_and_password() {
    let (server, logins) = (Server::start(), logins());
    let replica = server.replica();
    eventually(ms(30_000), "in step", || server.has_replicas(1)).await;
    logins.iter().for_each(|login| login.permit(&server));
    let port = server.port();
    for logins in logins.chunks(AT_ONCE) {
        join_all(logins.iter().map(|login| async move {
            let [user, password] = login.encoded();
            let by_url =
                Locker::builder().node(format!("redis://{user}:{password}@127.0.0.1:{port}"));
            // With `replica_acks` there is a connection more.
            let by_url = assert_locks(by_url.replica_acks(1, ms(2_000)), login).await;
            let report = lockhound_doctor::examine(&by_url).await.unwrap();
            assert_eq!(report.servers[0].failure, None, "{:?}", login.password);
            let by_provider = Locker::builder()
                .node(format!("redis://127.0.0.1:{port}"))
                .credentials(login.clone());
            assert_locks(by_provider, login).await.close().await;
            by_url.close().await;
        }))
        .await;
    }
    assert_nothing_injected(&server);
    drop(replica);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_takes_every_user_and_password() {
    let (server, logins) = (Server::start_with(&["--cluster-enabled", "yes"]), logins());
    let slots: Vec<_> = (0..16_384).map(|slot| slot.to_string()).collect();
    let words: Vec<_> = ["CLUSTER", "ADDSLOTS"]
        .into_iter()
        .chain(slots.iter().map(String::as_str))
        .collect();
    server.command::<()>(&words);
    let info = || server.command::<String>(&["CLUSTER", "INFO"]);
    eventually(ms(30_000), "it is whole", || {
        info().contains("cluster_state:ok")
    })
    .await;
    logins.iter().for_each(|login| login.permit(&server));
    let port = server.port();
    for logins in logins.chunks(AT_ONCE) {
        join_all(logins.iter().map(|login| async move {
            let [user, password] = login.encoded();
            let by_url = Locker::builder().node(format!(
                "redis-cluster://{user}:{password}@127.0.0.1:{port}"
            ));
            assert_locks(by_url, login).await.close().await;
            let by_provider = Locker::builder()
                .node(format!("redis-cluster://127.0.0.1:{port}"))
                .credentials(login.clone());
            assert_locks(by_provider, login).await.close().await;
        }))
        .await;
    }
    assert_nothing_injected(&server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_take_every_user_and_password() {
    let (group, logins) = (Sentinels::start(), logins());
    for login in &logins {
        group
            .sentinels
            .iter()
            .chain([&group.master, &group.replica])
            .for_each(|server| login.permit(server));
    }
    let group = &group;
    for logins in logins.chunks(AT_ONCE) {
        let connected = join_all(logins.iter().map(|login| async move {
            let [user, password] = login.encoded();
            let url = group
                .url()
                .replace("://", &format!("://{user}:{password}@"));
            let url = format!("{url}&sentinelUsername={user}&sentinelPassword={password}");
            assert_locks(Locker::builder().node(url), login).await
        }));
        let connected = connected.await;
        for sentinel in &group.sentinels {
            // Each locker listens to each Sentinel.
            let missing = || -> Vec<String> {
                let clients: String = sentinel.command(&["CLIENT", "LIST"]);
                let listen = clients.lines().filter(|line| line.contains(" sub=1 "));
                let listen: Vec<_> = listen.collect();
                let listens = |login: &&Login| {
                    listen
                        .iter()
                        .any(|line| line.contains(&format!(" user={} ", login.user)))
                };
                logins
                    .iter()
                    .filter(|login| !listens(login))
                    .map(|login| login.password.clone())
                    .collect()
            };
            let all = || missing().is_empty();
            eventually(
                ms(20_000),
                &format!("all listen to the Sentinels of {NAME}"),
                all,
            )
            .await;
        }
        join_all(connected.iter().map(|locks| locks.close())).await;
    }
    assert_nothing_injected(&group.master);
    // They have no keys.
    for sentinel in &group.sentinels {
        assert!(
            !sentinel
                .command::<String>(&["INFO", "commandstats"])
                .contains("cmdstat_set:")
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_without_a_password_needs_none() {
    let nopass = ["--user", "svc", "on", "nopass", "~*", "&*", "+@all"];
    let servers = [
        Server::start_with(&nopass),
        Server::start_with(&[&nopass[..], &["--cluster-enabled", "yes"]].concat()),
    ];
    let group = Sentinels::start();
    for server in group
        .sentinels
        .iter()
        .chain([&group.master, &group.replica])
    {
        server.command::<()>(&["ACL", "SETUSER", "svc", "on", "nopass", "~*", "&*", "+@all"]);
        // Only this user may log in.
        server.command::<()>(&["ACL", "SETUSER", "default", "resetpass", ">other"]);
    }
    let slots: Vec<_> = (0..16_384).map(|slot| slot.to_string()).collect();
    let words: Vec<_> = ["CLUSTER", "ADDSLOTS"]
        .into_iter()
        .chain(slots.iter().map(String::as_str))
        .collect();
    servers[1].command::<()>(&words);
    let info = || servers[1].command::<String>(&["CLUSTER", "INFO"]);
    eventually(ms(30_000), "it is whole", || {
        info().contains("cluster_state:ok")
    })
    .await;
    let login = Login {
        user: "svc".into(),
        password: String::new(),
    };
    for url in [
        format!("redis://svc@127.0.0.1:{}", servers[0].port()),
        format!("redis-cluster://svc@127.0.0.1:{}", servers[1].port()),
        format!(
            "{}&sentinelUsername=svc",
            group.url().replace("://", "://svc@")
        ),
    ] {
        let locks = assert_locks(Locker::builder().node(&url), &login).await;
        assert!(
            format!("{locks:?}").contains("://***@127.0.0.1"),
            "{locks:?}"
        );
        locks.close().await;
    }
    // A user with a password is told that it is missing.
    servers[0].command::<()>(&["ACL", "SETUSER", "svc", "resetpass", ">secret"]);
    let error = Locker::connect(format!("redis://svc@127.0.0.1:{}", servers[0].port()))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("refused the credentials") && !error.to_string().contains("svc"),
        "{error}"
    );
}

/// A password of other bytes than text cannot be sent, and the address says so before anything is
/// sent.
#[tokio::test]
async fn a_password_that_is_no_text_is_refused_with_the_reason() {
    for byte in IN_NO_TEXT {
        let byte = encoded(&[byte]);
        for (address, what) in [
            (format!("redis://u{byte}:p@127.0.0.1:1"), "its user"),
            (format!("redis://u:p{byte}@127.0.0.1:1"), "its password"),
            (
                format!("redis-cluster://u:p{byte}@127.0.0.1:1"),
                "its password",
            ),
            (
                format!(
                    "redis-sentinel://127.0.0.1:1?sentinelServiceName=a&sentinelPassword=p{byte}"
                ),
                "a parameter",
            ),
        ] {
            let builder = Locker::builder()
                .node(&address)
                .connect_timeout(Duration::from_secs(1));
            let error = builder.connect().await.unwrap_err();
            assert!(matches!(error, Error::Config { .. }), "{error:?}");
            let message = error.to_string();
            assert!(
                message.contains(&format!("{what} is not percent-encoded UTF-8")),
                "{address}: {message}"
            );
        }
    }
}
