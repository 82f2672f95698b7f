//! `check`: validates workflow files; prints what they say, or everything that is wrong with them.

use crate::engine::{Definition, Dependency, FanOutKeys, Graph, GraphIndex, Step, StepIndex};
use crate::load::{LoadErrors, Loaded, Problem, load_files};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

/// Validates `files` and prints the outcome to `out`: the workflows, or every error. Whether they are valid.
///
/// # Errors
///
/// What writing to `out` gives.
pub fn check(files: &[PathBuf], json: bool, out: &mut dyn Write) -> io::Result<bool> {
    let loaded = load_files(files);
    if json {
        print_json(&loaded, out)?;
    } else {
        match &loaded {
            Ok(loaded) => print_loaded(loaded, out)?,
            Err(errors) => print_errors(errors, files.len(), out)?,
        }
    }
    out.flush()?;
    Ok(loaded.is_ok())
}

fn print_errors(errors: &LoadErrors, files: usize, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{errors}")?;
    let count = errors.0.len();
    writeln!(out, "\nnot valid: {} in {}", counted(count, "error"), counted(files, "file"))
}

fn print_loaded(loaded: &Loaded, out: &mut dyn Write) -> io::Result<()> {
    let mut rest = loaded.definitions.as_slice();
    let mut workflows = 0;
    while let Some(first) = rest.first() {
        // One workflow in several virtual hosts is shown once.
        let same = rest.iter().take_while(|definition| definition.name == first.name && definition.graphs == first.graphs).count();
        let (shown, after) = rest.split_at(same);
        rest = after;
        workflows += 1;
        print_workflow(shown, out)?;
    }
    for warning in &loaded.warnings {
        writeln!(out, "warning: {warning}")?;
    }
    if workflows > 0 {
        // SPEC §4 wants the warning; until the key is there nothing can be done about it, so it is said once.
        writeln!(
            out,
            "note: no step has a timeout, this version does not know the key yet: a worker that acks and dies before it replies is noticed by nothing"
        )?;
    }
    let blank = if loaded.warnings.is_empty() && workflows == 0 { "" } else { "\n" };
    writeln!(out, "{blank}valid: {}, {}", counted(workflows, "workflow"), counted(loaded.warnings.len(), "warning"))
}

/// One workflow in the virtual hosts of `definitions`, which differ in nothing else.
fn print_workflow(definitions: &[Arc<Definition>], out: &mut dyn Write) -> io::Result<()> {
    let definition = &definitions[0];
    let vhosts: Vec<&str> = definitions.iter().map(|definition| definition.vhost.as_str()).filter(|vhost| !vhost.is_empty()).collect();
    let place = match vhosts.as_slice() {
        [] => String::new(),
        [one] => format!(" in the virtual host {one}"),
        several => format!(" in the virtual hosts {}", several.join(", ")),
    };
    writeln!(out, "workflow {}{place}\n", definition.name)?;
    print_table(&rows(definition), out)?;
    writeln!(out, "\n  queues  {}", joined(definition.queues().iter().map(|queue| &**queue)))?;
    let graph = definition.graph();
    writeln!(out, "  result  of {}\n", joined(graph.last_steps().iter().map(|at| &*graph.step(*at).name)))
}

/// What is shown of a step.
type Row = [String; 3];

fn rows(definition: &Definition) -> Vec<Row> {
    let mut rows = vec![["step", "waits for", "goes to"].map(str::to_owned)];
    let mut view = View { definition, open: vec![false; definition.graphs.len()], shown: vec![false; definition.graphs.len()] };
    view.add(0, 0, &mut rows);
    rows
}

/// Which graphs stand above the one that is being shown, and which were shown: each is shown once.
struct View<'d> {
    definition: &'d Definition,
    open: Vec<bool>,
    shown: Vec<bool>,
}

impl View<'_> {
    fn add(&mut self, index: GraphIndex, depth: usize, rows: &mut Vec<Row>) {
        let graph = &self.definition.graphs[usize::from(index)];
        self.open[usize::from(index)] = true;
        self.shown[usize::from(index)] = true;
        for step in in_order(graph) {
            let name = format!("{}{}", "  ".repeat(depth), step.name);
            let waits_for = joined(step.depends.iter().map(|dependency| dependency_name(graph, *dependency)));
            rows.push([name, waits_for, self.target(step)]);
            if let Some(task) = step.task
                && !self.shown[usize::from(task)]
            {
                self.add(task, depth + 1, rows);
            }
        }
        self.open[usize::from(index)] = false;
    }

    fn target(&self, step: &Step) -> String {
        let Some(index) = step.task.map(usize::from) else {
            let priority = step.priority.map_or_else(String::new, |priority| format!(", priority {priority}"));
            return format!("queue {}{priority}", step.queue);
        };
        let task = &self.definition.graphs[index];
        let seen = if self.open[index] {
            " (recursion: see above)"
        } else if self.shown[index] {
            " (see above)"
        } else {
            ""
        };
        format!("task {}{}{seen}", task.name, task.fan_out.as_ref().map_or_else(String::new, fan_out))
    }
}

fn fan_out(keys: &FanOutKeys) -> String {
    let window = keys.max_concurrency.map_or_else(String::new, |most| format!(", at most {most} at once"));
    format!(" for each of {} → {}{window}", keys.list_key, keys.item_key)
}

fn print_table(rows: &[Row], out: &mut dyn Write) -> io::Result<()> {
    /// A longer cell pushes its own row aside, not all rows.
    const WIDTH_MAX: usize = 48;
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).filter(|width| *width <= WIDTH_MAX).max().unwrap_or(0);
    let (first, second) = (width(0), width(1));
    for [name, waits_for, target] in rows {
        writeln!(out, "  {name:first$}  {waits_for:second$}  {target}")?;
    }
    Ok(())
}

/// The steps in an order in which they can run: as declared, but none before those that it waits for.
fn in_order(graph: &Graph) -> Vec<&Step> {
    let mut waiting: Vec<usize> = graph.steps.iter().map(|step| step.depended_on().len()).collect();
    let mut ready: BinaryHeap<Reverse<StepIndex>> = graph.indices().filter(|at| waiting[at.at()] == 0).map(Reverse).collect();
    let mut ordered = Vec::with_capacity(graph.steps.len());
    while let Some(Reverse(at)) = ready.pop() {
        ordered.push(graph.step(at));
        for next in graph.dependents(at) {
            waiting[next.at()] -= 1;
            if waiting[next.at()] == 0 {
                ready.push(Reverse(*next));
            }
        }
    }
    ordered
}

fn dependency_name(graph: &Graph, dependency: Dependency) -> &str {
    match dependency {
        Dependency::Start => "__start__",
        Dependency::Step(at) => &graph.step(at).name,
    }
}

fn joined<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let words: Vec<&str> = words.collect();
    if words.is_empty() { "-".to_owned() } else { words.join(", ") }
}

fn counted(count: usize, noun: &str) -> String {
    match count {
        0 => format!("no {noun}s"),
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}

#[derive(Serialize)]
struct Outcome<'l> {
    valid: bool,
    workflows: Vec<WorkflowView<'l>>,
    warnings: &'l [Problem],
    errors: &'l [Problem],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WorkflowView<'d> {
    vhost: &'d str,
    name: &'d str,
    steps: Vec<StepView<'d>>,
    tasks: Vec<TaskView<'d>>,
    queues: Vec<Arc<str>>,
    result: Vec<&'d str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TaskView<'d> {
    name: &'d str,
    item_list_key: &'d str,
    item_key: &'d str,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_concurrency: Option<u32>,
    recursive: bool,
    steps: Vec<StepView<'d>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StepView<'d> {
    name: &'d str,
    depends: Vec<&'d str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<&'d str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<&'d str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u8>,
}

fn print_json(loaded: &Result<Loaded, LoadErrors>, out: &mut dyn Write) -> io::Result<()> {
    let view = match loaded {
        Ok(loaded) => Outcome {
            valid: true,
            workflows: loaded.definitions.iter().map(|definition| workflow_view(definition)).collect(),
            warnings: &loaded.warnings,
            errors: &[],
        },
        Err(errors) => Outcome { valid: false, workflows: Vec::new(), warnings: &[], errors: &errors.0 },
    };
    serde_json::to_writer_pretty(&mut *out, &view)?;
    writeln!(out)
}

fn workflow_view(definition: &Definition) -> WorkflowView<'_> {
    let graph = definition.graph();
    let tasks = definition.graphs.iter().enumerate().skip(1).filter_map(|(at, task)| {
        let keys = task.fan_out.as_ref()?;
        Some(TaskView {
            name: &task.name,
            item_list_key: &keys.list_key,
            item_key: &keys.item_key,
            max_concurrency: keys.max_concurrency,
            recursive: leads_to_itself(definition, at),
            steps: step_views(definition, task),
        })
    });
    WorkflowView {
        vhost: &definition.vhost,
        name: &definition.name,
        steps: step_views(definition, graph),
        tasks: tasks.collect(),
        queues: definition.queues(),
        result: graph.last_steps().iter().map(|at| &*graph.step(*at).name).collect(),
    }
}

fn step_views<'d>(definition: &'d Definition, graph: &'d Graph) -> Vec<StepView<'d>> {
    let view = |step: &'d Step| StepView {
        name: &step.name,
        depends: step.depends.iter().map(|dependency| dependency_name(graph, *dependency)).collect(),
        queue: step.task.is_none().then_some(&*step.queue),
        task: step.task.map(|task| definition.graphs[usize::from(task)].name.as_str()),
        priority: step.priority,
    };
    graph.steps.iter().map(view).collect()
}

fn leads_to_itself(definition: &Definition, graph: usize) -> bool {
    let tasks_of = |at: usize| definition.graphs[at].steps.iter().filter_map(|step| step.task).map(usize::from);
    let mut seen = vec![false; definition.graphs.len()];
    let mut next: Vec<usize> = tasks_of(graph).collect();
    while let Some(at) = next.pop() {
        if at == graph {
            return true;
        }
        if !std::mem::replace(&mut seen[at], true) {
            next.extend(tasks_of(at));
        }
    }
    false
}
