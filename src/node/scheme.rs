//! The schemes of addresses: which are supported, which may be shown, and what to write instead of
//! the others.

use std::borrow::Cow;
use std::str::Utf8Error;

use percent_encoding::percent_decode_str;

use super::host_port::HostPort;
use crate::error::Error;

/// The forms of an address, for error messages.
pub(super) const FORMS: &str = "redis://[user:password@]host[:port][/db], rediss:// for TLS with the feature `tls`, \
                                redis-cluster:// for a cluster, redis-sentinel:// for a master that Sentinels name, or \
                                redis+unix://[user:password@host]/path[?db=n] with the feature `unix`";

/// The kind of server that is expected at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// A server that has all keys.
    Alone,
    /// A server of a cluster, which has some of the keys.
    Cluster,
}

/// How a server is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    Plain,
    Encrypted,
    /// Through a socket file of this machine.
    Socket,
}

impl Transport {
    /// Returns the way of this scheme, if it is supported.
    pub(super) fn of(scheme: &str) -> Option<Self> {
        match scheme {
            "redis" | "valkey" => Some(Self::Plain),
            "rediss" | "valkeys" | "redis+tls" | "valkey+tls" => Some(Self::Encrypted),
            "redis+unix" | "valkey+unix" | "unix" => Some(Self::Socket),
            _ => None,
        }
    }
}

/// What to do about characters of a password that mean something else in an address.
pub(super) const PERCENT_ENCODE: &str =
    "percent-encode the user and the password: write / as %2F, ? as %3F, # as %23 and @ as %40";

/// What is wrong with a user or a password that the client cannot send.
pub(super) const NO_TEXT: &str = "is not percent-encoded UTF-8, and other bytes are not supported";

/// Schemes that people have reason to try, besides those that are supported or nearly right. Any
/// other word may be a password.
const KNOWN: [&str; 22] = [
    "amqp",
    "amqps",
    "cluster",
    "file",
    "ftp",
    "http",
    "https",
    "keydb",
    "memcached",
    "mongodb",
    "mysql",
    "nats",
    "postgres",
    "postgresql",
    "redis+socket",
    "redis+tcp",
    "sentinel",
    "socket",
    "ssl",
    "tcp",
    "tls",
    "ws",
];

/// Returns whether a scheme may be shown.
pub(super) fn is_known(scheme: &str) -> bool {
    KNOWN.contains(&scheme) || Transport::of(scheme).is_some() || meant(scheme).is_some()
}

/// Returns what is wrong with an address of this scheme, if it can be guessed what was meant.
pub(super) fn meant(scheme: &str) -> Option<String> {
    if Transport::of(scheme).is_some() {
        return None;
    }
    let (server, kind) = scheme.split_once(['-', '+']).unwrap_or((scheme, ""));
    let encrypted = match server {
        "redis" | "valkey" => false,
        "rediss" | "valkeys" => true,
        _ => return None,
    };
    match kind {
        "sentinel" | "cluster" => Some(format!("{scheme}:// is written {server}-{kind}://")),
        "tls" | "ssl" => {
            let right = if server.starts_with("redis") {
                "rediss"
            } else {
                "valkeys"
            };
            Some(format!("{scheme}:// is written {right}://"))
        }
        "unix" if encrypted => Some(format!(
            "{scheme}:// would be a socket of this machine, where nothing is encrypted; write redis+unix://"
        )),
        _ => None,
    }
}

/// Returns the error of an address that is shown in this way.
pub(super) fn refuse(name: &str, reason: &str) -> Error {
    let problem = format!("the address {name} cannot be used: {reason}");
    Error::config("node", problem)
}

/// The parts of an address that names several servers: `redis-cluster://host:port?node=host:port`.
pub(super) struct Several<'a> {
    scheme: String,
    /// The part before the parameters, as the address of one server.
    pub(super) first: String,
    query: &'a str,
}

impl<'a> Several<'a> {
    /// Parses an address of this kind, `cluster` or `sentinel`; returns `None` for any other.
    pub(super) fn parse(text: &'a str, kind: &str) -> Option<Self> {
        let (before, rest) = text.split_once("://")?;
        let scheme = before.trim().to_ascii_lowercase();
        let base = match scheme.strip_suffix(kind)? {
            "redis-" | "valkey-" => "redis",
            "rediss-" | "valkeys-" => "rediss",
            _ => return None,
        };
        let (server, query) = rest.split_once('?').unwrap_or((rest, ""));
        Some(Self {
            first: format!("{base}://{server}"),
            scheme,
            query,
        })
    }

    /// Returns the names and the values of the parameters.
    ///
    /// # Errors
    /// [`Error::Config`] if one is not UTF-8.
    pub(super) fn parameters(&self) -> Result<Vec<(String, String)>, Error> {
        let decoded = |text: &str| {
            let text = text.replace('+', " ");
            percent_decode_str(&text).decode_utf8().map(Cow::into_owned)
        };
        let parameters = self
            .query
            .split('&')
            .filter(|parameter| !parameter.is_empty())
            .map(|parameter| {
                let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
                Ok((decoded(name)?, decoded(value)?))
            });
        parameters
            .collect::<Result<_, Utf8Error>>()
            .map_err(|_| self.refuse(&format!("a parameter {NO_TEXT}")))
    }

    /// Refuses an address with a parameter that is not known. `known` says which are.
    pub(super) fn refuse_parameter(&self, known: &str) -> Error {
        if self.query.contains('@') {
            return self.refuse(PERCENT_ENCODE);
        }
        self.refuse(&format!("it has a parameter that is not known; {known}"))
    }

    /// Returns the server that a parameter names.
    ///
    /// # Errors
    /// [`Error::Config`] if it names none.
    pub(super) fn place(&self, value: &str) -> Result<HostPort, Error> {
        HostPort::given(value).ok_or_else(|| self.refuse("a parameter \"node\" is not host:port"))
    }

    pub(super) fn refuse(&self, reason: &str) -> Error {
        refuse(&format!("{}://***", self.scheme), reason)
    }

    /// Returns how the address is shown, without its parameters. `first` is how that of the first
    /// server is shown.
    pub(super) fn shown(&self, first: &str) -> String {
        format!(
            "{}://{}",
            self.scheme,
            first.split_once("://").map_or("", |(_, rest)| rest)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scheme_is_plain_encrypted_or_a_socket() {
        for (schemes, way) in [
            (&["redis", "valkey"][..], Transport::Plain),
            (
                &["rediss", "valkeys", "redis+tls", "valkey+tls"],
                Transport::Encrypted,
            ),
            (&["redis+unix", "valkey+unix", "unix"], Transport::Socket),
        ] {
            assert!(
                schemes
                    .iter()
                    .all(|scheme| Transport::of(scheme) == Some(way) && is_known(scheme)),
                "{way:?}"
            );
        }
    }

    #[test]
    fn an_unsupported_scheme_says_what_to_write_or_what_it_would_be() {
        for (scheme, words) in [
            ("redis+ssl", "is written rediss://"),
            ("valkey-tls", "is written valkeys://"),
            ("rediss+unix", "write redis+unix://"),
            ("redis+sentinel", "is written redis-sentinel://"),
            ("valkeys+cluster", "is written valkeys-cluster://"),
        ] {
            let meant = meant(scheme).expect(scheme);
            assert!(
                meant.starts_with(&format!("{scheme}:// ")) && meant.contains(words),
                "{meant}"
            );
            assert_eq!(Transport::of(scheme), None);
        }
        assert_eq!(
            (meant("redis"), meant("secret"), meant("redis-secret")),
            (None, None, None)
        );
        assert!(!is_known("secret") && !is_known("redis-secret"));
    }
}
