//! Access control for the API: tokens and what each allows, a rate limit for wrong tokens, and the
//! TLS certificate.

mod certificate;
mod login_limiter;
mod tokens;
mod validity;

pub use certificate::{CertificateStore, TlsIdentity};
pub use login_limiter::{LoginLimiter, LoginPenalty, client_network};
pub use tokens::{Principal, RequiredScope, Tokens, hash_token};
pub use validity::EXPIRY_WARNING_S;

use crate::settings::{HttpSettings, TlsSettings, TokenSettings};
use base::clock;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, OnceLock};
use tokio::sync::watch;

/// The permission bits that let a file's group or others write it.
const GROUP_AND_OTHERS_WRITE: u32 = 0o022;

/// The tokens and the certificate of the API.
pub struct Access {
    /// The valid tokens. Requests that last long watch them, to notice that a token is revoked.
    tokens: watch::Sender<Arc<Tokens>>,
    /// Delays the answers to clients that send wrong tokens.
    pub login_limiter: LoginLimiter,
    /// The certificate that the API presents over TLS. Empty without TLS, and until
    /// [`Access::certificate`] has loaded it.
    pub certificate: OnceLock<Arc<CertificateStore>>,
    /// Held during a reload, so that reloads take effect one after another.
    pub reload_lock: tokio::sync::Mutex<()>,
}

impl Access {
    /// Loads the tokens of the settings. Warns if others than its owner can write the tokens file.
    pub fn new(http: &HttpSettings) -> Access {
        let mode = std::fs::metadata(&http.tokens_file).map(|file| file.permissions().mode());
        if mode.is_ok_and(|mode| mode & GROUP_AND_OTHERS_WRITE != 0) {
            tracing::warn!(
                file = http.tokens_file,
                "others than its owner can write the tokens file, and so give themselves every \
                 right: chmod 600 it"
            );
        }
        Access {
            tokens: watch::Sender::new(Arc::new(Tokens::from_settings(http, &http.file_tokens))),
            login_limiter: LoginLimiter::new(http.failed_logins_max),
            certificate: OnceLock::new(),
            reload_lock: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the certificate of the API. The first call loads it. Returns `None` if the API does
    /// not use TLS.
    ///
    /// # Errors
    ///
    /// Returns an error if the files that the settings name cannot be used.
    pub fn certificate(
        &self,
        settings: &TlsSettings,
    ) -> Result<Option<Arc<CertificateStore>>, String> {
        if !settings.is_enabled() {
            return Ok(None);
        }
        if let Some(store) = self.certificate.get() {
            return Ok(Some(store.clone()));
        }
        let store = CertificateStore::load(settings)?;
        Ok(Some(self.certificate.get_or_init(|| store).clone()))
    }

    /// Returns the tokens that are currently valid.
    pub fn tokens(&self) -> Arc<Tokens> {
        self.tokens.borrow().clone()
    }

    /// Replaces the tokens that came from the tokens file. Those of the settings stay.
    pub(crate) fn replace_file_tokens(
        &self,
        http: &HttpSettings,
        file_tokens: &BTreeMap<String, TokenSettings>,
    ) {
        self.tokens.send_replace(Arc::new(Tokens::from_settings(http, file_tokens)));
    }

    /// Waits until the token of `principal` is revoked, or its scope, queues or virtual host
    /// change.
    pub async fn wait_revoked(&self, principal: &Principal) {
        let mut tokens = self.tokens.subscribe();
        // An error means that the sender was dropped: the tokens cannot change any more.
        if tokens.wait_for(|tokens| !tokens.is_current(principal)).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// A token that was just generated.
pub struct GeneratedToken {
    /// The token itself, which only its owner keeps.
    pub token: String,
    /// The hash of the token, as the settings expect it.
    pub hash: String,
}

/// Generates a random token of two random UUIDs.
pub fn generate_token() -> GeneratedToken {
    let random = || clock::new_id().0.simple().to_string();
    let token = format!("wm_{}{}", random(), random());
    let hash = hash_token(&token);
    GeneratedToken { token, hash }
}
