//! What the servers of a locker are given besides their addresses: how they are recognised, and who connects.

use std::sync::Arc;
#[cfg(feature = "tls")]
use std::sync::OnceLock;

use fred::types::config::Config;
#[cfg(feature = "tls")]
use fred::types::config::TlsConfig;

use super::login::{Login, Provider};
use super::scheme::Way;
#[cfg(feature = "tls")]
use super::tls::{self, Tls};
use crate::error::Error;

/// What all servers of a locker are given.
#[derive(Default)]
pub(crate) struct Access {
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
    /// Made for the first address that needs it: the files are read once.
    #[cfg(feature = "tls")]
    connector: OnceLock<TlsConfig>,
    provider: Option<Arc<Provider>>,
}

impl Access {
    /// Has a provider asked for the credentials.
    pub(crate) fn with_provider(mut self, provider: Option<Provider>) -> Self {
        self.provider = provider.map(Arc::new);
        self
    }

    /// Has servers at encrypted addresses recognised by this.
    #[cfg(feature = "tls")]
    pub(crate) fn with_tls(mut self, tls: Option<Tls>) -> Self {
        self.tls = tls;
        self
    }

    /// Makes sure that what is given is of use, now that all addresses have been given it.
    ///
    /// # Errors
    /// [`Error::Config`] if there are options for encrypted connections and no connection is encrypted: whoever gives
    /// them wants them to be.
    pub(crate) fn check_use(&self) -> Result<(), Error> {
        #[cfg(feature = "tls")]
        if self.tls.is_some() && self.connector.get().is_none() {
            return Err(Error::config(
                "tls",
                "it is given, and no address is an encrypted one; write rediss:// in the place of redis://",
            ));
        }
        Ok(())
    }

    pub(super) fn has_provider(&self) -> bool {
        self.provider.is_some()
    }

    /// Completes what the client is set to for the server of this name.
    ///
    /// # Errors
    /// [`Error::Config`] if that cannot be used.
    pub(super) fn give(&self, name: &Arc<str>, way: Way, config: &mut Config) -> Result<(), Error> {
        if let Some(provider) = &self.provider {
            if config.password.is_some() {
                let problem =
                    format!("the address {name} has a password, which a provider is to give: leave one of them out");
                return Err(Error::config("credentials", problem));
            }
            config.credential_provider = Some(Arc::new(Login::new(Arc::clone(name), Arc::clone(provider))));
        }
        match way {
            Way::Plain | Way::Socket => Ok(()),
            Way::Encrypted => self.encrypt(name, config),
        }
    }

    #[cfg(feature = "tls")]
    fn encrypt(&self, name: &Arc<str>, config: &mut Config) -> Result<(), Error> {
        tls::check_host(name, config.server.hosts().first().map_or("", |server| &server.host))?;
        let connector = match self.connector.get() {
            Some(connector) => connector.clone(),
            None => {
                let made = self.tls.clone().unwrap_or_default().connector()?;
                self.connector.get_or_init(|| made).clone()
            }
        };
        config.tls = Some(connector);
        Ok(())
    }

    /// Such an address is refused before.
    #[cfg(not(feature = "tls"))]
    fn encrypt(&self, name: &Arc<str>, _: &mut Config) -> Result<(), Error> {
        Err(Error::config("node", format!("{name} needs the crate's feature `tls`")))
    }
}
