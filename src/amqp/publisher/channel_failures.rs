//! Handles channels that the broker closed, as it does if a message is too large.

use super::{CHANNEL_AGE_MIN, CHANNEL_CLOSURES_MAX, NACK_BACKOFF, Publisher};
use crate::connection::{channel_error, millis, parse_size_limit};
use crate::publisher_connection::{
    PublishedMessage, PublisherConnection, QUEUE_RECHECK_DELAY, UnsettledMessage,
};
use base::clock;
use bus::{Addressee, Body, ERROR_KIND};
use lapin::protocol::AMQPSoftError;

impl Publisher {
    /// Handles the closing of the shared channel, where `first_error` was the first error. All
    /// unconfirmed messages are sent again on a new channel, the largest ones on their own
    /// channels.
    ///
    /// # Errors
    ///
    /// Returns the reason if the connection is lost, or the channel was closed for another reason.
    pub(super) async fn handle_channel_closed(
        &mut self,
        connection: &mut PublisherConnection,
        first_error: lapin::Error,
    ) -> Result<(), String> {
        if !connection.is_connected() {
            return Err(connection.address.explain(&first_error));
        }
        let closing_error = connection.wait_for_closing_error(first_error).await;
        let Some((AMQPSoftError::PRECONDITIONFAILED, broker_text)) = channel_error(&closing_error)
        else {
            return Err(connection.address.explain(&closing_error));
        };
        connection.body_bytes_max = parse_size_limit(broker_text).or(connection.body_bytes_max);
        let body_bytes = |published: &PublishedMessage| published.body_bytes;
        let largest_bytes = connection.published.values().map(body_bytes).max().unwrap_or(0);
        // The broker does not say which message was too large, but the largest one must be.
        let is_suspect = |published: &PublishedMessage| {
            published.body_bytes == largest_bytes
                || connection.body_bytes_max.is_some_and(|max| published.body_bytes > max)
        };
        for published in connection.published.values_mut().filter(|published| is_suspect(published))
        {
            published.pending.channel_closures += 1;
        }
        tracing::warn!(
            reason = broker_text,
            largest_bytes,
            "the broker closed a channel because a step message is too large: such messages are \
             published on channels of their own"
        );
        self.requeue_unsettled(connection);
        connection.reopen_channel().await.map_err(|error| connection.address.explain(&error))
    }

    /// Returns why another node is to be tried although the connection is open; `None` if there is
    /// no reason, or no other node. A broker that is one node is waited for.
    ///
    /// A channel of RabbitMQ waits for the leader of each quorum queue to which it publishes for
    /// the first time, message by message, and what it hands to a leader that falls silent may
    /// never be confirmed.
    pub(super) fn find_reason_to_leave(&self, connection: &PublisherConnection) -> Option<String> {
        let overdue_at = connection.overdue_at().filter(|_| self.state.addresses.are_several())?;
        (overdue_at <= clock::timer_now()).then(|| {
            format!(
                "{} has not confirmed a message in time: another node is tried",
                connection.address.authority()
            )
        })
    }

    /// Replaces the shared channel if the broker has refused messages on it again and again.
    /// RabbitMQ 3.10 keeps doing so on a channel whose first message to a quorum queue came while
    /// the queue elected a leader, for as long as the former leader is away. A queue that is full
    /// refuses on the next channel too.
    ///
    /// # Errors
    ///
    /// Returns the reason if the connection is lost.
    pub(super) async fn renew_refused_channel(
        connection: &mut PublisherConnection,
    ) -> Result<(), String> {
        if !connection.is_channel_refused
            || connection.channel_opened_at.elapsed() < CHANNEL_AGE_MIN
        {
            return Ok(());
        }
        tracing::debug!("the broker refuses messages again and again: the channel is replaced");
        connection.reopen_channel().await.map_err(|error| connection.address.explain(&error))
    }

    /// Handles the failure of a message on its own channel: schedules it to be sent again. After
    /// repeated closures, a reply to a caller is sent as an error instead.
    ///
    /// # Errors
    ///
    /// Returns the reason if the connection is lost.
    pub(super) fn handle_own_channel_failure(
        &mut self,
        connection: &mut PublisherConnection,
        number: u64,
        error: &lapin::Error,
    ) -> Result<(), String> {
        if !connection.is_connected() {
            return Err(connection.address.explain(error));
        }
        let Some(PublishedMessage { mut pending, .. }) = connection.remove(number) else {
            return Ok(());
        };
        if pending.is_withdrawn {
            self.decrement_unconfirmed();
            return Ok(());
        }
        let (message, queue) = (pending.message.id.as_str(), &pending.message.address.queue);
        let bytes = pending.message.body.len();
        let mut delay = if let Some((AMQPSoftError::PRECONDITIONFAILED, broker_text)) =
            channel_error(error)
        {
            connection.body_bytes_max = parse_size_limit(broker_text).or(connection.body_bytes_max);
            pending.channel_closures += 1;
            if pending.channel_closures < CHANNEL_CLOSURES_MAX {
                NACK_BACKOFF
            } else {
                self.state.settings.reconnect_max
            }
        } else {
            tracing::warn!(message, %queue, %error, "a message could not be published");
            QUEUE_RECHECK_DELAY
        };
        if pending.channel_closures == CHANNEL_CLOSURES_MAX {
            tracing::error!(
                message, %queue, bytes, bytes_max = connection.body_bytes_max, %error,
                retry_in_ms = millis(delay),
                "the broker takes no message of this size: raise its max_message_size, or lower \
                 limits.step_message_bytes_max"
            );
        }
        if pending.message.addressee == Addressee::Caller
            && pending.channel_closures >= CHANNEL_CLOSURES_MAX
        {
            // The result is too large, but the caller must learn that the job has ended.
            pending.message.kind = Some(ERROR_KIND);
            pending.message.body = Body::from_reason(
                &format!(
                    "the result has {bytes} bytes, more than the broker takes: pass large data by \
                     reference"
                ),
                false,
            );
            delay = NACK_BACKOFF;
        }
        self.backlog.delayed.insert((clock::timer_now() + delay, number), pending);
        Ok(())
    }

    /// Moves the messages without a trusted confirm to the front of the waiting ones.
    pub(super) fn requeue_unsettled(&mut self, connection: &mut PublisherConnection) {
        // The last message is moved first, so that the order is kept.
        for unsettled in connection.take_unsettled().into_iter().rev() {
            let UnsettledMessage { mut pending, is_queue_missing } = unsettled;
            if is_queue_missing {
                self.backlog.lost_queues.insert(pending.message.address.queue.clone());
            }
            if pending.is_withdrawn {
                self.decrement_unconfirmed();
                continue;
            }
            pending.is_resend = true;
            self.backlog.waiting.push_front(pending);
        }
    }
}
