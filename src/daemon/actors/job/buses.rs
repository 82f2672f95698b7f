//! The buses of a job's steps: whether replies on them may be unread, which messages they have
//! confirmed, and what follows if a queue is missing.

use super::{JobActor, JobEnv};
use crate::actors::completion_latch::CompletionLatch;
use crate::actors::inputs::Outgoing;
use bus::{Address, BusKey};
use engine::{Input, StepIndex, UnreadReplies};
use std::sync::Arc;

impl JobActor {
    /// Returns the steps whose timeouts are suspended, each with a time. If the attempt began
    /// before that time, its reply may be unread in the reply queue of the bus, or its message may
    /// be unsent because the disk was full.
    pub(super) fn unread_replies(&self) -> UnreadReplies {
        let Some(job) = self.job() else { return UnreadReplies::new() };
        let JobEnv { buses, health, unsent_grace, .. } = &*self.env;
        let suspended_before = |index: StepIndex| {
            let step = job.graph().step(index);
            let bus = buses.bus_of_step(job.definition(), step);
            let unread_before = health.replies_unread_before(&bus, buses.replies_first(&bus.name));
            // The bus has not sent the message of an attempt that began after it disconnected. So
            // there is no reply to it, and the attempt can time out.
            let disconnected_since = job
                .step(index)
                .is_timeout_pending()
                .then(|| health.disconnected_since(&bus))
                .flatten();
            let cutoff =
                disconnected_since.or(unread_before).max(health.unsent_before(*unsent_grace));
            cutoff.map(|time| self.clock.convert(time))
        };
        job.graph()
            .indices()
            .filter(|step| {
                job.step(*step).has_active_attempt() && job.graph().step(*step).has_queue()
            })
            .filter_map(|step| Some((step, suspended_before(step)?)))
            .collect()
    }

    /// Dispatches again the steps whose messages were in the missing queue. `latch` is dropped
    /// after the commit.
    pub(super) fn handle_queue_missing(&mut self, queue: &Address, latch: Arc<CompletionLatch>) {
        let steps: Vec<StepIndex> = self.confirmed_steps_in_queue(queue).collect();
        if !steps.is_empty() {
            self.handle_engine_input(
                Input::QueueMissing(steps),
                vec![Outgoing::ReleaseLatch(latch)],
            );
        }
    }

    /// Returns the steps that wait for a reply to a message that this bus has confirmed.
    pub(super) fn confirmed_steps_on_bus<'a>(
        &'a self,
        bus: &'a BusKey,
    ) -> impl Iterator<Item = StepIndex> + use<'a> {
        self.job()
            .into_iter()
            .flat_map(|job| job.confirmed_steps().map(move |step| (job, step)))
            .filter(|(job, step)| {
                self.env.buses.is_bus_of_step(bus, job.definition(), job.graph().step(*step))
            })
            .map(|(_, step)| step)
    }

    /// Returns the steps that wait for a reply to a message that is confirmed in this queue.
    pub(super) fn confirmed_steps_in_queue<'a>(
        &'a self,
        queue: &'a Address,
    ) -> impl Iterator<Item = StepIndex> + use<'a> {
        let uses_queue = |step: &StepIndex| {
            self.job().is_some_and(|job| job.graph().step(*step).queue == queue.queue)
        };
        self.confirmed_steps_on_bus(&queue.bus).filter(uses_queue)
    }
}
