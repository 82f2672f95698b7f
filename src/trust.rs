//! Whose certificates are believed: the authorities of this machine (the variables `SSL_CERT_FILE`
//! and `SSL_CERT_DIR` name others), and those of a file. A machine without any, such as a small
//! container, believes the public ones. Chains, host names and times are always checked.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// Authorities that are believed.
#[derive(Clone, Debug, Default)]
pub struct Authorities {
    /// None: the public ones.
    known: Vec<CertificateDer<'static>>,
}

impl Authorities {
    /// Those of this machine, and those of a file; empty: no file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or has no certificate of an authority.
    pub fn of(file: &str) -> Result<Authorities, String> {
        // What of a machine's authorities cannot be read is not believed.
        let mut known = rustls_native_certs::load_native_certs().certs;
        if !file.is_empty() {
            known.extend(of_file(Path::new(file))?);
        }
        Ok(Authorities { known })
    }

    /// Those of this machine alone.
    pub fn of_machine() -> Authorities {
        Authorities { known: rustls_native_certs::load_native_certs().certs }
    }

    /// As TLS needs them.
    pub fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        let (added, _) = roots.add_parsable_certificates(self.known.iter().cloned());
        if added == 0 {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        roots
    }

    /// A client that believes them.
    pub fn client(&self) -> ClientConfig {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring has what the default versions of TLS need")
            .with_root_certificates(self.roots())
            .with_no_client_auth()
    }

    /// A blocking client for calls of this process's own, each of which may take so long. No proxy
    /// of the environment reads along, no redirect is followed, and every answer is one.
    pub fn agent(&self, timeout: Duration) -> Agent {
        let config = Agent::config_builder()
            .proxy(None)
            .tls_config(self.blocking())
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_global(Some(timeout));
        Agent::from(config.build())
    }

    /// The same for the blocking client.
    pub fn blocking(&self) -> TlsConfig {
        let known: Vec<Certificate<'static>> =
            self.known.iter().map(|known| Certificate::from_der(known).to_owned()).collect();
        let roots =
            if known.is_empty() { RootCerts::WebPki } else { RootCerts::Specific(Arc::new(known)) };
        TlsConfig::builder().root_certs(roots).build()
    }
}

impl From<Vec<CertificateDer<'static>>> for Authorities {
    /// These, and none of this machine.
    fn from(known: Vec<CertificateDer<'static>>) -> Authorities {
        Authorities { known }
    }
}

/// What it is, if it is there and no regular file: to open it might wait for ever.
pub fn kind_of_no_file(file: &Path) -> Option<&'static str> {
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

/// The certificates of a file.
///
/// # Errors
///
/// It cannot be read, or has none.
pub fn of_file(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let wrong = |why: String| {
        format!(
            "{}: {why}; expected certificates in PEM, each between BEGIN CERTIFICATE and END \
             CERTIFICATE",
            file.display()
        )
    };
    if let Some(kind) = kind_of_no_file(file) {
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
