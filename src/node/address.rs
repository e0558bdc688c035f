//! The address of a server: `redis://` and `redis+unix://`, taken apart without ever showing the password.

use std::fmt;
use std::sync::Arc;

use fred::types::config::{Config, ServerConfig};
use url::Url;

use crate::error::Error;

const SCHEMES: &str = "redis://[user:password@]host[:port][/db], or redis+unix://[user:password@host]/path[?db=n] with \
                       the feature `unix`";

/// Where a server is, and as whom to connect. Its name, for people, hides the password.
pub(super) struct Address {
    pub(super) name: Arc<str>,
    config: Config,
}

impl Address {
    /// # Errors
    /// [`Error::Config`] that says what is wrong with the address, with its password as `***`.
    pub(super) fn parse(text: &str) -> Result<Self, Error> {
        let url = Url::parse(text).map_err(|e| refuse(&redact(text), &format!("{e}; write {SCHEMES}")))?;
        let name = redact_url(&url);
        if at_behind_authority(&url) || url.fragment().is_some() {
            return Err(refuse(&name, "in a password, write / as %2F, ? as %3F, # as %23 and @ as %40"));
        }
        let mut config = Config { fail_fast: true, ..Config::default() };
        config.username = decoded(&name, "user", url.username())?;
        config.password = url.password().map(|p| decoded(&name, "password", p)).transpose()?.flatten();
        if config.username.is_some() && config.password.is_none() {
            return Err(refuse(&name, "it has a user but no password; write redis://user:password@host"));
        }
        match url.scheme() {
            "redis" => {
                refuse_query(&name, &url, &[])?;
                let host = url.host_str().filter(|h| !h.is_empty());
                let host = host.ok_or_else(|| refuse(&name, "it names no host"))?;
                // An IPv6 address stands in brackets in a URL and without them for the resolver.
                let host = host.trim_start_matches('[').trim_end_matches(']');
                config.server = ServerConfig::new_centralized(host, url.port().unwrap_or(6379));
                config.database = database(&name, url.path().trim_start_matches('/'))?;
            }
            "redis+unix" | "unix" => {
                refuse_query(&name, &url, &["db"])?;
                config.server = unix_socket(&name, url.path())?;
                let db = url.query_pairs().find(|(k, _)| k == "db").map(|(_, v)| v.into_owned());
                config.database = database(&name, db.as_deref().unwrap_or_default())?;
            }
            "rediss" => return Err(refuse(&name, "encrypted connections (rediss://) are not supported yet")),
            other => return Err(refuse(&name, &format!("the scheme {other}:// is not known; write {SCHEMES}"))),
        }
        Ok(Self { name: name.into(), config })
    }

    pub(super) fn config(&self) -> Config {
        self.config.clone()
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({})", self.name)
    }
}

fn refuse(name: &str, reason: &str) -> Error {
    Error::config("node", format!("the address {name} cannot be used: {reason}"))
}

fn refuse_query(name: &str, url: &Url, known: &[&str]) -> Result<(), Error> {
    match url.query_pairs().find(|(key, _)| !known.contains(&key.as_ref())) {
        Some((key, _)) => Err(refuse(name, &format!("the parameter {key:?} is not known"))),
        None => Ok(()),
    }
}

fn decoded(name: &str, what: &str, part: &str) -> Result<Option<String>, Error> {
    if part.is_empty() {
        return Ok(None);
    }
    // The query parser is the percent-decoder that `url` makes public; a literal plus sign has to survive it.
    let query = format!("v={}", part.replace('+', "%2B").replace('&', "%26"));
    let value = url::form_urlencoded::parse(query.as_bytes()).next().map(|(_, v)| v.into_owned());
    match value {
        Some(value) if !value.contains(char::REPLACEMENT_CHARACTER) => Ok(Some(value)),
        _ => Err(refuse(name, &format!("the {what} is not percent-encoded UTF-8"))),
    }
}

fn database(name: &str, text: &str) -> Result<Option<u8>, Error> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| refuse(name, &format!("the database {text:?} is not a number from 0 to 255")))
}

#[cfg(feature = "unix")]
fn unix_socket(name: &str, path: &str) -> Result<ServerConfig, Error> {
    if path.trim_matches('/').is_empty() {
        return Err(refuse(name, "it names no socket file"));
    }
    Ok(ServerConfig::new_unix_socket(path))
}

#[cfg(not(feature = "unix"))]
fn unix_socket(name: &str, _path: &str) -> Result<ServerConfig, Error> {
    Err(refuse(name, "sockets of this machine need the crate's feature `unix`"))
}

fn redact_url(url: &Url) -> String {
    if url.cannot_be_a_base() || at_behind_authority(url) {
        return redact(url.as_str());
    }
    if url.password().is_none() {
        return url.to_string();
    }
    let mut redacted = url.clone();
    match redacted.set_password(Some("***")) {
        Ok(()) => redacted.to_string(),
        Err(()) => redact(url.as_str()),
    }
}

/// An `@` there is the end of a password whose `/`, `?` or `#` is not percent-encoded.
fn at_behind_authority(url: &Url) -> bool {
    [Some(url.path()), url.query(), url.fragment()].iter().flatten().any(|part| part.contains('@'))
}

/// Hides whatever may be a password in text that is not an address: all from the first `//` to the last `@`.
fn redact(text: &str) -> String {
    match (text.find("//"), text.rfind('@')) {
        (Some(start), Some(end)) if start + 2 <= end => format!("{}***{}", &text[..start + 2], &text[end..]),
        (None, Some(end)) => format!("***{}", &text[end..]),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        Address::parse(text).expect_err(text).to_string()
    }

    #[test]
    fn takes_addresses_apart() {
        let full = Address::parse("redis://ann:p%40ss+w&d@[::1]:7000/3").expect("valid");
        let config = full.config();
        assert_eq!(config.username.as_deref(), Some("ann"));
        assert_eq!(config.password.as_deref(), Some("p@ss+w&d"));
        assert_eq!(config.database, Some(3));
        assert_eq!(config.server.hosts()[0].to_string(), "::1:7000");
        assert_eq!(Address::parse("redis://h").expect("valid").config().server.hosts()[0].port, 6379);
        assert_eq!(Address::parse("redis://:pw@h").expect("valid").config().password.as_deref(), Some("pw"));
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
            "rediss://ann:secret@h",
            "redis://ann:secret@",
            "redis://ann:1#secret@h",
            "redis://ann:1?secret@h",
            "redis://ann:1/secret@h",
        ];
        for text in texts {
            let message = refusal(text);
            assert!(!message.contains("secret") && message.contains("***"), "{message}");
        }
        let address = Address::parse("redis://ann:secret@h").expect("valid");
        assert!(!format!("{address:?}").contains("secret"));
        assert_eq!(&*address.name, "redis://ann:***@h");
    }

    #[test]
    fn refusals_name_what_is_wrong() {
        assert!(refusal("redis://h/300").contains("\"300\""));
        assert!(refusal("valkey://h").contains("valkey://"));
        assert!(refusal("redis://ann@h").contains("no password"));
        assert!(refusal("redis://h?timeout=3").contains("\"timeout\""));
    }

    #[cfg(feature = "unix")]
    #[test]
    fn sockets_of_this_machine() {
        let address = Address::parse("redis+unix:///tmp/redis.sock?db=2").expect("valid");
        assert_eq!(address.config().database, Some(2));
        assert!(address.config().server.is_unix_socket());
        assert!(refusal("redis+unix:///").contains("no socket file"));
    }

    #[cfg(not(feature = "unix"))]
    #[test]
    fn sockets_of_this_machine_need_the_feature() {
        assert!(refusal("redis+unix:///tmp/redis.sock").contains("`unix`"));
    }
}
