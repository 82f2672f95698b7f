//! Quarantines messages that cannot be read: it moves them to a queue of their own. Each leaves the
//! queue that it came on only when the broker has confirmed the copy.
//!
//! The quarantine has its own connection, opened when needed, so that a broker that blocks
//! publishers cannot stop the acks.

use super::connection::{LastReason, ReconnectBackoff, channel_error, close, fail_point, millis};
use super::queue_properties::QueueProperties;
use super::queues::{QueueCheck, QueueDeclarer, short_string};
use super::received::{QuarantineRequest, UnreadableContent};
use super::state::AmqpState;
use super::wire::{ORIGINAL_HEADER, Property, REASON_HEADER, read_property};
use crate::section::{UnreadableMessages, quarantine_queue};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bus::BusEvent;
use futures_util::future::try_join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::{BasicProperties, Channel, Confirmation};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::mpsc;

/// How many messages are quarantined at once.
const BATCH_MAX: usize = 100;

/// How long the connection stays open after the last message.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// How many messages the quarantine queue holds. The oldest are dropped first.
const QUARANTINED_MAX: i64 = 10_000;

/// How many bytes of bodies the quarantine queue holds. The oldest are dropped first.
const QUARANTINED_BYTES_MAX: i64 = 1 << 30;

/// The header that names the queue that the message came on.
const QUEUE_HEADER: &str = "x-workflow-manager-queue";

const DELIVERY_MODE_PERSISTENT: u8 = 2;

/// Why messages were not quarantined.
enum QuarantineError {
    /// Another attempt may help.
    Lost(String),
    /// The broker refuses them, for this reason of its own.
    Refused(String),
}

/// Quarantines messages until the bus is gone.
pub(super) async fn run(
    state: Rc<AmqpState>,
    mut inbox: mpsc::UnboundedReceiver<QuarantineRequest>,
) {
    let mut backoff =
        ReconnectBackoff::new(state.settings.reconnect_min, state.settings.reconnect_max);
    let (mut last_reason, mut batch) = (LastReason::default(), Vec::with_capacity(BATCH_MAX));
    while inbox.recv_many(&mut batch, BATCH_MAX).await > 0 {
        if state.settings.unreadable == UnreadableMessages::Drop {
            batch.drain(..).for_each(|request| report_and_ack(&state, request, false));
            state.quarantine_budget.requeue_deferred();
            continue;
        }
        while !batch.is_empty() {
            match Box::pin(quarantine_batches(&state, &mut batch, &mut inbox)).await {
                Ok(()) => {
                    backoff.reset();
                    last_reason = LastReason::default();
                }
                Err(QuarantineError::Refused(said)) => {
                    let queue = quarantine_queue(&state.settings.reply_queue);
                    tracing::error!(
                        queue,
                        said,
                        messages = batch.len(),
                        "the broker does not let unreadable messages be put aside: they are dropped"
                    );
                    batch.drain(..).for_each(|request| report_and_ack(&state, request, false));
                }
                Err(QuarantineError::Lost(reason)) => {
                    batch.retain(|request| !request.delivery.is_stale());
                    let pause = backoff.next_delay();
                    if last_reason.record_if_new(&reason) {
                        tracing::warn!(
                            reason,
                            messages = batch.len(),
                            retry_in_ms = millis(pause),
                            "unreadable messages are not put aside"
                        );
                    } else {
                        tracing::debug!(
                            reason,
                            messages = batch.len(),
                            retry_in_ms = millis(pause),
                            "unreadable messages are not put aside"
                        );
                    }
                    tokio::time::sleep(pause).await;
                }
            }
        }
        state.quarantine_budget.requeue_deferred();
    }
}

/// Reports a message, and acknowledges it.
fn report_and_ack(state: &AmqpState, request: QuarantineRequest, is_quarantined: bool) {
    let QuarantineRequest { queue, unreadable: UnreadableContent { reason, original }, delivery } =
        request;
    let correlation_id =
        read_property(&original, Property::CorrelationId).map(std::borrow::Cow::into_owned);
    (state.sink)(BusEvent::Unreadable {
        queue,
        reason,
        correlation_id,
        bytes: delivery.body.len(),
        is_quarantined,
    });
    delivery.ack();
}

/// Opens a connection, quarantines this batch, and then what arrives soon after it.
async fn quarantine_batches(
    state: &AmqpState,
    batch: &mut Vec<QuarantineRequest>,
    inbox: &mut mpsc::UnboundedReceiver<QuarantineRequest>,
) -> Result<(), QuarantineError> {
    let connection =
        Rc::new(state.address.open("unreadable messages").await.map_err(QuarantineError::Lost)?);
    let queue = quarantine_queue(&state.settings.reply_queue);
    let explain = |error: lapin::Error| match channel_error(&error) {
        Some((_, broker_text)) => QuarantineError::Refused(broker_text.to_owned()),
        None => QuarantineError::Lost(state.address.explain(&error)),
    };
    let publishing = async {
        declare(&QueueDeclarer::new(connection.clone()), &queue).await.map_err(
            |found| match found {
                QueueCheck::Lost(error) => explain(error),
                QueueCheck::Refused(broker_text) => QuarantineError::Refused(broker_text),
                QueueCheck::Exclusive => QuarantineError::Refused(
                    "it is an exclusive queue of another connection".to_owned(),
                ),
                QueueCheck::Exists { .. } | QueueCheck::Missing => {
                    QuarantineError::Lost(format!("the queue \"{queue}\" was deleted"))
                }
            },
        )?;
        let channel = connection.create_channel().await.map_err(explain)?;
        channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(explain)?;
        let header_bytes_max = connection.configuration().frame_max() as usize / 2;
        loop {
            // A stale message was requeued, and is delivered again.
            batch.retain(|request| !request.delivery.is_stale());
            let sent =
                batch.iter().map(|request| publish(&channel, &queue, request, header_bytes_max));
            let acks = try_join_all(sent).await.map_err(explain)?;
            if !acks.iter().all(|is_ack| *is_ack) {
                // The confirmed ones will be in quarantine twice, which is better than not at all.
                return Err(QuarantineError::Lost(format!(
                    "the broker did not take all messages for the queue \"{queue}\""
                )));
            }
            batch.drain(..).for_each(|request| report_and_ack(state, request, true));
            state.quarantine_budget.requeue_deferred();
            // The time is over, or the inbox is closed: nothing more arrives for now.
            let received = tokio::time::timeout(IDLE_MAX, inbox.recv_many(batch, BATCH_MAX)).await;
            if matches!(received, Err(_) | Ok(0)) {
                return Ok(());
            }
        }
    };
    let result = publishing.await;
    close(&connection).await;
    result
}

/// Declares the quarantine queue if it is missing. An existing queue may have other arguments; its
/// owner bounds it then.
async fn declare(queues: &QueueDeclarer, queue: &str) -> Result<(), QueueCheck> {
    let found = match queues.check(queue).await {
        QueueCheck::Missing => {
            let mut arguments = FieldTable::default();
            arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(QUARANTINED_MAX));
            arguments
                .insert("x-max-length-bytes".into(), AMQPValue::LongLongInt(QUARANTINED_BYTES_MAX));
            queues.declare(queue, QueueProperties { arguments, ..QueueProperties::default() }).await
        }
        found @ (QueueCheck::Exists { .. }
        | QueueCheck::Exclusive
        | QueueCheck::Refused(_)
        | QueueCheck::Lost(_)) => found,
    };
    if matches!(found, QueueCheck::Exists { .. }) { Ok(()) } else { Err(found) }
}

/// Publishes a message, and returns whether the broker acked it.
async fn publish(
    channel: &Channel,
    queue: &str,
    request: &QuarantineRequest,
    header_bytes_max: usize,
) -> lapin::Result<bool> {
    fail_point("amqp::aside")?;
    let UnreadableContent { reason, original } = &request.unreadable;
    // In base64 the header is a third longer, and its sender may have filled a whole frame with it.
    let original = STANDARD.encode(&original[..original.len().min(header_bytes_max)]);
    let mut headers = FieldTable::default();
    for (name, text) in [
        (REASON_HEADER, reason.as_str()),
        (ORIGINAL_HEADER, &original),
        (QUEUE_HEADER, &request.queue),
    ] {
        headers.insert(name.into(), AMQPValue::LongString(LongString::from(text)));
    }
    let properties = BasicProperties::default()
        .with_delivery_mode(DELIVERY_MODE_PERSISTENT)
        .with_app_id("workflow-manager".into())
        .with_headers(headers);
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let confirmation = channel
        .basic_publish("".into(), short_string(queue), options, &request.delivery.body, properties)
        .await?
        .await?;
    // A returned message means that the queue was deleted.
    Ok(matches!(confirmation, Confirmation::Ack(None)))
}
