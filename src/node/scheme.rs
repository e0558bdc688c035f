//! The schemes of addresses: which there are, which may be shown, and what those would be that are not supported.

use url::form_urlencoded;

use super::place::Place;
use crate::error::Error;

/// What an address may look like.
pub(super) const FORMS: &str = "redis://[user:password@]host[:port][/db], rediss:// for TLS with the feature `tls`, \
                                redis-cluster:// for a cluster, redis-sentinel:// for a master that Sentinels name, or \
                                redis+unix://[user:password@host]/path[?db=n] with the feature `unix`";

/// What kind of server is expected at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// One that has all keys.
    Alone,
    /// One of those that share them.
    Cluster,
}

/// How a server is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Plain,
    Encrypted,
    /// By a socket file of this machine.
    Socket,
}

impl Way {
    /// That of this scheme, if it is supported.
    pub(super) fn of(scheme: &str) -> Option<Self> {
        match scheme {
            "redis" | "valkey" => Some(Self::Plain),
            "rediss" | "valkeys" | "redis+tls" | "valkey+tls" => Some(Self::Encrypted),
            "redis+unix" | "valkey+unix" | "unix" => Some(Self::Socket),
            _ => None,
        }
    }
}

/// Beginnings of addresses that people have reason to try. Any other may be a password.
const KNOWN: [&str; 32] = [
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
    "redis",
    "redis+cluster",
    "redis+sentinel",
    "redis+socket",
    "redis+ssl",
    "redis+tcp",
    "redis+tls",
    "redis+unix",
    "rediss",
    "sentinel",
    "socket",
    "ssl",
    "tcp",
    "tls",
    "unix",
    "valkey",
    "valkeys",
    "ws",
];

/// Whether a scheme may be shown.
pub(super) fn is_known(scheme: &str) -> bool {
    KNOWN.contains(&scheme) || Way::of(scheme).is_some() || meant(scheme).is_some()
}

/// What is wrong with an address of this scheme, where it can be guessed what it would be.
pub(super) fn meant(scheme: &str) -> Option<String> {
    if Way::of(scheme).is_some() {
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
            let right = if server.starts_with("redis") { "rediss" } else { "valkeys" };
            Some(format!("{scheme}:// is written {right}://"))
        }
        "unix" if encrypted => Some(format!(
            "{scheme}:// would be a socket of this machine, where nothing is encrypted; write redis+unix://"
        )),
        _ => None,
    }
}

/// An address that names several servers, taken apart: `redis-cluster://host:port?node=host:port`.
pub(super) struct Several<'a> {
    scheme: String,
    /// What stands before the parameters, as the address of one server.
    pub(super) first: String,
    query: &'a str,
}

impl<'a> Several<'a> {
    /// Takes an address of this kind apart, `cluster` or `sentinel`; `None` for any other.
    pub(super) fn parse(text: &'a str, kind: &str) -> Option<Self> {
        let (before, rest) = text.split_once("://")?;
        let scheme = before.trim().to_ascii_lowercase();
        let base = match scheme.strip_suffix(kind)? {
            "redis-" | "valkey-" => "redis",
            "rediss-" | "valkeys-" => "rediss",
            _ => return None,
        };
        let (server, query) = rest.split_once('?').unwrap_or((rest, ""));
        Some(Self { first: format!("{base}://{server}"), scheme, query })
    }

    pub(super) fn parameters(&self) -> form_urlencoded::Parse<'a> {
        form_urlencoded::parse(self.query.as_bytes())
    }

    /// A server that a parameter names.
    ///
    /// # Errors
    /// [`Error::Config`] where it names none.
    pub(super) fn place(&self, value: &str) -> Result<Place, Error> {
        Place::given(value).ok_or_else(|| self.refuse("a parameter \"node\" is not host:port"))
    }

    pub(super) fn refuse(&self, reason: &str) -> Error {
        Error::config("node", format!("the address {}://*** cannot be used: {reason}", self.scheme))
    }

    /// How the address is shown, without its parameters, where that of the first server is shown so.
    pub(super) fn shown(&self, first: &str) -> String {
        format!("{}://{}", self.scheme, first.split_once("://").map_or("", |(_, rest)| rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_lead_by_one_of_three_ways() {
        for (schemes, way) in [
            (&["redis", "valkey"][..], Way::Plain),
            (&["rediss", "valkeys", "redis+tls", "valkey+tls"], Way::Encrypted),
            (&["redis+unix", "valkey+unix", "unix"], Way::Socket),
        ] {
            assert!(schemes.iter().all(|scheme| Way::of(scheme) == Some(way) && is_known(scheme)), "{way:?}");
        }
    }

    #[test]
    fn a_scheme_that_is_not_supported_says_what_to_write_or_what_it_would_be() {
        for (scheme, words) in [
            ("redis+ssl", "is written rediss://"),
            ("valkey-tls", "is written valkeys://"),
            ("rediss+unix", "write redis+unix://"),
            ("redis+sentinel", "is written redis-sentinel://"),
            ("valkeys+cluster", "is written valkeys-cluster://"),
        ] {
            let meant = meant(scheme).expect(scheme);
            assert!(meant.starts_with(&format!("{scheme}:// ")) && meant.contains(words), "{meant}");
            assert_eq!(Way::of(scheme), None);
        }
        assert_eq!((meant("redis"), meant("secret"), meant("redis-secret")), (None, None, None));
        assert!(!is_known("secret") && !is_known("redis-secret"));
    }
}
