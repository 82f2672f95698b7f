//! The keys that determine how queues are declared: `queueType` and `queueArguments`. A step has
//! them for its queue, or a workflow for the queues of all its steps.

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
    let (kind, arguments) = (fields.get(TYPE), fields.get(ARGUMENTS));
    let declaration = QueueDeclaration {
        kind: kind.and_then(|entry| parse_queue_type(entry, report)),
        arguments: arguments.and_then(|entry| parse_queue_arguments(entry, report)),
    };
    let location = kind.into_iter().chain(arguments).map(Entry::location).next();
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
    if let Some((_, kind)) = QueueType::ALL.into_iter().find(|(name, _)| *name == text) {
        return Some(kind);
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
                "the argument {} takes a whole number, a text, or true or false, found {}",
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

/// Returns whether a queue with this declaration delivers messages of a higher priority first. The
/// section of the bus has the defaults of the declaration.
fn has_priorities(declaration: &QueueDeclaration, bus: Option<&AmqpSection>) -> bool {
    let effective =
        bus.map_or_else(|| declaration.clone(), |bus| declaration.or(&bus.declaration()));
    effective.kind == Some(QueueType::Quorum)
        || effective.arguments.iter().flatten().any(|(name, _)| **name == *"x-max-priority")
}

/// Returns how the queue of a step is declared, as far as the file determines it. The keys of the
/// workflow do not apply to the queue of another workflow, which declares it itself.
pub(super) fn step_declaration(step: &StepDraft, workflow: &WorkflowDraft) -> QueueDeclaration {
    match message_queue(step) {
        None => QueueDeclaration::default(),
        Some(queue) if queue.text.starts_with(Definition::CALL_QUEUE_PREFIX) => {
            step.queue_keys.declaration.clone()
        }
        Some(_) => step.queue_keys.declaration.or(&workflow.queue_keys.declaration),
    }
}

/// For each bus, virtual host and queue the first declaration, and its file and location.
#[derive(Default)]
pub(super) struct QueueDeclarations(HashMap<(String, String, String), (QueueDeclaration, String)>);

impl QueueDeclarations {
    /// Adds the declarations of a workflow's steps. Refuses steps that declare one queue
    /// differently, and warns of keys that have no effect.
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
        let kind = settings.and_then(|settings| settings.bus_kind(bus));
        if let (Some(location), Some(BusKind::Embedded | BusKind::Push | BusKind::Kafka)) =
            (step.queue_keys.location, kind)
        {
            report.add_warning(
                location,
                format!("has no effect: {} has no queues of RabbitMQ", quote(bus)),
            );
        }
        let declaration = step_declaration(step, draft);
        if let (Some((_, location)), None | Some(BusKind::Amqp)) = (step.priority, kind)
            && !is_url(&queue.text)
            && bus != BusKind::Embedded.name()
            && !has_priorities(&declaration, settings.and_then(|settings| settings.amqp_bus(bus)))
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
        let section = settings.and_then(|settings| settings.amqp_bus(bus));
        let effective =
            section.map_or_else(|| declaration.clone(), |bus| declaration.or(&bus.declaration()));
        if let Some(error) = effective.check_consistency()
            && step.queue_keys.declaration.check_consistency().is_none()
            && draft.queue_keys.declaration.check_consistency().is_none()
        {
            report.add_error(location, error);
        }
        let source = format!("{}:{location}", report.file);
        for vhost in draft.vhosts.iter().map(|vhost| vhost.text.as_str()).chain(
            // A workflow without virtual hosts runs in the virtual host of the broker's address.
            draft.vhosts.is_empty().then_some(""),
        ) {
            let key = (bus.to_owned(), vhost.to_owned(), queue.text.clone());
            match self.0.get(&key) {
                Some((other, other_source)) if *other != declaration => {
                    let message = format!(
                        "the queue {} is declared {declaration} here, and {other} at \
                         {other_source}: a queue has one type and one set of arguments",
                        quote(&queue.text)
                    );
                    return report.add_error(location, message);
                }
                Some(_) => {}
                None => drop(self.0.insert(key, (declaration.clone(), source.clone()))),
            }
        }
    }
}
