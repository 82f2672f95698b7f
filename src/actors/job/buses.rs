//! Which bus each step of a job sends to, and what follows from the state of these buses.

use super::JobActor;
use crate::actors::answer_on_drop::AnswerOnDrop;
use crate::actors::mail::Outgoing;
use crate::actors::ways::Ways;
use crate::bus::{Address, BusKey};
use crate::engine::{Input, StepIndex, UnreadReplies};
use std::sync::Arc;

impl JobActor {
    /// Returns, for each step that waits for a reply, a time: an attempt that began before it may
    /// have been answered already, with the reply still unread in the reply queue of its bus; or
    /// its message may not have been sent, because the disk was full.
    pub(super) fn unread_replies(&self) -> UnreadReplies {
        let Some(job) = self.job() else { return UnreadReplies::new() };
        let Ways { common, buses, .. } = &*self.ways;
        let until = |step: StepIndex| {
            let sends = job.graph().step(step);
            let bus = buses.of_step(job.definition(), sends);
            let (health, settings) = (&common.health, &common.settings);
            let unread = health.replies_unread_before(&bus, settings.replies_first(&bus.bus));
            // Nobody can have replied to a message that was never sent.
            let unsent = job.step(step).waits_for_start().then(|| health.parted(&bus)).flatten();
            let unread = unsent.or(unread);
            let until = unread.max(health.unsent_before(settings.amqp.replies_first.0));
            until.map(|at| self.clock.at(at))
        };
        let sent = job
            .graph()
            .indices()
            .filter(|step| job.step(*step).is_under_way() && job.graph().step(*step).has_queue());
        sent.filter_map(|step| Some((step, until(step)?))).collect()
    }

    /// Sends the messages that waited in that queue again. `done` is dropped after the commit.
    pub(super) fn queue_missing(&mut self, queue: &Address, done: Arc<AnswerOnDrop>) {
        let steps: Vec<StepIndex> = self.confirmed_in(queue).collect();
        if !steps.is_empty() {
            self.take(Input::QueueMissing(steps), vec![Outgoing::Hold(done)]);
        }
    }

    /// Returns the steps that wait for a reply and whose message this bus has confirmed.
    pub(super) fn confirmed_on<'a>(
        &'a self,
        bus: &'a BusKey,
    ) -> impl Iterator<Item = StepIndex> + use<'a> {
        self.job()
            .into_iter()
            .flat_map(|job| job.confirmed_steps().map(move |step| (job, step)))
            .filter(|(job, step)| {
                self.ways.buses.carries(bus, job.definition(), job.graph().step(*step))
            })
            .map(|(_, step)| step)
    }

    /// Returns the steps that wait for a reply and whose message is confirmed in this queue.
    pub(super) fn confirmed_in<'a>(
        &'a self,
        queue: &'a Address,
    ) -> impl Iterator<Item = StepIndex> + use<'a> {
        let of_queue = |step: &StepIndex| {
            self.job().is_some_and(|job| job.graph().step(*step).queue == queue.queue)
        };
        self.confirmed_on(&queue.bus).filter(of_queue)
    }
}
