//! Encrypted connections: how servers are recognised, and the certificate that the client shows.

mod failures;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fred::rustls::client::WantsClientCert;
use fred::rustls::crypto::ring;
use fred::rustls::pki_types::pem::{self, PemObject};
use fred::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use fred::rustls::{self, ClientConfig, ConfigBuilder, RootCertStore};
use fred::rustls_native_certs::load_native_certs;
use fred::types::config::{TlsConfig, TlsConnector};

pub(super) use self::failures::cause;
use super::scheme;
use crate::error::Error;

/// How a locker recognises servers at encrypted addresses (`rediss://`).
///
/// It also has the certificate that the locker shows them.
/// [`LockerBuilder::tls`](crate::LockerBuilder::tls) takes it.
///
/// Without it a server's certificate has to be signed by a CA that the system trusts, or that
/// `SSL_CERT_FILE` or `SSL_CERT_DIR` names. The certificate always has to be for the host of the
/// address; no option disables the check.
///
/// [`connect`](crate::LockerBuilder::connect) reads the files once. If they are replaced while the
/// program runs, use a [`rustls::ClientConfig`] whose resolver reads them again.
///
/// The locker speaks TLS 1.2 and 1.3, by rustls with the cryptography of ring, which needs a C
/// compiler to build. A `ClientConfig` may bring another one.
///
/// # Examples
/// ```no_run
/// # async fn example() -> Result<(), lockhound::Error> {
/// use lockhound::{Locker, Tls};
///
/// let tls = Tls::new().ca_file("/etc/redis/ca.pem").client_files("/etc/redis/client.pem", "/etc/redis/client.key");
/// let locks = Locker::builder().node("rediss://redis.internal").tls(tls).connect().await?;
/// # Ok(())
/// # }
/// ```
///
/// [`rustls::ClientConfig`]: https://docs.rs/rustls/0.23/rustls/client/struct.ClientConfig.html
#[derive(Clone, Default)]
#[must_use = "it does nothing until `LockerBuilder::tls` takes it"]
pub struct Tls {
    ca_files: Vec<PathBuf>,
    client_files: Option<(PathBuf, PathBuf)>,
    ready: Option<Arc<ClientConfig>>,
}

impl Tls {
    /// Starts with the CAs of the system, and without a client certificate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts the CAs whose certificates are in this PEM file, and no longer those of the system.
    ///
    /// Called again, it adds the CAs of a further file.
    ///
    /// Defaults to the CAs of the system.
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_files.push(path.into());
        self
    }

    /// Shows a certificate to servers that ask for one (`tls-auth-clients`).
    ///
    /// The first PEM file has the certificate, and behind it the intermediate CAs. The second PEM
    /// file has the private key, which must not be encrypted.
    ///
    /// Defaults to none.
    pub fn client_files(
        mut self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.client_files = Some((certificate.into(), key.into()));
        self
    }

    /// # Errors
    /// [`Error::Config`] that names the file, or what contradicts what.
    pub(super) fn connector(&self) -> Result<TlsConfig, Error> {
        if let Some(ready) = &self.ready {
            if !self.ca_files.is_empty() || self.client_files.is_some() {
                return Err(refuse(
                    "files are given as well as a ClientConfig, which has all that they add: leave one of the two out",
                ));
            }
            return Ok(TlsConnector::from(ClientConfig::clone(ready)).into());
        }
        // Named, and not the process's default, of which there is none if two libraries bring one
        // each.
        let versions = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let versions = versions.with_safe_default_protocol_versions();
        let versions = versions.map_err(|e| refuse(format!("ring cannot be used: {e}")))?;
        let roots = if self.ca_files.is_empty() {
            system_roots()?
        } else {
            self.own_roots()?
        };
        let config = self.with_client(versions.with_root_certificates(roots))?;
        Ok(TlsConnector::from(config).into())
    }

    fn own_roots(&self) -> Result<RootCertStore, Error> {
        let mut roots = RootCertStore::empty();
        for path in &self.ca_files {
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|e| {
                    of_file(
                        path,
                        &format!("has a certificate that is not that of a CA: {e}"),
                    )
                })?;
            }
        }
        Ok(roots)
    }

    fn with_client(
        &self,
        config: ConfigBuilder<ClientConfig, WantsClientCert>,
    ) -> Result<ClientConfig, Error> {
        let Some((certificate, key)) = &self.client_files else {
            return Ok(config.with_no_client_auth());
        };
        let chain = certificates(certificate)?;
        let secret = PrivateKeyDer::from_pem_file(path_of(key)?).map_err(|e| {
            pem_problem(
                key,
                &e,
                "no private key in PEM form that is not encrypted (PKCS#8, PKCS#1 or SEC1)",
            )
        })?;
        config
            .with_client_auth_cert(chain, secret)
            .map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => of_file(
                    key,
                    &format!(
                        "has a key that does not belong to the certificate in {}",
                        certificate.display()
                    ),
                ),
                error => of_file(
                    certificate,
                    &format!("cannot be used with the key in {}: {error}", key.display()),
                ),
            })
    }
}

impl From<ClientConfig> for Tls {
    /// Uses this configuration as it is.
    fn from(config: ClientConfig) -> Self {
        Arc::new(config).into()
    }
}

impl From<Arc<ClientConfig>> for Tls {
    /// Uses this configuration as it is.
    fn from(config: Arc<ClientConfig>) -> Self {
        Self {
            ready: Some(config),
            ..Self::default()
        }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |path: &PathBuf| {
            path_of(path).map_or_else(|_| "***".to_owned(), |path| path.display().to_string())
        };
        f.debug_struct("Tls")
            .field(
                "ca_files",
                &self.ca_files.iter().map(shown).collect::<Vec<_>>(),
            )
            .field(
                "client_files",
                &self
                    .client_files
                    .as_ref()
                    .map(|(certificate, key)| [shown(certificate), shown(key)]),
            )
            .field("ready", &self.ready.is_some())
            .finish()
    }
}

/// # Errors
/// [`Error::Config`] for a host that no certificate can be for.
pub(super) fn check_host(name: &str, host: &str) -> Result<(), Error> {
    match ServerName::try_from(host) {
        Ok(_) => Ok(()),
        Err(_) => Err(scheme::refuse(
            name,
            "no certificate can be for such a host; write a DNS name or an IP",
        )),
    }
}

fn refuse(reason: impl Into<String>) -> Error {
    Error::config("tls", reason)
}

fn of_file(path: &Path, problem: &str) -> Error {
    refuse(format!("the file {} {problem}", path.display()))
}

/// Returns the path, if it may be shown.
///
/// # Errors
/// [`Error::Config`] if it is the text of a file instead of its path: it may be a private key.
fn path_of(path: &Path) -> Result<&Path, Error> {
    let text = path.to_string_lossy();
    if text.contains("-----BEGIN") || text.contains('\n') {
        return Err(refuse(
            "the path of a PEM file is needed, but its text was given: write the text to a file, and name that file",
        ));
    }
    Ok(path)
}

/// Returns the certificates in a PEM file, at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    const NONE: &str = "no certificate in PEM form (-----BEGIN CERTIFICATE-----)";
    let found = CertificateDer::pem_file_iter(path_of(path)?)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match found {
        Ok(found) if found.is_empty() => Err(of_file(path, &format!("has {NONE}"))),
        Ok(found) => Ok(found),
        Err(error) => Err(pem_problem(path, &error, NONE)),
    }
}

/// Returns what is wrong with a PEM file, without showing any of its content.
fn pem_problem(path: &Path, error: &pem::Error, none: &str) -> Error {
    match error {
        pem::Error::Io(error) => of_file(path, &format!("cannot be read: {error}")),
        pem::Error::NoItemsFound => of_file(path, &format!("has {none}")),
        _ => of_file(
            path,
            "is damaged: it begins like a PEM file but does not continue like one",
        ),
    }
}

fn system_roots() -> Result<RootCertStore, Error> {
    let found = load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found
            .errors
            .first()
            .map(|error| format!(" ({error})"))
            .unwrap_or_default();
        return Err(refuse(format!(
            "the system has no CA certificates{why}: install them, or name a CA with Tls::ca_file"
        )));
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(tls: &Tls) -> String {
        tls.connector().expect_err("it cannot be used").to_string()
    }

    /// Writes a temporary file with this text.
    fn file(name: &str, text: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("lockhound-{}-{name}", uuid::Uuid::new_v4()));
        std::fs::write(&path, text).expect("a directory for temporary files");
        path
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named_with_the_reason() {
        let missing = Tls::new().ca_file("/nowhere/ca.pem");
        assert!(
            refusal(&missing)
                .contains("tls: the file /nowhere/ca.pem cannot be read: No such file")
        );
        let empty = file("empty", "nothing\n");
        assert!(refusal(&Tls::new().ca_file(&empty)).contains("no certificate in PEM form"));
        let damaged = file("damaged", "-----BEGIN CERTIFICATE-----\nAAAA secret\n");
        let said = refusal(&Tls::new().ca_file(&damaged));
        assert!(
            said.contains("is damaged") && !said.contains("secret"),
            "{said}"
        );
        let other = file(
            "other",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        );
        assert!(refusal(&Tls::new().ca_file(&other)).contains("not that of a CA"));
        [empty, damaged, other]
            .iter()
            .for_each(|path| std::fs::remove_file(path).expect("it is there"));
    }

    #[test]
    fn a_client_certificate_belongs_to_its_key() {
        let own = || {
            let signed =
                rcgen::generate_simple_self_signed(["h".to_owned()]).expect("a certificate");
            (signed.cert.pem(), signed.signing_key.serialize_pem())
        };
        let (ca, (certificate, key), (_, other)) = (own(), own(), own());
        let paths = [&ca.0, &certificate, &key, &other].map(|text| file("own", text));
        let [ca, certificate, key, other] = &paths;
        let tls = |key: &PathBuf| Tls::new().ca_file(ca).client_files(certificate, key);
        assert!(tls(key).connector().is_ok());
        let said = refusal(&tls(other));
        assert!(
            said.contains("has a key that does not belong to the certificate in"),
            "{said}"
        );
        assert!(refusal(&tls(certificate)).contains("no private key in PEM form"));
        paths
            .iter()
            .for_each(|path| std::fs::remove_file(path).expect("it is there"));
    }

    #[test]
    fn a_key_instead_of_its_path_is_not_shown() {
        let text = "-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----\n";
        let ca = file(
            "ca",
            &rcgen::generate_simple_self_signed(["h".to_owned()])
                .expect("a certificate")
                .cert
                .pem(),
        );
        for tls in [
            Tls::new().ca_file(text),
            Tls::new().ca_file(&ca).client_files(&ca, text),
        ] {
            let shown = format!("{} {tls:?}", refusal(&tls));
            assert!(
                shown.contains("path of a PEM file") && !shown.contains("secret"),
                "{shown}"
            );
        }
        std::fs::remove_file(ca).expect("it is there");
    }

    #[test]
    fn files_in_addition_to_a_ready_configuration_are_refused() {
        let provider = Arc::new(ring::default_provider());
        let versions =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = versions
            .expect("ring")
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        assert!(Tls::from(config.clone()).connector().is_ok());
        assert!(
            refusal(&Tls::from(config).ca_file("ca.pem")).contains("as well as a ClientConfig")
        );
    }

    #[test]
    fn a_host_that_no_certificate_can_be_for_is_refused() {
        for host in ["redis.internal", "127.0.0.1", "::1"] {
            assert!(check_host("rediss://***", host).is_ok(), "{host}");
        }
        let said = check_host("rediss://a..b", "a..b")
            .expect_err("two dots")
            .to_string();
        assert!(
            said.contains("rediss://a..b") && said.contains("certificate"),
            "{said}"
        );
    }
}
