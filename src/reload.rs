//! Reloading the workflow files: all or nothing. Running jobs keep the definition they started
//! with.

use crate::actors::common::by_name;
use crate::actors::door;
use crate::actors::ways::Ways;
use crate::load::{self, LoadErrors};
use serde::Serialize;
use utoipa::ToSchema;

/// The changes that a reload made, by full names.
#[derive(Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Reloaded {
    /// Workflows that were not loaded before.
    pub added: Vec<String>,
    /// Workflows whose definition differs.
    pub changed: Vec<String>,
    /// Workflows that are no longer in the files: no new jobs.
    pub removed: Vec<String>,
    /// Workflows that are unchanged.
    pub unchanged: Vec<String>,
    /// What is allowed, but most likely not meant.
    pub warnings: Vec<String>,
}

/// Why nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The files have errors.
    #[error("{0}")]
    Files(LoadErrors),
    /// No files are named in the settings.
    #[error(
        "no workflow files are named (setting workflows, or serve --workflows FILE…): there is \
         nothing to reload"
    )]
    NoFiles,
    /// The manager cannot work with these definitions.
    #[error("{0}")]
    Refused(String),
}

/// Loads the files in the settings again, and replaces the definitions with theirs.
///
/// # Errors
///
/// Nothing was changed.
pub async fn reload(ways: &Ways) -> Result<Reloaded, ReloadError> {
    let files = ways.common.settings.workflows.clone();
    if files.is_empty() {
        return Err(ReloadError::NoFiles);
    }
    let common = ways.common.clone();
    let load = move || load::load_to_serve(&files, &common.settings);
    let loaded = actix_rt::task::spawn_blocking(load).await;
    let loaded = loaded
        .map_err(|error| ReloadError::Refused(error.to_string()))?
        .map_err(ReloadError::Files)?;
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
