//! Parses the tree of a file into drafts of its workflows, and checks each key and value on its
//! own. The module `graph` checks how they fit together (dependencies, tasks, cycles).

use super::columns::parse_columns;
use super::diagnostics::Diagnostics;
use super::draft::{GraphDraft, StepDraft, StepOptions, WorkflowDraft};
use super::fields::{Fields, label};
use super::job_limits::parse_job_limit;
use super::limit_drafts::{LimitDraft, parse_limits, parse_step_limits};
use super::limits::{PRIORITY_MAX, STEPS_MAX, TASKS_MAX, VHOSTS_MAX};
use super::options::parse_step_options;
use super::queue_keys;
use super::schema::Section;
use super::singular::singularize;
use super::values::{
    LocatedText, parse_duration, parse_integer, parse_nonempty_text, parse_reference,
    parse_tolerance,
};
use super::yaml::{Entry, Node, Value};
use crate::settings::{BusKind, is_bus_name};
use base::web_address::{is_url, parse_web_address};
use engine::text::quote;
use engine::{FanOutKeys, Millis};

/// Parses the limits and all workflows of a file. Leaves out those that are not mappings.
pub(super) fn parse_workflows(
    root: &Node,
    report: &mut Diagnostics,
) -> (Vec<LimitDraft>, Vec<WorkflowDraft>) {
    let Some(fields) = Fields::from_node(root, Section::File, report) else {
        return (Vec::new(), Vec::new());
    };
    let limits = parse_limits(&fields, report);
    let Some(nodes) = fields.parse_required_list("workflows", usize::MAX, report) else {
        return (limits, Vec::new());
    };
    let mut drafts = Vec::with_capacity(nodes.len());
    for node in nodes {
        report.workflow = label(node);
        report.add_scope(node.location, node.end);
        drafts.extend(parse_workflow(node, report));
        report.leave_scope();
    }
    (limits, drafts)
}

/// Parses one workflow with its tasks.
fn parse_workflow(node: &Node, report: &mut Diagnostics) -> Option<WorkflowDraft> {
    let fields = Fields::from_node(node, Section::Workflow, report)?;
    let name = fields.parse_name(report);
    let vhosts = parse_vhosts(&fields, report);
    let bus = fields.get("bus").and_then(|entry| parse_bus(entry, report));
    let deadline =
        fields.get("deadline").and_then(|entry| parse_duration(entry, Millis(1), report));
    let retention =
        fields.get("retention").and_then(|entry| parse_duration(entry, Millis(0), report));
    let limit = fields.get("limit").and_then(|entry| parse_job_limit(entry, deadline, report));
    let columns = parse_columns(&fields, report);
    let queue_keys = queue_keys::parse_queue_keys(&fields, report);
    let graph = GraphDraft {
        location: node.location,
        name: name.clone(),
        fan_out: None,
        steps: parse_steps(&fields, report),
    };
    let mut tasks = Vec::new();
    for node in fields.parse_list("tasks", TASKS_MAX, report) {
        report.task = label(node);
        report.add_scope(node.location, node.end);
        tasks.extend(parse_task(node, report));
        report.task = None;
    }
    if let Some(deadline) = deadline {
        for graph in std::iter::once(&graph).chain(&tasks) {
            report.task =
                graph.fan_out.as_ref().and(graph.name.as_ref()).map(|name| name.text.clone());
            warn_of_long_timeouts(graph, deadline, report);
        }
        report.task = None;
    }
    Some(WorkflowDraft {
        location: node.location,
        name,
        vhosts,
        bus,
        deadline,
        retention,
        limit,
        columns,
        queue_keys,
        graph,
        tasks,
    })
}

/// Warns about each `timeout`, `startWithin` and `waitAtMost` that is not shorter than the
/// deadline. The deadline fails the whole job, so it has no effect.
fn warn_of_long_timeouts(graph: &GraphDraft, deadline: Millis, report: &mut Diagnostics) {
    for step in &graph.steps {
        let StepOptions { timeout, timeout_location, start_within, wait_at_most, .. } =
            &step.options;
        let keys = [
            ("timeout", timeout.zip(*timeout_location)),
            ("startWithin", *start_within),
            ("waitAtMost", *wait_at_most),
        ];
        for (key, (timeout, location)) in
            keys.into_iter().filter_map(|(key, duration)| Some((key, duration?)))
        {
            if timeout >= deadline {
                report.step = step.name.as_ref().map(|name| name.text.clone());
                report.add_warning(
                    location,
                    format!(
                        "\"{key}\" is {timeout} and has no effect: by then the \"deadline\" of the \
                         workflow, {deadline}, has failed the job"
                    ),
                );
            }
        }
    }
    report.step = None;
}

/// Parses the distinct virtual hosts of a workflow; empty if it names none.
fn parse_vhosts(fields: &Fields<'_>, report: &mut Diagnostics) -> Vec<LocatedText> {
    let mut vhosts: Vec<LocatedText> = Vec::new();
    for node in fields.parse_list("vhosts", VHOSTS_MAX, report) {
        let Some(vhost) = parse_nonempty_text(node, node.location, "a virtual host", report) else {
            continue;
        };
        match vhosts.iter().find(|other| other.text == vhost.text) {
            Some(first) => report.add_error(
                vhost.location,
                format!(
                    "the virtual host {} is listed twice; the first is at {}",
                    quote(&vhost.text),
                    first.location
                ),
            ),
            None => vhosts.push(vhost),
        }
    }
    if let Some(entry) = fields.get("vhosts")
        && matches!(&entry.value.value, Value::List(items) if items.is_empty())
    {
        report.add_warning(
            entry.value.location,
            "no virtual host is listed: the workflow runs in the one that the broker's address \
             names; remove `vhosts` to say so",
        );
    }
    vhosts
}

/// Parses one task. Its `fan_out` is `None` if its `itemListKey` is missing or invalid.
fn parse_task(node: &Node, report: &mut Diagnostics) -> Option<GraphDraft> {
    let fields = Fields::from_node(node, Section::Task, report)?;
    let name = fields.parse_name(report);
    let list_key = match fields.get("itemListKey") {
        Some(entry) => {
            parse_nonempty_text(&entry.value, entry.location(), "the key of a list", report)
        }
        None => {
            fields.report_missing(
                "itemListKey",
                "a task runs once for each item of the list under this key",
                report,
            );
            None
        }
    };
    let item_key = fields.get("itemKey").and_then(|entry| {
        parse_nonempty_text(&entry.value, entry.location(), "the key of one item", report)
    });
    let max_concurrency = fields
        .get("maxConcurrency")
        .and_then(|entry| parse_integer(entry, 1, u64::from(u32::MAX), report));
    let tolerate =
        fields.get("tolerate").and_then(|entry| parse_tolerance(entry, report)).unwrap_or_default();
    let steps = parse_steps(&fields, report);
    let fan_out = list_key.map(|list_key| FanOutKeys {
        item_key: item_key.map_or_else(|| singularize(&list_key.text), |key| key.text).into(),
        list_key: list_key.text.into(),
        max_concurrency: max_concurrency.and_then(|number| u32::try_from(number).ok()),
        tolerate,
    });
    Some(GraphDraft { location: node.location, name, fan_out, steps })
}

/// Parses the steps of a workflow or task.
fn parse_steps(fields: &Fields<'_>, report: &mut Diagnostics) -> Vec<StepDraft> {
    let Some(nodes) = fields.parse_required_list("steps", STEPS_MAX, report) else {
        return Vec::new();
    };
    let mut steps = Vec::with_capacity(nodes.len());
    for node in nodes {
        report.step = label(node);
        report.add_scope(node.location, node.end);
        steps.extend(parse_step(node, report));
        report.step = None;
    }
    steps
}

/// Parses one step. A step whose queue is the address of a web service is on the push bus.
fn parse_step(node: &Node, report: &mut Diagnostics) -> Option<StepDraft> {
    let fields = Fields::from_node(node, Section::Step, report)?;
    let name = fields.parse_name(report);
    let queue = fields.get("queue").and_then(|entry| parse_queue(entry, report));
    let bus = fields.get("bus").and_then(|entry| parse_bus(entry, report));
    let bus = match queue.as_ref().filter(|queue| is_url(&queue.text)) {
        None => bus,
        Some(url) => {
            if let Some(bus) = bus {
                report.add_error(
                    bus.location,
                    "\"bus\" does not go with a queue that is the address of a web service: the \
                     address says it all, leave \"bus\" out"
                        .to_owned(),
                );
            }
            Some(LocatedText { text: BusKind::Push.name().to_owned(), location: url.location })
        }
    };
    let task = fields.get("task").and_then(|entry| {
        parse_reference(&entry.value, entry.location(), "the name of a task", report)
    });
    let mut depends = Vec::new();
    for node in fields.parse_list("depends", usize::MAX, report) {
        depends.extend(parse_reference(node, node.location, "the name of a step", report));
    }
    let priority = fields.get("priority").and_then(|entry| {
        let number = parse_integer(entry, 0, PRIORITY_MAX, report)?;
        Some((u8::try_from(number).ok()?, entry.value.location))
    });
    let limits =
        fields.get("limit").map_or_else(Vec::new, |entry| parse_step_limits(entry, report));
    let queue_keys = queue_keys::parse_queue_keys(&fields, report);
    let options = parse_step_options(&fields, report);
    Some(StepDraft { name, queue, bus, queue_keys, task, depends, priority, limits, options })
}

/// Parses the name of a bus. `buses` checks whether the manager has it.
fn parse_bus(entry: &Entry, report: &mut Diagnostics) -> Option<LocatedText> {
    let bus = parse_nonempty_text(&entry.value, entry.location(), "the name of a bus", report)?;
    if !is_bus_name(&bus.text) {
        report.add_error(
            bus.location,
            format!(
                "{} is not a name of a bus: a lower-case letter, then lower-case letters, digits \
                 or _",
                quote(&bus.text)
            ),
        );
        return None;
    }
    Some(bus)
}

/// Parses the name of a queue, or the address of a web service.
fn parse_queue(entry: &Entry, report: &mut Diagnostics) -> Option<LocatedText> {
    let queue = parse_nonempty_text(&entry.value, entry.location(), "the name of a queue", report)?;
    if queue.text.starts_with("amq.") {
        report.add_error(
            queue.location,
            format!(
                "queue names that start with \"amq.\" belong to the broker, found {}",
                quote(&queue.text)
            ),
        );
        return None;
    }
    if is_url(&queue.text)
        && let Err(reason) = parse_web_address(&queue.text)
    {
        report.add_error(
            queue.location,
            format!("\"queue\" is the address of a web service: {reason}"),
        );
        return None;
    }
    Some(queue)
}
