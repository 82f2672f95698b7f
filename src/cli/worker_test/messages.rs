//! The messages that the stub manager sends to the worker.

use super::super::error::ClientError;
use base::clock;
use engine::JobId;
use serde_json::Value;

/// The name of the workflow in all messages.
pub(super) const WORKFLOW: &str = "worker-test";

/// The nesting depth of the deep message, counting its outer object.
const NESTING_DEPTH: usize = 100;

/// The size of the field that is added to the large message, in bytes.
const LARGE_BYTES: usize = 1 << 20;

/// The values of the round-trip message, besides its marker. The worker must return each unchanged:
/// an integer above 2^53, a decimal with a trailing zero, and an escaped null character. A program
/// that parses numbers as floating point, or unescapes strings, changes them.
pub(super) const ROUND_TRIP_VALUES: [&str; 3] = ["9007199254740993", "0.10", "\\u0000"];

/// The keys of the round-trip message, in order. It is not alphabetical, so that sorting is
/// noticed. The value of the first key is the marker.
pub(super) const ROUND_TRIP_KEYS: [&str; 4] =
    ["\"z-mark\"", "\"y-long\"", "\"b-decimal\"", "\"a-null\""];

/// A message to a worker.
#[derive(Clone, Debug)]
pub(super) struct TestMessage {
    /// The number of the message in the test, from 0.
    pub(super) number: usize,
    /// The id of an invented job, unique to the message.
    pub(super) job: JobId,
    pub(super) queue: String,
    pub(super) attempt: u32,
    pub(super) body: Vec<u8>,
    /// Whether it names a queue for the reply. AMQP only.
    pub(super) has_reply_to: bool,
    /// Whether it has headers that the protocol does not define.
    pub(super) has_extra_headers: bool,
}

impl TestMessage {
    /// Returns the correlation id: `<job>:<queue>`.
    pub(super) fn correlation_id(&self) -> String {
        format!("{}:{}", self.job, self.queue)
    }

    /// Returns a W3C trace context that is derived from the job's id.
    pub(super) fn traceparent(&self) -> String {
        let trace_id = self.job.to_string().replace('-', "");
        let parent_id = &trace_id[..16];
        format!("00-{trace_id}-{parent_id}-01")
    }

    /// Returns the message id: the correlation id with the attempt.
    pub(super) fn id(&self) -> String {
        format!("{}:{}", self.correlation_id(), self.attempt)
    }
}

/// Returns the attempt of a message: 1, 2 or 3. It varies, so that a worker cannot pass by always
/// replying with the same number.
pub(super) fn attempt_of(number: usize) -> u32 {
    [1, 2, 3][number % 3]
}

/// Makes messages, most of them from the body of one that the worker is able to process.
pub(super) struct MessageFactory {
    queue: String,
    /// The text of a JSON object (`--message`), without surrounding whitespace.
    valid_body: String,
    /// How many messages were made: the number of the next one.
    count: usize,
}

impl MessageFactory {
    /// Makes a factory for a queue, with the body of a message that the worker is able to process.
    ///
    /// # Errors
    ///
    /// Returns an error if the body is not a JSON object.
    pub(super) fn new(queue: &str, valid_body: &str) -> Result<MessageFactory, ClientError> {
        parse_object("--message", valid_body)?;
        Ok(MessageFactory {
            queue: queue.to_owned(),
            valid_body: valid_body.trim().to_owned(),
            count: 0,
        })
    }

    /// Makes a message with this body.
    pub(super) fn with_body(&mut self, body: impl Into<Vec<u8>>) -> TestMessage {
        let number = self.count;
        self.count += 1;
        TestMessage {
            number,
            job: clock::new_id(),
            queue: self.queue.clone(),
            attempt: attempt_of(number),
            body: body.into(),
            has_reply_to: true,
            has_extra_headers: false,
        }
    }

    /// Makes a message that the worker is able to process.
    pub(super) fn valid(&mut self) -> TestMessage {
        self.with_body(self.valid_body.clone())
    }

    /// Makes a valid message with the additional field `worker-test`.
    fn with_extra_field(&mut self, value: &str) -> TestMessage {
        let members = self.valid_body.strip_suffix('}').unwrap_or(&self.valid_body).trim_end();
        let comma = if members.ends_with('{') { "" } else { "," };
        self.with_body(format!("{members}{comma}\"worker-test\":{value}}}"))
    }

    /// Makes a message that nests `NESTING_DEPTH` levels deep.
    pub(super) fn deep(&mut self) -> TestMessage {
        let levels = NESTING_DEPTH - 1;
        self.with_extra_field(&format!("{}{}", "[".repeat(levels), "]".repeat(levels)))
    }

    /// Makes a message that is slightly larger than `LARGE_BYTES`.
    pub(super) fn large(&mut self) -> TestMessage {
        self.with_extra_field(&format!("\"{}\"", "x".repeat(LARGE_BYTES)))
    }

    /// Makes the round-trip message. Returns it with its marker, a unique text by which a returned
    /// input is recognized.
    pub(super) fn round_trip(&mut self) -> (TestMessage, String) {
        let marker = clock::new_id().to_string();
        let values = [
            &format!("\"{marker}\""),
            ROUND_TRIP_VALUES[0],
            ROUND_TRIP_VALUES[1],
            &format!("\"{}\"", ROUND_TRIP_VALUES[2]),
        ];
        let pairs: Vec<String> = ROUND_TRIP_KEYS
            .iter()
            .zip(values)
            .map(|(key, value)| format!("{key}:{value}"))
            .collect();
        (self.with_extra_field(&format!("{{{}}}", pairs.join(","))), marker)
    }
}

/// Parses the argument of an option as a JSON object.
pub(super) fn parse_object(option: &str, text: &str) -> Result<Value, ClientError> {
    let value: Value = serde_json::from_str(text)
        .map_err(|error| ClientError::Usage(format!("{option} is not JSON: {error}")))?;
    if value.is_object() {
        Ok(value)
    } else {
        Err(ClientError::Usage(format!("{option} must be a JSON object")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extra_field_leaves_the_message_unchanged() {
        let mut messages = MessageFactory::new("q", " {\"a\": 1.0 } ").unwrap();
        let text = |message: TestMessage| String::from_utf8(message.body).unwrap();
        assert_eq!(text(messages.valid()), "{\"a\": 1.0 }");
        assert!(text(messages.deep()).starts_with("{\"a\": 1.0,\"worker-test\":[[["));
        let (message, marker) = messages.round_trip();
        let round_trip = text(message);
        assert!(
            ROUND_TRIP_VALUES.iter().chain(&ROUND_TRIP_KEYS).all(|part| round_trip.contains(part))
                && round_trip.contains(&marker)
        );
        assert!(serde_json::from_str::<Value>(&round_trip).is_ok(), "{round_trip}");
        let mut empty = MessageFactory::new("q", "{}").unwrap();
        let large = text(empty.large());
        assert!(large.len() > LARGE_BYTES && large.starts_with("{\"worker-test\":\"x"));
        assert!(MessageFactory::new("q", "[]").is_err() && MessageFactory::new("q", "{").is_err());
    }
}
