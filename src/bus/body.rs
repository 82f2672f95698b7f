//! The bodies of messages.

use bytes::Bytes;
use engine::Message;
use std::fmt;

/// The body of a message. The input of a step and the result of a job are encoded lazily, when the
/// message is sent: until then they share their values with other owners, which saves memory.
#[derive(Clone)]
pub struct Body(BodyContent);

#[derive(Clone)]
enum BodyContent {
    /// The bytes of the body.
    Encoded(Bytes),
    /// The input of a step or the result of a job, to be encoded as JSON.
    Value(Message),
}

impl Body {
    /// Creates the body of a message of kind [`crate::ERROR_KIND`]. `reason` says in one sentence
    /// what went wrong; `is_retryable` says whether another attempt may succeed.
    pub fn from_reason(reason: &str, is_retryable: bool) -> Body {
        Bytes::from(serde_json::json!({ "error": reason, "retryable": is_retryable }).to_string())
            .into()
    }

    /// Returns the bytes to be sent. A value is encoded anew by each call.
    pub fn to_bytes(&self) -> Bytes {
        match &self.0 {
            BodyContent::Encoded(bytes) => bytes.clone(),
            BodyContent::Value(message) => message.to_text().into(),
        }
    }

    /// Returns the number of bytes that [`Body::to_bytes`] returns, without encoding a value.
    #[expect(clippy::len_without_is_empty, reason = "no caller needs it")]
    pub fn len(&self) -> usize {
        match &self.0 {
            BodyContent::Encoded(bytes) => bytes.len(),
            BodyContent::Value(message) => message.encoded_len(),
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Body({} bytes)", self.len())
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Body {
        Body(BodyContent::Encoded(bytes))
    }
}

impl From<Message> for Body {
    fn from(message: Message) -> Body {
        Body(BodyContent::Value(message))
    }
}
