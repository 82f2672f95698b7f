//! Quarantines unreadable messages: moves them to a separate queue. A message is acknowledged after
//! the broker has confirmed its copy. Without a copy it is acknowledged, and so dropped, only if
//! `amqp.unreadable` is `drop` or the broker refuses the copy.
//!
//! The quarantine has its own connection, which is opened on demand. So a broker that blocks
//! publishers cannot block the acks.

use super::addresses::Reconnects;
use super::connection::{BrokerAddress, LastReason, channel_error, close, fail_point, millis};
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
use std::borrow::Cow;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::mpsc;

/// The most messages in one batch.
const BATCH_MAX: usize = 100;

/// How long the connection stays open after the last message.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// The most messages in the quarantine queue. The oldest are dropped first.
const QUARANTINED_MAX: i64 = 10_000;

/// The most bytes of bodies in the quarantine queue. The oldest are dropped first.
const QUARANTINED_BYTES_MAX: i64 = 1 << 30;

/// The header that names the queue from which the message was taken.
const QUEUE_HEADER: &str = "x-workflow-manager-queue";

/// The delivery mode of messages that the broker stores on disk.
const DELIVERY_MODE_PERSISTENT: u8 = 2;

/// Why messages were not quarantined.
enum QuarantineError {
    /// The connection or the queue was lost, or the broker nacked a copy, for this reason. Another
    /// attempt may succeed.
    Temporary(String),
    /// The broker refuses them, for this reason.
    Refused(String),
}

/// Quarantines messages until the task is aborted, which the bus does when it is dropped.
pub(super) async fn run(
    state: Rc<AmqpState>,
    mut requests: mpsc::UnboundedReceiver<QuarantineRequest>,
) {
    let mut reconnects =
        Reconnects::new(state.settings.reconnect_min, state.settings.reconnect_max);
    let (mut last_reason, mut batch) = (LastReason::default(), Vec::with_capacity(BATCH_MAX));
    while requests.recv_many(&mut batch, BATCH_MAX).await > 0 {
        if state.settings.unreadable == UnreadableMessages::Drop {
            batch.drain(..).for_each(|request| report_and_ack(&state, request, false));
            state.quarantine_budget.requeue_deferred();
            continue;
        }
        while !batch.is_empty() {
            let address = state.addresses.current();
            let quarantining = quarantine_batches(&state, &address, &mut batch, &mut requests);
            match Box::pin(quarantining).await {
                Ok(()) => {
                    reconnects.reset();
                    last_reason = LastReason::default();
                }
                Err(QuarantineError::Refused(reason)) => {
                    let queue = quarantine_queue(&state.settings.reply_queue);
                    tracing::error!(
                        queue,
                        reason,
                        messages = batch.len(),
                        "the broker does not let unreadable messages be quarantined: they are \
                         dropped"
                    );
                    batch.drain(..).for_each(|request| report_and_ack(&state, request, false));
                }
                Err(QuarantineError::Temporary(reason)) => {
                    batch.retain(|request| !request.delivery.is_stale());
                    let delay = reconnects.next_delay(&state.addresses, &address);
                    if last_reason.record_if_new(&reason) {
                        tracing::warn!(
                            reason,
                            messages = batch.len(),
                            retry_in_ms = millis(delay),
                            "unreadable messages are not quarantined"
                        );
                    } else {
                        tracing::debug!(
                            reason,
                            messages = batch.len(),
                            retry_in_ms = millis(delay),
                            "unreadable messages are not quarantined"
                        );
                    }
                    tokio::time::sleep(delay).await;
                }
            }
        }
        state.quarantine_budget.requeue_deferred();
    }
}

/// Reports an unreadable message, and acknowledges it.
fn report_and_ack(state: &AmqpState, request: QuarantineRequest, is_quarantined: bool) {
    let UnreadableContent { reason, original_header } = request.unreadable;
    let correlation_id =
        read_property(&original_header, Property::CorrelationId).map(Cow::into_owned);
    (state.sink)(BusEvent::Unreadable {
        queue: request.queue,
        reason,
        correlation_id,
        bytes: request.delivery.body.len(),
        is_quarantined,
    });
    request.delivery.ack();
}

/// Opens a connection, and quarantines this batch and further messages until none has arrived for
/// [`IDLE_TIMEOUT`].
///
/// # Errors
///
/// Returns an error if a batch could not be quarantined as a whole. `batch` keeps its messages.
async fn quarantine_batches(
    state: &AmqpState,
    address: &BrokerAddress,
    batch: &mut Vec<QuarantineRequest>,
    requests: &mut mpsc::UnboundedReceiver<QuarantineRequest>,
) -> Result<(), QuarantineError> {
    let connection =
        Rc::new(address.open("unreadable messages").await.map_err(QuarantineError::Temporary)?);
    let queue = quarantine_queue(&state.settings.reply_queue);
    let explain = |error: lapin::Error| match channel_error(&error) {
        Some((_, broker_text)) => QuarantineError::Refused(broker_text.to_owned()),
        None => QuarantineError::Temporary(address.explain(&error)),
    };
    let publishing = async {
        ensure_queue(&QueueDeclarer::new(connection.clone()), &queue).await.map_err(|check| {
            match check {
                QueueCheck::Lost(error) => explain(error),
                QueueCheck::Unavailable(broker_text) => QuarantineError::Temporary(broker_text),
                QueueCheck::Refused(broker_text) => QuarantineError::Refused(broker_text),
                QueueCheck::Exclusive => QuarantineError::Refused(
                    "it is an exclusive queue of another connection".to_owned(),
                ),
                QueueCheck::Exists { .. } | QueueCheck::Missing => {
                    QuarantineError::Temporary(format!("the queue \"{queue}\" was deleted"))
                }
            }
        })?;
        let channel = connection.create_channel().await.map_err(explain)?;
        channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(explain)?;
        let header_bytes_max = connection.configuration().frame_max() as usize / 2;
        loop {
            // The broker has requeued stale messages, so they are not quarantined here.
            batch.retain(|request| !request.delivery.is_stale());
            let confirms =
                batch.iter().map(|request| publish(&channel, &queue, request, header_bytes_max));
            let acks = try_join_all(confirms).await.map_err(explain)?;
            if !acks.iter().all(|is_ack| *is_ack) {
                // The whole batch is tried again. To quarantine the acked messages twice is better
                // than to lose one.
                return Err(QuarantineError::Temporary(format!(
                    "the broker did not accept all messages for the queue \"{queue}\""
                )));
            }
            batch.drain(..).for_each(|request| report_and_ack(state, request, true));
            state.quarantine_budget.requeue_deferred();
            let received =
                tokio::time::timeout(IDLE_TIMEOUT, requests.recv_many(batch, BATCH_MAX)).await;
            // The connection has been idle for too long. The channel does not close, because
            // `state` has a sender.
            if matches!(received, Err(_) | Ok(0)) {
                return Ok(());
            }
        }
    };
    let result = publishing.await;
    close(&connection).await;
    result
}

/// Declares the quarantine queue if it is missing. An existing queue keeps its own limits.
///
/// # Errors
///
/// Returns the result of the check if the queue cannot be used.
async fn ensure_queue(queues: &QueueDeclarer, queue: &str) -> Result<(), QueueCheck> {
    let check = match queues.check(queue).await {
        QueueCheck::Missing => {
            let mut arguments = FieldTable::default();
            arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(QUARANTINED_MAX));
            arguments
                .insert("x-max-length-bytes".into(), AMQPValue::LongLongInt(QUARANTINED_BYTES_MAX));
            queues.declare(queue, QueueProperties { arguments, ..QueueProperties::default() }).await
        }
        check @ (QueueCheck::Exists { .. }
        | QueueCheck::Exclusive
        | QueueCheck::Unavailable(_)
        | QueueCheck::Refused(_)
        | QueueCheck::Lost(_)) => check,
    };
    if matches!(check, QueueCheck::Exists { .. }) { Ok(()) } else { Err(check) }
}

/// Publishes the copy of a message. Returns whether the broker acked it.
async fn publish(
    channel: &Channel,
    queue: &str,
    request: &QuarantineRequest,
    header_bytes_max: usize,
) -> lapin::Result<bool> {
    fail_point("amqp::quarantine")?;
    let UnreadableContent { reason, original_header } = &request.unreadable;
    // Base64 makes the header a third longer, and it may have filled a whole frame already.
    let encoded_original =
        STANDARD.encode(&original_header[..original_header.len().min(header_bytes_max)]);
    let mut headers = FieldTable::default();
    for (name, text) in [
        (REASON_HEADER, reason.as_str()),
        (ORIGINAL_HEADER, &encoded_original),
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
    // An ack that carries a returned message means that the queue was deleted.
    Ok(matches!(confirmation, Confirmation::Ack(None)))
}
