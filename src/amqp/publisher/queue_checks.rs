//! What the publisher does with the state of queues: found, missing, or not usable for now.

use super::Publisher;
use crate::connection::millis;
use crate::publisher_connection::{PublisherConnection, QUEUE_RECHECK_DELAY, QueueState};
use crate::queues::QueueCheck;
use base::clock;
use bus::{Addressee, BusEvent, Publication};
use std::sync::Arc;
use tokio::sync::oneshot;

impl Publisher {
    pub(super) fn handle_queue_check(
        &mut self,
        link: &mut PublisherConnection,
        queue: Arc<str>,
        found: QueueCheck,
    ) -> Result<(), String> {
        match found {
            QueueCheck::Exists { .. } | QueueCheck::Exclusive
                if !self.backlog.lost_queues.contains(&queue) =>
            {
                self.handle_queue_found(link, &queue)
            }
            QueueCheck::Exists { .. } | QueueCheck::Exclusive | QueueCheck::Missing => {
                self.handle_queue_missing(link, queue)
            }
            QueueCheck::Lost(error) if !link.is_connected() => {
                return Err(self.state.address.explain(&error));
            }
            QueueCheck::Lost(error) => self.schedule_queue_check(link, queue, &error.to_string()),
            QueueCheck::Refused(broker_text) => {
                self.schedule_queue_check(link, queue, &broker_text)
            }
        }
        Ok(())
    }

    /// Handles the repeated check of a queue that existed as of `generation`. If anything newer is
    /// known of the queue, that was handled already.
    pub(super) fn handle_queue_recheck(
        &mut self,
        link: &mut PublisherConnection,
        generation: u64,
        queue: Arc<str>,
        found: &QueueCheck,
    ) {
        if matches!(found, QueueCheck::Missing) && link.is_current_generation(generation, &queue) {
            link.queue_states.insert(queue.clone(), QueueState::Checking);
            self.handle_queue_missing(link, queue);
        }
    }

    fn handle_queue_found(&mut self, link: &mut PublisherConnection, queue: &Arc<str>) {
        link.mark_queue_found(queue);
        let parked = self.backlog.parked.remove(queue).into_iter().flatten();
        parked.rev().for_each(|pending| self.backlog.waiting.push_front(pending));
    }

    fn handle_queue_missing(&mut self, link: &mut PublisherConnection, queue: Arc<str>) {
        self.backlog.lost_queues.remove(&queue);
        // Unconfirmed messages that are on their way to the queue stay with this bus. A confirm
        // that comes now is from the lost queue.
        for published in link
            .published
            .values_mut()
            .filter(|published| is_to_worker(&published.pending.message, &queue))
        {
            published.is_queue_lost = true;
        }
        let (journaled, answered) = oneshot::channel();
        tracing::debug!(%queue, "the queue is missing or was replaced: it is declared once its \
                                 running steps are journaled as unconfirmed");
        (self.state.sink)(BusEvent::QueueMissing { queue: queue.clone(), journaled });
        let queue_properties = self.state.properties_for(&queue);
        link.declare_after(queue, queue_properties, answered);
    }

    fn schedule_queue_check(
        &mut self,
        link: &mut PublisherConnection,
        queue: Arc<str>,
        reason: &str,
    ) {
        tracing::warn!(
            %queue,
            reason,
            retry_in_ms = millis(QUEUE_RECHECK_DELAY),
            "the queue cannot be used"
        );
        link.queue_states.insert(queue.clone(), QueueState::Unusable);
        self.last_number += 1;
        link.scheduled_checks
            .insert((clock::timer_now() + QUEUE_RECHECK_DELAY, self.last_number), queue);
    }
}

fn is_to_worker(message: &Publication, queue: &str) -> bool {
    message.addressee == Addressee::Worker && *message.address.queue == *queue
}
