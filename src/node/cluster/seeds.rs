//! The address of a cluster: `redis-cluster://host:port?node=host:port`. It names one or several
//! servers, which tell the others.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::super::access::Access;
use super::super::address::Address;
use super::super::host_port::HostPort;
use super::super::scheme::{Several, refuse};
use crate::error::{Error, NodeFailure};

const KIND: &str = "cluster";

/// Some of the servers of a cluster, and the credentials for all of them.
pub(crate) struct Seeds {
    pub(crate) name: Arc<str>,
    pub(super) addresses: Vec<Arc<Address>>,
}

impl Seeds {
    /// Reads the address of a cluster; returns `None` for any other.
    ///
    /// # Errors
    /// As [`Address::parse`]; [`Error::Config`] for a database other than 0, the only one that a
    /// cluster has.
    pub(in crate::node) fn parse(text: &str, access: &Access) -> Option<Result<Self, Error>> {
        Several::parse(text, KIND).map(|several| Self::read(&several, access))
    }

    fn read(several: &Several<'_>, access: &Access) -> Result<Self, Error> {
        let (name, others) = read_parameters(several)?;
        let first = Address::parse(&several.first, access)?.of_cluster();
        if first.database().is_some_and(|database| database != 0) {
            let reason = "a cluster has no databases but 0; leave out the part behind the host";
            return Err(refuse(&name, reason));
        }
        let others: Vec<_> = others
            .iter()
            .map(|place| Arc::new(first.at(place)))
            .collect();
        let addresses = [vec![Arc::new(first)], others].concat();
        Ok(Self { name, addresses })
    }

    /// Returns the name of a cluster's address, without making it usable for connecting.
    pub(in crate::node) fn name_of(text: &str) -> Option<Result<Arc<str>, Error>> {
        Several::parse(text, KIND).map(|several| Ok(read_parameters(&several)?.0))
    }

    /// Returns why connecting to them failed, if it did.
    pub(in crate::node) fn last_failure(&self) -> Option<NodeFailure> {
        self.addresses
            .iter()
            .find_map(|address| address.last_failure())
    }

    /// Returns why none of them could be connected to for the whole of `bound`.
    pub(in crate::node) fn away(&self, bound: Duration) -> NodeFailure {
        self.last_failure()
            .unwrap_or_else(|| self.addresses[0].away(bound))
    }
}

/// Returns the name of the address, and its servers except the first.
fn read_parameters(several: &Several<'_>) -> Result<(Arc<str>, Vec<HostPort>), Error> {
    let mut name = several.shown(&Address::name_of(&several.first)?);
    let mut others = Vec::new();
    for (key, value) in several.parameters()? {
        if key != "node" {
            return Err(several.refuse_parameter("write ?node=host:port for further servers"));
        }
        let sign = if others.is_empty() { '?' } else { '&' };
        others.push(several.place(&value)?);
        name += &format!("{sign}node={value}");
    }
    Ok((name.into(), others))
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
        Seeds::parse(text, &Access::default())
            .expect("a cluster's")
            .expect(text)
    }

    fn refusal(text: &str) -> String {
        Seeds::parse(text, &Access::default())
            .expect("a cluster's")
            .expect_err(text)
            .to_string()
    }

    #[test]
    fn one_address_or_several_name_a_cluster() {
        let names = |text| {
            seeds(text)
                .addresses
                .iter()
                .map(|address| address.name.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(names("redis-cluster://h:7000"), ["redis://h:7000"]);
        assert_eq!(
            names("valkey-cluster://ann:secret@h?node=b:7001&node=[::1]:7002"),
            [
                "redis://ann:***@h",
                "redis://ann:***@b:7001",
                "redis://ann:***@[::1]:7002"
            ]
        );
        assert_eq!(
            &*seeds("redis-cluster://ann:secret@h?node=b:7001").name,
            "redis-cluster://ann:***@h?node=b:7001"
        );
        assert!(Seeds::name_of("redis://h").is_none() && Seeds::name_of("secret").is_none());
    }

    #[test]
    fn what_is_no_cluster_address_is_refused_without_its_secrets() {
        for (text, why) in [
            ("redis-cluster://h/3", "no databases but 0"),
            ("redis-cluster://h?nodes=secret", "?node=host:port"),
            ("redis-cluster://h?node=secret", "is not host:port"),
            ("redis-cluster://h?node=secret@b:1", "is not host:port"),
            ("redis-cluster://ann:1?secret@h", "percent-encode"),
            ("redis-cluster://ann:se/cret@h", "percent-encode"),
            ("redis-cluster://ann:secret", "***"),
            ("redis-cluster://", "***"),
        ] {
            let message = refusal(text);
            assert!(
                message.contains(why) && !message.contains("secret"),
                "{text}: {message}"
            );
        }
    }
}
