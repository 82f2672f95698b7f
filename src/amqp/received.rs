//! Parses deliveries: converts their properties and headers, and finds unreadable messages.

use super::wire::{ORIGINAL_HEADER, REASON_HEADER};
use bus::{DeadLetter, Delivery, Settlement};
use bytes::Bytes;
use engine::{Sender, TraceContext};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Parses a message of the reply queue, an unreadable message of any queue, or what a call has in
/// common with replies. `manager_user` is the name with which the manager logs in.
pub(super) fn parse_reply(
    delivery: lapin::message::Delivery,
    settlement: Settlement,
    manager_user: &str,
) -> Delivery {
    let properties = &delivery.properties;
    // The broker verifies this property: it rejects a message with the name of another user.
    let user = properties.user_id().as_ref().map(|user| user.as_str());
    let (correlation_id, kind) =
        (text_property(properties.correlation_id()), text_property(properties.kind()));
    let dead_letter = properties.headers().as_ref().and_then(parse_dead_letter);
    let attempt =
        properties.headers().as_ref().and_then(|headers| parse_number_header(headers, "attempt"));
    // The manager itself sent the message that became a dead letter, and recognises it by its id.
    let message_id = dead_letter.as_ref().and_then(|_| text_property(properties.message_id()));
    let sender = match (user, &dead_letter) {
        (Some(user), Some(_)) if user == manager_user => Sender::Manager,
        (Some(user), _) => Sender::User(user.into()),
        (None, _) => Sender::Unknown,
    };
    let mut reply = Delivery::new(correlation_id, Bytes::from(delivery.data), settlement);
    reply.kind = kind;
    reply.attempt = attempt;
    reply.message_id = message_id;
    reply.dead_letter = dead_letter;
    reply.redelivered = delivery.redelivered;
    reply.sender = sender;
    reply
}

/// Parses a message of a workflow queue: a call. Of a reply the properties `reply_to`, `depth` and
/// the trace context are not read, and `message_id` only for a dead letter.
pub(super) fn parse_call(
    delivery: lapin::message::Delivery,
    settlement: Settlement,
    manager_user: &str,
) -> Delivery {
    let message_id = text_property(delivery.properties.message_id());
    let reply_to = text_property(delivery.properties.reply_to());
    let headers = delivery.properties.headers().as_ref();
    // A depth above `u16::MAX` exceeds every limit.
    let depth = headers
        .and_then(|headers| parse_number_header(headers, "depth"))
        .map(|depth| u16::try_from(depth).unwrap_or(u16::MAX));
    let trace = headers.and_then(parse_trace);
    let mut call = parse_reply(delivery, settlement, manager_user);
    call.message_id = message_id;
    call.reply_to = reply_to;
    call.depth = depth;
    call.trace = trace;
    call
}

/// Converts a property that is a short string.
fn text_property(property: &Option<ShortString>) -> Option<String> {
    property.as_ref().map(|text| text.as_str().to_owned())
}

/// What is known of an unreadable message.
pub(super) struct UnreadableContent {
    /// Why it is unreadable.
    pub(super) reason: String,
    /// Its original content header, which may be truncated; empty if it is unknown.
    pub(super) original_header: Vec<u8>,
}

/// A request to quarantine an unreadable message.
pub(super) struct QuarantineRequest {
    /// The queue from which the message was taken.
    pub(super) queue: Arc<str>,
    pub(super) unreadable: UnreadableContent,
    pub(super) delivery: Delivery,
}

/// Sends unreadable messages to the quarantine task. The messages are unsettled, so `amqp.prefetch`
/// bounds their number. The quarantine budget bounds their bytes.
pub(super) type QuarantineSender = mpsc::UnboundedSender<QuarantineRequest>;

/// The longest reason, in characters. A sender may set the header to any text.
const REASON_CHARS_MAX: usize = 200;

/// Returns what is known of a message if it is unreadable, because `wire` has replaced its header
/// or its sender has set the header with the reason.
#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "`wire` sets no other type of value, and what a sender sets is not trusted"
)]
pub(super) fn find_unreadable(delivery: &lapin::message::Delivery) -> Option<UnreadableContent> {
    let headers = delivery.properties.headers().as_ref()?.inner();
    let reason = match headers.get(REASON_HEADER)? {
        AMQPValue::LongString(text) => {
            String::from_utf8_lossy(text.as_bytes()).chars().take(REASON_CHARS_MAX).collect()
        }
        _ => "its headers say so".to_owned(),
    };
    let original_header = match headers.get(ORIGINAL_HEADER) {
        Some(AMQPValue::ByteArray(bytes)) => bytes.as_slice().to_vec(),
        _ => Vec::new(),
    };
    Some(UnreadableContent { reason, original_header })
}

/// Parses the latest dead-lettering in the header `x-death`. Returns `None` if the message was not
/// dead-lettered, or the header is invalid.
pub fn parse_dead_letter(headers: &FieldTable) -> Option<DeadLetter> {
    let AMQPValue::FieldArray(deaths) = headers.inner().get("x-death")? else { return None };
    // The broker adds each dead-lettering at the front.
    let AMQPValue::FieldTable(latest_death) = deaths.as_slice().first()? else { return None };
    let find_text = |key: &str| match latest_death.inner().get(key) {
        Some(AMQPValue::LongString(text)) => {
            Some(String::from_utf8_lossy(text.as_bytes()).into_owned())
        }
        Some(AMQPValue::ShortString(text)) => Some(text.as_str().to_owned()),
        #[allow(clippy::wildcard_enum_match_arm, reason = "no other type of value is a string")]
        _ => None,
    };
    Some(DeadLetter { queue: find_text("queue")?, reason: find_text("reason")? })
}

/// Parses the trace context in the headers.
fn parse_trace(headers: &FieldTable) -> Option<TraceContext> {
    TraceContext::parse(text_header(headers, "traceparent")?, text_header(headers, "tracestate"))
}

/// Returns the header with this name if it is a string of valid UTF-8.
#[allow(clippy::wildcard_enum_match_arm, reason = "no other type of value is a string")]
fn text_header<'h>(headers: &'h FieldTable, name: &str) -> Option<&'h str> {
    match headers.inner().get(name)? {
        AMQPValue::ShortString(text) => Some(text.as_str()),
        AMQPValue::LongString(text) => std::str::from_utf8(text.as_bytes()).ok(),
        _ => None,
    }
}

/// Parses a header that is an integer of any type, or a string of digits. Returns `None` if it is
/// missing, is of another type, or does not fit.
#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "no other type of value is a whole number or a string"
)]
pub fn parse_number_header(headers: &FieldTable, name: &str) -> Option<u32> {
    match headers.inner().get(name)? {
        AMQPValue::ShortShortInt(number) => u32::try_from(*number).ok(),
        AMQPValue::ShortShortUInt(number) => Some(u32::from(*number)),
        AMQPValue::ShortInt(number) => u32::try_from(*number).ok(),
        AMQPValue::ShortUInt(number) => Some(u32::from(*number)),
        AMQPValue::LongInt(number) => u32::try_from(*number).ok(),
        AMQPValue::LongUInt(number) => Some(*number),
        AMQPValue::LongLongInt(number) => u32::try_from(*number).ok(),
        AMQPValue::ShortString(text) => parse_digits(text.as_str()),
        AMQPValue::LongString(text) => parse_digits(std::str::from_utf8(text.as_bytes()).ok()?),
        _ => None,
    }
}

/// Parses a string that consists of digits, without sign or spaces.
fn parse_digits(text: &str) -> Option<u32> {
    let has_only_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    if has_only_digits { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lapin::types::LongString;

    fn parse_attempt(value: AMQPValue) -> Option<u32> {
        let mut headers = FieldTable::default();
        headers.insert("attempt".into(), value);
        parse_number_header(&headers, "attempt")
    }

    #[test]
    fn an_attempt_is_parsed_from_a_number_of_any_type_or_from_digits() {
        let long_string = |text: &str| AMQPValue::LongString(LongString::from(text));
        let accepted = [
            AMQPValue::ShortShortInt(7),
            AMQPValue::ShortShortUInt(7),
            AMQPValue::ShortInt(7),
            AMQPValue::ShortUInt(7),
            AMQPValue::LongInt(7),
            AMQPValue::LongUInt(7),
            AMQPValue::LongLongInt(7),
            AMQPValue::ShortString(ShortString::from("7")),
            long_string("7"),
        ];
        accepted
            .into_iter()
            .for_each(|value| assert_eq!(parse_attempt(value.clone()), Some(7), "{value:?}"));
        let rejected = [
            AMQPValue::LongInt(-1),
            AMQPValue::LongLongInt(1 << 40),
            AMQPValue::Double(7.0),
            AMQPValue::Boolean(true),
            AMQPValue::Void,
        ];
        let rejected_texts = ["", "none", "+7", " 7", "7.0", "99999999999"].map(long_string);
        rejected
            .into_iter()
            .chain(rejected_texts)
            .for_each(|value| assert_eq!(parse_attempt(value.clone()), None, "{value:?}"));
    }
}
