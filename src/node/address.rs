//! Parses the address of a server without ever showing the password.
//!
//! # Invariants
//! - The name of an address is put together from parts that are known to be no secret. Nothing is
//!   ever cut out of the text that was given: in a mistyped address the password may be anywhere.
//! - A refusal shows at most the scheme, if it is a known one. It shows the rest of an address only
//!   if all of it is valid.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use fred::types::config::{Config, Server, ServerConfig};
use percent_encoding::percent_decode_str;
use url::Url;

use super::access::Access;
use super::admission::Admission;
use super::cluster_nodes::ClusterNodes;
use super::host_port::{HostPort, has_only};
use super::naming::Naming;
use super::reply;
use super::scheme::{self, FORMS, Mode, NO_TEXT, PERCENT_ENCODE, Transport, refuse};
use super::sentinel::{Group, Named};
use crate::error::{Error, NodeFailure};
use crate::stats::MismatchedReplies;
use crate::sync::{Arc, Mutex};

/// Names of parameters that other clients have. Any other name may be a password.
const KNOWN_PARAMETERS: [&str; 24] = [
    "auth",
    "client_name",
    "connect_timeout",
    "connection_timeout",
    "database",
    "db",
    "insecure",
    "master",
    "max_connections",
    "name",
    "pass",
    "password",
    "path",
    "pool_size",
    "prefix",
    "protocol",
    "read_timeout",
    "ssl",
    "timeout",
    "tls",
    "user",
    "username",
    "verify",
    "weight",
];

/// Where a server is, and the credentials to connect with. Its name, for people, hides the
/// password.
pub(crate) struct Address {
    pub(super) name: Arc<str>,
    /// Whether the server accepts these credentials.
    pub(super) admission: Admission,
    /// Counts answers that came to the wrong command, on all connections to it.
    pub(super) mismatched: MismatchedReplies,
    last_failure: Mutex<Option<NodeFailure>>,
    /// The Sentinels that name the server, if any do.
    sentinels: Option<Group>,
    /// The nodes of the cluster, if it is a master that a cluster names.
    known_nodes: Option<Arc<ClusterNodes>>,
    way: Transport,
    mode: Mode,
    config: Config,
}

impl Address {
    /// # Errors
    /// [`Error::Config`] that says what is wrong with the address, without showing anything that
    /// may be a password, or what is wrong with the TLS options or the credentials.
    pub(super) fn parse(text: &str, access: &Access) -> Result<Self, Error> {
        let mut parts = Parts::parse(text)?;
        access.give(&parts.name, parts.way, &mut parts.config)?;
        let admission = Admission::of(access.has_provider());
        Ok(Self::new(parts, admission, Mode::Alone))
    }

    fn new(parts: Parts, admission: Admission, mode: Mode) -> Self {
        Self {
            name: parts.name,
            admission,
            mismatched: MismatchedReplies::default(),
            last_failure: Mutex::default(),
            sentinels: parts.sentinels,
            known_nodes: None,
            way: parts.way,
            mode,
            config: parts.config,
        }
    }

    /// Returns the same address, for a server of a cluster.
    pub(super) fn of_cluster(self) -> Self {
        Self {
            mode: Mode::Cluster,
            ..self
        }
    }

    /// Returns the kind of server that is expected there.
    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    pub(super) fn database(&self) -> Option<u8> {
        self.config.database
    }

    /// Returns where the server is; `None` for a socket file, and for a server that Sentinels name.
    pub(super) fn place(&self) -> Option<HostPort> {
        let ServerConfig::Centralized { server } = &self.config.server else {
            return None;
        };
        if self.sentinels.is_some() {
            return None;
        }
        Some(HostPort::new(&*server.host, server.port))
    }

    /// Returns the address of another server, with the same credentials and TLS options.
    pub(super) fn at(&self, place: &HostPort) -> Self {
        let mut config = self.config();
        config.server = ServerConfig::new_centralized(&*place.host, place.port);
        let (scheme, rest) = self.name.split_once("://").unwrap_or_default();
        let credentials = rest
            .split_once('@')
            .map(|(credentials, _)| format!("{credentials}@"))
            .unwrap_or_default();
        let parts = Parts {
            name: format!("{scheme}://{credentials}{place}").into(),
            way: self.way,
            config,
            sentinels: None,
        };
        Self::new(parts, self.admission.anew(), self.mode)
    }

    /// Returns the address of a master of a cluster: as [`Address::at`].
    pub(super) fn at_node(&self, place: &HostPort, known_nodes: &Arc<ClusterNodes>) -> Self {
        Self {
            known_nodes: Some(Arc::clone(known_nodes)),
            ..self.at(place)
        }
    }

    /// Returns the nodes of the cluster, if it is a master that a cluster names.
    pub(super) fn known_nodes(&self) -> Option<&Arc<ClusterNodes>> {
        self.known_nodes.as_ref()
    }

    /// Returns where the server is, if Sentinels name it.
    pub(super) fn naming(&self) -> Option<&Arc<Naming>> {
        Some(&self.sentinels.as_ref()?.naming)
    }

    /// Returns the Sentinels' name for the master, and their own addresses; `None` for any other
    /// server.
    pub(super) fn sentinels(&self) -> Option<(&str, Vec<Self>)> {
        let group = self.sentinels.as_ref()?;
        let sentinels = group.places.iter().map(|place| self.sentinel_at(place));
        Some((&group.service, sentinels.collect()))
    }

    /// Returns the address of a Sentinel of this master.
    pub(super) fn sentinel_at(&self, place: &HostPort) -> Self {
        let sentinels = self.sentinels.as_ref();
        let (user, password) = sentinels.map_or((None, None), |group| {
            (group.user.clone(), group.password.clone())
        });
        let at = self.at(place);
        let scheme = self
            .name
            .split_once("://")
            .map_or("redis-sentinel", |(scheme, _)| scheme);
        Self {
            name: format!("{scheme}://{place}").into(),
            admission: at.admission.silenced(),
            config: Config {
                username: user,
                password,
                database: None,
                ..at.config
            },
            ..at
        }
    }

    /// Returns the name of an address.
    ///
    /// # Errors
    /// [`Error::Config`] as [`Address::parse`].
    pub(super) fn name_of(text: &str) -> Result<Arc<str>, Error> {
        Ok(Parts::parse(text)?.name)
    }

    pub(super) fn config(&self) -> Config {
        self.config.clone()
    }

    /// Returns the configuration for a server at this place, whose name leads to `found`.
    #[cfg_attr(
        not(feature = "tls"),
        expect(
            unused_variables,
            reason = "only a certificate is checked for the name"
        )
    )]
    pub(super) fn config_at(&self, place: &HostPort, found: SocketAddr) -> Config {
        let server = Server {
            host: found.ip().to_string().into(),
            port: found.port(),
            #[cfg(feature = "tls")]
            tls_server_name: Some((&*place.host).into()),
        };
        Config {
            server: ServerConfig::Centralized { server },
            ..self.config()
        }
    }

    /// Notes that connecting to it failed.
    pub(super) fn failed(&self, failure: NodeFailure) {
        *self.last_failure.lock() = Some(failure);
    }

    /// Returns why the last attempt to connect failed.
    pub(super) fn last_failure(&self) -> Option<NodeFailure> {
        if let Some(Err(reason)) = self.naming().map(|naming| naming.master()) {
            return Some(NodeFailure::new(&self.name, reason));
        }
        self.last_failure.lock().clone()
    }

    /// Returns why it could not be connected to for the whole of `bound`.
    pub(super) fn away(&self, bound: Duration) -> NodeFailure {
        self.last_failure().unwrap_or_else(|| {
            let reason = format!("did not answer within connect_timeout = {bound:?}");
            NodeFailure::new(&self.name, self.with_remedy(reason))
        })
    }

    /// Adds a hint on what may help to a failure of the first contact. A server that is connected
    /// to in the wrong way cannot say so otherwise; a server that is about to start fails in the
    /// same way.
    pub(super) fn with_remedy(&self, reason: String) -> String {
        let remedy = match (self.way, reply::is_hang_up(&reason)) {
            (Transport::Plain, true) => "if it wants encrypted connections, write rediss://",
            (Transport::Encrypted, true) => {
                "if it wants a client certificate, name its files with Tls::client_files"
            }
            (Transport::Encrypted, false) if reply::is_silence(&reason) => {
                "if it does not speak TLS, write redis://"
            }
            _ => return reason,
        };
        format!("{reason}; {remedy}")
    }
}

/// The parts of an address.
#[cfg_attr(test, derive(Debug))]
struct Parts {
    name: Arc<str>,
    way: Transport,
    config: Config,
    sentinels: Option<Group>,
}

impl Parts {
    fn parse(text: &str) -> Result<Self, Error> {
        if let Some(named) = Named::parse(text) {
            let named = named?;
            let Self {
                way, config, name, ..
            } = Self::parse(named.first())?;
            let (name, sentinels) = named.complete(&name, &config);
            return Ok(Self {
                name,
                way,
                config,
                sentinels: Some(sentinels),
            });
        }
        let Some((before, _)) = text.split_once("://") else {
            return Err(refuse("***", &format!("it has no scheme; write {FORMS}")));
        };
        let scheme = before.trim().to_ascii_lowercase();
        let hidden = if scheme::is_known(&scheme) {
            format!("{scheme}://***")
        } else {
            "***".to_owned()
        };
        let refuse = |reason: &str| refuse(&hidden, reason);
        if let Some(meant) = scheme::meant(&scheme) {
            return Err(refuse(&meant));
        }
        let Some(way) = Transport::of(&scheme) else {
            let what = if scheme::is_known(&scheme) {
                format!("the scheme {scheme}://")
            } else {
                "its scheme".to_owned()
            };
            return Err(refuse(&format!("{what} is not known; write {FORMS}")));
        };
        if way == Transport::Encrypted && !cfg!(feature = "tls") {
            return Err(refuse(
                "encrypted connections need the crate's feature `tls`",
            ));
        }
        // The parser would take them out.
        if text.trim().contains(['\t', '\n', '\r']) {
            return Err(refuse(
                "it has a tab or a line end; in a password, write them as %09, %0A and %0D",
            ));
        }
        // What is before such a sign looks like a host and a bad port.
        if text
            .split_once("://")
            .is_some_and(|(_, rest)| has_loose_signs(rest))
        {
            return Err(refuse(PERCENT_ENCODE));
        }
        let url = Url::parse(text).map_err(|e| refuse(&format!("{e}; write {FORMS}")))?;
        if way == Transport::Encrypted && url.fragment() == Some("insecure") {
            return Err(refuse(
                "#insecure is not supported: give the CA of the server's certificate to Tls::ca_file",
            ));
        }
        if url.fragment().is_some() {
            return Err(refuse(PERCENT_ENCODE));
        }
        let mut config = Config {
            fail_fast: true,
            ..Config::default()
        };
        config.username =
            decoded(url.username()).ok_or_else(|| refuse(&format!("its user {NO_TEXT}")))?;
        config.password = match url.password().map(decoded) {
            Some(password) => password.ok_or_else(|| refuse(&format!("its password {NO_TEXT}")))?,
            None => None,
        };
        if config.username.is_some() && config.password.is_none() && has_empty_password(text) {
            // What is taken for the host may be the rest of a password that begins with an `@`.
            return Err(refuse(
                "it has a user and an empty password; for a user without a password, write user@host",
            ));
        }
        if config.username.is_some() {
            // A user without a password logs in with any, but has to name itself all the same.
            config.password.get_or_insert_default();
        }
        let place = if way == Transport::Socket {
            known_query(&url, &["db"]).map_err(|reason| refuse(&reason))?;
            socket_file(&url, &mut config).map_err(refuse)?
        } else {
            known_query(&url, &[]).map_err(|reason| refuse(&reason))?;
            host(&url, &mut config).map_err(refuse)?
        };
        let name = format!("{scheme}://{}{place}", shown_credentials(&url)).into();
        Ok(Self {
            name,
            way,
            config,
            sentinels: None,
        })
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({})", self.name)
    }
}

/// Returns whether a character that belongs to a password may have cut it short: an `@` is behind
/// the host. `rest` is the part of an address behind the scheme.
fn has_loose_signs(rest: &str) -> bool {
    rest.split_once(['/', '?', '#'])
        .is_some_and(|(_, behind)| behind.contains('@'))
}

/// Returns whether there is a colon before the host, of an address whose password is empty.
fn has_empty_password(text: &str) -> bool {
    let rest = text.split_once("://").map_or("", |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    authority
        .rsplit_once('@')
        .is_some_and(|(credentials, _)| credentials.contains(':'))
}

/// Decodes the text, if there is any; returns `None` if it is not UTF-8.
fn decoded(part: &str) -> Option<Option<String>> {
    let text = percent_decode_str(part).decode_utf8().ok()?;
    Some((!text.is_empty()).then(|| text.into_owned()))
}

/// # Errors
/// Names a parameter that is not known.
fn known_query(url: &Url, known: &[&str]) -> Result<(), String> {
    let Some((key, _)) = url
        .query_pairs()
        .find(|(key, _)| !known.contains(&key.as_ref()))
    else {
        return Ok(());
    };
    let key = key.to_ascii_lowercase();
    Err(match &*key {
        "password" | "pass" | "auth" | "user" | "username" => {
            format!(
                "the parameter {key:?} is not known; credentials stand before the host, redis://user:password@host"
            )
        }
        key if KNOWN_PARAMETERS.contains(&key) => format!("the parameter {key:?} is not known"),
        _ => "it has a parameter that is not known".to_owned(),
    })
}

/// Reads host, port and database. Returns the text that shows them.
///
/// # Errors
/// What is wrong with them.
fn host(url: &Url, config: &mut Config) -> Result<String, &'static str> {
    let host = url
        .host_str()
        .filter(|host| !host.is_empty())
        .ok_or("it names no host")?;
    let literal = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    if literal.is_none() && !has_only(host, b"-._") {
        return Err("its host has characters that no host name has");
    }
    let path = url.path().trim_start_matches('/');
    config.database = database(path)
        .ok_or("the part behind the host is not a database, a number from 0 to 255")?;
    // An IPv6 address stands in brackets in a URL and without them for the resolver.
    config.server =
        ServerConfig::new_centralized(literal.unwrap_or(host), url.port().unwrap_or(6379));
    let port = url
        .port()
        .map(|port| format!(":{port}"))
        .unwrap_or_default();
    let db = config
        .database
        .map(|db| format!("/{db}"))
        .unwrap_or_default();
    Ok(format!("{host}{port}{db}"))
}

/// Reads the path of a socket file, and the database; as [`host`].
fn socket_file(url: &Url, config: &mut Config) -> Result<String, &'static str> {
    if !cfg!(feature = "unix") {
        return Err("sockets of this machine need the crate's feature `unix`");
    }
    // Credentials need a host, which means nothing. Without credentials, somebody wrote two slashes
    // instead of three.
    if url.host_str().is_some_and(|host| !host.is_empty()) && config.password.is_none() {
        return Err("a socket file has no host before its path; write redis+unix:///path");
    }
    let path = url.path();
    if path.trim_matches('/').is_empty() {
        return Err("it names no socket file");
    }
    let db = url
        .query_pairs()
        .find(|(key, _)| key == "db")
        .map(|(_, db)| db.into_owned());
    config.database = database(db.as_deref().unwrap_or_default())
        .ok_or("the parameter \"db\" is not a number from 0 to 255")?;
    config.server = unix_socket(path);
    // A path with other characters may be credentials in the wrong place.
    let ordinary = has_only(path, b"/-._");
    let db = config
        .database
        .map(|db| format!("?db={db}"))
        .unwrap_or_default();
    Ok(format!("{}{db}", if ordinary { path } else { "/***" }))
}

#[cfg(feature = "unix")]
fn unix_socket(path: &str) -> ServerConfig {
    ServerConfig::new_unix_socket(path)
}

/// Never reached: such an address is refused before.
#[cfg(not(feature = "unix"))]
fn unix_socket(_path: &str) -> ServerConfig {
    ServerConfig::default_centralized()
}

/// Parses the number, if there is any text; returns `None` if it is not a number.
fn database(text: &str) -> Option<Option<u8>> {
    if text.is_empty() {
        Some(None)
    } else {
        text.parse().ok().map(Some)
    }
}

/// Shows the user. A user name with unusual characters may be half of a password, and one without a
/// password may be a password in the wrong place: both are hidden.
fn shown_credentials(url: &Url) -> String {
    let user = url.username();
    match url.password() {
        Some(_) if has_only(user, b"-._") => format!("{user}:***@"),
        Some(_) => "***:***@".to_owned(),
        None if user.is_empty() => String::new(),
        None => "***@".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Parts, Error> {
        Parts::parse(text)
    }

    fn refusal(text: &str) -> String {
        parse(text).expect_err(text).to_string()
    }

    fn name(text: &str) -> String {
        parse(text).expect(text).name.to_string()
    }

    #[test]
    fn takes_addresses_apart() {
        let full = parse("redis://ann:p%40ss+w&d@[::1]:7000/3").expect("valid");
        let config = full.config;
        assert_eq!(config.username.as_deref(), Some("ann"));
        assert_eq!(config.password.as_deref(), Some("p@ss+w&d"));
        assert_eq!(config.database, Some(3));
        assert_eq!(config.server.hosts()[0].to_string(), "::1:7000");
        let user = parse("redis://ann@h").expect("valid").config;
        assert_eq!(
            (user.username.as_deref(), user.password.as_deref()),
            (Some("ann"), Some(""))
        );
        let marked = parse("redis://:%EF%BF%BD%C3%BC%00@h\n").expect("valid");
        assert_eq!(marked.config.password.as_deref(), Some("\u{fffd}\u{fc}\0"));
        assert_eq!(
            parse("redis://h").expect("valid").config.server.hosts()[0].port,
            6379
        );
        assert_eq!(
            parse("REDIS://:pw@h")
                .expect("valid")
                .config
                .password
                .as_deref(),
            Some("pw")
        );
    }

    #[test]
    fn the_name_of_a_valid_address_hides_the_password_only() {
        for address in [
            "redis://h",
            "redis://h.internal:7000/3",
            "redis://127.0.0.1",
            "redis://[::1]:7000",
        ] {
            assert_eq!(name(address), address);
        }
        assert_eq!(name("redis://ann:secret@h"), "redis://ann:***@h");
        assert_eq!(name("Redis://:secret@h/0"), "redis://:***@h/0");
        assert_eq!(name("redis://u@secret@h"), "redis://***@h");
        assert_eq!(
            name("redis://secret@h:7000/3"),
            "redis://***@h:7000/3",
            "a user, or a password without its colon"
        );
        assert_eq!(
            name("redis://half@secret:other@h"),
            "redis://***:***@h",
            "more likely a password than a user"
        );
        let address = Address::parse("redis://a:secret@h", &Access::default()).expect("valid");
        assert_eq!(format!("{address:?}"), "Address(redis://a:***@h)");
    }

    #[test]
    fn no_message_shows_the_password() {
        let texts = [
            "redis://ann:secret@h:99999",
            "redis://ann:secret@h/none",
            "redis://ann:secret@h?x=1",
            "http://ann:secret@h",
            "redis//ann:secret@h",
            "ann:secret@h",
            "rediss://ann:secret@h#insecure",
            "redis+ssl://ann:secret@h",
            "redis://ann:secret@",
            "redis://ann:1#secret@h",
            "redis://ann:1?secret@h",
            "redis://ann:1/secret@h",
            "redis://ann:@secret",
            "redis://ann:secret",
            "redis://h:secret",
            "redis:///ann:secret",
            "redis://h?password=secret",
            "redis://h?pass=secret",
            "redis://h?secret",
            "redis://h#secret",
            "redis://h/secret",
            "redis://h:12/secret",
            "redis://secret%40h",
            "secret://h",
            "secret",
            "redis+unix://secret/tmp/x",
            "redis+unix:///tmp/x?db=secret",
        ];
        for text in texts {
            let message = refusal(text);
            assert!(
                !message.contains("secret") && message.contains("***"),
                "{message}"
            );
        }
    }

    /// Returns a mistyped address, with the password in one of the places where people put it by
    /// mistake.
    fn mistyped(random: &mut fastrand::Rng, secret: &str) -> String {
        let upper = |text: &str| text.to_ascii_uppercase();
        let mut pick =
            |words: &[&str]| random.choice(words).copied().unwrap_or_default().to_owned();
        let sign = |pick: &mut dyn FnMut(&[&str]) -> String| {
            pick(&[
                "", "", "", "@", "#", "?", "/", ":", "%", "%40", "%2F", "&", "=", "+", "\\", " ",
                "ü", "[", "1", "\n", ";",
            ])
        };
        let password = format!("{}{secret}{}", sign(&mut pick), sign(&mut pick));
        let scheme = pick(&[
            "redis",
            "redis",
            "redis",
            "rediss",
            "redis+unix",
            "unix",
            "valkey",
            "redis-sentinel",
            "http",
            "reddis",
            "rédis",
            "",
        ]);
        let scheme = if pick(&["", "up"]) == "up" {
            upper(&scheme)
        } else {
            scheme
        };
        let between = pick(&[
            "://", "://", "://", ":///", ":/", ":", "//", "", ":\\\\", "://://",
        ]);
        let host = pick(&[
            "h",
            "127.0.0.1",
            "[::1]",
            "h:6379",
            "h:99999",
            "",
            "ü.example",
            "h%20",
            "tmp/x.sock",
            "/tmp/x.sock",
        ]);
        let user = pick(&["ann", "", "default", "a@b", "a:b", "%61nn"]);
        match pick(&[
            "user", "host", "port", "path", "query", "fragment", "twice", "scheme", "order",
            "alone", "database",
        ])
        .as_str()
        {
            "user" => format!("{scheme}{between}{password}@{host}"),
            "host" => format!("{scheme}{between}{user}:{password}"),
            "port" => format!("{scheme}{between}{host}:{password}"),
            "path" => format!("{scheme}{between}/{user}:{password}"),
            "query" => {
                let parameter = pick(&["password", "pass", "auth", "", "PASSWORD", "db"]);
                format!(
                    "{scheme}{between}{host}{}{parameter}={password}",
                    pick(&["?", "/?", "?db=1&", "/0?"])
                )
            }
            "fragment" => format!("{scheme}{between}{user}:1#{password}@{host}"),
            "twice" => format!("{scheme}{between}{user}@{password}@{host}"),
            "scheme" => format!("{password}{between}{user}@{host}"),
            "order" => format!("{scheme}{between}{host}@{user}:{password}"),
            "alone" => password,
            _ => format!(
                "{scheme}{between}{user}:{password}@{host}{}{secret}",
                pick(&["/", "?", "#", ":"])
            ),
        }
    }

    #[test]
    fn no_part_of_a_mistyped_address_that_may_be_a_password_shows() {
        let mut random = fastrand::Rng::with_seed(0x5eed);
        let mut refused = 0;
        while refused < 10_000 {
            let secret: String = (0..8).map(|_| random.alphanumeric()).collect();
            let text = mistyped(&mut random, &secret);
            let error = match parse(&text) {
                Err(error) => error,
                Ok(valid) => {
                    // Alone before the host, it may be a user.
                    let is_user = valid.config.username.is_some()
                        && valid.config.password.as_deref() == Some("");
                    assert!(
                        !is_user || !valid.name.contains(&secret),
                        "{text:?}: {}",
                        valid.name
                    );
                    continue;
                }
            };
            refused += 1;
            let builder = crate::locker::Locker::builder().node(&text);
            let shown = format!("{error} {error:?} {builder:?}").to_lowercase();
            assert!(!shown.contains(&secret.to_lowercase()), "{text:?}: {shown}");
            assert!(!shown.contains(char::is_control), "{text:?}: {shown}");
        }
    }

    /// The same for valid addresses, with the password in its place.
    #[test]
    fn no_password_of_a_valid_address_is_shown() {
        let mut random = fastrand::Rng::with_seed(0x5eed);
        let mut valid = 0;
        while valid < 1_000 {
            let secret: String = (0..8).map(|_| random.alphanumeric()).collect();
            let around = |random: &mut fastrand::Rng| {
                random
                    .choice(["", "%40", "%2F", "@", "+", ":", "%3F"])
                    .unwrap_or("")
            };
            let before = around(&mut random);
            let behind = around(&mut random);
            let text = format!("redis://ann:{before}{secret}{behind}@h.internal:7000/3");
            let address = parse(&text).expect(&text);
            valid += 1;
            assert_eq!(
                &*address.name, "redis://ann:***@h.internal:7000/3",
                "{text}"
            );
            let shown = format!("{:?}", crate::locker::Locker::builder().node(&text));
            assert!(!shown.contains(&secret), "{shown}");
        }
    }

    #[test]
    fn refusals_name_what_is_wrong() {
        for (address, about) in [
            ("redis://h/300", "0 to 255"),
            ("redis://h?timeout=3", "\"timeout\""),
            ("redis://h?password=x", "before the host"),
            ("redis://ann:pw", "invalid port"),
            ("redis://", "no host"),
            ("redis:///0", "no host"),
            ("h:6379", "no scheme"),
            ("http://h", "the scheme http:// is not known"),
            ("reddis://h", "its scheme is not known"),
            ("redis://a:1#2@h", "%23"),
            ("redis://user:p#w@h", "percent-encode"),
            ("redis://user:p/w@h:6379/0", "percent-encode"),
            ("redis://user:p?w@h", "percent-encode"),
            ("redis://:p#w@h", "percent-encode"),
            ("redis://user:p\tw@h", "%09"),
            ("redis://user:p\r\nw@h", "%0A"),
            (
                "redis://ann:p%FF@h",
                "its password is not percent-encoded UTF-8",
            ),
            (
                "redis://a%C3nn:pw@h",
                "its user is not percent-encoded UTF-8",
            ),
        ] {
            assert!(refusal(address).contains(about), "{}", refusal(address));
        }
    }

    #[test]
    fn a_scheme_that_is_nearly_right_says_what_to_write() {
        for (address, about) in [
            (
                "redis+sentinel://h:26379/name",
                "is written redis-sentinel://",
            ),
            (
                "Rediss+Cluster://h",
                "rediss+cluster:// is written rediss-cluster://",
            ),
            ("redis+ssl://h", "is written rediss://"),
        ] {
            let message = refusal(address);
            assert!(message.contains(about), "{message}");
        }
        assert!(refusal("redis-something://h").contains("not known"));
    }

    #[test]
    fn a_valkey_address_is_that_of_a_redis() {
        let address = parse("valkey://ann:secret@h:7000/3").expect("valid");
        assert_eq!(
            (&*address.name, address.way),
            ("valkey://ann:***@h:7000/3", Transport::Plain)
        );
        assert_eq!(address.config.server.hosts()[0].to_string(), "h:7000");
    }

    #[cfg(feature = "tls")]
    #[test]
    fn encrypted_addresses() {
        for scheme in ["rediss", "valkeys", "redis+tls", "VALKEY+TLS"] {
            let address = parse(&format!("{scheme}://ann:secret@[::1]/3")).expect(scheme);
            assert_eq!(
                *address.name,
                format!("{}://ann:***@[::1]/3", scheme.to_lowercase())
            );
            assert_eq!(
                (address.way, address.config.database),
                (Transport::Encrypted, Some(3))
            );
            assert_eq!(address.config.server.hosts()[0].to_string(), "::1:6379");
        }
        assert!(refusal("rediss://h/#insecure").contains("Tls::ca_file"));
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn encrypted_addresses_need_the_feature() {
        for address in ["rediss://h", "valkeys://h", "redis+tls://h"] {
            assert!(refusal(address).contains("`tls`"), "{}", refusal(address));
        }
    }

    #[cfg(feature = "unix")]
    #[test]
    fn sockets_of_this_machine() {
        let address = parse("redis+unix:///tmp/redis.sock?db=2").expect("valid");
        assert_eq!(address.config.database, Some(2));
        assert!(address.config.server.is_unix_socket());
        assert_eq!(&*address.name, "redis+unix:///tmp/redis.sock?db=2");
        assert_eq!(
            name("redis+unix://ann:secret@local/tmp/redis.sock"),
            "redis+unix://ann:***@/tmp/redis.sock"
        );
        assert_eq!(
            name("redis+unix:///ann:secret"),
            "redis+unix:///***",
            "it may be a path"
        );
        assert!(refusal("redis+unix:///").contains("no socket file"));
        assert!(refusal("redis+unix://tmp/redis.sock").contains("redis+unix:///path"));
    }

    #[cfg(not(feature = "unix"))]
    #[test]
    fn sockets_of_this_machine_need_the_feature() {
        assert!(refusal("redis+unix:///tmp/redis.sock").contains("`unix`"));
    }
}
