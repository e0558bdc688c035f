//! Where a server is: its host and port.

use std::fmt;
use std::sync::Arc;

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct HostPort {
    pub(super) host: Arc<str>,
    pub(super) port: u16,
}

impl HostPort {
    pub(super) fn new(host: impl Into<Arc<str>>, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
        }
    }

    /// Reads `host:port`, as MOVED and ASK have it. Without a host, it is the host of the server
    /// that says it.
    pub(super) fn parse(text: &str, told_by: &Self) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = Self::host(host.as_bytes(), told_by)?;
        Some(Self::new(host, port.parse().ok()?))
    }

    /// Reads `host:port` from the parameter of an address. Returns `None` if it may contain
    /// something secret.
    pub(super) fn given(text: &str) -> Option<Self> {
        let nobody = Self::new("", 0);
        Self::parse(text, &nobody).filter(|place| is_ordinary(text) && !place.host.is_empty())
    }

    /// Reads a host. An empty one is that of the server that says it, which does not know its own
    /// name.
    pub(super) fn host(host: &[u8], told_by: &Self) -> Option<Arc<str>> {
        match host {
            b"" | b"?" => Some(Arc::clone(&told_by.host)),
            host => Some(
                std::str::from_utf8(host)
                    .ok()?
                    .trim_start_matches('[')
                    .trim_end_matches(']')
                    .into(),
            ),
        }
    }
}

/// Returns whether a text may be shown: it has no character that separates credentials.
pub(super) fn is_ordinary(text: &str) -> bool {
    has_only(text, b"-._:[]")
}

/// Returns whether a text has only letters, digits and these signs.
pub(super) fn has_only(text: &str, signs: &[u8]) -> bool {
    text.bytes()
        .all(|b| b.is_ascii_alphanumeric() || signs.contains(&b))
}

impl fmt::Display for HostPort {
    /// Formats it as in an address: an IPv6 address in brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirection_names_a_place() {
        let told_by = HostPort {
            host: "h".into(),
            port: 7_000,
        };
        let parse = |text| {
            HostPort::parse(text, &told_by).map(|place| (place.host.to_string(), place.port))
        };
        assert_eq!(parse("10.0.0.1:6379"), Some(("10.0.0.1".to_owned(), 6_379)));
        assert_eq!(parse("::1:6379"), Some(("::1".to_owned(), 6_379)));
        assert_eq!(parse("[::1]:6379"), parse("::1:6379"));
        assert_eq!(
            parse(":6379"),
            Some(("h".to_owned(), 6_379)),
            "it does not know its own name"
        );
        assert_eq!((parse("6379"), parse("h:x")), (None, None));
        let shown = |text| HostPort::parse(text, &told_by).map(|place| place.to_string());
        assert_eq!(
            [shown("[::1]:1"), shown("h:1")],
            [Some("[::1]:1".to_owned()), Some("h:1".to_owned())]
        );
    }
}
