//! Says in plain words why a connection could not be encrypted, and what to do.
//!
//! fred passes on the `Debug` text of rustls's errors. An error that is not known here is shown as
//! it is.

use crate::shown::cut;

/// The most names of a certificate that are shown.
const NAMES: usize = 3;

/// Returns why TLS failed, if that is what an error says. The next connect fails in the same way,
/// unless somebody changes something.
pub(in crate::node) fn cause(details: &str) -> Option<String> {
    // An IO error with one of rustls inside.
    let error = details.strip_prefix("Custom { kind: InvalidData, error: ")?;
    let error = error.strip_suffix(" }").unwrap_or(error);
    let (kind, inner) = error.split_once('(').unwrap_or((error, ""));
    let inner = inner.strip_suffix(')').unwrap_or(inner);
    Some(match kind {
        "InvalidCertificate" => certificate(inner),
        "AlertReceived" => alert(inner),
        "InvalidMessage" => {
            "it does not speak TLS on this port: write redis://, or the port on which it does"
                .to_owned()
        }
        "PeerIncompatible" => {
            format!(
                "it has no version or cipher of TLS in common with this program ({})",
                cut(inner.as_bytes())
            )
        }
        "NoCertificatesPresented" => "it shows no certificate".to_owned(),
        "PeerMisbehaved" => format!("it breaks the rules of TLS ({})", cut(inner.as_bytes())),
        _ => return None,
    })
}

/// Returns what is wrong with the server's certificate.
fn certificate(error: &str) -> String {
    let (name, about) = error.split_once([' ', '(']).unwrap_or((error, ""));
    match name {
        "UnknownIssuer" => {
            "its certificate is signed by no CA that is trusted here: name the file of its CA with Tls::ca_file"
                .to_owned()
        }
        "NotValidForName" | "NotValidForNameContext" => format!(
            "its certificate is not for the host of this address{}: write the address with a name that the certificate \
             has, or have one made for this host",
            presented(about)
        ),
        "Expired" | "ExpiredContext" => {
            "its certificate has expired: have it renewed, unless the clock of this machine is wrong".to_owned()
        }
        "NotValidYet" | "NotValidYetContext" => {
            "its certificate is not valid yet: the clock of this machine, or of the one that made it, is wrong"
                .to_owned()
        }
        "Revoked" => "its certificate was revoked: have another one made".to_owned(),
        "InvalidPurpose" | "InvalidPurposeContext" => {
            "its certificate is not for servers: have one made with the purpose serverAuth".to_owned()
        }
        "Other" if about.contains("CaUsedAsEndEntity") => {
            "its certificate is that of a CA: have one made for the server, signed by that CA".to_owned()
        }
        _ => format!("its certificate cannot be used ({})", cut(error.as_bytes())),
    }
}

/// Returns the hosts that a certificate is for, ` (it is for a, b)`, if the error names them.
fn presented(about: &str) -> String {
    let names = about
        .split_once("presented: [")
        .map_or("", |(_, names)| names);
    let names = names
        .split(['(', ')'])
        .skip(1)
        .step_by(2)
        .map(|name| name.trim_matches(['\\', '"'].as_slice()));
    let names: Vec<&str> = names.filter(|name| !name.is_empty()).take(NAMES).collect();
    if names.is_empty() {
        String::new()
    } else {
        format!(" (it is for {})", cut(names.join(", ").as_bytes()))
    }
}

/// Returns what the server's alert says about this program.
fn alert(name: &str) -> String {
    let name = cut(name.as_bytes());
    match &*name {
        "CertificateRequired" => {
            "it wants a client certificate: name its files with Tls::client_files".to_owned()
        }
        "UnknownCA"
        | "UnknownCa"
        | "BadCertificate"
        | "UnsupportedCertificate"
        | "CertificateRevoked"
        | "CertificateExpired"
        | "CertificateUnknown"
        | "AccessDenied"
        | "DecryptError" => {
            format!(
                "it refuses the client certificate ({name}): have one made that a CA has signed which the server trusts"
            )
        }
        // Up to TLS 1.2 this alert may also mean that a client certificate is missing.
        "HandshakeFailure" => format!(
            "it ends the handshake ({name}): it wants a client certificate (Tls::client_files), or has no cipher in \
             common with this program"
        ),
        "ProtocolVersion" | "InsufficientSecurity" => {
            format!("it has no version or cipher of TLS in common with this program ({name})")
        }
        _ => format!("it ends the encrypted connection ({name})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(error: &str) -> String {
        cause(&format!("Custom {{ kind: InvalidData, error: {error} }}")).expect(error)
    }

    #[test]
    fn each_cause_says_what_to_do() {
        for (error, words) in [
            ("InvalidCertificate(UnknownIssuer)", "Tls::ca_file"),
            ("InvalidCertificate(Expired)", "has expired"),
            (
                "InvalidCertificate(ExpiredContext { time: UnixTime(2), not_after: UnixTime(1) })",
                "has expired",
            ),
            ("InvalidCertificate(NotValidYet)", "clock"),
            (
                "InvalidCertificate(NotValidForName)",
                "not for the host of this address: write",
            ),
            (
                "InvalidCertificate(Other(OtherError(CaUsedAsEndEntity)))",
                "is that of a CA",
            ),
            (
                "InvalidCertificate(BadSignature)",
                "cannot be used (BadSignature)",
            ),
            ("AlertReceived(CertificateRequired)", "Tls::client_files"),
            ("AlertReceived(HandshakeFailure)", "Tls::client_files"),
            (
                "AlertReceived(CertificateExpired)",
                "refuses the client certificate (CertificateExpired)",
            ),
            (
                "AlertReceived(InternalError)",
                "ends the encrypted connection (InternalError)",
            ),
            ("InvalidMessage(InvalidContentType)", "does not speak TLS"),
            (
                "PeerIncompatible(ServerDoesNotSupportTls12Or13)",
                "no version or cipher",
            ),
        ] {
            assert!(of(error).contains(words), "{}", of(error));
        }
    }

    #[test]
    fn the_names_of_a_certificate_are_shown() {
        let names = [
            r#"presented: ["DnsName(\"a.example\")", "IpAddress(10.0.0.1)", "#,
            r#""DnsName(\"c\")", "DnsName(\"d\")"] }"#,
        ]
        .concat();
        let error = format!(
            "InvalidCertificate(NotValidForNameContext {{ expected: DnsName(\"h\"), {names})"
        );
        assert!(
            of(&error).contains("(it is for a.example, 10.0.0.1, c)"),
            "{}",
            of(&error)
        );
    }

    #[test]
    fn what_is_no_failure_of_tls_has_no_cause_here() {
        for details in [
            r#"Os { code: 111, kind: ConnectionRefused, message: "Connection refused" }"#,
            r#"Custom { kind: UnexpectedEof, error: "tls handshake eof" }"#,
            "Custom { kind: InvalidData, error: DecryptError }",
            "WRONGPASS invalid username-password pair",
        ] {
            assert_eq!(cause(details), None, "{details}");
        }
    }
}
