//! The differences between two definitions of one workflow.

use engine::{Definition, Dependency, Expression, Graph, Millis, Step, StepIndex};
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;

/// What a change is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    /// A step was removed.
    Gone,
    /// A step was added.
    New,
    /// A step was renamed.
    Renamed,
    /// A step has other dependencies.
    Depends,
    /// The messages of a step go to another queue.
    Queue,
    /// A condition has another text, or another result.
    Condition,
    /// The child jobs of a step run another task.
    Task,
    /// Anything else in a step, a task or the workflow.
    Option,
    /// A step or the job would be in another state.
    State,
    /// A step would have another status.
    Status,
    /// The job would have another result.
    Result,
}

/// One difference between two definitions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// What the change is about.
    pub kind: ChangeKind,
    /// The task to which the step belongs, or `None` for a step of the workflow itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// The step, by its old name if it was renamed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The difference as a sentence.
    pub text: String,
}

/// Maps the steps of an old graph to the matching steps of a new one. A step matches at most one
/// other.
pub(super) struct StepMapping {
    new_by_old: HashMap<StepIndex, StepIndex>,
}

impl StepMapping {
    /// Matches steps by name. An old step without a match counts as renamed if a new step without a
    /// match is of the same kind, and has the same queue, or the same dependencies and dependents.
    pub(super) fn from_graphs(old: &Graph, new: &Graph) -> StepMapping {
        let mut new_by_old: HashMap<StepIndex, StepIndex> = old
            .indices()
            .filter_map(|index| Some((index, new.find_index(&old.step(index).name)?)))
            .collect();
        let unmatched: Vec<StepIndex> =
            old.indices().filter(|index| !new_by_old.contains_key(index)).collect();
        for old_index in unmatched {
            let is_renamed = |new_index: &StepIndex| {
                let is_matched = new_by_old.values().any(|matched| matched == new_index);
                let (old_step, new_step) = (old.step(old_index), new.step(*new_index));
                let has_same_neighbors = dependency_names(old, old_step)
                    == dependency_names(new, new_step)
                    && dependent_names(old, old_index) == dependent_names(new, *new_index);
                !is_matched
                    && old.find_index(&new_step.name).is_none()
                    && old_step.task.is_some() == new_step.task.is_some()
                    && old_step.external == new_step.external
                    && (old_step.queue == new_step.queue || has_same_neighbors)
            };
            if let Some(new_index) = new.indices().find(is_renamed) {
                new_by_old.insert(old_index, new_index);
            }
        }
        StepMapping { new_by_old }
    }

    /// Returns the step of the new graph that matches this step of the old one, if there is one.
    pub(super) fn find_new(&self, old: StepIndex) -> Option<StepIndex> {
        self.new_by_old.get(&old).copied()
    }

    /// Returns whether a step of the new graph matches no step of the old one.
    pub(super) fn is_new(&self, new: StepIndex) -> bool {
        !self.new_by_old.values().any(|matched| *matched == new)
    }
}

/// Compares two definitions. Returns all differences, those of the workflow's own steps first.
pub fn diff_definitions(old: &Definition, new: &Definition) -> Vec<Change> {
    let mut changes = Vec::new();
    let format_duration = |duration: Option<Millis>| {
        duration.map_or("none".to_owned(), |duration| duration.to_string())
    };
    let mut compare_key = |key: &str, old_value: Option<Millis>, new_value: Option<Millis>| {
        if old_value != new_value {
            let text = format!(
                "{key} {} instead of {}",
                format_duration(new_value),
                format_duration(old_value)
            );
            changes.push(Change { kind: ChangeKind::Option, task: None, step: None, text });
        }
    };
    compare_key("deadline", old.deadline, new.deadline);
    compare_key("retention", old.retention, new.retention);
    for (index, graph) in old.graphs.iter().enumerate() {
        // The first graph is the workflow itself, and the others are its tasks.
        let task = (index > 0).then(|| graph.name.clone());
        let new_graph = match index {
            0 => Some(new.graph()),
            _ => new.graphs.iter().skip(1).find(|other| other.name == graph.name),
        };
        match new_graph {
            Some(new_graph) => {
                diff_graphs(task.as_deref(), (old, graph), (new, new_graph), &mut changes)
            }
            None => {
                let text = format!("task {} is gone", graph.name);
                changes.push(Change { kind: ChangeKind::Task, task, step: None, text });
            }
        }
    }
    let is_new =
        |graph: &&Graph| !old.graphs.iter().skip(1).any(|old_graph| old_graph.name == graph.name);
    for graph in new.graphs.iter().skip(1).filter(is_new) {
        let (task, text) = (Some(graph.name.clone()), format!("task {} is new", graph.name));
        changes.push(Change { kind: ChangeKind::Task, task, step: None, text });
    }
    changes
}

/// Compares two graphs, and adds the differences to `changes`. `task` is the name of the graph if
/// it is a task.
fn diff_graphs(
    task: Option<&str>,
    (old_definition, old): (&Definition, &Graph),
    (new_definition, new): (&Definition, &Graph),
    changes: &mut Vec<Change>,
) {
    let mapping = StepMapping::from_graphs(old, new);
    let task = task.map(str::to_owned);
    if old.fan_out != new.fan_out {
        let text = "its list, item key, maxConcurrency or tolerate differ".to_owned();
        changes.push(Change { kind: ChangeKind::Task, task: task.clone(), step: None, text });
    }
    for index in old.indices() {
        let step = old.step(index);
        let mut add_change = |kind, text| {
            let step = Some(step.name.to_string());
            changes.push(Change { kind, task: task.clone(), step, text });
        };
        let Some(new_index) = mapping.find_new(index) else {
            add_change(ChangeKind::Gone, "is gone".to_owned());
            continue;
        };
        let new_step = new.step(new_index);
        if step.name != new_step.name {
            add_change(ChangeKind::Renamed, format!("is called {} now", new_step.name));
        }
        diff_steps((old_definition, old, step), (new_definition, new, new_step), &mut add_change);
    }
    for index in new.indices().filter(|index| mapping.is_new(*index)) {
        let (kind, step) = (ChangeKind::New, Some(new.step(index).name.to_string()));
        changes.push(Change { kind, task: task.clone(), step, text: "is new".to_owned() });
    }
}

/// A step with its graph and the definition of that graph.
type StepInDefinition<'d> = (&'d Definition, &'d Graph, &'d Step);

/// Compares two steps, except for their names, and reports the differences.
fn diff_steps(
    (old_definition, old_graph, old): StepInDefinition<'_>,
    (new_definition, new_graph, new): StepInDefinition<'_>,
    add_change: &mut impl FnMut(ChangeKind, String),
) {
    if old.queue != new.queue && old.has_queue() && new.has_queue() {
        add_change(
            ChangeKind::Queue,
            format!("goes to queue {} instead of {}", new.queue, old.queue),
        );
    }
    let old_names = dependency_names(old_graph, old);
    let new_names = dependency_names(new_graph, new);
    if old_names != new_names {
        let format_names = |names: &[Arc<str>]| match names {
            [] => "nothing".to_owned(),
            names => names.join(", "),
        };
        add_change(
            ChangeKind::Depends,
            format!(
                "depends on {} instead of {}",
                format_names(&new_names),
                format_names(&old_names)
            ),
        );
    }
    let mut compare_conditions = |key: &str, old: &Option<Expression>, new: &Option<Expression>| {
        let text = |expression: &Option<Expression>| {
            expression.as_ref().map_or("none".to_owned(), |expression| expression.text().to_owned())
        };
        if text(old) != text(new) {
            add_change(
                ChangeKind::Condition,
                format!("{key} is {} instead of {}", text(new), text(old)),
            );
        }
    };
    compare_conditions("when", &old.when, &new.when);
    compare_conditions("cancelWhen", &old.cancel_when, &new.cancel_when);
    let task_name = |definition: &Definition, step: &Step| {
        let graph = step.task.and_then(|task| definition.graphs.get(usize::from(task)));
        graph.map_or("none".to_owned(), |graph| graph.name.clone())
    };
    let (old_task, new_task) = (task_name(old_definition, old), task_name(new_definition, new));
    if old_task != new_task {
        add_change(ChangeKind::Task, format!("has the task {new_task} instead of {old_task}"));
    }
    let options = [
        ("external", old.external != new.external),
        ("timeout", old.timeout != new.timeout),
        ("startWithin", old.start_within != new.start_within),
        ("waitAtMost", old.wait_at_most != new.wait_at_most),
        ("retry", old.retry != new.retry),
        ("onFailure", old.on_failure != new.on_failure),
        ("priority", old.priority != new.priority),
        ("statuses", old.status != new.status),
        ("queueType", old.declared.kind != new.declared.kind),
        ("queueArguments", old.declared.arguments != new.declared.arguments),
        ("replyUsers", old.reply_users != new.reply_users),
    ];
    let differing: Vec<&str> =
        options.iter().filter(|(_, differs)| *differs).map(|(key, _)| *key).collect();
    if !differing.is_empty() {
        let verb = if differing.len() == 1 { "differs" } else { "differ" };
        add_change(ChangeKind::Option, format!("{} {verb}", differing.join(", ")));
    }
}

/// Returns the names of the dependencies of a step. The start of the graph is called `__start__`.
pub(super) fn dependency_names(graph: &Graph, step: &Step) -> Vec<Arc<str>> {
    step.depends
        .iter()
        .map(|dependency| match dependency {
            Dependency::Start => "__start__".into(),
            Dependency::Step(index) => graph.step(*index).name.clone(),
        })
        .collect()
}

/// Returns the names of the steps that depend on a step.
fn dependent_names(graph: &Graph, step: StepIndex) -> Vec<Arc<str>> {
    graph.dependents(step).iter().map(|index| graph.step(*index).name.clone()).collect()
}
