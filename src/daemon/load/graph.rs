//! Builds the graphs of one workflow from its drafts: resolves names to indexes, and checks how the
//! drafts fit together.

use super::calls::message_queue;
use super::conditions::{CompiledConditions, check_references, warn_of_races};
use super::cycles::find_cycles;
use super::diagnostics::Diagnostics;
use super::draft::{GraphDraft, WorkflowDraft};
use super::key_conflicts::{advise_timeouts, check_keys};
use super::location::SourceLocation;
use super::queue_keys;
use super::values::LocatedText;
use engine::text::quote;
use engine::{Dependency, Graph, GraphIndex, Step, StepIndex};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// How many cycles of one graph are reported. Others are found once these are fixed.
const CYCLES_LISTED_MAX: usize = 10;

/// The columns that a status table has besides the steps (docs/operations.md).
const STATUS_COLUMNS: [&str; 4] = ["job", "state", "created", "updated"];

/// The workflow of each task of the file, by the task's name: for steps that name a task of another
/// workflow.
pub(super) type TaskOwners = BTreeMap<String, String>;

/// Returns which workflow has which task; of several, the first.
pub(super) fn task_owners(workflows: &[WorkflowDraft]) -> TaskOwners {
    let mut owners = TaskOwners::new();
    for workflow in workflows {
        let Some(owner) = &workflow.name else { continue };
        for name in workflow.tasks.iter().filter_map(|task| task.name.as_ref()) {
            owners.entry(name.text.clone()).or_insert_with(|| owner.text.clone());
        }
    }
    owners
}

/// Builds the graphs of a workflow, its own first. They are usable only if no error was reported.
pub(super) fn build_graphs(
    workflow: &WorkflowDraft,
    owners: &TaskOwners,
    conditions: &mut CompiledConditions,
    report: &mut Diagnostics,
) -> Vec<Graph> {
    report.workflow = workflow.name.as_ref().map(|name| name.text.clone());
    let tasks = TaskIndex::from_draft(workflow, owners, report);
    check_columns(&workflow.graph, report);
    let mut graphs = Vec::with_capacity(1 + workflow.tasks.len());
    for (draft, is_task) in std::iter::once((&workflow.graph, false))
        .chain(workflow.tasks.iter().map(|task| (task, true)))
    {
        report.task = draft.name.as_ref().filter(|_| is_task).map(|name| name.text.clone());
        graphs.push(build_graph(draft, workflow, &tasks, conditions, report));
        report.task = None;
    }
    warn_of_unused(&workflow.tasks, &graphs, report);
    report.leave_scope();
    graphs
}

/// Builds one graph. Its steps have their queues on the bus of the workflow, unless they name
/// another.
fn build_graph(
    draft: &GraphDraft,
    workflow: &WorkflowDraft,
    tasks: &TaskIndex<'_>,
    conditions: &mut CompiledConditions,
    report: &mut Diagnostics,
) -> Graph {
    let names = index_steps(draft, report);
    let mut steps = Vec::with_capacity(draft.steps.len());
    for (at, step) in draft.steps.iter().enumerate() {
        let Some(name) = &step.name else { continue };
        report.step = Some(name.text.clone());
        let depends = resolve_dependencies(draft, at, &names, report);
        let task = step.task.as_ref().and_then(|task| tasks.find(task, report));
        check_keys(step, report);
        let mut compiled = |condition: &Option<_>| {
            condition.as_ref().and_then(|condition| conditions.compile(condition, report))
        };
        let (when, cancel_when) =
            (compiled(&step.options.when), compiled(&step.options.cancel_when));
        check_references(draft, at, when.as_ref(), cancel_when.as_ref(), report);
        let name: Arc<str> = name.text.as_str().into();
        steps.push(Step {
            queue: step
                .queue
                .as_ref()
                .map_or_else(|| name.clone(), |queue| queue.text.as_str().into()),
            bus: (step.bus.as_ref().or(workflow.bus.as_ref()))
                .filter(|_| message_queue(step).is_some())
                .map(|bus| bus.text.as_str().into()),
            declared: queue_keys::step_declaration(step, workflow),
            depends,
            task,
            priority: step.priority.map(|(priority, _)| priority),
            timeout: step.options.timeout,
            start_within: step.options.start_within.map(|(span, _)| span),
            retry: step.options.retry,
            when,
            cancel_when,
            on_failure: step.options.on_failure,
            external: step.options.external.is_some_and(|(external, _)| external),
            status: step.options.status.clone(),
            reply_users: step
                .options
                .reply_users
                .as_ref()
                .map_or_else(Vec::new, |(users, _)| users.clone()),
            name,
        });
        report.step = None;
    }
    report_cycles(draft, &names, report);
    if steps.len() < draft.steps.len() || !report.errors.is_empty() {
        // The indexes are wrong then: an error was reported, and the graph will not be used.
        steps.clear();
    }
    let graph = Graph::new(
        draft.name.as_ref().map_or_else(String::new, |name| name.text.clone()),
        draft.fan_out.clone(),
        steps,
    );
    if !graph.steps.is_empty() {
        warn_of_races(draft, &graph, report);
        advise_timeouts(draft, &graph, report);
    }
    graph
}

/// Returns the index of each step by name.
fn index_steps<'d>(draft: &'d GraphDraft, report: &mut Diagnostics) -> HashMap<&'d str, usize> {
    let mut names: HashMap<&str, (usize, SourceLocation)> =
        HashMap::with_capacity(draft.steps.len());
    for (at, name) in
        draft.steps.iter().enumerate().filter_map(|(at, step)| Some((at, step.name.as_ref()?)))
    {
        match names.get(name.text.as_str()) {
            Some((_, first)) => {
                report.step = Some(name.text.clone());
                report.add_error(
                    name.at,
                    format!(
                        "a step {} is declared already, at {first}; the steps of one graph differ \
                         in their names",
                        quote(&name.text)
                    ),
                );
                report.step = None;
            }
            None => {
                names.insert(&name.text, (at, name.at));
            }
        }
    }
    names.into_iter().map(|(name, (at, _))| (name, at)).collect()
}

/// Resolves a step's `depends` in order; `__start__` alone is the same as none.
fn resolve_dependencies(
    draft: &GraphDraft,
    own: usize,
    names: &HashMap<&str, usize>,
    report: &mut Diagnostics,
) -> Vec<Dependency> {
    let step = &draft.steps[own];
    let mut found: Vec<Dependency> = Vec::with_capacity(step.depends.len());
    let mut seen: HashMap<&str, SourceLocation> = HashMap::with_capacity(step.depends.len());
    for dependency in &step.depends {
        if let Some(first) = seen.get(dependency.text.as_str()) {
            report.add_warning(
                dependency.at,
                format!(
                    "{} is listed twice, the first time at {first}; the first one counts",
                    quote(&dependency.text)
                ),
            );
            continue;
        }
        seen.insert(&dependency.text, dependency.at);
        match dependency.text.as_str() {
            "__start__" => found.push(Dependency::Start),
            "__end__" => report.add_error(
                dependency.at,
                "depends on \"__end__\", but the end comes after every step",
            ),
            name => match names.get(name) {
                Some(at) if *at == own => report.add_error(
                    dependency.at,
                    "depends on itself, the shortest cycle; remove it from its `depends`",
                ),
                Some(at) => {
                    found.extend(u16::try_from(*at).ok().map(|at| Dependency::Step(StepIndex(at))))
                }
                None => {
                    let guess = report.suggest(
                        name,
                        draft
                            .steps
                            .iter()
                            .filter_map(|step| Some(step.name.as_ref()?.text.as_str())),
                    );
                    report.add_error(
                        dependency.at,
                        format!("depends on {}, which is not a step here{guess}", quote(name)),
                    );
                }
            },
        }
    }
    if found == [Dependency::Start] { Vec::new() } else { found }
}

fn report_cycles(draft: &GraphDraft, names: &HashMap<&str, usize>, report: &mut Diagnostics) {
    let on: Vec<Vec<usize>> = draft
        .steps
        .iter()
        .enumerate()
        .map(|(own, step)| {
            step.depends
                .iter()
                .filter_map(|dependency| names.get(dependency.text.as_str()).copied())
                .filter(|at| *at != own)
                .collect()
        })
        .collect();
    let name = |at: usize| draft.steps[at].name.as_ref().map_or("", |name| name.text.as_str());
    for cycle in find_cycles(&on, CYCLES_LISTED_MAX) {
        let (first, second) = (cycle[0], cycle[1]);
        let Some(dependency) =
            draft.steps[first].depends.iter().find(|word| word.text == name(second))
        else {
            continue;
        };
        let path: Vec<&str> = cycle.iter().chain([&first]).map(|at| name(*at)).collect();
        report.step = Some(name(first).to_owned());
        report.add_error(
            dependency.at,
            format!(
                "depends on itself by a cycle: {} (each depends on the next); remove one of these \
                 dependencies",
                path.join(" → ")
            ),
        );
        report.step = None;
    }
}

/// Checks for names that the status table could not tell apart: SQLite ignores case
/// (docs/operations.md).
fn check_columns(draft: &GraphDraft, report: &mut Diagnostics) {
    let mut columns: HashMap<String, &LocatedText> = HashMap::with_capacity(draft.steps.len());
    for name in draft.steps.iter().filter_map(|step| step.name.as_ref()) {
        let column = name.text.to_ascii_lowercase();
        report.step = Some(name.text.clone());
        if STATUS_COLUMNS.contains(&column.as_str()) {
            report.add_error(
                name.at,
                format!(
                    "the name {} is taken: the table of statuses has its own column with that name",
                    quote(&name.text)
                ),
            );
        }
        match columns.get(&column) {
            Some(first) if first.text != name.text => report.add_error(
                name.at,
                format!(
                    "differs from {}, at {}, only in upper and lower case; the table of statuses \
                     cannot tell them apart",
                    quote(&first.text),
                    first.at
                ),
            ),
            // Duplicate names are reported with the steps.
            Some(_) => (),
            None => {
                columns.insert(column, name);
            }
        }
        report.step = None;
    }
}

/// The tasks of a workflow by name.
struct TaskIndex<'d> {
    names: BTreeMap<&'d str, GraphIndex>,
    owners: &'d TaskOwners,
}

impl<'d> TaskIndex<'d> {
    fn from_draft(
        workflow: &'d WorkflowDraft,
        owners: &'d TaskOwners,
        report: &mut Diagnostics,
    ) -> TaskIndex<'d> {
        let mut names = BTreeMap::new();
        let mut locations: HashMap<&str, SourceLocation> =
            HashMap::with_capacity(workflow.tasks.len());
        for (at, task) in workflow.tasks.iter().enumerate() {
            let (Some(name), Ok(index)) = (&task.name, GraphIndex::try_from(at + 1)) else {
                continue;
            };
            if let Some(first) = locations.get(name.text.as_str()) {
                report.add_error(
                    name.at,
                    format!(
                        "a task {} is declared already, at {first}; the tasks of one workflow \
                         differ in their names",
                        quote(&name.text)
                    ),
                );
                continue;
            }
            names.insert(name.text.as_str(), index);
            locations.insert(&name.text, name.at);
        }
        TaskIndex { names, owners }
    }

    fn find(&self, task: &LocatedText, report: &mut Diagnostics) -> Option<GraphIndex> {
        if let Some(index) = self.names.get(task.text.as_str()) {
            return Some(*index);
        }
        let guess = report.suggest(&task.text, self.names.keys().copied());
        let hint = match self.owners.get(&task.text) {
            Some(owner) => format!(
                "; the workflow {} has one, but a task belongs to its workflow: declare it here \
                 too",
                quote(owner)
            ),
            None if self.names.is_empty() => "; it has no `tasks`".to_owned(),
            None => guess,
        };
        report.add_error(
            task.at,
            format!(
                "names the task {}, which this workflow does not have{hint}",
                quote(&task.text)
            ),
        );
        None
    }
}

/// Warns of tasks that no step leads to, not even through other tasks.
fn warn_of_unused(tasks: &[GraphDraft], graphs: &[Graph], report: &mut Diagnostics) {
    if !report.errors.is_empty() {
        return;
    }
    let mut used = vec![false; graphs.len()];
    let mut next = vec![0];
    while let Some(at) = next.pop() {
        if !std::mem::replace(&mut used[at], true) {
            next.extend(graphs[at].steps.iter().filter_map(|step| step.task).map(usize::from));
        }
    }
    for (task, used) in tasks.iter().zip(&used[1..]) {
        if !used {
            report.task = task.name.as_ref().map(|name| name.text.clone());
            report.add_warning(
                task.name.as_ref().map_or(task.at, |name| name.at),
                "no step of the workflow leads to this task; it never runs",
            );
            report.task = None;
        }
    }
}
