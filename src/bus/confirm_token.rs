//! The token that a bus returns to the sender of a message.

use std::any::Any;
use std::fmt;

/// A token that the sender of a message gets back once the message is confirmed. Its content is
/// opaque to the bus.
pub struct ConfirmToken(Box<dyn ConfirmPayload>);

/// The content of a [`ConfirmToken`].
pub trait ConfirmPayload: Any + Send {
    /// Returns a second token for the same message, for a bus that delivers it to one worker after
    /// another. Returns `None` if the content cannot be cloned.
    fn try_clone(&self) -> Option<ConfirmToken>;
}

impl ConfirmToken {
    /// Creates a token with this content.
    pub fn new<T: ConfirmPayload>(payload: T) -> ConfirmToken {
        ConfirmToken(Box::new(payload))
    }

    /// Returns a second token for the same message; see [`ConfirmPayload::try_clone`].
    pub fn try_clone(&self) -> Option<ConfirmToken> {
        self.0.try_clone()
    }

    /// Returns the content to the sender, which knows its type; `None`: it has another type.
    pub fn downcast<T: Any>(self) -> Option<T> {
        let payload: Box<dyn Any> = self.0;
        payload.downcast().ok().map(|payload| *payload)
    }

    /// Borrows the content; `None`: it has another type.
    pub fn downcast_ref<T: Any>(&self) -> Option<&T> {
        let payload: &dyn Any = &*self.0;
        payload.downcast_ref()
    }
}

impl fmt::Debug for ConfirmToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConfirmToken")
    }
}
