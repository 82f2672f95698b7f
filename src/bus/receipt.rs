//! The token that a bus returns to the sender of a message.

use std::any::Any;
use std::fmt;

/// What the sender of a message gets back once the message is confirmed. Its content is opaque to
/// the bus.
pub struct Receipt(Box<dyn Issued>);

/// The content of a [`ConfirmToken`].
pub trait Issued: Any + Send {
    /// Returns another token for the same message, for a bus that delivers it to one worker after
    /// another. Returns `None` if the message can be handed over only once.
    fn again(&self) -> Option<Receipt>;
}

impl Receipt {
    /// Creates a token with this content.
    pub fn new<T: Issued>(value: T) -> Receipt {
        Receipt(Box::new(value))
    }

    /// Returns another token for the same message; see [`ConfirmPayload::try_clone`].
    pub fn again(&self) -> Option<Receipt> {
        self.0.again()
    }

    /// Returns the content to its sender, who knows the type; `None`: it has another type.
    pub fn open<T: Any>(self) -> Option<T> {
        let value: Box<dyn Any> = self.0;
        value.downcast().ok().map(|value| *value)
    }

    /// Borrows the content; `None`: it has another type.
    pub fn peek<T: Any>(&self) -> Option<&T> {
        let value: &dyn Any = &*self.0;
        value.downcast_ref()
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receipt")
    }
}
