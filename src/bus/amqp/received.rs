//! Parses deliveries: their properties and headers.

use super::wire::{ORIGINAL, REASON};
use crate::bus::{DeadLetter, Delivery, Settlement};
use crate::engine::{Sender, TraceContext};
use bytes::Bytes;
use lapin::types::{AMQPValue, FieldTable};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Parses a message of the reply queue. `manager` is the manager's own user.
pub(super) fn received(
    delivery: lapin::message::Delivery,
    settlement: Settlement,
    manager: &str,
) -> Delivery {
    let properties = &delivery.properties;
    let text = |property: &Option<lapin::types::ShortString>| {
        property.as_ref().map(|text| text.as_str().to_owned())
    };
    // The broker verifies this property: it refuses a message of one user in the name of another.
    let user = properties.user_id().as_ref().map(|user| user.as_str());
    let (correlation_id, kind) = (text(properties.correlation_id()), text(properties.kind()));
    let dead_letter = properties.headers().as_ref().and_then(dead_letter);
    let attempt = properties.headers().as_ref().and_then(|headers| whole(headers, "attempt"));
    // A dead letter was sent by the manager. Without its headers it is recognised by its id.
    let message_id = dead_letter.as_ref().and_then(|_| text(properties.message_id()));
    let from = match (user, &dead_letter) {
        (Some(user), Some(_)) if user == manager => Sender::Manager,
        (Some(user), _) => Sender::User(user.into()),
        (None, _) => Sender::Unknown,
    };
    let mut received = Delivery::new(correlation_id, Bytes::from(delivery.data), settlement);
    received.kind = kind;
    received.attempt = attempt;
    received.message_id = message_id;
    received.dead_letter = dead_letter;
    received.redelivered = delivery.redelivered;
    received.from = from;
    received
}

/// Parses a message of a workflow's queue, with the properties that only a call has.
pub(super) fn called(
    delivery: lapin::message::Delivery,
    settlement: Settlement,
    manager: &str,
) -> Delivery {
    let text = |property: &Option<lapin::types::ShortString>| {
        property.as_ref().map(|text| text.as_str().to_owned())
    };
    let (message_id, reply_to) =
        (text(delivery.properties.message_id()), text(delivery.properties.reply_to()));
    let headers = delivery.properties.headers().as_ref();
    let depth = headers.and_then(|headers| whole(headers, "depth"));
    let trace = headers.and_then(trace_in);
    // A depth beyond `u16` is deeper than any limit.
    let depth = depth.map(|depth| u16::try_from(depth).unwrap_or(u16::MAX));
    Delivery { message_id, reply_to, depth, trace, ..received(delivery, settlement, manager) }
}

/// What is known of a message that cannot be read.
pub(super) struct Unreadable {
    pub(super) reason: String,
    /// Its content header, as far as it was preserved.
    pub(super) original: Vec<u8>,
}

/// An unreadable message on its way to the quarantine queue.
pub(super) struct Aside {
    pub(super) queue: Arc<str>,
    pub(super) unreadable: Unreadable,
    pub(super) delivery: Delivery,
}

/// Sends unreadable messages to the quarantine task. They are not settled yet, so `amqp.prefetch`
/// bounds their number; the quarantine budget bounds their bytes.
pub(super) type AsideSender = mpsc::UnboundedSender<Aside>;

/// The longest reason in characters, for the sender may set the header to a long text.
const REASON_CHARS_MAX: usize = 200;

/// Returns what is known of this message if `wire` replaced its header.
#[allow(clippy::wildcard_enum_match_arm, reason = "no other type of value is what `wire` sets")]
pub(super) fn unreadable(delivery: &lapin::message::Delivery) -> Option<Unreadable> {
    let headers = delivery.properties.headers().as_ref()?.inner();
    let reason = match headers.get(REASON)? {
        AMQPValue::LongString(text) => {
            String::from_utf8_lossy(text.as_bytes()).chars().take(REASON_CHARS_MAX).collect()
        }
        _ => "its headers say so".to_owned(),
    };
    let original = match headers.get(ORIGINAL) {
        Some(AMQPValue::ByteArray(bytes)) => bytes.as_slice().to_vec(),
        _ => Vec::new(),
    };
    Some(Unreadable { reason, original })
}

/// Parses the header `x-death`: a list, the latest death first.
pub fn dead_letter(headers: &FieldTable) -> Option<DeadLetter> {
    let AMQPValue::FieldArray(deaths) = headers.inner().get("x-death")? else { return None };
    let AMQPValue::FieldTable(latest) = deaths.as_slice().first()? else { return None };
    let text = |key: &str| match latest.inner().get(key) {
        Some(AMQPValue::LongString(text)) => {
            Some(String::from_utf8_lossy(text.as_bytes()).into_owned())
        }
        Some(AMQPValue::ShortString(text)) => Some(text.as_str().to_owned()),
        #[allow(clippy::wildcard_enum_match_arm, reason = "no other type of value is a text")]
        _ => None,
    };
    Some(DeadLetter { queue: text("queue")?, reason: text("reason")? })
}

/// Parses the trace context that a message carries.
fn trace_in(headers: &FieldTable) -> Option<TraceContext> {
    TraceContext::read(text_in(headers, "traceparent")?, text_in(headers, "tracestate"))
}

#[allow(clippy::wildcard_enum_match_arm, reason = "no other type of value is a text")]
fn text_in<'h>(headers: &'h FieldTable, name: &str) -> Option<&'h str> {
    match headers.inner().get(name)? {
        AMQPValue::ShortString(text) => Some(text.as_str()),
        AMQPValue::LongString(text) => std::str::from_utf8(text.as_bytes()).ok(),
        _ => None,
    }
}

/// Parses a header that is a whole number of any type, or digits as text.
#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "no other type of value is a whole number or a text"
)]
pub(super) fn whole(headers: &FieldTable, name: &str) -> Option<u32> {
    match headers.inner().get(name)? {
        AMQPValue::ShortShortInt(number) => u32::try_from(*number).ok(),
        AMQPValue::ShortShortUInt(number) => Some(u32::from(*number)),
        AMQPValue::ShortInt(number) => u32::try_from(*number).ok(),
        AMQPValue::ShortUInt(number) => Some(u32::from(*number)),
        AMQPValue::LongInt(number) => u32::try_from(*number).ok(),
        AMQPValue::LongUInt(number) => Some(*number),
        AMQPValue::LongLongInt(number) => u32::try_from(*number).ok(),
        AMQPValue::ShortString(text) => digits(text.as_str()),
        AMQPValue::LongString(text) => digits(std::str::from_utf8(text.as_bytes()).ok()?),
        _ => None,
    }
}

/// Parses digits alone, without sign or space.
fn digits(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use lapin::types::{LongString, ShortString};

    fn told(value: AMQPValue) -> Option<u32> {
        let mut headers = FieldTable::default();
        headers.insert("attempt".into(), value);
        whole(&headers, "attempt")
    }

    #[test]
    fn an_attempt_is_told_by_a_number_of_any_type_or_by_digits() {
        let text = |text: &str| AMQPValue::LongString(LongString::from(text));
        let taken = [
            AMQPValue::ShortShortInt(7),
            AMQPValue::ShortShortUInt(7),
            AMQPValue::ShortInt(7),
            AMQPValue::ShortUInt(7),
            AMQPValue::LongInt(7),
            AMQPValue::LongUInt(7),
            AMQPValue::LongLongInt(7),
            AMQPValue::ShortString(ShortString::from("7")),
            text("7"),
        ];
        taken.into_iter().for_each(|value| assert_eq!(told(value.clone()), Some(7), "{value:?}"));
        let refused = [
            AMQPValue::LongInt(-1),
            AMQPValue::LongLongInt(1 << 40),
            AMQPValue::Double(7.0),
            AMQPValue::Boolean(true),
            AMQPValue::Void,
        ];
        let texts = ["", "none", "+7", " 7", "7.0", "99999999999"].map(text);
        refused
            .into_iter()
            .chain(texts)
            .for_each(|value| assert_eq!(told(value.clone()), None, "{value:?}"));
    }
}
