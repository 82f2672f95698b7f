//! Leases messages for the worker of a stream, while it has credit.

use super::backlog::{LeasedAhead, Outbound};
use super::{STALL_TIMEOUT, StreamEnd, WorkerStream};
use crate::conversions::to_step_message;
use crate::session_messages::SessionMessage;
use crate::stream_action::{server_stopping, suspended};
use crate::wire::to_worker::Say as ToWorkerMessage;
use base::clock;
use bus::lease_queue::LeasedMessage;
use daemon::api::leases::receive_next;
use futures_util::FutureExt;
use std::sync::Arc;
use std::time::Duration;

/// How long one receive waits for a message. After that, the stream starts another receive.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

impl WorkerStream {
    /// Starts a receive on each queue.
    pub(super) fn receive_from_all(&mut self) {
        for queue in self.session.queues.clone() {
            self.receive_from(queue);
        }
    }

    /// Starts a receive on a queue.
    fn receive_from(&mut self, queue: Arc<str>) {
        let (api, lease_queue) = (self.api.clone(), self.session.lease_queue.clone());
        let options = self.session.options.clone();
        self.receives.push(
            async move {
                let deadline = clock::timer_now() + RECEIVE_TIMEOUT;
                let leased = receive_next(&api, &lease_queue, &queue, &options, deadline).await;
                (queue, leased)
            }
            .boxed(),
        );
    }

    /// Enqueues a leased message for the worker, and receives another while there is credit.
    fn enqueue_message(&mut self, queue: Arc<str>, mut leased: LeasedMessage) {
        let permit = leased.permit.take().map(|permit| self.tracker.track(permit));
        let message = to_step_message(&queue, &self.session.vhost, &leased);
        self.messages.insert(SessionMessage::new(
            leased.id.clone(),
            leased.delivery,
            self.session.lease_queue.clone(),
            self.session.revocations.clone(),
            message.receipt.clone(),
        ));
        let leased_ahead = LeasedAhead { id: leased.id, bytes: message.body.len(), permit };
        self.stall_deadline = clock::timer_now() + STALL_TIMEOUT;
        self.enqueue_outbound(Outbound {
            message: ToWorkerMessage::Message(message),
            leased: Some(leased_ahead),
        });
        self.credit -= 1;
        if self.credit > 0 {
            self.receive_from(queue);
        } else {
            self.receives.clear();
        }
    }

    /// Handles the end of a receive. Returns how the stream ends, if no message can be lent.
    pub(super) fn handle_received(
        &mut self,
        queue: Arc<str>,
        received: Option<LeasedMessage>,
    ) -> Option<StreamEnd> {
        match received {
            Some(leased) => self.enqueue_message(queue, leased),
            None if self.session.lease_queue.is_closed() => {
                return Some(StreamEnd::Error(server_stopping()));
            }
            None if !self.session.lease_queue.is_lending() => {
                return Some(StreamEnd::Error(suspended(self.api.health.out_of_touch())));
            }
            None => self.receive_from(queue),
        }
        None
    }
}
