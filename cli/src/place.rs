//! Where the locks are: the options that lead to the servers.

use std::env::{self, VarError};
use std::error::Error;
use std::fs;
use std::path::PathBuf;

use clap::Args;
use lockhound::{CredentialProvider, Credentials, LockerBuilder, Tls};

use crate::exit::Failure;

/// The variable with the password.
const PASSWORD: &str = "LOCKHOUND_PASSWORD";

/// The options that lead to the servers; every subcommand has them.
#[derive(Debug, Args)]
#[command(next_help_heading = "Servers")]
pub(crate) struct Place {
    /// Address of the server; repeat it for several independent ones (a quorum)
    ///
    /// redis://, redis-cluster://, redis-sentinel:// and redis+unix://; rediss:// and so on for
    /// TLS. The variable may have several addresses, separated by spaces.
    #[arg(
        long = "url",
        env = "LOCKHOUND_URL",
        hide_env_values = true,
        value_delimiter = ' '
    )]
    urls: Vec<String>,

    /// Name of the user whose password is in a file or in LOCKHOUND_PASSWORD
    ///
    /// Without it, the password is the default user's.
    #[arg(
        long,
        env = "LOCKHOUND_USER",
        hide_env_values = true,
        value_name = "NAME"
    )]
    user: Option<String>,

    /// File with the password; LOCKHOUND_PASSWORD has it otherwise, or the address
    ///
    /// It is read again at each reconnect, so the password may change. One line break at its end
    /// does not count.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,

    /// File with the certificates (PEM) of the CAs to trust, in place of the system's
    #[arg(long = "ca-file", value_name = "FILE")]
    ca_files: Vec<PathBuf>,

    /// File with the certificate (PEM) to show to the servers
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,

    /// File with the private key (PEM) of that certificate
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
}

impl Place {
    /// Returns a builder for these servers, with the other options that the environment gives
    /// (`LockerBuilder::from_env`).
    ///
    /// # Errors
    /// Says which option cannot be used. [`LockerBuilder::connect`] checks the addresses.
    pub(crate) fn builder(&self) -> Result<LockerBuilder, Failure> {
        let urls: Vec<&String> = self.urls.iter().filter(|url| !url.is_empty()).collect();
        if urls.is_empty() {
            let advice = "no server is named: use --url redis://host, or set LOCKHOUND_URL";
            return Err(Failure::usage(advice));
        }
        let mut builder = LockerBuilder::from_env()?.nodes(&urls);
        if let Some(password) = self.password()? {
            if urls.iter().any(|url| url.contains('@')) {
                return Err(Failure::usage(format!(
                    "an address has a user or a password, and {password} gives another: leave one of them out; \
                     --user names the user"
                )));
            }
            builder = builder.credentials(Login {
                user: self.user.clone(),
                password,
            });
        } else if self.user.is_some() {
            let advice =
                "a user is named, but no password: use --password-file, or set LOCKHOUND_PASSWORD";
            return Err(Failure::usage(advice));
        }
        if self.ca_files.is_empty() && self.cert.is_none() {
            return Ok(builder);
        }
        let mut tls = self.ca_files.iter().fold(Tls::new(), Tls::ca_file);
        if let Some((cert, key)) = self.cert.as_ref().zip(self.key.as_ref()) {
            tls = tls.client_files(cert, key);
        }
        Ok(builder.tls(tls))
    }

    /// Returns where the password comes from, if not from the addresses.
    fn password(&self) -> Result<Option<Password>, Failure> {
        if let Some(path) = &self.password_file {
            let password = Password::InFile(path.clone());
            password.read().map_err(Failure::usage)?;
            return Ok(Some(password));
        }
        match env::var(PASSWORD) {
            Ok(password) if password.is_empty() => Ok(None),
            Ok(password) => Ok(Some(Password::InEnvironment(password))),
            Err(VarError::NotPresent) => Ok(None),
            Err(VarError::NotUnicode(_)) => Err(Failure::usage(format!(
                "the password in {PASSWORD} is not UTF-8"
            ))),
        }
    }
}

/// A password that is not in an address. It shows its origin, and nothing else.
enum Password {
    InFile(PathBuf),
    InEnvironment(String),
}

impl Password {
    /// # Errors
    /// A text that names the file, and shows nothing of what is in it.
    fn read(&self) -> Result<String, String> {
        let path = match self {
            Self::InEnvironment(password) => return Ok(password.clone()),
            Self::InFile(path) => path,
        };
        let mut password = fs::read_to_string(path).map_err(|e| format!("{self}: {e}"))?;
        if password.ends_with('\n') {
            password.pop();
            if password.ends_with('\r') {
                password.pop();
            }
        }
        if password.is_empty() {
            return Err(format!("{self} is empty"));
        }
        Ok(password)
    }
}

impl std::fmt::Display for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::InFile(path) => write!(f, "the password file {}", path.display()),
            Self::InEnvironment(_) => f.write_str(PASSWORD),
        }
    }
}

/// Who logs in, asked at each connect.
struct Login {
    user: Option<String>,
    password: Password,
}

impl CredentialProvider for Login {
    async fn credentials(&self, _node: &str) -> Result<Credentials, Box<dyn Error + Send + Sync>> {
        let password = self.password.read()?;
        Ok(match &self.user {
            Some(user) => Credentials::new(user, password),
            None => Credentials::password(password),
        })
    }
}
