//! Which bus each step of a job sends to, and what follows from the state of these buses.

use super::{JobActor, JobEnv};
use crate::actors::completion_latch::CompletionLatch;
use crate::actors::inputs::Outgoing;
use bus::{Address, BusKey};
use engine::{Input, StepIndex, UnreadReplies};
use std::sync::Arc;

impl JobActor {
    /// Returns, for each step that waits for a reply, a time: an attempt that began before it may
    /// have been answered already, with the reply still unread in the reply queue of its bus; or
    /// its message may not have been sent, because the disk was full.
    pub(super) fn unread_replies(&self) -> UnreadReplies {
        let Some(job) = self.job() else { return UnreadReplies::new() };
        let JobEnv { buses, health, unsent_wait, .. } = &*self.env;
        let until = |step: StepIndex| {
            let sends = job.graph().step(step);
            let bus = buses.bus_of_step(job.definition(), sends);
            let unread = health.replies_unread_before(&bus, buses.replies_first(&bus.name));
            // Nobody can have replied to a message that was never sent.
            let unsent = job
                .step(step)
                .is_waiting_for_start()
                .then(|| health.disconnected_since(&bus))
                .flatten();
            let unread = unsent.or(unread);
            let until = unread.max(health.unsent_before(*unsent_wait));
            until.map(|at| self.clock.convert(at))
        };
        let sent = job.graph().indices().filter(|step| {
            job.step(*step).has_active_attempt() && job.graph().step(*step).has_queue()
        });
        sent.filter_map(|step| Some((step, until(step)?))).collect()
    }

    /// Sends the messages that waited in that queue again. `done` is dropped after the commit.
    pub(super) fn handle_queue_missing(&mut self, queue: &Address, done: Arc<CompletionLatch>) {
        let steps: Vec<StepIndex> = self.confirmed_steps_in_queue(queue).collect();
        if !steps.is_empty() {
            self.handle_engine_input(
                Input::QueueMissing(steps),
                vec![Outgoing::ReleaseLatch(done)],
            );
        }
    }

    /// Returns the steps that wait for a reply and whose message this bus has confirmed.
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

    /// Returns the steps that wait for a reply and whose message is confirmed in this queue.
    pub(super) fn confirmed_steps_in_queue<'a>(
        &'a self,
        queue: &'a Address,
    ) -> impl Iterator<Item = StepIndex> + use<'a> {
        let of_queue = |step: &StepIndex| {
            self.job().is_some_and(|job| job.graph().step(*step).queue == queue.queue)
        };
        self.confirmed_steps_on_bus(&queue.bus).filter(of_queue)
    }
}
