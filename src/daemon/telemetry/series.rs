//! Decides which workflows and steps have time series of their own in the metrics. Their number is
//! bounded by the workflow files and the setting `metrics.steps_max`. A workflow that is neither in
//! the files nor used by an active job loses its series.

use engine::Definition;
use prometheus::core::Collector;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock, Weak};

/// The label value of all steps without series of their own. No step has this name.
pub const OTHER: &str = "__other__";

/// Definitions by the full names of their workflows.
pub(super) type Definitions = BTreeMap<String, Arc<Definition>>;

/// Decides which steps have series of their own.
#[derive(Default)]
pub struct StepSeries(RwLock<SeriesState>);

/// The state of [`StepSeries`].
#[derive(Default)]
struct SeriesState {
    /// How many steps may have series of their own.
    steps_max: usize,
    /// The definitions in the files, by the full names of their workflows.
    current: HashMap<String, Arc<Definition>>,
    /// Other definitions. The jobs that use them keep them alive; a dead reference is removed by
    /// [`StepSeries::remove_unused`].
    previous: Vec<Weak<Definition>>,
    /// The steps that have series of their own, by the full names of their workflows.
    tracked: HashMap<String, HashSet<Arc<str>>>,
}

/// Reports that the files have more steps than may have series of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesOverflow {
    /// The number of steps without series of their own.
    pub untracked: usize,
    /// The number of all steps.
    pub steps: usize,
}

impl StepSeries {
    /// Replaces the definitions of the files. Definitions of running jobs stay. If the files have
    /// more steps than `steps_max`, the steps of each of the largest workflows share one series,
    /// and the numbers are returned; otherwise `None`.
    pub(crate) fn replace_definitions(
        &self,
        definitions: &Definitions,
        steps_max: usize,
    ) -> Option<SeriesOverflow> {
        let mut state = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let old_definitions = std::mem::take(&mut state.current).into_values();
        let old_tracked = std::mem::take(&mut state.tracked);
        state.steps_max = steps_max;
        state.current = definitions.clone().into_iter().collect();
        let is_replaced = |definition: &Arc<Definition>| {
            !definitions.values().any(|current| Arc::ptr_eq(current, definition))
        };
        let replaced_definitions: Vec<_> = old_definitions.filter(is_replaced).collect();
        state.previous.extend(replaced_definitions.iter().map(Arc::downgrade));
        // Only references of jobs may keep a replaced definition alive below.
        drop(replaced_definitions);
        let mut workflows_by_size: Vec<_> =
            state.current.iter().map(|(name, definition)| (step_names(definition), name)).collect();
        workflows_by_size.sort_unstable_by_key(|(steps, name)| (steps.len(), (*name).clone()));
        let step_count = workflows_by_size.iter().map(|(steps, _)| steps.len()).sum();
        let (mut cumulative_count, mut tracked) = (0, HashMap::new());
        for (steps, name) in workflows_by_size {
            cumulative_count += steps.len();
            if cumulative_count <= steps_max {
                tracked.insert(name.clone(), steps);
            }
        }
        let tracked_count: usize = tracked.values().map(HashSet::len).sum();
        state.tracked = tracked;
        // The steps of running jobs keep the series that they had, even beyond the limit.
        for definition in state.alive_previous() {
            let name = definition.full_name();
            let Some(old_steps) = old_tracked.get(&*name) else { continue };
            let retained_steps: Vec<_> = step_names(&definition)
                .into_iter()
                .filter(|step| old_steps.contains(step))
                .collect();
            state.tracked.entry(name).or_default().extend(retained_steps);
        }
        (tracked_count < step_count)
            .then_some(SeriesOverflow { untracked: step_count - tracked_count, steps: step_count })
    }

    /// Adds the definition of a job, unless it is there already. Its steps get series of their own
    /// if the limit allows it for all of them.
    pub fn add_definition(&self, definition: &Arc<Definition>) {
        let name = definition.full_name();
        let has_definition = |state: &SeriesState| {
            state.current.get(&*name).is_some_and(|current| Arc::ptr_eq(current, definition))
                || state
                    .previous
                    .iter()
                    .any(|previous| previous.as_ptr() == Arc::as_ptr(definition))
        };
        if has_definition(&self.0.read().unwrap_or_else(PoisonError::into_inner)) {
            return;
        }
        let mut state = self.0.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have added it before this one got the write lock.
        if has_definition(&state) {
            return;
        }
        state.previous.push(Arc::downgrade(definition));
        // The steps of a workflow that is beyond the limit share one series in all versions.
        let is_untracked =
            state.current.contains_key(&*name) && !state.tracked.contains_key(&*name);
        let tracked_count: usize = state.tracked.values().map(HashSet::len).sum();
        let tracked_steps = state.tracked.get(&*name);
        let new_steps: Vec<_> = step_names(definition)
            .into_iter()
            .filter(|step| tracked_steps.is_none_or(|steps| !steps.contains(step)))
            .collect();
        if !is_untracked && tracked_count + new_steps.len() <= state.steps_max {
            state.tracked.entry(name).or_default().extend(new_steps);
        }
    }

    /// Returns the label value of a step: its name, or [`OTHER`].
    pub(crate) fn step_label<'s>(&self, workflow: &str, step: &'s str) -> &'s str {
        let state = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let is_tracked = state.tracked.get(workflow).is_some_and(|steps| steps.contains(step));
        if is_tracked { step } else { OTHER }
    }

    /// Removes the definitions that are in no file and that no job uses any more. Returns the steps
    /// that are still used, or `None` if nothing was removed.
    pub(super) fn remove_unused(&self) -> Option<UsedSteps> {
        let state = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if state.previous.iter().all(|previous| previous.strong_count() > 0) {
            return None;
        }
        drop(state);
        let mut state = self.0.write().unwrap_or_else(PoisonError::into_inner);
        state.previous.retain(|previous| previous.strong_count() > 0);
        let mut used_steps: HashMap<String, HashSet<Arc<str>>> = HashMap::new();
        let previous = state.alive_previous();
        for definition in state.current.values().chain(&previous) {
            used_steps.entry(definition.full_name()).or_default().extend(step_names(definition));
        }
        state.tracked.retain(|name, tracked| match used_steps.get(name) {
            Some(steps) => {
                tracked.retain(|step| steps.contains(step));
                true
            }
            None => false,
        });
        Some(UsedSteps(used_steps))
    }
}

impl SeriesState {
    /// Returns the previous definitions that jobs still use.
    fn alive_previous(&self) -> Vec<Arc<Definition>> {
        self.previous.iter().filter_map(Weak::upgrade).collect()
    }
}

/// The steps whose series are still used, by the full names of their workflows.
pub(super) struct UsedSteps(HashMap<String, HashSet<Arc<str>>>);

impl UsedSteps {
    /// Returns whether the series of a workflow, or of one of its steps, is still used. The shared
    /// series [`OTHER`] is used as long as the workflow is.
    pub(super) fn has(&self, workflow: &str, step: Option<&str>) -> bool {
        self.0
            .get(workflow)
            .is_some_and(|steps| step.is_none_or(|step| step == OTHER || steps.contains(step)))
    }
}

/// Returns the names of all steps of a definition.
fn step_names(definition: &Definition) -> HashSet<Arc<str>> {
    definition.graphs.iter().flat_map(|graph| &graph.steps).map(|step| step.name.clone()).collect()
}

/// Returns the labels of each series of a family, as pairs of name and value.
pub(super) fn collect_labels(family: &impl Collector) -> Vec<Vec<(String, String)>> {
    let families = family.collect();
    let metrics = families.iter().flat_map(|family| family.get_metric());
    let labels = metrics.map(|metric| {
        let pairs = metric.get_label().iter();
        pairs.map(|pair| (pair.name().to_owned(), pair.value().to_owned())).collect()
    });
    labels.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Metrics;
    use engine::{Graph, Step};

    fn definition(name: &str, steps: &[&str]) -> Arc<Definition> {
        let steps = steps.iter().map(|step| Step::with_name(step)).collect();
        let graph = Graph::new(name.to_owned(), None, steps);
        Arc::new(Definition::new(name, vec![graph]))
    }

    fn files(definitions: &[&Arc<Definition>]) -> Definitions {
        definitions
            .iter()
            .map(|definition| (definition.full_name(), (*definition).clone()))
            .collect()
    }

    /// Counts a step in the metrics as a job does.
    fn count(metrics: &Metrics, workflow: &str, step: &str) {
        let label = metrics.series.step_label(workflow, step);
        metrics.replied.with_label_values(&[workflow, label]).inc();
        metrics.step_duration.with_label_values(&[workflow, label]).observe(1.0);
        metrics.jobs_created.with_label_values(&[workflow]).inc();
    }

    fn rendered_labels(metrics: &Metrics) -> Vec<String> {
        let text = metrics.render();
        let lines = text.lines().filter(|line| line.starts_with("workflow_steps_replied_total"));
        let mut rendered: Vec<String> = lines
            .map(|line| line.split(['{', '}']).nth(1).expect("labels").replace('"', ""))
            .collect();
        rendered.sort_unstable();
        rendered
    }

    #[test]
    fn reloads_leave_no_series_of_removed_steps() {
        let metrics = Metrics::new();
        let unchanged = definition("stays", &["a"]);
        let mut line_counts = Vec::new();
        for round in 0..60 {
            let (workflow, step) = (format!("w{round}"), format!("s{round}"));
            let (removed, renamed) =
                (definition(&workflow, &["a"]), definition("renamed", &["kept", &step]));
            assert_eq!(
                metrics.series.replace_definitions(&files(&[&unchanged, &removed, &renamed]), 100),
                None
            );
            for (workflow, step) in
                [("stays", "a"), (&workflow, "a"), ("renamed", "kept"), ("renamed", &step)]
            {
                count(&metrics, workflow, step);
            }
            line_counts.push(metrics.render().lines().count());
        }
        assert_eq!(line_counts[1], line_counts[59], "the number of series does not grow");
        assert_eq!(
            rendered_labels(&metrics),
            [
                "step=a,workflow=stays",
                "step=a,workflow=w59",
                "step=kept,workflow=renamed",
                "step=s59,workflow=renamed",
            ]
        );
        assert!(
            metrics.render().contains("{step=\"a\",workflow=\"stays\"} 60"),
            "the count continues"
        );
    }

    #[test]
    fn a_running_job_keeps_its_series() {
        let metrics = Metrics::new();
        let (before, after) = (definition("w", &["a"]), definition("w", &["b"]));
        metrics.series.replace_definitions(&files(&[&before]), 100);
        metrics.series.add_definition(&before);
        count(&metrics, "w", "a");
        metrics.series.replace_definitions(&files(&[&after]), 100);
        // The job continues.
        count(&metrics, "w", "a");
        assert!(metrics.render().contains("replied_total{step=\"a\",workflow=\"w\"} 2"));
        drop(before);
        assert!(rendered_labels(&metrics).is_empty());

        // A recovered job has a definition that no file had in this process.
        let recovered = definition("gone", &["x"]);
        metrics.series.add_definition(&recovered);
        count(&metrics, "gone", "x");
        assert_eq!(rendered_labels(&metrics), ["step=x,workflow=gone"]);
        drop(recovered);
        assert!(rendered_labels(&metrics).is_empty());
    }

    #[test]
    fn with_too_many_steps_those_of_the_largest_workflows_are_counted_together() {
        let metrics = Metrics::new();
        let names: Vec<String> = (0..1_000).map(|index| format!("s{index}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (large, small) = (definition("large", &names), definition("small", &["a", "b"]));
        let all = files(&[&large, &small]);
        let overflow = metrics.series.replace_definitions(&all, 500);
        assert_eq!(overflow, Some(SeriesOverflow { untracked: 1_000, steps: 1_002 }));
        names.iter().for_each(|step| count(&metrics, "large", step));
        count(&metrics, "small", "a");
        metrics.series.add_definition(&large);
        count(&metrics, "large", "s1");
        assert_eq!(
            rendered_labels(&metrics),
            ["step=__other__,workflow=large", "step=a,workflow=small"]
        );
        assert!(metrics.render().contains("{step=\"__other__\",workflow=\"large\"} 1001"));
        assert!(metrics.render().lines().count() < 500);
        // No step has series of its own.
        metrics.series.replace_definitions(&all, 0);
        assert_eq!(metrics.series.step_label("small", "a"), OTHER);
        assert_eq!(metrics.series.replace_definitions(&all, 1_002), None);
        assert_eq!(metrics.series.step_label("large", "s999"), "s999");
    }
}
