//! Explains what a step waits for after an AMQP broker has confirmed its message.

use super::wait_cause::WaitCause;
use super::why_text::{describe_all_busy, format_count};
use crate::api::state::ApiState;
use base::clock;
use bus::QueueStatus;
use engine::{Definition, Job, StepIndex};
use std::sync::Arc;
use std::time::Duration;

/// How old the broker's statistics may be. By default it collects them every 5 seconds; a broker
/// that is configured to collect them less often has older ones.
const STATISTICS_AGE_MAX: Duration = Duration::from_secs(10);

/// How a message may have been lost that is neither in its queue nor with a worker.
const LOSS_CAUSES: &str = "rejected or expired where no policy sends dead letters to the reply \
                           queue, purged, lost with its queue, or acknowledged by a worker that \
                           did not reply";

/// A step whose message the broker has confirmed. Explanations say "most likely" where the broker
/// does not report what happened to the message.
pub(super) struct ConfirmedStep<'a> {
    pub(super) api: &'a Arc<ApiState>,
    pub(super) job: &'a Job,
    pub(super) index: StepIndex,
    /// The phrase that says when the step times out.
    pub(super) timeout: &'a str,
}

impl ConfirmedStep<'_> {
    /// Explains from the status of the queue. Returns `None` if the general explanation of a queue
    /// fits better.
    pub(super) fn explain(&self, status: &QueueStatus) -> Option<(WaitCause, String)> {
        let ConfirmedStep { job, index, timeout, .. } = self;
        let QueueStatus::Exists { messages, unacknowledged, consumers, .. } = *status else {
            return None;
        };
        let (step, run) = (job.graph().step(*index), job.step(*index));
        let (name, queue, id) = (&step.name, &step.queue, job.id());
        let resend_hint = format!("`workflow-manager redispatch {id} {name}` sends it again");
        if let Some(loss) = self.explain_loss(consumers, &resend_hint) {
            return Some(loss);
        }
        if let (0, 1.., Some(workflow)) =
            (messages, consumers, queue.strip_prefix(Definition::WORKFLOW_QUEUE_PREFIX))
        {
            let sentence = format!(
                "the workflow \"{workflow}\" has it, most likely: its manager took the message of \
                 step \"{name}\" and made a job of it, whose end is the reply; {timeout}"
            );
            return Some((WaitCause::Working, sentence));
        }
        let workers = format_count(consumers, "consumer", "consumers");
        let age_ms = run.sent.map(|sent| (clock::now().0 - sent.0) / 1_000_000);
        // Statistics that were collected before the message was sent do not count it.
        let is_in_statistics = age_ms.is_none_or(|age_ms| {
            age_ms > i64::try_from(STATISTICS_AGE_MAX.as_millis()).unwrap_or(i64::MAX)
        });
        match (messages, consumers, unacknowledged) {
            (0, 0, _) => Some((
                WaitCause::NoConsumer,
                format!(
                    "no consumer on queue \"{queue}\", and no message in it: start a worker for \
                     step \"{name}\". Its message was there; unless a reply is on its way it was \
                     {LOSS_CAUSES}: {resend_hint}; {timeout}"
                ),
            )),
            // The general explanation says that the messages wait for a consumer.
            (_, 0, _) => None,
            (0, _, Some(0)) if is_in_statistics => Some((
                WaitCause::Lost,
                format!(
                    "the message of step \"{name}\" is lost, most likely: queue \"{queue}\" holds \
                     none, neither waiting nor with one of its {workers}, as the broker's \
                     statistics of some seconds ago tell, and no reply has come. It was \
                     {LOSS_CAUSES}: {resend_hint}; {timeout}"
                ),
            )),
            (0, _, Some(0)) => Some((
                WaitCause::Working,
                format!(
                    "a worker has it, most likely: the message of step \"{name}\" no longer waits \
                     in queue \"{queue}\", which has {workers}; the broker's statistics do not \
                     show yet who has it: ask again in some seconds; {timeout}"
                ),
            )),
            (0, _, Some(unacknowledged)) => Some((
                WaitCause::Working,
                format!(
                    "a worker has it, most likely: {} of queue \"{queue}\" with its {workers}, \
                     none waits, and the message of step \"{name}\" has no reply yet; {timeout}",
                    format_count(unacknowledged, "message is", "messages are")
                ),
            )),
            (0, _, None) => Some((
                WaitCause::Working,
                format!(
                    "a worker has it, most likely: the message of step \"{name}\" no longer waits \
                     in queue \"{queue}\", which has {workers}, and no reply has come. Whether \
                     it is with one of them only the management API tells (setting \
                     amqp.management). If none has it, it was {LOSS_CAUSES}: {resend_hint}; \
                     {timeout}"
                ),
            )),
            (_, _, _) => Some((
                WaitCause::AllBusy,
                describe_all_busy(name, queue, messages, consumers, timeout),
            )),
        }
    }

    /// Explains that the queue has lost messages. Returns `None` if no loss is reported.
    fn explain_loss(&self, consumers: u32, resend_hint: &str) -> Option<(WaitCause, String)> {
        let ConfirmedStep { api, job, index, timeout } = self;
        let step = job.graph().step(*index);
        let (name, queue) = (&step.name, &step.queue);
        let address = api.buses.address(job.definition(), step);
        let loss = api.queue_losses.find(&address)?;
        let settings = &api.settings;
        let lost_after = settings.amqp_bus(&address.bus.name).unwrap_or(&settings.amqp).lost_after;
        let start = if consumers == 0 {
            format!("no consumer on queue \"{queue}\", and messages are lost")
        } else {
            format!("queue \"{queue}\" has lost messages")
        };
        let sentence = format!(
            "{start}: for {lost_after} at least {} on it, but it held at most {}, waiting, with \
             workers or answered; most likely the others were {LOSS_CAUSES}. The message of step \
             \"{name}\" may be one of them: {resend_hint}, `workflow-manager redispatch --queue \
             {queue}` sends all of the queue again; {timeout}",
            format_count(loss.waiting, "step waits", "steps wait"),
            format_count(loss.messages, "message", "messages"),
        );
        Some((WaitCause::Lost, sentence))
    }
}
