//! Who may do what: tokens, what each allows, and those who guess.

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

/// Whether others than a file's owner may write it.
const OTHERS_WRITE: u32 = 0o022;

/// What the API asks before it serves a call.
pub struct Access {
    tokens: watch::Sender<Arc<Tokens>>,
    /// Those who have sent wrong tokens.
    pub logins: Logins,
    /// What the API shows over TLS; not set: it speaks without, or not yet.
    pub certificate: OnceLock<Arc<Certificate>>,
    /// Held by who reloads: what was read last is what counts last.
    pub reloading: tokio::sync::Mutex<()>,
}

impl Access {
    /// As the settings say.
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

    /// The certificate of the API, which is read when somebody asks first; none: the API speaks
    /// without TLS.
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

    /// The tokens that are good now.
    pub fn tokens(&self) -> Arc<Tokens> {
        self.tokens.borrow().clone()
    }

    /// From now on the file of tokens has these.
    pub fn replace(&self, http: &HttpSettings, of_file: &BTreeMap<String, TokenSettings>) {
        self.tokens.send_replace(Arc::new(Tokens::of(http, of_file)));
    }

    /// Waits until the token of `holder` is not good any more, or not for the same.
    pub async fn taken_away(&self, holder: &Holder) {
        let mut tokens = self.tokens.subscribe();
        // An error means that nobody can replace them.
        if tokens.wait_for(|tokens| !tokens.has(holder)).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// A new token, which cannot be guessed, and its hash.
pub fn new_token() -> (String, String) {
    let chance = || clock::new_id().0.simple().to_string();
    let token = format!("wm_{}{}", chance(), chance());
    let hash = hash_of(&token);
    (token, hash)
}
