//! Checks workflows against the manager's settings. The buses that they name must exist, no step
//! may send its messages to a reply queue or quarantine queue, and the web services that steps call
//! must be allowed.

use super::calls::{all_steps, message_queue};
use super::diagnostics::Diagnostics;
use super::draft::{StepDraft, WorkflowDraft};
use super::values::LocatedText;
use crate::settings::{BusKind, Settings};
use amqp::quarantine_queue;
use base::networks::Networks;
use base::web_address::{ip_address, is_cleartext, is_url, parse_web_address};
use engine::Definition;
use engine::text::quote;

/// Reports buses that the settings do not have, steps that send to a reply queue or quarantine
/// queue, and workflows whose own queue is such a queue.
pub(super) fn check_buses(draft: &WorkflowDraft, settings: &Settings, report: &mut Diagnostics) {
    let workflow_bus = draft.bus.as_ref();
    check_bus_exists(workflow_bus, settings, report);
    let effective_bus = |bus: Option<&LocatedText>| {
        bus.or(workflow_bus).map_or(settings.default_bus(), |bus| bus.text.as_str()).to_owned()
    };
    if let Some(name) = &draft.name
        && let Some(purpose) = reserved_purpose(
            settings,
            &effective_bus(None),
            &Definition::workflow_queue(&name.text),
        )
    {
        report.add_error(
            name.location,
            format!("{purpose}: the workflow cannot take its calls there, choose another name"),
        );
    }
    for (task, step) in all_steps(draft) {
        report.task = task.map(|task| task.text.clone());
        report.step = step.name.as_ref().map(|name| name.text.clone());
        check_bus_exists(step.bus.as_ref(), settings, report);
        if let Some(queue) = message_queue(step)
            && let Some(purpose) =
                reserved_purpose(settings, &effective_bus(step.bus.as_ref()), &queue.text)
        {
            report.add_error(
                queue.location,
                format!("{purpose}: step messages cannot go there, choose another"),
            );
        }
    }
    (report.task, report.step) = (None, None);
}

/// A step that sends messages.
pub(super) struct SendingStep<'a> {
    /// The name of its task; `None` for a step of the workflow itself.
    pub(super) task: Option<&'a LocatedText>,
    pub(super) step: &'a StepDraft,
    /// The queue, or the address of a web service.
    pub(super) queue: &'a LocatedText,
    /// The name of the effective bus: the step's, the workflow's, or the default one.
    pub(super) bus: &'a str,
}

/// Returns the steps that send their messages to buses of one kind. Without settings, only the
/// predefined buses are known, whose names are those of their kinds.
pub(super) fn steps_on_bus<'a>(
    kind: BusKind,
    draft: &'a WorkflowDraft,
    settings: Option<&'a Settings>,
) -> impl Iterator<Item = SendingStep<'a>> {
    all_steps(draft).filter_map(move |(task, step)| {
        let queue = message_queue(step)?;
        let bus = match step.bus.as_ref().or(draft.bus.as_ref()) {
            Some(bus) => bus.text.as_str(),
            None => settings.map_or(BusKind::Embedded.name(), Settings::default_bus),
        };
        let bus_kind = match settings {
            Some(settings) => settings.bus_kind(bus),
            None => BusKind::ALL.into_iter().find(|kind| kind.name() == bus),
        };
        (bus_kind == Some(kind)).then_some(SendingStep { task, step, queue, bus })
    })
}

/// Reports steps that call a web service without a timeout, that name an unknown endpoint, or whose
/// address may not be called. Without settings, the allowed networks are the default ones.
pub(super) fn check_services(
    draft: &WorkflowDraft,
    settings: Option<&Settings>,
    report: &mut Diagnostics,
) {
    for SendingStep { task, step, queue, bus } in steps_on_bus(BusKind::Push, draft, settings) {
        report.task = task.map(|task| task.text.clone());
        report.step = step.name.as_ref().map(|name| name.text.clone());
        if let Some(error) =
            settings.and_then(|settings| settings.check_endpoint(bus, &queue.text).err())
        {
            report.add_error(queue.location, error);
        }
        if step.options.timeout.is_none() {
            report.add_error(
                queue.location,
                "a step that calls a web service has a \"timeout\", and this one has none: nothing \
                 else ends its attempt while the service cannot be reached, or when it says that \
                 it replies later (202) and never does"
                    .to_owned(),
            );
        }
        check_address(bus, queue, settings, report);
    }
    (report.task, report.step) = (None, None);
}

/// Reports the address of a web service if it is not allowed, and warns if it does not use TLS. A
/// host name is not resolved here, only IP addresses are checked.
fn check_address(
    bus: &str,
    queue: &LocatedText,
    settings: Option<&Settings>,
    report: &mut Diagnostics,
) {
    // The queue is the name of an endpoint in the settings, or the address itself.
    let endpoint = settings.and_then(|settings| settings.push_bus(bus)?.get(&queue.text));
    let Ok(url) = parse_web_address(endpoint.map_or(&queue.text, |endpoint| &endpoint.url.0))
    else {
        return;
    };
    let networks =
        settings.map_or_else(|| Ok(Networks::default()), |settings| settings.push.networks());
    // If the networks in the settings are invalid, that is the reason.
    if let Some(reason) = networks.map_or_else(Some, |networks| networks.refusal(ip_address(&url)?))
    {
        report.add_error(queue.location, format!("the web service cannot be called: {reason}"));
    }
    if is_cleartext(&url) {
        report.add_warning(
            queue.location,
            format!(
                "messages to {} can be read and changed on the way: use https://",
                quote(url.host_str().unwrap_or_default())
            ),
        );
    }
}

/// Advises to check with the manager's settings if a workflow names a bus: without them it is
/// unknown whether the bus exists. Advises once for each workflow.
pub(super) fn advise_config(draft: &WorkflowDraft, report: &mut Diagnostics) {
    let steps = all_steps(draft)
        .filter(|(_, step)| !message_queue(step).is_some_and(|queue| is_url(&queue.text)));
    let step_buses = steps.filter_map(|(_, step)| step.bus.as_ref());
    if let Some(bus) = draft.bus.as_ref().into_iter().chain(step_buses).next() {
        let advice = format!(
            "whether the manager has the bus {} is not known here: name its settings with --config",
            quote(&bus.text)
        );
        report.add_advice(bus.location, advice);
    }
}

/// Reports a bus that the settings do not have.
fn check_bus_exists(bus: Option<&LocatedText>, settings: &Settings, report: &mut Diagnostics) {
    if let Some(bus) = bus
        && let Some(error) = settings.unknown_bus_error(&bus.text)
    {
        report.add_error(bus.location, format!("\"bus\" is {error}"));
    }
}

/// Returns the beginning of a message about the reserved purpose of a queue; `None` if it has none.
/// The queues of section `amqp` are reserved on the embedded bus too, so that a file stays valid
/// when a broker is configured later.
fn reserved_purpose(settings: &Settings, bus: &str, queue: &str) -> Option<String> {
    let is_embedded = bus == BusKind::Embedded.name();
    let buses = [Some(bus), is_embedded.then_some(BusKind::Amqp.name())];
    buses.into_iter().flatten().find_map(|bus| {
        let reply_queue = settings.reply_queue(bus)?;
        let content = if queue == reply_queue {
            "replies wait"
        } else if queue == quarantine_queue(reply_queue) {
            "messages that cannot be read are kept"
        } else {
            return None;
        };
        let setting = settings.reply_queue_setting(bus);
        Some(format!("{content} in the queue {} ({setting})", quote(queue)))
    })
}
