//! Advises on steps over AMQP that may take longer than RabbitMQ waits for the acknowledgement of
//! their messages.

use super::buses::{SendingStep, steps_on_bus};
use super::diagnostics::Diagnostics;
use super::draft::WorkflowDraft;
use crate::settings::{BusKind, Settings};
use engine::Millis;

/// RabbitMQ's default of its setting `consumer_timeout`.
pub const CONSUMER_TIMEOUT_DEFAULT: Millis = Millis(30 * 60 * 1000);

/// Advises to raise `consumer_timeout` for each step over AMQP whose `timeout` is longer than its
/// default. What the broker is configured with is not known: no API of RabbitMQ tells it.
pub(super) fn advise_consumer_timeouts(
    draft: &WorkflowDraft,
    settings: Option<&Settings>,
    report: &mut Diagnostics,
) {
    for SendingStep { task, step, .. } in steps_on_bus(BusKind::Amqp, draft, settings) {
        let options = &step.options;
        let Some((timeout, location)) = options.timeout.zip(options.timeout_location) else {
            continue;
        };
        if timeout > CONSUMER_TIMEOUT_DEFAULT {
            report.task = task.map(|task| task.text.clone());
            report.step = step.name.as_ref().map(|name| name.text.clone());
            report.add_advice(
                location,
                format!(
                    "\"timeout\" is {timeout}, and RabbitMQ gives a message to another worker \
                     too if it is not acknowledged within its \"consumer_timeout\", \
                     {CONSUMER_TIMEOUT_DEFAULT} unless rabbitmq.conf says otherwise: raise it, or \
                     two may work on the same message"
                ),
            );
        }
    }
    (report.task, report.step) = (None, None);
}
