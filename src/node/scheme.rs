//! The schemes of addresses: which there are, which may be shown, and what those would be that are not supported.

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
