//! Handles the results of queue checks: unparks the messages of a queue that exists, and declares a
//! queue that is missing.

use super::Publisher;
use crate::connection::millis;
use crate::publisher_connection::{PublisherConnection, QUEUE_RECHECK_DELAY, QueueState};
use crate::queues::QueueCheck;
use base::clock;
use bus::{Addressee, BusEvent, Publication};
use std::sync::Arc;
use tokio::sync::oneshot;

impl Publisher {
    /// Handles the check or the declaration of a queue. A queue whose messages are lost counts as
    /// missing until that is reported, even if it exists again.
    ///
    /// # Errors
    ///
    /// Returns the reason if the connection is lost.
    pub(super) fn handle_queue_check(
        &mut self,
        connection: &mut PublisherConnection,
        queue: Arc<str>,
        check: QueueCheck,
    ) -> Result<(), String> {
        match check {
            QueueCheck::Exists { .. } | QueueCheck::Exclusive
                if !self.backlog.lost_queues.contains(&queue) =>
            {
                self.handle_queue_found(connection, &queue)
            }
            QueueCheck::Exists { .. } | QueueCheck::Exclusive | QueueCheck::Missing => {
                self.handle_queue_missing(connection, queue)
            }
            QueueCheck::Lost(error) if !connection.is_connected() => {
                return Err(connection.address.explain(&error));
            }
            QueueCheck::Lost(error) => {
                self.schedule_queue_check(connection, queue, &error.to_string())
            }
            QueueCheck::Unavailable(broker_text) => {
                // A message was returned because the node of the queue is away. What the queue
                // holds comes back with it.
                self.backlog.lost_queues.remove(&queue);
                self.schedule_queue_check(connection, queue, &broker_text)
            }
            QueueCheck::Refused(broker_text) => {
                self.schedule_queue_check(connection, queue, &broker_text)
            }
        }
        Ok(())
    }

    /// Handles the repeated check of a queue that existed as of `generation`. Ignores the result if
    /// the queue has been checked or declared since.
    pub(super) fn handle_queue_recheck(
        &mut self,
        connection: &mut PublisherConnection,
        generation: u64,
        queue: Arc<str>,
        check: &QueueCheck,
    ) {
        if matches!(check, QueueCheck::Missing)
            && connection.is_current_generation(generation, &queue)
        {
            connection.queue_states.insert(queue.clone(), QueueState::Checking);
            self.handle_queue_missing(connection, queue);
        }
    }

    /// Moves the messages that were parked for the queue to the front of the waiting ones.
    fn handle_queue_found(&mut self, connection: &mut PublisherConnection, queue: &Arc<str>) {
        connection.mark_queue_found(queue);
        let parked = self.backlog.parked.remove(queue).into_iter().flatten();
        parked.rev().for_each(|pending| self.backlog.waiting.push_front(pending));
    }

    /// Reports a missing queue, and declares it once that is journaled.
    fn handle_queue_missing(&mut self, connection: &mut PublisherConnection, queue: Arc<str>) {
        self.backlog.lost_queues.remove(&queue);
        // The bus keeps the unconfirmed messages to the queue. A confirm that arrives from now on
        // belongs to the lost queue, so the message is sent again.
        for published in connection
            .published
            .values_mut()
            .filter(|published| is_to_worker(&published.pending.message, &queue))
        {
            published.is_queue_lost = true;
        }
        let (journaled_sender, journaled) = oneshot::channel();
        tracing::debug!(
            %queue,
            "the queue is missing or was replaced: it is declared once its running steps are \
             journaled as unconfirmed"
        );
        (self.state.sink)(BusEvent::QueueMissing {
            queue: queue.clone(),
            journaled: journaled_sender,
        });
        let queue_properties = self.state.properties_for(&queue);
        connection.declare_after(queue, queue_properties, journaled);
    }

    /// Marks the queue as unusable for now, and checks it again later.
    fn schedule_queue_check(
        &mut self,
        connection: &mut PublisherConnection,
        queue: Arc<str>,
        reason: &str,
    ) {
        tracing::warn!(
            %queue,
            reason,
            retry_in_ms = millis(QUEUE_RECHECK_DELAY),
            "the queue cannot be used"
        );
        connection.queue_states.insert(queue.clone(), QueueState::Unusable);
        self.last_number += 1;
        connection
            .scheduled_checks
            .insert((clock::timer_now() + QUEUE_RECHECK_DELAY, self.last_number), queue);
    }
}

/// Returns whether the message is sent to a worker over this queue.
fn is_to_worker(message: &Publication, queue: &str) -> bool {
    message.addressee == Addressee::Worker && *message.address.queue == *queue
}
