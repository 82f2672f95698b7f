//! Quarantines messages that cannot be read: it moves them to a queue of their own. Each leaves the
//! queue that it came on only when the broker has confirmed the copy.
//!
//! The quarantine has its own connection, opened when needed, so that a broker that blocks
//! publishers cannot stop the acks.

use super::connection::{LastReason, Pauses, channel_error, close, fail_point, millis};
use super::queues::{Found, Queues, short};
use super::received::{Aside, Unreadable};
use super::shapes::Shape;
use super::shared::Shared;
use super::wire::{ORIGINAL, Property, REASON, property};
use crate::bus::BusEvent;
use crate::settings::{UnreadableMessages, unreadable_queue};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
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
const KEPT_MAX: i64 = 10_000;

/// How many bytes of bodies the quarantine queue holds. The oldest are dropped first.
const KEPT_BYTES_MAX: i64 = 1 << 30;

/// The header that names the queue that the message came on.
const QUEUE: &str = "x-workflow-manager-queue";

const DELIVERY_MODE_PERSISTENT: u8 = 2;

/// Why messages were not quarantined.
enum NotPutAside {
    /// Another attempt may help.
    Lost(String),
    /// The broker refuses them, for this reason of its own.
    Refused(String),
}

/// Quarantines messages until the bus is gone.
pub(super) async fn run(shared: Rc<Shared>, mut inbox: mpsc::UnboundedReceiver<Aside>) {
    let mut pauses = Pauses::new(shared.settings.reconnect_min, shared.settings.reconnect_max);
    let (mut last_reason, mut batch) = (LastReason::default(), Vec::with_capacity(BATCH_MAX));
    while inbox.recv_many(&mut batch, BATCH_MAX).await > 0 {
        if shared.settings.unreadable == UnreadableMessages::Drop {
            batch.drain(..).for_each(|aside| done(&shared, aside, false));
            shared.aside_room.give_back();
            continue;
        }
        while !batch.is_empty() {
            match Box::pin(put_aside(&shared, &mut batch, &mut inbox)).await {
                Ok(()) => {
                    pauses.reset();
                    last_reason = LastReason::default();
                }
                Err(NotPutAside::Refused(said)) => {
                    let queue = unreadable_queue(&shared.settings.reply_queue);
                    tracing::error!(
                        queue,
                        said,
                        messages = batch.len(),
                        "the broker does not let unreadable messages be put aside: they are dropped"
                    );
                    batch.drain(..).for_each(|aside| done(&shared, aside, false));
                }
                Err(NotPutAside::Lost(reason)) => {
                    batch.retain(|aside| !aside.delivery.is_void());
                    let pause = pauses.next();
                    if last_reason.is_news(&reason) {
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
        shared.aside_room.give_back();
    }
}

/// Reports a message, and acknowledges it.
fn done(shared: &Shared, aside: Aside, is_kept: bool) {
    let Aside { queue, unreadable: Unreadable { reason, original }, delivery } = aside;
    let correlation_id =
        property(&original, Property::CorrelationId).map(std::borrow::Cow::into_owned);
    (shared.sink)(BusEvent::Unreadable {
        queue,
        reason,
        correlation_id,
        bytes: delivery.body.len(),
        is_kept,
    });
    delivery.ack();
}

/// Opens a connection, quarantines this batch, and then what arrives soon after it.
async fn put_aside(
    shared: &Shared,
    batch: &mut Vec<Aside>,
    inbox: &mut mpsc::UnboundedReceiver<Aside>,
) -> Result<(), NotPutAside> {
    let connection =
        Rc::new(shared.address.open("unreadable messages").await.map_err(NotPutAside::Lost)?);
    let queue = unreadable_queue(&shared.settings.reply_queue);
    let explain = |error: lapin::Error| match channel_error(&error) {
        Some((_, said)) => NotPutAside::Refused(said.to_owned()),
        None => NotPutAside::Lost(shared.address.explain(&error)),
    };
    let publishing = async {
        declare(&Queues::new(connection.clone()), &queue).await.map_err(|found| match found {
            Found::Lost(error) => explain(error),
            Found::Refused(said) => NotPutAside::Refused(said),
            Found::Locked => {
                NotPutAside::Refused("it is an exclusive queue of another connection".to_owned())
            }
            Found::There { .. } | Found::Missing => {
                NotPutAside::Lost(format!("the queue \"{queue}\" was deleted"))
            }
        })?;
        let channel = connection.create_channel().await.map_err(explain)?;
        channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(explain)?;
        let header_bytes_max = connection.configuration().frame_max() as usize / 2;
        loop {
            // A stale message was requeued, and is delivered again.
            batch.retain(|aside| !aside.delivery.is_void());
            let sent = batch.iter().map(|aside| publish(&channel, &queue, aside, header_bytes_max));
            let taken = try_join_all(sent).await.map_err(explain)?;
            if !taken.iter().all(|is_taken| *is_taken) {
                // The confirmed ones will be in quarantine twice, which is better than not at all.
                return Err(NotPutAside::Lost(format!(
                    "the broker did not take all messages for the queue \"{queue}\""
                )));
            }
            batch.drain(..).for_each(|aside| done(shared, aside, true));
            shared.aside_room.give_back();
            // The time is over, or the inbox is closed: nothing more arrives for now.
            if tokio::time::timeout(IDLE_MAX, inbox.recv_many(batch, BATCH_MAX))
                .await
                .unwrap_or_default()
                == 0
            {
                return Ok(());
            }
        }
    };
    let put = publishing.await;
    close(&connection).await;
    put
}

/// Declares the quarantine queue if it is missing. An existing queue may have other arguments; its
/// owner bounds it then.
async fn declare(queues: &Queues, queue: &str) -> Result<(), Found> {
    let found = match queues.look(queue).await {
        Found::Missing => {
            let mut arguments = FieldTable::default();
            arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(KEPT_MAX));
            arguments.insert("x-max-length-bytes".into(), AMQPValue::LongLongInt(KEPT_BYTES_MAX));
            queues.declare(queue, Shape { arguments, ..Shape::default() }).await
        }
        found @ (Found::There { .. } | Found::Locked | Found::Refused(_) | Found::Lost(_)) => found,
    };
    if matches!(found, Found::There { .. }) { Ok(()) } else { Err(found) }
}

/// Publishes a message, and returns whether the broker acked it.
async fn publish(
    channel: &Channel,
    queue: &str,
    aside: &Aside,
    header_bytes_max: usize,
) -> lapin::Result<bool> {
    fail_point("amqp::aside")?;
    let Unreadable { reason, original } = &aside.unreadable;
    // In base64 the header is a third longer, and its sender may have filled a whole frame with it.
    let original = STANDARD.encode(&original[..original.len().min(header_bytes_max)]);
    let mut headers = FieldTable::default();
    for (name, text) in [(REASON, reason.as_str()), (ORIGINAL, &original), (QUEUE, &aside.queue)] {
        headers.insert(name.into(), AMQPValue::LongString(LongString::from(text)));
    }
    let properties = BasicProperties::default()
        .with_delivery_mode(DELIVERY_MODE_PERSISTENT)
        .with_app_id("workflow-manager".into())
        .with_headers(headers);
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let confirmation = channel
        .basic_publish("".into(), short(queue), options, &aside.delivery.body, properties)
        .await?
        .await?;
    // A returned message means that the queue was deleted.
    Ok(matches!(confirmation, Confirmation::Ack(None)))
}
