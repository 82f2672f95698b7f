//! Parses the tree of a file to drafts of its workflows: every key and value on its own is valid.
//! How they fit together (dependencies, tasks, cycles) is checked by `graph`.

use super::draft::{GraphDraft, StepDraft, StepOptions, WorkflowDraft};
use super::fields::{Fields, label};
use super::limits::{PRIORITY_MAX, STEPS_MAX, TASKS_MAX, VHOSTS_MAX};
use super::options::step_options;
use super::queue_keys;
use super::report::Report;
use super::schema::Section;
use super::singular::singular;
use super::values::{Word, bounded_text, reference, span, tolerance, whole_number};
use super::yaml::{Entry, Node, Value};
use crate::engine::words::quoted;
use crate::engine::{FanOutKeys, Millis};
use crate::settings::{BusKind, is_bus_name, is_url, web_address};

/// Parses all workflows of a file.
pub(super) fn workflows(root: &Node, report: &mut Report) -> Vec<WorkflowDraft> {
    let Some(fields) = Fields::of(root, Section::File, report) else { return Vec::new() };
    let Some(list) = fields.required_list("workflows", usize::MAX, report) else {
        return Vec::new();
    };
    let mut drafts = Vec::with_capacity(list.len());
    for node in list {
        report.workflow = label(node);
        report.entered(node.at, node.end);
        drafts.extend(workflow(node, report));
        report.leave();
    }
    drafts
}

fn workflow(node: &Node, report: &mut Report) -> Option<WorkflowDraft> {
    let fields = Fields::of(node, Section::Workflow, report)?;
    let name = fields.name(report);
    let vhosts = vhosts(&fields, report);
    let bus = fields.get("bus").and_then(|entry| bus(entry, report));
    let deadline = fields.get("deadline").and_then(|entry| span(entry, Millis(1), report));
    let retention = fields.get("retention").and_then(|entry| span(entry, Millis(0), report));
    let queue_keys = queue_keys::read(&fields, report);
    let graph = GraphDraft {
        at: node.at,
        name: name.clone(),
        fan_out: None,
        steps: steps(&fields, report),
    };
    let mut tasks = Vec::new();
    for node in fields.list("tasks", TASKS_MAX, report) {
        report.task = label(node);
        report.entered(node.at, node.end);
        tasks.extend(task(node, report));
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
        at: node.at,
        name,
        vhosts,
        bus,
        deadline,
        retention,
        queue_keys,
        graph,
        tasks,
    })
}

/// Warns of timeouts that are not shorter than the deadline: it is that of the whole job, so they
/// have no effect.
fn warn_of_long_timeouts(graph: &GraphDraft, deadline: Millis, report: &mut Report) {
    for step in &graph.steps {
        let StepOptions { timeout, timeout_at, start_within, .. } = &step.options;
        let spans = [("timeout", timeout.zip(*timeout_at)), ("startWithin", *start_within)];
        for (key, (span, at)) in spans.into_iter().filter_map(|(key, span)| Some((key, span?))) {
            if span >= deadline {
                report.step = step.name.as_ref().map(|name| name.text.clone());
                report.warn(
                    at,
                    format!(
                        "\"{key}\" is {span} and has no effect: by then the \"deadline\" of the \
                         workflow, {deadline}, has failed the job"
                    ),
                );
            }
        }
    }
    report.step = None;
}

fn vhosts(fields: &Fields<'_>, report: &mut Report) -> Vec<Word> {
    let mut vhosts: Vec<Word> = Vec::new();
    for node in fields.list("vhosts", VHOSTS_MAX, report) {
        let Some(vhost) = bounded_text(node, node.at, "a virtual host", report) else { continue };
        match vhosts.iter().find(|other| other.text == vhost.text) {
            Some(first) => report.error(
                vhost.at,
                format!(
                    "the virtual host {} is listed twice; the first is at {}",
                    quoted(&vhost.text),
                    first.at
                ),
            ),
            None => vhosts.push(vhost),
        }
    }
    if let Some(entry) = fields.get("vhosts")
        && matches!(&entry.value.value, Value::List(items) if items.is_empty())
    {
        report.warn(
            entry.value.at,
            "no virtual host is listed: the workflow runs in the one that the broker's address \
             names; remove `vhosts` to say so",
        );
    }
    vhosts
}

fn task(node: &Node, report: &mut Report) -> Option<GraphDraft> {
    let fields = Fields::of(node, Section::Task, report)?;
    let name = fields.name(report);
    let list_key = match fields.get("itemListKey") {
        Some(entry) => bounded_text(&entry.value, entry.place(), "the key of a list", report),
        None => {
            fields.missing(
                "itemListKey",
                "a task runs once for each item of the list under this key",
                report,
            );
            None
        }
    };
    let item_key = fields
        .get("itemKey")
        .and_then(|entry| bounded_text(&entry.value, entry.place(), "the key of one item", report));
    let max_concurrency = fields
        .get("maxConcurrency")
        .and_then(|entry| whole_number(entry, 1, u64::from(u32::MAX), report));
    let tolerate =
        fields.get("tolerate").and_then(|entry| tolerance(entry, report)).unwrap_or_default();
    let steps = steps(&fields, report);
    let fan_out = list_key.map(|list_key| FanOutKeys {
        item_key: item_key.map_or_else(|| singular(&list_key.text), |key| key.text).into(),
        list_key: list_key.text.into(),
        max_concurrency: max_concurrency.and_then(|number| u32::try_from(number).ok()),
        tolerate,
    });
    Some(GraphDraft { at: node.at, name, fan_out, steps })
}

fn steps(fields: &Fields<'_>, report: &mut Report) -> Vec<StepDraft> {
    let Some(list) = fields.required_list("steps", STEPS_MAX, report) else { return Vec::new() };
    let mut steps = Vec::with_capacity(list.len());
    for node in list {
        report.step = label(node);
        report.entered(node.at, node.end);
        steps.extend(step(node, report));
        report.step = None;
    }
    steps
}

fn step(node: &Node, report: &mut Report) -> Option<StepDraft> {
    let fields = Fields::of(node, Section::Step, report)?;
    let name = fields.name(report);
    let queue = fields.get("queue").and_then(|entry| queue(entry, report));
    let bus = fields.get("bus").and_then(|entry| bus(entry, report));
    let bus = match queue.as_ref().filter(|queue| is_url(&queue.text)) {
        None => bus,
        Some(url) => {
            if let Some(bus) = bus {
                report.error(
                    bus.at,
                    "\"bus\" does not go with a queue that is the address of a web service: the \
                     address says it all, leave \"bus\" out"
                        .to_owned(),
                );
            }
            Some(Word { text: BusKind::Push.name().to_owned(), at: url.at })
        }
    };
    let task = fields
        .get("task")
        .and_then(|entry| reference(&entry.value, entry.place(), "the name of a task", report));
    let mut depends = Vec::new();
    for node in fields.list("depends", usize::MAX, report) {
        depends.extend(reference(node, node.at, "the name of a step", report));
    }
    let priority = fields.get("priority").and_then(|entry| {
        let number = whole_number(entry, 0, PRIORITY_MAX, report)?;
        Some((u8::try_from(number).ok()?, entry.value.at))
    });
    let queue_keys = queue_keys::read(&fields, report);
    let options = step_options(&fields, report);
    Some(StepDraft { name, queue, bus, queue_keys, task, depends, priority, options })
}

fn bus(entry: &Entry, report: &mut Report) -> Option<Word> {
    let bus = bounded_text(&entry.value, entry.place(), "the name of a bus", report)?;
    if !is_bus_name(&bus.text) {
        report.error(
            bus.at,
            format!(
                "{} is no name of a bus: a lower-case letter, then lower-case letters, digits or _",
                quoted(&bus.text)
            ),
        );
        return None;
    }
    Some(bus)
}

fn queue(entry: &Entry, report: &mut Report) -> Option<Word> {
    let queue = bounded_text(&entry.value, entry.place(), "the name of a queue", report)?;
    if queue.text.starts_with("amq.") {
        report.error(
            queue.at,
            format!(
                "queue names that start with \"amq.\" belong to the broker, found {}",
                quoted(&queue.text)
            ),
        );
        return None;
    }
    if is_url(&queue.text)
        && let Err(why) = web_address(&queue.text)
    {
        report.error(queue.at, format!("\"queue\" is the address of a web service: {why}"));
        return None;
    }
    Some(queue)
}
