//! The headers of step messages, and the size of their records.

use super::super::record::{SPRING_CORRELATION, SPRING_REPLY_TOPIC};
use bus::{HeaderValue, Publication};
use bytes::Bytes;
use rdkafka::message::{Header, OwnedHeaders};

/// An upper bound of the bytes of a record and its batch besides key, headers and value.
const RECORD_OVERHEAD_BYTES: usize = 128;

/// The bytes of the two length prefixes of a header: variable-length integers of two bytes, which
/// suffice for a name or value of up to 8,191 bytes.
const HEADER_OVERHEAD_BYTES: usize = 4;

/// Returns the record headers of a message: its properties and its own headers.
pub(super) fn to_headers(message: &Publication, reply_topic: &str) -> OwnedHeaders {
    names_and_values(message, reply_topic)
        .iter()
        .fold(OwnedHeaders::new(), |headers, (key, value)| {
            headers.insert(Header { key, value: Some(&value[..]) })
        })
}

/// Returns an upper bound of the size that brokers count for a message, in bytes.
pub(super) fn message_size(message: &Publication, reply_topic: &str) -> usize {
    let header_bytes: usize = names_and_values(message, reply_topic)
        .iter()
        .map(|(name, value)| name.len() + value.len() + HEADER_OVERHEAD_BYTES)
        .sum();
    let key_bytes = message.correlation_id.as_deref().map_or(0, str::len);
    message.body.len() + key_bytes + header_bytes + RECORD_OVERHEAD_BYTES
}

/// Returns the names and values of the headers. Properties have the same names as on every bus;
/// Spring's names for the correlation id and the reply topic are added.
fn names_and_values<'m>(message: &'m Publication, reply_topic: &'m str) -> Vec<(&'m str, Bytes)> {
    let to_bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    let mut headers = vec![
        ("message_id", to_bytes(&message.id)),
        ("reply_to", to_bytes(reply_topic)),
        ("content_type", Bytes::from_static(b"application/json")),
        ("app_id", Bytes::from_static(b"workflow-manager")),
        (SPRING_REPLY_TOPIC, to_bytes(reply_topic)),
    ];
    if let Some(id) = &message.correlation_id {
        headers.extend([("correlation_id", to_bytes(id)), (SPRING_CORRELATION, to_bytes(id))]);
    }
    headers.extend(message.kind.map(|kind| ("type", to_bytes(kind))));
    let priority = message.priority.map(|priority| ("priority", to_bytes(&priority.to_string())));
    headers.extend(priority);
    headers.extend(message.headers.iter().map(|header| match &header.value {
        HeaderValue::Text(text) => (header.name, to_bytes(text)),
        HeaderValue::Number(number) => (header.name, to_bytes(&number.to_string())),
    }));
    headers
}
