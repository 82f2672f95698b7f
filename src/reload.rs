//! Reloads the workflow files, the file of tokens and the certificate: all or nothing. Running jobs
//! keep the definition that they started with.

use crate::access::{Certificate, ENDS_SOON_S, Pair};
use crate::actors::common::{Common, by_name};
use crate::actors::door;
use crate::actors::ways::Ways;
use crate::clock;
use crate::engine::Timestamp;
use crate::load::{self, LoadErrors};
use crate::settings::TokenSettings;
use crate::times;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use utoipa::ToSchema;

/// How often the files of the certificate are checked.
const LOOKED_EVERY: Duration = Duration::from_secs(60);

/// How often a certificate that expires soon is warned of.
const WARNED_EVERY: Duration = Duration::from_secs(24 * 3600);

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
    Refused(String),
}

/// Loads the files of the settings again, and replaces the definitions, the tokens and the
/// certificate with theirs.
///
/// # Errors
///
/// Says why nothing was changed.
pub async fn reload(ways: &Ways) -> Result<Reloaded, ReloadError> {
    let files = ways.common.settings.workflows.clone();
    let access = &ways.common.access;
    let has_tokens = !ways.common.settings.http.tokens_file.is_empty();
    if files.is_empty() && !has_tokens && access.certificate.get().is_none() {
        return Err(ReloadError::NoFiles);
    }
    let _alone = access.reloading.lock().await;
    // Everything is read before anything is replaced.
    let (tokens, pair) = (tokens(ways).await?, pair(ways).await?);
    let reloaded = if files.is_empty() { Reloaded::default() } else { workflows(ways).await? };
    let count = tokens.as_ref().map(BTreeMap::len);
    if let Some(tokens) = tokens {
        access.replace(&ways.common.settings.http, &tokens);
        tracing::info!(tokens = tokens.len(), "the file of tokens was read again");
    }
    if let (Some(certificate), Some(pair)) = (access.certificate.get(), pair) {
        certificate.show(pair);
        tell_end(&ways.common, certificate);
        tracing::info!("the certificate of the API was read again");
    }
    Ok(Reloaded { tokens: count, ..reloaded })
}

/// Reads the certificate that the files have now. Returns `None` if the API does not use TLS.
async fn pair(ways: &Ways) -> Result<Option<Pair>, ReloadError> {
    let Some(certificate) = ways.common.access.certificate.get().cloned() else { return Ok(None) };
    blocking(move || certificate.read()).await?.map(Some).map_err(ReloadError::Refused)
}

/// Watches the files of the certificate, and presents new ones: whoever renews them need not ask
/// for a reload. Warns before the certificate expires.
pub async fn attend_certificate(ways: Arc<Ways>) {
    let access = &ways.common.access;
    let Some(certificate) = access.certificate.get().cloned() else { return };
    // Kept so that nothing is logged again each minute.
    let (mut refused, mut warned) = (None, None);
    loop {
        tell_end(&ways.common, &certificate);
        let left = certificate.shown().not_after.map(left_until);
        let is_due = warned.is_none_or(|at: Instant| at.elapsed() >= WARNED_EVERY);
        if let Some(left_s) = left.filter(|left| *left < ENDS_SOON_S && is_due) {
            warned = Some(clock::ticks());
            tracing::warn!(
                hours_left = left_s / 3600,
                file = ways.common.settings.http.tls.certificate,
                "the certificate of the API ends soon, or has ended: put a new one into its files, \
                 which are looked at each minute"
            );
        }
        tokio::time::sleep(LOOKED_EVERY).await;
        let _alone = access.reloading.lock().await;
        match pair(&ways).await {
            Ok(Some(pair)) if !pair.is_same(&certificate.shown()) => {
                certificate.show(pair);
                (refused, warned) = (None, None);
                tracing::info!("the files of the certificate have changed: the new one is shown");
            }
            Ok(_) => refused = None,
            Err(error) => {
                let why = error.to_string();
                if refused.as_ref() != Some(&why) {
                    tracing::warn!(
                        why,
                        "the files of the certificate cannot be used: the one of before is shown on"
                    );
                    refused = Some(why);
                }
            }
        }
    }
}

/// Sets the metric of the certificate's expiry.
fn tell_end(common: &Common, certificate: &Certificate) {
    if let Some(at) = certificate.shown().not_after {
        let end = i64::try_from(times::seconds(at)).unwrap_or(i64::MAX);
        common.metrics.certificate_end.with_label_values::<&str>(&[]).set(end);
    }
}

/// Returns how many seconds there are until a time. Negative: it has passed.
fn left_until(at: Timestamp) -> i64 {
    at.0.saturating_sub(clock::now().0) / 1_000_000_000
}

/// Reads files on a blocking thread, so that other requests do not wait.
async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ReloadError> {
    let read = actix_rt::task::spawn_blocking(read).await;
    read.map_err(|error| ReloadError::Refused(error.to_string()))
}

/// Reads the tokens that the file has now. Returns `None` if the settings name no file.
async fn tokens(ways: &Ways) -> Result<Option<BTreeMap<String, TokenSettings>>, ReloadError> {
    let file = ways.common.settings.http.tokens_file.clone();
    if file.is_empty() {
        return Ok(None);
    }
    let http = ways.common.settings.http.clone();
    let read = move || {
        let tokens = TokenSettings::read_file(Path::new(&file))?;
        http.validate_names(&tokens).map(|()| tokens)
    };
    blocking(read).await?.map(Some).map_err(ReloadError::Refused)
}

async fn workflows(ways: &Ways) -> Result<Reloaded, ReloadError> {
    let (files, common) = (ways.common.settings.workflows.clone(), ways.common.clone());
    let load = move || load::load_to_serve(&files, &common.settings);
    let loaded = blocking(load).await?.map_err(ReloadError::Files)?;
    let mut reloaded = Reloaded {
        warnings: loaded.warnings.iter().map(ToString::to_string).collect(),
        ..Reloaded::default()
    };
    let (before, after) = (ways.common.definitions(), by_name(loaded.definitions));
    for (name, definition) in &after {
        let list = match before.get(name) {
            None => &mut reloaded.added,
            Some(same) if same == definition => &mut reloaded.unchanged,
            Some(_) => &mut reloaded.changed,
        };
        list.push(name.clone());
    }
    reloaded.removed = before.keys().filter(|name| !after.contains_key(*name)).cloned().collect();
    door::redefine(ways, after).await.map_err(ReloadError::Refused)?;
    let Reloaded { added, changed, removed, .. } = &reloaded;
    tracing::info!(
        ?added,
        ?changed,
        ?removed,
        "workflow files reloaded; running jobs keep their definitions"
    );
    Ok(reloaded)
}
