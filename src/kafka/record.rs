//! Parses the records of the reply topic.

use bytes::Bytes;
use rdkafka::message::{Headers, Message};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The longest key or header value that is read, in bytes; the same limit as for AMQP. A longer
/// one counts as absent.
const VALUE_BYTES_MAX: usize = 255;

/// The most headers that a readable record may have, so that parsing a record takes a bounded time.
const HEADERS_MAX: usize = 200;

/// The header of the correlation id in Spring for Apache Kafka.
pub(super) const SPRING_CORRELATION: &str = "kafka_correlationId";

/// The header of the reply topic in Spring for Apache Kafka.
pub(super) const SPRING_REPLY_TOPIC: &str = "kafka_replyTopic";

/// A parsed record of the reply topic.
pub(super) struct ReplyRecord {
    pub(super) partition: i32,
    pub(super) offset: i64,
    pub(super) content: Result<ReplyContent, UnreadableRecord>,
}

/// The content of a reply. Each field but the body is `None` if it is absent or invalid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ReplyContent {
    /// The header `correlation_id`, or else Spring's header, or else the key of the record.
    pub(super) correlation_id: Option<String>,
    /// The header `type`.
    pub(super) kind: Option<String>,
    /// The header `attempt`.
    pub(super) attempt: Option<u32>,
    /// The payload; empty if there is none.
    pub(super) body: Bytes,
}

/// A record that cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnreadableRecord {
    pub(super) reason: String,
    /// The size of its payload, in bytes.
    pub(super) bytes: usize,
}

impl ReplyRecord {
    pub(super) fn parse(message: &impl Message) -> ReplyRecord {
        let content = parse_content(message).map_err(|reason| UnreadableRecord {
            reason,
            bytes: message.payload().map_or(0, <[u8]>::len),
        });
        ReplyRecord { partition: message.partition(), offset: message.offset(), content }
    }
}

fn parse_content(message: &impl Message) -> Result<ReplyContent, String> {
    let mut content = message.headers().map_or(Ok(ReplyContent::default()), parse_headers)?;
    content.correlation_id = content.correlation_id.or_else(|| message.key().and_then(parse_text));
    content.body = message.payload().map(Bytes::copy_from_slice).unwrap_or_default();
    Ok(content)
}

fn parse_headers(headers: &impl Headers) -> Result<ReplyContent, String> {
    if headers.count() > HEADERS_MAX {
        return Err(format!("it has {} headers, more than {HEADERS_MAX}", headers.count()));
    }
    let (mut content, mut spring_correlation_id) = (ReplyContent::default(), None);
    for index in 0..headers.count() {
        // The library panics if the name of a header is not UTF-8.
        let header = catch_unwind(AssertUnwindSafe(|| headers.get(index)));
        let header = header.map_err(|_| "the name of a header is not UTF-8".to_owned())?;
        let value = header.value.and_then(parse_text);
        // Of several headers with the same name, the last one counts, as in other clients.
        match header.key {
            "correlation_id" => content.correlation_id = value,
            SPRING_CORRELATION => spring_correlation_id = value,
            "type" => content.kind = value,
            "attempt" => content.attempt = value.as_deref().and_then(parse_digits),
            _ => {}
        }
    }
    content.correlation_id = content.correlation_id.or(spring_correlation_id);
    Ok(content)
}

/// Parses a value that is UTF-8 and not too long.
fn parse_text(value: &[u8]) -> Option<String> {
    let is_short = value.len() <= VALUE_BYTES_MAX;
    is_short.then(|| std::str::from_utf8(value).ok().map(str::to_owned))?
}

/// Parses a number that consists of ASCII digits only.
fn parse_digits(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdkafka::Timestamp;
    use rdkafka::message::{Header, OwnedHeaders, OwnedMessage};

    /// Parses a record with this key, these headers and this body.
    fn parse_record(
        key: Option<&[u8]>,
        headers: &[(&str, Option<&[u8]>)],
        body: Option<&[u8]>,
    ) -> Result<ReplyContent, UnreadableRecord> {
        let headers = headers.iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
            headers.insert(Header { key, value: *value })
        });
        let (key, body) = (key.map(<[u8]>::to_vec), body.map(<[u8]>::to_vec));
        let time = Timestamp::NotAvailable;
        let message = OwnedMessage::new(body, key, "t".into(), time, 0, 7, Some(headers));
        ReplyRecord::parse(&message).content
    }

    #[test]
    fn a_reply_is_known_by_its_header_by_springs_or_by_its_key() {
        let correlation_id = |key: Option<&[u8]>, headers: &[(&str, Option<&[u8]>)]| {
            parse_record(key, headers, None).expect("readable").correlation_id
        };
        let own_header = ("correlation_id", Some(&b"a"[..]));
        let spring_header = ("kafka_correlationId", Some(&b"b"[..]));
        let both_headers = [spring_header, own_header];
        assert_eq!(correlation_id(Some(b"c"), &both_headers).as_deref(), Some("a"));
        assert_eq!(correlation_id(Some(b"c"), &[spring_header]).as_deref(), Some("b"));
        assert_eq!(correlation_id(Some(b"c"), &[]).as_deref(), Some("c"));
        assert_eq!(correlation_id(None, &[]), None);
    }

    #[test]
    fn invalid_headers_cost_at_most_their_record() {
        let long_value = [b'x'; VALUE_BYTES_MAX + 1];
        let ignored_headers: [(&str, Option<&[u8]>); 6] = [
            ("correlation_id", Some(&long_value)),
            ("type", Some(b"\xff\xfe")),
            ("attempt", Some(b"-1")),
            ("attempt", None),
            ("", None),
            ("job", Some(b"{}")),
        ];
        let reply = parse_record(Some(&long_value), &ignored_headers, None);
        assert_eq!(reply, Ok(ReplyContent::default()));
        let attempts = [("attempt", Some(&b"1"[..])), ("attempt", Some(&b"2"[..]))];
        assert_eq!(parse_record(None, &attempts, None).expect("readable").attempt, Some(2));
        let too_many_headers = vec![("a", None); HEADERS_MAX + 1];
        let error = parse_record(None, &too_many_headers, None).expect_err("too many headers");
        assert!(error.reason.contains("201 headers"));
        let reply = parse_record(None, &[("type", Some(b"error"))], Some(b"{}")).expect("readable");
        assert_eq!((reply.kind.as_deref(), &reply.body[..]), (Some("error"), &b"{}"[..]));
    }

    #[test]
    fn a_header_whose_name_is_no_text_makes_a_record_unreadable() {
        struct InvalidName;
        impl Headers for InvalidName {
            fn count(&self) -> usize {
                1
            }

            fn try_get(&self, _: usize) -> Option<Header<'_, &[u8]>> {
                panic!("as the library does")
            }
        }
        let reason = parse_headers(&InvalidName).expect_err("unreadable");
        assert!(reason.contains("UTF-8"), "{reason}");
    }
}
