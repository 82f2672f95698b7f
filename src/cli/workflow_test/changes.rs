//! The differences between two definitions of one workflow.

use engine::{Definition, Dependency, Expression, Graph, Millis, Step, StepIndex};
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;

/// The subject of a change.
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
    /// The subject of the change.
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

/// Maps the steps of an old graph to those of a new one.
pub(super) struct StepMapping {
    new_by_old: HashMap<StepIndex, StepIndex>,
}

impl StepMapping {
    /// Matches steps by name. An unmatched step counts as renamed if a new step does the same work
    /// in the same place of the graph.
    pub(super) fn from_graphs(old: &Graph, new: &Graph) -> StepMapping {
        let mut new_by_old: HashMap<StepIndex, StepIndex> = old
            .indices()
            .filter_map(|at| Some((at, new.find_index(&old.step(at).name)?)))
            .collect();
        let gone: Vec<StepIndex> =
            old.indices().filter(|at| !new_by_old.contains_key(at)).collect();
        for at in gone {
            let is_renamed = |other: &StepIndex| {
                let is_matched = new_by_old.values().any(|paired| paired == other);
                let (one, two) = (old.step(at), new.step(*other));
                let has_same_place = dependency_names(old, one) == dependency_names(new, two)
                    && dependent_names(old, at) == dependent_names(new, *other);
                !is_matched
                    && old.find_index(&two.name).is_none()
                    && one.task.is_some() == two.task.is_some()
                    && one.external == two.external
                    && (one.queue == two.queue || has_same_place)
            };
            if let Some(other) = new.indices().find(is_renamed) {
                new_by_old.insert(at, other);
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
        !self.new_by_old.values().any(|paired| *paired == new)
    }
}

/// Returns all differences, those of the workflow's own steps first.
pub fn diff_definitions(old: &Definition, new: &Definition) -> Vec<Change> {
    let mut found = Vec::new();
    let span = |span: Option<Millis>| span.map_or("none".to_owned(), |span| span.to_string());
    let mut compare_setting = |what: &str, one: Option<Millis>, two: Option<Millis>| {
        if one != two {
            let text = format!("{what} {} instead of {}", span(two), span(one));
            found.push(Change { kind: ChangeKind::Option, task: None, step: None, text });
        }
    };
    compare_setting("deadline", old.deadline, new.deadline);
    compare_setting("retention", old.retention, new.retention);
    for (at, graph) in old.graphs.iter().enumerate() {
        let task = (at > 0).then(|| graph.name.clone());
        let other = match at {
            0 => Some(new.graph()),
            _ => new.graphs.iter().skip(1).find(|other| other.name == graph.name),
        };
        match other {
            Some(other) => diff_graphs(task.as_deref(), (old, graph), (new, other), &mut found),
            None => {
                let text = format!("task {} is gone", graph.name);
                found.push(Change { kind: ChangeKind::Task, task, step: None, text });
            }
        }
    }
    let is_new = |graph: &&Graph| !old.graphs.iter().skip(1).any(|one| one.name == graph.name);
    for graph in new.graphs.iter().skip(1).filter(is_new) {
        let (task, text) = (Some(graph.name.clone()), format!("task {} is new", graph.name));
        found.push(Change { kind: ChangeKind::Task, task, step: None, text });
    }
    found
}

fn diff_graphs(
    task: Option<&str>,
    (old_definition, old): (&Definition, &Graph),
    (new_definition, new): (&Definition, &Graph),
    found: &mut Vec<Change>,
) {
    let mapping = StepMapping::from_graphs(old, new);
    let task = task.map(str::to_owned);
    if old.fan_out != new.fan_out {
        let text = "its list, item key, maxConcurrency or tolerate differ".to_owned();
        found.push(Change { kind: ChangeKind::Task, task: task.clone(), step: None, text });
    }
    for at in old.indices() {
        let step = old.step(at);
        let mut add_change = |kind, text| {
            let step = Some(step.name.to_string());
            found.push(Change { kind, task: task.clone(), step, text });
        };
        let Some(other) = mapping.find_new(at) else {
            add_change(ChangeKind::Gone, "is gone".to_owned());
            continue;
        };
        let other = new.step(other);
        if step.name != other.name {
            add_change(ChangeKind::Renamed, format!("is called {} now", other.name));
        }
        diff_steps((old_definition, old, step), (new_definition, new, other), &mut add_change);
    }
    for at in new.indices().filter(|at| mapping.is_new(*at)) {
        let (kind, step) = (ChangeKind::New, Some(new.step(at).name.to_string()));
        found.push(Change { kind, task: task.clone(), step, text: "is new".to_owned() });
    }
}

/// A step with its graph and the definition of that graph.
type StepInDefinition<'d> = (&'d Definition, &'d Graph, &'d Step);

/// Reports the differences of one step, except for its name.
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
    let (one, two) = (dependency_names(old_graph, old), dependency_names(new_graph, new));
    if one != two {
        let listed = |names: &[Arc<str>]| match names {
            [] => "nothing".to_owned(),
            names => names.join(", "),
        };
        add_change(
            ChangeKind::Depends,
            format!("depends on {} instead of {}", listed(&two), listed(&one)),
        );
    }
    let mut condition = |key: &str, one: &Option<Expression>, two: &Option<Expression>| {
        let text = |expression: &Option<Expression>| {
            expression.as_ref().map_or("none".to_owned(), |expression| expression.text().to_owned())
        };
        if text(one) != text(two) {
            add_change(
                ChangeKind::Condition,
                format!("{key} is {} instead of {}", text(two), text(one)),
            );
        }
    };
    condition("when", &old.when, &new.when);
    condition("cancelWhen", &old.cancel_when, &new.cancel_when);
    let task = |definition: &Definition, step: &Step| {
        let graph = step.task.and_then(|task| definition.graphs.get(usize::from(task)));
        graph.map_or("none".to_owned(), |graph| graph.name.clone())
    };
    let (one, two) = (task(old_definition, old), task(new_definition, new));
    if one != two {
        add_change(ChangeKind::Task, format!("has the task {two} instead of {one}"));
    }
    let options = [
        ("external", old.external != new.external),
        ("timeout", old.timeout != new.timeout),
        ("startWithin", old.start_within != new.start_within),
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

/// Returns the names of the dependencies of a step.
pub(super) fn dependency_names(graph: &Graph, step: &Step) -> Vec<Arc<str>> {
    step.depends
        .iter()
        .map(|dependency| match dependency {
            Dependency::Start => "__start__".into(),
            Dependency::Step(on) => graph.step(*on).name.clone(),
        })
        .collect()
}

/// Returns the names of the steps that depend on a step.
fn dependent_names(graph: &Graph, step: StepIndex) -> Vec<Arc<str>> {
    graph.dependents(step).iter().map(|on| graph.step(*on).name.clone()).collect()
}
