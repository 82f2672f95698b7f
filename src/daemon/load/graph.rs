//! Builds the graphs of one workflow from its draft. Resolves names to indexes, and checks how the
//! steps and tasks fit together.

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

/// How many cycles of one graph are reported. The next check finds others once these are fixed.
const CYCLES_LISTED_MAX: usize = 10;

/// The columns of a status table that are not steps (docs/how-to/read-statuses-by-sql.md), in lower
/// case.
const STATUS_COLUMNS: [&str; 4] = ["job", "state", "created", "updated"];

/// The name of the workflow that declares each task of the file, by the task's name. It is used for
/// the message about a step that names a task of another workflow.
pub(super) type TaskOwners = BTreeMap<String, String>;

/// Returns the workflow of each task. If several workflows have a task of the same name, the first
/// counts.
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

/// Builds the graph of a workflow, followed by the graphs of its tasks. They are usable only if no
/// error was reported.
pub(super) fn build_graphs(
    workflow: &WorkflowDraft,
    owners: &TaskOwners,
    conditions: &mut CompiledConditions,
    report: &mut Diagnostics,
) -> Vec<Graph> {
    report.workflow = workflow.name.as_ref().map(|name| name.text.clone());
    let tasks = TaskLookup::from_draft(workflow, owners, report);
    check_columns(&workflow.graph, report);
    let mut graphs = Vec::with_capacity(1 + workflow.tasks.len());
    for (draft, is_task) in std::iter::once((&workflow.graph, false))
        .chain(workflow.tasks.iter().map(|task| (task, true)))
    {
        report.task = draft.name.as_ref().filter(|_| is_task).map(|name| name.text.clone());
        graphs.push(build_graph(draft, workflow, &tasks, conditions, report));
        report.task = None;
    }
    warn_of_unused_tasks(&workflow.tasks, &graphs, report);
    report.leave_scope();
    graphs
}

/// Builds one graph. The queues of its steps are on the bus of the workflow, unless a step names
/// another.
fn build_graph(
    draft: &GraphDraft,
    workflow: &WorkflowDraft,
    tasks: &TaskLookup<'_>,
    conditions: &mut CompiledConditions,
    report: &mut Diagnostics,
) -> Graph {
    let step_indexes = index_steps(draft, report);
    let mut steps = Vec::with_capacity(draft.steps.len());
    for (index, step) in draft.steps.iter().enumerate() {
        let Some(name) = &step.name else { continue };
        report.step = Some(name.text.clone());
        let depends = resolve_dependencies(draft, index, &step_indexes, report);
        let task = step.task.as_ref().and_then(|task| tasks.find(task, report));
        check_keys(step, report);
        let mut compile = |condition: &Option<_>| {
            condition.as_ref().and_then(|condition| conditions.compile(condition, report))
        };
        let (when, cancel_when) = (compile(&step.options.when), compile(&step.options.cancel_when));
        check_references(draft, index, when.as_ref(), cancel_when.as_ref(), report);
        let name: Arc<str> = name.text.as_str().into();
        steps.push(Step {
            queue: step
                .queue
                .as_ref()
                .map_or_else(|| name.clone(), |queue| queue.text.as_str().into()),
            // A step that sends no messages has no bus.
            bus: (step.bus.as_ref().or(workflow.bus.as_ref()))
                .filter(|_| message_queue(step).is_some())
                .map(|bus| bus.text.as_str().into()),
            declared: queue_keys::step_declaration(step, workflow),
            depends,
            task,
            priority: step.priority.map(|(priority, _)| priority),
            timeout: step.options.timeout,
            start_within: step.options.start_within.map(|(duration, _)| duration),
            wait_at_most: step.options.wait_at_most.map(|(duration, _)| duration),
            retry: step.options.retry,
            when,
            cancel_when,
            on_failure: step.options.on_failure,
            external: step.options.external.is_some_and(|(is_external, _)| is_external),
            status: step.options.status.clone(),
            reply_users: step
                .options
                .reply_users
                .as_ref()
                .map_or_else(Vec::new, |(users, _)| users.clone()),
            limits: step.limits.iter().map(|limit| limit.text.as_str().into()).collect(),
            name,
        });
        report.step = None;
    }
    report_cycles(draft, &step_indexes, report);
    if steps.len() < draft.steps.len() || !report.errors.is_empty() {
        // An error was reported, so indexes may be wrong, and the graph is not used.
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

/// Returns the index of each step by its name, and reports duplicate names.
fn index_steps<'d>(draft: &'d GraphDraft, report: &mut Diagnostics) -> HashMap<&'d str, usize> {
    let mut steps: HashMap<&str, (usize, SourceLocation)> =
        HashMap::with_capacity(draft.steps.len());
    for (index, name) in draft
        .steps
        .iter()
        .enumerate()
        .filter_map(|(index, step)| Some((index, step.name.as_ref()?)))
    {
        match steps.get(name.text.as_str()) {
            Some((_, first)) => {
                report.step = Some(name.text.clone());
                report.add_error(
                    name.location,
                    format!(
                        "a step {} is declared already, at {first}; the steps of one graph differ \
                         in their names",
                        quote(&name.text)
                    ),
                );
                report.step = None;
            }
            None => {
                steps.insert(&name.text, (index, name.location));
            }
        }
    }
    steps.into_iter().map(|(name, (index, _))| (name, index)).collect()
}

/// Resolves the `depends` of the step with this index, in order. `__start__` alone is the same as
/// no dependency.
fn resolve_dependencies(
    draft: &GraphDraft,
    index: usize,
    step_indexes: &HashMap<&str, usize>,
    report: &mut Diagnostics,
) -> Vec<Dependency> {
    let step = &draft.steps[index];
    let mut dependencies: Vec<Dependency> = Vec::with_capacity(step.depends.len());
    let mut first_locations: HashMap<&str, SourceLocation> =
        HashMap::with_capacity(step.depends.len());
    for dependency in &step.depends {
        if let Some(first) = first_locations.get(dependency.text.as_str()) {
            report.add_warning(
                dependency.location,
                format!(
                    "{} is listed twice, the first time at {first}; the first one counts",
                    quote(&dependency.text)
                ),
            );
            continue;
        }
        first_locations.insert(&dependency.text, dependency.location);
        match dependency.text.as_str() {
            "__start__" => dependencies.push(Dependency::Start),
            "__end__" => report.add_error(
                dependency.location,
                "depends on \"__end__\", but the end comes after every step",
            ),
            name => match step_indexes.get(name) {
                Some(target) if *target == index => report.add_error(
                    dependency.location,
                    "depends on itself, the shortest cycle; remove it from its `depends`",
                ),
                Some(target) => dependencies.extend(
                    u16::try_from(*target).ok().map(|target| Dependency::Step(StepIndex(target))),
                ),
                None => {
                    let suggestion = report.suggest(
                        name,
                        draft
                            .steps
                            .iter()
                            .filter_map(|step| Some(step.name.as_ref()?.text.as_str())),
                    );
                    report.add_error(
                        dependency.location,
                        format!("depends on {}, which is not a step here{suggestion}", quote(name)),
                    );
                }
            },
        }
    }
    if dependencies == [Dependency::Start] { Vec::new() } else { dependencies }
}

/// Reports the cycles of dependencies, except a step that depends on itself.
fn report_cycles(
    draft: &GraphDraft,
    step_indexes: &HashMap<&str, usize>,
    report: &mut Diagnostics,
) {
    let dependencies: Vec<Vec<usize>> = draft
        .steps
        .iter()
        .enumerate()
        .map(|(index, step)| {
            step.depends
                .iter()
                .filter_map(|dependency| step_indexes.get(dependency.text.as_str()).copied())
                .filter(|target| *target != index)
                .collect()
        })
        .collect();
    let step_name =
        |index: usize| draft.steps[index].name.as_ref().map_or("", |name| name.text.as_str());
    for cycle in find_cycles(&dependencies, CYCLES_LISTED_MAX) {
        // A cycle has at least two steps, because dependencies of a step on itself were left out.
        let (first, second) = (cycle[0], cycle[1]);
        let Some(dependency) = draft.steps[first]
            .depends
            .iter()
            .find(|dependency| dependency.text == step_name(second))
        else {
            continue;
        };
        let path: Vec<&str> = cycle.iter().chain([&first]).map(|index| step_name(*index)).collect();
        report.step = Some(step_name(first).to_owned());
        report.add_error(
            dependency.location,
            format!(
                "depends on itself by a cycle: {} (each depends on the next); remove one of these \
                 dependencies",
                path.join(" → ")
            ),
        );
        report.step = None;
    }
}

/// Reports names of steps that collide as columns of the status table
/// (docs/how-to/read-statuses-by-sql.md). SQLite ignores the case of column names.
fn check_columns(draft: &GraphDraft, report: &mut Diagnostics) {
    let mut columns: HashMap<String, &LocatedText> = HashMap::with_capacity(draft.steps.len());
    for name in draft.steps.iter().filter_map(|step| step.name.as_ref()) {
        let column = name.text.to_ascii_lowercase();
        report.step = Some(name.text.clone());
        if STATUS_COLUMNS.contains(&column.as_str()) {
            report.add_error(
                name.location,
                format!(
                    "the name {} is taken: the table of statuses has its own column with that name",
                    quote(&name.text)
                ),
            );
        }
        match columns.get(&column) {
            Some(first) if first.text != name.text => report.add_error(
                name.location,
                format!(
                    "differs from {}, at {}, only in upper and lower case; the table of statuses \
                     cannot tell them apart",
                    quote(&first.text),
                    first.location
                ),
            ),
            // `index_steps` reports duplicate names.
            Some(_) => (),
            None => {
                columns.insert(column, name);
            }
        }
        report.step = None;
    }
}

/// The graphs of a workflow's tasks, by the task's name.
struct TaskLookup<'d> {
    graphs: BTreeMap<&'d str, GraphIndex>,
    /// The workflows of all tasks of the file, for messages.
    owners: &'d TaskOwners,
}

impl<'d> TaskLookup<'d> {
    /// Indexes the tasks, and reports duplicate names.
    fn from_draft(
        workflow: &'d WorkflowDraft,
        owners: &'d TaskOwners,
        report: &mut Diagnostics,
    ) -> TaskLookup<'d> {
        let mut graphs = BTreeMap::new();
        let mut locations: HashMap<&str, SourceLocation> =
            HashMap::with_capacity(workflow.tasks.len());
        for (position, task) in workflow.tasks.iter().enumerate() {
            // Graph 0 is the workflow's own.
            let (Some(name), Ok(index)) = (&task.name, GraphIndex::try_from(position + 1)) else {
                continue;
            };
            if let Some(first) = locations.get(name.text.as_str()) {
                report.add_error(
                    name.location,
                    format!(
                        "a task {} is declared already, at {first}; the tasks of one workflow \
                         differ in their names",
                        quote(&name.text)
                    ),
                );
                continue;
            }
            graphs.insert(name.text.as_str(), index);
            locations.insert(&name.text, name.location);
        }
        TaskLookup { graphs, owners }
    }

    /// Returns the graph of the task that a step names. If the workflow has no such task, reports
    /// an error and returns `None`.
    fn find(&self, task: &LocatedText, report: &mut Diagnostics) -> Option<GraphIndex> {
        if let Some(index) = self.graphs.get(task.text.as_str()) {
            return Some(*index);
        }
        let suggestion = report.suggest(&task.text, self.graphs.keys().copied());
        let hint = match self.owners.get(&task.text) {
            Some(owner) => format!(
                "; the workflow {} has one, but a task belongs to its workflow: declare it here \
                 too",
                quote(owner)
            ),
            None if self.graphs.is_empty() => "; it has no `tasks`".to_owned(),
            None => suggestion,
        };
        report.add_error(
            task.location,
            format!(
                "names the task {}, which this workflow does not have{hint}",
                quote(&task.text)
            ),
        );
        None
    }
}

/// Warns about tasks that cannot be reached from a step of the workflow, not even through other
/// tasks.
fn warn_of_unused_tasks(tasks: &[GraphDraft], graphs: &[Graph], report: &mut Diagnostics) {
    if !report.errors.is_empty() {
        return;
    }
    let mut is_reachable = vec![false; graphs.len()];
    let mut pending_graphs = vec![0];
    while let Some(index) = pending_graphs.pop() {
        if !std::mem::replace(&mut is_reachable[index], true) {
            pending_graphs
                .extend(graphs[index].steps.iter().filter_map(|step| step.task).map(usize::from));
        }
    }
    for (task, is_task_reachable) in tasks.iter().zip(&is_reachable[1..]) {
        if !is_task_reachable {
            report.task = task.name.as_ref().map(|name| name.text.clone());
            report.add_warning(
                task.name.as_ref().map_or(task.location, |name| name.location),
                "no step of the workflow leads to this task; it never runs",
            );
            report.task = None;
        }
    }
}
