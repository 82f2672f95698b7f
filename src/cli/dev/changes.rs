//! What a change of the workflow files has changed, in words.

use daemon::actors::loaded_definitions::Definitions;
use engine::text::enumerate_quoted;
use engine::{Definition, Step};
use std::collections::BTreeMap;

/// Describes the differences between the definitions before and after a reload, one line for each
/// workflow that differs.
pub(super) fn describe_changes(before: &Definitions, after: &Definitions) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, definition) in after {
        match before.get(name) {
            None => lines.push(format!("the workflow {name} is new")),
            Some(previous) if previous == definition => {}
            Some(previous) => lines.push(describe_workflow(name, previous, definition)),
        }
    }
    let removed = before.keys().filter(|name| !after.contains_key(*name));
    lines.extend(removed.map(|name| format!("the workflow {name} is gone: it gets no new jobs")));
    lines
}

/// Describes how a workflow differs from its earlier definition.
fn describe_workflow(name: &str, before: &Definition, after: &Definition) -> String {
    let (before_steps, after_steps) = (steps_by_name(before), steps_by_name(after));
    let mut parts = Vec::new();
    let mut add = |verb: &str, names: Vec<&String>| {
        if !names.is_empty() {
            let names = enumerate_quoted(names.into_iter().map(String::as_str), "and");
            parts.push(format!("{verb} {names}"));
        }
    };
    add("new", after_steps.keys().filter(|step| !before_steps.contains_key(*step)).collect());
    add("gone", before_steps.keys().filter(|step| !after_steps.contains_key(*step)).collect());
    let is_changed = |(step, definition): &(&String, &&Step)| {
        before_steps.get(*step).is_some_and(|previous| previous != *definition)
    };
    add("changed", after_steps.iter().filter(is_changed).map(|(step, _)| step).collect());
    if parts.is_empty() {
        return format!("the workflow {name} has changed, its steps have not");
    }
    format!("the workflow {name} has changed: steps {}", parts.join("; "))
}

/// Returns the steps of a workflow and of its tasks. A step of a task has the task's name before
/// its own.
fn steps_by_name(definition: &Definition) -> BTreeMap<String, &Step> {
    let own = definition.graph().steps.iter().map(|step| (step.name.to_string(), step));
    let of_tasks = definition.graphs.iter().skip(1).flat_map(|graph| {
        graph.steps.iter().map(|step| (format!("{}/{}", graph.name, step.name), step))
    });
    own.chain(of_tasks).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn load(text: &str) -> Definitions {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("w.yaml");
        fs::write(&file, text).unwrap();
        let loaded = daemon::load::load_files(&[file]).unwrap();
        daemon::actors::loaded_definitions::index_by_name(loaded.definitions)
    }

    #[test]
    fn what_differs_is_named() {
        let before = load(
            "workflows: [ { name: a, steps: [ { name: x }, { name: y } ] }, \
             { name: b, steps: [ { name: x } ] }, { name: c, steps: [ { name: x } ] } ]",
        );
        let after = load(
            "workflows: [ { name: a, steps: [ { name: x, timeout: 5m }, { name: z } ] }, \
             { name: b, deadline: 1h, steps: [ { name: x } ] }, \
             { name: d, steps: [ { name: x } ] } ]",
        );
        assert_eq!(
            describe_changes(&before, &after),
            [
                "the workflow a has changed: steps new \"z\"; gone \"y\"; changed \"x\"",
                "the workflow b has changed, its steps have not",
                "the workflow d is new",
                "the workflow c is gone: it gets no new jobs",
            ]
        );
        assert!(describe_changes(&before, &before).is_empty());
    }

    #[test]
    fn steps_of_tasks_are_named_with_their_task() {
        let text = |timeout: &str| {
            format!(
                "workflows: [ {{ name: a, steps: [ {{ name: all, task: one }} ], tasks: [ \
                 {{ name: one, itemListKey: items, steps: [ {{ name: x{timeout} }} ] }} ] }} ]"
            )
        };
        let (before, after) = (load(&text("")), load(&text(", timeout: 1s")));
        let told = describe_changes(&before, &after);
        assert_eq!(told, ["the workflow a has changed: steps changed \"one/x\""]);
    }
}
