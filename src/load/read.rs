//! From the tree of a file to drafts of its workflows: every key and value on its own is right. What they mean to each
//! other (dependencies, tasks, cycles) is for `graph`.

use super::report::Report;
use super::schema::{self, Place};
use super::singular::singular;
use super::yaml::{Entry, Node, Position, Scalar, Value};
use crate::engine::id::is_name;
use crate::engine::words::{quoted, shortened};
use crate::engine::{FanOutKeys, Tolerate};

/// The longest name of a workflow, task or step, in bytes. AMQP allows 255 for a message's properties, and `message_id`
/// is `<UUID>:<step>:<attempt>`.
pub const NAME_BYTES_MAX: usize = 200;

/// The longest queue name, virtual host and item key, in bytes; for the first two the limit is AMQP's.
pub const TEXT_BYTES_MAX: usize = 255;

/// The most steps of a workflow or task.
pub const STEPS_MAX: usize = 1_000;

/// The most tasks of a workflow.
pub const TASKS_MAX: usize = 1_000;

/// The most virtual hosts of a workflow.
pub const VHOSTS_MAX: usize = 100;

/// The highest priority of an AMQP message that brokers commonly honour.
pub const PRIORITY_MAX: u64 = 9;

/// Text of the file and its place.
#[derive(Clone, Debug)]
pub(super) struct Word {
    pub(super) at: Position,
    pub(super) text: String,
}

#[derive(Debug)]
pub(super) struct WorkflowDraft {
    pub(super) at: Position,
    pub(super) name: Option<Word>,
    pub(super) vhosts: Vec<Word>,
    pub(super) graph: GraphDraft,
    pub(super) tasks: Vec<GraphDraft>,
}

#[derive(Debug)]
pub(super) struct GraphDraft {
    pub(super) at: Position,
    pub(super) name: Option<Word>,
    pub(super) fan_out: Option<FanOutKeys>,
    pub(super) steps: Vec<StepDraft>,
}

#[derive(Debug)]
pub(super) struct StepDraft {
    pub(super) name: Option<Word>,
    pub(super) queue: Option<Word>,
    pub(super) task: Option<Word>,
    pub(super) depends: Vec<Word>,
    pub(super) priority: Option<(u8, Position)>,
}

/// All workflows of a file.
pub(super) fn workflows(root: &Node, report: &mut Report) -> Vec<WorkflowDraft> {
    let Some(fields) = Fields::of(root, Place::File, report) else { return Vec::new() };
    let Some(list) = fields.required_list("workflows", usize::MAX, report) else { return Vec::new() };
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
    let fields = Fields::of(node, Place::Workflow, report)?;
    let name = fields.name(report);
    let vhosts = vhosts(&fields, report);
    let steps = steps(&fields, report);
    let mut tasks = Vec::new();
    for node in fields.list("tasks", TASKS_MAX, report) {
        report.task = label(node);
        report.entered(node.at, node.end);
        tasks.extend(task(node, report));
        report.task = None;
    }
    let graph = GraphDraft { at: node.at, name: name.clone(), fan_out: None, steps };
    Some(WorkflowDraft { at: node.at, name, vhosts, graph, tasks })
}

fn vhosts(fields: &Fields<'_>, report: &mut Report) -> Vec<Word> {
    let mut vhosts: Vec<Word> = Vec::new();
    for node in fields.list("vhosts", VHOSTS_MAX, report) {
        let Some(vhost) = bounded_text(node, node.at, "a virtual host", report) else { continue };
        match vhosts.iter().find(|other| other.text == vhost.text) {
            Some(first) => report.error(vhost.at, format!("the virtual host {} is listed twice; the first is at {}", quoted(&vhost.text), first.at)),
            None => vhosts.push(vhost),
        }
    }
    if let Some(entry) = fields.get("vhosts")
        && matches!(&entry.value.value, Value::List(items) if items.is_empty())
    {
        report.warn(entry.value.at, "no virtual host is listed: the workflow runs in the one of the connection's address; remove `vhosts` to say so");
    }
    vhosts
}

fn task(node: &Node, report: &mut Report) -> Option<GraphDraft> {
    let fields = Fields::of(node, Place::Task, report)?;
    let name = fields.name(report);
    let list_key = match fields.get("itemListKey") {
        Some(entry) => bounded_text(&entry.value, entry.place(), "the key of a list", report),
        None => {
            fields.missing("itemListKey", "a task runs once for each item of the list under this key", report);
            None
        }
    };
    let item_key = fields.get("itemKey").and_then(|entry| bounded_text(&entry.value, entry.place(), "the key of one item", report));
    let max_concurrency = fields.get("maxConcurrency").and_then(|entry| whole_number(entry, 1, u64::from(u32::MAX), report));
    let steps = steps(&fields, report);
    let fan_out = list_key.map(|list_key| FanOutKeys {
        item_key: item_key.map_or_else(|| singular(&list_key.text), |key| key.text).into(),
        list_key: list_key.text.into(),
        max_concurrency: max_concurrency.and_then(|number| u32::try_from(number).ok()),
        tolerate: Tolerate::default(),
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
    let fields = Fields::of(node, Place::Step, report)?;
    let name = fields.name(report);
    let queue = fields.get("queue").and_then(|entry| queue(entry, report));
    let task = fields.get("task").and_then(|entry| reference(&entry.value, entry.place(), "the name of a task", report));
    let mut depends = Vec::new();
    for node in fields.list("depends", usize::MAX, report) {
        depends.extend(reference(node, node.at, "the name of a step", report));
    }
    let priority = fields.get("priority").and_then(|entry| {
        let number = whole_number(entry, 0, PRIORITY_MAX, report)?;
        Some((u8::try_from(number).ok()?, entry.value.at))
    });
    Some(StepDraft { name, queue, task, depends, priority })
}

fn queue(entry: &Entry, report: &mut Report) -> Option<Word> {
    let queue = bounded_text(&entry.value, entry.place(), "the name of a queue", report)?;
    if queue.text.starts_with("amq.") {
        report.error(queue.at, format!("queue names that start with \"amq.\" belong to the broker, found {}", quoted(&queue.text)));
        return None;
    }
    Some(queue)
}

/// The entries of one mapping, its keys known to be good ones.
struct Fields<'n> {
    at: Position,
    place: Place,
    entries: &'n [Entry],
    /// The keys for which misspelt ones were taken.
    meant: Vec<&'static str>,
}

impl<'n> Fields<'n> {
    fn of(node: &'n Node, place: Place, report: &mut Report) -> Option<Fields<'n>> {
        match &node.value {
            Value::Map(entries) => {
                let mut meant = Vec::new();
                for entry in entries {
                    if let Some(objection) = schema::objection(place, &entry.key.text, report.may_guess()) {
                        report.guessed();
                        report.error(entry.key.at, objection.message);
                        meant.extend(objection.meant);
                    }
                }
                Some(Fields { at: node.at, place, entries, meant })
            }
            Value::Broken => None,
            Value::List(_) | Value::Scalar(..) => {
                report.error(node.at, format!("expected {}, such as `{}`, found {}", place.of(), place.example(), found(node)));
                None
            }
        }
    }

    fn get(&self, key: &str) -> Option<&'n Entry> {
        self.entries.iter().find(|entry| entry.key.text == key)
    }

    /// Reports that `key` is missing, unless it is there, misspelt, and was reported so.
    fn missing(&self, key: &str, reason: &str, report: &mut Report) {
        if !self.meant.contains(&key) {
            report.error(self.at, format!("the key {} is missing; {reason}", quoted(key)));
        }
    }

    fn name(&self, report: &mut Report) -> Option<Word> {
        let Some(entry) = self.get("name") else {
            self.missing("name", &format!("{} has a name", self.place.of()), report);
            return None;
        };
        let at = entry.place();
        if let Some(word) = reference(&entry.value, at, "a name", report)
            && let Some(objection) = objection_to_name(&word.text)
        {
            report.error(at, objection);
        }
        // A bad name is kept all the same: what refers to it is not to be reported as well.
        match &entry.value.value {
            Value::Scalar(Scalar::Text | Scalar::Boolean | Scalar::Number, text) => Some(Word { at, text: text.clone() }),
            Value::Scalar(Scalar::Null, _) | Value::Map(_) | Value::List(_) | Value::Broken => None,
        }
    }

    /// The items under `key`; nothing there counts as an empty list.
    fn list(&self, key: &str, limit: usize, report: &mut Report) -> Vec<&'n Node> {
        let Some(entry) = self.get(key) else { return Vec::new() };
        match &entry.value.value {
            Value::List(items) => {
                if let Some(extra) = items.get(limit) {
                    report.error(extra.at, format!("{} has {} {key}, more than the {limit} allowed", self.place.of(), items.len()));
                }
                items.iter().take(limit).map(|item| &**item).collect()
            }
            Value::Scalar(Scalar::Null, _) | Value::Broken => Vec::new(),
            Value::Scalar(_, text) => {
                let message = format!("{} takes a list, found {}; write [ {} ]", quoted(key), found(&entry.value), shortened(text));
                report.error(entry.value.at, message);
                Vec::new()
            }
            Value::Map(_) => {
                report.error(
                    entry.value.at,
                    format!("{} takes a list, found a mapping; is a `-` missing before {}?", quoted(key), quoted(first_key(&entry.value))),
                );
                Vec::new()
            }
        }
    }

    /// The items under `key`, at least one; `None` when that was reported.
    fn required_list(&self, key: &str, limit: usize, report: &mut Report) -> Option<Vec<&'n Node>> {
        let Some(entry) = self.get(key) else {
            self.missing(key, &format!("{} has at least one {}", self.place.of(), key.trim_end_matches('s')), report);
            return None;
        };
        let items = self.list(key, limit, report);
        if items.is_empty() && matches!(&entry.value.value, Value::List(_) | Value::Scalar(Scalar::Null, _)) {
            report.error(
                entry.place(),
                format!("the list {} is empty; {} has at least one {}", quoted(key), self.place.of(), key.trim_end_matches('s')),
            );
        }
        if items.is_empty() { None } else { Some(items) }
    }
}

impl Entry {
    /// Where to point at: the value, or the key where there is no value to be seen.
    fn place(&self) -> Position {
        match &self.value.value {
            Value::Scalar(Scalar::Null, text) if text.is_empty() => self.key.at,
            Value::Scalar(..) | Value::Map(_) | Value::List(_) | Value::Broken => self.value.at,
        }
    }
}

/// How to call a workflow, task or step in errors, before anything about it is known to be right.
fn label(node: &Node) -> Option<String> {
    let Value::Map(entries) = &node.value else { return None };
    let name = entries.iter().find(|entry| entry.key.text == "name")?;
    match &name.value.value {
        Value::Scalar(Scalar::Text | Scalar::Boolean | Scalar::Number, text) => Some(shortened(text)),
        Value::Scalar(Scalar::Null, _) | Value::Map(_) | Value::List(_) | Value::Broken => None,
    }
}

/// A name, or a word that names one.
fn reference(node: &Node, at: Position, expected: &str, report: &mut Report) -> Option<Word> {
    match &node.value {
        Value::Scalar(Scalar::Text, text) => Some(Word { at, text: text.clone() }),
        Value::Scalar(Scalar::Boolean, text) => {
            report.error(at, format!("expected {expected}, found {text}, which YAML may take for a boolean; put it into quotes: \"{text}\""));
            None
        }
        Value::Scalar(Scalar::Number, text) => {
            report.error(at, format!("expected {expected}, found the number {}; a name starts with a letter", shortened(text)));
            None
        }
        Value::Broken => None,
        Value::Scalar(Scalar::Null, _) | Value::Map(_) | Value::List(_) => {
            report.error(at, format!("expected {expected}, found {}", found(node)));
            None
        }
    }
}

fn objection_to_name(name: &str) -> Option<String> {
    if name == "__start__" || name == "__end__" {
        return Some(format!("{} is reserved: every workflow has it already", quoted(name)));
    }
    if !is_name(name) {
        return Some(format!("{} is not a name: a letter, then letters, digits, `_` or `-`", quoted(name)));
    }
    if name.len() > NAME_BYTES_MAX {
        return Some(format!("the name has {} characters, more than the {NAME_BYTES_MAX} that fit into a message's properties", name.len()));
    }
    None
}

/// A text of 1 to [`TEXT_BYTES_MAX`] bytes without control characters.
fn bounded_text(node: &Node, at: Position, expected: &str, report: &mut Report) -> Option<Word> {
    let text = match &node.value {
        Value::Scalar(Scalar::Text, text) => text,
        Value::Scalar(kind @ (Scalar::Boolean | Scalar::Number), text) => {
            let kind = if *kind == Scalar::Number { "number" } else { "boolean" };
            report.error(
                at,
                format!(
                    "expected {expected}, found {text}, which YAML may take for a {kind}; put it into quotes: \"{text}\"",
                    text = shortened(text)
                ),
            );
            return None;
        }
        Value::Broken => return None,
        Value::Scalar(Scalar::Null, _) | Value::Map(_) | Value::List(_) => {
            report.error(at, format!("expected {expected}, found {}", found(node)));
            return None;
        }
    };
    if text.is_empty() {
        report.error(at, format!("expected {expected}, found an empty text"));
        return None;
    }
    if text.len() > TEXT_BYTES_MAX {
        report.error(at, format!("expected {expected} of at most {TEXT_BYTES_MAX} bytes, found {}", text.len()));
        return None;
    }
    if text.chars().any(char::is_control) {
        report.error(at, format!("expected {expected}, found {}, with a line break or another control character in it", quoted(text)));
        return None;
    }
    Some(Word { at, text: text.clone() })
}

fn whole_number(entry: &Entry, least: u64, most: u64, report: &mut Report) -> Option<u64> {
    let node = &entry.value;
    let parsed = match &node.value {
        Value::Scalar(Scalar::Number, text) => text.parse::<u64>().ok().filter(|number| (least..=most).contains(number)),
        Value::Broken => return None,
        Value::Scalar(Scalar::Text | Scalar::Boolean | Scalar::Null, _) | Value::Map(_) | Value::List(_) => None,
    };
    if parsed.is_none() {
        let range = if most == u64::from(u32::MAX) { format!("of at least {least}") } else { format!("from {least} to {most}") };
        let quotes = match &node.value {
            Value::Scalar(Scalar::Text, text) if text.parse::<u64>().is_ok() => "; remove the quotes",
            Value::Scalar(..) | Value::Map(_) | Value::List(_) | Value::Broken => "",
        };
        report.error(entry.place(), format!("{} takes a whole number {range}, found {}{quotes}", quoted(&entry.key.text), found(node)));
    }
    parsed
}

/// What is there instead of what was expected.
fn found(node: &Node) -> String {
    match &node.value {
        Value::Map(_) => "a mapping".to_owned(),
        Value::List(_) => "a list".to_owned(),
        Value::Scalar(Scalar::Text, text) => format!("the text {}", quoted(text)),
        Value::Scalar(Scalar::Number, text) => format!("the number {}", shortened(text)),
        Value::Scalar(Scalar::Boolean, text) => format!("the boolean {}", shortened(text)),
        Value::Scalar(Scalar::Null, _) | Value::Broken => "nothing".to_owned(),
    }
}

fn first_key(node: &Node) -> &str {
    match &node.value {
        Value::Map(entries) => entries.first().map_or("", |entry| entry.key.text.as_str()),
        Value::List(_) | Value::Scalar(..) | Value::Broken => "",
    }
}
