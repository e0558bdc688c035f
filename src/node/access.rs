//! What the servers of a locker have in common besides their addresses: TLS options and
//! credentials.

use std::sync::Arc;
#[cfg(feature = "tls")]
use std::sync::OnceLock;

use fred::types::config::Config;
#[cfg(feature = "tls")]
use fred::types::config::TlsConfig;

use super::login::{Login, Provider};
use super::scheme::Transport;
#[cfg(feature = "tls")]
use super::tls::{self, Tls};
use crate::error::Error;

/// The TLS options and the credential provider for all servers of a locker.
#[derive(Default)]
pub(crate) struct Access {
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
    /// Made for the first address that needs it, so the files are read once.
    #[cfg(feature = "tls")]
    connector: OnceLock<TlsConfig>,
    provider: Option<Arc<Provider>>,
}

impl Access {
    /// Sets the provider that is asked for credentials.
    pub(crate) fn with_provider(mut self, provider: Option<Provider>) -> Self {
        self.provider = provider.map(Arc::new);
        self
    }

    /// Sets the TLS options for encrypted addresses.
    #[cfg(feature = "tls")]
    pub(crate) fn with_tls(mut self, tls: Option<Tls>) -> Self {
        self.tls = tls;
        self
    }

    /// Checks that what is given is used, once all addresses have been read.
    ///
    /// # Errors
    /// [`Error::Config`] if there are TLS options but no address is encrypted: a user who gives
    /// them wants encryption.
    pub(crate) fn check_use(&self) -> Result<(), Error> {
        #[cfg(feature = "tls")]
        if self.tls.is_some() && self.connector.get().is_none() {
            return Err(Error::config(
                "tls",
                "it is given, but no address is an encrypted one; write rediss:// instead of redis://",
            ));
        }
        Ok(())
    }

    pub(super) fn has_provider(&self) -> bool {
        self.provider.is_some()
    }

    /// Completes the client's configuration for the server of this name.
    ///
    /// # Errors
    /// [`Error::Config`] if the credentials or the TLS options cannot be used.
    pub(super) fn give(
        &self,
        name: &Arc<str>,
        way: Transport,
        config: &mut Config,
    ) -> Result<(), Error> {
        if let Some(provider) = &self.provider {
            if config.password.is_some() {
                let problem = format!(
                    "the address {name} has a user or a password, which a provider is to give: leave one of them out"
                );
                return Err(Error::config("credentials", problem));
            }
            config.credential_provider =
                Some(Arc::new(Login::new(Arc::clone(name), Arc::clone(provider))));
        }
        match way {
            Transport::Plain | Transport::Socket => Ok(()),
            Transport::Encrypted => self.encrypt(name, config),
        }
    }

    #[cfg(feature = "tls")]
    fn encrypt(&self, name: &Arc<str>, config: &mut Config) -> Result<(), Error> {
        tls::check_host(
            name,
            config
                .server
                .hosts()
                .first()
                .map_or("", |server| &server.host),
        )?;
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

    /// Never reached: such an address is refused before.
    #[cfg(not(feature = "tls"))]
    fn encrypt(&self, name: &Arc<str>, _: &mut Config) -> Result<(), Error> {
        Err(Error::config(
            "node",
            format!("{name} needs the crate's feature `tls`"),
        ))
    }
}
