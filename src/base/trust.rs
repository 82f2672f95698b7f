//! The trusted certificate authorities of TLS connections: those of the machine and those of a
//! configured file. The environment variables `SSL_CERT_FILE` and `SSL_CERT_DIR` replace those of
//! the machine. If there are none, as in a minimal container, Mozilla's public roots are trusted.
//! Certificate chains, host names and validity periods are always verified.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// A set of trusted certificate authorities.
#[derive(Clone, Debug, Default)]
pub struct Authorities {
    /// The root certificates; empty: Mozilla's public roots are trusted.
    certificates: Vec<CertificateDer<'static>>,
}

impl Authorities {
    /// Loads the authorities of this machine and those of a file. An empty name means no file.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, or contains no certificate.
    pub fn load(file: &str) -> Result<Authorities, String> {
        // Authorities of the machine that cannot be loaded are left out.
        let mut certificates = rustls_native_certs::load_native_certs().certs;
        if !file.is_empty() {
            certificates.extend(read_certificates(Path::new(file))?);
        }
        Ok(Authorities { certificates })
    }

    /// Loads only the authorities of this machine.
    pub fn load_system() -> Authorities {
        Authorities { certificates: rustls_native_certs::load_native_certs().certs }
    }

    /// Returns the root certificates as a store of rustls. Those that rustls cannot parse are left
    /// out.
    pub(crate) fn root_store(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        let (added_count, _) = roots.add_parsable_certificates(self.certificates.iter().cloned());
        if added_count == 0 {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        roots
    }

    /// Returns a TLS configuration for clients that trust these authorities.
    pub fn client_config(&self) -> ClientConfig {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring supports the default TLS versions")
            .with_root_certificates(self.root_store())
            .with_no_client_auth()
    }

    /// Returns the TLS configuration of the command line's HTTP client.
    pub fn agent_tls_config(&self) -> TlsConfig {
        let certificates: Vec<Certificate<'static>> =
            self.certificates.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
        let roots = if certificates.is_empty() {
            RootCerts::WebPki
        } else {
            RootCerts::Specific(Arc::new(certificates))
        };
        TlsConfig::builder().root_certs(roots).build()
    }
}

impl From<Vec<CertificateDer<'static>>> for Authorities {
    /// Trusts only these certificates, not those of this machine.
    fn from(certificates: Vec<CertificateDer<'static>>) -> Authorities {
        Authorities { certificates }
    }
}

/// Describes what a path leads to if it exists and is not a regular file. Opening such a file might
/// block forever.
pub fn describe_special_file(file: &Path) -> Option<&'static str> {
    let file_type = std::fs::metadata(file).ok()?.file_type();
    if file_type.is_file() {
        None
    } else if file_type.is_dir() {
        Some("a directory")
    } else if file_type.is_fifo() {
        Some("a named pipe (FIFO), whose reader would wait for a writer")
    } else if file_type.is_socket() {
        Some("a socket")
    } else {
        Some("a device")
    }
}

/// Reads the PEM certificates of a file.
///
/// # Errors
///
/// Returns an error if the file cannot be read, or contains no certificate.
pub fn read_certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let error = |reason: String| {
        format!(
            "{}: {reason}; expected certificates in PEM, each between BEGIN CERTIFICATE and END \
             CERTIFICATE",
            file.display()
        )
    };
    if let Some(description) = describe_special_file(file) {
        return Err(error(format!("it is {description}")));
    }
    let certificates: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    match certificates {
        Ok(certificates) if certificates.is_empty() => {
            Err(error("it has no certificate".to_owned()))
        }
        Ok(certificates) => Ok(certificates),
        Err(pem_error) => Err(error(pem_error.to_string())),
    }
}
