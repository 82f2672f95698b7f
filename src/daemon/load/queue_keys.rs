//! Parses and checks the keys that determine how queues are declared: `queueType` and
//! `queueArguments`. A step has them for its own queue, a workflow for the queues of all its steps.

use super::calls::{all_steps, message_queue};
use super::diagnostics::Diagnostics;
use super::draft::{QueueKeys, StepDraft, WorkflowDraft};
use super::fields::Fields;
use super::scalars::ScalarKind;
use super::schema::{QUEUE_ARGUMENTS_KEY as ARGUMENTS, QUEUE_TYPE_KEY as TYPE};
use super::values::describe;
use super::yaml::{Entry, Value};
use crate::settings::{AmqpSection, BusKind, Settings};
use base::web_address::is_url;
use engine::text::{enumerate_quoted, quote};
use engine::{
    Definition, QueueArgument, QueueArguments, QueueDeclaration, QueueType, check_argument,
};
use std::collections::HashMap;

/// Parses both keys of a step or workflow.
pub(super) fn parse_queue_keys(fields: &Fields<'_>, report: &mut Diagnostics) -> QueueKeys {
    let (queue_type, arguments) = (fields.get(TYPE), fields.get(ARGUMENTS));
    let declaration = QueueDeclaration {
        kind: queue_type.and_then(|entry| parse_queue_type(entry, report)),
        arguments: arguments.and_then(|entry| parse_queue_arguments(entry, report)),
    };
    let location = queue_type.or(arguments).map(Entry::location);
    if let (Some(error), Some(location)) =
        (declaration.check_consistency(), arguments.map(Entry::location))
    {
        report.add_error(location, error);
    }
    QueueKeys { declaration, location }
}

/// Parses the type of a queue.
fn parse_queue_type(entry: &Entry, report: &mut Diagnostics) -> Option<QueueType> {
    let text = match &entry.value.value {
        Value::Scalar(ScalarKind::Text, text) => text.as_str(),
        Value::Invalid => return None,
        Value::Scalar(..) | Value::Map(_) | Value::List(_) => "",
    };
    if let Some((_, queue_type)) = QueueType::ALL.into_iter().find(|(name, _)| *name == text) {
        return Some(queue_type);
    }
    let names = || QueueType::ALL.into_iter().map(|(name, _)| name);
    let hint = match text {
        "stream" => {
            "; a stream keeps what was acknowledged, and gives it to workers again".to_owned()
        }
        text => report.suggest(text, names()),
    };
    let message = format!(
        "{} takes {}, as the workers of the queue declare it, found {}{hint}",
        quote(TYPE),
        enumerate_quoted(names(), "or"),
        describe(&entry.value)
    );
    report.add_error(entry.location(), message);
    None
}

/// Parses the arguments of a queue, leaving out invalid ones.
fn parse_queue_arguments(entry: &Entry, report: &mut Diagnostics) -> Option<QueueArguments> {
    let Value::Map(entries) = &entry.value.value else {
        if !matches!(entry.value.value, Value::Invalid) {
            let message = format!(
                "{} takes a mapping, such as {{ x-max-length: 10000 }}, found {}",
                quote(ARGUMENTS),
                describe(&entry.value)
            );
            report.add_error(entry.location(), message);
        }
        return None;
    };
    let mut arguments = QueueArguments::new();
    for entry in entries {
        let name = entry.key.text.as_str();
        let value = match &entry.value.value {
            Value::Scalar(ScalarKind::Text, text) => {
                Some(QueueArgument::Text(text.as_str().into()))
            }
            Value::Scalar(ScalarKind::Boolean, text) => text.parse().ok().map(QueueArgument::Flag),
            Value::Scalar(ScalarKind::Number, text) => text.parse().ok().map(QueueArgument::Number),
            Value::Invalid => continue,
            Value::Scalar(ScalarKind::Null, _) | Value::Map(_) | Value::List(_) => None,
        };
        let Some(value) = value else {
            let message = format!(
                "the argument {} takes a whole number, a string, or true or false, found {}",
                quote(name),
                describe(&entry.value)
            );
            report.add_error(entry.location(), message);
            continue;
        };
        match check_argument(name, &value, TYPE) {
            Some(error) => {
                let location = if error.starts_with("unknown") {
                    entry.key.location
                } else {
                    entry.location()
                };
                report.add_error(location, error);
            }
            None => drop(arguments.insert(name.into(), value)),
        }
    }
    Some(arguments)
}

/// Returns the declaration with the defaults of the bus, if its section is known.
fn with_bus_defaults(
    declaration: &QueueDeclaration,
    section: Option<&AmqpSection>,
) -> QueueDeclaration {
    match section {
        Some(section) => declaration.or(&section.declaration()),
        None => declaration.clone(),
    }
}

/// Returns whether a queue with this declaration delivers messages of a higher priority first.
fn has_priorities(effective: &QueueDeclaration) -> bool {
    effective.kind == Some(QueueType::Quorum)
        || effective.arguments.iter().flatten().any(|(name, _)| **name == *"x-max-priority")
}

/// Returns how the queue of a step is declared, as far as the file determines it. The keys of the
/// workflow do not apply to the queue of another workflow, which declares that queue
/// itself.
pub(super) fn step_declaration(step: &StepDraft, workflow: &WorkflowDraft) -> QueueDeclaration {
    match message_queue(step) {
        None => QueueDeclaration::default(),
        Some(queue) if queue.text.starts_with(Definition::WORKFLOW_QUEUE_PREFIX) => {
            step.queue_keys.declaration.clone()
        }
        Some(_) => step.queue_keys.declaration.or(&workflow.queue_keys.declaration),
    }
}

/// The first declaration of each queue in the files read so far.
#[derive(Default)]
pub(super) struct QueueDeclarations(HashMap<QueueKey, FirstDeclaration>);

/// What identifies a queue.
#[derive(PartialEq, Eq, Hash)]
struct QueueKey {
    bus: String,
    /// The virtual host; empty for the one in the broker's address.
    vhost: String,
    queue: String,
}

/// A declaration with which later ones must agree.
struct FirstDeclaration {
    declaration: QueueDeclaration,
    /// The file, line and column of the declaration.
    source: String,
}

impl QueueDeclarations {
    /// Adds the declarations of a workflow's steps. Reports declarations of one queue that differ,
    /// and warns about keys that have no effect.
    pub(super) fn check_workflow(
        &mut self,
        draft: &WorkflowDraft,
        settings: Option<&Settings>,
        report: &mut Diagnostics,
    ) {
        for (task, step) in all_steps(draft) {
            report.task = task.map(|task| task.text.clone());
            report.step = step.name.as_ref().map(|name| name.text.clone());
            self.check_step(step, draft, settings, report);
        }
        (report.task, report.step) = (None, None);
    }

    /// Checks the declaration of one step, and adds it.
    fn check_step(
        &mut self,
        step: &StepDraft,
        draft: &WorkflowDraft,
        settings: Option<&Settings>,
        report: &mut Diagnostics,
    ) {
        let Some(queue) = message_queue(step) else {
            if let Some(location) = step.queue_keys.location {
                report.add_warning(location, "has no effect: the step sends no message of its own");
            }
            return;
        };
        let bus = match step.bus.as_ref().or(draft.bus.as_ref()) {
            Some(bus) => bus.text.as_str(),
            None => settings.map_or("", Settings::default_bus),
        };
        let bus_kind = settings.and_then(|settings| settings.bus_kind(bus));
        if let (Some(location), Some(BusKind::Embedded | BusKind::Push | BusKind::Kafka)) =
            (step.queue_keys.location, bus_kind)
        {
            report.add_warning(
                location,
                format!("has no effect: {} has no queues of RabbitMQ", quote(bus)),
            );
        }
        let declaration = step_declaration(step, draft);
        let section = settings.and_then(|settings| settings.amqp_bus(bus));
        let effective = with_bus_defaults(&declaration, section);
        // Without settings, any bus except the embedded one is assumed to be an AMQP bus.
        if let (Some((_, location)), None | Some(BusKind::Amqp)) = (step.priority, bus_kind)
            && !is_url(&queue.text)
            && bus != BusKind::Embedded.name()
            && !has_priorities(&effective)
        {
            report.add_warning(
                location,
                format!(
                    "\"priority\" works over AMQP only on a queue that honours it: say \
                     \"queueType: quorum\", or \"queueArguments: {{ x-max-priority: 9 }}\" for a \
                     classic one, as the workers of {} declare it",
                    quote(&queue.text)
                ),
            );
        }
        let keys_location = step.queue_keys.location.or(draft.queue_keys.location);
        let (false, Some(location)) = (declaration.is_default(), keys_location) else { return };
        // Reports a contradiction only where keys of several sources are combined:
        // `parse_queue_keys` checks the keys of each step and workflow on their own.
        if let Some(error) = effective.check_consistency()
            && step.queue_keys.declaration.check_consistency().is_none()
            && draft.queue_keys.declaration.check_consistency().is_none()
        {
            report.add_error(location, error);
        }
        let vhosts = draft.vhosts.iter().map(|vhost| vhost.text.as_str()).chain(
            // A workflow without virtual hosts runs in the virtual host of the broker's address.
            draft.vhosts.is_empty().then_some(""),
        );
        for vhost in vhosts {
            let key = QueueKey {
                bus: bus.to_owned(),
                vhost: vhost.to_owned(),
                queue: queue.text.clone(),
            };
            if let Err(error) = self.add(key, &declaration, &format!("{}:{location}", report.file))
            {
                return report.add_error(location, error);
            }
        }
    }

    /// Adds the declaration of a queue. Returns an error if it differs from the first one.
    fn add(
        &mut self,
        key: QueueKey,
        declaration: &QueueDeclaration,
        source: &str,
    ) -> Result<(), String> {
        match self.0.get(&key) {
            Some(first) if first.declaration != *declaration => Err(format!(
                "the queue {} is declared {declaration} here, and {} at {}: a queue has one type \
                 and one set of arguments",
                quote(&key.queue),
                first.declaration,
                first.source
            )),
            Some(_) => Ok(()),
            None => {
                let first_declaration = FirstDeclaration {
                    declaration: declaration.clone(),
                    source: source.to_owned(),
                };
                self.0.insert(key, first_declaration);
                Ok(())
            }
        }
    }
}
