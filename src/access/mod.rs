//! Who may do what: tokens and what each allows, limits for clients that guess at tokens, and the
//! TLS certificate.

mod certificate;
mod logins;
mod tokens;
mod validity;

pub use certificate::{Certificate, Pair};
pub use logins::{Failed, Logins, network};
pub use tokens::{Holder, Needed, Tokens, hash_of};
pub use validity::ENDS_SOON_S;

use crate::clock;
use crate::settings::{HttpSettings, TlsSettings, TokenSettings};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, OnceLock};
use tokio::sync::watch;

/// The mode bits that let others than a file's owner write it.
const OTHERS_WRITE: u32 = 0o022;

/// The tokens and the certificate of the API.
pub struct Access {
    tokens: watch::Sender<Arc<Tokens>>,
    /// Slows down clients that have sent wrong tokens.
    pub logins: Logins,
    /// The certificate that the API presents over TLS. Not set without TLS, or before it is read.
    pub certificate: OnceLock<Arc<Certificate>>,
    /// Held while files are reloaded, so that what was read last is in force at the end.
    pub reloading: tokio::sync::Mutex<()>,
}

impl Access {
    /// Makes it as the settings say. Warns if others may write the file of tokens.
    pub fn new(http: &HttpSettings) -> Access {
        let mode = std::fs::metadata(&http.tokens_file).map(|file| file.permissions().mode());
        if mode.is_ok_and(|mode| mode & OTHERS_WRITE != 0) {
            tracing::warn!(
                file = http.tokens_file,
                "others than its owner can write the file of tokens, and so give themselves every \
                 right: chmod 600 it"
            );
        }
        Access {
            tokens: watch::Sender::new(Arc::new(Tokens::of(http, &http.tokens_of_file))),
            logins: Logins::new(http.failed_logins_max),
            certificate: OnceLock::new(),
            reloading: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the certificate of the API; the first call reads it. Returns `None` if the API does
    /// not use TLS.
    ///
    /// # Errors
    ///
    /// The files of the settings cannot be used.
    pub fn certificate(&self, settings: &TlsSettings) -> Result<Option<Arc<Certificate>>, String> {
        if !settings.is_on() {
            return Ok(None);
        }
        if let Some(read) = self.certificate.get() {
            return Ok(Some(read.clone()));
        }
        let read = Certificate::load(settings)?;
        Ok(Some(self.certificate.get_or_init(|| read).clone()))
    }

    /// Returns the tokens that are currently valid.
    pub fn tokens(&self) -> Arc<Tokens> {
        self.tokens.borrow().clone()
    }

    /// Replaces the tokens of the file of tokens.
    pub fn replace(&self, http: &HttpSettings, of_file: &BTreeMap<String, TokenSettings>) {
        self.tokens.send_replace(Arc::new(Tokens::of(http, of_file)));
    }

    /// Waits until the token of `principal` is revoked, or allows something else.
    pub async fn taken_away(&self, holder: &Holder) {
        let mut tokens = self.tokens.subscribe();
        // An error means that nobody can replace the tokens any more.
        if tokens.wait_for(|tokens| !tokens.has(holder)).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Makes a random token. Returns the token and its hash.
pub fn new_token() -> (String, String) {
    let chance = || clock::new_id().0.simple().to_string();
    let token = format!("wm_{}{}", chance(), chance());
    let hash = hash_of(&token);
    (token, hash)
}
