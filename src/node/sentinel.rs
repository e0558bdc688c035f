//! The address of a master that Sentinels name:
//! `redis-sentinel://[user:password@]host[:port][/db]?sentinelServiceName=name[&node=host:port..]`,
//! as fred writes it. Host and port are a Sentinel's, user and password those of the master.

use std::sync::Arc;

use fred::types::config::Config;
use url::Url;

use super::host_port::{HostPort, is_ordinary};
use super::naming::Naming;
use super::scheme::Several;
use crate::error::Error;

const PORT: u16 = 26_379;

/// The parts of such an address, except the credentials of the master.
pub(super) struct Named<'a> {
    several: Several<'a>,
    /// The Sentinels but the first.
    others: Group,
}

impl<'a> Named<'a> {
    /// Reads the address; returns `None` for any other.
    ///
    /// # Errors
    /// [`Error::Config`] for a parameter that cannot be used.
    pub(super) fn parse(text: &'a str) -> Option<Result<Self, Error>> {
        Several::parse(text, "sentinel").map(Self::read)
    }

    fn read(several: Several<'a>) -> Result<Self, Error> {
        let mut service = None;
        let mut others = Group::default();
        for (key, value) in several.parameters()? {
            match &*key {
                "sentinelServiceName" if is_ordinary(&value) => service = Some(value),
                "sentinelServiceName" => {
                    return Err(several
                        .refuse("a master's name has letters, digits and the characters - . _"));
                }
                "node" => others.places.push(several.place(&value)?),
                "sentinelUsername" => others.user = Some(value),
                "sentinelPassword" => others.password = Some(value),
                _ => {
                    let known = "known are sentinelServiceName, node, sentinelUsername and sentinelPassword";
                    return Err(several.refuse_parameter(known));
                }
            }
        }
        let Some(service) = service else {
            let reason = "it does not name the master: write ?sentinelServiceName=name";
            return Err(several.refuse(reason));
        };
        // As for a server: a user without a password has to name itself.
        if others.user.is_some() {
            others.password.get_or_insert_default();
        }
        others.service = service;
        Ok(Self { several, others })
    }

    /// Returns the part before the parameters, as the address of one server.
    pub(super) fn first(&self) -> &str {
        &self.several.first
    }

    /// Returns the address as it is shown, and the Sentinels. In `config` the first one stands for
    /// the server.
    pub(super) fn complete(self, shown: &str, config: &Config) -> (Arc<str>, Group) {
        let Self { several, others } = self;
        let has_port = Url::parse(&several.first).is_ok_and(|url| url.port().is_some());
        let mut name = several.shown(shown) + "?sentinelServiceName=" + &others.service;
        for place in &others.places {
            name += &format!("&node={place}");
        }
        let first = config.server.hosts().into_iter();
        let first = first.map(|server| {
            let port = if has_port { server.port } else { PORT };
            HostPort::new(&*server.host, port)
        });
        let places = first.chain(others.places).collect();
        (name.into(), Group { places, ..others })
    }
}

/// The Sentinels of a master.
#[derive(Default)]
#[cfg_attr(test, derive(Debug))]
pub(super) struct Group {
    /// Their name for the master.
    pub(super) service: String,
    pub(super) places: Vec<HostPort>,
    /// The user of the Sentinels.
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    /// Where the master is.
    pub(super) naming: Arc<Naming>,
}

#[cfg(test)]
mod tests {
    use super::super::access::Access;
    use super::super::address::Address;

    fn parse(text: &str) -> Address {
        Address::parse(text, &Access::default()).expect(text)
    }

    #[test]
    fn an_address_names_sentinels_the_master_and_both_credentials() {
        let text = "redis-sentinel://ann:secret@h/3?sentinelServiceName=locks&node=b:7&node=[::1]:8\
                    &sentinelPassword=hush";
        let address = parse(text);
        let shown = "redis-sentinel://ann:***@h/3?sentinelServiceName=locks&node=b:7&node=[::1]:8";
        assert_eq!(&*address.name, shown);
        let config = address.config();
        assert_eq!(
            (config.username.as_deref(), config.password.as_deref()),
            (Some("ann"), Some("secret"))
        );
        assert_eq!(config.database, Some(3));
        let (service, sentinels) = address.sentinels().expect("Sentinels");
        let places: Vec<_> = sentinels
            .iter()
            .map(|sentinel| sentinel.place().expect("a place"))
            .collect();
        let places: Vec<_> = places
            .iter()
            .map(|place| (&*place.host, place.port))
            .collect();
        assert_eq!(
            (service, &*places),
            ("locks", &[("h", 26_379), ("b", 7), ("::1", 8)][..])
        );
        let of_sentinel = sentinels[0].config();
        assert_eq!(
            (of_sentinel.username, of_sentinel.password.as_deref()),
            (None, Some("hush"))
        );
        assert_eq!(of_sentinel.database, None);
        assert!(parse("redis://h").sentinels().is_none());
    }

    #[test]
    fn what_is_no_such_address_is_refused_without_its_secrets() {
        for (text, why) in [
            ("redis-sentinel://h", "sentinelServiceName"),
            (
                "redis-sentinel://h?sentinelServiceName=a@secret",
                "letters, digits",
            ),
            (
                "redis-sentinel://h?sentinelServiceName=a&node=secret",
                "host:port",
            ),
            (
                "redis-sentinel://h?sentinelServiceName=a&secret=1",
                "not known",
            ),
            ("redis-sentinel://ann:1?secret@h", "percent-encode"),
            (
                "redis-sentinel://ann:1#secret@h?sentinelServiceName=a",
                "percent-encode",
            ),
            (
                "redis-sentinel://h?sentinelServiceName=a&sentinelPassword=secret%FF",
                "not percent-encoded UTF-8",
            ),
            ("valkey-sentinel://secret@h", "sentinelServiceName"),
        ] {
            let message = Address::parse(text, &Access::default())
                .expect_err(text)
                .to_string();
            assert!(
                message.contains(why) && !message.contains("secret"),
                "{text}: {message}"
            );
        }
    }
}
