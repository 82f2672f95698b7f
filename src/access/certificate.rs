//! The certificate that the API shows over TLS. A reload reads it again; connections that are open
//! keep theirs.

use crate::settings::TlsSettings;
use crate::trust;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

/// The certificate, and who may connect.
#[derive(Debug)]
pub struct Certificate {
    settings: TlsSettings,
    shown: RwLock<Arc<CertifiedKey>>,
}

/// A certificate with its key.
pub struct Pair(Arc<CertifiedKey>);

impl Certificate {
    /// As the settings say.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or the key is not that of the certificate.
    pub fn load(settings: &TlsSettings) -> Result<Arc<Certificate>, String> {
        let shown = RwLock::new(Arc::new(read(settings)?));
        Ok(Arc::new(Certificate { settings: settings.clone(), shown }))
    }

    /// What the files have now.
    ///
    /// # Errors
    ///
    /// As [`Certificate::load`].
    pub fn read(&self) -> Result<Pair, String> {
        read(&self.settings).map(|pair| Pair(Arc::new(pair)))
    }

    /// Shows this one from now on.
    pub fn show(&self, Pair(pair): Pair) {
        *self.shown.write().unwrap_or_else(PoisonError::into_inner) = pair;
    }

    /// TLS 1.2 and 1.3, with this certificate, for a protocol by its name in ALPN; clients need one
    /// of their own if the settings name authorities for them.
    ///
    /// # Errors
    ///
    /// The file of these authorities cannot be used.
    pub fn config(self: &Arc<Self>, protocol: &[u8]) -> Result<ServerConfig, String> {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let file = self.settings.client_authorities.as_str();
        let builder = if file.is_empty() {
            builder.with_no_client_auth()
        } else {
            let mut roots = RootCertStore::empty();
            for authority in
                trust::of_file(Path::new(file)).map_err(setting("client_authorities"))?
            {
                roots
                    .add(authority)
                    .map_err(|error| setting("client_authorities")(error.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(
                verifier
                    .build()
                    .map_err(|error| setting("client_authorities")(error.to_string()))?,
            )
        };
        let mut config = builder.with_cert_resolver(self.clone());
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(config)
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.shown.read().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

fn setting(name: &'static str) -> impl Fn(String) -> String {
    move |why| format!("http.tls.{name}: {why}")
}

fn read(settings: &TlsSettings) -> Result<CertifiedKey, String> {
    let chain = trust::of_file(Path::new(&settings.certificate)).map_err(setting("certificate"))?;
    let key = PrivateKeyDer::from_pem_file(&settings.key).map_err(|error| {
        setting("key")(format!("{}: {error}; expected a private key in PEM", settings.key))
    })?;
    let key = ring::sign::any_supported_type(&key)
        .map_err(|error| setting("key")(format!("{}: {error}", settings.key)))?;
    let pair = CertifiedKey::new(chain, key);
    pair.keys_match().map_err(|error| {
        format!(
            "http.tls.key, {}, is not the key of the first certificate in {}: {error}",
            settings.key, settings.certificate
        )
    })?;
    Ok(pair)
}
