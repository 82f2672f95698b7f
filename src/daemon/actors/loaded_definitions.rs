//! The loaded definitions, which new jobs run. A reload replaces them, but running jobs keep
//! theirs.

pub use super::inputs::Definitions;
use crate::telemetry::Metrics;
use engine::Definition;
use std::sync::{Arc, PoisonError, RwLock};

/// Indexes definitions by their full names.
pub fn index_by_name(definitions: Vec<Arc<Definition>>) -> Definitions {
    definitions.into_iter().map(|definition| (definition.full_name(), definition)).collect()
}

/// The definitions that are loaded now. The metrics have a series for each of their steps, up to a
/// limit.
pub struct LoadedDefinitions {
    current: RwLock<Arc<Definitions>>,
    metrics: Metrics,
    /// The most steps that have metric series of their own (setting `metrics.steps_max`).
    steps_max: usize,
}

impl LoadedDefinitions {
    /// Creates the loaded definitions at the start.
    pub(crate) fn new(
        definitions: Definitions,
        metrics: Metrics,
        steps_max: usize,
    ) -> LoadedDefinitions {
        metrics.set_definitions(&definitions, steps_max);
        LoadedDefinitions { current: RwLock::new(Arc::new(definitions)), metrics, steps_max }
    }

    /// Returns the definitions for new jobs.
    pub fn current(&self) -> Arc<Definitions> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the definitions, and the steps for which the metrics have series.
    pub(crate) fn replace(&self, definitions: Definitions) {
        self.metrics.set_definitions(&definitions, self.steps_max);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(definitions);
    }

    /// Returns those of the definitions in use that are not loaded: their workflow has another
    /// definition now, or was removed.
    pub(super) fn without_loaded(&self, mut in_use: Vec<Arc<Definition>>) -> Vec<Arc<Definition>> {
        let current = self.current();
        let is_loaded = |definition: &Arc<Definition>| {
            current.get(&definition.full_name()).is_some_and(|loaded| loaded == definition)
        };
        in_use.retain(|definition| !is_loaded(definition));
        in_use
    }
}
