//! The certificate authorities that are trusted: those of this machine (the variables
//! `SSL_CERT_FILE` and `SSL_CERT_DIR` name others), and those of a file. A machine without any,
//! such as a small container, trusts the public ones. Chains, host names and times are always
//! checked.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// The certificate authorities that are trusted.
#[derive(Clone, Debug, Default)]
pub struct Authorities {
    /// Their certificates. Empty: the public authorities are trusted.
    certificates: Vec<CertificateDer<'static>>,
}

impl Authorities {
    /// Loads the authorities of this machine, and those of a file. An empty name means no file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or has no certificate.
    pub fn load(file: &str) -> Result<Authorities, String> {
        // Authorities of the machine that cannot be parsed are not trusted.
        let mut certificates = rustls_native_certs::load_native_certs().certs;
        if !file.is_empty() {
            certificates.extend(read_certificates(Path::new(file))?);
        }
        Ok(Authorities { certificates })
    }

    /// Loads the authorities of this machine alone.
    pub fn load_system() -> Authorities {
        Authorities { certificates: rustls_native_certs::load_native_certs().certs }
    }

    /// Returns the root certificates for TLS.
    pub(crate) fn root_store(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        let (added, _) = roots.add_parsable_certificates(self.certificates.iter().cloned());
        if added == 0 {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        roots
    }

    /// Returns a TLS configuration for clients that trust these authorities.
    pub fn client_config(&self) -> ClientConfig {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring has what the default versions of TLS need")
            .with_root_certificates(self.root_store())
            .with_no_client_auth()
    }

    /// Returns the TLS configuration of the command line's HTTP client.
    pub fn agent_tls_config(&self) -> TlsConfig {
        let certificates: Vec<Certificate<'static>> =
            self.certificates.iter().map(|known| Certificate::from_der(known).to_owned()).collect();
        let roots = if certificates.is_empty() {
            RootCerts::WebPki
        } else {
            RootCerts::Specific(Arc::new(certificates))
        };
        TlsConfig::builder().root_certs(roots).build()
    }
}

impl From<Vec<CertificateDer<'static>>> for Authorities {
    /// Trusts these certificates, and none of this machine.
    fn from(certificates: Vec<CertificateDer<'static>>) -> Authorities {
        Authorities { certificates }
    }
}

/// Describes what a path is if it exists and is not a regular file: opening it might block for
/// ever.
pub fn describe_special_file(file: &Path) -> Option<&'static str> {
    let kind = std::fs::metadata(file).ok()?.file_type();
    if kind.is_file() {
        None
    } else if kind.is_dir() {
        Some("a directory")
    } else if kind.is_fifo() {
        Some("a named pipe (FIFO), whose reader would wait for a writer")
    } else if kind.is_socket() {
        Some("a socket")
    } else {
        Some("a device")
    }
}

/// Reads the certificates of a file.
///
/// # Errors
///
/// The file cannot be read, or has none.
pub fn read_certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let wrong = |why: String| {
        format!(
            "{}: {why}; expected certificates in PEM, each between BEGIN CERTIFICATE and END \
             CERTIFICATE",
            file.display()
        )
    };
    if let Some(kind) = describe_special_file(file) {
        return Err(wrong(format!("it is {kind}")));
    }
    let read: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    match read {
        Ok(found) if found.is_empty() => Err(wrong("it has no certificate".to_owned())),
        Ok(found) => Ok(found),
        Err(error) => Err(wrong(error.to_string())),
    }
}
