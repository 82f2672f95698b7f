//! Reloads the workflow files, the tokens file and the certificate, all or nothing. Running jobs
//! keep the definitions with which they started.

use crate::access::{Access, CertificateStore, EXPIRY_WARNING_S, TlsIdentity};
use crate::actors::loaded_definitions::{LoadedDefinitions, index_by_name};
use crate::actors::role::Role;
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

/// How often the files of the certificate are checked for changes.
const CERTIFICATE_POLL_INTERVAL: Duration = Duration::from_secs(60);

/// How often a warning is logged about a certificate that expires soon.
const EXPIRY_WARNING_INTERVAL: Duration = Duration::from_secs(24 * 3600);

const SECONDS_PER_HOUR: i64 = 3600;

const NS_PER_SECOND: i64 = 1_000_000_000;

/// The changes that a reload made, by the full names of workflows.
#[derive(Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Reloaded {
    /// Workflows that were not loaded before.
    pub added: Vec<String>,
    /// Workflows whose definition differs from the one that was loaded before.
    pub changed: Vec<String>,
    /// Workflows that are no longer in the files: they get no new jobs.
    pub removed: Vec<String>,
    /// Workflows that are unchanged.
    pub unchanged: Vec<String>,
    /// Warnings about what is allowed, but probably a mistake.
    pub warnings: Vec<String>,
    /// How many tokens the tokens file has now; missing if the settings name no file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<usize>,
}

/// Why a reload changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The workflow files have errors.
    #[error("{0}")]
    Files(LoadErrors),
    /// The settings name no files to reload.
    #[error(
        "there is nothing to reload: no workflow files are set (setting workflows, or serve \
         --workflows FILE…), and no tokens file and no certificate either"
    )]
    NoFiles,
    /// The files cannot be read, or the manager cannot work with their definitions.
    #[error("{0}")]
    Unusable(String),
}

/// What a reload reads, and what it replaces.
#[derive(Clone)]
pub struct Reloader {
    /// The settings, which name the files.
    pub settings: Arc<Settings>,
    /// The tokens and the certificate.
    pub access: Arc<Access>,
    /// The metrics, for the expiry of the certificate.
    pub metrics: Metrics,
    /// The definitions that are loaded now.
    pub definitions: Arc<LoadedDefinitions>,
    /// Who receives new definitions: the manager. A standby only shows them.
    pub role: Role,
}

/// Loads again the files that the settings name, and replaces the definitions, the tokens and the
/// certificate.
///
/// # Errors
///
/// Returns an error if a file is missing or invalid. Then nothing is changed.
pub async fn reload(reloader: &Reloader) -> Result<Reloaded, ReloadError> {
    let workflow_files = &reloader.settings.workflows;
    let access = &reloader.access;
    let has_tokens_file = !reloader.settings.http.tokens_file.is_empty();
    if workflow_files.is_empty() && !has_tokens_file && access.certificate.get().is_none() {
        return Err(ReloadError::NoFiles);
    }
    let _lock = access.reload_lock.lock().await;
    // Everything is read before anything is replaced.
    let (tokens, identity) = (read_tokens(reloader).await?, read_identity(reloader).await?);
    let reloaded = if workflow_files.is_empty() {
        Reloaded::default()
    } else {
        reload_workflows(reloader).await?
    };
    let token_count = tokens.as_ref().map(BTreeMap::len);
    if let Some(tokens) = tokens {
        access.replace_file_tokens(&reloader.settings.http, &tokens);
        tracing::info!(tokens = tokens.len(), "the tokens file was reloaded");
    }
    if let (Some(certificate), Some(identity)) = (access.certificate.get(), identity) {
        certificate.replace(identity);
        report_expiry(reloader, certificate);
        tracing::info!("the certificate of the API was reloaded");
    }
    Ok(Reloaded { tokens: token_count, ..reloaded })
}

/// Reads the files of the certificate. Returns `None` if the API does not use TLS.
async fn read_identity(reloader: &Reloader) -> Result<Option<TlsIdentity>, ReloadError> {
    let Some(certificate) = reloader.access.certificate.get().cloned() else {
        return Ok(None);
    };
    run_blocking(move || certificate.read_files()).await?.map(Some).map_err(ReloadError::Unusable)
}

/// The last warning about a certificate that expires soon.
struct ExpiryWarning {
    logged: Instant,
    /// The identity that it was about. A reload may have replaced it since then.
    identity: TlsIdentity,
}

impl ExpiryWarning {
    /// Returns whether this identity needs no further warning yet.
    fn holds_for(&self, identity: &TlsIdentity) -> bool {
        self.identity.has_same_files(identity) && self.logged.elapsed() < EXPIRY_WARNING_INTERVAL
    }
}

/// Watches the files of the certificate, and uses new ones without a reload. Logs warnings before
/// the certificate expires. Returns at once if the API does not use TLS, and otherwise never.
pub async fn watch_certificate(reloader: Reloader) {
    let access = &reloader.access;
    let Some(certificate) = access.certificate.get().cloned() else { return };
    // An error is logged once until it changes, and the warning at an interval.
    let (mut last_error, mut last_warning) = (None, None::<ExpiryWarning>);
    loop {
        report_expiry(&reloader, &certificate);
        let identity = certificate.current();
        let expires_in_s = identity.not_after.map(seconds_until);
        let is_warning_due = last_warning.as_ref().is_none_or(|last| !last.holds_for(&identity));
        let is_expiring_soon = |seconds: &i64| *seconds < EXPIRY_WARNING_S;
        if let Some(expires_in_s) = expires_in_s.filter(is_expiring_soon).filter(|_| is_warning_due)
        {
            last_warning = Some(ExpiryWarning { logged: clock::timer_now(), identity });
            tracing::warn!(
                hours_left = expires_in_s / SECONDS_PER_HOUR,
                file = reloader.settings.http.tls.certificate,
                "the certificate of the API expires soon, or has expired: renew its files, which \
                 are checked every minute"
            );
        }
        tokio::time::sleep(CERTIFICATE_POLL_INTERVAL).await;
        let _lock = access.reload_lock.lock().await;
        match read_identity(&reloader).await {
            Ok(Some(identity)) if !identity.has_same_files(&certificate.current()) => {
                certificate.replace(identity);
                last_error = None;
                tracing::info!(
                    "the files of the certificate have changed: the new certificate is used"
                );
            }
            Ok(_) => last_error = None,
            Err(error) => {
                let reason = error.to_string();
                if last_error.as_ref() != Some(&reason) {
                    tracing::warn!(
                        reason,
                        "the files of the certificate cannot be used: the previous one stays"
                    );
                    last_error = Some(reason);
                }
            }
        }
    }
}

/// Sets the metric of the certificate's expiry. Does nothing if no expiry could be parsed.
fn report_expiry(reloader: &Reloader, certificate: &CertificateStore) {
    if let Some(not_after) = certificate.current().not_after {
        let not_after_s = i64::try_from(times::unix_seconds(not_after)).unwrap_or(i64::MAX);
        reloader.metrics.certificate_not_after.with_label_values::<&str>(&[]).set(not_after_s);
    }
}

/// Returns the seconds until a time. A negative number means that the time has passed.
fn seconds_until(time: Timestamp) -> i64 {
    time.0.saturating_sub(clock::now().0) / NS_PER_SECOND
}

/// Runs a function that reads files on a thread for blocking work.
async fn run_blocking<T: Send + 'static>(
    read_files: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ReloadError> {
    let result = actix_rt::task::spawn_blocking(read_files).await;
    result.map_err(|error| ReloadError::Unusable(error.to_string()))
}

/// Reads the tokens file. Returns `None` if the settings name none.
async fn read_tokens(
    reloader: &Reloader,
) -> Result<Option<BTreeMap<String, TokenSettings>>, ReloadError> {
    let file = reloader.settings.http.tokens_file.clone();
    if file.is_empty() {
        return Ok(None);
    }
    let http = reloader.settings.http.clone();
    let read_file = move || {
        let tokens = TokenSettings::read_file(Path::new(&file))?;
        http.check_token_names(&tokens).map(|()| tokens)
    };
    run_blocking(read_file).await?.map(Some).map_err(ReloadError::Unusable)
}

/// Loads the workflow files, and replaces the definitions.
async fn reload_workflows(reloader: &Reloader) -> Result<Reloaded, ReloadError> {
    let settings = reloader.settings.clone();
    let load = move || load::load_for_manager(&settings.workflows, &settings);
    let loaded = run_blocking(load).await?.map_err(ReloadError::Files)?;
    let mut reloaded = Reloaded {
        warnings: loaded.warnings.iter().map(ToString::to_string).collect(),
        ..Reloaded::default()
    };
    let (before, after) = (reloader.definitions.current(), index_by_name(loaded.definitions));
    for (name, definition) in &after {
        let list = match before.get(name) {
            None => &mut reloaded.added,
            Some(previous) if previous == definition => &mut reloaded.unchanged,
            Some(_) => &mut reloaded.changed,
        };
        list.push(name.clone());
    }
    reloaded.removed = before.keys().filter(|name| !after.contains_key(*name)).cloned().collect();
    match &reloader.role {
        Role::Active(manager) => {
            manager.replace_definitions(after).await.map_err(ReloadError::Unusable)?;
        }
        Role::Standby(_) => reloader.definitions.replace(after),
    }
    let Reloaded { added, changed, removed, .. } = &reloaded;
    tracing::info!(
        ?added,
        ?changed,
        ?removed,
        "workflow files reloaded; running jobs keep their definitions"
    );
    Ok(reloaded)
}
