//! The bodies of messages.

use bytes::Bytes;
use engine::Message;
use std::fmt;
use std::sync::Arc;

/// A message body that is built only when it is sent.
pub trait LazyBody: Send + Sync {
    /// Builds the bytes to be sent.
    fn to_bytes(&self) -> Bytes;

    /// Returns the length in bytes.
    fn len(&self) -> usize;

    /// Returns whether the body is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The body of a message. A body that is built when it is sent shares its values with their other
/// owners while it waits.
#[derive(Clone)]
pub struct Body(BodyContent);

#[derive(Clone)]
enum BodyContent {
    Ready(Bytes),
    Lazy(Arc<dyn LazyBody>),
}

impl Body {
    /// Creates a body that is built when it is sent.
    pub fn from_lazy(text: impl LazyBody + 'static) -> Body {
        Body(BodyContent::Lazy(Arc::new(text)))
    }

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
            BodyContent::Lazy(text) => text.to_bytes(),
        }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        match &self.0 {
            BodyContent::Ready(text) => text.len(),
            BodyContent::Lazy(text) => text.len(),
        }
    }

    /// Returns whether the body is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
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

impl LazyBody for Message {
    fn to_bytes(&self) -> Bytes {
        self.to_text().into()
    }

    fn len(&self) -> usize {
        self.encoded_len()
    }
}

impl From<Message> for Body {
    fn from(message: Message) -> Body {
        Body::from_lazy(message)
    }
}
