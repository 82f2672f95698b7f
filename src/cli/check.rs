//! `check`: validates workflow files, and prints the workflows or all diagnostics.

use super::check_json::print_json;
use super::plural::format_count;
use daemon::load::{LoadErrors, LoadedWorkflows, load_files_or_stdin};
use daemon::settings::Settings;
use engine::text::{escape, escape_lines};
use engine::{
    Definition, FanOutKeys, Graph, GraphIndex, JobLimit, OnFailure, Step, StepIndex, Then, Tolerate,
};
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
    is_json: bool,
    out: &mut dyn Write,
) -> io::Result<bool> {
    let load_result =
        load_files_or_stdin(files, settings).map(LoadedWorkflows::with_advice_as_warnings);
    if is_json {
        print_json(&load_result, out)?;
    } else {
        match &load_result {
            Ok(workflows) => print_workflows(workflows, out)?,
            Err(errors) => print_errors(errors, files.len(), out)?,
        }
    }
    out.flush()?;
    Ok(load_result.is_ok())
}

fn print_errors(errors: &LoadErrors, file_count: usize, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", escape_lines(&errors.to_string()))?;
    writeln!(
        out,
        "\nnot valid: {} in {}",
        format_count(errors.0.len(), "error"),
        format_count(file_count, "file")
    )
}

fn print_workflows(workflows: &LoadedWorkflows, out: &mut dyn Write) -> io::Result<()> {
    let mut remaining = workflows.definitions.as_slice();
    let mut workflow_count = 0;
    while let Some(first_definition) = remaining.first() {
        // A workflow in several virtual hosts is printed once.
        let group_size = remaining
            .iter()
            .take_while(|definition| differ_only_in_vhost(definition, first_definition))
            .count();
        let (group, others) = remaining.split_at(group_size);
        remaining = others;
        workflow_count += 1;
        print_workflow(group, out)?;
    }
    for warning in &workflows.warnings {
        writeln!(out, "warning: {}", escape(&warning.to_string()))?;
    }
    let blank_line_after_warnings = if workflows.warnings.is_empty() { "" } else { "\n" };
    writeln!(
        out,
        "{blank_line_after_warnings}valid: {}, {}",
        format_count(workflow_count, "workflow"),
        format_count(workflows.warnings.len(), "warning")
    )
}

/// Returns whether two definitions can be printed as one workflow in several virtual hosts.
fn differ_only_in_vhost(a: &Definition, b: &Definition) -> bool {
    a.name == b.name
        && a.deadline == b.deadline
        && a.retention == b.retention
        && a.queue == b.queue
        && a.limit == b.limit
        && a.graphs == b.graphs
}

/// Prints one workflow with all its virtual hosts. The definitions differ only in these.
fn print_workflow(definitions: &[Arc<Definition>], out: &mut dyn Write) -> io::Result<()> {
    let definition = &definitions[0];
    let vhosts: Vec<&str> = definitions
        .iter()
        .map(|definition| definition.vhost.as_str())
        .filter(|vhost| !vhost.is_empty())
        .collect();
    let vhosts_text = match vhosts.as_slice() {
        [] => String::new(),
        [vhost] => format!(" in the virtual host {}", escape(vhost)),
        vhosts => format!(" in the virtual hosts {}", escape(&vhosts.join(", "))),
    };
    writeln!(out, "workflow {}{vhosts_text}\n", definition.name)?;
    print_table(&step_rows(definition), out)?;
    writeln!(out, "\n  queues  {}", format_list(definition.queues().iter().map(|queue| &**queue)))?;
    let graph = definition.graph();
    writeln!(
        out,
        "  result  of {}",
        format_list(graph.last_steps().iter().map(|index| &*graph.step(*index).name))
    )?;
    if let Some(deadline) = definition.deadline {
        writeln!(out, "  fails   when not done within {deadline}")?;
    }
    if let Some(limit) = &definition.limit {
        writeln!(out, "  limit   {}", format_job_limit(limit))?;
    }
    if let Some(retention) = definition.retention {
        writeln!(out, "  kept    {retention} after its end")?;
    }
    writeln!(out)
}

/// Describes the limit of the jobs of a workflow.
fn format_job_limit(limit: &JobLimit) -> String {
    let then = match limit.then {
        Then::Wait => "a job without a place waits",
        Then::Refuse => "a job without a place is refused",
        Then::Replace => "a job without a place replaces the oldest that has one",
        Then::Latest => "of the jobs without a place the latest waits",
    };
    let mut text = format!("{}: {then}", limit.name);
    if let Some(delay) = limit.delay {
        text.push_str(&format!(", {delay} at least"));
    }
    if let Some(bound) = limit.wait_at_most {
        text.push_str(&format!(", {bound} at most"));
    }
    text
}

/// The cells of a step: its name, its dependencies, its target.
type Row = [String; 3];

/// Returns a header, and a row for each step of all graphs.
fn step_rows(definition: &Definition) -> Vec<Row> {
    let mut rows = vec![["step", "waits for", "goes to"].map(str::to_owned)];
    let mut builder = RowBuilder {
        definition,
        is_enclosing: vec![false; definition.graphs.len()],
        is_printed: vec![false; definition.graphs.len()],
    };
    builder.add_graph(0, 0, &mut rows);
    rows
}

/// Builds the rows of all graphs of a definition: the workflow itself, and its tasks. The rows of a
/// task follow the first step that runs it. Other steps refer to them.
struct RowBuilder<'d> {
    definition: &'d Definition,
    /// For each graph, whether its rows are being built, so that a step that runs it is a
    /// recursion.
    is_enclosing: Vec<bool>,
    /// For each graph, whether it has rows.
    is_printed: Vec<bool>,
}

impl RowBuilder<'_> {
    /// Adds the rows of a graph, indented by `depth`.
    fn add_graph(&mut self, index: GraphIndex, depth: usize, rows: &mut Vec<Row>) {
        let graph = &self.definition.graphs[usize::from(index)];
        self.is_enclosing[usize::from(index)] = true;
        self.is_printed[usize::from(index)] = true;
        for step in topological_order(graph) {
            let name = format!("{}{}", "  ".repeat(depth), step.name);
            let waits_for = format_list(
                step.depends.iter().map(|dependency| graph.dependency_name(*dependency)),
            );
            rows.push([name, waits_for, self.format_target(step)]);
            if let Some(task) = step.task
                && !self.is_printed[usize::from(task)]
            {
                self.add_graph(task, depth + 1, rows);
            }
        }
        self.is_enclosing[usize::from(index)] = false;
    }

    /// Describes where the messages of a step go, followed by its options.
    fn format_target(&self, step: &Step) -> String {
        let mut target = match step.task.map(usize::from) {
            Some(task) => self.format_task(task),
            None if step.external => "a call of the API".to_owned(),
            None => match &step.bus {
                Some(bus) => format!("queue {} of bus {bus}", step.queue),
                None => format!("queue {}", step.queue),
            },
        };
        if !step.declared.is_default() {
            target.push_str(&format!(" ({})", escape(&step.declared.to_string())));
        }
        if let (Some(priority), true) = (step.priority, step.has_queue()) {
            target.push_str(&format!(", priority {priority}"));
        }
        for option in format_options(step) {
            target.push_str(", ");
            target.push_str(&option);
        }
        target
    }

    /// Describes the task that a step runs, with a reference if its rows are elsewhere.
    fn format_task(&self, index: usize) -> String {
        let task = &self.definition.graphs[index];
        let reference = if self.is_enclosing[index] {
            " (recursion: see above)"
        } else if self.is_printed[index] {
            " (see above)"
        } else {
            ""
        };
        format!(
            "task {}{}{reference}",
            task.name,
            task.fan_out.as_ref().map_or_else(String::new, format_fan_out)
        )
    }
}

/// Describes the optional keys of a step, in a few words each.
fn format_options(step: &Step) -> Vec<String> {
    let mut options = Vec::new();
    options.extend(step.timeout.map(|timeout| format!("timeout {timeout}")));
    options.extend(step.start_within.map(|limit| format!("start within {limit}")));
    options.extend(step.wait_at_most.map(|limit| format!("waits at most {limit}")));
    options.extend(step.retry.map(|retry| {
        format_count(usize::try_from(retry.attempts).unwrap_or(usize::MAX), "attempt")
    }));
    options.extend(
        step.when.as_ref().map(|condition| format!("when {}", join_lines(condition.text()))),
    );
    options.extend(
        step.cancel_when
            .as_ref()
            .map(|condition| format!("cancelled when {}", join_lines(condition.text()))),
    );
    if step.on_failure == OnFailure::Continue {
        options.push("its failure does not fail the job".to_owned());
    }
    options.extend(step.status.key.as_ref().map(|key| format!("status from {key}")));
    options
}

/// Formats the text of a condition on one line.
fn join_lines(text: &str) -> String {
    text.split_whitespace().collect::<Vec<&str>>().join(" ")
}

fn format_fan_out(keys: &FanOutKeys) -> String {
    let window =
        keys.max_concurrency.map_or_else(String::new, |max| format!(", at most {max} at once"));
    let tolerance = if keys.tolerate == Tolerate::default() {
        String::new()
    } else {
        format!(", {} may fail", keys.tolerate)
    };
    format!(" for each of {} → {}{window}{tolerance}", keys.list_key, keys.item_key)
}

fn print_table(rows: &[Row], out: &mut dyn Write) -> io::Result<()> {
    /// The maximum width of a column, in characters. A longer cell is printed in full, and shifts
    /// the following cells of its row.
    const WIDTH_MAX: usize = 48;
    let column_width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .filter(|width| *width <= WIDTH_MAX)
            .max()
            .unwrap_or(0)
    };
    let (name_width, waits_for_width) = (column_width(0), column_width(1));
    for [name, waits_for, target] in rows {
        writeln!(out, "  {name:name_width$}  {waits_for:waits_for_width$}  {}", escape(target))?;
    }
    Ok(())
}

/// Sorts the steps topologically (Kahn's algorithm). Steps whose dependencies are all sorted keep
/// the order of their declaration.
fn topological_order(graph: &Graph) -> Vec<&Step> {
    let mut open_dependencies: Vec<usize> =
        graph.steps.iter().map(|step| step.step_dependencies().len()).collect();
    let mut ready: BinaryHeap<Reverse<StepIndex>> = graph
        .indices()
        .filter(|index| open_dependencies[index.as_usize()] == 0)
        .map(Reverse)
        .collect();
    let mut sorted = Vec::with_capacity(graph.steps.len());
    while let Some(Reverse(index)) = ready.pop() {
        sorted.push(graph.step(index));
        for dependent in graph.dependents(index) {
            open_dependencies[dependent.as_usize()] -= 1;
            if open_dependencies[dependent.as_usize()] == 0 {
                ready.push(Reverse(*dependent));
            }
        }
    }
    sorted
}

/// Joins names by commas. Without names the text is `-`.
fn format_list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() { "-".to_owned() } else { names.join(", ") }
}
