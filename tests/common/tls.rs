//! A private CA, the certificates that it signs, and servers that show them.

use std::path::{Path, PathBuf};

use lockhound::Tls;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use super::Server;

/// The names of this machine that its servers' certificates are for.
pub const HOSTS: [&str; 3] = ["127.0.0.1", "::1", "localhost"];

/// A CA, whose files are deleted when it is dropped.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    directory: PathBuf,
}

/// The PEM files of a certificate and its key.
#[derive(Debug, Clone)]
pub struct Files {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    pub fn new() -> Self {
        let directory = std::env::temp_dir().join(format!("lockhound-ca-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&directory).unwrap();
        let mut params = CertificateParams::default();
        // No other CA has this name.
        params
            .distinguished_name
            .push(DnType::CommonName, directory.display().to_string());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(directory.join("ca.pem"), certificate.pem()).unwrap();
        Self {
            issuer: Issuer::new(params, key),
            directory,
        }
    }

    /// Returns the path of the CA's certificate.
    pub fn file(&self) -> PathBuf {
        self.directory.join("ca.pem")
    }

    /// Returns settings that trust this CA and no other.
    pub fn trusted(&self) -> Tls {
        Tls::new().ca_file(self.file())
    }

    /// Issues a certificate for these hosts.
    pub fn issue(&self, hosts: &[&str]) -> Files {
        self.issue_with(hosts, |_| ())
    }

    /// Issues a certificate for these hosts, with a change.
    pub fn issue_with(&self, hosts: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Files {
        let name = uuid::Uuid::new_v4();
        let files = Files {
            certificate: self.directory.join(format!("{name}.pem")),
            key: self.directory.join(format!("{name}.key")),
        };
        self.issue_into(&files, hosts, change);
        files
    }

    /// Issues a certificate into these files, and overwrites what they contain.
    pub fn issue_into(
        &self,
        files: &Files,
        hosts: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) {
        let mut params = CertificateParams::new(
            hosts
                .iter()
                .map(|&host| host.to_owned())
                .collect::<Vec<_>>(),
        )
        .unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate: Certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(&files.certificate, certificate.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
    }

    /// Starts a server with a certificate for this machine.
    pub fn server(&self) -> Server {
        self.server_with(&self.issue(&HOSTS), &[])
    }

    /// Starts a server with this certificate and further arguments. It trusts this CA, and asks for
    /// no client certificate unless the arguments say so.
    pub fn server_with(&self, files: &Files, args: &[&str]) -> Server {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let (certificate, key, ca) = (
            text(&files.certificate),
            text(&files.key),
            text(&self.file()),
        );
        let tls = [
            "--tls-cert-file",
            &certificate,
            "--tls-key-file",
            &key,
            "--tls-ca-cert-file",
            &ca,
        ];
        let clients = if args.contains(&"--tls-auth-clients") {
            &[][..]
        } else {
            &["--tls-auth-clients", "no"]
        };
        Server::start_with(&[&tls, clients, args].concat())
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.directory));
    }
}
