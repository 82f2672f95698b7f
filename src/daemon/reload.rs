//! Reloads the workflow files, the file of tokens and the certificate: all or nothing. Running jobs
//! keep the definition that they started with.

use crate::access::{Access, CertificateStore, EXPIRY_WARNING_S, TlsIdentity};
use crate::actors::loaded_definitions::index_by_name;
use crate::actors::manager_handle::ManagerHandle;
use crate::load::{self, LoadErrors};
use crate::settings::{Settings, TokenSettings};
use crate::telemetry::Metrics;
use base::clock;
use base::times;
use engine::Timestamp;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use utoipa::ToSchema;

/// How often the files of the certificate are checked.
const CERTIFICATE_POLL_INTERVAL: Duration = Duration::from_secs(60);

/// How often a certificate that expires soon is warned of.
const EXPIRY_WARNING_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// The changes that a reload made, by the full names of workflows.
#[derive(Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Reloaded {
    /// Workflows that were not loaded before.
    pub added: Vec<String>,
    /// Workflows whose definition differs.
    pub changed: Vec<String>,
    /// Workflows that are no longer in the files: they get no new jobs.
    pub removed: Vec<String>,
    /// Workflows that are unchanged.
    pub unchanged: Vec<String>,
    /// Warnings: what is allowed, but most likely not meant.
    pub warnings: Vec<String>,
    /// How many tokens the file of tokens has now, if the settings name one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<usize>,
}

/// Why a reload changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The workflow files have errors.
    #[error("{0}")]
    Files(LoadErrors),
    /// The settings name no files.
    #[error(
        "no workflow files are named (setting workflows, or serve --workflows FILE…), no file of \
         tokens and no certificate: there is nothing to reload"
    )]
    NoFiles,
    /// The files cannot be read, or the manager cannot work with their definitions.
    #[error("{0}")]
    Unusable(String),
}

/// What a reload reads and replaces.
#[derive(Clone)]
pub struct Reloader {
    /// The settings, which name the files.
    pub settings: Arc<Settings>,
    /// The tokens and the certificate.
    pub access: Arc<Access>,
    /// Has the expiry of the certificate.
    pub metrics: Metrics,
    /// Takes the definitions.
    pub manager: ManagerHandle,
}

/// Loads the files of the settings again, and replaces the definitions, the tokens and the
/// certificate with theirs.
///
/// # Errors
///
/// Says why nothing was changed.
pub async fn reload(reloader: &Reloader) -> Result<Reloaded, ReloadError> {
    let files = reloader.settings.workflows.clone();
    let access = &reloader.access;
    let has_tokens = !reloader.settings.http.tokens_file.is_empty();
    if files.is_empty() && !has_tokens && access.certificate.get().is_none() {
        return Err(ReloadError::NoFiles);
    }
    let _lock = access.reload_lock.lock().await;
    // Everything is read before anything is replaced.
    let (tokens, identity) = (read_tokens(reloader).await?, read_identity(reloader).await?);
    let reloaded =
        if files.is_empty() { Reloaded::default() } else { reload_workflows(reloader).await? };
    let count = tokens.as_ref().map(BTreeMap::len);
    if let Some(tokens) = tokens {
        access.replace_file_tokens(&reloader.settings.http, &tokens);
        tracing::info!(tokens = tokens.len(), "the file of tokens was read again");
    }
    if let (Some(certificate), Some(identity)) = (access.certificate.get(), identity) {
        certificate.replace(identity);
        report_expiry(reloader, certificate);
        tracing::info!("the certificate of the API was read again");
    }
    Ok(Reloaded { tokens: count, ..reloaded })
}

/// Reads the certificate that the files have now. Returns `None` if the API does not use TLS.
async fn read_identity(reloader: &Reloader) -> Result<Option<TlsIdentity>, ReloadError> {
    let Some(certificate) = reloader.access.certificate.get().cloned() else {
        return Ok(None);
    };
    run_blocking(move || certificate.read_files()).await?.map(Some).map_err(ReloadError::Unusable)
}

/// Watches the files of the certificate, and presents new ones: whoever renews them need not ask
/// for a reload. Warns before the certificate expires.
pub async fn watch_certificate(reloader: Reloader) {
    let access = &reloader.access;
    let Some(certificate) = access.certificate.get().cloned() else { return };
    // Kept so that nothing is logged again each minute.
    let (mut last_error, mut last_warning) = (None, None);
    loop {
        report_expiry(&reloader, &certificate);
        let left = certificate.current().not_after.map(seconds_until);
        let is_due = last_warning.is_none_or(|at: Instant| at.elapsed() >= EXPIRY_WARNING_INTERVAL);
        if let Some(left_s) = left.filter(|left| *left < EXPIRY_WARNING_S && is_due) {
            last_warning = Some(clock::timer_now());
            tracing::warn!(
                hours_left = left_s / 3600,
                file = reloader.settings.http.tls.certificate,
                "the certificate of the API ends soon, or has ended: put a new one into its files, \
                 which are looked at each minute"
            );
        }
        tokio::time::sleep(CERTIFICATE_POLL_INTERVAL).await;
        let _lock = access.reload_lock.lock().await;
        match read_identity(&reloader).await {
            Ok(Some(identity)) if !identity.has_same_files(&certificate.current()) => {
                certificate.replace(identity);
                (last_error, last_warning) = (None, None);
                tracing::info!("the files of the certificate have changed: the new one is shown");
            }
            Ok(_) => last_error = None,
            Err(error) => {
                let why = error.to_string();
                if last_error.as_ref() != Some(&why) {
                    tracing::warn!(
                        why,
                        "the files of the certificate cannot be used: the one of before is shown on"
                    );
                    last_error = Some(why);
                }
            }
        }
    }
}

/// Sets the metric of the certificate's expiry.
fn report_expiry(reloader: &Reloader, certificate: &CertificateStore) {
    if let Some(at) = certificate.current().not_after {
        let end = i64::try_from(times::unix_seconds(at)).unwrap_or(i64::MAX);
        reloader.metrics.certificate_end.with_label_values::<&str>(&[]).set(end);
    }
}

/// Returns how many seconds there are until a time. Negative: it has passed.
fn seconds_until(at: Timestamp) -> i64 {
    at.0.saturating_sub(clock::now().0) / 1_000_000_000
}

/// Reads files on a blocking thread, so that other requests do not wait.
async fn run_blocking<T: Send + 'static>(
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ReloadError> {
    let read = actix_rt::task::spawn_blocking(read).await;
    read.map_err(|error| ReloadError::Unusable(error.to_string()))
}

/// Reads the tokens that the file has now. Returns `None` if the settings name no file.
async fn read_tokens(
    reloader: &Reloader,
) -> Result<Option<BTreeMap<String, TokenSettings>>, ReloadError> {
    let file = reloader.settings.http.tokens_file.clone();
    if file.is_empty() {
        return Ok(None);
    }
    let http = reloader.settings.http.clone();
    let read = move || {
        let tokens = TokenSettings::read_file(Path::new(&file))?;
        http.check_token_names(&tokens).map(|()| tokens)
    };
    run_blocking(read).await?.map(Some).map_err(ReloadError::Unusable)
}

async fn reload_workflows(reloader: &Reloader) -> Result<Reloaded, ReloadError> {
    let settings = reloader.settings.clone();
    let load = move || load::load_for_manager(&settings.workflows, &settings);
    let loaded = run_blocking(load).await?.map_err(ReloadError::Files)?;
    let mut reloaded = Reloaded {
        warnings: loaded.warnings.iter().map(ToString::to_string).collect(),
        ..Reloaded::default()
    };
    let (before, after) = (reloader.manager.definitions(), index_by_name(loaded.definitions));
    for (name, definition) in &after {
        let list = match before.get(name) {
            None => &mut reloaded.added,
            Some(same) if same == definition => &mut reloaded.unchanged,
            Some(_) => &mut reloaded.changed,
        };
        list.push(name.clone());
    }
    reloaded.removed = before.keys().filter(|name| !after.contains_key(*name)).cloned().collect();
    reloader.manager.replace_definitions(after).await.map_err(ReloadError::Unusable)?;
    let Reloaded { added, changed, removed, .. } = &reloaded;
    tracing::info!(
        ?added,
        ?changed,
        ?removed,
        "workflow files reloaded; running jobs keep their definitions"
    );
    Ok(reloaded)
}
