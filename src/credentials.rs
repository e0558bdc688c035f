//! Credentials, and the trait by which a program provides them.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// A user and a password.
///
/// `Debug` shows neither.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    user: Option<String>,
    password: String,
}

impl Credentials {
    /// Creates the credentials of this user.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self {
            user: Some(user.into()),
            password: password.into(),
        }
    }

    /// Creates the credentials of the server's default user.
    pub fn password(password: impl Into<String>) -> Self {
        Self {
            user: None,
            password: password.into(),
        }
    }

    pub(crate) fn into_parts(self) -> (Option<String>, String) {
        (self.user, self.password)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(***)")
    }
}

/// Provides credentials that change.
///
/// They come, for example, from a secret store, a file that is replaced, or a token service.
/// [`LockerBuilder::credentials`](crate::LockerBuilder::credentials) takes a provider.
///
/// The locker asks it at each connect and reconnect of each connection, and at no other time. A
/// replaced password does not affect established connections; the next connection uses the new one.
/// The provider may return the old password while a server accepts both, and has to return the new
/// one as soon as a server no longer accepts the old one.
///
/// It runs on a thread of its own, "lockhound-creds", with a tokio runtime: it may use tokio's
/// timers and sockets. It may block: that delays other connects that ask it meanwhile, but no
/// renewal on an established connection.
///
/// # Examples
/// ```no_run
/// use std::path::PathBuf;
///
/// use lockhound::{CredentialProvider, Credentials, Locker};
///
/// /// A password in a file, as orchestrators mount it.
/// struct Mounted(PathBuf);
///
/// impl CredentialProvider for Mounted {
///     async fn credentials(
///         &self,
///         _node: &str,
///     ) -> Result<Credentials, Box<dyn std::error::Error + Send + Sync>> {
///         let password = std::fs::read_to_string(&self.0)?;
///         Ok(Credentials::new("app", password.trim_end()))
///     }
/// }
///
/// # async fn example() -> Result<(), lockhound::Error> {
/// let locks = Locker::builder()
///     .node("redis://127.0.0.1:6379")
///     .credentials(Mounted("/run/secrets/redis".into()))
///     .connect()
///     .await?;
/// # Ok(())
/// # }
/// ```
pub trait CredentialProvider: Send + Sync + 'static {
    /// Returns the credentials for a connection to the server at this address.
    ///
    /// The call may take half of [`connect_timeout`](crate::LockerBuilder::connect_timeout).
    ///
    /// # Errors
    /// Any error. The connect fails with it, and is retried as after any other failure. Errors and
    /// logs show the text of the error: put no secret into it. A panic counts as an error.
    ///
    /// # Cancel safety
    /// The locker drops the future when its time is over, or when the locker is closed or dropped.
    fn credentials(
        &self,
        node: &str,
    ) -> impl Future<Output = Result<Credentials, Box<dyn Error + Send + Sync>>> + Send;
}

impl<P: CredentialProvider> CredentialProvider for Arc<P> {
    fn credentials(
        &self,
        node: &str,
    ) -> impl Future<Output = Result<Credentials, Box<dyn Error + Send + Sync>>> + Send {
        P::credentials(self, node)
    }
}

/// The future of a provider's answer.
pub(crate) type CredentialsFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Credentials, Box<dyn Error + Send + Sync>>> + Send + 'a>>;

/// A [`CredentialProvider`] of any type.
pub(crate) trait AnyProvider: Send + Sync {
    fn ask<'a>(&'a self, node: &'a str) -> CredentialsFuture<'a>;
}

impl<P: CredentialProvider> AnyProvider for P {
    fn ask<'a>(&'a self, node: &'a str) -> CredentialsFuture<'a> {
        Box::pin(self.credentials(node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_not_shown() {
        let shown = format!(
            "{:?} {:?}",
            Credentials::new("ann", "secret"),
            Credentials::password("secret")
        );
        assert_eq!(shown, "Credentials(***) Credentials(***)");
    }
}
