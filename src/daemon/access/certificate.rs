//! The certificate that the API presents over TLS, and the authorities that client certificates are
//! verified against. A reload and a regular check of the files read both again. An open connection
//! keeps the identity with which it was accepted.

use super::validity;
use crate::settings::TlsSettings;
use base::trust;
use engine::Timestamp;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::WebPkiClientVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{RootCertStore, ServerConfig};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

/// Holds the current TLS identity, and the settings that name its files.
#[derive(Debug)]
pub struct CertificateStore {
    settings: TlsSettings,
    current: RwLock<TlsIdentity>,
}

/// A certificate with its key, as configurations for TLS 1.2 and 1.3. Clients must present a
/// certificate of their own (mutual TLS) if the settings name authorities for them.
#[derive(Clone, Debug)]
pub struct TlsIdentity {
    /// The configuration for HTTP/1.1.
    pub http: Arc<ServerConfig>,
    /// The configuration for HTTP/2.
    pub grpc: Arc<ServerConfig>,
    /// The earliest expiry of the certificates in the chain. `None`: no expiry can be parsed.
    pub not_after: Option<Timestamp>,
    /// The SHA-256 hash of the contents of all files, to notice changes.
    digest: [u8; 32],
}

impl CertificateStore {
    /// Loads the certificate that the settings name.
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be read, or the key does not belong to the certificate.
    pub fn load(settings: &TlsSettings) -> Result<Arc<CertificateStore>, String> {
        let current = RwLock::new(read_identity(settings)?);
        Ok(Arc::new(CertificateStore { settings: settings.clone(), current }))
    }

    /// Reads the files again. The current identity stays in use.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`CertificateStore::load`].
    pub(crate) fn read_files(&self) -> Result<TlsIdentity, String> {
        read_identity(&self.settings)
    }

    /// Makes this the current identity. It applies to connections that are accepted from now on.
    pub fn replace(&self, identity: TlsIdentity) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = identity;
    }

    /// Returns the current identity.
    pub fn current(&self) -> TlsIdentity {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl TlsIdentity {
    /// Returns whether both identities were read from files with the same contents.
    pub(crate) fn has_same_files(&self, other: &TlsIdentity) -> bool {
        self.digest == other.digest
    }
}

/// Reads the files that the settings name, and checks that the key fits the certificate.
fn read_identity(settings: &TlsSettings) -> Result<TlsIdentity, String> {
    let digest = digest_files(settings);
    let chain = trust::read_certificates(Path::new(&settings.certificate))
        .map_err(prefix_setting("certificate"))?;
    let not_after = validity::not_after(&chain);
    if let Some(kind) = trust::describe_special_file(Path::new(&settings.key)) {
        return Err(prefix_setting("key")(format!("{}: it is {kind}", settings.key)));
    }
    let key = PrivateKeyDer::from_pem_file(&settings.key).map_err(|error| {
        prefix_setting("key")(format!("{}: {error}; expected a private key in PEM", settings.key))
    })?;
    let key = ring::sign::any_supported_type(&key)
        .map_err(|error| prefix_setting("key")(format!("{}: {error}", settings.key)))?;
    let certified_key = CertifiedKey::new(chain, key);
    certified_key.keys_match().map_err(|error| {
        format!(
            "http.tls.key, {}, is not the key of the first certificate in {}: {error}",
            settings.key, settings.certificate
        )
    })?;
    let resolver = Arc::new(SingleCertAndKey::from(certified_key));
    let build = |alpn_protocol: &[u8]| {
        build_config(settings, resolver.clone(), alpn_protocol).map(Arc::new)
    };
    Ok(TlsIdentity { http: build(b"http/1.1")?, grpc: build(b"h2")?, not_after, digest })
}

/// Builds the TLS configuration that offers one protocol by ALPN.
fn build_config(
    settings: &TlsSettings,
    resolver: Arc<SingleCertAndKey>,
    alpn_protocol: &[u8],
) -> Result<ServerConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let file = settings.client_authorities.as_str();
    let prefix_authorities = prefix_setting("client_authorities");
    let builder = if file.is_empty() {
        builder.with_no_client_auth()
    } else {
        let mut roots = RootCertStore::empty();
        for authority in trust::read_certificates(Path::new(file)).map_err(&prefix_authorities)? {
            roots.add(authority).map_err(|error| prefix_authorities(error.to_string()))?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        let verifier = verifier.build().map_err(|error| prefix_authorities(error.to_string()))?;
        builder.with_client_cert_verifier(verifier)
    };
    let mut config = builder.with_cert_resolver(resolver);
    config.alpn_protocols = vec![alpn_protocol.to_vec()];
    Ok(config)
}

/// Hashes the contents of the files. A file that cannot be read counts as empty.
fn digest_files(settings: &TlsSettings) -> [u8; 32] {
    let mut hasher = Sha256::new();
    for file in [&settings.certificate, &settings.key, &settings.client_authorities] {
        // Reading a pipe would block. `read_identity` reports a special file as an error.
        let is_file = trust::describe_special_file(Path::new(file)).is_none();
        let content = is_file.then(|| std::fs::read(file).ok()).flatten();
        hasher.update(Sha256::digest(content.unwrap_or_default()));
    }
    hasher.finalize().into()
}

/// Returns a function that prefixes an error with the setting of `http.tls` that it concerns.
fn prefix_setting(name: &'static str) -> impl Fn(String) -> String {
    move |error| format!("http.tls.{name}: {error}")
}
