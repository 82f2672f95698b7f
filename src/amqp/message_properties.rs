//! The properties of the messages that the manager publishes.

use super::queues::short_string;
use base::clock;
use bus::{Addressee, HeaderValue, Publication};
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use std::time::Duration;

/// The delivery mode of messages that the broker stores on disk.
const DELIVERY_MODE_PERSISTENT: u8 = 2;

/// Formats the property `expiration`, in milliseconds. Returns `None` if the broker would not
/// accept it, because it exceeds 32 bits.
fn format_expiration(remaining: Duration) -> Option<ShortString> {
    let remaining_ms = u32::try_from(remaining.as_millis()).ok()?;
    // A message with the expiration 0 expires before any worker can receive it.
    Some(short_string(remaining_ms.max(1).to_string()))
}

/// Builds the properties of a message (docs/reference/worker-protocol.md). `user` is the name with
/// which the manager logs in.
pub(super) fn build_properties(
    message: &Publication,
    reply_queue: &str,
    user: &str,
) -> BasicProperties {
    let mut headers = FieldTable::default();
    for header in &message.headers {
        let value = match &header.value {
            HeaderValue::Text(text) => AMQPValue::LongString(LongString::from(&**text)),
            HeaderValue::Number(number) => AMQPValue::LongLongInt(*number),
        };
        headers.insert(header.name.into(), value);
    }
    let mut properties = BasicProperties::default()
        .with_content_type("application/json".into())
        .with_delivery_mode(DELIVERY_MODE_PERSISTENT)
        .with_message_id(short_string(&*message.id))
        .with_app_id("workflow-manager".into())
        .with_timestamp(message.timestamp_s)
        .with_headers(headers);
    if let Some(correlation_id) = &message.correlation_id {
        properties = properties.with_correlation_id(short_string(&**correlation_id));
    }
    if message.addressee == Addressee::Worker {
        properties = properties.with_reply_to(short_string(reply_queue));
    }
    if message.sets_user_id {
        properties = properties.with_user_id(short_string(user));
    }
    if let Some(kind) = message.kind {
        properties = properties.with_type(kind.into());
    }
    if let Some(priority) = message.priority {
        properties = properties.with_priority(priority);
    }
    if let Some(expiration) =
        message.lifetime.remaining(clock::timer_now()).and_then(format_expiration)
    {
        properties = properties.with_expiration(expiration);
    }
    properties
}
