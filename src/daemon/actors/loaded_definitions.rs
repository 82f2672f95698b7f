//! The definitions for new jobs. A reload replaces them; running jobs keep theirs.

use super::inputs::Definitions;
use crate::telemetry::Metrics;
use engine::Definition;
use std::sync::{Arc, PoisonError, RwLock};

/// Returns the definitions by their full names.
pub fn index_by_name(definitions: Vec<Arc<Definition>>) -> Definitions {
    definitions.into_iter().map(|definition| (definition.full_name(), definition)).collect()
}

/// The definitions that are loaded now. The metrics have a series for each of their steps.
pub struct LoadedDefinitions {
    current: RwLock<Arc<Definitions>>,
    metrics: Metrics,
    /// The most steps that have series of their own.
    steps_max: usize,
}

impl LoadedDefinitions {
    /// Creates them with the definitions of a start.
    pub(super) fn new(
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

    /// Replaces the definitions.
    pub(super) fn replace(&self, definitions: Definitions) {
        self.metrics.set_definitions(&definitions, self.steps_max);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(definitions);
    }

    /// Returns those of `in_use` that are no longer loaded: the files have others, or none of their
    /// names.
    pub(super) fn without_loaded(&self, mut in_use: Vec<Arc<Definition>>) -> Vec<Arc<Definition>> {
        let loaded = self.current();
        let is_loaded = |definition: &Arc<Definition>| {
            loaded.get(&definition.full_name()).is_some_and(|loaded| loaded == definition)
        };
        in_use.retain(|definition| !is_loaded(definition));
        in_use
    }
}
