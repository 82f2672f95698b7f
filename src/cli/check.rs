//! `check`: validates workflow files, and prints the workflows or all errors.

use super::check_json::print_json;
use super::words::counted;
use crate::engine::words::{escaped, escaped_lines};
use crate::engine::{
    Definition, FanOutKeys, Graph, GraphIndex, OnFailure, Step, StepIndex, Tolerate,
};
use crate::load::{LoadErrors, Loaded, Problem, load_files_or_input};
use crate::settings::Settings;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

/// Validates `files`, of which `-` is standard input, and prints the workflows or all errors to
/// `out`. If `settings` are given, the files are validated for a manager with these settings.
/// Returns whether the files are valid.
///
/// # Errors
///
/// Returns an error if `out` cannot be written.
pub fn check(
    files: &[PathBuf],
    settings: Option<&Settings>,
    json: bool,
    out: &mut dyn Write,
) -> io::Result<bool> {
    let loaded = load_files_or_input(files, settings).map(with_advice);
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

/// Adds the advice to the warnings: a check reports everything.
fn with_advice(mut loaded: Loaded) -> Loaded {
    loaded.warnings.append(&mut loaded.advice);
    // The sort is stable, so the files keep their order.
    let files: Vec<String> = loaded.warnings.iter().map(|warning| warning.file.clone()).collect();
    let file = |problem: &Problem| files.iter().position(|file| *file == problem.file);
    loaded.warnings.sort_by_cached_key(|problem| (file(problem), problem.line, problem.column));
    loaded
}

fn print_errors(errors: &LoadErrors, files: usize, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", escaped_lines(&errors.to_string()))?;
    let count = errors.0.len();
    writeln!(out, "\nnot valid: {} in {}", counted(count, "error"), counted(files, "file"))
}

fn print_loaded(loaded: &Loaded, out: &mut dyn Write) -> io::Result<()> {
    let mut rest = loaded.definitions.as_slice();
    let mut workflows = 0;
    while let Some(first) = rest.first() {
        // A workflow in several virtual hosts is printed once.
        let same =
            rest.iter().take_while(|definition| differ_in_vhost_alone(definition, first)).count();
        let (shown, after) = rest.split_at(same);
        rest = after;
        workflows += 1;
        print_workflow(shown, out)?;
    }
    for warning in &loaded.warnings {
        writeln!(out, "warning: {}", escaped(&warning.to_string()))?;
    }
    let blank = if loaded.warnings.is_empty() { "" } else { "\n" };
    writeln!(
        out,
        "{blank}valid: {}, {}",
        counted(workflows, "workflow"),
        counted(loaded.warnings.len(), "warning")
    )
}

fn differ_in_vhost_alone(one: &Definition, other: &Definition) -> bool {
    one.name == other.name
        && one.deadline == other.deadline
        && one.retention == other.retention
        && one.queue == other.queue
        && one.graphs == other.graphs
}

/// Prints one workflow in the virtual hosts of `definitions`, which differ in nothing else.
fn print_workflow(definitions: &[Arc<Definition>], out: &mut dyn Write) -> io::Result<()> {
    let definition = &definitions[0];
    let vhosts: Vec<&str> = definitions
        .iter()
        .map(|definition| definition.vhost.as_str())
        .filter(|vhost| !vhost.is_empty())
        .collect();
    let place = match vhosts.as_slice() {
        [] => String::new(),
        [one] => format!(" in the virtual host {}", escaped(one)),
        several => format!(" in the virtual hosts {}", escaped(&several.join(", "))),
    };
    writeln!(out, "workflow {}{place}\n", definition.name)?;
    print_table(&rows(definition), out)?;
    writeln!(out, "\n  queues  {}", joined(definition.queues().iter().map(|queue| &**queue)))?;
    let graph = definition.graph();
    writeln!(
        out,
        "  result  of {}",
        joined(graph.last_steps().iter().map(|at| &*graph.step(*at).name))
    )?;
    if let Some(deadline) = definition.deadline {
        writeln!(out, "  fails   when not done within {deadline}")?;
    }
    if let Some(retention) = definition.retention {
        writeln!(out, "  kept    {retention} after its end")?;
    }
    writeln!(out)
}

/// The columns of a step: its name, its dependencies, its target.
type Row = [String; 3];

fn rows(definition: &Definition) -> Vec<Row> {
    let mut rows = vec![["step", "waits for", "goes to"].map(str::to_owned)];
    let mut view = View {
        definition,
        open: vec![false; definition.graphs.len()],
        shown: vec![false; definition.graphs.len()],
    };
    view.add(0, 0, &mut rows);
    rows
}

/// Builds the rows of all graphs. Each graph is printed once.
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
            let waits_for =
                joined(step.depends.iter().map(|dependency| graph.dependency_name(*dependency)));
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
        let mut target = match step.task.map(usize::from) {
            Some(task) => self.task(task),
            None if step.external => "a call of the API".to_owned(),
            None => match &step.bus {
                Some(bus) => format!("queue {} of bus {bus}", step.queue),
                None => format!("queue {}", step.queue),
            },
        };
        if !step.declared.is_default() {
            target.push_str(&format!(" ({})", escaped(&step.declared.to_string())));
        }
        if let (Some(priority), true) = (step.priority, step.has_queue()) {
            target.push_str(&format!(", priority {priority}"));
        }
        for option in options(step) {
            target.push_str(", ");
            target.push_str(&option);
        }
        target
    }

    fn task(&self, index: usize) -> String {
        let task = &self.definition.graphs[index];
        let seen = if self.open[index] {
            " (recursion: see above)"
        } else if self.shown[index] {
            " (see above)"
        } else {
            ""
        };
        format!(
            "task {}{}{seen}",
            task.name,
            task.fan_out.as_ref().map_or_else(String::new, fan_out)
        )
    }
}

/// Returns the optional keys of a step, in a few words each.
fn options(step: &Step) -> Vec<String> {
    let mut options = Vec::new();
    options.extend(step.timeout.map(|timeout| format!("timeout {timeout}")));
    options.extend(step.start_within.map(|within| format!("start within {within}")));
    options
        .extend(step.retry.map(|retry| {
            counted(usize::try_from(retry.attempts).unwrap_or(usize::MAX), "attempt")
        }));
    options.extend(step.when.as_ref().map(|when| format!("when {}", one_line(when.text()))));
    options.extend(
        step.cancel_when.as_ref().map(|when| format!("cancelled when {}", one_line(when.text()))),
    );
    if step.on_failure == OnFailure::Continue {
        options.push("its failure does not fail the job".to_owned());
    }
    options.extend(step.status.key.as_ref().map(|key| format!("status from {key}")));
    options
}

/// Puts a condition on one line.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<&str>>().join(" ")
}

fn fan_out(keys: &FanOutKeys) -> String {
    let window =
        keys.max_concurrency.map_or_else(String::new, |most| format!(", at most {most} at once"));
    let tolerate = if keys.tolerate == Tolerate::default() {
        String::new()
    } else {
        format!(", {} may fail", keys.tolerate)
    };
    format!(" for each of {} → {}{window}{tolerate}", keys.list_key, keys.item_key)
}

fn print_table(rows: &[Row], out: &mut dyn Write) -> io::Result<()> {
    /// The widest cell that widens its column. A longer one only shifts the rest of its own row.
    const WIDTH_MAX: usize = 48;
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .filter(|width| *width <= WIDTH_MAX)
            .max()
            .unwrap_or(0)
    };
    let (first, second) = (width(0), width(1));
    for [name, waits_for, target] in rows {
        writeln!(out, "  {name:first$}  {waits_for:second$}  {}", escaped(target))?;
    }
    Ok(())
}

/// Returns the steps in an order in which they can run: as declared, but each after its
/// dependencies.
fn in_order(graph: &Graph) -> Vec<&Step> {
    let mut waiting: Vec<usize> = graph.steps.iter().map(|step| step.depended_on().len()).collect();
    let mut ready: BinaryHeap<Reverse<StepIndex>> =
        graph.indices().filter(|at| waiting[at.at()] == 0).map(Reverse).collect();
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

fn joined<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let words: Vec<&str> = words.collect();
    if words.is_empty() { "-".to_owned() } else { words.join(", ") }
}
