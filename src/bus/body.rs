//! The bodies of messages.

use bytes::Bytes;
use engine::Message;
use std::fmt;

/// The body of a message. A step's input becomes text only when it is sent: while it waits, it
/// shares its values with their other owners.
#[derive(Clone)]
pub struct Body(BodyContent);

#[derive(Clone)]
enum BodyContent {
    Ready(Bytes),
    Input(Message),
}

impl Body {
    /// Creates the body of a message of kind [`crate::ERROR_KIND`]: `reason` in one sentence, and
    /// whether another attempt may help.
    pub fn from_error(reason: &str, retryable: bool) -> Body {
        Bytes::from(serde_json::json!({ "error": reason, "retryable": retryable }).to_string())
            .into()
    }

    /// Returns the bytes to be sent.
    pub fn to_bytes(&self) -> Bytes {
        match &self.0 {
            BodyContent::Ready(text) => text.clone(),
            BodyContent::Input(message) => message.to_text().into(),
        }
    }

    /// Returns the length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks for it")]
    pub fn len(&self) -> usize {
        match &self.0 {
            BodyContent::Ready(text) => text.len(),
            BodyContent::Input(message) => message.encoded_len(),
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Body({} bytes)", self.len())
    }
}

impl From<Bytes> for Body {
    fn from(text: Bytes) -> Body {
        Body(BodyContent::Ready(text))
    }
}

impl From<Message> for Body {
    fn from(message: Message) -> Body {
        Body(BodyContent::Input(message))
    }
}
