//! The address of a cluster: `redis-cluster://host:port?node=host:port`, one or several of its servers, which tell the others.

use std::fmt;
use std::sync::Arc;

use super::super::address::Address;
use super::super::place::Place;
use crate::error::Error;

/// Some of the servers of a cluster, and as whom to connect to all of them.
pub(crate) struct Seeds {
    pub(crate) name: Arc<str>,
    pub(super) addresses: Vec<Arc<Address>>,
}

impl Seeds {
    /// Reads the address of a cluster; `None` for any other.
    ///
    /// # Errors
    /// As [`Address::parse`]; [`Error::Config`] for a database, which a cluster has only one of.
    pub(in crate::node) fn parse(text: &str) -> Option<Result<Self, Error>> {
        let (before, rest) = text.split_once("://")?;
        let scheme = before.trim().to_ascii_lowercase();
        let base = match &*scheme {
            "redis-cluster" | "valkey-cluster" => "redis",
            "rediss-cluster" | "valkeys-cluster" => "rediss",
            _ => return None,
        };
        Some(Self::read(&scheme, base, rest))
    }

    fn read(scheme: &str, base: &str, rest: &str) -> Result<Self, Error> {
        let refuse =
            |reason: &str| Error::config("node", format!("the address {scheme}://*** cannot be used: {reason}"));
        let (server, query) = rest.split_once('?').unwrap_or((rest, ""));
        let first = Arc::new(Address::parse(&format!("{base}://{server}"))?);
        if first.database().is_some_and(|database| database != 0) {
            return Err(refuse("a cluster has no databases but 0; leave what stands behind the host out"));
        }
        let at = first.place().ok_or_else(|| refuse("it names no host"))?;
        let mut name = format!("{scheme}://{}", first.name.split_once("://").map_or("", |(_, rest)| rest));
        let mut addresses = vec![Arc::clone(&first)];
        for (key, value) in url::form_urlencoded::parse(query.as_bytes()) {
            if key != "node" {
                return Err(refuse("it has a parameter that is not known; write ?node=host:port for further servers"));
            }
            let ordinary = value.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b));
            let place = Place::parse(&value, &at).filter(|_| ordinary);
            let place = place.ok_or_else(|| refuse("a parameter \"node\" is not host:port"))?;
            name += &format!("{}node={value}", if addresses.len() == 1 { '?' } else { '&' });
            addresses.push(Arc::new(first.at(&place)));
        }
        Ok(Self { name: name.into(), addresses })
    }
}

impl fmt::Debug for Seeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seeds({})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seeds(text: &str) -> Seeds {
        Seeds::parse(text).expect("a cluster's").expect(text)
    }

    fn refusal(text: &str) -> String {
        Seeds::parse(text).expect("a cluster's").expect_err(text).to_string()
    }

    #[test]
    fn one_address_or_several_name_a_cluster() {
        let names = |text| seeds(text).addresses.iter().map(|address| address.name.to_string()).collect::<Vec<_>>();
        assert_eq!(names("redis-cluster://h:7000"), ["redis://h:7000"]);
        assert_eq!(
            names("valkey-cluster://ann:secret@h?node=b:7001&node=[::1]:7002"),
            ["redis://ann:***@h", "redis://ann:***@b:7001", "redis://ann:***@[::1]:7002"]
        );
        assert_eq!(&*seeds("redis-cluster://ann:secret@h?node=b:7001").name, "redis-cluster://ann:***@h?node=b:7001");
        assert!(Seeds::parse("redis://h").is_none() && Seeds::parse("secret").is_none());
    }

    #[test]
    fn what_is_no_address_of_a_cluster_is_refused_without_its_secrets() {
        for (text, why) in [
            ("redis-cluster://h/3", "no databases but 0"),
            ("redis-cluster://h?nodes=secret", "?node=host:port"),
            ("redis-cluster://h?node=secret", "is not host:port"),
            ("redis-cluster://h?node=secret@b:1", "is not host:port"),
            ("redis-cluster://ann:1?secret@h", "***"),
            ("redis-cluster://ann:secret", "***"),
            ("redis-cluster://", "***"),
        ] {
            let message = refusal(text);
            assert!(message.contains(why) && !message.contains("secret"), "{text}: {message}");
        }
    }
}
